//! Decides which leases may hold which GPUs, and until when.
//!
//! Nothing here reads a clock, a file, a socket or a driver, starts a thread or depends on the order of a hash map.
//! Time arrives as `now`; the world arrives as an [`event::Event`]; decisions leave as [`action::Action`]s.
//! [`facts`] has all of both, by kind.
//!
//! Start at [`decide::decide`]. [`rows`] is what survives a restart, [`state`] the rows and what was seen since,
//! [`room`] the arithmetic of one GPU, [`queue`] the order of service. [`explain`] answers "why", [`expect`] answers
//! "when".

pub mod action;
pub mod aside;
pub mod audit;
pub mod contexts;
pub mod cost;
pub mod decide;
pub mod durations;
pub mod event;
pub mod expected_starts;
pub mod explain;
pub mod facts;
pub mod ids;
pub mod lateness;
pub mod lease_readings;
pub mod loss;
pub mod method;
pub mod mutant;
pub mod parking;
pub mod plan;
pub mod policy;
pub mod queue;
pub mod quota;
pub mod reading;
pub mod request;
pub mod restrictions;
pub mod room;
pub mod rows;
pub mod state;
pub mod targets;
pub mod token;
pub mod units;
pub mod unleased;
pub mod unleased_readings;

pub use decide::{Outcome, decide};
pub use state::State;
