//! A library preloaded into programs that use a GPU. It counts what they do, holds them to their lease, and moves their
//! memory off the GPU and back without the program noticing.
//!
//! ```text
//!   a program ── dlsym, cuGetProcAddress, a linked symbol ──► entry_points, hook: a stub for each function
//!                                                               │
//!   gate: every call that touches the GPU passes; closed while the holder is parked
//!                                                               │
//!   replacements: calls that the shim answers ── memory_table: what is mapped where ── driver: the real calls
//!                                                               │
//!   control_thread: talks with the daemon ── park: memory out and in ── arena: where parked bytes are
//! ```
//! A module uses only modules of its own layer or of lower ones, and none in a cycle (`xtask/src/layers.rs` has the
//! list, and `cargo xtask check` keeps it so):
//!
//! ```text
//!   entry        entry_points
//!   interception hook   replacements   nvml   activation
//!   daemon       control_thread
//!   movers       park   deferred_calls
//!   memory       allocations ─► unmovable_memory ─► pool ─► plain_blocks ─► ipc ─► gpu_memory ◄─ peer_access
//!                driver_pools
//!   gate         trampoline ─► gate
//!   driver       slots   memory_table   arena   outside_access   out_pointer   driver   lease_page
//!   base         function_class   contexts   packet_socket   loader_symbols   log   …
//! ```
//! Where a lower layer has to reach a higher one, the higher one leaves an address or a note: a slot has the addresses of
//! the functions that the gate jumps to, and `daemon_link` has the name of the call that waits.
//!
//! The program runs without any of this: without a daemon only the size of the GPU limits it, and with
//! `SUBLET_SHIM=off`, or under a profiler or debugger (`activation`), every call goes straight to the driver. A process
//! that never calls the driver has no thread and no connection to the daemon. The driver's private tables are left
//! alone, because they check themselves. Built for x86-64 Linux; the stubs are its machine code.

mod activation;
mod allocations;
mod arena;
mod contexts;
mod control_thread;
mod copy_size;
mod daemon_link;
mod deferred_calls;
mod driver;
mod driver_pools;
mod entry_points;
mod function_class;
mod gate;
mod gpu_memory;
mod hook;
mod ipc;
mod lease_page;
mod lease_setting;
mod loader_symbols;
mod log;
mod memory_table;
mod nvml;
mod out_pointer;
mod outside_access;
mod packet_socket;
mod park;
mod peer_access;
mod plain_blocks;
mod pool;
mod ranges;
mod replacements;
mod slots;
mod small_allocations;
mod threads;
mod trampoline;
mod unmovable_memory;

pub use sublet_shim_wire as message;
