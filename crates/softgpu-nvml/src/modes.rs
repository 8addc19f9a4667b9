//! How a GPU is set up; none of it can be changed.

use crate::abi::{NvmlError, Out, export};
use crate::library::{DeviceHandle, gpu};
use std::ffi::c_uint;

export! {
    /// Any number of processes may compute (0); the display is off; nothing is accounted; no vGPU.
    fn nvmlDeviceGetComputeMode
        | nvmlDeviceGetDisplayActive
        | nvmlDeviceGetDisplayMode
        | nvmlDeviceGetAccountingMode
        | nvmlDeviceGetVirtualizationMode(device: DeviceHandle, mode: Out<c_uint>) {
        gpu(device)?;
        mode.write(0)
    }

    /// The GPU stays available while no process uses it.
    fn nvmlDeviceGetPersistenceMode(device: DeviceHandle, mode: Out<c_uint>) {
        gpu(device)?;
        mode.write(1)
    }

    /// Off, now and after the next restart.
    fn nvmlDeviceGetEccMode | nvmlDeviceGetMigMode(device: DeviceHandle, now: Out<c_uint>, next: Out<c_uint>) {
        gpu(device)?;
        now.write(0)?;
        next.write(0)
    }

    fn nvmlDeviceGetMaxMigDeviceCount | nvmlDeviceIsMigDeviceHandle(device: DeviceHandle, answer: Out<c_uint>) {
        gpu(device)?;
        answer.write(0)
    }

    fn nvmlDeviceSetComputeMode
        | nvmlDeviceSetPersistenceMode
        | nvmlDeviceSetAccountingMode
        | nvmlDeviceSetPowerManagementLimit(device: DeviceHandle, _wanted: c_uint) {
        gpu(device)?;
        Err(NvmlError::NoPermission)
    }
}
