//! Small programs in C, for what no other program does.

use crate::soft::Soft;
use std::path::Path;
use std::process::Command;

/// A program of `c/`, built with the host's compiler. Returns where it is.
pub fn program(soft: &Soft, source: &str, arguments: &[&str]) -> String {
    built(soft, source, arguments).unwrap_or_else(|why| panic!("{why}"))
}

/// The same where the compiler may not be able to. Returns what it said then.
pub fn built(soft: &Soft, source: &str, arguments: &[&str]) -> Result<String, String> {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
    let named = arguments.iter().skip_while(|argument| **argument != "-o").nth(1).copied();
    let name = named.unwrap_or_else(|| source.trim_end_matches(".c"));
    let mut command = Command::new("cc");
    command.current_dir(soft.path("")).args(["-O1", "-Wall", "-Werror", "-o", name]).arg(from).args(arguments);
    let output = command.output().expect("a C compiler is there");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(soft.path(name).to_str().expect("a path").to_owned())
}
