//! Raw SQLite writing the rows of a batch, with nothing left to work out: what the journal is
//! compared with. Same tables, same durability, same plan of checkpoints.

use anyhow::{Context, Result};
use rusqlite::{Connection, params};
use std::path::Path;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use sublet_core::rows::{Hold, Phase};
use sublet_journal::Batch;

/// Pages in 4 MiB of write-ahead log, as in the journal.
const CHECKPOINT_PAGES: i32 = 1018;

/// A batch with every value ready to be bound.
pub struct BoundBatch {
    batch: Batch,
    lines: Vec<(String, [u8; 32])>,
    leases: Vec<[String; 3]>,
    past: Vec<String>,
}

impl BoundBatch {
    /// Computes ahead of time all that is not SQLite's work.
    pub fn of(batch: Batch) -> Result<BoundBatch> {
        let line = |json: String| {
            let hash = *blake3::hash(json.as_bytes()).as_bytes();
            (json, hash)
        };
        let entries = batch.entries.iter().map(|entry| serde_json::to_string(&entry.action).map(line));
        let lines = entries.collect::<Result<_, _>>()?;
        let mut leases = Vec::new();
        for lease in batch.new.iter().chain(&batch.leases) {
            let finish = match &lease.phase {
                Phase::Ending(_, finish) => serde_json::to_string(finish)?,
                _ => String::new(),
            };
            leases.push([serde_json::to_string(&lease.request)?, serde_json::to_string(&lease.roots)?, finish]);
        }
        let past = batch.past.iter().map(|ended| serde_json::to_string(&ended.request)).collect::<Result<_, _>>()?;
        Ok(BoundBatch { batch, lines, leases, past })
    }
}

/// A database with the journal's tables.
pub struct RawDatabase {
    conn: Connection,
    seq: i64,
}

impl RawDatabase {
    /// Makes one with the tables of the journal at `like`.
    pub fn create(like: &Path, path: &Path) -> Result<RawDatabase> {
        let ours = Connection::open(like)?;
        let mut conn = Connection::open(path)?;
        conn.busy_handler(Some(wait))?;
        conn.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0")?;
        let mut find = ours.prepare("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")?;
        for sql in find.query_map([], |row| row.get::<_, String>(0))? {
            conn.execute_batch(&sql?)?;
        }
        conn.execute_batch(
            "INSERT INTO meta VALUES (1, '', 0, 1, 1, 0, 0, 0, 0, zeroblob(32), 0, zeroblob(32), 0, 0, 1, 1, 1)",
        )?;
        let wake = checkpoints(path)?;
        let mut woken_at = 0;
        conn.wal_hook(Some(move |_: &mut _, frames| {
            if frames < woken_at {
                woken_at = 0;
            }
            if frames >= woken_at + CHECKPOINT_PAGES && wake.try_send(frames).is_ok() {
                woken_at = frames;
            }
            Ok(())
        }))?;
        Ok(RawDatabase { conn, seq: 0 })
    }

    /// Writes the rows of a batch in one transaction.
    pub fn commit(&mut self, ready: &BoundBatch) -> Result<()> {
        let batch = &ready.batch;
        let conn = &self.conn;
        conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let mut log = conn.prepare_cached("INSERT INTO log VALUES (?1, ?2, ?3, ?4, ?5, 1, ?6, ?7)")?;
        for (entry, (json, hash)) in batch.entries.iter().zip(&ready.lines) {
            self.seq += 1;
            let lease = entry.action.lease().map(|id| id.0 as i64);
            log.execute(params![self.seq, entry.at.0 as i64, entry.wall_us as i64, &*entry.actor, lease, json, hash])?;
        }
        write_leases(conn, ready)?;
        write_past(conn, ready)?;
        if let Some(meta) = &batch.meta {
            conn.prepare_cached("UPDATE meta SET next_lease = ?1, next_epoch = ?2, grace_until_us = 0")?
                .execute(params![meta.next_lease as i64, meta.next_fence.0 as i64])?;
        }
        let mut tenant = conn.prepare_cached(
            "INSERT OR REPLACE INTO tenants VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, '[]', '0', '{}')",
        )?;
        for (id, row) in &batch.tenants {
            let [leases, card_us, mark, turn, today] =
                [row.leases, row.gpu_us, row.debt_clock.0, row.first_since.0, row.today_us].map(|n| n as i64);
            tenant.execute(params![id.0, row.name, leases, card_us, row.byte_us.to_string(), mark, turn, today])?;
        }
        let hash = ready.lines.last().map_or([0; 32], |line| line.1);
        conn.prepare_cached("UPDATE meta SET clock_us = ?1, head_seq = ?2, head_hash = ?3")?.execute(params![
            batch.at.0 as i64,
            self.seq,
            hash
        ])?;
        conn.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }
}

fn write_leases(conn: &Connection, ready: &BoundBatch) -> Result<()> {
    let mut put = conn.prepare_cached(
        "INSERT OR REPLACE INTO leases (id, tenant, asked_us, ask, roots, phase, finish, vram, epoch, granted_us, \
         renewed_us, until_us, idle, cards, paid_us, day) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, \
         ?13, '[0]', ?14, 0)",
    )?;
    let batch = &ready.batch;
    for (lease, [ask, roots, finish]) in batch.new.iter().chain(&batch.leases).zip(&ready.leases) {
        let phase = if finish.is_empty() { "active" } else { "ending" };
        let finish = (!finish.is_empty()).then_some(finish);
        let (id, tenant, asked) = (lease.id.0 as i64, lease.tenant.0, lease.requested.0 as i64);
        let hold = lease.hold().context("a lease that waits: the card is too small for this bench")?;
        let [vram, epoch, granted, renewed, until] = numbers(hold);
        let (idle, paid) = (hold.idle, hold.prepaid.0 as i64);
        put.execute(params![
            id, tenant, asked, ask, roots, phase, finish, vram, epoch, granted, renewed, until, idle, paid
        ])?;
    }
    let mut gone = conn.prepare_cached("DELETE FROM leases WHERE id = ?1")?;
    for id in &ready.batch.gone {
        gone.execute([id.0 as i64])?;
    }
    Ok(())
}

fn write_past(conn: &Connection, ready: &BoundBatch) -> Result<()> {
    let mut put = conn.prepare_cached(
        "INSERT INTO past VALUES (?1, ?2, ?3, ?4, 'released', ?5, NULL, ?6, ?7, ?8, ?9, ?10, ?11, '[0]', ?12, NULL, 0, NULL)",
    )?;
    for (ended, ask) in ready.batch.past.iter().zip(&ready.past) {
        let hold = ended.hold.as_ref().context("a lease that was never granted")?;
        let [vram, epoch, granted, renewed, until] = numbers(hold);
        let (id, asked, at) = (ended.id.0 as i64, ended.requested.0 as i64, ended.end.at.0 as i64);
        let (tenant, idle, paid) = (ended.tenant.0, hold.idle, hold.prepaid.0 as i64);
        put.execute(params![id, tenant, asked, ask, at, vram, epoch, granted, renewed, until, idle, paid])?;
    }
    Ok(())
}

fn numbers(hold: &Hold) -> [i64; 5] {
    [hold.vram.0, hold.fence.0, hold.granted.0, hold.renewed.0, hold.until.0].map(|n| n as i64)
}

fn wait(looks: i32) -> bool {
    std::thread::sleep(Duration::from_micros(200));
    looks < 25_000
}

/// Checkpoints on a thread of their own, as the journal's are.
fn checkpoints(path: &Path) -> Result<SyncSender<i32>> {
    let mut conn = Connection::open(path)?;
    conn.busy_handler(Some(wait))?;
    let (wake, woken) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || {
        for frames in woken {
            // If a reader is in the way, the next step tries again.
            let _ = conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
            if frames > 2 * CHECKPOINT_PAGES {
                let _ = conn.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()));
            }
        }
    });
    Ok(wake)
}
