//! Room is made for whoever waits, on soft cards, with real programs that know nothing of it.

use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};
use sublet_blackbox::binary::example;
use sublet_blackbox::job::{Job, await_bytes, await_state, text};
use sublet_blackbox::{Gpu, LONG, Service, Setup, until};
use sublet_wire::{LeaseState, Reason, Rung};

/// Terms so long that nothing comes to its end by itself, and no memory kept ready.
const CONFIG: &str = r#"
ttl = "5m"
[preemption]
turn = "1s"
idle = "2s"
switching = "10%"
end_grace = "2s"
[parking]
ram = "4G"
leave = "256M"
stock = "off"
"#;

fn serve(gpu: &'static str) -> Service {
    Service::start_with(Setup { gpu: Gpu::Named(gpu), config: Some(CONFIG.to_owned()), ..Setup::default() })
}

/// The last line that a program prints when nobody disturbs it.
fn undisturbed(service: &Service, program: &[&str]) -> String {
    let alone = service.command(&[&["soft", "env", "--"], program].concat()).output().expect("a program");
    String::from_utf8_lossy(&alone.stdout).lines().last().expect("a line").to_owned()
}

#[test]
fn an_interactive_ask_parks_a_batch_job_which_goes_on_and_computes_the_same() {
    let service = serve("soft:1x2GiB");
    let client = service.client();
    let train = example("mlp");
    let program = [train.as_str(), "--steps", "600"];
    let alone = undisturbed(&service, &program);
    assert!(alone.starts_with("weights "), "{alone}");
    let job = Job::start(&service, &[&["--vram", "1200M", "--"], &program[..]].concat());
    await_bytes(&client, "L1", 10);
    let asked = Instant::now();
    let words = ["--vram", "1200M", "--tier", "interactive", "--", &example("hold"), "64MiB", "--seconds", "1"];
    let mut guest = Job::start(&service, &words);
    assert!(guest.line().starts_with("holds "), "{}", guest.said());
    assert!(asked.elapsed() < Duration::from_secs(20), "it had to wait for {:?}", asked.elapsed());
    let parked = client.lease("L1");
    assert_eq!((parked.state, parked.rung), (LeaseState::Parked, Some(Rung::Park)));
    assert_eq!(guest.end().0, Some(0));
    let (code, rest) = job.end();
    assert_eq!((code, rest.lines().last()), (Some(0), Some(alone.as_str())), "{rest}");
    let audit = text(&service.cli(&["audit", "--lease", "L1"]));
    assert!(audit.contains("is told to leave its GPUs for L2"), "{audit}");
}

#[test]
fn equals_take_turns_and_compute_the_same() {
    let service = serve("soft:1x2GiB");
    let train = example("mlp");
    let program = [train.as_str(), "--steps", "2000"];
    let alone = undisturbed(&service, &program);
    let words = [&["--vram", "1200M", "--"], &program[..]].concat();
    let jobs = [Job::start(&service, &words), Job::start(&service, &words)];
    until("both were parked for the other", LONG, || {
        let audit = text(&service.cli(&["audit"]));
        let both = audit.contains("L1 is told to leave its GPUs for L2")
            && audit.contains("L2 is told to leave its GPUs for L1");
        if both { Ok(()) } else { Err(audit) }
    });
    for job in jobs {
        let (code, rest) = job.end();
        assert_eq!((code, rest.lines().last()), (Some(0), Some(alone.as_str())), "{rest}");
    }
}

/// Thirty who want the same card, three at a time: all of them get on, and each computes what it would alone.
#[test]
fn thirty_holders_take_turns_on_one_card_and_each_computes_the_same() {
    let config = CONFIG.replace("switching = \"10%\"", "switching = \"50%\"");
    let gpu = Gpu::Named("soft:1x24GiB");
    let service = Service::start_with(Setup { gpu, config: Some(config), ..Setup::default() });
    let train = example("mlp");
    // However fast the machine is, each takes longer than a turn, and a turn is not made longer by what it costs.
    let program = [train.as_str(), "--steps", "200", "--pace", "10"];
    let alone = undisturbed(&service, &program);
    let words = [&["--vram", "7G", "--"], &program[..]].concat();
    let jobs: Vec<Job> = (0..30).map(|_| Job::start(&service, &words)).collect();
    for (number, job) in (1..).zip(jobs) {
        let (code, rest) = job.end();
        assert_eq!((code, rest.lines().last()), (Some(0), Some(alone.as_str())), "job {number}: {rest}");
    }
    let audit = text(&service.cli(&["audit"]));
    let left = audit.lines().filter(|line| line.contains("is told to leave its GPUs for")).count();
    let back = audit.lines().filter(|line| line.contains("is back on its GPUs")).count();
    assert!(left >= 10 && back >= 10, "{left} left for others, and {back} came back: {audit}");
}

/// Where the driver tells what the card has and not whose it is, holders leave one after the other.
#[test]
fn a_card_that_does_not_tell_whose_bytes_are_whose_is_left_by_one_after_the_other() {
    let service = serve("soft:1x5GiB");
    let client = service.client();
    assert!(service.cli(&["soft", "fault", "0", "nvml", "no-bytes"]).status.success());
    let holders: Vec<Job> = (0..2).map(|_| Job::holds(&service, "1900M", "256MiB", &["--idle"])).collect();
    until("the GPU is coarse, and both have their bytes", LONG, || {
        let card = client.card();
        let both = card.used_bytes.is_some_and(|used| used >= 512 << 20);
        if card.coarse && both { Ok(()) } else { Err(card.used_bytes) }
    });
    let words = ["--vram", "2500M", "--tier", "interactive", "--", &example("hold"), "64MiB", "--seconds", "1"];
    let mut guest = Job::start(&service, &words);
    assert!(guest.line().starts_with("holds "), "{}", guest.said());
    for lease in ["L1", "L2"] {
        let parked = client.lease(lease);
        assert_eq!((parked.state, parked.rung), (LeaseState::Parked, Some(Rung::Park)), "{lease}");
    }
    // The second was told when the first had been seen to leave.
    let audit = text(&service.cli(&["audit"]));
    let steps = |line: &&str| line.contains("is told to leave its GPUs for") || line.contains("is parked");
    let told: Vec<bool> = audit.lines().filter(steps).map(|line| line.contains("is told")).collect();
    assert_eq!(told, [true, false, true, false], "{audit}");
    assert_eq!(guest.end().0, Some(0));
    holders.into_iter().for_each(|job| job.finish("after it was parked where nobody tells whose bytes are whose"));
}

#[test]
fn an_idle_notebook_makes_room_for_a_batch_job_and_finds_all_again() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let words = ["--vram", "3G", "--tier", "interactive", "--", &example("hold"), "512MiB", "--idle"];
    let mut notebook = Job::start(&service, &words);
    assert!(notebook.line().starts_with("holds "), "{}", notebook.said());
    await_bytes(&client, "L1", 512);
    let mut batch = Job::start(&service, &["--vram", "3G", "--", &example("hold"), "256MiB", "--seconds", "1"]);
    assert!(batch.line().starts_with("holds "), "{}", batch.said());
    assert_eq!(client.lease("L1").state, LeaseState::Parked);
    // The signal makes it look at its memory, and that is use: it has its card again at once.
    notebook.finish("after it was parked for somebody else");
    assert_eq!(batch.end().0, Some(0));
}

#[test]
fn who_chose_to_be_ended_gets_its_signals_and_nobody_else_does() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let script = "trap 'echo told' USR1; trap 'echo asked to go; exit 0' TERM; while :; do sleep 0.05; done";
    let words = ["--vram", "3G", "--preempt", "end", "--signal", "USR1@1", "--", "bash", "-c", script];
    let job = Job::start(&service, &words);
    await_state(&client, "L1", LeaseState::Active);
    let beside = Job::holds(&service, "256M", "64MiB", &["--idle"]);
    let mut guest = Job::start(
        &service,
        &["--vram", "3G", "--tier", "interactive", "--", &example("hold"), "64MiB", "--seconds", "1"],
    );
    assert!(guest.line().starts_with("holds "), "{}", guest.said());
    let (code, rest) = job.end();
    assert_eq!((code, rest.as_str()), (Some(0), "told\nasked to go\n"));
    let ended = client.lease("L1").ended.expect("it ended");
    assert_eq!(ended.reason, Reason::Preempted, "{}", ended.sentence);
    let audit = text(&service.cli(&["audit", "--lease", "L1"]));
    assert!(audit.contains("SIGTERM is sent to") && !audit.contains("SIGKILL"), "{audit}");
    beside.finish("it did not choose that");
    assert_eq!(guest.end().0, Some(0));
}

#[test]
fn who_ignores_the_first_signal_gets_the_last() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let script = "trap '' TERM; while :; do sleep 0.05; done";
    let job = Job::start(&service, &["--vram", "3G", "--tier", "spot", "--", "bash", "-c", script]);
    await_state(&client, "L1", LeaseState::Active);
    let mut guest = Job::start(&service, &["--vram", "3G", "--", &example("hold"), "64MiB", "--seconds", "1"]);
    assert!(guest.line().starts_with("holds "), "{}", guest.said());
    assert_eq!(job.end().0, Some(128 + 9), "its wrapper lives to say so");
    let audit = text(&service.cli(&["audit", "--lease", "L1"]));
    assert!(audit.contains("SIGTERM is sent to") && audit.contains("SIGKILL is sent to"), "{audit}");
}

#[test]
fn a_waiter_that_gives_up_at_once_moves_nobody() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let job = Job::holds(&service, "3G", "256MiB", &["--idle"]);
    let words = ["run", "--vram", "3G", "--tier", "interactive", "--no-wait", "--", "true"];
    assert!(!service.cli(&words).status.success());
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(client.lease("L1").state, LeaseState::Active);
    job.finish("nobody parked it");
}

#[test]
fn a_daemon_killed_while_room_is_made_goes_on_where_it_was() {
    let mut service = serve("soft:1x4GiB");
    let job = Job::holds(&service, "3G", "512MiB", &["--idle"]);
    await_bytes(&service.client(), "L1", 512);
    for pause_ms in [0, 5, 20, 60, 150, 400] {
        let guest = Job::start(&service, &["--vram", "3G", "--tier", "interactive", "--", "sleep", "60"]);
        std::thread::sleep(Duration::from_millis(pause_ms));
        service.kill();
        service.restart();
        let client = service.client();
        client.await_lease("it is somewhere for good", "L1", |lease| {
            matches!(lease.state, LeaseState::Active | LeaseState::Parked)
        });
        kill_process(Pid::from_child(&guest.child), Signal::TERM).expect("an own child");
        drop(guest);
        assert!(service.cli(&["resume", "L1"]).status.success());
        await_bytes(&client, "L1", 512);
    }
    job.finish("after six daemons");
}

#[test]
fn a_program_without_the_library_is_parked_by_the_driver_and_finds_all_again() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let hold = example("hold");
    let words = ["--vram", "3G", "--no-shim", "--", &hold, "512MiB", "--idle"];
    let mut job = Job::start(&service, &words);
    assert!(job.line().starts_with("holds "), "{}", job.said());
    await_bytes(&client, "L1", 512);
    let words = ["--vram", "3G", "--tier", "interactive", "--", &hold, "256MiB", "--seconds", "1"];
    let mut guest = Job::start(&service, &words);
    assert!(guest.line().starts_with("holds "), "{}", guest.said());
    let parked = client.lease("L1");
    assert_eq!((parked.state, parked.rung, parked.seen_bytes), (LeaseState::Parked, Some(Rung::Driver), Some(0)));
    assert_eq!(guest.end().0, Some(0));
    // Nobody would hear it ask, so it has its card again as soon as there is room.
    await_bytes(&client, "L1", 512);
    await_state(&client, "L1", LeaseState::Active);
    job.finish("after the driver parked it");
}

#[test]
fn the_driver_parks_nobody_beside_a_stranger_unless_it_takes_the_risk() {
    let service = serve("soft:1x4GiB");
    let client = service.client();
    let hold = example("hold");
    let mut stranger = service.command(&["soft", "env", "--", &hold, "64MiB", "--idle"]).spawn().expect("a program");
    let mut job = Job::start(&service, &["--vram", "2G", "--no-shim", "--", &hold, "512MiB", "--idle"]);
    assert!(job.line().starts_with("holds "), "{}", job.said());
    await_bytes(&client, "L1", 512);
    let refused = until("it was looked at", LONG, || {
        let output = service.cli(&["park", "L1"]);
        let words = text(&output);
        if output.status.success() || words.contains("library") { Err(words) } else { Ok(words) }
    });
    assert!(refused.contains("a restore would not be sure to have room"), "{refused}");
    assert_eq!(client.lease("L1").state, LeaseState::Active);
    job.finish("nobody touched it");
    let words = ["--vram", "2G", "--no-shim", "--may-lose", "--", &hold, "512MiB", "--idle"];
    let mut job = Job::start(&service, &words);
    assert!(job.line().starts_with("holds "), "{}", job.said());
    await_bytes(&client, "L2", 512);
    until("it was parked", LONG, || {
        let output = service.cli(&["park", "L2"]);
        if output.status.success() { Ok(()) } else { Err(text(&output)) }
    });
    assert!(service.cli(&["resume", "L2"]).status.success());
    await_bytes(&client, "L2", 512);
    job.finish("its owner took the risk, and nothing happened");
    stranger.kill().expect("an own child");
    stranger.wait().expect("an own child");
}

/// A job over several cards whose processes speak through NCCL cannot be moved in any way, and is told apart.
#[test]
fn a_job_of_several_cards_with_nccl_leaves_for_nobody_and_explain_says_why() {
    let service = serve("soft:2x4GiB");
    let client = service.client();
    let hold = example("hold");
    let words = ["--vram", "3G", "--gpus", "2", "--no-shim", "--", &hold, "256MiB", "--idle", "--thread"];
    let mut job = Job::start(&service, &[&words[..], &["NCCL Service 0"]].concat());
    assert!(job.line().starts_with("holds "), "{}", job.said());
    await_bytes(&client, "L1", 256);
    let words = ["--vram", "3G", "--tier", "interactive", "--", &hold, "64MiB", "--seconds", "1"];
    let guest = Job::start(&service, &words);
    until("the driver was asked about it", LONG, || {
        let words = text(&service.cli(&["explain", "L2"]));
        if words.contains("NCCL group") { Ok(()) } else { Err(words) }
    });
    assert_eq!(client.lease("L1").state, LeaseState::Active);
    job.finish("nobody touched it");
    assert_eq!(guest.end().0, Some(0));
}
