//! Every dependency's licence must be one that we may ship under.
//!
//! An evaluator of SPDX expressions (`OR`, `AND`, `WITH`, parentheses and the
//! old slash), so that nothing has to be installed to check them.

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Unlicense and CC0-1.0 are not here on purpose: they pass only as an
/// alternative to one of these.
const ALLOWED: [&str; 9] = [
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MPL-2.0",
    "Zlib",
    "Unicode-3.0",
];

/// One sentence for each package with a licence that does not pass.
pub fn violations(metadata: &Value) -> Result<Vec<String>> {
    let packages = metadata["packages"].as_array().context("`cargo metadata` lists no packages")?;
    let mut found = Vec::new();
    for package in packages {
        let name =
            format!("{} {}", package["name"].as_str().unwrap_or("?"), package["version"].as_str().unwrap_or("?"));
        match package["license"].as_str() {
            None => found.push(format!("package `{name}` names no licence: replace it, or ask for one")),
            Some(expression) => match passes(expression) {
                Ok(true) => {}
                Ok(false) => found.push(format!("package `{name}` is under `{expression}`, which is not allowed")),
                Err(error) => found.push(format!("package `{name}`: {error:#}")),
            },
        }
    }
    Ok(found)
}

/// True if an expression can be satisfied with allowed licences.
fn passes(expression: &str) -> Result<bool> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = Words { words: spaced.split_whitespace().collect(), next: 0 };
    let passes = either(&mut words)?;
    if words.next != words.words.len() {
        bail!("licence expression `{expression}` could not be read");
    }
    Ok(passes)
}

struct Words<'a> {
    words: Vec<&'a str>,
    next: usize,
}

impl<'a> Words<'a> {
    fn take(&mut self) -> Result<&'a str> {
        let word = *self.words.get(self.next).context("licence expression ends too early")?;
        self.next += 1;
        Ok(word)
    }
    fn take_if(&mut self, word: &str) -> bool {
        let is = self.words.get(self.next) == Some(&word);
        self.next += usize::from(is);
        is
    }
}

fn either(words: &mut Words<'_>) -> Result<bool> {
    let mut passes = both(words)?;
    while words.take_if("OR") {
        passes |= both(words)?;
    }
    Ok(passes)
}

fn both(words: &mut Words<'_>) -> Result<bool> {
    let mut passes = one(words)?;
    while words.take_if("AND") {
        passes &= one(words)?;
    }
    Ok(passes)
}

fn one(words: &mut Words<'_>) -> Result<bool> {
    if words.take_if("(") {
        let passes = either(words)?;
        if !words.take_if(")") {
            bail!("licence expression lacks a closing parenthesis");
        }
        return Ok(passes);
    }
    let licence = words.take()?;
    if words.take_if("WITH") {
        let with = format!("{licence} WITH {}", words.take()?);
        return Ok(ALLOWED.contains(&with.as_str()));
    }
    Ok(ALLOWED.contains(&licence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_passes_if_one_way_through_it_is_allowed() {
        for good in [
            "MIT",
            "MIT OR Apache-2.0",
            "MIT/Apache-2.0",
            "Unlicense OR MIT",
            "CC0-1.0 OR Apache-2.0 OR Apache-2.0 WITH LLVM-exception",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "GPL-3.0 OR (MIT AND (ISC OR GPL-2.0))",
        ] {
            assert!(passes(good).unwrap(), "{good}");
        }
    }

    #[test]
    fn an_expression_without_an_allowed_way_does_not_pass() {
        for bad in [
            "GPL-3.0",
            "Unlicense",
            "CC0-1.0",
            "MIT AND GPL-3.0",
            "GPL-2.0 WITH Classpath-exception-2.0",
            "MIT WITH LLVM-exception",
            "GPL-3.0 OR MIT AND GPL-2.0",
        ] {
            assert!(!passes(bad).unwrap(), "{bad}");
        }
    }

    #[test]
    fn an_unreadable_expression_is_an_error() {
        for odd in ["", "(MIT", "MIT)", "MIT OR", "MIT Apache-2.0", "AND"] {
            assert!(passes(odd).is_err() || !passes(odd).unwrap(), "{odd}");
        }
    }
}
