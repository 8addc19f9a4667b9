//! Ended leases and log lines, read from the journal beside the loop, by a few callers at a time.

use crate::fair_limiter::FairLimiter;
use std::sync::{Arc, Mutex, PoisonError};
use sublet_journal::{Journal, JournalReader, OpenError};

/// Reads at a time: more would only wait for the same disk.
const READERS: usize = 4;
/// Reads of one tenant at a time.
const READERS_EACH: usize = 2;

/// Reads the history of callers.
#[derive(Clone)]
pub struct History {
    /// As many as there are permits, so that a caller with a permit finds one.
    readers: Arc<Mutex<Vec<JournalReader>>>,
    turns: FairLimiter,
}

impl History {
    /// Opens the history of this journal.
    pub fn of(journal: &Journal) -> Result<History, OpenError> {
        let readers = (0..READERS).map(|_| journal.reader()).collect::<Result<Vec<JournalReader>, OpenError>>()?;
        Ok(History { readers: Arc::new(Mutex::new(readers)), turns: FairLimiter::new(READERS, READERS_EACH) })
    }

    /// Reads for a caller when it has a permit; `None` if the daemon stops meanwhile.
    pub async fn read<T: Send + 'static>(
        &self,
        who: &str,
        read: impl FnOnce(&JournalReader) -> Result<T, OpenError> + Send + 'static,
    ) -> Option<Result<T, OpenError>> {
        let readers = Arc::clone(&self.readers);
        let work = move || {
            let reader = readers.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            let found = read(&reader);
            readers.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
            Some(found)
        };
        self.turns.run(who, work).await.flatten()
    }
}
