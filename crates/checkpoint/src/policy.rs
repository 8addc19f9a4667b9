//! How many copies a checkpoint has, where they may lie, and how many must be written and verified.
//!
//! A policy is checked against its locator once, when a
//! [`ReplicatedCheckpoint`](crate::ReplicatedCheckpoint) or a
//! [`ReplicatedIdempotencyStore`](crate::ReplicatedIdempotencyStore) is made.
//!
//! Absent on purpose: the directories. A program names replicas; a
//! [`CheckpointStore`](crate::CheckpointStore) knows where they are.

use crate::error::ReplicatedError;
use crate::names::{FenceEpoch, ReplicaId, ResourceGeneration};
use std::collections::BTreeSet;

/// What fails together: copies in different domains do not share a disk, a machine or a room.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FailureDomain {
    region: String,
    cell: String,
}

impl FailureDomain {
    /// A cell of a region; both names are the user's choice, such as `("lab", "disk-1")`.
    pub fn cell(region: impl Into<String>, cell: impl Into<String>) -> FailureDomain {
        FailureDomain { region: region.into(), cell: cell.into() }
    }
}

impl std::fmt::Display for FailureDomain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.region, self.cell)
    }
}

/// The failure domains that copies may lie in. Without a call of [`allow`](PlacementPolicy::allow) none is allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementPolicy {
    allowed: BTreeSet<FailureDomain>,
}

impl PlacementPolicy {
    /// A policy that allows no domain yet.
    pub fn new() -> PlacementPolicy {
        PlacementPolicy::default()
    }

    /// Allows copies in this domain.
    pub fn allow(mut self, domain: FailureDomain) -> PlacementPolicy {
        self.allowed.insert(domain);
        self
    }
}

/// How many copies there are, and how many of them a save and a load need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaPolicy {
    placement: PlacementPolicy,
    min_replicas: usize,
    write_quorum: usize,
    read_quorum: usize,
}

impl ReplicaPolicy {
    /// One copy, written and verified, in one of the allowed domains.
    pub fn new(placement: PlacementPolicy) -> ReplicaPolicy {
        ReplicaPolicy { placement, min_replicas: 1, write_quorum: 1, read_quorum: 1 }
    }

    /// The voters that the locator must name at least.
    pub fn min_replicas(mut self, replicas: usize) -> ReplicaPolicy {
        self.min_replicas = replicas;
        self
    }

    /// The voters that must hold a version, fsynced, before it is committed.
    pub fn write_quorum(mut self, replicas: usize) -> ReplicaPolicy {
        self.write_quorum = replicas;
        self
    }

    /// The verified copies that a load needs.
    pub fn read_quorum(mut self, replicas: usize) -> ReplicaPolicy {
        self.read_quorum = replicas;
        self
    }

    pub(crate) fn writes_needed(&self) -> usize {
        self.write_quorum
    }

    pub(crate) fn copies_needed(&self) -> usize {
        self.read_quorum
    }

    /// Refuses a locator that cannot satisfy the policy.
    pub(crate) fn check(&self, locator: &ReplicaSetLocator) -> Result<(), ReplicatedError> {
        let refused = |reason: String| Err(ReplicatedError::Policy { reason });
        let mut seen = BTreeSet::new();
        for replica in &locator.replicas {
            if !seen.insert(&replica.replica_id) {
                return refused(format!("replica `{}` is named twice", replica.replica_id));
            }
            if !self.placement.allowed.contains(&replica.domain) {
                return refused(format!(
                    "replica `{}` lies in {}, which the placement policy does not allow",
                    replica.replica_id, replica.domain
                ));
            }
        }
        let voters = locator.replicas.iter().filter(|replica| replica.role == ReplicaRole::Voter).count();
        let needs = [
            ("min_replicas", self.min_replicas),
            ("write_quorum", self.write_quorum),
            ("read_quorum", self.read_quorum),
        ];
        for (what, needed) in needs {
            if needed == 0 {
                return refused(format!("{what} is 0; it must be at least 1"));
            }
            if needed > voters {
                return refused(format!("{what} is {needed}, and the locator names {voters} voters"));
            }
        }
        Ok(())
    }
}

/// What a copy counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaRole {
    /// The copy counts towards the quorums.
    Voter,
    /// The copy is written when it can be, and counts towards no quorum.
    Observer,
}

/// How a copy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaHealth {
    /// It holds what it should, as far as is known.
    Healthy,
    /// It lacks the newest version, or holds a damaged one; it is repaired when it can be.
    Degraded,
    /// It does not answer, or it answers with errors.
    Failed,
}

/// One copy, as a program names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaLocator {
    /// Its name; a [`CheckpointStore`](crate::CheckpointStore) knows its directory.
    pub replica_id: ReplicaId,
    /// What it fails together with.
    pub domain: FailureDomain,
    /// What it counts for.
    pub role: ReplicaRole,
    /// What was known of it before. A `Failed` one is tried again.
    pub health: ReplicaHealth,
    /// The fence under which the program learned of it; information.
    pub epoch: FenceEpoch,
    /// The generation of its content that the program learned of; information.
    pub content_generation: u64,
}

/// The copies of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSetLocator {
    pub(crate) generation: ResourceGeneration,
    pub(crate) replicas: Vec<ReplicaLocator>,
}

impl ReplicaSetLocator {
    /// These copies. A register of an older generation than this one is refused: it is not the one that was rebuilt.
    pub fn new(generation: ResourceGeneration, replicas: Vec<ReplicaLocator>) -> ReplicaSetLocator {
        ReplicaSetLocator { generation, replicas }
    }

    /// The copies.
    pub fn replicas(&self) -> &[ReplicaLocator] {
        &self.replicas
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(id: &str, cell: &str, role: ReplicaRole) -> ReplicaLocator {
        ReplicaLocator {
            replica_id: ReplicaId::new(id),
            domain: FailureDomain::cell("lab", cell),
            role,
            health: ReplicaHealth::Healthy,
            epoch: FenceEpoch(1),
            content_generation: 1,
        }
    }

    fn refusal(policy: ReplicaPolicy, replicas: Vec<ReplicaLocator>) -> String {
        match policy.check(&ReplicaSetLocator::new(ResourceGeneration(1), replicas)) {
            Ok(()) => "fine".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_locator_that_cannot_satisfy_the_policy_is_refused() {
        let policy = || ReplicaPolicy::new(PlacementPolicy::new().allow(FailureDomain::cell("lab", "a")));
        let voter = |id| replica(id, "a", ReplicaRole::Voter);
        assert_eq!(refusal(policy(), vec![voter("x")]), "fine");
        assert_eq!(
            refusal(policy(), vec![]),
            "the replica policy cannot be kept: min_replicas is 1, and the locator names 0 voters"
        );
        assert_eq!(
            refusal(policy(), vec![voter("x"), voter("x")]),
            "the replica policy cannot be kept: replica `x` is named twice"
        );
        assert_eq!(
            refusal(policy(), vec![replica("x", "b", ReplicaRole::Voter)]),
            "the replica policy cannot be kept: replica `x` lies in lab/b, which the placement policy does not allow"
        );
        assert_eq!(
            refusal(policy().write_quorum(2), vec![voter("x"), replica("y", "a", ReplicaRole::Observer)]),
            "the replica policy cannot be kept: write_quorum is 2, and the locator names 1 voters"
        );
        assert_eq!(
            refusal(policy().read_quorum(0), vec![voter("x")]),
            "the replica policy cannot be kept: read_quorum is 0; it must be at least 1"
        );
    }
}
