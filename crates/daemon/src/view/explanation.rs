//! Why a lease is where it is: what is ahead of it, what blocks it on each GPU, and what could be preempted for it.

use super::View;
use super::shape;
use crate::messages;
use sublet_core::event::Caller;
use sublet_core::ids::GpuId;
use sublet_core::movers::RestoreObstacle;
use sublet_core::policy::room_plan::{self, RoomPlan};
use sublet_core::policy::{estimates, explain, preemption, restore_room};
use sublet_core::rows::Lease;
use sublet_core::units::Span;
use sublet_wire as wire;

/// Blockers that are listed for each GPU.
const BLOCKERS_MAX: usize = 64;

/// How room could be made for a waiter, and the price of each GPU.
type RoomPlanWithPrices = (RoomPlan, Vec<(GpuId, Span)>);

impl View<'_> {
    /// Why a lease is where it is.
    pub fn explain(&self, by: &Caller, lease: &Lease) -> wire::Explanation {
        let shown = self.lease_in_full(by, lease);
        let summary = match (&shown.waiting, &shown.ended) {
            (Some(waiting), _) => waiting.why.clone(),
            (_, Some(ended)) => ended.sentence.clone(),
            _ if shown.state == wire::LeaseState::Parked => {
                self.parked_aside(by, lease).unwrap_or_else(|| messages::parked(lease))
            }
            _ if shown.state == wire::LeaseState::Resuming => self.resuming(by, lease),
            _ => messages::on_gpus(&shown).to_owned(),
        };
        let waits = lease.queued_since().is_some();
        let ahead = if waits { explain::ahead(self.state, lease.id) } else { Vec::new() };
        let gpus = if waits { self.state.gpus().collect() } else { Vec::new() };
        let plan = if waits { room_plan::room_plan(self.state, lease, self.now) } else { None };
        wire::Explanation {
            summary,
            preemption: waits.then(|| {
                let plan = plan.as_ref().map(|(plan, _)| plan);
                messages::preemption(self.state, plan, self.now, |id| self.name_for(by, id))
            }),
            ahead: ahead.into_iter().map(|other| self.ahead(by, lease, other)).collect(),
            gpus: gpus.into_iter().map(|gpu| self.gpu_explanation(by, lease, gpu, plan.as_ref())).collect(),
            lease: shown,
        }
    }

    /// Why a lease that is resuming is not back yet.
    fn resuming(&self, by: &Caller, lease: &Lease) -> String {
        let Some(obstacle) = restore_room::restore_obstacle(self.state, lease) else {
            return messages::RESUMING.to_owned();
        };
        let name = match obstacle {
            RestoreObstacle::Unreadable(_) => None,
            RestoreObstacle::Unleased(gpu, _) => self.unleased_process_on(by, gpu),
            RestoreObstacle::Uncapped(_, other) => Some(self.name_for(by, other)),
        };
        format!("it is not brought back yet: {}", messages::restore_obstacle(self.state, obstacle, name))
    }

    /// How a lease could be preempted for a waiter and at what cost, or why not.
    fn preemption_cost(
        &self,
        waiter: &Lease,
        holder: &Lease,
        plan: Option<&RoomPlanWithPrices>,
    ) -> (Option<wire::PreemptionCost>, Option<String>) {
        let chosen = match plan {
            Some((RoomPlan::Plan { victims, .. }, _)) => victims.iter().any(|(id, _)| *id == holder.id),
            Some(_) => false,
            None => return (None, None),
        };
        match preemption::preemption_option(self.state, waiter, holder, self.now) {
            Ok(option) => {
                let cost = wire::PreemptionCost {
                    method: option.method.name().to_owned(),
                    park_s: option.out.as_secs_f64(),
                    lost_work_s: option.loss.as_secs_f64(),
                    resume_s: option.back.as_secs_f64(),
                    cost_s: option.price().as_secs_f64(),
                    is_chosen: chosen,
                };
                (Some(cost), None)
            }
            Err(reason) => (None, Some(messages::not_preempted(&reason, self.now))),
        }
    }

    fn ahead(&self, by: &Caller, behind: &Lease, lease: &Lease) -> wire::Ahead {
        wire::Ahead {
            id: self.id_for(by, lease),
            user: self.user_for(by, lease),
            tier: shape::tier(lease.request.tier),
            vram_bytes: shape::vram(lease.request.vram),
            gpus: lease.request.gpus.into(),
            waited_s: self.now.since(lease.requested).as_secs_f64(),
            why: messages::why_ahead(self.state, lease, behind, self.now),
        }
    }

    fn gpu_explanation(
        &self,
        by: &Caller,
        lease: &Lease,
        gpu: GpuId,
        plan: Option<&RoomPlanWithPrices>,
    ) -> wire::GpuExplanation {
        let facts = &self.state.rows().gpus[gpu].facts;
        let obstacle = explain::obstacle(self.state, lease, gpu, self.now);
        let blockers = estimates::blockers(self.state, gpu, self.now);
        wire::GpuExplanation {
            index: facts.index,
            uuid: facts.uuid.clone(),
            promisable_bytes: self.state.promisable(gpu, self.now).0,
            unowned_bytes: self.state.room(gpu).unowned_bytes().map(|b| b.0),
            obstacle: self.obstacle(by, lease, gpu, &obstacle),
            cost_s: plan.and_then(|(_, prices)| {
                let (_, price) = prices.iter().find(|(on, _)| *on == gpu)?;
                Some(price.as_secs_f64())
            }),
            blockers: blockers
                .into_iter()
                .take(BLOCKERS_MAX)
                .map(|(at, other, counted)| {
                    let (cost, not_preempted) = self.preemption_cost(lease, other, plan);
                    wire::Blocker {
                        id: self.id_for(by, other),
                        user: self.user_for(by, other),
                        counted_bytes: counted.0,
                        ends_by_s: at.since(self.now).as_secs_f64(),
                        preemption: cost,
                        not_preempted,
                    }
                })
                .collect(),
        }
    }
}
