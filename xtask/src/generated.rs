//! Files that the binary writes about itself, checked in so that a change shows in review.

use crate::shell::program;
use crate::workspace::{Profile, build_sublet, root};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;

/// The hidden subcommand, and the file that holds what it prints.
const FILES: [(&str, &str); 2] = [("openapi", "docs/openapi.json"), ("reference", "docs/reference/cli.md")];

/// Rewrites them.
pub fn generate() -> Result<()> {
    for (file, text) in printed()? {
        let path = root().join(file);
        fs::write(&path, text).with_context(|| format!("{} could not be written", path.display()))?;
        eprintln!("wrote {file}");
    }
    Ok(())
}

/// Fails if one of them is not what the binary prints.
pub fn compare() -> Result<()> {
    for (file, text) in printed()? {
        let checked_in = fs::read_to_string(root().join(file)).unwrap_or_default();
        if let Some(line) = first_difference(&checked_in, &text) {
            bail!(
                "{file} is out of date from line {line}\nhint: run `cargo xtask generate` and look at the difference"
            );
        }
    }
    Ok(())
}

fn printed() -> Result<Vec<(&'static str, String)>> {
    let sublet = build_sublet(Profile::Debug)?;
    FILES.into_iter().map(|(command, file)| Ok((file, print(&sublet, command)?))).collect()
}

fn print(sublet: &Path, command: &str) -> Result<String> {
    // A fixed width: the reference must not depend on the terminal.
    program(sublet).args([command]).env("COLUMNS", "100").env("NO_COLOR", "1").output()
}

fn first_difference(left: &str, right: &str) -> Option<usize> {
    if left == right {
        return None;
    }
    let same = left.lines().zip(right.lines()).take_while(|(l, r)| l == r).count();
    Some(same + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_differs_is_named() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(first_difference("a\nb\n", "a\nc\n"), Some(2));
        assert_eq!(first_difference("", "a\n"), Some(1));
        assert_eq!(first_difference("a\n", "a"), Some(2), "a missing newline counts");
    }
}
