//! Stories of cards that tell what they have in all, and not whose it is.

use super::check_with;
use super::park::house;
use crate::model::settings::{Parking, Policy};
use expect_test::{Expect, expect};

/// A story that begins with ann's 16 GiB on a card of 24, of which her program has 14, by its own word.
fn check(story: &str, expect: Expect) {
    let begin = "0s  cards 24G
                 0s  ram 64G
                 0s  card 0 0M coarse
                 0s  ask ann 16G
                 1s  bind L1
                 1s  shim L1 here
                 2s  card 0 L1=14G coarse
                 ";
    check_with(house(), &format!("{begin}{story}"), expect);
}

#[test]
fn a_holder_is_parked_when_the_card_was_seen_to_lose_its_bytes_and_comes_back() {
    check(
        "5s   ask bob 16G
         100.1s shim L1 parked 13824M
         100.2s card 0 L1=300M coarse
         100.3s card 0 L1=300M coarse
         120s  release L2 bob
         121s  card 0 L1=300M coarse
         130s  shim L1 wants
         130.5s shim L1 resumed
         131s  card 0 L1=14G coarse",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s queue L2
            40s renew L1 until 100s
            100s park L1 (16.1 GiB booked)
            100.3s parked L1
            100.3s grant L2 16 GiB on 0 epoch 2 until 160.3s
            120s end L2 (Released)
            121s retire L2
            130s L1 wants 15.2 GiB as of 130s
            130s resume L1 16 GiB until 190s
            131s resumed L1
        "#]],
    );
}

#[test]
fn a_word_is_not_enough_and_somebody_may_have_grown_meanwhile() {
    check(
        "5s   park L1 ann
         5.1s shim L1 parked 13824M
         20s  ask bob 16G
         36s  shim L1 resumed
         68s  worked L1
         110s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (16.1 GiB booked)
            20s queue L2
            35s unpark L1 (Unclear)
            37s resumed L1
            40s renew L1 until 100s
            84s renew L1 until 144s
        "#]],
    );
}

#[test]
fn what_others_gave_back_is_not_the_holders() {
    check(
        "3s   ask bob 4G
         3s   bind L2
         3s   shim L2 here
         4s   card 0 L1=14G L2=4G coarse
         5s   park L1 ann
         5.1s shim L1 parked 4G
         5.2s release L2 bob
         5.3s card 0 L1=14G coarse
         5.4s card 0 L1=14G coarse
         40s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            3s queue L2
            3s grant L2 4 GiB on 0 epoch 2 until 63s
            3s bind L2
            5s park L1 (16.1 GiB booked)
            5.2s end L2 (Released)
            5.3s retire L2
            35.4s unpark L1 (Unclear)
        "#]],
    );
}

#[test]
fn a_daemon_that_died_does_not_know_what_the_card_had_and_lets_it_stay() {
    check(
        "5s   park L1 ann
         5.1s restart
         5.2s shim L1 here
         5.3s shim L1 parked 13824M
         5.4s card 0 L1=300M coarse
         5.5s card 0 L1=300M coarse
         70s  shim L1 resumed
         71s  card 0 L1=14G coarse",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s park L1 (16.1 GiB booked)
            5.1s grace until 65.1s
            65.5s unpark L1 (Unclear)
            71s resumed L1
            71s renew L1 until 131s
        "#]],
    );
}

#[test]
fn a_hook_and_the_driver_need_to_know_whose_bytes_are_whose() {
    check(
        "3s   shim L1 left
         3s   driver L1 here
         5s   park L1 ann",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s refuse: the holder cannot be parked: the driver reports no bytes per process, and Sublet's library is not loaded
        "#]],
    );
}

#[test]
fn one_after_the_other_leaves_and_nobody_comes_back_in_between() {
    let policy = Policy { parking: Parking { preempt: true, ..house().parking }, ..house() };
    check_with(
        policy,
        "0s   cards 24G
         0s   ram 64G
         0s   card 0 0M coarse
         0s   ask ann 10G
         0s   ask cat 10G
         1s   bind L1
         1s   bind L2
         1s   shim L1 here
         1s   shim L2 here
         2s   card 0 L1=9G L2=9G coarse
         3s   worked L1
         3s   worked L2
         60s  ask bob 20G interactive
         61s  worked L2
         62s  shim L1 parked 8G
         62.1s card 0 L1=1G L2=9G coarse
         62.2s card 0 L1=1G L2=9G coarse
         63s  shim L1 wants
         64s  shim L2 parked 8G
         64.1s card 0 L1=1G L2=1G coarse
         64.2s card 0 L1=1G L2=1G coarse
         80s  release L3 bob
         81s  card 0 L1=1G L2=1G coarse
         82s  shim L1 resumed
         82s  shim L2 wants
         83s  card 0 L1=9G L2=1G coarse
         84s  shim L2 resumed
         85s  card 0 L1=9G L2=9G coarse",
        expect![[r#"
            0s queue L1
            0s grant L1 10 GiB on 0 epoch 1 until 60s
            0s queue L2
            0s grant L2 10 GiB on 0 epoch 2 until 60s
            1s bind L1
            1s bind L2
            40s renew L1 until 100s
            41s renew L2 until 101s
            60s queue L3
            60s park L1 for L3 (10.1 GiB booked)
            62.2s parked L1
            62.2s park L2 for L3 (10.1 GiB booked, and asks again)
            63s L1 wants 9.2 GiB as of 63s
            64.2s parked L2
            64.2s L2 wants 9.2 GiB as of 62.200001s
            64.2s grant L3 20 GiB on 0 epoch 3 until 124.2s
            80s end L3 (Released)
            81s retire L3
            81s resume L2 10 GiB until 141s
            85s resumed L2
            85s resume L1 10 GiB until 145s
        "#]],
    );
}
