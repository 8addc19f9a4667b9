//! The loop without HTTP, compared with raw SQLite writing the same rows in batches of the same size.
//!
//! Our side is the daemon's engine and its journal as the daemon runs them: one thread decides and closes batches,
//! another commits, and while one batch syncs the next is decided. Our time includes deciding, JSON and hashes;
//! SQLite's includes only the writes, because its values are computed before the clock starts. A batch has 64
//! requests, 64 releases of earlier leases, and a reading of the GPU that retires those.

use crate::figure::{BenchOutcome, Figure, FigureTarget, digits};
use crate::raw_sqlite::{BoundBatch, RawDatabase};
use crate::rig::BenchRig;
use crate::samples::median;
use anyhow::{Context, Result, ensure};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Instant;
use sublet_core::event::{Caller, Event, EventAnswer};
use sublet_core::facts::{GpuEvent, LeaseEvent};
use sublet_core::ids::LeaseId;
use sublet_core::reading::{GpuFacts, GpuReading, GpuUsage, Reading};
use sublet_core::request::{LeaseRequest, Term};
use sublet_core::rows::Rows;
use sublet_core::settings::Policy;
use sublet_core::units::{Bytes, Span, Time};
use sublet_daemon::engine::Engine;
use sublet_daemon::journal::{Batch, Journal};

/// Requests in one batch, as from 64 connections.
const BATCH_REQUESTS: usize = 64;
/// Batches in one round.
const BATCHES: usize = 200;

/// Our side and raw SQLite alternately.
pub fn run(rig: &BenchRig) -> Result<BenchOutcome> {
    let folder = rig.fresh_folder("loop")?;
    let (journal, _) = Journal::open(&folder.join("state"))?;
    let mut raw = RawDatabase::create(&folder.join("state/journal.db"), &folder.join("raw.db"))?;
    let (mut ours, mut twin) = (LoopWorld::new(), LoopWorld::new());
    let mut journal = Some(journal);
    let mut rates = Vec::new();
    for _ in 0..rig.rounds.max(3) {
        let begun = Instant::now();
        journal = Some(run_batches(&mut ours, journal.take().context("the journal came back")?)?);
        let ours_s = begun.elapsed().as_secs_f64();
        let ready: Vec<BoundBatch> =
            (0..BATCHES).map(|_| twin.batch().and_then(BoundBatch::of)).collect::<Result<_>>()?;
        let begun = Instant::now();
        for batch in &ready {
            raw.commit(batch)?;
        }
        rates.push((ours_s, begun.elapsed().as_secs_f64()));
    }
    let pairs = (BATCH_REQUESTS * BATCHES) as f64;
    let ratio = median(rates.iter().map(|(ours, raw)| raw / ours));
    let rate = |side: fn(&(f64, f64)) -> f64| pairs / median(rates.iter().map(side));
    let (ours_rate, raw_rate) = (rate(|r| r.0), rate(|r| r.1));
    Ok(BenchOutcome {
        figures: vec![Figure {
            what: "the loop without HTTP: durable request + release pairs, compared with raw SQLite writing the same rows",
            target: FigureTarget::AtLeast(0.8),
            measured: ratio,
            unit: "×",
            note: format!(
                "{} compared with {} pairs/s in batches of {BATCH_REQUESTS}",
                digits(ours_rate),
                digits(raw_rate)
            ),
        }],
        raw: serde_json::json!({ "batch": BATCH_REQUESTS, "batches": BATCHES, "seconds_ours_raw": rates }),
    })
}

/// Decides [`BATCHES`] batches while a second thread commits them.
fn run_batches(world: &mut LoopWorld, mut journal: Journal) -> Result<Journal> {
    let (orders, inbox) = sync_channel::<Batch>(0);
    let writer = std::thread::spawn(move || -> Result<Journal> {
        for batch in inbox {
            journal.commit(&batch)?;
        }
        Ok(journal)
    });
    for _ in 0..BATCHES {
        if orders.send(world.batch()?).is_err() {
            break;
        }
    }
    drop(orders);
    writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?
}

/// One tenant that requests and releases, in the same order every time.
struct LoopWorld {
    engine: Engine<()>,
    now: Time,
    by: Caller,
    actor: Arc<str>,
    held: Vec<LeaseId>,
}

impl LoopWorld {
    fn new() -> LoopWorld {
        let by = Caller::user("uid:1000");
        let engine = Engine::new(Rows::default(), Policy::default());
        let mut world = LoopWorld { engine, now: Time::ZERO, actor: Arc::from("uid:1000"), by, held: Vec::new() };
        world.apply(Event::Gpu(GpuEvent::Listed(vec![GpuFacts::plain(0, Bytes::gib(1 << 16))])));
        world.read_gpu();
        world
    }

    fn apply(&mut self, event: Event) -> EventAnswer {
        self.now = self.now + Span(7);
        self.engine.take(self.now, 1_700_000_000_000_000 + self.now.0, &self.actor, event).answer
    }

    fn read_gpu(&mut self) {
        let free = Bytes::gib(1 << 16);
        let reading = Reading::Used(GpuUsage { free, processes: Vec::new(), coarse: false });
        let observation = GpuReading { begun: self.now + Span(1), reading };
        self.apply(Event::Gpu(GpuEvent::ReadingTaken { gpu: "GPU-0".to_owned(), reading: observation }));
    }

    fn batch(&mut self) -> Result<Batch> {
        for lease in std::mem::take(&mut self.held) {
            self.apply(Event::Lease(LeaseEvent::ReleaseRequested { by: self.by.clone(), lease, fence: None }));
        }
        self.read_gpu();
        for _ in 0..BATCH_REQUESTS {
            let ask = LeaseRequest::plain(Bytes::gib(1), Term::Renewed(Span::secs(300)));
            let answer = self.apply(Event::Lease(LeaseEvent::Requested {
                by: self.by.clone(),
                request: ask,
                wait: None,
                root: None,
            }));
            let EventAnswer::Lease(lease) = answer else { anyhow::bail!("an ask was answered {answer:?}") };
            ensure!(self.engine.state().lease(lease).is_some_and(|l| l.hold().is_some()), "{lease} waits");
            self.held.push(lease);
        }
        Ok(self.engine.close(self.now).0)
    }
}
