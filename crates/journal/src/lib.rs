//! Durable state: rows, log, audit chain, stored answers.
//!
//! One [`Journal`] writes, over one connection to an SQLite database in the state
//! directory; `lock` keeps it the only one. [`Journal::commit`] writes a [`Batch`] in one
//! transaction: the changed rows, the entries of the log, the leases that ended, and the
//! answers for Idempotency-Keys. When it returns, all of that is on the disk. A start of the daemon
//! reads only the rows. The log is a hash-chained history, and [`verify`] checks that folding it
//! gives the rows. The number of the last line is also stored beside the database (`head.rs`), so that
//! lines missing at the end of the log are noticed.
//!
//! ```text
//! OpenBatch ──close──► Batch ──commit──► journal.db-wal ──checkpoint thread──► journal.db
//!                                                                                 ▲
//!                JournalReader, verify, backup: their own read-only connections ──┘
//! ```
//!
//! Absent on purpose: decisions, clocks (times arrive with the batch), readings of GPUs, retries,
//! and any undo of a failed commit. After a [`CommitError`] the caller drops its state and takes the
//! one that [`Journal::reload`] returns; after [`CommitError::Sync`] it exits.

mod answers;
mod backup;
mod batch;
mod chain;
mod checkpoint;
mod codec;
mod connect;
mod cut;
mod error;
mod fold;
mod head;
mod journal;
mod line_owner;
mod path_trust;
mod read;
mod schema;
mod state_dir;
mod trim;
mod verify;

pub use answers::AnswerLimits;
pub use backup::backup;
pub use batch::{Batch, LogEntry, OpenBatch, StoredAnswer};
pub use chain::Hash;
pub use error::{CommitError, OpenError, SystemCause};
pub use head::{Alarm, HeadComparison};
pub use path_trust::{Exposed, exposed_above};
// For the fuzz target, which folds lines that no chain would let through.
#[doc(hidden)]
pub use fold::fold_line;
pub use journal::Journal;
pub use read::{JournalReader, LoadedState, LogLine, read_state};
pub use state_dir::BALLAST_BYTES;
pub use trim::{Forgotten, TRIM_EVERY};
pub use verify::{VerifyReport, verify};
