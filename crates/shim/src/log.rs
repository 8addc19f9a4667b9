//! One line for the person at the terminal, when there is something to say.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Says something, unless it was said before.
pub fn once(text: &str) {
    if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(text.to_owned()) {
        say(text);
    }
}

/// Says something.
pub fn say(text: &str) {
    eprintln!("sublet: {text}");
}
