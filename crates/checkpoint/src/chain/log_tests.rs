//! Chains that are long, contested or contradictory.

use super::*;
use crate::chain::checkpoint::{CheckpointChange, VersionChain};
use crate::names::{FenceEpoch, Version};
use crate::register::MemoryRegister;

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
