//! Decides who may hold a card, and until when.
pub mod ids;
pub mod reading;
pub mod units;
