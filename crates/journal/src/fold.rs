//! Folding: the log's entries applied one by one to the rows they began with.
//!
//! [`Rows::apply`] trusts its actions, but a file cannot be trusted. So an entry that
//! does not fit the rows before it is reported here, and not applied.

use crate::chain::{EntryHeader, Hash, Hasher};
use crate::read::LogLine;
use sublet_core::action::{Action, FORMAT};
use sublet_core::ids::{GpuId, LeaseId};
use sublet_core::rows::{EndedLease, Rows};
use sublet_core::units::Time;

/// Checks an entry against the one before it.
pub fn check_link(hasher: &mut Hasher, before: &Hash, seq: u64, line: &LogLine) -> Result<(), String> {
    if line.seq != seq {
        return Err(format!("entry {seq} of the log is missing"));
    }
    let LogLine { at, wall_us, format, .. } = *line;
    let head = EntryHeader { before, seq, at, wall_us, actor: &line.actor, format };
    let write = |buffer: &mut Vec<u8>| {
        buffer.extend_from_slice(line.json.as_bytes());
        Ok(())
    };
    match hasher.entry(head, write) {
        Ok((hash, _)) if hash == line.hash => Ok(()),
        _ => Err(format!("entry {seq} of the log was changed: its hash does not fit")),
    }
}

/// Reads and applies an entry.
pub fn fold_line(rows: &mut Rows, line: &LogLine) -> Result<Option<EndedLease>, String> {
    apply_action(rows, line, &read_action(line)?)
}

/// The action of an entry, if this release can read it.
pub fn read_action(line: &LogLine) -> Result<Action, String> {
    if line.format > FORMAT {
        return Err(entry_error(line, "has a format of a later release"));
    }
    let action = line.action().map_err(|error| entry_error(line, &format!("cannot be read: {error}")))?;
    if action.lease() != line.lease {
        return Err(entry_error(line, "names another lease than its action"));
    }
    Ok(action)
}

/// Applies an entry's action.
pub fn apply_action(rows: &mut Rows, line: &LogLine, action: &Action) -> Result<Option<EndedLease>, String> {
    check_action(rows, action).map_err(|what| entry_error(line, what))?;
    Ok(rows.apply(action))
}

fn entry_error(line: &LogLine, what: &str) -> String {
    format!("entry {} of the log {what}", line.seq)
}

/// Refuses an action that cannot be applied to `rows`, and says why.
fn check_action(rows: &Rows, action: &Action) -> Result<(), &'static str> {
    let check = |fits: bool, what| if fits { Ok(()) } else { Err(what) };
    let knows = |cards: &[GpuId]| cards.iter().all(|card| usize::from(card.0) < rows.gpus.len());
    match action {
        Action::Enrol { tenant, .. } => check(tenant.0 as usize == rows.tenants.len(), "enrols a tenant out of order"),
        Action::List { card, .. } => check(usize::from(card.0) <= rows.gpus.len(), "lists a card out of order"),
        Action::Serve { card, .. }
        | Action::SetMode { card, .. }
        | Action::SetAside { card, .. }
        | Action::EndAside { card, .. } => check(usize::from(card.0) < rows.gpus.len(), "names an unknown card"),
        Action::Start { lease_floor, .. } => check(*lease_floor < u64::MAX, "names an impossible lease"),
        Action::Queue { lease, tenant, .. } => {
            check(lease.0 < u64::MAX, "names an impossible lease")?;
            check((tenant.0 as usize) < rows.tenants.len(), "names an unknown tenant")
        }
        Action::Regroup { tenant, .. } => check((tenant.0 as usize) < rows.tenants.len(), "names an unknown tenant"),
        Action::IssueToken { token } => {
            check(token.id.0 < u32::MAX, "names an impossible token")?;
            check(!rows.tokens.contains_key(&token.id), "makes a token that is there")
        }
        Action::RevokeToken { token, .. } => check(rows.tokens.contains_key(token), "revokes an unknown token"),
        Action::SetRule { rule } => check(rule.id.0 < u32::MAX, "names an impossible rule"),
        Action::DropRule { rule } => check(rows.rules.contains_key(rule), "drops an unknown rule"),
        Action::Find { stranger } => {
            check(stranger.id.0 < u64::MAX, "names an impossible stranger")?;
            check(knows(&stranger.gpus), "names an unknown card")?;
            check(!rows.unleased.contains_key(&stranger.id), "finds a stranger that is there")
        }
        Action::Reaudit { stranger, cards, .. } => {
            check(knows(cards), "names an unknown card")?;
            check(rows.unleased.contains_key(stranger), "names an unknown stranger")
        }
        Action::Warn { stranger, .. }
        | Action::Strike { stranger, .. }
        | Action::Struck { stranger, .. }
        | Action::Take { stranger, .. }
        | Action::NotMoved { stranger, .. }
        | Action::Relent { stranger, .. }
        | Action::Survived { stranger, .. }
        | Action::Close { stranger, .. } => check(rows.unleased.contains_key(stranger), "names an unknown stranger"),
        Action::Grant { epoch, cards, .. } => {
            check(knows(cards), "names an unknown card")?;
            check(epoch.0 < u64::MAX, "names an impossible epoch")
        }
        Action::End { lease, at, .. } => check(can_be_charged(rows, *lease, at.0), "charges more than can be counted"),
        _ => Ok(()),
    }
}

/// True if the tenant's totals do not overflow when the lease ends at `at_us`.
fn can_be_charged(rows: &Rows, lease: LeaseId, at_us: u64) -> bool {
    let Some(lease) = rows.leases.get(&lease) else { return true };
    let Some(hold) = lease.hold().filter(|_| lease.is_held()) else { return true };
    let (card_us, byte_us) = hold.charge(Time(at_us));
    let sum = || {
        let tenant = rows.tenants.get(lease.tenant.0 as usize)?;
        at_us.saturating_sub(hold.granted.0).checked_mul(hold.gpus.len() as u64)?;
        tenant.leases.checked_add(1)?;
        tenant.gpu_us.checked_add(card_us)?;
        tenant.byte_us.checked_add(byte_us)
    };
    sum().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_core::ids::{Fence, TenantId};
    use sublet_core::reading::GpuFacts;
    use sublet_core::request::{LeaseRequest, Term};
    use sublet_core::units::{Bytes, Span};

    const LEASE: LeaseId = LeaseId(1);

    fn fold(rows: &mut Rows, action: &Action) -> Result<Option<EndedLease>, String> {
        let json = serde_json::to_string(action).unwrap();
        let (lease, actor, hash) = (action.lease(), String::new(), [0; 32]);
        fold_line(rows, &LogLine { seq: 9, at: Time(1), wall_us: 1, actor, lease, format: FORMAT, json, hash })
    }

    /// A tenant with a lease that waits, and a GPU.
    fn rows() -> Rows {
        let mut rows = Rows::default();
        let (tenant, card, name) = (TenantId(0), GpuId(0), "uid:0".to_owned());
        let ask = LeaseRequest::plain(Bytes::gib(1), Term::Renewed(Span::secs(60)));
        for action in [
            Action::Enrol { tenant, name },
            Action::List { card, facts: GpuFacts::plain(0, Bytes::gib(24)) },
            Action::Queue { lease: LEASE, tenant, ask, at: Time(1), give_up: Time(9), root: None, token: None },
        ] {
            fold(&mut rows, &action).unwrap();
        }
        rows
    }

    fn grant(cards: Vec<GpuId>, until: Time) -> Action {
        let (vram, epoch, at) = (Bytes::gib(24), Fence(1), Time(1));
        Action::Grant { lease: LEASE, cards, vram, epoch, at, until, mark: None, before: None, turn: None, told: None }
    }

    #[test]
    fn an_action_with_an_unknown_tenant_or_gpu_is_refused_and_changes_nothing() {
        let mut rows = rows();
        let before = rows.clone();
        for (action, what) in [
            (Action::Regroup { tenant: TenantId(1), groups: Vec::new() }, "tenant"),
            (grant(vec![GpuId(0), GpuId(1)], Time(9)), "card"),
        ] {
            let error = fold(&mut rows, &action).unwrap_err();
            assert_eq!(error, format!("entry 9 of the log names an unknown {what}"));
            assert_eq!(rows, before);
        }
    }

    #[test]
    fn terms_without_end_do_not_overflow_the_budget_of_a_day() {
        let mut rows = rows();
        for _ in 0..3 {
            fold(&mut rows, &grant(vec![GpuId(0)], Time(u64::MAX))).unwrap();
        }
        assert_eq!(rows.tenants[0].today_us, u64::MAX);
    }
}
