//! How often each local user may call on the Unix socket.
//!
//! A call beyond that is answered late: a program that calls again at once would otherwise keep the daemon as busy with
//! refusals as with work.
//!
//! All calls share the one loop, so calls of one user cost all others. The default is far above what a program needs.
//! Operators are not limited: they can stop the daemon anyway. Renewals and releases have a budget of their own, so
//! that a user that calls too often loses no lease by it.

use super::gate;
use super::rate::{CallRates, Rate, TooSoon};
use axum::http::Request;
use std::time::{Duration, Instant};
use sublet_core::event::Caller;
use sublet_wire::{Code, Problem};

/// How long a refusal is held back: the shortest that a caller is told to wait.
pub const HELD_BACK: Duration = Duration::from_secs(1);

/// What a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It keeps a lease alive or gives it back.
    Keep,
    /// Anything else.
    Other,
}

impl Purpose {
    /// The purpose of a request.
    pub fn of<B>(request: &Request<B>) -> Purpose {
        if gate::keeps_lease_alive(request) { Purpose::Keep } else { Purpose::Other }
    }
}

/// The budgets of all local users.
#[derive(Debug)]
pub struct LocalRate {
    others: CallRates<String>,
    keepers: CallRates<String>,
}

impl LocalRate {
    /// This rate for each user.
    pub fn new(rate: Rate) -> LocalRate {
        LocalRate { others: CallRates::new(rate), keepers: CallRates::new(rate) }
    }

    /// Changes the rate.
    pub fn set(&self, rate: Rate) {
        self.others.set(rate);
        self.keepers.set(rate);
    }

    /// Lets a call through, or returns when the caller may try again.
    pub fn admit(&self, by: &Caller, purpose: Purpose, now: Instant) -> Result<(), Problem> {
        if by.operator {
            return Ok(());
        }
        let rates = match purpose {
            Purpose::Keep => &self.keepers,
            Purpose::Other => &self.others,
        };
        rates.take(&by.tenant, now).map_err(|TooSoon { after_s }| {
            Problem::new(Code::TooManyRequests, "your programs call more often than a user may on this host")
                .hint("let them wait between calls; an operator can raise `requests_per_s` in `[socket]`")
                .retry_after(after_s)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(tenant: &str, operator: bool) -> Caller {
        Caller { tenant: tenant.to_owned(), groups: Vec::new(), operator, token: None }
    }

    #[test]
    fn user_that_calls_too_often_is_refused_alone_and_can_still_release() {
        let (rate, now) = (LocalRate::new(Rate { per_s: 1.0, burst: 3.0 }), Instant::now());
        let (ann, bob, root) = (caller("uid:1000", false), caller("uid:1001", false), caller("uid:0", true));
        let passed = (0..5).filter(|_| rate.admit(&ann, Purpose::Other, now).is_ok()).count();
        assert_eq!(passed, 3);
        let refused = rate.admit(&ann, Purpose::Other, now).unwrap_err();
        assert_eq!((refused.status, refused.retry_after_s), (429, Some(1)));
        assert!(rate.admit(&ann, Purpose::Keep, now).is_ok());
        assert!(rate.admit(&bob, Purpose::Other, now).is_ok());
        assert!((0..100).all(|_| rate.admit(&root, Purpose::Other, now).is_ok()), "operators are not limited");
    }
}
