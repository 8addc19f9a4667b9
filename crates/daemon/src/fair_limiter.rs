//! Limits work to a number of pieces at a time, and each caller to a part of it.
//!
//! A caller that sends 200 requests at once waits for its own; another caller waits for a few of them at most. No
//! request is refused. A caller that hangs up while it waits loses its place.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The limits and the callers of this moment.
#[derive(Clone, Debug)]
pub struct FairLimiter(Arc<LimiterState>);

#[derive(Debug)]
struct LimiterState {
    all: Arc<Semaphore>,
    /// Permits of one caller at a time.
    limit: usize,
    each: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// The right to work; given back when it is dropped.
#[derive(Debug)]
pub struct CallPermit {
    inside: Arc<LimiterState>,
    who: String,
    permits: Option<Permits>,
}

#[derive(Debug)]
struct Permits {
    // Dropped in this order: a caller's next piece may wait for all only when this one is over.
    _all: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
}

impl FairLimiter {
    /// Allows `all` pieces at a time, and `each` of one caller.
    pub fn new(all: usize, limit: usize) -> FairLimiter {
        FairLimiter(Arc::new(LimiterState { all: Arc::new(Semaphore::new(all)), limit, each: Mutex::default() }))
    }

    /// Works for a caller when it has a permit; `None` if the daemon stops meanwhile.
    pub async fn run<T: Send + 'static>(&self, who: &str, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let turn = self.take(who).await?;
        // The work goes on if its caller hangs up, and so must the permit.
        let done = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(turn);
            done
        });
        done.await.ok()
    }

    /// Waits for a caller's permit; `None` if the daemon stops meanwhile.
    pub async fn take(&self, who: &str) -> Option<CallPermit> {
        // Its own limit first: of one caller, only as many pieces wait for all as may run.
        let own = self.own(who).acquire_owned().await.ok()?;
        let all = Arc::clone(&self.0.all).acquire_owned().await.ok()?;
        let permits = Some(Permits { _all: all, _own: own });
        Some(CallPermit { inside: Arc::clone(&self.0), who: who.to_owned(), permits })
    }

    fn own(&self, who: &str) -> Arc<Semaphore> {
        let mut each = self.0.each.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(each.entry(who.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(self.0.limit))))
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        let mut each = self.inside.each.lock().unwrap_or_else(PoisonError::into_inner);
        // With the map locked: of two that end at the same time the later one finds itself the last.
        self.permits = None;
        // The map has the only one left: no piece of this caller works or waits.
        if each.get(&self.who).is_some_and(|own| Arc::strong_count(own) <= 1) {
            each.remove(&self.who);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn one_caller_with_many_calls_leaves_permits_for_others() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let turns = FairLimiter::new(3, 2);
        runtime.block_on(async {
            let (go, wait) = mpsc::channel::<()>();
            let wait = Arc::new(Mutex::new(wait));
            let greedy: Vec<_> = (0..20)
                .map(|_| {
                    let (turns, wait) = (turns.clone(), Arc::clone(&wait));
                    tokio::spawn(async move { turns.run("ana", move || wait.lock().unwrap().recv().is_err()).await })
                })
                .collect();
            // All of them wait before another caller comes.
            tokio::task::yield_now().await;
            assert_eq!(turns.run("ben", || 1).await, Some(1));
            assert_eq!(turns.run("ben", || 2).await, Some(2));
            assert!(greedy.iter().all(|call| !call.is_finished()));
            drop(go);
            for call in greedy {
                assert_eq!(call.await.unwrap(), Some(true), "each has its turn");
            }
        });
        assert!(turns.0.each.lock().unwrap().is_empty(), "no caller is remembered");
    }

    #[test]
    fn a_caller_that_hangs_up_loses_its_place() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let turns = FairLimiter::new(3, 2);
        runtime.block_on(async {
            let held = (turns.take("ana").await, turns.take("ana").await);
            let waiting = tokio::spawn({
                let turns = turns.clone();
                async move { turns.run("ana", || ()).await }
            });
            tokio::task::yield_now().await;
            waiting.abort();
            assert!(waiting.await.is_err());
            drop(held);
            assert_eq!(turns.run("ana", || 1).await, Some(1));
        });
        assert_eq!(turns.0.all.available_permits(), 3);
        assert!(turns.0.each.lock().unwrap().is_empty());
    }
}
