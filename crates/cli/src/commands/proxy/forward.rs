//! Passes traffic through the proxy: HTTP/1.1 requests, each of them checked, or whole connections.
//!
//! Of a request that needs the GPU only the head is read; its body stays with the client until the request may pass.
//! All other requests are passed on at once, unless the driver parked the service and they may change something; they do
//! not count as use of the service. Requests and responses are not changed,
//! except for headers that are meant for one connection only (RFC 9110, 7.6.1). Each request has its own connection to
//! the service, so none is ever sent on a connection that the service has closed.
//!
//! Absent: TLS, HTTP/2, caches, other services to choose from, and any header of the proxy's own.

use super::leases::ProxyRefusal;
use super::waiting::{UnderWay, WaitingRequests};
use super::wake::{Need, WakeList};
use http_body_util::{Either, Full};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, TRANSFER_ENCODING,
    UPGRADE,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri, Version, client, server, upgrade};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt;
use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use sublet_wire::PROBLEM_JSON;
use tokio::io::{AsyncWriteExt, Interest, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

/// The time limit for a request head, and for an idle kept-alive connection.
const HEAD_WITHIN: Duration = Duration::from_secs(60);
/// More than a cookie and a token together; the usual limit of servers.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// The most bytes that are read of a waiting request.
const UNREAD_MAX: usize = 64 << 10;
/// The time limit for a connection to the service, which is on this host or near it.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// The pause between two tries to reach a service that has just got its lease and may be starting.
const CONNECT_AGAIN: Duration = Duration::from_millis(100);
/// A peer that has vanished, or takes no data for this time, is disconnected.
pub const SILENT_MAX: Duration = Duration::from_secs(60);
/// After this time of silence the kernel probes a peer (TCP keepalive), and again after each such interval.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// At most this many connections over the limit are answered at a time, each within `OUTSIDE_WITHIN`.
const OUTSIDE_MAX: usize = 64;
const OUTSIDE_WITHIN: Duration = Duration::from_secs(1);
/// The time that requests under way get when the proxy stops.
const FINISH_WITHIN: Duration = Duration::from_secs(10);
/// The code of a refusal because the service could not be reached.
const NO_SERVICE: &str = "no_service";
/// Headers that concern a single connection.
const OF_ONE_CONNECTION: [HeaderName; 3] =
    [HeaderName::from_static("keep-alive"), HeaderName::from_static("proxy-connection"), UPGRADE];

/// How traffic is passed on.
#[derive(Clone, Debug)]
pub struct ProxyRoute {
    /// Decides whether a request may pass.
    pub requests: Arc<WaitingRequests>,
    /// The address of the service.
    pub to: Arc<str>,
    /// Which requests need the GPU.
    pub wake: Arc<WakeList>,
    /// How long a request that needs the GPU may wait.
    pub wait: Duration,
    /// Whole connections are passed on, without reading HTTP.
    pub tcp: bool,
    /// The most connections at a time.
    pub connections: usize,
    /// How long the next piece of a request may take.
    pub patience: Duration,
}

type Answer = Response<Either<Counted, Full<Bytes>>>;

/// The body of a response. A request that needs the GPU counts as under way until all of it is sent.
pub struct Counted {
    body: Incoming,
    _under_way: Option<UnderWay>,
}

impl Body for Counted {
    type Data = Bytes;
    type Error = hyper::Error;
    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }
    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a request, with a time limit for a client that stops in the middle of it.
struct TimedBody {
    body: Incoming,
    patience: Duration,
    /// Runs while the client is awaited, and not while the service takes nothing.
    until: Option<Pin<Box<Sleep>>>,
}

impl Body for TimedBody {
    type Data = Bytes;
    type Error = io::Error;
    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.until = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(io::Error::other)));
        }
        let patience = self.patience;
        let until = self.until.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        match until.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into()))),
            Poll::Pending => Poll::Pending,
        }
    }
    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Accepts connections until told to stop.
pub async fn serve(listener: TcpListener, way: ProxyRoute, stop: impl Future<Output = ()>) {
    let seats = Arc::new(Semaphore::new(way.connections));
    let outside = Arc::new(Semaphore::new(OUTSIDE_MAX));
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.as_mut() => break,
        };
        match accepted {
            Ok((stream, _)) => match Arc::clone(&seats).try_acquire_owned() {
                Ok(seat) => drop(tokio::spawn(way.clone().receive(stream, seat))),
                // Over the limit: the client is told so, unless too many others are being told already.
                Err(_) => {
                    let seat = Arc::clone(&outside).try_acquire_owned().ok().filter(|_| !way.tcp);
                    drop(seat.map(|seat| tokio::spawn(turn_away(stream, seat))));
                }
            },
            // Most likely the process is out of file descriptors, and other connections will close.
            Err(error) => {
                eprintln!("a connection could not be accepted: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    // All permits are free once every connection has ended.
    let everybody = seats.acquire_many(u32::try_from(way.connections).unwrap_or(u32::MAX));
    let _ = tokio::time::timeout(FINISH_WITHIN, everybody).await;
}

/// Answers a connection over the limit with 503, and closes it.
async fn turn_away(mut stream: TcpStream, _seat: OwnedSemaphorePermit) {
    let refusal = ProxyRefusal::new(503, "too_busy", "the proxy has the most connections that it may have").retry(1);
    let body = body(&refusal);
    let head = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n";
    let text = format!("{head}connection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    let told = async {
        stream.write_all(&[text.as_bytes(), &body].concat()).await?;
        stream.shutdown().await?;
        // Unread input would reset the connection, and the client would lose the answer.
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
    };
    // The client may be gone, and is not awaited.
    let _ = tokio::time::timeout(OUTSIDE_WITHIN, told).await;
}

impl ProxyRoute {
    async fn receive(self, stream: TcpStream, seat: OwnedSemaphorePermit) {
        // If this fails, a vanished peer is noticed late.
        let _ = bound(&stream);
        if self.tcp {
            return self.tunnel(stream, seat).await;
        }
        let seat = Arc::new(seat);
        let service = service_fn(move |request| {
            let (way, seat) = (self.clone(), Arc::clone(&seat));
            async move { Ok::<Answer, Infallible>(way.answer(request, seat).await.unwrap_or_else(|no| told(&no))) }
        });
        let watched = second(&stream);
        // A client may close its sending side and still expect a response.
        let connection = server::conn::http1::Builder::new()
            .half_close(true)
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_WITHIN)
            .max_header_size(HEAD_BYTES_MAX)
            .max_buf_size(UNREAD_MAX)
            .preserve_header_case(true)
            .auto_date_header(false)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        // An error of the connection is ignored: it concerns only the client.
        tokio::select! {
            _ = connection => {}
            () = broken(watched) => {}
        }
    }

    /// Passes a whole connection on, once it may pass. If it may not, it is closed, because there is no way to tell the
    /// client why.
    async fn tunnel(self, mut stream: TcpStream, _seat: OwnedSemaphorePermit) {
        let Ok((mut service, under_way)) = self.open().await else { return };
        // A tunnel may be silent for days, so it does not count as use of the service.
        drop(under_way);
        // Either side may hang up.
        let _ = copy_bidirectional(&mut stream, &mut service).await;
    }

    /// A connection to the service, once a request may be sent on it, with the count of that request.
    async fn open(&self) -> Result<(TcpStream, UnderWay), ProxyRefusal> {
        let until = Instant::now() + self.wait;
        loop {
            let (_asks, waited) = self.requests.enter(until).await?;
            let stream = self.connect(if waited { until } else { Instant::now() }).await?;
            // Connecting takes some time, and longer if the service is starting: the lease may be parked by now.
            if self.requests.verdict().is_ok() {
                return Ok((stream, _asks));
            }
        }
    }

    /// Connects to the service. Until `until` it tries again, because a service that had to wait for its lease may be
    /// starting.
    async fn connect(&self, until: Instant) -> Result<TcpStream, ProxyRefusal> {
        loop {
            let error = match tokio::time::timeout(CONNECT_WITHIN, TcpStream::connect(&*self.to)).await {
                Ok(Ok(stream)) => {
                    let _ = bound(&stream);
                    return Ok(stream);
                }
                Ok(Err(error)) => error,
                Err(_) => io::ErrorKind::TimedOut.into(),
            };
            if Instant::now() + CONNECT_AGAIN >= until {
                let hint = "is the service running, and is it there that it listens?".to_owned();
                return Err(self.no_service(&error.to_string()).hint(Some(hint)));
            }
            tokio::time::sleep(CONNECT_AGAIN).await;
        }
    }

    fn no_service(&self, why: &str) -> ProxyRefusal {
        ProxyRefusal::new(502, NO_SERVICE, format!("the service at {} did not answer: {why}", self.to))
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        seat: Arc<OwnedSemaphorePermit>,
    ) -> Result<Answer, ProxyRefusal> {
        if request.method() == Method::CONNECT {
            return Err(ProxyRefusal::new(405, "bad_method", "this proxy forwards to one service only"));
        }
        match self.wake.need(request.method(), request.uri().path()) {
            Need::Gpu => {
                let (stream, under_way) = self.open().await?;
                self.exchange(request, stream, seat, Some(under_way)).await
            }
            need => self.answer_poll(request, need, seat).await,
        }
    }

    /// Passes on a request that does not need the GPU. While the service has no GPU, it may not answer or not be
    /// running.
    async fn answer_poll(
        &self,
        request: Request<Incoming>,
        need: Need,
        seat: Arc<OwnedSemaphorePermit>,
    ) -> Result<Answer, ProxyRefusal> {
        self.requests.admit_poll(need).await?;
        let answer = async {
            let stream = self.connect(Instant::now()).await?;
            self.exchange(request, stream, seat, None).await
        };
        let given_up = async {
            match need {
                Need::Read => self.requests.give_up().await,
                // The service may have begun to act on the request, so the client gets the real result.
                Need::Gpu | Need::Change => std::future::pending().await,
            }
        };
        let answer = tokio::select! {
            answer = answer => answer,
            refusal = given_up => Err(refusal),
        };
        answer.map_err(|refusal| match self.requests.verdict() {
            Err(not_active) if refusal.code == NO_SERVICE => not_active,
            _ => refusal,
        })
    }

    /// Sends a request on this connection to the service, and passes the response back.
    async fn exchange(
        &self,
        mut request: Request<Incoming>,
        stream: TcpStream,
        seat: Arc<OwnedSemaphorePermit>,
        under_way: Option<UnderWay>,
    ) -> Result<Answer, ProxyRefusal> {
        let broken = |error: hyper::Error| self.no_service(&error.to_string());
        let (mut sender, connection) = client::conn::http1::Builder::new()
            .preserve_header_case(true)
            .max_header_size(HEAD_BYTES_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(broken)?;
        // This task ends with the response, or when the client's connection ends.
        tokio::spawn(connection.with_upgrades());
        let from = upgrades(request.headers()).then(|| upgrade::on(&mut request));
        let patience = self.patience;
        let request =
            passed_on(request, from.is_some(), &self.to).map(|body| TimedBody { body, patience, until: None });
        let sent = sender.send_request(request).await;
        let mut response = sent.map_err(|error| match error.is_user() {
            true => ProxyRefusal::new(408, "too_slow", "the rest of the request did not come"),
            false => broken(error),
        })?;
        let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if let Some(from) = from.filter(|_| switched) {
            let to = upgrade::on(&mut response);
            tokio::spawn(async move {
                if let (Ok(from), Ok(to)) = (from.await, to.await) {
                    // Either side may hang up.
                    let _ = copy_bidirectional(&mut TokioIo::new(from), &mut TokioIo::new(to)).await;
                }
                drop(seat);
            });
        } else {
            strip(response.headers_mut());
            // `Transfer-Encoding` takes precedence (RFC 9112, 6.3); a response with both could not be passed on.
            if response.headers().contains_key(TRANSFER_ENCODING) {
                response.headers_mut().remove(CONTENT_LENGTH);
            }
        }
        // A response in an older version would close the client's connection without need.
        *response.version_mut() = Version::HTTP_11;
        Ok(response.map(|body| Either::Left(Counted { body, _under_way: under_way })))
    }
}

/// A second handle of the same connection, to be watched.
fn second(stream: &TcpStream) -> io::Result<TcpStream> {
    TcpStream::from_std(stream.as_fd().try_clone_to_owned()?.into())
}

/// Returns when a client has gone for good. At first, a closed connection looks like a client that only sends nothing
/// more. After about 60 s the client's host forgets the connection and answers a keepalive probe with an error.
async fn broken(stream: io::Result<TcpStream>) {
    if let Ok(stream) = stream {
        while !stream.ready(Interest::ERROR).await.is_ok_and(|ready| ready.is_error()) {}
    } else {
        std::future::pending().await
    }
}

/// Sets options of a connection to either side: small writes are sent at once, and a vanished peer is noticed.
fn bound(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = stream.as_fd();
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, SILENT_MAX)?;
    sockopt::set_tcp_keepintvl(socket, ASK_EVERY)?;
    sockopt::set_tcp_user_timeout(socket, SILENT_MAX.as_millis() as u32)?;
    Ok(())
}

/// Whether a request asks for another protocol, such as WebSocket. HTTP/2 does not count, because its requests would
/// pass unchecked.
fn upgrades(headers: &HeaderMap) -> bool {
    let wanted: Vec<&[u8]> = headers.get_all(UPGRADE).iter().map(HeaderValue::as_bytes).collect();
    let is_http = wanted.iter().any(|wanted| wanted.to_ascii_lowercase().windows(3).any(|part| part == b"h2c"));
    !wanted.is_empty() && !is_http && words(headers).any(|word| word.eq_ignore_ascii_case("upgrade"))
}

fn words(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(CONNECTION).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim)
}

/// The request as it is sent to the service.
fn passed_on(mut request: Request<Incoming>, upgrades: bool, to: &str) -> Request<Incoming> {
    // The form `GET http://host/path`, which clients send to proxies.
    if let Some(target) = request.uri().path_and_query().filter(|_| request.uri().authority().is_some()) {
        *request.uri_mut() = Uri::from(target.clone());
    }
    *request.version_mut() = Version::HTTP_11;
    // HTTP/1.0 has no `Host`, and services refuse an HTTP/1.1 request without one.
    if !request.headers().contains_key(HOST)
        && let Ok(to) = HeaderValue::from_str(to)
    {
        request.headers_mut().insert(HOST, to);
    }
    if !upgrades {
        strip(request.headers_mut());
    }
    request
}

fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = words(headers).filter_map(|word| word.parse().ok()).collect();
    // Headers that describe the length of the body are kept, even if `Connection` names them.
    let framing = |name: &HeaderName| matches!(name.as_str(), "transfer-encoding" | "content-length" | "host");
    for name in named.iter().filter(|name| !framing(name)).chain(&OF_ONE_CONNECTION) {
        headers.remove(name);
    }
    headers.remove(CONNECTION);
}

fn body(refusal: &ProxyRefusal) -> Vec<u8> {
    serde_json::to_vec(refusal).unwrap_or_default()
}

fn told(refusal: &ProxyRefusal) -> Answer {
    let mut response = Response::new(Either::Right(Full::from(body(refusal))));
    *response.status_mut() = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    if let Some(after) = refusal.retry_after_s {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(after));
    }
    response
}

#[cfg(test)]
mod tests;
