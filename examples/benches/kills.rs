//! Two processes on a soft GPU, one killed at random many times: no byte of the GPU is lost.
//!
//! One process holds memory all the while and checks that it stays as it was written. The other is
//! one of the examples, killed at a random moment: before it is on the GPU, while it allocates
//! memory, in the middle of kernels, graphs and mappings, or while it is parked. After every kill the
//! GPU must have exactly the memory of the first process. In between and at the end, a process allocates
//! all that is free, to the last granule.

#[path = "../tests/soft/mod.rs"]
mod soft;

use clap::Parser;
use soft::{Child, Soft, succeeded, wait_until};
use std::process::Stdio;
use std::time::{Duration, Instant};
use sublet_examples::random::SeededRandom;
use sublet_softgpu::state::{CONTEXT_BYTES, IDLE_BYTES};

const HOLD: &str = env!("CARGO_BIN_EXE_sublet-example-hold");
const MLP: &str = env!("CARGO_BIN_EXE_sublet-example-mlp");
const STRESS: &str = env!("CARGO_BIN_EXE_sublet-example-stress");

/// The programs that are killed: name, program, arguments.
const VICTIMS: [(&str, &str, &[&str]); 3] = [
    ("hold", HOLD, &["160MiB", "--chunk", "3MiB"]),
    ("mlp", MLP, &["--steps", "1000000"]),
    ("stress", STRESS, &["--seconds", "600", "--threads", "4", "--seed"]),
];
/// The GPU, and what the first process has of it.
const SOFT_GPU: &str = "1x2GiB";
const GPU_BYTES: u64 = 2 << 30;
const HOLDER_SIZE: &str = "64MiB";
const HOLDER_BYTES: u64 = 64 << 20;
/// The longest life of a program before it is killed.
const LIFE_MS: usize = 250;
/// Kills after which all that is free is allocated once.
const FULL_EVERY: u64 = 100;

/// Kills programs on a soft GPU at random, and looks whether anything of it is lost.
#[derive(Parser)]
struct KillsOptions {
    /// How many.
    #[arg(long, default_value_t = 1000)]
    kills: u64,
    /// The moments are made from this.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// What cargo says to a benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

/// How often a program was killed: in all, with a context, with memory beyond it, while it was parked.
#[derive(Default)]
struct KillCounts {
    all: u64,
    with_context: u64,
    with_memory: u64,
    parked: u64,
}

/// Takes all that is free and gives it back.
fn allocate_all_free(soft: &Soft) {
    let free = GPU_BYTES - soft.state.used(0) - CONTEXT_BYTES;
    let said = soft.run(HOLD, &[&free.to_string(), "--chunk", "2MiB", "--seconds", "0"]);
    assert!(said.ends_with(&format!("all {free} bytes as written\n")), "{said}");
    let beyond = (free + 1).to_string();
    let too_much = soft.program(HOLD, &[&beyond, "--chunk", "2MiB", "--seconds", "0"]).output();
    assert_eq!(too_much.expect("the program is there").status.code(), Some(1), "one byte more does not fit");
}

fn main() {
    let options = KillsOptions::parse();
    let (soft, mut random, began) = (Soft::new(SOFT_GPU), SeededRandom::new(options.seed), Instant::now());
    let first = soft.program(HOLD, &[HOLDER_SIZE]).stdout(Stdio::piped()).spawn().expect("the program is there");
    let base = IDLE_BYTES + CONTEXT_BYTES + HOLDER_BYTES;
    wait_until("the first process has its memory", || soft.state.used(0) == base);
    let mut tallies: [KillCounts; VICTIMS.len()] = Default::default();
    let mut most = 0;
    for number in 1..=options.kills {
        let which = random.within(0, VICTIMS.len() - 1);
        let (name, program, arguments) = VICTIMS[which];
        let mut command = soft.program(program, arguments);
        if name == "stress" {
            command.arg(number.to_string());
        }
        let mut victim =
            Child(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program is there"));
        std::thread::sleep(Duration::from_millis(random.within(0, LIFE_MS) as u64));
        let pid = victim.0.id();
        let is_parked = random.one_in(6)
            && soft.state.checkpoint_lock(pid, Some(Duration::from_secs(5))).is_ok()
            && (random.one_in(2) || soft.state.checkpoint_save(pid).is_ok());
        let used = soft.state.process(pid).map_or(0, |process| process.used(0));
        most = used.max(most);
        let tally = &mut tallies[which];
        tally.all += 1;
        tally.with_context += u64::from(used >= CONTEXT_BYTES);
        tally.with_memory += u64::from(used > CONTEXT_BYTES);
        tally.parked += u64::from(is_parked);
        victim.kill();
        assert_eq!(soft.state.used(0), base, "after kill {number}, of {name}: bytes of the card");
        assert_eq!(soft.state.processes().count(), 1, "after kill {number}, of {name}: processes on the card");
        if number % FULL_EVERY == 0 {
            allocate_all_free(&soft);
            println!("{number} kills, nothing lost");
        }
    }
    let ended = std::process::Command::new("kill").args(["-TERM", &first.id().to_string()]).status();
    assert!(ended.expect("kill is there").success());
    let said = succeeded(&first.wait_with_output().expect("an own child"));
    assert!(said.ends_with(&format!("all {HOLDER_BYTES} bytes as written\n")), "{said}");
    assert!(soft.is_idle(), "something is left when everybody is gone");
    allocate_all_free(&soft);

    println!("\n| program | killed | with a context | with memory | locked or parked |\n|---|---|---|---|---|");
    for ((name, ..), tally) in VICTIMS.iter().zip(&tallies) {
        println!("| {name} | {} | {} | {} | {} |", tally.all, tally.with_context, tally.with_memory, tally.parked);
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("\n{} kills in {seconds:.0} s, seed {}: 0 bytes lost;", options.kills, options.seed);
    println!("the most that one had when it was killed: {} MiB", most >> 20);
}
