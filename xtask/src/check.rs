//! `cargo xtask check`: what can be said about the tree without running tests.

use crate::shell::cargo;
use crate::{direction, generated, licences, setup, tidy, workspace};
use anyhow::{Result, bail};

/// All checks; the cheap ones come first and are all reported together.
pub fn check() -> Result<()> {
    setup::c_compiler()?;
    cargo(["fmt", "--all", "--check"]).run()?;
    let mut violations = tidy::violations(&workspace::root())?;
    violations.extend(direction::violations(&workspace::own_packages()?)?);
    violations.extend(licences::violations(&workspace::all_packages()?)?);
    for violation in &violations {
        eprintln!("{violation}");
    }
    if !violations.is_empty() {
        bail!("{} rules are broken, see above", violations.len());
    }
    cargo(["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]).run()?;
    generated::compare()
}
