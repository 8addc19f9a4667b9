//! `sublet park`, `sublet resume`: move a lease's VRAM to host memory, and back.

use crate::args::{Globals, LeaseName};
use crate::client::Client;
use crate::completion;
use crate::failure::Failure;
use crate::output;
use clap::Args;
use std::thread;
use std::time::{Duration, Instant};
use sublet_wire::{Lease, LeaseState, exit, size};

/// How long to wait for a park; the daemon gives it up by then.
const PARK_TIMEOUT: Duration = Duration::from_secs(60);
/// The time between two reads of the lease.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Move a lease's VRAM to host memory; its programs stay alive
///
/// A program that uses the GPU meanwhile blocks in its CUDA call
#[derive(Args, Clone, Debug)]
pub struct ParkArgs {
    /// The id of the lease, such as L7, or its name
    #[arg(value_name = "LEASE", add = completion::active_lease())]
    lease: LeaseName,
}

/// Bring a parked lease back, through the queue if it must wait
#[derive(Args, Clone, Debug)]
pub struct ResumeArgs {
    /// The id of the lease, such as L7, or its name
    #[arg(value_name = "LEASE", add = completion::parked_lease())]
    lease: LeaseName,
    /// Request the GPUs without waiting for them
    #[arg(long)]
    no_wait: bool,
}

/// Parks a lease, and waits until it is parked.
pub fn park(globals: &Globals, args: &ParkArgs) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    let id = client.id_of(&args.lease)?;
    let mut lease = client.command(&id, "park")?;
    let (until, on_gpus_before) = (Instant::now() + PARK_TIMEOUT, lease.on_gpus_unix_s);
    // A park that failed resumes the lease, too: only what it is afterwards tells the two apart.
    while matches!(lease.state, LeaseState::Parking | LeaseState::Resuming) && Instant::now() < until {
        thread::sleep(POLL_INTERVAL);
        lease = client.get(&format!("/v1/leases/{id}"))?;
    }
    match lease.state {
        LeaseState::Parked => {
            let booked = lease.parked.as_ref().map_or(0, |parked| parked.booked_bytes);
            let text = format!("{} is parked: {} of host memory are booked for it\n", lease.id, size::show(booked));
            show(globals, &lease, &text)
        }
        LeaseState::Ending | LeaseState::Ended => Err(ended(&lease)),
        LeaseState::Resuming => {
            let text = format!("{} is being resumed: `sublet explain {0}` tells how far it is\n", lease.id);
            show(globals, &lease, &text)
        }
        _ if resumed_meanwhile(lease.on_gpus_unix_s, on_gpus_before) => {
            let text = format!("{} was parked, and is back already, because its program used the GPU\n", lease.id);
            show(globals, &lease, &text)
        }
        _ => {
            let why = lease.not_parkable.as_deref().unwrap_or("it did not leave its GPUs in time");
            Err(Failure::new(exit::FAILURE, format!("{} was not parked: {why}", lease.id))
                .hint(format!("`sublet audit --lease {}` tells what happened", lease.id)))
        }
    }
}

/// Resumes a lease.
pub fn resume(globals: &Globals, args: &ResumeArgs) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    let id = client.id_of(&args.lease)?;
    let mut lease = client.command(&id, "resume")?;
    let mut told = None;
    while lease.state != LeaseState::Active && !args.no_wait {
        if matches!(lease.state, LeaseState::Ending | LeaseState::Ended) {
            return Err(ended(&lease));
        }
        let why = lease.waiting.as_ref().map(|waiting| waiting.why.clone());
        if why.is_some() && why != told {
            eprintln!("{} waits for its GPUs: {}", lease.id, why.as_deref().unwrap_or_default());
            told = why;
        }
        thread::sleep(POLL_INTERVAL);
        lease = client.get(&format!("/v1/leases/{id}"))?;
    }
    let text = match lease.state {
        LeaseState::Active => format!("{} is back on its GPUs\n", lease.id),
        _ => format!("{} waits for its GPUs\n", lease.id),
    };
    show(globals, &lease, &text)
}

/// True if the time since which the lease is on its GPUs changed. Differences below 10 ms come from the clock.
fn resumed_meanwhile(now: Option<f64>, before: Option<f64>) -> bool {
    now.zip(before).is_some_and(|(now, before)| (now - before).abs() > 0.01)
}

fn show(globals: &Globals, lease: &Lease, text: &str) -> Result<u8, Failure> {
    if globals.json {
        output::json(lease)?;
    } else {
        output::print(text)?;
    }
    Ok(exit::OK)
}

fn ended(lease: &Lease) -> Failure {
    let sentence = lease.ended.as_ref().map_or_else(|| format!("{} ended", lease.id), |ended| ended.sentence.clone());
    Failure::new(exit::LEASE_LOST, sentence)
}
