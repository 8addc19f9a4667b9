//! `cargo xtask test`: everything that must hold before a commit.

use crate::shell::{cargo, program};
use crate::workspace::{Profile, build_sublet};
use crate::{check, fuzz, setup};
use anyhow::Result;

/// Installs, checks, tests.
pub fn test() -> Result<()> {
    setup::c_compiler()?;
    let tools = setup::python_tools()?;
    check::check()?;
    // The black-box tests start this very binary.
    let sublet = build_sublet(Profile::Debug)?;
    if program("cargo-nextest").args(["nextest", "--version"]).works() {
        // Real processes on a loaded machine: one failure in a thousand runs is told as FLAKY, and
        // mended; it does not hide what else there is to see.
        cargo(["nextest", "run", "--workspace", "--no-fail-fast", "--retries", "1"]).run()?;
        cargo(["test", "--workspace", "--doc", "--quiet"]).run()?;
    } else {
        cargo(["test", "--workspace", "--no-fail-fast"]).run()?;
    }
    fuzz::against(&sublet, &tools)?;
    eprintln!("all checks and tests passed");
    Ok(())
}
