//! What is known of a session after the studio was restarted.

use serde::{Deserialize, Serialize};
use sublet::Tier;

/// What a user asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRequest {
    /// The user.
    pub user: String,
    /// VRAM in bytes.
    pub vram_bytes: u64,
    /// The smallest lease that is of use, if a smaller one is.
    pub least_bytes: Option<u64>,
    /// Seconds from a renewal to the expiry.
    pub lease_secs: u64,
    /// The user waits at a screen.
    pub is_interactive: bool,
}

impl SessionRequest {
    /// An interactive session of this size, with leases of five minutes.
    pub fn interactive(user: impl Into<String>, vram_bytes: u64) -> SessionRequest {
        SessionRequest { user: user.into(), vram_bytes, least_bytes: None, lease_secs: 300, is_interactive: true }
    }

    /// Interactive sessions go before others.
    pub fn tier(&self) -> Tier {
        if self.is_interactive { Tier::Interactive } else { Tier::Batch }
    }
}

/// The record of a session, saved in blocks of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// The session.
    pub session: String,
    /// What was asked for.
    pub request: SessionRequest,
    /// When it last worked, in Unix seconds.
    pub last_activity_unix_s: f64,
}

impl SessionRecord {
    /// The record of a new session.
    pub fn new(session: &str, request: &SessionRequest, now: f64) -> SessionRecord {
        SessionRecord { session: session.to_owned(), request: request.clone(), last_activity_unix_s: now }
    }
}
