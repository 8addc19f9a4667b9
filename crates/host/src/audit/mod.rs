//! The identity and origin of a process on a GPU.
//!
//! ```text
//!   audit(process) ──► /proc: stat, status, exe, cmdline, cwd, cgroup, fd, maps, io, parents
//!        ▲                 cgroup_location: cgroup ──► unit, container   redact: command line without secrets
//!        │                 device_files: descriptors and mappings of GPU files     seat: the screen it draws on
//!   PidfdRegistry: audited unleased processes with their pidfds; signals to them go only through it
//!   HintListener:  a device file was opened, a process came or went: read now
//! ```
//! Everything is read between two readings of the start time and of the state that `exec` sets, so that all of it
//! belongs to one program of one process. What may not be read is listed in [`Audit::unread`]: without CAP_SYS_PTRACE
//! less is known of other users' processes, but nothing false.
//!
//! Reading a command line or mappings waits while the process itself changes its memory, and a process that hangs
//! there hangs its audit. So audits must not run on a thread that others wait for.
//!
//! Absent on purpose: matching a process to a lease, names of users, bytes on GPUs, and any choice.

mod ancestors;
mod cgroup_location;
mod clean_text;
mod connector;
mod device_files;
mod device_watch;
mod hints;
mod netlink;
mod orphaned_memory;
mod pidfd_registry;
mod process_memory;
mod redact;
mod seat;
mod taskstats;

pub(crate) use ancestors::AncestorHistory;
pub(crate) use cgroup_location::is_in_container_of;
pub use device_files::GpuDeviceFiles;
pub use hints::{HintListener, ReadingHint};
pub(crate) use orphaned_memory::find_inheritors;
pub use pidfd_registry::{PidfdRegistry, SignalRefusal};
pub use seat::is_at_seat;

use crate::process::{self, ProcessError, Stat};
use crate::timed_read;
use clean_text::{PATH_MAX, WORD_MAX, clean, clean_bytes};
use device_files::reason_text;
use process_memory::ProcessMemory;
use rustix::fs::{AtFlags, Mode as FsMode, OFlags, StatxFlags, fstatfs, makedev, open, statx};
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;
use sublet_core::audit::{Accounted, Ancestor, Audit, FileKey};
use sublet_core::ids::ProcKey;

/// Ancestors reported: a longer chain was made on purpose.
const ANCESTORS_MAX: usize = 32;
/// Words reported of a command line.
const WORDS_MAX: usize = 64;
/// Bytes read of a command line, which may have two million.
const COMMAND_BYTES_MAX: u64 = 65_536;
/// How often data that changed while it was read is read again.
const ATTEMPTS: usize = 4;
/// How long an exec may take from the moment the old program is gone until the new command line is set: microseconds,
/// except with a slow disk or on a busy host.
const STARTING_MS_MAX: usize = 100;
/// The magic number of FUSE file systems, which a program serves.
const FUSE_MAGIC: rustix::fs::FsWord = 0x6573_5546;
/// Descendants of one process reported in one call.
const DESCENDANTS_MAX: usize = 4096;

/// Audits exactly this process, as far as it can be read. Fails with gone if the pid belongs to another process by
/// now.
pub fn audit(process: ProcKey, devices: &GpuDeviceFiles) -> Result<Audit, ProcessError> {
    audit_of_image(process, devices).map(|(audit, _)| audit)
}

/// The properties by which rules tell one service of this host from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceIdentity {
    /// Its user.
    pub uid: u32,
    /// The path of its executable, if that may be read.
    pub exe: Option<String>,
    /// The systemd unit that it is in.
    pub unit: Option<String>,
    /// The container that it is in.
    pub container: Option<String>,
}

/// The place and program of a process, without the rest of an audit.
pub fn service_identity(pid: u32) -> Result<ServiceIdentity, ProcessError> {
    let stat = process::stat(pid)?;
    let place = cgroup_location::location_of(pid)?;
    let (exe, _) = executable(&process::proc_folder(pid, &stat), &stat, &mut Vec::new());
    let found = ServiceIdentity { uid: process::uid(pid)?, exe, unit: place.unit, container: place.container };
    // The pid may have been reused meanwhile.
    living_stat(stat.key(pid)).map(|_| found)
}

/// Stands for memory addresses that keep changing.
const CHANGING_IMAGE: [u64; 3] = [u64::MAX; 3];

/// The audit, with the memory addresses by which two programs run one after the other are told apart.
///
/// A program may overwrite those addresses as often as it likes, and could so prevent every audit. So a process that
/// was the same by all else in each attempt is reported all the same, and so is one that has the same memory
/// throughout.
fn audit_of_image(process: ProcKey, devices: &GpuDeviceFiles) -> Result<(Audit, [u64; 3]), ProcessError> {
    let memory = ProcessMemory::of(process.pid);
    let mut changed: Vec<Audit> = Vec::new();
    for _ in 0..STARTING_MS_MAX {
        let before = living_stat(process)?;
        if before.is_starting() {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let audit = read_audit(process, &before, devices);
        // Its files fail in many ways while it ends, so whether it lives is checked first.
        let after = living_stat(process)?;
        let audit = audit?;
        if before.image == after.image {
            return Ok((audit, after.image));
        }
        if changed.len() + 1 == ATTEMPTS {
            let is_same = || changed.iter().all(|earlier| earlier.is_same(&audit).is_ok());
            if is_same() || memory.is_some_and(|memory| memory.is_in_use()) {
                return Ok((audit, CHANGING_IMAGE));
            }
            break;
        }
        changed.push(audit);
    }
    let source = io::Error::other("it is starting another program each time that it is looked at");
    Err(ProcessError::Unreadable { pid: process.pid, source })
}

/// The process, and its descendants that are in the cgroup that its audit names.
///
/// At most 4,096 are returned: call again for the rest when those have ended.
pub fn descendants_in_cgroup(process: ProcKey, cgroup: &str) -> Result<Vec<ProcKey>, ProcessError> {
    living_stat(process)?;
    let place = |pid: u32| process::cgroups(pid).map(|its| cgroup_location::location_in(&its).cgroup);
    // An audit holds the path in printable form; the comparison uses the path itself.
    let own = place(process.pid).ok().filter(|own| clean(own, PATH_MAX) == cgroup);
    let meant = own.as_deref().unwrap_or(cgroup);
    let (mut found, mut parents) = (Vec::new(), vec![process]);
    let mut seen = 0;
    while let Some(parent) = parents.pop() {
        let is_there = place(parent.pid).is_ok_and(|its| its == meant);
        if is_there && process::is_running(parent) {
            found.push(parent);
        }
        for pid in process::children(parent.pid).unwrap_or_default() {
            // A pid of the list may have been reused, or be a child that init adopted.
            let child = process::stat(pid).ok().filter(|stat| stat.parent == parent.pid && !stat.has_ended());
            if let Some(child) = child.filter(|_| seen < DESCENDANTS_MAX) {
                seen += 1;
                parents.push(child.key(pid));
            }
        }
    }
    Ok(found)
}

/// The stat of exactly this process, if it lives.
fn living_stat(process: ProcKey) -> Result<Stat, ProcessError> {
    let stat = process::stat(process.pid)?;
    if stat.start != process.start || stat.has_ended() {
        return Err(ProcessError::Gone { pid: process.pid });
    }
    Ok(stat)
}

fn read_audit(process: ProcKey, stat: &Stat, devices: &GpuDeviceFiles) -> Result<Audit, ProcessError> {
    let pid = process.pid;
    let status = process::read(pid, "status")?;
    match process::status_field(&status, "Tgid:") {
        Some(leader) if leader != pid => return Err(ProcessError::Thread { pid, process: leader }),
        _ => {}
    }
    let uid = process::status_field(&status, "Uid:").ok_or_else(|| process::malformed(pid, "status"))?;
    let place = cgroup_location::location_of(pid)?;
    let mut unread = Vec::new();
    let folder = process::proc_folder(pid, stat);
    let (exe, exe_deleted) = executable(&folder, stat, &mut unread);
    let exe_file = image_file(&folder);
    let exe_inside = exe.is_some() && is_other_file_here(&folder);
    let cwd = match fs::read_link(format!("{folder}/cwd")) {
        Ok(path) => Some(clean_bytes(path.as_os_str().as_bytes(), PATH_MAX)),
        Err(error) => {
            unread.push(format!("the directory that it is in: {}", reason_text(&error)));
            None
        }
    };
    // In a container the same uid is another user.
    let seat = if place.container.is_none() { seat::seat_of(uid, &place.cgroup) } else { None };
    let (open, crowded) = devices.of(&folder, &mut unread);
    Ok(Audit {
        process,
        uid,
        name: clean(&stat.name, WORD_MAX),
        exe,
        exe_file,
        exe_deleted,
        exe_inside,
        command: redacted_command(&folder, &mut unread),
        cwd,
        cgroup: clean(&place.cgroup, PATH_MAX),
        unit: place.unit,
        container: place.container,
        seat,
        session: stat.session,
        started_s: started_s(process),
        ancestry: ancestry(process, &mut unread),
        devices: open,
        crowded,
        through: None,
        ran: Some(resource_use(pid, stat, &status, &mut unread)),
        unread,
    })
}

/// The path of the executable, and whether it was removed or replaced.
fn executable(folder: &str, stat: &Stat, unread: &mut Vec<String>) -> (Option<String>, bool) {
    match fs::read_link(format!("{folder}/exe")) {
        Ok(path) => {
            let path = path.as_os_str().as_bytes();
            let kept = path.strip_suffix(b" (deleted)");
            (Some(clean_bytes(kept.unwrap_or(path), PATH_MAX)), kept.is_some())
        }
        // Kernel threads have none.
        Err(error) if stat.is_kernel && error.kind() == io::ErrorKind::NotFound => (None, false),
        Err(error) => {
            unread.push(format!("its executable: {}", reason_text(&error)));
            (None, false)
        }
    }
}

/// The file that the process runs, by the descriptor and not by a path. A user's FUSE mount gives each file any
/// numbers, others each time: there the mount itself is compared.
fn image_file(folder: &str) -> Option<FileKey> {
    let link = format!("{folder}/exe");
    // The file may be on a server that does not answer.
    let file_key = timed_read::run_with_timeout(move || {
        let file = open(&link, OFlags::PATH | OFlags::CLOEXEC, FsMode::empty())?;
        if fstatfs(&file)?.f_type == FUSE_MAGIC {
            let kept = fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", file.as_raw_fd()))?;
            let mount = kept.lines().find_map(|line| line.strip_prefix("mnt_id:")).map(str::trim);
            let dev = mount.and_then(|mount| mount.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
            return Ok(FileKey { dev, ino: 0 });
        }
        let stat = statx(&file, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::INO)?;
        Ok(FileKey { dev: makedev(stat.stx_dev_major, stat.stx_dev_minor), ino: stat.stx_ino })
    });
    file_key.ok()
}

/// True if the path of an executable is another file here, or none: in a mount namespace of its own, which every user
/// may create, a program can mount anything there. If that cannot be found out, it is not taken for this host's file.
fn is_other_file_here(folder: &str) -> bool {
    let mounts = |of: &str| fs::read_link(format!("{of}/ns/mnt")).ok();
    if mounts(folder).is_some_and(|its| Some(its) == mounts("/proc/self")) {
        return false;
    }
    let link = format!("{folder}/exe");
    // Either may be on a server that does not answer.
    let is_same = timed_read::run_with_timeout(move || {
        let named = fs::metadata(fs::read_link(&link)?)?;
        fs::metadata(&link).map(|own| (own.dev(), own.ino()) == (named.dev(), named.ino()))
    });
    !is_same.unwrap_or(false)
}

/// The command line as the process shows it, with secrets removed. It is shortened last: half a secret does not look
/// like one.
fn redacted_command(folder: &str, unread: &mut Vec<String>) -> Vec<String> {
    let bytes = match timed_read::read(format!("{folder}/cmdline"), COMMAND_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) => {
            unread.push(format!("its command line: {}", reason_text(&error)));
            return Vec::new();
        }
    };
    let is_cut = bytes.len() as u64 == COMMAND_BYTES_MAX;
    let mut words: Vec<String> =
        bytes.split(|&byte| byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    // The last word is empty after a final zero byte, or cut in the middle.
    words.pop_if(|last| is_cut || last.is_empty());
    let mut words = redact::redact(&words);
    if is_cut || words.len() > WORDS_MAX {
        unread.push("the rest of its command line: it is too long".to_owned());
        words.truncate(WORDS_MAX);
    }
    // If the process overwrote its command line, zeros of the old one follow the new one.
    while words.last().is_some_and(String::is_empty) {
        words.pop();
    }
    words.iter().map(|word| clean(word, WORD_MAX)).collect()
}

/// Start time in seconds since 1970, computed from the present wall clock.
fn started_s(process: ProcKey) -> u64 {
    let (wall, boot) = (clock_gettime(ClockId::Realtime), clock_gettime(ClockId::Boottime));
    let booted_ms = (wall.tv_sec - boot.tv_sec) * 1000 + (wall.tv_nsec - boot.tv_nsec) / 1_000_000;
    let after_ms = ticks_as_ms(process.start);
    u64::try_from(booted_ms).unwrap_or(0).saturating_add(after_ms) / 1000
}

fn ticks_as_ms(ticks: u64) -> u64 {
    ticks.saturating_mul(1000) / rustix::param::clock_ticks_per_second().max(1)
}

fn resource_use(pid: u32, stat: &Stat, status: &[u8], unread: &mut Vec<String>) -> Accounted {
    let io_bytes = match process::io_bytes(pid) {
        Ok(bytes) => Some(bytes),
        Err(ProcessError::Unreadable { source, .. }) => {
            unread.push(format!("what it read and wrote: {}", reason_text(&source)));
            None
        }
        Err(_) => None, // it has ended, and the caller returns that
    };
    let peak_kib: Option<u64> = process::status_field(status, "VmHWM:");
    let peak_memory_bytes = peak_kib.map(|kib| kib.saturating_mul(1024));
    Accounted { cpu_ms: ticks_as_ms(stat.cpu_ticks), io_bytes, peak_memory_bytes }
}

/// Its parents, nearest first.
fn ancestry(process: ProcKey, unread: &mut Vec<String>) -> Vec<Ancestor> {
    let mut found: Vec<Ancestor> = Vec::new();
    let mut below = process;
    loop {
        match parent(below) {
            Ok(None) => return found,
            Ok(Some(_)) if found.len() == ANCESTORS_MAX => {
                unread.push(format!("parents beyond the {ANCESTORS_MAX} nearest"));
                return found;
            }
            Ok(Some((key, stat))) => {
                found.push(ancestor(key, &stat));
                below = key;
            }
            Err(()) => {
                unread.push("all of its parents: they changed meanwhile".to_owned());
                return found;
            }
        }
    }
}

/// The parent of exactly this process. It is read before and after the parent was: when a parent ends, its pid may be
/// reused and its children get another parent.
fn parent(below: ProcKey) -> Result<Option<(ProcKey, Stat)>, ()> {
    let mut pid = living_stat(below).map_err(drop)?.parent;
    for _ in 0..ATTEMPTS {
        if pid == 0 {
            return Ok(None);
        }
        let parent = process::stat(pid);
        let now = living_stat(below).map_err(drop)?.parent;
        if now == pid {
            return parent.map(|stat| Some((stat.key(pid), stat))).map_err(drop);
        }
        pid = now;
    }
    Err(())
}

fn ancestor(process: ProcKey, stat: &Stat) -> Ancestor {
    let exe = fs::read_link(format!("/proc/{}/exe", process.pid)).ok();
    let exe = exe.as_deref().map(Path::as_os_str).map(|path| clean_bytes(path.as_bytes(), WORD_MAX));
    Ancestor { process, uid: process::uid(process.pid).ok(), name: clean(&stat.name, WORD_MAX), exe, ended: false }
}
