//! What a real shell completes with the script of `sublet completions`: leases, GPUs, and commands to run.

use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use sublet_blackbox::binary::sublet;
use sublet_blackbox::{GIB, LONG, ServiceSetup, TestGpu, TestService, ask, until};
use sublet_wire::{Lease, LeaseState};

/// A service with a lease `train` on GPU 0 and a request `sweep` that waits, and a folder with a program and a file.
fn service() -> TestService {
    let service =
        TestService::start_with(ServiceSetup { gpu: TestGpu::Named("scripted:2x24GiB"), ..ServiceSetup::default() });
    let client = service.client();
    client.grant(&ask(20 * GIB, json!({"name": "train", "on": "0"})));
    client.queue(&ask(20 * GIB, json!({"name": "sweep", "on": "0"})));
    until("one is active and one waits", LONG, || {
        let states = ["L1", "L2"].map(|id| client.lease(id)).map(|lease: Lease| lease.state);
        if states == [LeaseState::Active, LeaseState::Waiting] { Ok(()) } else { Err(states) }
    });
    fs::create_dir(service.dir().join("work")).expect("a folder can be made");
    for name in ["tool-a.py", "tool-b.py"] {
        fs::write(service.dir().join("work").join(name), "").expect("a file can be written");
    }
    service
}

/// What a shell prints when it runs this, in the folder with the files, with `sublet` on its PATH.
fn printed(service: &TestService, shell: &str, arguments: &[&str]) -> Option<String> {
    let folder = sublet().parent().expect("a binary is in a folder");
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", folder.display());
    let mut command = Command::new(shell);
    command.env_clear().env("PATH", path).env("HOME", service.dir()).env("SUBLET_SOCKET", service.dir().join("s"));
    command.current_dir(service.dir().join("work")).args(arguments).stdin(Stdio::null());
    let output = match command.output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: there is no {shell} here");
            return None;
        }
        Err(error) => panic!("{shell}: {error}"),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{shell}: {}\n{said}", output.status);
    Some(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

fn script(service: &TestService, shell: &str) -> String {
    let output = service.cli(&["completions", shell]);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// What bash offers for the last of these words.
fn bash(service: &TestService, words: &[&str]) -> Vec<String> {
    let script = script(service, "bash");
    let last = words.last().expect("a word to complete");
    let call = format!(
        "COMP_WORDS=({}); COMP_CWORD={}; COMP_TYPE=9; _clap_complete_sublet sublet '{last}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        words.len() - 1
    );
    let offered =
        printed(service, "bash", &["--norc", "-c", &format!("{script}\n{call}")]).expect("bash is always there");
    offered.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_leases_gpus_and_the_command_to_run() {
    let service = service();
    assert_eq!(bash(&service, &["sublet", "explain", "L"]), ["L1", "L2"]);
    assert_eq!(bash(&service, &["sublet", "stop", "sw"]), ["sweep"]);
    assert_eq!(bash(&service, &["sublet", "park", "L"]), ["L1"], "a request that waits cannot be parked");
    assert_eq!(bash(&service, &["sublet", "stop", "--name", ""]), ["sweep", "train"]);
    assert_eq!(bash(&service, &["sublet", "run", "--on", ""]), ["0", "1"]);
    assert_eq!(bash(&service, &["sublet", "run", "--on", "0,"]), ["0,1"]);
    let programs = bash(&service, &["sublet", "run", "--", "sublet-example-ho"]);
    assert_eq!(programs, ["sublet-example-hold"]);
    assert_eq!(bash(&service, &["sublet", "run", "--vram", "1G", "--", "sh", "tool-"]), ["tool-a.py", "tool-b.py"]);
    let flags = bash(&service, &["sublet", "run", "--acc"]);
    assert_eq!(flags, ["--accept-smaller"]);
    assert_eq!(bash(&service, &["sublet", "expl"]), ["explain"]);
}

#[test]
fn without_a_daemon_nothing_is_completed_and_nothing_is_said() {
    let mut service = service();
    service.kill();
    assert!(bash(&service, &["sublet", "explain", "L"]).concat().is_empty());
    assert_eq!(bash(&service, &["sublet", "expl"]), ["explain"]);
}

#[test]
fn zsh_shows_the_name_and_state_of_each_lease() {
    let service = service();
    let script = script(&service, "zsh");
    let call = "words=(sublet explain L); CURRENT=3; _clap_dynamic_completer_sublet";
    let stubs = "compdef() { :; }\n_describe() { print -rl -- \"${(@P)3}\"; }\n";
    let Some(offered) = printed(&service, "zsh", &["-f", "-c", &format!("{stubs}{script}\n{call}")]) else { return };
    assert_eq!(offered, "L1:train, active\nL2:sweep, waiting");
}

#[test]
fn fish_shows_the_name_and_state_of_each_lease() {
    let service = service();
    let file = service.dir().join("sublet.fish");
    fs::write(&file, script(&service, "fish")).expect("a file can be written");
    let offers = |line: &str| {
        let call = format!("source {}; complete -C '{line}'", plain(&file));
        printed(&service, "fish", &["--no-config", "-c", &call])
    };
    let Some(offered) = offers("sublet explain L") else { return };
    assert_eq!(offered, "L1\ttrain, active\nL2\tsweep, waiting");
    assert_eq!(offers("sublet run -- sublet-example-ho").as_deref(), Some("sublet-example-hold"));
}

fn plain(path: &Path) -> &str {
    path.to_str().expect("test paths are plain")
}
