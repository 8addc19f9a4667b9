//! Chains that are long, contested or contradictory.

use super::*;
use crate::chain::checkpoint::{CheckpointChange, VersionChain};
use crate::names::{FenceEpoch, Version};
use crate::register::{MemoryRegister, SqliteRegister};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

fn chain() -> ChainName {
    ChainName::parse("c/models/job").expect("a name")
}

fn open(log: &mut ChainLog<VersionChain>) -> FenceEpoch {
    let decide = |state: &VersionChain| Ok(Decision::Append(state.open(FenceEpoch(0), None)));
    assert_eq!(log.append(decide).expect("an entry"), Appended::Entry);
    log.state().fences().newest
}

#[test]
fn a_decision_on_an_old_state_is_made_again() {
    let register: Arc<dyn ChainRegister> = Arc::new(MemoryRegister::new());
    let mut one = ChainLog::new(Arc::clone(&register), chain());
    let mut two = ChainLog::new(register, chain());
    assert_eq!(open(&mut one), FenceEpoch(2));
    assert_eq!(open(&mut two), FenceEpoch(3));
    assert_eq!(open(&mut one), FenceEpoch(4), "the second opening was seen");
}

#[test]
fn a_long_chain_is_read_from_its_newest_snapshot() {
    let register: Arc<dyn ChainRegister> = Arc::new(MemoryRegister::new());
    let mut writer = ChainLog::new(Arc::clone(&register), chain());
    let mut follower: ChainLog<VersionChain> = ChainLog::new(Arc::clone(&register), chain());
    follower.refresh().expect("a state");
    for _ in 0..2 * SNAPSHOT_EVERY + 3 {
        open(&mut writer);
    }
    let first = register.read(&chain(), 1, 1).expect("entries")[0].number;
    assert!(first > 2 * SNAPSHOT_EVERY, "entries before the newest snapshot are dropped: {first}");
    let mut reader: ChainLog<VersionChain> = ChainLog::new(register, chain());
    assert_eq!(reader.refresh().expect("a state"), writer.state());
    assert_eq!(follower.refresh().expect("a state"), writer.state(), "a reader catches up after entries were dropped");
}

/// A register whose first answer to a create is lost, and which refuses afterwards.
struct LostAnswer {
    register: MemoryRegister,
    creates: AtomicUsize,
    is_read_refused: bool,
}

fn refused() -> RegisterError {
    RegisterError::Refused { reason: "the token was revoked".to_owned() }
}

impl ChainRegister for LostAnswer {
    fn create(&self, chain: &ChainName, number: u64, entry: &[u8]) -> Result<Creation, RegisterError> {
        match self.creates.fetch_add(1, Ordering::Relaxed) {
            0 => {
                self.register.create(chain, number, entry)?;
                Err(RegisterError::Unavailable { reason: "the connection broke off".to_owned() })
            }
            _ if self.is_read_refused => self.register.create(chain, number, entry),
            _ => Err(refused()),
        }
    }
    fn read(&self, chain: &ChainName, from: u64, limit: usize) -> Result<Vec<NumberedEntry>, RegisterError> {
        match self.creates.load(Ordering::Relaxed) {
            2.. if self.is_read_refused => Err(refused()),
            _ => self.register.read(chain, from, limit),
        }
    }
    fn last(&self, chain: &ChainName) -> Result<u64, RegisterError> {
        self.register.last(chain)
    }
    fn forget_before(&self, chain: &ChainName, number: u64) -> Result<(), RegisterError> {
        self.register.forget_before(chain, number)
    }
    fn chains(&self) -> Result<Vec<ChainName>, RegisterError> {
        self.register.chains()
    }
}

#[test]
fn a_refusal_after_a_lost_answer_does_not_mean_that_nothing_was_appended() {
    for is_read_refused in [false, true] {
        let register = LostAnswer { register: MemoryRegister::new(), creates: AtomicUsize::new(0), is_read_refused };
        let register: Arc<dyn ChainRegister> = Arc::new(register);
        let mut log: ChainLog<VersionChain> = ChainLog::new(Arc::clone(&register), chain());
        let decide = |state: &VersionChain| Ok(Decision::Append(state.open(FenceEpoch(0), None)));
        assert_eq!(log.append(decide).expect_err("an error").code(), "register_unavailable");
        assert_eq!(register.last(&chain()).expect("an answer"), 1);
    }
}

#[test]
fn an_entry_that_contradicts_those_before_it_is_reported_each_time() {
    let register: Arc<dyn ChainRegister> = Arc::new(MemoryRegister::new());
    let mut log: ChainLog<VersionChain> = ChainLog::new(register, chain());
    log.append(|_| Ok(Decision::Append(CheckpointChange::Pruned { fence: FenceEpoch(1), versions: vec![Version(7)] })))
        .expect_err("a contradiction");
    for _ in 0..2 {
        assert_eq!(log.refresh().expect_err("a contradiction").code(), "corrupt");
    }
}

/// A register in whose place another one can be put.
struct Replaceable(std::sync::Mutex<MemoryRegister>);

impl Replaceable {
    fn put(&self, register: MemoryRegister) {
        *self.0.lock().expect("no panic before") = register;
    }
}

impl ChainRegister for Replaceable {
    fn create(&self, chain: &ChainName, number: u64, entry: &[u8]) -> Result<Creation, RegisterError> {
        self.0.lock().expect("no panic before").create(chain, number, entry)
    }
    fn read(&self, chain: &ChainName, from: u64, limit: usize) -> Result<Vec<NumberedEntry>, RegisterError> {
        self.0.lock().expect("no panic before").read(chain, from, limit)
    }
    fn last(&self, chain: &ChainName) -> Result<u64, RegisterError> {
        self.0.lock().expect("no panic before").last(chain)
    }
    fn forget_before(&self, chain: &ChainName, number: u64) -> Result<(), RegisterError> {
        self.0.lock().expect("no panic before").forget_before(chain, number)
    }
    fn chains(&self) -> Result<Vec<ChainName>, RegisterError> {
        self.0.lock().expect("no panic before").chains()
    }
}

/// A register that creates entries after known ones, and cannot be read any more.
struct WriteOnlyRegister {
    register: SqliteRegister,
    is_readable: AtomicBool,
}

impl WriteOnlyRegister {
    fn readable(&self) -> Result<&SqliteRegister, RegisterError> {
        if self.is_readable.load(Ordering::Relaxed) { Ok(&self.register) } else { Err(refused()) }
    }
}

impl ChainRegister for WriteOnlyRegister {
    fn create(&self, chain: &ChainName, number: u64, entry: &[u8]) -> Result<Creation, RegisterError> {
        self.readable()?.create(chain, number, entry)
    }
    fn create_after(&self, chain: &ChainName, before: &NumberedEntry, entry: &[u8]) -> Result<Creation, RegisterError> {
        self.register.create_after(chain, before, entry)
    }
    fn read(&self, chain: &ChainName, from: u64, limit: usize) -> Result<Vec<NumberedEntry>, RegisterError> {
        self.readable()?.read(chain, from, limit)
    }
    fn last(&self, chain: &ChainName) -> Result<u64, RegisterError> {
        self.readable()?.last(chain)
    }
    fn forget_before(&self, chain: &ChainName, number: u64) -> Result<(), RegisterError> {
        self.register.forget_before(chain, number)
    }
    fn chains(&self) -> Result<Vec<ChainName>, RegisterError> {
        self.readable()?.chains()
    }
}

#[test]
fn a_process_appends_to_a_chain_that_it_knows_without_reading_it_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let register = SqliteRegister::open(directory.path().join("register.db")).expect("a register");
    let register = Arc::new(WriteOnlyRegister { register, is_readable: AtomicBool::new(true) });
    let mut log = ChainLog::new(Arc::clone(&register) as Arc<dyn ChainRegister>, chain());
    open(&mut log);
    register.is_readable.store(false, Ordering::Relaxed);
    for _ in 0..SNAPSHOT_EVERY {
        open(&mut log);
    }
    register.is_readable.store(true, Ordering::Relaxed);
    assert_eq!(register.last(&chain()).expect("an answer"), SNAPSHOT_EVERY + 2, "with a snapshot");
}

#[test]
fn a_refusal_that_newer_entries_make_wrong_is_not_given() {
    let register: Arc<dyn ChainRegister> = Arc::new(MemoryRegister::new());
    let mut one = ChainLog::new(Arc::clone(&register), chain());
    let mut two = ChainLog::new(register, chain());
    open(&mut one);
    let fence = open(&mut two);
    let check = |state: &VersionChain| state.fences().check(fence).map(|()| Decision::Nothing);
    assert_eq!(one.append(check).expect("an answer"), Appended::Nothing);
}

#[test]
fn a_process_appends_nothing_after_an_older_register_was_put_back() {
    // How far the older copy has grown again by other processes: shorter, as long, longer.
    for others in [0, 2, 4] {
        let register = Arc::new(Replaceable(std::sync::Mutex::new(MemoryRegister::new())));
        let mut log = ChainLog::new(Arc::clone(&register) as Arc<dyn ChainRegister>, chain());
        open(&mut log);
        let older = MemoryRegister::new();
        let first = register.read(&chain(), 1, 1).expect("an entry").remove(0);
        older.create(&chain(), 1, &first.bytes).expect("an entry");
        for _ in 0..2 {
            open(&mut log);
        }
        register.put(older);
        let mut other = ChainLog::new(Arc::clone(&register) as Arc<dyn ChainRegister>, chain());
        for _ in 0..others {
            open(&mut other);
        }
        let decide = |state: &VersionChain| Ok(Decision::Append(state.open(FenceEpoch(0), None)));
        for _ in 0..2 {
            assert_eq!(log.append(decide).expect_err("a refusal").code(), "register_replaced", "after {others}");
            assert_eq!(log.refresh().expect_err("a refusal").code(), "register_replaced", "after {others}");
        }
        assert_eq!(register.last(&chain()).expect("an answer"), 1 + others);
    }
}
