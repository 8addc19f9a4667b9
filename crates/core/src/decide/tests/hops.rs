//! Strangers that change, come and go, or only draw; and what is asked before a signal leaves.

use super::enforce::brisk;
use super::moving::roomy;
use super::{check_with, process, told};
use crate::model::reading::Resident;
use crate::model::units::{Bytes, Span, Time};
use crate::model::unleased::{PendingSignal, UnleasedId};
use crate::policy::unleased_due::{audits_due, is_signal_due};
use expect_test::expect;

#[test]
fn who_becomes_another_program_in_time_gains_nothing_by_it() {
    check_with(
        brisk(),
        "
        0s cards 24G
        0s tested
        0s card 0 stray=4G
        0s mode 0 enforce root
        1s audit stray
        12s audit stray
        12.1s struck X1 15 stray it is not what was audited
        12.2s card 0 stray=4G
        13s audit stray exe=/usr/bin/other
        13.1s struck X1 15 stray
        23.2s audit stray exe=/usr/bin/third
        23.3s struck X1 9 stray it is not what was audited
        23.4s card 0 stray=4G
        24s audit stray exe=/usr/bin/other
        24.1s struck X1 9 stray it is not what was audited
        25s audit stray exe=/usr/bin/third
        25.1s struck X1 9 stray
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s strike X1 with 15, 1 processes
            12.1s struck X1 with 15, refused: it is not what was audited
            13s X1 is /usr/bin/other
            13s strike X1 with 15, 1 processes as of 12s
            13.1s struck X1 with 15
            23.2s X1 is /usr/bin/third
            23.2s strike X1 with 9, 1 processes
            23.3s struck X1 with 9, refused: it is not what was audited
            24s X1 is /usr/bin/other
            24s strike X1 with 9, 1 processes as of 23.2s
            24.1s struck X1 with 9, refused: it is not what was audited
            25s X1 is /usr/bin/third
            25s strike X1 with 9, 1 processes as of 23.2s
            25.1s struck X1 with 9
        "#]],
    );
}

#[test]
fn who_leaves_its_card_for_a_moment_has_come_as_far_as_it_had() {
    check_with(
        brisk(),
        "
        0s cards 24G
        0s tested
        0s card 0 stray=4G
        0s mode 0 enforce root
        1s audit stray
        5s card 0
        6s card 0 stray=4G
        6s audit stray exe=/usr/bin/renamed
        12s audit stray exe=/usr/bin/renamed
        12.1s struck X2 15 stray
        15s card 0
        16s card 0 stray=4G other=1G
        16s audit stray exe=/usr/bin/other
        16s audit other exe=/usr/bin/other
        22s audit stray exe=/usr/bin/other
        23s audit stray exe=/usr/bin/other
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            5s close X1 (OffGpus)
            6s find X2 of uid 7, X1 again
            6s warn X2 until 11s
            12s strike X2 with 15, 1 processes
            12.1s struck X2 with 15
            15s close X2 (OffGpus)
            16s find X3 of uid 7, X2 again
            16s find X4 of uid 7
            16s warn X4 until 26s
            23s strike X3 with 9, 1 processes
        "#]],
    );
}

#[test]
fn a_signal_that_was_decided_before_its_process_left_its_card_for_a_moment_is_sent() {
    check_with(
        brisk(),
        "
        0s cards 24G
        0s tested
        0s card 0 stray=4G
        0s mode 0 enforce root
        1s audit stray
        12s audit stray
        12.1s card 0
        13s card 0 stray=4G
        13s audit stray exe=/usr/bin/other
        14s mode 0 observe root
        15s card 0
        16s card 0 stray=4G
        16s audit stray exe=/usr/bin/other
        ",
        expect![[r#"
            0s card 0 mode enforce
            1s find X1 of uid 7
            1s warn X1 until 11s
            12s strike X1 with 15, 1 processes
            12.1s close X1 (OffGpus)
            13s find X2 of uid 7, X1 again
            13s strike X2 with 15, 1 processes as of 12s
            14s card 0 mode observe
            14s relent X2
            15s close X2 (OffGpus)
            16s find X3 of uid 7
        "#]],
    );
}

/// What is asked before a signal leaves: everything that was, once more.
#[test]
fn a_signal_is_wanted_as_long_as_it_would_be_decided_again() {
    let at = |n| Time(Span::secs(n).0);
    let before = "0s cards 24G
        0s tested
        0s card 0 stray=4G child=1G
        0s mode 0 enforce root
        1s audit stray uid=7 tree=child
        1s audit child uid=8
        12s audit stray uid=7 tree=child";
    let wanted = |then: &str, seconds: u64| {
        let state = told(&format!("{before}\n{then}"), brisk()).state;
        let blow =
            |name: &str| PendingSignal { stranger: UnleasedId(1), process: process(name), signal: 15, of: at(12) };
        (is_signal_due(&state, &blow("stray"), at(seconds)), is_signal_due(&state, &blow("child"), at(seconds)))
    };
    assert_eq!(wanted("", 12), (true, true));
    assert_eq!(wanted("12s adopt stray uid:7", 12), (false, false));
    assert_eq!(wanted("12s adopt child uid:8", 12), (true, false));
    assert_eq!(wanted("12s allow uid:8 root", 12), (true, false));
    assert_eq!(wanted("12s allow uid:7 root", 12), (false, false));
    assert_eq!(wanted("12s mode 0 warn root", 12), (false, false));
    assert_eq!(wanted("12s left stray", 12), (false, false));
    assert_eq!(wanted("12s card 0 unreadable", 12), (false, false));
    assert_eq!(wanted("12s struck X1 15 stray", 12), (false, false));
    assert_eq!(wanted("12s audit stray uid=7 container=0123456789abcdef", 12), (false, false));
    // Nobody has looked at the card for so long.
    assert_eq!(wanted("", 60), (false, false));
    // Another may have made it a holder's.
    assert_eq!(wanted("12s ask ann 4G\n12s alive L1 stray", 12), (false, false));
}

#[test]
fn who_only_draws_is_warned_and_not_ended_unless_a_rule_denies_it() {
    check_with(
        roomy(),
        "
        0s cards 24G
        0s tested
        0s card 0 ~desk=1G ~vulkan=4G ~denied=4G
        0s mode 0 enforce root
        0s deny exe:/usr/bin/miner root
        1s audit desk seat=seat0
        1s audit vulkan
        1s audit denied exe=/usr/bin/miner
        12s audit desk seat=seat0
        12s audit vulkan
        12s audit denied exe=/usr/bin/miner
        13s adopt vulkan uid:7
        ",
        expect![[r#"
            0s card 0 mode enforce
            0s rule R1: Deny exe:/usr/bin/miner
            1s find X1 of uid 7
            1s find X2 of uid 7
            1s warn X2 until 11s
            1s find X3 of uid 7
            1s warn X3 until 11s
            12s strike X3 with 15, 1 processes
            13s queue L1
            13s grant L1 4 GiB on 0 epoch 1 until 313s
            13s close X2 (Adopted(LeaseId(1)))
        "#]],
    );
}

#[test]
fn who_draws_and_has_little_is_of_no_interest_and_unknown_is_not_little() {
    let drawing = |bytes: Option<Bytes>| Resident { process: process("x"), bytes, only_draws: true }.is_of_interest();
    assert_eq!([Some(Bytes::mib(255)), Some(Bytes::mib(256)), None].map(drawing), [false, true, true]);
    assert!(Resident { process: process("x"), bytes: Some(Bytes(1)), only_draws: false }.is_of_interest());
}

#[test]
fn who_left_its_card_when_it_was_warned_is_looked_into_as_soon_as_it_is_back() {
    let due = |then: &str| {
        let before = "0s cards 24G
            0s tested
            0s card 0 stray=4G
            0s mode 0 enforce root
            1s audit stray
            2s card 0";
        let teller = told(&format!("{before}\n{then}"), brisk());
        audits_due(&teller.state, teller.now)
    };
    assert_eq!(due(""), []);
    assert_eq!(due("3s card 0 stray=4G"), [process("stray")]);
    assert_eq!(due("3s card 0 other=4G"), []);
    assert_eq!(due("3s card 0 stray=4G\n3s audit stray"), []);
}
