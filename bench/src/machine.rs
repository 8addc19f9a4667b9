//! Facts about the machine that figures come from.

use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt;
use std::fs::read_to_string;
use std::path::Path;

/// What a reader needs to judge the figures.
#[derive(Serialize)]
pub struct BenchMachine {
    date: String,
    cores: usize,
    processor: String,
    memory_gib: f64,
    kernel: String,
    filesystem: String,
    load_before: String,
}

/// Looks at this machine; `state` is a folder on the file system that is measured.
pub fn inspect(state: &Path) -> Result<BenchMachine> {
    let processors = read_to_string("/proc/cpuinfo").context("cannot read /proc/cpuinfo")?;
    let memory = read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let load = read_to_string("/proc/loadavg").context("cannot read /proc/loadavg")?;
    Ok(BenchMachine {
        date: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string(),
        cores: std::thread::available_parallelism()?.get(),
        processor: field(&processors, "model name").unwrap_or("unknown").to_owned(),
        memory_gib: field(&memory, "MemTotal").and_then(kib).unwrap_or(f64::NAN) / f64::from(1 << 20),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        filesystem: filesystem(state)?,
        load_before: load.split(' ').next().unwrap_or("unknown").to_owned(),
    })
}

impl fmt::Display for BenchMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "- date: {}", self.date)?;
        writeln!(f, "- machine: {} cores, {}, {:.0} GiB", self.cores, self.processor, self.memory_gib)?;
        writeln!(f, "- kernel: Linux {}", self.kernel)?;
        writeln!(f, "- file system of the state folders: {}", self.filesystem)?;
        writeln!(f, "- load average (1 min) before the run: {}", self.load_before)?;
        writeln!(
            f,
            "- both sides of a ratio are measured in turns in the same run, the load generator on the same cores"
        )
    }
}

fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

fn kib(text: &str) -> Option<f64> {
    text.split(' ').next()?.parse().ok()
}

/// The type and options of the mount that holds `path`.
fn filesystem(path: &Path) -> Result<String> {
    let path = path.canonicalize()?;
    let mounts = read_to_string("/proc/self/mounts").context("cannot read /proc/self/mounts")?;
    // Of two mounts on one place the later is on top, and max_by_key keeps the last.
    let best = mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            Some((words.next()?, words.next()?, words.next()?))
        })
        .filter(|(place, ..)| path.starts_with(place))
        .max_by_key(|(place, ..)| place.len());
    Ok(best.map_or_else(|| "unknown".to_owned(), |(_, kind, options)| format!("{kind} ({options})")))
}
