//! Parked leases come back: rule 2, and rule 9 for passive ones.

use super::*;

impl CheckerBooks {
    // ---- rule 2 ------------------------------------------------------------

    /// What a card has for a parked holder: what it can promise, and what the holder has there already.
    fn room_for(&self, lease: LeaseId, number: usize, now: Time) -> Bytes {
        let card: &GpuBook = &self.cards[number];
        self.promisable_but(card, now, Some(lease))
    }

    /// What of each of its cards a parked holder need not be given: of what the driver may take at any moment nothing.
    pub(in crate::checker) fn has_still(&self, lease: LeaseId, held: &HeldBook, trip: &MoveBook) -> Bytes {
        let least = held.cards.iter().map(|card| self.left_of(lease, *card)).min();
        least.filter(|_| trip.deep.is_none()).unwrap_or_default()
    }

    /// A parked holder has its cards again.
    pub fn resume(&mut self, now: Time, lease: LeaseId, action: &LeaseAction) -> Verdict {
        let LeaseAction::Resume { vram, until, debt_clock: mark, not_beyond: before, first_since: turn, .. } = action
        else {
            return Ok(());
        };
        let (book, held, trip) = self.trip(lease, MoveWay::Gone)?;
        let (wants, passive) = (trip.wants, trip.passive);
        must(9, wants.is_some() != passive, || format!("{lease} has its cards again and did not wait for them"))?;
        must(11, !self.is_stopped(), || format!("{lease} has its cards again while nothing may be granted"))?;
        let rests = book.rests.on(trip.rung);
        must(2, rests <= now, || format!("{lease} comes back at {now}, and rests until {rests}"))?;
        must(4, !self.is_taken_up(lease, held), || {
            format!("{lease} comes back where somebody else moves, and nobody tells whose bytes are whose")
        })?;
        let sure = self.sure_of_room(lease, held);
        must(2, !trip.needs_driver() || book.ask.may_lose_state || sure.is_ok(), || {
            format!("the driver brings {lease} back, and it may lack room: {sure:?}")
        })?;
        let term = now + trip.left.unwrap_or(book.ask.term.span());
        must(8, *until == term, || format!("{lease} has its cards again until {until}, not {term}"))?;
        let first = trip.first.as_ref().unwrap_or(&book.ask);
        let enough = if first.vram == Vram::Whole { *vram <= held.vram } else { *vram == held.vram };
        must(2, enough, || format!("{lease} had {} of each card, and has {vram} again", held.vram))?;
        for number in &held.cards {
            let (card, room) = (&self.cards[*number], self.room_for(lease, *number, now));
            must(21, card.asides.is_empty(), || format!("{lease} comes back to GPU {number}, which steps aside"))?;
            must(2, !self.restores_on(card), || {
                format!("{lease} comes back to card {number} while another is brought back")
            })?;
            must(2, *vram <= room && self.open(card), || {
                format!(
                    "{lease} comes back to {vram} of card {number}, which has {room} for it (look of {}: {:?}, {} reserved, seen {:?})",
                    card.begun, card.look, card.reserved, card.seen
                )
            })?;
            must(1, !self.excluded(book, card), || {
                format!("{lease} comes back to card {number}, and others are alone there")
            })?;
        }
        self.check_caps(lease, book, held.cards.len(), *vram)?;
        let mut back = HeldBook {
            renewed: now,
            until: *until,
            before: *before,
            began: now,
            sized: now,
            stopped: None,
            // What it has there already it does not take from anybody.
            vram: vram.less(self.has_still(lease, held, trip)),
            ..held.clone()
        };
        self.check_order(now, lease, &back, book)?;
        if passive {
            must(9, before.is_none(), || format!("{lease} is passive, and comes back until a waiter's claim begins"))?;
            let pause = trip.since + self.policy.parking.pause_after_park;
            must(9, pause <= now, || format!("{lease} is passive, and comes back at {now}, before {pause}"))?;
        }
        let due = self.charged(now, book.tenant, *vram, held.cards.len(), until.since(now));
        let tenant = book.tenant;
        let (rung, had, before) = (trip.rung, trip.had, trip.before.clone());
        let (deep, driven) = (trip.deep.clone(), trip.driven.clone());
        let trip = MoveBook::new(MoveWay::Back, now, Span::ZERO);
        let trip = MoveBook { again: wants, passive, back: true, rung, had, before, deep, driven, ..trip };
        let (ask, trip) = (first.clone(), trip.turned(MoveWay::Back, now, &self.policy.parking));
        back.vram = *vram;
        back.paid = self.charge(now, lease, *mark, due)?;
        self.take_turn(now, lease, *turn)?;
        let Some(book) = self.remove(lease) else { return Ok(()) };
        self.insert(lease, LeaseBook { ask, worked: true, at: LeaseStage::Away(back, Box::new(trip)), ..book });
        self.tenants[tenant].served = self.tenants[tenant].served.max(now);
        Ok(())
    }

    /// A holder's bytes find no room after all.
    pub fn retreat(&mut self, now: Time, cause: &EventCause, lease: LeaseId, at: Time) -> Verdict {
        let (_, _, trip) = self.trip(lease, MoveWay::Back)?;
        let refused = matches!(
            cause,
            EventCause::Said(of, CallWord::Refuse | CallWord::Outgrow) | EventCause::Hooked(of, CallWord::Refuse) if *of == lease
        );
        let silent = matches!(cause, EventCause::Ticked) && self.is_overdue(now, trip);
        let unsure = matches!(cause, EventCause::Observed(..)) && self.is_unsure(lease).is_some();
        must(8, at == now && trip.back && (refused || silent || unsure), || {
            format!("{lease} leaves again after {cause:?}: {trip:?}")
        })?;
        let rung = trip.rung;
        let trip = trip.turned(MoveWay::Out, now, &self.policy.parking);
        self.set_trip(lease, trip, |_| {});
        self.rest(now, lease, rung, 1);
        Ok(())
    }

    /// Why a holder that the driver is to bring back may lack room by now.
    fn is_unsure(&self, lease: LeaseId) -> Option<&'static str> {
        let book = self.leases.get(&lease)?;
        let LeaseStage::Away(held, trip) = &book.at else { return None };
        let restores = trip.restores() && !book.ask.may_lose_state;
        if restores && self.may_have(lease, trip) { self.others_keep_off(lease, held).err() } else { None }
    }

    /// A card was seen: nobody is brought back there to a room that others could take.
    pub fn check_restores(&self, cause: &EventCause) -> Verdict {
        let EventCause::Observed(Some(number), _) = cause else { return Ok(()) };
        let card = &self.cards[*number];
        if !matches!(card.look, SeenReading::Free(_) | SeenReading::Coarse(_)) {
            return Ok(());
        }
        let mut unsure = self.trips.iter().filter(|lease| card.claims.contains_key(lease));
        let unsure = unsure.find_map(|lease| Some((lease, self.is_unsure(*lease)?)));
        must(2, unsure.is_none(), || format!("{unsure:?} is brought back all the same"))
    }

    /// A holder's bytes are back, and its host memory is free.
    pub fn resumed(&mut self, now: Time, cause: &EventCause, lease: LeaseId, at: Time) -> Verdict {
        let (_, held, trip) = self.trip(lease, MoveWay::Back)?;
        must(14, at == now, || format!("{lease} is back at {at}, and it is {now}"))?;
        // Nobody is there that could bring anything back, or say so.
        let (none_parked, rung) = (self.none_parked(lease, trip.rung), trip.rung);
        let unwrapped = rung == Method::Hook && matches!(cause, EventCause::Unwrapped(of) if *of == lease);
        must(2, !self.may_have(lease, trip), || {
            format!("{lease} is back, and the driver may have something of it: {trip:?}")
        })?;
        let given_up = none_parked && (unwrapped || self.is_overdue(now, trip));
        must(3, none_parked, || {
            format!("{lease} is back, and not all of its programs: {:?}", self.voices(lease, rung))
        })?;
        // Of bytes that came from cards of others' nobody knows anything.
        let on_its_cards = |process: &ProcKey| held.cards.iter().any(|card| self.cards[*card].all.contains(process));
        let stowed = self.stowed.iter().filter(|_| !given_up);
        let stowed = stowed.filter(|((_, on), of)| *on == rung && **of == lease);
        let stowed = stowed.map(|((process, _), _)| process).find(|process| on_its_cards(process));
        must(3, stowed.is_none(), || format!("{lease} is back, and {stowed:?} has its bytes in host memory"))?;
        must(4, given_up || trip.seen_on(held, 1), || {
            format!("{lease} is back, and the looks at cards {:?} are {:?}", held.cards, trip.looks)
        })?;
        let Some(book) = self.remove(lease) else { return Ok(()) };
        let LeaseStage::Away(held, trip) = book.at else { return Ok(()) };
        let until = held.until.max(now);
        // Who could not be parked is left alone from when that is over.
        let (rested, mut rests) = (now + self.policy.parking.retry_after, book.rests);
        if !trip.back && rests.on(rung) != Time::ZERO {
            rests.0[rung as usize] = rests.on(rung).max(rested);
        }
        self.insert(
            lease,
            LeaseBook { rests, at: LeaseStage::Held(HeldBook { booked: Bytes::ZERO, until, ..held }), ..book },
        );
        Ok(())
    }
}
