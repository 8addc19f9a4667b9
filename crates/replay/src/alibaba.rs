//! The task list of Alibaba's public cluster-trace-gpu-v2023 as a trace.
//!
//! The list has sizes in thousandths of a GPU and times in seconds. It has no
//! tenants and no bytes: both are derived here, and the notes say so.

use crate::csv::{CsvLine, CsvTable};
use crate::host_gpus::HostGpus;
use crate::rng::{ReplayRng, Zipf};
use crate::trace::{JobRow, Trace, TraceBuilder, TraceError};
use sublet_core::request::Tier;
use sublet_core::units::Bytes;

const REQUIRED_COLUMNS: [&str; 7] =
    ["name", "num_gpu", "gpu_milli", "qos", "creation_time", "deletion_time", "scheduled_time"];

/// Where the list is from.
pub const CITATION: &str = "Alibaba cluster-trace-gpu-v2023 (USENIX ATC '23, \"Beware of Fragmentation: Scheduling \
     GPU-Sharing Workloads with Fragmentation Gradient Descent\")";

/// What becomes of one line.
enum AlibabaTask {
    Job(JobRow),
    /// It used no GPU.
    UsedNoGpu,
    /// It was never scheduled: how long it would have run is unknown.
    NeverStarted,
    /// It was deleted when it was scheduled, or before.
    NoRuntime,
}

/// Reads the list for these GPUs; tenants are drawn from the seed.
pub fn read(text: &str, host_gpus: &HostGpus, margin: Bytes, tenants: u64, seed: u64) -> Result<Trace, TraceError> {
    let table = CsvTable::read(text)?;
    table.require(&REQUIRED_COLUMNS)?;
    let mut rng = ReplayRng::new(seed);
    let zipf = Zipf::new(tenants.max(1) as usize);
    let gpu = host_gpus.smallest().less(margin).0;
    let mut rows = Vec::new();
    let (mut lines, mut no_gpu, mut never_started, mut no_time) = (0u64, 0u64, 0u64, 0u64);
    for line in table.lines() {
        let line = line?;
        lines += 1;
        // Drawn for every line, so that a tenant does not depend on which lines are left out.
        let tenant = format!("tenant-{:02}", zipf.draw(&mut rng) + 1);
        match task(&line, tenant, gpu).map_err(|what| TraceError::at(line.number, what))? {
            AlibabaTask::Job(row) => rows.push((line.number, row)),
            AlibabaTask::UsedNoGpu => no_gpu += 1,
            AlibabaTask::NeverStarted => never_started += 1,
            AlibabaTask::NoRuntime => no_time += 1,
        }
    }
    rows.sort_by(|a, b| a.1.arrival_s.total_cmp(&b.1.arrival_s));
    let mut builder = TraceBuilder::new(CITATION);
    for (number, row) in rows {
        builder.push(row).map_err(|what| TraceError::at(number, what))?;
    }
    let mut trace = builder.finish()?;
    trace.notes = vec![
        format!("tenants are not in the trace: {tenants} were drawn by seed {seed}, the n-th with weight 1/n"),
        format!("bytes are not in the trace: thousandths of a GPU were taken of {} each", Bytes(gpu)),
        "tiers are from its qos: LS and Guaranteed interactive, Burstable batch, BE spot; it has no priorities".into(),
        "a task arrives when it was created and works from scheduling to deletion; how busy its GPU was is not in \
         the trace"
            .into(),
        format!(
            "left out of {lines} tasks: {no_gpu} without a GPU, {never_started} never scheduled (how long \
             they would have run is unknown), {no_time} deleted when they were scheduled"
        ),
    ];
    Ok(trace)
}

fn task(line: &CsvLine<'_>, tenant: String, gpu: u64) -> Result<AlibabaTask, String> {
    let gpus: u64 = line.number("num_gpu")?;
    if gpus == 0 {
        return Ok(AlibabaTask::UsedNoGpu);
    }
    if line.field("scheduled_time").is_empty() || line.field("deletion_time").is_empty() {
        return Ok(AlibabaTask::NeverStarted);
    }
    let milli: u64 = line.number("gpu_milli")?;
    if milli == 0 || milli > 1000 {
        return Err(format!("`gpu_milli` {milli} is not 1 to 1000"));
    }
    let (scheduled, deleted): (f64, f64) = (line.number("scheduled_time")?, line.number("deletion_time")?);
    if deleted <= scheduled {
        return Ok(AlibabaTask::NoRuntime);
    }
    Ok(AlibabaTask::Job(JobRow {
        arrival_s: line.number("creation_time")?,
        tenant,
        vram: (u128::from(gpu) * u128::from(milli) / 1000) as u64,
        gpus,
        duration_s: deleted - scheduled,
        tier: match line.field("qos") {
            "LS" | "Guaranteed" => Tier::Interactive,
            "Burstable" => Tier::Batch,
            "BE" => Tier::Spot,
            other => return Err(format!("`qos` {other:?} is not LS, Guaranteed, Burstable or BE")),
        },
        priority: 0,
        name: Some(line.field("name").to_owned()).filter(|name| !name.is_empty()),
    }))
}
