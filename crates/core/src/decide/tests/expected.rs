//! When waiters are expected to start.

use super::preempt::house;
use super::told;
use crate::model::settings::{Parking, Policy};
use crate::model::units::Bytes;
use crate::policy::expected_starts::{ExpectedStart, expected};

/// Seconds from the end of a story until a lease is expected to start.
fn starts_in(story: &str, policy: Policy, lease: &str) -> Option<(u64, u64)> {
    let teller = told(story, policy);
    let ExpectedStart { p50, p90 } = *expected(&teller.state, teller.now).get(&lease.parse().unwrap())?;
    let seconds = |at: crate::model::units::Time| at.since(teller.now).0 / 1_000_000;
    Some((seconds(p50), seconds(p90)))
}

fn still() -> Policy {
    Policy { parking: Parking { preempt: false, ..Parking::default() }, ..Policy::default() }
}

/// Leases of 16 GiB, one after the other, each of so many seconds.
fn past(seconds: &[u64]) -> (String, u64) {
    let (mut story, mut now) = ("0s cards 24G\n0s card 0 0M\n".to_owned(), 1);
    for (n, lasts) in seconds.iter().enumerate() {
        let (id, over) = (n + 1, now + lasts);
        story += &format!("{now}s ask ann 16G ttl=300s\n{over}s release L{id} ann\n{over}.1s card 0 0M\n");
        now = over + 1;
    }
    (story, now)
}

#[test]
fn without_any_history_nothing_is_expected() {
    let story = "0s cards 24G\n0s card 0 0M\n1s ask ann 16G ttl=300s\n2s ask bob 16G ttl=300s\n";
    assert_eq!(starts_in(story, still(), "L2"), None);
}

#[test]
fn a_waiter_is_told_what_is_left_of_leases_like_the_one_in_its_way() {
    let (story, now) = past(&[60; 6]);
    let (asks, waits) = (now + 1, now + 21);
    let story = format!("{story}{asks}s ask ann 16G ttl=300s\n{waits}s ask bob 16G ttl=300s\n");
    let (p50, p90) = starts_in(&story, still(), "L8").unwrap();
    assert!((30..=50).contains(&p50), "about 40 s are left: {p50}");
    assert!((p50..=120).contains(&p90), "{p90}");
}

#[test]
fn what_is_expected_grows_with_those_ahead() {
    let (story, now) = past(&[60; 6]);
    let asks: String = (1..5).map(|n| format!("{}s ask ann 16G ttl=300s\n", now + n)).collect();
    let story = story + &asks;
    let waits: Vec<(u64, u64)> =
        ["L8", "L9", "L10"].iter().filter_map(|lease| starts_in(&story, still(), lease)).collect();
    let [(first, _), (second, _), (third, p90)] = waits[..] else { panic!("{waits:?}") };
    assert!((40..=75).contains(&first), "{first}");
    assert!((90..=150).contains(&second), "{second}");
    assert!((140..=240).contains(&third) && p90 > third, "{third} {p90}");
}

#[test]
fn an_idle_lease_is_expected_to_leave_at_once() {
    let mut house = house();
    house.parking = Parking { space: Bytes::gib(64), ..house.parking };
    let story = "0s cards 24G\n0s ram 100G\n0s card 0 0M\n0s ask ann 16G ttl=300s\n1s bind L1\n1s shim L1 here\n\
                 2s card 0 L1=14G\n2s worked L1\n90s ask bob 16G\n";
    let (p50, p90) = starts_in(story, house, "L2").unwrap();
    assert!(p50 <= 3 && p90 <= 3, "{p50} {p90}");
}

#[test]
fn a_fixed_term_is_taken_at_its_word() {
    let story = "0s cards 24G\n0s card 0 0M\n1s ask ann 16G time=100s\n11s ask bob 16G time=50s\n";
    let (p50, p90) = starts_in(story, still(), "L2").unwrap();
    assert_eq!((p50, p90), (91, 91), "its end, and the next reading");
}
