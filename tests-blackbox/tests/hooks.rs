//! Holders that free their GPUs by a hook, which their wrapper runs: also hooks that report falsely, free only half,
//! hang, or lose their wrapper. And leases that are ended and requested again.
//!
//! The servers are stand-ins with the routes of the real ones, and real memory of soft GPUs. The hooks are those of the
//! pages in docs/recipes.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};
use sublet_blackbox::binary::example;
use sublet_blackbox::programs::{WrappedProgram, text};
use sublet_blackbox::service::port;
use sublet_blackbox::wait::throughout;
use sublet_blackbox::{LONG, MIB, ServiceSetup, TestClient, TestGpu, TestService, until};
use sublet_wire::{EndReason, Lease, LeaseState, ParkMethod, exit};

/// Size of a CUDA context on a soft GPU.
const CONTEXT: u64 = 128 * MIB;
/// What holders have there.
const MODEL: u64 = 768 * MIB;

/// Short time slices, and too little parking space for Sublet's library: only hooks are left.
const CONFIG: &str = r#"
grace = "1s"
[preemption]
time_slice = "1s"
idle_after = "1s"
end_grace = "2s"
[parking]
ram = "256M"
keep_free = "256M"
ready = "off"
"#;

fn serve() -> TestService {
    let gpu = TestGpu::Named("soft:1x4GiB");
    TestService::start_with(ServiceSetup { gpu, config: Some(CONFIG.to_owned()), ..ServiceSetup::default() })
}

/// A server and the hooks that it understands, from the first example of its page.
struct Recipe {
    like: &'static str,
    on_park: String,
    on_resume: Option<String>,
}

/// The servers that have a page.
const SERVERS: [&str; 4] = ["vllm", "ollama", "comfyui", "llama-cpp"];

impl Recipe {
    /// As docs/recipes has it, but for the port.
    fn of(like: &'static str) -> Recipe {
        let page = format!("{}/../docs/recipes/{like}.md", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&page).expect("a page");
        let example = text.split("```").nth(1).expect("an example");
        let hook = |flag: &str| {
            let hook = example.split_once(flag)?.1.split('\'').nth(1)?;
            let (before, after) = hook.split_once("localhost:")?;
            Some(format!("{before}localhost:PORT{}", after.trim_start_matches(|c: char| c.is_ascii_digit())))
        };
        let on_park = hook("--on-park").unwrap_or_else(|| panic!("{page} has a hook"));
        Recipe { like, on_park, on_resume: hook("--on-resume") }
    }

    /// The server on a lease of its own, with its hooks, once its model is on the GPU and was seen there.
    fn start(&self, service: &TestService, flags: &[&str], fault: &[&str]) -> (WrappedProgram, u16) {
        self.start_with(service, MODEL, flags, fault)
    }

    fn start_with(&self, service: &TestService, bytes: u64, flags: &[&str], fault: &[&str]) -> (WrappedProgram, u16) {
        let port = port();
        let hook = |text: &str| text.replace("PORT", &port.to_string());
        let (on_park, on_resume) = (hook(&self.on_park), self.on_resume.as_deref().map(hook));
        let (program, number) = (example("serve"), port.to_string());
        let mut hooks = vec!["--vram", "3G", "--on-park", &on_park];
        hooks.extend(on_resume.iter().flat_map(|hook| ["--on-resume", hook.as_str()]));
        let size = format!("{}MiB", bytes / MIB);
        let server = ["--", &program, &size, "--like", self.like, "--port", &number];
        let mut job = WrappedProgram::start(service, &[&hooks[..], flags, &server, fault].concat());
        let line = job.line();
        assert!(line.starts_with("serves "), "{line:?}; {}", job.output_text());
        service.client().await_lease("its model is seen", "L1", |lease| lease.seen_bytes >= Some(bytes));
        (job, port)
    }
}

/// Another program that needs the GPU; its lease is L2.
fn needs_the_card(service: &TestService) -> WrappedProgram {
    let mut job = WrappedProgram::start(service, &["--vram", "3G", "--", &example("hold"), "256MiB", "--seconds", "3"]);
    let line = job.line();
    assert!(line.starts_with("holds "), "{line:?}; {}", job.output_text());
    job
}

fn ask(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.write_all(format!("{request} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// A program that holds memory on L1, with these flags.
fn start_holding(service: &TestService, flags: &[&str], more: &[&str]) -> WrappedProgram {
    let hold = example("hold");
    let words = [&["--vram", "3G"], flags, &["--", &hold, "768MiB", "--idle"], more].concat();
    let mut job = WrappedProgram::start(service, &words);
    let line = job.line();
    assert!(line.starts_with("holds "), "{line:?}; {}", job.output_text());
    service.client().await_lease("its bytes are seen", "L1", |lease| lease.seen_bytes >= Some(MODEL));
    job
}

/// How L1 ended.
fn end_of(client: &TestClient) -> Option<EndReason> {
    client.await_lease("it is over", "L1", |lease| lease.state == LeaseState::Ended).ended.map(|ended| ended.reason)
}

#[test]
fn each_server_is_parked_and_resumed_by_its_hook() {
    for recipe in SERVERS.map(Recipe::of) {
        let service = serve();
        let client = service.client();
        let (job, port) = recipe.start(&service, &[], &[]);
        let other = needs_the_card(&service);
        // Those that answer first may be at it still when enough of it was seen to be gone.
        let gone = |lease: &Lease| lease.state == LeaseState::Parked && lease.seen_bytes <= Some(CONTEXT);
        let lease = client.await_lease("all of it left", "L1", gone);
        assert_eq!((lease.method, lease.has_hook), (Some(ParkMethod::Hook), true), "{}: {lease:?}", recipe.like);
        job.await_output("L1 is parked by its hook, after ");
        assert_eq!(other.end().0, Some(0));
        let resumed = service.cli(&["resume", "L1"]);
        assert!(resumed.status.success(), "{}: {resumed:?}", recipe.like);
        job.await_output("L1 is resumed by its hook, after ");
        if recipe.like == "comfyui" {
            // It loads again with the next prompt.
            assert!(ask(port, "POST /prompt").contains("42"));
        }
        client.await_lease("its model is there again", "L1", |lease| lease.seen_bytes >= Some(MODEL));
        job.finish(recipe.like);
        let audit = text(&service.cli(&["audit", "--lease", "L1"]));
        assert!(audit.contains("by its hook"), "{audit}");
    }
}

#[test]
fn a_program_parked_by_a_hook_that_keeps_some_memory_allocates_nothing_until_it_is_resumed() {
    let service = serve();
    let client = service.client();
    // A prompt makes it load its model again by itself.
    let (job, port) = Recipe::of("comfyui").start(&service, &[], &["--fault", "little"]);
    let mut other =
        WrappedProgram::start(&service, &["--vram", "3G", "--", &example("hold"), "256MiB", "--seconds", "6"]);
    assert!(other.line().starts_with("holds "), "{}", other.output_text());
    let little = |lease: &Lease| lease.seen_bytes > Some(CONTEXT) && lease.seen_bytes < Some(MODEL / 2);
    let kept = |lease: &Lease| lease.state == LeaseState::Parked && little(lease);
    client.await_lease("it left, and kept a little", "L1", kept);
    // Its library hears of it a moment later.
    std::thread::sleep(Duration::from_secs(1));
    let asked = std::thread::spawn(move || ask(port, "POST /prompt"));
    throughout(Duration::from_secs(2), || {
        let lease = client.lease("L1");
        assert!(kept(&lease), "it waits: {lease:?}");
    });
    assert_eq!(other.end().0, Some(0));
    assert!(asked.join().expect("it asked").contains("42"), "it came back for its request, by itself");
    // Its library opens the gate before the daemon has seen all of it back.
    client.await_lease("it is back", "L1", |lease| lease.state == LeaseState::Active);
    job.finish("kept a little");
}

#[test]
fn a_false_report_of_a_hook_frees_nothing_and_the_hook_is_not_tried_again_at_once() {
    for (fault, bytes) in [("lies", MODEL), ("half", 2 * MODEL)] {
        let service = serve();
        let client = service.client();
        let (job, _) = Recipe::of("vllm").start_with(&service, bytes, &[], &["--fault", fault]);
        let other = WrappedProgram::start(&service, &["--vram", "3G", "--", "true"]);
        job.await_output("L1 is parked by its hook");
        // The report frees nothing: the waiter is not granted its lease before a reading shows that the bytes are gone.
        until("it is known for what it is", LONG, || {
            assert_eq!(client.lease("L2").state, LeaseState::Waiting, "{fault}");
            let audit = text(&service.cli(&["audit", "--lease", "L1"]));
            if audit.contains("the readings show otherwise") { Ok(()) } else { Err(audit) }
        });
        let lease = client.await_lease("it is back", "L1", |lease| lease.state == LeaseState::Active);
        assert!(lease.seen_bytes >= Some(bytes / 2), "{fault}: {lease:?}");
        throughout(Duration::from_secs(8), || assert_eq!(client.lease("L1").state, LeaseState::Active, "{fault}"));
        drop(other);
        job.finish(fault);
    }
}

#[test]
fn a_failed_hook_is_reported_and_a_lease_that_may_not_be_ended_stays() {
    for (hook, fault, why) in [
        (None, &["--fault", "hangs"][..], "the park hook of L1 failed: "),
        (Some("exit 3"), &[], "the park hook of L1 failed: its exit code was 3"),
        (Some("sleep 600"), &[], "the park hook of L1 failed: it was not over within 1 s"),
    ] {
        let service = serve();
        let client = service.client();
        let bound = ["--hook-timeout", "1s"];
        let job = match hook {
            None => Recipe::of("vllm").start(&service, &bound, fault).0,
            Some(hook) => start_holding(&service, &[&bound[..], &["--on-park", hook]].concat(), &[]),
        };
        let words = ["run", "--vram", "3G", "--wait", "12s", "--", "true"];
        let other = service.command(&words).stderr(Stdio::null()).spawn();
        let mut other = other.expect("a program can be started");
        job.await_output(why);
        let lease = client.await_lease("it is back", "L1", |lease| lease.state == LeaseState::Active);
        assert!(lease.seen_bytes >= Some(MODEL), "{lease:?}");
        assert_eq!(other.wait().expect("an own child").code(), Some(i32::from(exit::WAIT_OVER)));
        job.finish(why);
    }
}

#[test]
fn if_the_wrapper_is_killed_its_hook_is_given_up_and_the_program_lives() {
    let service = serve();
    let client = service.client();
    let flags = ["--on-park", "sleep 600", "--hook-timeout", "2m"];
    let mut job = start_holding(&service, &flags, &["--seconds", "50"]);
    let other = WrappedProgram::start(&service, &["--vram", "3G", "--", "true"]);
    client.await_lease("its hook runs", "L1", |lease| lease.method == Some(ParkMethod::Hook));
    kill_process(Pid::from_child(&job.child), Signal::KILL).expect("an own child");
    let lease = client.await_lease("it is back", "L1", |lease| lease.state == LeaseState::Active);
    assert!(lease.seen_bytes >= Some(MODEL), "{lease:?}");
    assert!(text(&service.cli(&["audit", "--lease", "L1"])).contains("its wrapper is gone"));
    // Its memory is as it was; when it ends, the waiter gets the GPU.
    assert!(job.line().contains("bytes as written"));
    assert_eq!(other.end().0, Some(0));
}

#[test]
fn a_command_that_ends_while_its_hook_runs_ends_its_wrapper_at_once() {
    let service = serve();
    let client = service.client();
    let job = start_holding(&service, &["--on-park", "sleep 600"], &["--seconds", "4"]);
    assert_eq!(client.send("POST", "/v1/leases/L1/park", &[], b"").status, 200);
    client.await_lease("its hook runs", "L1", |lease| lease.method == Some(ParkMethod::Hook));
    let began = Instant::now();
    let said = job.stderr.clone();
    let (code, rest) = job.end();
    assert_eq!((code, rest.contains("bytes as written")), (Some(0), true), "{rest}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let said = std::fs::read_to_string(said).expect("its words");
    assert!(!said.contains("left "), "a hook is not what a command leaves behind: {said}");
    client.await_lease("it is over", "L1", |lease| lease.state == LeaseState::Ended);
}

#[test]
fn a_lease_with_preempt_end_gets_a_notice_is_ended_and_requeued() {
    let service = serve();
    let client = service.client();
    let script = format!(
        "trap 'echo told; sleep 1; kill $!; exit 9' USR1; echo run $SUBLET_RESTARTS; \
         if [ $SUBLET_RESTARTS = 1 ]; then exit 5; fi; {} 768MiB --idle & wait; wait",
        example("hold")
    );
    let flags =
        ["--vram", "3G", "--tier", "spot", "--no-shim", "--preempt", "end", "--signal", "USR1@2", "--requeue=3"];
    let mut job = WrappedProgram::start(&service, &[&flags[..], &["--", "sh", "-c", &script]].concat());
    assert_eq!(job.line(), "run 0\n", "{}", job.output_text());
    assert!(job.line().starts_with("holds "), "{}", job.output_text());
    client.await_lease("its bytes are seen", "L1", |lease| lease.seen_bytes >= Some(MODEL));
    let other = needs_the_card(&service);
    assert_eq!(other.end().0, Some(0));
    job.await_output("lease L1 ends in 2 s: another request needs its GPUs, and it may be ended for that (`--preempt end`, `--tier spot`)");
    job.await_output("L1 was preempted: requesting a new lease and starting the command again (restart 1)");
    let (code, rest) = job.end();
    // The program has no handler for the signal, and lives until the shell ends it.
    let told = "told\nall 805306368 bytes as written\nrun 1\n";
    assert_eq!((code, rest.as_str()), (Some(5), told), "the last run's code");
}

#[test]
fn a_program_that_ignores_all_notices_is_killed_and_its_lease_says_why() {
    let service = serve();
    let client = service.client();
    let flags = ["--tier", "spot", "--preempt", "end", "--signal", "USR2@1"];
    let script = "trap '' USR2; exec \"$@\"";
    let program = example("serve");
    let server = ["--", "sh", "-c", script, "sh", &program, "768MiB", "--like", "vllm", "--fault", "stays"];
    let words = [&["--vram", "3G", "--no-shim"], &flags[..], &server].concat();
    let mut job = WrappedProgram::start(&service, &words);
    assert!(job.line().starts_with("serves "), "{}", job.output_text());
    client.await_lease("its bytes are seen", "L1", |lease| lease.seen_bytes >= Some(MODEL));
    let other = needs_the_card(&service);
    assert_eq!(other.end().0, Some(0));
    assert_eq!(end_of(&client), Some(EndReason::Preempted));
    let said = job.stderr.clone();
    let code = job.end().0;
    assert_eq!(code, Some(137), "{}", std::fs::read_to_string(said).unwrap_or_default());
}

#[test]
fn a_long_poll_returns_when_the_lease_changes() {
    let service = serve();
    let client = service.client();
    let (job, _) = Recipe::of("vllm").start(&service, &[], &[]);
    let target = "/v1/leases/L1?wait=60s&for=change&known=active&known_ends_soon=false";
    let waiter = std::thread::spawn({
        let client = service.client();
        move || (client.send("GET", target, &[], b"").read::<Lease>(), Instant::now())
    });
    assert!(service.cli(&["park", "L1"]).status.success());
    let (lease, _) = waiter.join().expect("an answer");
    assert_eq!((lease.state, lease.method), (LeaseState::Parking, Some(ParkMethod::Hook)));
    let now = client.send("GET", "/v1/leases/L1?wait=60s&for=change&known=active", &[], b"").read::<Lease>();
    assert_eq!(now.state, LeaseState::Parked, "it is not as it was known: told at once");
    let wrong = client.send("GET", "/v1/leases/L1?wait=60s&for=tea", &[], b"");
    assert_eq!(wrong.status, 400, "{}", wrong.text());
    assert!(service.cli(&["resume", "L1"]).status.success());
    job.finish("parked by hand, by its own hook");
}

#[test]
fn a_hook_needs_a_wrapper_that_stays() {
    let service = serve();
    for (flags, flag) in [(&["--on-park", "true"][..], "--on-park"), (&["--detach", "--on-park", "true"], "--on-park")]
    {
        let refused = service.cli(&[&["lease", "--vram", "1G"], flags].concat());
        assert_eq!(refused.status.code(), Some(i32::from(exit::USAGE)), "{refused:?}");
        let said = text(&refused);
        assert!(
            said.contains(&format!("`{flag}` takes a program that stays")) && said.contains("sublet run"),
            "{said}"
        );
    }
    assert!(service.client().live_ids().is_empty(), "no lease was requested");
}
