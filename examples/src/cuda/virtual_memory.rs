//! Addresses and memory apart: reserve the one, make the other, and bring them together.

use super::memory::DeviceSpan;
use super::{Address, Device, Result, call};
use std::ffi::{c_int, c_void};

/// `CUmemLocation`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RawLocation {
    kind: c_int,
    id: c_int,
}

impl RawLocation {
    /// On a GPU.
    pub fn of(device: Device) -> RawLocation {
        RawLocation { kind: 1, id: device.number() }
    }
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RawAllocationProperties {
    kind: c_int,
    handle_types: c_int,
    location: RawLocation,
    windows: usize,
    flags: [u8; 8],
}

impl RawAllocationProperties {
    fn of(device: Device) -> RawAllocationProperties {
        RawAllocationProperties {
            kind: 1,
            handle_types: 0,
            location: RawLocation::of(device),
            windows: 0,
            flags: [0; 8],
        }
    }
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RawAccess {
    location: RawLocation,
    flags: c_int,
}

/// What memory of a GPU comes in multiples of.
pub fn granularity(device: Device) -> Result<usize> {
    let (properties, mut bytes) = (RawAllocationProperties::of(device), 0);
    // SAFETY: the properties and the place live until the call returns.
    unsafe { call!(cuMemGetAllocationGranularity(&raw mut bytes, &raw const properties, 0)) }?;
    Ok(bytes)
}

/// Memory of a GPU, without an address.
#[derive(Debug)]
pub struct PhysicalMemory {
    handle: u64,
    bytes: usize,
}

impl PhysicalMemory {
    /// Makes some: a multiple of the granularity.
    pub fn create(device: Device, bytes: usize) -> Result<PhysicalMemory> {
        let (properties, mut handle) = (RawAllocationProperties::of(device), 0);
        // SAFETY: the properties and the place live until the call returns.
        unsafe { call!(cuMemCreate(&raw mut handle, bytes, &raw const properties, 0)) }?;
        Ok(PhysicalMemory { handle, bytes })
    }

    /// The memory that is at an address.
    pub fn at(span: DeviceSpan<'_>) -> Result<PhysicalMemory> {
        let mut handle = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuMemRetainAllocationHandle(&raw mut handle, span.at() as usize as *mut c_void)) }?;
        Ok(PhysicalMemory { handle, bytes: span.bytes() })
    }

    /// How much it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The driver's name of it.
    pub fn handle(&self) -> u64 {
        self.handle
    }
}

impl Drop for PhysicalMemory {
    fn drop(&mut self) {
        // SAFETY: it was made here, and is given back once; where it is mapped it stays.
        let _ = unsafe { call!(cuMemRelease(self.handle)) };
    }
}

/// Addresses without memory.
#[derive(Debug)]
pub struct ReservedAddresses {
    at: Address,
    bytes: usize,
}

impl ReservedAddresses {
    /// Reserves so many, a multiple of the granularity.
    pub fn new(bytes: usize) -> Result<ReservedAddresses> {
        let mut at = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuMemAddressReserve(&raw mut at, bytes, 0, 0, 0)) }?;
        Ok(ReservedAddresses { at, bytes })
    }

    /// Puts memory there, so many bytes after the first.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn map(&self, offset: usize, physical: &PhysicalMemory) -> Result<MappedMemory<'_>> {
        assert!(offset + physical.bytes <= self.bytes, "{} bytes do not fit at {offset}", physical.bytes);
        let at = self.at + offset as u64;
        // SAFETY: the addresses are reserved as long as `self` is there.
        unsafe { call!(cuMemMap(at, physical.bytes, 0, physical.handle, 0)) }?;
        Ok(MappedMemory { at, bytes: physical.bytes, reserved: self })
    }
}

impl Drop for ReservedAddresses {
    fn drop(&mut self) {
        // SAFETY: they were reserved here, and nothing is mapped there any more.
        let _ = unsafe { call!(cuMemAddressFree(self.at, self.bytes)) };
    }
}

/// Memory with an address.
#[derive(Debug)]
pub struct MappedMemory<'a> {
    at: Address,
    bytes: usize,
    reserved: &'a ReservedAddresses,
}

impl MappedMemory<'_> {
    /// Lets a GPU read it, and write if that is said.
    pub fn allow(&self, device: Device, is_writable: bool) -> Result<()> {
        let access = RawAccess { location: RawLocation::of(device), flags: if is_writable { 3 } else { 1 } };
        // SAFETY: the description lives until the call returns.
        unsafe { call!(cuMemSetAccess(self.at, self.bytes, &raw const access, 1)) }
    }

    /// What a GPU may do there: nothing 0, read 1, write as well 3.
    pub fn allowed(&self, device: Device) -> Result<u64> {
        let (location, mut flags) = (RawLocation::of(device), 0);
        // SAFETY: the location and the place live until the call returns.
        unsafe { call!(cuMemGetAccess(&raw mut flags, &raw const location, self.at)) }?;
        Ok(flags)
    }

    /// All of it.
    pub fn all(&self) -> DeviceSpan<'_> {
        debug_assert!(self.at >= self.reserved.at, "it is within what was reserved");
        DeviceSpan::of(self, self.at, self.bytes)
    }

    /// Takes the memory away from there, and tells whether that went well.
    pub fn unmap(self) -> Result<()> {
        let (at, bytes) = (self.at, self.bytes);
        std::mem::forget(self);
        // SAFETY: it was mapped here, and is unmapped once.
        unsafe { call!(cuMemUnmap(at, bytes)) }
    }
}

impl Drop for MappedMemory<'_> {
    fn drop(&mut self) {
        // SAFETY: it was mapped here, and is unmapped once.
        let _ = unsafe { call!(cuMemUnmap(self.at, self.bytes)) };
    }
}
