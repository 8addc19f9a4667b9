//! Memory in the order of streams is the shim's own, and parked like any other.

use crate::daemon::{Daemon, mapped, page};
use crate::parked::{MIB, SOON, run_while_parked_often};
use crate::soft::{Soft, succeeded, wait_until};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use sublet_softgpu::state::{CONTEXT_BYTES, IDLE_BYTES};

const CHURN: &str = env!("CARGO_BIN_EXE_sublet-example-churn");

/// Python that finds the driver API by name.
pub fn python(soft: &Soft, arguments: &[&str]) -> Command {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = soft.program("python3", arguments);
    command
        .current_dir(here.join("tests/py"))
        .env("PYTHONPATH", here.join("../crates/softgpu-cuda/tests/same_as_h200"));
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

#[test]
fn pools_answer_with_the_shim_as_they_do_without() {
    let soft = Soft::new("1x2GiB");
    let alone = succeeded(&python(&soft, &["pools.py"]).output().expect("python3 is there"));
    let daemon = Daemon::new(&soft);
    let output = daemon.with_shim(&mut python(&soft, &["pools.py"])).output().expect("python3 is there");
    assert_eq!(succeeded(&output), alone);
    assert!(alone.contains("captured: 3\n") && alone.ends_with("synchronised: 0\n"), "{alone}");
    assert!(soft.is_idle());
}

#[test]
fn pieces_that_come_and_go_with_streams_are_right_however_often_they_were_parked() {
    for seed in ["3", "4"] {
        let soft = Soft::new("1x2GiB");
        let arguments = ["--turns", "1000", "--threads", "4", "--seed", seed];
        let alone = soft.run(CHURN, &arguments);
        let (parked, parks, most) = run_while_parked_often(&soft, CHURN, &arguments);
        assert_eq!(parked, alone);
        assert!(parks >= 5 && most > MIB, "{parks} parks of up to {most} bytes");
        assert!(soft.is_idle());
    }
}

#[test]
fn all_pool_memory_leaves_the_gpu_and_freed_memory_leaves_it_by_itself() {
    let soft = Soft::new("1x2GiB");
    let daemon = Daemon::new(&soft);
    let file = page(&soft, 1024 * MIB);
    let held = "
from cuda import *
start()
stream, at = got(PTR, 'cuStreamCreate', 1), U64()
must('cuMemAllocAsync', BY(at), SIZE(400 << 20), stream)
must('cuMemsetD32Async', at, 77, SIZE(100 << 20), stream)
must('cuStreamSynchronize', stream)
print('holds', flush=True)
sys.stdin.readline()
out = (UINT * (100 << 20))()
must('cuMemcpyDtoH_v2', out, at, SIZE(400 << 20))
print('intact', all(byte == 77 for byte in out[::4097]), flush=True)
must('cuMemFreeAsync', at, stream)
sys.stdin.readline()
";
    let mut command = python(&soft, &["-c", held]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = daemon.with_shim(&mut command).spawn().expect("python3 is there");
    let mut line = daemon.accept(Some(file.as_raw_fd()));
    let mut out = BufReader::new(child.stdout.take().expect("its output")).lines();
    assert_eq!(out.next().expect("a word").expect("a word"), "holds");
    assert_eq!(mapped(&file).processes[0].obstacles.load(SeqCst), 0, "nothing keeps it from being parked");
    assert_eq!(line.park(SOON), Some(Ok(400 * MIB)));
    assert_eq!(soft.state.used(0), IDLE_BYTES + CONTEXT_BYTES);
    assert_eq!(line.resume(), Some(Ok(400 * MIB)));
    let mut input = child.stdin.take().expect("its input");
    input.write_all(b"go\n").expect("it listens");
    assert_eq!(out.next().expect("a word").expect("a word"), "intact True");
    // The program asks for nothing more: the shim gives back what its pool does not keep.
    wait_until("the card is free", || soft.state.used(0) == IDLE_BYTES + CONTEXT_BYTES);
    wait_until("the lease has its bytes back", || mapped(&file).processes[0].gpus[0].bytes.load(SeqCst) == 0);
    drop(input);
    assert!(child.wait().expect("an own child").success());
}

#[test]
fn an_allocation_that_succeeds_prints_no_lease_is_full() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    // The pool keeps what was freed, until a plain allocation needs it; then there is no more.
    let script = "
from cuda import *
start()
stream, at, keep = got(PTR, 'cuStreamCreate', 1), U64(), U64(2 ** 64 - 1)
must('cuMemPoolSetAttribute', got(PTR, 'cuDeviceGetDefaultMemPool', 0), 4, BY(keep))
must('cuMemAllocAsync', BY(at), SIZE(40 << 20), stream)
must('cuMemFreeAsync', at, stream)
must('cuStreamSynchronize', stream)
print(call('cuMemAlloc_v2', BY(at), SIZE(40 << 20)), flush=True)
sys.stdin.readline()
print(call('cuMemAlloc_v2', BY(at), SIZE(int(sys.argv[1]) << 20)), flush=True)
";
    for is_full in [false, true] {
        let file = page(&soft, CONTEXT_BYTES + 64 * MIB);
        let mut command = python(&soft, &["-c", script, if is_full { "40" } else { "20" }]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = daemon.with_shim(&mut command).spawn().expect("python3 is there");
        let _line = daemon.accept(Some(file.as_raw_fd()));
        let mut out = BufReader::new(child.stdout.take().expect("its output")).lines();
        assert_eq!(out.next().expect("a word").expect("a word"), "0");
        drop(child.stdin.take());
        assert_eq!(out.next().expect("a word").expect("a word"), if is_full { "2" } else { "0" });
        let output = child.wait_with_output().expect("an own child");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.matches("out of memory").count(), usize::from(is_full), "{said}");
    }
}
