//! Parked leases are resumed: rule 2, and rule 9 for passive ones.

use super::*;

impl CheckerBooks {
    // ---- rule 2 ------------------------------------------------------------

    /// The bytes of a GPU for a parked lease: what may be promised, and what the lease has there already.
    fn room_for_parked(&self, lease: LeaseId, number: usize, now: Time) -> Bytes {
        let gpu: &GpuBook = &self.gpus[number];
        self.promisable_but(gpu, now, Some(lease))
    }

    /// The bytes of each GPU that a parked lease need not be granted; 0 if the driver may take them at any moment.
    pub(in crate::checker) fn keeps_of_each(&self, lease: LeaseId, held: &HeldBook, park: &MoveBook) -> Bytes {
        let least = held.gpus.iter().map(|gpu| self.residue_of(lease, *gpu)).min();
        least.filter(|_| park.contexts.is_none()).unwrap_or_default()
    }

    /// Takes a resume.
    pub fn resume(&mut self, now: Time, lease: LeaseId, action: &LeaseAction) -> Verdict {
        let LeaseAction::Resume { vram, until, debt_clock: mark, not_beyond: before, first_since: turn, .. } = action
        else {
            return Ok(());
        };
        let (book, held, park) = self.move_of(lease, MoveStage::Parked)?;
        let (wants, passive) = (park.queued_since, park.passive);
        must(9, wants.is_some() != passive, || format!("{lease} is resumed and did not wait for its GPUs"))?;
        must(11, !self.is_stopped(), || format!("{lease} is resumed while nothing may be granted"))?;
        let backoff = book.backoff.until(park.method);
        must(2, backoff <= now, || format!("{lease} is resumed at {now}, and is not tried again until {backoff}"))?;
        must(4, !self.is_other_move_under_way(lease, held), || {
            format!(
                "{lease} is resumed while another lease moves on a GPU that does not tell the bytes of single processes"
            )
        })?;
        let sure = self.has_safe_restore_room(lease, held);
        must(2, !park.needs_driver() || book.request.may_lose_state || sure.is_ok(), || {
            format!("the driver brings {lease} back, and it may lack room: {sure:?}")
        })?;
        let term = now + park.term_left.unwrap_or(book.request.term.span());
        must(8, *until == term, || format!("{lease} is resumed until {until}, not {term}"))?;
        let first = park.first_request.as_ref().unwrap_or(&book.request);
        let enough = if first.vram == Vram::Whole { *vram <= held.vram } else { *vram == held.vram };
        must(2, enough, || format!("{lease} had {} of each GPU, and is resumed with {vram}", held.vram))?;
        for number in &held.gpus {
            let (gpu, room) = (&self.gpus[*number], self.room_for_parked(lease, *number, now));
            must(21, gpu.asides.is_empty(), || format!("{lease} is resumed on GPU {number}, which steps aside"))?;
            must(2, !self.restores_on(gpu), || {
                format!("{lease} is resumed on GPU {number} while another lease is brought back there")
            })?;
            must(2, *vram <= room && self.is_open(gpu), || {
                format!(
                    "{lease} is resumed with {vram} of GPU {number}, which has {room} for it (reading of {}: {:?}, {} reserved, seen {:?})",
                    gpu.reading_began, gpu.reading, gpu.reserved, gpu.seen_bytes
                )
            })?;
            must(1, !self.excluded(book, gpu), || {
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
            vram: vram.less(self.keeps_of_each(lease, held, park)),
            ..held.clone()
        };
        self.check_order(now, lease, &back, book)?;
        if passive {
            must(9, before.is_none(), || format!("{lease} is passive, and is resumed until a waiter's claim begins"))?;
            let pause = park.since + self.policy.parking.pause_after_park;
            must(9, pause <= now, || format!("{lease} is passive, and is resumed at {now}, before {pause}"))?;
        }
        let due = self.debt_clock_after(now, book.tenant, *vram, held.gpus.len(), until.since(now));
        let tenant = book.tenant;
        let (method, had_bytes, others_before) = (park.method, park.had_bytes, park.others_before.clone());
        let (contexts, driver_processes) = (park.contexts.clone(), park.driver_processes.clone());
        let park = MoveBook::new(MoveStage::Returning, now, Span::ZERO);
        let park = MoveBook {
            requests_again: wants,
            passive,
            was_resumed: true,
            method,
            had_bytes,
            others_before,
            contexts,
            driver_processes,
            ..park
        };
        let (request, park) = (first.clone(), park.with_way(MoveStage::Returning, now, &self.policy.parking));
        back.vram = *vram;
        back.prepaid = self.check_charge(now, lease, *mark, due)?;
        self.check_first_since(now, lease, *turn)?;
        let Some(book) = self.remove(lease) else { return Ok(()) };
        self.insert(lease, LeaseBook { request, worked: true, stage: LeaseStage::Park(back, Box::new(park)), ..book });
        self.tenants[tenant].last_served = self.tenants[tenant].last_served.max(now);
        Ok(())
    }

    /// Takes that a lease finds no room and is parked again.
    pub fn retreat(&mut self, now: Time, cause: &EventCause, lease: LeaseId, at: Time) -> Verdict {
        let (_, _, park) = self.move_of(lease, MoveStage::Returning)?;
        let refused = matches!(
            cause,
            EventCause::Reported(of, LeaseCallKind::Refused | LeaseCallKind::Outgrown) | EventCause::Hooked(of, LeaseCallKind::Refused) if *of == lease
        );
        let silent = matches!(cause, EventCause::Ticked) && self.is_overdue(now, park);
        let unsure = matches!(cause, EventCause::Observed(..)) && self.why_restore_is_unsafe(lease).is_some();
        must(8, at == now && park.was_resumed && (refused || silent || unsure), || {
            format!("{lease} is parked again after {cause:?}: {park:?}")
        })?;
        let method = park.method;
        let park = park.with_way(MoveStage::Leaving, now, &self.policy.parking);
        self.set_move(lease, park, |_| {});
        self.back_off(now, lease, method, 1);
        Ok(())
    }

    /// Why a lease that the driver is to bring back may lack room by now.
    fn why_restore_is_unsafe(&self, lease: LeaseId) -> Option<&'static str> {
        let book = self.leases.get(&lease)?;
        let LeaseStage::Park(held, park) = &book.stage else { return None };
        let restores = park.is_driver_restore() && !book.request.may_lose_state;
        if restores && self.driver_may_have(lease, park) { self.others_keep_off(lease, held).err() } else { None }
    }

    /// Checks after a reading that no lease is brought back to room that another process could take.
    pub fn check_restores(&self, cause: &EventCause) -> Verdict {
        let EventCause::Observed(Some(number), _) = cause else { return Ok(()) };
        let gpu = &self.gpus[*number];
        if !matches!(gpu.reading, SeenReading::Free(_) | SeenReading::Coarse(_)) {
            return Ok(());
        }
        let mut unsure = self.moving.iter().filter(|lease| gpu.claims.contains_key(lease));
        let unsure = unsure.find_map(|lease| Some((lease, self.why_restore_is_unsafe(*lease)?)));
        must(2, unsure.is_none(), || format!("{unsure:?} is still brought back"))
    }

    /// Takes that a lease's bytes are back and its host memory is free.
    pub fn resumed(&mut self, now: Time, cause: &EventCause, lease: LeaseId, at: Time) -> Verdict {
        let (_, held, park) = self.move_of(lease, MoveStage::Returning)?;
        must(14, at == now, || format!("{lease} is back at {at}, and it is {now}"))?;
        // No mover is there that could bring its bytes back, or report that.
        let (none_parked, method) = (self.none_parked(lease, park.method), park.method);
        let unwrapped = method == Method::Hook && matches!(cause, EventCause::Unwrapped(of) if *of == lease);
        must(2, !self.driver_may_have(lease, park), || {
            format!("{lease} is back, and the driver may have something of it: {park:?}")
        })?;
        let given_up = none_parked && (unwrapped || self.is_overdue(now, park));
        must(3, none_parked, || {
            format!("{lease} is back, and one of its programs is not: {:?}", self.movers_of(lease, method))
        })?;
        // Bytes that came from GPUs of other leases are not known.
        let on_its_gpus = |process: &ProcKey| held.gpus.iter().any(|gpu| self.gpus[*gpu].processes.contains(process));
        let in_host_memory = self.in_host_memory.iter().filter(|_| !given_up);
        let in_host_memory = in_host_memory.filter(|((_, on), of)| *on == method && **of == lease);
        let in_host_memory = in_host_memory.map(|((process, _), _)| process).find(|process| on_its_gpus(process));
        must(3, in_host_memory.is_none(), || {
            format!("{lease} is back, and {in_host_memory:?} has its bytes in host memory")
        })?;
        must(4, given_up || park.has_readings(held, 1), || {
            format!("{lease} is back, and the readings of GPUs {:?} are {:?}", held.gpus, park.agreeing_readings)
        })?;
        let Some(book) = self.remove(lease) else { return Ok(()) };
        let LeaseStage::Park(held, park) = book.stage else { return Ok(()) };
        let until = held.until.max(now);
        // After a failed park a lease is left alone for a while from when it is back.
        let (retry_from, mut backoff) = (now + self.policy.parking.retry_after, book.backoff);
        if !park.was_resumed && backoff.until(method) != Time::ZERO {
            backoff.0[method as usize] = backoff.until(method).max(retry_from);
        }
        self.insert(
            lease,
            LeaseBook { backoff, stage: LeaseStage::Held(HeldBook { booked: Bytes::ZERO, until, ..held }), ..book },
        );
        Ok(())
    }
}
