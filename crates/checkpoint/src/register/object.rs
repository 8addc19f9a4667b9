//! A register in an object store that creates an object only if it does not exist.
//!
//! ```text
//! PREFIX/.register/chains/c!models!job:7/00000000000000000001     forgotten: a tombstone
//!                                        00000000000000000002     an entry
//!                                        00000000000000000003     the newest
//! PREFIX/.register/self-test/NONCE                                during the self-test
//! ```
//!
//! One object per entry. `If-None-Match: *` decides which of several writers makes it. Entry n + 1 is only sent when
//! entry n was seen, and no object is ever deleted, so the numbers of a chain have no gaps. So the newest entry is
//! found by looking at single numbers: one request if the last one seen is still the newest, and about 2 log2(n) for a
//! process that has seen none of n entries. Nothing is listed for that, and listings may be late. A process that has seen
//! none also lists what follows the end that it found: an entry there means that one before it is missing.
//!
//! **A lost answer.** A request that timed out may have made the object, and then every retry is told that the object
//! exists. So each call writes a nonce into its object. When the object is in the way, the call reads it: with its own
//! nonce the call has won, with another one it has lost. If nothing is there, another request was under way (409), and
//! the call tries again. The entries of [`ChainLog`](crate::chain::log::ChainLog) have a nonce of their own, which
//! tells the same of calls that failed altogether.
//!
//! **The self-test** makes 32 concurrent creates of one new object, and refuses a store in which more or fewer than one
//! wins. No entry is created before it has passed.
//!
//! **Costs.** The self-test: 33 writes and at most 31 reads. A new entry: one read, of the entry before, and one write.
//! Asking for news: two reads. A forgotten entry: one read and one write.
//!
//! Absent on purpose: deleting. A rule of the bucket that deletes old objects destroys the register; what it deletes is
//! missed at the next start, unless it is the newest entry.

use super::{ChainRegister, Creation, ENTRY_BYTES_MAX, NumberedEntry, RegisterError};
use crate::names::ChainName;
use crate::nonce::Nonce;
use crate::object::{ObjectBucket, ObjectError, PendingCall};
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode, PutOptions};
use std::collections::BTreeMap;
use std::str;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Marks an object as one of a register, with the release of its form.
const MAGIC: &str = "sublet-register 1";

/// The longest first line of an object.
const HEADER_BYTES_MAX: usize = 128;

/// What stands for `/` in a chain's name. No chain's name has it.
const SEPARATOR: &str = "!";

/// Creates of one key at once in the self-test.
const SELF_TEST_CREATES: usize = 32;

/// Requests that are under way at once.
const REQUESTS_AT_ONCE: u64 = 16;

/// The pauses between attempts to create one object: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(1_000)];

/// Chains in an object store.
#[derive(Debug)]
pub struct ObjectRegister {
    bucket: ObjectBucket,
    root: Path,
    /// True when the self-test has passed.
    is_fit: Mutex<bool>,
    /// The newest entry that was seen of each chain. Newer ones may exist, and none of these can vanish.
    seen: Mutex<BTreeMap<ChainName, u64>>,
}

/// What an object of a chain holds.
#[derive(Debug, PartialEq, Eq)]
enum StoredEntry {
    Entry {
        nonce: Nonce,
        bytes: Vec<u8>,
    },
    /// The entry was forgotten, together with all below this number.
    Forgotten {
        before: u64,
    },
}

/// What became of one object that was to be created.
#[derive(Debug)]
enum CreatedObject {
    New,
    Taken,
    /// The store says that the object exists, and it does not.
    Contradiction,
}

impl ObjectRegister {
    /// Opens the register under a prefix of a bucket.
    ///
    /// A store in which more or fewer than one of 32 concurrent creates of one object wins is [`RegisterError::Unfit`].
    pub fn open(bucket: ObjectBucket, prefix: &str) -> Result<ObjectRegister, RegisterError> {
        let register = ObjectRegister::open_to_look(bucket, prefix);
        register.check_fit()?;
        Ok(register)
    }

    /// Opens the register for a process that mostly reads: the self-test is made before the first entry is created.
    pub fn open_to_look(bucket: ObjectBucket, prefix: &str) -> ObjectRegister {
        let root = prefix.split('/').filter(|component| !component.is_empty()).chain([".register"]).collect();
        ObjectRegister { bucket, root, is_fit: Mutex::default(), seen: Mutex::default() }
    }

    /// Makes the self-test, unless it has passed.
    fn check_fit(&self) -> Result<(), RegisterError> {
        let mut is_fit = self.is_fit.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_fit {
            self.self_test()?;
            *is_fit = true;
        }
        Ok(())
    }

    fn self_test(&self) -> Result<(), RegisterError> {
        let key = self.root.clone().join("self-test").join(self.draw()?.to_string());
        let outcomes: Vec<Result<CreatedObject, RegisterError>> = thread::scope(|scope| {
            let creates: Vec<_> =
                (0..SELF_TEST_CREATES).map(|_| scope.spawn(|| self.create_object(&key, b"self-test"))).collect();
            let broken = || Err(self.unavailable("the self-test broke off"));
            creates.into_iter().map(|create| create.join().unwrap_or_else(|_| broken())).collect()
        });
        let removed = key.clone();
        // What is left of it is 70 bytes under a name that is never used again.
        let _ = self.bucket.call(|store| async move { store.delete(&removed).await });
        let (mut winners, mut contradictions) = (0, 0);
        for outcome in outcomes {
            match outcome? {
                CreatedObject::New => winners += 1,
                CreatedObject::Taken => {}
                CreatedObject::Contradiction => contradictions += 1,
            }
        }
        if winners == 1 && contradictions == 0 {
            return Ok(());
        }
        let reason = format!(
            "of {SELF_TEST_CREATES} concurrent creates of one object in {}, {winners} won instead of 1",
            self.place()
        );
        Err(RegisterError::Unfit { reason })
    }

    /// Creates an object with a nonce of its own, and finds out whether this call did it.
    fn create_object(&self, key: &Path, bytes: &[u8]) -> Result<CreatedObject, RegisterError> {
        let nonce = self.draw()?;
        let object = [format!("{MAGIC} entry {nonce}\n").as_bytes(), bytes].concat();
        let deadline = Instant::now() + self.bucket.limit();
        let mut pause = PAUSES[0];
        loop {
            let failure = match self.put(key, object.clone(), PutMode::Create).wait() {
                Ok(()) => return Ok(CreatedObject::New),
                Err(ObjectError::Unsupported(what)) => {
                    let reason = format!("{} has no conditional create: {what}", self.place());
                    return Err(RegisterError::Unfit { reason });
                }
                // After a lost answer, what is in the way may be this very object.
                Err(ObjectError::Exists) => match self.get(key).wait() {
                    Ok(found) => return self.compare(key, &found, nonce),
                    Err(ObjectError::NotFound) => None,
                    Err(error) => Some(error),
                },
                Err(ObjectError::NotFound) => return Err(self.unavailable("the bucket does not exist")),
                Err(error @ ObjectError::Refused(_)) => return Err(self.unavailable(error)),
                Err(error) => Some(error),
            };
            if Instant::now() + pause > deadline {
                return match failure {
                    None => Ok(CreatedObject::Contradiction),
                    Some(error) => Err(self.unavailable(error)),
                };
            }
            thread::sleep(pause);
            pause = (pause * 2).min(PAUSES[1]);
        }
    }

    fn compare(&self, key: &Path, found: &[u8], nonce: Nonce) -> Result<CreatedObject, RegisterError> {
        match self.parse(key, found)? {
            StoredEntry::Entry { nonce: other, .. } if other == nonce => Ok(CreatedObject::New),
            _ => Ok(CreatedObject::Taken),
        }
    }

    /// What is stored under these numbers, in order; `None` where nothing is.
    fn entries(&self, chain: &ChainName, numbers: &[u64]) -> Result<Vec<Option<StoredEntry>>, RegisterError> {
        let mut entries = Vec::new();
        for some in numbers.chunks(REQUESTS_AT_ONCE as usize) {
            let started: Vec<_> = some.iter().map(|number| self.get(&self.key(chain, *number))).collect();
            for (number, call) in some.iter().zip(started) {
                entries.push(match call.wait() {
                    Ok(bytes) => Some(self.parse(&self.key(chain, *number), &bytes)?),
                    Err(ObjectError::NotFound) => None,
                    Err(error) => return Err(self.unavailable(error)),
                });
            }
        }
        Ok(entries)
    }

    fn exists(&self, chain: &ChainName, number: u64) -> Result<bool, RegisterError> {
        let key = self.key(chain, number);
        match self.bucket.call(|store| async move { store.head(&key).await }) {
            Ok(_) => Ok(true),
            Err(ObjectError::NotFound) => Ok(false),
            Err(error) => Err(self.unavailable(error)),
        }
    }

    /// Refuses a chain that has entries after its end: one is missing, and must not be made anew.
    fn check_end(&self, chain: &ChainName, last: u64) -> Result<(), RegisterError> {
        let (prefix, end) = (self.chain_key(chain), self.key(chain, last));
        let listed =
            self.bucket.call(|store| async move { store.list_with_offset(Some(&prefix), &end).try_next().await });
        match listed.map_err(|error| self.unavailable(error))? {
            // A concurrent writer may have made it just now.
            Some(_) if !self.exists(chain, last + 1)? => Err(self.missing(chain, last + 1)),
            _ => Ok(()),
        }
    }

    fn get(&self, key: &Path) -> PendingCall<Vec<u8>> {
        let key = key.clone();
        self.bucket.start(|store| async move { Ok(store.get(&key).await?.bytes().await?.into()) })
    }

    fn put(&self, key: &Path, bytes: Vec<u8>, mode: PutMode) -> PendingCall<()> {
        let key = key.clone();
        let options = PutOptions { mode, ..PutOptions::default() };
        self.bucket.start(|store| async move { store.put_opts(&key, bytes.into(), options).await.map(|_| ()) })
    }

    fn parse(&self, key: &Path, object: &[u8]) -> Result<StoredEntry, RegisterError> {
        let damaged = || RegisterError::Damaged { reason: format!("`{}/{key}` is no entry", self.bucket.url()) };
        let end = object.iter().take(HEADER_BYTES_MAX).position(|byte| *byte == b'\n').ok_or_else(damaged)?;
        let header = str::from_utf8(&object[..end]).ok().and_then(|line| line.strip_prefix(MAGIC));
        let words: Vec<&str> = header.ok_or_else(damaged)?.split_whitespace().collect();
        match words.as_slice() {
            ["entry", nonce] => {
                let nonce = nonce.parse().map_err(|_| damaged())?;
                Ok(StoredEntry::Entry { nonce, bytes: object[end + 1..].to_vec() })
            }
            ["forgotten", "before", number] => {
                Ok(StoredEntry::Forgotten { before: number.parse().map_err(|_| damaged())? })
            }
            _ => Err(damaged()),
        }
    }

    fn chain_key(&self, chain: &ChainName) -> Path {
        self.root.clone().join("chains").join(chain.as_str().replace('/', SEPARATOR))
    }

    fn key(&self, chain: &ChainName, number: u64) -> Path {
        self.chain_key(chain).join(format!("{number:020}"))
    }

    fn seen(&self) -> MutexGuard<'_, BTreeMap<ChainName, u64>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest entry that was seen; 0 if none was.
    fn last_seen(&self, chain: &ChainName) -> u64 {
        self.seen().get(chain).copied().unwrap_or(0)
    }

    fn note_seen(&self, chain: &ChainName, number: u64) {
        let mut seen = self.seen();
        let newest = seen.entry(chain.clone()).or_default();
        *newest = number.max(*newest);
    }

    fn draw(&self) -> Result<Nonce, RegisterError> {
        Nonce::draw().map_err(|error| self.unavailable(error))
    }

    fn place(&self) -> String {
        format!("`{}/{}`", self.bucket.url(), self.root)
    }

    fn unavailable(&self, error: impl ToString) -> RegisterError {
        RegisterError::Unavailable { reason: format!("{}: {}", self.place(), error.to_string()) }
    }

    fn missing(&self, chain: &ChainName, number: u64) -> RegisterError {
        RegisterError::Damaged { reason: format!("entry {number} of chain `{chain}` is missing in {}", self.place()) }
    }

    /// The first entry that is still to be forgotten, looked for from `end` downwards.
    fn first_kept(&self, chain: &ChainName, end: u64) -> Result<u64, RegisterError> {
        let (mut first, mut at) = (end, end);
        while at > 1 {
            let numbers: Vec<u64> = (at.saturating_sub(REQUESTS_AT_ONCE).max(1)..at).collect();
            let entries = self.entries(chain, &numbers)?;
            let is_kept = |entry: &Option<StoredEntry>| matches!(entry, Some(StoredEntry::Entry { .. }));
            let Some(lowest) = entries.iter().position(is_kept) else { break };
            (first, at) = (numbers[lowest], numbers[0]);
        }
        Ok(first)
    }
}

impl ChainRegister for ObjectRegister {
    fn create(&self, chain: &ChainName, number: u64, entry: &[u8]) -> Result<Creation, RegisterError> {
        if entry.len() > ENTRY_BYTES_MAX {
            return Err(RegisterError::TooLarge { bytes: entry.len(), most: ENTRY_BYTES_MAX });
        }
        let mut last = self.last_seen(chain);
        if number > last + 1 {
            last = self.last(chain)?;
        }
        if number <= last {
            return Ok(Creation::Taken);
        }
        if number != last + 1 {
            return Err(RegisterError::OutOfOrder { chain: chain.clone(), number, last });
        }
        if number == 1 {
            self.check_end(chain, 0)?;
        }
        self.check_fit()?;
        let creation = match self.create_object(&self.key(chain, number), entry)? {
            CreatedObject::New => Creation::New,
            CreatedObject::Taken => Creation::Taken,
            CreatedObject::Contradiction => {
                return Err(self.unavailable("it says that an entry exists which does not"));
            }
        };
        self.note_seen(chain, number);
        Ok(creation)
    }

    fn read(&self, chain: &ChainName, from: u64, limit: usize) -> Result<Vec<NumberedEntry>, RegisterError> {
        let mut found = Vec::new();
        let mut next = from.max(1);
        // Mostly nothing is new; where much is, the requests double.
        let mut width = 1;
        while found.len() < limit {
            let seen = self.last_seen(chain);
            let end = next.saturating_add(width.min((limit - found.len()) as u64));
            let numbers: Vec<u64> = (next..end).collect();
            for (number, entry) in numbers.iter().zip(self.entries(chain, &numbers)?) {
                if *number < next {
                    continue;
                }
                match entry {
                    None if *number <= seen => return Err(self.missing(chain, *number)),
                    None => return Ok(found),
                    Some(StoredEntry::Entry { bytes, .. }) => {
                        found.push(NumberedEntry { number: *number, bytes });
                        next = number + 1;
                    }
                    Some(StoredEntry::Forgotten { before }) => next = before.max(number + 1),
                }
                self.note_seen(chain, *number);
            }
            width = (width * 2).min(REQUESTS_AT_ONCE);
        }
        Ok(found)
    }

    fn last(&self, chain: &ChainName) -> Result<u64, RegisterError> {
        let seen = self.last_seen(chain);
        let (mut last, mut step) = (seen, 1);
        while self.exists(chain, last + step)? {
            last += step;
            step *= 2;
        }
        let mut absent = last + step;
        while absent - last > 1 {
            let middle = last + (absent - last) / 2;
            if self.exists(chain, middle)? { last = middle } else { absent = middle }
        }
        if seen == 0 {
            self.check_end(chain, last)?;
        }
        if last > 0 {
            self.note_seen(chain, last);
        }
        Ok(last)
    }

    fn forget_before(&self, chain: &ChainName, number: u64) -> Result<(), RegisterError> {
        let end = number.min(self.last(chain)?);
        let numbers: Vec<u64> = (self.first_kept(chain, end)?..end).collect();
        let tombstone = format!("{MAGIC} forgotten before {end}\n").into_bytes();
        // From the oldest on: what a crash leaves is found by the next call, which looks from the newest on.
        for some in numbers.chunks(REQUESTS_AT_ONCE as usize) {
            let put = |number: &u64| self.put(&self.key(chain, *number), tombstone.clone(), PutMode::Overwrite);
            let started: Vec<PendingCall<()>> = some.iter().map(put).collect();
            started.into_iter().try_for_each(PendingCall::wait).map_err(|error| self.unavailable(error))?;
        }
        Ok(())
    }

    fn chains(&self) -> Result<Vec<ChainName>, RegisterError> {
        let prefix = self.root.clone().join("chains");
        let listed = self.bucket.call(|store| async move { store.list_with_delimiter(Some(&prefix)).await });
        let listed = listed.map_err(|error| self.unavailable(error))?;
        let parsed = listed.common_prefixes.iter().map(|prefix| {
            let name = prefix.filename().unwrap_or_default().replace(SEPARATOR, "/");
            let damaged = || RegisterError::Damaged { reason: format!("`{name}` cannot be the name of a chain") };
            ChainName::parse(&name).ok_or_else(damaged)
        });
        let mut chains = parsed.collect::<Result<Vec<ChainName>, _>>()?;
        chains.sort();
        Ok(chains)
    }
}

#[cfg(test)]
#[path = "object_tests.rs"]
mod tests;
