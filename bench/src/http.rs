//! Durable request + release pairs over HTTP on a Unix socket, compared with FastAPI + SQLite.
//!
//! The services alternate, each alone on the machine with the load generator and with a fresh
//! state folder on the same file system.

use crate::disk;
use crate::figure::{BenchOutcome, Figure, FigureTarget, digits};
use crate::load::{self, PairRates};
use crate::proc;
use crate::rig::BenchRig;
use crate::samples::{Quantiles, median};
use crate::service::{self, ServiceProcess};
use anyhow::{Context, Result};
use serde::Serialize;

/// Sublet counts released bytes until the next reading of the GPU, at most a second later; the peer
/// frees them at once. At 512 MiB a lease, 128 TiB are room for 262,144 leases in that second, so
/// that the load measures durable pairs and never the wait for a reading. The peer's GPU is as large.
const SCRIPTED_GPU: &str = "scripted:1x128TiB";

/// One round of one service.
#[derive(Clone, Debug, Serialize)]
pub struct ServiceRound {
    #[serde(flatten)]
    pairs: PairRates,
    /// CPU time of the service and its children, warm-up included.
    service_cpu_s: f64,
    /// CPU time of everything else meanwhile, the hypervisor included: above a few per cent of the
    /// cores, the round says more about the machine than about the service.
    others_cpu_s: f64,
    /// Syncs of a growing file just before the round.
    disk_before: Quantiles,
}

/// Both services alternately.
pub fn run(rig: &BenchRig) -> Result<BenchOutcome> {
    rig.sublet()?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 1..=rig.rounds {
        // The service that goes first changes, so that a drift of the machine favours neither.
        if round % 2 == 1 {
            theirs.push(peer_round(rig, round)?);
            ours.push(our_round(rig, round)?);
        } else {
            ours.push(our_round(rig, round)?);
            theirs.push(peer_round(rig, round)?);
        }
        if let (Some(our), Some(their)) = (ours.last(), theirs.last()) {
            eprintln!(
                "  round {round}: {} pairs/s (p99 {} ms) compared with {} (p99 {} ms); others took {} s of CPU",
                digits(our.pairs.pairs_per_s),
                digits(our.pairs.all.p99_us / 1e3),
                digits(their.pairs.pairs_per_s),
                digits(their.pairs.all.p99_us / 1e3),
                digits(our.others_cpu_s + their.others_cpu_s),
            );
        }
    }
    let middle = |turns: &[ServiceRound], of: fn(&ServiceRound) -> f64| median(turns.iter().map(of));
    let others = median(ours.iter().chain(&theirs).map(|turn| turn.others_cpu_s));
    let rate: fn(&ServiceRound) -> f64 = |turn| turn.pairs.pairs_per_s;
    let p99: fn(&ServiceRound) -> f64 = |turn| turn.pairs.all.p99_us / 1e3;
    let ratio = |of: fn(&ServiceRound) -> f64| median(ours.iter().zip(&theirs).map(|(our, their)| of(our) / of(their)));
    Ok(BenchOutcome {
        figures: vec![
            Figure {
                what: "durable request + release pairs over HTTP, compared with FastAPI + SQLite",
                target: FigureTarget::AtLeast(12.0),
                measured: ratio(rate),
                unit: "×",
                note: format!(
                    "{} compared with {} pairs/s, median of {} rounds; other processes took {} s of CPU in a turn of {} s and its warm-up",
                    digits(middle(&ours, rate)),
                    digits(middle(&theirs, rate)),
                    rig.rounds,
                    digits(others),
                    rig.load.as_secs(),
                ),
            },
            Figure {
                what: "p99 of a request in the same load, compared with FastAPI + SQLite",
                target: FigureTarget::AtMost(0.15),
                measured: ratio(p99),
                unit: "×",
                note: format!("{} compared with {} ms", digits(middle(&ours, p99)), digits(middle(&theirs, p99))),
            },
        ],
        raw: serde_json::json!({ "connections": rig.connections, "sublet": ours, "fastapi": theirs }),
    })
}

fn our_round(rig: &BenchRig, round: u32) -> Result<ServiceRound> {
    let folder = rig.fresh_folder(&format!("http-s{round}"))?;
    let disk_before = disk::probe(&folder)?;
    measure_round(rig, &service::sublet(rig, &folder, SCRIPTED_GPU)?.await_ready(&folder)?, disk_before)
        .context("sublet")
}

/// A round of the FastAPI service alone.
pub fn peer_round(rig: &BenchRig, round: u32) -> Result<ServiceRound> {
    let folder = rig.fresh_folder(&format!("http-f{round}"))?;
    let disk_before = disk::probe(&folder)?;
    measure_round(rig, &service::fastapi(&folder)?, disk_before).context("FastAPI")
}

fn measure_round(rig: &BenchRig, service: &ServiceProcess, disk_before: Quantiles) -> Result<ServiceRound> {
    let spent = || anyhow::Ok((proc::cpu_of_machine()?, proc::cpu_of_tree(service.pid())?, proc::cpu_of_this_thread()));
    let before = spent()?;
    let pairs = load::pairs(&service.socket, rig.connections, rig.load)?;
    let after = spent()?;
    let all = after.0.saturating_sub(before.0).as_secs_f64();
    let service_cpu_s = after.1.saturating_sub(before.1).as_secs_f64();
    let generator = after.2.saturating_sub(before.2).as_secs_f64();
    let others_cpu_s = (all - service_cpu_s - generator).max(0.0);
    Ok(ServiceRound { pairs, service_cpu_s, others_cpu_s, disk_before })
}
