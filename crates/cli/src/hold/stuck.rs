//! A program that was told to end while it is off its GPUs, and may need them to end in order.
//!
//! ```text
//!   SIGTERM ──1 s──► off its GPUs? ──no──► looks again
//!                      │ yes
//!                      ├─ a daemon answers: the lease is asked to resume, once
//!                      └─ none does, 10 s after SIGTERM: SIGKILL
//! ```
//! A program that the driver parked stands still and cannot ask for its GPUs by itself. While a daemon answers, the
//! program is in the queue for them and ends when it has them: no more is done here.

use super::child::Started;
use crate::client::Client;
use crate::output::say;
use signal_hook::consts::SIGKILL;
use std::thread;
use std::time::{Duration, Instant};
use sublet_wire::LeaseState;

/// As much as most services give a program to end in order.
const GRACE: Duration = Duration::from_secs(10);
/// Before the first look, and between two.
const LOOK: Duration = Duration::from_secs(1);
/// For an answer while there is time: the command's end is not noticed meanwhile.
const ANSWER_SOON: Duration = Duration::from_millis(300);
/// A daemon that restarts has answered by then.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// Whether a command is stuck.
#[derive(Debug, Default)]
pub struct Stuck {
    is_away: bool,
    told: Option<Instant>,
    look_at: Option<Instant>,
    /// Its lease was asked to resume.
    asked: bool,
}

impl Stuck {
    /// Its lease is in this state now.
    pub fn moved(&mut self, state: LeaseState) {
        self.is_away = matches!(state, LeaseState::Parking | LeaseState::Parked | LeaseState::Resuming);
    }

    /// It was told to end.
    pub fn told_to_end(&mut self) {
        if self.told.is_none() {
            self.told = Some(Instant::now());
            self.look_at = Some(Instant::now() + LOOK);
        }
    }

    /// When to look next.
    pub fn look_at(&self) -> Option<Instant> {
        self.look_at
    }

    /// Helps it to end if it is off its GPUs.
    pub fn look(&mut self, client: &Client, id: &str, started: Started) {
        if self.look_at.is_none_or(|at| at > Instant::now()) {
            return;
        }
        self.look_at = Some(Instant::now() + LOOK);
        if !self.is_away {
            return;
        }
        let is_late = self.told.is_some_and(|told| told.elapsed() >= GRACE);
        match client.lease(id, if is_late { ANSWER_WITHIN } else { ANSWER_SOON }) {
            Ok(lease) if lease.state == LeaseState::Parked && lease.waiting.is_none() && !self.asked => {
                self.asked = true;
                let (client, id) = (client.clone(), id.to_owned());
                // On a thread of its own: the command's end must not wait for the answer.
                thread::spawn(move || drop(client.command(&id, "resume")));
            }
            Err(error) if is_late && error.is_silence() => {
                self.look_at = None;
                say!("{id} is parked, and no daemon answers that could bring it back: its program cannot end in order");
                say!("it gets SIGKILL, {} s after SIGTERM", GRACE.as_secs());
                started.signal(SIGKILL);
            }
            Ok(_) | Err(_) => {}
        }
    }
}
