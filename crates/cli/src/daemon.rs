//! Starts the daemon and its workers, and shares the daemon's reading of configuration and rules.
//!
//! Only this module and [`journal_files`](crate::journal_files) use the daemon's crate; the rest of this crate speaks
//! HTTP.

use crate::failure::Failure;
use std::path::Path;
use std::process::ExitCode;
pub use sublet_daemon::{Finding, RuleSubject as ProcessPattern, ServeOptions, TcpConfig};
use sublet_wire::exit;

/// Runs the daemon until it is told to stop.
pub fn serve(options: ServeOptions) -> Result<(), Failure> {
    sublet_daemon::serve(options)
        .map_err(|error| Failure::new(error.exit_code(), chain(&error)).maybe_hint(error.hint()))
}

/// The policy that a configuration file defines, or the default policy.
pub fn rules(config: Option<&Path>) -> Result<sublet_daemon::Policy, Failure> {
    sublet_daemon::rules(config).map_err(|error| Failure::new(exit::USAGE, chain(&error)))
}

/// The settings of a configuration by topic, or every problem found in it.
pub fn check_config(config: Option<&Path>) -> Result<Vec<(&'static str, String)>, Vec<Finding>> {
    sublet_daemon::check_config(config, &TcpConfig::default()).map(|checked| checked.0)
}

/// Runs one of the daemon's worker processes.
pub fn worker(args: &[String]) -> ExitCode {
    sublet_daemon::worker(args)
}

/// Whether this machine has an NVIDIA device at all.
pub fn nvidia_visible() -> bool {
    sublet_daemon::nvidia_visible()
}

/// Whether a process of this host matches, by the same comparison as in a rule.
pub fn process_matches(pattern: &ProcessPattern, pid: u32) -> bool {
    sublet_daemon::is_meant(pattern, pid)
}

/// The OpenAPI description of the API.
pub fn openapi() -> String {
    sublet_daemon::openapi()
}

/// An error and its causes, on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
