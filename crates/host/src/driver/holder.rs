//! One holder that the driver moves: where its processes are, and what comes next.
//!
//! ```text
//!                ┌── OnCards: prove room, restore all, unlock all ──┐
//!                ▼                                                  │
//!   unknown ─► running ──lock──► locked ──checkpoint──► checkpointed┘
//!                ▲                 │                        │ restore failed
//!                └─────unlock──────┘                        ▼
//!                                                         lost, for good
//!   Away:  armed ─► trying ─► over (all off their cards)
//!                     │ anything fails
//!                     ▼
//!                    back (restore what left, unlock all) ─► over (refused)
//! ```
//! Nothing here asks or tells anybody: [`Holder::next`] says what to do, from what is known.

use super::DrivenPlace;
use super::target::Target;
use crate::process;
use std::collections::BTreeMap;
use std::time::Instant;
use sublet_core::ids::ProcKey;

/// Where a process is, as far as the driver said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// The driver has to be asked.
    Unknown,
    Running,
    Locked,
    Checkpointed,
    /// It could not be brought back, and is never tried again.
    Lost,
}

/// One process of a holder.
pub(super) struct Member {
    pub(super) at: At,
    /// Held, so that its pid stays its own; not where the kernel has no descriptor for us.
    target: Option<Target>,
    /// The last wish names it.
    pub(super) listed: bool,
    /// Bytes it had on each card before it was locked.
    pub(super) had: BTreeMap<String, u64>,
    /// It left in the attempt that is under way: its room is still its holder's.
    pub(super) just_left: bool,
    /// Bytes it has in host memory, by our own reckoning.
    pub(super) parked: u64,
    /// What was last told: it is parked, or it is not.
    pub(super) told: Option<bool>,
    /// It is not asked about again before then.
    pub(super) again: Option<Instant>,
    /// Calls about it with which a worker was lost, one after the other.
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

    /// Has it not ended? Without a descriptor `/proc` says.
    pub(super) fn is_alive(&self, process: ProcKey) -> bool {
        self.target.as_ref().map_or_else(|| process::is_running(process), Target::is_alive)
    }

    pub(super) fn had_bytes(&self) -> u64 {
        self.had.values().sum()
    }
}

/// How a holder's leaving goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// It begins when it can.
    Armed,
    /// It shall be done by then.
    Trying { until: Instant },
    /// It failed: all go back where they were. Said by then at the latest.
    Back { why: String, by: Instant, brought: bool },
    /// Nothing more until somebody wishes again.
    Over,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Nothing,
    /// Ask where it is.
    Ask(ProcKey),
    /// Look at all of them from outside, and begin or refuse.
    Examine,
    Lock(ProcKey),
    Checkpoint(ProcKey),
    /// Prove the room of these, and restore them.
    Bring(Vec<ProcKey>),
    Unlock(ProcKey),
    /// All have left: say so.
    Settle,
    /// All are where they were, or time is up: say why.
    Refuse(String),
    /// It is history.
    Drop,
}

impl Next {
    /// Nobody waits long for it.
    pub(super) const fn is_quick(&self) -> bool {
        matches!(self, Next::Ask(_) | Next::Unlock(_) | Next::Refuse(_) | Next::Drop)
    }
}

/// A lease whose processes the driver moves.
pub(super) struct Holder {
    /// Nowhere: it is forgotten, and goes when nothing of it is locked.
    pub(super) place: Option<DrivenPlace>,
    /// Its user: a process of another is not taken away.
    pub(super) uid: u32,
    pub(super) members: BTreeMap<ProcKey, Member>,
    pub(super) attempt: Attempt,
    /// When somebody last wished for another place, or again.
    pub(super) armed: Instant,
    /// Bringing it back, or beginning to take it away, is not tried again before then.
    pub(super) again: Instant,
}

impl Holder {
    pub(super) fn new(uid: u32, now: Instant) -> Holder {
        Holder { uid, place: None, members: BTreeMap::new(), attempt: Attempt::Over, armed: now, again: now }
    }

    /// Takes a wish: whatever was refused may be tried again, what is under way goes on. Says whether it was to leave
    /// until now, and shall not any more.
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

    /// The worker was lost: what it was about is not known any more.
    pub(super) fn doubt(&mut self) {
        for member in self.members.values_mut().filter(|member| matches!(member.at, At::Locked | At::Checkpointed)) {
            member.at = At::Unknown;
        }
    }

    /// The processes that are somewhere, and may be touched now.
    pub(super) fn those(&self, at: At, may: &impl Fn(ProcKey) -> bool) -> Vec<ProcKey> {
        let there = self.members.iter().filter(|(_, member)| member.at == at);
        there.map(|(process, _)| *process).filter(|process| may(*process)).collect()
    }

    fn any(&self, at: At) -> Option<ProcKey> {
        self.members.iter().find(|(_, member)| member.at == at).map(|(process, _)| *process)
    }

    /// Who speaks for a holder that does not leave: one that has not, for who has cannot refuse to.
    pub(super) fn who_stays(&self) -> Option<ProcKey> {
        let here = self.members.iter().find(|(_, member)| member.at != At::Checkpointed);
        here.or_else(|| self.members.iter().next()).map(|(process, _)| *process)
    }

    /// What to do next; `may` says who may be touched now: who is there and not stopped.
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
                // Who left earlier has no room any more that could be proven and was not promised to another.
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
            // A stopped one is not, and holds up no other.
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
        // Who left long ago has no room of its own.
        assert_eq!(next(&holder), Next::Unlock(TWO));
        holder.members.get_mut(&ONE).unwrap().just_left = true;
        assert_eq!(next(&holder), Next::Bring(vec![ONE]));
        holder.members.get_mut(&ONE).unwrap().at = At::Locked;
        assert_eq!(next(&holder), Next::Unlock(ONE));
        holder.members.get_mut(&ONE).unwrap().at = At::Running;
        assert_eq!(next(&holder), Next::Unlock(TWO));
        // A stopped one is waited for, but not for ever.
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
