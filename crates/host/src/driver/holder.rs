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
//! Nothing here makes a call: [`Holder::next`] computes the next step from the known state.

use super::DrivenPlace;
use super::target::Target;
use crate::process;
use std::collections::BTreeMap;
use std::time::Instant;
use sublet_core::ids::ProcKey;

/// The state of a process, as the driver last reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// The driver must be asked.
    Unknown,
    Running,
    Locked,
    Checkpointed,
    /// It could not be restored, and is never tried again.
    Lost,
}

/// One process of a holder.
pub(super) struct Member {
    pub(super) at: At,
    /// Its pidfd, so that its pid is not reused; `None` where the kernel gives none.
    target: Option<Target>,
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

impl Member {
    pub(super) fn new(process: ProcKey) -> Member {
        Member {
            at: At::Unknown,
            target: Target::open(process),
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
        self.target.as_ref().map_or_else(|| process::is_running(process), Target::is_alive)
    }

    pub(super) fn had_bytes(&self) -> u64 {
        self.had.values().sum()
    }
}

/// The progress of parking a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
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
pub(super) enum Next {
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

impl Next {
    /// True if the step takes a short time.
    pub(super) const fn is_quick(&self) -> bool {
        matches!(self, Next::Ask(_) | Next::Unlock(_) | Next::Refuse(_) | Next::Drop)
    }
}

/// A lease with processes that the driver moves.
pub(super) struct Holder {
    /// Its target; `None` once it is forgotten. It is then removed as soon as nothing of it is locked.
    pub(super) place: Option<DrivenPlace>,
    /// Its user: a process of another user is not parked.
    pub(super) uid: u32,
    pub(super) members: BTreeMap<ProcKey, Member>,
    pub(super) attempt: Attempt,
    /// When the target last changed or was last renewed.
    pub(super) armed: Instant,
    /// Restoring, or beginning to park, is not tried again before then.
    pub(super) again: Instant,
}

impl Holder {
    pub(super) fn new(uid: u32, now: Instant) -> Holder {
        Holder { uid, place: None, members: BTreeMap::new(), attempt: Attempt::Over, armed: now, again: now }
    }

    /// Sets the target: a refused step may be tried again, and a step in progress goes on. Returns true if the old
    /// target was [`DrivenPlace::Away`] and the new one is not.
    pub(super) fn take(&mut self, place: DrivenPlace, processes: &[ProcKey], now: Instant) -> bool {
        let is_away = |place: &Option<DrivenPlace>| matches!(place, Some(DrivenPlace::Away { .. }));
        let was_away = is_away(&self.place);
        self.place = Some(place);
        if was_away != is_away(&self.place) || self.attempt == Attempt::Over {
            (self.attempt, self.armed) = (Attempt::Armed, now);
        }
        self.again = now;
        for (process, member) in &mut self.members {
            (member.listed, member.again) = (processes.contains(process), None);
        }
        for process in processes {
            self.members.entry(*process).or_insert_with(|| Member::new(*process));
        }
        was_away && !is_away(&self.place)
    }

    /// The worker was lost: the state of locked and checkpointed processes is unknown now.
    pub(super) fn doubt(&mut self) {
        for member in self.members.values_mut().filter(|member| matches!(member.at, At::Locked | At::Checkpointed)) {
            member.at = At::Unknown;
        }
    }

    /// The processes in this state for which `may` is true.
    pub(super) fn those(&self, at: At, may: &impl Fn(ProcKey) -> bool) -> Vec<ProcKey> {
        let there = self.members.iter().filter(|(_, member)| member.at == at);
        there.map(|(process, _)| *process).filter(|process| may(*process)).collect()
    }

    fn any(&self, at: At) -> Option<ProcKey> {
        self.members.iter().find(|(_, member)| member.at == at).map(|(process, _)| *process)
    }

    /// The process reported for a holder that refuses to park: one that is not checkpointed, if there is one.
    pub(super) fn who_stays(&self) -> Option<ProcKey> {
        let here = self.members.iter().find(|(_, member)| member.at != At::Checkpointed);
        here.or_else(|| self.members.iter().next()).map(|(process, _)| *process)
    }

    /// The next step. `may` is true for a process that may be touched now: it lives and is not stopped.
    pub(super) fn next(&self, now: Instant, may: impl Fn(ProcKey) -> bool) -> Next {
        if let (Some(DrivenPlace::Away { .. }), Attempt::Back { why, by, .. }) = (&self.place, &self.attempt)
            && *by <= now
        {
            return Next::Refuse(why.clone());
        }
        let is_due = |process: &ProcKey| self.members[process].again.is_none_or(|again| again <= now);
        if let Some(process) = self.those(At::Unknown, &may).into_iter().find(is_due) {
            return Next::Ask(process);
        }
        let unlock = || self.those(At::Locked, &may).into_iter().find(is_due).map(Next::Unlock);
        match (&self.place, &self.attempt) {
            (None, _) if self.any(At::Locked).or(self.any(At::Unknown)).is_none() => Next::Drop,
            (None, _) => unlock().unwrap_or(Next::Nothing),
            (Some(DrivenPlace::OnCards { .. }), _) => {
                let away = self.those(At::Checkpointed, &may);
                if !away.is_empty() && self.again <= now {
                    return Next::Bring(away);
                }
                unlock().unwrap_or(Next::Nothing)
            }
            (Some(DrivenPlace::Away { .. }), Attempt::Over) | (Some(DrivenPlace::Anywhere), _) => {
                unlock().unwrap_or(Next::Nothing)
            }
            (Some(DrivenPlace::Away { .. }), Attempt::Armed) => {
                let left = self.members.values().any(|member| !matches!(member.at, At::Checkpointed | At::Lost));
                match left {
                    true if self.again > now => Next::Nothing,
                    true => Next::Examine,
                    false => Next::Settle,
                }
            }
            (Some(DrivenPlace::Away { .. }), Attempt::Trying { .. }) => {
                let running = self.any(At::Running).or(self.any(At::Unknown)).map(Next::Lock);
                running.or_else(|| self.any(At::Locked).map(Next::Checkpoint)).unwrap_or(Next::Settle)
            }
            (Some(DrivenPlace::Away { .. }), Attempt::Back { why, brought, .. }) => {
                let mut away = self.those(At::Checkpointed, &may);
                // A process parked in an earlier attempt has no room on the GPU any more: it may be promised to
                // another lease.
                away.retain(|process| self.members[process].just_left);
                if !away.is_empty() && !brought {
                    return Next::Bring(away);
                }
                let waits = self.any(At::Locked).or(self.any(At::Unknown)).is_some();
                unlock().unwrap_or_else(|| if waits { Next::Nothing } else { Next::Refuse(why.clone()) })
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

    fn away() -> DrivenPlace {
        DrivenPlace::Away { within: Duration::from_secs(60), booked: 0 }
    }

    fn holder(place: DrivenPlace, one: At, two: At) -> Holder {
        let now = Instant::now();
        let mut holder = Holder::new(0, now);
        for (process, at) in [(ONE, one), (TWO, two)] {
            let member = Member { at, target: None, ..Member::new(process) };
            holder.members.insert(process, member);
        }
        holder.take(place, &[ONE, TWO], now);
        holder
    }

    fn next(holder: &Holder) -> Next {
        holder.next(Instant::now(), |_| true)
    }

    #[test]
    fn whoever_is_not_known_is_asked_about_first() {
        for place in [away(), DrivenPlace::OnCards { needs: Vec::new() }] {
            let holder = holder(place, At::Locked, At::Unknown);
            assert_eq!(next(&holder), Next::Ask(TWO));
            // A stopped process is not asked about, and delays no other.
            assert_ne!(holder.next(Instant::now(), |process| process == ONE), Next::Ask(TWO));
        }
    }

    #[test]
    fn all_are_locked_before_the_first_leaves() {
        let mut holder = holder(away(), At::Running, At::Running);
        assert_eq!(next(&holder), Next::Examine);
        holder.attempt = Attempt::Trying { until: Instant::now() };
        for (one, two, then) in [
            (At::Running, At::Running, Next::Lock(ONE)),
            (At::Locked, At::Running, Next::Lock(TWO)),
            (At::Locked, At::Locked, Next::Checkpoint(ONE)),
            (At::Checkpointed, At::Locked, Next::Checkpoint(TWO)),
            (At::Checkpointed, At::Checkpointed, Next::Settle),
        ] {
            holder.members.get_mut(&ONE).unwrap().at = one;
            holder.members.get_mut(&TWO).unwrap().at = two;
            assert_eq!(next(&holder), then);
        }
    }

    #[test]
    fn who_failed_brings_back_what_left_and_unlocks_all_before_it_is_said() {
        let mut holder = holder(away(), At::Checkpointed, At::Locked);
        let by = Instant::now() + Duration::from_secs(60);
        holder.attempt = Attempt::Back { why: "no".to_owned(), by, brought: false };
        // A process parked in an earlier attempt has no room of its own.
        assert_eq!(next(&holder), Next::Unlock(TWO));
        holder.members.get_mut(&ONE).unwrap().just_left = true;
        assert_eq!(next(&holder), Next::Bring(vec![ONE]));
        holder.members.get_mut(&ONE).unwrap().at = At::Locked;
        assert_eq!(next(&holder), Next::Unlock(ONE));
        holder.members.get_mut(&ONE).unwrap().at = At::Running;
        assert_eq!(next(&holder), Next::Unlock(TWO));
        // A stopped process is waited for, but not for ever.
        assert_eq!(holder.next(Instant::now(), |_| false), Next::Nothing);
        assert_eq!(holder.next(by, |_| false), Next::Refuse("no".to_owned()));
        holder.members.get_mut(&TWO).unwrap().at = At::Running;
        assert_eq!(next(&holder), Next::Refuse("no".to_owned()));
    }

    #[test]
    fn who_has_left_does_not_speak_for_who_could_not() {
        assert_eq!(holder(away(), At::Checkpointed, At::Unknown).who_stays(), Some(TWO));
        assert_eq!(holder(away(), At::Running, At::Checkpointed).who_stays(), Some(ONE));
        assert_eq!(holder(away(), At::Checkpointed, At::Checkpointed).who_stays(), Some(ONE));
    }

    #[test]
    fn on_its_cards_all_come_back_before_any_goes_on() {
        let place = DrivenPlace::OnCards { needs: Vec::new() };
        let mut holder = holder(place, At::Checkpointed, At::Locked);
        assert_eq!(next(&holder), Next::Bring(vec![ONE]));
        // Without room nothing stays locked for it.
        holder.again = Instant::now() + Duration::from_secs(60);
        assert_eq!(next(&holder), Next::Unlock(TWO));
        holder.members.get_mut(&TWO).unwrap().at = At::Running;
        assert_eq!(next(&holder), Next::Nothing);
    }

    #[test]
    fn who_may_be_anywhere_is_asked_about_and_stays_where_it_is() {
        let mut holder = holder(DrivenPlace::Anywhere, At::Checkpointed, At::Unknown);
        assert_eq!(next(&holder), Next::Ask(TWO));
        holder.members.get_mut(&TWO).unwrap().at = At::Locked;
        assert_eq!(next(&holder), Next::Unlock(TWO));
        holder.members.get_mut(&TWO).unwrap().at = At::Running;
        assert_eq!(next(&holder), Next::Nothing);
    }

    #[test]
    fn who_is_lost_is_left_alone() {
        let place = DrivenPlace::OnCards { needs: Vec::new() };
        assert_eq!(next(&holder(place, At::Lost, At::Running)), Next::Nothing);
        assert_eq!(next(&holder(away(), At::Lost, At::Checkpointed)), Next::Settle);
    }

    #[test]
    fn a_change_of_mind_unlocks_what_was_locked() {
        let mut holder = holder(away(), At::Locked, At::Running);
        holder.attempt = Attempt::Trying { until: Instant::now() };
        assert!(!holder.take(away(), &[ONE, TWO], Instant::now()));
        assert!(holder.take(DrivenPlace::OnCards { needs: Vec::new() }, &[ONE, TWO], Instant::now()));
        assert_eq!(next(&holder), Next::Unlock(ONE));
    }

    #[test]
    fn a_wish_that_was_refused_is_tried_when_it_comes_again() {
        let mut holder = holder(away(), At::Running, At::Running);
        holder.attempt = Attempt::Over;
        assert_eq!(next(&holder), Next::Nothing);
        holder.take(away(), &[ONE, TWO], Instant::now());
        assert_eq!(next(&holder), Next::Examine);
    }

    #[test]
    fn whoever_is_forgotten_is_unlocked_first() {
        let mut holder = holder(away(), At::Locked, At::Checkpointed);
        holder.place = None;
        assert_eq!(next(&holder), Next::Unlock(ONE));
        holder.members.get_mut(&ONE).unwrap().at = At::Running;
        assert_eq!(next(&holder), Next::Drop);
    }
}
