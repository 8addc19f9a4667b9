//! A crate's source files, as far as module paths go: which top-level module names which other.
//!
//! A file is read as tokens, without comments and literals. Items under `#[cfg(test)]` are skipped, and the files of
//! modules that are declared there.

use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;

/// A crate's files.
pub struct CrateSource {
    /// The crate's folder, from the root of the workspace.
    pub folder: String,
    /// All files but those of tests.
    files: Vec<SourceFile>,
}

/// A file: its module, and its tokens without those of tests.
struct SourceFile {
    /// Its path in the folder `src`.
    path: String,
    /// The names of its module and those above it; none for the root.
    module: Vec<String>,
    tokens: Vec<Token>,
}

/// A name, `::`, or one other character, with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Token {
    text: String,
    line: usize,
}

/// Where a module is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsePlace {
    file: String,
    line: usize,
}

impl fmt::Display for UsePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A path from one module to another.
pub struct ModuleUse {
    /// The top-level module that has the path.
    pub from: String,
    /// The top-level module that the path names; `None`: all names of the root.
    pub to: Option<String>,
    /// Where.
    pub place: UsePlace,
}

impl CrateSource {
    /// Reads the crate in a folder of the workspace.
    pub fn read(root: &Path, folder: &str) -> Result<CrateSource> {
        let source = root.join(folder).join("src");
        ensure!(source.join("lib.rs").exists(), "{folder} is no library: it has no src/lib.rs");
        let mut texts = Vec::new();
        collect(&source, "", &mut texts)?;
        let files: Vec<(&str, &str)> = texts.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        Ok(CrateSource::from_files(folder, &files))
    }

    /// A crate with these files: their paths in `src`, and their texts.
    pub fn from_files(folder: &str, files: &[(&str, &str)]) -> CrateSource {
        let mut test_modules = BTreeSet::new();
        let mut read = Vec::new();
        for (path, text) in files {
            let Some(module) = module_of(path) else { continue };
            let (tokens, tests) = without_tests(tokens(text));
            if tokens.is_empty() && tests.is_whole_file {
                continue;
            }
            test_modules.extend(tests.modules.into_iter().map(|name| [module.clone(), vec![name]].concat()));
            read.push(SourceFile { path: (*path).to_owned(), module, tokens });
        }
        read.retain(|file| !test_modules.iter().any(|test| file.module.starts_with(test)));
        CrateSource { folder: folder.to_owned(), files: read }
    }

    /// The modules of a top-level module, as a crate of their own.
    pub fn inside(&self, module: &str) -> CrateSource {
        let is_inside = |file: &&SourceFile| file.module.first().is_some_and(|first| first == module);
        let files = self.files.iter().filter(is_inside).map(|file| SourceFile {
            path: file.path.clone(),
            module: file.module[1..].to_vec(),
            tokens: paths_from(module, &file.tokens),
        });
        CrateSource { folder: self.folder.clone(), files: files.collect() }
    }

    /// The top-level modules.
    pub fn modules(&self) -> BTreeSet<String> {
        let declared = self.files.iter().filter(|file| file.module.is_empty()).flat_map(|root| declared(&root.tokens));
        let in_files = self.files.iter().filter_map(|file| file.module.first().cloned());
        declared.chain(in_files).collect()
    }

    /// All paths from one top-level module to another.
    pub fn uses(&self) -> Vec<ModuleUse> {
        let (modules, exports) = (self.modules(), self.root_exports());
        let mut found = Vec::new();
        for file in &self.files {
            for path in paths_to_root(&file.tokens, &file.module) {
                let place = UsePlace { file: format!("{}/src/{}", self.folder, file.path), line: path.line };
                let targets = match path.name.as_str() {
                    "*" => vec![None],
                    name if modules.contains(name) => vec![Some(name.to_owned())],
                    name => exports.sources_of(name).map(Some).collect(),
                };
                found.extend(targets.into_iter().map(|to| ModuleUse {
                    from: path.from.clone(),
                    to,
                    place: place.clone(),
                }));
            }
        }
        found
    }

    /// Which module each name comes from that the root has by `use`.
    fn root_exports(&self) -> RootExports {
        let modules = self.modules();
        let mut exports = RootExports::default();
        for root in self.files.iter().filter(|file| file.module.is_empty()) {
            for tree in use_trees(&root.tokens) {
                for path in tree {
                    let path: Vec<&str> =
                        path.iter().map(String::as_str).skip_while(|name| matches!(*name, "crate" | "self")).collect();
                    let [first, .., last] = path.as_slice() else { continue };
                    match *last {
                        _ if !modules.contains(*first) => {}
                        "*" => drop(exports.globs.insert((*first).to_owned())),
                        name => drop(exports.names.insert(name.to_owned(), (*first).to_owned())),
                    }
                }
            }
        }
        exports
    }
}

#[derive(Default)]
struct RootExports {
    names: BTreeMap<String, String>,
    /// Modules whose names the root has all.
    globs: BTreeSet<String>,
}

impl RootExports {
    /// The module of a name; those that may have it, if that is not known.
    fn sources_of(&self, name: &str) -> impl Iterator<Item = String> {
        let known = self.names.get(name).cloned();
        let possible = if known.is_some() { BTreeSet::new() } else { self.globs.clone() };
        known.into_iter().chain(possible)
    }
}

fn collect(folder: &Path, prefix: &str, texts: &mut Vec<(String, String)>) -> Result<()> {
    let mut entries: Vec<_> = fs::read_dir(folder)
        .with_context(|| format!("{} could not be listed", folder.display()))?
        .collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() {
            collect(&path, &format!("{prefix}{name}/"), texts)?;
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(&path).with_context(|| format!("{} could not be read", path.display()))?;
            texts.push((format!("{prefix}{name}"), text));
        }
    }
    Ok(())
}

/// The module of a file; `None` for tests and for programs beside the library.
fn module_of(path: &str) -> Option<Vec<String>> {
    let mut names: Vec<&str> = path.strip_suffix(".rs")?.split('/').collect();
    if matches!(names.as_slice(), ["bin", ..] | ["main"]) || names.contains(&"tests") {
        return None;
    }
    if matches!(names.last(), Some(&"mod")) || names == ["lib"] {
        names.pop();
    }
    Some(names.into_iter().map(str::to_owned).collect())
}

/// The tokens of a file. Comments, texts, characters and lifetimes are left out.
fn tokens(text: &str) -> Vec<Token> {
    let (mut found, mut rest, mut line) = (Vec::new(), text, 1);
    while let Some(first) = rest.chars().next() {
        let length = match first {
            _ if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            _ if rest.starts_with("/*") => block_comment(rest),
            '"' => quoted(rest),
            '\'' => character_or_lifetime(rest),
            _ if first.is_alphabetic() || first == '_' => match raw_or_prefixed(rest) {
                Some(length) => length,
                None => name_length(rest),
            },
            _ if rest.starts_with("::") => 2,
            _ => first.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        let is_literal = token.ends_with('"') || token.starts_with('\'') || token.ends_with("#") && token.len() > 1;
        let is_left_out = is_literal || token.starts_with("//") || token.starts_with("/*") || token.trim().is_empty();
        if !is_left_out {
            let name = token.strip_prefix("r#").unwrap_or(token);
            found.push(Token { text: name.to_owned(), line });
        }
        line += token.matches('\n').count();
        rest = after;
    }
    found
}

fn name_length(text: &str) -> usize {
    let text_after = text.strip_prefix("r#").filter(|after| after.starts_with(|c: char| c.is_alphabetic() || c == '_'));
    let skipped = text.len() - text_after.unwrap_or(text).len();
    let name = &text[skipped..];
    skipped + name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len())
}

/// The length of a raw text, or of one with a prefix, that begins here.
fn raw_or_prefixed(text: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r"]
        .into_iter()
        .find(|prefix| text.strip_prefix(prefix).is_some_and(|after| after.trim_start_matches('#').starts_with('"')))?;
    let after = &text[prefix.len()..];
    let hashes = after.len() - after.trim_start_matches('#').len();
    if !prefix.ends_with('r') {
        return (hashes == 0).then(|| prefix.len() + quoted(after));
    }
    let (open, close) = (hashes + 1, format!("\"{}", "#".repeat(hashes)));
    let end = after[open..].find(&close).map_or(after.len(), |at| open + at + close.len());
    Some(prefix.len() + end)
}

/// The length of a text that begins with its quote.
fn quoted(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !is_escaped => return at + 1,
            '\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    text.len()
}

/// The length of a character, or of the quote of a lifetime and its name.
fn character_or_lifetime(text: &str) -> usize {
    let mut inner = text.chars().skip(1);
    match (inner.next(), inner.next()) {
        (Some('\\'), Some(escaped)) => {
            let begin = 2 + escaped.len_utf8();
            text[begin..].find('\'').map_or(text.len(), |end| begin + end + 1)
        }
        (Some(own), Some('\'')) => 2 + own.len_utf8(),
        _ => 1 + name_length(&text[1..]),
    }
}

/// The length of a comment, which may have others inside.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        let step = match &text[at..] {
            rest if rest.starts_with("/*") => {
                depth += 1;
                2
            }
            rest if rest.starts_with("*/") => {
                depth -= 1;
                2
            }
            rest => rest.chars().next().map_or(1, char::len_utf8),
        };
        at += step;
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// What of a file is for tests.
#[derive(Default)]
struct TestParts {
    is_whole_file: bool,
    /// Modules that are declared for tests, with files of their own.
    modules: Vec<String>,
}

/// Takes items under `#[cfg(test)]` out.
fn without_tests(all: Vec<Token>) -> (Vec<Token>, TestParts) {
    let (mut kept, mut tests, mut at) = (Vec::new(), TestParts::default(), 0);
    while at < all.len() {
        match test_attribute(&all[at..]) {
            Some((_, AttributeOf::File)) => {
                tests.is_whole_file = true;
                return (Vec::new(), tests);
            }
            Some((length, AttributeOf::Item)) => {
                let item = &all[at + length..];
                let end = item_length(item);
                tests.modules.extend(declared(&item[..end]));
                at += length + end;
            }
            None => {
                kept.push(all[at].clone());
                at += 1;
            }
        }
    }
    (kept, tests)
}

/// What an attribute is about.
enum AttributeOf {
    Item,
    File,
}

/// The length of an attribute that begins here and leaves its item out of the product.
fn test_attribute(tokens: &[Token]) -> Option<(usize, AttributeOf)> {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let (about, open) = match (text(0), text(1), text(2)) {
        ("#", "[", "cfg") => (AttributeOf::Item, 1),
        ("#", "!", "[") if text(3) == "cfg" => (AttributeOf::File, 2),
        _ => return None,
    };
    let end = open + group_length(&tokens[open..]);
    let names: Vec<&str> = tokens[open..end].iter().map(|token| token.text.as_str()).collect();
    // `any(test, …)` and `not(test)` are in the product, too.
    let is_for_tests = names.contains(&"test") && !names.contains(&"not") && !names.contains(&"any");
    is_for_tests.then_some((end, about))
}

/// The length of the item that begins here, with its other attributes: to its `;`, or to the end of its braces.
fn item_length(tokens: &[Token]) -> usize {
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            ";" | "," => return at + 1,
            "{" => return at + group_length(&tokens[at..]),
            "(" | "[" => at += group_length(&tokens[at..]),
            // The end of what the item is in.
            "}" => return at,
            _ => at += 1,
        }
    }
    tokens.len()
}

/// The length of the group in brackets that begins here.
fn group_length(tokens: &[Token]) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// The modules that are declared at the outermost level: `mod name;` and `mod name { … }`.
fn declared(tokens: &[Token]) -> Vec<String> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            "(" | "[" | "{" => at += group_length(&tokens[at..]),
            "mod" => {
                found.extend(tokens.get(at + 1).map(|name| name.text.clone()));
                at += 2;
            }
            _ => at += 1,
        }
    }
    found
}

/// The tokens with paths that begin at a top-level module instead of the root: `crate::policy::quota` becomes
/// `crate::quota`, and other paths from the root name nothing.
fn paths_from(module: &str, tokens: &[Token]) -> Vec<Token> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(token) = tokens.get(at) {
        let is_path = token.text == "crate" && is(tokens, at + 1, "::");
        if is_path && is(tokens, at + 2, module) && is(tokens, at + 3, "::") {
            found.extend_from_slice(&tokens[at..at + 2]);
            at += 4;
        } else {
            found.extend((!is_path).then(|| token.clone()));
            at += 1;
        }
    }
    found
}

/// A path that names something of the crate's root.
struct RootPath {
    /// The top-level module that has the path.
    from: String,
    /// The first name after the root, or `*`.
    name: String,
    line: usize,
}

/// Paths in a file of `module` that reach the root, by `crate::` or by enough `super::`.
fn paths_to_root(tokens: &[Token], module: &[String]) -> Vec<RootPath> {
    let mut found = Vec::new();
    // Names of the modules around a token, and how many braces were open where each began.
    let (mut inner, mut depth): (Vec<(String, usize)>, usize) = (Vec::new(), 0);
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                inner.pop_if(|(_, began)| *began == depth);
            }
            "mod" if is(tokens, at + 2, "{") => {
                inner.push((tokens[at + 1].text.clone(), depth));
            }
            "crate" | "super" if !is(tokens, at.wrapping_sub(1), "::") => {
                let own: Vec<&str> =
                    module.iter().map(String::as_str).chain(inner.iter().map(|(name, _)| name.as_str())).collect();
                if let (Some(first), Some(tree)) = (own.first(), tree_at_root(&tokens[at..], own.len())) {
                    let names = tree.into_iter().map(|(name, line)| RootPath { from: (*first).to_owned(), name, line });
                    found.extend(names);
                }
            }
            _ => {}
        }
        at += 1;
    }
    found
}

fn is(tokens: &[Token], at: usize, text: &str) -> bool {
    tokens.get(at).is_some_and(|token| token.text == text)
}

/// The first names after the root of a path that begins here, in a module `depth` below the root; `None` if the path
/// stays in its module.
fn tree_at_root(tokens: &[Token], depth: usize) -> Option<Vec<(String, usize)>> {
    let mut at = 0;
    if is(tokens, 0, "crate") {
        at = 2;
    } else {
        let mut left = depth;
        while is(tokens, at, "super") && is(tokens, at + 1, "::") {
            left = left.saturating_sub(1);
            at += 2;
        }
        if left > 0 || at == 0 {
            return None;
        }
    }
    is(tokens, at - 1, "::").then(|| first_names(&tokens[at..]))
}

/// The first names of a path, or of each path of a group in braces.
fn first_names(tokens: &[Token]) -> Vec<(String, usize)> {
    let Some(first) = tokens.first() else { return Vec::new() };
    if first.text != "{" {
        return vec![(first.text.clone(), first.line)];
    }
    let (group, mut found, mut at, mut is_begin) = (&tokens[1..group_length(tokens)], Vec::new(), 0, true);
    while let Some(token) = group.get(at) {
        match token.text.as_str() {
            "," => is_begin = true,
            "}" => {}
            "{" if is_begin => {
                found.extend(first_names(&group[at..]));
                at += group_length(&group[at..]);
                continue;
            }
            "{" => {
                at += group_length(&group[at..]);
                continue;
            }
            _ if is_begin => {
                found.push((token.text.clone(), token.line));
                is_begin = false;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// The paths of each `use` at the outermost level, with the names under which they are used last.
fn use_trees(tokens: &[Token]) -> Vec<Vec<Vec<String>>> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            "use" => {
                let end = at + tokens[at..].iter().position(|token| token.text == ";").unwrap_or(tokens.len() - at);
                found.push(use_paths(&tokens[at + 1..end], &[]));
                at = end;
            }
            "(" | "[" | "{" => at += group_length(&tokens[at..]),
            _ => at += 1,
        }
    }
    found
}

/// The paths of a tree such as `a::{b, c as d}`, each with what comes before it.
fn use_paths(tree: &[Token], before: &[String]) -> Vec<Vec<String>> {
    let (mut found, mut path, mut at) = (Vec::new(), before.to_vec(), 0);
    while let Some(token) = tree.get(at) {
        match token.text.as_str() {
            "::" => {}
            "," => {
                found.push(std::mem::replace(&mut path, before.to_vec()));
            }
            // The name under which it is used.
            "as" => {
                path.extend(tree.get(at + 1).map(|name| name.text.clone()));
                at += 1;
            }
            "{" => {
                let end = at + group_length(&tree[at..]);
                found.extend(use_paths(&tree[at + 1..end - 1], &path));
                path = before.to_vec();
                at = end;
                continue;
            }
            name => path.push(name.to_owned()),
        }
        at += 1;
    }
    if path.len() > before.len() {
        found.push(path);
    }
    found.retain(|path| path.len() > before.len());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What module `a` uses in a crate with the modules a, b, c and d, whose file has this text.
    fn uses(path: &str, text: &str) -> Vec<String> {
        let source = CrateSource::from_files("crates/x", &[("lib.rs", "mod a; mod b; mod c; mod d;"), (path, text)]);
        let found: BTreeSet<String> = source
            .uses()
            .into_iter()
            .map(|found| format!("{} {}", found.from, found.to.unwrap_or("*".into())))
            .filter(|line| line != "a a")
            .collect();
        found.into_iter().collect()
    }

    #[test]
    fn groups_and_nested_braces_are_read() {
        let text = "pub(crate) use crate::{a::X, b::{self, Y::{Z, W}}, c as other};\nuse {crate::d, std::fmt};";
        assert_eq!(uses("a.rs", text), ["a b", "a c", "a d"]);
        assert_eq!(uses("a.rs", "use crate::{{b::X}, {c, d::{e, f}}};"), ["a b", "a c", "a d"]);
    }

    #[test]
    fn paths_in_expressions_types_and_macros_are_read() {
        assert_eq!(
            uses("a.rs", "fn f(x: crate::b::T) -> u32 { crate::c::g::<u8>(x) + $crate::d::H }"),
            ["a b", "a c", "a d"]
        );
        assert_eq!(uses("a.rs", "fn f() { other::crate_b(); let krate = b::f(); }"), Vec::<String>::new());
    }

    #[test]
    fn super_reaches_the_root_only_from_the_right_depth() {
        assert_eq!(uses("a.rs", "use super::b;"), ["a b"]);
        assert_eq!(uses("a/e.rs", "use super::b; use super::super::c;"), ["a c"]);
        assert_eq!(
            uses("a/mod.rs", "mod inner { use super::b; use super::super::{c, d::X}; } use super::b;"),
            ["a b", "a c", "a d"]
        );
        assert_eq!(uses("a.rs", "mod x { fn f() { if true { super::g() } } } fn h() { super::b::f() }"), ["a b"]);
    }

    #[test]
    fn comments_texts_characters_and_lifetimes_are_left_out() {
        let text = r##"
            // crate::b
            /* crate::b /* crate::c */ crate::d */
            /// [`crate::b`]
            fn f<'a>(x: &'a str) -> char { g("crate::b \" crate::c", r#"crate::"d"#, b"crate::b", c"crate::c"); '"' }
            fn h() { let q = '\''; let n = '\u{41}'; crate::d::f() }
        "##;
        assert_eq!(uses("a.rs", text), ["a d"]);
    }

    #[test]
    fn tests_are_left_out() {
        let text = "use crate::b;\n#[cfg(test)]\nmod tests { use crate::c; }\n#[cfg(test)]\n#[derive(Debug)]\nuse crate::c::X;\n\
                    fn f() { #[cfg(test)] { crate::c::g(); } }\n#[cfg(not(test))]\nuse crate::d;";
        assert_eq!(uses("a.rs", text), ["a b", "a d"]);
        assert_eq!(uses("a/tests.rs", "use crate::b;"), Vec::<String>::new());
        assert_eq!(uses("a/tests/one.rs", "use crate::b;"), Vec::<String>::new());
        assert_eq!(uses("a.rs", "#![cfg(test)] use crate::b;"), Vec::<String>::new());
        let files =
            [("lib.rs", "mod a; mod b;"), ("a.rs", "#[cfg(test)]\nmod stories;"), ("a/stories.rs", "use crate::b;")];
        assert!(CrateSource::from_files("crates/x", &files).uses().is_empty());
    }

    #[test]
    fn submodules_belong_to_their_top_level_module() {
        assert_eq!(uses("a/e/f.rs", "use crate::b; use crate::a::g;"), ["a b"]);
    }

    #[test]
    fn names_of_the_root_that_are_no_modules_are_left_out() {
        assert_eq!(uses("a.rs", "use crate::Outside; fn f() { crate::item() }"), Vec::<String>::new());
    }
}
