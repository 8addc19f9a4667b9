//! Stories: what happens to one lease, second by second, under a policy.

use super::tracked::OutlookEnd;
use super::*;
use expect_test::{Expect, expect};
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A daemon that does what the story says.
#[derive(Clone, Default)]
struct ScriptedDaemon(Arc<Mutex<ScriptedLease>>);

#[derive(Default)]
struct ScriptedLease {
    now: f64,
    ttl: f64,
    outlook: LeaseOutlook,
    is_silent: bool,
    refuses: bool,
}

impl LeaseRenewer for ScriptedDaemon {
    fn outlook(&self, _: &str) -> LeaseOutlook {
        self.0.lock().unwrap().outlook.clone()
    }

    fn renew(&self, lease: &str) -> Result<f64, FabricError> {
        let mut daemon = self.0.lock().unwrap();
        if daemon.is_silent {
            return Err(FabricError::Disconnected { detail: "no answer".to_owned(), hint: None });
        }
        if daemon.refuses {
            let sentence = "the GPU was needed".to_owned();
            return Err(FabricError::Revoked { lease: lease.to_owned(), reason: "preempted".to_owned(), sentence });
        }
        let expires = daemon.now + daemon.ttl;
        daemon.outlook.expires_unix_s = Some(expires);
        Ok(expires)
    }
}

/// Plays a story for a lease of 100 s. Each line has seconds and words: `work`, `silent`, `answers`, `refuses`, `bound`,
/// `parked`, `active`, `extend N`, `end WHY`, `drop`. The manager ticks after each line.
fn check(policy: RenewalPolicy, story: &str, expected: &Expect) {
    let daemon = ScriptedDaemon::default();
    {
        let mut lease = daemon.0.lock().unwrap();
        lease.ttl = 100.0;
        lease.outlook.expires_unix_s = Some(100.0);
    }
    let mut manager = RenewalManager::with_renewer(Box::new(daemon.clone()));
    manager.register("L1", 100, policy);
    let mut told = String::new();
    for line in story.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (now, words) = line.split_once(' ').unwrap_or((line, ""));
        let now: f64 = now.parse().expect("a line begins with seconds");
        tell(&daemon, now, words);
        for event in manager.tick(now) {
            let event = match event {
                RenewalEvent::Renewed { expires_unix_s, .. } => format!("renewed until {expires_unix_s}"),
                RenewalEvent::NearExpiry { in_s, cause, .. } => format!("ends in {in_s} s ({cause:?})"),
                RenewalEvent::Retrying { detail, in_s, .. } => format!("{detail}; again in {in_s} s"),
                RenewalEvent::Preempted { reason, .. } => format!("preempted: {reason}"),
            };
            writeln!(told, "{now}s {event}").expect("a text can be written to");
        }
    }
    writeln!(told, "{} registered", manager.len()).expect("a text can be written to");
    expected.assert_eq(&told);
}

fn tell(daemon: &ScriptedDaemon, now: f64, words: &str) {
    let mut lease = daemon.0.lock().unwrap();
    lease.now = now;
    let (word, rest) = words.split_once(' ').unwrap_or((words, ""));
    match word {
        "" => {}
        "work" => lease.outlook.activity += 1,
        "silent" => lease.is_silent = true,
        "answers" => lease.is_silent = false,
        "refuses" => lease.refuses = true,
        "bound" => lease.outlook.is_bound = true,
        "parked" => lease.outlook.is_parked = true,
        "active" => lease.outlook.is_parked = false,
        "extend" => lease.outlook.expires_unix_s = rest.parse().ok(),
        "end" => lease.outlook.end = Some(OutlookEnd::Taken(rest.to_owned())),
        "drop" => lease.outlook.end = Some(OutlookEnd::GivenBack),
        other => panic!("`{other}` is no word of these stories"),
    }
}

fn at_three_quarters() -> RenewalPolicy {
    RenewalPolicy::renewing(RenewWhen::RemainingBelow(0.25))
}

#[test]
fn a_lease_in_use_is_renewed_once_per_term_and_an_idle_one_is_not() {
    check(
        at_three_quarters(),
        "0
         10 work
         74 work
         75
         80 work
         149
         150
         200
         249
         250",
        &expect![[r#"
            75s renewed until 175
            150s renewed until 250
            249s ends in 1 s (NoActivity)
            250s preempted: the time of lease L1 is over: it was not renewed
            0 registered
        "#]],
    );
}

#[test]
fn every_minute_means_every_minute() {
    check(
        RenewalPolicy::renewing(RenewWhen::Every(Duration::from_secs(60))),
        "0 work
         59 work
         60 work
         119 work
         120 work",
        &expect![[r#"
            60s renewed until 160
            120s renewed until 220
            1 registered
        "#]],
    );
}

#[test]
fn a_silent_daemon_is_asked_again_with_growing_pauses() {
    check(
        at_three_quarters(),
        "0 work
         75 silent
         75.5
         76
         77
         78
         80 answers
         82",
        &expect![[r#"
            75s no answer; again in 1 s
            75s ends in 25 s (NoAnswer)
            76s no answer; again in 2 s
            78s no answer; again in 4 s
            82s renewed until 182
            1 registered
        "#]],
    );
}

#[test]
fn a_daemon_that_stays_silent_costs_the_lease_once() {
    check(
        at_three_quarters(),
        "0 work
         99 silent
         100
         101
         102",
        &expect![[r#"
            99s no answer; again in 1 s
            99s ends in 1 s (NoAnswer)
            100s preempted: the time of lease L1 is over: the daemon did not answer in time
            0 registered
        "#]],
    );
}

#[test]
fn a_refused_renewal_is_a_preemption_that_is_reported_once() {
    check(
        at_three_quarters(),
        "0 work
         75 refuses
         76
         100",
        &expect![[r#"
            75s preempted: the GPU was needed
            0 registered
        "#]],
    );
}

#[test]
fn a_cap_on_holding_ends_the_renewals() {
    let policy = RenewalPolicy { hold_cap: Some(Duration::from_secs(120)), ..at_three_quarters() };
    check(
        policy,
        "0 work
         75 work
         76 work
         150 work
         174 work
         175",
        &expect![[r#"
            75s renewed until 175
            150s ends in 25 s (HoldCap)
            175s preempted: the time of lease L1 is over: it was not renewed
            0 registered
        "#]],
    );
}

#[test]
fn a_bound_lease_is_renewed_by_the_daemon_and_reported() {
    check(
        at_three_quarters(),
        "0 bound
         75 work
         80
         90 extend 190
         191
         192 end the host was rebooted
         193",
        &expect![[r#"
            75s ends in 25 s (Daemon)
            90s renewed until 190
            192s preempted: the host was rebooted
            0 registered
        "#]],
    );
}

#[test]
fn time_stands_still_while_a_lease_is_parked() {
    check(
        at_three_quarters(),
        "0 work
         50 parked
         200
         210 extend 260
         211 active
         240 work
         248",
        &expect![[r#"
            210s renewed until 260
            248s renewed until 348
            1 registered
        "#]],
    );
}

#[test]
fn a_lease_that_was_given_back_is_forgotten_in_silence() {
    check(
        at_three_quarters(),
        "0 work
         10 drop
         20",
        &expect![[r#"
            0 registered
        "#]],
    );
}
