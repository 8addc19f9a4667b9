//! What an operator may choose. Every number has its reason beside it.

use crate::ask::{Ask, Tier};
use crate::units::{Bytes, Span, Time};
use std::collections::BTreeMap;

/// The rules of this house. Not durable: the configuration file is its truth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// From a renewal to the expiry, for asks that name none.
    pub ttl: Span,
    /// When a used lease is renewed.
    pub renewal: Renewal,
    /// A lease is not renewed past this while somebody waits for its card.
    pub hold_cap: Span,
    /// How long an ask waits that names no limit.
    pub wait: Span,
    /// Seconds by which a tier and a priority come earlier.
    pub head_start: HeadStart,
    /// How often cards are read; a reading older than two of these promises nothing.
    pub period: Span,
    /// After the daemon was away, nothing expires for this long.
    pub grace: Span,
    /// Memory left alone on every card.
    pub margin: Bytes,
    /// The same where a screen hangs on the card.
    pub margin_display: Bytes,
    /// Waiters in all.
    pub queue_max: usize,
    /// What each tenant may have, where nothing else is said.
    pub caps: Caps,
    /// What certain tenants may have.
    pub caps_of: BTreeMap<String, Caps>,
}

/// Hard caps of one tenant; `None` is no cap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Bytes reserved at a time, every card counted.
    pub vram: Option<Bytes>,
    /// Leases held at a time.
    pub leases: Option<u32>,
    /// Places in the queue.
    pub places: u32,
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
            hold_cap: Span::secs(30 * 60),
            wait: Span::secs(86_400),
            head_start: HeadStart::default(),
            period: Span::secs(1),
            // A client that renews at 70 % of a short TTL gets at least one try in.
            grace: Span::secs(60),
            // Fragmentation and the driver's own needs, measured on idle cards.
            margin: Bytes::mib(256),
            margin_display: Bytes::mib(1536),
            queue_max: 100_000,
            caps: Caps::default(),
            caps_of: BTreeMap::new(),
        }
    }
}

impl Default for Caps {
    fn default() -> Caps {
        // A runaway script is stopped long before the queue of the others is full.
        Caps { vram: None, leases: None, places: 1_000 }
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
    /// The moment an ask queues by: its arrival, less its head start.
    pub fn rank(&self, ask: &Ask, asked: Time) -> i64 {
        let tier = match ask.tier {
            Tier::Interactive => self.interactive,
            Tier::Batch => self.batch,
            Tier::Spot => self.spot,
        };
        let priority = self.priority.0 as i64 * i64::from(ask.priority);
        asked.0 as i64 - tier.0 as i64 - priority
    }
}

impl Policy {
    /// What this tenant may have.
    pub fn caps_for(&self, tenant: &str) -> &Caps {
        self.caps_of.get(tenant).unwrap_or(&self.caps)
    }
}
