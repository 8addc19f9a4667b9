//! Rules 16, 19 and 20 for processes of leases: on GPUs that their lease does not have they are unleased.
//!
//! There they are recorded, warned and signalled like any unleased process, but they have a lease: they get no other,
//! and are not parked by one. A process that only draws on a GPU, or has nothing there, does not count.

use super::books::{CheckerBooks, SeenReading};
use super::enforce::{FoundProcess, SignalledStep};
use super::{Verdict, must};
use sublet_core::ids::{GpuId, LeaseId, ProcKey};
use sublet_core::state::State;
use sublet_core::units::Bytes;

impl CheckerBooks {
    /// The lease of an unleased process, except for the one by which it is, or was to be, parked.
    pub(super) fn other_lease(&self, found: &FoundProcess) -> Option<LeaseId> {
        let moved = matches!(found.step, SignalledStep::Parking { .. } | SignalledStep::NotParked { .. })
            && self.belongs_to_parking_lease(found);
        self.holder(&found.audit.process).filter(|_| !moved)
    }

    /// True if a process is on a GPU as one of a lease that has it, or was bound to one that has.
    pub(super) fn has_lease_there(&self, process: ProcKey, number: usize) -> bool {
        let bound = |lease: &LeaseId| self.leases.get(lease).is_some_and(|book| book.roots.contains(&process));
        let holder = self.holder(&process);
        holder.is_some() && self.gpus[number].claims.keys().any(|lease| holder == Some(*lease) || bound(lease))
    }

    /// True if a process has a lease and takes memory on a GPU that is not the lease's.
    pub(super) fn is_off_lease(&self, process: ProcKey, number: usize) -> bool {
        let gpu = &self.gpus[number];
        let size = gpu.sizes.iter().find(|(of, _)| *of == process).map(|(_, bytes)| *bytes);
        let is_much = |bytes: Bytes| bytes >= Bytes::mib(256);
        let draws_much = size.is_some_and(|size| size.is_none_or(is_much));
        let takes = (gpu.compute_processes.contains(&process) || draws_much) && size != Some(Some(Bytes::ZERO));
        takes && self.holder(&process).is_some() && !self.has_lease_there(process, number)
    }

    /// The GPUs on which a process is unleased, by the last readings; on one that cannot be read it may be if it was
    /// before.
    pub(super) fn unleased_on(&self, process: ProcKey, known: Option<&FoundProcess>) -> Vec<usize> {
        let leased = known.map_or_else(|| self.holder(&process), |known| self.other_lease(known)).is_some();
        let may_be = |number: &usize| match self.gpus[*number].reading {
            SeenReading::Free(_) | SeenReading::Coarse(_) if leased => self.is_off_lease(process, *number),
            SeenReading::Free(_) | SeenReading::Coarse(_) => self.gpus[*number].processes.contains(&process),
            SeenReading::Unreadable | SeenReading::Lost => {
                let was = known.is_some_and(|known| known.gpus.contains(number));
                was && !(leased && self.has_lease_there(process, *number))
            }
        };
        (0..self.gpus.len()).filter(may_be).collect()
    }

    /// True if an audit of a process is recorded: not where it has a lease.
    pub(super) fn is_audit_recorded(&self, process: ProcKey, known: Option<&FoundProcess>) -> bool {
        let Some(_) = self.holder(&process) else { return true };
        let moved = known.is_some_and(|known| self.other_lease(known).is_none());
        !moved && !self.unleased_on(process, known).is_empty()
    }

    /// Checks that the host is asked to audit all processes that are off their leases, and no others.
    pub(super) fn check_off_lease_list(&self, state: &State) -> Verdict {
        for (number, gpu) in self.gpus.iter().enumerate() {
            let told = matches!(gpu.reading, SeenReading::Free(_));
            let off_lease = gpu.processes.iter().copied().filter(|process| told && self.is_off_lease(*process, number));
            let (asked, off_lease) = (state.off_lease_processes(GpuId(number as u16)), off_lease.collect::<Vec<_>>());
            must(20, asked == off_lease, || {
                format!("on GPU {number}, {off_lease:?} are off their leases, and audits of {asked:?} are due")
            })?;
        }
        Ok(())
    }
}
