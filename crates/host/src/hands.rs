//! Signals to processes, each to the one that was meant or to nobody.
//!
//! Who gets one is decided elsewhere, and on the record before this is called.

use crate::process::{self, ProcessError};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;
use sublet_core::ids::ProcKey;

/// Sends a signal to exactly this process. The descriptor is opened first and the process looked at
/// through its number afterwards: if that is another by now, the descriptor may be of either, and
/// nobody is signalled.
pub fn signal(process: ProcKey, number: u8) -> Result<(), ProcessError> {
    let pid = process.pid;
    let refused = |source: io::Error| ProcessError::of(pid, source);
    let odd = || refused(io::ErrorKind::InvalidInput.into());
    let signal = Signal::from_named_raw(number.into()).ok_or_else(odd)?;
    let raw = i32::try_from(pid).ok().filter(|pid| *pid > 1).and_then(Pid::from_raw).ok_or_else(odd)?;
    if raw.as_raw_nonzero().get() as u32 == std::process::id() {
        return Err(odd());
    }
    let descriptor = pidfd_open(raw, PidfdFlags::empty()).map_err(|error| refused(error.into()))?;
    if process::identify(pid)?.key != process {
        return Err(ProcessError::Gone { pid });
    }
    pidfd_send_signal(descriptor, signal).map_err(|error| refused(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command};

    fn sleeper() -> (Child, ProcKey) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let key = process::identify(child.id()).unwrap().key;
        (child, key)
    }

    #[test]
    fn a_signal_reaches_the_process_that_is_meant() {
        let (mut child, key) = sleeper();
        signal(key, 15).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(15));
        assert!(signal(key, 15).unwrap_err().is_gone());
    }

    #[test]
    fn another_process_with_the_same_number_gets_none() {
        let (mut child, key) = sleeper();
        let earlier = ProcKey { start: key.start - 1, ..key };
        assert!(signal(earlier, 9).unwrap_err().is_gone());
        assert_eq!(child.try_wait().unwrap(), None);
        signal(key, 9).unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn neither_the_first_process_nor_this_one_gets_any() {
        for pid in [0, 1, std::process::id()] {
            let start = process::stat(pid).map_or(0, |stat| stat.key(pid).start);
            assert!(!signal(ProcKey { pid, start }, 15).unwrap_err().is_gone(), "{pid}");
        }
    }
}
