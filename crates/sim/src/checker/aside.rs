//! Rule 21: nothing is granted or resumed on a GPU that steps aside, what can be parked there is, nothing is ended for
//! it, and it is over in time.

use super::books::{CheckerBooks, HeldBook, LeaseBook, LeaseStage};
use super::calls::EventCause;
use super::park::MoveBook;
use super::{Verdict, must};
use sublet_core::action::Action;
use sublet_core::aside::{Aside, AsideOver};
use sublet_core::event::{AsideRequest, Caller, EventAnswer, Refusal};
use sublet_core::facts::GpuAction;
use sublet_core::ids::LeaseId;
use sublet_core::request::Preempt;
use sublet_core::settings::AsideAllow;
use sublet_core::state::State;
use sublet_core::units::{Span, Time};

const DAY: Span = Span::secs(86_400);
const HALF_A_DAY: Span = Span::secs(43_200);
/// The most asides of one GPU at a time.
const MOST: usize = 16;

/// What must come of a request about asides.
#[derive(Debug)]
pub enum ExpectedAside {
    /// This aside on this GPU.
    Set(usize, Aside),
    /// The end of these asides on this GPU.
    Ends(usize, Vec<(String, String)>),
    /// This refusal, and nothing changes.
    Refused(Refusal),
}

impl CheckerBooks {
    /// What must come of a request that a GPU steps aside.
    pub fn expect_aside(&self, now: Time, by: &Caller, uuid: &str, request: &AsideRequest) -> ExpectedAside {
        let may = by.operator || (request.at_seat && self.policy.aside.allow == AsideAllow::Seat);
        let Some(number) = self.gpu_number(uuid) else {
            let refusal = if may || request.renews { Refusal::NoSuchCard } else { self.refuse_without_seat() };
            return ExpectedAside::Refused(refusal);
        };
        let known = &self.gpus[number].asides;
        let last = known.iter().find(|aside| (&aside.by, &aside.key) == (&by.tenant, &request.key));
        let span = request.span.unwrap_or(HALF_A_DAY);
        match last {
            None if request.renews => return ExpectedAside::Refused(Refusal::NoSuchAside),
            _ if !may && !request.renews => return ExpectedAside::Refused(self.refuse_without_seat()),
            _ if span == Span::ZERO || span > DAY => return ExpectedAside::Refused(Refusal::BadAside),
            None if known.len() >= MOST => return ExpectedAside::Refused(Refusal::TooManyAsides),
            None => {
                if let Some(stopped) = self.stopped() {
                    return ExpectedAside::Refused(stopped);
                }
            }
            Some(_) => {}
        }
        let since = last.map_or(now, |last| last.since);
        let until = if may { now + span } else { (now + span).min(since + DAY) };
        let (by, key) = (by.tenant.clone(), request.key.clone());
        ExpectedAside::Set(number, Aside { by, key, since, renewed: now, until })
    }

    fn refuse_without_seat(&self) -> Refusal {
        Refusal::MayNotPutAside(self.policy.aside.allow)
    }

    /// What must come of a request to end an aside.
    pub fn expect_aside_end(&self, by: &Caller, uuid: &str, key: Option<&str>) -> ExpectedAside {
        let Some(number) = self.gpu_number(uuid) else { return ExpectedAside::Refused(Refusal::NoSuchCard) };
        let asides = &self.gpus[number].asides;
        let ends = asides.iter().filter(|aside| match key {
            Some(key) => aside.by == by.tenant && aside.key == key,
            None => aside.by == by.tenant || by.operator,
        });
        let ends: Vec<_> = ends.map(|aside| (aside.by.clone(), aside.key.clone())).collect();
        match asides.first() {
            Some(first) if ends.is_empty() && key.is_none() => {
                ExpectedAside::Refused(Refusal::AnothersAside(first.by.clone()))
            }
            _ => ExpectedAside::Ends(number, ends),
        }
    }

    /// Checks the answer to a request about asides, and its actions.
    pub fn check_aside_answer(&self, expected: &ExpectedAside, answer: &EventAnswer, actions: &[Action]) -> Verdict {
        let right = match expected {
            ExpectedAside::Refused(refusal) => *answer == EventAnswer::Refused(refusal.clone()),
            ExpectedAside::Set(..) | ExpectedAside::Ends(..) => *answer == EventAnswer::Done,
        };
        must(21, right, || format!("{expected:?} is answered {answer:?}"))?;
        let is_done = |number: usize, by: &str, name: &str| {
            actions.iter().any(|action| match action {
                Action::Gpu(GpuAction::SetAside { gpu: card, aside }) => {
                    usize::from(card.0) == number && (aside.by.as_str(), aside.key.as_str()) == (by, name)
                }
                Action::Gpu(GpuAction::EndAside { gpu: card, by: of, key, .. }) => {
                    usize::from(card.0) == number && (of.as_str(), key.as_str()) == (by, name)
                }
                _ => false,
            })
        };
        let done = match expected {
            ExpectedAside::Refused(_) => super::preempt::nothing_but_room(actions),
            ExpectedAside::Set(number, aside) => is_done(*number, &aside.by, &aside.key),
            ExpectedAside::Ends(number, ends) => ends.iter().all(|(by, key)| is_done(*number, by, key)),
        };
        must(21, done, || format!("{expected:?}, and yet {actions:?}"))
    }

    /// Takes an aside that began or was renewed.
    pub fn take_aside(&mut self, cause: &EventCause, number: usize, aside: &Aside) -> Verdict {
        let asked = match cause {
            EventCause::Aside(expected) => {
                matches!(&**expected, ExpectedAside::Set(on, due) if *on == number && due == aside)
            }
            _ => false,
        };
        must(21, asked, || format!("GPU {number} steps aside ({aside:?}) after {cause:?}"))?;
        let asides = &mut self.gpus[number].asides;
        match asides.iter_mut().find(|known| (&known.by, &known.key) == (&aside.by, &aside.key)) {
            Some(known) => *known = aside.clone(),
            None => asides.push(aside.clone()),
        }
        self.unleased.set_aside(number, true);
        Ok(())
    }

    /// Takes the end of an aside.
    pub fn end_aside(&mut self, now: Time, cause: &EventCause, action: &GpuAction) -> Verdict {
        let GpuAction::EndAside { gpu: card, by, key, at, how } = action else { return Ok(()) };
        let number = usize::from(card.0);
        let known = self.gpus[number].asides.iter().find(|aside| (&aside.by, &aside.key) == (by, key));
        let Some(known) = known else { return must(21, false, || format!("{action:?}, and there is none")) };
        let fits = match (how, cause) {
            (AsideOver::Time, EventCause::Ticked) => self.deadline(known.renewed, known.until) <= now,
            (AsideOver::HostRebooted, EventCause::Started(rebooted, _)) => *rebooted,
            (AsideOver::Asked, EventCause::Aside(expected)) => {
                let is_it = |(of, name): &(String, String)| (of, name) == (by, key);
                matches!(&**expected, ExpectedAside::Ends(on, ends) if *on == number && ends.iter().any(is_it))
            }
            _ => false,
        };
        must(21, fits && *at == now, || format!("{action:?} at {now} after {cause:?}: {known:?}"))?;
        self.gpus[number].asides.retain(|aside| (&aside.by, &aside.key) != (by, key));
        if self.gpus[number].asides.is_empty() {
            self.gpus[number].aside_ended = Some(now);
            self.unleased.set_aside(number, false);
        }
        Ok(())
    }

    /// Checks that a lease is parked for a GPU that steps aside: the GPU is its own, and a busy lease requests it
    /// again.
    pub fn check_parked_aside(
        &self,
        now: Time,
        cause: &EventCause,
        book: &LeaseBook,
        held: &HeldBook,
        number: usize,
        requests_again: Option<Time>,
    ) -> Verdict {
        let lease = book.id;
        must(17, !matches!(cause, EventCause::Started(..)), || format!("{lease} is parked at a start"))?;
        let fits = held.gpus.contains(&number) && !self.gpus[number].asides.is_empty();
        must(21, fits, || format!("{lease} is parked for GPU {number}, which does not step aside, or is not its own"))?;
        must(20, self.may_be_parked_for_aside(book, held), || {
            format!("{lease} is parked for GPU {number}, and may stay")
        })?;
        let since = book.worked_at.max(held.slice_began).max(self.grace_from);
        let right = if now.since(since) >= self.policy.parking.idle_after { None } else { Some(now + Span(1)) };
        must(21, requests_again == right, || {
            format!("{lease} worked at {since}, it is {now}, and it requests its GPUs again as of {requests_again:?}")
        })
    }

    /// A lease that must not be preempted is parked only for an aside of its own tenant.
    fn may_be_parked_for_aside(&self, book: &LeaseBook, held: &HeldBook) -> bool {
        let mut asides = held.gpus.iter().flat_map(|number| &self.gpus[*number].asides);
        book.request.preempt != Preempt::Never || asides.any(|aside| aside.by == self.tenants[book.tenant].name)
    }

    /// Checks after all actions of an event that nothing stays that could be parked, and that no aside is overdue.
    pub fn check_asides_done(&self, now: Time, cause: &EventCause) -> Verdict {
        for (number, gpu) in self.gpus.iter().enumerate().filter(|(_, gpu)| !gpu.asides.is_empty()) {
            let over = gpu.asides.iter().find(|aside| self.deadline(aside.renewed, aside.until) <= now);
            let over = over.filter(|_| matches!(cause, EventCause::Ticked));
            must(21, over.is_none(), || format!("GPU {number} steps aside at {now} for {over:?}"))?;
            let rebooted = matches!(cause, EventCause::Started(true, _));
            must(21, !rebooted, || format!("GPU {number} steps aside in a new boot"))?;
            if matches!(cause, EventCause::Started(..)) {
                continue;
            }
            let stays = |lease: &&LeaseId| {
                let Some(book) = self.leases.get(lease) else { return false };
                let LeaseStage::Held(held) = &book.stage else { return false };
                self.may_be_parked_for_aside(book, held) && self.could_leave(now, **lease, book).is_some()
            };
            let stays = gpu.claims.keys().find(stays);
            must(21, stays.is_none(), || {
                format!("{stays:?} could be parked, and stays on GPU {number} that steps aside, after {cause:?}")
            })?;
        }
        Ok(())
    }

    /// Since when the time counts for which a lease may stay parked; `None` while one of its GPUs steps aside.
    pub fn park_term_began(&self, held: &HeldBook, park: &MoveBook) -> Option<Time> {
        let gpus = || held.gpus.iter().map(|number| &self.gpus[*number]);
        let is_aside = gpus().any(|gpu| !gpu.asides.is_empty());
        let ended = gpus().filter_map(|gpu| gpu.aside_ended).max().unwrap_or_default();
        (!is_aside).then(|| park.since.max(ended))
    }

    /// Compares the asides with the state.
    pub fn check_aside_rows(&self, state: &State) -> Verdict {
        for (gpu, row) in self.gpus.iter().zip(&state.rows().gpus) {
            let same = gpu.asides == row.aside.now && gpu.aside_ended == row.aside.ended;
            must(21, same, || format!("asides are {:?}, and on the books {:?}", row.aside, gpu.asides))?;
        }
        Ok(())
    }
}
