//! `sublet config check`: checks the daemon's configuration by the daemon's own code.

use crate::args::Globals;
use crate::client::Client;
use crate::daemon::{self, Finding};
use crate::failure::{Failure, tell_hint};
use crate::output;
use crate::place;
use crate::table::plain;
use clap::{Args, Subcommand};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use sublet_wire::{Gpus, exit};

/// Look at the daemon's configuration
#[derive(Args, Clone, Debug)]
pub struct ConfigArgs {
    #[command(subcommand)]
    what: ConfigAction,
}

/// What to do with the configuration.
#[derive(Subcommand, Clone, Debug)]
enum ConfigAction {
    Check(CheckArgs),
}

/// Read a configuration as the daemon would, and say what is wrong with it
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Exit codes: 0 the daemon would take it; 78 it would not. Nothing is changed.")]
pub struct CheckArgs {
    /// The file [default: the one that a daemon started by you would read]
    file: Option<PathBuf>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct ConfigJson {
    file: Option<PathBuf>,
    ok: bool,
    errors: Vec<ConfigErrorJson>,
    found: BTreeMap<&'static str, String>,
}

/// One error.
#[derive(Serialize)]
struct ConfigErrorJson {
    line: Option<usize>,
    message: String,
    hint: Option<String>,
}

/// Runs `sublet config`.
pub fn run(globals: &Globals, args: &ConfigArgs) -> Result<u8, Failure> {
    match &args.what {
        ConfigAction::Check(args) => check(globals, args),
    }
}

fn check(globals: &Globals, args: &CheckArgs) -> Result<u8, Failure> {
    let file = args.file.clone().or_else(place::config);
    let checked = daemon::check_config(file.as_deref());
    let exit = if checked.is_ok() { exit::OK } else { exit::CONFIG };
    if globals.json {
        output::json(&shown(file, checked))?;
        return Ok(exit);
    }
    let name = file.as_deref().map_or("no configuration file".to_owned(), |file| file.display().to_string());
    match checked {
        Ok(found) => {
            let what = if file.is_some() { "ok" } else { "everything is at its default" };
            output::print(&format!("{}: {what}\n{}", plain(&name), table(&found)))?;
            // The file is valid, but the daemon may not have read it yet, or refused an earlier version of it.
            if let Some(trouble) = refused_reload(globals) {
                eprintln!(
                    "the daemon still uses an older configuration: its last reload was refused: {}",
                    plain(&trouble)
                );
                tell_hint("`systemctl reload sublet`, or `kill -HUP` and its process id, makes it read the file again");
            }
        }
        Err(findings) => tell(file.as_deref(), &findings),
    }
    Ok(exit)
}

fn tell(file: Option<&Path>, findings: &[Finding]) {
    for finding in findings {
        anstream::eprintln!("\x1b[1;31merror:\x1b[0m {}", plain(&finding.located(file)));
        if let Some(hint) = &finding.hint {
            tell_hint(hint);
        }
    }
}

fn shown(file: Option<PathBuf>, checked: Result<Vec<(&'static str, String)>, Vec<Finding>>) -> ConfigJson {
    let (found, findings) = match checked {
        Ok(found) => (found.into_iter().collect(), Vec::new()),
        Err(findings) => (BTreeMap::new(), findings),
    };
    let error = |finding: Finding| ConfigErrorJson { line: finding.line, message: finding.message, hint: finding.hint };
    ConfigJson { file, ok: findings.is_empty(), errors: findings.into_iter().map(error).collect(), found }
}

fn table(found: &[(&'static str, String)]) -> String {
    let width = found.iter().map(|(topic, _)| topic.len()).max().unwrap_or(0);
    found.iter().map(|(topic, text)| format!("  {topic:<width$}  {}\n", plain(text))).collect()
}

/// Why the daemon's last reload was refused, if a daemon answers and the caller may see it.
fn refused_reload(globals: &Globals) -> Option<String> {
    let gpus: Gpus = Client::open(globals).ok()?.get("/v1/gpus").ok()?;
    gpus.config_trouble
}
