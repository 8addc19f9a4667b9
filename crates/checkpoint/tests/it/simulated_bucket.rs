//! An object store in memory that fails at a chosen operation, or from it on.

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

/// What goes wrong at one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketFault {
    /// The program ends before the operation.
    KilledBefore,
    /// The operation takes effect, and the program ends.
    KilledAfter,
    /// The operation fails, once.
    Fails,
    /// The operation takes effect, and its answer is lost.
    LosesAnswer,
}

#[derive(Debug, Default)]
struct BucketFaults {
    /// Only operations on objects below this prefix are counted and fail.
    below: String,
    operations: u64,
    fault: Option<(u64, BucketFault)>,
    has_failed: bool,
    is_dead: bool,
    /// What `_SUCCESS` marked although it was not whole.
    half_versions: Vec<String>,
    /// Lists of all objects below a prefix.
    listed: u64,
}

/// A bucket that all clones share.
#[derive(Clone, Debug, Default)]
pub struct SimulatedBucket {
    inner: Arc<InMemory>,
    faults: Arc<Mutex<BucketFaults>>,
}

/// Whether an operation is to take effect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Works,
    WorksAndFails,
}

impl SimulatedBucket {
    /// Makes the operation of this number fail; the first one is 0. Only those below the prefix count.
    pub fn fail_at(&self, number: u64, fault: BucketFault, below: &str) {
        let mut faults = self.faults();
        (faults.operations, faults.fault, faults.below) = (0, Some((number, fault)), below.to_owned());
    }

    /// True if the fault has happened.
    pub fn has_failed(&self) -> bool {
        self.faults().has_failed
    }

    /// True if the program has ended.
    pub fn is_dead(&self) -> bool {
        self.faults().is_dead
    }

    /// Starts the program again.
    pub fn restart(&self) {
        self.faults().is_dead = false;
    }

    /// Lets nothing fail any more.
    pub fn disarm(&self) {
        self.faults().fault = None;
    }

    /// The directories that had `_SUCCESS` at a moment at which a part was missing.
    pub fn half_versions(&self) -> Vec<String> {
        self.faults().half_versions.clone()
    }

    /// How many lists of all objects below a prefix were made.
    pub fn listed(&self) -> u64 {
        self.faults().listed
    }

    /// The keys of all objects.
    pub async fn keys(&self) -> Vec<String> {
        let listed: Result<Vec<ObjectMeta>> = self.inner.list(None).try_collect().await;
        listed.expect("a list").into_iter().map(|object| object.location.to_string()).collect()
    }

    fn faults(&self) -> MutexGuard<'_, BucketFaults> {
        self.faults.lock().expect("no panic")
    }

    /// Counts a change, and says how it ends.
    fn count(&self, location: &Path) -> Result<Outcome> {
        let mut faults = self.faults();
        if !location.as_ref().starts_with(&faults.below) {
            return Ok(Outcome::Works);
        }
        if faults.is_dead {
            return Err(dead());
        }
        let number = faults.operations;
        faults.operations += 1;
        let Some((_, fault)) = faults.fault.filter(|(at, _)| *at == number) else { return Ok(Outcome::Works) };
        (faults.fault, faults.has_failed) = (None, true);
        faults.is_dead = matches!(fault, BucketFault::KilledBefore | BucketFault::KilledAfter);
        match fault {
            BucketFault::KilledBefore => Err(dead()),
            BucketFault::Fails => Err(cut()),
            BucketFault::KilledAfter | BucketFault::LosesAnswer => Ok(Outcome::WorksAndFails),
        }
    }

    fn check_alive(&self) -> Result<()> {
        if self.faults().is_dead { Err(dead()) } else { Ok(()) }
    }

    /// Ends a change. Whatever `_SUCCESS` marks must be whole at every moment.
    async fn end<T>(&self, outcome: Outcome, done: Result<T>) -> Result<T> {
        let keys: BTreeSet<String> = self.keys().await.into_iter().collect();
        let has = |directory: &str, part| keys.contains(&format!("{directory}/{part}"));
        let marked = keys.iter().filter_map(|key| key.strip_suffix("/_SUCCESS"));
        let half = marked.filter(|directory| !has(directory, "state") || !has(directory, "data"));
        self.faults().half_versions.extend(half.map(str::to_owned));
        if outcome == Outcome::WorksAndFails { Err(cut()) } else { done }
    }
}

fn dead() -> Error {
    // The register does not try again what is refused.
    Error::PermissionDenied { path: "it".to_owned(), source: "the program has ended".into() }
}

fn cut() -> Error {
    Error::Generic { store: "tests", source: "the line is cut".into() }
}

impl fmt::Display for SimulatedBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a simulated bucket")
    }
}

#[async_trait]
impl ObjectStore for SimulatedBucket {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let outcome = self.count(location)?;
        let done = self.inner.put_opts(location, payload, options).await;
        self.end(outcome, done).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.check_alive()?;
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let bucket = self.clone();
        let delete = move |location: Result<Path>| {
            let bucket = bucket.clone();
            async move {
                let location = location?;
                let outcome = bucket.count(&location)?;
                let done = bucket.inner.delete(&location).await;
                bucket.end(outcome, done).await.map(|()| location)
            }
        };
        // A store promises no order. This one is not that of the names.
        let reversed = async move {
            let mut locations: Vec<_> = locations.collect().await;
            locations.reverse();
            stream::iter(locations)
        };
        stream::once(reversed).flatten().then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.check_alive() {
            Ok(()) => {
                self.faults().listed += 1;
                self.inner.list(prefix)
            }
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.check_alive()?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let outcome = self.count(to)?;
        let done = self.inner.copy_opts(from, to, options).await;
        self.end(outcome, done).await
    }
}
