//! Memory that is taken and given back in the order of a stream.

use super::memory::DeviceSpan;
use super::streams::CudaStream;
use super::virtual_memory::RawLocation;
use super::{Address, Device, DriverHandle, Result, call};
use std::ffi::c_int;

/// `CUmemPoolProps`.
#[derive(Debug)]
#[repr(C)]
pub struct RawPoolProperties {
    kind: c_int,
    handle_types: c_int,
    location: RawLocation,
    windows: usize,
    max_bytes: usize,
    usage: u16,
    reserved: [u8; 54],
}

/// `CU_MEMPOOL_ATTR_…`: bytes that are kept when they are freed, had in all, and used.
const RELEASE_THRESHOLD: c_int = 4;
const RESERVED_NOW: c_int = 5;
const USED_NOW: c_int = 7;

/// Where such memory comes from.
#[derive(Debug)]
pub struct CudaPool {
    handle: DriverHandle,
    is_own: bool,
}

impl CudaPool {
    /// The one that every GPU has.
    pub fn default_of(device: Device) -> Result<CudaPool> {
        let mut handle = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuDeviceGetDefaultMemPool(&raw mut handle, device.number())) }?;
        Ok(CudaPool { handle, is_own: false })
    }

    /// A new one.
    pub fn create(device: Device) -> Result<CudaPool> {
        let properties = RawPoolProperties {
            kind: 1,
            handle_types: 0,
            location: RawLocation::of(device),
            windows: 0,
            max_bytes: 0,
            usage: 0,
            reserved: [0; 54],
        };
        let mut handle = 0;
        // SAFETY: the properties and the place live until the call returns.
        unsafe { call!(cuMemPoolCreate(&raw mut handle, &raw const properties)) }?;
        Ok(CudaPool { handle, is_own: true })
    }

    fn number(&self, attribute: c_int) -> Result<u64> {
        let mut value = 0_u64;
        // SAFETY: the place lives until the call returns; these attributes have eight bytes.
        unsafe { call!(cuMemPoolGetAttribute(self.handle, attribute, (&raw mut value).cast())) }?;
        Ok(value)
    }

    /// Bytes it has of the GPU.
    pub fn reserved_bytes(&self) -> Result<u64> {
        self.number(RESERVED_NOW)
    }

    /// Bytes of those that are in use.
    pub fn used_bytes(&self) -> Result<u64> {
        self.number(USED_NOW)
    }

    /// Keeps up to `bytes` freed bytes in the pool for later allocations.
    pub fn set_release_threshold(&self, mut bytes: u64) -> Result<()> {
        // SAFETY: the number lives until the call returns; this attribute has eight bytes.
        unsafe { call!(cuMemPoolSetAttribute(self.handle, RELEASE_THRESHOLD, (&raw mut bytes).cast())) }
    }

    /// Gives the GPU back what is kept, down to so many bytes.
    pub fn trim(&self, bytes: usize) -> Result<()> {
        // SAFETY: it takes numbers.
        unsafe { call!(cuMemPoolTrimTo(self.handle, bytes)) }
    }

    /// Takes memory in the order of a stream.
    pub fn alloc<'a>(&'a self, bytes: usize, stream: &'a CudaStream) -> Result<PoolMemory<'a>> {
        let mut at = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuMemAllocFromPoolAsync(&raw mut at, bytes, self.handle, stream.handle())) }?;
        Ok(PoolMemory { at, bytes, stream })
    }
}

impl Drop for CudaPool {
    fn drop(&mut self) {
        if self.is_own {
            // SAFETY: it was made here, and is given back once.
            let _ = unsafe { call!(cuMemPoolDestroy(self.handle)) };
        }
    }
}

/// Memory that is there for what comes later in its stream, until it is given back there.
#[derive(Debug)]
pub struct PoolMemory<'a> {
    at: Address,
    bytes: usize,
    stream: &'a CudaStream,
}

impl<'a> PoolMemory<'a> {
    /// Takes memory of the GPU's own pool.
    pub fn alloc(bytes: usize, stream: &'a CudaStream) -> Result<PoolMemory<'a>> {
        let mut at = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuMemAllocAsync(&raw mut at, bytes, stream.handle())) }?;
        Ok(PoolMemory { at, bytes, stream })
    }

    /// All of it.
    pub fn all(&self) -> DeviceSpan<'_> {
        DeviceSpan::of(self, self.at, self.bytes)
    }

    /// Gives it back in the order of its stream, and tells whether that went well.
    pub fn free(self) -> Result<()> {
        let stream = self.stream;
        self.free_in(stream)
    }

    /// The same in the order of another stream, which has waited for its own.
    pub fn free_in(self, stream: &CudaStream) -> Result<()> {
        let (at, stream) = (self.at, stream.handle());
        std::mem::forget(self);
        // SAFETY: it was taken here, and is given back once.
        unsafe { call!(cuMemFreeAsync(at, stream)) }
    }
}

impl Drop for PoolMemory<'_> {
    fn drop(&mut self) {
        // SAFETY: it was taken here, and is given back once.
        let _ = unsafe { call!(cuMemFreeAsync(self.at, self.stream.handle())) };
    }
}
