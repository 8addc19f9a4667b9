//! The loop: the one owner of the state.
//!
//! ```text
//!   HTTP ─┐                       ┌─► writer thread ─► disk
//!   eyes ─┼─► mail ─► Loop ─batch─┤        │ synced
//!   timer ┘     ▲      (state)    └────────┼─► answers, reads, errands leave
//!               └──────────────────────────┘
//! ```
//! While one batch syncs, the next is decided. One at a time is the loop, at its desk (`desk.rs`): its own thread,
//! or a lone request's. Nothing here waits for anything.

mod client;
mod full_disk;
mod handle;
mod host_commands;
mod notices;
mod unmanaged;

use self::unmanaged::Unmanaged;
pub use client::{LoopClient, LoopGone};
use full_disk::{FullDisk, refuse};
use handle::RecentLoad;
pub use handle::{ClosedBatch, LoopHandle};
pub use notices::look;

use crate::engine::{Decided, Engine};
use crate::estimate_cache::EstimateCache;
use crate::http::HttpSettings;
use crate::idempotency::{DurableMark, IdempotencyKeys, KeyState};
use crate::lease_proofs::LeaseProofs;
use crate::loop_input::{
    CommitResult, HostCommand, IdempotencyKey, InboxSender, KeyLookup, LeaseWatch, LoopCall, LoopInput, PendingEffect,
    Reply, RetriedRelease, WatchGoal,
};
use crate::messages;
use crate::notices::{Notices, ParkReason};
use crate::tokens::TokenTable;
use crate::unleased;
use crate::user_directory::UserDirectory;
use crate::view::{self, View, Visibility};
use crate::watermarks::{WatermarkFloor, Watermarks};
use crate::writer::{JournalWriter, WriterOrder};
use host_commands::SentCommands;
use std::collections::BTreeMap;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};
use sublet_core::action::Action;
use sublet_core::decide::find;
use sublet_core::event::{Caller, Event, EventAnswer, Refusal};
use sublet_core::facts::{DaemonEvent, GpuEvent, Hint, LeaseAction, LeaseEvent, TokenEvent, UnleasedEvent};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::loss::Loss;
use sublet_core::method::Method;
use sublet_core::parking::MoverReport;
use sublet_core::policy::Policy;
use sublet_core::reading::{GpuFacts, GpuReading, Reading, Unreadable};
use sublet_core::rows::{EndedLease, Phase};
use sublet_core::units::{Span, Time};
use sublet_host::clock::{self, Clock};
use sublet_host::{ActivityCounts, Host, HostReport, process};
use sublet_journal::{LoadedState, StoredAnswer};

/// The loop ticks at least this often, so that a longer gap is a stall.
const TICK: Duration = Duration::from_secs(2);
/// Mail is dealt with for so long before the disk and the timers get their turn.
const TURN: Duration = Duration::from_millis(2);
/// Core is told which day it is at midnight, and once an hour: the clock may have been set.
const DAY_AGAIN_US: u64 = 3_600_000_000;
/// A program leaves its cards within this, or stays.
const PARK_WITHIN: Duration = Duration::from_secs(10);
/// So many holders make ready to be parked at a time.
const AHEAD: usize = 16;
/// Leases of which it is known what their programs did.
const COUNTED_MAX: usize = 4096;
/// A longer suspend is told to core.
const SUSPEND_US: u64 = 10_000_000;

/// What the loop is made of.
pub struct LoopParts {
    /// What the disk has.
    pub loaded: LoadedState,
    /// The rules of the house.
    pub policy: Policy,
    /// The time.
    pub clock: Clock,
    /// To the loop's own thread, for what comes back here.
    pub post: InboxSender,
    /// Orders out.
    pub orders: Sender<WriterOrder>,
    /// Names for people.
    pub names: UserDirectory,
    /// Who is let in over TCP.
    pub tokens: TokenTable,
    /// Why the driver lists no cards, if it does not.
    pub trouble: Arc<RwLock<Option<String>>>,
    /// The hands.
    pub host: Arc<Host>,
    /// The pen it shares with the writer.
    pub pen: Arc<Mutex<JournalWriter>>,
    /// There is no room for a ballast: nothing is granted before there is.
    pub no_ballast: bool,
    /// This boot.
    pub boot: String,
    /// How far epochs and leases went, and the first that were never handed out.
    pub epochs: (Watermarks, WatermarkFloor),
    /// What holders' programs prove their lease by.
    pub marks: LeaseProofs,
    /// Cards that are not for leases.
    pub unmanaged: Vec<String>,
    /// Notices to the person concerned.
    pub notices: Notices,
    /// What the configuration says of what callers see; read anew on reload.
    pub house: Arc<RwLock<HttpSettings>>,
}

/// The loop.
pub struct Loop {
    engine: Engine<PendingEffect>,
    policy: Policy,
    clock: Clock,
    post: InboxSender,
    orders: Sender<WriterOrder>,
    names: UserDirectory,
    plans: EstimateCache,
    /// What the programs of leases did, by the word of the library in them.
    counts: BTreeMap<LeaseId, ActivityCounts>,
    tokens: TokenTable,
    trouble: Arc<RwLock<Option<String>>>,
    keys: IdempotencyKeys,
    watches: BTreeMap<LeaseId, Vec<LeaseWatch>>,
    known: SentCommands,
    syncing: bool,
    stopping: bool,
    suspended_us: u64,
    /// When core is told again which day it is, by the wall clock.
    day_again_us: u64,
    full: Option<FullDisk>,
    /// Lines that are missing from the journal, as it was last loaded.
    loss: Option<Loss>,
    /// Reads that wait for a try to write again: they shall see what is durable, whatever comes of it.
    later: Vec<LoopInput>,
    own: Arc<str>,
    host: Arc<Host>,
    pen: Arc<Mutex<JournalWriter>>,
    rush: RecentLoad,
    /// When its own thread looks again by itself.
    wakes_at: Instant,
    /// It stopped, and nothing is taken any more.
    over: bool,
    boot: String,
    epochs: Watermarks,
    floor: WatermarkFloor,
    marks: LeaseProofs,
    unmanaged: Unmanaged,
    notices: Notices,
    house: Arc<RwLock<HttpSettings>>,
    /// Why leases that left their GPUs were parked, for their users.
    park_reasons: BTreeMap<LeaseId, ParkReason>,
    /// What the driver listed before the state was rebuilt.
    listed: Vec<GpuFacts>,
    /// When it is looked again whom the driver could move.
    inspect_at: Instant,
}

impl Loop {
    /// A loop over what the disk has.
    pub fn new(parts: LoopParts) -> Loop {
        let begin = if parts.no_ballast { Engine::on_a_full_disk } else { Engine::new };
        let mut this = Loop {
            engine: begin(parts.loaded.rows.clone(), parts.policy.clone()),
            policy: parts.policy,
            clock: parts.clock,
            post: parts.post,
            orders: parts.orders,
            names: parts.names,
            plans: EstimateCache::default(),
            counts: BTreeMap::new(),
            tokens: parts.tokens,
            trouble: parts.trouble,
            keys: IdempotencyKeys::default(),
            watches: BTreeMap::new(),
            known: SentCommands::default(),
            syncing: false,
            stopping: false,
            suspended_us: suspended_us(),
            day_again_us: day_again_us(),
            full: parts.no_ballast.then(FullDisk::from_the_start),
            loss: parts.loaded.loss,
            later: Vec::new(),
            own: Arc::from("sublet"),
            host: parts.host,
            pen: parts.pen,
            rush: RecentLoad::none(),
            wakes_at: Instant::now(),
            over: false,
            boot: parts.boot,
            epochs: parts.epochs.0,
            floor: parts.epochs.1,
            marks: parts.marks,
            unmanaged: Unmanaged::new(parts.unmanaged),
            notices: parts.notices,
            house: parts.house,
            park_reasons: BTreeMap::new(),
            listed: Vec::new(),
            inspect_at: Instant::now(),
        };
        this.tokens.fill(&parts.loaded.rows);
        this.load_keys(&parts.loaded);
        this
    }

    fn load_keys(&mut self, loaded: &LoadedState) {
        self.keys = IdempotencyKeys::default();
        let (now, wall) = (self.clock.now(), wall_us());
        for answer in &loaded.answers {
            if let Some(tenant) = loaded.rows.tenants.get(answer.tenant.0 as usize) {
                let reply = stored_reply(answer);
                let at = Time(now.0.saturating_sub(wall.saturating_sub(answer.wall_us)));
                self.keys.load(tenant.name.clone(), answer.key.clone(), answer.fingerprint, reply, at);
            }
        }
    }

    /// Tells core that the daemon started, and the eyes whom to watch.
    pub fn start(&mut self) {
        if let Some(loss) = self.loss {
            self.take(DaemonEvent::LossFound(loss));
        }
        let boot = self.boot.clone();
        let clock_offset_us = i64::try_from(self.clock.offset().0).unwrap_or(i64::MAX);
        let WatermarkFloor { epoch: epoch_floor, lease: lease_floor } = self.floor;
        self.take(DaemonEvent::Started { boot, clock_offset_us, fence_floor: epoch_floor, lease_floor });
        self.take(DaemonEvent::DayRead { number: crate::calendar::number() });
        self.watch_all();
    }

    fn watch_all(&mut self) {
        let bound: Vec<LeaseId> =
            self.engine.state().rows().leases.values().filter(|l| !l.roots.is_empty()).map(|l| l.id).collect();
        for lease in bound {
            self.watch_roots(lease);
        }
        let held: Vec<LeaseId> =
            self.engine.state().rows().leases.values().filter(|l| l.hold().is_some()).map(|l| l.id).collect();
        for lease in held {
            self.send_wish(lease);
        }
        self.send_booked();
        self.engine.hold(PendingEffect::Errand(HostCommand::Listen));
    }

    /// Whether nothing is under way, nor likely to come, and nothing but the request's own batch is to be written.
    fn is_at_rest(&self) -> bool {
        let meta = &self.engine.state().rows().meta;
        let is_quiet = !self.syncing && self.engine.is_idle() && self.rush.is_over();
        is_quiet && self.epochs.are_ahead(meta.next_fence, meta.next_lease)
    }

    /// Whether the writer has nothing to do, and there is enough for it.
    fn has_enough(&self) -> bool {
        !self.syncing && self.engine.waiting() >= handle::ENOUGH
    }

    /// Whether it was told to stop, and all is written.
    fn is_finished(&self) -> bool {
        self.stopping && !self.syncing && self.engine.is_idle()
    }

    /// Takes nothing any more.
    fn close(&mut self) {
        self.over = true;
        // Without it there is a hole in the numbers of leases, as after a crash.
        let _ = self.epochs.close(self.engine.state().rows().meta.next_lease);
    }

    fn is_over(&self) -> bool {
        self.over
    }

    /// How long its own thread may wait for mail.
    fn sleeps_for(&mut self) -> Duration {
        let patience = self.patience();
        self.wakes_at = Instant::now() + patience;
        patience
    }

    /// Somebody else was at the desk, and something is due before its own thread would look.
    fn wake_earlier(&mut self) {
        let due = Instant::now() + self.patience();
        if due < self.wakes_at {
            self.wakes_at = due;
            drop(self.post.send(LoopInput::Look));
        }
    }

    fn patience(&self) -> Duration {
        if let Some(until) = self.stuck_until() {
            // What is due stays due until then.
            return until.saturating_duration_since(Instant::now());
        }
        if !self.syncing && !self.engine.is_idle() {
            return Duration::ZERO;
        }
        match self.engine.state().next_due() {
            Some(due) => Duration::from_micros(due.since(self.clock.now()).0).min(TICK),
            None => TICK,
        }
    }

    fn tick(&mut self) {
        self.try_to_write_again();
        if self.stuck() {
            return;
        }
        let suspended = suspended_us();
        if suspended.saturating_sub(self.suspended_us) > SUSPEND_US {
            self.take(DaemonEvent::Awoke);
        }
        self.suspended_us = suspended;
        let wall = wall_us();
        // By a clock that was set back, midnight is further away than a day has hours.
        if wall >= self.day_again_us || self.day_again_us - wall > DAY_AGAIN_US {
            self.day_again_us = day_again_us();
            self.take(DaemonEvent::DayRead { number: crate::calendar::number() });
        }
        let now = self.clock.now();
        if self.engine.state().next_due().is_some_and(|due| due <= now) || self.engine.state().is_tick_overdue(now) {
            self.take(DaemonEvent::Ticked);
        }
        self.look_for_room();
    }

    /// Closes the open batch if none is being written: it is the caller's to write.
    fn flush(&mut self) -> Option<ClosedBatch> {
        if self.syncing || self.engine.is_idle() {
            return None;
        }
        self.keep_marks_ahead();
        let (batch, held) = self.engine.close(self.clock.now());
        if batch.is_empty() {
            // All that was seen is durable already.
            self.got_through();
            held.into_iter().for_each(|held| held.release(&self.host));
            return None;
        }
        self.syncing = true;
        let work = ClosedBatch { batch: Box::new(batch), held };
        self.rush = RecentLoad::with(&work);
        Some(work)
    }

    fn keep_marks_ahead(&mut self) {
        let meta = &self.engine.state().rows().meta;
        if let Err(error) = self.epochs.keep_ahead(meta.next_fence) {
            tracing::warn!(%error, "the watermark of fences could not be written; retrying");
        }
        if let Err(error) = self.epochs.keep_leases_ahead(meta.next_lease) {
            tracing::warn!(%error, "the watermark of lease numbers could not be written; retrying");
        }
    }

    /// A batch is on the disk, or is not.
    fn synced(&mut self, done: CommitResult) {
        self.syncing = false;
        match done {
            CommitResult::Done => self.got_through(),
            CommitResult::Failed { error, loaded, held } => {
                self.start_over(*loaded, held, &crate::writer::chain(&error));
            }
        }
    }

    fn order(&self, order: WriterOrder) {
        // The writer goes only when the loop does, or with the whole process.
        drop(self.orders.send(order));
    }

    fn open(&mut self, mail: LoopInput) {
        match mail {
            LoopInput::Call(call) if self.stuck() => refuse(call.reply),
            LoopInput::Saw(_) | LoopInput::Signalled { .. } if self.stuck() => {}
            LoopInput::Read(_) | LoopInput::Watch(_) if self.trying() => self.later.push(mail),
            LoopInput::Call(call) => self.call(*call, true),
            LoopInput::Read(read) => {
                let release = read(&self.view());
                self.engine.hold(PendingEffect::Run(release));
            }
            LoopInput::Watch(watch) => self.watch(watch),
            LoopInput::Saw(sight) => self.see(sight),
            LoopInput::Synced(done) => self.synced(done),
            LoopInput::DiskFreed => self.has_room(),
            LoopInput::Configured(policy) if self.stuck() => {
                // Nothing was decided on what the disk has: the state is made of it once more.
                self.engine = Engine::on_a_full_disk(self.engine.state().rows().clone(), (*policy).clone());
                self.policy = *policy;
            }
            LoopInput::Configured(policy) => {
                self.policy = (*policy).clone();
                self.take(DaemonEvent::Configured(policy));
            }
            LoopInput::Signalled { lease, signal } => self.take(LeaseEvent::SignalSent { lease, signal }),
            LoopInput::Strike { stranger, signal, at, processes } => {
                let (state, now) = (self.engine.state(), self.clock.now());
                let is_wanted = |blow: &_| state.is_signal_due(blow, now);
                self.host.send_signals((stranger, signal, at), processes, state.allowed_subjects(), is_wanted);
            }
            // Its own thread looks what is due after any mail.
            LoopInput::Look => {}
            LoopInput::Stop => self.stopping = true,
        }
    }

    fn view(&self) -> View<'_> {
        let state = (self.engine.state(), self.engine.version());
        let visibility = self.house.read().map_or(Visibility::Own, |house| house.visibility);
        View::new(state, (self.clock.now(), wall_us()), &self.names, &self.plans)
            .with_counts(&self.counts)
            .with_park_reasons(&self.park_reasons)
            .with_visibility(visibility)
    }

    // ---- requests ----------------------------------------------------------

    /// A release is tried `again` after a full disk, once.
    fn call(&mut self, call: LoopCall, again: bool) {
        let LoopCall { by, event, key, looked, reply: to } = call;
        if let Some(used) = &key {
            match (self.keys.look_up(&by.tenant, used, looked), self.engine.state().tenant(&by.tenant), key.clone()) {
                (KeyState::Answered(reply), ..) => {
                    return self.engine.hold(PendingEffect::Reply { reply, to, key_mark: None, again: None });
                }
                (KeyState::Stored(looked), Some(tenant), Some(key)) => {
                    return drop(to.send(Err(Box::new(KeyLookup { by, event, key, tenant, looked }))));
                }
                _ => {}
            }
            if let Err(after_s) = self.keys.check_room(&by.tenant, self.clock.now()) {
                let reply = Reply::problem(&messages::too_many_keys(after_s));
                return self.engine.hold(PendingEffect::Reply { reply, to, key_mark: None, again: None });
            }
        }
        let release = match &event {
            Event::Lease(LeaseEvent::ReleaseRequested { lease, fence: epoch, .. }) if again => Some((*lease, *epoch)),
            _ => None,
        };
        let actor: Arc<str> = match by.token {
            Some(token) => Arc::from(format!("{} {token}", by.tenant)),
            None => Arc::from(by.tenant.as_str()),
        };
        let asked = matches!(
            event,
            Event::Lease(LeaseEvent::Requested { .. })
                | Event::Token(TokenEvent::IssueRequested { .. })
                | Event::Unleased(UnleasedEvent::AdoptRequested { .. })
        );
        let card = match &event {
            Event::Gpu(
                GpuEvent::DrainRequested { gpu: card, .. }
                | GpuEvent::ClearRequested { gpu: card, .. }
                | GpuEvent::AsideRequested { gpu: card, .. }
                | GpuEvent::AsideEndRequested { gpu: card, .. }
                | GpuEvent::ModeRequested { gpu: card, .. },
            ) => Some(card.clone()),
            _ => None,
        };
        let taken = self.take_for(&actor, event);
        let reply = self.reply(&by, &taken, asked, card.as_deref());
        let key_mark = match &key {
            Some(key) if !reply.is_problem() => self.remember(&by, key, &reply),
            _ => None,
        };
        let again = release.map(|(lease, epoch)| Box::new(RetriedRelease { by, lease, epoch, key }));
        self.engine.hold(PendingEffect::Reply { reply, to, key_mark, again });
    }

    fn reply(&self, by: &Caller, taken: &Decided, asked: bool, card: Option<&str>) -> Reply {
        let view = self.view();
        match &taken.answer {
            EventAnswer::Refused(refusal) => Reply::problem(&view.problem(by, refusal)),
            EventAnswer::Done => match view.cards(by).into_iter().find(|shown| Some(shown.uuid.as_str()) == card) {
                Some(card) => Reply::new(200, &card),
                None => Reply::new(200, &()),
            },
            EventAnswer::LossAccepted(loss) => {
                Reply::new(200, &sublet_wire::JournalLoss { sentence: crate::loss::sentence(loss) })
            }
            EventAnswer::Rule(rule) => Reply::new(200, &unleased::rule(rule)),
            EventAnswer::Token(token) => Reply::new(if asked { 201 } else { 200 }, &view.token(token)),
            EventAnswer::Lease(id) => match view.state.lease(*id) {
                Some(lease) => {
                    let status = match (&lease.phase, asked) {
                        (Phase::Active(_), true) => 201,
                        (_, true) => 202,
                        _ => 200,
                    };
                    let is_own = view.state.tenant(&by.tenant) == Some(lease.tenant);
                    let granted = lease.hold().filter(|_| is_own && lease.is_held()).map(|hold| (lease.id, hold.fence));
                    Reply { granted, ..Reply::new(status, &view.lease_in_full(by, lease)) }
                }
                None => match taken.past.iter().find(|ended| ended.id == *id) {
                    Some(ended) => Reply::new(200, &view::past(ended, &view)),
                    None => Reply::problem(&messages::problem(&Refusal::NoSuchLease)),
                },
            },
        }
    }

    /// Keeps an answer for its key; `None` for a tenant that was never enrolled, which has nothing that could happen twice.
    fn remember(&mut self, by: &Caller, key: &IdempotencyKey, reply: &Reply) -> Option<DurableMark> {
        let tenant = self.engine.state().tenant(&by.tenant)?;
        let durable = self.keys.enter(&by.tenant, key, reply, self.clock.now());
        self.engine.store(StoredAnswer {
            tenant,
            key: key.key.clone(),
            fingerprint: key.fingerprint,
            status: reply.status,
            body: reply.body.clone(),
            wall_us: wall_us(),
        });
        Some(durable)
    }

    // ---- waiting for a lease -----------------------------------------------

    fn watch(&mut self, watch: LeaseWatch) {
        let found = find(self.engine.state(), &watch.by, watch.lease).ok();
        let reached = found.is_none_or(|lease| match (&lease.phase, watch.until) {
            (Phase::Ending(..), _) => true,
            (_, WatchGoal::Changed { .. }) => watch.until.is_changed(&self.view().lease(&watch.by, lease)),
            (Phase::Waiting { .. }, _) | (_, WatchGoal::Ended) => false,
            (_, WatchGoal::Granted) => true,
        });
        if reached {
            let shown = found.map(|lease| self.view().lease(&watch.by, lease));
            return self.engine.hold(PendingEffect::Run(Box::new(move || drop(watch.reply.send(shown)))));
        }
        let waiting = self.watches.entry(watch.lease).or_default();
        waiting.retain(|other| !other.reply.is_closed());
        waiting.push(watch);
    }

    fn wake_watchers(&mut self, actions: &[Action], past: &[EndedLease]) {
        if self.watches.is_empty() {
            return;
        }
        for action in actions {
            let Some(id) = action.lease() else { continue };
            let ends = matches!(action, Action::Lease(LeaseAction::End { .. }));
            let starts = ends || matches!(action, Action::Lease(LeaseAction::Grant { .. }));
            let concerns = |watch: &LeaseWatch| starts || matches!(watch.until, WatchGoal::Changed { .. });
            let Some(watches) = self.watches.remove(&id) else { continue };
            if !watches.iter().any(concerns) {
                self.watches.insert(id, watches);
                continue;
            }
            let (mut reached, mut still) = (Vec::new(), Vec::new());
            let view = self.view();
            for watch in watches {
                // Each caller is told what it may know.
                let shown = match (view.state.lease(id), past.iter().find(|ended| ended.id == id)) {
                    (Some(lease), _) => Some(view.lease(&watch.by, lease)),
                    (None, Some(ended)) => Some(view::past(ended, &view)),
                    (None, None) => None,
                };
                let is_reached = match watch.until {
                    WatchGoal::Granted => starts,
                    WatchGoal::Ended => ends,
                    WatchGoal::Changed { .. } => {
                        ends || shown.as_ref().is_none_or(|shown| watch.until.is_changed(shown))
                    }
                };
                if is_reached { reached.push((watch, shown)) } else { still.push(watch) }
            }
            if !still.is_empty() {
                self.watches.insert(id, still);
            }
            for (watch, shown) in reached {
                self.engine.hold(PendingEffect::Run(Box::new(move || drop(watch.reply.send(shown)))));
            }
        }
    }

    // ---- events ------------------------------------------------------------

    fn take(&mut self, event: impl Into<Event>) {
        let own = Arc::clone(&self.own);
        self.take_for(&own, event.into());
    }

    fn take_for(&mut self, actor: &Arc<str>, event: Event) -> Decided {
        let taken = self.engine.take(self.clock.now(), wall_us(), actor, event);
        for action in &taken.actions {
            self.send_hands(action);
            self.send_notices(actor, action);
        }
        self.send_booked();
        // Before anybody hears of what was decided.
        self.recall();
        self.wake_watchers(&taken.actions, &taken.past);
        for ended in &taken.past {
            self.send_forget(ended.id);
        }
        taken
    }

    /// Signals that were not sent yet, and would not be decided again, are not sent.
    fn recall(&mut self) {
        let (state, now) = (self.engine.state(), self.clock.now());
        self.host.withdraw_signals(|blow| state.is_signal_due(blow, now));
    }

    fn see(&mut self, sight: HostReport) {
        match sight {
            HostReport::Gpus(mut cards) => {
                self.set_trouble(None);
                self.unmanaged.apply(&mut cards);
                self.take(GpuEvent::Listed(cards));
                self.send_self_test();
            }
            HostReport::ListFailed(unlisted) => {
                self.set_trouble(Some(unlisted.to_string()));
                self.unread_all(&unlisted.what);
            }
            HostReport::Observed { uuid, observation } => {
                self.take(GpuEvent::ReadingTaken { gpu: uuid.clone(), reading: observation });
                for lease in self.engine.state().moving().collect::<Vec<_>>() {
                    self.send_next(lease);
                }
                self.look_again();
                self.send_inspect();
                self.send_audits(&uuid);
            }
            HostReport::Audited { audit, tree } => {
                self.take(UnleasedEvent::Audited { audit, tree });
            }
            HostReport::ProcessEnded { process } => self.take(UnleasedEvent::Exited { process }),
            HostReport::SignalsSent { stranger, signal, of, outcome } => {
                self.take(UnleasedEvent::SignalSent { id: stranger, signal, decided_at: of, outcome });
            }
            HostReport::SelfTested { can } => self.take(UnleasedEvent::SelfTested { result: can }),
            HostReport::ShimReported { lease, process, said } => {
                self.learn_program(lease, process, &said);
                self.take(LeaseEvent::MoverReported { lease, method: Method::Shim, process, report: said });
                self.send_next(lease);
                self.look_again();
            }
            HostReport::DriverReported { lease, process, said } => {
                self.learn_program(lease, process, &said);
                self.take(LeaseEvent::MoverReported { lease, method: Method::Driver, process, report: said });
                self.send_next(lease);
                self.look_again();
            }
            HostReport::HostMemory { available } => {
                self.take(DaemonEvent::HostMemoryRead { available });
                self.send_ahead();
            }
            HostReport::Members { lease, processes, restricted } => {
                self.take(LeaseEvent::MembersRead { lease, processes, restricted });
                self.send_next(lease);
            }
            HostReport::Counted { lease, counts } => self.note_counts(lease, counts),
            HostReport::Worked { lease } => self.take(LeaseEvent::UseSeen { lease }),
            HostReport::TerminalInput { lease } => self.take(LeaseEvent::Hinted { lease, hint: Hint::Terminal }),
            HostReport::BlockedCall { lease } => self.take(LeaseEvent::Hinted { lease, hint: Hint::BlockedCall }),
            HostReport::Idle { lease, idle } => {
                let idle = Span(u64::try_from(idle.as_micros()).unwrap_or(u64::MAX));
                self.take(LeaseEvent::IdleSeen { lease, idle });
            }
            HostReport::HolderEnded { lease } => self.see_gone(lease),
        }
    }

    /// It decides nothing, and is only shown: also for a while after the lease has ended.
    fn note_counts(&mut self, lease: LeaseId, counts: ActivityCounts) {
        self.counts.insert(lease, counts);
        while self.counts.len() > COUNTED_MAX {
            self.counts.pop_first();
        }
    }

    /// What a holder runs is known when somebody first speaks for it.
    fn learn_program(&mut self, lease: LeaseId, process: ProcKey, said: &MoverReport) {
        let unknown = self.engine.state().readings(lease).is_some_and(|live| live.program.is_empty());
        if unknown
            && matches!(said, MoverReport::Present { .. })
            && let Some(program) = process::executable_name(process.pid)
        {
            self.take(LeaseEvent::ProgramRead { lease, program });
        }
    }

    /// A park or a resume that needs only to be seen is looked for at once.
    fn look_again(&mut self) {
        if self.engine.state().awaits_reading() {
            self.engine.hold(PendingEffect::Errand(HostCommand::Look));
        }
    }

    /// The eyes judged the roots they knew: one bound meanwhile may live.
    fn see_gone(&mut self, lease: LeaseId) {
        let roots = self.engine.state().lease(lease).map(|row| row.roots.clone()).unwrap_or_default();
        if roots.into_iter().any(process::is_running) {
            return self.watch_roots(lease);
        }
        self.take(LeaseEvent::HolderExited { lease });
    }

    fn set_trouble(&self, trouble: Option<String>) {
        if let Some(text) = &trouble {
            tracing::error!("{text}");
        }
        if let Ok(mut place) = self.trouble.write() {
            *place = trouble;
        }
    }

    fn unread_all(&mut self, what: &str) {
        let uuids: Vec<String> = self.engine.state().rows().gpus.iter().map(|c| c.facts.uuid.clone()).collect();
        for card in uuids {
            let reading = Reading::Unreadable(Unreadable::Failed(what.to_owned()));
            self.take(GpuEvent::ReadingTaken { gpu: card, reading: GpuReading { begun: self.clock.now(), reading } });
        }
    }
}

/// An answer as it is given again.
fn stored_reply(answer: &StoredAnswer) -> Reply {
    Reply { status: answer.status, body: answer.body.clone(), retry_after_s: None, granted: None }
}

fn day_again_us() -> u64 {
    wall_us() + (crate::calendar::seconds_left() * 1_000_000).min(DAY_AGAIN_US)
}

/// The wall clock, for people.
pub fn wall_us() -> u64 {
    u64::try_from(clock::unix_us()).unwrap_or(0)
}

/// How long this host was suspended since boot.
fn suspended_us() -> u64 {
    use rustix::time::{ClockId, clock_gettime};
    let us = |id| {
        let t = clock_gettime(id);
        t.tv_sec as u64 * 1_000_000 + t.tv_nsec as u64 / 1_000
    };
    us(ClockId::Boottime).saturating_sub(us(ClockId::Monotonic))
}
