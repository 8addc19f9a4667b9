//! Entry points of the fuzz target for workers' lines: the GPU thread without its worker process, and a round trip of
//! each line through the parser. Nothing else calls them.

use crate::clock::Clock;
use crate::gpu::GpuSpec;
use crate::gpu_thread::{GpuThread, GpuThreadHandle, parse_answer};
use crate::process_thread::ProcessThread;
use crate::worker::MeasuredContext;
use crate::{HostReport, HostSettings, driver, gpu_protocol};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Instant;
use sublet_core::units::Span;

/// The GPU thread and the process thread, driven by given lines instead of a worker's.
pub struct WorkerLines {
    gpu_thread: GpuThread,
    process_thread: ProcessThread,
    clock: Clock,
    reports: mpsc::Receiver<HostReport>,
}

impl WorkerLines {
    /// The initial state: no GPU is known, no lease is watched.
    pub fn new() -> io::Result<WorkerLines> {
        let (sink, reports) = mpsc::channel();
        let settings = HostSettings::new(GpuSpec::Real);
        let clock = Clock::new(Span::ZERO);
        let (process_thread, inbox) =
            ProcessThread::new(settings.period, Box::new(move |report| drop(sink.send(report))))?;
        let gpu_thread = GpuThread::new(settings, clock, Arc::new(GpuThreadHandle::new()?), inbox);
        Ok(WorkerLines { gpu_thread, process_thread, clock, reports })
    }

    /// Takes a line as the answer to a list request. `None` if it is invalid; the worker would be killed.
    pub fn list(&mut self, line: &[u8]) -> Option<Vec<HostReport>> {
        let taken = parse_answer(line).and_then(|answer| self.gpu_thread.handle_list(Instant::now(), answer));
        taken.ok().map(|()| self.reports())
    }

    /// Takes a line as the answer to a request for readings.
    pub fn look(&mut self, line: &[u8]) -> Option<Vec<HostReport>> {
        let taken = parse_answer(line).and_then(|answer| self.gpu_thread.handle_readings(self.clock.now(), answer));
        taken.ok().map(|()| self.reports())
    }

    /// The reports since the last call.
    pub fn reports(&mut self) -> Vec<HostReport> {
        self.process_thread.handle_messages();
        self.reports.try_iter().collect()
    }
}

/// Which worker a line goes to or comes from.
#[derive(Clone, Copy, Debug)]
pub enum WorkerLineKind {
    /// To the worker that reads the GPUs.
    GpuRequest,
    /// From it.
    GpuAnswer,
    /// To the worker that calls the driver.
    DriverRequest,
    /// From it.
    DriverAnswer,
    /// From the worker that measures a context.
    Context,
}

/// True if the line is valid. `Err` with the result if it is another one after it was written and read again.
pub fn round_trip(kind: WorkerLineKind, line: &[u8]) -> Result<bool, String> {
    match kind {
        WorkerLineKind::GpuRequest => written_again::<gpu_protocol::GpuRequest>(line),
        WorkerLineKind::GpuAnswer => written_again::<gpu_protocol::GpuAnswer>(line),
        WorkerLineKind::DriverRequest => written_again::<driver::protocol::DriverRequest>(line),
        WorkerLineKind::DriverAnswer => written_again::<driver::protocol::DriverAnswer>(line),
        WorkerLineKind::Context => written_again::<MeasuredContext>(line),
    }
}

fn written_again<T: Serialize + DeserializeOwned + PartialEq>(line: &[u8]) -> Result<bool, String> {
    let Ok(read) = serde_json::from_slice::<T>(line) else { return Ok(false) };
    let text = serde_json::to_string(&read).map_err(|error| error.to_string())?;
    match serde_json::from_str::<T>(&text) {
        Ok(again) if again == read => Ok(true),
        _ => Err(text),
    }
}
