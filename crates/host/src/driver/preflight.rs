//! Examines a process from outside, before the driver is asked for anything about it.
//!
//! Some processes cannot be moved, and with some drivers the attempt ends them. What can be known without touching a
//! process is read from `/proc` and from its cgroups. What leaves no trace there (for example memory shared through
//! CUDA IPC without an event) the driver itself must refuse.

use super::hazard::{self, Hazard};
use super::protocol::DriverFacts;
use crate::headroom::{Booker, Bookings, MemoryCgroup, UnknownRoom};
use crate::process::{self, Environment, Identity, Uids};
use crate::timed_read;
use std::path::PathBuf;
use std::{fs, io};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::units::Bytes;

/// The variable that tells an MPS client where its server is.
const MPS_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// The default folder of the pipes of MPS, and how the names of its own processes begin.
const MPS_FILES: &str = "/nvidia-mps";
const MPS_NAME: &str = "nvidia-cuda-mps";
/// These name a part of a GPU (MIG) as `MIG-…`. The files below `/dev/nvidia-caps` say nothing: programs on whole
/// GPUs open some of them too.
const GPU_VARIABLES: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"];
const MANAGED_FILE: &str = "/dev/nvidia-uvm";
/// CUDA shares events between processes through files of this name.
const IPC_FILES: &str = "/dev/shm/cuda.shm.";
/// Bytes read of the mappings of a process.
const MAPS_MAX: u64 = 32 << 20;
/// `CAP_SYS_PTRACE`.
const PTRACE: u32 = 19;

/// Checks whether a process of a lease of this user can be moved; `bytes` is what the lease has on GPUs. The error is
/// one plain sentence. Host memory that `lease` has booked already counts as free.
pub(crate) fn examine(
    (process, uid): (ProcKey, u32),
    lease: LeaseId,
    bytes: u64,
    facts: &DriverFacts,
    bookings: &Bookings,
) -> Result<(), String> {
    let rules = rules_for_driver(facts)?;
    let found = check_responds(process)?;
    let label = format!("process {} ({})", process.pid, found.name);
    check_user(&found, uid)?;
    check_owner(&found, &label)?;
    let signs = Signs::read(process.pid).map_err(|error| format!("what {label} has mapped cannot be read: {error}"))?;
    if let Some(rule) = rules.iter().find(|rule| signs.includes(rule.hazard)) {
        return Err(format!("{label} stays where it is: {}", rule.why));
    }
    check_whole_gpu(process.pid, &found.name, &label)?;
    let unknown = |error: UnknownRoom| format!("the memory limit of {label} cannot be read: {error}");
    let Some(cgroup) = MemoryCgroup::of(process.pid).map_err(unknown)? else { return Ok(()) };
    match bookings.room(&cgroup, Booker::Driver(lease)).map_err(unknown)? {
        Some(room) if room < bytes => {
            let (room, bytes) = (Bytes(room), Bytes(bytes));
            Err(format!("{label} may have {room} more of host memory (its cgroup), and its {bytes} would go there"))
        }
        _ => Ok(()),
    }
}

/// Checks that all uids of a process are the lease's user: a user must not have another user's process (`sudo`, `su`)
/// stopped.
pub(super) fn check_user(found: &Identity, uid: u32) -> Result<(), String> {
    let pid = found.key.pid;
    match Uids::read(pid).map_err(|error| error.to_string())?.other_than(uid) {
        None => Ok(()),
        Some(other) => Err(format!(
            "process {pid} ({}) runs as uid {other}, not as the lease's user: Sublet neither signals nor parks it",
            found.name
        )),
    }
}

/// Checks that exactly this process lives and responds. Called again right before each driver call.
pub(crate) fn check_responds(process: ProcKey) -> Result<Identity, String> {
    let pid = process.pid;
    let found = process::identify(pid).map_err(|error| error.to_string())?;
    if found.key != process {
        return Err(format!("process {pid} has ended, and another has its number now"));
    }
    // A stopped process makes the driver wait for it, whatever the timeout.
    match process::stat(pid) {
        Ok(stat) if matches!(stat.state, b'T' | b't') => Err(format!(
            "process {pid} ({}) is stopped (Ctrl-Z): it cannot be parked until it continues (`fg`, or `kill -CONT {pid}`)",
            found.name
        )),
        // Its mappings and open files cannot be read any more, so it is unknown what would be lost.
        Ok(stat) if stat.state == b'Z' => Err(format!("the first thread of process {pid} ({}) has ended", found.name)),
        _ => Ok(found),
    }
}

fn rules_for_driver(facts: &DriverFacts) -> Result<Vec<&'static hazard::HazardRule>, String> {
    if !facts.calls {
        return Err("this driver cannot take a process off its GPUs".to_owned());
    }
    let version = facts.driver.as_deref();
    let branch = version.and_then(hazard::branch).ok_or("the driver does not say which version it is")?;
    let rules: Vec<_> = hazard::rules_for_branch(branch).collect();
    match rules.iter().find(|rule| rule.hazard == Hazard::Moving) {
        Some(rule) => Err(rule.why.to_owned()),
        None => Ok(rules),
    }
}

fn check_owner(found: &Identity, label: &str) -> Result<(), String> {
    let may = may_move_others() || rustix::process::geteuid().as_raw() == found.uid;
    if may { Ok(()) } else { Err(format!("{label} is another user's, and Sublet has no right to move it")) }
}

/// True if processes of other users can be moved.
pub(super) fn may_move_others() -> bool {
    rustix::process::geteuid().is_root() || has_capability(PTRACE)
}

fn has_capability(number: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    effective.is_some_and(|set| set & (1 << number) != 0)
}

/// What can be seen of a process from outside.
struct Signs {
    managed_mappings: usize,
    shared_files: usize,
    threads: Vec<String>,
}

impl Signs {
    fn read(pid: u32) -> io::Result<Signs> {
        let maps = timed_read::read(format!("/proc/{pid}/maps"), MAPS_MAX)?;
        Ok(Signs::from(&String::from_utf8_lossy(&maps), threads(pid)))
    }

    fn from(maps: &str, threads: Vec<String>) -> Signs {
        // `7f..-7f.. rw-s 0 00:05 612 /dev/nvidia-uvm`: the file is the sixth word.
        let files = || maps.lines().filter_map(|line| line.split_ascii_whitespace().nth(5));
        Signs {
            managed_mappings: files().filter(|file| *file == MANAGED_FILE).count(),
            shared_files: files().filter(|file| file.starts_with(IPC_FILES)).count(),
            threads,
        }
    }

    fn includes(&self, hazard: Hazard) -> bool {
        match hazard {
            Hazard::Moving => true,
            // The driver keeps one mapping for itself.
            Hazard::Managed => self.managed_mappings > 1,
            Hazard::Ipc => self.shared_files > 0,
            // `pt_nccl_watchdg`, `NCCL Service 0` and the like.
            Hazard::Nccl => self.threads.iter().any(|name| name.to_ascii_lowercase().contains("nccl")),
            Hazard::Threads => self.threads.len() > 1,
        }
    }
}

fn threads(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok()).collect()
}

/// MPS and MIG share a GPU below the process: neither can be moved.
fn check_whole_gpu(pid: u32, name: &str, label: &str) -> Result<(), String> {
    // An unreadable environment is not taken for harmless.
    let unreadable = |error| format!("the environment of {label} cannot be read: {error}");
    let environment = Environment::read(pid).map_err(unreadable)?;
    let unread = |error: io::Error| format!("what {label} has open cannot be read: {error}");
    let mut open = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).map_err(unread)? {
        // It may close a file meanwhile.
        open.extend(fs::read_link(entry.map_err(unread)?.path()));
    }
    let has_open = |part: &str| open.iter().any(|file: &PathBuf| file.to_string_lossy().contains(part));
    if name.starts_with(MPS_NAME) || environment.get(MPS_VARIABLE).is_some() || has_open(MPS_FILES) {
        return Err(format!("{label} uses its GPU through MPS, which cannot be moved"));
    }
    let has_a_part = |name: &&str| environment.get(name).is_some_and(|gpu_thread| gpu_thread.starts_with("MIG-"));
    if GPU_VARIABLES.iter().any(has_a_part) {
        return Err(format!("{label} has a part of a GPU (MIG), which cannot be moved"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn facts(driver: Option<&str>) -> DriverFacts {
        DriverFacts { cuda: 13_000, driver: driver.map(str::to_owned), calls: true }
    }

    fn own_uid() -> u32 {
        rustix::process::getuid().as_raw()
    }

    fn examine_with(process: (ProcKey, u32), bytes: u64, facts: &DriverFacts) -> Result<(), String> {
        examine(process, LeaseId(1), bytes, facts, &Bookings::default())
    }

    #[test]
    fn a_process_of_another_user_than_the_leases_is_not_moved() {
        let sleeper = Sleeper::new(&[]);
        let result = examine_with((sleeper.key(), own_uid() + 1), 1, &facts(Some("580.1")));
        let why = format!("runs as uid {}, not as the lease's user", own_uid());
        assert!(result.unwrap_err().contains(&why));
    }

    fn examine_on_driver(driver: &str, process: ProcKey, bytes: u64) -> Result<(), String> {
        examine_with((process, own_uid()), bytes, &facts(Some(driver)))
    }

    struct Sleeper(Child);

    impl Sleeper {
        fn new(environment: &[(&str, &str)]) -> Sleeper {
            let child =
                Command::new("sleep").arg("600").env("LANG", "C").envs(environment.iter().copied()).spawn().unwrap();
            // A program that was just started has no environment yet.
            while fs::read(format!("/proc/{}/environ", child.id())).unwrap().is_empty() {
                std::thread::yield_now();
            }
            Sleeper(child)
        }

        fn key(&self) -> ProcKey {
            process::identify(self.0.id()).unwrap().key
        }

        fn signal(&self, signal: rustix::process::Signal) {
            rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), signal).unwrap();
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_plain_process_can_be_moved() {
        assert_eq!(examine_on_driver("580.1", Sleeper::new(&[]).key(), 1), Ok(()));
    }

    #[test]
    fn a_driver_without_the_calls_is_reported_before_anything_else() {
        let key = Sleeper::new(&[]).key();
        assert!(examine_on_driver("535.1", key, 1).unwrap_err().contains("before 570"));
        let none = facts(None);
        let result = examine_with((key, own_uid()), 1, &none);
        assert!(result.unwrap_err().contains("which version"));
        let old = DriverFacts { calls: false, ..facts(Some("580.1")) };
        assert!(examine_with((key, own_uid()), 1, &old).is_err());
    }

    #[test]
    fn a_stopped_process_is_refused_with_that_reason() {
        let sleeper = Sleeper::new(&[]);
        sleeper.signal(rustix::process::Signal::STOP);
        while check_responds(sleeper.key()).is_ok() {
            std::thread::yield_now();
        }
        assert!(examine_on_driver("580.1", sleeper.key(), 1).unwrap_err().contains("(sleep) is stopped (Ctrl-Z)"));
    }

    #[test]
    fn a_process_that_ended_is_gone_before_it_is_reaped() {
        let sleeper = Sleeper::new(&[]);
        let key = sleeper.key();
        sleeper.signal(rustix::process::Signal::KILL);
        while process::is_running(key) {
            std::thread::yield_now();
        }
        assert!(examine_on_driver("580.1", key, 1).unwrap_err().starts_with("there is no process"));
    }

    #[test]
    fn a_pid_with_another_start_is_another_process() {
        let key = Sleeper::new(&[]).key();
        let other = ProcKey { start: key.start + 1, ..key };
        assert!(examine_on_driver("580.1", other, 1).is_err());
    }

    #[test]
    fn mps_clients_and_mig_programs_are_not_moved() {
        let mps = Sleeper::new(&[(MPS_VARIABLE, "/tmp/nvidia-mps")]);
        assert!(examine_on_driver("580.1", mps.key(), 1).unwrap_err().contains("MPS"));
        let mig = Sleeper::new(&[("CUDA_VISIBLE_DEVICES", "MIG-41b35a7c")]);
        assert!(examine_on_driver("580.1", mig.key(), 1).unwrap_err().contains("MIG"));
    }

    #[test]
    fn a_program_of_several_threads_is_not_moved_from_driver_610_on() {
        let own = process::identify(std::process::id()).unwrap().key;
        let (release, released) = std::sync::mpsc::channel::<()>();
        let second = std::thread::spawn(move || released.recv());
        assert!(examine_on_driver("610.1", own, 1).unwrap_err().contains("several threads"));
        assert_eq!(examine_on_driver("580.1", own, 1), Ok(()));
        drop(release);
        let _ = second.join();
    }

    #[test]
    fn managed_memory_and_nccl_are_recognised_from_outside() {
        let uvm = "7f00-7f01 rw-s 00000000 00:05 612  /dev/nvidia-uvm\n";
        let tools = "7f01-7f02 rw-s 00000000 00:05 613  /dev/nvidia-uvm-tools\n";
        let shown = |maps: &str, hazard| Signs::from(maps, Vec::new()).includes(hazard);
        assert!(!shown(&[uvm, tools].concat(), Hazard::Managed));
        assert!(shown(&[uvm, uvm].concat(), Hazard::Managed));
        let ipc = "7f01-7f02 rw-s 00000000 00:1a 9  /dev/shm/cuda.shm.0.4d2.1\n";
        assert!(shown(ipc, Hazard::Ipc) && !shown(uvm, Hazard::Ipc));
        let named = |name: &str| Signs::from("", vec![name.to_owned()]).includes(Hazard::Nccl);
        assert!(named("pt_nccl_watchdg\n") && named("NCCL Service 0\n") && !named("python\n"));
    }

    #[test]
    fn more_than_a_cgroup_allows_is_refused() {
        let own = process::identify(std::process::id()).unwrap().key;
        // Without any limit there is nothing to refuse.
        let cgroup = MemoryCgroup::of(own.pid).unwrap();
        let room = cgroup.and_then(|cgroup| Bookings::default().room(&cgroup, Booker::Driver(LeaseId(1))).unwrap());
        assert_eq!(examine_on_driver("580.1", own, u64::MAX).is_err(), room.is_some());
    }
}
