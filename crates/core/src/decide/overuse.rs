//! Holders that have more on their cards than their leases are for.
//!
//! Sublet's library keeps a program to its lease; this is about those without it. Such a holder is told, once
//! two looks in a row have shown it, and offered a larger lease: its bytes are there already, so there is room
//! for that unless others are in need of it too. Should somebody wait, it is made to leave after a while
//! ([`super::preempt`]), in a way that loses nothing; where it cannot be, and on cards where an operator
//! enforces, it is ended. All of that stops with the look that shows it within its lease again.

use super::Decider;
use super::serve::{debt_clock_after, is_wanted};
use super::tokens::token_allows;
use crate::event::{Caller, EventAnswer, Refusal};
use crate::facts::LeaseAction;
use crate::ids::{GpuId, LeaseId};
use crate::mutant::Mutant;
use crate::quota;
use crate::rows::{Hold, Lease, Overuse, Phase, gpu_time};
use crate::state::{SLACK, State};
use crate::units::{Bytes, Span, Time};
use crate::unleased::{Mode, UnleasedProcess, UnleasedStep};

/// What is offered is rounded up to this, while nobody waits for the rest.
const ROUND: u64 = 64 << 20;

/// The most that a holder was seen to have on one of its cards.
pub fn most_on_one_gpu(state: &State, lease: LeaseId, hold: &Hold) -> Bytes {
    hold.gpus.iter().map(|card| state.room(*card).seen_of(lease)).max().unwrap_or_default()
}

/// Whether a holder that was told so has more than its lease still, by a look that counts, and that for so long.
pub(crate) fn is_overdue(state: &State, lease: &Lease, hold: &Hold, span: Span, now: Time) -> bool {
    let span = if state.planted(Mutant::OverAtOnce) { Span::ZERO } else { span };
    let is_over = |over: &Overuse| state.rows().meta.due(over.since, over.since + span) <= now;
    let still_has = |card: &GpuId| {
        let room = state.room(*card);
        let tells = room.check_readable(now, state.policy().period).is_ok() && !room.is_coarse();
        tells && room.seen_of(lease.id) > hold.vram + SLACK
    };
    // Whom a stranger has only to be parked by is not made to leave otherwise meanwhile.
    let moves =
        |stranger: &UnleasedProcess| matches!(stranger.step, UnleasedStep::Parking { lease: by, .. } if by == lease.id);
    hold.overuse().is_some_and(is_over) && hold.gpus.iter().any(still_has) && !state.rows().unleased.values().any(moves)
}

/// Whether a holder that cannot leave its cards in another way is ended for who waits: it was told long ago, and
/// all of its cards are enforced.
pub(crate) fn is_to_end(state: &State, lease: &Lease, hold: &Hold, now: Time) -> bool {
    let enforced = |card: &GpuId| state.mode(*card) == Mode::Enforce;
    let enforced = hold.gpus.iter().all(enforced) && matches!(state.unleased_readings().self_test, Some(Ok(())));
    let span = state.policy().enforcement.after_warning.max(state.policy().overuse_grace);
    (enforced || state.planted(Mutant::EndObserved)) && is_overdue(state, lease, hold, span, now)
}

/// The larger lease that a holder with more than its own could have: so much of each of its cards.
pub fn larger_lease(state: &State, lease: &Lease, now: Time) -> Option<Bytes> {
    let Phase::Active(hold) = &lease.phase else { return None };
    hold.overuse()?;
    larger_vram(state, lease, hold, now)
}

/// The same, whether or not the holder was told.
fn larger_vram(state: &State, lease: &Lease, hold: &Hold, now: Time) -> Option<Bytes> {
    let seen = most_on_one_gpu(state, lease.id, hold);
    if seen <= hold.vram || state.is_stopped() {
        return None;
    }
    // Of what is free nothing is taken from who waits for it.
    let waited_for = is_wanted(state, lease, &hold.gpus);
    let vram = if waited_for { seen } else { Bytes(seen.0.next_multiple_of(ROUND)) };
    let (is_room, vram) = match has_room(state, lease.id, hold, vram, waited_for, now) {
        false if !waited_for => (has_room(state, lease.id, hold, seen, false, now), seen),
        is_room => (is_room, vram),
    };
    ((is_room || state.planted(Mutant::GrowBlind)) && is_allowed(state, lease, hold, vram, now)).then_some(vram)
}

/// Whether a holder's cards have the room for so much: what it has there counts already.
fn has_room(state: &State, lease: LeaseId, hold: &Hold, vram: Bytes, waited_for: bool, now: Time) -> bool {
    hold.gpus.iter().all(|card| {
        let room = state.room(*card);
        let counted = room.leases().get(&lease).map_or(Bytes::ZERO, |claim| claim.counted());
        let lacks = vram.less(counted);
        let is_open = state.in_service(*card) && !state.is_restoring_on(*card) && !room.is_coarse();
        // Where more was promised than there is, nothing more is.
        let is_covered = room.committed().is_some_and(|committed| committed <= room.total());
        let is_open = is_open && is_covered && room.check_readable(now, state.policy().period).is_ok();
        is_open && lacks <= if waited_for { Bytes::ZERO } else { state.promisable(*card, now) }
    })
}

/// Whether quotas and budgets leave a holder so much.
fn is_allowed(state: &State, lease: &Lease, hold: &Hold, vram: Bytes, now: Time) -> bool {
    let (cards, day) = (&state.rows().gpus, state.rows().meta.day);
    let more = Bytes(vram.less(hold.vram).0.saturating_mul(hold.gpus.len() as u64));
    let costs = |vram: Bytes| gpu_time(cards, &hold.gpus, vram, hold.until.since(now)).0;
    let before = if hold.day == day { costs(hold.vram) } else { 0 };
    let time = Span(costs(vram).saturating_sub(before));
    quota::allows_more(state, lease, more, time) && token_allows(state, lease, more)
}

impl Decider<'_> {
    /// A card was looked at: who has more there than its lease is told, and who has not any more is let be. A lease whose
    /// size was measured grows instead, if there is room.
    pub(super) fn check_overuse(&mut self, card: GpuId) {
        if self.state.is_stopped() {
            return;
        }
        for (lease, has) in self.state.overuse_on(card) {
            let Some(row) = self.state.lease(lease) else { continue };
            let Phase::Active(hold) = &row.phase else { continue };
            if has
                && row.request.is_measured
                && let Some(vram) = larger_vram(self.state, row, hold, self.now)
            {
                self.enlarge(lease, vram);
                continue;
            }
            let seen = most_on_one_gpu(self.state, lease, hold);
            match hold.overuse() {
                // A measured lease without room to grow: its user is not told of so little.
                _ if has && seen <= hold.vram + SLACK => {}
                // Once, and again when it is much more.
                Some(told) if has && seen < told.seen_bytes + SLACK.max(Bytes(told.seen_bytes.0 / 8)) => {}
                _ if has => self.emit(LeaseAction::FlagOveruse { lease, at: self.now, seen_bytes: seen }),
                Some(_) if self.state.is_within(lease, hold) => self.emit(LeaseAction::ClearOveruse { lease }),
                _ => {}
            }
        }
    }

    /// Whether a lease is one that has more than it is for, and the caller may know of it.
    pub(super) fn is_overusing(&self, by: &Caller, lease: LeaseId) -> bool {
        let row = self.find(by, lease).ok();
        row.is_some_and(|row| matches!(&row.phase, Phase::Active(hold) if hold.overuse().is_some()))
    }

    /// Its holder takes a larger one.
    pub(super) fn accept_larger(&mut self, by: &Caller, lease: LeaseId, vram: Bytes, gpus: u16) -> EventAnswer {
        if let Some(stopped) = self.state.stopped() {
            return EventAnswer::Refused(stopped);
        }
        // Whoever can start now does so first.
        self.serve();
        let Ok(row) = self.find(by, lease) else { return EventAnswer::Refused(Refusal::NoSuchLease) };
        let Phase::Active(hold) = &row.phase else { return EventAnswer::Refused(Refusal::NotWaiting) };
        let (cards, offered) = (hold.gpus.len(), larger_lease(self.state, row, self.now));
        // What it has must be in it: who would have more still is no better off.
        let enough = vram > hold.vram && most_on_one_gpu(self.state, lease, hold) <= vram + SLACK;
        if !enough || usize::from(gpus) != cards || offered.is_none_or(|offered| vram > offered) {
            return EventAnswer::Refused(Refusal::NotLarger { instead: offered });
        }
        self.enlarge(lease, vram);
        EventAnswer::Lease(lease)
    }

    /// An active lease gets this much of each of its cards, and is charged for what that adds.
    fn enlarge(&mut self, lease: LeaseId, vram: Bytes) {
        let Some(row) = self.state.lease(lease) else { return };
        let Phase::Active(hold) = &row.phase else { return };
        let left = hold.until.since(self.now);
        let mark = debt_clock_after(self.state, row.tenant, vram.less(hold.vram), hold.gpus.len(), left, self.now);
        let mark = (!self.state.planted(Mutant::GrowFree)).then_some(mark);
        self.emit(LeaseAction::Enlarge { lease, at: self.now, vram, debt_clock: mark });
    }
}
