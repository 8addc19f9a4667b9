//! Preloaded into programs that use a card: it counts what they do, holds them to their lease, and takes
//! their memory off the card and puts it back without their noticing.
//!
//! ```text
//!   a program ── dlsym, cuGetProcAddress, a linked symbol ──► entry, hook: a stub for each function
//!                                                               │
//!   gate: every call that touches the card passes; closed while the holder is parked
//!                                                               │
//!   wrap: calls that the shim answers itself ── table: what is mapped where ── driver: the real calls
//!                                                               │
//!   control: a thread that talks with the daemon ── park: memory out and in ── arena: where it is meanwhile
//! ```
//! Nothing here is needed for the program to run: without a daemon the cap is the card, and with
//! `SUBLET_SHIM=off`, or under a profiler or debugger (aside), every call goes straight through. A process
//! that never calls the driver has no thread and no line to the daemon. The private tables of the driver are left alone:
//! they check themselves. Built for x86-64 Linux; the stubs are its machine code.

mod arena;
mod aside;
mod class;
mod contexts;
mod control;
mod driver;
mod elf;
mod entry;
mod fixed;
mod gate;
mod hook;
mod ipc;
mod late;
mod log;
mod moves;
mod nvml;
mod outside;
mod page;
mod park;
mod peers;
mod pool;
mod ranges;
mod small;
mod socket;
mod table;
mod trampoline;
mod wrap;

pub use sublet_shim_wire as message;
