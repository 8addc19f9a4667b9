//! Unleased processes on soft GPUs: found, adopted, warned, parked and ended; and those that are left alone.
//!
//! All of them are real programs; what is said of them is read from the command line and the audit trail.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};
use sublet_blackbox::binary::example;
use sublet_blackbox::programs::{UnleasedProgram, WrappedProgram, await_bytes, await_state, successful_output, text};
use sublet_blackbox::tracer::Traced;
use sublet_blackbox::unleased::{
    CONFIG, PARKS, assert_in_order, await_closed, await_found, await_unleased, is_alive, mode, serve, serve_with,
    unleased_processes,
};
use sublet_blackbox::wait::throughout;
use sublet_blackbox::{LONG, MIB, ServiceSetup, TestGpu, TestService, ask, until};
use sublet_wire::{EndReason, GpuState, LeaseState, Mode, NextStep, ParkMethod, UnleasedProcess, UnleasedStep};

#[test]
fn an_unleased_process_is_found_and_recorded_and_not_touched() {
    let service = serve();
    let mut alone = UnleasedProgram::start_holding(&service, 1024);
    let stranger = await_found(&service, &alone);
    assert_eq!((stranger.step, stranger.next), (UnleasedStep::Found, NextStep::Nothing), "{stranger:?}");
    assert!(stranger.exe.as_deref().is_some_and(|exe| exe.ends_with("sublet-example-hold")), "{stranger:?}");
    assert!(stranger.command.iter().any(|word| word == "1024MiB"), "{stranger:?}");
    assert!(stranger.vram_bytes.is_some_and(|bytes| bytes >= 1024 * MIB), "{stranger:?}");
    alone.assert_alive_for(5);
    let status = successful_output(&service, &["enforce", "status"]);
    assert!(status.contains("GPU 0: observe") && status.contains(&alone.pid().to_string()), "{status}");
    alone.signal(Signal::TERM);
    let story = await_closed(&service, &stranger.id);
    assert_in_order(&story, &["uses a GPU without a lease", "executable", "command", "parents"]);
    // A reading may show its memory gone before the process is.
    assert!(story.contains("exited") || story.contains("has left the GPUs"), "{story}");
}

#[test]
fn an_unleased_process_is_ended_after_the_warning_and_its_memory_is_free() {
    let service = serve();
    let alone = UnleasedProgram::start_holding(&service, 1024);
    let stranger = await_found(&service, &alone);
    let preview = successful_output(&service, &["enforce", "preview"]);
    assert!(preview.contains("SIGTERM in 2 s"), "{preview}");
    // Without `--yes` it is only shown.
    let output = service.cli(&["enforce", "mode", "0", "enforce"]);
    assert!(!output.status.success() && text(&output).contains("nothing was changed"), "{}", text(&output));
    assert_eq!(service.client().card().mode, Mode::Observe);
    mode(&service, "enforce");
    // It checks its memory and exits on SIGTERM.
    assert_eq!(alone.end_signal(), None);
    let story = await_closed(&service, &stranger.id);
    assert_in_order(&story, &["uses a GPU", "is warned", "SIGTERM will be sent", "SIGTERM was sent", "got it"]);
    // A reading may show its memory gone before the process is.
    assert!(story.contains("exited") || story.contains("has left the GPUs"), "{story}");
    assert!(!story.contains("SIGKILL"), "{story}");
    until("its memory is back", LONG, || {
        let loose = service.client().card().unowned_bytes;
        if loose < Some(256 * MIB) { Ok(()) } else { Err(loose) }
    });
    // A process like it that starts again is recorded as such.
    mode(&service, "observe");
    let anew = UnleasedProgram::start_holding(&service, 1024);
    let known = await_found(&service, &anew);
    assert_eq!(known.replaces.as_ref(), Some(&stranger.id), "{known:?}");
    let status = successful_output(&service, &["enforce", "status"]);
    assert!(status.contains("was the same and is gone; something starts it anew"), "{status}");
    successful_output(&service, &["journal", "verify", "--state-dir", &service.state_dir().to_string_lossy()]);
}

#[test]
fn an_unleased_process_that_cannot_be_parked_and_ignores_sigterm_gets_sigkill_after_the_grace() {
    let service = serve_with(PARKS);
    let alone = UnleasedProgram::start_holding(&service, 1024);
    let stranger = await_found(&service, &alone);
    alone.signal(Signal::STOP);
    mode(&service, "enforce");
    assert_eq!(alone.end_signal(), Some(9));
    let story = await_closed(&service, &stranger.id);
    assert_in_order(
        &story,
        &[
            "is warned",
            "it has L1 now, in order to be parked",
            "could not be parked: process",
            "is stopped",
            "SIGTERM will be sent",
            "SIGTERM was sent",
            "SIGKILL will be sent",
            "SIGKILL was sent",
        ],
    );
    assert_eq!(story.matches("in order to be parked").count(), 1, "{story}");
    let ended = service.client().lease("L1").ended.expect("how it ended");
    assert_eq!(ended.reason, EndReason::ParkFailed, "{ended:?}");
}

#[test]
fn an_unleased_process_is_parked_after_the_warning_and_continues_when_resumed() {
    let service = serve_with(PARKS);
    let client = service.client();
    let mut alone = UnleasedProgram::start_holding(&service, 1024);
    let stranger = await_found(&service, &alone);
    let preview = successful_output(&service, &["enforce", "preview"]);
    assert!(preview.contains("parked in 2 s, or SIGTERM if it cannot be"), "{preview}");
    mode(&service, "enforce");
    let warned =
        await_unleased(&service, alone.pid(), "it is warned", |stranger| stranger.step == UnleasedStep::Warned);
    assert_eq!((warned.next, warned.next_signal), (NextStep::Parked, None));
    let parked = await_state(&client, "L1", LeaseState::Parked);
    assert_eq!((parked.method, parked.seen_bytes), (Some(ParkMethod::Driver), Some(0)), "{parked:?}");
    let why = successful_output(&service, &["explain", "L1"]);
    assert!(why.contains("it stands still; `sublet resume L1` brings it back"), "{why}");
    assert_eq!(parked.pids, [alone.pid()]);
    let story = await_closed(&service, &stranger.id);
    let way = ["uses a GPU", "is warned", "it has L1 now, in order to be parked", "is parked, and has L1"];
    assert_in_order(&story, &way);
    assert!(!story.contains("SIGTERM"), "{story}");
    // Its bytes are gone from the GPU, and the process lives.
    let card = client.card();
    let is_away = card.occupants.iter().all(|occupant| occupant.seen_bytes == Some(0));
    assert!(is_away && card.unowned_bytes <= Some(64 * MIB), "{card:?}");
    alone.assert_alive_for(4);
    assert_eq!(client.lease("L1").state, LeaseState::Parked);
    successful_output(&service, &["resume", "L1"]);
    await_state(&client, "L1", LeaseState::Active);
    await_bytes(&client, "L1", 1024);
    // It has a lease now, on a GPU in mode `enforce`.
    alone.assert_alive_for(5);
    assert!(unleased_processes(&service).processes.is_empty());
    // It checks all of its memory before it exits.
    alone.signal(Signal::TERM);
    assert_eq!(alone.end_signal(), None);
    client.await_lease("it ends with its process", "L1", |lease| lease.state == LeaseState::Ended);
    successful_output(&service, &["journal", "verify", "--state-dir", &service.state_dir().to_string_lossy()]);
}

#[test]
fn a_lease_that_no_program_uses_keeps_no_other_program_from_being_parked() {
    let service = serve_with(PARKS);
    let client = service.client();
    // One lease without a program, and one with a program that does not use the GPU.
    client.grant(&ask(256 * MIB, json!({})));
    let mut idle = WrappedProgram::start(&service, &["--vram", "256M", "--", "sh", "-c", "echo up; sleep 600"]);
    assert_eq!(idle.line(), "up\n", "{}", idle.output_text());
    let mut alone = UnleasedProgram::start_holding(&service, 1024);
    await_found(&service, &alone);
    mode(&service, "enforce");
    await_state(&client, "L3", LeaseState::Parked);
    alone.assert_alive_for(1);
    successful_output(&service, &["resume", "L3"]);
    await_state(&client, "L3", LeaseState::Active);
    alone.signal(Signal::TERM);
    assert_eq!(alone.end_signal(), None);
}

#[test]
fn an_unleased_process_is_not_parked_beside_another() {
    let service = serve_with(PARKS);
    let (one, other) = (UnleasedProgram::start_holding(&service, 512), UnleasedProgram::start_holding(&service, 512));
    let (first, second) = (await_found(&service, &one), await_found(&service, &other));
    mode(&service, "enforce");
    assert_eq!((one.end_signal(), other.end_signal()), (None, None));
    let stories = [await_closed(&service, &first.id), await_closed(&service, &second.id)];
    let alone = |story: &&String| story.contains("processes without a lease are on GPU 0");
    let ended =
        stories.iter().filter(alone).inspect(|story| assert_in_order(story, &["is warned", "SIGTERM was sent"]));
    assert!(ended.count() >= 1, "{stories:?}");
}

#[test]
fn a_daemon_killed_while_it_parks_an_unleased_process_continues_with_the_same_lease() {
    let mut service = serve_with(PARKS);
    let mut alone = UnleasedProgram::start_holding(&service, 1024);
    let stranger = await_found(&service, &alone);
    mode(&service, "enforce");
    await_unleased(&service, alone.pid(), "it is moved", |stranger| stranger.step == UnleasedStep::Parking);
    service.kill();
    service.restart();
    await_state(&service.client(), "L1", LeaseState::Parked);
    let story = await_closed(&service, &stranger.id);
    assert_eq!(story.matches("in order to be parked").count(), 1, "{story}");
    assert!(!story.contains("SIGTERM"), "{story}");
    assert_eq!(service.client().live_ids(), ["L1"]);
    alone.assert_alive_for(2);
    successful_output(&service, &["resume", "L1"]);
    await_bytes(&service.client(), "L1", 1024);
    alone.signal(Signal::TERM);
    assert_eq!(alone.end_signal(), None);
}

/// Each process that may get a signal costs the service a descriptor, and it has a limited number of them.
#[test]
fn an_unleased_process_with_1100_children_is_ended_and_so_is_another_beside_it() {
    let service = serve();
    let line = format!("for i in $(seq 1100); do sleep 60 & done; exec {} 256MiB --idle", example("hold"));
    let mut crowd = service.command(&["soft", "env", "--", "bash", "-c", &line]).spawn().expect("a program");
    await_unleased(&service, crowd.id(), "it is found", |stranger| stranger.vram_bytes >= Some(256 * MIB));
    let alone = UnleasedProgram::start_holding(&service, 256);
    await_found(&service, &alone);
    mode(&service, "enforce");
    assert_eq!(alone.end_signal(), None);
    until("it ends", LONG, || match crowd.try_wait().expect("an own child") {
        Some(_) => Ok(()),
        None => Err("it runs"),
    });
}

#[test]
fn an_adopted_process_has_a_lease_and_is_not_touched() {
    let service = serve();
    let mut alone = UnleasedProgram::start_holding(&service, 1024);
    let stranger = await_found(&service, &alone);
    mode(&service, "enforce");
    await_unleased(&service, alone.pid(), "it is warned", |stranger| stranger.step == UnleasedStep::Warned);
    let said = successful_output(&service, &["adopt", &alone.pid().to_string()]);
    assert!(said.contains("has L1 now"), "{said}");
    let story = await_closed(&service, &stranger.id);
    assert_in_order(&story, &["is warned", "has a lease now: L1"]);
    let lease = await_state(&service.client(), "L1", LeaseState::Active);
    assert!(lease.vram_bytes.is_some_and(|bytes| (1024 * MIB..1400 * MIB).contains(&bytes)), "{lease:?}");
    assert_eq!(lease.pids, [alone.pid()]);
    alone.assert_alive_for(6);
    alone.signal(Signal::TERM);
    service.client().await_lease("it ends with its process", "L1", |lease| lease.state == LeaseState::Ended);
}

#[test]
fn a_process_can_be_adopted_by_its_own_user_and_an_operator_only() {
    let service = serve();
    let alone = UnleasedProgram::start_holding_as(&service, Some(4711), 512);
    let stranger = await_found(&service, &alone);
    assert_eq!(stranger.uid, 4711);
    let other = service.command(&["adopt", &alone.pid().to_string()]).uid(4712).gid(4712).output().expect("a program");
    assert!(!other.status.success(), "{}", text(&other));
    let seen = service.command(&["enforce", "status"]).uid(4712).gid(4712).output().expect("a program");
    assert!(!text(&seen).contains(&alone.pid().to_string()), "{}", text(&seen));
    let own = service.command(&["enforce", "status"]).uid(4711).gid(4711).output().expect("a program");
    assert!(text(&own).contains(&alone.pid().to_string()), "{}", text(&own));
    let mode = service.command(&["enforce", "mode", "0", "warn"]).uid(4711).gid(4711).output().expect("a program");
    assert!(!mode.status.success() && text(&mode).contains("only an operator"), "{}", text(&mode));
    let own = service.command(&["adopt", &alone.pid().to_string()]).uid(4711).gid(4711).output().expect("a program");
    assert!(own.status.success(), "{}", text(&own));
    let lease = service.client().lease("L1");
    assert_eq!(lease.tenant, "uid:4711");
    assert_in_order(&await_closed(&service, &stranger.id), &["has a lease now: L1"]);
}

#[test]
fn a_descendant_of_a_holder_is_leased_however_it_hides() {
    let service = serve();
    mode(&service, "enforce");
    // It forks twice, leaves its session and its parent, and takes another name.
    let line = format!("(setsid bash -c 'exec -a renamed {} 512MiB --idle' &) ; sleep 600", example("hold"));
    let _job = WrappedProgram::start(&service, &["--vram", "1G", "--", "bash", "-c", &line]);
    await_bytes(&service.client(), "L1", 512);
    throughout(Duration::from_secs(6), || {
        let all = unleased_processes(&service).processes;
        assert!(all.is_empty(), "{all:?}");
    });
    await_bytes(&service.client(), "L1", 512);
    // It left the group that ends with the wrapper.
    let card = service.client().card();
    assert!(card.occupants.iter().all(|occupant| occupant.lease.is_some()), "{card:?}");
    for pid in service.client().lease("L1").pids {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a pid");
        // Some end with others of them.
        let _ = kill_process(pid, Signal::KILL);
    }
}

#[test]
fn a_process_that_outlives_its_lease_is_unleased_from_then_on() {
    let service = serve();
    let mut job = WrappedProgram::start(&service, &["--vram", "1G", "--", &example("hold"), "512MiB", "--idle"]);
    assert!(job.line().starts_with("holds "));
    await_bytes(&service.client(), "L1", 512);
    let program = *service.client().lease("L1").pids.last().expect("a process");
    // The wrapper dies, and an operator takes the lease: the program is still there.
    kill_process(Pid::from_child(&job.child), Signal::KILL).expect("an own child");
    successful_output(&service, &["end", "L1"]);
    let stranger = await_unleased(&service, program, "it is found", |_| true);
    mode(&service, "enforce");
    let story = await_closed(&service, &stranger.id);
    assert_in_order(&story, &["uses a GPU without a lease", "is warned", "SIGTERM was sent"]);
}

#[test]
fn a_process_that_a_rule_allows_is_left_alone_until_the_rule_is_removed() {
    let service = serve();
    let mut alone = UnleasedProgram::start_holding(&service, 512);
    await_found(&service, &alone);
    let about = successful_output(&service, &["enforce", "allow", "exe:sublet-example-hold", "--dry-run"]);
    assert!(about.contains("X1 (sublet-example-hold)"), "{about}");
    let about = successful_output(&service, &["enforce", "allow", "exe:/no such&file", "--dry-run"]);
    assert!(about.contains("no process that is on a GPU now"), "{about}");
    let about = successful_output(&service, &["adopt", "exe:sublet-example-hold", "--vram", "1G", "--dry-run"]);
    assert!(about.contains("X1 (sublet-example-hold)"), "{about}");
    let about = successful_output(&service, &["adopt", &alone.pid().to_string(), "--dry-run"]);
    assert!(about.contains("X1 (sublet-example-hold) has ") && about.contains("MiB"), "{about}");
    let absent = service.cli(&["adopt", "999999", "--dry-run"]);
    assert!(!absent.status.success() && text(&absent).contains("is not on a GPU without a lease"), "{absent:?}");
    assert_eq!(unleased_processes(&service).rules, [], "it was only shown");
    assert_eq!(unleased_processes(&service).processes.len(), 1, "and no process was adopted");
    let said = text(&service.cli(&["enforce", "allow", "exe:sublet-example-hold"]));
    assert!(said.contains("R1: exe:sublet-example-hold is never warned, parked or ended"), "{said}");
    assert!(said.contains("any user may call a program `sublet-example-hold`"), "{said}");
    mode(&service, "enforce");
    let stranger = await_unleased(&service, alone.pid(), "it is left alone", |it| it.next == NextStep::Exempt);
    assert!(stranger.why.as_deref().is_some_and(|why| why.contains("R1")), "{stranger:?}");
    alone.assert_alive_for(5);
    for words in [["enforce", "forget", "R1", "--dry-run"].as_slice(), &["unadopt", "R1", "--dry-run"]] {
        let about = successful_output(&service, words);
        assert!(about.contains("R1: exe:sublet-example-hold is never warned, parked or ended"), "{about}");
    }
    let nothing = service.cli(&["unadopt", "R7", "--dry-run"]);
    assert!(!nothing.status.success() && text(&nothing).contains("there is no rule `R7`"), "{nothing:?}");
    assert_eq!(unleased_processes(&service).rules.len(), 1, "it was only shown");
    successful_output(&service, &["enforce", "forget", "R1"]);
    assert_eq!(alone.end_signal(), None);
}

#[test]
fn nothing_happens_while_the_driver_hangs() {
    let service = serve();
    let mut alone = UnleasedProgram::start_holding(&service, 512);
    await_found(&service, &alone);
    mode(&service, "enforce");
    await_unleased(&service, alone.pid(), "it is warned", |stranger| stranger.step == UnleasedStep::Warned);
    successful_output(&service, &["soft", "fault", "0", "nvml", "hang"]);
    alone.assert_alive_for(8);
    successful_output(&service, &["soft", "fault", "0", "nvml", "ok"]);
    assert_eq!(alone.end_signal(), None);
}

#[test]
fn a_restarted_daemon_does_not_warn_a_second_time() {
    let mut service = serve();
    let alone = UnleasedProgram::start_holding(&service, 512);
    let stranger = await_found(&service, &alone);
    mode(&service, "enforce");
    await_unleased(&service, alone.pid(), "it is warned", |stranger| stranger.step == UnleasedStep::Warned);
    service.kill();
    service.restart();
    assert_eq!(service.client().card().mode, Mode::Enforce);
    assert_eq!(service.client().card().state, GpuState::InService);
    assert_eq!(await_found(&service, &alone).id, stranger.id);
    let story = successful_output(&service, &["audit", "show", &stranger.id]);
    assert_eq!(story.matches("is warned").count(), 1, "{story}");
}

/// The record of a signal is durable before the signal is sent. A restarted daemon cannot know whether it was sent.
#[test]
fn a_daemon_killed_between_record_and_signal_keeps_the_grace_and_sends_each_signal_once() {
    let mut service = serve_with(&format!("grace = \"1s\"\n{CONFIG}"));
    let alone = UnleasedProgram::start_holding(&service, 512);
    let stranger = await_found(&service, &alone);
    // A stopped process does not react to the first signal.
    alone.signal(Signal::STOP);
    mode(&service, "enforce");
    await_unleased(&service, alone.pid(), "it is on the record", |stranger| stranger.step == UnleasedStep::Signalled);
    let told = Instant::now();
    service.kill();
    service.restart();
    assert_eq!(alone.end_signal(), Some(9));
    assert!(told.elapsed() >= Duration::from_millis(1900), "it had {:?} of two seconds", told.elapsed());
    let story = await_closed(&service, &stranger.id);
    let sent = |signal: &str| story.matches(&format!("{signal} was sent to")).count();
    assert_eq!((sent("SIGTERM"), sent("SIGKILL")), (1, 1), "{story}");
    assert_eq!(story.matches("is warned").count(), 1, "{story}");
}

/// The daemon is killed after the record and before the signal: the only SIGTERM is sent after the restart.
#[test]
fn a_signal_that_was_on_the_record_and_never_left_is_sent_once_by_the_next_daemon() {
    let mut service = serve();
    let out = service.dir().join("out");
    let mut command = service.command(&["soft", "env", "--", &example("hold"), "512MiB", "--idle", "--deaf"]);
    command.stdout(std::fs::File::create(&out).expect("a file"));
    let deaf = Deaf(command.spawn().expect("a program"));
    let asked = || std::fs::read_to_string(&out).expect("its output").matches("got SIGTERM").count();
    let is_found = |stranger: &UnleasedProcess| stranger.vram_bytes >= Some(512 * MIB);
    let stranger = await_unleased(&service, deaf.0.id(), "it is found", is_found);
    mode(&service, "enforce");
    let monitor = Traced::follow(service.pid(), "sublet-unleased").expect("a thread of an own child");
    monitor.kill_before(libc::SYS_pidfd_send_signal).expect("it is about to signal");
    let told = Instant::now();
    service.kill();
    service.restart();
    until("it was asked to go", LONG, || if asked() == 0 { Err("not yet") } else { Ok(()) });
    until("it ends", LONG, || if is_alive(deaf.0.id()) { Err(asked()) } else { Ok(()) });
    assert!(told.elapsed() >= Duration::from_millis(1800), "it had {:?} of two seconds", told.elapsed());
    assert_eq!(asked(), 1, "how often it was asked to go");
    let story = await_closed(&service, &stranger.id);
    let count = |words: &str| story.matches(words).count();
    assert_eq!((count("SIGTERM was sent to"), count("SIGKILL was sent to")), (1, 1), "{story}");
    // Each daemon recorded the signal before it sent it.
    assert_eq!((count("SIGTERM will be sent"), count("is warned")), (2, 1), "{story}");
}

/// A program that prints each SIGTERM that it gets; killed when this is dropped.
struct Deaf(std::process::Child);

impl Drop for Deaf {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn known_users_get_a_lease_where_that_is_the_mode() {
    let service = serve();
    mode(&service, "adopt");
    let job = WrappedProgram::start(&service, &["--vram", "1G", "--", "true"]);
    assert_eq!(job.end().0, Some(0));
    let alone = UnleasedProgram::start_holding(&service, 512);
    let lease = await_state(&service.client(), "L2", LeaseState::Active);
    assert_eq!(lease.pids, [alone.pid()]);
    let nobody_known = UnleasedProgram::start_holding_as(&service, Some(4711), 512);
    await_found(&service, &nobody_known);
    throughout(Duration::from_secs(8), || assert_eq!(service.client().live_ids(), ["L2"]));
}

#[test]
fn a_service_with_a_standing_request_gets_a_lease_at_each_start() {
    let service = serve();
    mode(&service, "enforce");
    let said =
        successful_output(&service, &["adopt", "exe:sublet-example-hold", "--vram", "1G", "--tier", "interactive"]);
    assert!(said.contains("R1: exe:sublet-example-hold gets a lease for 1 GiB (interactive)"), "{said}");
    for id in ["L1", "L2"] {
        let mut alone = UnleasedProgram::start_holding(&service, 512);
        let lease = await_state(&service.client(), id, LeaseState::Active);
        assert_eq!((lease.pids, lease.vram_bytes), (vec![alone.pid()], Some(1024 * MIB)));
        alone.assert_alive_for(5);
        alone.signal(Signal::TERM);
        service.client().await_lease("it ends with its process", id, |lease| lease.state == LeaseState::Ended);
    }
    successful_output(&service, &["unadopt", "R1"]);
    let alone = UnleasedProgram::start_holding(&service, 512);
    await_found(&service, &alone);
    assert_eq!(alone.end_signal(), None);
}

/// The parents of a process are recorded even after they ended, if the kernel reports process starts to the daemon.
#[test]
fn the_ended_parents_of_an_unleased_process_are_recorded() {
    let service = serve();
    let pid_file = service.dir().join("pid");
    // `soft env` becomes the shell, which starts the program from a second one; both end, and init has it.
    let script = format!(
        "sh -c 'trap \"\" HUP; exec setsid {} 256MiB --idle' > /dev/null & echo $! > {}",
        example("hold"),
        pid_file.display()
    );
    let shell = service.command(&["soft", "env", "--", "bash", "-c", &script]).status().expect("a shell");
    assert!(shell.success());
    let pid: u32 = std::fs::read_to_string(&pid_file).expect("a number").trim().parse().expect("a number");
    let stranger = await_unleased(&service, pid, "it is found", |_| true);
    let story = successful_output(&service, &["audit", "show", &stranger.id]);
    let signalled = rustix::process::Pid::from_raw(pid.cast_signed()).map(|pid| kill_process(pid, Signal::KILL));
    assert_eq!(signalled, Some(Ok(())));
    if service.log().contains("not known: processes that started")
        || service.log().contains("not noticed at once: processes")
    {
        return eprintln!("skipped: the kernel does not tell this user which process started which");
    }
    assert!(story.contains("bash (") && story.contains(", ended) < "), "{story}");
}

/// A script with a lease for one GPU that uses another: there it is an unleased process, and its lease does not help.
#[test]
fn a_program_on_a_gpu_outside_its_lease_is_warned_and_ended_there_and_not_parked() {
    let config = Some(PARKS.to_owned());
    let service =
        TestService::start_with(ServiceSetup { gpu: TestGpu::Named("soft:2x4GiB"), config, ..ServiceSetup::default() });
    successful_output(&service, &["enforce", "mode", "1", "warn"]);
    let line = format!("CUDA_VISIBLE_DEVICES=1 exec {} 512MiB --idle", example("hold"));
    let mut job = WrappedProgram::start(&service, &["--vram", "1G", "--on", "0", "--", "bash", "-c", &line]);
    assert!(job.line().starts_with("holds "), "{}", job.output_text());
    let program = *service.client().lease("L1").pids.last().expect("a process");
    let stranger = await_unleased(&service, program, "it is warned", |stranger| stranger.step == UnleasedStep::Warned);
    assert_eq!((stranger.belongs_to.as_deref(), stranger.lease.as_deref()), (Some("L1"), None), "{stranger:?}");
    assert_eq!((stranger.gpu_indices.as_slice(), stranger.next), ([1].as_slice(), NextStep::Warned), "{stranger:?}");
    assert!(stranger.vram_bytes >= Some(512 * MIB), "{stranger:?}");
    let status = successful_output(&service, &["enforce", "status"]);
    assert!(status.contains("a process of L1, which is not for this GPU"), "{status}");

    // It uses nothing of the GPU of its lease; on the other GPU it is an unleased process.
    let lease = service.client().lease("L1");
    assert_eq!((lease.state, lease.seen_bytes), (LeaseState::Active, Some(0)), "{lease:?}");
    let cards: sublet_wire::Gpus = service.client().get("/v1/gpus").read();
    let there = &cards.gpus[1].occupants;
    assert!(there.iter().any(|one| one.pid == Some(program) && one.state == "unleased"), "{there:?}");

    let refused = service.cli(&["adopt", &program.to_string()]);
    let words = "it is a process of L1, which is for other GPUs: end L1, or ask for all of its GPUs in one lease";
    assert!(!refused.status.success() && text(&refused).contains(words), "{}", text(&refused));
    let preview = successful_output(&service, &["enforce", "preview"]);
    assert!(preview.contains("SIGTERM") && !preview.contains("parked"), "{preview}");
    successful_output(&service, &["enforce", "mode", "1", "enforce", "--yes"]);
    let story = await_closed(&service, &stranger.id);
    assert_in_order(&story, &["belongs to L1, which is not for this GPU", "is warned", "SIGTERM was sent", "got it"]);
    assert!(!story.contains("to be parked") && !story.contains("SIGKILL"), "{story}");
    assert_eq!(job.end().0, Some(0));
    service.client().await_lease("it ends with its process", "L1", |lease| lease.state == LeaseState::Ended);
    successful_output(&service, &["journal", "verify", "--state-dir", &service.state_dir().to_string_lossy()]);
}

/// Heeds no SIGTERM, and becomes another program every moment: another file with another name and command line, which
/// takes its memory anew.
const SHIFTER: &str = r#"
import ctypes, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.environ["PYTHONHOME"] = sys.base_prefix
cuda, turn = ctypes.CDLL("libcuda.so.1"), int(sys.argv[1])
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(256 << 20)) == 0
time.sleep(0.6)
other = os.path.join(os.path.dirname(sys.argv[0]), f"shift-{turn % 2}")
os.execv(other, [f"renamed-{turn}", sys.argv[0], str(turn + 1)])
"#;

/// The audit trails of all unleased processes so far.
fn stories(service: &TestService) -> String {
    let story = |number: u32| service.cli(&["audit", "show", &format!("X{number}")]);
    (1..).map(story).take_while(|output| output.status.success()).map(|output| text(&output)).collect()
}

#[test]
fn repeated_exec_does_not_delay_the_end_of_an_unleased_process() {
    let service = serve();
    let folder = service.dir().join("shifter");
    std::fs::create_dir(&folder).expect("a directory");
    let words = ["soft", "env", "--", "python3", "-c", "import sys; print(sys.executable)"];
    let python = service.command(&words).output().expect("a program");
    let python = String::from_utf8(python.stdout).expect("a path");
    for name in ["shift-0", "shift-1"] {
        std::fs::copy(python.trim(), folder.join(name)).expect("a program");
    }
    let script = folder.join("shift.py");
    std::fs::write(&script, SHIFTER).expect("a script");
    let script = script.to_str().expect("plain");
    let mut shifter = service.command(&["soft", "env", "--", "python3", script, "0"]).spawn().expect("a program");
    let all = Some(256 * MIB);
    let stranger = await_unleased(&service, shifter.id(), "it is found", |stranger| stranger.vram_bytes >= all);
    mode(&service, "enforce");
    let status = until("it ends", LONG, || match shifter.try_wait().expect("an own child") {
        Some(status) => Ok(status),
        None => Err(unleased_processes(&service).processes),
    });
    let stories = stories(&service);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{stories}");
    // Under all names that it has in the trail, it had its time once.
    assert!(stories.contains(&format!("{} uses a GPU without a lease", stranger.id)), "{stories}");
    let sent = |signal: &str| stories.lines().filter(|line| line.contains(signal) && line.contains(" got it")).count();
    assert_eq!((sent("SIGTERM was sent"), sent("SIGKILL was sent")), (1, 1), "{stories}");
    // Which of the two names is recorded depends on the moment of the audit.
    let became = stories.contains("/shift-0") || stories.contains("/shift-1");
    assert!(became, "what it was when something was done to it is on the record: {stories}");
}

/// Two control groups that are no container's, if this user may make some.
struct Groups([std::path::PathBuf; 2]);

impl Groups {
    fn make() -> Option<Groups> {
        let roots = ["", "unified", "freezer", "pids"].map(|root| std::path::Path::new("/sys/fs/cgroup").join(root));
        let roots = roots.into_iter().filter(|root| root.join("cgroup.procs").exists());
        let pair =
            |root: std::path::PathBuf| ["a", "b"].map(|end| root.join(format!("hop-{end}-{}", std::process::id())));
        roots.map(pair).find(|pair| pair.iter().all(|place| std::fs::create_dir(place).is_ok())).map(Groups)
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for place in &self.0 {
            // Its last process may be about to go.
            let gone = || std::fs::remove_dir(place).is_ok();
            let _ = (0..50).any(|_| {
                gone() || {
                    std::thread::sleep(Duration::from_millis(100));
                    false
                }
            });
        }
    }
}

#[test]
fn moving_between_cgroups_does_not_delay_the_end_of_an_unleased_process() {
    let Some(groups) = Groups::make() else {
        return eprintln!("skipped: this user may not make control groups");
    };
    let service = serve();
    let alone = UnleasedProgram::start_holding(&service, 512);
    let stranger = await_found(&service, &alone);
    // A stopped process does not react to the first signal.
    alone.signal(Signal::STOP);
    let (pid, over) = (alone.pid().to_string(), std::sync::atomic::AtomicBool::new(false));
    let (story, signal) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut places = groups.0.iter().cycle();
            while !over.load(std::sync::atomic::Ordering::SeqCst) {
                // It may have ended.
                let _ = places.next().map(|place| std::fs::write(place.join("cgroup.procs"), &pid));
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        mode(&service, "enforce");
        let signal = alone.end_signal();
        over.store(true, std::sync::atomic::Ordering::SeqCst);
        (await_closed(&service, &stranger.id), signal)
    });
    assert_eq!(signal, Some(9), "{story}");
    let sent = |signal: &str| story.lines().filter(|line| line.contains(signal) && line.contains(" got it")).count();
    assert_eq!((sent("SIGTERM was sent"), sent("SIGKILL was sent")), (1, 1), "{story}");
    assert_eq!(story.matches("is warned").count(), 1, "{story}");
}

/// Forks 200 times, and each parent ends at once; the last child becomes the rest of the command line.
const CHAIN: &str = r#"
import os, sys
for _ in range(200):
    if os.fork():
        os._exit(0)
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
"#;

/// Has 200 children that do nothing, and one more, which becomes the rest of the command line.
const WIDE: &str = r#"
import os, sys, time
children = []
for _ in range(200):
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    children.append(str(child))
with open(sys.argv[1], "w") as file:
    file.write(" ".join(children))
last = os.fork()
if last == 0:
    os.execv(sys.argv[2], sys.argv[2:])
os.waitpid(last, 0)
time.sleep(600)
"#;

#[test]
fn the_last_of_many_forks_is_its_leases_where_it_has_one() {
    let service = serve();
    mode(&service, "enforce");
    let pids = service.dir().join("pids");
    for (id, script) in [("L1", CHAIN), ("L2", WIDE)] {
        let line = format!("python3 -c '{script}' {} {} 256MiB --idle & sleep 600", pids.display(), example("hold"));
        let job = WrappedProgram::start(&service, &["--vram", "1G", "--", "bash", "-c", &line]);
        await_bytes(&service.client(), id, 256);
        throughout(Duration::from_secs(5), || {
            let all = unleased_processes(&service).processes;
            assert!(all.is_empty(), "{all:?}");
            assert_eq!(service.client().lease(id).state, LeaseState::Active);
        });
        drop(job);
        service.client().await_lease("it is over", id, |lease| lease.state == LeaseState::Ended);
    }
}

#[test]
fn the_last_of_many_forks_is_found_and_ended_and_no_process_beside_it() {
    let service = serve();
    let mut bystander = std::process::Command::new("sleep").arg("600").spawn().expect("a program");
    let pids = service.dir().join("pids");
    let (file, hold) = (pids.to_str().expect("plain").to_owned(), example("hold"));
    let start = |script: &str| {
        let words = ["soft", "env", "--", "python3", "-c", script, &file, &hold, "256MiB", "--idle"];
        service.command(&words).process_group(0).spawn().expect("a program")
    };
    let told = || std::fs::read_to_string(&pids).expect("a file");
    let lives = |pid: &str| std::path::Path::new("/proc").join(pid).join("exe").exists();

    let mut chain = start(CHAIN);
    assert!(chain.wait().expect("an own child").success(), "the first of the chain ends at once");
    let one = until("the last is found", LONG, || {
        let all = unleased_processes(&service).processes;
        all.iter().find(|it| it.vram_bytes >= Some(256 * MIB)).cloned().ok_or(all)
    });
    assert_eq!(told().trim(), one.pid.to_string(), "it is the last of the chain");
    let mut wide = start(WIDE);
    let other = until("the other is found", LONG, || {
        let all = unleased_processes(&service).processes;
        all.iter().find(|it| it.id != one.id && it.vram_bytes >= Some(256 * MIB)).cloned().ok_or(all)
    });
    let children = told();
    mode(&service, "enforce");
    for stranger in [&one, &other] {
        let story = await_closed(&service, &stranger.id);
        let own = format!("SIGTERM will be sent to {} of {}", stranger.pid, stranger.id);
        assert_in_order(&story, &["is warned", &own, "SIGTERM was sent", "got it"]);
        assert!(!story.contains("SIGKILL"), "{story}");
    }
    assert_eq!(children.split(' ').filter(|child| lives(child)).count(), 200, "its siblings are there");
    assert_eq!(wide.try_wait().expect("an own child"), None, "and their parent");
    assert_eq!(bystander.try_wait().expect("an own child"), None);
    let group = Pid::from_child(&wide);
    rustix::process::kill_process_group(group, Signal::KILL).expect("an own group");
    wide.wait().expect("an own child");
    bystander.kill().expect("an own child");
    bystander.wait().expect("an own child");
}

/// The driver reports Vulkan programs as graphics processes.
#[test]
fn a_graphics_process_with_much_memory_is_recorded_and_not_ended() {
    let service = TestService::start_with(ServiceSetup { config: Some(CONFIG.to_owned()), ..ServiceSetup::default() });
    let mut programs = [0; 2].map(|_| std::process::Command::new("sleep").arg("600").spawn().expect("a program"));
    let [much, little] = programs.each_ref().map(std::process::Child::id);
    let shown = serde_json::json!([
        {"pid": much, "bytes": 4096 * MIB, "graphics": true},
        {"pid": little, "bytes": 100 * MIB, "graphics": true},
    ]);
    service.script(shown, serde_json::Value::Null);
    let stranger = await_unleased(&service, much, "it is found", |_| true);
    assert_eq!((stranger.step, stranger.next), (UnleasedStep::Found, NextStep::Nothing), "{stranger:?}");
    let preview = successful_output(&service, &["enforce", "preview"]);
    assert!(preview.contains("left alone: it only draws, and is only ended if a rule denies it"), "{preview}");
    successful_output(&service, &["enforce", "deny", "exe:sleep"]);
    let denied = successful_output(&service, &["enforce", "preview"]);
    assert!(!denied.contains("it only draws, and is only ended"), "{denied}");
    mode(&service, "warn");
    await_unleased(&service, much, "it is warned", |stranger| stranger.step == UnleasedStep::Warned);
    let card = service.client().card();
    let state = |pid| card.occupants.iter().find(|one| one.pid == Some(pid)).map(|one| one.state.as_str());
    assert_eq!((state(much), state(little)), (Some("unleased"), Some("display")), "{card:?}");
    assert_eq!(
        unleased_processes(&service).processes.len(),
        1,
        "a graphics process with little memory is not recorded"
    );
    for program in &mut programs {
        program.kill().expect("an own child");
        program.wait().expect("an own child");
    }
}
