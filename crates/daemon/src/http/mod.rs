//! The HTTP API: routes, limits, problems.
//!
//! No decision is made here. A handler reads its request, sends one message to the loop and writes the answer.

pub mod acceptor;
mod arrivals;
mod body;
pub mod events;
pub mod gate;
mod gpus;
mod leases;
pub mod local_rate;
mod openapi;
mod progress;
pub mod rate;
mod records;
mod registers;
pub mod seats;
mod server;
mod shared;
pub mod tcp;
pub mod tls;
mod tokens;
mod unleased;

pub use openapi::document;
pub use server::serve;

use self::seats::ConnectionLimits;
use self::shared::OnRead;
use crate::fair_limiter::FairLimiter;
use crate::history::History;
use crate::inbox::{LoopClient, LoopGone};
use crate::lease_proofs::LeaseProofs;
use crate::looper::Reply;
use crate::registers::RegisterKeeper;
use crate::tokens::TokenTable;
use crate::user_directory::UserDirectory;
use crate::view::{View, Visibility};
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use std::ops::Deref;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use sublet_core::units::Span;
use sublet_host::Host;
use sublet_wire::{Code, Health, PROBLEM_JSON, Problem};
use tokio::sync::watch;

/// What every handler can reach, behind one reference count: a request clones and drops it.
#[derive(Clone)]
pub struct App(Arc<AppState>);

impl App {
    /// For every handler.
    pub fn new(reach: AppState) -> App {
        App(Arc::new(reach))
    }
}

impl Deref for App {
    type Target = AppState;

    fn deref(&self) -> &AppState {
        &self.0
    }
}

/// The parts themselves.
pub struct AppState {
    /// The loop.
    pub loop_client: LoopClient,
    /// The host's readers and workers, for tests of the driver.
    pub host: Arc<Host>,
    /// History.
    pub history: History,
    /// Finds the users of processes on GPUs.
    pub looks: FairLimiter,
    /// Requests of local users that are being answered.
    pub calls: FairLimiter,
    /// Calls that wait for a lease to change, of each tenant.
    pub polls: ConnectionLimits<String>,
    /// Event streams of each tenant.
    pub streams: ConnectionLimits<String>,
    /// How often event streams read new lines.
    pub stream_reads: rate::CallRates<String>,
    /// Names for people.
    pub names: UserDirectory,
    /// Lets callers in over TCP.
    pub tokens: TokenTable,
    /// Grows with every line of the log that is durable.
    pub synced: watch::Receiver<u64>,
    /// Why the driver lists no GPUs.
    pub trouble: Arc<RwLock<Option<String>>>,
    /// Why the last reload of the configuration was refused.
    pub config_trouble: Arc<RwLock<Option<String>>>,
    /// `real`, `soft` or `scripted`.
    pub kind: &'static str,
    /// The file of the soft GPUs.
    pub soft_state: Option<String>,
    /// Programs are started with the shim that parks them.
    pub shim: bool,
    /// Programs without it are parked by the driver.
    pub by_driver: bool,
    /// What the configuration says about the API; read again on reload.
    pub settings: Arc<RwLock<HttpSettings>>,
    /// The proofs of leases.
    pub proofs: LeaseProofs,
    /// Set when the daemon stops.
    pub stopping: watch::Receiver<bool>,
    /// How often local users may call.
    pub local_rate: Arc<local_rate::LocalRate>,
    /// Counts refused requests.
    pub refusals: crate::refusals::RefusalCounts,
    /// Registers of checkpoints.
    pub registers: RegisterKeeper,
}

/// What the configuration says about the API.
#[derive(Clone, Copy, Debug)]
pub struct HttpSettings {
    /// The term of a lease whose request has none.
    pub ttl: Span,
    /// Which users local users see.
    pub visibility: Visibility,
    /// The longest that a call may wait for a change.
    pub poll_max: Duration,
}

impl AppState {
    fn settings(&self) -> HttpSettings {
        *self.settings.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// All routes.
pub fn router(app: App) -> Router {
    Router::new()
        .route("/v1/leases", get(leases::list).post(leases::ask))
        .route("/v1/leases/{id}", get(leases::show).delete(leases::release))
        .route("/v1/leases/{id}/renew", post(leases::renew))
        .route("/v1/leases/{id}/accept", post(leases::accept))
        .route("/v1/leases/{id}/bind", post(leases::bind))
        .route("/v1/leases/{id}/park", post(leases::park))
        .route("/v1/leases/{id}/hook", post(leases::hook))
        .route("/v1/leases/{id}/resume", post(leases::resume))
        .route("/v1/leases/{id}/explain", get(leases::explain))
        .route("/v1/queue", get(leases::queue))
        .route("/v1/gpus", get(gpus::list))
        .route("/v1/gpus/{uuid}/drain", post(gpus::drain))
        .route("/v1/gpus/{uuid}/clear", post(gpus::clear))
        .route("/v1/gpus/{uuid}/aside", post(gpus::put_aside).delete(gpus::end_aside))
        .route("/v1/gpus/{uuid}/mode", post(unleased::mode))
        .route("/v1/unleased", get(unleased::list))
        .route("/v1/adopt", post(unleased::adopt))
        .route("/v1/rules", post(unleased::set_rule))
        .route("/v1/rules/{id}", delete(unleased::drop_rule))
        .route("/v1/tokens", get(tokens::list).post(tokens::make))
        .route("/v1/tokens/{id}", delete(tokens::revoke))
        .route("/v1/registers", get(registers::list))
        .route("/v1/registers/{register}/chains", get(registers::chains))
        .route("/v1/registers/{register}/chains/{chain}", get(registers::last))
        .route("/v1/registers/{register}/chains/{chain}/entries", get(registers::entries).delete(registers::forget))
        .route("/v1/registers/{register}/chains/{chain}/entries/{number}", put(registers::create))
        .route("/v1/usage", get(records::usage))
        .route("/v1/audit", get(records::audit))
        .route("/v1/events", get(events::stream))
        .route("/v1/journal/accept-loss", post(records::accept_loss))
        .route("/healthz", get(health))
        .route("/readyz", get(ready))
        .route("/openapi.json", get(openapi::show))
        .fallback(no_such_path)
        .method_not_allowed_fallback(bad_method)
        .with_state(app)
}

/// A refusal as a response.
pub struct Refused(pub Problem);

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Refused {
        Refused(problem)
    }
}

impl From<LoopGone> for Refused {
    fn from(gone: LoopGone) -> Refused {
        Refused(match gone {
            LoopGone::Stopping => Problem::new(Code::Stopping, "the daemon is stopping").retry_after(5),
            LoopGone::Rebuilt => {
                Problem::new(Code::JournalFailed, "the state was just rebuilt from the disk; look again").retry_after(1)
            }
        })
    }
}

impl From<sublet_journal::OpenError> for Refused {
    fn from(error: sublet_journal::OpenError) -> Refused {
        Refused(Problem::new(Code::JournalFailed, format!("history cannot be read: {error}")).retry_after(5))
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        Reply::problem(&self.0).into_response()
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let kind = if self.is_problem() { PROBLEM_JSON } else { "application/json" };
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        if self.status == 401 {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

async fn no_such_path() -> Refused {
    Refused(Problem::new(Code::NoSuchPath, "no such path").hint("GET /openapi.json lists what there is"))
}

async fn bad_method() -> Refused {
    Refused(Problem::new(Code::BadMethod, "this path does not take that method"))
}

fn status(text: &str) -> Health {
    Health { status: text.to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
}

/// Says whether the daemon answers.
#[utoipa::path(get, path = "/healthz", tag = "service", responses(
    (status = 200, description = "the daemon answers", body = Health),
    OnRead,
))]
pub(crate) async fn health(axum::extract::State(app): axum::extract::State<App>) -> Result<Json<Health>, Refused> {
    app.loop_client.read(|_| ()).await?;
    Ok(Json(status("ok")))
}

/// Says whether leases can be granted: the driver lists GPUs, the disk has room, and the journal is complete.
#[utoipa::path(get, path = "/readyz", tag = "service", responses(
    (status = 200, description = "leases can be granted", body = Health),
    (status = 503, description = "no GPUs, or lines of the journal are missing", body = Problem, content_type = PROBLEM_JSON),
    (status = 507, description = "the disk is full, or has too little room", body = Problem, content_type = PROBLEM_JSON),
    OnRead,
))]
pub(crate) async fn ready(axum::extract::State(app): axum::extract::State<App>) -> Result<Json<Health>, Refused> {
    let look = |view: &View<'_>| (!view.state.listed_facts().is_empty(), view.state.stopped());
    let (listed, stopped) = app.loop_client.read(look).await?;
    let trouble = app.trouble.read().ok().and_then(|trouble| trouble.clone());
    match (trouble, stopped) {
        (_, Some(stopped)) => Err(crate::messages::problem(&stopped).into()),
        (Some(trouble), None) => Err(Problem::new(Code::NoGpus, trouble).hint("run `sublet doctor`").into()),
        (None, None) if !listed => {
            Err(Problem::new(Code::NoGpus, "the GPUs were not listed yet").retry_after(1).into())
        }
        (None, None) => Ok(Json(status("ok"))),
    }
}
