//! GPUs that step aside, in words and for clients.

use crate::messages;
use crate::view::View;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use sublet_core::event::{Caller, Refusal};
use sublet_core::ids::GpuId;
use sublet_core::policy::aside::leases_that_stay;
use sublet_core::quota::CappedResource;
use sublet_core::rows::{Lease, Phase};
use sublet_core::units::Time;
use sublet_wire as wire;
use sublet_wire::Problem;

/// What ends an aside before its time.
const END: &str = "`sublet aside --end`";

impl View<'_> {
    /// `21:30`, where the host is.
    fn wall_time(&self, at: Time) -> String {
        let at = Timestamp::from_second(self.unix_s(at).ceil() as i64);
        at.map_or_else(|_| "later".to_owned(), |at| at.to_zoned(TimeZone::system()).strftime("%H:%M").to_string())
    }

    /// The user that put a GPU aside, as far as this reader may know.
    fn aside_user(&self, by: &Caller, user: &str) -> String {
        if self.sees_all(by) || by.tenant == user { self.names.of(user) } else { "another user".to_owned() }
    }

    /// `for ann until 21:30`.
    fn for_and_until(&self, by: &Caller, user: &str, until: Time) -> String {
        format!("for {} until {}", self.aside_user(by, user), self.wall_time(until))
    }

    /// That a GPU steps aside, in one sentence.
    pub fn steps_aside(&self, by: &Caller, index: u32, user: &str, until: Time) -> String {
        format!("GPU {index} steps aside {} ({END})", self.for_and_until(by, user, until))
    }

    /// Why no lease is granted on a GPU that steps aside; `None` while it does not.
    pub fn aside_why(&self, by: &Caller, gpu: GpuId) -> Option<String> {
        let (aside, until) = self.state.longest_aside(gpu)?;
        Some(format!("{} ({END})", self.for_and_until(by, &aside.by, until)))
    }

    /// That a GPU of a lease steps aside, in one sentence; `None` if none does.
    pub fn gpus_aside(&self, by: &Caller, lease: &Lease) -> Option<String> {
        let gpus = lease.hold().map(|hold| hold.gpus.as_slice()).unwrap_or_default();
        let longest = gpus.iter().filter_map(|gpu| Some((*gpu, self.state.longest_aside(*gpu)?)));
        let (gpu, (aside, until)) = longest.max_by_key(|(_, (_, until))| *until)?;
        let index = self.state.rows().gpus[gpu].facts.index;
        Some(self.steps_aside(by, index, &aside.by, until))
    }

    /// Where the bytes of a lease are that was parked for an aside.
    pub fn parked_aside(&self, by: &Caller, lease: &Lease) -> Option<String> {
        let reason = self.gpus_aside(by, lease)?;
        Some(format!("it is parked: its bytes are in host memory, and come back by themselves after that: {reason}"))
    }

    /// That a GPU steps aside, and the leases that stay there; `None` while it does not.
    pub fn aside(&self, by: &Caller, gpu: GpuId) -> Option<wire::Aside> {
        let (aside, until) = self.state.longest_aside(gpu)?;
        let claims = self.state.room(gpu).leases().keys().filter_map(|lease| self.state.lease(*lease));
        let leaving = claims.filter(|lease| matches!(lease.phase, Phase::Parking(..))).count();
        let stays = leases_that_stay(self.state, gpu, self.now).into_iter().filter_map(|(lease, why)| {
            let row = self.state.lease(lease)?;
            let lease = self.id_for(by, row);
            let user =
                if self.sees_all(by) || lease.is_some() { self.user(row.tenant) } else { "another user".to_owned() };
            Some(wire::AsideStay { lease, user, why: why.to_string() })
        });
        Some(wire::Aside {
            user: self.aside_user(by, &aside.by),
            since_unix_s: self.unix_s(aside.since),
            until_unix_s: self.unix_s(until),
            parking: leaving as u32,
            stays: stays.collect(),
        })
    }

    /// A refusal as a problem, with names and times as people know them.
    pub fn problem(&self, by: &Caller, refusal: &Refusal) -> Problem {
        match refusal {
            Refusal::StepsAside { index, by: user, until } => {
                let problem = messages::problem(refusal);
                Problem { detail: self.steps_aside(by, *index, user, *until), ..problem }
            }
            Refusal::AnothersAside(user) => messages::problem(&Refusal::AnothersAside(self.aside_user(by, user))),
            // A daily budget is whole again at midnight.
            Refusal::OverQuota(block)
                if matches!(block.resource, CappedResource::GpuDay { .. }) && !block.is_permanent =>
            {
                messages::problem(refusal).retry_after(self.day_left_s)
            }
            other => messages::problem(other),
        }
    }
}
