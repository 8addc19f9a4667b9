//! One holder that the driver moves: the state of its processes, and the next step.
//!
//! ```text
//!                ┌── OnGpus: prove room, restore all, unlock all ───┐
//!                ▼                                                  │
//!   unknown ─► running ──lock──► locked ──checkpoint──► checkpointed┘
//!                ▲                 │                        │ restore failed
//!                └─────unlock──────┘                        ▼
//!                                                         lost, for good
//!   InHostMemory:  Ready ─► Trying ─► Over (all off their GPUs)
//!                             │ anything fails
//!                             ▼
//!                          Restoring (restore what this attempt checkpointed, unlock all) ─► Over (refused)
//!   WaitForRoom:   nothing is restored, locked processes are unlocked
//! ```
//! Nothing here calls the driver. [`DrivenHolder::next_step`] computes the next step from the known state.

use super::DriverPlacement;
use super::blocked_calls::LibraryCode;
use super::pinned_process::PinnedProcess;
use crate::process;
use std::collections::BTreeMap;
use std::time::Instant;
use sublet_core::ids::ProcKey;

/// The state of a process, as the driver last reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DrivenState {
    /// The driver must be asked.
    Unknown,
    Running,
    Locked,
    Checkpointed,
    /// It could not be restored, and is never tried again.
    Lost,
}

/// One process of a holder.
pub(super) struct DrivenProcess {
    pub(super) state: DrivenState,
    /// Its pidfd, so that its pid is not reused; `None` where the kernel gives none.
    pinned: Option<PinnedProcess>,
    /// The last target names it.
    pub(super) is_in_target: bool,
    /// Bytes it had on each GPU before it was locked.
    pub(super) gpu_bytes: BTreeMap<String, u64>,
    /// It was checkpointed in the present attempt: its room on the GPU is still its holder's.
    pub(super) checkpointed_in_this_attempt: bool,
    /// Bytes it has in host memory, by this daemon's own count.
    pub(super) parked: u64,
    /// What was last reported: true if it is parked.
    pub(super) reported_parked: Option<bool>,
    /// The driver is not asked about it before then.
    pub(super) retry_at: Option<Instant>,
    /// Consecutive calls about it in which a worker was lost.
    pub(super) lost_workers: u32,
    /// Where the driver's code lies in it; read once, after it was checkpointed.
    driver_code: Option<LibraryCode>,
}

impl DrivenProcess {
    pub(super) fn new(process: ProcKey) -> DrivenProcess {
        DrivenProcess {
            state: DrivenState::Unknown,
            pinned: PinnedProcess::open(process),
            is_in_target: true,
            gpu_bytes: BTreeMap::new(),
            checkpointed_in_this_attempt: false,
            parked: 0,
            reported_parked: None,
            retry_at: None,
            lost_workers: 0,
            driver_code: None,
        }
    }

    /// True if it has not ended. Without a pidfd this is read from `/proc`.
    pub(super) fn is_alive(&self, process: ProcKey) -> bool {
        self.pinned.as_ref().map_or_else(|| process::is_running(process), PinnedProcess::is_alive)
    }

    /// True if it is checkpointed and one of its threads was seen to wait for that to end.
    fn waits_for_gpu(&mut self, process: ProcKey) -> bool {
        if self.state != DrivenState::Checkpointed {
            return false;
        }
        if self.driver_code.is_none() {
            self.driver_code = LibraryCode::of_driver(process.pid);
        }
        self.driver_code.as_ref().is_some_and(|code| code.has_waiting_caller(process.pid))
    }

    pub(super) fn total_gpu_bytes(&self) -> u64 {
        self.gpu_bytes.values().sum()
    }
}

/// The progress of parking a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ParkAttempt {
    /// It begins as soon as possible.
    Ready,
    /// All processes must be locked by then.
    Trying { lock_deadline: Instant },
    /// It failed: all processes are being restored. The failure is reported by `by` at the latest.
    Restoring { why: String, by: Instant, is_restore_tried: bool },
    /// Nothing more until the next target.
    Over,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DriverStep {
    Nothing,
    /// Ask the driver for its state.
    QueryState(ProcKey),
    /// Examine all processes from outside, and begin or refuse.
    Examine,
    Lock(ProcKey),
    Checkpoint(ProcKey),
    /// Prove the room of these, and restore them.
    Restore(Vec<ProcKey>),
    Unlock(ProcKey),
    /// All are checkpointed: report that.
    ReportParked,
    /// All are restored, or time is up: report why.
    Refuse(String),
    /// The holder is forgotten, and none of its processes is locked or unknown: remove it.
    Remove,
}

impl DriverStep {
    /// True if the step takes a short time.
    pub(super) const fn is_quick(&self) -> bool {
        matches!(self, DriverStep::QueryState(_) | DriverStep::Unlock(_) | DriverStep::Refuse(_) | DriverStep::Remove)
    }
}

/// A lease with processes that the driver moves.
pub(super) struct DrivenHolder {
    /// `None` after [`DriverHubMessage::Forget`](super::DriverHubMessage::Forget). The holder is removed when no process
    /// is locked or unknown; checkpointed processes stay so.
    pub(super) target: Option<DriverPlacement>,
    /// Its user: a process of another user is not parked.
    pub(super) uid: u32,
    pub(super) members: BTreeMap<ProcKey, DrivenProcess>,
    pub(super) attempt: ParkAttempt,
    /// When the present attempt became [`ParkAttempt::Ready`].
    pub(super) ready_since: Instant,
    /// Restoring, or beginning to park, is not tried again before then.
    pub(super) retry_at: Instant,
}

impl DrivenHolder {
    pub(super) fn new(uid: u32, now: Instant) -> DrivenHolder {
        DrivenHolder {
            uid,
            target: None,
            members: BTreeMap::new(),
            attempt: ParkAttempt::Over,
            ready_since: now,
            retry_at: now,
        }
    }

    /// Sets the target: a refused step may be tried again, and a step in progress goes on. Returns true if the old
    /// target was [`DriverPlacement::InHostMemory`] and the new one is not.
    pub(super) fn set_target(&mut self, target: DriverPlacement, processes: &[ProcKey], now: Instant) -> bool {
        let is_away = |target: &Option<DriverPlacement>| matches!(target, Some(DriverPlacement::InHostMemory { .. }));
        let was_away = is_away(&self.target);
        self.target = Some(target);
        if was_away != is_away(&self.target) || self.attempt == ParkAttempt::Over {
            (self.attempt, self.ready_since) = (ParkAttempt::Ready, now);
        }
        self.retry_at = now;
        for (process, member) in &mut self.members {
            (member.is_in_target, member.retry_at) = (processes.contains(process), None);
        }
        for process in processes {
            self.members.entry(*process).or_insert_with(|| DrivenProcess::new(*process));
        }
        was_away && !is_away(&self.target)
    }

    /// True if one of its processes is checkpointed and was seen to wait for that to end.
    pub(super) fn waits_for_gpu(&mut self) -> bool {
        self.members.iter_mut().any(|(process, member)| member.waits_for_gpu(*process))
    }

    /// The worker was lost: the state of locked and checkpointed processes is unknown now.
    pub(super) fn forget_states(&mut self) {
        for member in self
            .members
            .values_mut()
            .filter(|member| matches!(member.state, DrivenState::Locked | DrivenState::Checkpointed))
        {
            member.state = DrivenState::Unknown;
        }
    }

    /// The processes in this state that are touchable, as in [`DrivenHolder::next_step`].
    pub(super) fn processes_in_state(
        &self,
        state: DrivenState,
        is_touchable: &impl Fn(ProcKey) -> bool,
    ) -> Vec<ProcKey> {
        let there = self.members.iter().filter(|(_, member)| member.state == state);
        there.map(|(process, _)| *process).filter(|process| is_touchable(*process)).collect()
    }

    fn first_in_state(&self, state: DrivenState) -> Option<ProcKey> {
        self.members.iter().find(|(_, member)| member.state == state).map(|(process, _)| *process)
    }

    /// The process reported for a holder that refuses to park: one that is not checkpointed, if there is one.
    pub(super) fn process_to_report(&self) -> Option<ProcKey> {
        let here = self.members.iter().find(|(_, member)| member.state != DrivenState::Checkpointed);
        here.or_else(|| self.members.iter().next()).map(|(process, _)| *process)
    }

    /// The next step. `is_touchable` is true for a process that is alive and not stopped.
    pub(super) fn next_step(&self, now: Instant, is_touchable: impl Fn(ProcKey) -> bool) -> DriverStep {
        if let (Some(DriverPlacement::InHostMemory { .. }), ParkAttempt::Restoring { why, by, .. }) =
            (&self.target, &self.attempt)
            && *by <= now
        {
            return DriverStep::Refuse(why.clone());
        }
        let is_due = |process: &ProcKey| self.members[process].retry_at.is_none_or(|retry_at| retry_at <= now);
        if let Some(process) = self.processes_in_state(DrivenState::Unknown, &is_touchable).into_iter().find(is_due) {
            return DriverStep::QueryState(process);
        }
        let unlock = || {
            self.processes_in_state(DrivenState::Locked, &is_touchable).into_iter().find(is_due).map(DriverStep::Unlock)
        };
        match (&self.target, &self.attempt) {
            (None, _)
                if self.first_in_state(DrivenState::Locked).or(self.first_in_state(DrivenState::Unknown)).is_none() =>
            {
                DriverStep::Remove
            }
            (None, _) => unlock().unwrap_or(DriverStep::Nothing),
            (Some(DriverPlacement::OnGpus { .. }), _) => {
                let away = self.processes_in_state(DrivenState::Checkpointed, &is_touchable);
                if !away.is_empty() && self.retry_at <= now {
                    return DriverStep::Restore(away);
                }
                unlock().unwrap_or(DriverStep::Nothing)
            }
            (Some(DriverPlacement::InHostMemory { .. }), ParkAttempt::Over)
            | (Some(DriverPlacement::WaitForRoom), _) => unlock().unwrap_or(DriverStep::Nothing),
            (Some(DriverPlacement::InHostMemory { .. }), ParkAttempt::Ready) => {
                let is_any_on_gpu = self
                    .members
                    .values()
                    .any(|member| !matches!(member.state, DrivenState::Checkpointed | DrivenState::Lost));
                match is_any_on_gpu {
                    true if self.retry_at > now => DriverStep::Nothing,
                    true => DriverStep::Examine,
                    false => DriverStep::ReportParked,
                }
            }
            (Some(DriverPlacement::InHostMemory { .. }), ParkAttempt::Trying { .. }) => {
                let running = self
                    .first_in_state(DrivenState::Running)
                    .or(self.first_in_state(DrivenState::Unknown))
                    .map(DriverStep::Lock);
                running
                    .or_else(|| self.first_in_state(DrivenState::Locked).map(DriverStep::Checkpoint))
                    .unwrap_or(DriverStep::ReportParked)
            }
            (Some(DriverPlacement::InHostMemory { .. }), ParkAttempt::Restoring { why, is_restore_tried, .. }) => {
                let mut away = self.processes_in_state(DrivenState::Checkpointed, &is_touchable);
                // A process parked in an earlier attempt has no room on the GPU any more: it may be promised to
                // another lease.
                away.retain(|process| self.members[process].checkpointed_in_this_attempt);
                if !away.is_empty() && !is_restore_tried {
                    return DriverStep::Restore(away);
                }
                let waits =
                    self.first_in_state(DrivenState::Locked).or(self.first_in_state(DrivenState::Unknown)).is_some();
                unlock().unwrap_or_else(|| if waits { DriverStep::Nothing } else { DriverStep::Refuse(why.clone()) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const ONE: ProcKey = ProcKey { pid: 1, start: 1 };
    const TWO: ProcKey = ProcKey { pid: 2, start: 2 };

    fn away() -> DriverPlacement {
        DriverPlacement::InHostMemory { within: Duration::from_secs(60), booked: 0 }
    }

    fn holder(target: DriverPlacement, one: DrivenState, two: DrivenState) -> DrivenHolder {
        let now = Instant::now();
        let mut holder = DrivenHolder::new(0, now);
        for (process, state) in [(ONE, one), (TWO, two)] {
            let member = DrivenProcess { state, pinned: None, ..DrivenProcess::new(process) };
            holder.members.insert(process, member);
        }
        holder.set_target(target, &[ONE, TWO], now);
        holder
    }

    fn next(holder: &DrivenHolder) -> DriverStep {
        holder.next_step(Instant::now(), |_| true)
    }

    #[test]
    fn unknown_states_are_queried_first() {
        for target in [away(), DriverPlacement::OnGpus { needs: Vec::new() }] {
            let holder = holder(target, DrivenState::Locked, DrivenState::Unknown);
            assert_eq!(next(&holder), DriverStep::QueryState(TWO));
            // A stopped process is not asked about, and delays no other.
            assert_ne!(holder.next_step(Instant::now(), |process| process == ONE), DriverStep::QueryState(TWO));
        }
    }

    #[test]
    fn all_processes_are_locked_before_the_first_is_checkpointed() {
        let mut holder = holder(away(), DrivenState::Running, DrivenState::Running);
        assert_eq!(next(&holder), DriverStep::Examine);
        holder.attempt = ParkAttempt::Trying { lock_deadline: Instant::now() };
        for (one, two, then) in [
            (DrivenState::Running, DrivenState::Running, DriverStep::Lock(ONE)),
            (DrivenState::Locked, DrivenState::Running, DriverStep::Lock(TWO)),
            (DrivenState::Locked, DrivenState::Locked, DriverStep::Checkpoint(ONE)),
            (DrivenState::Checkpointed, DrivenState::Locked, DriverStep::Checkpoint(TWO)),
            (DrivenState::Checkpointed, DrivenState::Checkpointed, DriverStep::ReportParked),
        ] {
            holder.members.get_mut(&ONE).unwrap().state = one;
            holder.members.get_mut(&TWO).unwrap().state = two;
            assert_eq!(next(&holder), then);
        }
    }

    #[test]
    fn a_failed_park_restores_and_unlocks_all_before_it_is_reported() {
        let mut holder = holder(away(), DrivenState::Checkpointed, DrivenState::Locked);
        let by = Instant::now() + Duration::from_secs(60);
        holder.attempt = ParkAttempt::Restoring { why: "no".to_owned(), by, is_restore_tried: false };
        // A process parked in an earlier attempt has no room of its own.
        assert_eq!(next(&holder), DriverStep::Unlock(TWO));
        holder.members.get_mut(&ONE).unwrap().checkpointed_in_this_attempt = true;
        assert_eq!(next(&holder), DriverStep::Restore(vec![ONE]));
        holder.members.get_mut(&ONE).unwrap().state = DrivenState::Locked;
        assert_eq!(next(&holder), DriverStep::Unlock(ONE));
        holder.members.get_mut(&ONE).unwrap().state = DrivenState::Running;
        assert_eq!(next(&holder), DriverStep::Unlock(TWO));
        // A stopped process is waited for, but not for ever.
        assert_eq!(holder.next_step(Instant::now(), |_| false), DriverStep::Nothing);
        assert_eq!(holder.next_step(by, |_| false), DriverStep::Refuse("no".to_owned()));
        holder.members.get_mut(&TWO).unwrap().state = DrivenState::Running;
        assert_eq!(next(&holder), DriverStep::Refuse("no".to_owned()));
    }

    #[test]
    fn a_refusal_is_reported_for_a_process_that_is_not_checkpointed() {
        assert_eq!(holder(away(), DrivenState::Checkpointed, DrivenState::Unknown).process_to_report(), Some(TWO));
        assert_eq!(holder(away(), DrivenState::Running, DrivenState::Checkpointed).process_to_report(), Some(ONE));
        assert_eq!(holder(away(), DrivenState::Checkpointed, DrivenState::Checkpointed).process_to_report(), Some(ONE));
    }

    #[test]
    fn all_processes_are_restored_before_any_is_unlocked() {
        let target = DriverPlacement::OnGpus { needs: Vec::new() };
        let mut holder = holder(target, DrivenState::Checkpointed, DrivenState::Locked);
        assert_eq!(next(&holder), DriverStep::Restore(vec![ONE]));
        // Without room nothing stays locked for it.
        holder.retry_at = Instant::now() + Duration::from_secs(60);
        assert_eq!(next(&holder), DriverStep::Unlock(TWO));
        holder.members.get_mut(&TWO).unwrap().state = DrivenState::Running;
        assert_eq!(next(&holder), DriverStep::Nothing);
    }

    #[test]
    fn without_room_processes_are_queried_and_unlocked_but_not_restored() {
        let mut holder = holder(DriverPlacement::WaitForRoom, DrivenState::Checkpointed, DrivenState::Unknown);
        assert_eq!(next(&holder), DriverStep::QueryState(TWO));
        holder.members.get_mut(&TWO).unwrap().state = DrivenState::Locked;
        assert_eq!(next(&holder), DriverStep::Unlock(TWO));
        holder.members.get_mut(&TWO).unwrap().state = DrivenState::Running;
        assert_eq!(next(&holder), DriverStep::Nothing);
    }

    #[test]
    fn a_lost_process_is_left_alone() {
        let target = DriverPlacement::OnGpus { needs: Vec::new() };
        assert_eq!(next(&holder(target, DrivenState::Lost, DrivenState::Running)), DriverStep::Nothing);
        assert_eq!(next(&holder(away(), DrivenState::Lost, DrivenState::Checkpointed)), DriverStep::ReportParked);
    }

    #[test]
    fn a_withdrawn_park_unlocks_locked_processes() {
        let mut holder = holder(away(), DrivenState::Locked, DrivenState::Running);
        holder.attempt = ParkAttempt::Trying { lock_deadline: Instant::now() };
        assert!(!holder.set_target(away(), &[ONE, TWO], Instant::now()));
        assert!(holder.set_target(DriverPlacement::OnGpus { needs: Vec::new() }, &[ONE, TWO], Instant::now()));
        assert_eq!(next(&holder), DriverStep::Unlock(ONE));
    }

    #[test]
    fn a_refused_target_is_tried_when_it_is_set_again() {
        let mut holder = holder(away(), DrivenState::Running, DrivenState::Running);
        holder.attempt = ParkAttempt::Over;
        assert_eq!(next(&holder), DriverStep::Nothing);
        holder.set_target(away(), &[ONE, TWO], Instant::now());
        assert_eq!(next(&holder), DriverStep::Examine);
    }

    #[test]
    fn a_forgotten_holder_is_unlocked_before_it_is_removed() {
        let mut holder = holder(away(), DrivenState::Locked, DrivenState::Checkpointed);
        holder.target = None;
        assert_eq!(next(&holder), DriverStep::Unlock(ONE));
        holder.members.get_mut(&ONE).unwrap().state = DrivenState::Running;
        assert_eq!(next(&holder), DriverStep::Remove);
    }
}
