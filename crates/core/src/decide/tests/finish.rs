//! Stories of batch jobs that rather finish than take turns.

use super::preempt::house;
use super::told;
use crate::model::settings::Policy;
use crate::model::units::Span;
use crate::policy::explain::{Bound, bound};

/// Slices of ten seconds.
fn slices(finish: bool) -> Policy {
    let mut house = house();
    (house.parking.slice_per_move, house.parking.stretches_slices) = (1, finish);
    house
}

/// A lease of 16 GiB that works from its grant to a second, as lines of a story.
fn works(lease: &str, from: u64, to: u64) -> String {
    let begins = format!(
        "{from}.1s bind {lease}\n{from}.1s shim {lease} here\n{from}.1s runs {lease} train\n{from}.2s card 0 {lease}=14G\n"
    );
    begins + &(from + 1..to).map(|second| format!("{second}s worked {lease}\n")).collect::<String>()
}

/// One that came and went alone, and lasted from then to then.
fn ran(lease: &str, who: &str, from: u64, to: u64) -> String {
    let asks = format!("{from}s ask {who} 16G\n");
    asks + &works(lease, from, to) + &format!("{to}s release {lease} {who}\n{to}.1s card 0 0M\n")
}

const BEGIN: &str = "0s cards 24G\n0s ram 100G\n0s card 0 0M\n";

/// The lines that were decided from a second on, and name a lease.
fn decided(story: &str, policy: Policy, lease: &str) -> Vec<String> {
    let out = told(story, policy).out;
    out.lines().filter(|line| line.split([' ', ':']).any(|word| word == lease)).map(str::to_owned).collect()
}

/// When a lease is parked first, in a story.
fn parked_at(story: &str, policy: Policy, lease: &str) -> Option<String> {
    let lines = decided(story, policy, lease);
    let line = lines.iter().find(|line| line.contains(&format!("park {lease} ")))?;
    line.split('s').next().map(str::to_owned)
}

/// Two jobs that took 13 s, then a third that works for 40 s while an equal waits from its first second on.
fn third(more: &str) -> String {
    let past = ran("L1", "ann", 1, 14) + &ran("L2", "ann", 20, 33);
    let asks = format!("40s ask ann 16G {more}\n41s ask bob 16G {more}\n");
    format!("{BEGIN}{past}{asks}{}", works("L3", 41, 80)).replace("41.1s", "41.3s").replace("41.2s", "41.4s")
}

#[test]
fn a_job_that_is_nearly_done_keeps_its_gpus_for_less_than_another_slice() {
    assert_eq!(parked_at(&third(""), slices(false), "L3").as_deref(), Some("50"), "a slice of ten seconds");
    let at: f64 = parked_at(&third(""), slices(true), "L3").unwrap().parse().unwrap();
    assert!((53.0..=56.0).contains(&at), "it took 13 s before, and not this time: {at}");
}

#[test]
fn an_interactive_lease_has_its_slice_and_no_more() {
    assert_eq!(parked_at(&third("interactive"), slices(true), "L3").as_deref(), Some("50"));
}

#[test]
fn one_job_is_no_history() {
    let story = format!("{BEGIN}{}40s ask ann 16G\n41s ask bob 16G\n{}", ran("L1", "ann", 1, 14), works("L2", 41, 60));
    let story = story.replace("41.1s", "41.3s").replace("41.2s", "41.4s");
    assert_eq!(parked_at(&story, slices(true), "L2").as_deref(), Some("50"));
}

#[test]
fn a_job_that_would_need_more_than_another_slice_leaves_after_the_first() {
    let past = ran("L1", "ann", 1, 61) + &ran("L2", "ann", 70, 130);
    let story = format!("{BEGIN}{past}140s ask ann 16G\n141s ask bob 16G\n{}", works("L3", 141, 180));
    let story = story.replace("141.1s", "141.3s").replace("141.2s", "141.4s");
    assert_eq!(parked_at(&story, slices(true), "L3").as_deref(), Some("150"));
}

/// L1 works while two more jobs of its tenant wait, and leaves for the first of them.
fn three_jobs() -> String {
    let asks = "1s ask ann 16G\n2s ask ann 16G\n3s ask ann 16G\n";
    let leaves = "11.5s shim L1 parked 13700M\n11.6s card 0 L1=300M\n11.7s card 0 L1=300M\n";
    let next = works("L2", 12, 22).replace("12.2s card 0 L2=14G", "12.2s card 0 L1=300M L2=14G");
    let back = "22.5s shim L2 parked 13700M\n22.6s card 0 L1=300M L2=300M\n22.7s card 0 L1=300M L2=300M\n";
    let first = works("L1", 3, 11).replace("3.1s", "3.3s").replace("3.2s", "3.4s");
    format!("{BEGIN}{asks}{first}{leaves}{next}{back}")
}

#[test]
fn a_job_that_was_parked_once_goes_before_its_tenants_jobs_that_have_not_started() {
    let l1 = decided(&three_jobs(), slices(true), "L1");
    assert!(l1.contains(&"11.7s L1 wants 15.7 GiB as of 3s".to_owned()), "in the place of L3: {l1:#?}");
    assert!(l1.iter().any(|line| line.starts_with("22.7s resume L1")), "{l1:#?}");
    let without = decided(&three_jobs(), slices(false), "L3");
    assert!(without.iter().any(|line| line.starts_with("22.7s grant L3")), "{without:#?}");
}

#[test]
fn a_job_gains_no_place_over_another_tenant() {
    // bob's job asked between ann's two, and ann's first leaves for it.
    let story = three_jobs().replace("2s ask ann 16G", "2s ask bob 16G");
    let l1 = decided(&story, slices(true), "L1");
    assert!(l1.iter().any(|line| line.starts_with("11.7s L1 wants")), "{l1:#?}");
    let l2 = decided(&story, slices(true), "L2");
    assert!(l2.iter().any(|line| line.starts_with("11.7s grant L2")), "bob has the card that was made free: {l2:#?}");
}

#[test]
fn a_waiters_bound_counts_its_own_jobs_that_may_come_back_first() {
    let story = format!("{BEGIN}1s ask ann 16G\n2s ask ann 16G\n");
    let told_by = |finish: bool| {
        let teller = told(&story, slices(finish));
        let lease = teller.state.lease("L2".parse().unwrap()).unwrap();
        match bound(&teller.state, lease, teller.now) {
            Bound::By { at, .. } => at,
            Bound::None(why) => panic!("{why:?}"),
        }
    };
    assert!(told_by(true) > told_by(false) + Span::secs(3600), "{} {}", told_by(true), told_by(false));
}
