//! Tokens over HTTP. The caller makes the secret; only its hash arrives here.

use super::body::{self, PathName};
use super::shared::{OnCall, OnRead, Repeat};
use super::{App, Refused};
use crate::loop_thread::wall_us;
use crate::looper::Reply;
use crate::view::wall_s;
use axum::Json;
use axum::extract::{Request, State};
use sublet_core::event::Event;
use sublet_core::facts::TokenEvent;
use sublet_core::token::{TokenCaps, TokenRequest};
use sublet_core::units::Bytes;
use sublet_wire as wire;
use sublet_wire::{Code, Problem};

/// The longest a token may last that expires at all: a leap year.
const EXPIRES_MAX_S: u64 = 366 * 86_400;

/// Makes a token. The caller makes its secret and sends the hash; the daemon never sees the secret.
#[utoipa::path(post, operation_id = "make_token", path = "/v1/tokens", tag = "tokens", request_body = wire::TokenRequest,
    params(Repeat),
    responses(
    (status = 201, description = "the token, without its secret", body = wire::Token),
    OnCall,
))]
pub async fn make(State(app): State<App>, request: Request) -> Result<Reply, Refused> {
    let heard = body::json::<wire::TokenRequest>(request).await?;
    let wall_us = wall_us();
    let ask = read_request(heard.body, wall_us)?;
    let by = heard.peer.caller.clone();
    Ok(app
        .loop_client
        .call(by.clone(), Event::Token(TokenEvent::IssueRequested { by, request: Box::new(ask), wall_us }), heard.key)
        .await?)
}

fn read_request(request: wire::TokenRequest, wall_us: u64) -> Result<TokenRequest, Problem> {
    let bad = |detail: &str| Problem::new(Code::BadValue, detail);
    let hash = request.hash.parse().map_err(|_| {
        bad("`hash` must be the token's BLAKE3 hash, 64 hexadecimal digits in lower case")
            .hint("`sublet token create` makes a token and sends its hash")
    })?;
    if request.expires_in_s.is_some_and(|s| s == 0 || s > EXPIRES_MAX_S) {
        return Err(bad("`expires_in_s` must be 1 s to 366 days"));
    }
    if request.vram_bytes.is_some_and(|bytes| bytes > Bytes::MAX_ASK.0) {
        return Err(bad("`vram_bytes` must be at most 1024 TiB"));
    }
    Ok(TokenRequest {
        tenant: request.tenant,
        name: request.name,
        hash,
        read_only: request.read_only,
        caps: TokenCaps { vram: request.vram_bytes.map(Bytes), leases: request.leases },
        expires_wall_us: request.expires_in_s.map(|s| wall_us.saturating_add(s * 1_000_000)),
    })
}

/// Lists the caller's tokens, oldest first: all tokens for an operator; through a token, only that one.
#[utoipa::path(get, operation_id = "list_tokens", path = "/v1/tokens", tag = "tokens", responses(
    (status = 200, description = "the tokens, without their secrets", body = wire::Tokens),
    OnRead,
))]
pub async fn list(State(app): State<App>, request: Request) -> Result<Json<wire::Tokens>, Refused> {
    let by = body::peer(&request)?.caller.clone();
    let uses = app.tokens.last_uses();
    let tokens = app.loop_client.read(move |view| {
        let mut tokens = view.tokens(&by);
        for token in &mut tokens {
            let used = token.id.parse().ok().and_then(|id| uses.get(&id));
            token.last_used_unix_s = used.map(|at| wall_s(*at));
        }
        tokens
    });
    Ok(Json(wire::Tokens { tokens: tokens.await? }))
}

/// Revokes a token. Leases that were requested with it continue.
#[utoipa::path(delete, operation_id = "revoke_token", path = "/v1/tokens/{id}", tag = "tokens", params(
    ("id" = String, Path, description = "the token", pattern = "^[Kk][1-9][0-9]*$", example = "K1"),
    Repeat,
), responses(
    (status = 200, description = "the revoked token", body = wire::Token),
    OnCall,
))]
pub async fn revoke(State(app): State<App>, PathName(id): PathName, request: Request) -> Result<Reply, Refused> {
    let heard = body::empty(request).await?;
    let token = body::token_id(&id)?;
    let by = heard.peer.caller.clone();
    let event = Event::Token(TokenEvent::RevokeRequested { by: by.clone(), token, wall_us: wall_us() });
    Ok(app.loop_client.call(by, event, heard.key).await?)
}
