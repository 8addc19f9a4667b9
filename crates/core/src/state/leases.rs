//! What is derived from the rows of leases: the queue, the ledger, what is occupied on each GPU, and what is due.
//!
//! `state/derived.rs` says which of it an action takes out and puts in.

use super::State;
use super::gpus::outlives_lease;
use super::lease_readings::{LeaseReadings, SignalState, hook_mover};
use super::ledger::TenantLoad;
use super::room::Occupancy;
use crate::model::ids::{GpuId, LeaseId, ProcKey};
use crate::model::movers::{Backoff, FALSE_REPORT, MoveProgress};
use crate::model::mutant::Mutant;
use crate::model::request::{GpuSelector, LeaseRequest, Vram};
use crate::model::rows::{EndedLease, Hold, Lease, Phase};
use crate::model::units::{Bytes, Time};
use std::collections::BTreeSet;

impl State {
    /// Adds what is derived from the row of a lease, at a start.
    pub(super) fn index(&mut self, lease: &Lease) {
        // Activity is unreadable after a start, and unreadable counts as active.
        let mut live = LeaseReadings { was_busy: !lease.roots.is_empty(), ..LeaseReadings::default() };
        if let Some((rung, at)) = lease.hold().and_then(|hold| hold.history.as_ref()?.false_report) {
            let until = at + self.policy.parking.retry_after_false_report();
            live.backoffs.insert(rung, Backoff { since: at, until, why: FALSE_REPORT.to_owned() });
        }
        if let Some(hold) = lease.hold() {
            self.queue.set_last_served(lease.tenant, hold.granted);
        }
        match &lease.phase {
            Phase::Waiting { .. } => self.put_into_queue(lease),
            Phase::Active(hold) => self.put_claims(lease, hold),
            Phase::Parking(hold, _) | Phase::Resuming(hold, _) => {
                self.put_claims(lease, hold);
                self.moving.insert(lease.id);
            }
            Phase::Parked(hold, _) => {
                self.put_claims(lease, hold);
                if lease.queued_since().is_some() {
                    self.put_into_queue(lease);
                }
            }
            Phase::Ending(hold, _) => {
                self.put_claims(lease, hold);
                live.unread_gpus = hold.gpus.iter().copied().collect();
                for card in &hold.gpus {
                    self.ending[*card].insert(lease.id);
                }
            }
        }
        self.booked_host_memory = self.booked_host_memory + lease.hold().map_or(Bytes::ZERO, Hold::booked_host_memory);
        if lease.request.has_hook && lease.is_held() {
            live.hooks = hook_mover(lease);
        }
        self.readings.insert(lease.id, live);
        self.index_token(lease);
        self.set_due(lease.id, self.first_due(lease));
    }

    /// Host memory that is booked for a lease.
    pub(super) fn booked_for(&self, lease: LeaseId) -> Bytes {
        self.rows.leases.get(&lease).and_then(Lease::hold).map_or(Bytes::ZERO, Hold::booked_host_memory)
    }

    // ---- what the facts of leases take out and put in ----------------------

    /// Takes a waiter out of the queue.
    pub(super) fn dequeue(&mut self, lease: LeaseId) {
        let Some(row) = self.rows.leases.get(&lease).filter(|row| row.queued_since().is_some()) else { return };
        let (tenant, place) = (row.tenant, self.place_of(row));
        let wish = least_acceptable(&row.request);
        self.queue.remove(tenant, place);
        if let Some(count) = self.waiting_sizes.get_mut(&wish) {
            *count -= 1;
            if *count == 0 {
                self.waiting_sizes.remove(&wish);
            }
        }
        self.ledger.update(tenant, |load| load.waiting -= 1);
        self.queue.unskip_tenant(tenant);
    }

    /// Takes an ended lease off its GPUs and out of the ledger.
    pub(super) fn vacate(&mut self, lease: LeaseId) {
        let Some(row) = self.rows.leases.get(&lease) else { return };
        let Phase::Ending(hold, _) = &row.phase else { return };
        for gpu in &hold.gpus {
            self.rooms[*gpu].vacate(lease);
            self.ending[*gpu].remove(&lease);
        }
        let (tenant, load) = (row.tenant, TenantLoad::of_lease(&row.request, hold));
        self.ledger.update(tenant, |books| books.subtract(&load));
        self.unskip_quota_group(tenant);
    }

    /// Adds a lease to the ledger.
    pub(super) fn add_load(&mut self, lease: LeaseId) {
        self.update_load(lease, TenantLoad::add);
    }

    /// Takes a lease out of the ledger.
    pub(super) fn subtract_load(&mut self, lease: LeaseId) {
        self.update_load(lease, TenantLoad::subtract);
    }

    /// A request joined the queue.
    pub(super) fn index_request(&mut self, lease: LeaseId, root: Option<ProcKey>) {
        let Some(row) = self.rows.leases.get(&lease).cloned() else { return };
        self.put_into_queue(&row);
        self.index_token(&row);
        self.readings.insert(lease, LeaseReadings::default());
        if let Some(root) = root {
            self.add_member(lease, root);
        }
        self.set_due(lease, self.first_due(&row));
    }

    /// A parked lease joined the queue.
    pub(super) fn enqueue(&mut self, lease: LeaseId) {
        if let Some(row) = self.rows.leases.get(&lease).cloned() {
            self.put_into_queue(&row);
        }
    }

    /// A waiter was granted its GPUs.
    pub(super) fn index_grant(&mut self, lease: LeaseId) {
        let Some(row) = self.rows.leases.get(&lease).cloned() else { return };
        let Phase::Active(hold) = &row.phase else { return };
        self.put_claims(&row, hold);
        self.set_due(lease, self.first_due(&row));
        if row.request.has_hook {
            self.readings.entry(lease).or_default().hooks = hook_mover(&row);
        }
        self.update_debt_clock(row.tenant);
        self.queue.set_last_served(row.tenant, hold.granted);
    }

    /// A new term of a lease began: what it did before counts for the last one.
    pub(super) fn clear_busy(&mut self, lease: LeaseId) {
        if let Some(live) = self.readings.get_mut(&lease) {
            live.was_busy = false;
        }
    }

    /// A lease's end may have moved, and with it when it is due.
    pub(super) fn update_ends_and_due(&mut self, lease: LeaseId) {
        self.update_ends(lease);
        self.update_due(lease);
    }

    fn update_due(&mut self, lease: LeaseId) {
        self.set_due(lease, self.rows.leases.get(&lease).and_then(|row| self.first_due(row)));
    }

    /// The host has less memory than the last reading showed.
    pub(super) fn take_host_memory(&mut self, bytes: Bytes) {
        self.host_memory = self.host_memory.map(|available| available.less(bytes));
    }

    /// A lease's bytes begin to leave its GPUs, or to come back.
    pub(super) fn begin_move(&mut self, lease: LeaseId) {
        self.moving.insert(lease);
        self.begin_phase(lease);
    }

    /// A lease's bytes are back.
    pub(super) fn finish_move(&mut self, lease: LeaseId) {
        self.moving.remove(&lease);
        self.begin_phase(lease);
    }

    /// For the simulation only: a lease that is told to leave counts as gone.
    pub(super) fn plant_leaving_is_gone(&mut self, lease: LeaseId) {
        if self.planted(Mutant::LeavingIsGone) {
            let all = self.rooms.iter_mut();
            all.for_each(|room| room.reserve(lease, Bytes::ZERO, Time::ZERO, false));
        }
    }

    /// A lease is parked.
    pub(super) fn index_parked(&mut self, lease: LeaseId) {
        self.finish_move(lease);
        // The last reading of the host's memory may be from before these bytes came.
        self.take_host_memory(self.booked_for(lease));
        self.update_reserved(lease);
        if let Some(tenant) = self.rows.leases.get(&lease).map(|row| row.tenant) {
            self.unskip_quota_group(tenant);
        }
    }

    /// A parked lease has its GPUs again.
    pub(super) fn index_resume(&mut self, lease: LeaseId, at: Time) {
        self.add_load(lease);
        self.begin_move(lease);
        self.update_reserved(lease);
        if let Some(tenant) = self.rows.leases.get(&lease).map(|row| row.tenant) {
            self.queue.set_last_served(tenant, at);
        }
        if let Some(live) = self.readings.get_mut(&lease) {
            // It was not on its GPUs: what it does from now on counts.
            live.was_busy = true;
        }
    }

    /// A lease ended for its holder.
    pub(super) fn index_end(&mut self, lease: LeaseId, ended: Option<&EndedLease>) {
        self.moving.remove(&lease);
        self.update_due(lease);
        if self.end_parked(lease) {
            self.add_load(lease);
        }
        self.update_ends(lease);
        if let Some(ended) = ended {
            self.update_debt_clock(ended.tenant);
        }
        match self.rows.leases.get(&lease).and_then(Lease::hold) {
            Some(hold) => {
                let unread: BTreeSet<GpuId> = hold.gpus.iter().copied().collect();
                for gpu in &unread {
                    self.ending[*gpu].insert(lease);
                }
                self.readings.entry(lease).or_default().unread_gpus = unread;
            }
            None => self.drop_readings(lease),
        }
    }

    /// A signal to the processes of an ended lease was decided.
    pub(super) fn note_signal_decided(&mut self, lease: LeaseId) {
        if let Some(live) = self.readings.get_mut(&lease) {
            live.last_signal = Some(SignalState::Pending);
        }
        self.update_due(lease);
    }

    // ---- the parts ---------------------------------------------------------

    /// Puts a lease on the books, or takes it off.
    fn update_load(&mut self, lease: LeaseId, change: fn(&mut TenantLoad, &TenantLoad)) {
        let Some(row) = self.rows.leases.get(&lease) else { return };
        let Some(hold) = row.hold() else { return };
        let (tenant, load) = (row.tenant, TenantLoad::of_lease(row.first_request(), hold));
        self.ledger.update(tenant, |books| change(books, &load));
    }

    fn index_token(&mut self, lease: &Lease) {
        if let Some(token) = lease.token.filter(|_| !matches!(lease.phase, Phase::Ending(..))) {
            self.by_token.entry(token).or_default().insert(lease.id);
        }
    }

    /// What has ended is not had any more, although its bytes count until its cards were seen again.
    pub(super) fn unindex_token(&mut self, lease: LeaseId) {
        if let Some(token) = self.rows.leases.get(&lease).and_then(|row| row.token)
            && let Some(leases) = self.by_token.get_mut(&token)
        {
            leases.remove(&lease);
            if leases.is_empty() {
                self.by_token.remove(&token);
            }
        }
    }

    /// Puts a waiter into its line.
    pub(super) fn put_into_queue(&mut self, lease: &Lease) {
        let place = self.place_of(lease);
        self.queue.insert(lease.tenant, place);
        *self.waiting_sizes.entry(least_acceptable(&lease.request)).or_default() += 1;
        self.ledger.update(lease.tenant, |load| load.waiting += 1);
        self.queue.unskip_tenant(lease.tenant);
    }

    /// A lease is in another phase of being parked.
    fn begin_phase(&mut self, lease: LeaseId) {
        if let Some(live) = self.readings.get_mut(&lease) {
            live.progress = MoveProgress::default();
        }
        self.update_ends_and_due(lease);
    }

    /// Its cards are its own again, or are not any more.
    pub(super) fn update_reserved(&mut self, lease: LeaseId) {
        let Some(row) = self.rows.leases.get(&lease) else { return };
        let Some(hold) = row.hold() else { return };
        let (reserved, parked, ends) = (row.reserved(), !row.is_on_gpus(), self.ends_by(row, hold));
        for card in hold.gpus.clone() {
            self.rooms[card].reserve(lease, reserved, ends, parked);
        }
    }

    /// A parked lease that ends has no work on its cards, only what is seen of it. Says whether it was one.
    fn end_parked(&mut self, lease: LeaseId) -> bool {
        let cards = self.rows.leases.get(&lease).and_then(Lease::hold).map(|hold| hold.gpus.clone());
        let mut was = false;
        for card in cards.unwrap_or_default() {
            let room = &mut self.rooms[card];
            if room.leases().get(&lease).is_some_and(|claim| claim.is_parked) {
                room.reserve(lease, Bytes::ZERO, Time::ZERO, false);
                was = true;
            }
        }
        was
    }

    fn put_claims(&mut self, lease: &Lease, hold: &Hold) {
        let ends = self.ends_by(lease, hold);
        let parked = !lease.is_on_gpus();
        for card in &hold.gpus {
            let claim = Occupancy {
                tenant: lease.tenant,
                reserved: lease.reserved(),
                seen: Bytes::ZERO,
                exclusivity: lease.request.exclusivity,
                ends_by: ends,
                outlives_lease: outlives_lease(lease),
                is_parked: parked,
            };
            self.rooms[*card].occupy(lease.id, claim);
        }
        if parked {
            return;
        }
        let load = TenantLoad::of_lease(&lease.request, hold);
        self.ledger.update(lease.tenant, |books| books.add(&load));
    }

    /// A lease's end may have moved, and its tenant's mark with it.
    pub(super) fn update_ends(&mut self, lease: LeaseId) {
        let Some(row) = self.rows.leases.get(&lease) else { return };
        let tenant = row.tenant;
        if let Some(hold) = row.hold() {
            let (ends, lives_on) = (self.ends_by(row, hold), outlives_lease(row));
            for card in hold.gpus.clone() {
                self.rooms[card].set_ends(lease, ends, lives_on);
            }
        }
        self.update_debt_clock(tenant);
        if matches!(self.rows.leases[&lease].phase, Phase::Ending(..)) {
            // What was charged ahead is given back.
            self.unskip_quota_group(tenant);
        }
    }

    pub(super) fn drop_readings(&mut self, lease: LeaseId) {
        self.set_due(lease, None);
        for process in self.readings.remove(&lease).unwrap_or_default().members {
            if self.owners.get(&process) == Some(&lease) {
                self.owners.remove(&process);
            }
        }
    }
}

/// The least of a card that an ask would do with; nothing for a whole card.
fn least_acceptable(ask: &LeaseRequest) -> Option<Bytes> {
    // What a parked holder lacks changes with what is left of it on its cards.
    let returns = matches!(ask.gpus_allowed, Some(GpuSelector::These(_))).then_some(Bytes(1));
    returns.or(ask.at_least).or(match ask.vram {
        Vram::Bytes(vram) => Some(vram),
        Vram::Whole => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::facts::{GpuAction, LeaseAction, TenantAction};
    use crate::model::ids::TenantId;
    use crate::model::reading::GpuFacts;
    use crate::model::request::Term;
    use crate::model::rows::Rows;
    use crate::model::settings::Policy;
    use crate::model::units::Span;

    const LEASE: LeaseId = LeaseId(1);

    /// A tenant with a lease that waits, and a GPU.
    fn state() -> State {
        let mut state = State::new(Rows::default(), Policy::default());
        let request = LeaseRequest::plain(Bytes::gib(1), Term::Renewed(Span::secs(60)));
        let (tenant, at, give_up) = (TenantId(0), Time(1), Time(9));
        for action in [
            TenantAction::Add { tenant, name: "uid:0".to_owned() }.into(),
            GpuAction::SetFacts { gpu: GpuId(0), facts: GpuFacts::plain(0, Bytes::gib(24)) }.into(),
            LeaseAction::Queue { lease: LEASE, tenant, request, at, give_up, root: None, token: None }.into(),
        ] {
            assert_eq!(state.apply(&action), Ok(None));
        }
        state
    }

    #[test]
    fn action_that_does_not_fit_changes_neither_rows_nor_queue() {
        let mut state = state();
        let rows = state.rows().clone();
        let resume = LeaseAction::Resume {
            lease: LEASE,
            at: Time(2),
            vram: Bytes::gib(1),
            until: Time(3),
            debt_clock: None,
            not_beyond: None,
            first_since: None,
        };
        let broken = state.apply(&resume.into()).unwrap_err();
        assert_eq!(broken.to_string(), "the action `resume` needs the lease L1 to be parked, and it is waiting");
        assert_eq!(*state.rows(), rows);
        let row = state.lease(LEASE).cloned().unwrap();
        assert!(state.is_first(&row));
        assert_eq!(state.waiting_sizes(), (false, Some(Bytes::gib(1))));
    }
}
