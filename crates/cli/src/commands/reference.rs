//! `sublet reference`: the whole command line as Markdown, from its definitions.

use crate::args::Cli;
use clap::{Arg, Command, CommandFactory};
use std::fmt::Write as _;

/// The reference, which depends on the definitions only.
pub fn markdown() -> String {
    let mut root = Cli::command();
    root.build();
    let everywhere: Vec<String> =
        root.get_arguments().filter(|arg| arg.is_global_set()).map(|arg| arg.get_id().to_string()).collect();
    let mut text = String::from(
        "# The command line\n\nPrinted by `sublet reference` from the definitions; do not edit by hand.\n",
    );
    section(&root, &everywhere, &mut text);
    text
}

/// Writes a command and its subcommands. Global flags are described once, at the top.
fn section(command: &Command, everywhere: &[String], text: &mut String) {
    if command.is_hide_set() {
        return;
    }
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    // Writing to a string cannot fail.
    let _ = write!(text, "\n## `{name}`\n\n");
    if let Some(about) = command.get_long_about().or_else(|| command.get_about()) {
        let _ = writeln!(text, "{about}.\n");
    }
    let aliases: Vec<String> = command.get_visible_aliases().map(|alias| format!("`{alias}`")).collect();
    if !aliases.is_empty() {
        let _ = writeln!(text, "Also: {}.\n", aliases.join(", "));
    }
    let _ = writeln!(text, "```text\n{}\n```", command.clone().render_usage());
    arguments(command, everywhere, text);
    if let Some(after) = command.get_after_long_help() {
        let _ = write!(text, "\n```text\n{after}\n```\n");
    }
    command.get_subcommands().filter(|sub| sub.get_name() != "help").for_each(|sub| section(sub, everywhere, text));
}

fn arguments(command: &Command, everywhere: &[String], text: &mut String) {
    let is_root = command.get_bin_name().is_none_or(|name| !name.contains(' '));
    let shown = |arg: &&Arg| {
        let is_ours = !matches!(arg.get_id().as_str(), "help" | "version");
        let is_known = !is_root && everywhere.iter().any(|known| arg.get_id() == known.as_str());
        !arg.is_hide_set() && is_ours && !is_known
    };
    let arguments: Vec<&Arg> = command.get_arguments().filter(shown).collect();
    if arguments.is_empty() {
        return;
    }
    text.push('\n');
    for arg in arguments {
        let _ = writeln!(text, "- {}", describe(arg));
    }
}

fn describe(arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let mut line = format!("`{}`: {help}", spelling(arg));
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|_| arg.get_action().takes_values())
        .map(|value| match value.get_help() {
            Some(help) => format!("`{}` ({help})", value.get_name()),
            None => format!("`{}`", value.get_name()),
        })
        .collect();
    if !values.is_empty() {
        let _ = write!(line, "; one of {}", values.join(", "));
    }
    let defaults: Vec<&str> = arg.get_default_values().iter().filter_map(|value| value.to_str()).collect();
    if arg.get_action().takes_values() && !defaults.is_empty() {
        let _ = write!(line, "; default `{}`", defaults.join(" "));
    }
    line
}

fn spelling(arg: &Arg) -> String {
    let value = arg.get_value_names().and_then(<[_]>::first).map_or_else(String::new, ToString::to_string);
    let (short, long) = (arg.get_short(), arg.get_long());
    let mut text = match (short, long) {
        (Some(short), Some(long)) => format!("-{short}, --{long}"),
        (None, Some(long)) => format!("--{long}"),
        (Some(short), None) => format!("-{short}"),
        (None, None) => return value,
    };
    let may_be_left_out = arg.get_num_args().is_some_and(|range| range.min_values() == 0);
    match arg.get_action().takes_values() {
        // Writing to a string cannot fail.
        true if may_be_left_out => drop(write!(text, "[={value}]")),
        true => drop(write!(text, " {value}")),
        false => {}
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_for_people_is_in_the_reference() {
        let text = markdown();
        for name in ["run", "lease", "gpus drain", "journal verify", "doctor"] {
            assert!(text.contains(&format!("\n## `sublet {name}`\n")), "{name}");
        }
        assert!(!text.contains("openapi"));
        for name in ["verify", "backup", "leases"] {
            let section = text.split(&format!("\n## `sublet journal {name}`\n")).nth(1).unwrap_or_default();
            assert!(section.split("\n## ").next().unwrap_or_default().contains("- `--state-dir DIR`"), "{name}");
        }
        assert_eq!(text, markdown());
    }
}
