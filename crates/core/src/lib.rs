//! Decides which leases may hold which GPUs, and until when.
//!
//! Nothing here reads a clock, a file, a socket or a driver, starts a thread or depends on the order of a hash map.
//! Time arrives as `now`; the world arrives as an [`event::Event`]; decisions leave as [`action::Action`]s.
//!
//! Start at [`decide::decide`]. [`rows`] is what survives a restart, [`state`] the rows and what was seen since,
//! [`room`] the arithmetic of one GPU, [`queue`] the order of service. [`explain`] answers "why", [`expect`] answers
//! "when".

pub mod action;
pub mod aside;
pub mod ask;
pub mod audit;
pub mod contexts;
pub mod cost;
pub mod decide;
pub mod durations;
pub mod event;
pub mod expect;
pub mod explain;
pub mod ids;
pub mod lateness;
pub mod live;
pub mod loss;
pub mod member;
pub mod mutant;
pub mod parking;
pub mod plan;
pub mod policy;
pub mod queue;
pub mod quota;
pub mod reading;
pub mod room;
pub mod rows;
pub mod rung;
pub mod state;
pub mod stranger;
pub mod token;
pub mod units;
pub mod watchlist;

pub use decide::{Outcome, decide};
pub use state::State;
