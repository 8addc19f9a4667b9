//! The environment variables of a holder.
//!
//! `CUDA_VISIBLE_DEVICES` replaces the caller's own; it does not add to it.

use super::ask::VisibleArg;
use super::visible::Visible;
use super::{container, shim, soft};
use crate::failure::Failure;
use clap::ValueEnum;
use std::env;
use sublet_softgpu::library_dir::LINKER_ENV;
use sublet_wire::{Lease, exit};

/// The variables of a holder, in order.
pub type Variables = Vec<(&'static str, String)>;

/// The variables for a granted lease. `daemon` names the daemon that granted it, `visible` the GPUs that the caller
/// sees.
pub fn variables(
    lease: &Lease,
    names: VisibleArg,
    daemon: &(&'static str, String),
    visible: &Visible,
) -> Result<Variables, Failure> {
    let gpus = visible.names(lease, names)?;
    let deadline = lease.expires_unix_s.unwrap_or(0.0).max(0.0) as u64;
    let mut variables = vec![
        ("CUDA_VISIBLE_DEVICES", gpus.join(",")),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".into()),
        ("SUBLET_LEASE", lease.id.clone()),
        ("SUBLET_FENCE", lease.fence.unwrap_or(0).to_string()),
        ("SUBLET_DEADLINE", deadline.to_string()),
        daemon.clone(),
    ];
    // An older daemon sends no proof.
    variables.extend(lease.proof.clone().map(|mark| ("SUBLET_PROOF", mark)));
    Ok(variables)
}

/// The variables of this process that a container must be given.
pub fn inherited() -> Variables {
    container::PASSED.into_iter().filter_map(|name| Some((name, env::var(name).ok()?))).collect()
}

/// A variable and its value; `None` unsets it.
pub type Change = (&'static str, Option<String>);

/// `--shell`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ShellArg {
    /// sh, bash, zsh, ksh, dash
    Sh,
    /// fish
    Fish,
}

/// The other variable that names a daemon. It must be unset, because it would name another daemon than that of the
/// lease.
pub fn other_daemon(variables: &Variables) -> Option<&'static str> {
    match variables.iter().any(|(name, _)| *name == "SUBLET_SOCKET") {
        true => Some("SUBLET_URL"),
        false => variables.iter().any(|(name, _)| *name == "SUBLET_URL").then_some("SUBLET_SOCKET"),
    }
}

/// Shell code that sets these variables, and defines a function `sublet` that clears them when the lease is given back.
pub fn for_shell(shell: ShellArg, variables: &Variables, before: &[Change], sublet: &str) -> String {
    let mut changes = set(variables);
    changes.extend(other_daemon(variables).filter(|name| env::var_os(name).is_some()).map(|name| (name, None)));
    lines(shell, &changes) + &functions(shell, before, sublet)
}

/// Changes that set all of these variables.
pub fn set(variables: &Variables) -> Vec<Change> {
    variables.iter().map(|(name, value)| (*name, Some(value.clone()))).collect()
}

/// Lines for a shell to evaluate. They may be joined to one line.
pub fn lines(shell: ShellArg, changes: &[Change]) -> String {
    let line = |(name, value): &Change| match (shell, value) {
        (ShellArg::Sh, Some(value)) => format!("export {name}={};\n", word_of_sh(value)),
        (ShellArg::Sh, None) => format!("unset {name};\n"),
        (ShellArg::Fish, Some(value)) => format!("set -gx {name} {};\n", word_of_fish(value)),
        (ShellArg::Fish, None) => format!("set -e {name};\n"),
    };
    changes.iter().map(line).collect()
}

/// Shell functions that clear the lease's variables after `sublet release` and the like: only the shell itself can do
/// that.
fn functions(shell: ShellArg, before: &[Change], sublet: &str) -> String {
    let clear = lines(shell, before);
    let lost = exit::LEASE_LOST;
    match shell {
        ShellArg::Sh => {
            let sublet = word_of_sh(sublet);
            format!(
                r#"sublet() {{
    case "${{1-}} ${{2-}}" in 'release ' | 'end ') set -- release "$SUBLET_LEASE"; esac;
    {CLEARED_BY_SHELL}=1 {sublet} "$@";
    set -- "$?" "${{1-}}";
    case "$2" in release | end | stop | cancel | kill)
        {sublet} lease --check >/dev/null 2>&1 || [ "$?" -ne {lost} ] || sublet_clear;
    esac;
    return "$1";
}};
sublet_clear() {{
{clear}unset -f sublet sublet_clear;
}};
"#
            )
        }
        ShellArg::Fish => {
            let sublet = word_of_fish(sublet);
            format!(
                r#"function sublet;
    set -l verb "$argv[1]";
    if contains -- "$verb" release end; and test (count $argv) -eq 1; set argv release $SUBLET_LEASE; end;
    env {CLEARED_BY_SHELL}=1 {sublet} $argv;
    set -l code $status;
    if contains -- "$verb" release end stop cancel kill;
        {sublet} lease --check >/dev/null 2>&1;
        test $status -eq {lost}; and sublet_clear;
    end;
    return $code;
end;
function sublet_clear;
{clear}functions -e sublet sublet_clear;
end;
"#
            )
        }
    }
}

/// Set for a command that a shell's function `sublet` runs.
const CLEARED_BY_SHELL: &str = "SUBLET_SHELL_CLEARS";

/// Whether the calling shell clears the variables of its lease itself.
pub fn is_cleared_by_shell() -> bool {
    env::var_os(CLEARED_BY_SHELL).is_some()
}

/// The variables that a lease sets, except the one that names the daemon: it may have been set before, and does no
/// harm.
const OWN: [&str; 9] = [
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "SUBLET_LEASE",
    "SUBLET_FENCE",
    "SUBLET_DEADLINE",
    "SUBLET_PROOF",
    "SUBLET_RESTARTS",
    "SUBLET_SHIM_SOCKET",
    "SUBLET_SOFT_STATE",
];

/// The changes that remove the lease from this process's environment. The values from before the lease are not known
/// here.
pub fn cleared() -> Vec<Change> {
    let is_set = |name: &&str| env::var_os(name).is_some();
    let mut changes: Vec<Change> = OWN.into_iter().filter(is_set).map(|name| (name, None)).collect();
    changes.extend(
        LISTS.into_iter().filter(|(name, _)| is_set(name)).map(|(name, is_ours)| (name, without(name, is_ours))),
    );
    changes
}

/// The values before this lease. Variables of an earlier lease of this shell that is over count as unset.
pub fn before(variables: &Variables, earlier: Earlier) -> Vec<Change> {
    let stale = if earlier == Earlier::Over { cleared() } else { Vec::new() };
    let value = |name: &'static str| match stale.iter().find(|(known, _)| *known == name) {
        Some((_, value)) => value.clone(),
        None => env::var(name).ok(),
    };
    let other = other_daemon(variables).filter(|name| env::var_os(name).is_some());
    variables.iter().map(|(name, _)| *name).chain(other).map(|name| (name, value(name))).collect()
}

/// The state of the lease that the same shell had before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Earlier {
    /// There was no lease, or it is still held.
    None,
    /// The lease is over.
    Over,
}

/// Lists to which a lease adds entries, and the function that recognises those entries.
const LISTS: [(&str, IsOurs); 2] = [("LD_PRELOAD", shim::is_library), (LINKER_ENV, soft::is_libraries)];

/// Whether an entry of a list was added by a lease.
type IsOurs = fn(&str) -> bool;

/// A list without the entries that a lease added; `None` if nothing is left.
fn without(name: &str, is_ours: IsOurs) -> Option<String> {
    let list = env::var(name).unwrap_or_default();
    let left: Vec<&str> = list.split(':').filter(|part| !part.is_empty() && !is_ours(part)).collect();
    (!left.is_empty()).then(|| left.join(":"))
}

/// The text quoted so that a Bourne shell reads it as one word.
pub fn word_of_sh(text: &str) -> String {
    quoted(text, r"'\''")
}

/// The text quoted so that fish reads it as one word.
pub fn word_of_fish(text: &str) -> String {
    quoted(&text.replace('\\', r"\\"), r"\'")
}

fn quoted(value: &str, quote: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@,".contains(c);
    if !value.is_empty() && value.chars().all(is_plain) {
        value.to_owned()
    } else {
        format!("'{}'", value.replace('\'', quote))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn shells_read_the_lines_back() {
        let text = |text: &str| Some(text.to_owned());
        let changes = [("A", text("0,1")), ("B", text(r"it's a \ path")), ("C", text("")), ("D", None)];
        expect![[r#"
            export A=0,1;
            export B='it'\''s a \ path';
            export C='';
            unset D;
        "#]]
        .assert_eq(&lines(ShellArg::Sh, &changes));
        expect![[r#"
            set -gx A 0,1;
            set -gx B 'it\'s a \\ path';
            set -gx C '';
            set -e D;
        "#]]
        .assert_eq(&lines(ShellArg::Fish, &changes));
    }

    #[test]
    fn a_lease_names_one_daemon_only() {
        let named = |name| vec![("SUBLET_LEASE", "L1".to_owned()), (name, "x".to_owned())];
        assert_eq!(other_daemon(&named("SUBLET_SOCKET")), Some("SUBLET_URL"));
        assert_eq!(other_daemon(&named("SUBLET_URL")), Some("SUBLET_SOCKET"));
        assert_eq!(other_daemon(&named("A")), None);
    }
}
