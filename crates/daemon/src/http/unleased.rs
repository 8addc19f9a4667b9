//! Unleased processes over HTTP: which there are, what is done about them, and a lease for one.

use super::body::{self, PathName};
use super::leases;
use super::shared::{OnCall, OnRead, Repeat};
use super::{App, Refused};
use crate::looper::Reply;
use crate::messages;
use crate::unleased::from_wire;
use crate::view::View;
use axum::Json;
use axum::extract::{Request, State};
use serde::Deserialize;
use std::time::Duration;
use sublet_core::event::{Event, Refusal};
use sublet_core::facts::{GpuEvent, UnleasedEvent};
use sublet_core::units::Bytes;
use sublet_core::unleased::{Mode, RuleAction, RuleId, RuleSubject};
use sublet_wire as wire;
use sublet_wire::{Code, Problem};

/// How long a GPU is tested before mode `enforce`.
const TEST_PATIENCE: Duration = Duration::from_secs(8);
const TEST_AGAIN: Duration = Duration::from_millis(50);
/// How often, and how many times, a new reading of the GPUs is waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const LOOKS: usize = 50;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UnleasedQuery {
    mode: Option<wire::Mode>,
    matches: Option<String>,
}

/// Lists processes that use a GPU without a lease there: the caller's own, or all of them for an operator.
#[utoipa::path(get, operation_id = "list_unleased", path = "/v1/unleased", tag = "unleased", params(
    ("mode" = Option<wire::Mode>, Query, description = "show what would happen to them in this mode"),
    ("matches" = Option<String>, Query, description = "only processes that a rule for `exe:PATH`, `unit:NAME`, `container:ID` or `uid:N` would match", pattern = r"^((exe|unit|container):[^\u0000-\u001f\u007f-\u009f]+|uid:\+?[0-9]+)$"),
), responses(
    (status = 200, description = "the processes, the mode of each GPU, the rules", body = wire::UnleasedProcesses),
    OnRead,
))]
pub async fn list(State(app): State<App>, request: Request) -> Result<Json<wire::UnleasedProcesses>, Refused> {
    let by = body::peer(&request)?.caller.clone();
    let query: UnleasedQuery = body::query(&request)?;
    if query.mode == Some(wire::Mode::Enforce) && by.operator {
        // Once is enough for a caller that only reads.
        let untested = |view: &View<'_>| match view.state.self_tests() {
            0 => view.state.listed_facts().first().map(|card| card.uuid.clone()),
            _ => None,
        };
        if let Some(uuid) = app.loop_client.read(untested).await? {
            test(&app, uuid).await?;
        }
    }
    // What a query says is part of the request: one that makes no sense cannot be read.
    let unread = |problem: Problem| Problem::new(Code::BadRequest, problem.detail);
    let who = query.matches.as_deref().map(read_subject).transpose().map_err(unread)?;
    let mut found =
        app.loop_client.read(move |view| view.unleased_processes(&by, query.mode.map(from_wire), who.as_ref())).await?;
    app.names.wait_for_names(found.processes.iter().map(|stranger| stranger.uid)).await;
    for stranger in &mut found.processes {
        stranger.user = app.names.of(&crate::user_directory::tenant_of(stranger.uid));
    }
    Ok(Json(found))
}

/// Sets what is done about unleased processes on a GPU (operators). `enforce` is tested first, and refused where the
/// driver's processes cannot be told apart.
#[utoipa::path(post, operation_id = "set_mode", path = "/v1/gpus/{uuid}/mode", tag = "unleased",
    request_body = wire::ModeRequest,
    params(("uuid" = String, Path, description = "the GPU"), Repeat),
    responses(
    (status = 200, description = "the GPU", body = wire::Gpu),
    OnCall,
))]
pub async fn mode(State(app): State<App>, PathName(card): PathName, request: Request) -> Result<Reply, Refused> {
    let heard = body::json::<wire::ModeRequest>(request).await?;
    let by = heard.peer.caller.clone();
    let mode = from_wire(heard.body.mode);
    if matches!(mode, Mode::Adopt | Mode::Enforce) && by.operator {
        test(&app, card.clone()).await?;
    }
    Ok(app.loop_client.call(by.clone(), Event::Gpu(GpuEvent::ModeRequested { by, gpu: card, mode }), heard.key).await?)
}

/// Tests that unleased processes can be told apart before one is adopted or ended; on one GPU, unless that is known
/// already.
async fn test(app: &App, card: String) -> Result<(), Refused> {
    let uuid = card.clone();
    let (before, is_needed) = app
        .loop_client
        .read(move |view| {
            let can = view.state.self_test().is_some_and(Result::is_ok);
            (view.state.self_tests(), !can && view.state.gpu(&uuid).is_some())
        })
        .await?;
    if !is_needed {
        return Ok(());
    }
    let begun = tokio::time::Instant::now();
    app.host.self_test(card);
    while begun.elapsed() < TEST_PATIENCE && app.loop_client.read(|view| view.state.self_tests()).await? == before {
        tokio::time::sleep(TEST_AGAIN).await;
    }
    Ok(())
}

/// Makes a rule for certain unleased processes (operators): they are left alone, may be ended even in a container or if
/// they only draw, or get a lease wherever they are found.
#[utoipa::path(post, operation_id = "set_rule", path = "/v1/rules", tag = "unleased",
    request_body = wire::RuleRequest,
    params(Repeat),
    responses(
    (status = 200, description = "the rule", body = wire::Rule),
    OnCall,
))]
pub async fn set_rule(State(app): State<App>, request: Request) -> Result<Reply, Refused> {
    let heard = body::json::<wire::RuleRequest>(request).await?;
    let by = heard.peer.caller.clone();
    let who = read_subject(&heard.body.matches)?;
    sensible(heard.body.vram_bytes)?;
    let treat = match heard.body.action {
        wire::RuleAction::Allow => RuleAction::Allow,
        wire::RuleAction::Deny => RuleAction::Deny,
        wire::RuleAction::Adopt => {
            RuleAction::Adopt { vram: heard.body.vram_bytes.map(Bytes), tier: leases::tier(heard.body.tier) }
        }
    };
    Ok(app
        .loop_client
        .call(by.clone(), Event::Unleased(UnleasedEvent::RuleRequested { by, subject: who, action: treat }), heard.key)
        .await?)
}

/// Removes a rule (operators).
#[utoipa::path(delete, operation_id = "remove_rule", path = "/v1/rules/{id}", tag = "unleased", params(
    ("id" = String, Path, description = "the rule", pattern = "^[Rr][1-9][0-9]*$", example = "R1"),
    Repeat,
), responses(
    (status = 200, description = "the removed rule", body = wire::Rule),
    OnCall,
))]
pub async fn drop_rule(State(app): State<App>, PathName(id): PathName, request: Request) -> Result<Reply, Refused> {
    let heard = body::empty(request).await?;
    let digits = id.strip_prefix(['R', 'r']).filter(|digits| !digits.starts_with(['0', '+']));
    let rule = digits.and_then(|digits| digits.parse().ok()).map(RuleId);
    let rule = rule.ok_or_else(|| Problem::new(Code::NoSuchRule, "a rule is called R and a number"))?;
    let by = heard.peer.caller.clone();
    Ok(app
        .loop_client
        .call(by.clone(), Event::Unleased(UnleasedEvent::RuleRemovalRequested { by, rule }), heard.key)
        .await?)
}

/// Gives an unleased process a lease for the VRAM that it has.
#[utoipa::path(post, operation_id = "adopt", path = "/v1/adopt", tag = "unleased", request_body = wire::AdoptRequest,
    params(Repeat),
    responses(
    (status = 201, description = "its lease", body = wire::Lease),
    OnCall,
))]
pub async fn adopt(State(app): State<App>, request: Request) -> Result<Reply, Refused> {
    let heard = body::json::<wire::AdoptRequest>(request).await?;
    let by = heard.peer.caller.clone();
    let process = heard.peer.process_or_any(heard.body.pid)?;
    sensible(heard.body.vram_bytes)?;
    let (vram, tier) = (heard.body.vram_bytes.map(Bytes), leases::tier(heard.body.tier));
    measure_now(&app).await?;
    Ok(app
        .loop_client
        .call(by.clone(), Event::Unleased(UnleasedEvent::AdoptRequested { by, process, vram, tier }), heard.key)
        .await?)
}

/// Measures what a process has now: it may have grown since the last reading. A GPU that does not answer delays no call
/// for long.
async fn measure_now(app: &App) -> Result<(), Refused> {
    let begun = app.loop_client.read(|view| view.now).await?;
    app.host.request_reading();
    for _ in 0..LOOKS {
        let is_new = app.loop_client.read(move |view| {
            let mut cards = view.state.gpus().filter(|card| view.state.is_listed(*card));
            cards.all(|card| view.state.room(card).reading().begun >= begun)
        });
        if is_new.await? {
            break;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    Ok(())
}

fn read_subject(text: &str) -> Result<RuleSubject, Problem> {
    text.parse().map_err(|_| messages::problem(&Refusal::BadRule))
}

fn sensible(vram_bytes: Option<u64>) -> Result<(), Problem> {
    match vram_bytes {
        Some(bytes) if !(1 << 20..=Bytes::MAX_ASK.0).contains(&bytes) => {
            Err(Problem::new(Code::BadValue, "`vram_bytes` must be at least 1 MiB and at most 1024 TiB"))
        }
        _ => Ok(()),
    }
}
