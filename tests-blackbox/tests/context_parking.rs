//! Parked holders without a CUDA context on their GPU (the driver took it off), on soft GPUs, with real programs.

use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;
use sublet_blackbox::binary::example;
use sublet_blackbox::programs::{WrappedProgram, await_bytes, text};
use sublet_blackbox::wait::throughout;
use sublet_blackbox::{LONG, ServiceSetup, TestClient, TestGpu, TestService, until};
use sublet_wire::LeaseState;

const CONFIG: &str = r#"
ttl = "5m"
[preemption]
retry_after = "1s"
[parking]
ram = "4G"
keep_free = "256M"
ready = "off"
context_after = "1s"
"#;

fn serve(gpu: &'static str) -> TestService {
    TestService::start_with(ServiceSetup {
        gpu: TestGpu::Named(gpu),
        config: Some(CONFIG.to_owned()),
        ..ServiceSetup::default()
    })
}

/// A parked holder of 512 MiB that has nothing on its GPU, not even its context.
fn deep(service: &TestService, client: &TestClient, words: &[&str]) -> WrappedProgram {
    let job = WrappedProgram::start_holding(service, "3G", "512MiB", words);
    await_bytes(client, "L1", 512);
    assert!(service.cli(&["park", "L1"]).status.success());
    await_nothing(client);
    job
}

fn await_nothing(client: &TestClient) {
    let gone = |lease: &sublet_wire::Lease| lease.state == LeaseState::Parked && lease.seen_bytes == Some(0);
    client.await_lease("not even its context is on the GPU", "L1", gone);
}

#[test]
fn the_context_leaves_too_and_all_memory_is_there_at_the_next_use() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let job = deep(&service, &client, &["--idle"]);
    let audit = text(&service.cli(&["audit", "--lease", "L1"]));
    assert!(audit.contains("L1 is parked further"), "{audit}");
    assert!(text(&service.cli(&["ps"])).contains("parked"));
    // By hand, and away again after a while.
    assert!(service.cli(&["resume", "L1"]).status.success());
    await_bytes(&client, "L1", 512);
    assert!(service.cli(&["park", "L1"]).status.success());
    await_nothing(&client);
    // The signal makes the program look at its memory, and that is use.
    job.finish("after the driver had all of it");
}

#[test]
fn a_program_at_work_comes_back_by_itself_and_computes_the_same() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let train = example("mlp");
    let program = [train.as_str(), "--steps", "3", "--pace", "9000", "--every", "1"];
    let alone = service.command(&[&["soft", "env", "--"], &program[..]].concat()).output().expect("a program");
    let alone = String::from_utf8_lossy(&alone.stdout).lines().last().expect("a line").to_owned();
    let job = WrappedProgram::start(&service, &[&["--vram", "1G", "--"], &program[..]].concat());
    await_bytes(&client, "L1", 1);
    assert!(service.cli(&["park", "L1"]).status.success());
    await_nothing(&client);
    client.await_lease("it came back by itself", "L1", |lease| lease.state == LeaseState::Active);
    let (code, rest) = job.end();
    assert_eq!((code, rest.lines().last()), (Some(0), Some(alone.as_str())), "{rest}");
}

#[test]
fn a_daemon_killed_at_any_moment_finds_it_where_it_is() {
    let mut service = serve("soft:1x4GiB");
    let job = WrappedProgram::start_holding(&service, "3G", "512MiB", &["--idle"]);
    await_bytes(&service.client(), "L1", 512);
    for pause_ms in [900, 1700, 2600] {
        // The program finds the new daemon by itself, within a moment.
        until("it is told to leave", LONG, || match service.cli(&["park", "L1"]) {
            told if told.status.success() => Ok(()),
            told => Err(text(&told)),
        });
        std::thread::sleep(Duration::from_millis(pause_ms));
        service.kill();
        service.restart();
        let client = service.client();
        await_nothing(&client);
        assert!(service.cli(&["resume", "L1"]).status.success());
        std::thread::sleep(Duration::from_millis(pause_ms / 40));
        service.kill();
        service.restart();
        let client = service.client();
        client.await_lease("it is on its GPU", "L1", |lease| lease.state == LeaseState::Active);
        await_bytes(&client, "L1", 512);
    }
    job.finish("after six daemons");
}

#[test]
fn a_program_that_ends_while_parked_without_its_context_waits_for_no_other() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    // It gives its memory back unread.
    let job = deep(&service, &client, &["--idle", "--blind"]);
    // Another program has the GPU when it ends.
    let other = WrappedProgram::start_holding(&service, "3G", "1GiB", &["--idle"]);
    kill_process(Pid::from_child(&job.child), Signal::TERM).expect("an own child");
    assert_eq!(job.end().0, Some(0));
    client.await_lease("its lease is over", "L1", |lease| lease.ended.is_some());
    let audit = text(&service.cli(&["audit", "--lease", "L1"]));
    assert!(!audit.contains("want ") && !audit.contains("resume "), "it came back to end: {audit}");
    assert_eq!(client.lease("L2").state, LeaseState::Active, "no lease was parked for it");
    other.finish("no lease was resumed for that");
}

#[test]
fn while_an_unleased_process_is_on_the_gpu_contexts_stay() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let job = WrappedProgram::start_holding(&service, "2G", "512MiB", &["--idle"]);
    await_bytes(&client, "L1", 512);
    let hold = example("hold");
    let words = ["soft", "env", "--", &hold, "64MiB", "--idle", "--seconds", "600"];
    let mut stranger = service.command(&words).stdout(std::process::Stdio::null()).spawn().expect("a stranger");
    until("it is seen", LONG, || match client.card().used_bytes {
        Some(used) if used >= 576 << 20 => Ok(()),
        other => Err(other),
    });
    assert!(service.cli(&["park", "L1"]).status.success());
    // The driver is asked about a process once in five seconds.
    throughout(Duration::from_secs(9), || {
        let lease = client.lease("L1");
        assert!(lease.state == LeaseState::Parked && lease.seen_bytes > Some(0), "{:?}", lease.seen_bytes);
    });
    stranger.kill().and_then(|()| stranger.wait()).expect("it ends");
    await_nothing(&client);
    job.finish("after the stranger had gone");
}

/// Six contexts are 768 MiB: with them on the GPU a request for 3,500 MiB of 4 GiB would wait for the jobs to end.
#[test]
fn contexts_of_parked_programs_leave_for_a_request_that_needs_their_room() {
    let config = CONFIG.replace("context_after = \"1s\"", "context_after = \"10m\"")
        + "[preemption]\nidle_after = \"1s\"\ntime_slice = \"1s\"\n";
    let config = config.replacen("[preemption]\nretry_after = \"1s\"\n", "", 1);
    let gpu = TestGpu::Named("soft:1x4GiB");
    let service = TestService::start_with(ServiceSetup { gpu, config: Some(config), ..ServiceSetup::default() });
    let client = service.client();
    let jobs: Vec<WrappedProgram> =
        (0..6).map(|_| WrappedProgram::start_holding(&service, "500M", "256MiB", &["--idle"])).collect();
    let mut large =
        WrappedProgram::start(&service, &["--vram", "3500M", "--", &example("hold"), "2GiB", "--seconds", "1"]);
    assert!(large.line().starts_with("holds "), "{}", large.output_text());
    for number in 1..=6 {
        let lease = client.lease(&format!("L{number}"));
        assert_eq!((lease.state, lease.seen_bytes), (LeaseState::Parked, Some(0)), "L{number}");
    }
    assert_eq!(large.end().0, Some(0));
    for job in jobs {
        job.finish("its context left the GPU too, and came back");
    }
}
