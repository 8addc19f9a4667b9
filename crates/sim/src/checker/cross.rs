//! Compares everything now and then: the books, the state, the disk.

use super::books::{CheckerBooks, HeldBook, LeaseBook, LeaseStage};
use super::park::MoveStage;
use super::{Checker, Verdict, must};
use crate::disk::SimDisk;
use sublet_core::State;
use sublet_core::ids::{GpuId, LeaseId};
use sublet_core::policy::estimates;
use sublet_core::policy::explain;
use sublet_core::rows::{Hold, Lease, Phase};
use sublet_core::units::{Bytes, Time};

impl Checker {
    /// Compares all there is.
    pub fn cross_check(&mut self, now: Time, state: &State, disk: &SimDisk) -> Verdict {
        self.check_disk(disk)?;
        self.drop_answered_facts(disk)?;
        self.books.check_leases(state)?;
        self.books.check_cards(now, state)?;
        self.books.check_aside_rows(state)?;
        self.books.check_sizes(state)?;
        self.books.check_record(state)?;
        self.books.check_off_lease_list(state)?;
        explained(now, state);
        Ok(())
    }
}

impl CheckerBooks {
    fn check_leases(&self, state: &State) -> Verdict {
        let rows = &state.rows().leases;
        must(0, rows.len() == self.leases.len(), || {
            format!("the state has {} leases, the books {}", rows.len(), self.leases.len())
        })?;
        for (id, book) in &self.leases {
            let row = rows.get(id);
            must(0, row.is_some_and(|row| same(row, book)), || format!("{id} is {row:?}, and on the books {book:?}"))?;
        }
        let queue = state.queue().len();
        must(19, queue == self.queue.len(), || format!("{queue} in the queue, {} on the books", self.queue.len()))?;
        let booked: Bytes = self.leases.values().filter_map(LeaseBook::held).map(|held| held.booked).sum();
        must(3, state.booked_host_memory() == booked, || {
            format!("{} of host memory are booked, by the books {booked}", state.booked_host_memory())
        })?;
        let meta = &state.rows().meta;
        let right = (meta.grace_from, meta.grace_until) == (self.grace_from, self.grace_until);
        must(8, right, || {
            format!("{meta:?}, and on the books a grace from {} to {}", self.grace_from, self.grace_until)
        })
    }

    fn check_cards(&self, now: Time, state: &State) -> Verdict {
        for (number, gpu) in self.gpus.iter().enumerate() {
            let (theirs, own) = (state.promisable(GpuId(number as u16), now), self.promisable(gpu, now));
            must(1, theirs == own, || format!("GPU {number} can promise {theirs}, and by the books {own}"))?;
            let claims = state.room(GpuId(number as u16)).leases();
            must(1, claims.keys().eq(gpu.claims.keys()), || format!("GPU {number} has claims {claims:?}"))?;
        }
        Ok(())
    }

    /// Checks that what ended leaves nothing behind.
    fn check_sizes(&self, state: &State) -> Verdict {
        let left = self.retired.iter().find(|lease| state.readings(**lease).is_some());
        must(19, left.is_none(), || format!("{left:?} is over, and some of it is kept"))?;
        let missing = self.leases.keys().find(|lease| state.readings(**lease).is_none());
        must(19, missing.is_none(), || format!("nothing is known of {missing:?}"))?;
        for (number, tenant) in self.tenants.iter().enumerate() {
            let load = state.ledger().load(sublet_core::ids::TenantId(number as u32));
            must(14, load.leases == tenant.leases && load.vram == tenant.vram, || {
                format!("{} has {load:?} on its account, by the books {tenant:?}", tenant.name)
            })?;
        }
        let rows = &state.rows().tenants;
        let owing = self
            .tenants
            .iter()
            .zip(rows)
            .find(|(tenant, row)| (tenant.debt_clock, tenant.first_since) != (row.debt_clock, row.first_since));
        must(9, owing.is_none(), || format!("the debt clock of a tenant is not what was charged: {owing:?}"))?;
        let theirs: Vec<LeaseId> = state.queue().all_waiters().take(8).map(|(lease, _)| lease).collect();
        let ours: Vec<LeaseId> = self.in_order().take(8).collect();
        must(9, theirs == ours, || format!("the queue is {theirs:?}, and by the rule {ours:?}"))?;
        let wrong = self.owners.iter().find(|(process, lease)| state.owner(process) != Some(**lease));
        must(0, wrong.is_none(), || format!("process and owner {wrong:?} differ"))
    }
}

fn same(row: &Lease, book: &LeaseBook) -> bool {
    let tenant = row.tenant.0 as usize == book.tenant;
    tenant
        && match (&row.phase, &book.stage) {
            (Phase::Waiting { give_up }, LeaseStage::Waiting(at)) => give_up == at,
            (Phase::Active(hold), LeaseStage::Held(held)) | (Phase::Ending(hold, _), LeaseStage::Ending(held, ..)) => {
                same_hold(hold, held)
            }
            (Phase::Parking(hold, away), LeaseStage::Park(held, park)) => {
                same_hold(hold, held) && park.stage == MoveStage::Leaving && park.matches_row(away)
            }
            (Phase::Parked(hold, away), LeaseStage::Park(held, park)) => {
                same_hold(hold, held) && park.stage == MoveStage::Parked && park.matches_row(away)
            }
            (Phase::Resuming(hold, away), LeaseStage::Park(held, park)) => {
                same_hold(hold, held) && park.stage == MoveStage::Returning && park.matches_row(away)
            }
            _ => false,
        }
}

fn same_hold(hold: &Hold, held: &HeldBook) -> bool {
    (hold.fence, hold.vram, hold.granted, hold.until) == (held.fence, held.vram, held.granted, held.until)
        && (hold.booked_host_memory(), hold.slice_began(), hold.notice) == (held.booked, held.slice_began, held.notice)
        && hold.overuse().map(|over| (over.since, over.seen_bytes)) == held.overuse
        && hold.prepaid == held.prepaid
}

/// Explaining a wait must work at any time.
fn explained(now: Time, state: &State) {
    let _ = explain::places(state);
    let _ = estimates::estimates(state, now);
    let first: Vec<LeaseId> = state.queue().iter().take(3).map(|(lease, _)| lease).collect();
    for lease in first {
        let _ = explain::ahead(state, lease);
        if let Some(row) = state.lease(lease) {
            state.gpus().for_each(|gpu| drop(explain::obstacle(state, row, gpu, now)));
        }
    }
}
