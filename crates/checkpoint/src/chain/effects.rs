//! The chain of one scope's effects: which are reserved, and which are completed.
//!
//! ```text
//!             reserve                    complete
//! (no record) ───────► reserved ────────────────► completed ──► dropped (steps only)
//!                       │    ▲
//!                       └────┘ reserved again, under a higher fence only
//! ```
//!
//! A reservation may carry a deadline for people to read. It permits nothing: only opening the scope
//! again, which makes the first process stale, lets another process take an effect over.
//!
//! A reservation may name the checkpoint that completes the effect with a save. Then the save is what
//! counts: a crash after it leaves the record reserved, and the next call finds the save.

use super::{ChainState, Fences};
use crate::error::ReplicatedError;
use crate::names::{EffectFingerprint, EffectKey, EffectName, FenceEpoch, SchemaId, Version};
use crate::nonce::Nonce;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The records of completed steps that are kept, newest first. A step is asked for again only shortly after it ran.
const STEPS_KEPT: usize = 64;

/// The largest result that a record holds.
pub const EFFECT_BYTES_MAX: usize = 1024;

/// The size at which a scope takes no more names: a snapshot of the state must fit into one entry.
const STATE_BYTES_MAX: usize = 640 << 10;

/// The records of one scope.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectLedger {
    fences: Fences,
    #[serde(with = "records_as_list")]
    records: BTreeMap<EffectName, EffectRecord>,
    /// The highest step with a record that was dropped. It and all below it are completed.
    newest_dropped_step: Option<u64>,
}

/// One effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectRecord {
    /// What it was asked to do.
    pub fingerprint: EffectFingerprint,
    /// How its result is to be understood.
    pub schema: SchemaId,
    /// The entry that changed it last.
    pub version: Version,
    /// How far it is.
    pub stage: EffectStage,
}

/// How far an effect is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectStage {
    /// A process works on it.
    Reserved {
        /// The process.
        by: Nonce,
        /// Its fence.
        fence: FenceEpoch,
        /// When it meant to be done; information.
        deadline_unix_s: Option<u64>,
        /// The checkpoint that completes it with a save.
        completed_by: Option<CompletingSave>,
    },
    /// It is done.
    Completed {
        /// Its result, in hexadecimal digits.
        effect: Option<String>,
    },
}

/// The checkpoint that completes an effect with its next save.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompletingSave {
    /// The checkpoint's chain.
    pub chain: String,
    /// Its newest version when the effect was reserved.
    pub newest: Version,
}

/// What one entry of a scope's chain changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectChange {
    /// A process opened the scope for writing.
    Opened {
        /// Its fence.
        fence: FenceEpoch,
    },
    /// A process works on an effect.
    Reserved {
        /// The effect.
        name: EffectName,
        /// What it is asked to do.
        fingerprint: EffectFingerprint,
        /// How its result is to be understood.
        schema: SchemaId,
        /// The process.
        by: Nonce,
        /// Its fence.
        fence: FenceEpoch,
        /// When it means to be done; information.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline_unix_s: Option<u64>,
        /// The checkpoint that completes it with a save.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        completed_by: Option<CompletingSave>,
    },
    /// An effect is done.
    Completed {
        /// The effect.
        name: EffectName,
        /// The fence of the process.
        fence: FenceEpoch,
        /// Its result, in hexadecimal digits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        effect: Option<String>,
    },
    /// Records were dropped on request; their keys are free again.
    Forgotten {
        /// The fence of the process.
        fence: FenceEpoch,
        /// The effects.
        names: Vec<EffectName>,
    },
}

/// What a call asks for.
#[derive(Clone, Debug)]
pub struct Reservation<'a> {
    /// The effect.
    pub key: &'a EffectKey,
    /// What it is asked to do.
    pub fingerprint: EffectFingerprint,
    /// The process.
    pub by: Nonce,
    /// Its fence.
    pub fence: FenceEpoch,
    /// How its result is to be understood.
    pub schema: &'a SchemaId,
    /// When it means to be done.
    pub deadline_unix_s: Option<u64>,
    /// The checkpoint that completes it with a save.
    pub completed_by: Option<CompletingSave>,
}

impl EffectLedger {
    /// Which process may write.
    pub fn fences(&self) -> &Fences {
        &self.fences
    }

    /// The record of an effect.
    pub fn record(&self, name: &EffectName) -> Option<&EffectRecord> {
        self.records.get(name)
    }

    /// Opens the scope for one writer; every other one is stale from then on.
    pub fn open(&self, at_least: FenceEpoch) -> EffectChange {
        EffectChange::Opened { fence: self.fences.next(at_least) }
    }

    /// Reserves an effect; `None` if it has a record that answers the call.
    pub fn reserve(&self, call: &Reservation<'_>) -> Result<Option<EffectChange>, ReplicatedError> {
        self.fences.check(call.fence)?;
        let Some(record) = self.records.get(&call.key.name) else {
            return match self.refusal_of_new(call.key) {
                Some(refusal) => Err(refusal),
                None => Ok(Some(call.change())),
            };
        };
        record.check(call)?;
        match record.stage {
            EffectStage::Completed { .. } => Ok(None),
            EffectStage::Reserved { by, .. } if by == call.by => Ok(None),
            EffectStage::Reserved { fence, .. } if fence < call.fence => Ok(Some(call.change())),
            EffectStage::Reserved { .. } => Err(ReplicatedError::InProgress { key: call.key.clone() }),
        }
    }

    /// Records an effect as completed that a save completed, whichever process reserved it; `None` if it is recorded.
    pub fn complete_saved(&self, call: &Reservation<'_>) -> Result<Option<EffectChange>, ReplicatedError> {
        self.fences.check(call.fence)?;
        let completed = EffectChange::Completed { name: call.key.name.clone(), fence: call.fence, effect: None };
        match self.records.get(&call.key.name) {
            None => Ok(Some(call.change())),
            Some(record) => {
                record.check(call)?;
                Ok((!record.is_completed()).then_some(completed))
            }
        }
    }

    /// Why no record of this key may be added.
    fn refusal_of_new(&self, key: &EffectKey) -> Option<ReplicatedError> {
        if let EffectName::Step(step) = key.name
            && Some(step) <= self.newest_dropped_step
        {
            return Some(ReplicatedError::Forgotten { key: key.clone() });
        }
        let size = self.records.iter().map(|(name, record)| size_of_record(name, record)).sum::<usize>();
        let full = || ReplicatedError::EffectsFull { scope: key.scope.clone(), records: self.records.len() };
        (size > STATE_BYTES_MAX).then(full)
    }

    /// Completes an effect; `None` if it is completed already.
    pub fn complete(
        &self,
        key: &EffectKey,
        expected: Version,
        effect: Option<String>,
        fence: FenceEpoch,
    ) -> Result<Option<EffectChange>, ReplicatedError> {
        self.fences.check(fence)?;
        let not_reserved = || ReplicatedError::NotReserved { key: key.clone(), expected };
        let bytes = effect.as_ref().map_or(0, |hex| hex.len() / 2);
        if bytes > EFFECT_BYTES_MAX {
            return Err(ReplicatedError::EffectTooLarge { key: key.clone(), bytes, most: EFFECT_BYTES_MAX });
        }
        match self.records.get(&key.name) {
            Some(EffectRecord { stage: EffectStage::Completed { .. }, .. }) => Ok(None),
            Some(record) if record.version == expected => {
                Ok(Some(EffectChange::Completed { name: key.name.clone(), fence, effect }))
            }
            _ => Err(not_reserved()),
        }
    }

    /// Drops the records of completed effects; `None` if there is nothing to drop.
    pub fn forget(&self, keys: &[EffectKey], fence: FenceEpoch) -> Result<Option<EffectChange>, ReplicatedError> {
        self.fences.check(fence)?;
        let mut names = Vec::new();
        for key in keys {
            match self.records.get(&key.name).map(|record| &record.stage) {
                None => {}
                Some(EffectStage::Completed { .. }) => names.push(key.name.clone()),
                Some(EffectStage::Reserved { .. }) => return Err(ReplicatedError::InProgress { key: key.clone() }),
            }
        }
        Ok((!names.is_empty()).then_some(EffectChange::Forgotten { fence, names }))
    }

    /// Drops the records of steps beyond the newest 64 completed ones.
    fn drop_old_steps(&mut self) {
        let completed = self.records.iter().filter_map(|(name, record)| match (name, &record.stage) {
            (EffectName::Step(step), EffectStage::Completed { .. }) => Some(*step),
            _ => None,
        });
        let steps: Vec<u64> = completed.collect();
        let Some(surplus) = steps.len().checked_sub(STEPS_KEPT).filter(|surplus| *surplus > 0) else { return };
        for step in &steps[..surplus] {
            self.records.remove(&EffectName::Step(*step));
            self.newest_dropped_step = self.newest_dropped_step.max(Some(*step));
        }
    }
}

impl Reservation<'_> {
    fn change(&self) -> EffectChange {
        EffectChange::Reserved {
            name: self.key.name.clone(),
            fingerprint: self.fingerprint,
            schema: self.schema.clone(),
            by: self.by,
            fence: self.fence,
            deadline_unix_s: self.deadline_unix_s,
            completed_by: self.completed_by.clone(),
        }
    }
}

impl EffectRecord {
    /// True if it is done.
    pub fn is_completed(&self) -> bool {
        matches!(self.stage, EffectStage::Completed { .. })
    }

    /// Refuses a call for other work under the same key.
    fn check(&self, call: &Reservation<'_>) -> Result<(), ReplicatedError> {
        if self.fingerprint != call.fingerprint {
            return Err(ReplicatedError::FingerprintMismatch { key: call.key.clone() });
        }
        if self.schema != *call.schema {
            return Err(ReplicatedError::Mismatch {
                version: self.version,
                what: "schema",
                found: self.schema.to_string(),
                expected: call.schema.to_string(),
            });
        }
        Ok(())
    }
}

/// About how many bytes a record takes in a snapshot.
fn size_of_record(name: &EffectName, record: &EffectRecord) -> usize {
    let name = match name {
        EffectName::Step(_) => 20,
        EffectName::Named(name) => name.len() * 2,
    };
    let result = match &record.stage {
        EffectStage::Completed { effect } => effect.as_ref().map_or(0, String::len),
        EffectStage::Reserved { completed_by, .. } => 150 + completed_by.as_ref().map_or(0, |save| save.chain.len()),
    };
    200 + name + record.schema.as_str().len() + result
}

impl ChainState for EffectLedger {
    type Change = EffectChange;

    fn apply(&mut self, number: u64, change: &EffectChange) -> Result<(), String> {
        let version = Version(number);
        match change {
            EffectChange::Opened { fence } => self.fences.raise(*fence)?,
            EffectChange::Reserved { name, fingerprint, schema, by, fence, deadline_unix_s, completed_by } => {
                self.fences.expect(*fence)?;
                if self.records.get(name).is_some_and(EffectRecord::is_completed) {
                    return Err(format!("it reserves {name}, which is completed"));
                }
                let stage = EffectStage::Reserved {
                    by: *by,
                    fence: *fence,
                    deadline_unix_s: *deadline_unix_s,
                    completed_by: completed_by.clone(),
                };
                let record = EffectRecord { fingerprint: *fingerprint, schema: schema.clone(), version, stage };
                self.records.insert(name.clone(), record);
            }
            EffectChange::Completed { name, fence, effect } => {
                self.fences.expect(*fence)?;
                let record =
                    self.records.get_mut(name).ok_or_else(|| format!("it completes {name}, which is not reserved"))?;
                record.version = version;
                record.stage = EffectStage::Completed { effect: effect.clone() };
                self.drop_old_steps();
            }
            EffectChange::Forgotten { fence, names } => {
                self.fences.expect(*fence)?;
                for name in names {
                    self.records.remove(name);
                }
            }
        }
        Ok(())
    }
}

/// Names are no text, and keys of a JSON object are: the records are stored as a list of pairs.
mod records_as_list {
    use super::{EffectName, EffectRecord};
    use serde::{Deserialize, Deserializer, Serializer};
    use std::collections::BTreeMap;

    pub fn serialize<S: Serializer>(
        records: &BTreeMap<EffectName, EffectRecord>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(records)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<EffectName, EffectRecord>, D::Error> {
        Ok(Vec::deserialize(deserializer)?.into_iter().collect())
    }
}
