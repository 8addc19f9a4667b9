//! Commands that start a container. The engine's service starts the container's processes, so the variables of the
//! lease are passed to them explicitly.
//!
//! `docker run` and similar commands do not start a container themselves: they ask a service to do so. The container's
//! processes are no descendants of this process and have an environment of their own. So the variables of the lease are
//! passed on by name. They tell the daemon which lease the container belongs to, and CUDA which GPUs it may use. Values
//! that the user sets for the same variables come later on the command line, and take precedence.

use super::environment::Variables;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Engines with a `run` that takes `--env NAME`.
const ENGINES: [&str; 3] = ["docker", "podman", "nerdctl"];
/// Options before the engine's subcommand that have a value in the next word.
const WITH_VALUE: [&str; 12] = [
    "-H",
    "--host",
    "-c",
    "--context",
    "--config",
    "-l",
    "--log-level",
    "-n",
    "--namespace",
    "--connection",
    "--root",
    "--runroot",
];

/// Variables that have a meaning inside a container. Paths have none.
pub const PASSED: [&str; 6] =
    ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "SUBLET_LEASE", "SUBLET_FENCE", "SUBLET_PROOF", "SUBLET_DEADLINE"];

/// The command. If it starts a container, the names of the variables are added.
pub fn through(command: &[OsString], variables: &Variables) -> Vec<OsString> {
    let mut words = command.to_vec();
    if let Some(at) = starts_container(command) {
        let passed = variables.iter().map(|(name, _)| *name).filter(|name| PASSED.contains(name));
        words.splice(at..at, passed.flat_map(|name| ["--env".into(), OsString::from(name)]));
    }
    words
}

/// Where the options of `run` or `create` begin; `None` if the command starts no container.
fn starts_container(command: &[OsString]) -> Option<usize> {
    let engine = Path::new(command.first()?).file_name()?;
    if !ENGINES.iter().any(|name| engine == *name) {
        return None;
    }
    let is = |word: &OsStr, words: &[&str]| words.iter().any(|other| word == *other);
    let (mut at, mut group) = (1, false);
    loop {
        let word = command.get(at)?;
        at += 1;
        match word {
            word if is(word, &["run", "create"]) => return Some(at),
            word if is(word, &["container"]) && !group => group = true,
            word if is(word, &WITH_VALUE) => at += 1,
            word if word.as_encoded_bytes().starts_with(b"-") => {}
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(command: &str) -> String {
        let command: Vec<OsString> = command.split(' ').map(OsString::from).collect();
        let variables = ["SUBLET_LEASE", "SUBLET_PROOF", "LD_PRELOAD"].map(|name| (name, "7".to_owned())).to_vec();
        let words = through(&command, &variables);
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_starts_a_container_passes_the_lease_on() {
        let both = "--env SUBLET_LEASE --env SUBLET_PROOF";
        for (before, after) in [
            ("docker run", "--rm --gpus all pytorch python train.py"),
            ("/usr/bin/podman run", "image"),
            ("docker container run", "-it image"),
            ("docker --context far create", "image"),
            ("nerdctl --debug -n k8s.io run", "image run"),
        ] {
            assert_eq!(told(&format!("{before} {after}")), format!("{before} {both} {after}"));
        }
    }

    #[test]
    fn whatever_else_is_left_as_it_is() {
        for command in [
            "python run",
            "docker ps",
            "docker exec -it some run",
            "docker --unheard-of run2 run image",
            "docker container container run image",
            "docker compose run service",
            "docker",
        ] {
            assert_eq!(told(command), command);
        }
    }
}
