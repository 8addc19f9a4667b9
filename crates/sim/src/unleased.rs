//! Processes that belong to no lease: what the host finds out about them, what operators and their owners call, and
//! what signals do to them.
//!
//! ```text
//!  a reading shows a process ──► an audit, soon, late or never ──► core ──► Strike, on the disk
//!                                  ▲ again, when a step is due           │
//!  core ◄── Struck ◄── refused, or sent: most exit, some exit late, ◄────┘
//!                      some ignore SIGTERM, and a few survive SIGKILL
//! ```
//! The daemon may exit between any two of these. All draws here have streams of their own: a world in which no unleased
//! process is audited is the same with and without them.

use crate::checker::{Violation, must};
use crate::daemon::SimCall;
use crate::rng::Rng;
use crate::shape::S;
use crate::sim::Sim;
use crate::timers::Timer;
use crate::world::World;
use std::collections::{BTreeMap, BTreeSet};
use sublet_core::action::Action;
use sublet_core::audit::{Accounted, Audit};
use sublet_core::event::{Caller, Event};
use sublet_core::facts::{GpuEvent, UnleasedAction, UnleasedEvent};
use sublet_core::ids::ProcKey;
use sublet_core::policy::unleased_due::{audits_due, is_signal_due};
use sublet_core::request::Tier;
use sublet_core::units::{Bytes, Span, Time};
use sublet_core::unleased::{self, EnforcementTimes, Mode, RuleAction, RuleId, RuleSubject, SignalOutcome, UnleasedId};

const KILL: u8 = 9;

/// How unleased processes are treated in a world.
#[derive(Clone, Copy, Debug)]
pub struct UnleasedShape {
    /// The daemon audits them at all.
    pub is_monitored: bool,
    /// How long each step takes.
    pub times: EnforcementTimes,
    /// How many audits in 1,000 are never made.
    missed_audits: u64,
    /// How many self-tests in 1,000 pass.
    self_test_passes: u64,
    /// How many of them in 1,000 have a property that protects them from signals.
    protected: u64,
    /// How many of them in 1,000 the driver can park.
    pub driver: u64,
    /// They start one at a time, on the GPU with the fewest processes.
    pub one_at_a_time: bool,
}

impl UnleasedShape {
    /// Draws the shape of a seed.
    pub fn draw(rng: &mut Rng, rng_parking: &mut Rng, is_off: bool) -> UnleasedShape {
        let is_monitored = rng.chance(700);
        let (warned, grace) = (rng.pick(&[2, 5, 15, 40]), rng.pick(&[2, 5, 20]));
        let one_at_a_time = rng_parking.chance(250);
        let (warned, grace) = (Span::secs(if one_at_a_time { warned.min(15) } else { warned }), Span::secs(grace));
        UnleasedShape {
            is_monitored: is_monitored && !is_off,
            missed_audits: rng.pick(&[0, 50, 300]),
            self_test_passes: rng.pick(&[1000, 1000, 700]),
            protected: rng.pick(if one_at_a_time { &[50] } else { &[50, 200, 600] }),
            times: EnforcementTimes {
                after_warning: warned,
                after_sigterm: grace,
                parks_first: one_at_a_time || rng_parking.chance(800),
            },
            driver: rng_parking.pick(if one_at_a_time { &[700, 1000] } else { &[0, 700, 1000] }),
            one_at_a_time,
        }
    }
}

/// What a signal does to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessKind {
    /// It exits in time.
    ExitsInTime,
    /// It exits after the grace.
    ExitsLate,
    /// It ignores SIGTERM.
    IgnoresSigterm,
    /// It waits for a disk, and survives SIGKILL for a while.
    SurvivesSigkill,
}

/// What an audit reads of a process.
#[derive(Clone, Debug)]
pub struct ProcessAudit {
    uid: u32,
    exe: u64,
    unit: Option<u64>,
    container: Option<u64>,
    devices: bool,
    unread: bool,
    kernel: bool,
    seat: bool,
    on_signal: ProcessKind,
}

/// What the unleased monitor of one daemon is doing.
#[derive(Debug, Default)]
pub struct UnleasedMonitor {
    /// Audits that are not delivered.
    audits_pending: BTreeSet<ProcKey>,
    /// When each process is audited again.
    next_audit: BTreeMap<ProcKey, u64>,
    /// Processes whose exit is reported.
    exit_reported: BTreeSet<ProcKey>,
    /// Signals that were decided, and their outcomes.
    signals: Vec<SentSignal>,
}

/// A signal that was decided.
#[derive(Debug)]
struct SentSignal {
    unleased: UnleasedId,
    signal: u8,
    at: Time,
    processes: Vec<ProcKey>,
    outcome: Vec<SignalOutcome>,
}

impl World {
    /// True if a process lives.
    fn lives(&self, process: ProcKey) -> bool {
        self.tree_of(process).is_some()
    }

    /// The GPU on which the fewest processes are.
    fn least_used_gpu(&self) -> usize {
        (0..self.gpus.len()).min_by_key(|gpu| self.gpus[*gpu].residents.len()).unwrap_or_default()
    }

    /// A process with its descendants: for the root of a tree, all of the tree.
    fn subtree(&self, process: ProcKey) -> Vec<ProcKey> {
        let tree = self.tree_of(process).and_then(|tree| self.trees.get(&tree));
        match tree {
            Some(tree) if tree.live.first() == Some(&process) => tree.live.clone(),
            _ => vec![process],
        }
    }
}

impl Sim<'_> {
    // ---- unleased processes ---------------------------------------------------------

    pub(crate) fn schedule_long_unleased(&mut self) {
        if self.shape.unleased.is_monitored && !self.calm && !self.shape.habits.orderly && !self.shape.crowd {
            let delay = self.rng_unleased.within(S, 40 * S);
            self.timers.set(self.t + delay, Timer::LongUnleased);
        }
    }

    /// Starts a process without a lease that stays for a long time.
    pub(crate) fn start_long_unleased(&mut self) -> Result<(), Violation> {
        self.schedule_long_unleased();
        if self.calm {
            return Ok(());
        }
        let tree = self.world.spawn();
        let one_at_a_time = self.shape.unleased.one_at_a_time;
        for _ in 0..self.rng_unleased.pick(if one_at_a_time { &[0, 0, 0, 0] } else { &[0, 0, 1, 2] }) {
            self.world.fork(tree);
        }
        let graphics = self.rng_unleased.chance(60);
        for process in self.world.trees[&tree].live.clone() {
            self.install_lodger(process);
            for _ in 0..self.rng_unleased.pick(if one_at_a_time { &[1, 1, 1, 1] } else { &[0, 1, 1, 2] }) {
                let anywhere = self.rng_unleased.below(self.world.gpus.len() as u64) as usize;
                let gpu = if one_at_a_time { self.world.least_used_gpu() } else { anywhere };
                let bytes = Bytes(self.rng_unleased.within(1, 4_000 << 20));
                self.world.allocate(gpu, process, bytes, graphics);
                self.world.gpus[gpu].uncapped_use_us = self.t;
            }
        }
        let stay = self.rng_unleased.within(if one_at_a_time { 60 * S } else { 10 * S }, 200 * S);
        self.timers.set(self.t + stay, Timer::Exit(tree));
        Ok(())
    }

    /// A process of a job takes memory on a GPU that its lease does not have, or frees it.
    pub(crate) fn use_off_lease_gpu(&mut self, process: ProcKey, own: &[usize]) {
        let (rng, often) = &mut self.rng_off_lease;
        let restless = self.shape.unleased.is_monitored && !self.shape.habits.orderly && !self.shape.crowd;
        if self.calm || !restless || !rng.chance(*often) {
            return;
        }
        let gpu = rng.below(self.world.gpus.len() as u64) as usize;
        if own.contains(&gpu) {
            return;
        }
        if rng.chance(300) {
            return self.world.free_all(gpu, process);
        }
        let most = rng.pick(&[0, 300, 4_000]);
        let (bytes, graphics) = (Bytes::mib(rng.within(0, most)), rng.chance(100));
        self.world.allocate(gpu, process, bytes, graphics);
        self.world.gpus[gpu].uncapped_use_us = self.t;
    }

    // ---- audits ------------------------------------------------------------

    /// Requests audits of the processes that a reading showed and that belong to no lease there, and of those for which
    /// core asks.
    pub(crate) fn request_audits(&mut self, gpu: u16, processes: &[ProcKey]) {
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.shape.unleased.is_monitored) else { return };
        // A GPU that was never listed has no lease.
        let state = daemon.engine.state();
        let gpu = state.gpu(&self.world.gpus[usize::from(gpu)].facts.uuid);
        let off_lease = gpu.map(|gpu| state.off_lease_processes(gpu)).unwrap_or_default();
        for process in processes {
            let Some(daemon) = &mut self.daemon else { return };
            let known = daemon.engine.state().holder(process).is_some() && !off_lease.contains(process);
            if known || daemon.watching.next_audit.get(process).is_some_and(|next| *next > self.t) {
                continue;
            }
            daemon.watching.next_audit.insert(*process, self.t + self.rng_unleased.within(8 * S, 30 * S));
            if !self.rng_unleased.chance(self.shape.unleased.missed_audits) {
                let longest = self.rng_unleased.pick(&[S / 2, S / 2, S / 2, 5 * S]);
                self.schedule_audit(*process, longest);
            }
        }
    }

    /// Requests audits of the processes for which a step is due.
    pub(crate) fn request_due_audits(&mut self) {
        let now = self.now();
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.shape.unleased.is_monitored) else { return };
        for process in audits_due(daemon.engine.state(), now) {
            let longest = self.rng_unleased.pick(&[S / 10, S / 10, S, 8 * S]);
            self.schedule_audit(process, longest);
        }
    }

    fn schedule_audit(&mut self, process: ProcKey, longest_us: u64) {
        let Some(daemon) = &mut self.daemon else { return };
        if daemon.watching.audits_pending.insert(process) {
            let delay = self.rng_unleased.within(0, longest_us);
            self.timers.set(self.t + delay, Timer::Audit(self.life, process));
        }
    }

    /// Delivers an audit.
    pub(crate) fn deliver_audit(&mut self, process: ProcKey) -> Result<(), Violation> {
        let Some(daemon) = &mut self.daemon else { return Ok(()) };
        daemon.watching.audits_pending.remove(&process);
        if !self.world.lives(process) {
            return Ok(());
        }
        daemon.watching.exit_reported.insert(process);
        self.ensure_audit_facts(process);
        if !self.calm && self.rng_unleased.chance(30) {
            self.change_program(process);
        }
        let audit = self.read_audit(process);
        let mut tree = self.world.subtree(process);
        if self.rng_unleased.chance(50) {
            tree.extend(self.draw_bystander());
        }
        self.report(UnleasedEvent::Audited { audit: Box::new(audit), tree })
    }

    /// Draws a process that descends from an unleased process and is none itself: it has a lease of its own, or is
    /// process 1.
    fn draw_bystander(&mut self) -> Option<ProcKey> {
        let some = self.rng_unleased.below(self.world.trees.len() as u64 + 1) as usize;
        let tree = self.world.trees.values().filter(|tree| !tree.leases.is_empty()).nth(some / 4);
        let process = tree.and_then(|tree| tree.live.last().copied());
        process.or(Some(ProcKey { pid: 1, start: 0 }))
    }

    /// Draws what an audit reads of a process, when it is first needed.
    fn ensure_audit_facts(&mut self, process: ProcKey) {
        if self.world.audits.contains_key(&process) {
            return;
        }
        let tree = self.world.tree_of(process);
        let owner = self.jobs.iter().find(|job| job.tree.is_some() && job.tree == tree).map(|job| job.tenant as u64);
        let tenants = self.shape.tenants as u64;
        let any_caller = self.rng_unleased.below(tenants + 2);
        let is_protected = self.rng_unleased.chance(self.shape.unleased.protected);
        let which = self.rng_unleased.below(6);
        let facts = ProcessAudit {
            // The last two are a user without requests, and the operator.
            uid: match owner.unwrap_or(any_caller) {
                n if n == tenants => 0,
                n => 1000 + n as u32,
            },
            exe: self.rng_unleased.below(5),
            unit: self.rng_unleased.chance(200).then(|| self.rng_unleased.below(3)),
            container: (is_protected && which < 2).then(|| self.rng_unleased.below(4)),
            devices: !(is_protected && which == 2),
            unread: is_protected && which == 3,
            kernel: is_protected && which == 4,
            seat: is_protected && which == 5,
            on_signal: self.rng_unleased.pick(&[
                ProcessKind::ExitsInTime,
                ProcessKind::ExitsInTime,
                ProcessKind::ExitsLate,
                ProcessKind::IgnoresSigterm,
                ProcessKind::IgnoresSigterm,
                ProcessKind::SurvivesSigkill,
            ]),
        };
        self.world.audits.insert(process, facts);
    }

    /// The process runs another program from now on.
    fn change_program(&mut self, process: ProcKey) {
        let exe = self.rng_unleased.below(5);
        if let Some(facts) = self.world.audits.get_mut(&process) {
            facts.exe = exe;
        }
    }

    fn read_audit(&mut self, process: ProcKey) -> Audit {
        let facts = self.world.audits[&process].clone();
        let hidden = facts.unread || (!self.calm && self.rng_unleased.chance(20));
        let exe = (!facts.kernel).then(|| format!("/usr/bin/tool{}", facts.exe));
        Audit {
            process,
            uid: facts.uid,
            name: "tool".to_owned(),
            exe,
            exe_file: None,
            exe_deleted: false,
            exe_inside: false,
            command: if facts.kernel { Vec::new() } else { vec!["tool".to_owned()] },
            cwd: None,
            cgroup: "/".to_owned(),
            unit: facts.unit.map(|unit| format!("unit{unit}.service")),
            container: facts.container.map(|container| format!("{container}").repeat(64)),
            seat: facts.seat.then(|| "seat0".to_owned()),
            session: process.pid,
            started_s: process.start,
            ancestry: Vec::new(),
            devices: if facts.devices { vec!["/dev/nvidia0".to_owned()] } else { Vec::new() },
            crowded: false,
            through: None,
            ran: Some(Accounted { cpu_ms: self.t / 1000, io_bytes: None, peak_memory_bytes: None }),
            unread: if hidden { vec!["its open files".to_owned()] } else { Vec::new() },
        }
    }

    /// Reports the exits of audited processes, except for 1 in 10.
    pub(crate) fn schedule_exit_reports(&mut self) {
        for process in std::mem::take(&mut self.world.unnoticed_exits) {
            let Some(daemon) = &mut self.daemon else { continue };
            daemon.watching.next_audit.remove(&process);
            if daemon.watching.exit_reported.remove(&process) && !self.rng_unleased.chance(100) {
                let delay = self.rng_unleased.within(0, S / 3);
                self.timers.set(self.t + delay, Timer::ReportExit(self.life, process));
            }
        }
    }

    // ---- a daemon begins ---------------------------------------------------

    /// A daemon starts its self-test, and watches the recorded processes.
    pub(crate) fn begin_unleased_monitor(&mut self) {
        if !self.shape.unleased.is_monitored {
            return;
        }
        let longest = self.rng_unleased.pick(&[S, S, 5 * S, 30 * S]);
        let delay = self.rng_unleased.within(0, longest);
        self.timers.set(self.t + delay, Timer::SelfTest(self.life));
        let recorded: Vec<ProcKey> = self.disk.rows.unleased.values().map(|unleased| unleased.audit.process).collect();
        for process in recorded {
            let lives = self.world.lives(process);
            if let Some(daemon) = self.daemon.as_mut().filter(|_| lives) {
                daemon.watching.exit_reported.insert(process);
            } else if !self.rng_unleased.chance(100) {
                let delay = self.rng_unleased.within(0, S);
                self.timers.set(self.t + delay, Timer::ReportExit(self.life, process));
            }
        }
    }

    pub(crate) fn run_self_test(&mut self) -> Result<(), Violation> {
        let passes = self.rng_unleased.chance(self.shape.unleased.self_test_passes);
        if !passes {
            self.timers.set(self.t + 60 * S, Timer::SelfTest(self.life));
        }
        let can = if passes { Ok(()) } else { Err("the worker does not find itself on a GPU".to_owned()) };
        self.report(UnleasedEvent::SelfTested { result: can })
    }

    // ---- signals -----------------------------------------------------------

    /// Schedules a signal to an unleased process that is on the disk.
    pub(crate) fn schedule_signal(&mut self, action: &Action, longest_us: u64) {
        let Action::Unleased(UnleasedAction::Signal { id: stranger, signal, at, processes }) = action else { return };
        let (stranger, signal, at, processes) = (*stranger, *signal, *at, processes.clone());
        let delay = self.rng_unleased.within(0, longest_us);
        let Some(daemon) = &mut self.daemon else { return };
        let sent_signal = SentSignal { unleased: stranger, signal, at, processes, outcome: Vec::new() };
        daemon.watching.signals.push(sent_signal);
        let number = daemon.watching.signals.len() as u32 - 1;
        self.timers.set(self.t + delay, Timer::SendSignal(self.life, number));
    }

    /// Sends a signal to its processes, unless it was withdrawn or they are others by now.
    pub(crate) fn send_signal(&mut self, number: u32) -> Result<(), Violation> {
        let now = self.now();
        let Some(daemon) = &self.daemon else { return Ok(()) };
        let SentSignal { unleased: stranger, signal, at, processes, .. } = &daemon.watching.signals[number as usize];
        let (stranger, signal, processes) = (*stranger, *signal, processes.clone());
        let state = daemon.engine.state();
        let is_wanted = |process: &ProcKey| {
            is_signal_due(state, &unleased::PendingSignal { stranger, process: *process, signal, of: *at }, now)
        };
        let wanted: Vec<bool> = processes.iter().map(is_wanted).collect();
        let own = self.disk.rows.unleased.get(&stranger).map(|row| row.audit.clone());
        if !self.calm && self.rng_unleased.chance(40) {
            processes.iter().for_each(|process| self.change_program(*process));
        }
        let mut changed = false;
        let refused = match own {
            Some(own) if processes.iter().zip(&wanted).any(|(process, wanted)| *process == own.process && !wanted) => {
                changed = true;
                Some("it is not wanted any more".to_owned())
            }
            _ if !self.calm && self.rng_unleased.chance(40) => Some("that is not permitted".to_owned()),
            Some(own) if self.world.lives(own.process) => {
                self.ensure_audit_facts(own.process);
                let other = own.is_same(&self.read_audit(own.process)).err().map(str::to_owned);
                changed = other.is_some();
                other
            }
            _ => Some("it is gone".to_owned()),
        };
        let mut outcome = Vec::new();
        for (process, wanted) in processes.into_iter().zip(wanted) {
            let gone = (!wanted || !self.world.lives(process)).then(|| "it is gone, or not meant any more".to_owned());
            let refused = refused.clone().or(gone);
            outcome.push(SignalOutcome { process, refused, changed, uid: None });
        }
        self.deliver_to_processes(stranger, signal, &outcome)?;
        if let Some(daemon) = &mut self.daemon {
            daemon.watching.signals[number as usize].outcome = outcome;
        }
        let longest = self.rng_unleased.pick(&[S / 20, S / 20, S / 2, 4 * S]);
        let delay = self.rng_unleased.within(0, longest);
        self.timers.set(self.t + delay, Timer::SignalOutcome(self.life, number));
        Ok(())
    }

    /// Delivers a signal to processes.
    fn deliver_to_processes(
        &mut self,
        unleased: UnleasedId,
        signal: u8,
        outcome: &[SignalOutcome],
    ) -> Result<(), Violation> {
        let reached = || outcome.iter().filter(|struck| struck.refused.is_none()).map(|struck| struck.process);
        let Some(first) = reached().next() else { return Ok(()) };
        self.checker.check_signal_delivery(unleased, signal)?;
        // The same process may be recorded under another number since.
        let own = self.disk.rows.unleased.get(&unleased).map_or(first, |row| row.audit.process);
        let grace = self.shape.policy.enforcement.after_sigterm;
        if signal == KILL {
            let told = self.sigterm_sent.get(&own).copied();
            must(16, told.is_some_and(|told| told + grace.0 <= self.t), || {
                format!("{unleased} ({first}) gets SIGKILL at {}, and got SIGTERM at {told:?}", self.t)
            })?;
        } else {
            self.sigterm_sent.insert(own, self.t);
        }
        for process in reached().collect::<Vec<_>>() {
            self.ensure_audit_facts(process);
            let nature = if self.calm { ProcessKind::ExitsInTime } else { self.world.audits[&process].on_signal };
            let longest = match (nature, signal) {
                (ProcessKind::SurvivesSigkill, KILL) => self.rng_unleased.pick(&[30 * S, 300 * S]),
                (_, KILL) => S / 10,
                (ProcessKind::ExitsInTime, _) => grace.0 / 2,
                (ProcessKind::ExitsLate, _) => 4 * grace.0,
                (ProcessKind::IgnoresSigterm | ProcessKind::SurvivesSigkill, _) => continue,
            };
            let delay = self.rng_unleased.within(longest / 10, longest);
            self.timers.set(self.t + delay, Timer::ExitBySignal(process));
        }
        Ok(())
    }

    /// Reports the outcome of a signal.
    pub(crate) fn report_signal_outcome(&mut self, number: u32) -> Result<(), Violation> {
        let Some(daemon) = &mut self.daemon else { return Ok(()) };
        let SentSignal { unleased: stranger, signal, at, outcome, .. } = &mut daemon.watching.signals[number as usize];
        let event = Event::Unleased(UnleasedEvent::SignalSent {
            id: *stranger,
            signal: *signal,
            decided_at: *at,
            outcome: std::mem::take(outcome),
        });
        self.report(event)
    }

    // ---- calls --------------------------------------------------------------

    /// An operator changes a mode or a rule, or a process is adopted.
    pub(crate) fn change_enforcement(&mut self) -> Result<(), Violation> {
        if self.calm || self.shape.crowd || !self.shape.unleased.is_monitored {
            return Ok(());
        }
        let most = if self.shape.unleased.one_at_a_time { 40 * S } else { 12 * S };
        let delay = self.rng_unleased.within(S / 2, most);
        self.timers.set(self.t + delay, Timer::ChangeEnforcement);
        let last = self.callers.len() - 1;
        let any_caller = self.rng_unleased.below(self.callers.len() as u64) as usize;
        let by = if self.rng_unleased.chance(80) { any_caller } else { last };
        let caller = self.callers[by].clone();
        match self.rng_unleased.below(12) {
            0..5 => {
                let card = format!("GPU-{}", self.rng_unleased.below(self.world.gpus.len() as u64));
                let mode = self.rng_unleased.pick(&[
                    Mode::Enforce,
                    Mode::Enforce,
                    Mode::Enforce,
                    Mode::Enforce,
                    Mode::Warn,
                    Mode::Adopt,
                    Mode::Adopt,
                    Mode::Observe,
                ]);
                let mode = if self.shape.unleased.one_at_a_time && self.rng_unleased_parking.chance(600) {
                    Mode::Enforce
                } else {
                    mode
                };
                self.call(SimCall {
                    by,
                    event: Event::Gpu(GpuEvent::ModeRequested { by: caller, gpu: card, mode }),
                    job: None,
                })
            }
            5 => {
                let (who, treat) = (
                    self.draw_rule_subject(),
                    self.rng_unleased.pick(&[RuleAction::Allow, RuleAction::Deny, RuleAction::Deny]),
                );
                self.call(SimCall {
                    by,
                    event: Event::Unleased(UnleasedEvent::RuleRequested { by: caller, subject: who, action: treat }),
                    job: None,
                })
            }
            6..9 => {
                let rule = RuleId(self.rng_unleased.within(1, u64::from(self.disk.rows.meta.next_rule)) as u32);
                self.call(SimCall {
                    by,
                    event: Event::Unleased(UnleasedEvent::RuleRemovalRequested { by: caller, rule }),
                    job: None,
                })
            }
            _ => self.request_adoption(),
        }
    }

    fn draw_rule_subject(&mut self) -> RuleSubject {
        match self.rng_unleased.below(8) {
            0 => RuleSubject::Exe(format!("tool{}", self.rng_unleased.below(6))),
            1 => RuleSubject::Exe(format!("/usr/bin/tool{}", self.rng_unleased.below(6))),
            2 => RuleSubject::Unit(format!("unit{}", self.rng_unleased.below(3))),
            3 => RuleSubject::Container(self.rng_unleased.pick(&["0", "1", ""]).repeat(14)),
            4 => RuleSubject::Container("0123".to_owned()),
            5 => RuleSubject::Uid(1000 + self.rng_unleased.below(3) as u32),
            _ => RuleSubject::Container(self.rng_unleased.pick(&["0", "1", "2"]).repeat(20)),
        }
    }

    /// An owner, an operator or another caller adopts an unleased process.
    fn request_adoption(&mut self) -> Result<(), Violation> {
        let some = self.rng_unleased.below(self.disk.rows.unleased.len() as u64 + 1) as usize;
        let unleased = self.disk.rows.unleased.values().nth(some).map(|row| (row.audit.process, row.audit.uid));
        let unknown = (ProcKey { pid: self.rng_unleased.below(500) as u32, start: self.rng_unleased.below(1_000) }, 0);
        let (process, uid) = unleased.unwrap_or(unknown);
        let own = |caller: &Caller| caller.tenant == format!("uid:{uid}");
        let own = self.callers.iter().position(own).filter(|_| self.rng_unleased.chance(700));
        let by = own.unwrap_or_else(|| self.rng_unleased.below(self.callers.len() as u64) as usize);
        let vram = self.rng_unleased.chance(400).then(|| Bytes::mib(self.rng_unleased.within(1, 12_000)));
        let tier = self.rng_unleased.pick(&[Tier::Interactive, Tier::Batch, Tier::Spot]);
        let event =
            Event::Unleased(UnleasedEvent::AdoptRequested { by: self.callers[by].clone(), process, vram, tier });
        self.call(SimCall { by, event, job: None })
    }
}
