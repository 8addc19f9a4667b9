//! Bringing the directories of all replicas in line with the register.
//!
//! Each replica is swept in a thread of its own, and one that hangs is left behind like at a save.

use super::{ReplicaMember, ReplicatedCheckpoint, start_thread};
use crate::chain::checkpoint::VersionChain;
use crate::error::ReplicatedError;
use crate::names::{CheckpointName, Version};
use crate::patience;
use crate::policy::ReplicaHealth;
use crate::replica::{CheckpointHome, ReplicaDirectory};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Weak};

/// The replicas that are being swept, with the other ends of their threads.
type RunningSweeps = BTreeMap<usize, Weak<()>>;

/// What one replica answered: a version that the register did not know, if there is one.
type SweepReport = (usize, io::Result<Option<Version>>);

/// Looks at one replica, and returns a version that the register does not know, if there is one.
type AskReplica = fn(&ReplicaDirectory, &CheckpointHome, &VersionChain) -> io::Result<Option<Version>>;

impl ReplicatedCheckpoint {
    /// Finishes or removes what earlier calls left at the replicas. A replica that fails or hangs is swept
    /// another time; a register that is older than a replica is an error.
    pub(super) fn sweep(&self, name: &CheckpointName, state: &VersionChain) -> Result<(), ReplicatedError> {
        self.ask_replicas(name, state, ReplicaDirectory::sweep)
    }

    /// Refuses a register that is older than a replica, and changes nothing. A replica that fails or hangs is left out.
    pub(crate) fn check_register(&self, name: &CheckpointName, state: &VersionChain) -> Result<(), ReplicatedError> {
        self.ask_replicas(name, state, |replica, home, state| replica.version_above(home, state.newest()))
    }

    fn ask_replicas(
        &self,
        name: &CheckpointName,
        state: &VersionChain,
        ask: AskReplica,
    ) -> Result<(), ReplicatedError> {
        let (mut pending, reports) = self.start_sweeps(name, state, ask)?;
        let replicas = &self.shared.replicas;
        let mut unknown = None;
        while let Some((index, swept)) = self.next_sweep(&pending, &reports) {
            pending.remove(&index);
            match swept {
                Ok(version) => unknown = unknown.max(version.map(|version| (version, Reverse(index)))),
                Err(_) => replicas[index].set_health(ReplicaHealth::Failed),
            }
        }
        for (index, thread) in pending {
            replicas[index].directory.leave_behind(thread);
            replicas[index].set_health(ReplicaHealth::Failed);
        }
        unknown.map_or(Ok(()), |(version, Reverse(index))| self.check_known(name, version, &replicas[index]))
    }

    /// Starts a thread for each replica that is not stuck.
    fn start_sweeps(
        &self,
        name: &CheckpointName,
        state: &VersionChain,
        ask: AskReplica,
    ) -> Result<(RunningSweeps, Receiver<SweepReport>), ReplicatedError> {
        let home = self.home(name)?;
        let state = Arc::new(state.clone());
        let (sender, reports) = channel();
        let mut pending = BTreeMap::new();
        for (index, replica) in self.shared.replicas.iter().enumerate() {
            if replica.directory.is_stuck() {
                continue;
            }
            let (directory, home, state) = (replica.directory.clone(), home.clone(), Arc::clone(&state));
            let sender = sender.clone();
            let started = start_thread("checkpoint sweep", move || {
                // The caller may have gone on without this replica.
                let _ = sender.send((index, ask(&directory, &home, &state)));
            });
            match started {
                Ok(thread) => drop(pending.insert(index, thread)),
                Err(_) => replica.set_health(ReplicaHealth::Failed),
            }
        }
        Ok((pending, reports))
    }

    /// The next report; `None` if none is missing, or the replicas that are missing make no progress.
    fn next_sweep(&self, pending: &RunningSweeps, reports: &Receiver<SweepReport>) -> Option<SweepReport> {
        if pending.is_empty() {
            return None;
        }
        let replicas = &self.shared.replicas;
        let limits = self.shared.store.limits();
        let is_enough = replicas.len() - pending.len() >= self.shared.policy.writes_needed();
        let limit = if is_enough { limits.surplus } else { limits.needed };
        let progress = || pending.keys().map(|index| replicas[*index].directory.progress()).fold(0, u64::wrapping_add);
        patience::receive(reports, limit, progress)
    }

    /// Refuses a register that is older than what a replica holds.
    pub(super) fn check_known(
        &self,
        name: &CheckpointName,
        version: Version,
        replica: &ReplicaMember,
    ) -> Result<(), ReplicatedError> {
        // Another process may have committed it since the register was read.
        let newest = self.state(name)?.newest();
        if version <= newest {
            return Ok(());
        }
        Err(ReplicatedError::RegisterBehind { replica: replica.directory.id.clone(), version, newest })
    }
}
