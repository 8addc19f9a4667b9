//! A terminal of its own for a program: what others write there is read from its other end.

use crate::{LONG, until};
use rustix::fs::{Gid, Mode, OFlags, Uid, chmod, chown, fcntl_setfl, open};
use rustix::io::{Errno, read, write};
use rustix::process::{getpgrp, ioctl_tiocsctty, setsid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// A terminal; nothing is read from it but by [`Screen::screen_text`].
pub struct Screen {
    master: OwnedFd,
    /// Kept open: without one, reading the other end fails.
    slave: OwnedFd,
    path: PathBuf,
    shown: RefCell<Vec<u8>>,
}

impl Screen {
    /// A terminal that belongs to this process's user, and that others may write to.
    pub fn open() -> Screen {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("a terminal can be unlocked");
        let name = ptsname(&master, Vec::new()).expect("a terminal has a name");
        let path = PathBuf::from(name.into_string().expect("a plain name"));
        let slave = open(&path, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).expect("a terminal");
        fcntl_setfl(&master, OFlags::NONBLOCK).expect("a descriptor's flags can be set");
        let screen = Screen { master, slave, path, shown: RefCell::default() };
        screen.belongs_to(None, 0o620)
    }

    /// The same with another owner, as root can set it, and another mode: `0o600` is `mesg n`.
    pub fn belongs_to(self, uid: Option<u32>, mode: u32) -> Screen {
        if let Some(uid) = uid {
            chown(&self.path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid))).expect("root can give it away");
        }
        chmod(&self.path, Mode::from_raw_mode(mode)).expect("the mode of an own terminal can be set");
        self
    }

    /// Makes it the controlling terminal of a command that was not started yet.
    pub fn control(&self, command: &mut Command) {
        let slave = self.slave.as_fd().try_clone_to_owned().expect("a descriptor");
        // The leader of a group cannot begin a session; it leads its own group afterwards all the same.
        command.process_group(getpgrp().as_raw_nonzero().get());
        let take = move || {
            setsid()?;
            Ok(ioctl_tiocsctty(&slave)?)
        };
        // SAFETY: between fork and exec only system calls are made; nothing is allocated or locked.
        unsafe { command.pre_exec(take) };
    }

    /// Fills the terminal until it takes nothing more.
    pub fn fill(&self) {
        let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = open(&self.path, flags, Mode::empty()).expect("a terminal");
        // The kernel carries what was written to the other end by itself: it is full when it stays so.
        let mut refused = 0;
        while refused < 20 {
            match write(&file, b"x") {
                Ok(_) => refused = 0,
                Err(Errno::AGAIN) => {
                    refused += 1;
                    thread::sleep(Duration::from_millis(10));
                }
                Err(error) => panic!("a terminal cannot be filled: {error}"),
            }
        }
    }

    /// All that was written to it so far.
    pub fn screen_text(&self) -> String {
        let (mut shown, mut piece) = (self.shown.borrow_mut(), [0; 4096]);
        loop {
            match read(&self.master, &mut piece) {
                Ok(0) | Err(Errno::AGAIN) => break,
                Ok(count) => shown.extend_from_slice(&piece[..count]),
                Err(error) => panic!("a terminal cannot be read: {error}"),
            }
        }
        String::from_utf8_lossy(&shown).into_owned()
    }

    /// The first line on it with these words, once it is there.
    pub fn await_line(&self, words: &str) -> String {
        until(&format!("`{words}` is on the terminal"), LONG, || {
            let shown = self.screen_text();
            let found = shown.lines().find(|line| line.contains(words)).map(|line| line.trim_end().to_owned());
            found.ok_or(shown)
        })
    }
}
