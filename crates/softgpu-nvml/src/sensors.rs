//! Clocks, power and temperature of a GPU that has none: plain figures, higher while kernels run.
//!
//! Absent: fans and energy counters, as on many server GPUs.

use crate::abi::{NvmlError, Out, export};
use crate::library::{DeviceHandle, NvmlGpu, gpu};
use crate::structs::{Temperature, version};
use std::ffi::{c_int, c_uint};

/// In megahertz: graphics, multiprocessors, memory, video.
const CLOCKS_MAX: [c_uint; 4] = [1500, 1500, 5000, 1400];
/// The same while nothing runs.
const CLOCKS_IDLE: [c_uint; 4] = [300, 300, 400, 500];
/// In milliwatts, while nothing runs.
const POWER_IDLE: c_uint = 10_000;
/// In milliwatts, while kernels run all the time; also the limit, which cannot be changed.
const POWER_MAX: c_uint = 70_000;
/// In degrees, while nothing runs.
const TEMPERATURE_IDLE: c_uint = 30;
/// Degrees more while kernels run all the time.
const TEMPERATURE_RISE: c_uint = 30;

export! {
    fn nvmlDeviceGetClockInfo(device: DeviceHandle, which: c_uint, mhz: Out<c_uint>) {
        mhz.write(clock(clocks(&gpu(device)?), which)?)
    }

    fn nvmlDeviceGetMaxClockInfo | nvmlDeviceGetApplicationsClock | nvmlDeviceGetDefaultApplicationsClock(
        device: DeviceHandle,
        which: c_uint,
        mhz: Out<c_uint>,
    ) {
        gpu(device)?;
        mhz.write(clock(CLOCKS_MAX, which)?)
    }

    /// As it is now (0), or as it is set (1), would be set (2) or can be at most (3).
    fn nvmlDeviceGetClock(device: DeviceHandle, which: c_uint, when: c_uint, mhz: Out<c_uint>) {
        let gpu = gpu(device)?;
        match when {
            0 => mhz.write(clock(clocks(&gpu), which)?),
            1..=3 => mhz.write(clock(CLOCKS_MAX, which)?),
            _ => Err(NvmlError::InvalidArgument),
        }
    }

    fn nvmlDeviceGetPowerUsage(device: DeviceHandle, milliwatts: Out<c_uint>) {
        let percent = gpu(device)?.meter().percent();
        milliwatts.write(POWER_IDLE + (POWER_MAX - POWER_IDLE) / 100 * percent)
    }

    fn nvmlDeviceGetPowerManagementLimit
        | nvmlDeviceGetPowerManagementDefaultLimit
        | nvmlDeviceGetEnforcedPowerLimit(device: DeviceHandle, milliwatts: Out<c_uint>) {
        gpu(device)?;
        milliwatts.write(POWER_MAX)
    }

    fn nvmlDeviceGetPowerManagementLimitConstraints(device: DeviceHandle, least: Out<c_uint>, most: Out<c_uint>) {
        gpu(device)?;
        least.write(POWER_MAX)?;
        most.write(POWER_MAX)
    }

    fn nvmlDeviceGetPowerManagementMode(device: DeviceHandle, mode: Out<c_uint>) {
        gpu(device)?;
        mode.write(1)
    }

    fn nvmlDeviceGetTemperature(device: DeviceHandle, sensor: c_uint, degrees: Out<c_uint>) {
        degrees.write(temperature_of(&gpu(device)?, sensor)?)
    }

    fn nvmlDeviceGetTemperatureV(device: DeviceHandle, temperature: Out<Temperature>) {
        let gpu = gpu(device)?;
        let asked = temperature.read()?;
        if asked.version != version::<Temperature>(1) {
            return Err(NvmlError::VersionMismatch);
        }
        temperature.write(Temperature { degrees: temperature_of(&gpu, asked.sensor)? as c_int, ..asked })
    }

    /// The temperature at which it would stop (0) or slow down (1), or that it should not exceed (3).
    fn nvmlDeviceGetTemperatureThreshold(device: DeviceHandle, which: c_uint, degrees: Out<c_uint>) {
        gpu(device)?;
        degrees.write(match which {
            0 => 95,
            1 => 90,
            3 => 85,
            _ => return Err(NvmlError::NotSupported),
        })
    }

    fn nvmlDeviceGetNumFans(device: DeviceHandle, fans: Out<c_uint>) {
        gpu(device)?;
        fans.write(0)
    }

    /// From 0, the fastest, to 15.
    fn nvmlDeviceGetPerformanceState | nvmlDeviceGetPowerState(device: DeviceHandle, state: Out<c_uint>) {
        state.write(if is_busy(&gpu(device)?) { 0 } else { 8 })
    }

    /// There is no throttling.
    fn nvmlDeviceGetCurrentClocksThrottleReasons | nvmlDeviceGetCurrentClocksEventReasons(
        device: DeviceHandle,
        reasons: Out<u64>,
    ) {
        gpu(device)?;
        reasons.write(0)
    }
}

fn is_busy(gpu: &NvmlGpu) -> bool {
    gpu.meter().percent() > 0
}

fn clocks(gpu: &NvmlGpu) -> [c_uint; 4] {
    if is_busy(gpu) { CLOCKS_MAX } else { CLOCKS_IDLE }
}

fn clock(clocks: [c_uint; 4], which: c_uint) -> Result<c_uint, NvmlError> {
    clocks.get(which as usize).copied().ok_or(NvmlError::InvalidArgument)
}

/// The temperature; there is one sensor, with the number 0.
fn temperature_of(gpu: &NvmlGpu, sensor: c_uint) -> Result<c_uint, NvmlError> {
    if sensor != 0 {
        return Err(NvmlError::InvalidArgument);
    }
    Ok(TEMPERATURE_IDLE + TEMPERATURE_RISE * gpu.meter().percent() / 100)
}
