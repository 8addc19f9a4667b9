//! How the project speaks: how often its texts use words such as `who` and `nobody`, which types share a name, and
//! which commits have a subject of more than 72 characters.
//!
//! The subject of a plain sentence is a thing with a name: the lease, the process, the user. Sentences about `whoever`
//! have to be read twice. At most 2 such words in 1,000 are fine anywhere. Some crates and documents are still above;
//! each has a ceiling, its count when the rule began, and may only fall.
//!
//! ```text
//!   a crate's .rs files ──► comments and string literals ┐
//!   a document          ──► all of it                    ┴──► words ──► person words in 1,000
//! ```
//! Absent: grammar. A quotation counts like any sentence.

use crate::shell::program;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Words that stand for a person or a thing without naming it.
const PERSON_WORDS: [&str; 8] = ["who", "whom", "whose", "whoever", "whomever", "nobody", "somebody", "anybody"];
/// In 1,000 words.
const RATE_MAX: f64 = 2.0;
/// In a shorter text one word would be too many.
const WORDS_LEAST: usize = 200;
/// Longer subjects are cut off where commits are listed.
const SUBJECT_MAX: usize = 72;
/// Commits before this day were made without the rule.
const SUBJECTS_SINCE: &str = "2026-11-18T12:00:00Z";

/// Texts above [`RATE_MAX`] with the rate that they may not exceed. Remove a row when its text is below the limit.
const CEILINGS: [(&str, f64); 2] = [("crates/core", 7.0), ("crates/sim", 3.8)];
/// This file lists the words, and is not counted.
const LIST: &str = "xtask/src/words.rs";
/// Crates that are not renamed yet. Their shared type names are counted; the count may only fall.
const RENAMED_LATER: [&str; 3] = ["crates/core", "crates/daemon", "crates/sim"];
/// How many type names those crates share, among themselves or with another crate.
const SHARED_LATER_MAX: usize = 43;
/// Names of one idea at two layers: core decides by it, and wire has it in the API.
const ONE_IDEA: [&str; 14] = [
    "Aside",
    "Bound",
    "Exclusivity",
    "Gpu",
    "Lease",
    "Mode",
    "Notice",
    "Offer",
    "Preempt",
    "Rule",
    "Tier",
    "Token",
    "Tokens",
    "Vram",
];

/// One line for each text that is above its limit, for each shared type name and for each commit subject that is too
/// long.
pub fn violations(root: &Path) -> Result<Vec<String>> {
    let mut found: Vec<String> = texts(root)?.iter().filter_map(|(name, text)| over_limit(name, *text)).collect();
    found.extend(shared_names(&type_crates(root)?));
    found.extend(long_subjects(root));
    Ok(found)
}

/// How many words a text has, and how many of them are person words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WordCount {
    words: usize,
    person: usize,
}

impl WordCount {
    fn of(text: &str) -> WordCount {
        let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| word.chars().any(char::is_alphabetic));
        words.fold(WordCount::default(), |count, word| WordCount {
            words: count.words + 1,
            person: count.person + usize::from(PERSON_WORDS.contains(&word.to_ascii_lowercase().as_str())),
        })
    }

    fn sum_with(self, other: WordCount) -> WordCount {
        WordCount { words: self.words + other.words, person: self.person + other.person }
    }

    fn rate(self) -> f64 {
        self.person as f64 * 1_000.0 / self.words.max(WORDS_LEAST) as f64
    }
}

fn over_limit(name: &str, text: WordCount) -> Option<String> {
    let ceiling = CEILINGS.iter().find(|(of, _)| *of == name).map_or(RATE_MAX, |(_, rate)| *rate);
    (text.rate() > ceiling).then(|| {
        format!(
            "{name}: {:.1} words in 1,000 are {}, and at most {ceiling:.1} may be; name the lease, the process or the user",
            text.rate(),
            PERSON_WORDS.join(", ")
        )
    })
}

/// What each crate's comments and strings, and each document, count.
fn texts(root: &Path) -> Result<BTreeMap<String, WordCount>> {
    let mut texts = BTreeMap::new();
    for (name, folder) in crates(root)? {
        let mut count = WordCount::default();
        for file in files(&folder, "rs").iter().filter(|file| !file.ends_with(LIST)) {
            count = count.sum_with(WordCount::of(&prose(&read(file)?)));
        }
        texts.insert(name, count);
    }
    let documents = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(|name| root.join(name));
    for document in documents.into_iter().chain(files(&root.join("docs"), "md")) {
        let name = document.strip_prefix(root).unwrap_or(&document).display().to_string();
        texts.insert(name, WordCount::of(&read(&document)?));
    }
    Ok(texts)
}

/// The folders of all crates, by name.
fn crates(root: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut found: Vec<(String, PathBuf)> = ["xtask", "bench", "tests-blackbox", "examples", "cookbook", "fuzz"]
        .map(|name| (name.to_owned(), root.join(name)))
        .into();
    for entry in fs::read_dir(root.join("crates")).context("crates/ could not be listed")? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        found.push((format!("crates/{name}"), path));
    }
    found.sort();
    Ok(found)
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .flat_map(|entry| match entry.path() {
            path if path.is_dir() => files(&path, extension),
            path if path.extension().is_some_and(|of| of == extension) => vec![path],
            _ => Vec::new(),
        })
        .collect();
    found.sort();
    found
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("{} could not be read", path.display()))
}

/// The comments and string literals of a source file.
fn prose(source: &str) -> String {
    let mut prose = String::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            let end = rest.find('\n').unwrap_or(rest.len());
            prose.extend([&rest[..end], "\n"]);
            end
        } else if let Some(hashes) = raw_string(rest) {
            let (open, close) = (hashes + 2, format!("\"{}", "#".repeat(hashes)));
            let end = rest[open..].find(&close).map_or(rest.len(), |at| open + at);
            prose.extend([&rest[open..end], "\n"]);
            (end + close.len()).min(rest.len())
        } else if first == '"' {
            let end = string_end(rest);
            prose.extend([&rest[1..end], "\n"]);
            (end + 1).min(rest.len())
        } else if rest.starts_with("'\"'") {
            3
        } else if rest.starts_with("'\\\"'") || rest.starts_with("b'\"'") {
            4
        } else {
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    prose
}

/// The number of `#` before a raw string that begins here.
fn raw_string(text: &str) -> Option<usize> {
    let rest = text.strip_prefix('r')?;
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    rest[hashes..].starts_with('"').then_some(hashes)
}

/// Where the string that begins here has its closing quote.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !escaped => return at,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

/// A line for each type name that more than one type has, and one if the crates that are not renamed yet share more
/// names than [`SHARED_LATER_MAX`].
fn shared_names(types: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let is_later = |name: &String| RENAMED_LATER.contains(&name.as_str());
    let shared = types.iter().filter(|(name, crates)| crates.len() > 1 && !ONE_IDEA.contains(&name.as_str()));
    let (later, now): (Vec<_>, Vec<_>) = shared.partition(|(_, crates)| crates.iter().any(is_later));
    let mut found: Vec<String> = now
        .into_iter()
        .map(|(name, crates)| format!("{} types are called `{name}`, in {}", crates.len(), crates.join(", ")))
        .collect();
    if later.len() > SHARED_LATER_MAX {
        let names: Vec<&str> = later.iter().map(|(name, _)| name.as_str()).collect();
        found.push(format!(
            "{} type names of {} are shared, and at most {SHARED_LATER_MAX} may be; rename the newest of: {}",
            later.len(),
            RENAMED_LATER.join(", "),
            names.join(", ")
        ));
    }
    found
}

/// The crates that define each type name, once for each definition. Tests in folders of their own are left out.
fn type_crates(root: &Path) -> Result<BTreeMap<String, Vec<String>>> {
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, folder) in crates(root)? {
        for file in files(&folder.join("src"), "rs") {
            for defined in read(&file)?.lines().filter_map(type_name) {
                types.entry(defined.to_owned()).or_default().push(name.clone());
            }
        }
    }
    Ok(types)
}

/// The type that a line at the outermost level of a file defines.
fn type_name(line: &str) -> Option<&str> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| matches!(*word, "struct" | "enum" | "trait" | "union"))?;
    let is_definition =
        !line.starts_with(' ') && words[..at].iter().all(|word| word.starts_with("pub") || *word == "unsafe");
    let name = words.get(at + 1)?.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (is_definition && !name.is_empty()).then_some(name)
}

/// Commits whose subjects are too long. Where there is no history, as in a tarball, there is nothing to say.
fn long_subjects(root: &Path) -> Vec<String> {
    let since = format!("--since={SUBJECTS_SINCE}");
    let listed = program("git").args(["log", "--format=%h %s", &since]).dir(root).quiet_output().unwrap_or_default();
    let subject = |line: &&str| line.split_once(' ').map_or(0, |(_, subject)| subject.chars().count());
    let long = listed.lines().filter(|line| subject(line) > SUBJECT_MAX);
    long.map(|line| format!("commit {line}: the subject is longer than {SUBJECT_MAX} characters")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_speaks_plainly() {
        assert_eq!(violations(&crate::workspace::root()).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn comments_and_strings_are_prose_and_code_is_not() {
        let source =
            "let who = 1; // whoever\nlet x = \"no\\\"body\"; let c = '\"'; r#\"so\"me\"#; /// doc\nfn nobody() {}";
        assert_eq!(prose(source), "// whoever\nno\\\"body\nso\"me\n/// doc\n");
        assert_eq!(WordCount::of(&prose(source)), WordCount { words: 6, person: 1 });
    }

    #[test]
    fn a_short_text_is_not_above_by_one_word() {
        assert!(over_limit("x", WordCount { words: 10, person: 0 }).is_none());
        assert!(over_limit("x", WordCount { words: 10_000, person: 20 }).is_none());
        assert!(
            over_limit("x", WordCount { words: 10_000, person: 21 })
                .is_some_and(|line| line.starts_with("x: 2.1 words"))
        );
    }

    #[test]
    fn a_shared_type_name_is_found_unless_it_is_one_idea() {
        let types = |named: &[(&str, &[&str])]| -> BTreeMap<String, Vec<String>> {
            named
                .iter()
                .map(|(name, of)| ((*name).to_owned(), of.iter().map(|of| (*of).to_owned()).collect()))
                .collect()
        };
        assert_eq!(
            shared_names(&types(&[("Place", &["bench", "crates/ptx"]), ("Alone", &["bench"])])),
            ["2 types are called `Place`, in bench, crates/ptx"]
        );
        assert_eq!(shared_names(&types(&[("Tier", &["crates/core", "crates/wire"])])), Vec::<String>::new());
        assert_eq!(shared_names(&types(&[("Place", &["crates/core", "bench"])])), Vec::<String>::new());
    }

    #[test]
    fn definitions_of_types_are_found_and_uses_are_not() {
        assert_eq!(type_name("pub(crate) struct Place<T> {"), Some("Place"));
        assert_eq!(type_name("enum Way {"), Some("Way"));
        assert_eq!(
            type_name("    struct Inner;"),
            None,
            "those in functions and test modules have no readers elsewhere"
        );
        assert_eq!(type_name("// a struct Foo"), None);
        assert_eq!(type_name("impl Trait for Foo {"), None);
    }
}
