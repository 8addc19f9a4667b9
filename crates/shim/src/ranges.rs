//! Free memory for later allocations: ranges of spans, and which stream may have which range when.
//!
//! A range that was given back in the order of a stream can be used by that stream at once, and by others when the
//! events that were recorded with it have completed. Neighbours are merged if the same stream gave them back. Nothing
//! here calls the driver: the caller says which events have completed.

use std::collections::{BTreeMap, BTreeSet};

/// Sizes and addresses are multiples of this.
pub const UNIT: u64 = 512;
/// A range waits for at most this many events; ranges are not merged beyond it.
const EVENTS_MAX: usize = 16;
/// At most this many ranges of other streams are checked for completed events.
const CHECKS_MAX: usize = 32;

/// An event that must have completed before other streams may have a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventWait {
    /// The stream that gave the range back: its own number, which no other stream has.
    pub lane: u64,
    /// In which context the event was made.
    pub context: usize,
    /// The event.
    pub event: usize,
}

#[derive(Debug, Default)]
struct FreeRange {
    bytes: u64,
    /// All of one lane.
    waits: Vec<EventWait>,
}

/// Spans of memory, and what of them is free.
#[derive(Debug, Default)]
pub struct SpanRanges {
    spans: BTreeMap<u64, u64>,
    free: BTreeMap<u64, FreeRange>,
    by_size: BTreeSet<(u64, u64)>,
}

/// How many bytes an allocation of `bytes` takes; `None` on overflow.
pub fn rounded_up(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(UNIT)
}

impl SpanRanges {
    /// Adds a span, all of it free.
    pub fn add(&mut self, at: u64, bytes: u64) {
        self.spans.insert(at, bytes);
        self.insert_free(at, FreeRange { bytes, waits: Vec::new() });
    }

    /// Whether an address is in one of the spans.
    pub fn contains(&self, at: u64) -> bool {
        self.spans.range(..=at).next_back().is_some_and(|(first, bytes)| at - first < *bytes)
    }

    fn insert_free(&mut self, at: u64, range: FreeRange) {
        self.by_size.insert((range.bytes, at));
        self.free.insert(at, range);
    }

    fn remove_free(&mut self, at: u64) -> Option<FreeRange> {
        let range = self.free.remove(&at)?;
        self.by_size.remove(&(range.bytes, at));
        Some(range)
    }

    /// Takes `bytes` that a lane may have now, or returns `None`. `is_passed` says whether an event has completed.
    /// Events that this range needs no more go to `spent`; other ranges may still wait for them.
    pub fn take_for_lane(
        &mut self,
        bytes: u64,
        lane: u64,
        mut is_passed: impl FnMut(&EventWait) -> bool,
        spent: &mut Vec<EventWait>,
    ) -> Option<u64> {
        let fitting = || self.by_size.range((bytes, 0)..);
        let is_own = |at: &u64| self.free[at].waits.first().is_none_or(|wait| wait.lane == lane);
        let found = fitting().map(|(_, at)| *at).find(is_own).or_else(|| {
            let others = fitting().map(|(_, at)| *at).take(CHECKS_MAX);
            others.into_iter().find(|at| self.free[at].waits.iter().all(&mut is_passed))
        })?;
        let mut range = self.remove_free(found)?;
        if range.waits.first().is_some_and(|wait| wait.lane != lane) {
            spent.append(&mut range.waits);
        }
        let (at, waits) = self.split_off(found, range, bytes);
        spent.extend(waits);
        Some(at)
    }

    /// Takes `bytes` of any lane, and returns the address with the events that must be waited for first.
    pub fn take_any(&mut self, bytes: u64) -> Option<(u64, Vec<EventWait>)> {
        let (_, at) = *self.by_size.range((bytes, 0)..).next()?;
        let range = self.remove_free(at)?;
        Some(self.split_off(at, range, bytes))
    }

    /// Takes the first part; the rest stays free, with the same waits.
    fn split_off(&mut self, at: u64, range: FreeRange, bytes: u64) -> (u64, Vec<EventWait>) {
        if range.bytes > bytes {
            self.insert_free(at + bytes, FreeRange { bytes: range.bytes - bytes, waits: range.waits.clone() });
        }
        (at, range.waits)
    }

    /// Gives a range back. `waits`: events that must have completed before other streams may have it.
    pub fn give_back(&mut self, at: u64, bytes: u64, waits: Vec<EventWait>) {
        let span = self.spans.range(..=at).next_back().map(|(at, bytes)| (*at, *bytes));
        let span = span.filter(|(first, length)| at + bytes <= first + length);
        debug_assert!(span.is_some(), "{bytes} bytes at {at:#x} are in no span");
        let Some((first, length)) = span else { return };
        let mut own = (at, FreeRange { bytes, waits });
        let before = self.free.range(first..at).next_back().filter(|(near, range)| **near + range.bytes == at);
        let before = before.map(|(near, _)| *near);
        let after = Some(at + bytes).filter(|next| *next < first + length && self.free.contains_key(next));
        for near in before.into_iter().chain(after) {
            if self.is_alike(near, &own.1)
                && let Some(range) = self.remove_free(near)
            {
                own.0 = own.0.min(near);
                own.1.bytes += range.bytes;
                own.1
                    .waits
                    .extend(range.waits.into_iter().filter(|wait| !own.1.waits.contains(wait)).collect::<Vec<_>>());
            }
        }
        self.insert_free(own.0, own.1);
    }

    /// True if a free range may be merged with another.
    fn is_alike(&self, near: u64, other: &FreeRange) -> bool {
        let Some(range) = self.free.get(&near) else { return false };
        let lanes: BTreeSet<u64> = range.waits.iter().chain(&other.waits).map(|wait| wait.lane).collect();
        lanes.len() <= 1 && range.waits.len() + other.waits.len() <= EVENTS_MAX
    }

    /// Drops completed events, which go to `spent`, and merges ranges where possible.
    pub fn tidy(&mut self, mut is_passed: impl FnMut(&EventWait) -> bool, spent: &mut Vec<EventWait>) {
        let all: Vec<EventWait> = self.waits();
        let passed: Vec<EventWait> = all.into_iter().filter(|wait| is_passed(wait)).collect();
        let changed: Vec<u64> = self
            .free
            .iter_mut()
            .filter_map(|(at, range)| {
                let before = range.waits.len();
                range.waits.retain(|wait| !passed.contains(wait));
                (range.waits.len() < before && range.waits.is_empty()).then_some(*at)
            })
            .collect();
        for at in changed {
            if let Some(range) = self.remove_free(at) {
                self.give_back(at, range.bytes, Vec::new());
            }
        }
        spent.extend(passed);
    }

    /// Every event that a range waits for, once.
    pub fn waits(&self) -> Vec<EventWait> {
        let mut all: Vec<EventWait> = Vec::new();
        for wait in self.free.values().flat_map(|range| &range.waits) {
            if !all.contains(wait) {
                all.push(*wait);
            }
        }
        all
    }

    /// True if a range waits for this event.
    pub fn is_waited_for(&self, wait: &EventWait) -> bool {
        self.free.values().any(|range| range.waits.contains(wait))
    }

    /// Address and length of spans that are entirely free and wait for no event.
    pub fn idle(&self) -> Vec<(u64, u64)> {
        let is_idle = |(at, bytes): &(&u64, &u64)| {
            self.free.get(at).is_some_and(|range| range.bytes == **bytes && range.waits.is_empty())
        };
        self.spans.iter().filter(is_idle).map(|(at, bytes)| (*at, *bytes)).collect()
    }

    /// Removes an idle span.
    pub fn remove(&mut self, at: u64) {
        self.remove_free(at);
        self.spans.remove(&at);
    }

    /// Address and length of each span.
    pub fn spans(&self) -> impl Iterator<Item = (u64, u64)> {
        self.spans.iter().map(|(at, bytes)| (*at, *bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::{EventWait, SpanRanges, UNIT};

    const SPAN: u64 = 1 << 30;

    fn wait(lane: u64, event: usize) -> Vec<EventWait> {
        vec![EventWait { lane, context: 7, event }]
    }

    fn take(ranges: &mut SpanRanges, bytes: u64, lane: u64, passed: &[usize]) -> Option<u64> {
        ranges.take_for_lane(bytes, lane, |wait| passed.contains(&wait.event), &mut Vec::new())
    }

    #[test]
    fn a_freed_range_is_reused_by_its_stream_at_once_and_by_others_after_its_event() {
        let mut ranges = SpanRanges::default();
        ranges.add(SPAN, 4096);
        assert_eq!(take(&mut ranges, 4096, 1, &[]), Some(SPAN));
        ranges.give_back(SPAN, 4096, wait(1, 50));
        assert_eq!(take(&mut ranges, 4096, 2, &[]), None);
        assert_eq!(take(&mut ranges, 4096, 1, &[]), Some(SPAN));
        ranges.give_back(SPAN, 4096, wait(1, 51));
        assert_eq!(take(&mut ranges, 1024, 2, &[50]), None);
        assert_eq!(take(&mut ranges, 1024, 2, &[51]), Some(SPAN));
        assert_eq!(ranges.take_any(3072), Some((SPAN + 1024, Vec::new())));
        assert_eq!(ranges.take_any(UNIT), None);
    }

    #[test]
    fn neighbouring_ranges_are_merged_and_free_spans_are_listed() {
        let mut ranges = SpanRanges::default();
        ranges.add(SPAN, 8 * UNIT);
        ranges.add(SPAN + 8 * UNIT, 8 * UNIT);
        let parts: Vec<u64> = (0..16).filter_map(|_| take(&mut ranges, UNIT, 1, &[])).collect();
        assert_eq!(parts.len(), 16);
        assert_eq!(take(&mut ranges, UNIT, 1, &[]), None);
        for (number, at) in parts.iter().enumerate() {
            ranges.give_back(*at, UNIT, wait(number as u64 % 2, number));
        }
        assert_eq!(take(&mut ranges, 2 * UNIT, 0, &[]), None, "other lanes are between");
        assert!(ranges.idle().is_empty());
        let mut spent = Vec::new();
        ranges.tidy(|wait| wait.event != 3, &mut spent);
        assert_eq!(spent.len(), 15);
        assert_eq!(ranges.idle(), [(SPAN + 8 * UNIT, 8 * UNIT)], "spans side by side stay apart");
        ranges.tidy(|_| true, &mut spent);
        assert_eq!(ranges.idle().len(), 2);
        ranges.remove(SPAN);
        assert_eq!(take(&mut ranges, 8 * UNIT, 5, &[]), Some(SPAN + 8 * UNIT));
        assert!(!ranges.contains(SPAN) && ranges.contains(SPAN + 9 * UNIT));
    }

    #[test]
    fn random_allocations_never_overlap() {
        // Random takes and gives of four lanes, checked against a list of what each lane holds.
        let (mut ranges, mut held, mut number, mut events) = (SpanRanges::default(), Vec::new(), 1_u64, 0_usize);
        ranges.add(SPAN, 64 * UNIT);
        ranges.add(SPAN + 64 * UNIT, 64 * UNIT);
        let mut passed = 0;
        for _ in 0..20_000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (what, lane) = ((number >> 33) % 5, (number >> 40) % 4);
            let bytes = ((number >> 50) % 9 + 1) * UNIT;
            match what {
                0 | 1 => {
                    if let Some(at) = ranges.take_for_lane(bytes, lane, |wait| wait.event < passed, &mut Vec::new()) {
                        assert!(held.iter().all(|(own, size)| at + bytes <= *own || own + size <= at), "{at}");
                        assert!(at >= SPAN && at + bytes <= SPAN + 128 * UNIT);
                        assert!(at + bytes <= SPAN + 64 * UNIT || at >= SPAN + 64 * UNIT, "across spans");
                        held.push((at, bytes));
                    }
                }
                2 | 3 if !held.is_empty() => {
                    let (at, bytes) = held.swap_remove((number >> 20) as usize % held.len());
                    events += 1;
                    ranges.give_back(at, bytes, wait(lane, events));
                }
                _ => {
                    passed = events / 2;
                    ranges.tidy(|wait| wait.event < passed, &mut Vec::new());
                }
            }
        }
        for (at, bytes) in held {
            ranges.give_back(at, bytes, Vec::new());
        }
        ranges.tidy(|_| true, &mut Vec::new());
        assert_eq!(ranges.idle().len(), 2, "nothing is lost");
    }
}
