//! How `sublet -h` and `sublet --help` list the commands: in four groups, with the first two commands to type above them.
//!
//! `-h` names the commands, so that the list fits a screen; `--help` describes each in one line. The same holds for each
//! command: `-h` has what most calls need (at most 25 lines), `--help` all of it. Flags are left out of `-h` by
//! `hide_short_help` beside their definition.

use crate::args::Cli;
use clap::{Command, CommandFactory};
use std::fmt::Write as _;

/// Every command that help shows, once, in the order in which it is listed.
const GROUPS: [(&str, &[&str]); 4] = [
    (
        "Use",
        &[
            "run",
            "lease",
            "wrap",
            "accept",
            "renew",
            "park",
            "resume",
            "stop",
            "release",
            "adopt",
            "aside",
            "proxy",
            "checkpoint",
        ],
    ),
    ("Look", &["ps", "queue", "explain", "gpus", "usage", "doctor", "audit"]),
    ("Operate", &["serve", "setup", "config", "enforce", "unadopt", "token", "tls", "journal"]),
    ("More", &["soft", "replay", "completions", "man", "help"]),
];

const START: &str = "\
Start here:
  sublet doctor                              what works on this machine
  sublet run --vram 10G -- python train.py   run a program on a GPU
";

const FURTHER: &str = "\
`sublet --help` describes each command, `sublet COMMAND -h` its main flags, and
`sublet COMMAND --help` all of them.
";

/// The command line with its commands listed in groups.
pub fn command_in_groups() -> Command {
    let command = Cli::command();
    let (short, long) = (format!("{START}\n{}\n{FURTHER}", names()), format!("{START}\n{}", descriptions(&command)));
    command.before_help(short).before_long_help(long)
}

/// A line or two for each group, with the names of its commands.
fn names() -> String {
    let mut text = String::new();
    for (group, commands) in GROUPS {
        let mut line = format!("{group:<10}");
        for name in commands {
            if line.len() + name.len() > 79 {
                text.extend([line.trim_end(), "\n"]);
                line = " ".repeat(10);
            }
            line.extend([name, " "]);
        }
        text.extend([line.trim_end(), "\n"]);
    }
    text
}

/// A line for each command, under the heading of its group.
fn descriptions(command: &Command) -> String {
    let mut text = String::new();
    for (group, commands) in GROUPS {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{group}:");
        for name in commands {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map_or_else(|| "Describe a command".to_owned(), ToString::to_string);
            let _ = writeln!(text, "  {name:<13}{about}");
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    const WIDTH: usize = 80;

    /// A command and all below it that help shows, with the words to call each.
    fn all(command: &Command, path: &str, found: &mut Vec<(String, Command)>) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            let path = format!("{path} {}", sub.get_name());
            all(sub, &path, found);
            found.push((path, sub.clone().term_width(WIDTH)));
        }
    }

    fn every_command() -> Vec<(String, Command)> {
        let mut root = command_in_groups();
        root.build();
        let mut found = vec![("sublet".to_owned(), root.clone().term_width(WIDTH))];
        all(&root, "sublet", &mut found);
        found
    }

    #[test]
    fn every_command_is_in_one_group() {
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, commands)| commands.iter().copied()).collect();
        let command = Cli::command();
        let mut defined: Vec<&str> =
            command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(Command::get_name).collect();
        defined.push("help");
        grouped.sort_unstable();
        defined.sort_unstable();
        assert_eq!(grouped, defined);
    }

    #[test]
    fn short_help_has_at_most_25_lines() {
        for (name, mut command) in every_command() {
            let help = command.render_help().to_string();
            assert!(help.lines().count() <= 25, "{name} -h has {} lines:\n{help}", help.lines().count());
        }
    }

    #[test]
    fn no_text_of_help_is_wrapped_twice() {
        for (name, command) in every_command() {
            let texts = [command.get_before_long_help(), command.get_after_long_help(), command.get_after_help()];
            for line in texts.into_iter().flatten().map(ToString::to_string).collect::<Vec<_>>().join("\n").lines() {
                assert!(line.chars().count() <= WIDTH, "{name} --help: `{line}` has {} columns", line.chars().count());
            }
        }
    }

    #[test]
    fn the_list_of_commands_fits_a_screen() {
        expect![[r#"
            Share a few GPUs by short leases

            Start here:
              sublet doctor                              what works on this machine
              sublet run --vram 10G -- python train.py   run a program on a GPU

            Use       run lease wrap accept renew park resume stop release adopt aside
                      proxy checkpoint
            Look      ps queue explain gpus usage doctor audit
            Operate   serve setup config enforce unadopt token tls journal
            More      soft replay completions man help

            `sublet --help` describes each command, `sublet COMMAND -h` its main flags, and
            `sublet COMMAND --help` all of them.

            Usage: sublet [OPTIONS] [COMMAND]

              -h, --help     Print help (see more with '--help')
              -V, --version  Print version
        "#]]
        .assert_eq(&every_command()[0].1.clone().render_help().to_string());
    }
}
