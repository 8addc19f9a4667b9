//! `sublet run` as its user meets it: what it does with signals, what a service that does not answer
//! does to it, and on which GPUs its command lands.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};
use sublet_blackbox::programs::{WrappedProgram, await_state};
use sublet_blackbox::wait::throughout;
use sublet_blackbox::{GIB, LONG, ServiceSetup, TestGpu, TestService, ask, until};
use sublet_wire::{EndReason, LeaseState};

/// What may pass between a signal, or the command's end, and the wrapper's: far below the 30 s that a
/// daemon has for an answer, far above what a busy machine takes.
const SOON: Duration = Duration::from_secs(15);

/// Waits until a process has a handler for a signal.
fn await_handler(pid: u32, signal: Signal) {
    until("it listens to signals", LONG, || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0").trim().to_owned();
        let caught = u64::from_str_radix(&mask, 16).is_ok_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1);
        if caught { Ok(()) } else { Err(mask) }
    });
}

#[test]
fn sublet_run_can_be_interrupted_while_the_service_does_not_answer_and_leaves_no_lease() {
    let service = TestService::start();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        service.while_stopped(|| {
            let mut job = WrappedProgram::start(&service, &["--vram", "4G", "--", "true"]);
            await_handler(job.child.id(), signal);
            // Its request gets no answer now.
            throughout(Duration::from_millis(500), || {
                assert_eq!(job.child.try_wait().expect("an own child"), None);
            });
            let sent = Instant::now();
            kill_process(Pid::from_child(&job.child), signal).expect("an own child");
            let (got, printed) = job.end();
            assert_eq!((got, printed.as_str()), (Some(code), ""));
            assert!(sent.elapsed() < SOON, "{signal:?} took {:?}", sent.elapsed());
        });
        // The service reads its request only now.
        until("no lease is left", LONG, || {
            let live = service.client().live_ids();
            if live.is_empty() { Ok(()) } else { Err(live) }
        });
        throughout(Duration::from_secs(1), || assert_eq!(service.client().live_ids(), [""; 0]));
    }
}

#[test]
fn a_command_is_over_when_it_is_over_also_where_the_service_does_not_answer() {
    let service = TestService::start();
    let go = service.dir().join("go");
    let script = format!("until test -e {}; do sleep 0.05; done; exit 7", go.display());
    let job = WrappedProgram::start(&service, &["--vram", "4G", "--", "sh", "-c", &script]);
    let client = service.client();
    await_state(&client, "L1", LeaseState::Active);
    service.while_stopped(|| {
        fs::write(&go, "").expect("a file");
        let ended = Instant::now();
        assert_eq!(job.end().0, Some(7));
        assert!(ended.elapsed() < SOON, "its end took {:?}", ended.elapsed());
    });
    client.await_lease("the lease ends with its holder", "L1", |lease| lease.ended.is_some());
}

/// Two GPUs without any process.
fn two_cards() -> TestService {
    TestService::start_with(ServiceSetup { gpu: TestGpu::Named("scripted:2x24GiB"), ..ServiceSetup::default() })
}

/// A command that says which GPUs it sees, and runs until it is told to end.
fn seen_from(service: &TestService, visible: &str, arguments: &[&str]) -> WrappedProgram {
    let command = ["--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exec sleep 3600"];
    WrappedProgram::start_with(service, &[arguments, &command].concat(), |job| {
        job.env("CUDA_VISIBLE_DEVICES", visible);
    })
}

#[test]
fn a_command_gets_a_gpu_that_is_visible_to_its_caller() {
    let service = two_cards();
    let uuids: Vec<String> = service.client().cards().into_iter().map(|card| card.uuid).collect();
    let (second, beginning) = (uuids[1].as_str(), &uuids[1][..12]);
    for (visible, arguments, expected) in [
        ("1", &[][..], "1"),
        (second, &[], second),
        (beginning, &[], beginning),
        ("1,0", &["--on", "1"], "1"),
        ("1", &["--on", "0,1"], "1"),
        ("1", &["--visible", "uuid"], second),
        ("1,0", &["--gpus", "2"], "0,1"),
        ("1,-1,0", &[], "1"),
    ] {
        let mut job = seen_from(&service, visible, &[&["--vram", "4G"], arguments].concat());
        assert_eq!(job.line().trim(), expected, "CUDA_VISIBLE_DEVICES={visible} {arguments:?}: {}", job.output_text());
    }
}

#[test]
fn a_command_that_sees_one_gpu_waits_for_it_although_another_is_free() {
    let service = two_cards();
    let client = service.client();
    let full = client.grant(&ask(20 * GIB, json!({"on": "1", "time_s": 3600})));
    let second = client.cards()[1].uuid.clone();
    let mut jobs = Vec::new();
    for (visible, id) in [("1", "L2"), (second.as_str(), "L3")] {
        jobs.push(seen_from(&service, visible, &["--vram", "8G"]));
        let waiting = await_state(&client, id, LeaseState::Waiting);
        assert!(waiting.waiting.expect("it waits").why.contains("GPU 1"), "it says which GPU it waits for");
    }
    throughout(Duration::from_secs(1), || {
        assert_eq!(client.lease("L2").state, LeaseState::Waiting, "GPU 0 is free, and not for it");
    });
    assert_eq!(client.delete(&format!("/v1/leases/{}", full.id)).status, 200);
    let lines: Vec<String> = jobs.iter_mut().map(|job| job.line().trim().to_owned()).collect();
    assert_eq!(lines, ["1", &second]);
    assert_eq!(client.lease("L2").gpu_indices, [1]);
}

#[test]
fn a_request_that_the_visible_gpus_cannot_meet_is_refused_with_the_reason() {
    let service = two_cards();
    for (visible, arguments, code, expected) in [
        ("", &[][..], 77, "CUDA_VISIBLE_DEVICES is `` here, which means no GPU"),
        ("1", &["--gpus", "2"], 64, "no other GPU was requested: CUDA_VISIBLE_DEVICES is `1`"),
        ("1", &["--on", "0"], 77, "`--on 0` names no GPU that is visible here: CUDA_VISIBLE_DEVICES is `1`"),
        ("7", &[], 64, "no other GPU was requested: CUDA_VISIBLE_DEVICES is `7`"),
    ] {
        let job = seen_from(&service, visible, &[&["--vram", "4G"], arguments].concat());
        let stderr = job.stderr.clone();
        let (got, printed) = job.end();
        let said = fs::read_to_string(stderr).expect("what it said");
        assert_eq!((got, printed.as_str()), (Some(code), ""), "CUDA_VISIBLE_DEVICES={visible} {arguments:?}: {said}");
        assert!(said.contains(expected), "{said}");
    }
    assert_eq!(service.client().live_ids(), [""; 0], "nothing was asked for, or nothing is left");
}

#[test]
fn signals_meant_for_the_command_reach_it() {
    let service = TestService::start();
    for (number, name) in [(14, "ALRM"), (24, "XCPU"), (26, "VTALRM"), (30, "PWR"), (34, "34"), (64, "64")] {
        let script = format!("trap 'echo got {name}; exit 3' {name}; echo ready; while :; do sleep 0.05; done");
        let mut job = WrappedProgram::start(&service, &["--vram", "1G", "--", "bash", "-c", &script]);
        assert_eq!(job.line(), "ready\n", "{}", job.output_text());
        let status = Command::new("kill").args([&format!("-{number}"), &job.child.id().to_string()]).status();
        assert!(status.expect("kill").success());
        let (code, printed) = job.end();
        assert_eq!((code, printed.trim()), (Some(3), format!("got {name}").as_str()));
    }
}

#[test]
fn a_signal_comes_before_a_fixed_term_is_over_and_the_program_goes_on() {
    let service = TestService::start();
    let script = "trap 'echo told' USR1; echo ready; while :; do sleep 0.05; done";
    let words = ["--vram", "1G", "--time", "6s", "--signal", "USR1@3", "--", "bash", "-c", script];
    let mut job = WrappedProgram::start(&service, &words);
    assert_eq!(job.line(), "ready\n", "{}", job.output_text());
    assert_eq!(job.line(), "told\n", "{}", job.output_text());
    let client = service.client();
    let lease = client.lease("L1");
    assert!(lease.ended.is_none(), "it is told before: {lease:?}");
    job.await_output("its term is over then");
    let over = client.await_lease("its term is over", "L1", |lease| lease.ended.is_some());
    assert_eq!(over.ended.map(|ended| ended.reason), Some(EndReason::TermOver));
    assert_eq!(job.child.try_wait().expect("an own child"), None, "its program goes on");
}
