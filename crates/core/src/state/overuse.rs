//! Who has more on its cards than its lease is for, look by look.

use super::State;
use crate::model::ids::{GpuId, LeaseId};
use crate::model::mutant::Mutant;
use crate::model::reading::Reading;
use crate::model::rows::{Hold, Phase};
use crate::model::units::Bytes;
use std::collections::BTreeMap;

/// So much beyond its lease nobody minds: what contexts and libraries take differs from run to run.
pub(crate) const SLACK: Bytes = Bytes::mib(128);
/// Looks in a row that must agree.
const LOOKS: u32 = 2;

/// Whether a holder had more than its lease on a card, and in how many looks in a row it was so.
pub(super) type OveruseReadings = BTreeMap<LeaseId, (bool, u32)>;

impl State {
    /// A card was looked at: who has more there than its lease, and who has not any more.
    pub(super) fn update_overuse(&mut self, card: GpuId) {
        let before = std::mem::take(&mut self.overuse[card]);
        let room = &self.rooms[card];
        // Where nobody tells whose bytes are whose, nobody has more than its own.
        if !matches!(&room.reading().reading, Reading::Used(used) if !used.coarse) {
            return;
        }
        let told = self.overusing.iter().filter(|lease| room.leases().contains_key(lease));
        let mut found = OveruseReadings::new();
        for lease in room.seen_leases().keys().chain(told) {
            let Some(row) = self.rows.leases.get(lease) else { continue };
            let Phase::Active(hold) = &row.phase else { continue };
            // A measured lease grows with its program, and the driver parks only a lease that covers its program.
            let slack = if row.request.is_measured { Bytes::ZERO } else { SLACK };
            let has = room.seen_of(*lease) > hold.vram + slack;
            // After a start it must be heard first whose processes are whose.
            let known = has || self.readings.get(lease).is_some_and(|live| live.members_known);
            if known && (has || self.overusing.contains(lease)) {
                let count = before.get(lease).filter(|(had, _)| *had == has).map_or(0, |(_, count)| *count);
                found.insert(*lease, (has, (count + 1).min(LOOKS)));
            }
        }
        self.overuse[card] = found;
    }

    /// What was seen of a lease so far says nothing of it any more.
    pub(crate) fn forget_overuse(&mut self, lease: LeaseId) {
        for excess in self.overuse.iter_mut() {
            excess.remove(&lease);
        }
    }

    /// Who had more than its lease on a card in so many looks that it is believed, or no more than that again.
    pub(crate) fn overuse_on(&self, card: GpuId) -> Vec<(LeaseId, bool)> {
        let looks = if self.planted(Mutant::OverOneLook) { 1 } else { LOOKS };
        let believed = self.overuse[card].iter().filter(|(_, (_, count))| *count >= looks);
        believed.map(|(lease, (has, _))| (*lease, *has)).collect()
    }

    /// Whether a holder was seen with no more than its lease on all of its cards.
    pub(crate) fn is_within(&self, lease: LeaseId, hold: &Hold) -> bool {
        let inside = |card: &GpuId| self.overuse[*card].get(&lease) == Some(&(false, LOOKS));
        hold.gpus.iter().all(inside)
    }

    /// Holders that were told that they have more than their leases.
    pub fn overusing(&self) -> impl Iterator<Item = LeaseId> + '_ {
        self.overusing.iter().copied()
    }
}
