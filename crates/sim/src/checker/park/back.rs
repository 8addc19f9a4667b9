//! Parked leases are resumed: rule 2, and rule 9 for passive ones.

use super::*;

impl CheckerBooks {
    // ---- rule 2 ------------------------------------------------------------

    /// The bytes of a GPU for a parked lease: what may be promised, and what the lease has there already.
    fn room_for_parked(&self, lease: LeaseId, number: usize, now: Time) -> Bytes {
        let card: &GpuBook = &self.gpus[number];
        self.promisable_but(card, now, Some(lease))
    }

    /// The bytes of each GPU that a parked lease need not be granted; 0 if the driver may take them at any moment.
    pub(in crate::checker) fn keeps_of_each(&self, lease: LeaseId, held: &HeldBook, trip: &MoveBook) -> Bytes {
        let least = held.gpus.iter().map(|card| self.residue_of(lease, *card)).min();
        least.filter(|_| trip.contexts.is_none()).unwrap_or_default()
    }

    /// Takes a resume.
    pub fn resume(&mut self, now: Time, lease: LeaseId, action: &Action) -> Verdict {
        let Action::Resume { vram, until, mark, before, turn, .. } = action else { return Ok(()) };
        let (book, held, trip) = self.move_of(lease, MoveWay::Parked)?;
        let (wants, passive) = (trip.queued_since, trip.passive);
        must(9, wants.is_some() != passive, || format!("{lease} is resumed and did not wait for its GPUs"))?;
        must(11, !self.is_stopped(), || format!("{lease} is resumed while nothing may be granted"))?;
        let rests = book.backoff.until(trip.method);
        must(2, rests <= now, || format!("{lease} is resumed at {now}, and is not tried again until {rests}"))?;
        must(4, !self.is_other_move_under_way(lease, held), || {
            format!(
                "{lease} is resumed while another lease moves on a GPU that does not tell the bytes of single processes"
            )
        })?;
        let sure = self.sure_of_room(lease, held);
        must(2, !trip.needs_driver() || book.request.may_lose_state || sure.is_ok(), || {
            format!("the driver brings {lease} back, and it may lack room: {sure:?}")
        })?;
        let term = now + trip.term_left.unwrap_or(book.request.term.span());
        must(8, *until == term, || format!("{lease} is resumed until {until}, not {term}"))?;
        let first = trip.first_request.as_ref().unwrap_or(&book.request);
        let enough = if first.vram == Vram::Whole { *vram <= held.vram } else { *vram == held.vram };
        must(2, enough, || format!("{lease} had {} of each GPU, and is resumed with {vram}", held.vram))?;
        for number in &held.gpus {
            let (card, room) = (&self.gpus[*number], self.room_for_parked(lease, *number, now));
            must(21, card.asides.is_empty(), || format!("{lease} is resumed on GPU {number}, which steps aside"))?;
            must(2, !self.restores_on(card), || {
                format!("{lease} is resumed on GPU {number} while another lease is brought back there")
            })?;
            must(2, *vram <= room && self.is_open(card), || {
                format!(
                    "{lease} is resumed with {vram} of GPU {number}, which has {room} for it (reading of {}: {:?}, {} reserved, seen {:?})",
                    card.reading_began, card.reading, card.reserved, card.seen_bytes
                )
            })?;
            must(1, !self.excluded(book, card), || {
                format!("{lease} is resumed on GPU {number}, where another lease is exclusive")
            })?;
        }
        self.check_caps(lease, book, held.gpus.len(), *vram)?;
        let mut back = HeldBook {
            renewed: now,
            until: *until,
            not_beyond: *before,
            slice_began: now,
            resized_at: now,
            stopped: None,
            // It takes nothing of what it has there already.
            vram: vram.less(self.keeps_of_each(lease, held, trip)),
            ..held.clone()
        };
        self.check_order(now, lease, &back, book)?;
        if passive {
            must(9, before.is_none(), || format!("{lease} is passive, and is resumed until a waiter's claim begins"))?;
            let pause = trip.since + self.policy.parking.pause_after_park;
            must(9, pause <= now, || format!("{lease} is passive, and is resumed at {now}, before {pause}"))?;
        }
        let due = self.debt_clock_after(now, book.tenant, *vram, held.gpus.len(), until.since(now));
        let tenant = book.tenant;
        let (rung, had, before) = (trip.method, trip.had_bytes, trip.others_before.clone());
        let (deep, driven) = (trip.contexts.clone(), trip.driver_processes.clone());
        let trip = MoveBook::new(MoveWay::Returning, now, Span::ZERO);
        let trip = MoveBook {
            requests_again: wants,
            passive,
            was_resumed: true,
            method: rung,
            had_bytes: had,
            others_before: before,
            contexts: deep,
            driver_processes: driven,
            ..trip
        };
        let (ask, trip) = (first.clone(), trip.with_way(MoveWay::Returning, now, &self.policy.parking));
        back.vram = *vram;
        back.prepaid = self.check_charge(now, lease, *mark, due)?;
        self.check_first_since(now, lease, *turn)?;
        let Some(book) = self.remove(lease) else { return Ok(()) };
        self.insert(
            lease,
            LeaseBook { request: ask, worked: true, stage: LeaseStage::Park(back, Box::new(trip)), ..book },
        );
        self.tenants[tenant].last_served = self.tenants[tenant].last_served.max(now);
        Ok(())
    }

    /// Takes that a lease finds no room and is parked again.
    pub fn retreat(&mut self, now: Time, cause: &EventCause, lease: LeaseId, at: Time) -> Verdict {
        let (_, _, trip) = self.move_of(lease, MoveWay::Returning)?;
        let refused = matches!(
            cause,
            EventCause::Reported(of, CallWord::Refused | CallWord::Outgrown) | EventCause::Hooked(of, CallWord::Refused) if *of == lease
        );
        let silent = matches!(cause, EventCause::Ticked) && self.is_overdue(now, trip);
        let unsure = matches!(cause, EventCause::Observed(..)) && self.why_restore_is_unsafe(lease).is_some();
        must(8, at == now && trip.was_resumed && (refused || silent || unsure), || {
            format!("{lease} is parked again after {cause:?}: {trip:?}")
        })?;
        let rung = trip.method;
        let trip = trip.with_way(MoveWay::Leaving, now, &self.policy.parking);
        self.set_move(lease, trip, |_| {});
        self.back_off(now, lease, rung, 1);
        Ok(())
    }

    /// Why a lease that the driver is to bring back may lack room by now.
    fn why_restore_is_unsafe(&self, lease: LeaseId) -> Option<&'static str> {
        let book = self.leases.get(&lease)?;
        let LeaseStage::Park(held, trip) = &book.stage else { return None };
        let restores = trip.is_driver_restore() && !book.request.may_lose_state;
        if restores && self.may_have(lease, trip) { self.others_keep_off(lease, held).err() } else { None }
    }

    /// Checks after a reading that no lease is brought back to room that another process could take.
    pub fn check_restores(&self, cause: &EventCause) -> Verdict {
        let EventCause::Observed(Some(number), _) = cause else { return Ok(()) };
        let card = &self.gpus[*number];
        if !matches!(card.reading, SeenReading::Free(_) | SeenReading::Coarse(_)) {
            return Ok(());
        }
        let mut unsure = self.moving.iter().filter(|lease| card.claims.contains_key(lease));
        let unsure = unsure.find_map(|lease| Some((lease, self.why_restore_is_unsafe(*lease)?)));
        must(2, unsure.is_none(), || format!("{unsure:?} is still brought back"))
    }

    /// Takes that a lease's bytes are back and its host memory is free.
    pub fn resumed(&mut self, now: Time, cause: &EventCause, lease: LeaseId, at: Time) -> Verdict {
        let (_, held, trip) = self.move_of(lease, MoveWay::Returning)?;
        must(14, at == now, || format!("{lease} is back at {at}, and it is {now}"))?;
        // No mover is there that could bring its bytes back, or report that.
        let (none_parked, rung) = (self.none_parked(lease, trip.method), trip.method);
        let unwrapped = rung == Method::Hook && matches!(cause, EventCause::Unwrapped(of) if *of == lease);
        must(2, !self.may_have(lease, trip), || {
            format!("{lease} is back, and the driver may have something of it: {trip:?}")
        })?;
        let given_up = none_parked && (unwrapped || self.is_overdue(now, trip));
        must(3, none_parked, || {
            format!("{lease} is back, and one of its programs is not: {:?}", self.movers_of(lease, rung))
        })?;
        // Bytes that came from GPUs of other leases are not known.
        let on_its_cards =
            |process: &ProcKey| held.gpus.iter().any(|card| self.gpus[*card].processes.contains(process));
        let stowed = self.in_host_memory.iter().filter(|_| !given_up);
        let stowed = stowed.filter(|((_, on), of)| *on == rung && **of == lease);
        let stowed = stowed.map(|((process, _), _)| process).find(|process| on_its_cards(process));
        must(3, stowed.is_none(), || format!("{lease} is back, and {stowed:?} has its bytes in host memory"))?;
        must(4, given_up || trip.has_readings(held, 1), || {
            format!("{lease} is back, and the readings of GPUs {:?} are {:?}", held.gpus, trip.agreeing_readings)
        })?;
        let Some(book) = self.remove(lease) else { return Ok(()) };
        let LeaseStage::Park(held, trip) = book.stage else { return Ok(()) };
        let until = held.until.max(now);
        // After a failed park a lease is left alone for a while from when it is back.
        let (rested, mut rests) = (now + self.policy.parking.retry_after, book.backoff);
        if !trip.was_resumed && rests.until(rung) != Time::ZERO {
            rests.0[rung as usize] = rests.until(rung).max(rested);
        }
        self.insert(
            lease,
            LeaseBook {
                backoff: rests,
                stage: LeaseStage::Held(HeldBook { booked: Bytes::ZERO, until, ..held }),
                ..book
            },
        );
        Ok(())
    }
}
