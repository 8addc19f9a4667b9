//! Writes lines to the terminal of a process, as `write` does; and reads when input was last read from it.
//!
//! A line is written only to a terminal that belongs to the user of the process, and only if that user lets others
//! write to it (`mesg y`) or is the user of this program. It never waits: a terminal that takes nothing at once loses
//! the line. Of the line only printable ASCII is written, so that no name of a program moves a cursor.
//!
//! Absent: terminals of containers that have their own `/dev/pts`, where the same number is another terminal; how often
//! a terminal gets a line (the daemon's).

use crate::process;
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, major, makedev, minor, open};
use rustix::process::geteuid;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::SystemTime;
use sublet_core::ids::ProcKey;

/// Major numbers of pseudo-terminals, and of consoles.
const PTS: std::ops::RangeInclusive<u32> = 136..=143;
const CONSOLES: u32 = 4;
/// The first minor numbers are consoles; serial lines follow.
const CONSOLES_MAX: u32 = 64;
/// A line is cut to this many characters: a handful of rows.
const LINE_MAX: usize = 480;

/// The controlling terminal of a process, which may have ended since.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessTerminal {
    path: PathBuf,
    device: u64,
    uid: u32,
}

impl ProcessTerminal {
    /// The controlling terminal of a process, or why there is none that could be written to.
    pub fn of(process: ProcKey) -> Result<ProcessTerminal, &'static str> {
        let stat = process::stat(process.pid).map_err(|_| "the process is gone")?;
        if stat.start != process.start {
            return Err("the process is gone");
        }
        let uid = process::uid(process.pid).map_err(|_| "the process is gone")?;
        let (path, device) = terminal(stat.terminal).ok_or("it has no terminal")?;
        if path.starts_with("/dev/pts") && !has_our_terminals(process.pid) {
            return Err("its terminal is in a container");
        }
        Ok(ProcessTerminal { path, device, uid })
    }

    /// Writes a line, or says why it was not written.
    pub fn write_line(&self, line: &str) -> Result<(), &'static str> {
        let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = open(&self.path, flags, Mode::empty()).map_err(|_| "the terminal cannot be opened")?;
        let found = fstat(&file).map_err(|_| "the terminal cannot be opened")?;
        self.may_write(&found, geteuid().as_raw())?;
        let line = format!("\r\n{}\r\n", printable(line));
        rustix::io::write(&file, line.as_bytes()).map(drop).map_err(|_| "the terminal takes nothing now")
    }

    fn may_write(&self, found: &Stat, writer: u32) -> Result<(), &'static str> {
        let is_it = FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice && found.st_rdev == self.device;
        if !is_it || found.st_uid != self.uid {
            return Err("the terminal belongs to another user");
        }
        // Permission that `mesg n` removes.
        if self.uid != writer && !Mode::from_raw_mode(found.st_mode).contains(Mode::WGRP) {
            return Err("its user lets no other user write there");
        }
        Ok(())
    }
}

/// Only what every terminal shows unchanged: a byte beyond ASCII may be a control character to one that expects
/// Latin-1.
fn printable(line: &str) -> String {
    line.chars().take(LINE_MAX).map(|c| if (' '..='~').contains(&c) { c } else { '?' }).collect()
}

/// True if `/dev/pts` of a process is the one of this program: only then a number means the same terminal.
fn has_our_terminals(pid: u32) -> bool {
    let mounted = |path: String| fs::read_to_string(path).ok().and_then(|mounts| terminals_in(&mounts));
    let ours = mounted("/proc/self/mountinfo".to_owned());
    ours.is_some() && mounted(format!("/proc/{pid}/mountinfo")) == ours
}

/// The device number (`0:25`) of the file system that a `mountinfo` shows at `/dev/pts`.
fn terminals_in(mounts: &str) -> Option<String> {
    // `36 25 0:31 / /dev/pts rw,relatime shared:4 - devpts devpts rw`; of several, the last covers the others.
    let at = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(2);
        let (device, point) = (place.next()?, place.nth(1)?);
        (point == "/dev/pts" && kind.starts_with("devpts ")).then(|| device.to_owned())
    };
    mounts.lines().rev().find_map(at)
}

/// When input was last read from the terminal of a process, to within 8 s; `None` if the process is not in the
/// foreground there, or has no terminal that can be found.
pub(crate) fn last_input(pid: u32, stat: &process::Stat) -> Option<SystemTime> {
    let (path, device) = terminal(stat.terminal).filter(|_| stat.group == stat.foreground)?;
    if path.starts_with("/dev/pts") && !has_our_terminals(pid) {
        return None;
    }
    let found = fs::metadata(path).ok()?;
    found.accessed().ok().filter(|_| found.rdev() == device)
}

/// The file of a terminal, from field 7 of `/proc/PID/stat`, and its number.
fn terminal(number: u64) -> Option<(PathBuf, u64)> {
    let number = u32::try_from(number).ok().filter(|number| *number != 0)?;
    // As the kernel packs it: the minor's lower byte, the major, and the rest of the minor.
    let (kind, which) = ((number >> 8) & 0xfff, (number & 0xff) | ((number >> 12) & 0xf_ff00));
    let device = makedev(kind, which);
    debug_assert_eq!((major(device), minor(device)), (kind, which));
    let path = match kind {
        kind if PTS.contains(&kind) => format!("/dev/pts/{}", (kind - PTS.start()) * 256 + which),
        CONSOLES if which < CONSOLES_MAX => format!("/dev/tty{which}"),
        _ => return None,
    };
    Some((path.into(), device))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    /// A program on a terminal of its own, with all output written to a file.
    struct Screen {
        child: Child,
        log: PathBuf,
        pid_file: PathBuf,
    }

    impl Screen {
        fn with(setting: &str, name: &str) -> (Screen, ProcKey) {
            let dir = std::env::temp_dir();
            let (log, pid_file) = (
                dir.join(format!("{name}-{}.log", std::process::id())),
                dir.join(format!("{name}-{}.pid", std::process::id())),
            );
            let _ = (fs::remove_file(&log), fs::remove_file(&pid_file));
            let inside = format!("chmod {setting} $(tty); echo $$ > {}; exec sleep 60", pid_file.display());
            let mut command = Command::new("script");
            command.args(["-qefc", &inside]).arg(&log).stdin(Stdio::null()).stdout(Stdio::null());
            let child = command.spawn().unwrap();
            let pid = until(|| fs::read_to_string(&pid_file).ok()?.trim().parse::<u32>().ok());
            let key = until(|| process::stat(pid).ok().filter(|stat| stat.name == "sleep").map(|stat| stat.key(pid)));
            (Screen { child, log, pid_file }, key)
        }
    }

    impl Drop for Screen {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
            let _ = (fs::remove_file(&self.log), fs::remove_file(&self.pid_file));
        }
    }

    fn until<T>(found: impl Fn() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            match found() {
                Some(found) => return found,
                None if began.elapsed() > Duration::from_secs(20) => panic!("nothing after 20 s"),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    #[test]
    fn a_line_reaches_the_terminal_of_a_process_and_moves_no_cursor() {
        let (screen, process) = Screen::with("g+w", "sublet-terminal-open");
        let terminal = ProcessTerminal::of(process).unwrap();
        terminal.write_line("process 7 uses GPU 0\x1b[2J\u{9b}2J without a lease").unwrap();
        let seen = until(|| fs::read_to_string(&screen.log).ok().filter(|text| text.contains("without a lease")));
        assert!(seen.contains("process 7 uses GPU 0?[2J?2J without a lease") && !seen.contains('\x1b'), "{seen:?}");
    }

    #[test]
    fn a_terminal_of_another_user_or_closed_by_its_user_gets_nothing() {
        let (_screen, process) = Screen::with("g-w", "sublet-terminal-closed");
        let terminal = ProcessTerminal::of(process).unwrap();
        let found = rustix::fs::stat(&terminal.path).unwrap();
        let own = terminal.uid;
        assert_eq!(terminal.may_write(&found, own), Ok(()), "its own user");
        assert_eq!(terminal.may_write(&found, own + 1), Err("its user lets no other user write there"));
        let mut open = found;
        open.st_mode |= Mode::WGRP.bits();
        assert_eq!(terminal.may_write(&open, own + 1), Ok(()));
        let another = ProcessTerminal { uid: own + 1, ..terminal.clone() };
        assert_eq!(another.may_write(&open, own + 1), Err("the terminal belongs to another user"));
        let other = ProcKey { start: process.start + 1, ..process };
        assert_eq!(ProcessTerminal::of(other), Err("the process is gone"));
    }

    #[test]
    fn the_terminals_of_a_mount_namespace_are_those_mounted_last() {
        let mounts = "22 1 0:5 / /dev rw - devtmpfs udev rw\n\
                      36 22 0:25 / /dev/pts rw,relatime shared:4 - devpts devpts rw,gid=5\n\
                      40 22 0:31 / /dev/pts rw - devpts devpts rw\n\
                      41 22 0:32 / /srv/dev/pts rw - devpts devpts rw\n";
        assert_eq!(terminals_in(mounts).as_deref(), Some("0:31"));
        assert_eq!(terminals_in("22 1 0:5 / /dev rw - devtmpfs udev rw\n"), None);
        assert!(has_our_terminals(std::process::id()));
    }

    #[test]
    fn numbers_of_terminals_are_read_as_the_kernel_packs_them() {
        let path = |number: u64| terminal(number).map(|(path, _)| path.display().to_string());
        assert_eq!(path(34816).as_deref(), Some("/dev/pts/0"));
        assert_eq!(path(34816 + 7).as_deref(), Some("/dev/pts/7"));
        assert_eq!(path(0x88_00 + 0x10_00_00 + 1).as_deref(), Some("/dev/pts/257"));
        assert_eq!(path(1025).as_deref(), Some("/dev/tty1"));
        assert_eq!((path(0), path(1088)), (None, None));
    }
}
