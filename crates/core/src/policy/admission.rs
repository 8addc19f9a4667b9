//! Whether a request makes sense on this host, whichever tenant makes it.

use crate::model::event::Refusal;
use crate::model::ids::GpuId;
use crate::model::request::{LeaseRequest, Term, Vram};
use crate::model::units::Bytes;
use crate::policy::eligibility::{could_ever_fit, is_acceptable};
use crate::state::State;

/// The GPU on which a request could start if it did not step aside.
pub(crate) fn steps_aside(state: &State, request: &LeaseRequest) -> Option<Refusal> {
    let able = state.gpus().filter(|gpu| could_ever_fit(state, request, *gpu));
    let aside = |gpu: GpuId| {
        let (aside, until) = state.longest_aside(gpu)?;
        let index = state.rows().gpus[gpu].facts.index;
        Some(Refusal::StepsAside { index, by: aside.by.clone(), until })
    };
    able.into_iter().find_map(aside)
}

/// Whether a request makes sense here, whichever caller makes it.
pub(crate) fn sensible(state: &State, request: &LeaseRequest) -> Result<(), Refusal> {
    request.check().map_err(Refusal::BadAsk)?;
    check_could_ever_fit(state, request)?;
    let policy = state.policy();
    let longest = policy.hold_max.max(policy.ttl);
    match request.term {
        Term::Renewed(ttl) if ttl > longest => Err(Refusal::TtlTooLong { longest }),
        _ => Ok(()),
    }
}

/// Checks that the suitable GPUs could hold the request if they were empty.
fn check_could_ever_fit(state: &State, request: &LeaseRequest) -> Result<(), Refusal> {
    if state.rows().gpus.is_empty() {
        return Err(Refusal::NoCards);
    }
    let named: Vec<GpuId> = state.gpus().filter(|gpu| is_acceptable(state, request, *gpu)).collect();
    let never = |largest| Err(Refusal::NeverFits { largest, cards: named.len() as u32 });
    let Some(largest) = named.iter().map(|gpu| state.room(*gpu).largest_ever()).max() else {
        return never(None);
    };
    let large_enough = |gpu: &&GpuId| match request.vram {
        Vram::Bytes(vram) => vram <= state.room(**gpu).largest_ever(),
        Vram::Whole => true,
    };
    let large: Vec<GpuId> = named.iter().filter(large_enough).copied().collect();
    if large.len() < usize::from(request.gpus) {
        return never(Some(largest));
    }
    let Vram::Bytes(vram) = request.vram else { return Ok(()) };
    let context = |gpu: &GpuId| state.rows().gpus[*gpu].facts.context.unwrap_or_default();
    let mut contexts: Vec<Bytes> = large.iter().map(context).collect();
    contexts.sort();
    match contexts.get(usize::from(request.gpus) - 1) {
        Some(context) if *context > vram => Err(Refusal::BelowContext { context: *context }),
        _ => Ok(()),
    }
}
