//! What a user's sessions used.

use sublet::LeaseUsage;

/// What a user's sessions used, all together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UserUsage {
    /// How many leases.
    pub leases: u64,
    /// Seconds × GPUs that were leased.
    pub gpu_seconds: f64,
    /// GiB of VRAM × seconds that were leased.
    pub gib_seconds: f64,
    /// Kernels launched.
    pub launches: u64,
    /// Calls of the driver that failed.
    pub errors: u64,
    /// Bytes of state saved.
    pub checkpoint_bytes: u64,
}

impl UserUsage {
    /// Adds what was done on a lease.
    pub fn add(&mut self, lease: &LeaseUsage) {
        let gpu_seconds = lease.held_s * f64::from(lease.gpus);
        self.leases += 1;
        self.gpu_seconds += gpu_seconds;
        self.gib_seconds += gpu_seconds * lease.vram_bytes as f64 / (1_u64 << 30) as f64;
        self.launches += lease.launches;
        self.errors += lease.errors;
    }
}
