//! How anybody reaches the loop: requests, looks and waits, each with its answer.

use super::{LoopHandle, stored_reply};
use crate::history::History;
use crate::idempotency::repeated;
use crate::loop_input::{IdempotencyKey, KeyLookup, LeaseWatch, LoopCall, LoopInput, Reply};
use crate::view::View;
use std::sync::Arc;
use sublet_core::event::{Caller, Event};
use sublet_wire::{Code, Problem};
use tokio::sync::oneshot;

/// How anybody reaches the loop.
#[derive(Clone)]
pub struct LoopClient {
    desk: Arc<LoopHandle>,
    /// Where answers are that the loop does not have any more.
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
    /// To this loop, and the history it writes.
    pub fn new(desk: Arc<LoopHandle>, history: History) -> LoopClient {
        LoopClient { desk, history }
    }

    /// Sends a request and awaits its durable answer.
    pub async fn call(&self, by: Caller, event: Event, key: Option<IdempotencyKey>) -> Result<Reply, LoopGone> {
        let mut call = (by, event, key, None);
        loop {
            let (by, event, key, looked) = call;
            let (reply, answer) = oneshot::channel();
            self.desk.bring(LoopInput::Call(Box::new(LoopCall { by, event, key, looked, reply })))?;
            let look = match answer.await.map_err(|_| LoopGone::Stopping)? {
                Ok(reply) => return Ok(reply),
                Err(look) => *look,
            };
            if let Some(reply) = self.stored(&look).await? {
                return Ok(reply);
            }
            call = (look.by, look.event, Some(look.key), Some(look.looked));
        }
    }

    /// The answer that the disk has for a key (`keys.rs` says why it is right to look here).
    async fn stored(&self, look: &KeyLookup) -> Result<Option<Reply>, LoopGone> {
        let (tenant, key) = (look.tenant, look.key.key.clone());
        let found = self.history.read(&look.by.tenant, move |reader| reader.answer(tenant, &key)).await;
        Ok(match found.ok_or(LoopGone::Stopping)? {
            Ok(found) => found.map(|answer| repeated(answer.fingerprint, &look.key, || stored_reply(&answer))),
            Err(error) => {
                let detail = format!("whether this request was made before cannot be read: {error}");
                Some(Reply::problem(&Problem::new(Code::JournalFailed, detail).retry_after(5)))
            }
        })
    }

    /// Waits for a lease to change; the answer goes where the watch says.
    pub fn watch(&self, watch: LeaseWatch) -> Result<(), LoopGone> {
        self.desk.bring(LoopInput::Watch(watch))
    }

    /// Looks at the state; what was seen is durable when this returns.
    pub async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&View<'_>) -> T + Send + 'static,
    ) -> Result<T, LoopGone> {
        let (reply, answer) = oneshot::channel();
        let read = move |view: &View<'_>| {
            let seen = look(view);
            Box::new(move || drop(reply.send(seen))) as crate::loop_input::Release
        };
        self.desk.bring(LoopInput::Read(Box::new(read)))?;
        answer.await.map_err(|_| LoopGone::Rebuilt)
    }
}
