//! The wrapper's lines about a park: one when it has lasted for 2 s, and one when the program is back.
//!
//! ```text
//!   on its GPUs ──leaves──► away ──2 s, and parked──► told ──back──► "L5 is back on GPU 0 after 41 s"
//!        ▲                   │                          ▲
//!        └──────back─────────┘        10 s, still leaving, or resuming
//! ```
//! A lease that its hook parks gets no such lines: the hook's own say the same. For a program that is parked often,
//! the first 5 parks are printed, and then one every 10 minutes.

use crate::failure::tell_hint;
use crate::output::say;
use crate::table::plain;
use std::time::{Duration, Instant};
use sublet_wire::{Lease, LeaseState, ParkMethod, span};

/// A shorter park is not worth a line.
const MOMENT: Duration = Duration::from_secs(2);
/// There is no estimate while the bytes are still leaving. After this time the line is printed without one.
const LEAVES_LONG: Duration = Duration::from_secs(10);
/// The number of parks that are printed one after the other.
const AT_ONCE: u32 = 5;
/// After those, the time between two printed parks.
const LATER: Duration = Duration::from_secs(600);

/// The park of a lease, and what was printed about it.
#[derive(Debug, Default)]
pub struct ParkLines {
    away: Option<LongPark>,
    told: u32,
    last_told: Option<Instant>,
}

#[derive(Debug)]
struct LongPark {
    since: Instant,
    line: ParkLine,
    /// Since when the lease waits for its GPUs, if it does, and whether that was printed.
    waits: Option<(Instant, bool)>,
}

/// What happened to the line about a park.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParkLine {
    /// It is too early to print it.
    Pending,
    Told,
    /// Too many were printed lately.
    Skipped,
}

/// A line, and a hint how to act on it.
#[derive(Debug, PartialEq, Eq)]
pub struct ParkNotice {
    line: String,
    hint: Option<String>,
}

impl ParkNotice {
    pub fn print(&self) {
        say!("{}", self.line);
        self.hint.iter().for_each(|hint| tell_hint(hint));
    }
}

impl ParkLines {
    /// After what time to read the lease again, even if it does not change; `None` if that is not needed.
    pub fn due(&self, now: Instant) -> Option<Duration> {
        let away = self.away.as_ref()?;
        let since = match (away.line, away.waits) {
            (ParkLine::Pending, _) => away.since,
            (ParkLine::Told, Some((since, false))) => since,
            _ => return None,
        };
        let moment = (since + MOMENT).saturating_duration_since(now);
        let pause = if moment.is_zero() { Duration::from_secs(1) } else { moment };
        Some(pause)
    }

    /// The line to print about the present state of the lease, if any.
    pub fn see(&mut self, lease: &Lease, now: Instant) -> Option<ParkNotice> {
        let is_away = matches!(lease.state, LeaseState::Parking | LeaseState::Parked | LeaseState::Resuming);
        if !is_away || lease.method == Some(ParkMethod::Hook) {
            let is_told = |away: &LongPark| away.line == ParkLine::Told && lease.state == LeaseState::Active;
            let away = self.away.take().filter(is_told)?;
            let after = span::show(now.duration_since(away.since).as_secs_f64());
            return Some(ParkNotice {
                line: format!("{} is back on {} after {after}", lease.id, gpus(lease)),
                hint: None,
            });
        }
        let away = self.away.get_or_insert(LongPark { since: now, line: ParkLine::Pending, waits: None });
        if lease.waiting.is_some() {
            away.waits.get_or_insert((now, false));
        }
        let lasted = now.duration_since(away.since);
        let is_early = lasted < MOMENT || (lease.state == LeaseState::Parking && lasted < LEAVES_LONG);
        if away.line == ParkLine::Told {
            return away.wait_line(lease, now);
        }
        if away.line != ParkLine::Pending || is_early {
            return None;
        }
        if self.told >= AT_ONCE && self.last_told.is_some_and(|last| now.duration_since(last) < LATER) {
            away.line = ParkLine::Skipped;
            return None;
        }
        away.line = ParkLine::Told;
        // The line about the park says when the lease is expected back.
        away.waits = away.waits.map(|(since, _)| (since, true));
        (self.told, self.last_told) = (self.told + 1, Some(now));
        let why = lease.parked.as_ref().map(|parked| plain(&parked.why)).filter(|why| !why.is_empty());
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        let id = &lease.id;
        Some(ParkNotice {
            line: format!("{id} is parked{why}"),
            hint: Some(format!("`sublet resume {id}` asks for it back now, `sublet stop {id}` ends it")),
        })
    }
}

impl LongPark {
    /// The line for a parked program that was idle, is used again, and waits for more than `MOMENT`.
    fn wait_line(&mut self, lease: &Lease, now: Instant) -> Option<ParkNotice> {
        let waiting = lease.waiting.as_ref()?;
        let (since, is_told) = self.waits?;
        if is_told || now.duration_since(since) < MOMENT {
            return None;
        }
        self.waits = Some((since, true));
        Some(ParkNotice {
            line: format!("{} waits for {}: {}", lease.id, gpus(lease), plain(&waiting.why)),
            hint: None,
        })
    }
}

/// `GPU 0`, `GPUs 0, 1`.
fn gpus(lease: &Lease) -> String {
    let all: Vec<String> = lease.gpu_indices.iter().map(u32::to_string).collect();
    format!("{} {}", if all.len() == 1 { "GPU" } else { "GPUs" }, all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_wire::Parked;

    fn lease(state: LeaseState) -> Lease {
        let why = "bob's L9 (interactive) needs GPU 0; expected back in about 40 s".to_owned();
        let parked = Parked { since_unix_s: 0.0, booked_bytes: 0, ends_unix_s: None, why };
        let parked = (state != LeaseState::Active).then_some(parked);
        Lease { state, method: Some(ParkMethod::Shim), parked, gpu_indices: vec![0], ..crate::sample::lease() }
    }

    /// The lines printed for these states at these seconds.
    fn story(steps: &[(u64, LeaseState)]) -> Vec<String> {
        let (mut lines, start) = (ParkLines::default(), Instant::now());
        let said = |(at, state): &(u64, LeaseState)| lines.see(&lease(*state), start + Duration::from_secs(*at));
        steps.iter().filter_map(said).map(|said| said.line).collect()
    }

    #[test]
    fn a_park_is_told_after_2_s_with_its_reason_and_so_is_the_return() {
        use LeaseState::{Active, Parked, Parking, Resuming};
        let steps = [
            (0, Active),
            (1, Parking),
            (2, Parked),
            (3, Parked),
            (9, Parked),
            (41, Resuming),
            (42, Active),
            (50, Active),
        ];
        let told = [
            "L7 is parked: bob's L9 (interactive) needs GPU 0; expected back in about 40 s",
            "L7 is back on GPU 0 after 41 s",
        ];
        assert_eq!(story(&steps), told);
    }

    #[test]
    fn a_park_that_is_over_within_2_s_is_not_told_and_slow_leaving_is_told_after_10_s() {
        use LeaseState::{Active, Parked, Parking, Resuming};
        assert_eq!(story(&[(0, Parking), (1, Parked), (1, Resuming), (2, Active)]), [""; 0]);
        assert_eq!(story(&[(0, Parking), (2, Parking), (9, Parking)]), [""; 0]);
        assert_eq!(story(&[(0, Parking), (10, Parking)]).len(), 1);
    }

    #[test]
    fn a_program_that_is_parked_again_and_again_is_told_five_times_and_then_every_10_minutes() {
        let round = |n: u64| {
            [(n * 60, LeaseState::Parking), (n * 60 + 5, LeaseState::Parked), (n * 60 + 30, LeaseState::Active)]
        };
        let told = |rounds: u64| story(&(0..rounds).flat_map(round).collect::<Vec<_>>()).len();
        assert_eq!((told(5), told(13), told(15)), (10, 10, 12));
    }

    #[test]
    fn a_lease_parked_by_its_hook_gets_no_lines_here() {
        let mut lines = ParkLines::default();
        let now = Instant::now();
        let hooked = Lease { method: Some(ParkMethod::Hook), ..lease(LeaseState::Parked) };
        assert_eq!(lines.see(&hooked, now), None);
        assert_eq!(lines.see(&hooked, now + Duration::from_secs(20)), None);
        assert_eq!(lines.due(now), None);
    }
}
