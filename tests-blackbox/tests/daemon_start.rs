//! What an operator says to the service before it starts.

use serde_json::json;
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use sublet_blackbox::binary::sublet;
use sublet_blackbox::service::{TestGpu, bare_command};
use sublet_blackbox::user::is_root;
use sublet_blackbox::{GIB, LONG, ServiceSetup, TestService, ask, until};
use sublet_wire::Gpus;

/// A user without any right.
const NOBODY: u32 = 12347;

#[test]
fn nothing_is_leased_on_an_unmanaged_gpu() {
    let config = Some("unmanaged = [\"1\"]\n".to_owned());
    let service = TestService::start_with(ServiceSetup {
        gpu: TestGpu::Named("scripted:2x24GiB"),
        config,
        ..ServiceSetup::default()
    });
    let client = service.client();
    let cards: Gpus = client.get("/v1/gpus").read();
    assert_eq!(cards.gpus[1].promisable_bytes, 0);
    assert!(client.get("/v1/gpus").text().contains("the configuration leaves it unmanaged"));
    let lease = client.grant(&ask(20 * GIB, json!({})));
    assert_eq!(lease.gpu_indices, [0]);
    client.queue(&ask(20 * GIB, json!({})));
    let named = client.queue(&ask(GIB, json!({"on": "1"})));
    let why = named.waiting.expect("it waits").why;
    assert!(why.contains("GPU 1 cannot be leased (the configuration leaves it unmanaged)"), "{why}");
}

#[test]
fn nothing_is_leased_while_unmanaged_names_a_gpu_that_does_not_exist() {
    let config = Some("unmanaged = [\"1\", \"7\"]\n".to_owned());
    let service = TestService::start_with(ServiceSetup {
        gpu: TestGpu::Named("scripted:2x24GiB"),
        config,
        ..ServiceSetup::default()
    });
    let waiting = service.client().queue(&ask(GIB, json!({})));
    let why = waiting.waiting.expect("it waits").why;
    assert!(why.contains("names GPU `7`, which this host does not have; correct it"), "{why}");
}

#[test]
fn a_users_own_configuration_is_found_and_a_wrong_one_stops_the_start() {
    if !is_root() {
        return eprintln!("skipped: it takes root to be a user with a home of its own");
    }
    let home = tempfile::tempdir().expect("a directory can be made");
    let folder = home.path().join(".config/sublet");
    fs::create_dir_all(&folder).expect("a directory can be made");
    fs::write(folder.join("sublet.toml"), "ttl = \"90s\"\nqueue_maximum = 5\n").expect("a file can be written");
    for path in [home.path(), &home.path().join(".config"), &folder] {
        chown(path, Some(NOBODY), Some(NOBODY)).expect("root can give files away");
    }
    let start = || {
        let mut command = bare_command(sublet(), home.path());
        command.args(["serve", "--gpu", "scripted:1x24GiB", "--state-dir", "state", "--socket", "s"]);
        command.uid(NOBODY).gid(NOBODY).stdin(Stdio::null());
        command.stderr(fs::File::create(home.path().join("log")).expect("a file")).spawn().expect("sublet")
    };
    let output_text = || fs::read_to_string(home.path().join("log")).unwrap_or_default();
    let mut wrong = start();
    let status = until("it gives up", LONG, || wrong.try_wait().ok().flatten().ok_or_else(output_text));
    assert!(!status.success() && output_text().contains("queue_maximum"), "{}", output_text());
    fs::write(folder.join("sublet.toml"), "ttl = \"90s\"\n").expect("a file can be written");
    let mut right = start();
    until("it serves", LONG, || if output_text().contains("ready on ") { Ok(()) } else { Err(output_text()) });
    let client = sublet_blackbox::TestClient::new(home.path().join("s"));
    let granted = until("it grants", LONG, || {
        let answer = client.post("/v1/leases", &ask(GIB, json!({"wait_s": 0})));
        if answer.status == 201 { Ok(answer.read::<sublet_wire::Lease>()) } else { Err(answer.text()) }
    });
    right.kill().expect("an own child can be killed");
    right.wait().expect("an own child can be waited for");
    let left = granted.remaining_s.expect("it has a term");
    assert!((80.0..=90.0).contains(&left), "its term is the file's: {left}");
    assert!(output_text().contains(".config/sublet/sublet.toml"), "it says which it read: {}", output_text());
}

#[test]
fn the_end_of_the_audit_trail_is_written_to_the_systems_log() {
    let mut service = TestService::start();
    service.client().grant(&ask(GIB, json!({})));
    assert!(service.stop().success());
    let state = service.state_dir().display().to_string();
    let verified = service.cli(&["journal", "verify", "--state-dir", &state]);
    let text = String::from_utf8_lossy(&verified.stdout).into_owned();
    let head = text.lines().find_map(|line| line.strip_prefix("head ")).expect("verify says where it ends");
    let (line, hash) = head.split_once(' ').expect("a number and a hash");
    let told = service.log();
    let last = told.lines().rev().find(|line| line.contains("the audit trail ends here")).expect("it is told");
    assert!(last.contains(&format!("line={line} ")) && last.contains(hash.trim()), "{last}\n{head}");
}

#[test]
fn manual_pages_are_written_for_every_command() {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let written = bare_command(sublet(), dir.path()).args(["man", "."]).output().expect("sublet");
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    for page in ["sublet.1", "sublet-run.1", "sublet-lease.1", "sublet-enforce-preview.1"] {
        let text = fs::read_to_string(dir.path().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(text.contains(".SH SYNOPSIS"), "{page}");
    }
}
