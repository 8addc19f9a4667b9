//! Readers of single values: each refuses a senseless one, and tells what would be accepted.

use super::ConfigError;
use crate::view::Visibility;
use sublet_core::settings::Renewal;
use sublet_core::units::{Bytes, Span};
use sublet_host::gpu::GpuSpec;
use sublet_wire::{size, span};

/// Some 300 MB, months of a busy GPU.
pub(super) const HISTORY: u64 = 1_000_000;

/// A driver and a display need a few GiB; more is a typing error.
const MARGIN_MAX: Bytes = Bytes::gib(32);

/// Fewer would not tell what happened an hour ago.
pub(super) fn read_history(lines: u64) -> Result<u64, ConfigError> {
    match lines {
        1_000.. => Ok(lines),
        _ => Err(ConfigError::value("history", lines, "keep 1000 lines at least")),
    }
}

/// A GPU as `nvidia-smi -L` names it: its number or its UUID.
pub(super) fn read_gpu_name(name: &str) -> Result<String, ConfigError> {
    if is_uuid(name) || name.parse::<u32>().is_ok() {
        return Ok(name.to_owned());
    }
    let why = "name GPUs by number (\"1\") or UUID (\"GPU-…\"), as `nvidia-smi -L` lists them";
    Err(ConfigError::value("unmanaged", name, why))
}

/// `GPU-` and the 8-4-4-4-12 hexadecimal digits of a UUID.
fn is_uuid(name: &str) -> bool {
    let Some(digits) = name.strip_prefix("GPU-") else { return false };
    let groups: Vec<&str> = digits.split('-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    lengths == [8, 4, 4, 4, 12] && groups.iter().all(|group| group.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Whether something is on, which it is unless it is said to be off.
pub(super) fn is_on(key: &'static str, said: Option<&str>) -> Result<bool, ConfigError> {
    match said {
        None | Some("on") => Ok(true),
        Some("off") => Ok(false),
        Some(other) => Err(ConfigError::value(key, other, "write \"on\" or \"off\"")),
    }
}

pub(super) fn positive(key: &'static str, value: Option<f64>, default: f64) -> Result<f64, ConfigError> {
    let value = value.unwrap_or(default);
    if (1.0..=1e6).contains(&value) {
        return Ok(value);
    }
    Err(ConfigError::value(key, value, "write a number from 1 to 1000000"))
}

/// With none of it no request could be served; without the key there is no bound.
pub(super) fn at_least_one<T: Copy + Default + PartialEq>(
    key: &'static str,
    value: Option<T>,
) -> Result<Option<T>, ConfigError> {
    if value == Some(T::default()) {
        return Err(ConfigError::value(key, 0, "it must be at least 1; leave the key out for the default"));
    }
    Ok(value)
}

pub(super) fn set<T>(
    place: &mut T,
    key: &'static str,
    text: &Option<String>,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<(), ConfigError> {
    if let Some(text) = text {
        *place = read(text).map_err(|why| ConfigError::value(key, text, why))?;
    }
    Ok(())
}

pub(super) fn read_span(text: &str) -> Result<Span, String> {
    match span::parse(text) {
        Ok(0) => Err("it must be at least 1s".to_owned()),
        Ok(seconds) => Ok(Span::secs(seconds)),
        Err(error) => Err(error.hint().to_owned()),
    }
}

/// A time that may be zero.
pub(super) fn read_span_or_none(text: &str) -> Result<Span, String> {
    span::parse(text).map(Span::secs).map_err(|error| error.hint().to_owned())
}

pub(super) fn read_size(text: &str) -> Result<Bytes, String> {
    size::parse(text).map(Bytes).map_err(|error| error.hint().to_owned())
}

/// Bytes of each GPU that are never leased.
pub(super) fn read_margin(text: &str) -> Result<Bytes, String> {
    match read_size(text)? {
        margin if margin > MARGIN_MAX => {
            Err(format!("it must be at most {MARGIN_MAX}: that much of each GPU is never leased"))
        }
        margin => Ok(margin),
    }
}

pub(super) fn read_renewal(text: &str) -> Result<Renewal, String> {
    let percent =
        |text: &str| text.trim().strip_suffix('%').and_then(|n| n.parse::<u8>().ok()).filter(|n| (1..=95).contains(n));
    let read = if let Some(rest) = text.strip_prefix("below ") {
        percent(rest).map(|percent| Renewal::Below { percent })
    } else if let Some(rest) = text.strip_prefix("every ") {
        read_span(rest).ok().map(Renewal::Every)
    } else {
        percent(text).map(|percent| Renewal::At { percent, jitter: 10 })
    };
    read.ok_or_else(|| "write \"70%\", \"below 25%\" or \"every 1m\"".to_owned())
}

pub(super) fn read_visibility(text: &str) -> Result<Visibility, ConfigError> {
    match text {
        "all" => Ok(Visibility::All),
        "own" => Ok(Visibility::Own),
        _ => Err(ConfigError::value("visibility", text, "write \"all\" or \"own\"")),
    }
}

pub(super) fn read_gpu(text: &str) -> Result<GpuSpec, ConfigError> {
    text.parse().map_err(|_| ConfigError::value("gpu", text, "write \"real\", or for instance \"soft:2x24GiB\""))
}
