//! `eval "$(sublet lease)"` in real shells, and how a shell gives its lease back.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};
use sublet_blackbox::binary::{example, sublet};
use sublet_blackbox::service::bare_command;
use sublet_blackbox::{LONG, ServiceSetup, TestGpu, TestService, until};
use sublet_wire::Leases;

/// All that a lease sets and a shell may keep by mistake.
const VARIABLES: &str = "${SUBLET_LEASE-}|${SUBLET_FENCE-}|${SUBLET_PROOF-}|${SUBLET_SHIM_SOCKET-}|${LD_PRELOAD-}|\
                         ${CUDA_VISIBLE_DEVICES-}|${CUDA_DEVICE_ORDER-}|${LD_LIBRARY_PATH-}|${SUBLET_SOFT_STATE-}";

fn soft() -> TestService {
    TestService::start_with(ServiceSetup { gpu: TestGpu::Named("soft:1x24GiB"), ..ServiceSetup::default() })
}

/// A shell that finds `sublet` and the service.
fn shell(service: &TestService, shell: &str, script: &str) -> Command {
    let mut command = bare_command(Path::new(shell), service.dir());
    let folder = sublet().parent().expect("a folder").display();
    command.args(["-c", script]).env("SUBLET_SOCKET", service.dir().join("s"));
    command.env("PATH", format!("{folder}:/usr/sbin:/usr/bin:/sbin:/bin"));
    command
}

fn run(mut command: Command) -> Output {
    command.output().expect("a shell can be started")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The shells of this host that take the lines.
fn shells() -> Vec<&'static str> {
    let known = ["/bin/dash", "/bin/bash", "/usr/bin/zsh", "/usr/bin/ksh"];
    let found: Vec<_> = known.into_iter().filter(|file| Path::new(file).exists()).collect();
    assert!(found.iter().any(|file| !file.ends_with("zsh")), "no shell of {known:?} is installed");
    found
}

#[test]
fn release_as_typed_gives_the_lease_back_and_clears_its_variables() {
    let service = soft();
    for name in shells() {
        for verb in ["release", "release $SUBLET_LEASE", "end $SUBLET_LEASE", "stop $SUBLET_LEASE"] {
            let script = format!(
                "eval \"$(sublet lease --vram 4G)\" && test -n \"$LD_PRELOAD\" || exit 9; sublet {verb} >/dev/null; \
                 echo \"$? {VARIABLES}\""
            );
            let output = run(shell(&service, name, &script));
            assert_eq!(out(&output), "0 ||||||||\n", "{name}, {verb}: {}", output_text(&output));
            let leases: Leases = service.client().get("/v1/leases").read();
            assert!(leases.leases.iter().all(|lease| lease.ended.is_some()), "{name}, {verb}: {leases:?}");
            assert!(
                !output_text(&output).contains("still has the variables"),
                "{name}, {verb}: {}",
                output_text(&output)
            );
        }
    }
}

#[test]
fn what_was_set_before_the_lease_is_set_again() {
    let service = soft();
    let script = format!(
        "eval \"$(sublet lease --vram 4G)\"; sublet lease --check; sublet release; echo \"{VARIABLES}\"; \
         sublet no-such-verb 2>/dev/null; echo $?"
    );
    for name in shells() {
        let mut command = shell(&service, name, &script);
        command.env("CUDA_VISIBLE_DEVICES", "0,1").env("LD_LIBRARY_PATH", "/opt/x/lib");
        let output = run(command);
        let lines: Vec<String> = out(&output).lines().map(str::to_owned).collect();
        assert!(lines[0].ends_with(": 4 GiB on GPU 0") && lines[1].ends_with(" released"), "{name}: {lines:?}");
        assert_eq!(lines[2..], ["|||||0,1||/opt/x/lib|", "64"], "{name}: {}", output_text(&output));
    }
}

#[test]
fn other_commands_of_such_a_shell_are_as_ever() {
    let script = "eval $(sublet lease --vram 4G); sublet release L999; echo $? ${SUBLET_LEASE-}; sublet ps | wc -l; \
                  sublet release >/dev/null; eval \"$(sublet lease --vram 4G)\"; echo ${SUBLET_LEASE-}";
    // Where it is not quoted, zsh splits no words.
    for name in shells().into_iter().filter(|name| !name.ends_with("zsh")) {
        let output = run(shell(&soft(), name, script));
        assert_eq!(out(&output), "1 L1\n2\nL2\n", "{name}: {}", output_text(&output));
    }
}

#[test]
fn a_shell_under_run_clears_its_variables_with_eval() {
    let service = soft();
    let script = format!("sublet release L1; eval \"$(sublet release)\"; echo \"{VARIABLES}\"");
    let output = run(shell(&service, "/bin/sh", &format!("exec sublet run --vram 4G -- sh -c '{script}'")));
    assert_eq!(out(&output), "L1 released\n||||||||\n", "{}", output_text(&output));
    let hint = "this shell still has the variables of the lease; to clear them: eval \"$(sublet release)\"";
    assert!(output_text(&output).contains(hint), "{}", output_text(&output));
    let without = run(shell(&service, "/bin/sh", "sublet release"));
    assert_eq!(without.status.code(), Some(64));
    assert!(output_text(&without).contains("this shell has no lease: say which one"), "{}", output_text(&without));
}

#[test]
fn a_program_that_starts_on_a_lease_that_is_over_says_so_once() {
    let service = soft();
    let hold = example("hold");
    let path = sublet().display();
    // By its file `sublet` is no function of the shell, and clears nothing. A lease that was released counts until its GPU
    // was read again; only then is it over for a program that starts.
    let script = format!(
        "eval \"$(sublet lease --vram 4G)\"; {hold} 64MiB --seconds 0.1 --idle; echo released >&2; \
         {path} release L1; until {path} ps 2>&1 | grep -q 'no leases'; do sleep 0.1; done; exec {hold} 64MiB --idle"
    );
    let said = service.dir().join("said");
    let mut command = shell(&service, "/bin/sh", &script);
    let mut child = command.stderr(File::create(&said).expect("a file")).spawn().expect("a shell can be started");
    let over = "sublet: L1, the lease that this program was started on, is over: it uses the GPU without one; \
                `sublet run` asks for one\n";
    let told = until("it says that its lease is over", LONG, || {
        let told = fs::read_to_string(&said).unwrap_or_default();
        if told.contains(over) { Ok(told) } else { Err(told) }
    });
    child.kill().expect("an own child");
    child.wait().expect("an own child");
    let (before, after) = told.split_once("released\n").expect("the line between");
    assert!(!before.contains("is over"), "{before}");
    assert_eq!(after.matches(over).count(), 1, "{after}");
}
