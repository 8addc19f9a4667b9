//! Entry points of the fuzz target for workers' lines: the GPU thread without its worker process, and a round trip of
//! each line through the parser. Nothing else calls them.

use crate::cards::{CardThread, Shared, read_answer};
use crate::clock::Clock;
use crate::eyes::Eyes;
use crate::gpu::GpuSpec;
use crate::worker::Measured;
use crate::{Settings, Sight, driver, protocol};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Instant;
use sublet_core::units::Span;

/// The GPU thread and the process thread, driven by given lines instead of a worker's.
pub struct WorkerLines {
    cards: CardThread,
    eyes: Eyes,
    clock: Clock,
    sights: mpsc::Receiver<Sight>,
}

impl WorkerLines {
    /// The initial state: no GPU is known, no lease is watched.
    pub fn new() -> io::Result<WorkerLines> {
        let (sink, sights) = mpsc::channel();
        let settings = Settings::new(GpuSpec::Real);
        let clock = Clock::new(Span::ZERO);
        let (eyes, inbox) = Eyes::new(settings.period, Box::new(move |sight| drop(sink.send(sight))))?;
        let cards = CardThread::new(settings, clock, Arc::new(Shared::new()?), inbox);
        Ok(WorkerLines { cards, eyes, clock, sights })
    }

    /// Takes a line as the answer to a list request. `None` if it is invalid; the worker would be killed.
    pub fn list(&mut self, line: &[u8]) -> Option<Vec<Sight>> {
        let taken = read_answer(line).and_then(|answer| self.cards.take_list(Instant::now(), answer));
        taken.ok().map(|()| self.sights())
    }

    /// Takes a line as the answer to a request for readings.
    pub fn look(&mut self, line: &[u8]) -> Option<Vec<Sight>> {
        let taken = read_answer(line).and_then(|answer| self.cards.take_look(self.clock.now(), answer));
        taken.ok().map(|()| self.sights())
    }

    /// The reports since the last call.
    pub fn sights(&mut self) -> Vec<Sight> {
        self.eyes.take_messages();
        self.sights.try_iter().collect()
    }
}

/// Which worker a line goes to or comes from.
#[derive(Clone, Copy, Debug)]
pub enum Line {
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
pub fn round_trip(kind: Line, line: &[u8]) -> Result<bool, String> {
    match kind {
        Line::CardsRequest => written_again::<protocol::Request>(line),
        Line::CardsAnswer => written_again::<protocol::Answer>(line),
        Line::DriverRequest => written_again::<driver::protocol::Request>(line),
        Line::DriverAnswer => written_again::<driver::protocol::Answer>(line),
        Line::Context => written_again::<Measured>(line),
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
