//! The processes on a GPU, and how much of its time each took.
//!
//! A pid is reported as in the process's own namespace. A checkpointed process has no bytes there and is not listed.
//! All processes compute; none uses graphics, and none comes through MPS.

use crate::abi::{NvmlError, NvmlResult, Out, export, write_list};
use crate::library::{DeviceHandle, NvmlGpu, gpu};
use crate::structs::{BYTES_UNKNOWN, NO_INSTANCE, ProcessSample, ProcessV1, ProcessV2, Utilization};
use std::ffi::c_uint;
use sublet_softgpu::NvmlFault;

/// Extra room reported to a caller that asks how many samples there are, for those that come meanwhile.
const SPARE: c_uint = 4;

export! {
    fn nvmlDeviceGetComputeRunningProcesses(device: DeviceHandle, count: Out<c_uint>, processes: Out<ProcessV1>) {
        let found = listed_processes(&gpu(device)?)?;
        let found: Vec<_> = found.iter().map(|&(pid, used)| ProcessV1 { pid, used }).collect();
        write_list(count, processes, &found)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2 | nvmlDeviceGetComputeRunningProcesses_v3(
        device: DeviceHandle,
        count: Out<c_uint>,
        processes: Out<ProcessV2>,
    ) {
        let found = listed_processes(&gpu(device)?)?;
        let of = |&(pid, used): &(u32, u64)| {
            ProcessV2 { pid, used, gpu_instance: NO_INSTANCE, compute_instance: NO_INSTANCE }
        };
        write_list(count, processes, &found.iter().map(of).collect::<Vec<_>>())
    }

    fn nvmlDeviceGetGraphicsRunningProcesses
        | nvmlDeviceGetGraphicsRunningProcesses_v2
        | nvmlDeviceGetGraphicsRunningProcesses_v3
        | nvmlDeviceGetMPSComputeRunningProcesses
        | nvmlDeviceGetMPSComputeRunningProcesses_v2
        | nvmlDeviceGetMPSComputeRunningProcesses_v3(device: DeviceHandle, count: Out<c_uint>, _processes: Out<u8>) {
        gpu(device)?;
        count.read()?;
        count.write(0)
    }

    fn nvmlDeviceGetUtilizationRates(device: DeviceHandle, rates: Out<Utilization>) {
        rates.write(Utilization { gpu: gpu(device)?.meter().percent(), memory: 0 })
    }

    fn nvmlDeviceGetProcessUtilization(
        device: DeviceHandle,
        samples: Out<ProcessSample>,
        count: Out<c_uint>,
        last_seen_us: u64,
    ) {
        let (at_us, busy) = gpu(device)?.meter().since(last_seen_us);
        let sample = |&(pid, sm): &(u32, u32)| ProcessSample { pid, at_us, sm, ..ProcessSample::default() };
        let found: Vec<_> = busy.iter().map(sample).collect();
        write_samples(count, samples, &found)
    }

    /// A soft GPU has no encoder, decoder or the like: they are never busy.
    fn nvmlDeviceGetEncoderUtilization
        | nvmlDeviceGetDecoderUtilization
        | nvmlDeviceGetJpgUtilization
        | nvmlDeviceGetOfaUtilization(device: DeviceHandle, percent: Out<c_uint>, period_us: Out<c_uint>) {
        const PERIOD_US: c_uint = 20_000;
        gpu(device)?;
        percent.write(0)?;
        period_us.write(PERIOD_US)
    }
}

/// Pid and bytes of each process, or [`BYTES_UNKNOWN`].
fn listed_processes(gpu: &NvmlGpu) -> Result<Vec<(u32, u64)>, NvmlError> {
    let mut found = gpu.processes();
    if gpu.fault()? == NvmlFault::NoBytes {
        found.iter_mut().for_each(|(_, used)| *used = BYTES_UNKNOWN);
    }
    Ok(found)
}

fn write_samples(count: Out<c_uint>, samples: Out<ProcessSample>, found: &[ProcessSample]) -> NvmlResult {
    count.read()?;
    if found.is_empty() {
        count.write(0)?;
        return Err(NvmlError::NotFound);
    }
    let answer = write_list(count, samples, found);
    if answer == Err(NvmlError::InsufficientSize) {
        count.write(found.len() as c_uint + SPARE)?;
    }
    answer
}
