//! Processes that a command leaves running when it ends, and that keep the lease.

use std::fs;

/// The pids of this process's children.
pub fn children() -> Vec<u32> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<u32> = pids.filter(|pid| parent_of_living(*pid) == Some(own)).collect();
    found.sort_unstable();
    found
}

/// The parent of a process; `None` if the process has ended.
fn parent_of_living(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.next()?.parse().ok(),
    }
}

/// The name of a process; empty if it has ended.
pub fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).map(|name| name.trim().to_owned()).unwrap_or_default()
}
