//! The settings that an operator may choose. Every number has its reason beside it.

use crate::model::method::Method;
use crate::model::request::{LeaseRequest, Tier};
use crate::model::units::{Bytes, Span, Time};
use crate::model::unleased::EnforcementTimes;
use crate::rows::{ParkState, Tenant};
use std::collections::{BTreeMap, BTreeSet};

/// A gap between two events longer than this is a stall: the loop ticks far more often.
pub const STALL: Span = Span::secs(10);

/// The rules of this house. Not durable: the configuration file is its truth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// From a renewal to the expiry, for asks that name none.
    pub ttl: Span,
    /// When a used lease is renewed.
    pub renewal: Renewal,
    /// A lease is not renewed past this while somebody waits for its card.
    pub hold_max: Span,
    /// How long an ask waits that names no limit.
    pub wait: Span,
    /// Seconds by which a tier and a priority come earlier.
    pub head_start: HeadStart,
    /// Who used more than its share lately queues as if it came later, by this at most.
    pub debt_max: Span,
    /// A waiter counts from when it became its tenant's first, and not from its arrival. Off only to
    /// compare with plain first come, first served.
    pub counts_from_first_place: bool,
    /// Who may use how much, in relation to the others.
    pub shares: Shares,
    /// How often cards are read; a reading older than two of these promises nothing.
    pub period: Span,
    /// How soon a GPU is read after something happened there; `None`: within a period. A replay reads at once.
    pub reads_after: Option<Span>,
    /// After the daemon was away, nothing expires for this long.
    pub grace: Span,
    /// Memory left alone on every card.
    pub margin: Bytes,
    /// The same where a screen hangs on the card.
    pub margin_display: Bytes,
    /// Waiters in all.
    pub queue_max: usize,
    /// Where bytes go that have to leave a card.
    pub parking: Parking,
    /// How long strangers have for what, on cards where they are ended.
    pub enforcement: EnforcementTimes,
    /// Who has more than its lease may be made to leave after so long, should somebody wait.
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
    /// In general.
    pub allow: AsideAllow,
    /// These tenants in any case.
    pub users: BTreeSet<String>,
}

/// Which users may put GPUs aside, in general.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AsideAllow {
    /// No user who is not an operator.
    Operators,
    /// Users whose session is active at a seat of this host.
    #[default]
    Seat,
    /// Every local user.
    Everybody,
}

/// Where bytes go that have to leave a card, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parking {
    /// Host memory for them; none: nobody is parked.
    pub space: Bytes,
    /// So much host memory stays available whenever somebody is parked.
    pub keep_available: Bytes,
    /// How long anything may be parked.
    pub term: Span,
    /// A park or a resume that is not seen to be done after this is given up.
    pub move_timeout: Span,
    /// Room is made for whoever waits, and not only when a lease comes to its end.
    pub preempt: bool,
    /// Whoever came back to its cards has them for so long at least, and for as long as its moves are
    /// worth it.
    pub slice_min: Span,
    /// Of leaving and coming back, a turn is at least so many times as long.
    pub slice_per_move: u32,
    /// A batch job that is expected to be done within another slice keeps its GPUs for it, and one that was
    /// parked once goes before its own tenant's jobs that have not started.
    pub stretches_slices: bool,
    /// Whoever stands lower waits for somebody idle for so long.
    pub idle_after: Span,
    /// Who was just parked does not make others leave for so long.
    pub pause_after_park: Span,
    /// Those who are ended for others have so long between SIGTERM and SIGKILL.
    pub grace: Span,
    /// Who could not be parked, or resumed, is left alone for so long.
    pub retry_after: Span,
    /// Of whom the library parked the driver takes the context, too, after so long; `None`: never.
    pub context_after: Option<Span>,
}

impl Default for Parking {
    fn default() -> Parking {
        Parking {
            // The daemon knows how much there is; core must not guess.
            space: Bytes::ZERO,
            keep_available: Bytes(8 << 30),
            // A night: whoever comes back in the morning finds everything.
            term: Span::secs(12 * 3600),
            // Captures to end, kernels to run out, 128 GiB at the slowest rate measured, and two looks.
            move_timeout: Span::secs(30),
            preempt: true,
            slice_min: Span::secs(10),
            // At most a twentieth of the time goes into moving; who pauses leaves sooner.
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
    /// Whoever said that its bytes are gone when they were not is left alone for so long.
    pub fn retry_after_false_report(&self) -> Span {
        Span(self.retry_after.0.saturating_mul(60))
    }

    /// How long a holder may take to leave its cards, or to come back, in its way.
    pub fn timeout_of(&self, away: &ParkState) -> Span {
        match away.method {
            // First the driver brings its context back, and knows again of all host memory that its bytes are in.
            Method::Shim if away.with_driver => Span(2 * self.move_timeout.0),
            // The driver's own way is slow: it is given a second for each half GiB.
            Method::Driver => Span(self.move_timeout.0 + (away.had_bytes.0 >> 29) * 1_000_000),
            // A hook has its own bound, and its wrapper says when that is over.
            Method::Hook => self.move_timeout.max(Span::secs(120)),
            Method::Shim | Method::End => self.move_timeout,
        }
    }
}

/// Hard caps, of one tenant or of a group together; `None` is no cap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Bytes reserved at a time, every card counted.
    pub vram: Option<Bytes>,
    /// Leases held at a time.
    pub leases: Option<u32>,
    /// Places in the queue.
    pub places: Option<u32>,
    /// GPU time a day: a whole card for an hour is an hour, half of its memory half an hour.
    pub gpu_day: Option<Span>,
    /// Bytes at a time that nobody may make it give back early.
    pub never: Option<Bytes>,
    /// The largest head start.
    pub head_start: Option<Span>,
    /// Host memory for parked bytes.
    pub parked: Option<Bytes>,
}

impl Caps {
    /// What is said here, or else there.
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

    /// The larger of what is said in both, or what is said at all.
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

/// Who may use how much, in relation to the others that use the cards at the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Of a tenant for whom nothing else is said.
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

/// When a used lease is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// When so many hundredths of its term are over, give or take `jitter` hundredths.
    At {
        /// Hundredths of the term.
        percent: u8,
        /// Spread, so that leases granted together are not renewed together.
        jitter: u8,
    },
    /// When less than so many hundredths of the term are left.
    Below {
        /// Hundredths of the term.
        percent: u8,
    },
    /// At this interval.
    Every(Span),
}

/// How much earlier a tier and a priority queue: finite, so that nobody starves.
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
            // Two holds: long enough that who took turns lets others have theirs, short enough that
            // a large job of a busy tenant starts before the day is over.
            debt_max: Span::secs(3600),
            counts_from_first_place: true,
            shares: Shares::default(),
            period: Span::secs(1),
            reads_after: None,
            // A client that renews at 70 % of a short TTL gets at least one try in.
            grace: Span::secs(60),
            // Fragmentation and the driver's own needs, measured on idle cards.
            margin: Bytes::mib(256),
            margin_display: Bytes::mib(1536),
            queue_max: 100_000,
            parking: Parking::default(),
            enforcement: EnforcementTimes::default(),
            // Long enough to accept a larger lease, or to give back what a peak took.
            overuse_grace: Span::secs(60),
            aside: AsideRule::default(),
            // A runaway script is stopped long before the queue of the others is full. Whoever is
            // never to be preempted needs a word from the house.
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
            // Somebody at a screen passes a batch job that came up to 20 minutes earlier, never an older one.
            interactive: Span::secs(30 * 60),
            batch: Span::secs(10 * 60),
            spot: Span::ZERO,
            priority: Span::secs(60),
        }
    }
}

impl HeadStart {
    /// How much earlier than its arrival an ask queues, in µs; a low priority can make it later.
    pub fn of(&self, ask: &LeaseRequest) -> i64 {
        let tier = match ask.tier {
            Tier::Interactive => self.interactive,
            Tier::Batch => self.batch,
            Tier::Spot => self.spot,
        };
        tier.0 as i64 + self.priority.0 as i64 * i64::from(ask.priority)
    }

    /// The largest there can be.
    pub fn largest(&self) -> i64 {
        self.interactive.0.max(self.batch.0).max(self.spot.0) as i64 + 10 * self.priority.0 as i64
    }
}

impl Policy {
    /// What a tenant may have: by its name, or else by its groups (the largest counts), or else as
    /// everybody.
    pub fn caps_for(&self, name: &str, groups: &[String]) -> Caps {
        let of_groups = groups.iter().filter_map(|group| self.caps_of_members.get(group));
        let members = of_groups.fold(Caps::default(), |caps, more| caps.larger(more));
        let own = self.caps_of.get(name).map_or_else(|| members.clone(), |own| own.or(&members));
        own.or(&self.caps)
    }

    /// What happened on a GPU is read within this time.
    pub fn next_reading(&self) -> Span {
        self.reads_after.unwrap_or(self.period)
    }

    /// Since when a tenant's first waiter counts.
    pub fn first_since_of(&self, tenant: &Tenant) -> Time {
        if self.counts_from_first_place { tenant.first_since } else { Time::ZERO }
    }

    /// Where an ask queues, if it came then: its head start is capped.
    pub fn rank(&self, ask: &LeaseRequest, asked: Time, caps: &Caps) -> i64 {
        let start = self.head_start.of(ask);
        let start = caps.head_start.map_or(start, |cap| start.min(cap.0 as i64));
        // A damaged journal may say any time.
        i64::try_from(asked.0).unwrap_or(i64::MAX).saturating_sub(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Term;
    use crate::units::Bytes;

    #[test]
    fn a_waiter_from_the_end_of_time_is_the_last() {
        let policy = Policy::default();
        let ask = LeaseRequest { priority: -128, ..LeaseRequest::plain(Bytes(1), Term::Renewed(Span::secs(60))) };
        let rank = |asked| policy.rank(&ask, asked, &Caps::default());
        assert_eq!(rank(Time::NEVER), i64::MAX);
        assert!(rank(Time(1 << 40)) < rank(Time(u64::MAX >> 1)));
    }
}
