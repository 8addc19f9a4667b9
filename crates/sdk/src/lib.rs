//! Leases of GPUs for Rust programs.
//!
//! ```text
//!   Fabric, GpuBuilder ── acquire ──► GpuLease          a lease, given back when it is dropped
//!                                       ├── RenewalManager     renews it while it is used
//!                                       ├── GpuSession         memory, modules and launches on it
//!                                       └── training           steps that are committed once, in `replicated` checkpoints
//! ```
//! ```no_run
//! use sublet::{GpuBuilder, GpuExclusivityClass, LeaseStatus};
//!
//! let lease = GpuBuilder::new()
//!     .min_vram(2 << 30)
//!     .lease_secs(300)
//!     .exclusivity(GpuExclusivityClass::SessionExclusive)
//!     .acquire()?;
//! assert_eq!(lease.status(), LeaseStatus::Active);
//! # Ok::<(), sublet::FabricError>(())
//! ```
//! Absent on purpose: decisions, which are the daemon's, and an async runtime.

mod block;
mod builder;
pub mod client;
mod clock;
mod error;
mod fabric;
mod lease;
mod register;
mod renewal;
mod session;
pub mod testing;
pub mod training;

pub use block::{BLOCK_BYTES, BlockBuilder, BlockLease};
pub use builder::{GpuBuilder, GpuExclusivityClass};
pub use error::{FabricError, GrafosError};
pub use fabric::Fabric;
pub use lease::{GpuLease, LeaseStatus, LeaseUsage};
pub use register::{DaemonRegister, checkpoint_store, store_opener};
pub use renewal::{BackgroundRenewal, NearExpiryCause, RenewWhen, RenewalEvent, RenewalManager, RenewalPolicy};
pub use session::{GpuBuffer, GpuModule, GpuSession, GpuStream, KernelArgs};
pub use sublet_checkpoint as replicated;
pub use sublet_checkpoint::{Durable, DurableError};
pub use sublet_wire::{ErrorCount, Preempt, Tier};
