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
//! `SUBLET_SHIM=off` every call goes straight through. The private tables of the driver are left alone:
//! they check themselves. Built for x86-64 Linux; the stubs are its machine code.

mod arena;
mod class;
mod control;
mod driver;
mod elf;
mod entry;
mod gate;
mod hook;
mod log;
mod page;
mod park;
mod small;
mod table;
mod trampoline;
mod wrap;

pub use sublet_shim_wire as message;
