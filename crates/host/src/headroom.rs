//! How much more host memory the memory cgroup of a process allows, and what parks have booked of it.
//!
//! The kernel charges a page to the cgroup of the process that touches it first, and to every cgroup above. At a
//! limit it kills a process of that cgroup. So what a park takes of a limited cgroup is booked here before the park
//! begins: for parks by the library, for parks by the driver, and for the memory that the daemon fills itself:
//!
//! ```text
//!   room of a cgroup = minimum over it and all above: limit − used + cache − booked by others there or below
//! ```
//! A limit that cannot be read is unknown: neither zero nor infinite. Absent on purpose: limits above the top of the
//! hierarchy as this process sees it (a container's), which no file shows.

use crate::process::{self, Cgroup};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use sublet_core::ids::LeaseId;

/// A limit of version 1 above this means no limit.
const NO_LIMIT: u64 = 1 << 60;

/// Why the room of a cgroup is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnknownRoom(String);

impl fmt::Display for UnknownRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A memory cgroup and all cgroups above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryCgroup {
    /// Nearest first.
    levels: Vec<PathBuf>,
    files: &'static LimitFiles,
}

/// How one version of cgroups names its files.
#[derive(Debug, PartialEq, Eq)]
struct LimitFiles {
    /// Each limit with the counter that it bounds.
    limits: &'static [(&'static str, &'static str)],
    /// Lines of `memory.stat` that the kernel reclaims before it refuses an allocation.
    reclaimable: &'static [&'static str],
    /// The file with the line `oom_kill`.
    events: &'static str,
}

const UNIFIED: LimitFiles = LimitFiles {
    limits: &[("memory.max", "memory.current"), ("memory.high", "memory.current")],
    reclaimable: &["inactive_file", "active_file"],
    events: "memory.events",
};
const LEGACY: LimitFiles = LimitFiles {
    limits: &[
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"),
    ],
    reclaimable: &["total_inactive_file", "total_active_file"],
    events: "memory.oom_control",
};

impl MemoryCgroup {
    /// The memory cgroup of a process; `None` if the host has no memory cgroups.
    pub(crate) fn of(pid: u32) -> Result<Option<MemoryCgroup>, UnknownRoom> {
        let cgroups = process::cgroups(pid).map_err(|error| UnknownRoom(error.to_string()))?;
        MemoryCgroup::among(&cgroups)
    }

    /// The memory cgroup among the cgroups of a process.
    pub(crate) fn among(cgroups: &[Cgroup]) -> Result<Option<MemoryCgroup>, UnknownRoom> {
        // Memory is in one hierarchy: in one of version 1, or else in that of version 2.
        let legacy = cgroups.iter().find(|it| it.controllers.split(',').any(|one| one == "memory"));
        let found = legacy.map(|it| (it, &LEGACY));
        let found = found.or_else(|| cgroups.iter().find(|it| it.controllers.is_empty()).map(|it| (it, &UNIFIED)));
        let Some((cgroup, files)) = found else { return Ok(None) };
        // Outside of the part of the hierarchy that this process can see.
        let is_hidden = Path::new(&cgroup.path).components().any(|part| part == Component::ParentDir);
        match cgroup.directory().filter(|directory| !is_hidden && directory.is_dir()) {
            Some(directory) => Ok(Some(MemoryCgroup::at(&directory, files))),
            // No such hierarchy is mounted, and this is the top of it.
            None if cgroup.path == "/" => Ok(None),
            None => Err(UnknownRoom(format!("its cgroup {} is not to be found below /sys/fs/cgroup", cgroup.path))),
        }
    }

    fn at(directory: &Path, files: &'static LimitFiles) -> MemoryCgroup {
        let levels = directory.ancestors().take_while(|level| level.join("cgroup.procs").exists());
        MemoryCgroup { levels: levels.map(Path::to_owned).collect(), files }
    }

    /// How many of its processes were killed for lack of memory; `None` if that cannot be read.
    pub(crate) fn oom_kills(&self) -> Option<u64> {
        let text = self.levels.iter().find_map(|level| fs::read_to_string(level.join(self.files.events)).ok())?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    }

    /// The minimum room of it and of all above, less the bytes booked at each; `None` without any limit.
    fn room(&self, booked: impl Fn(&Path) -> u64) -> Result<Option<u64>, UnknownRoom> {
        let mut least = None;
        for level in &self.levels {
            let room = self.files.room_of(level)?.map(|room| room.saturating_sub(booked(level)));
            least = least.into_iter().chain(room).min();
        }
        Ok(least)
    }
}

impl LimitFiles {
    fn room_of(&self, level: &Path) -> Result<Option<u64>, UnknownRoom> {
        let mut least = None;
        for (limit, used) in self.limits {
            let Some(limit) = read_limit(&level.join(limit))?.filter(|limit| *limit < NO_LIMIT) else { continue };
            let used = level.join(used);
            let used = read_limit(&used)?.ok_or_else(|| UnknownRoom(format!("{} is not there", used.display())))?;
            // If the file cannot be read, nothing counts as reclaimable.
            let stat = fs::read_to_string(level.join("memory.stat")).unwrap_or_default();
            let spare: u64 = stat
                .lines()
                .filter_map(|line| line.split_once(' '))
                .filter(|(name, _)| self.reclaimable.contains(name))
                .filter_map(|(_, bytes)| bytes.parse::<u64>().ok())
                .sum();
            let room = limit.saturating_sub(used.saturating_sub(spare));
            least = least.into_iter().chain([room]).min();
        }
        Ok(least)
    }
}

/// The number in a file of a cgroup; `None` for the word `max`, and where there is no such file: the top of a
/// hierarchy has none, nor has a cgroup without the controller.
fn read_limit(file: &Path) -> Result<Option<u64>, UnknownRoom> {
    let unknown = |why: &dyn fmt::Display| UnknownRoom(format!("{}: {why}", file.display()));
    match fs::read_to_string(file) {
        Ok(text) if text.trim() == "max" => Ok(None),
        Ok(text) => text.trim().parse().map(Some).map_err(|error| unknown(&error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unknown(&error)),
    }
}

/// What memory is booked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Booker {
    /// A park by the library in the program with this number.
    Library(u64),
    /// Memory that the daemon fills for that program, in its own cgroup.
    Daemon(u64),
    /// Memory that the daemon keeps ready.
    Stock,
    /// A park of this lease by the driver.
    Driver(LeaseId),
}

/// What parks in progress may still take of memory cgroups. One per daemon.
#[derive(Clone, Default)]
pub(crate) struct Bookings(Arc<Mutex<Booked>>);

/// The bytes that each booker has booked, in which cgroups.
type Booked = BTreeMap<Booker, Vec<(MemoryCgroup, u64)>>;

impl Bookings {
    /// Bytes that a cgroup still allows beside the bookings of others; `None` without a limit.
    pub(crate) fn room(&self, cgroup: &MemoryCgroup, booker: Booker) -> Result<Option<u64>, UnknownRoom> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        room(&all, cgroup, booker)
    }

    /// Books bytes in each of these cgroups, replacing the booker's earlier booking. On failure nothing changes, and
    /// the error has the least room.
    pub(crate) fn book(&self, booker: Booker, cgroups: &[MemoryCgroup], bytes: u64) -> Result<(), NoRoom> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for cgroup in cgroups {
            match room(&all, cgroup, booker) {
                Ok(Some(room)) if room < bytes => return Err(NoRoom::Only(room)),
                Ok(_) => {}
                Err(unknown) => return Err(NoRoom::Unknown(unknown)),
            }
        }
        all.insert(booker, cgroups.iter().map(|cgroup| (cgroup.clone(), bytes)).collect());
        Ok(())
    }

    /// Releases the driver's bookings of all leases that are not being parked any more.
    pub(crate) fn retain_driver_bookings(&self, is_under_way: impl Fn(LeaseId) -> bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|booker, _| !matches!(booker, Booker::Driver(lease) if !is_under_way(*lease)));
    }

    /// Releases a booking: its bytes are in use by now, or are not needed.
    pub(crate) fn release(&self, booker: Booker) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&booker);
    }
}

/// Why nothing was booked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// Only this many bytes are left.
    Only(u64),
    /// The room is unknown.
    Unknown(UnknownRoom),
}

fn room(all: &Booked, cgroup: &MemoryCgroup, booker: Booker) -> Result<Option<u64>, UnknownRoom> {
    let others = || all.iter().filter(|(by, _)| **by != booker).flat_map(|(_, booked)| booked);
    cgroup.room(|level| {
        let here = others().filter(|(cgroup, _)| cgroup.levels.iter().any(|it| it == level));
        here.map(|(_, bytes)| *bytes).sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Nested cgroups, each with a limit, the bytes in use and the reclaimable bytes.
    fn make_cgroups(root: &Path, files: &LimitFiles, rows: &[(&str, &str, u64, u64)]) {
        for (name, limit, used, cache) in rows {
            let level = root.join(name);
            fs::create_dir_all(&level).unwrap();
            fs::write(level.join("cgroup.procs"), "").unwrap();
            fs::write(level.join(files.limits[0].0), format!("{limit}\n")).unwrap();
            fs::write(level.join(files.limits[0].1), format!("{used}\n")).unwrap();
            let stat = format!("anon 7\n{} {cache}\n", files.reclaimable[0]);
            fs::write(level.join("memory.stat"), stat).unwrap();
        }
    }

    fn room_at(directory: &Path, files: &'static LimitFiles) -> Result<Option<u64>, UnknownRoom> {
        MemoryCgroup::at(directory, files).room(|_| 0)
    }

    #[test]
    fn the_tightest_limit_counts_and_cache_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let (eight, four) = ((8 * GIB).to_string(), (4 * GIB).to_string());
        let rows =
            [("a", eight.as_str(), 7 * GIB, 2 * GIB), ("a/b", four.as_str(), GIB / 2, 0), ("a/b/c", "max", 0, 0)];
        make_cgroups(dir.path(), &UNIFIED, &rows);
        assert_eq!(room_at(&dir.path().join("a/b/c"), &UNIFIED), Ok(Some(3 * GIB)));
        assert_eq!(room_at(&dir.path().join("a"), &UNIFIED), Ok(Some(3 * GIB)));
        fs::write(dir.path().join("a/b/memory.high"), GIB.to_string()).unwrap();
        assert_eq!(room_at(&dir.path().join("a/b/c"), &UNIFIED), Ok(Some(GIB / 2)));
    }

    #[test]
    fn a_cgroup_without_a_limit_has_no_bound() {
        let dir = tempfile::tempdir().unwrap();
        make_cgroups(dir.path(), &UNIFIED, &[("a", "max", GIB, 0)]);
        make_cgroups(dir.path(), &LEGACY, &[("b", "9223372036854771712", GIB, 0)]);
        assert_eq!(room_at(&dir.path().join("a"), &UNIFIED), Ok(None));
        assert_eq!(room_at(&dir.path().join("b"), &LEGACY), Ok(None));
    }

    #[test]
    fn swap_counts_against_the_limit_of_memory_and_swap() {
        let dir = tempfile::tempdir().unwrap();
        make_cgroups(dir.path(), &LEGACY, &[("a", "4294967296", GIB, 0)]);
        let level = dir.path().join("a");
        fs::write(level.join("memory.memsw.limit_in_bytes"), "4294967296\n").unwrap();
        fs::write(level.join("memory.memsw.usage_in_bytes"), format!("{}\n", 3 * GIB)).unwrap();
        assert_eq!(room_at(&level, &LEGACY), Ok(Some(GIB)));
    }

    #[test]
    fn a_limit_that_cannot_be_read_is_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let level = dir.path().join("a");
        make_cgroups(dir.path(), &UNIFIED, &[("a", "4294967296", GIB, 0)]);
        fs::remove_file(level.join("memory.current")).unwrap();
        assert!(room_at(&level, &UNIFIED).is_err(), "a limit without what is used");
        fs::write(level.join("memory.max"), "plenty\n").unwrap();
        assert!(room_at(&level, &UNIFIED).is_err(), "a word that is no number");
        fs::remove_file(level.join("memory.max")).unwrap();
        fs::create_dir(level.join("memory.max")).unwrap();
        assert!(room_at(&level, &UNIFIED).is_err(), "a file that cannot be read");
    }

    #[test]
    fn a_cgroup_outside_of_the_visible_hierarchy_is_unknown() {
        let at = |controllers: &str, path: &str| Cgroup { controllers: controllers.to_owned(), path: path.to_owned() };
        for path in ["/..", "/../../other", "/no/such/cgroup"] {
            assert!(MemoryCgroup::among(&[at("", path)]).is_err(), "{path}");
            assert!(MemoryCgroup::among(&[at("memory", path), at("", "/")]).is_err(), "{path}");
        }
        assert_eq!(MemoryCgroup::among(&[at("pids", "/..")]), Ok(None), "memory is in no cgroup there");
    }

    #[test]
    fn parks_of_one_cgroup_share_its_room() {
        let dir = tempfile::tempdir().unwrap();
        let limit = (4 * GIB).to_string();
        let rows = [("job", limit.as_str(), GIB, 0), ("job/one", "max", 0, 0), ("job/two", "max", 0, 0)];
        make_cgroups(dir.path(), &UNIFIED, &rows);
        let [one, two] = ["job/one", "job/two"].map(|name| [MemoryCgroup::at(&dir.path().join(name), &UNIFIED)]);
        let bookings = Bookings::default();
        assert_eq!(bookings.book(Booker::Library(1), &one, 2 * GIB), Ok(()));
        assert_eq!(bookings.book(Booker::Library(2), &two, 2 * GIB), Err(NoRoom::Only(GIB)));
        assert_eq!(bookings.book(Booker::Driver(LeaseId(2)), &two, 2 * GIB), Err(NoRoom::Only(GIB)));
        assert_eq!(bookings.book(Booker::Library(1), &one, 3 * GIB), Ok(()), "its own booking is replaced");
        bookings.release(Booker::Library(1));
        assert_eq!(bookings.book(Booker::Library(2), &two, 2 * GIB), Ok(()));
    }

    #[test]
    fn processes_killed_for_lack_of_memory_are_counted_by_the_nearest_cgroup() {
        let dir = tempfile::tempdir().unwrap();
        make_cgroups(dir.path(), &UNIFIED, &[("job", "max", 0, 0), ("job/one", "max", 0, 0)]);
        let job = MemoryCgroup::at(&dir.path().join("job/one"), &UNIFIED);
        assert_eq!(job.oom_kills(), None);
        fs::write(dir.path().join("job/memory.events"), "low 0\noom 3\noom_kill 2\noom_group_kill 1\n").unwrap();
        assert_eq!(job.oom_kills(), Some(2));
    }
}
