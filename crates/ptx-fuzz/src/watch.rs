//! Deadlines: a launch is told to stop, and a process that does not stop is ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How long a launch may run before it is told to stop.
const LAUNCH: Duration = Duration::from_millis(15);
/// How long a whole case may take, on a busy machine.
const CASE: Duration = Duration::from_secs(120);
/// The time between two checks of the deadlines.
const LOOK: Duration = Duration::from_millis(3);
/// No deadline.
const NEVER: u64 = u64::MAX;

/// A thread that checks two deadlines for as long as the process lives.
pub struct Watch {
    begun: Instant,
    shared: Arc<Shared>,
}

struct Shared {
    stop: AtomicBool,
    stop_at: AtomicU64,
    abort_at: AtomicU64,
}

impl Watch {
    /// Starts the thread.
    pub fn start() -> Watch {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            stop_at: AtomicU64::new(NEVER),
            abort_at: AtomicU64::new(NEVER),
        });
        let (begun, seen) = (Instant::now(), Arc::clone(&shared));
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(LOOK);
                let now = begun.elapsed().as_nanos() as u64;
                if now >= seen.stop_at.load(SeqCst) {
                    seen.stop.store(true, SeqCst);
                }
                if now >= seen.abort_at.load(SeqCst) {
                    eprintln!("a case did not end within {} s", CASE.as_secs());
                    std::process::abort();
                }
            }
        });
        Watch { begun, shared }
    }

    fn after(&self, time: Duration) -> u64 {
        (self.begun.elapsed() + time).as_nanos() as u64
    }

    /// A case begins: the process is aborted if it does not end.
    pub fn case(&self) {
        self.shared.abort_at.store(self.after(CASE), SeqCst);
    }

    /// No case runs.
    pub fn idle(&self) {
        self.shared.abort_at.store(NEVER, SeqCst);
    }

    /// Runs `launch` with a flag that is set when its time is up.
    pub fn launch<T>(&self, launch: impl FnOnce(&AtomicBool) -> T) -> T {
        self.shared.stop.store(false, SeqCst);
        self.shared.stop_at.store(self.after(LAUNCH), SeqCst);
        let result = launch(&self.shared.stop);
        self.shared.stop_at.store(NEVER, SeqCst);
        result
    }
}
