//! `sublet checkpoint show`: one version, its files, and where its copies lie.

use super::list::VersionRow;
use super::{ago, failure, tell_unreadable};
use crate::args::Globals;
use crate::failure::Failure;
use crate::output;
use crate::table::{Table, TextFormat, Tone, plain, toned};
use serde::Serialize;
use sublet::replicated::{ReplicatedError, StoredCheckpoint, StoredManifest, Version};
use sublet_wire::{exit, size};

/// The most files that are listed for people.
const FILES_SHOWN: usize = 20;

/// What `--json` prints.
#[derive(Serialize)]
struct ShownVersionJson {
    name: String,
    resource: String,
    /// The fence that calls must carry now.
    newest_fence: u64,
    is_newest: bool,
    schema: Option<String>,
    saved: VersionRow,
    files: Vec<ShownFileJson>,
}

#[derive(Serialize)]
struct ShownFileJson {
    name: String,
    bytes: u64,
}

/// Shows a version.
pub fn run(globals: &Globals, found: &StoredCheckpoint, version: Version) -> Result<u8, Failure> {
    let manifest = found.manifest(version).map_err(failure)?;
    let versions = found.versions().map_err(failure)?;
    let newest = versions.last().map(|newest| newest.version);
    let saved = versions.into_iter().find(|saved| saved.version == version);
    let row = saved.map(|saved| VersionRow::of(found, saved)).transpose()?.flatten();
    let row = row.ok_or_else(|| failure(ReplicatedError::Pruned { version }))?;
    tell_unreadable(found);
    let StoredManifest { schema, files, .. } = match manifest {
        Some(manifest) => manifest,
        None => return Err(no_copy(found, version, &row)),
    };
    let shown = ShownVersionJson {
        name: found.name().to_string(),
        resource: found.resource().to_string(),
        newest_fence: found.fence().map_err(failure)?.0,
        is_newest: newest == Some(version),
        schema: Some(schema.to_string()),
        saved: row,
        files: files.into_iter().map(|file| ShownFileJson { name: file.name, bytes: file.bytes }).collect(),
    };
    match globals.json {
        true => output::json(&shown)?,
        false => output::print(&shown.text(TextFormat::of_stdout()))?,
    }
    Ok(exit::OK)
}

/// The register has the version, and no replica does.
fn no_copy(found: &StoredCheckpoint, version: Version, row: &VersionRow) -> Failure {
    let causes = row.copies.iter().filter_map(|copy| {
        let replica = sublet::replicated::ReplicaId::new(&copy.replica);
        Some(sublet::replicated::ReplicaFailure { replica, reason: copy.missing.clone()? })
    });
    let causes = causes.chain(found.unreadable().iter().cloned()).collect();
    failure(ReplicatedError::TooFewCopies { version, verified: 0, needed: 1, causes })
}

impl ShownVersionJson {
    fn text(&self, format: TextFormat) -> String {
        let saved = &self.saved;
        let step = saved.step.map_or_else(String::new, |step| format!("step {step}, "));
        let mut text = format!(
            "{}, version {}{}\n  {step}{}, saved {} under fence {}\n",
            plain(&self.name),
            saved.version,
            if self.is_newest { " (the newest)" } else { "" },
            size::show(saved.bytes),
            ago(saved.saved_unix_s),
            saved.fence,
        );
        if self.newest_fence != saved.fence {
            text.push_str(&format!("  opened since: the newest fence is {}\n", self.newest_fence));
        }
        let schema = self.schema.as_deref().unwrap_or_default();
        text.push_str(&format!("  resource {}, schema {}\n", plain(&self.resource), plain(schema)));
        if let Some(effect) = &saved.effect {
            text.push_str(&format!("  completes {}\n", plain(effect)));
        }
        if !saved.pinned_by.is_empty() {
            text.push_str(&format!("  pinned by {}\n", plain(&saved.pinned_by.join(", "))));
        }
        text.push_str("\ncopies:\n");
        for copy in &saved.copies {
            let replica = plain(&copy.replica);
            match &copy.missing {
                None => text.push_str(&format!("  {replica}\n    {}\n", copy.directory.display())),
                Some(reason) => {
                    let reason = toned(&plain(reason), Tone::Wrong, format.colour);
                    text.push_str(&format!("  {replica}: {reason}\n"));
                }
            }
        }
        let mut files = Table::new(&["~FILE", ">SIZE"]);
        for file in self.files.iter().take(FILES_SHOWN) {
            files.row([file.name.clone(), size::show(file.bytes)]);
        }
        text.push('\n');
        text.push_str(&files.show("", format));
        if let Some(more) = self.files.len().checked_sub(FILES_SHOWN).filter(|more| *more > 0) {
            text.push_str(&format!("… and {more} more (`--json` lists all)\n"));
        }
        text
    }
}
