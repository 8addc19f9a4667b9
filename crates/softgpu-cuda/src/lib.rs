//! A `libcuda.so.1` with GPUs that are a file and with memory of the host.
//!
//! ```text
//!   api/*      the C functions, one file for each family: check, translate, hand on
//!   runtime    what a process has: its row on the soft GPUs, its contexts, its handles
//!   stream     streams and events: how work gets into the order
//!   engine     jobs, what each waits for, and the threads that do them
//!   work       what a job does; function: kernels and their launches
//!   capture    work that goes into a graph instead; graph: graphs and their replay
//!   space      memory by address; vmm: addresses and memory apart; pool: in the order of a stream
//!   module     PTX that was loaded, libraries; fatbin: PTX in fat binaries
//! ```
//! A device address is the host's own address of the same bytes, so copies are plain copies. Kernels reach another
//! GPU's memory only where the program enabled it; this was not compared with two real GPUs. Every call that touches
//! memory or submits work passes the gate of its process's row, which a checkpoint closes; running work keeps its pass.
//!
//! Absent: arrays, textures, IPC, multicast, cooperative launches and clusters, linking, graphics. They return
//! NOT_SUPPORTED and log their name once. Absent for good: the private tables through which NVIDIA's runtime library
//! (libcudart) uses its driver. Programs that use the driver API run, others do not.

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
