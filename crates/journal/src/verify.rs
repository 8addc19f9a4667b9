//! Checks a journal: the file, the chain, that the log explains the rows, and that the stored answers
//! and the clock are such as could have been written.
//!
//! Everything is read in one transaction, so it may run beside a daemon. Nothing is
//! repaired. What is older than the log's first entry rests on the base that trimming
//! left; its ended leases cannot be checked any more and are counted as such.

use crate::chain::{Hash, Hasher};
use crate::codec::{self, signed};
use crate::connect;
use crate::error::OpenError;
use crate::fold;
use crate::read::{self, Marks};
use crate::trim;
use rusqlite::{Connection, OptionalExtension, Result};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::Path;
use sublet_core::ids::LeaseId;
use sublet_core::rows::{Ended, Rows};
use sublet_core::units::Time;

/// More findings than this say nothing new.
const FINDINGS_MAX: usize = 100;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What is wrong, a sentence each; empty when all is well.
    pub findings: Vec<String>,
    /// The number of the first entry in the log.
    pub first_seq: u64,
    /// The number of the last.
    pub last_seq: u64,
    /// The hash of the last, as the journal says.
    pub head: Hash,
    /// Live leases.
    pub leases: u64,
    /// Ended leases that the log explains.
    pub past: u64,
    /// Ended leases that are older than the log.
    pub past_unchecked: u64,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    fn find(&mut self, what: impl Into<String>) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(what.into());
        }
    }
}

/// Checks the journal in a state directory, or a backup. Works beside a daemon.
pub fn verify(at: &Path) -> Result<Report, OpenError> {
    let (conn, path) = connect::look(at)?;
    let mut report = Report::default();
    let checked = check(&conn, &mut report);
    if let Err(error) = checked {
        match OpenError::sqlite(&path, &error) {
            OpenError::Corrupt { source, .. } => report.find(format!("the file is damaged: {source}")),
            other => return Err(other),
        }
    }
    Ok(report)
}

fn check(conn: &Connection, report: &mut Report) -> Result<()> {
    let tx = conn.unchecked_transaction()?;
    check_file(&tx, report)?;
    let marks = read::marks(&tx)?;
    (report.first_seq, report.last_seq, report.head) = (marks.base_seq + 1, marks.head_seq, marks.head_hash);
    let base = trim::base(&tx)?;
    let Some(folded) = fold_log(&tx, &marks, &base, report)? else {
        return Ok(()); // A log that does not hold explains nothing.
    };
    let rows = read::rows(&tx)?;
    report.leases = rows.leases.len() as u64;
    compare_rows(&folded.rows, &rows, report);
    check_answers(&tx, rows.tenants.len(), report)?;
    check_past_is_explained(&tx, &base, &folded, report)
}

/// The log does not have the stored answers: what can be seen is whether each could be given again.
fn check_answers(conn: &Connection, tenants: usize, report: &mut Report) -> Result<()> {
    let mut find =
        conn.prepare("SELECT tenant, key, length(fingerprint), status, body FROM answers ORDER BY number")?;
    let mut rows = find.query([])?;
    while let Some(row) = rows.next()? {
        let (tenant, key): (i64, String) = (row.get(0)?, row.get(1)?);
        let mut wrong =
            |what: &str| report.find(format!("the stored answer for key `{key}` of tenant {tenant} {what}"));
        if !usize::try_from(tenant).is_ok_and(|tenant| tenant < tenants) {
            wrong("is of a tenant that there is not");
        }
        match row.get::<_, i64>(2)? {
            32 => {}
            bytes => wrong(&format!("has a fingerprint of {bytes} bytes instead of 32")),
        }
        match row.get::<_, i64>(3)? {
            200..300 => {}
            status => wrong(&format!("has the status {status}, and only what was done is stored")),
        }
        if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(&row.get::<_, String>(4)?) {
            wrong(&format!("is no JSON: {error}"));
        }
    }
    Ok(())
}

fn check_file(conn: &Connection, report: &mut Report) -> Result<()> {
    let mut check = conn.prepare(&format!("PRAGMA integrity_check({FINDINGS_MAX})"))?;
    for line in check.query_map([], |row| row.get::<_, String>(0))? {
        let line = line?;
        if line != "ok" {
            report.find(format!("the file is damaged: {line}"));
        }
    }
    Ok(())
}

struct Folded {
    rows: Rows,
    ended: BTreeSet<LeaseId>,
}

/// Folds the log, checking the chain and the history on the way; `None` if the log does not hold.
fn fold_log(conn: &Connection, marks: &Marks, base: &Rows, report: &mut Report) -> Result<Option<Folded>> {
    let mut folded = Folded { rows: base.clone(), ended: BTreeSet::new() };
    let (mut hasher, mut hash, mut seq) = (Hasher::default(), marks.base_hash, marks.base_seq);
    let mut latest = Time::ZERO;
    let mut log = conn.prepare(read::LOG)?;
    for line in log.query_map([signed(marks.base_seq), -1], read::log_line)? {
        let line = line?;
        let stepped =
            fold::linked(&mut hasher, &hash, seq + 1, &line).and_then(|()| fold::step(&mut folded.rows, &line));
        (hash, seq) = (line.hash, line.seq);
        latest = latest.max(line.at);
        match stepped {
            Ok(Some(ended)) => {
                folded.ended.insert(ended.id);
                check_past_holds(conn, marks, &ended, report)?;
            }
            Ok(None) => {}
            Err(what) => {
                report.find(what);
                return Ok(None);
            }
        }
    }
    if (seq, hash) != (marks.head_seq, marks.head_hash) {
        report.find(format!("the log ends at entry {seq}, but {} were written", marks.head_seq));
        return Ok(None);
    }
    if marks.clock < latest {
        report.find(format!(
            "the table `meta` has the clock at {} µs, but the log has an entry of {} µs",
            marks.clock.0, latest.0
        ));
    }
    Ok(Some(folded))
}

/// What the log ended must be in the history as it was, unless it may be forgotten.
fn check_past_holds(conn: &Connection, marks: &Marks, ended: &Ended, report: &mut Report) -> Result<()> {
    let mut find = conn.prepare_cached(&format!("{}WHERE id = ?1", codec::PAST))?;
    match find.query_row([signed(ended.id.0)], codec::past).optional()? {
        Some(row) if row == *ended => report.past += 1,
        Some(row) => report.find(differs(&format!("ended lease {}", ended.id), ended, &row)),
        None if ended.id.0 < marks.past_floor => {}
        None => report.find(format!("ended lease {} is in the log, but its row is missing", ended.id)),
    }
    Ok(())
}

/// What is in the history must have been ended by the log, unless it is older.
fn check_past_is_explained(conn: &Connection, base: &Rows, folded: &Folded, report: &mut Report) -> Result<()> {
    let mut ids = conn.prepare("SELECT id FROM past")?;
    for id in ids.query_map([], |row| row.get::<_, i64>(0))? {
        let id = LeaseId(id?.cast_unsigned());
        if folded.ended.contains(&id) {
            continue;
        }
        if id.0 < base.meta.next_lease && !base.leases.contains_key(&id) {
            report.past_unchecked += 1;
        } else {
            report.find(format!("ended lease {id} has a row that the log does not explain"));
        }
    }
    Ok(())
}

/// More fields than this say nothing new about one row.
const FIELDS_MAX: usize = 4;

/// Which fields of a row are not as the log has them.
fn differs(what: &str, log: &impl Serialize, row: &impl Serialize) -> String {
    let mut fields = Vec::new();
    // Through text: numbers of 128 bits have no other way, and lose only digits that nobody reads.
    let value = |of: &dyn Fn() -> serde_json::Result<String>| of().and_then(|text| serde_json::from_str(&text));
    if let (Ok(log), Ok(row)) = (value(&|| serde_json::to_string(log)), value(&|| serde_json::to_string(row))) {
        compare_fields("", &log, &row, &mut fields);
    }
    match fields.len() {
        0 => format!("{what} differs in the last digits of a large number"),
        1..=FIELDS_MAX => format!("{what} differs: {}", fields.join("; ")),
        all => format!("{what} differs: {}; and in {} more", fields[..FIELDS_MAX].join("; "), all - FIELDS_MAX),
    }
}

fn compare_fields(at: &str, log: &Value, row: &Value, fields: &mut Vec<String>) {
    let below = |name: &str| if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
    match (log, row) {
        (log, row) if log == row => {}
        (Value::Object(log), Value::Object(row)) => {
            for name in log.keys().chain(row.keys().filter(|name| !log.contains_key(*name))) {
                let of = |map: &serde_json::Map<String, Value>| map.get(name).cloned().unwrap_or(Value::Null);
                compare_fields(&below(name), &of(log), &of(row), fields);
            }
        }
        (Value::Array(log), Value::Array(row)) if log.len() == row.len() => {
            for (place, (log, row)) in log.iter().zip(row).enumerate() {
                compare_fields(&below(&place.to_string()), log, row, fields);
            }
        }
        _ => {
            let at = if at.is_empty() { "it" } else { at };
            fields.push(format!("`{at}` is `{log}` by the log and `{row}` in its row"));
        }
    }
}

fn compare_rows(log: &Rows, rows: &Rows, report: &mut Report) {
    if log.meta != rows.meta {
        report.find(differs("the table `meta`", &log.meta, &rows.meta));
    }
    compare_lists("tenant", &log.tenants, &rows.tenants, report);
    compare_lists("card", &log.cards, &rows.cards, report);
    compare_maps("lease", &log.leases, &rows.leases, report);
    compare_maps("token", &log.tokens, &rows.tokens, report);
    compare_maps("stranger", &log.strangers, &rows.strangers, report);
    compare_maps("rule", &log.rules, &rows.rules, report);
}

fn compare_maps<K: Ord + Display, T: PartialEq + Serialize>(
    what: &str,
    log: &BTreeMap<K, T>,
    rows: &BTreeMap<K, T>,
    report: &mut Report,
) {
    for id in log.keys().chain(rows.keys()).collect::<BTreeSet<_>>() {
        match (log.get(id), rows.get(id)) {
            (Some(log), Some(row)) if log == row => {}
            (Some(log), Some(row)) => report.find(differs(&format!("{what} {id}"), log, row)),
            (Some(_), None) => report.find(format!("{what} {id} is live by the log, but its row is missing")),
            (None, _) => report.find(format!("{what} {id} has a row that the log does not explain")),
        }
    }
}

fn compare_lists<T: PartialEq + Serialize>(what: &str, log: &[T], rows: &[T], report: &mut Report) {
    if log.len() != rows.len() {
        report.find(format!("the log gives {} {what}s, the table has {}", log.len(), rows.len()));
    }
    for (number, (log, row)) in log.iter().zip(rows).enumerate().filter(|(_, (log, row))| log != row) {
        report.find(differs(&format!("{what} {number}"), log, row));
    }
}
