//! What the caps of a token leave for a lease.

use crate::model::request::{LeaseRequest, Vram};
use crate::model::rows::Lease;
use crate::model::units::Bytes;
use crate::policy::eligibility::is_acceptable;
use crate::state::State;

/// Whether the token that a lease was requested through allows these bytes more.
pub(crate) fn token_allows(state: &State, lease: &Lease, more: Bytes) -> bool {
    let Some(id) = lease.token else { return true };
    let Some(token) = state.rows().tokens.get(&id) else { return false };
    let has = || state.leases_of_token(id).fold(Bytes::ZERO, |sum, lease| sum + most_of(state, lease));
    token.caps.vram.is_none_or(|cap| has() + more <= cap)
}

pub(crate) fn most_of(state: &State, lease: &Lease) -> Bytes {
    match lease.hold() {
        Some(hold) => times(hold.vram, hold.gpus.len()),
        None => most_wish(state, &lease.request),
    }
}

/// The most that a request could reserve: how large a whole GPU is shows only with the grant, and a cap must hold
/// whichever it is.
pub(crate) fn most_wish(state: &State, request: &LeaseRequest) -> Bytes {
    let each = match request.vram {
        Vram::Bytes(vram) => vram,
        Vram::Whole => {
            let gpus = state.gpus().filter(|gpu| is_acceptable(state, request, *gpu));
            gpus.map(|gpu| state.room(gpu).largest_ever()).max().unwrap_or_default()
        }
    };
    times(each, usize::from(request.gpus))
}

fn times(each: Bytes, gpus: usize) -> Bytes {
    Bytes(each.0.saturating_mul(gpus as u64))
}
