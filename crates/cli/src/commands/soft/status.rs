//! `sublet soft status`: the soft GPUs as their file describes them, whatever NVML reports.

use crate::args::Globals;
use crate::failure::Failure;
use crate::hold::leftover;
use crate::output;
use crate::table::{Table, TextFormat, Tone};
use clap::Args;
use serde::Serialize;
use std::fmt;
use std::sync::atomic::Ordering::SeqCst;
use sublet_softgpu::state::CheckpointState;
use sublet_softgpu::{CheckpointFault, NvmlFault, SoftGpuProcess, SoftGpuState, layout};
use sublet_wire::{exit, size};

/// Show soft GPUs, their faults, and the processes on them
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {}

/// The status of all soft GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SoftStatus {
    /// The path of their file.
    pub file: String,
    /// The soft GPUs, in order.
    pub gpus: Vec<ShownGpu>,
    /// The processes on them.
    pub processes: Vec<ShownProcess>,
}

/// One soft GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShownGpu {
    /// Its index.
    pub index: usize,
    uuid: String,
    name: String,
    total_bytes: u64,
    used_bytes: u64,
    /// The ordered faults.
    pub faults: Faults,
}

/// The ordered faults of a soft GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Faults {
    nvml: &'static str,
    checkpoint: &'static str,
    allocations: u32,
    slow_percent: u32,
    copy_bytes_per_s: Option<u64>,
}

/// One process on one soft GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShownProcess {
    gpu: usize,
    pid: u32,
    uid: u32,
    name: String,
    used_bytes: u64,
    state: &'static str,
}

/// Prints the status.
pub fn run(globals: &Globals) -> Result<u8, Failure> {
    let shown = SoftStatus::of(&super::open(globals)?);
    if globals.json {
        output::json(&shown)?;
    } else {
        output::print(&render(&shown, TextFormat::of_stdout()))?;
    }
    Ok(exit::OK)
}

impl SoftStatus {
    /// The present status.
    pub fn of(state: &SoftGpuState) -> SoftStatus {
        let gpus = state.gpus().iter().enumerate().map(|(index, gpu)| ShownGpu {
            index,
            uuid: gpu.uuid_text(),
            name: gpu.name_text(),
            total_bytes: gpu.total.load(SeqCst),
            used_bytes: state.used(index),
            faults: Faults::of(gpu),
        });
        let on = |gpu: usize| state.processes_on(gpu).map(move |process| ShownProcess::of(process, gpu));
        SoftStatus {
            file: state.path().display().to_string(),
            gpus: gpus.collect(),
            processes: (0..state.gpus().len()).flat_map(on).collect(),
        }
    }
}

impl ShownProcess {
    fn of(process: SoftGpuProcess<'_>, gpu: usize) -> ShownProcess {
        ShownProcess {
            gpu,
            pid: process.pid(),
            uid: process.row.uid.load(SeqCst),
            name: leftover::name(process.pid()),
            used_bytes: process.used(gpu),
            state: match CheckpointState::from_number(process.row.checkpoint.load(SeqCst)) {
                CheckpointState::Running => "running",
                CheckpointState::Locking => "locking",
                CheckpointState::Locked => "locked",
                CheckpointState::Checkpointed => "checkpointed",
                CheckpointState::Failed => "failed",
            },
        }
    }
}

impl Faults {
    fn of(gpu: &layout::SoftGpu) -> Faults {
        let rate = gpu.copy_bytes_per_s.load(SeqCst);
        Faults {
            nvml: NvmlFault::from_number(gpu.nvml_fault.load(SeqCst)).cli_name(),
            checkpoint: CheckpointFault::from_number(gpu.checkpoint_fault.load(SeqCst)).cli_name(),
            allocations: gpu.failing_allocations.load(SeqCst),
            slow_percent: gpu.slow_percent.load(SeqCst),
            copy_bytes_per_s: (rate > 0).then_some(rate),
        }
    }
}

/// The faults as they are typed; `none` if there are none.
impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        words.extend((self.nvml != "ok").then(|| format!("nvml {}", self.nvml)));
        words.extend((self.allocations > 0).then(|| format!("allocations {}", self.allocations)));
        words.extend((self.checkpoint != "ok").then(|| format!("checkpoint {}", self.checkpoint)));
        words.extend((self.slow_percent > 0).then(|| format!("slow {}", self.slow_percent)));
        words.extend(self.copy_bytes_per_s.map(|rate| format!("copy-rate {}/s", size::show(rate))));
        f.write_str(&if words.is_empty() { "no faults".to_owned() } else { words.join(", ") })
    }
}

/// `0`, `0 to 3`.
pub fn numbers(gpus: usize) -> String {
    if gpus == 1 { "0".to_owned() } else { format!("0 to {}", gpus.saturating_sub(1)) }
}

fn render(shown: &SoftStatus, format: TextFormat) -> String {
    let mut gpus = Table::new(&["GPU", "~MODEL", ">USED", ">TOTAL", "~FAULTS"]);
    for gpu in &shown.gpus {
        let (used, total) = (size::show(gpu.used_bytes), size::show(gpu.total_bytes));
        gpus.row([gpu.index.to_string(), gpu.name.clone(), used, total, gpu.faults.to_string()]);
        if gpu.faults.to_string() != "no faults" {
            gpus.set_tone("FAULTS", Tone::Wrong);
        }
    }
    let mut processes = Table::new(&["GPU", ">PID", ">UID", "~NAME", ">USED", "STATE"]);
    for p in &shown.processes {
        let used = size::show(p.used_bytes);
        let (gpu, pid, uid) = (p.gpu.to_string(), p.pid.to_string(), p.uid.to_string());
        processes.row([gpu, pid, uid, p.name.clone(), used, p.state.to_owned()]);
    }
    let on_them = if processes.is_empty() { "no process is on them\n".to_owned() } else { processes.show("", format) };
    format!("{}\n{on_them}\nin {}\n", gpus.show("", format), shown.file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use sublet_softgpu::{SoftGpuClient, SoftGpuFault};

    #[test]
    fn gpus_are_shown_with_what_is_wrong_and_who_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gpus");
        let state = SoftGpuState::create(&path, &"2x24GiB".parse().unwrap()).unwrap();
        let mut shown = SoftStatus::of(&state);
        shown.file = "/run/sublet/sublet.sock.soft".into();
        expect![[r#"
            GPU  MODEL                USED   TOTAL  FAULTS
            0    Sublet Soft 24GiB  64 MiB  24 GiB  no faults
            1    Sublet Soft 24GiB  64 MiB  24 GiB  no faults

            no process is on them

            in /run/sublet/sublet.sock.soft
        "#]]
        .assert_eq(&render(&shown, TextFormat::default()));
        let seat = SoftGpuClient::register(SoftGpuState::open(&path).unwrap()).unwrap();
        seat.reserve(1, 3 << 30).unwrap();
        for fault in [
            SoftGpuFault::Nvml(NvmlFault::NoBytes),
            SoftGpuFault::Allocations(3),
            SoftGpuFault::Checkpoint(CheckpointFault::KillsTarget),
            SoftGpuFault::SlowPercent(150),
            SoftGpuFault::CopyBytesPerS(2 << 30),
        ] {
            state.set_fault(0, fault);
        }
        let mut shown = SoftStatus::of(&state);
        shown.file = "/run/sublet/sublet.sock.soft".into();
        for process in &mut shown.processes {
            (process.pid, process.uid, process.name) = (4312, 1000, "python3".into());
        }
        expect![[r#"
            GPU  MODEL                 USED   TOTAL  FAULTS
            0    Sublet Soft 24GiB   64 MiB  24 GiB  nvml no-bytes, allocations 3, checkpoint kills-target, slow 150, copy-rate 2 GiB/s
            1    Sublet Soft 24GiB  3.1 GiB  24 GiB  no faults

            GPU   PID   UID  NAME      USED  STATE
            1    4312  1000  python3  3 GiB  running

            in /run/sublet/sublet.sock.soft
        "#]]
        .assert_eq(&render(&shown, TextFormat::default()));
        state.set_fault(0, SoftGpuFault::Clear);
        assert_eq!(Faults::of(&state.gpus()[0]).to_string(), "no faults");
    }
}
