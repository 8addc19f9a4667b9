//! What goes on when the disk is full, and how it goes on when it is not any more.
//!
//! Absent on purpose: the ballast itself (the writer's), and what is refused meanwhile (core's).

use super::Loop;
use crate::engine::Engine;
use crate::estimate_cache::EstimateCache;
use crate::loop_input::{CallOutcome, HostCommand, LoopCall, PendingEffect, Reply, RetriedRelease};
use crate::messages;
use crate::writer::WriterOrder;
use std::time::{Duration, Instant};
use sublet_core::event::Event;
use sublet_core::facts::{DaemonEvent, GpuEvent, LeaseEvent};
use sublet_journal::LoadedState;
use tokio::sync::oneshot;

/// How often a full disk is looked at again.
const FULL_AGAIN: Duration = Duration::from_secs(5);
/// How long nothing is decided when not even the ballast was enough: one try a second costs nothing.
const STUCK: Duration = Duration::from_secs(1);

/// The disk is full.
///
/// ```text
///   room ──full──► tight ──full──► stuck ──a second──► trying ──full──► stuck
///    ▲               ▲ │                                 │
///    │               └─┼────────────written──────────────┘
///    └──ballast back───┘
/// ```
pub(super) struct FullDisk {
    /// When its room is looked at again.
    again: Instant,
    grip: FullDiskState,
}

/// How much goes on when the disk is full.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FullDiskState {
    /// Everything but grants, in what the ballast left.
    Tight,
    /// Not even that was enough: the state is what the disk has, and nothing is decided until then.
    Stuck(Instant),
    /// What was decided after such a rest is being written.
    Trying,
}

impl FullDisk {
    /// There was no room for a ballast when it began.
    pub(super) fn from_the_start() -> FullDisk {
        FullDisk { again: Instant::now() + FULL_AGAIN, grip: FullDiskState::Tight }
    }
}

impl Loop {
    /// The disk has room for the ballast.
    pub(super) fn has_room(&mut self) {
        if self.stuck() {
            // What is true must be told anew first.
            self.full = Some(FullDisk { again: Instant::now(), grip: FullDiskState::Stuck(Instant::now()) });
            return;
        }
        self.full = None;
        tracing::info!("the disk has room again: leases are granted");
        self.take(DaemonEvent::DiskFreed);
    }

    pub(super) fn stuck(&self) -> bool {
        self.stuck_until().is_some()
    }

    /// Until when nothing is decided.
    pub(super) fn stuck_until(&self) -> Option<Instant> {
        match self.full.as_ref()?.grip {
            FullDiskState::Stuck(until) => Some(until),
            FullDiskState::Tight | FullDiskState::Trying => None,
        }
    }

    pub(super) fn trying(&self) -> bool {
        matches!(self.full, Some(FullDisk { grip: FullDiskState::Trying, .. }))
    }

    /// What was tried after a rest is on the disk.
    pub(super) fn got_through(&mut self) {
        if let Some(full) = &mut self.full
            && full.grip == FullDiskState::Trying
        {
            full.grip = FullDiskState::Tight;
            tracing::info!("releases and expiries can be written again; no new leases until the disk has more room");
        }
        self.read_later();
    }

    fn read_later(&mut self) {
        for mail in std::mem::take(&mut self.later) {
            self.open(mail);
        }
    }

    /// After a rest it is tried once whether something can be written.
    pub(super) fn try_to_write_again(&mut self) {
        let due = self.stuck_until().is_some_and(|until| Instant::now() >= until);
        let Some(full) = self.full.as_mut().filter(|_| due) else { return };
        // A try that fails reads all of the state back from the disk.
        if self.pen.lock().is_ok_and(|pen| !pen.may_have_room()) {
            full.grip = FullDiskState::Stuck(Instant::now() + STUCK);
            return;
        }
        full.grip = FullDiskState::Trying;
        self.begin_again();
    }

    /// The writer looks now and then whether there is room for the ballast.
    pub(super) fn look_for_room(&mut self) {
        if let Some(full) = &mut self.full
            && Instant::now() >= full.again
        {
            full.again = Instant::now() + FULL_AGAIN;
            self.order(WriterOrder::TryBallast);
        }
    }

    /// Takes what the disk has as the truth. Whoever waited for an answer gets a
    /// refusal; releases are tried once more, in the room the ballast left.
    pub(super) fn start_over(&mut self, loaded: LoadedState, failed: Vec<PendingEffect>, why: &str) {
        let now = Instant::now();
        let grip = match self.full.as_ref().map(|full| full.grip) {
            None => {
                tracing::error!(
                    "the disk is full: no new leases until there is room, and the state is what is on it: {why}"
                );
                FullDiskState::Tight
            }
            // The second time in a row there is no ballast left to give up.
            Some(before) => {
                if before == FullDiskState::Tight {
                    tracing::error!(
                        "nothing more fits on the disk: until there is room, reads go on and whatever must be written is refused or waits: {why}"
                    );
                }
                FullDiskState::Stuck(now + STUCK)
            }
        };
        let mut listed = self.engine.state().listed_facts();
        if listed.is_empty() {
            listed = std::mem::take(&mut self.listed);
        }
        let (_, open) = self.engine.close(self.clock.now());
        self.tokens.fill(&loaded.rows);
        self.loss = loaded.loss;
        self.engine = Engine::on_a_full_disk(loaded.rows, self.policy.clone());
        self.plans = EstimateCache::default();
        self.keys.forget_undurable();
        self.listed = listed;
        let again = self.full.as_ref().map_or(now + FULL_AGAIN, |full| full.again);
        self.full = Some(FullDisk { again, grip });
        if grip == FullDiskState::Tight {
            self.begin_again();
        }
        for held in failed.into_iter().chain(open) {
            match held {
                PendingEffect::Reply { to, again: Some(again), .. } if grip == FullDiskState::Tight => {
                    let RetriedRelease { by, lease, epoch, key } = *again;
                    let event = Event::Lease(LeaseEvent::ReleaseRequested { by: by.clone(), lease, fence: epoch });
                    self.call(LoopCall { by, event, key, looked: None, reply: to }, false);
                }
                PendingEffect::Reply { to, .. } => refuse(to),
                // A reader whose channel closes is told to look again; an errand is derived anew.
                PendingEffect::Run(_) | PendingEffect::Errand(_) => {}
            }
        }
        self.read_later();
    }

    /// What a start tells: it may have been in what was lost.
    fn begin_again(&mut self) {
        self.start();
        let listed = std::mem::take(&mut self.listed);
        if !listed.is_empty() {
            self.take(GpuEvent::Listed(listed));
        }
        self.engine.hold(PendingEffect::Errand(HostCommand::Look));
    }
}

/// What was asked cannot be written.
pub(super) fn refuse(to: oneshot::Sender<CallOutcome>) {
    let problem = messages::problem(&sublet_core::event::Refusal::DiskFull);
    drop(to.send(Ok(Reply::problem(&problem))));
}
