//! What tenants and groups have reserved, and what they may have.
//!
//! A cap of a tenant counts all that the tenant has, with and without a token; a cap of a group counts what its
//! members have together. Shares are counted over the tenants that use the GPUs or wait for them.

use crate::decide::serve::{could_ever_fit, least_bytes};
use crate::ids::{GpuId, TenantId};
use crate::policy::{Caps, Policy};
use crate::request::{LeaseRequest, Preempt, Vram};
use crate::rows::{Hold, Lease, Phase, Rows, Tenant, gpu_time};
use crate::state::State;
use crate::units::{Bytes, Span};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What a tenant or a group has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantLoad {
    /// Leases granted and not retired.
    pub leases: u32,
    /// Bytes reserved for them, every card counted.
    pub vram: Bytes,
    /// Those of them that nobody may make it give back.
    pub unpreemptable: Bytes,
    /// Places in the queue.
    pub waiting: u32,
}

impl TenantLoad {
    /// What one lease is.
    pub fn of_lease(ask: &LeaseRequest, hold: &Hold) -> TenantLoad {
        let vram = Bytes(hold.vram.0.saturating_mul(hold.gpus.len() as u64));
        let unpreemptable = if ask.preempt == Preempt::Never { vram } else { Bytes::ZERO };
        TenantLoad { leases: 1, vram, unpreemptable, waiting: 0 }
    }

    /// Adds another.
    pub fn add(&mut self, other: &TenantLoad) {
        self.leases += other.leases;
        self.vram = self.vram + other.vram;
        self.unpreemptable = self.unpreemptable + other.unpreemptable;
    }

    /// Takes another away.
    pub fn subtract(&mut self, other: &TenantLoad) {
        self.leases -= other.leases;
        self.vram = self.vram.less(other.vram);
        self.unpreemptable = self.unpreemptable.less(other.unpreemptable);
    }

    fn is_active(&self) -> bool {
        self.leases > 0 || self.waiting > 0
    }
}

/// The books of all tenants and groups.
#[derive(Clone, Debug, Default)]
pub struct QuotaLedger {
    tenants: Vec<Account>,
    groups: BTreeMap<String, Group>,
    /// Of those who use the cards or wait for them.
    shares: u64,
}

#[derive(Clone, Debug)]
struct Account {
    load: TenantLoad,
    caps: Caps,
    share: u32,
    groups: Vec<String>,
}

#[derive(Clone, Debug, Default)]
struct Group {
    load: TenantLoad,
    caps: Caps,
    members: BTreeSet<TenantId>,
}

impl QuotaLedger {
    /// Everybody who is known, with nothing on the books yet.
    pub fn new(rows: &Rows, policy: &Policy) -> QuotaLedger {
        let mut books = QuotaLedger::default();
        rows.tenants.iter().for_each(|tenant| books.enrol(tenant, policy));
        books
    }

    /// The next tenant.
    pub fn enrol(&mut self, tenant: &Tenant, policy: &Policy) {
        let number = TenantId(self.tenants.len() as u32);
        let known = |group: &&String| policy.caps_of_groups.contains_key(*group);
        for name in tenant.groups.iter().filter(known) {
            let group = self.groups.entry(name.clone()).or_default();
            group.caps = policy.caps_of_groups[name].clone();
            group.members.insert(number);
        }
        self.tenants.push(Account {
            load: TenantLoad::default(),
            caps: policy.caps_for(&tenant.name, &tenant.groups),
            share: policy.shares.share(tenant),
            groups: tenant.groups.iter().filter(known).cloned().collect(),
        });
    }

    /// Changes what a tenant has, and its groups with it.
    pub fn update(&mut self, tenant: TenantId, change: impl Fn(&mut TenantLoad)) {
        let account = &mut self.tenants[tenant.0 as usize];
        let before = account.load.is_active();
        change(&mut account.load);
        match (before, account.load.is_active()) {
            (false, true) => self.shares += u64::from(account.share),
            (true, false) => self.shares -= u64::from(account.share),
            _ => {}
        }
        for name in &account.groups {
            if let Some(group) = self.groups.get_mut(name) {
                change(&mut group.load);
            }
        }
    }

    /// What a tenant has.
    pub fn load(&self, tenant: TenantId) -> &TenantLoad {
        &self.tenants[tenant.0 as usize].load
    }
    /// What it may have.
    pub fn caps(&self, tenant: TenantId) -> &Caps {
        &self.tenants[tenant.0 as usize].caps
    }
    /// Its share, and those of all who use the cards or wait for them; at least its own.
    pub fn shares(&self, tenant: TenantId) -> (u64, u64) {
        let own = u64::from(self.tenants[tenant.0 as usize].share);
        (own, self.shares.max(own))
    }
    /// Whether two tenants share a quota: they are one, or in one capped group.
    pub fn share_quota(&self, one: TenantId, other: TenantId) -> bool {
        let groups = |tenant: TenantId| &self.tenants[tenant.0 as usize].groups;
        one == other || groups(one).iter().any(|group| groups(other).contains(group))
    }
    /// Who shares a capped group with it.
    pub fn group_members(&self, tenant: TenantId) -> BTreeSet<TenantId> {
        let groups = self.tenants[tenant.0 as usize].groups.iter();
        groups.filter_map(|name| self.groups.get(name)).flat_map(|group| group.members.iter().copied()).collect()
    }
    /// What each capped group of a tenant has and may have.
    pub fn groups(&self, tenant: TenantId) -> impl Iterator<Item = (&str, &TenantLoad, &Caps)> + '_ {
        let groups = self.tenants[tenant.0 as usize].groups.iter();
        groups.filter_map(|name| self.groups.get(name).map(|group| (name.as_str(), &group.load, &group.caps)))
    }
    /// A group's members.
    fn members(&self, group: &str) -> impl Iterator<Item = TenantId> + '_ {
        self.groups.get(group).into_iter().flat_map(|group| group.members.iter().copied())
    }
}

/// Which cap holds an ask back, and whose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaBlock {
    /// The group whose cap it is; otherwise the tenant's own.
    pub group: Option<String>,
    /// What is capped.
    pub resource: CappedResource,
    /// Whatever ends, it would be too much.
    pub is_permanent: bool,
}

/// What is capped, and how much there may be and is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CappedResource {
    /// Bytes at a time.
    Vram {
        /// Allowed.
        cap: Bytes,
        /// Held now.
        has: Bytes,
    },
    /// Leases at a time.
    Leases {
        /// Allowed.
        cap: u32,
    },
    /// GPU time a day.
    GpuDay {
        /// Allowed.
        cap: Span,
        /// Left today.
        left: Span,
    },
    /// Bytes at a time that nobody may make it give back.
    Never {
        /// Allowed.
        cap: Bytes,
        /// Held now.
        has: Bytes,
    },
}

impl fmt::Display for QuotaBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.group {
            None => f.write_str("you may ")?,
            Some(group) => write!(f, "group {group} may together ")?,
        }
        match self.resource {
            CappedResource::Vram { cap, .. } if self.is_permanent => {
                write!(f, "lease {cap} at once, and this request is larger")
            }
            CappedResource::Vram { cap, has } => write!(f, "lease {cap} at once, and {has} are leased"),
            CappedResource::Leases { cap: 1 } => f.write_str("have 1 lease at once"),
            CappedResource::Leases { cap } => write!(f, "have {cap} leases at once"),
            CappedResource::GpuDay { cap, left } => write!(
                f,
                "use {} of GPU time a day, of which {} are left today: too little for this",
                hours(cap),
                hours(left)
            ),
            CappedResource::Never { cap: Bytes::ZERO, .. } => f.write_str("have no lease with `--preempt never`"),
            CappedResource::Never { cap, has } => {
                write!(f, "lease {cap} at once with `--preempt never`, and {has} are leased")
            }
        }
    }
}

/// `1.5h`, `20min`, `100s`.
fn hours(span: Span) -> String {
    match span.0 / 1_000_000 {
        seconds if seconds >= 3600 => format!("{:.1}h", seconds as f64 / 3600.0),
        seconds if seconds >= 600 => format!("{}min", seconds / 60),
        seconds => format!("{seconds}s"),
    }
}

/// Which cap, its own or a group's, keeps a waiter from starting now.
pub fn block(state: &State, lease: &Lease) -> Option<QuotaBlock> {
    match &lease.phase {
        // What a parked holder waits for is less than what will count.
        Phase::Parked(hold, _) => block_of_request(
            state,
            lease.tenant,
            &LeaseRequest { vram: Vram::Bytes(hold.vram), ..lease.request.clone() },
        ),
        _ => block_of_request(state, lease.tenant, &lease.request),
    }
}

/// Which cap would keep a tenant's ask from starting now.
pub fn block_of_request(state: &State, tenant: TenantId, ask: &LeaseRequest) -> Option<QuotaBlock> {
    let books = state.ledger();
    // The cheapest look first: most have no cap at all.
    let own = [(None, books.load(tenant), books.caps(tenant))];
    let capped = |caps: &Caps| {
        let never = ask.preempt == Preempt::Never;
        caps.vram.is_some() || caps.leases.is_some() || caps.gpu_day.is_some() || (never && caps.never.is_some())
    };
    let groups = books.groups(tenant).map(|(name, load, caps)| (Some(name), load, caps));
    let mut wish = None;
    let mut found: Option<QuotaBlock> = None;
    for (group, load, caps) in own.into_iter().chain(groups).filter(|(_, _, caps)| capped(caps)) {
        let wish = *wish.get_or_insert_with(|| least_bytes(state, ask));
        if let Some((what, always)) = exceeded_cap(state, tenant, ask, wish, group, load, caps)
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
    ask: &LeaseRequest,
    wish: Bytes,
    group: Option<&str>,
    load: &TenantLoad,
    caps: &Caps,
) -> Option<(CappedResource, bool)> {
    let leases = caps.leases.filter(|cap| load.leases >= *cap).map(|cap| (CappedResource::Leases { cap }, cap == 0));
    let vram = caps.vram.filter(|cap| load.vram + wish > *cap);
    let vram = vram.map(|cap| (CappedResource::Vram { cap, has: load.vram }, wish > cap));
    let never = caps.never.filter(|cap| ask.preempt == Preempt::Never && load.unpreemptable + wish > *cap);
    let never = never.map(|cap| (CappedResource::Never { cap, has: load.unpreemptable }, wish > cap));
    let gpu_day = caps.gpu_day.and_then(|cap| {
        let left = Span(cap.0.saturating_sub(used_today(state, tenant, group).0));
        let first = first_term(state, ask, wish);
        (first > left).then_some((CappedResource::GpuDay { cap, left }, first > cap))
    });
    // What never can be says most.
    let found = [vram, never, gpu_day, leases].into_iter().flatten();
    found.min_by_key(|(_, always)| !always)
}

/// GPU time charged today, of a tenant or of a group of its.
fn used_today(state: &State, tenant: TenantId, group: Option<&str>) -> Span {
    let of = |tenant: TenantId| state.rows().tenants[tenant.0 as usize].today_us;
    match group {
        None => Span(of(tenant)),
        Some(group) => Span(state.ledger().members(group).map(of).sum()),
    }
}

/// GPU time that the first term of an ask would be charged, on the card where it is least.
fn first_term(state: &State, ask: &LeaseRequest, wish: Bytes) -> Span {
    let each = Bytes(wish.0 / u64::from(ask.gpus.max(1)));
    let cards = state.gpus().filter(|card| could_ever_fit(state, ask, *card));
    let least = cards.map(|card| gpu_time(&state.rows().gpus, &[card], each, ask.term.span())).min();
    Span(least.unwrap_or_default().0.saturating_mul(u64::from(ask.gpus)))
}

/// Whether a tenant, or a group of its, has only so much GPU time a day.
pub fn has_budget(state: &State, tenant: TenantId) -> bool {
    let books = state.ledger();
    let mut caps = books.groups(tenant).map(|(_, _, caps)| caps).chain([books.caps(tenant)]);
    caps.any(|caps| caps.gpu_day.is_some())
}

/// Whether a tenant and its groups may be charged so much more GPU time today.
pub fn affords(state: &State, tenant: TenantId, more: Span) -> bool {
    let books = state.ledger();
    let within = |group: Option<&str>, caps: &Caps| {
        caps.gpu_day.is_none_or(|cap| used_today(state, tenant, group).0.saturating_add(more.0) <= cap.0)
    };
    within(None, books.caps(tenant)) && books.groups(tenant).all(|(name, _, caps)| within(Some(name), caps))
}

/// Whether a waiter's tenant and its groups may have so much of just these cards: what a lease is
/// charged and counts for shows only once its cards are chosen.
pub fn allows(state: &State, lease: &Lease, cards: &[GpuId], vram: Bytes) -> bool {
    let all = Bytes(vram.0.saturating_mul(cards.len() as u64));
    allows_more(state, lease, all, gpu_time(&state.rows().gpus, cards, vram, lease.request.term.span()))
}

/// Whether a lease's tenant and its groups may have so much more in all, which costs so much of the day's GPU time.
pub fn allows_more(state: &State, lease: &Lease, more: Bytes, time: Span) -> bool {
    let (books, tenant) = (state.ledger(), lease.tenant);
    let never = lease.request.preempt == Preempt::Never;
    let within = |load: &TenantLoad, caps: &Caps| {
        caps.vram.is_none_or(|cap| load.vram + more <= cap)
            && caps.never.filter(|_| never).is_none_or(|cap| load.unpreemptable + more <= cap)
    };
    within(books.load(tenant), books.caps(tenant))
        && books.groups(tenant).all(|(_, load, caps)| within(load, caps))
        && affords(state, tenant, time)
}

/// Whether a tenant and its groups may ever hold so many bytes.
pub fn may_ever_hold(state: &State, tenant: TenantId, bytes: Bytes) -> bool {
    let books = state.ledger();
    let within = |caps: &Caps| caps.vram.is_none_or(|cap| bytes <= cap);
    within(books.caps(tenant)) && books.groups(tenant).all(|(_, _, caps)| within(caps))
}

/// The most of each of so many cards that a waiter's quotas leave, up to so much.
pub fn most_each(state: &State, lease: &Lease, gpus: u16, most: Bytes) -> Bytes {
    let books = state.ledger();
    let never = lease.request.preempt == Preempt::Never;
    let left = |load: &TenantLoad, caps: &Caps| {
        let vram = caps.vram.map(|cap| cap.less(load.vram));
        let never = caps.never.filter(|_| never).map(|cap| cap.less(load.unpreemptable));
        vram.into_iter().chain(never).min()
    };
    let own = left(books.load(lease.tenant), books.caps(lease.tenant));
    let groups = books.groups(lease.tenant).filter_map(|(_, load, caps)| left(load, caps));
    let left = groups.chain(own).min().map(|left| Bytes(left.0 / u64::from(gpus.max(1))));
    left.map_or(most, |left| most.min(left))
}
