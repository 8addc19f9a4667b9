//! A `libcuda.so.1` whose cards are a file and whose memory is the host's: its first form.
//!
//! ```text
//!   api/*      the C functions, one file for each family: check, translate, hand on
//!   runtime    what a process has: its seat on the cards, its contexts
//!   space      device memory
//!   module     PTX that was loaded, its variables, and launches
//! ```
//! A device address is the host's own address of the same bytes, so that copies are copies. Work is
//! done when it is submitted: whatever a stream was given is over when the call returns, which is an
//! order that every stream's order allows. Every call that touches memory or runs a kernel passes the
//! gate of its process's row, which a checkpoint shuts.
//!
//! Absent so far, and answered with NOT_SUPPORTED: virtual memory management, pools, registered and
//! managed memory, two- and three-dimensional copies, graphs, libraries and `CUkernel`, occupancy,
//! fat binaries. Absent for good: the private tables by which NVIDIA's runtime library (libcudart)
//! reaches into its driver; programs that use the driver API run, others do not.

mod api;
mod log;
mod module;
mod result;
mod runtime;
mod space;
