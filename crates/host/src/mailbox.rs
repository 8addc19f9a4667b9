//! The queue of a thread: senders never block, and the thread can wait for it beside file descriptors.
//!
//! ```text
//!   MailboxSender ──message──► queue ──► Mailbox::next
//!        └───────notify──────► event ──► poll, epoll
//! ```
//! A message that is repeated anyway can be sent as *droppable*: it is dropped while too many such messages are unread, so a
//! thread that is held up does not collect them without bound.

use crate::wake::WakeEvent;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{self, Receiver, Sender};

/// The thread's end.
pub(crate) struct Mailbox<M> {
    queue: Receiver<Envelope<M>>,
    shared: Arc<Shared>,
}

/// A sender's end.
pub(crate) struct MailboxSender<M> {
    queue: Sender<Envelope<M>>,
    shared: Arc<Shared>,
}

struct Shared {
    wake: Arc<WakeEvent>,
    /// Unread messages.
    unread: AtomicUsize,
    /// Those of them that are droppable.
    droppable: AtomicUsize,
}

struct Envelope<M> {
    message: M,
    is_droppable: bool,
}

impl<M> Mailbox<M> {
    /// Both ends of a new queue.
    pub(crate) fn new() -> io::Result<(MailboxSender<M>, Mailbox<M>)> {
        let (sender, queue) = mpsc::channel();
        let wake = Arc::new(WakeEvent::new()?);
        let shared = Arc::new(Shared { wake, unread: AtomicUsize::new(0), droppable: AtomicUsize::new(0) });
        Ok((MailboxSender { queue: sender, shared: Arc::clone(&shared) }, Mailbox { queue, shared }))
    }

    /// The event that senders set. Clear it before the messages are read.
    pub(crate) fn wake(&self) -> &Arc<WakeEvent> {
        &self.shared.wake
    }

    /// The next message, if there is one.
    pub(crate) fn next(&self) -> Option<M> {
        let Envelope { message, is_droppable } = self.queue.try_recv().ok()?;
        self.shared.unread.fetch_sub(1, SeqCst);
        if is_droppable {
            self.shared.droppable.fetch_sub(1, SeqCst);
        }
        Some(message)
    }
}

impl<M> MailboxSender<M> {
    /// Sends a message and wakes the thread.
    pub(crate) fn send(&self, message: M) {
        self.push(message, false);
        self.wake();
    }

    /// Sends a message without waking the thread. Returns how many are unread then.
    pub(crate) fn send_quietly(&self, message: M) -> usize {
        self.push(message, false)
    }

    /// Sends a message that is repeated anyway, unless `max` such messages are unread.
    pub(crate) fn send_droppable(&self, message: M, max: usize) {
        if self.shared.droppable.fetch_add(1, SeqCst) >= max {
            self.shared.droppable.fetch_sub(1, SeqCst);
            return;
        }
        self.push(message, true);
        self.wake();
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        self.shared.wake.notify();
    }

    fn push(&self, message: M, is_droppable: bool) -> usize {
        let unread = self.shared.unread.fetch_add(1, SeqCst) + 1;
        // Fails only when the thread has ended, and then the message does not matter.
        let _ = self.queue.send(Envelope { message, is_droppable });
        unread
    }
}

impl<M> Clone for MailboxSender<M> {
    fn clone(&self) -> MailboxSender<M> {
        MailboxSender { queue: self.queue.clone(), shared: Arc::clone(&self.shared) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mailbox: &Mailbox<u32>) -> Vec<u32> {
        std::iter::from_fn(|| mailbox.next()).collect()
    }

    #[test]
    fn messages_arrive_in_order_and_wake_the_thread() {
        let (sender, mailbox) = Mailbox::new().unwrap();
        assert!(!mailbox.wake().is_set());
        sender.send(1);
        sender.clone().send(2);
        assert!(mailbox.wake().is_set());
        mailbox.wake().clear();
        assert_eq!(all(&mailbox), [1, 2]);
        assert!(!mailbox.wake().is_set());
    }

    #[test]
    fn quiet_messages_do_not_wake_the_thread_and_say_how_many_are_unread() {
        let (sender, mailbox) = Mailbox::new().unwrap();
        assert_eq!([sender.send_quietly(1), sender.send_quietly(2)], [1, 2]);
        assert!(!mailbox.wake().is_set());
        assert_eq!(all(&mailbox), [1, 2]);
        assert_eq!(sender.send_quietly(3), 1);
    }

    #[test]
    fn droppable_messages_are_dropped_while_too_many_are_unread_and_others_never() {
        let (sender, mailbox) = Mailbox::new().unwrap();
        for n in 0..4 {
            sender.send_droppable(n, 2);
            sender.send(10 + n);
        }
        assert_eq!(all(&mailbox), [0, 10, 1, 11, 12, 13]);
        sender.send_droppable(7, 2);
        assert_eq!(all(&mailbox), [7]);
    }
}
