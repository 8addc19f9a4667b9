//! The TCP listener: the same routes as on the socket, behind the [gate](super::gate).
//!
//! Its seats are its own: however many unknown clients connect, the host's own socket has room. A connection begins
//! among those that have not shown a good token, which are few and short-lived; with its first good token it gets one
//! of its tenant's seats.

use super::gate::{self, Gate};
use super::progress::Progress;
use super::seats::{AtLimit, ConnectionLimits, ConnectionPermit, LimitReached, Limits};
use super::server::{HEADER_TIME, Routes, WRITE_TIME, accept, serve_requests};
use super::{App, Refused, router};
use crate::access::Access;
use crate::loop_thread::wall_us;
use crate::peer::Peer;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use sublet_wire::{Code, PROBLEM_JSON, Problem};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

/// A handshake takes two round trips; a client that needs longer than this does not mean to speak.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// At most this much of a request without TLS is read after it was answered.
const UNREAD_MAX: u64 = 1 << 20;

/// A connection shows a good token within this, or is closed. A client that has one sends it at once.
const PROOF_TIME: Duration = Duration::from_secs(10);

/// How often the token of a waiting call is checked.
const TOKEN_AGAIN: Duration = Duration::from_secs(1);

/// How connections are encrypted; `None`: they are not. Read again on reload.
pub type Tls = Arc<RwLock<Option<Arc<ServerConfig>>>>;

/// How the listener finds the user of a caller.
#[derive(Clone, Debug)]
pub struct TcpListenerTask {
    /// Knows tokens.
    pub gate: Arc<Gate>,
    /// Knows the groups of users.
    pub access: Access,
}

/// What every connection of the listener needs.
struct TcpEndpoint {
    routes: Routes,
    door: TcpListenerTask,
    tls: Tls,
    unproven: ConnectionLimits<IpAddr>,
    tokens: ConnectionLimits<String>,
    stop: watch::Receiver<bool>,
}

/// Serves until told to stop, then lets what is under way finish for a while.
pub async fn serve(
    listener: TcpListener,
    app: App,
    door: TcpListenerTask,
    tls: Tls,
    limits: Limits,
    stop: watch::Receiver<bool>,
) {
    let remote = Arc::new(TcpEndpoint {
        routes: TowerToHyperService::new(router(app)),
        door,
        tls,
        // A connection without a token is never refused: the oldest one without goes for it.
        unproven: ConnectionLimits::new(limits.unproven, AtLimit::ReplaceOldest),
        tokens: ConnectionLimits::new(limits.tokens, AtLimit::Refuse),
        stop: stop.clone(),
    });
    let begin = |(stream, from): (TcpStream, SocketAddr)| Arc::clone(&remote).connection(stream, from);
    accept(|context| listener.poll_accept(context), begin, stop).await;
}

/// The seat of one connection.
enum ListenerState {
    /// No good token was seen yet.
    Unproven { _seat: ConnectionPermit<IpAddr> },
    /// This tenant's token was seen last.
    Proven { tenant: String, _seat: ConnectionPermit<String> },
}

/// One connection: its seat, and what is told when that went to another.
struct TokenCaller {
    place: Mutex<ListenerState>,
    lost: Arc<Notify>,
}

impl TokenCaller {
    fn place(&self) -> MutexGuard<'_, ListenerState> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A tenant's token was good: the connection takes one of the tenant's seats.
    fn take_tenant_seat(&self, tokens: &ConnectionLimits<String>, tenant: &str) -> Result<(), Problem> {
        let mut place = self.place();
        if matches!(&*place, ListenerState::Proven { tenant: known, .. } if known == tenant) {
            return Ok(());
        }
        let told = |no_seat: LimitReached| no_seat.problem(tenant, "open connections over TCP");
        let seat = tokens.take(&tenant.to_owned(), &self.lost).map_err(told)?;
        *place = ListenerState::Proven { tenant: tenant.to_owned(), _seat: seat };
        Ok(())
    }

    /// Returns when the time to show a good token is over and none was seen.
    async fn proof_deadline(&self) {
        tokio::time::sleep(PROOF_TIME).await;
        if matches!(&*self.place(), ListenerState::Proven { .. }) {
            std::future::pending::<()>().await;
        }
    }
}

impl TcpEndpoint {
    async fn connection(self: Arc<TcpEndpoint>, stream: TcpStream, from: SocketAddr) {
        let lost = Arc::new(Notify::new());
        let Ok(seat) = self.unproven.take(&gate::address_key(from.ip()), &lost) else { return };
        let caller = TokenCaller { place: Mutex::new(ListenerState::Unproven { _seat: seat }), lost };
        tokio::select! {
            () = self.serve_stream(stream, from, &caller) => {}
            () = caller.lost.notified() => tracing::debug!(%from, "a connection was closed for another caller's"),
            () = caller.proof_deadline() => {
                tracing::debug!(%from, "a connection was closed: it showed no good token in time");
            }
        }
    }

    async fn serve_stream(&self, stream: TcpStream, from: SocketAddr, caller: &TokenCaller) {
        // With a poisoned lock no client is let in: without its answer nothing may go out unencrypted.
        let Ok(config) = self.tls.read().map(|tls| tls.clone()) else { return };
        // Answers are small and wanted at once; where that cannot be set they come a little later.
        let _ = stream.set_nodelay(true);
        let socket = stream.as_raw_fd();
        let service = service_fn(move |request| self.answer(request, from.ip(), caller));
        let Some(config) = config else {
            let stream = Progress::new(stream, WRITE_TIME);
            return serve_requests(stream, socket, service, HEADER_TIME, self.stop.clone()).await;
        };
        match tokio::time::timeout(HANDSHAKE_TIME, handshake(stream, config)).await {
            Ok(Ok(Some(stream))) => {
                let stream = Progress::new(stream, WRITE_TIME);
                serve_requests(stream, socket, service, HEADER_TIME, self.stop.clone()).await;
            }
            Ok(Ok(None)) => tracing::debug!(%from, "a request came without TLS, and was told to use https://"),
            // A client that fails at TLS, or needs too long for it, is not answered.
            Ok(Err(error)) => tracing::debug!(%from, %error, "a handshake failed"),
            Err(_) => tracing::debug!(%from, "a handshake took too long"),
        }
    }

    async fn answer(
        &self,
        mut request: Request<Incoming>,
        from: IpAddr,
        caller: &TokenCaller,
    ) -> Result<Response, Infallible> {
        let peer = match self.admit(&request, from, caller).await {
            Ok(peer) => peer,
            Err(problem) => return Ok(Refused(problem).into_response()),
        };
        let looks = gate::is_read(&request);
        if let Some(peer) = &peer {
            request.extensions_mut().insert(Arc::clone(peer));
        }
        // A change that was made is made, and its caller is told. A read that waits ends with its token.
        let Some(peer) = peer.filter(|_| looks) else { return self.routes.call(request).await };
        let gone = || Ok(Refused(gate::token_ended(&name_of(&peer))).into_response());
        tokio::select! {
            response = self.routes.call(request) => if peer.is_valid(wall_us()) { response } else { gone() },
            () = token_ends(&peer) => gone(),
        }
    }

    /// The sender of a request, with a seat for it; `None` for what any caller may read.
    async fn admit<B>(
        &self,
        request: &Request<B>,
        from: IpAddr,
        caller: &TokenCaller,
    ) -> Result<Option<Arc<Peer>>, Problem> {
        let Some(peer) = self.door.gate.admit(request, from, wall_us(), Instant::now())? else { return Ok(None) };
        caller.take_tenant_seat(&self.tokens, &peer.caller.tenant)?;
        self.door.access.grouped(peer).await.map(Some)
    }
}

/// Returns when the token of a caller has expired or was revoked.
async fn token_ends(peer: &Peer) {
    while peer.is_valid(wall_us()) {
        tokio::time::sleep(TOKEN_AGAIN).await;
    }
}

/// The encrypted connection; `None` for a client that spoke plain HTTP, which is told what to use instead.
async fn handshake(stream: TcpStream, config: Arc<ServerConfig>) -> io::Result<Option<TlsStream<TcpStream>>> {
    let mut first = [0];
    stream.peek(&mut first).await?;
    // A TLS handshake begins with the byte 22; a request begins with the name of a method.
    if first[0].is_ascii_uppercase() {
        refuse_plain(stream).await?;
        return Ok(None);
    }
    TlsAcceptor::from(config).accept(stream).await.map(Some)
}

/// Answers a request that came without TLS, and closes the connection.
async fn refuse_plain(mut stream: TcpStream) -> io::Result<()> {
    let problem = Problem::new(Code::BadRequest, "this port speaks TLS, and the request came without it")
        .hint("write https:// instead of http://");
    stream.write_all(&refusal(&problem)).await?;
    stream.shutdown().await?;
    // A connection that is closed with unread bytes is reset, and the answer may be lost with it.
    let mut unread = (&mut stream).take(UNREAD_MAX);
    tokio::io::copy(&mut unread, &mut tokio::io::sink()).await.map(drop)
}

fn name_of(peer: &Peer) -> String {
    peer.caller.token.map_or_else(String::new, |token| token.to_string())
}

/// A whole HTTP response with a problem, for a connection that hyper does not serve; the connection is closed after it.
fn refusal(problem: &Problem) -> Vec<u8> {
    let body = serde_json::to_string(problem).unwrap_or_default();
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {PROBLEM_JSON}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}
