//! The service on soft GPUs, with real programs of the driver API on them.
//!
//! The program is `examples/hold.py`; Python must be there. Everything is on the ordinary path of real
//! GPUs: a worker that reads NVML, processes with their bytes, exits. Faults are ordered as a person
//! would order them, and seen as a person would see them.

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Output, Stdio};
use sublet_blackbox::binary::{root, sublet};
use sublet_blackbox::service::bare_command;
use sublet_blackbox::{GIB, LONG, MIB, ServiceSetup, TestGpu, TestService, until};
use sublet_wire::{Gpu, GpuState, Gpus, Leases};

/// What the driver keeps of a soft GPU.
const IDLE: u64 = 64 * MIB;
/// What a context takes there.
const CONTEXT: u64 = 128 * MIB;
const NOTICE: &str = "these are soft GPUs: programs of CUDA's driver API run on them, PyTorch and the like do not";

fn serve(gpu: &'static str) -> TestService {
    TestService::start_with(ServiceSetup { gpu: TestGpu::Named(gpu), ..ServiceSetup::default() })
}

fn hold() -> String {
    root().join("examples/hold.py").to_str().expect("a plain path").to_owned()
}

/// A program that is killed, with all it started, when this is dropped; it has its memory by the time
/// it is here.
struct Holder(Child);

impl Holder {
    fn start(mut command: Command) -> Holder {
        let mut child = command.stdout(Stdio::piped()).process_group(0).spawn().expect("a program can be started");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        assert!(line.starts_with("holding "), "{line}");
        Holder(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // They may have ended, which is what is wanted.
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

fn cards(service: &TestService) -> Vec<Gpu> {
    service.client().get("/v1/gpus").read::<Gpus>().gpus
}

fn await_card(service: &TestService, index: usize, what: &str, is_so: impl Fn(&Gpu) -> bool) -> Gpu {
    *until(&format!("GPU {index}: {what}"), LONG, || {
        let card = Box::new(cards(service).into_iter().nth(index).expect("there is such a GPU"));
        if is_so(&card) { Ok(card) } else { Err(card) }
    })
}

fn leases(service: &TestService) -> Leases {
    serde_json::from_slice(&succeeded(&service.cli(&["ps", "--json"])).stdout).expect("JSON")
}

fn succeeded(output: &Output) -> &Output {
    assert!(output.status.success(), "{output:?}");
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn fault(service: &TestService, words: &str) -> String {
    let words: Vec<&str> = ["soft", "fault"].into_iter().chain(words.split(' ')).collect();
    text(&succeeded(&service.cli(&words)).stdout)
}

/// What the file says: the bytes of each process, with its pid.
fn on_the_cards(service: &TestService) -> Vec<(u64, u64)> {
    let output = service.cli(&["soft", "status", "--json"]);
    let shown: Value = serde_json::from_slice(&succeeded(&output).stdout).expect("JSON");
    let processes = shown["processes"].as_array().expect("a list").iter();
    processes.filter_map(|process| Some((process["pid"].as_u64()?, process["used_bytes"].as_u64()?))).collect()
}

#[test]
fn a_program_on_a_lease_is_seen_with_its_bytes_and_kill_minus_9_frees_them() {
    let service = serve("soft:2x4GiB");
    let mut run = service.command(&["run", "--vram", "2G", "--", "python3", &hold(), "1G", "600"]);
    run.stderr(Stdio::piped());
    let mut holder = Holder::start(run);
    let seen = GIB + CONTEXT;
    let lease = until("its bytes are in `ps`", LONG, || {
        let leases = leases(&service).leases;
        let lease = leases.first().filter(|lease| lease.seen_bytes == Some(seen)).cloned();
        lease.map(Box::new).ok_or(leases)
    });
    assert_eq!((lease.vram_bytes, lease.gpu_indices.as_slice()), (Some(2 * GIB), &[0][..]));
    let card = await_card(&service, 0, "its bytes are used", |card| card.used_bytes == Some(IDLE + seen));
    assert_eq!((card.unowned_bytes, card.coarse), (Some(IDLE), false), "all of it is the lease's");
    assert_eq!(cards(&service)[1].used_bytes, Some(IDLE), "the other GPU is another matter");
    let uuid = cards(&service)[1].uuid.clone();
    let words = ["run", "--vram", "1G", "--on", "1", "--", "python3", &hold(), "512M", "600", "--card", &uuid];
    let _other = Holder::start(service.command(&words));
    let other = await_card(&service, 1, "it is used now", |card| card.used_bytes == Some(IDLE + CONTEXT + 512 * MIB));
    assert_eq!(other.unowned_bytes, Some(IDLE), "and by a lease");
    let [(pid, bytes), _] = on_the_cards(&service)[..] else { panic!("two processes are there") };
    assert_eq!(bytes, seen);
    assert!(lease.pids.contains(&(pid as u32)), "{pid} is not among {:?}", lease.pids);
    let killed = Command::new("kill").args(["-9", &pid.to_string()]).status().expect("`kill` can be started");
    assert!(killed.success());
    assert_eq!(holder.0.wait().expect("an own child").code(), Some(137), "`run` tells the signal");
    let stderr = holder.0.stderr.take().expect("a pipe");
    let said: Vec<String> = BufReader::new(stderr).lines().take(2).map(|line| line.expect("a line")).collect();
    assert_eq!(said, ["L1: 2 GiB on GPU 0", NOTICE]);
    await_card(&service, 0, "it is free again", |card| card.used_bytes == Some(IDLE) && card.occupants.is_empty());
    assert_eq!(leases(&service).leases.len(), 1, "the other one's");
}

#[test]
fn a_program_without_a_lease_is_unleased_and_outlives_a_restart_of_the_service() {
    let mut service = serve("soft:1x4GiB");
    let stranger = Holder::start(service.command(&["soft", "env", "--", "python3", &hold(), "1G", "600"]));
    // A reading may be from between its context and its memory: the process is there then, and its bytes are not all.
    let is_seen = |card: &Gpu| {
        let is_there = card.occupants.iter().any(|one| one.pid == Some(stranger.0.id()));
        is_there && card.unowned_bytes == Some(IDLE + CONTEXT + GIB)
    };
    let card = await_card(&service, 0, "an unleased process is seen with all of its memory", is_seen);
    service.kill();
    service.restart();
    let after = await_card(&service, 0, "it is seen by the next one", is_seen);
    assert_eq!((after.uuid, after.used_bytes), (card.uuid, card.used_bytes), "it is the same GPU");
    service.kill();
    let refused = service.command(&["serve", "--state-dir", "state", "--gpu", "soft:2x8GiB"]).output();
    let refused = refused.expect("the service can be started");
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("process {} uses the soft GPUs there are", stranger.0.id())), "{said}");
    drop(stranger);
    service.set_gpu(TestGpu::Named("soft:2x8GiB"));
    service.restart();
    assert_eq!(cards(&service).iter().map(|card| card.total_bytes).collect::<Vec<_>>(), [8 * GIB, 8 * GIB]);
}

#[test]
fn a_lost_gpu_is_out_of_service_and_the_others_go_on() {
    let mut service = serve("soft:2x4GiB");
    assert_eq!(fault(&service, "1 nvml lost"), "GPU 1: nvml lost\n");
    let lost = await_card(&service, 1, "it is out of service", |card| card.state == GpuState::OutOfService);
    assert_eq!(lost.state_why.as_deref(), Some("the driver lost it; an operator must clear it"));
    assert_eq!((lost.promisable_bytes, lost.used_bytes), (0, None));
    let other = &cards(&service)[0];
    assert_eq!((other.state, other.used_bytes), (GpuState::InService, Some(IDLE)));
    succeeded(&service.cli(&["run", "--no-wait", "--vram", "2G", "--on", "0", "--", "true"]));
    fault(&service, "clear");
    await_card(&service, 1, "it answers again", |card| card.used_bytes == Some(IDLE));
    succeeded(&service.cli(&["gpus", "clear", "1"]));
    await_card(&service, 1, "it is leased again", |card| card.promisable_bytes > 3 * GIB);
    // A restarted daemon that never read the lost GPU does not know what it is; the other GPU works all the same.
    fault(&service, "1 nvml lost");
    service.kill();
    service.restart();
    succeeded(&service.cli(&["run", "--no-wait", "--vram", "2G", "--", "true"]));
    assert_ne!(cards(&service)[1].state, GpuState::InService);
    assert_eq!(cards(&service)[1].promisable_bytes, 0);
}

#[test]
fn an_nvml_that_hangs_or_fails_promises_nothing_until_it_answers_again() {
    let service = serve("soft:2x4GiB");
    assert_eq!(fault(&service, "0 nvml error"), "GPU 0: nvml error\n");
    let failing = await_card(&service, 0, "it is unreadable", |card| card.unreadable.is_some());
    assert_eq!((failing.state, failing.promisable_bytes), (GpuState::InService, 0));
    assert!(cards(&service)[1].unreadable.is_none(), "one GPU's error is not the other's");
    fault(&service, "0 nvml ok");
    await_card(&service, 0, "it answers again", |card| card.promisable_bytes > 0);
    assert_eq!(fault(&service, "nvml hang"), "GPU 0: nvml hang\nGPU 1: nvml hang\n");
    for index in [0, 1] {
        let hung = await_card(&service, index, "it is unreadable", |card| card.unreadable.is_some());
        assert_eq!(hung.promisable_bytes, 0);
    }
    let refused = service.cli(&["run", "--no-wait", "--vram", "1G", "--", "true"]);
    assert_eq!(refused.status.code(), Some(75), "{refused:?}");
    fault(&service, "clear");
    await_card(&service, 0, "it answers again", |card| card.unreadable.is_none() && card.promisable_bytes > 0);
    succeeded(&service.cli(&["run", "--vram", "1G", "--", "true"]));
}

#[test]
fn a_gpu_without_bytes_per_process_is_coarse() {
    let service = serve("soft:1x4GiB");
    fault(&service, "0 nvml no-bytes");
    let run = service.command(&["run", "--vram", "2G", "--", "python3", &hold(), "1G", "600"]);
    let _holder = Holder::start(run);
    let card = await_card(&service, 0, "it is coarse", |card| card.coarse);
    assert_eq!(card.used_bytes, Some(IDLE + CONTEXT + GIB), "what is used in all is still told");
    assert_eq!(leases(&service).leases[0].seen_bytes, None);
    fault(&service, "0 nvml ok");
    await_card(&service, 0, "it is not any more", |card| !card.coarse);
}

/// Locks and checkpoints another process; prints what each step gave, and how many bytes are used then.
const CHECKPOINT: &str = r#"
import ctypes as C, sys
cuda, pid, timeout = C.CDLL("libcuda.so.1"), int(sys.argv[1]), (C.c_uint32 * 16)(200)
cuda.cuInit(0)
steps = [cuda.cuCheckpointProcessLock(pid, timeout)]
if steps == [0]:
    steps.append(cuda.cuCheckpointProcessCheckpoint(pid, None))
print(*steps)
if len(sys.argv) > 2:
    print(cuda.cuCheckpointProcessRestore(pid, None), cuda.cuCheckpointProcessUnlock(pid, None))
"#;

#[test]
fn allocations_and_checkpoints_fail_on_order() {
    let service = serve("soft:1x4GiB");
    // The service measures a context at its first start, which takes memory, too.
    await_card(&service, 0, "its context was measured", |card| card.context_bytes.is_some());
    fault(&service, "0 allocations 1");
    let once = ["soft", "env", "--", "python3", &hold(), "1G", "0"];
    let failed = service.cli(&once);
    assert_eq!((failed.status.code(), text(&failed.stdout)), (Some(2), String::new()));
    assert!(text(&failed.stderr).contains("CUDA_ERROR_OUT_OF_MEMORY"), "{failed:?}");
    succeeded(&service.cli(&once));

    let mut holder = Holder::start(service.command(&["soft", "env", "--", "python3", &hold(), "1G", "600"]));
    let pid = holder.0.id().to_string();
    let checkpoint = |more: &[&str]| {
        let words = [&["soft", "env", "--", "python3", "-c", CHECKPOINT, pid.as_str()][..], more].concat();
        text(&succeeded(&service.cli(&words)).stdout)
    };
    let used = || on_the_cards(&service).iter().map(|(_, bytes)| bytes).sum::<u64>();
    assert_eq!(fault(&service, "checkpoint times-out"), "GPU 0: checkpoint times-out\n");
    assert_eq!(checkpoint(&[]), "600\n", "it is not ready in time");
    fault(&service, "checkpoint frees-nothing");
    assert_eq!((checkpoint(&[]), used()), ("0 0\n".into(), GIB + CONTEXT), "it says that it did");
    fault(&service, "checkpoint ok");
    assert_eq!(checkpoint(&["back"]), "401\n0 0\n", "it is locked already; then it is brought back");
    assert_eq!((checkpoint(&[]), used()), ("0 0\n".into(), 0));
    assert_eq!(checkpoint(&["back"]), "401\n0 0\n");
    fault(&service, "checkpoint kills-target");
    assert_eq!(checkpoint(&[]), "0 304\n");
    assert_eq!(holder.0.wait().expect("an own child").signal(), Some(9));
    assert_eq!(fault(&service, "clear"), "GPU 0: no faults\n");
}

/// Prints the least seconds of five that a copy of 8 MiB took, and a kernel.
const TIMES: &str = r#"
import ctypes as C, time
PTX = b"""
.version 6.4
.target sm_75
.address_size 64
.visible .entry count() {
    .reg .u32 %r;
    .reg .pred %p;
    mov.u32 %r, 0;
next:
    add.u32 %r, %r, 1;
    setp.lt.u32 %p, %r, 20000;
    @%p bra next;
    ret;
}
"""
cuda = C.CDLL("libcuda.so.1")
def call(name, *arguments):
    assert getattr(cuda, name)(*arguments) == 0, name
device, context, module, function = C.c_int(), C.c_void_p(), C.c_void_p(), C.c_void_p()
memory, data = C.c_uint64(), bytes(8 << 20)
call("cuInit", 0)
call("cuDeviceGet", C.byref(device), 0)
call("cuDevicePrimaryCtxRetain", C.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", C.byref(memory), C.c_size_t(len(data)))
call("cuModuleLoadData", C.byref(module), PTX + b"\0")
call("cuModuleGetFunction", C.byref(function), module, b"count")
def copy():
    call("cuMemcpyHtoD_v2", memory, data, C.c_size_t(len(data)))
def launch():
    call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    call("cuCtxSynchronize")
def least(what):
    times = []
    for _ in range(5):
        begun = time.monotonic()
        what()
        times.append(time.monotonic() - begun)
    return min(times)
print(least(copy), least(launch))
"#;

#[test]
fn kernels_and_copies_are_slow_on_order() {
    let service = serve("soft:1x4GiB");
    let times = || {
        let printed = text(&succeeded(&service.cli(&["soft", "env", "--", "python3", "-c", TIMES])).stdout);
        let mut times = printed.split_whitespace().map(|time| time.parse::<f64>().expect("a time"));
        (times.next().expect("a copy's"), times.next().expect("a kernel's"))
    };
    let (_, kernel) = times();
    assert_eq!(fault(&service, "0 copy-rate 64MiB/s"), "GPU 0: copy-rate 64 MiB/s\n");
    let (copy, _) = times();
    assert!(copy >= 0.12, "8 MiB at 64 MiB/s took {copy} s");
    fault(&service, "copy-rate off");
    assert_eq!(fault(&service, "slow 900"), "GPU 0: slow 900\n");
    let (_, slow) = times();
    assert!(slow >= 5.0 * kernel, "ten times as long as {kernel} s is not {slow} s");
}

#[test]
fn the_service_uses_soft_gpus_by_itself_and_says_so_everywhere() {
    if ["/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg"].iter().any(|path| std::path::Path::new(path).exists()) {
        eprintln!("skipped: there is an NVIDIA device here, and nothing is chosen in its place");
        return;
    }
    let mut service = TestService::start_with(ServiceSetup { gpu: TestGpu::Unspecified, ..ServiceSetup::default() });
    let log = service.log();
    assert!(log.contains("no NVIDIA device is visible on this machine: soft GPUs are used"), "{log}");
    assert!(log.contains(NOTICE), "{log}");
    let found: Gpus = service.client().get("/v1/gpus").read();
    assert_eq!((found.kind.as_str(), found.gpus.len()), ("soft", 2));
    assert_eq!(found.soft_state.as_deref(), service.dir().join("s.soft").to_str());
    for words in [&[][..], &["doctor"]] {
        let said = text(&succeeded(&service.cli(words)).stdout);
        assert!(said.contains(NOTICE), "{words:?}: {said}");
    }
    // What it has is what it goes on with: nothing else is served from the same journal.
    service.kill();
    let other = service.command(&["serve", "--state-dir", "state", "--gpu", "scripted:1x24GiB"]).output();
    let said = text(&other.expect("the service can be started").stderr);
    assert!(said.contains("the state directory has soft GPUs in its journal"), "{said}");
}

#[test]
fn the_file_names_the_gpus_and_the_command_line_overrides_it() {
    let config = Some("gpu = \"soft:3x2GiB\"\n".to_owned());
    let service = TestService::start_with(ServiceSetup {
        gpu: TestGpu::Unspecified,
        config: config.clone(),
        ..ServiceSetup::default()
    });
    assert_eq!(cards(&service).len(), 3);
    let service =
        TestService::start_with(ServiceSetup { gpu: TestGpu::Named("soft:1x2GiB"), config, ..ServiceSetup::default() });
    assert_eq!(cards(&service).len(), 1);
}

#[test]
fn a_lease_for_a_shell_sets_up_the_soft_gpus() {
    let service = serve("soft:1x4GiB");
    let lease = service.cli(&["lease", "--detach", "--vram", "1G"]);
    let lines = text(&succeeded(&lease).stdout);
    let soft = sublet().parent().expect("a directory").join("soft");
    assert!(lines.contains(&format!("export LD_LIBRARY_PATH={};\n", soft.display())), "{lines}");
    assert!(lines.contains(&format!("export SUBLET_SOFT_STATE={}/s.soft;\n", service.dir().display())), "{lines}");
    assert!(lines.contains("export CUDA_VISIBLE_DEVICES=0;\n"), "{lines}");
    // What `soft env` prints does the same without a lease.
    let script = format!("eval \"$({} soft env 2>/dev/null)\" && exec python3 {} 64M 0", sublet().display(), hold());
    let mut shell = bare_command("/bin/sh".as_ref(), service.dir());
    let shell = shell.args(["-c", &script]).env("SUBLET_SOCKET", service.dir().join("s")).output().expect("a shell");
    assert!(text(&succeeded(&shell).stdout).starts_with("holding 64 MiB of GPU-50f7ca2d-"), "{shell:?}");
}

#[test]
fn a_program_can_have_private_soft_gpus_that_go_away_with_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let alone = |words: &[&str]| {
        let mut command = bare_command(sublet(), dir.path());
        command.env("SUBLET_SOCKET", dir.path().join("absent")).args(words).stdin(Stdio::null());
        command.output().expect("the command line can be started")
    };
    let held = alone(&["soft", "env", "--", "python3", &hold(), "1G", "0"]);
    assert!(text(&succeeded(&held).stdout).starts_with("holding 1024 MiB"), "{held:?}");
    assert_eq!(text(&held.stderr).trim_end(), NOTICE);
    let script = format!("echo $SUBLET_SOFT_STATE; {} soft status --json; exit 7", sublet().display());
    let inside = alone(&["soft", "env", "--gpus", "1x80GiB,1x2GiB", "--", "sh", "-c", &script]);
    assert_eq!(inside.status.code(), Some(7), "{inside:?}");
    let printed = text(&inside.stdout);
    let (file, shown) = printed.split_once('\n').expect("two things");
    let shown: Value = serde_json::from_str(shown).expect("JSON");
    assert_eq!(shown["gpus"][0]["total_bytes"], 80 * GIB);
    assert_eq!(shown["gpus"][1]["total_bytes"], 2 * GIB);
    assert!(!std::path::Path::new(file).exists(), "{file} is left");
    assert_eq!(alone(&["soft", "env", "--", "sh", "-c", "kill -TERM $$"]).status.signal(), Some(15));

    let code = |words: &[&str]| alone(words).status.code();
    assert_eq!(code(&["soft", "env", "--", "no-such-program"]), Some(127));
    assert_eq!(code(&["soft", "env", "--", "/etc/passwd"]), Some(126));
    assert_eq!(code(&["soft", "env", "--gpus", "2x", "--", "true"]), Some(64));
    assert_eq!(code(&["soft", "env"]), Some(69), "there is nothing to print");
    let none = alone(&["soft", "fault", "clear"]);
    assert_eq!(none.status.code(), Some(69));
    assert!(text(&none.stderr).contains("there are no soft GPUs: no daemon answers at "), "{none:?}");
}

#[test]
fn scripted_gpus_and_missing_libraries_are_refused_with_a_hint() {
    let scripted = TestService::start();
    let refused = scripted.cli(&["soft", "fault", "nvml", "lost"]);
    assert_eq!(refused.status.code(), Some(64));
    assert!(text(&refused.stderr).contains("are scripted, not soft\nhint: start some with"), "{refused:?}");
    assert!(cards(&scripted)[0].unreadable.is_none());
    let missing = |words: &[&str]| {
        let output = scripted.command(words).env("SUBLET_SOFT_LIB", "/nowhere").output();
        let output = output.expect("the command line can be started");
        (output.status.code(), text(&output.stderr))
    };
    let not_found = "the soft GPUs' libraries (libcuda.so.1, libnvidia-ml.so.1) were not found in `/nowhere`\n\
                     hint: `cargo xtask up` in a checkout builds them; SUBLET_SOFT_LIB can name the directory";
    let (code, said) = missing(&["serve", "--state-dir", "other", "--socket", "other.sock", "--gpu", "soft:1x4GiB"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(not_found), "{said}");
    let (code, said) = missing(&["soft", "env", "--gpus", "1x4GiB", "--", "true"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(not_found), "{said}");
}
