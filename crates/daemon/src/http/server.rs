//! Connections: who they are from, how many, how slow they may be.

use super::timer::OneTimer;
use super::ways::Ways;
use super::worded::Worded;
use super::{App, Refused, gate, lane};
use crate::access::{Access, Session};
use crate::credentials::Credentials;
use crate::looper::wall_us;
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use sublet_wire::{Code, Problem};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

/// Bounds on connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// In all.
    pub connections: usize,
    /// Of one user, or one address, so that one cannot shut out the others.
    pub per_user: usize,
    /// A header that takes longer, or a connection idle for longer, is closed. (Whoever begins its first header in the
    /// last moment has as long again for the rest.)
    pub header_time: Duration,
    /// A client that takes nothing of its answer for so long is hung up on.
    pub write_time: Duration,
    /// Bytes of one header.
    pub header_bytes: usize,
}

/// Longer than a laptop's network is away for, and shorter than anybody waits for a seat.
pub(super) const WRITE_TIME: Duration = Duration::from_secs(30);

/// When to come again if there were too many, in seconds.
const BUSY_S: u64 = 5;

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 4_096,
            per_user: 2_048,
            header_time: Duration::from_secs(30),
            write_time: WRITE_TIME,
            header_bytes: 16 << 10,
        }
    }
}

/// Serves until told to stop, then lets what is under way finish for a while.
pub async fn serve(listener: UnixListener, app: App, access: Access, limits: Limits, stop: watch::Receiver<bool>) {
    let ways = Ways::new(app);
    let counts = Arc::new(Counts::default());
    let begin = |(stream, _): (UnixStream, _)| {
        let uid = stream.peer_cred().ok()?.uid();
        let Some(seat) = Seat::take(&counts, uid, limits) else {
            tokio::spawn(async move {
                if stream.writable().await.is_ok() {
                    turn_away(|bytes| stream.try_write(bytes));
                }
            });
            return None;
        };
        let (ways, access, stop) = (ways.clone(), access.clone(), stop.clone());
        Some(async move {
            // Whoever cannot be told from others is not served.
            let Ok(credentials) = Credentials::of(&stream) else { return };
            let session = Arc::new(Session::new(access, credentials));
            let caller = lane::Caller { app: ways.app(), session: &session };
            let Some(stream) = lane::drive(stream, limits, stop.clone(), &caller).await else { return };
            let service = service_fn(move |request| answer(request, Arc::clone(&session), ways.clone()));
            converse(stream, service, limits, stop).await;
            drop(seat);
        })
    };
    accept(|context| listener.poll_accept(context), begin, stop.clone()).await;
}

/// Lets connections begin until told to stop, then lets those under way finish for a while.
pub(super) async fn accept<A, C>(
    mut next: impl FnMut(&mut Context<'_>) -> Poll<std::io::Result<A>>,
    mut begin: impl FnMut(A) -> Option<C>,
    mut stop: watch::Receiver<bool>,
) where
    C: Future<Output = ()> + Send + 'static,
{
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = poll_fn(&mut next) => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        while tasks.try_join_next().is_some() {}
        match accepted {
            Ok(accepted) => {
                if let Some(connection) = begin(accepted) {
                    tasks.spawn(connection);
                }
            }
            Err(error) => {
                // Out of descriptors, most likely: others will close.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    let finish = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(Duration::from_secs(5), finish).await.is_err() {
        tracing::warn!("some connections were still open; they are closed now");
    }
}

/// Answers on one connection until it ends. The stream itself gives up on whoever takes no answer.
pub(super) async fn converse<S, T>(stream: T, service: S, limits: Limits, mut stop: watch::Receiver<bool>)
where
    T: AsyncRead + AsyncWrite + Unpin,
    S: hyper::service::HttpService<hyper::body::Incoming, ResBody = axum::body::Body>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let connection = http1::Builder::new()
        .timer(OneTimer::default())
        .header_read_timeout(limits.header_time)
        .max_buf_size(limits.header_bytes)
        .serve_connection(TokioIo::new(Worded::new(stream)), service);
    let mut connection = std::pin::pin!(connection);
    let stopped = tokio::select! {
        // A broken connection is the client's affair.
        _ = connection.as_mut() => false,
        _ = async { drop(stop.wait_for(|stop| *stop).await) } => true,
    };
    if stopped {
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}

/// Writes on a request who sent it, as of now, and has it answered.
async fn answer(mut request: Request<Incoming>, session: Arc<Session>, ways: Ways) -> Result<Response, Infallible> {
    if gate::is_public(&request) {
        return ways.answer(request).await;
    }
    let peer = match session.peer().await {
        Ok(peer) => peer,
        Err(problem) => return Ok(Refused(problem).into_response()),
    };
    let looks = gate::looks(&request);
    request.extensions_mut().insert(Arc::clone(&peer));
    let response = ways.answer(request).await?;
    // A look may have waited for a minute, and who looked is no operator any more.
    if looks && !peer.still_good(wall_us()) {
        let detail = "you were an operator when you asked, and are none now";
        return Ok(Refused(Problem::new(Code::Denied, detail)).into_response());
    }
    Ok(response)
}

/// Says that there are too many, and hangs up.
pub(super) fn turn_away(write: impl FnOnce(&[u8]) -> std::io::Result<usize>) {
    let problem = Problem::new(Code::TooBusy, "too many connections are open").retry_after(BUSY_S);
    let body = serde_json::to_string(&problem).unwrap_or_default();
    let answer = format!(
        "HTTP/1.1 {} Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: {BUSY_S}\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        problem.status,
        body.len()
    );
    // It fits into the buffer of a new connection, or nobody wants it.
    let _ = write(answer.as_bytes());
}

/// Who is connected.
pub(super) struct Counts<K>(Mutex<(usize, HashMap<K, usize>)>);

impl<K> Default for Counts<K> {
    fn default() -> Counts<K> {
        Counts(Mutex::new((0, HashMap::new())))
    }
}

/// A place among the connections; given back when it is dropped.
pub(super) struct Seat<K: Hash + Eq> {
    counts: Arc<Counts<K>>,
    who: K,
}

impl<K: Hash + Eq + Copy> Seat<K> {
    pub(super) fn take(counts: &Arc<Counts<K>>, who: K, limits: Limits) -> Option<Seat<K>> {
        let mut held = counts.0.lock().ok()?;
        let of_user = held.1.get(&who).copied().unwrap_or(0);
        if held.0 >= limits.connections || of_user >= limits.per_user {
            return None;
        }
        held.0 += 1;
        held.1.insert(who, of_user + 1);
        Some(Seat { counts: Arc::clone(counts), who })
    }
}

impl<K: Hash + Eq> Drop for Seat<K> {
    fn drop(&mut self) {
        if let Ok(mut held) = self.counts.0.lock() {
            held.0 -= 1;
            if let Some(of_user) = held.1.get_mut(&self.who) {
                *of_user -= 1;
                if *of_user == 0 {
                    held.1.remove(&self.who);
                }
            }
        }
    }
}
