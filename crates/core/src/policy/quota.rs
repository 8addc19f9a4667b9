//! Whether the caps of a tenant and its groups leave room for a request or for more of a lease.
//!
//! Caps and what counts against them are in [`crate::state::ledger`].

use crate::model::ids::{GpuId, TenantId};
use crate::model::quota::{CappedResource, QuotaBlock};
use crate::model::request::{LeaseRequest, Preempt, Vram};
use crate::model::rows::{Lease, Phase, gpu_time};
use crate::model::settings::Caps;
use crate::model::units::{Bytes, Span};
use crate::policy::eligibility::{could_ever_fit, least_bytes};
use crate::state::State;
use crate::state::ledger::TenantLoad;

/// Which cap, its own or a group's, keeps a waiter from starting now.
pub fn block(state: &State, lease: &Lease) -> Option<QuotaBlock> {
    match &lease.phase {
        // What a parked lease needs to come back is less than what will count.
        Phase::Parked(hold, _) => block_of_request(
            state,
            lease.tenant,
            &LeaseRequest { vram: Vram::Bytes(hold.vram), ..lease.request.clone() },
        ),
        _ => block_of_request(state, lease.tenant, &lease.request),
    }
}

/// Which cap would keep a tenant's request from starting now.
pub fn block_of_request(state: &State, tenant: TenantId, request: &LeaseRequest) -> Option<QuotaBlock> {
    let ledger = state.ledger();
    // The cheapest check first: most tenants have no cap at all.
    let own = [(None, ledger.load(tenant), ledger.caps(tenant))];
    let capped = |caps: &Caps| {
        let never = request.preempt == Preempt::Never;
        caps.vram.is_some() || caps.leases.is_some() || caps.gpu_day.is_some() || (never && caps.never.is_some())
    };
    let groups = ledger.groups(tenant).map(|(name, load, caps)| (Some(name), load, caps));
    let mut wish = None;
    let mut found: Option<QuotaBlock> = None;
    for (group, load, caps) in own.into_iter().chain(groups).filter(|(_, _, caps)| capped(caps)) {
        let wish = *wish.get_or_insert_with(|| least_bytes(state, request));
        if let Some((what, always)) = exceeded_cap(state, tenant, request, wish, group, load, caps)
            && found.as_ref().is_none_or(|found| always && !found.is_permanent)
        {
            found = Some(QuotaBlock { group: group.map(str::to_owned), resource: what, is_permanent: always });
        }
    }
    found
}

fn exceeded_cap(
    state: &State,
    tenant: TenantId,
    request: &LeaseRequest,
    wish: Bytes,
    group: Option<&str>,
    load: &TenantLoad,
    caps: &Caps,
) -> Option<(CappedResource, bool)> {
    let leases = caps.leases.filter(|cap| load.leases >= *cap).map(|cap| (CappedResource::Leases { cap }, cap == 0));
    let vram = caps.vram.filter(|cap| load.vram + wish > *cap);
    let vram = vram.map(|cap| (CappedResource::Vram { cap, has: load.vram }, wish > cap));
    let never = caps.never.filter(|cap| request.preempt == Preempt::Never && load.unpreemptable + wish > *cap);
    let never = never.map(|cap| (CappedResource::Never { cap, has: load.unpreemptable }, wish > cap));
    let gpu_day = caps.gpu_day.and_then(|cap| {
        let left = Span(cap.0.saturating_sub(used_today(state, tenant, group).0));
        let first = first_term(state, request, wish);
        (first > left).then_some((CappedResource::GpuDay { cap, left }, first > cap))
    });
    // What never can be says most.
    let found = [vram, never, gpu_day, leases].into_iter().flatten();
    found.min_by_key(|(_, always)| !always)
}

/// GPU time charged today, of a tenant or of a group of its.
fn used_today(state: &State, tenant: TenantId, group: Option<&str>) -> Span {
    let of = |tenant: TenantId| state.rows().tenants[tenant].today_us;
    match group {
        None => Span(of(tenant)),
        Some(group) => Span(state.ledger().members(group).map(of).sum()),
    }
}

/// GPU time that the first term of a request would be charged, on the GPU where it is least.
fn first_term(state: &State, request: &LeaseRequest, wish: Bytes) -> Span {
    let each = Bytes(wish.0 / u64::from(request.gpus.max(1)));
    let gpus = state.gpus().filter(|gpu| could_ever_fit(state, request, *gpu));
    let least = gpus.map(|gpu| gpu_time(&state.rows().gpus, &[gpu], each, request.term.span())).min();
    Span(least.unwrap_or_default().0.saturating_mul(u64::from(request.gpus)))
}

/// Whether a tenant, or a group of its, has a daily budget of GPU time.
pub fn has_budget(state: &State, tenant: TenantId) -> bool {
    let ledger = state.ledger();
    let mut caps = ledger.groups(tenant).map(|(_, _, caps)| caps).chain([ledger.caps(tenant)]);
    caps.any(|caps| caps.gpu_day.is_some())
}

/// Whether a tenant and its groups may be charged this much more GPU time today.
pub fn affords(state: &State, tenant: TenantId, more: Span) -> bool {
    let ledger = state.ledger();
    let within = |group: Option<&str>, caps: &Caps| {
        caps.gpu_day.is_none_or(|cap| used_today(state, tenant, group).0.saturating_add(more.0) <= cap.0)
    };
    within(None, ledger.caps(tenant)) && ledger.groups(tenant).all(|(name, _, caps)| within(Some(name), caps))
}

/// Whether a waiter's tenant and its groups may have these bytes of exactly these GPUs: what a lease is charged and
/// counts for shows only once its GPUs are chosen.
pub fn allows(state: &State, lease: &Lease, gpus: &[GpuId], vram: Bytes) -> bool {
    let all = Bytes(vram.0.saturating_mul(gpus.len() as u64));
    allows_more(state, lease, all, gpu_time(&state.rows().gpus, gpus, vram, lease.request.term.span()))
}

/// Whether a lease's tenant and its groups may have these bytes more in all, for this much of the day's GPU time.
pub fn allows_more(state: &State, lease: &Lease, more: Bytes, time: Span) -> bool {
    let (ledger, tenant) = (state.ledger(), lease.tenant);
    let never = lease.request.preempt == Preempt::Never;
    let within = |load: &TenantLoad, caps: &Caps| {
        caps.vram.is_none_or(|cap| load.vram + more <= cap)
            && caps.never.filter(|_| never).is_none_or(|cap| load.unpreemptable + more <= cap)
    };
    within(ledger.load(tenant), ledger.caps(tenant))
        && ledger.groups(tenant).all(|(_, load, caps)| within(load, caps))
        && affords(state, tenant, time)
}

/// Whether a tenant and its groups may ever hold these bytes.
pub fn may_ever_hold(state: &State, tenant: TenantId, bytes: Bytes) -> bool {
    let ledger = state.ledger();
    let within = |caps: &Caps| caps.vram.is_none_or(|cap| bytes <= cap);
    within(ledger.caps(tenant)) && ledger.groups(tenant).all(|(_, _, caps)| within(caps))
}

/// The most of each of `gpus` GPUs that a waiter's quotas leave, up to `most`.
pub fn most_each(state: &State, lease: &Lease, gpus: u16, most: Bytes) -> Bytes {
    let ledger = state.ledger();
    let never = lease.request.preempt == Preempt::Never;
    let left = |load: &TenantLoad, caps: &Caps| {
        let vram = caps.vram.map(|cap| cap.less(load.vram));
        let never = caps.never.filter(|_| never).map(|cap| cap.less(load.unpreemptable));
        vram.into_iter().chain(never).min()
    };
    let own = left(ledger.load(lease.tenant), ledger.caps(lease.tenant));
    let groups = ledger.groups(lease.tenant).filter_map(|(_, load, caps)| left(load, caps));
    let left = groups.chain(own).min().map(|left| Bytes(left.0 / u64::from(gpus.max(1))));
    left.map_or(most, |left| most.min(left))
}
