//! Sizes as people write them: `16G`, `16GB` and `16GiB` are all 2³⁰ × 16.

use thiserror::Error;

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SizeError {
    /// A number without a unit.
    #[error("size `{0}` has no unit")]
    NoUnit(String),
    /// Not a number with a known unit.
    #[error("`{0}` is not a size")]
    NotASize(String),
    /// The size is negative.
    #[error("size `{0}` is negative, and sizes are positive")]
    Negative(String),
    /// The size is zero.
    #[error("size `{0}` is zero")]
    Zero(String),
    /// The size is more than 1024 TiB.
    #[error("size `{0}` is more than 1024 TiB")]
    TooLarge(String),
}

impl SizeError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        "write a number and K, M, G or T (powers of 1024), such as 16G or 1.5GiB"
    }
}

/// Reads a size. Units are binary, whatever their spelling; there is no default unit.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let trimmed = text.trim();
    if trimmed.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.')) {
        return Err(SizeError::Negative(text.into()));
    }
    let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" if !number.is_empty() => return Err(SizeError::NoUnit(text.into())),
        "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(SizeError::NotASize(text.into())),
    };
    if number.len() > 32 {
        return Err(SizeError::TooLarge(text.into()));
    }
    let value: f64 = number.parse().map_err(|_| SizeError::NotASize(text.into()))?;
    let bytes = value * (1u64 << shift) as f64;
    if bytes > (1u64 << 50) as f64 {
        return Err(SizeError::TooLarge(text.into()));
    }
    match bytes as u64 {
        0 => Err(SizeError::Zero(text.into())),
        bytes => Ok(bytes),
    }
}

/// Writes a size as people read it: `16 GiB`, `7.8 GiB`, `650 MiB`.
pub fn show(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        let one = 1u64 << shift;
        if bytes >= one {
            let tenths = (bytes as f64 / one as f64 * 10.0).round();
            return if tenths % 10.0 == 0.0 {
                format!("{} {unit}", tenths as u64 / 10)
            } else {
                format!("{:.1} {unit}", tenths / 10.0)
            };
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_unit_is_binary() {
        for text in ["16G", "16g", "16GB", "16GiB", "16 GiB", " 16gib "] {
            assert_eq!(parse(text), Ok(16 << 30), "{text}");
        }
        assert_eq!(parse("1.5G"), Ok(3 << 29));
        assert_eq!(parse("512M"), Ok(512 << 20));
        assert_eq!(parse("1T"), Ok(1 << 40));
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        assert_eq!(parse("16"), Err(SizeError::NoUnit("16".into())));
        for text in ["", "G", "-G", "--gpus", "1e9G", "NaNG", "infG", "1..5G", "16X", "16 G B", "٣G"] {
            assert!(matches!(parse(text), Err(SizeError::NotASize(_))), "{text}");
        }
        assert!(matches!(parse("-1G"), Err(SizeError::Negative(_))));
        assert!(matches!(parse("0G"), Err(SizeError::Zero(_))));
        assert!(matches!(parse("0.0000000001K"), Err(SizeError::Zero(_))));
        assert!(matches!(parse("99999999999999T"), Err(SizeError::TooLarge(_))));
        assert!(matches!(parse(&format!("{}G", "9".repeat(400))), Err(SizeError::TooLarge(_))));
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(show(16 << 30), "16 GiB");
        assert_eq!(show((78 << 30) / 10), "7.8 GiB");
        assert_eq!(show(650 << 20), "650 MiB");
        assert_eq!(show(12), "12 B");
        assert_eq!(show(0), "0 B");
    }
}
