//! Runs the lease service in a simulated world that follows from one seed; separate code checks the rules after every
//! step.
//!
//! ```text
//!  Rng ─► Sim ── events ──► Engine (core + open batch) ── batch ──► Disk
//!          │  world, readings, clock, faults │ actions, answers        │ rows, log
//!          └───────────► Checker ◄───────────┴─────────────────────────┘
//! ```
//!
//! [`sim`] is the loop; [`world`] is the truth about GPUs and processes; [`jobs`] are the requests of users; [`faults`]
//! are failures and wrong calls; [`programs`] are programs that can be parked, [`driver`] and [`hooks`] the other ways
//! to park them; [`unleased`] are processes without a lease; [`readings`] is what a driver would report; [`disk`] is
//! what a journal would keep. [`checker`] keeps its own books from events and actions alone, and never asks core what
//! it would have answered. [`run`] turns a seed into a verdict, with the last steps as a story; [`mutants`] proves that
//! the checker would notice a bug.
//!
//! There is no clock, no thread, no file and no hash map here: the same seed is the same run on every machine.

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
