//! One seed drives a whole world through the lease service, and separate code
//! checks the rules after every step.
//!
//! ```text
//!  Rng ─► Sim ── events ──► Engine (core + open batch) ── batch ──► Disk
//!          │  world, eyes, clock, faults     │ actions, answers        │ rows, log
//!          └───────────► Checker ◄───────────┴─────────────────────────┘
//! ```
//!
//! [`sim`] is the loop and the faults; [`world`] the truth about cards and
//! processes; [`jobs`] what people do; [`shims`] what programs do that can be parked, [`deep`] whose contexts leave too; [`vigil`] what is done about those without a lease; [`eyes`] what a driver would say of it;
//! [`disk`] what a journal would keep. [`checker`] keeps its own books from
//! events and actions alone, and never asks core what it would have answered.
//! [`run`] turns a seed into a verdict, with the last steps as a story;
//! [`mutants`] proves that the checker would notice.
//!
//! No clock, no threads, no files, no order of a hash map: the same seed is the
//! same run, on every machine.

mod aside;
pub mod checker;
pub mod daemon;
pub mod disk;
pub mod driver;
pub mod ends;
pub mod faults;
pub mod hooks;
pub mod jobs;
pub mod mutants;
mod overuse;
pub mod programs;
pub mod readings;
pub mod rng;
pub mod run;
pub mod shape;
pub mod sim;
pub mod story;
pub mod timers;
pub mod unleased;
pub mod world;
