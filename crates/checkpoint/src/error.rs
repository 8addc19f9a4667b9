//! What can go wrong, by what the caller must do next.
//!
//! The wording is for people and may change. [`ReplicatedError::code`] is stable, and
//! [`ReplicatedError::remedy`] says what to do.

use crate::names::{CheckpointName, EffectKey, FenceEpoch, ReplicaId, Version};
use crate::register::RegisterError;
use std::io;
use std::path::PathBuf;

/// A checkpoint or an effect could not be saved, read or completed. Progress must not be reported.
#[derive(Debug, thiserror::Error)]
pub enum ReplicatedError {
    /// A name is empty or too long.
    #[error(
        "`{name}` cannot be a name: it must have 1 to {longest} characters, and others than letters, digits, `-`, `.` and `:` count as three"
    )]
    InvalidName {
        /// The name, cut at 80 characters.
        name: String,
        /// The longest name.
        longest: usize,
    },
    /// A part's name would leave the version's directory, or is one that Sublet uses itself.
    #[error("`{part}` cannot be a part of a checkpoint: {reason}")]
    InvalidPart {
        /// The part's name.
        part: String,
        /// Why not.
        reason: &'static str,
    },
    /// The replica policy contradicts the locator.
    #[error("the replica policy cannot be kept: {reason}")]
    Policy {
        /// What contradicts what.
        reason: String,
    },
    /// The store has no directory for a replica.
    #[error("no directory is known for replica `{replica}`")]
    UnknownReplica {
        /// The replica.
        replica: ReplicaId,
    },
    /// The configuration of checkpoints cannot be used.
    #[error("the configuration of checkpoints cannot be used: {reason}")]
    Configuration {
        /// What is wrong with it.
        reason: String,
    },
    /// The configuration names a place in an object store, and the program was built without object stores.
    #[error("`{place}` is in an object store, and this program was built without support for object stores")]
    NoObjectStore {
        /// The place.
        place: String,
    },
    /// Another process opened the name later, with a higher fence.
    #[error("fence {given} is stale: another process opened this name with fence {current}")]
    Fenced {
        /// The fence of the call.
        given: FenceEpoch,
        /// The newest fence.
        current: FenceEpoch,
    },
    /// The call carries a fence that the register never issued.
    #[error("fence {given} was never issued: the newest one is {current}")]
    FenceNeverIssued {
        /// The fence of the call.
        given: FenceEpoch,
        /// The newest fence.
        current: FenceEpoch,
    },
    /// Another save came first.
    #[error("the newest version is {newest}, and the call expected {expected}")]
    VersionConflict {
        /// What the caller took for the newest version.
        expected: Version,
        /// The newest version.
        newest: Version,
    },
    /// The step is committed already, or lies before one that is.
    #[error("step {step} cannot be saved: step {newest} is saved already")]
    StepNotNewer {
        /// The step of the call.
        step: u64,
        /// The newest step.
        newest: u64,
    },
    /// A version that completed the effect is committed already.
    #[error("{key} is committed already, by version {version}")]
    EffectCommitted {
        /// The effect.
        key: EffectKey,
        /// The version.
        version: Version,
    },
    /// Another process works on the effect under the same fence.
    #[error("{key} is being worked on by another process")]
    InProgress {
        /// The effect.
        key: EffectKey,
    },
    /// The key was used with other input.
    #[error("{key} was reserved with another fingerprint")]
    FingerprintMismatch {
        /// The effect.
        key: EffectKey,
    },
    /// The effect was completed so long ago that its record is gone.
    #[error("{key} was completed, and its record has been dropped")]
    Forgotten {
        /// The effect.
        key: EffectKey,
    },
    /// The effect is not reserved, or it changed since the caller reserved it.
    #[error("{key} is not reserved under version {expected}")]
    NotReserved {
        /// The effect.
        key: EffectKey,
        /// What the caller took for the version of its reservation.
        expected: Version,
    },
    /// `complete` was called with an outcome that is none.
    #[error("{key} cannot be completed as reserved")]
    NotAnOutcome {
        /// The effect.
        key: EffectKey,
    },
    /// The scope holds as many records as it may.
    #[error("{scope} holds {records} records of effects, and no more are taken")]
    EffectsFull {
        /// The scope.
        scope: String,
        /// How many records it holds.
        records: usize,
    },
    /// The record of an effect is too large.
    #[error("the record of {key} has {bytes} bytes, and at most {most} are taken")]
    EffectTooLarge {
        /// The effect.
        key: EffectKey,
        /// Its size.
        bytes: usize,
        /// The most that is taken.
        most: usize,
    },
    /// The saved bytes have another schema, or were saved under another policy.
    #[error("version {version} was saved with {what} `{found}`, and the program expects `{expected}`")]
    Mismatch {
        /// The version.
        version: Version,
        /// `schema` or `policy hash`.
        what: &'static str,
        /// What the version has.
        found: String,
        /// What the program expects.
        expected: String,
    },
    /// What was to be saved could not be read. Nothing was committed.
    #[error("the parts of the checkpoint cannot be read: {reason}")]
    Unreadable {
        /// Which part, and why.
        reason: String,
    },
    /// Fewer copies were written than the policy needs. Nothing was committed.
    #[error("{written} of {needed} copies were written{}", listed(causes))]
    TooFewWritten {
        /// How many replicas hold the version.
        written: usize,
        /// The write quorum.
        needed: usize,
        /// What each of the others said.
        causes: Vec<ReplicaFailure>,
    },
    /// Fewer whole copies were found than the policy needs.
    #[error("version {version} has {verified} whole copies of the {needed} needed{}", listed(causes))]
    TooFewCopies {
        /// The version.
        version: Version,
        /// How many copies are whole.
        verified: usize,
        /// The read quorum.
        needed: usize,
        /// What is wrong with each of the others.
        causes: Vec<ReplicaFailure>,
    },
    /// No such version was ever committed.
    #[error("version {version} was never committed")]
    NoSuchVersion {
        /// The version.
        version: Version,
    },
    /// The version was committed and then pruned.
    #[error("version {version} was pruned")]
    Pruned {
        /// The version.
        version: Version,
    },
    /// The version cannot be pruned.
    #[error("version {version} is kept: {reason}")]
    Kept {
        /// The version.
        version: Version,
        /// Why it is kept.
        reason: String,
    },
    /// The register is of an older generation than the program has seen.
    #[error("the register is of generation {found}, and the locator names generation {expected}")]
    OldGeneration {
        /// The register's generation.
        found: u64,
        /// The locator's generation.
        expected: u64,
    },
    /// A replica holds a committed version that the register does not know: the register is an older copy of itself.
    #[error("replica `{replica}` holds version {version}, and the register knows none above {newest}")]
    RegisterBehind {
        /// The replica.
        replica: ReplicaId,
        /// What it holds.
        version: Version,
        /// What the register knows.
        newest: Version,
    },
    /// A replica names a generation that no register can have reached.
    #[error("{place} names generation {found} of the register, and at most {most} can be")]
    GenerationTooHigh {
        /// The replica, or the version whose manifest says so.
        place: String,
        /// The generation.
        found: u64,
        /// The highest that can be.
        most: u64,
    },
    /// A register that is to be rebuilt holds something already.
    #[error("the register is not lost (chains: {chains}), and only an empty one can be rebuilt")]
    NotEmpty {
        /// How many chains it holds.
        chains: usize,
    },
    /// The register is empty, and a replica holds committed versions.
    #[error("the register is lost: it is empty, and replica `{replica}` holds versions of `{name}`")]
    RegisterLost {
        /// The replica.
        replica: ReplicaId,
        /// One of its checkpoints.
        name: CheckpointName,
    },
    /// There is no store at a path where one was looked for.
    #[error("there is no store of checkpoints at `{}`", path.display())]
    NoStore {
        /// The path.
        path: PathBuf,
    },
    /// A version is to be exported into a directory that holds something.
    #[error("`{}` exists and is not an empty directory", path.display())]
    NotEmptyDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// The register holds something that this release does not understand, or that contradicts itself.
    #[error("entry {number} of chain `{chain}` cannot be used: {reason}")]
    Corrupt {
        /// The chain.
        chain: String,
        /// The entry's number.
        number: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A save that went on in the background failed.
    #[error("step {step} was not saved")]
    EarlierSave {
        /// The step of the failed save.
        step: u64,
        /// Why it failed.
        source: Box<ReplicatedError>,
    },
    /// A file could not be read or written.
    #[error("`{}` cannot be used", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The register refused, or could not be reached.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// What went wrong at one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaFailure {
    /// The replica.
    pub replica: ReplicaId,
    /// What went wrong, for people.
    pub reason: String,
}

/// The failures as the end of a sentence.
fn listed(failures: &[ReplicaFailure]) -> String {
    failures.iter().map(|failure| format!("; {}: {}", failure.replica, failure.reason)).collect()
}

impl ReplicatedError {
    /// A word for programs; it never changes.
    pub fn code(&self) -> &'static str {
        match self {
            ReplicatedError::InvalidName { .. } => "invalid_name",
            ReplicatedError::InvalidPart { .. } => "invalid_part",
            ReplicatedError::Policy { .. } => "policy",
            ReplicatedError::UnknownReplica { .. } => "unknown_replica",
            ReplicatedError::Configuration { .. } => "configuration",
            ReplicatedError::NoObjectStore { .. } => "no_object_store",
            ReplicatedError::Fenced { .. } => "fenced",
            ReplicatedError::FenceNeverIssued { .. } => "fence_never_issued",
            ReplicatedError::VersionConflict { .. } => "version_conflict",
            ReplicatedError::StepNotNewer { .. } => "step_not_newer",
            ReplicatedError::EffectCommitted { .. } => "effect_committed",
            ReplicatedError::InProgress { .. } => "in_progress",
            ReplicatedError::FingerprintMismatch { .. } => "fingerprint_mismatch",
            ReplicatedError::Forgotten { .. } => "forgotten",
            ReplicatedError::NotReserved { .. } => "not_reserved",
            ReplicatedError::NotAnOutcome { .. } => "not_an_outcome",
            ReplicatedError::EffectsFull { .. } => "effects_full",
            ReplicatedError::EffectTooLarge { .. } => "effect_too_large",
            ReplicatedError::Mismatch { .. } => "mismatch",
            ReplicatedError::Unreadable { .. } => "unreadable",
            ReplicatedError::TooFewWritten { .. } => "too_few_written",
            ReplicatedError::TooFewCopies { .. } => "too_few_copies",
            ReplicatedError::NoSuchVersion { .. } => "no_such_version",
            ReplicatedError::Pruned { .. } => "pruned",
            ReplicatedError::Kept { .. } => "kept",
            ReplicatedError::OldGeneration { .. } => "old_generation",
            ReplicatedError::RegisterBehind { .. } => "register_behind",
            ReplicatedError::GenerationTooHigh { .. } => "generation_too_high",
            ReplicatedError::NotEmpty { .. } => "register_not_empty",
            ReplicatedError::RegisterLost { .. } => "register_lost",
            ReplicatedError::NoStore { .. } => "no_store",
            ReplicatedError::NotEmptyDirectory { .. } => "not_empty_directory",
            ReplicatedError::Corrupt { .. } => "corrupt",
            ReplicatedError::EarlierSave { .. } => "earlier_save_failed",
            ReplicatedError::File { .. } => "file",
            ReplicatedError::Register(error) => error.code(),
        }
    }

    /// What to do next, as a sentence.
    pub fn remedy(&self) -> &'static str {
        match self {
            ReplicatedError::InvalidName { .. } => "choose a shorter name",
            ReplicatedError::InvalidPart { .. } => "give the part a relative name inside the checkpoint",
            ReplicatedError::Policy { .. } => "name more replicas in the locator, or ask for fewer copies",
            ReplicatedError::UnknownReplica { .. } => "name its directory under [replicas] in the configuration",
            ReplicatedError::Configuration { .. } => "correct the file and start the program again",
            ReplicatedError::NoObjectStore { .. } => {
                "build it with the feature `object-store` of `sublet`, or name a directory"
            }
            ReplicatedError::Fenced { .. } => {
                "stop this process, and start it again only by hand: another one has taken over; its progress is kept"
            }
            ReplicatedError::FenceNeverIssued { .. } => "use the fence that opening the name returned",
            ReplicatedError::VersionConflict { .. } => "load the newest version and go on from there",
            ReplicatedError::StepNotNewer { .. } => "load the newest version and go on with the step after it",
            ReplicatedError::EffectCommitted { .. } => "do not repeat it: load the newest version and go on from there",
            ReplicatedError::InProgress { .. } => {
                "wait for the other process; if it is gone, open the name again, which takes over"
            }
            ReplicatedError::FingerprintMismatch { .. } => {
                "use another key for other input: this one is taken by different work"
            }
            ReplicatedError::Forgotten { .. } => "do not repeat it: it was committed",
            ReplicatedError::NotReserved { .. } => "reserve the effect before it is completed",
            ReplicatedError::NotAnOutcome { .. } => "complete it with `IdempotencyOutcome::Completed`",
            ReplicatedError::EffectsFull { .. } => "forget effects that cannot come again",
            ReplicatedError::EffectTooLarge { .. } => "save the result as a checkpoint and record its name",
            ReplicatedError::Mismatch { .. } => "run the program that saved it, or save under a new name",
            ReplicatedError::Unreadable { .. } => "check the files named above, then save again",
            ReplicatedError::TooFewWritten { .. } => {
                "nothing was committed: mend the replicas named above, then save again"
            }
            ReplicatedError::TooFewCopies { .. } => {
                "mend the replicas named above, or lower read_quorum if one copy is enough"
            }
            ReplicatedError::NoSuchVersion { .. } | ReplicatedError::Pruned { .. } => {
                "`sublet checkpoint ls` lists the versions there are"
            }
            ReplicatedError::Kept { .. } => {
                "the newest version and pinned ones stay; the job that pinned a version can unpin it"
            }
            ReplicatedError::OldGeneration { .. } => {
                "connect to the register that was rebuilt last; this one is an older copy"
            }
            ReplicatedError::RegisterLost { .. } => {
                "put the register back, or name the daemon that has it; `sublet checkpoint rebuild` makes a new one \
                 from the replicas"
            }
            ReplicatedError::NoStore { .. } => {
                "name the directory or the configuration file of a store, such as with SUBLET_CHECKPOINTS"
            }
            ReplicatedError::NotEmptyDirectory { .. } => "name a directory that does not exist yet",
            ReplicatedError::RegisterBehind { .. } => {
                "bring back the newest copy of the register, or make a new one with `sublet checkpoint rebuild`"
            }
            ReplicatedError::GenerationTooHigh { .. } => {
                "no rebuild made it: remove the file `.generation-…` or the version that names it, or rebuild \
                 `--without` that replica"
            }
            ReplicatedError::NotEmpty { .. } => "move its file away, so that a new one is made",
            ReplicatedError::Corrupt { .. } => {
                "upgrade Sublet if another release wrote it; otherwise `sublet checkpoint rebuild` makes a new register"
            }
            ReplicatedError::EarlierSave { source, .. } => source.remedy(),
            ReplicatedError::File { .. } => "check that the directory exists, is writable and has room",
            ReplicatedError::Register(error) => error.remedy(),
        }
    }
}
