//! Reads requests: bounded in size and time, and strict.

use super::Refused;
use crate::looper::IdempotencyKey;
use crate::peer::Peer;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use hyper::body::Body as _;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;
use sublet_core::ids::{LeaseId, TokenId};
use sublet_wire::{Code, IDEMPOTENCY_KEY, Problem};

/// The largest request body; a sensible one has a few hundred bytes.
const BODY_MAX: usize = 64 << 10;
/// The longest time for a body.
const BODY_TIME: Duration = Duration::from_secs(10);
/// The longest Idempotency-Key.
const KEY_MAX: usize = 128;

/// A request that was read.
pub struct ParsedBody<T> {
    /// Its sender.
    pub peer: Arc<Peer>,
    /// Its body.
    pub body: T,
    /// Its Idempotency-Key.
    pub key: Option<IdempotencyKey>,
}

/// The sender of a request. Only the server puts it there.
pub fn peer(request: &Request) -> Result<Arc<Peer>, Refused> {
    let found = request.extensions().get::<Arc<Peer>>().cloned();
    let peer = found.ok_or_else(|| Problem::new(Code::Denied, "the caller is not known"))?;
    // A token with few rights must not seem to limit what is done here.
    if peer.uid().is_some() && request.headers().contains_key(header::AUTHORIZATION) {
        let detail = "on this socket the kernel names the caller; a token says nothing here";
        return Err(Problem::new(Code::BadRequest, detail).hint("leave `Authorization` out, or call over TCP").into());
    }
    Ok(peer)
}

/// Reads a JSON body.
pub async fn json<T: DeserializeOwned>(request: Request) -> Result<ParsedBody<T>, Refused> {
    let heard = raw(request).await?;
    Ok(ParsedBody { peer: heard.peer, body: parsed(&heard.body)?, key: heard.key })
}

/// A JSON body that was read.
fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refused> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let body = T::deserialize(&mut reader).and_then(|body| reader.end().map(|()| body));
    body.map_err(|error| {
        Problem::new(Code::BadRequest, format!("the body is not what this call takes: {error}"))
            .hint("GET /openapi.json has its schema")
            .into()
    })
}

/// Reads a request that needs no body; an empty JSON object is as good as none.
pub async fn empty(request: Request) -> Result<ParsedBody<()>, Refused> {
    let heard = raw(request).await?;
    nothing(&heard.body)?;
    Ok(ParsedBody { peer: heard.peer, body: (), key: heard.key })
}

/// Refuses a body with anything in it. Many clients send `{}` with every POST, so that is accepted, and so is `null`.
fn nothing(bytes: &[u8]) -> Result<(), Refused> {
    let read = serde_json::from_slice::<Option<serde_json::Map<String, serde_json::Value>>>;
    if bytes.is_empty() || read(bytes).is_ok_and(|object| object.is_none_or(|members| members.is_empty())) {
        return Ok(());
    }
    Err(Problem::new(Code::BadRequest, "this call takes no body").hint("leave it out, or send `{}`").into())
}

/// Reads a body of at most `most` bytes, whatever they are.
pub async fn bytes(request: Request, most: usize) -> Result<axum::body::Bytes, Refused> {
    peer(&request)?;
    read(request.into_body(), most).await
}

async fn raw(request: Request) -> Result<ParsedBody<axum::body::Bytes>, Refused> {
    let peer = peer(&request)?;
    let (parts, body) = request.into_parts();
    let key = key_in(&parts.headers)?;
    let body = read(body, BODY_MAX).await?;
    let key = key.map(|key| {
        let mut hash = blake3::Hasher::new();
        hash.update(parts.method.as_str().as_bytes()).update(b" ");
        let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
        hash.update(target.as_bytes()).update(b"\n").update(&body);
        IdempotencyKey { key, fingerprint: *hash.finalize().as_bytes() }
    });
    Ok(ParsedBody { peer, body, key })
}

/// The Idempotency-Key of a request. Two of them are refused, even two equal ones: which of them a proxy on the way
/// kept cannot be known, so a retry might not find the answer.
fn key_in(headers: &HeaderMap) -> Result<Option<String>, Refused> {
    let mut sent = headers.get_all(IDEMPOTENCY_KEY).iter();
    let key = sent.next().map(|value| key_of(value.as_bytes())).transpose()?;
    match sent.next() {
        None => Ok(key),
        Some(_) => Err(Problem::new(Code::BadRequest, "`Idempotency-Key` was sent more than once")
            .hint("send one key with each request")
            .into()),
    }
}

fn key_of(value: &[u8]) -> Result<String, Refused> {
    let plain = !value.is_empty() && value.len() <= KEY_MAX && value.iter().all(|byte| (0x20..0x7f).contains(byte));
    if !plain {
        let detail = format!("`Idempotency-Key` must be 1 to {KEY_MAX} printable ASCII characters");
        return Err(Problem::new(Code::BadRequest, detail).into());
    }
    Ok(String::from_utf8_lossy(value).into_owned())
}

async fn read(body: Body, most: usize) -> Result<axum::body::Bytes, Refused> {
    let too_large = || Problem::new(Code::TooLarge, format!("the body is larger than {} KiB", most >> 10)).into();
    // A body that is announced as too large need not be sent.
    if body.size_hint().lower() > most as u64 {
        return Err(too_large());
    }
    let mut read = std::pin::pin!(axum::body::to_bytes(body, most));
    // A body that came with its header is there at the second poll; a timer would cost more than that.
    let read = tokio::select! {
        biased;
        read = &mut read => Ok(read),
        () = tokio::task::yield_now() => tokio::time::timeout(BODY_TIME, read).await,
    };
    match read {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_too_large(&error) => Err(too_large()),
        Ok(Err(_)) => Err(Problem::new(Code::BadRequest, "the body did not arrive whole").into()),
        Err(_) => Err(Problem::new(Code::TooSlow, "the body did not arrive in time").into()),
    }
}

fn is_too_large(error: &axum::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if cause.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        source = cause.source();
    }
    false
}

/// The one variable part of a path.
#[derive(Debug, PartialEq, Eq)]
pub struct PathName(pub String);

impl<S: Send + Sync> FromRequestParts<S> for PathName {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<PathName, Refused> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(PathName(name)),
            Err(_) => Err(Problem::new(Code::BadRequest, "the path is not readable as UTF-8").into()),
        }
    }
}

/// Reads a lease's id. What is no id is no lease.
pub fn lease_id(text: &str) -> Result<LeaseId, Refused> {
    text.parse().map_err(|_| Problem::new(Code::NoSuchLease, "no such lease").into())
}

/// Reads a token's id. What is no id is no token.
pub fn token_id(text: &str) -> Result<TokenId, Refused> {
    text.parse().map_err(|_| Problem::new(Code::NoSuchToken, "no such token").into())
}

/// Reads a query; unknown parameters are errors.
pub fn query<T: DeserializeOwned>(request: &Request) -> Result<T, Refused> {
    axum::extract::Query::<T>::try_from_uri(request.uri()).map(|query| query.0).map_err(|error| {
        let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        Problem::new(Code::BadRequest, format!("the query is not what this call takes: {cause}")).into()
    })
}
