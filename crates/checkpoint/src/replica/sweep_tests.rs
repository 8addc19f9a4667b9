//! Sweeping while a writer is at work.

use super::*;
use crate::chain::ChainState;
use crate::chain::checkpoint::SavedVersion;
use crate::files::LocalDisk;
use crate::names::FenceEpoch;

/// The other replicas were enough for the commit, and this one is slow.
#[test]
fn a_committed_version_that_is_still_being_written_is_not_published() {
    let directory = tempfile::tempdir().expect("a directory");
    let replica = ReplicaDirectory::new(ReplicaId::new("a"), directory.path().to_owned(), Arc::new(LocalDisk));
    let home = CheckpointHome::of(&LogicalResourceName::new("models"), &CheckpointName::new("job")).expect("a home");
    let (nonce, fence, version) = (Nonce::draw().expect("a nonce"), FenceEpoch(1), Version(1));
    let staging = Staging { kind: StagingKind::Prepared, version, fence, nonce };
    let prepared = replica.path(&home).join(staging.to_string());
    std::fs::create_dir_all(&prepared).expect("a directory");
    std::fs::write(prepared.join("state"), "half of it").expect("a file");

    let mut state = VersionChain::default();
    let manifest = blake3::hash(b"manifest").to_hex().to_string();
    let saved = SavedVersion { manifest, nonce, fence, step: None, bytes: 20, effect: None };
    let change = state.save(Version(0), saved, 2).expect("a change");
    state.apply(1, &change).expect("a state");
    assert_eq!(replica.sweep(&home, &state).expect("a sweep"), None);
    assert_eq!(replica.published(&home).expect("versions"), []);
    assert!(prepared.join("state").exists(), "its writer goes on");

    std::fs::write(prepared.join(MANIFEST), "manifest").expect("a file");
    replica.sweep(&home, &state).expect("a sweep");
    assert_eq!(replica.published(&home).expect("versions"), [version]);
}
