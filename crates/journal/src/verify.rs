//! Checks a journal: the file, the chain, that the log explains the rows, and that the stored answers
//! and the clock are such as could have been written.
//!
//! Everything is read in one transaction, so it may run beside a daemon. Nothing is
//! repaired. The chain is followed from the log's first entry to its last, over the stubs of lines that were cut.
//! Rows are checked against the base that trimming left and the entries after it; ended leases that are older than
//! the base cannot be checked any more and are counted as such.

use crate::chain::{Hash, Hasher};
use crate::codec::{self, signed};
use crate::connect;
use crate::cut::{self, Stub};
use crate::error::OpenError;
use crate::fold;
use crate::head::{self, HeadComparison};
use crate::read::{self, LogLine, LogPositions};
use crate::trim;
use rusqlite::{Connection, OptionalExtension, Result};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::Path;
use sublet_core::ids::{LeaseId, TenantId};
use sublet_core::rows::{EndedLease, Rows};
use sublet_core::units::Time;

/// More findings than this say nothing new.
const FINDINGS_MAX: usize = 100;

/// The result of [`verify`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
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
    pub ended: u64,
    /// Ended leases that are older than the log's base, and cannot be checked.
    pub ended_before_log: u64,
    /// How the journal's end compares with what was noted beside it.
    pub beside: HeadComparison,
    /// How many lines of each owner were trimmed, the most first: a tenant, or `sublet` for operators and the daemon.
    pub trimmed: Vec<(String, u64)>,
}

impl VerifyReport {
    /// True if nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty() && !matches!(self.beside, HeadComparison::Lost(_))
    }

    fn add_finding(&mut self, what: impl Into<String>) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(what.into());
        }
    }
}

/// Checks the journal in a state directory, or a backup. Works beside a daemon.
pub fn verify(at: &Path) -> Result<VerifyReport, OpenError> {
    let (conn, path) = connect::open_read_only(at)?;
    let mut report = VerifyReport::default();
    // The note is read before the journal, which may grow meanwhile.
    let noted = head::read(&path).map_err(|error| OpenError::file(&path.with_extension("head"), error))?;
    let checked = check(&conn, &mut report).and_then(|()| {
        report.beside = head::compare(&conn, &read::positions(&conn)?, &noted)?;
        Ok(())
    });
    if let Err(error) = checked {
        match OpenError::sqlite(&path, &error) {
            OpenError::Corrupt { source, .. } => report.add_finding(format!("the file is damaged: {source}")),
            other => return Err(other),
        }
    }
    Ok(report)
}

fn check(conn: &Connection, report: &mut VerifyReport) -> Result<()> {
    let tx = conn.unchecked_transaction()?;
    check_file(&tx, report)?;
    let positions = read::positions(&tx)?;
    (report.first_seq, report.last_seq, report.head) = (positions.log_seq + 1, positions.head_seq, positions.head_hash);
    let base = trim::base(&tx)?;
    report.trimmed = trimmed_by_owner(&tx)?;
    let Some(folded) = fold_log(&tx, &positions, &base, report)? else {
        return Ok(()); // A log with a broken chain explains nothing.
    };
    let rows = read::rows(&tx)?;
    report.leases = rows.leases.len() as u64;
    compare_rows(&folded.rows, &rows, report);
    check_answers(&tx, rows.tenants.len(), report)?;
    check_past_is_explained(&tx, &base, &folded, report)
}

/// Checks that each stored answer could be given again. The log does not have the answers, so nothing more can be
/// checked.
fn check_answers(conn: &Connection, tenants: usize, report: &mut VerifyReport) -> Result<()> {
    let mut find =
        conn.prepare("SELECT tenant, key, length(fingerprint), status, body FROM answers ORDER BY number")?;
    let mut rows = find.query([])?;
    while let Some(row) = rows.next()? {
        let (tenant, key): (i64, String) = (row.get(0)?, row.get(1)?);
        let mut wrong =
            |what: &str| report.add_finding(format!("the stored answer for key `{key}` of tenant {tenant} {what}"));
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

fn check_file(conn: &Connection, report: &mut VerifyReport) -> Result<()> {
    let mut check = conn.prepare(&format!("PRAGMA integrity_check({FINDINGS_MAX})"))?;
    for line in check.query_map([], |row| row.get::<_, String>(0))? {
        let line = line?;
        if line != "ok" {
            report.add_finding(format!("the file is damaged: {line}"));
        }
    }
    Ok(())
}

struct Folded {
    rows: Rows,
    ended: BTreeSet<LeaseId>,
}

/// Lines that were cut, by owner.
fn trimmed_by_owner(conn: &Connection) -> Result<Vec<(String, u64)>> {
    let mut find = conn.prepare("SELECT name, cut FROM owners WHERE cut <> 0 ORDER BY cut DESC, id")?;
    find.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?.cast_unsigned())))?.collect()
}

/// The position of a walk along the log.
struct VerifyWalk<'a> {
    positions: &'a LogPositions,
    hasher: Hasher,
    seq: u64,
    hash: Hash,
    /// The stub right before the next line.
    stub: Option<Stub>,
    /// Lines up to the base that are there.
    kept: u64,
    /// Lines that stubs stand for.
    cut: u64,
}

impl VerifyWalk<'_> {
    fn pass_line(&mut self, line: &LogLine) -> Result<(), String> {
        let linked = fold::check_link(&mut self.hasher, &self.hash, self.seq + 1, line);
        if let (Err(_), Some(stub)) = (&linked, &self.stub)
            && line.seq == self.seq + 1
        {
            let Stub { first, last, .. } = stub;
            return Err(format!(
                "entry {} of the log, or the stub of entries {first} to {last} before it, was changed: \
                 the hashes do not fit",
                line.seq
            ));
        }
        linked?;
        (self.seq, self.hash, self.stub) = (line.seq, line.hash, None);
        self.kept += u64::from(line.seq <= self.positions.base_seq);
        self.check_base_hash()
    }

    fn pass_stub(&mut self, stub: Stub) -> Result<(), String> {
        let Stub { first, last, .. } = stub;
        if first > self.seq + 1 {
            return Err(format!("entry {} of the log is missing", self.seq + 1));
        }
        let lines: u64 = stub.owners.values().fold(0, |sum, lines| sum.saturating_add(*lines));
        let fits = first == self.seq + 1 && last >= first && last <= self.positions.base_seq && self.stub.is_none();
        if !fits || lines != last - first + 1 {
            return Err(format!("the stub of entries {first} to {last} is none that trimming leaves"));
        }
        self.cut += lines;
        (self.seq, self.hash, self.stub) = (last, stub.hash, Some(stub));
        self.check_base_hash()
    }

    fn check_base_hash(&self) -> Result<(), String> {
        if self.seq == self.positions.base_seq && self.hash != self.positions.base_hash {
            return Err(format!("the base does not fit entry {} of the log: their hashes differ", self.seq));
        }
        Ok(())
    }

    /// Compares the lines that were seen with the counts that trimming stored.
    fn check_counts(&self, conn: &Connection, report: &mut VerifyReport) -> Result<()> {
        let count = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned);
        let cut = self.positions.log_seq + self.cut;
        let counted = count("SELECT coalesce(sum(cut), 0) FROM owners")?;
        if counted != cut {
            report.add_finding(format!("{cut} lines of the log were trimmed, but {counted} were counted"));
        }
        let noted = count("SELECT count(*) FROM kept JOIN log USING (seq)")?;
        let counted = count("SELECT coalesce(sum(lines), 0) FROM owners")?;
        if (noted, counted) != (self.kept, self.kept) {
            report.add_finding(format!(
                "the log has {} lines that are folded into the base, but the owners of {noted} are noted and {counted} \
                 are counted",
                self.kept
            ));
        }
        Ok(())
    }
}

/// Folds the log, checking the chain and the history on the way; `None` if the chain is broken.
fn fold_log(
    conn: &Connection,
    positions: &LogPositions,
    base: &Rows,
    report: &mut VerifyReport,
) -> Result<Option<Folded>> {
    let mut folded = Folded { rows: base.clone(), ended: BTreeSet::new() };
    let (seq, hash) = (positions.log_seq, positions.log_hash);
    let mut walk = VerifyWalk { positions, hasher: Hasher::default(), seq, hash, stub: None, kept: 0, cut: 0 };
    let mut latest = Time::ZERO;
    let mut stubs = conn.prepare(&format!("{}ORDER BY first_seq", cut::STUBS))?;
    let mut stubs = stubs.query_map([], cut::stub)?.peekable();
    let mut log = conn.prepare(read::LOG)?;
    let mut lines = log.query_map([signed(positions.log_seq), -1], read::log_line)?;
    if let Err(what) = walk.check_base_hash() {
        report.add_finding(what);
        return Ok(None);
    }
    loop {
        let line = lines.next().transpose()?;
        let is_before = |stub: &Result<Stub>| match (stub, &line) {
            (Ok(stub), Some(line)) => stub.first <= line.seq,
            _ => true,
        };
        let mut stepped = Ok(None);
        while let Some(stub) = stubs.next_if(is_before) {
            stepped = stepped.and(walk.pass_stub(stub?).map(|()| None));
        }
        let is_last = line.is_none();
        if let Some(line) = line {
            latest = latest.max(line.at);
            stepped = stepped.and_then(|_| {
                walk.pass_line(&line)?;
                if line.seq <= positions.base_seq { Ok(None) } else { fold::fold_line(&mut folded.rows, &line) }
            });
        }
        match stepped {
            Ok(Some(ended)) => {
                folded.ended.insert(ended.id);
                check_past_holds(conn, positions, &ended, report)?;
            }
            Ok(None) => {}
            Err(what) => {
                report.add_finding(what);
                return Ok(None);
            }
        }
        if is_last {
            break;
        }
    }
    if (walk.seq, walk.hash) != (positions.head_seq, positions.head_hash) {
        report.add_finding(format!("the log ends at entry {}, but {} were written", walk.seq, positions.head_seq));
        return Ok(None);
    }
    walk.check_counts(conn, report)?;
    if positions.clock < latest {
        report.add_finding(format!(
            "the table `meta` has the clock at {} µs, but the log has an entry of {} µs",
            positions.clock.0, latest.0
        ));
    }
    Ok(Some(folded))
}

/// Checks that a lease that ended in the log is in the history with the same values, unless it may be forgotten.
fn check_past_holds(
    conn: &Connection,
    positions: &LogPositions,
    ended: &EndedLease,
    report: &mut VerifyReport,
) -> Result<()> {
    let mut find = conn.prepare_cached(&format!("{}WHERE id = ?1", codec::PAST))?;
    match find.query_row([signed(ended.id.0)], codec::past).optional()? {
        Some(row) if row == *ended => report.ended += 1,
        Some(row) => report.add_finding(difference_text(&format!("ended lease {}", ended.id), ended, &row)),
        None if ended.id.0 < positions.past_floor.max(past_floor(conn, ended.tenant)?) => {}
        None => report.add_finding(format!("ended lease {} is in the log, but its row is missing", ended.id)),
    }
    Ok(())
}

fn past_floor(conn: &Connection, tenant: TenantId) -> Result<u64> {
    let mut find = conn.prepare_cached("SELECT floor FROM past_floors WHERE tenant = ?1")?;
    let floor = find.query_row([tenant.0], |row| row.get::<_, i64>(0)).optional()?;
    Ok(floor.map_or(0, i64::cast_unsigned))
}

/// Checks that each lease in the history ended in the log, unless it is older than the base.
fn check_past_is_explained(conn: &Connection, base: &Rows, folded: &Folded, report: &mut VerifyReport) -> Result<()> {
    let mut ids = conn.prepare("SELECT id FROM past")?;
    for id in ids.query_map([], |row| row.get::<_, i64>(0))? {
        let id = LeaseId(id?.cast_unsigned());
        if folded.ended.contains(&id) {
            continue;
        }
        if id.0 < base.meta.next_lease && !base.leases.contains_key(&id) {
            report.ended_before_log += 1;
        } else {
            report.add_finding(format!("ended lease {id} has a row that the log does not explain"));
        }
    }
    Ok(())
}

/// More fields than this say nothing new about one row.
const FIELDS_MAX: usize = 4;

/// Which fields of a row are not as the log has them.
fn difference_text(what: &str, log: &impl Serialize, row: &impl Serialize) -> String {
    let mut fields = Vec::new();
    // Through text: 128-bit numbers do not fit a JSON value otherwise. They lose only digits too small to matter here.
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

fn compare_rows(log: &Rows, rows: &Rows, report: &mut VerifyReport) {
    if log.meta != rows.meta {
        report.add_finding(difference_text("the table `meta`", &log.meta, &rows.meta));
    }
    compare_lists("tenant", &log.tenants, &rows.tenants, report);
    compare_lists("card", &log.gpus, &rows.gpus, report);
    compare_maps("lease", &log.leases, &rows.leases, report);
    compare_maps("token", &log.tokens, &rows.tokens, report);
    compare_maps("stranger", &log.unleased, &rows.unleased, report);
    compare_maps("rule", &log.rules, &rows.rules, report);
}

fn compare_maps<K: Ord + Display, T: PartialEq + Serialize>(
    what: &str,
    log: &BTreeMap<K, T>,
    rows: &BTreeMap<K, T>,
    report: &mut VerifyReport,
) {
    for id in log.keys().chain(rows.keys()).collect::<BTreeSet<_>>() {
        match (log.get(id), rows.get(id)) {
            (Some(log), Some(row)) if log == row => {}
            (Some(log), Some(row)) => report.add_finding(difference_text(&format!("{what} {id}"), log, row)),
            (Some(_), None) => report.add_finding(format!("{what} {id} is live by the log, but its row is missing")),
            (None, _) => report.add_finding(format!("{what} {id} has a row that the log does not explain")),
        }
    }
}

fn compare_lists<T: PartialEq + Serialize>(what: &str, log: &[T], rows: &[T], report: &mut VerifyReport) {
    if log.len() != rows.len() {
        report.add_finding(format!("the log gives {} {what}s, the table has {}", log.len(), rows.len()));
    }
    for (number, (log, row)) in log.iter().zip(rows).enumerate().filter(|(_, (log, row))| log != row) {
        report.add_finding(difference_text(&format!("{what} {number}"), log, row));
    }
}
