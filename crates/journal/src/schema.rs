//! The tables, and how an older file becomes a current one.
//!
//! A file carries its version in `user_version`, and the program that it belongs
//! to in `application_id`. Each step of [`STEPS`] is one transaction. A step that was
//! released is never edited; a new one is added. Nothing here reads or writes a row
//! of a lease.
//!
//! SQLite's integers have a sign and ours have none: a `u64` is stored as the
//! `i64` with the same bits. Only numbers above 2⁶³, which no clock or counter
//! reaches, look negative in the `sqlite3` shell.

use rusqlite::{Connection, Result};

/// What [`application_id`](https://www.sqlite.org/pragma.html#pragma_application_id) says: "Subl".
const APPLICATION: i64 = 0x5375_626c;

/// The version this program writes.
pub const VERSION: i64 = STEPS.len() as i64;

/// The step at index n makes version n + 1 out of version n.
const STEPS: &[&str] = &[
    "
CREATE TABLE meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    boot TEXT NOT NULL,
    clock_offset_us INTEGER NOT NULL,
    next_lease INTEGER NOT NULL,
    next_epoch INTEGER NOT NULL,
    grace_from_us INTEGER NOT NULL,
    grace_until_us INTEGER NOT NULL,
    clock_us INTEGER NOT NULL,    -- the greatest time ever committed
    head_seq INTEGER NOT NULL,    -- the last entry of the log, and its hash:
    head_hash BLOB NOT NULL,      -- shows that the log's end was cut off
    base_seq INTEGER NOT NULL,    -- the last entry that was folded into `base`
    base_hash BLOB NOT NULL,
    past_floor INTEGER NOT NULL   -- ended leases below it may be forgotten
) STRICT;
INSERT INTO meta VALUES (1, '', 0, 1, 1, 0, 0, 0, 0, zeroblob(32), 0, zeroblob(32), 0);

CREATE TABLE tenants (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    leases INTEGER NOT NULL,
    card_us INTEGER NOT NULL,
    byte_us TEXT NOT NULL         -- decimal: it has 128 bits
) STRICT;

CREATE TABLE cards (
    id INTEGER PRIMARY KEY,
    facts TEXT NOT NULL,          -- JSON
    service TEXT NOT NULL         -- JSON
) STRICT;

CREATE TABLE leases (
    id INTEGER PRIMARY KEY,
    tenant INTEGER NOT NULL,
    asked_us INTEGER NOT NULL,
    ask TEXT NOT NULL,            -- JSON
    roots TEXT NOT NULL,          -- JSON
    phase TEXT NOT NULL CHECK (phase IN ('waiting', 'active', 'ending')),
    give_up_us INTEGER,           -- while waiting
    vram INTEGER,                 -- from here on: once granted
    epoch INTEGER,
    granted_us INTEGER,
    renewed_us INTEGER,
    until_us INTEGER,
    idle INTEGER,
    cards TEXT,                   -- JSON
    finish TEXT                   -- JSON, while ending
) STRICT;

CREATE TABLE past (
    id INTEGER PRIMARY KEY,
    tenant INTEGER NOT NULL,
    asked_us INTEGER NOT NULL,
    ask TEXT NOT NULL,            -- JSON
    reason TEXT NOT NULL,
    ended_us INTEGER NOT NULL,
    peak INTEGER,
    vram INTEGER,                 -- from here on: if it ever was granted
    epoch INTEGER,
    granted_us INTEGER,
    renewed_us INTEGER,
    until_us INTEGER,
    idle INTEGER,
    cards TEXT                    -- JSON
) STRICT;
CREATE INDEX past_by_tenant ON past (tenant, id);

CREATE TABLE log (
    seq INTEGER PRIMARY KEY,
    at_us INTEGER NOT NULL,
    wall_us INTEGER NOT NULL,
    actor TEXT NOT NULL,
    lease INTEGER,
    format INTEGER NOT NULL,
    action TEXT NOT NULL,         -- JSON
    hash BLOB NOT NULL            -- of the entry before it and of this one
) STRICT;

-- The rows as they were at `base_seq`, one JSON document each.
CREATE TABLE base (
    kind TEXT NOT NULL CHECK (kind IN ('meta', 'tenant', 'card', 'lease')),
    id INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE answers (
    number INTEGER PRIMARY KEY,   -- grows: the oldest has the smallest
    tenant INTEGER NOT NULL,
    key TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    status INTEGER NOT NULL,
    body TEXT NOT NULL,
    wall_us INTEGER NOT NULL,
    UNIQUE (tenant, key)
) STRICT;
",
    "
ALTER TABLE meta ADD COLUMN day INTEGER NOT NULL DEFAULT 0;         -- that daily budgets count
ALTER TABLE tenants ADD COLUMN mark_us INTEGER NOT NULL DEFAULT 0;  -- how far its use has carried it
ALTER TABLE tenants ADD COLUMN turn_us INTEGER NOT NULL DEFAULT 0;  -- when its first waiter became that
ALTER TABLE tenants ADD COLUMN today_us INTEGER NOT NULL DEFAULT 0; -- GPU time charged on that day
ALTER TABLE tenants ADD COLUMN groups TEXT NOT NULL DEFAULT '[]';   -- JSON
ALTER TABLE leases ADD COLUMN paid_us INTEGER;                      -- how far the mark was moved for its term
ALTER TABLE leases ADD COLUMN before_us INTEGER;                    -- not renewed beyond this
ALTER TABLE leases ADD COLUMN day INTEGER;                          -- on which its term was charged
ALTER TABLE past ADD COLUMN paid_us INTEGER;
ALTER TABLE past ADD COLUMN before_us INTEGER;
ALTER TABLE past ADD COLUMN day INTEGER;
",
    "
CREATE TABLE tokens (
    id INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    name TEXT,
    hash BLOB NOT NULL,           -- of the secret, which is nowhere
    read_only INTEGER NOT NULL,
    caps TEXT NOT NULL,           -- JSON
    made_wall_us INTEGER NOT NULL,
    expires_wall_us INTEGER
) STRICT;
ALTER TABLE meta ADD COLUMN next_token INTEGER NOT NULL DEFAULT 1;
ALTER TABLE leases ADD COLUMN token INTEGER;

-- The same as before, with one kind more.
CREATE TABLE base_2 (
    kind TEXT NOT NULL CHECK (kind IN ('meta', 'tenant', 'card', 'lease', 'token')),
    id INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;
INSERT INTO base_2 SELECT kind, id, body FROM base;
DROP TABLE base;
ALTER TABLE base_2 RENAME TO base;
",
    "
-- The same as before, but for how its phases are spelt: for an `IN` of three values SQLite makes a
-- table of them and drops it again, with every row that is written.
CREATE TABLE leases_2 (
    id INTEGER PRIMARY KEY,
    tenant INTEGER NOT NULL,
    asked_us INTEGER NOT NULL,
    ask TEXT NOT NULL,
    roots TEXT NOT NULL,
    phase TEXT NOT NULL CHECK (phase = 'waiting' OR phase = 'active' OR phase = 'ending'),
    give_up_us INTEGER,
    vram INTEGER,
    epoch INTEGER,
    granted_us INTEGER,
    renewed_us INTEGER,
    until_us INTEGER,
    idle INTEGER,
    cards TEXT,
    finish TEXT,
    paid_us INTEGER,
    before_us INTEGER,
    day INTEGER,
    token INTEGER
) STRICT;
INSERT INTO leases_2 SELECT * FROM leases;
DROP TABLE leases;
ALTER TABLE leases_2 RENAME TO leases;
",
    "
CREATE TABLE leases_3 (
    id INTEGER PRIMARY KEY,
    tenant INTEGER NOT NULL,
    asked_us INTEGER NOT NULL,
    ask TEXT NOT NULL,
    roots TEXT NOT NULL,
    phase TEXT NOT NULL CHECK (phase = 'waiting' OR phase = 'active' OR phase = 'ending'
                               OR phase = 'parked' OR phase = 'parking' OR phase = 'resuming'),
    give_up_us INTEGER,
    vram INTEGER,
    epoch INTEGER,
    granted_us INTEGER,
    renewed_us INTEGER,
    until_us INTEGER,
    idle INTEGER,
    cards TEXT,
    finish TEXT,
    paid_us INTEGER,
    before_us INTEGER,
    day INTEGER,
    token INTEGER,
    turns TEXT,                   -- JSON, of who was parked at least once
    away TEXT                     -- JSON, of who is parked or on its way there or back
) STRICT;
INSERT INTO leases_3 SELECT *, NULL, NULL FROM leases;
DROP TABLE leases;
ALTER TABLE leases_3 RENAME TO leases;
ALTER TABLE past ADD COLUMN turns TEXT;
ALTER TABLE tenants ADD COLUMN parked_byte_us TEXT NOT NULL DEFAULT '0';  -- decimal: it has 128 bits
",
    "
ALTER TABLE tenants ADD COLUMN costs TEXT NOT NULL DEFAULT '{}';  -- JSON: what its programs' moves took
ALTER TABLE leases ADD COLUMN notice_us INTEGER;                  -- it was told that it is over then
",
    "
CREATE TABLE strangers (
    id INTEGER PRIMARY KEY,
    body TEXT NOT NULL            -- JSON: who it is, and how far it has come
) STRICT;
CREATE TABLE rules (
    id INTEGER PRIMARY KEY,
    body TEXT NOT NULL            -- JSON: an operator's word about some of them
) STRICT;
ALTER TABLE cards ADD COLUMN mode TEXT NOT NULL DEFAULT 'observe';       -- what is done there about strangers
ALTER TABLE meta ADD COLUMN next_stranger INTEGER NOT NULL DEFAULT 1;
ALTER TABLE meta ADD COLUMN next_rule INTEGER NOT NULL DEFAULT 1;

-- The same as before, with two kinds more.
CREATE TABLE base_3 (
    kind TEXT NOT NULL CHECK (kind IN ('meta', 'tenant', 'card', 'lease', 'token', 'stranger', 'rule')),
    id INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;
INSERT INTO base_3 SELECT kind, id, body FROM base;
DROP TABLE base;
ALTER TABLE base_3 RENAME TO base;
",
    "
ALTER TABLE leases ADD COLUMN notice_of_term INTEGER;                    -- 1: by the end of its fixed term
UPDATE leases SET notice_of_term = (notice_us = until_us AND ask ->> '$.term.fixed' IS NOT NULL)
    WHERE notice_us IS NOT NULL;
",
    "
ALTER TABLE tenants ADD COLUMN durations TEXT NOT NULL DEFAULT '{}';     -- JSON: how long its leases lasted
ALTER TABLE meta ADD COLUMN lateness TEXT NOT NULL DEFAULT '{}';         -- JSON: how late waiters start
",
    "
ALTER TABLE cards ADD COLUMN aside TEXT NOT NULL DEFAULT '{}';           -- JSON: for whom it steps aside
",
    "
-- The log may have gaps at and below `base_seq`, where lines were cut (see `cut.rs`).
ALTER TABLE meta ADD COLUMN log_seq INTEGER NOT NULL DEFAULT 0;          -- the log begins after this line,
ALTER TABLE meta ADD COLUMN log_hash BLOB NOT NULL                       -- which has this hash
    DEFAULT x'0000000000000000000000000000000000000000000000000000000000000000';
UPDATE meta SET log_seq = base_seq, log_hash = base_hash;
CREATE TABLE owners (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,    -- a tenant, or `sublet`: operators and the daemon itself
    lines INTEGER NOT NULL,       -- in `kept`
    cut INTEGER NOT NULL          -- cut so far
) STRICT;
INSERT INTO owners SELECT 0, 'an earlier release', 0, base_seq FROM meta WHERE base_seq > 0;
-- The lines up to `base_seq` that are still in the log, by owner.
CREATE TABLE kept (
    owner INTEGER NOT NULL,
    rank INTEGER NOT NULL,        -- 1: a signal, a warning or an operator's act, cut after the others
    seq INTEGER NOT NULL,
    PRIMARY KEY (owner, rank, seq)
) STRICT, WITHOUT ROWID;
-- Runs of lines that were cut; two stubs never touch.
CREATE TABLE stubs (
    first_seq INTEGER PRIMARY KEY,
    last_seq INTEGER NOT NULL,
    hash BLOB NOT NULL,           -- of the last line: the line after it covers this hash
    owners TEXT NOT NULL          -- JSON: how many lines of each owner
) STRICT;
CREATE TABLE past_floors (
    tenant INTEGER PRIMARY KEY,
    floor INTEGER NOT NULL        -- ended leases of the tenant below it may be forgotten
) STRICT;
",
];

/// What a file is, by its `application_id` and `user_version`.
#[derive(Debug, PartialEq, Eq)]
pub enum DatabaseKind {
    /// A journal of this version; 0 is one that was never set up.
    Journal(i64),
    /// A database of another program.
    Foreign,
}

/// Reads what a file is, and changes nothing.
pub fn kind(conn: &Connection) -> Result<DatabaseKind> {
    let version: i64 = conn.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let application: i64 = conn.query_row("PRAGMA application_id", [], |row| row.get(0))?;
    let tables: i64 = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let never_set_up = version == 0 && tables == 0;
    Ok(if application == APPLICATION || never_set_up { DatabaseKind::Journal(version) } else { DatabaseKind::Foreign })
}

/// Brings a file of any known version to [`VERSION`].
pub fn migrate(conn: &mut Connection) -> Result<()> {
    advance(conn, STEPS)
}

fn advance(conn: &mut Connection, steps: &[&str]) -> Result<()> {
    let from: i64 = conn.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    for (version, step) in (1i64..).zip(steps).skip(usize::try_from(from).unwrap_or(0)) {
        let tx = conn.transaction()?;
        tx.execute_batch(step)?;
        tx.pragma_update(None, "application_id", APPLICATION)?;
        tx.pragma_update(None, "user_version", version)?;
        tx.commit()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(conn: &Connection) -> i64 {
        conn.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn each_migration_step_runs_once_and_keeps_rows() {
        let mut conn = Connection::open_in_memory().unwrap();
        let steps = ["CREATE TABLE a (x) ", "ALTER TABLE a ADD y DEFAULT 7"];
        advance(&mut conn, &steps[..1]).unwrap();
        conn.execute("INSERT INTO a VALUES (1)", []).unwrap();
        for _ in 0..2 {
            advance(&mut conn, &steps).unwrap();
            assert_eq!(version(&conn), 2);
        }
        let row = conn.query_row("SELECT x, y FROM a", [], |row| Ok((row.get(0)?, row.get(1)?)));
        assert_eq!(row, Ok((1, 7)));
    }

    #[test]
    fn a_step_that_fails_leaves_the_version_before_it() {
        let mut conn = Connection::open_in_memory().unwrap();
        let steps = ["CREATE TABLE a (x)", "CREATE TABLE b (x); CREATE TABLE a (x)"];
        advance(&mut conn, &steps).unwrap_err();
        assert_eq!(version(&conn), 1);
        let b: i64 =
            conn.query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'b'", [], |row| row.get(0)).unwrap();
        assert_eq!(b, 0, "half a step is no step");
    }

    #[test]
    fn a_file_of_the_first_release_keeps_its_rows() {
        let mut conn = Connection::open_in_memory().unwrap();
        advance(&mut conn, &STEPS[..1]).unwrap();
        conn.execute_batch(
            "INSERT INTO base VALUES ('meta', 0, '{}'), ('lease', 7, '{}');
             INSERT INTO leases (id, tenant, asked_us, ask, roots, phase) VALUES (7, 0, 0, '{}', '[]', 'waiting');",
        )
        .unwrap();
        migrate(&mut conn).unwrap();
        let one = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, Option<i64>>(0)).unwrap();
        assert_eq!(one("SELECT count(*) FROM base WHERE kind IN ('meta', 'lease')"), Some(2));
        assert_eq!(one("SELECT next_token FROM meta"), Some(1));
        assert_eq!(one("SELECT token FROM leases WHERE id = 7"), None);
        assert_eq!(one("SELECT count(*) FROM tokens"), Some(0));
        conn.execute("INSERT INTO base VALUES ('token', 1, '{}')", []).unwrap();
        conn.execute("INSERT INTO base VALUES ('other', 1, '{}')", []).unwrap_err();
        conn.execute("UPDATE leases SET phase = 'ending'", []).unwrap();
        conn.execute("UPDATE leases SET phase = 'parked'", []).unwrap();
        assert_eq!(one("SELECT count(*) FROM leases WHERE away IS NULL AND turns IS NULL"), Some(1));
        conn.execute("UPDATE leases SET phase = 'other'", []).unwrap_err();
    }

    #[test]
    fn a_new_file_is_a_journal_of_version_0_and_another_programs_database_is_foreign() {
        let mut conn = Connection::open_in_memory().unwrap();
        assert_eq!(kind(&conn), Ok(DatabaseKind::Journal(0)));
        migrate(&mut conn).unwrap();
        assert_eq!(kind(&conn), Ok(DatabaseKind::Journal(VERSION)));
        let other = Connection::open_in_memory().unwrap();
        other.execute_batch("CREATE TABLE bookmarks (url)").unwrap();
        assert_eq!(kind(&other), Ok(DatabaseKind::Foreign));
    }
}
