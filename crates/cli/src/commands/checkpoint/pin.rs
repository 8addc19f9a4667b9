//! `sublet checkpoint pin` and `unpin`: which jobs keep a version. What changed goes to stderr, or to stdout as JSON.

use super::failure;
use crate::args::Globals;
use crate::failure::{Failure, tell_hint};
use crate::output::{self, say};
use crate::table::plain;
use crate::text;
use serde::Serialize;
use sublet::replicated::{StoredCheckpoint, Version};
use sublet_wire::exit;

/// What `--json` prints.
#[derive(Serialize)]
struct PinsJson {
    name: String,
    version: u64,
    pinned_by: Vec<String>,
}

/// Keeps a version for a job.
pub fn pin(globals: &Globals, found: &StoredCheckpoint, version: Version, job: &str) -> Result<u8, Failure> {
    found.pin(version, job).map_err(failure)?;
    let pins = found.pins_of(version).map_err(failure)?;
    if globals.json {
        return print_json(found, version, pins);
    }
    say!("version {version} of `{}` is kept for {}", plain(found.name().as_str()), names(&pins));
    Ok(exit::OK)
}

/// Ends that a job keeps a version.
pub fn unpin(globals: &Globals, found: &StoredCheckpoint, version: Version, job: &str) -> Result<u8, Failure> {
    let before = found.pins_of(version).map_err(failure)?;
    found.unpin(version, job).map_err(failure)?;
    // The version may be gone by now, so it is not asked again.
    let pins: Vec<String> = before.iter().filter(|name| *name != job).cloned().collect();
    if globals.json {
        return print_json(found, version, pins);
    }
    let (name, job) = (plain(found.name().as_str()), plain(job));
    match pins.len() < before.len() {
        true => say!("version {version} of `{name}` is no longer kept for {job}"),
        false => say!("version {version} of `{name}` was not kept for {job}: nothing changed"),
    }
    match pins.is_empty() {
        true => tell_hint("no job keeps it: unless it is the newest, a later save may delete it"),
        false => tell_hint(&format!("it is still kept for {}", names(&pins))),
    }
    Ok(exit::OK)
}

fn print_json(found: &StoredCheckpoint, version: Version, pinned_by: Vec<String>) -> Result<u8, Failure> {
    output::json(&PinsJson { name: found.name().to_string(), version: version.0, pinned_by })?;
    Ok(exit::OK)
}

/// `a, b and c`.
fn names(jobs: &[String]) -> String {
    let jobs: Vec<String> = jobs.iter().map(|job| plain(job)).collect();
    text::names(&jobs.iter().map(String::as_str).collect::<Vec<_>>())
}
