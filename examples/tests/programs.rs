//! Each example on soft GPUs.

#[path = "../../crates/softgpu-nvml/tests/python/venv.rs"]
mod venv;

mod serve;
mod soft;

use soft::{Child, Soft, succeeded, wait_until};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use sublet_softgpu::state::{CONTEXT_BYTES, IDLE_BYTES};

const HOLD: &str = env!("CARGO_BIN_EXE_sublet-example-hold");
const SAXPY: &str = env!("CARGO_BIN_EXE_sublet-example-saxpy");
const STRESS: &str = env!("CARGO_BIN_EXE_sublet-example-stress");
const MLP: &str = env!("CARGO_BIN_EXE_sublet-example-mlp");

#[test]
fn hold_says_what_it_holds_and_finds_it_unchanged() {
    let soft = Soft::new("1x4GiB");
    let said = soft.run(HOLD, &["13MiB", "--chunk", "4MiB", "--seconds", "1.2"]);
    assert_eq!(said, "holds 13 MiB on Sublet Soft 4GiB\nall 13631488 bytes as written\n");
    let odd = soft.run(HOLD, &["1000003", "--chunk", "777", "--seconds", "0"]);
    assert_eq!(odd, "holds 1000003 bytes on Sublet Soft 4GiB\nall 1000003 bytes as written\n");
    assert!(soft.is_idle());
}

#[test]
fn hold_ends_well_when_it_is_asked_to() {
    let soft = Soft::new("1x4GiB");
    let mut child = soft.program(HOLD, &["6MiB"]).stdout(Stdio::piped()).spawn().expect("the program is there");
    let mut out = BufReader::new(child.stdout.take().expect("its output"));
    let mut line = String::new();
    out.read_line(&mut line).expect("it says something");
    let asked = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(asked.expect("kill is there").success());
    out.read_to_string(&mut line).expect("it says something");
    assert!(child.wait().expect("an own child").success());
    assert!(line.ends_with("all 6291456 bytes as written\n"), "{line}");
}

#[test]
fn hold_reports_that_there_is_no_room_and_how_far_it_came() {
    let soft = Soft::new("1x1GiB");
    let output = soft.program(HOLD, &["2GiB", "--chunk", "1GiB"]).output().expect("the program is there");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said, "hold: 0 bytes of 2 GiB were taken: cuMemAlloc answered CUDA_ERROR_OUT_OF_MEMORY (2)\n");
}

#[test]
fn hold_killed_at_any_moment_leaves_nothing() {
    let soft = Soft::new("1x4GiB");
    for round in 0..20 {
        let mut child = soft.program(HOLD, &["96MiB", "--chunk", "8MiB"]);
        let mut child = Child(child.stdout(Stdio::null()).spawn().expect("the program is there"));
        if round % 4 != 0 {
            // Other moments, from the first byte to the last.
            let some = IDLE_BYTES + (1 << 20) * (round * 11);
            wait_until("some of it is taken", || soft.state.used(0) > some);
        }
        child.kill();
        assert!(soft.is_idle(), "round {round}: {} bytes are left", soft.state.used(0) - IDLE_BYTES);
    }
}

#[test]
fn hold_is_parked_and_comes_back_with_every_byte() {
    let soft = Soft::new("1x4GiB");
    let mut child = soft.program(HOLD, &["8MiB", "--seconds", "1"]);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program is there");
    wait_until("it has its memory", || soft.state.used(0) >= IDLE_BYTES + (136 << 20));
    park(&soft, child.id());
    assert_eq!(soft.state.used(0), IDLE_BYTES);
    std::thread::sleep(Duration::from_millis(1200));
    assert!(child.try_wait().expect("an own child").is_none(), "it waits to be put back");
    unpark(&soft, child.id());
    assert!(succeeded(&child.wait_with_output().expect("an own child")).ends_with("all 8388608 bytes as written\n"));
}

#[test]
fn saxpy_is_right_to_the_last_bit() {
    let soft = Soft::new("1x4GiB");
    for (elements, seed) in [("1", "1"), ("10007", "2")] {
        let said = soft.run(SAXPY, &["--elements", elements, "--seed", seed]);
        assert!(
            said.starts_with(&format!("{elements} numbers on Sublet Soft 4GiB: ")) && said.ends_with(", ok\n"),
            "{said}"
        );
    }
}

fn park(soft: &Soft, pid: u32) {
    soft.state.checkpoint_lock(pid, Some(Duration::from_secs(20))).expect("it can be locked");
    soft.state.checkpoint_save(pid).expect("it can be taken off");
}

fn unpark(soft: &Soft, pid: u32) {
    soft.state.checkpoint_restore(pid).expect("there is room for it");
    soft.state.checkpoint_unlock(pid).expect("it can go on");
}

const TRAIN: [&str; 8] = ["--steps", "12", "--every", "1", "--hidden", "8", "--seed", "7"];

#[test]
fn mlp_learns_and_a_seed_gives_one_checksum_whatever_happens_meanwhile() {
    let soft = Soft::new("1x4GiB");
    let first = soft.run(MLP, &TRAIN);
    let last = |said: &str| said.lines().last().map(str::to_owned).expect("a last line");
    assert!(last(&first).starts_with("weights "), "{first}");
    let losses: Vec<f64> = first.lines().filter_map(|line| line.split_once("loss ")?.1.parse().ok()).collect();
    assert_eq!(losses.len(), 12, "{first}");
    assert!(losses[11] < losses[0] * 0.9, "{first}");
    assert_eq!(soft.run(MLP, &TRAIN), first, "the same again");

    // Taken off its GPU three times.
    let mut child = soft.program(MLP, &TRAIN).stdout(Stdio::piped()).spawn().expect("the program is there");
    let (pid, mut out) = (child.id(), BufReader::new(child.stdout.take().expect("its output")));
    let mut said = String::new();
    for _ in 0..3 {
        out.read_line(&mut said).expect("it says something");
        park(&soft, pid);
        assert_eq!(soft.state.used(0), IDLE_BYTES, "nothing of it is on the card");
        std::thread::sleep(Duration::from_millis(50));
        unpark(&soft, pid);
    }
    out.read_to_string(&mut said).expect("it says something");
    assert!(child.wait().expect("an own child").success());
    assert_eq!(said, first);

    // Ended half-way, and begun again from its file.
    let file = soft.path("weights");
    let file = file.to_str().expect("a path");
    let with_file = |steps: &str| {
        let mut arguments = TRAIN.to_vec();
        arguments[1] = steps;
        arguments.extend(["--checkpoint", file]);
        soft.run(MLP, &arguments)
    };
    with_file("5");
    let rest = with_file("12");
    assert!(rest.contains("from step 5 to 12"), "{rest}");
    assert_eq!(last(&rest), last(&first));
    let other = soft.program(MLP, &["--checkpoint", file]).output().expect("the program is there");
    assert_eq!(other.status.code(), Some(1), "another seed");
}

#[test]
fn stress_finds_every_family_in_order() {
    let soft = Soft::new("1x4GiB");
    let said = soft.run(STRESS, &["--seconds", "3", "--threads", "8", "--seed", "1"]);
    assert!(said.starts_with("on Sublet Soft 4GiB, 8 threads, seed 1\n") && said.ends_with("\nok\n"), "{said}");
    assert!(soft.is_idle());
}

/// What a tool prints about the GPUs.
fn tool_output(soft: &Soft, tool: &str, arguments: &[&str]) -> String {
    let library = std::env::current_exe().expect("a test has a path").with_file_name("libnvidia_ml.so");
    let link = soft.path("libnvidia-ml.so.1");
    if !link.exists() {
        symlink(&library, &link).expect("a link can be made");
    }
    let target = library.ancestors().nth(3).expect("a test is in a target directory");
    let wanted = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/softgpu-nvml/tests/requirements.txt");
    let venv = venv::venv(target, "soft-venv", &wanted);
    let program = venv.join("bin").join(tool);
    let mut command = soft.program(program.to_str().expect("a path"), arguments);
    command.env("TERM", "xterm").env("COLUMNS", "120").env("LINES", "60").env("LANG", "C.UTF-8");
    soft::succeeded(&command.output().expect("the tool is there"))
}

#[test]
fn third_party_tools_list_the_examples_and_their_memory() {
    let soft = Soft::new("2x4GiB");
    let mut command = soft.program(HOLD, &["300MiB", "--device", "1"]);
    let child = Child(command.stdout(Stdio::null()).spawn().expect("the program is there"));
    wait_until("it has its memory", || soft.state.used(1) == IDLE_BYTES + CONTEXT_BYTES + (300 << 20));
    let pid = child.0.id().to_string();
    let script = "from pynvml import *\nnvmlInit()\nfor number in range(nvmlDeviceGetCount()):\n    \
        card = nvmlDeviceGetHandleByIndex(number)\n    \
        print(number, [(p.pid, p.usedGpuMemory >> 20) for p in nvmlDeviceGetComputeRunningProcesses(card)])\n";
    assert_eq!(tool_output(&soft, "python", &["-c", script]), format!("0 []\n1 [({pid}, 428)]\n"));
    let gpustat = tool_output(&soft, "gpustat", &["--show-pid", "--no-color"]);
    assert!(gpustat.contains(&format!("/{pid}(428M)")), "{gpustat}");
    let nvitop = tool_output(&soft, "nvitop", &["-1", "--no-unicode"]);
    assert!(nvitop.contains(&pid) && nvitop.contains("428"), "{nvitop}");
}
