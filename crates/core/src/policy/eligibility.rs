//! Which GPUs suit a request by what they are, and how many bytes it needs there.
//!
//! Absent: what is free now ([`super::board`]), and what a tenant may have ([`super::quota`]).

use crate::model::ids::GpuId;
use crate::model::request::{GpuSelector, LeaseRequest, Vram};
use crate::model::units::Bytes;
use crate::state::State;

/// Whether a card is one of those the ask names.
pub(crate) fn is_acceptable(state: &State, ask: &LeaseRequest, card: GpuId) -> bool {
    ask.gpus_allowed.as_ref().is_none_or(|on| on.matches(card, &state.rows().gpus[card.0 as usize].facts))
}

/// A whole card is one of which at least so many hundredths are really there for
/// the asker: a desktop's few hundred MiB do not matter, a stranger's model does.
const WHOLE_PERCENT: u64 = 75;

/// The least an ask would put on the books. How much a whole card is shows only once one is found;
/// all of the smallest that would be enough of them is what must be allowed for.
pub(crate) fn least_bytes(state: &State, ask: &LeaseRequest) -> Bytes {
    let each = match ask.vram {
        Vram::Bytes(vram) => vram,
        Vram::Whole => {
            let cards = state.gpus().filter(|card| is_acceptable(state, ask, *card));
            let mut sizes: Vec<Bytes> = cards.map(|card| state.room(card).largest_ever()).collect();
            sizes.sort();
            sizes.get(usize::from(ask.gpus).max(1) - 1).copied().unwrap_or_default()
        }
    };
    Bytes(each.0.saturating_mul(u64::from(ask.gpus)))
}

/// The least that passes for a whole card.
pub(crate) fn whole_gpu_least(state: &State, card: GpuId) -> Bytes {
    Bytes(state.room(card).largest_ever().0 / 100 * WHOLE_PERCENT)
}

/// Whether an ask could ever be on a card, by what the card is.
pub(crate) fn could_ever_fit(state: &State, ask: &LeaseRequest, card: GpuId) -> bool {
    let sized = match ask.vram {
        Vram::Bytes(vram) => vram <= state.room(card).largest_ever(),
        Vram::Whole => true,
    };
    sized && is_acceptable(state, ask, card)
}

/// Whether the waiter could ever start on this card.
pub(crate) fn is_eligible(state: &State, ask: &LeaseRequest, card: GpuId) -> bool {
    let facts = &state.rows().gpus[card.0 as usize].facts;
    // Who was there before has its context.
    let returns = matches!(ask.gpus_allowed, Some(GpuSelector::These(_)));
    let context = facts.context.filter(|_| !returns).unwrap_or_default();
    let sized = match ask.vram {
        Vram::Bytes(vram) => vram <= state.room(card).largest_ever() && vram >= context,
        Vram::Whole => true,
    };
    sized && state.in_service(card) && is_acceptable(state, ask, card)
}

/// What an ask must find on a card.
pub(crate) fn needed_bytes(state: &State, ask: &LeaseRequest, card: GpuId) -> Bytes {
    match ask.vram {
        Vram::Bytes(vram) => vram,
        Vram::Whole => whole_gpu_least(state, card),
    }
}
