//! How far the use of GPUs moves a tenant's debt clock.

use crate::model::ids::TenantId;
use crate::model::units::{Bytes, Span, Time};
use crate::state::State;

/// A tenant's mark once it is charged for so much of so many cards for so long: its use in relation
/// to its share of all there is, beyond the present. Whoever uses just its share keeps pace with time.
pub(crate) fn debt_clock_after(
    state: &State,
    tenant: TenantId,
    vram: Bytes,
    cards: usize,
    span: Span,
    now: Time,
) -> Time {
    let (own, all) = state.ledger().shares(tenant);
    let use_ = u128::from(span.0) * u128::from(vram.0) * cards as u128;
    let share = u128::from(state.total().0.max(1)) * u128::from(own) / u128::from(all);
    let moved = (use_ / share.max(1)).min(u128::from(LONGEST_CHARGE.0)) as u64;
    state.rows().tenants[tenant.0 as usize].debt_clock.max(now) + Span(moved)
}

/// No charge moves a mark further: what is beyond any debt that counts need not be exact.
const LONGEST_CHARGE: Span = Span::secs(365 * 86_400);
