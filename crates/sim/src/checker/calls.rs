//! What an event is, and what must be answered to it: rules 7, 18 and 19.

use super::aside::ExpectedAside;
use super::books::{CheckerBooks, HeldBook, LeaseBook, LeaseStage};
use super::enforce::WatchedStep;
use super::park::{HOOK, MoveStage};
use super::preempt::nothing_but_room;
use super::{Verdict, must};
use sublet_core::action::Action;
use sublet_core::event::{Caller, Event, EventAnswer, Refusal};
use sublet_core::facts::{DaemonEvent, GpuEvent, LeaseAction, LeaseEvent};
use sublet_core::ids::{Fence, LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::movers::MoverReport;
use sublet_core::reading::Reading;
use sublet_core::settings::Renewal;
use sublet_core::units::{Bytes, Span, Time};

/// What the checker needs of an event after core has taken it.
#[derive(Debug)]
pub enum EventCause {
    /// The daemon started: whether in a new boot, and its fence floor.
    Started(bool, u64),
    /// A request for a lease.
    Asked {
        /// The name of its tenant.
        tenant: String,
        /// True if the queue had a place for it.
        place: bool,
    },
    /// A call about a lease.
    LeaseCall(LeaseCallKind, LeaseId, ExpectedAnswer),
    /// A waiter or an exceeded lease accepts another size.
    Accepted(LeaseId, Bytes, u16, Option<Refusal>),
    /// A GPU was drained or cleared, with the answer that is right.
    Service(EventAnswer),
    /// A caller accepts a loss, with the answer that is right.
    LossAccepted(EventAnswer),
    /// A request about asides, with what must come of it.
    Aside(Box<ExpectedAside>),
    /// The UUIDs of the listed GPUs.
    Listed(Vec<String>),
    /// A GPU was read; true if it was lost for the second time.
    Observed(Option<usize>, bool),
    /// A lease was busy; true if it must be renewed for that.
    Worked(LeaseId, bool),
    /// The last process of a lease exited.
    HolderExited(LeaseId),
    /// A lease shall be parked, with the answer that is right.
    Park(LeaseId, ExpectedAnswer),
    /// A parked lease shall be resumed.
    Resume(LeaseId, ExpectedAnswer),
    /// A hint that a parked lease is used, and whether it counts.
    Hinted(LeaseId, bool),
    /// A program of a lease reported something.
    Reported(LeaseId, LeaseCallKind),
    /// The wrapper of a lease reported something.
    Hooked(LeaseId, LeaseCallKind),
    /// The wrapper of a lease with a hook is not among its processes.
    Unwrapped(LeaseId),
    /// An event about unleased processes.
    Unleased(Box<WatchedStep>),
    /// Time passed.
    Ticked,
    /// Any other event.
    Other,
}

/// What a call or a report says about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseCallKind {
    /// It is renewed.
    Renew,
    /// A process is bound to it.
    Bind,
    /// Its holder releases it.
    Release,
    /// An operator ends it.
    RevokeByOperator,
    /// It shall be parked.
    Park,
    /// It shall be resumed, or its programs need their GPUs.
    Resume,
    /// A program could not do what it was told.
    Refused,
    /// A program has more than was booked for it.
    Outgrown,
    /// A program lost its state.
    StateLost,
    /// A program died while it was being parked.
    DiedParking,
    /// A program reported its status.
    Status,
}

/// What must be answered to a call about a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpectedAnswer {
    /// This refusal, and nothing changes.
    Refusal(Refusal),
    /// Success; true if it must renew the lease.
    Yes(bool),
}

impl CheckerBooks {
    /// Takes an event before core does.
    pub fn cause(&mut self, now: Time, event: &Event) -> EventCause {
        self.first_before_room = None;
        match event {
            Event::Daemon(event) => self.cause_by_daemon(event),
            Event::Gpu(event) => self.cause_by_gpu(now, event),
            Event::Lease(event) => self.cause_by_lease(now, event),
            // No user in these worlds has a token.
            Event::Token(_) => EventCause::Other,
            Event::Unleased(event) => self.expect_unleased(now, event),
        }
    }

    fn cause_by_daemon(&mut self, event: &DaemonEvent) -> EventCause {
        match event {
            DaemonEvent::Started { boot, fence_floor: epoch_floor, .. } => {
                let rebooted = !self.boot.is_empty() && self.boot != *boot;
                self.boot.clone_from(boot);
                EventCause::Started(rebooted, epoch_floor.0)
            }
            DaemonEvent::HostMemoryRead { available } => {
                self.set_host_memory(*available);
                EventCause::Other
            }
            DaemonEvent::Configured(policy) => {
                self.policy = (**policy).clone();
                self.requeue();
                self.extend_time_limits();
                EventCause::Other
            }
            DaemonEvent::DiskFilled => {
                self.disk_full = true;
                EventCause::Other
            }
            DaemonEvent::DiskFreed => {
                self.disk_full = false;
                EventCause::Other
            }
            DaemonEvent::LossFound(loss) => {
                self.loss = Some(*loss);
                EventCause::Other
            }
            DaemonEvent::LossAccepted { by } => EventCause::LossAccepted(self.loss_accepted(by)),
            DaemonEvent::Awoke | DaemonEvent::DayRead { .. } => EventCause::Other,
            DaemonEvent::Ticked => EventCause::Ticked,
        }
    }

    fn cause_by_gpu(&mut self, now: Time, event: &GpuEvent) -> EventCause {
        match event {
            GpuEvent::DrainRequested { by, gpu: card } => EventCause::Service(self.expect_service(by, card)),
            GpuEvent::ClearRequested { by, gpu: card } => {
                let answer = self.expect_service(by, card);
                // A GPU that is not listed is not read again: the operator's call is all there is.
                if let Some(number) =
                    self.gpu_number(card).filter(|n| answer == EventAnswer::Done && !self.gpus[*n].listed)
                {
                    self.release_ended(number, now);
                }
                EventCause::Service(answer)
            }
            GpuEvent::AsideRequested { by, gpu: card, request: ask } => {
                EventCause::Aside(Box::new(self.expect_aside(now, by, card, ask)))
            }
            GpuEvent::AsideEndRequested { by, gpu: card, key } => {
                EventCause::Aside(Box::new(self.expect_aside_end(by, card, key.as_deref())))
            }
            GpuEvent::Listed(cards) => EventCause::Listed(cards.iter().map(|card| card.uuid.clone()).collect()),
            GpuEvent::ReadingTaken { gpu: card, reading: observation } => {
                let card = self.gpu_number(card);
                let lost = |books: &CheckerBooks| {
                    card.is_some_and(|n| books.gpus[n].reading == super::books::SeenReading::Lost)
                };
                let before = lost(self);
                let counts = card.is_some_and(|n| observation.begun >= self.gpus[n].reading_began);
                self.unleased.is_reading_compared = counts && matches!(observation.reading, Reading::Used(_));
                if let Some(number) = card {
                    self.take_reading(number, observation.begun, &observation.reading);
                }
                // A reading that began before the last one proves nothing.
                EventCause::Observed(card.filter(|_| counts), counts && before && lost(self))
            }
            GpuEvent::ModeRequested { by, gpu, mode } => self.expect_mode(by, gpu, *mode),
        }
    }

    fn cause_by_lease(&mut self, now: Time, event: &LeaseEvent) -> EventCause {
        match event {
            LeaseEvent::Requested { by, .. } => {
                EventCause::Asked { tenant: by.tenant.clone(), place: self.has_place(&by.tenant) }
            }
            LeaseEvent::RenewalRequested { by, lease, fence: epoch } => {
                self.expect_call(now, by, LeaseCallKind::Renew, *lease, Some(*epoch))
            }
            LeaseEvent::BindRequested { by, lease, fence: epoch, process } => {
                match self.expect_call(now, by, LeaseCallKind::Bind, *lease, Some(*epoch)) {
                    EventCause::LeaseCall(kind, lease, ExpectedAnswer::Yes(_)) => {
                        EventCause::LeaseCall(kind, lease, self.expect_bind(by, lease, process))
                    }
                    refused => refused,
                }
            }
            LeaseEvent::ReleaseRequested { by, lease, fence: epoch } => {
                let own = self.leases.get(lease).is_none_or(|book| self.tenants[book.tenant].name == by.tenant);
                self.expect_call(
                    now,
                    by,
                    if own { LeaseCallKind::Release } else { LeaseCallKind::RevokeByOperator },
                    *lease,
                    *epoch,
                )
            }
            LeaseEvent::ParkRequested { by, lease } => EventCause::Park(*lease, self.expect_park(now, by, *lease)),
            LeaseEvent::ResumeRequested { by, lease } => EventCause::Resume(*lease, self.expect_resume(by, *lease)),
            LeaseEvent::Hinted { lease, .. } => EventCause::Hinted(*lease, self.does_hint_count(now, *lease)),
            LeaseEvent::MoverReported { lease, method: rung, process, report: said } => {
                EventCause::Reported(*lease, self.take_report(now, *lease, *rung, *process, said))
            }
            LeaseEvent::HookReported { by, lease, fence: epoch, report: said } => {
                self.expect_hook_report(now, by, *lease, *epoch, said)
            }
            LeaseEvent::ProgramRead { .. } | LeaseEvent::IdleSeen { .. } => EventCause::Other,
            LeaseEvent::MembersRead { lease, processes, .. } => {
                self.set_members(*lease, processes);
                if self.is_unwrapped(*lease, processes) { EventCause::Unwrapped(*lease) } else { EventCause::Other }
            }
            LeaseEvent::UseSeen { lease } => self.note_worked(now, *lease),
            LeaseEvent::HolderExited { lease } => {
                self.set_members(*lease, &[]);
                EventCause::HolderExited(*lease)
            }
            LeaseEvent::SignalSent { lease, signal } => self.note_signal_sent(now, *lease, *signal),
            LeaseEvent::OfferAccepted { by, lease, vram, gpus } => {
                EventCause::Accepted(*lease, *vram, *gpus, self.expect_accept_refusal(by, *lease))
            }
        }
    }

    fn requeue(&mut self) {
        let waiting: Vec<LeaseId> = self.queue.iter().map(|(_, lease)| *lease).collect();
        self.queue.clear();
        self.tenants.iter_mut().for_each(|tenant| tenant.waiters.clear());
        for lease in waiting {
            if let Some(book) = self.leases.get(&lease) {
                let asked = book.queued_since().unwrap_or(book.requested_at);
                let (rank, tenant) = (self.rank(&book.request, asked), book.tenant);
                self.queue.insert((rank, lease));
                self.tenants[tenant].waiters.insert((rank, lease, asked));
            }
        }
    }

    fn has_place(&self, name: &str) -> bool {
        let own = self.tenants.iter().find(|tenant| tenant.name == name).map_or(0, |tenant| tenant.waiting);
        self.policy.caps_for(name, &[]).places.is_none_or(|places| own < places as usize)
            && self.queue.len() < self.policy.queue_max
    }

    fn expect_call(
        &self,
        now: Time,
        by: &Caller,
        kind: LeaseCallKind,
        lease: LeaseId,
        fence: Option<Fence>,
    ) -> EventCause {
        let visible = |book: &&LeaseBook| by.operator || self.tenants[book.tenant].name == by.tenant;
        let releases = matches!(kind, LeaseCallKind::Release | LeaseCallKind::RevokeByOperator);
        let expect = match self.leases.get(&lease).filter(visible) {
            None => ExpectedAnswer::Refusal(Refusal::NoSuchLease),
            Some(LeaseBook { stage: LeaseStage::Waiting(_), .. }) if !releases => {
                ExpectedAnswer::Refusal(Refusal::StillWaiting)
            }
            Some(LeaseBook { stage: LeaseStage::Ending(..), .. }) if !releases => {
                ExpectedAnswer::Refusal(Refusal::Ended)
            }
            Some(book) => match (&book.stage, fence) {
                (LeaseStage::Held(held) | LeaseStage::Park(held, _), Some(given)) if given != held.fence => {
                    ExpectedAnswer::Refusal(Refusal::Fenced { given, current: held.fence })
                }
                (LeaseStage::Held(held), _) => {
                    let longer = now + book.request.term.span() > held.until;
                    let free = self.queue.is_empty() && !self.is_draining(held);
                    let renews =
                        kind == LeaseCallKind::Renew && !book.bound && !book.has_fixed_term() && longer && free;
                    ExpectedAnswer::Yes(renews)
                }
                _ => ExpectedAnswer::Yes(false),
            },
        };
        EventCause::LeaseCall(kind, lease, expect)
    }

    /// Whether a process may be bound to a lease: not while its own lease is parking, parked or resuming.
    fn expect_bind(&self, by: &Caller, lease: LeaseId, process: &ProcKey) -> ExpectedAnswer {
        if self.leases.get(&lease).is_some_and(|book| book.roots.contains(process)) {
            return ExpectedAnswer::Yes(false);
        }
        let owner = self.owners.get(process);
        let mut trips = self.moving.iter().filter(|other| **other != lease).filter_map(|other| self.leases.get(other));
        let has = |book: &&LeaseBook| match owner {
            _ if self.is_moved_by_driver(book, process) => true,
            Some(owner) => *owner == book.id,
            None => book.roots.contains(process),
        };
        match trips.find(has) {
            None => ExpectedAnswer::Yes(false),
            Some(book) => {
                let visible = by.operator || self.tenants[book.tenant].name == by.tenant;
                ExpectedAnswer::Refusal(Refusal::ProcessAway(visible.then_some(book.id)))
            }
        }
    }

    /// A report of a wrapper about its hook. One that comes too late, or twice, changes nothing.
    fn expect_hook_report(
        &mut self,
        now: Time,
        by: &Caller,
        lease: LeaseId,
        fence: Fence,
        said: &MoverReport,
    ) -> EventCause {
        let call = self.expect_call(now, by, LeaseCallKind::Status, lease, Some(fence));
        if !matches!(call, EventCause::LeaseCall(_, _, ExpectedAnswer::Yes(_))) {
            return call;
        }
        let has_hook = !self.movers_of(lease, Method::Hook).is_empty();
        let due = match self.leases.get(&lease).map(|book| &book.stage) {
            Some(LeaseStage::Park(_, park)) => match (park.stage, said) {
                (MoveStage::Leaving, MoverReport::Parked(_) | MoverReport::Refused(_)) => {
                    park.method == Method::Hook && has_hook
                }
                (MoveStage::Returning, MoverReport::Resumed | MoverReport::Refused(_)) => {
                    park.method == Method::Hook && has_hook
                }
                (MoveStage::Parked, MoverReport::Used) => true,
                _ => false,
            },
            _ => false,
        };
        if due { EventCause::Hooked(lease, self.take_report(now, lease, Method::Hook, HOOK, said)) } else { call }
    }

    /// Why another size cannot be accepted, whatever is free.
    fn expect_accept_refusal(&self, by: &Caller, lease: LeaseId) -> Option<Refusal> {
        let visible = |book: &&LeaseBook| by.operator || self.tenants[book.tenant].name == by.tenant;
        match self.leases.get(&lease).filter(visible).map(|book| &book.stage) {
            None => Some(Refusal::NoSuchLease),
            Some(LeaseStage::Held(held)) if held.overuse.is_some() => self.stopped(),
            Some(LeaseStage::Held(_) | LeaseStage::Park(..)) => Some(Refusal::NotWaiting),
            Some(LeaseStage::Ending(..)) => Some(Refusal::Ended),
            Some(LeaseStage::Waiting(_)) => self.stopped(),
        }
    }

    fn expect_service(&self, by: &Caller, gpu: &str) -> EventAnswer {
        match self.gpu_number(gpu) {
            _ if !by.operator => EventAnswer::Refused(Refusal::NotOperator),
            None => EventAnswer::Refused(Refusal::NoSuchCard),
            Some(_) => EventAnswer::Done,
        }
    }

    /// True if a GPU of the lease is drained.
    fn is_draining(&self, held: &HeldBook) -> bool {
        held.gpus.iter().any(|gpu| self.gpus[*gpu].draining)
    }

    fn note_worked(&mut self, now: Time, lease: LeaseId) -> EventCause {
        let drains = self.leases.get(&lease).and_then(LeaseBook::held).is_some_and(|held| self.is_draining(held));
        let no_waiter = self.queue.is_empty() && !drains;
        let (_, surely) = self.renewal_window(lease);
        let Some(book) = self.leases.get_mut(&lease) else { return EventCause::Worked(lease, false) };
        (book.worked, book.worked_at) = (true, now);
        if matches!(book.stage, LeaseStage::Held(_)) {
            book.hints = (Time::ZERO, 0);
        }
        let due = match &book.stage {
            LeaseStage::Held(held) => now >= held.renewed + surely && now + book.request.term.span() > held.until,
            _ => false,
        };
        EventCause::Worked(lease, due && !book.has_fixed_term() && no_waiter)
    }

    /// After how long since its last renewal a busy lease may be renewed, and must be.
    pub fn renewal_window(&self, lease: LeaseId) -> (Span, Span) {
        let Some(book) = self.leases.get(&lease) else { return (Span::ZERO, Span::ZERO) };
        let term = book.request.term.span();
        match self.policy.renewal {
            Renewal::At { percent, jitter } => {
                let (percent, jitter) = (u64::from(percent), u64::from(jitter));
                (term.percent(percent - jitter), term.percent(percent + jitter))
            }
            Renewal::Below { percent } => {
                let at = term.percent(100 - u64::from(percent));
                (at, at)
            }
            Renewal::Every(span) => {
                let at = span.min(term.percent(90));
                (at, at)
            }
        }
    }

    /// Checks an answer.
    pub fn check_answer(&self, cause: &EventCause, answer: &EventAnswer, actions: &[Action]) -> Verdict {
        let idle = || nothing_but_room(actions);
        match cause {
            EventCause::LeaseCall(kind, lease, ExpectedAnswer::Refusal(refusal)) => {
                let rule = match refusal {
                    Refusal::NoSuchLease => 18,
                    Refusal::ProcessAway(_) => 2,
                    _ => 7,
                };
                let right = *answer == EventAnswer::Refused(refusal.clone());
                must(rule, right, || format!("{kind:?} {lease} is answered {answer:?} instead of {refusal:?}"))?;
                must(rule, idle(), || format!("{kind:?} {lease} is refused, but {actions:?}"))
            }
            EventCause::LeaseCall(kind, lease, ExpectedAnswer::Yes(renews)) => {
                must(0, *answer == EventAnswer::Lease(*lease), || format!("{kind:?} {lease} is answered {answer:?}"))?;
                let renewed = |action: &Action| matches!(action, Action::Lease(LeaseAction::Renew { .. }));
                must(8, !renews || actions.iter().any(renewed), || format!("{lease} was not renewed by its call"))
            }
            EventCause::Service(right) => {
                must(18, answer == right, || format!("answered {answer:?} instead of {right:?}"))?;
                must(18, *right == EventAnswer::Done || idle(), || format!("refused, but {actions:?}"))
            }
            EventCause::LossAccepted(right) => {
                must(18, answer == right, || format!("answered {answer:?} instead of {right:?}"))?;
                let accepted = matches!(right, EventAnswer::LossAccepted(_));
                must(18, accepted || idle(), || format!("refused, but {actions:?}"))
            }
            EventCause::Aside(expected) => self.check_aside_answer(expected, answer, actions),
            EventCause::Accepted(lease, vram, gpus, refusal) => {
                let granted = |action: &Action| matches!(action, Action::Lease(LeaseAction::Grant { lease: of, .. } | LeaseAction::Enlarge { lease: of, .. }) if of == lease);
                let refused = matches!(answer, EventAnswer::Refused(_));
                let right = refusal.as_ref().is_none_or(|refusal| *answer == EventAnswer::Refused(refusal.clone()));
                must(18, right, || {
                    format!("{lease} accepts another size and is answered {answer:?}, not {refusal:?}")
                })?;
                must(1, refused || actions.iter().any(granted), || {
                    format!("{lease} accepts {vram} of {gpus} GPUs and is granted nothing: {actions:?}")
                })?;
                must(18, refusal.is_none() || idle(), || format!("{lease} is refused another size, but {actions:?}"))
            }
            EventCause::Hooked(lease, _) => {
                must(0, *answer == EventAnswer::Lease(*lease), || format!("the hook of {lease} is answered {answer:?}"))
            }
            EventCause::Park(lease, expect) => self.check_park_answer(*lease, expect, answer, actions),
            EventCause::Resume(lease, ExpectedAnswer::Refusal(refusal)) => {
                let rule = if *refusal == Refusal::NoSuchLease { 18 } else { 7 };
                let right = *answer == EventAnswer::Refused(refusal.clone());
                must(rule, right, || format!("resuming {lease} is answered {answer:?} instead of {refusal:?}"))?;
                must(rule, idle(), || format!("resuming {lease} is refused, but {actions:?}"))
            }
            EventCause::Resume(lease, ExpectedAnswer::Yes(_)) => {
                must(0, *answer == EventAnswer::Lease(*lease), || format!("resuming {lease} is answered {answer:?}"))
            }
            EventCause::Unleased(watched) => self.check_unleased_answer(watched, answer, actions),
            EventCause::Asked { place, .. } => self.check_request_answer(*place, answer, actions),
            _ => Ok(()),
        }
    }

    fn check_request_answer(&self, place: bool, answer: &EventAnswer, actions: &[Action]) -> Verdict {
        let queued = actions.iter().find_map(|action| match action {
            Action::Lease(LeaseAction::Queue { lease, .. }) => Some(*lease),
            _ => None,
        });
        must(19, place || queued.is_none(), || format!("{queued:?} was queued beyond the bounds"))?;
        must(11, !self.is_stopped() || queued.is_none(), || {
            format!("{queued:?} was queued while nothing may be granted")
        })?;
        match (answer, queued) {
            (EventAnswer::Lease(told), Some(queued)) => {
                must(0, *told == queued, || format!("{told} was answered for {queued}"))
            }
            (EventAnswer::Refused(_), None) => Ok(()),
            (EventAnswer::Refused(_), Some(queued)) => {
                // Other leases were served while it was in the queue, which the log cannot tell without it.
                let others = actions.iter().any(|action| action.lease().is_some_and(|lease| lease != queued));
                must(19, others, || format!("a refused request left {queued} in the log: {actions:?}"))
            }
            _ => must(10, false, || format!("a request was answered {answer:?} with {actions:?}")),
        }
    }
}
