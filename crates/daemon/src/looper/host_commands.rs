//! Orders to the host, given once the action behind them is durable: which processes are watched, where bytes shall be,
//! which signals are sent, what is read.
//!
//! Core says where the bytes of a lease shall be (`sublet_core::policy::targets`). Here is what the host was told before, so
//! that it is told again only when that changed, and told to forget what it knows.
//!
//! A park passes through these files: `http/leases.rs` (the call), `looper/calls.rs`, core's `decide/park.rs` (the decision),
//! here (the target), `effects.rs`, then `crates/host`: `shims/mod.rs` or `driver/hub_thread.rs`.

use super::output::{HostCommand, Output, TokenChange};
use super::{AfterSync, Loop};
use crate::messages;
use crate::user_directory::uid_of;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use sublet_core::action::Action;
use sublet_core::facts::{LeaseAction, TokenAction, UnleasedAction};
use sublet_core::ids::{GpuId, LeaseId, ProcKey};
use sublet_core::policy::lease_processes;
use sublet_core::policy::targets::{self, DriverPlace, Inspection, ShimGoal, Target};
use sublet_core::policy::unleased_due::{audits_due, is_signal_due};
use sublet_core::rows::{Hold, Lease};
use sublet_core::state::State;
use sublet_core::units::{Bytes, Span, Time};
use sublet_core::unleased::{PendingSignal, UnleasedId};
use sublet_host::driver::{DriverPlacement, DriverTarget};
use sublet_host::shims::{GpuCap, ShimPlacement, ShimTarget, uuid_bytes};

/// How often the driver is asked which processes it could move.
const INSPECT_AGAIN: Span = Span::secs(5);
/// A program leaves its GPUs within this time, or stays.
const PARK_WITHIN: Duration = Duration::from_secs(10);

/// What the host was told: it need not hear of the end of a lease that it does not know.
#[derive(Default)]
pub(super) struct SentCommands {
    watched: BTreeSet<LeaseId>,
    with_shim_target: BTreeSet<LeaseId>,
    with_driver_target: BTreeSet<LeaseId>,
    booked: Bytes,
    /// The last target of each lease in whose park the driver has a part.
    targets: BTreeMap<LeaseId, Target>,
}

impl Loop {
    fn hold_command(&mut self, command: HostCommand) {
        self.engine.hold(Output::Host(command));
    }

    /// After a start the host knows nothing.
    pub(super) fn send_all_leases(&mut self) {
        let ids = |is_sent: fn(&&Lease) -> bool, state: &State| -> Vec<LeaseId> {
            state.rows().leases.values().filter(is_sent).map(|row| row.id).collect()
        };
        for lease in ids(|row| !row.roots.is_empty(), self.engine.state()) {
            self.send_watch(lease);
        }
        for lease in ids(|row| row.hold().is_some(), self.engine.state()) {
            self.send_target(lease);
        }
        self.send_booked();
        self.hold_command(HostCommand::StartReporting);
    }

    /// A lease is history: the host forgets it.
    pub(super) fn send_forget(&mut self, lease: LeaseId) {
        self.sent.targets.remove(&lease);
        let known = [
            (self.sent.watched.remove(&lease), HostCommand::EndWatch { lease }),
            (self.sent.with_shim_target.remove(&lease), HostCommand::ForgetShimTarget { lease }),
            (self.sent.with_driver_target.remove(&lease), HostCommand::ForgetDriverTarget { lease }),
        ];
        for (_, command) in known.into_iter().filter(|(is_known, _)| *is_known) {
            self.hold_command(command);
        }
    }

    /// What the host does because of an action.
    pub(super) fn send_host_commands(&mut self, action: &Action) {
        self.send_target_after(action);
        match action {
            Action::Lease(LeaseAction::Grant { lease, fence, .. }) if self.sent.watched.contains(lease) => {
                let grant = self.proofs.grant(*lease, *fence);
                self.hold_command(HostCommand::SetGrant { lease: *lease, grant });
            }
            Action::Lease(LeaseAction::Queue { lease, root: Some(_), .. } | LeaseAction::Bind { lease, .. }) => {
                self.send_watch(*lease)
            }
            // Its bytes count until its GPUs are read again: the sooner, the better.
            Action::Lease(LeaseAction::End { lease, .. }) if self.engine.state().lease(*lease).is_some() => {
                self.hold_command(HostCommand::ReadGpus);
            }
            // Before the answer to the caller, which is held after this.
            Action::Lease(LeaseAction::Signal { lease, processes, signal, .. }) => {
                if let Some(uid) = self.uid_of_lease(*lease) {
                    self.hold_command(HostCommand::Signal { uid, processes: processes.clone(), signal: *signal });
                }
                self.after_sync.push(AfterSync::LeaseSignalled { lease: *lease, signal: *signal });
            }
            Action::Lease(LeaseAction::GiveNotice { lease, .. }) => self.send_end_announcement(*lease),
            // The decision waits for what the driver reports of it.
            Action::Unleased(UnleasedAction::Park { .. }) => self.inspect_at = Time::ZERO,
            // It may be decided otherwise until it is durable.
            Action::Unleased(UnleasedAction::Signal { id, signal, at, processes }) => {
                let (id, signal, at, processes) = (*id, *signal, *at, processes.clone());
                self.after_sync.push(AfterSync::SignalUnleased { id, signal, at, processes });
            }
            Action::Token(TokenAction::Issue { token }) => {
                self.engine.hold(Output::Token(TokenChange::Issued(token.clone())));
            }
            Action::Token(TokenAction::Revoke { token, .. }) => {
                self.engine.hold(Output::Token(TokenChange::Revoked(*token)))
            }
            _ => {}
        }
    }

    // ---- where bytes shall be ------------------------------------------------------

    fn send_target_after(&mut self, action: &Action) {
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
            ) => self.send_target(*lease),
            Action::Lease(LeaseAction::FinishResume { lease, .. }) if self.sent.targets.remove(lease).is_some() => {
                self.send_target(*lease)
            }
            // A lease that was never parked has nothing that would be over with it.
            Action::Lease(LeaseAction::End { lease, .. }) if self.was_parked(*lease) => self.send_target(*lease),
            _ => {}
        }
    }

    fn was_parked(&self, lease: LeaseId) -> bool {
        self.engine.state().lease(lease).and_then(Lease::hold).is_some_and(Hold::has_moved)
    }

    fn send_target(&mut self, lease: LeaseId) {
        let state = self.engine.state();
        let Some(row) = state.lease(lease) else { return };
        let Some((target, hold)) = targets::target(state, row).zip(row.hold()) else { return };
        // A tenant that is no user of this host has no processes here.
        let Some(uid) = uid_of(state.tenant_name(row.tenant)) else { return };
        let shim = shim_target(state, row, hold, uid, &target);
        let driver = driver_target(state, row, uid, &target);
        if targets::follows_reports(row) {
            self.sent.targets.insert(lease, target);
        }
        self.sent.with_shim_target.insert(lease);
        self.hold_command(HostCommand::SetShimTarget(shim));
        if let Some(driver) = driver {
            self.sent.with_driver_target.insert(lease);
            self.hold_command(HostCommand::SetDriverTarget(driver));
        }
    }

    /// A mover reported something, or a GPU was read: the target may be another now.
    pub(super) fn send_changed_target(&mut self, lease: LeaseId) {
        let state = self.engine.state();
        let Some(row) = state.lease(lease).filter(|row| targets::follows_reports(row)) else { return };
        if self.sent.targets.get(&lease) != targets::target(state, row).as_ref() {
            self.send_target(lease);
        }
    }

    /// Held after the targets: a program that is parked takes host memory that is kept ready before that shrinks.
    pub(super) fn send_booked(&mut self) {
        let booked = self.engine.state().booked_host_memory();
        if std::mem::replace(&mut self.sent.booked, booked) != booked {
            self.hold_command(HostCommand::SetBooked { bytes: booked.0 });
        }
    }

    pub(super) fn send_preparations(&mut self) {
        for lease in targets::preparations(self.engine.state(), self.moment.now) {
            self.hold_command(HostCommand::PrepareToPark { lease });
        }
    }

    pub(super) fn send_inspections(&mut self) {
        let now = self.moment.now;
        if self.inspect_at > now {
            return;
        }
        self.inspect_at = now + INSPECT_AGAIN;
        for Inspection { lease, processes, bytes } in targets::inspections(self.engine.state(), now) {
            let Some(uid) = self.uid_of_lease(lease) else { continue };
            self.sent.with_driver_target.insert(lease);
            self.hold_command(HostCommand::Inspect { lease, uid, processes, bytes: bytes.0 });
        }
    }

    // ---- processes -----------------------------------------------------------------

    pub(super) fn send_watch(&mut self, lease: LeaseId) {
        let Some((row, uid)) = self.engine.state().lease(lease).zip(self.uid_of_lease(lease)) else { return };
        let roots = row.roots.clone();
        let grant = row.hold().map(|hold| self.proofs.grant(lease, hold.fence));
        self.sent.watched.insert(lease);
        self.hold_command(HostCommand::Watch { lease, uid, roots, grant });
    }

    /// The user of a lease: only processes of this user are signalled, or moved by the driver, for it. `None` if its tenant
    /// is no user of this host; such a lease has no processes here.
    fn uid_of_lease(&self, lease: LeaseId) -> Option<u32> {
        let state = self.engine.state();
        uid_of(state.tenant_name(state.lease(lease)?.tenant))
    }

    /// A lease ends soon: its processes get the signal that its user asked for.
    fn send_end_announcement(&mut self, lease: LeaseId) {
        let state = self.engine.state();
        let Some((row, uid)) = state.lease(lease).zip(self.uid_of_lease(lease)) else { return };
        if let Some(notice) = row.request.notice {
            // Those of other users are named too: each is refused by itself, and logged.
            let others = lease_processes::processes_of_other_users(state, lease).map(|(process, _)| process);
            let processes = lease_processes::signal_targets(state, row).into_iter().chain(others).collect();
            self.hold_command(HostCommand::AnnounceEnd { lease, uid, processes, signal: notice.signal });
        }
    }

    // ---- unleased processes --------------------------------------------------------

    /// A signal to an unleased process is durable: each process gets it for which it would be decided again.
    pub(super) fn send_unleased_signal(&mut self, (id, signal, at): (UnleasedId, u8, Time), processes: Vec<ProcKey>) {
        let (state, now) = (self.engine.state(), self.moment.now);
        let pending = |process: &ProcKey| PendingSignal { stranger: id, process: *process, signal, of: at };
        let is_due = |pending: &PendingSignal| is_signal_due(state, pending, now);
        let due: BTreeSet<PendingSignal> = processes.iter().map(pending).filter(is_due).collect();
        let wanted = due.iter().map(|pending| pending.process).collect();
        let spared = state.allowed_subjects();
        self.signals_under_way.extend(due);
        let command = HostCommand::SignalUnleased { unleased: id, signal, of: at, processes, wanted, spared };
        self.immediate.push(Output::Host(command));
    }

    /// Signals that were not sent yet, and would not be decided again, are not sent. This leaves before any answer that
    /// depends on the decision.
    pub(super) fn withdraw_signals(&mut self) {
        if self.signals_under_way.is_empty() {
            return;
        }
        let (state, now) = (self.engine.state(), self.moment.now);
        let is_withdrawn = |pending: &PendingSignal| !is_signal_due(state, pending, now);
        let withdrawn: BTreeSet<PendingSignal> = self.signals_under_way.iter().copied().filter(is_withdrawn).collect();
        if !withdrawn.is_empty() {
            self.signals_under_way.retain(|pending| !withdrawn.contains(pending));
            self.immediate.push(Output::Host(HostCommand::WithdrawSignals(withdrawn)));
        }
    }

    pub(super) fn send_self_test(&mut self) {
        if let Some(uuid) = targets::self_test_due(self.engine.state()).map(|gpu| gpu.facts.uuid.clone()) {
            self.hold_command(HostCommand::SelfTest { uuid });
        }
    }

    /// Unleased processes whose next step is due are audited first. The host sees unleased processes by itself; it is told
    /// with every reading of processes that use a GPU which their lease does not have.
    pub(super) fn send_audits(&mut self, read_gpu: &str) {
        let state = self.engine.state();
        let off_lease = state.gpu(read_gpu).map(|gpu| state.off_lease_processes(gpu)).unwrap_or_default();
        if !off_lease.is_empty() {
            self.hold_command(HostCommand::AuditOffLease { processes: off_lease });
        }
        for process in audits_due(self.engine.state(), self.moment.now) {
            self.hold_command(HostCommand::Audit { process });
        }
    }
}

fn shim_target(state: &State, row: &Lease, hold: &Hold, uid: u32, target: &Target) -> ShimTarget {
    let placement = match &target.shim {
        ShimGoal::OnGpus => ShimPlacement::OnGpus,
        ShimGoal::InHostMemory { booked, with_context } => {
            ShimPlacement::InHostMemory { booked: booked.0, within: PARK_WITHIN, with_context: *with_context }
        }
        ShimGoal::Over(reason) => ShimPlacement::LeaseOver { why: messages::ended(&row.id.to_string(), *reason) },
    };
    let cap = |gpu: &GpuId| {
        let facts = &state.rows().gpus.find(*gpu)?.facts;
        let context = facts.context.map_or(0, |bytes| bytes.0);
        Some(GpuCap { uuid: uuid_bytes(&facts.uuid)?, cap: hold.vram.0, context })
    };
    let gpus = hold.gpus.iter().filter_map(cap).collect();
    ShimTarget { lease: row.id, uid, placement, moved_by_driver: target.moved_by_driver.clone(), gpus }
}

fn driver_target(state: &State, row: &Lease, uid: u32, target: &Target) -> Option<DriverTarget> {
    let goal = target.driver.as_ref()?;
    let need = |(gpu, bytes): &(GpuId, Bytes)| Some((state.rows().gpus.find(*gpu)?.facts.uuid.clone(), bytes.0));
    let placement = match &goal.place {
        DriverPlace::InHostMemory { booked } => DriverPlacement::InHostMemory { within: PARK_WITHIN, booked: booked.0 },
        DriverPlace::WaitForRoom => DriverPlacement::WaitForRoom,
        DriverPlace::OnGpus(needs) => DriverPlacement::OnGpus { needs: needs.iter().filter_map(need).collect() },
    };
    Some(DriverTarget { lease: row.id, uid, placement, processes: goal.processes.clone() })
}
