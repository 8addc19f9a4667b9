//! What tenants and leases were charged.

use super::View;
use crate::user_directory::UserDirectory;
use std::collections::BTreeMap;
use sublet_core::event::Caller;
use sublet_core::rows::{self, EndedLease, Hold, Lease, Phase};
use sublet_core::units::Time;
use sublet_wire as wire;

impl View<'_> {
    /// What each tenant that the caller may see was charged, running leases included.
    pub fn usage(&self, by: &Caller) -> Vec<wire::UsageRow> {
        let mut rows: Vec<wire::UsageRow> = Vec::new();
        let mut running = vec![(0u64, 0u64, 0u128, 0u128); self.state.rows().tenants.len()];
        for lease in self.state.rows().leases.values().filter(|lease| lease.is_held()) {
            let Some(hold) = lease.hold() else { continue };
            let (gpu_us, byte_us) = hold.charge(self.now);
            let parked_us = match &lease.phase {
                Phase::Parked(_, away) => {
                    u128::from(self.now.since(away.since).0) * u128::from(hold.booked_host_memory().0)
                }
                _ => 0,
            };
            let sum = &mut running[lease.tenant.0 as usize];
            *sum = (sum.0 + 1, sum.1 + gpu_us, sum.2 + byte_us, sum.3 + parked_us);
        }
        for (tenant, (leases, gpu_us, byte_us, parked_us)) in self.state.rows().tenants.iter().zip(running) {
            if by.operator || tenant.name == by.tenant {
                rows.push(wire::UsageRow {
                    tenant: tenant.name.clone(),
                    user: self.names.of(&tenant.name),
                    lease: None,
                    name: None,
                    leases: tenant.leases + leases,
                    gpu_seconds: (tenant.gpu_us + gpu_us) as f64 / 1e6,
                    gib_seconds: gib_seconds(tenant.byte_us + byte_us),
                    parked_gib_seconds: Some(gib_seconds(tenant.parked_byte_us + parked_us)),
                    peak_bytes: None,
                    refused: BTreeMap::new(),
                });
            }
        }
        rows
    }

    /// What each of the caller's running leases is charged so far.
    pub fn usage_of_leases(&self, by: &Caller) -> Vec<wire::UsageRow> {
        let running = self.state.rows().leases.values().rev().filter(|lease| self.is_own(by, lease.tenant));
        running.filter_map(|lease| self.lease_usage(lease)).collect()
    }

    fn lease_usage(&self, lease: &Lease) -> Option<wire::UsageRow> {
        let hold = lease.hold()?;
        let until = match &lease.phase {
            Phase::Ending(_, finish) => finish.at,
            _ => self.now,
        };
        let peak = self.state.readings(lease.id).and_then(|live| live.peak_bytes).map(|b| b.0);
        let tenant = self.state.tenant_name(lease.tenant);
        Some(usage_row(hold, until, lease.id.to_string(), lease.request.name.clone(), tenant, peak, self.names))
    }
}

/// What an ended lease was charged.
pub fn past_usage(ended: &EndedLease, rows: &[rows::Tenant], names: &UserDirectory) -> Option<wire::UsageRow> {
    let hold = ended.hold.as_ref()?;
    let tenant = &rows.get(ended.tenant.0 as usize)?.name;
    let peak = ended.end.peak.map(|b| b.0);
    Some(usage_row(hold, ended.end.at, ended.id.to_string(), ended.request.name.clone(), tenant, peak, names))
}

fn usage_row(
    hold: &Hold,
    until: Time,
    id: String,
    name: Option<String>,
    tenant: &str,
    peak_bytes: Option<u64>,
    names: &UserDirectory,
) -> wire::UsageRow {
    let (gpu_us, byte_us) = hold.charge(until);
    wire::UsageRow {
        tenant: tenant.to_owned(),
        user: names.of(tenant),
        lease: Some(id),
        name,
        leases: 1,
        gpu_seconds: gpu_us as f64 / 1e6,
        gib_seconds: gib_seconds(byte_us),
        parked_gib_seconds: None,
        peak_bytes,
        refused: BTreeMap::new(),
    }
}

fn gib_seconds(byte_us: u128) -> f64 {
    byte_us as f64 / (1u64 << 30) as f64 / 1e6
}
