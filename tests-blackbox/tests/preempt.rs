//! Leases are preempted for waiters on soft GPUs, with real programs that know nothing of it.

use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};
use sublet_blackbox::binary::example;
use sublet_blackbox::programs::{WrappedProgram, await_bytes, await_state, text};
use sublet_blackbox::{LONG, ServiceSetup, TestGpu, TestService, until};
use sublet_wire::{EndReason, LeaseState, ParkMethod};

/// Terms so long that nothing comes to its end by itself, and no memory kept ready.
const CONFIG: &str = r#"
ttl = "5m"
[preemption]
time_slice = "1s"
idle_after = "2s"
switching_max = "10%"
end_grace = "2s"
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

/// The last line that a program prints when no other program runs.
fn undisturbed(service: &TestService, program: &[&str]) -> String {
    let alone = service.command(&[&["soft", "env", "--"], program].concat()).output().expect("a program");
    String::from_utf8_lossy(&alone.stdout).lines().last().expect("a line").to_owned()
}

#[test]
fn an_interactive_request_parks_a_batch_job_which_goes_on_and_computes_the_same() {
    let service = serve("soft:1x2GiB");
    let client = service.client();
    let train = example("mlp");
    let program = [train.as_str(), "--steps", "600"];
    let alone = undisturbed(&service, &program);
    assert!(alone.starts_with("weights "), "{alone}");
    let job = WrappedProgram::start(&service, &[&["--vram", "1200M", "--"], &program[..]].concat());
    await_bytes(&client, "L1", 10);
    let asked = Instant::now();
    let words = ["--vram", "1200M", "--tier", "interactive", "--", &example("hold"), "64MiB", "--seconds", "1"];
    let mut guest = WrappedProgram::start(&service, &words);
    assert!(guest.line().starts_with("holds "), "{}", guest.output_text());
    assert!(asked.elapsed() < Duration::from_secs(20), "it had to wait for {:?}", asked.elapsed());
    let parked = client.lease("L1");
    assert_eq!((parked.state, parked.method), (LeaseState::Parked, Some(ParkMethod::Shim)));
    assert_eq!(guest.end().0, Some(0));
    let (code, rest) = job.end();
    assert_eq!((code, rest.lines().last()), (Some(0), Some(alone.as_str())), "{rest}");
    let audit = text(&service.cli(&["audit", "--lease", "L1"]));
    assert!(audit.contains("is being parked for L2"), "{audit}");
}

#[test]
fn equals_take_turns_and_compute_the_same() {
    let service = serve("soft:1x2GiB");
    let train = example("mlp");
    let program = [train.as_str(), "--steps", "2000"];
    let alone = undisturbed(&service, &program);
    let words = [&["--vram", "1200M", "--"], &program[..]].concat();
    let jobs = [WrappedProgram::start(&service, &words), WrappedProgram::start(&service, &words)];
    until("both were parked for the other", LONG, || {
        let audit = text(&service.cli(&["audit"]));
        let both = audit.contains("L1 is being parked for L2") && audit.contains("L2 is being parked for L1");
        if both { Ok(()) } else { Err(audit) }
    });
    for job in jobs {
        let (code, rest) = job.end();
        assert_eq!((code, rest.lines().last()), (Some(0), Some(alone.as_str())), "{rest}");
    }
}

/// Thirty programs for one GPU, which has room for three: all of them finish, and each computes what it would alone.
#[test]
fn thirty_holders_take_turns_on_one_gpu_and_each_computes_the_same() {
    let config = CONFIG.replace("switching_max = \"10%\"", "switching_max = \"50%\"");
    let gpu = TestGpu::Named("soft:1x24GiB");
    let service = TestService::start_with(ServiceSetup { gpu, config: Some(config), ..ServiceSetup::default() });
    let train = example("mlp");
    // On any machine each program runs longer than a time slice, and the cost of a switch does not prolong the slice.
    let program = [train.as_str(), "--steps", "200", "--pace", "10"];
    let alone = undisturbed(&service, &program);
    let words = [&["--vram", "7G", "--"], &program[..]].concat();
    let jobs: Vec<WrappedProgram> = (0..30).map(|_| WrappedProgram::start(&service, &words)).collect();
    for (number, job) in (1..).zip(jobs) {
        let (code, rest) = job.end();
        assert_eq!((code, rest.lines().last()), (Some(0), Some(alone.as_str())), "job {number}: {rest}");
    }
    let audit = text(&service.cli(&["audit"]));
    let left = audit.lines().filter(|line| line.contains("is being parked for")).count();
    let back = audit.lines().filter(|line| line.contains("is resumed")).count();
    assert!(left >= 10 && back >= 10, "{left} left for others, and {back} came back: {audit}");
}

/// If the driver reports the memory in use but not per process, holders are parked one after the other.
#[test]
fn without_bytes_per_process_leases_are_parked_one_after_the_other() {
    let service = serve("soft:1x5GiB");
    let client = service.client();
    assert!(service.cli(&["soft", "fault", "0", "nvml", "no-bytes"]).status.success());
    let holders: Vec<WrappedProgram> =
        (0..2).map(|_| WrappedProgram::start_holding(&service, "1900M", "256MiB", &["--idle"])).collect();
    until("the GPU is coarse, and both have their bytes", LONG, || {
        let card = client.card();
        let both = card.used_bytes.is_some_and(|used| used >= 512 << 20);
        if card.coarse && both { Ok(()) } else { Err(card.used_bytes) }
    });
    let words = ["--vram", "2500M", "--tier", "interactive", "--", &example("hold"), "64MiB", "--seconds", "1"];
    let mut guest = WrappedProgram::start(&service, &words);
    assert!(guest.line().starts_with("holds "), "{}", guest.output_text());
    for lease in ["L1", "L2"] {
        let parked = client.lease(lease);
        assert_eq!((parked.state, parked.method), (LeaseState::Parked, Some(ParkMethod::Shim)), "{lease}");
    }
    // The second was told after a reading had shown that the first left.
    let audit = text(&service.cli(&["audit"]));
    let steps = |line: &&str| line.contains("is being parked for") || line.contains("is parked");
    let told: Vec<bool> = audit.lines().filter(steps).map(|line| line.contains("is being parked for")).collect();
    assert_eq!(told, [true, false, true, false], "{audit}");
    assert_eq!(guest.end().0, Some(0));
    holders.into_iter().for_each(|job| job.finish("after it was parked without a reading of bytes per process"));
}

#[test]
fn an_idle_notebook_makes_room_for_a_batch_job_and_finds_all_again() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let words = ["--vram", "3G", "--tier", "interactive", "--", &example("hold"), "512MiB", "--idle"];
    let mut notebook = WrappedProgram::start(&service, &words);
    assert!(notebook.line().starts_with("holds "), "{}", notebook.output_text());
    await_bytes(&client, "L1", 512);
    let mut batch =
        WrappedProgram::start(&service, &["--vram", "3G", "--", &example("hold"), "256MiB", "--seconds", "1"]);
    assert!(batch.line().starts_with("holds "), "{}", batch.output_text());
    assert_eq!(client.lease("L1").state, LeaseState::Parked);
    // The signal makes it check its memory, which counts as use: it gets its GPU back at once.
    notebook.finish("after it was parked for another lease");
    assert_eq!(batch.end().0, Some(0));
}

#[test]
fn only_the_lease_with_preempt_end_gets_signals() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let script = "trap 'echo told' USR1; trap 'echo asked to go; exit 0' TERM; while :; do sleep 0.05; done";
    let words = ["--vram", "3G", "--preempt", "end", "--signal", "USR1@1", "--", "bash", "-c", script];
    let job = WrappedProgram::start(&service, &words);
    await_state(&client, "L1", LeaseState::Active);
    let beside = WrappedProgram::start_holding(&service, "256M", "64MiB", &["--idle"]);
    let mut guest = WrappedProgram::start(
        &service,
        &["--vram", "3G", "--tier", "interactive", "--", &example("hold"), "64MiB", "--seconds", "1"],
    );
    assert!(guest.line().starts_with("holds "), "{}", guest.output_text());
    let (code, rest) = job.end();
    assert_eq!((code, rest.as_str()), (Some(0), "told\nasked to go\n"));
    let ended = client.lease("L1").ended.expect("it ended");
    assert_eq!(ended.reason, EndReason::Preempted, "{}", ended.sentence);
    let audit = text(&service.cli(&["audit", "--lease", "L1"]));
    assert!(audit.contains("SIGTERM is sent to") && !audit.contains("SIGKILL"), "{audit}");
    beside.finish("it did not choose that");
    assert_eq!(guest.end().0, Some(0));
}

#[test]
fn a_program_that_ignores_sigterm_gets_sigkill() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let script = "trap '' TERM; while :; do sleep 0.05; done";
    let job = WrappedProgram::start(&service, &["--vram", "3G", "--tier", "spot", "--", "bash", "-c", script]);
    await_state(&client, "L1", LeaseState::Active);
    let mut guest =
        WrappedProgram::start(&service, &["--vram", "3G", "--", &example("hold"), "64MiB", "--seconds", "1"]);
    assert!(guest.line().starts_with("holds "), "{}", guest.output_text());
    assert_eq!(job.end().0, Some(128 + 9), "its wrapper lives to say so");
    let audit = text(&service.cli(&["audit", "--lease", "L1"]));
    assert!(audit.contains("SIGTERM is sent to") && audit.contains("SIGKILL is sent to"), "{audit}");
}

#[test]
fn a_request_that_does_not_wait_parks_no_lease() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let job = WrappedProgram::start_holding(&service, "3G", "256MiB", &["--idle"]);
    let words = ["run", "--vram", "3G", "--tier", "interactive", "--no-wait", "--", "true"];
    assert!(!service.cli(&words).status.success());
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(client.lease("L1").state, LeaseState::Active);
    job.finish("it was not parked");
}

#[test]
fn a_daemon_killed_while_room_is_made_goes_on_where_it_was() {
    let mut service = serve("soft:1x4GiB");
    let job = WrappedProgram::start_holding(&service, "3G", "512MiB", &["--idle"]);
    await_bytes(&service.client(), "L1", 512);
    for pause_ms in [0, 5, 20, 60, 150, 400] {
        let guest = WrappedProgram::start(&service, &["--vram", "3G", "--tier", "interactive", "--", "sleep", "60"]);
        std::thread::sleep(Duration::from_millis(pause_ms));
        service.kill();
        service.restart();
        let client = service.client();
        client.await_lease("it is somewhere for good", "L1", |lease| {
            matches!(lease.state, LeaseState::Active | LeaseState::Parked)
        });
        kill_process(Pid::from_child(&guest.child), Signal::TERM).expect("an own child");
        drop(guest);
        assert!(service.cli(&["resume", "L1"]).status.success());
        await_bytes(&client, "L1", 512);
    }
    job.finish("after six daemons");
}

#[test]
fn a_program_without_the_library_is_parked_by_the_driver_and_finds_all_again() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let hold = example("hold");
    let words = ["--vram", "3G", "--no-shim", "--", &hold, "512MiB", "--idle"];
    let mut job = WrappedProgram::start(&service, &words);
    assert!(job.line().starts_with("holds "), "{}", job.output_text());
    await_bytes(&client, "L1", 512);
    let words = ["--vram", "3G", "--tier", "interactive", "--", &hold, "256MiB", "--seconds", "1"];
    let mut guest = WrappedProgram::start(&service, &words);
    assert!(guest.line().starts_with("holds "), "{}", guest.output_text());
    let parked = client.lease("L1");
    assert_eq!(
        (parked.state, parked.method, parked.seen_bytes),
        (LeaseState::Parked, Some(ParkMethod::Driver), Some(0))
    );
    assert_eq!(guest.end().0, Some(0));
    // Without the library it cannot ask for its GPU, so it gets it back as soon as there is room.
    await_bytes(&client, "L1", 512);
    await_state(&client, "L1", LeaseState::Active);
    job.finish("after the driver parked it");
}

#[test]
fn the_driver_parks_no_lease_beside_an_unleased_process_without_may_lose() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let hold = example("hold");
    let mut stranger = service.command(&["soft", "env", "--", &hold, "64MiB", "--idle"]).spawn().expect("a program");
    let mut job = WrappedProgram::start(&service, &["--vram", "2G", "--no-shim", "--", &hold, "512MiB", "--idle"]);
    assert!(job.line().starts_with("holds "), "{}", job.output_text());
    await_bytes(&client, "L1", 512);
    let refused = until("it was looked at", LONG, || {
        let output = service.cli(&["park", "L1"]);
        let words = text(&output);
        if output.status.success() || words.contains("library") { Err(words) } else { Ok(words) }
    });
    assert!(refused.contains("a restore might find no room"), "{refused}");
    assert_eq!(client.lease("L1").state, LeaseState::Active);
    job.finish("it was not touched");
    let words = ["--vram", "2G", "--no-shim", "--may-lose", "--", &hold, "512MiB", "--idle"];
    let mut job = WrappedProgram::start(&service, &words);
    assert!(job.line().starts_with("holds "), "{}", job.output_text());
    await_bytes(&client, "L2", 512);
    until("it was parked", LONG, || {
        let output = service.cli(&["park", "L2"]);
        if output.status.success() { Ok(()) } else { Err(text(&output)) }
    });
    assert!(service.cli(&["resume", "L2"]).status.success());
    await_bytes(&client, "L2", 512);
    job.finish("its owner took the risk, and nothing happened");
    stranger.kill().expect("an own child");
    stranger.wait().expect("an own child");
}

/// A job on several GPUs with processes that communicate through NCCL cannot be parked by any method, and `explain`
/// says so.
#[test]
fn a_job_with_nccl_on_several_gpus_is_never_parked_and_explain_says_why() {
    let service = serve("soft:2x4GiB");
    let client = service.client();
    let hold = example("hold");
    let words = ["--vram", "3G", "--gpus", "2", "--no-shim", "--", &hold, "256MiB", "--idle", "--thread"];
    let mut job = WrappedProgram::start(&service, &[&words[..], &["NCCL Service 0"]].concat());
    assert!(job.line().starts_with("holds "), "{}", job.output_text());
    await_bytes(&client, "L1", 256);
    let words = ["--vram", "3G", "--tier", "interactive", "--", &hold, "64MiB", "--seconds", "1"];
    let guest = WrappedProgram::start(&service, &words);
    until("the driver was asked about it", LONG, || {
        let words = text(&service.cli(&["explain", "L2"]));
        if words.contains("NCCL group") { Ok(()) } else { Err(words) }
    });
    assert_eq!(client.lease("L1").state, LeaseState::Active);
    job.finish("it was not touched");
    assert_eq!(guest.end().0, Some(0));
}
