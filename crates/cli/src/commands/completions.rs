//! `sublet completions`: completion scripts for shells.

use crate::args::Cli;
use crate::failure::Failure;
use crate::output;
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use sublet_wire::exit;

/// Print completions for a shell
#[derive(Args, Clone, Debug)]
pub struct CompletionsArgs {
    /// Which
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints a completion script.
pub fn run(args: &CompletionsArgs) -> Result<u8, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "sublet", &mut text);
    output::print(&String::from_utf8_lossy(&text))?;
    Ok(exit::OK)
}
