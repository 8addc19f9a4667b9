//! What a shell completes: commands and flags, ids and names of leases, GPUs, checkpoints and their versions, and after
//! `sublet run --` a command.
//!
//! ```text
//!   shell ── SUBLET_COMPLETE=bash sublet -- WORDS ──► clap_complete ──► the functions below ──► the daemon
//! ```
//! `sublet completions SHELL` prints the few lines of shell that make this call; whatever is completed is decided here,
//! for every shell alike. A daemon that does not answer is no error: nothing is completed then.
//!
//! Absent on purpose: any text on stderr, which would stand between the words that a user types.

mod checkpoints;

pub use checkpoints::{checkpoint, version, version_or_directory};

use crate::args::{Globals, LeaseName};
use crate::client::Client;
use crate::groups::command_in_groups;
use crate::table::plain;
use crate::text;
use clap_complete::Shell;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::{CompleteEnv, Shells};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use sublet_wire::{Gpus, Lease, LeaseState};

/// A user who pressed the key waits no longer than this.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The variable that a shell sets to its own name when it asks for completions.
const VARIABLE: &str = "SUBLET_COMPLETE";
/// Where clap's lines of shell put the index of the word to complete; fish cuts the line there instead.
const INDEX: &str = "_CLAP_COMPLETE_INDEX";
/// The end of the zsh file: the first call, which reads the file, has to complete too.
const ZSH_FIRST_CALL: &str = r#"
if [ "$funcstack[1]" = "_sublet" ]; then
    _clap_dynamic_completer_sublet "$@"
fi
"#;

/// Prints completions if a shell asked for them; false if this is an ordinary call.
pub fn answer(args: &[OsString]) -> bool {
    let here = std::env::current_dir().ok();
    let environment = CompleteEnv::with_factory(command_in_groups).var(VARIABLE);
    // A line that cannot be completed is no error for its user.
    environment.try_complete(args.iter().cloned(), here.as_deref()).unwrap_or(std::env::var_os(VARIABLE).is_some())
}

/// The lines of shell that turn completion on; `None` for a shell that clap cannot complete.
pub fn script(shell: Shell) -> Option<String> {
    let mut text = Vec::new();
    let shells = Shells::builtins();
    let completer = shells.completer(&shell.to_string())?;
    completer.write_registration(VARIABLE, "sublet", "sublet", "sublet", &mut text).ok()?;
    let text = String::from_utf8(text).ok()?;
    Some(if shell == Shell::Zsh { text + ZSH_FIRST_CALL } else { text })
}

/// Completes every lease of the user.
pub fn any_lease() -> ArgValueCompleter {
    lease(|_| true)
}

/// Completes leases that are on their GPUs.
pub fn active_lease() -> ArgValueCompleter {
    lease(|lease| lease.state == LeaseState::Active)
}

/// Completes leases that are parked, or about to be.
pub fn parked_lease() -> ArgValueCompleter {
    lease(|lease| matches!(lease.state, LeaseState::Parked | LeaseState::Parking))
}

fn lease(is_meant: fn(&Lease) -> bool) -> ArgValueCompleter {
    ArgValueCompleter::new(move |typed: &OsStr| {
        let leases = ask_daemon(|client| Some(client.leases(false).ok()?.leases)).unwrap_or_default();
        let meant: Vec<Lease> = leases.into_iter().filter(is_meant).collect();
        lease_candidates(&meant, &typed.to_string_lossy())
    })
}

/// Ids, with the name and state as help; and names, once a letter of one is typed.
fn lease_candidates(leases: &[Lease], typed: &str) -> Vec<CompletionCandidate> {
    let ids = leases.iter().map(|lease| {
        let name = lease.name.as_ref().map_or_else(String::new, |name| format!("{}, ", plain(name)));
        (lease.id.clone(), format!("{name}{}", text::lease_state(lease.state)))
    });
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    for lease in leases.iter().filter(|_| !typed.is_empty()) {
        // A name that reads as an id means the lease with that id.
        let Some(name) = lease.name.as_ref().filter(|name| matches!(name.parse(), Ok(LeaseName::Name(_)))) else {
            continue;
        };
        let help = names.entry(name.clone()).or_default();
        let comma = if help.is_empty() { "" } else { ", " };
        help.push_str(&format!("{comma}{}", lease.id));
    }
    let all = ids.chain(names).filter(|(value, _)| value.starts_with(typed));
    all.map(|(value, help)| CompletionCandidate::new(value).help(Some(help.into()))).collect()
}

/// Completes the names of the user's leases.
pub fn lease_name() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let leases = ask_daemon(|client| Some(client.leases(false).ok()?.leases)).unwrap_or_default();
        let mut names: Vec<String> = leases.into_iter().filter_map(|lease| lease.name).collect();
        names.sort();
        names.dedup();
        names.retain(|name| name.starts_with(&*typed.to_string_lossy()));
        names.into_iter().map(CompletionCandidate::new).collect()
    })
}

/// Completes the index of a GPU; after a comma another one.
pub fn gpu() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let gpus = ask_daemon(|client| client.get::<Gpus>("/v1/gpus").ok());
        gpus.map_or_else(Vec::new, |gpus| gpu_candidates(&gpus, &typed.to_string_lossy()))
    })
}

fn gpu_candidates(gpus: &Gpus, typed: &str) -> Vec<CompletionCandidate> {
    let before = typed.rfind(',').map_or("", |comma| &typed[..=comma]);
    let chosen: Vec<&str> = before.split(',').collect();
    let left = gpus.gpus.iter().filter(|gpu| !chosen.contains(&gpu.index.to_string().as_str()));
    let all = left.map(|gpu| {
        let help = format!("{}, {} free to lease", plain(&gpu.name), text::bytes(Some(gpu.promisable_bytes)));
        (format!("{before}{}", gpu.index), help)
    });
    all.filter(|(value, _)| value.starts_with(typed))
        .map(|(value, help)| CompletionCandidate::new(value).help(Some(help.into())))
        .collect()
}

/// Completes a command: first its name, then files.
pub fn command() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| match is_first_word() {
        true => command_candidates(typed, &std::env::var_os("PATH").unwrap_or_default()),
        false => PathCompleter::any().complete(typed),
    })
}

/// Whether the word to complete names the command: it follows `--`, or the subcommand itself.
fn is_first_word() -> bool {
    let words = typed_words();
    let index = std::env::var(INDEX).ok().and_then(|index| index.parse::<usize>().ok());
    let index = index.unwrap_or(words.len().saturating_sub(1));
    index.checked_sub(1).and_then(|before| words.get(before)).is_some_and(|before| before == "--" || before == "run")
}

/// The line that is typed, word by word.
fn typed_words() -> Vec<String> {
    let words = std::env::args_os().skip_while(|word| word != "--").skip(1);
    words.map(|word| word.to_string_lossy().into_owned()).collect()
}

/// The programs on PATH that begin so, or a path to a program.
fn command_candidates(typed: &OsStr, path: &OsStr) -> Vec<CompletionCandidate> {
    let is_program =
        |path: &Path| path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
    let typed_text = typed.to_string_lossy();
    if typed_text.contains('/') {
        return PathCompleter::any().filter(is_program).complete(typed);
    }
    let entries = std::env::split_paths(path).filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().flatten();
    let begins_so = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&*typed_text));
    let mut names: Vec<OsString> =
        begins_so.filter(|entry| is_program(&entry.path())).map(|entry| entry.file_name()).collect();
    names.sort();
    names.dedup();
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// The daemon's answer; `None` if there is none in time.
fn ask_daemon<T: Send + 'static>(ask: fn(&Client) -> Option<T>) -> Option<T> {
    in_time(move || ask(&Client::open(&Globals::default()).ok()?))
}

/// What a call that may hang answers; `None` if there is no answer in time.
fn in_time<T: Send + 'static>(call: impl FnOnce() -> Option<T> + Send + 'static) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    // The send fails if the time is over: the process is about to exit then.
    thread::spawn(move || drop(sender.send(call())));
    receiver.recv_timeout(ANSWER_WITHIN).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn values(candidates: &[CompletionCandidate]) -> Vec<String> {
        let help = |one: &CompletionCandidate| one.get_help().map_or_else(String::new, |help| format!(" ({help})"));
        candidates.iter().map(|one| format!("{}{}", one.get_value().to_string_lossy(), help(one))).collect()
    }

    #[test]
    fn leases_are_completed_by_id_and_by_name() {
        let leases = [sample::lease(), sample::waiting()];
        assert_eq!(values(&lease_candidates(&leases, "")), ["L7 (train, active)", "L8 (waiting)"]);
        assert_eq!(values(&lease_candidates(&leases, "L8")), ["L8 (waiting)"]);
        assert_eq!(values(&lease_candidates(&leases, "tr")), ["train (L7)"]);
        assert!(lease_candidates(&leases, "x").is_empty());
    }

    #[test]
    fn gpus_are_completed_one_after_the_other() {
        let gpus = sample::gpus();
        let indices = |typed: &str| -> Vec<String> {
            gpu_candidates(&gpus, typed).iter().map(|one| one.get_value().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(indices(""), ["0", "1", "2"]);
        assert_eq!(indices("0,"), ["0,1", "0,2"]);
        assert!(indices("A100").is_empty());
        assert_eq!(values(&gpu_candidates(&gpus, "0")), ["0 (NVIDIA A100-SXM4-40GB, 26 GiB free to lease)"]);
    }

    #[test]
    fn commands_are_those_on_the_path() {
        let dir = tempfile::tempdir().unwrap();
        for (name, mode) in [("train", 0o755), ("trash.txt", 0o644), ("other", 0o755)] {
            std::fs::write(dir.path().join(name), "").unwrap();
            std::fs::set_permissions(dir.path().join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        assert_eq!(values(&command_candidates(OsStr::new("tr"), dir.path().as_os_str())), ["train"]);
        let typed = dir.path().join("t");
        let found = values(&command_candidates(typed.as_os_str(), OsStr::new("")));
        assert_eq!(found, [dir.path().join("train").to_string_lossy()]);
    }

    #[test]
    fn every_shell_has_a_script_that_calls_sublet() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell] {
            let script = script(shell).unwrap_or_else(|| panic!("{shell} has a script"));
            assert!(script.contains(VARIABLE) && script.contains("sublet"), "{shell}: {script}");
        }
    }
}
