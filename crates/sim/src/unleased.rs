//! Processes that belong to no lease: what the host finds out about them, what operators and their owners
//! say, and what signals do to them.
//!
//! ```text
//!  a look shows somebody ──► an audit, soon, late or never ──► core ──► Strike, on the disk
//!                                  ▲ again, when a step is due           │
//!  core ◄── Struck ◄── refused, or sent: most exit, some take long, ◄────┘
//!                      some do not care, and a few survive SIGKILL
//! ```
//! Between any two of these the daemon may die. What is drawn here has its own luck: a world in which
//! nobody looks into strangers is the same with it and without.

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
use sublet_core::request::Tier;
use sublet_core::units::{Bytes, Span, Time};
use sublet_core::unleased::{self, EnforcementTimes, Mode, RuleAction, RuleId, RuleSubject, SignalOutcome, UnleasedId};

const KILL: u8 = 9;

/// How strangers are looked after in a world.
#[derive(Clone, Copy, Debug)]
pub struct UnleasedShape {
    /// Somebody looks into them at all.
    pub awake: bool,
    /// How long they have for what.
    pub patience: EnforcementTimes,
    /// Thousandths of audits that nobody makes.
    lost: u64,
    /// Thousandths of daemons whose self-test passes.
    able: u64,
    /// Thousandths of them that have something about them that keeps them from being ended.
    odd: u64,
    /// Thousandths of them that the driver can park.
    pub driver: u64,
    /// They come one at a time, to where few are.
    pub rare: bool,
}

impl UnleasedShape {
    /// That of a seed.
    pub fn draw(odds: &mut Rng, mood: &mut Rng, blind: bool) -> UnleasedShape {
        let awake = odds.chance(700);
        let (warned, grace) = (odds.pick(&[2, 5, 15, 40]), odds.pick(&[2, 5, 20]));
        let rare = mood.chance(250);
        let (warned, grace) = (Span::secs(if rare { warned.min(15) } else { warned }), Span::secs(grace));
        UnleasedShape {
            awake: awake && !blind,
            lost: odds.pick(&[0, 50, 300]),
            able: odds.pick(&[1000, 1000, 700]),
            odd: odds.pick(if rare { &[50] } else { &[50, 200, 600] }),
            patience: EnforcementTimes {
                after_warning: warned,
                after_sigterm: grace,
                parks_first: rare || mood.chance(800),
            },
            driver: mood.pick(if rare { &[700, 1000] } else { &[0, 700, 1000] }),
            rare,
        }
    }
}

/// What a signal does to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessKind {
    /// It exits, soon.
    Meek,
    /// It takes longer than it has.
    Slow,
    /// It does not care for SIGTERM.
    Deaf,
    /// Nor for SIGKILL: it waits for a disk.
    Iron,
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
    nature: ProcessKind,
}

/// What one daemon's hands and eyes are at.
#[derive(Debug, Default)]
pub struct UnleasedMonitor {
    /// Audits under way.
    asked: BTreeSet<ProcKey>,
    /// From when on a process is looked into again.
    next: BTreeMap<ProcKey, u64>,
    /// Processes whose exit is noticed.
    known: BTreeSet<ProcKey>,
    /// Signals on their way, and what became of them.
    blows: Vec<SentSignal>,
}

/// A signal on its way.
#[derive(Debug)]
struct SentSignal {
    stranger: UnleasedId,
    signal: u8,
    at: Time,
    processes: Vec<ProcKey>,
    outcome: Vec<SignalOutcome>,
}

impl World {
    /// Whether a process lives.
    fn lives(&self, process: ProcKey) -> bool {
        self.tree_of(process).is_some()
    }

    /// The card on which the fewest processes are.
    fn emptiest(&self) -> usize {
        (0..self.cards.len()).min_by_key(|card| self.cards[*card].residents.len()).unwrap_or_default()
    }

    /// What descends from a process, and itself: of a tree's first one, all of it.
    fn descent(&self, process: ProcKey) -> Vec<ProcKey> {
        let tree = self.tree_of(process).and_then(|tree| self.trees.get(&tree));
        match tree {
            Some(tree) if tree.live.first() == Some(&process) => tree.live.clone(),
            _ => vec![process],
        }
    }
}

impl Sim<'_> {
    // ---- strangers ---------------------------------------------------------

    pub(crate) fn again_lodger(&mut self) {
        if self.shape.vigil.awake && !self.calm && !self.shape.habits.orderly && !self.shape.crowd {
            let delay = self.odds.within(S, 40 * S);
            self.timers.set(self.t + delay, Timer::Lodger);
        }
    }

    /// Somebody comes to stay, without a lease.
    pub(crate) fn lodger(&mut self) -> Result<(), Violation> {
        self.again_lodger();
        if self.calm {
            return Ok(());
        }
        let tree = self.world.spawn();
        let rare = self.shape.vigil.rare;
        for _ in 0..self.odds.pick(if rare { &[0, 0, 0, 0] } else { &[0, 0, 1, 2] }) {
            self.world.fork(tree);
        }
        let graphics = self.odds.chance(60);
        for process in self.world.trees[&tree].live.clone() {
            self.install_lodger(process);
            for _ in 0..self.odds.pick(if rare { &[1, 1, 1, 1] } else { &[0, 1, 1, 2] }) {
                let anywhere = self.odds.below(self.world.cards.len() as u64) as usize;
                let card = if rare { self.world.emptiest() } else { anywhere };
                let bytes = Bytes(self.odds.within(1, 4_000 << 20));
                self.world.allocate(card, process, bytes, graphics);
                self.world.cards[card].intruded_us = self.t;
            }
        }
        let stay = self.odds.within(if rare { 60 * S } else { 10 * S }, 200 * S);
        self.timers.set(self.t + stay, Timer::Exit(tree));
        Ok(())
    }

    /// A process of a job takes something of a card that its lease is not for, or gives it back.
    pub(crate) fn stray(&mut self, process: ProcKey, own: &[usize]) {
        let (luck, often) = &mut self.astray;
        let restless = self.shape.vigil.awake && !self.shape.habits.orderly && !self.shape.crowd;
        if self.calm || !restless || !luck.chance(*often) {
            return;
        }
        let card = luck.below(self.world.cards.len() as u64) as usize;
        if own.contains(&card) {
            return;
        }
        if luck.chance(300) {
            return self.world.vacate(card, process);
        }
        let most = luck.pick(&[0, 300, 4_000]);
        let (bytes, graphics) = (Bytes::mib(luck.within(0, most)), luck.chance(100));
        self.world.allocate(card, process, bytes, graphics);
        self.world.cards[card].intruded_us = self.t;
    }

    // ---- audits ------------------------------------------------------------

    /// These were seen on a card: who belongs to no lease is looked into, and whom core asks for.
    pub(crate) fn look_into(&mut self, card: u16, processes: &[ProcKey]) {
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.shape.vigil.awake) else { return };
        // A card that was never listed is nobody's.
        let state = daemon.engine.state();
        let card = state.gpu(&self.world.cards[usize::from(card)].facts.uuid);
        let abroad = card.map(|card| state.off_lease_processes(card)).unwrap_or_default();
        for process in processes {
            let Some(daemon) = &mut self.daemon else { return };
            let known = daemon.engine.state().holder(process).is_some() && !abroad.contains(process);
            if known || daemon.watching.next.get(process).is_some_and(|next| *next > self.t) {
                continue;
            }
            daemon.watching.next.insert(*process, self.t + self.odds.within(8 * S, 30 * S));
            if !self.odds.chance(self.shape.vigil.lost) {
                let longest = self.odds.pick(&[S / 2, S / 2, S / 2, 5 * S]);
                self.ask_audit(*process, longest);
            }
        }
    }

    /// Steps are due: whom they are about is looked into again.
    pub(crate) fn look_again(&mut self) {
        let now = self.now();
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.shape.vigil.awake) else { return };
        for process in daemon.engine.state().audits_due(now) {
            let longest = self.odds.pick(&[S / 10, S / 10, S, 8 * S]);
            self.ask_audit(process, longest);
        }
    }

    fn ask_audit(&mut self, process: ProcKey, longest_us: u64) {
        let Some(daemon) = &mut self.daemon else { return };
        if daemon.watching.asked.insert(process) {
            let delay = self.odds.within(0, longest_us);
            self.timers.set(self.t + delay, Timer::Audit(self.life, process));
        }
    }

    /// An audit comes back.
    pub(crate) fn audit(&mut self, process: ProcKey) -> Result<(), Violation> {
        let Some(daemon) = &mut self.daemon else { return Ok(()) };
        daemon.watching.asked.remove(&process);
        if !self.world.lives(process) {
            return Ok(());
        }
        daemon.watching.known.insert(process);
        self.paper(process);
        if !self.calm && self.odds.chance(30) {
            self.exec(process);
        }
        let audit = self.read_papers(process);
        let mut tree = self.world.descent(process);
        if self.odds.chance(50) {
            tree.extend(self.bystander());
        }
        self.report(UnleasedEvent::Audited { audit: Box::new(audit), tree })
    }

    /// Somebody who descends from a stranger and is not one: it has a lease of its own, or is the first
    /// process of all.
    fn bystander(&mut self) -> Option<ProcKey> {
        let some = self.odds.below(self.world.trees.len() as u64 + 1) as usize;
        let tree = self.world.trees.values().filter(|tree| !tree.leases.is_empty()).nth(some / 4);
        let process = tree.and_then(|tree| tree.live.last().copied());
        process.or(Some(ProcKey { pid: 1, start: 0 }))
    }

    /// Every process has papers, from when they are first asked for.
    fn paper(&mut self, process: ProcKey) {
        if self.world.papers.contains_key(&process) {
            return;
        }
        let tree = self.world.tree_of(process);
        let owner = self.jobs.iter().find(|job| job.tree.is_some() && job.tree == tree).map(|job| job.tenant as u64);
        let tenants = self.shape.tenants as u64;
        let anybody = self.odds.below(tenants + 2);
        let odd = self.odds.chance(self.shape.vigil.odd);
        let which = self.odds.below(6);
        let papers = ProcessAudit {
            // The last two are of nobody who ever asked, and of the operator.
            uid: match owner.unwrap_or(anybody) {
                n if n == tenants => 0,
                n => 1000 + n as u32,
            },
            exe: self.odds.below(5),
            unit: self.odds.chance(200).then(|| self.odds.below(3)),
            container: (odd && which < 2).then(|| self.odds.below(4)),
            devices: !(odd && which == 2),
            unread: odd && which == 3,
            kernel: odd && which == 4,
            seat: odd && which == 5,
            nature: self.odds.pick(&[
                ProcessKind::Meek,
                ProcessKind::Meek,
                ProcessKind::Slow,
                ProcessKind::Deaf,
                ProcessKind::Deaf,
                ProcessKind::Iron,
            ]),
        };
        self.world.papers.insert(process, papers);
    }

    /// It runs another program from now on.
    fn exec(&mut self, process: ProcKey) {
        let exe = self.odds.below(5);
        if let Some(papers) = self.world.papers.get_mut(&process) {
            papers.exe = exe;
        }
    }

    fn read_papers(&mut self, process: ProcKey) -> Audit {
        let papers = self.world.papers[&process].clone();
        let hidden = papers.unread || (!self.calm && self.odds.chance(20));
        let exe = (!papers.kernel).then(|| format!("/usr/bin/tool{}", papers.exe));
        Audit {
            process,
            uid: papers.uid,
            name: "tool".to_owned(),
            exe,
            exe_file: None,
            exe_deleted: false,
            exe_inside: false,
            command: if papers.kernel { Vec::new() } else { vec!["tool".to_owned()] },
            cwd: None,
            cgroup: "/".to_owned(),
            unit: papers.unit.map(|unit| format!("unit{unit}.service")),
            container: papers.container.map(|container| format!("{container}").repeat(64)),
            seat: papers.seat.then(|| "seat0".to_owned()),
            session: process.pid,
            started_s: process.start,
            ancestry: Vec::new(),
            devices: if papers.devices { vec!["/dev/nvidia0".to_owned()] } else { Vec::new() },
            crowded: false,
            through: None,
            ran: Some(Accounted { cpu_ms: self.t / 1000, io_bytes: None, peak_memory_bytes: None }),
            unread: if hidden { vec!["its open files".to_owned()] } else { Vec::new() },
        }
    }

    /// Processes exited: the host notices those that it looked into, nearly always.
    pub(crate) fn notice_exits(&mut self) {
        for process in std::mem::take(&mut self.world.exited) {
            let Some(daemon) = &mut self.daemon else { continue };
            daemon.watching.next.remove(&process);
            if daemon.watching.known.remove(&process) && !self.odds.chance(100) {
                let delay = self.odds.within(0, S / 3);
                self.timers.set(self.t + delay, Timer::Gone(self.life, process));
            }
        }
    }

    // ---- a daemon begins ---------------------------------------------------

    /// A daemon tries whether it could end anybody, and looks for whom the record has.
    pub(crate) fn begin_vigil(&mut self) {
        if !self.shape.vigil.awake {
            return;
        }
        let longest = self.odds.pick(&[S, S, 5 * S, 30 * S]);
        let delay = self.odds.within(0, longest);
        self.timers.set(self.t + delay, Timer::SelfTest(self.life));
        let recorded: Vec<ProcKey> = self.disk.rows.unleased.values().map(|stranger| stranger.audit.process).collect();
        for process in recorded {
            let lives = self.world.lives(process);
            if let Some(daemon) = self.daemon.as_mut().filter(|_| lives) {
                daemon.watching.known.insert(process);
            } else if !self.odds.chance(100) {
                let delay = self.odds.within(0, S);
                self.timers.set(self.t + delay, Timer::Gone(self.life, process));
            }
        }
    }

    pub(crate) fn self_test(&mut self) -> Result<(), Violation> {
        let passes = self.odds.chance(self.shape.vigil.able);
        if !passes {
            self.timers.set(self.t + 60 * S, Timer::SelfTest(self.life));
        }
        let can = if passes { Ok(()) } else { Err("the worker does not find itself on a card".to_owned()) };
        self.report(UnleasedEvent::SelfTested { result: can })
    }

    // ---- signals -----------------------------------------------------------

    /// A signal to a stranger is on the disk: it leaves soon.
    pub(crate) fn aim(&mut self, action: &Action, longest_us: u64) {
        let Action::Unleased(UnleasedAction::Signal { id: stranger, signal, at, processes }) = action else { return };
        let (stranger, signal, at, processes) = (*stranger, *signal, *at, processes.clone());
        let delay = self.odds.within(0, longest_us);
        let Some(daemon) = &mut self.daemon else { return };
        let blow = SentSignal { stranger, signal, at, processes, outcome: Vec::new() };
        daemon.watching.blows.push(blow);
        let number = daemon.watching.blows.len() as u32 - 1;
        self.timers.set(self.t + delay, Timer::Blow(self.life, number));
    }

    /// It reaches whom it is for, if that is still who it was.
    pub(crate) fn blow(&mut self, number: u32) -> Result<(), Violation> {
        let now = self.now();
        let Some(daemon) = &self.daemon else { return Ok(()) };
        let SentSignal { stranger, signal, at, processes, .. } = &daemon.watching.blows[number as usize];
        let (stranger, signal, processes) = (*stranger, *signal, processes.clone());
        let state = daemon.engine.state();
        let is_wanted = |process: &ProcKey| {
            state.is_signal_due(&unleased::PendingSignal { stranger, process: *process, signal, of: *at }, now)
        };
        let wanted: Vec<bool> = processes.iter().map(is_wanted).collect();
        let own = self.disk.rows.unleased.get(&stranger).map(|row| row.audit.clone());
        if !self.calm && self.odds.chance(40) {
            processes.iter().for_each(|process| self.exec(*process));
        }
        let mut changed = false;
        let refused = match own {
            Some(own) if processes.iter().zip(&wanted).any(|(process, wanted)| *process == own.process && !wanted) => {
                changed = true;
                Some("it is not wanted any more".to_owned())
            }
            _ if !self.calm && self.odds.chance(40) => Some("that is not permitted".to_owned()),
            Some(own) if self.world.lives(own.process) => {
                self.paper(own.process);
                let other = own.is_same(&self.read_papers(own.process)).err().map(str::to_owned);
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
        self.reach(stranger, signal, &outcome)?;
        if let Some(daemon) = &mut self.daemon {
            daemon.watching.blows[number as usize].outcome = outcome;
        }
        let longest = self.odds.pick(&[S / 20, S / 20, S / 2, 4 * S]);
        let delay = self.odds.within(0, longest);
        self.timers.set(self.t + delay, Timer::Landed(self.life, number));
        Ok(())
    }

    /// Processes get it.
    fn reach(&mut self, stranger: UnleasedId, signal: u8, outcome: &[SignalOutcome]) -> Result<(), Violation> {
        let reached = || outcome.iter().filter(|struck| struck.refused.is_none()).map(|struck| struck.process);
        let Some(first) = reached().next() else { return Ok(()) };
        self.checker.reaches(stranger, signal)?;
        // The same process may be on the record by another name since.
        let own = self.disk.rows.unleased.get(&stranger).map_or(first, |row| row.audit.process);
        let grace = self.shape.policy.enforcement.after_sigterm;
        if signal == KILL {
            let told = self.struck.get(&own).copied();
            must(16, told.is_some_and(|told| told + grace.0 <= self.t), || {
                format!("{stranger} ({first}) gets SIGKILL at {}, and got SIGTERM at {told:?}", self.t)
            })?;
        } else {
            self.struck.insert(own, self.t);
        }
        for process in reached().collect::<Vec<_>>() {
            self.paper(process);
            let nature = if self.calm { ProcessKind::Meek } else { self.world.papers[&process].nature };
            let longest = match (nature, signal) {
                (ProcessKind::Iron, KILL) => self.odds.pick(&[30 * S, 300 * S]),
                (_, KILL) => S / 10,
                (ProcessKind::Meek, _) => grace.0 / 2,
                (ProcessKind::Slow, _) => 4 * grace.0,
                (ProcessKind::Deaf | ProcessKind::Iron, _) => continue,
            };
            let delay = self.odds.within(longest / 10, longest);
            self.timers.set(self.t + delay, Timer::Die(process));
        }
        Ok(())
    }

    /// The daemon hears what became of a signal.
    pub(crate) fn landed(&mut self, number: u32) -> Result<(), Violation> {
        let Some(daemon) = &mut self.daemon else { return Ok(()) };
        let SentSignal { stranger, signal, at, outcome, .. } = &mut daemon.watching.blows[number as usize];
        let event = Event::Unleased(UnleasedEvent::SignalSent {
            id: *stranger,
            signal: *signal,
            decided_at: *at,
            outcome: std::mem::take(outcome),
        });
        self.report(event)
    }

    // ---- people ------------------------------------------------------------

    /// An operator chooses what is done about strangers, or somebody gives one a lease.
    pub(crate) fn warden(&mut self) -> Result<(), Violation> {
        if self.calm || self.shape.crowd || !self.shape.vigil.awake {
            return Ok(());
        }
        let most = if self.shape.vigil.rare { 40 * S } else { 12 * S };
        let delay = self.odds.within(S / 2, most);
        self.timers.set(self.t + delay, Timer::Warden);
        let last = self.callers.len() - 1;
        let anybody = self.odds.below(self.callers.len() as u64) as usize;
        let by = if self.odds.chance(80) { anybody } else { last };
        let caller = self.callers[by].clone();
        match self.odds.below(12) {
            0..5 => {
                let card = format!("GPU-{}", self.odds.below(self.world.cards.len() as u64));
                let mode = self.odds.pick(&[
                    Mode::Enforce,
                    Mode::Enforce,
                    Mode::Enforce,
                    Mode::Enforce,
                    Mode::Warn,
                    Mode::Adopt,
                    Mode::Adopt,
                    Mode::Observe,
                ]);
                let mode = if self.shape.vigil.rare && self.mood.chance(600) { Mode::Enforce } else { mode };
                self.call(SimCall {
                    by,
                    event: Event::Gpu(GpuEvent::ModeRequested { by: caller, gpu: card, mode }),
                    job: None,
                })
            }
            5 => {
                let (who, treat) =
                    (self.some_who(), self.odds.pick(&[RuleAction::Allow, RuleAction::Deny, RuleAction::Deny]));
                self.call(SimCall {
                    by,
                    event: Event::Unleased(UnleasedEvent::RuleRequested { by: caller, subject: who, action: treat }),
                    job: None,
                })
            }
            6..9 => {
                let rule = RuleId(self.odds.within(1, u64::from(self.disk.rows.meta.next_rule)) as u32);
                self.call(SimCall {
                    by,
                    event: Event::Unleased(UnleasedEvent::RuleRemovalRequested { by: caller, rule }),
                    job: None,
                })
            }
            _ => self.adopt(),
        }
    }

    fn some_who(&mut self) -> RuleSubject {
        match self.odds.below(8) {
            0 => RuleSubject::Exe(format!("tool{}", self.odds.below(6))),
            1 => RuleSubject::Exe(format!("/usr/bin/tool{}", self.odds.below(6))),
            2 => RuleSubject::Unit(format!("unit{}", self.odds.below(3))),
            3 => RuleSubject::Container(self.odds.pick(&["0", "1", ""]).repeat(14)),
            4 => RuleSubject::Container("0123".to_owned()),
            5 => RuleSubject::Uid(1000 + self.odds.below(3) as u32),
            _ => RuleSubject::Container(self.odds.pick(&["0", "1", "2"]).repeat(20)),
        }
    }

    /// Somebody says that a stranger shall have a lease: its owner, an operator, or anybody.
    fn adopt(&mut self) -> Result<(), Violation> {
        let some = self.odds.below(self.disk.rows.unleased.len() as u64 + 1) as usize;
        let stranger = self.disk.rows.unleased.values().nth(some).map(|row| (row.audit.process, row.audit.uid));
        let nobody = (ProcKey { pid: self.odds.below(500) as u32, start: self.odds.below(1_000) }, 0);
        let (process, uid) = stranger.unwrap_or(nobody);
        let own = |caller: &Caller| caller.tenant == format!("uid:{uid}");
        let own = self.callers.iter().position(own).filter(|_| self.odds.chance(700));
        let by = own.unwrap_or_else(|| self.odds.below(self.callers.len() as u64) as usize);
        let vram = self.odds.chance(400).then(|| Bytes::mib(self.odds.within(1, 12_000)));
        let tier = self.odds.pick(&[Tier::Interactive, Tier::Batch, Tier::Spot]);
        let event =
            Event::Unleased(UnleasedEvent::AdoptRequested { by: self.callers[by].clone(), process, vram, tier });
        self.call(SimCall { by, event, job: None })
    }
}
