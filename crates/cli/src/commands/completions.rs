//! `sublet completions`: the lines that turn on completion in a shell. What is completed: `crate::completion`.

use crate::completion;
use crate::failure::Failure;
use crate::output;
use clap::Args;
use clap_complete::Shell;
use sublet_wire::exit;

/// Print completions for a shell
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct CompletionsArgs {
    /// Which
    #[arg(value_enum)]
    shell: Shell,
}

const AFTER_HELP: &str = "\
They complete commands and flags, your leases, GPUs, checkpoints, and
commands after `sublet run --`. The package installs them for bash, zsh and
fish. From a checkout, for one shell:
  source <(sublet completions bash)
  source <(sublet completions zsh)
  sublet completions fish | source";

/// Prints a completion script.
pub fn run(args: &CompletionsArgs) -> Result<u8, Failure> {
    let script = completion::script(args.shell);
    let script = script.ok_or_else(|| Failure::usage(format!("there are no completions for {}", args.shell)))?;
    output::print(&script)?;
    Ok(exit::OK)
}
