//! Which stored answers are forgotten: those that are too old, and those beyond the limit of one or of all tenants.
//!
//! A tenant's oldest answers go first. Beyond the limit of all tenants, the tenant with most answers loses some, so a
//! tenant with many keys cannot displace the answers of another.

use crate::codec::signed;
use rusqlite::{Connection, Result, params};
use std::collections::BTreeMap;
use sublet_core::ids::TenantId;

/// How many stored answers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerLimits {
    /// Of one tenant.
    pub of_tenant: u64,
    /// Of all tenants together.
    pub all: u64,
}

/// How many answers each tenant has at most. An answer that replaced another of the same key is counted twice.
pub type AnswerCounts = BTreeMap<TenantId, u64>;

/// Removes at most `piece` answers older than `before_wall_us`, and at most `piece` beyond the limits. Returns how
/// many.
/// The answers are counted if `counts` is `None` or shows more than the limits allow.
pub fn remove_surplus(
    conn: &Connection,
    before_wall_us: u64,
    limits: AnswerLimits,
    piece: u64,
    counts: &mut Option<AnswerCounts>,
) -> Result<u64> {
    let too_old = "DELETE FROM answers WHERE number IN (
                       SELECT number FROM (SELECT number, wall_us FROM answers ORDER BY number LIMIT ?1)
                       WHERE wall_us < ?2)";
    let mut removed = conn.prepare_cached(too_old)?.execute(params![signed(piece), signed(before_wall_us)])?;
    let is_within = |counts: &AnswerCounts| {
        let kept = kept_per_tenant(counts, limits);
        counts.values().all(|count| *count <= kept)
    };
    if counts.as_ref().is_some_and(is_within) {
        return Ok(removed as u64);
    }
    let exact = counts.insert(count_by_tenant(conn)?);
    let (kept, mut left) = (kept_per_tenant(exact, limits), piece);
    for (tenant, count) in exact {
        let surplus = count.saturating_sub(kept).min(left);
        if surplus > 0 {
            let oldest = "DELETE FROM answers WHERE number IN (
                              SELECT number FROM answers WHERE tenant = ?1 ORDER BY number LIMIT ?2)";
            removed += conn.prepare_cached(oldest)?.execute(params![tenant.0, signed(surplus)])?;
            (left, *count) = (left - surplus, *count - surplus);
        }
    }
    Ok(removed as u64)
}

/// Reads every entry of an index: a few milliseconds with 100,000 answers.
fn count_by_tenant(conn: &Connection) -> Result<AnswerCounts> {
    conn.prepare_cached("SELECT tenant, count(*) FROM answers GROUP BY tenant")?
        .query_map([], |row| Ok((TenantId(row.get(0)?), row.get::<_, i64>(1)?.cast_unsigned())))?
        .collect()
}

/// How many answers of each tenant are kept: the most with which all of them are within the limits, and at least 1.
fn kept_per_tenant(counts: &AnswerCounts, limits: AnswerLimits) -> u64 {
    let mut counts: Vec<u64> = counts.values().map(|count| limits.of_tenant.min(*count)).collect();
    counts.sort_unstable();
    let (mut room, mut tenants) = (limits.all, counts.len() as u64);
    for count in counts {
        if count * tenants > room {
            return (room / tenants).max(1);
        }
        room -= count;
        tenants -= 1;
    }
    limits.of_tenant
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tenants_with_most_answers_keep_equally_many() {
        let kept = |counts: &[u64]| {
            let counts = (0..).map(TenantId).zip(counts.iter().copied()).collect();
            kept_per_tenant(&counts, AnswerLimits { of_tenant: 10, all: 20 })
        };
        assert_eq!(kept(&[]), 10);
        assert_eq!(kept(&[10, 10]), 10, "both are within both limits");
        assert_eq!(kept(&[1_000, 5]), 10, "one tenant's own limit is enough");
        assert_eq!(kept(&[10, 10, 4]), 8, "20 less 4, for two");
        assert_eq!(kept(&[1_000, 2, 1_000, 2]), 8);
        assert_eq!(kept(&[1; 30]), 1, "each keeps its latest");
    }
}
