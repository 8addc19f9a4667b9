//! The hash chain of the log: each entry's hash covers the one before it.
//!
//! It shows an entry that was changed, moved or cut out. It does not show that a user with write access
//! to the file rewrote all of it; for that, the head is also sent elsewhere (the system's log).

use std::str;
use sublet_core::units::Time;

/// A link of the chain. The hash before the first entry is all zeros.
pub type Hash = [u8; 32];

/// The fields of an entry before its action.
#[derive(Clone, Copy, Debug)]
pub struct EntryHeader<'a> {
    /// The hash of the entry before it.
    pub before: &'a Hash,
    /// Its number.
    pub seq: u64,
    /// When.
    pub at: Time,
    /// When, for people.
    pub wall_us: u64,
    /// What caused it: a tenant's name, or a part of the daemon.
    pub actor: &'a str,
    /// How to read its action.
    pub format: u32,
}

/// Hashes one entry after the other in one buffer.
#[derive(Debug, Default)]
pub struct Hasher {
    buffer: Vec<u8>,
}

impl Hasher {
    /// Returns the hash of an entry and the JSON of its action, which `write` appends.
    pub fn entry(
        &mut self,
        head: EntryHeader<'_>,
        write: impl FnOnce(&mut Vec<u8>) -> serde_json::Result<()>,
    ) -> serde_json::Result<(Hash, &str)> {
        let buffer = &mut self.buffer;
        buffer.clear();
        buffer.extend_from_slice(head.before);
        buffer.extend_from_slice(&head.seq.to_le_bytes());
        buffer.extend_from_slice(&head.at.0.to_le_bytes());
        buffer.extend_from_slice(&head.wall_us.to_le_bytes());
        buffer.extend_from_slice(&(head.actor.len() as u64).to_le_bytes());
        buffer.extend_from_slice(head.actor.as_bytes());
        buffer.extend_from_slice(&head.format.to_le_bytes());
        let length_at = buffer.len();
        buffer.extend_from_slice(&[0; 8]);
        let json_at = buffer.len();
        write(buffer)?;
        let length = ((buffer.len() - json_at) as u64).to_le_bytes();
        buffer[length_at..json_at].copy_from_slice(&length);
        let hash = *blake3::hash(buffer).as_bytes();
        let json = str::from_utf8(&buffer[json_at..]).map_err(serde::ser::Error::custom)?;
        Ok((hash, json))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(head: EntryHeader<'_>, json: &str) -> Hash {
        let write = |buffer: &mut Vec<u8>| {
            buffer.extend_from_slice(json.as_bytes());
            Ok(())
        };
        Hasher::default().entry(head, write).unwrap().0
    }

    #[test]
    fn every_field_changes_the_hash_and_field_boundaries_count() {
        let head = EntryHeader { before: &[0; 32], seq: 1, at: Time(2), wall_us: 3, actor: "ab", format: 1 };
        let all = [
            hash(head, "{}"),
            hash(EntryHeader { before: &[1; 32], ..head }, "{}"),
            hash(EntryHeader { seq: 2, ..head }, "{}"),
            hash(EntryHeader { at: Time(3), ..head }, "{}"),
            hash(EntryHeader { wall_us: 4, ..head }, "{}"),
            hash(EntryHeader { actor: "abc", ..head }, "{}"),
            hash(EntryHeader { format: 2, ..head }, "{}"),
            hash(head, "{ }"),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b), "hash {i} is not its own");
        }
        assert_eq!(all[0], hash(head, "{}"));
    }
}
