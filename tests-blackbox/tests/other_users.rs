//! Processes of a lease that its user has no power over: those of other users below it, and those that are stopped.
//!
//! Tests with several users need root; elsewhere they say that they were skipped.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use sublet_blackbox::binary::example;
use sublet_blackbox::programs::{WrappedProgram, await_bytes, await_state, successful_output, text};
use sublet_blackbox::user::{as_user, is_root};
use sublet_blackbox::{GIB, LONG, ServiceSetup, TestGpu, TestService, ask, until};
use sublet_wire::{LeaseState, Notice, UnleasedProcesses};

const ALICE: u32 = 12345;
const BOB: u32 = 12346;

const CONFIG: &str = r#"
ttl = "5m"
[preemption]
time_slice = "1s"
end_grace = "2s"
[parking]
ram = "4G"
keep_free = "256M"
ready = "off"
"#;

fn serve() -> TestService {
    let setup =
        ServiceSetup { gpu: TestGpu::Named("soft:1x4GiB"), config: Some(CONFIG.to_owned()), ..ServiceSetup::default() };
    TestService::start_with(setup)
}

/// A program that needs most of the GPU for a second, at a higher tier.
fn interactive_guest(service: &TestService) -> WrappedProgram {
    let hold = example("hold");
    WrappedProgram::start(service, &["--vram", "3G", "--tier", "interactive", "--", &hold, "64MiB", "--seconds", "1"])
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).is_some_and(|state| state != "Z")
}

fn kill(pid: u32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid as i32).expect("a pid"), signal);
}

#[test]
fn a_notice_does_not_reach_a_process_of_another_user_below_the_command() {
    if !is_root() {
        return eprintln!("skipped: only root can be several users");
    }
    let service = serve();
    let catches =
        |says: &str| format!(r#"sh -c 'trap "echo {says}; exit 0" USR1; echo $$; while :; do sleep 0.05; done'"#);
    let script = format!(
        "setpriv --reuid={ALICE} --regid={ALICE} --clear-groups {} & {} & wait $!; echo goes on",
        catches("wrong"),
        catches("told")
    );
    let words = ["--vram", "3G", "--preempt", "end", "--signal", "USR1@600", "--", "sh", "-c", &script];
    let mut job = WrappedProgram::start(&service, &words);
    let pids: Vec<u32> = (0..2).map(|_| job.line().trim().parse().expect("a pid")).collect();
    let status = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let others = pids.iter().copied().find(|pid| status(pid).contains(&format!("Uid:\t{ALICE}\t"))).expect("ALICE's");
    let lease =
        service.client().await_lease("the other user is known", "L1", |lease| lease.foreign_processes.is_some());
    // Its own child, a short sleep, may be named beside it.
    let note = format!("{others} (uid {ALICE})");
    let told = lease.foreign_processes.unwrap_or_default();
    assert!(told.contains(&note) && told.contains("none of the lease's signals"), "{told}");
    assert!(text(&service.cli(&["explain", "L1"])).contains(&note));
    let guest = interactive_guest(&service);
    assert_eq!((job.line(), job.line()), ("told\n".to_owned(), "goes on\n".to_owned()), "{}", service.log());
    assert!(is_alive(others), "{}", service.log());
    assert!(service.log().contains("left out: it runs as uid 12345, not as the lease's user"), "{}", service.log());
    // The lease goes on as long as it runs.
    kill(others, Signal::KILL);
    assert_eq!(job.end().0, Some(0));
    guest.end();
}

#[test]
fn the_end_of_a_lease_spares_a_set_user_id_program_and_says_so() {
    if !is_root() {
        return eprintln!("skipped: only root can be several users");
    }
    let service = serve();
    let sleep = service.dir().join("sleep");
    fs::copy("/bin/sleep", &sleep).expect("a copy");
    fs::set_permissions(&sleep, fs::Permissions::from_mode(0o4755)).expect("a mode");
    let sleep = sleep.display();
    let script = format!("{sleep} 3600 >/dev/null 2>&1 & echo $!; exec sleep 3600 >/dev/null 2>&1");
    let words = ["--vram", "3G", "--preempt", "end", "--", "sh", "-c", &script];
    let mut job = WrappedProgram::start_as(&service, Some(ALICE), &words);
    let spared: u32 = job.line().trim().parse().expect("a pid");
    let client = service.client();
    as_user(ALICE, || client.await_lease("the other user is known", "L1", |lease| lease.foreign_processes.is_some()));
    let mut guest = interactive_guest(&service);
    assert!(guest.line().starts_with("holds "), "{}", guest.output_text());
    assert!(is_alive(spared), "{}", service.log());
    let audit = successful_output(&service, &["audit", "--lease", "L1"]);
    assert!(audit.contains(&format!("; not to {spared}")) && audit.contains("run by another user"), "{audit}");
    kill(spared, Signal::KILL);
    job.end();
    guest.end();
}

#[test]
fn a_lease_with_a_gpu_process_of_another_user_cannot_be_parked_and_says_why() {
    if !is_root() {
        return eprintln!("skipped: only root can be several users");
    }
    let service = serve();
    let (user, hold) = (format!("--reuid={ALICE}"), example("hold"));
    let words = ["--vram", "1G", "--preempt", "end", "--", "setpriv", &user, "--clear-groups", &hold, "64MiB"];
    let mut job = WrappedProgram::start(&service, &[&words[..], &["--seconds", "600"]].concat());
    assert!(job.line().starts_with("holds "), "{}", job.output_text());
    let lease = service.client().await_lease("the driver was asked", "L1", |lease| {
        lease.not_parkable.as_ref().is_some_and(|why| why.contains("runs as uid 12345, not as the lease's user"))
    });
    assert_eq!(lease.state, LeaseState::Active);
    // Its end would free nothing: it is not ended for others either, and they read why.
    let waiter = service.client().queue(&ask(4 * GIB - 700 * sublet_blackbox::MIB, json!({"tier": "interactive"})));
    until("the waiter reads it", LONG, || {
        let told = text(&service.cli(&["explain", &waiter.id]));
        if told.contains("runs as uid 12345") { Ok(()) } else { Err(told) }
    });
    assert_eq!(service.client().lease("L1").state, LeaseState::Active);
}

#[test]
fn a_stopped_program_says_so_and_is_parked_once_it_continues() {
    let service = serve();
    let client = service.client();
    let job = WrappedProgram::start_holding(&service, "3G", "64MiB", &["--seconds", "600"]);
    let is_program = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("sublet-example-"))
    };
    let lease = client.await_lease("its program is known", "L1", |lease| lease.pids.iter().any(is_program));
    let program = lease.pids.into_iter().find(is_program).expect("the program");
    kill(program, Signal::STOP);
    let why = format!("process {program} is stopped (Ctrl-Z): it cannot be parked until it continues");
    client.await_lease("it is known to be stopped", "L1", |lease| {
        lease.not_parkable.as_ref().is_some_and(|told| told.starts_with(&why) && told.contains("`kill -CONT "))
    });
    assert!(text(&service.cli(&["explain", "L1"])).contains(&why));
    let mut guest = interactive_guest(&service);
    until("the waiter reads it", LONG, || {
        let told = text(&service.cli(&["explain", "L2"]));
        if told.contains(&why) { Ok(()) } else { Err(told) }
    });
    assert_eq!(client.lease("L1").state, LeaseState::Active, "it is not continued by the daemon");
    kill(program, Signal::CONT);
    assert!(guest.line().starts_with("holds "), "{}", guest.output_text());
    guest.end();
    await_state(&client, "L1", LeaseState::Active);
    job.finish("a program that was stopped");
}

#[test]
fn a_notice_must_be_one_of_the_signals_that_are_named() {
    let service = TestService::start();
    let client = service.client();
    let asked = |signal: &str| {
        let notice = json!({"signal": signal, "before_s": 5});
        client.post("/v1/leases", &ask(GIB, json!({"preempt": "end", "notice": notice})))
    };
    for signal in ["KILL", "STOP", "SEGV", "TSTP", "CHLD", "9", "19", "31"] {
        let answer = asked(signal);
        assert_eq!(answer.status, 422, "{signal}: {}", answer.text());
        assert!(answer.text().contains("HUP, INT, QUIT, USR1, USR2, TERM, CONT, URG, WINCH"), "{}", answer.text());
    }
    for signal in Notice::SIGNALS {
        assert!(asked(signal).status < 300, "{signal}");
    }
}

#[test]
fn a_leased_program_is_not_on_record_as_unleased_after_a_restart() {
    let mut service = serve();
    let job = WrappedProgram::start_holding(&service, "1G", "64MiB", &["--seconds", "600"]);
    await_bytes(&service.client(), "L1", 64);
    for _ in 0..3 {
        service.kill();
        service.restart();
        await_bytes(&service.client(), "L1", 64);
        let known: UnleasedProcesses = service.client().get("/v1/unleased").read();
        assert!(known.processes.is_empty(), "{known:?}");
    }
    let audit = successful_output(&service, &["audit"]);
    assert!(!audit.contains("X1"), "{audit}");
    job.finish("a leased program");
}

/// What ALICE reads in the audit trail of L1, which was parked for BOB's L2.
fn trail_of_a_parked_lease(visibility: &str) -> String {
    let config = format!("visibility = \"{visibility}\"\n{CONFIG}");
    let setup = ServiceSetup { gpu: TestGpu::Named("soft:1x4GiB"), config: Some(config), ..ServiceSetup::default() };
    let service = TestService::start_with(setup);
    let hold = example("hold");
    let mut job = WrappedProgram::start_as(&service, Some(ALICE), &["--vram", "3G", "--", &hold, "64MiB", "--idle"]);
    assert!(job.line().starts_with("holds "), "{}", job.output_text());
    let words = ["--vram", "3G", "--tier", "interactive", "--", &hold, "64MiB", "--seconds", "1"];
    let guest = WrappedProgram::start_as(&service, Some(BOB), &words);
    assert_eq!(guest.end().0, Some(0));
    as_user(ALICE, || service.client().get("/v1/audit?lease=L1").text())
}

#[test]
fn the_trail_of_a_parked_lease_does_not_name_another_users_lease_nor_where_users_see_only_themselves_the_user() {
    if !is_root() {
        return eprintln!("skipped: only root can be several users");
    }
    let bob = format!("uid:{BOB}");
    let own = trail_of_a_parked_lease("own");
    assert!(own.contains("is being parked for another user's request"), "{own}");
    assert!(!own.contains(&bob) && !own.contains("L2") && !own.contains("room_for"), "{own}");
    let all = trail_of_a_parked_lease("all");
    assert!(all.contains("for another user's request") && !all.contains("room_for"), "{all}");
    assert!(all.contains(&bob), "{all}");
}
