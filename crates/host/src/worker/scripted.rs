//! GPUs that a file describes, for machines without a GPU and for faults on demand.
//!
//! The file is read again at each reading; without a file the GPUs are empty and idle. Replace it by rename, so that
//! no reading sees half of it. Everything but `index` and `pid` may be left out:
//!
//! ```json
//! {"cards": [{"index": 0,
//!             "processes": [{"pid": 123, "bytes": 1073741824, "graphics": false, "busy": true}],
//!             "other_bytes": 0,
//!             "fault": null}]}
//! ```
//! * `bytes` null: the driver does not say; such a process takes nothing from `free`.
//! * `busy`: it used the GPU's engines since the last reading.
//! * `other_bytes`: memory that belongs to no process.
//! * `fault`: `"hang"` never answers, `"crash"` ends the worker, `"error"` and `"lost"` are the
//!   driver's answers, `"coarse"` hides the bytes of each process.
//!
//! Free is the total less all of these. A pid that is not running is left out, as by a real driver. Nothing here
//! measures anything.

use super::{GpuList, GpuSource};
use crate::GpuListError;
use crate::gpu_protocol::{ReadingResult, ReportedProcess, WorkerReading};
use crate::process;
use serde::Deserialize;
use std::io;
use std::path::PathBuf;
use sublet_core::reading::GpuFacts;
use sublet_core::units::Bytes;

/// The size of a context on a scripted GPU: like a plain CUDA context on a small real one.
const CONTEXT: Bytes = Bytes::mib(300);
/// The exit code of a worker that the script crashes.
const CRASHED: i32 = 70;

pub(super) struct ScriptedGpus {
    count: u32,
    total: Bytes,
    script: PathBuf,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuScript {
    #[serde(default)]
    cards: Vec<ScriptedGpu>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedGpu {
    index: u32,
    #[serde(default)]
    processes: Vec<ScriptedProcess>,
    #[serde(default)]
    other_bytes: u64,
    #[serde(default)]
    fault: Option<ScriptedFault>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedProcess {
    pid: u32,
    #[serde(default)]
    bytes: Option<u64>,
    #[serde(default)]
    graphics: bool,
    #[serde(default)]
    busy: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ScriptedFault {
    Hang,
    Crash,
    Error,
    Lost,
    Coarse,
}

impl GpuSource for ScriptedGpus {
    fn list(&mut self) -> Result<GpuList, GpuListError> {
        Ok(GpuList { gpus: (0..self.count).map(|index| self.facts(index)).collect(), unread: false })
    }

    fn read_gpus(&mut self, _busy: bool) -> Result<Vec<WorkerReading>, GpuListError> {
        let script = self.read();
        let seen = |index| match &script {
            Ok(script) => self.read_gpu(script.cards.iter().find(|gpu| gpu.index == index)),
            Err(why) => ReadingResult::Failed(why.clone()),
        };
        Ok((0..self.count).map(|index| WorkerReading { uuid: uuid(index), seen: seen(index) }).collect())
    }
}

impl ScriptedGpus {
    pub(super) fn new(count: u32, total: Bytes, script: PathBuf) -> ScriptedGpus {
        ScriptedGpus { count, total, script }
    }

    fn facts(&self, index: u32) -> GpuFacts {
        GpuFacts {
            uuid: uuid(index),
            index,
            name: format!("Scripted {}", self.total.to_string().replace(' ', "")),
            total: self.total,
            display: false,
            context: Some(CONTEXT),
            board: None,
            node: None,
            unusable: None,
        }
    }

    fn read(&self) -> Result<GpuScript, String> {
        let path = self.script.display();
        let text = match std::fs::read(&self.script) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(GpuScript::default()),
            Err(error) => return Err(format!("script `{path}` cannot be read: {error}")),
        };
        let script: GpuScript = serde_json::from_slice(&text).map_err(|e| format!("script `{path}`: {e}"))?;
        match script.cards.iter().find(|gpu| gpu.index >= self.count) {
            Some(gpu) => Err(format!("script `{path}` has a GPU {}, but there are {}", gpu.index, self.count)),
            None => Ok(script),
        }
    }

    fn read_gpu(&self, gpu: Option<&ScriptedGpu>) -> ReadingResult {
        let Some(gpu) = gpu else {
            return ReadingResult::Used { free: self.total, processes: Vec::new(), coarse: false };
        };
        match gpu.fault {
            Some(ScriptedFault::Hang) => loop {
                std::thread::park();
            },
            Some(ScriptedFault::Crash) => std::process::exit(CRASHED),
            Some(ScriptedFault::Error) => ReadingResult::Failed("the script says so".to_owned()),
            Some(ScriptedFault::Lost) => ReadingResult::Lost,
            Some(ScriptedFault::Coarse) => self.used_reading(gpu, true),
            None => self.used_reading(gpu, false),
        }
    }

    fn used_reading(&self, gpu: &ScriptedGpu, hide_bytes: bool) -> ReadingResult {
        let mut processes: Vec<ReportedProcess> = gpu.processes.iter().filter_map(reported_process).collect();
        let taken: Bytes = processes.iter().filter_map(|p| p.bytes).sum();
        if hide_bytes {
            processes.iter_mut().for_each(|p| p.bytes = None);
        }
        let coarse = hide_bytes || super::nvml::has_no_byte_counts(&processes);
        ReadingResult::Used { free: self.total.less(taken + Bytes(gpu.other_bytes)), processes, coarse }
    }
}

/// The process as a driver lists it; `None` if it is not running.
fn reported_process(process: &ScriptedProcess) -> Option<ReportedProcess> {
    let stat = process::stat(process.pid).ok().filter(|stat| !stat.has_ended())?;
    Some(ReportedProcess {
        process: stat.key(process.pid),
        bytes: process.bytes.map(Bytes),
        graphics: process.graphics,
        busy: process.busy,
    })
}

fn uuid(index: u32) -> String {
    format!("{}{index:012x}", crate::gpu::SCRIPTED_UUID)
}
