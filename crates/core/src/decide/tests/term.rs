//! Stories of time: renewal, expiry, the hold cap, grace, restarts.

use super::{check, check_with};
use crate::model::settings::Policy;
use crate::model::units::Span;
use expect_test::expect;

#[test]
fn an_unrenewed_lease_ends_and_the_next_in_line_is_served() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G
         5s   ask bob 16G
         62s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            5s queue L2
            60s end L1 (Expired)
            61s retire L1
            61s grant L2 16 GiB on 0 epoch 2 until 121s
        "#]],
    );
}

#[test]
fn an_unused_lease_that_nobody_waits_for_goes_on_and_is_shown_idle() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G
         100s tick
         125s ask bob 2G
         200s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            60s renew L1 until 120s (idle)
            120s renew L1 until 180s (idle)
            125s queue L2
            125s grant L2 2 GiB on 0 epoch 2 until 185s
            180s renew L1 until 240s (idle)
            185s renew L2 until 245s (idle)
        "#]],
    );
}

#[test]
fn use_renews_a_bound_lease_and_words_do_not() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G
         1s   bind L1
         1s   alive L1
         2s   ask bob 16G
         5s   renew L1 ann
         20s  worked L1
         44s  tick
         80s  worked L1
         90s  tick
         160s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            2s queue L2
            40s renew L1 until 100s
            84s renew L1 until 144s
            144s end L1 (Expired)
            145s retire L1
            145s grant L2 16 GiB on 0 epoch 2 until 205s
        "#]],
    );
}

#[test]
fn a_word_renews_a_lease_that_no_process_is_bound_to() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G
         1s   ask bob 16G
         50s  renew L1 ann
         50s  renew L1 bob
         50s  renew L1 ann 7
         100s renew L1 ann
         165s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s queue L2
            50s renew L1 until 110s
            50s refuse: no such lease
            50s refuse: the lease has fence 1, but the call carried fence 7
            100s renew L1 until 160s
            160s end L1 (Expired)
            161s retire L1
            161s grant L2 16 GiB on 0 epoch 2 until 221s
        "#]],
    );
}

#[test]
fn a_busy_holder_keeps_its_card_no_longer_than_the_hold_cap_while_somebody_waits() {
    check_with(
        Policy { hold_max: Span::secs(100), ..Policy::default() },
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G
         1s   ask bob 16G
         40s  renew L1 ann
         90s  renew L1 ann
         99s  renew L1 ann
         102s tick
         140s renew L2 bob
         190s renew L2 bob
         240s renew L2 bob
         290s renew L2 bob",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s queue L2
            40s renew L1 until 100s
            100s end L1 (HoldCap)
            101s retire L1
            101s grant L2 16 GiB on 0 epoch 2 until 161s
            140s renew L2 until 200s
            190s renew L2 until 250s
            240s renew L2 until 300s
            290s renew L2 until 350s
        "#]],
    );
}

#[test]
fn a_fixed_term_is_neither_renewed_nor_cut() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G time=100s
         50s  renew L1 ann
         102s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 100s
            100s end L1 (TermOver)
            101s retire L1
        "#]],
    );
}

#[test]
fn after_a_stall_or_a_suspend_nothing_expires_before_the_grace_is_over() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G
         1s   ask bob 16G
         100s stall
         100s tick
         130s renew L1 ann
         188s tick
         195s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s queue L2
            100s grace until 160s
            130s renew L1 until 190s
            190s end L1 (Expired)
            191s retire L1
            191s grant L2 16 GiB on 0 epoch 2 until 251s
        "#]],
    );
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G
         1s   ask bob 16G
         59s  awoke
         121s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s queue L2
            59s grace until 119s
            119s end L1 (Expired)
            120s retire L1
            120s grant L2 16 GiB on 0 epoch 2 until 180s
        "#]],
    );
}

#[test]
fn a_restart_ends_nobody_and_a_reboot_ends_holders_only() {
    check(
        "0s   start boot-1
         0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G
         1s   ask bob 16G
         3s   start boot-1
         5s   start boot-2
         8s   tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s queue L2
            3s grace until 63s
            5s grace until 65s
            5s end L1 (HostRebooted)
            5s retire L1
            6s grant L2 16 GiB on 0 epoch 2 until 66s
        "#]],
    );
}

#[test]
fn after_a_backup_was_put_back_no_lease_gets_a_number_that_there_was() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 4G
         1s   restart at L40
         2s   card 0 0M
         3s   ask ann 4G
         4s   restart at L7
         5s   card 0 0M
         6s   ask ann 4G",
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 60s
            1s grace until 61s
            3s queue L40
            3s grant L40 4 GiB on 0 epoch 2 until 63s
            4s grace until 64s
            6s queue L41
            6s grant L41 4 GiB on 0 epoch 3 until 66s
        "#]],
    );
}

#[test]
fn who_would_wait_no_longer_leaves_the_queue() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 20G
         1s   ask bob 20G wait=30s
         35s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 20 GiB on 0 epoch 1 until 60s
            1s queue L2
            31s end L2 (WaitOver)
        "#]],
    );
}

#[test]
fn a_fixed_term_gets_no_second_one_from_a_grace() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G time=30s
         1s   bind L1
         1s   alive L1
         29s  awoke
         95s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 30s
            1s bind L1
            29s grace until 89s
            89s end L1 (TermOver)
            90s retire L1
        "#]],
    );
}

#[test]
fn a_ttl_is_no_longer_than_others_must_wait() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 8G ttl=3600s
         0s   ask ann 8G ttl=1800s",
        expect![[r#"
            0s refuse: `ttl_s` may be at most 1800s here
            0s queue L1
            0s grant L1 8 GiB on 0 epoch 1 until 1800s
        "#]],
    );
}

#[test]
fn a_busy_holder_is_renewed_even_when_the_daemon_looks_late() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G ttl=6s
         0s   bind L1
         1s   ask bob 16G
         3s   worked L1
         9s   stall
         9s   tick
         10s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 6s
            0s bind L1
            1s queue L2
            9s renew L1 until 15s
        "#]],
    );
}
