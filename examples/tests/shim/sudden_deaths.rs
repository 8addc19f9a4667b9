//! Deaths at the worst moments: programs and daemons killed at every stage, threads and children that end.

use crate::cc;
use crate::daemon::{Daemon, Line, mapped, page};
use crate::parked::{HOLD, MIB, SOON, end_with_sigterm, holder};
use crate::pools::python;
use crate::soft::{Child, Soft, succeeded, wait_until};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::process::Stdio;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use sublet_shim::message::ShimOrder;
use sublet_softgpu::state::{CONTEXT_BYTES, IDLE_BYTES};

/// Copies take so long that something can happen meanwhile: 64 MiB a quarter of a second.
const SLOWLY: u64 = 256 << 20;
/// From one stage to the next: the last is when all is done.
const STEP: Duration = Duration::from_millis(40);

fn set_slow_copies(soft: &Soft, is_slow: bool) {
    soft.state.gpus()[0].copy_bytes_per_s.store(if is_slow { SLOWLY } else { 0 }, SeqCst);
}

#[test]
fn a_holder_killed_at_any_stage_of_a_park_or_a_resume_leaves_nothing() {
    for stage in 0..20 {
        let soft = Soft::new("1x1GiB");
        let daemon = Daemon::new(&soft);
        let (mut child, mut line, _out) = holder(&soft, &daemon, "64MiB", None);
        let is_resume = stage % 2 == 1;
        if is_resume {
            assert_eq!(line.park(SOON), Some(Ok(64 * MIB)));
        }
        set_slow_copies(&soft, true);
        line.send(
            &if is_resume {
                ShimOrder::Resume { id: 9 }
            } else {
                ShimOrder::Park { id: 9, deadline_ms: 20_000, most: None }
            },
            None,
        );
        std::thread::sleep(STEP * (stage / 2));
        child.kill();
        assert!(soft.is_idle(), "stage {stage}");
    }
}

/// A daemon that is there again: the shim finds it.
fn restart_daemon(soft: &Soft, daemon: Daemon) -> (Daemon, Line) {
    drop(daemon);
    let daemon = Daemon::new(soft);
    let line = daemon.accept(None);
    (daemon, line)
}

#[test]
fn a_daemon_that_dies_at_any_stage_leaves_a_program_that_can_be_used() {
    for stage in 0..12 {
        let soft = Soft::new("1x1GiB");
        let daemon = Daemon::new(&soft);
        let (mut child, mut line, _out) = holder(&soft, &daemon, "64MiB", None);
        let is_resume = stage % 2 == 1;
        if is_resume {
            assert_eq!(line.park(SOON), Some(Ok(64 * MIB)));
        }
        set_slow_copies(&soft, true);
        line.send(
            &if is_resume {
                ShimOrder::Resume { id: 9 }
            } else {
                ShimOrder::Park { id: 9, deadline_ms: 20_000, most: None }
            },
            None,
        );
        std::thread::sleep(STEP * 2 * (stage / 2));
        drop(line);
        let (_daemon, mut line) = restart_daemon(&soft, daemon);
        set_slow_copies(&soft, false);
        // What was begun is brought to its end before the new daemon is greeted.
        assert_eq!(line.was_parked, !is_resume, "stage {stage}");
        if line.was_parked {
            assert_eq!(soft.state.used(0), IDLE_BYTES + CONTEXT_BYTES);
            assert_eq!(line.resume(), Some(Ok(64 * MIB)));
        }
        assert_eq!(line.park(SOON), Some(Ok(64 * MIB)));
        assert_eq!(line.resume(), Some(Ok(64 * MIB)));
        end_with_sigterm(line.pid);
        assert!(child.0.wait().expect("an own child").success(), "every byte is as it was");
    }
}

#[test]
fn a_program_whose_daemon_is_gone_prints_what_it_waits_for() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let script = "
from cuda import *
start()
at = alloc(8 << 20)
put(at, [5])
print('ready', flush=True)
sys.stdin.readline()
print(get(at, 1), flush=True)
";
    let mut command = python(&soft, &["-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = daemon.with_shim(&mut command).spawn().expect("python3 is there");
    let mut line = daemon.accept(None);
    let mut out = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
    assert_eq!(out.next().as_deref(), Some("ready"));
    assert_eq!(line.park(SOON), Some(Ok(8 * MIB)));
    drop(line);
    drop(daemon);
    let mut input = child.stdin.take().expect("its input");
    input.write_all(b"go\n").expect("it listens");
    let mut err = BufReader::new(child.stderr.take().expect("its errors"));
    let mut said = String::new();
    while !said.contains("goes on when the service is back") {
        assert!(err.read_line(&mut said).expect("a line") > 0, "{said}");
    }
    let daemon = Daemon::new(&soft);
    let mut line = daemon.accept(None);
    assert!(line.was_parked);
    line.wait_until_wanted();
    assert_eq!(line.resume(), Some(Ok(8 * MIB)));
    assert_eq!(out.next().as_deref(), Some("[5]"));
    drop(input);
    assert!(child.wait().expect("an own child").success());
    err.read_to_string(&mut said).expect("the rest");
    assert_eq!(said.matches("goes on when").count(), 1, "{said}");
}

#[test]
fn a_signal_that_comes_when_the_memory_is_back_does_not_fail_the_call_that_waited() {
    for _ in 0..6 {
        let soft = Soft::new("1x1GiB");
        let daemon = Daemon::new(&soft);
        let (mut child, mut line, _out) = holder(&soft, &daemon, "8MiB", None);
        assert_eq!(line.park(SOON), Some(Ok(8 * MIB)));
        line.wait_until_wanted();
        assert_eq!(line.resume(), Some(Ok(8 * MIB)));
        end_with_sigterm(line.pid);
        assert!(child.0.wait().expect("an own child").success(), "every byte is as it was");
    }
}

#[test]
fn a_thread_that_frees_its_memory_when_it_ends_frees_it() {
    let soft = Soft::new("1x1GiB");
    let ending = cc::program(&soft, "ending.c", &["-L", ".", "-l:libcuda.so.1", "-lpthread"]);
    assert_eq!(soft.run(&ending, &[]), "freed 0 less 0\n");
    let daemon = Daemon::new(&soft);
    let output = daemon.with_shim(&mut soft.program(&ending, &[])).output().expect("the program is there");
    assert_eq!(succeeded(&output), "freed 0 less 0\n");
}

#[test]
fn a_forked_child_does_not_keep_its_parents_line_and_can_do_what_it_likes() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let script = r#"
import os
from cuda import *
start()
at = alloc(8 << 20)
child = os.fork()
if child == 0:
    # As with the driver alone: nothing is initialised here.
    count = C.CDLL('libcuda.so.1').cuDeviceGetCount(BY(INT()))
    os.write(1, f'child {call("cuCtxSynchronize")} {count}\n'.encode())
    os.system('true')
    sys.stdin.readline()
    os._exit(0)
os.write(1, f'parent {call("cuMemFree_v2", at)}\n'.encode())
os._exit(0)
"#;
    let mut command = python(&soft, &["-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = daemon.with_shim(&mut command).spawn().expect("python3 is there");
    let mut line = daemon.accept(None);
    let out = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
    let mut said: Vec<String> = out.take(2).collect();
    said.sort();
    assert_eq!(said, ["child 3 3", "parent 0"]);
    assert!(child.wait().expect("an own child").success());
    // The child still waits for a word, but the line is closed.
    assert_eq!(line.park(SOON), None);
    drop(child.stdin.take());
}

#[test]
fn a_parked_program_may_end_without_its_memory() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let script = "
from cuda import *
context = start()
small, large, of_pool = alloc(4096), alloc(8 << 20), U64()
stream, event = got(PTR, 'cuStreamCreate', 1), got(PTR, 'cuEventCreate', 0)
must('cuMemAllocAsync', BY(of_pool), SIZE(8 << 20), stream)
must('cuStreamSynchronize', stream)
code, host = module(), PTR()
must('cuMemHostAlloc', BY(host), SIZE(4096), 0)
print('ready', flush=True)
sys.stdin.readline()
free, total = SIZE(), SIZE()
print('away', call('cuMemGetInfo_v2', BY(free), BY(total)), call('cuStreamQuery', stream), call('cuEventQuery', event))
print('given back', call('cuMemFreeAsync', of_pool, stream), call('cuMemFree_v2', small), call('cuMemFree_v2', small),
      call('cuEventDestroy_v2', event), call('cuModuleUnload', code), call('cuMemFreeHost', host),
      call('cuStreamDestroy_v2', stream), call('cuDevicePrimaryCtxRelease_v2', 0), flush=True)
";
    let mut command = python(&soft, &["-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = daemon.with_shim(&mut command).spawn().expect("python3 is there");
    let mut line = daemon.accept(None);
    let mut out = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
    assert_eq!(out.next().as_deref(), Some("ready"));
    assert_eq!(line.park(SOON), Some(Ok(18 * MIB)));
    child.stdin.take().expect("its input").write_all(b"go\n").expect("it listens");
    assert_eq!(out.next().as_deref(), Some("away 0 0 0"));
    assert_eq!(out.next().as_deref(), Some("given back 0 0 1 0 0 0 0 0"));
    assert!(child.wait().expect("an own child").success());
    assert!(line.wanted.is_empty(), "it did not need its memory: {:?}", line.wanted);
    assert!(soft.is_idle());
}

#[test]
fn a_kernel_of_any_context_is_waited_for() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    // Memory of one context, and a kernel of another that has none of its own.
    let script = "
from cuda import *
first = start()
at, flag = alloc(4 << 20), PTR()
put(at, [1])
must('cuMemHostAlloc', BY(flag), SIZE(4096), 2)
UINT.from_address(flag.value).value = 0
second = PTR()
must('cuCtxCreate_v2', BY(second), 0, 0)
code = module()
must('cuLaunchKernel', function(code, 'wait_for'), 1, 1, 1, 1, 1, 1, 0, None, pointers(U64(flag.value), UINT(1)), None)
must('cuLaunchKernel', function(code, 'add'), 1, 1, 1, 1, 1, 1, 0, None, pointers(at, UINT(4), UINT(1)), None)
print('runs', flush=True)
sys.stdin.readline()
UINT.from_address(flag.value).value = 1
must('cuCtxSynchronize')
print('ran', flush=True)
sys.stdin.readline()
print(get(at, 1), call('cuCtxDestroy_v2', second), flush=True)
";
    let mut command = python(&soft, &["-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = daemon.with_shim(&mut command).spawn().expect("python3 is there");
    let mut line = daemon.accept(None);
    let mut out = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
    let mut input = child.stdin.take().expect("its input");
    assert_eq!(out.next().as_deref(), Some("runs"));
    let refused = line.park(Duration::from_millis(200)).expect("it lives");
    assert_eq!(refused, Err("a kernel did not end in time".to_owned()));
    input.write_all(b"go\n").expect("it listens");
    assert_eq!(out.next().as_deref(), Some("ran"));
    assert_eq!(line.park(SOON), Some(Ok(4 * MIB)));
    assert_eq!(line.resume(), Some(Ok(4 * MIB)));
    input.write_all(b"go\n").expect("it listens");
    assert_eq!(out.next().as_deref(), Some("[5] 0"));
    drop(input);
    assert!(child.wait().expect("an own child").success());
}

#[test]
fn orders_that_make_no_sense_do_no_harm() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let file = page(&soft, 512 * MIB);
    let (mut child, mut line, _out) = holder(&soft, &daemon, "64MiB", Some(&file));
    assert_eq!(line.prepare(u64::MAX), 0);
    line.send(&ShimOrder::Arena { bytes: u64::MAX, filled: true }, None);
    line.send(&ShimOrder::Welcome { page: true, pid: None, over: false }, Some(std::io::stdout().as_raw_fd()));
    assert!(line.resume().expect("it lives").is_err_and(|why| why.contains("not parked")));
    assert_eq!(line.park(Duration::from_millis(u64::MAX)), Some(Ok(64 * MIB)));
    assert_eq!(line.trim(), "it is parked");
    assert!(line.resume().is_some_and(|resumed| resumed == Ok(64 * MIB)));
    end_with_sigterm(line.pid);
    assert!(child.0.wait().expect("an own child").success(), "every byte is as it was");
    wait_until("the card is free", || soft.is_idle());
}

#[test]
fn a_program_that_becomes_another_while_parked_leaves_nothing_of_the_first() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let script = "
import os
from cuda import *
start()
at = alloc(8 << 20)
print('ready', flush=True)
sys.stdin.readline()
os.execv('/bin/sh', ['/bin/sh', '-c', 'echo other; read word'])
";
    let mut command = python(&soft, &["-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = daemon.with_shim(&mut command).spawn().expect("python3 is there");
    let mut line = daemon.accept(None);
    let mut out = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
    assert_eq!(out.next().as_deref(), Some("ready"));
    assert_eq!(line.park(SOON), Some(Ok(8 * MIB)));
    let mut input = child.stdin.take().expect("its input");
    input.write_all(b"go\n").expect("it listens");
    assert_eq!(out.next().as_deref(), Some("other"));
    assert_eq!(line.resume(), None, "nobody listens any more");
    assert!(soft.is_idle() && !daemon.has_connection());
    input.write_all(b"go\n").expect("it listens");
    assert!(child.wait().expect("an own child").success());
}

#[test]
fn output_that_is_not_read_fails_nothing() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let file = page(&soft, CONTEXT_BYTES + 64 * MIB);
    // Python does not mind broken pipes; a program that does is not ended by them either.
    let script = "
import signal
from cuda import *
if sys.argv[1:]:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
start()
at = U64()
print(call('cuMemAlloc_v2', BY(at), SIZE(128 << 20)), call('cuMemAlloc_v2', BY(at), SIZE(8 << 20)), flush=True)
";
    for way in [&["-c", script][..], &["-c", script, "minds"]] {
        let (reads, writes) = std::io::pipe().expect("a pipe");
        drop(reads);
        let mut command = python(&soft, way);
        command.stdout(Stdio::piped()).stderr(writes);
        let child = daemon.with_shim(&mut command).spawn().expect("python3 is there");
        let mut line = daemon.accept(Some(file.as_raw_fd()));
        let output = child.wait_with_output().expect("an own child");
        assert_eq!(succeeded(&output), "2 0\n");
        assert_eq!(line.park(SOON), None);
        mapped(&file).processes[0].pid.store(0, SeqCst);
        mapped(&file).processes[0].gpus[0].bytes.store(0, SeqCst);
    }
}

#[test]
fn a_program_that_becomes_another_has_all_of_its_lease_again() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let file = page(&soft, CONTEXT_BYTES + 64 * MIB);
    let script = "
import os
from cuda import *
start()
at = alloc(48 << 20)
print('holds', call('cuMemFree_v2', 1), flush=True)
sys.stdin.readline()
if not sys.argv[1:]:
    os.execv(sys.executable, [sys.executable, '-c', os.environ['TEXT'], 'again'])
";
    let mut command = python(&soft, &["-c", script]);
    command.env("TEXT", script).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = daemon.with_shim(&mut command).spawn().expect("python3 is there");
    let first = daemon.accept(Some(file.as_raw_fd()));
    let mut out = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
    assert_eq!(out.next().as_deref(), Some("holds 1"));
    let slot = &mapped(&file).processes[0];
    wait_until("it is counted", || slot.errors[0].count.load(SeqCst) == 1);
    let mut input = child.stdin.take().expect("its input");
    input.write_all(b"go\n").expect("it listens");
    let second = daemon.accept(Some(file.as_raw_fd()));
    assert_eq!(second.pid, first.pid);
    assert_eq!(out.next().as_deref(), Some("holds 1"), "what it had before is not counted any more");
    assert_eq!(slot.gpus[0].bytes.load(SeqCst), 48 * MIB);
    assert_eq!(slot.errors[0].count.load(SeqCst), 1);
    drop(input);
    assert!(child.wait().expect("an own child").success());
}

#[test]
fn what_is_given_back_while_the_driver_has_the_context_is_given_back_when_it_is_there_again() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let script = "
import mmap
from cuda import *
context = start()
at = alloc(8 << 20)
stream, event, code, host = got(PTR, 'cuStreamCreate', 1), got(PTR, 'cuEventCreate', 0), module(), PTR()
must('cuMemHostAlloc', BY(host), SIZE(4096), 0)
other = PTR()
must('cuCtxCreate_v2', BY(other), 0, 0)
must('cuCtxSetCurrent', context)
pages = mmap.mmap(-1, 4096)
own = PTR(C.addressof(C.c_char.from_buffer(pages)))
must('cuMemHostRegister_v2', own, SIZE(4096), 0)
print('ready', flush=True)
sys.stdin.readline()
print('given back', call('cuStreamDestroy_v2', stream), call('cuEventDestroy_v2', event), call('cuModuleUnload', code),
      call('cuMemFreeHost', host), call('cuCtxDestroy_v2', other), flush=True)
if sys.stdin.readline() == 'registered\\n':
    print('unregistered', call('cuMemHostUnregister', own), flush=True)
place, version = PTR(), UINT()
print('gone', call('cuStreamQuery', stream), call('cuEventQuery', event),
      call('cuModuleGetFunction', BY(place), code, b'add'), call('cuMemFreeHost', host),
      call('cuCtxGetApiVersion', other, BY(version)), call('cuMemsetD8_v2', at, 1, SIZE(1)), flush=True)
";
    for is_resumed in [true, false] {
        let mut command = python(&soft, &["-c", script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = daemon.with_shim(&mut command).spawn().expect("python3 is there");
        let mut line = daemon.accept(None);
        let mut out = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
        let mut input = child.stdin.take().expect("its input");
        assert_eq!(out.next().as_deref(), Some("ready"));
        assert_eq!(line.park(SOON), Some(Ok(8 * MIB)));
        line.deepen(true);
        input.write_all(b"go\n").expect("it listens");
        assert_eq!(out.next().as_deref(), Some("given back 0 0 0 0 0"));
        assert!(line.wanted.is_empty(), "it does not need the card for it: {:?}", line.wanted);
        if is_resumed {
            // What is the program's own memory may go as soon as this is answered, so it waits for the driver.
            input.write_all(b"registered\n").expect("it listens");
            line.wait_until_wanted();
            assert_eq!(line.wanted, ["cuMemHostUnregister"]);
            assert_eq!(line.resume(), Some(Ok(8 * MIB)));
            assert_eq!(out.next().as_deref(), Some("unregistered 0"));
            assert_eq!(out.next().as_deref(), Some("gone 400 400 400 1 201 0"));
        } else {
            line.deepen(false);
            input.write_all(b"go\n").expect("it listens");
            line.wait_until_wanted();
            assert_eq!(line.wanted, ["cuModuleGetFunction"], "questions before it were answered");
            assert_eq!(line.resume(), Some(Ok(8 * MIB)));
            assert_eq!(out.next().as_deref(), Some("gone 400 400 400 1 201 0"));
        }
        drop(input);
        assert!(child.wait().expect("an own child").success());
        assert!(soft.is_idle());
    }
}

#[test]
fn a_program_is_on_the_page_as_the_daemon_knows_it() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let file = page(&soft, 512 * MIB);
    let mut command = soft.program(HOLD, &["64MiB", "--idle"]);
    let child = daemon.with_shim(&mut command).stdout(Stdio::null()).spawn().expect("the program is there");
    let mut child = Child(child);
    // In a namespace of its own it knows itself by another number.
    let known = 4_194_000;
    let mut line = daemon.accept_as(Some(file.as_raw_fd()), Some(known));
    let slots = &mapped(&file).processes;
    wait_until("it has its memory", || slots[0].gpus[0].bytes.load(SeqCst) == 64 * MIB);
    assert_eq!((slots[0].pid.load(SeqCst), slots[1].pid.load(SeqCst)), (known, 0));
    // A daemon that is new, and older, does not say so.
    drop(line);
    let (_daemon, again) = {
        drop(daemon);
        let daemon = Daemon::new(&soft);
        let line = daemon.accept(Some(page(&soft, 512 * MIB).as_raw_fd()));
        (daemon, line)
    };
    line = again;
    assert_eq!(line.park(SOON), Some(Ok(64 * MIB)));
    assert_eq!(slots[0].gpus[0].bytes.load(SeqCst), 0, "it counts on the new one's page");
    child.kill();
}

#[test]
fn a_parked_program_gives_back_what_it_mapped_itself_without_its_memory() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let script = "
from cuda import *
start()
about, at = (UINT * 8)(1, 0, 1, 0), U64()
must('cuMemAddressReserve', BY(at), SIZE(8 << 20), SIZE(0), U64(0), U64(0))
empty = got(U64, 'cuMemAddressReserve', SIZE(8 << 20), SIZE(0), U64(0), U64(0))
handles = [got(U64, 'cuMemCreate', SIZE(4 << 20), about, U64(0)) for _ in range(2)]
for number, handle in enumerate(handles):
    must('cuMemMap', U64(at.value + (number << 22)), SIZE(4 << 20), SIZE(0), handle, U64(0))
access = (UINT * 3)(1, 0, 3)
must('cuMemSetAccess', at, SIZE(8 << 20), access, SIZE(1))
pool = got(PTR, 'cuMemPoolCreate', (UINT * 22)(1, 0, 1, 0))
stream, piece = got(PTR, 'cuStreamCreate', 1), U64()
must('cuMemAllocFromPoolAsync', BY(piece), SIZE(2 << 20), pool, stream)
must('cuMemFreeAsync', piece, stream)
must('cuStreamSynchronize', stream)
print('ready', flush=True)
sys.stdin.readline()
print('given back', call('cuMemAddressFree', at, SIZE(8 << 20)), call('cuMemRelease', handles[0]),
      call('cuMemRelease', handles[1]), call('cuMemAddressFree', empty, SIZE(8 << 20)),
      call('cuMemPoolTrimTo', pool, SIZE(0)), call('cuMemPoolDestroy', pool), flush=True)
";
    let file = page(&soft, 512 * MIB);
    let mut command = python(&soft, &["-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = daemon.with_shim(&mut command).spawn().expect("python3 is there");
    let mut line = daemon.accept(Some(file.as_raw_fd()));
    let mut out = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
    let mut input = child.stdin.take().expect("its input");
    assert_eq!(out.next().as_deref(), Some("ready"));
    assert!(line.park(SOON).is_some_and(|parked| parked.is_ok_and(|bytes| bytes >= 8 * MIB)));
    input.write_all(b"go\n").expect("it listens");
    assert_eq!(out.next().as_deref(), Some("given back 1 0 0 0 0 0"));
    assert!(line.wanted.is_empty(), "it did not need its memory: {:?}", line.wanted);
    assert_eq!(mapped(&file).processes[0].gpus[0].bytes.load(SeqCst), 8 * MIB, "the pool's are given back");
    drop(input);
    assert!(child.wait().expect("an own child").success());
    assert!(soft.is_idle());
}

#[test]
fn polls_questions_and_frees_do_not_wake_a_program_whose_context_the_driver_has() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let script = "
from cuda import *
context = start()
stream, event = got(PTR, 'cuStreamCreate', 1), got(PTR, 'cuEventCreate', 0)
at, other, piece = alloc(8 << 20), alloc(4 << 20), U64()
must('cuMemAllocAsync', BY(piece), SIZE(2 << 20), stream)
must('cuStreamSynchronize', stream)
put(at, [7])
print('ready', flush=True)
sys.stdin.readline()
print('done', call('cuStreamQuery', stream), call('cuEventQuery', event), call('cuStreamSynchronize', stream),
      call('cuEventSynchronize', event), call('cuCtxSynchronize'))
first, size, kind, free, total = U64(), SIZE(), UINT(), SIZE(), SIZE()
print('asked', call('cuMemGetAddressRange_v2', BY(first), BY(size), U64(at.value + 512)), first.value == at.value, size.value >> 20,
      call('cuPointerGetAttribute', BY(kind), 2, at), kind.value,
      call('cuMemGetInfo_v2', BY(free), BY(total)), total.value >> 20)
print('freed', call('cuMemFree_v2', other), call('cuMemFree_v2', other), call('cuMemFree_v2', U64(12345)),
      call('cuMemFreeAsync', piece, stream), call('cuMemFreeAsync', piece, stream), flush=True)
sys.stdin.readline()
host = C.create_string_buffer(8)
print('of the host', call('cuPointerGetAttribute', BY(kind), 2, U64(C.addressof(host))), get(at, 1),
      call('cuMemFree_v2', other), call('cuMemFree_v2', at), flush=True)
";
    let file = page(&soft, 512 * MIB);
    let mut command = python(&soft, &["-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = daemon.with_shim(&mut command).spawn().expect("python3 is there");
    let mut line = daemon.accept(Some(file.as_raw_fd()));
    let mut out = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
    let mut input = child.stdin.take().expect("its input");
    assert_eq!(out.next().as_deref(), Some("ready"));
    assert!(line.park(SOON).is_some_and(|parked| parked.is_ok_and(|bytes| bytes >= 14 * MIB)));
    line.deepen(true);
    input.write_all(b"go\n").expect("it listens");
    assert_eq!(out.next().as_deref(), Some("done 0 0 0 0 0"));
    assert_eq!(out.next().as_deref(), Some("asked 0 True 8 0 2 0 512"));
    assert_eq!(out.next().as_deref(), Some("freed 0 1 1 0 1"));
    assert!(line.wanted.is_empty(), "it needs nothing: {:?}", line.wanted);
    // What only the driver knows is waited for.
    input.write_all(b"go\n").expect("it listens");
    line.wait_until_wanted();
    assert_eq!(line.wanted, ["cuPointerGetAttribute"]);
    assert!(line.resume().is_some_and(|back| back.is_ok_and(|bytes| (8 * MIB..12 * MIB).contains(&bytes))));
    assert_eq!(out.next().as_deref(), Some("of the host 1 [7] 1 0"));
    drop(input);
    assert!(child.wait().expect("an own child").success());
    assert!(soft.is_idle());
}
