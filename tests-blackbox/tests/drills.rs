//! Faults during parks and resumes, rehearsed on soft GPUs with real programs: programs that die, report falsely or
//! hang, unleased processes that take the room, and what users and operators then see.
//!
//! The programs know what must be in their memory, and say so if it is not.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::thread;
use std::time::Duration;
use sublet_blackbox::binary::example;
use sublet_blackbox::programs::{
    UnleasedProgram, WrappedProgram, await_bytes, await_state, post_action, successful_output, text,
};
use sublet_blackbox::wait::throughout;
use sublet_blackbox::{LONG, MIB, ServiceSetup, TestClient, TestGpu, TestService, until};
use sublet_wire::{EndReason, GpuState, Lease, LeaseState, ParkMethod};

/// What the driver itself uses of a soft GPU.
const IDLE: u64 = 64 * MIB;

/// Terms so long that nothing comes to its end by itself, and no memory kept ready.
const CONFIG: &str = r#"
ttl = "5m"
[preemption]
time_slice = "1s"
idle_after = "2s"
retry_after = "5s"
[parking]
ram = "4G"
keep_free = "256M"
ready = "off"
"#;

fn serve(gpu: &'static str) -> TestService {
    serve_with(gpu, "ram = \"4G\"")
}

/// The same with another line in place of the one that says how much may be parked.
fn serve_with(gpu: &'static str, ram: &str) -> TestService {
    let config = Some(CONFIG.replace("ram = \"4G\"", ram));
    TestService::start_with(ServiceSetup { gpu: TestGpu::Named(gpu), config, ..ServiceSetup::default() })
}

fn fault(service: &TestService, words: &str) {
    let words: Vec<&str> = ["soft", "fault"].into_iter().chain(words.split(' ')).collect();
    successful_output(service, &words);
}

fn audit(service: &TestService, id: &str) -> String {
    text(&service.cli(&["audit", "--lease", id]))
}

/// One process on the soft GPUs, as their file has it.
#[derive(Clone, Debug)]
struct OnCard {
    pid: u32,
    state: String,
}

fn on_the_cards(service: &TestService) -> Vec<OnCard> {
    let shown: Value = serde_json::from_slice(&service.cli(&["soft", "status", "--json"]).stdout).expect("JSON");
    let one = |process: &Value| OnCard {
        pid: process["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a pid"),
        state: process["state"].as_str().expect("a word").to_owned(),
    };
    shown["processes"].as_array().expect("a list").iter().map(one).collect()
}

/// What the driver says of a process.
fn at(service: &TestService, pid: u32) -> Option<String> {
    on_the_cards(service).into_iter().find(|process| process.pid == pid).map(|process| process.state)
}

/// The one process of a lease that is on a GPU.
fn program_of(service: &TestService, id: &str) -> u32 {
    until(&format!("{id} is seen on its GPU"), LONG, || {
        let pids = service.client().lease(id).pids;
        let found = on_the_cards(service).into_iter().find(|process| pids.contains(&process.pid));
        found.map(|process| process.pid).ok_or(pids)
    })
}

fn pid_of(pid: u32) -> Pid {
    i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a pid")
}

fn signal(pid: u32, signal: Signal) {
    kill_process(pid_of(pid), signal).expect("a process of this test");
}

fn await_ended(client: &TestClient, id: &str) -> Lease {
    client.await_lease("it is over", id, |lease| lease.state == LeaseState::Ended)
}

fn await_audit(service: &TestService, id: &str, what: &str) -> String {
    until(&format!("the audit of {id} has `{what}`"), LONG, || {
        let audit = audit(service, id);
        if audit.contains(what) { Ok(audit) } else { Err(audit) }
    })
}

/// With Sublet's library in its programs, or without.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Library,
    Driver,
}

const BOTH: [Way; 2] = [Way::Library, Way::Driver];

/// An idle program that holds memory, once it was seen there and can be parked.
fn start_holding(service: &TestService, id: &str, way: Way, vram: &str, mib: u64) -> WrappedProgram {
    let (hold, size) = (example("hold"), format!("{mib}MiB"));
    let mut words = vec!["--vram", vram];
    words.extend((way == Way::Driver).then_some("--no-shim"));
    words.extend(["--", &hold, &size, "--idle"]);
    let mut job = WrappedProgram::start(service, &words);
    let line = job.line();
    assert!(line.starts_with("holds "), "{line:?}; {}", job.output_text());
    await_bytes(&service.client(), id, mib);
    service.client().await_lease("it can be parked", id, |lease| lease.not_parkable.is_none());
    job
}

/// A more urgent request for `vram`; its program does not use the GPU.
fn guest(service: &TestService, vram: &str) -> WrappedProgram {
    WrappedProgram::start(service, &["--vram", vram, "--tier", "interactive", "--", "sleep", "600"])
}

/// Parks a lease by hand. It may take the service a moment to learn that a program can be parked.
fn park(service: &TestService, id: &str) {
    until(&format!("{id} is parked"), LONG, || {
        let output = service.cli(&["park", id]);
        if output.status.success() { Ok(()) } else { Err(text(&output)) }
    });
    assert_eq!(service.client().lease(id).state, LeaseState::Parked);
}

/// What the service has started.
fn children(service: &TestService) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{}/task", service.pid())).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// The process through which the service speaks with the driver.
fn driver_worker(service: &TestService) -> u32 {
    until("there is a worker for the driver", LONG, || {
        let pids = children(service);
        let words = |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_it = |pid: &&u32| words(pid).split(|byte| *byte == 0).any(|word| word == b"driver");
        pids.iter().find(is_it).copied().ok_or(pids.clone())
    })
}

/// Runs `what` while the driver does not answer.
fn while_the_driver_hangs<T>(service: &TestService, what: impl FnOnce() -> T) -> T {
    let worker = driver_worker(service);
    signal(worker, Signal::STOP);
    let done = what();
    // If `what` took too long, the worker was killed and replaced.
    let _ = kill_process(pid_of(worker), Signal::CONT);
    done
}

fn a_program_that_dies_during_a_park_frees_everything(way: Way) {
    // Enough for one, so that whatever stayed booked would be noticed.
    let service = serve_with("soft:1x4GiB", "ram = \"900M\"");
    let client = service.client();
    let job = start_holding(&service, "L1", way, "3G", 512);
    let victim = program_of(&service, "L1");
    fault(&service, if way == Way::Library { "copy-rate 32MiB/s" } else { "checkpoint times-out" });
    let waiter = guest(&service, "3G");
    let leaving = await_state(&client, "L1", LeaseState::Parking);
    assert_eq!(leaving.method, Some(if way == Way::Library { ParkMethod::Shim } else { ParkMethod::Driver }));
    assert_eq!(client.lease("L2").state, LeaseState::Waiting, "its room is not there yet");
    signal(victim, Signal::KILL);
    await_ended(&client, "L1");
    await_state(&client, "L2", LeaseState::Active);
    assert_eq!(job.end().0, Some(128 + 9), "its wrapper says how it ended");
    assert_eq!(client.card().used_bytes, Some(IDLE));
    drop(waiter);
    await_ended(&client, "L2");
    fault(&service, "clear");
    let next = start_holding(&service, "L3", way, "3G", 512);
    park(&service, "L3");
    successful_output(&service, &["resume", "L3"]);
    next.finish("the next one moves as ever");
}

#[test]
fn a_program_that_dies_during_a_park_by_the_library_frees_everything() {
    a_program_that_dies_during_a_park_frees_everything(Way::Library);
}

#[test]
fn a_program_that_dies_during_a_park_by_the_driver_frees_everything() {
    a_program_that_dies_during_a_park_frees_everything(Way::Driver);
}

fn a_program_that_dies_during_a_resume_frees_everything(way: Way) {
    let service = serve_with("soft:1x4GiB", "ram = \"900M\"");
    let client = service.client();
    let job = start_holding(&service, "L1", way, "3G", 512);
    let victim = program_of(&service, "L1");
    park(&service, "L1");
    let dies = || {
        post_action(&client, "L1", "resume");
        await_state(&client, "L1", LeaseState::Resuming);
        let waiter = guest(&service, "3G");
        await_state(&client, "L2", LeaseState::Waiting);
        assert_eq!(client.lease("L1").state, LeaseState::Resuming, "its bytes take their time");
        signal(victim, Signal::KILL);
        await_ended(&client, "L1");
        await_state(&client, "L2", LeaseState::Active);
        waiter
    };
    let waiter = match way {
        Way::Library => {
            fault(&service, "copy-rate 32MiB/s");
            dies()
        }
        Way::Driver => while_the_driver_hangs(&service, dies),
    };
    assert_eq!(job.end().0, Some(128 + 9), "its wrapper says how it ended");
    assert_eq!(client.card().used_bytes, Some(IDLE));
    drop(waiter);
    await_ended(&client, "L2");
    fault(&service, "clear");
    let next = start_holding(&service, "L3", way, "3G", 512);
    park(&service, "L3");
    successful_output(&service, &["resume", "L3"]);
    next.finish("the next one moves as ever");
}

#[test]
fn a_program_that_dies_during_a_resume_by_the_library_frees_everything() {
    a_program_that_dies_during_a_resume_frees_everything(Way::Library);
}

#[test]
fn a_program_that_dies_during_a_resume_by_the_driver_frees_everything() {
    a_program_that_dies_during_a_resume_frees_everything(Way::Driver);
}

#[test]
fn a_program_that_outlives_its_wrapper_is_parked_for_others_and_comes_back() {
    for way in BOTH {
        let service = serve("soft:1x4GiB");
        let client = service.client();
        let job = start_holding(&service, "L1", way, "3G", 512);
        let program = program_of(&service, "L1");
        signal(job.child.id(), Signal::KILL);
        let waiter = guest(&service, "3G");
        await_state(&client, "L2", LeaseState::Active);
        let parked = client.lease("L1");
        assert_eq!(parked.state, LeaseState::Parked, "it is a holder as before");
        assert!(parked.pids.contains(&program), "{parked:?}");
        drop(waiter);
        await_ended(&client, "L2");
        if way == Way::Driver {
            await_bytes(&client, "L1", 512);
        }
        // It looks at its memory, which is use.
        signal(program, Signal::TERM);
        let (_, rest) = job.end();
        assert!(rest.contains("bytes as written"), "{rest}");
        assert_eq!(await_ended(&client, "L1").ended.map(|ended| ended.reason), Some(EndReason::HolderExited));
    }
}

#[test]
fn a_checkpoint_that_frees_nothing_is_not_believed_and_not_tried_again_at_once() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    // More than half of the GPU, so that it could not be there twice.
    let job = start_holding(&service, "L1", Way::Driver, "3G", 2048);
    let program = program_of(&service, "L1");
    fault(&service, "checkpoint frees-nothing");
    let waiter = guest(&service, "3G");
    await_state(&client, "L1", LeaseState::Parking);
    let trail = await_audit(&service, "L1", "the readings show otherwise");
    assert!(!trail.contains("is parked"), "{trail}");
    await_state(&client, "L1", LeaseState::Active);
    until("it goes on", LONG, || match at(&service, program) {
        Some(state) if state == "running" => Ok(()),
        other => Err(other),
    });
    assert_eq!(client.lease("L2").state, LeaseState::Waiting);
    let explained = successful_output(&service, &["explain", "L2"]);
    assert!(explained.contains("its programs reported that they freed their VRAM, and they had not"), "{explained}");
    throughout(Duration::from_secs(3), || {
        assert_eq!(client.lease("L1").state, LeaseState::Active);
        assert_eq!(client.lease("L2").state, LeaseState::Waiting);
    });
    let trail = audit(&service, "L1");
    assert_eq!(trail.matches("by the driver; ").count(), 1, "{trail}");
    drop(waiter);
    job.finish("nothing was done to it");
}

/// Holds memory, and runs a kernel until a file is there; then it looks at all of its memory.
const LONG_KERNEL: &str = r#"
import ctypes as C, os, sys, time
PTX = b"""
.version 8.0
.target sm_75
.address_size 64
.visible .entry stay(.param .u64 place)
{
    .reg .pred %p; .reg .b32 %r; .reg .b64 %rd;
    ld.param.u64 %rd, [place];
again:
    ld.volatile.u32 %r, [%rd];
    setp.eq.u32 %p, %r, 0;
    @%p bra again;
    ret;
}
"""
cuda, size = C.CDLL("libcuda.so.1"), 64 << 20
def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    assert result == 0, (name, result)
context, module, kernel, flag, memory = (C.c_void_p() for _ in range(5))
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", C.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", C.byref(memory), C.c_size_t(size))
call("cuMemsetD32_v2", memory, 0x600dda7a, C.c_size_t(size // 4))
call("cuMemHostAlloc", C.byref(flag), C.c_size_t(4096), 2)
call("cuModuleLoadData", C.byref(module), PTX + b"\0")
call("cuModuleGetFunction", C.byref(kernel), module, b"stay")
word = C.c_uint32.from_address(flag.value)
word.value = 0
place = C.c_uint64(flag.value)
arguments = (C.c_void_p * 1)(C.cast(C.byref(place), C.c_void_p))
call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
print("holds", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
word.value = 1
call("cuCtxSynchronize")
print("the kernel is over", flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.02)
data = C.create_string_buffer(size)
call("cuMemcpyDtoH_v2", data, memory, C.c_size_t(size))
print("as written" if data.raw == bytes.fromhex("7ada0d60") * (size // 4) else "damaged", flush=True)
"#;

#[test]
fn a_lock_that_times_out_under_a_long_kernel_leaves_the_program_unharmed() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let (over, look) = (service.dir().join("over"), service.dir().join("look"));
    let paths = [&over, &look].map(|path| path.to_str().expect("test paths are plain").to_owned());
    let words = ["--vram", "3G", "--no-shim", "--", "python3", "-c", LONG_KERNEL, &paths[0], &paths[1]];
    let mut job = WrappedProgram::start(&service, &words);
    assert_eq!(job.line(), "holds\n", "{}", job.output_text());
    await_bytes(&client, "L1", 64);
    let program = program_of(&service, "L1");
    client.await_lease("it can be parked", "L1", |lease| lease.not_parkable.is_none());
    let refused = service.cli(&["park", "L1"]);
    assert!(!refused.status.success(), "{refused:?}");
    let trail = await_audit(&service, "L1", "L1 stays on its GPUs: ");
    assert!(trail.contains("had work under way that did not end in time"), "{trail}");
    await_state(&client, "L1", LeaseState::Active);
    assert_eq!(at(&service, program).as_deref(), Some("running"), "nothing stays locked");
    fs::write(&over, "").expect("a file");
    assert_eq!(job.line(), "the kernel is over\n", "{}", job.output_text());
    park(&service, "L1");
    assert_eq!(at(&service, program).as_deref(), Some("checkpointed"));
    successful_output(&service, &["resume", "L1"]);
    fs::write(&look, "").expect("a file");
    assert_eq!(job.end(), (Some(0), "as written\n".to_owned()));
}

#[test]
fn a_resume_by_the_library_loses_no_byte_if_an_unleased_process_has_the_room() {
    let service = serve("soft:1x2GiB");
    let client = service.client();
    let job = start_holding(&service, "L1", Way::Library, "1500M", 512);
    let program = program_of(&service, "L1");
    park(&service, "L1");
    // Its room is reserved, and it cannot take it before the unleased process does.
    signal(program, Signal::STOP);
    post_action(&client, "L1", "resume");
    await_state(&client, "L1", LeaseState::Resuming);
    let stranger = UnleasedProgram::start_holding(&service, 1300);
    signal(program, Signal::CONT);
    await_audit(&service, "L1", "found no room when it was resumed");
    let back = await_state(&client, "L1", LeaseState::Parked);
    assert!(back.waiting.is_some(), "it keeps its place: {back:?}");
    throughout(Duration::from_secs(2), || assert_eq!(client.lease("L1").state, LeaseState::Parked));
    drop(stranger);
    await_bytes(&client, "L1", 512);
    job.finish("after a stranger had its room");
}

#[test]
fn no_driver_restore_is_tried_while_an_unleased_process_has_the_room() {
    let service = serve("soft:1x2GiB");
    let client = service.client();
    let job = start_holding(&service, "L1", Way::Driver, "1500M", 512);
    let program = program_of(&service, "L1");
    park(&service, "L1");
    let stranger = while_the_driver_hangs(&service, || {
        post_action(&client, "L1", "resume");
        await_state(&client, "L1", LeaseState::Resuming);
        UnleasedProgram::start_holding(&service, 1300)
    });
    await_audit(&service, "L1", "found no room when it was resumed");
    await_state(&client, "L1", LeaseState::Parked);
    throughout(Duration::from_secs(2), || {
        assert_eq!(at(&service, program).as_deref(), Some("checkpointed"), "a restore would have lost it");
    });
    drop(stranger);
    await_bytes(&client, "L1", 512);
    job.finish("after a stranger had its room");
}

#[test]
fn parking_ram_for_one_parks_one_and_says_why_the_other_stays() {
    let service = serve_with("soft:1x4GiB", "ram = \"900M\"");
    let client = service.client();
    let jobs = [
        start_holding(&service, "L1", Way::Library, "1700M", 512),
        start_holding(&service, "L2", Way::Library, "1700M", 512),
    ];
    let first = guest(&service, "1500M");
    await_state(&client, "L3", LeaseState::Active);
    let second = guest(&service, "1500M");
    await_state(&client, "L4", LeaseState::Waiting);
    let why = "and the parking space has";
    let explained = until("explain says why no lease is parked", LONG, || {
        let explained = text(&service.cli(&["explain", "L4"]));
        if explained.contains(why) { Ok(explained) } else { Err(explained) }
    });
    assert!(explained.contains("preemption: 704 MiB would have to be parked for it"), "{explained}");
    let states = || ["L1", "L2"].map(|id| client.lease(id).state);
    throughout(Duration::from_secs(3), || {
        let count = |wanted: LeaseState| states().iter().filter(|state| **state == wanted).count();
        assert_eq!((count(LeaseState::Parked), count(LeaseState::Active)), (1, 1));
        assert_eq!(client.lease("L4").state, LeaseState::Waiting);
    });
    let stays = if states()[0] == LeaseState::Active { "L1" } else { "L2" };
    let refused = service.cli(&["park", stays]);
    assert!(!refused.status.success() && text(&refused).contains(why), "{refused:?}");
    drop((first, second));
    jobs.into_iter().for_each(|job| job.finish("no lease was ended"));
}

fn available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").expect("a file");
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[test]
fn no_lease_is_parked_while_the_host_needs_its_memory_and_explain_says_so() {
    // Seven eighths of the available memory must stay free, and this test takes a quarter. Other tests at the same time
    // take and give back far less than an eighth.
    let (available, eighth) = (available(), available() / 8);
    let leave = format!("keep_free = \"{}M\"", (available - eighth) / MIB);
    let config = Some(CONFIG.replace("keep_free = \"256M\"", &leave));
    let service =
        TestService::start_with(ServiceSetup { gpu: TestGpu::Named("soft:1x4GiB"), config, ..ServiceSetup::default() });
    let client = service.client();
    let job = start_holding(&service, "L1", Way::Library, "3G", 512);
    // Every page is written to, so that it is really taken.
    let hog = vec![1_u8; usize::try_from(2 * eighth).expect("as much as there is")];
    let why = "the parking space has 0 B free now";
    until("it is seen that others need it", LONG, || match client.lease("L1").not_parkable {
        Some(told) if told.contains(why) => Ok(()),
        other => Err(other),
    });
    let waiter = guest(&service, "3G");
    await_state(&client, "L2", LeaseState::Waiting);
    until("explain says why no lease is parked", LONG, || {
        let explained = text(&service.cli(&["explain", "L2"]));
        if explained.contains(why) { Ok(()) } else { Err(explained) }
    });
    let refused = service.cli(&["park", "L1"]);
    assert!(!refused.status.success() && text(&refused).contains(why), "{refused:?}");
    throughout(Duration::from_secs(3), || assert_eq!(client.lease("L1").state, LeaseState::Active));
    drop(hog);
    await_state(&client, "L2", LeaseState::Active);
    assert_eq!(client.lease("L1").state, LeaseState::Parked);
    drop(waiter);
    job.finish("after there was memory again");
}

/// All processes of this service and of a lease stand still, as if the host slept.
fn while_all_sleep(service: &TestService, id: &str, how_long: Duration) {
    let own = service.client().lease(id).pids;
    let all: Vec<u32> = own.into_iter().chain(children(service)).chain([service.pid()]).collect();
    all.iter().for_each(|pid| signal(*pid, Signal::STOP));
    thread::sleep(how_long);
    all.iter().for_each(|pid| signal(*pid, Signal::CONT));
}

fn a_host_that_sleeps_during_a_park_loses_nothing(way: Way) {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let job = start_holding(&service, "L1", way, "3G", 512);
    fault(&service, if way == Way::Library { "copy-rate 128MiB/s" } else { "checkpoint times-out" });
    let waiter = guest(&service, "3G");
    await_state(&client, "L1", LeaseState::Parking);
    // Longer than a park may take.
    while_all_sleep(&service, "L1", Duration::from_secs(20));
    fault(&service, "clear");
    // It was parked meanwhile, or the park was given up and is tried again. The waiter is granted its lease, but not
    // before a reading showed that the bytes are gone.
    until("the waiter has the GPU", LONG, || {
        let (guest, victim) = (client.lease("L2").state, client.lease("L1").state);
        assert!(guest != LeaseState::Active || victim == LeaseState::Parked, "{victim:?}, and {guest:?}");
        if guest == LeaseState::Active { Ok(()) } else { Err((victim, guest)) }
    });
    post_action(&client, "L1", "resume");
    while_all_sleep(&service, "L1", Duration::from_secs(2));
    drop(waiter);
    await_state(&client, "L1", LeaseState::Active);
    job.finish("after the host slept");
}

#[test]
fn a_host_that_sleeps_while_the_library_parks_loses_nothing() {
    a_host_that_sleeps_during_a_park_loses_nothing(Way::Library);
}

#[test]
fn a_host_that_sleeps_while_the_driver_parks_loses_nothing() {
    a_host_that_sleeps_during_a_park_loses_nothing(Way::Driver);
}

#[test]
fn a_stopped_program_is_not_parked_by_the_library_and_delays_no_other() {
    let service = serve("soft:2x4GiB");
    let client = service.client();
    let job = start_holding(&service, "L1", Way::Library, "3G", 512);
    let program = program_of(&service, "L1");
    signal(program, Signal::STOP);
    let waiter =
        WrappedProgram::start(&service, &["--vram", "3G", "--on", "0", "--tier", "interactive", "--", "sleep", "600"]);
    await_state(&client, "L1", LeaseState::Parking);
    successful_output(
        &service,
        &["run", "--vram", "1G", "--on", "1", "--", &example("hold"), "64MiB", "--seconds", "0"],
    );
    await_audit(&service, "L1", "one of its programs did not answer in time");
    assert_eq!(client.lease("L2").state, LeaseState::Waiting);
    signal(program, Signal::CONT);
    await_state(&client, "L1", LeaseState::Active);
    park(&service, "L1");
    await_state(&client, "L2", LeaseState::Active);
    drop(waiter);
    job.finish("after it was stopped");
}

#[test]
fn a_stopped_program_is_not_parked_by_the_driver_and_delays_no_other() {
    let service = serve("soft:2x4GiB");
    let client = service.client();
    let job = start_holding(&service, "L1", Way::Driver, "3G", 512);
    let program = program_of(&service, "L1");
    signal(program, Signal::STOP);
    let waiter =
        WrappedProgram::start(&service, &["--vram", "3G", "--on", "0", "--tier", "interactive", "--", "sleep", "600"]);
    await_state(&client, "L2", LeaseState::Waiting);
    until("it is said that it is stopped", LONG, || {
        let told = format!("{}{}", audit(&service, "L1"), text(&service.cli(&["explain", "L2"])));
        if told.contains("is stopped") { Ok(()) } else { Err(told) }
    });
    // Others are moved by the same worker meanwhile.
    let hold = example("hold");
    let words = ["--vram", "1G", "--on", "1", "--no-shim", "--", &hold, "64MiB", "--idle"];
    let mut other = WrappedProgram::start(&service, &words);
    assert!(other.line().starts_with("holds "), "{}", other.output_text());
    await_bytes(&client, "L3", 64);
    park(&service, "L3");
    successful_output(&service, &["resume", "L3"]);
    other.finish("beside a stopped one");
    assert_eq!(client.lease("L2").state, LeaseState::Waiting);
    signal(program, Signal::CONT);
    assert_eq!(at(&service, program).as_deref(), Some("running"));
    until("it can be parked again", LONG, || {
        let output = service.cli(&["park", "L1"]);
        let is_parked = client.lease("L1").state == LeaseState::Parked;
        if is_parked { Ok(()) } else { Err(text(&output)) }
    });
    await_state(&client, "L2", LeaseState::Active);
    drop(waiter);
    await_ended(&client, "L2");
    successful_output(&service, &["resume", "L1"]);
    job.finish("after it was stopped");
}

#[test]
fn a_lost_gpu_ends_the_leases_parked_from_it_and_nothing_hangs() {
    for way in BOTH {
        let mut service = serve("soft:2x4GiB");
        let client = service.client();
        let job = start_holding(&service, "L1", way, "3G", 512);
        park(&service, "L1");
        fault(&service, "0 nvml lost");
        // No reading can show its GPU without its bytes, so they count until an operator clears the GPU.
        let ended = await_state(&client, "L1", LeaseState::Ending).ended.expect("how it ended");
        assert_eq!(ended.reason, EndReason::GpuLost);
        assert!(ended.sentence.contains("its GPU is gone"), "{}", ended.sentence);
        assert_eq!(client.card().state, GpuState::OutOfService);
        until("its owner was told", LONG, || {
            let said = job.output_text();
            if said.contains("its GPU is gone") { Ok(()) } else { Err(said) }
        });
        successful_output(&service, &["run", "--vram", "1G", "--on", "1", "--", "true"]);
        if way == Way::Library {
            kill_process(Pid::from_child(&job.child), Signal::TERM).expect("an own child");
            let stderr = job.stderr.clone();
            let (code, rest) = job.end();
            let said = fs::read_to_string(stderr).expect("its words");
            assert_eq!((code, rest.as_str()), (Some(1), ""), "it cannot read its memory, and says so: {said}");
            assert!(said.contains("hold: "), "{said}");
        } else {
            drop(job);
        }
        fault(&service, "clear");
        until("the GPU answers again", LONG, || client.card().used_bytes.filter(|used| *used == IDLE).ok_or(()));
        successful_output(&service, &["gpus", "clear", "0"]);
        await_ended(&client, "L1");
        let next = start_holding(&service, "L3", way, "3G", 512);
        park(&service, "L3");
        successful_output(&service, &["resume", "L3"]);
        next.finish("on the GPU that was mended");
        assert!(service.alive());
    }
}

#[test]
fn a_daemon_killed_at_any_moment_of_what_the_driver_does_is_followed_by_one_that_knows() {
    let mut service = serve("soft:1x4GiB");
    let job = start_holding(&service, "L1", Way::Driver, "3G", 256);
    let program = program_of(&service, "L1");
    let settled = |client: &TestClient| {
        client.await_lease("it is somewhere for good", "L1", |lease| {
            matches!(lease.state, LeaseState::Active | LeaseState::Parked)
        })
    };
    for pause_ms in [0, 2, 5, 10, 20, 40, 80, 160, 320] {
        let client = service.client();
        client.await_lease("it can be parked", "L1", |lease| lease.not_parkable.is_none());
        post_action(&client, "L1", "park");
        thread::sleep(Duration::from_millis(pause_ms));
        service.kill();
        service.restart();
        let client = service.client();
        let expected = if settled(&client).state == LeaseState::Parked { "checkpointed" } else { "running" };
        until("its process is where its lease is", LONG, || match at(&service, program) {
            Some(state) if state == expected => Ok(()),
            other => Err(other),
        });
        post_action(&client, "L1", "resume");
        thread::sleep(Duration::from_millis(pause_ms));
        service.kill();
        service.restart();
        settled(&service.client());
        successful_output(&service, &["resume", "L1"]);
        await_bytes(&service.client(), "L1", 256);
        assert_eq!(at(&service, program).as_deref(), Some("running"), "nothing stays locked");
    }
    job.finish("after eighteen daemons");
}
