//! Keeps the journal bounded: old entries of the log are folded into the base, old answers
//! and ended leases are forgotten.
//!
//! Each call does a bounded piece of work in one transaction, so that no commit waits long
//! behind it; call again until there is nothing left to do. Folding reads the log itself,
//! and checks the chain as it goes: a log that does not hold is left alone.

use crate::chain::Hasher;
use crate::codec::{self, signed};
use crate::error::CommitError;
use crate::fold;
use crate::journal::Journal;
use crate::read::{self, LogLine, Marks};
use rusqlite::{Connection, Error, OptionalExtension, Result, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use sublet_core::ids::LeaseId;
use sublet_core::rows::Rows;
use sublet_core::stranger::{Rule, Stranger};
use sublet_core::token::Token;

/// Entries, answers or ended leases per call: some milliseconds.
const PIECE: u64 = 1024;

/// What one call of [`Journal::forget`] removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Stored answers.
    pub answers: u64,
    /// Ended leases.
    pub past: u64,
}

impl Journal {
    /// Folds the oldest entries into the base, as long as the log has more than `keep`.
    /// Says how many; 0 when there is nothing left to do.
    pub fn trim(&mut self, keep: u64) -> Result<u64, CommitError> {
        self.transact(|journal| trim(&journal.conn, keep))
    }

    /// Forgets the oldest answers, those from before `answers_before_wall_us` and those beyond
    /// `answers_max`, and the oldest ended leases beyond `past_max`.
    pub fn forget(
        &mut self,
        answers_before_wall_us: u64,
        answers_max: u64,
        past_max: u64,
    ) -> Result<Forgotten, CommitError> {
        let (forgotten, left) = self.transact(|journal| {
            let answers = forget_answers(&journal.conn, answers_before_wall_us, answers_max)?;
            let count = journal.past.map_or_else(|| count_past(&journal.conn), Ok)?;
            let past = forget_past(&journal.conn, count, past_max)?;
            Ok((Forgotten { answers, past }, count - past))
        })?;
        self.past = Some(left);
        Ok(forgotten)
    }
}

fn trim(conn: &Connection, keep: u64) -> Result<u64> {
    let marks = read::marks(conn)?;
    let surplus = marks.head_seq.saturating_sub(marks.base_seq).saturating_sub(keep).min(PIECE);
    if surplus == 0 {
        return Ok(0);
    }
    let lines: Vec<LogLine> = conn
        .prepare_cached(read::LOG)?
        .query_map([signed(marks.base_seq), signed(surplus)], read::log_line)?
        .collect::<Result<_>>()?;
    fold_into_base(conn, &marks, &lines)?;
    let last = marks.base_seq + lines.len() as u64;
    conn.prepare_cached("DELETE FROM log WHERE seq <= ?1")?.execute([signed(last)])?;
    Ok(lines.len() as u64)
}

fn fold_into_base(conn: &Connection, marks: &Marks, lines: &[LogLine]) -> Result<()> {
    let refused = |what: String| Error::ToSqlConversionFailure(what.into());
    let touched: BTreeSet<LeaseId> = lines.iter().filter_map(|line| line.lease).collect();
    let before = base_without_leases(conn)?;
    let mut rows = before.clone();
    for id in &touched {
        rows.leases.extend(get(conn, "lease", id.0)?.map(|lease| (*id, lease)));
    }
    let (mut hasher, mut hash) = (Hasher::default(), marks.base_hash);
    for (seq, line) in (marks.base_seq + 1..).zip(lines) {
        fold::linked(&mut hasher, &hash, seq, line).map_err(refused)?;
        fold::step(&mut rows, line).map_err(refused)?;
        hash = line.hash;
    }
    put_base(conn, &before, &rows, &touched)?;
    conn.prepare_cached("UPDATE meta SET base_seq = ?1, base_hash = ?2")?
        .execute(params![signed(marks.base_seq + lines.len() as u64), hash])?;
    Ok(())
}

fn put_base(conn: &Connection, before: &Rows, rows: &Rows, touched: &BTreeSet<LeaseId>) -> Result<()> {
    put(conn, "meta", 0, &rows.meta)?;
    put_changed(conn, "tenant", &before.tenants, &rows.tenants)?;
    put_changed(conn, "card", &before.cards, &rows.cards)?;
    put_map(conn, "token", &before.tokens, &rows.tokens, |id| id.0.into())?;
    put_map(conn, "stranger", &before.strangers, &rows.strangers, |id| id.0)?;
    put_map(conn, "rule", &before.rules, &rows.rules, |id| id.0.into())?;
    for id in touched {
        match rows.leases.get(id) {
            Some(lease) => put(conn, "lease", id.0, lease)?,
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
        put(conn, kind, number(id), row)?;
    }
    for id in before.keys().filter(|id| !after.contains_key(id)) {
        let sql = "DELETE FROM base WHERE kind = ?1 AND id = ?2";
        conn.prepare_cached(sql)?.execute(params![kind, signed(number(id))])?;
    }
    Ok(())
}

fn put_changed<T: PartialEq + Serialize>(conn: &Connection, kind: &str, before: &[T], after: &[T]) -> Result<()> {
    let changed = after.iter().enumerate().filter(|(number, row)| before.get(*number) != Some(*row));
    changed.into_iter().try_for_each(|(number, row)| put(conn, kind, number as u64, row))
}

fn put(conn: &Connection, kind: &str, id: u64, body: &impl Serialize) -> Result<()> {
    let sql = "INSERT OR REPLACE INTO base (kind, id, body) VALUES (?1, ?2, ?3)";
    conn.prepare_cached(sql)?.execute(params![kind, signed(id), codec::json(body)?])?;
    Ok(())
}

fn get<T: DeserializeOwned>(conn: &Connection, kind: &str, id: u64) -> Result<Option<T>> {
    let sql = "SELECT body FROM base WHERE kind = ?1 AND id = ?2";
    conn.prepare_cached(sql)?.query_row(params![kind, signed(id)], |row| codec::from_json(row, 0)).optional()
}

fn all<T: DeserializeOwned>(conn: &Connection, kind: &str) -> Result<Vec<T>> {
    let mut find = conn.prepare_cached("SELECT body FROM base WHERE kind = ?1 ORDER BY id")?;
    find.query_map([kind], |row| codec::from_json(row, 0))?.collect()
}

fn base_without_leases(conn: &Connection) -> Result<Rows> {
    let meta = get(conn, "meta", 0)?.unwrap_or_default();
    let tokens = all(conn, "token")?.into_iter().map(|token: Token| (token.id, token)).collect();
    let strangers = all(conn, "stranger")?.into_iter().map(|stranger: Stranger| (stranger.id, stranger)).collect();
    let rules = all(conn, "rule")?.into_iter().map(|rule: Rule| (rule.id, rule)).collect();
    let (tenants, cards) = (all(conn, "tenant")?, all(conn, "card")?);
    Ok(Rows { meta, tenants, cards, tokens, strangers, rules, ..Rows::default() })
}

/// The rows as they were before the log's first entry.
pub fn base(conn: &Connection) -> Result<Rows> {
    let mut rows = base_without_leases(conn)?;
    rows.leases = all(conn, "lease")?.into_iter().map(|lease: sublet_core::rows::Lease| (lease.id, lease)).collect();
    Ok(rows)
}

fn forget_answers(conn: &Connection, before_wall_us: u64, max: u64) -> Result<u64> {
    let count: i64 = conn.prepare_cached("SELECT count(*) FROM answers")?.query_row([], |row| row.get(0))?;
    let surplus = count.cast_unsigned().saturating_sub(max).min(PIECE);
    // Among the oldest: too many, or too old.
    let sql = "DELETE FROM answers WHERE number IN (
                   SELECT number FROM (
                       SELECT number, wall_us, row_number() OVER (ORDER BY number) AS place
                       FROM answers ORDER BY number LIMIT ?1)
                   WHERE place <= ?2 OR wall_us < ?3)";
    let removed = conn.prepare_cached(sql)?.execute(params![signed(PIECE), signed(surplus), signed(before_wall_us)])?;
    Ok(removed as u64)
}

/// Looks at every page of an index: with a million ended leases, some milliseconds.
fn count_past(conn: &Connection) -> Result<u64> {
    let count: i64 = conn.prepare_cached("SELECT count(*) FROM past")?.query_row([], |row| row.get(0))?;
    Ok(count.cast_unsigned())
}

fn forget_past(conn: &Connection, count: u64, max: u64) -> Result<u64> {
    let surplus = count.saturating_sub(max).min(PIECE);
    if surplus == 0 {
        return Ok(0);
    }
    let find = "SELECT id FROM past ORDER BY id LIMIT 1 OFFSET ?1";
    let last: i64 = conn.prepare_cached(find)?.query_row([signed(surplus - 1)], |row| row.get(0))?;
    let removed = conn.prepare_cached("DELETE FROM past WHERE id <= ?1")?.execute([last])?;
    conn.prepare_cached("UPDATE meta SET past_floor = max(past_floor, ?1)")?.execute([last + 1])?;
    Ok(removed as u64)
}
