//! Every command line of `sublet` in README and docs is one that this program reads.
//!
//! ```text
//!   console block ──► lines with a prompt ──► words, as a shell splits them ──► commands ──► those of `sublet` ──► clap
//! ```
//! Absent: running them. tests-blackbox/tests/documents.rs runs the blocks of README and the guides that can be run.

use crate::args::Cli;
use crate::groups::command_in_groups;
use clap::FromArgMatches;
use std::fs;
use std::path::{Path, PathBuf};

/// Stand-ins for what the reader knows, in lines that are no whole command.
const PLACEHOLDERS: [&str; 2] = ["…", "..."];

#[test]
fn every_command_line_in_the_documents_is_read() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![root.join("README.md")];
    markdown(&root.join("docs"), &mut files);
    let (mut count, mut wrong) = (0, Vec::new());
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_default();
        for (line, typed) in typed(&text) {
            for command in commands(&typed) {
                let Some(at) =
                    command.iter().position(|word| !word.contains('=')).filter(|at| command[*at] == "sublet")
                else {
                    continue;
                };
                let words = command[at..].iter().filter(|word| !PLACEHOLDERS.contains(&word.as_str()));
                let parsed =
                    command_in_groups().try_get_matches_from(words).and_then(|found| Cli::from_arg_matches(&found));
                count += 1;
                if let Err(error) = parsed {
                    let first = error.to_string().lines().next().unwrap_or_default().to_owned();
                    wrong.push(format!("{}:{line}: {}: {first}", file.display(), command.join(" ")));
                }
            }
        }
    }
    assert!(count > 50, "{count} command lines were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn lines_are_split_as_a_shell_does() {
    let text = "```console\none$ A=1 sublet x 'a b' \"c\" \\\n  -d   # why\nshown\n# sublet y && z | sublet v > f &\n```\n$ no\n";
    let typed = typed(text);
    assert_eq!(typed.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2, 5]);
    assert_eq!(commands(&typed[0].1), [["A=1", "sublet", "x", "a b", "c", "-d"]]);
    let words: Vec<String> = commands(&typed[1].1).iter().map(|command| command.join(" ")).collect();
    assert_eq!(words, ["sublet y", "z", "sublet v", "f"]);
    assert_eq!(commands("eval \"$(sublet lease --vram 8G)\"")[1], ["sublet", "lease", "--vram", "8G"]);
}

fn markdown(folder: &Path, files: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            markdown(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            files.push(path);
        }
    }
}

/// What is typed at the prompts of console blocks, with the number of its line.
fn typed(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut inside, mut goes_on) = (Vec::<(usize, String)>::new(), false, false);
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            inside = line == "```console";
            continue;
        }
        let prompted = line
            .split_once(['$', '#'])
            .filter(|(terminal, rest)| rest.starts_with(' ') && terminal.chars().all(|c| c.is_ascii_lowercase()));
        let part = match (prompted, goes_on) {
            (_, true) => line,
            (Some((_, rest)), false) => rest,
            (None, false) => continue,
        };
        if !inside {
            continue;
        }
        let part = part.split("  #").next().unwrap_or(part).trim();
        let piece = part.strip_suffix('\\').unwrap_or(part);
        match found.last_mut().filter(|_| goes_on) {
            Some((_, line)) => line.push_str(piece),
            None => found.push((number + 1, piece.to_owned())),
        }
        goes_on = part.ends_with('\\');
    }
    found
}

/// The commands of a line. What `$(…)` starts is one of them, and so is a file after `>`.
fn commands(line: &str) -> Vec<Vec<String>> {
    let line = line.replace("\"$(", " ; ").replace(")\"", " ; ").replace("$(", " ; ");
    let (mut commands, mut word, mut is_word, mut quote) = (vec![Vec::new()], String::new(), false, None);
    for c in line.chars().chain([' ']) {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.push(c),
            (None, '\'' | '"') => (quote, is_word) = (Some(c), true),
            (None, c) if c.is_whitespace() || ";|&<>".contains(c) => {
                let words = commands.last_mut().expect("there is always one");
                if is_word || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                is_word = false;
                if ";|&<>".contains(c) && !words.is_empty() {
                    commands.push(Vec::new());
                }
            }
            (None, c) => word.push(c),
        }
    }
    commands.retain(|words| !words.is_empty());
    commands
}
