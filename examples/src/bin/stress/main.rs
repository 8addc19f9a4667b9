//! Uses every family of the driver API from many threads at random, and knows what must come out.
//!
//! Each thread has buffers of its own and remembers what must be in them; whatever it does, it looks
//! afterwards whether just that happened. So a mistake in the order of streams, in a copy of an odd
//! shape, in a graph or in the memory of another thread is told with its place.

mod copies;
mod graphs;
mod memory;
mod modules;
mod streams;
mod worker;

use anyhow::{Context as _, Result, anyhow};
use clap::Parser;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use sublet_examples::cuda::{CudaContext, Device};
use worker::{StressShared, StressWorker};

/// Uses a GPU in every way from many threads, and checks every result.
#[derive(Parser)]
struct StressOptions {
    /// How long.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// How many threads; each has about 16 MiB of the GPU at most.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// What is done is made from this.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// On this GPU.
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Only what belongs to families with this in their name.
    #[arg(long)]
    only: Option<String>,
}

/// One part of the API, and how to use it once.
struct ApiFamily {
    name: &'static str,
    /// Of so many turns in all it has this many.
    weight: usize,
    run: fn(&mut StressWorker<'_>) -> Result<()>,
}

const FAMILIES: [ApiFamily; 13] = [
    ApiFamily { name: "contexts", weight: 4, run: memory::contexts },
    ApiFamily { name: "memory", weight: 8, run: memory::memory },
    ApiFamily { name: "pools", weight: 6, run: memory::pools },
    ApiFamily { name: "virtual memory", weight: 4, run: memory::virtual_memory },
    ApiFamily { name: "copies", weight: 16, run: copies::copies },
    ApiFamily { name: "fills", weight: 8, run: copies::fills },
    ApiFamily { name: "streams and events", weight: 8, run: streams::streams },
    ApiFamily { name: "host functions", weight: 4, run: streams::host_functions },
    ApiFamily { name: "modules and libraries", weight: 1, run: modules::modules },
    ApiFamily { name: "launches", weight: 10, run: modules::launches },
    ApiFamily { name: "queries", weight: 4, run: modules::queries },
    ApiFamily { name: "captured graphs", weight: 5, run: graphs::captured },
    ApiFamily { name: "graphs by hand", weight: 5, run: graphs::by_hand },
];

/// One thread's work, until the time is over or a thread found something wrong.
fn run_families(worker: &mut StressWorker<'_>, options: &StressOptions) -> Result<()> {
    let is_wanted = |family: &ApiFamily| options.only.as_ref().is_none_or(|only| family.name.contains(only.as_str()));
    let places: Vec<usize> =
        FAMILIES.iter().enumerate().filter(|(_, family)| is_wanted(family)).map(|it| it.0).collect();
    let turns: Vec<usize> =
        places.into_iter().flat_map(|place| std::iter::repeat_n(place, FAMILIES[place].weight)).collect();
    if turns.is_empty() {
        return Err(anyhow!("no family has that name"));
    }
    // A real GPU needs a while to compile the kernels: that does not count.
    let (began, time) = (Instant::now(), Duration::from_secs_f64(options.seconds.max(0.0)));
    while began.elapsed() < time && !worker.shared.is_over.load(SeqCst) {
        let family = worker.random.one_of(&turns);
        let number: u64 = worker.counts.iter().sum();
        (FAMILIES[family].run)(worker).with_context(|| format!("turn {number}, {}", FAMILIES[family].name))?;
        worker.counts[family] += 1;
    }
    worker.verify_all().context("at the end")
}

fn run(options: &StressOptions) -> Result<()> {
    let device = Device::get(options.device)?;
    let context = CudaContext::primary(device)?;
    context.make_current()?;
    let shared = StressShared { device, context: &context, is_over: AtomicBool::new(false), spare: Mutex::new(()) };
    let one = |number: u32| -> Result<Vec<u64>> {
        context.make_current()?;
        let seed = options.seed.wrapping_mul(0x1_0000_0001).wrapping_add(number.into());
        let done = StressWorker::new(&shared, seed, FAMILIES.len()).and_then(|mut worker| {
            run_families(&mut worker, options)?;
            Ok(worker.counts)
        });
        if done.is_err() {
            shared.is_over.store(true, SeqCst);
        }
        done.with_context(|| format!("seed {}, thread {number}", options.seed))
    };
    let all: Vec<Result<Vec<u64>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.threads).map(|number| scope.spawn(move || one(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")))).collect()
    });
    let mut counts = vec![0; FAMILIES.len()];
    for own in all {
        counts.iter_mut().zip(own?).for_each(|(all, own)| *all += own);
    }
    println!("on {}, {} threads, seed {}", device.name()?, options.threads, options.seed);
    for (family, count) in FAMILIES.iter().zip(counts) {
        println!("{:>9} {}", count, family.name);
    }
    println!("ok");
    Ok(())
}

fn main() -> ExitCode {
    match run(&StressOptions::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stress: {error:#}");
            ExitCode::FAILURE
        }
    }
}
