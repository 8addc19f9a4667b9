//! Lines of the log that were acknowledged and are missing from the journal.
//!
//! The journal crate finds a loss when it opens the journal. From then on no lease is granted, parked or resumed and no
//! unleased process is signalled, because a lease may be among what was lost: its program looks like one without a
//! lease. Releases, expiries and reads go on. An operator accepts the loss, which is a line of the log, or puts a backup
//! back.

use serde::{Deserialize, Serialize};

/// What is known about lines that are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Loss {
    /// The journal ends before the last line that was noted beside it.
    Missing {
        /// How many lines are missing at least.
        lines: u64,
        /// The last line that is there; 0 if there is none.
        after: u64,
        /// When that line was written, in µs since 1970.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since_wall_us: Option<u64>,
        /// When the last line that is known to be missing was written, in µs since 1970.
        until_wall_us: u64,
    },
    /// The journal has another line than the one that was noted: it is another journal, or was rewritten.
    Other {
        /// The number of that line.
        line: u64,
        /// When the line that was noted was written, in µs since 1970.
        wall_us: u64,
    },
    /// What was noted cannot be read, so that missing lines could not be seen.
    Unknown,
}

impl Loss {
    /// This loss together with an older one that was not accepted yet.
    #[must_use]
    pub fn after(self, older: Option<Loss>) -> Loss {
        match (older, self) {
            (
                Some(Loss::Missing { lines, after, since_wall_us, .. }),
                Loss::Missing { lines: more, until_wall_us, .. },
            ) => Loss::Missing { lines: lines.saturating_add(more), after, since_wall_us, until_wall_us },
            (_, newer) => newer,
        }
    }
}
