//! Numbers of the signals that core decides about, as Linux numbers them.

/// Asks a process to end.
pub(crate) const TERM: u8 = 15;
/// Ends a process.
pub(crate) const KILL: u8 = 9;
