//! Device memory as the caller provides it, and the windows of the generic space.
//!
//! Global and constant addresses are the caller's. Shared, local and parameter
//! memory have no addresses of the caller's, so generic pointers to them lie in
//! windows that no allocation can reach.

/// Where shared memory begins in the generic space.
pub const SHARED_WINDOW: u64 = 0xFF00_0000_0000_0000;
/// Where a thread's local memory begins in the generic space.
pub const LOCAL_WINDOW: u64 = 0xFF01_0000_0000_0000;
/// Where a kernel's parameters begin in the generic space.
pub const PARAM_WINDOW: u64 = 0xFF02_0000_0000_0000;
/// How long each window is.
pub(crate) const WINDOW_BYTES: u64 = 1 << 32;

/// A mapped range of device memory.
#[derive(Debug, Clone, Copy)]
pub struct Region {
    /// Its first device address.
    pub first: u64,
    /// Its length.
    pub bytes: u64,
    /// The host memory behind the first address; congruent to `first` modulo 16.
    pub host: *mut u8,
    /// Whether kernels may write there.
    pub writable: bool,
}

impl Region {
    /// Holds no address.
    pub(crate) const EMPTY: Region = Region { first: 0, bytes: 0, host: std::ptr::null_mut(), writable: false };

    /// The host bytes behind `address`, if all of `bytes` are here.
    #[inline(always)]
    pub(crate) fn host_pointer(&self, address: u64, bytes: u32) -> Option<*mut u8> {
        let offset = address.wrapping_sub(self.first);
        if u64::from(bytes) <= self.bytes && offset <= self.bytes - u64::from(bytes) {
            return Some(self.host.wrapping_add(offset as usize));
        }
        None
    }
}

/// Finds the host memory behind device addresses.
///
/// # Safety
/// While a launch runs, every region given stays valid for reads (and writes, if
/// writable) of its whole length by any thread, and `host` is congruent to `first`
/// modulo 16. Other threads may touch the same bytes only through atomics.
pub unsafe trait DeviceMemory: Sync {
    /// The largest mapped region around `address`, or `None` if nothing is mapped
    /// there.
    fn region(&self, address: u64) -> Option<Region>;
}
