//! How far the use of GPUs moves a tenant's debt clock.

use crate::model::ids::TenantId;
use crate::model::units::{Bytes, Span, Time};
use crate::state::State;

/// A tenant's debt clock after a charge for these bytes of this many GPUs over `span`: the use in relation to the
/// tenant's share of all GPUs. A tenant that uses exactly its share keeps pace with time.
pub(crate) fn debt_clock_after(
    state: &State,
    tenant: TenantId,
    vram: Bytes,
    gpus: usize,
    span: Span,
    now: Time,
) -> Time {
    let (own, all) = state.ledger().shares(tenant);
    let use_ = u128::from(span.0) * u128::from(vram.0) * gpus as u128;
    let share = u128::from(state.total().0.max(1)) * u128::from(own) / u128::from(all);
    let moved = (use_ / share.max(1)).min(u128::from(LONGEST_CHARGE.0)) as u64;
    state.rows().tenants[tenant].debt_clock.max(now) + Span(moved)
}

/// No charge moves a debt clock further: what is beyond any debt that counts need not be exact.
const LONGEST_CHARGE: Span = Span::secs(365 * 86_400);
