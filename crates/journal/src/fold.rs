//! Folding: the log's entries applied one by one to the rows they began with.
//!
//! [`Rows::apply`] trusts its actions; a file is not to be trusted. So an entry that
//! does not fit the rows before it is named here, and not applied.

use crate::chain::{Hash, Hasher, Head};
use crate::read::LogLine;
use sublet_core::action::{Action, FORMAT};
use sublet_core::ids::LeaseId;
use sublet_core::rows::{Ended, Rows};
use sublet_core::units::Time;

/// Checks an entry against the one before it.
pub fn linked(hasher: &mut Hasher, before: &Hash, seq: u64, line: &LogLine) -> Result<(), String> {
    if line.seq != seq {
        return Err(format!("entry {seq} of the log is missing"));
    }
    let LogLine { at, wall_us, format, .. } = *line;
    let head = Head { before, seq, at, wall_us, actor: &line.actor, format };
    let write = |buffer: &mut Vec<u8>| {
        buffer.extend_from_slice(line.json.as_bytes());
        Ok(())
    };
    match hasher.entry(head, write) {
        Ok((hash, _)) if hash == line.hash => Ok(()),
        _ => Err(format!("entry {seq} of the log was changed: its hash does not fit")),
    }
}

/// Applies an entry.
pub fn step(rows: &mut Rows, line: &LogLine) -> Result<Option<Ended>, String> {
    let wrong = |what: &str| format!("entry {} of the log {what}", line.seq);
    if line.format > FORMAT {
        return Err(wrong("has a format of a later release"));
    }
    let action = line.action().map_err(|error| wrong(&format!("cannot be read: {error}")))?;
    if action.lease() != line.lease {
        return Err(wrong("names another lease than its action"));
    }
    fits(rows, &action).map_err(wrong)?;
    Ok(rows.apply(&action))
}

/// Whether applying the action is defined at all.
fn fits(rows: &Rows, action: &Action) -> Result<(), &'static str> {
    let check = |fits: bool, what| if fits { Ok(()) } else { Err(what) };
    match action {
        Action::Enrol { tenant, .. } => check(tenant.0 as usize == rows.tenants.len(), "enrols a tenant out of order"),
        Action::List { card, .. } => check(usize::from(card.0) <= rows.cards.len(), "lists a card out of order"),
        Action::Serve { card, .. }
        | Action::SetMode { card, .. }
        | Action::SetAside { card, .. }
        | Action::EndAside { card, .. } => check(usize::from(card.0) < rows.cards.len(), "names an unknown card"),
        Action::Start { lease_floor, .. } => check(*lease_floor < u64::MAX, "names an impossible lease"),
        Action::Queue { lease, tenant, .. } => {
            check(lease.0 < u64::MAX, "names an impossible lease")?;
            check((tenant.0 as usize) < rows.tenants.len(), "names an unknown tenant")
        }
        Action::IssueToken { token } => {
            check(token.id.0 < u32::MAX, "names an impossible token")?;
            check(!rows.tokens.contains_key(&token.id), "makes a token that is there")
        }
        Action::RevokeToken { token, .. } => check(rows.tokens.contains_key(token), "revokes an unknown token"),
        Action::SetRule { rule } => check(rule.id.0 < u32::MAX, "names an impossible rule"),
        Action::DropRule { rule } => check(rows.rules.contains_key(rule), "drops an unknown rule"),
        Action::Find { stranger } => {
            check(stranger.id.0 < u64::MAX, "names an impossible stranger")?;
            check(!rows.strangers.contains_key(&stranger.id), "finds a stranger that is there")
        }
        Action::Reaudit { stranger, .. }
        | Action::Warn { stranger, .. }
        | Action::Strike { stranger, .. }
        | Action::Struck { stranger, .. }
        | Action::Take { stranger, .. }
        | Action::NotMoved { stranger, .. }
        | Action::Relent { stranger, .. }
        | Action::Survived { stranger, .. }
        | Action::Close { stranger, .. } => check(rows.strangers.contains_key(stranger), "names an unknown stranger"),
        Action::Grant { epoch, .. } => check(epoch.0 < u64::MAX, "names an impossible epoch"),
        Action::End { lease, at, .. } => check(chargeable(rows, *lease, at.0), "charges more than can be counted"),
        _ => Ok(()),
    }
}

/// Whether ending a lease keeps its tenant's totals within their types.
fn chargeable(rows: &Rows, lease: LeaseId, at_us: u64) -> bool {
    let Some(lease) = rows.leases.get(&lease) else { return true };
    let Some(hold) = lease.hold().filter(|_| lease.is_held()) else { return true };
    let (card_us, byte_us) = hold.charge(Time(at_us));
    let sum = || {
        let tenant = rows.tenants.get(lease.tenant.0 as usize)?;
        at_us.saturating_sub(hold.granted.0).checked_mul(hold.cards.len() as u64)?;
        tenant.leases.checked_add(1)?;
        tenant.card_us.checked_add(card_us)?;
        tenant.byte_us.checked_add(byte_us)
    };
    sum().is_some()
}
