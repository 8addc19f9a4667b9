//! What processes cost, as the kernel counts it.

use anyhow::{Context, Result};
use std::fs::read_to_string;
use std::time::Duration;

/// A process and all its descendants.
pub fn tree(root: u32) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        next += 1;
        // A process that is gone has no children left to count.
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.flatten() {
            let children = read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
        }
    }
    found
}

/// CPU time of a process and its descendants, those already reaped included.
pub fn cpu_of_tree(root: u32) -> Result<Duration> {
    // A descendant that ended since it was listed is counted by its parent.
    let descendants: Duration = tree(root).into_iter().skip(1).filter_map(|pid| cpu(pid).ok()).sum();
    Ok(cpu(root)? + descendants)
}

fn cpu(pid: u32) -> Result<Duration> {
    let stat = read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid} is gone"))?;
    // The name in parentheses may contain anything; numbers start after the last one.
    let numbers = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    // Fields 14 to 17: utime, stime and the same of reaped children, in ticks.
    let ticks: u64 = numbers.split_whitespace().skip(11).take(4).filter_map(|word| word.parse::<u64>().ok()).sum();
    Ok(in_seconds(ticks))
}

fn in_seconds(ticks: u64) -> Duration {
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// CPU time of everything on this machine since it started, what the hypervisor took included.
pub fn cpu_of_machine() -> Result<Duration> {
    let stat = read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal
    let busy = [0, 1, 2, 5, 6, 7].into_iter().filter_map(|field| ticks.get(field)).sum();
    Ok(in_seconds(busy))
}

/// CPU time of the calling thread.
pub fn cpu_of_this_thread() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

/// Memory of one process.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct BenchProcessMemory {
    /// The process.
    pub pid: u32,
    /// Resident bytes.
    pub rss_bytes: u64,
    /// Resident bytes, with each shared page divided among its processes; null where the kernel does not tell.
    pub pss_bytes: Option<u64>,
}

/// Memory of a process now.
pub fn memory(pid: u32) -> Result<BenchProcessMemory> {
    let status = read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("process {pid} is gone"))?;
    let rss_bytes = kib_field(&status, "VmRSS:").context("no VmRSS in /proc/PID/status")?;
    let rollup = read_to_string(format!("/proc/{pid}/smaps_rollup")).ok();
    Ok(BenchProcessMemory { pid, rss_bytes, pss_bytes: rollup.and_then(|text| kib_field(&text, "Pss:")) })
}

fn kib_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// From now on this thread does not preempt a running thread when it wakes up (`SCHED_BATCH`): a load
/// generator that interrupts the service at every answer would measure itself.
pub fn use_batch_scheduling() -> Result<()> {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads the structure, which lives until it returns; 0 is the calling thread.
    let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const priority) };
    anyhow::ensure!(done == 0, "SCHED_BATCH: {}", std::io::Error::last_os_error());
    Ok(())
}
