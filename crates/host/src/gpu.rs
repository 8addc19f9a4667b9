//! Which cards to look at: the real ones, or scripted ones for machines without.
//!
//! Only the spelling (`real`, `scripted:2x24GiB`) lives here; looking is the worker's.

use std::fmt;
use std::str::FromStr;
use sublet_core::units::Bytes;
use thiserror::Error;

/// More cards than any host has; more than this is a typing error.
const MAX_CARDS: u32 = 64;

/// How the UUIDs of scripted cards begin; no real card's does.
pub const SCRIPTED_UUID: &str = "GPU-5c219700-0000-4000-8000-";

/// What kind of cards a [`GpuSpec`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuKind {
    /// NVIDIA's cards, read through NVML.
    Real,
    /// Cards that a script file describes.
    Scripted,
}

/// Which cards the eyes look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuSpec {
    /// `real`: whatever NVML lists.
    Real,
    /// `scripted:2x24GiB`: so many equal cards, each with so much memory.
    Scripted {
        /// How many.
        count: u32,
        /// The memory of each.
        total: Bytes,
    },
}

impl GpuSpec {
    /// Real or scripted.
    pub const fn kind(&self) -> GpuKind {
        match self {
            GpuSpec::Real => GpuKind::Real,
            GpuSpec::Scripted { .. } => GpuKind::Scripted,
        }
    }
}

/// The text names no cards.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}` names no cards: say `real`, or for instance `scripted:1x24GiB`")]
pub struct NotAGpuSpec {
    text: String,
}

impl FromStr for GpuSpec {
    type Err = NotAGpuSpec;

    fn from_str(text: &str) -> Result<GpuSpec, NotAGpuSpec> {
        let no = || NotAGpuSpec { text: text.to_owned() };
        if text == "real" {
            return Ok(GpuSpec::Real);
        }
        let (count, size) = text.strip_prefix("scripted:").and_then(|s| s.split_once('x')).ok_or_else(no)?;
        let count = whole_number(count).and_then(|n| u32::try_from(n).ok()).ok_or_else(no)?;
        let total = parse_size(size).ok_or_else(no)?;
        if !(1..=MAX_CARDS).contains(&count) || total == Bytes::ZERO || total > Bytes::MAX_ASK {
            return Err(no());
        }
        Ok(GpuSpec::Scripted { count, total })
    }
}

/// `24G`, `24GB` and `24GiB` are the same; a bare number is not a size.
fn parse_size(text: &str) -> Option<Bytes> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_at);
    let unit: u64 = match unit {
        "M" | "MB" | "MiB" => 1 << 20,
        "G" | "GB" | "GiB" => 1 << 30,
        "T" | "TB" | "TiB" => 1 << 40,
        _ => return None,
    };
    whole_number(number)?.checked_mul(unit).map(Bytes)
}

fn whole_number(text: &str) -> Option<u64> {
    if text.starts_with('+') { None } else { text.parse().ok() }
}

impl fmt::Display for GpuSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuSpec::Real => f.write_str("real"),
            // In MiB, because `Bytes` rounds what it shows and this must read back exactly.
            GpuSpec::Scripted { count, total } => write!(f, "scripted:{count}x{}MiB", total.0 >> 20),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_read_and_read_back() {
        for (text, count, total) in [
            ("scripted:1x24GiB", 1, Bytes::gib(24)),
            ("scripted:2x80G", 2, Bytes::gib(80)),
            ("scripted:64x1536MB", 64, Bytes::mib(1536)),
        ] {
            let spec: GpuSpec = text.parse().unwrap();
            assert_eq!(spec, GpuSpec::Scripted { count, total });
            assert_eq!(spec.to_string().parse(), Ok(spec));
        }
        assert_eq!("real".parse(), Ok(GpuSpec::Real));
        assert_eq!(GpuSpec::Real.to_string(), "real");
    }

    #[test]
    fn what_names_no_cards_is_refused() {
        for text in [
            "",
            "soft",
            "scripted:",
            "scripted:1",
            "scripted:1x24",
            "scripted:0x24GiB",
            "scripted:65x24GiB",
            "scripted:1x0GiB",
            "scripted:+1x24GiB",
            "scripted:1x24Gib",
            "scripted:1x99999999TiB",
            "Real",
        ] {
            assert!(text.parse::<GpuSpec>().is_err(), "{text}");
        }
    }
}
