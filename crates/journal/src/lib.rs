//! Durable state: rows, log, audit chain, stored answers.
//!
//! One [`Journal`] writes, over one connection to an SQLite database in the state
//! directory; `lock` keeps it the only one. [`Journal::commit`] writes a [`Batch`] in one
//! transaction: the changed rows, the entries of the log, what became history, and the
//! answers for Idempotency-Keys. When it returns, all of that is on the disk. A start reads
//! the rows and nothing else; the log is history, hash-chained, and [`verify`] checks that
//! folding it gives the rows. The last line is noted beside the database (`head.rs`), so that
//! lines missing at its end are noticed.
//!
//! ```text
//! Open ──close──► Batch ──commit──► journal.db-wal ──checkpoint thread──► journal.db
//!                                                                            ▲
//!            Reader, live, verify, backup: their own read-only connections ──┘
//! ```
//!
//! Absent on purpose: deciding anything, clocks (times arrive with the batch), readings of
//! cards, retries, and any undo of a failed commit. Whoever got a [`CommitError`] drops its
//! state and takes what [`Journal::reload`] finds, or exits where that says so.

mod above;
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
mod owner;
mod place;
mod read;
mod schema;
mod trim;
mod verify;

pub use above::{Exposed, exposed_above};
pub use answers::AnswerLimits;
pub use backup::backup;
pub use batch::{Batch, Entry, Open, StoredAnswer};
pub use chain::Hash;
pub use error::{Cause, CommitError, OpenError};
pub use head::{Alarm, Beside};
// For the fuzz target, which folds lines that no chain would let through.
#[doc(hidden)]
pub use fold::step as fold_line;
pub use journal::Journal;
pub use place::BALLAST_BYTES;
pub use read::{Loaded, LogLine, Reader, live};
pub use trim::{Forgotten, TRIM_EVERY};
pub use verify::{Report, verify};
