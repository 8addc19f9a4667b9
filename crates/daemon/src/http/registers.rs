//! Registers of checkpoints over HTTP.
//!
//! The name of a chain has slashes and is one segment of the path: `c%2Fmodels%2Fjob:7`. An entry is sent as it is, and
//! comes back in JSON, as Base64. No call here has an Idempotency-Key: the number of an entry makes a create safe to
//! repeat, and forgetting is the same twice.

use super::body;
use super::shared::{OnCall, OnRead};
use super::{App, Refused};
use crate::fair_limiter::CallPermit;
use crate::looper::Reply;
use crate::peer::Peer;
use crate::registers::RegisterFailure;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use sublet_checkpoint::register::{Creation, ENTRY_BYTES_MAX, RegisterError};
use sublet_checkpoint::{ChainName, is_register_name};
use sublet_wire as wire;
use sublet_wire::{Code, Problem};

/// Entries, or chains, in one page.
const PAGE_MAX: usize = 1_000;
/// A long answer is handed on in pieces of this size.
const PIECE: usize = 64 << 10;
/// SQLite's largest number.
const NUMBER_MAX: u64 = i64::MAX as u64;

/// Lists the caller's registers of checkpoints.
#[utoipa::path(get, operation_id = "list_registers", path = "/v1/registers", tag = "registers", responses(
    (status = 200, description = "the registers, by name", body = wire::CheckpointRegisters),
    OnRead,
))]
pub async fn list(State(app): State<App>, request: Request) -> Result<Reply, Refused> {
    let peer = body::peer(&request)?;
    let limits = app.registers.limits();
    let registers = app.registers.list(&peer.caller.tenant).await?;
    answer(200, &wire::CheckpointRegisters { registers, bytes_max: limits.bytes, registers_max: limits.each })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChainsQuery {
    after: Option<String>,
    limit: Option<usize>,
}

/// Lists the chains of a register, by name, each with the number of its newest entry. A register that does not exist
/// has none.
#[utoipa::path(get, operation_id = "list_chains", path = "/v1/registers/{register}/chains", tag = "registers", params(
    ("register" = String, Path, description = "the register", pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", example = "default"),
    ("after" = Option<String>, Query, description = "chains after this one: for the next page, the last chain of this one", pattern = "^[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}$"),
    ("limit" = Option<usize>, Query, description = "the most chains that are returned [default: 1000]", minimum = 1, maximum = 1000),
), responses(
    (status = 200, description = "the chains", body = wire::RegisterChains),
    OnRead,
))]
pub async fn chains(
    State(app): State<App>,
    RegisterName(register): RegisterName,
    request: Request,
) -> Result<Reply, Refused> {
    let peer = body::peer(&request)?;
    let query: ChainsQuery = body::query(&request)?;
    let limit = page_of(query.limit)?;
    let after = query.after.as_deref().map(chain_name).transpose()?.map_or_else(String::new, |chain| chain.to_string());
    let (found, more) = app.registers.chains(&peer.caller.tenant, &register, after, limit).await?;
    let chains = found.into_iter().map(|(chain, last)| shown(&chain, last)).collect();
    answer(200, &wire::RegisterChains { chains, more })
}

/// Shows the number of a chain's newest entry. A chain that does not exist has none: 0.
#[utoipa::path(get, operation_id = "show_chain", path = "/v1/registers/{register}/chains/{chain}", tag = "registers", params(
    ("register" = String, Path, description = "the register", pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", example = "default"),
    ("chain" = String, Path, description = "the chain, with %2F for each slash", pattern = "^[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}$", example = "c/models/job:7"),
), responses(
    (status = 200, description = "the chain", body = wire::RegisterChain),
    OnRead,
))]
pub async fn last(State(app): State<App>, place: ChainPlace, request: Request) -> Result<Reply, Refused> {
    let peer = body::peer(&request)?;
    let last = app.registers.last(&peer.caller.tenant, &place.register, place.chain.clone()).await?;
    answer(200, &shown(&place.chain, last))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntriesQuery {
    from: Option<u64>,
    limit: Option<usize>,
}

/// Reads entries of a chain, in order. A page ends with the entry that fills 1 MiB.
#[utoipa::path(get, operation_id = "read_entries", path = "/v1/registers/{register}/chains/{chain}/entries", tag = "registers", params(
    ("register" = String, Path, description = "the register", pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", example = "default"),
    ("chain" = String, Path, description = "the chain, with %2F for each slash", pattern = "^[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}$", example = "c/models/job:7"),
    ("from" = Option<u64>, Query, description = "the number of the first entry [default: 1]", minimum = 1, maximum = 9_223_372_036_854_775_807_u64),
    ("limit" = Option<usize>, Query, description = "the most entries that are returned [default: 1000]", minimum = 1, maximum = 1000),
), responses(
    (status = 200, description = "a page of entries", body = wire::RegisterEntries),
    OnRead,
))]
pub async fn entries(State(app): State<App>, place: ChainPlace, request: Request) -> Result<Response, Refused> {
    let peer = body::peer(&request)?;
    let query: EntriesQuery = body::query(&request)?;
    let (from, limit) = (number("from", query.from.unwrap_or(1))?, page_of(query.limit)?);
    let tenant = &peer.caller.tenant;
    let turn = app.registers.transfer(tenant).await?;
    let page = app.registers.read(tenant, &place.register, place.chain, from, limit).await?;
    let entries = page.entries.into_iter();
    let entries =
        entries.map(|entry| wire::RegisterEntry { number: entry.number, bytes: wire::EntryBytes(entry.bytes) });
    let reply = answer(200, &wire::RegisterEntries { entries: entries.collect(), more: page.more })?;
    Ok(held(reply, turn))
}

/// Creates an entry, if its number is the next one of the chain. The answer comes when it is on the disk. A register
/// and a chain begin with their first entry.
#[utoipa::path(put, operation_id = "create_entry", path = "/v1/registers/{register}/chains/{chain}/entries/{number}", tag = "registers",
    request_body(content_type = "application/octet-stream", description = "the bytes of the entry, at most 1 MiB"), params(
    ("register" = String, Path, description = "the register", pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", example = "default"),
    ("chain" = String, Path, description = "the chain, with %2F for each slash", pattern = "^[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}$", example = "c/models/job:7"),
    ("number" = u64, Path, description = "the number of the entry", minimum = 1, maximum = 9_223_372_036_854_775_807_u64, example = 1),
), responses(
    (status = 201, description = "the entry is in the chain, and it is this one", body = wire::RegisterChain),
    OnCall,
))]
pub async fn create(State(app): State<App>, place: EntryPlace, request: Request) -> Result<Reply, Refused> {
    let tenant = body::peer(&request)?.caller.tenant.clone();
    let EntryPlace { chain: ChainPlace { register, chain }, number } = place;
    let _turn = app.registers.transfer(&tenant).await?;
    let entry = body::bytes(request, ENTRY_BYTES_MAX).await?;
    match app.registers.create(&tenant, &register, chain.clone(), number, entry).await? {
        Creation::New => answer(201, &shown(&chain, number)),
        Creation::Taken => {
            let detail = format!("entry {number} is, or was, in chain `{chain}` already");
            Err(Problem::new(Code::EntryTaken, detail).hint("read the entries that follow yours").into())
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ForgetQuery {
    before: u64,
}

/// Drops the bytes of entries before a number. The newest entry always stays, and no number is free again.
#[utoipa::path(delete, operation_id = "forget_entries", path = "/v1/registers/{register}/chains/{chain}/entries", tag = "registers", params(
    ("register" = String, Path, description = "the register", pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", example = "default"),
    ("chain" = String, Path, description = "the chain, with %2F for each slash", pattern = "^[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}$", example = "c/models/job:7"),
    ("before" = u64, Query, description = "the first number that stays", minimum = 1, maximum = 9_223_372_036_854_775_807_u64),
), responses(
    (status = 200, description = "the chain", body = wire::RegisterChain),
    OnCall,
))]
pub async fn forget(State(app): State<App>, place: ChainPlace, request: Request) -> Result<Reply, Refused> {
    let query: ForgetQuery = body::query(&request)?;
    let before = number("before", query.before)?;
    let peer: Arc<Peer> = body::empty(request).await?.peer;
    let ChainPlace { register, chain } = place;
    let last = app.registers.forget_before(&peer.caller.tenant, &register, chain.clone(), before).await?;
    answer(200, &shown(&chain, last))
}

impl From<RegisterFailure> for Refused {
    fn from(failure: RegisterFailure) -> Refused {
        let detail = match &failure {
            // The reason stands alone, and a client adds that it is about a register.
            RegisterFailure::Register(
                RegisterError::Full { reason }
                | RegisterError::Unavailable { reason }
                | RegisterError::Damaged { reason },
            ) => reason.clone(),
            failure => failure.to_string(),
        };
        let problem = |code| Problem::new(code, detail.clone());
        const LARGER: &str = "an operator can raise `size` in `[registers]`, or make room on the daemon's disk";
        Refused(match &failure {
            RegisterFailure::Stopping => return crate::inbox::LoopGone::Stopping.into(),
            RegisterFailure::TooMany(_) => problem(Code::RegisterFull)
                .hint("use one of them for the store too, or have an operator raise `per_user` in `[registers]`"),
            RegisterFailure::Off => problem(Code::RegisterFull).hint("an operator can set `per_user` in `[registers]`"),
            RegisterFailure::Register(error) => match error {
                RegisterError::OutOfOrder { .. } => {
                    problem(Code::EntryOutOfOrder).hint("read the chain, and create the entry after its last one")
                }
                RegisterError::TooLarge { .. } => problem(Code::TooLarge),
                RegisterError::Full { .. } => problem(Code::RegisterFull).hint(LARGER),
                RegisterError::Unavailable { .. } | RegisterError::ReadOnly { .. } => {
                    problem(Code::RegisterUnavailable)
                        .hint("read the chain: the entry may be there; if this lasts, tell an operator")
                        .retry_after(1)
                }
                RegisterError::NotLocal { .. }
                | RegisterError::Replaced { .. }
                | RegisterError::Damaged { .. }
                | RegisterError::Refused { .. }
                | RegisterError::Unfit { .. } => problem(Code::RegisterDamaged)
                    .hint("name a new register in the store's configuration, and run `sublet checkpoint rebuild`"),
            },
        })
    }
}

fn answer(status: u16, body: &impl Serialize) -> Result<Reply, Refused> {
    let body = serde_json::to_string(body).map_err(|error| Problem::new(Code::BadRequest, error.to_string()))?;
    Ok(Reply { status, body, retry_after_s: None, granted: None })
}

fn shown(chain: &ChainName, last: u64) -> wire::RegisterChain {
    wire::RegisterChain { name: chain.to_string(), last }
}

fn number(name: &str, number: u64) -> Result<u64, Refused> {
    match number {
        1..=NUMBER_MAX => Ok(number),
        _ => Err(Problem::new(Code::BadRequest, format!("`{name}` must be the number of an entry, from 1 on")).into()),
    }
}

fn page_of(limit: Option<usize>) -> Result<usize, Refused> {
    match limit.unwrap_or(PAGE_MAX) {
        limit @ 1..=PAGE_MAX => Ok(limit),
        _ => Err(Problem::new(Code::BadRequest, format!("`limit` must be 1 to {PAGE_MAX}")).into()),
    }
}

/// The name of a register, from the path.
pub struct RegisterName(String);

/// The place of a chain, from the path.
pub struct ChainPlace {
    register: String,
    chain: ChainName,
}

/// The place of an entry, from the path.
pub struct EntryPlace {
    chain: ChainPlace,
    number: u64,
}

fn register_name(text: String) -> Result<String, Problem> {
    if is_register_name(&text) {
        return Ok(text);
    }
    Err(Problem::new(Code::BadRequest, "that cannot be the name of a register")
        .hint("it has 1 to 64 letters, digits, `.`, `_` and `-`, and begins with a letter or a digit"))
}

fn chain_name(chain: &str) -> Result<ChainName, Problem> {
    let begins_well = chain.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    ChainName::parse(chain).filter(|_| begins_well).ok_or_else(|| {
        Problem::new(Code::BadRequest, "that cannot be the name of a chain")
            .hint("it has 1 to 200 letters, digits, `.`, `_`, `:`, `-` and slashes (%2F), and begins with a letter or a digit")
    })
}

fn chain_place(register: String, chain: &str) -> Result<ChainPlace, Problem> {
    Ok(ChainPlace { register: register_name(register)?, chain: chain_name(chain)? })
}

fn unreadable<E>(_: E) -> Problem {
    Problem::new(Code::BadRequest, "the path is not readable")
}

impl<S: Send + Sync> FromRequestParts<S> for RegisterName {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<RegisterName, Refused> {
        let Path(register) = Path::<String>::from_request_parts(parts, state).await.map_err(unreadable)?;
        Ok(RegisterName(register_name(register)?))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for ChainPlace {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<ChainPlace, Refused> {
        let path = Path::<(String, String)>::from_request_parts(parts, state).await;
        let Path((register, chain)) = path.map_err(unreadable)?;
        Ok(chain_place(register, &chain)?)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for EntryPlace {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<EntryPlace, Refused> {
        let path = Path::<(String, String, String)>::from_request_parts(parts, state).await;
        let Path((register, chain, text)) = path.map_err(unreadable)?;
        let chain = chain_place(register, &chain)?;
        Ok(EntryPlace { chain, number: number("number", text.parse().unwrap_or(0))? })
    }
}

/// An answer that keeps its tenant's permit until it was taken: a client that reads slowly cannot pile answers up.
fn held(reply: Reply, turn: CallPermit) -> Response {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = HeldBody { left: reply.body.into(), _turn: turn };
    let json = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    (status, [json], Body::new(body)).into_response()
}

/// A body in pieces, so that it is not dropped before most of it is sent.
struct HeldBody {
    left: Bytes,
    _turn: CallPermit,
}

impl HttpBody for HeldBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.left.len().min(PIECE);
        Poll::Ready((piece > 0).then(|| Ok(Frame::data(self.left.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.len() as u64)
    }
}
