//! Journal rows, log lines and stored answers, read back from a database in which bytes or values were changed.
//!
//! An input begins with a letter:
//! `c`: values of columns are replaced (table, row, column, kind, length, value; repeated);
//! `l`: lines of JSON are folded as actions of a log with a valid chain;
//! anything else: bytes of the file are replaced (three bytes of offset, length, bytes; repeated).
//!
//! Properties: `verify`, the readers and a start refuse or return. If `verify` finds nothing, the rows are those that
//! were written and a start accepts them. From rows that a start accepts core begins, and the journal goes on.

#![no_main]

#[path = "../../crates/journal/tests/journal/generate.rs"]
mod generate;

use generate::World;
use libfuzzer_sys::fuzz_target;
use rusqlite::Connection;
use rusqlite::types::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use sublet_core::action::{Action, FORMAT};
use sublet_core::event::Event;
use sublet_core::facts::{DaemonAction, DaemonEvent};
use sublet_core::ids::{Fence, TenantId};
use sublet_core::rows::Rows;
use sublet_core::settings::Policy;
use sublet_core::units::Time;
use sublet_core::{State, decide};
use sublet_journal::{Batch, Journal, JournalReader, LogLine, fold_line, verify};

/// Batches that the journal has.
const ROUNDS: u32 = 6;

/// The journal that every input changes.
struct OriginalJournal {
    dir: PathBuf,
    bytes: Vec<u8>,
    rows: Rows,
    tables: Vec<TableColumns>,
}

struct TableColumns {
    name: String,
    columns: Vec<String>,
    rows: u32,
}

fuzz_target!(|data: &[u8]| {
    let original = original();
    match data.split_first() {
        None => {}
        Some((b'l', lines)) => fold_actions(original, lines),
        Some((b'c', changes)) => {
            restore(original, &original.bytes);
            change_values(original, changes);
            read_back(original, data);
        }
        Some((_, changes)) => {
            restore(original, &changed_bytes(&original.bytes, changes));
            read_back(original, data);
        }
    }
});

fn original() -> &'static OriginalJournal {
    static ORIGINAL: OnceLock<OriginalJournal> = OnceLock::new();
    ORIGINAL.get_or_init(|| {
        let dir = sublet_fuzz::scratch().join("state");
        let rows = write_journal(&dir);
        let path = dir.join("journal.db");
        let bytes = fs::read(&path).expect("the database");
        let tables = tables(&Connection::open(&path).expect("the database"));
        OriginalJournal { dir, bytes, rows, tables }
    })
}

/// Leases in every phase, tokens, unleased processes, rules, answers, and a log that was trimmed: stubs between the
/// lines of two tenants and an operator's acts.
fn write_journal(dir: &Path) -> Rows {
    let (mut journal, _) = Journal::open(dir).expect("a new journal");
    let mut world = World::new(3);
    world.issue();
    for round in 0..ROUNDS {
        for _ in 0..8 {
            world.step();
        }
        world.cycle();
        world.cycle_of(round % 2);
        let ended = world.lease();
        world.revoke_lease(ended);
        world.lease();
        let answers = vec![generate::answer(round % 2, &format!("key-{round}"), u64::from(round))];
        journal.commit(&Batch { answers, ..world.close() }).expect("a commit");
    }
    while journal.trim(30).expect("a trim") > 0 {}
    world.rows.clone()
}

fn tables(conn: &Connection) -> Vec<TableColumns> {
    let names = column(conn, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'");
    let table = |name: String| TableColumns {
        columns: column(conn, &format!("SELECT name FROM pragma_table_info('{name}')")),
        rows: conn.query_row(&format!("SELECT count(*) FROM {name}"), [], |row| row.get::<_, u32>(0)).expect("a count"),
        name,
    };
    names.into_iter().map(table).filter(|table| table.rows > 0).collect()
}

fn column(conn: &Connection, sql: &str) -> Vec<String> {
    let mut find = conn.prepare(sql).expect("a statement");
    find.query_map([], |row| row.get(0)).expect("rows").map(|name| name.expect("a name")).collect()
}

fn restore(original: &OriginalJournal, bytes: &[u8]) {
    for beside in ["journal.db-wal", "journal.db-shm"] {
        let _ = fs::remove_file(original.dir.join(beside));
    }
    fs::write(original.dir.join("journal.db"), bytes).expect("a file in memory");
}

fn changed_bytes(original: &[u8], mut changes: &[u8]) -> Vec<u8> {
    let mut bytes = original.to_vec();
    while let [low, middle, high, length, rest @ ..] = changes {
        let at = usize::from(*low) | usize::from(*middle) << 8 | usize::from(*high) << 16;
        let (piece, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        for (place, byte) in piece.iter().enumerate() {
            let at = (at + place) % bytes.len();
            bytes[at] = *byte;
        }
        changes = rest;
    }
    bytes
}

fn change_values(original: &OriginalJournal, mut changes: &[u8]) {
    let conn = Connection::open(original.dir.join("journal.db")).expect("the database");
    conn.pragma_update(None, "synchronous", "OFF").expect("a setting");
    while let [table, row, column, kind, length, rest @ ..] = changes {
        let (bytes, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        changes = rest;
        let table = &original.tables[usize::from(*table) % original.tables.len()];
        let column = &table.columns[usize::from(*column) % table.columns.len()];
        let row = u32::from(*row) % table.rows;
        let number = bytes.iter().take(8).rev().fold(0_i64, |number, byte| number << 8 | i64::from(*byte));
        let value = match kind % 6 {
            0 => Value::Null,
            1 => Value::Integer(number),
            2 => Value::Integer(number.wrapping_neg()),
            3 => Value::Blob(bytes.to_vec()),
            4 => Value::Real(f64::from_bits(number.cast_unsigned())),
            _ => Value::Text(String::from_utf8_lossy(bytes).into_owned()),
        };
        let name = &table.name;
        let sql = format!(
            "UPDATE {name} SET {column} = ?1 WHERE rowid = (SELECT rowid FROM {name} ORDER BY rowid LIMIT 1 OFFSET {row})"
        );
        // A constraint of the schema may refuse it, and then nothing was changed.
        let _ = conn.execute(&sql, [value]);
    }
}

fn read_back(original: &OriginalJournal, input: &[u8]) {
    let path = original.dir.join("journal.db");
    let is_clean = verify(&path).is_ok_and(|report| report.is_clean());
    let read = read_everything(&path);
    if is_clean {
        assert!(read.as_ref() == Some(&original.rows), "verify finds nothing, and the rows are others");
    }
    if let Some(rows) = &read {
        start_core(rows.clone());
    }
    // A start costs more than all of the rest, so only some inputs get one.
    let is_chosen = input.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)) % 16 == 0;
    if is_chosen {
        open_and_commit(original, is_clean);
    }
}

/// Calls every function of a reader.
fn read_everything(path: &Path) -> Option<Rows> {
    let reader = JournalReader::open(path).ok()?;
    let _ = (reader.first_seq(), reader.last_seq(), reader.tenants());
    for line in reader.log(0, 10_000).unwrap_or_default() {
        if let Ok(action) = line.action() {
            check_round_trip(&action);
        }
    }
    for ended in reader.ended_of(None, None, 10_000).unwrap_or_default() {
        let _ = reader.ended(ended.id);
    }
    let _ = reader.ended_of(Some(TenantId(1)), None, 3);
    for round in 0..ROUNDS {
        let _ = reader.answer(TenantId(round % 2), &format!("key-{round}"));
    }
    reader.rows().ok()
}

/// Opens the journal as a start does, and writes one more batch.
fn open_and_commit(original: &OriginalJournal, is_clean: bool) {
    match Journal::open(&original.dir) {
        Err(error) => assert!(!is_clean, "verify finds nothing, and a start is refused: {error}"),
        Ok((mut journal, loaded)) => {
            assert!(!is_clean || loaded.rows == original.rows);
            // The world's calendar ends before the clock's numbers do.
            let mut world = World::with(loaded.rows, loaded.clock.min(Time(1 << 50)), 1);
            let boot = "boot-2".to_owned();
            world.act(DaemonAction::Start { boot, clock_offset_us: 0, fence_floor: Fence(1), lease_floor: 1 });
            let committed = journal.commit(&world.close());
            assert!(!is_clean || committed.is_ok(), "{committed:?}");
        }
    }
}

/// Folds actions with a valid chain: a user with write access to the file could have made them.
fn fold_actions(original: &OriginalJournal, lines: &[u8]) {
    let Ok(lines) = std::str::from_utf8(lines) else { return };
    let mut rows = original.rows.clone();
    for (seq, json) in (1..).zip(lines.lines().take(64)) {
        let Ok(action) = serde_json::from_str::<Action>(json) else { continue };
        check_round_trip(&action);
        let lease = action.lease();
        let line = LogLine {
            seq,
            at: Time(seq),
            wall_us: seq,
            actor: String::new(),
            lease,
            format: FORMAT,
            json: json.to_owned(),
            hash: [0; 32],
        };
        // An action that does not fit is refused, and changes nothing.
        let before = rows.clone();
        if fold_line(&mut rows, &line).is_err() {
            assert!(rows == before, "a refused action changed the rows");
        }
    }
    start_core(rows);
}

/// What core does first after a start, in the same boot and after another one.
fn start_core(rows: Rows) {
    for boot in [rows.meta.boot.clone(), "boot-2".to_owned()] {
        let now = rows.leases.values().map(|lease| lease.requested).max().unwrap_or_default();
        let mut state = State::new(rows.clone(), Policy::default());
        let started =
            Event::Daemon(DaemonEvent::Started { boot, clock_offset_us: 0, fence_floor: Fence(1), lease_floor: 1 });
        for event in [started, Event::Daemon(DaemonEvent::Ticked)] {
            drop(decide(&mut state, now, event));
        }
    }
}

fn check_round_trip(action: &Action) {
    let text = serde_json::to_string(action).expect("an action is JSON");
    assert_eq!(serde_json::from_str::<Action>(&text).ok().as_ref(), Some(action), "{text}");
}
