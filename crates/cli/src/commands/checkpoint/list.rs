//! `sublet checkpoint ls`: the checkpoints of a store, and the versions of one.

use super::{StoreInUse, ago, failure, tell_unreadable};
use crate::args::Globals;
use crate::failure::Failure;
use crate::failure::tell_hint;
use crate::output::{self, say};
use crate::table::{Table, TextFormat, Tone, plain};
use crate::text;
use serde::Serialize;
use std::path::PathBuf;
use sublet::replicated::{CheckpointSummary, ReplicatedError, StoredCheckpoint, Version};
use sublet_wire::{exit, size};

/// What `--json` prints for a store.
#[derive(Serialize)]
struct CheckpointsJson {
    store: PathBuf,
    checkpoints: Vec<CheckpointRow>,
}

/// One checkpoint.
#[derive(Serialize)]
struct CheckpointRow {
    name: String,
    resource: String,
    /// `None` if the register's chain cannot be read.
    fence: Option<u64>,
    /// How many versions there are.
    versions: usize,
    /// The newest one; `None` if nothing was saved.
    newest: Option<VersionRow>,
    /// Why the register cannot be relied on for this checkpoint.
    problem: Option<RowProblem>,
}

/// What is wrong with one checkpoint.
#[derive(Serialize)]
struct RowProblem {
    code: &'static str,
    detail: String,
    hint: &'static str,
}

impl RowProblem {
    /// An error of one checkpoint. A register that answers nothing is an error of the whole list.
    fn of(error: ReplicatedError) -> Result<RowProblem, Failure> {
        match error {
            ReplicatedError::Register(_) => Err(failure(error)),
            error => Ok(RowProblem { code: error.code(), detail: error.to_string(), hint: error.remedy() }),
        }
    }

    /// What the list shows instead of the number of copies.
    fn word(&self) -> &'static str {
        if self.code == "register_behind" { "behind" } else { "broken" }
    }
}

/// What `--json` prints for the versions of a checkpoint.
#[derive(Serialize)]
struct VersionsJson {
    name: String,
    resource: String,
    fence: u64,
    versions: Vec<VersionRow>,
}

/// One version.
#[derive(Serialize)]
pub struct VersionRow {
    /// Its number.
    pub version: u64,
    /// The training step that it contains.
    pub step: Option<u64>,
    /// The bytes of its files.
    pub bytes: u64,
    /// The fence that it was saved under.
    pub fence: u64,
    /// The clock of the program that saved it; `None` if no replica has the manifest.
    pub saved_unix_s: Option<u64>,
    /// The effect that it completed.
    pub effect: Option<String>,
    /// The jobs that keep it from being removed.
    pub pinned_by: Vec<String>,
    /// Its copies.
    pub copies: Vec<CopyRow>,
}

/// One copy of a version, by its manifest.
#[derive(Serialize)]
pub struct CopyRow {
    /// The replica.
    pub replica: String,
    /// The directory of the version there.
    pub directory: PathBuf,
    /// Why there is no copy; `None` if there is one.
    pub missing: Option<String>,
}

impl VersionRow {
    /// What is known of a version without reading it.
    pub fn of(found: &StoredCheckpoint, saved: CheckpointSummary) -> Result<Option<VersionRow>, Failure> {
        VersionRow::look_at(found, saved).map_err(failure)
    }

    fn look_at(found: &StoredCheckpoint, saved: CheckpointSummary) -> Result<Option<VersionRow>, ReplicatedError> {
        let Some(copies) = unless_pruned(found.copies(saved.version))? else { return Ok(None) };
        let copies = copies.into_iter().map(|copy| CopyRow {
            replica: copy.replica.to_string(),
            directory: copy.directory,
            missing: copy.missing,
        });
        let manifest = unless_pruned(found.manifest(saved.version))?.flatten();
        Ok(Some(VersionRow {
            version: saved.version.0,
            step: saved.step,
            bytes: saved.bytes,
            fence: saved.fence.0,
            saved_unix_s: manifest.map(|manifest| manifest.saved_unix_s),
            effect: saved.effect.map(|effect| effect.key.to_string()),
            pinned_by: saved.pinned_by,
            copies: copies.collect(),
        }))
    }

    /// `2`, or `1 of 2`.
    fn copies_of_all(&self) -> (String, Tone) {
        let whole = self.copies.iter().filter(|copy| copy.missing.is_none()).count();
        match self.copies.len() {
            all if all == whole => (all.to_string(), Tone::Plain),
            all => (format!("{whole} of {all}"), if whole == 0 { Tone::Wrong } else { Tone::Notable }),
        }
    }
}

/// `None` for a version that a program pruned while it was looked at.
fn unless_pruned<T>(found: Result<T, ReplicatedError>) -> Result<Option<T>, ReplicatedError> {
    match found {
        Err(ReplicatedError::Pruned { .. }) => Ok(None),
        other => other.map(Some),
    }
}

/// Lists the checkpoints of a store. The exit code is 1 if the register cannot be relied on for one of them.
pub fn checkpoints(globals: &Globals, store: &StoreInUse) -> Result<u8, Failure> {
    let mut checkpoints = Vec::new();
    for (resource, name) in store.list()?.into_iter().chain(store.list_unknown()?) {
        let found = store.store.stored(&resource, &name).map_err(failure)?;
        if checkpoints.is_empty() {
            tell_unreadable(&found);
        }
        checkpoints.push(CheckpointRow::of(&found)?);
    }
    let code = if checkpoints.iter().all(|row| row.problem.is_none()) { exit::OK } else { exit::FAILURE };
    if globals.json {
        output::json(&CheckpointsJson { store: store.path.clone(), checkpoints })?;
    } else if checkpoints.is_empty() {
        eprintln!("no checkpoints in {}", store.path.display());
    } else {
        output::print(&checkpoints_text(&checkpoints, TextFormat::of_stdout()))?;
        tell_problems(&checkpoints);
    }
    Ok(code)
}

impl CheckpointRow {
    fn of(found: &StoredCheckpoint) -> Result<CheckpointRow, Failure> {
        let (name, resource) = (found.name().to_string(), found.resource().to_string());
        let mut row = CheckpointRow { name, resource, fence: None, versions: 0, newest: None, problem: None };
        row.problem = row.fill(found).err().map(RowProblem::of).transpose()?;
        Ok(row)
    }

    /// Fills in what the register and the replicas say, as far as that can be read.
    fn fill(&mut self, found: &StoredCheckpoint) -> Result<(), ReplicatedError> {
        let mut versions = found.versions()?;
        self.versions = versions.len();
        self.fence = Some(found.fence()?.0);
        self.newest = versions.pop().map(|newest| VersionRow::look_at(found, newest)).transpose()?.flatten();
        found.check_register()
    }
}

/// Says what is wrong with checkpoints, and once what to do about each kind.
fn tell_problems(checkpoints: &[CheckpointRow]) {
    let mut hints: Vec<&str> = Vec::new();
    for (row, problem) in checkpoints.iter().filter_map(|row| Some((row, row.problem.as_ref()?))) {
        say!("`{}`: {}", plain(&row.name), plain(&problem.detail));
        if !hints.contains(&problem.hint) {
            hints.push(problem.hint);
        }
    }
    hints.into_iter().for_each(tell_hint);
}

/// Lists the versions of a checkpoint. The exit code is 1 if a replica holds newer ones than the register knows.
pub fn versions(globals: &Globals, found: &StoredCheckpoint) -> Result<u8, Failure> {
    let mut versions = Vec::new();
    for saved in found.versions().map_err(failure)? {
        versions.extend(VersionRow::of(found, saved)?);
    }
    tell_unreadable(found);
    let checked = found.check_register().map_err(failure);
    if globals.json {
        let (name, resource) = (found.name().to_string(), found.resource().to_string());
        output::json(&VersionsJson { name, resource, fence: found.fence().map_err(failure)?.0, versions })?;
    } else if !versions.is_empty() {
        output::print(&versions_text(&versions, TextFormat::of_stdout()))?;
    } else if checked.is_ok() {
        eprintln!("nothing was saved yet");
    }
    checked.map(|()| exit::OK)
}

fn checkpoints_text(checkpoints: &[CheckpointRow], format: TextFormat) -> String {
    let headers = ["~NAME", ">STEP", ">VERSION", ">SIZE", "COPIES", "SAVED", ">KEPT", ">FENCE", "~RESOURCE"];
    let mut table = Table::new(&headers).drops(&["FENCE", "KEPT"]);
    for row in checkpoints {
        let newest = row.newest.as_ref();
        let (copies, tone) = match (&row.problem, newest) {
            (Some(problem), _) => (problem.word().to_owned(), Tone::Wrong),
            (None, Some(newest)) => newest.copies_of_all(),
            (None, None) => (text::NONE.into(), Tone::Plain),
        };
        table.row([
            row.name.clone(),
            number(newest.and_then(|newest| newest.step)),
            number(newest.map(|newest| newest.version)),
            text::bytes(newest.map(|newest| newest.bytes)),
            copies,
            ago(newest.and_then(|newest| newest.saved_unix_s)),
            row.versions.to_string(),
            number(row.fence),
            row.resource.clone(),
        ]);
        table.set_tone("COPIES", tone);
    }
    table.show("", format)
}

fn versions_text(versions: &[VersionRow], format: TextFormat) -> String {
    let mut table = Table::new(&[">VERSION", ">STEP", ">SIZE", ">FENCE", "COPIES", "SAVED", "~PINNED BY"]);
    for row in versions {
        let (copies, tone) = row.copies_of_all();
        table.row([
            Version(row.version).to_string(),
            number(row.step),
            size::show(row.bytes),
            row.fence.to_string(),
            copies,
            ago(row.saved_unix_s),
            text::or_none(Some(&row.pinned_by.join(", "))),
        ]);
        table.set_tone("COPIES", tone);
    }
    table.show("", format)
}

/// A number, or `-`.
fn number(number: Option<u64>) -> String {
    number.map_or_else(|| text::NONE.into(), |number| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn version(version: u64, missing: Option<&str>) -> VersionRow {
        let copy = |replica: &str, missing: Option<&str>| CopyRow {
            replica: replica.into(),
            directory: "/mnt".into(),
            missing: missing.map(Into::into),
        };
        VersionRow {
            version,
            step: Some(version * 10),
            bytes: 6 << 30,
            fence: 2,
            saved_unix_s: None,
            effect: None,
            pinned_by: vec!["evaluation-of-the-whole-sweep".into()],
            copies: vec![copy("disk-1", None), copy("disk-2", missing)],
        }
    }

    #[test]
    fn tables_fit_80_columns() {
        let names = ["job:a-long-name-of-a-training-that-goes-on-for-weeks:latest", "model"];
        let rows = names.map(|name| CheckpointRow {
            name: name.into(),
            resource: "training-checkpoints".into(),
            fence: Some((1 << 32) + 1),
            versions: 2,
            newest: (name != "model").then(|| version(123_456, Some("it holds no copy"))),
            problem: None,
        });
        expect![[r#"
            NAME                 STEP  VERSION   SIZE  COPIES  SAVED  KEPT  RESOURCE
            job:a-long-name…  1234560   123456  6 GiB  1 of 2  -         2  training-checkp…
            model                   -        -      -  -       -         2  training-checkp…
        "#]]
        .assert_eq(&checkpoints_text(&rows, TextFormat::wide(80)));
        expect![[r#"
            VERSION  STEP   SIZE  FENCE  COPIES  SAVED  PINNED BY
                  1    10  6 GiB      2  2       -      evaluation-of-the-whole-sweep
                  2    20  6 GiB      2  1 of 2  -      evaluation-of-the-whole-sweep
        "#]]
        .assert_eq(&versions_text(&[version(1, None), version(2, Some("gone"))], TextFormat::wide(80)));
        for line in checkpoints_text(&rows, TextFormat::wide(80)).lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
