//! Strangers: found, adopted, warned, ended; and all who are left alone.

use super::{check, check_with, told};
use crate::model::settings::Policy;
use crate::model::units::Span;
use crate::model::unleased::{EnforcementTimes, UnleasedId};
use expect_test::expect;

/// A house where strangers have ten seconds for everything.
pub(super) fn brisk() -> Policy {
    Policy {
        enforcement: EnforcementTimes {
            after_warning: Span::secs(10),
            after_sigterm: Span::secs(10),
            ..EnforcementTimes::default()
        },
        ..Policy::default()
    }
}

#[test]
fn a_stranger_is_put_on_the_record_and_left_alone() {
    check(
        "
        0s cards 24G
        0s tested
        0s card 0 stray=4G
        1s audit stray
        400s card 0
        ",
        expect![[r#"
            1s find X1 of uid 7
            400s close X1 (OffGpus)
        "#]],
    );
}

#[test]
fn who_does_not_heed_the_warning_gets_sigterm_and_then_sigkill() {
    check_with(
        brisk(),
        "
        0s cards 24G
        0s tested
        0s card 0 stray=4G
        0s mode 0 enforce root
        1s audit stray tree=child
        9s audit stray tree=child
        12s audit stray tree=child,other
        12.1s struck X1 15 stray
        22s audit stray tree=child
        23s audit stray tree=child
        23.1s struck X1 9 stray
        24s card 0
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s strike X1 with 15, 3 processes
            12.1s struck X1 with 15
            23s strike X1 with 9, 2 processes
            23.1s struck X1 with 9
            24s close X1 (OffGpus)
        "#]],
    );
}

#[test]
fn who_is_started_anew_after_it_was_ended_is_known_again() {
    check_with(
        brisk(),
        "
        0s cards 24G
        0s tested
        0s card 0 stray=4G
        0s mode 0 enforce root
        1s audit stray
        12s audit stray
        12.1s struck X1 15 stray
        13s left stray
        14s card 0 next=4G
        14s audit next
        15s left next
        16s card 0 third=4G
        16s audit third
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s strike X1 with 15, 1 processes
            12.1s struck X1 with 15
            13s close X1 (Exited)
            14s find X2 of uid 7, X1 again
            14s warn X2 until 24s
            15s close X2 (Exited)
            16s find X3 of uid 7, X2 again
            16s warn X3 until 24s
        "#]],
    );
}

#[test]
fn who_leaves_when_it_is_warned_and_comes_back_has_what_was_left_of_its_time() {
    check_with(
        brisk(),
        "
        0s cards 24G
        0s tested
        0s card 0 stray=4G
        0s mode 0 enforce root
        1s audit stray
        5s left stray
        6s card 0 other=4G
        7s audit other
        11.5s audit other
        12s audit other
        13s struck X2 15 other
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            5s close X1 (Exited)
            7s find X2 of uid 7, X1 again
            7s warn X2 until 11s
            11.5s strike X2 with 15, 1 processes
            13s struck X2 with 15
        "#]],
    );
}

#[test]
fn nothing_happens_to_it_while_its_card_cannot_be_read() {
    check_with(
        brisk(),
        "
        0s cards 24G
        0s tested
        0s card 0 stray=4G
        0s mode 0 enforce root
        1s audit stray
        5s card 0 unreadable
        14s audit stray
        30s audit stray
        31s card 0 stray=4G
        32s audit stray
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            31s strike X1 with 15, 1 processes
        "#]],
    );
}

#[test]
fn whoever_survives_sigkill_takes_its_card_out_of_service() {
    check_with(
        brisk(),
        "
        0s cards 24G
        0s tested
        0s card 0 stray=4G
        0s mode 0 enforce root
        1s audit stray
        12s audit stray
        12.1s struck X1 15 stray
        23s audit stray
        23.1s struck X1 9 stray
        40s ask ann 4G wait=0s
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s strike X1 with 15, 1 processes
            12.1s struck X1 with 15
            23s strike X1 with 9, 1 processes
            23.1s struck X1 with 9
            33.1s X1 survived
            33.1s card 0 Out { why: "X1 survived SIGKILL and still has memory there" }
            40s refuse: there is no room now (largest possible: 0 B)
        "#]],
    );
}

#[test]
fn an_adopted_process_is_no_stranger_and_needs_no_room_for_what_it_has() {
    check_with(
        brisk(),
        "
        0s cards 24G
        0s tested
        0s card 0 stray=20G
        0s mode 0 enforce root
        1s audit stray uid=7
        2s adopt stray ann
        2s adopt stray uid:7 40G
        3s adopt stray uid:7 22G
        20s ask ann 4G wait=0s
        21s card 0
        22s gone L1
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            2s refuse: no unleased process of yours with this id is on a GPU
            2s refuse: there is no room now (largest possible: 23.8 GiB)
            3s queue L1
            3s grant L1 22 GiB on 0 epoch 1 until 303s
            3s close X1 (Adopted(LeaseId(1)))
            20s refuse: there is no room now (largest possible: 1.8 GiB)
            22s end L1 (HolderExited)
        "#]],
    );
}

#[test]
fn an_adopted_lease_grows_with_its_program_unless_its_size_was_given() {
    check(
        "
        0s cards 24G
        0s tested
        0s card 0 stray=4G other=4G
        1s audit stray uid=7
        1s audit other uid=8
        2s adopt stray uid:7
        2s adopt other uid:8 5G
        3s card 0 stray=4100M other=4G
        6s card 0 stray=4100M other=6G
        9s ask ann 10G wait=0s
        10s card 0 stray=9G other=6G
        13s tick
        ",
        expect![[r#"
            1s find X1 of uid 7
            1s find X2 of uid 8
            2s queue L1
            2s grant L1 4 GiB on 0 epoch 1 until 302s
            2s close X1 (Adopted(LeaseId(1)))
            2s queue L2
            2s grant L2 5 GiB on 0 epoch 2 until 302s
            2s close X2 (Adopted(LeaseId(2)))
            4s grow L1 to 4.1 GiB
            7s over L2: 6 GiB
            9s queue L3
            9s grant L3 10 GiB on 0 epoch 3 until 69s
            11s over L1: 9 GiB
        "#]],
    );
}

#[test]
fn a_known_users_process_with_a_card_open_is_adopted_where_that_is_the_mode() {
    check(
        "
        0s cards 24G
        0s card 0
        0s ask uid:7 1G wait=0s
        1s release L1 uid:7
        1s mode 0 adopt root
        2s tested
        2s mode 0 adopt root
        2s card 0 stray=4G other=3G fileless=1G
        3s audit stray uid=7
        3s audit other uid=8
        3s audit fileless uid=7 nodev
        20s card 0 stray=4G other=3G fileless=1G
        ",
        expect![[r#"
            0s queue L1
            0s grant L1 1 GiB on 0 epoch 1 until 60s
            1s end L1 (Released)
            1s refuse: unleased processes cannot be told apart here: it was not tried yet
            2s retire L1
            2s card 0 mode adopt
            3s find X1 of uid 7
            3s find X2 of uid 8
            3s find X3 of uid 7
            8s queue L2
            8s grant L2 4 GiB on 0 epoch 2 until 308s
            8s close X1 (Adopted(LeaseId(2)))
        "#]],
    );
}

#[test]
fn who_calls_itself_something_else_all_the_time_is_noted_once_a_minute_and_before_anything_is_done() {
    let story = "
        0s cards 24G
        0s tested
        0s card 0 stray=1G
        0s mode 0 enforce root
        1s audit stray
        2s audit stray title=one
        3s audit stray title=two
        9s audit stray title=three
        12s audit stray title=four
        ";
    let called = |until: usize| {
        let lines: Vec<&str> = story.trim_end().lines().take(until).collect();
        told(&lines.join("\n"), brisk()).state.rows().unleased[&UnleasedId(1)].audit.command.join(" ")
    };
    assert_eq!([6, 7, 8, 9, 10].map(called), ["python3 train.py", "one", "one", "one", "four"]);
}

#[test]
fn who_has_no_path_or_more_files_than_are_looked_at_is_ended_all_the_same() {
    check_with(
        brisk(),
        "
        0s cards 24G
        0s tested
        0s card 0 stray=1G crowd=1G
        0s mode 0 enforce root
        1s audit stray nopath
        1s audit crowd crowded
        12s audit stray nopath
        12s audit crowd crowded
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            1s find X2 of uid 7
            1s warn X2 until 11s
            12s strike X1 with 15, 1 processes
            12s strike X2 with 15, 1 processes
        "#]],
    );
}

#[test]
fn rules_containers_and_what_cannot_be_audited_are_left_alone() {
    check_with(
        brisk(),
        "
        0s cards 24G
        0s tested
        0s card 0 a=1G b=1G c=1G d=1G e=1G
        0s mode 0 enforce root
        0s allow unit:ollama.service root
        0s deny container:feedfacecafe root
        1s audit a unit=ollama.service
        1s audit b container=0123456789abcdef
        1s audit c container=feedfacecafe0123
        1s audit d unread=its-files
        1s audit e nodev
        12s audit a unit=ollama.service
        12s audit b container=0123456789abcdef
        12s audit c container=feedfacecafe0123
        12s audit d unread=its-files
        12s audit e nodev
        13s unrule R1 root
        14s unrule R1 root
        15s allow uid:7 ann
        ",
        expect![[r#"
            0s card 0 mode enforce
            0s rule R1: Allow unit:ollama.service
            0s rule R2: Deny container:feedfacecafe
            1s find X1 of uid 7
            1s find X2 of uid 7
            1s warn X2 until 11s
            1s find X3 of uid 7
            1s warn X3 until 11s
            1s find X4 of uid 7
            1s warn X4 until 11s
            1s find X5 of uid 7
            1s warn X5 until 11s
            12s strike X3 with 15, 1 processes
            13s drop rule R1
            13s warn X1 until 23s
            14s refuse: no such rule
            15s refuse: only an operator may do this
        "#]],
    );
}

#[test]
fn nobody_is_ended_where_processes_cannot_be_told_apart() {
    check_with(
        brisk(),
        "
        0s cards 24G
        0s card 0 stray=4G
        0s mode 0 enforce root
        1s tested this is not the first pid namespace
        1s mode 0 enforce root
        2s mode 0 warn root
        2s mode 0 warn ann
        3s audit stray
        30s audit stray
        ",
        expect![[r#"
            0s refuse: unleased processes cannot be told apart here: it was not tried yet
            1s refuse: unleased processes cannot be told apart here: this is not the first pid namespace
            2s card 0 mode warn
            2s refuse: only an operator may do this
            3s find X1 of uid 7
            3s warn X1 until 13s
        "#]],
    );
}

#[test]
fn a_mode_that_is_taken_back_stops_what_was_begun() {
    check_with(
        brisk(),
        "
        0s cards 24G
        0s tested
        0s card 0 stray=4G
        0s mode 0 enforce root
        1s audit stray
        12s audit stray
        12.1s struck X1 15 stray
        15s mode 0 observe root
        40s audit stray
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s strike X1 with 15, 1 processes
            12.1s struck X1 with 15
            15s card 0 mode observe
            15s relent X1
        "#]],
    );
}

#[test]
fn a_daemon_that_died_between_record_and_signal_sends_it_once_and_the_grace_is_the_same() {
    check_with(
        brisk(),
        "
        0s cards 24G
        0s tested
        0s card 0 stray=4G
        0s mode 0 enforce root
        1s audit stray
        12s audit stray
        13s restart
        14s card 0 stray=4G
        15s tested
        16s audit stray
        16.1s struck X1 15 stray
        17s restart
        18s card 0 stray=4G
        18s tested
        19s audit stray
        80s audit stray
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s strike X1 with 15, 1 processes
            13s grace until 73s
            16s strike X1 with 15, 1 processes as of 12s
            16.1s struck X1 with 15
            17s grace until 77s
            80s strike X1 with 9, 1 processes
        "#]],
    );
}

#[test]
fn a_signal_that_is_refused_is_not_tried_again_until_it_is_about_another_program() {
    check_with(
        brisk(),
        "
        0s cards 24G
        0s tested
        0s card 0 stray=4G
        0s mode 0 enforce root
        1s audit stray
        12s audit stray
        12.1s struck X1 15 stray that is not permitted
        13s audit stray
        60s audit stray
        61s audit stray exe=/usr/bin/other
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s strike X1 with 15, 1 processes
            12.1s struck X1 with 15, refused: that is not permitted
            61s X1 is /usr/bin/other
            61s strike X1 with 15, 1 processes as of 12s
        "#]],
    );
}

#[test]
fn a_process_that_turns_out_to_be_a_holders_is_no_stranger() {
    check(
        "
        0s cards 24G
        0s card 0 L1/x=4G
        1s audit L1/x
        2s ask ann 4G
        3s alive L1 L1/x
        4s tick
        5s audit L1/x
        6s left L1/x
        ",
        expect![[r#"
            1s find X1 of uid 7
            2s queue L1
            2s grant L1 4 GiB on 0 epoch 1 until 62s
            4s close X1 (Matched(LeaseId(1)))
        "#]],
    );
}

#[test]
fn who_asked_for_a_lease_is_a_stranger_until_it_is_granted_one() {
    check_with(
        brisk(),
        "
        0s cards 24G
        0s tested
        0s card 0 stray=20G
        0s mode 0 enforce root
        1s audit stray
        2s ask bob 20G
        3s alive L1 stray
        4s card 0 stray=20G
        12s audit stray
        13s struck X1 15 stray
        14s card 0
        15s audit stray
        16s alive L1 stray
        17s card 0 stray=20G
        18s audit stray
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            2s queue L1
            12s strike X1 with 15, 1 processes
            13s struck X1 with 15
            14s close X1 (OffGpus)
            14s grant L1 20 GiB on 0 epoch 1 until 74s
        "#]],
    );
}

#[test]
fn who_waits_takes_no_process_from_who_has_its_cards() {
    check(
        "
        0s cards 24G
        0s card 0
        1s ask ann 2G
        2s alive L1 both
        3s ask bob 23G
        4s alive L2 both
        5s card 0 both=4G
        6s card 0 both=4G
        ",
        expect![[r#"
            1s queue L1
            1s grant L1 2 GiB on 0 epoch 1 until 61s
            3s queue L2
            6s over L1: 4 GiB
        "#]],
    );
}

#[test]
fn the_grace_begins_when_the_signal_has_gone_out_however_late_that_is() {
    let policy = Policy { grace: Span::secs(1), ..brisk() };
    check_with(
        policy,
        "
        0s cards 24G
        0s tested
        0s card 0 stray=4G
        0s mode 0 enforce root
        1s audit stray
        12s audit stray
        100s restart
        101s card 0 stray=4G
        102s tested
        102s audit stray
        103s struck X1 15 stray
        104s audit stray
        112s audit stray
        113s audit stray
        200s restart
        201s card 0 stray=4G
        202s tested
        202s audit stray
        203s struck X1 9 stray
        204s card 0 stray=4G
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s strike X1 with 15, 1 processes
            100s grace until 101s
            102s strike X1 with 15, 1 processes as of 12s
            103s struck X1 with 15
            113s strike X1 with 9, 1 processes
            200s grace until 201s
            202s strike X1 with 9, 1 processes as of 113s
            203s struck X1 with 9
        "#]],
    );
}

#[test]
fn an_audit_of_long_ago_is_not_enough_for_what_an_earlier_daemon_decided() {
    check_with(
        brisk(),
        "
        0s cards 24G
        0s tested
        0s card 0 stray=4G
        0s mode 0 enforce root
        1s audit stray
        12s audit stray
        13s restart
        14s card 0 stray=4G
        15s audit stray
        30s tested
        31s audit stray
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s strike X1 with 15, 1 processes
            13s grace until 73s
            31s strike X1 with 15, 1 processes as of 12s
        "#]],
    );
}

#[test]
fn whoever_survives_is_a_survivor_even_if_it_cannot_be_audited_any_more() {
    check_with(
        brisk(),
        "
        0s cards 24G
        0s tested
        0s card 0 stray=4G
        0s mode 0 enforce root
        1s audit stray
        12s audit stray
        12.1s struck X1 15 stray
        23s audit stray
        23.1s struck X1 9 stray
        24s audit stray unread=its-files
        34s card 0 stray=4G
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s strike X1 with 15, 1 processes
            12.1s struck X1 with 15
            23s strike X1 with 9, 1 processes
            23.1s struck X1 with 9
            24s X1 is /usr/bin/python3
            34s X1 survived
            34s card 0 Out { why: "X1 survived SIGKILL and still has memory there" }
        "#]],
    );
}

#[test]
fn whom_a_rule_allows_is_not_signalled_with_its_parent() {
    check_with(
        brisk(),
        "
        0s cards 24G
        0s tested
        0s card 0 stray=4G child=1G
        0s mode 0 enforce root
        0s allow unit:ollama.service root
        1s audit stray tree=child,other
        1s audit child unit=ollama.service
        12s audit stray tree=child,other
        ",
        expect![[r#"
            0s card 0 mode enforce
            0s rule R1: Allow unit:ollama.service
            1s find X1 of uid 7
            1s warn X1 until 11s
            1s find X2 of uid 7
            12s strike X1 with 15, 2 processes
        "#]],
    );
}

#[test]
fn a_lease_that_a_process_gets_needs_room_where_the_process_has_less() {
    check(
        "
        0s cards 24G 24G
        0s card 0 stray=10G
        0s card 1 stray=1G other=20G
        1s audit stray uid=7
        2s adopt stray uid:7
        3s card 1 stray=1G other=10G
        4s adopt stray uid:7
        5s ask ann 4G wait=0s
        ",
        expect![[r#"
            1s find X1 of uid 7
            2s refuse: there is no room now (largest possible: 3.8 GiB)
            4s queue L1
            4s grant L1 10 GiB on 0+1 epoch 1 until 304s
            4s close X1 (Adopted(LeaseId(1)))
            5s queue L2
            5s grant L2 4 GiB on 0 epoch 2 until 65s
        "#]],
    );
}

#[test]
fn what_was_begun_is_over_where_strangers_get_leases_even_if_this_one_gets_none() {
    check_with(
        brisk(),
        "
        0s cards 24G
        0s tested
        0s card 0 stray=4G
        0s mode 0 enforce root
        1s audit stray
        12s audit stray
        12.1s struck X1 15 stray
        13s mode 0 adopt root
        100s mode 0 enforce root
        101s audit stray
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s strike X1 with 15, 1 processes
            12.1s struck X1 with 15
            13s card 0 mode adopt
            13s relent X1
            100s card 0 mode enforce
            100s warn X1 until 110s
        "#]],
    );
}

#[test]
fn a_service_with_a_standing_ask_has_a_lease_whenever_it_is_there() {
    check_with(
        brisk(),
        "
        0s cards 24G
        0s tested
        0s mode 0 enforce root
        0s attach unit:ollama.service 8G root
        0s card 0 first=4G
        1s audit first unit=ollama.service
        4s gone L1
        5s card 0 second=4G other=18G
        6s audit second unit=ollama.service
        10s card 0 second=4G other=18G
        ",
        expect![[r#"
            0s card 0 mode enforce
            0s rule R1: Adopt { vram: Some(Bytes(8589934592)), tier: Interactive } unit:ollama.service
            1s find X1 of uid 7
            2s queue L1
            2s grant L1 8 GiB on 0 epoch 1 until 302s
            2s close X1 (Adopted(LeaseId(1)))
            4s end L1 (HolderExited)
            5s retire L1
            6s find X2 of uid 7
            7s queue L2
            7s grant L2 4 GiB on 0 epoch 2 until 307s
            7s close X2 (Adopted(LeaseId(2)))
        "#]],
    );
}
