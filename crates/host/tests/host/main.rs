//! Tests of this crate with real processes, a real worker and real files.
//!
//! This executable is also the worker that the tests need: started with the word
//! `worker` it becomes one, as the product does. So it has its own `main`.

mod activity;
mod audit;
mod driver_moves;
mod driver_worker;
mod gpus;
mod holders;
mod pidfd_registry;
mod program;
mod soft;
mod support;

use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("worker") => sublet_host::worker::run(&args[1..]),
        Some("odd") => audit::run(&args[1..]),
        Some("program") => program::run(&args[1..]),
        Some("spin") => loop {
            std::hint::spin_loop();
        },
        _ => {
            let tests = [
                gpus::TESTS,
                holders::TESTS,
                activity::TESTS,
                audit::TESTS,
                pidfd_registry::TESTS,
                driver_worker::TESTS,
                driver_moves::TESTS,
            ]
            .concat();
            let trial = |(name, test): (&'static str, fn())| {
                Trial::test(name, move || {
                    test();
                    Ok(())
                })
            };
            libtest_mimic::run(&Arguments::from_args(), tests.into_iter().map(trial).collect()).exit_code()
        }
    }
}
