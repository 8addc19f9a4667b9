//! Output to stdout: text for people, or versioned JSON for programs.

use crate::failure::Failure;
use serde::Serialize;
use std::fmt;
use std::io::{self, Write};
use sublet_wire::{VERSION, exit};

/// The API's JSON with a version number that scripts can rely on.
#[derive(Serialize)]
struct Versioned<'a, T> {
    version: u32,
    #[serde(flatten)]
    data: &'a T,
}

/// Prints data as one indented JSON object.
pub fn json(data: &impl Serialize) -> Result<(), Failure> {
    print(&(versioned(data, Layout::Pretty)? + "\n"))
}

/// Prints data as JSON on one line.
pub fn json_line(data: &impl Serialize) -> Result<(), Failure> {
    print(&(versioned(data, Layout::OneLine)? + "\n"))
}

#[derive(Clone, Copy)]
enum Layout {
    Pretty,
    OneLine,
}

fn versioned(data: &impl Serialize, layout: Layout) -> Result<String, Failure> {
    let object = Versioned { version: VERSION, data };
    let text = match layout {
        Layout::Pretty => serde_json::to_string_pretty(&object),
        Layout::OneLine => serde_json::to_string(&object),
    };
    text.map_err(|error| Failure::new(exit::FAILURE, format!("the answer could not be written as JSON: {error}")))
}

/// Prints text unchanged.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // The reader closed the pipe (`sublet audit | head`).
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(i32::from(exit::OK)),
        Err(error) => Err(Failure::new(exit::FAILURE, format!("stdout cannot be written: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Prints a line to stderr. A closed stderr, such as a closed terminal, is no failure.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::say_line(format_args!($($text)*)) };
}
pub(crate) use say;

/// The function behind [`say!`].
pub fn say_line(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn json_carries_its_version() {
        expect![[r#"
            {
              "version": 1,
              "gpus": 2
            }"#]]
        .assert_eq(&versioned(&serde_json::json!({"gpus": 2}), Layout::Pretty).unwrap());
        expect![[r#"{"version":1,"gpus":2}"#]]
            .assert_eq(&versioned(&serde_json::json!({"gpus": 2}), Layout::OneLine).unwrap());
    }
}
