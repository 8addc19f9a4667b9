//! The status of a lease as a program needs it: may it work, and if not, why.

use std::fmt;
use sublet_wire::{EndReason, Lease, LeaseState};

/// The status of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LeaseStatus {
    /// In the queue.
    Waiting,
    /// Granted: GPU work may start.
    Active,
    /// Its VRAM is being moved to host memory.
    Parking,
    /// Its VRAM is in host memory. A call of the GPU asks for it back, and waits.
    Parked,
    /// Its VRAM is being moved back.
    Resuming,
    /// Its time was over.
    Expired,
    /// It was ended before its time: by its user, an operator, or for another lease.
    Revoked,
    /// This program gave it back.
    Released,
    /// Another process has a newer grant of it.
    Fenced,
    /// Its time would be over by now, and the daemon does not answer: it may or may not have been extended.
    Disconnected,
}

impl LeaseStatus {
    const ALL: [LeaseStatus; 10] = [
        LeaseStatus::Waiting,
        LeaseStatus::Active,
        LeaseStatus::Parking,
        LeaseStatus::Parked,
        LeaseStatus::Resuming,
        LeaseStatus::Expired,
        LeaseStatus::Revoked,
        LeaseStatus::Released,
        LeaseStatus::Fenced,
        LeaseStatus::Disconnected,
    ];

    /// The status with this number.
    pub(crate) fn of_number(number: u8) -> LeaseStatus {
        LeaseStatus::ALL.get(usize::from(number)).copied().unwrap_or(LeaseStatus::Revoked)
    }

    /// The status that the daemon's answer means for a program that did not give the lease back itself.
    pub(crate) fn of(lease: &Lease) -> LeaseStatus {
        match lease.state {
            LeaseState::Waiting => LeaseStatus::Waiting,
            LeaseState::Active => LeaseStatus::Active,
            LeaseState::Parking => LeaseStatus::Parking,
            LeaseState::Parked => LeaseStatus::Parked,
            LeaseState::Resuming => LeaseStatus::Resuming,
            LeaseState::Ending | LeaseState::Ended => match lease.ended.as_ref().map(|end| end.reason) {
                Some(
                    EndReason::Expired
                    | EndReason::RenewalCap
                    | EndReason::TermOver
                    | EndReason::WaitOver
                    | EndReason::ParkExpired
                    | EndReason::Budget,
                ) => LeaseStatus::Expired,
                _ => LeaseStatus::Revoked,
            },
        }
    }

    /// Whether the lease holds memory for the program, on GPUs or in host memory.
    pub fn is_held(self) -> bool {
        matches!(self, LeaseStatus::Active | LeaseStatus::Parking | LeaseStatus::Parked | LeaseStatus::Resuming)
    }

    /// Whether the lease is over, whatever the daemon says later.
    pub fn is_over(self) -> bool {
        matches!(self, LeaseStatus::Expired | LeaseStatus::Revoked | LeaseStatus::Released | LeaseStatus::Fenced)
    }

    /// What to do next while the lease has this status.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            LeaseStatus::Waiting => "wait until it is granted",
            LeaseStatus::Active => "go on",
            LeaseStatus::Parking | LeaseStatus::Parked | LeaseStatus::Resuming => {
                "call `resume` on the lease, which waits until its memory is back"
            }
            LeaseStatus::Expired | LeaseStatus::Revoked | LeaseStatus::Released => {
                "acquire a new lease and go on from the newest checkpoint"
            }
            LeaseStatus::Fenced => "stop this process: another one has taken over",
            LeaseStatus::Disconnected => "check that the daemon runs (`sublet doctor`), then try again",
        }
    }
}

impl fmt::Display for LeaseStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LeaseStatus::Waiting => "waiting",
            LeaseStatus::Active => "active",
            LeaseStatus::Parking => "parking",
            LeaseStatus::Parked => "parked",
            LeaseStatus::Resuming => "resuming",
            LeaseStatus::Expired => "expired",
            LeaseStatus::Revoked => "revoked",
            LeaseStatus::Released => "released",
            LeaseStatus::Fenced => "fenced",
            LeaseStatus::Disconnected => "disconnected",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_survives_its_number() {
        for status in LeaseStatus::ALL {
            assert_eq!(LeaseStatus::of_number(status as u8), status);
        }
    }
}
