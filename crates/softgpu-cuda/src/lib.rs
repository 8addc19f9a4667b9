//! A `libcuda.so.1` whose cards are a file and whose memory is the host's.
//!
//! ```text
//!   api/*      the C functions, one file for each family: check, translate, hand on
//!   runtime    what a process has: its seat on the cards, its contexts, its handles
//!   stream     streams and events: how work gets into the order
//!   engine     jobs, what each waits for, and the threads that do them
//!   work       what a job does; function: kernels and their launches
//!   capture    work that goes into a graph instead; graph: graphs and their replay
//!   space      memory by address; vmm: addresses and memory apart; pool: in the order of a stream
//!   module     PTX that was loaded, libraries; fatbin: PTX in fat binaries
//! ```
//! A device address is the host's own address of the same bytes, so that copies are copies. Kernels reach
//! another card's memory only where the program enabled it, which no two real cards were compared with. Every call
//! that touches memory or gives a card work passes the gate of its process's row, which a checkpoint
//! shuts; what is under way keeps its pass.
//!
//! Absent: arrays, textures, IPC, multicast, cooperative launches and clusters, linking, graphics. They
//! answer NOT_SUPPORTED and say their name once. Absent for good: the
//! private tables by which NVIDIA's runtime library (libcudart) reaches into its driver; programs that
//! use the driver API run, others do not.

mod api;
mod capture;
mod engine;
mod fatbin;
mod function;
mod graph;
mod handles;
mod image;
mod log;
mod module;
mod object;
mod pool;
mod result;
mod runtime;
mod space;
mod stream;
mod visible;
mod vmm;
mod work;
