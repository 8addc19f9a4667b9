//! The key beside the journal, and the proofs that are made with it: for each grant one that only this daemon can make.
//!
//! A proof goes to the user that requested the lease, in answers and nowhere else: not into the log, the events, a
//! stored answer or another user's view. So it is added to an answer on the way out (`http/leases.rs`), and the loop,
//! which writes all the others, never has it except for reading processes.

use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use sublet_core::ids::{Fence, LeaseId};
use sublet_host::proof::{self, Grant, LeaseProof};
use sublet_wire as wire;

/// The file in the state directory.
const NAME: &str = "marks.key";
const KEY_BYTES: usize = 32;

/// Makes proofs.
#[derive(Clone)]
pub struct LeaseProofs {
    key: [u8; KEY_BYTES],
}

impl LeaseProofs {
    /// Opens the key. Where there is none, or one that other users could read, a new one is written to the disk first.
    pub fn open(dir: &Path) -> io::Result<LeaseProofs> {
        let key = match read(&dir.join(NAME))? {
            Some(key) => key,
            None => make(dir)?,
        };
        Ok(LeaseProofs::with_key(key))
    }

    /// Makes proofs with this key.
    pub fn with_key(key: [u8; KEY_BYTES]) -> LeaseProofs {
        LeaseProofs { key }
    }

    /// The proof that the programs of a lease carry.
    pub fn grant(&self, lease: LeaseId, epoch: Fence) -> Grant {
        let hash = blake3::keyed_hash(&self.key, format!("{lease} {epoch}").as_bytes());
        let mut bytes = [0; proof::BYTES];
        bytes.copy_from_slice(&hash.as_bytes()[..proof::BYTES]);
        Grant { epoch, proof: LeaseProof(bytes) }
    }

    /// Adds the proof to a granted lease, if `tenant` requested it.
    pub fn add_to(&self, lease: &mut wire::Lease, tenant: &str) {
        if let (Some(fence), Ok(id)) = (lease.fence, lease.id.parse())
            && lease.tenant == tenant
            && lease.ended.is_none()
        {
            lease.proof = Some(self.grant(id, Fence(fence)).proof.to_string());
        }
    }
}

/// `None` if there is no key that could be trusted.
fn read(path: &Path) -> io::Result<Option<[u8; KEY_BYTES]>> {
    let nofollow = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let mut file = match OpenOptions::new().read(true).custom_flags(nofollow).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let metadata = file.metadata()?;
    if metadata.permissions().mode() & 0o077 != 0 || metadata.len() != KEY_BYTES as u64 {
        tracing::warn!("the key of proofs was readable by other users, or is damaged: a new one was made");
        return Ok(None);
    }
    let mut key = [0; KEY_BYTES];
    file.read_exact(&mut key)?;
    Ok(Some(key))
}

/// The file is there with all of its key, or not at all.
fn make(dir: &Path) -> io::Result<[u8; KEY_BYTES]> {
    let mut key = [0; KEY_BYTES];
    if getrandom(&mut key, GetRandomFlags::empty())? != KEY_BYTES {
        return Err(io::Error::other("the system gives too few random numbers"));
    }
    let new = dir.join("marks.key.new");
    // Other users may be able to read one that was left over.
    let _ = std::fs::remove_file(&new);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(&key)?;
    file.sync_all()?;
    std::fs::rename(&new, dir.join(NAME))?;
    File::open(dir)?.sync_all()?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};

    fn proof_of(proofs: &LeaseProofs) -> LeaseProof {
        proofs.grant(LeaseId(7), Fence(12)).proof
    }

    #[test]
    fn each_grant_has_its_own_proof_and_keeps_it_over_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let proofs = LeaseProofs::open(dir.path()).unwrap();
        let others = [(71, 2), (7, 13), (8, 12)].map(|(lease, fence)| proofs.grant(LeaseId(lease), Fence(fence)).proof);
        assert!(others.iter().all(|other| *other != proof_of(&proofs)), "{others:?}");
        assert_eq!(proof_of(&LeaseProofs::open(dir.path()).unwrap()), proof_of(&proofs));
        let elsewhere = tempfile::tempdir().unwrap();
        assert_ne!(proof_of(&LeaseProofs::open(elsewhere.path()).unwrap()), proof_of(&proofs));
    }

    #[test]
    fn a_missing_short_or_readable_key_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let begin = || proof_of(&LeaseProofs::open(dir.path()).unwrap());
        let mut known = vec![begin()];
        let mut is_new = |spoil: &dyn Fn()| {
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            spoil();
            assert!(!known.contains(&begin()));
            known.push(begin());
        };
        is_new(&|| fs::remove_file(&path).unwrap());
        is_new(&|| fs::write(&path, b"short").unwrap());
        is_new(&|| fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap());
    }
}
