//! Strangers that are parked in place of being ended, and those that cannot be.

use super::check_with;
use crate::model::settings::{Parking, Policy};
use crate::model::units::{Bytes, Span};
use crate::model::unleased::EnforcementTimes;
use expect_test::expect;

/// A house that parks, where strangers have ten seconds for everything.
pub(super) fn roomy() -> Policy {
    let patience = EnforcementTimes {
        after_warning: Span::secs(10),
        after_sigterm: Span::secs(10),
        ..EnforcementTimes::default()
    };
    let parking = Parking { space: Bytes::gib(64), ..Parking::default() };
    Policy { enforcement: patience, parking, ..Policy::default() }
}

/// A stranger that is warned and due, and what follows.
fn check(story: &str, expect: expect_test::Expect) {
    let begin = "
        0s cards 24G
        0s ram 100G
        0s tested
        0s card 0 L1=4G
        0s mode 0 enforce root
        1s audit L1
        12s audit L1
        ";
    check_with(roomy(), &format!("{begin}{story}"), expect);
}

#[test]
fn who_holds_what_a_dead_process_left_is_not_parked_and_ended_only_if_nobody_else_can_have_it() {
    check_with(
        roomy(),
        "
        0s cards 24G
        0s ram 100G
        0s tested
        0s card 0 a=4G
        0s mode 0 enforce root
        1s audit a through=77
        12s audit a through=77
        15s card 0 b=4G
        16s audit b through=88+more
        27s audit b through=88+more
        40s audit b through=88+more
        50s audit b through=88
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s strike X1 with 15, 1 processes
            15s close X1 (OffGpus)
            16s find X2 of uid 7, X1 again
            16s warn X2 until 26s
            50s X2 is /usr/bin/python3
            50s strike X2 with 15, 1 processes
        "#]],
    );
}

#[test]
fn a_stranger_that_did_not_heed_its_warning_is_parked_and_comes_back_when_it_is_wanted() {
    check(
        "
        13s driver L1 here
        20s driver L1 parked 4G
        20s card 0
        23s resume L1 uid:7
        25s driver L1 resumed
        25s card 0 L1=4G
        40s card 0 L1=4G
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s queue L1
            12s grant L1 4 GiB on 0 epoch 1 until 312s
            12s take X1 off by L1
            14s park L1 by driver (4.1 GiB booked)
            22s parked L1
            22s close X1 (Parked(LeaseId(1)))
            23s L1 wants 4 GiB as of 23s
            23s resume L1 4 GiB until 323s
            26s resumed L1
        "#]],
    );
}

#[test]
fn whom_the_driver_cannot_move_gets_sigterm_once_its_lease_is_over() {
    check(
        "
        13s driver L1 here
        13s driver L1 cannot it uses managed memory
        14.5s audit L1
        16s audit L1
        16.1s struck X1 15 L1
        30s audit L1
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s queue L1
            12s grant L1 4 GiB on 0 epoch 1 until 312s
            12s take X1 off by L1
            14s X1 stays: it uses managed memory
            14s end L1 (NotMoved)
            15.5s retire L1
            16s strike X1 with 15, 1 processes
            16.1s struck X1 with 15
            30s strike X1 with 9, 1 processes
        "#]],
    );
}

#[test]
fn of_whom_the_driver_says_nothing_gets_sigterm_after_half_a_minute() {
    check(
        "
        30s audit L1
        43.5s audit L1
        45s audit L1
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s queue L1
            12s grant L1 4 GiB on 0 epoch 1 until 312s
            12s take X1 off by L1
            42s X1 stays: the driver did not say in time whether it can be parked
            42s end L1 (NotMoved)
            43s retire L1
            43.5s strike X1 with 15, 1 processes
        "#]],
    );
}

#[test]
fn a_driver_that_tried_and_failed_is_not_asked_again() {
    check(
        "
        13s driver L1 here
        14s driver L1 refused its streams are captured
        16s driver L1 resumed
        20s card 0 L1=4G
        21s audit L1
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s queue L1
            12s grant L1 4 GiB on 0 epoch 1 until 312s
            12s take X1 off by L1
            14s park L1 by driver (4.1 GiB booked)
            14s unpark L1 (Refused("its streams are captured"))
            15s resumed L1
            15s X1 stays: it was tried a moment ago: its streams are captured
            15s end L1 (NotMoved)
            16s retire L1
            21s strike X1 with 15, 1 processes
        "#]],
    );
}

#[test]
fn beside_others_who_could_take_its_room_it_is_ended_when_it_is_due() {
    check_with(
        roomy(),
        "
        0s cards 24G
        0s ram 100G
        0s tested
        0s card 0 stray=4G other=1G
        0s mode 0 enforce root
        0s allow exe:/bin/other root
        1s audit stray
        1s audit other exe=/bin/other
        12s audit stray
        ",
        expect![[r#"
            0s card 0 mode enforce
            0s rule R1: Allow exe:/bin/other
            1s find X1 of uid 7
            1s warn X1 until 11s
            1s find X2 of uid 7
            12s X1 stays: a restore would not be sure to have room: processes without a lease are on GPU 0: 1
            12s strike X1 with 15, 1 processes
        "#]],
    );
}

#[test]
fn where_nobody_is_parked_or_there_is_too_little_memory_it_is_ended_when_it_is_due() {
    let story = "
        0s cards 24G
        0s ram 100G
        0s tested
        0s card 0 stray=4G
        0s mode 0 enforce root
        1s audit stray
        12s audit stray
        ";
    let mut off = roomy();
    off.enforcement.parks_first = false;
    check_with(
        off,
        story,
        expect![[r#"
        0s card 0 mode enforce
        1s find X1 of uid 7
        1s warn X1 until 11s
        12s strike X1 with 15, 1 processes
    "#]],
    );
    let mut small = roomy();
    small.parking.space = Bytes::gib(2);
    check_with(
        small,
        story,
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s X1 stays: it needs 4.1 GiB of host memory, and the parking space has 2 GiB free
            12s strike X1 with 15, 1 processes
        "#]],
    );
}

#[test]
fn a_daemon_that_comes_back_goes_on_with_the_same_lease() {
    check(
        "
        13s restart
        13s alive L1
        13s ram 100G
        13s card 0 L1=4G
        14s tested
        15s audit L1
        20s driver L1 here
        22s restart
        22s alive L1
        22s ram 100G
        22s card 0 L1=4G
        23s driver L1 here
        25s driver L1 parked 4G
        25s card 0
        27s tick
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s queue L1
            12s grant L1 4 GiB on 0 epoch 1 until 312s
            12s take X1 off by L1
            13s grace until 73s
            22s grace until 82s
            24s park L1 by driver (4.1 GiB booked)
            27s parked L1
            27s close X1 (Parked(LeaseId(1)))
        "#]],
    );
}

#[test]
fn a_daemon_that_comes_back_after_it_could_not_be_moved_ends_it_once() {
    check(
        "
        13s driver L1 here
        13s driver L1 cannot it uses managed memory
        14.1s tick
        14.5s restart
        14.5s card 0 L1=4G
        15s tested
        16s audit L1
        80s audit L1
        80.1s struck X1 15 L1
        81s restart
        81s card 0 L1=4G
        82s tested
        83s audit L1
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s queue L1
            12s grant L1 4 GiB on 0 epoch 1 until 312s
            12s take X1 off by L1
            14s X1 stays: it uses managed memory
            14s end L1 (NotMoved)
            14.5s grace until 74.5s
            14.5s retire L1
            80s strike X1 with 15, 1 processes
            80.1s struck X1 with 15
            81s grace until 141s
        "#]],
    );
}

#[test]
fn an_operator_who_thinks_better_of_it_leaves_it_its_lease_and_its_card() {
    check(
        "
        13s driver L1 here
        14s mode 0 observe root
        15s driver L1 parked 4G
        15s card 0
        18s tick
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s queue L1
            12s grant L1 4 GiB on 0 epoch 1 until 312s
            12s take X1 off by L1
            14s park L1 by driver (4.1 GiB booked)
            14s card 0 mode observe
            14s close X1 (Adopted(LeaseId(1)))
            17s parked L1
            17s L1 wants 4 GiB as of 17s
            17s resume L1 4 GiB until 317s
        "#]],
    );
    check(
        "
        13s allow uid:7 root
        20s audit L1
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s queue L1
            12s grant L1 4 GiB on 0 epoch 1 until 312s
            12s take X1 off by L1
            13s rule R1: Allow uid:7
            13s close X1 (Adopted(LeaseId(1)))
        "#]],
    );
}

#[test]
fn its_owner_who_adopts_it_meanwhile_gets_that_lease() {
    check(
        "
        13s driver L1 here
        14s adopt L1 uid:7
        15s driver L1 parked 4G
        15s card 0
        18s tick
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s queue L1
            12s grant L1 4 GiB on 0 epoch 1 until 312s
            12s take X1 off by L1
            14s park L1 by driver (4.1 GiB booked)
            14s close X1 (Adopted(LeaseId(1)))
            17s parked L1
            17s L1 wants 4 GiB as of 17s
            17s resume L1 4 GiB until 317s
        "#]],
    );
    check(
        "
        13s driver L1 here
        13s driver L1 cannot it uses managed memory
        13.5s card 0 unreadable
        14s adopt L1 uid:7
        15s card 0 L1=4G
        16s adopt L1 uid:7
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s queue L1
            12s grant L1 4 GiB on 0 epoch 1 until 312s
            12s take X1 off by L1
            14s refuse: it cannot have a lease now: its GPU cannot be read now
            15s X1 stays: it uses managed memory
            15s end L1 (NotMoved)
            16s retire L1
            16s queue L2
            16s grant L2 4 GiB on 0 epoch 2 until 316s
            16s close X1 (Adopted(LeaseId(2)))
        "#]],
    );
}

#[test]
fn its_owner_who_ends_that_lease_gains_nothing() {
    check(
        "
        13s driver L1 here
        13.1s release L1 uid:7
        14.5s audit L1
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s queue L1
            12s grant L1 4 GiB on 0 epoch 1 until 312s
            12s take X1 off by L1
            13.1s end L1 (Released)
            14.1s retire L1
            14.1s X1 stays: its lease is over
            14.5s strike X1 with 15, 1 processes
        "#]],
    );
}
