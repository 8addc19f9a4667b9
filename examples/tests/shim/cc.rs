//! Small programs in C, for what no other program does.

use crate::soft::Soft;
use std::path::Path;
use std::process::Command;

/// A program of `c/`, built with the host's compiler. Returns where it is.
pub fn program(soft: &Soft, source: &str, arguments: &[&str]) -> String {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
    let named = arguments.iter().skip_while(|argument| **argument != "-o").nth(1).copied();
    let name = named.unwrap_or_else(|| source.trim_end_matches(".c"));
    let mut command = Command::new("cc");
    command.current_dir(soft.path("")).args(["-O1", "-Wall", "-Werror", "-o", name]).arg(from).args(arguments);
    let output = command.output().expect("a C compiler is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    soft.path(name).to_str().expect("a path").to_owned()
}
