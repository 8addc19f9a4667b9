//! A terminal with a program of its own: its session's leader, as in a window that was just opened.

use crate::wait::{LONG, until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::{File, OpenOptions};
use std::io::{Error, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// How long the terminal is kept from others while it is read.
const LOCK_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// The program is killed when this is dropped.
pub struct ProgramTerminal {
    /// The terminal's own command.
    pub child: Child,
    shared: Arc<Mutex<TerminalOutput>>,
}

struct TerminalOutput {
    /// `None`: the window was closed.
    master: Option<File>,
    shown: Vec<u8>,
}

impl ProgramTerminal {
    /// Opens a terminal and starts a command as the leader of its session.
    pub fn open(command: Command) -> ProgramTerminal {
        ProgramTerminal::open_sized(command, 0, 0)
    }

    /// The same with this many columns and rows.
    pub fn open_sized(mut command: Command, columns: u16, rows: u16) -> ProgramTerminal {
        let (master, slave) = pair();
        let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&slave, size).expect("a terminal has a size");
        let again = || Stdio::from(slave.try_clone().expect("a file can be shared"));
        command.stdin(again()).stdout(again()).stderr(again());
        let take_terminal = || {
            rustix::process::setsid()?;
            // SAFETY: descriptor 0 is the terminal; the call takes no pointer.
            if unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } == 0 { Ok(()) } else { Err(Error::last_os_error()) }
        };
        // SAFETY: between fork and exec only system calls are made; nothing is allocated or locked.
        unsafe { command.pre_exec(take_terminal) };
        let child = command.spawn().expect("a program can be started");
        let shared = Arc::new(Mutex::new(TerminalOutput { master: Some(master), shown: Vec::new() }));
        let reads = Arc::clone(&shared);
        thread::spawn(move || while lock(&reads).read_available() {});
        ProgramTerminal { child, shared }
    }

    /// All that it has shown.
    pub fn screen_text(&self) -> String {
        String::from_utf8_lossy(&lock(&self.shared).shown).into_owned()
    }

    /// What is on it, as a person sees it: a line that was written again shows its last text, and colours are left out.
    pub fn text(&self) -> String {
        as_seen(&self.screen_text())
    }

    /// Waits until it shows this.
    pub fn await_screen_text(&self, words: &str) {
        until(&format!("the terminal shows `{words}`"), LONG, || {
            let shown = self.screen_text();
            if shown.contains(words) { Ok(()) } else { Err(shown) }
        });
    }

    /// Types a line.
    pub fn type_line(&self, line: &str) {
        let mut shared = lock(&self.shared);
        let master = shared.master.as_mut().expect("the window is open");
        master.write_all(format!("{line}\n").as_bytes()).expect("a terminal takes a line");
    }

    /// Closes the window: the kernel hangs up.
    pub fn close(&self) {
        drop(lock(&self.shared).master.take());
    }

    /// Waits for its command's end.
    pub fn ended(&mut self) -> ExitStatus {
        let child = &mut self.child;
        until("the terminal's command ends", LONG, || child.try_wait().expect("an own child").ok_or(()))
    }
}

impl TerminalOutput {
    /// Reads what is there; false if the window was closed.
    fn read_available(&mut self) -> bool {
        let Some(master) = &mut self.master else { return false };
        let mut fds = [PollFd::new(master, PollFlags::IN)];
        if poll(&mut fds, Some(&LOCK_TIME)).is_ok_and(|ready| ready > 0) {
            let mut bytes = [0; 4096];
            // While no program has the other end open there is nothing to read.
            let count = master.read(&mut bytes).unwrap_or(0);
            self.shown.extend_from_slice(&bytes[..count]);
        }
        true
    }
}

impl Drop for ProgramTerminal {
    fn drop(&mut self) {
        // It may have ended, which is what is wanted.
        let _ = kill_process(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
        self.close();
    }
}

fn lock(shared: &Mutex<TerminalOutput>) -> MutexGuard<'_, TerminalOutput> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Text with carriage returns, erased lines and colours, as it looks on a terminal.
fn as_seen(raw: &str) -> String {
    let (mut lines, mut column) = (vec![Vec::new()], 0);
    let mut characters = raw.chars();
    while let Some(c) = characters.next() {
        let Some(line) = lines.last_mut() else { break };
        match c {
            '\r' => column = 0,
            '\n' => {
                lines.push(Vec::new());
                column = 0;
            }
            '\x1b' => {
                if characters.by_ref().find(char::is_ascii_alphabetic) == Some('K') {
                    line.truncate(column);
                }
            }
            c => {
                line.resize(line.len().max(column + 1), ' ');
                line[column] = c;
                column += 1;
            }
        }
    }
    let lines: Vec<String> = lines.into_iter().map(|line| line.into_iter().collect()).collect();
    lines.join("\n")
}

fn pair() -> (File, File) {
    let mut options = OpenOptions::new();
    let master = options.read(true).write(true).custom_flags(libc::O_NOCTTY).open("/dev/ptmx").expect("a terminal");
    let unlocked = 0;
    // SAFETY: the number lives until the call returns, which reads it.
    let opened = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlocked) };
    assert_eq!(opened, 0, "{}", Error::last_os_error());
    // SAFETY: the call takes no pointer.
    let slave =
        unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC) };
    assert!(slave >= 0, "{}", Error::last_os_error());
    // SAFETY: the descriptor was just made, and nothing else has it.
    (master, unsafe { File::from_raw_fd(slave) })
}
