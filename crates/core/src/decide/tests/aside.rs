//! Stories of GPUs that step aside.

use super::preempt::{check, house};
use super::{check_with, told};
use crate::model::ids::LeaseId;
use crate::model::settings::{AsideAllow, AsideRule, Parking, Policy};
use crate::model::units::{Bytes, Span};
use crate::policy::estimates;
use expect_test::expect;

#[test]
fn busy_lease_is_parked_waits_and_comes_back_when_the_time_is_over() {
    check(
        "3s  worked L1
         4s  aside 0 ann seat for=60s
         4.6s  shim L1 parked 13700M
         4.7s  card 0 L1=300M
         4.8s  card 0 L1=300M
         10s  ask bob 4G
         60s  tick
         66s  shim L1 resumed
         66.5s  card 0 L1=14G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            4s GPU 0 steps aside for ann until 64s
            4s park L1 (14.1 GiB booked, and asks again, GPU 0 steps aside)
            4.8s parked L1
            4.8s L1 wants 15.7 GiB as of 4.000001s
            10s queue L2
            64s GPU 0 no longer steps aside for ann (Time)
            64s resume L1 16 GiB until 364s
            64s grant L2 4 GiB on 0 epoch 2 until 124s
            66.5s resumed L1
        "#]],
    );
}

#[test]
fn idle_lease_comes_back_by_itself_when_the_aside_ends() {
    check(
        "40s  aside 0 ann seat
         40.6s  shim L1 parked 13700M
         40.7s  card 0 L1=300M
         40.8s  card 0 L1=300M
         50s  end-aside 0 ann
         50.6s  shim L1 resumed
         50.7s  card 0 L1=14G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            40s GPU 0 steps aside for ann until 43240s
            40s park L1 (14.1 GiB booked, GPU 0 steps aside)
            40.8s parked L1
            50s GPU 0 no longer steps aside for ann (Asked)
            50s resume L1 16 GiB until 350s
            50.7s resumed L1
        "#]],
    );
}

#[test]
fn idle_lease_leaves_the_room_to_a_waiter_that_came_meanwhile() {
    check(
        "40s  aside 0 ann seat
         40.6s  shim L1 parked 13700M
         40.7s  card 0 L1=300M
         40.8s  card 0 L1=300M
         45s  ask bob 20G
         50s  end-aside 0 ann
         51s  bind L2
         52s  card 0 L1=300M L2=19G
         60s  release L2 bob
         60.5s  card 0 L1=300M
         61s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            40s GPU 0 steps aside for ann until 43240s
            40s park L1 (14.1 GiB booked, GPU 0 steps aside)
            40.8s parked L1
            45s queue L2
            50s GPU 0 no longer steps aside for ann (Asked)
            50s grant L2 20 GiB on 0 epoch 2 until 110s
            51s bind L2
            60s end L2 (Released)
            60.5s retire L2
            60.5s resume L1 16 GiB until 360.5s
        "#]],
    );
}

#[test]
fn use_while_the_gpu_steps_aside_makes_an_idle_lease_an_ordinary_waiter() {
    check(
        "40s  aside 0 ann seat
         40.6s  shim L1 parked 13700M
         40.7s  card 0 L1=300M
         40.8s  card 0 L1=300M
         45s  shim L1 wants
         50s  end-aside 0 ann",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            40s GPU 0 steps aside for ann until 43240s
            40s park L1 (14.1 GiB booked, GPU 0 steps aside)
            40.8s parked L1
            45s L1 wants 15.7 GiB as of 45s
            50s GPU 0 no longer steps aside for ann (Asked)
            50s resume L1 16 GiB until 350s
        "#]],
    );
}

#[test]
fn lease_that_cannot_be_parked_stays_and_nothing_is_granted_beside_it() {
    check(
        "3s  shim L1 cannot it maps memory of another process
         4s  aside 0 ann seat for=10s
         5s  ask bob 2G
         6s  ask cat 2G wait=0s
         12s  shim L1 can
         13s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            4s GPU 0 steps aside for ann until 14s
            5s queue L2
            6s refuse: GPU 0 steps aside for ann until 14s
            12s park L1 (14.1 GiB booked, and asks again, GPU 0 steps aside)
        "#]],
    );
}

#[test]
fn gpus_that_do_not_step_aside_serve_the_waiters() {
    check_with(
        house(),
        "0s  cards 24G 24G
         0s  ram 100G
         0s  card 0 0M
         0s  card 1 0M
         0s  ask ann 8G on=0
         1s  aside 0 ann seat for=10s
         2s  ask bob 8G
         3s  ask cat 8G on=0
         12s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 8 GiB on 0 epoch 1 until 60s
            1s GPU 0 steps aside for ann until 11s
            2s queue L2
            2s grant L2 8 GiB on 1 epoch 2 until 62s
            3s queue L3
            11s GPU 0 no longer steps aside for ann (Time)
            11s grant L3 8 GiB on 0 epoch 3 until 71s
        "#]],
    );
}

#[test]
fn host_memory_for_one_lease_parks_the_cheaper_and_leaves_the_other() {
    let parking = Parking { space: Bytes::gib(8), ..house().parking };
    check_with(
        Policy { parking, ..house() },
        "0s  cards 24G
         0s  ram 100G
         0s  card 0 0M
         0s  ask ann 8G
         0s  ask bob 8G
         1s  bind L1
         1s  bind L2
         1s  shim L1 here
         1s  shim L2 here
         2s  card 0 L1=7G L2=4G
         3s  aside 0 ann seat for=10s
         3.5s  shim L2 parked 3800M
         3.6s  card 0 L1=7G L2=300M
         3.7s  card 0 L1=7G L2=300M",
        expect![[r#"
            0s queue L1
            0s grant L1 8 GiB on 0 epoch 1 until 60s
            0s queue L2
            0s grant L2 8 GiB on 0 epoch 2 until 60s
            1s bind L1
            1s bind L2
            3s GPU 0 steps aside for ann until 13s
            3s park L2 (4.1 GiB booked, and asks again, GPU 0 steps aside)
            3.7s parked L2
            3.7s L2 wants 7.7 GiB as of 3.000001s
        "#]],
    );
}

#[test]
fn reboot_ends_the_aside() {
    check(
        "3s  start one
         40s  aside 0 ann seat for=300s
         45s  start two
         46s  cards 24G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s grace until 63s
            40s GPU 0 steps aside for ann until 340s
            40s park L1 (14.1 GiB booked, GPU 0 steps aside)
            45s grace until 105s
            45s end L1 (HostRebooted)
            45s retire L1
            45s GPU 0 no longer steps aside for ann (HostRebooted)
        "#]],
    );
}

#[test]
fn restart_of_the_daemon_changes_nothing() {
    check(
        "40s  aside 0 ann seat for=30s
         40.6s  shim L1 parked 13700M
         40.7s  card 0 L1=300M
         40.8s  card 0 L1=300M
         45s  restart
         45s  cards 24G
         46s  card 0 L1=300M
         46s  shim L1 here parked 13700M
         47s  ask bob 4G
         104s  tick
         105s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            40s GPU 0 steps aside for ann until 70s
            40s park L1 (14.1 GiB booked, GPU 0 steps aside)
            40.8s parked L1
            45s grace until 105s
            47s queue L2
            105s GPU 0 no longer steps aside for ann (Time)
            105s grant L2 4 GiB on 0 epoch 2 until 165s
            105s resume L1 16 GiB until 405s
        "#]],
    );
}

#[test]
fn keys_keep_asides_of_one_user_apart_and_a_renewal_needs_one() {
    check(
        "4s  aside 0 ann seat for=30s key=game
         5s  aside 0 ann seat for=300s
         6s  aside 0 ann for=30s key=game renew
         7s  end-aside 0 ann key=game
         8s  aside 0 ann for=30s key=game renew
         9s  end-aside 0 bob
         10s  end-aside 0 root
         11s  end-aside 0 bob",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            4s GPU 0 steps aside for ann (game) until 34s
            4s park L1 (14.1 GiB booked, and asks again, GPU 0 steps aside)
            5s GPU 0 steps aside for ann until 305s
            6s GPU 0 steps aside for ann (game) until 36s
            7s GPU 0 no longer steps aside for ann (game) (Asked)
            8s refuse: the GPU does not step aside for this any more
            9s refuse: the GPU steps aside for ann, and only ann or an operator may end that
            10s GPU 0 no longer steps aside for ann (Asked)
        "#]],
    );
}

#[test]
fn only_users_at_the_seat_and_operators_put_a_gpu_aside() {
    check(
        "4s  aside 0 bob for=30s
         5s  aside 0 bob@K1 seat for=30s
         6s  aside 0 root for=30s
         7s  aside 0 ann seat for=100000s
         8s  aside 7 ann seat",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            4s refuse: only a user at this host's seat, or an operator, may put a GPU aside
            5s refuse: only a user at this host's seat, or an operator, may put a GPU aside
            6s GPU 0 steps aside for root until 36s
            6s park L1 (14.1 GiB booked, and asks again, GPU 0 steps aside)
            7s refuse: `for_s` must be 1 s to 1 day, `key` at most 64 letters, digits, `-`, `.`, `:` and `_`
            8s refuse: no such GPU
        "#]],
    );
}

#[test]
fn the_configuration_can_allow_named_users_or_operators_alone() {
    let aside = AsideRule { allow: AsideAllow::Operators, users: ["bob".to_owned()].into() };
    check_with(
        Policy { aside, ..house() },
        "0s  cards 24G
         0s  card 0 0M
         1s  aside 0 ann seat for=30s
         2s  aside 0 bob for=30s",
        expect![[r#"
            1s refuse: only an operator may put a GPU aside on this host
            2s GPU 0 steps aside for bob until 32s
        "#]],
    );
}

#[test]
fn parked_time_does_not_count_while_the_gpu_steps_aside() {
    let parking = Parking { term: Span::secs(100), ..house().parking };
    check_with(
        Policy { parking, ..house() },
        "0s  cards 24G
         0s  ram 100G
         0s  card 0 0M
         0s  ask ann 16G ttl=300s
         1s  bind L1
         1s  shim L1 here
         2s  card 0 L1=14G
         2s  worked L1
         4s  aside 0 ann seat for=200s
         4.6s  shim L1 parked 13700M
         4.7s  card 0 L1=300M
         4.8s  card 0 L1=300M
         150s  aside 0 ann seat for=150s
         299s  tick
         305s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            4s GPU 0 steps aside for ann until 204s
            4s park L1 (14.1 GiB booked, and asks again, GPU 0 steps aside)
            4.8s parked L1
            4.8s L1 wants 15.7 GiB as of 4.000001s
            150s GPU 0 steps aside for ann until 300s
            300s GPU 0 no longer steps aside for ann (Time)
            300s resume L1 16 GiB until 600s
        "#]],
    );
}

#[test]
fn no_unleased_process_is_warned_on_a_gpu_that_steps_aside() {
    check_with(
        house(),
        "0s  cards 24G
         0s  card 0 0M
         0s  tested
         0s  mode 0 enforce root
         1s  aside 0 ann seat for=20s
         2s  card 0 game=4G
         2s  audit game exe=/usr/bin/game uid=7
         10s  adopt game uid:7
         20s  tick
         22s  tick",
        expect![[r#"
            0s card 0 mode enforce
            1s GPU 0 steps aside for ann until 21s
            2s find X1 of uid 7
            10s refuse: it cannot have a lease now: its GPU steps aside (`sublet aside --end`)
            21s GPU 0 no longer steps aside for ann (Time)
            22s warn X1 until 322s
        "#]],
    );
}

#[test]
fn waiters_of_other_gpus_have_an_estimate_behind_one_whose_gpu_steps_aside() {
    let told = told(
        "0s  cards 24G 24G
         0s  card 0 0M
         0s  card 1 0M
         1s  aside 0 ann seat for=300s
         2s  ask ann 20G on=1 time=100s
         3s  ask bob 8G on=0
         4s  ask cat 20G on=1",
        house(),
    );
    let estimates = estimates::estimates(&told.state, told.now);
    assert!(!estimates.contains_key(&LeaseId(2)) && estimates.contains_key(&LeaseId(3)), "{estimates:?}");
}
