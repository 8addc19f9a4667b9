//! GPUs over HTTP.

use super::body::{self, PathName};
use super::shared::{Nothing, OnCall, OnRead, Repeat};
use super::{App, Refused};
use crate::looper::Reply;
use crate::view::View;
use axum::Json;
use axum::extract::{Request, State};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::RwLock;
use sublet_core::event::{AsideRequest, Caller, Event};
use sublet_core::facts::GpuEvent;
use sublet_core::units::Span;
use sublet_wire as wire;

/// Lists the managed GPUs and what is on them.
#[utoipa::path(get, operation_id = "list_gpus", path = "/v1/gpus", tag = "gpus", responses(
    (status = 200, description = "the GPUs", body = wire::Gpus),
    OnRead,
))]
pub async fn list(State(app): State<App>, request: Request) -> Result<Json<wire::Gpus>, Refused> {
    let peer = body::peer(&request)?;
    let (by, caller) = (peer.caller.clone(), peer.caller.clone());
    let (by_driver, kind, stock) = (app.by_driver, app.kind, app.host.stock_bytes());
    let look =
        move |view: &View<'_>| (view.gpus(&caller), view.parking(by_driver, kind, stock), view.sees_all(&caller));
    let (mut cards, parking, see_all) = app.loop_client.read(look).await?;
    let whose = if see_all { AsideOwner::Anybodys } else { AsideOwner::Only(peer.uid()) };
    add_unleased_users(&app, &by, &mut cards, whose).await;
    let said = |trouble: &RwLock<Option<String>>| trouble.read().ok().and_then(|trouble| trouble.clone());
    let trouble = said(&app.trouble);
    let config_trouble = said(&app.config_trouble).filter(|_| by.operator);
    Ok(Json(wire::Gpus {
        gpus: cards,
        kind: app.kind.to_owned(),
        soft_state: app.soft_state.clone(),
        trouble,
        config_trouble,
        parking: parking.filter(|_| app.shim),
    }))
}

/// The user whose unleased processes are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AsideOwner {
    Anybodys,
    /// This user's; none for a caller without a user.
    Only(Option<u32>),
}

/// The owner of each unleased process, as far as the host tells: read here, never by the loop. Where each user sees
/// only itself, unleased processes of others are left out.
async fn add_unleased_users(app: &App, by: &Caller, cards: &mut Vec<wire::Gpu>, whose: AsideOwner) {
    if cards.iter().all(|card| card.occupants.iter().all(|o| o.pid.is_none())) {
        return;
    }
    let mut shown = std::mem::take(cards);
    let read = app.looks.run(&by.tenant, move || {
        let mut uids = BTreeMap::new();
        for card in &mut shown {
            card.occupants.retain(|occupant| {
                let Some(pid) = occupant.pid else { return true };
                let uid = sublet_host::process::uid(pid).ok();
                uids.extend(uid.map(|uid| (pid, uid)));
                whose == AsideOwner::Anybodys || (uid.is_some() && whose == AsideOwner::Only(uid))
            });
        }
        (shown, uids)
    });
    let Some((mut shown, uids)) = read.await else { return };
    app.names.wait_for_names(uids.values().copied()).await;
    for occupant in shown.iter_mut().flat_map(|card| &mut card.occupants) {
        let uid = occupant.pid.and_then(|pid| uids.get(&pid));
        occupant.user = uid.map(|uid| app.names.of(&crate::user_directory::tenant_of(*uid))).or(occupant.user.take());
    }
    *cards = shown;
}

/// Drains a GPU: no new lease is granted there.
#[utoipa::path(post, operation_id = "drain_gpu", path = "/v1/gpus/{uuid}/drain", tag = "gpus", request_body(content = Option<Nothing>, description = "none is needed"), params(
    ("uuid" = String, Path, description = "the GPU"),
    Repeat,
), responses(
    (status = 200, description = "the GPU", body = wire::Gpu),
    OnCall,
))]
pub async fn drain(State(app): State<App>, PathName(card): PathName, request: Request) -> Result<Reply, Refused> {
    let heard = body::empty(request).await?;
    let by = heard.peer.caller.clone();
    Ok(app.loop_client.call(by.clone(), Event::Gpu(GpuEvent::DrainRequested { by, gpu: card }), heard.key).await?)
}

/// Puts a GPU back into service.
#[utoipa::path(post, operation_id = "clear_gpu", path = "/v1/gpus/{uuid}/clear", tag = "gpus", request_body(content = Option<Nothing>, description = "none is needed"), params(
    ("uuid" = String, Path, description = "the GPU"),
    Repeat,
), responses(
    (status = 200, description = "the GPU", body = wire::Gpu),
    OnCall,
))]
pub async fn clear(State(app): State<App>, PathName(card): PathName, request: Request) -> Result<Reply, Refused> {
    let heard = body::empty(request).await?;
    let by = heard.peer.caller.clone();
    Ok(app.loop_client.call(by.clone(), Event::Gpu(GpuEvent::ClearRequested { by, gpu: card }), heard.key).await?)
}

/// Puts a GPU aside for a while: leases there are parked if possible, and none is granted. Operators may do it, and users
/// at the seat of this host; the configuration can allow others.
#[utoipa::path(post, operation_id = "put_gpu_aside", path = "/v1/gpus/{uuid}/aside", tag = "gpus",
    request_body = wire::AsideRequest,
    params(("uuid" = String, Path, description = "the GPU"), Repeat),
    responses(
    (status = 200, description = "the GPU, with the leases that stay", body = wire::Gpu),
    OnCall,
))]
pub async fn put_aside(State(app): State<App>, PathName(card): PathName, request: Request) -> Result<Reply, Refused> {
    let heard = body::json::<wire::AsideRequest>(request).await?;
    let by = heard.peer.caller.clone();
    // What logind says is read here, never by the loop.
    let uid = heard.peer.host_uid();
    let seat = app.looks.run(&by.tenant, move || uid.is_some_and(sublet_host::audit::is_at_seat)).await;
    let wire::AsideRequest { for_s, key, renew } = heard.body;
    // A time too long to be counted is refused like any that is too long.
    let span = for_s.map(|seconds| Span::secs(seconds.min(u64::from(u32::MAX))));
    let ask = AsideRequest { span, key: key.unwrap_or_default(), renews: renew, at_seat: seat.unwrap_or(false) };
    Ok(app
        .loop_client
        .call(by.clone(), Event::Gpu(GpuEvent::AsideRequested { by, gpu: card, request: ask }), heard.key)
        .await?)
}

/// The aside that ends.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EndQuery {
    key: Option<String>,
}

/// Ends the caller's asides of a GPU, or the one with a key; an operator without a key ends all of them.
#[utoipa::path(delete, operation_id = "end_gpu_aside", path = "/v1/gpus/{uuid}/aside", tag = "gpus", params(
    ("uuid" = String, Path, description = "the GPU"),
    ("key" = Option<String>, Query, description = "only the caller's aside with this key"),
    Repeat,
), responses(
    (status = 200, description = "the GPU", body = wire::Gpu),
    OnCall,
))]
pub async fn end_aside(State(app): State<App>, PathName(card): PathName, request: Request) -> Result<Reply, Refused> {
    let query: EndQuery = body::query(&request)?;
    let heard = body::empty(request).await?;
    let by = heard.peer.caller.clone();
    let event = Event::Gpu(GpuEvent::AsideEndRequested { by: by.clone(), gpu: card, key: query.key });
    Ok(app.loop_client.call(by, event, heard.key).await?)
}
