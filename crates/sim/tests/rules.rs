//! Short runs for every commit; `cargo xtask sim --minutes 60` is the long one.

use sublet_sim::daemon::CommitFate;
#[cfg(feature = "mutants")]
use sublet_sim::mutants::{Planted, hunt};
use sublet_sim::run::{RunCounts, RunOptions, run, story_of};

fn check(seed: u64, options: RunOptions) -> RunCounts {
    run(seed, options).unwrap_or_else(|failure| {
        let story = story_of(seed, options, 40).join("\n");
        panic!("{story}\n{failure}\nhint: {options:?}");
    })
}

/// The first `count` seeds whose worlds show what a test is about. Every change of core or of the worlds gives other
/// worlds for the same seeds, so the seeds are searched for.
fn worlds(count: usize, options: RunOptions, shows: impl Fn(&RunCounts) -> bool) -> Vec<u64> {
    let found: Vec<u64> = (1..5_000).filter(|seed| shows(&check(*seed, options))).take(count).collect();
    assert_eq!(found.len(), count, "too few worlds show it");
    found
}

#[test]
fn two_hundred_seeds_keep_the_rules() {
    let sum = (1..=200).map(|seed| check(seed, RunOptions::default())).fold(RunCounts::default(), RunCounts::sum_with);
    assert!(sum.events >= 200 * 2_000, "{sum}");
    assert!(sum.bounds_kept >= 10, "{sum}");
    assert!(sum.parked >= 300 && sum.resumed >= 150, "{sum}");
    assert!(sum.preempted >= 250 && sum.ended >= 30, "{sum}");
    assert!(sum.parked_by_hook >= 100 && sum.parked_by_driver >= 10, "{sum}");
    assert!(sum.warned >= 1_000 && sum.signalled >= 400, "{sum}");
    assert!(sum.adopted >= 300 && sum.survived >= 5, "{sum}");
    assert!(sum.unleased_parked >= 3 && sum.unleased_not_parked >= 100, "{sum}");
    assert!(sum.overuse_told >= 200 && sum.leases_grown >= 20, "{sum}");
    assert!(sum.off_lease_found >= 50, "{sum}");
    assert!(sum.contexts_taken >= 20 && sum.contexts_restored >= 8, "{sum}");
    // Such worlds are rare.
    let is_overused = |seed: &u64| check(*seed, RunOptions::default()).ended_for_overuse > 0;
    let overused = [280, 348, 521].iter().any(is_overused) || (1..=200).any(|seed| is_overused(&seed));
    assert!(overused, "no lease was ended for overuse");
}

/// Worlds in which long runs once found a broken rule.
#[test]
fn worlds_that_once_broke_a_rule_keep_all_rules() {
    // These worlds are from before preemption and before audits of unleased processes.
    let usual = RunOptions { without_preemption: true, without_enforcement: true, ..RunOptions::default() };
    let unaudited = RunOptions { without_enforcement: true, ..RunOptions::default() };
    // A process on a GPU was bound to a lease, and opened the GPU to a lease that needs it alone.
    check(5_055_540, usual);
    // The driver lists no GPU any more: the bounds that waiters were told are void.
    check(7_001_922, usual);
    // A parked lease was resumed with more than its tenant's quota had left.
    check(315, usual);
    // A lease waited for its GPUs because it had needed them at an earlier try.
    check(280, usual);
    // A reading that began before a program's report was taken as a proof of it.
    check(211, usual);
    // The time that parking takes was left out of bounds.
    check(766, usual);
    check(1_083, usual);
    // A lease was resumed with more than it was seen to lack, and a waiter ahead of it waited longer.
    check(1_009_580, usual);
    // A fixed term was parked with nothing left of it, and was resumed for no time at all.
    check(1_009_876, usual);
    // A GPU could be claimed by another lease once a parked one was resumed, and no reading followed.
    check(1_016_792, usual);
    // A bound counted on a lease that was parking, and stayed.
    check(2_004_916, RunOptions { steps: 12_000, ..usual });
    // From here on leases are preempted. An offer was made past a waiter behind one of its tenant's that could not be
    // resumed a moment ago.
    check(300_070, RunOptions { steps: 12_000, ..unaudited });
    // One lease was ended for three waiters at once.
    check(7, unaudited);
    // From here on exceeded leases are told. One that chose to be ended was, for a waiter that is not more urgent.
    check(104, RunOptions::default());
    // A bound left out the time of a hook that was running already.
    check(52_471, RunOptions::default());
    // A bound was told for a lease that the driver resumes only when an unleased process has left its GPU.
    check(50_005_205, RunOptions::default());
    // A process began while the driver had its siblings, and took the room to which another lease was brought back.
    check(81_127_984, RunOptions::default());
    // An old report of a driver whose worker was lost was believed, and after a restart it was not asked again.
    check(81_127_564, RunOptions::default());
    // A driver that had not taken a lease in time took it later, when that was not wanted any more.
    check(91_001_017, RunOptions::default());
    // A notice for a waiter fell on the very end of a fixed term, and was taken for the term's own.
    check(97_000_234, RunOptions::default());
    // A program whose lease was over came to a GPU just before another lease was brought back there.
    check(1_334, RunOptions::default());
    // The simulated driver took a process of a lease long after it had refused another, as no driver does.
    check(120_024_256, RunOptions::default());
    // A driver brought a lease back that was parked again by then, which was not on the disk yet.
    check(120_062_717, RunOptions::default());
    // A lease that found no room was parked again, reported that once more, and was told to stay for it.
    check(120_083_834, RunOptions::default());
    // The simulated driver brought back a process it had for another lease without an order, as no driver does.
    check(150_173_563, RunOptions::default());
    // An unleased process whose lease was ending got another lease, for the GPU on which it was to be ended.
    check(150_165_967, RunOptions::default());
    // A GPU grew, and a waiter that now waited for more than it might ever have held up its tenant's others.
    check(400_088_704, RunOptions::default());
    // A program that was parked for a smaller lease than it had bytes was resumed into room of another lease.
    check(500_008_956, RunOptions::default());
    // A request that might not wait was refused and forgotten, and a grant that it had held up spoke of it.
    check(882, RunOptions { steps: 500, ..RunOptions::default() });
    // A lease survived the program that died while it was parked, and its later release was recorded as that death.
    check(910_002_534, RunOptions::default());
    // A process of a waiting lease was another's for the moment of a refused request, and no lease's afterwards.
    check(920_000_856, RunOptions::default());
    check(920_001_477, RunOptions::default());
    check(920_004_670, RunOptions::default());
    // The longest park was shortened, and a lease that an aside had kept stayed parked for the old time.
    check(930_003_786, RunOptions::default());
    // A parked lease got another program, whose contexts were moved for a waiter when it had just reported that it is
    // parked.
    check(930_003_526, RunOptions::default());
    // A parked lease claimed its GPUs until others had left them, and the checker took it for one that claims nothing.
    check(940_004_639, RunOptions::default());
    check(940_001_516, RunOptions::default());
    check(940_005_351, RunOptions::default());
}

#[test]
fn a_long_run_keeps_the_rules() {
    check(7, RunOptions { steps: 60_000, ..RunOptions::default() });
}

#[test]
fn no_answer_is_lost_when_the_daemon_dies_at_any_journal_write() {
    let deaths = [
        CommitFate::KilledBefore,
        CommitFate::KilledWithin,
        CommitFate::KilledAfter,
        CommitFate::PowerCut,
        CommitFate::Unsynced,
        CommitFate::Full,
    ];
    for seed in [301, 304, 308] {
        let options = RunOptions { steps: 300, without_enforcement: true, ..RunOptions::default() };
        let commits = check(seed, options).commits;
        for commit in 1..=commits.min(60) {
            for fate in deaths {
                check(seed, RunOptions { kill_at: Some((commit, fate)), ..options });
            }
        }
    }
}

/// In these worlds leases are parked by their hooks, by the shim and by the driver, and are ended for waiters.
#[test]
fn no_lease_is_parked_or_ended_by_a_death_of_the_daemon_during_a_preemption() {
    let deaths = [CommitFate::KilledBefore, CommitFate::KilledWithin, CommitFate::KilledAfter, CommitFate::PowerCut];
    let options = RunOptions { steps: 700, without_enforcement: true, ..RunOptions::default() };
    for seed in worlds(3, options, |passed| passed.parked_by_driver > 0) {
        let passed = check(seed, options);
        for commit in 1..=passed.commits {
            for fate in deaths {
                check(seed, RunOptions { kill_at: Some((commit, fate)), ..options });
            }
        }
    }
}

/// In these worlds contexts leave GPUs, too, and come back.
#[test]
fn all_contexts_are_restored_after_a_death_of_the_daemon_while_they_leave() {
    let deaths = [
        CommitFate::KilledBefore,
        CommitFate::KilledWithin,
        CommitFate::KilledAfter,
        CommitFate::PowerCut,
        CommitFate::Full,
    ];
    let options = RunOptions { steps: 500, ..RunOptions::default() };
    for seed in worlds(4, options, |passed| passed.contexts_taken > 1 && passed.contexts_restored > 0) {
        let passed = check(seed, options);
        for commit in 1..=passed.commits {
            for fate in deaths {
                check(seed, RunOptions { kill_at: Some((commit, fate)), ..options });
            }
        }
    }
}

/// In these worlds unleased processes are warned, signalled and adopted.
#[test]
fn no_other_process_is_signalled_after_a_death_of_the_daemon_during_enforcement() {
    let deaths = [
        CommitFate::KilledBefore,
        CommitFate::KilledWithin,
        CommitFate::KilledAfter,
        CommitFate::PowerCut,
        CommitFate::Full,
    ];
    let options = RunOptions { steps: 500, ..RunOptions::default() };
    for seed in worlds(3, options, |passed| passed.signalled > 3) {
        let passed = check(seed, options);
        for commit in 1..=passed.commits {
            for fate in deaths {
                check(seed, RunOptions { kill_at: Some((commit, fate)), ..options });
            }
        }
    }
}

/// In these worlds unleased processes are parked instead of ended, and others cannot be.
#[test]
fn unleased_processes_are_parked_once_after_a_death_of_the_daemon_meanwhile() {
    let deaths = [
        CommitFate::KilledBefore,
        CommitFate::KilledWithin,
        CommitFate::KilledAfter,
        CommitFate::PowerCut,
        CommitFate::Full,
    ];
    let options = RunOptions { steps: 500, ..RunOptions::default() };
    for seed in worlds(3, options, |passed| passed.unleased_parked > 0 && passed.unleased_not_parked > 0) {
        let passed = check(seed, options);
        for commit in 1..=passed.commits {
            for fate in deaths {
                check(seed, RunOptions { kill_at: Some((commit, fate)), ..options });
            }
        }
    }
}

/// Time slices follow from what moves cost: at most a tenth of the time is spent on moves.
#[test]
fn thirty_busy_leases_spend_at_most_a_tenth_of_the_time_moving() {
    for seed in 1..=3 {
        let passed = check(seed, RunOptions { steps: 40_000, crowd: true, ..RunOptions::default() });
        let (moving, elapsed) = (passed.moving.0, passed.elapsed.0);
        assert!(passed.resumed >= 30, "only {} were resumed in {elapsed} µs", passed.resumed);
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
