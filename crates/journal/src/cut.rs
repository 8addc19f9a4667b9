//! Cuts lines out of the log where one tenant has most, and keeps the chain whole over the gaps.
//!
//! ```text
//!   log_seq           base_seq                        head_seq
//!      │   kept lines,   │   every line, applied to      │
//!      │   stubs between │   the base gives the rows     │
//!   ───┤■■□□□■□■■□□□□□■■■├■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■┤
//! ```
//! Lines up to `base_seq` explain no row any more: the base has them. They are history, and each has an owner
//! ([`LineOwner`]). Beyond the limit the owner with most lines loses its oldest ones. A *stub* stays for each run of
//! cut lines: their numbers, how many of which owner, and the hash of the last one, which the line after it covers.
//! Runs that touch become one stub, so there are never more stubs than lines; the stub at the old end becomes the
//! beginning of the log. A tenant can therefore cut only its own lines by writing many.

use crate::chain::{Hash, Hasher};
use crate::codec::{self, signed};
use crate::fold;
use crate::line_owner::{DAEMON_OWNER, LineOwner};
use crate::read::{self, LogLine, LogPositions};
use rusqlite::{Connection, Error, OptionalExtension, Result, Row, params};
use std::collections::BTreeMap;

/// Owners that lose lines, or ended leases, in one call, at most.
pub const OWNERS_AT_ONCE: usize = 32;

/// A run of lines that were cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stub {
    /// The first line.
    pub first: u64,
    /// The last line.
    pub last: u64,
    /// The hash of the last line.
    pub hash: Hash,
    /// How many lines of each owner, by the owner's number.
    pub owners: BTreeMap<u64, u64>,
}

/// Reads stubs; a condition follows.
pub const STUBS: &str = "SELECT first_seq, last_seq, hash, owners FROM stubs ";

/// Reads a stub.
pub fn stub(row: &Row<'_>) -> Result<Stub> {
    let int = |column| row.get::<_, i64>(column).map(i64::cast_unsigned);
    Ok(Stub { first: int(0)?, last: int(1)?, hash: codec::hash(row, 2)?, owners: codec::from_json(row, 3)? })
}

/// Notes the owners of lines that were just folded into the base.
pub fn note_owners(conn: &Connection, lines: impl Iterator<Item = (u64, LineOwner)>) -> Result<()> {
    let mut put = conn.prepare_cached("INSERT OR FAIL INTO kept (owner, rank, seq) VALUES (?1, ?2, ?3)")?;
    let mut owners: BTreeMap<String, (i64, i64)> = BTreeMap::new();
    for (seq, owner) in lines {
        if !owners.contains_key(&owner.name) {
            owners.insert(owner.name.clone(), (number_of(conn, &owner.name)?, 0));
        }
        if let Some((number, lines)) = owners.get_mut(&owner.name) {
            put.execute(params![*number, owner.rank, signed(seq)])?;
            *lines += 1;
        }
    }
    let mut add = conn.prepare_cached("UPDATE owners SET lines = lines + ?2 WHERE id = ?1")?;
    owners.into_values().try_for_each(|counted| add.execute(counted).map(drop))
}

fn number_of(conn: &Connection, name: &str) -> Result<i64> {
    conn.prepare_cached("INSERT INTO owners (name, lines, cut) VALUES (?1, 0, 0) ON CONFLICT DO NOTHING")?
        .execute([name])?;
    conn.prepare_cached("SELECT id FROM owners WHERE name = ?1")?.query_row([name], |row| row.get(0))
}

/// The number of lines up to the base that are still in the log.
pub fn kept_lines(conn: &Connection) -> Result<u64> {
    let sum: i64 =
        conn.prepare_cached("SELECT coalesce(sum(lines), 0) FROM owners")?.query_row([], |row| row.get(0))?;
    Ok(sum.cast_unsigned())
}

/// Cuts up to `surplus` lines; `keep` is the limit that makes them too many. Returns how many were cut.
pub fn cut_lines(conn: &Connection, surplus: u64, keep: u64) -> Result<u64> {
    let mut done = 0;
    for _ in 0..OWNERS_AT_ONCE {
        let Some((owner, lines)) = next_owner_to_cut(conn, keep, surplus - done)? else { break };
        done += cut_oldest(conn, owner, lines)?;
    }
    Ok(done)
}

/// The owner that loses lines next, and how many. It is the one with most lines. The daemon's and the operators'
/// lines go after all others, unless they alone are more than a quarter of what is kept.
fn next_owner_to_cut(conn: &Connection, keep: u64, surplus: u64) -> Result<Option<(i64, u64)>> {
    let sql = "SELECT id, lines FROM owners WHERE lines > 0
               ORDER BY name = ?1 AND lines <= ?2, lines DESC, id LIMIT 2";
    let mut find = conn.prepare_cached(sql)?;
    let most = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?.cast_unsigned()));
    let found: Vec<(i64, u64)> =
        find.query_map(params![DAEMON_OWNER, signed(keep / 4)], most)?.collect::<Result<_>>()?;
    let Some((owner, lines)) = found.first().copied() else { return Ok(None) };
    let second = found.get(1).map_or(0, |(_, lines)| *lines);
    Ok(Some((owner, surplus.min(lines_at_once(lines, second, keep)))).filter(|(_, lines)| *lines > 0))
}

/// How many lines the largest owner may lose before the largest is determined again: its lead over the second, and a
/// few more, so that two owners of the same size do not alternate line by line.
pub fn lines_at_once(largest: u64, second: u64, keep: u64) -> u64 {
    largest.saturating_sub(second).max((keep / 16).clamp(1, 64)).min(largest)
}

fn cut_oldest(conn: &Connection, owner: i64, lines: u64) -> Result<u64> {
    let mut find = conn.prepare_cached("SELECT rank, seq FROM kept WHERE owner = ?1 ORDER BY rank, seq LIMIT ?2")?;
    let pair = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?.cast_unsigned()));
    let found: Vec<(i64, u64)> = find.query_map(params![owner, signed(lines)], pair)?.collect::<Result<_>>()?;
    let mut forget = conn.prepare_cached("DELETE FROM kept WHERE owner = ?1 AND rank = ?2 AND seq = ?3")?;
    for (rank, seq) in &found {
        forget.execute(params![owner, rank, signed(*seq)])?;
    }
    let mut seqs: Vec<u64> = found.iter().map(|(_, seq)| *seq).collect();
    seqs.sort_unstable();
    let mut hasher = Hasher::default();
    for run in seqs.chunk_by(|a, b| a + 1 == *b) {
        cut_run(conn, &mut hasher, owner.cast_unsigned(), run)?;
    }
    let count = found.len() as u64;
    conn.prepare_cached("UPDATE owners SET lines = lines - ?2, cut = cut + ?2 WHERE id = ?1")?
        .execute(params![owner, signed(count)])?;
    Ok(count)
}

/// Replaces consecutive lines by a stub. Lines that do not fit the chain stay as evidence.
fn cut_run(conn: &Connection, hasher: &mut Hasher, owner: u64, run: &[u64]) -> Result<()> {
    let refused = |what: String| Error::ToSqlConversionFailure(what.into());
    let [first, ..] = run else { return Ok(()) };
    let positions = read::positions(conn)?;
    let before = stub_before(conn, *first)?;
    let mut hash = match &before {
        Some(stub) => stub.hash,
        None if *first == positions.log_seq + 1 => positions.log_hash,
        None => read_line(conn, *first - 1)?.hash,
    };
    for seq in run {
        let line = read_line(conn, *seq)?;
        fold::check_link(hasher, &hash, *seq, &line).map_err(refused)?;
        hash = line.hash;
    }
    let last = first + run.len() as u64 - 1;
    conn.prepare_cached("DELETE FROM log WHERE seq BETWEEN ?1 AND ?2")?.execute([signed(*first), signed(last)])?;
    let mut stub = Stub { first: *first, last, hash, owners: BTreeMap::from([(owner, run.len() as u64)]) };
    if let Some(before) = before {
        stub.first = before.first;
        add_counts(&mut stub.owners, &before.owners);
    }
    if let Some(after) = stub_at(conn, last + 1)? {
        (stub.last, stub.hash) = (after.last, after.hash);
        add_counts(&mut stub.owners, &after.owners);
        remove_stub(conn, after.first)?;
    }
    put_stub(conn, &positions, &stub)
}

fn add_counts(owners: &mut BTreeMap<u64, u64>, more: &BTreeMap<u64, u64>) {
    for (owner, lines) in more {
        *owners.entry(*owner).or_default() += lines;
    }
}

fn read_line(conn: &Connection, seq: u64) -> Result<LogLine> {
    conn.prepare_cached(read::LOG)?.query_row([signed(seq - 1), 1], read::log_line)
}

/// The stub that ends right before a line.
fn stub_before(conn: &Connection, seq: u64) -> Result<Option<Stub>> {
    let sql = format!("{STUBS}WHERE first_seq < ?1 ORDER BY first_seq DESC LIMIT 1");
    let found = conn.prepare_cached(&sql)?.query_row([signed(seq)], stub).optional()?;
    Ok(found.filter(|stub| stub.last + 1 == seq))
}

fn stub_at(conn: &Connection, first: u64) -> Result<Option<Stub>> {
    let sql = format!("{STUBS}WHERE first_seq = ?1");
    conn.prepare_cached(&sql)?.query_row([signed(first)], stub).optional()
}

fn remove_stub(conn: &Connection, first: u64) -> Result<()> {
    conn.prepare_cached("DELETE FROM stubs WHERE first_seq = ?1")?.execute([signed(first)])?;
    Ok(())
}

/// Writes a stub. At the old end of the log there is no stub: the log then begins after those lines.
fn put_stub(conn: &Connection, positions: &LogPositions, stub: &Stub) -> Result<()> {
    if stub.first == positions.log_seq + 1 {
        conn.prepare_cached("UPDATE meta SET log_seq = ?1, log_hash = ?2")?
            .execute(params![signed(stub.last), stub.hash])?;
        return Ok(());
    }
    let sql = "INSERT OR REPLACE INTO stubs (first_seq, last_seq, hash, owners) VALUES (?1, ?2, ?3, ?4)";
    conn.prepare_cached(sql)?.execute(params![
        signed(stub.first),
        signed(stub.last),
        stub.hash,
        codec::json(&stub.owners)?
    ])?;
    Ok(())
}
