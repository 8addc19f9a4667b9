//! When a waiter is expected to start, by how long leases lasted so far.
//!
//! The queue is played forward `SAMPLES` times. Each time every lease in the way ends at another
//! moment, drawn from what is left of leases of its kind ([`crate::model::durations`]); an idle one leaves
//! at once, and one of equal rank after its time slice. The waiters then start in their order:
//!
//! ```text
//! GPU 0   L1 ▒▒▒▒▒▒▒▒▏drawn end        L2 ▒▒▒▒▒▒▒▒▒▒▒
//! GPU 1   L3 ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▏slice over  L4 ▒▒▒
//!         now ──────► L2 starts   ► L4 starts
//! ```
//! The draws are spread evenly and follow from the leases' numbers, so the same state gives the same
//! answer. Requests that come later and go first are not known here: that is what the worst case
//! ([`super::explain::bound`]) is for.

use crate::model::cost::Direction;
use crate::model::durations::{AllDurations, LeaseKind, Lifetime, ONE};
use crate::model::ids::{GpuId, LeaseId, TenantId};
use crate::model::lateness::ExpectedWait;
use crate::model::method::Method;
use crate::model::request::{Exclusivity, Term, Tier, Vram};
use crate::model::rows::{Lease, Phase};
use crate::model::units::{Bytes, Span, Time};
use crate::policy::eligibility::needed_bytes;
use crate::policy::estimates::{FreeTimeline, blockers};
use crate::policy::moves::{move_duration, price_of_leaving};
use crate::policy::placement::could_host;
use crate::policy::preemption::NotPreemptable;
use crate::policy::room_plan::RoomPlan;
use crate::policy::waiters::waiters_within_quota;
use crate::policy::{preemption, room_plan};
use crate::state::State;
use std::collections::BTreeMap;

/// How often the queue is played forward.
const SAMPLES: u64 = 24;

/// Of the starts in order, the median and the ninth of ten.
const P50: usize = 11;
const P90: usize = 21;

/// The first waiters that are played, at most.
const WAITERS: usize = 32;

/// And at least, however much work each of them is.
const WAITERS_MIN: usize = 4;

/// Steps of all GPUs times waiters are no more than this in one sample.
const WORK: usize = 40_000;

/// When a waiter should start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedStart {
    /// With even odds.
    pub p50: Time,
    /// In nine of ten cases.
    pub p90: Time,
}

/// A lease in the way.
struct Holder {
    lease: LeaseId,
    /// It has left by then whatever happens; [`Time::NEVER`] if that cannot be known.
    worst: Time,
    /// What is known of how long it lasts; `None` if it leaves at `worst`.
    life: Option<(Lifetime, Span)>,
    /// It cannot be known when it leaves.
    unknown: bool,
    /// The time from its end until its room is seen to be free.
    seen: Span,
}

/// What a waiter needs, and for how long.
struct Waiter<'a> {
    row: &'a Lease,
    gpus: Vec<(GpuId, Bytes)>,
    life: Option<Lifetime>,
    longest: Span,
    /// Its time slice, if it can be parked for those behind it.
    slice: Option<Span>,
}

/// A GPU as it is now.
struct GpuForecast {
    gpu: GpuId,
    free: Bytes,
    /// What each holder, by its number, will give back.
    gives: Vec<(usize, Bytes)>,
}

/// A GPU in one sample.
struct SampledGpu {
    timeline: FreeTimeline,
    pieces: Vec<Piece>,
    /// Of all leases there it is known how long such leases last.
    known: bool,
}

/// A lease on a GPU of one sample.
struct Piece {
    /// Of a waiter that was placed: from then on it may be parked for an equal. `None`: as [`Forecast::leaves`] says.
    slice: Option<(Class, Time)>,
    lease: LeaseId,
    bytes: Bytes,
    leaves: Time,
}

/// Tier and priority: they decide which lease leaves for which waiter.
type Class = (Tier, i8);

/// All that does not differ between samples.
struct Forecast<'a> {
    now: Time,
    seen: Span,
    holders: Vec<Holder>,
    waiters: Vec<Waiter<'a>>,
    gpus: Vec<GpuForecast>,
    /// When a holder leaves for a waiter, if it does: holder first.
    leaves: BTreeMap<(LeaseId, LeaseId), Time>,
}

/// When each of the first waiters should start, as late as waiters really do. One that is not in it is
/// too far back, or what is in its way cannot be known.
pub fn expected(state: &State, now: Time) -> BTreeMap<LeaseId, ExpectedStart> {
    let lateness = &state.rows().meta.lateness;
    let corrected = |expected: ExpectedStart| {
        let wait = ExpectedWait { p50: expected.p50.since(now), p90: expected.p90.since(now) };
        let ExpectedWait { p50, p90 } = lateness.correct(wait);
        ExpectedStart { p50: now + p50, p90: now + p90 }
    };
    uncorrected(state, now).into_iter().map(|(lease, expected)| (lease, corrected(expected))).collect()
}

/// The same by what is known now alone.
pub(crate) fn uncorrected(state: &State, now: Time) -> BTreeMap<LeaseId, ExpectedStart> {
    let field = Forecast::new(state, now);
    let mut starts: BTreeMap<LeaseId, Vec<Time>> = BTreeMap::new();
    for sample in 0..SAMPLES {
        for (lease, at) in field.play(sample) {
            starts.entry(lease).or_default().push(at);
        }
    }
    let of = |(lease, mut all): (LeaseId, Vec<Time>)| {
        all.sort();
        // Where it never starts in some samples, those are the latest.
        let at = |n: usize| all.get(n).copied();
        Some((lease, ExpectedStart { p50: at(P50)?, p90: at(P90)? }))
    };
    starts.into_iter().filter_map(of).collect()
}

/// A number between 0 and [`ONE`] for a lease in a sample: over all samples they are spread evenly.
fn draw(lease: LeaseId, sample: u64) -> u64 {
    let mixed = (lease.0 ^ 0x5bd1_e995).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    // 5, 7, 11 … have no factor in common with 24: each step visits every slot once.
    let step = [1, 5, 7, 11, 13, 17, 19, 23][(mixed >> 32) as usize % 8];
    let slot = (sample * step + (mixed >> 40)) % SAMPLES;
    (slot * 2 + 1) * ONE / (2 * SAMPLES)
}

impl<'a> Forecast<'a> {
    fn new(state: &'a State, now: Time) -> Forecast<'a> {
        let everybody = AllDurations::new(state.rows().tenants.iter().map(|tenant| &tenant.durations));
        let period = state.policy().period;
        let usable = |gpu: &GpuId| state.in_service(*gpu) && state.room(*gpu).check_readable(now, period).is_ok();
        let mut holders: Vec<Holder> = Vec::new();
        let mut numbers: BTreeMap<LeaseId, usize> = BTreeMap::new();
        let mut gpus = Vec::new();
        let mut pieces = 0;
        for gpu in state.gpus().filter(usable) {
            let mut gives = Vec::new();
            for (worst, row, bytes) in blockers(state, gpu, now) {
                let number = *numbers.entry(row.id).or_insert_with(|| {
                    holders.push(Holder::new(state, &everybody, row, worst, now));
                    holders.len() - 1
                });
                gives.push((number, bytes));
            }
            pieces += gives.len() + 1;
            gpus.push(GpuForecast { gpu, free: state.promisable(gpu, now), gives });
        }
        let most = (WORK / pieces.max(1)).clamp(WAITERS_MIN, WAITERS);
        let waiters = waiters_within_quota(state).take(most).map(|row| Waiter::new(state, &everybody, row, &gpus));
        let waiters: Vec<Waiter<'a>> = waiters.collect();
        let leaves = leaves(state, now);
        let seen = state.policy().next_reading();
        Forecast { now, seen, holders, waiters, gpus, leaves }
    }

    /// One way the queue could go: when each waiter starts.
    fn play(&self, sample: u64) -> Vec<(LeaseId, Time)> {
        let ends: Vec<(Time, bool)> = self.holders.iter().map(|holder| holder.end(self.now, sample)).collect();
        let mut gpus: Vec<SampledGpu> = Vec::new();
        for GpuForecast { gpu, free, gives } in &self.gpus {
            let (mut pieces, mut known) = (Vec::new(), true);
            let mut steps: Vec<(Time, Bytes)> = Vec::new();
            for (number, bytes) in gives {
                let (at, unknown) = ends[*number];
                known &= !unknown;
                steps.push((at, *bytes));
                let lease = self.holders[*number].lease;
                pieces.push(Piece { slice: None, lease, bytes: *bytes, leaves: at });
            }
            steps.sort();
            let timeline = FreeTimeline::filling(*gpu, self.now, *free, &steps);
            gpus.push(SampledGpu { timeline, pieces, known });
        }
        let mut starts = Vec::new();
        for waiter in &self.waiters {
            match self.place(waiter, sample, &mut gpus) {
                Some(at) => starts.push((waiter.row.id, at)),
                // What is left for those behind it cannot be known.
                None => break,
            }
        }
        starts
    }

    /// Starts a waiter as early as it can be, and books its room.
    fn place(&self, waiter: &Waiter<'_>, sample: u64, gpus: &mut [SampledGpu]) -> Option<Time> {
        let class = class_of(waiter.row);
        let lasts = match &waiter.life {
            Some(life) => life.remaining(Span::ZERO, draw(waiter.row.id, sample)).min(waiter.longest),
            None => waiter.longest,
        };
        let wanted = usize::from(waiter.row.request.gpus);
        // The earliest moment on each GPU: by itself, or by preempting other leases.
        let mut found: Vec<(Time, usize, Bytes, bool)> = Vec::new();
        for (number, SampledGpu { timeline, pieces, known }) in gpus.iter().enumerate() {
            let Some((_, need)) = waiter.gpus.iter().find(|(gpu, _)| *gpu == timeline.gpu) else { continue };
            let by_itself = timeline.earliest(*need, lasts).filter(|_| *known);
            let made = self.made_by(waiter, timeline, pieces, *need, lasts);
            match (by_itself, made) {
                (None, None) => {}
                (Some(at), made) if made.is_none_or(|made| at <= made) => found.push((at, number, *need, false)),
                (_, Some(made)) => found.push((made, number, *need, true)),
                (Some(at), None) => found.push((at, number, *need, false)),
            }
        }
        found.sort();
        let at = found.get(wanted.checked_sub(1)?)?.0;
        for (_, number, need, is_made) in found.into_iter().take(wanted) {
            let SampledGpu { timeline, pieces, .. } = &mut gpus[number];
            if is_made {
                self.make(waiter, timeline, pieces, need, at);
            }
            let lasts = lasts + self.seen;
            timeline.book(need, at, at + lasts);
            // A job that is soon done is let to finish.
            let until = |slice: Span| at + if lasts.0 <= 2 * slice.0 { lasts } else { slice };
            let slice = waiter.slice.map(|slice| (class, until(slice)));
            pieces.push(Piece { slice, lease: waiter.row.id, bytes: need, leaves: at + lasts });
        }
        Some(at)
    }

    /// When a lease leaves for a waiter, if before its own end.
    fn leaves(&self, waiter: &Waiter<'_>, piece: &Piece) -> Option<Time> {
        let class = class_of(waiter.row);
        let at = match piece.slice {
            Some(((tier, priority), slice)) if tier > class.0 || (tier == class.0 && priority <= class.1) => slice,
            Some(_) => return None,
            None => *self.leaves.get(&(piece.lease, waiter.row.id))?,
        };
        (at < piece.leaves).then_some(at)
    }

    /// The leases that leave a GPU for a waiter, the first to leave first.
    fn leaving(&self, waiter: &Waiter<'_>, pieces: &[Piece]) -> Vec<(Time, usize)> {
        let each = pieces.iter().enumerate();
        let mut leaving: Vec<(Time, usize)> =
            each.filter_map(|(number, piece)| Some((self.leaves(waiter, piece)?, number))).collect();
        leaving.sort();
        leaving
    }

    /// When enough is free on a GPU if leases leave for the waiter.
    fn made_by(
        &self,
        waiter: &Waiter<'_>,
        timeline: &FreeTimeline,
        pieces: &[Piece],
        need: Bytes,
        lasts: Span,
    ) -> Option<Time> {
        let mut gained = Bytes::ZERO;
        for (at, number) in self.leaving(waiter, pieces) {
            gained = gained + pieces[number].bytes;
            if timeline.has(need.less(gained), at, at + lasts) {
                return Some(at);
            }
        }
        None
    }

    /// Lets leases leave until there is room for the waiter.
    fn make(&self, waiter: &Waiter<'_>, timeline: &mut FreeTimeline, pieces: &mut [Piece], need: Bytes, at: Time) {
        for (leaves, number) in self.leaving(waiter, pieces) {
            if leaves > at || timeline.has(need, at, at + Span(1)) {
                break;
            }
            timeline.give_back(pieces[number].bytes, leaves, pieces[number].leaves);
            pieces[number].leaves = leaves;
        }
    }
}

fn class_of(row: &Lease) -> Class {
    (row.first_request().tier, row.first_request().priority)
}

impl Holder {
    fn new(state: &State, everybody: &AllDurations, row: &Lease, worst: Time, now: Time) -> Holder {
        let seen = now + state.policy().next_reading();
        let worst = match row.park_state() {
            Some(park) if matches!(row.phase, Phase::Parking(..)) => {
                seen.max(park.since + move_duration(state, row, park.method, Direction::OffGpu))
            }
            // What ends is seen to be gone with the next reading.
            _ => worst.max(now) + state.policy().next_reading(),
        };
        let leaving = matches!(row.phase, Phase::Ending(..) | Phase::Parking(..));
        // A fixed term is taken at its word.
        let hold = row.hold().filter(|_| !leaving && !row.has_fixed_term());
        let life = hold.and_then(|hold| {
            let program = state.readings(row.id).map(|readings| readings.program.as_str());
            let kind = LeaseKind::new(row.first_request().tier, hold.vram, hold.gpus.len());
            let own = &state.rows().tenants[row.tenant].durations;
            Some((everybody.lifetime(own, program, kind)?, hold.time_on_gpus(now)))
        });
        let unknown = life.is_none() && hold.is_some();
        Holder { lease: row.id, worst, life, unknown, seen: state.policy().next_reading() }
    }

    /// When it leaves in a sample, and whether that cannot be known.
    fn end(&self, now: Time, sample: u64) -> (Time, bool) {
        match &self.life {
            Some((life, lasted)) => {
                let left = life.remaining(*lasted, draw(self.lease, sample));
                ((now + left + self.seen).min(self.worst), false)
            }
            None => (self.worst, self.unknown),
        }
    }
}

impl<'a> Waiter<'a> {
    fn new(state: &State, everybody: &AllDurations, row: &'a Lease, usable: &[GpuForecast]) -> Waiter<'a> {
        let policy = state.policy();
        let able = usable.iter().filter(|gpu| could_host(state, row, gpu.gpu));
        // If it shares with no other lease, all leases there have to leave first.
        let alone = row.request.vram == Vram::Whole || row.request.exclusivity != Exclusivity::Shared;
        let needs = |gpu: &GpuForecast| match alone {
            true => (gpu.gpu, gpu.free + gpu.gives.iter().map(|(_, bytes)| *bytes).sum()),
            false => (gpu.gpu, needed_bytes(state, &row.request, gpu.gpu)),
        };
        let gpus: Vec<(GpuId, Bytes)> = able.map(needs).collect();
        let whole = gpus.iter().map(|(gpu, _)| state.room(*gpu).largest_ever()).max().unwrap_or_default();
        let life = || lifetime_of(state, everybody, row.tenant, LeaseKind::of(row.first_request(), whole));
        let life = if row.has_fixed_term() { None } else { life() };
        let longest = match row.request.term {
            Term::Fixed(term) => term,
            Term::Renewed(_) => policy.hold_max,
        };
        let parking = &policy.parking;
        let slices = parking.preempt && parking.space > Bytes::ZERO;
        let bytes = gpus.first().map_or(Bytes::ZERO, |(_, need)| *need);
        let moves = match row.hold() {
            Some(_) => price_of_leaving(state, row, Method::Shim),
            None => {
                let costs = &state.rows().tenants[row.tenant].costs;
                costs.estimate("", Method::Shim, Direction::OffGpu, bytes)
                    + costs.estimate("", Method::Shim, Direction::OntoGpu, bytes)
            }
        };
        let slice = parking.slice_min.max(Span(moves.0.saturating_mul(parking.slice_per_move.into())));
        Waiter { row, gpus, life, longest, slice: slices.then_some(slice) }
    }
}

fn lifetime_of(state: &State, everybody: &AllDurations, tenant: TenantId, kind: LeaseKind) -> Option<Lifetime> {
    everybody.lifetime(&state.rows().tenants[tenant].durations, None, kind)
}

/// Which leases leave for which of the first waiters because room is made, and when: as it was just decided,
/// or when time slices are over.
fn leaves(state: &State, now: Time) -> BTreeMap<(LeaseId, LeaseId), Time> {
    let mut leaves = BTreeMap::new();
    if !state.policy().parking.preempt || state.movable().next().is_none() {
        return leaves;
    }
    let seen = state.policy().next_reading();
    for (waiter, making) in room_plan::room_plans(state, now) {
        match making {
            RoomPlan::Plan { victims, .. } => {
                leaves.extend(victims.iter().map(|(lease, how)| ((*lease, waiter), now + how.out + seen)));
            }
            RoomPlan::Nothing => {
                let Some(row) = state.lease(waiter) else { continue };
                for holder in state.movable() {
                    if let Err(NotPreemptable::Turn { until }) = preemption::preemption_option(state, row, holder, now)
                    {
                        let out = move_duration(state, holder, Method::Shim, Direction::OffGpu) + seen;
                        leaves.insert((holder.id, waiter), until.max(now) + out);
                    }
                }
            }
            RoomPlan::Coming(_)
            | RoomPlan::Wait { .. }
            | RoomPlan::Ram { .. }
            | RoomPlan::Cap { .. }
            | RoomPlan::Pauses => {}
        }
    }
    leaves
}
