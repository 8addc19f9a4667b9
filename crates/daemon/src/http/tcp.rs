//! The TCP listener: the same routes as on the socket, behind the [gate](super::gate).
//!
//! Its seats are its own: however many strangers connect, the host's own socket has room.

use super::gate::{self, Gate};
use super::lane::{After, write_answer};
use super::progress::Progress;
use super::server::{Counts, Limits, Seat, WRITE_TIME, accept, turn_away};
use super::ways::Ways;
use super::{App, Refused};
use crate::access::Access;
use crate::looper::wall_us;
use crate::mail::Reply;
use crate::peer::Peer;
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant, SystemTime};
use sublet_wire::{Code, Problem};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

/// A handshake takes two turns; who needs longer does not want to speak.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// At most this much of a request without TLS is read after it was answered.
const UNREAD_MAX: u64 = 1 << 20;

/// Bounds on connections over TCP.
pub const LIMITS: Limits = Limits {
    connections: 1_024,
    // A building behind one address is some dozens; one program that leaks connections is more.
    per_user: 256,
    header_time: Duration::from_secs(30),
    write_time: WRITE_TIME,
    header_bytes: 16 << 10,
};

/// How connections are made private; `None`: they are not. Read anew on reload.
pub type Tls = Arc<RwLock<Option<Arc<ServerConfig>>>>;

/// Whom the listener asks who somebody is.
#[derive(Clone, Debug)]
pub struct Door {
    /// Knows tokens.
    pub gate: Arc<Gate>,
    /// Knows the groups of users.
    pub access: Access,
}

impl Door {
    async fn admit<B>(&self, request: &Request<B>, from: IpAddr) -> Result<Option<Arc<Peer>>, Problem> {
        match self.gate.admit(request, from, wall_us(), Instant::now())? {
            Some(peer) => self.access.grouped(peer).await.map(Some),
            None => Ok(None),
        }
    }
}

/// Serves until told to stop, then lets what is under way finish for a while.
pub async fn serve(listener: TcpListener, app: App, door: Door, tls: Tls, stop: watch::Receiver<bool>) {
    let ways = Ways::new(app);
    let counts = Arc::new(Counts::default());
    let begin = |(stream, from): (TcpStream, SocketAddr)| {
        // A lock that is poisoned lets nobody in: without its answer nothing may go out in clear.
        let config = tls.read().ok()?.clone();
        let Some(seat) = Seat::take(&counts, gate::whole(from.ip()), LIMITS) else {
            if config.is_none() {
                tokio::spawn(async move {
                    if stream.writable().await.is_ok() {
                        turn_away(|bytes| stream.try_write(bytes));
                    }
                });
            }
            return None;
        };
        let (ways, door, stop) = (ways.clone(), door.clone(), stop.clone());
        Some(async move {
            connection(stream, from, config, ways, door, stop).await;
            drop(seat);
        })
    };
    accept(|context| listener.poll_accept(context), begin, stop.clone()).await;
}

async fn connection(
    stream: TcpStream,
    from: SocketAddr,
    config: Option<Arc<ServerConfig>>,
    ways: Ways,
    door: Door,
    stop: watch::Receiver<bool>,
) {
    // Answers are small and wanted at once; where that cannot be set they come a little later.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| answer(request, from.ip(), door.clone(), ways.clone()));
    let Some(config) = config else {
        return super::server::converse(Progress::new(stream, LIMITS.write_time), service, LIMITS, stop).await;
    };
    match tokio::time::timeout(HANDSHAKE_TIME, handshake(stream, config)).await {
        Ok(Ok(Some(stream))) => {
            super::server::converse(Progress::new(stream, LIMITS.write_time), service, LIMITS, stop).await;
        }
        Ok(Ok(None)) => tracing::debug!(%from, "a request came without TLS, and was told to use https://"),
        // A client that fails at TLS, or needs too long for it, is not answered.
        Ok(Err(error)) => tracing::debug!(%from, %error, "a handshake failed"),
        Err(_) => tracing::debug!(%from, "a handshake took too long"),
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
    let date = httpdate::fmt_http_date(SystemTime::now());
    let mut answer = Vec::new();
    write_answer(&mut answer, &Reply::problem(&problem), After::Close, &date);
    stream.write_all(&answer).await?;
    stream.shutdown().await?;
    // A connection that is closed with unread bytes is reset, and the answer may be lost with it.
    let mut unread = (&mut stream).take(UNREAD_MAX);
    tokio::io::copy(&mut unread, &mut tokio::io::sink()).await.map(drop)
}

async fn answer(mut request: Request<Incoming>, from: IpAddr, door: Door, ways: Ways) -> Result<Response, Infallible> {
    let peer = match door.admit(&request, from).await {
        Ok(peer) => peer,
        Err(problem) => return Ok(Refused(problem).into_response()),
    };
    let looks = gate::looks(&request);
    if let Some(peer) = &peer {
        request.extensions_mut().insert(Arc::clone(peer));
    }
    let response = ways.answer(request).await?;
    // A look may have waited for a minute, and what it waited for is not its any more. What was
    // done is done, and whoever did it is told.
    Ok(match peer.filter(|peer| looks && !peer.still_good(wall_us())) {
        Some(peer) => Refused(gate::gone(&name_of(&peer))).into_response(),
        None => response,
    })
}

fn name_of(peer: &Peer) -> String {
    peer.caller.token.map_or_else(String::new, |token| token.to_string())
}
