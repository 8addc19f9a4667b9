//! The progress of a wait, printed to stderr.
//!
//! On a terminal the reason is printed in full when it changes. Below it one short line with queue position and
//! estimate is rewritten in place. Elsewhere one complete line is printed when it says something new.

use crate::table::{Colour, TextFormat, plain, wrapped};
use crate::text;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use sublet_wire::Lease;

/// The progress of a wait, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgressText {
    /// The lease and its queue position, which change often.
    pub now: String,
    /// The reason for the wait.
    pub why: String,
    /// The text without the estimate. If only the estimate changes, no new line is printed.
    news: String,
}

impl ProgressText {
    /// A progress without a reason.
    pub fn plainly(now: String) -> ProgressText {
        ProgressText { news: now.clone(), now, why: String::new() }
    }
}

impl fmt::Display for ProgressText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.now)?;
        if self.why.is_empty() { Ok(()) } else { write!(f, ": {}", self.why) }
    }
}

/// The last printed progress, and whether stderr is a terminal.
#[derive(Debug)]
pub struct ProgressLine {
    on_terminal: bool,
    last: Option<ProgressText>,
}

impl ProgressLine {
    /// Nothing printed yet.
    pub fn new() -> ProgressLine {
        ProgressLine { on_terminal: io::stderr().is_terminal(), last: None }
    }

    /// Whether stderr is a terminal.
    pub fn is_watched(&self) -> bool {
        self.on_terminal
    }

    /// Prints this progress.
    pub fn set(&mut self, said: ProgressText) {
        draw(&self.render(said, columns()));
    }

    fn render(&mut self, said: ProgressText, columns: usize) -> String {
        let last = self.last.take().unwrap_or_default();
        let text = match (self.on_terminal, said.why.is_empty()) {
            (true, false) if said.why != last.why => {
                let format = TextFormat { columns: Some(columns), colour: Colour::Off };
                format!("\r\x1b[K{}\n{}", wrapped(&said.why, 2, format), shorten(&said.now, columns))
            }
            (true, _) => format!("\r\x1b[K{}", shorten(&said.now, columns)),
            (false, _) if said.news == last.news => String::new(),
            (false, _) => format!("{said}\n"),
        };
        self.last = Some(said);
        text
    }

    /// Clears the rewritten line, so that other lines can be printed.
    pub fn clear(&mut self) {
        if self.on_terminal && self.last.is_some() {
            draw("\r\x1b[K");
        }
        self.last = None;
    }
}

/// The progress of a waiter.
pub fn waiting(lease: &Lease) -> ProgressText {
    let Some(waiting) = &lease.waiting else { return ProgressText::plainly(format!("{} waits", lease.id)) };
    let at_least = if waiting.place_exact { "" } else { "at least " };
    let start = text::start(waiting);
    let why = plain(&waiting.why);
    ProgressText {
        now: format!("{} waits, {at_least}place {}, {start}", lease.id, waiting.place),
        news: format!("{} {why}", waiting.place),
        why,
    }
}

fn draw(text: &str) {
    // An error is ignored: a closed stderr is no failure.
    let _ = io::stderr().write_all(text.as_bytes());
}

fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stderr());
    size.ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(80)
}

/// Cuts a line to the width of the terminal, because a wrapped line cannot be rewritten in place.
fn shorten(line: &str, columns: usize) -> String {
    if line.chars().count() < columns {
        return line.to_owned();
    }
    let kept: String = line.chars().take(columns.saturating_sub(2)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use expect_test::expect;

    /// The output for these, one after the other.
    fn drawn(on_terminal: bool, columns: usize, all: &[ProgressText]) -> String {
        let mut line = ProgressLine { on_terminal, last: None };
        let drawn: String = all.iter().map(|said| line.render(said.clone(), columns)).collect();
        drawn.replace('\x1b', "ESC").replace('\r', "CR")
    }

    /// A wait that begins, gets a new estimate, and then another reason.
    fn story() -> [ProgressText; 3] {
        let mut lease = sample::waiting();
        let first = waiting(&lease);
        if let Some(waiting) = &mut lease.waiting {
            (waiting.planned_s, waiting.expected_s, waiting.bound) = (None, None, None);
            waiting.place_exact = false;
        }
        let second = waiting(&lease);
        if let Some(waiting) = &mut lease.waiting {
            waiting.why = "GPU 0 has 7.7 GiB free, 16 GiB are needed".into();
        }
        [first, second, waiting(&lease)]
    }

    #[test]
    fn a_log_gets_a_line_for_each_news() {
        expect![[r#"
            L8 waits, place 2, expected in about 40 s (worst case 2 h 0 min): GPU 0 is not empty
            L8 waits, at least place 2, when it starts is not known: GPU 0 has 7.7 GiB free, 16 GiB are needed
        "#]]
        .assert_eq(&drawn(false, 80, &story()));
    }

    #[test]
    fn a_terminal_shows_every_reason_whole_and_rewrites_what_changes_all_the_time() {
        expect![[r#"
            CRESC[KGPU 0 is not empty
            L8 waits, place 2, expected in about 40 …CRESC[KL8 waits, at least place 2, when it star…CRESC[KGPU 0 has 7.7 GiB free, 16 GiB are needed
            L8 waits, at least place 2, when it star…"#]]
        .assert_eq(&drawn(true, 42, &story()));
        let silent = ProgressText::plainly("L8 waits; no daemon answers now, still trying".into());
        assert_eq!(drawn(false, 80, &[silent.clone(), silent.clone()]), format!("{}\n", silent.now), "once");
    }

    #[test]
    fn a_long_line_is_cut_to_the_terminal() {
        assert_eq!(shorten("abcdef", 10), "abcdef");
        assert_eq!(shorten("abcdef", 6), "abcd…");
        assert_eq!(shorten("abcdef", 0), "…");
    }
}
