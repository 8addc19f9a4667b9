//! The thread that listens for hints that a reading is due: a GPU's device file was opened, processes came or went.
//!
//! A hint only brings forward a reading that would have come by itself. At most 4 are passed on in a second, whatever
//! happens on the host.

use crate::audit::HintListener;
use crate::gpu_thread;
use crate::process_thread::{ProcessMessage, ProcessThreadInbox};
use crate::wake::wait_readable;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum time between two hints that are passed on.
const HINT_GAP: Duration = Duration::from_millis(250);
/// A wait of a day, for "no deadline".
const NO_DEADLINE: Duration = Duration::from_secs(86_400);

/// Passes hints on until the thread must stop; first logs which kinds are missing.
pub(crate) fn run(
    mut hints: HintListener,
    missing: &[String],
    gpu_thread: &Arc<gpu_thread::GpuThreadHandle>,
    process_thread: &ProcessThreadInbox,
) {
    missing.iter().for_each(|missing| eprintln!("{missing}"));
    loop {
        let ready = wait_readable([hints.as_fd(), gpu_thread.stopping().as_fd()], Instant::now() + NO_DEADLINE);
        match ready {
            Ok([_, false]) => {}
            Ok([_, true]) | Err(_) => return,
        }
        let hint = hints.drain();
        if (hint.processes || hint.lost) && process_thread.is_watching() {
            process_thread.send(ProcessMessage::ProcessesChanged);
        }
        if hint.opened || hint.lost {
            gpu_thread.request_reading();
        }
        hints.news().iter().for_each(|news| eprintln!("{news}"));
        if hint.calls_for_reading()
            && !matches!(wait_readable([gpu_thread.stopping().as_fd()], Instant::now() + HINT_GAP), Ok([false]))
        {
            return;
        }
    }
}
