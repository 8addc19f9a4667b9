//! How many lines a terminal gets: some at once, then one every half a minute.
//!
//! Programs that share a GPU by time slices are parked again and again, and an unleased process may be started each
//! second: neither fills a screen.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use sublet_host::terminal::ProcessTerminal;

/// Lines at once.
const BURST: u32 = 8;
/// One more after this.
const REFILL: Duration = Duration::from_secs(30);
/// Terminals that are remembered. Those beyond get no line until one is forgotten.
const TERMINALS_MAX: usize = 4096;

/// What each terminal got lately.
#[derive(Debug)]
pub struct NoticeLimit<T = ProcessTerminal>(BTreeMap<T, NoticeTimes>);

#[derive(Clone, Copy, Debug)]
struct NoticeTimes {
    lines: u32,
    /// Since when one is forgotten after each [`REFILL`].
    since: Instant,
}

impl<T> Default for NoticeLimit<T> {
    fn default() -> NoticeLimit<T> {
        NoticeLimit(BTreeMap::new())
    }
}

impl<T: Clone + Ord> NoticeLimit<T> {
    /// Whether a terminal may get lines at this cost now; they are counted then.
    pub fn allows(&mut self, terminal: &T, cost: u32, now: Instant) -> bool {
        self.0.retain(|_, got| {
            let forgotten = u32::try_from(now.duration_since(got.since).as_secs() / REFILL.as_secs());
            let forgotten = forgotten.unwrap_or(u32::MAX).min(got.lines);
            got.lines -= forgotten;
            got.since += REFILL * forgotten;
            got.lines > 0
        });
        if self.0.len() >= TERMINALS_MAX && !self.0.contains_key(terminal) {
            return cost == 0;
        }
        let got = self.0.get(terminal).copied().unwrap_or(NoticeTimes { lines: 0, since: now });
        let allowed = got.lines + cost <= BURST;
        if allowed && cost > 0 {
            self.0.insert(terminal.clone(), NoticeTimes { lines: got.lines + cost, ..got });
        }
        allowed || cost == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_eight_lines_at_once_and_then_one_every_30_s() {
        let (mut limit, start) = (NoticeLimit::<&str>::default(), Instant::now());
        let at = |s: u64| start + Duration::from_secs(s);
        for _ in 0..4 {
            assert!(limit.allows(&"pts/1", 2, at(0)));
        }
        assert!(!limit.allows(&"pts/1", 1, at(29)));
        assert!(limit.allows(&"pts/1", 0, at(29)), "what was paid for before is always told");
        assert!(limit.allows(&"pts/2", 1, at(29)), "another terminal");
        assert!(limit.allows(&"pts/1", 1, at(30)) && !limit.allows(&"pts/1", 1, at(59)));
        assert!(limit.allows(&"pts/1", 8, at(1_000)));
        assert_eq!(limit.0.len(), 1, "a terminal that is not limited is forgotten");
    }
}
