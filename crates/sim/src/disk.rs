//! What a journal keeps: tables of rows, and a log of entries, changed by whole
//! batches only.
//!
//! The log itself is not kept, only what folding it gives ([`Disk::fold`]) and
//! its length, so that a run of a billion steps needs no more memory than a
//! short one.

use std::collections::BTreeMap;
use sublet_core::action::Action;
use sublet_core::facts::DaemonAction;
use sublet_core::loss::Loss;
use sublet_core::rows::{Hold, Phase, Rows};
use sublet_core::table::{IdTable, TableId};
use sublet_core::units::Time;
use sublet_journal::Batch;

/// History is remembered for so many leases.
const PAST_MAX: usize = 20_000;

/// The tables, and the log's end.
#[derive(Debug, Default)]
pub struct SimDisk {
    /// The tables of live things.
    pub rows: Rows,
    /// The log's entries so far, applied one by one to nothing.
    pub fold: Rows,
    /// Ended leases by number, with the epoch they were granted with.
    pub past: BTreeMap<u64, Option<u64>>,
    /// The greatest time ever committed.
    pub clock: Time,
    /// The number of the log's last entry.
    pub seq: u64,
    /// Lines that are missing, as it is noted beside the journal until an operator accepts that.
    pub loss: Option<Loss>,
    /// Nothing new fits, unless the ballast is given up.
    pub full: bool,
}

impl SimDisk {
    /// Writes a batch: the tables as the journal would, then the log.
    pub fn write(&mut self, batch: &Batch) {
        self.write_rows(batch);
        self.write_log(batch);
    }

    /// The part of a batch that goes to the tables.
    pub fn write_rows(&mut self, batch: &Batch) {
        if let Some(meta) = &batch.meta {
            self.rows.meta = meta.clone();
        }
        for (id, tenant) in &batch.tenants {
            put(&mut self.rows.tenants, *id, tenant.clone());
        }
        for (id, card) in &batch.cards {
            put(&mut self.rows.gpus, *id, card.clone());
        }
        for id in &batch.gone {
            self.rows.leases.remove(id);
        }
        for lease in batch.new.iter().chain(&batch.leases) {
            self.rows.leases.insert(lease.id, lease.clone());
        }
        for (id, finish) in &batch.ending {
            if let Some(lease) = self.rows.leases.get_mut(id)
                && let Phase::Active(hold) = &lease.phase
            {
                lease.phase = Phase::Ending(Hold { notice: None, ..hold.clone() }, finish.clone());
            }
        }
        for id in &batch.closed {
            self.rows.unleased.remove(id);
        }
        for stranger in &batch.strangers {
            self.rows.unleased.insert(stranger.id, stranger.clone());
        }
        for id in &batch.dropped {
            self.rows.rules.remove(id);
        }
        for rule in &batch.rules {
            self.rows.rules.insert(rule.id, rule.clone());
        }
        for ended in &batch.past {
            self.past.insert(ended.id.0, ended.hold.as_ref().map(|hold| hold.fence.0));
        }
        while self.past.len() > PAST_MAX {
            self.past.pop_first();
        }
    }

    /// The part of a batch that goes to the log.
    pub fn write_log(&mut self, batch: &Batch) {
        for entry in &batch.entries {
            self.fold.apply(&entry.action).expect("core decided it, so it fits the rows");
            if let Action::Daemon(DaemonAction::AcceptLoss { .. }) = entry.action {
                self.loss = None;
            }
        }
        self.seq += batch.entries.len() as u64;
        self.clock = batch.entries.iter().map(|entry| entry.at).fold(self.clock.max(batch.at), Time::max);
    }
}

fn put<I: TableId, T>(table: &mut IdTable<I, T>, id: I, row: T) {
    match table.find_mut(id) {
        Some(old) => *old = row,
        None => {
            table.push(row);
        }
    }
}
