//! Stories of those who chose to be ended for others: they are told, get their signals in time, and are spared
//! when nobody needs their cards any more.

use super::preempt::{check, house};
use super::{check_with, told};
use crate::model::cost::{Costs, Direction};
use crate::model::method::Method;
use crate::model::units::Bytes;
use expect_test::expect;

#[test]
fn who_chose_to_be_ended_is_told_and_ended() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 16G end notice=20s
         5s  bind L2
         5s  alive L2 L2 L2/child
         5.1s  card 0 L2/child=15G
         6s  ask bob 16G interactive
         26s  sent L2 15
         57s  alive L2 L2
         57s  card 0 0M
         59s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 16 GiB on 0 epoch 2 until 64s
            5s bind L2
            6s queue L3
            6s notice L2 until 26s for L3
            26s end L2 (Preempted)
            26s signal 15 to 1 of L2
            56s signal 9 to 1 of L2
            57s retire L2
            57s grant L3 16 GiB on 0 epoch 3 until 117s
        "#]],
    );
}

#[test]
fn equals_do_not_end_each_other_and_who_stands_higher_does() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 16G end ttl=300s
         5s  bind L2
         5s  alive L2 L2 L2/child
         5.1s  card 0 L2/child=15G
         6s  ask dan 16G end
         30s  card 0 L2/child=15G
         30s  worked L2
         60s  card 0 L2/child=15G
         60s  worked L2
         61s  ask dan 16G end priority=1
         62s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 16 GiB on 0 epoch 2 until 304s
            5s bind L2
            6s queue L3
            61s queue L4
            62s notice L2 until 62s for L4
            62s end L2 (Preempted)
            62s signal 15 to 1 of L2
        "#]],
    );
}

#[test]
fn who_survives_it_takes_its_card_out_of_service() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 16G end
         5s  bind L2
         5s  alive L2 L2 L2/child
         5.1s  card 0 L2/child=15G
         6s  ask bob 16G interactive
         6s  sent L2 15
         36s  sent L2 9
         70s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 16 GiB on 0 epoch 2 until 64s
            5s bind L2
            6s queue L3
            6s notice L2 until 6s for L3
            6s end L2 (Preempted)
            6s signal 15 to 1 of L2
            36s signal 9 to 1 of L2
            66s card 0 Out { why: "a process of L2 survived SIGKILL and still has memory there" }
        "#]],
    );
}

#[test]
fn processes_of_other_users_get_no_signal_and_are_on_record() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 16G end
         5s  bind L2
         5s  alive L2 L2 L2/child L2/sudo=uid0
         5.1s  card 0 L2/child=15G
         6s  ask bob 16G interactive
         6s  sent L2 15
         7s  alive L2 L2/sudo=uid0
         8s  card 0 0M
         9s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 16 GiB on 0 epoch 2 until 64s
            5s bind L2
            6s queue L3
            6s notice L2 until 6s for L3
            6s end L2 (Preempted)
            6s signal 15 to 1 of L2, not to 1 of other users
            8s retire L2
            8s grant L3 16 GiB on 0 epoch 3 until 68s
        "#]],
    );
}

#[test]
fn a_lease_whose_memory_another_user_holds_is_not_ended_for_others() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 16G end
         5s  bind L2
         5s  alive L2 L2 L2/child L2/sudo=uid0
         5.1s  card 0 L2/sudo=15G
         6s  ask bob 16G interactive
         20s  card 0 L2/sudo=15G
         20s  tick
         21s  alive L2 L2 L2/child L2/sudo
         21s  card 0 L2/sudo=15G
         22s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 16 GiB on 0 epoch 2 until 64s
            5s bind L2
            6s queue L3
            22s notice L2 until 22s for L3
            22s end L2 (Preempted)
            22s signal 15 to 2 of L2
        "#]],
    );
}

#[test]
fn a_signal_that_leaves_late_gives_as_much_time_as_any() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 16G end
         5s  bind L2
         5s  alive L2 L2 L2/child
         5.1s  card 0 L2/child=15G
         6s  ask bob 16G interactive
         50s  sent L2 15
         79s  sent L2 9
         90s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 16 GiB on 0 epoch 2 until 64s
            5s bind L2
            6s queue L3
            6s notice L2 until 6s for L3
            6s end L2 (Preempted)
            6s signal 15 to 1 of L2
            80s signal 9 to 1 of L2
        "#]],
    );
}

#[test]
fn who_is_told_goes_on_when_nobody_waits_any_more() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 16G end notice=20s
         5s  bind L2
         5.1s  card 0 L2=15G
         6s  ask bob 16G interactive
         10s  release L3 bob
         30s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 16 GiB on 0 epoch 2 until 64s
            5s bind L2
            6s queue L3
            6s notice L2 until 26s for L3
            10s end L3 (Released)
            26s spare L2
        "#]],
    );
}

#[test]
fn nobody_is_ended_for_two_at_once() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 16G end
         5s  card 0 unreadable
         6s  ask bob 16G interactive
         6.1s  ask dan 16G interactive
         7s  card 0 0M",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 16 GiB on 0 epoch 2 until 64s
            6s queue L3
            6.1s queue L4
            7s notice L2 until 7s for L3
            7s end L2 (Preempted)
        "#]],
    );
}

#[test]
fn who_was_served_first_by_the_queue_is_not_ended_at_once_for_who_waited_too() {
    check(
        "3s  release L1 ann
         3.5s  card 0 stray=5G
         4s  ask bob 20G interactive
         5s  ask cat 16G spot
         6s  card 0 0M
         20s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            5s queue L3
            5s grant L3 16 GiB on 0 epoch 2 until 65s
            15s notice L3 until 15s for L2
            15s end L3 (Preempted)
            16s retire L3
            16s grant L2 20 GiB on 0 epoch 3 until 76s
        "#]],
    );
}

#[test]
fn who_was_told_that_it_ends_and_was_parked_instead_is_not_ended_later() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 16G end notice=5s
         5s  bind L2
         5.1s  card 0 L2=15G
         6s  ask bob 16G interactive
         7s  shim L2 here
         8s  park L2 cat
         9s  shim L2 parked 14700M
         9.1s  card 0 L2=300M
         9.2s  card 0 L2=300M
         10s  resume L2 cat
         11s  release L3 bob
         11.1s  card 0 L2=300M
         12s  shim L2 resumed
         12.1s  card 0 L2=15G
         20s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 16 GiB on 0 epoch 2 until 64s
            5s bind L2
            6s queue L3
            6s notice L2 until 11s for L3
            8s park L2 (15.1 GiB booked)
            9.2s parked L2
            9.2s grant L3 16 GiB on 0 epoch 3 until 69.2s
            10s L2 wants 15.7 GiB as of 10s
            11s end L3 (Released)
            11.1s retire L3
            11.1s resume L2 16 GiB until 71.1s
            12.1s resumed L2
        "#]],
    );
}

#[test]
fn a_signal_that_an_earlier_daemon_may_not_have_sent_is_sent_again() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 16G end
         5s  bind L2
         5s  alive L2 L2 L2/child
         5.1s  card 0 L2/child=15G
         6s  ask bob 16G interactive
         30s  restart
         31s  cards 24G
         32s  alive L2 L2 L2/child
         36s  sent L2 15
         80s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 16 GiB on 0 epoch 2 until 64s
            5s bind L2
            6s queue L3
            6s notice L2 until 6s for L3
            6s end L2 (Preempted)
            6s signal 15 to 1 of L2
            30s grace until 90s
            36s signal 15 to 1 of L2
            66s signal 9 to 1 of L2
        "#]],
    );
}

#[test]
fn spot_lease_that_chose_park_is_parked_and_never_ended() {
    let with_shim = "0s   cards 24G
         0s   ram 100G
         0s   card 0 0M
         0s   ask ann 16G spot park
         1s   bind L1
         1s   shim L1 here
         2s   card 0 L1=14G
         5s   ask bob 16G
         6s   shim L1 parked 13700M
         6.2s card 0 L1=300M
         6.3s card 0 L1=300M";
    check_with(
        house(),
        with_shim,
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s queue L2
            5s park L1 for L2 (14.1 GiB booked)
            6.3s parked L1
            6.3s grant L2 16 GiB on 0 epoch 2 until 66.3s
        "#]],
    );
    let without_shim = "0s   cards 24G
         0s   ram 100G
         0s   card 0 0M
         0s   ask ann 16G spot park
         1s   bind L1
         1s   alive L1 L1
         2s   card 0 L1=14G
         5s   ask bob 16G
         40s  tick";
    check_with(
        house(),
        without_shim,
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s queue L2
            40s renew L1 until 100s
        "#]],
    );
}

#[test]
fn who_is_seen_on_its_card_only_after_its_end_gets_its_signals_all_the_same() {
    check_with(
        house(),
        "0s   cards 24G
         0s   ram 100G
         0s   card 0 0M
         0s   ask ann 16G spot
         1s   bind L1
         1s   alive L1 L1
         5s   ask bob 16G
         5.5s card 0 L1=14G
         7s   sent L1 15
         40s  gone L1
         41s  card 0 0M",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s queue L2
            5s notice L1 until 5s for L2
            5s end L1 (Preempted)
            6.5s signal 15 to 1 of L1
            37s signal 9 to 1 of L1
            41s retire L1
            41s grant L2 16 GiB on 0 epoch 2 until 101s
        "#]],
    );
}

#[test]
fn what_it_takes_to_end_a_program_is_learned() {
    let story = "0s   cards 24G
         0s   ram 100G
         0s   card 0 0M
         0s   ask ann 16G spot
         1s   bind L1
         1s   alive L1 L1 L1/child
         2s   card 0 L1/child=14G
         10s  ask bob 16G
         10s  sent L1 15
         17s  alive L1 L1
         17s  card 0 0M";
    let teller = told(story, house());
    let estimate = |costs: &Costs| costs.estimate("", Method::End, Direction::OffGpu, Bytes::ZERO).0 / 1_000;
    let (first, now) =
        (estimate(&Costs::default()), estimate(&teller.state.rows().tenants[crate::ids::TenantId(0)].costs));
    assert_eq!(first, 1_000);
    assert!((5_000..=7_000).contains(&now), "it took seven seconds, and the next is reckoned with {now} ms");
}

#[test]
fn who_wants_a_signal_before_its_term_is_over_gets_it_once() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 4G notice=3s time=6s
         4s  ask cat 4G notice=30s time=6s
         4s  ask cat 4G notice=3s ttl=60s
         4s  bind L2
         4s  bind L3
         5s  alive L2 L2 L2/child
         6s  tick
         6.5s  alive L3 L3 L3/child
         7s  tick
         8s  tick
         10s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 4 GiB on 0 epoch 2 until 10s
            4s queue L3
            4s grant L3 4 GiB on 0 epoch 3 until 10s
            4s queue L4
            4s grant L4 4 GiB on 0 epoch 4 until 64s
            4s bind L2
            4s bind L3
            7s notice L2 until 10s for L2
            7s notice L3 until 10s for L3
            10s end L2 (TermOver)
            10s end L3 (TermOver)
        "#]],
    );
}

#[test]
fn who_is_told_for_others_at_the_very_end_of_a_term_that_a_grace_put_off_ends_then() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 16G end notice=0s time=6s
         4s  bind L2
         5s  alive L2 L2 L2/child
         5s  card 0 L2/child=15G
         9s  restart
         9s  alive L2 L2 L2/child
         9s  card 0 L2/child=15G
         10s  ask bob 16G interactive
         10.5s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 16 GiB on 0 epoch 2 until 10s
            4s bind L2
            9s grace until 69s
            10s queue L3
            10s notice L2 until 10s for L3
            10.5s end L2 (Preempted)
            10.5s signal 15 to 1 of L2
        "#]],
    );
}

#[test]
fn who_wants_a_signal_before_a_term_that_a_grace_put_off_gets_it_before_the_real_end() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 4G notice=3s time=6s
         4s  bind L2
         5s  restart
         5s  alive L2 L2 L2/child
         8s  tick
         62s  tick
         65s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 4 GiB on 0 epoch 2 until 10s
            4s bind L2
            5s grace until 65s
            62s notice L2 until 65s for L2
            65s end L2 (TermOver)
        "#]],
    );
}
