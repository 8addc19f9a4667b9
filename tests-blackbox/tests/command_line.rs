//! What people and scripts are told by the command line: refusals with a next step, JSON, and lists that end.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Output;
use sublet_blackbox::programs::{WrappedProgram, await_bytes, text};
use sublet_blackbox::user::is_root;
use sublet_blackbox::{GIB, ServiceSetup, TestGpu, TestService, ask};
use sublet_wire::{LeaseState, Leases};

const LOCAL: u32 = 12_345;

fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A command fails so, and says this.
fn refused(service: &TestService, words: &[&str], code: i32, parts: &[&str]) {
    let output = service.cli(words);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {}", text(&output));
    for part in parts {
        assert!(output_text(&output).contains(part), "{words:?} says `{part}`: {}", output_text(&output));
    }
}

#[test]
fn a_refusal_says_what_to_do_next() {
    let service = TestService::start();
    let lists_yours = "hint: `sublet ps` lists yours";
    for words in [
        &["release", "L999"][..],
        &["stop", "L999"],
        &["explain", "L999"],
        &["renew", "L999"],
        &["audit", "--lease", "L999"],
    ] {
        refused(&service, words, 1, &["no such lease", lists_yours]);
    }
    refused(&service, &["run", "--", "no-such-command"], 127, &["`no-such-command` was not found", "hint: "]);
    refused(&service, &["run", "--time", "0s", "--", "true"], 64, &["a fixed term is from 1s to 7d", "hint: "]);
    refused(&service, &["run", "--priority", "11", "--", "true"], 64, &["from -10 to 10", "hint: "]);
    refused(&service, &["run", "--gpus", "65", "--", "true"], 64, &["from 1 to 64", "hint: "]);
    refused(&service, &["run", "--on", "7", "--", "true"], 64, &["no GPU here", "hint: `sublet gpus`"]);
    refused(&service, &["gpus", "drain", "7"], 64, &["there is no GPU `7`", "hint: "]);
    refused(&service, &["serve", "--config", "/no/such/file"], 78, &["/no/such/file", "hint: "]);
    refused(&service, &["run", "--vram", "-5G", "--", "true"], 64, &["size `-5G` is negative", "hint: write a number"]);
    refused(
        &service,
        &["run", "--mem", "8G", "--", "true"],
        64,
        &["there is no `--mem`", "hint: did you mean `--vram`"],
    );
    let larger = ["run", "--vram", "2G", "--accept-smaller", "4G", "--", "true"];
    refused(&service, &larger, 64, &["`--accept-smaller 4G` is not smaller than `--vram 2G`", "hint: "]);
    for name in ["a\u{202e}b", "a\u{200b}b"] {
        refused(&service, &["run", "--name", name, "--", "true"], 64, &["`name` must", "invisible", "hint: "]);
    }
    assert_eq!(service.client().live_ids(), [""; 0]);
}

#[test]
fn a_caller_that_is_no_operator_gets_the_names_of_the_operators() {
    if !is_root() {
        return eprintln!("skipped: only root can become another user");
    }
    let service = TestService::start();
    service.client().grant(&ask(GIB, json!({})));
    for words in [&["ps", "--all"][..], &["gpus", "drain", "0"]] {
        let output = service.command(words).uid(LOCAL).gid(LOCAL).output().expect("the command line");
        assert_eq!(output.status.code(), Some(77), "{words:?}: {}", text(&output));
        assert!(output_text(&output).contains("only an operator may do this"), "{}", output_text(&output));
        assert!(output_text(&output).contains("hint: operators are root"), "{}", output_text(&output));
    }
    assert!(service.cli(&["ps", "--all"]).status.success());
}

#[test]
fn another_users_lease_is_answered_like_one_that_does_not_exist() {
    if !is_root() {
        return eprintln!("skipped: only root can be another user");
    }
    let service = TestService::start();
    service.client().grant(&ask(GIB, json!({})));
    let told = |id: &str| {
        let output = service.command(&["release", id]).uid(LOCAL).gid(LOCAL).output().expect("the command line");
        (output.status.code(), output_text(&output).replace(id, "LEASE"))
    };
    let nothing = "error: LEASE: you have no such lease\nhint: `sublet ps` lists yours; leases of other users, and old \
                   ones, are not found\n";
    assert_eq!(told("L1"), (Some(1), nothing.to_owned()));
    assert_eq!(told("L1"), told("L999"));
}

#[test]
fn a_refusal_for_want_of_room_is_about_the_gpu_that_was_named() {
    let service =
        TestService::start_with(ServiceSetup { gpu: TestGpu::Named("scripted:2x24GiB"), ..ServiceSetup::default() });
    service.client().grant(&ask(22 * GIB, json!({"on": "1"})));
    let words = ["run", "--on", "1", "--no-wait", "--vram", "3G", "--", "true"];
    refused(&service, &words, 75, &["largest lease that could be granted: 1.8 GiB on GPU 1", "hint: "]);
    let any = ["run", "--no-wait", "--vram", "23G", "--gpus", "2", "--", "true"];
    refused(&service, &any, 75, &["23.8 GiB on GPU 0"]);
}

#[test]
fn two_daemons_in_the_environment_are_refused_with_a_sentence() {
    let service = TestService::start();
    let both = || {
        let mut command = service.command(&["ps"]);
        command.env("SUBLET_URL", "https://localhost:1");
        command
    };
    let output = both().output().expect("the command line");
    assert_eq!(output.status.code(), Some(64), "{}", text(&output));
    assert!(
        output_text(&output).contains("SUBLET_URL (https://localhost:1) and SUBLET_SOCKET ("),
        "{}",
        output_text(&output)
    );
    assert!(output_text(&output).contains("hint: unset one of them, or choose with `--url` or `--socket`"));
    let mut chosen = both();
    assert!(chosen.arg("--socket").arg(service.dir().join("s")).status().expect("the command line").success());
    let mut run =
        service.command(&["run", "--vram", "1G", "--socket", "s", "--", "sh", "-c", "echo ${SUBLET_URL-none}"]);
    let output = run.env("SUBLET_URL", "https://localhost:1").output().expect("the command line");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "none\n", "{}", output_text(&output));
}

#[test]
fn a_grant_is_printed_and_soft_gpus_are_mentioned_once() {
    let service =
        TestService::start_with(ServiceSetup { gpu: TestGpu::Named("soft:2x8GiB"), ..ServiceSetup::default() });
    let told: Vec<String> = (0..2).map(|_| output_text(&service.cli(&["run", "--vram", "2G", "--", "true"]))).collect();
    assert!(told[0].starts_with("L1: 2 GiB on GPU 0\nthese are soft "), "{told:?}");
    assert_eq!(told[1], "L2: 2 GiB on GPU 0\n");
    let two = service.cli(&["lease", "--vram", "2G", "--gpus", "2", "--detach"]);
    assert!(output_text(&two).starts_with("L3: 2 GiB on each of GPUs 0, 1\n"), "{}", output_text(&two));
}

#[test]
fn a_lease_that_was_far_too_large_gets_a_smaller_suggestion() {
    let service =
        TestService::start_with(ServiceSetup { gpu: TestGpu::Named("soft:1x24GiB"), ..ServiceSetup::default() });
    let job = WrappedProgram::start_holding(&service, "16G", "1200MiB", &["--idle"]);
    await_bytes(&service.client(), "L1", 1200);
    kill_process(Pid::from_child(&job.child), Signal::TERM).expect("an own child");
    let stderr = job.stderr.clone();
    assert_eq!(job.end().0, Some(0));
    let said = fs::read_to_string(stderr).expect("what it said");
    assert!(said.contains(" of 16 GiB: try --vram "), "{said}");
}

#[test]
fn a_lease_that_is_over_already_is_ended() {
    let service = TestService::start();
    let lease = service.client().grant(&ask(GIB, json!({})));
    assert!(service.cli(&["end", &lease.id]).status.success());
    service.client().await_lease("it is over", &lease.id, |lease| lease.state == LeaseState::Ended);
    let again = service.cli(&["end", &lease.id]);
    assert_eq!(again.status.code(), Some(0), "{}", text(&again));
    assert!(output_text(&again).contains("was over already"), "{}", output_text(&again));
    let json = service.cli(&["end", "--json", &lease.id]);
    let shown: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(shown["id"], json!(lease.id));
}

#[test]
fn a_lease_without_processes_is_renewed_by_hand() {
    let service = TestService::start();
    let detached = service.cli(&["lease", "--vram", "1G", "--ttl", "60s", "--detach", "--json"]);
    let lease: Value = serde_json::from_slice(&detached.stdout).expect("JSON");
    let fence = lease["fence"].as_u64().expect("an fence").to_string();
    let plain = service.cli(&["renew", "L1"]);
    assert!(plain.status.success() && text(&plain).contains("L1 has "), "{}", text(&plain));
    let json = service.cli(&["renew", "L1", "--fence", &fence, "--json"]);
    let shown: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert!(shown["remaining_s"].as_f64().is_some_and(|left| left > 50.0), "{shown}");
    assert!(shown["expires_unix_s"].as_f64() > lease["expires_unix_s"].as_f64(), "{shown} after {lease}");
    let old = service.cli(&["renew", "L1", "--fence", "1"]);
    assert!(!old.status.success() && output_text(&old).contains("fence"), "{}", text(&old));
}

#[test]
fn with_json_all_output_is_json() {
    let service = TestService::start();
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
    let service =
        TestService::start_with(ServiceSetup { gpu: TestGpu::Named("scripted:1x1TiB"), ..ServiceSetup::default() });
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
