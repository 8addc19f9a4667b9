//! What can go wrong, by what the caller must do next.
//!
//! The wording is for people and may change. [`FabricError::code`] is stable, and [`FabricError::remedy`] says what to
//! do next.

use crate::client::{CallError, ConnectError, ConnectFailure, DaemonClient};
use crate::lease::LeaseStatus;
use crate::training::TrainingError;
use std::path::PathBuf;
use sublet_checkpoint::{DurableError, ReplicatedError};
use sublet_wire::{Code, LeaseEnd, Problem};
use thiserror::Error;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;

/// A lease could not be had, used or renewed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The lease ended because its time was over.
    #[error("{sentence}")]
    LeaseExpired {
        /// The lease.
        lease: String,
        /// What happened, for people.
        sentence: String,
    },
    /// The lease was ended before its time.
    #[error("{sentence}")]
    Revoked {
        /// The lease.
        lease: String,
        /// The reason as the API spells it, such as `preempted`.
        reason: String,
        /// What happened, for people.
        sentence: String,
    },
    /// Another process has a newer grant of this lease.
    #[error("{detail}")]
    Fenced {
        /// The lease.
        lease: String,
        /// What happened, for people.
        detail: String,
    },
    /// The daemon did not answer, although the call was sent again for a while.
    #[error("{detail}")]
    Disconnected {
        /// What happened, for people.
        detail: String,
        /// What to do next.
        hint: Option<String>,
    },
    /// The daemon's address, the token or the permissions are not what they should be. Nothing was sent.
    #[error("{detail}")]
    Configuration {
        /// What happened, for people.
        detail: String,
        /// What to do next.
        hint: Option<String>,
    },
    /// There is no room for the lease now, or it is more than the user may have.
    #[error("{detail}")]
    CapacityExceeded {
        /// The code of the refusal, or `wait_over`.
        code: &'static str,
        /// What happened, for people.
        detail: String,
        /// What to do next.
        hint: Option<String>,
        /// The daemon expects room after this many seconds.
        retry_after_s: Option<u64>,
    },
    /// The lease is not active, so no work was started.
    #[error("the lease is {0}, and GPU work starts only while it is active")]
    LeaseNotActive(LeaseStatus),
    /// The daemon refused the call for another reason.
    #[error("{}", .0.detail)]
    Refused(Box<Problem>),
    /// The program behind the socket does not speak this API.
    #[error("{place} answered something else: {why}")]
    Senseless {
        /// The socket or address.
        place: String,
        /// What was wrong with the answer.
        why: String,
    },
    /// A call has an argument that cannot be used.
    #[error("{0}")]
    InvalidArgument(String),
    /// A value could not be saved in its blocks, or restored. Progress must not be reported.
    #[error(transparent)]
    Durable(#[from] DurableError),
    /// The file of blocks cannot be used.
    #[error("{} cannot be used for blocks", path.display())]
    Blocks {
        /// The file or its directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// CUDA's driver cannot be used.
    #[error("{reason}")]
    NoDriver {
        /// What happened, for people.
        reason: String,
        /// What to do next.
        hint: &'static str,
    },
    /// A call of CUDA's driver failed.
    #[error("{call} answered {name} ({code})")]
    Driver {
        /// The function.
        call: &'static str,
        /// Its `CUresult`.
        code: i32,
        /// The name of that result.
        name: String,
    },
    /// No private daemon could be started.
    #[error("no private daemon could be started: {reason}")]
    NoLocalHost {
        /// What happened, for people.
        reason: String,
        /// What to do next.
        hint: &'static str,
    },
    /// A thread could not be started.
    #[error("the process gets no further thread")]
    NoThread(#[source] std::io::Error),
}

impl FabricError {
    /// A word for programs; it never changes.
    pub fn code(&self) -> &'static str {
        match self {
            FabricError::LeaseExpired { .. } => "lease_expired",
            FabricError::Revoked { .. } => "revoked",
            FabricError::Fenced { .. } => "fenced",
            FabricError::Disconnected { .. } => "disconnected",
            FabricError::Configuration { .. } => "configuration",
            FabricError::CapacityExceeded { .. } => "capacity_exceeded",
            FabricError::LeaseNotActive(_) => "lease_not_active",
            FabricError::Refused(problem) => problem.code.as_str(),
            FabricError::Senseless { .. } => "senseless",
            FabricError::InvalidArgument(_) => "invalid_argument",
            FabricError::Durable(error) => error.code(),
            FabricError::Blocks { .. } => "blocks",
            FabricError::NoDriver { .. } => "no_driver",
            FabricError::Driver { .. } => "driver",
            FabricError::NoLocalHost { .. } => "no_local_host",
            FabricError::NoThread(_) => "no_thread",
        }
    }

    /// What to do next, as a sentence.
    pub fn remedy(&self) -> &str {
        let said = match self {
            FabricError::Disconnected { hint, .. }
            | FabricError::Configuration { hint, .. }
            | FabricError::CapacityExceeded { hint, .. } => hint.as_deref(),
            FabricError::Refused(problem) => problem.hint.as_deref(),
            _ => None,
        };
        said.unwrap_or(match self {
            FabricError::LeaseExpired { .. } | FabricError::Revoked { .. } => {
                "acquire a new lease and go on from the newest checkpoint"
            }
            FabricError::Fenced { .. } => "stop this process: another one has taken over",
            FabricError::Disconnected { .. } => "check that the daemon runs (`sublet doctor`), then try again",
            FabricError::Configuration { .. } => "correct the daemon's address or the token",
            FabricError::CapacityExceeded { .. } => "wait with `acquire`, or take less with `acquire_or_smaller`",
            FabricError::LeaseNotActive(status) => status.remedy(),
            FabricError::Refused(_) => "change the request",
            FabricError::Senseless { .. } => "is another program listening there, or a daemon of another version?",
            FabricError::InvalidArgument(_) => "correct the call",
            FabricError::Driver { code: OUT_OF_MEMORY, .. } => {
                "free memory, or acquire a larger lease: `sublet ps` shows what this one is for"
            }
            FabricError::Driver { .. } => "correct the call, or look at the kernel; the lease is not affected",
            FabricError::Durable(error) => error.remedy(),
            FabricError::Blocks { .. } => {
                "is the directory writable, has the disk room, and is the file open in no other program?"
            }
            FabricError::NoDriver { hint, .. } | FabricError::NoLocalHost { hint, .. } => hint,
            FabricError::NoThread(_) => "raise the limit of processes (`ulimit -u`), or end others",
        })
    }

    /// Whether the same call may succeed if it is repeated later.
    pub fn is_transient(&self) -> bool {
        matches!(self, FabricError::Disconnected { .. } | FabricError::CapacityExceeded { .. })
    }

    /// The error for a lease that ended.
    pub(crate) fn ended(lease: &str, status: LeaseStatus, end: Option<&LeaseEnd>) -> FabricError {
        let sentence = end.map_or_else(|| format!("lease {lease} is over"), |end| end.sentence.clone());
        let lease = lease.to_owned();
        match status {
            LeaseStatus::Expired => FabricError::LeaseExpired { lease, sentence },
            LeaseStatus::Revoked => {
                let reason = end.and_then(|end| serde_json::to_value(end.reason).ok());
                let reason = reason.as_ref().and_then(|reason| reason.as_str()).unwrap_or("unknown").to_owned();
                FabricError::Revoked { lease, reason, sentence }
            }
            LeaseStatus::Fenced => FabricError::Fenced { lease, detail: sentence },
            other => FabricError::LeaseNotActive(other),
        }
    }

    /// The error for a call about `lease` that failed.
    pub(crate) fn of_call(client: &DaemonClient, lease: Option<&str>, error: CallError) -> FabricError {
        match error {
            CallError::Refused(problem) => FabricError::of_problem(lease, problem),
            CallError::Senseless(why) => FabricError::Senseless { place: client.place(), why },
            CallError::Gone(error) => client.silence(&error).into(),
        }
    }

    fn of_problem(lease: Option<&str>, problem: Problem) -> FabricError {
        let lease = lease.unwrap_or_default().to_owned();
        match problem.code {
            Code::NoRoom | Code::QueueFull | Code::OverCap | Code::NeverFits | Code::TokenCap => {
                FabricError::CapacityExceeded {
                    code: problem.code.as_str(),
                    detail: problem.detail,
                    hint: problem.hint,
                    retry_after_s: problem.retry_after_s,
                }
            }
            Code::Fenced => FabricError::Fenced { lease, detail: problem.detail },
            Code::LeaseEnded | Code::NoSuchLease => {
                FabricError::Revoked { lease, reason: problem.code.as_str().to_owned(), sentence: problem.detail }
            }
            Code::LeaseNotActive => FabricError::LeaseNotActive(LeaseStatus::Waiting),
            Code::Stopping | Code::JournalFailed | Code::TooBusy => {
                FabricError::Disconnected { detail: problem.detail, hint: problem.hint }
            }
            _ => FabricError::Refused(Box::new(problem)),
        }
    }
}

impl From<ConnectError> for FabricError {
    fn from(error: ConnectError) -> FabricError {
        let (detail, hint) = (error.message, error.hint);
        match error.kind {
            ConnectFailure::NoDaemon => FabricError::Disconnected { detail, hint },
            ConnectFailure::Usage | ConnectFailure::Denied => FabricError::Configuration { detail, hint },
        }
    }
}

/// What crates of this library return from `main` and the like: any of their errors.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GrafosError {
    /// A lease could not be had, used or renewed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A checkpoint or an effect could not be saved, read or completed.
    #[error(transparent)]
    Replicated(#[from] ReplicatedError),
    /// A value could not be saved in its blocks, or restored.
    #[error(transparent)]
    Durable(#[from] DurableError),
    /// A training step was not committed.
    #[error(transparent)]
    Training(#[from] TrainingError),
}

impl GrafosError {
    /// A word for programs; it never changes.
    pub fn code(&self) -> &'static str {
        match self {
            GrafosError::Fabric(error) => error.code(),
            GrafosError::Replicated(error) => error.code(),
            GrafosError::Durable(error) => error.code(),
            GrafosError::Training(error) => error.code(),
        }
    }

    /// What to do next, as a sentence.
    pub fn remedy(&self) -> &str {
        match self {
            GrafosError::Fabric(error) => error.remedy(),
            GrafosError::Replicated(error) => error.remedy(),
            GrafosError::Durable(error) => error.remedy(),
            GrafosError::Training(error) => error.remedy(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_for_want_of_room_keeps_its_words_and_its_hint() {
        let problem = Problem::new(Code::NoRoom, "no GPU has 16 GiB free").hint("ask for 8 GiB").retry_after(30);
        let error = FabricError::of_problem(None, problem);
        assert_eq!((error.code(), error.to_string().as_str()), ("capacity_exceeded", "no GPU has 16 GiB free"));
        assert_eq!(error.remedy(), "ask for 8 GiB");
        assert!(error.is_transient());
    }

    #[test]
    fn each_end_of_a_lease_is_told_apart() {
        let end = |reason| LeaseEnd { reason, sentence: "it is over".to_owned(), at_unix_s: 0.0 };
        let expired = end(sublet_wire::EndReason::Expired);
        let error = FabricError::ended("L1", LeaseStatus::Expired, Some(&expired));
        assert_eq!((error.code(), error.to_string().as_str()), ("lease_expired", "it is over"));
        let preempted = end(sublet_wire::EndReason::Preempted);
        let error = FabricError::ended("L1", LeaseStatus::Revoked, Some(&preempted));
        assert!(matches!(&error, FabricError::Revoked { reason, .. } if reason == "preempted"), "{error:?}");
        assert_eq!(FabricError::ended("L1", LeaseStatus::Fenced, None).code(), "fenced");
    }
}
