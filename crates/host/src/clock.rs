//! The host's waking time, and the wall clock for people.
//!
//! Nothing here waits, schedules or stores: the caller stores the offset and the boot id, and passes them in after a
//! restart.

use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};
use sublet_core::units::{Span, Time};

/// Returns [`Time`]: `CLOCK_MONOTONIC` plus an offset that carries it across boots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    offset: Span,
}

impl Clock {
    /// A clock with a stored offset: [`Span::ZERO`] on the first start ever, and the old offset after a restart in
    /// the same boot.
    pub const fn new(offset: Span) -> Clock {
        Clock { offset }
    }

    /// A clock for a new boot: it continues from the last time seen in the previous boot.
    pub fn after_boot(last_seen: Time) -> Clock {
        Clock::new(last_seen.since(Time(monotonic_us())))
    }

    /// The offset to store for [`Clock::new`].
    pub const fn offset(&self) -> Span {
        self.offset
    }

    /// The present time.
    pub fn now(&self) -> Time {
        Time(monotonic_us()) + self.offset
    }
}

/// An id of this boot, different for each boot.
pub fn boot_id() -> io::Result<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(id.trim().to_owned())
}

/// The wall clock, in microseconds since 1970 (negative before). For people only: it may jump.
pub fn unix_us() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |us| -us),
    }
}

fn monotonic_us() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000 + t.tv_nsec as u64 / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_grows() {
        let clock = Clock::default();
        let first = clock.now();
        assert!(first > Time::ZERO && clock.now() >= first);
    }

    #[test]
    fn a_new_boot_continues_from_the_last_time_seen() {
        let last_seen = Clock::default().now() + Span::secs(1_000_000);
        let clock = Clock::after_boot(last_seen);
        assert!(clock.now() >= last_seen);
        assert!(clock.now().since(last_seen) < Span::secs(10));
        assert_eq!(Clock::new(clock.offset()), clock);
    }

    #[test]
    fn a_last_time_below_the_clock_adds_nothing() {
        assert_eq!(Clock::after_boot(Time::ZERO).offset(), Span::ZERO);
    }

    #[test]
    fn the_boot_has_a_name_and_the_wall_clock_is_of_this_century() {
        assert_eq!(boot_id().unwrap().len(), 36);
        assert!(unix_us() > 946_684_800_000_000);
    }
}
