//! Processes of leases on cards that those leases do not have: strangers there, and at home elsewhere.

use super::{check_with, process, told};
use crate::model::ids::GpuId;
use crate::model::settings::{Parking, Policy};
use crate::model::units::{Bytes, Span};
use crate::model::unleased::EnforcementTimes;
use expect_test::{Expect, expect};

/// A house that could park anybody, where strangers have ten seconds for everything.
fn roomy() -> Policy {
    let patience = EnforcementTimes {
        after_warning: Span::secs(10),
        after_sigterm: Span::secs(10),
        ..EnforcementTimes::default()
    };
    let parking = Parking { space: Bytes::gib(64), ..Parking::default() };
    Policy { enforcement: patience, parking, ..Policy::default() }
}

/// L1 has card 0, and its process is on card 1 too.
const BEGIN: &str = "
    0s cards 24G 24G
    0s ram 100G
    0s tested
    0s card 0
    0s card 1
    0s ask uid:7 4G on=0 ttl=300s
    0s bind L1
    1s card 0 L1=2G
    1s card 1 L1=3G
";

fn check(story: &str, expect: Expect) {
    check_with(roomy(), &format!("{BEGIN}{story}"), expect);
}

#[test]
fn a_process_of_a_lease_is_a_stranger_on_a_card_that_the_lease_does_not_have() {
    check(
        "
        2s audit L1
        30s card 1
        40s audit L1
        ",
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 300s
            0s bind L1
            2s find X1 of uid 7, a process of L1
            30s close X1 (OffGpus)
        "#]],
    );
}

#[test]
fn it_is_warned_and_signalled_there_and_neither_parked_nor_are_others_of_its_lease() {
    check(
        "
        2s mode 1 enforce root
        2s alive L1 L1 child
        3s audit L1 tree=child,own
        14s audit L1 tree=child,own
        14.1s struck X1 15 L1
        25s audit L1 tree=child,own
        25.1s struck X1 9 L1
        26s card 1
        ",
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 300s
            0s bind L1
            2s card 1 mode enforce
            3s find X1 of uid 7, a process of L1
            3s warn X1 until 13s
            14s strike X1 with 15, 2 processes
            14.1s struck X1 with 15
            25s strike X1 with 9, 2 processes
            25.1s struck X1 with 9
            26s close X1 (OffGpus)
        "#]],
    );
}

#[test]
fn the_mode_of_the_cards_that_its_lease_has_is_not_about_it() {
    check(
        "
        2s mode 0 enforce root
        2s mode 1 warn root
        3s audit L1
        30s audit L1
        60s audit L1
        ",
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 300s
            0s bind L1
            2s card 0 mode enforce
            2s card 1 mode warn
            3s find X1 of uid 7, a process of L1
            3s warn X1 until 13s
        "#]],
    );
}

#[test]
fn who_draws_much_there_is_on_the_record_and_warned_and_not_ended() {
    check(
        "
        2s card 1 ~L1=300M
        2s mode 1 enforce root
        3s audit L1
        14s audit L1
        15s card 1 ~L1=200M
        ",
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 300s
            0s bind L1
            2s card 1 mode enforce
            3s find X1 of uid 7, a process of L1
            3s warn X1 until 13s
            15s close X1 (OffGpus)
        "#]],
    );
}

#[test]
fn who_draws_little_there_or_has_nothing_there_or_is_only_where_its_lease_is_is_no_stranger() {
    check(
        "
        2s card 1 L1=0M
        2s audit L1
        3s card 1
        4s audit L1
        5s card 1 ~L1=200M
        6s audit L1
        ",
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 300s
            0s bind L1
        "#]],
    );
}

#[test]
fn it_gets_no_second_lease_before_the_first_is_over() {
    check(
        "
        2s mode 1 adopt root
        3s audit L1
        20s adopt L1 uid:7
        21s adopt L1 root
        22s release L1 uid:7
        23s card 0 L1=2G
        24s card 1 L1=3G
        ",
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 300s
            0s bind L1
            2s card 1 mode adopt
            3s find X1 of uid 7, a process of L1
            20s refuse: it cannot have a lease now: it is a process of L1, which is for other GPUs: end L1, or ask for all of its GPUs in one lease
            21s refuse: it cannot have a lease now: it is a process of L1, which is for other GPUs: end L1, or ask for all of its GPUs in one lease
            22s end L1 (Released)
            23s retire L1
            23s queue L2
            23s grant L2 3 GiB on 0+1 epoch 2 until 323s
            23s close X1 (Adopted(LeaseId(2)))
        "#]],
    );
}

#[test]
fn it_is_none_any_more_when_it_has_a_lease_for_each_of_its_cards() {
    check(
        "
        2s audit L1
        3s ask uid:7 4G on=1
        4s alive L2 L1
        5s card 1 L1=3G
        ",
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 300s
            0s bind L1
            2s find X1 of uid 7, a process of L1
            3s queue L2
            3s grant L2 4 GiB on 1 epoch 2 until 63s
            5s close X1 (Matched(LeaseId(2)))
        "#]],
    );
}

#[test]
fn it_is_not_forgotten_while_that_card_cannot_be_read() {
    check(
        "
        2s mode 1 enforce root
        2s audit L1
        3s card 1 unreadable
        20s audit L1
        30s card 1 L1=3G
        31s audit L1
        ",
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 300s
            0s bind L1
            2s card 1 mode enforce
            2s find X1 of uid 7, a process of L1
            2s warn X1 until 12s
            31s strike X1 with 15, 1 processes
        "#]],
    );
}

#[test]
fn a_service_with_a_standing_ask_is_warned_and_has_all_of_its_cards_once_its_lease_is_over() {
    check(
        "
        2s mode 1 enforce root
        2s attach exe:python3 4G root
        3s audit L1
        20s audit L1
        30s release L1 uid:7
        31s card 0 L1=2G
        ",
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 300s
            0s bind L1
            2s card 1 mode enforce
            2s rule R1: Adopt { vram: Some(Bytes(4294967296)), tier: Interactive } exe:python3
            3s find X1 of uid 7, a process of L1
            3s warn X1 until 13s
            30s end L1 (Released)
            31s retire L1
            31s queue L2
            31s grant L2 4 GiB on 0+1 epoch 2 until 331s
            31s close X1 (Adopted(LeaseId(2)))
        "#]],
    );
}

#[test]
fn who_becomes_a_lease_s_that_is_for_another_card_stays_a_stranger() {
    check_with(
        roomy(),
        "
        0s cards 24G 24G
        0s tested
        0s card 0
        0s card 1 stray=3G
        0s mode 1 enforce root
        1s audit stray
        2s ask uid:7 4G on=0
        3s alive L1 stray
        12s audit stray
        12.1s struck X1 15 stray
        ",
        expect![[r#"
            0s card 1 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            2s queue L1
            2s grant L1 4 GiB on 0 epoch 1 until 62s
            12s strike X1 with 15, 1 processes
            12.1s struck X1 with 15
        "#]],
    );
}

#[test]
fn the_host_is_asked_to_look_into_those_that_take_something_where_their_lease_is_not() {
    let abroad =
        |story: &str, card: u16| told(&format!("{BEGIN}{story}"), roomy()).state.off_lease_processes(GpuId(card));
    assert_eq!((abroad("", 0), abroad("", 1)), (vec![], vec![process("L1")]));
    assert_eq!(abroad("2s card 1 L1=3G stray=4G", 1), [process("L1")], "strangers are found without asking");
    assert_eq!(abroad("2s card 1 L1=0M", 1), []);
    assert_eq!(abroad("2s card 1 unreadable", 1), []);
    assert_eq!(abroad("2s card 1 coarse L1=3G", 1), [], "it is not known there whose bytes are whose");
    assert_eq!(abroad("2s release L1 uid:7\n3s card 0 L1=2G", 1), [], "it has no lease any more");
}
