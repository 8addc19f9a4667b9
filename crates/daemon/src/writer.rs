//! The thread that writes: one batch at a time. What waited for a batch leaves from here once it is on the disk.
//!
//! ```text
//!   Commit ──► watermarks ahead? ──► journal, one fsync ──► Synced to the loop ──► the batch's outputs
//! ```
//! The loop hears first that the batch is durable: a client may repeat its request as soon as it has its answer, and the
//! loop must know the answer by then.
//!
//! A lone request's batch is written by the loop's thread, which has nothing else to do: on an idle machine it costs a third
//! of a sync to wake another thread. One thread writes at a time.

use crate::effects::Effects;
use crate::inbox::InboxSender;
use crate::looper::{ClosedBatch, CommitResult, LoopInput, Output, WriterTask};
use crate::watermarks::Watermarks;
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use sublet_core::rows::Meta;
use sublet_journal::{CommitError, Journal, TRIM_EVERY};
use sublet_wire::exit;
use tokio::sync::watch;

/// An order to the writer.
#[derive(Debug)]
pub enum WriterOrder {
    /// Write this.
    Commit(ClosedBatch),
    /// Do something else.
    Task(WriterTask),
    /// Do a piece of housekeeping.
    Tidy,
    /// Nothing more comes.
    Stop,
}

/// How many answers are kept. The configuration says how much history is; older history is folded away.
mod keep {
    use crate::idempotency::{ANSWERS_MAX, ANSWERS_OF_TENANT};
    use sublet_journal::AnswerLimits;

    /// Stored answers.
    pub const ANSWERS: AnswerLimits = AnswerLimits { of_tenant: ANSWERS_OF_TENANT as u64, all: ANSWERS_MAX as u64 };
    /// Stored answers live a day.
    pub const ANSWERS_US: u64 = 86_400_000_000;
}

/// The journal, its watermarks and its housekeeping.
pub struct JournalWriter {
    journal: Journal,
    watermarks: Watermarks,
    /// The next lease number, as of the last batch.
    next_lease: Option<u64>,
    effects: Effects,
    inbox: InboxSender,
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
    /// A writer of this journal.
    pub fn new(
        journal: Journal,
        watermarks: Watermarks,
        (effects, inbox): (Effects, InboxSender),
        synced: watch::Sender<u64>,
        history: u64,
    ) -> JournalWriter {
        tell_head(&journal);
        JournalWriter {
            journal,
            watermarks,
            next_lease: None,
            effects,
            inbox,
            synced,
            lines: 0,
            tidy_after: TRIM_EVERY,
            history,
            begun: (Instant::now(), crate::loop_thread::wall_us()),
            ballast_trouble: None,
        }
    }

    /// Writes a batch, and carries out its outputs once it is durable.
    pub fn write(&mut self, ClosedBatch { batch, outputs }: ClosedBatch) {
        if let Some(meta) = &batch.meta {
            self.keep_watermarks_ahead(meta);
        }
        match self.journal.commit(&batch) {
            Ok(seq) => {
                drop(self.inbox.send(LoopInput::Synced(CommitResult::Done)));
                self.synced.send_replace(seq);
                outputs.into_iter().for_each(|output| self.effects.carry_out(output));
                self.lines += batch.entries.len() + batch.answers.len();
            }
            Err(error) => {
                let result = failed(&mut self.journal, &error, outputs);
                drop(self.inbox.send(LoopInput::Synced(result)));
            }
        }
    }

    /// No number leaves that a restart after a lost batch could hand out again.
    fn keep_watermarks_ahead(&mut self, meta: &Meta) {
        if let Err(error) = self.watermarks.keep_ahead(meta.next_fence) {
            tracing::warn!(%error, "the watermark of fences could not be written; retrying");
        }
        if let Err(error) = self.watermarks.keep_leases_ahead(meta.next_lease) {
            tracing::warn!(%error, "the watermark of lease numbers could not be written; retrying");
        }
        self.next_lease = Some(meta.next_lease);
    }

    /// True if enough was written for a piece of housekeeping.
    pub fn is_tidy_due(&self) -> bool {
        self.lines >= self.tidy_after
    }

    fn close_watermarks(&mut self) {
        if let Some(next_lease) = self.next_lease {
            // Without it there is a hole in the numbers of leases, as after a crash.
            let _ = self.watermarks.close(next_lease);
        }
    }

    fn tidy(&mut self) {
        if self.is_tidy_due() {
            let now = self.wall_us();
            let removed = tidy(&mut self.journal, now, self.history);
            // Where nothing was too old or too much, a look less often finds it early enough.
            (self.lines, self.tidy_after) = (0, if removed > 0 { TRIM_EVERY } else { 10 * TRIM_EVERY });
        }
    }

    /// Makes the ballast again; true if it is there.
    fn restore_ballast(&mut self) -> bool {
        let restored = self.journal.restore_ballast();
        let trouble = restored.as_ref().err().map(ToString::to_string);
        if let Some(error) = trouble.as_ref().filter(|_| trouble != self.ballast_trouble) {
            tracing::warn!(%error, "the ballast could not be restored; retrying");
        }
        self.ballast_trouble = trouble;
        restored.unwrap_or(false)
    }

    /// The wall clock as it was at the start, and the time that passed since: no answer is forgotten because the clock was set.
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

/// Carries out orders until nothing more comes.
pub fn run(journal: &Mutex<JournalWriter>, orders: &Receiver<WriterOrder>) {
    for order in orders {
        // A panic in there ends the daemon.
        let mut writer = journal.lock().unwrap_or_else(PoisonError::into_inner);
        match order {
            WriterOrder::Commit(batch) => {
                writer.write(batch);
                writer.tidy();
            }
            WriterOrder::Tidy => writer.tidy(),
            WriterOrder::Task(WriterTask::RestoreBallast) => {
                if writer.restore_ballast() {
                    drop(writer.inbox.send(LoopInput::DiskFreed));
                }
            }
            WriterOrder::Task(WriterTask::ProbeRoom) => {
                let has_room = writer.journal.may_have_room();
                drop(writer.inbox.send(LoopInput::RoomProbed { has_room }));
            }
            WriterOrder::Stop => return writer.close_watermarks(),
        }
    }
}

/// A failed commit has no undo: the state is dropped and rebuilt from the disk.
/// After a failed fsync not even that can be trusted, and the daemon exits.
fn failed(journal: &mut Journal, error: &CommitError, outputs: Vec<Output>) -> CommitResult {
    // The loop knows whether this is news, and tells it then.
    if let CommitError::Full(_) = error {
        if let Err(error) = journal.give_up_ballast() {
            tracing::error!(%error, "the ballast could not be freed");
        }
        match journal.reload() {
            Ok(loaded) => return CommitResult::Failed { why: chain(error), loaded: Box::new(loaded), outputs },
            Err(error) => tracing::error!(error = %chain(&error), "the journal cannot be read back"),
        }
    } else {
        tracing::error!(error = %chain(error), "the journal cannot be trusted: exiting; a restart reads it again");
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
