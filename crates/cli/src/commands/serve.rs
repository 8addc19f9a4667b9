//! `sublet serve`: the daemon, in the foreground.

use crate::args::Globals;
use crate::daemon;
use crate::failure::Failure;
use crate::place;
use clap::Args;
use std::path::PathBuf;
use sublet_wire::exit;

/// Start the daemon, in the foreground
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Where its journal is [default: /var/lib/sublet for root, else ~/.local/state/sublet]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Which cards: `real`, or scripted ones such as `scripted:1x24GiB`
    #[arg(long, value_name = "SPEC")]
    gpu: Option<String>,
    /// Its configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Serves until it is told to stop.
pub fn run(globals: &Globals, args: &ServeArgs) -> Result<u8, Failure> {
    let state_dir = place::state_dir(args.state_dir.as_deref()).ok_or_else(no_home)?;
    let socket = place::own_socket(globals.socket());
    daemon::serve(state_dir, socket, args.gpu.clone(), args.config.clone())?;
    Ok(exit::OK)
}

/// There is no place for the state.
pub fn no_home() -> Failure {
    Failure::usage("there is no home directory for the state").hint("say where with `--state-dir`")
}
