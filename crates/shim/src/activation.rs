//! Whether the shim is active in this process: under tools that look into the driver it is not.
//!
//! Profilers and debuggers put libraries of their own before the driver, follow what a program allocates, and stop it
//! at any point. Two such layers spoil each other, so the shim steps aside: every call goes straight to the driver, and
//! there is no thread and no connection to the daemon. The daemon is told once, before the connection is closed; a
//! process without a connection is not parked. The check is made when the program first asks for the driver, so a
//! debugger that attaches later finds the shim active.

use crate::lease_setting;
use crate::log;
use std::sync::OnceLock;

/// Variables that a tool sets for the programs it starts, and the tool's usual name. Variables with which users
/// configure a tool are not listed, nor are those for annotations alone (NVTX).
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
    // Any tool: the driver loads it.
    ("CUDA_INJECTION64_PATH", "a tool that the driver loads"),
];

/// The names of debuggers begin with this.
const DEBUGGER: &str = "cuda-gdb";

/// The state of the shim in this process.
enum ShimMode {
    Active,
    /// The user turned the shim off, or the process must not use it.
    Off,
    /// A tool is present; its name.
    UnderTool(String),
}

fn mode() -> &'static ShimMode {
    static MODE: OnceLock<ShimMode> = OnceLock::new();
    MODE.get_or_init(|| {
        // SAFETY: it takes a number and reads what the kernel gave the process.
        let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
        // A program with elevated rights ignores its caller's environment.
        if is_secure || std::env::var_os("SUBLET_SHIM").is_some_and(|value| value == "off") {
            return ShimMode::Off;
        }
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        detect_tool(is_set, tracer_name().as_deref()).map_or(ShimMode::Active, ShimMode::UnderTool)
    })
}

/// The tool that the process runs under; `None` if there is none.
fn detect_tool(is_set: impl Fn(&str) -> bool, debugger: Option<&str>) -> Option<String> {
    let found = TOOLS.iter().find(|(name, _)| is_set(name)).map(|(_, tool)| (*tool).to_owned());
    found.or_else(|| debugger.filter(|name| name.starts_with(DEBUGGER)).map(|_| DEBUGGER.to_owned()))
}

/// The name of the process that traces this one.
fn tracer_name() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let pid: u32 = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    (pid != 0).then(|| name.trim_end().to_owned())
}

/// True if the shim is active.
pub fn is_active() -> bool {
    matches!(mode(), ShimMode::Active)
}

/// Called when the program asks for the driver: if a tool takes the shim's place, the user and the daemon are told.
pub fn report_tool() {
    static REPORTED: OnceLock<()> = OnceLock::new();
    if let (ShimMode::UnderTool(tool), Some(_)) = (mode(), lease_setting::socket()) {
        REPORTED.get_or_init(|| {
            log::say(&format!("this program runs under {tool}: it cannot be parked, and its memory is not capped"));
            crate::control_thread::report_tool(tool);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::detect_tool;

    #[test]
    fn tools_are_detected_by_the_variables_they_set_for_programs() {
        let under = |name: &'static str| detect_tool(|asked| asked == name, None);
        assert_eq!(under("NSYS_PROFILING_SESSION_ID").as_deref(), Some("Nsight Systems"));
        assert_eq!(under("NV_SANITIZER_INJECTION_PORT_BASE").as_deref(), Some("Compute Sanitizer"));
        assert_eq!(under("NV_COMPUTE_PROFILER_PERFWORKS_DIR").as_deref(), Some("Nsight Compute"));
        for setting in ["NVTX_INJECTION64_PATH", "NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT", "CUDA_HOME"] {
            assert_eq!(under(setting), None, "{setting}");
        }
        assert_eq!(detect_tool(|_| false, Some("cuda-gdb-minima")).as_deref(), Some("cuda-gdb"));
        assert_eq!(detect_tool(|_| false, Some("gdb")), None);
    }
}
