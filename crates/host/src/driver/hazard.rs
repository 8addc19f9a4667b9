//! Known defects of driver versions, as data.
//!
//! Measured on 580; the other rows are from public reports. A rule names the first branch with the defect, the first
//! branch without it, and the reason shown to people.

/// A property of a process that a driver version cannot handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hazard {
    /// Being moved at all.
    Moving,
    /// Memory or events shared with other processes through CUDA IPC.
    Ipc,
    /// Managed memory.
    Managed,
    /// A group of processes that communicate through NCCL.
    Nccl,
    /// Several threads.
    Threads,
}

/// One line of the table.
#[derive(Debug)]
pub(crate) struct HazardRule {
    from: u32,
    before: u32,
    pub(crate) hazard: Hazard,
    pub(crate) why: &'static str,
}

const NO_END: u32 = u32::MAX;

/// At most one rule for each hazard holds for a branch.
const HAZARDS: [HazardRule; 7] = [
    rule(0, 570, Hazard::Moving, "drivers before 570 cannot take a process off its GPUs"),
    rule(570, 610, Hazard::Ipc, "before driver 610 memory shared through CUDA IPC cannot leave a GPU"),
    rule(570, 595, Hazard::Managed, "managed memory cannot leave a GPU this way"),
    rule(595, NO_END, Hazard::Managed, "managed memory cannot leave a GPU, and since driver 595 trying ends it"),
    rule(570, 595, Hazard::Nccl, "a process of an NCCL group cannot leave its GPU this way"),
    rule(595, NO_END, Hazard::Nccl, "it is of an NCCL group, and since driver 595 trying to move it ends it"),
    // No report says that this was fixed.
    rule(610, NO_END, Hazard::Threads, "since driver 610 a lock has crashed programs of several threads"),
];

const fn rule(from: u32, before: u32, hazard: Hazard, why: &'static str) -> HazardRule {
    HazardRule { from, before, hazard, why }
}

/// The branch of a driver: 580 of `580.159.04`.
pub(crate) fn branch(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

/// The rules that hold for this branch.
pub(crate) fn rules_for_branch(branch: u32) -> impl Iterator<Item = &'static HazardRule> {
    HAZARDS.iter().filter(move |rule| rule.from <= branch && branch < rule.before)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hazards(version: &str) -> Vec<Hazard> {
        rules_for_branch(branch(version).unwrap()).map(|rule| rule.hazard).collect()
    }

    #[test]
    fn a_driver_has_the_hazards_of_its_branch() {
        use Hazard::{Ipc, Managed, Moving, Nccl, Threads};
        assert_eq!(hazards("535.54.03"), [Moving]);
        assert_eq!(hazards("580.159.04"), [Ipc, Managed, Nccl]);
        assert_eq!(hazards("595.10"), [Ipc, Managed, Nccl]);
        assert_eq!(hazards("610.1.2"), [Managed, Nccl, Threads]);
    }

    #[test]
    fn a_version_without_a_number_has_no_branch() {
        assert_eq!(branch(""), None);
        assert_eq!(branch("open"), None);
    }
}
