//! Whether the shim does anything in this process: under tools that look into the driver it does not.
//!
//! Profilers and debuggers put libraries of their own before the driver, follow what a program allocates, and
//! stop it where they like. Two such layers spoil each other, so the shim steps aside: every call goes
//! straight to the driver, there is no thread and no line to the daemon. The daemon is told once, before the
//! line is dropped; a process that has no line is not parked. A debugger that comes later finds the shim at
//! work: it is found out when the program first asks for the driver.

use crate::log;
use crate::message::SOCKET;
use std::sync::OnceLock;

/// Variables that a tool sets for the programs it starts, and what people call it. Not those that people
/// set themselves to have a tool the way they like it, and not the ones of annotations alone (NVTX).
const TOOLS: &[(&str, &str)] = &[
    ("NSYS_PROFILING_SESSION_ID", "Nsight Systems"),
    ("NV_SANITIZER_INJECTION_PORT_BASE", "Compute Sanitizer"),
    ("NV_SANITIZER_INJECTION_PORT_RANGE_BEGIN", "Compute Sanitizer"),
    ("NV_SANITIZER_INJECTION_TRANSPORT_TYPE", "Compute Sanitizer"),
    ("NV_COMPUTE_PROFILER_PERFWORKS_DIR", "Nsight Compute"),
    ("NV_COMPUTE_PROFILER_INJECTION_PATH", "Nsight Compute"),
    ("NV_NSIGHT_INJECTION_TRANSPORT_TYPE", "Nsight Compute"),
    ("NV_NSIGHT_INJECTION_PORT_BASE", "Nsight Compute"),
    ("NVPROF_ID", "nvprof"),
    ("CUDA_MEMCHECK", "cuda-memcheck"),
    // Of any tool: the driver loads it.
    ("CUDA_INJECTION64_PATH", "a tool that the driver loads"),
];

/// A debugger's name begins so.
const DEBUGGER: &str = "cuda-gdb";

/// How it is with this process.
enum Way {
    On,
    /// Somebody said that it shall do nothing, or it must not.
    Off,
    /// The tool that is there.
    Aside(String),
}

fn way() -> &'static Way {
    static WAY: OnceLock<Way> = OnceLock::new();
    WAY.get_or_init(|| {
        // SAFETY: it takes a number and reads what the kernel gave the process.
        let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
        // A program with rights of its own does not listen to its caller's environment.
        if is_secure || std::env::var_os("SUBLET_SHIM").is_some_and(|value| value == "off") {
            return Way::Off;
        }
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        tool(is_set, debugger().as_deref()).map_or(Way::On, Way::Aside)
    })
}

/// The tool that a process runs under, if any.
fn tool(is_set: impl Fn(&str) -> bool, debugger: Option<&str>) -> Option<String> {
    let found = TOOLS.iter().find(|(name, _)| is_set(name)).map(|(_, tool)| (*tool).to_owned());
    found.or_else(|| debugger.filter(|name| name.starts_with(DEBUGGER)).map(|_| DEBUGGER.to_owned()))
}

/// The name of the process that traces this one.
fn debugger() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let pid: u32 = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    (pid != 0).then(|| name.trim_end().to_owned())
}

/// Whether the shim does anything.
pub fn is_on() -> bool {
    matches!(way(), Way::On)
}

/// The program asks for the driver: if a tool is in the shim's place, people and the daemon are told.
pub fn tell() {
    static TOLD: OnceLock<()> = OnceLock::new();
    if let (Way::Aside(tool), Some(_)) = (way(), std::env::var_os(SOCKET)) {
        TOLD.get_or_init(|| {
            log::say(&format!("this program runs under {tool}: it cannot be parked, and its memory is not capped"));
            crate::control::say_aside(tool);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::tool;

    #[test]
    fn tools_are_known_by_what_they_set_and_settings_of_people_are_not_tools() {
        let under = |name: &'static str| tool(|asked| asked == name, None);
        assert_eq!(under("NSYS_PROFILING_SESSION_ID").as_deref(), Some("Nsight Systems"));
        assert_eq!(under("NV_SANITIZER_INJECTION_PORT_BASE").as_deref(), Some("Compute Sanitizer"));
        assert_eq!(under("NV_COMPUTE_PROFILER_PERFWORKS_DIR").as_deref(), Some("Nsight Compute"));
        for setting in ["NVTX_INJECTION64_PATH", "NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT", "CUDA_HOME"] {
            assert_eq!(under(setting), None, "{setting}");
        }
        assert_eq!(tool(|_| false, Some("cuda-gdb-minima")).as_deref(), Some("cuda-gdb"));
        assert_eq!(tool(|_| false, Some("gdb")), None);
    }
}
