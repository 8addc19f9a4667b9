//! The identity of a process, from `/proc`.
//!
//! Every answer is a snapshot. A caller that stores one also stores the [`ProcKey`] and compares it later, because
//! pids are reused. Absent on purpose: names of users (the daemon has them), signals, and any judgement about what a
//! process may do.

use crate::timed_read;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::io;
use std::path::PathBuf;
use sublet_core::ids::ProcKey;
use sublet_core::movers::MoverReport;
use thiserror::Error;

/// Longer than any real chain of parents; stops a walk that a change under it made circular.
const ANCESTORS_MAX: usize = 256;

/// The identity of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its pid and start time.
    pub key: ProcKey,
    /// Its real user id.
    pub uid: u32,
    /// Its parent's pid; 0 if none is visible.
    pub parent: u32,
    /// What the kernel calls it: at most 15 bytes, chosen by the process.
    pub name: String,
}

/// Why nothing is known about a process.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// It has ended, or never existed.
    #[error("there is no process {pid}")]
    Gone {
        /// The pid that was asked for.
        pid: u32,
    },
    /// The pid names a thread of another process.
    #[error("{pid} is a thread of process {process}")]
    Thread {
        /// The pid that was asked for.
        pid: u32,
        /// The process it belongs to.
        process: u32,
    },
    /// It may exist, but cannot be read.
    #[error("process {pid} cannot be read")]
    Unreadable {
        /// The pid that was asked for.
        pid: u32,
        /// The kernel's error.
        source: io::Error,
    },
}

impl ProcessError {
    pub(crate) fn of(pid: u32, source: io::Error) -> ProcessError {
        let gone =
            source.kind() == io::ErrorKind::NotFound || source.raw_os_error() == Some(Errno::SRCH.raw_os_error());
        if gone { ProcessError::Gone { pid } } else { ProcessError::Unreadable { pid, source } }
    }

    /// True if the process does not exist. Unreadable is not gone.
    pub const fn is_gone(&self) -> bool {
        matches!(self, ProcessError::Gone { .. })
    }
}

/// Reads the identity of a process. A process that has ended but is not yet reaped is gone.
pub fn identify(pid: u32) -> Result<Identity, ProcessError> {
    let before = stat(pid)?;
    let status = read(pid, "status")?;
    let after = stat(pid)?;
    if after.start != before.start || after.has_ended() {
        return Err(ProcessError::Gone { pid });
    }
    match status_field(&status, "Tgid:") {
        Some(process) if process != pid => return Err(ProcessError::Thread { pid, process }),
        _ => {}
    }
    let uid = status_field(&status, "Uid:").ok_or_else(|| malformed(pid, "status"))?;
    Ok(Identity { key: after.key(pid), uid, parent: after.parent, name: after.name })
}

/// How long ago this host was booted, in the unit of [`ProcKey::start`]: a process that starts later has no smaller one.
pub fn ticks_since_boot() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let ticks_per_s = rustix::param::clock_ticks_per_second();
    let part = now.tv_nsec.unsigned_abs() * ticks_per_s / 1_000_000_000;
    now.tv_sec.unsigned_abs() * ticks_per_s + part
}

/// True if exactly this process still runs. One that cannot be read counts as running.
pub fn is_running(key: ProcKey) -> bool {
    match stat(key.pid) {
        Ok(stat) => stat.start == key.start && !stat.has_ended(),
        Err(error) => !error.is_gone(),
    }
}

/// True if exactly this process has ended or is about to: its memory is released before its files are closed.
pub(crate) fn is_ending(key: ProcKey) -> bool {
    match stat(key.pid) {
        Ok(stat) => stat.start != key.start || stat.state == b'Z' || stat.has_ended() || stat.image[1] == 0,
        Err(error) => error.is_gone(),
    }
}

/// The name of a process's executable, without the path; `None` if it cannot be read.
pub fn executable_name(pid: u32) -> Option<String> {
    let path = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = path.file_name()?.to_string_lossy();
    // An executable that was replaced meanwhile is still the same program.
    let name = name.strip_suffix(" (deleted)").unwrap_or(&name);
    Some(name.chars().filter(|c| !c.is_control()).take(64).collect())
}

/// [`executable_name`] of a process that a mover reports for the first time.
pub(crate) fn executable_name_if_present(process: ProcKey, report: &MoverReport) -> Option<String> {
    if matches!(report, MoverReport::Present { .. }) { executable_name(process.pid) } else { None }
}

/// The parents of a process, nearest first, as far up as visible.
pub fn ancestry(pid: u32) -> Vec<ProcKey> {
    let mut found: Vec<ProcKey> = Vec::new();
    let mut next = stat(pid).map_or(0, |stat| stat.parent);
    while next != 0 && found.len() < ANCESTORS_MAX {
        let Ok(stat) = stat(next) else { break };
        found.push(stat.key(next));
        next = stat.parent;
    }
    found
}

/// The pids of a process's children, those of all its threads together.
pub fn children(pid: u32) -> Result<Vec<u32>, ProcessError> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_err(|e| ProcessError::of(pid, e))?;
    let mut found = Vec::new();
    let mut is_listed = false;
    for task in tasks.flatten() {
        // The children of a thread that ended meanwhile belong to another thread now.
        let Ok(text) = fs::read_to_string(task.path().join("children")) else { continue };
        is_listed = true;
        found.extend(text.split_ascii_whitespace().filter_map(|n| n.parse::<u32>().ok()));
    }
    if is_listed { Ok(found) } else { children_by_scan(pid) }
}

/// The same for kernels that do not list children: reads the parent of every process.
fn children_by_scan(pid: u32) -> Result<Vec<u32>, ProcessError> {
    Ok(all_pids()?.into_iter().filter(|&candidate| stat(candidate).is_ok_and(|s| s.parent == pid)).collect())
}

/// The pids of all processes.
pub fn all_pids() -> Result<Vec<u32>, ProcessError> {
    let entries = fs::read_dir("/proc").map_err(|source| ProcessError::Unreadable { pid: 0, source })?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// The real user id of a process.
pub fn uid(pid: u32) -> Result<u32, ProcessError> {
    status_field(&read(pid, "status")?, "Uid:").ok_or_else(|| malformed(pid, "status"))
}

/// The user ids of a process: the real, the effective, the saved and the file-system one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uids([u32; 4]);

impl Uids {
    /// The uids that a process has now.
    pub fn read(pid: u32) -> Result<Uids, ProcessError> {
        Uids::parse(&read(pid, "status")?).ok_or_else(|| malformed(pid, "status"))
    }

    fn parse(status: &[u8]) -> Option<Uids> {
        let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Uid:"))?;
        let ids: Vec<u32> =
            str::from_utf8(line).ok()?.split_ascii_whitespace().map_while(|id| id.parse().ok()).collect();
        ids.try_into().ok().map(Uids)
    }

    /// A uid of these that is not `uid`; `None` if all of them are `uid`. A set-user-ID program has only the real uid
    /// of its caller, and can become the other user at any time.
    pub fn other_than(self, uid: u32) -> Option<u32> {
        self.0.into_iter().find(|id| *id != uid)
    }
}

/// Bytes read of an environment.
const ENVIRON_MAX: u64 = 8 << 20;

/// The environment that a process was started with. Later changes by the process do not show here.
pub struct Environment(Vec<u8>);

impl Environment {
    /// Reads all of it, once.
    pub fn read(pid: u32) -> Result<Environment, ProcessError> {
        let block = timed_read::read(format!("{}/environ", proc_folder(pid, &stat(pid)?)), ENVIRON_MAX);
        block.map(Environment).map_err(|error| ProcessError::of(pid, error))
    }

    /// The value of a variable.
    pub fn get(&self, name: &str) -> Option<String> {
        let mut entries = self.0.split(|&byte| byte == 0);
        let value = entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        value.map(|value| String::from_utf8_lossy(value).into_owned())
    }
}

/// The folder with the executable and the open files of a process. If its first thread ended before the others, the
/// kernel shows nothing there, so the folder is that of another thread.
pub(crate) fn proc_folder(pid: u32, stat: &Stat) -> String {
    let own = format!("/proc/{pid}");
    if stat.state != b'Z' || stat.threads <= 1 {
        return own;
    }
    let tasks = fs::read_dir(format!("{own}/task")).into_iter().flatten().flatten();
    let lives = |task: &PathBuf| {
        let stat = fs::read(task.join("stat")).ok().and_then(|text| Stat::parse(&text));
        stat.is_some_and(|stat| !matches!(stat.state, b'Z' | b'X' | b'x'))
    };
    let living = tasks.map(|task| task.path()).find(lives);
    living.map_or(own, |task| task.to_string_lossy().into_owned())
}

/// Bytes that a process, and its children that it waited for, ever read and wrote.
pub fn io_bytes(pid: u32) -> Result<u64, ProcessError> {
    let text = read(pid, "io")?;
    let field = |name| status_field::<u64>(&text, name).ok_or_else(|| malformed(pid, "io"));
    Ok(field("rchar:")?.saturating_add(field("wchar:")?))
}

/// Bytes of memory that are private to a process, and in RAM.
pub fn anonymous_bytes(pid: u32) -> Result<u64, ProcessError> {
    let kib: u64 = status_field(&read(pid, "status")?, "RssAnon:").ok_or_else(|| malformed(pid, "status"))?;
    Ok(kib.saturating_mul(1024))
}

/// The cgroups of a process, as the lines of `/proc/PID/cgroup` name them.
pub fn cgroups(pid: u32) -> Result<Vec<Cgroup>, ProcessError> {
    let text = read(pid, "cgroup")?;
    Ok(String::from_utf8_lossy(&text).lines().filter_map(Cgroup::parse).collect())
}

/// A place in one cgroup hierarchy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cgroup {
    /// The hierarchy's controllers (`memory`, `name=systemd`); empty for version 2.
    pub controllers: String,
    /// The path inside the hierarchy, beginning with `/`.
    pub path: String,
}

impl Cgroup {
    fn parse(line: &str) -> Option<Cgroup> {
        let mut parts = line.splitn(3, ':').skip(1);
        Some(Cgroup { controllers: parts.next()?.to_owned(), path: parts.next()?.to_owned() })
    }

    /// The last component of the path.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// True if `other` is this place, or below it.
    pub fn contains(&self, other: &Cgroup) -> bool {
        self.controllers == other.controllers
            && other.path.strip_prefix(&self.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The directory of this place, if the hierarchy is mounted here.
    pub fn directory(&self) -> Option<PathBuf> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        mounts.lines().find_map(|line| self.directory_in(line))
    }

    /// `36 25 0:31 /root /mount/point rw … - cgroup2 cgroup2 rw,options`
    fn directory_in(&self, mount: &str) -> Option<PathBuf> {
        let (place, kind) = mount.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, point) = (place.next()?, place.next()?);
        let mut kind = kind.split(' ');
        let (filesystem, options) = (kind.next()?, kind.nth(1)?);
        let ours = match self.controllers.as_str() {
            "" => filesystem == "cgroup2",
            wanted => filesystem == "cgroup" && wanted.split(',').all(|c| options.split(',').any(|o| o == c)),
        };
        let below =
            self.path.strip_prefix(root.trim_end_matches('/')).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        below.filter(|_| ours).map(|below| PathBuf::from(format!("{point}{below}")))
    }
}

/// The kernel's counters of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) name: String,
    pub(crate) state: u8,
    pub(crate) parent: u32,
    /// The leader of its process group.
    pub(crate) group: u32,
    /// The leader of its session.
    pub(crate) session: u32,
    /// The number of its terminal; 0 if it has none.
    pub(crate) terminal: u64,
    /// The leader of the foreground process group of that terminal; 0 if it has none.
    pub(crate) foreground: u32,
    /// It is a kernel thread, without a program.
    pub(crate) is_kernel: bool,
    pub(crate) threads: u64,
    pub(crate) start: u64,
    /// CPU time in clock ticks, of itself and of the children that it waited for.
    pub(crate) cpu_ticks: u64,
    /// The addresses at which the last `exec` put its program and its stack: different each time. Zeros or ones where
    /// this process may not know them.
    pub(crate) image: [u64; 3],
}

/// Set in field 9 of kernel threads, which run no user program.
const PF_KTHREAD: u64 = 0x0020_0000;

impl Stat {
    pub(crate) const fn key(&self, pid: u32) -> ProcKey {
        ProcKey { pid, start: self.start }
    }

    /// True if it is dead, though perhaps not yet reaped. A first thread that ended before the others also shows as a
    /// zombie, but that process lives.
    pub(crate) const fn has_ended(&self) -> bool {
        matches!(self.state, b'X' | b'x') || (self.state == b'Z' && self.threads <= 1)
    }

    /// True if the addresses of its image are known: another `exec` would change them.
    pub(crate) const fn has_known_image(&self) -> bool {
        self.image[0] > 1 && self.image[1] > 1 && !self.is_starting()
    }

    /// True in the middle of an `exec`: the old program is gone, and the new one's addresses are not set yet. Its
    /// command line is empty then, and so is all else that is read from its memory.
    pub(crate) const fn is_starting(&self) -> bool {
        // Without permission the kernel shows a one. A first thread that ended has no memory any more.
        !self.is_kernel && self.state != b'Z' && self.image[1] == 0
    }

    /// `pid (name) state ppid …`: the name may hold spaces, parentheses and line ends,
    /// so the fields begin after the *last* `)`.
    fn parse(text: &[u8]) -> Option<Stat> {
        let open = text.iter().position(|&byte| byte == b'(')?;
        let close = text.iter().rposition(|&byte| byte == b')')?;
        let name = String::from_utf8_lossy(text.get(open + 1..close)?).into_owned();
        let fields: Vec<&str> = str::from_utf8(text.get(close + 1..)?).ok()?.split_ascii_whitespace().collect();
        // The manual counts from 1 and the state is its field 3.
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        let signed = |field: usize| Some(u64::try_from(fields.get(field - 3)?.parse::<i64>().ok()?).unwrap_or(0));
        Some(Stat {
            name,
            state: *fields.first()?.as_bytes().first()?,
            parent: u32::try_from(number(4)?).ok()?,
            group: u32::try_from(signed(5)?).ok()?,
            session: u32::try_from(signed(6)?).ok()?,
            terminal: signed(7)?,
            foreground: u32::try_from(signed(8)?).ok()?,
            is_kernel: number(9)? & PF_KTHREAD != 0,
            cpu_ticks: number(14)?.saturating_add(number(15)?).saturating_add(signed(16)?).saturating_add(signed(17)?),
            threads: number(20)?,
            start: number(22)?,
            image: [26, 27, 28].map(|field| number(field).unwrap_or(0)),
        })
    }
}

pub(crate) fn stat(pid: u32) -> Result<Stat, ProcessError> {
    let text = read(pid, "stat")?;
    if text.is_empty() {
        return Err(ProcessError::Gone { pid }); // it ended between opening and reading
    }
    Stat::parse(&text).ok_or_else(|| malformed(pid, "stat"))
}

pub(crate) fn read(pid: u32, file: &str) -> Result<Vec<u8>, ProcessError> {
    fs::read(format!("/proc/{pid}/{file}")).map_err(|e| ProcessError::of(pid, e))
}

/// `Uid:  1000  1000 …`: the first number after the name.
pub(crate) fn status_field<T: std::str::FromStr>(text: &[u8], name: &str) -> Option<T> {
    let line = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name.as_bytes()))?;
    str::from_utf8(line).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

pub(crate) fn malformed(pid: u32, file: &str) -> ProcessError {
    let source = io::Error::new(io::ErrorKind::InvalidData, format!("`/proc/{pid}/{file}` has an unknown form"));
    ProcessError::Unreadable { pid, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, state: char, threads: u32) -> String {
        format!("4312 ({name}) {state} 17 4312 17 0 -1 4194560 9 8 0 0 250 50 7 3 20 0 {threads} 0 987654 1 2 3\n")
    }

    #[test]
    fn a_name_may_hold_anything() {
        for name in ["sleep", "Web Content", ") R 1 (", "a)b", "", "((((", "x\ny"] {
            let stat = Stat::parse(line(name, 'S', 4).as_bytes()).unwrap();
            let fields = (stat.name.as_str(), stat.state, stat.parent, stat.start, stat.cpu_ticks, stat.threads);
            assert_eq!(fields, (name, b'S', 17, 987_654, 310, 4));
        }
    }

    #[test]
    fn a_truncated_stat_line_is_refused() {
        for text in ["", "4312", "4312 (sleep", "4312 (sleep) S 17", "4312 )sleep( S 17", "(", ")"] {
            assert_eq!(Stat::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_zombie_has_ended_unless_other_threads_live() {
        let ended = |state, threads| Stat::parse(line("x", state, threads).as_bytes()).unwrap().has_ended();
        assert!(ended('Z', 1) && ended('X', 0));
        assert!(!ended('Z', 2) && !ended('D', 1) && !ended('T', 1));
    }

    #[test]
    fn the_own_process_is_identified() {
        let pid = std::process::id();
        let me = identify(pid).unwrap();
        assert_eq!((me.key.pid, me.uid), (pid, rustix::process::getuid().as_raw()));
        assert!(is_running(me.key));
        assert!(ancestry(pid).iter().any(|parent| parent.pid == me.parent));
        assert!(io_bytes(pid).unwrap() > 0 && anonymous_bytes(pid).unwrap() > 0);
        assert_eq!(Environment::read(pid).unwrap().get("NO_SUCH_VARIABLE"), None);
    }

    #[test]
    fn a_process_started_before_now_and_after_what_was_now_before() {
        let before = ticks_since_boot();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let start = identify(child.id()).unwrap().key.start;
        assert!((before..=ticks_since_boot()).contains(&start), "{before} {start}");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn another_start_is_another_process() {
        let key = identify(std::process::id()).unwrap().key;
        assert!(!is_running(ProcKey { start: key.start + 1, ..key }));
    }

    #[test]
    fn a_process_is_a_users_only_if_all_its_uids_are() {
        let uids = |line: &str| Uids::parse(format!("Name:\tx\nUid:\t{line}\nGid:\t0\n").as_bytes());
        let other = |line| uids(line).unwrap().other_than(1000);
        assert_eq!(other("1000 1000 1000 1000"), None);
        assert_eq!(other("1000 0 0 0"), Some(0));
        assert_eq!(other("1000 1000 0 1000"), Some(0), "a set-user-ID program that dropped its rights for now");
        assert_eq!(other("0 1000 1000 1000"), Some(0));
        assert_eq!((uids("1000 1000 1000"), uids("")), (None, None));
        assert_eq!(Uids::read(std::process::id()).unwrap().other_than(rustix::process::getuid().as_raw()), None);
    }

    #[test]
    fn a_thread_is_not_a_process() {
        let identified = std::thread::spawn(|| identify(rustix::thread::gettid().as_raw_nonzero().get() as u32)).join();
        assert!(
            matches!(identified.unwrap(), Err(ProcessError::Thread { process, .. }) if process == std::process::id())
        );
    }

    #[test]
    fn a_child_is_seen_until_it_ends() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let key = identify(child.id()).unwrap().key;
        assert!(children(std::process::id()).unwrap().contains(&child.id()));
        assert!(children_by_scan(std::process::id()).unwrap().contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_running(key));
        assert!(identify(key.pid).is_err());
    }

    #[test]
    fn a_cgroup_holds_what_is_below_it_and_nothing_beside_it() {
        let at = |line| Cgroup::parse(line).unwrap();
        let holder = at("0::/user.slice/sublet-L7");
        assert_eq!(holder.name(), "sublet-L7");
        assert!(holder.contains(&at("0::/user.slice/sublet-L7")));
        assert!(holder.contains(&at("0::/user.slice/sublet-L7/inner:odd")));
        assert!(!holder.contains(&at("0::/user.slice/sublet-L77")));
        assert!(!holder.contains(&at("4:memory:/user.slice/sublet-L7")));
    }

    #[test]
    fn a_cgroup_is_found_where_it_is_mounted() {
        let v2 = Cgroup { controllers: String::new(), path: "/a/sublet-L7".into() };
        let v1 = Cgroup { controllers: "cpu,cpuacct".into(), path: "/a/sublet-L7".into() };
        let mount2 = "36 25 0:31 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        let mount1 = "37 25 0:32 /a /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct";
        assert_eq!(v2.directory_in(mount2), Some("/sys/fs/cgroup/a/sublet-L7".into()));
        assert_eq!(v1.directory_in(mount1), Some("/sys/fs/cgroup/cpu/sublet-L7".into()));
        assert_eq!((v2.directory_in(mount1), v1.directory_in(mount2)), (None, None));
    }
}
