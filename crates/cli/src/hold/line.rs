//! The one line on stderr that says how a wait goes.
//!
//! On a terminal it is rewritten in place; elsewhere it is printed again only
//! when it says something new.

use crate::table::plain;
use std::io::{self, IsTerminal, Write};
use sublet_wire::{Lease, span};

/// A line that changes.
#[derive(Debug)]
pub struct Line {
    on_terminal: bool,
    last: String,
}

impl Line {
    /// An empty one.
    pub fn new() -> Line {
        Line { on_terminal: io::stderr().is_terminal(), last: String::new() }
    }

    /// Whether people watch it.
    pub fn is_watched(&self) -> bool {
        self.on_terminal
    }

    /// Says this now. Off a terminal, only if there are `news` since the last time.
    pub fn set(&mut self, text: &str, news: &str) {
        if self.on_terminal {
            draw(&format!("\r\x1b[K{}", shorten(text, columns())));
        } else if news != self.last {
            draw(&format!("{text}\n"));
        }
        news.clone_into(&mut self.last);
    }

    /// Makes room for ordinary lines.
    pub fn clear(&mut self) {
        if self.on_terminal && !self.last.is_empty() {
            draw("\r\x1b[K");
        }
        self.last.clear();
    }
}

/// What a waiter is told.
pub fn waiting(lease: &Lease) -> String {
    let Some(waiting) = &lease.waiting else { return format!("{} waits", lease.id) };
    let at_least = if waiting.place_exact { "" } else { "at least " };
    let start = match waiting.estimate_s {
        Some(s) => format!("starts within {}", span::show(s)),
        None => "nobody can say when it starts".into(),
    };
    format!("{} waits, {at_least}place {}, {start}: {}", lease.id, waiting.place, plain(&waiting.why))
}

/// The same without the estimate, which changes all the time and is no news.
pub fn news(lease: &Lease) -> String {
    lease.waiting.as_ref().map_or_else(String::new, |waiting| format!("{} {}", waiting.place, waiting.why))
}

fn draw(text: &str) {
    // Whoever closed stderr does not want to know.
    let _ = io::stderr().write_all(text.as_bytes());
}

fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stderr());
    size.ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(80)
}

/// A line that wraps cannot be rewritten in place.
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

    #[test]
    fn a_waiter_is_told_place_estimate_and_reason() {
        let mut lease = sample::waiting();
        expect!["L8 waits, place 2, starts within 25 min: card 0 is not empty"].assert_eq(&waiting(&lease));
        let before = news(&lease);
        if let Some(waiting) = &mut lease.waiting {
            (waiting.estimate_s, waiting.place_exact) = (None, false);
        }
        expect!["L8 waits, at least place 2, nobody can say when it starts: card 0 is not empty"]
            .assert_eq(&waiting(&lease));
        assert_eq!(news(&lease), before);
    }

    #[test]
    fn a_long_line_is_cut_to_the_terminal() {
        assert_eq!(shorten("abcdef", 10), "abcdef");
        assert_eq!(shorten("abcdef", 6), "abcd…");
        assert_eq!(shorten("abcdef", 0), "…");
    }
}
