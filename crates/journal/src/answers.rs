//! Which stored answers are forgotten: those that are too old, and those beyond what is kept of a tenant or of all.
//!
//! Of a tenant the oldest go first. Beyond what is kept of all tenants, the tenant with most loses answers, so a tenant
//! with many keys cannot have those of another forgotten.

use crate::codec::signed;
use rusqlite::{Connection, Result, params};

/// How many stored answers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerLimits {
    /// Of one tenant.
    pub of_tenant: u64,
    /// Of all tenants together.
    pub all: u64,
}

/// Removes at most `piece` answers from before `before_wall_us`, and at most as many beyond the limits. Says how many.
pub fn forget(conn: &Connection, before_wall_us: u64, limits: AnswerLimits, piece: u64) -> Result<u64> {
    let too_old = "DELETE FROM answers WHERE number IN (
                       SELECT number FROM (SELECT number, wall_us FROM answers ORDER BY number LIMIT ?1)
                       WHERE wall_us < ?2)";
    let mut removed = conn.prepare_cached(too_old)?.execute(params![signed(piece), signed(before_wall_us)])?;
    let counts: Vec<(i64, u64)> = conn
        .prepare_cached("SELECT tenant, count(*) FROM answers GROUP BY tenant")?
        .query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?.cast_unsigned())))?
        .collect::<Result<_>>()?;
    let kept = level(counts.iter().map(|(_, count)| *count), limits);
    let mut left = piece;
    for (tenant, count) in counts {
        let surplus = count.saturating_sub(kept).min(left);
        if surplus > 0 {
            left -= surplus;
            let oldest = "DELETE FROM answers WHERE number IN (
                              SELECT number FROM answers WHERE tenant = ?1 ORDER BY number LIMIT ?2)";
            removed += conn.prepare_cached(oldest)?.execute(params![tenant, signed(surplus)])?;
        }
    }
    Ok(removed as u64)
}

/// How many answers of each tenant are kept: the most with which all of them are within the limits, and at least 1.
fn level(counts: impl Iterator<Item = u64>, limits: AnswerLimits) -> u64 {
    let mut counts: Vec<u64> = counts.map(|count| count.min(limits.of_tenant)).collect();
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
        let kept = |counts: &[u64]| level(counts.iter().copied(), AnswerLimits { of_tenant: 10, all: 20 });
        assert_eq!(kept(&[]), 10);
        assert_eq!(kept(&[10, 10]), 10, "both are within both limits");
        assert_eq!(kept(&[1_000, 5]), 10, "one tenant's own limit is enough");
        assert_eq!(kept(&[10, 10, 4]), 8, "20 less 4, for two");
        assert_eq!(kept(&[1_000, 2, 1_000, 2]), 8);
        assert_eq!(kept(&[1; 30]), 1, "each keeps its latest");
    }
}
