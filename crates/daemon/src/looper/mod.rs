//! The loop: the one owner of the state, without IO.
//!
//! ```text
//!   LoopInput ──handle──► state, open batch ──close_batch──► what to write, and what leaves once it is durable
//!                  │
//!                  └── take_immediate: what leaves at once, because nothing in it depends on an action
//! ```
//! No threads, sockets, files, clocks, channels or `/proc`: a moment comes with each call, and what leaves is a plain
//! value with the number of the client it is for. The daemon runs it in a thread (`crate::loop_thread`) and carries its
//! outputs out (`crate::effects`).
//!
//! *Nothing that depends on an action leaves before the batch that holds it is durable*: answers, reads and orders to the
//! host are kept in the engine until [`Loop::close_batch`] gives them away together with their batch. While one batch is
//! written, the next is decided.

mod calls;
mod full_disk;
mod host_commands;
mod input;
mod moment;
mod notices;
mod output;
mod reports;
mod unmanaged;
mod watches;

pub use input::{CommitResult, IdempotencyKey, KeyLookup, LeaseWatch, LoopCall, LoopInput, Reply, WatchGoal};
pub use moment::Moment;
pub use notices::look;
pub use output::{ClosedBatch, HostCommand, Output, ReplyId, TokenChange, WriterTask};

use self::unmanaged::Unmanaged;
use crate::engine::{Decided, Engine};
use crate::estimate_cache::EstimateCache;
use crate::idempotency::IdempotencyKeys;
use crate::lease_proofs::LeaseProofs;
use crate::notices::ParkReason;
use crate::user_directory::UserDirectory;
use crate::view::{View, Visibility};
use crate::watermarks::WatermarkFloor;
use full_disk::FullDisk;
use host_commands::SentCommands;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use sublet_core::event::Event;
use sublet_core::facts::{DaemonEvent, LeaseEvent};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::loss::Loss;
use sublet_core::reading::GpuFacts;
use sublet_core::settings::Policy;
use sublet_core::units::{Span, Time};
use sublet_core::unleased::{PendingSignal, UnleasedId};
use sublet_host::ActivityCounts;
use sublet_journal::{LoadedState, StoredAnswer};

/// The loop ticks at least this often, so that a longer gap is a stall.
const TICK: Span = Span::secs(2);
/// Core is told which day it is when it changes, and once an hour: the clock may have been set.
const DAY_AGAIN_US: u64 = 3_600_000_000;
/// Core is told of a suspend that was longer than this.
const SUSPEND_US: u64 = 10_000_000;
/// So much that waits for the disk is not kept waiting for more while the disk does nothing. A crowd of calls splits into
/// halves by that: one is decided while the other is written.
const ENOUGH: usize = 64;

/// What a loop begins with.
pub struct LoopStart {
    /// What the disk has.
    pub loaded: LoadedState,
    /// The rules.
    pub policy: Policy,
    /// See [`sublet_core::rows::Meta::clock_offset_us`].
    pub clock_offset_us: i64,
    /// Names for people.
    pub names: UserDirectory,
    /// Whether the journal has a ballast. Nothing is granted without one.
    pub ballast: Ballast,
    /// This boot.
    pub boot: String,
    /// The first fence and lease number that were never handed out.
    pub floor: WatermarkFloor,
    /// What the programs of leases prove them by.
    pub proofs: LeaseProofs,
    /// GPUs that are not for leases.
    pub unmanaged: Vec<String>,
    /// What callers see of others.
    pub visibility: Visibility,
}

/// Whether the journal has bytes that it can give up on a full disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ballast {
    /// It has.
    Kept,
    /// There was no room for them.
    Missing,
}

/// The loop.
pub struct Loop {
    engine: Engine<Output>,
    immediate: Vec<Output>,
    /// What the loop itself does once the open batch is durable.
    after_sync: Vec<AfterSync>,
    commit: Commit,
    moment: Moment,
    policy: Policy,
    clock_offset_us: i64,
    names: UserDirectory,
    estimates: EstimateCache,
    /// What the programs of leases did, as the library in them reports.
    counts: BTreeMap<LeaseId, ActivityCounts>,
    keys: IdempotencyKeys,
    watches: BTreeMap<LeaseId, Vec<LeaseWatch>>,
    sent: SentCommands,
    /// Signals to unleased processes that the host has and did not report yet.
    signals_under_way: BTreeSet<PendingSignal>,
    is_stopping: bool,
    suspended_us: u64,
    /// The day that core was last told, and when by the wall clock.
    day_told: Option<(u32, u64)>,
    full_disk: Option<FullDisk>,
    /// Lines that are missing from the journal, as it was last loaded.
    loss: Option<Loss>,
    /// Reads that wait for a try to write again: they shall see what is durable, whatever comes of it.
    deferred: Vec<LoopInput>,
    own_name: Arc<str>,
    boot: String,
    floor: WatermarkFloor,
    proofs: LeaseProofs,
    unmanaged: Unmanaged,
    visibility: Visibility,
    /// Why leases that left their GPUs were parked, for their users.
    park_reasons: BTreeMap<LeaseId, ParkReason>,
    /// The GPUs that were listed before the state was rebuilt.
    listed_before: Vec<GpuFacts>,
    /// When the driver is asked again which processes it could move.
    inspect_at: Time,
    /// How many broken invariants of the engine's state are in the log.
    invariants_logged: u64,
}

/// The batch that is being written.
enum Commit {
    /// None is.
    None,
    /// One is; what the loop does when it is durable, and the number of the last key in it.
    UnderWay { after: Vec<AfterSync>, last_key: u64 },
}

/// What the loop itself does once an action is durable.
enum AfterSync {
    /// The signal to the processes of a lease that was ended for others is sent now.
    LeaseSignalled { lease: LeaseId, signal: u8 },
    /// An unleased process and its descendants get a signal, as far as that would be decided again.
    SignalUnleased { id: UnleasedId, signal: u8, at: Time, processes: Vec<ProcKey> },
}

impl Loop {
    /// A loop over what the disk has. Call [`Loop::start`] next.
    pub fn new(start: LoopStart, moment: Moment) -> Loop {
        let begin = match start.ballast {
            Ballast::Kept => Engine::new,
            Ballast::Missing => Engine::on_a_full_disk,
        };
        let LoadedState { rows, answers, loss, .. } = start.loaded;
        let mut this = Loop {
            engine: begin(rows, start.policy.clone()),
            immediate: Vec::new(),
            after_sync: Vec::new(),
            commit: Commit::None,
            moment,
            policy: start.policy,
            clock_offset_us: start.clock_offset_us,
            names: start.names,
            estimates: EstimateCache::default(),
            counts: BTreeMap::new(),
            keys: IdempotencyKeys::default(),
            watches: BTreeMap::new(),
            sent: SentCommands::default(),
            signals_under_way: BTreeSet::new(),
            is_stopping: false,
            suspended_us: moment.suspended_us,
            day_told: None,
            full_disk: (start.ballast == Ballast::Missing).then(|| FullDisk::from_the_start(moment.now)),
            loss,
            deferred: Vec::new(),
            own_name: Arc::from("sublet"),
            boot: start.boot,
            floor: start.floor,
            proofs: start.proofs,
            unmanaged: Unmanaged::new(start.unmanaged),
            visibility: start.visibility,
            park_reasons: BTreeMap::new(),
            listed_before: Vec::new(),
            inspect_at: Time::ZERO,
            invariants_logged: 0,
        };
        this.set_tokens();
        this.load_keys(&answers);
        this
    }

    /// The tokens of the rows are good from now on, and no others.
    fn set_tokens(&mut self) {
        let tokens = self.engine.state().rows().tokens.clone();
        self.immediate.push(Output::Token(TokenChange::All(tokens)));
    }

    fn load_keys(&mut self, answers: &[StoredAnswer]) {
        let Moment { now, wall_us, .. } = self.moment;
        for answer in answers {
            if let Some(tenant) = self.engine.state().rows().tenants.find(answer.tenant) {
                let reply = stored_reply(answer);
                let at = Time(now.0.saturating_sub(wall_us.saturating_sub(answer.wall_us)));
                self.keys.load(tenant.name.clone(), answer.key.clone(), answer.fingerprint, reply, at);
            }
        }
    }

    /// Tells core that the daemon started, and the host which leases there are.
    pub fn start(&mut self, moment: Moment) {
        self.moment = moment;
        self.start_core();
    }

    fn start_core(&mut self) {
        if let Some(loss) = self.loss {
            self.take(DaemonEvent::LossFound(loss));
        }
        let (boot, clock_offset_us) = (self.boot.clone(), self.clock_offset_us);
        let WatermarkFloor { fence: fence_floor, lease: lease_floor } = self.floor;
        self.take(DaemonEvent::Started { boot, clock_offset_us, fence_floor, lease_floor });
        self.tell_day();
        self.send_all_leases();
    }

    /// Takes in one input. Carry out [`Loop::take_immediate`] before the next one.
    pub fn handle(&mut self, input: LoopInput, moment: Moment) {
        self.moment = moment;
        self.accept(input);
    }

    fn accept(&mut self, input: LoopInput) {
        match input {
            LoopInput::Call(call) if self.is_stuck() => self.refuse(call.to),
            LoopInput::Report(_) if self.is_stuck() => {}
            LoopInput::Read { .. } | LoopInput::Watch(_) if self.is_trying_to_write() => self.deferred.push(input),
            LoopInput::Call(call) => self.call(*call, calls::OnFullDisk::Retry),
            LoopInput::Read { to } => {
                self.immediate.push(Output::Read { to });
                self.engine.hold(Output::ReadDone { to });
            }
            LoopInput::Watch(watch) => self.watch(watch),
            LoopInput::EndWatch { lease, to } => self.end_watch(lease, to),
            LoopInput::Report(report) => self.report(report),
            LoopInput::Synced(result) => self.synced(result),
            LoopInput::DiskFreed => self.disk_freed(),
            LoopInput::RoomProbed { has_room } => self.room_probed(has_room),
            LoopInput::Configured { policy, visibility } => {
                (self.policy, self.visibility) = ((*policy).clone(), visibility);
                if self.is_stuck() {
                    // Nothing was decided on what the disk has: the state is made of it once more, and all that was seen of
                    // it is durable.
                    let (batch, outputs) = self.engine.close(self.moment.now);
                    debug_assert!(batch.is_empty(), "something was decided on a disk that takes nothing");
                    self.immediate.extend(outputs);
                    self.engine = Engine::on_a_full_disk(self.engine.state().rows().clone(), self.policy.clone());
                } else {
                    self.take(DaemonEvent::Configured(policy));
                }
            }
            LoopInput::Stop => self.is_stopping = true,
        }
    }

    /// What leaves at once: nothing in it depends on an action that is not durable.
    pub fn take_immediate(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.immediate)
    }

    /// True if the writer has nothing to do and enough waits for it.
    pub fn has_enough(&self) -> bool {
        !self.is_syncing() && self.engine.waiting() >= ENOUGH
    }

    /// True if the loop was told to stop, and all is durable.
    pub fn is_finished(&self) -> bool {
        self.is_stopping && !self.is_syncing() && self.engine.is_idle()
    }

    fn is_syncing(&self) -> bool {
        matches!(self.commit, Commit::UnderWay { .. })
    }

    /// When [`Loop::tick`] is due at the latest; now, if a batch can be closed.
    pub fn next_tick(&self, now: Time) -> Time {
        if let Some(until) = self.stuck_until() {
            // What is due stays due until then.
            return until;
        }
        if !self.is_syncing() && !self.engine.is_idle() {
            return now;
        }
        self.engine.state().next_due().map_or(now + TICK, |due| due.min(now + TICK))
    }

    /// Does what is due by time alone.
    pub fn tick(&mut self, moment: Moment) {
        self.moment = moment;
        self.probe_room_when_due();
        if self.is_stuck() {
            return;
        }
        if moment.suspended_us.saturating_sub(self.suspended_us) > SUSPEND_US {
            self.take(DaemonEvent::Awoke);
        }
        self.suspended_us = moment.suspended_us;
        let is_told = |(day, wall_us)| day == moment.day() && moment.wall_us.abs_diff(wall_us) < DAY_AGAIN_US;
        if !self.day_told.is_some_and(is_told) {
            self.tell_day();
        }
        let state = self.engine.state();
        if state.next_due().is_some_and(|due| due <= moment.now) || state.is_tick_overdue(moment.now) {
            self.take(DaemonEvent::Ticked);
        }
        self.restore_ballast_when_due();
    }

    fn tell_day(&mut self) {
        let number = self.moment.day();
        self.day_told = Some((number, self.moment.wall_us));
        self.take(DaemonEvent::DayRead { number });
    }

    /// Closes the open batch, if none is being written. The caller writes it and says [`LoopInput::Synced`].
    pub fn close_batch(&mut self, moment: Moment) -> Option<ClosedBatch> {
        self.moment = moment;
        if self.is_syncing() || self.engine.is_idle() {
            return None;
        }
        let (batch, outputs) = self.engine.close(moment.now);
        let after = std::mem::take(&mut self.after_sync);
        if batch.is_empty() {
            debug_assert!(after.is_empty(), "something follows from an action that is in no batch");
            // All that was seen is durable already.
            self.immediate.extend(outputs);
            self.wrote_again();
            return None;
        }
        self.commit = Commit::UnderWay { after, last_key: self.keys.last_number() };
        Some(ClosedBatch { batch: Box::new(batch), outputs })
    }

    fn synced(&mut self, result: CommitResult) {
        let commit = std::mem::replace(&mut self.commit, Commit::None);
        match result {
            CommitResult::Done => {
                if let Commit::UnderWay { after, last_key } = commit {
                    self.keys.set_durable_through(last_key);
                    self.run_after_sync(after);
                }
                self.wrote_again();
            }
            CommitResult::Failed { why, loaded, outputs } => self.rebuild(*loaded, outputs, &why),
        }
    }

    fn run_after_sync(&mut self, after: Vec<AfterSync>) {
        for effect in after {
            match effect {
                AfterSync::LeaseSignalled { lease, signal } => self.take(LeaseEvent::SignalSent { lease, signal }),
                AfterSync::SignalUnleased { id, signal, at, processes } => {
                    self.send_unleased_signal((id, signal, at), processes);
                }
            }
        }
    }

    /// The state as it is now, for a reader that [`Output::Read`] names.
    pub fn view(&self) -> View<'_> {
        let state = (self.engine.state(), self.engine.version());
        View::new(state, &self.moment, &self.names, &self.estimates)
            .with_counts(&self.counts)
            .with_park_reasons(&self.park_reasons)
            .with_visibility(self.visibility)
    }

    // ---- events ------------------------------------------------------------

    fn take(&mut self, event: impl Into<Event>) {
        let own_name = Arc::clone(&self.own_name);
        self.take_for(&own_name, event.into());
    }

    fn take_for(&mut self, actor: &Arc<str>, event: Event) -> Decided {
        let decided = self.engine.take(self.moment.now, self.moment.wall_us, actor, event);
        self.log_broken_invariant();
        for action in &decided.actions {
            self.send_host_commands(action);
            self.send_notices(actor, action);
        }
        self.send_booked();
        self.withdraw_signals();
        self.wake_watchers(&decided.actions, &decided.past);
        for ended in &decided.past {
            self.send_forget(ended.id);
        }
        decided
    }

    /// A mistake of core, which a release build survives: the action was dropped.
    fn log_broken_invariant(&mut self) {
        let (count, last) = self.engine.state().broken_invariants();
        if let Some(broken) = last.filter(|_| count > self.invariants_logged) {
            tracing::error!("a decision did not fit the state and was dropped, which is a bug of Sublet: {broken}");
        }
        self.invariants_logged = count;
    }
}

/// An answer as it is given again.
pub fn stored_reply(answer: &StoredAnswer) -> Reply {
    Reply { status: answer.status, body: answer.body.clone(), retry_after_s: None, granted: None }
}

#[cfg(test)]
mod tests;
