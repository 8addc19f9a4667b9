//! Stops one thread of another process just before it makes a certain system call.
//!
//! So a process can be killed at one point of its program, whatever the machine is busy with.

use std::fs;
use std::io;
use std::ptr;

/// A thread that is followed from call to call. All of it from one thread of the test: that is the tracer.
pub struct Traced {
    pid: i32,
    thread: i32,
}

impl Traced {
    /// Follows the thread of this name.
    pub fn follow(pid: u32, name: &str) -> io::Result<Traced> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task"))?.flatten();
        let is_it = |path: &std::path::Path| fs::read_to_string(path.join("comm")).is_ok_and(|own| own.trim() == name);
        let found = tasks.map(|task| task.path()).find(|path| is_it(path));
        let thread = found.and_then(|path| path.file_name()?.to_str()?.parse().ok()).ok_or(io::ErrorKind::NotFound)?;
        let traced = Traced { pid: i32::try_from(pid).map_err(io::Error::other)?, thread };
        traced.ptrace_request(libc::PTRACE_SEIZE, libc::PTRACE_O_TRACESYSGOOD as usize)?;
        traced.ptrace_request(libc::PTRACE_INTERRUPT, 0)?;
        Ok(traced)
    }

    /// Lets it run until it is about to make this call, and kills its process there: the call is not made.
    pub fn kill_before(self, call: libc::c_long) -> io::Result<()> {
        loop {
            let status = self.wait()?;
            if !libc::WIFSTOPPED(status) {
                return Err(io::Error::other("it ended before it made that call"));
            }
            let signal = libc::WSTOPSIG(status);
            if signal == libc::SIGTRAP | 0x80 && self.is_entering(call)? {
                // SAFETY: a signal to a child of the test, which was not waited for yet.
                unsafe { libc::kill(self.pid, libc::SIGKILL) };
                // The process can only be waited for once its traced thread was.
                while !libc::WIFSIGNALED(self.wait()?) {}
                return Ok(());
            }
            // Stops that are the tracer's are not signals to it.
            let is_stop = status >> 16 != 0 || signal == libc::SIGTRAP | 0x80;
            self.ptrace_request(libc::PTRACE_SYSCALL, if is_stop { 0 } else { signal as usize })?;
        }
    }

    fn is_entering(&self, call: libc::c_long) -> io::Result<bool> {
        // SAFETY: plain numbers; all zeros is a valid one.
        let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
        let size = size_of_val(&info);
        // SAFETY: the kernel writes at most `size` bytes to `info`, which lives as long as the call.
        let done = unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, self.thread, size, &raw mut info) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: of a stop at the entry of a call the kernel filled in that part.
        Ok(info.op == libc::PTRACE_SYSCALL_INFO_ENTRY && unsafe { info.u.entry.nr } == call as u64)
    }

    fn ptrace_request(&self, what: libc::c_uint, data: usize) -> io::Result<()> {
        // SAFETY: none of the requests that are made here has the kernel write anything.
        let done = unsafe { libc::ptrace(what, self.thread, ptr::null_mut::<libc::c_void>(), data) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn wait(&self) -> io::Result<libc::c_int> {
        let mut status = 0;
        // SAFETY: the kernel writes to `status`, which lives as long as the call.
        let done = unsafe { libc::waitpid(self.thread, &raw mut status, libc::__WALL) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(status) }
    }
}
