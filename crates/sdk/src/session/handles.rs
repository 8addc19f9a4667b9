//! Handles of what a session made. Each frees it when it is dropped; none panics.

use super::core::SessionCore;
use super::driver::{DeviceAddress, DriverHandle};
use std::fmt;
use std::sync::Arc;

/// Memory of a GPU.
pub struct GpuBuffer {
    core: Arc<SessionCore>,
    /// `None` once it was freed.
    address: Option<DeviceAddress>,
    bytes: u64,
}

impl GpuBuffer {
    pub(super) fn new(core: Arc<SessionCore>, address: DeviceAddress, bytes: u64) -> GpuBuffer {
        GpuBuffer { core, address: Some(address), bytes }
    }

    pub(super) fn session(&self) -> u64 {
        self.core.id()
    }

    /// Its address on the GPU. It stays the same while the lease is parked and resumed.
    pub fn address(&self) -> u64 {
        self.address.unwrap_or_default()
    }

    /// Its size in bytes.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether it has no bytes, which is never so.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The address, which the caller frees.
    pub(super) fn disarm(mut self) -> DeviceAddress {
        self.address.take().unwrap_or_default()
    }
}

impl Drop for GpuBuffer {
    fn drop(&mut self) {
        if let Some(address) = self.address.take() {
            // SAFETY: the address was allocated in the session's context, and is freed once.
            self.core.free(|driver| unsafe { (driver.cuMemFree)(address) });
        }
    }
}

/// Loaded kernels.
pub struct GpuModule {
    core: Arc<SessionCore>,
    /// `None` once it was unloaded.
    handle: Option<DriverHandle>,
}

impl GpuModule {
    pub(super) fn new(core: Arc<SessionCore>, handle: DriverHandle) -> GpuModule {
        GpuModule { core, handle: Some(handle) }
    }

    pub(super) fn session(&self) -> u64 {
        self.core.id()
    }

    pub(super) fn handle(&self) -> DriverHandle {
        self.handle.unwrap_or_default()
    }

    /// The handle, which the caller unloads.
    pub(super) fn disarm(mut self) -> DriverHandle {
        self.handle.take().unwrap_or_default()
    }
}

impl Drop for GpuModule {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            // SAFETY: the module was loaded in the session's context, and is unloaded once.
            self.core.free(|driver| unsafe { (driver.cuModuleUnload)(handle) });
        }
    }
}

/// An order of work beside others.
pub struct GpuStream {
    core: Arc<SessionCore>,
    handle: DriverHandle,
}

impl GpuStream {
    pub(super) fn new(core: Arc<SessionCore>, handle: DriverHandle) -> GpuStream {
        GpuStream { core, handle }
    }

    pub(super) fn session(&self) -> u64 {
        self.core.id()
    }

    pub(super) fn handle(&self) -> DriverHandle {
        self.handle
    }
}

impl Drop for GpuStream {
    fn drop(&mut self) {
        // SAFETY: the stream was made in the session's context, and is destroyed once.
        self.core.free(|driver| unsafe { (driver.cuStreamDestroy)(self.handle) });
    }
}

impl fmt::Debug for GpuBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuBuffer").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl fmt::Debug for GpuModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuModule").finish_non_exhaustive()
    }
}

impl fmt::Debug for GpuStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuStream").finish_non_exhaustive()
    }
}
