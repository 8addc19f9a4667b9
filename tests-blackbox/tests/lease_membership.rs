//! Which lease a process belongs to if it names the lease itself, in a container, or if it inherited the descriptors of
//! a process that ended.

use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::CommandExt;
use std::time::Duration;
use sublet_blackbox::binary::example;
use sublet_blackbox::programs::{UnleasedProgram, WrappedProgram, await_bytes, await_state, successful_output};
use sublet_blackbox::unleased::{
    assert_in_order, await_closed, await_found, await_unleased, is_alive, mode, serve, unleased_processes,
};
use sublet_blackbox::wait::throughout;
use sublet_blackbox::{LONG, MIB, TestService, until};
use sublet_wire::{LeaseState, NextStep, UnleasedProcess, UnleasedStep};

/// A cgroup as engines make them, if this user may; gone with the test.
struct ContainerCgroup(std::path::PathBuf);

impl ContainerCgroup {
    fn make() -> Option<ContainerCgroup> {
        let id = format!("{:064x}", std::process::id());
        // Only where cgroups are made: elsewhere it would be a directory like any other.
        let roots = ["", "unified", "freezer", "pids"].map(|root| std::path::Path::new("/sys/fs/cgroup").join(root));
        let roots = roots.into_iter().filter(|root| root.join("cgroup.procs").exists());
        let mut places = roots.map(|root| root.join(format!("docker-{id}.scope")));
        places.find(|place| std::fs::create_dir(place).is_ok()).map(ContainerCgroup)
    }
}

impl Drop for ContainerCgroup {
    fn drop(&mut self) {
        // Its last process may be about to go.
        let gone = || std::fs::remove_dir(&self.0).is_ok();
        let _ = (0..50).any(|_| {
            gone() || {
                std::thread::sleep(Duration::from_millis(100));
                false
            }
        });
    }
}

/// `sublet run -- docker run …`: the engine starts the container elsewhere, as another user, with an environment of
/// its own; it is on the lease all the same. The test is the engine.
#[test]
fn a_container_that_a_holder_started_is_leased() {
    let service = serve();
    mode(&service, "enforce");
    let place = service.dir().join("engine");
    std::fs::create_dir(&place).expect("a directory");
    let docker = place.join("docker");
    // It asks the engine for a container with these variables, and waits for its end.
    let script = format!(
        "#!/bin/sh\ncd {}\nshift\nwhile [ \"$1\" = --env ]; do printenv \"$2\" | sed \"s/^/$2=/\" >> asked.part; shift 2; done\n\
         mv asked.part asked\nwhile [ ! -e over ]; do sleep 0.05; done\n",
        place.display()
    );
    std::fs::write(&docker, script).expect("a script");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&docker, mode).expect("an own file");
    let job = WrappedProgram::start(
        &service,
        &["--vram", "2G", "--", docker.to_str().expect("plain"), "run", "image", "train"],
    );
    let asked = until("the engine is asked", LONG, || std::fs::read_to_string(place.join("asked")));
    assert!(asked.contains("SUBLET_LEASE=L1") && asked.contains("CUDA_VISIBLE_DEVICES="), "{asked}");
    assert!(asked.contains("SUBLET_PROOF="), "{asked}");

    let cgroup = ContainerCgroup::make();
    let other = rustix::process::geteuid().is_root() && cgroup.is_some();
    let mut command = service.command(&["soft", "env", "--", &example("hold"), "512MiB", "--idle"]);
    command.envs(asked.lines().filter_map(|line| line.split_once('=')));
    if other {
        command.uid(4711).gid(4711);
    }
    let mut container = command.stdout(std::process::Stdio::piped()).spawn().expect("a program");
    if let Some(cgroup) = &cgroup {
        std::fs::write(cgroup.0.join("cgroup.procs"), container.id().to_string()).expect("a cgroup");
    }
    await_bytes(&service.client(), "L1", 512);
    throughout(Duration::from_secs(5), || {
        assert_eq!(container.try_wait().expect("an own child"), None, "it was ended");
        let all = unleased_processes(&service).processes;
        assert!(all.iter().all(|stranger| stranger.pid != container.id()), "{all:?}");
    });
    kill_process(Pid::from_child(&container), Signal::TERM).expect("an own child");
    assert!(container.wait().expect("an own child").success());
    std::fs::write(place.join("over"), "").expect("a file");
    assert_eq!(job.end().0, Some(0));
}

/// A user that may start containers can name any lease in them and guess its fence; the proof is known to its owner
/// alone.
#[test]
fn in_a_container_a_lease_that_was_guessed_counts_for_nothing() {
    let mut service = serve();
    let job = WrappedProgram::start_as(&service, None, &["--vram", "2G", "--", "sleep", "600"]);
    let lease = await_state(&service.client(), "L1", LeaseState::Active);
    let mark = lease.proof.clone().expect("its owner is told");
    let cgroup = ContainerCgroup::make();
    let Some(cgroup) = cgroup.filter(|_| sublet_blackbox::user::is_root()) else {
        eprintln!("skipped: this user may not make a cgroup, or not for others");
        return;
    };
    let fence = lease.fence.expect("granted").to_string();
    let start = |service: &TestService, mark: &str| {
        // Opened as root: the user that the program then runs as may not open it.
        let procs = std::fs::OpenOptions::new().write(true).open(cgroup.0.join("cgroup.procs")).expect("a cgroup");
        UnleasedProgram::start_holding_with(service, Some(4711), 512, |command| {
            command.envs([("SUBLET_LEASE", "L1"), ("SUBLET_FENCE", &fence), ("SUBLET_PROOF", mark)]);
            let enter = move || std::io::Write::write_all(&mut &procs, b"0");
            // SAFETY: between fork and exec only one system call is made; nothing is allocated or locked.
            unsafe { command.pre_exec(enter) };
        })
    };
    let last = if mark.ends_with('0') { "1" } else { "0" };
    let forged = start(&service, &format!("{}{last}", &mark[..mark.len() - 1]));
    let stranger = await_found(&service, &forged);
    assert!(stranger.container.is_some(), "{stranger:?}");
    assert_eq!(service.client().lease("L1").seen_bytes.unwrap_or(0), 0);
    let right = start(&service, &mark);
    await_bytes(&service.client(), "L1", 512);
    // The key is on the disk: a restarted daemon knows the same proofs.
    service.kill();
    service.restart();
    let one_more = start(&service, &mark);
    await_bytes(&service.client(), "L1", 1024);
    let all = unleased_processes(&service).processes;
    assert!(all.iter().all(|stranger| ![right.pid(), one_more.pid()].contains(&stranger.pid)), "{all:?}");
    assert!(all.iter().any(|stranger| stranger.pid == forged.pid()), "{all:?}");
    drop((forged, right, one_more, job));
}

/// Other readers of a lease or of the audit trail do not get its proof, and the disk has only the key.
#[test]
fn a_proof_is_shown_to_the_leases_owner_only() {
    let mut service = serve();
    let client = service.client();
    let answer = client.send("POST", "/v1/leases", &[("Idempotency-Key", "k")], br#"{"vram_bytes":1073741824}"#);
    let mark = answer.read::<sublet_wire::Lease>().proof.expect("its owner is told");
    let again = client.send("POST", "/v1/leases", &[("Idempotency-Key", "k")], br#"{"vram_bytes":1073741824}"#);
    assert_eq!(again.read::<sublet_wire::Lease>().proof.as_ref(), Some(&mark), "the second time, too");
    assert_eq!(client.lease("L1").proof.as_ref(), Some(&mark));
    let mut shown: Vec<u8> = ["/v1/leases?all=true", "/v1/leases/L1/explain", "/v1/gpus", "/v1/audit", "/v1/queue"]
        .iter()
        .flat_map(|path| client.get(path).body)
        .collect();
    shown.extend(successful_output(&service, &["audit", "--json"]).into_bytes());
    if sublet_blackbox::user::is_root() {
        let others =
            sublet_blackbox::user::as_user(4711, || client.grant(&serde_json::json!({ "vram_bytes": 1 << 30 })));
        let seen = client.lease(&others.id);
        assert_eq!((others.proof.is_some(), seen.proof), (true, None), "an operator is not told others'");
        assert_eq!(sublet_blackbox::user::as_user(4711, || client.get("/v1/leases/L1").status), 404);
    }
    assert!(service.stop().success());
    for entry in std::fs::read_dir(service.state_dir()).expect("a directory").flatten() {
        shown.extend(std::fs::read(entry.path()).expect("a file"));
    }
    shown.extend(service.log().into_bytes());
    assert!(shown.windows(8).any(|bytes| bytes == b"\"epoch\":"), "all that was read");
    assert!(!shown.windows(mark.len()).any(|bytes| bytes == mark.as_bytes()), "the mark is somewhere");
    service.restart();
    assert_eq!(service.client().lease("L1").proof, Some(mark));
}

/// The children of a program that ended once it had its memory; they have its descriptors.
struct Left {
    opener: u32,
    pids: Vec<u32>,
}

impl Left {
    fn by(service: &TestService, mib: u64, count: u32) -> Left {
        let (size, count) = (format!("{mib}MiB"), count.to_string());
        let mut command = service.command(&["soft", "env", "--", &example("hold"), &size, "--leave", &count]);
        // As a shell does with what is typed there.
        let mut child = command.process_group(0).stdout(std::process::Stdio::piped()).spawn().expect("a program");
        let mut lines = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
        let left = std::iter::repeat_with(|| {
            let mut line = String::new();
            std::io::BufRead::read_line(&mut lines, &mut line).expect("a line");
            assert!(!line.is_empty(), "it ended before it left a child");
            line
        });
        let left = left.filter_map(|line| line.strip_prefix("leaves it to ").map(str::to_owned)).next();
        let pids = left.expect("a line").split_whitespace().map(|pid| pid.parse().expect("a number")).collect();
        let left = Left { opener: child.id(), pids };
        child.wait().expect("an own child");
        left
    }

    fn signal(pid: u32, signal: Signal) {
        let _ = kill_process(Pid::from_raw(pid as i32).expect("a number"), signal);
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        // Some may have ended, which is what is wanted.
        self.pids.iter().filter(|pid| is_alive(**pid)).for_each(|pid| Left::signal(*pid, Signal::KILL));
    }
}

/// The driver still names the process that opened the GPU; the process that holds the memory by an inherited descriptor
/// is found.
#[test]
fn memory_that_is_held_through_a_descriptor_of_one_that_ended_is_attributed_and_its_holder_ended() {
    let service = serve();
    let left = Left::by(&service, 512, 1);
    let stranger = await_unleased(&service, left.pids[0], "its heir is found", |it| it.vram_bytes >= Some(512 * MIB));
    assert!(
        unleased_processes(&service).processes.iter().all(|it| it.pid != left.opener),
        "no record names the dead process"
    );
    mode(&service, "enforce");
    until("it is ended", LONG, || if is_alive(left.pids[0]) { Err("it lives") } else { Ok(()) });
    let story = await_closed(&service, &stranger.id);
    let through = format!("through a descriptor of process {}, which ended", left.opener);
    assert_in_order(&story, &[&through, "is warned", "SIGTERM will be sent", "SIGTERM was sent"]);
    assert!(!story.contains("in order to be parked"), "{story}");
    until("its memory returns", LONG, || {
        let used = service.client().card().used_bytes;
        if used.is_some_and(|used| used < 512 * MIB) { Ok(()) } else { Err(used) }
    });
}

/// Which of several processes holds the memory is unknown: they are recorded and warned until one is left.
#[test]
fn of_several_that_may_hold_a_dead_ones_memory_none_is_signalled_until_it_is_the_last() {
    let service = serve();
    mode(&service, "enforce");
    let left = Left::by(&service, 512, 2);
    let is_one =
        |stranger: &UnleasedProcess| left.pids.contains(&stranger.pid) && stranger.step == UnleasedStep::Warned;
    let first = until("one is warned", LONG, || {
        let all = unleased_processes(&service).processes;
        all.iter().find(|stranger| is_one(stranger)).cloned().ok_or(all)
    });
    assert_eq!(first.next, NextStep::Exempt, "{first:?}");
    throughout(Duration::from_secs(6), || assert!(left.pids.iter().all(|pid| is_alive(*pid))));
    let other = left.pids.iter().copied().find(|pid| *pid != first.pid).expect("there are two");
    Left::signal(other, Signal::KILL);
    until("the last is ended", LONG, || {
        if is_alive(first.pid) { Err(unleased_processes(&service).processes) } else { Ok(()) }
    });
}

/// Memory that a holder's program left to its child belongs to the lease.
#[test]
fn memory_that_a_holders_program_left_to_its_child_is_counted_with_the_lease() {
    let service = serve();
    let line = format!("{} 512MiB --leave 1; exec sleep 600", example("hold"));
    let mut job = WrappedProgram::start(&service, &["--vram", "1G", "--no-shim", "--", "sh", "-c", &line]);
    while !job.line().starts_with("leaves it to ") {}
    // Long enough that a reading no longer shows its opener.
    throughout(Duration::from_secs(4), || assert_eq!(unleased_processes(&service).processes, []));
    await_bytes(&service.client(), "L1", 512);
}
