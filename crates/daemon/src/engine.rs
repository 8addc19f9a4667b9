//! The state and the batch that is open over it.
//!
//! No threads, no clock, no disk: the daemon's loop drives it with real ones, the simulation with a disk that fails at every
//! write. *Nothing that depends on an action leaves before the batch that holds it is durable*: what must wait is
//! [held](Engine::hold) here, and comes out of [`Engine::close`] together with the batch it waits for.

use std::sync::Arc;
use sublet_core::action::Action;
use sublet_core::event::{Event, EventAnswer};
use sublet_core::facts::LeaseAction;
use sublet_core::rows::{EndedLease, Rows};
use sublet_core::settings::Policy;
use sublet_core::units::Time;
use sublet_core::{State, decide};
use sublet_journal::{Batch, LogEntry, OpenBatch, StoredAnswer};

/// The state, the open batch, and what waits for it. `R` is whatever must not leave early.
#[derive(Debug)]
pub struct Engine<R> {
    state: State,
    open: OpenBatch,
    held: Vec<R>,
    version: u64,
}

/// What came of an event.
#[derive(Debug)]
pub struct Decided {
    /// For whoever caused it.
    pub answer: EventAnswer,
    /// What was decided.
    pub actions: Vec<Action>,
    /// Leases that became history.
    pub past: Vec<EndedLease>,
}

impl<R> Engine<R> {
    /// Begins from what the disk has.
    pub fn new(rows: Rows, policy: Policy) -> Engine<R> {
        Engine { state: State::new(rows, policy), open: OpenBatch::default(), held: Vec::new(), version: 0 }
    }

    /// The same on a disk that is known to be full: nothing is granted from the first event on.
    pub fn on_a_full_disk(rows: Rows, policy: Policy) -> Engine<R> {
        let state = State::new(rows, policy).on_a_full_disk();
        Engine { state, open: OpenBatch::default(), held: Vec::new(), version: 0 }
    }

    /// What is known now, decided but perhaps not yet durable: whoever shows it
    /// to the world must [hold](Engine::hold) it.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Another number for another state: it grows with every event.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// For planting bugs in the simulation.
    pub fn state_mut(&mut self) -> &mut State {
        self.version += 1;
        &mut self.state
    }

    /// Takes in one event: decides, applies, and enters it all into the open batch.
    pub fn take(&mut self, now: Time, wall_us: u64, actor: &Arc<str>, event: Event) -> Decided {
        self.version += 1;
        let outcome = decide(&mut self.state, now, event);
        let mut past = outcome.past.iter().peekable();
        for action in &outcome.actions {
            let ended = past.next_if(|ended| action.lease() == Some(ended.id) && ends(action));
            let entry = LogEntry { actor: Arc::clone(actor), action: action.clone(), at: now, wall_us };
            self.open.push(entry, ended.cloned());
        }
        Decided { answer: outcome.answer, actions: outcome.actions, past: outcome.past }
    }

    /// Keeps an answer for its Idempotency-Key, in the transaction of what it answers.
    pub fn store(&mut self, answer: StoredAnswer) {
        self.open.answer(answer);
    }

    /// Holds something back until all that was decided so far is durable.
    pub fn hold(&mut self, release: R) {
        self.held.push(release);
    }

    /// How much is held back.
    pub fn waiting(&self) -> usize {
        self.held.len()
    }

    /// Whether there is nothing to write and nothing held back.
    pub fn is_idle(&self) -> bool {
        self.open.is_empty() && self.held.is_empty()
    }

    /// Closes the open batch: what to write, and what may leave once it is synced.
    pub fn close(&mut self, now: Time) -> (Batch, Vec<R>) {
        (self.open.close(self.state.rows(), now), std::mem::take(&mut self.held))
    }
}

fn ends(action: &Action) -> bool {
    matches!(action, Action::Lease(LeaseAction::End { .. } | LeaseAction::Retire { .. }))
}
