//! Rules 16 and 20: a lease that is ended for a waiter chose that, is told first, gets SIGTERM before SIGKILL, and
//! counts as long as one of its processes is there.

use super::books::{CheckerBooks, HeldBook, LeaseBook, LeaseStage, SeenReading};
use super::calls::EventCause;
use super::{Verdict, must};
use sublet_core::facts::LeaseAction;
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::request::{LeaseRequest, Preempt, Tier};
use sublet_core::rows::{EndNotice, GpuService};
use sublet_core::units::Time;

const TERM: u8 = 15;
const KILL: u8 = 9;

/// The state of an end for a waiter.
#[derive(Clone, Copy, Debug)]
pub struct PendingEnd {
    /// The last signal.
    pub signal: Option<u8>,
    /// The next signal may come from this time on.
    pub next_from: Time,
    /// True if this daemon sent the signal: what an earlier one meant to send may not have arrived.
    pub is_ours: bool,
}

/// True if a request allows to be ended for a waiter.
pub fn may_be_ended(request: &LeaseRequest) -> bool {
    matches!((request.preempt, request.tier), (Preempt::End, _) | (Preempt::Usual, Tier::Spot))
}

impl CheckerBooks {
    /// Takes the notice that a lease will be ended.
    pub fn take_notice(&mut self, now: Time, cause: &EventCause, lease: LeaseId, action: &LeaseAction) -> Verdict {
        let LeaseAction::GiveNotice { at, until, room_for, .. } = action else { return Ok(()) };
        let Some(book) = self.leases.get(&lease) else { return must(20, false, || format!("no {lease} to tell")) };
        let over = !may_be_ended(&book.request) && self.is_end_due(now, book);
        must(20, over || may_be_ended(&book.request), || {
            format!("{lease} is told that it ends, and did not choose that: {:?}", book.request)
        })?;
        let other = self.leases.get(room_for).map(|other| (other.request.tier, -i16::from(other.request.priority)));
        let above = other.is_some_and(|other| other < (book.request.tier, -i16::from(book.request.priority)));
        must(20, over || above, || format!("{lease} is told that it ends for {room_for}, which is not more urgent"))?;
        self.check_preempted(now, cause, book, Some(*room_for), false)?;
        let told = book.held().and_then(|held| held.notice);
        must(5, told.is_none(), || format!("{lease} is told twice that it ends"))?;
        let before = book.request.notice.map(|notice| notice.before).unwrap_or_default();
        must(20, *at == now && *until == now + before, || format!("{action:?}, and it asked for {before:?}"))?;
        self.set_notice(lease, Some(*until));
        Ok(())
    }

    /// Takes the notice that a fixed term is over soon.
    pub fn take_term_notice(&mut self, now: Time, cause: &EventCause, lease: LeaseId, action: &LeaseAction) -> Verdict {
        let LeaseAction::GiveNotice { at, until, .. } = action else { return Ok(()) };
        let book = self.leases.get(&lease);
        let held = book.and_then(|book| match &book.stage {
            LeaseStage::Held(held) => Some((book, held)),
            _ => None,
        });
        let Some((book, held)) = held else { return must(20, false, || format!("no {lease} to tell")) };
        must(17, matches!(cause, EventCause::Ticked), || format!("{lease} is told of its term after {cause:?}"))?;
        let before = book.request.notice.map(|notice| notice.before);
        must(20, book.has_fixed_term() && before.is_some(), || {
            format!("{lease} is told of its term, and did not choose that: {:?}", book.request)
        })?;
        must(5, held.notice.is_none(), || format!("{lease} is told twice that it ends"))?;
        let over = self.deadline(held.renewed, held.until);
        let from = over - before.unwrap_or_default();
        must(20, *at == now && *until == over && from <= now, || format!("{action:?} at {now}: {held:?}"))?;
        // The end of a term is checked like any other.
        if let Some(LeaseBook { stage: LeaseStage::Held(held), .. }) = self.leases.get_mut(&lease) {
            held.notice = Some(EndNotice::Term { term_over: *until });
        }
        Ok(())
    }

    /// Takes the order that a lease need not end after all.
    pub fn take_spare(&mut self, now: Time, cause: &EventCause, lease: LeaseId) -> Verdict {
        let book = self.leases.get(&lease);
        let held = book.and_then(|book| match &book.stage {
            LeaseStage::Held(held) => Some((book.tenant, held)),
            _ => None,
        });
        let Some((tenant, held)) = held.filter(|(_, held)| held.for_others().is_some_and(|notice| notice <= now))
        else {
            return must(20, false, || format!("{lease} is spared, and was not to end: {book:?}"));
        };
        must(20, matches!(cause, EventCause::Ticked), || format!("{lease} is spared after {cause:?}"))?;
        let wanted = self.wanted(tenant, &held.gpus);
        let stays = book.is_some_and(|book| !may_be_ended(&book.request) && !self.is_end_due(now, book));
        must(9, stays || !wanted.freely, || format!("{lease} is spared, and a waiter needs its GPUs"))?;
        self.set_notice(lease, None);
        Ok(())
    }

    fn set_notice(&mut self, lease: LeaseId, notice: Option<Time>) {
        if let Some(LeaseBook { stage: LeaseStage::Held(held), .. }) = self.leases.get_mut(&lease) {
            held.notice = notice.map(EndNotice::ForOthers);
        }
        match notice {
            Some(_) => drop(self.told_to_end.insert(lease)),
            None => drop(self.told_to_end.remove(&lease)),
        }
    }

    /// Checks that a lease may be ended for a waiter now.
    pub fn check_preemption(&self, now: Time, cause: &EventCause, lease: LeaseId, book: &LeaseBook) -> Verdict {
        let LeaseStage::Held(held) = &book.stage else {
            return must(20, false, || format!("{lease} ends for a waiter, and it is {:?}", book.stage));
        };
        must(20, may_be_ended(&book.request), || {
            format!("{lease} ends for a waiter, and did not choose that: {:?}", book.request)
        })?;
        let at_once = held.for_others() == Some(now) && book.request.notice.is_none();
        let told = held.for_others().is_some_and(|notice| notice <= now && !self.in_grace(now, notice));
        must(20, at_once || told, || format!("{lease} ends for a waiter at {now}, and was told {:?}", held.notice))?;
        must(17, at_once || matches!(cause, EventCause::Ticked), || {
            format!("{lease} ends for a waiter after {cause:?}")
        })?;
        let wanted = self.wanted(book.tenant, &held.gpus);
        must(20, wanted.at_all, || format!("{lease} ends for a waiter, and no waiter needs its GPUs"))
    }

    /// The processes that a signal may reach: all of the lease, except for its wrapper if that is on no GPU.
    fn signal_targets<'a>(&'a self, book: &'a LeaseBook) -> impl Iterator<Item = &'a ProcKey> {
        let answers =
            |number: &&usize| matches!(self.gpus[**number].reading, SeenReading::Free(_) | SeenReading::Coarse(_));
        let on_gpu = move |process: &ProcKey| {
            let gpus = book.held().into_iter().flat_map(|held| &held.gpus);
            gpus.into_iter().filter(answers).any(|number| self.gpus[*number].processes.contains(process))
        };
        let own = self.members.get(&book.id).into_iter().flatten();
        own.filter(move |process| Some(**process) != book.root() || on_gpu(process))
    }

    /// True if a process of a lease that was ended for a waiter may be left.
    pub fn may_have_processes(&self, book: &LeaseBook) -> bool {
        let unknown = book.root().is_some() && !book.members_known;
        book.pending_end.is_some() && (unknown || self.signal_targets(book).next().is_some())
    }

    /// Takes a signal to processes of a lease.
    pub fn take_signal(&mut self, now: Time, cause: &EventCause, lease: LeaseId, action: &LeaseAction) -> Verdict {
        let LeaseAction::Signal { signal, at, processes, .. } = action else { return Ok(()) };
        must(17, !matches!(cause, EventCause::Started(..)), || format!("a start signals {lease}"))?;
        let book = self.leases.get(&lease).filter(|book| matches!(book.stage, LeaseStage::Ending(..)));
        let Some((book, pending_end)) = book.and_then(|book| Some((book, book.pending_end?))) else {
            return must(20, false, || format!("{action:?}, and it was not ended for a waiter"));
        };
        let unleased = processes.iter().find(|process| !self.signal_targets(book).any(|own| own == *process));
        must(16, unleased.is_none(), || format!("{unleased:?} gets a signal, and is no process of {lease}"))?;
        must(16, !processes.is_empty() && *at == now, || format!("{action:?} at {now}"))?;
        let next = match pending_end.signal {
            None => TERM,
            Some(last) if !pending_end.is_ours => last,
            Some(_) => KILL,
        };
        let requests_again = pending_end.signal == Some(KILL) && pending_end.is_ours;
        must(16, *signal == next && pending_end.next_from <= now && !requests_again, || {
            format!("{action:?}, and signal {next} is due: {pending_end:?}")
        })?;
        // The grace counts from when the signal was sent, which is reported.
        let pending_end = PendingEnd { signal: Some(*signal), next_from: Time::NEVER, is_ours: true };
        if let Some(book) = self.leases.get_mut(&lease) {
            book.pending_end = Some(pending_end);
        }
        Ok(())
    }

    /// Takes the report that a signal was sent.
    pub fn note_signal_sent(&mut self, now: Time, lease: LeaseId, signal: u8) -> EventCause {
        let from = now + self.policy.parking.grace;
        if let Some(pending_end) = self.leases.get_mut(&lease).and_then(|book| book.pending_end.as_mut())
            && (pending_end.signal, pending_end.is_ours, pending_end.next_from) == (Some(signal), true, Time::NEVER)
        {
            pending_end.next_from = from;
        }
        EventCause::Other
    }

    /// True if a GPU goes out of service because a process on it survived all signals.
    pub fn is_out_for_survivor(&self, now: Time, cause: &EventCause, number: usize, service: &GpuService) -> bool {
        let survives = |lease: &LeaseId| {
            let book = self.leases.get(lease)?;
            let pending_end = book.pending_end.filter(|pending_end| {
                pending_end.signal == Some(KILL) && pending_end.is_ours && pending_end.next_from <= now
            })?;
            let mine = book.held().is_some_and(|held| held.gpus.contains(&number));
            (mine && self.may_have_processes(book)).then_some(pending_end)
        };
        let out = matches!(service, GpuService::Out { .. }) && matches!(cause, EventCause::Ticked);
        out && self.leases.keys().any(|lease| survives(lease).is_some())
    }

    /// Checks that every lease that was told that it ends has ended or was spared in time.
    pub fn check_notices(&self, now: Time) -> Verdict {
        let notice = |lease: &&LeaseId| self.leases.get(lease).and_then(LeaseBook::held).and_then(HeldBook::for_others);
        let over = |notice: Time| notice < now && !self.in_grace(now, notice);
        let left = self.told_to_end.iter().find(|lease| notice(lease).is_some_and(over));
        must(8, left.is_none(), || {
            format!("{left:?} was to end by {:?}, and it is {now}", left.as_ref().and_then(notice))
        })
    }
}
