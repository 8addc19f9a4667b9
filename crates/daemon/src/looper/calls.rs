//! Requests: decided at once, answered once what they changed is durable.

use super::input::{IdempotencyKey, KeyLookup, LoopCall, Reply, RetriedRelease};
use super::output::{Output, ReplyId};
use super::{Loop, Moment};
use crate::engine::Decided;
use crate::idempotency::KeyState;
use crate::messages;
use crate::unleased;
use crate::view;
use std::sync::Arc;
use sublet_core::event::{Caller, Event, EventAnswer, Refusal};
use sublet_core::facts::{GpuEvent, LeaseEvent, TokenEvent, UnleasedEvent};
use sublet_core::rows::Phase;
use sublet_journal::StoredAnswer;

/// What becomes of a release whose batch finds the disk full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnFullDisk {
    /// It is tried once more, in the room that the ballast leaves.
    Retry,
    /// It is refused.
    Refuse,
}

impl Loop {
    pub(super) fn call(&mut self, call: LoopCall, on_full_disk: OnFullDisk) {
        let LoopCall { by, event, key, looked, to } = call;
        if let Some(used) = &key {
            match (self.keys.look_up(&by.tenant, used, looked), self.engine.state().tenant(&by.tenant), key.clone()) {
                (KeyState::Answered(reply), ..) => return self.answer(to, reply),
                (KeyState::Stored(looked), Some(tenant), Some(key)) => {
                    let lookup = Box::new(KeyLookup { by, event, key, tenant, looked });
                    return self.immediate.push(Output::LookUp { to, lookup });
                }
                _ => {}
            }
            if let Err(after_s) = self.keys.check_room(&by.tenant, self.moment.now) {
                return self.answer(to, Reply::problem(&messages::too_many_keys(after_s)));
            }
        }
        let release = match &event {
            Event::Lease(LeaseEvent::ReleaseRequested { lease, fence: epoch, .. })
                if on_full_disk == OnFullDisk::Retry =>
            {
                Some((*lease, *epoch))
            }
            _ => None,
        };
        let actor: Arc<str> = match by.token {
            Some(token) => Arc::from(format!("{} {token}", by.tenant)),
            None => Arc::from(by.tenant.as_str()),
        };
        let creates = matches!(
            event,
            Event::Lease(LeaseEvent::Requested { .. })
                | Event::Token(TokenEvent::IssueRequested { .. })
                | Event::Unleased(UnleasedEvent::AdoptRequested { .. })
        );
        let gpu = match &event {
            Event::Gpu(
                GpuEvent::DrainRequested { gpu: card, .. }
                | GpuEvent::ClearRequested { gpu: card, .. }
                | GpuEvent::AsideRequested { gpu: card, .. }
                | GpuEvent::AsideEndRequested { gpu: card, .. }
                | GpuEvent::ModeRequested { gpu: card, .. },
            ) => Some(card.clone()),
            _ => None,
        };
        let decided = self.take_for(&actor, event);
        let reply = self.reply(&by, &decided, creates, gpu.as_deref());
        if let Some(key) = key.as_ref().filter(|_| !reply.is_problem()) {
            self.remember(&by, key, &reply);
        }
        let retried = release.map(|(lease, fence)| Box::new(RetriedRelease { by, lease, fence, key }));
        self.engine.hold(Output::Reply { to, reply: Box::new(reply), retried });
    }

    fn answer(&mut self, to: ReplyId, reply: Reply) {
        self.engine.hold(Output::Reply { to, reply: Box::new(reply), retried: None });
    }

    /// Answers at once that the disk is full.
    pub(super) fn refuse(&mut self, to: ReplyId) {
        let reply = Box::new(Reply::problem(&messages::problem(&Refusal::DiskFull)));
        self.immediate.push(Output::Reply { to, reply, retried: None });
    }

    fn reply(&self, by: &Caller, decided: &Decided, creates: bool, gpu: Option<&str>) -> Reply {
        let view = self.view();
        match &decided.answer {
            EventAnswer::Refused(refusal) => Reply::problem(&view.problem(by, refusal)),
            EventAnswer::Done => match view.gpus(by).into_iter().find(|shown| Some(shown.uuid.as_str()) == gpu) {
                Some(gpu) => Reply::new(200, &gpu),
                None => Reply::new(200, &()),
            },
            EventAnswer::LossAccepted(loss) => {
                Reply::new(200, &sublet_wire::JournalLoss { sentence: crate::loss::sentence(loss) })
            }
            EventAnswer::Rule(rule) => Reply::new(200, &unleased::rule(rule)),
            EventAnswer::Token(token) => Reply::new(if creates { 201 } else { 200 }, &view.token(token)),
            EventAnswer::Lease(id) => match view.state.lease(*id) {
                Some(lease) => {
                    let status = match (&lease.phase, creates) {
                        (Phase::Active(_), true) => 201,
                        (_, true) => 202,
                        _ => 200,
                    };
                    let is_own = view.state.tenant(&by.tenant) == Some(lease.tenant);
                    let granted = lease.hold().filter(|_| is_own && lease.is_held()).map(|hold| (lease.id, hold.fence));
                    Reply { granted, ..Reply::new(status, &view.lease_in_full(by, lease)) }
                }
                None => match decided.past.iter().find(|ended| ended.id == *id) {
                    Some(ended) => Reply::new(200, &view::past(ended, &view)),
                    None => Reply::problem(&messages::problem(&Refusal::NoSuchLease)),
                },
            },
        }
    }

    /// Keeps an answer for its key. A tenant that was never enrolled has nothing that could happen twice.
    fn remember(&mut self, by: &Caller, key: &IdempotencyKey, reply: &Reply) {
        let Some(tenant) = self.engine.state().tenant(&by.tenant) else { return };
        let Moment { now, wall_us, .. } = self.moment;
        self.keys.add(&by.tenant, key, reply, now);
        self.engine.store(StoredAnswer {
            tenant,
            key: key.key.clone(),
            fingerprint: key.fingerprint,
            status: reply.status,
            body: reply.body.clone(),
            wall_us,
        });
    }
}
