//! What tenants and groups have reserved, and what they may have.
//!
//! A cap of a tenant counts all that the tenant has, with and without a token; a cap of a group counts what its
//! members have together. Shares are counted over the tenants that use the GPUs or wait for them.

use crate::model::ids::TenantId;
use crate::model::request::{LeaseRequest, Preempt};
use crate::model::rows::{Hold, Rows, Tenant};
use crate::model::settings::{Caps, Policy};
use crate::model::units::Bytes;
use std::collections::{BTreeMap, BTreeSet};

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
    pub fn of_lease(request: &LeaseRequest, hold: &Hold) -> TenantLoad {
        let vram = Bytes(hold.vram.0.saturating_mul(hold.gpus.len() as u64));
        let unpreemptable = if request.preempt == Preempt::Never { vram } else { Bytes::ZERO };
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

impl QuotaLedger {
    /// Everybody who is known, with nothing on the books yet.
    pub fn new(rows: &Rows, policy: &Policy) -> QuotaLedger {
        let mut ledger = QuotaLedger::default();
        rows.tenants.iter().for_each(|tenant| ledger.enrol(tenant, policy));
        ledger
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
    pub(crate) fn members(&self, group: &str) -> impl Iterator<Item = TenantId> + '_ {
        self.groups.get(group).into_iter().flat_map(|group| group.members.iter().copied())
    }
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
