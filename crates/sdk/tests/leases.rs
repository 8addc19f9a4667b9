//! Leases from a real daemon on soft GPUs: acquired, refused, ended from outside, given back.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use sublet::testing::LocalHost;
use sublet::{Fabric, FabricError, GpuBuilder, GpuExclusivityClass, GpuLease, LeaseStatus, Tier};
use sublet_wire::LeaseState;

const GIB: u64 = 1 << 30;
/// Far more than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// Waits until the status is known here, which the watcher's poll makes so.
fn await_status(lease: &GpuLease, status: LeaseStatus) {
    let deadline = Instant::now() + LONG;
    while lease.status() != status {
        assert!(Instant::now() < deadline, "{} is {}, not {status}", lease.lease_id(), lease.status());
        thread::sleep(Duration::from_millis(5));
    }
}

fn state_of(host: &LocalHost, lease: &str) -> LeaseState {
    host.fabric().client().lease(lease, LONG).expect("the daemon knows the lease").state
}

#[test]
fn a_lease_is_active_and_is_given_back_when_it_is_dropped() {
    let host = LocalHost::start().expect("a daemon");
    let lease = GpuBuilder::new()
        .min_vram(2 * GIB)
        .lease_secs(300)
        .exclusivity(GpuExclusivityClass::SessionExclusive)
        .tier(Tier::Interactive)
        .name("a")
        .acquire()
        .expect("there is room");
    assert_eq!(lease.status(), LeaseStatus::Active);
    lease.check().expect("it may work");
    assert!(lease.epoch() > 0 && lease.lease_id().starts_with('L'));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    let left = lease.expires_at_unix_secs().saturating_sub(now);
    assert!((200..=301).contains(&left), "{left} s are left");
    assert_eq!((lease.vram_bytes(), lease.gpu_uuids().len()), (2 * GIB, 1));
    let usage = lease.usage();
    assert_eq!((usage.vram_bytes, usage.gpus, usage.launches), (2 * GIB, 1, 0));
    let id = lease.lease_id().to_owned();
    drop(lease);
    assert!(matches!(state_of(&host, &id), LeaseState::Ending | LeaseState::Ended));
}

#[test]
fn a_lease_that_is_ended_from_outside_is_revoked_with_a_reason() {
    let host = LocalHost::start().expect("a daemon");
    let lease = host.fabric().alloc_gpu().min_vram(GIB).acquire().expect("there is room");
    host.revoke(lease.lease_id()).expect("it can be ended");
    await_status(&lease, LeaseStatus::Revoked);
    let error = lease.check().expect_err("it is over");
    assert!(matches!(&error, FabricError::Revoked { lease: id, .. } if id == lease.lease_id()), "{error:?}");
    assert_eq!(error.code(), "revoked");
    assert!(error.remedy().contains("new lease"), "{}", error.remedy());
    lease.release().expect("giving back what is over is no error");
}

#[test]
fn a_request_without_room_is_refused_with_what_would_fit() {
    let host = LocalHost::start().expect("a daemon");
    let error = host.fabric().alloc_gpu().min_vram(100 * GIB).try_acquire().expect_err("no GPU is so large");
    assert_eq!(error.code(), "capacity_exceeded", "{error:?}");
    assert!(!error.remedy().is_empty());
    let smaller = host.fabric().alloc_gpu().min_vram(30 * GIB).acquire_or_smaller(GIB);
    // A size that never fits is refused even if a smaller one would do.
    match smaller {
        Ok(lease) => assert!(lease.vram_bytes() < 30 * GIB),
        Err(error) => assert_eq!(error.code(), "capacity_exceeded", "{error:?}"),
    }
}

#[test]
fn a_second_lease_of_a_process_is_not_bound_to_it() {
    let host = LocalHost::start().expect("a daemon");
    let leases: Vec<GpuLease> =
        (0..2).map(|_| host.fabric().alloc_gpu().min_vram(GIB).acquire().expect("there is room")).collect();
    assert!(leases.iter().filter(|lease| lease.is_bound()).count() <= 1);
    assert!(!host.fabric().alloc_gpu().min_vram(GIB).unbound().acquire().expect("there is room").is_bound());
}

#[test]
fn a_socket_without_a_daemon_is_a_disconnect_that_says_what_to_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let fabric = Fabric::at(&dir.path().join("s"));
    let error = fabric.gpus().expect_err("no daemon is there");
    assert_eq!((error.code(), error.is_transient()), ("disconnected", true));
    assert!(error.to_string().starts_with("no daemon answers at ") && error.remedy().contains("sublet serve"));
}

#[test]
fn a_lease_outlives_a_crash_of_the_daemon() {
    let host = LocalHost::start().expect("a daemon");
    let lease = host.fabric().alloc_gpu().min_vram(GIB).acquire().expect("there is room");
    host.crash_and_restart().expect("it comes back");
    assert_eq!(state_of(&host, lease.lease_id()), LeaseState::Active);
    lease.check().expect("nothing ended");
    host.revoke(lease.lease_id()).expect("it can be ended");
    // The watcher has found the new daemon.
    await_status(&lease, LeaseStatus::Revoked);
}

#[test]
fn the_private_daemon_does_not_belong_to_the_lease_of_the_program_that_started_it() {
    let host = LocalHost::start().expect("a daemon");
    let daemon = sublet::client::peer(host.socket()).expect("it listens").0;
    let lease = host.fabric().alloc_gpu().min_vram(GIB).acquire().expect("there is room");
    let own = std::process::id();
    let deadline = Instant::now() + LONG;
    // Other tests may have the lease that is bound to this process.
    while lease.is_bound() {
        let pids = host.fabric().client().lease(lease.lease_id(), LONG).expect("the daemon knows the lease").pids;
        assert!(!pids.contains(&daemon), "{pids:?}");
        if pids.contains(&own) {
            break;
        }
        assert!(Instant::now() < deadline, "{pids:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Set in the process that is the program in a container.
const IN_NAMESPACE: &str = "SUBLET_TEST_IN_PID_NAMESPACE";

#[test]
fn a_lease_is_bound_to_its_program_also_in_a_pid_namespace_of_its_own() {
    if std::env::var_os(IN_NAMESPACE).is_some() {
        return hold_a_lease_until_the_end_of_stdin();
    }
    if !Command::new("unshare").args(["--pid", "--fork", "true"]).output().is_ok_and(|out| out.status.success()) {
        eprintln!("skipped: no pid namespace can be made here (it takes root)");
        return;
    }
    let host = LocalHost::start().expect("a daemon");
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork"]).arg(std::env::current_exe().expect("a program"));
    command.args(["--exact", "a_lease_is_bound_to_its_program_also_in_a_pid_namespace_of_its_own", "--nocapture"]);
    command.env(IN_NAMESPACE, "1").env("SUBLET_SOCKET", host.socket());
    let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it can be started");
    let output = BufReader::new(program.stdout.take().expect("a pipe"));
    let told = output.lines().map_while(Result::ok).find_map(|line| line.strip_prefix("holds ").map(str::to_owned));
    let (id, own_pid) = told.as_deref().and_then(|told| told.split_once(' ')).expect("it says what it holds");
    let lease = host.fabric().client().lease(id, LONG).expect("the daemon knows the lease");
    let [pid] = lease.pids[..] else { panic!("one process is bound: {:?}", lease.pids) };
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).expect("a line with its pids");
    let pids: Vec<&str> = pids.split_whitespace().collect();
    assert_eq!(pids, [pid.to_string().as_str(), own_pid], "its own pid is not the one that the daemon has");
    drop(program.stdin.take());
    assert!(program.wait().expect("it ends").success());
    let deadline = Instant::now() + LONG;
    // It is not released: it ends with its program.
    while !matches!(state_of(&host, id), LeaseState::Ending | LeaseState::Ended) {
        assert!(Instant::now() < deadline, "the lease outlives its program");
        thread::sleep(Duration::from_millis(5));
    }
}

fn hold_a_lease_until_the_end_of_stdin() {
    let lease = GpuBuilder::new().min_vram(GIB).acquire().expect("there is room");
    assert!(lease.is_bound());
    println!("\nholds {} {}", lease.lease_id(), std::process::id());
    std::io::stdin().read_to_end(&mut Vec::new()).expect("it can be read");
    // As a program that crashes: nothing is given back.
    std::process::exit(0);
}
