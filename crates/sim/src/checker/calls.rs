//! What an event is, and what must be answered to it: rules 7, 18 and 19.

use super::aside::ExpectedAside;
use super::books::{CheckerBooks, HeldBook, LeaseBook, LeaseStage};
use super::enforce::WatchedStep;
use super::park::{HOOK, MoveWay};
use super::preempt::nothing_but_room;
use super::{Verdict, must};
use sublet_core::action::Action;
use sublet_core::event::{Caller, Event, EventAnswer, Refusal};
use sublet_core::facts::{DaemonEvent, GpuEvent, LeaseAction, LeaseEvent};
use sublet_core::ids::{Fence, LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::parking::MoverReport;
use sublet_core::policy::Renewal;
use sublet_core::reading::Reading;
use sublet_core::units::{Bytes, Span, Time};

/// An event, as far as the checker needs it once core has it.
#[derive(Debug)]
pub enum EventCause {
    /// The daemon started; in a new boot or not; with this floor.
    Started(bool, u64),
    /// An ask: whose, whether it would wait, and whether there was a place for it.
    Asked {
        /// The name it was asked under.
        tenant: String,
        /// The queue had a place for it.
        place: bool,
    },
    /// A call about a lease.
    Call(CallWord, LeaseId, ExpectedAnswer),
    /// A waiter would take less.
    Accepted(LeaseId, Bytes, u16, Option<Refusal>),
    /// A card was drained or cleared, with what must be answered.
    Service(EventAnswer),
    /// A caller accepts a loss, with what must be answered.
    LossAccepted(EventAnswer),
    /// A request about asides, with what must come of it.
    Aside(Box<ExpectedAside>),
    /// These cards are listed, by UUID.
    Listed(Vec<String>),
    /// A card was looked at; it was lost for the second time.
    Observed(Option<usize>, bool),
    /// A holder worked; it must be renewed by that.
    Worked(LeaseId, bool),
    /// A holder's last process exited.
    Gone(LeaseId),
    /// A holder shall be parked: why it cannot be, or whether it may have been refused.
    Park(LeaseId, ExpectedAnswer),
    /// A parked holder shall have its cards again.
    Resume(LeaseId, ExpectedAnswer),
    /// A hint that a parked lease is used, and whether it may count.
    Hinted(LeaseId, bool),
    /// A program of a lease's said something.
    Said(LeaseId, CallWord),
    /// The wrapper of a lease did.
    Hooked(LeaseId, CallWord),
    /// The wrapper of a lease with a hook is not among its processes.
    Unwrapped(LeaseId),
    /// Something about strangers.
    Watched(Box<WatchedStep>),
    /// Time passed.
    Ticked,
    /// Something else.
    Other,
}

/// What was said about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallWord {
    /// It goes on.
    Renew,
    /// A process belongs to it.
    Bind,
    /// It is given back.
    Release,
    /// An operator takes it.
    Revoke,
    /// Its bytes shall leave its cards.
    Park,
    /// They shall come back, or its programs need them.
    Resume,
    /// One of its programs could not do what it was told.
    Refuse,
    /// One of its programs has more than was booked for it.
    Outgrow,
    /// One of its programs will never be back.
    Lose,
    /// One of its programs died while it was being parked.
    Die,
    /// One of its programs said how it stands.
    Tell,
}

/// What must be answered to a call about a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpectedAnswer {
    /// This refusal, and nothing changes.
    Refusal(Refusal),
    /// Yes; and it must be renewed by it.
    Yes(bool),
}

impl CheckerBooks {
    /// Takes in an event before core does.
    pub fn cause(&mut self, now: Time, event: &Event) -> EventCause {
        self.made_first = None;
        match event {
            Event::Daemon(event) => self.cause_by_daemon(event),
            Event::Gpu(event) => self.cause_by_gpu(now, event),
            Event::Lease(event) => self.cause_by_lease(now, event),
            // No user in these worlds has a token.
            Event::Token(_) => EventCause::Other,
            Event::Unleased(event) => self.watched(now, event),
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
                self.read_ram(*available);
                EventCause::Other
            }
            DaemonEvent::Configured(policy) => {
                self.policy = (**policy).clone();
                self.requeue();
                self.allow_trips();
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
            GpuEvent::DrainRequested { by, gpu: card } => EventCause::Service(self.service(by, card)),
            GpuEvent::ClearRequested { by, gpu: card } => {
                let answer = self.service(by, card);
                // A card that is gone is not seen again: the operator's word is all there is.
                if let Some(number) = self.card(card).filter(|n| answer == EventAnswer::Done && !self.cards[*n].listed)
                {
                    self.seen_again(number, now);
                }
                EventCause::Service(answer)
            }
            GpuEvent::AsideRequested { by, gpu: card, request: ask } => {
                EventCause::Aside(Box::new(self.aside_asked(now, by, card, ask)))
            }
            GpuEvent::AsideEndRequested { by, gpu: card, key } => {
                EventCause::Aside(Box::new(self.aside_end_asked(by, card, key.as_deref())))
            }
            GpuEvent::Listed(cards) => EventCause::Listed(cards.iter().map(|card| card.uuid.clone()).collect()),
            GpuEvent::ReadingTaken { gpu: card, reading: observation } => {
                let card = self.card(card);
                let lost =
                    |books: &CheckerBooks| card.is_some_and(|n| books.cards[n].look == super::books::SeenReading::Lost);
                let before = lost(self);
                let counts = card.is_some_and(|n| observation.begun >= self.cards[n].begun);
                self.watch.is_compared = counts && matches!(observation.reading, Reading::Used(_));
                if let Some(number) = card {
                    self.observe(number, observation.begun, &observation.reading);
                }
                // A look that began before the last one tells nothing.
                EventCause::Observed(card.filter(|_| counts), counts && before && lost(self))
            }
            GpuEvent::ModeRequested { by, gpu, mode } => self.mode_asked(by, gpu, *mode),
        }
    }

    fn cause_by_lease(&mut self, now: Time, event: &LeaseEvent) -> EventCause {
        match event {
            LeaseEvent::Requested { by, .. } => {
                EventCause::Asked { tenant: by.tenant.clone(), place: self.has_place(&by.tenant) }
            }
            LeaseEvent::RenewalRequested { by, lease, fence: epoch } => {
                self.call(now, by, CallWord::Renew, *lease, Some(*epoch))
            }
            LeaseEvent::BindRequested { by, lease, fence: epoch, process } => {
                match self.call(now, by, CallWord::Bind, *lease, Some(*epoch)) {
                    EventCause::Call(word, lease, ExpectedAnswer::Yes(_)) => {
                        EventCause::Call(word, lease, self.bindable(by, lease, process))
                    }
                    refused => refused,
                }
            }
            LeaseEvent::ReleaseRequested { by, lease, fence: epoch } => {
                let own = self.leases.get(lease).is_none_or(|book| self.tenants[book.tenant].name == by.tenant);
                self.call(now, by, if own { CallWord::Release } else { CallWord::Revoke }, *lease, *epoch)
            }
            LeaseEvent::ParkRequested { by, lease } => EventCause::Park(*lease, self.park_asked(now, by, *lease)),
            LeaseEvent::ResumeRequested { by, lease } => EventCause::Resume(*lease, self.resume_asked(by, *lease)),
            LeaseEvent::Hinted { lease, .. } => EventCause::Hinted(*lease, self.hinted(now, *lease)),
            LeaseEvent::MoverReported { lease, method: rung, process, report: said } => {
                EventCause::Said(*lease, self.heard(now, *lease, *rung, *process, said))
            }
            LeaseEvent::HookReported { by, lease, fence: epoch, report: said } => {
                self.hooked(now, by, *lease, *epoch, said)
            }
            LeaseEvent::ProgramRead { .. } | LeaseEvent::IdleSeen { .. } => EventCause::Other,
            LeaseEvent::MembersRead { lease, processes, .. } => {
                self.set_members(*lease, processes);
                if self.is_unwrapped(*lease, processes) { EventCause::Unwrapped(*lease) } else { EventCause::Other }
            }
            LeaseEvent::UseSeen { lease } => self.worked(now, *lease),
            LeaseEvent::HolderExited { lease } => {
                self.set_members(*lease, &[]);
                EventCause::Gone(*lease)
            }
            LeaseEvent::SignalSent { lease, signal } => self.signalled(now, *lease, *signal),
            LeaseEvent::OfferAccepted { by, lease, vram, gpus } => {
                EventCause::Accepted(*lease, *vram, *gpus, self.unacceptable(by, *lease))
            }
        }
    }

    fn requeue(&mut self) {
        let waiting: Vec<LeaseId> = self.queue.iter().map(|(_, lease)| *lease).collect();
        self.queue.clear();
        self.tenants.iter_mut().for_each(|tenant| tenant.line.clear());
        for lease in waiting {
            if let Some(book) = self.leases.get(&lease) {
                let asked = book.queued().unwrap_or(book.asked);
                let (rank, tenant) = (self.rank(&book.ask, asked), book.tenant);
                self.queue.insert((rank, lease));
                self.tenants[tenant].line.insert((rank, lease, asked));
            }
        }
    }

    fn has_place(&self, name: &str) -> bool {
        let own = self.tenants.iter().find(|tenant| tenant.name == name).map_or(0, |tenant| tenant.waiting);
        self.policy.caps_for(name, &[]).places.is_none_or(|places| own < places as usize)
            && self.queue.len() < self.policy.queue_max
    }

    fn call(&self, now: Time, by: &Caller, word: CallWord, lease: LeaseId, epoch: Option<Fence>) -> EventCause {
        let visible = |book: &&LeaseBook| by.operator || self.tenants[book.tenant].name == by.tenant;
        let releases = matches!(word, CallWord::Release | CallWord::Revoke);
        let expect = match self.leases.get(&lease).filter(visible) {
            None => ExpectedAnswer::Refusal(Refusal::NoSuchLease),
            Some(LeaseBook { at: LeaseStage::Waiting(_), .. }) if !releases => {
                ExpectedAnswer::Refusal(Refusal::StillWaiting)
            }
            Some(LeaseBook { at: LeaseStage::Ending(..), .. }) if !releases => ExpectedAnswer::Refusal(Refusal::Ended),
            Some(book) => match (&book.at, epoch) {
                (LeaseStage::Held(held) | LeaseStage::Away(held, _), Some(given)) if given != held.epoch => {
                    ExpectedAnswer::Refusal(Refusal::Fenced { given, current: held.epoch })
                }
                (LeaseStage::Held(held), _) => {
                    let longer = now + book.ask.term.span() > held.until;
                    let free = self.queue.is_empty() && !self.drains(held);
                    let renews = word == CallWord::Renew && !book.bound && !book.fixed() && longer && free;
                    ExpectedAnswer::Yes(renews)
                }
                _ => ExpectedAnswer::Yes(false),
            },
        };
        EventCause::Call(word, lease, expect)
    }

    /// Whether a process may be bound to a lease: not while its own has left its cards, or is on its way.
    fn bindable(&self, by: &Caller, lease: LeaseId, process: &ProcKey) -> ExpectedAnswer {
        if self.leases.get(&lease).is_some_and(|book| book.roots.contains(process)) {
            return ExpectedAnswer::Yes(false);
        }
        let owner = self.owners.get(process);
        let mut trips = self.trips.iter().filter(|other| **other != lease).filter_map(|other| self.leases.get(other));
        let has = |book: &&LeaseBook| match owner {
            _ if self.moves(book, process) => true,
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

    /// The wrapper of a holder says how its hook went. What it says too late, or twice, changes nothing.
    fn hooked(&mut self, now: Time, by: &Caller, lease: LeaseId, epoch: Fence, said: &MoverReport) -> EventCause {
        let call = self.call(now, by, CallWord::Tell, lease, Some(epoch));
        if !matches!(call, EventCause::Call(_, _, ExpectedAnswer::Yes(_))) {
            return call;
        }
        let has_hook = !self.voices(lease, Method::Hook).is_empty();
        let due = match self.leases.get(&lease).map(|book| &book.at) {
            Some(LeaseStage::Away(_, trip)) => match (trip.way, said) {
                (MoveWay::Out, MoverReport::Parked(_) | MoverReport::Refused(_)) => {
                    trip.rung == Method::Hook && has_hook
                }
                (MoveWay::Back, MoverReport::Resumed | MoverReport::Refused(_)) => {
                    trip.rung == Method::Hook && has_hook
                }
                (MoveWay::Gone, MoverReport::Used) => true,
                _ => false,
            },
            _ => false,
        };
        if due { EventCause::Hooked(lease, self.heard(now, lease, Method::Hook, HOOK, said)) } else { call }
    }

    /// Why nobody could take less, whatever is free.
    fn unacceptable(&self, by: &Caller, lease: LeaseId) -> Option<Refusal> {
        let visible = |book: &&LeaseBook| by.operator || self.tenants[book.tenant].name == by.tenant;
        match self.leases.get(&lease).filter(visible).map(|book| &book.at) {
            None => Some(Refusal::NoSuchLease),
            Some(LeaseStage::Held(held)) if held.over.is_some() => self.stopped(),
            Some(LeaseStage::Held(_) | LeaseStage::Away(..)) => Some(Refusal::NotWaiting),
            Some(LeaseStage::Ending(..)) => Some(Refusal::Ended),
            Some(LeaseStage::Waiting(_)) => self.stopped(),
        }
    }

    fn service(&self, by: &Caller, card: &str) -> EventAnswer {
        match self.card(card) {
            _ if !by.operator => EventAnswer::Refused(Refusal::NotOperator),
            None => EventAnswer::Refused(Refusal::NoSuchCard),
            Some(_) => EventAnswer::Done,
        }
    }

    /// Whether a card of its is to run empty.
    fn drains(&self, held: &HeldBook) -> bool {
        held.cards.iter().any(|card| self.cards[*card].draining)
    }

    fn worked(&mut self, now: Time, lease: LeaseId) -> EventCause {
        let drains = self.leases.get(&lease).and_then(LeaseBook::held).is_some_and(|held| self.drains(held));
        let nobody_waits = self.queue.is_empty() && !drains;
        let (_, surely) = self.renewal_window(lease);
        let Some(book) = self.leases.get_mut(&lease) else { return EventCause::Worked(lease, false) };
        (book.worked, book.worked_at) = (true, now);
        if matches!(book.at, LeaseStage::Held(_)) {
            book.hints = (Time::ZERO, 0);
        }
        let due = match &book.at {
            LeaseStage::Held(held) => now >= held.renewed + surely && now + book.ask.term.span() > held.until,
            _ => false,
        };
        EventCause::Worked(lease, due && !book.fixed() && nobody_waits)
    }

    /// How long after its last renewal a used lease may be renewed, and surely is.
    pub fn renewal_window(&self, lease: LeaseId) -> (Span, Span) {
        let Some(book) = self.leases.get(&lease) else { return (Span::ZERO, Span::ZERO) };
        let term = book.ask.term.span();
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

    /// Whether the answer is what the books say.
    pub fn answered(&self, cause: &EventCause, answer: &EventAnswer, actions: &[Action]) -> Verdict {
        let idle = || nothing_but_room(actions);
        match cause {
            EventCause::Call(word, lease, ExpectedAnswer::Refusal(refusal)) => {
                let rule = match refusal {
                    Refusal::NoSuchLease => 18,
                    Refusal::ProcessAway(_) => 2,
                    _ => 7,
                };
                let right = *answer == EventAnswer::Refused(refusal.clone());
                must(rule, right, || format!("{word:?} {lease} is answered {answer:?} instead of {refusal:?}"))?;
                must(rule, idle(), || format!("{word:?} {lease} is refused, and yet {actions:?}"))
            }
            EventCause::Call(word, lease, ExpectedAnswer::Yes(renews)) => {
                must(0, *answer == EventAnswer::Lease(*lease), || format!("{word:?} {lease} is answered {answer:?}"))?;
                let renewed = |action: &Action| matches!(action, Action::Lease(LeaseAction::Renew { .. }));
                must(8, !renews || actions.iter().any(renewed), || format!("{lease} was not renewed by its word"))
            }
            EventCause::Service(right) => {
                must(18, answer == right, || format!("answered {answer:?} instead of {right:?}"))?;
                must(18, *right == EventAnswer::Done || idle(), || format!("refused, and yet {actions:?}"))
            }
            EventCause::LossAccepted(right) => {
                must(18, answer == right, || format!("answered {answer:?} instead of {right:?}"))?;
                let accepted = matches!(right, EventAnswer::LossAccepted(_));
                must(18, accepted || idle(), || format!("refused, and yet {actions:?}"))
            }
            EventCause::Aside(expected) => self.answered_aside(expected, answer, actions),
            EventCause::Accepted(lease, vram, gpus, refusal) => {
                let granted = |action: &Action| matches!(action, Action::Lease(LeaseAction::Grant { lease: of, .. } | LeaseAction::Enlarge { lease: of, .. }) if of == lease);
                let refused = matches!(answer, EventAnswer::Refused(_));
                let right = refusal.as_ref().is_none_or(|refusal| *answer == EventAnswer::Refused(refusal.clone()));
                must(18, right, || format!("{lease} would take less and is answered {answer:?}, not {refusal:?}"))?;
                must(1, refused || actions.iter().any(granted), || {
                    format!("{lease} takes {vram} of {gpus} cards and is granted nothing: {actions:?}")
                })?;
                must(18, refusal.is_none() || idle(), || format!("{lease} is refused less, and yet {actions:?}"))
            }
            EventCause::Hooked(lease, _) => {
                must(0, *answer == EventAnswer::Lease(*lease), || format!("the hook of {lease} is answered {answer:?}"))
            }
            EventCause::Park(lease, expect) => self.answered_park(*lease, expect, answer, actions),
            EventCause::Resume(lease, ExpectedAnswer::Refusal(refusal)) => {
                let rule = if *refusal == Refusal::NoSuchLease { 18 } else { 7 };
                let right = *answer == EventAnswer::Refused(refusal.clone());
                must(rule, right, || format!("resuming {lease} is answered {answer:?} instead of {refusal:?}"))?;
                must(rule, idle(), || format!("resuming {lease} is refused, and yet {actions:?}"))
            }
            EventCause::Resume(lease, ExpectedAnswer::Yes(_)) => {
                must(0, *answer == EventAnswer::Lease(*lease), || format!("resuming {lease} is answered {answer:?}"))
            }
            EventCause::Watched(watched) => self.answered_watched(watched, answer, actions),
            EventCause::Asked { place, .. } => self.asked(*place, answer, actions),
            _ => Ok(()),
        }
    }

    fn asked(&self, place: bool, answer: &EventAnswer, actions: &[Action]) -> Verdict {
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
                must(0, *told == queued, || format!("{told} was told for {queued}"))
            }
            (EventAnswer::Refused(_), None) => Ok(()),
            (EventAnswer::Refused(_), Some(queued)) => {
                // Others were served while it was in the queue: that cannot be told without it.
                let others = actions.iter().any(|action| action.lease().is_some_and(|lease| lease != queued));
                must(19, others, || format!("a refused request left {queued} in the log: {actions:?}"))
            }
            _ => must(10, false, || format!("an ask was answered {answer:?} with {actions:?}")),
        }
    }
}
