//! The last steps of a run, as people read them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// The last lines of a run, and how far it came. Survives a panic in the middle.
#[derive(Debug, Default)]
pub struct Story {
    /// So many of the last lines are kept. Mostly none: writing them costs more than the run.
    pub most: usize,
    /// Events taken so far.
    pub step: Cell<u64>,
    lines: RefCell<VecDeque<String>>,
}

impl Story {
    /// A story of which so many of the last lines are told.
    pub fn told(most: usize) -> Story {
        Story { most, ..Story::default() }
    }

    /// Adds a line, if anybody listens.
    pub fn say(&self, line: impl FnOnce() -> String) {
        if self.most > 0 {
            let mut lines = self.lines.borrow_mut();
            if lines.len() == self.most {
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
