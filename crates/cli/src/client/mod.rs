//! The daemon's API as typed, blocking calls, over its Unix socket or, with a token, over TCP.
//!
//! The program must start at almost no cost, so there is no async runtime here, and each call has its own connection.
//! Every POST carries an Idempotency-Key, so it can be sent again if the daemon restarts during the call.

pub mod http;
mod remote;

use crate::args::Globals;
use crate::failure::Failure;
use crate::place::{self, Candidates};
use crate::text;
use http::{Request, Response};
use remote::RemoteDaemon;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use sublet_wire::{
    AcceptRequest, AdoptRequest, AsideRequest, BindRequest, Code, Gpu, HookReport, JournalLoss, Lease, LeaseRequest,
    LeaseState, Leases, ModeRequest, Problem, RenewRequest, Rule, RuleRequest, Token, TokenRequest, exit,
};

/// The daemon answers in milliseconds, or in seconds if the disk stalls.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
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
pub struct Client(Where);

#[derive(Clone, Debug)]
enum Where {
    Here {
        socket: PathBuf,
        /// The connection that `open` made to test the socket. The first call uses it.
        first: Arc<Mutex<Option<UnixStream>>>,
    },
    Elsewhere(Arc<RemoteDaemon>),
}

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

impl Client {
    /// Finds the daemon: the named one, or the first of the usual sockets where one listens.
    pub fn open(globals: &Globals) -> Result<Client, Failure> {
        if let Some(url) = globals.url()? {
            return RemoteDaemon::at(&url).map(|remote| Client(Where::Elsewhere(Arc::new(remote))));
        }
        let candidates = place::sockets(globals.socket());
        let mut denied = None;
        for socket in candidates.paths() {
            match UnixStream::connect(socket) {
                Ok(stream) => return Ok(Client::at(place::absolute(socket), Some(stream))),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => denied = denied.or(Some(socket)),
                Err(_) => {}
            }
        }
        Err(match denied {
            Some(socket) => not_allowed(socket),
            None => nobody(&candidates),
        })
    }

    fn at(socket: PathBuf, first: Option<UnixStream>) -> Client {
        Client(Where::Here { socket, first: Arc::new(Mutex::new(first)) })
    }

    /// The absolute path of the daemon's socket; `None` if the daemon is on another host.
    pub fn socket(&self) -> Option<&Path> {
        match &self.0 {
            Where::Here { socket, .. } => Some(socket),
            Where::Elsewhere(_) => None,
        }
    }

    /// The socket or address of the daemon, as text.
    pub fn place(&self) -> String {
        match &self.0 {
            Where::Here { socket, .. } => socket.display().to_string(),
            Where::Elsewhere(remote) => remote.url().to_owned(),
        }
    }

    /// The environment variable that tells a holder where the daemon is.
    pub fn variable(&self) -> (&'static str, String) {
        match &self.0 {
            Where::Here { .. } => ("SUBLET_SOCKET", self.place()),
            Where::Elsewhere(_) => ("SUBLET_URL", self.place()),
        }
    }

    /// Sends a GET for a path and query.
    pub fn get<T: DeserializeOwned>(&self, target: &str) -> Result<T, Failure> {
        let request = self.request("GET", target, None, None);
        self.call(&request, ANSWER_WITHIN).and_then(decode).map_err(|error| self.failure(error))
    }

    /// All leases that have not ended, of the caller or of every user. Leases may start and end between two pages.
    pub fn leases(&self, all: bool) -> Result<Leases, Failure> {
        let mut found: Leases = self.get(&format!("/v1/leases?all={all}"))?;
        while found.more
            && let Some(last) = found.leases.last()
        {
            let next: Leases = match self.get(&format!("/v1/leases?all={all}&after={}", last.id)) {
                // This daemon is older than paging.
                Err(failure) if failure.code() == Some(Code::BadRequest) => break,
                next => next?,
            };
            found.more = next.more && !next.leases.is_empty();
            found.leases.extend(next.leases);
        }
        Ok(found)
    }

    /// Sends a POST, and sends it again if the daemon restarts during the call.
    fn post(&self, target: &str, body: Option<&impl Serialize>, patience: Duration) -> Result<Response, CallError> {
        let body = body.map(serde_json::to_vec).transpose();
        let body = body.map_err(|error| CallError::Senseless(error.to_string()))?;
        let key = random_key().map_err(CallError::Gone)?;
        let request = self.request("POST", target, Some(&key), body.as_deref());
        patiently(patience, |left| self.call(&request, left))
    }

    /// Requests a lease.
    pub fn ask(&self, ask: &LeaseRequest) -> Result<Lease, Failure> {
        self.post("/v1/leases", Some(ask), RESTART).and_then(decode).map_err(|error| self.failure(error))
    }

    /// Makes a token.
    pub fn make_token(&self, ask: &TokenRequest) -> Result<Token, Failure> {
        self.post("/v1/tokens", Some(ask), RESTART).and_then(decode).map_err(|error| self.failure(error))
    }

    /// Revokes a token.
    pub fn revoke_token(&self, token: &str) -> Result<Token, Failure> {
        self.delete(&format!("/v1/tokens/{token}"))
    }

    fn delete<T: DeserializeOwned>(&self, target: &str) -> Result<T, Failure> {
        let once = || {
            let key = random_key().map_err(CallError::Gone)?;
            let request = self.request("DELETE", target, Some(&key), None);
            patiently(RESTART, |left| self.call(&request, left)).and_then(decode)
        };
        once().map_err(|error| self.failure(error))
    }

    /// Sets how unleased processes on a GPU are treated.
    pub fn set_mode(&self, uuid: &str, ask: &ModeRequest) -> Result<Gpu, Failure> {
        let target = format!("/v1/gpus/{uuid}/mode");
        self.post(&target, Some(ask), RESTART).and_then(decode).map_err(|error| self.failure(error))
    }

    /// Gives an unleased process a lease.
    pub fn adopt(&self, adopt: &AdoptRequest) -> Result<Lease, Failure> {
        self.post("/v1/adopt", Some(adopt), RESTART).and_then(decode).map_err(|error| self.failure(error))
    }

    /// Adds a rule about unleased processes.
    pub fn set_rule(&self, ask: &RuleRequest) -> Result<Rule, Failure> {
        self.post("/v1/rules", Some(ask), RESTART).and_then(decode).map_err(|error| self.failure(error))
    }

    /// Removes a rule.
    pub fn drop_rule(&self, rule: &str) -> Result<Rule, Failure> {
        self.delete(&format!("/v1/rules/{rule}"))
    }

    /// Makes a process and its descendants holders of a lease.
    pub fn bind(&self, lease: &str, bind: &BindRequest, patience: Duration) -> Result<(), CallError> {
        self.post(&format!("/v1/leases/{lease}/bind"), Some(bind), patience).map(drop)
    }

    /// Reports the result of a hook.
    pub fn hooked(&self, lease: &str, hooked: &HookReport, patience: Duration) -> Result<(), CallError> {
        self.post(&format!("/v1/leases/{lease}/hook"), Some(hooked), patience).map(drop)
    }

    /// Renews a lease.
    pub fn renew(&self, lease: &str, renew: &RenewRequest) -> Result<Lease, Failure> {
        let target = format!("/v1/leases/{lease}/renew");
        self.post(&target, Some(renew), RESTART).and_then(decode).map_err(|error| self.failure(error))
    }

    /// Accepts a smaller lease instead of waiting.
    pub fn accept(&self, lease: &str, accept: &AcceptRequest) -> Result<Lease, Failure> {
        let target = format!("/v1/leases/{lease}/accept");
        self.post(&target, Some(accept), RESTART).and_then(decode).map_err(|error| self.failure(error))
    }

    /// Sends a command about a lease, such as `park`.
    pub fn command(&self, lease: &str, verb: &str) -> Result<Lease, Failure> {
        let target = format!("/v1/leases/{lease}/{verb}");
        self.post(&target, None::<&()>, RESTART).and_then(decode).map_err(|error| self.failure(error))
    }

    /// Sends a command about a GPU.
    pub fn gpu(&self, uuid: &str, verb: &str) -> Result<(), Failure> {
        let target = format!("/v1/gpus/{uuid}/{verb}");
        self.post(&target, None::<&()>, RESTART).map(drop).map_err(|error| self.failure(error))
    }

    /// Lets the daemon continue although lines are missing from the journal.
    pub fn accept_loss(&self) -> Result<JournalLoss, Failure> {
        self.post("/v1/journal/accept-loss", None::<&()>, RESTART).and_then(decode).map_err(|error| self.failure(error))
    }

    /// Has a GPU step aside, within `patience`.
    pub fn put_aside(&self, uuid: &str, ask: &AsideRequest, patience: Duration) -> Result<Gpu, CallError> {
        self.post(&format!("/v1/gpus/{uuid}/aside"), Some(ask), patience).and_then(decode)
    }

    /// Ends the caller's asides of a GPU, or the one with a key, within `patience`.
    pub fn end_aside(&self, uuid: &str, key: Option<&str>, patience: Duration) -> Result<Gpu, CallError> {
        let query = key.map_or_else(String::new, |key| format!("?key={key}"));
        let target = format!("/v1/gpus/{uuid}/aside{query}");
        let once = random_key().map_err(CallError::Gone)?;
        let request = self.request("DELETE", &target, Some(&once), None);
        patiently(patience, |left| self.call(&request, left)).and_then(decode)
    }

    /// Gives a lease back, or leaves the queue, within `patience`. Returns the ended lease if the daemon reports it.
    pub fn release(&self, lease: &str, fence: Option<u64>, patience: Duration) -> Result<Option<Lease>, CallError> {
        let target = match fence {
            Some(fence) => format!("/v1/leases/{lease}?fence={fence}"),
            None => format!("/v1/leases/{lease}"),
        };
        let key = random_key().map_err(CallError::Gone)?;
        let request = self.request("DELETE", &target, Some(&key), None);
        let response = patiently(patience, |left| self.call(&request, left))?;
        if response.body.is_empty() { Ok(None) } else { decode(response).map(Some) }
    }

    /// The lease as it is now, if the daemon answers within `patience`.
    pub fn lease(&self, lease: &str, patience: Duration) -> Result<Lease, CallError> {
        let target = format!("/v1/leases/{lease}");
        let request = self.request("GET", &target, None, None);
        patiently(patience, |left| self.call(&request, left)).and_then(decode)
    }

    /// The lease when the condition is true, or as it is after `wait`.
    pub fn poll(&self, lease: &str, wait: Duration, until: PollUntil) -> Result<Lease, CallError> {
        let until = match until {
            PollUntil::Granted => String::new(),
            PollUntil::Changed { known, told, over } => {
                format!("&for=change&known={}&known_ends_soon={told}&known_overuse={over}", text::lease_state(known))
            }
        };
        let target = format!("/v1/leases/{lease}?wait={}s{until}", wait.as_secs());
        let request = self.request("GET", &target, None, None);
        self.call(&request, wait + POLL_SLACK).and_then(decode)
    }

    /// The message for a call that failed.
    pub fn failure(&self, error: CallError) -> Failure {
        match error {
            CallError::Refused(problem) => problem.into(),
            CallError::Senseless(why) => {
                Failure::new(exit::FAILURE, format!("{} answered something else: {why}", self.place()))
                    .hint("is another program listening there, or a daemon of another version?")
            }
            CallError::Gone(error) if is_timeout(&error) => {
                let waited = sublet_wire::span::show(ANSWER_WITHIN.as_secs_f64());
                Failure::new(exit::NO_DAEMON, format!("{} did not answer within {waited}", self.place()))
                    .hint("look at the daemon's log; its disk may be stalled")
            }
            CallError::Gone(error) => match &self.0 {
                Where::Here { socket, .. } => Failure::no_daemon(socket),
                Where::Elsewhere(remote) => remote.unreachable(&error),
            },
        }
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
            Where::Elsewhere(remote) => {
                let (host, token) = remote.header();
                (Some(host), Some(token))
            }
        };
        Request { method, target, host, token, key, body }
    }

    fn call(&self, request: &Request<'_>, within: Duration) -> Result<Response, CallError> {
        let exchange = || match &self.0 {
            Where::Elsewhere(remote) => http::exchange(&mut remote.connect(within)?, request),
            Where::Here { socket, first } => {
                let first = first.lock().ok().and_then(|mut first| first.take());
                let mut stream = first.map_or_else(|| connect(socket, within), Ok)?;
                stream.set_read_timeout(Some(within))?;
                stream.set_write_timeout(Some(within))?;
                http::exchange(&mut stream, request)
            }
        };
        let response = exchange().map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData if remote::tls_error(&error).is_none() => {
                CallError::Senseless(error.to_string())
            }
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

fn refusal(status: u16, response: &Response) -> CallError {
    let problem = response.is_problem.then(|| serde_json::from_slice(&response.body).ok()).flatten();
    problem.map_or_else(|| CallError::Senseless(format!("status {status} without a problem")), CallError::Refused)
}

fn decode<T: DeserializeOwned>(response: Response) -> Result<T, CallError> {
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
            CallError::Gone(error) => !is_timeout(error) && remote::tls_error(error).is_none(),
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

fn random_key() -> io::Result<String> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

fn not_allowed(socket: &Path) -> Failure {
    Failure::new(exit::DENIED, format!("you may not connect to {}", socket.display()))
        .hint("ask the administrator to let you use the daemon's socket (often: membership in a group)")
}

fn nobody(candidates: &Candidates) -> Failure {
    let failure = Failure::no_daemon(candidates.first());
    match candidates.others() {
        [] => failure,
        others => {
            let others: Vec<String> = others.iter().map(|path| path.display().to_string()).collect();
            let message =
                format!("no daemon answers at {}, nor at {}", candidates.first().display(), others.join(", "));
            Failure::new(exit::NO_DAEMON, message)
                .hint("start one with `sublet serve`, or `cargo xtask up` in a checkout")
        }
    }
}

#[cfg(test)]
mod tests;
