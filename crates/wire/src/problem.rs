//! Refusals: a stable code for programs, a sentence and a remedy for people.

use serde::{Deserialize, Serialize};

/// An RFC 9457 problem, the body of every 4xx and 5xx answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// `about:sublet/` and the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// The HTTP status, again.
    pub status: u16,
    /// The stable part: programs decide by it.
    pub code: Code,
    /// What happened. The wording is not stable.
    pub detail: String,
    /// What the caller should do.
    pub remedy: Remedy,
    /// The next step in words, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Seconds after which to try again, as in Retry-After.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
}

impl Problem {
    /// A problem with the status and remedy that its code implies.
    pub fn new(code: Code, detail: impl Into<String>) -> Problem {
        Problem {
            kind: format!("about:sublet/{}", code.as_str()),
            status: code.status(),
            code,
            detail: detail.into(),
            remedy: code.remedy(),
            hint: None,
            retry_after_s: None,
        }
    }
    /// Adds the next step.
    pub fn hint(mut self, hint: impl Into<String>) -> Problem {
        self.hint = Some(hint.into());
        self
    }
    /// Adds a time after which to try again.
    pub fn retry_after(mut self, seconds: u64) -> Problem {
        self.retry_after_s = Some(seconds);
        self
    }
}

/// What the caller should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// Send the same again, later.
    Retry,
    /// Request a new lease.
    Reacquire,
    /// Change the request or stop.
    Stop,
    /// Only an operator can correct this.
    TellOperator,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $status:literal, $remedy:ident;)*) => {
        /// Why a request was refused: a closed set.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[serde(rename_all = "snake_case")]
        pub enum Code { $($(#[$doc])* $name,)* }
        impl Code {
            /// Its spelling in JSON.
            pub const fn as_str(self) -> &'static str { match self { $(Code::$name => $text,)* } }
            /// The HTTP status it comes with.
            pub const fn status(self) -> u16 { match self { $(Code::$name => $status,)* } }
            /// All codes.
            pub const ALL: &[Code] = &[$(Code::$name,)*];
            /// What the caller should do.
            pub const fn remedy(self) -> Remedy { match self { $(Code::$name => Remedy::$remedy,)* } }
        }
    };
}

codes! {
    /// The request could not be read: not JSON, an unknown field, a wrong type.
    BadRequest = "bad_request", 400, Stop;
    /// The request was read, and a value in it is invalid.
    BadValue = "bad_value", 422, Stop;
    /// No such lease, or not the caller's.
    NoSuchLease = "no_such_lease", 404, Stop;
    /// No such GPU.
    NoSuchGpu = "no_such_gpu", 404, Stop;
    /// No such path.
    NoSuchPath = "no_such_path", 404, Stop;
    /// The path does not take this method.
    BadMethod = "bad_method", 405, Stop;
    /// Only an operator may do this.
    Denied = "denied", 403, Stop;
    /// The caller has no such aside of the GPU any more.
    NoSuchAside = "no_such_aside", 404, Stop;
    /// The GPU steps aside for the most requests that are allowed.
    TooManyAsides = "too_many_asides", 409, Stop;
    /// The process does not exist, or is not the caller's.
    NotYourProcess = "not_your_process", 403, Stop;
    /// The call has no token, or an unknown one.
    Unauthenticated = "unauthenticated", 401, Stop;
    /// The token has expired.
    TokenExpired = "token_expired", 401, Stop;
    /// The token may only read.
    ReadOnly = "read_only", 403, Stop;
    /// The request is above the cap of the token.
    TokenCap = "token_cap", 403, Stop;
    /// A process can be named only on the host's own socket.
    PidNotLocal = "pid_not_local", 403, Stop;
    /// No such token, or not the caller's.
    NoSuchToken = "no_such_token", 404, Stop;
    /// The most tokens that are allowed exist already.
    TooManyTokens = "too_many_tokens", 409, Stop;
    /// An entry of this number is, or was, in the chain already.
    EntryTaken = "entry_taken", 409, Stop;
    /// The entry before this one does not exist.
    EntryOutOfOrder = "entry_out_of_order", 409, Stop;
    /// The register, the number of the user's registers or the daemon's disk is at its limit; nothing was created.
    RegisterFull = "register_full", 507, TellOperator;
    /// The register broke off or did not answer; the entry may have been created.
    RegisterUnavailable = "register_unavailable", 503, Retry;
    /// The register's file cannot be used.
    RegisterDamaged = "register_damaged", 503, TellOperator;
    /// More calls than this tenant, or this address, may make.
    TooManyRequests = "too_many_requests", 429, Retry;
    /// The call has an old fence.
    Fenced = "fenced", 409, Reacquire;
    /// The lease has ended.
    LeaseEnded = "lease_ended", 410, Reacquire;
    /// The lease is not active yet.
    LeaseNotActive = "lease_not_active", 409, Retry;
    /// The lease no longer waits.
    LeaseActive = "lease_active", 409, Stop;
    /// The holder cannot be parked now.
    NotParkable = "not_parkable", 409, Stop;
    /// No unleased process with this id and of the caller is on a GPU.
    NoSuchUnleasedProcess = "no_such_unleased_process", 404, Stop;
    /// That process cannot have a lease now.
    NotAdoptable = "not_adoptable", 409, Stop;
    /// Unleased processes cannot be ended on this host.
    CannotEnforce = "cannot_enforce", 409, TellOperator;
    /// The most rules that are allowed exist already.
    TooManyRules = "too_many_rules", 409, Stop;
    /// No such rule.
    NoSuchRule = "no_such_rule", 404, Stop;
    /// No GPU was found on this host.
    NoGpus = "no_gpus", 503, TellOperator;
    /// No GPU, even if it were empty, could hold this request.
    NeverFits = "never_fits", 422, Stop;
    /// The request is smaller than a CUDA context on the GPU.
    BelowContext = "below_context", 422, Stop;
    /// There is no room now, and the caller does not want to wait.
    NoRoom = "no_room", 409, Retry;
    /// The request is above what this tenant may hold.
    OverCap = "over_cap", 403, Stop;
    /// The most processes that are allowed are bound to the lease already.
    TooManyProcesses = "too_many_processes", 409, Stop;
    /// The process belongs to another lease, which is parking, parked or resuming.
    ProcessParked = "process_parked", 409, Stop;
    /// The queue, or this tenant's part of it, is full.
    QueueFull = "queue_full", 429, Retry;
    /// Too many connections or waits.
    TooBusy = "too_busy", 503, Retry;
    /// The body is too large.
    TooLarge = "too_large", 413, Stop;
    /// The body did not arrive in time.
    TooSlow = "too_slow", 408, Retry;
    /// The Idempotency-Key was used for another request.
    KeyReused = "key_reused", 422, Stop;
    /// The first request with this Idempotency-Key is still under way.
    KeyInUse = "key_in_use", 409, Retry;
    /// The disk is full: no new leases are granted; releases still work.
    DiskFull = "disk_full", 507, TellOperator;
    /// Lines of the journal are missing: no new leases are granted until an operator accepts that.
    JournalLoss = "journal_loss", 503, TellOperator;
    /// No line of the journal is known to be missing.
    NoLoss = "no_loss", 409, Stop;
    /// The journal could not be written; nothing was acknowledged.
    JournalFailed = "journal_failed", 503, Retry;
    /// The daemon is stopping.
    Stopping = "stopping", 503, Retry;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_spelt_alike_in_json_and_in_the_type() {
        for code in Code::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }
}
