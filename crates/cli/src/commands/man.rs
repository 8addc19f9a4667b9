//! `sublet man`: the manual pages, one file for each command.

use crate::args::Cli;
use crate::failure::Failure;
use clap::{Args, CommandFactory};
use std::path::PathBuf;
use sublet_wire::exit;

/// Write the manual pages into a directory
#[derive(Args, Clone, Debug)]
pub struct ManArgs {
    /// An existing directory
    dir: PathBuf,
}

/// Writes the manual pages.
pub fn run(args: &ManArgs) -> Result<u8, Failure> {
    clap_mangen::generate_to(Cli::command(), &args.dir)
        .map_err(|error| Failure::new(exit::FAILURE, format!("{} cannot be written: {error}", args.dir.display())))?;
    Ok(exit::OK)
}
