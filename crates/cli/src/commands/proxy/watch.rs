//! Follows a service's leases, and asks for them: threads with the usual blocking client.
//!
//! One thread finds the leases, one for each lease follows it by long polls, and one asks leases with waiting requests
//! to resume. If the daemon does not answer, the threads look for it again. Until everything is known again, no request
//! that needs the GPU passes.

use super::leases::{DaemonAbsence, ServiceLeases};
use super::waiting::{AskerStep, WaitingRequests};
use super::{FollowedLeases, ServiceName};
use crate::args::Globals;
use crate::client::{CallError, Client, PollUntil};
use crate::daemon;
use crate::failure::Failure;
use crate::table::plain;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use sublet_wire::{Code, Lease, LeaseState};

/// The length of one long poll.
const POLL: Duration = Duration::from_secs(30);
/// How often to look for leases of the service that are not known yet. No event reports a lease that comes by an
/// adoption.
const LOOK: Duration = Duration::from_secs(1);
/// The pause between two tries while no daemon answers.
const SILENT: Duration = Duration::from_millis(300);

/// What the threads share.
#[derive(Clone)]
pub struct ProxyWatch {
    /// Where facts are recorded.
    pub requests: Arc<WaitingRequests>,
    /// How to find the daemon.
    pub globals: Globals,
    /// Which leases to follow.
    pub followed: FollowedLeases,
}

impl ProxyWatch {
    /// Starts the threads. They end with the program.
    pub fn begin(self) {
        let (finder, asker) = (self.clone(), self);
        thread::spawn(move || finder.find());
        thread::spawn(move || asker.ask());
    }

    /// The daemon, as soon as one answers.
    fn client(&self) -> Client {
        loop {
            match Client::open(&self.globals) {
                Ok(client) => return client,
                Err(failure) => self.is_away(&failure),
            }
            thread::sleep(SILENT);
        }
    }

    fn is_away(&self, failure: &Failure) {
        let away = DaemonAbsence { why: failure.message().to_owned(), hint: failure.next_step().map(str::to_owned) };
        let lists = matches!(self.followed, FollowedLeases::OfService(_));
        self.requests.learn(|leases| leases.gone(away, lists));
    }

    fn find(&self) {
        let client = self.client();
        match &self.followed {
            FollowedLeases::Lease(id) => self.find_named(&client, &id.to_string()),
            FollowedLeases::OfService(service) => loop {
                match self.list(&client, service) {
                    Ok(()) => thread::sleep(LOOK),
                    Err(failure) => {
                        self.is_away(&failure);
                        thread::sleep(SILENT);
                    }
                }
            },
        }
    }

    fn find_named(&self, client: &Client, id: &str) {
        loop {
            match client.get::<Lease>(&format!("/v1/leases/{id}")) {
                Ok(lease) => {
                    self.take(client, &lease);
                    return self.requests.learn(ServiceLeases::listed);
                }
                Err(failure) if failure.code() == Some(Code::NoSuchLease) => {
                    return self.requests.learn(|leases| leases.ended(id, Some(failure.message().to_owned())));
                }
                Err(failure) => self.is_away(&failure),
            }
            thread::sleep(SILENT);
        }
    }

    /// Looks for leases of the service that are not known yet.
    fn list(&self, client: &Client, service: &ServiceName) -> Result<(), Failure> {
        // Any user can give a lease any name, so a name counts only among the caller's own leases. A process cannot
        // choose where it runs, so `ServiceName::Processes` counts all leases.
        let found = match service {
            ServiceName::Name(_) => client.leases(false)?,
            ServiceName::Processes(_) => client.leases(true).or_else(|failure| match failure.code() {
                // A caller that is no operator can only be a proxy for its own services.
                Some(Code::Denied) => client.leases(false),
                _ => Err(failure),
            })?,
        };
        for lease in found.leases.iter().filter(|lease| !self.requests.knows(&lease.id)) {
            let is_followed = match service {
                ServiceName::Name(name) => lease.name.as_ref() == Some(name),
                ServiceName::Processes(pattern) => lease.pids.iter().any(|pid| daemon::process_matches(pattern, *pid)),
            };
            if is_followed {
                self.take(client, lease);
            }
        }
        self.requests.learn(ServiceLeases::listed);
        Ok(())
    }

    /// Starts to follow a lease.
    fn take(&self, client: &Client, lease: &Lease) {
        if self.tell(lease) {
            let (watch, client, lease) = (self.clone(), client.clone(), lease.clone());
            thread::spawn(move || watch.follow(&client, lease));
        }
    }

    /// Records the state of a lease; false if the lease is over.
    fn tell(&self, lease: &Lease) -> bool {
        if !matches!(lease.state, LeaseState::Ending | LeaseState::Ended) {
            self.requests.learn(|leases| leases.told(lease, Instant::now()));
            return true;
        }
        let named = matches!(self.followed, FollowedLeases::Lease(_)).then(|| {
            let sentence = lease.ended.as_ref().map(|ended| plain(&ended.sentence));
            sentence.unwrap_or_else(|| format!("{} has ended", lease.id))
        });
        self.requests.learn(|leases| leases.ended(&lease.id, named));
        false
    }

    fn follow(&self, client: &Client, mut lease: Lease) {
        let mut is_lost = false;
        loop {
            let begun = Instant::now();
            let (known, told) = (lease.state, lease.ends_soon.is_some());
            // After the daemon was away, the state is read at once, and not only when it changes.
            let patience = if is_lost { Duration::ZERO } else { POLL };
            match client.poll(&lease.id, patience, PollUntil::Changed { known, told, over: lease.overuse.is_some() }) {
                Ok(now) => {
                    let is_news = is_lost || now.state != known || now.ends_soon.is_some() != told;
                    (lease, is_lost) = (now, false);
                    if !self.tell(&lease) {
                        return;
                    }
                    // A daemon that is stopping answers early: pause, so that this loop does not spin.
                    if !is_news && begun.elapsed() < SILENT {
                        thread::sleep(SILENT);
                    }
                }
                Err(CallError::Refused(problem)) if matches!(problem.code, Code::NoSuchLease | Code::LeaseEnded) => {
                    let named = matches!(self.followed, FollowedLeases::Lease(_)).then_some(problem.detail);
                    return self.requests.learn(|leases| leases.ended(&lease.id, named));
                }
                Err(error) => {
                    is_lost = true;
                    self.is_away(&client.failure(error));
                    thread::sleep(SILENT);
                }
            }
        }
    }

    fn ask(&self) {
        let client = self.client();
        loop {
            let due = self.requests.due();
            let answer = match &due {
                AskerStep::Resume(id, _) => client.command(id, "resume"),
                AskerStep::Estimate(id) => client.get(&format!("/v1/leases/{id}")),
            };
            // A refused call is not repeated: the thread that follows the lease learns why.
            self.requests.done(&due, answer.as_ref().ok());
            if answer.is_err() {
                thread::sleep(SILENT);
            }
        }
    }
}
