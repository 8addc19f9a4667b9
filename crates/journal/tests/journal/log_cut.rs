//! One tenant that writes many lines loses its own history, and no other tenant's.

use crate::Dir;
use crate::generate::World;
use rusqlite::Connection;
use std::collections::BTreeMap;
use sublet_core::facts::{GpuAction, TenantAction};
use sublet_core::ids::{GpuId, LeaseId, TenantId};
use sublet_core::rows::GpuService;
use sublet_journal::{AnswerLimits, Journal, verify};

/// More answers than any test here stores.
const ANSWERS: AnswerLimits = AnswerLimits { of_tenant: 100, all: 100 };

/// Trims until nothing is left to do.
fn trim(journal: &mut Journal, keep: u64) {
    while journal.trim(keep).unwrap() > 0 {}
    while journal.forget(0, ANSWERS, keep).unwrap().past > 0 {}
}

/// Leases of one tenant that begin and end.
fn flood(world: &mut World, tenant: u32, leases: u32) {
    for _ in 0..leases {
        world.cycle_of(tenant);
    }
}

fn kinds_of(journal: &Journal, lease: LeaseId) -> Vec<&'static str> {
    let lines = journal.reader().unwrap().log(0, usize::MAX).unwrap();
    lines.iter().filter(|line| line.lease == Some(lease)).map(|line| line.action().unwrap().kind()).collect()
}

fn findings(dir: &Dir) -> Vec<String> {
    verify(&dir.path()).unwrap().findings
}

#[test]
fn tenant_with_most_lines_loses_its_history_and_others_keep_theirs() {
    let dir = Dir::new();
    let mut world = World::new(21);
    let (mut journal, _) = dir.open();
    let early: Vec<LeaseId> = (0..10).map(|_| world.cycle_of(0)).collect();
    let mut late = Vec::new();
    for round in 0..200 {
        flood(&mut world, 1, 50);
        if round % 40 == 7 {
            late.push(world.cycle_of(0));
        }
        journal.commit(&world.close()).unwrap();
        journal.trim(1_000).unwrap();
        journal.forget(0, ANSWERS, 1_000).unwrap();
        assert!(round % 20 != 3 || findings(&dir).is_empty(), "while it is trimmed: {:?}", findings(&dir));
    }
    trim(&mut journal, 1_000);
    assert_eq!(findings(&dir), [""; 0]);
    let reader = journal.reader().unwrap();
    assert_eq!(reader.log(0, usize::MAX).unwrap().len(), 1_000);
    for lease in early.iter().chain(&late) {
        assert_eq!(kinds_of(&journal, *lease), ["queue", "grant", "end", "retire"], "{lease}");
        assert!(reader.ended(*lease).unwrap().is_some(), "{lease} is history");
    }
    assert_eq!(reader.ended_of(None, None, 2_000).unwrap().len(), 1_000);
    let trimmed = verify(&dir.path()).unwrap().trimmed;
    assert_eq!(trimmed.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["uid:1001"]);
    let own = reader.log(0, 8).unwrap()[6].clone();
    assert!(own.lease.is_some());
    assert!(reader.is_owned_by("uid:1000", own.seq).unwrap());
    assert!(!reader.is_owned_by("uid:1001", own.seq).unwrap());
}

#[test]
fn stubs_are_few_and_small_however_lines_interleave() {
    let dir = Dir::new();
    let mut world = World::new(22);
    let (mut journal, _) = dir.open();
    for _ in 0..20 {
        world.cycle_of(0);
        flood(&mut world, 1, 100);
        journal.commit(&world.close()).unwrap();
    }
    trim(&mut journal, 200);
    assert_eq!(findings(&dir), [""; 0]);
    drop(journal);
    let conn = Connection::open(dir.file("journal.db")).unwrap();
    let one = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert!(one("SELECT count(*) FROM stubs") <= 21, "one run between two leases is one stub");
    assert!(one("SELECT max(length(owners) + length(hash) + 16) FROM stubs") < 100, "bytes of the largest");
}

#[test]
fn operators_acts_are_cut_after_all_lines_of_tenants() {
    let dir = Dir::new();
    let mut world = World::new(23);
    let (mut journal, _) = dir.open();
    for _ in 0..10 {
        world.act(GpuAction::SetService { gpu: GpuId(0), service: GpuService::Draining });
        world.act(GpuAction::SetService { gpu: GpuId(0), service: GpuService::In });
        flood(&mut world, 0, 10);
        flood(&mut world, 1, 10);
    }
    journal.commit(&world.close()).unwrap();
    trim(&mut journal, 100);
    let lines = journal.reader().unwrap().log(0, usize::MAX).unwrap();
    let serves = lines.iter().filter(|line| line.action().unwrap().kind() == "serve").count();
    assert_eq!((lines.len(), serves), (100, 20));
    assert_eq!(findings(&dir), [""; 0]);
}

#[test]
fn signals_and_revocations_are_cut_after_the_other_lines_of_their_tenant() {
    let dir = Dir::new();
    let mut world = World::new(24);
    let (mut journal, _) = dir.open();
    let first = world.lease();
    world.revoke_lease(first);
    flood(&mut world, 1, 200);
    journal.commit(&world.close()).unwrap();
    let tenant = world.ended.iter().find(|ended| ended.id == first).unwrap().tenant;
    flood(&mut world, tenant.0, 200);
    journal.commit(&world.close()).unwrap();
    trim(&mut journal, 100);
    assert_eq!(kinds_of(&journal, first), ["end"], "the revocation stays, its lease's other lines went");
    assert_eq!(findings(&dir), [""; 0]);
}

#[test]
fn journal_of_the_release_before_stubs_is_opened_verified_and_trimmed() {
    let dir = Dir::new();
    let mut world = World::new(25);
    let (mut journal, _) = dir.open();
    flood(&mut world, 1, 100);
    journal.commit(&world.close()).unwrap();
    // That release cut every line that it folded, of whichever tenant.
    trim(&mut journal, 0);
    let before = journal.head().0;
    flood(&mut world, 1, 100);
    journal.commit(&world.close()).unwrap();
    drop(journal);
    dir.without_stubs();
    dir.sql("PRAGMA user_version = 10; UPDATE meta SET past_floor = next_lease");
    let (mut journal, loaded) = dir.open();
    assert_eq!(loaded.rows, world.rows);
    let report = verify(&dir.path()).unwrap();
    assert_eq!((report.findings, report.first_seq), (Vec::new(), before + 1));
    assert_eq!(report.trimmed, [("an earlier release".to_owned(), before)]);
    let old = world.cycle_of(0);
    flood(&mut world, 1, 100);
    journal.commit(&world.close()).unwrap();
    trim(&mut journal, 100);
    assert_eq!(findings(&dir), [""; 0]);
    assert_eq!(kinds_of(&journal, old).len(), 4);
}

/// A journal with stubs of several tenants.
fn with_stubs(seed: u64) -> (Dir, World) {
    let dir = Dir::new();
    let mut world = World::new(seed);
    world.act(TenantAction::Add { tenant: TenantId(2), name: "uid:1002".to_owned() });
    let (mut journal, _) = dir.open();
    for round in 0..60 {
        match round % 6 {
            0 => flood(&mut world, 0, 1),
            1 | 2 => flood(&mut world, 2, 1),
            _ => (0..3).for_each(|_| world.cycle()),
        }
        (0..10).for_each(|_| world.step());
        journal.commit(&world.close()).unwrap();
        journal.trim(120).unwrap();
    }
    trim(&mut journal, 120);
    (dir, world)
}

#[test]
fn a_trimmed_chain_verifies_and_any_change_is_noticed() {
    for seed in 30..36 {
        let (dir, _) = with_stubs(seed);
        assert_eq!(findings(&dir), [""; 0], "seed {seed}");
        let conn = Connection::open(dir.file("journal.db")).unwrap();
        let numbers = |sql: &str| -> Vec<i64> {
            conn.prepare(sql).unwrap().query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
        };
        let stubs = numbers("SELECT first_seq FROM stubs");
        let lines = numbers("SELECT seq FROM log");
        assert!(!stubs.is_empty() && lines.len() == 120, "seed {seed}");
        let mut changes: Vec<String> = Vec::new();
        for seq in lines.iter().step_by(7) {
            changes.push(format!("UPDATE log SET actor = actor || 'x' WHERE seq = {seq}"));
            changes.push(format!("UPDATE log SET hash = zeroblob(32) WHERE seq = {seq}"));
            changes.push(format!("DELETE FROM log WHERE seq = {seq}"));
        }
        for first in &stubs {
            changes.push(format!("UPDATE stubs SET hash = zeroblob(32) WHERE first_seq = {first}"));
            changes.push(format!("UPDATE stubs SET last_seq = last_seq + 1 WHERE first_seq = {first}"));
            changes.push(format!("UPDATE stubs SET owners = '{{\"1\":9999}}' WHERE first_seq = {first}"));
            changes.push(format!("DELETE FROM stubs WHERE first_seq = {first}"));
        }
        changes.push("UPDATE owners SET cut = cut + 1 WHERE id = 1".to_owned());
        changes.push("DELETE FROM kept WHERE seq = (SELECT min(seq) FROM kept)".to_owned());
        changes.push("UPDATE meta SET log_seq = log_seq - 1".to_owned());
        changes.push("UPDATE meta SET log_hash = zeroblob(32)".to_owned());
        changes.push("UPDATE meta SET base_hash = zeroblob(32)".to_owned());
        for change in changes {
            let copy = tempfile::tempdir().unwrap();
            let at = copy.path().join("journal.db");
            conn.execute("VACUUM INTO ?1", [at.to_str().unwrap()]).unwrap();
            crate::sql_at(&at, &change);
            assert!(!verify(&at).unwrap().is_clean(), "seed {seed}: after `{change}`");
        }
    }
}

#[test]
fn trimming_is_the_same_after_a_restart_at_any_point() {
    let (dir, mut world) = with_stubs(40);
    for _ in 0..20 {
        let (mut journal, loaded) = dir.open();
        assert_eq!(loaded.rows, world.rows);
        (0..5).for_each(|_| world.cycle());
        journal.commit(&world.close()).unwrap();
        journal.trim(60).unwrap();
        journal.forget(0, ANSWERS, 40).unwrap();
        drop(journal);
        assert_eq!(findings(&dir), [""; 0]);
    }
    let (mut journal, _) = dir.open();
    trim(&mut journal, 60);
    let mut lines = BTreeMap::new();
    for line in journal.reader().unwrap().log(0, usize::MAX).unwrap() {
        *lines.entry(line.lease).or_insert(0) += 1;
    }
    assert_eq!(lines.values().sum::<u64>(), 60);
    trim(&mut journal, 0);
    let report = verify(&dir.path()).unwrap();
    assert_eq!((report.findings, report.first_seq), (Vec::new(), report.last_seq + 1));
}

#[test]
fn lines_that_the_chain_does_not_hold_are_not_cut() {
    let (dir, _) = with_stubs(41);
    let (mut journal, _) = dir.open();
    dir.sql("UPDATE log SET actor = 'uid:9' WHERE seq IN (SELECT seq FROM kept)");
    while let Ok(done) = journal.trim(0) {
        assert!(done > 0, "changed lines were cut");
    }
    assert_eq!(findings(&dir).len(), 1);
}
