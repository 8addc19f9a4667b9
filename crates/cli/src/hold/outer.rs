//! The lease that this process was started on, if there is one. A program on a lease needs no second one, and could
//! wait for itself if it requested one.

use super::environment::{self, Earlier};
use crate::client::{CallError, Client};
use crate::failure::tell_hint;
use crate::output::say;
use crate::table::plain;
use crate::text;
use std::env;
use std::time::Duration;
use sublet_wire::{Code, Lease, LeaseState};

/// How long to wait for a daemon that restarts. Only the daemon knows whether the lease in the environment still
/// exists.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// A lease that the environment names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvLease {
    id: String,
    /// The fence. It tells this lease from one with the same id of another daemon.
    fence: Option<u64>,
}

/// The daemon's answer about such a lease.
#[derive(Debug)]
pub enum Outer {
    /// This user holds the lease.
    Held(Box<Lease>),
    /// The lease is over, and why.
    Over(String),
}

impl EnvLease {
    /// The lease in this process's environment.
    pub fn here() -> Option<EnvLease> {
        let id = env::var("SUBLET_LEASE").ok().filter(|id| !id.is_empty())?;
        Some(EnvLease { id: plain(&id), fence: env::var("SUBLET_FENCE").ok().and_then(|fence| fence.parse().ok()) })
    }

    /// `L7`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Asks the daemon about the lease; an error if no daemon answers.
    pub fn look(&self, client: &Client) -> Result<Outer, CallError> {
        match client.lease(&self.id, ANSWER_WITHIN) {
            Ok(lease) => Ok(self.judge(lease, rustix::process::geteuid().as_raw())),
            Err(CallError::Refused(problem)) if matches!(problem.code, Code::NoSuchLease | Code::BadRequest) => {
                Ok(Outer::Over("no lease of yours has this id".to_owned()))
            }
            Err(error) => Err(error),
        }
    }

    fn judge(&self, lease: Lease, uid: u32) -> Outer {
        if lease.tenant != format!("uid:{uid}") {
            return Outer::Over("no lease of yours has this id".to_owned());
        }
        if self.fence.is_some() && lease.fence != self.fence {
            return Outer::Over("another lease has this id now".to_owned());
        }
        match (lease.state, &lease.ended) {
            (_, Some(ended)) => Outer::Over(plain(&ended.sentence)),
            (LeaseState::Waiting | LeaseState::Ending | LeaseState::Ended, None) => {
                Outer::Over(format!("it is {}", text::lease_state(lease.state)))
            }
            _ => Outer::Held(Box::new(lease)),
        }
    }
}

/// What to do where a lease would be requested.
#[derive(Debug)]
pub enum Start {
    /// Run the command on the lease that this process has.
    OnOuter(Box<Lease>),
    /// Run on the lease with this id: the environment names it, and no daemon answered.
    Unchecked(String),
    /// Request a lease.
    New {
        /// What to print if the request has to wait.
        note: Option<String>,
        /// The state of the lease that this process had before.
        earlier: Earlier,
    },
}

/// Whether a new lease is requested in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewLease {
    /// Only if this process has none.
    IfNone,
    /// `--new-lease`.
    Always,
}

impl Start {
    /// Checks the lease in the environment, and prints a line if it is over.
    pub fn find(client: &Client, wanted: NewLease) -> Start {
        let new = |note, earlier| Start::New { note, earlier };
        let Some(claim) = EnvLease::here() else { return new(None, Earlier::None) };
        match (claim.look(client), wanted) {
            (Ok(Outer::Held(lease)), NewLease::IfNone) => Start::OnOuter(lease),
            (Ok(Outer::Held(lease)), NewLease::Always) => new(Some(waits_for_itself(&lease)), Earlier::None),
            (Ok(Outer::Over(why)), _) => {
                say!("{}, which this shell had, is over ({why}): asking for a new lease", claim.id);
                new(None, Earlier::Over)
            }
            (Err(_), NewLease::IfNone) => Start::Unchecked(claim.id),
            (Err(_), NewLease::Always) => new(None, Earlier::None),
        }
    }
}

/// Prints that a command runs on the outer lease, and which lease options are ignored.
pub fn say_runs_on(lease: &Lease, ignored: &[String]) {
    say!("runs on {}, which this shell already has ({})", lease.id, text::granted(lease));
    say_ignored(lease, ignored);
}

/// Prints that no lease is requested, and which lease options are ignored.
pub fn say_has(lease: &Lease, ignored: &[String]) {
    say!("this shell already has {} ({})", lease.id, text::granted(lease));
    say_ignored(lease, ignored);
}

/// If the lease of this shell is one of these, which are over, prints how to clear its variables.
pub fn hint_at_variables(over: &[String]) {
    if EnvLease::here().is_some_and(|own| over.contains(&own.id)) && !environment::is_cleared_by_shell() {
        tell_hint("this shell still has the variables of the lease; to clear them: eval \"$(sublet release)\"");
    }
}

fn say_ignored(lease: &Lease, ignored: &[String]) {
    if !ignored.is_empty() {
        let (ignored, id) = (ignored.join(" "), &lease.id);
        tell_hint(&format!(
            "`{ignored}` is ignored, because this command uses {id}; `--new-lease` requests a separate lease"
        ));
    }
}

/// Prints that a command runs on a lease that could not be checked.
pub fn say_unchecked(id: &str) {
    say!("no daemon answers: runs on {id}, which this shell has by its environment");
}

fn waits_for_itself(lease: &Lease) -> String {
    format!(
        "{0}, which this shell already has, keeps {1} meanwhile; if that is what this waits for: `sublet release {0}`",
        lease.id,
        text::granted(lease)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn judged(claim: &EnvLease, lease: Lease, uid: u32) -> String {
        match claim.judge(lease, uid) {
            Outer::Held(lease) => lease.id,
            Outer::Over(why) => why,
        }
    }

    #[test]
    fn only_a_live_lease_of_the_same_user_and_grant_is_held() {
        let lease = || Lease { tenant: "uid:7".into(), fence: Some(12), ..sample::lease() };
        let claim = EnvLease { id: "L7".into(), fence: Some(12) };
        assert_eq!(judged(&claim, lease(), 7), "L7");
        assert_eq!(judged(&EnvLease { fence: None, ..claim.clone() }, lease(), 7), "L7");
        assert_eq!(judged(&claim, lease(), 8), "no lease of yours has this id");
        assert_eq!(judged(&claim, Lease { fence: Some(13), ..lease() }, 7), "another lease has this id now");
        assert_eq!(judged(&claim, Lease { state: LeaseState::Parked, ..lease() }, 7), "L7");
        assert_eq!(judged(&claim, Lease { state: LeaseState::Ended, ..lease() }, 7), "it is ended");
    }
}
