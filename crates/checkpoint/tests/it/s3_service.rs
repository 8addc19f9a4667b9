//! Checkpoints in a real S3 service.
//!
//! The test runs itself again as children, whose environment has the credentials, and which can be killed.

use crate::common::{TWO, job, store_over};
use crate::kills::{acknowledged, with_kill_switch};
use crate::trainer::{STEPS, Trainer, trained};
use crate::weed::Weed;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use sublet_checkpoint::files::{Files, ObjectFiles};
use sublet_checkpoint::register::{ChainRegister, ObjectRegister, contract};
use sublet_checkpoint::{
    CheckpointStore, LogicalResourceName, ObjectBucket, S3Purpose, S3Settings, SaveRequest, SchemaId, Version,
};

const ENDPOINT: &str = "SUBLET_TEST_S3_ENDPOINT";
const PREFIX: &str = "SUBLET_TEST_S3_PREFIX";
const KILL_AT: &str = "SUBLET_TEST_S3_KILL_AT";
const ACKNOWLEDGED: &str = "SUBLET_TEST_S3_ACKNOWLEDGED";
const CONFIG: &str = "SUBLET_TEST_S3_CONFIG";

const BUCKET: &str = "training";

/// A child that runs one of the tests below.
fn child(weed: &Weed, test: &str, prefix: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("a path"));
    command.args([&format!("s3_service::{test}"), "--exact", "--nocapture", "--test-threads=1"]);
    command.env(ENDPOINT, weed.endpoint()).env(PREFIX, prefix);
    weed.lend_to(&mut command);
    command
}

fn run(mut command: Command) {
    let output = command.output().expect("a child");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
}

fn bucket(purpose: S3Purpose) -> ObjectBucket {
    bucket_at(env::var(ENDPOINT).expect("an address"), purpose)
}

fn bucket_at(endpoint: String, purpose: S3Purpose) -> ObjectBucket {
    let settings = S3Settings { endpoint: Some(endpoint), region: Some("us-east-1".to_owned()), allow_http: true };
    ObjectBucket::s3(BUCKET, &settings, purpose).expect("a bucket")
}

/// True in a child.
fn is_child() -> bool {
    env::var_os(ENDPOINT).is_some()
}

fn prefix() -> String {
    env::var(PREFIX).expect("a prefix")
}

const REPLICAS: [&str; 2] = ["a", "b"];

fn open_register(prefix: &str) -> Arc<dyn ChainRegister> {
    Arc::new(ObjectRegister::open(bucket(S3Purpose::Register), prefix).expect("a register"))
}

/// A trainer over a register and two replicas in the service, which is killed at this call.
///
/// The service takes seconds for many creates of one object, so a child opens its register once.
fn trainer(kill_at: u64) -> Trainer {
    static REGISTER: OnceLock<Arc<dyn ChainRegister>> = OnceLock::new();
    trainer_over(REGISTER.get_or_init(|| open_register(&prefix())), kill_at)
}

fn trainer_over(register: &Arc<dyn ChainRegister>, kill_at: u64) -> Trainer {
    let files = ObjectFiles::new(bucket(S3Purpose::Content));
    let (register, files) = with_kill_switch(Arc::clone(register), Arc::new(files), kill_at);
    let place = format!("s3://{BUCKET}/{}", prefix());
    Trainer::start(&store_over(&register, Path::new(&place), &REPLICAS, files), &REPLICAS, TWO)
}

#[test]
fn trainers_over_a_real_service_are_killed_and_taken_over() {
    if is_child() {
        return;
    }
    let weed = Weed::start();
    std::thread::scope(|scope| {
        let tests = [
            "child_checks_the_contract",
            "child_lets_trainers_take_over",
            "child_writes_a_large_part",
            "child_meets_servers_that_do_not_answer",
        ];
        for test in tests {
            let command = child(&weed, test, test);
            scope.spawn(move || run(command));
        }
        kill_trainers(&weed);
    });
}

#[test]
fn child_checks_the_contract() {
    if !is_child() {
        return;
    }
    let open = |number| ObjectRegister::open(bucket(S3Purpose::Register), &format!("{}/{number}", prefix()));
    let opened = std::thread::scope(|scope| {
        let opening: Vec<_> = (0..7).map(|number| scope.spawn(move || open(number))).collect();
        opening.into_iter().map(|open| open.join().expect("no panic").expect("a register")).collect()
    });
    let fresh: RefCell<Vec<ObjectRegister>> = RefCell::new(opened);
    assert_eq!(fresh.borrow()[0].chains().expect("an answer"), []);
    contract::check(&|| fresh.borrow_mut().pop().expect("the contract needs no more"));
}

#[test]
fn child_meets_servers_that_do_not_answer() {
    if !is_child() {
        return;
    }
    // The system accepts connections for it, and nothing reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    for address in [silent.local_addr().expect("an address"), closed] {
        let bucket = bucket_at(format!("http://{address}"), S3Purpose::Register);
        let opened = ObjectRegister::open(bucket.with_call_limit(Duration::from_millis(500)), "x");
        assert_eq!(opened.expect_err("an error").code(), "register_unavailable");
        let files = ObjectFiles::new(
            bucket_at(format!("http://{address}"), S3Purpose::Content).with_call_limit(Duration::from_millis(500)),
        );
        files.list(Path::new("s3://training/x")).expect_err("an error");
    }
}

#[test]
fn child_lets_trainers_take_over() {
    if !is_child() {
        return;
    }
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let trainer = trainer_over(&open_register(&prefix()), u64::MAX);
                while let Err(error) = trainer.train(|_| ()) {
                    assert_eq!(error.code(), "fenced", "{error}");
                }
            });
        }
    });
    let stale = trainer(u64::MAX);
    let fence = stale.checkpoints.open(&job()).expect("a fence");
    check_trained();
    let request = SaveRequest::new(job(), Version(STEPS), fence).bytes(b"stale".to_vec()).step(9);
    assert_eq!(stale.checkpoints.save(request).expect_err("a refusal").code(), "fenced");
}

/// Checks a training that has ended: its steps, its copies, and that nothing else is left.
fn check_trained() {
    let trainer = trainer(u64::MAX);
    trainer.train(|_| ()).expect("a training");
    assert_eq!(trainer.newest().expect("a state").2, trained(STEPS));
    trainer.check_steps();
    let report = trainer.checkpoints.scrub(&job()).expect("a report");
    assert_eq!((report.damaged.len(), report.whole + report.repaired.len()), (0, 4));
    let files = ObjectFiles::new(bucket(S3Purpose::Content));
    for replica in REPLICAS {
        let home = format!("s3://{BUCKET}/{}/{replica}/models/job:7:latest", prefix());
        // The service lists directories that are empty by now.
        let keys = files.list_below(Path::new(&home)).expect("names");
        let first = keys.iter().map(|key| key.split('/').next().unwrap_or_default());
        let names: BTreeSet<&str> = first.collect();
        let names: Vec<&str> = names.into_iter().collect();
        assert_eq!(names.len(), 3, "nothing is left behind: {names:?}");
        assert_eq!(files.read_link(&Path::new(&home).join("latest")).expect("a link").as_deref(), Some(names[1]));
    }
}

#[test]
fn child_writes_a_large_part() {
    if !is_child() {
        return;
    }
    let checkpoints = trainer(u64::MAX).checkpoints;
    let fence = checkpoints.open(&job()).expect("a fence");
    let weights: Vec<u8> = (0..50_000_000_u32).map(|number| (number / 7) as u8).collect();
    let request = |version, step: u8| {
        let request = SaveRequest::new(job(), Version(version), fence).part("weights", weights.clone());
        request.part("layers/step", vec![step]).part("empty", Vec::new())
    };
    checkpoints.save(request(0, 1)).expect("a version");
    // The weights are copied inside the service.
    checkpoints.save(request(1, 2)).expect("a version");
    let loaded = checkpoints.load(&job()).expect("an answer").expect("a version");
    assert!(loaded.part("weights").expect("a part") == &weights);
    assert_eq!(loaded.part("layers/step").expect("a part").as_ref(), [2]);
    assert_eq!(loaded.part("empty").expect("a part").as_ref(), b"");
}

/// Kills trainers at some of their calls; each time another one takes over.
fn kill_trainers(weed: &Weed) {
    let points = [3, 31, 47, 75, 104, 133, 166, u64::MAX];
    std::thread::scope(|scope| {
        let killed: Vec<_> = points.iter().map(|at| scope.spawn(|| kill_trainer(weed, *at))).collect();
        let killed: Vec<bool> = killed.into_iter().map(|killed| killed.join().expect("no panic")).collect();
        assert_eq!(killed, [true, true, true, true, true, true, true, false]);
    });
}

/// True if the trainer was killed at this call; false if it ended before.
fn kill_trainer(weed: &Weed, at: u64) -> bool {
    let prefix = format!("kill-{at}");
    let output = child(weed, "child_trains", &prefix).env(KILL_AT, at.to_string()).output().expect("a child");
    let acknowledged = acknowledged(&output);
    let mut command = child(weed, "child_takes_over", &prefix);
    command.env(ACKNOWLEDGED, acknowledged.to_string());
    run(command);
    assert_eq!(output.status.success(), acknowledged == STEPS, "{}", String::from_utf8_lossy(&output.stderr));
    output.status.signal() == Some(9)
}

#[test]
fn child_trains() {
    if !is_child() {
        return;
    }
    let at = env::var(KILL_AT).expect("a number").parse().expect("a number");
    let told = trainer(at).train(|step| {
        println!("\nacknowledged {step}");
        std::io::stdout().flush().expect("a pipe");
    });
    told.expect("a training");
}

#[test]
fn child_takes_over() {
    if !is_child() {
        return;
    }
    let acknowledged: u64 = env::var(ACKNOWLEDGED).expect("a number").parse().expect("a number");
    let (_, step, state) = trainer(u64::MAX).newest().expect("a state");
    assert!(step >= acknowledged, "step {acknowledged} was acknowledged, and {step} is the newest");
    assert_eq!(state, trained(step));
    check_trained();
}

#[test]
fn a_save_outlives_a_service_that_is_killed_and_started_again() {
    if is_child() {
        return;
    }
    let mut weed = Weed::start();
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("checkpoints.toml");
    std::fs::write(&config, weed.config(BUCKET)).expect("a file");
    let mut command = child(&weed, "child_saves_while_the_service_restarts", "unused");
    let mut saving = command.env(CONFIG, &config).stdout(Stdio::piped()).spawn().expect("a child");
    let mut lines = BufReader::new(saving.stdout.take().expect("a pipe")).lines();
    let told = lines.by_ref().map(|line| line.expect("a line")).find(|line| line.contains("saving version 2"));
    assert!(told.is_some(), "the child ended early");
    weed.kill();
    weed.launch();
    // What it prints must be read, or it waits.
    let rest: Vec<String> = lines.map(|line| line.expect("a line")).collect();
    let status = saving.wait().expect("an end");
    assert!(status.success() && rest.iter().any(|line| line == "version 3 is whole"), "{rest:#?}");
}

#[test]
fn child_saves_while_the_service_restarts() {
    let (true, Some(config)) = (is_child(), env::var_os(CONFIG)) else { return };
    let store = CheckpointStore::from_config(config).expect("a store");
    let checkpoints = store.checkpoints(LogicalResourceName::new("models"), SchemaId::new("v1")).expect("checkpoints");
    let fence = checkpoints.open(&job()).expect("a fence");
    let state = |version: u64| vec![version as u8; 48 << 20];
    let mut newest = Version(0);
    while newest < Version(3) {
        let next = newest.next();
        // Hashing and sending take longer than the line takes to arrive.
        println!("\nsaving version {next}");
        std::io::stdout().flush().expect("a pipe");
        let saved = checkpoints.save(SaveRequest::new(job(), newest, fence).bytes(state(next.0)));
        println!("\n{next}: {:?}", saved.as_ref().map(|saved| saved.version).map_err(ToString::to_string));
        newest = loop {
            // The service may not be back yet.
            match checkpoints.newest(&job()) {
                Ok(newest) => break newest.map_or(Version(0), |newest| newest.version),
                Err(error) => assert_eq!(error.code(), "register_unavailable", "{error}"),
            }
        };
        assert!(saved.is_err() || newest == next, "an acknowledged version is gone");
    }
    let loaded = checkpoints.load(&job()).expect("an answer").expect("a version");
    assert!(loaded.bytes().expect("bytes") == &state(3));
    println!("\nversion 3 is whole");
}
