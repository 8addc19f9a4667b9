//! `cargo run -p cookbook-preemptible-training -- 100`: trains up to step 100, and goes on there the next time.

use cookbook_preemptible_training::{acquire_preemptible_training_lease, open_job, train};
use std::process::ExitCode;
use sublet::{GrafosError, checkpoint_store};

const VRAM: u64 = 1 << 30;

fn run(steps: u64) -> Result<(), GrafosError> {
    let job = open_job(&checkpoint_store()?, "cookbook", 10)?;
    let progress = train(&job, steps, vec![0; 16], || {
        let lease = acquire_preemptible_training_lease(VRAM, 120)?;
        eprintln!("on lease {}", lease.lease_id());
        Ok(lease)
    })?;
    let state = progress.state.as_ref();
    println!("step {} is saved as version {}: {state:?}", progress.durable_step, progress.version);
    Ok(())
}

fn main() -> ExitCode {
    let steps = std::env::args().nth(1).and_then(|steps| steps.parse().ok()).unwrap_or(100);
    match run(steps) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}\nhint: {}", error.remedy());
            ExitCode::FAILURE
        }
    }
}
