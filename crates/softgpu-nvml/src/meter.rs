//! How busy a GPU was: how long its processes' kernels had run at two moments, and the time between.
//!
//! A call takes a sample if the newest is older than 20 ms, and answers from samples only; so two concurrent calls give
//! the same answer, and no time is counted twice. Nothing is known about the time before the first sample, except for
//! kernels that have run ever since.
//!
//! Absent: clocks and the file. The busy time of a GPU is the sum of its processes' times, at most 100 %: kernels of
//! two processes at the same moment count twice.

use std::collections::VecDeque;

/// The shortest time between samples. A driver's own are about as fine.
const APART_NS: u64 = 20_000_000;
/// The period of the "current" utilisation. A driver's own is a sixth of a second to a second.
const RATE_NS: u64 = 1_000_000_000;
/// How long samples are kept, for callers that ask about the time since their last call.
const KEEP_NS: u64 = 10_000_000_000;

/// A process; distinct from a later one with the same row or pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// Its id.
    pub pid: u32,
    /// When it started.
    pub start: u64,
    /// The index of its row in the file.
    pub row: usize,
}

/// How long a process's kernels had run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// The process.
    pub who: Who,
    /// In total.
    pub sum_ns: u64,
    /// Without a break until now.
    pub open_ns: u64,
}

/// All processes of a GPU at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// On the wall clock.
    pub wall_us: u64,
    /// On the monotonic clock.
    pub at_ns: u64,
    /// The processes.
    pub busy: Vec<Busy>,
}

/// The last samples of a GPU.
#[derive(Debug, Default)]
pub struct Meter {
    samples: VecDeque<Sample>,
}

impl Meter {
    /// True if a new sample is needed.
    pub fn is_due(&self, now_ns: u64) -> bool {
        let fresh = |newest: &Sample| now_ns.saturating_sub(newest.at_ns) < APART_NS;
        // One sample alone gives no rate.
        self.samples.len() < 2 || !self.samples.back().is_some_and(fresh)
    }

    /// Adds a sample, and drops those older than 10 s except the newest of them, which the oldest possible question
    /// needs.
    pub fn add(&mut self, sample: Sample) {
        let is_old = |old: &Sample| sample.at_ns.saturating_sub(old.at_ns) > KEEP_NS;
        while self.samples.get(1).is_some_and(is_old) {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    /// Percent of the last second in which kernels ran; of a longer time if no call came meanwhile.
    pub fn percent(&self) -> u32 {
        let Some(newest) = self.samples.back() else { return 0 };
        let Some(before) = self.newest_until(|sample| newest.at_ns.saturating_sub(sample.at_ns) >= RATE_NS) else {
            return 0;
        };
        let ran = newest.busy.iter().map(|busy| ran_ns(busy, before)).fold(0, u64::saturating_add);
        let open = newest.busy.iter().map(|busy| busy.open_ns.min(RATE_NS)).max().unwrap_or(0);
        percent(ran, newest.at_ns.saturating_sub(before.at_ns)).max((open * 100 / RATE_NS) as u32)
    }

    /// The time of the newest sample, and the processes that ran kernels after a moment, with their percentage of the
    /// time; none if the newest sample is not after it.
    pub fn since(&self, wall_us: u64) -> (u64, Vec<(u32, u32)>) {
        let Some(newest) = self.samples.back() else { return (0, Vec::new()) };
        let Some(before) = self.newest_until(|sample| sample.wall_us <= wall_us) else { return (0, Vec::new()) };
        let time = newest.at_ns.saturating_sub(before.at_ns);
        let ran = newest.busy.iter().map(|busy| (busy.who.pid, percent(ran_ns(busy, before), time)));
        (newest.wall_us, ran.filter(|(_, percent)| *percent > 0).collect())
    }

    /// The last of the leading samples for which `is` is true, or the oldest of all.
    fn newest_until(&self, is: impl Fn(&Sample) -> bool) -> Option<&Sample> {
        let after = self.samples.partition_point(is);
        self.samples.get(after.saturating_sub(1))
    }
}

/// How long a process ran after a sample; all its time if it is not in that sample.
fn ran_ns(now: &Busy, before: &Sample) -> u64 {
    let then = before.busy.iter().find(|then| then.who == now.who);
    now.sum_ns.saturating_sub(then.map_or(0, |then| then.sum_ns))
}

/// Percent, rounded up: a process that ran at all is not reported as idle.
fn percent(part: u64, of: u64) -> u32 {
    if of == 0 { 0 } else { (u128::from(part) * 100).div_ceil(u128::from(of)).min(100) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A sample after so many milliseconds: process, milliseconds run, and of those the last ones.
    fn at(ms: u64, processes: &[(u32, u64, u64)]) -> Sample {
        let who = |pid| Who { pid, start: 1, row: pid as usize };
        let busy = |&(pid, sum, open): &(u32, u64, u64)| Busy { who: who(pid), sum_ns: sum * MS, open_ns: open * MS };
        Sample { wall_us: 1_000_000 + ms * 1000, at_ns: ms * MS, busy: processes.iter().map(busy).collect() }
    }

    fn meter(samples: impl IntoIterator<Item = Sample>) -> Meter {
        let mut meter = Meter::default();
        samples.into_iter().for_each(|sample| meter.add(sample));
        meter
    }

    #[test]
    fn the_rate_is_of_the_last_second() {
        assert_eq!(Meter::default().percent(), 0);
        assert_eq!(meter([at(0, &[(1, 500, 0)])]).percent(), 0, "what was before is not known");
        assert_eq!(meter([at(0, &[(1, 0, 0)]), at(100, &[(1, 25, 0)])]).percent(), 25);
        let idle_then_busy = [at(0, &[(1, 0, 0)]), at(1000, &[(1, 0, 0)]), at(2000, &[(1, 500, 0)])];
        assert_eq!(meter(idle_then_busy).percent(), 50);
        let busy_then_idle = [at(0, &[(1, 0, 0)]), at(1000, &[(1, 900, 0)]), at(2000, &[(1, 900, 0)])];
        assert_eq!(meter(busy_then_idle).percent(), 0);
    }

    #[test]
    fn two_processes_make_at_most_all_of_the_time_and_newcomers_count() {
        assert_eq!(meter([at(0, &[(1, 0, 0)]), at(100, &[(1, 30, 0), (2, 30, 0)])]).percent(), 60);
        assert_eq!(meter([at(0, &[]), at(100, &[(1, 90, 0), (2, 90, 0)])]).percent(), 100);
        assert_eq!(meter([at(0, &[(1, 90, 0)]), at(100, &[])]).percent(), 0, "whoever is gone is forgotten");
    }

    #[test]
    fn a_kernel_that_runs_counts_though_nobody_looked_when_it_began() {
        assert_eq!(meter([at(0, &[]), at(60_000, &[(1, 2000, 2000)])]).percent(), 100);
        assert_eq!(meter([at(0, &[(1, 500, 500)])]).percent(), 50);
    }

    #[test]
    fn processes_are_told_since_the_last_question() {
        let meter = meter([at(0, &[(1, 0, 0)]), at(1000, &[(1, 500, 0)]), at(2000, &[(1, 500, 0), (2, 1, 0)])]);
        assert_eq!(meter.since(0), (3_000_000, vec![(1, 25), (2, 1)]));
        assert_eq!(meter.since(2_000_000), (3_000_000, vec![(2, 1)]));
        assert_eq!(meter.since(2_500_000), (3_000_000, vec![(2, 1)]), "the sample before is the nearest");
        assert_eq!(meter.since(3_000_000), (3_000_000, vec![]));
        assert_eq!(meter.since(u64::MAX), (3_000_000, vec![]));
    }

    #[test]
    fn another_process_with_the_same_id_starts_from_nothing() {
        let mut newcomer = at(100, &[(1, 10, 0)]);
        newcomer.busy[0].who.start = 2;
        assert_eq!(meter([at(0, &[(1, 5000, 0)]), newcomer]).percent(), 10);
    }

    #[test]
    fn samples_are_taken_now_and_then_and_not_kept_for_ever() {
        let mut meter = meter([at(0, &[])]);
        assert!(meter.is_due(0), "one sample says nothing");
        meter.add(at(1, &[]));
        assert!(!meter.is_due(20 * MS) && meter.is_due(21 * MS));
        for ms in (0..60_000).step_by(20) {
            meter.add(at(ms, &[]));
        }
        assert!(meter.samples.len() <= 503, "{}", meter.samples.len());
        assert!(meter.samples[0].at_ns <= (60_000 - 10_000) * MS);
    }
}
