//! The ancestors that started a process, including those that have ended and left it to another parent.
//!
//! The connector reports which process made which, and the kernel's accounts name processes that ended. Both are kept
//! for a while, as numbers and names. Any lost message makes all of it void, because a pid may have been reused
//! meanwhile. So the result may be incomplete, but never wrong.
//!
//! Absent: a decision. Parents that still live are read from `/proc`.

use super::clean_text::{WORD_MAX, clean};
use super::taskstats::EndedProcess;
use crate::process;
use rustix::time::{ClockId, clock_gettime};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use sublet_core::audit::{Ancestor, Audit};
use sublet_core::ids::ProcKey;

/// Entries remembered of each kind.
const EVENTS_MAX: usize = 16_384;
/// Seconds by which the two clocks may differ.
const SLACK_S: u64 = 2;
/// Generations followed at most.
const GENERATIONS_MAX: usize = 32;

/// One process made another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ForkEvent {
    pub(super) child: u32,
    pub(super) parent: u32,
    /// By the kernel's monotonic clock, which stops while the host is suspended, in ns.
    pub(super) at_ns: u64,
}

/// What was recently received about processes. Written by the thread that listens, and read by the thread that
/// audits.
#[derive(Clone, Default)]
pub(crate) struct AncestorHistory(Arc<Mutex<AncestorEvents>>);

#[derive(Default)]
struct AncestorEvents {
    forks: LatestByPid<ForkEvent>,
    ended: LatestByPid<EndedProcess>,
}

/// The latest entry of each process; the oldest is forgotten first.
struct LatestByPid<T> {
    by_pid: HashMap<u32, (T, u64)>,
    order: VecDeque<(u32, u64)>,
    next: u64,
}

impl<T> Default for LatestByPid<T> {
    fn default() -> LatestByPid<T> {
        LatestByPid { by_pid: HashMap::new(), order: VecDeque::new(), next: 0 }
    }
}

impl<T> LatestByPid<T> {
    fn insert(&mut self, pid: u32, item: T) {
        self.next += 1;
        self.by_pid.insert(pid, (item, self.next));
        self.order.push_back((pid, self.next));
        while self.order.len() > EVENTS_MAX {
            if let Some((pid, number)) = self.order.pop_front()
                && self.by_pid.get(&pid).is_some_and(|(_, latest)| *latest == number)
            {
                self.by_pid.remove(&pid);
            }
        }
    }

    fn get(&self, pid: u32) -> Option<&T> {
        self.by_pid.get(&pid).map(|(item, _)| item)
    }
}

impl AncestorHistory {
    pub(super) fn add_forks(&self, forks: &[ForkEvent]) {
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        forks.iter().for_each(|fork| events.forks.insert(fork.child, *fork));
    }

    pub(super) fn add_ended(&self, ended: Vec<EndedProcess>) {
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ended.into_iter().for_each(|ended| events.ended.insert(ended.pid, ended));
    }

    /// Drops everything, because messages were lost: a known pid may belong to another process by now.
    pub(super) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = AncestorEvents::default();
    }

    /// True if a process is known to descend from `dead`, a process that ended.
    pub(super) fn descends_from(&self, pid: u32, dead: u32) -> bool {
        let events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        events.descends_from(pid, dead, |pid| process::stat(pid).ok().map(|stat| stat.parent))
    }

    /// The processes that started this one, nearest first, up to the first that still lives. Empty if its present
    /// parent started it, or if no message about it was received.
    pub(crate) fn of(&self, pid: u32) -> Vec<Ancestor> {
        let Ok(stat) = process::stat(pid) else { return Vec::new() };
        let events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (wall, clock) = (clock_gettime(ClockId::Realtime), clock_gettime(ClockId::Monotonic));
        let began_s = wall.tv_sec.saturating_sub(clock.tv_sec).max(0).unsigned_abs();
        events.of(pid, stat.parent, began_s, |pid| {
            let stat = process::stat(pid).ok().filter(|stat| !stat.has_ended())?;
            let (process, name) = (stat.key(pid), clean(&stat.name, WORD_MAX));
            Some(Ancestor { process, uid: process::uid(pid).ok(), name, exe: None, ended: false })
        })
    }

    /// Puts the ended processes that started this one before its present parents.
    pub(crate) fn add_to_audit(&self, audit: &mut Audit) {
        let mut gone = self.of(audit.process.pid);
        if !gone.is_empty() {
            gone.retain(|ancestor| audit.ancestry.iter().all(|parent| parent.process != ancestor.process));
            audit.ancestry.splice(0..0, gone);
        }
    }
}

impl AncestorEvents {
    /// Follows the forks that were received; where none was, the present parents.
    fn descends_from(&self, pid: u32, dead: u32, parent_now: impl Fn(u32) -> Option<u32>) -> bool {
        let (mut next, mut before) = (pid, u64::MAX);
        for _ in 0..GENERATIONS_MAX {
            let fork = self.forks.get(next);
            // A process made later than its child is another one with the same pid.
            if fork.is_some_and(|fork| fork.at_ns >= before) {
                return false;
            }
            if next == dead {
                return true;
            }
            before = fork.map_or(before, |fork| fork.at_ns);
            match fork.map(|fork| fork.parent).or_else(|| parent_now(next)) {
                Some(parent) if parent > 1 => next = parent,
                _ => return false,
            }
        }
        false
    }

    /// `began_s` is the wall-clock time at which the kernel's clock was 0.
    fn of(&self, pid: u32, parent_now: u32, began_s: u64, alive: impl Fn(u32) -> Option<Ancestor>) -> Vec<Ancestor> {
        let mut found = Vec::new();
        let Some(mut fork) = self.forks.get(pid).copied() else { return found };
        if fork.parent == parent_now {
            return found;
        }
        while found.len() < GENERATIONS_MAX {
            let above = self.forks.get(fork.parent).copied();
            // A process made later than its child is another one with the same pid.
            let above = match above {
                Some(above) if above.at_ns >= fork.at_ns => return found,
                above => above,
            };
            match alive(fork.parent) {
                Some(ancestor) => {
                    // It is the process of the message, or one that existed before messages were received.
                    found.push(ancestor);
                    return found;
                }
                None => {
                    let ended = self.ended.get(fork.parent);
                    // An account of another process with the same pid has another start time.
                    let began = |at_ns: u64| began_s + at_ns / 1_000_000_000;
                    let ended = ended.filter(|ended| match above {
                        Some(above) => ended.began_s.abs_diff(began(above.at_ns)) <= SLACK_S,
                        None => ended.began_s <= began(fork.at_ns) + SLACK_S,
                    });
                    let name = ended.map_or_else(|| "?".to_owned(), |ended| clean(&ended.name, WORD_MAX));
                    let process = ProcKey { pid: fork.parent, start: 0 };
                    found.push(Ancestor { process, uid: ended.map(|ended| ended.uid), name, exe: None, ended: true });
                }
            }
            match above {
                Some(above) => fork = above,
                None => return found,
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(fork: &[(u32, u32)], ended: &[(u32, &str)]) -> AncestorEvents {
        let mut events = AncestorEvents::default();
        for (at_ns, (parent, child)) in (1..).zip(fork) {
            events.forks.insert(*child, ForkEvent { child: *child, parent: *parent, at_ns });
        }
        for (pid, name) in ended {
            let ended = EndedProcess { pid: *pid, uid: 1000, name: (*name).to_owned(), began_s: 100 };
            events.ended.insert(*pid, ended);
        }
        events
    }

    fn ancestry_text(events: &AncestorEvents, pid: u32, parent_now: u32, living: &[u32]) -> String {
        let alive = |pid: u32| {
            let process = ProcKey { pid, start: 5 };
            let ancestor = Ancestor { process, uid: Some(0), name: "shell".to_owned(), exe: None, ended: false };
            living.contains(&pid).then_some(ancestor)
        };
        let words = events.of(pid, parent_now, 100, alive).into_iter().map(|ancestor| {
            let state = if ancestor.ended { "ended" } else { "lives" };
            format!("{} {} {state}", ancestor.process.pid, ancestor.name)
        });
        words.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn ancestors_of_a_double_fork_are_known() {
        let events = events(&[(10, 11), (11, 12)], &[(11, "launcher")]);
        assert_eq!(ancestry_text(&events, 12, 1, &[10]), "11 launcher ended, 10 shell lives");
        assert_eq!(ancestry_text(&events, 11, 10, &[10]), "", "its parent is there");
        assert_eq!(ancestry_text(&events, 99, 1, &[10]), "", "no event of it was received");
        assert_eq!(ancestry_text(&events, 12, 1, &[]), "11 launcher ended, 10 ? ended");
    }

    #[test]
    fn descent_is_known_after_ancestors_have_ended() {
        let line = events(&[(10, 11), (11, 12), (12, 13)], &[]);
        let comes =
            |events: &AncestorEvents, pid, dead| events.descends_from(pid, dead, |pid| (pid == 20).then_some(12));
        assert!(comes(&line, 13, 11) && comes(&line, 13, 10) && comes(&line, 12, 11));
        assert!(comes(&line, 20, 11), "its parent is there, and comes from that one");
        assert!(!comes(&line, 11, 13) && !comes(&line, 99, 11) && !comes(&line, 13, 99));
        let reused = events(&[(10, 11), (11, 12), (50, 11)], &[]);
        assert!(!comes(&reused, 12, 11), "that number is another's by now");
    }

    #[test]
    fn a_reused_pid_is_no_ancestor() {
        // 11 made 12 and ended; its pid went to a child of 50.
        let events = events(&[(10, 11), (11, 12), (50, 11)], &[(11, "launcher")]);
        assert_eq!(ancestry_text(&events, 12, 1, &[10, 11, 50]), "");
    }

    #[test]
    fn the_oldest_events_are_dropped_at_the_limit() {
        let mut latest = LatestByPid::default();
        for number in 0..3 * EVENTS_MAX as u32 {
            latest.insert(number % (EVENTS_MAX as u32 / 2), number);
        }
        assert!(latest.order.len() <= EVENTS_MAX && latest.by_pid.len() == EVENTS_MAX / 2);
        for number in 0..2 * EVENTS_MAX as u32 {
            latest.insert(1_000_000 + number, number);
        }
        assert_eq!((latest.by_pid.len(), latest.get(0)), (EVENTS_MAX, None));
    }
}
