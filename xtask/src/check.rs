//! `cargo xtask check`: what can be said about the tree without running tests.

use crate::shell::cargo;
use crate::{claims, direction, generated, layers, licences, setup, tidy, words, workspace};
use anyhow::{Result, bail};

/// All checks; the cheap ones come first and are all reported together.
pub fn check() -> Result<()> {
    setup::c_compiler()?;
    cargo(["fmt", "--all", "--check"]).run()?;
    cargo(["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"]).run()?;
    let mut violations = tidy::violations(&workspace::root())?;
    violations.extend(claims::violations(&workspace::root())?);
    violations.extend(words::violations(&workspace::root())?);
    violations.extend(direction::violations(&workspace::own_packages()?)?);
    violations.extend(layers::violations(&workspace::root())?);
    violations.extend(licences::violations(&workspace::all_packages()?)?);
    for violation in &violations {
        eprintln!("{violation}");
    }
    if !violations.is_empty() {
        bail!("{} rules are broken, see above", violations.len());
    }
    cargo(["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]).run()?;
    // The targets call entry points that no other code does, so they are compiled here too, without coverage.
    cargo(["clippy", "--manifest-path", "fuzz/Cargo.toml", "--quiet", "--", "-D", "warnings"])
        .env("CARGO_TARGET_DIR", workspace::target_dir()?)
        .run()?;
    generated::compare()
}
