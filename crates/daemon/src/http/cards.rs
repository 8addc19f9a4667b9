//! Cards over HTTP.

use super::body::{self, Name};
use super::shared::{OnCall, OnRead, Repeat};
use super::{App, Refused};
use crate::mail::Reply;
use axum::Json;
use axum::extract::{Request, State};
use sublet_core::event::Event;
use sublet_wire as wire;

/// All managed cards, and who is on them.
#[utoipa::path(get, operation_id = "list_cards", path = "/v1/cards", tag = "cards", responses(
    (status = 200, description = "the cards", body = wire::Cards),
    OnRead,
))]
pub async fn list(State(app): State<App>, request: Request) -> Result<Json<wire::Cards>, Refused> {
    let peer = body::peer(&request)?;
    let by = peer.caller.clone();
    let see_all = peer.sees_all(app.house().see_all);
    let mut cards = app.post.read(move |view| view.cards(&by, see_all)).await?;
    name_strangers(&app, &mut cards, if see_all { Whose::Anybodys } else { Whose::Only(peer.uid()) }).await;
    let trouble = app.trouble.read().ok().and_then(|trouble| trouble.clone());
    Ok(Json(wire::Cards { cards, kind: app.kind.to_owned(), trouble }))
}

/// Whose strangers are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Anybodys,
    /// This user's; nobody's for who has none.
    Only(Option<u32>),
}

/// Whose a stranger is, as far as the host tells: read here, never by the loop. Where each sees
/// only itself, strangers of others are left out.
async fn name_strangers(app: &App, cards: &mut Vec<wire::Card>, whose: Whose) {
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
                whose == Whose::Anybodys || (uid.is_some() && whose == Whose::Only(uid))
            });
        }
        shown
    });
    *cards = named.await.unwrap_or_default();
}

/// Lets a card run empty: nothing new lands there.
#[utoipa::path(post, operation_id = "drain_card", path = "/v1/cards/{uuid}/drain", tag = "cards", params(
    ("uuid" = String, Path, description = "the card"),
    Repeat,
), responses(
    (status = 200, description = "the card", body = wire::Card),
    OnCall,
))]
pub async fn drain(State(app): State<App>, Name(card): Name, request: Request) -> Result<Reply, Refused> {
    let heard = body::empty(request).await?;
    let by = heard.peer.caller.clone();
    Ok(app.post.call(by.clone(), Event::Drained { by, card }, heard.key).await?)
}

/// Puts a card back into service.
#[utoipa::path(post, operation_id = "clear_card", path = "/v1/cards/{uuid}/clear", tag = "cards", params(
    ("uuid" = String, Path, description = "the card"),
    Repeat,
), responses(
    (status = 200, description = "the card", body = wire::Card),
    OnCall,
))]
pub async fn clear(State(app): State<App>, Name(card): Name, request: Request) -> Result<Reply, Refused> {
    let heard = body::empty(request).await?;
    let by = heard.peer.caller.clone();
    Ok(app.post.call(by.clone(), Event::Cleared { by, card }, heard.key).await?)
}
