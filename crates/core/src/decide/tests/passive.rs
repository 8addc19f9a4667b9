//! Stories of leases that were parked while idle and whose next use cannot be noticed.

use super::preempt::check;
use expect_test::{Expect, expect};

/// A story that begins with cat's service on 12 of 24 GiB. Only the driver can park it.
fn check_service(story: &str, expect: Expect) {
    let begin = "3s  release L1 ann
                 3.5s  card 0 0M
                 4s  ask cat 12G ttl=300s interactive
                 5s  bind L2
                 5s  driver L2 here
                 5.1s  card 0 L2=11G
                 5.2s  worked L2
                 ";
    check(&format!("{begin}{story}"), expect);
}

/// From 44 s on the service is parked and bob's job has the GPU.
const PARKED_FOR_BOB: &str = "6s  ask bob 16G ttl=300s
                              43s  driver L2 parked 11000M
                              43.5s  card 0 0M
                              44s  card 0 0M
                              45s  bind L3
                              45s  shim L3 here
                              45s  card 0 L3=15G
                              45.1s  worked L3
                              ";

#[test]
fn idle_interactive_lease_parked_by_the_driver_leaves_the_gpu_to_the_batch_waiter() {
    check_service(
        &format!("{PARKED_FOR_BOB} 100s  worked L3\n 150s  worked L3"),
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 12 GiB on 0 epoch 2 until 304s
            5s bind L2
            6s queue L3
            38s park L2 by driver for L3 (11.1 GiB booked)
            44s parked L2
            44s grant L3 16 GiB on 0 epoch 3 until 344s
            45s bind L3
        "#]],
    );
}

#[test]
fn passive_lease_comes_back_when_no_waiter_claims_the_room() {
    check_service(
        &format!(
            "{PARKED_FOR_BOB}
             50s  worked L3
             51s  release L3 bob
             51.5s  card 0 0M
             55s  driver L2 resumed
             55.5s  card 0 L2=11G
             56s  tick"
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 12 GiB on 0 epoch 2 until 304s
            5s bind L2
            6s queue L3
            38s park L2 by driver for L3 (11.1 GiB booked)
            44s parked L2
            44s grant L3 16 GiB on 0 epoch 3 until 344s
            45s bind L3
            51s end L3 (Released)
            51.5s retire L3
            51.5s resume L2 12 GiB until 351.5s
            55.5s resumed L2
        "#]],
    );
}

#[test]
fn passive_lease_stays_parked_while_a_waiter_claims_the_room() {
    // ben's 20 GiB do not fit beside the 4 GiB that ann holds, and the passive 12 GiB would.
    check_service(
        &format!(
            "{PARKED_FOR_BOB}
             50s  ask ann 4G time=600s never
             51s  bind L4
             51s  card 0 L3=15G L4=3G
             52s  ask ben 20G ttl=300s
             53s  release L3 bob
             53.5s  card 0 L4=3G
             60s  worked L4
             70s  release L4 ann
             70.5s  card 0 0M
             71s  bind L5
             72s  card 0 L5=20G"
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 12 GiB on 0 epoch 2 until 304s
            5s bind L2
            6s queue L3
            38s park L2 by driver for L3 (11.1 GiB booked)
            44s parked L2
            44s grant L3 16 GiB on 0 epoch 3 until 344s
            45s bind L3
            50s queue L4
            50s grant L4 4 GiB on 0 epoch 4 until 650s
            51s bind L4
            52s queue L5
            53s end L3 (Released)
            53.5s retire L3
            70s end L4 (Released)
            70.5s retire L4
            70.5s grant L5 20 GiB on 0 epoch 5 until 370.5s
            71s bind L5
        "#]],
    );
}

#[test]
fn resume_makes_a_passive_lease_an_ordinary_waiter_that_arrives_now() {
    // Its tier is interactive, so the batch job leaves for it at once.
    check_service(
        &format!(
            "{PARKED_FOR_BOB}
             60s  worked L3
             61s  resume L2 cat
             61.5s  shim L3 parked 14000M
             62s  card 0 L3=300M
             62.5s  card 0 L3=300M
             66s  driver L2 resumed
             66.5s  card 0 L3=300M L2=11G"
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 12 GiB on 0 epoch 2 until 304s
            5s bind L2
            6s queue L3
            38s park L2 by driver for L3 (11.1 GiB booked)
            44s parked L2
            44s grant L3 16 GiB on 0 epoch 3 until 344s
            45s bind L3
            61s L2 wants 12 GiB as of 61s
            61s park L3 for L2 (15.1 GiB booked, and asks again)
            62.5s parked L3
            62.5s L3 wants 15.7 GiB as of 61.000001s
            62.5s resume L2 12 GiB until 362.5s
            66.5s resumed L2
        "#]],
    );
}

#[test]
fn resume_while_the_lease_is_being_parked_counts_once_it_is_parked() {
    check_service(
        "6s  ask bob 16G ttl=300s
         38s  resume L2 cat
         43s  driver L2 parked 11000M
         43.5s  card 0 0M
         44s  card 0 0M
         48s  driver L2 resumed
         49s  card 0 L2=11G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 12 GiB on 0 epoch 2 until 304s
            5s bind L2
            6s queue L3
            38s park L2 by driver for L3 (11.1 GiB booked)
            44s parked L2
            44s L2 wants 12 GiB as of 44s
            44s resume L2 12 GiB until 344s
            49s resumed L2
        "#]],
    );
}

#[test]
fn input_at_the_terminal_wakes_a_parked_program_and_back_off_limits_wrong_hints() {
    // The hint at 61 s counts. The lease does no work and is parked again: the hints at 110 s and 118 s come within a
    // minute of the first, and do not count.
    check_service(
        &format!(
            "{PARKED_FOR_BOB}
             60s  worked L3
             61s  typed L2
             61.5s  shim L3 parked 14000M
             62s  card 0 L3=300M
             62.5s  card 0 L3=300M
             66s  driver L2 resumed
             66.5s  card 0 L3=300M L2=11G
             100s  driver L2 parked 11000M
             100.5s  card 0 L3=300M
             101s  card 0 L3=300M
             102s  shim L3 resumed
             102.5s  card 0 L3=15G
             110s  worked L3
             110s  typed L2
             115s  worked L3
             118s  typed L2
             119s  worked L3"
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 12 GiB on 0 epoch 2 until 304s
            5s bind L2
            6s queue L3
            38s park L2 by driver for L3 (11.1 GiB booked)
            44s parked L2
            44s grant L3 16 GiB on 0 epoch 3 until 344s
            45s bind L3
            61s L2 wants 12 GiB as of 61s
            61s park L3 for L2 (15.1 GiB booked, and asks again)
            62.5s parked L3
            62.5s L3 wants 15.7 GiB as of 61.000001s
            62.5s resume L2 12 GiB until 362.5s
            66.5s resumed L2
            94.5s park L2 by driver for L3 (11.1 GiB booked)
            101s parked L2
            101s resume L3 16 GiB until 401s
            102.5s resumed L3
        "#]],
    );
}

#[test]
fn equals_that_only_the_driver_can_park_take_turns() {
    // Nothing limits bob's job to its lease, so the driver may restore nothing beside it: it has to leave first, though
    // both would fit.
    check(
        "3s  release L1 ann
         3.5s  card 0 0M
         4s  ask cat 12G ttl=300s
         5s  bind L2
         5s  driver L2 here
         5.1s  card 0 L2=11G
         5.2s  worked L2
         6s  ask bob 16G ttl=300s
         24s  driver L2 parked 11000M
         24.5s  card 0 0M
         25s  card 0 0M
         26s  bind L3
         26s  driver L3 here
         26s  card 0 L3=8G
         26.1s  worked L3
         30s  worked L3
         31s  resume L2 cat
         33s  worked L3
         35s  worked L3
         40s  worked L3
         50s  driver L3 parked 8000M
         50.5s  card 0 0M
         51s  card 0 0M
         55s  driver L2 resumed
         55.5s  card 0 L2=11G
         56s  worked L2",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 300s
            1s bind L1
            3s end L1 (Released)
            3.5s retire L1
            4s queue L2
            4s grant L2 12 GiB on 0 epoch 2 until 304s
            5s bind L2
            6s queue L3
            12s park L2 by driver for L3 (11.1 GiB booked)
            25s parked L2
            25s grant L3 16 GiB on 0 epoch 3 until 325s
            26s bind L3
            31s L2 wants 12 GiB as of 31s
            46s park L3 by driver for L2 (8.1 GiB booked)
            51s parked L3
            51s resume L2 12 GiB until 351s
            55.5s resumed L2
        "#]],
    );
}
