//! Images of the disk as a power cut would leave it, at every recorded write.
//!
//! A preloaded recorder (`recorder.c`) notes what the daemon does to its
//! files; the client notes how much was recorded when each answer arrived. Each
//! image must hold what was answered before its cut. `SUBLET_CUTS=100000` cuts
//! everywhere, not at a sample.

use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use sublet_blackbox::binary::sublet;
use sublet_blackbox::change_log::{DiskChange, build_recorder, read, recorder_env};
use sublet_blackbox::disk_image::{Image, KeptChanges};
use sublet_blackbox::service::bare_command;
use sublet_blackbox::{MIB, ServiceSetup, TestClient, TestService, ask};
use sublet_wire::{Lease, LeaseState};

/// Enough to meet every kind of write, and a checkpoint of the WAL if there is one.
const ASKS: usize = 40;

/// What the client knows of one lease; each number is a length of the log.
struct Told {
    lease: Lease,
    granted_at: u64,
    release_sent_at: Option<u64>,
    released_at: Option<u64>,
}

#[test]
fn the_recorder_sees_all_that_a_program_does_to_its_files() {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let (state, log) = (dir.path().join("state"), dir.path().join("log"));
    fs::create_dir(&state).expect("a directory can be made");
    let script = "printf one > a; printf two >> a; mv a b; mkdir d; printf x > d/y; sync d/y; printf z > gone; rm gone; \
                  dd if=/dev/zero of=holes bs=1 seek=5000 count=1 2>/dev/null; truncate -s 3 b; sync b; sync .";
    let status = Command::new("sh")
        .args(["-c", script])
        .current_dir(&state)
        .envs(recorder_env(&build_recorder(dir.path()), &state, &log))
        .status()
        .expect("a shell can be started");
    assert!(status.success());
    let records = read(&fs::read(&log).expect("there is a log"));
    let expected: BTreeMap<String, Vec<u8>> =
        [("b", b"one".to_vec()), ("d/y", b"x".to_vec()), ("holes", vec![0; 5001])]
            .map(|(name, bytes)| (name.to_owned(), bytes))
            .into();
    assert_eq!(*Image::after(&records, KeptChanges::All).files(), expected);
    let copy = dir.path().join("copy");
    fs::create_dir(&copy).expect("a directory can be made");
    Image::after(&records, KeptChanges::All).write_to(&copy);
    assert_eq!(fs::read(copy.join("holes")).expect("it was written"), vec![0; 5001]);
    assert_eq!(fs::read(copy.join("d/y")).expect("it was written"), b"x");
}

#[test]
fn every_answer_survives_a_power_cut_at_every_write() {
    let tools = tempfile::tempdir().expect("a directory can be made");
    let (state, log) = (tools.path().join("state"), tools.path().join("log"));
    fs::create_dir(&state).expect("a directory can be made");
    let told = {
        let env = recorder_env(&build_recorder(tools.path()), &state, &log);
        let mut service = TestService::start_with(ServiceSetup { state: Some(state), env, ..ServiceSetup::default() });
        let told = work(&service.client(), &log);
        service.kill();
        told
    };
    let records = read(&fs::read(&log).expect("there is a log"));
    assert!(records.len() > ASKS, "the recorder saw only {} changes", records.len());

    let images = Images { dir: tools.path().join("images"), seen: Mutex::default() };
    let cuts = sample(&records, &told);
    let halves = cuts.chunks(cuts.len().div_ceil(2));
    thread::scope(|scope| {
        for half in halves {
            let (records, told, images) = (&records, &told, &images);
            scope.spawn(move || half.iter().for_each(|cut| images.check(&records[..*cut], told)));
        }
    });
    // The daemon itself on a few of them, the first while its tables are being made.
    for fifth in 0..=4 {
        let cut = (records.len() * fifth / 4).max(3);
        daemon_starts(&records[..cut], &told);
    }
}

/// Asks and releases, and notes how much was recorded at each answer.
fn work(client: &TestClient, log: &Path) -> Vec<Told> {
    let recorded = || fs::metadata(log).expect("there is a log").len();
    let mut told: Vec<Told> = Vec::new();
    for number in 0..ASKS {
        let body = ask(384 * MIB, json!({"ttl_s": 1800, "name": format!("ask {number}")}));
        // Answers to requests without a key are not stored.
        let answer = match number % 2 {
            0 => client.post("/v1/leases", &body),
            _ => client.post_once("/v1/leases", &format!("key {number}"), &body),
        };
        assert!(answer.status < 300, "{}", answer.text());
        told.push(Told { lease: answer.read(), granted_at: recorded(), release_sent_at: None, released_at: None });
        if number % 3 == 2 {
            let old = &mut told[number / 3];
            old.release_sent_at = Some(recorded());
            let answer = client.delete(&format!("/v1/leases/{}", old.lease.id));
            assert_eq!(answer.status, 200, "{}", answer.text());
            old.released_at = Some(recorded());
        }
    }
    told
}

/// Numbers of records before the cut: all of them, or as many as asked for, few of them from before
/// the first answer (there the files are made, and nothing can be lost).
fn sample(records: &[DiskChange], told: &[Told]) -> Vec<usize> {
    let wanted: usize = std::env::var("SUBLET_CUTS").ok().and_then(|cuts| cuts.parse().ok()).unwrap_or(120);
    let first = told.first().map_or(0, |told| told.granted_at);
    let made = records.iter().take_while(|record| record.end < first).count();
    let some = |from: usize, to: usize, wanted: usize| (from..=to).step_by((to - from).div_ceil(wanted.max(1)).max(1));
    some(1, made.max(1), wanted / 6).chain(some(made + 1, records.len(), wanted)).chain([records.len()]).collect()
}

struct Images {
    dir: PathBuf,
    /// Many cuts leave the same image; one look at each is enough.
    seen: Mutex<HashMap<u64, Listing>>,
}

/// What is compared of a lease, in a listing of the journal as in the daemon's.
#[derive(Clone, Debug, serde::Deserialize)]
struct Row {
    id: String,
    state: LeaseState,
    fence: Option<u64>,
}

/// What the command line says about an image: nothing, if there is no whole journal in it.
#[derive(Clone, Debug)]
enum Listing {
    NoJournal(String),
    Leases(BTreeMap<String, Row>),
}

impl Images {
    fn check(&self, records: &[DiskChange], told: &[Told]) {
        let cut = records.len();
        for kept in [KeptChanges::All, KeptChanges::TornLast, KeptChanges::Synced, KeptChanges::Some(cut as u64)] {
            let image = Image::after(records, kept);
            let fingerprint = image.fingerprint();
            let seen = self.seen.lock().expect("no other look failed").get(&fingerprint).cloned();
            let listing = seen.unwrap_or_else(|| {
                let listing = list(
                    &image,
                    &self.dir.join(format!("{fingerprint:x}-{cut}-{}", u8::from(kept == KeptChanges::All))),
                );
                self.seen.lock().expect("no other look failed").insert(fingerprint, listing.clone());
                listing
            });
            let end = records.last().map_or(0, |record| record.end);
            assert_holds(&listing, told, end, &format!("cut after {cut} changes, kept {kept:?}"));
        }
    }
}

fn list(image: &Image, dir: &Path) -> Listing {
    fs::create_dir_all(dir).expect("a directory can be made");
    image.write_to(dir);
    let run = |command: &str| {
        let mut sublet = bare_command(sublet(), dir);
        sublet.args(["journal", command, "--json", "--state-dir"]).arg(dir).output().expect("sublet can be started")
    };
    let verify = run("verify");
    assert!(verify.status.code().is_some(), "verify was killed: {verify:?}");
    let talk = String::from_utf8_lossy(&verify.stderr).into_owned();
    let listing = if verify.status.success() {
        let output = run("leases");
        assert!(output.status.success(), "{output:?}");
        Listing::Leases(leases(&output.stdout))
    } else {
        Listing::NoJournal(talk)
    };
    fs::remove_dir_all(dir).expect("an image can be removed");
    listing
}

/// `{"leases": [...]}` or a bare list of them.
fn leases(json: &[u8]) -> BTreeMap<String, Row> {
    let mut value: Value = serde_json::from_slice(json).expect("`journal leases --json` prints JSON");
    let list = if value.is_object() { value["leases"].take() } else { value };
    let leases: Vec<Row> = serde_json::from_value(list).expect("a list of leases");
    leases.into_iter().map(|lease| (lease.id.clone(), lease)).collect()
}

fn assert_holds(listing: &Listing, told: &[Told], end: u64, cut: &str) {
    let answered: Vec<&Told> = told.iter().filter(|told| told.granted_at <= end).collect();
    let leases = match listing {
        Listing::Leases(leases) => leases,
        Listing::NoJournal(talk) => {
            assert!(answered.is_empty(), "{cut}: the journal does not verify, but something was answered: {talk}");
            return;
        }
    };
    for told in answered {
        let id = &told.lease.id;
        let found = leases.get(id).filter(|found| matches!(found.state, LeaseState::Active | LeaseState::Waiting));
        if told.released_at.is_some_and(|at| at <= end) {
            assert!(found.is_none(), "{cut}: {id} was released, but is {found:?}");
        } else if told.release_sent_at.is_none_or(|at| at >= end) {
            let found = found.unwrap_or_else(|| panic!("{cut}: {id} was granted, but is gone"));
            assert!(told.lease.fence.is_none() || found.fence == told.lease.fence, "{cut}: {found:?}");
        }
    }
}

fn daemon_starts(records: &[DiskChange], told: &[Told]) {
    let end = records.last().map_or(0, |record| record.end);
    for kept in [KeptChanges::TornLast, KeptChanges::Synced] {
        let dir = tempfile::tempdir().expect("a directory can be made");
        Image::after(records, kept).write_to(dir.path());
        let service =
            TestService::start_with(ServiceSetup { state: Some(dir.path().to_path_buf()), ..ServiceSetup::default() });
        let client = service.client();
        let all: sublet_wire::Leases = client.get("/v1/leases").read();
        let row = |lease: Lease| Row { id: lease.id, state: lease.state, fence: lease.fence };
        let leases = all.leases.into_iter().map(|lease| (lease.id.clone(), row(lease))).collect();
        let cut = format!("daemon after {} changes, kept {kept:?}", records.len());
        assert_holds(&Listing::Leases(leases), told, end, &cut);
        let highest = told.iter().filter(|told| told.granted_at <= end).filter_map(|told| told.lease.fence).max();
        let fresh = client.grant(&ask(384 * MIB, json!({})));
        assert!(fresh.fence > highest, "{cut}: epochs grow: {fresh:?} after {highest:?}");
    }
}
