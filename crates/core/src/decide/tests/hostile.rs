//! Stories of people who want more than their part, and of what they must not get.

use super::*;
use crate::model::facts::DaemonEvent;
use crate::model::rows::Phase;
use crate::model::settings::Caps;
use crate::policy::explain::{Bound, NoBound, bound};
use crate::state::ledger::TenantLoad;

struct House {
    teller: Teller,
}

impl House {
    fn new(policy: Policy) -> House {
        let state = State::new(Rows::default(), policy);
        House { teller: Teller { state, now: Time::ZERO, looks: BTreeMap::new(), out: String::new() } }
    }

    /// A house with so many empty cards of 24 GiB.
    fn with_cards(cards: usize, policy: Policy) -> House {
        let mut house = House::new(policy);
        house.run(&format!("0s cards {}", vec!["24G"; cards].join(" ")));
        (0..cards).for_each(|card| house.run(&format!("0s card {card} 0M")));
        house
    }

    fn run(&mut self, story: &str) {
        for line in story.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (at, rest) = line.split_once(' ').expect("a time and an event");
            let at = Time((at.trim_end_matches('s').parse::<f64>().expect("seconds") * 1e6) as u64);
            self.teller.line(at, rest.trim());
        }
    }

    fn tell(&mut self, event: Event) {
        let now = self.teller.now;
        self.teller.step(now, event);
    }

    fn holds(&self, lease: u64) -> bool {
        self.teller.state.lease(LeaseId(lease)).is_some_and(|row| matches!(row.phase, Phase::Active(_)))
    }

    fn started(&self, lease: u64) -> bool {
        self.teller.out.contains(&format!("grant L{lease} "))
    }

    fn bound(&self, lease: u64) -> Bound {
        let row = self.teller.state.lease(LeaseId(lease)).expect("it waits");
        bound(&self.teller.state, row, self.teller.now)
    }

    fn charged_today(&self, tenant: &str) -> Span {
        let tenant = self.teller.state.tenant(tenant).expect("it asked");
        Span(self.teller.state.rows().tenants[tenant].today_us)
    }

    fn load(&self, tenant: &str) -> TenantLoad {
        let tenant = self.teller.state.tenant(tenant).expect("it asked");
        self.teller.state.ledger().load(tenant).clone()
    }
}

fn capped(caps: Caps) -> Policy {
    Policy { caps: Caps { places: Some(1000), ..caps }, ..Policy::default() }
}

// ---- quotas ----------------------------------------------------------------

#[test]
fn a_budget_counts_on_the_card_that_is_granted() {
    let mut house = House::new(capped(Caps { gpu_day: Some(Span::secs(900)), ..Caps::default() }));
    house.run(
        "0s cards 24G 48G
         0s card 0 0M
         0s card 1 0M
         0s ask ann 12G time=3600s",
    );
    assert_eq!(house.charged_today("ann"), Span::secs(900), "a quarter of the large card, not half of the small one");
    let mut house = House::new(capped(Caps { gpu_day: Some(Span::secs(1800)), ..Caps::default() }));
    house.run(
        "0s cards 24G 48G
         0s card 0 0M
         0s card 1 0M
         0s ask zed 1G on=0 time=600s
         0s ask ann whole time=3600s",
    );
    assert_eq!(house.charged_today("ann"), Span::ZERO, "a whole card for an hour is more than half an hour");
}

#[test]
fn a_whole_card_that_is_never_preempted_counts_whole() {
    let mut house = House::new(capped(Caps { never: Some(Bytes::gib(24)), ..Caps::default() }));
    house.run(
        "0s cards 24G 80G
         0s card 0 0M
         0s card 1 0M
         0s ask zed 1G on=0 time=600s
         0s ask ann whole never",
    );
    assert!(house.load("ann").unpreemptable <= Bytes::gib(24), "{:?}", house.load("ann"));
}

#[test]
fn midnight_gives_back_only_what_the_new_day_paid() {
    let mut house = House::new(capped(Caps { gpu_day: Some(Span::secs(3600)), ..Caps::default() }));
    house.run(
        "0s cards 100G 100G 100G 100G
         0s card 0 0M
         0s card 1 0M
         0s card 2 0M
         0s card 3 0M
         0s day 1
         1s ask ann 50G ttl=1800s
         1s ask ann 50G ttl=1800s
         1s ask ann 50G ttl=1800s
         2s day 2
         3s ask ann 50G time=7000s
         4s renew L1 ann
         4s renew L2 ann
         4s renew L3 ann
         5s release L1 ann
         5s release L2 ann
         5s release L3 ann
         8s ask ann 50G time=5000s",
    );
    assert!(!house.holds(5), "3,500 s and 2,500 s on one day, and it has 3,600");
}

#[test]
fn a_clock_that_was_ahead_does_not_stop_the_days() {
    let mut house = House::with_cards(1, capped(Caps { gpu_day: Some(Span::secs(3600)), ..Caps::default() }));
    house.run(
        "0s day 47000
         1s day 20000
         2s ask ann 20G time=3600s
         3s ask ann 20G time=3600s
         3700s release L1 ann
         80000s day 20001
         80001s ask ann 20G time=3600s",
    );
    assert!(house.started(2), "the day's budget returned after a day: {}", house.teller.out);
}

#[test]
fn who_is_held_by_a_quota_is_told_so_at_once_too() {
    let mut house = House::with_cards(1, capped(Caps { leases: Some(1), ..Caps::default() }));
    house.run(
        "0s ask ann 1G
         1s ask ann 1G wait=0s",
    );
    assert!(house.teller.out.ends_with("1s refuse: you may have 1 lease at once\n"), "{}", house.teller.out);
}

#[test]
fn nobody_has_a_card_in_a_million_pieces() {
    let mut house = House::with_cards(1, Policy::default());
    house.run("1s ask ann 1000000");
    assert!(house.teller.out.contains("at least 1 MiB"), "{}", house.teller.out);
}

// ---- claims ----------------------------------------------------------------

#[test]
fn a_second_claim_on_a_card_is_kept() {
    for gangs in ["", " gpus=2"] {
        let mut house = House::with_cards(2, Policy::default());
        house.run(&format!(
            "0s  ask zed 22G time=100s gpus=2
             1s  ask ann 4G{gangs}
             2s  ask ben 23G{gangs} wait=604800s
             50s ask cat 1G time=604800s gpus=2
             400s tick"
        ));
        assert!(house.started(3), "who came later, for a week, keeps ben waiting: {}", house.teller.out);
    }
}

#[test]
fn four_stuck_asks_of_one_leave_the_others_their_claims() {
    let mut house = House::with_cards(2, Policy::default());
    house.run(
        "0s ask zed 20G on=0 time=604800s
         0s ask cat 10G on=1 time=1000s
         1s ask dan 10G on=1 time=500s",
    );
    (0..4).for_each(|_| house.run("2s ask ann 20G on=0 wait=604800s"));
    house.run("3s ask ben 20G on=1 wait=604800s");
    for n in 0..8 {
        house.run(&format!("{}s ask new{n} 10G on=1 time=1000s", 490 + 500 * n));
    }
    assert!(house.started(8), "a new tenant every 500 s keeps ben waiting: {}", house.teller.out);
}

#[test]
fn a_hundred_asks_for_a_taken_card_leave_a_free_one_to_others() {
    let mut house = House::with_cards(2, Policy::default());
    house.run("0s ask zed 20G on=0 time=604800s");
    (0..100).for_each(|_| house.run("1s ask ann 20G on=0 wait=604800s"));
    house.run("2s ask ben 5G on=1 wait=604800s");
    assert!(house.holds(102), "card 1 is empty");
}

#[test]
fn an_offer_is_not_made_of_what_somebody_far_ahead_waits_for() {
    let mut house = House::with_cards(2, Policy::default());
    house.run("0s ask zed 20G on=0 time=604800s");
    (0..64).for_each(|n| house.run(&format!("1s ask u{n} 20G on=0 wait=604800s")));
    house.run(
        "2s ask ben 20G on=1
         3s ask cat 23G on=1
         4s accept L67 cat 20G 1",
    );
    assert!(!house.holds(67), "ben is ahead of it, at place 65");
}

#[test]
fn who_was_let_past_a_claim_goes_when_the_driver_forgot_its_card_for_a_moment() {
    let mut house = House::with_cards(2, Policy::default());
    house.run(
        "0s   ask zed 20G on=1 time=300s
         1s   ask ben 23G on=1 wait=604800s
         2s   ask cat 3G on=1 ttl=60s
         50s  renew L3 cat
         100s renew L3 cat
         150s renew L3 cat
         200s renew L3 cat
         250s renew L3 cat
         270s cards 24G
         270s renew L3 cat
         271s cards 24G 24G",
    );
    (320..600).step_by(50).for_each(|t| house.run(&format!("{t}s renew L3 cat")));
    assert!(house.started(2), "its claim was for 300 s: {}", house.teller.out);
}

// ---- turns -----------------------------------------------------------------

#[test]
fn a_first_ask_that_cannot_start_does_not_let_the_others_behind_it_pass() {
    let mut house = House::with_cards(2, Policy { debt_max: Span::secs(10), ..Policy::default() });
    house.run(
        "0s ask zed 20G on=0 time=604800s
         0s ask zoe 20G on=1 time=60s
         1s ask ann 20G on=0",
    );
    (0..6).for_each(|_| house.run("1s ask ann 20G on=1 time=60s"));
    house.run(
        "65s ask ben 20G on=1 time=60s
         200s tick",
    );
    assert!(house.started(10), "ben waits behind all that ann asked for at once: {}", house.teller.out);
}

// ---- who is wanted ---------------------------------------------------------

#[test]
fn whom_a_quota_holds_back_holds_up_nobody() {
    let mut house = House::with_cards(2, Policy::default());
    house.run(
        "0s ask zed 20G on=0 time=86400s
         0s ask zoe 20G on=1 time=100s",
    );
    (0..64).for_each(|n| house.run(&format!("1s ask u{n} 20G")));
    house.run("2s ask ben 5G");
    let mut day = Policy::default();
    let less = Caps { vram: Some(Bytes::gib(10)), ..Caps::default() };
    day.caps_of.extend((0..64).map(|n| (format!("u{n}"), less.clone())));
    house.tell(Event::Daemon(DaemonEvent::Configured(Box::new(day))));
    house.run("200s tick");
    assert!(house.started(67), "the others wait for what they may never have");
}

#[test]
fn behind_many_whom_quotas_hold_back_a_waiter_is_seen() {
    let mut policy = Policy::default();
    let one = Caps { leases: Some(1), ..Caps::default() };
    policy.caps_of.extend((0..64).map(|n| (format!("u{n}"), one.clone())));
    let mut house = House::new(policy);
    house.run(
        "0s cards 64G
         0s card 0 0M
         0s ask zed 44G",
    );
    (0..64).for_each(|n| house.run(&format!("1s ask u{n} 307M time=604800s")));
    house.run("2s ask zed2 500M time=604800s");
    (0..64).for_each(|n| house.run(&format!("3s ask u{n} 1G wait=604800s")));
    house.run(
        "300s ask ben 1G wait=604800s
         500s tick",
    );
    assert!(house.started(131), "zed does not use its lease, and ben waits for it");
}

#[test]
fn a_waiter_without_hope_costs_nobody_its_lease() {
    let mut house = House::new(Policy::default());
    house.run(
        "0s cards 24G
         0s card 0 stray=1G
         0s ask ann 10G
         1s ask ben 20G alone wait=604800s
         300s tick",
    );
    assert!(house.holds(1), "a stranger is in ben's way, whatever ann does");
}

#[test]
fn a_card_that_is_to_run_empty_does() {
    let mut house = House::with_cards(2, Policy::default());
    house.run(
        "0s ask ann 20G on=0
         0s ask ann 20G on=1
         1s drain 0 root
         300s tick",
    );
    assert!(!house.holds(1) && house.holds(2), "nobody uses them; one is on the card that is drained");
}

// ---- bounds ----------------------------------------------------------------

#[test]
fn no_bound_is_told_that_somebody_else_could_break() {
    let mut house = House::with_cards(1, Policy::default());
    house.run(
        "0s ask zed 20G time=60s
         1s ask ann 20G interactive time=60s
         1s ask ann 20G interactive time=604800s
         2s ask ben 20G wait=604800s",
    );
    assert_eq!(house.bound(4), Bound::None(NoBound::Ahead(LeaseId(3))), "ann's second is for a week");
    let mut house = House::with_cards(1, capped(Caps { never: Some(Bytes::gib(24)), ..Caps::default() }));
    house.run(
        "0s ask ann 20G never
         70s ask ben 20G wait=604800s",
    );
    assert_eq!(house.bound(2), Bound::None(NoBound::Holder(LeaseId(1))), "unused now, and used again tomorrow");
    let mut policy = Policy::default();
    policy.caps_of_groups.insert("lab".into(), Caps { gpu_day: Some(Span::secs(1000)), ..Caps::default() });
    let mut house = House::with_cards(1, policy);
    house.run(
        "0s ask zed 20G time=60s
         1s ask ann/lab 20G time=1000s
         2s ask ben/lab 20G time=1000s wait=604800s",
    );
    assert_eq!(house.bound(3), Bound::None(NoBound::Budget), "ann may use up the group's day");
}
