//! Ends that come from outside: a terminal that is closed, and SIGTERM where no daemon can help.

use rustix::process::{Pid, Signal, kill_process};
use sublet_blackbox::binary::example;
use sublet_blackbox::programs::{WrappedProgram, await_bytes, await_state, successful_output};
use sublet_blackbox::unleased::is_alive;
use sublet_blackbox::{MIB, ProgramTerminal, ServiceSetup, TestGpu, TestService};
use sublet_wire::{Lease, LeaseState};

#[test]
fn a_terminal_that_is_closed_ends_its_command_and_the_lease() {
    let service = TestService::start();
    let client = service.client();
    let mut terminal = ProgramTerminal::open(service.command(&["run", "--vram", "4G", "--", "sleep", "3600"]));
    await_state(&client, "L1", LeaseState::Active);
    let program = client.await_lease("its program is seen", "L1", |lease| lease.pids.len() >= 2).pids;
    terminal.close();
    assert_eq!(terminal.ended().code(), Some(129), "128 and SIGHUP");
    client.await_lease("the lease ends", "L1", |lease| lease.ended.is_some());
    assert!(program.iter().all(|pid| !is_alive(*pid)), "{program:?}");
}

#[test]
fn a_program_that_wants_to_outlive_its_terminal_does_with_its_lease() {
    let service = TestService::start();
    let client = service.client();
    let go = service.dir().join("go");
    let script = format!("trap '' HUP; echo begun; until test -e {}; do sleep 0.05; done; exit 3", go.display());
    let mut terminal = ProgramTerminal::open(service.command(&["run", "--vram", "4G", "--", "sh", "-c", &script]));
    terminal.await_screen_text("begun");
    terminal.close();
    sublet_blackbox::wait::throughout(std::time::Duration::from_secs(1), || {
        assert_eq!(terminal.child.try_wait().expect("an own child"), None, "{}", terminal.screen_text());
        assert_eq!(client.lease("L1").state, LeaseState::Active);
    });
    std::fs::write(&go, "").expect("a file");
    assert_eq!(terminal.ended().code(), Some(3), "nothing that could not be said ends it");
}

#[test]
fn a_wait_ends_with_its_terminal() {
    let service = TestService::start();
    let client = service.client();
    let full = WrappedProgram::start(&service, &["--vram", "20G", "--", "sleep", "3600"]);
    await_state(&client, "L1", LeaseState::Active);
    let mut terminal = ProgramTerminal::open(service.command(&["run", "--vram", "20G", "--", "true"]));
    await_state(&client, "L2", LeaseState::Waiting);
    terminal.close();
    assert_eq!(terminal.ended().code(), Some(129));
    client.await_lease("it left the queue", "L2", |lease| lease.ended.is_some());
    drop(full);
}

#[test]
fn a_parked_program_ends_on_sigterm_without_a_daemon() {
    let mut service =
        TestService::start_with(ServiceSetup { gpu: TestGpu::Named("soft:1x24GiB"), ..ServiceSetup::default() });
    let job = WrappedProgram::start_holding(&service, "4G", "2GiB", &["--idle"]);
    await_bytes(&service.client(), "L1", 2048);
    successful_output(&service, &["park", "L1"]);
    service.kill();
    kill_process(Pid::from_child(&job.child), Signal::TERM).expect("an own child");
    let stderr = job.stderr.clone();
    let (code, printed) = job.end();
    let said = std::fs::read_to_string(stderr).expect("what it said");
    assert_eq!((code, printed.as_str()), (Some(137), ""), "{said}");
    assert!(said.contains("L1 is parked, and no daemon answers that could resume it"), "{said}");
}

#[test]
fn a_program_that_the_driver_parked_comes_back_to_end_in_order() {
    let service =
        TestService::start_with(ServiceSetup { gpu: TestGpu::Named("soft:1x4GiB"), ..ServiceSetup::default() });
    let hold = example("hold");
    let mut job = WrappedProgram::start(&service, &["--vram", "3G", "--no-shim", "--", &hold, "512MiB", "--idle"]);
    assert!(job.line().starts_with("holds "), "{}", job.output_text());
    let can_be_parked = |lease: &Lease| lease.not_parkable.is_none() && lease.seen_bytes >= Some(512 * MIB);
    service.client().await_lease("it can be parked", "L1", can_be_parked);
    successful_output(&service, &["park", "L1"]);
    job.finish("it was parked by the driver");
}
