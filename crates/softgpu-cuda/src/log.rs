//! Messages for the user, each once, on standard error.

use std::collections::BTreeSet;
use std::sync::Mutex;

static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Writes a message, unless it was written before.
pub fn once(text: &str) {
    let new = SAID.lock().is_ok_and(|mut said| said.insert(text.to_owned()));
    if new {
        eprintln!("soft GPU: {text}");
    }
}
