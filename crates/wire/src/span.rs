//! Lengths of time as people write them: `90s`, `30m`, `4h`, `2d`, `1h30m`.

use thiserror::Error;

/// Why a text is not a length of time.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpanError {
    /// A number without a unit.
    #[error("time `{0}` has no unit")]
    NoUnit(String),
    /// Not numbers with units.
    #[error("`{0}` is not a length of time")]
    NotASpan(String),
    /// More than a year.
    #[error("time `{0}` is more than a year")]
    TooLong(String),
}

impl SpanError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        "write a whole number and s, m, h or d, such as 90s, 30m or 1h30m"
    }
}

/// Reads a length of time, in seconds.
pub fn parse(text: &str) -> Result<u64, SpanError> {
    let not = || SpanError::NotASpan(text.into());
    let mut rest = text.trim();
    let mut total: u64 = 0;
    if rest.is_empty() {
        return Err(not());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        if digits == 0 {
            return Err(not());
        }
        let number: u64 = rest[..digits].parse().map_err(|_| SpanError::TooLong(text.into()))?;
        rest = &rest[digits..];
        let (unit, used) = match rest.bytes().next() {
            None => return Err(SpanError::NoUnit(text.into())),
            Some(b's') => (1, 1),
            Some(b'm') => (60, 1),
            Some(b'h') => (3600, 1),
            Some(b'd') => (86_400, 1),
            Some(_) => return Err(not()),
        };
        rest = &rest[used..];
        total = number
            .checked_mul(unit)
            .and_then(|s| total.checked_add(s))
            .filter(|s| *s <= 366 * 86_400)
            .ok_or_else(|| SpanError::TooLong(text.into()))?;
    }
    Ok(total)
}

/// Writes a length of time as people read it: `42 s`, `5 min`, `1 h 30 min`, `2 d 4 h`.
pub fn show(seconds: f64) -> String {
    let s = seconds.max(0.0).round() as u64;
    match s {
        0..120 => format!("{s} s"),
        120..7200 => format!("{} min", (s + 30) / 60),
        7200..172_800 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_written() {
        assert_eq!(parse("90s"), Ok(90));
        assert_eq!(parse("1h30m"), Ok(5400));
        assert_eq!(parse("2d"), Ok(172_800));
        assert_eq!(parse("0s"), Ok(0));
        assert_eq!(parse("30"), Err(SpanError::NoUnit("30".into())));
        for text in ["", "m", "-5m", "5x", "1.5h", "5 m", "½h"] {
            assert!(matches!(parse(text), Err(SpanError::NotASpan(_))), "{text}");
        }
        assert!(matches!(parse("9999d"), Err(SpanError::TooLong(_))));
        assert!(matches!(parse("99999999999999999999999s"), Err(SpanError::TooLong(_))));
        assert_eq!(show(42.4), "42 s");
        assert_eq!(show(300.0), "5 min");
        assert_eq!(show(5400.0), "90 min");
        assert_eq!(show(9000.0), "2 h 30 min");
    }
}
