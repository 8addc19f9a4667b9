//! Where things lie in the directory of one checkpoint on one replica.
//!
//! ```text
//! REPLICA/RESOURCE/NAME/
//!     000041/                     a committed version: its parts, sublet.json, _SUCCESS
//!     000042/
//!     latest -> 000042
//!     .prepared-000043-f3-NONCE/  written and synced, not yet committed
//!     .repaired-000041-f3-NONCE/  a copy from another replica, not yet in its place
//!     .removed-000040-f3-NONCE/   pruned, being deleted
//!     found-000042-NONCE/         was in the place of a version, and is none: it is kept, and never read
//! ```
//!
//! In an object store no directory can be renamed. There a version is written where it stays, and its `_SUCCESS` makes
//! it a version:
//!
//! ```text
//! PREFIX/RESOURCE/NAME/
//!     000041-r3-NONCE/            committed; a copy from another replica
//!     000042-f2-NONCE/            committed, as its writer wrote it
//!     000043-f3-NONCE/            without _SUCCESS: not committed, or being deleted
//!     latest                      holds `000042-f2-NONCE`
//! ```
//!
//! Names that begin with a dot are Sublet's own. A name is never an argument of a user: users' names
//! are escaped.

use crate::names::{FenceEpoch, Version};
use crate::nonce::Nonce;
use std::fmt;

/// The link to the newest published version.
pub const LATEST: &str = "latest";

/// A directory that is on its way to become a version, or on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staging {
    /// Why it is there.
    pub kind: StagingKind,
    /// The version.
    pub version: Version,
    /// The fence of the process that made it.
    pub fence: FenceEpoch,
    /// Which attempt made it.
    pub nonce: Nonce,
}

/// Why a directory is not a version yet, or no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StagingKind {
    /// A version that is not committed as far as its writer knew.
    Prepared,
    /// A copy of a committed version.
    Repaired,
    /// What is being deleted.
    Removed,
}

impl StagingKind {
    const ALL: [StagingKind; 3] = [StagingKind::Prepared, StagingKind::Repaired, StagingKind::Removed];

    fn word(self) -> &'static str {
        match self {
            StagingKind::Prepared => "prepared",
            StagingKind::Repaired => "repaired",
            StagingKind::Removed => "removed",
        }
    }
}

impl Staging {
    /// The name of its directory in an object store, where it keeps that name as a version.
    pub fn copy_name(&self) -> String {
        let letter = match self.kind {
            StagingKind::Repaired => 'r',
            StagingKind::Prepared | StagingKind::Removed => 'f',
        };
        format!("{}-{letter}{}-{}", self.version.directory(), self.fence, self.nonce)
    }
}

/// The copy that a directory in an object store is; `None` if it is none.
pub fn parse_copy(name: &str) -> Option<Staging> {
    let mut words = name.split('-');
    let version = Version(words.next()?.parse().ok()?);
    let fence = words.next()?;
    let kind = match fence.chars().next()? {
        'f' => StagingKind::Prepared,
        'r' => StagingKind::Repaired,
        _ => return None,
    };
    let (fence, nonce) = (FenceEpoch(fence[1..].parse().ok()?), words.next()?.parse().ok()?);
    Some(Staging { kind, version, fence, nonce }).filter(|copy| copy.copy_name() == name)
}

impl fmt::Display for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Staging { kind, version, fence, nonce } = self;
        write!(f, ".{}-{}-f{fence}-{nonce}", kind.word(), version.directory())
    }
}

/// A name in the directory of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomeEntry {
    /// A version.
    Version(Version),
    /// A directory on its way.
    Staging(Staging),
    /// A link that was about to become `latest`.
    UnusedLink,
    /// `latest`, or something that Sublet did not make.
    Other,
}

/// The name of a link that is about to become `latest`.
pub fn unused_link(nonce: Nonce) -> String {
    format!(".{LATEST}-{nonce}")
}

/// The name of something that was in the place of a version.
pub fn found(version: Version, nonce: Nonce) -> String {
    format!("found-{}-{nonce}", version.directory())
}

/// What a name in the directory of a checkpoint stands for.
pub fn parse(name: &str) -> HomeEntry {
    let Some(hidden) = name.strip_prefix('.') else {
        let is_number = name.len() >= 6 && name.bytes().all(|byte| byte.is_ascii_digit());
        let version = name.parse().map(Version).ok().filter(|version| version.directory() == name);
        return version.filter(|_| is_number).map_or(HomeEntry::Other, HomeEntry::Version);
    };
    if hidden.starts_with("latest-") {
        return HomeEntry::UnusedLink;
    }
    staging(hidden).map_or(HomeEntry::Other, HomeEntry::Staging)
}

fn staging(hidden: &str) -> Option<Staging> {
    let mut words = hidden.split('-');
    let kind = words.next()?;
    let kind = StagingKind::ALL.into_iter().find(|candidate| candidate.word() == kind)?;
    let version = Version(words.next()?.parse().ok()?);
    let fence = FenceEpoch(words.next()?.strip_prefix('f')?.parse().ok()?);
    let nonce = words.next()?.parse().ok()?;
    words.next().is_none().then_some(Staging { kind, version, fence, nonce })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_recognised() {
        let nonce = Nonce::draw().expect("a nonce");
        for kind in StagingKind::ALL {
            let staging = Staging { kind, version: Version(43), fence: FenceEpoch(3), nonce };
            assert_eq!(parse(&staging.to_string()), HomeEntry::Staging(staging));
        }
        assert_eq!(parse("000042"), HomeEntry::Version(Version(42)));
        assert_eq!(parse("1234567"), HomeEntry::Version(Version(1_234_567)));
        assert_eq!(parse(&unused_link(nonce)), HomeEntry::UnusedLink);
        for kind in [StagingKind::Prepared, StagingKind::Repaired] {
            let copy = Staging { kind, version: Version(43), fence: FenceEpoch(3), nonce };
            assert_eq!(parse_copy(&copy.copy_name()), Some(copy));
        }
        for other in ["latest", "000042", "000042-f3", "42-f3-0", ".prepared-000042-f3-0"] {
            assert_eq!(parse_copy(other), None, "{other}");
        }
        for other in ["latest", "42", "0000042", "000042x", "notes.txt", ".prepared-x", ".hidden"] {
            assert_eq!(parse(other), HomeEntry::Other, "{other}");
        }
    }
}
