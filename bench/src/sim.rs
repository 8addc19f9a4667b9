//! How fast the simulation goes, with its checker on, on one core.

use crate::figure::{BenchOutcome, Figure, FigureTarget};
use crate::rig::BenchRig;
use anyhow::Result;
use std::time::{Duration, Instant};
use sublet_sim::run::{RunOptions, run as simulate};

/// Long enough for many kinds of worlds.
const TIME: Duration = Duration::from_secs(10);

/// Runs seeds until the time is up.
pub fn run(_: &BenchRig) -> Result<BenchOutcome> {
    let begun = Instant::now();
    let (mut seeds, mut events) = (0, 0);
    while begun.elapsed() < TIME {
        seeds += 1;
        events += simulate(seeds, RunOptions::default()).map_err(|failure| anyhow::anyhow!("{failure}"))?.events;
    }
    let rate = events as f64 / begun.elapsed().as_secs_f64();
    Ok(BenchOutcome {
        figures: vec![Figure {
            what: "simulation, events a second on one core with the checker on",
            target: FigureTarget::AtLeast(200_000.0),
            measured: rate,
            unit: "/s",
            note: format!("{seeds} seeds, {events} events"),
        }],
        raw: serde_json::json!({ "seeds": seeds, "events": events }),
    })
}
