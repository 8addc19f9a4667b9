//! Rule 9: a time slice is stretched by one more at most.
//!
//! Core's answer that a lease stays for its time slice is compared with the slice itself: the larger of the least slice
//! and a multiple of the lease's moves, as they were measured.

use super::{Verdict, must};
use sublet_core::cost::Direction;
use sublet_core::ids::GpuId;
use sublet_core::method::Method;
use sublet_core::policy::preemption::{NotPreemptable, preemption_option};
use sublet_core::rows::Lease;
use sublet_core::state::State;
use sublet_core::units::{Bytes, Span, Time};

/// Compared after this many events, for this many waiters at the head.
const EVERY: u64 = 8;
const WAITERS: usize = 2;

/// The number of events so far.
#[derive(Debug, Default)]
pub struct Slices {
    events: u64,
}

impl Slices {
    /// Checks the slices after an event.
    pub fn after(&mut self, now: Time, state: &State) -> Verdict {
        self.events += 1;
        if !self.events.is_multiple_of(EVERY) || state.movable().next().is_none() {
            return Ok(());
        }
        let waiters = state.queue().iter().take(WAITERS).filter_map(|(id, _)| state.lease(id));
        for waiter in waiters {
            for holder in state.movable() {
                let Err(NotPreemptable::Turn { until }) = preemption_option(state, waiter, holder, now) else {
                    continue;
                };
                let Some(hold) = holder.hold() else { continue };
                let latest = hold.slice_began() + Span(2 * slice(state, holder).0);
                must(9, until <= latest, || {
                    format!("{} keeps its GPUs until {until}, and two slices are over at {latest}", holder.id)
                })?;
            }
        }
        Ok(())
    }
}

fn slice(state: &State, holder: &Lease) -> Span {
    let (parking, live) = (&state.policy().parking, state.readings(holder.id));
    let program = live.map_or("", |live| live.program.as_str());
    let gpus = holder.hold().into_iter().flat_map(|hold| &hold.gpus);
    // Where its bytes cannot be seen, it may have as much as its lease allows.
    let on = |gpu: &GpuId| match state.room(*gpu).is_coarse() {
        true => holder.hold().map(|hold| hold.vram).unwrap_or_default(),
        false => state.room(*gpu).seen_of(holder.id),
    };
    let bytes: Bytes = gpus.map(on).sum();
    let costs = &state.rows().tenants[holder.tenant].costs;
    let is_open = |method: &Method| live.is_some_and(|live| !live.movers(*method).is_empty());
    let moves = |method: Method| {
        costs.estimate(program, method, Direction::OffGpu, bytes)
            + costs.estimate(program, method, Direction::OntoGpu, bytes)
    };
    let rungs = Method::REVERSIBLE.into_iter().filter(is_open).map(moves);
    // A lease that is ended has its notice, too.
    let notice = holder.request.notice.map_or(Span::ZERO, |notice| notice.before);
    let ends =
        holder.request.may_be_ended().then(|| costs.estimate(program, Method::End, Direction::OffGpu, bytes) + notice);
    let moves = rungs.chain(ends).max().unwrap_or_default();
    parking.slice_min.max(Span(moves.0.saturating_mul(parking.slice_per_move.into())))
}
