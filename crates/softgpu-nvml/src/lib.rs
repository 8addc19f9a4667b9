//! NVML over soft cards: a `libnvidia-ml.so.1` that needs no driver.
//!
//! ```text
//!   pynvml, nvitop, gpustat, sublet
//!        │ C
//!   system  identity  memory  processes  sensors  modes     what is answered
//!   unsupported                                             what is not, name by name
//!        │
//!   library    who has called `nvmlInit`, which handle is which card, ordered faults
//!   meter      how busy a card was, between two looks at the processes' own counts
//!        │
//!   sublet-softgpu: one mapped file
//! ```
//! A call opens nothing, takes no lock that a process on a card could hold, and waits only where a
//! fault orders it. [`abi`] and [`structs`] are the only places that touch a caller's memory.
//!
//! Absent: everything that would change a card, events, vGPU, MIG, NVLink, units. Those answer "not
//! supported", or "no permission" where a real driver would.

mod abi;
mod identity;
mod library;
mod memory;
mod meter;
mod modes;
mod processes;
mod sensors;
mod structs;
mod system;
mod unsupported;
