//! Stories: what happens at which second, and what is decided.
//!
//! One line is one event. `card 0 4G` is a look at a card; `card 0 L1=2G
//! stray=1G` names whose bytes they are (a lease is bound to a process of its
//! own by `bind`). Between lines time passes as in the daemon: a tick and a
//! look at each card every second, seeing what was last seen; `stall` is the
//! exception.

use crate::ask::{Ask, Exclusivity, On, Term, Tier, Vram};
use crate::event::{Answer, Caller, Event};
use crate::ids::{CardId, Epoch, LeaseId, ProcKey};
use crate::policy::{Caps, Policy};
use crate::reading::{CardFacts, Observation, Reading, Resident, Unreadable, Used};
use crate::rows::Rows;
use crate::units::{Bytes, Span, Time};
use crate::{State, action::Action, decide};
use expect_test::{Expect, expect};
use std::collections::BTreeMap;
use std::fmt::Write;

fn check(story: &str, expect: Expect) {
    expect.assert_eq(&tell(story, Policy::default()));
}

fn check_with(policy: Policy, story: &str, expect: Expect) {
    expect.assert_eq(&tell(story, policy));
}

fn tell(story: &str, policy: Policy) -> String {
    let state = State::new(Rows::default(), policy);
    let mut teller = Teller { state, now: Time::ZERO, looks: BTreeMap::new(), out: String::new() };
    for line in story.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (at, rest) = line.split_once(' ').expect("a time and an event");
        let at = Time((at.trim_end_matches('s').parse::<f64>().expect("seconds") * 1e6) as u64);
        match rest.trim() {
            "stall" => teller.now = at,
            event => teller.line(at, event),
        }
    }
    teller.out
}

struct Teller {
    state: State,
    now: Time,
    looks: BTreeMap<String, Reading>,
    out: String,
}

fn bytes(text: &str) -> Bytes {
    match text.split_at(text.len() - 1) {
        (n, "G") => Bytes::gib(n.parse().expect("a number")),
        (n, "M") => Bytes::mib(n.parse().expect("a number")),
        _ => Bytes(text.parse().expect("bytes")),
    }
}

fn lease(text: &str) -> LeaseId {
    text.parse().expect("a lease")
}

fn process(text: &str) -> ProcKey {
    let pid = text.bytes().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    ProcKey { pid, start: 1 }
}

impl Teller {
    fn line(&mut self, now: Time, text: &str) {
        while self.now + Span::secs(1) <= now {
            self.now = self.now + Span::secs(1);
            self.pass();
        }
        self.now = now;
        let words: Vec<&str> = text.split_whitespace().collect();
        let event = self.event(now, &words);
        if let Event::Observed { card, observation } = &event {
            self.looks.insert(card.clone(), observation.reading.clone());
        }
        self.step(now, event);
    }

    fn pass(&mut self) {
        let now = self.now;
        for (card, reading) in self.looks.clone() {
            self.step(now, Event::Observed { card, observation: Observation { begun: now, reading } });
        }
        self.step(now, Event::Ticked);
    }

    fn step(&mut self, now: Time, event: Event) {
        let outcome = decide(&mut self.state, now, event);
        for action in &outcome.actions {
            self.say(now, action);
        }
        if let Answer::Refused(refusal) = outcome.answer {
            writeln!(self.out, "{now} refuse: {refusal}").unwrap();
        }
    }

    fn event(&self, now: Time, words: &[&str]) -> Event {
        let by = |name: &str| Caller { tenant: name.to_owned(), operator: name == "root" };
        match words {
            ["cards", sizes @ ..] => Event::Listed(sizes.iter().zip(0..).map(|(s, n)| facts(n, bytes(s))).collect()),
            ["card", index, "unreadable"] => self.look(now, index, Reading::Unreadable(Unreadable::NoAnswer)),
            ["card", index, "lost"] => self.look(now, index, Reading::Unreadable(Unreadable::Lost)),
            ["card", index, rest @ ..] => self.look(now, index, self.used(index, rest)),
            ["ask", who, vram, rest @ ..] => ask(by(who), vram, rest),
            ["bind", id] => {
                let row = self.state.lease(lease(id)).expect("a lease to bind");
                let owner = self.state.tenant_name(row.tenant);
                let epoch = row.hold().expect("a held lease").epoch;
                Event::Bound { by: by(owner), lease: row.id, epoch, process: process(id) }
            }
            ["alive", id] => Event::Members { lease: lease(id), processes: vec![process(id)] },
            ["alive", id, more @ ..] => {
                Event::Members { lease: lease(id), processes: more.iter().map(|name| process(name)).collect() }
            }
            ["worked", id] => Event::Worked { lease: lease(id) },
            ["gone", id] => Event::Gone { lease: lease(id) },
            ["release", id, who] => Event::Released { by: by(who), lease: lease(id), epoch: None },
            ["renew", id, who] => {
                let epoch = self.state.lease(lease(id)).and_then(|row| row.hold()).map_or(Epoch(0), |hold| hold.epoch);
                Event::Renewed { by: by(who), lease: lease(id), epoch }
            }
            ["renew", id, who, epoch] => {
                Event::Renewed { by: by(who), lease: lease(id), epoch: Epoch(epoch.parse().expect("an epoch")) }
            }
            ["drain", index, who] => Event::Drained { by: by(who), card: uuid(index) },
            ["clear", index, who] => Event::Cleared { by: by(who), card: uuid(index) },
            ["start", boot] => Event::Started { boot: boot.to_string(), clock_offset_us: 0, epoch_floor: Epoch(1) },
            ["awoke"] => Event::Awoke,
            ["disk", "full"] => Event::DiskFilled,
            ["disk", "freed"] => Event::DiskFreed,
            ["tick"] => Event::Ticked,
            other => panic!("no such event: {other:?}"),
        }
    }

    fn look(&self, now: Time, index: &str, reading: Reading) -> Event {
        Event::Observed { card: uuid(index), observation: Observation { begun: now, reading } }
    }

    fn used(&self, index: &str, rest: &[&str]) -> Reading {
        let card = self.state.card(&uuid(index)).expect("a card");
        let mut free = self.state.room(card).total();
        let mut used = Used { free, processes: Vec::new(), coarse: rest.contains(&"coarse") };
        for part in rest {
            match part.split_once('=') {
                Some((who, size)) => {
                    free = free.less(bytes(size));
                    let process = process(who);
                    used.processes.push(Resident { process, bytes: Some(bytes(size)), graphics: false });
                }
                None if part.ends_with(['G', 'M']) => free = free.less(bytes(part)),
                None => {}
            }
        }
        used.free = free;
        Reading::Used(used)
    }

    fn say(&mut self, now: Time, action: &Action) {
        let out = &mut self.out;
        match action {
            Action::Queue { lease, .. } => writeln!(out, "{now} queue {lease}"),
            Action::Grant { lease, cards, vram, epoch, until, .. } => {
                let cards: Vec<String> = cards.iter().map(CardId::to_string).collect();
                writeln!(out, "{now} grant {lease} {vram} on {} epoch {epoch} until {until}", cards.join("+"))
            }
            Action::Renew { lease, until, idle, .. } => {
                writeln!(out, "{now} renew {lease} until {until}{}", if *idle { " (idle)" } else { "" })
            }
            Action::Bind { lease, .. } => writeln!(out, "{now} bind {lease}"),
            Action::End { lease, reason, .. } => writeln!(out, "{now} end {lease} ({reason:?})"),
            Action::Retire { lease } => writeln!(out, "{now} retire {lease}"),
            Action::Serve { card, service } => writeln!(out, "{now} card {card} {service:?}"),
            Action::Grace { until, .. } => writeln!(out, "{now} grace until {until}"),
            Action::Start { .. } | Action::Enrol { .. } | Action::List { .. } => Ok(()),
        }
        .unwrap();
    }
}

fn uuid(index: &str) -> String {
    format!("GPU-{index}")
}

fn facts(index: u32, total: Bytes) -> CardFacts {
    CardFacts {
        uuid: format!("GPU-{index}"),
        index,
        name: "Card 24G".to_owned(),
        total,
        display: false,
        context: Some(Bytes::mib(300)),
        unusable: None,
    }
}

fn ask(by: Caller, vram: &str, rest: &[&str]) -> Event {
    let mut ask = Ask {
        vram: if vram == "whole" { Vram::Whole } else { Vram::Bytes(bytes(vram)) },
        gpus: 1,
        term: Term::Renewed(Span::secs(60)),
        tier: Tier::Batch,
        priority: 0,
        exclusivity: Exclusivity::Shared,
        on: None,
        name: None,
    };
    let mut wait = None;
    for word in rest {
        let seconds = |text: &str| Span::secs(text.trim_end_matches('s').parse().expect("seconds"));
        match word.split_once('=').unwrap_or((word, "")) {
            ("ttl", span) => ask.term = Term::Renewed(seconds(span)),
            ("time", span) => ask.term = Term::Fixed(seconds(span)),
            ("gpus", n) => ask.gpus = n.parse().expect("a number"),
            ("priority", n) => ask.priority = n.parse().expect("a number"),
            ("wait", span) => wait = Some(seconds(span)),
            ("on", text) => ask.on = Some(On::read(text)),
            ("interactive", _) => ask.tier = Tier::Interactive,
            ("spot", _) => ask.tier = Tier::Spot,
            ("alone", _) => ask.exclusivity = Exclusivity::Device,
            ("private", _) => ask.exclusivity = Exclusivity::Session,
            other => panic!("no such wish: {other:?}"),
        }
    }
    Event::Asked { by, ask, wait, root: None }
}

#[test]
fn an_unrenewed_lease_ends_and_the_next_in_line_is_served() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G
         5s   ask bob 16G
         62s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16GiB on 0 epoch 1 until 60s
            5s queue L2
            60s end L1 (Expired)
            61s retire L1
            61s grant L2 16GiB on 0 epoch 2 until 121s
        "#]],
    );
}

#[test]
fn an_unused_lease_that_nobody_waits_for_goes_on_and_is_shown_idle() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G
         100s tick
         125s ask bob 2G
         200s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16GiB on 0 epoch 1 until 60s
            60s renew L1 until 120s (idle)
            120s renew L1 until 180s (idle)
            125s queue L2
            125s grant L2 2GiB on 0 epoch 2 until 185s
            180s renew L1 until 240s (idle)
            185s renew L2 until 245s (idle)
        "#]],
    );
}

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
            0s grant L1 20GiB on 0 epoch 1 until 60s
            1s queue L2
            2.2s end L1 (Released)
            2.5s retire L1
            9s grant L2 20GiB on 0 epoch 2 until 69s
            9.5s end L2 (Released)
            14s retire L2
        "#]],
    );
}

#[test]
fn use_renews_a_bound_lease_and_words_do_not() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G
         1s   bind L1
         1s   alive L1
         2s   ask bob 16G
         5s   renew L1 ann
         20s  worked L1
         44s  tick
         80s  worked L1
         90s  tick
         160s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16GiB on 0 epoch 1 until 60s
            1s bind L1
            2s queue L2
            40s renew L1 until 100s
            84s renew L1 until 144s
            144s end L1 (Expired)
            145s retire L1
            145s grant L2 16GiB on 0 epoch 2 until 205s
        "#]],
    );
}

#[test]
fn a_word_renews_a_lease_that_no_process_is_bound_to() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G
         1s   ask bob 16G
         50s  renew L1 ann
         50s  renew L1 bob
         50s  renew L1 ann 7
         100s renew L1 ann
         165s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16GiB on 0 epoch 1 until 60s
            1s queue L2
            50s renew L1 until 110s
            50s refuse: no such lease
            50s refuse: the lease is at epoch 1, but the call carried epoch 7
            100s renew L1 until 160s
            160s end L1 (Expired)
            161s retire L1
            161s grant L2 16GiB on 0 epoch 2 until 221s
        "#]],
    );
}

#[test]
fn a_busy_holder_keeps_its_card_no_longer_than_the_hold_cap_while_somebody_waits() {
    check_with(
        Policy { hold_cap: Span::secs(100), ..Policy::default() },
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G
         1s   ask bob 16G
         40s  renew L1 ann
         90s  renew L1 ann
         99s  renew L1 ann
         102s tick
         140s renew L2 bob
         190s renew L2 bob
         240s renew L2 bob
         290s renew L2 bob",
        expect![[r#"
            0s queue L1
            0s grant L1 16GiB on 0 epoch 1 until 60s
            1s queue L2
            40s renew L1 until 100s
            100s end L1 (HoldCap)
            101s retire L1
            101s grant L2 16GiB on 0 epoch 2 until 161s
            140s renew L2 until 200s
            190s renew L2 until 250s
            240s renew L2 until 300s
            290s renew L2 until 350s
        "#]],
    );
}

#[test]
fn a_fixed_term_is_neither_renewed_nor_cut() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G time=100s
         50s  renew L1 ann
         102s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16GiB on 0 epoch 1 until 100s
            100s end L1 (TermOver)
            101s retire L1
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
            1s grant L2 13GiB on 0 epoch 1 until 61s
            2s queue L3
            2s end L3 (WaitOver)
            2s refuse: there is no room now (largest possible: 768MiB)
            4s queue L4
            4s end L4 (WaitOver)
            4s refuse: there is no room now (largest possible: 0B)
            6s queue L5
            6s end L5 (WaitOver)
            6s refuse: there is no room now (largest possible: 10.8GiB)
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
            0s grant L1 4GiB on 0 epoch 1 until 60s
            1s bind L1
            3s queue L2
            3s end L2 (WaitOver)
            3s refuse: there is no room now (largest possible: 11.8GiB)
            4s queue L3
            4s grant L3 11GiB on 0 epoch 2 until 64s
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
            2s grant L1 1GiB on 0 epoch 1 until 62s
            4s queue L2
            4s end L2 (WaitOver)
            4s refuse: there is no room now (largest possible: 0B)
            9s queue L3
            9s end L3 (WaitOver)
            9s refuse: there is no room now (largest possible: 0B)
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
            0s grant L1 10GiB on 0 epoch 1 until 60s
            1s queue L2
            1s end L2 (WaitOver)
            1s refuse: there is no room now (largest possible: 13.8GiB)
            1s queue L3
            1s grant L3 13GiB on 0 epoch 2 until 61s
        "#]],
    );
}

#[test]
fn interactive_passes_batch_but_not_an_old_one() {
    check(
        "0s    cards 24G
         0s    card 0 0M
         0s    ask ann 20G time=2000s
         1s    ask old 20G
         1300s ask new 20G
         1310s ask eve 20G interactive
         1320s ask pri 20G priority=10
         1330s release L1 ann
         1332s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 20GiB on 0 epoch 1 until 2000s
            1s queue L2
            1300s queue L3
            1310s queue L4
            1320s queue L5
            1330s end L1 (Released)
            1331s retire L1
            1331s grant L2 20GiB on 0 epoch 2 until 1391s
        "#]],
    );
    check(
        "0s    cards 24G
         0s    card 0 0M
         0s    ask ann 20G time=3000s
         1000s ask bob 20G
         1010s ask eve 20G interactive
         1020s release L1 ann
         1022s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 20GiB on 0 epoch 1 until 3000s
            1000s queue L2
            1010s queue L3
            1020s end L1 (Released)
            1021s retire L1
            1021s grant L3 20GiB on 0 epoch 2 until 1081s
        "#]],
    );
}

#[test]
fn a_large_ask_claims_its_card_and_leaves_the_others_to_small_ones() {
    check(
        "0s   cards 24G 24G
         0s   card 0 0M
         0s   card 1 0M
         0s   ask ann 10G on=0
         1s   ask big 20G on=0
         2s   ask bob 2G on=0
         3s   ask bob 2G on=1
         4s   release L1 ann
         6s   tick",
        expect![[r#"
            0s queue L1
            0s grant L1 10GiB on 0 epoch 1 until 60s
            1s queue L2
            2s queue L3
            3s queue L4
            3s grant L4 2GiB on 1 epoch 2 until 63s
            4s end L1 (Released)
            5s retire L1
            5s grant L2 20GiB on 0 epoch 3 until 65s
            5s grant L3 2GiB on 0 epoch 4 until 65s
        "#]],
    );
}

#[test]
fn a_gang_gets_all_its_cards_or_none() {
    check(
        "0s   cards 24G 24G
         0s   card 0 0M
         0s   card 1 0M
         0s   ask ann 10G on=1
         1s   ask big 20G gpus=2
         2s   ask bob 2G
         4s   release L1 ann
         6s   tick",
        expect![[r#"
            0s queue L1
            0s grant L1 10GiB on 1 epoch 1 until 60s
            1s queue L2
            2s queue L3
            4s end L1 (Released)
            5s retire L1
            5s grant L2 20GiB on 0+1 epoch 2 until 65s
            5s grant L3 2GiB on 0 epoch 3 until 65s
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
         6s   release L3 ann
         6s   release L5 ann
         7.5s ask eve 4G alone
         8s   ask eve 1G wait=0s
         9s   release L7 eve
         11s  card 0 stray=8G
         11s  ask ann whole wait=0s
         11s  ask ann 1G private wait=0s
         11s  ask ann 1G",
        expect![[r#"
            0s queue L1
            0s grant L1 23.2GiB on 0 epoch 1 until 60s
            1s queue L2
            1s end L2 (WaitOver)
            1s refuse: there is no room now (largest possible: 0B)
            2s end L1 (Released)
            3s retire L1
            3.5s queue L3
            3.5s grant L3 4GiB on 0 epoch 2 until 63.5s
            4s queue L4
            4s end L4 (WaitOver)
            4s refuse: there is no room now (largest possible: 19.2GiB)
            4s queue L5
            4s grant L5 4GiB on 0 epoch 3 until 64s
            5s queue L6
            5s end L6 (WaitOver)
            5s refuse: there is no room now (largest possible: 15.2GiB)
            6s end L3 (Released)
            6s end L5 (Released)
            7s retire L3
            7s retire L5
            7.5s queue L7
            7.5s grant L7 4GiB on 0 epoch 4 until 67.5s
            8s queue L8
            8s end L8 (WaitOver)
            8s refuse: there is no room now (largest possible: 19.2GiB)
            9s end L7 (Released)
            10s retire L7
            11s queue L9
            11s end L9 (WaitOver)
            11s refuse: there is no room now (largest possible: 15.8GiB)
            11s queue L10
            11s end L10 (WaitOver)
            11s refuse: there is no room now (largest possible: 15.8GiB)
            11s queue L11
            11s grant L11 1GiB on 0 epoch 5 until 71s
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
            0s refuse: no card has been seen on this host
            0s refuse: no card could ever hold this ask (cards that would do: 1, largest lease there: 23.8GiB)
            0s refuse: no card could ever hold this ask (cards that would do: 1, largest lease there: 23.8GiB)
            0s refuse: a CUDA context alone takes 300MiB on the card, and a lease includes it
            0s refuse: no card here is the one that `on` names
            0s refuse: no card here is the one that `on` names
            0s refuse: `vram_bytes` must be at least 1 byte and at most 1024 TiB
            0s refuse: `ttl_s` must be 1 s to 1 day, `time_s` 1 s to 7 days
            0s refuse: `priority` must be -10 to 10
            0s refuse: `gpus` must be 1 to 64
        "#]],
    );
}

#[test]
fn caps_and_the_bounded_queue() {
    let mut policy = Policy { queue_max: 3, ..Policy::default() };
    policy.caps_of.insert("cap".into(), Caps { vram: Some(Bytes::gib(8)), leases: Some(2), places: 2 });
    check_with(
        policy,
        "0s   cards 24G
         0s   card 0 0M
         0s   ask cap 9G
         0s   ask cap 8G
         1s   ask cap 1G
         1s   ask cap 1G
         1s   ask cap 1G
         2s   ask bob 4G
         3s   ask bob 20G
         3s   ask eve 20G
         4s   release L1 cap
         6s   tick",
        expect![[r#"
            0s refuse: you may hold 8GiB at a time, and this asks for more
            0s queue L1
            0s grant L1 8GiB on 0 epoch 1 until 60s
            1s queue L2
            1s queue L3
            1s refuse: you have as many asks in the queue as you may
            2s queue L4
            2s grant L4 4GiB on 0 epoch 2 until 62s
            3s queue L5
            3s refuse: the queue is full
            4s end L1 (Released)
            5s retire L1
            5s grant L2 1GiB on 0 epoch 3 until 65s
            5s grant L3 1GiB on 0 epoch 4 until 65s
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
            0s grant L1 20GiB on 0 epoch 1 until 60s
            1s bind L1
            2s refuse: no such lease
            2s refuse: no such lease
            3s queue L2
            4s end L1 (HolderExited)
            5s retire L1
            5s grant L2 20GiB on 0 epoch 2 until 65s
            6s end L2 (Revoked)
            7s retire L2
            7s refuse: no such lease
            8s refuse: no such lease
        "#]],
    );
}

#[test]
fn after_a_stall_or_a_suspend_nothing_expires_before_the_grace_is_over() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G
         1s   ask bob 16G
         100s stall
         100s tick
         130s renew L1 ann
         188s tick
         195s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16GiB on 0 epoch 1 until 60s
            1s queue L2
            100s grace until 160s
            130s renew L1 until 190s
            190s end L1 (Expired)
            191s retire L1
            191s grant L2 16GiB on 0 epoch 2 until 251s
        "#]],
    );
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G
         1s   ask bob 16G
         59s  awoke
         121s tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16GiB on 0 epoch 1 until 60s
            1s queue L2
            59s grace until 119s
            119s end L1 (Expired)
            120s retire L1
            120s grant L2 16GiB on 0 epoch 2 until 180s
        "#]],
    );
}

#[test]
fn a_restart_ends_nobody_and_a_reboot_ends_holders_only() {
    check(
        "0s   start boot-1
         0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G
         1s   ask bob 16G
         3s   start boot-1
         5s   start boot-2
         8s   tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16GiB on 0 epoch 1 until 60s
            1s queue L2
            3s grace until 63s
            5s grace until 65s
            5s end L1 (HostRebooted)
            5s retire L1
            6s grant L2 16GiB on 0 epoch 2 until 66s
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
            0s refuse: no such card
            1s queue L1
            1s grant L1 4GiB on 1 epoch 1 until 61s
            1s queue L2
            2s card 0 In
            2s grant L2 4GiB on 0 epoch 2 until 62s
            4s card 1 Out { why: "the driver lost it" }
            4s end L1 (DeviceLost)
            6s queue L3
            6s grant L3 4GiB on 0 epoch 3 until 66s
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
            0s grant L1 16GiB on 0 epoch 1 until 60s
            1s queue L2
            3s refuse: the disk is full, so no new lease can be promised
            4s end L1 (Released)
            5s retire L1
            7s grant L2 16GiB on 0 epoch 2 until 67s
        "#]],
    );
}

#[test]
fn who_would_wait_no_longer_leaves_the_queue() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 20G
         1s   ask bob 20G wait=30s
         35s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 20GiB on 0 epoch 1 until 60s
            1s queue L2
            31s end L2 (WaitOver)
        "#]],
    );
}

#[test]
fn a_fixed_term_gets_no_second_one_from_a_grace() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G time=30s
         1s   bind L1
         1s   alive L1
         29s  awoke
         95s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16GiB on 0 epoch 1 until 30s
            1s bind L1
            29s grace until 89s
            89s end L1 (TermOver)
            90s retire L1
        "#]],
    );
}

#[test]
fn what_cannot_start_keeps_no_card_idle() {
    check(
        "0s   cards 24G 24G
         0s   card 0 0M
         0s   card 1 0M
         0s   drain 1 root
         1s   ask gang 20G gpus=2
         2s   ask bob 1G
         3s   clear 1 root
         4s   ask eve 1G wait=0s",
        expect![[r#"
            0s card 1 Draining
            1s queue L1
            2s queue L2
            2s grant L2 1GiB on 0 epoch 1 until 62s
            3s card 1 In
            3s grant L1 20GiB on 0+1 epoch 2 until 63s
            4s queue L3
            4s grant L3 1GiB on 0 epoch 3 until 64s
        "#]],
    );
    check(
        "0s   cards 24G
         0s   card 0 stray=8G
         1s   ask big whole
         1s   ask own 4G private
         2s   ask bob 1G",
        expect![[r#"
            1s queue L1
            1s queue L2
            2s queue L3
            2s grant L3 1GiB on 0 epoch 1 until 62s
        "#]],
    );
}

#[test]
fn a_large_ask_claims_the_card_that_is_free_first() {
    check(
        "0s   cards 24G 24G
         0s   card 0 0M
         0s   card 1 0M
         0s   ask ann 14G on=0 time=3000s
         0s   ask bob 12G on=1
         0s   ask bob 11G on=1
         1s   ask big 20G
         2s   ask eve 4G
         3s   release L3 bob
         5s   ask fay 4G
         6s   release L2 bob
         8s   tick",
        expect![[r#"
            0s queue L1
            0s grant L1 14GiB on 0 epoch 1 until 3000s
            0s queue L2
            0s grant L2 12GiB on 1 epoch 2 until 60s
            0s queue L3
            0s grant L3 11GiB on 1 epoch 3 until 60s
            1s queue L4
            2s queue L5
            2s grant L5 4GiB on 0 epoch 4 until 62s
            3s end L3 (Released)
            4s retire L3
            5s queue L6
            5s grant L6 4GiB on 0 epoch 5 until 65s
            6s end L2 (Released)
            7s retire L2
            7s grant L4 20GiB on 1 epoch 6 until 67s
        "#]],
    );
}

#[test]
fn caps_hold_whole_cards_and_nobody_elses_lease() {
    let mut policy = Policy::default();
    policy.caps_of.insert("cap".into(), Caps { vram: Some(Bytes::gib(16)), leases: Some(1), places: 9 });
    check_with(
        policy,
        "0s   cards 24G
         0s   card 0 0M
         0s   ask cap whole
         0s   ask cap 8G
         1s   ask ann 8G
         2s   ask cap 8G
         130s tick",
        expect![[r#"
            0s refuse: you may hold 16GiB at a time, and this asks for more
            0s queue L1
            0s grant L1 8GiB on 0 epoch 1 until 60s
            1s queue L2
            1s grant L2 8GiB on 0 epoch 2 until 61s
            2s queue L3
            60s renew L1 until 120s (idle)
            61s renew L2 until 121s (idle)
            120s renew L1 until 180s (idle)
            121s renew L2 until 181s (idle)
        "#]],
    );
}

#[test]
fn a_ttl_is_no_longer_than_others_must_wait() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 8G ttl=3600s
         0s   ask ann 8G ttl=1800s",
        expect![[r#"
            0s refuse: a lease that use renews may last 1800s at a time here
            0s queue L1
            0s grant L1 8GiB on 0 epoch 1 until 1800s
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
            0s grant L1 4GiB on 0 epoch 1 until 60s
            0s queue L2
            0s grant L2 4GiB on 0 epoch 2 until 60s
            1s bind L2
            2s end L2 (HolderExited)
            3s retire L2
            4s queue L3
            4s grant L3 12GiB on 0 epoch 3 until 64s
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
            0s grant L1 4GiB on 0 epoch 1 until 60s
            2s card 0 Out { why: "the driver lost it" }
            2s end L1 (DeviceLost)
            6s card 0 In
            6s retire L1
        "#]],
    );
}

#[test]
fn a_busy_holder_is_renewed_even_when_the_daemon_looks_late() {
    check(
        "0s   cards 24G
         0s   card 0 0M
         0s   ask ann 16G ttl=6s
         0s   bind L1
         1s   ask bob 16G
         3s   worked L1
         9s   stall
         9s   tick
         10s  tick",
        expect![[r#"
            0s queue L1
            0s grant L1 16GiB on 0 epoch 1 until 6s
            0s bind L1
            1s queue L2
            9s renew L1 until 15s
        "#]],
    );
}
