//! Which GPUs to read: real ones, soft ones for machines without, or scripted ones for tests.
//!
//! Only the spelling (`real`, `soft:2x24GiB`, `scripted:2x24GiB`) is here, and the check for an NVIDIA device; the
//! worker does the reading.

use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;
use sublet_core::units::Bytes;
use sublet_softgpu::Spec;
use sublet_softgpu::state::SOFT_UUID;
use thiserror::Error;

/// More GPUs than any host has; a larger number is a typing error.
const GPUS_MAX: u32 = 64;

/// How the UUIDs of scripted GPUs begin; no real GPU's does.
pub const SCRIPTED_UUID: &str = "GPU-5c219700-0000-4000-8000-";

/// The soft GPUs if none are specified.
pub const SOFT_DEFAULT: &str = "2x24GiB";

/// The kind of GPUs that a [`GpuSpec`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuKind {
    /// NVIDIA's GPUs, read through NVML.
    Real,
    /// Soft GPUs, read through an NVML of their own.
    Soft,
    /// GPUs that a script file describes.
    Scripted,
}

impl GpuKind {
    /// The kind of a GPU, by its UUID.
    pub fn of(uuid: &str) -> GpuKind {
        if uuid.starts_with(SOFT_UUID) {
            GpuKind::Soft
        } else if uuid.starts_with(SCRIPTED_UUID) {
            GpuKind::Scripted
        } else {
            GpuKind::Real
        }
    }

    /// The kind in one word.
    pub const fn name(self) -> &'static str {
        match self {
            GpuKind::Real => "real",
            GpuKind::Soft => "soft",
            GpuKind::Scripted => "scripted",
        }
    }
}

/// Which GPUs are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuSpec {
    /// `real`: all that NVML lists.
    Real,
    /// `soft:2x24GiB`: these soft GPUs.
    Soft(Spec),
    /// `scripted:2x24GiB`: a number of equal GPUs.
    Scripted {
        /// The number of GPUs.
        count: u32,
        /// The memory of each.
        total: Bytes,
    },
}

impl GpuSpec {
    /// Real, soft or scripted.
    pub const fn kind(&self) -> GpuKind {
        match self {
            GpuSpec::Real => GpuKind::Real,
            GpuSpec::Soft(_) => GpuKind::Soft,
            GpuSpec::Scripted { .. } => GpuKind::Scripted,
        }
    }
}

/// The text names no GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}` names no GPUs: {why}")]
pub struct NotAGpuSpec {
    text: String,
    why: String,
}

impl FromStr for GpuSpec {
    type Err = NotAGpuSpec;

    fn from_str(text: &str) -> Result<GpuSpec, NotAGpuSpec> {
        let because = |why: String| NotAGpuSpec { text: text.to_owned(), why };
        let no = || because("say `real`, or for instance `soft:2x24GiB` or `scripted:1x24GiB`".to_owned());
        let soft = if text == "soft" { Some(SOFT_DEFAULT) } else { text.strip_prefix("soft:") };
        if let Some(gpus) = soft {
            return gpus.parse().map(GpuSpec::Soft).map_err(because);
        }
        if text == "real" {
            return Ok(GpuSpec::Real);
        }
        let (count, size) = text.strip_prefix("scripted:").and_then(|s| s.split_once('x')).ok_or_else(no)?;
        let count = whole_number(count).and_then(|n| u32::try_from(n).ok()).ok_or_else(no)?;
        let total = parse_size(size).ok_or_else(no)?;
        if !(1..=GPUS_MAX).contains(&count) || total == Bytes::ZERO || total > Bytes::MAX_ASK {
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
            GpuSpec::Soft(spec) => {
                let gpus: Vec<String> = spec.totals.iter().map(|total| format!("{}MiB", total >> 20)).collect();
                write!(f, "soft:{}", gpus.join(","))
            }
            // In MiB, because `Bytes` rounds what it shows and this must read back exactly.
            GpuSpec::Scripted { count, total } => write!(f, "scripted:{count}x{}MiB", total.0 >> 20),
        }
    }
}

/// True if this machine has an NVIDIA device, with or without a driver.
pub fn nvidia_visible() -> bool {
    nvidia_visible_below(Path::new("/"))
}

fn nvidia_visible_below(root: &Path) -> bool {
    let has_driver_file =
        ["proc/driver/nvidia", "dev/nvidiactl", "dev/dxg"].iter().any(|path| root.join(path).exists());
    has_driver_file
        || fs::read_dir(root.join("sys/bus/pci/devices")).into_iter().flatten().flatten().any(|entry| {
            let read = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
            // NVIDIA also makes bridges and network cards: only displays (class 03) are meant.
            read("vendor").trim() == "0x10de" && read("class").starts_with("0x03")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_nvidia_device_is_seen_with_or_without_its_driver() {
        let machine = |files: &[(&str, &str)]| {
            let root = tempfile::tempdir().unwrap();
            for (file, text) in files {
                let path = root.path().join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            nvidia_visible_below(root.path())
        };
        let device = |vendor, class| {
            machine(&[
                ("sys/bus/pci/devices/0000:00:00.0/vendor", "0x8086\n"),
                ("sys/bus/pci/devices/0000:00:00.0/class", "0x030000\n"),
                ("sys/bus/pci/devices/0000:21:00.0/vendor", vendor),
                ("sys/bus/pci/devices/0000:21:00.0/class", class),
            ])
        };
        assert!(device("0x10de\n", "0x030200\n"), "a GPU without a driver");
        assert!(device("0x10de\n", "0x030000\n"));
        assert!(!device("0x10de\n", "0x068000\n"), "a bridge is no GPU");
        assert!(!device("0x1002\n", "0x030000\n"), "another maker's");
        assert!(!machine(&[]));
        assert!(machine(&[("proc/driver/nvidia/version", "")]) && machine(&[("dev/dxg", "")]));
    }

    #[test]
    fn the_kind_of_a_gpu_is_in_its_uuid() {
        assert_eq!(GpuKind::of("GPU-5c219700-0000-4000-8000-000000000001"), GpuKind::Scripted);
        assert_eq!(GpuKind::of("GPU-50f7ca2d-1234-4000-8000-000000000001"), GpuKind::Soft);
        assert_eq!(GpuKind::of("GPU-12345678-1234-4000-8000-000000000001"), GpuKind::Real);
    }

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
        for (text, totals) in [
            ("soft", vec![24 << 30, 24 << 30]),
            ("soft:1x80GiB", vec![80 << 30]),
            ("soft:80G,2x1536MB", vec![80 << 30, 3 << 29, 3 << 29]),
        ] {
            let spec: GpuSpec = text.parse().unwrap();
            assert_eq!(spec, GpuSpec::Soft(Spec { totals }));
            assert_eq!(spec.to_string().parse(), Ok(spec));
        }
        assert_eq!("real".parse(), Ok(GpuSpec::Real));
        assert_eq!(GpuSpec::Real.to_string(), "real");
    }

    #[test]
    fn invalid_gpu_specs_are_refused() {
        for text in [
            "",
            "soft:",
            "soft:2",
            "soft:0x24GiB",
            "soft:2x24",
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
