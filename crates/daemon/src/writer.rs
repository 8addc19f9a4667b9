//! The thread that writes: one batch at a time, and whatever waited for it
//! leaves from here the moment it is on the disk.

use crate::loop_input::{CommitResult, InboxSender, LoopInput, PendingEffect};
use crate::looper::ClosedBatch;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use sublet_host::Host;
use sublet_journal::{Batch, CommitError, Journal, TRIM_EVERY};
use sublet_wire::exit;
use tokio::sync::watch;

/// A word to the writer.
pub enum WriterOrder {
    /// Write this.
    Commit(ClosedBatch),
    /// Do a piece of housekeeping.
    Tidy,
    /// See whether the disk has room for the ballast again.
    TryBallast,
    /// Nothing more comes.
    Stop,
}

/// How many answers are kept. How much history is kept the house says; beyond it the
/// oldest is folded away.
mod keep {
    use crate::idempotency::{ANSWERS_MAX, ANSWERS_OF_TENANT};
    use sublet_journal::AnswerLimits;

    /// Stored answers.
    pub const ANSWERS: AnswerLimits = AnswerLimits { of_tenant: ANSWERS_OF_TENANT as u64, all: ANSWERS_MAX as u64 };
    /// Stored answers live a day.
    pub const ANSWERS_US: u64 = 86_400_000_000;
}

/// What writes: the journal, and who is told. One writes at a time: the writer's thread, or the loop
/// itself when it has nothing else to do (a wake-up less for a lone request).
pub struct JournalWriter {
    journal: Journal,
    host: Arc<Host>,
    synced: watch::Sender<u64>,
    lines: usize,
    /// Lines after which a piece of housekeeping is due.
    tidy_after: usize,
    /// Lines of the log, and ended leases, that are kept.
    history: u64,
    /// When it began, by both clocks.
    begun: (Instant, u64),
    /// What the log was last told about the ballast: it is tried every few seconds.
    ballast_trouble: Option<String>,
}

impl JournalWriter {
    /// A pen for this journal.
    pub fn new(journal: Journal, host: Arc<Host>, synced: watch::Sender<u64>, history: u64) -> JournalWriter {
        let wall_us = u64::try_from(sublet_host::clock::unix_us()).unwrap_or(0);
        tell_head(&journal);
        let (begun, tidy_after) = ((Instant::now(), wall_us), TRIM_EVERY);
        JournalWriter { journal, host, synced, lines: 0, tidy_after, history, begun, ballast_trouble: None }
    }

    /// Writes a batch; what it held leaves the moment it is on the disk.
    pub fn write(&mut self, batch: &Batch, held: Vec<PendingEffect>) -> CommitResult {
        match self.journal.commit(batch) {
            Ok(seq) => {
                self.synced.send_replace(seq);
                held.into_iter().for_each(|held| held.release(&self.host));
                self.lines += batch.entries.len() + batch.answers.len();
                CommitResult::Done
            }
            Err(error) => failed(&mut self.journal, error, held),
        }
    }

    /// Whether it is worth a try to write again.
    pub fn may_have_room(&self) -> bool {
        self.journal.may_have_room()
    }

    /// Whether enough was written for a piece of housekeeping.
    pub fn is_due(&self) -> bool {
        self.lines >= self.tidy_after
    }

    fn tidy(&mut self) {
        if self.is_due() {
            let now = self.wall_us();
            let removed = tidy(&mut self.journal, now, self.history);
            // Where nothing was too old or too much, a look less often finds it early enough.
            (self.lines, self.tidy_after) = (0, if removed > 0 { TRIM_EVERY } else { 10 * TRIM_EVERY });
        }
    }

    /// Whether the ballast is there again.
    fn restore_ballast(&mut self) -> bool {
        let restored = self.journal.restore_ballast();
        let trouble = restored.as_ref().err().map(ToString::to_string);
        if let Some(error) = trouble.as_ref().filter(|_| trouble != self.ballast_trouble) {
            tracing::warn!(%error, "the ballast could not be restored; retrying");
        }
        self.ballast_trouble = trouble;
        restored.unwrap_or(false)
    }

    /// The wall clock as it was, and what passed since: nobody's answers are forgotten because it was set.
    fn wall_us(&self) -> u64 {
        let (at, wall_us) = self.begun;
        wall_us + u64::try_from(at.elapsed().as_micros()).unwrap_or(0)
    }
}

impl Drop for JournalWriter {
    fn drop(&mut self) {
        tell_head(&self.journal);
    }
}

/// Where the audit trail ends, for the system's own log: a trail that was cut or written anew does not lead there.
fn tell_head(journal: &Journal) {
    let (seq, hash) = journal.head();
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    tracing::info!(line = seq, %hash, "the audit trail ends here");
}

/// Writes until it is told that nothing more comes.
pub fn run(pen: Arc<Mutex<JournalWriter>>, orders: Receiver<WriterOrder>, mail: InboxSender) {
    for order in orders {
        let mut pen = pen.lock().unwrap_or_else(PoisonError::into_inner);
        match order {
            WriterOrder::Commit(ClosedBatch { batch, held }) => {
                let done = pen.write(&batch, held);
                if mail.send(LoopInput::Synced(done)).is_err() {
                    return;
                }
                pen.tidy();
            }
            WriterOrder::Tidy => pen.tidy(),
            WriterOrder::TryBallast => {
                if pen.restore_ballast() {
                    drop(mail.send(LoopInput::DiskFreed));
                }
            }
            WriterOrder::Stop => return,
        }
    }
}

/// A failed commit has no undo: the state is dropped and rebuilt from the disk.
/// After a failed fsync not even that can be trusted, and the daemon exits.
fn failed(journal: &mut Journal, error: CommitError, held: Vec<PendingEffect>) -> CommitResult {
    // The loop knows whether this is news, and tells it then.
    if let CommitError::Full(_) = &error {
        if let Err(error) = journal.give_up_ballast() {
            tracing::error!(%error, "the ballast could not be freed");
        }
        match journal.reload() {
            Ok(loaded) => return CommitResult::Failed { error, loaded: Box::new(loaded), held },
            Err(error) => tracing::error!(error = %chain(&error), "the journal cannot be read back"),
        }
    } else {
        tracing::error!(error = %chain(&error), "the journal cannot be trusted: exiting; a restart reads it again");
    }
    // Not a clean way out: nothing may be acknowledged any more.
    std::process::exit(exit::DISK_FAILED.into())
}

/// Does a piece of housekeeping. Returns how much was removed.
fn tidy(journal: &mut Journal, now: u64, history: u64) -> u64 {
    let forgotten = journal.forget(now.saturating_sub(keep::ANSWERS_US), keep::ANSWERS, history);
    let trimmed = journal.trim(history);
    let removed = forgotten.and_then(|gone| Ok(gone.answers + gone.past + trimmed?));
    removed.unwrap_or_else(|error| {
        tracing::warn!(error = %chain(&error), "old history could not be trimmed; it is kept");
        0
    })
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
