//! Every claim of docs/security.md names its test, and every test that it names exists.
//!
//! A claim is a row of a table; its last cell names tests as `` `FILE.rs::TEST` ``, the file from the root of the tree.

use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

const DOCUMENT: &str = "docs/security.md";

/// One line for each claim without a test, and for each test that does not exist.
pub fn violations(root: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(root.join(DOCUMENT)).with_context(|| format!("{DOCUMENT} could not be read"))?;
    let exists = |file: &str, test: &str| {
        fs::read_to_string(root.join(file)).is_ok_and(|source| source.contains(&format!("fn {test}(")))
    };
    Ok(check_claims(&text, exists))
}

fn check_claims(text: &str, exists: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    let mut rows = 0;
    let mut is_claims = false;
    for (number, line) in text.lines().enumerate() {
        let place = format!("{DOCUMENT}:{}", number + 1);
        if !line.starts_with('|') {
            is_claims = false;
            continue;
        }
        if line.trim_end().ends_with("| shown by |") {
            is_claims = true;
            continue;
        }
        if !is_claims || line.starts_with("|---") {
            continue;
        }
        rows += 1;
        let tests: Vec<(&str, &str)> = line.split('`').filter_map(|word| word.split_once(".rs::")).collect();
        if tests.is_empty() {
            found.push(format!("{place}: a claim without a test: name one as `FILE.rs::TEST`, or do not claim it"));
        }
        for (file, test) in tests {
            if !exists(&format!("{file}.rs"), test) {
                found.push(format!("{place}: there is no test `{test}` in {file}.rs"));
            }
        }
    }
    if rows == 0 {
        found.push(format!("{DOCUMENT}: no table with the last column `shown by`"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::check_claims;

    #[test]
    fn claims_without_tests_and_tests_that_do_not_exist_are_found() {
        let text = "# x\n| what | shown by |\n|---|---|\n| a | `t/a.rs::one`, `t/a.rs::two` |\n| b | it is so |\n\n| other | table |\n| c | d |\n";
        let found = check_claims(text, |file, test| (file, test) == ("t/a.rs", "one"));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains(":4:") && found[0].contains("`two`"), "{found:?}");
        assert!(found[1].contains(":5:") && found[1].contains("without a test"), "{found:?}");
        assert_eq!(check_claims("nothing", |_, _| true).len(), 1);
    }
}
