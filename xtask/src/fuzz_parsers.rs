//! `cargo xtask fuzz-parsers`: coverage-guided fuzzing of every parser that reads what another user wrote.
//!
//! The targets are in `fuzz/`, a workspace of its own: its packages are built with the coverage instrumentation of
//! LLVM, which the stable compiler has, and linked with libFuzzer. Corpora and inputs that were findings stay below
//! `target/fuzz`, so a later run goes on where this one ended.

use crate::shell::{cargo, program};
use crate::{setup, workspace};
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The target triple that is instrumented. Naming it leaves build scripts and macros without instrumentation.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Coverage for libFuzzer, and checks that a release does not have.
const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks";

/// A target, and the longest input it gets in bytes.
const TARGETS: [(&str, u32); 6] = [
    ("http", 70_000),
    ("shims", 16_384),
    ("worker", 16_384),
    ("config", 16_384),
    ("trace", 16_384),
    ("journal", 4_096),
];

/// An input that takes longer is a finding, in seconds. An HTTP connection may take the daemon's own limit of 40.
const TIMEOUT_S: u32 = 60;
/// A process that takes more memory is a finding, in MiB.
const MEMORY_MIB: u32 = 2048;

/// What to run.
#[derive(Debug, PartialEq, Eq)]
struct FuzzPlan {
    minutes: u32,
    targets: Vec<(&'static str, u32)>,
}

/// `cargo xtask fuzz-parsers [--minutes N] [TARGET ...]`.
pub fn fuzz_parsers(arguments: &[String]) -> Result<()> {
    let plan = parse_plan(arguments)?;
    setup::c_compiler()?;
    let out = workspace::target_dir()?.join("fuzz");
    let build = cargo(["build", "--release", "--manifest-path", "fuzz/Cargo.toml", "--target", TRIPLE]);
    let named = plan.targets.iter().flat_map(|(name, _)| ["--bin", name]);
    build.args(named).env("CARGO_TARGET_DIR", &out).env("RUSTFLAGS", RUSTFLAGS).run()?;
    let mut ran = Vec::new();
    for (name, length) in plan.targets {
        ran.push((name, run_target(&out, name, length, plan.minutes)?));
    }
    println!("target   executions   edges  features");
    for (name, FuzzFigures { executions, edges, features }) in ran {
        println!("{name:<8} {executions:>10} {edges:>7} {features:>9}");
    }
    Ok(())
}

fn parse_plan(arguments: &[String]) -> Result<FuzzPlan> {
    let mut plan = FuzzPlan { minutes: 30, targets: Vec::new() };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if argument == "--minutes" {
            let minutes = rest.next().and_then(|number| number.parse().ok()).filter(|minutes| *minutes > 0);
            plan.minutes = minutes.context("`--minutes` takes a whole number from 1")?;
            continue;
        }
        let Some(target) = TARGETS.iter().find(|(name, _)| name == argument) else {
            let known: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
            bail!("no target is called `{argument}`\nhint: there are {}", known.join(", "));
        };
        plan.targets.push(*target);
    }
    if plan.targets.is_empty() {
        plan.targets = TARGETS.to_vec();
    }
    Ok(plan)
}

/// What libFuzzer says of a run.
#[derive(Debug, Default, PartialEq, Eq)]
struct FuzzFigures {
    executions: u64,
    edges: u64,
    features: u64,
}

impl FuzzFigures {
    /// Takes in `#4096 pulse cov: 812 ft: 2044 …` and `Done 9000 runs in 61 second(s)`.
    fn read_line(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |name: &str| words.windows(2).find(|pair| pair[0] == name).and_then(|pair| pair[1].parse().ok());
        let counted = line.strip_prefix('#').and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        self.executions = counted.or(after("Done")).unwrap_or(self.executions);
        self.edges = after("cov:").unwrap_or(self.edges);
        self.features = after("ft:").unwrap_or(self.features);
    }
}

fn run_target(out: &Path, name: &str, length: u32, minutes: u32) -> Result<FuzzFigures> {
    let seeds = workspace::root().join("fuzz/seeds").join(name);
    let (corpus, findings) = (out.join("corpus").join(name), out.join("findings").join(name));
    for dir in [&corpus, &findings] {
        fs::create_dir_all(dir).with_context(|| format!("{} could not be made", dir.display()))?;
    }
    let words = out.join(format!("{name}.dict"));
    fs::write(&words, dictionary(&seeds)?).with_context(|| format!("{} could not be written", words.display()))?;
    let scratch = ScratchDir::new(name)?;
    let mut figures = FuzzFigures::default();
    // Some targets may signal processes that an input names: in a pid namespace they reach only their own.
    program("unshare")
        .args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"])
        .args([out.join(TRIPLE).join("release").join(name), corpus, seeds])
        .args([format!("-artifact_prefix={}/", findings.display()), format!("-dict={}", words.display())])
        .args([format!("-max_total_time={}", u64::from(minutes) * 60), format!("-max_len={length}")])
        .args([format!("-timeout={TIMEOUT_S}"), format!("-rss_limit_mb={MEMORY_MIB}")])
        .args(["-print_final_stats=1", "-use_value_profile=1", "-reload=0"])
        .env("SUBLET_FUZZ_SCRATCH", &scratch.0)
        .env("SUBLET_LOG", "off")
        .run_reading_stderr(|line| figures.read_line(line))
        .with_context(|| {
            format!("the input is in {}; give it to the target as its only argument", findings.display())
        })?;
    Ok(figures)
}

/// A directory in memory that is removed at the end.
struct ScratchDir(PathBuf);

impl ScratchDir {
    fn new(name: &str) -> Result<ScratchDir> {
        let dir = PathBuf::from(format!("/dev/shm/sublet-fuzz-{name}-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("{} could not be made", dir.display()))?;
        Ok(ScratchDir(dir))
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Every word of the seeds, as libFuzzer's dictionary.
fn dictionary(seeds: &Path) -> Result<String> {
    let mut words = BTreeSet::new();
    for entry in fs::read_dir(seeds).with_context(|| format!("{} could not be read", seeds.display()))? {
        let bytes = fs::read(entry?.path())?;
        let text = String::from_utf8_lossy(&bytes);
        let split = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-'));
        words.extend(split.filter(|word| (2..=40).contains(&word.len())).map(str::to_owned));
    }
    Ok(words.into_iter().map(|word| format!("\"{word}\"\n")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(arguments: &[&str]) -> Result<FuzzPlan> {
        parse_plan(&arguments.iter().map(|&argument| argument.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn without_arguments_every_target_runs_for_30_minutes() {
        assert_eq!(planned(&[]).unwrap(), FuzzPlan { minutes: 30, targets: TARGETS.to_vec() });
        let plan = planned(&["--minutes", "2", "trace"]).unwrap();
        assert_eq!(plan, FuzzPlan { minutes: 2, targets: vec![("trace", 16_384)] });
        assert!(planned(&["--minutes"]).is_err() && planned(&["--minutes", "0"]).is_err());
        assert!(planned(&["traces"]).unwrap_err().to_string().contains("http, shims, worker"));
    }

    #[test]
    fn figures_are_read_from_the_lines_of_libfuzzer() {
        let mut figures = FuzzFigures::default();
        figures.read_line("#4096\tpulse  cov: 812 ft: 2044 corp: 51/2Kb lim: 43 exec/s: 2048 rss: 40Mb");
        assert_eq!(figures, FuzzFigures { executions: 4096, edges: 812, features: 2044 });
        figures.read_line("Done 9000 runs in 61 second(s)");
        assert_eq!(figures, FuzzFigures { executions: 9000, edges: 812, features: 2044 });
    }

    #[test]
    fn every_target_has_seeds_and_a_file() {
        let fuzz = workspace::root().join("fuzz");
        for (name, _) in TARGETS {
            assert!(fuzz.join(format!("targets/{name}.rs")).exists(), "{name}");
            assert!(dictionary(&fuzz.join("seeds").join(name)).unwrap().lines().count() > 5, "{name}");
        }
    }
}
