//! Decides which leases may hold which GPUs, and until when.
//!
//! Nothing here reads a clock, a file, a socket or a driver, starts a thread or depends on the order of a hash map.
//! Time arrives as `now`; the world arrives as an [`event::Event`]; decisions leave as [`action::Action`]s.
//! [`facts`] has all of both, by kind.
//!
//! ```text
//!   decide    an event comes in: changes the state by actions, and gives the answer
//!     │
//!     ▼
//!   policy    questions about a state: who is next, what fits where, what must leave, why a lease waits
//!     │
//!     ▼
//!   state     the durable rows, what is derived from them, and what was seen since the start
//!     │
//!     ▼
//!   model     plain types and their arithmetic: ids, requests, leases, settings, events, actions
//! ```
//! A layer uses the layers below it, and no two modules use each other (`cargo xtask layers core`). Start at
//! [`decide::decide`]. [`policy::explain`] answers "why", [`policy::expected_starts`] answers "when".

pub mod decide;
pub mod model;
pub mod policy;
pub mod state;

pub use decide::{Outcome, decide};
pub use model::{
    action, aside, audit, cost, durations, event, facts, ids, lateness, loss, method, movers, mutant, quota, reading,
    request, restrictions, rows, settings, table, token, units, unleased,
};
pub use state::State;
pub use state::{lease_readings, queue, room, unleased_readings};
