//! Questions about a state: what could happen next, at what price, and why something waits.
//!
//! ```text
//!   eligibility ──► quota ──► placement ──► waiters ──► board ──► round, offers
//!        lease_processes ──► restore_room ──► parking ──► moves, contexts
//!                                                preemption ──► room_plan ──► estimates ──► expected_starts, explain
//! ```
//! Each function takes a [`State`](crate::State) and changes nothing. Deliberately absent: actions. What follows from an
//! answer is decided in [`mod@crate::decide`].

pub mod access;
pub(crate) mod admission;
pub mod aside;
pub(crate) mod board;
pub(crate) mod charges;
pub mod contexts;
pub(crate) mod eligibility;
pub mod enforcement;
pub mod estimates;
pub mod expected_starts;
pub mod explain;
pub mod lease_processes;
pub mod move_progress;
pub mod moves;
pub mod offers;
pub mod overuse;
pub(crate) mod park_unleased;
pub mod parking;
pub(crate) mod placement;
pub mod plan;
pub mod preemption;
pub mod quota;
pub mod restore_room;
pub(crate) mod resume;
pub mod room_plan;
pub(crate) mod round;
pub(crate) mod stretch;
pub mod targets;
pub(crate) mod tokens;
pub mod unleased_due;
pub mod waiters;
