//! Whether a request may pass, from what is known of a service's leases.
//!
//! Nothing here waits, calls the daemon or reads a clock: the time is passed in.

use crate::text;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use sublet_wire::{Lease, LeaseState, ParkMethod, span};

/// The code of a refusal while a lease does not have its GPUs.
pub const NOT_ACTIVE: &str = "lease_not_active";
/// The code of a refusal while the leases are not known yet, or not known again.
pub const NOT_KNOWN: &str = "not_known_yet";
/// Retry-After where no estimate is known.
const RETRY_S: u64 = 5;
/// Retry-After where no request waits for the lease: nothing is expected to change soon.
const RETRY_UNWANTED_S: u64 = 30;
/// The longest Retry-After.
const RETRY_MAX_S: u64 = 3_600;
/// How long a service is given for a request that does not need the GPU while it has none. A program that the driver
/// parked can answer from threads that do not call CUDA; if it does not answer soon, it will not before it is back.
const UNANSWERED_BY_DRIVER: Duration = Duration::from_secs(2);
/// The same for a program that was parked by Sublet's library or by its hook, and can answer like any other.
const UNANSWERED: Duration = Duration::from_secs(60);

/// What is known of the leases of a service.
#[derive(Debug)]
pub struct ServiceLeases {
    /// The name of the service or lease.
    what: String,
    /// Why the daemon does not answer, if so.
    away: Option<DaemonAbsence>,
    /// Whether the list of leases is known.
    listed: bool,
    leases: BTreeMap<String, KnownLease>,
    /// The one followed lease is over: the reason.
    over: Option<String>,
}

/// Why no daemon answers, or why it refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonAbsence {
    /// What happened.
    pub why: String,
    /// What to do.
    pub hint: Option<String>,
}

/// A lease, as the daemon last reported it.
#[derive(Debug)]
struct KnownLease {
    state: LeaseState,
    /// It was reported since the daemon was last unreachable.
    is_fresh: bool,
    /// Why it waits, and when it is expected on its GPUs.
    waits: Option<(String, Option<Instant>)>,
    /// The driver parked it or is moving its bytes: its threads block when they call CUDA.
    is_driven: bool,
}

/// Why a request does not pass. It is not one of the daemon's problems: the proxy sends it in place of the service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProxyRefusal {
    /// `about:sublet/` and the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// The HTTP status.
    pub status: u16,
    /// A code for programs.
    pub code: &'static str,
    /// What happened.
    pub detail: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Seconds after which to try again, as in Retry-After.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
}

impl ProxyRefusal {
    /// A refusal without a time to try again.
    pub fn new(status: u16, code: &'static str, detail: impl Into<String>) -> ProxyRefusal {
        let kind = format!("about:sublet/{code}");
        ProxyRefusal { kind, status, code, detail: detail.into(), hint: None, retry_after_s: None }
    }
    /// Sets the hint.
    pub fn hint(self, hint: Option<String>) -> ProxyRefusal {
        ProxyRefusal { hint, ..self }
    }
    /// Sets the time to try again.
    pub fn retry(self, after_s: u64) -> ProxyRefusal {
        ProxyRefusal { retry_after_s: Some(after_s), ..self }
    }
}

impl ServiceLeases {
    /// No leases, before anything is known.
    pub fn of(what: &str) -> ServiceLeases {
        ServiceLeases { what: what.to_owned(), away: None, listed: false, leases: BTreeMap::new(), over: None }
    }

    /// The list of leases is complete now.
    pub fn listed(&mut self) {
        (self.away, self.listed) = (None, true);
    }

    /// The daemon does not answer, so what was known is out of date. With `lists`, the list of leases must be read
    /// again too.
    pub fn gone(&mut self, away: DaemonAbsence, lists: bool) {
        self.away = Some(away);
        self.listed &= !lists;
        self.leases.values_mut().for_each(|known| known.is_fresh = false);
    }

    /// Records a lease as the daemon reported it.
    pub fn told(&mut self, lease: &Lease, now: Instant) {
        self.away = None;
        let is_driven = lease.method == Some(ParkMethod::Driver);
        let known = KnownLease { state: lease.state, is_fresh: true, waits: waits(lease, now), is_driven };
        self.leases.insert(lease.id.clone(), known);
    }

    /// Updates the expected wait of a lease, but not its state, which is learned by `told`.
    pub fn expected(&mut self, lease: &Lease, now: Instant) {
        if let Some(known) = self.leases.get_mut(&lease.id) {
            known.waits = waits(lease, now);
        }
    }

    /// Removes a lease that is over. `named` is set if it was the only one to follow.
    pub fn ended(&mut self, id: &str, named: Option<String>) {
        self.away = None;
        self.leases.remove(id);
        self.over = named.or(self.over.take());
    }

    /// Whether a lease is known.
    pub fn knows(&self, id: &str) -> bool {
        self.leases.contains_key(id)
    }

    /// Leases that are parked or being parked, and could be asked to resume.
    pub fn off_gpus(&self) -> impl Iterator<Item = (&str, LeaseState)> {
        let off =
            |known: &KnownLease| known.is_fresh && matches!(known.state, LeaseState::Parking | LeaseState::Parked);
        self.leases.iter().filter(move |(_, known)| off(known)).map(|(id, known)| (id.as_str(), known.state))
    }

    /// Leases that do not have their GPUs, for any reason.
    pub fn without_gpus(&self) -> impl Iterator<Item = &str> {
        let without = |known: &KnownLease| known.state != LeaseState::Active;
        self.leases.iter().filter(move |(_, known)| without(known)).map(|(id, _)| id.as_str())
    }

    /// Whether a request that needs the GPU may pass now, or why not.
    pub fn verdict(&self, open_without_daemon: bool, now: Instant) -> Result<(), ProxyRefusal> {
        if let Some(over) = &self.over {
            let hint = "name the service instead, with `--of`: then its next lease counts".to_owned();
            return Err(ProxyRefusal::new(503, "lease_ended", over.clone()).hint(Some(hint)));
        }
        match &self.away {
            Some(_) if open_without_daemon => return Ok(()),
            Some(DaemonAbsence { why, hint }) => {
                let detail = format!("whether {} has its GPUs is not known: {why}", self.what);
                return Err(ProxyRefusal::new(503, "no_daemon", detail).hint(hint.clone()).retry(RETRY_S));
            }
            None => {}
        }
        let stale = self.leases.values().any(|known| !known.is_fresh);
        if !self.listed || stale {
            let detail = format!("whether {} has its GPUs is not known yet", self.what);
            return Err(ProxyRefusal::new(503, NOT_KNOWN, detail).retry(1));
        }
        self.expected_last(now).map_or(Ok(()), |(id, known)| Err(self.without(id, known, now)))
    }

    /// How long the service gets to answer a request that does not need the GPU, and the response after that. `None`
    /// while every lease is active, or while no daemon reports their state.
    pub fn unanswered(&self, now: Instant) -> Option<(Duration, ProxyRefusal)> {
        let (id, known) = self.expected_last(now).filter(|_| self.away.is_none())?;
        let within = if self.has_driven() { UNANSWERED_BY_DRIVER } else { UNANSWERED };
        let (what, after) = (self.situation(id, known), known.retry_s(now));
        let refusal = ProxyRefusal::new(503, NOT_ACTIVE, format!("the service did not answer: {what}")).retry(after);
        let hint = match known.is_unwanted() {
            true => "this request does not bring it back; one that needs the GPU does (`--wake`)".to_owned(),
            false => retry_hint(id, after),
        };
        Some((within, refusal.hint(Some(hint))))
    }

    /// True if the driver parked one of the leases.
    pub fn has_driven(&self) -> bool {
        self.leases.values().any(|known| known.is_driven)
    }

    /// Of the leases that do not have their GPUs, the one that is expected last.
    fn expected_last(&self, now: Instant) -> Option<(&str, &KnownLease)> {
        let without = self.leases.iter().filter(|(_, known)| known.state != LeaseState::Active);
        without.max_by_key(|(_, known)| known.retry_s(now)).map(|(id, known)| (id.as_str(), known))
    }

    fn without(&self, id: &str, known: &KnownLease, now: Instant) -> ProxyRefusal {
        let after = known.retry_s(now);
        ProxyRefusal::new(503, NOT_ACTIVE, self.situation(id, known)).hint(Some(retry_hint(id, after))).retry(after)
    }

    /// A lease, its state, and why it waits, as text.
    fn situation(&self, id: &str, known: &KnownLease) -> String {
        let state = text::lease_state(known.state);
        let whose = if self.what == id { String::new() } else { format!(" of {}", self.what) };
        match &known.waits {
            Some((why, _)) if !why.is_empty() => format!("{id}{whose} is {state}: {why}"),
            _ => format!("{id}{whose} is {state}"),
        }
    }
}

fn retry_hint(id: &str, after_s: u64) -> String {
    format!("try again in {}; `sublet explain {id}` says why it waits", span::show(after_s as f64))
}

impl KnownLease {
    /// True if it is off its GPUs and no request for them was made.
    fn is_unwanted(&self) -> bool {
        self.waits.is_none() && matches!(self.state, LeaseState::Parking | LeaseState::Parked)
    }

    /// The expected time until it is back, in whole seconds.
    fn retry_s(&self, now: Instant) -> u64 {
        let at = self.waits.as_ref().and_then(|(_, at)| *at);
        // Rounded up: half a second left is a second. A time that has passed says nothing.
        let left = at.map(|at| at.saturating_duration_since(now)).filter(|left| !left.is_zero());
        let unknown = if self.is_unwanted() { RETRY_UNWANTED_S } else { RETRY_S };
        left.map_or(unknown, |left| left.as_secs_f64().ceil() as u64).clamp(1, RETRY_MAX_S)
    }
}

fn waits(lease: &Lease, now: Instant) -> Option<(String, Option<Instant>)> {
    let waiting = lease.waiting.as_ref()?;
    let within = waiting.expected_s.or(waiting.planned_s).and_then(|s| Duration::try_from_secs_f64(s).ok());
    Some((waiting.why.clone(), within.and_then(|within| now.checked_add(within))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use expect_test::{Expect, expect};
    use sublet_wire::Waiting;

    fn lease(id: &str, state: LeaseState) -> Lease {
        Lease { id: id.into(), state, waiting: None, ..sample::lease() }
    }

    fn waiting(expected_s: Option<f64>) -> Option<Waiting> {
        let why = "GPU 0 is full".to_owned();
        let estimate_s = Some(3_000.0).filter(|_| expected_s.is_some());
        let (place, offers) = (1, Vec::new());
        Some(Waiting {
            place,
            place_exact: true,
            why,
            planned_s: estimate_s,
            expected_s,
            expected_p90_s: expected_s,
            offers,
            bound: None,
        })
    }

    fn check(standing: &ServiceLeases, now: Instant, expected: &Expect) {
        let said = match standing.verdict(false, now) {
            Ok(()) => "passes".to_owned(),
            Err(no) => format!("{} {} ({:?}): {}", no.status, no.code, no.retry_after_s, no.detail),
        };
        expected.assert_eq(&said);
    }

    #[test]
    fn a_request_passes_while_every_lease_is_active_or_there_is_none() {
        let now = Instant::now();
        let mut standing = ServiceLeases::of("unit:ollama.service");
        check(
            &standing,
            now,
            &expect!["503 not_known_yet (Some(1)): whether unit:ollama.service has its GPUs is not known yet"],
        );
        standing.listed();
        check(&standing, now, &expect!["passes"]);
        standing.told(&lease("L1", LeaseState::Active), now);
        check(&standing, now, &expect!["passes"]);
        standing.told(&lease("L2", LeaseState::Waiting), now);
        check(&standing, now, &expect!["503 lease_not_active (Some(5)): L2 of unit:ollama.service is waiting"]);
        standing.told(&lease("L2", LeaseState::Active), now);
        for state in [LeaseState::Parking, LeaseState::Parked, LeaseState::Resuming] {
            standing.told(&lease("L1", state), now);
            assert!(standing.verdict(true, now).is_err(), "{state:?}");
        }
        standing.ended("L1", None);
        check(&standing, now, &expect!["passes"]);
    }

    #[test]
    fn when_to_come_again_is_when_the_last_lease_is_expected() {
        let now = Instant::now();
        let mut standing = ServiceLeases::of("name:llm");
        standing.listed();
        for (id, estimate) in [("L1", Some(3.2)), ("L2", Some(11.4)), ("L3", Some(0.2))] {
            standing.told(&Lease { waiting: waiting(estimate), ..lease(id, LeaseState::Parked) }, now);
        }
        check(&standing, now, &expect!["503 lease_not_active (Some(12)): L2 of name:llm is parked: GPU 0 is full"]);
        check(
            &standing,
            now + Duration::from_secs(10),
            &expect!["503 lease_not_active (Some(5)): L3 of name:llm is parked: GPU 0 is full"],
        );
        standing.ended("L1", None);
        standing.ended("L3", None);
        let shorter = Lease { waiting: waiting(Some(1e9)), ..lease("L2", LeaseState::Active) };
        standing.expected(&shorter, now);
        check(&standing, now, &expect!["503 lease_not_active (Some(3600)): L2 of name:llm is parked: GPU 0 is full"]);
    }

    #[test]
    fn a_request_that_brings_nothing_back_is_told_so_and_is_given_less_time_where_the_driver_parked() {
        let now = Instant::now();
        let mut standing = ServiceLeases::of("name:llm");
        standing.listed();
        standing.told(&lease("L1", LeaseState::Active), now);
        assert_eq!(standing.unanswered(now), None);
        let mut parked = lease("L1", LeaseState::Parked);
        standing.told(&parked, now);
        let (within, refusal) = standing.unanswered(now).unwrap();
        assert_eq!((within, refusal.retry_after_s), (UNANSWERED, Some(RETRY_UNWANTED_S)));
        assert_eq!(refusal.detail, "the service did not answer: L1 of name:llm is parked");
        assert!(refusal.hint.unwrap().contains("does not bring it back"));
        parked.method = Some(ParkMethod::Driver);
        parked.waiting = waiting(Some(11.4));
        standing.told(&parked, now);
        let (within, refusal) = standing.unanswered(now).unwrap();
        assert_eq!((within, refusal.retry_after_s), (UNANSWERED_BY_DRIVER, Some(12)), "the expected time");
        assert!(refusal.hint.unwrap().starts_with("try again in 12 s"));
        standing.gone(DaemonAbsence { why: "no daemon answers at /s".into(), hint: None }, false);
        assert_eq!(standing.unanswered(now), None);
    }

    #[test]
    fn without_a_daemon_nothing_is_known_until_everything_was_told_again() {
        let now = Instant::now();
        let mut standing = ServiceLeases::of("L1");
        standing.listed();
        standing.told(&lease("L1", LeaseState::Active), now);
        standing.gone(DaemonAbsence { why: "no daemon answers at /s".into(), hint: None }, false);
        check(
            &standing,
            now,
            &expect!["503 no_daemon (Some(5)): whether L1 has its GPUs is not known: no daemon answers at /s"],
        );
        assert_eq!(standing.verdict(true, now), Ok(()));
        standing.listed();
        check(&standing, now, &expect!["503 not_known_yet (Some(1)): whether L1 has its GPUs is not known yet"]);
        assert_eq!(standing.off_gpus().count(), 0);
        standing.told(&lease("L1", LeaseState::Parked), now);
        assert_eq!(standing.off_gpus().collect::<Vec<_>>(), [("L1", LeaseState::Parked)]);
        standing.ended("L1", Some("L1 ended: its last process exited".into()));
        check(&standing, now, &expect!["503 lease_ended (None): L1 ended: its last process exited"]);
    }
}
