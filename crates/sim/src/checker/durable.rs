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

/// Every so many batches all rows are compared, not only those that were touched.
const FULL_EVERY: u64 = 500;

/// What was told about a lease; it must be found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnsweredFact {
    lease: LeaseId,
    /// The epoch it was granted with, and until when.
    granted: Option<(u64, Time)>,
    ended: bool,
}

/// A fact decided and not durable yet.
#[derive(Debug)]
struct DecidedFact {
    kind: &'static str,
    lease: Option<LeaseId>,
    stranger: Option<UnleasedId>,
    charge: Option<(usize, u64, u128)>,
    /// Of whom, and how much host memory for how long.
    parked: Option<(usize, u128)>,
}

/// What the checker knows of the disk.
#[derive(Debug, Default)]
pub struct DurableLedger {
    pending: VecDeque<DecidedFact>,
    durable_seq: u64,
    last_at: Time,
    batches: u64,
    /// Charged, by tenant: leases, card·µs, byte·µs.
    meter: Vec<(u64, u64, u128)>,
    /// The same of host memory for parked bytes, in byte·µs.
    parked: Vec<u128>,
    told: BTreeMap<LeaseId, AnsweredFact>,
    sync_failed: bool,
    /// Signals to strangers that are on the disk.
    strikes: BTreeSet<(UnleasedId, u8)>,
}

impl DurableLedger {
    /// Something was decided; the books have it already, and say what it costs of host memory.
    pub fn decided(&mut self, action: &Action, books: &CheckerBooks, parked: Option<(usize, u128)>) {
        let charge = match action {
            Action::Lease(LeaseAction::End { lease, .. }) => books.leases.get(lease).and_then(|book| match &book.at {
                LeaseStage::Ending(held, ended, _) => {
                    let (card_us, byte_us) = held.charge(*ended);
                    Some((book.tenant, card_us, byte_us))
                }
                _ => None,
            }),
            _ => None,
        };
        let (kind, lease, stranger) = (action.kind(), action.lease(), action.unleased());
        self.pending.push_back(DecidedFact { kind, lease, stranger, charge, parked });
    }

    /// Whether the disk has that a stranger gets a signal.
    pub fn is_recorded(&self, stranger: UnleasedId, signal: u8) -> bool {
        self.strikes.contains(&(stranger, signal))
    }

    fn meter_parked(&mut self, (tenant, byte_us): (usize, u128)) {
        if self.parked.len() <= tenant {
            self.parked.resize(tenant + 1, 0);
        }
        self.parked[tenant] += byte_us;
    }

    fn charge(&mut self, (tenant, card_us, byte_us): (usize, u64, u128)) {
        if self.meter.len() <= tenant {
            self.meter.resize(tenant + 1, (0, 0, 0));
        }
        let (leases, card_sum, byte_sum) = &mut self.meter[tenant];
        *leases += 1;
        *card_sum += card_us;
        *byte_sum += byte_us;
    }

    /// The entries are those that were decided, in that order.
    fn check_entries(&mut self, batch: &Batch) -> Verdict {
        for entry in &batch.entries {
            let decided = self.pending.pop_front();
            let about = (entry.action.lease(), entry.action.unleased());
            let same = |d: &DecidedFact| d.kind == entry.action.kind() && (d.lease, d.stranger) == about;
            must(15, decided.as_ref().is_some_and(same), || {
                format!("the log has {:?} where {decided:?} was decided", entry.action)
            })?;
            must(15, entry.at >= self.last_at, || format!("the log goes back from {} to {}", self.last_at, entry.at))?;
            self.last_at = entry.at;
            if let Action::Unleased(UnleasedAction::Signal { id: stranger, signal, .. }) = &entry.action {
                self.strikes.insert((*stranger, *signal));
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
        let row = disk.rows.tenants.get(tenant.0 as usize);
        let theirs = row.map(|row| (row.leases, row.gpu_us, row.byte_us)).unwrap_or_default();
        must(14, own == theirs, || format!("{tenant} was charged {theirs:?}, and the meter has {own:?}"))?;
        let own = self.parked.get(tenant.0 as usize).copied().unwrap_or_default();
        let theirs = row.map(|row| row.parked_byte_us).unwrap_or_default();
        must(14, own == theirs, || format!("{tenant} had {theirs} byte·µs parked, and the meter has {own}"))
    }
}

impl Checker {
    /// What a caller is told about a lease now.
    pub fn fact(&self, lease: LeaseId) -> Option<AnsweredFact> {
        let book = self.books.leases.get(&lease)?;
        let granted = book.held().map(|held| (held.epoch.0, held.until));
        Some(AnsweredFact { lease, granted, ended: matches!(book.at, LeaseStage::Ending(..)) })
    }

    /// An answer left that depends on the first `seq` entries.
    pub fn acked(&mut self, seq: u64, fact: Option<AnsweredFact>) -> Verdict {
        must(11, !self.ledger.sync_failed, || format!("{fact:?} was told after a failed sync"))?;
        let durable = self.ledger.durable_seq;
        must(10, seq <= durable, || format!("{fact:?} was told at entry {seq}, and the disk has {durable}"))?;
        if let Some(fact) = fact {
            self.ledger.told.insert(fact.lease, fact);
        }
        Ok(())
    }

    /// The disk did not confirm a write.
    pub fn sync_failed(&mut self) {
        self.ledger.sync_failed = true;
    }

    /// A batch is on the disk, whole.
    pub fn committed(&mut self, batch: &Batch, disk: &SimDisk) -> Verdict {
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

    /// Folding the log gives the rows; the meter agrees.
    pub fn check_disk(&self, disk: &SimDisk) -> Verdict {
        must(15, disk.fold == disk.rows, || {
            let lease = disk.fold.leases.iter().find(|(id, lease)| disk.rows.leases.get(id) != Some(lease));
            format!("folding the log does not give the rows; first differing lease in the log: {lease:?}")
        })?;
        (0..disk.rows.tenants.len() as u32).try_for_each(|tenant| self.ledger.check_meter(disk, TenantId(tenant)))
    }

    /// A daemon starts from the disk: everything that was told must be there.
    pub fn restarted(&mut self, disk: &SimDisk) -> Verdict {
        self.ledger.sync_failed = false;
        self.rebuilt(disk)
    }

    /// The state was dropped and read from the disk again.
    pub fn rebuilt(&mut self, disk: &SimDisk) -> Verdict {
        self.ledger.pending.clear();
        self.check_disk(disk)?;
        self.check_told(disk)?;
        let policy = self.books.policy.clone();
        let stowed = std::mem::take(&mut self.books.stowed);
        self.books = CheckerBooks::from_rows(policy, &disk.rows);
        self.books.stowed = stowed;
        Ok(())
    }

    fn check_told(&mut self, disk: &SimDisk) -> Verdict {
        for fact in self.ledger.told.values() {
            must(10, kept(fact, disk), || {
                format!("{fact:?} was told, and the disk has {:?}", disk.rows.leases.get(&fact.lease))
            })?;
        }
        // What is history stays history.
        self.ledger.told.retain(|lease, _| disk.rows.leases.contains_key(lease));
        Ok(())
    }

    /// Whether a told fact may be forgotten is decided at restarts; this bounds the memory of long calm runs.
    pub fn forget_told(&mut self, disk: &SimDisk) -> Verdict {
        if self.ledger.told.len() > 4 * disk.rows.leases.len() + 1_000 { self.check_told(disk) } else { Ok(()) }
    }
}

/// Whether what was told is on the disk, or something later is.
fn kept(fact: &AnsweredFact, disk: &SimDisk) -> bool {
    let Some(row) = disk.rows.leases.get(&fact.lease) else {
        let oldest = disk.past.first_key_value().map_or(u64::MAX, |(id, _)| *id);
        return match disk.past.get(&fact.lease.0) {
            Some(epoch) => fact.granted.is_none_or(|(told, _)| *epoch == Some(told)),
            None => fact.lease.0 < oldest && disk.past.len() > 1_000,
        };
    };
    match (&row.phase, fact.granted) {
        (_, None) => true,
        (Phase::Waiting { .. }, Some(_)) => false,
        (Phase::Parking(hold, _) | Phase::Parked(hold, _) | Phase::Resuming(hold, _), Some((epoch, _))) => {
            !fact.ended && hold.fence.0 == epoch
        }
        (Phase::Active(hold), Some((epoch, until))) => !fact.ended && hold.fence.0 == epoch && hold.until >= until,
        (Phase::Ending(hold, _), Some((epoch, _))) => hold.fence.0 == epoch,
    }
}

/// Every row that a batch touched, by image or by entry, is what folding gives.
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
    for (card, row) in &batch.cards {
        let folded = disk.fold.gpus.get(usize::from(card.0));
        must(15, Some(row) == folded, || format!("the row of card {card} is {row:?}, and its log gives {folded:?}"))?;
    }
    let images = batch.strangers.iter().map(|stranger| stranger.id).chain(batch.closed.iter().copied());
    for id in images.chain(batch.entries.iter().filter_map(|entry| entry.action.unleased())) {
        let (row, folded) = (disk.rows.unleased.get(&id), disk.fold.unleased.get(&id));
        must(15, row == folded, || format!("the row of {id} is {row:?}, and its log gives {folded:?}"))?;
    }
    let (meta, folded) = (&disk.rows.meta, &disk.fold.meta);
    must(15, meta == folded, || format!("the counters are {meta:?}, and the log gives {folded:?}"))
}
