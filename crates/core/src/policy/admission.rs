//! Whether a request makes sense on this host, whichever tenant makes it.

use crate::event::Refusal;
use crate::model::ids::GpuId;
use crate::model::request::{LeaseRequest, Term, Vram};
use crate::model::units::Bytes;
use crate::policy::eligibility::{could_ever_fit, is_acceptable};
use crate::state::State;

/// The GPU on which an ask could start if it did not step aside.
pub(crate) fn steps_aside(state: &State, ask: &LeaseRequest) -> Option<Refusal> {
    let able = state.gpus().filter(|card| could_ever_fit(state, ask, *card));
    let aside = |card: GpuId| {
        let (aside, until) = state.longest_aside(card)?;
        let index = state.rows().gpus[card.0 as usize].facts.index;
        Some(Refusal::StepsAside { index, by: aside.by.clone(), until })
    };
    able.into_iter().find_map(aside)
}

/// Whether an ask makes sense here, whoever asks.
pub(crate) fn sensible(state: &State, ask: &LeaseRequest) -> Result<(), Refusal> {
    ask.check().map_err(Refusal::BadAsk)?;
    check_could_ever_fit(state, ask)?;
    let policy = state.policy();
    let longest = policy.hold_max.max(policy.ttl);
    match ask.term {
        Term::Renewed(ttl) if ttl > longest => Err(Refusal::TtlTooLong { longest }),
        _ => Ok(()),
    }
}

/// Whether the cards that would do could hold the ask if they were empty.
fn check_could_ever_fit(state: &State, ask: &LeaseRequest) -> Result<(), Refusal> {
    if state.rows().gpus.is_empty() {
        return Err(Refusal::NoCards);
    }
    let named: Vec<GpuId> = state.gpus().filter(|card| is_acceptable(state, ask, *card)).collect();
    let never = |largest| Err(Refusal::NeverFits { largest, cards: named.len() as u32 });
    let Some(largest) = named.iter().map(|card| state.room(*card).largest_ever()).max() else {
        return never(None);
    };
    let large_enough = |card: &&GpuId| match ask.vram {
        Vram::Bytes(vram) => vram <= state.room(**card).largest_ever(),
        Vram::Whole => true,
    };
    let large: Vec<GpuId> = named.iter().filter(large_enough).copied().collect();
    if large.len() < usize::from(ask.gpus) {
        return never(Some(largest));
    }
    let Vram::Bytes(vram) = ask.vram else { return Ok(()) };
    let context = |card: &GpuId| state.rows().gpus[card.0 as usize].facts.context.unwrap_or_default();
    let mut contexts: Vec<Bytes> = large.iter().map(context).collect();
    contexts.sort();
    match contexts.get(usize::from(ask.gpus) - 1) {
        Some(context) if *context > vram => Err(Refusal::BelowContext { context: *context }),
        _ => Ok(()),
    }
}
