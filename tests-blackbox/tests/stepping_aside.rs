//! GPUs step aside for a game or a desktop program, on soft GPUs, with real programs that know nothing of it.

use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Child;
use std::time::{SystemTime, UNIX_EPOCH};
use sublet_blackbox::binary::example;
use sublet_blackbox::programs::{WrappedProgram, await_bytes, await_state, successful_output, text};
use sublet_blackbox::user::is_root;
use sublet_blackbox::{LONG, ServiceSetup, TestClient, TestGpu, TestService, until};
use sublet_wire::{GpuState, LeaseState};

/// Terms so long that nothing comes to its end by itself, and no memory kept ready.
const CONFIG: &str = r#"
ttl = "5m"
grace = "1s"
[preemption]
idle_after = "2s"
driver = "off"
[parking]
ram = "4G"
keep_free = "256M"
ready = "off"
"#;

fn serve(gpu: &'static str) -> TestService {
    serve_with(gpu, "")
}

fn serve_with(gpu: &'static str, more: &str) -> TestService {
    let config = Some(format!("{CONFIG}{more}"));
    TestService::start_with(ServiceSetup { gpu: TestGpu::Named(gpu), config, ..ServiceSetup::default() })
}

/// Waits until a lease had its GPU for so long: a program that does nothing counts as idle then.
fn await_age(client: &TestClient, id: &str, seconds: f64) {
    client.await_lease("it is so old", id, |lease| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs_f64();
        lease.granted_unix_s.is_some_and(|granted| now - granted >= seconds)
    });
}

fn await_gpu(client: &TestClient, state: GpuState) {
    until("the GPU is so", LONG, || match client.card().state {
        now if now == state => Ok(()),
        other => Err(other),
    });
}

/// `sublet aside --while` with a command that runs until a file is there; then it exits with 7.
struct Beside {
    child: Child,
    ends: PathBuf,
    said: PathBuf,
}

impl Beside {
    fn start(service: &TestService) -> Beside {
        let (ends, said) = (service.dir().join("ends"), service.dir().join("aside-said"));
        let script = format!("while [ ! -e '{}' ]; do sleep 0.1; done; exit 7", ends.display());
        let mut command = service.command(&["aside", "--while", "--", "sh", "-c", &script]);
        let child = command.stderr(File::create(&said).expect("a file")).spawn().expect("a program");
        Beside { child, ends, said }
    }

    fn let_end(&self) {
        File::create(&self.ends).expect("a file");
    }

    fn output_text(&self) -> String {
        std::fs::read_to_string(&self.said).unwrap_or_default()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // Its command looks for this, whatever became of its parent.
        self.let_end();
        let _ = self.child.wait();
    }
}

#[test]
fn a_running_and_an_idle_job_are_parked_and_both_come_back_and_compute_the_same() {
    let service = serve("soft:1x2GiB");
    let client = service.client();
    let train = example("mlp");
    let program = [train.as_str(), "--steps", "1500"];
    let alone = service.command(&[&["soft", "env", "--"], &program[..]].concat()).output().expect("a program");
    let alone = String::from_utf8_lossy(&alone.stdout).lines().last().expect("a line").to_owned();
    assert!(alone.starts_with("weights "), "{alone}");
    let idle = WrappedProgram::start_holding(&service, "700M", "256MiB", &["--idle"]);
    await_bytes(&client, "L1", 256);
    await_age(&client, "L1", 6.0);
    let busy = WrappedProgram::start(&service, &[&["--vram", "700M", "--"], &program[..]].concat());
    await_bytes(&client, "L2", 10);
    let said = successful_output(&service, &["aside", "--for", "1h"]);
    assert!(said.contains("GPU 0 steps aside until ") && said.contains("2 leases parked"), "{said}");
    let (first, second) = (client.lease("L1"), client.lease("L2"));
    assert_eq!((first.state, second.state), (LeaseState::Parked, LeaseState::Parked));
    assert!(first.waiting.is_none(), "an idle lease is passive: {first:?}");
    let waits = second.waiting.expect("a busy lease waits for its GPU");
    assert!(waits.why.contains("GPU 0 steps aside for ") && waits.why.contains("`sublet aside --end`"), "{waits:?}");
    // Nothing is granted there meanwhile, and each that asks is told why.
    let mut guest =
        WrappedProgram::start(&service, &["--vram", "300M", "--", &example("hold"), "64MiB", "--seconds", "0"]);
    let asked = await_state(&client, "L3", LeaseState::Waiting);
    assert!(asked.waiting.is_some_and(|waiting| waiting.why.contains("GPU 0 steps aside for ")));
    let refused = service.cli(&["run", "--vram", "300M", "--no-wait", "--", "true"]);
    assert_eq!(refused.status.code(), Some(75), "{refused:?}");
    assert!(text(&refused).contains("GPU 0 steps aside for "), "{refused:?}");
    for words in [&["explain", "L1"][..], &["explain", "L3"], &["gpus"], &[]] {
        let shown = successful_output(&service, words);
        assert!(shown.contains("step") && shown.contains(" until "), "{words:?}: {shown}");
    }
    let said = successful_output(&service, &["aside", "--end"]);
    assert!(said.contains("GPU 0 no longer steps aside"), "{said}");
    assert!(guest.line().starts_with("holds "), "{}", guest.output_text());
    assert_eq!(guest.end().0, Some(0));
    await_state(&client, "L1", LeaseState::Active);
    let (code, rest) = busy.end();
    assert_eq!((code, rest.lines().last()), (Some(0), Some(alone.as_str())), "{rest}");
    idle.finish("after the GPU stepped aside");
    let audit = successful_output(&service, &["audit"]);
    assert!(audit.contains("is being parked because GPU #0 steps aside"), "{audit}");
    assert!(audit.contains("no longer steps aside for "), "{audit}");
    assert!(successful_output(&service, &["aside", "--end"]).contains("no GPU steps aside"));
}

#[test]
fn the_gpu_steps_aside_as_long_as_a_command_runs_and_the_exit_code_is_its_own() {
    let service = serve("soft:1x2GiB");
    let client = service.client();
    let job = WrappedProgram::start_holding(&service, "700M", "256MiB", &["--idle"]);
    await_bytes(&client, "L1", 256);
    let mut game = Beside::start(&service);
    await_gpu(&client, GpuState::Aside);
    await_state(&client, "L1", LeaseState::Parked);
    until("the command is told", LONG, || {
        let said = game.output_text();
        if said.contains("GPU 0 steps aside while the command runs") { Ok(()) } else { Err(said) }
    });
    // Another aside of the same user does not end with the command, nor the other way round.
    successful_output(&service, &["aside", "--for", "1h", "--gpu", "0"]);
    game.let_end();
    assert_eq!(game.child.wait().expect("an own child").code(), Some(7), "{}", game.output_text());
    assert_eq!(client.card().state, GpuState::Aside);
    successful_output(&service, &["aside", "--end", "--gpu", "0"]);
    await_state(&client, "L1", LeaseState::Active);
    job.finish("after the command ended");
}

#[test]
fn the_gpu_comes_back_when_the_process_that_put_it_aside_is_killed() {
    let service = serve("soft:1x2GiB");
    let client = service.client();
    let job = WrappedProgram::start_holding(&service, "700M", "256MiB", &["--idle"]);
    await_bytes(&client, "L1", 256);
    let game = Beside::start(&service);
    await_state(&client, "L1", LeaseState::Parked);
    kill_process(Pid::from_child(&game.child), Signal::KILL).expect("an own child");
    await_gpu(&client, GpuState::InService);
    await_state(&client, "L1", LeaseState::Active);
    job.finish("after the wrapper was killed");
}

#[test]
fn a_restart_of_the_daemon_changes_nothing() {
    let mut service = serve("soft:1x2GiB");
    let client = service.client();
    let job = WrappedProgram::start_holding(&service, "700M", "256MiB", &["--idle"]);
    await_bytes(&client, "L1", 256);
    let game = Beside::start(&service);
    successful_output(&service, &["aside", "--gpu", "0"]);
    await_state(&client, "L1", LeaseState::Parked);
    service.kill();
    service.restart();
    assert_eq!(client.card().state, GpuState::Aside);
    assert_eq!(client.lease("L1").state, LeaseState::Parked);
    let refused = service.cli(&["run", "--vram", "300M", "--no-wait", "--", "true"]);
    assert!(text(&refused).contains("GPU 0 steps aside for "), "{refused:?}");
    // The command beside it renews its own through the restart, and `--end` ends that, too.
    let asides = || client.card().aside.expect("it steps aside");
    let until_before = asides().until_unix_s;
    assert!(until_before - asides().since_unix_s > 11.0 * 3600.0, "12 h where no time is said: {:?}", asides());
    successful_output(&service, &["aside", "--end"]);
    await_state(&client, "L1", LeaseState::Active);
    game.let_end();
    job.finish("after the daemon was killed");
}

#[test]
fn a_lease_that_cannot_be_parked_stays_and_is_named_with_the_reason() {
    let service = serve("soft:1x2GiB");
    let client = service.client();
    let hold = example("hold");
    let mut job = WrappedProgram::start(&service, &["--vram", "700M", "--no-shim", "--", &hold, "256MiB", "--idle"]);
    assert!(job.line().starts_with("holds "), "{}", job.output_text());
    await_bytes(&client, "L1", 256);
    let said = successful_output(&service, &["aside", "--for", "1h"]);
    assert!(said.contains("L1 stays on GPU 0: none of its programs uses a GPU through Sublet's library"), "{said}");
    assert_eq!(client.lease("L1").state, LeaseState::Active);
    let refused = service.cli(&["run", "--vram", "300M", "--no-wait", "--", "true"]);
    assert!(text(&refused).contains("GPU 0 steps aside for "), "{refused:?}");
    successful_output(&service, &["aside", "--end"]);
    successful_output(&service, &["run", "--vram", "300M", "--no-wait", "--", "true"]);
    job.finish("it was never touched");
}

#[test]
fn waiters_start_on_the_gpus_that_do_not_step_aside() {
    let service = serve("soft:2x2GiB");
    let said = successful_output(&service, &["aside", "--gpu", "0", "--for", "1h"]);
    assert!(said.contains("GPU 0 steps aside until ") && !said.contains("GPU 1"), "{said}");
    let shown =
        service.cli(&["run", "--vram", "300M", "--no-wait", "--", "sh", "-c", "echo GPU $CUDA_VISIBLE_DEVICES"]);
    assert!(text(&shown).contains("GPU 1\n"), "{shown:?}");
}

#[test]
fn a_user_without_a_seat_is_refused_and_the_configuration_lets_one() {
    if !is_root() {
        eprintln!("skipped: only root can be other users");
        return;
    }
    let (ann, bob) = (12_345, 12_346);
    let service = serve_with("soft:1x2GiB", "[aside]\nusers = [\"12346\"]\n");
    let tells = |uid: u32, words: &[&str]| service.command(words).uid(uid).gid(uid).output().expect("a program");
    let refused = tells(ann, &["aside"]);
    assert_eq!(refused.status.code(), Some(77), "{refused:?}");
    let said = text(&refused);
    assert!(said.contains("only a user at this host's seat, or an operator, may put a GPU aside"), "{said}");
    assert!(said.contains("hint: run it in your session at this host's screen"), "{said}");
    assert_eq!(service.client().card().state, GpuState::InService);
    assert!(tells(bob, &["aside", "--for", "1h"]).status.success());
    let refused = tells(ann, &["aside", "--end"]);
    assert!(text(&refused).contains("or an operator may end that"), "{refused:?}");
    assert_eq!(service.client().card().state, GpuState::Aside);
    successful_output(&service, &["aside", "--end"]);
    assert_eq!(service.client().card().state, GpuState::InService);
}
