//! Stories of fairness: debts, turns, claims that are not moved, offers, quotas.

use super::{check, check_with};
use crate::model::settings::{Caps, Policy};
use crate::model::units::{Bytes, Span};
use expect_test::expect;

#[test]
fn who_used_much_lately_lets_others_pass() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 20G time=300s
         10s  ask ann 20G time=300s
         20s  ask ben 20G time=300s
         700s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 20 GiB on 0 epoch 1 until 300s
            10s queue L2
            20s queue L3
            300s end L1 (TermOver)
            301s retire L1
            301s grant L3 20 GiB on 0 epoch 2 until 601s
            601s end L3 (TermOver)
            602s retire L3
            602s grant L2 20 GiB on 0 epoch 3 until 902s
        "#]],
    );
}

#[test]
fn many_asks_are_one_waiter_at_a_time() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 20G time=60s
         0s   ask ann 20G time=60s
         0s   ask ann 20G time=60s
         0s   ask ann 20G time=60s
         1s   ask ben 20G time=60s
         2s   ask ben 20G time=60s
         400s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 20 GiB on 0 epoch 1 until 60s
            0s queue L2
            0s queue L3
            0s queue L4
            1s queue L5
            2s queue L6
            60s end L1 (TermOver)
            61s retire L1
            61s grant L5 20 GiB on 0 epoch 2 until 121s
            121s end L5 (TermOver)
            122s retire L5
            122s grant L2 20 GiB on 0 epoch 3 until 182s
            182s end L2 (TermOver)
            183s retire L2
            183s grant L6 20 GiB on 0 epoch 4 until 243s
            243s end L6 (TermOver)
            244s retire L6
            244s grant L3 20 GiB on 0 epoch 5 until 304s
            304s end L3 (TermOver)
            305s retire L3
            305s grant L4 20 GiB on 0 epoch 6 until 365s
            365s end L4 (TermOver)
            366s retire L4
        "#]],
    );
}

#[test]
fn a_debt_counts_no_more_than_its_bound() {
    check_with(
        Policy { debt_max: Span::secs(30), ..Policy::default() },
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 20G time=100s
         1s   ask ann 20G time=100s
         20s  ask ben 20G time=100s
         60s  ask cat 20G time=100s
         400s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 20 GiB on 0 epoch 1 until 100s
            1s queue L2
            20s queue L3
            60s queue L4
            100s end L1 (TermOver)
            101s retire L1
            101s grant L3 20 GiB on 0 epoch 2 until 201s
            201s end L3 (TermOver)
            202s retire L3
            202s grant L2 20 GiB on 0 epoch 3 until 302s
            302s end L2 (TermOver)
            303s retire L2
            303s grant L4 20 GiB on 0 epoch 4 until 403s
        "#]],
    );
}

#[test]
fn what_ends_before_a_claim_is_let_past_it_and_not_renewed_beyond() {
    check_with(
        Policy { hold_max: Span::secs(200), ..Policy::default() },
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 10G time=150s
         1s   ask ben 20G
         2s   ask cat 8G ttl=60s
         3s   ask dan 8G time=160s
         4s   bind L3
         4s   alive L3
         50s  worked L3
         90s  worked L3
         135s worked L3
         160s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 10 GiB on 0 epoch 1 until 150s
            1s queue L2
            2s queue L3
            2s grant L3 8 GiB on 0 epoch 2 until 62s, over by 150s
            3s queue L4
            4s bind L3
            39s renew L3 until 99s
            86s renew L3 until 146s
            127s renew L3 until 150s
            150s end L1 (TermOver)
            150s end L3 (HoldCap)
            151s retire L1
            151s retire L3
            151s grant L2 20 GiB on 0 epoch 3 until 211s
        "#]],
    );
}

#[test]
fn an_offer_is_taken_and_the_place_given_up() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G
         1s   ask ben 12G
         2s   accept L2 ann 6G 1
         2s   accept L2 ben 9G 1
         2s   accept L2 ben 6G 2
         2s   accept L2 ben 6G 1
         3s   accept L2 ben 6G 1
         4s   ask cat 8G least=1G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s queue L2
            2s refuse: no such lease
            2s refuse: that cannot start now, but 7.8 GiB can
            2s refuse: that cannot start now, but 7.8 GiB can
            2s grant L2 6 GiB on 0 epoch 2 until 62s
            3s refuse: the lease does not wait any more
            4s queue L3
            4s grant L3 1.8 GiB on 0 epoch 3 until 64s
        "#]],
    );
}

#[test]
fn an_offer_takes_nothing_from_who_is_ahead() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G time=20s
         1s   ask ben 20G
         2s   ask cat 12G time=60s
         3s   accept L3 cat 7G 1
         3s   accept L3 cat 3G 1",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 20s
            1s queue L2
            2s queue L3
            3s refuse: that cannot start now, but 3.8 GiB can
            3s grant L3 3 GiB on 0 epoch 2 until 63s
        "#]],
    );
}

#[test]
fn a_gang_may_accept_fewer_cards() {
    check(
        "0s   cards 24G 24G
         0s   card 0 0M
         0s   card 1 0M
         0s   ask ann 20G
         1s   ask ben 16G gpus=2
         2s   accept L2 ben 16G 1",
        expect![[r#"
            0s queue L1
            0s grant L1 20 GiB on 0 epoch 1 until 60s
            1s queue L2
            2s grant L2 16 GiB on 1 epoch 2 until 62s
        "#]],
    );
}

#[test]
fn a_group_is_held_to_what_it_may_have_together() {
    let mut policy = Policy::default();
    let caps = Caps { vram: Some(Bytes::gib(12)), places: Some(2), ..Caps::default() };
    policy.caps_of_groups.insert("lab".into(), caps);
    check_with(
        policy,
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann/lab 8G
         1s   ask ben/lab 8G
         2s   ask cat 8G
         3s   ask dan/lab 14G
         3s   ask dan/lab 8G
         3s   ask eve/lab 1G
         5s   release L1 ann
         8s   tick",
        expect![[r#"
            0s queue L1
            0s grant L1 8 GiB on 0 epoch 1 until 60s
            1s queue L2
            2s queue L3
            2s grant L3 8 GiB on 0 epoch 2 until 62s
            3s refuse: group lab may together lease 12 GiB at once, and this request is larger
            3s queue L4
            3s refuse: you, or your group, have the most waiting requests that are allowed
            5s end L1 (Released)
            6s retire L1
            6s grant L2 8 GiB on 0 epoch 3 until 66s
        "#]],
    );
}

#[test]
fn a_day_has_so_much_gpu_time_and_the_next_one_again() {
    let mut policy = Policy::default();
    policy.caps.gpu_day = Some(Span::secs(100));
    check_with(
        policy,
        "0s   cards 24G
         0s   card 0 0M
         0s   day 1
         0s   ask ann whole time=60s
         1s   ask ann whole time=60s
         10s  release L1 ann
         12s  ask ann 12G ttl=60s
         13s  bind L2
         13s  alive L2
         50s  worked L2
         100s worked L2
         150s worked L2
         200s tick
         210s day 1
         210s day 2
         210s ask ann 12G time=60s",
        expect![[r#"
            0s day 1
            0s queue L1
            0s grant L1 23.8 GiB on 0 epoch 1 until 60s
            1s refuse: you may use 100s of GPU time a day, of which 40s are left today: too little for this
            10s end L1 (Released)
            11s retire L1
            12s queue L2
            12s grant L2 12 GiB on 0 epoch 2 until 72s
            13s bind L2
            52s renew L2 until 112s
            100s renew L2 until 160s
            160s end L2 (Budget)
            161s retire L2
            210s day 2
            210s queue L3
            210s grant L3 12 GiB on 0 epoch 3 until 270s
        "#]],
    );
}

#[test]
fn never_to_be_preempted_takes_a_quota() {
    let mut policy = Policy { hold_max: Span::secs(60), ..Policy::default() };
    policy.caps_of.insert("ann".into(), Caps { never: Some(Bytes::gib(10)), ..Caps::default() });
    check_with(
        policy,
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ben 8G never
         0s   ask ann 12G never
         0s   ask ann 10G never ttl=30s
         0s   bind L1
         0s   alive L1
         1s   ask ben 20G
         20s  worked L1
         45s  worked L1
         65s  worked L1
         90s  worked L1
         100s tick",
        expect![[r#"
            0s refuse: you may have no lease with `--preempt never`
            0s refuse: you may lease 10 GiB at once with `--preempt never`, and 0 B are leased
            0s queue L1
            0s grant L1 10 GiB on 0 epoch 1 until 30s
            0s bind L1
            1s queue L2
            20s renew L1 until 50s
            41s renew L1 until 71s
            64s renew L1 until 94s
            86s renew L1 until 116s
        "#]],
    );
}

#[test]
fn a_gang_is_placed_near_one_another() {
    check(
        "0s   cards 24G@0 24G@1 24G@0 24G@1 24G@1
         0s   card 0 0M
         0s   card 1 4G
         0s   card 2 0M
         0s   card 3 0M
         0s   card 4 0M
         0s   ask ann 8G gpus=2
         1s   ask ben 8G gpus=3",
        expect![[r#"
            0s queue L1
            0s grant L1 8 GiB on 0+2 epoch 1 until 60s
            1s queue L2
            1s grant L2 8 GiB on 1+3+4 epoch 2 until 61s
        "#]],
    );
}

#[test]
fn a_gang_is_placed_on_one_board_before_one_node() {
    check(
        "0s   cards 24G@0#1 24G@0#2 24G@0#2 24G@0#1
         0s   card 0 0M
         0s   card 1 0M
         0s   card 2 0M
         0s   card 3 0M
         0s   ask ann 20G on=0 time=100s
         1s   ask ben 2G gpus=2
         2s   ask cy 2G gpus=3",
        expect![[r#"
            0s queue L1
            0s grant L1 20 GiB on 0 epoch 1 until 100s
            1s queue L2
            1s grant L2 2 GiB on 0+3 epoch 2 until 61s
            2s queue L3
            2s grant L3 2 GiB on 1+2+3 epoch 3 until 62s
        "#]],
    );
}

#[test]
fn an_offer_is_never_more_than_was_asked_for() {
    check(
        "0s   cards 24G 24G
         0s   card 0 0M
         0s   card 1 0M
         0s   ask ann 20G
         1s   ask ben 8G on=0
         2s   accept L2 ben 9G 1
         2s   accept L2 ben 3G 1",
        expect![[r#"
            0s queue L1
            0s grant L1 20 GiB on 0 epoch 1 until 60s
            1s queue L2
            2s refuse: that cannot start now, but 3.8 GiB can
            2s grant L2 3 GiB on 0 epoch 2 until 62s
        "#]],
    );
}

#[test]
fn on_a_full_house_a_held_waiter_costs_nobody_else_its_lease() {
    let mut policy = Policy::default();
    policy.caps_of.insert("cap".into(), Caps { leases: Some(1), ..Caps::default() });
    check_with(
        policy,
        "0s   cards 24G
         0s   card 0 0M
         0s   ask cap 10G time=200s
         0s   ask ann 13G
         5s   ask cap 10G
         6s   ask cap 1G
         70s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 10 GiB on 0 epoch 1 until 200s
            0s queue L2
            0s grant L2 13 GiB on 0 epoch 2 until 60s
            5s queue L3
            6s queue L4
            60s renew L2 until 120s (idle)
        "#]],
    );
}

#[test]
fn a_gang_let_past_one_claim_by_its_end_and_another_by_its_size_uses_up_what_was_left() {
    check(
        "0s   cards 24G 24G
         0s   card 0 0M
         0s   card 1 0M
         0s   ask ann 20G on=0 time=1000s
         0s   ask ann 14G on=1 time=30s
         1s   card 0 unreadable
         1s   card 1 unreadable
         1s   ask ben 22G on=0
         2s   ask cy 20G on=1
         3s   ask dan 3G gpus=2 time=100s
         4s   ask eve 3G on=1 time=100s
         5s   card 0 0M
         5s   card 1 0M
         40s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 20 GiB on 0 epoch 1 until 1000s
            0s queue L2
            0s grant L2 14 GiB on 1 epoch 2 until 30s
            1s queue L3
            2s queue L4
            3s queue L5
            4s queue L6
            5s grant L5 3 GiB on 0+1 epoch 3 until 105s, over by 1000s
            30s end L2 (TermOver)
            31s retire L2
            31s grant L4 20 GiB on 1 epoch 4 until 91s
        "#]],
    );
}

#[test]
fn who_waits_for_more_than_it_may_ever_have_since_a_card_has_grown_holds_up_nobody_of_its_own() {
    let mut policy = Policy::default();
    policy.caps_of.insert("ann".into(), Caps { vram: Some(Bytes::gib(18)), ..Caps::default() });
    check_with(
        policy,
        "0s  cards 16G
         0s  card 0 0M
         0s  ask ann 4G time=300s
         1s  ask ann whole time=60s
         2s  ask ann 2G time=60s
         3s  cards 24G
         3s  card 0 0M",
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 300s
            1s queue L2
            2s queue L3
            3s grant L3 2 GiB on 0 epoch 2 until 63s
        "#]],
    );
}
