//! Which GPUs suit a request by what they are, and how many bytes it needs there.
//!
//! Absent: what is free now ([`super::board`]), and what a tenant may have ([`super::quota`]).

use crate::model::ids::GpuId;
use crate::model::request::{GpuSelector, LeaseRequest, Vram};
use crate::model::units::Bytes;
use crate::state::State;

/// Whether a GPU is one of those that the request allows.
pub(crate) fn is_acceptable(state: &State, request: &LeaseRequest, gpu: GpuId) -> bool {
    request.gpus_allowed.as_ref().is_none_or(|on| on.matches(gpu, &state.rows().gpus[gpu].facts))
}

/// A whole GPU has at least this percentage free: a desktop's few hundred MiB do not matter, another program's model
/// does.
const WHOLE_PERCENT: u64 = 75;

/// The least that a request would reserve. How large a whole GPU is shows only once one is found; the smallest GPUs that
/// would do are what must be allowed for.
pub(crate) fn least_bytes(state: &State, request: &LeaseRequest) -> Bytes {
    let each = match request.vram {
        Vram::Bytes(vram) => vram,
        Vram::Whole => {
            let gpus = state.gpus().filter(|gpu| is_acceptable(state, request, *gpu));
            let mut sizes: Vec<Bytes> = gpus.map(|gpu| state.room(gpu).largest_ever()).collect();
            sizes.sort();
            sizes.get(usize::from(request.gpus).max(1) - 1).copied().unwrap_or_default()
        }
    };
    Bytes(each.0.saturating_mul(u64::from(request.gpus)))
}

/// The least that passes for a whole GPU.
pub(crate) fn whole_gpu_least(state: &State, gpu: GpuId) -> Bytes {
    Bytes(state.room(gpu).largest_ever().0 / 100 * WHOLE_PERCENT)
}

/// Whether a request could ever fit on a GPU, by what the GPU is.
pub(crate) fn could_ever_fit(state: &State, request: &LeaseRequest, gpu: GpuId) -> bool {
    let sized = match request.vram {
        Vram::Bytes(vram) => vram <= state.room(gpu).largest_ever(),
        Vram::Whole => true,
    };
    sized && is_acceptable(state, request, gpu)
}

/// Whether a request could start on this GPU in its present service, if it were empty.
pub(crate) fn is_eligible(state: &State, request: &LeaseRequest, gpu: GpuId) -> bool {
    let facts = &state.rows().gpus[gpu].facts;
    // A parked lease has its context there.
    let returns = matches!(request.gpus_allowed, Some(GpuSelector::These(_)));
    let context = facts.context.filter(|_| !returns).unwrap_or_default();
    let sized = match request.vram {
        Vram::Bytes(vram) => vram <= state.room(gpu).largest_ever() && vram >= context,
        Vram::Whole => true,
    };
    sized && state.in_service(gpu) && is_acceptable(state, request, gpu)
}

/// What a request must find free on a GPU.
pub(crate) fn needed_bytes(state: &State, request: &LeaseRequest, gpu: GpuId) -> Bytes {
    match request.vram {
        Vram::Bytes(vram) => vram,
        Vram::Whole => whole_gpu_least(state, gpu),
    }
}
