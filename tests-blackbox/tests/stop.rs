//! `sublet stop` ends programs with their leases; `sublet release` gives back the lease alone.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::os::unix::process::CommandExt;
use std::process::Output;
use sublet_blackbox::programs::{WrappedProgram, await_bytes, await_state, successful_output, text};
use sublet_blackbox::unleased::is_alive;
use sublet_blackbox::user::is_root;
use sublet_blackbox::{GIB, LONG, ProgramTerminal, ServiceSetup, TestGpu, TestProcess, TestService, ask, until};
use sublet_wire::LeaseState;

const OTHER: u32 = 12_347;

fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A program under `sublet run` that says when it has begun.
fn begun(service: &TestService, words: &[&str], script: &str) -> WrappedProgram {
    let mut job = WrappedProgram::start(service, &[words, &["--", "bash", "-c", script]].concat());
    assert_eq!(job.line(), "begun\n", "{}", job.output_text());
    job
}

/// Counts its SIGTERMs, and ends a moment after the first.
const POLITE: &str =
    "n=0; trap 'n=$((n + 1))' TERM; echo begun; while [ $n = 0 ]; do sleep 0.05; done; sleep 0.5; echo $n; exit 5";
/// Hears no SIGTERM.
const DEAF: &str = "trap '' TERM; echo begun; while :; do sleep 0.05; done";

#[test]
fn stop_ends_the_program_with_one_sigterm_and_then_the_lease() {
    let service = TestService::start();
    let client = service.client();
    for verb in ["stop", "cancel", "kill"] {
        let job = begun(&service, &["--vram", "4G"], POLITE);
        let id = client.live_ids()[0].clone();
        let mut bystander = TestProcess::idle();
        // The wrapper, the shell, and its `sleep` if one runs just then.
        assert!(successful_output(&service, &[verb, &id]).starts_with(&format!("{id} stopped: ")), "{verb}");
        assert_eq!(job.end(), (Some(5), "1\n".to_owned()), "{verb}");
        assert!(client.lease(&id).ended.is_some());
        assert!(bystander.alive(), "it is of no lease");
    }
}

#[test]
fn what_does_not_end_in_the_grace_is_killed() {
    let service = TestService::start();
    let job = begun(&service, &["--vram", "4G"], DEAF);
    let told = successful_output(&service, &["stop", "L1", "--grace", "1s"]);
    assert!(told.starts_with("L1 stopped: ") && told.contains(" by SIGKILL after 1 s\n"), "{told}");
    assert_eq!(job.end().0, Some(137));
    assert!(service.client().lease("L1").ended.is_some());
}

#[test]
fn what_the_command_left_behind_is_ended_too() {
    let service = TestService::start();
    let job = WrappedProgram::start(
        &service,
        &["--vram", "4G", "--", "bash", "-c", "setsid sleep 3600 >/dev/null 2>&1 & echo $!"],
    );
    let stderr = job.stderr.clone();
    let (code, printed) = job.end();
    let said = std::fs::read_to_string(stderr).expect("what it said");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("to end them now: `sublet stop L1`"), "{said}");
    assert_eq!(successful_output(&service, &["stop", "L1"]), "L1 stopped: 1 process ended\n");
    assert!(!is_alive(printed.trim().parse().expect("a number")));
}

#[test]
fn a_parked_program_is_ended_too() {
    let service =
        TestService::start_with(ServiceSetup { gpu: TestGpu::Named("soft:1x24GiB"), ..ServiceSetup::default() });
    let job = WrappedProgram::start_holding(&service, "4G", "2GiB", &["--idle"]);
    let client = service.client();
    await_bytes(&client, "L1", 2048);
    successful_output(&service, &["park", "L1"]);
    // The GPU is given to another, so that the program cannot come back to end in order.
    let full = client.grant(&ask(22 * GIB, json!({"time_s": 3600})));
    let told = successful_output(&service, &["stop", "L1", "--grace", "1s"]);
    assert!(told.contains("1 by SIGKILL after 1 s"), "{told}");
    assert_eq!(job.end().0, Some(137));
    assert!(client.lease("L1").ended.is_some());
    assert!(client.lease(&full.id).ended.is_none());
}

#[test]
fn names_choose_leases_and_ambiguous_ones_are_listed() {
    let service = TestService::start();
    let client = service.client();
    let first = begun(&service, &["--vram", "4G", "--name", "train"], POLITE);
    let second = begun(&service, &["--vram", "4G", "--name", "train"], POLITE);
    let other = begun(&service, &["--vram", "4G", "--name", "eval"], POLITE);
    for verb in ["stop", "release", "explain", "renew", "park", "resume", "accept"] {
        let output = service.cli(&[verb, "train"]);
        assert_eq!(output.status.code(), Some(64), "{verb}: {}", text(&output));
        let two = "2 leases are called `train`: L1 (active, 4 GiB on GPU 0), L2 (active, 4 GiB on GPU 0)";
        assert!(output_text(&output).contains(two), "{verb}: {}", output_text(&output));
        let none = service.cli(&[verb, "nothing"]);
        assert_eq!(none.status.code(), Some(1), "{verb}: {}", text(&none));
        assert!(output_text(&none).contains("no lease of yours is called `nothing`"), "{verb}: {}", output_text(&none));
    }
    assert!(successful_output(&service, &["explain", "eval"]).starts_with("L3 "));
    assert!(successful_output(&service, &["audit", "--lease", "eval"]).contains("L3"));
    let told = successful_output(&service, &["stop", "--name", "train"]);
    assert!(told.contains("L1 stopped: ") && told.contains("L2 stopped: "), "{told}");
    assert_eq!([first.end().0, second.end().0], [Some(5), Some(5)]);
    assert!(client.lease("L3").ended.is_none());
    successful_output(&service, &["stop", "eval"]);
    assert_eq!(other.end().0, Some(5));
}

#[test]
fn everything_of_ones_own_is_stopped_and_nothing_of_others() {
    let service = TestService::start();
    let client = service.client();
    let runs = begun(&service, &["--vram", "20G"], POLITE);
    let waits = WrappedProgram::start(&service, &["--vram", "20G", "--", "true"]);
    await_state(&client, "L2", LeaseState::Waiting);
    let free = client.grant(&ask(GIB, json!({})));
    let others =
        is_root().then(|| WrappedProgram::start_as(&service, Some(OTHER), &["--vram", "1G", "--", "sleep", "3600"]));
    if others.is_some() {
        until("the other user's lease is active", LONG, || match client.get("/v1/leases/L4").status {
            200 if client.lease("L4").state == LeaseState::Active => Ok(()),
            status => Err(status),
        });
        // Root's own are stopped, though it sees those of all others.
        let denied = service.command(&["stop", "L1"]).uid(OTHER).gid(OTHER).output().expect("the command line");
        assert_eq!(denied.status.code(), Some(1), "{}", text(&denied));
        assert!(output_text(&denied).contains("you have no such lease"), "{}", output_text(&denied));
    }
    let output = service.cli(&["stop", "--mine", "--json"]);
    assert!(output.status.success(), "{}", text(&output));
    let stopped: Vec<Value> =
        text(&output).lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    assert_eq!(
        stopped.iter().map(|lease| lease["id"].as_str()).collect::<Vec<_>>(),
        [Some("L1"), Some("L2"), Some("L3")]
    );
    assert_eq!(runs.end().0, Some(5));
    assert_eq!(waits.end().0, Some(143), "it left the queue");
    assert!(client.lease(&free.id).ended.is_some());
    if others.is_some() {
        assert_eq!(client.lease("L4").state, LeaseState::Active);
    }
    let nothing = service.command(&["stop", "--mine"]).output().expect("the command line");
    assert_eq!((nothing.status.code(), output_text(&nothing).as_str()), (Some(0), "no leases\n"));
}

#[test]
fn release_gives_the_lease_back_and_the_program_goes_on() {
    let service = TestService::start();
    let mut job = begun(&service, &["--vram", "4G"], POLITE);
    let released = service.cli(&["release", "L1"]);
    assert!(released.status.success(), "{}", text(&released));
    assert!(text(&released).starts_with("L1 released\n"), "{}", text(&released));
    assert!(output_text(&released).contains("on without a lease"), "{}", output_text(&released));
    job.await_output("lease L1 was released");
    assert_eq!(job.child.try_wait().expect("an own child"), None);
    // It is ended by its own variables, though its lease is over.
    assert!(successful_output(&service, &["stop", "L1"]).starts_with("L1 stopped: "));
    assert_eq!(job.end().0, Some(5));
}

#[test]
fn a_stopped_job_gets_its_sigterm() {
    let service = TestService::start();
    let job = begun(&service, &["--vram", "4G"], POLITE);
    kill_process(Pid::from_child(&job.child), Signal::TSTP).expect("an own child");
    until("the wrapper is stopped", LONG, || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", job.child.id())).unwrap_or_default();
        if stat.contains(") T ") { Ok(()) } else { Err(stat) }
    });
    successful_output(&service, &["stop", "L1"]);
    assert_eq!(job.end().0, Some(5));
}

#[test]
fn the_shell_that_took_a_lease_goes_on_and_what_it_started_ends() {
    let service = TestService::start();
    let mut shell = std::process::Command::new("bash");
    shell.args(["--norc", "--noprofile", "-i"]).env_clear().env("PATH", "/usr/bin:/bin").env("PS1", "$ ");
    shell.env("SUBLET_SOCKET", service.dir().join("s")).env("HOME", service.dir());
    let terminal = ProgramTerminal::open(shell);
    let sublet = sublet_blackbox::binary::sublet().display().to_string();
    terminal.type_line(&format!("eval \"$({sublet} lease --vram 4G)\"; sleep 3600 & echo started-$SUBLET_LEASE"));
    terminal.await_screen_text("started-L1");
    let told = service.cli(&["stop", "L1"]);
    assert!(told.status.success(), "{}", text(&told));
    assert!(text(&told).starts_with("L1 stopped: 1 process ended\n"), "{}", text(&told));
    assert!(output_text(&told).contains(&format!("the shell that had L1 goes on (process {})", terminal.child.id())));
    terminal.type_line("echo still-$((40 + 2))");
    terminal.await_screen_text("still-42");
}
