//! kill -9 to the first correct answer with many leases, compared with raw SQLite reading the same rows.
//!
//! A round: kill -9 and reap; copy the state folder as it lies there, WAL and all, and read every
//! row of the copy with raw SQLite; start the daemon on the original and ask for a lease with a
//! known answer. The daemon's side counts the kill, the start of the process, its reading and the
//! answer; the copy is made while no clock runs. Both sides find the files in the page cache.

use crate::client::{BenchClient, bodiless_request};
use crate::figure::{BenchOutcome, Figure, FigureTarget, digits};
use crate::load::{self, GrantedLease};
use crate::rig::BenchRig;
use crate::samples::median;
use crate::service::{self, ServiceProcess};
use anyhow::{Context, Result, ensure};
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// 100,000 leases of 512 MiB are 49 TiB.
const SCRIPTED_GPU: &str = "scripted:1x128TiB";
/// Between two tries to reach a daemon that is starting.
const RETRY_PAUSE: Duration = Duration::from_micros(200);
/// Tables that are history, not state: a start has no need to read them, so they don't count for
/// raw SQLite either.
const HISTORY_TABLES: &[&str] = &["answers", "audit", "base", "log", "past"];
/// Leases that are looked up after the first, spread over all.
const LEASES_CHECKED: usize = 200;

#[derive(Serialize)]
struct RestartRound {
    /// kill -9 until the process was reaped.
    kill_s: f64,
    /// Start of the process to the first correct answer.
    start_s: f64,
    /// Raw SQLite: open, recover, read all rows.
    raw_s: f64,
    rows: Vec<(String, usize)>,
}

impl RestartRound {
    fn ratio(&self) -> f64 {
        (self.kill_s + self.start_s) / self.raw_s
    }
}

/// Prepares the leases, then restarts a few times.
pub fn run(rig: &BenchRig) -> Result<BenchOutcome> {
    let folder = rig.fresh_folder("restart")?;
    let mut daemon = service::sublet(rig, &folder, SCRIPTED_GPU)?.await_ready(&folder)?;
    let start = Instant::now();
    let granted = load::fill(&daemon.socket, rig.connections, rig.leases).context("cannot prepare the leases")?;
    let fill_s = start.elapsed().as_secs_f64();
    eprintln!("  {} leases granted in {} s", granted.len(), digits(fill_s));
    let mut rounds = Vec::new();
    for round in 0..rig.rounds as usize {
        // Another lease each time: neither the first nor the last row.
        let known = &granted[(round + 1) * granted.len() / (rig.rounds as usize + 1)];
        let (next, measured) = restart(rig, &folder, daemon, known)?;
        daemon = next;
        rounds.push(measured);
        check_leases(&daemon.socket, &granted)?;
    }
    let middle = |of: fn(&RestartRound) -> f64| median(rounds.iter().map(of));
    Ok(BenchOutcome {
        figures: vec![Figure {
            what: "kill -9 to first correct answer, compared with raw SQLite reading the rows",
            target: FigureTarget::AtMost(5.0),
            measured: middle(RestartRound::ratio),
            unit: "×",
            note: format!(
                "{} leases: {} compared with {} ms",
                granted.len(),
                digits(1e3 * middle(|round| round.kill_s + round.start_s)),
                digits(1e3 * middle(|round| round.raw_s))
            ),
        }],
        raw: serde_json::json!({ "leases": granted.len(), "fill_s": fill_s, "rounds": rounds }),
    })
}

fn restart(
    rig: &BenchRig,
    folder: &Path,
    mut daemon: ServiceProcess,
    known: &GrantedLease,
) -> Result<(ServiceProcess, RestartRound)> {
    let start = Instant::now();
    daemon.kill()?;
    let kill_s = start.elapsed().as_secs_f64();
    let copy = rig.fresh_folder("restart-copy")?;
    let database = copied_database(folder, &copy)?;
    let start = Instant::now();
    let rows = read_rows(&database)?;
    let raw_s = start.elapsed().as_secs_f64();

    let start = Instant::now();
    let mut daemon = service::sublet(rig, folder, SCRIPTED_GPU)?;
    daemon.try_until(folder, RETRY_PAUSE, |socket| is_right(socket, known).unwrap_or(false))?;
    let start_s = start.elapsed().as_secs_f64();
    Ok((daemon, RestartRound { kill_s, start_s, raw_s, rows }))
}

/// Copies the files of the store; returns the one that is the database.
fn copied_database(folder: &Path, copy: &Path) -> Result<PathBuf> {
    let mut database = None;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_type()?.is_file() {
            continue;
        }
        let to = copy.join(entry.file_name());
        std::fs::copy(entry.path(), &to)?;
        let head = std::fs::File::open(&to).and_then(|file| {
            let mut head = [0; 16];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut head, 0).map(|()| head)
        });
        if head.is_ok_and(|head| &head == b"SQLite format 3\0") {
            ensure!(database.is_none(), "more than one database in `{}`", folder.display());
            database = Some(to);
        }
    }
    database.with_context(|| format!("no database in `{}`", folder.display()))
}

/// Reads all columns of all rows that are state, as a start must.
fn read_rows(database: &Path) -> Result<Vec<(String, usize)>> {
    let db = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let tables: Vec<String> = db
        .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let mut counts = Vec::new();
    for table in tables.into_iter().filter(|name| !HISTORY_TABLES.contains(&name.as_str())) {
        let mut statement = db.prepare(&format!("SELECT * FROM \"{table}\""))?;
        let columns = statement.column_count();
        let rows: Vec<Vec<Value>> = statement
            .query_map([], |row| (0..columns).map(|column| row.get(column)).collect())?
            .collect::<rusqlite::Result<_>>()?;
        counts.push((table, std::hint::black_box(rows).len()));
    }
    Ok(counts)
}

/// Checks that a sample of all leases is as it was granted.
fn check_leases(socket: &Path, granted: &[GrantedLease]) -> Result<()> {
    for lease in granted.iter().step_by((granted.len() / LEASES_CHECKED).max(1)) {
        ensure!(is_right(socket, lease)?, "lease {} is not as it was granted", lease.id);
    }
    Ok(())
}

/// True if the answer about a lease is that of its grant. Only times may differ.
fn is_right(socket: &Path, known: &GrantedLease) -> Result<bool> {
    let mut client = BenchClient::connect(socket)?;
    let (status, body) = client.call(&bodiless_request("GET", &format!("/v1/leases/{}", known.id)))?;
    if status != 200 {
        return Ok(false);
    }
    let (now, then): (serde_json::Value, serde_json::Value) =
        (serde_json::from_slice(body)?, serde_json::from_slice(&known.body)?);
    Ok(["id", "state", "epoch", "vram_bytes", "tier"].iter().all(|field| now[field] == then[field]))
}
