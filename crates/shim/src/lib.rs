//! A library preloaded into programs that use a GPU. It counts what they do, holds them to their lease, and moves their
//! memory off the GPU and back without the program noticing.
//!
//! ```text
//!   a program ── dlsym, cuGetProcAddress, a linked symbol ──► entry, hook: a stub for each function
//!                                                               │
//!   gate: every call that touches the GPU passes; closed while the holder is parked
//!                                                               │
//!   wrap: calls that the shim answers itself ── table: what is mapped where ── driver: the real calls
//!                                                               │
//!   control: a thread that talks with the daemon ── park: memory out and in ── arena: where parked bytes are
//! ```
//! The program runs without any of this: without a daemon only the size of the GPU limits it, and with
//! `SUBLET_SHIM=off`, or under a profiler or debugger (`aside`), every call goes straight to the driver. A process that
//! never calls the driver has no thread and no connection to the daemon. The driver's private tables are left alone,
//! because they check themselves. Built for x86-64 Linux; the stubs are its machine code.

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
