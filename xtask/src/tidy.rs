//! Rules of style that a compiler does not keep.
//!
//! Each has a reason in words, which the message shows when a file breaks the rule.

use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// In well-kept Rust projects, nine files in ten are shorter.
const LINES_MAX: usize = 900;
/// Readers start with this document, so it must be short enough to be read to the end.
const ARCHITECTURE_LINES_MAX: usize = 200;

/// Texts that no source file may contain. Written in two halves, or this file would break them.
const FORBIDDEN: [(&str, &str); 5] = [
    (concat!("#[", "allow("), "use `#[expect(lint, reason = ...)]`: it says why, and ends when it is not needed"),
    (concat!("#![", "allow("), "use `#![expect(lint, reason = ...)]`: it says why, and ends when it is not needed"),
    (concat!("todo", "!("), "finish it, or refuse it with a sentence"),
    (concat!("unimplemented", "!("), "finish it, or refuse it with a sentence"),
    (concat!("#[", "ignore"), "a test runs or says why it was skipped"),
];

/// Texts that the core may not contain: it is told the time and the world.
const FORBIDDEN_IN_CORE: [(&str, &str); 8] = [
    ("HashMap", "iteration order must not depend on a hash seed: use BTreeMap"),
    ("HashSet", "iteration order must not depend on a hash seed: use BTreeSet"),
    ("Instant::now", "core is told the time: take `now: Time`"),
    ("SystemTime", "core is told the time: take `now: Time`"),
    ("std::fs", "core does no IO: facts arrive as an `Event`"),
    ("std::net", "core does no IO: facts arrive as an `Event`"),
    ("std::thread", "core has one caller and no threads"),
    ("tokio", "core does no IO and waits for nothing"),
];

/// One line for each rule that a file under `root` breaks.
pub fn violations(root: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for dir in ["crates", "xtask", "bench", "tests-blackbox", "examples", "cookbook", "fuzz"] {
        collect_sources(&root.join(dir), &mut files)?;
    }
    files.sort();
    let mut found = Vec::new();
    for path in files {
        let text = fs::read_to_string(&path).with_context(|| format!("{} could not be read", path.display()))?;
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        found.extend(source_violations(&name, &text));
    }
    let architecture = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap_or_default();
    match architecture.lines().count() {
        0 => found.push("ARCHITECTURE.md: missing; it is what a newcomer reads first".into()),
        lines if lines >= ARCHITECTURE_LINES_MAX => {
            found.push(format!("ARCHITECTURE.md: {lines} lines; keep it under {ARCHITECTURE_LINES_MAX}"));
        }
        _ => {}
    }
    Ok(found)
}

fn collect_sources(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect_sources(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn source_violations(name: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let lines = text.lines().count();
    if lines > LINES_MAX {
        found.push(format!("{name}: {lines} lines; split it by purpose (at most {LINES_MAX})"));
    }
    if !text.starts_with("//!") {
        found.push(format!("{name}:1: no `//!`; say what the module is for and what is deliberately absent"));
    }
    let core = name.starts_with("crates/core/src/");
    let banned = FORBIDDEN.iter().chain(if core { &FORBIDDEN_IN_CORE[..] } else { &[] });
    for (banned, reason) in banned {
        let hits = text.lines().enumerate().filter(|(_, line)| !is_comment(line) && line.contains(banned));
        found.extend(hits.map(|(number, _)| format!("{name}:{}: `{banned}`; {reason}", number + 1)));
    }
    found
}

/// True for a comment: the forbidden texts are allowed there.
fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_tidy() {
        assert_eq!(violations(&crate::workspace::root()).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_broken_rule_is_named_with_its_line_and_reason() {
        let text = "//! Odd.\n// HashMap in a comment is nothing\nuse std::collections::HashMap;\n";
        assert_eq!(
            source_violations("crates/core/src/odd.rs", text),
            ["crates/core/src/odd.rs:3: `HashMap`; iteration order must not depend on a hash seed: use BTreeMap"]
        );
        assert_eq!(source_violations("crates/host/src/odd.rs", text), Vec::<String>::new());
        assert_eq!(source_violations("a.rs", "fn main() {}\n").len(), 1, "a module says what it is for");
        assert_eq!(source_violations("a.rs", &"//! Long.\n".repeat(901)).len(), 1);
    }
}
