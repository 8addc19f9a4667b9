//! Which quota keeps a request from starting.

use crate::model::units::{Bytes, Span};
use std::fmt;

/// Which cap keeps a request from starting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaBlock {
    /// The group that the cap belongs to; `None` if it is the tenant's own.
    pub group: Option<String>,
    /// What is capped.
    pub resource: CappedResource,
    /// Whatever ends, it would be too much.
    pub is_permanent: bool,
}

impl fmt::Display for QuotaBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.group {
            None => f.write_str("you may ")?,
            Some(group) => write!(f, "group {group} may together ")?,
        }
        match self.resource {
            CappedResource::Vram { cap, .. } if self.is_permanent => {
                write!(f, "lease {cap} at once, and this request is larger")
            }
            CappedResource::Vram { cap, has } => write!(f, "lease {cap} at once, and {has} are leased"),
            CappedResource::Leases { cap: 1 } => f.write_str("have 1 lease at once"),
            CappedResource::Leases { cap } => write!(f, "have {cap} leases at once"),
            CappedResource::GpuDay { cap, left } => write!(
                f,
                "use {} of GPU time a day, of which {} are left today: too little for this",
                hours(cap),
                hours(left)
            ),
            CappedResource::Never { cap: Bytes::ZERO, .. } => f.write_str("have no lease with `--preempt never`"),
            CappedResource::Never { cap, has } => {
                write!(f, "lease {cap} at once with `--preempt never`, and {has} are leased")
            }
        }
    }
}

/// What is capped, and how much there may be and is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CappedResource {
    /// Bytes at a time.
    Vram {
        /// Allowed.
        cap: Bytes,
        /// Held now.
        has: Bytes,
    },
    /// Leases at a time.
    Leases {
        /// Allowed.
        cap: u32,
    },
    /// GPU time a day.
    GpuDay {
        /// Allowed.
        cap: Span,
        /// What is left of today's budget.
        left: Span,
    },
    /// Bytes at a time that may never be preempted.
    Never {
        /// Allowed.
        cap: Bytes,
        /// Held now.
        has: Bytes,
    },
}

/// `1.5h`, `20min`, `100s`.
fn hours(span: Span) -> String {
    match span.0 / 1_000_000 {
        seconds if seconds >= 3600 => format!("{:.1}h", seconds as f64 / 3600.0),
        seconds if seconds >= 600 => format!("{}min", seconds / 60),
        seconds => format!("{seconds}s"),
    }
}
