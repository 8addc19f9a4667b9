//! GPUs that step aside: for a while nothing is granted there, and what can be parked is.
//!
//! An aside belongs to a tenant and has a key, so that a game that was started with `sublet aside --while` and a
//! `sublet aside --for 3h` beside it do not end each other. A GPU steps aside while it has at least one.

use crate::model::units::{Span, Time};
use serde::{Deserialize, Serialize};

/// How long a GPU steps aside where the request names no time.
pub const DEFAULT: Span = Span::secs(12 * 3600);

/// The longest that one request can be for.
pub const LONGEST: Span = Span::secs(24 * 3600);

/// Asides on one GPU at a time.
pub const PER_GPU: usize = 16;

/// Characters of a key.
pub const KEY_MAX: usize = 64;

/// A request that a GPU steps aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsideRequest {
    /// For how long from now on.
    pub span: Option<Span>,
    /// Tells asides of one caller apart.
    pub key: String,
    /// Only if the caller has one with this key already.
    pub renews: bool,
    /// The caller is a user at the seat of this host.
    pub at_seat: bool,
}

/// One reason for a GPU to step aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aside {
    /// The tenant that asked for it.
    pub by: String,
    /// Tells asides of one tenant apart; empty for one made by hand.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// When it began.
    pub since: Time,
    /// When its time was last set.
    pub renewed: Time,
    /// When it is over unless it is renewed.
    pub until: Time,
}

/// The asides of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asides {
    /// Those that are not over, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub now: Vec<Aside>,
    /// When the GPU last ceased to step aside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Time>,
}

/// Why an aside is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AsideOver {
    /// Its tenant, or an operator, ended it.
    Asked,
    /// Its time is over.
    Time,
    /// The host was started anew.
    HostRebooted,
}

impl Asides {
    /// True if the GPU never stepped aside.
    pub fn is_unused(&self) -> bool {
        *self == Asides::default()
    }

    /// The aside of this tenant with this key.
    pub fn find(&self, by: &str, key: &str) -> Option<&Aside> {
        self.now.iter().find(|aside| aside.by == by && aside.key == key)
    }

    pub(crate) fn set(&mut self, aside: &Aside) {
        match self.now.iter_mut().find(|known| known.by == aside.by && known.key == aside.key) {
            Some(known) => *known = aside.clone(),
            None => self.now.push(aside.clone()),
        }
    }

    pub(crate) fn end(&mut self, by: &str, key: &str, at: Time) {
        self.now.retain(|aside| aside.by != by || aside.key != key);
        if self.now.is_empty() {
            self.ended = Some(at);
        }
    }
}
