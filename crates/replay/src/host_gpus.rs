//! The GPUs a trace is replayed on, as `8x80GiB` or `4x24GiB,2x80GiB`.

use std::fmt;
use std::str::FromStr;
use sublet_core::reading::GpuFacts;
use sublet_core::units::Bytes;

/// More GPUs than this are several hosts, and one `sublet_core::State` decides for one host.
const GPUS_MAX: usize = 1024;

/// The GPUs of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostGpus {
    /// Bytes of each GPU.
    pub gpus: Vec<Bytes>,
}

impl HostGpus {
    /// The GPUs as a host's discovery would list them.
    pub fn facts(&self) -> Vec<GpuFacts> {
        (0..).zip(&self.gpus).map(|(index, total)| GpuFacts::plain(index, *total)).collect()
    }

    /// The size of the smallest GPU.
    pub fn smallest(&self) -> Bytes {
        self.gpus.iter().copied().min().unwrap_or_default()
    }

    /// Bytes of all GPUs, each less `margin`.
    pub fn leasable(&self, margin: Bytes) -> Bytes {
        self.gpus.iter().map(|total| total.less(margin)).sum()
    }
}

/// A GPU's UUID in the replay.
pub fn uuid(index: usize) -> String {
    format!("GPU-{index}")
}

impl FromStr for HostGpus {
    type Err = String;
    fn from_str(text: &str) -> Result<HostGpus, String> {
        let mut gpus = Vec::new();
        for part in text.split(',') {
            let (count, size) = part.trim().split_once(['x', '×']).unwrap_or(("1", part.trim()));
            let bad = || format!("`{part}` is not a number of GPUs and their size, such as 8x80GiB");
            let count: usize = count.trim().parse().map_err(|_| bad())?;
            if !size.trim().ends_with(|c: char| c.is_ascii_alphabetic()) {
                return Err(format!("the size in `{part}` has no unit: write 80GiB"));
            }
            let size = read_size(size).map_err(|_| bad())?;
            if size > Bytes::MAX_ASK.0 || count == 0 || gpus.len().saturating_add(count) > GPUS_MAX {
                return Err(format!("`{part}`: there can be 1 to {GPUS_MAX} GPUs of at most 1024 TiB"));
            }
            if size < Bytes::gib(1).0 {
                return Err(format!("`{part}`: a GPU of less than 1 GiB has next to no room beside its margin"));
            }
            gpus.extend(std::iter::repeat_n(Bytes(size), count));
        }
        Ok(HostGpus { gpus })
    }
}

impl fmt::Display for HostGpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, group) in self.gpus.chunk_by(|a, b| a == b).enumerate() {
            let comma = if n > 0 { "," } else { "" };
            // Without a space, as on the command line.
            write!(f, "{comma}{}x{}", group.len(), group[0].to_string().replace(' ', ""))?;
        }
        Ok(())
    }
}

/// Bytes, as a plain number or with a binary unit: `K`, `KB` and `KiB` are all 1024.
pub fn read_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" => return number.parse().map_err(|_| format!("{text:?} is not a number of bytes, nor a size like 16GiB")),
        "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return Err(format!("{text:?} is not a size: write bytes, or a number and K, M, G or T")),
    };
    let value: f64 = number.parse().map_err(|_| format!("{text:?} is not a size like 16GiB"))?;
    Ok((value * unit as f64).round() as u64)
}
