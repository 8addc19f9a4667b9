//! A cgroup of its own for a command, where that is permitted.
//!
//! It lets the daemon know a lease's processes even when they forget their parents
//! and their environment. Without it descent and `SUBLET_LEASE` do; so failing to
//! make one is no failure.

use std::fs;
use std::path::{Path, PathBuf};

/// Where version 2 of the hierarchy is mounted: alone, or beside version 1.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// A cgroup that is removed with this value if it is empty by then.
#[derive(Debug)]
pub struct Scope {
    dir: PathBuf,
}

impl Scope {
    /// Makes `sublet-L7` below this process's own cgroup and moves a process there.
    pub fn enclose(lease: &str, pid: u32) -> Option<Scope> {
        let dir = own_directory()?.join(format!("sublet-{lease}"));
        fs::create_dir(&dir).ok()?;
        let scope = Scope { dir };
        fs::write(scope.dir.join("cgroup.procs"), pid.to_string()).ok()?;
        Some(scope)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // Not empty: processes of the lease live on in it, and the kernel keeps it for them.
        let _ = fs::remove_dir(&self.dir);
    }
}

/// The directory of this process's cgroup, if it can be found.
pub fn own_directory() -> Option<PathBuf> {
    let listed = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = unified_path(&listed)?;
    let under = |mount: &&str| Path::new(mount).join(path.trim_start_matches('/'));
    MOUNTS.iter().map(under).find(|dir| dir.join("cgroup.procs").exists())
}

/// The line of version 2: `0::/user.slice/…`.
fn unified_path(listed: &str) -> Option<&str> {
    listed.lines().find_map(|line| line.strip_prefix("0::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_hierarchy_is_the_one_that_counts() {
        assert_eq!(unified_path("8:pids:/x\n0::/user.slice/a\n"), Some("/user.slice/a"));
        assert_eq!(unified_path("8:pids:/x\n"), None);
    }
}
