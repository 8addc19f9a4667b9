//! One holder that the driver moves: the state of its processes, and the next step.
//!
//! ```text
//!                ┌── OnCards: prove room, restore all, unlock all ──┐
//!                ▼                                                  │
//!   unknown ─► running ──lock──► locked ──checkpoint──► checkpointed┘
//!                ▲                 │                        │ restore failed
//!                └─────unlock──────┘                        ▼
//!                                                         lost, for good
//!   Away:  armed ─► trying ─► over (all off their GPUs)
//!                     │ anything fails
//!                     ▼
//!                    back (restore what left, unlock all) ─► over (refused)
//! ```
//! Nothing here makes a call: [`DrivenHolder::next`] computes the next step from the known state.

use super::DriverPlacement;
use super::target::PinnedProcess;
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
    pub(super) at: DrivenState,
    /// Its pidfd, so that its pid is not reused; `None` where the kernel gives none.
    target: Option<PinnedProcess>,
    /// The last target names it.
    pub(super) listed: bool,
    /// Bytes it had on each GPU before it was locked.
    pub(super) had: BTreeMap<String, u64>,
    /// It was checkpointed in the present attempt: its room on the GPU is still its holder's.
    pub(super) just_left: bool,
    /// Bytes it has in host memory, by this daemon's own count.
    pub(super) parked: u64,
    /// What was last reported: true if it is parked.
    pub(super) told: Option<bool>,
    /// The driver is not asked about it before then.
    pub(super) again: Option<Instant>,
    /// Consecutive calls about it in which a worker was lost.
    pub(super) hung: u32,
}

impl DrivenProcess {
    pub(super) fn new(process: ProcKey) -> DrivenProcess {
        DrivenProcess {
            at: DrivenState::Unknown,
            target: PinnedProcess::open(process),
            listed: true,
            had: BTreeMap::new(),
            just_left: false,
            parked: 0,
            told: None,
            again: None,
            hung: 0,
        }
    }

    /// True if it has not ended. Without a pidfd this is read from `/proc`.
    pub(super) fn is_alive(&self, process: ProcKey) -> bool {
        self.target.as_ref().map_or_else(|| process::is_running(process), PinnedProcess::is_alive)
    }

    pub(super) fn had_bytes(&self) -> u64 {
        self.had.values().sum()
    }
}

/// The progress of parking a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ParkAttempt {
    /// It begins as soon as possible.
    Armed,
    /// It must be done by then.
    Trying { until: Instant },
    /// It failed: all processes are being restored. The failure is reported by `by` at the latest.
    Back { why: String, by: Instant, brought: bool },
    /// Nothing more until the next target.
    Over,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DriverStep {
    Nothing,
    /// Ask the driver for its state.
    Ask(ProcKey),
    /// Examine all processes from outside, and begin or refuse.
    Examine,
    Lock(ProcKey),
    Checkpoint(ProcKey),
    /// Prove the room of these, and restore them.
    Bring(Vec<ProcKey>),
    Unlock(ProcKey),
    /// All are checkpointed: report that.
    Settle,
    /// All are restored, or time is up: report why.
    Refuse(String),
    /// The holder is forgotten and nothing of it is locked: remove it.
    Drop,
}

impl DriverStep {
    /// True if the step takes a short time.
    pub(super) const fn is_quick(&self) -> bool {
        matches!(self, DriverStep::Ask(_) | DriverStep::Unlock(_) | DriverStep::Refuse(_) | DriverStep::Drop)
    }
}

/// A lease with processes that the driver moves.
pub(super) struct DrivenHolder {
    /// Its target; `None` once it is forgotten. It is then removed as soon as nothing of it is locked.
    pub(super) place: Option<DriverPlacement>,
    /// Its user: a process of another user is not parked.
    pub(super) uid: u32,
    pub(super) members: BTreeMap<ProcKey, DrivenProcess>,
    pub(super) attempt: ParkAttempt,
    /// When the target last changed or was last renewed.
    pub(super) armed: Instant,
    /// Restoring, or beginning to park, is not tried again before then.
    pub(super) again: Instant,
}

impl DrivenHolder {
    pub(super) fn new(uid: u32, now: Instant) -> DrivenHolder {
        DrivenHolder { uid, place: None, members: BTreeMap::new(), attempt: ParkAttempt::Over, armed: now, again: now }
    }

    /// Sets the target: a refused step may be tried again, and a step in progress goes on. Returns true if the old
    /// target was [`DriverPlacement::Away`] and the new one is not.
    pub(super) fn take(&mut self, place: DriverPlacement, processes: &[ProcKey], now: Instant) -> bool {
        let is_away = |place: &Option<DriverPlacement>| matches!(place, Some(DriverPlacement::Away { .. }));
        let was_away = is_away(&self.place);
        self.place = Some(place);
        if was_away != is_away(&self.place) || self.attempt == ParkAttempt::Over {
            (self.attempt, self.armed) = (ParkAttempt::Armed, now);
        }
        self.again = now;
        for (process, member) in &mut self.members {
            (member.listed, member.again) = (processes.contains(process), None);
        }
        for process in processes {
            self.members.entry(*process).or_insert_with(|| DrivenProcess::new(*process));
        }
        was_away && !is_away(&self.place)
    }

    /// The worker was lost: the state of locked and checkpointed processes is unknown now.
    pub(super) fn doubt(&mut self) {
        for member in self
            .members
            .values_mut()
            .filter(|member| matches!(member.at, DrivenState::Locked | DrivenState::Checkpointed))
        {
            member.at = DrivenState::Unknown;
        }
    }

    /// The processes in this state for which `may` is true.
    pub(super) fn those(&self, at: DrivenState, may: &impl Fn(ProcKey) -> bool) -> Vec<ProcKey> {
        let there = self.members.iter().filter(|(_, member)| member.at == at);
        there.map(|(process, _)| *process).filter(|process| may(*process)).collect()
    }

    fn any(&self, at: DrivenState) -> Option<ProcKey> {
        self.members.iter().find(|(_, member)| member.at == at).map(|(process, _)| *process)
    }

    /// The process reported for a holder that refuses to park: one that is not checkpointed, if there is one.
    pub(super) fn who_stays(&self) -> Option<ProcKey> {
        let here = self.members.iter().find(|(_, member)| member.at != DrivenState::Checkpointed);
        here.or_else(|| self.members.iter().next()).map(|(process, _)| *process)
    }

    /// The next step. `may` is true for a process that may be touched now: it lives and is not stopped.
    pub(super) fn next(&self, now: Instant, may: impl Fn(ProcKey) -> bool) -> DriverStep {
        if let (Some(DriverPlacement::Away { .. }), ParkAttempt::Back { why, by, .. }) = (&self.place, &self.attempt)
            && *by <= now
        {
            return DriverStep::Refuse(why.clone());
        }
        let is_due = |process: &ProcKey| self.members[process].again.is_none_or(|again| again <= now);
        if let Some(process) = self.those(DrivenState::Unknown, &may).into_iter().find(is_due) {
            return DriverStep::Ask(process);
        }
        let unlock = || self.those(DrivenState::Locked, &may).into_iter().find(is_due).map(DriverStep::Unlock);
        match (&self.place, &self.attempt) {
            (None, _) if self.any(DrivenState::Locked).or(self.any(DrivenState::Unknown)).is_none() => DriverStep::Drop,
            (None, _) => unlock().unwrap_or(DriverStep::Nothing),
            (Some(DriverPlacement::OnCards { .. }), _) => {
                let away = self.those(DrivenState::Checkpointed, &may);
                if !away.is_empty() && self.again <= now {
                    return DriverStep::Bring(away);
                }
                unlock().unwrap_or(DriverStep::Nothing)
            }
            (Some(DriverPlacement::Away { .. }), ParkAttempt::Over) | (Some(DriverPlacement::Anywhere), _) => {
                unlock().unwrap_or(DriverStep::Nothing)
            }
            (Some(DriverPlacement::Away { .. }), ParkAttempt::Armed) => {
                let left = self
                    .members
                    .values()
                    .any(|member| !matches!(member.at, DrivenState::Checkpointed | DrivenState::Lost));
                match left {
                    true if self.again > now => DriverStep::Nothing,
                    true => DriverStep::Examine,
                    false => DriverStep::Settle,
                }
            }
            (Some(DriverPlacement::Away { .. }), ParkAttempt::Trying { .. }) => {
                let running = self.any(DrivenState::Running).or(self.any(DrivenState::Unknown)).map(DriverStep::Lock);
                running
                    .or_else(|| self.any(DrivenState::Locked).map(DriverStep::Checkpoint))
                    .unwrap_or(DriverStep::Settle)
            }
            (Some(DriverPlacement::Away { .. }), ParkAttempt::Back { why, brought, .. }) => {
                let mut away = self.those(DrivenState::Checkpointed, &may);
                // A process parked in an earlier attempt has no room on the GPU any more: it may be promised to
                // another lease.
                away.retain(|process| self.members[process].just_left);
                if !away.is_empty() && !brought {
                    return DriverStep::Bring(away);
                }
                let waits = self.any(DrivenState::Locked).or(self.any(DrivenState::Unknown)).is_some();
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
        DriverPlacement::Away { within: Duration::from_secs(60), booked: 0 }
    }

    fn holder(place: DriverPlacement, one: DrivenState, two: DrivenState) -> DrivenHolder {
        let now = Instant::now();
        let mut holder = DrivenHolder::new(0, now);
        for (process, at) in [(ONE, one), (TWO, two)] {
            let member = DrivenProcess { at, target: None, ..DrivenProcess::new(process) };
            holder.members.insert(process, member);
        }
        holder.take(place, &[ONE, TWO], now);
        holder
    }

    fn next(holder: &DrivenHolder) -> DriverStep {
        holder.next(Instant::now(), |_| true)
    }

    #[test]
    fn whoever_is_not_known_is_asked_about_first() {
        for place in [away(), DriverPlacement::OnCards { needs: Vec::new() }] {
            let holder = holder(place, DrivenState::Locked, DrivenState::Unknown);
            assert_eq!(next(&holder), DriverStep::Ask(TWO));
            // A stopped process is not asked about, and delays no other.
            assert_ne!(holder.next(Instant::now(), |process| process == ONE), DriverStep::Ask(TWO));
        }
    }

    #[test]
    fn all_are_locked_before_the_first_leaves() {
        let mut holder = holder(away(), DrivenState::Running, DrivenState::Running);
        assert_eq!(next(&holder), DriverStep::Examine);
        holder.attempt = ParkAttempt::Trying { until: Instant::now() };
        for (one, two, then) in [
            (DrivenState::Running, DrivenState::Running, DriverStep::Lock(ONE)),
            (DrivenState::Locked, DrivenState::Running, DriverStep::Lock(TWO)),
            (DrivenState::Locked, DrivenState::Locked, DriverStep::Checkpoint(ONE)),
            (DrivenState::Checkpointed, DrivenState::Locked, DriverStep::Checkpoint(TWO)),
            (DrivenState::Checkpointed, DrivenState::Checkpointed, DriverStep::Settle),
        ] {
            holder.members.get_mut(&ONE).unwrap().at = one;
            holder.members.get_mut(&TWO).unwrap().at = two;
            assert_eq!(next(&holder), then);
        }
    }

    #[test]
    fn who_failed_brings_back_what_left_and_unlocks_all_before_it_is_said() {
        let mut holder = holder(away(), DrivenState::Checkpointed, DrivenState::Locked);
        let by = Instant::now() + Duration::from_secs(60);
        holder.attempt = ParkAttempt::Back { why: "no".to_owned(), by, brought: false };
        // A process parked in an earlier attempt has no room of its own.
        assert_eq!(next(&holder), DriverStep::Unlock(TWO));
        holder.members.get_mut(&ONE).unwrap().just_left = true;
        assert_eq!(next(&holder), DriverStep::Bring(vec![ONE]));
        holder.members.get_mut(&ONE).unwrap().at = DrivenState::Locked;
        assert_eq!(next(&holder), DriverStep::Unlock(ONE));
        holder.members.get_mut(&ONE).unwrap().at = DrivenState::Running;
        assert_eq!(next(&holder), DriverStep::Unlock(TWO));
        // A stopped process is waited for, but not for ever.
        assert_eq!(holder.next(Instant::now(), |_| false), DriverStep::Nothing);
        assert_eq!(holder.next(by, |_| false), DriverStep::Refuse("no".to_owned()));
        holder.members.get_mut(&TWO).unwrap().at = DrivenState::Running;
        assert_eq!(next(&holder), DriverStep::Refuse("no".to_owned()));
    }

    #[test]
    fn who_has_left_does_not_speak_for_who_could_not() {
        assert_eq!(holder(away(), DrivenState::Checkpointed, DrivenState::Unknown).who_stays(), Some(TWO));
        assert_eq!(holder(away(), DrivenState::Running, DrivenState::Checkpointed).who_stays(), Some(ONE));
        assert_eq!(holder(away(), DrivenState::Checkpointed, DrivenState::Checkpointed).who_stays(), Some(ONE));
    }

    #[test]
    fn on_its_cards_all_come_back_before_any_goes_on() {
        let place = DriverPlacement::OnCards { needs: Vec::new() };
        let mut holder = holder(place, DrivenState::Checkpointed, DrivenState::Locked);
        assert_eq!(next(&holder), DriverStep::Bring(vec![ONE]));
        // Without room nothing stays locked for it.
        holder.again = Instant::now() + Duration::from_secs(60);
        assert_eq!(next(&holder), DriverStep::Unlock(TWO));
        holder.members.get_mut(&TWO).unwrap().at = DrivenState::Running;
        assert_eq!(next(&holder), DriverStep::Nothing);
    }

    #[test]
    fn who_may_be_anywhere_is_asked_about_and_stays_where_it_is() {
        let mut holder = holder(DriverPlacement::Anywhere, DrivenState::Checkpointed, DrivenState::Unknown);
        assert_eq!(next(&holder), DriverStep::Ask(TWO));
        holder.members.get_mut(&TWO).unwrap().at = DrivenState::Locked;
        assert_eq!(next(&holder), DriverStep::Unlock(TWO));
        holder.members.get_mut(&TWO).unwrap().at = DrivenState::Running;
        assert_eq!(next(&holder), DriverStep::Nothing);
    }

    #[test]
    fn who_is_lost_is_left_alone() {
        let place = DriverPlacement::OnCards { needs: Vec::new() };
        assert_eq!(next(&holder(place, DrivenState::Lost, DrivenState::Running)), DriverStep::Nothing);
        assert_eq!(next(&holder(away(), DrivenState::Lost, DrivenState::Checkpointed)), DriverStep::Settle);
    }

    #[test]
    fn a_change_of_mind_unlocks_what_was_locked() {
        let mut holder = holder(away(), DrivenState::Locked, DrivenState::Running);
        holder.attempt = ParkAttempt::Trying { until: Instant::now() };
        assert!(!holder.take(away(), &[ONE, TWO], Instant::now()));
        assert!(holder.take(DriverPlacement::OnCards { needs: Vec::new() }, &[ONE, TWO], Instant::now()));
        assert_eq!(next(&holder), DriverStep::Unlock(ONE));
    }

    #[test]
    fn a_wish_that_was_refused_is_tried_when_it_comes_again() {
        let mut holder = holder(away(), DrivenState::Running, DrivenState::Running);
        holder.attempt = ParkAttempt::Over;
        assert_eq!(next(&holder), DriverStep::Nothing);
        holder.take(away(), &[ONE, TWO], Instant::now());
        assert_eq!(next(&holder), DriverStep::Examine);
    }

    #[test]
    fn whoever_is_forgotten_is_unlocked_first() {
        let mut holder = holder(away(), DrivenState::Locked, DrivenState::Checkpointed);
        holder.place = None;
        assert_eq!(next(&holder), DriverStep::Unlock(ONE));
        holder.members.get_mut(&ONE).unwrap().at = DrivenState::Running;
        assert_eq!(next(&holder), DriverStep::Drop);
    }
}
