//! What goes on while the disk is full, and how the daemon recovers.
//!
//! Absent on purpose: the ballast itself (the writer's), and what is refused meanwhile (core's).

use super::Loop;
use super::calls::OnFullDisk;
use super::input::{LoopCall, RetriedRelease};
use super::output::{HostCommand, Output, WriterTask};
use crate::engine::Engine;
use crate::estimate_cache::EstimateCache;
use sublet_core::event::Event;
use sublet_core::facts::{DaemonEvent, GpuEvent, LeaseEvent};
use sublet_core::units::{Span, Time};
use sublet_journal::LoadedState;

/// How often the writer tries to make the ballast again.
const BALLAST_AGAIN: Span = Span::secs(5);
/// How long nothing is decided when not even the ballast was enough: one try a second costs nothing.
const STUCK_FOR: Span = Span::secs(1);

/// The disk is full.
///
/// ```text
///   room ──full──► tight ──full──► stuck ──1 s──► probing ──room──► trying ──full──► stuck
///    ▲               ▲ │             ▲               │ none           │
///    │               │ │             └───────────────┘                │
///    └─ballast back──┴─┼──────────────────────written─────────────────┘
/// ```
pub(super) struct FullDisk {
    /// When the ballast is tried next.
    ballast_at: Time,
    state: FullDiskState,
}

/// How much goes on while the disk is full.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FullDiskState {
    /// Everything but grants, in the room that the ballast left.
    Tight,
    /// Not even that was enough: the state is what the disk has, and nothing is decided before this time.
    Stuck(Time),
    /// The writer finds out whether something can be written.
    Probing,
    /// What was decided after a pause is being written.
    Trying,
}

impl FullDisk {
    /// There was no room for a ballast at the start.
    pub(super) fn from_the_start(now: Time) -> FullDisk {
        FullDisk { ballast_at: now + BALLAST_AGAIN, state: FullDiskState::Tight }
    }
}

impl Loop {
    /// The disk has room for the ballast.
    pub(super) fn disk_freed(&mut self) {
        let now = self.moment.now;
        if self.is_stuck() {
            // The start must be told anew first.
            self.full_disk = Some(FullDisk { ballast_at: now, state: FullDiskState::Stuck(now) });
            return;
        }
        self.full_disk = None;
        tracing::info!("the disk has room again: leases are granted");
        self.take(DaemonEvent::DiskFreed);
    }

    fn full_disk_state(&self) -> Option<FullDiskState> {
        self.full_disk.as_ref().map(|full| full.state)
    }

    fn set_full_disk_state(&mut self, state: FullDiskState) {
        if let Some(full) = &mut self.full_disk {
            full.state = state;
        }
    }

    pub(super) fn is_stuck(&self) -> bool {
        matches!(self.full_disk_state(), Some(FullDiskState::Stuck(_) | FullDiskState::Probing))
    }

    /// Until when nothing is decided.
    pub(super) fn stuck_until(&self) -> Option<Time> {
        match self.full_disk_state()? {
            FullDiskState::Stuck(until) => Some(until),
            FullDiskState::Probing => Some(self.moment.now + STUCK_FOR),
            FullDiskState::Tight | FullDiskState::Trying => None,
        }
    }

    pub(super) fn is_trying_to_write(&self) -> bool {
        self.full_disk_state() == Some(FullDiskState::Trying)
    }

    /// What was tried after a pause is on the disk.
    pub(super) fn wrote_again(&mut self) {
        if self.is_trying_to_write() {
            self.set_full_disk_state(FullDiskState::Tight);
            tracing::info!("releases and expiries can be written again; no new leases until the disk has more room");
        }
        self.read_deferred();
    }

    fn read_deferred(&mut self) {
        for input in std::mem::take(&mut self.deferred) {
            self.accept(input);
        }
    }

    /// A try that fails reads all of the state back from the disk, so the writer probes first.
    pub(super) fn probe_room_when_due(&mut self) {
        let now = self.moment.now;
        if matches!(self.full_disk_state(), Some(FullDiskState::Stuck(until)) if until <= now) {
            self.set_full_disk_state(FullDiskState::Probing);
            self.immediate.push(Output::Writer(WriterTask::ProbeRoom));
        }
    }

    pub(super) fn room_probed(&mut self, has_room: bool) {
        if self.full_disk_state() != Some(FullDiskState::Probing) {
            return;
        }
        if has_room {
            self.set_full_disk_state(FullDiskState::Trying);
            self.start_again();
        } else {
            self.set_full_disk_state(FullDiskState::Stuck(self.moment.now + STUCK_FOR));
        }
    }

    pub(super) fn restore_ballast_when_due(&mut self) {
        let now = self.moment.now;
        if let Some(full) = self.full_disk.as_mut().filter(|full| full.ballast_at <= now) {
            full.ballast_at = now + BALLAST_AGAIN;
            self.immediate.push(Output::Writer(WriterTask::RestoreBallast));
        }
    }

    /// Takes what the disk has as the truth. Callers that wait for an answer are refused; releases are tried once more, in
    /// the room that the ballast left.
    pub(super) fn rebuild(&mut self, loaded: LoadedState, failed: Vec<Output>, why: &str) {
        let now = self.moment.now;
        let state = self.after_full(why);
        let mut listed = self.engine.state().listed_facts();
        if listed.is_empty() {
            listed = std::mem::take(&mut self.listed_before);
        }
        let (_, open) = self.engine.close(now);
        self.after_sync.clear();
        self.loss = loaded.loss;
        self.engine = Engine::on_a_full_disk(loaded.rows, self.policy.clone());
        self.set_tokens();
        self.estimates = EstimateCache::default();
        self.keys.forget_undurable();
        self.listed_before = listed;
        let ballast_at = self.full_disk.as_ref().map_or(now + BALLAST_AGAIN, |full| full.ballast_at);
        self.full_disk = Some(FullDisk { ballast_at, state });
        if state == FullDiskState::Tight {
            self.start_again();
        }
        for output in failed.into_iter().chain(open) {
            self.undo(output, state);
        }
        self.read_deferred();
    }

    /// What goes on after a batch found the disk full.
    fn after_full(&self, why: &str) -> FullDiskState {
        match self.full_disk_state() {
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
                FullDiskState::Stuck(self.moment.now + STUCK_FOR)
            }
        }
    }

    /// An output whose batch is not on the disk does not leave.
    fn undo(&mut self, output: Output, state: FullDiskState) {
        match output {
            Output::Reply { to, retried: Some(release), .. } if state == FullDiskState::Tight => {
                let RetriedRelease { by, lease, fence, key } = *release;
                let event = Event::Lease(LeaseEvent::ReleaseRequested { by: by.clone(), lease, fence });
                self.call(LoopCall { by, event, key, looked: None, to }, OnFullDisk::Refuse);
            }
            Output::Reply { to, .. } => self.refuse(to),
            Output::Lease { to, .. } | Output::ReadDone { to } => self.immediate.push(Output::Lost { to }),
            // Orders to the host are derived anew; tokens were told as the disk has them.
            Output::Host(_) | Output::Token(_) | Output::Notice(_) => {}
            // These leave at once, and are never held.
            Output::Read { .. }
            | Output::LookUp { .. }
            | Output::Lost { .. }
            | Output::GpuTrouble(_)
            | Output::Writer(_) => {}
        }
    }

    /// What a start tells: it may have been in what was lost.
    fn start_again(&mut self) {
        self.start_core();
        let listed = std::mem::take(&mut self.listed_before);
        if !listed.is_empty() {
            self.take(GpuEvent::Listed(listed));
        }
        self.engine.hold(Output::Host(HostCommand::ReadGpus));
    }
}
