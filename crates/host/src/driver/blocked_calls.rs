//! Sees whether a program that the driver parked waits for its GPU.
//!
//! A thread that calls CUDA while its process is checkpointed waits for a lock of `libcuda.so` until the process is
//! restored (docs/measurements/parked.md). Three files of the kernel show that:
//!
//! ```text
//!   /proc/PID/maps               where the code of libcuda lies
//!   /proc/PID/task/TID/syscall   a futex wait, and the stack pointer
//!   /proc/PID/mem                the top of that stack: a return address into libcuda, if libcuda waits
//! ```
//! The library's own threads wait there all the time, and Sublet's shim calls it from a thread of its own; both are told
//! by their names. The top of a stack may also hold an address that an earlier call left behind. So the answer is a
//! hint, and no proof.
//!
//! Absent on purpose: anything that stops, signals or changes the program.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The driver's library, as the names of its files begin.
const LIBRARY: &str = "libcuda.so";
/// Threads of the library and of the shim, as their names begin: the program does not wait for them.
const OTHER_THREADS: [&str; 3] = ["cuda", "sublet-shim", "sublet-memory"];
/// Bytes of a stack that are searched. Below the library's own frame there are only two small ones of the C library.
const STACK_BYTES: usize = 1024;

/// Where the code of a library lies in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LibraryCode(Vec<Range<u64>>);

impl LibraryCode {
    /// Where the driver's library lies in a process; `None` if that cannot be read, or it has none.
    pub(super) fn of_driver(pid: u32) -> Option<LibraryCode> {
        LibraryCode::of(pid, LIBRARY)
    }

    fn of(pid: u32, library: &str) -> Option<LibraryCode> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
        let ranges: Vec<Range<u64>> = maps.lines().filter_map(|line| code_range(line, library)).collect();
        (!ranges.is_empty()).then_some(LibraryCode(ranges))
    }

    /// True if a thread of the program waits for a lock inside this code. False if that
    /// cannot be read.
    pub(super) fn has_waiting_caller(&self, pid: u32) -> bool {
        let Ok(memory) = File::open(format!("/proc/{pid}/mem")) else { return false };
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
        threads.flatten().any(|thread| self.is_waiting_caller(&thread.path(), &memory))
    }

    fn is_waiting_caller(&self, thread: &Path, memory: &File) -> bool {
        let read = |name: &str| fs::read_to_string(thread.join(name)).unwrap_or_default();
        let name = read("comm");
        if OTHER_THREADS.iter().any(|other| name.starts_with(other)) {
            return false;
        }
        let Some(stack) = stack_of_futex_wait(&read("syscall")) else { return false };
        let mut top = [0; STACK_BYTES];
        // The stack may end before.
        let length = memory.read_at(&mut top, stack).unwrap_or(0);
        let (words, _) = top[..length].as_chunks::<8>();
        words.iter().map(|word| u64::from_le_bytes(*word)).any(|word| self.0.iter().any(|range| range.contains(&word)))
    }
}

/// The addresses of a line of `maps`, if the library's code is mapped there.
fn code_range(line: &str, library: &str) -> Option<Range<u64>> {
    // `7f0c9a400000-7f0c9a9c4000 r-xp 00200000 fd:00 131 /usr/lib/libcuda.so.580.159.04`
    let mut fields = line.split_ascii_whitespace();
    let (addresses, access, path) = (fields.next()?, fields.next()?, fields.nth(3)?);
    let file = path.rsplit('/').next()?;
    if !access.contains('x') || !file.starts_with(library) {
        return None;
    }
    let (start, end) = addresses.split_once('-')?;
    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}

/// The stack pointer of a thread that waits for a futex; `None` if it does something else.
fn stack_of_futex_wait(syscall: &str) -> Option<u64> {
    // `202 0x7f… 0x189 0x0 0x0 0x0 0xffffffff 0x7ffc… 0x7f…`: the number, six arguments, stack pointer, program counter.
    let fields: Vec<&str> = syscall.split_ascii_whitespace().collect();
    let [number, .., stack, _] = fields[..] else { return None };
    let is_futex = fields.len() == 9 && number.parse() == Ok(libc::SYS_futex);
    u64::from_str_radix(stack.strip_prefix("0x")?, 16).ok().filter(|_| is_futex)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn code_of_the_library_is_found_among_mappings() {
        let line = "7f0c9a400000-7f0c9a9c4000 r-xp 00200000 fd:00 131    /usr/lib/libcuda.so.580.159.04";
        assert_eq!(code_range(line, LIBRARY), Some(0x7f0c9a400000..0x7f0c9a9c4000));
        assert_eq!(code_range(&line.replace("r-xp", "rw-p"), LIBRARY), None);
        assert_eq!(code_range(&line.replace("libcuda", "libcudart"), LIBRARY), None);
        assert_eq!(code_range("7ffd3a1f0000-7ffd3a1f2000 r-xp 00000000 00:00 0 [vdso]", LIBRARY), None);
        assert_eq!(code_range("7f0c9a400000-7f0c9a9c4000 rw-p 00000000 00:00 0", LIBRARY), None);
    }

    #[test]
    fn only_a_futex_wait_has_a_stack_to_search() {
        let waits = "202 0x55d5e02d574c 0x189 0x3 0x0 0x0 0xffffffff 0x7ffe1c9a2b10 0x7f12a4070d17\n";
        assert_eq!(stack_of_futex_wait(waits), Some(0x7ffe1c9a2b10));
        let reads = "0 0x0 0x7ffe1c9a2c00 0x400 0x0 0x0 0x0 0x7ffe1c9a2b10 0x7f12a40f3a9d\n";
        assert_eq!(stack_of_futex_wait(reads), None);
        for other in ["running\n", "-1 0x7ffe1c9a2b10 0x7f12a4070d17\n", ""] {
            assert_eq!(stack_of_futex_wait(other), None);
        }
    }

    /// Each line of its input is its next step: it waits for a lock in the C library, in a thread with that name.
    const WAITER: &str = r#"
import ctypes, sys, threading
libc = ctypes.CDLL(None)
def wait(name):
    libc.prctl(15, name.encode())
    print("waits", flush=True)
    held.acquire()
held = threading.Lock()
held.acquire()
for line in sys.stdin:
    threading.Thread(target=wait, args=(line.strip(),), daemon=True).start()
"#;

    #[test]
    fn a_thread_of_the_program_that_waits_inside_the_library_is_seen_and_no_other() {
        let mut program = Command::new("python3")
            .args(["-c", WAITER])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let mut input = program.stdin.take().expect("its input");
        let mut output = BufReader::new(program.stdout.take().expect("its output"));
        let mut start = |name: &str| {
            writeln!(input, "{name}").expect("it reads");
            output.read_line(&mut String::new()).expect("it answers");
        };
        start("cuda-EvtHandlr");
        let code = LibraryCode::of(program.id(), "libc.so").expect("the C library is mapped");
        start("sublet-shim");
        // Python's own lock makes a thread wait now and then; then all of them wait or read.
        let mut until = |is_seen: bool| {
            while code.has_waiting_caller(program.id()) != is_seen {
                assert!(program.try_wait().expect("its state").is_none(), "it ended");
                std::thread::yield_now();
            }
        };
        until(false);
        start("worker");
        until(true);
        program.kill().expect("it ends");
        program.wait().expect("it ended");
    }
}
