//! Stories of room that is made for who waits.

use super::{check_with, told};
use crate::model::ids::LeaseId;
use crate::model::settings::{Caps, Parking, Policy};
use crate::model::units::Bytes;
use crate::policy::room_plan::{RoomPlan, room_plan};
use expect_test::{Expect, expect};

pub(super) fn house() -> Policy {
    let parking = Parking { space: Bytes::gib(64), ..Parking::default() };
    let caps = Caps { never: Some(Bytes::gib(64)), ..Caps::default() };
    Policy { parking, caps, ..Policy::default() }
}

/// A story that begins with ann's 16 GiB of work on a card of 24.
pub(super) fn check(story: &str, expect: Expect) {
    check_with(house(), &format!("{BEGIN}{story}"), expect);
}

const BEGIN: &str = "0s  cards 24G
                     0s  ram 100G
                     0s  card 0 0M
                     0s  ask ann 16G ttl=300s
                     1s  bind L1
                     1s  shim L1 here
                     2s  card 0 L1=14G
                     2s  worked L1
                     ";

#[test]
fn an_interactive_ask_has_the_card_of_a_batch_job_at_once() {
    check(
        "3s  worked L1
         4s  ask bob 16G interactive
         4.6s  shim L1 parked 13700M
         4.7s  card 0 L1=300M
         4.8s  card 0 L1=300M
         5s  release L2 bob
         5.1s  card 0 L1=300M
         5.6s  shim L1 resumed
         5.7s  card 0 L1=14G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            4s queue L2
            4s park L1 for L2 (14.1 GiB booked, and asks again)
            4.8s parked L1
            4.8s L1 wants 15.7 GiB as of 4.000001s
            4.8s grant L2 16 GiB on 0 epoch 2 until 64.8s
            5s end L2 (Released)
            5.1s retire L2
            5.1s resume L1 16 GiB until 305.1s
            5.7s resumed L1
        "#]],
    );
}

#[test]
fn a_batch_ask_waits_for_a_busy_batch_job_until_its_turn_is_over() {
    check(
        "3s  worked L1
         4s  ask bob 16G
         5s  worked L1
         7s  worked L1
         8s  worked L1
         9s  worked L1
         10s  worked L1
         11s  worked L1
         13s  worked L1
         15s  worked L1
         16s  worked L1
         17s  worked L1
         18s  worked L1",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            4s queue L2
            17s park L1 for L2 (14.1 GiB booked, and asks again)
        "#]],
    );
}

#[test]
fn equals_take_turns_and_the_turns_follow_the_cost() {
    // A tenth of the time may go into moving.
    let mut house = house();
    house.parking.slice_per_move = 9;
    check_with(
        house,
        &format!(
            "{BEGIN}3s  worked L1
         4s  ask bob 16G
         5s  worked L1
         6s  worked L1
         7s  worked L1
         8s  worked L1
         9s  worked L1
         10.5s  shim L1 parked 13700M
         10.6s  card 0 L1=300M
         10.7s  card 0 L1=300M
         11s  bind L2
         11s  shim L2 here
         11.1s  card 0 L1=300M L2=14G
         12s  worked L2
         14s  worked L2
         16s  worked L2
         18s  worked L2
         20s  worked L2
         22s  shim L2 parked 13700M
         22.1s  card 0 L1=300M L2=300M
         22.2s  card 0 L1=300M L2=300M
         23s  shim L1 resumed
         23.1s  card 0 L1=14G L2=300M
         24s  worked L1
         26s  worked L1
         28s  worked L1
         30s  worked L1
         32s  worked L1
         34s  worked L1
         36s  worked L1
         38s  worked L1"
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            4s queue L2
            10s park L1 for L2 (14.1 GiB booked, and asks again)
            10.7s parked L1
            10.7s L1 wants 15.7 GiB as of 10.000001s
            10.7s grant L2 16 GiB on 0 epoch 2 until 70.7s
            11s bind L2
            21s park L2 for L1 (14.1 GiB booked, and asks again)
            22.2s parked L2
            22.2s L2 wants 15.7 GiB as of 21.000001s
            22.2s resume L1 16 GiB until 322.2s
            23.1s resumed L1
            36s park L1 for L2 (14.1 GiB booked, and asks again)
        "#]],
    );
}

#[test]
fn who_leaves_for_somebody_stands_behind_it() {
    check(
        "18s  worked L1
         19s  worked L1
         20s  worked L1
         20s  ask ann 16G
         20.6s  shim L1 parked 13700M
         20.7s  card 0 L1=300M
         20.8s  card 0 L1=300M",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            20s queue L2
            20s park L1 for L2 (14.1 GiB booked, and asks again)
            20.8s parked L1
            20.8s L1 wants 15.7 GiB as of 20.000001s
            20.8s grant L2 16 GiB on 0 epoch 2 until 80.8s
        "#]],
    );
}

#[test]
fn after_a_dear_move_equals_wait_longer_than_who_is_more_urgent() {
    let dear = "3s  worked L1
         4s  ask bob 16G interactive
         9s  shim L1 parked 13700M
         9.1s  card 0 L1=300M
         9.2s  card 0 L1=300M
         10s  release L2 bob
         10.1s  card 0 L1=300M
         13s  shim L1 resumed
         13.1s  card 0 L1=14G
         14s  worked L1
         15s  ask bob 16G
         18s  worked L1
         22s  worked L1
         26s  worked L1
         30s  worked L1
         34s  worked L1
         38s  worked L1
         42s  worked L1
         46s  worked L1
         50s  worked L1";
    check(
        dear,
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            4s queue L2
            4s park L1 for L2 (14.1 GiB booked, and asks again)
            9.2s parked L1
            9.2s L1 wants 15.7 GiB as of 4.000001s
            9.2s grant L2 16 GiB on 0 epoch 2 until 69.2s
            10s end L2 (Released)
            10.1s retire L2
            10.1s resume L1 16 GiB until 310.1s
            13.1s resumed L1
            15s queue L3
        "#]],
    );
    check(
        &dear.replace("15s  ask bob 16G", "15s  ask bob 16G interactive"),
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            4s queue L2
            4s park L1 for L2 (14.1 GiB booked, and asks again)
            9.2s parked L1
            9.2s L1 wants 15.7 GiB as of 4.000001s
            9.2s grant L2 16 GiB on 0 epoch 2 until 69.2s
            10s end L2 (Released)
            10.1s retire L2
            10.1s resume L1 16 GiB until 310.1s
            13.1s resumed L1
            15s queue L3
            21s park L1 for L3 (14.1 GiB booked, and asks again)
        "#]],
    );
}

#[test]
fn who_stands_higher_and_works_is_left_alone() {
    check(
        "3s  ask bob 20G interactive
         3.1s  shim L1 parked 13700M
         3.2s  card 0 L1=300M
         3.3s  card 0 L1=300M
         4s  bind L2
         4s  shim L2 here
         4.1s  card 0 L1=300M L2=14G
         5s  shim L1 wants
         6s  worked L2
         20s  worked L2
         30s  worked L2",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s queue L2
            3s park L1 for L2 (14.1 GiB booked, and asks again)
            3.3s parked L1
            3.3s L1 wants 15.7 GiB as of 3.000001s
            3.3s grant L2 20 GiB on 0 epoch 2 until 63.3s
            4s bind L2
        "#]],
    );
}

#[test]
fn idle_interactive_lease_is_parked_for_a_batch_waiter_after_32_s() {
    check(
        "3s  ask bob 20G interactive
         3.1s  shim L1 parked 13700M
         3.2s  card 0 L1=300M
         3.3s  card 0 L1=300M
         4s  bind L2
         4s  shim L2 here
         4.1s  card 0 L1=300M L2=14G
         5s  shim L1 wants
         6s  worked L2
         37s  tick
         39s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s queue L2
            3s park L1 for L2 (14.1 GiB booked, and asks again)
            3.3s parked L1
            3.3s L1 wants 15.7 GiB as of 3.000001s
            3.3s grant L2 20 GiB on 0 epoch 2 until 63.3s
            4s bind L2
            38s park L2 for L1 (14.1 GiB booked)
        "#]],
    );
}

#[test]
fn an_idle_equal_leaves_after_as_long_as_its_moves_take() {
    check(
        "3s  ask bob 16G
         10s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s queue L2
            5s park L1 for L2 (14.1 GiB booked)
        "#]],
    );
}

#[test]
fn who_may_not_be_preempted_is_not() {
    check(
        "3s  release L1 ann
         3s  card 0 0M
         4s  ask ann 16G never
         5s  bind L2
         5s  shim L2 here
         5.1s  card 0 L2=15G
         6s  ask bob 16G interactive
         20s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            4s retire L1
            4s queue L2
            4s grant L2 16 GiB on 0 epoch 2 until 64s
            5s bind L2
            6s queue L3
        "#]],
    );
}

#[test]
fn spot_leaves_first_whatever_the_price() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask ann 8G
         4s  ask cat 12G spot
         5s  bind L2
         5s  bind L3
         5s  shim L2 here
         5s  shim L3 here
         5.1s  card 0 L2=1G L3=11G
         5.2s  worked L2
         5.2s  worked L3
         6s  ask bob 8G interactive",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 8 GiB on 0 epoch 2 until 64s
            4s queue L3
            4s grant L3 12 GiB on 0 epoch 3 until 64s
            5s bind L2
            5s bind L3
            6s queue L4
            6s park L3 for L4 (11.1 GiB booked, and asks again)
        "#]],
    );
}

#[test]
fn a_hook_makes_a_holder_leave_and_come_back() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 16G yields
         5s  bind L2
         5.1s  card 0 L2=15G
         6s  ask bob 16G interactive
         7s  hook L2 cat yielded
         7.1s  card 0 L2=1G
         7.2s  card 0 L2=1G
         9s  hook L2 cat wants
         10s  release L3 bob
         10.1s  card 0 L2=1G
         12s  hook L2 cat resumed
         12.1s  card 0 L2=15G",
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
            6s park L2 by hook for L3 (0 B booked, and asks again)
            7.2s parked L2
            7.2s L2 wants 15 GiB as of 6.000001s
            7.2s grant L3 16 GiB on 0 epoch 3 until 67.2s
            10s end L3 (Released)
            10.1s retire L3
            10.1s resume L2 16 GiB until 70.1s
            12.1s resumed L2
        "#]],
    );
}

#[test]
fn a_hook_that_lies_is_not_believed_again_and_the_next_rung_is_tried() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 16G yields
         5s  bind L2
         5s  shim L2 here
         5.1s  card 0 L2=2G
         5.2s  worked L2
         6s  ask bob 20G interactive
         7s  hook L2 cat yielded
         38s  hook L2 cat resumed
         45s  worked L2
         50s  worked L2
         52s  shim L2 refused a capture is open
         53s  shim L2 resumed
         54s  worked L2
         140s  tick",
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
            6s park L2 by hook for L3 (0 B booked, and asks again)
            37s unpark L2 (NotSeen)
            39s resumed L2
            39s park L2 for L3 (2.1 GiB booked)
            52s unpark L2 (Refused("a capture is open"))
            53s resumed L2
            53s renew L2 until 113s
            101s renew L2 until 161s
            113s park L2 for L3 (2.1 GiB booked)
        "#]],
    );
}

#[test]
fn half_is_not_enough_from_a_hook_either() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 16G yields
         5s  bind L2
         5.1s  card 0 L2=15G
         6s  ask bob 16G interactive
         7s  hook L2 cat yielded
         7.1s  card 0 L2=7G
         36s  hook L2 cat resumed
         40s  tick",
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
            6s park L2 by hook for L3 (0 B booked, and asks again)
            37s unpark L2 (NotSeen)
        "#]],
    );
}

#[test]
fn who_takes_the_risk_is_parked_beside_strangers() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 12G may-lose
         5s  bind L2
         5s  driver L2 here
         5.1s  card 0 L2=11G stray=1G
         6s  ask bob 16G interactive",
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
        "#]],
    );
}

#[test]
fn who_comes_by_itself_soon_is_waited_for() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 16G time=10s
         5s  bind L2
         5s  driver L2 here
         5.1s  card 0 L2=15G
         5.2s  worked L2
         6s  ask bob 16G interactive
         15s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 16 GiB on 0 epoch 2 until 14s
            5s bind L2
            6s queue L3
            14s end L2 (TermOver)
            15s retire L2
        "#]],
    );
}

#[test]
fn a_waiter_who_would_not_wait_moves_nobody() {
    check(
        "3s  ask bob 16G interactive wait=0s
         4s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s refuse: there is no room now (largest possible: 7.8 GiB)
        "#]],
    );
}

#[test]
fn two_small_ones_leave_when_that_is_cheaper_than_a_large_one() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask ann 4G
         4s  ask cat 4G
         4s  ask dan 14G
         5s  bind L2
         5s  bind L3
         5s  bind L4
         5s  shim L2 here
         5s  shim L3 here
         5s  shim L4 here
         5.1s  card 0 L2=1G L3=1G L4=13G
         5.2s  worked L2
         5.2s  worked L3
         5.2s  worked L4
         6s  ask bob 8G interactive",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 4 GiB on 0 epoch 2 until 64s
            4s queue L3
            4s grant L3 4 GiB on 0 epoch 3 until 64s
            4s queue L4
            4s grant L4 14 GiB on 0 epoch 4 until 64s
            5s bind L2
            5s bind L3
            5s bind L4
            6s queue L5
            6s park L2 for L5 (1.1 GiB booked, and asks again)
            6s park L3 for L5 (1.1 GiB booked, and asks again)
        "#]],
    );
}

#[test]
fn what_is_on_its_way_is_not_asked_for_twice() {
    check(
        "3s  worked L1
         4s  ask bob 16G interactive
         4.1s  ask cat 4G interactive
         4.2s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            4s queue L2
            4s park L1 for L2 (14.1 GiB booked, and asks again)
            4.099999s queue L3
            4.099999s grant L3 4 GiB on 0 epoch 2 until 64.099999s
        "#]],
    );
}

#[test]
fn a_fixed_term_is_over_when_it_is_whatever_it_was_told() {
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 16G end notice=20s time=10s
         6s  ask bob 16G interactive
         20s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 16 GiB on 0 epoch 2 until 14s
            5s notice L2 until 14s for L2
            6s queue L3
            14s end L2 (TermOver)
            15s retire L2
            15s grant L3 16 GiB on 0 epoch 3 until 75s
        "#]],
    );
}

/// Three holders of a third of a card each: two with Sublet's library, and one that is as urgent as who waits, but has
/// had its turn and takes no host memory.
const THIRDS: &str = "0s  cards 24G
                      0s  ram 100G
                      0s  card 0 0M
                      0s  ask ann 8G ttl=300s
                      0s  ask ann 8G ttl=300s
                      0s  ask cat 7G ttl=300s yields interactive
                      1s  bind L1
                      1s  bind L2
                      1s  bind L3
                      1s  shim L1 here
                      1s  shim L2 here
                      199s  card 0 L1=7G L2=7G L3=6G
                      199s  worked L1
                      199s  worked L2
                      199s  worked L3
                      200s  ask bob 13G interactive";

#[test]
fn who_leaves_together_fits_into_the_host_memory_together() {
    let plenty = house();
    check_with(
        plenty.clone(),
        THIRDS,
        expect![[r#"
        0s queue L1
        0s grant L1 8 GiB on 0 epoch 1 until 300s
        0s queue L2
        0s grant L2 8 GiB on 0 epoch 2 until 300s
        0s queue L3
        0s grant L3 7 GiB on 0 epoch 3 until 300s
        1s bind L1
        1s bind L2
        1s bind L3
        198s renew L1 until 498s
        200s queue L4
        200s park L1 for L4 (7.1 GiB booked, and asks again)
        200s park L2 for L4 (7.1 GiB booked, and asks again)
    "#]],
    );
    let parking = Parking { space: Bytes::gib(10), ..plenty.parking.clone() };
    check_with(
        Policy { parking, ..plenty.clone() },
        THIRDS,
        expect![[r#"
            0s queue L1
            0s grant L1 8 GiB on 0 epoch 1 until 300s
            0s queue L2
            0s grant L2 8 GiB on 0 epoch 2 until 300s
            0s queue L3
            0s grant L3 7 GiB on 0 epoch 3 until 300s
            1s bind L1
            1s bind L2
            1s bind L3
            198s renew L1 until 498s
            200s queue L4
            200s park L1 for L4 (7.1 GiB booked, and asks again)
            200s park L3 by hook for L4 (0 B booked, and asks again)
        "#]],
    );
    let caps = Caps { parked: Some(Bytes::gib(10)), ..plenty.caps };
    check_with(
        Policy { caps, ..plenty },
        THIRDS,
        expect![[r#"
            0s queue L1
            0s grant L1 8 GiB on 0 epoch 1 until 300s
            0s queue L2
            0s grant L2 8 GiB on 0 epoch 2 until 300s
            0s queue L3
            0s grant L3 7 GiB on 0 epoch 3 until 300s
            1s bind L1
            1s bind L2
            1s bind L3
            198s renew L1 until 498s
            200s queue L4
            200s park L1 for L4 (7.1 GiB booked, and asks again)
            200s park L3 by hook for L4 (0 B booked, and asks again)
        "#]],
    );
}

#[test]
fn who_was_not_to_be_believed_is_not_after_a_restart_either() {
    check(
        "4s   ask bob 16G interactive
         4.6s shim L1 parked 13700M
         36s  shim L1 resumed
         40s  restart
         41s  shim L1 here
         42s  card 0 L1=14G
         130s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            4s queue L2
            4s park L1 for L2 (14.1 GiB booked, and asks again)
            34.6s unpark L1 (NotSeen)
            40s grace until 100s
            42s resumed L1
        "#]],
    );
}

/// What is too small is named: the host's memory, or what one owner may have of it.
#[test]
fn it_is_said_what_keeps_several_from_leaving_together() {
    let story = "0s  cards 24G
         0s  ram 100G
         0s  card 0 0M
         0s  ask ann 10G ttl=300s
         0s  ask ann 10G ttl=300s
         1s  bind L1
         1s  bind L2
         1s  shim L1 here
         1s  shim L2 here
         2s  card 0 L1=9G L2=9G
         200s ask bob 20G interactive";
    let of = |policy: Policy| {
        let teller = told(story, policy);
        let waiter = teller.state.lease(LeaseId(3)).expect("a waiter");
        room_plan(&teller.state, waiter, teller.now).expect("it is the first").0
    };
    let lacks_ram = Parking { space: Bytes::gib(10), ..house().parking };
    assert_eq!(
        of(Policy { parking: lacks_ram, ..house() }),
        RoomPlan::Ram { need: Bytes::mib(2 * (9 * 1024 + 64)), room: Some(Bytes::gib(10)) }
    );
    let cap = Bytes::gib(10);
    let caps = Caps { parked: Some(cap), ..house().caps };
    assert_eq!(of(Policy { caps, ..house() }), RoomPlan::Cap { cap });
}
