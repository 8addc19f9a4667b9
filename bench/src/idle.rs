//! What an idle daemon costs: CPU and memory of it and its worker, with one scripted GPU and no requests.

use crate::figure::{BenchOutcome, Figure, FigureTarget, digits};
use crate::rig::BenchRig;
use crate::{proc, service};
use anyhow::Result;
use std::time::{Duration, Instant};

/// The time for work that follows a start (first readings, lazy set-up), which is not measured.
const SETTLE_TIME: Duration = Duration::from_secs(3);

/// Measures a daemon without requests.
pub fn run(rig: &BenchRig) -> Result<BenchOutcome> {
    let folder = rig.fresh_folder("idle")?;
    let service = service::sublet(rig, &folder, "scripted:1x1TiB")?.await_ready(&folder)?;
    std::thread::sleep(SETTLE_TIME);
    let (before, start) = (proc::cpu_of_tree(service.pid())?, Instant::now());
    std::thread::sleep(rig.idle);
    let cpu = proc::cpu_of_tree(service.pid())?.saturating_sub(before);
    let share = 100.0 * cpu.as_secs_f64() / start.elapsed().as_secs_f64();
    let memory = proc::tree(service.pid()).into_iter().map(proc::memory).collect::<Result<Vec<_>>>()?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let rss = mib(memory.iter().map(|one| one.rss_bytes).sum());
    let pss = memory.iter().map(|one| one.pss_bytes).sum::<Option<u64>>().map(mib);
    let note = match pss {
        Some(_) => format!("PSS of {} processes; RSS {} MiB", memory.len(), digits(rss)),
        None => format!("RSS of {} processes, shared pages counted in each", memory.len()),
    };
    Ok(BenchOutcome {
        figures: vec![
            Figure {
                what: "CPU of an idle daemon and its worker, share of a core",
                target: FigureTarget::AtMost(0.1),
                measured: share,
                unit: "%",
                note: format!("{} ms in {} s", cpu.as_millis(), rig.idle.as_secs()),
            },
            Figure {
                what: "memory of an idle daemon and its worker",
                target: FigureTarget::AtMost(40.0),
                measured: pss.unwrap_or(rss),
                unit: "MiB",
                note,
            },
        ],
        raw: serde_json::json!({ "cpu_s": cpu.as_secs_f64(), "wall_s": rig.idle.as_secs_f64(), "memory": memory }),
    })
}
