//! What a driver would say of the truth, sooner or later, or not at all.

use crate::rng::Rng;
use crate::world::{GpuFault, SimGpu, World};
use sublet_core::reading::{GpuFacts, GpuUsage, Reading, Resident, Unreadable};

/// One look at a card.
pub fn look(gpu: &SimGpu, rng: &mut Rng, failing: u64) -> Reading {
    match gpu.ail {
        GpuFault::Mute => return Reading::Unreadable(Unreadable::NoAnswer),
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

/// The cards that the driver lists.
pub fn list(world: &World) -> Vec<GpuFacts> {
    world.cards.iter().filter(|gpu| gpu.ail != GpuFault::Hidden).map(|gpu| gpu.facts.clone()).collect()
}
