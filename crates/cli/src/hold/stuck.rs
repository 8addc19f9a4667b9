//! A program that was told to end while it is off its GPUs, and may need them to end in order.
//!
//! ```text
//!   SIGTERM ──1 s──► off its GPUs? ──no──► looks again
//!                      │ yes
//!                      ├─ a daemon answers: the lease is asked to resume, once
//!                      └─ none does, 10 s after SIGTERM: SIGKILL
//! ```
//! A program that the driver parked is stopped and cannot ask for its GPUs itself. While a daemon answers, the program
//! is in the queue for them and ends once it has them; nothing more is done here.

use super::child::Started;
use crate::client::Client;
use crate::output::say;
use signal_hook::consts::SIGKILL;
use std::thread;
use std::time::{Duration, Instant};
use sublet_wire::LeaseState;

/// The time that most service managers give a program to end in order.
const GRACE: Duration = Duration::from_secs(10);
/// The pause before the first check, and between two checks.
const LOOK: Duration = Duration::from_secs(1);
/// The time limit for an answer before the grace period is over. It is short, because the end of the command is not
/// noticed meanwhile.
const ANSWER_SOON: Duration = Duration::from_millis(300);
/// Enough time for a daemon that restarts to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// Detects that a command was told to end while its lease is parked.
#[derive(Debug, Default)]
pub struct Stuck {
    is_away: bool,
    told: Option<Instant>,
    look_at: Option<Instant>,
    /// The lease was asked to resume.
    asked: bool,
}

impl Stuck {
    /// The lease changed to this state.
    pub fn moved(&mut self, state: LeaseState) {
        self.is_away = matches!(state, LeaseState::Parking | LeaseState::Parked | LeaseState::Resuming);
    }

    /// The command was told to end.
    pub fn told_to_end(&mut self) {
        if self.told.is_none() {
            self.told = Some(Instant::now());
            self.look_at = Some(Instant::now() + LOOK);
        }
    }

    /// The time of the next check; `None` if there is none.
    pub fn look_at(&self) -> Option<Instant> {
        self.look_at
    }

    /// Helps the command to end if its lease is off its GPUs.
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
                // On its own thread: the end of the command must not wait for the answer.
                thread::spawn(move || drop(client.command(&id, "resume")));
            }
            Err(error) if is_late && error.is_silence() => {
                self.look_at = None;
                say!("{id} is parked, and no daemon answers that could resume it: its program cannot handle SIGTERM");
                say!("it gets SIGKILL, {} s after SIGTERM", GRACE.as_secs());
                started.signal(SIGKILL);
            }
            Ok(_) | Err(_) => {}
        }
    }
}
