//! Cards over HTTP.

use super::body::{self, Name};
use super::{App, Refused};
use crate::mail::Reply;
use axum::Json;
use axum::extract::{Request, State};
use sublet_core::event::Event;
use sublet_wire as wire;
use sublet_wire::Problem;

/// All managed cards, and who is on them.
#[utoipa::path(get, operation_id = "list_cards", path = "/v1/cards", tag = "cards", responses(
    (status = 200, description = "the cards", body = wire::Cards),
    (status = 503, description = "stopping", body = Problem, content_type = "application/problem+json"),
))]
pub async fn list(State(app): State<App>, request: Request) -> Result<Json<wire::Cards>, Refused> {
    let peer = body::peer(&request)?;
    let (by, uid) = (peer.caller.clone(), peer.uid);
    let see_all = app.house().see_all || by.operator;
    let mut cards = app.post.read(move |view| view.cards(&by, see_all)).await?;
    name_strangers(&app, &mut cards, (!see_all).then_some(uid)).await;
    let trouble = app.trouble.read().ok().and_then(|trouble| trouble.clone());
    Ok(Json(wire::Cards { cards, kind: app.kind.to_owned(), trouble }))
}

/// Whose a stranger is, as far as the host tells: read here, never by the loop. Where each sees
/// only itself, strangers of others are left out.
async fn name_strangers(app: &App, cards: &mut Vec<wire::Card>, only: Option<u32>) {
    if cards.iter().all(|card| card.occupants.iter().all(|o| o.pid.is_none())) {
        return;
    }
    let names = app.names.clone();
    let mut shown = std::mem::take(cards);
    let named = tokio::task::spawn_blocking(move || {
        for card in &mut shown {
            card.occupants.retain_mut(|occupant| {
                let Some(pid) = occupant.pid else { return true };
                let uid = sublet_host::process::uid(pid).ok();
                if let Some(uid) = uid {
                    names.look_up(uid);
                    occupant.user = Some(names.of(&crate::names::tenant_of(uid)));
                }
                only.is_none() || uid == only
            });
        }
        shown
    });
    *cards = named.await.unwrap_or_default();
}

/// Lets a card run empty: nothing new lands there.
#[utoipa::path(post, operation_id = "drain_card", path = "/v1/cards/{uuid}/drain", tag = "cards", params(
    ("uuid" = String, Path, description = "the card"),
    ("Idempotency-Key" = Option<String>, Header, description = "makes the call safe to send again", min_length = 1, max_length = 128, pattern = "^[!-~]([ -~]*[!-~])?$"),
), responses(
    (status = 200, description = "the card", body = wire::Card),
    (status = 400, description = "not readable", body = Problem, content_type = "application/problem+json"),
    (status = 403, description = "not an operator", body = Problem, content_type = "application/problem+json"),
    (status = 404, description = "no such card", body = Problem, content_type = "application/problem+json"),
    (status = 409, description = "the key is in use", body = Problem, content_type = "application/problem+json"),
    (status = 413, description = "too large", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "the key was used for something else", body = Problem, content_type = "application/problem+json"),
    (status = 503, description = "stopping", body = Problem, content_type = "application/problem+json"),
    (status = 507, description = "the disk is full", body = Problem, content_type = "application/problem+json"),
))]
pub async fn drain(State(app): State<App>, Name(card): Name, request: Request) -> Result<Reply, Refused> {
    let heard = body::empty(request).await?;
    let by = heard.peer.caller.clone();
    Ok(app.post.call(by.clone(), Event::Drained { by, card }, heard.key).await?)
}

/// Puts a card back into service.
#[utoipa::path(post, operation_id = "clear_card", path = "/v1/cards/{uuid}/clear", tag = "cards", params(
    ("uuid" = String, Path, description = "the card"),
    ("Idempotency-Key" = Option<String>, Header, description = "makes the call safe to send again", min_length = 1, max_length = 128, pattern = "^[!-~]([ -~]*[!-~])?$"),
), responses(
    (status = 200, description = "the card", body = wire::Card),
    (status = 400, description = "not readable", body = Problem, content_type = "application/problem+json"),
    (status = 403, description = "not an operator", body = Problem, content_type = "application/problem+json"),
    (status = 404, description = "no such card", body = Problem, content_type = "application/problem+json"),
    (status = 409, description = "the key is in use", body = Problem, content_type = "application/problem+json"),
    (status = 413, description = "too large", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "the key was used for something else", body = Problem, content_type = "application/problem+json"),
    (status = 503, description = "stopping", body = Problem, content_type = "application/problem+json"),
    (status = 507, description = "the disk is full", body = Problem, content_type = "application/problem+json"),
))]
pub async fn clear(State(app): State<App>, Name(card): Name, request: Request) -> Result<Reply, Refused> {
    let heard = body::empty(request).await?;
    let by = heard.peer.caller.clone();
    Ok(app.post.call(by.clone(), Event::Cleared { by, card }, heard.key).await?)
}
