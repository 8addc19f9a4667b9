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
const SAMPLE_INTERVAL_NS: u64 = 20_000_000;
/// The period of the "current" utilisation. A driver's own is a sixth of a second to a second.
const RATE_PERIOD_NS: u64 = 1_000_000_000;
/// How long samples are kept, for callers that ask about the time since their last call.
const KEPT_NS: u64 = 10_000_000_000;

/// A process; distinct from a later one with the same row or pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledProcess {
    /// Its id.
    pub pid: u32,
    /// When it started.
    pub start: u64,
    /// The index of its row in the file.
    pub row: usize,
}

/// How long a process's kernels had run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessBusyTime {
    /// The process.
    pub process: SampledProcess,
    /// In total.
    pub sum_ns: u64,
    /// Without a break until now.
    pub open_ns: u64,
}

/// All processes of a GPU at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UtilizationSample {
    /// On the wall clock.
    pub wall_us: u64,
    /// On the monotonic clock.
    pub at_ns: u64,
    /// The processes.
    pub busy: Vec<ProcessBusyTime>,
}

/// The last samples of a GPU.
#[derive(Debug, Default)]
pub struct UtilizationMeter {
    samples: VecDeque<UtilizationSample>,
}

impl UtilizationMeter {
    /// True if a new sample is needed.
    pub fn is_due(&self, now_ns: u64) -> bool {
        let fresh = |newest: &UtilizationSample| now_ns.saturating_sub(newest.at_ns) < SAMPLE_INTERVAL_NS;
        // One sample alone gives no rate.
        self.samples.len() < 2 || !self.samples.back().is_some_and(fresh)
    }

    /// Adds a sample, and drops those older than 10 s except the newest of them, which the oldest possible question
    /// needs.
    pub fn add(&mut self, sample: UtilizationSample) {
        let is_old = |old: &UtilizationSample| sample.at_ns.saturating_sub(old.at_ns) > KEPT_NS;
        while self.samples.get(1).is_some_and(is_old) {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    /// Percent of the last second in which kernels ran; of a longer time if no call came meanwhile.
    pub fn percent(&self) -> u32 {
        let Some(newest) = self.samples.back() else { return 0 };
        let Some(before) = self.newest_until(|sample| newest.at_ns.saturating_sub(sample.at_ns) >= RATE_PERIOD_NS)
        else {
            return 0;
        };
        let ran = newest.busy.iter().map(|busy| ran_ns(busy, before)).fold(0, u64::saturating_add);
        let open = newest.busy.iter().map(|busy| busy.open_ns.min(RATE_PERIOD_NS)).max().unwrap_or(0);
        percent(ran, newest.at_ns.saturating_sub(before.at_ns)).max((open * 100 / RATE_PERIOD_NS) as u32)
    }

    /// The time of the newest sample, and the processes that ran kernels after a moment, with their percentage of the
    /// time; none if the newest sample is not after it.
    pub fn since(&self, wall_us: u64) -> (u64, Vec<(u32, u32)>) {
        let Some(newest) = self.samples.back() else { return (0, Vec::new()) };
        let Some(before) = self.newest_until(|sample| sample.wall_us <= wall_us) else { return (0, Vec::new()) };
        let time = newest.at_ns.saturating_sub(before.at_ns);
        let ran = newest.busy.iter().map(|busy| (busy.process.pid, percent(ran_ns(busy, before), time)));
        (newest.wall_us, ran.filter(|(_, percent)| *percent > 0).collect())
    }

    /// The last of the leading samples for which `is` is true, or the oldest of all.
    fn newest_until(&self, is: impl Fn(&UtilizationSample) -> bool) -> Option<&UtilizationSample> {
        let after = self.samples.partition_point(is);
        self.samples.get(after.saturating_sub(1))
    }
}

/// How long a process ran after a sample; all its time if it is not in that sample.
fn ran_ns(now: &ProcessBusyTime, before: &UtilizationSample) -> u64 {
    let then = before.busy.iter().find(|then| then.process == now.process);
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
    fn sample_at(ms: u64, processes: &[(u32, u64, u64)]) -> UtilizationSample {
        let process = |pid| SampledProcess { pid, start: 1, row: pid as usize };
        let busy = |&(pid, sum, open): &(u32, u64, u64)| ProcessBusyTime {
            process: process(pid),
            sum_ns: sum * MS,
            open_ns: open * MS,
        };
        UtilizationSample { wall_us: 1_000_000 + ms * 1000, at_ns: ms * MS, busy: processes.iter().map(busy).collect() }
    }

    fn meter(samples: impl IntoIterator<Item = UtilizationSample>) -> UtilizationMeter {
        let mut meter = UtilizationMeter::default();
        samples.into_iter().for_each(|sample| meter.add(sample));
        meter
    }

    #[test]
    fn percent_covers_the_last_second() {
        assert_eq!(UtilizationMeter::default().percent(), 0);
        assert_eq!(meter([sample_at(0, &[(1, 500, 0)])]).percent(), 0, "what was before is not known");
        assert_eq!(meter([sample_at(0, &[(1, 0, 0)]), sample_at(100, &[(1, 25, 0)])]).percent(), 25);
        let idle_then_busy =
            [sample_at(0, &[(1, 0, 0)]), sample_at(1000, &[(1, 0, 0)]), sample_at(2000, &[(1, 500, 0)])];
        assert_eq!(meter(idle_then_busy).percent(), 50);
        let busy_then_idle =
            [sample_at(0, &[(1, 0, 0)]), sample_at(1000, &[(1, 900, 0)]), sample_at(2000, &[(1, 900, 0)])];
        assert_eq!(meter(busy_then_idle).percent(), 0);
    }

    #[test]
    fn percent_is_at_most_100_and_includes_new_processes() {
        assert_eq!(meter([sample_at(0, &[(1, 0, 0)]), sample_at(100, &[(1, 30, 0), (2, 30, 0)])]).percent(), 60);
        assert_eq!(meter([sample_at(0, &[]), sample_at(100, &[(1, 90, 0), (2, 90, 0)])]).percent(), 100);
        assert_eq!(
            meter([sample_at(0, &[(1, 90, 0)]), sample_at(100, &[])]).percent(),
            0,
            "a process that is gone is forgotten"
        );
    }

    #[test]
    fn a_running_kernel_counts_from_its_start_before_the_first_sample() {
        assert_eq!(meter([sample_at(0, &[]), sample_at(60_000, &[(1, 2000, 2000)])]).percent(), 100);
        assert_eq!(meter([sample_at(0, &[(1, 500, 500)])]).percent(), 50);
    }

    #[test]
    fn since_lists_processes_that_ran_after_the_given_time() {
        let meter = meter([
            sample_at(0, &[(1, 0, 0)]),
            sample_at(1000, &[(1, 500, 0)]),
            sample_at(2000, &[(1, 500, 0), (2, 1, 0)]),
        ]);
        assert_eq!(meter.since(0), (3_000_000, vec![(1, 25), (2, 1)]));
        assert_eq!(meter.since(2_000_000), (3_000_000, vec![(2, 1)]));
        assert_eq!(meter.since(2_500_000), (3_000_000, vec![(2, 1)]), "the sample before is the nearest");
        assert_eq!(meter.since(3_000_000), (3_000_000, vec![]));
        assert_eq!(meter.since(u64::MAX), (3_000_000, vec![]));
    }

    #[test]
    fn a_new_process_with_a_reused_pid_starts_from_zero() {
        let mut newcomer = sample_at(100, &[(1, 10, 0)]);
        newcomer.busy[0].process.start = 2;
        assert_eq!(meter([sample_at(0, &[(1, 5000, 0)]), newcomer]).percent(), 10);
    }

    #[test]
    fn samples_are_due_every_20_ms_and_kept_for_10_s() {
        let mut meter = meter([sample_at(0, &[])]);
        assert!(meter.is_due(0), "one sample says nothing");
        meter.add(sample_at(1, &[]));
        assert!(!meter.is_due(20 * MS) && meter.is_due(21 * MS));
        for ms in (0..60_000).step_by(20) {
            meter.add(sample_at(ms, &[]));
        }
        assert!(meter.samples.len() <= 503, "{}", meter.samples.len());
        assert!(meter.samples[0].at_ns <= (60_000 - 10_000) * MS);
    }
}
