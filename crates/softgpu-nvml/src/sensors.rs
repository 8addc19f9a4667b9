//! Clocks, power and temperature of a GPU that has none: plain figures, higher while kernels run.
//!
//! Absent: fans and energy counters, as on many server GPUs.

use crate::abi::{Code, Out, export};
use crate::library::{Card, Handle, card};
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
const WARMTH_IDLE: c_uint = 30;
/// Degrees more while kernels run all the time.
const WARMTH_MORE: c_uint = 30;

export! {
    fn nvmlDeviceGetClockInfo(device: Handle, which: c_uint, mhz: Out<c_uint>) {
        mhz.put(clock(clocks(&card(device)?), which)?)
    }

    fn nvmlDeviceGetMaxClockInfo | nvmlDeviceGetApplicationsClock | nvmlDeviceGetDefaultApplicationsClock(
        device: Handle,
        which: c_uint,
        mhz: Out<c_uint>,
    ) {
        card(device)?;
        mhz.put(clock(CLOCKS_MAX, which)?)
    }

    /// As it is now (0), or as it is set (1), would be set (2) or can be at most (3).
    fn nvmlDeviceGetClock(device: Handle, which: c_uint, when: c_uint, mhz: Out<c_uint>) {
        let card = card(device)?;
        match when {
            0 => mhz.put(clock(clocks(&card), which)?),
            1..=3 => mhz.put(clock(CLOCKS_MAX, which)?),
            _ => Err(Code::InvalidArgument),
        }
    }

    fn nvmlDeviceGetPowerUsage(device: Handle, milliwatts: Out<c_uint>) {
        let percent = card(device)?.meter().percent();
        milliwatts.put(POWER_IDLE + (POWER_MAX - POWER_IDLE) / 100 * percent)
    }

    fn nvmlDeviceGetPowerManagementLimit
        | nvmlDeviceGetPowerManagementDefaultLimit
        | nvmlDeviceGetEnforcedPowerLimit(device: Handle, milliwatts: Out<c_uint>) {
        card(device)?;
        milliwatts.put(POWER_MAX)
    }

    fn nvmlDeviceGetPowerManagementLimitConstraints(device: Handle, least: Out<c_uint>, most: Out<c_uint>) {
        card(device)?;
        least.put(POWER_MAX)?;
        most.put(POWER_MAX)
    }

    fn nvmlDeviceGetPowerManagementMode(device: Handle, mode: Out<c_uint>) {
        card(device)?;
        mode.put(1)
    }

    fn nvmlDeviceGetTemperature(device: Handle, sensor: c_uint, degrees: Out<c_uint>) {
        degrees.put(warmth(&card(device)?, sensor)?)
    }

    fn nvmlDeviceGetTemperatureV(device: Handle, temperature: Out<Temperature>) {
        let card = card(device)?;
        let asked = temperature.get()?;
        if asked.version != version::<Temperature>(1) {
            return Err(Code::VersionMismatch);
        }
        temperature.put(Temperature { degrees: warmth(&card, asked.sensor)? as c_int, ..asked })
    }

    /// The temperature at which it would stop (0) or slow down (1), or that it should not exceed (3).
    fn nvmlDeviceGetTemperatureThreshold(device: Handle, which: c_uint, degrees: Out<c_uint>) {
        card(device)?;
        degrees.put(match which {
            0 => 95,
            1 => 90,
            3 => 85,
            _ => return Err(Code::NotSupported),
        })
    }

    fn nvmlDeviceGetNumFans(device: Handle, fans: Out<c_uint>) {
        card(device)?;
        fans.put(0)
    }

    /// From 0, the fastest, to 15.
    fn nvmlDeviceGetPerformanceState | nvmlDeviceGetPowerState(device: Handle, state: Out<c_uint>) {
        state.put(if is_busy(&card(device)?) { 0 } else { 8 })
    }

    /// There is no throttling.
    fn nvmlDeviceGetCurrentClocksThrottleReasons | nvmlDeviceGetCurrentClocksEventReasons(
        device: Handle,
        reasons: Out<u64>,
    ) {
        card(device)?;
        reasons.put(0)
    }
}

fn is_busy(card: &Card) -> bool {
    card.meter().percent() > 0
}

fn clocks(card: &Card) -> [c_uint; 4] {
    if is_busy(card) { CLOCKS_MAX } else { CLOCKS_IDLE }
}

fn clock(clocks: [c_uint; 4], which: c_uint) -> Result<c_uint, Code> {
    clocks.get(which as usize).copied().ok_or(Code::InvalidArgument)
}

/// The temperature; there is one sensor, with the number 0.
fn warmth(card: &Card, sensor: c_uint) -> Result<c_uint, Code> {
    if sensor != 0 {
        return Err(Code::InvalidArgument);
    }
    Ok(WARMTH_IDLE + WARMTH_MORE * card.meter().percent() / 100)
}
