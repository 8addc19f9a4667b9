//! How often each local user may connect to the Unix socket.
//!
//! A connection beyond that is closed as it is accepted ([`acceptor`](super::acceptor)). Users that can stop the daemon
//! anyway are not limited: root, and the user it runs as.

use super::rate::{CallRates, Rate};
use rustix::process::getuid;
use std::time::Instant;

/// Commands of a user come one connection each. A crowd of programs that start together is within the burst.
const RATE: Rate = Rate { per_s: 500.0, burst: 1_000.0 };

/// New connections of each user.
#[derive(Debug)]
pub struct Arrivals {
    rates: CallRates<u32>,
    own_uid: u32,
}

impl Arrivals {
    /// None yet.
    pub fn new() -> Arrivals {
        Arrivals { rates: CallRates::new(RATE), own_uid: getuid().as_raw() }
    }

    /// Whether a connection of this user may begin.
    pub fn admit(&self, uid: u32, now: Instant) -> bool {
        uid == 0 || uid == self.own_uid || self.rates.take(&uid, now).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn user_that_connects_without_end_is_closed_alone_and_root_never() {
        let (arrivals, now) = (Arrivals { own_uid: 7, ..Arrivals::new() }, Instant::now());
        let admitted = |uid, at| (0..5_000).filter(|_| arrivals.admit(uid, at)).count();
        assert_eq!((admitted(1_000, now), admitted(1_001, now)), (1_000, 1_000));
        assert_eq!((admitted(0, now), admitted(7, now)), (5_000, 5_000));
        assert_eq!(admitted(1_000, now + Duration::from_secs(1)), 500);
    }
}
