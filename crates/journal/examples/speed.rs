//! How fast the journal is, beside raw SQLite writing the same rows in one run.
//!
//! `cargo run --release -p sublet-journal --example speed [SECONDS]`

use rusqlite::{Connection, Statement, params};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use sublet_core::action::Action;
use sublet_core::ask::{Ask, Exclusivity, Term, Tier, Vram};
use sublet_core::ids::{CardId, Epoch, LeaseId, TenantId};
use sublet_core::reading::CardFacts;
use sublet_core::rows::{Reason, Rows};
use sublet_core::units::{Bytes, Span, Time};
use sublet_journal::{Batch, Entry, Journal, Open};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const LEASES: u64 = 100_000;

/// Pages in 4 MiB of write-ahead log.
const STEP: i32 = 1018;

fn wait(looks: i32) -> bool {
    std::thread::sleep(Duration::from_micros(200));
    looks < 25_000
}

fn main() -> Result<()> {
    let seconds: f64 = std::env::args().nth(1).map_or(Ok(2.0), |text| text.parse())?;
    let here = tempfile::tempdir_in(".")?;
    println!("{:>12} {:>8} {:>12} {:>12} {:>7}   p50, p99 of a commit", "", "in one", "journal", "raw", "ratio");
    for size in [1, 16, 128] {
        compare(here.path(), size, Duration::from_secs_f64(seconds))?;
    }
    load(here.path())
}

/// Batches per second of asks that are granted, ended and retired, ours and raw in turns.
fn compare(here: &Path, size: usize, time: Duration) -> Result<()> {
    let dir = here.join(format!("journal-{size}"));
    let (mut journal, _) = Journal::open(&dir)?;
    let mut world = World::new();
    journal.commit(&world.close())?;
    let raw_path = here.join(format!("raw-{size}.db"));
    copy_schema(&dir, &raw_path)?;
    let mut raw = Connection::open(&raw_path)?;
    raw.busy_handler(Some(wait))?;
    raw.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0")?;
    let checkpoints = raw_checkpoints(&raw_path)?;
    let mut woken_at = 0;
    raw.wal_hook(Some(move |_: &mut _, frames| {
        if frames < woken_at {
            woken_at = 0;
        }
        if frames >= woken_at + STEP && checkpoints.try_send(frames).is_ok() {
            woken_at = frames;
        }
        Ok(())
    }))?;

    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let mut raw_seq = 0;
    for _ in 0..10 {
        let end = Instant::now() + time / 20;
        while Instant::now() < end {
            (0..size).for_each(|_| world.cycle());
            let batch = world.close();
            let begun = Instant::now();
            journal.commit(&batch)?;
            ours.push(begun.elapsed());
        }
        let end = Instant::now() + time / 20;
        while Instant::now() < end {
            (0..size).for_each(|_| world.cycle());
            let batch = world.close();
            let lines = raw_lines(&batch, &mut raw_seq)?;
            let begun = Instant::now();
            raw_commit(&raw, &batch, &lines)?;
            theirs.push(begun.elapsed());
        }
    }
    let rate = |all: &[Duration]| (all.len() * size) as f64 / all.iter().sum::<Duration>().as_secs_f64();
    let (journal_rate, raw_rate) = (rate(&ours), rate(&theirs));
    let (at, raw_at) = (percentiles(ours), percentiles(theirs));
    let ratio = journal_rate / raw_rate;
    println!("{:>12} {size:>8} {journal_rate:>10.0}/s {raw_rate:>10.0}/s {ratio:>7.2}   {at} (raw {raw_at})", "leases");
    Ok(())
}

fn percentiles(mut all: Vec<Duration>) -> String {
    all.sort();
    let at = |hundredths: usize| all[(all.len() - 1) * hundredths / 100].as_micros();
    format!("{} µs, {} µs", at(50), at(99))
}

/// How long a start takes with many leases, beside reading the same rows raw.
fn load(here: &Path) -> Result<()> {
    let dir = here.join("load");
    let (mut journal, _) = Journal::open(&dir)?;
    let mut world = World::new();
    let begun = Instant::now();
    for _ in 0..LEASES / 1000 {
        for _ in 0..1000 {
            world.lease();
        }
        journal.commit(&world.close())?;
    }
    println!("{LEASES} leases written in {:.3} s", begun.elapsed().as_secs_f64());
    let begun = Instant::now();
    while journal.trim(1000)? > 0 {}
    println!("{} entries trimmed in {:.3} s", 2 * LEASES - 1000, begun.elapsed().as_secs_f64());
    drop(journal);

    let raw_s = {
        let begun = Instant::now();
        let raw = Connection::open(dir.join("journal.db"))?;
        let mut bytes = 0;
        let mut find = raw.prepare("SELECT * FROM leases")?;
        let mut rows = find.query([])?;
        while let Some(row) = rows.next()? {
            let numbers: [i64; 3] = [row.get(0)?, row.get(1)?, row.get(2)?];
            let texts: [String; 3] = [row.get(3)?, row.get(4)?, row.get(5)?];
            bytes += numbers.len() * 8 + texts.iter().map(String::len).sum::<usize>();
        }
        assert!(bytes > 0);
        begun.elapsed().as_secs_f64()
    };
    let begun = Instant::now();
    let (journal, loaded) = Journal::open(&dir)?;
    let ours_s = begun.elapsed().as_secs_f64();
    assert_eq!(loaded.rows, world.rows);
    println!("{LEASES} leases loaded in {ours_s:.3} s (raw read {raw_s:.3} s, ratio {:.1})", ours_s / raw_s);
    let begun = Instant::now();
    let report = sublet_journal::verify(&dir)?;
    assert!(report.is_clean());
    println!("verified in {:.3} s", begun.elapsed().as_secs_f64());
    drop(journal);
    Ok(())
}

/// The same tables and indices, empty.
fn copy_schema(dir: &Path, raw_path: &Path) -> Result<()> {
    let ours = Connection::open(dir.join("journal.db"))?;
    let raw = Connection::open(raw_path)?;
    let mut find = ours.prepare("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")?;
    for sql in find.query_map([], |row| row.get::<_, String>(0))? {
        raw.execute_batch(&sql?)?;
    }
    raw.execute_batch("INSERT INTO meta VALUES (1, '', 0, 1, 1, 0, 0, 0, zeroblob(32), 0, zeroblob(32), 0)")?;
    Ok(())
}

/// Checkpoints of the raw database, on a thread of their own like ours, and by the same plan: copy
/// often, and let the log begin anew when it has grown.
fn raw_checkpoints(path: &Path) -> Result<std::sync::mpsc::SyncSender<i32>> {
    let mut conn = Connection::open(path)?;
    conn.busy_handler(Some(wait))?;
    let (wake, woken) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || {
        for frames in woken {
            let _ = conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
            if frames > 4 * STEP {
                let _ = conn.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()));
            }
        }
    });
    Ok(wake)
}

/// An entry of the log that is ready to be written.
struct RawLine {
    seq: i64,
    at: i64,
    wall: i64,
    actor: Arc<str>,
    lease: Option<i64>,
    json: String,
    hash: [u8; 32],
}

fn raw_lines(batch: &Batch, seq: &mut i64) -> Result<Vec<RawLine>> {
    let line = |entry: &Entry| {
        *seq += 1;
        let json = serde_json::to_string(&entry.action)?;
        let hash = *blake3::hash(json.as_bytes()).as_bytes();
        let (at, wall) = (entry.at.0 as i64, entry.wall_us as i64);
        let lease = entry.action.lease().map(|id| id.0 as i64);
        Ok(RawLine { seq: *seq, at, wall, actor: Arc::clone(&entry.actor), lease, json, hash })
    };
    batch.entries.iter().map(line).collect()
}

/// The rows of a batch as SQLite takes them, with nothing left to work out.
fn raw_commit(raw: &Connection, batch: &Batch, lines: &[RawLine]) -> Result<()> {
    raw.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    let mut log = raw.prepare_cached("INSERT INTO log VALUES (?1, ?2, ?3, ?4, ?5, 1, ?6, ?7)")?;
    for RawLine { seq, at, wall, actor, lease, json, hash } in lines {
        log.execute(params![seq, at, wall, &**actor, lease, json, hash])?;
    }
    let mut past =
        raw.prepare_cached("INSERT INTO past VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)")?;
    for ended in &batch.past {
        raw_past(&mut past, ended)?;
    }
    if let Some(meta) = &batch.meta {
        raw.prepare_cached("UPDATE meta SET next_lease = ?1, next_epoch = ?2, grace_until_us = 0")?
            .execute(params![meta.next_lease as i64, meta.next_epoch.0 as i64])?;
    }
    let mut tenant = raw.prepare_cached("INSERT OR REPLACE INTO tenants VALUES (?1, ?2, ?3, ?4, ?5)")?;
    for (id, row) in &batch.tenants {
        tenant.execute(params![id.0, row.name, row.leases as i64, row.card_us as i64, row.byte_us.to_string()])?;
    }
    let last = lines.last().map_or((0, [0; 32]), |line| (line.seq, line.hash));
    raw.prepare_cached("UPDATE meta SET clock_us = ?1, head_seq = ?2, head_hash = ?3")?.execute(params![
        batch.at.0 as i64,
        last.0,
        last.1
    ])?;
    raw.prepare_cached("COMMIT")?.execute([])?;
    Ok(())
}

fn raw_past(past: &mut Statement<'_>, ended: &sublet_core::rows::Ended) -> Result<()> {
    const ASK: &str = r#"{"vram":{"bytes":17179869184},"gpus":1,"term":{"renewed":300000000},"tier":"batch","priority":0,"exclusivity":"shared"}"#;
    let hold = ended.hold.as_ref().ok_or("it was granted")?;
    past.execute(params![
        ended.id.0 as i64,
        ended.tenant.0,
        ended.asked.0 as i64,
        ASK,
        "released",
        ended.finish.at.0 as i64,
        None::<i64>,
        hold.vram.0 as i64,
        hold.epoch.0 as i64,
        hold.granted.0 as i64,
        hold.renewed.0 as i64,
        hold.until.0 as i64,
        hold.idle,
        "[0]"
    ])?;
    Ok(())
}

/// The state beside the journal, and the open batch.
struct World {
    rows: Rows,
    open: Open,
    now: Time,
    actor: Arc<str>,
}

impl World {
    fn new() -> World {
        let mut world =
            World { rows: Rows::default(), open: Open::default(), now: Time::ZERO, actor: Arc::from("uid:1000") };
        world.act(Action::Enrol { tenant: TenantId(0), name: "uid:1000".to_owned() });
        let facts = CardFacts {
            uuid: "GPU-0".to_owned(),
            index: 0,
            name: "NVIDIA H200".to_owned(),
            total: Bytes::gib(141),
            display: false,
            context: None,
            unusable: None,
        };
        world.act(Action::List { card: CardId(0), facts });
        world
    }

    fn act(&mut self, action: Action) {
        let ended = self.rows.apply(&action);
        let entry =
            Entry { actor: Arc::clone(&self.actor), action, at: self.now, wall_us: 1_700_000_000_000_000 + self.now.0 };
        self.open.push(entry, ended);
    }

    fn close(&mut self) -> Batch {
        self.open.close(&self.rows, self.now)
    }

    fn lease(&mut self) -> LeaseId {
        self.now = self.now + Span::millis(1);
        let (lease, at, until) = (LeaseId(self.rows.meta.next_lease), self.now, self.now + Span::secs(300));
        let ask = Ask {
            vram: Vram::Bytes(Bytes::gib(16)),
            gpus: 1,
            term: Term::Renewed(Span::secs(300)),
            tier: Tier::Batch,
            priority: 0,
            exclusivity: Exclusivity::Shared,
            on: None,
            name: None,
        };
        self.act(Action::Queue { lease, tenant: TenantId(0), ask, at, give_up: until, root: None });
        let epoch = Epoch(lease.0);
        self.act(Action::Grant { lease, cards: vec![CardId(0)], vram: Bytes::gib(16), epoch, at, until });
        lease
    }

    fn cycle(&mut self) {
        let lease = self.lease();
        self.act(Action::End { lease, reason: Reason::Released, at: self.now, peak: None });
        self.act(Action::Retire { lease });
    }
}
