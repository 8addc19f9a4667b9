//! `sublet checkpoint` on stores that the library made, as a user sees it: whole outputs, in a cleared environment.

use expect_test::{Expect, expect};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use sublet::replicated::register::{ChainRegister, SqliteRegister};
use sublet::replicated::{
    ChainName, CheckpointName, CheckpointStore, FailureDomain, FenceEpoch, LogicalResourceName, PlacementPolicy,
    PolicyHash, ReplicaHealth, ReplicaId, ReplicaLocator, ReplicaPolicy, ReplicaRole, ReplicaSetLocator,
    ReplicatedCheckpoint, ResourceGeneration, SaveRequest, SchemaId, Version,
};
use tempfile::TempDir;

/// A store with two replicas, and a trainer's checkpoint in it.
struct SavedStore {
    dir: TempDir,
    checkpoints: ReplicatedCheckpoint,
    fence: FenceEpoch,
}

fn job() -> CheckpointName {
    CheckpointName::new("job:demo:latest")
}

fn checkpoints(store: &CheckpointStore, resource: &str) -> ReplicatedCheckpoint {
    let domain = FailureDomain::cell("lab", "disk");
    let replica = |id: &str| ReplicaLocator {
        replica_id: ReplicaId::new(id),
        domain: domain.clone(),
        role: ReplicaRole::Voter,
        health: ReplicaHealth::Healthy,
        epoch: FenceEpoch(1),
        content_generation: 1,
    };
    let locator = ReplicaSetLocator::new(ResourceGeneration(1), vec![replica("disk-1"), replica("disk-2")]);
    let policy = ReplicaPolicy::new(PlacementPolicy::new().allow(domain)).min_replicas(2).write_quorum(2);
    let (resource, schema) = (LogicalResourceName::new(resource), SchemaId::new("weights.v1"));
    ReplicatedCheckpoint::in_store(store, resource, schema, FenceEpoch(1), policy, locator, PolicyHash([0; 32]))
        .expect("checkpoints")
}

impl SavedStore {
    /// Steps 10, 20 and 30 as versions 1 to 3; a job has pinned the second.
    fn new() -> SavedStore {
        SavedStore::in_directory(tempfile::tempdir().expect("a directory"))
    }

    fn in_directory(dir: TempDir) -> SavedStore {
        let store = CheckpointStore::open(dir.path().join("store")).expect("a store");
        let checkpoints = checkpoints(&store, "training");
        let fence = checkpoints.open(&job()).expect("a fence");
        for version in 1..=3 {
            let request = SaveRequest::new(job(), Version(version - 1), fence).step(version * 10).keep(9);
            let request = request.part("weights", vec![version as u8; 2048]).part("loss.csv", b"1,2\n".to_vec());
            checkpoints.save(request).expect("a version");
        }
        checkpoints.pin(&job(), Version(2), "evaluation").expect("a pin");
        SavedStore { dir, checkpoints, fence }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn file(&self, replica: &str, version: &str, name: &str) -> PathBuf {
        self.path().join("replicas").join(replica).join("training/job:demo:latest").join(version).join(name)
    }

    fn damage(&self, path: &Path) {
        let mut bytes = fs::read(path).expect("a file");
        bytes[0] ^= 1;
        fs::remove_file(path).expect("a file");
        fs::write(path, bytes).expect("a file");
    }

    fn lose_register(&self) {
        for name in ["register.db", "register.db-wal", "register.db-shm"] {
            let path = self.path().join(name);
            if path.exists() {
                fs::remove_file(path).expect("a file");
            }
        }
    }

    fn run(&self, words: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sublet"));
        command.env_clear().env("SUBLET_CHECKPOINTS", self.path()).current_dir(self.dir.path()).arg("checkpoint");
        command.args(words.split_whitespace()).output().expect("the command line can be started")
    }

    /// Both streams and the exit code, without the folder of the test and without times.
    fn shown(&self, words: &str) -> String {
        let output = self.run(words);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
        let folder = self.dir.path().to_str().expect("a plain path").to_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        let stderr: String = stderr.lines().map(|line| format!("! {line}\n")).collect();
        let all = format!("{stdout}{stderr}exit {}\n", output.status.code().expect("an exit code"));
        without_times(&all.replace(&folder, "/tmp"))
    }

    fn check(&self, words: &str, expected: Expect) {
        expected.assert_eq(&self.shown(words));
    }

    /// What bash offers for the last word after `sublet checkpoint`, but for flags. The store is typed, if one is given.
    fn completed(&self, store: &str, words: &[&str]) -> Vec<String> {
        let sublet = Path::new(env!("CARGO_BIN_EXE_sublet"));
        let option = if store.is_empty() { vec![] } else { vec!["--store", store] };
        let line = [&["sublet", "checkpoint"], &option[..], words].concat();
        let quoted: Vec<String> = line.iter().map(|word| format!("'{word}'")).collect();
        let script = format!(
            "source <(sublet completions bash); COMP_WORDS=({}); COMP_CWORD={}; COMP_TYPE=9
             _clap_complete_sublet sublet '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            quoted.join(" "),
            line.len() - 1,
            line[line.len() - 1]
        );
        let path = format!("{}:/usr/bin:/bin", sublet.parent().expect("a folder").display());
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", &script]).env_clear().env("PATH", path).env("SUBLET_CHECKPOINTS", self.path());
        let output = bash.current_dir(self.dir.path()).output().expect("bash is always there");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        text.lines().filter(|line| !line.is_empty() && !line.starts_with("--")).map(str::to_owned).collect()
    }

    fn json_of_failure(&self, words: &str) -> Value {
        let output = self.run(&format!("{words} --json"));
        assert_eq!(output.status.code(), Some(1));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    fn json(&self, words: &str) -> Value {
        let output = self.run(&format!("{words} --json"));
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }
}

/// `3 s ago` becomes `now`, however long the test took, and columns are two spaces apart.
fn without_times(text: &str) -> String {
    let line = |line: &str| {
        let mut words: Vec<&str> = line.split(' ').collect();
        while let Some(at) = words.iter().position(|word| *word == "ago") {
            words.splice(at - 2..=at, ["now"]);
        }
        let indent = line.len() - line.trim_start().len();
        let columns = words.join(" ");
        let columns: Vec<&str> = columns.split("  ").map(str::trim).filter(|column| !column.is_empty()).collect();
        format!("{}{}", " ".repeat(indent), columns.join("  "))
    };
    text.lines().map(|text| line(text) + "\n").collect()
}

#[test]
fn checkpoints_and_versions_are_listed() {
    let store = SavedStore::new();
    store.check(
        "ls",
        expect![[r#"
            NAME  STEP  VERSION  SIZE  COPIES  SAVED  KEPT  FENCE  RESOURCE
            job:demo:latest  30  3  2 KiB  2  now  3  2  training
            exit 0
        "#]],
    );
    store.check(
        "ls demo",
        expect![[r#"
            VERSION  STEP  SIZE  FENCE  COPIES  SAVED  PINNED BY
                  1  10  2 KiB  2  2  now  -
                  2  20  2 KiB  2  2  now  evaluation
                  3  30  2 KiB  2  2  now  -
            exit 0
        "#]],
    );
    fs::remove_dir_all(store.file("disk-2", "000003", "")).expect("a copy");
    store.check(
        "ls job:demo:latest",
        expect![[r#"
            VERSION  STEP  SIZE  FENCE  COPIES  SAVED  PINNED BY
                  1  10  2 KiB  2  2  now  -
                  2  20  2 KiB  2  2  now  evaluation
                  3  30  2 KiB  2  1 of 2  now  -
            exit 0
        "#]],
    );
    let listed = store.json("ls");
    assert_eq!(listed["version"], 1);
    let newest = &listed["checkpoints"][0]["newest"];
    assert_eq!((newest["version"].as_u64(), newest["step"].as_u64()), (Some(3), Some(30)));
    assert_eq!(newest["copies"][1]["missing"], "it holds no copy");
    assert_eq!(store.json("ls demo")["versions"][1]["pinned_by"][0], "evaluation");
}

#[test]
fn a_version_is_shown_with_its_files_and_copies() {
    let store = SavedStore::new();
    store.check(
        "show demo",
        expect![[r#"
            job:demo:latest, version 3 (the newest)
              step 30, 2 KiB, saved now under fence 2
              resource training, schema weights.v1

            copies:
              disk-1
                /tmp/store/replicas/disk-1/training/job:demo:latest/000003
              disk-2
                /tmp/store/replicas/disk-2/training/job:demo:latest/000003

            FILE  SIZE
            weights  2 KiB
            loss.csv  4 B
            exit 0
        "#]],
    );
    store.damage(&store.file("disk-2", "000002", "sublet.json"));
    store.check(
        "show demo 2",
        expect![[r#"
            job:demo:latest, version 2
              step 20, 2 KiB, saved now under fence 2
              resource training, schema weights.v1
              pinned by evaluation

            copies:
              disk-1
                /tmp/store/replicas/disk-1/training/job:demo:latest/000002
              disk-2: its manifest is not the one that was committed

            FILE  SIZE
            weights  2 KiB
            loss.csv  4 B
            exit 0
        "#]],
    );
    store.check(
        "show demo 7",
        expect![[r#"
        ! error: version 7 was never committed
        ! hint: `sublet checkpoint ls` lists the versions there are
        exit 1
    "#]],
    );
    let shown = store.json("show demo 2");
    assert_eq!((shown["files"][0]["name"].as_str(), shown["is_newest"].as_bool()), (Some("weights"), Some(false)));
}

#[test]
fn an_export_is_ordinary_files_verified() {
    let store = SavedStore::new();
    store.check(
        "export demo 1 out/first",
        expect![[r#"
        ! copied version 1 to out/first: 2 files, 2 KiB, verified
        exit 0
    "#]],
    );
    assert_eq!(fs::read(store.dir.path().join("out/first/weights")).expect("a file"), vec![1; 2048]);
    store.damage(&store.file("disk-1", "000003", "weights"));
    store.check(
        "export demo out/newest",
        expect![[r#"
        ! part `weights`: the bytes from 0 on are damaged on replica `disk-1`: another copy was used
        ! copied version 3 to out/newest: 2 files, 2 KiB, verified
        ! hint: `sublet checkpoint scrub job:demo:latest` repairs the damaged copies
        exit 0
    "#]],
    );
    assert_eq!(fs::read(store.dir.path().join("out/newest/weights")).expect("a file"), vec![3; 2048]);
    store.check(
        "export demo out/newest",
        expect![[r#"
        ! error: `/tmp/out/newest` exists and is not an empty directory
        ! hint: name a directory that does not exist yet
        exit 64
    "#]],
    );
    store.damage(&store.file("disk-2", "000003", "weights"));
    store.check("export demo out/third", expect![[r#"
        ! error: version 3 has 0 whole copies of the 1 needed; disk-1: part `weights`: the bytes from 0 on are damaged; disk-2: part `weights`: the bytes from 0 on are damaged
        ! hint: mend or mount the replicas named above; `sublet checkpoint ls NAME` lists the other versions
        exit 1
    "#]]);
    assert!(!store.dir.path().join("out/third").exists());
    assert_eq!(store.json("export demo 2 out/second")["bytes"], 2052);
}

#[test]
fn an_export_keeps_an_empty_directory_that_exists() {
    use std::os::unix::fs::MetadataExt;
    let store = SavedStore::new();
    let out = store.dir.path().join("out");
    fs::create_dir(&out).expect("a directory");
    let number = fs::metadata(&out).expect("a directory").ino();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sublet"));
    command.env_clear().env("SUBLET_CHECKPOINTS", store.path()).current_dir(&out);
    let output = command.args(["checkpoint", "export", "demo", "."]).output().expect("it can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::metadata(&out).expect("a directory").ino(), number, "it is the same directory");
    let mut names: Vec<_> =
        fs::read_dir(&out).expect("files").map(|entry| entry.expect("a file").file_name()).collect();
    names.sort();
    assert_eq!(names, ["loss.csv", "weights"]);
    // Now it holds something.
    store.check(
        "export demo out",
        expect![[r#"
        ! error: `/tmp/out` exists and is not an empty directory
        ! hint: name a directory that does not exist yet
        exit 64
    "#]],
    );
}

#[test]
fn a_register_that_cannot_be_reached_is_waited_for_aloud() {
    let store = SavedStore::new();
    let socket = store.dir.path().join("no.sock");
    let config = format!("register = \"daemon:demo@{}\"\n[replicas]\ndisk-1 = \"none\"\n", socket.display());
    fs::write(store.dir.path().join("daemon.toml"), config).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_sublet"));
    command.env_clear().current_dir(store.dir.path()).args(["checkpoint", "ls", "--store", "daemon.toml"]);
    let mut waiting = command.stderr(Stdio::piped()).spawn().expect("the command line can be started");
    let mut line = String::new();
    BufReader::new(waiting.stderr.take().expect("a pipe")).read_line(&mut line).expect("a line");
    // It would wait for 30 s.
    waiting.kill().expect("it waits");
    waiting.wait().expect("it ends");
    assert!(line.starts_with(&format!("no daemon answers at {}; waiting up to 2", socket.display())), "{line}");
}

#[test]
fn a_bucket_that_cannot_be_reached_is_named_without_a_hint_about_saves() {
    let store = SavedStore::new();
    let config = "register = \"s3://bucket/a\"\n[replicas]\nb = \"s3://bucket/a\"\n[s3]\nregion = \"x\"\n\
                  endpoint = \"http://127.0.0.1:1\"\nallow_http = true\n";
    fs::write(store.dir.path().join("bucket.toml"), config).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_sublet"));
    command.env_clear().env("AWS_ACCESS_KEY_ID", "a").env("AWS_SECRET_ACCESS_KEY", "b").current_dir(store.dir.path());
    let output = command.args(["checkpoint", "ls", "--store", "bucket.toml"]).output().expect("it can be started");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the register of checkpoints cannot be reached: `s3://bucket/a/.register`"), "{said}");
    assert!(said.contains("hint: check what is named above, then try again"), "{said}");
}

#[test]
fn versions_are_removed_under_a_new_fence_or_refused_with_the_reason() {
    let store = SavedStore::new();
    store.check(
        "rm demo 1 3",
        expect![[r#"
        ! error: version 3 is kept: it is the newest
        ! hint: the newest version and pinned ones stay; the job that pinned a version can unpin it
        exit 1
    "#]],
    );
    store.check(
        "rm demo 2",
        expect![[r#"
        ! error: version 2 is kept: evaluation names it
        ! hint: the newest version and pinned ones stay; the job that pinned a version can unpin it
        exit 1
    "#]],
    );
    let request =
        |step: u64| SaveRequest::new(job(), Version(step - 1), store.fence).step(step * 10).bytes(vec![0]).keep(9);
    store.checkpoints.save(request(4)).expect("a refused call leaves the trainer its fence");
    store.check(
        "rm demo 1 3",
        expect![[r#"
        ! removed versions 1 and 3 of `job:demo:latest`, under fence 3
        ! hint: a program that saves this checkpoint now is refused as stale: start it again
        exit 0
    "#]],
    );
    assert!(!store.file("disk-1", "000001", "").exists() && !store.file("disk-2", "000003", "").exists());
    assert_eq!(store.checkpoints.save(request(5)).expect_err("the trainer is stale").code(), "fenced");
    store.check(
        "rm demo 1",
        expect![[r#"
        ! error: version 1 was pruned
        ! hint: `sublet checkpoint ls` lists the versions there are
        exit 1
    "#]],
    );
}

#[test]
fn a_register_from_before_the_newest_saves_is_named_and_the_newest_version_is_not_guessed() {
    let store = SavedStore::new();
    let (register, backup) = (store.path().join("register.db"), store.dir.path().join("backup"));
    let copy = |from: &Path, to: &Path| fs::copy(from, to).expect("a copy");
    let SavedStore { dir, checkpoints, fence } = store;
    drop(checkpoints);
    copy(&register, &backup);
    let reopened = crate::checkpoints(&CheckpointStore::open(dir.path().join("store")).expect("a store"), "training");
    let request = |name: CheckpointName, expected, fence| SaveRequest::new(name, Version(expected), fence);
    reopened.save(request(job(), 3, fence).step(40).keep(9).bytes(b"newest".to_vec())).expect("a version");
    let other = CheckpointName::new("job:other:latest");
    let other_fence = reopened.open(&other).expect("a fence");
    reopened.save(request(other, 0, other_fence).bytes(b"other".to_vec())).expect("a version");
    let store = SavedStore { dir, checkpoints: reopened, fence };
    store.lose_register();
    copy(&backup, &register);
    store.check(
        "ls",
        expect![[r#"
        NAME  STEP  VERSION  SIZE  COPIES  SAVED  KEPT  FENCE  RESOURCE
        job:demo:latest  30  3  2 KiB  behind  now  3  2  training
        job:other:latest  -  -  -  behind  -  0  1  training
        ! `job:demo:latest`: replica `disk-1` holds version 4, and the register knows none above 3
        ! `job:other:latest`: replica `disk-1` holds version 1, and the register knows none above 0
        ! hint: bring back the newest copy of the register, or make a new one with `sublet checkpoint rebuild`
        exit 1
    "#]],
    );
    store.check(
        "ls demo",
        expect![[r#"
        VERSION  STEP  SIZE  FENCE  COPIES  SAVED  PINNED BY
              1  10  2 KiB  2  2  now  -
              2  20  2 KiB  2  2  now  evaluation
              3  30  2 KiB  2  2  now  -
        ! error: replica `disk-1` holds version 4, and the register knows none above 3
        ! hint: bring back the newest copy of the register, or make a new one with `sublet checkpoint rebuild`
        exit 1
    "#]],
    );
    store.check(
        "export demo out/newest",
        expect![[r#"
        ! error: replica `disk-1` holds version 4, and the register knows none above 3
        ! hint: bring back the newest copy of the register, or make a new one with `sublet checkpoint rebuild`
        exit 1
    "#]],
    );
    store.check(
        "export demo 2 out/second",
        expect![[r#"
        ! replica `disk-1` holds version 4, and the register knows none above 3
        ! copied version 2 to out/second: 2 files, 2 KiB, verified
        exit 0
    "#]],
    );
    store.check(
        "export other out/other",
        expect![[r#"
        ! error: replica `disk-1` holds version 1, and the register knows none above 0
        ! hint: bring back the newest copy of the register, or make a new one with `sublet checkpoint rebuild`
        exit 1
    "#]],
    );
    assert_eq!(store.json_of_failure("ls")["checkpoints"][1]["problem"]["code"], "register_behind");
}

#[test]
fn a_chain_that_is_broken_does_not_hide_the_other_checkpoints() {
    let store = SavedStore::new();
    let register = SqliteRegister::open(store.path().join("register.db")).expect("a register");
    let chain = ChainName::parse("c/training/job:broken:latest").expect("a name");
    register.create(&chain, 1, b"not an entry").expect("an entry");
    store.check("ls", expect![[r#"
        NAME  STEP  VERSION  SIZE  COPIES  SAVED  KEPT  FENCE  RESOURCE
        job:broken:latest  -  -  -  broken  -  0  -  training
        job:demo:latest  30  3  2 KiB  2  now  3  2  training
        ! `job:broken:latest`: entry 1 of chain `c/training/job:broken:latest` cannot be used: expected ident at line 1 column 2
        ! hint: upgrade Sublet if another release wrote it; otherwise `sublet checkpoint rebuild` makes a new register
        exit 1
    "#]]);
    store.check(
        "ls broken",
        expect![[r#"
        ! error: entry 1 of chain `c/training/job:broken:latest` cannot be used: expected ident at line 1 column 2
        ! hint: upgrade Sublet if another release wrote it; otherwise `sublet checkpoint rebuild` makes a new register
        exit 1
    "#]],
    );
}

/// A disk in memory, mounted at a directory.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None` where none can be mounted.
    fn mount(at: &Path, size: &str) -> Option<SmallDisk> {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", size, "small"]).arg(at).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(SmallDisk(at.to_owned()));
        }
        eprintln!("skipped: no disk can be mounted here");
        None
    }

    /// Writes until there is no room for another byte.
    fn fill(&self) {
        let mut file = fs::File::create(self.0.join("filler")).expect("a file");
        while file.write_all(&[1; 4096]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(&self.0).status().expect("umount is always there");
        assert!(unmounted.success());
    }
}

#[test]
fn versions_can_be_removed_when_the_disk_is_full() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(disk) = SmallDisk::mount(dir.path(), "size=4m") else { return };
    let SavedStore { dir, checkpoints, .. } = SavedStore::in_directory(dir);
    // The trainer has ended, and the index of the register's log with it.
    drop(checkpoints);
    disk.fill();
    let refusal = CheckpointStore::open(dir.path().join("store")).map(|_| ()).expect_err("a full disk");
    assert_eq!(refusal.code(), "register_full");
    let run = |words: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sublet"));
        command.env_clear().env("SUBLET_CHECKPOINTS", dir.path().join("store")).arg("checkpoint");
        let output = command.args(words.split_whitespace()).output().expect("the command line can be started");
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    assert_eq!(run("ls demo").lines().count(), 4);
    run("rm demo 1");
    run("unpin demo 2 --for evaluation");
    run("rm demo 2");
    assert_eq!(run("ls demo").lines().count(), 2);
}

#[test]
fn a_version_is_kept_while_a_job_pins_it() {
    let store = SavedStore::new();
    store.check(
        "pin demo 1 --for sweep-3",
        expect![[r#"
        ! version 1 of `job:demo:latest` is kept for sweep-3
        exit 0
    "#]],
    );
    store.check(
        "pin demo 2 --for sweep-3",
        expect![[r#"
        ! version 2 of `job:demo:latest` is kept for evaluation and sweep-3
        exit 0
    "#]],
    );
    assert_eq!(store.json("pin demo 1 --for sweep-3")["pinned_by"], serde_json::json!(["sweep-3"]));
    // The trainer keeps its fence, and its saves prune nothing that is pinned.
    let request = SaveRequest::new(job(), Version(3), store.fence).step(40).bytes(vec![0]).keep(1);
    store.checkpoints.save(request).expect("the trainer goes on");
    let kept = store.json("ls demo");
    let kept: Vec<&Value> = kept["versions"].as_array().expect("a list").iter().map(|row| &row["version"]).collect();
    assert_eq!(kept, [1, 2, 4]);
    store.check(
        "unpin demo 1 --for evaluation",
        expect![[r#"
        ! version 1 of `job:demo:latest` was not kept for evaluation: nothing changed
        ! hint: it is still kept for sweep-3
        exit 0
    "#]],
    );
    store.check(
        "unpin demo 2 --for evaluation",
        expect![[r#"
        ! version 2 of `job:demo:latest` is no longer kept for evaluation
        ! hint: it is still kept for sweep-3
        exit 0
    "#]],
    );
    store.check(
        "unpin demo 1 --for sweep-3",
        expect![[r#"
        ! version 1 of `job:demo:latest` is no longer kept for sweep-3
        ! hint: no job keeps it: unless it is the newest, a later save may delete it
        exit 0
    "#]],
    );
    store.check(
        "rm demo 1",
        expect![[r#"
        ! removed version 1 of `job:demo:latest`, under fence 3
        ! hint: a program that saves this checkpoint now is refused as stale: start it again
        exit 0
    "#]],
    );
    store.check(
        "pin demo 3 --for sweep-3",
        expect![[r#"
        ! error: version 3 was pruned
        ! hint: `sublet checkpoint ls` lists the versions there are
        exit 1
    "#]],
    );
    store.check(
        "unpin demo 9 --for sweep-3",
        expect![[r#"
        ! error: version 9 was never committed
        ! hint: `sublet checkpoint ls` lists the versions there are
        exit 1
    "#]],
    );
    store.check(
        "pin demo 2 --for",
        expect![[r#"
        ! error: a value is required for '--for <JOB>' but none was supplied
        !
        ! For more information, try '--help'.
        exit 64
    "#]],
    );
}

#[test]
fn bash_completes_checkpoints_and_versions_of_the_store_that_is_typed() {
    let store = SavedStore::new();
    assert_eq!(store.completed("", &["show", ""]), ["demo"]);
    assert_eq!(store.completed("", &["pin", "j"]), ["job:demo:latest"]);
    assert_eq!(store.completed("", &["show", "demo", ""]), ["1", "2", "3"]);
    assert_eq!(store.completed("", &["rm", "job:demo:latest", "1", "3"]), ["3"]);
    assert_eq!(store.completed("", &["export", "demo", "stor"]), ["store/"], "the version may be left out");
    assert_eq!(store.completed("store", &["unpin", "--for", "x", "demo", "2"]), ["2"]);
    assert_eq!(store.completed("elsewhere", &["show", ""]), [""; 0]);
    assert!(!store.dir.path().join("elsewhere").exists(), "completion makes no store");
}

#[test]
fn a_scrub_repairs_copies_and_says_what_it_cannot_repair() {
    let store = SavedStore::new();
    store.check(
        "scrub demo",
        expect![[r#"
        job:demo:latest: 6 copies were whole, 0 repaired, 0 still damaged
        exit 0
    "#]],
    );
    store.damage(&store.file("disk-2", "000002", "weights"));
    store.check(
        "scrub demo",
        expect![[r#"
        repaired: version 2 on replica `disk-2`: part `weights`: the bytes from 0 on are damaged
        job:demo:latest: 5 copies were whole, 1 repaired, 0 still damaged
        exit 0
    "#]],
    );
    store.check(
        "scrub demo --fill disk-3",
        expect![[r#"
        repaired: version 1 on replica `disk-3`: it holds no copy
        repaired: version 2 on replica `disk-3`: it holds no copy
        repaired: version 3 on replica `disk-3`: it holds no copy
        job:demo:latest: 6 copies were whole, 3 repaired, 0 still damaged
        exit 0
    "#]],
    );
    for replica in ["disk-1", "disk-2", "disk-3"] {
        store.damage(&store.file(replica, "000003", "loss.csv"));
    }
    store.check(
        "scrub demo",
        expect![[r#"
        damaged: version 3 on replica `disk-1`: part `loss.csv`: the bytes from 0 on are damaged
        damaged: version 3 on replica `disk-2`: part `loss.csv`: the bytes from 0 on are damaged
        damaged: version 3 on replica `disk-3`: part `loss.csv`: the bytes from 0 on are damaged
        job:demo:latest: 6 copies were whole, 0 repaired, 3 still damaged
        ! hint: mend or mount the replicas named above, then scrub again
        exit 1
    "#]],
    );
    assert_eq!(store.json("scrub demo")["damaged"][0]["version"], 3);
}

#[test]
fn a_lost_register_is_noticed_and_rebuilt() {
    let store = SavedStore::new();
    store.check(
        "rebuild",
        expect![[r#"
            ! error: the register is not lost (chains: 1), and only an empty one can be rebuilt
            ! hint: to replace it, move `/tmp/store/register.db` away first, with its `-wal` and `-shm` files
            exit 1
        "#]],
    );
    store.lose_register();
    store.check(
        "ls",
        expect![[r#"
        ! error: the register is lost: it is empty, and replica `disk-1` holds versions of `job:demo:latest`
        ! hint: put the register back, or name the daemon that has it; `sublet checkpoint rebuild` makes a new one from the replicas
        exit 1
    "#]],
    );
    // The newest version as it is between its commit and its publication.
    for replica in ["disk-1", "disk-2"] {
        let nonce = fs::read_to_string(store.file(replica, "000003", "sublet.json")).expect("a manifest");
        let nonce = serde_json::from_str::<Value>(&nonce).expect("JSON")["nonce"].as_str().expect("a nonce").to_owned();
        let prepared = format!(".prepared-000003-f{}-{nonce}", store.fence);
        let published = store.file(replica, "000003", "");
        fs::rename(&published, published.with_file_name(prepared)).expect("a directory");
    }
    store.check(
        "rebuild",
        expect![[r#"
        NAME  VERSIONS  NEWEST  UNPROVEN  RESOURCE
        job:demo:latest  3  3  1  training
        ! the register is new: generation 2, 1 checkpoint
        ! version 3 of `job:demo:latest` may not have been acknowledged
        ! hint: start the programs of this store again: every older fence is refused
        exit 0
    "#]],
    );
    store.check(
        "ls demo",
        expect![[r#"
        VERSION  STEP  SIZE  FENCE  COPIES  SAVED  PINNED BY
              1  10  2 KiB  2  2  now  -
              2  20  2 KiB  2  2  now  -
              3  30  2 KiB  2  2  now  -
        exit 0
    "#]],
    );
    store.lose_register();
    assert_eq!(store.json("rebuild")["generation"], 3);
}

#[test]
fn a_replica_that_is_not_mounted_is_named() {
    let store = SavedStore::new();
    let config = store.dir.path().join("disks.toml");
    let text = "register = \"store/register.db\"\n[replicas]\ndisk-1 = \"store/replicas/disk-1\"\ndisk-2 = \"none\"\n";
    fs::write(&config, text).expect("a file");
    store.check(
        "ls --store disks.toml",
        expect![[r#"
            NAME  STEP  VERSION  SIZE  COPIES  SAVED  KEPT  FENCE  RESOURCE
            job:demo:latest  30  3  2 KiB  1  now  3  2  training
            ! replica `disk-2` cannot be read: No such file or directory (os error 2)
            exit 0
        "#]],
    );
    store.check(
        "scrub demo --store disks.toml",
        expect![[r#"
        job:demo:latest: 3 copies were whole, 0 repaired, 0 still damaged
        ! replica `disk-2` cannot be read: No such file or directory (os error 2)
        ! hint: mend or mount the replicas named above, then scrub again
        exit 1
    "#]],
    );
    store.lose_register();
    store.check(
        "rebuild --store disks.toml",
        expect![[r#"
        ! error: replica `disk-2` cannot be read: /tmp/none: No such file or directory (os error 2)
        ! hint: mount it; or say `--without disk-2`, and versions that only it holds are lost
        exit 1
    "#]],
    );
    store.check(
        "rebuild --store disks.toml --without disk-2",
        expect![[r#"
        NAME  VERSIONS  NEWEST  UNPROVEN  RESOURCE
        job:demo:latest  3  3  0  training
        ! the register is new: generation 2, 1 checkpoint
        ! hint: start the programs of this store again: every older fence is refused
        exit 0
    "#]],
    );
}

#[test]
fn a_name_that_is_not_there_or_not_clear_is_refused() {
    let store = SavedStore::new();
    store.check(
        "show model",
        expect![[r#"
        ! error: there is no checkpoint `model` in /tmp/store
        ! hint: `sublet checkpoint ls` lists those there are, `--store` names another store
        exit 1
    "#]],
    );
    store.check(
        "ls --store nowhere",
        expect![[r#"
        ! error: there is no store of checkpoints at `/tmp/nowhere`
        ! hint: name a store with `--store` or SUBLET_CHECKPOINTS; a program makes its store when it first saves
        exit 1
    "#]],
    );
    assert!(!store.dir.path().join("nowhere").exists());
    let other = checkpoints(&CheckpointStore::open(store.path()).expect("a store"), "evaluation");
    other.open(&job()).expect("a fence");
    store.check(
        "show demo",
        expect![[r#"
        ! error: checkpoints of evaluation and training have the name `demo`
        ! hint: choose one, such as with `--resource evaluation`
        exit 64
    "#]],
    );
    store.check(
        "show demo --resource evaluation",
        expect![[r#"
        ! error: nothing was saved in `job:demo:latest` yet
        exit 1
    "#]],
    );
    let refused = store.run("show model --json");
    let error: Value = serde_json::from_slice(&refused.stderr).expect("JSON");
    assert_eq!(error["error"]["code"], "no_such_checkpoint");
}
