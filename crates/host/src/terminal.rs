//! A line on the terminal of whoever started a process, as `write` would put it there.
//!
//! Only where its owner lets others write (`mesg y`), only on a terminal that is its own, and never for longer than
//! the terminal takes it at once. Who cannot be told so is told by `sublet` and the trail all the same.
//!
//! Absent: whoever has no terminal, as a service; and whoever has one in a container, where the same number is
//! another terminal.

use crate::process::{self, Stat};
use rustix::fs::{FileType, Mode, OFlags, fstat, major, makedev, minor, open};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::SystemTime;
use sublet_core::ids::ProcKey;

/// Numbers that the kernel gives to terminals of windows and connections, and to consoles.
const PTS: std::ops::RangeInclusive<u32> = 136..=143;
const CONSOLES: u32 = 4;
/// Consoles come first there, and serial lines behind them.
const CONSOLES_MAX: u32 = 64;

/// Writes a line to the terminal of a process. Says why it did not, for who wants to know.
pub fn tell(to: ProcKey, line: &str) -> Result<(), &'static str> {
    let stat = process::stat(to.pid).map_err(|_| "it is gone")?;
    if stat.start != to.start {
        return Err("it is gone");
    }
    let uid = process::uid(to.pid).map_err(|_| "it is gone")?;
    let here = fs::read_link("/proc/self/ns/mnt").map_err(|_| "nobody knows where its terminal is")?;
    if fs::read_link(format!("/proc/{}/ns/mnt", to.pid)).ok() != Some(here) {
        return Err("its terminal is elsewhere");
    }
    let (path, device) = terminal(stat.terminal).ok_or("it has no terminal")?;
    let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty()).map_err(|_| "its terminal cannot be opened")?;
    let found = fstat(&file).map_err(|_| "its terminal cannot be opened")?;
    let is_it = FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice && found.st_rdev == device;
    if !is_it || found.st_uid != uid {
        return Err("its terminal is somebody else's");
    }
    if !Mode::from_raw_mode(found.st_mode).contains(Mode::WGRP) {
        return Err("its owner lets nobody write there");
    }
    let line: String = line.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    rustix::io::write(&file, format!("\r\n{line}\r\n").as_bytes()).map(drop).map_err(|_| "its terminal takes nothing")
}

/// When input was last read from the terminal of a process, to within 8 s; `None` if the process is not in the foreground
/// there, or has no terminal that can be found.
pub(crate) fn last_input(pid: u32, stat: &Stat) -> Option<SystemTime> {
    let (path, device) = terminal(stat.terminal).filter(|_| stat.group == stat.foreground)?;
    let here = fs::read_link("/proc/self/ns/mnt").ok()?;
    if fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()? != here {
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

    /// A program on a terminal of its own, of which all is written to a file.
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
        tell(process, "process 7 uses card 0\x1b[2J without a lease").unwrap();
        let seen = until(|| fs::read_to_string(&screen.log).ok().filter(|text| text.contains("without a lease")));
        assert!(seen.contains("process 7 uses card 0?[2J without a lease") && !seen.contains('\x1b'), "{seen:?}");
    }

    #[test]
    fn who_lets_nobody_write_is_left_alone() {
        let (screen, process) = Screen::with("g-w", "sublet-terminal-closed");
        assert_eq!(tell(process, "a line"), Err("its owner lets nobody write there"));
        let other = ProcKey { start: process.start + 1, ..process };
        assert_eq!(tell(other, "a line"), Err("it is gone"));
        assert!(!fs::read_to_string(&screen.log).unwrap_or_default().contains("a line"));
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
