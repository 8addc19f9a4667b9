//! Effects that are committed once: reserve, do the work, complete.
//!
//! ```text
//! reserve ──► Reserved   do the work, then complete
//!        └──► Completed  it was done before: its stored result, and no work
//! ```
//!
//! Records live in the register. Under one fence, a key that another process reserved answers
//! `in_progress`; a process that opened the scope later takes over. A deadline is for people to read
//! and permits nothing.
//!
//! A step that a save completes ([`SaveRequest::completes`](crate::SaveRequest::completes)) is
//! reserved with [`reserve_for`](ReplicatedIdempotencyStore::reserve_for). Then a crash between the save
//! and `complete` repeats nothing: the next reservation finds the save.
//!
//! Absent on purpose: effects outside the register. A program that sends mail or moves money passes the
//! key on.

use crate::chain::checkpoint::{SavedEffect, VersionChain};
use crate::chain::effects::{CompletingSave, EffectLedger, EffectRecord, EffectStage, Reservation};
use crate::chain::log::{Appended, ChainLog, ChainLogs, Decision};
use crate::error::ReplicatedError;
use crate::names::{
    ChainName, CheckpointName, EffectFingerprint, EffectKey, FenceEpoch, LogicalResourceName, SchemaId, Version, hex,
};
use crate::policy::{ReplicaPolicy, ReplicaSetLocator};
use crate::replicated::ReplicatedCheckpoint;
use crate::store::CheckpointStore;
use std::cell::Cell;

/// A value and the version that compare-and-swap calls name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionedValue<T> {
    /// The value.
    pub value: T,
    /// Its version.
    pub version: Version,
}

/// One effect as the register has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectState {
    /// What it was asked to do.
    pub fingerprint: EffectFingerprint,
    /// How far it is.
    pub outcome: IdempotencyOutcome,
}

/// How far an effect is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdempotencyOutcome {
    /// The caller holds it and does the work.
    Reserved {
        /// When the caller meant to be done, in seconds since 1970; information.
        deadline_unix_s: Option<u64>,
    },
    /// It was done.
    Completed {
        /// Its stored result, at most 1,024 bytes.
        effect: Option<Vec<u8>>,
    },
}

/// Records of effects, in scopes with a fence each.
pub struct ReplicatedIdempotencyStore {
    store: CheckpointStore,
    resource: LogicalResourceName,
    schema: SchemaId,
    lowest: FenceEpoch,
    scopes: ChainLogs<EffectLedger>,
    checkpoints: ChainLogs<VersionChain>,
}

impl ReplicatedIdempotencyStore {
    /// The effects of a resource, in the store of [`CheckpointStore::from_environment`].
    ///
    /// Calls with a fence below this one are refused. `FenceEpoch(1)` works for scopes that were never opened.
    pub fn new(
        resource: LogicalResourceName,
        schema: SchemaId,
        fence: FenceEpoch,
        policy: ReplicaPolicy,
        locator: ReplicaSetLocator,
    ) -> Result<ReplicatedIdempotencyStore, ReplicatedError> {
        let store = CheckpointStore::from_environment()?;
        ReplicatedIdempotencyStore::in_store(&store, resource, schema, fence, policy, locator)
    }

    /// The effects of a resource, in this store.
    pub fn in_store(
        store: &CheckpointStore,
        resource: LogicalResourceName,
        schema: SchemaId,
        fence: FenceEpoch,
        policy: ReplicaPolicy,
        locator: ReplicaSetLocator,
    ) -> Result<ReplicatedIdempotencyStore, ReplicatedError> {
        policy.check(&locator)?;
        store.check_generation(&locator)?;
        ChainName::of_effects(&resource, "scope")?;
        let (scopes, checkpoints) =
            (ChainLogs::new(store.register().clone()), ChainLogs::new(store.register().clone()));
        Ok(ReplicatedIdempotencyStore { store: store.clone(), resource, schema, lowest: fence, scopes, checkpoints })
    }

    /// Opens a scope for this process and returns its fence; every process with an older one is stale from then on.
    pub fn open(&self, scope: &str) -> Result<FenceEpoch, ReplicatedError> {
        self.open_at_least(scope, FenceEpoch(0))
    }

    /// Opens a scope with a new fence that is not below this one.
    pub(crate) fn open_at_least(&self, scope: &str, at_least: FenceEpoch) -> Result<FenceEpoch, ReplicatedError> {
        self.with_scope(scope, |log| {
            log.append(|ledger| Ok(Decision::Append(ledger.open(at_least))))?;
            Ok(log.state().fences().newest)
        })
    }

    /// Reserves an effect, or returns its stored result.
    ///
    /// The deadline is in seconds since 1970; it is shown to people and decides nothing.
    pub fn reserve(
        &self,
        key: EffectKey,
        fingerprint: EffectFingerprint,
        deadline_unix_s: Option<u64>,
        fence: FenceEpoch,
    ) -> Result<VersionedValue<EffectState>, ReplicatedError> {
        self.check_fence(fence)?;
        self.reserve_call(&self.call(&key, fingerprint, deadline_unix_s, fence))
    }

    /// Reserves an effect that the next save of a checkpoint completes, or returns its stored result.
    ///
    /// A checkpoint that holds the step already, or a later one, answers `Completed`.
    pub fn reserve_for(
        &self,
        checkpoints: &ReplicatedCheckpoint,
        name: &CheckpointName,
        key: EffectKey,
        fingerprint: EffectFingerprint,
        deadline_unix_s: Option<u64>,
        fence: FenceEpoch,
    ) -> Result<VersionedValue<EffectState>, ReplicatedError> {
        self.check_fence(fence)?;
        let chain = checkpoints.chain(name)?;
        let newest = self.checkpoints.with(chain.clone(), |log| log.refresh().map(VersionChain::newest))?;
        let mut call = self.call(&key, fingerprint, deadline_unix_s, fence);
        call.completed_by = Some(CompletingSave { chain: chain.to_string(), newest });
        self.reserve_call(&call)
    }

    /// Completes a reserved effect with its result. A completed one keeps the result that it has.
    pub fn complete(
        &self,
        key: EffectKey,
        expected: Version,
        outcome: IdempotencyOutcome,
        fence: FenceEpoch,
    ) -> Result<VersionedValue<EffectState>, ReplicatedError> {
        self.check_fence(fence)?;
        let IdempotencyOutcome::Completed { effect } = outcome else {
            return Err(ReplicatedError::NotAnOutcome { key });
        };
        let effect = effect.map(|bytes| hex(&bytes));
        self.with_scope(&key.scope, |log| {
            log.append(|ledger| ledger.complete(&key, expected, effect.clone(), fence).map(Decision::from))?;
            state_of(log, &key)
        })
    }

    /// The record of an effect; `None` if there is none.
    pub fn look_up(&self, key: &EffectKey) -> Result<Option<VersionedValue<EffectState>>, ReplicatedError> {
        self.with_scope(&key.scope, |log| log.refresh()?.record(&key.name).map(|record| shown(key, record)).transpose())
    }

    /// Drops the records of completed effects. Their keys are free again, so drop only what cannot come again.
    pub fn forget(&self, keys: &[EffectKey], fence: FenceEpoch) -> Result<(), ReplicatedError> {
        self.check_fence(fence)?;
        for key in keys {
            let one = std::slice::from_ref(key);
            self.with_scope(&key.scope, |log| {
                log.append(|ledger| ledger.forget(one, fence).map(Decision::from)).map(|_| ())
            })?;
        }
        Ok(())
    }

    fn call<'a>(
        &'a self,
        key: &'a EffectKey,
        fingerprint: EffectFingerprint,
        deadline_unix_s: Option<u64>,
        fence: FenceEpoch,
    ) -> Reservation<'a> {
        let (by, schema) = (self.store.writer(), &self.schema);
        Reservation { key, fingerprint, by, fence, schema, deadline_unix_s, completed_by: None }
    }

    fn reserve_call(&self, call: &Reservation<'_>) -> Result<VersionedValue<EffectState>, ReplicatedError> {
        let key = call.key;
        let was_saved = Cell::new(false);
        let decide = |ledger: &EffectLedger| {
            was_saved.set(self.is_saved(ledger.record(&key.name), call)?);
            let change = if was_saved.get() { ledger.complete_saved(call) } else { ledger.reserve(call) };
            change.map(Decision::from)
        };
        self.with_scope(&key.scope, |log| {
            // An effect without a record is reserved first, and then completed.
            while log.append(decide)? == Appended::Entry && was_saved.get() {}
            state_of(log, key)
        })
    }

    /// True if a save completed the effect that its record, or the call, names a checkpoint for.
    fn is_saved(&self, record: Option<&EffectRecord>, call: &Reservation<'_>) -> Result<bool, ReplicatedError> {
        let reserved = match record.map(|record| &record.stage) {
            Some(EffectStage::Completed { .. }) => return Ok(false),
            Some(EffectStage::Reserved { completed_by, .. }) => completed_by.as_ref(),
            None => None,
        };
        for save in reserved.into_iter().chain(&call.completed_by) {
            let corrupt = || ReplicatedError::Corrupt {
                chain: self.resource.to_string(),
                number: record.map_or(0, |record| record.version.0),
                reason: format!("`{}` cannot be the name of a chain", save.chain),
            };
            let chain = ChainName::parse(&save.chain).ok_or_else(corrupt)?;
            let progress = self
                .checkpoints
                .with(chain, |log| Ok::<_, ReplicatedError>(log.refresh()?.progress_of(call.key, save.newest)))?;
            match progress {
                SavedEffect::Committed(_) => return Ok(true),
                SavedEffect::Unknown => return Err(ReplicatedError::Forgotten { key: call.key.clone() }),
                SavedEffect::NotCommitted => {}
            }
        }
        Ok(false)
    }

    fn check_fence(&self, given: FenceEpoch) -> Result<(), ReplicatedError> {
        let current = self.lowest;
        if given < current { Err(ReplicatedError::Fenced { given, current }) } else { Ok(()) }
    }

    fn with_scope<T>(
        &self,
        scope: &str,
        call: impl FnOnce(&mut ChainLog<EffectLedger>) -> Result<T, ReplicatedError>,
    ) -> Result<T, ReplicatedError> {
        self.scopes.with(ChainName::of_effects(&self.resource, scope)?, call)
    }
}

/// Opens a checkpoint and the scope of its effects under one fence.
///
/// The one with the lower fence is opened again until both have the same number. Of two processes that
/// do this at once, one ends with a fence that is current at both, and the other is stale.
pub fn open_together(
    checkpoints: &ReplicatedCheckpoint,
    name: &CheckpointName,
    effects: &ReplicatedIdempotencyStore,
    scope: &str,
) -> Result<FenceEpoch, ReplicatedError> {
    let mut of_checkpoint = checkpoints.open(name)?;
    let mut of_effects = effects.open_at_least(scope, of_checkpoint)?;
    while of_checkpoint != of_effects {
        if of_checkpoint < of_effects {
            of_checkpoint = checkpoints.open_at_least(name, of_effects, None)?;
        } else {
            of_effects = effects.open_at_least(scope, of_checkpoint)?;
        }
    }
    Ok(of_checkpoint)
}

/// The effect as the chain has it after a call.
fn state_of(log: &ChainLog<EffectLedger>, key: &EffectKey) -> Result<VersionedValue<EffectState>, ReplicatedError> {
    match log.state().record(&key.name) {
        Some(record) => shown(key, record),
        // It was completed, and so many steps after it that its record is gone.
        None => Err(ReplicatedError::Forgotten { key: key.clone() }),
    }
}

fn shown(key: &EffectKey, record: &EffectRecord) -> Result<VersionedValue<EffectState>, ReplicatedError> {
    let outcome = match &record.stage {
        EffectStage::Reserved { deadline_unix_s, .. } => {
            IdempotencyOutcome::Reserved { deadline_unix_s: *deadline_unix_s }
        }
        EffectStage::Completed { effect } => {
            let bytes = effect.as_deref().map(|digits| {
                unhex(digits).ok_or_else(|| ReplicatedError::Corrupt {
                    chain: key.scope.clone(),
                    number: record.version.0,
                    reason: "its result is not in hexadecimal digits".to_owned(),
                })
            });
            IdempotencyOutcome::Completed { effect: bytes.transpose()? }
        }
    };
    let value = EffectState { fingerprint: record.fingerprint, outcome };
    Ok(VersionedValue { value, version: record.version })
}

/// The bytes that `hex` wrote; `None` if it wrote no such text.
fn unhex(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok().filter(|_| pair.len() == 2)).collect()
}
