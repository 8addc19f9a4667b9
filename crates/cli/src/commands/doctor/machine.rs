//! Checks of the machine: kernel, driver, library, capabilities, cgroups.

use super::{Check, CheckState};
use crate::daemon::nvidia_visible;
use crate::hold::scope;
use rustix::fs::{Access, access};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use sublet_softgpu::{NOTICE, library_dir};

/// NVIDIA's management library.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// The folders to search if the linker's cache cannot be read.
const LIBRARY_DIRS: [&str; 5] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/lib/wsl/lib"];
/// What is known about WSL2, all of it untested.
const WSL: &str = "\
Sublet was not tested on WSL2
NVML tells no memory per process there, and `nvidia-smi` lists no processes: free memory is counted for each GPU as a \
whole, and processes without a lease are not found
leases, the queue, caps and parking with the preloaded library do not need that, and should work
the driver's checkpoint is not available there: programs without the library are not parked";
/// Each capability's name and bit, and what is lost without it.
const CAPABILITIES: [(&str, u32, &str); 4] = [
    ("CAP_KILL", 5, "processes of other users without a lease cannot be ended where `sublet enforce` wants it"),
    (
        "CAP_SYS_PTRACE",
        19,
        "the environment and device files of other users' processes cannot be read: a process that left its process tree counts as unleased",
    ),
    ("CAP_NET_ADMIN", 12, "process starts and exits are found by polling, not told by the kernel"),
    ("CAP_DAC_OVERRIDE", 1, "users get no message on their terminals when their programs are parked or warned"),
];

/// All checks of the machine, for a daemon with GPUs of this kind.
pub fn checks(daemon: Option<u32>, kind: Option<&str>) -> Vec<Check> {
    let missed = absent(kind);
    let mut checks = vec![kernel(), driver(missed), library(missed)];
    match kind {
        Some("soft") => checks.push(soft(NOTICE)),
        None if !nvidia_visible() => checks
            .push(soft("no NVIDIA device is visible: `sublet serve` takes soft GPUs here, if it never had real ones")),
        _ => {}
    }
    checks.push(cgroup());
    checks.extend(capabilities(daemon));
    checks
}

/// Says clearly that the GPUs are soft, so that they are not mistaken for real ones.
fn soft(sentence: &str) -> Check {
    match library_dir::library_dir() {
        Ok(dir) => Check::new(
            "soft GPUs",
            CheckState::Limited,
            format!("{sentence}\ntheir libraries are in {}", dir.display()),
        ),
        Err(error) => Check::new("soft GPUs", CheckState::Bad, format!("{error}\nhint: {}", error.hint())),
    }
}

fn kernel() -> Check {
    let name = rustix::system::uname();
    let release = format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy());
    let version = fs::read_to_string("/proc/version").unwrap_or_default();
    kernel_check(&release, &version, Path::new("/dev/dxg").exists())
}

/// Checks a kernel by its release, its /proc/version, and whether it has WSL's GPU device.
fn kernel_check(release: &str, version: &str, has_dxg: bool) -> Check {
    match has_dxg || version.to_ascii_lowercase().contains("microsoft") {
        true => Check::new("kernel", CheckState::Limited, format!("{release} (WSL)\n{WSL}")),
        false => Check::new("kernel", CheckState::Ok, release),
    }
}

fn driver(missed: CheckState) -> Check {
    match fs::read_to_string("/proc/driver/nvidia/version") {
        Ok(text) => Check::new("driver", CheckState::Ok, text.lines().next().unwrap_or_default().trim().to_owned()),
        Err(_) => Check::new("driver", missed, "no NVIDIA kernel module: /proc/driver/nvidia/version is missing"),
    }
}

fn library(missed: CheckState) -> Check {
    match find_library() {
        Some(path) => Check::new("library", CheckState::Ok, path.display().to_string()),
        None => {
            let sentence =
                format!("{LIBRARY} was not found\nhint: it comes with the driver; in a container it must be passed in");
            Check::new("library", missed, sentence)
        }
    }
}

/// The severity of a missing NVIDIA driver or library. Soft and scripted GPUs need neither.
fn absent(kind: Option<&str>) -> CheckState {
    if matches!(kind, Some("soft" | "scripted")) { CheckState::Limited } else { CheckState::Bad }
}

/// Searches the linker's cache; nothing is loaded.
fn find_library() -> Option<PathBuf> {
    let ldconfig = ["/sbin/ldconfig", "/usr/sbin/ldconfig"].into_iter().find(|path| Path::new(path).exists());
    let listed = ldconfig.and_then(|path| Command::new(path).arg("-p").output().ok());
    let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let in_cache = listed.lines().find(|line| line.trim().starts_with(LIBRARY)).and_then(|line| line.split_once("=> "));
    let cached = in_cache.map(|(_, path)| PathBuf::from(path.trim()));
    cached.or_else(|| LIBRARY_DIRS.into_iter().map(|dir| Path::new(dir).join(LIBRARY)).find(|path| path.exists()))
}

fn cgroup() -> Check {
    match scope::own_directory() {
        None => Check::new(
            "cgroup",
            CheckState::Limited,
            "no cgroup v2 here: holders are known by descent and environment only",
        ),
        Some(dir)
            if access(&dir, Access::WRITE_OK).is_ok() && access(dir.join("cgroup.procs"), Access::WRITE_OK).is_ok() =>
        {
            Check::new(
                "cgroup",
                CheckState::Ok,
                format!("`sublet run` makes one for each command below {}", dir.display()),
            )
        }
        Some(dir) => {
            let sentence =
                format!("{} cannot be written: holders are known by descent and environment only", dir.display());
            Check::new("cgroup", CheckState::Limited, sentence)
        }
    }
}

fn capabilities(daemon: Option<u32>) -> Vec<Check> {
    let of_daemon = daemon.and_then(|pid| effective(&pid.to_string())).map(|mask| (mask, "the daemon"));
    let Some((mask, who)) = of_daemon.or_else(|| effective("self").map(|mask| (mask, "a daemon started as you")))
    else {
        return vec![Check::new("capabilities", CheckState::Limited, "they cannot be read from /proc")];
    };
    let check = |(name, bit, lost): (&str, u32, &str)| match mask >> bit & 1 {
        1 => Check::new(name, CheckState::Ok, format!("{who} has it")),
        _ => Check::new(name, CheckState::Limited, format!("{who} does not have it: {lost}")),
    };
    CAPABILITIES.into_iter().map(check).collect()
}

fn effective(pid: &str) -> Option<u64> {
    parse_effective(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn parse_effective(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_the_mask() {
        assert_eq!(parse_effective("Name:\tx\nCapEff:\t000000000000002a\n"), Some(0x2a));
        assert_eq!(parse_effective("Name:\tx\n"), None);
        assert!(effective("self").is_some());
    }

    #[test]
    fn wsl_is_recognised_and_its_limits_are_named() {
        let version = "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@941d701f84f1)";
        for check in [kernel_check("Linux 5.15", version, false), kernel_check("Linux 5.15", "", true)] {
            assert_eq!(check.state, CheckState::Limited);
            assert!(check.sentence.starts_with("Linux 5.15 (WSL)\nSublet was not tested on WSL2\n"), "{check:?}");
            assert!(check.sentence.contains("no memory per process") && check.sentence.contains("checkpoint"));
        }
        assert_eq!(kernel_check("Linux 6.1", "Linux version 6.1.0 (debian)", false).state, CheckState::Ok);
    }

    #[test]
    fn every_check_of_this_machine_has_words() {
        for check in checks(None, Some("scripted")) {
            assert!(!check.sentence.is_empty(), "{}", check.what);
            assert_ne!(check.state, CheckState::Bad, "scripted GPUs need nothing: {}", check.sentence);
        }
    }
}
