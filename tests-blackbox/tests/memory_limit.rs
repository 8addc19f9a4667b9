//! Programs in memory cgroups that are smaller than what they have on a GPU: a park must not get them killed.
//!
//! The tests need a memory cgroup of their own (version 1, or version 2 with the memory controller). Where none can be
//! made they say that they were skipped.

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use sublet_blackbox::binary::example;
use sublet_blackbox::programs::{WrappedProgram, await_state, text};
use sublet_blackbox::wait::throughout;
use sublet_blackbox::{LONG, MIB, ServiceSetup, TestGpu, TestService, until};
use sublet_wire::{EndReason, LeaseState};

const CONFIG: &str = r#"
ttl = "10m"
renewal_cap = "10m"
grace = "1s"
[preemption]
idle_after = "1s"
[parking]
ram = "4G"
keep_free = "256M"
ready = "off"
"#;

/// A memory cgroup; gone with the test.
struct MemoryGroup {
    path: PathBuf,
    limit: &'static str,
    used: &'static str,
}

impl MemoryGroup {
    /// `None`, with a line that says so, where this user may make none.
    fn make() -> Option<MemoryGroup> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("sublet-memory-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let versions = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
            ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ];
        for (root, limit, used) in versions {
            let path = Path::new(root).join(&name);
            if !Path::new(root).join("cgroup.procs").exists() || fs::create_dir(&path).is_err() {
                continue;
            }
            if path.join(limit).exists() {
                return Some(MemoryGroup { path, limit, used });
            }
            fs::remove_dir(&path).expect("an empty cgroup can be removed");
        }
        eprintln!("skipped: this user can make no memory cgroup here");
        None
    }

    /// The command line that starts a program in it.
    fn enter(&self) -> [String; 4] {
        let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.path.display());
        ["sh".to_owned(), "-c".to_owned(), enter, "sh".to_owned()]
    }

    fn used(&self) -> u64 {
        let text = fs::read_to_string(self.path.join(self.used)).expect("a file of the cgroup");
        text.trim().parse().expect("a number")
    }

    /// From now on it allows so much more than it has.
    fn leave(&self, bytes: u64) {
        let limit = (self.used() + bytes).to_string();
        fs::write(self.path.join(self.limit), limit).expect("the limit can be set");
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Its last process may be about to go.
        for _ in 0..50 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// A program in a cgroup, once it has its memory on the GPU.
fn holds_in(group: &MemoryGroup, service: &TestService) -> WrappedProgram {
    starts_in(group, service, &[&example("hold"), "1GiB", "--idle"], 1)
}

/// The same of any command that starts so many programs with 1 GiB on the GPU together.
fn starts_in(group: &MemoryGroup, service: &TestService, command: &[&str], programs: u32) -> WrappedProgram {
    let enter = group.enter();
    let mut words = vec!["--vram", "3G", "--"];
    words.extend(enter.iter().map(String::as_str));
    words.extend(command);
    let mut job = WrappedProgram::start(service, &words);
    for _ in 0..programs {
        assert!(job.line().starts_with("holds "), "{}", job.output_text());
    }
    service.client().await_lease("its bytes are seen", "L1", |lease| lease.seen_bytes >= Some(1024 * MIB));
    job
}

fn serve(through: Vec<String>) -> TestService {
    let gpu = TestGpu::Named("soft:1x4GiB");
    TestService::start_with(ServiceSetup { gpu, config: Some(CONFIG.to_owned()), through, ..ServiceSetup::default() })
}

#[test]
fn a_program_is_parked_alive_though_its_cgroup_has_less_left_than_it_has_on_the_gpu() {
    let Some(group) = MemoryGroup::make() else { return };
    let service = serve(Vec::new());
    let client = service.client();
    let job = holds_in(&group, &service);
    group.leave(200 * MIB);
    let before = group.used();
    // A neighbour's request, as in the field.
    let mut other =
        WrappedProgram::start(&service, &["--vram", "3G", "--", &example("hold"), "1GiB", "--seconds", "1"]);
    assert!(other.line().starts_with("holds "), "{}; {}", other.output_text(), job.output_text());
    assert_eq!(client.lease("L1").state, LeaseState::Parked);
    let took = group.used().saturating_sub(before);
    assert!(took < 100 * MIB, "{took} bytes of parked memory are charged to the program");
    assert_eq!(other.end().0, Some(0));
    job.finish("after it was parked in a small cgroup");
}

#[test]
fn a_program_stays_where_neither_its_cgroup_nor_the_daemons_has_the_memory() {
    let (Some(group), Some(own)) = (MemoryGroup::make(), MemoryGroup::make()) else { return };
    let service = serve(own.enter().to_vec());
    let client = service.client();
    let job = holds_in(&group, &service);
    group.leave(200 * MIB);
    own.leave(200 * MIB);
    let refused = service.cli(&["park", "L1"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{refused:?}");
    assert!(said.contains("its memory cgroup has ") && said.contains("MemoryMax="), "{said}");
    until("`ps` says why it cannot be parked", LONG, || {
        let ps = service.cli(&["ps"]);
        let said = String::from_utf8_lossy(&ps.stderr).into_owned();
        if said.contains("L1 cannot be parked now: its memory cgroup has ") { Ok(()) } else { Err(said) }
    });
    // A neighbour's request does not change that.
    let other = WrappedProgram::start(&service, &["--vram", "3G", "--", "true"]);
    throughout(Duration::from_secs(3), || {
        let lease = client.lease("L1");
        assert!(lease.ended.is_none() && lease.state != LeaseState::Parked, "{lease:?}");
    });
    drop(other);
    // With more room it can.
    group.leave(2048 * MIB);
    until("it is parked", LONG, || {
        let parked = service.cli(&["park", "L1"]);
        if parked.status.success() { Ok(()) } else { Err(parked) }
    });
    assert_eq!(client.lease("L1").state, LeaseState::Parked);
    job.finish("after it was parked in its own memory");
}

#[test]
fn two_programs_of_one_cgroup_do_not_both_count_on_its_room() {
    let (Some(group), Some(own)) = (MemoryGroup::make(), MemoryGroup::make()) else { return };
    let service = serve(own.enter().to_vec());
    let hold = example("hold");
    let both = format!("{hold} 512MiB --idle & {hold} 512MiB --idle & wait");
    let _job = starts_in(&group, &service, &["sh", "-c", &both], 2);
    // Enough for either of them, and not for both.
    group.leave(900 * MIB);
    own.leave(200 * MIB);
    let refused = service.cli(&["park", "L1"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("its memory cgroup has "), "{refused:?}");
    let on_the_gpu = || {
        let shown: serde_json::Value =
            serde_json::from_slice(&service.cli(&["soft", "status", "--json"]).stdout).expect("JSON");
        shown["processes"].as_array().map(Vec::len)
    };
    assert_eq!(on_the_gpu(), Some(2), "both live");
}

#[test]
fn a_program_that_dies_while_it_is_being_parked_is_recorded_as_that() {
    let service = serve(Vec::new());
    let client = service.client();
    let job = WrappedProgram::start_holding(&service, "3G", "512MiB", &["--idle"]);
    client.await_lease("its bytes are seen", "L1", |lease| lease.seen_bytes >= Some(512 * MIB));
    let shown: serde_json::Value =
        serde_json::from_slice(&service.cli(&["soft", "status", "--json"]).stdout).expect("JSON");
    let pid = shown["processes"][0]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.and_then(Pid::from_raw).expect("a process");
    // Stopped, it does not answer: it is being parked for as long as that.
    kill_process(pid, Signal::STOP).expect("an own process");
    let mut parking = service.command(&["park", "L1"]).spawn().expect("a command");
    await_state(&client, "L1", LeaseState::Parking);
    kill_process(pid, Signal::KILL).expect("an own process");
    job.end();
    parking.wait().expect("a command");
    // Its wrapper may give the lease back before the daemon hears of the death.
    let ended = until("its death is on the record", LONG, || match client.lease("L1").ended {
        Some(ended) if ended.reason == EndReason::DiedParking => Ok(ended),
        other => Err(other),
    });
    assert!(ended.sentence.contains("its program died while it was being parked"), "{ended:?}");
    let audit = text(&service.cli(&["audit", "--lease", "L1"]));
    assert!(audit.contains("died while it was being parked"), "{audit}");
}
