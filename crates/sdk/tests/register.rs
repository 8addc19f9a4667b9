//! Registers of checkpoints that a real daemon keeps: the contract, crashes of the daemon, and two trainers of one job.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use sublet::replicated::files::LocalDisk;
use sublet::replicated::register::{ChainRegister, Creation, RegisterError, contract};
use sublet::replicated::{
    ChainName, CheckpointName, CheckpointStore, DaemonPlace, FenceEpoch, ReplicaId, ReplicatedCheckpoint, SaveRequest,
    Version,
};
use sublet::testing::LocalHost;
use sublet::training::replicated_training_state_in;
use sublet::{DaemonRegister, store_opener};

/// Each test has the daemon for itself: some of them kill it.
fn alone() -> (MutexGuard<'static, ()>, LocalHost) {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    (alone, LocalHost::start().expect("a daemon"))
}

fn fresh_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("r{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn register(host: &LocalHost, name: &str) -> DaemonRegister {
    DaemonRegister::new(host.fabric().client(), name).expect("a register")
}

fn chain(name: &str) -> ChainName {
    ChainName::parse(name).expect("a name")
}

/// A configuration whose register the daemon keeps, with one replica.
fn configuration(directory: &Path, register: &str) -> std::path::PathBuf {
    fs::create_dir_all(directory.join("copies")).expect("a directory");
    let file = directory.join("checkpoints.toml");
    fs::write(&file, format!("register = \"{register}\"\n[replicas]\nlocal = \"copies\"\n")).expect("a file");
    file
}

fn checkpoints(store: &CheckpointStore) -> ReplicatedCheckpoint {
    replicated_training_state_in(store).expect("the state").0
}

#[test]
fn a_register_of_the_daemon_keeps_the_contract() {
    let (_alone, host) = alone();
    contract::check(&|| register(&host, &fresh_name()));
}

#[test]
fn registers_of_different_names_are_apart_and_outlive_the_daemon() {
    let (_alone, host) = alone();
    let (one, two) = (register(&host, &fresh_name()), register(&host, &fresh_name()));
    assert_eq!(one.create(&chain("c/a/b"), 1, b"one").expect("an answer"), Creation::New);
    assert_eq!(two.last(&chain("c/a/b")).expect("an answer"), 0);
    assert_eq!(two.create(&chain("c/a/b"), 1, b"two").expect("an answer"), Creation::New);
    host.crash_and_restart().expect("it starts again");
    assert_eq!(one.read(&chain("c/a/b"), 1, 10).expect("an answer")[0].bytes, b"one");
    assert_eq!(two.read(&chain("c/a/b"), 1, 10).expect("an answer")[0].bytes, b"two");
}

#[test]
fn a_long_chain_of_large_entries_is_read_in_pages() {
    let (_alone, host) = alone();
    let (register, name) = (register(&host, &fresh_name()), chain("c/pages/a"));
    let entry = |number: u64| vec![number as u8; 300 << 10];
    for number in 1..=12 {
        assert_eq!(register.create(&name, number, &entry(number)).expect("an answer"), Creation::New);
    }
    let read = register.read(&name, 2, 1_000).expect("an answer");
    assert_eq!(read.len(), 11);
    assert!(read.iter().all(|found| found.bytes == entry(found.number)));
    assert_eq!(register.read(&name, 2, 5).expect("an answer").len(), 5);
}

#[test]
fn a_daemon_that_is_away_is_unavailable_and_nothing_is_lost() {
    let (_alone, host) = alone();
    let name = fresh_name();
    let register = register(&host, &name).with_patience(Duration::ZERO);
    assert_eq!(register.create(&chain("c/a/b"), 1, b"one").expect("an answer"), Creation::New);
    host.kill();
    for error in [
        register.create(&chain("c/a/b"), 2, b"two").expect_err("it is away"),
        register.last(&chain("c/a/b")).expect_err("it is away"),
    ] {
        assert!(matches!(error, RegisterError::Unavailable { .. }), "{error:?}");
        assert!(error.to_string().contains("no daemon answers at"), "{error}");
    }
    host.crash_and_restart().expect("it starts again");
    assert_eq!(register.last(&chain("c/a/b")).expect("an answer"), 1);
}

#[test]
fn a_name_that_leaves_the_directory_is_no_register() {
    let (_alone, host) = alone();
    for name in ["", "..", "a/b", "%2e%2e", "a b", &"x".repeat(65)] {
        let refused = DaemonRegister::new(host.fabric().client(), name).expect_err("a refusal");
        assert_eq!(refused.code(), "register_refused", "{name}");
    }
}

#[test]
fn a_mistake_in_the_configuration_is_not_a_register_that_cannot_be_reached() {
    let place = |daemon: &str| DaemonPlace { name: "a".to_owned(), daemon: Some(daemon.to_owned()) };
    for daemon in ["http://gpu1.example:7474", "https://:7474", "ftp://gpu1"] {
        let refused = DaemonRegister::at(&place(daemon)).expect_err("a refusal");
        assert_eq!(refused.code(), "register_refused", "{refused}");
        assert!(refused.remedy().starts_with("correct what it named"), "{refused}");
        assert!(cfg!(not(feature = "remote")) || refused.to_string().contains("; write https://"), "{refused}");
    }
}

#[test]
fn a_configuration_names_the_daemon_and_two_trainers_of_one_job_share_it() {
    let (_alone, host) = alone();
    let directory = tempfile::tempdir().expect("a directory");
    let socket = host.socket().display();
    let file = configuration(directory.path(), &format!("daemon:two@{socket}"));
    let store = store_opener().at(&file).expect("a store");
    let name = CheckpointName::new("job");
    let (first, second) = (checkpoints(&store), checkpoints(&store_opener().at(&file).expect("a store")));
    let old = first.open(&name).expect("a fence");
    let saved = first.save_bytes(name.clone(), Version(0), b"1", old).expect("a version");
    let new = second.open(&name).expect("a fence");
    assert!(new > old);
    let stale = first.save_bytes(name.clone(), saved.version, b"2", old).expect_err("a refusal");
    assert_eq!(stale.code(), "fenced");
    assert_eq!(second.save_bytes(name.clone(), saved.version, b"2", new).expect("a version").version, Version(2));
    // The daemon that the program uses anyway has it under the same name.
    let file = configuration(directory.path(), "daemon:two");
    let seen = checkpoints(&store_opener().open_existing(&file).expect("a store")).load(&name).expect("it can be read");
    assert_eq!(seen.expect("a version").bytes().expect("bytes").as_ref(), b"2");
    // Another register does not know these versions, and no training begins anew beside them.
    let file = configuration(directory.path(), "daemon:other");
    assert_eq!(store_opener().at(&file).map(drop).expect_err("a refusal").code(), "register_lost");
}

#[test]
fn saves_go_on_after_kills_of_the_daemon_and_each_step_is_committed_once() {
    let (_alone, host) = alone();
    let directory = tempfile::tempdir().expect("a directory");
    let copies = directory.path().join("copies");
    fs::create_dir(&copies).expect("a directory");
    let open = || {
        // Without patience a save fails as soon as the daemon is away: that is what is tried here.
        let register = register(&host, "kills").with_patience(Duration::ZERO);
        let replicas = [(ReplicaId::new("local"), copies.clone())];
        let store = CheckpointStore::with_parts(Arc::new(register), replicas, Arc::new(LocalDisk));
        Ok::<_, sublet::replicated::ReplicatedError>(checkpoints(&store?))
    };
    let (name, is_done, saves) = (CheckpointName::new("job"), AtomicBool::new(false), AtomicU32::new(0));
    let (mut unavailable, mut acknowledged) = (0, Vec::new());
    thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let (mut kills, mut seen) = (0, 0);
            while !is_done.load(Ordering::Acquire) {
                // A kill meets the save after the next one at the latest.
                if saves.load(Ordering::Acquire) > seen {
                    host.crash_and_restart().expect("it starts again");
                    kills += 1;
                    seen = saves.load(Ordering::Acquire);
                }
                thread::sleep(Duration::from_millis(1));
            }
            kills
        });
        let mut trainer: Option<(ReplicatedCheckpoint, FenceEpoch, Version, u64)> = None;
        // Until some saves failed, and some more were acknowledged after that.
        while unavailable < 5 || acknowledged.len() < 20 {
            let Some((checkpoints, fence, version, step)) = &mut trainer else {
                trainer = open().and_then(|checkpoints| start(checkpoints, &name)).ok();
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            let request = SaveRequest::new(name.clone(), *version, *fence);
            match checkpoints.save(request.bytes(step.to_le_bytes().to_vec()).step(*step + 1)) {
                Ok(saved) => {
                    acknowledged.push((saved.version, *step + 1));
                    saves.fetch_add(1, Ordering::Release);
                    (*version, *step) = (saved.version, *step + 1);
                }
                Err(error) => {
                    assert_eq!(error.code(), "register_unavailable", "{error:?}");
                    unavailable += 1;
                    trainer = None;
                }
            }
        }
        is_done.store(true, Ordering::Release);
        assert!(killer.join().expect("it did not panic") > 0);
    });
    // Steps and versions only grow, and what was acknowledged is there.
    assert!(acknowledged.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1), "{acknowledged:?}");
    let (_, _, version, step) = open().and_then(|checkpoints| start(checkpoints, &name)).expect("the daemon is back");
    let last = acknowledged.last().expect("a save");
    assert_eq!((version, step), *last, "the last save was acknowledged, and none came after it");
    // Each save adds a version and does a step: one that was committed twice would have two versions.
    assert_eq!(version.0, step);
}

/// Opens the checkpoint: with its fence, its newest version and its newest step.
fn start(
    checkpoints: ReplicatedCheckpoint,
    name: &CheckpointName,
) -> Result<(ReplicatedCheckpoint, FenceEpoch, Version, u64), sublet::replicated::ReplicatedError> {
    let fence = checkpoints.open(name)?;
    let newest = checkpoints.load(name)?;
    let version = newest.as_ref().map_or(Version(0), |newest| newest.version);
    let step = newest.and_then(|newest| newest.step).unwrap_or(0);
    Ok((checkpoints, fence, version, step))
}

/// What the command line prints about a store, and its exit code.
fn sublet(host: &LocalHost, store: &Path, words: &str) -> (String, Option<i32>) {
    let mut command = host.sublet();
    command.env("SUBLET_CHECKPOINTS", store).arg("checkpoint").args(words.split_whitespace());
    let output = command.output().expect("it can be started");
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8(text).expect("UTF-8"), output.status.code())
}

#[test]
fn the_command_line_reads_changes_and_rebuilds_a_store_whose_register_the_daemon_keeps() {
    let (_alone, host) = alone();
    let directory = tempfile::tempdir().expect("a directory");
    let file = configuration(directory.path(), "daemon:cli");
    let trainer = checkpoints(&store_opener().at(&file).expect("a store"));
    let name = sublet::training::training_checkpoint_name("demo");
    let fence = trainer.open(&name).expect("a fence");
    for version in 0..3 {
        let request = SaveRequest::new(name.clone(), Version(version), fence).keep(9).step(version + 1);
        trainer.save(request.bytes(vec![version as u8; 100])).expect("a version");
    }
    let (listed, code) = sublet(&host, &file, "ls demo");
    assert!(listed.contains("VERSION") && listed.lines().count() == 4 && code == Some(0), "{listed}");
    let (shown, code) = sublet(&host, &file, "show demo 2");
    assert!(shown.contains("step") && code == Some(0), "{shown}");
    let out = directory.path().join("out");
    assert_eq!(sublet(&host, &file, &format!("export demo 3 {}", out.display())).1, Some(0));
    assert_eq!(fs::read(out.join("state")).expect("a file"), [2; 100]);
    let (removed, code) = sublet(&host, &file, "rm demo 1");
    assert!(removed.contains("removed version 1") && code == Some(0), "{removed}");
    assert_eq!(sublet(&host, &file, "scrub demo").1, Some(0));
    let (refused, code) = sublet(&host, &file, "rebuild");
    assert!(refused.contains("name a new one there, such as `daemon:NAME-2`") && code == Some(1), "{refused}");

    // Another daemon, or a new state directory, has no such register: it is lost there.
    let file = configuration(directory.path(), "daemon:cli-2");
    let (lost, code) = sublet(&host, &file, "ls");
    assert!(lost.contains("the register is lost") && lost.contains("name the daemon that has it"), "{lost}");
    assert_eq!(code, Some(1));
    let (rebuilt, code) = sublet(&host, &file, "rebuild");
    assert!(rebuilt.contains("the register is new: generation 2") && code == Some(0), "{rebuilt}");
    assert_eq!(
        checkpoints(&store_opener().at(&file).expect("a store"))
            .newest(&name)
            .expect("an answer")
            .map(|newest| newest.version),
        Some(Version(3))
    );
    host.kill();
    let (away, code) = sublet(&host, &file, "ls");
    host.crash_and_restart().expect("it starts again");
    assert!(away.contains("error: the register of checkpoints cannot be reached: no daemon answers at"), "{away}");
    assert_eq!(code, Some(1));
}

/// The example trainer, on a store whose register the daemon keeps.
fn trainer(host: &LocalHost, store: &Path) -> Command {
    let sublet = host.sublet();
    let mut command = Command::new(Path::new(sublet.get_program()).with_file_name("sublet-example-train"));
    command.args(["--job", "demo", "--every", "5"]);
    command.env("SUBLET_SOCKET", host.socket()).env("SUBLET_CHECKPOINTS", store);
    command
}

/// The last line of the example trainer, after its daemon was killed `kills` times while it trained.
fn trained(host: &LocalHost, directory: &Path, kills: usize) -> String {
    let mut command = trainer(host, &configuration(directory, &format!("daemon:{}", fresh_name())));
    command.args(["--steps", "60", "--pace", "5"]);
    let mut trainer = command.stdout(Stdio::piped()).spawn().expect("it can be started");
    let (mut left, mut last) = (kills, String::new());
    for line in BufReader::new(trainer.stdout.take().expect("a pipe")).lines().map_while(Result::ok) {
        if line.contains("saved as version") && left > 0 {
            host.crash_and_restart().expect("it starts again");
            left -= 1;
        }
        last = line;
    }
    assert!(trainer.wait().expect("it ends").success(), "{last}");
    assert_eq!(left, 0);
    last
}

#[test]
fn of_two_processes_that_train_one_job_the_later_one_goes_on_and_the_other_is_told() {
    let (_alone, host) = alone();
    let directory = tempfile::tempdir().expect("a directory");
    let store = configuration(directory.path(), &format!("daemon:{}", fresh_name()));
    // The first one would train for a day.
    let mut first = trainer(&host, &store);
    first.args(["--steps", "1000000", "--pace", "50"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut first = first.spawn().expect("it can be started");
    let told = BufReader::new(first.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    let mut told = told.skip_while(|line| !line.contains("saved as version"));
    assert!(told.next().is_some(), "it saves");
    // Nothing else is read of the first one, and it has little to say until it ends.
    let mut second = trainer(&host, &store);
    second.args(["--steps", "1000000", "--pace", "50"]).stdout(Stdio::piped());
    let mut second = second.spawn().expect("it can be started");
    let told = BufReader::new(second.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    let mut told = told.skip_while(|line| !line.contains("opened with fence 3"));
    assert!(told.next().is_some(), "it takes over");
    let first = first.wait_with_output().expect("it ends");
    let error = String::from_utf8_lossy(&first.stderr).into_owned();
    assert!(told.any(|line| line.contains("saved as version")), "it goes on");
    second.kill().expect("it runs");
    second.wait().expect("it ends");
    assert!(!first.status.success() && error.contains("fence 2 is stale: another process opened this name"), "{error}");
}

#[test]
fn a_training_goes_on_with_the_same_result_while_the_daemon_is_killed_again_and_again() {
    let (_alone, host) = alone();
    let (one, two) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let undisturbed = trained(&host, one.path(), 0);
    assert!(undisturbed.starts_with("weights "), "{undisturbed}");
    assert_eq!(trained(&host, two.path(), 3), undisturbed);
}
