//! What a driver reports about the world: the truth, a part of it, or an error.

use crate::rng::Rng;
use crate::world::{GpuFault, SimGpu, World};
use sublet_core::reading::{GpuFacts, GpuUsage, Reading, Resident, Unreadable};

/// Reads a GPU.
pub fn read_gpu(gpu: &SimGpu, rng: &mut Rng, failing: u64) -> Reading {
    match gpu.fault {
        GpuFault::NoAnswer => return Reading::Unreadable(Unreadable::NoAnswer),
        GpuFault::Lost => return Reading::Unreadable(Unreadable::Lost),
        _ => {}
    }
    if failing > 0 && rng.chance(failing) {
        return Reading::Unreadable(match rng.below(4) {
            0 => Unreadable::Lost,
            1 => Unreadable::Failed("unknown error".to_owned()),
            _ => Unreadable::NoAnswer,
        });
    }
    let hidden = |resident: &Resident| Resident { bytes: None, ..resident.clone() };
    let processes = if gpu.coarse { gpu.residents.iter().map(hidden).collect() } else { gpu.residents.clone() };
    Reading::Used(GpuUsage { free: gpu.free(), processes, coarse: gpu.coarse })
}

/// Lists the GPUs that the driver knows.
pub fn list_gpus(world: &World) -> Vec<GpuFacts> {
    world.gpus.iter().filter(|gpu| gpu.fault != GpuFault::NotListed).map(|gpu| gpu.facts.clone()).collect()
}
