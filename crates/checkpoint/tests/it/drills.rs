//! Faults of other tools that were reported in public, played through with real processes, real files and SIGKILL.
//!
//! ```text
//! the position in the data   is part of a version, not a file beside it       an epoch, a shuffle
//! the files of a version     are those of one attempt                         mixed files, half a file
//! the newest version         is what the register says, not a link or a date  `latest`, backups
//! saving before the end      is not needed                                    SIGTERM that never comes
//! ```
//! The training is this test, run again as a process of its own.

use crate::common::{ONE, checkpoints, checkpoints_in, effects, fingerprint, job, names_in};
use crate::kills::store_with_switch;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use sublet_checkpoint::{
    CheckpointStore, EffectKey, FenceEpoch, IdempotencyOutcome, ReplicatedCheckpoint, ReplicatedError, SaveRequest,
    Version, open_together,
};

/// Where a process saves; without it the tests that are programs do nothing.
const DIRECTORY: &str = "SUBLET_TEST_DRILL_DIRECTORY";
/// What the process would shuffle by, if it began anew.
const SEED: &str = "SUBLET_TEST_DRILL_SEED";
/// The write at which the process ends itself.
const KILL_AT: &str = "SUBLET_TEST_DRILL_KILL_AT";

/// Each step takes one sample.
const SAMPLES: u64 = 5;
const EPOCHS: u64 = 3;
const STEPS: u64 = SAMPLES * EPOCHS;

/// The samples of an epoch: in another order for each seed and epoch.
fn shuffled(seed: u64, epoch: u64) -> Vec<u64> {
    let mut samples: Vec<u64> = (0..SAMPLES).collect();
    samples.sort_by_key(|sample| {
        let mut hasher = DefaultHasher::new();
        (seed, epoch, sample).hash(&mut hasher);
        hasher.finish()
    });
    samples
}

/// What a step trains on, as `epoch:sample`. Steps begin at 1.
fn sample_of(seed: u64, step: u64) -> String {
    let (epoch, place) = ((step - 1) / SAMPLES, (step - 1) % SAMPLES);
    format!("{epoch}:{}", shuffled(seed, epoch)[place as usize])
}

/// Every step of an undisturbed training.
fn all_samples(seed: u64) -> Vec<String> {
    (1..=STEPS).map(|step| sample_of(seed, step)).collect()
}

fn home(directory: &Path) -> PathBuf {
    directory.join("replicas/a/models/job:7:latest")
}

/// A training as it lies on the disk.
struct SavedTraining {
    version: Version,
    step: u64,
    seed: u64,
    seen: Vec<String>,
}

impl SavedTraining {
    fn load(checkpoints: &ReplicatedCheckpoint) -> Option<SavedTraining> {
        let loaded = checkpoints.load(&job()).expect("an answer")?;
        let text = |part: &str| String::from_utf8(loaded.part(part).expect("a part").to_vec()).expect("UTF-8");
        Some(SavedTraining {
            version: loaded.version,
            step: loaded.step.expect("a step"),
            seed: text("loader").parse().expect("a number"),
            seen: text("seen").split_whitespace().map(str::to_owned).collect(),
        })
    }

    fn request(&self, fence: FenceEpoch) -> SaveRequest {
        let request = SaveRequest::new(job(), self.version, fence).step(self.step);
        request.part("loader", self.seed.to_string()).part("seen", self.seen.join(" "))
    }
}

/// Waits for a line on stdin, so that a test decides how far this process gets.
fn tell_and_wait(word: &str, step: u64) {
    // The test's name may stand on the line.
    println!("\n{word} {step}");
    std::io::stdout().flush().expect("a pipe");
    std::io::stdin().read_line(&mut String::new()).expect("a pipe");
}

/// The training. It says `reserved` and `acknowledged`, and then waits to be told to go on.
#[test]
fn a_training_over_epochs() {
    let (Some(directory), Ok(seed)) = (env::var_os(DIRECTORY), env::var(SEED)) else { return };
    let store = CheckpointStore::open(directory).expect("a store");
    let (checkpoints, effects) = (checkpoints(&store, &["a"], ONE), effects(&store));
    let fence = open_together(&checkpoints, &job(), &effects, "job:7").expect("a fence");
    let begin =
        || SavedTraining { version: Version(0), step: 0, seed: seed.parse().expect("a number"), seen: Vec::new() };
    let mut training = SavedTraining::load(&checkpoints).unwrap_or_else(begin);
    while training.step < STEPS {
        training.step += 1;
        let sample = sample_of(training.seed, training.step);
        let (key, input) = (EffectKey::step("job:7", training.step), fingerprint(&sample));
        let reserved = effects.reserve_for(&checkpoints, &job(), key.clone(), input, None, fence).expect("a record");
        tell_and_wait("reserved", training.step);
        training.seen.push(sample);
        let saved = checkpoints.save(training.request(fence).completes(key.clone(), input)).expect("a version");
        training.version = saved.version;
        let done = IdempotencyOutcome::Completed { effect: None };
        effects.complete(key, reserved.version, done, fence).expect("a record");
        tell_and_wait("acknowledged", training.step);
    }
}

/// A process that trains.
struct TrainingProcess {
    child: Child,
    told: Lines<BufReader<ChildStdout>>,
}

impl TrainingProcess {
    fn start(directory: &Path, seed: u64) -> TrainingProcess {
        let mut command = Command::new(env::current_exe().expect("a path"));
        command.args(["drills::a_training_over_epochs", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(DIRECTORY, directory).env(SEED, seed.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let told = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        TrainingProcess { child, told }
    }

    /// Lets it go on behind its next words.
    fn go_on(&mut self, times: usize) {
        let stdin = self.child.stdin.as_mut().expect("a pipe");
        stdin.write_all("\n".repeat(times).as_bytes()).expect("a pipe");
    }

    /// Waits for this word, and returns its step; `None` if the process ends before.
    fn await_word(&mut self, word: &str) -> Option<u64> {
        let step = |line: String| line.strip_prefix(word)?.trim().parse().ok();
        self.told.by_ref().map(|line| line.expect("UTF-8")).find_map(step)
    }

    fn end_with(mut self, signal: Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("an own child");
        let status = self.child.wait().expect("an own child");
        assert_eq!(status.signal(), Some(signal.as_raw()), "nothing in the process delays its end");
    }

    fn train_to_the_end(mut self) {
        self.go_on(2 * STEPS as usize);
        while self.await_word("acknowledged").is_some() {}
        assert!(self.child.wait().expect("an own child").success());
    }
}

/// verl#7401: after a checkpoint at the end of an epoch, the data loader counts as used up, and the next epoch is
/// skipped without a word. Here the position is the step of the version, and nothing else.
#[test]
fn a_training_that_is_killed_after_every_step_skips_no_epoch_and_no_sample() {
    let directory = tempfile::tempdir().expect("a directory");
    for step in 1..=STEPS {
        let mut process = TrainingProcess::start(directory.path(), 7);
        process.go_on(1);
        assert_eq!(process.await_word("acknowledged"), Some(step), "each process goes on where the last one was");
        process.end_with(Signal::KILL);
    }
    let mut last = TrainingProcess::start(directory.path(), 7);
    assert_eq!(last.await_word("reserved"), None, "nothing is left to do");
    assert!(last.child.wait().expect("an own child").success());
    let saved = SavedTraining::load(&checkpoints_in(directory.path())).expect("a version");
    let unique: BTreeSet<&String> = saved.seen.iter().collect();
    assert_eq!((saved.step, saved.seen.len(), unique.len()), (STEPS, STEPS as usize, STEPS as usize));
    assert_eq!(saved.seen, all_samples(7), "epoch after epoch");
}

/// accelerate#4071: in the middle of an epoch, a training was continued with the shuffle of another epoch. Here the
/// shuffle is part of the version, and a step that was reserved for one batch is refused for another.
#[test]
fn a_training_goes_on_with_its_shuffle_and_a_step_with_another_batch_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut process = TrainingProcess::start(directory.path(), 7);
    process.go_on(2 * 7);
    while process.await_word("reserved").expect("a step") < 8 {}
    process.end_with(Signal::KILL);

    let store = CheckpointStore::open(directory.path()).expect("a store");
    let (checkpoints, effects) = (checkpoints(&store, &["a"], ONE), effects(&store));
    let fence = open_together(&checkpoints, &job(), &effects, "job:7").expect("a fence");
    let reserve = |sample: &str| {
        let key = EffectKey::step("job:7", 8);
        effects.reserve_for(&checkpoints, &job(), key, fingerprint(sample), None, fence).map(|_| ())
    };
    let of_first_epoch = format!("1:{}", shuffled(7, 0)[2]);
    assert_ne!(of_first_epoch, sample_of(7, 8), "the seed of this test shuffles the epochs differently");
    let error = reserve(&of_first_epoch).expect_err("a refusal");
    assert_eq!(error.code(), "fingerprint_mismatch");
    reserve(&sample_of(7, 8)).expect("the batch that was reserved");

    // A process that would shuffle otherwise takes the shuffle of the version.
    TrainingProcess::start(directory.path(), 8).train_to_the_end();
    let saved = SavedTraining::load(&checkpoints_in(directory.path())).expect("a version");
    assert_eq!((saved.seed, saved.seen), (7, all_samples(7)));
}

/// goodfire-ai/spd#677: a training that was to save when SIGTERM came was ended six times and never saved. Here no
/// signal is waited for: what was acknowledged is there after SIGKILL, too.
#[test]
fn a_training_without_signal_handlers_loses_no_acknowledged_step_to_sigkill_or_sigterm() {
    for signal in [Signal::KILL, Signal::TERM] {
        let directory = tempfile::tempdir().expect("a directory");
        let mut process = TrainingProcess::start(directory.path(), 7);
        // It waits behind step 6 at the latest, so that it is in the middle of its work on any machine.
        process.go_on(2 * 6);
        while process.await_word("acknowledged").expect("a step") < 3 {}
        assert!(!catches(&process.child, Signal::TERM), "the training has no handler");
        process.end_with(signal);
        let saved = SavedTraining::load(&checkpoints_in(directory.path())).expect("a version");
        assert!(saved.step >= 3, "step 3 was acknowledged, and step {} is the newest", saved.step);
        let mut next = TrainingProcess::start(directory.path(), 7);
        assert_eq!(next.await_word("reserved"), Some(saved.step + 1));
        next.train_to_the_end();
        let saved = SavedTraining::load(&checkpoints_in(directory.path())).expect("a version");
        assert_eq!(saved.seen, all_samples(7));
    }
}

/// True if a process handles a signal itself.
fn catches(child: &Child, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("a status");
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a line");
    let caught = u64::from_str_radix(caught.trim(), 16).expect("a number");
    caught & (1 << (signal.as_raw() - 1)) != 0
}

/// The files of one attempt. Their names differ from attempt to attempt, as those with a loss in them do.
fn attempt(name: &str, shards: usize) -> BTreeSet<String> {
    let shards = (0..shards).map(|shard| format!("shard-{shard}-of-{shards}"));
    shards.chain([format!("loss={name}")]).collect()
}

/// Saves the files of an attempt after the newest version.
fn save_attempt(store: &CheckpointStore, files: &BTreeSet<String>) -> Result<Version, ReplicatedError> {
    let checkpoints = checkpoints(store, &["a"], ONE);
    let fence = checkpoints.open(&job())?;
    let newest = checkpoints.newest(&job())?.map_or(Version(0), |newest| newest.version);
    let mut request = SaveRequest::new(job(), newest, fence);
    for file in files {
        request = request.part(file.clone(), file.clone().into_bytes());
    }
    Ok(checkpoints.save(request)?.version)
}

/// The attempt that dies.
#[test]
fn an_attempt_that_dies() {
    let (Some(directory), Ok(at)) = (env::var_os(DIRECTORY), env::var(KILL_AT)) else { return };
    let store = store_with_switch(Path::new(&directory), at.parse().expect("a number"));
    save_attempt(&store, &attempt("0.123", 3)).expect("a version");
}

/// ray#41700: a worker dies while it saves, the next attempt saves to the same directory, and a resume reads files of
/// both. Here each attempt has a directory of its own, and one of them becomes the version.
#[test]
fn a_version_has_the_files_of_one_attempt_wherever_another_one_died() {
    let (dead, alive) = (attempt("0.123", 3), attempt("0.456", 2));
    for at in 0.. {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        for name in ["a", "b", "c"] {
            fs::create_dir(directory.path().join(name)).expect("a directory");
        }
        let mut command = Command::new(env::current_exe().expect("a path"));
        command.args(["drills::an_attempt_that_dies", "--exact", "--test-threads=1"]);
        let child = command.env(DIRECTORY, directory.path()).env(KILL_AT, at.to_string()).output().expect("a process");
        let store = store_with_switch(directory.path(), u64::MAX);
        let version = save_attempt(&store, &alive).expect("a version");
        let home = directory.path().join("a/models/job:7:latest");
        for name in names_in(&home).into_iter().filter(|name| name != "latest") {
            let files: BTreeSet<String> = names_in(&home.join(&name)).into_iter().collect();
            let own: BTreeSet<String> =
                files.into_iter().filter(|file| !["_SUCCESS", "sublet.json"].contains(&file.as_str())).collect();
            let expected = if name == version.directory() { &alive } else { &dead };
            assert_eq!(&own, expected, "version {name}, killed at {at}");
        }
        if child.status.success() {
            assert!(at > 15, "only {at} writes were tried");
            return;
        }
        assert_eq!(child.status.signal(), Some(9), "{}", String::from_utf8_lossy(&child.stderr));
    }
}

/// Two versions, and the checkpoints as another process finds them.
fn saved_twice(directory: &Path) -> FenceEpoch {
    let checkpoints = checkpoints_in(directory);
    let fence = checkpoints.open(&job()).expect("a fence");
    checkpoints.save_bytes(job(), Version(0), b"weights of step 1", fence).expect("a version");
    checkpoints.save_bytes(job(), Version(1), b"weights of step 2", fence).expect("a version");
    fence
}

fn loaded(checkpoints: &ReplicatedCheckpoint) -> (Version, Vec<u8>) {
    let loaded = checkpoints.load(&job()).expect("an answer").expect("a version");
    (loaded.version, loaded.bytes().expect("bytes").to_vec())
}

/// A file of a checkpoint is half written when the machine stops, and the next start reads it, or takes an older one
/// without a word. Here the newest version is whole, or the load is refused, and the program chooses an older one.
#[test]
fn half_a_file_of_the_newest_version_is_refused_and_no_older_version_is_taken_silently() {
    let directory = tempfile::tempdir().expect("a directory");
    saved_twice(directory.path());
    let file = fs::OpenOptions::new().write(true).open(home(directory.path()).join("000002/state")).expect("a file");
    file.set_len(8).expect("half a file");
    let checkpoints = checkpoints_in(directory.path());
    let error = checkpoints.load(&job()).expect_err("a refusal");
    assert_eq!(error.code(), "too_few_copies");
    assert!(error.to_string().contains("part `state`"), "{error}");
    let older = checkpoints.load_version(&job(), Version(1)).expect("it is whole");
    assert_eq!(older.bytes().expect("bytes").as_ref(), b"weights of step 1");
}

/// `latest` names what was never finished: a marker that was written too early, a directory that was copied there by
/// hand. Here the register says what is the newest, and the next save puts the link right.
#[test]
fn a_latest_link_to_a_version_that_was_never_committed_is_not_followed() {
    let directory = tempfile::tempdir().expect("a directory");
    let fence = saved_twice(directory.path());
    let home = home(directory.path());
    fs::create_dir(home.join("000009")).expect("a directory");
    fs::write(home.join("000009/state"), "weights of nothing").expect("a file");
    for file in ["_SUCCESS", "sublet.json"] {
        fs::copy(home.join("000002").join(file), home.join("000009").join(file)).expect("a file");
    }
    for target in ["000009", "000010", "../../../../register.db"] {
        fs::remove_file(home.join("latest")).expect("a link");
        std::os::unix::fs::symlink(target, home.join("latest")).expect("a link");
        let checkpoints = checkpoints_in(directory.path());
        assert_eq!(loaded(&checkpoints), (Version(2), b"weights of step 2".to_vec()), "{target}");
    }
    let saved = checkpoints_in(directory.path()).save_bytes(job(), Version(2), b"weights of step 3", fence);
    assert_eq!(saved.expect("a version").version, Version(3));
    assert_eq!(fs::read_link(home.join("latest")).expect("a link"), Path::new("000003"));
}

/// Somebody copies a version to the number of the next one, or makes a directory of that name. Here it is set aside when
/// the version is published, so the save that was acknowledged is there.
#[test]
fn a_directory_in_the_place_of_the_next_version_is_kept_under_another_name() {
    for is_copy in [false, true] {
        let directory = tempfile::tempdir().expect("a directory");
        let fence = saved_twice(directory.path());
        let home = home(directory.path());
        let place = home.join("000003");
        if is_copy {
            copy_directory(&home.join("000002"), &place);
        } else {
            fs::create_dir(&place).expect("a directory");
        }
        fs::write(place.join("notes"), "mine").expect("a file");
        let saved = checkpoints_in(directory.path()).save_bytes(job(), Version(2), b"weights of step 3", fence);
        assert_eq!(saved.expect("a version").value.failures, []);
        let checkpoints = checkpoints_in(directory.path());
        assert_eq!(loaded(&checkpoints), (Version(3), b"weights of step 3".to_vec()));
        let found = names_in(&home).into_iter().find(|name| name.starts_with("found-000003-")).expect("it is kept");
        assert_eq!(fs::read(home.join(found).join("notes")).expect("a file"), b"mine");
    }
}

/// A directory that happens to have the number of a version that is long gone is somebody's.
#[test]
fn a_directory_with_the_number_of_a_pruned_version_is_left_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let fence = saved_twice(directory.path());
    let home = home(directory.path());
    for version in 2..=3 {
        let saved = checkpoints_in(directory.path()).save_bytes(job(), Version(version), b"weights", fence);
        saved.expect("a version");
    }
    assert!(!home.join("000001").exists(), "the last two are kept");
    fs::create_dir(home.join("000001")).expect("a directory");
    fs::write(home.join("000001/data"), "mine").expect("a file");
    checkpoints_in(directory.path()).save_bytes(job(), Version(4), b"weights", fence).expect("a version");
    assert_eq!(fs::read(home.join("000001/data")).expect("a file"), b"mine");
    assert!(!home.join("000003").exists(), "pruning goes on");
}

/// `latest` is a directory that somebody made. Publishing reports that, and old versions are still deleted.
#[test]
fn old_versions_are_deleted_where_the_link_cannot_be_set() {
    let directory = tempfile::tempdir().expect("a directory");
    let fence = saved_twice(directory.path());
    let home = home(directory.path());
    fs::remove_file(home.join("latest")).expect("a link");
    fs::create_dir(home.join("latest")).expect("a directory");
    let saved = checkpoints_in(directory.path()).save_bytes(job(), Version(2), b"weights", fence).expect("a version");
    assert_eq!(saved.value.failures.len(), 1, "{:?}", saved.value.failures);
    assert!(!home.join("000001").exists() && home.join("000003").exists());
}

fn copy_directory(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp");
    assert!(status.success());
}

/// The directory of the checkpoints comes back from a backup, and the training repeats steps that it reported. Here
/// the register knows the newest version, and an older one is no answer.
#[test]
fn files_from_a_backup_are_refused_while_the_register_knows_a_newer_version() {
    let directory = tempfile::tempdir().expect("a directory");
    let fence = saved_twice(directory.path());
    let (replicas, backup) = (directory.path().join("replicas"), directory.path().join("backup"));
    copy_directory(&replicas, &backup);
    let checkpoints = checkpoints_in(directory.path());
    checkpoints.save_bytes(job(), Version(2), b"weights of step 3", fence).expect("a version");
    fs::remove_dir_all(&replicas).expect("a directory");
    fs::rename(&backup, &replicas).expect("a directory");
    let checkpoints = checkpoints_in(directory.path());
    let error = checkpoints.load(&job()).expect_err("a refusal");
    assert_eq!(error.code(), "too_few_copies");
    assert!(error.to_string().starts_with("version 3 has 0 whole copies of the 1 needed"), "{error}");
    let older = checkpoints.load_version(&job(), Version(2)).expect("it is whole");
    assert_eq!(older.bytes().expect("bytes").as_ref(), b"weights of step 2");
}

/// The whole store comes back from a backup while a training still runs. Its register is a file that has no name any
/// more, so that it saves nothing, and the restored store goes on.
#[test]
fn a_store_from_a_backup_is_whole_and_a_process_from_before_saves_no_more() {
    let directory = tempfile::tempdir().expect("a directory");
    let (store, backup) = (directory.path().join("store"), directory.path().join("backup"));
    let fence = saved_twice(&store);
    copy_directory(&store, &backup);
    let before = checkpoints_in(&store);
    before.save_bytes(job(), Version(2), b"weights of step 3", fence).expect("a version");
    fs::remove_dir_all(&store).expect("a directory");
    fs::rename(&backup, &store).expect("a directory");
    let after = checkpoints_in(&store);
    assert_eq!(loaded(&after), (Version(2), b"weights of step 2".to_vec()));
    for _ in 0..2 {
        let error = before.save_bytes(job(), Version(3), b"weights of step 4", fence).expect_err("a refusal");
        assert_eq!(error.code(), "register_unavailable");
        assert!(error.to_string().contains("register.db` was replaced while the program ran"), "{error}");
    }
    let fence = after.open(&job()).expect("a fence");
    after.save_bytes(job(), Version(2), b"step 3 again", fence).expect("a version");
    for checkpoints in [after, checkpoints_in(&store)] {
        assert_eq!(loaded(&checkpoints), (Version(3), b"step 3 again".to_vec()));
    }
}
