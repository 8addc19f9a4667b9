//! A program that was told to end and cannot: it is off its GPUs, needs them to end in order, and the daemon that
//! would bring it back does not answer.
//!
//! ```text
//!   SIGTERM ──10 s──► off its GPUs, and no daemon answers? ──yes──► SIGKILL
//!                       ▲             │ no
//!                       └─────1 s─────┘
//! ```
//! While a daemon answers, the program is in the queue for its GPUs and ends when it has them: nothing is done here.

use super::child::Started;
use crate::client::Client;
use crate::output::say;
use signal_hook::consts::SIGKILL;
use std::time::{Duration, Instant};
use sublet_wire::LeaseState;

/// As much as most services give a program to end in order.
const GRACE: Duration = Duration::from_secs(10);
/// Between two looks after that.
const LOOK: Duration = Duration::from_secs(1);
/// A daemon that restarts has answered by then.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// Whether a command is stuck.
#[derive(Debug, Default)]
pub struct Stuck {
    is_away: bool,
    look_at: Option<Instant>,
}

impl Stuck {
    /// Its lease is in this state now.
    pub fn moved(&mut self, state: LeaseState) {
        self.is_away = matches!(state, LeaseState::Parking | LeaseState::Parked | LeaseState::Resuming);
    }

    /// It was told to end.
    pub fn told_to_end(&mut self) {
        self.look_at.get_or_insert_with(|| Instant::now() + GRACE);
    }

    /// When to look next.
    pub fn look_at(&self) -> Option<Instant> {
        self.look_at
    }

    /// Ends it if it is stuck.
    pub fn look(&mut self, client: &Client, id: &str, started: Started) {
        if self.look_at.is_none_or(|at| at > Instant::now()) {
            return;
        }
        if self.is_away && client.lease(id, ANSWER_WITHIN).is_err_and(|error| error.is_silence()) {
            self.look_at = None;
            say!("{id} is parked, and no daemon answers that could bring it back: its program cannot end in order");
            say!("it gets SIGKILL, {} s after SIGTERM", GRACE.as_secs());
            started.signal(SIGKILL);
            return;
        }
        self.look_at = Some(Instant::now() + LOOK);
    }
}
