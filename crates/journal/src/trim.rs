//! Keeps the journal bounded: entries of the log are folded into the base and then cut (`cut.rs`), old answers and
//! ended leases are forgotten. Of the log and of ended leases, the tenant with most loses its oldest first.
//!
//! Each call does a bounded piece of work in one transaction, so that no commit waits long
//! behind it; call again until there is nothing left to do. Folding reads the log itself,
//! and checks the chain as it goes: a log with a broken chain is left alone.

use crate::answers::{self, AnswerLimits};
use crate::chain::Hasher;
use crate::codec::{self, signed};
use crate::cut;
use crate::error::CommitError;
use crate::fold;
use crate::journal::Journal;
use crate::line_owner::LineOwner;
use crate::read::{self, LogLine, LogPositions};
use rusqlite::{Connection, Error, OptionalExtension, Result, Row, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use sublet_core::ids::{LeaseId, TenantId};
use sublet_core::rows::{Gpu, Rows, Tenant};
use sublet_core::token::Token;
use sublet_core::unleased::{Rule, UnleasedProcess};

/// The number of new lines after which [`Journal::trim`] and [`Journal::forget`] should be called. Each takes about a
/// millisecond then, and no commit can run meanwhile.
pub const TRIM_EVERY: usize = 100;
/// Answers or ended leases that one call removes at most. All pieces are larger than what is written between two calls,
/// so that the journal catches up.
const PIECE: u64 = 2 * TRIM_EVERY as u64;
/// Lines that one call folds, and cuts, at most.
const FOLD_PIECE: u64 = 2 * PIECE;
const CUT_PIECE: u64 = PIECE;

/// What one call of [`Journal::forget`] removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Stored answers.
    pub answers: u64,
    /// Ended leases.
    pub past: u64,
}

impl Journal {
    /// Cuts lines out of the log as long as it has more than `keep`. The newest half of them stays whole: only older
    /// lines are cut, first those of the tenant with most. Returns how many lines were folded into the base or cut; 0
    /// when there is nothing left to do.
    pub fn trim(&mut self, keep: u64) -> Result<u64, CommitError> {
        let known = self.base.take();
        let (done, base) = self.transact(|journal| trim(&journal.conn, keep, known.clone()))?;
        self.base = base;
        Ok(done)
    }

    /// Forgets answers from before `answers_before_wall_us` and those beyond `answers`. Forgets ended leases beyond
    /// `past_max`, the oldest of the tenant with most first.
    pub fn forget(
        &mut self,
        answers_before_wall_us: u64,
        answers: AnswerLimits,
        past_max: u64,
    ) -> Result<Forgotten, CommitError> {
        let (forgotten, left, counts) = self.transact(|journal| {
            let mut counts = journal.answers.clone();
            let answers = answers::remove_surplus(&journal.conn, answers_before_wall_us, answers, PIECE, &mut counts)?;
            let mut left = journal.past.clone().map_or_else(|| count_past(&journal.conn), Ok)?;
            let past = forget_past(&journal.conn, &mut left, past_max)?;
            Ok((Forgotten { answers, past }, left, counts))
        })?;
        (self.past, self.answers) = (Some(left), counts);
        Ok(forgotten)
    }
}

/// Returns how many lines were folded or cut, and the base without its leases where it was read.
fn trim(conn: &Connection, keep: u64, base: Option<Rows>) -> Result<(u64, Option<Rows>)> {
    let positions = read::positions(conn)?;
    let whole = positions.head_seq.saturating_sub(positions.base_seq);
    let surplus = whole.saturating_sub(keep / 2);
    let (folded, base) = fold_oldest(conn, &positions, surplus.min(FOLD_PIECE), base)?;
    if folded < surplus {
        // Lines that are not folded yet have no owner: cutting now would take lines of others in their place.
        return Ok((folded, base));
    }
    let lines = whole - folded + cut::kept_lines(conn)?;
    Ok((folded + cut::cut_lines(conn, lines.saturating_sub(keep).min(CUT_PIECE), keep)?, base))
}

/// Folds the oldest lines that are newer than the base. They stay in the log, with their owners noted.
fn fold_oldest(
    conn: &Connection,
    positions: &LogPositions,
    surplus: u64,
    base: Option<Rows>,
) -> Result<(u64, Option<Rows>)> {
    if surplus == 0 {
        return Ok((0, base));
    }
    let lines: Vec<LogLine> = conn
        .prepare_cached(read::LOG)?
        .query_map([signed(positions.base_seq), signed(surplus)], read::log_line)?
        .collect::<Result<_>>()?;
    let base = base.map_or_else(|| base_without_leases(conn), Ok)?;
    let (owners, base) = fold_into_base(conn, positions, &lines, &base)?;
    cut::note_owners(conn, lines.iter().map(|line| line.seq).zip(owners))?;
    Ok((lines.len() as u64, Some(base)))
}

/// Returns the owner of each line, and the base after them without its leases.
fn fold_into_base(
    conn: &Connection,
    positions: &LogPositions,
    lines: &[LogLine],
    before: &Rows,
) -> Result<(Vec<LineOwner>, Rows)> {
    let refused = |what: String| Error::ToSqlConversionFailure(what.into());
    let touched: BTreeSet<LeaseId> = lines.iter().filter_map(|line| line.lease).collect();
    let mut rows = before.clone();
    for id in &touched {
        rows.leases.extend(get_from_base(conn, "lease", id.0)?.map(|lease| (*id, lease)));
    }
    let (mut hasher, mut hash) = (Hasher::default(), positions.base_hash);
    let mut owners = Vec::with_capacity(lines.len());
    for (seq, line) in (positions.base_seq + 1..).zip(lines) {
        fold::check_link(&mut hasher, &hash, seq, line).map_err(refused)?;
        let action = fold::read_action(line).map_err(refused)?;
        owners.push(LineOwner::of(&rows, &action));
        fold::apply_action(&mut rows, line, &action).map_err(refused)?;
        hash = line.hash;
    }
    put_base(conn, before, &rows, &touched)?;
    conn.prepare_cached("UPDATE meta SET base_seq = ?1, base_hash = ?2")?
        .execute(params![signed(positions.base_seq + lines.len() as u64), hash])?;
    rows.leases.clear();
    Ok((owners, rows))
}

fn put_base(conn: &Connection, before: &Rows, rows: &Rows, touched: &BTreeSet<LeaseId>) -> Result<()> {
    put_in_base(conn, "meta", 0, &rows.meta)?;
    put_changed(conn, "tenant", &before.tenants, &rows.tenants)?;
    put_changed(conn, "card", &before.gpus, &rows.gpus)?;
    put_map(conn, "token", &before.tokens, &rows.tokens, |id| id.0.into())?;
    put_map(conn, "stranger", &before.unleased, &rows.unleased, |id| id.0)?;
    put_map(conn, "rule", &before.rules, &rows.rules, |id| id.0.into())?;
    for id in touched {
        match rows.leases.get(id) {
            Some(lease) => put_in_base(conn, "lease", id.0, lease)?,
            None => {
                conn.prepare_cached("DELETE FROM base WHERE kind = 'lease' AND id = ?1")?.execute([signed(id.0)])?;
            }
        }
    }
    Ok(())
}

fn put_map<K: Ord, T: PartialEq + Serialize>(
    conn: &Connection,
    kind: &str,
    before: &BTreeMap<K, T>,
    after: &BTreeMap<K, T>,
    number: impl Fn(&K) -> u64,
) -> Result<()> {
    for (id, row) in after.iter().filter(|(id, row)| before.get(id) != Some(row)) {
        put_in_base(conn, kind, number(id), row)?;
    }
    for id in before.keys().filter(|id| !after.contains_key(id)) {
        let sql = "DELETE FROM base WHERE kind = ?1 AND id = ?2";
        conn.prepare_cached(sql)?.execute(params![kind, signed(number(id))])?;
    }
    Ok(())
}

fn put_changed<T: PartialEq + Serialize>(conn: &Connection, kind: &str, before: &[T], after: &[T]) -> Result<()> {
    let changed = after.iter().enumerate().filter(|(number, row)| before.get(*number) != Some(*row));
    changed.into_iter().try_for_each(|(number, row)| put_in_base(conn, kind, number as u64, row))
}

fn put_in_base(conn: &Connection, kind: &str, id: u64, body: &impl Serialize) -> Result<()> {
    let sql = "INSERT OR REPLACE INTO base (kind, id, body) VALUES (?1, ?2, ?3)";
    conn.prepare_cached(sql)?.execute(params![kind, signed(id), codec::json(body)?])?;
    Ok(())
}

fn get_from_base<T: DeserializeOwned>(conn: &Connection, kind: &str, id: u64) -> Result<Option<T>> {
    let sql = "SELECT body FROM base WHERE kind = ?1 AND id = ?2";
    conn.prepare_cached(sql)?.query_row(params![kind, signed(id)], |row| codec::from_json(row, 0)).optional()
}

fn all_in_base<T: DeserializeOwned>(conn: &Connection, kind: &str) -> Result<Vec<T>> {
    let mut find = conn.prepare_cached("SELECT body FROM base WHERE kind = ?1 ORDER BY id")?;
    find.query_map([kind], |row| codec::from_json(row, 0))?.collect()
}

fn base_without_leases(conn: &Connection) -> Result<Rows> {
    let meta = get_from_base(conn, "meta", 0)?.unwrap_or_default();
    let tokens = all_in_base(conn, "token")?.into_iter().map(|token: Token| (token.id, token)).collect();
    let strangers =
        all_in_base(conn, "stranger")?.into_iter().map(|stranger: UnleasedProcess| (stranger.id, stranger)).collect();
    let rules = all_in_base(conn, "rule")?.into_iter().map(|rule: Rule| (rule.id, rule)).collect();
    let tenants = all_in_base::<Tenant>(conn, "tenant")?.into();
    let gpus = all_in_base::<Gpu>(conn, "card")?.into();
    Ok(Rows { meta, tenants, gpus, tokens, unleased: strangers, rules, ..Rows::default() })
}

/// The rows as they were before the log's first entry.
pub fn base(conn: &Connection) -> Result<Rows> {
    let mut rows = base_without_leases(conn)?;
    rows.leases =
        all_in_base(conn, "lease")?.into_iter().map(|lease: sublet_core::rows::Lease| (lease.id, lease)).collect();
    Ok(rows)
}

/// Counts ended leases by tenant. Reads every page of an index, once: about 100 ms with a million ended leases.
fn count_past(conn: &Connection) -> Result<BTreeMap<TenantId, u64>> {
    let mut count = conn.prepare_cached("SELECT tenant, count(*) FROM past GROUP BY tenant")?;
    let pair = |row: &Row<'_>| Ok((TenantId(row.get(0)?), row.get::<_, i64>(1)?.cast_unsigned()));
    count.query_map([], pair)?.collect()
}

fn forget_past(conn: &Connection, counts: &mut BTreeMap<TenantId, u64>, max: u64) -> Result<u64> {
    let mut surplus = counts.values().sum::<u64>().saturating_sub(max).min(PIECE);
    let mut removed = 0;
    for _ in 0..cut::OWNERS_AT_ONCE {
        let mut most = [None, None];
        for found in counts.iter().map(|(tenant, count)| Some((*count, *tenant))) {
            if found > most[0] {
                most = [found, most[0]];
            } else if found > most[1] {
                most[1] = found;
            }
        }
        let Some((largest, tenant)) = most[0].filter(|_| surplus > 0) else { break };
        let second = most[1].map_or(0, |(count, _)| count);
        let gone = forget_oldest(conn, tenant, surplus.min(cut::lines_at_once(largest, second, max)))?;
        counts.insert(tenant, largest.saturating_sub(gone));
        (surplus, removed) = (surplus.saturating_sub(gone), removed + gone);
    }
    Ok(removed)
}

fn forget_oldest(conn: &Connection, tenant: TenantId, count: u64) -> Result<u64> {
    let find = "SELECT id FROM past WHERE tenant = ?1 ORDER BY id LIMIT 1 OFFSET ?2";
    let last: i64 = conn.prepare_cached(find)?.query_row(params![tenant.0, signed(count - 1)], |row| row.get(0))?;
    let removed =
        conn.prepare_cached("DELETE FROM past WHERE tenant = ?1 AND id <= ?2")?.execute(params![tenant.0, last])?;
    let floor = "INSERT INTO past_floors (tenant, floor) VALUES (?1, ?2)
                 ON CONFLICT (tenant) DO UPDATE SET floor = max(floor, excluded.floor)";
    conn.prepare_cached(floor)?.execute(params![tenant.0, last + 1])?;
    Ok(removed as u64)
}
