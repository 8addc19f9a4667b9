//! The program itself: under `sublet run`, killed at any moment, and parked by other requests.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;
use sublet::replicated::{CheckpointStore, Version};
use sublet::testing::{LocalHost, until};
use sublet::training::{replicated_training_state_in, training_checkpoint_name};

/// Far more than anything here takes.
const PROGRAM: &str = env!("CARGO_BIN_EXE_cookbook-preemptible-training");

fn trainer(host: &LocalHost, store: &Path, steps: u64) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg(steps.to_string()).env("SUBLET_SOCKET", host.socket()).env("SUBLET_CHECKPOINTS", store);
    command.env_remove("SUBLET_LEASE").stdin(Stdio::null()).stderr(Stdio::null());
    command
}

/// The bytes after this many steps from zeros.
fn expected(steps: u64) -> Vec<u8> {
    vec![(u128::from(steps) * (u128::from(steps) + 1) / 2) as u8; 16]
}

/// The newest version, its step and its bytes, as another program reads them.
fn saved(store: &Path) -> (Version, u64, Vec<u8>) {
    let (checkpoints, _) = replicated_training_state_in(&CheckpointStore::open(store).expect("a store")).expect("it");
    let saved = checkpoints.load(&training_checkpoint_name("cookbook")).expect("it is whole").expect("it is there");
    (saved.version, saved.step.expect("a step"), saved.bytes().expect("bytes").to_vec())
}

fn success(child: Child) -> String {
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn a_trainer_under_sublet_run_uses_the_lease_that_it_was_started_on() {
    let (host, dir) = (LocalHost::start().expect("a daemon"), tempfile::tempdir().expect("a directory"));
    let mut command = host.sublet();
    command.args(["run", "--vram", "2G", "--name", "recipe", "--", PROGRAM, "20"]);
    command.env("SUBLET_CHECKPOINTS", dir.path()).stdin(Stdio::null());
    let output = command.output().expect("it can be started");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{err}");
    assert!(out.contains("step 20 is saved as version 2"), "{out}{err}");
    let used: Vec<&str> = err.lines().filter_map(|line| line.strip_prefix("on lease ")).collect();
    let leases = host.fabric().client().get::<serde_json::Value>("/v1/usage?by=lease").expect("an answer");
    let of_name = |row: &&serde_json::Value| row["name"] == "recipe";
    let rows: Vec<&serde_json::Value> = leases["rows"].as_array().expect("rows").iter().filter(of_name).collect();
    assert_eq!(used, [rows[0]["lease"].as_str().expect("an id")], "no second lease was requested");
    assert_eq!(saved(dir.path()).2, expected(20));
}

#[test]
fn a_trainer_that_is_killed_at_any_moment_loses_no_saved_step_and_repeats_none() {
    let (host, dir) = (LocalHost::start().expect("a daemon"), tempfile::tempdir().expect("a directory"));
    const STEPS: u64 = 200;
    let (mut newest, mut kills) = (0, 0);
    // Each trainer gets a little longer than the one before, so that the last one gets through on any machine.
    for patience in 0.. {
        let mut child = trainer(&host, dir.path(), STEPS).stdout(Stdio::piped()).spawn().expect("it can be started");
        thread::sleep(Duration::from_millis(patience * 10));
        if child.try_wait().expect("an own child").is_some() {
            success(child);
            break;
        }
        child.kill().expect("an own child can be killed");
        child.wait().expect("an own child ends");
        kills += 1;
        if dir.path().join("register.db").exists() && has_saved(dir.path()) {
            let (version, step, bytes) = saved(dir.path());
            assert!(step >= newest, "step {newest} was saved, and now the newest is {step}");
            // Ten steps lie between two saves, so a step that was committed twice would show in the versions.
            assert_eq!((step, bytes), (version.0 * 10, expected(version.0 * 10)));
            newest = step;
        }
    }
    assert_eq!(saved(dir.path()), (Version(STEPS / 10), STEPS, expected(STEPS)));
    assert!(kills > 0, "no trainer was killed");
}

fn has_saved(store: &Path) -> bool {
    let store = CheckpointStore::open(store).expect("a store");
    let (checkpoints, _) = replicated_training_state_in(&store).expect("the state");
    checkpoints.newest(&training_checkpoint_name("cookbook")).expect("an answer").is_some()
}

#[test]
fn of_two_trainers_of_one_job_the_later_one_wins_and_the_other_is_told() {
    let (host, dir) = (LocalHost::start().expect("a daemon"), tempfile::tempdir().expect("a directory"));
    const STEPS: u64 = 400;
    let start = || {
        let mut command = trainer(&host, dir.path(), STEPS);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be started")
    };
    let outputs = [start(), start()].map(|child| child.wait_with_output().expect("it ends"));
    let told: Vec<String> = outputs.iter().map(|output| String::from_utf8_lossy(&output.stderr).into_owned()).collect();
    assert!(outputs.iter().any(|output| output.status.success()), "{told:?}");
    for (output, told) in outputs.iter().zip(&told).filter(|(output, _)| !output.status.success()) {
        assert_eq!(output.status.code(), Some(1));
        assert!(
            told.contains("another process opened this name") && told.contains("hint: stop this process"),
            "{told}"
        );
    }
    assert_eq!(saved(dir.path()).2, expected(STEPS));
}

/// Starts a trainer that never gets to its end, and returns it with the id of its lease.
fn endless_trainer(host: &LocalHost, store: &Path, shim: &str) -> (Child, String) {
    let mut command = trainer(host, store, u64::MAX);
    command.env("SUBLET_SHIM", shim).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it can be started");
    let mut line = String::new();
    BufReader::new(child.stderr.take().expect("a pipe")).read_line(&mut line).expect("it says its lease");
    (child, line.trim_end().strip_prefix("on lease ").expect("a lease").to_owned())
}

/// Waits until a step after this one is saved.
fn await_step_after(store: &Path, step: u64) -> u64 {
    until("a later step is saved", || {
        let is_there = store.join("register.db").exists() && has_saved(store);
        is_there.then(|| saved(store).1).filter(|now| *now > step)
    })
}

#[test]
fn a_trainer_that_is_parked_while_it_works_goes_on_whichever_method_parked_it() {
    let host = LocalHost::start().expect("a daemon");
    // Without the shim the driver parks it, and its use of the GPU cannot be noticed from outside.
    for shim in ["on", "off"] {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut child, lease) = endless_trainer(&host, dir.path(), shim);
        let mut step = await_step_after(dir.path(), 0);
        for _ in 0..3 {
            host.park(&lease).expect("it is parked");
            step = await_step_after(dir.path(), step.max(saved(dir.path()).1));
        }
        let trail = host.fabric().client().get::<serde_json::Value>(&format!("/v1/audit?lease={lease}"));
        let trail = trail.expect("an answer").to_string();
        assert_eq!(trail.contains("is being parked by the driver"), shim == "off", "{trail}");
        child.kill().expect("an own child can be killed");
        child.wait().expect("an own child ends");
        let (_, step, bytes) = saved(dir.path());
        assert_eq!(bytes, expected(step), "with the shim {shim}");
    }
}
