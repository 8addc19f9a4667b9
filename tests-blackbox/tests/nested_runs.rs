//! `sublet run` and `sublet lease` where a lease is there already: that one is used, and nothing waits for itself.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use sublet_blackbox::TestService;
use sublet_blackbox::binary::sublet;
use sublet_blackbox::programs::{WrappedProgram, await_state};
use sublet_blackbox::service::bare_command;
use sublet_blackbox::user::is_root;
use sublet_wire::LeaseState;

const OTHER: u32 = 12_346;

/// A shell that finds `sublet` and the service.
fn shell(service: &TestService, script: &str) -> Command {
    let mut shell = bare_command(Path::new("/bin/sh"), service.dir());
    let folder = sublet().parent().expect("a folder").display();
    shell.args(["-c", script]).env("SUBLET_SOCKET", service.dir().join("s"));
    shell.env("PATH", format!("{folder}:/usr/sbin:/usr/bin:/sbin:/bin"));
    shell
}

/// What a script prints and says that `sublet run` starts on 20 of the GPU's 24 GiB.
fn inside(service: &TestService, script: &str) -> Output {
    let mut command = shell(service, "exec sublet run --vram 20G --name outer -- sh -c \"$SCRIPT\"");
    command.env("SCRIPT", script).output().expect("a shell can be started")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_command_inside_a_lease_runs_on_that_lease() {
    let service = TestService::start();
    let output = inside(&service, "echo $SUBLET_LEASE; sublet run --vram 20G -- sh -c 'echo $SUBLET_LEASE; exit 7'");
    assert_eq!((out(&output).as_str(), output.status.code()), ("L1\nL1\n", Some(7)), "{}", output_text(&output));
    let said = output_text(&output);
    assert!(said.contains("runs on L1, which this shell already has (20 GiB on GPU 0)\n"), "{said}");
    assert!(said.contains("`--vram 20G` is ignored, because this command uses L1; `--new-lease` requests"), "{said}");
    assert_eq!(service.client().get("/v1/leases/L2").status, 404, "nothing else was asked for");
    let plain = inside(&service, "sublet run -- true");
    assert!(!String::from_utf8_lossy(&plain.stderr).contains("ignored"), "nothing was said that could be ignored");
}

#[test]
fn a_lease_that_is_over_is_not_used_and_a_new_one_is_requested() {
    let service = TestService::start();
    let script = "sublet release L1 >/dev/null; sublet run --vram 1G -- sh -c 'echo $SUBLET_LEASE'";
    let output = inside(&service, script);
    assert_eq!(out(&output), "L2\n", "{}", output_text(&output));
    let over = "L1, which this shell had, is over (lease L1 was released): asking for a new lease";
    assert!(output_text(&output).contains(over), "{}", output_text(&output));
}

#[test]
fn a_separate_lease_that_must_wait_says_which_lease_this_shell_keeps() {
    let service = TestService::start();
    let fits = inside(&service, "sublet run --new-lease --vram 1G -- sh -c 'echo $SUBLET_LEASE'");
    assert_eq!(out(&fits), "L2\n", "{}", output_text(&fits));
    assert!(output_text(&fits).contains("L2: 1 GiB on GPU 0\n"), "{}", output_text(&fits));
    let waits = inside(&service, "sublet run --new-lease --wait 1s --vram 20G -- true");
    assert_eq!(waits.status.code(), Some(124), "{}", output_text(&waits));
    let keeps = "L3, which this shell already has, keeps 20 GiB on GPU 0 meanwhile; if that is what this waits for: \
                 `sublet release L3`";
    assert!(output_text(&waits).contains(keeps), "{}", output_text(&waits));
}

#[test]
fn a_shell_inside_a_lease_keeps_that_lease() {
    let service = TestService::start();
    let script =
        "eval \"$(sublet lease --vram 20G)\"; echo $SUBLET_LEASE $?; sublet lease --check; sublet lease --json";
    let output = inside(&service, script);
    let printed = out(&output);
    assert!(printed.starts_with("L1 0\nL1: 20 GiB on GPU 0\n{\n"), "{printed}; {}", output_text(&output));
    let kept = "this shell already has L1 (20 GiB on GPU 0)";
    assert!(output_text(&output).contains(kept), "{}", output_text(&output));
}

#[test]
fn without_a_daemon_a_command_inside_a_lease_runs_on_that_lease() {
    let mut service = TestService::start();
    let go = service.dir().join("go");
    let script = format!(
        "until test -e {}; do sleep 0.05; done; {} run -- echo on $SUBLET_LEASE",
        go.display(),
        sublet().display()
    );
    let job = WrappedProgram::start(&service, &["--vram", "1G", "--", "sh", "-c", &script]);
    await_state(&service.client(), "L1", LeaseState::Active);
    service.kill();
    std::fs::write(&go, "").expect("a file");
    let stderr = job.stderr.clone();
    assert_eq!(job.end(), (Some(0), "on L1\n".to_owned()));
    let said = std::fs::read_to_string(stderr).expect("what it said");
    assert!(said.contains("no daemon answers: runs on L1, which this shell has by its environment"), "{said}");
}

#[test]
fn another_users_lease_in_the_environment_does_not_count() {
    if !is_root() {
        return eprintln!("skipped: only root can be another user");
    }
    let service = TestService::start();
    let job = WrappedProgram::start(&service, &["--vram", "1G", "--", "sleep", "3600"]);
    await_state(&service.client(), "L1", LeaseState::Active);
    let script = "SUBLET_LEASE=L1 sublet run --vram 1G -- sh -c 'echo $SUBLET_LEASE'";
    let output = shell(&service, script).uid(OTHER).gid(OTHER).output().expect("a shell");
    assert_eq!(out(&output), "L2\n", "{}", output_text(&output));
    assert!(output_text(&output).contains("is over (no lease of yours has this id)"), "{}", output_text(&output));
    drop(job);
}
