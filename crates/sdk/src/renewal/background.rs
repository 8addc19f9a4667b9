//! Ticks a `RenewalManager` from a thread.

use super::{RenewalEvent, RenewalManager};
use crate::clock::unix_now_s;
use crate::error::FabricError;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How often the thread looks. Leases last seconds at least.
const PERIOD: Duration = Duration::from_millis(250);

/// A thread that renews leases until this is dropped.
#[derive(Debug)]
pub struct BackgroundRenewal {
    shared: Arc<SharedManager>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct SharedManager {
    manager: Mutex<RenewalManager>,
    is_stopped: Mutex<bool>,
    stopped: Condvar,
}

impl RenewalManager {
    /// Ticks from a thread until the returned value is dropped. `on_event` is called on that thread.
    pub fn run_in_background(
        self,
        on_event: impl FnMut(RenewalEvent) + Send + 'static,
    ) -> Result<BackgroundRenewal, FabricError> {
        let (manager, is_stopped) = (Mutex::new(self), Mutex::new(false));
        let shared = Arc::new(SharedManager { manager, is_stopped, stopped: Condvar::new() });
        let (own, mut on_event) = (Arc::clone(&shared), on_event);
        let thread = thread::Builder::new().name("sublet-renewal".to_owned());
        let thread = thread.spawn(move || {
            while !own.rest() {
                let events = own.manager().tick(unix_now_s());
                events.into_iter().for_each(&mut on_event);
            }
        });
        Ok(BackgroundRenewal { shared, thread: Some(thread.map_err(FabricError::NoThread)?) })
    }
}

impl SharedManager {
    fn manager(&self) -> MutexGuard<'_, RenewalManager> {
        self.manager.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a period. Returns whether the thread must end.
    fn rest(&self) -> bool {
        let is_stopped = self.is_stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.stopped.wait_timeout_while(is_stopped, PERIOD, |is_stopped| !*is_stopped);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl BackgroundRenewal {
    /// The manager, to register and unregister leases. The thread waits meanwhile.
    pub fn with_manager<T>(&self, change: impl FnOnce(&mut RenewalManager) -> T) -> T {
        change(&mut self.shared.manager())
    }
}

impl Drop for BackgroundRenewal {
    fn drop(&mut self) {
        *self.shared.is_stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.stopped.notify_all();
        // Dropped by its own handler of events, the thread cannot wait for itself.
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}
