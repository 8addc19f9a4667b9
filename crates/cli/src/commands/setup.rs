//! `sublet setup`: installs or removes what a daemon for all users of a host needs.
//!
//! Each step checks first: what exists stays, what is missing is made, and a line says which. So a second run changes
//! nothing. Files that this program did not write are neither replaced nor removed.
//!
//! Absent: starting the daemon. The last lines say what to type for that.

mod group;
mod steps;
mod unit;

use crate::args::Globals;
use crate::client;
use crate::failure::{Failure, tell_hint};
use crate::output;
use crate::place;
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use steps::{SetupStep, Steps};
use sublet_wire::exit;

/// The configuration that is written if there is none: every key as a comment, at its default.
const SAMPLE: &str = include_str!("../../../../dist/sublet.toml");

/// Prepare this host for a daemon that serves every user (root)
///
/// It makes directories, configuration, systemd unit and group
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct SetupArgs {
    /// Take away what was put in place; the journal and the configuration stay
    #[arg(long)]
    remove: bool,
    /// With --remove: the journal and the configuration too
    #[arg(long, requires = "remove")]
    purge: bool,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Where the file system begins, for tests
    #[arg(long, value_name = "DIR", hide = true)]
    root: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Every line says what was done, or that it was done already; a second run changes
nothing. Without systemd the unit is written all the same, and the last line
says how to start the daemon.

The group `sublet` has no rights until /etc/sublet/sublet.toml names it: with
`operators` its members are operators, with `socket_group` only its members may
use the daemon. By default every local user may.";

/// What `--json` prints.
#[derive(Serialize)]
struct SetupJson<'a> {
    dry_run: bool,
    steps: &'a [SetupStep],
    next: &'a [String],
}

/// Runs `sublet setup`.
pub fn run(globals: &Globals, args: &SetupArgs) -> Result<u8, Failure> {
    globals.must_be_local("a daemon is set up on its own host", "leave `--url` out and unset SUBLET_URL")?;
    if args.root.is_none() && !args.dry_run && !rustix::process::geteuid().is_root() {
        return Err(Failure::new(exit::DENIED, "setup changes /etc and /var, and you are not root")
            .hint("`sudo sublet setup`; `--dry-run` only says what would be done"));
    }
    let mut steps = Steps::new(args.root.clone(), args.dry_run);
    // The steps before a failure are printed, too.
    let done = if args.remove { remove(&mut steps, args.purge) } else { put_in_place(&mut steps) };
    let next = done.as_ref().map_or(&[][..], Vec::as_slice);
    if globals.json {
        output::json(&SetupJson { dry_run: args.dry_run, steps: steps.lines(), next })?;
    } else {
        let text: String = steps.lines().iter().map(|line| format!("{:<12} {}\n", line.did, line.what)).collect();
        output::print(&text)?;
        next.iter().for_each(|next| tell_hint(next));
    }
    done.map(|_| exit::OK)
}

/// Installs everything. Returns what is left to do.
fn put_in_place(steps: &mut Steps) -> Result<Vec<String>, Failure> {
    let sublet = unit::program(steps)?;
    group::make(steps)?;
    steps.directory(place::system_config_dir(), 0o755)?;
    steps.directory(Path::new(place::SYSTEM_STATE), 0o700)?;
    steps.file(Path::new(place::SYSTEM_CONFIG), SAMPLE, "every key at its default")?;
    let is_new = unit::write(steps, &sublet)?;
    let has_systemd = systemd_runs(steps);
    if has_systemd && is_new {
        systemctl(steps, &["daemon-reload"])?;
    }
    let start = match has_systemd {
        true => "`systemctl enable --now sublet` starts the daemon, now and at every boot".to_owned(),
        false => format!(
            "systemd does not run here: `setsid {} serve >> /var/log/sublet.log 2>&1 &` starts the daemon",
            sublet.display()
        ),
    };
    Ok(vec![start, "then `sublet doctor` says what works on this machine".to_owned()])
}

fn remove(steps: &mut Steps, purge: bool) -> Result<Vec<String>, Failure> {
    if systemd_runs(steps) && unit::is_installed(steps) {
        systemctl(steps, &["disable", "--now", unit::NAME])?;
    }
    let mut next = Vec::new();
    if let Some(pid) = steps.host_only(|| client::peer(Path::new(place::SYSTEM_SOCKET))).map(|(pid, _)| pid) {
        let stop = format!("`kill {pid}` stops the daemon; its leases go on, and a later start finds them");
        if purge && !steps.is_dry_run() {
            return Err(
                Failure::new(exit::FAILURE, format!("process {pid} still serves, and needs its journal")).hint(stop)
            );
        }
        next.push(stop);
    }
    if unit::remove(steps)? && systemd_runs(steps) {
        systemctl(steps, &["daemon-reload"])?;
    }
    if purge {
        steps.remove_all(place::system_config_dir())?;
        steps.remove_all(Path::new(place::SYSTEM_STATE))?;
    } else {
        steps.keep(place::system_config_dir(), "the configuration; `--purge` removes it");
        steps.keep(Path::new(place::SYSTEM_STATE), "the journal; `--purge` removes it");
    }
    if next.is_empty() {
        steps.remove_all(Path::new(place::SYSTEM_RUN))?;
    }
    group::remove(steps)?;
    if steps.lines().is_empty() {
        steps.say("nothing", "is set up here");
    }
    Ok(next)
}

fn systemd_runs(steps: &Steps) -> bool {
    // The test that sd_booted(3) uses.
    steps.host_only(|| Path::new("/run/systemd/system").is_dir().then_some(())).is_some()
}

fn systemctl(steps: &mut Steps, arguments: &[&str]) -> Result<(), Failure> {
    let shown = format!("systemctl {}", arguments.join(" "));
    steps.act("ran", &shown, || {
        let output = Command::new("systemctl").args(arguments).stdin(Stdio::null()).output();
        let output = output.map_err(|error| Failure::new(exit::FAILURE, format!("`{shown}` cannot run: {error}")))?;
        match output.status.success() {
            true => Ok(()),
            false => {
                let said = String::from_utf8_lossy(&output.stderr);
                Err(Failure::new(exit::FAILURE, format!("`{shown}` failed: {}", said.trim())))
            }
        }
    })
}
