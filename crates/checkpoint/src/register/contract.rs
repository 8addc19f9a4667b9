//! The test suite that every register passes.
//!
//! It panics at the first broken promise, so it is called from a test. A register outside this crate
//! calls [`check`] too.

use super::{ChainRegister, Creation, ENTRY_BYTES_MAX, NumberedEntry, RegisterError};
use crate::names::ChainName;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Checks a kind of register; `fresh` makes an empty one each time.
///
/// # Panics
/// If the register breaks its contract.
pub fn check<R: ChainRegister>(fresh: &dyn Fn() -> R) {
    numbers_are_created_once_and_in_order(&fresh());
    an_entry_is_created_only_after_the_one_that_the_call_names(&fresh());
    chains_are_apart(&fresh());
    reading_is_bounded_and_in_order(&fresh());
    forgotten_numbers_are_never_free_again(&fresh());
    entries_of_every_permitted_size_are_kept(&fresh());
    one_of_many_concurrent_creates_wins(&fresh());
}

fn chain(name: &str) -> ChainName {
    ChainName::parse(name).expect("a name of a chain")
}

fn numbers_are_created_once_and_in_order(register: &dyn ChainRegister) {
    let name = chain("c/contract/a");
    assert_eq!(register.last(&name).expect("an answer"), 0);
    assert_eq!(register.create(&name, 1, b"one").expect("an answer"), Creation::New);
    assert_eq!(register.create(&name, 1, b"other").expect("an answer"), Creation::Taken);
    assert_eq!(register.create(&name, 0, b"zero").expect("an answer"), Creation::Taken);
    match register.create(&name, 3, b"three") {
        Err(RegisterError::OutOfOrder { last: 1, number: 3, .. }) => {}
        other => panic!("entry 3 was created after entry 1: {other:?}"),
    }
    assert_eq!(register.create(&name, 2, b"two").expect("an answer"), Creation::New);
    assert_eq!(register.last(&name).expect("an answer"), 2);
    assert_eq!(numbers(register, &name, 1, 10), [1, 2]);
    assert_eq!(register.read(&name, 1, 1).expect("an answer")[0].bytes, b"one");
}

fn an_entry_is_created_only_after_the_one_that_the_call_names(register: &dyn ChainRegister) {
    let name = chain("c/contract/f");
    let entry = |number, bytes: &[u8]| NumberedEntry { number, bytes: bytes.to_vec() };
    let replaced = |before: NumberedEntry| match register.create_after(&name, &before, b"next") {
        Err(RegisterError::Replaced { number, .. }) => assert_eq!(number, before.number),
        other => panic!("an entry was created after {before:?}, which the chain does not have: {other:?}"),
    };
    replaced(entry(1, b"one"));
    register.create(&name, 1, b"one").expect("an answer");
    replaced(entry(1, b"other"));
    replaced(entry(2, b"two"));
    let largest = vec![7; ENTRY_BYTES_MAX];
    assert_eq!(register.create_after(&name, &entry(1, b"one"), &largest).expect("an answer"), Creation::New);
    assert_eq!(register.create_after(&name, &entry(1, b"one"), b"again").expect("an answer"), Creation::Taken);
    assert_eq!(register.create_after(&name, &entry(2, &largest), b"three").expect("an answer"), Creation::New);
    match register.create_after(&name, &entry(3, b"three"), &[largest.as_slice(), b"!"].concat()) {
        Err(RegisterError::TooLarge { .. }) => {}
        other => panic!("an entry above the limit was not refused as too large: {other:?}"),
    }
    register.forget_before(&name, 3).expect("an answer");
    assert_eq!(register.create_after(&name, &entry(1, b"one"), b"again").expect("an answer"), Creation::Taken);
    assert_eq!(numbers(register, &name, 1, 10), [3]);
}

fn chains_are_apart(register: &dyn ChainRegister) {
    let (one, two) = (chain("c/contract/one"), chain("c/contract/two"));
    assert_eq!(register.create(&one, 1, b"x").expect("an answer"), Creation::New);
    assert_eq!(register.create(&two, 1, b"y").expect("an answer"), Creation::New);
    assert_eq!(register.read(&two, 1, 10).expect("an answer")[0].bytes, b"y");
    assert_eq!(register.chains().expect("an answer"), [one, two]);
}

fn reading_is_bounded_and_in_order(register: &dyn ChainRegister) {
    let name = chain("c/contract/b");
    for number in 1..=12 {
        assert_eq!(register.create(&name, number, &[number as u8]).expect("an answer"), Creation::New);
    }
    assert_eq!(numbers(register, &name, 3, 4), [3, 4, 5, 6]);
    assert_eq!(numbers(register, &name, 11, 4), [11, 12]);
    assert_eq!(numbers(register, &name, 13, 4), [0; 0]);
}

fn forgotten_numbers_are_never_free_again(register: &dyn ChainRegister) {
    let name = chain("c/contract/c");
    for number in 1..=5 {
        register.create(&name, number, b"entry").expect("an answer");
    }
    register.forget_before(&name, 4).expect("an answer");
    assert_eq!(numbers(register, &name, 1, 10), [4, 5]);
    assert_eq!(register.create(&name, 2, b"again").expect("an answer"), Creation::Taken);
    assert_eq!(numbers(register, &name, 1, 10), [4, 5]);
    // Even a number beyond the newest entry leaves the newest entry.
    register.forget_before(&name, 100).expect("an answer");
    assert_eq!(numbers(register, &name, 1, 10), [5]);
    assert_eq!(register.last(&name).expect("an answer"), 5);
    assert_eq!(register.create(&name, 6, b"next").expect("an answer"), Creation::New);
}

fn entries_of_every_permitted_size_are_kept(register: &dyn ChainRegister) {
    let name = chain("c/contract/d");
    let largest = vec![7; ENTRY_BYTES_MAX];
    assert_eq!(register.create(&name, 1, b"").expect("an answer"), Creation::New);
    assert_eq!(register.create(&name, 2, &largest).expect("an answer"), Creation::New);
    match register.create(&name, 3, &[largest.as_slice(), b"!"].concat()) {
        Err(RegisterError::TooLarge { .. }) => {}
        other => panic!("an entry above the limit was not refused as too large: {other:?}"),
    }
    let entries = register.read(&name, 1, 10).expect("an answer");
    assert_eq!(entries.iter().map(|entry| entry.bytes.len()).collect::<Vec<_>>(), [0, ENTRY_BYTES_MAX]);
}

fn one_of_many_concurrent_creates_wins(register: &dyn ChainRegister) {
    let name = chain("c/contract/e");
    for number in 1..=8 {
        let winners = AtomicUsize::new(0);
        thread::scope(|scope| {
            for writer in 0..16_u8 {
                let (name, winners) = (&name, &winners);
                scope.spawn(move || match register.create(name, number, &[writer]) {
                    Ok(Creation::New) => {
                        winners.fetch_add(1, Ordering::Relaxed);
                        let entries = register.read(name, number, 1).expect("an answer");
                        assert_eq!(entries[0].bytes, [writer], "the winner's entry is another one's");
                    }
                    Ok(Creation::Taken) => {}
                    Err(error) => panic!("entry {number} was neither created nor taken: {error}"),
                });
            }
        });
        assert_eq!(winners.into_inner(), 1, "entry {number} has another number of winners than one");
    }
}

fn numbers(register: &dyn ChainRegister, chain: &ChainName, from: u64, limit: usize) -> Vec<u64> {
    register.read(chain, from, limit).expect("an answer").into_iter().map(|entry| entry.number).collect()
}
