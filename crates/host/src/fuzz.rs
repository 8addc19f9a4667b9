//! Entry points of the fuzz target for workers' lines: the GPU thread without its worker process, and a round trip of
//! each line through the parser. Nothing else calls them.

use crate::cards::{GpuThread, GpuThreadHandle, read_answer};
use crate::clock::Clock;
use crate::eyes::ProcessThread;
use crate::gpu::GpuSpec;
use crate::worker::MeasuredContext;
use crate::{HostReport, HostSettings, driver, protocol};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Instant;
use sublet_core::units::Span;

/// The GPU thread and the process thread, driven by given lines instead of a worker's.
pub struct WorkerLines {
    cards: GpuThread,
    eyes: ProcessThread,
    clock: Clock,
    sights: mpsc::Receiver<HostReport>,
}

impl WorkerLines {
    /// The initial state: no GPU is known, no lease is watched.
    pub fn new() -> io::Result<WorkerLines> {
        let (sink, sights) = mpsc::channel();
        let settings = HostSettings::new(GpuSpec::Real);
        let clock = Clock::new(Span::ZERO);
        let (eyes, inbox) = ProcessThread::new(settings.period, Box::new(move |sight| drop(sink.send(sight))))?;
        let cards = GpuThread::new(settings, clock, Arc::new(GpuThreadHandle::new()?), inbox);
        Ok(WorkerLines { cards, eyes, clock, sights })
    }

    /// Takes a line as the answer to a list request. `None` if it is invalid; the worker would be killed.
    pub fn list(&mut self, line: &[u8]) -> Option<Vec<HostReport>> {
        let taken = read_answer(line).and_then(|answer| self.cards.take_list(Instant::now(), answer));
        taken.ok().map(|()| self.sights())
    }

    /// Takes a line as the answer to a request for readings.
    pub fn look(&mut self, line: &[u8]) -> Option<Vec<HostReport>> {
        let taken = read_answer(line).and_then(|answer| self.cards.take_look(self.clock.now(), answer));
        taken.ok().map(|()| self.sights())
    }

    /// The reports since the last call.
    pub fn sights(&mut self) -> Vec<HostReport> {
        self.eyes.take_messages();
        self.sights.try_iter().collect()
    }
}

/// Which worker a line goes to or comes from.
#[derive(Clone, Copy, Debug)]
pub enum WorkerLineKind {
    /// To the worker that reads the GPUs.
    CardsRequest,
    /// From it.
    CardsAnswer,
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
        WorkerLineKind::CardsRequest => written_again::<protocol::GpuRequest>(line),
        WorkerLineKind::CardsAnswer => written_again::<protocol::GpuAnswer>(line),
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
