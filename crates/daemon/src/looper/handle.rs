//! Where the state is worked on, by one at a time: the loop's own thread, or a guest.
//!
//! ```text
//!   a request ──at rest──► decided, written and answered by the thread that read it
//!       └──anything under way──► mail ─► the loop's thread ─batch─► the writer ─► answers
//! ```
//! Each thread that a request passes through has to be woken, and on an idle machine two wake-ups cost as much as
//! a sync. So a request that finds the service at rest stays on its thread. When there are more, they pass through
//! mail: that gathers them into batches, and a sync for many costs as much as for one.

use super::{Loop, LoopGone, TURN};
use crate::loop_input::{CommitResult, Inbox, InboxSender, LoopInput, PendingEffect};
use crate::writer::{JournalWriter, WriterOrder};
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use sublet_journal::Batch;

/// A batch of so few lines is a lone request's: whoever closed it writes it.
const LONE: usize = 4;
/// So much that waits for the disk (each request has an answer and a word to the hands) is not kept waiting for more while
/// the disk does nothing. A crowd splits into halves by that: one is decided while the other is written.
pub(super) const ENOUGH: usize = 64;
/// So long after a larger batch more requests are likely.
const BUSY: Duration = Duration::from_millis(2);

/// The desk.
pub struct LoopHandle {
    looper: Mutex<Loop>,
    /// To the loop's own thread.
    mail: InboxSender,
    /// To the writer.
    orders: Sender<WriterOrder>,
    pen: Arc<Mutex<JournalWriter>>,
}

/// A closed batch: what is written, and what leaves then. There is one at a time.
pub struct ClosedBatch {
    /// What to write.
    pub batch: Box<Batch>,
    /// What leaves when it is on the disk.
    pub held: Vec<PendingEffect>,
}

impl ClosedBatch {
    fn is_lone(&self) -> bool {
        self.batch.entries.len() <= LONE
    }
}

/// How busy it was when a batch was last closed.
pub(super) struct RecentLoad {
    lone: bool,
    at: Instant,
}

impl RecentLoad {
    /// It begins at rest.
    pub(super) fn none() -> RecentLoad {
        RecentLoad { lone: true, at: Instant::now() }
    }

    /// As of now, with this batch.
    pub(super) fn with(work: &ClosedBatch) -> RecentLoad {
        RecentLoad { lone: work.is_lone(), at: Instant::now() }
    }

    /// Whether the next request is likely to be alone.
    pub(super) fn is_over(&self) -> bool {
        self.lone || self.at.elapsed() > BUSY
    }
}

impl LoopHandle {
    /// A desk for this loop, whose own thread reads `mail`.
    pub fn new(
        looper: Loop,
        mail: InboxSender,
        orders: Sender<WriterOrder>,
        pen: Arc<Mutex<JournalWriter>>,
    ) -> LoopHandle {
        LoopHandle { looper: Mutex::new(looper), mail, orders, pen }
    }

    /// Has a request's mail dealt with: here and now if the service is at rest. This may block for a sync then.
    pub fn bring(&self, mail: LoopInput) -> Result<(), LoopGone> {
        let _whole = AbortOnPanic;
        let at = match self.looper.try_lock() {
            Ok(at) if at.is_over() => return Err(LoopGone::Stopping),
            // What was sent before comes before.
            Ok(at) => Some(at).filter(|at| at.is_at_rest() && self.mail.are_read()),
            Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => None,
        };
        let Some(mut at) = at else { return self.mail.send(mail).map_err(|_| LoopGone::Stopping) };
        at.open(mail);
        let work = at.flush();
        at.wake_earlier();
        drop(at);
        match work {
            Some(work) if work.is_lone() => tokio::task::block_in_place(|| {
                let done = self.write(work);
                let next = {
                    let mut at = self.sit();
                    at.synced(done);
                    at.flush()
                };
                // Whoever waits for what was just written shall not wait for the next batch, too.
                next.into_iter().for_each(|work| self.order(work));
            }),
            Some(work) => self.order(work),
            None => {}
        }
        Ok(())
    }

    /// The loop's own thread: turns until it is told to stop and all is written.
    pub fn run(&self, inbox: &Inbox) {
        let (mut patience, mut next) = (Duration::ZERO, None);
        loop {
            let first = match next.take() {
                Some(mail) => Ok(mail),
                None => inbox.wait(patience),
            };
            let mut at = self.sit();
            let read = |at: &mut Loop, mail| {
                at.open(mail);
                inbox.is_read();
            };
            match first {
                Ok(mail) => read(&mut at, mail),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let turn = Instant::now();
            while turn.elapsed() < TURN && !at.has_enough() {
                match inbox.next() {
                    Some(mail) => read(&mut at, mail),
                    None => break,
                }
            }
            at.tick();
            let work = at.flush();
            if at.is_finished() {
                at.close();
                break;
            }
            patience = at.sleeps_for();
            drop(at);
            let Some(work) = work else { continue };
            if work.is_lone() {
                next = inbox.next();
            }
            if work.is_lone() && next.is_none() {
                let done = self.write(work);
                self.sit().synced(done);
                patience = Duration::ZERO;
            } else {
                self.order(work);
            }
        }
        drop(self.orders.send(WriterOrder::Stop));
    }

    /// Writes a lone request's batch on this thread, which has nothing else to do: a wake-up less.
    fn write(&self, work: ClosedBatch) -> CommitResult {
        let mut pen = self.pen.lock().unwrap_or_else(PoisonError::into_inner);
        let done = pen.write(&work.batch, work.held);
        if pen.is_due() {
            drop(self.orders.send(WriterOrder::Tidy));
        }
        done
    }

    fn order(&self, work: ClosedBatch) {
        // The writer goes only when the loop does, or with the whole process.
        drop(self.orders.send(WriterOrder::Commit(work)));
    }

    fn sit(&self) -> MutexGuard<'_, Loop> {
        // Whoever panics there takes the process along.
        self.looper.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A state that somebody left half changed is not gone on with.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            crate::serve::exit_after_panic();
        }
    }
}
