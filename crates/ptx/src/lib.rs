//! Reads PTX and runs it on the host: the processor of the software GPU.
//!
//! A text goes through four stages:
//!
//! ```text
//!   lex, parse, statement   text -> declarations and statements, names as text
//!   lower                   statements -> ops: registers resolved, a handler each
//!   reconvergence           where the sides of each branch meet again
//!   exec                    ops -> effects: warps in lockstep, blocks on workers
//! ```
//!
//! ```
//! use sublet_ptx::Module;
//! let module = Module::parse(".version 8.0\n.target sm_90\n.address_size 64\n.entry idle() { ret; }")?;
//! assert_eq!(module.kernels().map(|kernel| kernel.name()).collect::<Vec<_>>(), ["idle"]);
//! # Ok::<(), sublet_ptx::PtxError>(())
//! ```
//!
//! Integers and IEEE floating point give bit for bit what an H200 gives: not-a-number
//! results, division by zero and conversions out of range included
//! (`tests/all/conformance.rs`). The approximations (`ex2.approx` and its kin) are
//! within their documented error, usually closer than the hardware.
//!
//! Lanes of a warp run together and part only at branches; see `exec::machine`.
//! Registers, local and shared memory are zero when a block begins, so a kernel that
//! reads what it has not written gives the same results every time; the registers of
//! a called function begin with what an earlier call of the same warp left there.
//!
//! Absent on purpose: half-precision and tensor instructions, textures, clusters
//! and bulk copies are refused by name; nothing here allocates device memory,
//! knows streams or links modules: the caller does that.

mod ast;
mod error;
mod exec;
mod fault;
mod lanes;
mod lex;
pub mod limits;
mod lower;
mod module;
mod op;
mod parse;
mod program;
mod reconvergence;
mod soft_float;
mod statement;

pub use error::{PtxError, PtxErrorKind};
pub use exec::{DeviceMemory, LOCAL_WINDOW, Launch, PARAM_WINDOW, Region, SHARED_WINDOW, Stats, run};
pub use fault::{FaultKind, FaultSite, KernelFault};
pub use module::{Kernel, Module, ModuleTarget, ModuleVariable, Param, Relocation, VariableSpace};
