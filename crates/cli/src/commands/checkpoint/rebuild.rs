//! `sublet checkpoint rebuild`: a new register from the replicas.

use super::{daemon_register, failure};
use crate::args::Globals;
use crate::failure::{Failure, tell_hint};
use crate::output::{self, say};
use crate::table::{Table, TextFormat, plain};
use crate::text;
use serde::Serialize;
use std::path::Path;
use sublet::replicated::{
    CheckpointStore, DaemonPlace, RebuiltCheckpoint, ReplicaId, ReplicatedError, StoreOpener, Version,
};
use sublet_wire::exit;

/// What `--json` prints.
#[derive(Serialize)]
struct RebuiltJson {
    generation: u64,
    checkpoints: Vec<RebuiltRow>,
}

#[derive(Serialize)]
struct RebuiltRow {
    name: String,
    resource: String,
    versions: Vec<u64>,
    /// Those that may not have been acknowledged.
    unproven: Vec<u64>,
}

impl From<&RebuiltCheckpoint> for RebuiltRow {
    fn from(rebuilt: &RebuiltCheckpoint) -> RebuiltRow {
        let numbers = |versions: &[Version]| versions.iter().map(|version| version.0).collect();
        RebuiltRow {
            name: rebuilt.name.to_string(),
            resource: rebuilt.resource.to_string(),
            versions: numbers(&rebuilt.versions),
            unproven: numbers(&rebuilt.unproven),
        }
    }
}

/// Rebuilds the register of the store at this path.
pub fn run(globals: &Globals, path: &Path, without: &[String]) -> Result<u8, Failure> {
    let connect = |place: &DaemonPlace| daemon_register(globals, place);
    let store = StoreOpener::with_daemon(&connect).open_to_rebuild(path).map_err(|error| replaced(path, error))?;
    let replicas = replicas(&store, path, without)?;
    let (_, report) = store.rebuild(&replicas).map_err(|error| replaced(path, error))?;
    let (generation, rows) = (report.generation.0, report.checkpoints.iter().map(RebuiltRow::from).collect::<Vec<_>>());
    if globals.json {
        output::json(&RebuiltJson { generation, checkpoints: rows })?;
        return Ok(exit::OK);
    }
    for (name, version) in &report.damaged {
        let name = plain(name.as_str());
        say!("version {version} of `{name}` is damaged: what is left of it is kept beside the versions, as `found-…`");
    }
    if rows.is_empty() {
        say!("the register is new, and no replica holds a checkpoint");
        return Ok(exit::OK);
    }
    output::print(&table(&rows, TextFormat::of_stdout()))?;
    say!("the register is new: generation {generation}, {}", text::count(rows.len() as u64, "checkpoint"));
    for row in rows.iter().filter(|row| !row.unproven.is_empty()) {
        let versions: Vec<String> = row.unproven.iter().map(u64::to_string).collect();
        let versions: Vec<&str> = versions.iter().map(String::as_str).collect();
        let noun = if versions.len() == 1 { "version" } else { "versions" };
        say!("{noun} {} of `{}` may not have been acknowledged", text::names(&versions), plain(&row.name));
    }
    tell_hint("start the programs of this store again: every older fence is refused");
    Ok(exit::OK)
}

/// The replicas to read, each of which must be there.
fn replicas(store: &CheckpointStore, path: &Path, without: &[String]) -> Result<Vec<ReplicaId>, Failure> {
    let known = store.replicas().map_err(failure)?;
    let is_known = |wanted: &&String| known.iter().any(|(replica, _)| replica.as_str() == wanted.as_str());
    if let Some(unknown) = without.iter().find(|wanted| !is_known(wanted)) {
        return Err(Failure::usage(format!("the store has no replica `{}`", plain(unknown))));
    }
    let mut chosen = Vec::new();
    for (replica, directory) in known.iter().filter(|(replica, _)| !without.iter().any(|out| out == replica.as_str())) {
        if let Err(error) = std::fs::read_dir(directory) {
            let message = format!("replica `{replica}` cannot be read: {}: {error}", directory.display());
            return Err(Failure::new(exit::FAILURE, message)
                .coded("replica_unreadable")
                .hint(format!("mount it; or say `--without {replica}`, and versions that only it holds are lost")));
        }
        chosen.push(replica.clone());
    }
    if chosen.is_empty() {
        let message = format!("there are no replicas in {}", path.display());
        return Err(Failure::new(exit::FAILURE, message).coded("no_replicas").hint("restore the copies first"));
    }
    Ok(chosen)
}

/// The failure for a register that is there.
fn replaced(path: &Path, error: ReplicatedError) -> Failure {
    let is_there = matches!(error.code(), "register_not_empty" | "register_damaged");
    let told = failure(error);
    if !is_there {
        return told;
    }
    if path.is_dir() {
        let file = path.join("register.db");
        let hint = format!("to replace it, move `{}` away first, with its `-wal` and `-shm` files", file.display());
        return told.hint(hint);
    }
    told.hint(format!(
        "to replace it, move the register that {} names away first, with its `-wal` and `-shm` files; if a daemon keeps \
         it, name a new one there, such as `daemon:NAME-2`",
        path.display()
    ))
}

fn table(rows: &[RebuiltRow], format: TextFormat) -> String {
    let mut table = Table::new(&["~NAME", ">VERSIONS", ">NEWEST", ">UNPROVEN", "~RESOURCE"]);
    for row in rows {
        table.row([
            row.name.clone(),
            row.versions.len().to_string(),
            row.versions.last().map_or_else(|| text::NONE.into(), u64::to_string),
            row.unproven.len().to_string(),
            row.resource.clone(),
        ]);
    }
    table.show("", format)
}
