//! What tests of unleased processes share: a service with short times for them, and functions that wait for them.

use crate::programs::{UnleasedProgram, successful_output};
use crate::{LONG, MIB, ServiceSetup, TestGpu, TestService, until};
use sublet_wire::{UnleasedProcess, UnleasedProcesses};

/// No process is parked; warning and grace take 2 s each.
pub const CONFIG: &str = r#"
ttl = "5m"
[enforcement]
warning = "2s"
park = false
grace = "2s"
"#;

/// The same, but a process that can be parked is parked instead of ended.
pub const PARKS: &str = r#"
ttl = "5m"
[enforcement]
warning = "2s"
grace = "2s"
[parking]
ram = "4G"
keep_free = "256M"
ready = "off"
"#;

/// A service with one soft GPU that parks no unleased process.
pub fn serve() -> TestService {
    serve_with(CONFIG)
}

/// The same with another configuration.
pub fn serve_with(config: &str) -> TestService {
    let config = Some(config.to_owned());
    TestService::start_with(ServiceSetup { gpu: TestGpu::Named("soft:1x4GiB"), config, ..ServiceSetup::default() })
}

/// All unleased processes.
pub fn unleased_processes(service: &TestService) -> UnleasedProcesses {
    service.client().get("/v1/unleased").read()
}

/// Waits until this program is recorded as unleased with all of its memory, and returns its record.
pub fn await_found(service: &TestService, alone: &UnleasedProgram) -> UnleasedProcess {
    let all = Some(alone.mib * MIB);
    await_unleased(service, alone.pid(), "it is found", |stranger| stranger.vram_bytes >= all)
}

/// Waits until an unleased process has this pid and `is_so` holds for it, and returns its record.
pub fn await_unleased(
    service: &TestService,
    pid: u32,
    what: &str,
    is_so: impl Fn(&UnleasedProcess) -> bool,
) -> UnleasedProcess {
    until(what, LONG, || {
        let all = unleased_processes(service).processes;
        all.iter().find(|stranger| stranger.pid == pid && is_so(stranger)).cloned().ok_or(all)
    })
}

/// Waits until this process is no longer recorded, and returns its audit trail.
pub fn await_closed(service: &TestService, id: &str) -> String {
    until(&format!("{id} is no stranger any more"), LONG, || {
        let all = unleased_processes(service).processes;
        if all.iter().all(|stranger| stranger.id != id) { Ok(()) } else { Err(all) }
    });
    successful_output(service, &["audit", "show", id])
}

/// Sets the mode of the GPU.
pub fn mode(service: &TestService, mode: &str) {
    successful_output(service, &["enforce", "mode", "0", mode, "--yes"]);
}

/// Asserts that a trail has these sentences in this order.
pub fn assert_in_order(story: &str, sentences: &[&str]) {
    let mut rest = story;
    for sentence in sentences {
        let at = rest.find(sentence).unwrap_or_else(|| panic!("`{sentence}` is not in its place:\n{story}"));
        rest = &rest[at + sentence.len()..];
    }
}

/// Whether a process exists and is no zombie.
pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}
