//! One thread that drives all calls to an object store.
//!
//! Callers wait on a channel and never enter the runtime, so they may be tasks of another one.

use super::ObjectError;
use std::future::Future;
use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// How much longer than its limit a call is waited for: the thread that drives it may be busy.
const GRACE: Duration = Duration::from_secs(5);

/// The thread, which ends when this is dropped.
#[derive(Debug)]
pub struct BackgroundRuntime(Option<Runtime>);

impl BackgroundRuntime {
    /// Starts the thread.
    pub fn start() -> io::Result<BackgroundRuntime> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("object store").enable_all().build()?;
        Ok(BackgroundRuntime(Some(runtime)))
    }

    /// Starts work that is given up after `limit`.
    pub fn start_call<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, ObjectError>> + Send + 'static,
    ) -> PendingCall<T> {
        let (sender, outcome) = channel();
        if let Some(runtime) = &self.0 {
            runtime.spawn(async move {
                let done = tokio::time::timeout(limit, work).await.unwrap_or(Err(ObjectError::Late(limit)));
                // The caller may not wait any more.
                let _ = sender.send(done);
            });
        }
        PendingCall { outcome, limit }
    }
}

impl Drop for BackgroundRuntime {
    fn drop(&mut self) {
        // A plain drop waits, which a task of another runtime must not do.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A call that is under way.
#[derive(Debug)]
pub struct PendingCall<T> {
    outcome: Receiver<Result<T, ObjectError>>,
    limit: Duration,
}

impl<T> PendingCall<T> {
    /// Waits for its outcome.
    pub fn wait(self) -> Result<T, ObjectError> {
        let outcome = self.outcome.recv_timeout(self.limit + GRACE);
        outcome.unwrap_or_else(|_| Err(ObjectError::Failed("the call was broken off".to_owned())))
    }
}
