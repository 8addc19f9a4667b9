//! Connects waiting requests with the threads that follow the leases.
//!
//! ```text
//!   requests ──enter──► WaitingRequests ◄──told, gone, ended── finder and followers (threads, long polls)
//!      ▲                       │ due
//!      └────────version────────┴──► asker (thread): resume, once for each park, while requests wait
//! ```
//! However many requests wait, each lease is followed by one long poll and asked to resume once.

use super::leases::{NOT_ACTIVE, NOT_KNOWN, ProxyRefusal, ServiceLeases};
use super::wake::Need;
use crate::table::plain;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use sublet_wire::{Lease, LeaseState};
use tokio::sync::watch;

/// The age at which an estimate is requested again, while a request waits for it.
const ESTIMATE_HOLDS: Duration = Duration::from_secs(2);
/// A request that may not wait still waits up to this time until everything is known and the lease was asked to resume,
/// so that its Retry-After is right. That usually takes milliseconds.
const ASKED_WITHIN: Duration = Duration::from_secs(1);

/// The state that requests and threads share.
#[derive(Debug)]
pub struct WaitingRequests {
    inside: Mutex<SharedProxyState>,
    /// Signalled when a request arrives or something is learned: the asker checks what is due.
    bell: Condvar,
    /// Grows with each new fact.
    version: watch::Sender<u64>,
    open_without_daemon: bool,
}

#[derive(Debug)]
struct SharedProxyState {
    leases: ServiceLeases,
    /// The number of requests that wait.
    waiting: usize,
    /// The number of requests that the service has not yet answered in full.
    under_way: usize,
    /// Leases that were asked to resume, the state they were in, and when their estimate was last updated.
    asked: BTreeMap<String, (LeaseState, Instant)>,
    /// What was last printed to stderr: the code of a refusal, or `None` if requests pass.
    said: Option<Option<&'static str>>,
}

/// The next action of the asker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskerStep {
    /// Ask a parked lease to resume.
    Resume(String, LeaseState),
    /// Ask when the lease is expected back.
    Estimate(String),
}

/// A request that passed. The service counts as in use as long as this value lives.
#[derive(Debug)]
pub struct UnderWay(Arc<WaitingRequests>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.lock().under_way -= 1;
    }
}

/// A waiting request; it is counted as long as this value lives.
struct Waits<'a>(&'a WaitingRequests);

impl<'a> Waits<'a> {
    fn at(requests: &'a WaitingRequests) -> Waits<'a> {
        requests.lock().waiting += 1;
        requests.bell.notify_all();
        Waits(requests)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}

impl WaitingRequests {
    /// No requests, and no facts about the leases.
    pub fn new(leases: ServiceLeases, open_without_daemon: bool) -> WaitingRequests {
        let inside = SharedProxyState { leases, waiting: 0, under_way: 0, asked: BTreeMap::new(), said: None };
        let (version, _) = watch::channel(0);
        WaitingRequests { inside: Mutex::new(inside), bell: Condvar::new(), version, open_without_daemon }
    }

    fn lock(&self) -> MutexGuard<'_, SharedProxyState> {
        // A panic leaves nothing in it half done.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records new facts, and wakes requests and the asker.
    pub fn learn(&self, what: impl FnOnce(&mut ServiceLeases)) {
        let mut inside = self.lock();
        what(&mut inside.leases);
        let SharedProxyState { leases, asked, .. } = &mut *inside;
        // A lease that is back, or is resuming, is asked again the next time that it is parked.
        asked.retain(|id, _| leases.off_gpus().any(|(off, _)| off == id));
        let verdict = inside.leases.verdict(self.open_without_daemon, Instant::now());
        let code = verdict.as_ref().map_err(|refusal| refusal.code).err();
        // The state without any facts lasts milliseconds and is not printed.
        let is_news = code != Some(NOT_KNOWN) && inside.said != Some(code);
        if is_news {
            inside.said = Some(code);
        }
        drop(inside);
        match verdict {
            _ if !is_news => {}
            Ok(()) => eprintln!("all requests pass"),
            Err(refusal) => eprintln!("requests that need the GPU wait: {}", plain(&refusal.detail)),
        }
        self.bell.notify_all();
        self.version.send_modify(|version| *version += 1);
    }

    /// Whether a lease is known.
    pub fn knows(&self, id: &str) -> bool {
        self.lock().leases.knows(id)
    }

    /// Whether a request that needs the GPU may pass now.
    pub fn verdict(&self) -> Result<(), ProxyRefusal> {
        self.lock().leases.verdict(self.open_without_daemon, Instant::now())
    }

    /// Lets a request pass as soon as it may, or refuses it when its time is over. The bool is true if it had to wait
    /// for a lease.
    pub async fn enter(self: &Arc<Self>, until: Instant) -> Result<(UnderWay, bool), ProxyRefusal> {
        // Subscribed before the first check, so that no change after it is missed.
        let mut version = self.version.subscribe();
        if let Ok(under_way) = self.pass() {
            return Ok((under_way, false));
        }
        let _waits = Waits::at(self);
        let (begun, mut for_lease) = (Instant::now(), false);
        loop {
            version.borrow_and_update();
            // Read before the refusal is made, so that the refusal has the estimate that came with the answer.
            let is_asked = self.is_asked();
            let refusal = match self.pass() {
                Ok(under_way) => return Ok((under_way, for_lease)),
                Err(refusal) => refusal,
            };
            for_lease |= refusal.code == NOT_ACTIVE;
            let is_settled = refusal.code != NOT_KNOWN && is_asked;
            let until = if is_settled { until } else { until.max(begun + ASKED_WITHIN) };
            if Instant::now() >= until {
                return Err(refusal);
            }
            // After a timeout or a change, the loop checks again. The sender lives as long as `self`.
            let _ = tokio::time::timeout_at(until.into(), version.changed()).await;
        }
    }

    /// Whether a request that does not need the GPU is passed on now. It requests no lease, and does not count as use
    /// of the service.
    pub async fn admit_poll(&self, need: Need) -> Result<(), ProxyRefusal> {
        let mut version = self.version.subscribe();
        let until = Instant::now() + ASKED_WITHIN;
        loop {
            version.borrow_and_update();
            let (verdict, is_driven) = {
                let inside = self.lock();
                let verdict = inside.leases.verdict(self.open_without_daemon, Instant::now());
                (verdict, inside.leases.has_driven())
            };
            match verdict {
                Err(refusal) if refusal.code == NOT_KNOWN && Instant::now() < until => {
                    // After a timeout or a change, the loop checks again.
                    let _ = tokio::time::timeout_at(until.into(), version.changed()).await;
                }
                // A program that the driver parked may read the request now and act on it after it resumes, long after
                // the client was told that nothing happened.
                Err(refusal) if refusal.code == NOT_ACTIVE && is_driven && need != Need::Read => return Err(refusal),
                Err(refusal) if refusal.code != NOT_ACTIVE => return Err(refusal),
                Ok(()) | Err(_) => return Ok(()),
            }
        }
    }

    /// Returns when the service has had no GPU for the time that it gets to answer a request that does not need one.
    pub async fn give_up(&self) -> ProxyRefusal {
        let mut version = self.version.subscribe();
        let mut since = None;
        loop {
            version.borrow_and_update();
            let now = Instant::now();
            let unanswered = self.lock().leases.unanswered(now);
            let Some((within, refusal)) = unanswered else {
                since = None;
                // The sender lives as long as `self`.
                let _ = version.changed().await;
                continue;
            };
            let until = *since.get_or_insert(now) + within;
            if now >= until {
                return refusal;
            }
            let _ = tokio::time::timeout_at(until.into(), version.changed()).await;
        }
    }

    /// Lets a request pass if it may. It is counted under the same lock, so a park that begins afterwards finds the
    /// service in use.
    fn pass(self: &Arc<Self>) -> Result<UnderWay, ProxyRefusal> {
        let mut inside = self.lock();
        inside.leases.verdict(self.open_without_daemon, Instant::now())?;
        inside.under_way += 1;
        Ok(UnderWay(Arc::clone(self)))
    }

    /// Whether no request waits or is under way.
    #[cfg(test)]
    pub fn is_asleep(&self) -> bool {
        let inside = self.lock();
        inside.waiting + inside.under_way == 0
    }

    /// Whether every parked lease was asked to resume.
    fn is_asked(&self) -> bool {
        let inside = self.lock();
        inside.leases.off_gpus().all(|(id, state)| inside.asked.get(id).is_some_and(|(asked, _)| *asked == state))
    }

    /// Waits for the next action of the asker.
    pub fn due(&self) -> AskerStep {
        let mut inside = self.lock();
        loop {
            let now = Instant::now();
            match inside.due(now) {
                Ok(due) => return due,
                Err(None) => inside = self.bell.wait(inside).unwrap_or_else(PoisonError::into_inner),
                Err(Some(at)) => {
                    let patience = at.saturating_duration_since(now);
                    inside = self.bell.wait_timeout(inside, patience).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    /// Records that an action was taken, and the lease if the daemon returned it.
    pub fn done(&self, due: &AskerStep, lease: Option<&Lease>) {
        let now = Instant::now();
        let mut inside = self.lock();
        match due {
            AskerStep::Resume(id, state) => drop(inside.asked.insert(id.clone(), (*state, now))),
            AskerStep::Estimate(id) => {
                if let Some((_, at)) = inside.asked.get_mut(id) {
                    *at = now;
                }
            }
        }
        if let Some(lease) = lease {
            inside.leases.expected(lease, now);
        }
        drop(inside);
        self.version.send_modify(|version| *version += 1);
    }
}

impl SharedProxyState {
    /// The action that is due now, or the time of the next one if there is one.
    fn due(&self, now: Instant) -> Result<AskerStep, Option<Instant>> {
        if self.waiting + self.under_way == 0 {
            return Err(None);
        }
        let is_asked = |id: &str, state| self.asked.get(id).is_some_and(|(asked, _)| *asked == state);
        if let Some((id, state)) = self.leases.off_gpus().find(|(id, state)| !is_asked(id, *state)) {
            return Ok(AskerStep::Resume(id.to_owned(), state));
        }
        if self.waiting == 0 {
            return Err(None);
        }
        let heard = |id: &str| self.asked.get(id).map(|(_, at)| *at + ESTIMATE_HOLDS);
        let next = self.leases.without_gpus().filter_map(|id| Some((heard(id)?, id))).min();
        match next {
            Some((at, id)) if at <= now => Ok(AskerStep::Estimate(id.to_owned())),
            next => Err(next.map(|(at, _)| at)),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::sample;

    /// No requests yet, for a service of this name, which has one lease in this state.
    pub fn waiting_for(who: &str, state: LeaseState) -> Arc<WaitingRequests> {
        let requests = Arc::new(WaitingRequests::new(ServiceLeases::of(who), false));
        requests.learn(ServiceLeases::listed);
        tell(&requests, state);
        requests
    }

    /// The lease changes to this state.
    pub fn tell(requests: &WaitingRequests, state: LeaseState) {
        let lease = Lease { id: "L1".into(), state, waiting: None, ..sample::lease() };
        requests.learn(|leases| leases.told(&lease, Instant::now()));
    }

    fn requests(state: LeaseState) -> Arc<WaitingRequests> {
        waiting_for("L1", state)
    }

    fn due(requests: &WaitingRequests) -> Result<AskerStep, bool> {
        requests.lock().due(Instant::now()).map_err(|later| later.is_some())
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    fn within<T>(task: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(task)
    }

    #[test]
    fn a_parked_lease_is_asked_back_once_however_many_wait() {
        let requests = requests(LeaseState::Parked);
        assert_eq!(due(&requests), Err(false), "nobody wants it");
        let resume = AskerStep::Resume("L1".into(), LeaseState::Parked);
        {
            let (_one, _two) = (Waits::at(&requests), Waits::at(&requests));
            assert_eq!(due(&requests), Ok(resume.clone()));
            requests.done(&resume, None);
            assert_eq!(due(&requests), Err(true), "it was asked; later it is looked how long it takes");
        }
        assert_eq!(due(&requests), Err(false), "they went away");
        tell(&requests, LeaseState::Active);
        tell(&requests, LeaseState::Parked);
        let _again = Waits::at(&requests);
        assert_eq!(due(&requests), Ok(resume), "it was parked again");
    }

    #[test]
    fn a_service_that_is_parked_in_the_middle_of_a_request_is_asked_back() {
        let requests = requests(LeaseState::Active);
        let (under_way, waited) = within(requests.enter(soon())).unwrap();
        assert!(!waited);
        tell(&requests, LeaseState::Parking);
        assert_eq!(due(&requests), Ok(AskerStep::Resume("L1".into(), LeaseState::Parking)));
        drop(under_way);
        assert_eq!(due(&requests), Err(false), "it is not used any more");
    }

    #[test]
    fn who_waits_passes_when_the_lease_is_back_and_not_before() {
        let requests = requests(LeaseState::Parked);
        within(async {
            let waits = tokio::spawn({
                let requests = Arc::clone(&requests);
                async move { requests.enter(soon()).await.map(|(_, waited)| waited) }
            });
            for state in [LeaseState::Parked, LeaseState::Resuming] {
                tell(&requests, state);
                tokio::time::sleep(Duration::from_millis(20)).await;
                assert!(!waits.is_finished(), "{state:?}");
            }
            tell(&requests, LeaseState::Active);
            assert_eq!(waits.await.unwrap(), Ok(true));
        });
        assert!(requests.is_asleep(), "nobody is left behind");
    }

    #[test]
    fn who_would_not_wait_is_refused_once_the_lease_was_asked_back() {
        let requests = requests(LeaseState::Parked);
        let asker = std::thread::spawn({
            let requests = Arc::clone(&requests);
            move || {
                let due = requests.due();
                requests.done(&due, None);
                due
            }
        });
        let refusal = within(requests.enter(Instant::now())).unwrap_err();
        assert_eq!((refusal.status, refusal.code), (503, "lease_not_active"));
        assert_eq!(asker.join().unwrap(), AskerStep::Resume("L1".into(), LeaseState::Parked));
    }
}
