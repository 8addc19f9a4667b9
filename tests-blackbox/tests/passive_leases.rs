//! Programs without the library that were parked while idle: they stay parked while the GPU is needed, and come back when
//! a user asks for them, types at their terminal, or leaves the room unclaimed, and when they call CUDA.

use std::io::Write;
use std::process::{Child, Stdio};
use std::time::Duration;
use sublet_blackbox::binary::example;
use sublet_blackbox::programs::{UnleasedProgram, WrappedProgram, await_bytes, await_state, successful_output};
use sublet_blackbox::unleased::{await_found, await_unleased};
use sublet_blackbox::wait::throughout;
use sublet_blackbox::{LONG, MIB, ServiceSetup, TestGpu, TestService, until};
use sublet_wire::{LeaseState, ParkMethod};

const CONFIG: &str = r#"
ttl = "5m"
[preemption]
time_slice = "1s"
idle_after = "1s"
switching_max = "50%"
[parking]
ram = "8G"
keep_free = "256M"
ready = "off"
"#;

fn serve() -> TestService {
    let gpu = TestGpu::Named("soft:1x4GiB");
    TestService::start_with(ServiceSetup { gpu, config: Some(CONFIG.to_owned()), ..ServiceSetup::default() })
}

/// An idle program with 2 GiB that the driver alone can park, as L1.
fn adopted(service: &TestService, tier: &str) -> UnleasedProgram {
    let alone = UnleasedProgram::start_holding(service, 2048);
    await_found(service, &alone);
    successful_output(service, &["adopt", &alone.pid().to_string(), "--tier", tier]);
    await_bytes(&service.client(), "L1", 2048);
    alone
}

/// How often a lease was told to leave its GPU.
fn parks(service: &TestService, lease: &str) -> usize {
    let audit = successful_output(service, &["audit", "--lease", lease]);
    audit.lines().filter(|line| line.contains("of host memory are booked")).count()
}

#[test]
fn idle_interactive_program_stays_parked_while_a_batch_job_runs_and_resume_brings_it_back() {
    let service = serve();
    let client = service.client();
    let alone = adopted(&service, "interactive");
    let job = WrappedProgram::start_holding(&service, "3G", "2GiB", &[]);
    assert_eq!(await_state(&client, "L1", LeaseState::Parked).method, Some(ParkMethod::Driver));
    // Ten times as long as it takes to count as idle.
    throughout(Duration::from_secs(10), || {
        assert_eq!(client.lease("L1").state, LeaseState::Parked);
        assert_eq!(client.lease("L2").state, LeaseState::Active);
    });
    assert_eq!(parks(&service, "L1"), 1);
    let shown = successful_output(&service, &["explain", "L1"]);
    assert!(shown.contains("sublet resume L1"), "{shown}");
    successful_output(&service, &["resume", "L1"]);
    await_bytes(&client, "L1", 2048);
    assert!(parks(&service, "L2") >= 1, "the batch job left for it");
    await_state(&client, "L2", LeaseState::Active);
    job.finish("it was parked and came back");
    await_bytes(&client, "L1", 2048);
    alone.signal(rustix::process::Signal::TERM);
    assert_eq!(alone.end_signal(), None, "its memory is as it was written");
}

#[test]
fn two_programs_that_only_the_driver_can_park_take_turns() {
    let service = serve();
    let client = service.client();
    let alone = adopted(&service, "batch");
    let job = WrappedProgram::start(&service, &["--vram", "3G", "--no-shim", "--", &example("hold"), "2GiB"]);
    await_state(&client, "L1", LeaseState::Parked);
    await_bytes(&client, "L2", 2048);
    successful_output(&service, &["resume", "L1"]);
    await_bytes(&client, "L1", 2048);
    assert_eq!(client.lease("L2").method, Some(ParkMethod::Driver), "nothing limits it to its lease, so it left first");
    successful_output(&service, &["resume", "L2"]);
    await_bytes(&client, "L2", 2048);
    job.finish("it was parked and came back");
    await_bytes(&client, "L1", 2048);
    drop(alone);
}

#[test]
fn a_call_of_cuda_brings_a_parked_program_back() {
    let service = serve();
    let client = service.client();
    // For a batch job it leaves only while it is idle.
    let alone = adopted(&service, "interactive");
    let job = WrappedProgram::start_holding(&service, "3G", "2GiB", &[]);
    assert_eq!(await_state(&client, "L1", LeaseState::Parked).method, Some(ParkMethod::Driver));
    // It then reads its memory, which it cannot before it is back.
    alone.signal(rustix::process::Signal::TERM);
    assert_eq!(alone.end_signal(), None, "its memory is as it was written");
    let audit = successful_output(&service, &["audit", "--lease", "L1"]);
    assert!(audit.contains("L1 called CUDA, and waits for its GPUs"), "{audit}");
    drop(job);
}

/// A program on a terminal of its own, at which the test can type.
struct ProgramTerminal {
    script: Child,
    pid: u32,
}

impl ProgramTerminal {
    fn open(service: &TestService) -> ProgramTerminal {
        let (log, pid_file) = (service.dir().join("typescript"), service.dir().join("pid"));
        let inside = format!("{} 2048MiB --idle & echo $! > {}; exec cat", example("hold"), pid_file.display());
        let mut command = service.command(&["soft", "env", "--", "script", "-qefc", &inside]);
        command.arg(&log).stdin(Stdio::piped()).stdout(Stdio::null());
        let script = command.spawn().expect("a program");
        let pid = until("it has begun", LONG, || {
            let text = std::fs::read_to_string(&pid_file).unwrap_or_default();
            text.trim().parse::<u32>().map_err(|_| text)
        });
        ProgramTerminal { script, pid }
    }

    fn type_line(&mut self) {
        self.script.stdin.as_mut().expect("a pipe").write_all(b"x\n").expect("a terminal");
    }
}

impl Drop for ProgramTerminal {
    fn drop(&mut self) {
        // Both may have ended, which is what is wanted.
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

#[test]
fn input_at_its_terminal_brings_a_parked_program_back() {
    let service = serve();
    let client = service.client();
    let mut terminal = ProgramTerminal::open(&service);
    await_unleased(&service, terminal.pid, "it is found", |it| it.vram_bytes >= Some(2048 * MIB));
    successful_output(&service, &["adopt", &terminal.pid.to_string()]);
    await_bytes(&client, "L1", 2048);
    let job = WrappedProgram::start_holding(&service, "3G", "2GiB", &[]);
    await_state(&client, "L1", LeaseState::Parked);
    // The kernel notes the time of input in steps of 8 s.
    until("what was typed is noticed", LONG, || {
        terminal.type_line();
        let audit = successful_output(&service, &["audit", "--lease", "L1"]);
        if audit.contains("L1 got input at its terminal") { Ok(()) } else { Err(audit) }
    });
    await_bytes(&client, "L1", 2048);
    drop(job);
}
