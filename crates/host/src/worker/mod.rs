//! The worker process, in which a call may hang or crash without taking the daemon along.
//!
//! ```text
//! worker cards real                         answers `list` and `look` until stdin closes
//! worker cards scripted:1x24GiB FILE.json   the same, from a script
//! worker context GPU-…                      measures one CUDA context and ends
//! worker driver                             moves processes off their GPUs and back until stdin closes
//! ```
//! Soft GPUs are `real` with another library, which the environment names (`SUBLET_NVML_LIB`, `SUBLET_CUDA_LIB`). No
//! deadlines here: the process that started the worker watches the time.

mod context;
mod cuda;
mod driver;
mod nvml;
mod scripted;

pub(crate) use context::MeasuredContext;
pub(crate) use cuda::CUDA_VARIABLE;
pub(crate) use nvml::NVML_VARIABLE;

use crate::GpuListError;
use crate::gpu::GpuSpec;
use crate::gpu_protocol::{GpuAnswer, GpuRequest, WorkerReading};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use sublet_core::reading::GpuFacts;

/// The exit code for wrong arguments.
const USAGE: u8 = 64;

/// Runs as a worker; `args` is what follows the word `worker`. Returns when the work is over or the parent has ended.
pub fn run(args: &[String]) -> ExitCode {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if args == ["driver"] {
        // It unlocks what it has locked first, so it does not end with the parent.
        return driver::run();
    }
    // The closed stdin ends the worker too, but not while a call hangs.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    match args.as_slice() {
        ["cards", spec, rest @ ..] => match (spec.parse(), rest) {
            (Ok(GpuSpec::Real), []) => serve(&mut nvml::NvmlGpus::new()),
            (Ok(GpuSpec::Scripted { count, total }), [script]) => {
                serve(&mut scripted::ScriptedGpus::new(count, total, PathBuf::from(script)))
            }
            _ => usage(),
        },
        ["context", uuid] => context::run(uuid),
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: worker cards real | worker cards scripted:NxSIZE FILE | worker context UUID | worker driver");
    ExitCode::from(USAGE)
}

/// The listed GPUs.
struct GpuList {
    gpus: Vec<GpuFacts>,
    /// There are others that could not be read and were never known.
    unread: bool,
}

/// A source that can list and read GPUs.
trait GpuSource {
    fn list(&mut self) -> Result<GpuList, GpuListError>;
    /// With `busy`, also the processes that used the engines.
    fn read_gpus(&mut self, busy: bool) -> Result<Vec<WorkerReading>, GpuListError>;
}

/// Answers each request until stdin closes.
fn serve(source: &mut impl GpuSource) -> ExitCode {
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let Ok(request) = line.map_err(drop).and_then(|line| serde_json::from_str(&line).map_err(drop)) else {
            return usage();
        };
        if write_json_line(&mut out, &answer(source, request)).is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}

fn answer(source: &mut impl GpuSource, request: GpuRequest) -> GpuAnswer {
    let answered = match request {
        GpuRequest::List => source.list().map(|GpuList { gpus, unread }| GpuAnswer::Cards { cards: gpus, unread }),
        GpuRequest::Look { busy } => source.read_gpus(busy).map(GpuAnswer::Looks),
    };
    answered.unwrap_or_else(GpuAnswer::Unlisted)
}

/// Writes one line, and flushes it.
fn write_json_line(out: &mut impl Write, answer: &impl serde::Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    out.write_all(&line)?;
    out.flush()
}
