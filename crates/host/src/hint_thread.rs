//! The thread that listens for hints that a reading is due: a GPU's device file was opened, processes came or went.
//!
//! A hint only brings forward a reading that would have come by itself. At most 4 are passed on in a second, whatever
//! happens on the host.

use crate::audit::HintListener;
use crate::cards;
use crate::eyes::{ProcessMessage, ProcessThreadInbox};
use crate::wake::wait_readable;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum time between two hints that are passed on.
const PAUSE: Duration = Duration::from_millis(250);
/// A wait of a day, for "no deadline".
const LONG: Duration = Duration::from_secs(86_400);

/// Passes hints on until the thread must stop; first logs which kinds are missing.
pub(crate) fn run(
    mut hints: HintListener,
    missing: &[String],
    cards: &Arc<cards::GpuThreadHandle>,
    eyes: &ProcessThreadInbox,
) {
    missing.iter().for_each(|missing| eprintln!("{missing}"));
    loop {
        let heard = wait_readable([hints.as_fd(), cards.stopping().as_fd()], Instant::now() + LONG);
        match heard {
            Ok([_, false]) => {}
            Ok([_, true]) | Err(_) => return,
        }
        let hint = hints.drain();
        if (hint.processes || hint.lost) && eyes.is_watching() {
            eyes.send(ProcessMessage::Stirred);
        }
        if hint.opened || hint.lost {
            cards.wish();
        }
        hints.news().iter().for_each(|news| eprintln!("{news}"));
        if hint.is_any() && !matches!(wait_readable([cards.stopping().as_fd()], Instant::now() + PAUSE), Ok([false])) {
            return;
        }
    }
}
