//! Rules 16, 19 and 20 for processes of leases: at home on the cards of their lease, and strangers on every other.
//!
//! There they are put on the record, warned and signalled like anybody, but they have a lease: they get no other, and
//! are not parked by one. Who only draws on a card, or has nothing there, is not counted.

use super::books::{CheckerBooks, SeenReading};
use super::enforce::{FoundProcess, SignalledStep};
use super::{Verdict, must};
use sublet_core::ids::{GpuId, LeaseId, ProcKey};
use sublet_core::state::State;
use sublet_core::units::Bytes;

impl CheckerBooks {
    /// The lease that a stranger is a process of, other than the one by which it is moved, or was to be.
    pub(super) fn other_lease(&self, found: &FoundProcess) -> Option<LeaseId> {
        let moved = matches!(found.step, SignalledStep::Moving { .. } | SignalledStep::Unmoved { .. })
            && self.is_still_moved(found);
        self.holder(&found.audit.process).filter(|_| !moved)
    }

    /// Whether a process is on a card as one of a lease that has it, or was bound to one that has.
    pub(super) fn is_home(&self, process: ProcKey, number: usize) -> bool {
        let bound = |lease: &LeaseId| self.leases.get(lease).is_some_and(|book| book.roots.contains(&process));
        let holder = self.holder(&process);
        holder.is_some() && self.cards[number].claims.keys().any(|lease| holder == Some(*lease) || bound(lease))
    }

    /// Whether a process has a lease and takes something of a card that is not the lease's.
    pub(super) fn is_abroad(&self, process: ProcKey, number: usize) -> bool {
        let card = &self.cards[number];
        let size = card.sizes.iter().find(|(of, _)| *of == process).map(|(_, bytes)| *bytes);
        let is_much = |bytes: Bytes| bytes >= Bytes::mib(256);
        let draws_much = size.is_some_and(|size| size.is_none_or(is_much));
        let takes = (card.residents.contains(&process) || draws_much) && size != Some(Some(Bytes::ZERO));
        takes && self.holder(&process).is_some() && !self.is_home(process, number)
    }

    /// The cards on which a process is a stranger, as of the last looks; where one cannot be read it may be if it was.
    pub(super) fn strange_on(&self, process: ProcKey, known: Option<&FoundProcess>) -> Vec<usize> {
        let leased = known.map_or_else(|| self.holder(&process), |known| self.other_lease(known)).is_some();
        let may_be = |number: &usize| match self.cards[*number].look {
            SeenReading::Free(_) | SeenReading::Coarse(_) if leased => self.is_abroad(process, *number),
            SeenReading::Free(_) | SeenReading::Coarse(_) => self.cards[*number].all.contains(&process),
            SeenReading::Blind | SeenReading::Lost => {
                let was = known.is_some_and(|known| known.cards.contains(number));
                was && !(leased && self.is_home(process, *number))
            }
        };
        (0..self.cards.len()).filter(may_be).collect()
    }

    /// Whether what is found out about a process is put on its record: not while a lease of its says all there is.
    pub(super) fn is_noted(&self, process: ProcKey, known: Option<&FoundProcess>) -> bool {
        let Some(_) = self.holder(&process) else { return true };
        let moved = known.is_some_and(|known| self.other_lease(known).is_none());
        !moved && !self.strange_on(process, known).is_empty()
    }

    /// The host is asked to look into everybody who is abroad where that can be told, and nobody else.
    pub(super) fn check_abroad(&self, state: &State) -> Verdict {
        for (number, card) in self.cards.iter().enumerate() {
            let told = matches!(card.look, SeenReading::Free(_));
            let abroad = card.all.iter().copied().filter(|process| told && self.is_abroad(*process, number));
            let (asked, abroad) = (state.off_lease_processes(GpuId(number as u16)), abroad.collect::<Vec<_>>());
            must(20, asked == abroad, || format!("on card {number} are {abroad:?} abroad, and asked for {asked:?}"))?;
        }
        Ok(())
    }
}
