//! A register in memory, in stores that lie, hang, lose answers and lose objects.

use super::*;
use crate::register::contract;
use async_trait::async_trait;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutPayload, PutResult, Result as StoreResult,
};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is wrong with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A create replaces what exists.
    IgnoresCondition,
    /// A create is refused, although nothing exists.
    RefusesAll,
    /// Each first create takes effect, and its answer is lost.
    LosesAnswers,
    /// Each first create is told that another one is under way (409), and takes no effect.
    Conflicts,
    /// A create is never answered.
    Hangs,
}

/// A store in memory with a fault, which begins when it is switched on.
#[derive(Debug)]
struct FaultyStore {
    inner: InMemory,
    fault: Fault,
    creates: AtomicUsize,
}

/// The first creates are those of the self-test.
const WITHOUT_FAULT: usize = SELF_TEST_CREATES;

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a faulty store")
    }
}

fn exists() -> object_store::Error {
    object_store::Error::AlreadyExists { path: "it".to_owned(), source: "exists".into() }
}

fn cut() -> object_store::Error {
    object_store::Error::Generic { store: "tests", source: "the line is cut".into() }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> StoreResult<PutResult> {
        if options.mode != PutMode::Create {
            return self.inner.put_opts(location, payload, options).await;
        }
        let create = self.creates.fetch_add(1, Ordering::Relaxed);
        let is_first = create.is_multiple_of(2) && create >= WITHOUT_FAULT;
        match self.fault {
            Fault::IgnoresCondition => {
                self.inner.put_opts(location, payload, PutOptions { mode: PutMode::Overwrite, ..options }).await
            }
            Fault::RefusesAll => Err(exists()),
            Fault::Hangs if create >= WITHOUT_FAULT => std::future::pending().await,
            Fault::Conflicts if is_first => Err(exists()),
            Fault::LosesAnswers if is_first => {
                self.inner.put_opts(location, payload, options).await?;
                Err(cut())
            }
            _ => self.inner.put_opts(location, payload, options).await,
        }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> StoreResult<GetResult> {
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, StoreResult<Path>>) -> BoxStream<'static, StoreResult<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

fn open(store: Arc<dyn ObjectStore>, limit: Duration) -> Result<ObjectRegister, RegisterError> {
    let bucket = ObjectBucket::new(store, "memory://tests").expect("threads").with_call_limit(limit);
    ObjectRegister::open(bucket, "team/a")
}

fn faulty(fault: Fault, limit: Duration) -> Result<ObjectRegister, RegisterError> {
    open(Arc::new(FaultyStore { inner: InMemory::new(), fault, creates: AtomicUsize::new(0) }), limit)
}

const LONG: Duration = Duration::from_secs(60);

fn chain() -> ChainName {
    ChainName::parse("c/models/job:7").expect("a name")
}

#[test]
fn a_register_in_an_object_store_keeps_the_contract() {
    contract::check(&|| open(Arc::new(InMemory::new()), LONG).expect("a register"));
}

#[test]
fn two_registers_over_one_bucket_are_one_register() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let open = || open(Arc::clone(&store), LONG).expect("a register");
    let (one, two) = (open(), open());
    for number in 1..=40 {
        let writer = if number % 3 == 0 { &one } else { &two };
        assert_eq!(writer.create(&chain(), number, b"entry").expect("an answer"), Creation::New);
    }
    assert_eq!(one.create(&chain(), 40, b"other").expect("an answer"), Creation::Taken);
    assert_eq!([one.last(&chain()).expect("an answer"), open().last(&chain()).expect("an answer")], [40, 40]);
    assert_eq!(open().read(&chain(), 1, 100).expect("entries").len(), 40);
    two.forget_before(&chain(), 30).expect("an answer");
    two.forget_before(&chain(), 35).expect("an answer");
    for register in [&one, &open()] {
        let entries = register.read(&chain(), 1, 100).expect("entries");
        assert_eq!(entries.iter().map(|entry| entry.number).collect::<Vec<_>>(), [35, 36, 37, 38, 39, 40]);
    }
}

#[test]
fn a_store_that_ignores_the_condition_is_refused_and_left_empty() {
    let store =
        Arc::new(FaultyStore { inner: InMemory::new(), fault: Fault::IgnoresCondition, creates: AtomicUsize::new(0) });
    let refusal = open(Arc::clone(&store) as Arc<dyn ObjectStore>, LONG).expect_err("a refusal");
    assert_eq!(refusal.code(), "register_unfit");
    assert!(refusal.to_string().contains("32 won instead of 1"), "{refusal}");
    let left: Vec<ObjectMeta> =
        futures_util::FutureExt::now_or_never(store.inner.list(None).try_collect()).expect("no wait").expect("a list");
    assert_eq!(left, []);
}

#[test]
fn a_register_that_was_opened_to_look_is_tested_before_its_first_entry() {
    let store = |fault| Arc::new(FaultyStore { inner: InMemory::new(), fault, creates: AtomicUsize::new(0) });
    let open = |fault| {
        let bucket = ObjectBucket::new(store(fault), "memory://tests").expect("threads").with_call_limit(LONG);
        ObjectRegister::open_to_look(bucket, "team/a")
    };
    let liar = open(Fault::IgnoresCondition);
    assert_eq!(liar.last(&chain()).expect("an answer"), 0);
    assert_eq!(liar.create(&chain(), 1, b"entry").expect_err("a refusal").code(), "register_unfit");
    assert_eq!(liar.last(&chain()).expect("an answer"), 0);
    let honest = open(Fault::LosesAnswers);
    assert_eq!(honest.create(&chain(), 1, b"entry").expect("an answer"), Creation::New);
}

#[test]
fn a_store_in_which_no_create_wins_is_refused() {
    let refusal = faulty(Fault::RefusesAll, Duration::from_millis(200)).expect_err("a refusal");
    assert_eq!(refusal.code(), "register_unfit");
    assert!(refusal.to_string().contains(" 0 won instead of 1"), "{refusal}");
}

/// The retry is told that the object exists: it is this call's own.
#[test]
fn a_lost_answer_is_no_lost_entry() {
    let register = faulty(Fault::LosesAnswers, LONG).expect("a register");
    for number in 1..=5 {
        assert_eq!(register.create(&chain(), number, b"same").expect("an answer"), Creation::New);
        assert_eq!(register.create(&chain(), number, b"same").expect("an answer"), Creation::Taken);
    }
}

#[test]
fn a_conflict_is_tried_again() {
    let register = faulty(Fault::Conflicts, LONG).expect("a register");
    for number in 1..=5 {
        assert_eq!(register.create(&chain(), number, b"entry").expect("an answer"), Creation::New);
    }
}

#[test]
fn a_store_that_hangs_is_unavailable() {
    let register = faulty(Fault::Hangs, Duration::from_millis(200)).expect("a register");
    let error = register.create(&chain(), 1, b"entry").expect_err("an error");
    assert_eq!(error.code(), "register_unavailable");
    assert!(error.to_string().contains("did not answer within 0.2 s"), "{error}");
}

#[test]
fn a_chain_that_lost_its_oldest_or_its_next_entry_is_damaged() {
    for lost in [1, 2] {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let register = open(Arc::clone(&store), LONG).expect("a register");
        for number in 1..=3 {
            register.create(&chain(), number, b"entry").expect("an answer");
        }
        let key = register.key(&chain(), lost);
        register.bucket.call(|store| async move { store.delete(&key).await }).expect("a removal");
        assert_eq!(register.read(&chain(), 1, 10).expect_err("an error").code(), "register_damaged");
        let fresh = open(store, LONG).expect("a register");
        if lost == 1 {
            assert_eq!(fresh.last(&chain()).expect_err("an error").code(), "register_damaged");
            assert_eq!(fresh.create(&chain(), 1, b"again").expect_err("an error").code(), "register_damaged");
        }
    }
}

/// The newest one is missed by the replicas: they hold versions that the register does not know.
#[test]
fn a_process_that_has_seen_nothing_notices_each_missing_entry_but_the_newest() {
    const ENTRIES: u64 = 20;
    for lost in 1..ENTRIES {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let register = open(Arc::clone(&store), LONG).expect("a register");
        for number in 1..=ENTRIES {
            register.create(&chain(), number, b"entry").expect("an answer");
        }
        let key = register.key(&chain(), lost);
        register.bucket.call(|store| async move { store.delete(&key).await }).expect("a removal");
        let fresh = open(store, LONG).expect("a register");
        let read = fresh.last(&chain()).and_then(|_| fresh.read(&chain(), 1, 100));
        assert_eq!(read.expect_err("an error").code(), "register_damaged", "without entry {lost}");
        let again = fresh.create(&chain(), lost, b"again");
        assert_ne!(again.ok(), Some(Creation::New), "entry {lost} is made anew");
    }
}

#[test]
fn an_object_of_another_program_is_no_entry() {
    let register = open(Arc::new(InMemory::new()), LONG).expect("a register");
    let key = register.key(&chain(), 1);
    register.bucket.call(|store| async move { store.put(&key, "theirs".into()).await.map(|_| ()) }).expect("an object");
    assert_eq!(register.read(&chain(), 1, 10).expect_err("an error").code(), "register_damaged");
}
