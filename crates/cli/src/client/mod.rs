//! The daemon's API as typed calls whose errors are messages for the user.
//!
//! The connection, the retries and the Idempotency-Keys are the library's (`sublet::client`); the messages and exit
//! codes are made here.

use crate::args::Globals;
use crate::failure::Failure;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;
use std::time::Duration;
use sublet::client::DaemonClient;
pub use sublet::client::{CallError, ConnectError, ConnectFailure, PollUntil, RESTART, decode, http, peer};
use sublet_wire::{
    AcceptRequest, AdoptRequest, AsideRequest, BindRequest, Code, Gpu, HookReport, JournalLoss, Lease, LeaseRequest,
    Leases, ModeRequest, RenewRequest, Rule, RuleRequest, Token, TokenRequest, exit,
};

/// A daemon, with errors as messages for the user.
#[derive(Clone, Debug)]
pub struct Client(DaemonClient);

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Failure {
        let exit = match error.kind {
            ConnectFailure::Usage => exit::USAGE,
            ConnectFailure::Denied => exit::DENIED,
            ConnectFailure::NoDaemon => exit::NO_DAEMON,
        };
        Failure::new(exit, error.message).maybe_hint(error.hint)
    }
}

impl Client {
    /// Finds the daemon: the named one, or the first of the usual sockets where one listens.
    pub fn open(globals: &Globals) -> Result<Client, Failure> {
        let opened = match globals.url()? {
            Some(url) => DaemonClient::remote(&url),
            None => DaemonClient::open(globals.socket()),
        };
        Ok(Client(opened?))
    }

    /// The absolute path of the daemon's socket; `None` if the daemon is on another host.
    pub fn socket(&self) -> Option<&Path> {
        self.0.socket()
    }

    /// The socket or address of the daemon, as text.
    pub fn place(&self) -> String {
        self.0.place()
    }

    /// The environment variable that tells a holder where the daemon is.
    pub fn variable(&self) -> (&'static str, String) {
        let name = if self.socket().is_some() { "SUBLET_SOCKET" } else { "SUBLET_URL" };
        (name, self.place())
    }

    /// The client of the API, as the library has it.
    pub fn api(&self) -> &DaemonClient {
        &self.0
    }

    /// Sends a GET for a path and query.
    pub fn get<T: DeserializeOwned>(&self, target: &str) -> Result<T, Failure> {
        self.0.get(target).map_err(|error| self.failure(error))
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

    /// Sends a POST and decodes the answer.
    fn post<T: DeserializeOwned>(&self, target: &str, body: Option<&impl Serialize>) -> Result<T, Failure> {
        self.0.post(target, body, RESTART).and_then(decode).map_err(|error| self.failure(error))
    }

    /// Requests a lease.
    pub fn ask(&self, ask: &LeaseRequest) -> Result<Lease, Failure> {
        self.0.request_lease(ask).map_err(|error| self.failure(error))
    }

    /// Makes a token.
    pub fn make_token(&self, ask: &TokenRequest) -> Result<Token, Failure> {
        self.post("/v1/tokens", Some(ask))
    }

    /// Revokes a token.
    pub fn revoke_token(&self, token: &str) -> Result<Token, Failure> {
        self.delete(&format!("/v1/tokens/{token}"))
    }

    fn delete<T: DeserializeOwned>(&self, target: &str) -> Result<T, Failure> {
        self.0.delete(target, RESTART).and_then(decode).map_err(|error| self.failure(error))
    }

    /// Sets how unleased processes on a GPU are treated.
    pub fn set_mode(&self, uuid: &str, ask: &ModeRequest) -> Result<Gpu, Failure> {
        self.post(&format!("/v1/gpus/{uuid}/mode"), Some(ask))
    }

    /// Gives an unleased process a lease.
    pub fn adopt(&self, adopt: &AdoptRequest) -> Result<Lease, Failure> {
        self.post("/v1/adopt", Some(adopt))
    }

    /// Adds a rule about unleased processes.
    pub fn set_rule(&self, ask: &RuleRequest) -> Result<Rule, Failure> {
        self.post("/v1/rules", Some(ask))
    }

    /// Removes a rule.
    pub fn drop_rule(&self, rule: &str) -> Result<Rule, Failure> {
        self.delete(&format!("/v1/rules/{rule}"))
    }

    /// Makes a process and its descendants holders of a lease.
    pub fn bind(&self, lease: &str, bind: &BindRequest, patience: Duration) -> Result<(), CallError> {
        self.0.post(&format!("/v1/leases/{lease}/bind"), Some(bind), patience).map(drop)
    }

    /// Reports the result of a hook.
    pub fn hooked(&self, lease: &str, hooked: &HookReport, patience: Duration) -> Result<(), CallError> {
        self.0.post(&format!("/v1/leases/{lease}/hook"), Some(hooked), patience).map(drop)
    }

    /// Renews a lease.
    pub fn renew(&self, lease: &str, renew: &RenewRequest) -> Result<Lease, Failure> {
        self.post(&format!("/v1/leases/{lease}/renew"), Some(renew))
    }

    /// Accepts a smaller lease instead of waiting.
    pub fn accept(&self, lease: &str, accept: &AcceptRequest) -> Result<Lease, Failure> {
        self.post(&format!("/v1/leases/{lease}/accept"), Some(accept))
    }

    /// Sends a command about a lease, such as `park`.
    pub fn command(&self, lease: &str, verb: &str) -> Result<Lease, Failure> {
        self.post(&format!("/v1/leases/{lease}/{verb}"), None::<&()>)
    }

    /// Sends a command about a GPU.
    pub fn gpu(&self, uuid: &str, verb: &str) -> Result<(), Failure> {
        let target = format!("/v1/gpus/{uuid}/{verb}");
        self.0.post(&target, None::<&()>, RESTART).map(drop).map_err(|error| self.failure(error))
    }

    /// Lets the daemon continue although lines are missing from the journal.
    pub fn accept_loss(&self) -> Result<JournalLoss, Failure> {
        self.post("/v1/journal/accept-loss", None::<&()>)
    }

    /// Has a GPU step aside, within `patience`.
    pub fn put_aside(&self, uuid: &str, ask: &AsideRequest, patience: Duration) -> Result<Gpu, CallError> {
        self.0.post(&format!("/v1/gpus/{uuid}/aside"), Some(ask), patience).and_then(decode)
    }

    /// Ends the caller's asides of a GPU, or the one with a key, within `patience`.
    pub fn end_aside(&self, uuid: &str, key: Option<&str>, patience: Duration) -> Result<Gpu, CallError> {
        let query = key.map_or_else(String::new, |key| format!("?key={key}"));
        self.0.delete(&format!("/v1/gpus/{uuid}/aside{query}"), patience).and_then(decode)
    }

    /// Gives a lease back, or leaves the queue, within `patience`. Returns the ended lease if the daemon reports it.
    pub fn release(&self, lease: &str, fence: Option<u64>, patience: Duration) -> Result<Option<Lease>, CallError> {
        self.0.release(lease, fence, patience)
    }

    /// The lease as it is now, if the daemon answers within `patience`.
    pub fn lease(&self, lease: &str, patience: Duration) -> Result<Lease, CallError> {
        self.0.lease(lease, patience)
    }

    /// The lease when the condition is true, or as it is after `wait`.
    pub fn poll(&self, lease: &str, wait: Duration, until: PollUntil) -> Result<Lease, CallError> {
        self.0.poll(lease, wait, until)
    }

    /// The message for a call that failed.
    pub fn failure(&self, error: CallError) -> Failure {
        match error {
            CallError::Refused(problem) => problem.into(),
            CallError::Senseless(why) => {
                Failure::new(exit::FAILURE, format!("{} answered something else: {why}", self.place()))
                    .hint("is another program listening there, or a daemon of another version?")
            }
            CallError::Gone(error) => self.0.silence(&error).into(),
        }
    }
}

#[cfg(test)]
mod tests;
