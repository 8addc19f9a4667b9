//! The thread that runs the loop: it reads inputs and clocks, and carries out what leaves at once.
//!
//! ```text
//!   Inbox ──► Loop::handle ──► outputs that leave at once ──► Effects
//!                 │
//!                 └──close_batch──► writer thread ──► disk, then the outputs of the batch
//! ```
//! One batch is written while the next is decided. Only a lone request's batch is written here: there is nothing to decide
//! meanwhile.

use crate::effects::Effects;
use crate::inbox::Inbox;
use crate::looper::{ClosedBatch, Loop, LoopInput, Moment, Output};
use crate::writer::{JournalWriter, WriterOrder};
use jiff::Zoned;
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use sublet_core::units::Time;
use sublet_host::clock::{self, Clock};

/// Inputs are handled for this long before the disk and the timers get their turn.
const INPUTS_FOR: Duration = Duration::from_millis(2);
/// A batch of at most this many lines is a lone request's.
const LONE_LINES: usize = 4;
/// How often the offset of local time is read: it changes with the seasons.
const OFFSET_AGAIN_US: u64 = 60_000_000;

/// The clocks that the loop is told of.
pub struct Clocks {
    clock: Clock,
    utc_offset_s: i32,
    offset_read_us: u64,
}

impl Clocks {
    /// The clocks of this host.
    pub fn new(clock: Clock) -> Clocks {
        Clocks { clock, utc_offset_s: 0, offset_read_us: 0 }
    }

    /// What they say now.
    pub fn moment(&mut self) -> Moment {
        let wall_us = wall_us();
        if self.offset_read_us == 0 || wall_us.abs_diff(self.offset_read_us) > OFFSET_AGAIN_US {
            (self.utc_offset_s, self.offset_read_us) = (Zoned::now().offset().seconds(), wall_us);
        }
        Moment { now: self.clock.now(), wall_us, suspended_us: suspended_us(), utc_offset_s: self.utc_offset_s }
    }
}

/// What the thread needs beside the loop.
pub struct LoopThread {
    /// The loop.
    pub the_loop: Loop,
    /// Its clocks.
    pub clocks: Clocks,
    /// Its inputs.
    pub inbox: Inbox,
    /// Where outputs go.
    pub effects: Effects,
    /// Where batches go.
    pub writer: Sender<WriterOrder>,
    /// What writes them.
    pub journal: Arc<Mutex<JournalWriter>>,
}

impl LoopThread {
    /// Runs until the loop was told to stop and all is durable.
    pub fn run(mut self) {
        self.carry_out_immediate();
        let mut next = None;
        loop {
            let timeout = self.timeout();
            match next.take().map_or_else(|| self.inbox.wait(timeout), Ok) {
                Ok(input) => self.handle_inputs(input),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let moment = self.clocks.moment();
            self.the_loop.tick(moment);
            self.carry_out_immediate();
            if let Some(batch) = self.the_loop.close_batch(moment) {
                next = self.inbox.next();
                match next.is_none() && batch.batch.entries.len() <= LONE_LINES {
                    true => self.write(batch),
                    false => self.order(WriterOrder::Commit(batch)),
                }
            }
            self.carry_out_immediate();
            if self.the_loop.is_finished() {
                break;
            }
        }
        self.order(WriterOrder::Stop);
        // A client whose input is still in the queue hears that the loop is gone.
        let LoopThread { inbox, effects, .. } = self;
        drop(inbox);
        effects.clients.lose_all();
    }

    fn timeout(&mut self) -> Duration {
        let now = self.clocks.moment().now;
        let next: Time = self.the_loop.next_tick(now);
        Duration::from_micros(next.since(now).0)
    }

    fn handle_inputs(&mut self, first: LoopInput) {
        let begun = Instant::now();
        let mut next = Some(first);
        while let Some(input) = next {
            let moment = self.clocks.moment();
            self.the_loop.handle(input, moment);
            self.carry_out_immediate();
            let has_time = begun.elapsed() < INPUTS_FOR && !self.the_loop.has_enough();
            next = if has_time { self.inbox.next() } else { None };
        }
    }

    fn carry_out_immediate(&mut self) {
        for output in self.the_loop.take_immediate() {
            match output {
                Output::Read { to } => self.effects.clients.look(to, &self.the_loop.view()),
                Output::Writer(task) => self.order(WriterOrder::Task(task)),
                output => self.effects.carry_out(output),
            }
        }
    }

    /// Writes a lone request's batch. The loop hears of it as of any other.
    fn write(&self, batch: ClosedBatch) {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        journal.write(batch);
        if journal.is_tidy_due() {
            self.order(WriterOrder::Tidy);
        }
    }

    fn order(&self, order: WriterOrder) {
        // The writer ends only when the loop does, or with the whole process.
        drop(self.writer.send(order));
    }
}

/// The wall clock, for people.
pub fn wall_us() -> u64 {
    u64::try_from(clock::unix_us()).unwrap_or(0)
}

/// How long this host was suspended since it booted.
fn suspended_us() -> u64 {
    use rustix::time::{ClockId, clock_gettime};
    let us = |id| {
        let time = clock_gettime(id);
        time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
    };
    us(ClockId::Boottime).saturating_sub(us(ClockId::Monotonic))
}
