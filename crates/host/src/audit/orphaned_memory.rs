//! Processes that may hold GPU memory through a descriptor of a process that ended.
//!
//! The driver names the process that opened a GPU's file. A child that inherited the descriptor keeps the memory when
//! the opener ends, and the driver goes on naming the ended process. So the descendants of that process that have a
//! GPU's file open are searched: by the forks that were received, and by session and process group, of which the
//! number is not reused while a process is in them.
//!
//! Absent: which of several candidates it is. The kernel does not say which processes share a descriptor with one
//! that has ended.

use super::{AncestorHistory, GpuDeviceFiles};
use crate::process;
use std::collections::BTreeSet;
use sublet_core::ids::ProcKey;

/// The processes that descend from an ended one and have a GPU's file open, the oldest first. A process that the
/// driver names itself is left out: its descriptors are its own.
pub(crate) fn find_inheritors(
    dead: u32,
    on_gpus: &BTreeSet<u32>,
    devices: &GpuDeviceFiles,
    ancestors: &AncestorHistory,
) -> Result<Vec<ProcKey>, process::ProcessError> {
    let mut found = Vec::new();
    for pid in process::all_pids()? {
        if pid == dead || pid == std::process::id() || on_gpus.contains(&pid) {
            continue;
        }
        let Ok(stat) = process::stat(pid) else { continue };
        let descends_from = || stat.session == dead || stat.group == dead || ancestors.descends_from(pid, dead);
        if stat.has_ended() || stat.is_kernel || !descends_from() {
            continue;
        }
        // A process that this service started reads the GPUs itself.
        let is_ours = process::ancestry(pid).iter().any(|parent| parent.pid == std::process::id());
        if !is_ours && devices.has_open(&process::proc_folder(pid, &stat)) {
            found.push(stat.key(pid));
        }
    }
    found.sort_by_key(|process| (process.start, process.pid));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    struct Family(Child, Vec<u32>);

    /// A shell that leads a process group and ends; its children stay, with or without the GPU's file.
    fn family(script: &str) -> Family {
        let mut shell = Command::new("sh");
        let mut shell = shell.args(["-c", script]).process_group(0).stdout(Stdio::piped()).spawn().unwrap();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut shell.stdout.take().unwrap(), &mut text).unwrap();
        shell.wait().unwrap();
        Family(shell, text.split_whitespace().map(|pid| pid.parse().unwrap()).collect())
    }

    impl Drop for Family {
        fn drop(&mut self) {
            for pid in &self.1 {
                let pid = rustix::process::Pid::from_raw(*pid as i32).unwrap();
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }

    #[test]
    fn descendants_of_an_ended_process_with_an_open_gpu_file_are_found() {
        let gpu_file = tempfile::NamedTempFile::new().unwrap();
        let devices = GpuDeviceFiles::new([gpu_file.path().to_owned()]);
        let path = gpu_file.path().display();
        let script = format!(
            "sleep 600 >/dev/null 3<{path} & echo $!; sleep 600 >/dev/null & echo $!; sleep 600 >/dev/null 3<{path} & echo $!"
        );
        let family = family(&format!("setsid sh -c '{script}'"));
        let leader = process::stat(family.1[0]).unwrap().session;
        let find = |dead, on_gpus: &[u32]| {
            let on_gpus = on_gpus.iter().copied().collect();
            let found = find_inheritors(dead, &on_gpus, &devices, &AncestorHistory::default()).unwrap();
            found.into_iter().map(|process| process.pid).collect::<Vec<_>>()
        };
        let sleeping =
            |pid: u32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == b"sleep\x00600\0");
        // While its parents live it descends from this test, like a process that the service started.
        let is_left = |pid: u32| !process::ancestry(pid).iter().any(|parent| parent.pid == std::process::id());
        // A shell starts three programs and ends; on a busy machine that takes a second.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !family.1.iter().all(|pid| sleeping(*pid) && is_left(*pid)) {
            assert!(Instant::now() < deadline, "the children are not where they should be: {:?}", family.1);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(find(leader, &[]), [family.1[0], family.1[2]]);
        assert_eq!(find(leader, &[family.1[0]]), [family.1[2]], "the driver names that one itself");
        assert_eq!(find(family.0.id(), &[]), [] as [u32; 0], "they left its group and its session");
        assert_eq!(find(u32::MAX, &[]), [] as [u32; 0]);
    }
}
