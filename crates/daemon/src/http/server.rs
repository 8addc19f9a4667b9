//! Connections: their peers, how slow they may be, and when they end. How many there may be is in `seats.rs`.

use super::acceptor::Acceptor;
use super::local_rate::{HELD_BACK, Purpose};
use super::progress::Progress;
use super::seats::{AtLimit, ConnectionLimits, Limits};
use super::{App, Refused, gate, router};
use crate::access::{Access, Session};
use crate::credentials::Credentials;
use crate::loop_thread::wall_us;
use axum::Router;
use axum::http::{HeaderValue, Request, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::convert::Infallible;
use std::future::poll_fn;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use sublet_wire::{Code, Problem};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};

/// A header that takes longer, or a connection idle for longer, is closed. (A client that begins its first header in
/// the last moment has as long again for the rest.)
pub(super) const HEADER_TIME: Duration = Duration::from_secs(30);
/// The same for a connection beyond the limits.
const SPARE_HEADER_TIME: Duration = Duration::from_secs(5);
/// Bytes of one header.
const HEADER_BYTES: usize = 16 << 10;
/// A client that takes nothing of its answer for this long is disconnected: longer than the network of a laptop is
/// away.
pub(super) const WRITE_TIME: Duration = Duration::from_secs(30);
/// Connections that begin in a row before open ones go on.
const ACCEPT_MAX: u32 = 16;
/// How often a connection is checked for a client that is gone.
const GONE_AGAIN: Duration = Duration::from_secs(1);

/// All routes, as hyper calls them.
pub(super) type Routes = TowerToHyperService<Router>;

/// What every connection of the socket needs.
struct Socket {
    app: App,
    routes: Routes,
    access: Access,
    users: ConnectionLimits<u32>,
    operators: ConnectionLimits<u32>,
    spare: ConnectionLimits<u32>,
    stop: watch::Receiver<bool>,
}

/// Serves until told to stop, then lets what is under way finish for a while.
pub async fn serve(mut acceptor: Acceptor, app: App, access: Access, limits: Limits, stop: watch::Receiver<bool>) {
    let socket = Arc::new(Socket {
        routes: TowerToHyperService::new(router(app.clone())),
        app,
        access,
        users: ConnectionLimits::new(limits.users, AtLimit::Refuse),
        operators: ConnectionLimits::new(limits.operators, AtLimit::Refuse),
        spare: ConnectionLimits::new(limits.spare, AtLimit::ReplaceOldest),
        stop: stop.clone(),
    });
    let begin = |stream| Arc::clone(&socket).connection(stream);
    accept(|context| acceptor.poll_next(context), begin, stop).await;
}

impl Socket {
    async fn connection(self: Arc<Socket>, stream: UnixStream) {
        // A client that cannot be told from others is not served.
        let Ok(credentials) = Credentials::of(&stream) else { return };
        let (uid, lost) = (credentials.uid, Arc::new(Notify::new()));
        let seats = if self.access.is_operator(&credentials) { &self.operators } else { &self.users };
        let talk = async {
            match seats.take(&uid, &lost) {
                Ok(_seat) => self.serve_stream(stream, credentials).await,
                Err(no_seat) => {
                    let Ok(_seat) = self.spare.take(&uid, &lost) else { return };
                    self.refuse(stream, no_seat.problem(&format!("user {uid}"), "open connections")).await;
                }
            }
        };
        tokio::select! {
            () = talk => {}
            () = lost.notified() => tracing::debug!(uid, "a connection was closed for another user's"),
        }
    }

    async fn serve_stream(&self, stream: UnixStream, credentials: Credentials) {
        let session = Arc::new(Session::new(self.access.clone(), credentials));
        let service =
            service_fn(move |request| answer(request, Arc::clone(&session), self.app.clone(), self.routes.clone()));
        let socket = stream.as_raw_fd();
        serve_requests(Progress::new(stream, WRITE_TIME), socket, service, HEADER_TIME, self.stop.clone()).await;
    }

    /// Answers health checks, and everything else with the problem.
    async fn refuse(&self, stream: UnixStream, problem: Problem) {
        let service = service_fn(|request: Request<Incoming>| {
            let (routes, problem) = (self.routes.clone(), problem.clone());
            async move {
                let mut response = match gate::is_health(&request) {
                    true => routes.call(request).await?,
                    false => Refused(problem).into_response(),
                };
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                Ok::<_, Infallible>(response)
            }
        });
        let socket = stream.as_raw_fd();
        serve_requests(Progress::new(stream, WRITE_TIME), socket, service, SPARE_HEADER_TIME, self.stop.clone()).await;
    }
}

/// Lets connections begin until told to stop, then lets those under way finish for a while.
pub(super) async fn accept<A, C>(
    mut next: impl FnMut(&mut Context<'_>) -> Poll<std::io::Result<A>>,
    mut begin: impl FnMut(A) -> C,
    mut stop: watch::Receiver<bool>,
) where
    C: Future<Output = ()> + Send + 'static,
{
    let mut tasks = tokio::task::JoinSet::new();
    let mut accepted_in_a_row = 0;
    loop {
        let accepted = tokio::select! {
            accepted = poll_fn(&mut next) => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        while tasks.try_join_next().is_some() {}
        match accepted {
            Ok(accepted) => drop(tasks.spawn(begin(accepted))),
            Err(error) => {
                // Out of descriptors, most likely: others will close.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        accepted_in_a_row += 1;
        if accepted_in_a_row == ACCEPT_MAX {
            accepted_in_a_row = 0;
            tokio::task::yield_now().await;
        }
    }
    let finish = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(Duration::from_secs(5), finish).await.is_err() {
        tracing::warn!("open connections were closed");
    }
}

/// Answers on one connection until it ends. The stream itself gives up on a client that takes no answer. A client that
/// closed its sending half is answered; one that is gone is noticed by what the kernel says of `socket`, which is the
/// stream's own.
pub(super) async fn serve_requests<S, T>(
    stream: T,
    socket: RawFd,
    service: S,
    header_time: Duration,
    mut stop: watch::Receiver<bool>,
) where
    T: AsyncRead + AsyncWrite + Unpin,
    S: hyper::service::HttpService<hyper::body::Incoming, ResBody = axum::body::Body>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_time)
        .max_buf_size(HEADER_BYTES)
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    // SAFETY: `connection` has the stream whose descriptor this is, and is dropped after whatever uses this.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    let stopped = tokio::select! {
        // A broken connection is the client's affair.
        _ = connection.as_mut() => false,
        () = client_closed(socket) => false,
        _ = async { drop(stop.wait_for(|stop| *stop).await) } => true,
    };
    if stopped {
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            _ = connection => {}
            () = client_closed(socket) => {}
        }
    }
}

/// Returns when the client of a socket has closed it, or reset the connection. While a request is under way hyper does
/// not read, so it would notice that only when it writes. Over TCP a closed connection looks like one whose sending
/// half is closed, until something is written; long polls end within 60 s, and event streams write every 15 s.
async fn client_closed(socket: BorrowedFd<'_>) {
    loop {
        tokio::time::sleep(GONE_AGAIN).await;
        // The end of both halves, and errors, are reported without a request.
        let mut watched = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
        if poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|changed| changed > 0) {
            return;
        }
    }
}

/// Adds the sender of this moment to a request, and has it answered.
async fn answer(
    mut request: Request<Incoming>,
    session: Arc<Session>,
    app: App,
    routes: Routes,
) -> Result<Response, Infallible> {
    if gate::is_public(&request) {
        return routes.call(request).await;
    }
    let peer = match session.peer().await {
        Ok(peer) => peer,
        Err(problem) => return Ok(Refused(problem).into_response()),
    };
    if let Err(problem) = app.local_rate.admit(&peer.caller, Purpose::of(&request), Instant::now()) {
        tokio::time::sleep(HELD_BACK).await;
        return Ok(Refused(problem).into_response());
    }
    let looks = gate::is_read(&request);
    let _turn = match peer.caller.operator || gate::is_long_poll(&request) {
        true => None,
        false => app.calls.take(&peer.caller.tenant).await,
    };
    request.extensions_mut().insert(Arc::clone(&peer));
    let response = routes.call(request).await?;
    // A read may have waited for a minute, and its caller is no operator any more.
    if looks && !peer.is_valid(wall_us()) {
        let detail = "you were an operator when you asked, and are none now";
        return Ok(Refused(Problem::new(Code::Denied, detail)).into_response());
    }
    Ok(response)
}
