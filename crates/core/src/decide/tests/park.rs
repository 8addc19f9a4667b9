//! Stories of holders that leave their cards and come back.

use super::check_with;
use crate::policy::{Caps, Parking, Policy};
use crate::units::{Bytes, Span};
use expect_test::{Expect, expect};

fn house() -> Policy {
    Policy { parking: Parking { ram: Bytes::gib(32), ..Parking::default() }, ..Policy::default() }
}

/// A story that begins with ann's 16 GiB on a card of 24, of which her program has 14.
fn check(story: &str, expect: Expect) {
    check_with(house(), &format!("{BEGIN}{story}"), expect);
}

const BEGIN: &str = "0s  cards 24G
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
    let policy = Policy { hold_cap: Span::secs(100), ..house() };
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
            100.3s L1 wants 15.7 GiB as of 100s
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
    let policy = Policy { parking: Parking { rest: Span::secs(3), ..house().parking }, ..house() };
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
         8s  card 0 L1=14G coarse
         8s  park L1 ann
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
            7s refuse: the holder cannot be parked: one of its programs uses a card without Sublet's library
            8s refuse: the holder cannot be parked: the driver does not tell how many bytes each process has
            9s refuse: the holder cannot be parked: a card of its cannot be read now
            10s refuse: the holder cannot be parked: no program of its uses a card through Sublet's library
            11s refuse: the holder cannot be parked: it takes 14.1 GiB of host memory, and 12 GiB of the parking RAM can be had
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
        Policy { parking: Parking { ram: Bytes::gib(20), ..Parking::default() }, ..Policy::default() },
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
            3s refuse: the holder cannot be parked: it takes 14.1 GiB of host memory, and 5.9 GiB of the parking RAM can be had
            6s parked L1
            7s refuse: the holder cannot be parked: it takes 14.1 GiB of host memory, and 5.9 GiB of the parking RAM can be had
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
            40s renew L1 until 100s
            80s park L1 (18.1 GiB booked)
        "#]],
    );
}

#[test]
fn what_was_parked_since_the_host_was_looked_at_is_not_there_for_others() {
    let policy = Policy { parking: Parking { ram: Bytes::gib(64), ..Parking::default() }, ..Policy::default() };
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
            7s refuse: the holder cannot be parked: it takes 14.1 GiB of host memory, and 9.9 GiB of the parking RAM can be had
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

#[test]
fn a_fixed_term_stands_still_while_it_is_parked() {
    check_with(
        house(),
        "0s  cards 24G
         0s  ram 64G
         0s  card 0 0M
         0s  ask ann 16G time=100s
         1s  bind L1
         1s  shim L1 here
         2s  card 0 L1=14G
         40s park L1 ann
         40s shim L1 parked 13824M
         40.5s card 0 L1=300M
         41s card 0 L1=300M
         200s resume L1 ann
         201s shim L1 resumed
         202s card 0 L1=14G
         270s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 100s
            1s bind L1
            40s park L1 (14.1 GiB booked)
            41s parked L1
            200s L1 wants 15.7 GiB as of 200s
            200s resume L1 16 GiB until 259s
            202s resumed L1
            259s end L1 (TermOver)
            260s retire L1
        "#]],
    );
}

#[test]
fn a_fixed_term_does_not_wait_for_bytes_that_are_on_their_way() {
    check_with(
        house(),
        "0s  cards 24G
         0s  ram 64G
         0s  card 0 0M
         0s  ask ann 8G time=20s
         0s  ask bob 8G time=40s
         1s  bind L1
         1s  shim L1 here
         1s  bind L2
         1s  shim L2 here
         2s  card 0 L1=7G L2=7G
         15s park L1 ann
         22s park L2 bob
         23s shim L2 parked 7000M
         23.1s card 0 L1=7G L2=300M
         23.2s card 0 L1=7G L2=300M
         25s resume L2 bob
         50s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 8 GiB on 0 epoch 1 until 20s
            0s queue L2
            0s grant L2 8 GiB on 0 epoch 2 until 40s
            1s bind L1
            1s bind L2
            15s park L1 (7.1 GiB booked)
            20s end L1 (TermOver)
            21s retire L1
            22s park L2 (7.1 GiB booked)
            23.2s parked L2
            25s L2 wants 7.7 GiB as of 25s
            25s resume L2 8 GiB until 41.8s
            42s end L2 (TermOver)
            43s retire L2
        "#]],
    );
}

#[test]
fn a_fixed_term_that_a_grace_prolongs_has_something_left_when_it_is_parked() {
    check_with(
        house(),
        "0s  cards 24G
         0s  ram 64G
         0s  card 0 0M
         0s  ask ann 16G time=20s
         1s  bind L1
         1s  shim L1 here
         2s  card 0 L1=14G
         15s park L1 ann
         18s restart
         18s alive L1
         30s shim L1 here parked 13824M
         30.2s card 0 L1=300M
         30.4s card 0 L1=300M
         40s resume L1 ann
         41s shim L1 resumed
         42s card 0 L1=14G
         90s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 20s
            1s bind L1
            15s park L1 (14.1 GiB booked)
            18s grace until 78s
            30.4s parked L1
            40s L1 wants 15.7 GiB as of 40s
            40s resume L1 16 GiB until 87.6s
            42s resumed L1
            88s end L1 (TermOver)
            89s retire L1
        "#]],
    );
}

#[test]
fn a_fixed_term_that_is_over_is_not_parked() {
    check_with(
        house(),
        "0s  cards 24G
         0s  ram 64G
         0s  card 0 0M
         0.5s ask ann 16G time=20s
         1s  bind L1
         1s  shim L1 here
         2s  card 0 L1=14G
         20.1s park L1 ann
         20.2s shim L1 parked 13824M
         20.6s card 0 L1=300M
         20.7s card 0 L1=300M
         22s tick",
        expect![[r#"
            0.5s queue L1
            0.5s grant L1 16 GiB on 0 epoch 1 until 20.5s
            1s bind L1
            20.1s park L1 (14.1 GiB booked)
            21.7s end L1 (TermOver)
        "#]],
    );
}

#[test]
fn a_whole_card_comes_back_as_what_is_left_of_it() {
    check_with(
        house(),
        "0s  cards 24G
         0s  ram 104G
         0s  card 0 0M
         0s  ask ann whole
         1s  bind L1
         1s  shim L1 here
         2s  card 0 L1=14G
         5s  ask bob whole
         100.1s shim L1 parked 13824M
         100.2s card 0 L1=300M
         100.3s card 0 L1=300M
         101s bind L2
         101s shim L2 here
         102s card 0 L1=300M L2=10G
         103s shim L1 wants
         104s park L2 bob
         104.1s shim L2 parked 9G
         104.2s card 0 L1=300M L2=300M
         104.3s card 0 L1=300M L2=300M
         110s shim L1 resumed
         111s card 0 L1=14G L2=300M",
        expect![[r#"
            0s queue L1
            0s grant L1 23.8 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s queue L2
            40s renew L1 until 100s
            100s park L1 (14.1 GiB booked)
            100.3s parked L1
            100.3s grant L2 23.5 GiB on 0 epoch 2 until 160.3s
            101s bind L2
            103s L1 wants 23.5 GiB, or 14.1 GiB as of 103s
            104s park L2 (10.1 GiB booked)
            104.3s parked L2
            104.3s resume L1 23.5 GiB until 164.3s
            111s resumed L1
        "#]],
    );
}

#[test]
fn who_comes_back_has_what_it_had_however_little_was_left_of_it_there() {
    check(
        "3s   alive L1 L1 L1/x
         3s   shim L1/x here
         3s   card 0 L1=8G L1/x=4G
         5s   park L1 ann
         5.1s shim L1 parked 7G
         5.1s shim L1/x parked 3G
         5.2s card 0 L1=300M L1/x=300M
         5.3s card 0 L1=300M L1/x=300M
         6s   ask bob 8G
         7s   shim L1 wants
         8s   shim L1/x left
         8s   alive L1 L1
         9s   card 0
         9.5s release L2 bob
         10s  card 0",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (12.1 GiB booked)
            5.3s parked L1
            6s queue L2
            6s grant L2 8 GiB on 0 epoch 2 until 66s
            7s L1 wants 15.4 GiB as of 7s
            9.5s end L2 (Released)
            10s retire L2
            10s resume L1 16 GiB until 70s
        "#]],
    );
}

#[test]
fn what_is_not_left_any_more_of_who_comes_back_is_not_taken_from_who_is_ahead() {
    check_with(
        house(),
        "0s  cards 24G
         0s  ram 64G
         0s  card 0 0M
         0s  ask ann 3686M
         1s  bind L1
         1s  shim L1 here
         2s  card 0 L1=3400M
         5s  park L1 ann
         5.1s shim L1 parked 3000M
         5.2s card 0 L1=300M
         5.3s card 0 L1=300M
         6s  ask bob 10G time=100s
         6s  ask dan 13G
         7s  ask cid 20820M
         9s  shim L1 wants
         10s shim L1 left
         10s card 0 0M
         20s release L3 dan
         21s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 3.6 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (3.4 GiB booked)
            5.3s parked L1
            6s queue L2
            6s grant L2 10 GiB on 0 epoch 2 until 106s
            6s queue L3
            6s grant L3 13 GiB on 0 epoch 3 until 66s
            7s queue L4
            9s L1 wants 3.3 GiB as of 9s
            20s end L3 (Released)
            21s retire L3
            21s resume L1 3.6 GiB until 81s, over by 106s
        "#]],
    );
}

#[test]
fn who_can_have_a_card_again_because_another_came_back_to_it_is_not_passed() {
    check_with(
        house(),
        "0s  cards 24G
         0s  ram 64G
         0s  card 0 0M
         0s  ask ann 8G ttl=100s
         0s  ask eve 2G ttl=100s
         1s  bind L1
         1s  shim L1 here
         1s  bind L2
         1s  shim L2 here
         2s  card 0 L1=7G L2=1500M
         5s  park L1 ann
         5s  park L2 eve
         5.1s shim L1 parked 6G
         5.1s shim L2 parked 1G
         5.2s card 0 L1=800M L2=300M
         5.3s card 0 L1=800M L2=300M
         6s  ask dan 22G time=30s
         7s  ask bob 23300M
         8s  shim L1 wants
         8s  shim L2 wants
         20s release L3 dan
         21s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 8 GiB on 0 epoch 1 until 100s
            0s queue L2
            0s grant L2 2 GiB on 0 epoch 2 until 100s
            1s bind L1
            1s bind L2
            5s park L1 (7.1 GiB booked)
            5s park L2 (1.5 GiB booked)
            5.3s parked L1
            5.3s parked L2
            6s queue L3
            6s grant L3 22 GiB on 0 epoch 3 until 36s
            7s queue L4
            8s L1 wants 7.2 GiB as of 8s
            8s L2 wants 1.7 GiB as of 8s
            20s end L3 (Released)
            21s retire L3
            21s resume L1 8 GiB until 121s
            21s resume L2 2 GiB until 121s, over by 1821s
        "#]],
    );
}

#[test]
fn who_lacks_less_than_when_it_asked_comes_back_to_less() {
    check(
        "5s   park L1 ann
         5.1s shim L1 parked 13824M
         5.2s card 0 L1=300M
         5.3s card 0 L1=300M
         6s   ask dan 8200M
         9s   shim L1 wants
         12s  card 0 L1=800M stray=7800M
         15s  release L2 dan
         17s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (14.1 GiB booked)
            5.3s parked L1
            6s queue L2
            6s grant L2 8 GiB on 0 epoch 2 until 66s
            9s L1 wants 15.7 GiB as of 9s
            15s end L2 (Released)
            16s retire L2
            16s resume L1 16 GiB until 76s
        "#]],
    );
}

#[test]
fn what_counts_for_a_quota_is_all_that_comes_back() {
    let caps = Caps { vram: Some(Bytes::gib(16)), ..Caps::default() };
    check_with(
        Policy { caps, ..house() },
        &format!(
            "{BEGIN}
             5s   park L1 ann
             5.1s shim L1 parked 13824M
             5.2s card 0 L1=300M
             5.3s card 0 L1=300M
             6s   ask ann 300M on=0
             7s   shim L1 wants
             8s   release L2 ann
             9s   card 0 L1=300M"
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (14.1 GiB booked)
            5.3s parked L1
            6s queue L2
            6s grant L2 300 MiB on 0 epoch 2 until 66s
            7s L1 wants 15.7 GiB as of 7s
            8s end L2 (Released)
            9s retire L2
            9s resume L1 16 GiB until 69s
        "#]],
    );
}

#[test]
fn after_a_restart_nobody_is_back_of_whom_nothing_was_heard() {
    check(
        "3s   alive L1 L1 L1/x
         3s   shim L1/x here
         3s   card 0 L1=8G L1/x=4G
         5s   park L1 ann
         5.1s shim L1 parked 7G
         6s   shim L1/x refused a kernel does not end
         7s   restart
         8s   card 0 L1=300M L1/x=4G
         9s   alive L1 L1 L1/x
         9s   shim L1/x here
         12s  shim L1 here parked 7G
         13s  shim L1 resumed
         14s  card 0 L1=8G L1/x=4G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (12.1 GiB booked)
            6s unpark L1 (Refused("a kernel does not end"))
            7s grace until 67s
            14s resumed L1
        "#]],
    );
}

#[test]
fn a_restart_in_the_middle_goes_on() {
    check(
        "5s   park L1 ann
         6s   restart
         6s   alive L1
         7s   shim L1 here parked 13824M
         8s   card 0 L1=300M
         9s   card 0 L1=300M
         10s  shim L1 wants
         11s  shim L1 resumed
         12s  card 0 L1=14G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (14.1 GiB booked)
            6s grace until 66s
            9s parked L1
            10s L1 wants 15.7 GiB as of 10s
            10s resume L1 16 GiB until 70s
            12s resumed L1
        "#]],
    );
}
