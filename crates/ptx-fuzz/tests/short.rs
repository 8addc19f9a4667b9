//! The short form of the campaign: the same seeds every time, a few seconds.

use sublet_ptx_fuzz::arena::GuardedArena;
use sublet_ptx_fuzz::check::{SLOTS, check};
use sublet_ptx_fuzz::deadlines::Deadlines;
use sublet_ptx_fuzz::text::{Corpus, of_seed};

const SEEDS: u64 = 600;

#[test]
fn the_first_seeds_break_no_rule() {
    let (corpus, mut arena, deadlines) = (Corpus::new(), GuardedArena::new(SLOTS).unwrap(), Deadlines::start());
    let (mut parsed, mut launches) = (0, 0);
    for seed in 0..SEEDS {
        let text = of_seed(&corpus, seed);
        let seen =
            check(&text, seed, &mut arena, &deadlines).unwrap_or_else(|why| panic!("seed {seed}: {why}\n{text}"));
        parsed += u64::from(seen.parsed);
        launches += seen.launches;
    }
    // A grammar that makes nothing readable would test nothing.
    assert!(parsed > SEEDS / 3 && launches > SEEDS, "{parsed} of {SEEDS} were read, {launches} launches");
}

#[test]
fn a_seed_is_the_same_text_every_time() {
    let corpus = Corpus::new();
    for seed in 0..200 {
        assert_eq!(of_seed(&corpus, seed), of_seed(&Corpus::new(), seed));
    }
}
