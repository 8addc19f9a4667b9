//! `sublet serve`: the daemon, in the foreground.

use crate::args::Globals;
use crate::daemon::{self, ServeOptions, TcpConfig};
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
    /// Which GPUs: `real`, soft ones such as `soft:2x24GiB`, or `scripted:1x24GiB` for tests [default: real
    /// ones; soft ones where no NVIDIA device is visible and none ever was]
    #[arg(long, value_name = "SPEC")]
    gpu: Option<String>,
    /// Its configuration file [default: ~/.config/sublet/sublet.toml unless it runs as root, else
    /// /etc/sublet/sublet.toml; where there is none, everything is at its default]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Serve over TCP too, for callers with a token, such as on 127.0.0.1:7474
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// The certificate for TCP, PEM; needed beyond this host
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
}

/// Runs the daemon until it is told to stop.
pub fn run(globals: &Globals, args: &ServeArgs) -> Result<u8, Failure> {
    if globals.has_url() {
        return Err(Failure::usage("`--url` names a daemon elsewhere").hint("`--listen` says where this one serves"));
    }
    let state_dir = place::state_dir(args.state_dir.as_deref()).ok_or_else(no_home)?;
    let socket = place::own_socket(globals.socket());
    let tcp = TcpConfig {
        listen: args.listen.clone(),
        tls_cert: args.tls_cert.clone(),
        tls_key: args.tls_key.clone(),
        ..TcpConfig::default()
    };
    let config = args.config.clone().or_else(place::config);
    daemon::serve(ServeOptions { state_dir, socket, gpu: args.gpu.clone(), config, tcp })?;
    Ok(exit::OK)
}

/// The failure without a home directory for the state.
pub fn no_home() -> Failure {
    Failure::usage("there is no home directory for the state").hint("say where with `--state-dir`")
}
