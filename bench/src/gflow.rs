//! gflow, the nearest peer with a command line: its daemon on a loopback port, its home in a state folder.

use crate::rig::BenchRig;
use crate::service::{self, ServiceProcess};
use anyhow::{Context, Result};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A running `gflowd`.
pub struct Gflow {
    folder: PathBuf,
    bin: PathBuf,
    _daemon: ServiceProcess,
}

impl Gflow {
    /// Starts the daemon in the foreground on a free port and waits until it listens.
    pub fn start(rig: &BenchRig) -> Result<Gflow> {
        let (folder, bin) = (rig.fresh_folder("gflow")?, service::venv()?.join("bin"));
        // A port that is free now; on the default port the user's own gflow could be listening.
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        std::fs::create_dir_all(folder.join("config/gflow"))?;
        let config = format!("[daemon]\nhost = \"127.0.0.1\"\nport = {port}\n");
        std::fs::write(folder.join("config/gflow/gflow.toml"), config)?;
        let command = in_folder(&folder, &bin.join("gflowd"));
        let mut daemon = ServiceProcess::spawn(command, &folder, folder.join("unused"))?;
        daemon
            .try_until(&folder, Duration::from_millis(10), |_| TcpStream::connect(("127.0.0.1", port)).is_ok())
            .context("gflowd did not start")?;
        Ok(Gflow { folder, bin, _daemon: daemon })
    }

    /// The call that is nearest to a request for a lease: a share of one GPU, not before tomorrow, so
    /// that nothing is started while calls are timed.
    pub fn submit(&self) -> Command {
        let mut command = in_folder(&self.folder, &self.bin.join("gbatch"));
        command.args(["--gpus", "1", "--gpu-memory", "1G", "--shared", "--begin", "now+12h", "true"]);
        command
    }
}

/// A command of gflow's that sees no files but those in `folder`.
fn in_folder(folder: &Path, program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("HOME", folder)
        .env("XDG_CONFIG_HOME", folder.join("config"))
        .env("XDG_DATA_HOME", folder.join("data"))
        .env("XDG_STATE_HOME", folder.join("state"))
        .env("XDG_RUNTIME_DIR", folder)
        .env("TMUX_TMPDIR", folder)
        .current_dir(folder);
    command
}
