//! One save while it is under way, shared by the thread that hashes and the threads that write.
//!
//! ```text
//! caller's thread   hash 0 │ hash 1 │ hash 2 │ …          │ manifest
//! each replica         └─ same as in the newest version so far? wait for the next hash
//!                         all the same: a second name for the old file, nothing is written
//!                         first difference: write the part from its beginning
//! ```
//!
//! When enough replicas have it, the register decides, and each replica publishes or deletes its copy.
//!
//! Absent on purpose: replicas and the register. This is what they are given.

use crate::chain::checkpoint::VersionChain;
use crate::content::{CHUNK_BYTES, CheckpointPart, PartSource};
use crate::files::open_regular;
use crate::manifest::{ChunkHash, Manifest, ManifestPart, SealedManifest};
use crate::replica::layout::Staging;
use bytes::Bytes;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A version that is being saved.
pub struct SaveJob {
    /// The directory that it is prepared in.
    pub staging: Staging,
    /// The generation of the register that decides about it.
    pub generation: u64,
    /// What is saved.
    pub parts: Vec<CheckpointPart>,
    /// The newest version, if there is one.
    pub parent: Option<Arc<SealedManifest>>,
    hashes: Mutex<Hashes>,
    more: Condvar,
    verdict: Mutex<Option<SaveVerdict>>,
    decided: Condvar,
}

/// What became of a version that replicas have prepared.
#[derive(Clone)]
pub enum SaveVerdict {
    /// The register has it: this is the chain with it.
    Committed(Arc<VersionChain>),
    /// It can never be committed.
    Abandoned,
    /// The register broke off. The next reader or writer finds out.
    Unknown,
}

/// How far hashing is.
struct Hashes {
    parts: Vec<Vec<ChunkHash>>,
    outcome: Option<Result<Arc<SealedManifest>, String>>,
}

impl SaveJob {
    /// A job of which nothing is hashed yet.
    pub fn new(
        staging: Staging,
        generation: u64,
        parts: Vec<CheckpointPart>,
        parent: Option<Arc<SealedManifest>>,
    ) -> SaveJob {
        let hashes = Hashes { parts: vec![Vec::new(); parts.len()], outcome: None };
        SaveJob {
            staging,
            generation,
            parts,
            parent,
            hashes: Mutex::new(hashes),
            more: Condvar::new(),
            verdict: Mutex::default(),
            decided: Condvar::new(),
        }
    }

    /// Tells the replicas what became of the version. Only the first call counts.
    pub fn decide(&self, verdict: SaveVerdict) {
        self.verdict.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(verdict);
        self.decided.notify_all();
    }

    /// Waits until it is known what became of the version.
    pub fn verdict(&self) -> SaveVerdict {
        let mut verdict = self.verdict.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(verdict) = &*verdict {
                return verdict.clone();
            }
            verdict = self.decided.wait(verdict).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Hashes everything, and seals the manifest that `describe` makes of the parts.
    pub fn hash_all(
        &self,
        describe: impl FnOnce(Vec<ManifestPart>) -> Manifest,
    ) -> Result<Arc<SealedManifest>, String> {
        let outcome = self.hash_parts().and_then(|parts| describe(parts).seal()).map(Arc::new);
        self.hashes().outcome = Some(outcome.clone());
        self.more.notify_all();
        outcome
    }

    fn hash_parts(&self) -> Result<Vec<ManifestPart>, String> {
        for (index, part) in self.parts.iter().enumerate() {
            let mut reader = PartReader::open(part).map_err(|error| format!("part `{}`: {error}", part.name))?;
            while let Some(chunk) = reader.next().map_err(|error| format!("part `{}`: {error}", part.name))? {
                let hash = ChunkHash::of(&chunk);
                self.hashes().parts[index].push(hash);
                self.more.notify_all();
            }
        }
        let hashes = self.hashes();
        let described = self.parts.iter().zip(&hashes.parts);
        let described = described.map(|(part, chunks)| ManifestPart {
            name: part.name.clone(),
            bytes: part.bytes(),
            chunks: chunks.clone(),
        });
        Ok(described.collect())
    }

    /// The hash of one chunk, as soon as it is known.
    pub fn hash_of(&self, part: usize, chunk: usize) -> Result<ChunkHash, String> {
        self.wait_for(|hashes| hashes.parts[part].get(chunk).copied().map(Ok))
    }

    /// True if the newest version holds a part of the same name and bytes.
    pub fn is_unchanged(&self, index: usize) -> Result<bool, String> {
        let part = &self.parts[index];
        let same_name = self.parent.as_ref().and_then(|parent| parent.manifest.part(&part.name));
        let comparable = self.parent.as_ref().is_some_and(|parent| parent.manifest.chunk_bytes == CHUNK_BYTES);
        let Some(before) = same_name.filter(|before| comparable && before.bytes == part.bytes()) else {
            return Ok(false);
        };
        for (chunk, expected) in before.chunks.iter().enumerate() {
            if self.hash_of(index, chunk)? != *expected {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The manifest, as soon as everything is hashed.
    pub fn manifest(&self) -> Result<Arc<SealedManifest>, String> {
        self.wait_for(|hashes| hashes.outcome.clone())
    }

    /// Waits until `answer` answers; a failed hash ends every wait.
    fn wait_for<T>(&self, answer: impl Fn(&Hashes) -> Option<Result<T, String>>) -> Result<T, String> {
        let mut hashes = self.hashes();
        loop {
            if let Some(answer) = answer(&hashes) {
                return answer;
            }
            if let Some(Err(reason)) = &hashes.outcome {
                return Err(reason.clone());
            }
            hashes = self.more.wait(hashes).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn hashes(&self) -> MutexGuard<'_, Hashes> {
        self.hashes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a part chunk by chunk.
pub struct PartReader {
    source: OpenSource,
    bytes: u64,
    offset: u64,
}

enum OpenSource {
    Memory(Bytes),
    File(File),
}

impl PartReader {
    /// Begins at the first chunk.
    pub fn open(part: &CheckpointPart) -> io::Result<PartReader> {
        let source = match &part.source {
            PartSource::Memory(bytes) => OpenSource::Memory(bytes.clone()),
            PartSource::File { path, .. } => OpenSource::File(open_regular(path)?),
        };
        Ok(PartReader { source, bytes: part.bytes(), offset: 0 })
    }

    /// The next chunk; `None` after the last.
    pub fn next(&mut self) -> io::Result<Option<Bytes>> {
        let length = (self.bytes - self.offset).min(CHUNK_BYTES as u64);
        if length == 0 {
            return self.check_length().map(|()| None);
        }
        let start = self.offset;
        self.offset += length;
        // A chunk has at most 4 MiB, and memory holds what it holds: both lengths fit.
        let (from, to) = (start as usize, self.offset as usize);
        match &self.source {
            OpenSource::Memory(bytes) => Ok(Some(bytes.slice(from..to))),
            OpenSource::File(file) => {
                let mut chunk = vec![0; to - from];
                file.read_exact_at(&mut chunk, start)?;
                Ok(Some(chunk.into()))
            }
        }
    }

    /// Refuses a file that another program has written on.
    fn check_length(&self) -> io::Result<()> {
        match &self.source {
            OpenSource::File(file) if file.metadata()?.len() != self.bytes => {
                Err(io::Error::other("it changed while it was saved"))
            }
            _ => Ok(()),
        }
    }
}
