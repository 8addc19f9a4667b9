//! `sublet checkpoint export`, `rm` and `scrub`: what they did goes to stderr, or to stdout as JSON.

use super::{failure, tell_unreadable};
use crate::args::Globals;
use crate::failure::{Failure, tell_hint};
use crate::output::{self, say};
use crate::place;
use crate::table::{TextFormat, plain, wrapped};
use crate::text;
use serde::Serialize;
use std::path::{Path, PathBuf};
use sublet::replicated::{DamagedCopy, ReplicaFailure, ReplicaId, StoredCheckpoint, Version};
use sublet_wire::{exit, size};

/// What `--json` prints for an export.
#[derive(Serialize)]
struct ExportedJson {
    name: String,
    exported_version: u64,
    to: PathBuf,
    files: usize,
    bytes: u64,
    damaged: Vec<DamagedJson>,
}

/// What `--json` prints for removed versions.
#[derive(Serialize)]
struct RemovedVersionsJson<'a> {
    name: String,
    removed: &'a [u64],
    fence: u64,
}

/// What `--json` prints for a scrub.
#[derive(Serialize)]
struct ScrubJson {
    name: String,
    whole: usize,
    repaired: Vec<DamagedJson>,
    damaged: Vec<DamagedJson>,
    unreadable: Vec<DamagedJson>,
}

#[derive(Serialize)]
struct DamagedJson {
    replica: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    reason: String,
}

impl From<&DamagedCopy> for DamagedJson {
    fn from(copy: &DamagedCopy) -> DamagedJson {
        let (replica, version) = (copy.replica.to_string(), Some(copy.version.0));
        DamagedJson { replica, version, reason: copy.reason.clone() }
    }
}

impl From<&ReplicaFailure> for DamagedJson {
    fn from(failed: &ReplicaFailure) -> DamagedJson {
        DamagedJson { replica: failed.replica.to_string(), version: None, reason: failed.reason.clone() }
    }
}

/// Copies a version to a directory.
pub fn export(globals: &Globals, found: &StoredCheckpoint, version: Version, to: &Path) -> Result<u8, Failure> {
    let report = found.export(version, to).map_err(failure)?;
    let name = found.name().to_string();
    if globals.json {
        let damaged = report.failures.iter().map(DamagedJson::from).collect();
        let (to, files, bytes) = (place::absolute(to), report.files, report.bytes);
        output::json(&ExportedJson { name, exported_version: version.0, to, files, bytes, damaged })?;
        return Ok(exit::OK);
    }
    for failed in &report.failures {
        say!("{} on replica `{}`: another copy was used", failed.reason, plain(failed.replica.as_str()));
    }
    let files = text::count(report.files as u64, "file");
    say!("copied version {version} to {}: {files}, {}, verified", to.display(), size::show(report.bytes));
    if !report.failures.is_empty() {
        tell_hint(&format!("`sublet checkpoint scrub {}` repairs the damaged copies", plain(&name)));
    }
    Ok(exit::OK)
}

/// Deletes versions under a new fence.
pub fn remove(globals: &Globals, found: &StoredCheckpoint, versions: &[u64]) -> Result<u8, Failure> {
    let typed: Vec<Version> = versions.iter().copied().map(Version).collect();
    let fence = found.remove(&typed).map_err(failure)?;
    if globals.json {
        output::json(&RemovedVersionsJson { name: found.name().to_string(), removed: versions, fence: fence.0 })?;
        return Ok(exit::OK);
    }
    let names: Vec<String> = versions.iter().map(u64::to_string).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let noun = if versions.len() == 1 { "version" } else { "versions" };
    say!("removed {noun} {} of `{}`, under fence {fence}", text::names(&names), plain(found.name().as_str()));
    tell_unreadable(found);
    tell_hint("a program that saves this checkpoint now is refused as stale: start it again");
    Ok(exit::OK)
}

/// Verifies every copy, and repairs what is damaged.
pub fn scrub(globals: &Globals, found: &StoredCheckpoint, fill: &[String]) -> Result<u8, Failure> {
    let fill: Vec<ReplicaId> = fill.iter().map(ReplicaId::new).collect();
    let report = found.scrub(&fill).map_err(failure)?;
    let is_done = report.damaged.is_empty() && found.unreadable().is_empty();
    let code = if is_done { exit::OK } else { exit::FAILURE };
    let name = found.name().to_string();
    if globals.json {
        output::json(&ScrubJson {
            name,
            whole: report.whole,
            repaired: report.repaired.iter().map(DamagedJson::from).collect(),
            damaged: report.damaged.iter().map(DamagedJson::from).collect(),
            unreadable: found.unreadable().iter().map(DamagedJson::from).collect(),
        })?;
        return Ok(code);
    }
    let mut shown = String::new();
    for (word, copies) in [("repaired", &report.repaired), ("damaged", &report.damaged)] {
        for DamagedCopy { replica, version, reason } in copies {
            let (replica, reason) = (plain(replica.as_str()), plain(reason));
            shown.push_str(&format!("{word}: version {version} on replica `{replica}`: {reason}\n"));
        }
    }
    let copies = text::count_of(report.whole as u64, "copy was whole", "copies were whole");
    let (repaired, damaged) = (report.repaired.len(), report.damaged.len());
    shown.push_str(&format!("{}: {copies}, {repaired} repaired, {damaged} still damaged", plain(&name)));
    output::print(&(wrapped(&shown, 2, TextFormat::of_stdout()) + "\n"))?;
    tell_unreadable(found);
    if !is_done {
        tell_hint("mend or mount the replicas named above, then scrub again");
    }
    Ok(code)
}
