//! Stories of cards: what may be promised, to whom, and when bytes are free again.

use super::check;
use expect_test::expect;

#[test]
fn a_release_frees_nothing_until_the_card_was_seen_again() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 20G
         1s   ask bob 20G
         2.2s release L1 ann
         2.3s tick
         2.5s card 0 20G
         9s   card 0 1G
         9.5s release L2 bob
         9.6s card 0 unreadable
         14s  card 0 0M",
        expect![[r#"
            0s queue L1
            0s grant L1 20 GiB on 0 epoch 1 until 60s
            1s queue L2
            2.2s end L1 (Released)
            2.5s retire L1
            9s grant L2 20 GiB on 0 epoch 2 until 69s
            9.5s end L2 (Released)
            14s retire L2
        "#]],
    );
}

#[test]
fn bytes_of_strangers_count_and_so_do_promises_not_yet_used() {
    check(
        "0s   cards 24G
         0s   card 0 stray=10G
         0s   ask ann 14G
         1s   ask ann 13G
         2s   ask bob 1G wait=0s
         3s   card 0 stray=12G
         4s   ask bob 1G wait=0s
         5s   card 0 0M
         6s   ask bob 1G wait=0s",
        expect![[r#"
            0s queue L1
            1s queue L2
            1s grant L2 13 GiB on 0 epoch 1 until 61s
            2s refuse: there is no room now (largest possible: 768 MiB)
            4s refuse: there is no room now (largest possible: 0 B)
            6s queue L3
            6s grant L3 1 GiB on 0 epoch 2 until 66s
        "#]],
    );
}

#[test]
fn a_holder_beyond_its_lease_counts_with_what_it_has() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 4G
         1s   bind L1
         1s   alive L1
         2s   card 0 L1=12G
         3s   ask bob 12G wait=0s
         4s   ask bob 11G wait=0s",
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 60s
            1s bind L1
            3s over L1: 12 GiB
            3s refuse: there is no room now (largest possible: 11.8 GiB)
            4s queue L2
            4s grant L2 11 GiB on 0 epoch 2 until 64s
        "#]],
    );
}

#[test]
fn an_unreadable_or_silent_card_promises_nothing() {
    check(
        "0s   cards 24G
         0s   ask ann 1G
         1s   card 0 unreadable
         2s   card 0 0M
         3s   card 0 unreadable
         4s   ask bob 1G wait=0s
         5s   card 0 0M
         9s   stall
         9s   ask bob 2G wait=0s",
        expect![[r#"
            0s queue L1
            2s grant L1 1 GiB on 0 epoch 1 until 62s
            4s refuse: there is no room now (largest possible: 0 B)
            9s refuse: there is no room now (largest possible: 0 B)
        "#]],
    );
}

#[test]
fn where_the_driver_tells_no_bytes_per_process_the_larger_sum_counts() {
    check(
        "0s   cards 24G
         0s   card 0 6G coarse
         0s   ask ann 10G
         1s   ask bob 14G wait=0s
         1s   ask bob 13G wait=0s",
        expect![[r#"
            0s queue L1
            0s grant L1 10 GiB on 0 epoch 1 until 60s
            1s refuse: there is no room now (largest possible: 13.8 GiB)
            1s queue L2
            1s grant L2 13 GiB on 0 epoch 2 until 61s
        "#]],
    );
}

#[test]
fn whole_cards_and_exclusive_ones() {
    check(
        "0s   cards 24G
         0s   card 0 600M
         0s   ask ann whole
         1s   ask bob 1G wait=0s
         2s   release L1 ann
         3.5s ask ann 4G private
         4s   ask bob 4G wait=0s
         4s   ask ann 4G
         5s   ask eve 4G alone wait=0s
         6s   release L2 ann
         6s   release L3 ann
         7.5s ask eve 4G alone
         8s   ask eve 1G wait=0s
         9s   release L4 eve
         11s  card 0 stray=8G
         11s  ask ann whole wait=0s
         11s  ask ann 1G private wait=0s
         11s  ask ann 1G",
        expect![[r#"
            0s queue L1
            0s grant L1 23.2 GiB on 0 epoch 1 until 60s
            1s refuse: there is no room now (largest possible: 0 B)
            2s end L1 (Released)
            3s retire L1
            3.5s queue L2
            3.5s grant L2 4 GiB on 0 epoch 2 until 63.5s
            4s refuse: there is no room now (largest possible: 19.2 GiB)
            4s queue L3
            4s grant L3 4 GiB on 0 epoch 3 until 64s
            5s refuse: there is no room now (largest possible: 15.2 GiB)
            6s end L2 (Released)
            6s end L3 (Released)
            7s retire L2
            7s retire L3
            7.5s queue L4
            7.5s grant L4 4 GiB on 0 epoch 4 until 67.5s
            8s refuse: there is no room now (largest possible: 19.2 GiB)
            9s end L4 (Released)
            10s retire L4
            11s refuse: there is no room now (largest possible: 15.8 GiB)
            11s refuse: there is no room now (largest possible: 15.8 GiB)
            11s queue L5
            11s grant L5 1 GiB on 0 epoch 5 until 71s
        "#]],
    );
}

#[test]
fn what_can_never_be_is_refused_with_the_figure() {
    check(
        "0s   ask ann 1G
         0s   cards 24G
         0s   card 0 0M
         0s   ask ann 24G
         0s   ask ann 2G gpus=2
         0s   ask ann 100M
         0s   ask ann 1G on=H200
         0s   ask ann 1G on=7
         0s   ask ann 0M
         0s   ask ann 1G ttl=0s
         0s   ask ann 1G priority=11
         0s   ask ann 1G gpus=0",
        expect![[r#"
            0s refuse: no GPU has been seen on this host
            0s refuse: this can never be granted (suitable GPUs: 1, largest lease there: 23.8 GiB)
            0s refuse: this can never be granted (suitable GPUs: 1, largest lease there: 23.8 GiB)
            0s refuse: a CUDA context alone takes 300 MiB on the GPU, and a lease includes it
            0s refuse: no GPU here is the one that `on` names
            0s refuse: no GPU here is the one that `on` names
            0s refuse: `vram_bytes` must be at least 1 MiB and at most 1024 TiB
            0s refuse: `ttl_s` must be 1 s to 1 day, `time_s` 1 s to 7 days
            0s refuse: `priority` must be -10 to 10
            0s refuse: `gpus` must be 1 to 64
        "#]],
    );
}

#[test]
fn exits_end_leases_and_another_tenants_lease_does_not_exist() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 20G
         1s   bind L1
         1s   alive L1
         2s   release L1 bob
         2s   renew L1 bob
         3s   ask bob 20G
         4s   gone L1
         6s   release L2 root
         7s   release L2 root
         8s   release L9 root",
        expect![[r#"
            0s queue L1
            0s grant L1 20 GiB on 0 epoch 1 until 60s
            1s bind L1
            2s refuse: no such lease
            2s refuse: no such lease
            3s queue L2
            4s end L1 (HolderExited)
            5s retire L1
            5s grant L2 20 GiB on 0 epoch 2 until 65s
            6s end L2 (Revoked)
            7s retire L2
            7s refuse: no such lease
            8s refuse: no such lease
        "#]],
    );
}

#[test]
fn draining_and_losing_a_card() {
    check(
        "0s   cards 24G 24G
         0s   card 0 0M
         0s   card 1 0M
         0s   drain 0 ann
         0s   drain 0 root
         0s   drain 9 root
         1s   ask ann 4G
         1s   ask ann 4G on=0
         2s   clear 0 root
         3s   card 1 lost
         6s   ask bob 4G wait=0s",
        expect![[r#"
            0s refuse: only an operator may do this
            0s card 0 Draining
            0s refuse: no such GPU
            1s queue L1
            1s grant L1 4 GiB on 1 epoch 1 until 61s
            1s queue L2
            2s card 0 In
            2s grant L2 4 GiB on 0 epoch 2 until 62s
            4s card 1 Out { why: "the driver lost it" }
            4s end L1 (DeviceLost)
            6s queue L3
            6s grant L3 4 GiB on 0 epoch 3 until 66s
        "#]],
    );
}

#[test]
fn on_a_full_disk_releases_go_on_and_grants_do_not() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G
         1s   ask bob 16G
         2s   disk full
         3s   ask eve 1G
         4s   release L1 ann
         6s   tick
         7s   disk freed",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s queue L2
            3s refuse: the disk is full, so no new lease can be promised
            4s end L1 (Released)
            5s retire L1
            7s grant L2 16 GiB on 0 epoch 2 until 67s
        "#]],
    );
}

#[test]
fn after_a_loss_nothing_is_granted_until_an_operator_accepts_it() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G
         1s   ask bob 16G
         2s   restart
         2s   lost 69
         3s   ask eve 1G
         4s   release L1 ann
         5s   card 0 0M
         6s   tick
         7s   accept-loss bob
         8s   accept-loss root
         9s   accept-loss root",
        expect![[r#"
            0s queue L1
            0s grant L1 16 GiB on 0 epoch 1 until 60s
            1s queue L2
            2s grace until 62s
            3s refuse: lines of the journal are missing, so no lease is granted until an operator accepts that
            4s end L1 (Released)
            5s retire L1
            7s refuse: only an operator may do this
            8s accept Missing { lines: 69, after: 1, since_wall_us: None, until_wall_us: 0 }
            8s grant L2 16 GiB on 0 epoch 2 until 68s
            9s refuse: no line of the journal is known to be missing
        "#]],
    );
}

#[test]
fn a_process_belongs_to_the_lease_it_was_last_seen_with() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 4G
         0s   ask ann 4G
         1s   bind L2
         1s   alive L2
         2s   alive L1 L2
         2s   gone L2
         3s   card 0 L2=8G
         4s   ask bob 12G wait=0s",
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 60s
            0s queue L2
            0s grant L2 4 GiB on 0 epoch 2 until 60s
            1s bind L2
            2s end L2 (HolderExited)
            3s retire L2
            4s over L1: 8 GiB
            4s queue L3
            4s grant L3 12 GiB on 0 epoch 3 until 64s
        "#]],
    );
}

#[test]
fn a_card_that_is_gone_is_given_up_when_an_operator_clears_it() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 4G
         1s   card 0 lost
         5s   cards
         6s   clear 0 root",
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 60s
            2s card 0 Out { why: "the driver lost it" }
            2s end L1 (DeviceLost)
            6s card 0 In
            6s retire L1
        "#]],
    );
}

#[test]
fn a_lost_card_of_a_gang_keeps_no_room_on_the_others() {
    check(
        "0s   cards 24G 24G
         0s   card 0 0M
         0s   card 1 0M
         0s   ask ann 20G gpus=2
         1s   ask bob 20G
         2s   card 1 lost
         8s   tick",
        expect![[r#"
            0s queue L1
            0s grant L1 20 GiB on 0+1 epoch 1 until 60s
            1s queue L2
            3s card 1 Out { why: "the driver lost it" }
            3s end L1 (DeviceLost)
            4s grant L2 20 GiB on 0 epoch 2 until 64s
        "#]],
    );
}

#[test]
fn of_several_cards_that_are_named_any_will_do_and_no_other() {
    check(
        "0s   cards 24G 24G 24G
         0s   card 0 0G
         0s   card 1 0G
         0s   card 2 0G
         0s   ask ann 20G on=1,GPU-2
         1s   ask ann 20G on=1,GPU-2
         2s   ask bob 20G on=GPU-2,1
         3s   ask bob 20G on=2,1 gpus=3
         4s   release L2 ann
         5s   card 2 0G",
        expect![[r#"
            0s queue L1
            0s grant L1 20 GiB on 1 epoch 1 until 60s
            1s queue L2
            1s grant L2 20 GiB on 2 epoch 2 until 61s
            2s queue L3
            3s refuse: this can never be granted (suitable GPUs: 2, largest lease there: 23.8 GiB)
            4s end L2 (Released)
            5s retire L2
            5s grant L3 20 GiB on 2 epoch 3 until 65s
        "#]],
    );
}

#[test]
fn refused_request_without_wait_leaves_no_line_and_no_number_behind() {
    check(
        "0s   cards 24G
         0s   card 0
         0s   ask ann 20G
         1s   ask bob 20G
         2s   ask bob 20G interactive wait=0s
         3s   ask bob 20G interactive wait=0s
         4s   release L1 ann
         6s   ask ann 20G wait=0s
         7s   ask ann 1G wait=0s",
        expect![[r#"
            0s queue L1
            0s grant L1 20 GiB on 0 epoch 1 until 60s
            1s queue L2
            2s refuse: there is no room now (largest possible: 3.8 GiB)
            3s refuse: there is no room now (largest possible: 3.8 GiB)
            4s end L1 (Released)
            5s retire L1
            5s grant L2 20 GiB on 0 epoch 2 until 65s
            6s refuse: there is no room now (largest possible: 3.8 GiB)
            7s queue L3
            7s grant L3 1 GiB on 0 epoch 3 until 67s
        "#]],
    );
}
