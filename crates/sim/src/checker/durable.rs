//! What is on the disk: rules 10, 11, 14 and 15.

use super::books::{CheckerBooks, LeaseStage};
use super::{Checker, Verdict, must};
use crate::disk::SimDisk;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use sublet_core::action::Action;
use sublet_core::facts::{LeaseAction, UnleasedAction};
use sublet_core::ids::{LeaseId, TenantId};
use sublet_core::rows::{Lease, Phase};
use sublet_core::units::Time;
use sublet_core::unleased::UnleasedId;
use sublet_journal::Batch;

/// After this many batches all rows are compared, not only those that were touched.
const FULL_EVERY: u64 = 500;

/// What was answered about a lease; the disk must have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnsweredFact {
    lease: LeaseId,
    /// The fence and the expiry.
    granted: Option<(u64, Time)>,
    ended: bool,
}

/// A fact that was decided and is not durable yet.
#[derive(Debug)]
struct DecidedFact {
    kind: &'static str,
    lease: Option<LeaseId>,
    unleased: Option<UnleasedId>,
    charge: Option<(usize, u64, u128)>,
    /// The tenant, and host memory times time.
    parked: Option<(usize, u128)>,
}

/// What the checker knows of the disk.
#[derive(Debug, Default)]
pub struct DurableLedger {
    pending: VecDeque<DecidedFact>,
    durable_seq: u64,
    last_at: Time,
    batches: u64,
    /// Charges by tenant: leases, GPU·µs, byte·µs.
    meter: Vec<(u64, u64, u128)>,
    /// Charges of host memory for parked bytes by tenant, in byte·µs.
    parked_meter: Vec<u128>,
    answered: BTreeMap<LeaseId, AnsweredFact>,
    sync_failed: bool,
    /// Signals to unleased processes that are on the disk.
    recorded_signals: BTreeSet<(UnleasedId, u8)>,
}

impl DurableLedger {
    /// Notes a decided action; the books have it already, and know its cost of host memory.
    pub fn note_decided(&mut self, action: &Action, books: &CheckerBooks, parked: Option<(usize, u128)>) {
        let charge = match action {
            Action::Lease(LeaseAction::End { lease, .. }) => {
                books.leases.get(lease).and_then(|book| match &book.stage {
                    LeaseStage::Ending(held, ended, _) => {
                        let (gpu_us, byte_us) = held.charge(*ended);
                        Some((book.tenant, gpu_us, byte_us))
                    }
                    _ => None,
                })
            }
            _ => None,
        };
        let (kind, lease, stranger) = (action.kind(), action.lease(), action.unleased());
        self.pending.push_back(DecidedFact { kind, lease, unleased: stranger, charge, parked });
    }

    /// True if the disk has this signal to an unleased process.
    pub fn is_recorded(&self, unleased: UnleasedId, signal: u8) -> bool {
        self.recorded_signals.contains(&(unleased, signal))
    }

    fn meter_parked(&mut self, (tenant, byte_us): (usize, u128)) {
        if self.parked_meter.len() <= tenant {
            self.parked_meter.resize(tenant + 1, 0);
        }
        self.parked_meter[tenant] += byte_us;
    }

    fn charge(&mut self, (tenant, gpu_us, byte_us): (usize, u64, u128)) {
        if self.meter.len() <= tenant {
            self.meter.resize(tenant + 1, (0, 0, 0));
        }
        let (leases, gpu_sum, byte_sum) = &mut self.meter[tenant];
        *leases += 1;
        *gpu_sum += gpu_us;
        *byte_sum += byte_us;
    }

    /// Checks that the entries are those that were decided, in that order.
    fn check_entries(&mut self, batch: &Batch) -> Verdict {
        for entry in &batch.entries {
            let decided = self.pending.pop_front();
            let about = (entry.action.lease(), entry.action.unleased());
            let same = |d: &DecidedFact| d.kind == entry.action.kind() && (d.lease, d.unleased) == about;
            must(15, decided.as_ref().is_some_and(same), || {
                format!("the log has {:?} where {decided:?} was decided", entry.action)
            })?;
            must(15, entry.at >= self.last_at, || format!("the log goes back from {} to {}", self.last_at, entry.at))?;
            self.last_at = entry.at;
            if let Action::Unleased(UnleasedAction::Signal { id: stranger, signal, .. }) = &entry.action {
                self.recorded_signals.insert((*stranger, *signal));
            }
            if let Some(decided) = decided {
                decided.charge.into_iter().for_each(|charge| self.charge(charge));
                decided.parked.into_iter().for_each(|parked| self.meter_parked(parked));
            }
        }
        Ok(())
    }

    fn check_meter(&self, disk: &SimDisk, tenant: TenantId) -> Verdict {
        let own = self.meter.get(tenant.0 as usize).copied().unwrap_or_default();
        let row = disk.rows.tenants.find(tenant);
        let theirs = row.map(|row| (row.leases, row.gpu_us, row.byte_us)).unwrap_or_default();
        must(14, own == theirs, || format!("{tenant} was charged {theirs:?}, and the meter has {own:?}"))?;
        let own = self.parked_meter.get(tenant.0 as usize).copied().unwrap_or_default();
        let theirs = row.map(|row| row.parked_byte_us).unwrap_or_default();
        must(14, own == theirs, || format!("{tenant} had {theirs} byte·µs parked, and the meter has {own}"))
    }
}

impl Checker {
    /// What a caller is answered about a lease now.
    pub fn answered_fact(&self, lease: LeaseId) -> Option<AnsweredFact> {
        let book = self.books.leases.get(&lease)?;
        let granted = book.held().map(|held| (held.fence.0, held.until));
        Some(AnsweredFact { lease, granted, ended: matches!(book.stage, LeaseStage::Ending(..)) })
    }

    /// Checks that an answer left only after its first `seq` entries were durable.
    pub fn check_answered(&mut self, seq: u64, fact: Option<AnsweredFact>) -> Verdict {
        must(11, !self.ledger.sync_failed, || format!("{fact:?} was answered after a failed sync"))?;
        let durable = self.ledger.durable_seq;
        must(10, seq <= durable, || format!("{fact:?} was answered at entry {seq}, and the disk has {durable}"))?;
        if let Some(fact) = fact {
            self.ledger.answered.insert(fact.lease, fact);
        }
        Ok(())
    }

    /// The disk did not confirm a write.
    pub fn sync_failed(&mut self) {
        self.ledger.sync_failed = true;
    }

    /// Takes a batch that is on the disk, whole.
    pub fn take_commit(&mut self, batch: &Batch, disk: &SimDisk) -> Verdict {
        self.ledger.check_entries(batch)?;
        self.ledger.durable_seq += batch.entries.len() as u64;
        self.ledger.batches += 1;
        let (seq, durable) = (disk.seq, self.ledger.durable_seq);
        must(15, seq == durable, || format!("the log has {seq} entries, and {durable} were written"))?;
        check_touched(batch, disk)?;
        for (tenant, _) in &batch.tenants {
            self.ledger.check_meter(disk, *tenant)?;
        }
        if self.ledger.batches.is_multiple_of(FULL_EVERY) { self.check_disk(disk) } else { Ok(()) }
    }

    /// Checks that folding the log gives the rows, and that the meter agrees.
    pub fn check_disk(&self, disk: &SimDisk) -> Verdict {
        must(15, disk.fold == disk.rows, || {
            let lease = disk.fold.leases.iter().find(|(id, lease)| disk.rows.leases.get(id) != Some(lease));
            format!("folding the log does not give the rows; first differing lease in the log: {lease:?}")
        })?;
        (0..disk.rows.tenants.len() as u32).try_for_each(|tenant| self.ledger.check_meter(disk, TenantId(tenant)))
    }

    /// Takes a start of the daemon: the disk must have all that was answered.
    pub fn take_restart(&mut self, disk: &SimDisk) -> Verdict {
        self.ledger.sync_failed = false;
        self.take_rebuild(disk)
    }

    /// Takes a state that was read from the disk again.
    pub fn take_rebuild(&mut self, disk: &SimDisk) -> Verdict {
        self.ledger.pending.clear();
        self.check_disk(disk)?;
        self.check_answered_facts(disk)?;
        let policy = self.books.policy.clone();
        let in_host_memory = std::mem::take(&mut self.books.in_host_memory);
        self.books = CheckerBooks::from_rows(policy, &disk.rows);
        self.books.in_host_memory = in_host_memory;
        Ok(())
    }

    fn check_answered_facts(&mut self, disk: &SimDisk) -> Verdict {
        for fact in self.ledger.answered.values() {
            must(10, is_kept(fact, disk), || {
                format!("{fact:?} was answered, and the disk has {:?}", disk.rows.leases.get(&fact.lease))
            })?;
        }
        // A retired lease stays retired.
        self.ledger.answered.retain(|lease, _| disk.rows.leases.contains_key(lease));
        Ok(())
    }

    /// Answered facts are dropped at restarts; this bounds the memory of long calm runs.
    pub fn drop_answered_facts(&mut self, disk: &SimDisk) -> Verdict {
        if self.ledger.answered.len() > 4 * disk.rows.leases.len() + 1_000 {
            self.check_answered_facts(disk)
        } else {
            Ok(())
        }
    }
}

/// True if the disk has what was answered, or something later.
fn is_kept(fact: &AnsweredFact, disk: &SimDisk) -> bool {
    let Some(row) = disk.rows.leases.get(&fact.lease) else {
        let oldest = disk.past.first_key_value().map_or(u64::MAX, |(id, _)| *id);
        return match disk.past.get(&fact.lease.0) {
            Some(fence) => fact.granted.is_none_or(|(told, _)| *fence == Some(told)),
            None => fact.lease.0 < oldest && disk.past.len() > 1_000,
        };
    };
    match (&row.phase, fact.granted) {
        (_, None) => true,
        (Phase::Waiting { .. }, Some(_)) => false,
        (Phase::Parking(hold, _) | Phase::Parked(hold, _) | Phase::Resuming(hold, _), Some((fence, _))) => {
            !fact.ended && hold.fence.0 == fence
        }
        (Phase::Active(hold), Some((fence, until))) => !fact.ended && hold.fence.0 == fence && hold.until >= until,
        (Phase::Ending(hold, _), Some((fence, _))) => hold.fence.0 == fence,
    }
}

/// Checks that every row that a batch touched, by image or by entry, is what folding gives.
fn check_touched(batch: &Batch, disk: &SimDisk) -> Verdict {
    let images = batch.new.iter().chain(&batch.leases).map(|lease| lease.id);
    let images = images.chain(batch.ending.iter().map(|(id, _)| *id)).chain(batch.gone.iter().copied());
    let entries = batch.entries.iter().filter_map(|entry| entry.action.lease());
    for lease in images.chain(entries) {
        let (row, folded): (Option<&Lease>, _) = (disk.rows.leases.get(&lease), disk.fold.leases.get(&lease));
        must(15, row == folded, || format!("the row of {lease} is {row:?}, and its log gives {folded:?}"))?;
    }
    for (tenant, row) in &batch.tenants {
        let folded = disk.fold.tenants.get(tenant.0 as usize);
        must(15, Some(row) == folded, || format!("the row of {tenant} is {row:?}, and its log gives {folded:?}"))?;
    }
    for (gpu, row) in &batch.cards {
        let folded = disk.fold.gpus.get(usize::from(gpu.0));
        must(15, Some(row) == folded, || format!("the row of GPU {gpu} is {row:?}, and its log gives {folded:?}"))?;
    }
    let images = batch.strangers.iter().map(|unleased| unleased.id).chain(batch.closed.iter().copied());
    for id in images.chain(batch.entries.iter().filter_map(|entry| entry.action.unleased())) {
        let (row, folded) = (disk.rows.unleased.get(&id), disk.fold.unleased.get(&id));
        must(15, row == folded, || format!("the row of {id} is {row:?}, and its log gives {folded:?}"))?;
    }
    let (meta, folded) = (&disk.rows.meta, &disk.fold.meta);
    must(15, meta == folded, || format!("the counters are {meta:?}, and the log gives {folded:?}"))
}
