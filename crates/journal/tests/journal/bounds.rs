//! The journal does not grow for ever, and stays whole while it is cut.

use crate::Dir;
use crate::generate::{World, answer};
use sublet_core::facts::LeaseAction;
use sublet_core::ids::LeaseId;
use sublet_journal::{AnswerLimits, Batch, Forgotten, Journal, verify};

#[test]
fn trimming_keeps_the_last_entries_and_what_verify_needs() {
    let dir = Dir::new();
    let mut world = World::new(5);
    let (mut journal, _) = dir.open();
    for _ in 0..40 {
        (0..100).for_each(|_| world.step());
        journal.commit(&world.close()).unwrap();
    }
    let (last, head) = journal.head();
    let mut pieces = 0;
    while journal.trim(100).unwrap() > 0 {
        pieces += 1;
        assert_eq!(verify(&dir.path()).unwrap().findings, [""; 0]);
    }
    assert!(pieces >= 3, "in pieces: {pieces}");
    let reader = journal.reader().unwrap();
    let left: Vec<u64> = reader.log(0, 1_000).unwrap().iter().map(|line| line.seq).collect();
    assert_eq!(left.len(), 100);
    assert_eq!(left[50..], (last - 49..=last).collect::<Vec<_>>(), "the newest half is whole");
    assert_eq!((reader.first_seq().unwrap(), reader.last_seq().unwrap()), (left[0], last));
    assert_eq!(journal.head(), (last, head));
    drop(journal);
    let (mut journal, loaded) = dir.open();
    assert_eq!(loaded.rows, world.rows);
    world.cycle();
    assert_eq!(journal.commit(&world.close()).unwrap(), last + 4);
    while journal.trim(0).unwrap() > 0 {}
    let report = verify(&dir.path()).unwrap();
    assert_eq!(report.findings, [""; 0]);
    assert_eq!((report.first_seq, report.last_seq), (last + 5, last + 4));
}

#[test]
fn a_log_with_a_broken_chain_is_not_trimmed_and_commits_continue() {
    let dir = Dir::new();
    let mut world = World::new(6);
    let (mut journal, _) = dir.open();
    world.cycle();
    journal.commit(&world.close()).unwrap();
    dir.sql("UPDATE log SET actor = 'nobody' WHERE seq = 2");
    let error = journal.trim(0).unwrap_err();
    assert_eq!(error.to_string(), "the journal refused a batch: nothing of it was written");
    assert_eq!(journal.reader().unwrap().first_seq().unwrap(), 1);
    world.cycle();
    journal.commit(&world.close()).unwrap();
    assert_eq!(verify(&dir.path()).unwrap().findings, ["entry 2 of the log was changed: its hash does not fit"]);
}

fn at_most(of_tenant: u64, all: u64) -> AnswerLimits {
    AnswerLimits { of_tenant, all }
}

#[test]
fn a_tenant_with_many_answers_does_not_displace_those_of_another() {
    let dir = Dir::new();
    let mut world = World::new(8);
    let (mut journal, _) = dir.open();
    world.cycle();
    // The other tenant's three are the oldest.
    let few = (0..3).map(|n| answer(1, &format!("k{n}"), n));
    let many = (3..53).map(|n| answer(0, &format!("k{n}"), n));
    journal.commit(&Batch { answers: few.chain(many).collect(), ..world.close() }).unwrap();
    let kept = |journal: &mut Journal| {
        let answers = journal.reload().unwrap().answers;
        let of = |tenant: u32| answers.iter().filter(|a| a.tenant.0 == tenant).map(|a| a.wall_us).collect::<Vec<_>>();
        (of(0), of(1))
    };
    assert_eq!(journal.forget(0, at_most(40, 100), 100).unwrap().answers, 10);
    assert_eq!(kept(&mut journal), ((13..53).collect(), vec![0, 1, 2]), "beyond its own limit");
    assert_eq!(journal.forget(0, at_most(40, 10), 100).unwrap().answers, 33);
    assert_eq!(kept(&mut journal), ((46..53).collect(), vec![0, 1, 2]), "beyond that of all");
}

#[test]
fn old_answers_and_ended_leases_are_forgotten() {
    let dir = Dir::new();
    let mut world = World::new(7);
    let (mut journal, _) = dir.open();
    let first = world.lease();
    (0..30).for_each(|_| world.cycle());
    let answers: Vec<_> = (0..20).map(|n| answer(0, &format!("k{n}"), n)).collect();
    journal.commit(&Batch { answers, ..world.close() }).unwrap();

    assert_eq!(journal.forget(5, at_most(18, 18), 1_000).unwrap(), Forgotten { answers: 5, past: 0 });
    assert_eq!(journal.forget(0, at_most(18, 10), 12).unwrap(), Forgotten { answers: 5, past: 18 });
    assert_eq!(journal.forget(0, at_most(18, 10), 12).unwrap(), Forgotten::default());

    let keys: Vec<u64> = journal.reload().unwrap().answers.iter().map(|answer| answer.wall_us).collect();
    assert_eq!(keys, (10..20).collect::<Vec<_>>());
    let reader = journal.reader().unwrap();
    assert_eq!(reader.ended_of(None, None, 100).unwrap().len(), 12);
    assert_eq!(verify(&dir.path()).unwrap().findings, [""; 0], "what may be forgotten is not missed");

    // A lease from before ends late: it is history like any other.
    world.end(first);
    world.act(LeaseAction::Retire { lease: first, ran: None });
    journal.commit(&world.close()).unwrap();
    assert!(reader.ended(LeaseId(1)).unwrap().is_some());
    assert_eq!(verify(&dir.path()).unwrap().findings, [""; 0]);
}
