//! A process that trains on real files is killed with SIGKILL at each of its writes.
//!
//! The test runs itself again as the child. The child's files and register count their calls, and the
//! call with the number in `KILL_AT` ends the process.

use crate::common::{ONE, Quorums, checkpoints, effects, fingerprint, job, names_in};
use crate::trainer::{STEPS, Trainer, trained};
use std::env;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use sublet_checkpoint::files::{Files, LocalDisk, ReadFile, WriteFile};
use sublet_checkpoint::register::{ChainRegister, Creation, NumberedEntry, RegisterError, SqliteRegister};
use sublet_checkpoint::{
    ChainName, CheckpointStore, EffectKey, FenceEpoch, IdempotencyOutcome, ReplicaId, SaveRequest, Version,
};

#[path = "hooked_files.rs"]
mod hooked_files;

use hooked_files::{FileHook, HookedFiles};

const DIRECTORY: &str = "SUBLET_TEST_KILL_DIRECTORY";
const KILL_AT: &str = "SUBLET_TEST_KILL_AT";
const COPIES: &str = "SUBLET_TEST_KILL_COPIES";

/// The names of replicas; tests use the first one, or all.
const REPLICAS: [&str; 3] = ["a", "b", "c"];

/// Counts calls, and ends the process at one of them.
#[derive(Clone)]
struct KillSwitch {
    calls: Arc<AtomicU64>,
    at: u64,
}

impl KillSwitch {
    /// True if the process is to end in the middle of this call.
    fn is_due(&self) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) == self.at
    }

    fn count(&self) {
        if self.is_due() {
            kill();
        }
    }
}

fn kill() -> ! {
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).expect("a signal");
    loop {
        std::thread::park();
    }
}

/// The switch is met before each change, and in the middle of each write.
impl FileHook for KillSwitch {
    fn before(&self, _: &Path) {
        self.count();
    }

    fn is_torn(&self, _: &Path) -> bool {
        self.is_due()
    }

    fn torn(&self) {
        kill();
    }
}

/// The real register, with the switch before and after each entry.
struct KillingRegister {
    register: Arc<dyn ChainRegister>,
    switch: KillSwitch,
}

/// A register and files that end the process at this call.
pub fn with_kill_switch(
    register: Arc<dyn ChainRegister>,
    files: Arc<dyn Files>,
    at: u64,
) -> (Arc<dyn ChainRegister>, Arc<dyn Files>) {
    let switch = KillSwitch { calls: Arc::default(), at };
    let register = KillingRegister { register, switch: switch.clone() };
    (Arc::new(register), Arc::new(HookedFiles { files, hook: Arc::new(switch) }))
}

impl ChainRegister for KillingRegister {
    fn create(&self, chain: &ChainName, number: u64, entry: &[u8]) -> Result<Creation, RegisterError> {
        self.switch.count();
        let created = self.register.create(chain, number, entry);
        self.switch.count();
        created
    }

    fn read(&self, chain: &ChainName, from: u64, limit: usize) -> Result<Vec<NumberedEntry>, RegisterError> {
        self.register.read(chain, from, limit)
    }

    fn last(&self, chain: &ChainName) -> Result<u64, RegisterError> {
        self.register.last(chain)
    }

    fn forget_before(&self, chain: &ChainName, number: u64) -> Result<(), RegisterError> {
        self.switch.count();
        self.register.forget_before(chain, number)
    }

    fn chains(&self) -> Result<Vec<ChainName>, RegisterError> {
        self.register.chains()
    }
}

/// The store of a process that is killed at this call.
pub fn store_with_switch(directory: &Path, at: u64) -> CheckpointStore {
    let register = SqliteRegister::open(directory.join("register.db")).expect("a register");
    let (register, files) = with_kill_switch(Arc::new(register), Arc::new(LocalDisk), at);
    let replicas = REPLICAS.map(|name| (ReplicaId::new(name), directory.join(name)));
    CheckpointStore::with_parts(register, replicas, files).expect("a store")
}

/// The child. As a test of its own it does nothing.
#[test]
fn a_trainer_that_is_killed() {
    let (Some(directory), Ok(at)) = (env::var_os(DIRECTORY), env::var(KILL_AT)) else { return };
    let store = store_with_switch(&PathBuf::from(directory), at.parse().expect("a number"));
    let copies = env::var(COPIES).expect("a number").parse().expect("a number");
    let trainer = trainer_over(&store, copies);
    let told = trainer.train(|step| {
        // The test's name may stand on the line.
        println!("\nacknowledged {step}");
        io::stdout().flush().expect("a pipe");
    });
    told.expect("a training");
}

/// A trainer over this many replicas, of which more than half are written.
fn trainer_over(store: &CheckpointStore, copies: usize) -> Trainer {
    Trainer::start(store, &REPLICAS[..copies], Quorums { write: copies / 2 + 1, read: 1 })
}

fn run_child(directory: &Path, at: u64, copies: usize) -> Output {
    Command::new(env::current_exe().expect("a path"))
        .args(["kills::a_trainer_that_is_killed", "--exact", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .env(KILL_AT, at.to_string())
        .env(COPIES, copies.to_string())
        .output()
        .expect("a child")
}

/// The newest step that the child acknowledged.
pub fn acknowledged(child: &Output) -> u64 {
    let text = String::from_utf8_lossy(&child.stdout);
    let steps = text.lines().filter_map(|line| line.strip_prefix("acknowledged "));
    steps.map(|step| step.parse().expect("a step")).max().unwrap_or(0)
}

/// A directory for a store, in memory where that is possible: a killed process loses nothing that needs a disk.
fn store_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
    for name in REPLICAS {
        std::fs::create_dir(directory.path().join(name)).expect("a directory");
    }
    directory
}

#[test]
fn a_kill_at_every_write_loses_and_repeats_no_step() {
    let writes = kill_at_writes(1, 1);
    assert!(writes > 100, "only {writes} writes were tried");
}

#[test]
fn a_kill_over_three_replicas_loses_and_repeats_no_step() {
    // The replicas' threads take turns by chance, so every third number meets each kind of write too.
    let writes = kill_at_writes(3, 3);
    assert!(writes > 300, "only {writes} writes were tried");
}

/// Kills a trainer at its first write, and others at later ones, until one ends by itself.
fn kill_at_writes(copies: usize, stride: u64) -> u64 {
    let mut at = 0;
    loop {
        let directory = store_directory();
        let child = run_child(directory.path(), at, copies);
        check_after_kill(directory.path(), at, copies, acknowledged(&child));
        if child.status.success() {
            assert_eq!(acknowledged(&child), STEPS);
            return at;
        }
        assert_eq!(child.status.signal(), Some(9), "{}", String::from_utf8_lossy(&child.stderr));
        at += stride;
    }
}

fn check_after_kill(directory: &Path, at: u64, copies: usize, acknowledged: u64) {
    let trainer = trainer_over(&store_with_switch(directory, u64::MAX), copies);
    let (_, step, state) = trainer.newest().expect("a state");
    assert!(step >= acknowledged, "killed at {at}: step {acknowledged} was acknowledged, and {step} is the newest");
    assert_eq!(state, trained(step), "killed at {at}");
    trainer.train(|_| ()).expect("a training");
    assert_eq!(trainer.newest().expect("a state").2, trained(STEPS));
    trainer.check_steps();
    assert_eq!(trainer.checkpoints.scrub(&job()).expect("a report").damaged, [], "killed at {at}");
    for replica in &REPLICAS[..copies] {
        let home = directory.join(replica).join("models/job:7:latest");
        assert_eq!(names_in(&home), ["000003", "000004", "latest"], "killed at {at}");
    }
}

/// A process that was stopped for long and wakes up, with its clock a year off or not: nothing asks it.
#[test]
fn a_stale_process_commits_nothing() {
    let directory = store_directory();
    let open = || store_with_switch(directory.path(), u64::MAX);
    let stale = Trainer::start(&open(), &["a"], ONE);
    let fence = stale.checkpoints.open(&job()).expect("a fence");
    Trainer::start(&open(), &["a"], ONE).train(|_| ()).expect("a training");
    let request = |expected, fence| SaveRequest::new(job(), Version(expected), fence).bytes(b"stale".to_vec()).step(9);
    for expected in [0, STEPS] {
        for fence in [FenceEpoch(1), fence] {
            let error = stale.checkpoints.save(request(expected, fence)).expect_err("a refusal");
            assert_eq!(error.code(), "fenced");
            assert!(error.remedy().contains("another one has taken over"));
        }
    }
    let fresh = Trainer::start(&open(), &["a"], ONE);
    assert_eq!(fresh.newest().expect("a state").2, trained(STEPS));
    fresh.check_steps();
}

/// What a clock says is in the records for people, and no call reads it.
#[test]
fn a_reservation_with_a_deadline_of_any_year_is_judged_by_its_fence_alone() {
    for deadline in [0, 1, u64::MAX] {
        let directory = store_directory();
        let store = store_with_switch(directory.path(), u64::MAX);
        let (one, two) = (effects(&store), effects(&store_with_switch(directory.path(), u64::MAX)));
        let key = EffectKey::step("job", 1);
        let reserve = |effects: &sublet_checkpoint::ReplicatedIdempotencyStore, fence| {
            effects.reserve(key.clone(), fingerprint("in"), Some(deadline), fence).map(|found| found.value.outcome)
        };
        let mine = IdempotencyOutcome::Reserved { deadline_unix_s: Some(deadline) };
        assert_eq!(reserve(&one, FenceEpoch(1)).expect("a record"), mine);
        assert_eq!(reserve(&two, FenceEpoch(1)).expect_err("a refusal").code(), "in_progress");
        let fence = two.open("job").expect("a fence");
        assert_eq!(reserve(&two, fence).expect("a record"), mine);
        assert_eq!(reserve(&one, FenceEpoch(1)).expect_err("a refusal").code(), "fenced");
    }
}

#[test]
fn processes_that_take_over_from_each_other_commit_each_step_once() {
    for _ in 0..2 {
        let directory = store_directory();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let trainer = Trainer::start(&store_with_switch(directory.path(), u64::MAX), &["a"], ONE);
                    while let Err(error) = trainer.train(|_| ()) {
                        assert_eq!(error.code(), "fenced", "{error}");
                    }
                });
            }
        });
        let trainer = Trainer::start(&store_with_switch(directory.path(), u64::MAX), &["a"], ONE);
        assert_eq!(trainer.newest().expect("a state").2, trained(STEPS));
        trainer.check_steps();
        let home = directory.path().join("a/models/job:7:latest");
        assert_eq!(names_in(&home), ["000003", "000004", "latest"]);
    }
}

#[test]
fn prune_and_save_at_once_lose_nothing() {
    let directory = store_directory();
    let open = || checkpoints(&store_with_switch(directory.path(), u64::MAX), &["a"], ONE);
    let (writer, pruner, reader) = (open(), open(), open());
    let fence = writer.open(&job()).expect("a fence");
    writer.save_bytes(job(), Version(0), b"0", fence).expect("a version");
    let saves = 40;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for version in 1..saves {
                let request = SaveRequest::new(job(), Version(version), fence).keep(5);
                writer.save(request.bytes(version.to_string().into_bytes())).expect("a version");
            }
        });
        scope.spawn(|| {
            while pruner.newest(&job()).expect("an answer").expect("a version").version < Version(saves) {
                let versions = pruner.versions(&job()).expect("versions");
                let oldest = versions.first().expect("a version").version;
                match pruner.prune(&job(), &[oldest], fence) {
                    Ok(()) => {}
                    Err(error) => assert!(matches!(error.code(), "kept" | "pruned"), "{error}"),
                }
            }
        });
        scope.spawn(|| {
            let mut newest = Version(0);
            while newest < Version(saves) {
                let loaded = reader.load(&job()).expect("an answer").expect("a version");
                assert_eq!(loaded.bytes().expect("bytes").as_ref(), (loaded.version.0 - 1).to_string().as_bytes());
                assert!(loaded.version >= newest, "time goes forward");
                newest = loaded.version;
            }
        });
    });
    let home = directory.path().join("a/models/job:7:latest");
    let versions = reader.versions(&job()).expect("versions");
    assert!(versions.len() <= 5);
    writer.open(&job()).expect("a fence");
    assert_eq!(names_in(&home).len(), versions.len() + 1);
}
