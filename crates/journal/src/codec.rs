//! Rows as columns, and back.
//!
//! The order of the columns is fixed here, once for writing and once for reading. What
//! cannot be read is an error that names the column, never a default.

use crate::batch::StoredAnswer;
use crate::chain::Hash;
use rusqlite::types::{Type, Value};
use rusqlite::{Connection, Error, Result, Row, Statement, params};
use serde::Serialize;
use serde::de::value::{Error as NotAName, StrDeserializer};
use serde::de::{Deserialize, DeserializeOwned, IntoDeserializer};
use sublet_core::ids::{Fence, GpuId, LeaseId, TenantId, TokenId};
use sublet_core::rows::{EndNotice, EndedLease, Gpu, Hold, Lease, LeaseEnd, Meta, ParkState, Phase, Tenant};
use sublet_core::token::{Token, TokenHash};
use sublet_core::units::{Bytes, Span, Time};
use sublet_core::unleased::{Rule, RuleId, UnleasedId, UnleasedProcess};

/// The columns of a grant, in `leases` and in `past`.
macro_rules! hold_columns {
    () => {
        "vram, epoch, granted_us, renewed_us, until_us, idle, cards, paid_us, before_us, day, turns"
    };
}

/// Reads meta's part that is [`Meta`].
pub const META: &str = "SELECT boot, clock_offset_us, next_lease, next_epoch, grace_from_us, grace_until_us, day, next_token, next_stranger, next_rule, lateness FROM meta";
/// Reads tenants in order.
pub const TENANTS: &str = "SELECT id, name, leases, card_us, byte_us, mark_us, today_us, groups, turn_us, parked_byte_us, costs, durations FROM tenants ORDER BY id";
/// Reads GPUs in order.
pub const CARDS: &str = "SELECT id, facts, service, mode, aside FROM cards ORDER BY id";
/// Reads live leases.
pub const LEASES: &str = concat!(
    "SELECT id, tenant, asked_us, ask, roots, phase, give_up_us, finish, ",
    hold_columns!(),
    ", token, away, notice_us, notice_of_term FROM leases ORDER BY id"
);
/// Reads tokens.
pub const TOKENS: &str =
    "SELECT id, tenant, name, hash, read_only, caps, made_wall_us, expires_wall_us FROM tokens ORDER BY id";
/// Reads unleased processes.
pub const STRANGERS: &str = "SELECT body FROM strangers ORDER BY id";
/// Reads rules.
pub const RULES: &str = "SELECT body FROM rules ORDER BY id";
/// Reads ended leases; a condition follows.
pub const PAST: &str =
    concat!("SELECT id, tenant, asked_us, ask, reason, ended_us, peak, ", hold_columns!(), " FROM past ");
/// Reads answers, the oldest first.
pub const ANSWERS: &str = "SELECT tenant, key, fingerprint, status, body, wall_us FROM answers ORDER BY number";

const PUT_META: &str = "UPDATE meta SET boot = ?1, clock_offset_us = ?2, next_lease = ?3, next_epoch = ?4, grace_from_us = ?5, grace_until_us = ?6, day = ?7, next_token = ?8, next_stranger = ?9, next_rule = ?10, lateness = ?11";
const PUT_HEAD: &str = "UPDATE meta SET clock_us = ?1, head_seq = ?2, head_hash = ?3";
const PUT_TENANT: &str =
    "INSERT OR REPLACE INTO tenants (id, name, leases, card_us, byte_us, mark_us, today_us, groups, turn_us, parked_byte_us, costs, durations)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
const PUT_CARD: &str = "INSERT OR REPLACE INTO cards (id, facts, service, mode, aside) VALUES (?1, ?2, ?3, ?4, ?5)";
const PUT_TOKEN: &str = "INSERT OR REPLACE INTO tokens
                         (id, tenant, name, hash, read_only, caps, made_wall_us, expires_wall_us)
                         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
const PUT_STRANGER: &str = "INSERT OR REPLACE INTO strangers (id, body) VALUES (?1, ?2)";
const DROP_STRANGER: &str = "DELETE FROM strangers WHERE id = ?1";
const PUT_RULE: &str = "INSERT OR REPLACE INTO rules (id, body) VALUES (?1, ?2)";
const DROP_RULE: &str = "DELETE FROM rules WHERE id = ?1";
const DROP_TOKEN: &str = "DELETE FROM tokens WHERE id = ?1";
const END_LEASE: &str =
    "UPDATE leases SET phase = 'ending', finish = ?2, notice_us = NULL, notice_of_term = NULL WHERE id = ?1";
const DROP_LEASE: &str = "DELETE FROM leases WHERE id = ?1";
/// Rows that one statement writes at once if there are at least this many: that saves the cost of beginning and ending
/// the other statements.
pub const ROWS_AT_ONCE: usize = 8;
/// The rows of a statement: the parameters of one row, repeated.
macro_rules! rows {
    ($one:literal) => {
        concat!($one, ",", $one, ",", $one, ",", $one, ",", $one, ",", $one, ",", $one, ",", $one)
    };
}
/// `INSERT` into something, one row and [`ROWS_AT_ONCE`].
macro_rules! puts {
    ($columns:expr, $into:expr, $one:literal) => {
        BatchInsert {
            columns: $columns,
            one: concat!($into, " VALUES ", $one),
            many: concat!($into, " VALUES ", rows!($one)),
        }
    };
}
/// Writes live leases.
macro_rules! puts_leases {
    ($insert:literal) => {
        puts!(
            23,
            concat!(
                $insert,
                " INTO leases (id, tenant, asked_us, ask, roots, phase, give_up_us, finish, ",
                hold_columns!(),
                ", token, away, notice_us, notice_of_term)"
            ),
            "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        )
    };
}
/// Writes live leases that are not there. `OR FAIL`: the transaction is rolled back as a whole, so no statement needs
/// to be able to undo itself. One that does keeps a copy of every page it touches.
const NEW_LEASE: BatchInsert = puts_leases!("INSERT OR FAIL");
/// Writes live leases that may be there.
const LEASE: BatchInsert = puts_leases!("INSERT OR REPLACE");
/// Writes ended leases.
const ENDED: BatchInsert = puts!(
    18,
    concat!("INSERT OR FAIL INTO past (id, tenant, asked_us, ask, reason, ended_us, peak, ", hold_columns!(), ")"),
    "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
);
/// Writes entries of the log.
pub const ENTRY: BatchInsert = puts!(
    8,
    "INSERT OR FAIL INTO log (seq, at_us, wall_us, actor, lease, format, action, hash)",
    "(?, ?, ?, ?, ?, ?, ?, ?)"
);
const PUT_ANSWER: &str = "INSERT OR REPLACE INTO answers (tenant, key, fingerprint, status, body, wall_us)
                          VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

/// The `i64` with the same bits.
pub const fn signed(n: u64) -> i64 {
    n.cast_signed()
}

fn column_error(column: usize, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::FromSqlConversionFailure(column, Type::Text, error.into())
}

/// JSON text for a column.
pub fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::ToSqlConversionFailure(error.into()))
}

fn int(row: &Row<'_>, column: usize) -> Result<u64> {
    Ok(row.get::<_, i64>(column)?.cast_unsigned())
}

fn int_or_null(row: &Row<'_>, column: usize) -> Result<Option<u64>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(i64::cast_unsigned))
}

fn small_int<T: TryFrom<u64>>(row: &Row<'_>, column: usize) -> Result<T> {
    let n = int(row, column)?;
    T::try_from(n).map_err(|_| Error::IntegralValueOutOfRange(column, signed(n)))
}

fn time(row: &Row<'_>, column: usize) -> Result<Time> {
    int(row, column).map(Time)
}

fn text<'a>(row: &'a Row<'_>, column: usize) -> Result<&'a str> {
    Ok(row.get_ref(column)?.as_str()?)
}

/// Reads JSON out of a column.
pub fn from_json<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> Result<T> {
    serde_json::from_str(text(row, column)?).map_err(|error| column_error(column, error))
}

/// Reads a value that is stored as its name.
fn enum_name<'a, T: Deserialize<'a>>(row: &'a Row<'_>, column: usize) -> Result<T> {
    let name: StrDeserializer<'a, NotAName> = text(row, column)?.into_deserializer();
    T::deserialize(name).map_err(|error| column_error(column, error))
}

/// Reads a hash.
pub fn hash(row: &Row<'_>, column: usize) -> Result<Hash> {
    row.get(column)
}

/// Writes the counters.
pub fn put_meta(conn: &Connection, meta: &Meta) -> Result<()> {
    let mut put = conn.prepare_cached(PUT_META)?;
    put.execute(params![
        meta.boot,
        meta.clock_offset_us,
        signed(meta.next_lease),
        signed(meta.next_fence.0),
        signed(meta.grace_from.0),
        signed(meta.grace_until.0),
        meta.day,
        meta.next_token,
        signed(meta.next_unleased),
        meta.next_rule,
        json(&meta.lateness)?
    ])?;
    Ok(())
}

/// Reads the counters.
pub fn meta(row: &Row<'_>) -> Result<Meta> {
    Ok(Meta {
        boot: row.get(0)?,
        clock_offset_us: row.get(1)?,
        next_lease: int(row, 2)?,
        next_fence: Fence(int(row, 3)?),
        grace_from: time(row, 4)?,
        grace_until: time(row, 5)?,
        day: small_int(row, 6)?,
        next_token: small_int(row, 7)?,
        next_unleased: int(row, 8)?,
        next_rule: small_int(row, 9)?,
        lateness: from_json(row, 10)?,
    })
}

/// Writes the clock and the log's end.
pub fn put_head(conn: &Connection, clock: Time, seq: u64, hash: &Hash) -> Result<()> {
    conn.prepare_cached(PUT_HEAD)?.execute(params![signed(clock.0), signed(seq), hash])?;
    Ok(())
}

/// Writes a tenant.
pub fn put_tenant(conn: &Connection, id: TenantId, row: &Tenant) -> Result<()> {
    let mut put = conn.prepare_cached(PUT_TENANT)?;
    put.execute(params![
        id.0,
        row.name,
        signed(row.leases),
        signed(row.gpu_us),
        row.byte_us.to_string(),
        signed(row.debt_clock.0),
        signed(row.today_us),
        json(&row.groups)?,
        signed(row.first_since.0),
        row.parked_byte_us.to_string(),
        json(&row.costs)?,
        json(&row.durations)?
    ])?;
    Ok(())
}

/// Reads a tenant.
pub fn tenant(row: &Row<'_>) -> Result<(TenantId, Tenant)> {
    let wide =
        |column| text(row, column)?.parse().map_err(|error: std::num::ParseIntError| column_error(column, error));
    let tenant = Tenant {
        name: row.get(1)?,
        leases: int(row, 2)?,
        gpu_us: int(row, 3)?,
        byte_us: wide(4)?,
        debt_clock: time(row, 5)?,
        today_us: int(row, 6)?,
        groups: from_json(row, 7)?,
        first_since: time(row, 8)?,
        parked_byte_us: wide(9)?,
        costs: from_json(row, 10)?,
        durations: from_json(row, 11)?,
    };
    Ok((TenantId(small_int(row, 0)?), tenant))
}

/// Writes a GPU.
pub fn put_card(conn: &Connection, id: GpuId, row: &Gpu) -> Result<()> {
    let (facts, service, aside) = (json(&row.facts)?, json(&row.service)?, json(&row.aside)?);
    conn.prepare_cached(PUT_CARD)?.execute(params![id.0, facts, service, row.mode.name(), aside])?;
    Ok(())
}

/// Reads a GPU.
pub fn card(row: &Row<'_>) -> Result<(GpuId, Gpu)> {
    let (facts, service, mode, aside) =
        (from_json(row, 1)?, from_json(row, 2)?, enum_name(row, 3)?, from_json(row, 4)?);
    Ok((GpuId(small_int(row, 0)?), Gpu { facts, service, mode, aside }))
}

/// Statements that write rows of a table.
pub struct BatchInsert {
    columns: usize,
    one: &'static str,
    many: &'static str,
}

impl BatchInsert {
    /// Writes rows; `bind` is told how many parameters are bound before a row's first.
    pub fn insert_all<T>(
        &self,
        conn: &Connection,
        rows: &[T],
        mut bind: impl FnMut(&mut Statement<'_>, usize, &T) -> Result<()>,
    ) -> Result<()> {
        let (many, rest) = rows.split_at(rows.len() - rows.len() % ROWS_AT_ONCE);
        for (sql, rows, together) in [(self.many, many, ROWS_AT_ONCE), (self.one, rest, 1)] {
            if rows.is_empty() {
                continue;
            }
            let mut put = conn.prepare_cached(sql)?;
            for group in rows.chunks(together) {
                for (place, row) in group.iter().enumerate() {
                    bind(&mut put, place * self.columns, row)?;
                }
                put.raw_execute()?;
            }
        }
        Ok(())
    }
}

/// Writes live leases that are not there.
pub fn put_new_leases(conn: &Connection, rows: &[Lease]) -> Result<()> {
    NEW_LEASE.insert_all(conn, rows, bind_lease)
}

/// Writes live leases that may be there.
pub fn put_leases(conn: &Connection, rows: &[Lease]) -> Result<()> {
    LEASE.insert_all(conn, rows, bind_lease)
}

fn bind_lease(put: &mut Statement<'_>, bound: usize, row: &Lease) -> Result<()> {
    put.raw_bind_parameter(bound + 1, signed(row.id.0))?;
    put.raw_bind_parameter(bound + 2, row.tenant.0)?;
    put.raw_bind_parameter(bound + 3, signed(row.requested.0))?;
    put.raw_bind_parameter(bound + 4, json(&row.request)?)?;
    put.raw_bind_parameter(bound + 5, json(&row.roots)?)?;
    let (phase, give_up, finish) = match &row.phase {
        Phase::Waiting { give_up } => ("waiting", Some(signed(give_up.0)), None),
        Phase::Active(_) => ("active", None, None),
        Phase::Parking(..) => ("parking", None, None),
        Phase::Parked(..) => ("parked", None, None),
        Phase::Resuming(..) => ("resuming", None, None),
        Phase::Ending(_, finish) => ("ending", None, Some(json(finish)?)),
    };
    put.raw_bind_parameter(bound + 6, phase)?;
    put.raw_bind_parameter(bound + 7, give_up)?;
    put.raw_bind_parameter(bound + 8, finish)?;
    bind_hold(put, bound + 9, row.hold())?;
    put.raw_bind_parameter(bound + 20, row.token.map(|token| token.0))?;
    put.raw_bind_parameter(bound + 21, row.park_state().map(json).transpose()?)?;
    let told = row.hold().and_then(|hold| hold.notice);
    put.raw_bind_parameter(bound + 22, told.map(|told| signed(told.at().0)))?;
    put.raw_bind_parameter(bound + 23, told.map(|told| matches!(told, EndNotice::Term { .. })))
}

/// Writes how live leases end.
pub fn end_leases(conn: &Connection, ends: &[(LeaseId, LeaseEnd)]) -> Result<()> {
    let mut end = conn.prepare_cached(END_LEASE)?;
    for (id, finish) in ends {
        match end.execute(params![signed(id.0), json(finish)?])? {
            1 => {}
            rows => return Err(Error::StatementChangedRows(rows)),
        }
    }
    Ok(())
}

/// Removes live leases.
pub fn drop_leases(conn: &Connection, ids: &[LeaseId]) -> Result<()> {
    let mut drop = conn.prepare_cached(DROP_LEASE)?;
    ids.iter().try_for_each(|id| drop.execute([signed(id.0)]).map(|_| ()))
}

/// Reads a live lease.
pub fn lease(row: &Row<'_>) -> Result<Lease> {
    let notice = match (int_or_null(row, 21)?.map(Time), row.get::<_, Option<bool>>(22)?) {
        (Some(term_over), Some(true)) => Some(EndNotice::Term { term_over }),
        (at, _) => at.map(EndNotice::ForOthers),
    };
    let hold = || {
        let hold = hold(row, 8)?.ok_or_else(|| column_error(8, "granted, but nothing was granted"))?;
        Ok::<Hold, Error>(Hold { notice, ..hold })
    };
    let away = || from_json::<ParkState>(row, 20);
    let phase = match text(row, 5)? {
        "waiting" => Phase::Waiting { give_up: time(row, 6)? },
        "active" => Phase::Active(hold()?),
        "parking" => Phase::Parking(hold()?, away()?),
        "parked" => Phase::Parked(hold()?, away()?),
        "resuming" => Phase::Resuming(hold()?, away()?),
        "ending" => Phase::Ending(hold()?, from_json(row, 7)?),
        other => return Err(column_error(5, format!("no such phase: {other}"))),
    };
    Ok(Lease {
        id: LeaseId(int(row, 0)?),
        tenant: TenantId(small_int(row, 1)?),
        requested: time(row, 2)?,
        request: from_json(row, 3)?,
        roots: from_json(row, 4)?,
        phase,
        token: row.get::<_, Option<u32>>(19)?.map(TokenId),
    })
}

/// Writes a token.
pub fn put_token(conn: &Connection, row: &Token) -> Result<()> {
    let expires = row.expires_wall_us.map(signed);
    let (caps, made) = (json(&row.caps)?, signed(row.made_wall_us));
    let mut put = conn.prepare_cached(PUT_TOKEN)?;
    put.execute(params![row.id.0, row.tenant, row.name, row.hash.0, row.read_only, caps, made, expires])?;
    Ok(())
}

/// Removes a token.
pub fn drop_token(conn: &Connection, id: TokenId) -> Result<()> {
    conn.prepare_cached(DROP_TOKEN)?.execute([id.0])?;
    Ok(())
}

/// Writes an unleased process.
pub fn put_stranger(conn: &Connection, row: &UnleasedProcess) -> Result<()> {
    conn.prepare_cached(PUT_STRANGER)?.execute(params![signed(row.id.0), json(row)?])?;
    Ok(())
}

/// Removes an unleased process.
pub fn drop_stranger(conn: &Connection, id: UnleasedId) -> Result<()> {
    conn.prepare_cached(DROP_STRANGER)?.execute([signed(id.0)])?;
    Ok(())
}

/// Writes a rule.
pub fn put_rule(conn: &Connection, row: &Rule) -> Result<()> {
    conn.prepare_cached(PUT_RULE)?.execute(params![row.id.0, json(row)?])?;
    Ok(())
}

/// Removes a rule.
pub fn drop_rule(conn: &Connection, id: RuleId) -> Result<()> {
    conn.prepare_cached(DROP_RULE)?.execute([id.0])?;
    Ok(())
}

/// Reads a token.
pub fn token(row: &Row<'_>) -> Result<Token> {
    Ok(Token {
        id: TokenId(small_int(row, 0)?),
        tenant: row.get(1)?,
        name: row.get(2)?,
        hash: TokenHash(row.get(3)?),
        read_only: row.get(4)?,
        caps: from_json(row, 5)?,
        made_wall_us: int(row, 6)?,
        expires_wall_us: row.get::<_, Option<i64>>(7)?.map(i64::cast_unsigned),
    })
}

fn bind_hold(put: &mut Statement<'_>, first: usize, hold: Option<&Hold>) -> Result<()> {
    let Some(hold) = hold else {
        return (first..first + 11).try_for_each(|column| put.raw_bind_parameter(column, Value::Null));
    };
    put.raw_bind_parameter(first, signed(hold.vram.0))?;
    put.raw_bind_parameter(first + 1, signed(hold.fence.0))?;
    put.raw_bind_parameter(first + 2, signed(hold.granted.0))?;
    put.raw_bind_parameter(first + 3, signed(hold.renewed.0))?;
    put.raw_bind_parameter(first + 4, signed(hold.until.0))?;
    put.raw_bind_parameter(first + 5, hold.idle)?;
    put.raw_bind_parameter(first + 6, json(&hold.gpus)?)?;
    put.raw_bind_parameter(first + 7, signed(hold.prepaid.0))?;
    put.raw_bind_parameter(first + 8, hold.not_beyond.map(|before| signed(before.0)))?;
    put.raw_bind_parameter(first + 9, hold.day)?;
    put.raw_bind_parameter(first + 10, hold.history.as_ref().map(json).transpose()?)
}

fn hold(row: &Row<'_>, first: usize) -> Result<Option<Hold>> {
    if row.get_ref(first)?.data_type() == Type::Null {
        return Ok(None);
    }
    Ok(Some(Hold {
        vram: Bytes(int(row, first)?),
        fence: Fence(int(row, first + 1)?),
        granted: time(row, first + 2)?,
        renewed: time(row, first + 3)?,
        until: time(row, first + 4)?,
        idle: row.get(first + 5)?,
        gpus: from_json(row, first + 6)?,
        // Rows of the first version have none: nothing was paid, on no day.
        prepaid: Span(int_or_null(row, first + 7)?.unwrap_or(0)),
        not_beyond: int_or_null(row, first + 8)?.map(Time),
        day: row.get::<_, Option<u32>>(first + 9)?.unwrap_or(0),
        history: match row.get_ref(first + 10)?.data_type() {
            Type::Null => None,
            _ => Some(from_json(row, first + 10)?),
        },
        notice: None,
    }))
}

/// Writes ended leases.
pub fn put_past(conn: &Connection, rows: &[EndedLease]) -> Result<()> {
    ENDED.insert_all(conn, rows, bind_past)
}

fn bind_past(put: &mut Statement<'_>, bound: usize, row: &EndedLease) -> Result<()> {
    put.raw_bind_parameter(bound + 1, signed(row.id.0))?;
    put.raw_bind_parameter(bound + 2, row.tenant.0)?;
    put.raw_bind_parameter(bound + 3, signed(row.requested.0))?;
    put.raw_bind_parameter(bound + 4, json(&row.request)?)?;
    // Its JSON is the name in quotes.
    put.raw_bind_parameter(bound + 5, json(&row.end.reason)?.trim_matches('"'))?;
    put.raw_bind_parameter(bound + 6, signed(row.end.at.0))?;
    put.raw_bind_parameter(bound + 7, row.end.peak.map(|peak| signed(peak.0)))?;
    bind_hold(put, bound + 8, row.hold.as_ref())
}

/// Reads an ended lease.
pub fn past(row: &Row<'_>) -> Result<EndedLease> {
    let peak: Option<i64> = row.get(6)?;
    let reason = enum_name(row, 4)?;
    Ok(EndedLease {
        id: LeaseId(int(row, 0)?),
        tenant: TenantId(small_int(row, 1)?),
        requested: time(row, 2)?,
        request: from_json(row, 3)?,
        end: LeaseEnd { reason, at: time(row, 5)?, peak: peak.map(|peak| Bytes(peak.cast_unsigned())), signal: None },
        hold: hold(row, 7)?,
    })
}

/// Writes an answer.
pub fn put_answer(conn: &Connection, row: &StoredAnswer) -> Result<()> {
    let mut put = conn.prepare_cached(PUT_ANSWER)?;
    put.execute(params![row.tenant.0, row.key, row.fingerprint, row.status, row.body, signed(row.wall_us)])?;
    Ok(())
}

/// Reads an answer.
pub fn answer(row: &Row<'_>) -> Result<StoredAnswer> {
    Ok(StoredAnswer {
        tenant: TenantId(small_int(row, 0)?),
        key: row.get(1)?,
        fingerprint: row.get(2)?,
        status: row.get(3)?,
        body: row.get(4)?,
        wall_us: int(row, 5)?,
    })
}
