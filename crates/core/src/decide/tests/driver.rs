//! Stories of holders that the driver moves: only where a restore is sure to have room.

use super::preempt::{check, house};
use super::{check_with, process, told};
use crate::model::ids::{GpuId, LeaseId};
use crate::model::movers::RestoreObstacle;
use crate::model::rows::{Lease, Phase};
use expect_test::expect;

#[test]
fn the_driver_parks_only_where_a_restore_is_sure_to_have_room() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 12G
         5s  bind L2
         5s  driver L2 here
         5.1s  card 0 L2=11G stray=1G
         5.2s  worked L2
         6s  ask bob 16G interactive
         8s  card 0 L2=11G
         8.1s  worked L2
         19s  driver L2 parked 11000M
         19.1s  card 0 0M
         19.2s  card 0 0M
         20s  release L3 bob
         20.1s  card 0 0M
         21s  shim L2 wants
         22s  ask bob 4G
         25s  driver L2 resumed
         25.1s  card 0 L2=11G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 12 GiB on 0 epoch 2 until 64s
            5s bind L2
            6s queue L3
            9.1s park L2 by driver for L3 (11.1 GiB booked, and asks again)
            19.2s parked L2
            19.2s L2 wants 12 GiB as of 9.100001s
            19.2s grant L3 16 GiB on 0 epoch 3 until 79.2s
            20s end L3 (Released)
            20.1s retire L3
            20.1s resume L2 12 GiB until 80.1s
            22s queue L4
            25.1s resumed L2
            25.1s grant L4 4 GiB on 0 epoch 4 until 85.1s
        "#]],
    );
}

#[test]
fn the_driver_brings_nobody_back_beside_who_could_take_its_room() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 12G
         5s  bind L2
         5s  driver L2 here
         5.1s  card 0 L2=11G
         5.2s  worked L2
         6s  ask bob 16G interactive
         19s  driver L2 parked 11000M
         19.1s  card 0 0M
         19.2s  card 0 0M
         20s  release L3 bob
         20.1s  card 0 stray=1G
         23s  card 0 0M",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 12 GiB on 0 epoch 2 until 64s
            5s bind L2
            6s queue L3
            6s park L2 by driver for L3 (11.1 GiB booked, and asks again)
            19.2s parked L2
            19.2s L2 wants 12 GiB as of 6.000001s
            19.2s grant L3 16 GiB on 0 epoch 3 until 79.2s
            20s end L3 (Released)
            20.1s retire L3
            23s resume L2 12 GiB until 83s
        "#]],
    );
}

#[test]
fn whoever_the_driver_was_to_bring_back_stays_away_when_somebody_came_meanwhile_who_could_take_its_room() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 12G
         5s  bind L2
         5s  driver L2 here
         5.1s  card 0 L2=11G
         5.2s  worked L2
         6s  ask bob 16G interactive
         19s  driver L2 parked 11000M
         19.1s  card 0 0M
         19.2s  card 0 0M
         20s  release L3 bob
         21s  card 0 0M
         22s  card 0 stray=1G
         22.1s  card 0 stray=1G
         22.2s  card 0 stray=1G
         90s  card 0 0M
         95s  driver L2 resumed
         95.5s  card 0 L2=11G stray=1G
         96s  card 0 L2=11G stray=1G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 12 GiB on 0 epoch 2 until 64s
            5s bind L2
            6s queue L3
            6s park L2 by driver for L3 (11.1 GiB booked, and asks again)
            19.2s parked L2
            19.2s L2 wants 12 GiB as of 6.000001s
            19.2s grant L3 16 GiB on 0 epoch 3 until 79.2s
            20s end L3 (Released)
            21s retire L3
            21s resume L2 12 GiB until 81s
            22s retreat L2
            22.2s parked L2
            22.2s L2 wants 12 GiB as of 6.000001s
            90s resume L2 12 GiB until 150s
            95.5s resumed L2
        "#]],
    );
}

#[test]
fn whose_bytes_the_driver_lost_has_no_lease_any_more() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 12G
         5s  bind L2
         5s  driver L2 here
         5.1s  card 0 L2=11G
         5.2s  worked L2
         6s  ask bob 16G interactive
         19s  driver L2 parked 11000M
         19.1s  card 0 0M
         19.2s  card 0 0M
         20s  release L3 bob
         21s  card 0 0M
         26s  driver L2 lost out of memory
         26s  driver L2 lost out of memory
         27s  card 0 0M",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 12 GiB on 0 epoch 2 until 64s
            5s bind L2
            6s queue L3
            6s park L2 by driver for L3 (11.1 GiB booked, and asks again)
            19.2s parked L2
            19.2s L2 wants 12 GiB as of 6.000001s
            19.2s grant L3 16 GiB on 0 epoch 3 until 79.2s
            20s end L3 (Released)
            21s retire L3
            21s resume L2 12 GiB until 81s
            26s end L2 (RestoreFailed)
            27s retire L2
        "#]],
    );
}

#[test]
fn the_driver_parks_nobody_who_has_more_than_its_lease() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 12G
         5s  bind L2
         5s  driver L2 here
         5.1s  card 0 L2=13G
         6s  ask bob 16G interactive
         8s  card 0 L2=11G
         9s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 12 GiB on 0 epoch 2 until 64s
            5s bind L2
            6s queue L3
            7s over L2: 13 GiB
            9s within L2
            9s park L2 by driver for L3 (11.1 GiB booked, and asks again)
        "#]],
    );
}

#[test]
fn who_comes_back_with_more_than_its_lease_is_not_sent_away_again() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 12G
         5s  bind L2
         5s  driver L2 here
         5.1s  card 0 L2=11G
         5.2s  worked L2
         6s  ask bob 16G interactive
         19s  driver L2 parked 11000M
         19.1s  card 0 0M
         19.2s  card 0 0M
         20s  release L3 bob
         21s  card 0 0M
         24s  card 0 L2=13G
         25s  driver L2 resumed
         26s  card 0 L2=13G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 12 GiB on 0 epoch 2 until 64s
            5s bind L2
            6s queue L3
            6s park L2 by driver for L3 (11.1 GiB booked, and asks again)
            19.2s parked L2
            19.2s L2 wants 12 GiB as of 6.000001s
            19.2s grant L3 16 GiB on 0 epoch 3 until 79.2s
            20s end L3 (Released)
            21s retire L3
            21s resume L2 12 GiB until 81s
            26s resumed L2
        "#]],
    );
}

/// The driver takes a process off every card that it uses, and only those of its lease are kept for it.
#[test]
fn who_uses_a_card_that_is_not_its_own_is_not_taken_off_it() {
    check_with(
        house(),
        "0s  cards 24G 24G
         0s  ram 64G
         0s  card 0 0M
         0s  card 1 0M
         0s  ask ann 16G
         1s  bind L1
         1s  driver L1 here
         2s  card 0 L1=14G
         2s  card 1 L1=2G
         5s  park L1 ann
         6s  card 1 unreadable
         7s  park L1 ann
         8s  card 1 0M
         9s  park L1 ann",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            5s refuse: the holder cannot be parked: a restore might find no room: it uses GPU 1 too, which is not its own (`--may-lose` accepts the risk)
            7s refuse: the holder cannot be parked: a restore might find no room: it may be on GPU 1 too, which cannot be read (`--may-lose` accepts the risk)
            9s park L1 by driver (14.1 GiB booked)
        "#]],
    );
}

#[test]
fn claim_of_a_lease_that_the_driver_restores_outlasts_newcomers_without_the_library() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 12G alone
         5s  bind L2
         5s  driver L2 here
         5.1s  card 0 L2=11G
         5.2s  worked L2
         6s  ask bob 16G interactive
         19s  driver L2 parked 11000M
         19.1s  card 0 0M
         19.2s  card 0 0M
         20s  bind L3
         20s  shim L3 here
         20.1s  card 0 L3=15G stray=8G
         30s  ask ann 1G ttl=10s
         31s  ask ann 5G time=4000s
         32s  ask ann 1G ttl=10s priority=-10
         33s  card 0 L3=15G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 12 GiB on 0 epoch 2 until 64s
            5s bind L2
            6s queue L3
            6s park L2 by driver for L3 (11.1 GiB booked, and asks again)
            19.2s parked L2
            19.2s L2 wants 12 GiB as of 6.000001s
            19.2s grant L3 16 GiB on 0 epoch 3 until 79.2s
            20s bind L3
            30s queue L4
            31s queue L5
            32s queue L6
            33s grant L4 1 GiB on 0 epoch 4 until 43s, over by 1819.2s
            33s grant L6 1 GiB on 0 epoch 5 until 43s, over by 1819.2s
        "#]],
    );
}

/// cat's two processes leave by the driver for bob, who gives back: the driver is told to bring them back.
const TWO: &str = "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 12G
         5s  bind L2
         5s  alive L2 L2 L2/x
         5s  driver L2 here
         5s  driver L2/x here
         5.1s  card 0 L2=6G L2/x=5G
         5.2s  worked L2
         6s  ask bob 16G interactive
         18s  driver L2 parked 6000M
         19s  driver L2/x parked 5000M
         19.1s  card 0 0M
         19.2s  card 0 0M
         20s  release L3 bob
         21s  card 0 0M
         ";

#[test]
fn after_a_restart_nobody_is_back_of_whom_the_driver_may_have_another_process() {
    check(
        &format!(
            "{TWO}
             22s  restart
             23s  alive L2 L2 L2/x
             24s  driver L2/x here
             25s  card 0 L2/x=5G
             26s  card 0 L2/x=5G
             30s  driver L2 here parked 6000M
             31s  card 0 L2/x=5G
             33s  driver L2 resumed
             34s  card 0 L2=6G L2/x=5G"
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 12 GiB on 0 epoch 2 until 64s
            5s bind L2
            6s queue L3
            6s park L2 by driver for L3 (11.1 GiB booked, and asks again)
            19.2s parked L2
            19.2s L2 wants 12 GiB as of 6.000001s
            19.2s grant L3 16 GiB on 0 epoch 3 until 79.2s
            20s end L3 (Released)
            21s retire L3
            21s resume L2 12 GiB until 81s
            22s grace until 82s
            34s resumed L2
        "#]],
    );
}

#[test]
fn after_a_restart_who_comes_sends_away_whom_the_driver_may_be_bringing_back() {
    check(
        &format!(
            "{TWO}
             22s  restart
             23s  alive L2 L2 L2/x
             24s  card 0 stray=1G"
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 12 GiB on 0 epoch 2 until 64s
            5s bind L2
            6s queue L3
            6s park L2 by driver for L3 (11.1 GiB booked, and asks again)
            19.2s parked L2
            19.2s L2 wants 12 GiB as of 6.000001s
            19.2s grant L3 16 GiB on 0 epoch 3 until 79.2s
            20s end L3 (Released)
            21s retire L3
            21s resume L2 12 GiB until 81s
            22s grace until 82s
            24s retreat L2
        "#]],
    );
}

#[test]
fn who_could_not_be_taken_is_not_back_while_the_driver_does_not_know_where_it_is() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 12G
         5s  bind L2
         5s  driver L2 here
         5.1s  card 0 L2=11G
         5.2s  worked L2
         6s  ask bob 16G interactive
         10s  driver L2 unknown
         10s  driver L2 refused the worker was lost
         11s  card 0 0M
         40s  card 0 0M
         80s  tick
         81s  driver L2 here parked 11000M
         82s  card 0 0M
         84s  driver L2 resumed
         85s  card 0 L2=11G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 12 GiB on 0 epoch 2 until 64s
            5s bind L2
            6s queue L3
            6s park L2 by driver for L3 (11.1 GiB booked, and asks again)
            10s unpark L2 (Refused("the worker was lost"))
            85s resumed L2
            85s renew L2 until 145s
        "#]],
    );
}

#[test]
fn who_was_told_to_leave_in_vain_is_not_back_before_the_driver_says_so_again() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 12G
         5s  bind L2
         5s  driver L2 here
         5.1s  card 0 L2=11G
         5.2s  worked L2
         6s  ask bob 16G interactive
         7s  driver L2 here
         60s  tick
         61s  card 0 L2=11G
         62s  driver L2 parked 11000M
         63s  card 0 0M
         64s  driver L2 resumed
         65s  card 0 L2=11G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 12 GiB on 0 epoch 2 until 64s
            5s bind L2
            6s queue L3
            6s park L2 by driver for L3 (11.1 GiB booked, and asks again)
            58s unpark L2 (Silent)
            65s resumed L2
            65s renew L2 until 125s
        "#]],
    );
}

#[test]
fn the_driver_brings_nobody_back_beside_a_program_without_the_library_of_a_parked_holder() {
    check_with(
        house(),
        "0s  cards 24G
         0s  ram 100G
         0s  card 0 0M
         0s  ask ann 8G ttl=300s
         1s  bind L1
         1s  driver L1 here
         2s  card 0 L1=7G
         3s  park L1 ann
         4s  driver L1 parked 7000M
         5s  card 0 0M
         6s  card 0 0M
         10s  ask bob 8G ttl=300s
         11s  bind L2
         11s  shim L2 here
         12s  card 0 L2=7G
         13s  park L2 bob
         14s  shim L2 parked 6800M
         15s  card 0 L2=300M
         16s  card 0 L2=300M
         17s  alive L2 L2 L2/x
         18s  card 0 L2=300M L2/x=5G
         20s  resume L1 ann
         25s  card 0 L2=300M L2/x=5G
         30s  card 0 L2=300M
         31s  driver L1 resumed
         32s  card 0 L2=300M L1=7G",
        expect![[r#"
            0s queue L1
            0s grant L1 8 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s park L1 by driver (7.1 GiB booked)
            6s parked L1
            10s queue L2
            10s grant L2 8 GiB on 0 epoch 2 until 310s
            11s bind L2
            13s park L2 (7.1 GiB booked)
            16s parked L2
            20s L1 wants 8 GiB as of 20s
            30s resume L1 8 GiB until 330s
            32s resumed L1
        "#]],
    );
}

#[test]
fn whom_the_driver_could_not_take_waits_for_the_stranger_on_its_card_and_it_is_known_for_whom() {
    let refused = "0s  cards 24G
         0s  ram 100G
         0s  card 0 0M
         0s  ask ann 8G ttl=300s
         1s  bind L1
         1s  driver L1 here
         2s  card 0 L1=7G
         3s  park L1 ann
         4s  driver L1 unknown
         4s  driver L1 refused the worker was lost
         5s  driver L1 here parked 7000M
         ";
    let held_back = |then: &str| {
        let teller = told(&format!("{refused}{then}"), house());
        let row = teller.state.lease(LeaseId(1)).expect("it is held");
        assert!(matches!(row.phase, Phase::Resuming(..)), "{row:?}");
        crate::policy::restore_room::restore_obstacle(&teller.state, row)
    };
    assert_eq!(held_back("6s  card 0 stray=1G"), Some(RestoreObstacle::Unleased(GpuId(0), 1)));
    assert_eq!(held_back("6s  card 0 unreadable"), Some(RestoreObstacle::Unreadable(GpuId(0))));
    let beside = "6s  ask bob 8G\n7s  bind L2\n8s  card 0 L2=6G";
    assert_eq!(held_back(beside), Some(RestoreObstacle::Uncapped(GpuId(0), LeaseId(2))));
    assert_eq!(held_back("6s  card 0 0M"), None);
    // What the driver has not need not be brought back.
    assert_eq!(held_back("6s  driver L1 resumed"), None);
}

/// ann has 8 GiB of card 0, and 4 of card 1, of which bob has 4 too.
const TWO_CARDS: &str = "0s  cards 24G 24G
         0s  ram 100G
         0s  card 0 0M
         0s  card 1 0M
         0s  ask ann 8G ttl=300s on=0
         0s  ask ann 4G ttl=300s on=1
         0s  ask bob 4G ttl=300s on=1
         1s  bind L1
         1s  driver L1 here
         2s  card 0 L1=7G
         ";

#[test]
fn a_process_that_is_off_its_card_or_on_its_way_is_bound_to_no_other_lease() {
    check_with(
        house(),
        &format!(
            "{TWO_CARDS}
             3s  park L1 ann
             4s  bind L2 L1
             4s  bind L3 L1
             5s  driver L1 parked 7000M
             5.1s  card 0 0M
             6s  card 0 0M
             7s  bind L2 L1
             7s  bind L1 L1
             8s  restart
             8s  bind L2 L1
             9s  alive L1
             9s  driver L1 here parked 7000M
             9s  card 0 0M
             9s  card 1 0M
             10s  resume L1 ann
             11s  bind L2 L1
             12s  driver L1 resumed
             13s  card 0 L1=7G
             14s  bind L2 L1"
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 8 GiB on 0 epoch 1 until 300s
            0s queue L2
            0s grant L2 4 GiB on 1 epoch 2 until 300s
            0s queue L3
            0s grant L3 4 GiB on 1 epoch 3 until 300s
            1s bind L1
            3s park L1 by driver (7.1 GiB booked)
            4s refuse: the process belongs to L1, which is parked, or being parked or resumed
            4s refuse: the process belongs to another lease, which is parked, or being parked or resumed
            6s parked L1
            7s refuse: the process belongs to L1, which is parked, or being parked or resumed
            8s grace until 68s
            8s refuse: the process belongs to L1, which is parked, or being parked or resumed
            10s L1 wants 8 GiB as of 10s
            10s resume L1 8 GiB until 310s
            11s refuse: the process belongs to L1, which is parked, or being parked or resumed
            13s resumed L1
            14s bind L2
        "#]],
    );
}

#[test]
fn whom_the_driver_has_for_a_lease_it_brings_back_for_that_one_whoever_has_the_process_by_now() {
    check_with(
        house(),
        &format!(
            "{TWO_CARDS}
             3s  park L1 ann
             5s  driver L1 parked 7000M
             5.1s  card 0 0M
             6s  card 0 0M
             7s  alive L2 L1
             7s  alive L1 L1/shell
             10s  resume L1 ann
             11s  card 0 stray=1G
             15s  card 0 0M
             80s  driver L1 resumed
             81s  card 0 L1=7G"
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 8 GiB on 0 epoch 1 until 300s
            0s queue L2
            0s grant L2 4 GiB on 1 epoch 2 until 300s
            0s queue L3
            0s grant L3 4 GiB on 1 epoch 3 until 300s
            1s bind L1
            3s park L1 by driver (7.1 GiB booked)
            6s parked L1
            10s L1 wants 8 GiB as of 10s
            10s resume L1 8 GiB until 310s
            11s retreat L1
            13s parked L1
            13s L1 wants 8 GiB as of 10s
            71s resume L1 8 GiB until 371s
            81s resumed L1
        "#]],
    );
}

#[test]
fn a_process_that_another_lease_has_is_not_taken_off_its_cards_with_the_one_that_lost_it() {
    let story = format!(
        "{TWO_CARDS}
         2s  alive L1 L1 L1/x
         2s  driver L1/x here
         3s  bind L2 L1/x
         3.5s  driver L1/x can
         4s  park L1 ann"
    );
    let teller = told(&story, house());
    let away = teller.state.lease(LeaseId(1)).and_then(Lease::park_state).expect("it leaves");
    assert_eq!(away.processes, [process("L1")]);
}

#[test]
fn nobody_is_brought_back_beside_one_that_had_more_than_its_lease_and_is_not_surely_gone() {
    check_with(
        house(),
        "0s  cards 24G
         0s  ram 100G
         0s  card 0 0M
         0s  ask ann 12G ttl=300s
         1s  bind L1
         1s  driver L1 here
         2s  card 0 L1=11G
         3s  park L1 ann
         4s  driver L1 parked 11000M
         4.1s  card 0 0M
         5s  card 0 0M
         6s  ask ben 4G ttl=300s
         6s  bind L2
         6s  shim L2 here
         7s  card 0 L2=14G
         8s  park L2 ben
         9s  shim L2 parked 13000M
         9.5s  resume L1 ann
         10s  card 0 L2=300M
         11s  card 0 L2=300M
         12s  card 0 L2=300M",
        expect![[r#"
            0s queue L1
            0s grant L1 12 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s park L1 by driver (11.1 GiB booked)
            5s parked L1
            6s queue L2
            6s grant L2 4 GiB on 0 epoch 2 until 306s
            6s bind L2
            8s over L2: 14 GiB
            8s park L2 (14.1 GiB booked)
            9.5s L1 wants 12 GiB as of 9.5s
            11s parked L2
            11s resume L1 12 GiB until 311s
        "#]],
    );
}

#[test]
fn a_program_that_outgrew_its_booking_is_parked_by_the_shim_again_and_not_by_the_driver() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 16G
         5s  bind L2
         5s  shim L2 here
         5s  driver L2 here
         5.1s  card 0 L2=64M
         5.2s  worked L2
         6s  ask bob 20G interactive
         6.1s  shim L2 outgrown it has 12.0 GiB by now, and 64 MiB were booked for it
         6.1s  shim L2 here
         6.2s  card 0 L2=12G
         20s  worked L2
         40s  worked L2
         41s  card 0 L2=12G
         42s  shim L2 parked 12G
         42.1s  card 0 0M
         42.2s  card 0 0M",
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
            6s park L2 for L3 (128 MiB booked, and asks again)
            6.1s unpark L2 (Refused("it has 12.0 GiB by now, and 64 MiB were booked for it"))
            6.2s resumed L2
            14.2s park L2 for L3 (12.1 GiB booked)
            42.2s parked L2
            42.2s grant L3 20 GiB on 0 epoch 3 until 102.2s
        "#]],
    );
}

#[test]
fn the_shim_parks_what_the_driver_would_park_faster_and_could_not_wake() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 16G
         5s  bind L2
         5s  shim L2 here
         5s  driver L2 here
         5.1s  card 0 L2=12G
         5.2s  worked L2
         6s  ask bob 20G interactive
         31s  shim L2 parked 12G
         31.1s  card 0 0M
         31.2s  card 0 0M
         32s  release L3 bob
         32.1s  card 0 0M
         33s  shim L2 wants
         34s  shim L2 resumed
         34.1s  card 0 L2=12G
         70s  worked L2
         71s  ask bob 20G interactive
         96s  shim L2 parked 12G
         96.1s  card 0 0M
         96.2s  card 0 0M
         97s  release L4 bob
         97.1s  card 0 0M
         98s  shim L2 wants
         99s  shim L2 resumed
         99.1s  card 0 L2=12G
         140s  worked L2
         141s  ask bob 20G interactive
         166s  shim L2 parked 12G
         166.1s  card 0 0M
         166.2s  card 0 0M
         167s  release L5 bob
         167.1s  card 0 0M
         168s  shim L2 wants
         169s  shim L2 resumed
         169.1s  card 0 L2=12G",
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
            6s park L2 for L3 (12.1 GiB booked, and asks again)
            31.2s parked L2
            31.2s L2 wants 16 GiB as of 6.000001s
            31.2s grant L3 20 GiB on 0 epoch 3 until 91.2s
            32s end L3 (Released)
            32.1s retire L3
            32.1s resume L2 16 GiB until 92.1s
            34.1s resumed L2
            71s queue L4
            71s park L2 for L4 (12.1 GiB booked, and asks again)
            96.2s parked L2
            96.2s L2 wants 16 GiB as of 71.000001s
            96.2s grant L4 20 GiB on 0 epoch 4 until 156.2s
            97s end L4 (Released)
            97.1s retire L4
            97.1s resume L2 16 GiB until 157.1s
            99.1s resumed L2
            133.1s renew L2 until 193.1s
            141s queue L5
            141s park L2 for L5 (12.1 GiB booked, and asks again)
            166.2s parked L2
            166.2s L2 wants 16 GiB as of 141.000001s
            166.2s grant L5 20 GiB on 0 epoch 5 until 226.2s
            167s end L5 (Released)
            167.1s retire L5
            167.1s resume L2 16 GiB until 227.1s
            169.1s resumed L2
        "#]],
    );
}
