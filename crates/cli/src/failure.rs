//! What a failed command prints: one sentence, a hint, an exit code.
//!
//! [`Failure::tell`] prints it once, in `main`; nothing else in this crate writes `error:`.

use crate::output::say;
use crate::table::{TextFormat, wrapped};
use std::fmt;
use std::io::Write as _;
use std::path::Path;
use sublet_wire::{Code, Problem, exit};

/// The reason why a command failed.
#[derive(Debug)]
pub struct Failure {
    message: String,
    hint: Option<String>,
    exit: u8,
    code: Option<Code>,
    /// The code of an error that the daemon had no part in.
    word: Option<&'static str>,
}

impl Failure {
    /// A failure with this exit code.
    pub fn new(exit: u8, message: impl Into<String>) -> Failure {
        Failure { message: message.into(), hint: None, exit, code: None, word: None }
    }
    /// A failure because the command line is wrong.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new(exit::USAGE, message)
    }
    /// Adds a hint: what to do next.
    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }
    /// Sets the code that `--json` prints, for an error that did not come from the daemon.
    pub fn coded(mut self, word: &'static str) -> Failure {
        self.word = Some(word);
        self
    }
    /// Sets or removes the hint.
    pub fn maybe_hint(mut self, hint: Option<String>) -> Failure {
        self.hint = hint;
        self
    }
    /// Puts the subject of the failure before the message.
    pub fn about(mut self, what: impl fmt::Display) -> Failure {
        self.message = format!("{what}: {}", self.message);
        self
    }
    /// The failure when no daemon listens on the socket.
    pub fn no_daemon(socket: &Path) -> Failure {
        Failure::new(exit::NO_DAEMON, format!("no daemon answers at {}", socket.display()))
            .hint("start one with `sublet serve`, or `cargo xtask up` in a checkout")
    }
    /// The code of the API problem behind this failure; `None` if there was none.
    pub fn code(&self) -> Option<Code> {
        self.code
    }
    /// What happened, without the hint.
    pub fn message(&self) -> &str {
        &self.message
    }
    /// The hint, if there is one.
    pub fn next_step(&self) -> Option<&str> {
        self.hint.as_deref()
    }
    /// The exit code of the process.
    pub fn exit(&self) -> u8 {
        self.exit
    }
    /// Prints the failure to stderr, as text or as JSON.
    pub fn tell(&self, json: bool) {
        if json {
            let code = self.word.map_or_else(|| serde_json::json!(self.code), |word| serde_json::json!(word));
            let error = serde_json::json!({
                "code": code, "detail": self.message, "hint": self.hint, "exit": self.exit,
            });
            say!("{}", serde_json::json!({ "version": sublet_wire::VERSION, "error": error }));
            return;
        }
        // An error is ignored: a closed stderr is no failure.
        let text = wrapped(&format!("error: {}", self.message), 2, TextFormat::of_stderr());
        let _ = writeln!(anstream::stderr(), "\x1b[1;31merror:\x1b[0m{}", text.strip_prefix("error:").unwrap_or(&text));
        if let Some(hint) = &self.hint {
            tell_hint(hint);
        }
    }
}

/// Prints a hint to stderr.
pub fn tell_hint(hint: &str) {
    let text = wrapped(&format!("hint: {hint}"), 2, TextFormat::of_stderr());
    let _ = writeln!(anstream::stderr(), "\x1b[1;36mhint:\x1b[0m{}", text.strip_prefix("hint:").unwrap_or(&text));
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        let hint = problem.hint.or_else(|| retry_hint(problem.retry_after_s));
        Failure { message: problem.detail, hint, exit: exit::of(problem.code), code: Some(problem.code), word: None }
    }
}

fn retry_hint(after_s: Option<u64>) -> Option<String> {
    after_s.map(|s| format!("try again in {}", sublet_wire::span::show(s as f64)))
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn a_problem_keeps_its_words_and_gets_its_exit_code() {
        let problem = Problem::new(Code::NoRoom, "no GPU has 16 GiB free (largest: 9 GiB on GPU 1)")
            .hint("ask for 8 GiB, or wait: 2 leases are ahead");
        let failure = Failure::from(problem);
        assert_eq!(failure.exit(), exit::LEASE_LOST);
        expect![[r#"
            no GPU has 16 GiB free (largest: 9 GiB on GPU 1)
            hint: ask for 8 GiB, or wait: 2 leases are ahead"#]]
        .assert_eq(&failure.to_string());
    }

    #[test]
    fn a_problem_without_a_hint_says_when_to_try_again() {
        let failure = Failure::from(Problem::new(Code::QueueFull, "the queue is full").retry_after(30));
        expect![[r#"
            the queue is full
            hint: try again in 30 s"#]]
        .assert_eq(&failure.to_string());
    }
}
