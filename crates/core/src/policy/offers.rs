//! Smaller leases that a waiter could have now.

use crate::model::request::{LeaseRequest, Vram};
use crate::model::rows::{Lease, Phase};
use crate::model::units::{Bytes, Time};
use crate::policy::board::{Board, Fit};
use crate::policy::quota;
use crate::state::State;

/// A smaller lease that could start now. Nothing is reserved for it: the first request that takes it has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Bytes of each GPU.
    pub vram: Bytes,
    /// The number of GPUs.
    pub gpus: u16,
    /// If it is over by then: a waiter ahead needs the GPUs.
    pub before: Option<Time>,
}

/// The same waiter with a smaller request.
pub(crate) fn smaller(lease: &Lease, vram: Bytes, gpus: u16) -> Lease {
    let request = LeaseRequest { vram: Vram::Bytes(vram), gpus, at_least: None, ..lease.request.clone() };
    Lease { request, ..lease.clone() }
}

/// What a waiter could have now instead of waiting: fewer bytes of as many GPUs, or fewer GPUs.
pub fn offers(state: &State, lease: &Lease, now: Time) -> Vec<Offer> {
    if state.is_stopped() || !matches!(lease.phase, Phase::Waiting { .. }) {
        return Vec::new();
    }
    // Nothing is offered to a waiter that is further back than a round goes: a waiter ahead might need it.
    let Some(board) = Board::behind_waiter(state, now, lease.id) else { return Vec::new() };
    let mut found: Vec<Offer> = Vec::new();
    // Any size will do for an offer; its taker decides.
    let open = Lease { request: LeaseRequest { at_least: Some(Bytes(1)), ..lease.request.clone() }, ..lease.clone() };
    let mut gpus = lease.request.gpus;
    while gpus > 0 {
        if let Some(Fit { vram, before, .. }) = board.fit_smaller(state, &open, gpus, Bytes(1)) {
            let better = found.last().is_none_or(|last| vram > last.vram);
            let allowed = quota::block(state, &smaller(lease, vram, gpus)).is_none();
            if better && allowed {
                found.push(Offer { vram, gpus, before });
            }
        }
        // Half of several GPUs is of use, one GPU less seldom.
        gpus /= 2;
    }
    found
}
