//! Short runs for every commit; `cargo xtask sim --minutes 60` is the long one.

use sublet_sim::daemon::CommitFate;
#[cfg(feature = "mutants")]
use sublet_sim::mutants::{Planted, hunt};
use sublet_sim::run::{RunCounts, RunOptions, run, tell};

fn check(seed: u64, options: RunOptions) -> RunCounts {
    run(seed, options).unwrap_or_else(|failure| {
        let story = tell(seed, options, 40).join("\n");
        panic!("{story}\n{failure}\nhint: {options:?}");
    })
}

/// The first `count` seeds whose worlds show what a test is about. Every change of core or of the worlds makes other worlds
/// of the same seeds, so they are looked for and not written down.
fn worlds(count: usize, options: RunOptions, shows: impl Fn(&RunCounts) -> bool) -> Vec<u64> {
    let found: Vec<u64> = (1..5_000).filter(|seed| shows(&check(*seed, options))).take(count).collect();
    assert_eq!(found.len(), count, "worlds that show it are too rare");
    found
}

#[test]
fn two_hundred_seeds_keep_the_rules() {
    let (mut events, mut kept, mut parked, mut resumed) = (0, 0, 0, 0);
    let (mut preempted, mut yielded, mut driven, mut ended) = (0, 0, 0, 0);
    let (mut warned, mut struck, mut adopted, mut survived) = (0, 0, 0, 0);
    let (mut spared, mut unmoved) = (0, 0);
    let (mut told_over, mut grown, mut abroad) = (0, 0, 0);
    let (mut deep, mut surfaced) = (0, 0);
    for seed in 1..=200 {
        let passed = check(seed, RunOptions::default());
        (events, kept) = (events + passed.events, kept + passed.kept);
        (parked, resumed) = (parked + passed.parked, resumed + passed.resumed);
        (preempted, yielded) = (preempted + passed.preempted, yielded + passed.yielded);
        (driven, ended) = (driven + passed.driven, ended + passed.ended);
        (warned, struck) = (warned + passed.warned, struck + passed.struck);
        (adopted, survived) = (adopted + passed.adopted, survived + passed.survived);
        (spared, unmoved) = (spared + passed.spared, unmoved + passed.unmoved);
        (told_over, grown) = (told_over + passed.told_over, grown + passed.grown);
        abroad += passed.abroad;
        (deep, surfaced) = (deep + passed.deep, surfaced + passed.surfaced);
    }
    assert!(events >= 200 * 2_000, "{events} events");
    assert!(kept >= 10, "only {kept} waiters were told by when they are served, and were");
    assert!(parked >= 300 && resumed >= 150, "{parked} were parked, and {resumed} brought back");
    assert!(preempted >= 250 && ended >= 30, "{preempted} were made to leave for others, {ended} of them ended");
    assert!(yielded >= 100 && driven >= 10, "{yielded} were parked by their hooks, and {driven} by the driver");
    assert!(warned >= 1_000 && struck >= 400, "{warned} strangers were warned, and {struck} signalled");
    assert!(adopted >= 300 && survived >= 5, "{adopted} strangers got leases, and {survived} survived SIGKILL");
    assert!(spared >= 3 && unmoved >= 100, "{spared} strangers were parked, and {unmoved} could not be");
    assert!(told_over >= 200 && grown >= 20, "{told_over} had more than their leases, and {grown} took larger ones");
    assert!(abroad >= 50, "{abroad} processes were on cards that their leases do not have");
    assert!(deep >= 20 && surfaced >= 8, "{deep} left their cards altogether, and {surfaced} processes came back");
    // That is rare.
    let is_overused = |seed: &u64| check(*seed, RunOptions::default()).overused > 0;
    let overused = [280, 348, 521].iter().any(is_overused) || (1..=200).any(|seed| is_overused(&seed));
    assert!(overused, "nobody was ended for having more than its lease");
}

/// Worlds in which hours of runs once found a rule broken.
#[test]
fn worlds_that_once_broke_a_rule_keep_it() {
    // All of them are from before room was made for whoever waits, and strangers were looked into.
    let usual = RunOptions { still: true, blind: true, ..RunOptions::default() };
    let blind = RunOptions { blind: true, ..RunOptions::default() };
    // A process on a card becomes its holder's, and opens the card to who wants it alone.
    check(5_055_540, usual);
    // The driver lists no card any more: what waiters were told is void.
    check(7_001_922, usual);
    // A parked holder came back with more than its tenant's quota had left.
    check(315, usual);
    // A holder waited for its cards because it had needed them at an earlier try.
    check(280, usual);
    // A look that began before a program's word was taken for proof of it.
    check(211, usual);
    // What parking takes was left out of what waiters were told.
    check(766, usual);
    check(1_083, usual);
    // A holder came back to more than it was seen to lack, and who was ahead waited longer.
    check(1_009_580, usual);
    // A fixed term was parked with nothing left of it, and came back for no time at all.
    check(1_009_876, usual);
    // A card was another's to claim once a parked holder had it again, and nobody looked.
    check(1_016_792, usual);
    // A waiter was told when a holder is gone that was leaving its card, and stayed.
    check(2_004_916, RunOptions { steps: 12_000, ..usual });
    // From here on room is made. An offer was made past somebody who waited behind one of its tenant's that
    // could not come back a moment ago.
    check(300_070, RunOptions { steps: 12_000, ..blind });
    // One holder was ended for three waiters at once.
    check(7, blind);
    // From here on who has more than its lease is told. One that chose to be ended was, for who stood no higher.
    check(104, RunOptions::default());
    // A waiter was told when it is served at the latest, without what a hook takes that was running already.
    check(52_471, RunOptions::default());
    // The same was told to whom the driver brings back only when a stranger is gone from its card.
    check(50_005_205, RunOptions::default());
    // A process began while the driver had its siblings, and took the room that another was brought back to.
    check(81_127_984, RunOptions::default());
    // A driver whose worker was lost was taken at the word it gave before, and after a restart nobody asked it again.
    check(81_127_564, RunOptions::default());
    // A driver that had not taken a holder in time took it later, when nobody asked for it any more.
    check(91_001_017, RunOptions::default());
    // A notice for others fell on the very end of a fixed term, and was taken for the term's own.
    check(97_000_234, RunOptions::default());
    // A program whose lease was over came to a card just before somebody else was brought back there.
    check(1_334, RunOptions::default());
    // A driver took one of a holder's processes long after it had said no to another, as none does.
    check(120_024_256, RunOptions::default());
    // A driver brought somebody back who was sent away by then, which was not on the disk yet.
    check(120_062_717, RunOptions::default());
    // A holder that found no room was sent away, said so once more, and was told to stay for that.
    check(120_083_834, RunOptions::default());
    // A driver brought back a process it had for another lease, though nobody told it to, as none does.
    check(150_173_563, RunOptions::default());
    // A stranger that was ending one lease got another, for the one card on which it was to be ended.
    check(150_165_967, RunOptions::default());
    // A card grew, and somebody who now waited for more than it might ever have held up its tenant's others.
    check(400_088_704, RunOptions::default());
    // A program that was parked for a smaller lease than it had bytes came back, to room that was another's by then.
    check(500_008_956, RunOptions::default());
    // A request that might not wait was refused and forgotten, and a grant that it had held up spoke of it.
    check(882, RunOptions { steps: 500, ..RunOptions::default() });
    // A lease outlived the program that died while it was parked, and its later release was recorded as that death.
    check(910_002_534, RunOptions::default());
    // A process of a waiting lease was another's for the moment of a refused request, and no lease's afterwards.
    check(920_000_856, RunOptions::default());
    check(920_001_477, RunOptions::default());
    check(920_004_670, RunOptions::default());
    // Leases may stay parked for a shorter time from now on, and one that an aside had kept stayed for the old time.
    check(930_003_786, RunOptions::default());
    // A parked lease got another program, which left altogether for a waiter when it had just said that it is parked.
    check(930_003_526, RunOptions::default());
    // A parked lease claimed its cards until others had left them, and the checker took it for one that claims nothing.
    check(940_004_639, RunOptions::default());
    check(940_001_516, RunOptions::default());
    check(940_005_351, RunOptions::default());
}

#[test]
fn a_long_run_keeps_the_rules() {
    check(7, RunOptions { steps: 60_000, ..RunOptions::default() });
}

#[test]
fn a_daemon_that_dies_at_each_journal_write_loses_nothing_it_told() {
    let deaths = [
        CommitFate::KilledBefore,
        CommitFate::KilledWithin,
        CommitFate::KilledAfter,
        CommitFate::PowerCut,
        CommitFate::Unsynced,
        CommitFate::Full,
    ];
    for seed in [301, 304, 308] {
        let options = RunOptions { steps: 300, blind: true, ..RunOptions::default() };
        let commits = check(seed, options).commits;
        for commit in 1..=commits.min(60) {
            for fate in deaths {
                check(seed, RunOptions { kill_at: Some((commit, fate)), ..options });
            }
        }
    }
}

/// In these holders leave by their hooks, by the library and by the driver, and are ended for others.
#[test]
fn a_daemon_that_dies_while_it_makes_room_parks_ends_and_loses_nobody_by_that() {
    let deaths = [CommitFate::KilledBefore, CommitFate::KilledWithin, CommitFate::KilledAfter, CommitFate::PowerCut];
    let options = RunOptions { steps: 700, blind: true, ..RunOptions::default() };
    for seed in worlds(3, options, |passed| passed.driven > 0) {
        let passed = check(seed, options);
        for commit in 1..=passed.commits {
            for fate in deaths {
                check(seed, RunOptions { kill_at: Some((commit, fate)), ..options });
            }
        }
    }
}

/// In these contexts leave cards, too, and come back.
#[test]
fn a_daemon_that_dies_while_contexts_leave_brings_all_of_them_back() {
    let deaths = [
        CommitFate::KilledBefore,
        CommitFate::KilledWithin,
        CommitFate::KilledAfter,
        CommitFate::PowerCut,
        CommitFate::Full,
    ];
    let options = RunOptions { steps: 500, ..RunOptions::default() };
    for seed in worlds(4, options, |passed| passed.deep > 1 && passed.surfaced > 0) {
        let passed = check(seed, options);
        for commit in 1..=passed.commits {
            for fate in deaths {
                check(seed, RunOptions { kill_at: Some((commit, fate)), ..options });
            }
        }
    }
}

/// In these strangers are warned, signalled and given leases.
#[test]
fn a_daemon_that_dies_while_it_ends_strangers_signals_nobody_by_that_and_nobody_else() {
    let deaths = [
        CommitFate::KilledBefore,
        CommitFate::KilledWithin,
        CommitFate::KilledAfter,
        CommitFate::PowerCut,
        CommitFate::Full,
    ];
    let options = RunOptions { steps: 500, ..RunOptions::default() };
    for seed in worlds(3, options, |passed| passed.struck > 3) {
        let passed = check(seed, options);
        for commit in 1..=passed.commits {
            for fate in deaths {
                check(seed, RunOptions { kill_at: Some((commit, fate)), ..options });
            }
        }
    }
}

/// In these strangers are parked in place of being ended, and others cannot be.
#[test]
fn a_daemon_that_dies_while_it_parks_strangers_tries_each_once_and_signals_nobody_by_that() {
    let deaths = [
        CommitFate::KilledBefore,
        CommitFate::KilledWithin,
        CommitFate::KilledAfter,
        CommitFate::PowerCut,
        CommitFate::Full,
    ];
    let options = RunOptions { steps: 500, ..RunOptions::default() };
    for seed in worlds(3, options, |passed| passed.spared > 0 && passed.unmoved > 0) {
        let passed = check(seed, options);
        for commit in 1..=passed.commits {
            for fate in deaths {
                check(seed, RunOptions { kill_at: Some((commit, fate)), ..options });
            }
        }
    }
}

/// Turns follow from what moves cost: nine tenths of the time are work.
#[test]
fn thirty_holders_that_take_turns_spend_a_tenth_of_the_time_moving() {
    for seed in 1..=3 {
        let passed = check(seed, RunOptions { steps: 40_000, crowd: true, ..RunOptions::default() });
        let (moving, elapsed) = (passed.moving.0, passed.elapsed.0);
        assert!(passed.resumed >= 30, "only {} came back in {elapsed} µs", passed.resumed);
        assert!(moving * 10 <= elapsed, "{moving} of {elapsed} µs were spent moving");
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    assert_eq!(check(11, RunOptions::default()), check(11, RunOptions::default()));
}

#[test]
#[cfg(feature = "mutants")]
fn every_planted_bug_is_caught() {
    let survivors: Vec<String> = Planted::all()
        .into_iter()
        .filter(|planted| hunt(*planted, 1..2_000, 2_000).is_none())
        .map(Planted::name)
        .collect();
    assert!(survivors.is_empty(), "not caught within 1,999 seeds: {survivors:?}");
}
