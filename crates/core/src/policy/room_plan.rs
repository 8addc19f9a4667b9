//! Which leases should leave so that each of the first waiters has room, and when waiting is better.
//!
//! The cheapest set that makes the room is chosen ([`super::plan`]), unless the room comes sooner by itself.

use crate::model::cost::Direction;
use crate::model::ids::{GpuId, LeaseId, TenantId};
use crate::model::method::Method;
use crate::model::mutant::Mutant;
use crate::model::request::{Exclusivity, Vram};
use crate::model::rows::{Lease, Phase};
use crate::model::table::GpuTable;
use crate::model::units::{Bytes, Span, Time};
use crate::policy::eligibility::needed_bytes;
use crate::policy::moves::{is_backing_off, move_duration};
use crate::policy::placement::{blocking_leases, could_host};
use crate::policy::plan::{GpuNeed, Victim};
use crate::policy::preemption::{
    NotPreemptable, ParkingSpace, PreemptionOption, is_within_slice, preemption_option, preemption_option_in,
};
use crate::policy::resume::with_present_need;
use crate::policy::waiters::waiters_within_quota;
use crate::policy::{contexts, parking, plan};
use crate::state::State;
use crate::state::room::Room;
use std::collections::{BTreeMap, BTreeSet};

/// Waiters that get a plan at a time.
const AT_A_TIME: usize = 4;

/// Plans that are tried for a waiter when the first takes more host memory than there is.
const OTHER_PLANS: usize = 8;

/// What could be done so that a waiter has room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoomPlan {
    /// Enough is on its way already, on these GPUs.
    Coming(Vec<GpuId>),
    /// These leases should leave.
    Plan {
        /// The GPUs that it would have.
        gpus: Vec<GpuId>,
        /// The leases, and how each leaves.
        victims: Vec<(LeaseId, PreemptionOption)>,
        /// The price of all of it.
        price: Span,
    },
    /// Its room comes by itself then, sooner than it could be made.
    Wait {
        /// When.
        until: Time,
        /// What making it would cost.
        price: Span,
    },
    /// The parking space is too small for all leases that would have to leave.
    Ram {
        /// Bytes that they need.
        need: Bytes,
        /// Bytes that can be booked now; `None` if the host's memory cannot be read.
        room: Option<Bytes>,
    },
    /// A tenant whose leases would have to leave may not have that much parked.
    Cap {
        /// The tenant's cap.
        cap: Bytes,
    },
    /// No lease leaves for it now: it was parked a moment ago, or comes back only into room that is there.
    Pauses,
    /// No lease that could be preempted would make the room.
    Nothing,
}

/// Whether the contexts of programs that the library parks stay on their GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contexts {
    Stay,
    /// They leave too, where they can.
    Leave,
}

/// The leases that could leave for a waiter, and the GPUs on which it could be then.
struct Candidates<'a> {
    /// GPUs that would do.
    gpus: Vec<GpuId>,
    found: Vec<(&'a Lease, PreemptionOption)>,
    victims: Vec<Victim>,
    sites: Vec<GpuNeed>,
}

/// What GPUs will have, of what is free and what is leaving, while room is planned for one waiter after another.
pub struct RoomForecast {
    rooms: GpuTable<Bytes>,
    /// By GPU: a waiter ahead needs it, and no plan makes its room.
    closed: GpuTable<bool>,
    ram: Option<Bytes>,
    /// Host memory of each tenant's leases that are to leave for waiters ahead.
    taken: BTreeMap<TenantId, Bytes>,
    /// Leases that are to leave for waiters ahead.
    asked: BTreeSet<LeaseId>,
}

impl RoomForecast {
    /// The GPUs as they are now.
    pub fn new(state: &State, now: Time) -> RoomForecast {
        let coming = |gpu: GpuId| -> Bytes {
            if state.planted(Mutant::TwiceForOne) {
                return Bytes::ZERO;
            }
            let leaving = state.room(gpu).ends().iter().take_while(|(at, ..)| *at == Time::ZERO);
            leaving.map(|(.., gives)| *gives).sum::<Bytes>() + contexts::bytes_leaving(state, gpu, now)
        };
        let room = |gpu: GpuId| match state.room(gpu).check_readable(now, state.policy().period) {
            Ok(()) if state.in_service(gpu) => state.promisable(gpu, now) + coming(gpu),
            _ => Bytes::ZERO,
        };
        let rooms: GpuTable<Bytes> = state.gpus().map(room).collect();
        RoomForecast {
            closed: rooms.iter().map(|_| false).collect(),
            rooms,
            ram: parking::free_parking_space(state),
            taken: BTreeMap::new(),
            asked: BTreeSet::new(),
        }
    }

    /// The leases that could leave for a waiter, without those in `stay`, and the GPUs on which it could be then.
    fn candidates<'a>(
        &self,
        state: &'a State,
        waiter: &Lease,
        stay: &BTreeSet<LeaseId>,
        (contexts, space): (Contexts, ParkingSpace),
        now: Time,
    ) -> Candidates<'a> {
        let gpus: Vec<GpuId> = state.gpus().filter(|gpu| could_host(state, waiter, *gpu)).collect();
        let open = |gpu: &GpuId| !self.closed[*gpu] && !state.is_restoring_on(*gpu);
        let readable = |gpu: &GpuId| state.room(*gpu).check_readable(now, state.policy().period).is_ok();
        let able: Vec<GpuId> = gpus.iter().copied().filter(open).filter(readable).collect();
        let is_free = |row: &Lease| row.id != waiter.id && !self.asked.contains(&row.id) && !stay.contains(&row.id);
        let holders = state.movable().filter(|row| is_free(row));
        let on_able = |row: &&Lease| row.hold().is_some_and(|hold| hold.gpus.iter().any(|gpu| able.contains(gpu)));
        let holders = holders.filter(on_able).filter(|row| !is_within_slice(state, waiter, row, now));
        let found = holders.filter_map(|row| Some((row, preemption_option_in(space, state, waiter, row, now).ok()?)));
        let mut found: Vec<(&Lease, PreemptionOption)> = found.collect();
        if contexts == Contexts::Leave {
            for (row, option) in &mut found {
                let can_leave =
                    row.hold().is_some_and(|hold| contexts::removable_after_park(state, row, hold, now).is_ok());
                option.with_context = option.method == Method::Shim && can_leave;
            }
            found.extend(self.parked_contexts(state, waiter, &able, now));
        }
        let victims: Vec<Victim> = found.iter().map(|(row, option)| victim(state, row, option)).collect();
        let sites: Vec<GpuNeed> = able.iter().filter_map(|gpu| self.gpu_need(state, waiter, *gpu, &victims)).collect();
        Candidates { gpus, found, victims, sites }
    }

    /// Parked leases whose contexts could leave these GPUs for a waiter. Those that wait ahead of it keep theirs.
    fn parked_contexts<'a>(
        &self,
        state: &'a State,
        waiter: &Lease,
        gpus: &[GpuId],
        now: Time,
    ) -> Vec<(&'a Lease, PreemptionOption)> {
        let ahead: BTreeSet<LeaseId> =
            waiters_within_quota(state).map(|ahead| ahead.id).take_while(|id| *id != waiter.id).collect();
        let mut ids: Vec<LeaseId> =
            gpus.iter().flat_map(|gpu| contexts::removable_on(state, *gpu, now)).map(|(lease, _)| lease).collect();
        ids.sort();
        ids.dedup();
        let is_free = |id: &LeaseId| !ahead.contains(id) && !self.asked.contains(id) && *id != waiter.id;
        // The contexts of some leases leave anyway.
        let stays = |row: &&Lease| row.park_state().is_some_and(|park| !park.with_context);
        let free = ids.into_iter().filter(is_free);
        let option = |row: &Lease| {
            let left: Bytes = row
                .hold()
                .map_or(Bytes::ZERO, |hold| hold.gpus.iter().map(|gpu| state.room(*gpu).seen_of(row.id)).sum());
            let (out, back) = contexts::costs(state, row, left);
            PreemptionOption {
                rank: 0,
                method: Method::Driver,
                out,
                loss: Span::ZERO,
                back,
                idle: true,
                with_context: true,
            }
        };
        free.filter_map(|id| state.lease(id)).filter(stays).map(|row| (row, option(row))).collect()
    }

    /// What it would cost to make a waiter's room on each GPU by itself, where that is possible.
    fn prices(&self, state: &State, waiter: &Lease, now: Time) -> Vec<(GpuId, Span)> {
        let Candidates { victims, sites, .. } = self.candidates(
            state,
            &with_present_need(state, waiter),
            &BTreeSet::new(),
            (Contexts::Stay, ParkingSpace::Limited),
            now,
        );
        let price = |site: &GpuNeed| Some((site.gpu, plan::cheapest(std::slice::from_ref(site), 1, &victims)?.price));
        sites.iter().filter_map(price).collect()
    }

    /// What could be done for a waiter, after all waiters that were planned before it.
    pub fn plan_room(&mut self, state: &State, waiter: &Lease, now: Time) -> RoomPlan {
        let waiter = &*with_present_need(state, waiter);
        let wanted = usize::from(waiter.request.gpus);
        let mut stay = BTreeSet::new();
        let mut lacking = RoomPlan::Nothing;
        let mut contexts = Contexts::Stay;
        let (question, choice, takes) = loop {
            let question = self.candidates(state, waiter, &stay, (contexts, ParkingSpace::Limited), now);
            let Some(choice) = plan::cheapest(&question.sites, wanted, &question.victims) else {
                // Without the contexts of parked programs there may be room.
                if contexts == Contexts::Stay && state.policy().parking.context_after.is_some() {
                    contexts = Contexts::Leave;
                    continue;
                }
                if lacking == RoomPlan::Nothing {
                    lacking = self.lacking_space(state, waiter, now);
                }
                question.gpus.iter().for_each(|gpu| self.closed[*gpu] = true);
                return lacking;
            };
            let takes = host_memory(state, &question, &choice.victims, now);
            // Together they take more host memory than there is: the same without the one that takes most of it.
            let Some((too_much, what)) = self.beyond_memory(state, &takes) else { break (question, choice, takes) };
            lacking = what;
            if stay.len() >= OTHER_PLANS {
                question.gpus.iter().for_each(|gpu| self.closed[*gpu] = true);
                return lacking;
            }
            stay.insert(too_much);
        };
        let Candidates { found, victims, sites, .. } = question;
        if choice.victims.is_empty() {
            self.reserve(state, waiter, &choice.gpus);
            return RoomPlan::Coming(choice.gpus);
        }
        let chosen: Vec<(LeaseId, PreemptionOption)> =
            choice.victims.iter().map(|at| (found[*at].0.id, found[*at].1.clone())).collect();
        let price = choice.price;
        if let Some(until) = self.comes_by_itself(state, waiter, &sites, wanted, now)
            && until.since(now) <= price
        {
            self.reserve(state, waiter, &choice.gpus);
            return RoomPlan::Wait { until, price };
        }
        for (_, tenant, bytes) in takes {
            self.ram = self.ram.map(|ram| ram.less(bytes));
            let taken = self.taken.entry(tenant).or_default();
            *taken = *taken + bytes;
        }
        self.asked.extend(chosen.iter().map(|(lease, _)| *lease));
        for at in &choice.victims {
            for (gpu, bytes) in &victims[*at].gains {
                let room = &mut self.rooms[*gpu];
                *room = *room + *bytes;
            }
        }
        self.reserve(state, waiter, &choice.gpus);
        RoomPlan::Plan { gpus: choice.gpus, victims: chosen, price }
    }

    /// [`RoomPlan::Ram`] if unlimited parking space would make the room, else [`RoomPlan::Nothing`].
    fn lacking_space(&self, state: &State, waiter: &Lease, now: Time) -> RoomPlan {
        let question = self.candidates(state, waiter, &BTreeSet::new(), (Contexts::Stay, ParkingSpace::Unlimited), now);
        let choice = plan::cheapest(&question.sites, usize::from(waiter.request.gpus), &question.victims);
        let takes = |at: &usize| {
            let (row, option) = &question.found[*at];
            parking::parkable_with_unlimited_space(state, row, option.method, now).ok()
        };
        let need: Bytes = choice.into_iter().flat_map(|choice| choice.victims).filter_map(|at| takes(&at)).sum();
        // If there is enough of it, a user's own cap on parked bytes is what is in the way.
        match need > Bytes::ZERO && self.ram.is_none_or(|room| room < need) {
            true => RoomPlan::Ram { need, room: self.ram },
            false => RoomPlan::Nothing,
        }
    }

    /// The lease of a plan that takes most of a host memory that is too small for all of the plan, and what is too
    /// small.
    fn beyond_memory(&self, state: &State, takes: &[(LeaseId, TenantId, Bytes)]) -> Option<(LeaseId, RoomPlan)> {
        let all: Bytes = takes.iter().map(|(.., bytes)| *bytes).sum();
        let lacks_ram = all > Bytes::ZERO && self.ram.is_none_or(|ram| ram < all);
        let over = |tenant: TenantId| {
            let own: Bytes = takes.iter().filter(|(_, of, _)| *of == tenant).map(|(.., bytes)| *bytes).sum();
            let before =
                parking::booked_by_tenant(state, tenant) + self.taken.get(&tenant).copied().unwrap_or_default();
            state.ledger().caps(tenant).parked.filter(|cap| own > Bytes::ZERO && before + own > *cap)
        };
        let what = |tenant: TenantId| match over(tenant) {
            _ if lacks_ram => Some(RoomPlan::Ram { need: all, room: self.ram }),
            cap => cap.map(|cap| RoomPlan::Cap { cap }),
        };
        let too_many = takes.iter().filter_map(|(lease, tenant, bytes)| Some((*bytes, *lease, what(*tenant)?)));
        too_many.max_by_key(|(bytes, lease, _)| (*bytes, *lease)).map(|(_, lease, what)| (lease, what))
    }

    fn reserve(&mut self, state: &State, waiter: &Lease, gpus: &[GpuId]) {
        for gpu in gpus {
            let room = &mut self.rooms[*gpu];
            *room = room.less(needed_bytes(state, &waiter.request, *gpu));
        }
    }

    /// What a waiter lacks on a GPU, and which leases must leave it whatever the bytes; `None` if one of those cannot
    /// be preempted.
    fn gpu_need(&self, state: &State, waiter: &Lease, gpu: GpuId, victims: &[Victim]) -> Option<GpuNeed> {
        let mut must = Vec::new();
        for id in blocking_leases(state, waiter, gpu) {
            let leaves = state.room(gpu).leases().get(&id).is_some_and(|occupancy| occupancy.ends_by == Time::ZERO);
            if !leaves {
                must.push(victims.iter().position(|victim| victim.lease == id)?);
            }
        }
        let lack = needed_bytes(state, &waiter.request, gpu).less(self.rooms[gpu]);
        Some(GpuNeed { gpu, lack, must })
    }

    /// When enough leases end by themselves.
    fn comes_by_itself(
        &self,
        state: &State,
        waiter: &Lease,
        sites: &[GpuNeed],
        wanted: usize,
        now: Time,
    ) -> Option<Time> {
        let exclusive = waiter.request.vram == Vram::Whole || waiter.request.exclusivity != Exclusivity::Shared;
        let of = |site: &GpuNeed| {
            let alone = exclusive || !site.must.is_empty();
            let ends = state.room(site.gpu).ends().iter().filter(|(at, _, _)| *at != Time::ZERO);
            let mut lack = site.lack;
            let mut last = now;
            for (at, _, bytes) in ends {
                if lack == Bytes::ZERO && !alone {
                    break;
                }
                (lack, last) = (lack.less(*bytes), state.ends_after_grace(*at, now));
            }
            (lack == Bytes::ZERO).then_some(last)
        };
        let mut times: Vec<Time> = sites.iter().filter_map(of).collect();
        times.sort();
        times.get(wanted.checked_sub(1)?).copied().filter(|at| *at != Time::NEVER)
    }
}

/// Host memory that each chosen lease takes when it leaves.
fn host_memory(
    state: &State,
    question: &Candidates<'_>,
    chosen: &[usize],
    now: Time,
) -> Vec<(LeaseId, TenantId, Bytes)> {
    let of = |at: &usize| {
        let (row, option) = &question.found[*at];
        let bytes = match option.method {
            // Contexts are booked when the driver is told to take them.
            Method::Driver if option.with_context => return None,
            Method::Shim | Method::Driver => parking::parkable(state, row, option.method, now).ok()?,
            Method::Hook | Method::End => return None,
        };
        Some((row.id, row.tenant, bytes))
    };
    chosen.iter().filter_map(of).collect()
}

fn victim(state: &State, row: &Lease, option: &PreemptionOption) -> Victim {
    let keeps_context = option.method.keeps_context() && !option.with_context;
    let keeps = |room: &Room| if keeps_context { room.context_after_park() } else { Bytes::ZERO };
    let gain = |gpu: GpuId| {
        let room = state.room(gpu);
        let counted = room.leases().get(&row.id).map_or(Bytes::ZERO, |occupancy| occupancy.counted());
        (gpu, counted.less(keeps(room)))
    };
    let gpus = row.hold().map(|hold| hold.gpus.clone()).unwrap_or_default();
    let gains = gpus.into_iter().map(gain).collect();
    Victim { lease: row.id, rank: option.rank, price: option.price(), gains }
}

/// Whether a waiter may preempt leases: one that was just parked pauses for a moment.
fn may_preempt(state: &State, waiter: &Lease, now: Time) -> bool {
    match &waiter.phase {
        Phase::Parked(_, park) => {
            let pauses = park.since + state.policy().parking.pause_after_park > now;
            !pauses && !is_backing_off(state, waiter, now)
        }
        _ => true,
    }
}

/// What can be done for each of the first waiters, in their order.
pub fn room_plans(state: &State, now: Time) -> Vec<(LeaseId, RoomPlan)> {
    let mut timeline = RoomForecast::new(state, now);
    let waiters = waiters_within_quota(state).filter(|waiter| may_preempt(state, waiter, now)).take(AT_A_TIME);
    waiters.map(|waiter| (waiter.id, timeline.plan_room(state, waiter, now))).collect()
}

/// What can be done for one waiter, and what it would cost on each GPU; `None` for a waiter that is not among the
/// first.
pub fn room_plan(state: &State, waiter: &Lease, now: Time) -> Option<(RoomPlan, Vec<(GpuId, Span)>)> {
    if !state.policy().parking.preempt {
        return None;
    }
    if !may_preempt(state, waiter, now) {
        return Some((RoomPlan::Pauses, Vec::new()));
    }
    let mut timeline = RoomForecast::new(state, now);
    for ahead in waiters_within_quota(state).filter(|ahead| may_preempt(state, ahead, now)).take(AT_A_TIME) {
        if ahead.id == waiter.id {
            let prices = timeline.prices(state, ahead, now);
            return Some((timeline.plan_room(state, ahead, now), prices));
        }
        timeline.plan_room(state, ahead, now);
    }
    None
}

/// When a waiter should have its room, if the room is being made or will be.
pub fn room_comes_at(state: &State, waiter: &Lease, now: Time) -> Option<Time> {
    match room_plan(state, waiter, now)?.0 {
        RoomPlan::Plan { victims, .. } => victims.iter().map(|(_, option)| now + option.out).max(),
        RoomPlan::Wait { until, .. } => Some(until),
        RoomPlan::Coming(gpus) => {
            let leaving = state.moving().filter_map(|lease| state.lease(lease));
            let on = |row: &&Lease| row.hold().is_some_and(|hold| hold.gpus.iter().any(|gpu| gpus.contains(gpu)));
            let gone = |row: &Lease| {
                let park = row.park_state()?;
                Some(
                    (park.since + move_duration(state, row, park.method, Direction::OffGpu))
                        .max(now + state.policy().next_reading()),
                )
            };
            leaving.filter(on).filter_map(gone).max()
        }
        RoomPlan::Nothing => slices_end_at(state, &with_present_need(state, waiter), now),
        RoomPlan::Ram { .. } | RoomPlan::Cap { .. } | RoomPlan::Pauses => None,
    }
}

/// When room may be made for one of the first waiters though nothing happens until then: a time slice is
/// over, or a pause. `None` if time alone changes nothing. A replay moves its clock by it.
pub fn changes_at(state: &State, now: Time) -> Option<Time> {
    if !state.policy().parking.preempt || state.queue().is_empty() {
        return None;
    }
    let later = |at: Time| (at > now).then_some(at);
    let waiters: Vec<&Lease> = waiters_within_quota(state).take(AT_A_TIME).collect();
    let slices = waiters.iter().flat_map(|waiter| {
        let spared = state.movable().filter_map(|row| preemption_option(state, waiter, row, now).err());
        spared.filter_map(|spared| match spared {
            NotPreemptable::Turn { until } => later(until),
            _ => None,
        })
    });
    let pauses = waiters.iter().filter_map(|waiter| match &waiter.phase {
        Phase::Parked(_, park) => later(park.since + state.policy().parking.pause_after_park),
        _ => None,
    });
    slices.chain(pauses).min()
}

/// When the time slices of enough leases on one GPU are over, for the first waiter.
fn slices_end_at(state: &State, waiter: &Lease, now: Time) -> Option<Time> {
    let is_first = waiters_within_quota(state).next().is_some_and(|first| first.id == waiter.id);
    if waiter.request.gpus != 1 || !is_first {
        return None;
    }
    let on = |gpu: GpuId| {
        let room = state.room(gpu);
        let mut leave: Vec<(Time, Bytes)> = Vec::new();
        let mut must = now;
        let all_in_the_way: BTreeSet<LeaseId> = blocking_leases(state, waiter, gpu).collect();
        for (id, occupancy) in
            room.leases().iter().filter(|(_, occupancy)| !occupancy.is_parked && occupancy.ends_by != Time::ZERO)
        {
            let in_the_way = all_in_the_way.contains(id);
            let at = match state.lease(*id).map(|row| preemption_option(state, waiter, row, now)) {
                Some(Ok(option)) => now + option.out,
                Some(Err(NotPreemptable::Turn { until })) => until + state.policy().next_reading(),
                _ if in_the_way => return None,
                _ => continue,
            };
            must = if in_the_way { must.max(at) } else { must };
            leave.push((at, occupancy.counted().less(room.context())));
        }
        leave.sort();
        let (mut have, need) = (state.promisable(gpu, now), needed_bytes(state, &waiter.request, gpu));
        let enough = leave.into_iter().find(|(_, bytes)| {
            have = have + *bytes;
            have >= need
        });
        enough.map(|(at, _)| at.max(must))
    };
    state.gpus().filter(|gpu| could_host(state, waiter, *gpu)).filter_map(on).min()
}
