//! Stories of holders that leave their cards and come back.

use super::check_with;
use crate::model::settings::{Parking, Policy};
use crate::model::units::{Bytes, Span};
use expect_test::{Expect, expect};

pub(super) fn house() -> Policy {
    // These stories are of what happens when a lease comes to its end.
    Policy { parking: Parking { space: Bytes::gib(32), preempt: false, ..Parking::default() }, ..Policy::default() }
}

/// A story that begins with ann's 16 GiB on a card of 24, of which her program has 14.
pub(super) fn check(story: &str, expect: Expect) {
    check_with(house(), &format!("{BEGIN}{story}"), expect);
}

pub(super) const BEGIN: &str = "0s  cards 24G
                     0s  ram 64G
                     0s  card 0 0M
                     0s  ask ann 16G
                     1s  bind L1
                     1s  shim L1 here
                     2s  card 0 L1=14G
                     ";

#[test]
fn an_idle_holder_is_parked_for_a_waiter_and_comes_back_when_it_is_used() {
    check(
        "5s   ask bob 16G
         100.1s shim L1 parked 13824M
         100.2s card 0 L1=300M
         100.3s card 0 L1=300M
         110s  card 0 L1=300M stray=100M
         120s  release L2 bob
         121s  card 0 L1=300M
         130s  shim L1 wants
         130.5s shim L1 resumed
         131s  card 0 L1=14G
         180s  worked L1",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s queue L2
            40s renew L1 until 100s
            100s park L1 (14.1 GiB booked)
            100.3s parked L1
            100.3s grant L2 16 GiB on 0 epoch 2 until 160.3s
            120s end L2 (Released)
            121s retire L2
            130s L1 wants 15.7 GiB as of 130s
            130s resume L1 16 GiB until 190s
            131s resumed L1
            178s renew L1 until 238s
        "#]],
    );
}

#[test]
fn a_word_is_not_enough_the_bytes_must_be_seen_to_be_gone() {
    check(
        "5s   park L1 ann
         5.1s shim L1 parked 13824M
         20s  ask bob 16G
         40s  tick
         41s  shim L1 resumed
         43s  park L1 ann
         44s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (14.1 GiB booked)
            20s queue L2
            35s unpark L1 (NotSeen)
            42s resumed L1
            42s renew L1 until 102s
            43s park L1 (14.1 GiB booked)
        "#]],
    );
}

#[test]
fn half_of_the_bytes_are_not_all() {
    check(
        "5s   park L1 ann
         5.1s shim L1 parked 13824M
         5.2s card 0 L1=7G
         38s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (14.1 GiB booked)
            35.2s unpark L1 (NotSeen)
        "#]],
    );
}

#[test]
fn one_look_is_not_two() {
    check(
        "5s   park L1 ann
         5.1s shim L1 parked 13824M
         5.2s card 0 L1=300M
         5.3s card 0 L1=14G
         5.4s card 0 L1=300M
         5.5s card 0 L1=300M",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (14.1 GiB booked)
            5.5s parked L1
        "#]],
    );
}

#[test]
fn a_look_before_the_last_word_does_not_count() {
    check(
        "3s   alive L1 L1 L1/x
         5s   park L1 ann
         5.1s shim L1 parked 13824M
         5.2s card 0 L1=300M
         5.3s shim L1/x here parked 0M
         5.4s card 0 L1=300M
         5.5s card 0 L1=300M",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (14.1 GiB booked)
            5.5s parked L1
        "#]],
    );
}

#[test]
fn a_busy_holder_at_its_cap_is_parked_and_asks_again() {
    let policy = Policy { hold_max: Span::secs(100), ..house() };
    check_with(
        policy,
        &format!(
            "{BEGIN}
             5s   ask bob 16G ttl=30s
             45s  worked L1
             58s  worked L1
             85s  worked L1
             99s  worked L1
             100.1s shim L1 parked 13824M
             100.2s card 0 L1=300M
             100.3s card 0 L1=300M
             140s shim L1 resumed
             140s card 0 L1=14G
             142s tick"
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s queue L2
            40s renew L1 until 100s
            100s park L1 (14.1 GiB booked, and asks again)
            100.3s parked L1
            100.3s L1 wants 15.7 GiB as of 100.000001s
            100.3s grant L2 16 GiB on 0 epoch 2 until 130.3s
            130.3s end L2 (Expired)
            131.3s retire L2
            131.3s resume L1 16 GiB until 191.3s
            141s resumed L1
        "#]],
    );
}

#[test]
fn who_refuses_stays_and_its_lease_ends_on_time() {
    check(
        "5s   ask bob 16G
         100.1s shim L1 refused a capture is open
         101s  tick
         110s  card 0 L1=14G
         120s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s queue L2
            40s renew L1 until 100s
            100s park L1 (14.1 GiB booked)
            100.1s unpark L1 (Refused("a capture is open"))
            102s resumed L1
            102s end L1 (Expired)
            103s retire L1
        "#]],
    );
}

#[test]
fn who_fails_to_leave_when_its_time_is_over_tries_every_way_once_and_gains_no_time_by_hand() {
    let policy = Policy { parking: Parking { retry_after: Span::secs(1), ..house().parking }, ..house() };
    check_with(
        policy,
        &format!(
            "{BEGIN}
             2s   driver L1 here
             5s   ask bob 16G
             100.1s shim L1 refused a capture is open
             102.1s park L1 ann
             102.2s driver L1 refused a call of its did not end
             102.3s resume L1 ann
             104.5s park L1 ann
             106s  tick"
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s queue L2
            40s renew L1 until 100s
            100s park L1 (14.1 GiB booked)
            100.1s unpark L1 (Refused("a capture is open"))
            101.1s resumed L1
            101.1s park L1 by driver (14.1 GiB booked)
            102.2s unpark L1 (Refused("a call of its did not end"))
            103.3s resumed L1
            103.3s end L1 (Expired)
            104.3s retire L1
            104.5s refuse: no such lease
        "#]],
    );
}

#[test]
fn who_needed_its_cards_at_an_earlier_try_does_not_ask_for_them_now() {
    check(
        "5s   park L1 ann
         5.1s shim L1 wants
         5.2s shim L1 refused a capture is open
         10s  park L1 ann
         10.1s shim L1 parked 13824M
         10.2s card 0 L1=300M
         10.3s card 0 L1=300M
         12s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (14.1 GiB booked)
            5.2s unpark L1 (Refused("a capture is open"))
            6.2s resumed L1
            10s park L1 (14.1 GiB booked)
            10.3s parked L1
        "#]],
    );
}

#[test]
fn who_does_not_answer_is_not_tried_again_and_again_while_somebody_waits() {
    let policy = Policy { parking: Parking { retry_after: Span::secs(3), ..house().parking }, ..house() };
    check_with(
        policy,
        &format!(
            "{BEGIN}
             5s   ask bob 16G
             129s card 0 unreadable
             140s card 0 L1=14G
             145s tick"
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s queue L2
            40s renew L1 until 100s
            100s park L1 (14.1 GiB booked)
            130s unpark L1 (Silent)
            140s resumed L1
            141s end L1 (Expired)
            142s retire L1
        "#]],
    );
}

#[test]
fn what_cannot_be_parked_is_not_tried() {
    check(
        "3s  shim L1 cannot it uses managed memory
         4s  park L1 ann
         5s  shim L1 can
         6s  card 0 L1=14G L1/x=1G
         6s  alive L1 L1 L1/x
         7s  card 0 L1=14G L1/x=1G
         7s  park L1 ann
         9s  card 0 unreadable
         9s  park L1 ann
         10s card 0 L1=14G
         10s shim L1 left
         10s park L1 ann
         11s shim L1 here
         11s ram 20G
         11s park L1 ann
         12s park L1 bob",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            4s refuse: the holder cannot be parked: it uses managed memory
            7s refuse: the holder cannot be parked: one of its programs uses a GPU without Sublet's library
            9s refuse: the holder cannot be parked: one of its GPUs cannot be read now
            10s refuse: the holder cannot be parked: none of its programs uses a GPU through Sublet's library
            11s refuse: the holder cannot be parked: it needs 14.1 GiB of host memory, and the parking space has 12 GiB free
            12s refuse: no such lease
        "#]],
    );
}

#[test]
fn a_holder_is_parked_whole_or_not_at_all() {
    check(
        "3s   alive L1 L1 L1/x
         3s   shim L1/x here
         3s   card 0 L1=8G L1/x=4G
         5s   park L1 ann
         5.1s shim L1 parked 7G
         5.2s card 0 L1=300M L1/x=4G
         5.3s card 0 L1=300M L1/x=4G
         6s   shim L1/x refused a kernel does not end
         6.1s shim L1 resumed
         7s   card 0 L1=8G L1/x=4G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (12.1 GiB booked)
            6s unpark L1 (Refused("a kernel does not end"))
            7s resumed L1
        "#]],
    );
}

#[test]
fn who_finds_no_room_goes_back_and_keeps_its_place() {
    check(
        "5s   park L1 ann
         5.1s shim L1 parked 13824M
         5.2s card 0 L1=300M
         5.3s card 0 L1=300M
         10s  shim L1 wants
         10.1s shim L1 refused out of memory
         10.2s card 0 L1=300M stray=12G
         10.3s card 0 L1=300M stray=12G
         30s  card 0 L1=300M
         72s  shim L1 resumed
         73s  card 0 L1=14G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (14.1 GiB booked)
            5.3s parked L1
            10s L1 wants 15.7 GiB as of 10s
            10s resume L1 16 GiB until 70s
            10.1s retreat L1
            10.3s parked L1
            10.3s L1 wants 15.7 GiB as of 10s
            71s resume L1 16 GiB until 131s
            73s resumed L1
        "#]],
    );
}

#[test]
fn whose_programs_all_find_no_room_goes_back_once() {
    check(
        "3s   alive L1 L1 L1/x
         3s   shim L1/x here
         3s   card 0 L1=8G L1/x=4G
         5s   park L1 ann
         5.1s shim L1 parked 7G
         5.1s shim L1/x parked 3G
         5.2s card 0 L1=300M L1/x=300M
         5.3s card 0 L1=300M L1/x=300M
         10s  shim L1 wants
         10.1s shim L1 refused out of memory
         10.1s shim L1/x refused out of memory
         10.2s card 0 L1=300M L1/x=300M stray=12G
         10.3s card 0 L1=300M L1/x=300M stray=12G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (12.1 GiB booked)
            5.3s parked L1
            10s L1 wants 15.4 GiB as of 10s
            10s resume L1 16 GiB until 70s
            10.1s retreat L1
            10.3s parked L1
            10.3s L1 wants 15.4 GiB as of 10s
        "#]],
    );
}

#[test]
fn a_parked_holder_waits_its_turn_like_anybody() {
    check(
        "5s   ask bob 16G ttl=300s
         100.1s shim L1 parked 13824M
         100.2s card 0 L1=300M
         100.3s card 0 L1=300M
         102s  ask cid 16G
         103s  shim L1 wants
         104s  ask dan 16G
         110s  release L2 bob
         120s  release L3 cid
         122s  shim L1 resumed
         123s  card 0 L1=14G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s queue L2
            40s renew L1 until 100s
            100s park L1 (14.1 GiB booked)
            100.3s parked L1
            100.3s grant L2 16 GiB on 0 epoch 2 until 400.3s
            102s queue L3
            103s L1 wants 15.7 GiB as of 103s
            104s queue L4
            110s end L2 (Released)
            111s retire L2
            111s grant L3 16 GiB on 0 epoch 3 until 171s
            120s end L3 (Released)
            121s retire L3
            121s resume L1 16 GiB until 181s
            123s resumed L1
        "#]],
    );
}

#[test]
fn parked_bytes_are_booked_and_there_is_no_more_than_there_is() {
    check_with(
        Policy { parking: Parking { space: Bytes::gib(20), ..Parking::default() }, ..Policy::default() },
        "0s  cards 24G 24G
         0s  ram 64G
         0s  card 0 0M
         0s  card 1 0M
         0s  ask ann 16G
         0s  ask bob 16G
         1s  bind L1
         1s  bind L2
         1s  shim L1 here
         1s  shim L2 here
         2s  card 0 L1=14G
         2s  card 1 L2=14G
         3s  park L1 ann
         3s  park L2 bob
         4s  shim L1 parked 13824M
         5s  card 0 L1=300M
         6s  card 0 L1=300M
         7s  park L2 bob
         8s  gone L1
         9s  card 0 0M
         9s  park L2 bob",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            0s queue L2
            0s grant L2 16 GiB on 1 epoch 2 until 60s
            1s bind L1
            1s bind L2
            3s park L1 (14.1 GiB booked)
            3s refuse: the holder cannot be parked: it needs 14.1 GiB of host memory, and the parking space has 5.9 GiB free
            6s parked L1
            7s refuse: the holder cannot be parked: it needs 14.1 GiB of host memory, and the parking space has 5.9 GiB free
            8s end L1 (HolderExited)
            9s retire L1
            9s park L2 (14.1 GiB booked)
        "#]],
    );
}

#[test]
fn who_takes_more_host_memory_than_was_booked_comes_back() {
    check(
        "5s   park L1 ann
         5.1s shim L1 parked 18G
         5.2s card 0 0M
         5.3s card 0 0M
         6s   shim L1 resumed
         7s   card 0 L1=18G
         80s  park L1 ann",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (14.1 GiB booked)
            5.1s unpark L1 (Refused("its programs have more than was booked for them"))
            7s resumed L1
            8s over L1: 18 GiB
            40s renew L1 until 100s
            80s park L1 (18.1 GiB booked)
        "#]],
    );
}

#[test]
fn what_was_parked_since_the_host_was_looked_at_is_not_there_for_others() {
    let policy = Policy { parking: Parking { space: Bytes::gib(64), ..Parking::default() }, ..Policy::default() };
    check_with(
        policy,
        "0s  cards 24G 24G
         0s  ram 32G
         0s  card 0 0M
         0s  card 1 0M
         0s  ask ann 16G
         0s  ask bob 16G
         1s  bind L1
         1s  bind L2
         1s  shim L1 here
         1s  shim L2 here
         2s  card 0 L1=14G
         2s  card 1 L2=14G
         3s  park L1 ann
         4s  shim L1 parked 13824M
         5s  card 0 L1=300M
         6s  card 0 L1=300M
         7s  park L2 bob
         8s  ram 31G
         8s  park L2 bob",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            0s queue L2
            0s grant L2 16 GiB on 1 epoch 2 until 60s
            1s bind L1
            1s bind L2
            3s park L1 (14.1 GiB booked)
            6s parked L1
            7s refuse: the holder cannot be parked: it needs 14.1 GiB of host memory, and the parking space has 9.9 GiB free
            8s park L2 (14.1 GiB booked)
        "#]],
    );
}

#[test]
fn a_program_that_dies_on_the_way_frees_what_it_had_and_booked() {
    check(
        "5s   park L1 ann
         6s   shim L1 left
         6s   gone L1
         7s   card 0 0M
         8s   ask bob 16G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (14.1 GiB booked)
            6s end L1 (HolderExited)
            7s retire L1
            8s queue L2
            8s grant L2 16 GiB on 0 epoch 2 until 68s
        "#]],
    );
}

#[test]
fn a_program_that_dies_while_it_is_parked_is_recorded_as_that() {
    check(
        "5s   park L1 ann
         5.5s shim L1 died killed for memory
         6s   release L1 ann
         7s   card 0 0M",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (14.1 GiB booked)
            6s end L1 (DiedParking)
            7s retire L1
        "#]],
    );
}

#[test]
fn a_lease_that_outlives_a_program_that_died_while_parked_ends_for_its_own_reason() {
    check(
        "5s   park L1 ann
         5.5s shim L1 died killed for memory
         6s   card 0 0M
         7s   card 0 0M
         8s   resume L1 ann
         9s   card 0 0M
         10s  release L1 ann
         11s  card 0 0M",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (14.1 GiB booked)
            7s parked L1
            8s L1 wants 16 GiB as of 8s
            8s resume L1 16 GiB until 68s
            10s end L1 (Released)
            11s retire L1
        "#]],
    );
}

#[test]
fn a_death_while_parking_that_is_heard_after_the_release_is_on_the_record_too() {
    check(
        "5s   park L1 ann
         6s   release L1 ann
         6.1s shim L1 died killed for memory
         7s   card 0 0M",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (14.1 GiB booked)
            6s end L1 (Released)
            6.1s died L1: killed for memory
            7s retire L1
        "#]],
    );
}

#[test]
fn a_program_that_was_taken_for_dead_and_comes_again_did_not_die() {
    check(
        "5s   park L1 ann
         5.5s shim L1 died not known
         5.6s shim L1 here
         5.7s shim L1 left
         6s   release L1 ann
         7s   card 0 0M",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (14.1 GiB booked)
            6s end L1 (Released)
            7s retire L1
        "#]],
    );
}

#[test]
fn what_is_parked_too_long_is_over() {
    let policy = Policy { parking: Parking { term: Span::secs(100), ..house().parking }, ..Policy::default() };
    check_with(
        policy,
        &format!(
            "{BEGIN}
             5s   park L1 ann
             5.1s shim L1 parked 13824M
             5.2s card 0 L1=300M
             5.3s card 0 L1=300M
             110s tick"
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (14.1 GiB booked)
            5.3s parked L1
            105.3s end L1 (ParkExpired)
            106.3s retire L1
        "#]],
    );
}
