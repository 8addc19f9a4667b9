//! `--signal USR1@60`: which processes of a lease get the signal that announces its end. Real process trees on a soft GPU.

use std::time::Duration;
use sublet_blackbox::binary::example;
use sublet_blackbox::programs::{WrappedProgram, await_state};
use sublet_blackbox::wait::throughout;
use sublet_blackbox::{LONG, ServiceSetup, TestGpu, TestService, until};
use sublet_wire::LeaseState;

const CONFIG: &str = r#"
ttl = "5m"
[preemption]
time_slice = "1s"
end_grace = "2s"
"#;

/// A shell that says `told` and exits when it gets SIGUSR1; the background job of a script.
const CATCHES: &str = r#"sh -c 'trap "echo told; exit 0" USR1; echo ready; while :; do sleep 0.05; done' &"#;

fn serve() -> TestService {
    let setup =
        ServiceSetup { gpu: TestGpu::Named("soft:1x4GiB"), config: Some(CONFIG.to_owned()), ..ServiceSetup::default() };
    TestService::start_with(setup)
}

/// Runs a script on a lease that is to end for another. What it printed once it was ready, and its exit code. The notice
/// comes `before_s` seconds before the lease ends.
fn announced(service: &TestService, script: &str, before_s: u64) -> (Option<i32>, String) {
    let signal = format!("USR1@{before_s}");
    let words = ["--vram", "3G", "--preempt", "end", "--signal", &signal, "--", "sh", "-c", script];
    let mut job = WrappedProgram::start(service, &words);
    assert_eq!(job.line(), "ready\n", "{}", job.output_text());
    await_state(&service.client(), "L1", LeaseState::Active);
    let hold = example("hold");
    let waiter = ["--vram", "3G", "--tier", "interactive", "--", &hold, "64MiB", "--seconds", "1"];
    let mut waiter = WrappedProgram::start(service, &waiter);
    let ended = job.end();
    assert!(waiter.line().starts_with("holds "), "{}", waiter.output_text());
    assert_eq!(waiter.end().0, Some(0));
    ended
}

/// The processes that were signalled because their lease ends, by the daemon's log.
fn signalled(service: &TestService) -> Vec<u32> {
    let log = service.log();
    let lines = log.lines().filter(|line| line.contains("signalled: the lease ends soon"));
    lines.filter_map(|line| line.split("pid=").nth(1)?.split(' ').next()?.parse().ok()).collect()
}

#[test]
fn a_child_with_a_handler_gets_the_signal_and_its_parent_without_one_does_not() {
    let service = serve();
    let (code, rest) = announced(&service, &format!("{CATCHES} wait; echo parent goes on"), 600);
    assert_eq!((code, rest.as_str()), (Some(0), "told\nparent goes on\n"));
}

#[test]
fn without_any_handler_the_command_gets_sigterm() {
    let service = serve();
    let (code, rest) = announced(&service, "sleep 600 & echo ready; wait; echo not reached", 2);
    assert_eq!((code, rest.as_str()), (Some(128 + 15), ""), "{}", service.log());
    assert!(service.log().contains("no process catches SIGUSR1"), "{}", service.log());
    assert_eq!(signalled(&service).len(), 1, "only the command: {}", service.log());
}

#[test]
fn a_process_that_ignores_the_signal_is_left_alone() {
    let service = serve();
    let (code, rest) = announced(&service, &format!("{CATCHES} trap '' USR1; wait; echo $!"), 600);
    let (told, child) = rest.split_once('\n').expect("two lines");
    assert_eq!((code, told), (Some(0), "told"), "{rest}");
    assert_eq!(signalled(&service), [child.trim().parse::<u32>().expect("a pid")], "{}", service.log());
}

/// The command ignores the signal, so it is not told at all: it has its whole term, and goes on after it.
#[test]
fn a_command_that_ignores_the_signal_gets_nothing_instead() {
    let service = serve();
    let script = "trap '' USR1; trap 'echo asked to go; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let words = ["--vram", "1G", "--time", "12s", "--signal", "USR1@2", "--", "sh", "-c", script];
    let mut job = WrappedProgram::start(&service, &words);
    assert_eq!(job.line(), "ready\n", "{}", job.output_text());
    until("the daemon looked for a process to tell", LONG, || {
        let log = service.log();
        if log.contains("no process was signalled") { Ok(()) } else { Err(log) }
    });
    service.client().await_lease("its term is over", "L1", |lease| lease.ended.is_some());
    throughout(Duration::from_secs(1), || {
        assert_eq!(job.child.try_wait().expect("an own child"), None, "it goes on: {}", service.log());
    });
    assert!(signalled(&service).is_empty(), "{}", service.log());
}
