//! Completion of checkpoints and their versions, from the store of the line that is typed.
//!
//! ```text
//!   sublet checkpoint --store DIR show NAME VERSION ──► the words so far ──► the store ──► names, or versions of NAME
//! ```
//! Absent on purpose: the daemon, and making a store.

use super::{in_time, typed_words};
use crate::table::plain;
use crate::text;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use std::ffi::OsStr;
use std::path::PathBuf;
use sublet::replicated::{CheckpointName, CheckpointStore, CheckpointSummary, LogicalResourceName, StoredCheckpoint};
use sublet::training::training_checkpoint_name;

/// What stands around the name of a job in the name of its checkpoint.
const JOB_NAME: (&str, &str) = ("job:", ":latest");

/// Completes the name of a checkpoint, or of the job that trains it.
pub fn checkpoint() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let names = in_time(|| TypedLine::of(typed_words()).names()).unwrap_or_default();
        name_candidates(&names, &typed.to_string_lossy())
    })
}

/// Completes a version of the checkpoint that the line names.
pub fn version() -> ArgValueCompleter {
    ArgValueCompleter::new(version_candidates)
}

/// Completes a version, or a directory: the version before a directory may be left out.
pub fn version_or_directory() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let mut candidates = version_candidates(typed);
        candidates.extend(PathCompleter::dir().complete(typed));
        candidates
    })
}

/// Names as a user types them: the job's, if it is the checkpoint of a job. The whole name is offered, too, once a
/// letter of it is typed.
fn name_candidates(names: &[String], typed: &str) -> Vec<CompletionCandidate> {
    let job = |name: &String| {
        let job = name.strip_prefix(JOB_NAME.0)?.strip_suffix(JOB_NAME.1)?;
        // The checkpoint that has this very name is meant otherwise.
        (!names.iter().any(|other| other == job)).then(|| job.to_owned())
    };
    let short = names.iter().map(|name| job(name).unwrap_or_else(|| name.clone()));
    let whole = names.iter().filter(|name| !typed.is_empty() && job(name).is_some()).cloned();
    let all = short.chain(whole).filter(|name| name.starts_with(typed));
    all.map(CompletionCandidate::new).collect()
}

fn version_candidates(typed: &OsStr) -> Vec<CompletionCandidate> {
    let versions = in_time(|| TypedLine::of(typed_words()).versions()).unwrap_or_default();
    let typed = typed.to_string_lossy();
    let all = versions.iter().map(|saved| (saved.version.to_string(), version_help(saved)));
    all.filter(|(version, _)| version.starts_with(&*typed))
        .map(|(version, help)| CompletionCandidate::new(version).help(Some(help.into())))
        .collect()
}

/// `step 40, 6 GiB, kept for sweep`.
fn version_help(saved: &CheckpointSummary) -> String {
    let mut facts: Vec<String> = saved.step.map(|step| format!("step {step}")).into_iter().collect();
    facts.push(text::bytes(Some(saved.bytes)));
    facts.extend((!saved.pinned_by.is_empty()).then(|| format!("kept for {}", plain(&saved.pinned_by.join(", ")))));
    facts.join(", ")
}

/// The part of a line after `checkpoint` that says which checkpoint is meant.
#[derive(Debug, Default, PartialEq, Eq)]
struct TypedLine {
    store: Option<String>,
    resource: Option<String>,
    name: Option<String>,
}

impl TypedLine {
    fn of(words: Vec<String>) -> TypedLine {
        let mut line = TypedLine::default();
        let mut words = words.into_iter().skip_while(|word| word != "checkpoint").skip(1);
        let mut is_verb_read = false;
        while let Some(word) = words.next() {
            let (flag, value) = match word.split_once('=') {
                Some((flag, value)) if flag.starts_with("--") => (flag.to_owned(), Some(value.to_owned())),
                _ => (word, None),
            };
            match flag.as_str() {
                "--store" => line.store = value.or_else(|| words.next()),
                "--resource" => line.resource = value.or_else(|| words.next()),
                "--for" => drop(value.or_else(|| words.next())),
                flag if flag.starts_with('-') => {}
                _ if !is_verb_read => is_verb_read = true,
                _ => drop(line.name.get_or_insert(flag)),
            }
        }
        line
    }

    /// The store and the checkpoints in it that may be meant; `None` if there is no store.
    fn found(&self) -> Option<(CheckpointStore, Vec<(LogicalResourceName, CheckpointName)>)> {
        let path = match &self.store {
            Some(path) => PathBuf::from(path),
            None => CheckpointStore::default_path().ok()?,
        };
        let store = CheckpointStore::open_existing(&path).ok()?;
        let mut all = store.list().ok()?;
        all.retain(|(resource, _)| self.resource.as_ref().is_none_or(|wanted| wanted == resource.as_str()));
        Some((store, all))
    }

    fn names(&self) -> Option<Vec<String>> {
        let mut names: Vec<String> = self.found()?.1.into_iter().map(|(_, name)| name.to_string()).collect();
        names.sort();
        names.dedup();
        Some(names)
    }

    fn versions(&self) -> Option<Vec<CheckpointSummary>> {
        let (store, all) = self.found()?;
        let typed = self.name.as_ref()?;
        let stored = |wanted: CheckpointName| -> Option<StoredCheckpoint> {
            let (resource, name) = all.iter().find(|(_, name)| *name == wanted)?;
            store.stored(resource, name).ok()
        };
        let found = stored(CheckpointName::new(typed)).or_else(|| stored(training_checkpoint_name(typed)))?;
        found.versions().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &str) -> TypedLine {
        TypedLine::of(words.split(' ').map(str::to_owned).collect())
    }

    #[test]
    fn store_resource_and_name_are_read_from_the_line() {
        let expected =
            TypedLine { store: Some("/mnt/ck".into()), resource: Some("training".into()), name: Some("demo".into()) };
        assert_eq!(line("sublet checkpoint --store /mnt/ck --resource training show demo 1"), expected);
        assert_eq!(line("sublet checkpoint unpin --for x --store=/mnt/ck demo --resource=training 1"), expected);
        assert_eq!(line("sublet checkpoint show "), TypedLine { name: Some(String::new()), ..TypedLine::default() });
        assert_eq!(line("sublet checkpoint sh"), TypedLine::default());
    }

    #[test]
    fn the_checkpoint_of_a_job_is_completed_by_the_name_of_the_job() {
        assert_eq!(training_checkpoint_name("demo").as_str(), format!("{}demo{}", JOB_NAME.0, JOB_NAME.1));
        let names = |all: &[&str], typed: &str| -> Vec<String> {
            let all: Vec<String> = all.iter().map(|&name| name.to_owned()).collect();
            let candidates = name_candidates(&all, typed);
            candidates.iter().map(|one| one.get_value().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(names(&["job:demo:latest", "model"], ""), ["demo", "model"]);
        assert_eq!(names(&["job:demo:latest", "model"], "job"), ["job:demo:latest"]);
        assert_eq!(names(&["demo", "job:demo:latest"], ""), ["demo", "job:demo:latest"]);
        assert_eq!(names(&["job:demo:latest"], "x"), [""; 0]);
    }
}
