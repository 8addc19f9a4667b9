//! Admits a request: refuses it with a reason, or puts it into the queue.

use super::Decider;
use crate::model::action::Action;
use crate::model::event::{Caller, EventAnswer, Refusal};
use crate::model::facts::{LeaseAction, TenantAction};
use crate::model::ids::{GpuId, LeaseId, ProcKey, TenantId};
use crate::model::mutant::Mutant;
use crate::model::quota::CappedResource;
use crate::model::request::LeaseRequest;
use crate::model::rows::{EndReason, Phase};
use crate::model::settings::Caps;
use crate::model::units::{Bytes, Span};
use crate::policy::admission::{sensible, steps_aside};
use crate::policy::eligibility::is_acceptable;
use crate::policy::quota;
use crate::state::ledger::TenantLoad;
use std::cmp::Reverse;

impl Decider<'_> {
    pub(super) fn admit(
        &mut self,
        by: &Caller,
        ask: LeaseRequest,
        wait: Option<Span>,
        root: Option<ProcKey>,
    ) -> EventAnswer {
        if let Err(refusal) = sensible(self.state, &ask) {
            return EventAnswer::Refused(refusal);
        }
        let tenant = self.enrol(by);
        if let Err(refusal) = self.admissible(by, tenant, &ask) {
            return EventAnswer::Refused(refusal);
        }
        let lease = LeaseId(self.state.rows().meta.next_lease);
        let give_up = self.now + wait.unwrap_or(self.state.policy().wait);
        let bound = root.and_then(|root| Some((root, self.state.owner(&root)?)));
        self.emit(LeaseAction::Queue { lease, tenant, request: ask, at: self.now, give_up, root, token: by.token });
        self.serve();
        self.stand_aside_if_held(tenant);
        let waits = self.state.lease(lease).is_some_and(|row| matches!(row.phase, Phase::Waiting { .. }));
        if waits && wait == Some(Span::ZERO) {
            let row = self.state.lease(lease);
            let held = row.and_then(|row| quota::block(self.state, row)).map(Refusal::OverQuota);
            let held = held.or_else(|| row.and_then(|row| steps_aside(self.state, &row.request)));
            let no_room = self.no_room(lease);
            self.withdraw(lease, bound);
            return EventAnswer::Refused(held.unwrap_or(no_room));
        }
        EventAnswer::Lease(lease)
    }

    /// A refused request writes nothing: a user could otherwise fill the log, and trim away the history of others. The
    /// exception is a request that was in the queue while another lease was granted or preempted: that decision followed
    /// from the queue as it was, and makes no sense without the request. `bound` is the request's process, and the lease
    /// that it belonged to before.
    fn withdraw(&mut self, lease: LeaseId, bound: Option<(ProcKey, LeaseId)>) {
        let is_last = matches!(self.actions.last(), Some(Action::Lease(LeaseAction::Queue { lease: queued, .. })) if *queued == lease);
        if !is_last || self.state.planted(Mutant::KeepRefused) {
            return self.end(lease, EndReason::WaitOver);
        }
        self.state.withdraw(lease, self.now, bound);
        self.actions.pop();
    }

    /// On a full house nobody is looked at, and whom a quota holds back must not look like somebody
    /// who wants the cards.
    fn stand_aside_if_held(&mut self, tenant: TenantId) {
        let first = self.state.queue().first_of(tenant).and_then(|lease| self.state.lease(lease));
        if first.and_then(|lease| quota::block(self.state, lease)).is_some_and(|held| !held.is_permanent) {
            self.state.skip_tenant(tenant);
        }
    }

    fn admissible(&self, by: &Caller, tenant: TenantId, ask: &LeaseRequest) -> Result<(), Refusal> {
        self.within_token(by, ask)?;
        if let Some(held) = quota::block_of_request(self.state, tenant, ask)
            && (held.is_permanent || matches!(held.resource, CappedResource::GpuDay { .. }))
        {
            return Err(Refusal::OverQuota(held));
        }
        if let Some(stopped) = self.state.stopped() {
            return Err(stopped);
        }
        if self.state.planted(Mutant::EndlessQueue) {
            return Ok(());
        }
        let books = self.state.ledger();
        let full = |load: &TenantLoad, caps: &Caps| caps.places.is_some_and(|places| load.waiting >= places);
        let of_groups = || books.groups(tenant).any(|(_, load, caps)| full(load, caps));
        if full(books.load(tenant), books.caps(tenant)) || of_groups() {
            return Err(Refusal::QueueFull { own: true });
        }
        if self.state.queue().len() >= self.state.policy().queue_max {
            return Err(Refusal::QueueFull { own: false });
        }
        Ok(())
    }

    /// The tenant's number; a new one's, or its groups, are facts to be kept.
    pub(super) fn enrol(&mut self, by: &Caller) -> TenantId {
        let tenant = self.state.tenant(&by.tenant).unwrap_or_else(|| {
            let tenant = TenantId(self.state.rows().tenants.len() as u32);
            self.emit(TenantAction::Add { tenant, name: by.tenant.clone() });
            tenant
        });
        if self.state.rows().tenants[tenant].groups != by.groups {
            self.emit(TenantAction::SetGroups { tenant, groups: by.groups.clone() });
        }
        tenant
    }

    /// Which of the cards that the ask names could give most now.
    fn no_room(&self, lease: LeaseId) -> Refusal {
        let named =
            |card: &GpuId| self.state.lease(lease).is_some_and(|row| is_acceptable(self.state, &row.request, *card));
        let gives = |card: GpuId| (self.state.promisable(card, self.now), Reverse(card));
        let most = self.state.gpus().filter(named).map(gives).max();
        let gpu = most.map(|(_, Reverse(card))| self.state.rows().gpus[card].facts.index);
        Refusal::NoRoom { largest: most.map_or(Bytes::ZERO, |(bytes, _)| bytes), gpu }
    }
}
