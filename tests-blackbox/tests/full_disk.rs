//! A full disk stops new leases, and nothing else; one on which nothing more fits at all stops whatever must
//! be written, loses nothing of it, and goes on by itself.
//!
//! The daemon gets a small disk of its own in a mount namespace. Where no such
//! disk can be had the tests say that they were skipped.

use serde_json::json;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use sublet_blackbox::{GIB, LONG, MIB, ServiceSetup, TestClient, TestService, ask, until};
use sublet_wire::{EndReason, Lease, LeaseState};
use tempfile::TempDir;

/// Far more than the journal of this test with its ballast.
const DISK: &str = "224m";
/// Less than the usual ballast needs.
const SMALL: &str = "70m";
/// Less than any.
const TINY: &str = "7m";

/// A command line that runs the rest of its arguments with a small disk at `disk`.
fn with_small_disk(size: &str, disk: &Path) -> Option<Vec<String>> {
    let unshare: &[&str] =
        if rustix::process::geteuid().is_root() { &["--mount"] } else { &["--map-root-user", "--mount"] };
    let script = format!("mount -t tmpfs -o size={size} small {} && exec \"$@\"", disk.display());
    let mut words = vec!["unshare".to_owned()];
    words.extend(unshare.iter().map(|word| (*word).to_owned()));
    words.extend(["--propagation", "private", "sh", "-c", &script, "sh"].map(str::to_owned));
    let works = Command::new(&words[0]).args(&words[1..]).arg("true").output().is_ok_and(|out| out.status.success());
    works.then_some(words)
}

/// Writes until there is no room for another byte.
fn fill(path: &Path) {
    let mut file = File::create(path).expect("a filler can be made");
    for size in [1 << 20, 1 << 12, 1] {
        let piece = vec![1; size];
        while file.write_all(&piece).is_ok() {}
    }
}

/// A service with a disk of its own, and the daemon's view of that disk.
struct Small {
    service: TestService,
    disk: PathBuf,
    _mount: TempDir,
}

impl Small {
    /// `None` where no such disk can be had.
    fn start(size: &str, cramped: bool) -> Option<Small> {
        let mount = tempfile::tempdir().expect("a directory can be made");
        let Some(through) = with_small_disk(size, mount.path()) else {
            eprintln!("skipped: no small disk can be mounted here (it takes root or user namespaces)");
            return None;
        };
        let state = mount.path().join("state");
        let make = ["sh", "-c", "mkdir -p -m 700 \"$0\" && exec \"$@\"", &path_text(&state)].map(str::to_owned);
        let through = [through, make.to_vec()].concat();
        // The state is rebuilt when the disk is full, and what ran then gets this grace.
        let config = Some("grace = \"5s\"\n".to_owned());
        let service = TestService::start_with(ServiceSetup {
            state: Some(state),
            config,
            through,
            cramped,
            ..ServiceSetup::default()
        });
        let disk = PathBuf::from(format!("/proc/{}/root{}", service.pid(), mount.path().display()));
        assert!(disk.join("state").is_dir(), "the daemon's disk is reachable");
        Some(Small { service, disk, _mount: mount })
    }

    fn ballast(&self) -> u64 {
        fs::metadata(self.disk.join("state/ballast")).map_or(0, |about| about.len())
    }

    /// CPU time that the daemon took so far.
    fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.service.pid())).expect("it runs");
        let fields: Vec<&str> = stat.rsplit(')').next().expect("a name").split_whitespace().collect();
        let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
        Duration::from_millis(ticks * 10)
    }

    fn log_lines(&self) -> usize {
        let log = fs::read(self.service.dir().join("log")).expect("it has a log");
        log.split(|byte| *byte == b'\n').count()
    }
}

/// Asks until the disk is full; what still fits into pages that the journal had already is granted.
fn ask_until_full(client: &TestClient) {
    let refusal = until("asks are refused", LONG, || {
        let more = json!({"wait_s": 0, "ttl_s": 1, "tier": "interactive", "priority": 10});
        let answer = client.post("/v1/leases", &ask(384 * MIB, more));
        if answer.status < 300 || answer.code() == "no_room" { Err(answer.text()) } else { Ok(answer) }
    });
    assert_eq!(refusal.code(), "disk_full");
}

#[test]
fn on_a_full_disk_reads_releases_and_expiries_go_on_and_requests_return_with_room() {
    let Some(small) = Small::start(DISK, false) else { return };
    assert_eq!(small.ballast(), 80 * MIB);
    goes_on_when_full(&small);
}

#[test]
fn a_disk_with_too_little_room_for_the_usual_ballast_has_a_smaller_one_that_does_the_same() {
    let Some(small) = Small::start(SMALL, false) else { return };
    assert!((20 * MIB..80 * MIB).contains(&small.ballast()), "{}", small.ballast());
    let said = small.service.log();
    assert!(said.contains("is small") && said.contains("instead of 80 MiB"), "{said}");
    goes_on_when_full(&small);
}

#[test]
fn leases_are_granted_again_on_a_disk_with_less_room_than_when_the_daemon_started() {
    let Some(small) = Small::start(DISK, false) else { return };
    assert_eq!(small.ballast(), 80 * MIB);
    let client = small.service.client();
    let filler = small.disk.join("filler");
    fill(&filler);
    ask_until_full(&client);

    // With the ballast's own 80 MiB there are 120 MiB now: less than twice that ballast.
    let file = File::options().write(true).open(&filler).expect("the filler can be opened");
    let length = file.metadata().expect("it has a length").len();
    file.set_len(length - 40 * MIB).expect("the filler can be cut short");
    until("requests are taken", LONG, || {
        let answer = client.post("/v1/leases", &ask(GIB, json!({})));
        if answer.status < 300 { Ok(()) } else { Err(answer.text()) }
    });
    assert_eq!(client.get("/readyz").status, 200);
    assert!((40 * MIB..80 * MIB).contains(&small.ballast()), "it is sized anew: {}", small.ballast());
}

fn goes_on_when_full(Small { service, disk, .. }: &Small) {
    let client = service.client();
    let kept = client.grant(&ask(GIB, json!({"ttl_s": 1800})));
    let released = client.grant(&ask(GIB, json!({"ttl_s": 1800})));
    let expiring = client.grant(&ask(18 * GIB, json!({"ttl_s": 20})));
    let waiter = client.queue(&ask(20 * GIB, json!({})));

    fill(&disk.join("filler"));
    ask_until_full(&client);
    assert_eq!(client.lease(&expiring.id).state, LeaseState::Active, "the disk was full before it expired");

    assert_eq!(client.get("/v1/gpus").status, 200);
    assert_eq!(client.lease(&kept.id).state, LeaseState::Active);
    let answer = client.delete(&format!("/v1/leases/{}", released.id));
    assert_eq!(answer.status, 200, "a release works on a full disk: {}", answer.text());
    let ended = until("an expiry happens on a full disk", LONG, || client.lease(&expiring.id).ended.ok_or("active"));
    assert_eq!(ended.reason, EndReason::Expired);
    assert_eq!(client.lease(&waiter.id).state, LeaseState::Waiting, "nothing is granted on a full disk");

    fs::remove_file(disk.join("filler")).expect("the filler can be removed");
    until("asks work again", Duration::from_secs(30), || {
        // It would have to wait, and a place in the queue is a promise too: it needs the disk.
        let answer = client.post("/v1/leases", &ask(20 * GIB, json!({})));
        if answer.status < 300 { Ok(()) } else { Err(answer.text()) }
    });
    until("the waiter is served", LONG, || match client.lease(&waiter.id).state {
        LeaseState::Active => Ok(()),
        state => Err(state),
    });
    assert_eq!(client.lease(&kept.id).fence, kept.fence);
    let status = client.lease(&released.id).ended.expect("it was released").reason;
    assert_eq!(status, EndReason::Released);
}

/// Writes as much as the daemon lets, until it has no room even for a renewal.
fn renew_until_refused(client: &TestClient, lease: &Lease) {
    let renew = json!({"fence": lease.fence});
    let refusal = until("not even a renewal can be written", LONG, || {
        let answer = client.post(&format!("/v1/leases/{}/renew", lease.id), &renew);
        if answer.status < 300 { Err(answer.text()) } else { Ok(answer) }
    });
    assert_eq!(refusal.code(), "disk_full");
    assert!(refusal.header("retry-after").is_some(), "it says when to come again");
}

#[test]
fn when_the_ballast_is_used_up_too_reads_go_on_and_the_rest_waits_for_room_without_toil() {
    let Some(small) = Small::start(SMALL, false) else { return };
    let client = small.service.client();
    let kept = client.grant(&ask(GIB, json!({"ttl_s": 1800})));
    let released = client.grant(&ask(GIB, json!({"ttl_s": 1800})));
    let expiring = client.grant(&ask(18 * GIB, json!({"ttl_s": 25})));
    let over = Instant::now() + Duration::from_secs(32);
    let waiter = client.queue(&ask(20 * GIB, json!({})));
    fill(&small.disk.join("filler"));
    ask_until_full(&client);
    fill(&small.disk.join("more"));
    renew_until_refused(&client, &kept);

    // Its time is over, and nothing can be written about that: it waits.
    assert_eq!(client.lease(&expiring.id).state, LeaseState::Active, "the disk was full before it expired");
    sleep(over.saturating_duration_since(Instant::now()));
    let (cpu, lines) = (small.cpu(), small.log_lines());
    for _ in 0..60 {
        for path in ["/v1/leases".to_owned(), format!("/v1/leases/{}", kept.id), "/v1/gpus".to_owned()] {
            let answer = client.get(&path);
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        }
        sleep(Duration::from_millis(50));
    }
    let (cpu, lines) = (small.cpu() - cpu, small.log_lines() - lines);
    assert!(cpu < Duration::from_millis(1500), "it took {cpu:?} of three seconds");
    assert!(lines <= 3, "{lines} lines were logged in three seconds:\n{}", small.service.log());
    let unready = client.get("/readyz");
    assert_eq!((unready.status, unready.code()), (507, "disk_full"));
    let refused = client.delete(&format!("/v1/leases/{}", released.id));
    assert_eq!((refused.status, refused.code()), (507, "disk_full"));
    assert_eq!(client.lease(&released.id).state, LeaseState::Active, "what was refused did not happen");
    assert_eq!(client.lease(&expiring.id).state, LeaseState::Active, "nothing is decided meanwhile");

    for name in ["filler", "more"] {
        fs::remove_file(small.disk.join(name)).expect("the filler can be removed");
    }
    until("a release is taken again", LONG, || {
        let answer = client.delete(&format!("/v1/leases/{}", released.id));
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    });
    until("the waiter is served", LONG, || match client.lease(&waiter.id).state {
        LeaseState::Active => Ok(()),
        state => Err(state),
    });
    assert_eq!(client.lease(&expiring.id).ended.expect("it expired").reason, EndReason::Expired);
    assert_eq!(client.lease(&kept.id).fence, kept.fence);
    assert_eq!(client.get("/readyz").status, 200);
    assert!(small.ballast() >= 20 * MIB, "it is back: {}", small.ballast());
}

#[test]
fn a_disk_with_no_room_for_any_ballast_grants_nothing_and_says_so() {
    let Some(small) = Small::start(TINY, true) else { return };
    let client = small.service.client();
    let unready = client.get("/readyz");
    assert_eq!((unready.status, unready.code()), (507, "disk_full"));
    let refused = client.post("/v1/leases", &ask(GIB, json!({})));
    assert_eq!((refused.status, refused.code()), (507, "disk_full"));
    assert_eq!(client.get("/v1/gpus").status, 200);
    let said = small.service.log();
    assert!(said.contains("too little room for a ballast"), "{said}");
    let doctor = small.service.cli(&["doctor"]);
    let shown = String::from_utf8_lossy(&doctor.stdout);
    assert!(shown.contains("not ready") && shown.contains("disk"), "{shown}");
}

fn path_text(path: &Path) -> String {
    path.to_str().expect("test paths are plain").to_owned()
}
