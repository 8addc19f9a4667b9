//! How many requests for leases were refused since the start, by tenant and reason.
//!
//! A refused request writes no line and no row (docs/decisions/0015); these counters are all that is left of it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use sublet_wire::Code;

/// Tenants that are counted, at most; the requests of further ones are not.
const TENANTS_MAX: usize = 10_000;

/// The counters.
#[derive(Debug, Default)]
pub struct RefusalCounts(Mutex<BTreeMap<String, BTreeMap<&'static str, u64>>>);

impl RefusalCounts {
    /// Counts a refused request.
    pub fn count(&self, tenant: &str, code: Code) {
        let mut tenants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tenants.len() >= TENANTS_MAX && !tenants.contains_key(tenant) {
            return;
        }
        *tenants.entry(tenant.to_owned()).or_default().entry(code.as_str()).or_default() += 1;
    }

    /// The refused requests of a tenant, by the code of the refusal.
    pub fn of(&self, tenant: &str) -> BTreeMap<String, u64> {
        let tenants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let codes = tenants.get(tenant).into_iter().flatten();
        codes.map(|(code, count)| ((*code).to_owned(), *count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_counted_by_tenant_and_reason_and_tenants_are_bounded() {
        let refusals = RefusalCounts::default();
        refusals.count("uid:1", Code::NoRoom);
        refusals.count("uid:1", Code::NoRoom);
        refusals.count("uid:1", Code::QueueFull);
        for uid in 0..2 * TENANTS_MAX {
            refusals.count(&format!("uid:{uid}"), Code::DiskFull);
        }
        let own = refusals.of("uid:1");
        assert_eq!((own["no_room"], own["queue_full"], own["disk_full"]), (2, 1, 1));
        assert_eq!(refusals.0.lock().unwrap().len(), TENANTS_MAX);
        assert!(refusals.of("uid:65534").is_empty());
    }
}
