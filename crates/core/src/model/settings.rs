//! The settings that an operator may choose. Every number has its reason beside it.

use crate::model::method::Method;
use crate::model::request::{LeaseRequest, Tier};
use crate::model::rows::{ParkState, Tenant};
use crate::model::units::{Bytes, Span, Time};
use crate::model::unleased::EnforcementTimes;
use std::collections::{BTreeMap, BTreeSet};

/// A gap between two events longer than this is a stall: the loop ticks far more often.
pub const STALL: Span = Span::secs(10);

/// All settings of a host. Not durable: the configuration file has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// From a renewal to the expiry, for requests that name none.
    pub ttl: Span,
    /// When a used lease is renewed.
    pub renewal: Renewal,
    /// A lease is not renewed past this while a waiter needs its GPUs.
    pub hold_max: Span,
    /// How long a request waits that names no limit.
    pub wait: Span,
    /// Seconds by which a tier and a priority come earlier.
    pub head_start: HeadStart,
    /// The most by which a tenant's recent use beyond its share moves its waiters back in the queue.
    pub debt_max: Span,
    /// A waiter counts from when it became its tenant's first, and not from its arrival. Off only to
    /// compare with plain first come, first served.
    pub counts_from_first_place: bool,
    /// What each tenant may use in relation to the others.
    pub shares: Shares,
    /// How often GPUs are read; a reading older than two of these promises nothing.
    pub period: Span,
    /// How soon a GPU is read after something happened there; `None`: within a period. A replay reads at once.
    pub reads_after: Option<Span>,
    /// After the daemon was away, nothing expires for this long.
    pub grace: Span,
    /// Memory that stays free on every GPU.
    pub margin: Bytes,
    /// The same on a GPU that drives a display.
    pub margin_display: Bytes,
    /// Waiters in all.
    pub queue_max: usize,
    /// How and for how long leases are parked.
    pub parking: Parking,
    /// The times of unleased processes on GPUs set to `enforce`.
    pub enforcement: EnforcementTimes,
    /// How long a lease may have more than it is for before waiters may preempt it for that.
    pub overuse_grace: Span,
    /// Which users may put GPUs aside; operators always may.
    pub aside: AsideRule,
    /// What each tenant may have, where nothing else is said.
    pub caps: Caps,
    /// What certain tenants may have.
    pub caps_of: BTreeMap<String, Caps>,
    /// What each member of certain groups may have, unless its own name says otherwise.
    pub caps_of_members: BTreeMap<String, Caps>,
    /// What certain groups may have together.
    pub caps_of_groups: BTreeMap<String, Caps>,
}

/// Which users may put GPUs aside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AsideRule {
    /// All users of a kind.
    pub allow: AsideAllow,
    /// These users in any case.
    pub users: BTreeSet<String>,
}

/// Which users may put GPUs aside, in general.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AsideAllow {
    /// None: only operators may.
    Operators,
    /// Users with an active session at a seat of this host.
    #[default]
    Seat,
    /// Every local user.
    Everybody,
}

/// How and for how long leases are parked, and what they are parked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parking {
    /// The parking space: host memory for parked bytes. Zero switches parking off.
    pub space: Bytes,
    /// Host memory that parking leaves available to other programs.
    pub keep_available: Bytes,
    /// The longest time in a park.
    pub term: Span,
    /// A park or a resume that is not seen to be done after this is given up.
    pub move_timeout: Span,
    /// Leases are preempted for waiters, not only parked when their terms end.
    pub preempt: bool,
    /// The shortest time slice: a resumed lease keeps its GPUs for at least this long.
    pub slice_min: Span,
    /// A time slice is at least this many times as long as a park and a resume together.
    pub slice_per_move: u32,
    /// A batch job that is expected to be done within another slice keeps its GPUs for it, and one that was
    /// parked once goes before its own tenant's jobs that have not started.
    pub stretches_slices: bool,
    /// A lease that was idle for this long may be preempted for a waiter of a lower tier.
    pub idle_after: Span,
    /// A lease that was just parked preempts no other for this long.
    pub pause_after_park: Span,
    /// From SIGTERM to SIGKILL for the processes of a lease that is ended for others.
    pub grace: Span,
    /// After a failed park or resume, its method is not tried again for this long.
    pub retry_after: Span,
    /// When the driver takes the context of a program that the library parked, too; `None`: never.
    pub context_after: Option<Span>,
}

impl Default for Parking {
    fn default() -> Parking {
        Parking {
            // The daemon knows how much there is; core must not guess.
            space: Bytes::ZERO,
            keep_available: Bytes(8 << 30),
            // A night: its programs are there in the morning.
            term: Span::secs(12 * 3600),
            // Captures to end, kernels to run out, 128 GiB at the slowest rate measured, and two readings.
            move_timeout: Span::secs(30),
            preempt: true,
            slice_min: Span::secs(10),
            // At most a twentieth of the time goes into moves; a program that pauses is parked sooner.
            slice_per_move: 19,
            stretches_slices: true,
            idle_after: Span::secs(30),
            pause_after_park: Span::secs(2),
            grace: Span::secs(30),
            retry_after: Span::secs(60),
            // The daemon knows whether there is a driver that could.
            context_after: None,
        }
    }
}

impl Parking {
    /// How long a method is not tried after a mover reported falsely that its bytes are gone.
    pub fn retry_after_false_report(&self) -> Span {
        Span(self.retry_after.0.saturating_mul(60))
    }

    /// How long a park or a resume may take with the method of `park`.
    pub fn timeout_of(&self, park: &ParkState) -> Span {
        match park.method {
            // First the driver brings its context back, and knows again of all host memory that its bytes are in.
            Method::Shim if park.with_driver => Span(2 * self.move_timeout.0),
            // The driver is slow: it gets a second for each half GiB.
            Method::Driver => Span(self.move_timeout.0 + (park.had_bytes.0 >> 29) * 1_000_000),
            // A hook has its own bound, and its wrapper says when that is over.
            Method::Hook => self.move_timeout.max(Span::secs(120)),
            Method::Shim | Method::End => self.move_timeout,
        }
    }
}

/// Hard caps, of one tenant or of a group together; `None` is no cap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Bytes reserved at a time, summed over GPUs.
    pub vram: Option<Bytes>,
    /// Leases held at a time.
    pub leases: Option<u32>,
    /// Places in the queue.
    pub places: Option<u32>,
    /// GPU time a day: a whole GPU for an hour is an hour, half of its memory half an hour.
    pub gpu_day: Option<Span>,
    /// Bytes at a time that may never be preempted.
    pub never: Option<Bytes>,
    /// The largest head start.
    pub head_start: Option<Span>,
    /// Host memory for parked bytes.
    pub parked: Option<Bytes>,
}

impl Caps {
    /// These caps; `other` has those that are not set here.
    fn or(&self, other: &Caps) -> Caps {
        Caps {
            vram: self.vram.or(other.vram),
            leases: self.leases.or(other.leases),
            places: self.places.or(other.places),
            gpu_day: self.gpu_day.or(other.gpu_day),
            never: self.never.or(other.never),
            head_start: self.head_start.or(other.head_start),
            parked: self.parked.or(other.parked),
        }
    }

    /// The larger cap of both, or the one that is set.
    fn larger(&self, other: &Caps) -> Caps {
        Caps {
            vram: self.vram.max(other.vram),
            leases: self.leases.max(other.leases),
            places: self.places.max(other.places),
            gpu_day: self.gpu_day.max(other.gpu_day),
            never: self.never.max(other.never),
            head_start: self.head_start.max(other.head_start),
            parked: self.parked.max(other.parked),
        }
    }
}

/// What each tenant may use, in relation to the other tenants that use GPUs at the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Of a tenant that has no other.
    pub default: u32,
    /// Of certain tenants.
    pub of: BTreeMap<String, u32>,
    /// Of each member of certain groups; the largest counts.
    pub of_groups: BTreeMap<String, u32>,
}

impl Default for Shares {
    fn default() -> Shares {
        Shares { default: 100, of: BTreeMap::new(), of_groups: BTreeMap::new() }
    }
}

impl Shares {
    /// A tenant's share: its own, or else the largest of its groups', or else the default.
    pub fn share(&self, tenant: &Tenant) -> u32 {
        let of_groups = || tenant.groups.iter().filter_map(|group| self.of_groups.get(group)).max();
        self.of.get(&tenant.name).or_else(of_groups).copied().unwrap_or(self.default).max(1)
    }
}

/// When the use of a lease renews it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// After this part of its term, spread by `jitter` in both directions.
    At {
        /// Hundredths of the term.
        percent: u8,
        /// Spread, so that leases granted together are not renewed together.
        jitter: u8,
    },
    /// When less than this part of its term is left.
    Below {
        /// Hundredths of the term.
        percent: u8,
    },
    /// At this interval.
    Every(Span),
}

/// How much earlier a tier and a priority queue: finite, so that every waiter is served in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadStart {
    /// For tier interactive.
    pub interactive: Span,
    /// For tier batch.
    pub batch: Span,
    /// For tier spot.
    pub spot: Span,
    /// For each step of priority.
    pub priority: Span,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            // Long enough to think about a plot, short enough that a forgotten notebook is noticed.
            ttl: Span::secs(300),
            renewal: Renewal::At { percent: 70, jitter: 10 },
            hold_max: Span::secs(30 * 60),
            wait: Span::secs(86_400),
            head_start: HeadStart::default(),
            // Two holds: long enough that a tenant which had its share lets others have theirs, short enough that a
            // large job of a busy tenant starts before the day is over.
            debt_max: Span::secs(3600),
            counts_from_first_place: true,
            shares: Shares::default(),
            period: Span::secs(1),
            reads_after: None,
            // A client that renews at 70 % of a short TTL gets at least one try in.
            grace: Span::secs(60),
            // Fragmentation and the driver's own needs, measured on idle GPUs.
            margin: Bytes::mib(256),
            margin_display: Bytes::mib(1536),
            queue_max: 100_000,
            parking: Parking::default(),
            enforcement: EnforcementTimes::default(),
            // Long enough to accept a larger lease, or to give back what a peak took.
            overuse_grace: Span::secs(60),
            aside: AsideRule::default(),
            // A runaway script is stopped long before the queue of the others is full. Leases that are never preempted
            // are an operator's to allow.
            caps: Caps { places: Some(1_000), never: Some(Bytes::ZERO), ..Caps::default() },
            caps_of: BTreeMap::new(),
            caps_of_members: BTreeMap::new(),
            caps_of_groups: BTreeMap::new(),
        }
    }
}

impl Default for HeadStart {
    fn default() -> HeadStart {
        HeadStart {
            // A user at a screen passes a batch job that came up to 20 minutes earlier, never an older one.
            interactive: Span::secs(30 * 60),
            batch: Span::secs(10 * 60),
            spot: Span::ZERO,
            priority: Span::secs(60),
        }
    }
}

impl HeadStart {
    /// How much earlier than its arrival a request queues, in µs; a low priority can make it later.
    pub fn of(&self, request: &LeaseRequest) -> i64 {
        let tier = match request.tier {
            Tier::Interactive => self.interactive,
            Tier::Batch => self.batch,
            Tier::Spot => self.spot,
        };
        tier.0 as i64 + self.priority.0 as i64 * i64::from(request.priority)
    }

    /// The largest head start of all requests.
    pub fn largest(&self) -> i64 {
        self.interactive.0.max(self.batch.0).max(self.spot.0) as i64 + 10 * self.priority.0 as i64
    }
}

impl Policy {
    /// A tenant's caps: by its name, or else by its groups (the largest counts), or else the default.
    pub fn caps_for(&self, name: &str, groups: &[String]) -> Caps {
        let of_groups = groups.iter().filter_map(|group| self.caps_of_members.get(group));
        let members = of_groups.fold(Caps::default(), |caps, more| caps.larger(more));
        let own = self.caps_of.get(name).map_or_else(|| members.clone(), |own| own.or(&members));
        own.or(&self.caps)
    }

    /// How soon after an event on a GPU the GPU is read.
    pub fn next_reading(&self) -> Span {
        self.reads_after.unwrap_or(self.period)
    }

    /// Since when a tenant's first waiter counts.
    pub fn first_since_of(&self, tenant: &Tenant) -> Time {
        if self.counts_from_first_place { tenant.first_since } else { Time::ZERO }
    }

    /// Where a request queues that arrived at `asked`: its arrival minus its head start, which is capped.
    pub fn rank(&self, request: &LeaseRequest, asked: Time, caps: &Caps) -> i64 {
        let start = self.head_start.of(request);
        let start = caps.head_start.map_or(start, |cap| start.min(cap.0 as i64));
        // A damaged journal may have any time.
        i64::try_from(asked.0).unwrap_or(i64::MAX).saturating_sub(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::request::Term;
    use crate::model::units::Bytes;

    #[test]
    fn a_waiter_from_the_end_of_time_is_the_last() {
        let policy = Policy::default();
        let request = LeaseRequest { priority: -128, ..LeaseRequest::plain(Bytes(1), Term::Renewed(Span::secs(60))) };
        let rank = |asked| policy.rank(&request, asked, &Caps::default());
        assert_eq!(rank(Time::NEVER), i64::MAX);
        assert!(rank(Time(1 << 40)) < rank(Time(u64::MAX >> 1)));
    }
}
