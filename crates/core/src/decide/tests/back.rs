//! Stories of holders that come back to their cards, and of terms meanwhile.

use super::check_with;
use super::park::{BEGIN, check, house};
use crate::model::settings::{Caps, Policy};
use crate::model::units::Bytes;
use expect_test::expect;

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

#[test]
fn a_holder_that_is_partly_back_and_is_sent_away_again_does_not_take_want_of_room_for_a_refusal_to_leave() {
    check(
        "3s   alive L1 L1 L1/x
         3s   shim L1/x here
         3s   card 0 L1=8G L1/x=4G
         5s   park L1 ann
         5.1s shim L1 parked 7G
         5.1s shim L1/x parked 3G
         5.2s card 0 L1=300M L1/x=300M
         5.3s card 0 L1=300M L1/x=300M
         6s   resume L1 ann
         6.1s shim L1 resumed
         6.2s shim L1/x refused out of memory
         6.3s shim L1/x refused out of memory
         7s   shim L1 parked 7G
         7.1s card 0 L1=300M L1/x=300M
         7.2s card 0 L1=300M L1/x=300M",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (12.1 GiB booked)
            5.3s parked L1
            6s L1 wants 15.4 GiB as of 6s
            6s resume L1 16 GiB until 66s
            6.2s retreat L1
            7.2s parked L1
            7.2s L1 wants 15.4 GiB as of 6s
        "#]],
    );
}
