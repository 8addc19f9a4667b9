//! Programs that the shim must leave alone, and what it shows them of their GPUs.

use crate::cc;
use crate::daemon::{self, Daemon, page};
use crate::parked::SOON;
use crate::pools::python;
use crate::soft::{Soft, succeeded};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::process::Stdio;
use std::sync::atomic::Ordering::SeqCst;
use sublet_shim::message::{OLD_PAGE_BYTES, ShimReport};
use sublet_softgpu::state::{CONTEXT_BYTES, IDLE_BYTES};

const HOLD: &str = env!("CARGO_BIN_EXE_sublet-example-hold");
const MIB: u64 = 1 << 20;

#[test]
fn a_program_that_never_calls_the_driver_has_no_thread_and_no_line() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let plain = cc::program(&soft, "plain.c", &["-ldl"]);
    for arguments in [&[][..], &["look"]] {
        let output = daemon.with_shim(&mut soft.program(&plain, arguments)).output().expect("the program is there");
        assert_eq!(succeeded(&output), "shim 1 threads 1 secure 0\n", "{arguments:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
    let output = daemon.with_shim(&mut soft.program("/bin/ls", &["/"])).output().expect("ls is there");
    assert!(succeeded(&output).contains("etc\n") && output.stderr.is_empty());
    assert!(!daemon.has_connection(), "nobody said anything");
}

#[test]
fn programs_that_cannot_have_the_shim_run_without_it() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let fixed = cc::program(&soft, "plain.c", &["-static", "-DSTATIC", "-o", "fixed"]);
    let output = daemon.with_shim(&mut soft.program(&fixed, &[])).output().expect("the program is there");
    assert_eq!(succeeded(&output), "shim 0 threads 1 secure 0\n");
    // One of 32 bits, where the compiler can make it: the loader says that it does not fit, and goes on.
    match cc::built(&soft, "plain.c", &["-m32", "-ldl", "-o", "narrow"]) {
        Ok(narrow) => {
            let output = daemon.with_shim(&mut soft.program(&narrow, &[])).output().expect("the program is there");
            assert_eq!(succeeded(&output), "shim 0 threads 1 secure 0\n");
        }
        Err(why) => println!("no program of 32 bits can be built here, and none is tried: {why}"),
    }
    // One with rights of its own: the loader preloads nothing into it. Only root can make one.
    let plain = cc::program(&soft, "plain.c", &["-ldl"]);
    let nobody = 65_534;
    if chown(&plain, Some(nobody), None).is_err() {
        println!("not run as root: programs with rights of their own are not tried");
        return;
    }
    std::fs::set_permissions(soft.path(""), PermissionsExt::from_mode(0o755)).expect("an own folder");
    std::fs::set_permissions(&plain, PermissionsExt::from_mode(0o4755)).expect("an own file");
    let output = daemon.with_shim(&mut soft.program(&plain, &[])).output().expect("the program is there");
    assert_eq!(succeeded(&output), "shim 0 threads 1 secure 1\n");
}

#[test]
fn under_a_profiler_the_shim_steps_aside_and_says_so() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    for (variable, tool) in [
        ("NSYS_PROFILING_SESSION_ID", "Nsight Systems"),
        ("NV_SANITIZER_INJECTION_PORT_BASE", "Compute Sanitizer"),
        ("NV_COMPUTE_PROFILER_PERFWORKS_DIR", "Nsight Compute"),
        ("CUDA_INJECTION64_PATH", "a tool that the driver loads"),
    ] {
        let mut command = soft.program(HOLD, &["64MiB", "--seconds", "0"]);
        let output = daemon.with_shim(command.env(variable, "1")).output().expect("the program is there");
        assert!(succeeded(&output).starts_with("holds 64 MiB"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said.matches("cannot be parked").count(), 1, "{said}");
        assert!(said.contains(tool), "{said}");
        let ShimReport::Hello { aside, .. } = daemon.receive_hello() else { panic!("the first word is a greeting") };
        assert_eq!(aside.as_deref(), Some(tool));
    }
    // Said by people, it is silent; and annotations alone are no reason.
    let mut command = soft.program(HOLD, &["64MiB", "--seconds", "0"]);
    let output = daemon.with_shim(command.env("SUBLET_SHIM", "off")).output().expect("the program is there");
    assert!(succeeded(&output).starts_with("holds 64 MiB") && output.stderr.is_empty());
    assert!(!daemon.has_connection());
    let mut command = soft.program(HOLD, &["64MiB", "--seconds", "0"]);
    let child = daemon.with_shim(command.env("NVTX_INJECTION64_PATH", "1").stdout(Stdio::null())).spawn();
    let line = daemon.accept(None);
    assert_eq!(line.pid, child.as_ref().expect("the program is there").id());
    assert!(child.expect("the program is there").wait().expect("an own child").success());
}

#[test]
fn the_cap_holds_from_the_first_byte() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let file = page(&soft, CONTEXT_BYTES + 100 * MIB);
    let mut command = soft.program(HOLD, &["200MiB", "--seconds", "0"]);
    let child = daemon.with_shim(&mut command).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    // The daemon is slow to answer.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let _line = daemon.accept(Some(file.as_raw_fd()));
    let output = child.expect("the program is there").wait_with_output().expect("an own child");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("the lease has"));
}

#[test]
fn the_page_of_an_older_daemon_caps_as_well() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let whole = page(&soft, CONTEXT_BYTES + 100 * MIB);
    let mut bytes = vec![0; OLD_PAGE_BYTES];
    whole.read_exact_at(&mut bytes, 0).expect("a page");
    let file = page(&soft, 0);
    file.set_len(0).and_then(|()| file.write_all_at(&bytes, 0)).expect("memory");
    let mut command = soft.program(HOLD, &["64MiB", "--seconds", "0"]);
    let child = daemon.with_shim(&mut command).stdout(Stdio::null()).spawn();
    let _line = daemon.accept(Some(file.as_raw_fd()));
    assert!(
        child.expect("the program is there").wait().expect("an own child").success(),
        "it writes where there is room"
    );
    let mut command = soft.program(HOLD, &["200MiB", "--seconds", "0"]);
    let child = daemon.with_shim(&mut command).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let _line = daemon.accept(Some(file.as_raw_fd()));
    let output = child.expect("the program is there").wait_with_output().expect("an own child");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("the lease has"));
}

#[test]
fn nvml_shows_a_holder_its_lease_and_other_programs_the_gpu() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let nvml = cc::program(&soft, "nvml.c", &["-L", ".", "-l:libnvidia-ml.so.1", "-ldl"]);
    let card = format!("1024 {} {}\n", 1024 - IDLE_BYTES / MIB, IDLE_BYTES / MIB);
    assert_eq!(soft.run(&nvml, &[]), card.repeat(4));
    // Without a page the GPU is told.
    let alone = soft.program(&nvml, &[]).env("LD_PRELOAD", daemon::shim()).output().expect("the program is there");
    assert_eq!(succeeded(&alone), card.repeat(4));
    let file = page(&soft, 512 * MIB);
    let seen = daemon::mapped(&file);
    // Another process of the lease has 100 MiB and a context.
    seen.processes[3].pid.store(1, SeqCst);
    seen.processes[3].gpus[0].bytes.store(100 * MIB, SeqCst);
    seen.processes[3].gpus[0].contexts.store(1, SeqCst);
    let mut command = soft.program(&nvml, &[]);
    let child = daemon.with_shim(&mut command).stdout(Stdio::piped()).spawn().expect("the program is there");
    let line = daemon.accept(Some(file.as_raw_fd()));
    let output = child.wait_with_output().expect("an own child");
    let used = 100 + CONTEXT_BYTES / MIB;
    assert_eq!(succeeded(&output), format!("512 {} {used}\n", 512 - used).repeat(4));
    assert!(line.looks, "it takes no part");
    assert_eq!(seen.processes.iter().filter(|slot| slot.pid.load(SeqCst) != 0).count(), 1, "it takes no place");
    assert!(!daemon.has_connection(), "once is enough");
}

#[test]
fn a_lease_that_changes_is_another_cap_at_once() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let file = page(&soft, CONTEXT_BYTES + 64 * MIB);
    let script = "
from cuda import *
start()
for line in sys.stdin:
    at, free, total = U64(), SIZE(), SIZE()
    told = call('cuMemAlloc_v2', BY(at), SIZE(int(line) << 20))
    must('cuMemGetInfo_v2', BY(free), BY(total))
    print(told, free.value >> 20, total.value >> 20, flush=True)
";
    let mut command = python(&soft, &["-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = daemon.with_shim(&mut command).spawn().expect("python3 is there");
    let _line = daemon.accept(Some(file.as_raw_fd()));
    let mut out = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
    let mut input = child.stdin.take().expect("its input");
    let cap = &daemon::mapped(&file).gpus[0].cap;
    let context = CONTEXT_BYTES / MIB;
    let mut ask = |mib: u64| {
        input.write_all(format!("{mib}\n").as_bytes()).expect("it listens");
        out.next().expect("an answer")
    };
    assert_eq!(ask(96), format!("2 64 {}", context + 64));
    cap.store(CONTEXT_BYTES + 128 * MIB, SeqCst);
    assert_eq!(ask(96), format!("0 32 {}", context + 128), "it grew");
    cap.store(CONTEXT_BYTES + 32 * MIB, SeqCst);
    assert_eq!(ask(2), format!("2 0 {}", context + 32), "it shrank, and what it has stays");
    drop(input);
    assert!(child.wait().expect("an own child").success());
}

#[test]
fn functions_of_one_version_are_the_loaders_business() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    // The loader's own by its version, one that has none of that version, and the driver's, which has no versions.
    let script = "
from cuda import *
own = C.CDLL(None)
own.dlvsym.restype = own.dlsym.restype = PTR
find = lambda name, version: own.dlvsym(PTR(LIB._handle), name, version)
everywhere = lambda name, version: own.dlvsym(None, name, version)
print(everywhere(b'memcpy', b'GLIBC_2.14') is not None, everywhere(b'memcpy', b'GLIBC_9.9'),
      find(b'cuInit', b'libcuda_9'), own.dlsym(PTR(LIB._handle), b'cuInit') is not None)
";
    let output = daemon.with_shim(&mut python(&soft, &["-c", script])).output().expect("python3 is there");
    let alone = python(&soft, &["-c", script]).output().expect("python3 is there");
    assert_eq!(succeeded(&output), succeeded(&alone));
    assert!(succeeded(&output).starts_with("True None") && succeeded(&output).ends_with("True\n"));
}

#[test]
fn a_library_behind_the_shim_that_asks_for_the_next_function_does_not_find_itself() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    // Bound to its own function, as libraries that trace are.
    let library = ["-DLIBRARY", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-o", "libbehind.so", "-ldl"];
    let behind = cc::program(&soft, "behind.c", &library);
    let program = cc::program(&soft, "behind.c", &["-L", ".", "-l:libbehind.so", "-l:libcuda.so.1"]);
    assert_eq!(
        succeeded(&soft.program(&program, &[]).stdin(Stdio::null()).output().expect("it is there")),
        "before\n0\n"
    );
    let both = format!("{}:{behind}", daemon::shim().display());
    let mut command = soft.program(&program, &[]);
    daemon.with_shim(&mut command).env("LD_PRELOAD", both).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the program is there");
    let mut line = daemon.accept(None);
    let mut out = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
    assert_eq!((out.next().as_deref(), out.next().as_deref()), (Some("before"), Some("0")));
    assert_eq!(line.park(SOON), Some(Ok(8 * MIB)), "what it found is the shim's: the memory can leave");
    assert_eq!(line.resume(), Some(Ok(8 * MIB)));
    drop(child.stdin.take());
    assert!(child.wait().expect("an own child").success());
}

#[test]
fn the_measurement_in_one_process_takes_both_ways() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let of_card = "../../../crates/shim/tests/gpu";
    let library = ["-O2", "-shared", "-fPIC", "-o", "both.so"];
    let both = cc::program(&soft, &format!("{of_card}/both.c"), &library);
    let program = cc::program(&soft, &format!("{of_card}/alternate.c"), &["-o", "alternate", "-ldl"]);
    let file = page(&soft, 1 << 30);
    let (pairs, calls) = (6, 100);
    let mut command = soft.program(&program, &["launch", &pairs.to_string(), &calls.to_string()]);
    let preload = format!("{both}:{}", daemon::shim().display());
    daemon.with_shim(&mut command).env("LD_PRELOAD", preload).stdout(Stdio::piped());
    let child = command.spawn().expect("the program is there");
    let _line = daemon.accept(Some(file.as_raw_fd()));
    let said = succeeded(&child.wait_with_output().expect("an own child"));
    let times: Vec<f64> = said.split_whitespace().map(|time| time.parse().expect("a time")).collect();
    assert_eq!(times.len(), 2 * pairs);
    assert!(times.iter().all(|time| *time > 0.0), "{said}");
    // One block before the first pair, and one of each pair.
    let slots = &daemon::mapped(&file).processes;
    let launches: u64 = slots.iter().map(|slot| slot.launches.load(SeqCst)).sum();
    assert_eq!(launches, (calls * (1 + pairs)) as u64, "the other half went straight to the driver");
}
