//! The life of a lease, seen from outside.

use serde_json::{Value, json};
use std::time::{Duration, Instant};
use sublet_blackbox::user::is_root;
use sublet_blackbox::wait::throughout;
use sublet_blackbox::{GIB, LONG, ServiceSetup, TestClient, TestProcess, TestService, ask, until};
use sublet_wire::{EndReason, GpuState, Lease, LeaseState};

fn await_state(client: &TestClient, id: &str, state: LeaseState) -> Lease {
    client.await_lease(&format!("{state:?}"), id, |lease| lease.state == state)
}

fn await_end(client: &TestClient, id: &str) -> (Lease, EndReason) {
    let lease = client.await_lease("ended", id, |lease| lease.ended.is_some());
    let reason = lease.ended.as_ref().map(|ended| ended.reason).expect("it ended");
    (lease, reason)
}

fn renew(client: &TestClient, lease: &Lease) {
    let answer = client.post(&format!("/v1/leases/{}/renew", lease.id), &json!({"fence": lease.fence}));
    assert_eq!(answer.status, 200, "{}", answer.text());
}

fn bind(client: &TestClient, lease: &Lease, process: &TestProcess) {
    let body = json!({"fence": lease.fence, "pid": process.pid()});
    let answer = client.post(&format!("/v1/leases/{}/bind", lease.id), &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.read::<Lease>().pids.contains(&process.pid()), "{}", answer.text());
}

fn held_s(lease: &Lease) -> f64 {
    lease.ended.as_ref().expect("it ended").at_unix_s - lease.granted_unix_s.expect("it was granted")
}

#[test]
fn an_unused_lease_without_waiters_is_extended_and_shown_idle() {
    let service = TestService::start();
    let client = service.client();
    let lease = client.grant(&ask(GIB, json!({"ttl_s": 2})));
    assert!(!lease.idle);
    let idle = client.await_lease("it is shown idle", &lease.id, |lease| lease.idle);
    assert_eq!((idle.state, idle.fence), (LeaseState::Active, lease.fence));
    assert!(idle.expires_unix_s > lease.expires_unix_s, "it was extended");
    // A renewal is use: it is idle no longer.
    renew(&client, &lease);
    assert!(!client.lease(&lease.id).idle);
}

#[test]
fn an_unused_lease_ends_on_time_for_a_waiter_which_is_granted() {
    let service = TestService::start();
    let client = service.client();
    let lease = client.grant(&ask(20 * GIB, json!({"ttl_s": 3})));
    let waiter = client.queue(&ask(20 * GIB, json!({})));
    let waiting = waiter.waiting.expect("it says why");
    assert_eq!((waiting.place, waiting.place_exact), (1, true));
    assert!(!waiting.why.is_empty());
    let served: Lease = client.get(&format!("/v1/leases/{}?wait=60s", waiter.id)).read();
    assert_eq!(served.state, LeaseState::Active);
    assert!(served.fence > lease.fence);
    let (lease, reason) = await_end(&client, &lease.id);
    assert_eq!(reason, EndReason::Expired);
    assert!((2.9..8.0).contains(&held_s(&lease)), "a lease of 3 s was held for {} s", held_s(&lease));
}

#[test]
fn a_daemon_that_was_stopped_for_longer_than_a_term_ends_no_lease_at_once() {
    let service = TestService::start_with(ServiceSetup {
        config: Some("grace = \"20s\"\n".to_owned()),
        ..ServiceSetup::default()
    });
    let client = service.client();
    let leases: Vec<Lease> = (0..3).map(|_| client.grant(&ask(7 * GIB, json!({"ttl_s": 3})))).collect();
    let waiter = client.queue(&ask(20 * GIB, json!({})));
    service.while_stopped(|| std::thread::sleep(Duration::from_secs(13)));
    // A holder that used its lease meanwhile could not renew it, and has the grace to do so.
    throughout(Duration::from_secs(12), || {
        for lease in &leases {
            assert_eq!(client.lease(&lease.id).state, LeaseState::Active, "{} was ended by a stall", lease.id);
        }
    });
    for lease in &leases {
        assert_eq!(await_end(&client, &lease.id).1, EndReason::Expired, "an unused lease ends after the grace");
    }
    await_state(&client, &waiter.id, LeaseState::Active);
}

#[test]
fn a_reboot_ends_granted_leases_and_keeps_waiters() {
    if !is_root() {
        return eprintln!("skipped: only root can give a daemon another boot");
    }
    let dir = tempfile::tempdir().expect("a directory can be made");
    let boot = dir.path().join("boot_id");
    let write = |id: &str| std::fs::write(&boot, id).expect("a file can be written");
    write("11111111-1111-4111-8111-111111111111\n");
    let script = format!("mount --bind {} /proc/sys/kernel/random/boot_id || exit 99; exec \"$@\"", boot.display());
    let through = ["unshare", "--mount", "--propagation", "private", "sh", "-c", &script, "sh"].map(str::to_owned);
    let works = std::process::Command::new(&through[0]).args(&through[1..]).arg("true").status();
    if !works.is_ok_and(|status| status.success()) {
        return eprintln!("skipped: nothing can be mounted here");
    }
    let mut service = TestService::start_with(ServiceSetup { through: through.to_vec(), ..ServiceSetup::default() });
    let client = service.client();
    let held = client.grant(&ask(20 * GIB, json!({"ttl_s": 1800})));
    let waiter = client.queue(&ask(20 * GIB, json!({})));
    assert!(service.stop().success());
    service.restart();
    assert_eq!(client.lease(&held.id).state, LeaseState::Active, "the same boot goes on");
    assert!(service.stop().success());
    write("22222222-2222-4222-8222-222222222222\n");
    service.restart();
    assert_eq!(await_end(&client, &held.id).1, EndReason::HostRebooted);
    let served = await_state(&client, &waiter.id, LeaseState::Active);
    assert!(served.fence > held.fence);
}

#[test]
fn a_renewed_lease_stays_while_another_request_waits() {
    let service = TestService::start();
    let client = service.client();
    let lease = client.grant(&ask(20 * GIB, json!({"ttl_s": 3})));
    let waiter = client.queue(&ask(20 * GIB, json!({})));
    throughout(Duration::from_secs(10), || renew(&client, &lease));
    assert_eq!(client.lease(&waiter.id).state, LeaseState::Waiting);
    assert_eq!(client.delete(&format!("/v1/leases/{}", lease.id)).status, 200);
    await_state(&client, &waiter.id, LeaseState::Active);
}

#[test]
fn a_fixed_term_ends_when_it_is_over_also_without_waiters() {
    let service = TestService::start();
    let client = service.client();
    let lease = client.grant(&ask(GIB, json!({"time_s": 3})));
    assert!(lease.fixed_term);
    let (lease, reason) = await_end(&client, &lease.id);
    assert_eq!(reason, EndReason::TermOver);
    assert!((2.9..8.0).contains(&held_s(&lease)), "a term of 3 s took {} s", held_s(&lease));
}

#[test]
fn a_lease_ends_with_its_last_process() {
    let service = TestService::start();
    let client = service.client();
    let (first, second) = (TestProcess::idle(), TestProcess::idle());
    let lease = client.grant(&ask(GIB, json!({"pid": first.pid()})));
    assert_eq!(lease.pids, [first.pid()]);
    bind(&client, &lease, &second);
    first.kill();
    client.await_lease("the first process is gone from it", &lease.id, |lease| lease.pids == [second.pid()]);
    assert_eq!(client.lease(&lease.id).state, LeaseState::Active);
    second.kill();
    let gone = Instant::now();
    let (_, reason) = await_end(&client, &lease.id);
    assert_eq!(reason, EndReason::HolderExited);
    assert!(gone.elapsed() < Duration::from_secs(10), "an exit is noticed at once, not after {:?}", gone.elapsed());
}

#[test]
fn a_request_ends_when_the_process_that_waits_exits() {
    let service = TestService::start();
    let client = service.client();
    client.grant(&ask(20 * GIB, json!({})));
    let process = TestProcess::idle();
    let waiter = client.queue(&ask(20 * GIB, json!({"pid": process.pid()})));
    process.kill();
    assert_eq!(await_end(&client, &waiter.id).1, EndReason::HolderExited);
}

#[test]
fn expiry_ends_the_claim_and_not_the_process() {
    let service = TestService::start();
    let client = service.client();
    let mut process = TestProcess::idle();
    let lease = client.grant(&ask(20 * GIB, json!({"ttl_s": 2})));
    bind(&client, &lease, &process);
    let waiter = client.queue(&ask(20 * GIB, json!({})));
    assert_eq!(await_end(&client, &lease.id).1, EndReason::Expired);
    await_state(&client, &waiter.id, LeaseState::Active);
    assert!(process.alive(), "nothing is signalled in observe");
}

#[test]
fn bytes_of_a_lease_that_ended_count_for_as_long_as_they_are_seen() {
    let service = TestService::start();
    let client = service.client();
    let mut process = TestProcess::idle();
    let lease = client.grant(&ask(20 * GIB, json!({})));
    bind(&client, &lease, &process);
    service.script(json!([{"pid": process.pid(), "bytes": 20 * GIB, "busy": false}]), Value::Null);
    client.await_lease("its bytes are seen", &lease.id, |lease| lease.seen_bytes == Some(20 * GIB));
    let waiter = client.queue(&ask(20 * GIB, json!({})));
    assert_eq!(client.delete(&format!("/v1/leases/{}", lease.id)).status, 200);
    throughout(Duration::from_secs(5), || {
        assert_eq!(client.lease(&waiter.id).state, LeaseState::Waiting, "a holder's word frees nothing");
    });
    assert!(process.alive());
    service.script(json!([]), Value::Null);
    await_state(&client, &waiter.id, LeaseState::Active);
}

#[test]
fn bytes_of_an_unleased_process_stop_grants_and_are_named_as_the_reason() {
    let service = TestService::start();
    let client = service.client();
    let mut stranger = TestProcess::idle();
    service.script(json!([{"pid": stranger.pid(), "bytes": 20 * GIB, "busy": true}]), Value::Null);
    until("the stranger is seen", LONG, || match client.card().unowned_bytes {
        Some(loose) if loose >= 20 * GIB => Ok(()),
        loose => Err(loose),
    });
    let occupant = client.card().occupants.into_iter().find(|occupant| occupant.pid == Some(stranger.pid()));
    assert_eq!(occupant.expect("the stranger is on the GPU").state, "unleased");
    let waiter = client.queue(&ask(20 * GIB, json!({})));
    let why = waiter.waiting.expect("it waits").why;
    let named = ["unleased", "no lease", "without a lease"].iter().any(|words| why.contains(words));
    assert!(named, "the reason names bytes without a lease: {why}");
    assert!(stranger.alive(), "nothing is signalled in observe");
    service.script(json!([]), Value::Null);
    await_state(&client, &waiter.id, LeaseState::Active);
}

fn check_fault(fault: &str) {
    let service = TestService::start();
    let client = service.client();
    let lease = client.grant(&ask(GIB, json!({"ttl_s": 60})));
    service.script(json!([]), json!(fault));
    let sentence = until("the GPU is unreadable", LONG, || client.card().unreadable.ok_or("it answers")).sentence;
    assert!(!sentence.is_empty());
    let card = client.card();
    assert_eq!((card.promisable_bytes, card.used_bytes), (0, None), "unknown is not zero, and promises nothing");
    let waiter = client.queue(&ask(GIB, json!({})));
    throughout(Duration::from_secs(5), || {
        assert_eq!(client.lease(&waiter.id).state, LeaseState::Waiting, "nothing is granted on an unreadable GPU");
        renew(&client, &lease);
    });
    assert_eq!((client.lease(&lease.id).state, client.lease(&lease.id).fence), (LeaseState::Active, lease.fence));
    service.script(json!([]), Value::Null);
    await_state(&client, &waiter.id, LeaseState::Active);
    assert_eq!(client.lease(&lease.id).fence, lease.fence);
}

#[test]
fn no_lease_is_granted_while_the_driver_of_the_gpu_hangs() {
    check_fault("hang");
}

#[test]
fn no_lease_is_granted_while_the_driver_of_the_gpu_crashes() {
    check_fault("crash");
}

#[test]
fn no_lease_is_granted_while_the_driver_of_the_gpu_reports_an_error() {
    check_fault("error");
}

#[test]
fn a_restart_touches_no_holder_and_keeps_id_and_epoch() {
    let mut service = TestService::start();
    let client = service.client();
    let mut process = TestProcess::idle();
    let lease = client.grant(&ask(20 * GIB, json!({"ttl_s": 600})));
    bind(&client, &lease, &process);
    let waiter = client.queue(&ask(20 * GIB, json!({})));
    for graceful in [true, false] {
        if graceful {
            assert!(service.stop().success(), "SIGTERM ends it in peace");
        } else {
            service.kill();
        }
        assert!(process.alive(), "the daemon's end is not the holder's");
        service.restart();
        let after = client.lease(&lease.id);
        assert_eq!((after.state, after.fence), (LeaseState::Active, lease.fence), "{after:?}");
        client.await_lease("its process is known again", &lease.id, |lease| lease.pids == [process.pid()]);
        assert_eq!(client.lease(&waiter.id).state, LeaseState::Waiting, "the place in the queue is kept");
        assert!(process.alive());
    }
    process.kill();
    assert_eq!(await_end(&client, &lease.id).1, EndReason::HolderExited, "an exit is noticed after a restart too");
    await_state(&client, &waiter.id, LeaseState::Active);
}

#[test]
fn a_process_that_exits_while_the_daemon_is_away_ends_its_lease() {
    let mut service = TestService::start();
    let client = service.client();
    let process = TestProcess::idle();
    let lease = client.grant(&ask(GIB, json!({"pid": process.pid()})));
    service.kill();
    process.kill();
    service.restart();
    assert_eq!(await_end(&client, &lease.id).1, EndReason::HolderExited);
}

/// Three TTLs on the CPU before the first kernel.
fn check_busy(waiters: usize) {
    let service = TestService::start();
    let client = service.client();
    let mut process = TestProcess::busy();
    let lease = client.grant(&ask(20 * GIB, json!({"ttl_s": 2})));
    bind(&client, &lease, &process);
    let waiting: Vec<Lease> = (0..waiters).map(|_| client.queue(&ask(20 * GIB, json!({})))).collect();
    throughout(Duration::from_secs(8), || {
        let now = client.lease(&lease.id);
        assert_eq!((now.state, now.fence), (LeaseState::Active, lease.fence), "{now:?}");
        assert!(!now.idle, "work on the CPU is use: {now:?}");
    });
    assert!(process.alive());
    process.kill();
    assert_eq!(await_end(&client, &lease.id).1, EndReason::HolderExited);
    for waiter in waiting {
        await_state(&client, &waiter.id, LeaseState::Active);
    }
}

#[test]
fn a_job_that_works_on_the_cpu_for_three_ttls_keeps_its_lease() {
    check_busy(0);
}

#[test]
fn a_job_that_works_on_the_cpu_for_three_ttls_keeps_its_lease_while_another_request_waits() {
    check_busy(1);
}

#[test]
fn a_draining_gpu_runs_empty_and_serves_again_when_cleared() {
    let service = TestService::start();
    let client = service.client();
    let lease = client.grant(&ask(GIB, json!({})));
    let uuid = client.card().uuid;
    let answer = client.send("POST", &format!("/v1/gpus/{uuid}/drain"), &[], b"");
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(client.card().state, GpuState::Draining);
    assert_eq!(client.lease(&lease.id).state, LeaseState::Active, "a lease that is there stays");
    let waiter = client.queue(&ask(GIB, json!({})));
    let answer = client.send("POST", &format!("/v1/gpus/{uuid}/clear"), &[], b"");
    assert_eq!(answer.status, 200, "{}", answer.text());
    await_state(&client, &waiter.id, LeaseState::Active);
    let unknown = client.send("POST", "/v1/gpus/GPU-0/drain", &[], b"");
    assert_eq!(unknown.code(), "no_such_gpu");
}

#[test]
fn what_was_held_is_charged_once_and_survives_a_restart() {
    let mut service = TestService::start();
    let client = service.client();
    let lease = client.grant(&ask(2 * GIB, json!({"time_s": 2})));
    let (lease, _) = await_end(&client, &lease.id);
    let charged = |client: &TestClient| {
        let usage: sublet_wire::Usage = client.get("/v1/usage?by=lease").read();
        let row = usage.rows.into_iter().find(|row| row.lease.as_deref() == Some(lease.id.as_str()));
        row.expect("an ended lease has a row").gib_seconds
    };
    let before = charged(&client);
    let held = 2.0 * held_s(&lease);
    assert!((before - held).abs() < 1.0, "2 GiB for {} s, but charged {before} GiB·s", held_s(&lease));
    service.kill();
    service.restart();
    assert!((charged(&client) - before).abs() < 1e-6, "a restart charges nothing twice");
}

#[test]
fn a_command_runs_under_a_lease_and_its_exit_code_comes_back() {
    let service = TestService::start();
    let script = r#"echo "$CUDA_VISIBLE_DEVICES $SUBLET_LEASE $SUBLET_FENCE"; exit 7"#;
    let output = service.cli(&["run", "--vram", "4G", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let words: Vec<&str> = printed.split_whitespace().collect();
    assert!(matches!(words[..], ["0", id, fence] if id.starts_with('L') && fence.parse::<u64>().is_ok()), "{printed}");
    until("its lease ended with it", LONG, || match service.client().live_ids() {
        ids if ids.is_empty() => Ok(()),
        ids => Err(ids),
    });
    let missing = service.cli(&["run", "--vram", "4G", "--", "no-such-command"]);
    assert_eq!(missing.status.code(), Some(127), "{}", String::from_utf8_lossy(&missing.stderr));
}
