//! One timer for all headers of a connection.
//!
//! hyper sets a timer for each header it waits for, and takes it away when the header is there. Both
//! wake the runtime's driver, and nearly none ever rings. Here the timer of a connection stays set;
//! one that rings too early, because it was set for an earlier header, is set anew.

use hyper::rt::{Sleep, Timer};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// The timer of one connection. What it is set for must not come before what it was set for.
#[derive(Clone, Debug, Default)]
pub struct OneTimer(Arc<Mutex<Option<Pin<Box<tokio::time::Sleep>>>>>);

impl Timer for OneTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(Until { timer: self.clone(), deadline: deadline.into() })
    }

    fn now(&self) -> std::time::Instant {
        Instant::now().into()
    }
}

/// Waits for its time.
struct Until {
    timer: OneTimer,
    deadline: Instant,
}

impl Sleep for Until {}

impl Future for Until {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // A connection waits for one header at a time, so nobody else holds this lock.
        let mut timer = self.timer.0.lock().unwrap_or_else(PoisonError::into_inner);
        let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(self.deadline)));
        loop {
            ready!(timer.as_mut().poll(context));
            if timer.deadline() >= self.deadline {
                return Poll::Ready(());
            }
            timer.as_mut().reset(self.deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_wait_lasts_until_its_own_end() {
        let (timer, start) = (OneTimer::default(), Instant::now());
        let seconds = |n| start + Duration::from_secs(n);
        for (gives_up, deadline) in [(5, 30), (20, 35), (40, 50)] {
            let wait = timer.sleep_until(seconds(deadline).into());
            assert!(tokio::time::timeout_at(seconds(gives_up), wait).await.is_err(), "{deadline}");
        }
        timer.sleep_until(seconds(70).into()).await;
        assert_eq!(start.elapsed(), Duration::from_secs(70));
    }
}
