//! Stories of parked holders of which the driver takes the contexts, too.

use super::check_with;
use super::park::{BEGIN, house};
use crate::model::settings::{Parking, Policy};
use crate::model::units::Span;
use expect_test::{Expect, expect};

/// A story in which ann is parked by hand at 20 s, and nobody waits.
fn check(story: &str, expect: Expect) {
    let parking = Parking { context_after: Some(Span::secs(60)), ..house().parking };
    let begin = format!(
        "{BEGIN}
         10s  shim L1 shallow
         20s  park L1 ann
         20.1s shim L1 parked 13824M
         20.2s card 0 L1=300M
         20.3s card 0 L1=300M
         "
    );
    check_with(Policy { parking, ..house() }, &format!("{begin}{story}"), expect);
}

#[test]
fn who_was_parked_for_a_while_leaves_its_cards_altogether_and_comes_back() {
    check(
        "30s  driver L1 here
         70s  card 0 L1=300M
         81s  card 0 L1=300M
         82s  shim L1 deep
         83s  driver L1 parked 300M
         84s  card 0 0M
         85s  ask bob 23G
         90s  release L2 bob
         91s  card 0 0M
         100s shim L1 wants
         101s driver L1 resumed
         102s card 0 L1=300M
         103s shim L1 resumed
         104s card 0 L1=14G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            20s park L1 (14.1 GiB booked)
            20.3s parked L1
            81s deepen L1, 1 processes
            85s queue L2
            85s grant L2 23 GiB on 0 epoch 2 until 145s
            90s end L2 (Released)
            91s retire L2
            100s L1 wants 16 GiB as of 100s
            100s resume L1 16 GiB until 160s
            104s resumed L1
        "#]],
    );
}

#[test]
fn contexts_stay_where_others_could_take_their_room() {
    check(
        "30s  card 0 L1=300M
         81s  card 0 L1=300M
         90s  driver L1 cannot it uses managed memory
         91s  card 0 L1=300M
         99s  card 0 L1=300M stray=100M
         100s driver L1 can
         101s card 0 L1=300M stray=100M
         110s shim L1 wants
         111s shim L1 resumed
         112s card 0 L1=14G stray=100M",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            20s park L1 (14.1 GiB booked)
            20.3s parked L1
            110s L1 wants 15.7 GiB as of 110s
            110s resume L1 16 GiB until 170s
            112s resumed L1
        "#]],
    );
}

#[test]
fn who_comes_before_the_driver_was_told_keeps_contexts_where_they_are() {
    check(
        "30s  driver L1 here
         81s  card 0 L1=300M
         81.5s card 0 L1=300M stray=100M
         82s  shim L1 deep
         83s  shim L1 shallow
         90s  shim L1 wants
         91s  shim L1 resumed
         92s  card 0 L1=14G stray=100M",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            20s park L1 (14.1 GiB booked)
            20.3s parked L1
            81s deepen L1, 1 processes
            81.5s shallow L1: processes without a lease are on GPU 0: 1
            90s L1 wants 15.7 GiB as of 90s
            90s resume L1 16 GiB until 150s
            92s resumed L1
        "#]],
    );
}

#[test]
fn what_a_program_said_before_it_came_back_counts_for_nothing_the_next_time() {
    check(
        "30s  driver L1 here
         81s  card 0 L1=300M
         82s  shim L1 deep
         83s  driver L1 parked 300M
         84s  card 0 0M
         90s  shim L1 wants
         91s  driver L1 resumed
         92s  shim L1 resumed
         93s  card 0 L1=14G
         100s park L1 ann
         100.1s shim L1 parked 13824M
         100.2s card 0 L1=300M
         100.3s card 0 L1=300M
         161s card 0 L1=300M
         161.5s card 0 L1=300M stray=100M",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            20s park L1 (14.1 GiB booked)
            20.3s parked L1
            81s deepen L1, 1 processes
            90s L1 wants 16 GiB as of 90s
            90s resume L1 16 GiB until 150s
            93s resumed L1
            100s park L1 (14.1 GiB booked)
            100.3s parked L1
            160.3s deepen L1, 1 processes
            161.5s shallow L1: processes without a lease are on GPU 0: 1
        "#]],
    );
}

#[test]
fn whose_contexts_the_driver_does_not_take_is_parked_as_before() {
    check(
        "30s  driver L1 here
         81s  card 0 L1=300M
         82s  shim L1 deep
         83s  driver L1 refused a call of its did not end
         84s  shim L1 shallow
         85s  card 0 L1=300M
         100s shim L1 wants
         103s shim L1 resumed
         104s card 0 L1=14G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            20s park L1 (14.1 GiB booked)
            20.3s parked L1
            81s deepen L1, 1 processes
            83s shallow L1: a call of its did not end
            100s L1 wants 15.7 GiB as of 100s
            100s resume L1 16 GiB until 160s
            104s resumed L1
        "#]],
    );
}

#[test]
fn nobody_is_given_the_room_of_a_context_that_comes_back_and_who_comes_sends_it_away_again() {
    check(
        "30s  driver L1 here
         81s  card 0 L1=300M
         82s  shim L1 deep
         83s  driver L1 parked 300M
         84s  card 0 0M
         100s shim L1 wants
         100.5s ask bob 2G
         101s card 0 stray=1G
         101.5s driver L1 parked 300M
         102s card 0 stray=1G
         103s card 0 stray=1G
         110s card 0 0M
         170s card 0 0M
         171s driver L1 resumed
         172s card 0 L1=300M
         173s shim L1 resumed
         174s card 0 L1=14G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            20s park L1 (14.1 GiB booked)
            20.3s parked L1
            81s deepen L1, 1 processes
            100s L1 wants 16 GiB as of 100s
            100s resume L1 16 GiB until 160s
            100.5s queue L2
            101s retreat L1
            101s grant L2 2 GiB on 0 epoch 2 until 161s
            103s parked L1
            103s L1 wants 16 GiB as of 100s
            161s resume L1 16 GiB until 221s
            161s renew L2 until 221s (idle)
            174s resumed L1
        "#]],
    );
}

#[test]
fn after_a_restart_it_must_be_heard_first_whether_the_context_is_there() {
    check(
        "30s  driver L1 here
         81s  card 0 L1=300M
         82s  shim L1 deep
         83s  driver L1 parked 300M
         84s  card 0 0M
         90s  restart
         91s  card 0 0M
         92s  alive L1 L1
         92s  shim L1 here parked 13824M
         93s  shim L1 deep
         94s  shim L1 wants
         95s  card 0 0M
         97s  driver L1 here parked 300M
         98s  driver L1 resumed
         99s  card 0 L1=300M
         103s shim L1 resumed
         104s card 0 L1=14G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            20s park L1 (14.1 GiB booked)
            20.3s parked L1
            81s deepen L1, 1 processes
            90s grace until 150s
            94s L1 wants 16 GiB as of 94s
            94s resume L1 16 GiB until 154s
            104s resumed L1
        "#]],
    );
}

#[test]
fn who_comes_after_a_restart_does_not_make_forgotten_what_the_driver_may_have() {
    check(
        "30s  driver L1 here
         81s  card 0 L1=300M
         82s  shim L1 deep
         83s  driver L1 parked 300M
         84s  card 0 0M
         90s  restart
         91s  card 0 stray=100M
         92s  alive L1 L1
         92s  shim L1 here parked 13824M
         93s  shim L1 deep
         94s  driver L1 here parked 300M
         95s  card 0 stray=100M
         100s shim L1 wants
         101s card 0 stray=100M
         110s card 0 0M
         111s driver L1 resumed
         112s shim L1 resumed
         113s card 0 L1=14G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            20s park L1 (14.1 GiB booked)
            20.3s parked L1
            81s deepen L1, 1 processes
            90s grace until 150s
            100s L1 wants 16 GiB as of 100s
            110s resume L1 16 GiB until 170s
            113s resumed L1
        "#]],
    );
}

#[test]
fn whose_other_program_exits_keeps_what_the_driver_has_of_the_first() {
    check(
        "30s  driver L1 here
         31s  alive L1 L1 L1/x
         32s  shim L1/x here parked 10M
         32s  shim L1/x shallow
         33s  driver L1/x here
         34s  card 0 L1=300M L1/x=10M
         81s  card 0 L1=300M L1/x=10M
         82s  shim L1 deep
         82s  shim L1/x deep
         83s  driver L1 parked 300M
         83s  driver L1/x parked 10M
         84s  card 0 0M
         90s  shim L1/x left
         91s  card 0 stray=100M
         92s  alive L1 L1
         93s  card 0 0M
         100s shim L1 wants
         101s driver L1 resumed
         102s shim L1 resumed
         103s card 0 L1=14G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            20s park L1 (14.1 GiB booked)
            20.3s parked L1
            81s deepen L1, 2 processes
            100s L1 wants 16 GiB as of 100s
            100s resume L1 16 GiB until 160s
            103s resumed L1
        "#]],
    );
}

#[test]
fn a_driver_that_refuses_without_saying_what_it_has_may_have_it() {
    check(
        "30s  driver L1 here
         81s  card 0 L1=300M
         82s  shim L1 deep
         83s  driver L1 parked 300M
         84s  card 0 0M
         90s  restart
         92s  alive L1 L1
         92s  shim L1 here parked 13824M
         93s  shim L1 deep
         94s  driver L1 refused nobody says where it is
         95s  card 0 0M
         100s shim L1 wants
         101s driver L1 here parked 300M
         102s driver L1 resumed
         103s shim L1 resumed
         104s card 0 L1=14G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            20s park L1 (14.1 GiB booked)
            20.3s parked L1
            81s deepen L1, 1 processes
            90s grace until 150s
            100s L1 wants 16 GiB as of 100s
            100s resume L1 16 GiB until 160s
            104s resumed L1
        "#]],
    );
}

#[test]
fn a_driver_that_finds_out_later_what_it_has_brings_it_back() {
    check(
        "30s  driver L1 here
         81s  card 0 L1=300M
         82s  shim L1 deep
         83s  driver L1 refused the worker was lost
         84s  card 0 0M
         85s  driver L1 here parked 300M
         86s  shim L1 shallow
         100s shim L1 wants
         101s driver L1 resumed
         102s shim L1 resumed
         103s card 0 L1=14G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            20s park L1 (14.1 GiB booked)
            20.3s parked L1
            81s deepen L1, 1 processes
            83s shallow L1: the worker was lost
            85s deepen L1, 1 processes
            100s L1 wants 16 GiB as of 100s
            100s resume L1 16 GiB until 160s
            103s resumed L1
        "#]],
    );
}

#[test]
fn a_program_is_not_back_while_the_driver_has_its_context() {
    check(
        "30s  driver L1 here
         81s  card 0 L1=300M
         82s  shim L1 deep
         83s  driver L1 parked 300M
         84s  card 0 0M
         100s shim L1 wants
         101s shim L1 resumed
         102s card 0 0M
         103s card 0 0M
         104s driver L1 resumed
         105s card 0 L1=14G
         106s card 0 L1=14G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            20s park L1 (14.1 GiB booked)
            20.3s parked L1
            81s deepen L1, 1 processes
            100s L1 wants 16 GiB as of 100s
            100s resume L1 16 GiB until 160s
            106s resumed L1
        "#]],
    );
}

#[test]
fn after_a_restart_who_comes_sends_away_what_the_driver_may_be_bringing_back() {
    check(
        "30s  driver L1 here
         81s  card 0 L1=300M
         82s  shim L1 deep
         83s  driver L1 parked 300M
         84s  card 0 0M
         90s  shim L1 wants
         91s  restart
         92s  alive L1 L1
         93s  card 0 stray=1G
         94s  shim L1 here parked 13824M
         95s  card 0 stray=1G
         96s  card 0 stray=1G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            20s park L1 (14.1 GiB booked)
            20.3s parked L1
            81s deepen L1, 1 processes
            90s L1 wants 16 GiB as of 90s
            90s resume L1 16 GiB until 150s
            91s grace until 151s
            93s retreat L1
            95s parked L1
            95s L1 wants 16 GiB as of 90s
        "#]],
    );
}

#[test]
fn on_a_full_disk_contexts_stay() {
    check(
        "30s  driver L1 here
         70s  disk full
         81s  card 0 L1=300M
         90s  disk freed
         91s  card 0 L1=300M",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            20s park L1 (14.1 GiB booked)
            20.3s parked L1
            91s deepen L1, 1 processes
        "#]],
    );
}

/// Another program has come since the park: with its context more is left than was booked.
const MORE: &str = "30s  driver L1 here
         31s  alive L1 L1 L1/x
         32s  shim L1/x here parked 10M
         32s  shim L1/x shallow
         33s  driver L1/x here
         34s  card 0 L1=300M L1/x=1G
         ";

#[test]
fn what_is_left_beyond_what_was_booked_is_booked_before_it_leaves() {
    check(
        &format!(
            "{MORE}
             81s  card 0 L1=300M L1/x=1G
             82s  shim L1 deep
             82s  shim L1/x deep
             83s  driver L1 parked 300M
             83s  driver L1/x parked 1G
             84s  card 0 0M
             90s  ask bob 18G
             91s  bind L2
             91s  shim L2 here
             92s  card 0 L2=17920M
             93s  park L2 bob"
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            20s park L1 (14.1 GiB booked)
            20.3s parked L1
            81s deepen L1, 2 processes (14.8 GiB booked)
            90s queue L2
            90s grant L2 18 GiB on 0 epoch 2 until 150s
            91s bind L2
            93s refuse: the holder cannot be parked: it needs 17.6 GiB of host memory, and the parking space has 17.2 GiB free
        "#]],
    );
}

#[test]
fn contexts_for_which_there_is_no_host_memory_stay() {
    check(
        &format!(
            "{MORE}
             35s  ram 8G
             81s  card 0 L1=300M L1/x=1G
             85s  ram unknown
             86s  card 0 L1=300M L1/x=1G
             90s  card 0 L1=300M"
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            20s park L1 (14.1 GiB booked)
            20.3s parked L1
            90s deepen L1, 1 processes
        "#]],
    );
}

#[test]
fn a_driver_that_does_not_know_what_it_has_may_have_it_whatever_it_said_before() {
    check(
        "30s  driver L1 here
         81s  card 0 L1=300M
         82s  shim L1 deep
         83s  driver L1 unknown
         83s  driver L1 refused the worker was lost
         84s  card 0 0M
         90s  restart
         92s  alive L1 L1
         93s  driver L1 here parked 300M
         100s shim L1 here parked 13824M
         100s shim L1 wants
         101s driver L1 resumed
         102s shim L1 resumed
         103s card 0 L1=14G",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            20s park L1 (14.1 GiB booked)
            20.3s parked L1
            81s deepen L1, 1 processes
            90s grace until 150s
            100s L1 wants 16 GiB as of 100s
            100s resume L1 16 GiB until 160s
            103s resumed L1
        "#]],
    );
}

#[test]
fn contexts_of_which_the_driver_finds_that_it_has_none_stay() {
    check(
        "30s  driver L1 here
         81s  card 0 L1=300M
         82s  shim L1 deep
         83s  driver L1 unknown
         83s  driver L1 refused the worker was lost
         84s  card 0 L1=300M
         85s  driver L1 here
         86s  card 0 L1=300M",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s bind L1
            20s park L1 (14.1 GiB booked)
            20.3s parked L1
            81s deepen L1, 1 processes
            85s shallow L1: the worker was lost
        "#]],
    );
}

/// Two parkable jobs of 8 GiB on a GPU of 24, the first of which is parked by hand at 20 s.
fn check_two(story: &str, expect: Expect) {
    let parking = Parking { context_after: Some(Span::secs(600)), ..super::preempt::house().parking };
    let begin = "0s  cards 24G
                 0s  ram 100G
                 0s  card 0 0M
                 0s  ask ann 8G ttl=300s
                 0s  ask ben 8G ttl=300s
                 1s  bind L1
                 1s  bind L2
                 1s  shim L1 here
                 1s  shim L1 shallow
                 1s  shim L2 here
                 1s  shim L2 shallow
                 2s  card 0 L1=7G L2=7G
                 3s  driver L1 here
                 3s  driver L2 here
                 20s  park L1 ann
                 20.1s shim L1 parked 6900M
                 20.2s card 0 L1=300M L2=7G
                 20.3s card 0 L1=300M L2=7G
                 ";
    check_with(Policy { parking, ..super::preempt::house() }, &format!("{begin}{story}"), expect);
}

#[test]
fn contexts_of_parked_leases_leave_at_once_when_a_waiter_needs_their_room() {
    // 23.6 GiB fit only if neither job keeps its context.
    check_two(
        "30s  worked L2
         31s  ask cat 24200M interactive
         31.5s  shim L1 deep
         32s  driver L1 parked 300M
         32.1s  shim L2 parked 6900M
         32.2s  card 0 L2=300M
         32.3s  card 0 L2=300M
         33s  shim L2 deep
         34s  driver L2 parked 300M
         34.1s  card 0 0M
         60s  release L3 cat
         61s  card 0 0M
         62s  driver L2 resumed
         63s  card 0 L2=300M
         64s  shim L2 resumed
         65s  card 0 L2=7G",
        expect![[r#"
            0s queue L1
            0s grant L1 8 GiB on 0 epoch 1 until 300s
            0s queue L2
            0s grant L2 8 GiB on 0 epoch 2 until 300s
            1s bind L1
            1s bind L2
            20s park L1 (7.1 GiB booked)
            20.3s parked L1
            31s queue L3
            31s park L2 for L3 (7.1 GiB booked, and asks again)
            31s deepen L1, 1 processes
            32.299999s parked L2
            32.299999s L2 wants 7.7 GiB as of 31.000001s
            32.299999s deepen L2, 1 processes
            34.1s grant L3 23.6 GiB on 0 epoch 3 until 94.1s
            60s end L3 (Released)
            61s retire L3
            61s resume L2 8 GiB until 361s
            65s resumed L2
        "#]],
    );
}

#[test]
fn contexts_that_cannot_leave_keep_a_large_request_waiting() {
    check_two(
        "30s  worked L2
         30s  driver L1 cannot it uses managed memory
         31s  ask cat 24200M interactive
         35s  worked L2
         40s  worked L2",
        expect![[r#"
            0s queue L1
            0s grant L1 8 GiB on 0 epoch 1 until 300s
            0s queue L2
            0s grant L2 8 GiB on 0 epoch 2 until 300s
            1s bind L1
            1s bind L2
            20s park L1 (7.1 GiB booked)
            20.3s parked L1
            31s queue L3
        "#]],
    );
}
