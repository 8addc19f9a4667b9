//! GPUs step aside and come back.
//!
//! ```text
//! SetAside ──► Park, lease by lease ──► (nothing is granted or resumed there) ──► EndAside ──► waiters are served
//! ```
//! What can be parked is parked in the usual way, at once or as soon as it can be. What cannot be parked stays: no
//! lease is ended, and no process is signalled. A lease that was busy waits for its GPUs as any waiter. One that was
//! idle is passive ([`crate::model::rows::Lease::is_passive`]), so it comes back too, but takes no room that a waiter claims.

use super::Decider;
use super::park::{ParkCause, ParkOrder};
use crate::model::aside::{Aside, AsideOver, DEFAULT, KEY_MAX, LONGEST, PER_GPU};
use crate::model::event::{AsideRequest, Caller, EventAnswer, Refusal};
use crate::model::facts::GpuAction;
use crate::model::ids::GpuId;
use crate::model::mutant::Mutant;
use crate::model::rows::{Lease, Phase};
use crate::model::settings::AsideAllow;
use crate::model::units::Time;
use crate::policy::aside::{active_on, may_leave};
use crate::policy::moves::{cheapest_method, price_of_leaving};
use crate::policy::preemption::idle_since;
use crate::state::State;

impl Decider<'_> {
    /// A GPU shall step aside, or go on doing so.
    pub(super) fn aside_asked(&mut self, by: &Caller, uuid: &str, ask: AsideRequest) -> EventAnswer {
        match self.aside_for(by, uuid, ask) {
            Ok((card, aside)) => {
                self.emit(GpuAction::SetAside { gpu: card, aside });
                EventAnswer::Done
            }
            Err(refusal) => EventAnswer::Refused(refusal),
        }
    }

    fn aside_for(&self, by: &Caller, uuid: &str, ask: AsideRequest) -> Result<(GpuId, Aside), Refusal> {
        let known = self.state.gpu(uuid).map(|card| &self.state.rows().gpus[card].aside);
        let last = known.and_then(|asides| asides.find(&by.tenant, &ask.key));
        let may = self.may_put_aside(by, &ask);
        let renews = ask.renews && by.token.is_none();
        if renews && last.is_none() && known.is_some() {
            return Err(Refusal::NoSuchAside);
        }
        if !may && !renews {
            return Err(Refusal::MayNotPutAside(self.state.policy().aside.allow));
        }
        let (Some(card), Some(known)) = (self.state.gpu(uuid), known) else { return Err(Refusal::NoSuchCard) };
        let span = ask.span.unwrap_or(DEFAULT);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '_');
        if span.0 == 0 || span > LONGEST || ask.key.len() > KEY_MAX || !ask.key.chars().all(is_plain) {
            return Err(Refusal::BadAside);
        }
        match last {
            None if known.now.len() >= PER_GPU => return Err(Refusal::TooManyAsides),
            None => self.state.stopped().map_or(Ok(()), Err)?,
            Some(_) => {}
        }
        let since = last.map_or(self.now, |last| last.since);
        // The user of a renewal may have switched to another session meanwhile, but not for ever.
        let most = if may { Time::NEVER } else { since + LONGEST };
        let until = (self.now + span).min(most);
        Ok((card, Aside { by: by.tenant.clone(), key: ask.key, since, renewed: self.now, until }))
    }

    fn may_put_aside(&self, by: &Caller, ask: &AsideRequest) -> bool {
        let rule = &self.state.policy().aside;
        let allowed = match rule.allow {
            AsideAllow::Operators => false,
            AsideAllow::Seat => ask.at_seat,
            AsideAllow::Everybody => true,
        };
        by.operator || (by.token.is_none() && (allowed || rule.users.contains(&by.tenant)))
    }

    /// A tenant ends its asides of a GPU, or the one with a key; an operator ends those of every tenant.
    pub(super) fn aside_end_asked(&mut self, by: &Caller, uuid: &str, key: Option<&str>) -> EventAnswer {
        if by.token.is_some() {
            return EventAnswer::Refused(Refusal::MayNotPutAside(self.state.policy().aside.allow));
        }
        let Some(card) = self.state.gpu(uuid) else { return EventAnswer::Refused(Refusal::NoSuchCard) };
        let asides = self.state.rows().gpus[card].aside.now.clone();
        let is_own = |aside: &&Aside| aside.by == by.tenant || (by.operator && key.is_none());
        let is_meant = |aside: &&Aside| is_own(aside) && key.is_none_or(|key| aside.key == key);
        let meant: Vec<&Aside> = asides.iter().filter(is_meant).collect();
        if let (true, None, Some(other)) = (meant.is_empty(), key, asides.first()) {
            return EventAnswer::Refused(Refusal::AnothersAside(other.by.clone()));
        }
        meant.into_iter().for_each(|aside| self.end_aside(card, aside, AsideOver::Asked));
        self.serve();
        EventAnswer::Done
    }

    fn end_aside(&mut self, card: GpuId, aside: &Aside, how: AsideOver) {
        let (by, key, at) = (aside.by.clone(), aside.key.clone(), self.now);
        self.emit(GpuAction::EndAside { gpu: card, by, key, at, how });
    }

    /// Ends the asides whose time is over.
    pub(super) fn end_asides(&mut self) {
        if self.state.next_aside_over().is_none_or(|over| over > self.now) || self.state.planted(Mutant::AsideForEver) {
            return;
        }
        self.end_asides_that(AsideOver::Time, |state, aside, now| state.aside_over(aside) <= now);
    }

    /// After a reboot no program is there for which a GPU would step aside.
    pub(super) fn end_asides_of_last_boot(&mut self) {
        self.end_asides_that(AsideOver::HostRebooted, |_, _, _| true);
    }

    fn end_asides_that(&mut self, how: AsideOver, is_over: impl Fn(&State, &Aside, Time) -> bool) {
        for card in self.state.gpus() {
            for aside in self.state.rows().gpus[card].aside.now.clone() {
                if is_over(self.state, &aside, self.now) {
                    self.end_aside(card, &aside, how);
                }
            }
        }
    }

    /// Parks what can be parked on GPUs that step aside: the cheapest first, as long as there is host memory.
    pub(super) fn clear_asides(&mut self) {
        let cards: Vec<GpuId> = self.state.gpus().filter(|card| self.state.is_aside(*card)).collect();
        for card in cards {
            let able = active_on(self.state, card).filter(|row| may_leave(self.state, row, self.now).is_ok());
            let price =
                |row: &Lease| Some(price_of_leaving(self.state, row, cheapest_method(self.state, row, self.now).ok()?));
            let mut able: Vec<_> = able.map(|row| (price(row), row.id)).collect();
            able.sort();
            for (_, lease) in able {
                let Some(row) = self.state.lease(lease) else { continue };
                let Phase::Active(hold) = &row.phase else { continue };
                let idle = self.now.since(idle_since(self.state, row, hold)) >= self.state.policy().parking.idle_after;
                // Another lease may have taken the host memory that this one needs: it stays, and is tried again.
                if let Ok(rung) = cheapest_method(self.state, row, self.now) {
                    let cause = if idle { ParkCause::Idle } else { ParkCause::Busy };
                    let aside = Some(card);
                    let order = ParkOrder { method: rung, cause, room_for: None, aside, with_context: false };
                    let _ = self.park_by(lease, order);
                }
            }
        }
    }
}
