//! Unmodified programs, parked by the shim at any moment: they never notice.

use crate::daemon::{Daemon, Line, mapped, page};
use crate::pools::python;
use crate::soft::{Child, Soft, succeeded, wait_until};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use sublet_softgpu::state::{CONTEXT_BYTES, IDLE_BYTES};

/// Holds memory.
pub const HOLD: &str = env!("CARGO_BIN_EXE_sublet-example-hold");
const STRESS: &str = env!("CARGO_BIN_EXE_sublet-example-stress");
const MLP: &str = env!("CARGO_BIN_EXE_sublet-example-mlp");
/// Within this.
pub const SOON: Duration = Duration::from_secs(20);
/// Bytes.
pub const MIB: u64 = 1 << 20;

/// Parks and resumes again and again until the program ends. Returns how often, and the most bytes.
fn park_repeatedly(line: &mut Line) -> (u32, u64) {
    let (mut parks, mut most, mut pause) = (0, 0, 1_u64);
    loop {
        // Moments that look like chance, and are the same in every run.
        pause = pause.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros((pause >> 33) % 20_000));
        match line.park(SOON) {
            None => return (parks, most),
            // Something is captured, or a call takes long: another time.
            Some(Err(_)) => continue,
            Some(Ok(bytes)) => {
                parks += u32::from(bytes > 0);
                most = most.max(bytes);
            }
        }
        match line.resume() {
            None => return (parks, most),
            Some(resumed) => assert!(resumed.is_ok(), "{resumed:?}"),
        }
    }
}

/// What a program says that is parked all the time.
pub fn run_while_parked_often(soft: &Soft, program: &str, arguments: &[&str]) -> (String, u32, u64) {
    let daemon = Daemon::new(soft);
    let mut command = soft.program(program, arguments);
    daemon.with_shim(&mut command).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("the program is there");
    let mut line = daemon.accept(None);
    let (parks, most) = park_repeatedly(&mut line);
    (succeeded(&child.wait_with_output().expect("an own child")), parks, most)
}

#[test]
fn training_ends_with_the_same_weights_however_often_it_was_parked() {
    let soft = Soft::new("1x2GiB");
    let arguments = ["--steps", "300", "--every", "25"];
    let alone = soft.run(MLP, &arguments);
    let (parked, parks, most) = run_while_parked_often(&soft, MLP, &arguments);
    assert_eq!(parked, alone);
    assert!(parks >= 5 && most > MIB, "{parks} parks of up to {most} bytes");
    assert!(soft.is_idle());
}

#[test]
fn every_family_of_calls_is_right_however_often_it_was_parked() {
    let soft = Soft::new("1x2GiB");
    let (said, parks, most) =
        run_while_parked_often(&soft, STRESS, &["--seconds", "6", "--threads", "4", "--seed", "11"]);
    assert!(said.ends_with("ok\n"), "{said}");
    assert!(parks >= 20 && most > MIB, "{parks} parks of up to {most} bytes");
    assert!(soft.is_idle());
}

#[test]
fn the_api_answers_with_the_shim_as_it_does_without() {
    let soft = Soft::new("1x2GiB");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/softgpu-cuda/tests/same_as_h200");
    let daemon = Daemon::new(&soft);
    let mut command = soft.program("python3", &["api.py"]);
    let output = daemon.with_shim(command.current_dir(&folder)).output().expect("python3 is there");
    let there = std::fs::read_to_string(folder.join("h200/api.txt")).expect("what a card said");
    assert_eq!(succeeded(&output), there);
}

/// A program that holds memory under the shim.
pub fn holder(soft: &Soft, daemon: &Daemon, size: &str, page: Option<&File>) -> (Child, Line, impl Sized + use<>) {
    let mut command = soft.program(HOLD, &[size, "--chunk", "8MiB"]);
    let mut child = daemon.with_shim(&mut command).stdout(Stdio::piped()).spawn().expect("the program is there");
    let line = daemon.accept(page.map(AsRawFd::as_raw_fd));
    let mut said = String::new();
    let mut out = BufReader::new(child.stdout.take().expect("its output"));
    out.read_line(&mut said).expect("it says something");
    assert!(said.starts_with("holds "), "{said}");
    // If the caller drops the reader, the program fails at its next write.
    (Child(child), line, out)
}

#[test]
fn the_gpu_is_free_while_a_holder_is_parked_and_a_dead_holder_leaves_nothing() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let (mut child, mut line, _out) = holder(&soft, &daemon, "512MiB", None);
    assert_eq!(soft.state.used(0), IDLE_BYTES + CONTEXT_BYTES + 512 * MIB);
    assert_eq!(line.park(SOON), Some(Ok(512 * MIB)));
    assert_eq!(soft.state.used(0), IDLE_BYTES + CONTEXT_BYTES);
    assert!(line.park(SOON).is_some_and(|again| again.is_err_and(|why| why.contains("already"))));
    // It wakes up every second to look at its bytes, and then wants them back.
    line.wait_until_wanted();
    child.kill();
    assert!(soft.is_idle());
}

#[test]
fn a_resume_without_room_leaves_the_holder_parked_and_unharmed() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let (mut child, mut line, _out) = holder(&soft, &daemon, "512MiB", None);
    assert_eq!(line.park(SOON), Some(Ok(512 * MIB)));
    let mut other = soft.program(HOLD, &["400MiB"]);
    let other = Child(other.stdout(Stdio::null()).spawn().expect("the program is there"));
    wait_until("the other has its memory", || soft.state.used(0) >= IDLE_BYTES + 2 * CONTEXT_BYTES + 400 * MIB);
    for _ in 0..3 {
        let refused = line.resume().expect("it lives");
        assert!(refused.is_err_and(|why| why.contains("no room")));
        assert_eq!(soft.state.used(0), IDLE_BYTES + 2 * CONTEXT_BYTES + 400 * MIB, "nothing is left half made");
    }
    drop(other);
    assert_eq!(line.resume(), Some(Ok(512 * MIB)));
    end_with_sigterm(line.pid);
    assert!(child.0.wait().expect("an own child").success(), "every byte is as it was");
}

/// Asks a program to end, as a person would.
pub fn end_with_sigterm(pid: u32) {
    let asked = Command::new("kill").args(["-TERM", &pid.to_string()]).status();
    assert!(asked.expect("kill is there").success());
}

#[test]
fn a_lease_is_all_that_its_processes_get_together() {
    let soft = Soft::new("1x4GiB");
    let daemon = Daemon::new(&soft);
    let file = page(&soft, CONTEXT_BYTES * 2 + 300 * MIB);
    let (first, _line, _out) = holder(&soft, &daemon, "200MiB", Some(&file));
    let numbers = mapped(&file);
    wait_until("it is counted", || numbers.processes[0].gpus[0].bytes.load(SeqCst) == 200 * MIB);
    // A second process of the lease: what is left is less than it wants.
    let mut command = soft.program(HOLD, &["200MiB", "--chunk", "8MiB"]);
    let second = daemon.with_shim(&mut command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let _second_line = daemon.accept(Some(file.as_raw_fd()));
    let output = second.expect("the program is there").wait_with_output().expect("an own child");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("OUT_OF_MEMORY") && said.contains("ask for more with --vram"), "{said}");
    drop(first);
}

#[test]
fn a_program_with_managed_memory_is_not_parked_and_runs_on() {
    let soft = Soft::new("1x2GiB");
    let daemon = Daemon::new(&soft);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/softgpu-cuda/tests/same_as_h200");
    let mut command = soft.program("python3", &["checkpoint.py", "hold", "managed"]);
    command.current_dir(folder).env("SUBLET_SOFT_MANAGED", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Child(daemon.with_shim(&mut command).spawn().expect("python3 is there"));
    let mut line = daemon.accept(None);
    let mut out = BufReader::new(child.0.stdout.take().expect("its output"));
    let mut said = String::new();
    out.read_line(&mut said).expect("it says something");
    assert_eq!(said, "holds\n");
    let refused = line.park(SOON).expect("it lives");
    assert_eq!(refused, Err("it uses managed memory".to_owned()));
    std::io::Write::write_all(child.0.stdin.as_mut().expect("its input"), b"check\n").expect("it listens");
    said.clear();
    out.read_line(&mut said).expect("it says something");
    assert_eq!(said, "intact\n");
}

#[test]
fn a_program_is_not_parked_once_it_has_the_address_of_a_managed_variable() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let script = r#"
from cuda import *
start()
text = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .global .attribute(.managed) .align 4 .u32 both[4];
.visible .global .align 4 .u32 own[4];
"""
module, at, size = PTR(), U64(), SIZE()
must('cuModuleLoadData', BY(module), C.c_char_p(text))
for line in sys.stdin:
    must('cuModuleGetGlobal_v2', BY(at), BY(size), module, C.c_char_p(line.strip().encode()))
    print(size.value, flush=True)
"#;
    let mut command = python(&soft, &["-c", script]);
    command.env("SUBLET_SOFT_MANAGED", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Child(daemon.with_shim(&mut command).spawn().expect("python3 is there"));
    let mut line = daemon.accept(None);
    let mut out = BufReader::new(child.0.stdout.take().expect("its output"));
    let mut ask = |name: &[u8]| {
        child.0.stdin.as_mut().expect("its input").write_all(name).expect("it listens");
        let mut said = String::new();
        out.read_line(&mut said).expect("it says something");
        assert_eq!(said, "16\n");
    };
    ask(b"own\n");
    assert!(line.park(SOON).expect("it lives").is_ok(), "a variable of the card alone stays with its module");
    assert!(line.resume().expect("it lives").is_ok());
    ask(b"both\n");
    assert_eq!(line.park(SOON), Some(Err("it uses managed memory".to_owned())));
}

#[test]
fn ctrl_c_ends_a_program_that_waits_for_its_memory() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let script = "
import ctypes as C, sys
cuda = C.CDLL('libcuda.so.1')
context, at = C.c_void_p(), C.c_uint64()
cuda.cuInit(0); cuda.cuDevicePrimaryCtxRetain(C.byref(context), 0); cuda.cuCtxSetCurrent(context)
cuda.cuMemAlloc_v2(C.byref(at), C.c_size_t(8 << 20))
print('ready', flush=True)
sys.stdin.readline()
try:
    print('answer', cuda.cuMemsetD8_v2(at, 1, C.c_size_t(1)), flush=True)
except KeyboardInterrupt:
    pass
print('interrupted', flush=True)
";
    let mut command = soft.program("python3", &["-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Child(daemon.with_shim(&mut command).spawn().expect("python3 is there"));
    let mut line = daemon.accept(None);
    let mut out = BufReader::new(child.0.stdout.take().expect("its output"));
    let mut said = String::new();
    out.read_line(&mut said).expect("it says something");
    assert_eq!(line.park(SOON), Some(Ok(8 * MIB)));
    std::io::Write::write_all(child.0.stdin.as_mut().expect("its input"), b"go\n").expect("it listens");
    line.wait_until_wanted();
    let asked = Command::new("kill").args(["-INT", &line.pid.to_string()]).status();
    assert!(asked.expect("kill is there").success());
    said.clear();
    out.read_line(&mut said).expect("it says something");
    assert_eq!(said, "interrupted\n");
    assert!(child.0.wait().expect("an own child").success());
    assert!(soft.is_idle());
}

#[test]
fn a_signal_interrupts_all_waiting_calls_and_later_calls_wait_as_before() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let script = "
import signal, threading
from cuda import *
context = start()
at = alloc(8 << 20)
heard = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: heard.append(signal.Signals(number).name))
def fill(answers):
    must('cuCtxSetCurrent', context)
    answers.append(call('cuMemsetD8_v2', at, 1, SIZE(1)))
print('ready', flush=True)
for line in sys.stdin:
    answers = []
    others = [threading.Thread(target=fill, args=(answers,)) for _ in range(3)]
    for other in others: other.start()
    fill(answers)
    for other in others: other.join()
    print(answers, heard, flush=True)
";
    let mut command = python(&soft, &["-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Child(daemon.with_shim(&mut command).spawn().expect("python3 is there"));
    let mut line = daemon.accept(None);
    let mut out = BufReader::new(child.0.stdout.take().expect("its output")).lines().map_while(Result::ok);
    let mut input = child.0.stdin.take().expect("its input");
    assert_eq!(out.next().as_deref(), Some("ready"));
    assert_eq!(line.park(SOON), Some(Ok(8 * MIB)));
    for (signal, heard) in [("-INT", "['SIGINT']"), ("-TERM", "['SIGINT', 'SIGTERM']")] {
        input.write_all(b"go\n").expect("it listens");
        wait_until("all of them wait", || waiting_threads(line.pid) >= 4);
        let asked = Command::new("kill").args([signal, &line.pid.to_string()]).status();
        assert!(asked.expect("kill is there").success());
        // What a call answers when the system stopped it.
        assert_eq!(out.next(), Some(format!("[304, 304, 304, 304] {heard}")));
    }
    input.write_all(b"go\n").expect("it listens");
    wait_until("all of them wait", || waiting_threads(line.pid) >= 4);
    assert_eq!(line.resume(), Some(Ok(8 * MIB)));
    assert_eq!(out.next().as_deref(), Some("[0, 0, 0, 0] ['SIGINT', 'SIGTERM']"));
    drop(input);
    assert!(child.0.wait().expect("an own child").success());
}

/// Threads of a process that wait at the gate: for a word of its, and not for long at a time.
fn waiting_threads(pid: u32) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives").flatten();
    tasks.filter(|task| std::fs::read_to_string(task.path().join("syscall")).is_ok_and(|call| is_gate(&call))).count()
}

/// `futex`, to wait privately for a word that says that the memory is parked.
fn is_gate(call: &str) -> bool {
    let words: Vec<&str> = call.split(' ').collect();
    words.first() == Some(&"202") && words.get(2) == Some(&"0x80") && words.get(3) == Some(&"0x2")
}
