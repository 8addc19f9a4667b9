//! The durable state of a training: its checkpoints and the record of its steps.

use crate::register::checkpoint_store;
use sublet_checkpoint::{
    CheckpointName, CheckpointStore, LogicalResourceName, ReplicatedCheckpoint, ReplicatedError,
    ReplicatedIdempotencyStore, SchemaId,
};

/// What [`replicated_training_state`] calls its checkpoints and its records.
const CHECKPOINTS: &str = "training-checkpoints";
const STEPS: &str = "training-steps";
/// The layout of both: the checkpoint is the program's bytes as they are.
const CHECKPOINT_SCHEMA: &str = "training-checkpoint.v1";
const STEP_SCHEMA: &str = "training-step.v1";

/// Checkpoints and step records in the store of this user (`SUBLET_CHECKPOINTS`), on all of its replicas.
///
/// A save needs more than half of the replicas, a load one verified copy. Programs that want other quorums make both
/// values themselves, with a policy and a locator.
pub fn replicated_training_state() -> Result<(ReplicatedCheckpoint, ReplicatedIdempotencyStore), ReplicatedError> {
    replicated_training_state_in(&checkpoint_store()?)
}

/// The same in another store.
pub fn replicated_training_state_in(
    store: &CheckpointStore,
) -> Result<(ReplicatedCheckpoint, ReplicatedIdempotencyStore), ReplicatedError> {
    let checkpoints = store.checkpoints(LogicalResourceName::new(CHECKPOINTS), SchemaId::new(CHECKPOINT_SCHEMA))?;
    let steps = store.effects(LogicalResourceName::new(STEPS), SchemaId::new(STEP_SCHEMA))?;
    Ok((checkpoints, steps))
}

/// The name of a job's checkpoint.
pub fn training_checkpoint_name(job: &str) -> CheckpointName {
    CheckpointName::new(format!("job:{job}:latest"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use sublet_checkpoint::Version;

    #[test]
    fn a_training_is_saved_on_all_replicas_of_its_store() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("store.toml");
        fs::write(&file, "register = \"r.db\"\n[replicas]\none = \"one\"\ntwo = \"two\"\n").expect("a file");
        for replica in ["one", "two"] {
            fs::create_dir(directory.path().join(replica)).expect("a directory");
        }
        let store = CheckpointStore::at(&file).expect("a store");
        let (checkpoints, _) = replicated_training_state_in(&store).expect("the state");
        let name = training_checkpoint_name("demo");
        let fence = checkpoints.open(&name).expect("a fence");
        let saved = checkpoints.save_bytes(name.clone(), Version(0), b"weights", fence).expect("a version");
        assert_eq!(checkpoints.directories(&name, saved.version).expect("an answer").len(), 2);
        for replica in ["one", "two"] {
            let home = directory.path().join(replica).join("training-checkpoints/job:demo:latest/000001");
            assert_eq!(fs::read(home.join("state")).expect("a copy"), b"weights");
        }
    }
}
