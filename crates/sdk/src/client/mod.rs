//! The daemon's API as blocking calls, over its Unix socket or, with a token, over TCP.
//!
//! Every POST and DELETE carries an Idempotency-Key, so it is sent again with the same key if the daemon restarts
//! during the call. There is no async runtime here, and each call has its own connection: a call starts at almost no
//! cost, and a program that waits for a lease needs no runtime.
//!
//! Absent on purpose: typed calls for each route. Callers name the route and the type of the answer.

pub mod http;
#[cfg(feature = "remote")]
mod remote;
pub mod sockets;

use http::{Content, Request, Response};
#[cfg(feature = "remote")]
use remote::RemoteDaemon;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sockets::SocketCandidates;
use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use sublet_wire::{Code, Lease, LeaseRequest, LeaseState, Problem};

/// The daemon answers in milliseconds, or in seconds if the disk stalls.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// How much longer than requested a long poll may take.
const POLL_SLACK: Duration = Duration::from_secs(15);
/// Enough time to stop and start a daemon.
pub const RESTART: Duration = Duration::from_secs(30);
/// The first pause between two tries; each later one is twice as long, up to `LONGEST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A connection point of one daemon.
#[derive(Clone, Debug)]
pub struct DaemonClient(Where);

#[derive(Clone, Debug)]
enum Where {
    Here {
        socket: PathBuf,
        /// The connection that `open` made to test the socket. The first call uses it.
        first: Arc<Mutex<Option<FirstConnection>>>,
    },
    #[cfg(feature = "remote")]
    Elsewhere(Arc<RemoteDaemon>),
}

/// A connection, and the process that made it: the daemon takes every call on it for one of that process.
#[derive(Debug)]
struct FirstConnection {
    stream: UnixStream,
    pid: u32,
}

/// The reason why no connection to a daemon could be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectError {
    /// What kind of failure it is, for programs.
    pub kind: ConnectFailure,
    /// What happened.
    pub message: String,
    /// What to do next, if anything is known to help.
    pub hint: Option<String>,
}

/// The kinds of [`ConnectError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectFailure {
    /// The address or the token is not what it should be.
    Usage,
    /// The user may not use this daemon.
    Denied,
    /// No daemon answers there.
    NoDaemon,
}

impl ConnectError {
    fn new(kind: ConnectFailure, message: impl Into<String>) -> ConnectError {
        ConnectError { kind, message: message.into(), hint: None }
    }

    fn hint(mut self, hint: impl Into<String>) -> ConnectError {
        self.hint = Some(hint.into());
        self
    }

    /// The error when no daemon listens on the socket.
    pub fn no_daemon(socket: &Path) -> ConnectError {
        ConnectError::new(ConnectFailure::NoDaemon, format!("no daemon answers at {}", socket.display()))
            .hint("start one with `sublet serve`, or `cargo xtask up` in a checkout")
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConnectError {}

/// The reason why a call failed.
#[derive(Debug)]
pub enum CallError {
    /// No daemon listens there, or it stopped during the call.
    Gone(io::Error),
    /// The daemon refused the request.
    Refused(Problem),
    /// The response does not follow this API.
    Senseless(String),
}

/// The condition that ends a long poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollUntil {
    /// The lease does not wait any more.
    Granted,
    /// The lease differs from what the caller knows, or is ending.
    Changed {
        /// The state that the caller knows.
        known: LeaseState,
        /// The caller knows that the lease ends soon.
        told: bool,
        /// The caller knows that the program uses more memory than its lease is for.
        over: bool,
    },
}

impl DaemonClient {
    /// Finds the daemon on this host: at the given socket, or at the first of the usual sockets where one listens.
    pub fn open(socket: Option<&Path>) -> Result<DaemonClient, ConnectError> {
        let candidates = SocketCandidates::find(socket);
        let mut denied = None;
        for socket in candidates.paths() {
            match UnixStream::connect(socket) {
                Ok(stream) => return Ok(DaemonClient::here(sockets::absolute(socket), Some(stream))),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => denied = denied.or(Some(socket)),
                Err(_) => {}
            }
        }
        Err(match denied {
            Some(socket) => not_allowed(socket),
            None => no_daemon_at(&candidates),
        })
    }

    /// The daemon at an address such as `https://gpu1:7474`, with the token from the environment.
    #[cfg(feature = "remote")]
    pub fn remote(url: &str) -> Result<DaemonClient, ConnectError> {
        RemoteDaemon::at(url).map(|remote| DaemonClient(Where::Elsewhere(Arc::new(remote))))
    }

    /// The daemon at a socket. Nothing is tested: the first call fails if no daemon listens there.
    pub fn at(socket: &Path) -> DaemonClient {
        DaemonClient::here(sockets::absolute(socket), None)
    }

    fn here(socket: PathBuf, first: Option<UnixStream>) -> DaemonClient {
        let first = first.map(|stream| FirstConnection { stream, pid: std::process::id() });
        DaemonClient(Where::Here { socket, first: Arc::new(Mutex::new(first)) })
    }

    /// The absolute path of the daemon's socket; `None` if the daemon is on another host.
    pub fn socket(&self) -> Option<&Path> {
        match &self.0 {
            Where::Here { socket, .. } => Some(socket),
            #[cfg(feature = "remote")]
            Where::Elsewhere(_) => None,
        }
    }

    /// The socket or address of the daemon, as text.
    pub fn place(&self) -> String {
        match &self.0 {
            Where::Here { socket, .. } => socket.display().to_string(),
            #[cfg(feature = "remote")]
            Where::Elsewhere(remote) => remote.url().to_owned(),
        }
    }

    /// What to tell the user if a call got no answer.
    pub fn silence(&self, error: &io::Error) -> ConnectError {
        if is_timeout(error) {
            let waited = sublet_wire::span::show(ANSWER_WITHIN.as_secs_f64());
            let message = format!("{} did not answer within {waited}", self.place());
            return ConnectError::new(ConnectFailure::NoDaemon, message)
                .hint("look at the daemon's log; its disk may be stalled");
        }
        match &self.0 {
            Where::Here { socket, .. } => ConnectError::no_daemon(socket),
            #[cfg(feature = "remote")]
            Where::Elsewhere(remote) => remote.unreachable(error),
        }
    }

    /// Sends a GET for a path and query.
    pub fn get<T: DeserializeOwned>(&self, target: &str) -> Result<T, CallError> {
        self.call(&self.request("GET", target, None, None), ANSWER_WITHIN).and_then(decode)
    }

    /// Sends a GET, and sends it again while the daemon restarts, within `patience`.
    pub fn get_within<T: DeserializeOwned>(&self, target: &str, patience: Duration) -> Result<T, CallError> {
        let request = self.request("GET", target, None, None);
        patiently(patience, |left| self.call(&request, left)).and_then(decode)
    }

    /// Sends a POST, and sends it again with the same key while the daemon restarts, within `patience`.
    pub fn post(&self, target: &str, body: Option<&impl Serialize>, patience: Duration) -> Result<Response, CallError> {
        let body = body.map(serde_json::to_vec).transpose();
        let body = body.map_err(|error| CallError::Senseless(error.to_string()))?;
        let key = random_key().map_err(CallError::Gone)?;
        let request = self.request("POST", target, Some(&key), body.as_deref());
        patiently(patience, |left| self.call(&request, left))
    }

    /// Sends a DELETE, and sends it again with the same key while the daemon restarts, within `patience`.
    pub fn delete(&self, target: &str, patience: Duration) -> Result<Response, CallError> {
        let key = random_key().map_err(CallError::Gone)?;
        let request = self.request("DELETE", target, Some(&key), None);
        patiently(patience, |left| self.call(&request, left))
    }

    /// Sends a request once, without a key. Bytes of a body go as they are.
    pub fn send_once(&self, method: &str, target: &str, body: Option<&[u8]>) -> Result<Response, CallError> {
        let request = Request { content: Content::Bytes, ..self.request(method, target, None, body) };
        self.call(&request, ANSWER_WITHIN)
    }

    /// Requests a lease.
    pub fn request_lease(&self, request: &LeaseRequest) -> Result<Lease, CallError> {
        self.post("/v1/leases", Some(request), RESTART).and_then(decode)
    }

    /// The lease as it is now, if the daemon answers within `patience`.
    pub fn lease(&self, lease: &str, patience: Duration) -> Result<Lease, CallError> {
        self.get_within(&format!("/v1/leases/{lease}"), patience)
    }

    /// Gives a lease back, or leaves the queue, within `patience`. Returns the ended lease if the daemon reports it.
    pub fn release(&self, lease: &str, fence: Option<u64>, patience: Duration) -> Result<Option<Lease>, CallError> {
        let target = match fence {
            Some(fence) => format!("/v1/leases/{lease}?fence={fence}"),
            None => format!("/v1/leases/{lease}"),
        };
        let response = self.delete(&target, patience)?;
        if response.body.is_empty() { Ok(None) } else { decode(response).map(Some) }
    }

    /// The lease when the condition is true, or as it is after `wait`.
    pub fn poll(&self, lease: &str, wait: Duration, until: PollUntil) -> Result<Lease, CallError> {
        let until = match until {
            PollUntil::Granted => String::new(),
            PollUntil::Changed { known, told, over } => {
                format!("&for=change&known={}&known_ends_soon={told}&known_overuse={over}", state_text(known))
            }
        };
        let target = format!("/v1/leases/{lease}?wait={}s{until}", wait.as_secs());
        let request = self.request("GET", &target, None, None);
        self.call(&request, wait + POLL_SLACK).and_then(decode)
    }

    fn request<'a>(
        &'a self,
        method: &'a str,
        target: &'a str,
        key: Option<&'a str>,
        body: Option<&'a [u8]>,
    ) -> Request<'a> {
        let (host, token) = match &self.0 {
            Where::Here { .. } => (None, None),
            #[cfg(feature = "remote")]
            Where::Elsewhere(remote) => {
                let (host, token) = remote.header();
                (Some(host), Some(token))
            }
        };
        Request { method, target, host, token, key, body, content: Content::Json }
    }

    fn call(&self, request: &Request<'_>, within: Duration) -> Result<Response, CallError> {
        let exchange = || match &self.0 {
            #[cfg(feature = "remote")]
            Where::Elsewhere(remote) => http::exchange(&mut remote.connect(within)?, request),
            Where::Here { socket, first } => {
                let first = first.lock().ok().and_then(|mut first| first.take());
                let own = first.filter(|first| first.pid == std::process::id());
                let mut stream = own.map_or_else(|| connect(socket, within), |first| Ok(first.stream))?;
                stream.set_read_timeout(Some(within))?;
                stream.set_write_timeout(Some(within))?;
                http::exchange(&mut stream, request)
            }
        };
        let response = exchange().map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData if !is_tls(&error) => CallError::Senseless(error.to_string()),
            _ => CallError::Gone(error),
        })?;
        match response.status {
            200..300 => Ok(response),
            status => Err(refusal(status, &response)),
        }
    }
}

/// The process and the user that listen on a socket.
pub fn peer(socket: &Path) -> Option<(u32, u32)> {
    let stream = UnixStream::connect(socket).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    u32::try_from(peer.pid.as_raw_pid()).ok().map(|pid| (pid, peer.uid.as_raw()))
}

/// A state as the API spells it.
pub fn state_text(state: LeaseState) -> &'static str {
    match state {
        LeaseState::Waiting => "waiting",
        LeaseState::Active => "active",
        LeaseState::Parking => "parking",
        LeaseState::Parked => "parked",
        LeaseState::Resuming => "resuming",
        LeaseState::Ending => "ending",
        LeaseState::Ended => "ended",
    }
}

fn refusal(status: u16, response: &Response) -> CallError {
    let problem = response.is_problem.then(|| serde_json::from_slice(&response.body).ok()).flatten();
    problem.map_or_else(|| CallError::Senseless(format!("status {status} without a problem")), CallError::Refused)
}

/// The answer as this type.
pub fn decode<T: DeserializeOwned>(response: Response) -> Result<T, CallError> {
    serde_json::from_slice(&response.body).map_err(|error| CallError::Senseless(error.to_string()))
}

/// Connects within a time limit. A hung daemon accepts no connections; once its backlog is full, `connect` would block
/// without end.
fn connect(socket: &Path, within: Duration) -> io::Result<UnixStream> {
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let address = SocketAddrUnix::new(socket)?;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&stream, Timeout::Send, Some(within))?;
    connect(&stream, &address)?;
    Ok(stream.into())
}

/// Tries again until `patience` is over, as long as the error looks like a daemon that restarts. Each try gets the time
/// that is left, so that a try without an answer cannot exceed the total.
fn patiently<T>(patience: Duration, mut once: impl FnMut(Duration) -> Result<T, CallError>) -> Result<T, CallError> {
    let deadline = Instant::now() + patience;
    let mut pause = FIRST_PAUSE;
    loop {
        // The last pause may have used up the rest, and a socket timeout must not be zero.
        match once(deadline.saturating_duration_since(Instant::now()).max(FIRST_PAUSE)) {
            Err(error) if error.may_pass() && Instant::now() + pause < deadline => {
                thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            result => return result,
        }
    }
}

impl CallError {
    /// Whether no daemon answered, or not in time.
    pub fn is_silence(&self) -> bool {
        matches!(self, CallError::Gone(_)) || self.may_pass()
    }

    /// Whether the same call may succeed if it is sent again soon.
    pub fn may_pass(&self) -> bool {
        match self {
            CallError::Gone(error) => !is_timeout(error) && !is_tls(error),
            CallError::Refused(problem) => {
                matches!(problem.code, Code::Stopping | Code::KeyInUse | Code::JournalFailed | Code::TooBusy)
            }
            CallError::Senseless(_) => false,
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(feature = "remote")]
fn is_tls(error: &io::Error) -> bool {
    remote::tls_error(error).is_some()
}

#[cfg(not(feature = "remote"))]
fn is_tls(_: &io::Error) -> bool {
    false
}

fn random_key() -> io::Result<String> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

fn not_allowed(socket: &Path) -> ConnectError {
    ConnectError::new(ConnectFailure::Denied, format!("you may not connect to {}", socket.display()))
        .hint("ask the administrator to let you use the daemon's socket (often: membership in a group)")
}

fn no_daemon_at(candidates: &SocketCandidates) -> ConnectError {
    let error = ConnectError::no_daemon(candidates.first());
    match candidates.others() {
        [] => error,
        others => {
            let others: Vec<String> = others.iter().map(|path| path.display().to_string()).collect();
            let message =
                format!("no daemon answers at {}, nor at {}", candidates.first().display(), others.join(", "));
            ConnectError { message, ..error }
        }
    }
}

#[cfg(test)]
mod tests;
