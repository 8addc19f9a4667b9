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
            Some(expression) => match is_allowed(expression) {
                Ok(true) => {}
                Ok(false) => found.push(format!("package `{name}` is under `{expression}`, which is not allowed")),
                Err(error) => found.push(format!("package `{name}`: {error:#}")),
            },
        }
    }
    Ok(found)
}

/// True if an expression can be satisfied with allowed licences.
fn is_allowed(expression: &str) -> Result<bool> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut tokens = LicenceTokens { tokens: spaced.split_whitespace().collect(), next: 0 };
    let passes = parse_or(&mut tokens)?;
    if tokens.next != tokens.tokens.len() {
        bail!("licence expression `{expression}` could not be read");
    }
    Ok(passes)
}

struct LicenceTokens<'a> {
    tokens: Vec<&'a str>,
    next: usize,
}

impl<'a> LicenceTokens<'a> {
    fn next_token(&mut self) -> Result<&'a str> {
        let word = *self.tokens.get(self.next).context("licence expression ends too early")?;
        self.next += 1;
        Ok(word)
    }
    fn next_token_is(&mut self, word: &str) -> bool {
        let is = self.tokens.get(self.next) == Some(&word);
        self.next += usize::from(is);
        is
    }
}

fn parse_or(tokens: &mut LicenceTokens<'_>) -> Result<bool> {
    let mut passes = parse_and(tokens)?;
    while tokens.next_token_is("OR") {
        passes |= parse_and(tokens)?;
    }
    Ok(passes)
}

fn parse_and(tokens: &mut LicenceTokens<'_>) -> Result<bool> {
    let mut passes = parse_term(tokens)?;
    while tokens.next_token_is("AND") {
        passes &= parse_term(tokens)?;
    }
    Ok(passes)
}

fn parse_term(tokens: &mut LicenceTokens<'_>) -> Result<bool> {
    if tokens.next_token_is("(") {
        let passes = parse_or(tokens)?;
        if !tokens.next_token_is(")") {
            bail!("licence expression lacks a closing parenthesis");
        }
        return Ok(passes);
    }
    let licence = tokens.next_token()?;
    if tokens.next_token_is("WITH") {
        let with = format!("{licence} WITH {}", tokens.next_token()?);
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
            assert!(is_allowed(good).unwrap(), "{good}");
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
            assert!(!is_allowed(bad).unwrap(), "{bad}");
        }
    }

    #[test]
    fn an_unreadable_expression_is_an_error() {
        for odd in ["", "(MIT", "MIT)", "MIT OR", "MIT Apache-2.0", "AND"] {
            assert!(is_allowed(odd).is_err() || !is_allowed(odd).unwrap(), "{odd}");
        }
    }
}
