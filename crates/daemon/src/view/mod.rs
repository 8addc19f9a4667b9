//! The state as clients see it.
//!
//! ```text
//!  State, user names, estimates ──► View, for one caller at one moment ──► wire types
//!                                    visibility   what the caller may see
//!                                    leases, explanation, gpus, usage: what is shown
//!                                    shape        single values as clients spell them
//! ```
//! Texts are in [`messages`](crate::messages); why a request waits is in [`wait_reason`](crate::wait_reason).

mod explanation;
mod gpus;
mod leases;
mod shape;
mod usage;
mod visibility;

use crate::estimate_cache::EstimateCache;
use crate::looper::Moment;
use crate::notices::ParkReason;
use crate::user_directory::UserDirectory;
use std::collections::BTreeMap;
use sublet_core::event::Caller;
use sublet_core::ids::{LeaseId, TenantId};
use sublet_core::policy::access::may_know;
use sublet_core::state::State;
use sublet_core::token::Token;
use sublet_core::units::Time;
use sublet_host::ActivityCounts;
use sublet_wire as wire;

pub use leases::past;
pub use shape::{tier, wall_s};
pub use usage::past_usage;
pub use visibility::{ANOTHER, Visibility};

/// The state at one moment, as it is shown to callers.
pub struct View<'a> {
    /// The state.
    pub state: &'a State,
    /// The moment.
    pub now: Time,
    /// The same moment by the wall clock, µs since 1970.
    pub wall_us: u64,
    /// How long the day at this place still lasts, in seconds.
    pub day_left_s: u64,
    /// Names of users.
    pub names: &'a UserDirectory,
    /// The number of this state: a changed one has another number.
    version: u64,
    /// Estimates about the queue.
    plans: &'a EstimateCache,
    /// The GPU calls of leases' programs.
    counts: Option<&'a BTreeMap<LeaseId, ActivityCounts>>,
    /// Why leases were parked.
    park_reasons: Option<&'a BTreeMap<LeaseId, ParkReason>>,
    /// Which users local users see.
    visibility: Visibility,
}

impl<'a> View<'a> {
    /// Returns the view of this moment.
    pub fn new(
        (state, version): (&'a State, u64),
        moment: &Moment,
        names: &'a UserDirectory,
        plans: &'a EstimateCache,
    ) -> View<'a> {
        View {
            state,
            now: moment.now,
            wall_us: moment.wall_us,
            day_left_s: moment.day_left_s(),
            names,
            version,
            plans,
            counts: None,
            park_reasons: None,
            visibility: Visibility::Own,
        }
    }

    /// The same, where local users see these users.
    pub fn with_visibility(self, visibility: Visibility) -> View<'a> {
        View { visibility, ..self }
    }

    /// The same, with the GPU calls of leases' programs.
    pub fn with_counts(self, counts: &'a BTreeMap<LeaseId, ActivityCounts>) -> View<'a> {
        View { counts: Some(counts), ..self }
    }

    /// The same, with the reasons why leases were parked.
    pub fn with_park_reasons(self, park_reasons: &'a BTreeMap<LeaseId, ParkReason>) -> View<'a> {
        View { park_reasons: Some(park_reasons), ..self }
    }
}

impl View<'_> {
    /// A moment as Unix seconds.
    pub fn unix_s(&self, at: Time) -> f64 {
        shape::unix_s(self.wall_us, self.now, at)
    }

    pub(crate) fn user(&self, tenant: TenantId) -> String {
        self.names.of(self.state.tenant_name(tenant))
    }

    /// Why a lease was parked, if that was since the daemon started.
    pub fn park_reason(&self, lease: LeaseId) -> Option<&ParkReason> {
        self.park_reasons?.get(&lease)
    }

    /// The tokens that the caller may see, oldest first.
    pub fn tokens(&self, by: &Caller) -> Vec<wire::Token> {
        let known = self.state.rows().tokens.values().filter(|token| may_know(by, token));
        known.map(|token| self.token(token)).collect()
    }

    /// One token, for a caller that may see it.
    pub fn token(&self, token: &Token) -> wire::Token {
        wire::Token {
            id: token.id.to_string(),
            tenant: token.tenant.clone(),
            user: self.names.of(&token.tenant),
            name: token.name.clone(),
            read_only: token.read_only,
            vram_bytes: token.caps.vram.map(|bytes| bytes.0),
            leases: token.caps.leases,
            made_unix_s: wall_s(token.made_wall_us),
            expires_unix_s: token.expires_wall_us.map(wall_s),
            expired: token.is_expired(self.wall_us),
            last_used_unix_s: None,
        }
    }
}
