//! Deadlines: a launch is told to stop, and a process that does not stop is ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How long a launch may run before it is told to stop.
const LAUNCH_MAX: Duration = Duration::from_millis(15);
/// How long a whole case may take, on a busy machine.
const CASE_MAX: Duration = Duration::from_secs(120);
/// The time between two checks of the deadlines.
const CHECK_PERIOD: Duration = Duration::from_millis(3);
/// No deadline.
const NEVER: u64 = u64::MAX;

/// A thread that checks two deadlines for as long as the process lives.
pub struct Deadlines {
    begun: Instant,
    flags: Arc<DeadlineFlags>,
}

struct DeadlineFlags {
    stop: AtomicBool,
    stop_at: AtomicU64,
    abort_at: AtomicU64,
}

impl Deadlines {
    /// Starts the thread.
    pub fn start() -> Deadlines {
        let flags = Arc::new(DeadlineFlags {
            stop: AtomicBool::new(false),
            stop_at: AtomicU64::new(NEVER),
            abort_at: AtomicU64::new(NEVER),
        });
        let (begun, watched) = (Instant::now(), Arc::clone(&flags));
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(CHECK_PERIOD);
                let now = begun.elapsed().as_nanos() as u64;
                if now >= watched.stop_at.load(SeqCst) {
                    watched.stop.store(true, SeqCst);
                }
                if now >= watched.abort_at.load(SeqCst) {
                    eprintln!("a case did not end within {} s", CASE_MAX.as_secs());
                    std::process::abort();
                }
            }
        });
        Deadlines { begun, flags }
    }

    fn nanos_after(&self, time: Duration) -> u64 {
        (self.begun.elapsed() + time).as_nanos() as u64
    }

    /// A case begins: the process is aborted if it does not end.
    pub fn begin_case(&self) {
        self.flags.abort_at.store(self.nanos_after(CASE_MAX), SeqCst);
    }

    /// No case runs.
    pub fn end_case(&self) {
        self.flags.abort_at.store(NEVER, SeqCst);
    }

    /// Runs `launch` with a flag that is set when its time is up.
    pub fn run_launch<T>(&self, launch: impl FnOnce(&AtomicBool) -> T) -> T {
        self.flags.stop.store(false, SeqCst);
        self.flags.stop_at.store(self.nanos_after(LAUNCH_MAX), SeqCst);
        let result = launch(&self.flags.stop);
        self.flags.stop_at.store(NEVER, SeqCst);
        result
    }
}
