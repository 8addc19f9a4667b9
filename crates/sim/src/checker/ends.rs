//! Rules 16 and 20: who is ended for others chose it, is told first, gets SIGTERM before SIGKILL, and
//! counts as long as a process of its is there.

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

/// How far the end of a lease for others has come.
#[derive(Clone, Copy, Debug)]
pub struct PendingEnd {
    /// The last signal.
    pub signal: Option<u8>,
    /// The next one may come from then on.
    pub from: Time,
    /// It was this daemon that sent it: what an earlier one meant to send may not have arrived.
    pub sent: bool,
}

/// Whether its owner chose that others may end it.
pub fn chose_it(ask: &LeaseRequest) -> bool {
    matches!((ask.preempt, ask.tier), (Preempt::End, _) | (Preempt::Usual, Tier::Spot))
}

impl CheckerBooks {
    /// A holder is told that it will be ended.
    pub fn notice(&mut self, now: Time, cause: &EventCause, lease: LeaseId, action: &LeaseAction) -> Verdict {
        let LeaseAction::GiveNotice { at, until, room_for, .. } = action else { return Ok(()) };
        let Some(book) = self.leases.get(&lease) else { return must(20, false, || format!("no {lease} to tell")) };
        let over = !chose_it(&book.ask) && self.is_to_end(now, book);
        must(20, over || chose_it(&book.ask), || {
            format!("{lease} is told that it ends, and did not choose it: {:?}", book.ask)
        })?;
        let other = self.leases.get(room_for).map(|other| (other.ask.tier, -i16::from(other.ask.priority)));
        let above = other.is_some_and(|other| other < (book.ask.tier, -i16::from(book.ask.priority)));
        must(20, over || above, || format!("{lease} is told that it ends for {room_for}, which stands no higher"))?;
        self.check_preempted(now, cause, book, Some(*room_for), false)?;
        let told = book.held().and_then(|held| held.notice);
        must(5, told.is_none(), || format!("{lease} is told twice that it ends"))?;
        let before = book.ask.notice.map(|notice| notice.before).unwrap_or_default();
        must(20, *at == now && *until == now + before, || format!("{action:?}, and it asked for {before:?}"))?;
        self.set_notice(lease, Some(*until));
        Ok(())
    }

    /// A holder is told that its fixed term is over soon, as it wanted to be.
    pub fn term_notice(&mut self, now: Time, cause: &EventCause, lease: LeaseId, action: &LeaseAction) -> Verdict {
        let LeaseAction::GiveNotice { at, until, .. } = action else { return Ok(()) };
        let book = self.leases.get(&lease);
        let held = book.and_then(|book| match &book.at {
            LeaseStage::Held(held) => Some((book, held)),
            _ => None,
        });
        let Some((book, held)) = held else { return must(20, false, || format!("no {lease} to tell")) };
        must(17, matches!(cause, EventCause::Ticked), || format!("{lease} is told of its term after {cause:?}"))?;
        let before = book.ask.notice.map(|notice| notice.before);
        must(20, book.fixed() && before.is_some(), || {
            format!("{lease} is told of its term, and did not want it: {:?}", book.ask)
        })?;
        must(5, held.notice.is_none(), || format!("{lease} is told twice that it ends"))?;
        let over = self.deadline(held.renewed, held.until);
        let from = over - before.unwrap_or_default();
        must(20, *at == now && *until == over && from <= now, || format!("{action:?} at {now}: {held:?}"))?;
        // Its end is a term's, which is checked as any other.
        if let Some(LeaseBook { at: LeaseStage::Held(held), .. }) = self.leases.get_mut(&lease) {
            held.notice = Some(EndNotice::Term { term_over: *until });
        }
        Ok(())
    }

    /// A holder need not end after all.
    pub fn spare(&mut self, now: Time, cause: &EventCause, lease: LeaseId) -> Verdict {
        let book = self.leases.get(&lease);
        let held = book.and_then(|book| match &book.at {
            LeaseStage::Held(held) => Some((book.tenant, held)),
            _ => None,
        });
        let Some((tenant, held)) = held.filter(|(_, held)| held.for_others().is_some_and(|notice| notice <= now))
        else {
            return must(20, false, || format!("{lease} is spared, and was not to end: {book:?}"));
        };
        must(20, matches!(cause, EventCause::Ticked), || format!("{lease} is spared after {cause:?}"))?;
        let wanted = self.wanted(tenant, &held.cards);
        let stays = book.is_some_and(|book| !chose_it(&book.ask) && !self.is_to_end(now, book));
        must(9, stays || !wanted.freely, || format!("{lease} is spared, and somebody waits for its cards"))?;
        self.set_notice(lease, None);
        Ok(())
    }

    fn set_notice(&mut self, lease: LeaseId, notice: Option<Time>) {
        if let Some(LeaseBook { at: LeaseStage::Held(held), .. }) = self.leases.get_mut(&lease) {
            held.notice = notice.map(EndNotice::ForOthers);
        }
        match notice {
            Some(_) => drop(self.noticed.insert(lease)),
            None => drop(self.noticed.remove(&lease)),
        }
    }

    /// A lease ends for others.
    pub fn check_preemption(&self, now: Time, cause: &EventCause, lease: LeaseId, book: &LeaseBook) -> Verdict {
        let LeaseStage::Held(held) = &book.at else {
            return must(20, false, || format!("{lease} ends for others, and it is {:?}", book.at));
        };
        must(20, chose_it(&book.ask), || format!("{lease} ends for others, and did not choose it: {:?}", book.ask))?;
        let at_once = held.for_others() == Some(now) && book.ask.notice.is_none();
        let told = held.for_others().is_some_and(|notice| notice <= now && !self.in_grace(now, notice));
        must(20, at_once || told, || format!("{lease} ends for others at {now}, and was told {:?}", held.notice))?;
        must(17, at_once || matches!(cause, EventCause::Ticked), || {
            format!("{lease} ends for others after {cause:?}")
        })?;
        let wanted = self.wanted(book.tenant, &held.cards);
        must(20, wanted.at_all, || format!("{lease} ends for others, and nobody wants its cards"))
    }

    /// Processes that a signal may reach: the lease's own, but for its wrapper, unless that is on a card.
    fn targets<'a>(&'a self, book: &'a LeaseBook) -> impl Iterator<Item = &'a ProcKey> {
        let answers =
            |number: &&usize| matches!(self.cards[**number].look, SeenReading::Free(_) | SeenReading::Coarse(_));
        let on_card = move |process: &ProcKey| {
            let cards = book.held().into_iter().flat_map(|held| &held.cards);
            cards.into_iter().filter(answers).any(|number| self.cards[*number].all.contains(process))
        };
        let own = self.members.get(&book.id).into_iter().flatten();
        own.filter(move |process| Some(**process) != book.root() || on_card(process))
    }

    /// Whether a process of a lease that ended for others may still be there.
    pub fn is_haunted(&self, book: &LeaseBook) -> bool {
        let unknown = book.root().is_some() && !book.counted;
        book.doom.is_some() && (unknown || self.targets(book).next().is_some())
    }

    /// Processes get a signal.
    pub fn signal(&mut self, now: Time, cause: &EventCause, lease: LeaseId, action: &LeaseAction) -> Verdict {
        let LeaseAction::Signal { signal, at, processes, .. } = action else { return Ok(()) };
        must(17, !matches!(cause, EventCause::Started(..)), || format!("a start signals {lease}"))?;
        let book = self.leases.get(&lease).filter(|book| matches!(book.at, LeaseStage::Ending(..)));
        let Some((book, doom)) = book.and_then(|book| Some((book, book.doom?))) else {
            return must(20, false, || format!("{action:?}, and it did not end for others"));
        };
        let stranger = processes.iter().find(|process| !self.targets(book).any(|own| own == *process));
        must(16, stranger.is_none(), || format!("{stranger:?} gets a signal, and is not {lease}'s"))?;
        must(16, !processes.is_empty() && *at == now, || format!("{action:?} at {now}"))?;
        let next = match doom.signal {
            None => TERM,
            Some(last) if !doom.sent => last,
            Some(_) => KILL,
        };
        let again = doom.signal == Some(KILL) && doom.sent;
        must(16, *signal == next && doom.from <= now && !again, || {
            format!("{action:?}, and it is due {next}: {doom:?}")
        })?;
        // Its time counts from when it left, which is heard.
        let doom = PendingEnd { signal: Some(*signal), from: Time::NEVER, sent: true };
        if let Some(book) = self.leases.get_mut(&lease) {
            book.doom = Some(doom);
        }
        Ok(())
    }

    /// A signal left.
    pub fn signalled(&mut self, now: Time, lease: LeaseId, signal: u8) -> EventCause {
        let from = now + self.policy.parking.grace;
        if let Some(doom) = self.leases.get_mut(&lease).and_then(|book| book.doom.as_mut())
            && (doom.signal, doom.sent, doom.from) == (Some(signal), true, Time::NEVER)
        {
            doom.from = from;
        }
        EventCause::Other
    }

    /// Whether a card goes out of service because a process on it survived everything.
    pub fn is_survived(&self, now: Time, cause: &EventCause, number: usize, service: &GpuService) -> bool {
        let survives = |lease: &LeaseId| {
            let book = self.leases.get(lease)?;
            let doom = book.doom.filter(|doom| doom.signal == Some(KILL) && doom.sent && doom.from <= now)?;
            let mine = book.held().is_some_and(|held| held.cards.contains(&number));
            (mine && self.is_haunted(book)).then_some(doom)
        };
        let out = matches!(service, GpuService::Out { .. }) && matches!(cause, EventCause::Ticked);
        out && self.leases.keys().any(|lease| survives(lease).is_some())
    }

    /// Whoever was told that it ends does, or is spared, in time.
    pub fn check_notices(&self, now: Time) -> Verdict {
        let notice = |lease: &&LeaseId| self.leases.get(lease).and_then(LeaseBook::held).and_then(HeldBook::for_others);
        let over = |notice: Time| notice < now && !self.in_grace(now, notice);
        let left = self.noticed.iter().find(|lease| notice(lease).is_some_and(over));
        must(8, left.is_none(), || {
            format!("{left:?} was to end by {:?}, and it is {now}", left.as_ref().and_then(notice))
        })
    }
}
