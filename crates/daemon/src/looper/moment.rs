//! What the clocks say at one moment. The loop reads no clock: each call brings a moment along.

use sublet_core::units::Time;

/// Seconds of a day.
const DAY_S: i64 = 86_400;

/// A moment, by every clock that the loop needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// The time that leases are measured in.
    pub now: Time,
    /// The wall clock, µs since 1970: for people.
    pub wall_us: u64,
    /// How long the host was suspended since it booted, in µs.
    pub suspended_us: u64,
    /// What local time is ahead of UTC, in seconds.
    pub utc_offset_s: i32,
}

impl Moment {
    /// The day at this place, in days since 1970.
    pub fn day(&self) -> u32 {
        u32::try_from(self.local_s().div_euclid(DAY_S)).unwrap_or(0)
    }

    /// How long this day still lasts, in seconds: at least one.
    pub fn day_left_s(&self) -> u64 {
        (DAY_S - self.local_s().rem_euclid(DAY_S)).unsigned_abs()
    }

    /// Seconds since 1970 by the local clock.
    fn local_s(&self) -> i64 {
        i64::try_from(self.wall_us / 1_000_000).unwrap_or(0) + i64::from(self.utc_offset_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(wall_s: u64, utc_offset_s: i32) -> u32 {
        Moment { wall_us: wall_s * 1_000_000, utc_offset_s, ..Moment::default() }.day()
    }

    #[test]
    fn day_changes_at_local_midnight() {
        assert_eq!([day(86_399, 0), day(86_400, 0)], [0, 1]);
        assert_eq!([day(82_799, 3_600), day(82_800, 3_600)], [0, 1]);
        assert_eq!([day(89_999, -3_600), day(90_000, -3_600)], [0, 1]);
    }

    #[test]
    fn day_lasts_until_local_midnight() {
        let left = |wall_s: u64, utc_offset_s| {
            Moment { wall_us: wall_s * 1_000_000, utc_offset_s, ..Moment::default() }.day_left_s()
        };
        assert_eq!([left(86_399, 0), left(86_400, 0), left(0, 0)], [1, 86_400, 86_400]);
        assert_eq!([left(82_799, 3_600), left(0, -3_600)], [1, 3_600]);
    }

    #[test]
    fn day_before_1970_is_day_zero() {
        assert_eq!(day(0, -3_600), 0);
    }
}
