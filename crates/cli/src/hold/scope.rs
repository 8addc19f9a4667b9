//! A cgroup for each command, where the system permits it.
//!
//! With it the daemon recognises a lease's processes even if they have lost their parents and their environment.
//! Without it the daemon uses descent and `SUBLET_LEASE`, so a failure to create a cgroup is ignored.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Where cgroup version 2 is mounted: alone, or beside version 1.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// The prefix of Sublet's cgroups, as in `sublet-L7`.
const PREFIX: &str = "sublet-";
/// Time for a wrapper to create a cgroup and move its command into it.
const YOUNG: Duration = Duration::from_secs(10);

/// A cgroup; dropping this value removes it if it is empty.
#[derive(Debug)]
pub struct Scope {
    dir: PathBuf,
}

impl Scope {
    /// Makes `sublet-L7` below this process's own cgroup and moves a process there.
    pub fn enclose(lease: &str, pid: u32) -> Option<Scope> {
        let own = own_directory()?;
        let dir = own.join(format!("{PREFIX}{lease}"));
        fs::create_dir(&dir).ok()?;
        let scope = Scope { dir };
        fs::write(scope.dir.join("cgroup.procs"), pid.to_string()).ok()?;
        sweep(&own, &scope.dir, SystemTime::now());
        Some(scope)
    }
}

/// Removes empty cgroups of wrappers that were killed. A cgroup younger than `YOUNG` stays, because a wrapper may be
/// about to move a process into it.
fn sweep(own: &Path, but: &Path, now: SystemTime) {
    for entry in fs::read_dir(own).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX) && entry.path() != but;
        let made = entry.metadata().and_then(|metadata| metadata.modified());
        if ours && made.is_ok_and(|made| now.duration_since(made).is_ok_and(|age| age > YOUNG)) {
            // The kernel refuses to remove a cgroup that is not empty.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // If it is not empty, processes of the lease still run in it, and the kernel keeps it.
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

/// The path in the line of version 2: `0::/user.slice/…`.
fn unified_path(listed: &str) -> Option<&str> {
    listed.lines().find_map(|line| line.strip_prefix("0::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_killed_wrappers_left_is_swept_unless_it_is_young_or_full() {
        let own = tempfile::tempdir().unwrap();
        for name in ["sublet-L1", "sublet-L2", "sublet-L3", "other"] {
            fs::create_dir(own.path().join(name)).unwrap();
        }
        fs::write(own.path().join("sublet-L2/process"), "").unwrap();
        let left = || {
            let names = fs::read_dir(own.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
            names.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
        };
        sweep(own.path(), &own.path().join("sublet-L3"), SystemTime::now());
        assert_eq!(left(), ["other", "sublet-L1", "sublet-L2", "sublet-L3"]);
        sweep(own.path(), &own.path().join("sublet-L3"), SystemTime::now() + 2 * YOUNG);
        assert_eq!(left(), ["other", "sublet-L2", "sublet-L3"]);
    }

    #[test]
    fn the_unified_hierarchy_is_the_one_that_counts() {
        assert_eq!(unified_path("8:pids:/x\n0::/user.slice/a\n"), Some("/user.slice/a"));
        assert_eq!(unified_path("8:pids:/x\n"), None);
    }
}
