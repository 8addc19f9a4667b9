//! Structures as C programs lay them out.
//!
//! Absent: those of functions that are not supported.

use std::ffi::{c_char, c_int, c_uint};

/// Bytes of a bus id in old structures.
pub const BUS_ID_OLD: usize = 16;
/// Bytes of a bus id.
pub const BUS_ID: usize = 32;
/// NVML's value for an unknown number of bytes.
pub const BYTES_UNKNOWN: u64 = u64::MAX;
/// NVML's value for the MIG instance of a process on a whole GPU.
pub const NO_INSTANCE: c_uint = c_uint::MAX;

/// The version field that a structure must carry.
pub const fn version<T>(number: u32) -> c_uint {
    size_of::<T>() as c_uint | number << 24
}

/// Bytes of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MemoryV1 {
    /// All.
    pub total: u64,
    /// Not used.
    pub free: u64,
    /// By the driver and by processes.
    pub used: u64,
}

/// Bytes of a GPU, with the driver's own separate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MemoryV2 {
    /// See [`version`].
    pub version: c_uint,
    /// All.
    pub total: u64,
    /// By the driver.
    pub reserved: u64,
    /// Not used.
    pub free: u64,
    /// By processes.
    pub used: u64,
}

/// Percentages of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Utilization {
    /// In which kernels ran.
    pub gpu: c_uint,
    /// In which memory was read or written.
    pub memory: c_uint,
}

/// A reading of a sensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Temperature {
    /// See [`version`].
    pub version: c_uint,
    /// Which.
    pub sensor: c_uint,
    /// In degrees.
    pub degrees: c_int,
}

/// A process, as the first version of its list tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ProcessV1 {
    /// Its id.
    pub pid: c_uint,
    /// Its bytes, or [`BYTES_UNKNOWN`].
    pub used: u64,
}

/// A process, as the second and third version tell it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ProcessV2 {
    /// Its id.
    pub pid: c_uint,
    /// Its bytes, or [`BYTES_UNKNOWN`].
    pub used: u64,
    /// [`NO_INSTANCE`].
    pub gpu_instance: c_uint,
    /// [`NO_INSTANCE`].
    pub compute_instance: c_uint,
}

/// How much of the time a process used a GPU's parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ProcessSample {
    /// Its id.
    pub pid: c_uint,
    /// When, in microseconds of the wall clock.
    pub at_us: u64,
    /// Percent of the time in which its kernels ran.
    pub sm: c_uint,
    /// Percent; zero.
    pub memory: c_uint,
    /// Percent; zero.
    pub encoder: c_uint,
    /// Percent; zero.
    pub decoder: c_uint,
}

/// Where a GPU is, first version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PciV1 {
    /// As text, the domain with four digits.
    pub bus_id_old: [c_char; BUS_ID_OLD],
    /// The domain.
    pub domain: c_uint,
    /// The bus.
    pub bus: c_uint,
    /// The device.
    pub device: c_uint,
    /// Device and vendor id.
    pub id: c_uint,
}

/// Second version. Its last sixteen bytes are reserved, and not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PciV2 {
    /// As before.
    pub first: PciV1,
    /// Device and vendor id of the board.
    pub subsystem_id: c_uint,
}

/// Third version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PciV3 {
    /// As before.
    pub second: PciV2,
    /// As text, the domain with eight digits.
    pub bus_id: [c_char; BUS_ID],
}

/// A GPU's UUID, as text or as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Uuid {
    /// See [`version`].
    pub version: c_uint,
    /// [`Uuid::TEXT`] or [`Uuid::BYTES`].
    pub kind: c_uint,
    /// The text with its zero, or sixteen bytes.
    pub value: [u8; 41],
}

impl Uuid {
    /// The value is text.
    pub const TEXT: c_uint = 1;
    /// The value is bytes.
    pub const BYTES: c_uint = 2;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn structures_have_the_sizes_of_the_c_header() {
        assert_eq!((size_of::<MemoryV1>(), size_of::<MemoryV2>()), (24, 40));
        assert_eq!((size_of::<ProcessV1>(), size_of::<ProcessV2>(), size_of::<ProcessSample>()), (16, 24, 32));
        assert_eq!((size_of::<PciV1>(), size_of::<PciV2>(), size_of::<PciV3>()), (32, 36, 68));
        assert_eq!((offset_of!(PciV3, bus_id), offset_of!(Uuid, value)), (36, 8));
        assert_eq!(
            (version::<MemoryV2>(2), version::<Uuid>(1), version::<Temperature>(1)),
            (0x0200_0028, 0x0100_0034, 0x0100_000c)
        );
    }
}
