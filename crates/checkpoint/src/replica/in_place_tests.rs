//! Publishing while another process does something else to the same directory.

use super::*;
use crate::content::CheckpointPart;
use crate::files::{Files, ObjectFiles, ReadFile, WriteFile};
use crate::manifest::Manifest;
use crate::names::{CheckpointName, FenceEpoch, LogicalResourceName, ReplicaId, SchemaId, Version};
use crate::nonce::Nonce;
use crate::object::ObjectBucket;
use crate::replica::layout::StagingKind;
use crate::save_job::SaveJob;
use object_store::memory::InMemory;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

#[path = "../../tests/it/hooked_files.rs"]
mod hooked_files;

use hooked_files::{FileHook, HookedFiles};

type Interruption = Box<dyn FnOnce() + Send>;

/// Something that happens just before the first `_SUCCESS` is written.
struct BeforeMark(Mutex<Option<Interruption>>);

impl FileHook for BeforeMark {
    fn before(&self, path: &Path) {
        if path.ends_with(SUCCESS)
            && let Some(interrupt) = self.0.lock().expect("no panic").take()
        {
            interrupt();
        }
    }
}

/// A replica with a prepared version, and the version's job.
struct PreparedVersion {
    replica: ReplicaDirectory,
    other: ReplicaDirectory,
    home: CheckpointHome,
    job: SaveJob,
    files: ObjectFiles,
}

impl PreparedVersion {
    /// `interrupt` happens between the check of the version and its `_SUCCESS`. It gets the replica as another
    /// process has it.
    fn new(interrupt: impl FnOnce(&ReplicaDirectory, &CheckpointHome, Staging) + Send + 'static) -> PreparedVersion {
        let bucket = ObjectBucket::new(Arc::new(InMemory::new()), "s3://bucket").expect("threads");
        let files = ObjectFiles::new(bucket);
        let root = PathBuf::from("s3://bucket/a");
        let replica = |files| ReplicaDirectory::new(ReplicaId::new("a"), root.clone(), files);
        let other = replica(Arc::new(files.clone()));
        let (resource, name) = (LogicalResourceName::new("models"), CheckpointName::new("job"));
        let home = CheckpointHome::of(&resource, &name).expect("a home");
        let nonce = Nonce::draw().expect("a nonce");
        let copy = Staging { kind: StagingKind::Prepared, version: Version(1), fence: FenceEpoch(2), nonce };
        let parts = vec![CheckpointPart::new("state", b"state".to_vec()), CheckpointPart::new("a/b", b"b".to_vec())];
        let job = SaveJob::new(copy, 1, parts, None);
        let described = job.hash_all(|parts| Manifest {
            format: Manifest::FORMAT,
            resource,
            name,
            schema: SchemaId::new("v1"),
            policy: String::new(),
            version: copy.version,
            parent: None,
            nonce,
            fence: copy.fence,
            generation: 1,
            step: None,
            effect: None,
            unix_s: 0,
            chunk_bytes: crate::content::CHUNK_BYTES,
            parts,
        });
        described.expect("a manifest");
        other.prepare(&home, &job).expect("a copy");
        let (meddler, at) = (other.clone(), home.clone());
        let interruption: Interruption = Box::new(move || interrupt(&meddler, &at, copy));
        let hook = Arc::new(BeforeMark(Mutex::new(Some(interruption))));
        let interrupted = HookedFiles { files: Arc::new(files.clone()), hook };
        PreparedVersion { replica: replica(Arc::new(interrupted)), other, home, job, files }
    }

    fn left(&self) -> Vec<String> {
        self.files.list_below(Path::new("s3://bucket/a")).expect("names")
    }
}

#[test]
fn a_version_that_is_removed_while_it_is_published_is_not_there() {
    let prepared = PreparedVersion::new(|other, home, copy| other.discard(home, copy).expect("a removal"));
    let refused = prepared.replica.publish(&prepared.home, prepared.job.staging).expect_err("an error");
    assert_eq!(refused.kind(), io::ErrorKind::NotFound);
    assert_eq!(prepared.left(), [""; 0]);
}

#[test]
fn two_processes_may_publish_a_version_at_once() {
    let prepared = PreparedVersion::new(|other, home, copy| other.publish(home, copy).expect("a version"));
    prepared.replica.publish(&prepared.home, prepared.job.staging).expect("a version");
    assert_eq!(prepared.other.published(&prepared.home).expect("versions"), [Version(1)]);
    assert_eq!(prepared.left().len(), 5);
}

/// A slow writer went on after another process had removed what it wrote first.
#[test]
fn a_version_of_which_files_are_missing_is_not_published() {
    let prepared = PreparedVersion::new(|_, _, _| panic!("nothing is published"));
    let copy = prepared.other.path(&prepared.home).join(prepared.job.staging.copy_name());
    prepared.files.remove_file(&copy.join("a/b")).expect("a removal");
    let refused = prepared.replica.publish(&prepared.home, prepared.job.staging).expect_err("an error");
    assert!(refused.to_string().contains("part `a/b` is missing"), "{refused}");
    assert_eq!(prepared.other.published(&prepared.home).expect("versions"), []);
}
