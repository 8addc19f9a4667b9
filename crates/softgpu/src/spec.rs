//! The list of GPUs to make: `2x24GiB`, `1x80GiB,1x24GiB`.

use crate::layout::GPUS_MAX;
use std::str::FromStr;

/// The smallest size of a soft GPU: enough for a context and some data.
const GPU_BYTES_MIN: u64 = 1 << 30;
/// The largest size: the address space has room for this on every GPU.
const GPU_BYTES_MAX: u64 = 1 << 40;

/// The GPUs to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Bytes of each GPU.
    pub totals: Vec<u64>,
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Spec, String> {
        let mut totals = Vec::new();
        for part in text.split(',') {
            let (count, size) = part.trim().split_once(['x', '×']).unwrap_or(("1", part.trim()));
            let count: usize = count.trim().parse().map_err(|_| part_error(part))?;
            let total = parse_size(size.trim()).ok_or_else(|| part_error(part))?;
            if !(GPU_BYTES_MIN..=GPU_BYTES_MAX).contains(&total) {
                return Err(format!("a soft GPU has 1GiB to 1TiB, and `{part}` is not within that"));
            }
            totals.extend(std::iter::repeat_n(total, count.min(GPUS_MAX + 1)));
        }
        match totals.len() {
            1..=GPUS_MAX => Ok(Spec { totals }),
            _ => Err(format!("there can be 1 to {GPUS_MAX} soft GPUs")),
        }
    }
}

fn part_error(part: &str) -> String {
    format!("`{part}` is not a number of GPUs and their size, such as 2x24GiB")
}

fn parse_size(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(split);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_specs_are_parsed_and_others_refused() {
        assert_eq!("2x24GiB".parse(), Ok(Spec { totals: vec![24 << 30, 24 << 30] }));
        assert_eq!("1x80G, 24GiB".parse(), Ok(Spec { totals: vec![80 << 30, 24 << 30] }));
        for text in
            ["", "x", "2x", "0x24GiB", "2x24", "17x24GiB", "1x1MiB", "1x2048GiB", "1x99999999999999GiB", "-1x2G"]
        {
            assert!(text.parse::<Spec>().is_err(), "{text}");
        }
    }
}
