//! Holders that have more than their leases: told, offered more, made to leave, ended where that is enforced.

use super::*;
use crate::model::rows::Phase;
use crate::model::settings::{Caps, Parking};
use crate::policy::overuse::larger_lease;
use expect_test::expect;

/// A house with parking RAM.
fn with_ram() -> Policy {
    Policy { parking: Parking { space: Bytes::gib(64), ..Parking::default() }, ..Policy::default() }
}

fn offered(story: &str, policy: Policy) -> Option<Bytes> {
    let teller = told(story, policy);
    larger_lease(&teller.state, teller.state.lease(LeaseId(1)).expect("a lease"), teller.now)
}

/// L1 has 4 GiB of a card by its lease, and 6 GiB by the looks since then.
const OVER: &str = "0s cards 24G
    0s card 0 0G
    0s ask ann 4G ttl=60s
    0s bind L1
    1s alive L1
    2s card 0 L1=6G";

#[test]
fn two_looks_in_a_row_tell_and_two_take_it_back() {
    check(
        &format!(
            "{OVER}
             4s card 0 L1=6200M
             5s card 0 L1=7G
             8s card 0 L1=4200M
             12s tick"
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 60s
            0s bind L1
            3s over L1: 6 GiB
            5s over L1: 7 GiB
            9s within L1
        "#]],
    );
}

#[test]
fn a_little_more_or_a_moment_of_more_is_nobodys_business() {
    check(
        "0s cards 24G
         0s card 0 0G
         0s ask ann 4G ttl=60s
         0s bind L1
         1s alive L1
         2s card 0 L1=4224M
         6s card 0 L1=6G
         6.5s card 0 L1=4G
         10s card 0 coarse L1=8G
         12s card 0 unreadable
         14s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 60s
            0s bind L1
        "#]],
    );
}

#[test]
fn a_restart_takes_nothing_back_before_it_knows_whose_processes_are_whose() {
    check(
        &format!(
            "{OVER}
             5s tick
             5s restart
             6s card 0 L1=6G
             10s alive L1
             14s card 0 L1=3G
             18s tick"
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 60s
            0s bind L1
            3s over L1: 6 GiB
            5s grace until 65s
            15s within L1
        "#]],
    );
}

#[test]
fn what_it_has_is_offered_rounded_up_and_accepting_it_is_charged_from_then_on() {
    let story = format!(
        "{OVER}
         3s card 0 L1=6010M
         20s accept L1 bob 6G 1
         20s accept L1 ann 12G 1
         20s accept L1 ann 5G 1
         20s accept L1 ann 6016M 2
         20s accept L1 ann 6016M 1
         21s accept L1 ann 7G 1
         30s release L1 ann
         31s card 0 0G"
    );
    check(
        &story,
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 60s
            0s bind L1
            3s over L1: 6 GiB
            20s refuse: no such lease
            20s refuse: the lease can be enlarged to 5.9 GiB now, and not more
            20s refuse: the lease can be enlarged to 5.9 GiB now, and not more
            20s refuse: the lease can be enlarged to 5.9 GiB now, and not more
            20s grow L1 to 5.9 GiB
            21s refuse: the lease does not wait any more
            30s end L1 (Released)
            31s retire L1
        "#]],
    );
    let teller = told(&story, Policy::default());
    let tenant = &teller.state.rows().tenants[crate::ids::TenantId(0)];
    // 4 GiB for 20 s, then 6016 MiB for 10 s.
    let byte_us = (u128::from(Bytes::gib(4).0) * 20 + u128::from(Bytes::mib(6016).0) * 10) * 1_000_000;
    assert_eq!((tenant.gpu_us, tenant.byte_us), (30_000_000, byte_us));
}

#[test]
fn the_mark_and_the_days_time_are_as_if_the_rest_of_the_term_had_been_paid_so_at_once() {
    let grown =
        told(&format!("{OVER}\n 20s accept L1 ann 6G 1\n 20s worked L1\n 30s release L1 ann"), Policy::default());
    let plain = told(
        "0s cards 24G
         0s card 0 0G
         0s ask ann 4G ttl=60s
         20s release L1 ann
         20s card 0 0G
         20s ask ann 6G ttl=40s
         30s release L2 ann",
        Policy::default(),
    );
    let of = |teller: &Teller| teller.state.rows().tenants[crate::ids::TenantId(0)].clone();
    assert_eq!(of(&grown).today_us, of(&plain).today_us);
    assert_eq!(of(&grown).byte_us, of(&plain).byte_us);
    // A sixth of all for a minute carries it to 10 s. At 20 s that is past; a twelfth more for 40 s carries it
    // 3.33 s from there. What it did not use, a quarter of all for 30 s, is given back.
    assert!(of(&grown).debt_clock.0.abs_diff(20_000_000 + 3_333_333 - 7_500_000) < 10, "{:?}", of(&grown).debt_clock);
}

#[test]
fn nothing_is_offered_that_quotas_or_the_card_do_not_allow() {
    assert_eq!(offered(&format!("{OVER}\n 5s tick"), Policy::default()), Some(Bytes::gib(6)));
    let caps = Caps { vram: Some(Bytes::gib(5)), ..Caps::default() };
    assert_eq!(offered(&format!("{OVER}\n 5s tick"), Policy { caps, ..Policy::default() }), None);
    let caps = Caps { gpu_day: Some(Span::secs(11)), ..Caps::default() };
    assert_eq!(offered(&format!("{OVER}\n 5s tick"), Policy { caps, ..Policy::default() }), None, "of the day's time");
    // What it has, others were promised.
    let full = "0s cards 24G
        0s card 0 0G
        0s ask ann 4G ttl=60s
        0s bind L1
        0s ask bob 19G ttl=60s
        1s alive L1
        2s card 0 L1=6G
        5s tick";
    assert_eq!(offered(full, Policy::default()), None);
    assert_eq!(offered(&format!("{OVER}\n 4s card 0 L1=4G\n 6s tick"), Policy::default()), None, "within again");
    assert_eq!(offered(&format!("{OVER}\n 5s drain 0 root"), Policy::default()), None, "a card that runs empty");
}

#[test]
fn while_somebody_waits_just_what_it_has_is_offered() {
    let story = format!(
        "{OVER}
         3s card 0 L1=6010M
         4s ask bob 20G
         5s tick"
    );
    assert_eq!(offered(&story, Policy::default()), Some(Bytes::mib(6010)));
}

/// L1 has a hook and more than its lease, and L2 needs the room.
const IN_THE_WAY: &str = "0s cards 24G
    0s ram 100G
    0s card 0 0G
    0s ask ann 4G ttl=600s interactive yields
    0s bind L1
    1s alive L1
    2s card 0 L1=10G
    4s ask bob 18G spot";

#[test]
fn after_a_minute_it_leaves_for_whoever_waits_though_it_stands_higher_and_works() {
    check_with(
        with_ram(),
        &format!(
            "{IN_THE_WAY}
             30s worked L1
             60s worked L1
             64s worked L1
             66s hook L1 ann yielded
             66s card 0 0G
             69s tick"
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 600s
            0s bind L1
            3s over L1: 10 GiB
            4s queue L2
            63s park L1 by hook for L2 (0 B booked, and asks again)
            66s grant L2 18 GiB on 0 epoch 2 until 126s
            68s parked L1
            68s L1 wants 4 GiB as of 63.000001s
            68s resume L1 4 GiB until 668s
        "#]],
    );
}

#[test]
fn who_is_within_its_lease_again_stays() {
    check_with(
        with_ram(),
        &format!(
            "{IN_THE_WAY}
             30s worked L1
             50s card 0 L1=4G
             64s worked L1
             90s worked L1"
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 600s
            0s bind L1
            3s over L1: 10 GiB
            4s queue L2
            50s grant L2 18 GiB on 0 epoch 2 until 110s
            51s within L1
        "#]],
    );
}

#[test]
fn the_right_to_stay_is_for_what_the_lease_is_for() {
    let caps = Caps { never: Some(Bytes::gib(24)), ..Caps::default() };
    check_with(
        Policy { caps, ..with_ram() },
        &format!(
            "{}
             30s worked L1
             70s tick",
            IN_THE_WAY.replace("yields", "yields never")
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 600s
            0s bind L1
            3s over L1: 10 GiB
            4s queue L2
            63s park L1 by hook for L2 (0 B booked)
        "#]],
    );
}

#[test]
fn nobody_is_moved_for_whom_that_would_not_help() {
    check_with(
        with_ram(),
        &format!(
            "{}
             70s tick",
            IN_THE_WAY.replace("ask bob 18G spot", "ask bob 18G spot on=1")
        )
        .replace("cards 24G", "cards 24G 24G")
        .replace("0s ask ann 4G", "0s card 1 stray=20G\n 0s ask ann 4G on=0"),
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 600s
            0s bind L1
            3s over L1: 10 GiB
            4s queue L2
        "#]],
    );
}

/// The same without anybody who could make L1 leave.
fn stuck() -> String {
    IN_THE_WAY.replace(" yields", "")
}

#[test]
fn who_cannot_leave_is_let_be_where_nobody_enforces() {
    for mode in ["observe", "warn", "adopt"] {
        let story = format!("{}\n 5s tested\n 5s mode 0 {mode} root\n 200s worked L1\n 500s worked L1", stuck());
        let teller = told(&story, with_ram());
        assert!(matches!(teller.state.lease(LeaseId(1)).unwrap().phase, Phase::Active(_)), "{mode}: {}", teller.out);
    }
}

#[test]
fn on_an_enforced_card_it_is_ended_after_the_patience_by_the_usual_signals() {
    check_with(
        with_ram(),
        &format!(
            "{}
             5s tested
             5s mode 0 enforce root
             6s alive L1 L1 worker
             200s worked L1
             304s sent L1 15
             320s alive L1 worker
             335s sent L1 9
             336s gone L1
             336s card 0 0G
             338s tick",
            stuck()
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 600s
            0s bind L1
            3s over L1: 10 GiB
            4s queue L2
            5s card 0 mode enforce
            303s notice L1 until 303s for L2
            303s end L1 (OverUse)
            303s signal 15 to 2 of L1
            334s signal 9 to 1 of L1
            336s retire L1
            336s grant L2 18 GiB on 0 epoch 2 until 396s
        "#]],
    );
}

#[test]
fn on_an_enforced_card_it_is_left_alone_while_nobody_waits_or_only_the_host_lacks_memory() {
    let alone = format!("{}\n 5s tested\n 5s mode 0 enforce root\n 200s worked L1\n 400s worked L1", stuck());
    let nobody = alone.replace("\n    4s ask bob 18G spot", "");
    let no_memory = alone.replace("ram 100G", "ram 9G").replace("1s alive L1", "1s alive L1\n 1s driver L1 here");
    let no_memory = no_memory.replace("ttl=600s interactive", "ttl=600s interactive may-lose");
    for story in [nobody, no_memory] {
        let teller = told(&story, with_ram());
        assert!(matches!(teller.state.lease(LeaseId(1)).unwrap().phase, Phase::Active(_)), "{story}: {}", teller.out);
    }
}

#[test]
fn a_notice_that_was_asked_for_is_given_and_taken_back_with_the_excess() {
    check_with(
        with_ram(),
        &format!(
            "{}
             5s tested
             5s mode 0 enforce root
             200s worked L1
             305s worked L1
             340s card 0 L1=4G
             366s tick",
            stuck().replace("interactive", "interactive notice=60s")
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 600s
            0s bind L1
            3s over L1: 10 GiB
            4s queue L2
            5s card 0 mode enforce
            303s notice L1 until 363s for L2
            340s grant L2 18 GiB on 0 epoch 2 until 400s
            341s within L1
            363s spare L1
        "#]],
    );
}

#[test]
fn after_a_restart_it_has_the_grace_before_anything_is_done() {
    check_with(
        with_ram(),
        &format!(
            "{}
             5s tested
             5s mode 0 enforce root
             200s worked L1
             299s restart
             300s alive L1
             300s card 0 L1=10G
             301s tested
             320s worked L1
             358s worked L1
             361s tick",
            stuck()
        ),
        expect![[r#"
            0s queue L1
            0s grant L1 4 GiB on 0 epoch 1 until 600s
            0s bind L1
            3s over L1: 10 GiB
            4s queue L2
            5s card 0 mode enforce
            299s grace until 359s
            359s notice L1 until 359s for L2
            359s end L1 (OverUse)
            359s signal 15 to 1 of L1
        "#]],
    );
}
