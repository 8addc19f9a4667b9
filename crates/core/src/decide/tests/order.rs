//! Stories of the queue: who is served, who claims, who is held by its own caps.

use super::{check, check_with};
use crate::model::settings::{Caps, Policy};
use crate::model::units::Bytes;
use expect_test::expect;

#[test]
fn interactive_passes_batch_but_not_an_old_one() {
    check(
        "0s    cards 24G
         0s    card 0 0M
         0s    ask ann 20G time=2000s
         1s    ask old 20G
         1300s ask new 20G
         1310s ask eve 20G interactive
         1320s ask pri 20G priority=10
         1330s release L1 ann
         1332s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 20 GiB on 0 epoch 1 until 2000s
            1s queue L2
            1300s queue L3
            1310s queue L4
            1320s queue L5
            1330s end L1 (Released)
            1331s retire L1
            1331s grant L2 20 GiB on 0 epoch 2 until 1391s
        "#]],
    );
    check(
        "0s    cards 24G
         0s    card 0 0M
         0s    ask ann 20G time=3000s
         1000s ask bob 20G
         1010s ask eve 20G interactive
         1020s release L1 ann
         1022s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 20 GiB on 0 epoch 1 until 3000s
            1000s queue L2
            1010s queue L3
            1020s end L1 (Released)
            1021s retire L1
            1021s grant L3 20 GiB on 0 epoch 2 until 1081s
        "#]],
    );
}

#[test]
fn a_large_ask_claims_its_card_and_leaves_the_others_to_small_ones() {
    check(
        "0s   cards 24G 24G
         0s   card 0 0M
         0s   card 1 0M
         0s   ask ann 10G on=0
         1s   ask big 20G on=0
         2s   ask bob 2G on=0
         3s   ask bob 2G on=1
         4s   release L1 ann
         6s   tick",
        expect![[r#"
            0s queue L1
            0s grant L1 10 GiB on 0 epoch 1 until 60s
            1s queue L2
            2s queue L3
            2s grant L3 2 GiB on 0 epoch 2 until 62s
            3s queue L4
            3s grant L4 2 GiB on 1 epoch 3 until 63s
            4s end L1 (Released)
            5s retire L1
            5s grant L2 20 GiB on 0 epoch 4 until 65s
        "#]],
    );
}

#[test]
fn a_gang_gets_all_its_cards_or_none() {
    check(
        "0s   cards 24G 24G
         0s   card 0 0M
         0s   card 1 0M
         0s   ask ann 10G on=1
         1s   ask big 20G gpus=2
         2s   ask bob 2G
         4s   release L1 ann
         6s   tick",
        expect![[r#"
            0s queue L1
            0s grant L1 10 GiB on 1 epoch 1 until 60s
            1s queue L2
            2s queue L3
            2s grant L3 2 GiB on 1 epoch 2 until 62s
            4s end L1 (Released)
            5s retire L1
            5s grant L2 20 GiB on 0+1 epoch 3 until 65s
        "#]],
    );
}

#[test]
fn caps_and_the_bounded_queue() {
    let mut policy = Policy { queue_max: 3, ..Policy::default() };
    policy
        .caps_of
        .insert("cap".into(), Caps { vram: Some(Bytes::gib(8)), leases: Some(2), places: Some(2), ..Caps::default() });
    check_with(
        policy,
        "0s   cards 24G
         0s   card 0 0M
         0s   ask cap 9G
         0s   ask cap 8G
         1s   ask cap 1G
         1s   ask cap 1G
         1s   ask cap 1G
         2s   ask bob 4G
         3s   ask bob 20G
         3s   ask eve 20G
         4s   release L1 cap
         6s   tick",
        expect![[r#"
            0s refuse: you may lease 8 GiB at once, and this request is larger
            0s queue L1
            0s grant L1 8 GiB on 0 epoch 1 until 60s
            1s queue L2
            1s queue L3
            1s refuse: you, or your group, have the most waiting requests that are allowed
            2s queue L4
            2s grant L4 4 GiB on 0 epoch 2 until 62s
            3s queue L5
            3s refuse: the queue is full
            4s end L1 (Released)
            5s retire L1
            5s grant L2 1 GiB on 0 epoch 3 until 65s
            5s grant L3 1 GiB on 0 epoch 4 until 65s
        "#]],
    );
}

#[test]
fn what_cannot_start_keeps_no_card_idle() {
    check(
        "0s   cards 24G 24G
         0s   card 0 0M
         0s   card 1 0M
         0s   drain 1 root
         1s   ask gang 20G gpus=2
         2s   ask bob 1G
         3s   clear 1 root
         4s   ask eve 1G wait=0s",
        expect![[r#"
            0s card 1 Draining
            1s queue L1
            2s queue L2
            2s grant L2 1 GiB on 0 epoch 1 until 62s
            3s card 1 In
            3s grant L1 20 GiB on 0+1 epoch 2 until 63s
            4s queue L3
            4s grant L3 1 GiB on 0 epoch 3 until 64s
        "#]],
    );
    check(
        "0s   cards 24G
         0s   card 0 stray=8G
         1s   ask big whole
         1s   ask own 4G private
         2s   ask bob 1G",
        expect![[r#"
            1s queue L1
            1s queue L2
            2s queue L3
            2s grant L3 1 GiB on 0 epoch 1 until 62s
        "#]],
    );
}

#[test]
fn a_large_ask_claims_the_card_that_is_free_first() {
    check(
        "0s   cards 24G 24G
         0s   card 0 0M
         0s   card 1 0M
         0s   ask ann 14G on=0 time=3000s
         0s   ask bob 12G on=1
         0s   ask bob 11G on=1
         1s   ask big 20G
         2s   ask eve 4G
         3s   release L3 bob
         5s   ask fay 4G
         6s   release L2 bob
         8s   tick",
        expect![[r#"
            0s queue L1
            0s grant L1 14 GiB on 0 epoch 1 until 3000s
            0s queue L2
            0s grant L2 12 GiB on 1 epoch 2 until 60s
            0s queue L3
            0s grant L3 11 GiB on 1 epoch 3 until 60s
            1s queue L4
            2s queue L5
            2s grant L5 4 GiB on 0 epoch 4 until 62s
            3s end L3 (Released)
            4s retire L3
            5s queue L6
            5s grant L6 4 GiB on 0 epoch 5 until 65s
            6s end L2 (Released)
            7s retire L2
            7s grant L4 20 GiB on 1 epoch 6 until 67s
        "#]],
    );
}

#[test]
fn caps_hold_whole_cards_and_nobody_elses_lease() {
    let mut policy = Policy::default();
    policy
        .caps_of
        .insert("cap".into(), Caps { vram: Some(Bytes::gib(16)), leases: Some(1), places: Some(9), ..Caps::default() });
    check_with(
        policy,
        "0s   cards 24G
         0s   card 0 0M
         0s   ask cap whole
         0s   ask cap 8G
         1s   ask ann 8G
         2s   ask cap 8G
         130s tick",
        expect![[r#"
            0s refuse: you may lease 16 GiB at once, and this request is larger
            0s queue L1
            0s grant L1 8 GiB on 0 epoch 1 until 60s
            1s queue L2
            1s grant L2 8 GiB on 0 epoch 2 until 61s
            2s queue L3
            60s end L1 (Expired)
            61s retire L1
            61s grant L3 8 GiB on 0 epoch 3 until 121s
            61s renew L2 until 121s (idle)
            121s renew L2 until 181s (idle)
            121s renew L3 until 181s (idle)
        "#]],
    );
}

#[test]
fn a_cap_makes_ones_own_idle_lease_give_way() {
    let mut policy = Policy::default();
    policy.caps_of.insert("cap".into(), Caps { vram: None, leases: Some(1), places: Some(9), ..Caps::default() });
    check_with(
        policy,
        "0s   cards 24G
         0s   card 0 0M
         0s   ask cap 8G
         5s   ask cap 8G
         65s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 8 GiB on 0 epoch 1 until 60s
            5s queue L2
            60s end L1 (Expired)
            61s retire L1
            61s grant L2 8 GiB on 0 epoch 2 until 121s
        "#]],
    );
}

#[test]
fn nobody_is_let_past_on_room_that_leaving_holders_keep() {
    // Each of those who leave keeps its context: 0.8 + 2 x 1.7 GiB come, and 3.8 of them are for L3.
    super::check_with(
        super::preempt::house(),
        "0s  cards 5G
         0s  ram 100G
         0s  card 0 0M
         0s  ask ann 2G ttl=300s
         0s  ask bob 2G ttl=300s
         1s  bind L1
         1s  bind L2
         1s  shim L1 here
         1s  shim L2 here
         2s  card 0 L1=2G L2=2G
         2s  worked L1
         2s  worked L2
         3s  ask carl 3800M interactive
         3.1s  ask dora 700M
         3.5s  shim L1 parked 1700M
         3.6s  shim L2 parked 1700M
         3.7s  card 0 L1=300M L2=300M
         3.8s  card 0 L1=300M L2=300M
         9s  release L3 carl
         9.1s  card 0 L1=300M L2=300M",
        expect![[r#"
            0s queue L1
            0s grant L1 2 GiB on 0 epoch 1 until 300s
            0s queue L2
            0s grant L2 2 GiB on 0 epoch 2 until 300s
            1s bind L1
            1s bind L2
            3s queue L3
            3s park L1 for L3 (2.1 GiB booked, and asks again)
            3s park L2 for L3 (2.1 GiB booked, and asks again)
            3.1s queue L4
            3.8s parked L1
            3.8s L1 wants 1.7 GiB as of 3.000001s
            3.8s parked L2
            3.8s L2 wants 1.7 GiB as of 3.000001s
            3.8s grant L3 3.7 GiB on 0 epoch 3 until 63.8s
            9s end L3 (Released)
            9.1s retire L3
            9.1s resume L1 2 GiB until 309.1s
            9.1s resume L2 2 GiB until 309.1s
            9.1s grant L4 700 MiB on 0 epoch 4 until 69.1s
        "#]],
    );
}
