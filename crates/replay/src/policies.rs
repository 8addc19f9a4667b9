//! The policies that are compared: each is the core's own [`Policy`].

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use sublet_core::settings::{Caps, HeadStart, Parking, Policy};
use sublet_core::units::{Bytes, Span};

/// One of the policies that can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyName {
    /// First come, first served.
    Fifo,
    /// The daemon's default.
    Fair,
}

impl PolicyName {
    /// All of them.
    pub const ALL: [PolicyName; 2] = [PolicyName::Fifo, PolicyName::Fair];
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PolicyName::Fifo => "fifo",
            PolicyName::Fair => "fair",
        })
    }
}

impl FromStr for PolicyName {
    type Err = String;
    fn from_str(text: &str) -> Result<PolicyName, String> {
        PolicyName::ALL
            .into_iter()
            .find(|name| name.to_string() == text)
            .ok_or_else(|| format!("`{text}` is not a policy; there are `fifo` and `fair`"))
    }
}

/// The policy of that name on a host with these rules.
pub fn policy(name: PolicyName, rules: &Policy) -> Policy {
    match name {
        PolicyName::Fair => rules.clone(),
        PolicyName::Fifo => {
            let none = Span::ZERO;
            let head_start = HeadStart { interactive: none, batch: none, spot: none, priority: none };
            Policy { head_start, debt_max: none, counts_from_first_place: false, ..rules.clone() }
        }
    }
}

/// The same policy for a replay, in which time jumps from event to event and no request gives up.
///
/// A trace does not say which jobs could be parked: all can, in `parking` bytes of host memory, or none.
pub fn for_replay(policy: Policy, places: Option<u32>, parking: Option<Bytes>) -> Policy {
    let parking = match parking {
        Some(ram) => Parking { space: ram, keep_available: Bytes::ZERO, ..policy.parking.clone() },
        None => Parking { preempt: false, ..policy.parking.clone() },
    };
    Policy {
        parking,
        // A GPU is read when a lease ended there. Nothing else changes it, so a reading stays valid.
        period: Span::secs(1 << 40),
        reads_after: Some(Span(1)),
        // Jumps in time are no stalls of a daemon.
        grace: Span::ZERO,
        queue_max: usize::MAX,
        caps: Caps { places, ..policy.caps },
        caps_of: policy
            .caps_of
            .into_iter()
            .map(|(who, caps)| (who, Caps { places, ..caps }))
            .collect::<BTreeMap<_, _>>(),
        ..policy
    }
}
