//! The daemon in the simulation: its loop, its commits, its deaths and starts.
//!
//! One batch syncs while the next is decided. What waits for a batch is told
//! when it is synced, and never if the daemon dies before.

use crate::checker::{AnsweredFact, Violation};
use crate::mutants::Sabotage;
use crate::readings;
use crate::shape::S;
use crate::sim::Sim;
use crate::timers::Timer;
use crate::unleased::UnleasedMonitor;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use sublet_core::action::Action;
use sublet_core::event::{Event, EventAnswer};
use sublet_core::facts::{DaemonEvent, GpuEvent, LeaseAction, LeaseEvent, UnleasedAction};
use sublet_core::ids::{Fence, LeaseId, ProcKey};
use sublet_daemon::engine::Engine;
use sublet_journal::Batch;

/// A request.
#[derive(Debug)]
pub struct SimCall {
    /// Who calls, by number.
    pub by: usize,
    /// What.
    pub event: Event,
    /// Whose job it is.
    pub job: Option<u32>,
}

/// An answer that must not leave early.
#[derive(Debug)]
pub struct PendingAnswer {
    job: Option<u32>,
    ask: bool,
    answer: EventAnswer,
    /// Entries of the log that must be durable first.
    seq: u64,
    fact: Option<AnsweredFact>,
}

/// A commit under way.
#[derive(Debug)]
struct PendingCommit {
    batch: Batch,
    told: Vec<PendingAnswer>,
    fate: CommitFate,
}

/// What becomes of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitFate {
    /// It is written and synced.
    Synced,
    /// There is no room.
    Full,
    /// The disk did not confirm it.
    Unsynced,
    /// The daemon is killed before the first write.
    KilledBefore,
    /// The daemon is killed among the writes.
    KilledWithin,
    /// The daemon is killed when all is on the disk and nobody was told.
    KilledAfter,
    /// The power fails among the writes.
    PowerCut,
}

/// A living daemon.
#[derive(Debug)]
pub struct SimDaemon {
    pub(crate) engine: Engine<PendingAnswer>,
    syncing: Option<PendingCommit>,
    /// Entries decided, durable or not.
    decided: u64,
    /// Until then its loop does nothing.
    pub(crate) stalled_until: Option<u64>,
    /// Requests that came meanwhile.
    pile: Vec<SimCall>,
    /// Processes that the host watches.
    watch: BTreeMap<LeaseId, Vec<ProcKey>>,
    /// Whose each process is, as the host has it.
    owners: BTreeMap<ProcKey, LeaseId>,
    /// What it does about strangers.
    pub(crate) watching: UnleasedMonitor,
}

impl Sim<'_> {
    // ---- events ------------------------------------------------------------

    /// A request reaches the daemon, or nobody.
    pub(crate) fn call(&mut self, call: SimCall) -> Result<(), Violation> {
        match &mut self.daemon {
            None => Ok(()),
            Some(daemon) if daemon.stalled_until.is_some() => {
                daemon.pile.push(call);
                Ok(())
            }
            Some(_) => self.serve_call(call),
        }
    }

    fn serve_call(&mut self, call: SimCall) -> Result<(), Violation> {
        let ask = matches!(call.event, Event::Lease(LeaseEvent::Requested { .. }));
        let answer = self.take(call.by, call.event)?;
        let fact = match &answer {
            EventAnswer::Lease(lease) => self.checker.answered_fact(*lease),
            _ => None,
        };
        if let Some(daemon) = &mut self.daemon {
            let told = PendingAnswer { job: call.job, ask, answer, seq: daemon.decided, fact };
            daemon.engine.hold(told);
        }
        self.flush()
    }

    /// The host reports something.
    pub(crate) fn report(&mut self, event: impl Into<Event>) -> Result<(), Violation> {
        match &self.daemon {
            Some(daemon) if daemon.stalled_until.is_none() => {
                self.take(self.callers.len(), event.into())?;
                self.flush()
            }
            _ => Ok(()),
        }
    }

    /// The state takes in one event, and the checker looks on.
    pub(crate) fn take(&mut self, actor: usize, event: Event) -> Result<EventAnswer, Violation> {
        let now = self.now();
        let Some(daemon) = &mut self.daemon else { return Ok(EventAnswer::Done) };
        self.story.step.set(self.story.step.get() + 1);
        self.story.add(|| format!("{now} {event:?}"));
        self.checker.before(now, &event);
        let taken = daemon.engine.take(now, self.wall_us, &self.actors[actor], event);
        if self.story.lines_max > 0 {
            taken.actions.iter().for_each(|action| self.story.add(|| format!("    {action:?}")));
            if taken.answer != EventAnswer::Done {
                self.story.add(|| format!("    = {:?}", taken.answer));
            }
        }
        daemon.decided += taken.actions.len() as u64;
        self.checker.after(now, &taken.answer, &taken.actions, daemon.engine.state())?;
        if self.sabotage == Some(Sabotage::StrikeBeforeSync) {
            taken.actions.iter().for_each(|action| self.schedule_signal(action, 0));
        }
        if let Some(daemon) = &self.daemon
            && self.story.step.get().is_multiple_of(1_000)
        {
            self.checker.cross_check(now, daemon.engine.state(), &self.disk)?;
        }
        Ok(taken.answer)
    }

    // ---- commits -----------------------------------------------------------

    /// Begins to write what was decided, unless a write is under way.
    fn flush(&mut self) -> Result<(), Violation> {
        let now = self.now();
        let Some(daemon) = &mut self.daemon else { return Ok(()) };
        if daemon.syncing.is_some() || daemon.engine.is_idle() {
            return Ok(());
        }
        let (batch, told) = daemon.engine.close(now);
        if batch.is_empty() {
            return self.tell(told);
        }
        let ballast = daemon.engine.state().is_disk_full();
        self.commits += 1;
        let fate = self.fate(ballast);
        let slow = self.rng.chance(5);
        let delay = if slow { self.rng.within(S / 2, 15 * S) } else { self.rng.within(100, 5_000) };
        self.timers.set(self.t + delay, Timer::Synced(self.life));
        let told = match self.sabotage {
            Some(Sabotage::AckBeforeSync) => {
                self.tell(told)?;
                Vec::new()
            }
            _ => told,
        };
        if let Some(daemon) = &mut self.daemon {
            daemon.syncing = Some(PendingCommit { batch, told, fate });
        }
        Ok(())
    }

    fn fate(&mut self, ballast: bool) -> CommitFate {
        match self.kill_at {
            Some((commit, fate)) if commit == self.commits => return fate,
            _ => {}
        }
        if self.disk.full && !ballast {
            return CommitFate::Full;
        }
        if self.calm || !self.rng.chance(self.shape.faults.commits) {
            return CommitFate::Synced;
        }
        self.rng.pick(&[
            CommitFate::Unsynced,
            CommitFate::KilledBefore,
            CommitFate::KilledWithin,
            CommitFate::KilledWithin,
            CommitFate::KilledAfter,
            CommitFate::PowerCut,
        ])
    }

    /// A commit comes back, or its daemon dies in it.
    pub(crate) fn synced(&mut self) -> Result<(), Violation> {
        let Some(PendingCommit { batch, told, fate }) = self.daemon.as_mut().and_then(|daemon| daemon.syncing.take())
        else {
            return Ok(());
        };
        self.story.add(|| format!("{} commit of {} entries: {fate:?}", self.now(), batch.entries.len()));
        match fate {
            CommitFate::Synced => {
                self.write(&batch)?;
                self.tell(told)?;
                self.proclaim(&batch)?;
                self.flush()
            }
            CommitFate::Full => self.rebuild(),
            CommitFate::Unsynced => {
                self.checker.sync_failed();
                self.write_perhaps(&batch)?;
                if self.sabotage == Some(Sabotage::AckAfterFailedSync) {
                    self.tell(told)?;
                }
                self.die(false);
                Ok(())
            }
            CommitFate::KilledBefore => {
                self.die(false);
                Ok(())
            }
            CommitFate::KilledWithin => {
                self.write_perhaps(&batch)?;
                self.die(false);
                Ok(())
            }
            CommitFate::KilledAfter => {
                self.write(&batch)?;
                self.die(false);
                Ok(())
            }
            CommitFate::PowerCut => {
                self.write_perhaps(&batch)?;
                self.die(true);
                Ok(())
            }
        }
    }

    /// A batch is whole or absent, whatever was going on when it was written.
    fn write_perhaps(&mut self, batch: &Batch) -> Result<(), Violation> {
        if self.sabotage == Some(Sabotage::TornBatch) {
            self.disk.write_rows(batch);
            return Ok(());
        }
        if self.rng.chance(500) { self.write(batch) } else { Ok(()) }
    }

    fn write(&mut self, batch: &Batch) -> Result<(), Violation> {
        if self.sabotage == Some(Sabotage::LoseEntry) && self.commits.is_multiple_of(7) {
            let mut lossy = batch.clone();
            lossy.entries.pop();
            self.disk.write(&lossy);
            return self.checker.take_commit(&lossy, &self.disk);
        }
        self.disk.write(batch);
        self.checker.take_commit(batch, &self.disk)
    }

    /// Answers leave the daemon.
    fn tell(&mut self, told: Vec<PendingAnswer>) -> Result<(), Violation> {
        for PendingAnswer { job, ask, answer, seq, fact } in told {
            self.checker.check_answered(seq, fact)?;
            if let Some(job) = job {
                self.take_answer(job, ask, &answer);
            }
        }
        Ok(())
    }

    /// What became durable is known to the world: holders by long-poll, the host by errand.
    fn proclaim(&mut self, batch: &Batch) -> Result<(), Violation> {
        for entry in &batch.entries {
            if let Some(lease) = entry.action.lease().filter(|_| moves(&entry.action)) {
                self.mind_all(lease);
                self.heed_soon(lease);
            }
            match &entry.action {
                Action::Lease(LeaseAction::Grant { lease, gpus: cards, vram, fence: epoch, .. }) => {
                    let index = |card: &sublet_core::ids::GpuId| self.disk.rows.gpus[*card].facts.index;
                    let cards = cards.iter().map(|card| index(card) as usize).collect();
                    self.note_granted(*lease, *epoch, cards, *vram);
                    self.wrap(*lease);
                    let roots = self.daemon.as_ref().and_then(|daemon| daemon.watch.get(lease)).cloned();
                    roots.unwrap_or_default().into_iter().for_each(|root| self.watch(*lease, root));
                }
                Action::Lease(LeaseAction::Enlarge { lease, vram, .. }) => self.note_grown(*lease, *vram),
                Action::Lease(LeaseAction::End { lease, .. }) => self.note_ended(*lease),
                Action::Lease(LeaseAction::Queue { lease, root: Some(root), .. }) => self.watch(*lease, *root),
                Action::Lease(LeaseAction::Bind { lease, process }) => self.watch(*lease, *process),
                Action::Lease(LeaseAction::Signal { lease, signal, processes, .. }) => {
                    self.deliver_signal(*lease, *signal, processes)?
                }
                Action::Unleased(UnleasedAction::Signal { .. })
                    if self.sabotage != Some(Sabotage::StrikeBeforeSync) =>
                {
                    self.schedule_signal(&entry.action, S / 5);
                }
                Action::Lease(LeaseAction::Retire { lease, .. }) => self.forget(*lease),
                _ => {}
            }
        }
        Ok(())
    }

    // ---- the host's errands ------------------------------------------------

    /// A process belongs to one lease: who is watched for it now takes it from who was, and what is below it too,
    /// but not what others are watched for, and who waits takes nothing from who does not.
    fn watch(&mut self, lease: LeaseId, root: ProcKey) {
        let Some(daemon) = &mut self.daemon else { return };
        let roots = daemon.watch.entry(lease).or_default();
        if !roots.contains(&root) {
            roots.push(root);
        }
        let state = daemon.engine.state();
        let waits = |lease: LeaseId| state.lease(lease).is_none_or(|row| row.hold().is_none());
        let mut touched = vec![lease];
        let number = self.world.tree_of(root);
        if let Some(tree) = number.and_then(|tree| self.world.trees.get_mut(&tree)) {
            if !tree.leases.contains(&lease) {
                tree.leases.push(lease);
            }
            let below = self.world.roots.contains_key(&root);
            for process in tree.live.iter().filter(|process| below || **process == root) {
                let before = daemon.owners.get(process).copied();
                let others = before.and_then(|before| daemon.watch.get(&before));
                let is_root = *process != root && others.is_some_and(|roots| roots.contains(process));
                if is_root || waits(lease) && before.is_some_and(|before| !waits(before)) {
                    continue;
                }
                daemon.owners.insert(*process, lease);
                touched.extend(before.filter(|before| *before != lease));
            }
        }
        self.schedule_member_reports(&touched);
    }

    /// Nobody is watched for a lease any more.
    fn forget(&mut self, lease: LeaseId) {
        let Some(daemon) = &mut self.daemon else { return };
        daemon.watch.remove(&lease);
        let freed: Vec<ProcKey> = daemon.owners.extract_if(.., |_, owner| *owner == lease).map(|(it, _)| it).collect();
        // Others may be watched for them, too.
        let others: Vec<(LeaseId, ProcKey)> = {
            let roots = daemon.watch.iter().flat_map(|(lease, roots)| roots.iter().map(|root| (*lease, *root)));
            roots.filter(|(_, root)| freed.contains(root)).collect()
        };
        others.into_iter().for_each(|(other, root)| self.watch(other, root));
    }

    /// The host says who of a holder's processes lives.
    pub(crate) fn says(&mut self, lease: LeaseId) -> Result<(), Violation> {
        let Some(daemon) = &mut self.daemon else { return Ok(()) };
        let Some(roots) = daemon.watch.get(&lease) else { return Ok(()) };
        let of_root = |root: &ProcKey| self.world.roots.get(root).copied().or_else(|| self.world.tree_of(*root));
        let trees: BTreeSet<u32> = roots.iter().filter_map(of_root).collect();
        let mut processes = Vec::new();
        for tree in trees.iter().filter_map(|tree| self.world.trees.get(tree)) {
            let first = tree.live.first().and_then(|first| daemon.owners.get(first)).copied();
            for process in &tree.live {
                // Who was forked since belongs where its parent does.
                let owner = daemon.owners.get(process).copied().or(first).unwrap_or(lease);
                if owner == lease {
                    daemon.owners.insert(*process, lease);
                    processes.push(*process);
                }
            }
        }
        let alive = |root: &ProcKey| self.world.tree_of(*root).is_some();
        // Whose processes are all others' is not gone.
        if !processes.is_empty() || roots.iter().any(alive) {
            self.greet(lease, &processes);
            self.report(LeaseEvent::MembersRead { lease, processes, restricted: Default::default() })?;
            self.mind_deep(lease);
            return Ok(());
        }
        self.forget(lease);
        self.report(LeaseEvent::HolderExited { lease })
    }

    // ---- death and birth ---------------------------------------------------

    /// The daemon dies, alone or with its host.
    pub(crate) fn die(&mut self, host: bool) {
        self.story.add(|| format!("{} the {} dies", self.now(), if host { "host" } else { "daemon" }));
        self.daemon = None;
        self.life += 1;
        if host {
            self.world.reboot();
            self.jobs.iter_mut().for_each(crate::jobs::SimJob::forget_host);
            for job in 0..self.jobs.len() as u32 {
                if self.jobs[job as usize].stage == crate::jobs::JobStage::Pausing {
                    let delay = self.rng.within(S, 30 * S);
                    self.set_job_timer(job, delay);
                }
            }
            self.boot += 1;
        }
        let down = if self.rng.chance(800) { self.rng.within(S / 10, 3 * S) } else { self.rng.within(S, 100 * S) };
        self.timers.set(self.t + down, Timer::Restart);
    }

    /// A daemon starts from what the disk has.
    pub(crate) fn restart(&mut self) -> Result<(), Violation> {
        if self.booted != self.boot {
            // A new boot's clock goes on where the last one was seen.
            let resumed = self.disk.clock.0 + self.rng.below(S);
            self.lag = self.t - resumed;
            self.booted = self.boot;
        }
        self.begin();
        self.checker.take_restart(&self.disk)?;
        self.lose_journal_lines();
        self.report_loss()?;
        let epoch_floor = if self.rng.chance(100) { self.disk.rows.meta.next_fence.0 + 1_000 } else { 1 };
        let started = Event::Daemon(DaemonEvent::Started {
            boot: format!("boot-{}", self.boot),
            clock_offset_us: (self.lag as i64).wrapping_neg(),
            fence_floor: Fence(epoch_floor),
            lease_floor: 1,
        });
        self.take(self.callers.len(), started)?;
        self.look_around()
    }

    /// A commit found the disk full: what was decided and not written never was.
    fn rebuild(&mut self) -> Result<(), Violation> {
        self.story.add(|| format!("{} the state is rebuilt from the disk", self.now()));
        self.life += 1;
        self.begin();
        self.checker.take_rebuild(&self.disk)?;
        self.take(self.callers.len(), Event::Daemon(DaemonEvent::DiskFilled))?;
        self.report_loss()?;
        self.look_around()
    }

    fn begin(&mut self) {
        let mut engine = Engine::new(self.disk.rows.clone(), self.shape.policy.clone());
        engine.state_mut().plant(self.mutant);
        self.daemon = Some(SimDaemon {
            engine,
            syncing: None,
            decided: self.disk.seq,
            stalled_until: None,
            pile: Vec::new(),
            watch: BTreeMap::new(),
            owners: BTreeMap::new(),
            watching: UnleasedMonitor::default(),
        });
    }

    fn look_around(&mut self) -> Result<(), Violation> {
        self.take(self.callers.len(), Event::Gpu(GpuEvent::Listed(readings::list_gpus(&self.world))))?;
        let bound: Vec<(LeaseId, Vec<ProcKey>)> = {
            let rows = self.disk.rows.leases.values();
            rows.filter(|lease| !lease.roots.is_empty()).map(|lease| (lease.id, lease.roots.clone())).collect()
        };
        for (lease, roots) in bound {
            roots.into_iter().for_each(|root| self.watch(lease, root));
        }
        for card in 0..self.world.gpus.len() as u16 {
            let delay = self.rng.below(S / 2);
            self.timers.set(self.t + delay, Timer::BeginReading(self.life, card));
        }
        if self.parks() {
            self.timers.set(self.t + S / 10, Timer::ReadHostMemory(self.life));
        }
        self.wrappers.keys().copied().collect::<Vec<_>>().into_iter().for_each(|lease| self.heed_soon(lease));
        self.begin_unleased_monitor();
        self.timers.set(self.t, Timer::Tick(self.life));
        self.timers.set(self.t + 20 * S, Timer::ListGpus(self.life));
        self.flush()
    }

    // ---- stalls ------------------------------------------------------------

    /// The loop stops for a while; requests pile up.
    pub(crate) fn stall(&mut self, length_us: u64) {
        if let Some(daemon) = &mut self.daemon
            && daemon.stalled_until.is_none()
        {
            let until = self.t + length_us;
            daemon.stalled_until = Some(until);
            self.timers.set(until, Timer::StallOver(self.life));
        }
    }

    /// The loop goes on: first with what was asked meanwhile.
    pub(crate) fn stall_over(&mut self) -> Result<(), Violation> {
        let Some(daemon) = &mut self.daemon else { return Ok(()) };
        daemon.stalled_until = None;
        for call in std::mem::take(&mut daemon.pile) {
            self.call(call)?;
        }
        Ok(())
    }
}

/// Whether a holder's programs may have to be told something.
fn moves(action: &Action) -> bool {
    matches!(
        action,
        Action::Lease(
            LeaseAction::Park { .. }
                | LeaseAction::Unpark { .. }
                | LeaseAction::FinishPark { .. }
                | LeaseAction::Resume { .. }
                | LeaseAction::ParkAgain { .. }
                | LeaseAction::RemoveContexts { .. }
                | LeaseAction::KeepContexts { .. }
                | LeaseAction::FinishResume { .. }
                | LeaseAction::End { .. }
        )
    )
}

/// Who acts, by number: the tenants, the operator, the daemon itself.
pub fn actors(tenants: usize) -> Vec<Arc<str>> {
    (0..=tenants).map(|n| Arc::from(tenant_name(n, tenants).as_str())).chain([Arc::from("daemon")]).collect()
}

/// A tenant's name; the one after the last is the operator.
pub fn tenant_name(number: usize, tenants: usize) -> String {
    if number == tenants { "uid:0".to_owned() } else { format!("uid:{}", 1000 + number) }
}
