//! Decides who may hold a card, and until when.
pub mod action;
pub mod ask;
pub mod ids;
pub mod reading;
pub mod rows;
pub mod units;
