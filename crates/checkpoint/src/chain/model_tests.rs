//! Random calls of three processes against a model that keeps only what a reader would.

use super::checkpoint::{CheckpointChange, CommittedEffect, SavedVersion, VersionChain};
use super::log::{ChainLog, Decision};
use crate::error::ReplicatedError;
use crate::names::{ChainName, EffectFingerprint, EffectKey, FenceEpoch, Version};
use crate::nonce::Nonce;
use crate::register::{ChainRegister, MemoryRegister};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One call of a process. Fences and versions are given as distances from the newest ones.
#[derive(Clone, Debug)]
enum ModelCall {
    Open,
    Save { fence_back: u64, version_back: u64, step: Option<u64>, effect: Option<u64>, keep: usize },
    Prune { fence_back: u64, version: u64 },
    Pin { version: u64, job: u8 },
    Unpin { version: u64, job: u8 },
}

fn calls() -> impl Strategy<Value = Vec<(usize, ModelCall)>> {
    let save = (0..3_u64, 0..2_u64, prop::option::of(0..30_u64), prop::option::of(0..6_u64), 1..4_usize);
    let save = save.prop_map(|(fence_back, version_back, step, effect, keep)| ModelCall::Save {
        fence_back: fence_back.saturating_sub(1),
        version_back,
        step,
        effect,
        keep,
    });
    let call = prop_oneof![
        1 => Just(ModelCall::Open),
        6 => save,
        1 => (0..2_u64, 0..12_u64).prop_map(|(fence_back, version)| ModelCall::Prune { fence_back, version }),
        1 => (0..12_u64, 0..2_u8).prop_map(|(version, job)| ModelCall::Pin { version, job }),
        1 => (0..12_u64, 0..2_u8).prop_map(|(version, job)| ModelCall::Unpin { version, job }),
    ];
    prop::collection::vec((0..3_usize, call), 1..60)
}

/// What a reader would say of the checkpoint.
#[derive(Default)]
struct ModelChain {
    fence: u64,
    newest: u64,
    step: Option<u64>,
    effects: BTreeSet<u64>,
    versions: BTreeSet<u64>,
    pins: BTreeMap<u64, BTreeSet<u8>>,
}

impl ModelChain {
    /// The code of the error that a call must get; `None` if it must succeed.
    fn expected(&self, call: &ModelCall) -> Option<&'static str> {
        let of_version = |version: u64| match version {
            0 => Some("no_such_version"),
            version if version > self.newest => Some("no_such_version"),
            version if !self.versions.contains(&version) => Some("pruned"),
            _ => None,
        };
        match call {
            ModelCall::Open | ModelCall::Unpin { .. } => None,
            ModelCall::Save { fence_back, .. } | ModelCall::Prune { fence_back, .. } if *fence_back > 0 => {
                Some("fenced")
            }
            ModelCall::Save { version_back: 1, .. } => Some("version_conflict"),
            ModelCall::Save { step, .. } if step.is_some() && *step <= self.step => Some("step_not_newer"),
            ModelCall::Save { effect: Some(effect), .. } if self.effects.contains(effect) => Some("effect_committed"),
            ModelCall::Save { .. } => None,
            ModelCall::Prune { version, .. } => of_version(*version)
                .or_else(|| (*version == self.newest || self.pins.contains_key(version)).then_some("kept")),
            ModelCall::Pin { version, .. } => of_version(*version),
        }
    }

    fn apply(&mut self, call: &ModelCall) {
        match call {
            ModelCall::Open => self.fence += 1,
            ModelCall::Save { step, effect, keep, .. } => {
                self.newest += 1;
                self.step = step.or(self.step);
                self.effects.extend(effect);
                self.versions.insert(self.newest);
                let old: Vec<u64> = self.versions.iter().rev().skip(*keep).copied().collect();
                self.versions.retain(|version| !old.contains(version) || self.pins.contains_key(version));
            }
            ModelCall::Prune { version, .. } => {
                self.versions.remove(version);
            }
            ModelCall::Pin { version, job } => {
                self.pins.entry(*version).or_default().insert(*job);
            }
            ModelCall::Unpin { version, job } => {
                if let Some(jobs) = self.pins.get_mut(version) {
                    jobs.remove(job);
                }
                self.pins.retain(|_, jobs| !jobs.is_empty());
            }
        }
    }
}

fn decide(
    state: &VersionChain,
    call: &ModelCall,
    model: &ModelChain,
) -> Result<Decision<CheckpointChange>, ReplicatedError> {
    let fence = |back: &u64| FenceEpoch((model.fence + 1).saturating_sub(*back));
    match call {
        ModelCall::Open => Ok(Decision::Append(state.open(FenceEpoch(0), None))),
        ModelCall::Save { fence_back, version_back, step, effect, keep } => {
            let effect = effect.map(|name| CommittedEffect {
                key: EffectKey::new("job", name.to_string()),
                fingerprint: EffectFingerprint::of(b"in"),
            });
            let fence = fence(fence_back);
            let (manifest, nonce, step) = (String::new(), Nonce::default(), *step);
            let saved = SavedVersion { manifest, nonce, fence, step, bytes: 0, effect };
            state.save(Version(model.newest.wrapping_sub(*version_back)), saved, *keep).map(Decision::Append)
        }
        ModelCall::Prune { fence_back, version } => {
            state.prune(&[Version(*version)], fence(fence_back)).map(Decision::Append)
        }
        ModelCall::Pin { version, job } => state.pin(Version(*version), &job.to_string()).map(Decision::from),
        ModelCall::Unpin { version, job } => Ok(state.unpin(Version(*version), &job.to_string()).into()),
    }
}

proptest! {
    #[test]
    fn three_processes_and_the_model_agree(calls in calls()) {
        let register: Arc<dyn ChainRegister> = Arc::new(MemoryRegister::new());
        let chain = ChainName::parse("c/models/job").expect("a name");
        let log = || ChainLog::<VersionChain>::new(Arc::clone(&register), chain.clone());
        let mut logs = [log(), log(), log()];
        let mut model = ModelChain::default();
        for (process, call) in &calls {
            let outcome = logs[*process].append(|state| decide(state, call, &model));
            prop_assert_eq!(outcome.as_ref().err().map(ReplicatedError::code), model.expected(call), "{:?}", call);
            if outcome.is_ok() {
                model.apply(call);
            }
            let state = logs[*process].refresh().expect("a state");
            let versions: BTreeSet<u64> = state.versions().keys().map(|version| version.0).collect();
            prop_assert_eq!(&versions, &model.versions);
            prop_assert_eq!((state.newest().0, state.newest_step()), (model.newest, model.step));
            prop_assert_eq!(state.fences().newest.0, model.fence + 1);
        }
        let fresh = log().refresh().cloned().expect("a state");
        let stored = serde_json::to_string(&fresh).expect("JSON");
        prop_assert_eq!(serde_json::from_str::<VersionChain>(&stored).expect("a state"), fresh);
    }
}
