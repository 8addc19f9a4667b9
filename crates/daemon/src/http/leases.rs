//! Leases over HTTP.

use super::body::{self, ParsedBody, PathName, lease_id};
use super::seats::LimitReached;
use super::shared::{Nothing, OnCall, OnRead, Repeat};
use super::{App, Refused};
use crate::looper::{Reply, WatchGoal};
use crate::messages;
use crate::peer::Peer;
use crate::signals;
use crate::view::{self, View};
use axum::Json;
use axum::extract::{Request, State};
use serde::Deserialize;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use sublet_core::decide::find;
use sublet_core::event::{Caller, Event, Refusal};
use sublet_core::facts::LeaseEvent;
use sublet_core::ids::{Fence, LeaseId};
use sublet_core::movers::MoverReport;
use sublet_core::request::{
    Exclusivity, GpuSelector, LeaseRequest, Notice, Preempt, RequestError, Term, Tier, Vram, is_visible,
};
use sublet_core::units::{Bytes, Span};
use sublet_wire as wire;
use sublet_wire::{Code, Problem};
use tokio::sync::Notify;

/// Leases in one listing.
const LIST_MAX: usize = 1_000;

/// Requests a lease.
#[utoipa::path(post, operation_id = "request_lease", path = "/v1/leases", tag = "leases", request_body = wire::LeaseRequest,
    params(Repeat),
    responses(
    (status = 201, description = "granted", body = wire::Lease),
    (status = 202, description = "waiting: its place in the queue, why, and when it is expected to start", body = wire::Lease),
    OnCall,
))]
pub async fn ask(State(app): State<App>, request: Request) -> Result<Reply, Refused> {
    let heard: ParsedBody<wire::LeaseRequest> = body::json(request).await?;
    let tenant = heard.peer.caller.tenant.clone();
    let answer = decide_request(&app, heard).await;
    let code = match &answer {
        Ok(reply) if reply.is_problem() => {
            serde_json::from_str::<Problem>(&reply.body).ok().map(|problem| problem.code)
        }
        Ok(_) => None,
        Err(Refused(problem)) => Some(problem.code),
    };
    if let Some(code) = code {
        app.refusals.count(&tenant, code);
    }
    answer
}

/// Has a request decided. A refusal is counted and leaves nothing else behind.
async fn decide_request(app: &App, heard: ParsedBody<wire::LeaseRequest>) -> Result<Reply, Refused> {
    let root = heard.body.pid.map(|process| heard.peer.named_process(process)).transpose()?;
    let by = heard.peer.caller.clone();
    if heard.body.wait_s.is_some_and(|s| s > 7 * 86_400) {
        return Err(Problem::new(Code::BadValue, "`wait_s` must be at most 7 days").into());
    }
    let wait = heard.body.wait_s.map(Span::secs);
    let ttl = heard.body.ttl_s.map_or(app.settings().ttl, |seconds| Span(seconds.saturating_mul(1_000_000)));
    let ask = read_request(heard.body, ttl)?;
    let (tenant, is_repeated) = (by.tenant.clone(), heard.key.is_some());
    let reply = app
        .loop_client
        .call(by.clone(), Event::Lease(LeaseEvent::Requested { by, request: ask, wait, root }), heard.key)
        .await?;
    Ok(with_proof(app, reply, &tenant, is_repeated))
}

/// An answer with a lease, and the lease's proof if it was granted. The stored answer has no proof; the lease of one
/// that may be stored is read from it.
fn with_proof(app: &App, mut reply: Reply, tenant: &str, may_be_stored: bool) -> Reply {
    let stored = || if may_be_stored && !reply.is_problem() { granted_in(&reply.body, tenant) } else { None };
    if let Some((lease, fence)) = reply.granted.or_else(stored)
        && reply.body.pop() == Some('}')
    {
        // At the end each time, so that the same answer is the same.
        let written = write!(reply.body, r#","proof":"{}"}}"#, app.proofs.grant(lease, fence).proof);
        debug_assert!(written.is_ok(), "a string takes whatever is written to it");
    }
    reply
}

/// The lease of this tenant in an answer, if it was granted.
fn granted_in(body: &str, tenant: &str) -> Option<(LeaseId, Fence)> {
    let lease: wire::Lease = serde_json::from_str(body).ok()?;
    let is_own = lease.tenant == tenant && lease.ended.is_none();
    Some((lease.id.parse().ok()?, Fence(lease.fence?))).filter(|_| is_own)
}

/// The longest reason of a hook's failure.
const WHY_MAX: usize = 256;

fn read_request(request: wire::LeaseRequest, ttl: Span) -> Result<LeaseRequest, Problem> {
    let odd = |refusal| messages::problem(&Refusal::BadAsk(refusal));
    use sublet_core::request::RequestError;
    if request.ttl_s.is_some() && request.time_s.is_some() {
        return Err(Problem::new(Code::BadValue, "`ttl_s` and `time_s` exclude each other")
            .hint("give `time_s` for a fixed term, or `ttl_s` for one that use renews"));
    }
    Ok(LeaseRequest {
        vram: match request.vram_bytes {
            wire::Vram::Bytes(bytes) => Vram::Bytes(Bytes(bytes)),
            wire::Vram::Whole => Vram::Whole,
        },
        gpus: u16::try_from(request.gpus).map_err(|_| odd(RequestError::Gpus))?,
        term: match request.time_s {
            Some(seconds) => Term::Fixed(Span(seconds.saturating_mul(1_000_000))),
            None => Term::Renewed(ttl),
        },
        tier: tier(request.tier),
        priority: i8::try_from(request.priority).map_err(|_| odd(RequestError::Priority))?,
        exclusivity: match request.exclusivity {
            wire::Exclusivity::Shared => Exclusivity::Shared,
            wire::Exclusivity::SessionExclusive => Exclusivity::Session,
            wire::Exclusivity::DeviceExclusive => Exclusivity::Device,
        },
        preempt: match request.preempt {
            None => Preempt::Usual,
            Some(wire::Preempt::Park) => Preempt::Park,
            Some(wire::Preempt::End) => Preempt::End,
            Some(wire::Preempt::Never) => Preempt::Never,
        },
        at_least: request.accept_smaller_bytes.map(Bytes),
        gpus_allowed: request.on.as_deref().map(GpuSelector::read),
        has_hook: request.has_hook,
        may_lose_state: request.may_lose,
        is_measured: false,
        notice: match request.notice {
            None => None,
            Some(notice) => {
                let signal = signals::number(&notice.signal).ok_or_else(|| odd(RequestError::Notice))?;
                Some(Notice { signal, before: Span(notice.before_s.saturating_mul(1_000_000)) })
            }
        },
        name: request.name,
    })
}

/// A fence as it could have been granted.
fn read_fence(number: u64) -> Result<Fence, Problem> {
    match i64::try_from(number) {
        Ok(_) => Ok(Fence(number)),
        Err(_) => Err(Problem::new(Code::BadValue, "`epoch` is larger than any that is granted")
            .hint("send the epoch that the lease was granted with")),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    #[serde(default)]
    all: bool,
    after: Option<String>,
}

/// Lists the caller's leases that have not ended, 1,000 per page; with `all`, those of all users for an operator.
#[utoipa::path(get, operation_id = "list_leases", path = "/v1/leases", tag = "leases",
    params(
        ("all" = Option<bool>, Query, description = "the leases of all users; refused unless the caller is an operator"),
        ("after" = Option<String>, Query, description = "leases after this one: for the next page, the last lease of this one", pattern = "^[Ll][1-9][0-9]*$", example = "L1000"),
    ), responses(
    (status = 200, description = "the leases", body = wire::Leases),
    (status = 403, description = "`all` is for operators", body = Problem, content_type = "application/problem+json"),
    OnRead,
))]
pub async fn list(State(app): State<App>, request: Request) -> Result<Json<wire::Leases>, Refused> {
    let by = body::peer(&request)?.caller.clone();
    let query: ListQuery = body::query(&request)?;
    if query.all && !by.operator {
        return Err(messages::problem(&Refusal::NotOperator).into());
    }
    let after = query.after.map(|id| id.parse::<LeaseId>().map_err(|_| no_id(&id))).transpose()?;
    Ok(Json(app.loop_client.read(move |view| view.leases(&by, query.all, after, LIST_MAX)).await?))
}

fn no_id(text: &str) -> Problem {
    Problem::new(Code::BadRequest, format!("`after` is `{text}`, and that is no lease's id"))
        .hint("give the last that was listed, such as `L1000`")
}

/// Lists the first 256 waiters in order of service; waiters of other users have no id and no name.
#[utoipa::path(get, operation_id = "list_queue", path = "/v1/queue", tag = "leases", responses(
    (status = 200, description = "the waiters", body = wire::Leases),
    OnRead,
))]
pub async fn queue(State(app): State<App>, request: Request) -> Result<Json<wire::Leases>, Refused> {
    let by = body::peer(&request)?.caller.clone();
    Ok(Json(app.loop_client.read(move |view| view.queue(&by, 256)).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShowQuery {
    wait: Option<String>,
    r#for: Option<String>,
    known: Option<wire::LeaseState>,
    #[serde(default)]
    known_ends_soon: bool,
    #[serde(default)]
    known_overuse: bool,
}

/// Shows one lease. With `wait`, the answer comes when the lease no longer waits (`for=end`: when it has ended;
/// `for=change`: when it differs from what the caller knows).
#[utoipa::path(get, operation_id = "show_lease", path = "/v1/leases/{id}", tag = "leases", params(
    ("id" = String, Path, description = "the lease", pattern = "^[Ll][1-9][0-9]*$", example = "L1"),
    ("wait" = Option<String>, Query, description = "how long to wait for a change, at most 60s", pattern = "^([0-9]{1,4}[smh])+$"),
    ("for" = Option<String>, Query, description = "`end`: wait until the lease has ended; `change`: until it differs from `known`, `known_ends_soon` and `known_overuse`", pattern = "^(end|change)$"),
    ("known" = Option<wire::LeaseState>, Query, description = "with `for=change`: the state that the caller knows [default: active]"),
    ("known_ends_soon" = Option<bool>, Query, description = "with `for=change`: the caller knows that the lease ends soon"),
    ("known_overuse" = Option<bool>, Query, description = "with `for=change`: the caller knows that the program exceeds its lease"),
), responses(
    (status = 200, description = "the lease", body = wire::Lease),
    OnRead,
))]
pub async fn show(
    State(app): State<App>,
    PathName(id): PathName,
    request: Request,
) -> Result<Json<wire::Lease>, Refused> {
    let peer = body::peer(&request)?;
    let by = peer.caller.clone();
    let query: ShowQuery = body::query(&request)?;
    let id = lease_id(&id)?;
    let until = match query.r#for.as_deref() {
        None => WatchGoal::Granted,
        Some("end") => WatchGoal::Ended,
        Some("change") => {
            let known = query.known.unwrap_or(wire::LeaseState::Active);
            WatchGoal::Changed { known, told: query.known_ends_soon, over: query.known_overuse }
        }
        Some(_) => return Err(Problem::new(Code::BadRequest, "`for` can only be `end` or `change`").into()),
    };
    if let Some(text) = &query.wait {
        let wait = sublet_wire::span::parse(text)
            .map_err(|error| Problem::new(Code::BadRequest, format!("`wait`: {error}")).hint(error.hint()))?;
        let wait = Duration::from_secs(wait).min(app.settings().poll_max);
        if let Some(lease) = await_change(&app, &by, id, until, wait).await? {
            return Ok(Json(show_with_proof(&app, &peer, lease)));
        }
    }
    let lease = live_or_past(&app, by, id).await?;
    Ok(Json(show_with_proof(&app, &peer, lease)))
}

/// A lease with its proof, for a caller that may bind processes to it.
fn show_with_proof(app: &App, peer: &Peer, mut lease: wire::Lease) -> wire::Lease {
    if !peer.is_read_only() {
        app.proofs.add_to(&mut lease, &peer.caller.tenant);
    }
    lease
}

/// Waits for a lease to change; `None` when the time is up or there is no such lease.
async fn await_change(
    app: &App,
    by: &Caller,
    lease: LeaseId,
    until: WatchGoal,
    wait: Duration,
) -> Result<Option<wire::Lease>, Refused> {
    let lost = Arc::new(Notify::new());
    let told = |no_seat: LimitReached| no_seat.problem(&by.tenant, "calls that wait for a lease");
    let _seat = app.polls.take(&by.tenant, &lost).map_err(told)?;
    let mut watching = app.loop_client.watch(by.clone(), lease, until)?;
    let mut stopping = app.stopping.clone();
    tokio::select! {
        answer = tokio::time::timeout(wait, watching.changed()) => match answer {
            Ok(Ok(lease)) => Ok(lease),
            // Time is up, or the state was rebuilt: read it again.
            Ok(Err(_)) | Err(_) => Ok(None),
        },
        // Another tenant, with fewer calls, waits in its place: the caller gets the present state, and may call again.
        () = lost.notified() => Ok(None),
        _ = stopping.wait_for(|stop| *stop) => Err(crate::inbox::LoopGone::Stopping.into()),
    }
}

/// A lease that is live, or else retired, if the caller may see it.
async fn live_or_past(app: &App, by: Caller, id: LeaseId) -> Result<wire::Lease, Refused> {
    let caller = by.clone();
    let look =
        move |view: &View<'_>| find(view.state, &caller, id).ok().map(|lease| view.lease_in_full(&caller, lease));
    let live = app.loop_client.read(look).await?;
    if let Some(lease) = live {
        return Ok(lease);
    }
    let past = super::records::history(app, &by, move |reader| reader.ended(id)).await?;
    let Some(past) = past else { return Err(no_such_lease()) };
    let seen = app.loop_client.read(move |view| {
        let own = view.state.tenant_name(past.tenant) == by.tenant;
        (own || by.operator).then(|| view::past(&past, view))
    });
    seen.await?.ok_or_else(no_such_lease)
}

fn no_such_lease() -> Refused {
    messages::problem(&Refusal::NoSuchLease).into()
}

/// Explains the state of a lease: what blocks it, and what could be preempted for it.
#[utoipa::path(get, operation_id = "explain_lease", path = "/v1/leases/{id}/explain", tag = "leases",
    params(("id" = String, Path, description = "the lease", pattern = "^[Ll][1-9][0-9]*$", example = "L1")), responses(
    (status = 200, description = "the explanation", body = wire::Explanation),
    OnRead,
))]
pub async fn explain(
    State(app): State<App>,
    PathName(id): PathName,
    request: Request,
) -> Result<Json<wire::Explanation>, Refused> {
    let peer = body::peer(&request)?;
    let id = lease_id(&id)?;
    let (by, caller) = (peer.caller.clone(), peer.caller.clone());
    let found =
        app.loop_client.read(move |view| find(view.state, &caller, id).ok().map(|lease| view.explain(&caller, lease)));
    if let Some(explanation) = found.await? {
        return Ok(Json(explanation));
    }
    let lease = live_or_past(&app, by, id).await?;
    let summary = lease.ended.as_ref().map_or_else(String::new, |ended| ended.sentence.clone());
    Ok(Json(wire::Explanation { lease, summary, ahead: Vec::new(), gpus: Vec::new(), preemption: None }))
}

/// Renews a lease that no process is bound to. Where processes are bound to it, their use of the GPU renews it, and
/// this call only shows how long it lasts.
#[utoipa::path(post, operation_id = "renew_lease", path = "/v1/leases/{id}/renew", tag = "leases", request_body = wire::RenewRequest, params(
    ("id" = String, Path, description = "the lease", pattern = "^[Ll][1-9][0-9]*$", example = "L1"),
    Repeat,
), responses(
    (status = 200, description = "the lease", body = wire::Lease),
    OnCall,
))]
pub async fn renew(State(app): State<App>, PathName(id): PathName, request: Request) -> Result<Reply, Refused> {
    let heard = body::json::<wire::RenewRequest>(request).await?;
    let lease = lease_id(&id)?;
    let by = heard.peer.caller.clone();
    let event =
        Event::Lease(LeaseEvent::RenewalRequested { by: by.clone(), lease, fence: read_fence(heard.body.fence)? });
    let reply = app.loop_client.call(by.clone(), event, heard.key).await?;
    ended_is_ended(&app, by, lease, reply).await
}

/// Accepts a smaller lease that can start now, and gives up the place in the queue. Nothing was reserved for the offer:
/// if the room is gone meanwhile, the place in the queue stays. A lease that is exceeded gets the larger size that
/// `overuse` offers.
#[utoipa::path(post, operation_id = "accept_offer", path = "/v1/leases/{id}/accept", tag = "leases", request_body = wire::AcceptRequest, params(
    ("id" = String, Path, description = "the lease", pattern = "^[Ll][1-9][0-9]*$", example = "L1"),
    Repeat,
), responses(
    (status = 200, description = "the lease, active", body = wire::Lease),
    OnCall,
))]
pub async fn accept(State(app): State<App>, PathName(id): PathName, request: Request) -> Result<Reply, Refused> {
    let heard = body::json::<wire::AcceptRequest>(request).await?;
    // A senseless body is refused first, whatever became of this lease.
    let senseless = match &heard.body {
        wire::AcceptRequest { vram_bytes, .. } if Bytes(*vram_bytes) < LeaseRequest::VRAM_MIN => {
            Some(RequestError::Vram)
        }
        wire::AcceptRequest { gpus: Some(gpus), .. } if !(1..=u32::from(LeaseRequest::GPUS_MAX)).contains(gpus) => {
            Some(RequestError::Gpus)
        }
        _ => None,
    };
    if let Some(why) = senseless {
        return Err(messages::problem(&Refusal::BadAsk(why)).into());
    }
    let lease = lease_id(&id)?;
    let by = heard.peer.caller.clone();
    let asked = {
        let by = by.clone();
        app.loop_client
            .read(move |view| find(view.state, &by, lease).ok().map(|lease| u32::from(lease.request.gpus)))
            .await?
    };
    let gpus = heard.body.gpus.or(asked).unwrap_or(1);
    let gpus = u16::try_from(gpus).map_err(|_| messages::problem(&Refusal::BadAsk(RequestError::Gpus)))?;
    let event =
        Event::Lease(LeaseEvent::OfferAccepted { by: by.clone(), lease, vram: Bytes(heard.body.vram_bytes), gpus });
    let is_repeated = heard.key.is_some();
    let reply = with_proof(&app, app.loop_client.call(by.clone(), event, heard.key).await?, &by.tenant, is_repeated);
    ended_is_ended(&app, by, lease, reply).await
}

/// Binds a process of the caller to a lease; its descendants belong to the lease too.
#[utoipa::path(post, operation_id = "bind_lease", path = "/v1/leases/{id}/bind", tag = "leases", request_body = wire::BindRequest, params(
    ("id" = String, Path, description = "the lease", pattern = "^[Ll][1-9][0-9]*$", example = "L1"),
    Repeat,
), responses(
    (status = 200, description = "the lease", body = wire::Lease),
    OnCall,
))]
pub async fn bind(State(app): State<App>, PathName(id): PathName, request: Request) -> Result<Reply, Refused> {
    let heard = body::json::<wire::BindRequest>(request).await?;
    let epoch = read_fence(heard.body.fence)?;
    let lease = lease_id(&id)?;
    let by = heard.peer.caller.clone();
    // The lease is looked up first: a pid must not tell whether it exists.
    let caller = by.clone();
    let live = app.loop_client.read(move |view| find(view.state, &caller, lease).is_ok()).await?;
    if !live {
        return ended_is_ended(&app, by, lease, Reply::problem(&messages::problem(&Refusal::NoSuchLease))).await;
    }
    let process = heard.peer.named_process(heard.body.pid)?;
    let event = Event::Lease(LeaseEvent::BindRequested { by: by.clone(), lease, fence: epoch, process });
    let reply = app.loop_client.call(by.clone(), event, heard.key).await?;
    ended_is_ended(&app, by, lease, reply).await
}

/// Parks a lease: its VRAM moves to host memory, and its programs stay alive and block when they use the GPU. The answer
/// comes when the move has begun.
#[utoipa::path(post, operation_id = "park_lease", path = "/v1/leases/{id}/park", tag = "leases", request_body(content = Option<Nothing>, description = "none is needed"), params(
    ("id" = String, Path, description = "the lease", pattern = "^[Ll][1-9][0-9]*$", example = "L1"),
    Repeat,
), responses(
    (status = 200, description = "the lease", body = wire::Lease),
    OnCall,
))]
pub async fn park(State(app): State<App>, PathName(id): PathName, request: Request) -> Result<Reply, Refused> {
    let heard = body::empty(request).await?;
    let lease = lease_id(&id)?;
    let by = heard.peer.caller.clone();
    let reply = app
        .loop_client
        .call(by.clone(), Event::Lease(LeaseEvent::ParkRequested { by: by.clone(), lease }), heard.key)
        .await?;
    ended_is_ended(&app, by, lease, reply).await
}

/// Resumes a parked lease: it waits for its GPUs in the queue like any request, then its VRAM moves back.
#[utoipa::path(post, operation_id = "resume_lease", path = "/v1/leases/{id}/resume", tag = "leases", request_body(content = Option<Nothing>, description = "none is needed"), params(
    ("id" = String, Path, description = "the lease", pattern = "^[Ll][1-9][0-9]*$", example = "L1"),
    Repeat,
), responses(
    (status = 200, description = "the lease", body = wire::Lease),
    OnCall,
))]
pub async fn resume(State(app): State<App>, PathName(id): PathName, request: Request) -> Result<Reply, Refused> {
    let heard = body::empty(request).await?;
    let lease = lease_id(&id)?;
    let by = heard.peer.caller.clone();
    let reply = app
        .loop_client
        .call(by.clone(), Event::Lease(LeaseEvent::ResumeRequested { by: by.clone(), lease }), heard.key)
        .await?;
    ended_is_ended(&app, by, lease, reply).await
}

/// Reports the result of a hook that the wrapper of a program ran. The report frees nothing: the GPUs are read.
#[utoipa::path(post, operation_id = "report_hook", path = "/v1/leases/{id}/hook", tag = "leases", request_body = wire::HookReport, params(
    ("id" = String, Path, description = "the lease", pattern = "^[Ll][1-9][0-9]*$", example = "L1"),
    Repeat,
), responses(
    (status = 200, description = "the lease", body = wire::Lease),
    OnCall,
))]
pub async fn hook(State(app): State<App>, PathName(id): PathName, request: Request) -> Result<Reply, Refused> {
    let heard = body::json::<wire::HookReport>(request).await?;
    let lease = lease_id(&id)?;
    let by = heard.peer.caller.clone();
    let why = heard.body.why.as_deref().unwrap_or("its hook failed");
    let why = || why.chars().map(|c| if is_visible(c) { c } else { ' ' }).take(WHY_MAX).collect();
    let said = match heard.body.result {
        wire::HookResult::Parked => MoverReport::Parked(Bytes::ZERO),
        wire::HookResult::Resumed => MoverReport::Resumed,
        wire::HookResult::Failed => MoverReport::Refused(why()),
        wire::HookResult::WantsResume => MoverReport::Used,
    };
    let event = Event::Lease(LeaseEvent::HookReported {
        by: by.clone(),
        lease,
        fence: read_fence(heard.body.fence)?,
        report: said,
    });
    let reply = app.loop_client.call(by.clone(), event, heard.key).await?;
    ended_is_ended(&app, by, lease, reply).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReleaseQuery {
    fence: Option<u64>,
}

/// Releases a lease, or leaves the queue. Its bytes count until its GPUs were read again.
#[utoipa::path(delete, operation_id = "release_lease", path = "/v1/leases/{id}", tag = "leases", params(
    ("id" = String, Path, description = "the lease", pattern = "^[Ll][1-9][0-9]*$", example = "L1"),
    ("fence" = Option<u64>, Query, description = "the fence with which the lease was granted; a newer grant is then not released"),
    Repeat,
), responses(
    (status = 200, description = "the lease, ended", body = wire::Lease),
    OnCall,
))]
pub async fn release(State(app): State<App>, PathName(id): PathName, request: Request) -> Result<Reply, Refused> {
    let query: ReleaseQuery = body::query(&request)?;
    let heard = body::empty(request).await?;
    let lease = lease_id(&id)?;
    let by = heard.peer.caller.clone();
    let event = Event::Lease(LeaseEvent::ReleaseRequested { by: by.clone(), lease, fence: query.fence.map(Fence) });
    let reply = app.loop_client.call(by.clone(), event, heard.key).await?;
    ended_is_ended(&app, by, lease, reply).await
}

/// The state forgets a retired lease; its owner is told that it ended, not that it never existed.
async fn ended_is_ended(app: &App, by: Caller, lease: LeaseId, reply: Reply) -> Result<Reply, Refused> {
    if reply.status != 404 {
        return Ok(reply);
    }
    let past = live_or_past(app, by, lease).await?;
    let sentence = past.ended.map_or_else(|| "the lease has ended".to_owned(), |ended| ended.sentence);
    Err(Problem::new(Code::LeaseEnded, sentence).hint("request a new lease").into())
}

/// A tier as core knows it.
pub fn tier(tier: wire::Tier) -> Tier {
    match tier {
        wire::Tier::Interactive => Tier::Interactive,
        wire::Tier::Batch => Tier::Batch,
        wire::Tier::Spot => Tier::Spot,
    }
}
