//! The host's local time, for rules that hold at certain hours. Leases and the queue do not depend on the wall clock.

use jiff::Zoned;
use jiff::civil::Weekday;

/// Certain hours of certain days.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hours {
    /// Days, Monday first.
    days: [bool; 7],
    /// Minutes of the day, from the first until before the second; past midnight if the second is not larger.
    from: u16,
    to: u16,
}

/// A minute of a week.
#[derive(Clone, Copy, Debug)]
pub struct WeekMinute {
    day: usize,
    minute: u16,
}

impl WeekMinute {
    /// This minute in local time.
    pub fn now() -> WeekMinute {
        let now = Zoned::now();
        WeekMinute { day: day(now.weekday()), minute: now.hour() as u16 * 60 + now.minute() as u16 }
    }
}

const NAMES: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

impl Hours {
    /// Reads `"mon-fri"` or `"sat,sun"`, `"09:00"` and `"18:00"`.
    pub fn read(days: Option<&str>, from: &str, to: &str) -> Result<Hours, String> {
        let days = days.map_or(Ok([true; 7]), read_days)?;
        Ok(Hours { days, from: read_minutes(from)?, to: read_minutes(to)? })
    }

    /// True if this minute is one of them.
    pub fn hold(&self, moment: WeekMinute) -> bool {
        self.at(moment.day, moment.minute)
    }

    fn at(&self, day: usize, minute: u16) -> bool {
        if self.from < self.to {
            return self.days[day] && (self.from..self.to).contains(&minute);
        }
        // What began the day before goes on past midnight.
        (self.days[day] && minute >= self.from) || (self.days[(day + 6) % 7] && minute < self.to)
    }
}

fn day(weekday: Weekday) -> usize {
    weekday.to_monday_zero_offset() as usize
}

fn read_days(text: &str) -> Result<[bool; 7], String> {
    let wrong = || "write days as \"mon-fri\" or \"sat,sun\"".to_owned();
    let number = |name: &str| NAMES.iter().position(|known| *known == name.trim()).ok_or_else(wrong);
    let mut days = [false; 7];
    for part in text.to_lowercase().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        // Friday to Monday is four days.
        (0..=(last + 7 - first) % 7).for_each(|step| days[(first + step) % 7] = true);
    }
    Ok(days)
}

fn read_minutes(text: &str) -> Result<u16, String> {
    let parts = text.split_once(':').and_then(|(hour, minute)| Some((hour.parse().ok()?, minute.parse().ok()?)));
    match parts {
        Some((hour @ 0..=23, minute @ 0..=59)) => Ok(hour * 60 + minute),
        Some((24, 0)) => Ok(24 * 60),
        _ => Err("write times as \"09:00\"".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_are_read_and_hold_past_midnight() {
        let work = Hours::read(Some("mon-fri"), "09:00", "18:00").unwrap();
        assert!(work.at(0, 9 * 60) && work.at(4, 17 * 60 + 59));
        assert!(!work.at(0, 18 * 60) && !work.at(5, 12 * 60));
        let night = Hours::read(Some("fri"), "22:00", "06:00").unwrap();
        assert!(night.at(4, 23 * 60) && night.at(5, 5 * 60));
        assert!(!night.at(4, 5 * 60) && !night.at(5, 23 * 60));
        let weekend = Hours::read(Some("sat-mon"), "00:00", "24:00").unwrap();
        assert!(weekend.at(5, 0) && weekend.at(0, 1439) && !weekend.at(1, 0));
    }

    #[test]
    fn a_wrong_time_is_an_error() {
        assert!(Hours::read(Some("someday"), "09:00", "18:00").is_err());
        assert!(Hours::read(None, "9", "18:00").is_err());
        assert!(Hours::read(None, "24:30", "18:00").is_err());
    }
}
