//! What the hands are told once an action is durable: where bytes shall be, who is watched, who gets a signal.

use super::{AHEAD, Loop, PARK_WITHIN};
use crate::loop_input::{HostCommand, LoopInput, PendingEffect};
use crate::messages;
use crate::user_directory::uid_of;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use sublet_core::action::Action;
use sublet_core::contexts;
use sublet_core::decide::preempt;
use sublet_core::facts::{LeaseAction, TokenAction, UnleasedAction};
use sublet_core::ids::{GpuId, LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::parking::{self, NotParkable};
use sublet_core::rows::{Gpu, Hold, Lease, ParkState, Phase};
use sublet_core::state::State;
use sublet_core::units::Bytes;
use sublet_core::unleased::Mode;
use sublet_host::driver::{DriverPlacement, DriverTarget};
use sublet_host::shims::{GpuCap, ShimPlacement, ShimTarget, uuid_bytes};

/// How often it is looked whether the driver could move those whom nothing else can.
const INSPECT_AGAIN: Duration = Duration::from_secs(5);
/// Of so many at a time.
const INSPECTED: usize = 64;

/// Which leases the hands were told of, each for its own: of the others they need not hear when they end.
#[derive(Default)]
pub(super) struct SentCommands {
    watched: BTreeSet<LeaseId>,
    wished: BTreeSet<LeaseId>,
    driven: BTreeSet<LeaseId>,
    /// Host memory that was booked.
    booked: Bytes,
    /// What was last wished of those whom the driver moves, alone or after the library.
    next: BTreeMap<LeaseId, (Option<ShimTarget>, Option<DriverTarget>)>,
}

impl Loop {
    /// A lease is history: the hands that know it forget it.
    pub(super) fn send_forget(&mut self, lease: LeaseId) {
        let (watched, wished) = (self.known.watched.remove(&lease), self.known.wished.remove(&lease));
        let driven = self.known.driven.remove(&lease);
        self.known.next.remove(&lease);
        for (is_known, errand) in [
            (watched, HostCommand::Forget { lease }),
            (wished, HostCommand::Unwish { lease }),
            (driven, HostCommand::Undrive { lease }),
        ] {
            if is_known {
                self.engine.hold(PendingEffect::Errand(errand));
            }
        }
    }

    /// What the hands must do once an action is durable.
    pub(super) fn send_hands(&mut self, action: &Action) {
        match action {
            Action::Lease(
                LeaseAction::Grant { lease, .. }
                | LeaseAction::Park { lease, .. }
                | LeaseAction::FinishPark { lease, .. }
                | LeaseAction::Unpark { lease, .. }
                | LeaseAction::Resume { lease, .. }
                | LeaseAction::ParkAgain { lease, .. }
                | LeaseAction::RemoveContexts { lease, .. }
                | LeaseAction::KeepContexts { lease, .. }
                | LeaseAction::Enlarge { lease, .. },
            ) => self.send_wish(*lease),
            Action::Lease(LeaseAction::FinishResume { lease, .. }) if self.known.next.remove(lease).is_some() => {
                self.send_wish(*lease)
            }
            // Who was never parked has nothing that would be over with its lease.
            Action::Lease(LeaseAction::End { lease, .. }) if self.was_parked(*lease) => self.send_wish(*lease),
            _ => {}
        }
        match action {
            Action::Lease(LeaseAction::Grant { lease, fence: epoch, .. }) if self.known.watched.contains(lease) => {
                let grant = self.marks.grant(*lease, *epoch);
                self.engine.hold(PendingEffect::Errand(HostCommand::Granted { lease: *lease, grant }));
            }
            Action::Lease(LeaseAction::Queue { lease, root: Some(_), .. } | LeaseAction::Bind { lease, .. }) => {
                self.watch_roots(*lease)
            }
            // Its bytes count until the card is seen again: the sooner, the better.
            Action::Lease(LeaseAction::End { lease, .. }) if self.engine.state().lease(*lease).is_some() => {
                self.engine.hold(PendingEffect::Errand(HostCommand::Look));
            }
            // Before the answer to whoever wanted it, which is held after this.
            Action::Lease(LeaseAction::Signal { lease, processes, signal, .. }) => {
                let (processes, signal) = (processes.clone(), *signal);
                if let Some(uid) = self.uid_of_lease(*lease) {
                    self.engine.hold(PendingEffect::Errand(HostCommand::Signal { uid, processes, signal }));
                }
                let (post, gone) = (self.post.clone(), LoopInput::Signalled { lease: *lease, signal });
                self.engine.hold(PendingEffect::Run(Box::new(move || drop(post.send(gone)))));
            }
            Action::Lease(LeaseAction::GiveNotice { lease, .. }) => self.send_notice(*lease),
            // Somebody waits for what the driver says of it.
            Action::Unleased(UnleasedAction::Park { .. }) => self.inspect_at = Instant::now(),
            // Once it is durable it comes back here: meanwhile somebody may have thought better of it.
            Action::Unleased(UnleasedAction::Signal { id: stranger, signal, processes, at }) => {
                let (stranger, signal, at, processes) = (*stranger, *signal, *at, processes.clone());
                let (post, due) = (self.post.clone(), LoopInput::Strike { stranger, signal, at, processes });
                self.engine.hold(PendingEffect::Run(Box::new(move || drop(post.send(due)))));
            }
            Action::Token(TokenAction::Issue { token }) => {
                let (tokens, token) = (self.tokens.clone(), token.clone());
                self.engine.hold(PendingEffect::Run(Box::new(move || tokens.enter(token))));
            }
            Action::Token(TokenAction::Revoke { token, .. }) => {
                let (tokens, token) = (self.tokens.clone(), *token);
                self.engine.hold(PendingEffect::Run(Box::new(move || tokens.revoke(token))));
            }
            _ => {}
        }
    }

    /// What is kept ready for parked bytes gives way to what is booked. Told after the wishes: who leaves by them takes of it
    /// first.
    pub(super) fn send_booked(&mut self) {
        let booked = self.engine.state().booked_host_memory();
        if std::mem::replace(&mut self.known.booked, booked) != booked {
            self.engine.hold(PendingEffect::Errand(HostCommand::Booked { bytes: booked.0 }));
        }
    }

    /// A lease that ends soon: its processes get the signal that was asked for.
    fn send_notice(&mut self, lease: LeaseId) {
        let state = self.engine.state();
        let Some((row, uid)) = state.lease(lease).zip(self.uid_of_lease(lease)) else { return };
        if let Some(notice) = row.request.notice {
            // Those of other users are named too: each is refused by itself, and logged.
            let others = preempt::processes_of_other_users(state, lease).map(|(process, _)| process);
            let processes = preempt::signal_targets(state, row).into_iter().chain(others).collect();
            self.engine.hold(PendingEffect::Errand(HostCommand::Announce {
                lease,
                uid,
                processes,
                signal: notice.signal,
            }));
        }
    }

    /// The user of a lease: only processes of this user are signalled, or moved by the driver, for it. `None` if its tenant
    /// is no user of this host; such a lease has no processes here.
    fn uid_of_lease(&self, lease: LeaseId) -> Option<u32> {
        let state = self.engine.state();
        uid_of(state.tenant_name(state.lease(lease)?.tenant))
    }

    fn was_parked(&self, lease: LeaseId) -> bool {
        let row = self.engine.state().lease(lease);
        row.and_then(Lease::hold).is_some_and(Hold::has_moved)
    }

    /// Where a holder's bytes shall be follows from its phase.
    pub(super) fn send_wish(&mut self, lease: LeaseId) {
        let state = self.engine.state();
        let Some(row) = state.lease(lease) else { return };
        let (wish, driven) = (wish(state, row), driven(state, row));
        if row.park_state().is_some_and(ParkState::needs_driver) {
            self.known.next.insert(lease, (wish.clone(), driven.clone()));
        }
        if let Some(wish) = wish {
            self.known.wished.insert(lease);
            self.engine.hold(PendingEffect::Errand(HostCommand::Wish(wish)));
        }
        if let Some(driven) = driven {
            self.known.driven.insert(lease);
            self.engine.hold(PendingEffect::Errand(HostCommand::Drive(driven)));
        }
    }

    /// Of a holder that the driver moves something was said, or its cards were seen: another hand may have its turn.
    pub(super) fn send_next(&mut self, lease: LeaseId) {
        let state = self.engine.state();
        let Some(row) = state.lease(lease).filter(|row| row.park_state().is_some_and(ParkState::needs_driver)) else {
            return;
        };
        if self.known.next.get(&lease) != Some(&(wish(state, row), driven(state, row))) {
            self.send_wish(lease);
        }
    }

    /// Whether the driver could move a holder is looked at ahead, where the library in its programs, or
    /// its hook, could not.
    pub(super) fn send_inspect(&mut self) {
        if self.inspect_at > Instant::now() {
            return;
        }
        self.inspect_at = Instant::now() + INSPECT_AGAIN;
        let (state, now) = (self.engine.state(), self.clock.now());
        let stuck = |row: &&Lease| {
            let stuck = |rung: &Method| parking::parkable(state, row, *rung, now).is_err();
            let deepens = |row: &Lease| contexts::removable(state, row, now) == Err(NotParkable::NotInspected);
            let deep = state.policy().parking.context_after.is_some();
            // A waiter may need the room of its contexts.
            let may_deepen =
                |hold| contexts::removable_after_park(state, row, hold, now) == Err(NotParkable::NotInspected);
            match &row.phase {
                Phase::Active(hold) => {
                    let is_sought = deep && !state.queue().is_empty() && may_deepen(hold);
                    is_sought || [Method::Hook, Method::Shim].iter().all(stuck)
                }
                Phase::Parked(..) => deep && deepens(row),
                _ => false,
            }
        };
        let found = |row: &Lease| {
            let (processes, bytes) = on_cards(state, row);
            let uid = uid_of(state.tenant_name(row.tenant))?;
            (!processes.is_empty()).then_some(HostCommand::Inspect { lease: row.id, uid, processes, bytes })
        };
        let errands: Vec<HostCommand> =
            state.rows().leases.values().filter(stuck).filter_map(found).take(INSPECTED).collect();
        for errand in errands {
            if let HostCommand::Inspect { lease, .. } = &errand {
                self.known.driven.insert(*lease);
            }
            self.engine.hold(PendingEffect::Errand(errand));
        }
    }

    /// Where strangers are adopted or ended it is tried first, by each daemon anew, whether they can be told apart.
    pub(super) fn send_self_test(&mut self) {
        let state = self.engine.state();
        if state.self_tests() > 0 {
            return;
        }
        let cards = state.gpus().filter(|card| state.is_listed(*card));
        let is_meant = |row: &&Gpu| matches!(row.mode, Mode::Adopt | Mode::Enforce);
        let enforced = cards.map(|card| &state.rows().gpus[usize::from(card.0)]).find(is_meant);
        if let Some(uuid) = enforced.map(|row| row.facts.uuid.clone()) {
            self.engine.hold(PendingEffect::Errand(HostCommand::SelfTest { uuid }));
        }
    }

    /// Strangers whose next step is due are looked into first. Who was seen where its lease is not is a holder by
    /// what the host knows: it is told with every look, as it sees strangers by itself.
    pub(super) fn send_audits(&mut self, looked_at: &str) {
        let state = self.engine.state();
        let abroad = state.gpu(looked_at).map(|card| state.off_lease_processes(card)).unwrap_or_default();
        if !abroad.is_empty() {
            self.engine.hold(PendingEffect::Errand(HostCommand::Abroad { processes: abroad }));
        }
        for process in self.engine.state().audits_due(self.clock.now()) {
            self.engine.hold(PendingEffect::Errand(HostCommand::Audit { process }));
        }
    }

    /// Whoever could be parked for somebody who waits makes ready for it.
    pub(super) fn send_ahead(&mut self) {
        let (state, now) = (self.engine.state(), self.clock.now());
        if state.queue().is_empty() {
            return;
        }
        let could = |lease: &&Lease| parking::parkable(state, lease, Method::Shim, now).is_ok();
        let leases: Vec<LeaseId> = state.rows().leases.values().filter(could).take(AHEAD).map(|row| row.id).collect();
        for lease in leases {
            self.engine.hold(PendingEffect::Errand(HostCommand::Ahead { lease }));
        }
    }

    pub(super) fn watch_roots(&mut self, lease: LeaseId) {
        let state = self.engine.state();
        if let Some(row) = state.lease(lease)
            && let Some(uid) = uid_of(state.tenant_name(row.tenant))
        {
            let roots = row.roots.clone();
            self.known.watched.insert(lease);
            let grant = row.hold().map(|hold| self.marks.grant(lease, hold.fence));
            self.engine.hold(PendingEffect::Errand(HostCommand::Watch { lease, uid, roots, grant }));
        }
    }
}

/// What shall be of a holder, as its lease says; nobody's if its tenant is no user of this host.
fn wish(state: &State, row: &Lease) -> Option<ShimTarget> {
    let (hold, uid) = (row.hold()?, uid_of(state.tenant_name(row.tenant))?);
    let away = |deep: bool| ShimPlacement::InHostMemory {
        booked: hold.booked_host_memory().0,
        within: PARK_WITHIN,
        with_context: deep,
    };
    let placement = match &row.phase {
        Phase::Waiting { .. } => return None,
        // Whom the driver moves the library leaves alone; who began since then waits with them.
        _ if parking::must_stay_off_gpus(state, row) => away(false),
        // The driver comes first.
        Phase::Resuming(_, trip) if trip.with_driver && parking::driver_may_have(state, row) => away(true),
        Phase::Active(_) | Phase::Resuming(..) => ShimPlacement::OnGpus,
        // While a hook works the library must not be in its way; afterwards it keeps the programs from
        // taking what is others' now, and says when they need it.
        Phase::Parking(_, trip) if trip.method != Method::Shim => ShimPlacement::OnGpus,
        Phase::Parked(_, trip) if trip.method == Method::Driver => ShimPlacement::OnGpus,
        Phase::Parking(..) => away(parking::driver_may_have(state, row)),
        Phase::Parked(_, trip) => away(trip.with_driver),
        Phase::Ending(_, finish) => {
            ShimPlacement::LeaseOver { why: messages::ended(&row.id.to_string(), finish.reason) }
        }
    };
    let cap = |card: &GpuId| {
        let facts = &state.rows().gpus.get(usize::from(card.0))?.facts;
        let context = facts.context.map_or(0, |bytes| bytes.0);
        Some(GpuCap { uuid: uuid_bytes(&facts.uuid)?, cap: hold.vram.0, context })
    };
    let driven = row.park_state().filter(|trip| trip.method == Method::Driver).map(|trip| trip.processes.clone());
    let cards = hold.gpus.iter().filter_map(cap).collect();
    Some(ShimTarget { lease: row.id, uid, placement, moved_by_driver: driven.unwrap_or_default(), gpus: cards })
}

/// The same of a holder whose processes the driver moves.
fn driven(state: &State, row: &Lease) -> Option<DriverTarget> {
    let (hold, away) = (row.hold()?, row.park_state().filter(|away| away.needs_driver())?);
    let uid = uid_of(state.tenant_name(row.tenant))?;
    // Nobody is taken whose own calls could still find the driver gone.
    let leaves = matches!(row.phase, Phase::Parking(..) | Phase::Parked(..));
    if away.with_driver && leaves && !parking::all_keep_still(state, row) {
        return None;
    }
    let need = |card: &GpuId| Some((state.rows().gpus.get(usize::from(card.0))?.facts.uuid.clone(), hold.vram.0));
    let placement = match &row.phase {
        Phase::Parking(..) | Phase::Parked(..) => {
            DriverPlacement::InHostMemory { within: PARK_WITHIN, booked: hold.booked_host_memory().0 }
        }
        // States are still queried: a process that never left its GPUs is back, even if there is no room to restore.
        Phase::Resuming(..) if !parking::may_restore(state, row) => DriverPlacement::WaitForRoom,
        Phase::Resuming(..) => DriverPlacement::OnGpus { needs: hold.gpus.iter().filter_map(need).collect() },
        _ => return None,
    };
    Some(DriverTarget { lease: row.id, uid, placement, processes: away.processes.clone() })
}

/// A holder's processes on its cards as of the last look, and what they have there.
fn on_cards(state: &State, row: &Lease) -> (Vec<ProcKey>, u64) {
    let (mut processes, mut bytes) = (Vec::new(), 0);
    for card in row.hold().into_iter().flat_map(|hold| &hold.gpus) {
        bytes += state.room(*card).seen_of(row.id).0;
        processes.extend(parking::residents(state, row.id, *card));
    }
    processes.sort();
    processes.dedup();
    (processes, bytes)
}
