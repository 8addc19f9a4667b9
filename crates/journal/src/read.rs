//! Reading: the whole state at a start, and parts of the history on request.
//!
//! A [`JournalReader`] has its own connection. It sees whole commits only, and does not delay the writer.

use crate::batch::StoredAnswer;
use crate::chain::Hash;
use crate::codec::{self, signed};
use crate::connect;
use crate::error::OpenError;
use rusqlite::{Connection, OptionalExtension, Result, Row, params};
use std::path::{Path, PathBuf};
use sublet_core::action::Action;
use sublet_core::ids::{LeaseId, TenantId};
use sublet_core::loss::Loss;
use sublet_core::rows::{EndedLease, Rows, Tenant};
use sublet_core::units::Time;
use sublet_core::unleased::{Rule, UnleasedProcess};

/// What a start of the daemon reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadedState {
    /// The state.
    pub rows: Rows,
    /// The greatest time ever committed: after a reboot the clock goes on from here.
    pub clock: Time,
    /// The number of the last entry of the log.
    pub seq: u64,
    /// The stored answers, the oldest first.
    pub answers: Vec<StoredAnswer>,
    /// Lines that are missing, until an operator accepts that.
    pub loss: Option<Loss>,
}

/// One line of the log, which is the audit trail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Its number.
    pub seq: u64,
    /// When.
    pub at: Time,
    /// When, for people: µs since 1970.
    pub wall_us: u64,
    /// What caused it: a tenant's name, or a part of the daemon.
    pub actor: String,
    /// The lease it concerns, if one.
    pub lease: Option<LeaseId>,
    /// How to read `json`.
    pub format: u32,
    /// What happened, as JSON.
    pub json: String,
    /// Covers this line and all before it.
    pub hash: Hash,
}

impl LogLine {
    /// What happened.
    pub fn action(&self) -> serde_json::Result<Action> {
        serde_json::from_str(&self.json)
    }
}

/// The positions in the table `meta`, beside the counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogPositions {
    pub clock: Time,
    pub head_seq: u64,
    pub head_hash: Hash,
    pub base_seq: u64,
    pub base_hash: Hash,
    pub past_floor: u64,
    /// The log begins after this line, which has this hash.
    pub log_seq: u64,
    pub log_hash: Hash,
}

pub(crate) fn positions(conn: &Connection) -> Result<LogPositions> {
    let sql = "SELECT clock_us, head_seq, head_hash, base_seq, base_hash, past_floor, log_seq, log_hash FROM meta";
    let positions = conn.prepare_cached(sql)?.query_row([], |row| {
        let int = |column| row.get::<_, i64>(column).map(i64::cast_unsigned);
        Ok(LogPositions {
            clock: Time(int(0)?),
            head_seq: int(1)?,
            head_hash: codec::hash(row, 2)?,
            base_seq: int(3)?,
            base_hash: codec::hash(row, 4)?,
            past_floor: int(5)?,
            log_seq: int(6)?,
            log_hash: codec::hash(row, 7)?,
        })
    })?;
    // The next number is one more than each.
    let in_order = positions.log_seq <= positions.base_seq && positions.base_seq <= positions.head_seq;
    if !in_order || positions.head_seq >= i64::MAX.cast_unsigned() {
        let (log, base, head) = (positions.log_seq, positions.base_seq, positions.head_seq);
        let why = format!("no log begins after entry {log}, is folded up to {base} and ends at {head}");
        return Err(rusqlite::Error::ToSqlConversionFailure(why.into()));
    }
    Ok(positions)
}

/// Reads every row that is the state.
pub(crate) fn rows(conn: &Connection) -> Result<Rows> {
    let mut rows = Rows { meta: conn.prepare_cached(codec::META)?.query_row([], codec::meta)?, ..Rows::default() };
    let (long, short) = (
        [rows.meta.next_lease, rows.meta.next_fence.0, rows.meta.next_unleased],
        [rows.meta.next_token, rows.meta.next_rule],
    );
    // A counter at its last number would continue with 0, which was given out long ago.
    if long.contains(&u64::MAX) || short.contains(&u32::MAX) {
        return Err(rusqlite::Error::ToSqlConversionFailure("the table `meta` has a counter at its end".into()));
    }
    for found in conn.prepare_cached(codec::TENANTS)?.query_map([], codec::tenant)? {
        let (id, tenant) = found?;
        check_order(id.0 as usize, rows.tenants.len(), "tenant")?;
        rows.tenants.push(tenant);
    }
    for found in conn.prepare_cached(codec::CARDS)?.query_map([], codec::card)? {
        let (id, card) = found?;
        check_order(usize::from(id.0), rows.gpus.len(), "card")?;
        rows.gpus.push(card);
    }
    let mut leases = conn.prepare_cached(codec::LEASES)?;
    rows.leases =
        leases.query_map([], codec::lease)?.map(|lease| lease.map(|lease| (lease.id, lease))).collect::<Result<_>>()?;
    let mut tokens = conn.prepare_cached(codec::TOKENS)?;
    rows.tokens =
        tokens.query_map([], codec::token)?.map(|token| token.map(|token| (token.id, token))).collect::<Result<_>>()?;
    let mut strangers = conn.prepare_cached(codec::STRANGERS)?;
    let found = strangers.query_map([], |row| codec::from_json::<UnleasedProcess>(row, 0))?;
    rows.unleased = found.map(|found| found.map(|row| (row.id, row))).collect::<Result<_>>()?;
    let mut rules = conn.prepare_cached(codec::RULES)?;
    let found = rules.query_map([], |row| codec::from_json::<Rule>(row, 0))?;
    rows.rules = found.map(|found| found.map(|row| (row.id, row))).collect::<Result<_>>()?;
    for lease in rows.leases.values() {
        if lease.tenant.0 as usize >= rows.tenants.len() {
            return Err(missing_row("tenant", lease.tenant.0 as usize));
        }
    }
    let of_leases = rows.leases.values().filter_map(|lease| lease.hold()).flat_map(|hold| &hold.gpus);
    let of_strangers = rows.unleased.values().flat_map(|stranger| &stranger.gpus);
    match of_leases.chain(of_strangers).find(|card| usize::from(card.0) >= rows.gpus.len()) {
        Some(card) => Err(missing_row("card", usize::from(card.0))),
        None => Ok(rows),
    }
}

fn check_order(found: usize, expected: usize, what: &str) -> Result<()> {
    if found == expected { Ok(()) } else { Err(missing_row(what, expected)) }
}

fn missing_row(what: &str, number: usize) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(format!("the row of {what} {number} is missing").into())
}

/// Reads what a start needs, and the log's end.
pub(crate) fn load(conn: &Connection) -> Result<(LoadedState, LogPositions)> {
    let tx = conn.unchecked_transaction()?;
    let positions = positions(&tx)?;
    let answers = tx.prepare_cached(codec::ANSWERS)?.query_map([], codec::answer)?.collect::<Result<_>>()?;
    Ok((
        LoadedState { rows: rows(&tx)?, clock: positions.clock, seq: positions.head_seq, answers, loss: None },
        positions,
    ))
}

pub(crate) const LOG: &str =
    "SELECT seq, at_us, wall_us, actor, lease, format, action, hash FROM log WHERE seq > ?1 ORDER BY seq LIMIT ?2";

pub(crate) fn log_line(row: &Row<'_>) -> Result<LogLine> {
    let int = |column| row.get::<_, i64>(column).map(i64::cast_unsigned);
    let lease: Option<i64> = row.get(4)?;
    Ok(LogLine {
        seq: int(0)?,
        at: Time(int(1)?),
        wall_us: int(2)?,
        actor: row.get(3)?,
        lease: lease.map(|id| LeaseId(id.cast_unsigned())),
        format: row.get(5)?,
        json: row.get(6)?,
        hash: codec::hash(row, 7)?,
    })
}

/// A read-only connection to a journal, beside the writer.
#[derive(Debug)]
pub struct JournalReader {
    conn: Connection,
    path: PathBuf,
}

impl JournalReader {
    /// Opens a state directory or a backup. Works beside a daemon.
    pub fn open(at: &Path) -> Result<JournalReader, OpenError> {
        let (conn, path) = connect::open_read_only(at)?;
        Ok(JournalReader { conn, path })
    }

    fn with_path<T>(&self, result: Result<T>) -> Result<T, OpenError> {
        result.map_err(|error| OpenError::sqlite(&self.path, &error))
    }

    /// A lease that is over.
    pub fn ended(&self, id: LeaseId) -> Result<Option<EndedLease>, OpenError> {
        self.with_path((|| {
            let sql = format!("{}WHERE id = ?1", codec::PAST);
            self.conn.prepare_cached(&sql)?.query_row([signed(id.0)], codec::past).optional()
        })())
    }

    /// Leases that are over, of one tenant or of all, the latest request first, from below `before` on.
    pub fn ended_of(
        &self,
        tenant: Option<TenantId>,
        before: Option<LeaseId>,
        limit: usize,
    ) -> Result<Vec<EndedLease>, OpenError> {
        let before = before.map_or(i64::MAX, |id| signed(id.0));
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let read = || match tenant {
            Some(tenant) => {
                let sql = format!("{}WHERE tenant = ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3", codec::PAST);
                let mut find = self.conn.prepare_cached(&sql)?;
                find.query_map(params![tenant.0, before, limit], codec::past)?.collect()
            }
            None => {
                let sql = format!("{}WHERE id < ?1 ORDER BY id DESC LIMIT ?2", codec::PAST);
                self.conn.prepare_cached(&sql)?.query_map([before, limit], codec::past)?.collect()
            }
        };
        self.with_path(read())
    }

    /// Lines of the log after `seq`, in order. Where lines were cut, their numbers are missing.
    pub fn log(&self, after: u64, limit: usize) -> Result<Vec<LogLine>, OpenError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.with_path((|| self.conn.prepare_cached(LOG)?.query_map([signed(after), limit], log_line)?.collect())())
    }

    /// The oldest line that is still in the log, or the next one's number if there is none.
    pub fn first_seq(&self) -> Result<u64, OpenError> {
        self.with_path(positions(&self.conn).map(|positions| positions.log_seq + 1))
    }

    /// True if a line is known to be a tenant's own. Lines newer than the base have no known owner.
    pub fn is_owned_by(&self, tenant: &str, seq: u64) -> Result<bool, OpenError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM kept JOIN owners ON kept.owner = owners.id
                                  WHERE owners.name = ?1 AND kept.rank IN (0, 1) AND kept.seq = ?2)";
        self.with_path((|| self.conn.prepare_cached(sql)?.query_row(params![tenant, signed(seq)], |row| row.get(0)))())
    }

    /// The number of the last line, 0 before the first.
    pub fn last_seq(&self) -> Result<u64, OpenError> {
        self.with_path(positions(&self.conn).map(|positions| positions.head_seq))
    }

    /// Every tenant with its totals, by [`TenantId`].
    pub fn tenants(&self) -> Result<Vec<Tenant>, OpenError> {
        self.rows().map(|rows| rows.tenants.to_vec())
    }

    /// The state as it was last committed.
    pub fn rows(&self) -> Result<Rows, OpenError> {
        self.with_path((|| rows(&*self.conn.unchecked_transaction()?))())
    }

    /// The stored answer for a tenant's key.
    pub fn answer(&self, tenant: TenantId, key: &str) -> Result<Option<StoredAnswer>, OpenError> {
        let sql = "SELECT tenant, key, fingerprint, status, body, wall_us FROM answers WHERE tenant = ?1 AND key = ?2";
        self.with_path((|| self.conn.prepare_cached(sql)?.query_row(params![tenant.0, key], codec::answer).optional())())
    }
}

/// The state in a state directory or a backup. Works beside a daemon.
pub fn read_state(at: &Path) -> Result<Rows, OpenError> {
    JournalReader::open(at)?.rows()
}
