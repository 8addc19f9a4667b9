//! Folding: the log's entries applied one by one to the rows they began with.
//!
//! A file cannot be trusted: an entry that does not fit the rows before it is reported here, and not applied.

use crate::chain::{EntryHeader, Hash, Hasher};
use crate::read::LogLine;
use sublet_core::action::{Action, FORMAT};
use sublet_core::rows::{EndedLease, Rows};

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
    if action.overflows_totals(rows) {
        return Err(entry_error(line, "charges more than can be counted"));
    }
    rows.apply(action).map_err(|broken| entry_error(line, &broken.what))
}

fn entry_error(line: &LogLine, what: &str) -> String {
    format!("entry {} of the log {what}", line.seq)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_core::facts::{GpuAction, LeaseAction, TenantAction};
    use sublet_core::ids::{Fence, GpuId, LeaseId, TenantId};
    use sublet_core::reading::GpuFacts;
    use sublet_core::request::{LeaseRequest, Term};
    use sublet_core::units::{Bytes, Span, Time};

    const LEASE: LeaseId = LeaseId(1);

    fn fold(rows: &mut Rows, action: &Action) -> Result<Option<EndedLease>, String> {
        let json = serde_json::to_string(action).unwrap();
        let (lease, actor, hash) = (action.lease(), String::new(), [0; 32]);
        fold_line(rows, &LogLine { seq: 9, at: Time(1), wall_us: 1, actor, lease, format: FORMAT, json, hash })
    }

    /// A tenant with a lease that waits, and a GPU.
    fn rows() -> Rows {
        let mut rows = Rows::default();
        let (tenant, gpu, name) = (TenantId(0), GpuId(0), "uid:0".to_owned());
        for action in [
            TenantAction::Add { tenant, name }.into(),
            GpuAction::SetFacts { gpu, facts: GpuFacts::plain(0, Bytes::gib(24)) }.into(),
            queue(LEASE),
        ] {
            fold(&mut rows, &action).unwrap();
        }
        rows
    }

    fn queue(lease: LeaseId) -> Action {
        let request = LeaseRequest::plain(Bytes::gib(1), Term::Renewed(Span::secs(60)));
        let (tenant, at, give_up) = (TenantId(0), Time(1), Time(9));
        LeaseAction::Queue { lease, tenant, request, at, give_up, root: None, token: None }.into()
    }

    fn grant(lease: LeaseId, gpus: Vec<GpuId>, until: Time) -> Action {
        let grant = LeaseAction::Grant {
            lease,
            gpus,
            vram: Bytes::gib(24),
            fence: Fence(1),
            at: Time(1),
            until,
            debt_clock: None,
            not_beyond: None,
            first_since: None,
            expected: None,
        };
        grant.into()
    }

    #[test]
    fn an_action_with_an_unknown_tenant_or_gpu_is_refused_and_changes_nothing() {
        let mut rows = rows();
        let before = rows.clone();
        for (action, what) in [
            (TenantAction::SetGroups { tenant: TenantId(1), groups: Vec::new() }.into(), "tenant"),
            (grant(LEASE, vec![GpuId(0), GpuId(1)], Time(9)), "card"),
        ] {
            let error = fold(&mut rows, &action).unwrap_err();
            assert_eq!(error, format!("entry 9 of the log names an unknown {what}"));
            assert_eq!(rows, before);
        }
    }

    #[test]
    fn action_that_does_not_fit_the_phase_of_its_lease_is_refused_and_changes_nothing() {
        let mut rows = rows();
        let before = rows.clone();
        let (lease, at) = (LEASE, Time(1));
        for (action, what) in [
            (
                LeaseAction::FinishPark { lease, at, debt_clock: None },
                "needs the lease L1 to be parking, and it is waiting",
            ),
            (LeaseAction::CancelNotice { lease }, "needs the lease L1 to be active, and it is waiting"),
            (LeaseAction::Retire { lease, ran: None }, "needs the lease L1 to be ending, and it is waiting"),
            (LeaseAction::ClearOveruse { lease: LeaseId(7) }, "names the lease L7, which is not there"),
        ] {
            let error = fold(&mut rows, &action.into()).unwrap_err();
            assert_eq!(error, format!("entry 9 of the log {what}"));
            assert_eq!(rows, before);
        }
    }

    #[test]
    fn terms_without_end_do_not_overflow_the_budget_of_a_day() {
        let mut rows = rows();
        for lease in (1..=3).map(LeaseId) {
            if lease != LEASE {
                fold(&mut rows, &queue(lease)).unwrap();
            }
            fold(&mut rows, &grant(lease, vec![GpuId(0)], Time(u64::MAX))).unwrap();
        }
        assert_eq!(rows.tenants[TenantId(0)].today_us, u64::MAX);
    }
}
