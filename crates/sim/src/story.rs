//! The last steps of a run, as people read them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// So many lines are kept.
const LINES: usize = 40;

/// The last lines of a run, and how far it came. Survives a panic in the middle.
#[derive(Debug, Default)]
pub struct Story {
    /// Whether lines are kept at all: writing them costs more than the run.
    pub on: bool,
    /// Events taken so far.
    pub step: Cell<u64>,
    lines: RefCell<VecDeque<String>>,
}

impl Story {
    /// A story that is told.
    pub fn told() -> Story {
        Story { on: true, ..Story::default() }
    }

    /// Adds a line, if anybody listens.
    pub fn say(&self, line: impl FnOnce() -> String) {
        if self.on {
            let mut lines = self.lines.borrow_mut();
            if lines.len() == LINES {
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
