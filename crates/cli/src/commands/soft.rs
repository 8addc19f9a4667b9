//! `sublet soft`: GPUs simulated in software, for machines without a GPU and for deliberate faults.
//!
//! Every subcommand uses the same GPUs: those of the daemon behind `--socket`; or those of `SUBLET_SOFT_STATE`, for a
//! program that is on soft GPUs already; or those of the usual daemon.

mod env;
mod fault;
mod status;

use crate::args::Globals;
use crate::client::Client;
use crate::failure::Failure;
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use sublet_softgpu::{SoftGpuState, state};
use sublet_wire::{Gpus, exit};

/// Use soft GPUs: GPUs in software, for trying out and tests
///
/// Programs of CUDA's driver API run on them
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct SoftArgs {
    #[command(subcommand)]
    what: SoftAction,
}

const AFTER_HELP: &str = "\
PyTorch and whatever else needs NVIDIA's runtime library does not run on soft
GPUs; programs that load libcuda.so.1 themselves do. `sublet serve --gpu
soft:2x24GiB` leases them to many.

Examples:
  sublet soft env -- ./program     on the daemon's soft GPUs, or on private ones
  sublet soft fault 1 nvml lost    GPU 1 falls off its bus
  sublet soft fault clear          everything works again";

/// What to do with soft GPUs.
#[derive(Subcommand, Clone, Debug)]
enum SoftAction {
    Env(env::EnvArgs),
    Fault(fault::FaultArgs),
    Status(status::StatusArgs),
}

/// Runs `sublet soft`.
pub fn run(globals: &Globals, args: &SoftArgs) -> Result<u8, Failure> {
    match &args.what {
        SoftAction::Env(args) => env::run(globals, args),
        SoftAction::Fault(args) => fault::run(globals, args),
        SoftAction::Status(_) => status::run(globals),
    }
}

/// The result of a search for soft GPUs.
enum SoftGpuSearch {
    /// They are in this file.
    File(PathBuf),
    /// The daemon there has GPUs of another kind.
    OtherKind { place: String, kind: String },
    /// No daemon answers.
    Nobody(Failure),
}

fn find(globals: &Globals) -> Result<SoftGpuSearch, Failure> {
    globals.must_be_local("soft GPUs are used on the host they are on", "run this there")?;
    let named = std::env::var_os(state::ENV).filter(|file| !file.is_empty() && globals.socket().is_none());
    if let Some(file) = named {
        return Ok(SoftGpuSearch::File(file.into()));
    }
    let client = match Client::open(globals) {
        Ok(client) => client,
        Err(failure) if failure.exit() == exit::NO_DAEMON => return Ok(SoftGpuSearch::Nobody(failure)),
        Err(failure) => return Err(failure),
    };
    let Gpus { kind, soft_state, .. } = client.get("/v1/gpus")?;
    Ok(match soft_state {
        Some(file) => SoftGpuSearch::File(file.into()),
        None => SoftGpuSearch::OtherKind { place: client.place(), kind },
    })
}

/// The hint if there are no soft GPUs.
const START: &str =
    "start some with `sublet serve --gpu soft:2x24GiB`; `sublet soft env -- COMMAND` makes private ones";

/// Opens the soft GPUs that the command is about.
fn open(globals: &Globals) -> Result<SoftGpuState, Failure> {
    match find(globals)? {
        SoftGpuSearch::File(file) => open_file(&file),
        SoftGpuSearch::OtherKind { place, kind } => {
            Err(Failure::usage(format!("the GPUs of the daemon at {place} are {kind}, not soft")).hint(START))
        }
        SoftGpuSearch::Nobody(failure) => {
            Err(Failure::new(failure.exit(), format!("there are no soft GPUs: {}", failure.message())).hint(START))
        }
    }
}

fn open_file(file: &Path) -> Result<SoftGpuState, Failure> {
    SoftGpuState::open(file).map_err(|error| Failure::new(exit::FAILURE, crate::daemon::chain(&error)).hint(START))
}
