//! A large host: 64 GPUs with 1,000 leases each, and how fast the same core replays a trace.

use crate::figure::{BenchOutcome, Figure, FigureTarget, digits};
use crate::rig::BenchRig;
use crate::samples::Samples;
use anyhow::{Result, ensure};
use std::time::Instant;
use sublet_core::event::{Caller, Event, EventAnswer};
use sublet_core::facts::{GpuEvent, LeaseEvent};
use sublet_core::reading::{GpuFacts, GpuReading, GpuUsage, Reading};
use sublet_core::request::{Exclusivity, LeaseRequest, Term, Vram};
use sublet_core::rows::Rows;
use sublet_core::settings::{Caps, Policy};
use sublet_core::units::{Bytes, Span, Time};
use sublet_core::{State, decide};
use sublet_replay::drive::LeaseTerms;
use sublet_replay::host_gpus::HostGpus;
use sublet_replay::policies::PolicyName;
use sublet_replay::report::{ReplayOptions, replay};
use sublet_replay::synthetic::{SyntheticShape, make};

const GPUS: u32 = 64;
const LEASES: u64 = 1_000;
const WAITERS: usize = 500;
const SAMPLES: usize = 2_000;
const GPU_BYTES: Bytes = Bytes::gib(1_100);

/// Measures both.
pub fn run(_: &BenchRig) -> Result<BenchOutcome> {
    let (asks, looks) = time_large_host()?;
    let (events, seconds) = time_replay()?;
    Ok(BenchOutcome {
        figures: vec![
            Figure {
                what: "64 cards with 1,000 leases each and 500 waiters: one ask, p50",
                target: FigureTarget::AtMost(100.0),
                measured: asks.p50_us,
                unit: "µs",
                note: format!("p99 {} µs", digits(asks.p99_us)),
            },
            Figure {
                what: "the same: a look at a card after a lease ended there, and serving the queue, p50",
                target: FigureTarget::AtMost(100.0),
                measured: looks.p50_us,
                unit: "µs",
                note: format!("p99 {} µs", digits(looks.p99_us)),
            },
            Figure {
                what: "replay of a made-up trace, events a second on one core",
                target: FigureTarget::AtLeast(200_000.0),
                measured: events as f64 / seconds,
                unit: "/s",
                note: format!("{events} events, 8 cards, load 0.6, policy fair"),
            },
        ],
        raw: serde_json::json!({ "ask": asks, "look": looks, "replay_events": events, "replay_s": seconds }),
    })
}

fn request_of(gib: u64, gpus: u16) -> LeaseRequest {
    LeaseRequest { gpus, ..LeaseRequest::plain(Bytes::gib(gib), Term::Renewed(Span::secs(300))) }
}

fn tenant_of(number: usize) -> Caller {
    Caller::user(format!("uid:{}", number % 100))
}

fn read_gpu(state: &mut State, now: Time, card: u32) {
    let reading = Reading::Used(GpuUsage { free: GPU_BYTES, processes: Vec::new(), coarse: false });
    let observation = GpuReading { begun: now, reading };
    decide(state, now, Event::Gpu(GpuEvent::ReadingTaken { gpu: format!("GPU-{card}"), reading: observation }));
}

/// Full GPUs, waiters too large for any of them, and some that request exclusive use (there is room for
/// those, so that the scheduler cannot skip any waiter without checking it). Then requests and releases, one by one.
fn time_large_host() -> Result<(crate::samples::Quantiles, crate::samples::Quantiles)> {
    let caps = Caps { places: None, ..Caps::default() };
    // Readings are made here only where they matter.
    let policy = Policy { queue_max: usize::MAX, period: Span::secs(1 << 30), caps, ..Policy::default() };
    let mut state = State::new(Rows::default(), policy);
    let facts = |index: u32| GpuFacts { node: Some(index / 8), ..GpuFacts::plain(index, GPU_BYTES) };
    let mut now = Time(1);
    decide(&mut state, now, Event::Gpu(GpuEvent::Listed((0..GPUS).map(facts).collect())));
    (0..GPUS).for_each(|card| read_gpu(&mut state, now, card));
    let mut held = Vec::new();
    for number in 0..(u64::from(GPUS) * LEASES) as usize {
        now = now + Span(1);
        let event = Event::Lease(LeaseEvent::Requested {
            by: tenant_of(number),
            request: request_of(1, 1),
            wait: None,
            root: None,
        });
        let EventAnswer::Lease(lease) = decide(&mut state, now, event).answer else { continue };
        held.push((number, lease));
    }
    ensure!(state.queue().is_empty(), "not all leases fit");
    for number in 0..WAITERS {
        let gpus = if number % 10 == 0 { 4 } else { 1 };
        let mut ask = request_of(600 + (number % 300) as u64, gpus);
        if number % 50 == 7 {
            ask = LeaseRequest { vram: Vram::Bytes(Bytes::gib(10)), exclusivity: Exclusivity::Session, ..ask };
        }
        decide(
            &mut state,
            now,
            Event::Lease(LeaseEvent::Requested { by: tenant_of(number), request: ask, wait: None, root: None }),
        );
    }
    let (mut asks, mut looks) = (Samples::with_capacity(SAMPLES), Samples::with_capacity(SAMPLES));
    for number in 0..SAMPLES {
        now = now + Span(10);
        let event = Event::Lease(LeaseEvent::Requested {
            by: tenant_of(number),
            request: request_of(700, 1),
            wait: None,
            root: None,
        });
        let begun = Instant::now();
        let answer = decide(&mut state, now, event).answer;
        asks.push(begun.elapsed());
        // The lease is released again, so that the queue keeps its length.
        if let EventAnswer::Lease(lease) = answer {
            decide(
                &mut state,
                now,
                Event::Lease(LeaseEvent::ReleaseRequested { by: tenant_of(number), lease, fence: None }),
            );
        }
        let (owner, lease) = held[number * 31 % held.len()];
        let cards = state.lease(lease).and_then(|row| row.hold()).map(|hold| hold.gpus.clone()).unwrap_or_default();
        decide(
            &mut state,
            now,
            Event::Lease(LeaseEvent::ReleaseRequested { by: tenant_of(owner), lease, fence: None }),
        );
        now = now + Span(10);
        let begun = Instant::now();
        for card in cards {
            read_gpu(&mut state, now, card.0.into());
        }
        looks.push(begun.elapsed());
    }
    Ok((asks.quantiles(), looks.quantiles()))
}

fn time_replay() -> Result<(u64, f64)> {
    let host_gpus: HostGpus = "8x80GiB".parse().map_err(|error| anyhow::anyhow!("{error}"))?;
    let rules = Policy::default();
    let shape = SyntheticShape { seed: 1, jobs: 50_000, tenants: 20, chatty: true, load: 0.6 };
    let trace = make(&shape, &host_gpus, rules.margin).map_err(|error| anyhow::anyhow!("{error}"))?;
    let policies = vec![PolicyName::Fair];
    let options = ReplayOptions {
        rules,
        policies,
        leases: LeaseTerms::Renewed,
        starved: 10.0,
        places: None,
        until: None,
        parking: None,
    };
    let mut events = 0;
    let begun = Instant::now();
    replay(&trace, &host_gpus, &options, |outcome| events += outcome.events);
    Ok((events, begun.elapsed().as_secs_f64()))
}
