//! `cargo xtask test`: everything that must hold before a commit.

use crate::shell::{cargo, program};
use crate::workspace::{Profile, build_sublet, root};
use crate::{check, fuzz, setup};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::io::IsTerminal;

/// Installs, checks, tests.
pub fn test() -> Result<()> {
    setup::c_compiler()?;
    let tools = setup::python_tools()?;
    check::check()?;
    // The black-box tests start this very binary.
    let sublet = build_sublet(Profile::Debug)?;
    let mut flaky = BTreeSet::new();
    let mut skipped = Vec::new();
    if program("cargo-nextest").args(["nextest", "--version"]).succeeds() {
        // Tests use real processes on a loaded machine: one that fails once in a thousand runs is tried again
        // and named at the end, so that it gets fixed without hiding the other results.
        let color = if std::io::stderr().is_terminal() { "always" } else { "never" };
        let run = cargo(["nextest", "run", "--workspace", "--no-fail-fast", "--retries", "1", "--color", color]);
        run.run_reading_stderr(|line| flaky.extend(retried_test(line)))?;
        let report = root().join("target/nextest/default/junit.xml");
        skipped = skipped_tests(
            &fs::read_to_string(&report).with_context(|| format!("{} cannot be read", report.display()))?,
        );
        cargo(["test", "--workspace", "--doc", "--quiet"]).run()?;
    } else {
        cargo(["test", "--workspace", "--no-fail-fast"]).run()?;
    }
    fuzz::against(&sublet, &tools)?;
    eprintln!("all checks and tests passed");
    if !skipped.is_empty() {
        eprintln!("\nBUT {} could not be run here, in part or at all:", skipped.len());
        skipped.iter().for_each(|(test, why)| eprintln!("  {test}: {why}"));
    }
    if !flaky.is_empty() {
        eprintln!("\nBUT {} failed at first and passed only when tried again; find out why:", flaky.len());
        flaky.iter().for_each(|test| eprintln!("  {test}"));
    }
    Ok(())
}

/// The test that a line of nextest's summary says to have passed at the second try.
fn retried_test(line: &str) -> Option<String> {
    let line = without_colour(line);
    let rest = line.trim_start().strip_prefix("FLAKY ")?;
    rest.split_once(']').map(|(_, test)| test.trim().to_owned())
}

/// The tests that printed `skipped: WHY`, by nextest's report. Such a test passes, and has shown nothing.
fn skipped_tests(report: &str) -> Vec<(String, String)> {
    let cases = report.split("<testcase name=\"").skip(1);
    let found = cases.filter_map(|case| {
        let (test, rest) = case.split_once('"')?;
        let why = rest.lines().find_map(|line| line.split_once("skipped: ").map(|(_, why)| why))?;
        let why = why.split('<').next().unwrap_or(why);
        Some((test.to_owned(), why.replace("&apos;", "'").replace("&quot;", "\"").replace("&amp;", "&")))
    });
    found.collect()
}

/// The line without colour codes.
fn without_colour(line: &str) -> String {
    let mut parts = line.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or("", |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_tests_are_found_in_the_report_with_their_reasons() {
        let report = r#"<testsuite><testcase name="a::b" classname="x" time="0.1"><system-err>
skipped: only root can be &quot;others&quot;</system-err></testcase>
<testcase name="c"><system-out>ok, 3 skipped</system-out></testcase></testsuite>"#;
        assert_eq!(super::skipped_tests(report), [("a::b".to_owned(), "only root can be \"others\"".to_owned())]);
    }

    #[test]
    fn tests_that_needed_another_try_are_found_in_what_nextest_says() {
        let line = "   FLAKY 2/2 [   0.012s] ( 7/12) sublet-host::host audit::a_thing_happens";
        assert_eq!(retried_test(line).as_deref(), Some("( 7/12) sublet-host::host audit::a_thing_happens"));
        let line = "  \x1b[33;1mFLAKY 2/2\x1b[0m [   0.012s] \x1b[35msublet\x1b[0m \x1b[36ma\x1b[0m";
        assert_eq!(retried_test(line).as_deref(), Some("sublet a"));
        for line in
            ["   PASS [   0.012s] sublet a", "  TRY 1 FAIL [   0.012s] sublet a", "a test says FLAKY 2/2 [1]", ""]
        {
            assert_eq!(retried_test(line), None, "{line}");
        }
    }
}
