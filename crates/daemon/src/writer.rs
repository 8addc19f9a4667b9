//! The thread that writes: one batch at a time, and whatever waited for it
//! leaves from here the moment it is on the disk.

use crate::mail::{Held, Mail, Synced};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use sublet_host::Host;
use sublet_journal::{Batch, CommitError, Journal};
use tokio::sync::watch;

/// A word to the writer.
pub enum Order {
    /// Write this, then let that leave.
    Commit(Box<Batch>, Vec<Held>),
    /// Do a piece of housekeeping.
    Tidy,
    /// See whether the disk has room for the ballast again.
    TryBallast,
}

/// How much history is kept; beyond it the oldest is folded away.
mod keep {
    /// Lines of the log: some 300 MB, months of a busy card.
    pub const LOG: u64 = 1_000_000;
    /// Ended leases.
    pub const PAST: u64 = 1_000_000;
    /// Stored answers.
    pub const ANSWERS: u64 = super::super::keys::KEYS_MAX as u64;
    /// A piece of housekeeping once in so many lines; a piece takes away up to 1,024.
    pub const EVERY: usize = 1_000;
    /// Stored answers live a day.
    pub const ANSWERS_US: u64 = 86_400_000_000;
}

/// What writes: the journal, and who is told. One writes at a time: the writer's thread, or the loop
/// itself when it has nothing else to do (a wake-up less for a lone request).
pub struct Pen {
    journal: Journal,
    host: Arc<Host>,
    synced: watch::Sender<u64>,
    lines: usize,
}

impl Pen {
    /// A pen for this journal.
    pub fn new(journal: Journal, host: Arc<Host>, synced: watch::Sender<u64>) -> Pen {
        Pen { journal, host, synced, lines: 0 }
    }

    /// Writes a batch; what it held leaves the moment it is on the disk.
    pub fn write(&mut self, batch: &Batch, held: Vec<Held>) -> Synced {
        match self.journal.commit(batch) {
            Ok(seq) => {
                self.synced.send_replace(seq);
                held.into_iter().for_each(|held| held.release(&self.host));
                self.lines += batch.entries.len() + batch.answers.len();
                Synced::Done
            }
            Err(error) => failed(&mut self.journal, error, held),
        }
    }

    /// Whether enough was written for a piece of housekeeping.
    pub fn is_due(&self) -> bool {
        self.lines >= keep::EVERY
    }

    fn tidy(&mut self) {
        if self.is_due() {
            self.lines = 0;
            tidy(&mut self.journal);
        }
    }
}

/// Writes until nobody sends orders any more.
pub fn run(pen: Arc<Mutex<Pen>>, orders: Receiver<Order>, mail: Sender<Mail>) {
    for order in orders {
        let mut pen = pen.lock().unwrap_or_else(PoisonError::into_inner);
        match order {
            Order::Commit(batch, held) => {
                let done = pen.write(&batch, held);
                if mail.send(Mail::Synced(done)).is_err() {
                    return;
                }
                pen.tidy();
            }
            Order::Tidy => pen.tidy(),
            Order::TryBallast => match pen.journal.restore_ballast() {
                Ok(true) => drop(mail.send(Mail::DiskFreed)),
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "the ballast cannot be restored"),
            },
        }
    }
}

/// A failed commit has no undo: the state is dropped and rebuilt from the disk.
/// After a failed fsync not even that can be trusted, and the daemon exits.
fn failed(journal: &mut Journal, error: CommitError, held: Vec<Held>) -> Synced {
    if let CommitError::Full(_) = &error {
        tracing::error!(error = %chain(&error), "the disk is full: no new leases until there is room");
        if let Err(error) = journal.give_up_ballast() {
            tracing::error!(%error, "the ballast cannot be given up");
        }
        match journal.reload() {
            Ok(loaded) => return Synced::Failed { error, loaded: Box::new(loaded), held },
            Err(error) => tracing::error!(error = %chain(&error), "the journal cannot be read back"),
        }
    } else {
        tracing::error!(error = %chain(&error), "the journal cannot be trusted: exiting, a restart reads it anew");
    }
    // Not a clean way out: nothing may be acknowledged any more.
    std::process::exit(74)
}

fn tidy(journal: &mut Journal) {
    let now = u64::try_from(sublet_host::clock::unix_us()).unwrap_or(0);
    let forgotten = journal.forget(now.saturating_sub(keep::ANSWERS_US), keep::ANSWERS, keep::PAST);
    let trimmed = journal.trim(keep::LOG);
    if let Err(error) = forgotten.map(drop).and(trimmed.map(drop)) {
        tracing::warn!(error = %chain(&error), "old history could not be folded away; it stays");
    }
}

/// An error with its causes, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
