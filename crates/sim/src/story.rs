//! The last steps of a run, as lines for people.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// The last lines of a run, and its number of events. It survives a panic within a step.
#[derive(Debug, Default)]
pub struct Story {
    /// How many of the last lines are kept. Mostly 0: writing them takes longer than the run.
    pub lines_max: usize,
    /// Events taken so far.
    pub step: Cell<u64>,
    lines: RefCell<VecDeque<String>>,
}

impl Story {
    /// Returns a story that keeps the last `most` lines.
    pub fn with_lines(lines_max: usize) -> Story {
        Story { lines_max, ..Story::default() }
    }

    /// Adds a line, which is not made if no line is kept.
    pub fn add(&self, line: impl FnOnce() -> String) {
        if self.lines_max > 0 {
            let mut lines = self.lines.borrow_mut();
            if lines.len() == self.lines_max {
                lines.pop_front();
            }
            lines.push_back(line());
        }
    }

    /// The lines.
    pub fn lines(&self) -> Vec<String> {
        self.lines.borrow().iter().cloned().collect()
    }
}
