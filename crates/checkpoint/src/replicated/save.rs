//! Saving: write to the replicas, commit in the register, publish.
//!
//! ```text
//! this thread      check ─ hash ……………… enough prepared? ─ commit ─ tell ──┐
//! each replica            └─ prepare (write, sync) ─┘               └─ publish, sweep
//! ```
//!
//! Each replica has a thread of its own, so that one that hangs holds up nothing but itself. The save
//! goes on when write_quorum voters are prepared and the others are prepared too, failed, or have made
//! no progress for a while.

use super::{ReplicaMember, ReplicatedCheckpoint, SaveRequest, start_thread};
use crate::chain::checkpoint::{SavedVersion, VersionChain};
use crate::chain::log::Decision;
use crate::content::check_parts;
use crate::effect_store::VersionedValue;
use crate::error::{ReplicaFailure, ReplicatedError};
use crate::manifest::{Manifest, ManifestPart, SealedManifest};
use crate::names::FenceEpoch;
use crate::patience;
use crate::policy::ReplicaHealth;
use crate::register::RegisterError;
use crate::replica::layout::{Staging, StagingKind};
use crate::replica::{CheckpointHome, ReplicaDirectory};
use crate::save_job::{SaveJob, SaveVerdict};
use crate::store::draw_nonce;
use crate::unix_s;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

/// A version that is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaveReport {
    /// The step that it contains.
    pub step: Option<u64>,
    /// The bytes of its parts.
    pub bytes: u64,
    /// The fence that it was saved under.
    pub fence: FenceEpoch,
    /// The replicas that do not hold it, or did not publish it yet. They are repaired by a later call.
    pub failures: Vec<ReplicaFailure>,
}

/// What a replica's thread reports.
enum ReplicaReport {
    Prepared(io::Result<()>),
    Published(io::Result<()>),
    /// The version was not committed; the copy is deleted, or left for the next sweep.
    Dropped,
}

impl ReplicatedCheckpoint {
    /// Commits a version, and completes the effect that the request names, in one step.
    ///
    /// When it returns, write_quorum replicas hold the version, fsynced. A failed call has committed
    /// nothing, unless the error is `register_unavailable`; then [`newest`](Self::newest) tells.
    pub fn save(&self, request: SaveRequest) -> Result<VersionedValue<SaveReport>, ReplicatedError> {
        self.check_fence(request.fence)?;
        check_parts(&request.parts)?;
        let state = self.state(&request.name)?;
        state.check_save(request.expected, &request.offer())?;
        let staging = Staging {
            kind: StagingKind::Prepared,
            version: request.expected.next(),
            fence: request.fence,
            nonce: draw_nonce()?,
        };
        let parent = self.parent_manifest(&request, &state);
        let job = Arc::new(SaveJob::new(staging, self.shared.store.generation().0, request.parts.clone(), parent));
        // Whatever ends this call, the replicas' threads learn that nothing more comes.
        let _guard = AbandonOnDrop(&job);
        let mut copies = Copies::start(self, &self.home(&request.name)?, &job);
        match self.commit_prepared(&request, &state, &job, &mut copies) {
            Ok(manifest) => {
                let failures = copies.wait_until_published(self);
                let bytes = manifest.manifest.content_bytes();
                let report = SaveReport { step: request.step, bytes, fence: request.fence, failures };
                Ok(VersionedValue { value: report, version: staging.version })
            }
            Err(error) => {
                job.decide(SaveVerdict::Abandoned);
                copies.wait_until_dropped(self);
                Err(self.cause_of(&request, error))
            }
        }
    }

    /// Why a save failed: a writer that won meanwhile may have removed what this one was writing.
    fn cause_of(&self, request: &SaveRequest, error: ReplicatedError) -> ReplicatedError {
        if !matches!(error, ReplicatedError::TooFewWritten { .. }) {
            return error;
        }
        match self.state(&request.name).map(|state| state.check_save(request.expected, &request.offer())) {
            Ok(Err(refusal)) => refusal,
            _ => error,
        }
    }

    /// Hashes the parts, waits until enough replicas are prepared, and commits.
    fn commit_prepared(
        &self,
        request: &SaveRequest,
        state: &VersionChain,
        job: &SaveJob,
        copies: &mut Copies,
    ) -> Result<Arc<SealedManifest>, ReplicatedError> {
        let manifest = job.hash_all(|parts| self.describe(request, state, job.staging, parts));
        let manifest = manifest.map_err(|reason| ReplicatedError::Unreadable { reason })?;
        copies.wait_until_prepared(self)?;
        self.commit(request, job, &manifest)?;
        self.remember_manifest(request, &manifest);
        Ok(manifest)
    }

    fn commit(&self, request: &SaveRequest, job: &SaveJob, manifest: &SealedManifest) -> Result<(), ReplicatedError> {
        let saved = SavedVersion {
            manifest: manifest.hash.clone(),
            nonce: job.staging.nonce,
            bytes: manifest.manifest.content_bytes(),
            ..request.offer()
        };
        let committed = self.with_log(&request.name, |log| {
            log.append(|state| state.save(request.expected, saved.clone(), request.keep).map(Decision::Append))?;
            Ok(Arc::new(log.state().clone()))
        });
        job.decide(match &committed {
            Ok(state) => SaveVerdict::Committed(Arc::clone(state)),
            Err(ReplicatedError::Register(RegisterError::Unavailable { .. })) => SaveVerdict::Unknown,
            Err(_) => SaveVerdict::Abandoned,
        });
        committed.map(|_| ())
    }

    fn describe(
        &self,
        request: &SaveRequest,
        state: &VersionChain,
        staging: Staging,
        parts: Vec<ManifestPart>,
    ) -> Manifest {
        Manifest {
            format: Manifest::FORMAT,
            resource: self.shared.resource.clone(),
            name: request.name.clone(),
            schema: self.shared.schema.clone(),
            policy: self.shared.policy_hash.clone(),
            version: staging.version,
            parent: state.versions().get(&request.expected).map(|saved| saved.manifest.clone()),
            nonce: staging.nonce,
            fence: request.fence,
            generation: self.shared.store.generation().0,
            step: request.step,
            effect: request.effect.clone(),
            unix_s: unix_s(),
            chunk_bytes: crate::content::CHUNK_BYTES,
            parts,
        }
    }

    /// The manifest of the version before, if a replica has it. Without it everything is written anew.
    fn parent_manifest(&self, request: &SaveRequest, state: &VersionChain) -> Option<Arc<SealedManifest>> {
        let saved = state.versions().get(&request.expected)?;
        let known = self.shared.manifests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(manifest) = known.get(&request.name).filter(|manifest| manifest.hash == saved.manifest) {
            return Some(Arc::clone(manifest));
        }
        drop(known);
        let home = self.home(&request.name).ok()?;
        let answers =
            |replica: &&ReplicaMember| replica.health() != ReplicaHealth::Failed && !replica.directory.is_stuck();
        let mut replicas = self.shared.replicas.iter().filter(answers);
        let read =
            |replica: &ReplicaMember| replica.directory.read_manifest(&home, request.expected, &saved.manifest).ok();
        replicas.find_map(read).map(Arc::new)
    }

    fn remember_manifest(&self, request: &SaveRequest, manifest: &Arc<SealedManifest>) {
        let mut known = self.shared.manifests.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(request.name.clone(), Arc::clone(manifest));
    }
}

impl SaveRequest {
    /// What the register is to say of the version, before it is written.
    fn offer(&self) -> SavedVersion {
        SavedVersion {
            manifest: String::new(),
            nonce: crate::nonce::Nonce::default(),
            fence: self.fence,
            step: self.step,
            bytes: 0,
            effect: self.effect.clone(),
        }
    }
}

/// Lets the replicas delete what they prepared, unless something else was decided before.
struct AbandonOnDrop<'a>(&'a SaveJob);

impl Drop for AbandonOnDrop<'_> {
    fn drop(&mut self) {
        self.0.decide(SaveVerdict::Abandoned);
    }
}

/// The copies of one save, as far as their replicas have reported.
struct Copies {
    reports: Receiver<(usize, ReplicaReport)>,
    stages: Vec<CopyStage>,
    /// Upgradeable while the replica's thread runs.
    threads: Vec<Weak<()>>,
}

/// How far one copy is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CopyStage {
    Writing,
    Prepared,
    Published,
    Dropped,
    Failed(String),
}

impl Copies {
    /// Starts a thread for each replica.
    fn start(checkpoint: &ReplicatedCheckpoint, home: &CheckpointHome, job: &Arc<SaveJob>) -> Copies {
        let (sender, reports) = channel();
        let mut copies = Copies { reports, stages: Vec::new(), threads: Vec::new() };
        for (index, replica) in checkpoint.shared.replicas.iter().enumerate() {
            let (stage, thread) = start_copy(replica, home, job, index, sender.clone());
            copies.stages.push(stage);
            copies.threads.push(thread);
        }
        copies
    }

    /// Waits until the write quorum is prepared, and for the other replicas as long as they make progress.
    fn wait_until_prepared(&mut self, checkpoint: &ReplicatedCheckpoint) -> Result<(), ReplicatedError> {
        let needed = checkpoint.shared.policy.writes_needed();
        let prepared = |stages: &[CopyStage]| checkpoint.voters_at(stages, &CopyStage::Prepared);
        let limits = checkpoint.shared.store.limits();
        self.wait(checkpoint, &[CopyStage::Writing], |stages| {
            let is_out_of_reach = prepared(stages) + checkpoint.voters_at(stages, &CopyStage::Writing) < needed;
            if is_out_of_reach || prepared(stages) >= needed { limits.surplus } else { limits.needed }
        });
        let written = prepared(&self.stages);
        if written >= needed {
            return Ok(());
        }
        Err(ReplicatedError::TooFewWritten { written, needed, causes: self.failures(checkpoint) })
    }

    /// Waits until as many replicas have published the version as had to prepare it, and for the other
    /// prepared ones as long as they make progress.
    fn wait_until_published(mut self, checkpoint: &ReplicatedCheckpoint) -> Vec<ReplicaFailure> {
        let needed = checkpoint.shared.policy.writes_needed();
        let limits = checkpoint.shared.store.limits();
        self.wait(checkpoint, &[CopyStage::Prepared], |stages| {
            let published = checkpoint.voters_at(stages, &CopyStage::Published);
            if published >= needed { limits.surplus } else { limits.needed }
        });
        self.leave_behind(checkpoint);
        for (replica, stage) in checkpoint.shared.replicas.iter().zip(&self.stages) {
            replica.set_health(match stage {
                CopyStage::Published => ReplicaHealth::Healthy,
                CopyStage::Prepared => ReplicaHealth::Degraded,
                CopyStage::Writing | CopyStage::Dropped | CopyStage::Failed(_) => ReplicaHealth::Failed,
            });
        }
        self.failures(checkpoint)
    }

    /// Waits for the replicas to delete what was not committed.
    fn wait_until_dropped(mut self, checkpoint: &ReplicatedCheckpoint) {
        let limit = checkpoint.shared.store.limits().surplus;
        self.wait(checkpoint, &[CopyStage::Writing, CopyStage::Prepared], |_| limit);
        self.leave_behind(checkpoint);
        for (replica, stage) in checkpoint.shared.replicas.iter().zip(&self.stages) {
            if matches!(stage, CopyStage::Writing | CopyStage::Failed(_)) {
                replica.set_health(ReplicaHealth::Failed);
            }
        }
    }

    /// Takes reports until no copy is at one of these stages, or `limit` is over without progress.
    fn wait(
        &mut self,
        checkpoint: &ReplicatedCheckpoint,
        pending: &[CopyStage],
        limit: impl Fn(&[CopyStage]) -> Duration,
    ) {
        while self.stages.iter().any(|stage| pending.contains(stage)) {
            let progress = || checkpoint.progress_of(&self.stages, pending);
            let Some((index, report)) = patience::receive(&self.reports, limit(&self.stages), progress) else {
                return;
            };
            self.stages[index] = CopyStage::after(report);
        }
    }

    /// Marks replicas that still work on this save, so that later calls do not pile up behind them.
    fn leave_behind(&self, checkpoint: &ReplicatedCheckpoint) {
        for ((replica, stage), thread) in checkpoint.shared.replicas.iter().zip(&self.stages).zip(&self.threads) {
            if matches!(stage, CopyStage::Writing | CopyStage::Prepared) {
                replica.directory.leave_behind(Weak::clone(thread));
            }
        }
    }

    fn failures(&self, checkpoint: &ReplicatedCheckpoint) -> Vec<ReplicaFailure> {
        let failure = |(replica, stage): (&ReplicaMember, &CopyStage)| {
            let reason = match stage {
                CopyStage::Published | CopyStage::Dropped => return None,
                CopyStage::Writing => "it made no progress and was left behind".to_owned(),
                CopyStage::Prepared => "it holds the version and did not publish it yet".to_owned(),
                CopyStage::Failed(reason) => reason.clone(),
            };
            Some(ReplicaFailure { replica: replica.directory.id.clone(), reason })
        };
        checkpoint.shared.replicas.iter().zip(&self.stages).filter_map(failure).collect()
    }
}

impl CopyStage {
    fn after(report: ReplicaReport) -> CopyStage {
        match report {
            ReplicaReport::Dropped => CopyStage::Dropped,
            ReplicaReport::Prepared(Ok(())) => CopyStage::Prepared,
            ReplicaReport::Published(Ok(())) => CopyStage::Published,
            ReplicaReport::Prepared(Err(error)) | ReplicaReport::Published(Err(error)) => {
                CopyStage::Failed(error.to_string())
            }
        }
    }
}

impl ReplicatedCheckpoint {
    fn voters_at(&self, stages: &[CopyStage], stage: &CopyStage) -> usize {
        let at = self.shared.replicas.iter().zip(stages);
        at.filter(|(replica, found)| replica.is_voter() && *found == stage).count()
    }

    /// A number that changes while a replica at one of these stages works.
    fn progress_of(&self, stages: &[CopyStage], at: &[CopyStage]) -> u64 {
        let at = self.shared.replicas.iter().zip(stages).filter(|(_, stage)| at.contains(stage));
        at.map(|(replica, _)| replica.directory.progress()).fold(0, u64::wrapping_add)
    }
}

/// Starts the thread of one replica.
fn start_copy(
    replica: &ReplicaMember,
    home: &CheckpointHome,
    job: &Arc<SaveJob>,
    index: usize,
    sender: Sender<(usize, ReplicaReport)>,
) -> (CopyStage, Weak<()>) {
    if replica.directory.is_stuck() {
        return (CopyStage::Failed("an earlier call is still stuck on it".to_owned()), Weak::new());
    }
    let (directory, home, job) = (replica.directory.clone(), home.clone(), Arc::clone(job));
    let started = start_thread("checkpoint copy", move || {
        write_copy(&directory, &home, &job, |report| {
            // The save may have gone on without this replica.
            let _ = sender.send((index, report));
        });
    });
    match started {
        Ok(thread) => (CopyStage::Writing, thread),
        Err(error) => (CopyStage::Failed(format!("no thread could be started: {error}")), Weak::new()),
    }
}

/// The work of one replica's thread.
fn write_copy(replica: &ReplicaDirectory, home: &CheckpointHome, job: &SaveJob, report: impl Fn(ReplicaReport)) {
    // What cannot be deleted now is deleted by a later sweep.
    let discard = || drop(replica.discard(home, job.staging));
    if let Err(error) = replica.prepare(home, job) {
        discard();
        return report(ReplicaReport::Prepared(Err(error)));
    }
    report(ReplicaReport::Prepared(Ok(())));
    report(match job.verdict() {
        SaveVerdict::Committed(state) => {
            let published = replica.publish(home, job.staging);
            // Old versions are deleted also where this one could not be published, such as on a full disk.
            let swept = replica.sweep(home, &state).map(|_| ());
            ReplicaReport::Published(published.and(swept))
        }
        SaveVerdict::Abandoned => {
            discard();
            ReplicaReport::Dropped
        }
        SaveVerdict::Unknown => ReplicaReport::Dropped,
    });
}
