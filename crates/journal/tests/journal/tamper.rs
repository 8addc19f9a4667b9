//! `verify` names what was changed behind the journal's back.

use crate::Dir;
use crate::generate::World;
use sublet_journal::{Batch, Journal, OpenError, verify};

/// Writes a story, changes the file with `sql`, and returns what `verify` finds.
fn after(sql: &str) -> String {
    let dir = Dir::new();
    let mut world = World::new(3);
    // Before the log's first entry once it is trimmed, and after it.
    world.issue();
    {
        let (mut journal, _) = dir.open();
        for _ in 0..5 {
            world.cycle();
            world.lease();
            journal.commit(&world.close()).unwrap();
        }
        world.issue();
        let short = world.issue();
        world.revoke(short);
        let answers = vec![crate::generate::answer(0, "k", 1)];
        journal.commit(&Batch { answers, ..world.close() }).unwrap();
        while journal.trim(20).unwrap() > 0 {}
    }
    assert!(verify(&dir.path()).unwrap().is_clean());
    dir.sql(sql);
    verify(&dir.path()).unwrap().findings.join("\n")
}

fn check(sql: &str, expected: &str) {
    let findings = after(sql);
    assert!(findings.contains(expected), "after `{sql}`: {findings:?}");
}

#[test]
fn a_changed_entry_is_found() {
    check("UPDATE log SET actor = 'uid:0' WHERE seq = 32", "entry 32 of the log was changed");
    check("UPDATE log SET action = replace(action, ':', ': ') WHERE seq = 32", "entry 32 of the log was changed");
    check("UPDATE log SET at_us = at_us + 1 WHERE seq = 32", "entry 32 of the log was changed");
    check("UPDATE log SET lease = 1 WHERE seq = 35", "entry 35 of the log names another lease");
}

#[test]
fn a_missing_entry_is_found_at_any_position() {
    check("DELETE FROM log WHERE seq = (SELECT min(seq) FROM log)", "of the log is missing");
    check("DELETE FROM log WHERE seq = 32", "entry 32 of the log is missing");
    check("DELETE FROM log WHERE seq = (SELECT max(seq) FROM log)", "the log ends at entry 38, but 39 were written");
    check("DELETE FROM log", "of the log is missing");
}

#[test]
fn swapped_entries_are_found() {
    check(
        "UPDATE log SET seq = 1000 WHERE seq = 32;
         UPDATE log SET seq = 32 WHERE seq = 33;
         UPDATE log SET seq = 33 WHERE seq = 1000",
        "entry 32 of the log was changed",
    );
}

#[test]
fn changed_rows_are_found() {
    check("UPDATE leases SET until_us = until_us + 1", "lease L2 differs");
    check("DELETE FROM leases WHERE id = 4", "lease L4 is live by the log, but its row is missing");
    check(
        "INSERT INTO leases SELECT 99, tenant, asked_us, ask, roots, phase, give_up_us, vram, epoch, granted_us,
           renewed_us, until_us, idle, cards, finish, paid_us, before_us, day, token, turns, away, notice_us,
           notice_of_term
           FROM leases WHERE id = 4",
        "lease L99 has a row that the log does not",
    );
    check("UPDATE tenants SET byte_us = '0'", "tenant 0 differs");
    check("UPDATE meta SET next_epoch = 1", "the table `meta` differs: `next_epoch` is `");
    check("UPDATE cards SET service = '\"draining\"' WHERE id = 1", "card 1 differs");
    check("DELETE FROM cards WHERE id = 1", "the file is damaged: the row of card 1 is missing");
    check("UPDATE leases SET ask = '{'", "the file is damaged");
    check("UPDATE leases SET token = 9 WHERE id = 4", "lease L4 differs");
    for id in [1, 2] {
        check(&format!("UPDATE tokens SET hash = zeroblob(32) WHERE id = {id}"), &format!("token K{id} differs"));
        let gone = format!("token K{id} is live by the log, but its row is missing");
        check(&format!("DELETE FROM tokens WHERE id = {id}"), &gone);
    }
    check(
        "INSERT INTO tokens SELECT 3, tenant, name, hash, read_only, caps, made_wall_us, expires_wall_us
         FROM tokens WHERE id = 1",
        "token K3 has a row that the log does not explain",
    );
}

#[test]
fn a_row_that_names_an_unknown_gpu_is_refused_by_verify_and_by_a_start() {
    check("UPDATE leases SET cards = '[7]' WHERE id = 4", "the file is damaged: the row of card 7 is missing");
    let dir = Dir::new();
    let mut world = World::new(3);
    world.lease();
    {
        let (mut journal, _) = dir.open();
        journal.commit(&world.close()).unwrap();
    }
    dir.sql("UPDATE leases SET cards = '[7]'");
    let refused = Journal::open(&dir.path()).unwrap_err();
    assert!(matches!(refused, OpenError::Corrupt { .. }), "{refused}");
}

#[test]
fn a_finding_names_the_row_and_both_values() {
    let findings = after("UPDATE leases SET until_us = 7 WHERE id = 2");
    let (row, fields) = findings.split_once(" differs: ").expect("it names the row first");
    assert_eq!(row, "lease L2");
    assert!(fields.contains("until` is `") && fields.ends_with("` by the log and `7` in its row"), "{fields}");
}

#[test]
fn a_changed_answer_is_found() {
    let what = "the stored answer for key `k` of tenant 0";
    check("UPDATE answers SET status = 503", &format!("{what} has the status 503"));
    check("UPDATE answers SET fingerprint = x'00'", &format!("{what} has a fingerprint of 1 bytes instead of 32"));
    check("UPDATE answers SET body = '{\"id\":'", &format!("{what} is no JSON"));
    check("UPDATE answers SET tenant = 99", "of tenant 99 is of a tenant that there is not");
}

#[test]
fn a_clock_that_was_set_back_is_found() {
    check("UPDATE meta SET clock_us = 3", "the table `meta` has the clock at 3 µs, but the log has an entry of");
}

#[test]
fn entry_numbers_that_no_log_can_have_are_found() {
    check("UPDATE meta SET base_seq = -1", "the file is damaged");
    check("UPDATE meta SET head_seq = -1", "the file is damaged");
    check("UPDATE meta SET base_seq = head_seq + 1", "the file is damaged");
}

#[test]
fn a_counter_at_its_end_is_found() {
    for counter in ["next_lease = -1", "next_epoch = -1", "next_stranger = -1", "next_token = 4294967295"] {
        check(&format!("UPDATE meta SET {counter}"), "the file is damaged: the table `meta` has a counter at its end");
    }
}

#[test]
fn changed_history_is_found() {
    check("UPDATE past SET reason = 'revoked' WHERE id = 9", "ended lease L9 differs");
    check("DELETE FROM past WHERE id = 9", "ended lease L9 is in the log, but its row is missing");
    check(
        "INSERT INTO past (id, tenant, asked_us, ask, reason, ended_us) SELECT 50, tenant, asked_us, ask, reason, ended_us
         FROM past WHERE id = 9",
        "ended lease L50 has a row that the log does not explain",
    );
}

#[test]
fn a_changed_base_is_found() {
    check("UPDATE base SET body = replace(body, 'uid:1000', 'uid:1') WHERE kind = 'tenant'", "tenant 0 differs");
    check("DELETE FROM base", "of the log names an unknown card");
}
