//! A journal that lost acknowledged lines is noticed at the start, and a journal that is moved away while the daemon
//! runs ends the daemon.
//!
//! The daemon is killed with its last lines in the write-ahead log only, and the log is damaged. Nothing is granted
//! until an operator accepts the loss; reads and releases go on.

use serde_json::json;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use sublet_blackbox::{GIB, LONG, MIB, TestService, ask, until};
use sublet_wire::{AuditPage, Lease, LeaseState};

/// Waits until the last line of the log is noted beside the journal.
fn await_note(service: &TestService) {
    let page: AuditPage = service.client().get("/v1/audit?after=0&limit=1000").read();
    let last = page.lines.last().expect("there are lines").seq;
    let noted = format!("\"seq\":{last},");
    until("the head is noted", LONG, || {
        let bytes = fs::read(service.state_dir().join("journal.head")).map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if text.contains(&noted) { Ok(()) } else { Err(text) }
    });
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A service with a lease in its database and `LOST` more in its write-ahead log, killed and damaged.
fn damaged(damage: impl FnOnce(&Path)) -> (TestService, Lease, Vec<Lease>) {
    const LOST: usize = 10;
    let mut service = TestService::start();
    let client = service.client();
    let kept = client.grant(&ask(GIB, json!({"ttl_s": 1800})));
    // A clean stop copies the write-ahead log into the database.
    assert!(service.stop().success());
    service.restart();
    let lost: Vec<Lease> = (0..LOST).map(|_| client.grant(&ask(384 * MIB, json!({"ttl_s": 1800})))).collect();
    await_note(&service);
    service.kill();
    damage(&service.state_dir().join("journal.db-wal"));
    (service, kept, lost)
}

fn is_noticed_and_accepted(mut service: TestService, kept: &Lease, lost: &[Lease]) {
    let client = service.client();
    let state_dir = service.state_dir().display().to_string();
    let verify = ["journal", "verify", "--state-dir", &state_dir];
    let found = service.cli(&verify);
    assert!(!found.status.success());
    let said = text(&found.stdout);
    assert!(said.contains("lines of the journal are missing") && said.contains("NOT whole"), "{said}");
    assert!(said.contains("docs/backup.md") && said.contains("accept-loss"), "{said}");

    service.restart_without_grants();
    let said = service.log();
    assert!(said.contains("no new leases") && said.contains("lines of the journal are missing"), "{said}");
    let unready = client.get("/readyz");
    assert_eq!((unready.status, unready.code()), (503, "journal_loss"));
    let doctor = service.cli(&["doctor"]);
    assert!(text(&doctor.stdout).contains("lines of the journal are missing"), "{}", text(&doctor.stdout));
    assert_eq!(client.lease(&kept.id).state, LeaseState::Active, "reads go on");
    for lease in lost {
        assert_eq!(client.get(&format!("/v1/leases/{}", lease.id)).code(), "no_such_lease");
    }
    let refused = client.post("/v1/leases", &ask(GIB, json!({})));
    assert_eq!((refused.status, refused.code()), (503, "journal_loss"), "{}", refused.text());

    // A restart forgets nothing of it.
    assert!(service.stop().success());
    service.restart_without_grants();
    assert_eq!(client.get("/readyz").code(), "journal_loss");
    let released = client.delete(&format!("/v1/leases/{}", kept.id));
    assert_eq!(released.status, 200, "releases go on: {}", released.text());

    let accepted = service.cli(&["journal", "accept-loss"]);
    assert!(accepted.status.success(), "{}", text(&accepted.stderr));
    assert!(text(&accepted.stderr).contains("lines of the journal are missing"), "{}", text(&accepted.stderr));
    let next = client.grant(&ask(GIB, json!({})));
    let number = |lease: &Lease| lease.id.trim_start_matches('L').parse::<u64>().expect("a number");
    assert!(lost.iter().all(|lease| number(lease) < number(&next) && lease.fence < next.fence), "{next:?}");
    let again = service.cli(&["journal", "accept-loss"]);
    assert!(!again.status.success() && text(&again.stderr).contains("no line"), "{}", text(&again.stderr));
    let trail: AuditPage = client.get("/v1/audit?after=0&limit=1000").read();
    let line = trail.lines.iter().find(|line| line.sentence.contains("accepts a loss")).expect("it is recorded");
    assert!(line.sentence.contains("lines of the journal are missing"), "{line:?}");

    await_note(&service);
    service.kill();
    service.restart();
    assert_eq!(client.lease(&next.id).state, LeaseState::Active);
    let found = service.cli(&verify);
    assert!(found.status.success(), "{}", text(&found.stdout));
}

#[test]
fn a_lost_write_ahead_log_stops_grants_until_an_operator_accepts_it() {
    let (service, kept, lost) = damaged(|wal| fs::remove_file(wal).expect("the log can be removed"));
    is_noticed_and_accepted(service, &kept, &lost);
}

#[test]
fn a_flipped_bit_in_the_write_ahead_log_stops_grants_until_an_operator_accepts_it() {
    let flip = |wal: &Path| {
        let file = OpenOptions::new().read(true).write(true).open(wal).expect("the log can be opened");
        // In the salt of the header: no frame fits it any more.
        let mut byte = [0];
        file.read_exact_at(&mut byte, 17).expect("the log can be read");
        file.write_all_at(&[byte[0] ^ 1], 17).expect("the log can be written");
    };
    let (service, kept, lost) = damaged(flip);
    is_noticed_and_accepted(service, &kept, &lost);
}

#[test]
fn a_backup_is_checked_without_a_head_beside_it() {
    let service = TestService::start();
    service.client().grant(&ask(GIB, json!({})));
    let (state, copy) = (service.state_dir().display().to_string(), service.dir().join("copy.db"));
    let copy = copy.display().to_string();
    let made = service.cli(&["journal", "backup", "--state-dir", &state, &copy]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let found = service.cli(&["journal", "verify", "--state-dir", &copy]);
    assert!(found.status.success());
    assert!(text(&found.stdout).contains("there is no `journal.head` beside the journal"), "{}", text(&found.stdout));
}

/// Moves something of a state directory away.
type Way = fn(&Path);

#[test]
fn a_daemon_ends_if_its_journal_is_moved_away_and_says_what_to_do() {
    let ways: [(&str, Way); 3] = [
        ("the state directory is renamed", |state| {
            fs::rename(state, state.with_extension("elsewhere")).expect("it can be renamed");
        }),
        ("the journal is removed", |state| fs::remove_file(state.join("journal.db")).expect("it can be removed")),
        ("its log is removed", |state| fs::remove_file(state.join("journal.db-wal")).expect("it can be removed")),
    ];
    for (what, way) in ways {
        let mut service = TestService::start();
        service.client().grant(&ask(GIB, json!({})));
        way(&service.state_dir());
        let status = until(what, LONG, || service.exited().ok_or("it runs"));
        // The unit in `dist` does not start it again then.
        assert_eq!(status.code(), Some(66), "{what}: {}", service.log());
        let said = service.log();
        assert!(
            said.contains("was removed, replaced or moved") && said.contains("put the state directory back"),
            "{said}"
        );
    }
}
