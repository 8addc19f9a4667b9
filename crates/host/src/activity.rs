//! Decides from process counters whether a holder worked since the last sample.
//!
//! Pure: the counters of the holder's processes come in, a bool goes out. GPU utilisation is not considered here; the
//! caller checks it first.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use sublet_core::ids::ProcKey;

/// CPU use above 1/200 of one core counts as work. An idle notebook stays below.
const CPU_ONE_IN: u32 = 200;
/// CPU time is counted in ticks of 10 ms. A shorter window would take one tick of an
/// idle process for work.
const CPU_WINDOW_MIN: Duration = Duration::from_secs(4);
/// A window of this length without work is restarted, so that small amounts do not add up over time.
const CPU_WINDOW_MAX: Duration = Duration::from_secs(10);
/// More than this many bytes read and written between two samples counts as work.
const IO_BYTES: u64 = 64 << 10;

/// The counters of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counters {
    /// CPU time in clock ticks, if it could be read.
    pub(crate) cpu_ticks: Option<u64>,
    /// Bytes read and written, if that could be read.
    pub(crate) io_bytes: Option<u64>,
}

/// Compares the counters of a holder's processes with their earlier values.
pub(crate) struct ActivityMeter {
    ticks_per_s: u64,
    window_from: Instant,
    cpu: BTreeMap<ProcKey, u64>,
    io: BTreeMap<ProcKey, u64>,
}

impl ActivityMeter {
    pub(crate) const fn new(now: Instant, ticks_per_s: u64) -> ActivityMeter {
        ActivityMeter { ticks_per_s, window_from: now, cpu: BTreeMap::new(), io: BTreeMap::new() }
    }

    /// Takes the counters of all living processes. Returns true if the holder worked since the last call that
    /// returned true. A process seen for the first time only sets its baseline.
    pub(crate) fn has_worked(&mut self, now: Instant, counters: &BTreeMap<ProcKey, Counters>) -> bool {
        // All three are evaluated, because each updates its own baseline.
        let unreadable = counters.values().any(|c| c.cpu_ticks.is_none());
        let cpu = self.cpu_worked(now, counters);
        let io = self.io_worked(counters);
        unreadable || cpu || io
    }

    fn cpu_worked(&mut self, now: Instant, counters: &BTreeMap<ProcKey, Counters>) -> bool {
        let mut grown = 0;
        let mut next = BTreeMap::new();
        for (&process, counters) in counters {
            let Some(ticks) = counters.cpu_ticks else { continue };
            let mark = self.cpu.get(&process).copied().unwrap_or(ticks);
            grown += ticks.saturating_sub(mark);
            next.insert(process, mark);
        }
        let elapsed = now.saturating_duration_since(self.window_from);
        let spent = Duration::from_secs_f64(grown as f64 / self.ticks_per_s as f64);
        let worked = spent * CPU_ONE_IN > elapsed.max(CPU_WINDOW_MIN);
        if worked || elapsed >= CPU_WINDOW_MAX {
            self.window_from = now;
            next = counters.iter().filter_map(|(&process, c)| Some((process, c.cpu_ticks?))).collect();
        }
        self.cpu = next;
        worked
    }

    fn io_worked(&mut self, counters: &BTreeMap<ProcKey, Counters>) -> bool {
        let now: BTreeMap<ProcKey, u64> = counters.iter().filter_map(|(&p, c)| Some((p, c.io_bytes?))).collect();
        let grown = |(process, bytes): (&ProcKey, &u64)| Some(bytes.saturating_sub(*self.io.get(process)?));
        let worked = now.iter().filter_map(grown).fold(0, u64::saturating_add) > IO_BYTES;
        self.io = now;
        worked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HZ: u64 = 100;

    /// Samples one process once a second and returns the seconds at which it worked.
    fn seconds_with_work(samples: impl IntoIterator<Item = (Option<u64>, Option<u64>)>) -> Vec<u64> {
        let begun = Instant::now();
        let mut meter = ActivityMeter::new(begun, HZ);
        let process = ProcKey { pid: 1, start: 1 };
        let mut found = Vec::new();
        for (second, (cpu_ticks, io_bytes)) in (0u64..).zip(samples) {
            let counters = BTreeMap::from([(process, Counters { cpu_ticks, io_bytes })]);
            if meter.has_worked(begun + Duration::from_secs(second), &counters) {
                found.push(second);
            }
        }
        found
    }

    #[test]
    fn a_whole_core_is_work_each_second() {
        assert_eq!(seconds_with_work((0..5).map(|s| (Some(5_000 + s * HZ), None))), [1, 2, 3, 4]);
    }

    #[test]
    fn one_core_in_a_hundred_is_work() {
        assert!(seconds_with_work((0..60).map(|s| (Some(s), None))).len() >= 10);
    }

    #[test]
    fn one_core_in_four_hundred_is_no_work() {
        assert!(seconds_with_work((0..600).map(|s| (Some(s / 4), None))).is_empty());
    }

    #[test]
    fn activity_before_the_first_sample_is_not_work() {
        assert!(seconds_with_work([(Some(999_999), Some(1 << 40)), (Some(999_999), Some(1 << 40))]).is_empty());
    }

    #[test]
    fn reading_and_writing_is_work_and_a_little_is_not() {
        assert_eq!(seconds_with_work([0, 64 << 10, 129 << 10, 130 << 10].map(|bytes| (Some(0), Some(bytes)))), [2]);
    }

    #[test]
    fn unreadable_counters_count_as_work() {
        assert_eq!(seconds_with_work([(Some(0), None), (None, None), (Some(0), None)]), [1]);
    }
}
