//! The project's chores: `cargo xtask help` lists them.
//!
//! Plain programs started one after the other; nothing here is part of the
//! product, and nothing of the product is linked in.

mod bridge;
mod check;
mod claims;
mod direction;
mod dist;
mod dist_test;
mod fuzz;
mod fuzz_parsers;
mod generated;
mod layers;
mod licences;
mod portable;
mod release;
mod service;
mod setup;
mod shell;
mod suite;
mod tidy;
mod words;
mod workspace;

use anyhow::{Result, bail};
use std::process::ExitCode;

const HELP: &str = "\
usage: cargo xtask COMMAND

  up            build, start the service as you, and say how to use it
  down          stop the service that `up` started
  test          install what the tests need, then check and run everything (as CI does)
  check         format, lints, dependency direction, licences, tidiness, generated files
  layers        print which modules of a crate use each other in cycles: [CRATE]
  generate      rewrite docs/openapi.json and docs/reference/cli.md
  fuzz          try the API of a live service with schemathesis
  fuzz-parsers  try hostile requests, packets, lines and files: [--minutes N] [TARGET ...]
  fuzz-ptx      try hostile PTX: --minutes N [--seed S] [--out FOLDER]
  release-soft  build libcuda.so.1 and libnvidia-ml.so.1 for any Linux since glibc 2.17
  release-shim  build libsublet-shim.so for any Linux since glibc 2.17
  dist          make the tarball and the Debian package, in target/dist
  test-dist     install both in a fresh Debian and use them (root)
  sim           simulate: --minutes N [--seed S], or --mutants
  bench         measure: [WHAT] [ARGS], everything by default
  soak-soft     kill programs on soft cards at random: [--kills N] [--seed S]
  help          this list
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", arguments),
    };
    match command {
        "sim" => return sim(rest),
        "fuzz-ptx" => return fuzz_ptx(rest),
        "fuzz-parsers" => return fuzz_parsers::fuzz_parsers(rest),
        "layers" => return layers::report(&workspace::root(), rest),
        "bench" => return bench(rest),
        "soak-soft" => return soak_soft(rest),
        _ if !rest.is_empty() => bail!("`cargo xtask {command}` takes no arguments, but got `{}`", rest.join(" ")),
        _ => {}
    }
    match command {
        "up" => service::up(),
        "down" => service::down(),
        "test" => suite::test(),
        "check" => check::check(),
        "generate" => generated::generate(),
        "fuzz" => fuzz::fuzz(),
        "release-soft" => release::soft().map(drop),
        "release-shim" => release::shim().map(drop),
        "dist" => dist::dist().map(drop),
        "test-dist" => dist_test::test(),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(())
        }
        other => bail!("no chore is called `{other}`\nhint: `cargo xtask help` lists them"),
    }
}

fn sim(arguments: &[String]) -> Result<()> {
    shell::cargo(["run", "--release", "--package", "sublet-sim", "--"]).args(arguments).run()
}

fn soak_soft(arguments: &[String]) -> Result<()> {
    shell::cargo(["bench", "--package", "sublet-examples", "--bench", "kills", "--"]).args(arguments).run()
}

fn fuzz_ptx(arguments: &[String]) -> Result<()> {
    shell::cargo(["run", "--release", "--package", "sublet-ptx-fuzz", "--bin", "ptx-fuzz", "--"]).args(arguments).run()
}

fn bench(arguments: &[String]) -> Result<()> {
    // What is measured must be what is released, built from this very tree.
    setup::c_compiler()?;
    workspace::build_sublet(workspace::Profile::Release)?;
    let everything = arguments.first().is_none_or(|first| first.starts_with('-'));
    shell::cargo(["run", "--release", "--package", "sublet-bench", "--"])
        .args(everything.then_some("all"))
        .args(arguments)
        .run()
}
