//! The driver's own way of taking processes off their cards and putting them back.

pub(crate) mod protocol;
pub(crate) mod target;
