//! How a GPU is set up; none of it can be changed.

use crate::abi::{Code, Out, export};
use crate::library::{Handle, card};
use std::ffi::c_uint;

export! {
    /// Any number of processes may compute (0); the display is off; nothing is accounted; no vGPU.
    fn nvmlDeviceGetComputeMode
        | nvmlDeviceGetDisplayActive
        | nvmlDeviceGetDisplayMode
        | nvmlDeviceGetAccountingMode
        | nvmlDeviceGetVirtualizationMode(device: Handle, mode: Out<c_uint>) {
        card(device)?;
        mode.put(0)
    }

    /// The GPU stays available while no process uses it.
    fn nvmlDeviceGetPersistenceMode(device: Handle, mode: Out<c_uint>) {
        card(device)?;
        mode.put(1)
    }

    /// Off, now and after the next restart.
    fn nvmlDeviceGetEccMode | nvmlDeviceGetMigMode(device: Handle, now: Out<c_uint>, next: Out<c_uint>) {
        card(device)?;
        now.put(0)?;
        next.put(0)
    }

    fn nvmlDeviceGetMaxMigDeviceCount | nvmlDeviceIsMigDeviceHandle(device: Handle, answer: Out<c_uint>) {
        card(device)?;
        answer.put(0)
    }

    fn nvmlDeviceSetComputeMode
        | nvmlDeviceSetPersistenceMode
        | nvmlDeviceSetAccountingMode
        | nvmlDeviceSetPowerManagementLimit(device: Handle, _wanted: c_uint) {
        card(device)?;
        Err(Code::NoPermission)
    }
}
