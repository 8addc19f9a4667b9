//! Plain types and their arithmetic: what the other layers decide about.
//!
//! Deliberately absent: the state, and every question that needs more than one of these values to answer.

pub mod action;
pub mod aside;
pub mod audit;
pub mod caller;
pub mod cost;
pub mod durations;
pub mod event;
pub mod facts;
pub mod ids;
pub mod lateness;
pub mod loss;
pub mod method;
pub mod movers;
pub mod mutant;
pub mod quota;
pub mod reading;
pub mod request;
pub mod restrictions;
pub mod rows;
pub mod settings;
pub(crate) mod signals;
pub mod table;
pub mod token;
pub mod units;
pub mod unleased;
