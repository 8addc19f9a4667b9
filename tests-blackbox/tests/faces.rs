//! What people and scripts are told by the command line: refusals with a next step, JSON, and lists that end.

use serde_json::{Value, json};
use std::os::unix::process::CommandExt;
use std::process::Output;
use sublet_blackbox::job::text;
use sublet_blackbox::user::is_root;
use sublet_blackbox::{GIB, Gpu, Service, Setup, ask};
use sublet_wire::Leases;

const LOCAL: u32 = 12_345;

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A command fails so, and says this.
fn refused(service: &Service, words: &[&str], code: i32, parts: &[&str]) {
    let output = service.cli(words);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {}", text(&output));
    for part in parts {
        assert!(said(&output).contains(part), "{words:?} says `{part}`: {}", said(&output));
    }
}

#[test]
fn a_refusal_says_what_to_do_next() {
    let service = Service::start();
    let lists_yours = "hint: `sublet ps` lists yours";
    for words in [&["end", "L999"][..], &["explain", "L999"], &["renew", "L999"], &["audit", "--lease", "L999"]] {
        refused(&service, words, 1, &["no such lease", lists_yours]);
    }
    refused(&service, &["run", "--", "no-such-command"], 127, &["`no-such-command` was not found", "hint: "]);
    refused(&service, &["run", "--time", "0s", "--", "true"], 64, &["a fixed term is from 1s to 7d", "hint: "]);
    refused(&service, &["run", "--priority", "11", "--", "true"], 64, &["from -10 to 10", "hint: "]);
    refused(&service, &["run", "--gpus", "65", "--", "true"], 64, &["from 1 to 64", "hint: "]);
    refused(&service, &["run", "--on", "7", "--", "true"], 64, &["no card here", "hint: `sublet cards`"]);
    refused(&service, &["cards", "drain", "7"], 64, &["there is no card `7`", "hint: "]);
    refused(&service, &["serve", "--config", "/no/such/file"], 78, &["/no/such/file", "hint: "]);
    for name in ["a\u{202e}b", "a\u{200b}b"] {
        refused(&service, &["run", "--name", name, "--", "true"], 64, &["`name` must", "invisible", "hint: "]);
    }
    assert_eq!(service.client().live_ids(), [""; 0]);
}

#[test]
fn who_is_no_operator_is_told_so_and_who_is_one() {
    if !is_root() {
        return eprintln!("skipped: only root can be somebody else");
    }
    let service = Service::start();
    service.client().grant(&ask(GIB, json!({})));
    for words in [&["ps", "--all"][..], &["cards", "drain", "0"]] {
        let output = service.command(words).uid(LOCAL).gid(LOCAL).output().expect("the command line");
        assert_eq!(output.status.code(), Some(77), "{words:?}: {}", text(&output));
        assert!(said(&output).contains("only an operator may do this"), "{}", said(&output));
        assert!(said(&output).contains("hint: operators are root"), "{}", said(&output));
    }
    assert!(service.cli(&["ps", "--all"]).status.success());
}

#[test]
fn a_lease_that_is_over_already_is_ended() {
    let service = Service::start();
    let lease = service.client().grant(&ask(GIB, json!({})));
    assert!(service.cli(&["end", &lease.id]).status.success());
    let again = service.cli(&["end", &lease.id]);
    assert_eq!(again.status.code(), Some(0), "{}", text(&again));
    assert!(said(&again).contains("was over already"), "{}", said(&again));
    let json = service.cli(&["end", "--json", &lease.id]);
    let shown: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(shown["id"], json!(lease.id));
}

#[test]
fn a_lease_without_processes_is_renewed_by_hand() {
    let service = Service::start();
    let detached = service.cli(&["lease", "--vram", "1G", "--ttl", "60s", "--detach", "--json"]);
    let lease: Value = serde_json::from_slice(&detached.stdout).expect("JSON");
    let epoch = lease["epoch"].as_u64().expect("an epoch").to_string();
    let plain = service.cli(&["renew", "L1"]);
    assert!(plain.status.success() && text(&plain).contains("L1 has "), "{}", text(&plain));
    let json = service.cli(&["renew", "L1", "--epoch", &epoch, "--json"]);
    let shown: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert!(shown["remaining_s"].as_f64().is_some_and(|left| left > 50.0), "{shown}");
    assert!(shown["expires_unix_s"].as_f64() > lease["expires_unix_s"].as_f64(), "{shown} after {lease}");
    let old = service.cli(&["renew", "L1", "--epoch", "1"]);
    assert!(!old.status.success() && said(&old).contains("epoch"), "{}", text(&old));
}

#[test]
fn with_json_everything_that_is_said_is_json() {
    let service = Service::start();
    let usage = service.cli(&["ps", "--json", "--al"]);
    assert_eq!(usage.status.code(), Some(64));
    let error: Value = serde_json::from_slice(&usage.stderr).expect("an error is JSON");
    assert_eq!(error["error"]["exit"], json!(64), "{error}");
    assert!(error["error"]["detail"].as_str().is_some_and(|detail| detail.contains("--al")), "{error}");
    let copy = service.dir().join("copy.db");
    let state = service.state_dir();
    let words =
        ["journal", "backup", "--json", "--state-dir", state.to_str().expect("plain"), copy.to_str().expect("plain")];
    let made = service.cli(&words);
    let made: Value = serde_json::from_slice(&made.stdout).unwrap_or_else(|_| panic!("JSON: {}", text(&made)));
    assert_eq!(made["to"], json!(copy));
    assert_eq!(made["bytes"].as_u64(), copy.metadata().ok().map(|found| found.len()));
}

#[test]
fn a_long_list_is_read_page_by_page_and_a_person_sees_all_of_it() {
    let service = Service::start_with(Setup { gpu: Gpu::Named("scripted:1x1TiB"), ..Setup::default() });
    let client = service.client();
    let asked: Vec<String> = (0..1_050).map(|_| client.grant(&ask(GIB / 2, json!({}))).id).collect();
    let first: Leases = client.get("/v1/leases").read();
    assert_eq!((first.leases.len(), first.more), (1_000, true));
    let last = &first.leases[999].id;
    let second: Leases = client.get(&format!("/v1/leases?after={last}")).read();
    assert!(!second.more);
    let listed: Vec<String> = first.leases.into_iter().chain(second.leases).map(|lease| lease.id).collect();
    assert_eq!(listed, asked);
    let shown = service.cli(&["ps", "--json"]);
    let all: Leases = serde_json::from_slice(&shown.stdout).expect("`ps --json` prints leases");
    assert_eq!((all.leases.len(), all.more), (1_050, false));
    assert_eq!(client.get("/v1/leases?after=L9999999").read::<Leases>().leases, []);
    assert_eq!(client.get("/v1/leases?after=nothing").code(), "bad_request");
}
