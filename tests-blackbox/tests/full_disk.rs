//! A full disk stops new leases, and nothing else.
//!
//! The daemon gets a small disk of its own in a mount namespace. Where no such
//! disk can be had the test says that it was skipped.

use serde_json::json;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use sublet_blackbox::{GIB, LONG, MIB, Service, Setup, ask, until};
use sublet_wire::{LeaseState, Reason};

/// Far more than the journal of this test with its ballast.
const DISK: &str = "112m";

/// A command line that runs the rest of its arguments with a small disk at `disk`.
fn with_small_disk(disk: &Path) -> Option<Vec<String>> {
    let unshare: &[&str] =
        if rustix::process::geteuid().is_root() { &["--mount"] } else { &["--map-root-user", "--mount"] };
    let script = format!("mount -t tmpfs -o size={DISK} small {} && exec \"$@\"", disk.display());
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

#[test]
fn on_a_full_disk_reads_releases_and_expiries_go_on_and_asks_come_back_with_room() {
    let mount = tempfile::tempdir().expect("a directory can be made");
    let Some(through) = with_small_disk(mount.path()) else {
        eprintln!("skipped: no small disk can be mounted here (it takes root or user namespaces)");
        return;
    };
    let state = mount.path().join("state");
    let through =
        [through, ["sh", "-c", "mkdir -p \"$0\" && exec \"$@\"", &path_text(&state)].map(str::to_owned).to_vec()];
    // The state is rebuilt when the disk is full, and what ran then gets this grace.
    let config = Some("grace = \"5s\"\n".to_owned());
    let service =
        Service::start_with(Setup { state: Some(state), config, through: through.concat(), ..Setup::default() });
    let client = service.client();
    // The namespace's own view of its disk.
    let disk = PathBuf::from(format!("/proc/{}/root{}", service.pid(), mount.path().display()));
    assert!(disk.join("state").is_dir(), "the daemon's disk is reachable");

    let kept = client.grant(&ask(GIB, json!({"ttl_s": 1800})));
    let released = client.grant(&ask(GIB, json!({"ttl_s": 1800})));
    let expiring = client.grant(&ask(18 * GIB, json!({"ttl_s": 20})));
    let waiter = client.queue(&ask(20 * GIB, json!({})));

    fill(&disk.join("filler"));
    let refusal = until("asks are refused", LONG, || {
        let answer = client.post(
            "/v1/leases",
            &ask(384 * MIB, json!({"wait_s": 0, "ttl_s": 1, "tier": "interactive", "priority": 10})),
        );
        // What still fits into pages that the journal had already is granted.
        if answer.status < 300 || answer.code() == "no_room" { Err(answer.text()) } else { Ok(answer) }
    });
    assert_eq!(refusal.code(), "disk_full");
    assert_eq!(client.lease(&expiring.id).state, LeaseState::Active, "the disk was full before it expired");

    assert_eq!(client.get("/v1/cards").status, 200);
    assert_eq!(client.lease(&kept.id).state, LeaseState::Active);
    let answer = client.delete(&format!("/v1/leases/{}", released.id));
    assert_eq!(answer.status, 200, "a release works on a full disk: {}", answer.text());
    let ended = until("an expiry happens on a full disk", LONG, || client.lease(&expiring.id).ended.ok_or("active"));
    assert_eq!(ended.reason, Reason::Expired);
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
    assert_eq!(client.lease(&kept.id).epoch, kept.epoch);
    let status = client.lease(&released.id).ended.expect("it was released").reason;
    assert_eq!(status, Reason::Released);
}

fn path_text(path: &Path) -> String {
    path.to_str().expect("test paths are plain").to_owned()
}
