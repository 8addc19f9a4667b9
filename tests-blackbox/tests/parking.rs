//! Holders are parked and resumed on soft GPUs, with real programs that know nothing of it.
//!
//! The programs know what must be in their memory, and say so if it is not.

use rustix::process::{Pid, Signal, kill_process};
use std::thread;
use std::time::Duration;
use sublet_blackbox::binary::example;
use sublet_blackbox::programs::{WrappedProgram, await_state, post_action, text};
use sublet_blackbox::user::{as_user, is_root};
use sublet_blackbox::wait::throughout;
use sublet_blackbox::{LONG, MIB, ServiceSetup, TestClient, TestGpu, TestService, until};
use sublet_wire::{EndReason, Lease, LeaseState};

/// What the driver itself uses of a soft GPU.
const IDLE: u64 = 64 * MIB;
/// What a context takes there.
const CONTEXT: u64 = 128 * MIB;

/// Short terms, and no memory kept ready: a test machine has little.
const CONFIG: &str = r#"
ttl = "2s"
renewal_cap = "4s"
grace = "1s"
[preemption]
enabled = false
[parking]
ram = "4G"
keep_free = "256M"
ready = "off"
"#;

fn serve(gpu: &'static str) -> TestService {
    TestService::start_with(ServiceSetup {
        gpu: TestGpu::Named(gpu),
        config: Some(CONFIG.to_owned()),
        ..ServiceSetup::default()
    })
}

/// The one process on the GPU.
fn on_the_card(service: &TestService) -> Pid {
    let shown: serde_json::Value =
        serde_json::from_slice(&service.cli(&["soft", "status", "--json"]).stdout).expect("JSON");
    let pid = shown["processes"][0]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    pid.and_then(Pid::from_raw).expect("a process")
}

fn used(client: &TestClient) -> Option<u64> {
    client.card().used_bytes
}

fn await_used(client: &TestClient, bytes: u64) {
    until("so much of the GPU is used", LONG, || match used(client) {
        Some(used) if used == bytes => Ok(()),
        other => Err(other),
    });
}

#[test]
fn a_lease_parked_by_hand_is_resumed_with_every_byte_as_it_was() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let job = WrappedProgram::start_holding(&service, "3G", "512MiB", &["--idle"]);
    client.await_lease("its bytes are seen", "L1", |lease| lease.seen_bytes >= Some(512 * MIB));
    let parked = service.cli(&["park", "L1"]);
    assert!(parked.status.success() && text(&parked).contains("L1 is parked: "), "{parked:?}");
    let lease = client.lease("L1");
    assert_eq!((lease.state, lease.seen_bytes), (LeaseState::Parked, Some(CONTEXT)));
    assert!(lease.parked.is_some_and(|parked| parked.booked_bytes >= 512 * MIB));
    assert_eq!(used(&client), Some(IDLE + CONTEXT));
    assert!(service.cli(&["park", "L1"]).status.success(), "it is there already");
    assert!(text(&service.cli(&["ps"])).contains("parked"));
    assert!(text(&service.cli(&["explain", "L1"])).contains("host memory"));
    let resumed = service.cli(&["resume", "L1"]);
    assert!(resumed.status.success() && text(&resumed).contains("back on its GPUs"), "{resumed:?}");
    assert!(client.lease("L1").seen_bytes >= Some(512 * MIB));
    job.finish("after one park");
    let audit = text(&service.cli(&["audit", "--lease", "L1"]));
    for word in ["park ", "parked ", "want ", "resume ", "resumed "] {
        assert!(audit.contains(word), "{word}: {audit}");
    }
}

#[test]
fn an_idle_holder_makes_room_for_a_waiter_and_finds_all_when_it_is_used_again() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let job = WrappedProgram::start_holding(&service, "3G", "1GiB", &["--idle"]);
    let mut other =
        WrappedProgram::start(&service, &["--vram", "3G", "--", &example("hold"), "1GiB", "--seconds", "1"]);
    assert!(other.line().starts_with("holds "), "{}", other.output_text());
    assert_eq!(client.lease("L1").state, LeaseState::Parked);
    assert_eq!(other.end().0, Some(0));
    assert_eq!(client.lease("L1").state, LeaseState::Parked, "it was not used");
    // The signal makes the program look at its memory, and that is use.
    job.finish("after it was parked for another lease");
}

#[test]
fn two_programs_that_do_not_fit_together_take_turns_and_compute_the_same() {
    let config = CONFIG.replace("ttl = \"2s\"", "ttl = \"1s\"").replace("renewal_cap = \"4s\"", "renewal_cap = \"1s\"");
    let gpu = TestGpu::Named("soft:1x2GiB");
    let service = TestService::start_with(ServiceSetup { gpu, config: Some(config), ..ServiceSetup::default() });
    let train = example("mlp");
    let alone = service.command(&["soft", "env", "--", &train, "--steps", "900"]).output().expect("a program");
    let alone = String::from_utf8_lossy(&alone.stdout).lines().last().expect("a line").to_owned();
    assert!(alone.starts_with("weights "), "{alone}");
    let words = ["--vram", "1200M", "--", &train, "--steps", "900"];
    let jobs = [WrappedProgram::start(&service, &words), WrappedProgram::start(&service, &words)];
    let client = service.client();
    // Neither waits for the other's end.
    let turns = until("both had their turn", LONG, || {
        let audit = text(&service.cli(&["audit"]));
        let resumed = audit.matches(" resumed ").count();
        if resumed >= 2 || client.live_ids().is_empty() { Ok(resumed) } else { Err(audit) }
    });
    for job in jobs {
        let (code, rest) = job.end();
        assert_eq!((code, rest.lines().last()), (Some(0), Some(alone.as_str())));
    }
    assert!(turns >= 2, "they came back {turns} times");
}

#[test]
fn two_programs_of_one_lease_leave_together_and_come_back_together() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let hold = example("hold");
    let both = format!("{hold} 128MiB --idle --seconds 6 & {hold} 192MiB --idle --seconds 6 & wait");
    let mut job = WrappedProgram::start(&service, &["--vram", "3G", "--", "sh", "-c", &both]);
    assert!(job.line().starts_with("holds ") && job.line().starts_with("holds "), "{}", job.output_text());
    let seen = 320 * MIB + 2 * CONTEXT;
    client.await_lease("the bytes of both are seen", "L1", |lease| lease.seen_bytes >= Some(seen));
    let parked = service.cli(&["park", "L1"]);
    assert!(parked.status.success(), "{parked:?}");
    let lease = client.lease("L1");
    assert_eq!((lease.state, lease.seen_bytes), (LeaseState::Parked, Some(2 * CONTEXT)), "{lease:?}");
    // Each looks at its memory when its time is up, and the first to do so brings both back.
    let (code, rest) = job.end();
    assert_eq!((code, rest.matches("bytes as written").count()), (Some(0), 2), "{rest}");
}

#[test]
fn tenants_take_turns_and_neither_sees_nor_moves_what_is_the_others() {
    if !is_root() {
        eprintln!("only root can be two users: nothing was tested");
        return;
    }
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let hold = example("hold");
    let (ann, ben) = (4001, 4002);
    let words = ["--vram", "3G", "--", &hold, "512MiB", "--idle"];
    let mut first = WrappedProgram::start_as(&service, Some(ann), &words);
    assert!(first.line().starts_with("holds "), "{}", first.output_text());
    // Its term is over soon, and then it makes room.
    let mut second = WrappedProgram::start_as(&service, Some(ben), &words);
    assert!(second.line().starts_with("holds "), "{}", second.output_text());
    assert_eq!(client.lease("L1").state, LeaseState::Parked);
    for verb in ["park", "resume"] {
        let answer = as_user(ben, || client.send("POST", &format!("/v1/leases/L1/{verb}"), &[], b""));
        assert_eq!(answer.code(), "no_such_lease", "{}", answer.text());
    }
    // Ben's bytes go where ann's are gone, and back, and both find theirs.
    client.await_lease("its bytes are seen", "L2", |lease| lease.seen_bytes >= Some(512 * MIB));
    for _ in 0..3 {
        for (verb, id) in [("park", "L2"), ("resume", "L1"), ("park", "L1"), ("resume", "L2")] {
            let output = service.cli(&[verb, id]);
            assert!(output.status.success(), "{verb} {id}: {output:?}");
        }
    }
    second.finish("ben's");
    first.finish("ann's");
}

#[test]
fn a_holder_that_is_killed_at_any_stage_leaves_nothing() {
    let config = CONFIG.replace("ram = \"4G\"", "ram = \"900M\"");
    let gpu = TestGpu::Named("soft:1x4GiB");
    let service = TestService::start_with(ServiceSetup { gpu, config: Some(config), ..ServiceSetup::default() });
    let client = service.client();
    for (number, pause_ms) in (1..).zip([0, 5, 20, 60, 150, 400]) {
        let job = WrappedProgram::start_holding(&service, "3G", "128MiB", &["--idle"]);
        let id = format!("L{number}");
        client.await_lease("its bytes are seen", &id, |lease| lease.seen_bytes >= Some(128 * MIB));
        let victim = on_the_card(&service);
        post_action(&client, &id, "park");
        if pause_ms % 2 == 1 {
            await_state(&client, &id, LeaseState::Parked);
            post_action(&client, &id, "resume");
        }
        thread::sleep(Duration::from_millis(pause_ms));
        kill_process(victim, Signal::KILL).expect("its program");
        drop(job);
        client.await_lease("it is over", &id, |lease| lease.state == LeaseState::Ended);
        await_used(&client, IDLE);
    }
    // What was booked for them is free again: otherwise the parking space would be too small for two of these.
    for number in 7..9 {
        let job = WrappedProgram::start_holding(&service, "3G", "512MiB", &["--idle"]);
        let id = format!("L{number}");
        client.await_lease("its bytes are seen", &id, |lease| lease.seen_bytes >= Some(512 * MIB));
        let parked = service.cli(&["park", &id]);
        assert!(parked.status.success(), "{parked:?}");
        drop(job);
        client.await_lease("it is over", &id, |lease| lease.state == LeaseState::Ended);
    }
}

#[test]
fn no_byte_is_lost_if_the_daemon_is_killed_at_any_stage_of_park_or_resume() {
    let mut service = serve("soft:1x4GiB");
    let job = WrappedProgram::start_holding(&service, "3G", "256MiB", &["--idle"]);
    service.client().await_lease("its bytes are seen", "L1", |lease| lease.seen_bytes >= Some(256 * MIB));
    for pause_ms in [0, 5, 20, 60, 150, 400] {
        let client = service.client();
        post_action(&client, "L1", "park");
        thread::sleep(Duration::from_millis(pause_ms));
        service.kill();
        service.restart();
        let client = service.client();
        client.await_lease("it is somewhere for good", "L1", |lease| {
            matches!(lease.state, LeaseState::Active | LeaseState::Parked)
        });
        post_action(&client, "L1", "resume");
        thread::sleep(Duration::from_millis(pause_ms));
        service.kill();
        service.restart();
        let client = service.client();
        client.await_lease("it is somewhere for good", "L1", |lease| {
            matches!(lease.state, LeaseState::Active | LeaseState::Parked)
        });
        let resumed = service.cli(&["resume", "L1"]);
        assert!(resumed.status.success(), "{resumed:?}");
        let seen = |lease: &Lease| lease.state == LeaseState::Active && lease.seen_bytes >= Some(256 * MIB);
        client.await_lease("it is back", "L1", seen);
    }
    job.finish("after twelve daemons");
}

#[test]
fn a_waiting_program_is_served_by_the_next_daemon() {
    let mut service = serve("soft:1x4GiB");
    let mut job = WrappedProgram::start_holding(&service, "3G", "256MiB", &["--idle"]);
    let client = service.client();
    client.await_lease("its bytes are seen", "L1", |lease| lease.seen_bytes >= Some(256 * MIB));
    assert!(service.cli(&["park", "L1"]).status.success());
    service.kill();
    // It waits for a daemon that is not there, and says so.
    kill_process(Pid::from_child(&job.child), Signal::TERM).expect("an own child");
    until("it says what it waits for", LONG, || {
        let said = job.output_text();
        if said.contains("parked") { Ok(()) } else { Err(said) }
    });
    assert!(job.child.try_wait().expect("an own child").is_none());
    service.restart();
    let stderr = job.stderr.clone();
    let (code, rest) = job.end();
    let said = std::fs::read_to_string(stderr).unwrap_or_default();
    assert_eq!((code, rest.contains("bytes as written")), (Some(0), true), "{rest}; {said}");
}

#[test]
fn a_restarted_daemon_accepts_no_program_before_it_knows_all_leases() {
    let mut service = serve("soft:1x4GiB");
    let job = WrappedProgram::start_holding(&service, "3G", "256MiB", &["--idle"]);
    service.client().await_lease("its bytes are seen", "L1", |lease| lease.seen_bytes >= Some(256 * MIB));
    assert!(service.cli(&["park", "L1"]).status.success());
    // The program looks for the daemon ten times a second, and comes at any moment of a start.
    for _ in 0..8 {
        service.kill();
        service.restart();
        let known = |lease: &Lease| lease.state == LeaseState::Parked && lease.parked.is_some();
        service.client().await_lease("it is parked", "L1", known);
        assert!(!job.output_text().contains("is lost"), "{}", job.output_text());
    }
    job.finish("after eight daemons");
}

#[test]
fn a_lease_that_ends_while_it_is_parked_takes_its_bytes_with_it_and_says_so() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let job = WrappedProgram::start_holding(&service, "3G", "256MiB", &["--idle"]);
    client.await_lease("its bytes are seen", "L1", |lease| lease.seen_bytes >= Some(256 * MIB));
    assert!(service.cli(&["park", "L1"]).status.success());
    assert!(service.cli(&["end", "L1"]).status.success());
    until("its program was told", LONG, || {
        let said = job.output_text();
        if said.contains("what was parked is lost") { Ok(()) } else { Err(said) }
    });
    let pid = Pid::from_child(&job.child);
    kill_process(pid, Signal::TERM).expect("an own child");
    let stderr = job.stderr.clone();
    let (code, _) = job.end();
    let said = std::fs::read_to_string(stderr).expect("its words");
    assert_eq!(code, Some(1), "it cannot read its memory, and says so: {said}");
    assert!(said.contains("hold: "), "{said}");
    let lease = client.await_lease("it is over", "L1", |lease| lease.state == LeaseState::Ended);
    assert_eq!(lease.ended.map(|ended| ended.reason), Some(EndReason::Released));
}

#[test]
fn a_lease_is_a_cap_and_without_the_library_it_is_a_promise() {
    // The driver would park it in its own way, once it was looked at.
    let config = CONFIG.replace("enabled = false", "enabled = false\ndriver = \"off\"");
    let setup = ServiceSetup { gpu: TestGpu::Named("soft:1x4GiB"), config: Some(config), ..ServiceSetup::default() };
    let service = TestService::start_with(setup);
    let hold = example("hold");
    let capped = service.cli(&["run", "--vram", "1G", "--", &hold, "2GiB", "--seconds", "0"]);
    assert!(!capped.status.success(), "{capped:?}");
    assert!(text(&capped).contains("out of memory: the lease has 1.0 GiB of this GPU"), "{capped:?}");
    let fits = service.cli(&["run", "--vram", "1G", "--", &hold, "768MiB", "--seconds", "0"]);
    assert!(fits.status.success(), "{fits:?}");
    let free = service.cli(&["run", "--no-shim", "--vram", "1G", "--", &hold, "2GiB", "--seconds", "0"]);
    assert!(free.status.success(), "{free:?}");
    let _job = WrappedProgram::start_holding(&service, "1G", "512MiB", &["--idle"]);
    let client = service.client();
    client.await_lease("its bytes are seen", "L4", |lease| lease.seen_bytes >= Some(512 * MIB));
    let other = WrappedProgram::start(&service, &["--no-shim", "--vram", "1G", "--", &hold, "512MiB", "--idle"]);
    until("the other one has a lease", LONG, || {
        let ids = client.live_ids();
        if ids.contains(&"L5".to_owned()) { Ok(()) } else { Err(ids) }
    });
    let why = |lease: &Lease| lease.not_parkable.is_some();
    let lease = client.await_lease("it is known why not", "L5", why);
    assert_eq!(lease.not_parkable.as_deref(), Some("none of its programs uses a GPU through Sublet's library"));
    let refused = service.cli(&["park", "L5"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(text(&refused).contains("cannot be parked: none of its programs"), "{refused:?}");
    drop(other);
    assert_eq!(client.lease("L4").not_parkable, None);
}

/// A program that shares its GPU with others through MPS is not parked.
#[test]
fn a_program_under_mps_is_not_parked_and_the_reason_is_shown() {
    let service = serve("soft:1x4GiB");
    let pipes = service.dir().join("mps");
    std::fs::create_dir(&pipes).expect("a directory");
    std::fs::write(pipes.join("control"), "").expect("a file");
    let pipes = format!("CUDA_MPS_PIPE_DIRECTORY={}", pipes.display());
    let words = ["--vram", "1G", "--", "env", &pipes, &example("hold"), "256MiB", "--idle"];
    let mut job = WrappedProgram::start(&service, &words);
    assert!(job.line().starts_with("holds "), "{}", job.output_text());
    let client = service.client();
    let lease = client.await_lease("it is known why not", "L1", |lease| lease.not_parkable.is_some());
    assert_eq!(lease.not_parkable.as_deref(), Some("it uses its GPU through MPS"));
    let refused = service.cli(&["park", "L1"]);
    assert!(!refused.status.success() && text(&refused).contains("through MPS"), "{refused:?}");
    job.finish("it was not touched");
}

#[test]
fn programs_that_never_use_a_gpu_are_left_alone() {
    let service = serve("soft:1x4GiB");
    let output = service.cli(&["run", "--vram", "1G", "--", "sh", "-c", "ls / >/dev/null; echo $LD_PRELOAD"]);
    assert!(text(&output).contains("libsublet_shim.so"), "{output:?}");
    let output = service.cli(&["run", "--no-shim", "--vram", "1G", "--", "sh", "-c", "echo .$LD_PRELOAD."]);
    assert!(text(&output).contains(".."), "{output:?}");
    let mut own = service.command(&["run", "--vram", "1G", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    let output = own.env("LD_PRELOAD", "/no/such.so").output().expect("a program");
    assert!(text(&output).contains("/no/such.so:"), "{output:?}");
}

#[test]
fn what_its_programs_did_is_shown_with_the_lease_and_after_it() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let train = example("mlp");
    let program = [train.as_str(), "--steps", "3", "--pace", "2500", "--every", "1"];
    let job = WrappedProgram::start(&service, &[&["--vram", "1G", "--"], &program[..]].concat());
    until("it has its lease", LONG, || if client.live_ids().is_empty() { Err(()) } else { Ok(()) });
    let working = client
        .await_lease("it is seen at work", "L1", |lease| lease.calls.as_ref().is_some_and(|did| did.launches > 0));
    let then = working.calls.expect("what it did");
    assert!(then.copies > 0 && then.errors.is_empty(), "{then:?}");
    let (code, rest) = job.end();
    assert_eq!(code, Some(0), "{rest}");
    let ended = client.await_lease("it has ended", "L1", |lease| lease.state == LeaseState::Ended);
    let all = ended.calls.expect("what it did");
    assert!(all.launches > then.launches, "the last of it counts, too: {then:?} {all:?}");
    // Two programs of a lease, one after the other, and calls that fail.
    let script = format!("{train} --steps 1; {train} --steps 1; {} 9GiB; true", example("hold"));
    let job = WrappedProgram::start(&service, &["--vram", "1G", "--", "sh", "-c", &script]);
    job.end();
    // The last counts may arrive after the end.
    let has_errors = |lease: &Lease| lease.calls.as_ref().is_some_and(|did| !did.errors.is_empty());
    let ended = client.await_lease("it has ended, and its errors are counted", "L2", |lease| {
        lease.state == LeaseState::Ended && has_errors(lease)
    });
    let did = ended.calls.expect("what they did");
    assert_eq!(did.launches % 2, 0, "each did the same: {did:?}");
    assert!(did.launches > 0 && did.errors.iter().any(|it| it.code == 2 && it.count > 0), "{did:?}");
    // Fills move nothing, and each byte is read once at the end.
    let job =
        WrappedProgram::start(&service, &["--vram", "1G", "--", &example("hold"), "64MiB", "--idle", "--seconds", "0"]);
    assert_eq!(job.end().0, Some(0));
    let ended = client.await_lease("it has ended", "L3", |lease| lease.state == LeaseState::Ended);
    assert_eq!(ended.calls.and_then(|did| did.copied_bytes), Some(64 * MIB));
}

#[test]
fn a_host_without_the_library_runs_programs_as_they_are_and_says_so() {
    let config = format!("shim = \"off\"\n{}", CONFIG.replace("enabled = false", "enabled = false\ndriver = \"off\""));
    let gpu = TestGpu::Named("soft:1x4GiB");
    let service = TestService::start_with(ServiceSetup { gpu, config: Some(config), ..ServiceSetup::default() });
    let output = service.cli(&["run", "--vram", "1G", "--", "sh", "-c", "echo .$LD_PRELOAD.$SUBLET_SHIM_SOCKET."]);
    assert_eq!(output.stdout, b"...\n", "no library is loaded, and no socket is set: {output:?}");
    // A lease is a promise there, not a cap.
    let job = WrappedProgram::start_holding(&service, "512M", "1GiB", &["--idle"]);
    let client = service.client();
    client.await_lease("its bytes are seen", "L2", |lease| lease.seen_bytes >= Some(1024 * MIB));
    let refused = service.cli(&["park", "L2"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("Sublet's library"), "{said}");
    assert_eq!(client.lease("L2").state, LeaseState::Active, "it stays where it is");
    let doctor = text(&service.cli(&["doctor"]));
    assert!(doctor.contains("off: no program is parked"), "{doctor}");
    job.finish("as without the service");
}

/// A library of the first release: it greets with version 1, knows none of the later fields, and moves memory by freeing
/// and taking it again.
const FIRST_RELEASE: &str = r#"
import ctypes as C, json, os, socket, sys
cuda = C.CDLL("libcuda.so.1")
size, at, context = 512 << 20, C.c_uint64(), C.c_void_p()
def must(result):
    if result:
        sys.exit(f"the driver says {result}")
must(cuda.cuInit(0))
must(cuda.cuDevicePrimaryCtxRetain(C.byref(context), 0))
must(cuda.cuCtxSetCurrent(context))
must(cuda.cuMemAlloc_v2(C.byref(at), C.c_size_t(size)))
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect(sys.argv[1])
say = lambda **word: line.send(json.dumps(word).encode())
say(say="hello", version=1, pid=os.getpid(), lease=os.environ["SUBLET_LEASE"], parked=False)
took = {"gate_us": 1, "drain_us": 1, "copy_us": 1, "map_us": 1, "all_us": 4}
print("here", flush=True)
while True:
    text, files, _, _ = socket.recv_fds(line, 4096, 4)
    if not text:
        break
    for file in files:
        os.close(file)
    order = json.loads(text)
    print(order["do"], flush=True)
    if order["do"] == "park":
        must(cuda.cuMemFree_v2(at))
        say(say="parked", id=order["id"], bytes=size, took=took)
    elif order["do"] == "resume":
        must(cuda.cuMemAlloc_v2(C.byref(at), C.c_size_t(size)))
        say(say="resumed", id=order["id"], bytes=size, took=took)
"#;

#[test]
fn a_library_of_the_first_release_is_parked_and_resumed_by_this_daemon() {
    // Contexts are to leave as soon as they can, which it knows nothing of.
    let config = CONFIG.replace("ready = \"off\"", "ready = \"off\"\ncontext_after = \"1s\"");
    let gpu = TestGpu::Named("soft:1x4GiB");
    let service = TestService::start_with(ServiceSetup { gpu, config: Some(config), ..ServiceSetup::default() });
    let client = service.client();
    let socket = format!("{}.shim", client.socket().display());
    let words = ["--vram", "3G", "--no-shim", "--time", "10m", "--", "python3", "-c", FIRST_RELEASE, &socket];
    let mut job = WrappedProgram::start(&service, &words);
    assert_eq!(job.line(), "here\n", "{}", job.output_text());
    assert_eq!(job.line(), "welcome\n");
    client.await_lease("its bytes are seen", "L1", |lease| lease.seen_bytes >= Some(512 * MIB));
    for _ in 0..2 {
        let parked = service.cli(&["park", "L1"]);
        assert!(parked.status.success(), "{parked:?}");
        let lease = client.lease("L1");
        assert_eq!((lease.state, lease.seen_bytes), (LeaseState::Parked, Some(CONTEXT)));
        // Longer than contexts stay, and than it takes to ask the driver.
        throughout(Duration::from_secs(7), || assert_eq!(client.lease("L1").seen_bytes, Some(CONTEXT)));
        let resumed = service.cli(&["resume", "L1"]);
        assert!(resumed.status.success(), "{resumed:?}");
        client.await_lease("its bytes are back", "L1", |lease| lease.seen_bytes >= Some(512 * MIB));
    }
    kill_process(Pid::from_child(&job.child), Signal::TERM).expect("an own child");
    let (_, orders) = job.end();
    let told: Vec<&str> = orders.lines().filter(|order| *order != "arena" && *order != "prepare").collect();
    assert_eq!(told, ["park", "resume", "park", "resume"], "it is told nothing that it does not know");
}
