//! The register: chains of numbered entries, each of which is created once.
//!
//! Everything that must not happen twice is decided here, by one rule: entry n + 1 of a chain can be
//! created once, and only after entry n. A fence is issued, a version is committed and an effect is
//! completed by creating an entry. All else in this crate is content beside it.
//!
//! ```text
//! chain c/models/job:7   1 opened ─ 2 saved ─ 3 saved ─ 4 opened ─ 5 saved ─ …
//!                                                        ▲
//!                    a stale writer that creates 4 or 5 loses to the entry that is there
//! ```
//!
//! [`contract`] is the test suite that every register passes.
//!
//! Absent on purpose: what an entry means, and clocks. A daemon keeps registers for programs without a local disk; the
//! library that calls it has the implementation for them.

pub mod contract;
mod disk_state;
mod file_identity;
mod file_system;
mod memory;
#[cfg(feature = "object-store")]
mod object;
mod reserve;
mod sqlite;

pub use file_system::{FileSystem, file_system_of};
pub use memory::MemoryRegister;
#[cfg(feature = "object-store")]
pub use object::ObjectRegister;
pub use sqlite::{EntryPage, SqliteRegister};

use crate::names::ChainName;
use std::path::PathBuf;

/// The largest entry that every register takes.
pub const ENTRY_BYTES_MAX: usize = 1 << 20;

/// Chains of numbered entries. Implementations are linearizable: what one process created, every other one sees.
pub trait ChainRegister: Send + Sync {
    /// Creates an entry, durably, if its number is the next one of the chain.
    ///
    /// An error other than [`RegisterError::Unavailable`] means that nothing was created. After
    /// `Unavailable` the entry may exist: read it back, and compare what makes it unique.
    fn create(&self, chain: &ChainName, number: u64, entry: &[u8]) -> Result<Creation, RegisterError>;

    /// Creates the entry after this one, if the chain has this one. If it has another one of that number, or none, this
    /// is [`RegisterError::Replaced`]: an older copy of the register was put back, and its chain may have grown again.
    ///
    /// A register that can compare and create in one transaction does so. Without that, an older copy that is put back
    /// between the two is noticed by the next call.
    fn create_after(&self, chain: &ChainName, before: &NumberedEntry, entry: &[u8]) -> Result<Creation, RegisterError> {
        match self.read(chain, before.number, 1)?.first() {
            Some(found) if found == before => self.create(chain, before.number + 1, entry),
            // Entries were dropped after a snapshot, so the chain has gone on.
            Some(found) if found.number > before.number => Ok(Creation::Taken),
            _ => Err(RegisterError::Replaced { chain: chain.clone(), number: before.number }),
        }
    }

    /// At most `limit` entries from this number on, in order. Entries that were forgotten are left out.
    fn read(&self, chain: &ChainName, from: u64, limit: usize) -> Result<Vec<NumberedEntry>, RegisterError>;

    /// The number of the newest entry; 0 if the chain has none.
    fn last(&self, chain: &ChainName) -> Result<u64, RegisterError>;

    /// Drops the bytes of entries below this number. The newest entry always stays, and no number is free again.
    fn forget_before(&self, chain: &ChainName, number: u64) -> Result<(), RegisterError>;

    /// All chains, by name.
    fn chains(&self) -> Result<Vec<ChainName>, RegisterError>;
}

/// What became of an attempt to create an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// The entry is there now, and it is this one.
    New,
    /// An entry of this number is, or was, there already.
    Taken,
}

/// One entry of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberedEntry {
    /// Its number.
    pub number: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// The register refused, or could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The register could not be reached, or broke off. An entry may have been created.
    #[error("the register of checkpoints cannot be reached: {reason}")]
    Unavailable {
        /// What happened.
        reason: String,
    },
    /// The entry before the wanted one does not exist.
    #[error("entry {number} of chain `{chain}` cannot be created: its last entry is {last}")]
    OutOfOrder {
        /// The chain.
        chain: ChainName,
        /// The number of the call.
        number: u64,
        /// The newest entry.
        last: u64,
    },
    /// The entry before the wanted one is not the one that the call names. Nothing was created.
    #[error(
        "entry {number} of chain `{chain}` is not the one that this process read: an older copy of the register was put back"
    )]
    Replaced {
        /// The chain.
        chain: ChainName,
        /// The number of the entry.
        number: u64,
    },
    /// The entry is too large.
    #[error("an entry of {bytes} bytes is too large for the register: it takes at most {most}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The most that is taken.
        most: usize,
    },
    /// The disk or the quota is full. Nothing was created.
    #[error("the register of checkpoints has no room: {reason}")]
    Full {
        /// What is full.
        reason: String,
    },
    /// A register's file lies on a disk that is mounted read-only. Nothing was created.
    #[error("the register `{}` is on a disk that is mounted read-only", path.display())]
    ReadOnly {
        /// The register's file.
        path: PathBuf,
    },
    /// A register file lies on a file system that several machines write.
    #[error("`{}` is on {kind}, where a register is not safe", path.display())]
    NotLocal {
        /// The register's file.
        path: PathBuf,
        /// The file system, for people.
        kind: String,
    },
    /// The register holds something that it did not write.
    #[error("the register of checkpoints is damaged: {reason}")]
    Damaged {
        /// What is wrong.
        reason: String,
    },
    /// The service that keeps the register refused the call. Nothing was created.
    #[error("the register of checkpoints refused: {reason}")]
    Refused {
        /// What it said.
        reason: String,
    },
    /// The store breaks the register's one rule.
    #[error("the store cannot be a register: {reason}")]
    Unfit {
        /// What was tried, and what happened.
        reason: String,
    },
}

impl RegisterError {
    /// A word for programs; it never changes.
    pub fn code(&self) -> &'static str {
        match self {
            RegisterError::Unavailable { .. } => "register_unavailable",
            RegisterError::OutOfOrder { .. } => "register_out_of_order",
            RegisterError::Replaced { .. } => "register_replaced",
            RegisterError::TooLarge { .. } => "register_entry_too_large",
            RegisterError::Full { .. } => "register_full",
            RegisterError::ReadOnly { .. } => "register_read_only",
            RegisterError::NotLocal { .. } => "register_not_local",
            RegisterError::Damaged { .. } => "register_damaged",
            RegisterError::Refused { .. } => "register_refused",
            RegisterError::Unfit { .. } => "register_unfit",
        }
    }

    /// What to do next, as a sentence.
    pub fn remedy(&self) -> &'static str {
        match self {
            RegisterError::Unavailable { .. } => {
                "nothing is known to be saved: when the register answers again, open the name and load the newest version"
            }
            RegisterError::OutOfOrder { .. } => "open the name again; the program's view of it is not the register's",
            RegisterError::Replaced { .. } => {
                "stop all programs of this store and start them again: they go on from the newest version of the register"
            }
            RegisterError::TooLarge { .. } => "save large results as a checkpoint",
            RegisterError::Full { .. } => {
                "make room for the register, such as with `sublet checkpoint rm NAME VERSION`, then try again"
            }
            RegisterError::ReadOnly { .. } => {
                "mount the disk for writing; Linux makes a disk read-only after a fault, which `dmesg` shows"
            }
            RegisterError::NotLocal { .. } => {
                "put the register on a local disk, let the daemon keep it (`register = \"daemon\"` in the file that \
                 SUBLET_CHECKPOINTS names) or put it into an object store (`register = \"s3://…\"`); \
                 the replicas may stay where they are"
            }
            RegisterError::Damaged { .. } => "`sublet checkpoint rebuild` makes a new register from the replicas",
            RegisterError::Refused { .. } => "correct what it named, such as the token or the name of the register",
            RegisterError::Unfit { .. } => {
                "use a store with conditional create (`If-None-Match: *`), or put the register on a local disk"
            }
        }
    }
}
