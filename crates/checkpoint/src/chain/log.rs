//! One chain in the register, and the state that its entries give.
//!
//! Every 1,000 entries a snapshot of the state is appended, and older entries are dropped. Each entry
//! names the newest snapshot, so a start reads the last entry, the snapshot, and what follows it.
//!
//! A call is decided on what was read before, without a new read: the register creates the entry only after the one that
//! was read last. If there is a newer one, the call reads on and decides again. If an older copy of the register was put
//! back, the chain may have grown again with other entries and fences of the same numbers: then the entry before is
//! another one, and nothing is created. A call that appends nothing reads on before it answers.

use super::ChainState;
use crate::error::ReplicatedError;
use crate::names::ChainName;
use crate::nonce::Nonce;
use crate::register::{ChainRegister, Creation, NumberedEntry, RegisterError};
use crate::unix_s;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// The entries between two snapshots.
const SNAPSHOT_EVERY: u64 = 1_000;

/// The entries that one call reads.
const PAGE: usize = 1_000;

/// How often an entry is sent when the register breaks off without an answer.
const ATTEMPTS: usize = 3;

/// What an entry holds, as JSON.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
struct ChainEntry<S: ChainState> {
    /// Which attempt to append wrote it.
    nonce: Nonce,
    /// The writer's clock, for people. Nothing is decided by it.
    unix_s: u64,
    /// The number of the newest snapshot before it; 0 if there is none.
    snapshot: u64,
    content: EntryContent<S>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", bound = "")]
enum EntryContent<S: ChainState> {
    Change(S::Change),
    State(S),
}

/// A chain, and its state as far as it was read.
pub struct ChainLog<S> {
    register: Arc<dyn ChainRegister>,
    chain: ChainName,
    last: u64,
    /// Entry `last`; `None` if it was not read yet.
    last_entry: Option<NumberedEntry>,
    snapshot: u64,
    state: S,
}

/// What a call that was decided without a change answers, or the change to append.
pub enum Decision<C> {
    /// Append this.
    Append(C),
    /// The state answers the call.
    Nothing,
}

/// Whether a call appended an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// An entry was appended.
    Entry,
    /// The state answered the call.
    Nothing,
}

impl<C> From<Option<C>> for Decision<C> {
    fn from(change: Option<C>) -> Decision<C> {
        change.map_or(Decision::Nothing, Decision::Append)
    }
}

impl<S: ChainState> ChainLog<S> {
    /// A chain of which nothing was read yet.
    pub fn new(register: Arc<dyn ChainRegister>, chain: ChainName) -> ChainLog<S> {
        ChainLog { register, chain, last: 0, last_entry: None, snapshot: 0, state: S::default() }
    }

    /// The state as far as it was read.
    pub fn state(&self) -> &S {
        &self.state
    }

    /// Reads what was appended since, and returns the state.
    pub fn refresh(&mut self) -> Result<&S, ReplicatedError> {
        self.read_on(None)?;
        Ok(&self.state)
    }

    /// Appends what `decide` decides on the newest state.
    ///
    /// Returns [`Appended::Entry`] when the entry is durable. An error of `decide` is passed on; then
    /// nothing was appended.
    pub fn append(
        &mut self,
        decide: impl Fn(&S) -> Result<Decision<S::Change>, ReplicatedError>,
    ) -> Result<Appended, ReplicatedError> {
        let mut is_newest = self.last_entry.is_none();
        if is_newest {
            self.read_on(None)?;
        }
        loop {
            match decide(&self.state) {
                Ok(Decision::Append(change)) => {
                    if self.send(EntryContent::Change(change))? {
                        self.append_snapshot_if_due();
                        return Ok(Appended::Entry);
                    }
                    is_newest = true;
                }
                refused_or_nothing if is_newest => return refused_or_nothing.map(|_| Appended::Nothing),
                // What was appended since may change the answer.
                _ => {
                    self.read_on(None)?;
                    is_newest = true;
                }
            }
        }
    }

    /// Creates the next entry. False if another one took its number; then the state has been read anew.
    fn send(&mut self, content: EntryContent<S>) -> Result<bool, ReplicatedError> {
        let nonce =
            Nonce::draw().map_err(|source| ReplicatedError::File { path: PathBuf::from("/dev/urandom"), source })?;
        let line = ChainEntry { nonce, unix_s: unix_s(), snapshot: self.snapshot, content };
        let number = self.last + 1;
        let bytes = serde_json::to_vec(&line).map_err(|error| self.corrupt(number, error))?;
        let mut failure = None;
        for _ in 0..ATTEMPTS {
            match self.create(number, &bytes) {
                Ok(Creation::New) => {
                    self.apply(NumberedEntry { number, bytes }, line.content)?;
                    return Ok(true);
                }
                // After a lost answer, the entry that is in the way may be this very one.
                Ok(Creation::Taken) => {
                    let found = self.read_on(Some(nonce));
                    return found.map_err(|error| failure.map_or(error, ReplicatedError::from));
                }
                Err(error @ RegisterError::Unavailable { .. }) => failure = Some(error),
                // Nothing was created now, and what became of the attempt before is still not known.
                Err(_) if failure.is_some() => break,
                Err(error) => return Err(error.into()),
            }
        }
        Err(failure.map_or_else(|| self.corrupt(number, "it was never sent"), ReplicatedError::from))
    }

    fn create(&self, number: u64, bytes: &[u8]) -> Result<Creation, RegisterError> {
        match &self.last_entry {
            Some(last) => self.register.create_after(&self.chain, last, bytes),
            None => self.register.create(&self.chain, number, bytes),
        }
    }

    /// Reads what was appended since. True if an entry with this nonce is among it.
    fn read_on(&mut self, own: Option<Nonce>) -> Result<bool, ReplicatedError> {
        let mut found = false;
        let mut gaps = 0;
        if self.last == 0 {
            self.find_snapshot()?;
        }
        loop {
            let from = if self.last_entry.is_some() { self.last } else { self.last + 1 };
            let mut entries = self.register.read(&self.chain, from, PAGE)?;
            let is_last_page = entries.len() < PAGE;
            self.take_known_entry(&mut entries)?;
            if entries.first().is_some_and(|entry| entry.number != self.last + 1) {
                // What comes next was dropped after a snapshot, by another process just now.
                gaps += 1;
                if gaps > ATTEMPTS {
                    return Err(self.corrupt(self.last + 1, "it is missing"));
                }
                self.find_snapshot()?;
                continue;
            }
            for entry in entries {
                let line = self.parse(&entry)?;
                found |= own == Some(line.nonce);
                self.apply(entry, line.content)?;
            }
            if is_last_page {
                return Ok(found);
            }
        }
    }

    /// Takes the entry that was read last from the first of these. An error if it is another one, or is missing.
    fn take_known_entry(&self, entries: &mut Vec<NumberedEntry>) -> Result<(), ReplicatedError> {
        let Some(last) = &self.last_entry else { return Ok(()) };
        match entries.first() {
            Some(entry) if entry == last => {
                entries.remove(0);
                Ok(())
            }
            // It was dropped after a snapshot.
            Some(entry) if entry.number > last.number => Ok(()),
            _ => Err(RegisterError::Replaced { chain: self.chain.clone(), number: last.number }.into()),
        }
    }

    /// Moves to just before the newest snapshot, or to the start of the chain.
    fn find_snapshot(&mut self) -> Result<(), ReplicatedError> {
        let newest = self.register.last(&self.chain)?;
        let entry = self.register.read(&self.chain, newest.max(1), 1)?.into_iter().next();
        let snapshot = match entry {
            None => 0,
            Some(entry) => match self.parse(&entry)? {
                ChainEntry { content: EntryContent::State(_), .. } => entry.number,
                line => line.snapshot,
            },
        };
        self.state = S::default();
        self.last = snapshot.saturating_sub(1);
        self.last_entry = None;
        self.snapshot = snapshot;
        Ok(())
    }

    fn apply(&mut self, entry: NumberedEntry, content: EntryContent<S>) -> Result<(), ReplicatedError> {
        let number = entry.number;
        match content {
            EntryContent::Change(change) => {
                if let Err(why) = self.state.apply(number, &change) {
                    // Half an entry may have been applied: the next call reads the chain anew.
                    (self.last, self.last_entry) = (0, None);
                    self.state = S::default();
                    return Err(self.corrupt(number, why));
                }
            }
            EntryContent::State(state) => {
                self.state = state;
                self.snapshot = number;
            }
        }
        (self.last, self.last_entry) = (number, Some(entry));
        Ok(())
    }

    /// Bounds what a start has to read. Failing is harmless: the next entry tries again.
    fn append_snapshot_if_due(&mut self) {
        if self.last < self.snapshot + SNAPSHOT_EVERY {
            return;
        }
        let state = self.state.clone();
        if let Ok(true) = self.send(EntryContent::State(state)) {
            let _ = self.register.forget_before(&self.chain, self.snapshot);
        }
    }

    fn parse(&self, entry: &NumberedEntry) -> Result<ChainEntry<S>, ReplicatedError> {
        serde_json::from_slice(&entry.bytes).map_err(|error| self.corrupt(entry.number, error))
    }

    fn corrupt(&self, number: u64, reason: impl ToString) -> ReplicatedError {
        ReplicatedError::Corrupt { chain: self.chain.to_string(), number, reason: reason.to_string() }
    }
}

/// The chains of one kind that a program uses, each with what was read of it.
pub struct ChainLogs<S> {
    register: Arc<dyn ChainRegister>,
    logs: Mutex<BTreeMap<ChainName, Arc<Mutex<ChainLog<S>>>>>,
}

impl<S: ChainState> ChainLogs<S> {
    /// The chains of this register; none is read yet.
    pub fn new(register: Arc<dyn ChainRegister>) -> ChainLogs<S> {
        ChainLogs { register, logs: Mutex::default() }
    }

    /// Calls with one chain; other threads that need the same chain wait.
    pub fn with<T>(&self, chain: ChainName, call: impl FnOnce(&mut ChainLog<S>) -> T) -> T {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let log = logs
            .entry(chain.clone())
            .or_insert_with(|| Arc::new(Mutex::new(ChainLog::new(Arc::clone(&self.register), chain))));
        let log = Arc::clone(log);
        drop(logs);
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        call(&mut log)
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
