//! How other threads reach the loop: inputs in one queue, and the clients that wait for an answer by number.
//!
//! ```text
//!   HTTP, host, writer, reload ──LoopInput──► Inbox ──► loop thread
//!   LoopClient: awaits ◄── Clients (by ReplyId) ◄── Output ──┘
//! ```
//! The loop knows a client by its number only. What a reader does with the state stays here, until the loop says that the
//! moment to look has come ([`Clients::look`]) and, later, that what was seen is durable ([`Clients::finish`]).

use crate::history::History;
use crate::idempotency::repeated;
use crate::looper::{
    IdempotencyKey, KeyLookup, LeaseWatch, LoopCall, LoopInput, Reply, ReplyId, WatchGoal, stored_reply,
};
use crate::view::View;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SendError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use sublet_core::event::{Caller, Event};
use sublet_core::ids::LeaseId;
use sublet_wire::{Code, Lease, Problem};
use tokio::sync::oneshot;

/// The way to the loop.
#[derive(Clone)]
pub struct InboxSender(Sender<LoopInput>);

/// Where the loop's thread finds its inputs.
pub struct Inbox(Receiver<LoopInput>);

impl InboxSender {
    /// A way, and its end.
    pub fn new() -> (InboxSender, Inbox) {
        let (to, from) = mpsc::channel();
        (InboxSender(to), Inbox(from))
    }

    /// Sends an input; an error if the loop has stopped.
    pub fn send(&self, input: LoopInput) -> Result<(), SendError<LoopInput>> {
        self.0.send(input)
    }
}

impl Inbox {
    /// The next input, within this time.
    pub fn wait(&self, timeout: Duration) -> Result<LoopInput, RecvTimeoutError> {
        self.0.recv_timeout(timeout)
    }

    /// The next input, if there is one.
    pub fn next(&self) -> Option<LoopInput> {
        self.0.try_recv().ok()
    }
}

/// Runs once what a reader saw is durable.
pub type Release = Box<dyn FnOnce() + Send>;
/// What a reader does with the state.
pub type Look = Box<dyn FnOnce(&View<'_>) -> Release + Send>;

/// A client that waits.
enum Waiting {
    Call(oneshot::Sender<CallOutcome>),
    Lease(oneshot::Sender<Option<Lease>>),
    Look(Look),
    Seen(Release),
}

/// The answer to a call, or where it may be.
type CallOutcome = Result<Reply, Box<KeyLookup>>;

/// All clients that wait for the loop.
#[derive(Clone, Default)]
pub struct Clients(Arc<ClientTable>);

#[derive(Default)]
struct ClientTable {
    next: AtomicU64,
    waiting: Mutex<HashMap<ReplyId, Waiting>>,
}

impl Clients {
    fn waiting(&self) -> MutexGuard<'_, HashMap<ReplyId, Waiting>> {
        // No thread panics while it has the lock; the table is whole in any case.
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, waiting: Waiting) -> ReplyId {
        let id = ReplyId(self.0.next.fetch_add(1, Relaxed));
        self.waiting().insert(id, waiting);
        id
    }

    fn remove(&self, id: ReplyId) -> Option<Waiting> {
        self.waiting().remove(&id)
    }

    /// Adds a reader.
    pub fn add_reader(&self, look: Look) -> ReplyId {
        self.add(Waiting::Look(look))
    }

    /// Gives a call its outcome. A client that hung up does not want it.
    pub fn answer(&self, id: ReplyId, outcome: CallOutcome) {
        if let Some(Waiting::Call(reply)) = self.remove(id) {
            drop(reply.send(outcome));
        }
    }

    /// Gives a client the lease that it waited for.
    pub fn show(&self, id: ReplyId, lease: Option<Lease>) {
        if let Some(Waiting::Lease(reply)) = self.remove(id) {
            drop(reply.send(lease));
        }
    }

    /// A reader looks at the state now.
    pub fn look(&self, id: ReplyId, view: &View<'_>) {
        if let Some(Waiting::Look(look)) = self.remove(id) {
            let release = look(view);
            self.waiting().insert(id, Waiting::Seen(release));
        }
    }

    /// What a reader saw is durable.
    pub fn finish(&self, id: ReplyId) {
        if let Some(Waiting::Seen(release)) = self.remove(id) {
            release();
        }
    }

    /// What a client waits for never comes: its channel closes.
    pub fn lose(&self, id: ReplyId) {
        drop(self.remove(id));
    }

    /// The loop has stopped: nothing comes for any client.
    pub fn lose_all(&self) {
        let all = std::mem::take(&mut *self.waiting());
        drop(all);
    }
}

/// What the HTTP side asks of the loop.
#[derive(Clone)]
pub struct LoopClient {
    inbox: InboxSender,
    clients: Clients,
    /// Answers that the loop does not have any more.
    history: History,
}

/// No answer will come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopGone {
    /// The daemon stops.
    Stopping,
    /// The state was rebuilt from the disk under the question.
    Rebuilt,
}

impl LoopClient {
    /// A client of this loop, and of the history it writes.
    pub fn new(inbox: InboxSender, clients: Clients, history: History) -> LoopClient {
        LoopClient { inbox, clients, history }
    }

    fn send(&self, id: ReplyId, input: LoopInput) -> Result<(), LoopGone> {
        self.inbox.send(input).map_err(|_| {
            self.clients.lose(id);
            LoopGone::Stopping
        })
    }

    /// Sends a request and awaits its durable answer.
    pub async fn call(&self, by: Caller, event: Event, key: Option<IdempotencyKey>) -> Result<Reply, LoopGone> {
        let mut call = (by, event, key, None);
        loop {
            let (by, event, key, looked) = call;
            let (reply, answer) = oneshot::channel();
            let to = self.clients.add(Waiting::Call(reply));
            self.send(to, LoopInput::Call(Box::new(LoopCall { by, event, key, looked, to })))?;
            let lookup = match answer.await.map_err(|_| LoopGone::Stopping)? {
                Ok(reply) => return Ok(reply),
                Err(lookup) => *lookup,
            };
            if let Some(reply) = self.stored(&lookup).await? {
                return Ok(reply);
            }
            call = (lookup.by, lookup.event, Some(lookup.key), Some(lookup.looked));
        }
    }

    /// The answer that the disk has for a key (`idempotency.rs` says why it is right to look here).
    async fn stored(&self, lookup: &KeyLookup) -> Result<Option<Reply>, LoopGone> {
        let (tenant, key) = (lookup.tenant, lookup.key.key.clone());
        let found = self.history.read(&lookup.by.tenant, move |reader| reader.answer(tenant, &key)).await;
        Ok(match found.ok_or(LoopGone::Stopping)? {
            Ok(found) => found.map(|answer| repeated(answer.fingerprint, &lookup.key, || stored_reply(&answer))),
            Err(error) => {
                let detail = format!("whether this request was made before cannot be read: {error}");
                Some(Reply::problem(&Problem::new(Code::JournalFailed, detail).retry_after(5)))
            }
        })
    }

    /// Waits for a lease to change. Dropping what this returns ends the wait.
    pub fn watch(&self, by: Caller, lease: LeaseId, until: WatchGoal) -> Result<Watching, LoopGone> {
        let (reply, answer) = oneshot::channel();
        let to = self.clients.add(Waiting::Lease(reply));
        self.send(to, LoopInput::Watch(LeaseWatch { by, lease, until, to }))?;
        Ok(Watching { client: self.clone(), lease, to, answer })
    }

    /// Looks at the state; what was seen is durable when this returns.
    pub async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&View<'_>) -> T + Send + 'static,
    ) -> Result<T, LoopGone> {
        let (reply, answer) = oneshot::channel();
        let to = self.clients.add_reader(Box::new(move |view: &View<'_>| {
            let seen = look(view);
            Box::new(move || drop(reply.send(seen))) as Release
        }));
        self.send(to, LoopInput::Read { to })?;
        answer.await.map_err(|_| LoopGone::Rebuilt)
    }
}

/// A client that waits for a lease to change.
pub struct Watching {
    client: LoopClient,
    lease: LeaseId,
    to: ReplyId,
    answer: oneshot::Receiver<Option<Lease>>,
}

impl Watching {
    /// The lease once it has changed, `None` if there is none that the caller may see; an error if the state was rebuilt.
    pub async fn changed(&mut self) -> Result<Option<Lease>, LoopGone> {
        (&mut self.answer).await.map_err(|_| LoopGone::Rebuilt)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        // Unless the answer has come.
        if self.client.clients.remove(self.to).is_some() {
            let (lease, to) = (self.lease, self.to);
            drop(self.client.inbox.send(LoopInput::EndWatch { lease, to }));
        }
    }
}
