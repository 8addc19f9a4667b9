//! The processes on a GPU, and how much of its time each took.
//!
//! A pid is reported as in the process's own namespace. A checkpointed process has no bytes there and is not listed.
//! All processes compute; none uses graphics, and none comes through MPS.

use crate::abi::{Answer, Code, Out, export, list};
use crate::library::{Card, Handle, card};
use crate::structs::{BYTES_UNKNOWN, NO_INSTANCE, Process1, Process2, ProcessSample, Utilization};
use std::ffi::c_uint;
use sublet_softgpu::NvmlFault;

/// Extra room reported to a caller that asks how many samples there are, for those that come meanwhile.
const SPARE: c_uint = 4;

export! {
    fn nvmlDeviceGetComputeRunningProcesses(device: Handle, count: Out<c_uint>, processes: Out<Process1>) {
        let found = on(&card(device)?)?;
        let found: Vec<_> = found.iter().map(|&(pid, used)| Process1 { pid, used }).collect();
        list(count, processes, &found)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2 | nvmlDeviceGetComputeRunningProcesses_v3(
        device: Handle,
        count: Out<c_uint>,
        processes: Out<Process2>,
    ) {
        let found = on(&card(device)?)?;
        let of = |&(pid, used): &(u32, u64)| {
            Process2 { pid, used, gpu_instance: NO_INSTANCE, compute_instance: NO_INSTANCE }
        };
        list(count, processes, &found.iter().map(of).collect::<Vec<_>>())
    }

    fn nvmlDeviceGetGraphicsRunningProcesses
        | nvmlDeviceGetGraphicsRunningProcesses_v2
        | nvmlDeviceGetGraphicsRunningProcesses_v3
        | nvmlDeviceGetMPSComputeRunningProcesses
        | nvmlDeviceGetMPSComputeRunningProcesses_v2
        | nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Handle, count: Out<c_uint>, _processes: Out<u8>) {
        card(device)?;
        count.get()?;
        count.put(0)
    }

    fn nvmlDeviceGetUtilizationRates(device: Handle, rates: Out<Utilization>) {
        rates.put(Utilization { gpu: card(device)?.meter().percent(), memory: 0 })
    }

    fn nvmlDeviceGetProcessUtilization(
        device: Handle,
        samples: Out<ProcessSample>,
        count: Out<c_uint>,
        last_seen_us: u64,
    ) {
        let (at_us, busy) = card(device)?.meter().since(last_seen_us);
        let sample = |&(pid, sm): &(u32, u32)| ProcessSample { pid, at_us, sm, ..ProcessSample::default() };
        let found: Vec<_> = busy.iter().map(sample).collect();
        told(count, samples, &found)
    }

    /// A soft GPU has no encoder, decoder or the like: they are never busy.
    fn nvmlDeviceGetEncoderUtilization
        | nvmlDeviceGetDecoderUtilization
        | nvmlDeviceGetJpgUtilization
        | nvmlDeviceGetOfaUtilization(device: Handle, percent: Out<c_uint>, period_us: Out<c_uint>) {
        const PERIOD_US: c_uint = 20_000;
        card(device)?;
        percent.put(0)?;
        period_us.put(PERIOD_US)
    }
}

/// Pid and bytes of each process, or [`BYTES_UNKNOWN`].
fn on(card: &Card) -> Result<Vec<(u32, u64)>, Code> {
    let mut found = card.processes();
    if card.fault()? == NvmlFault::NoBytes {
        found.iter_mut().for_each(|(_, used)| *used = BYTES_UNKNOWN);
    }
    Ok(found)
}

fn told(count: Out<c_uint>, samples: Out<ProcessSample>, found: &[ProcessSample]) -> Answer {
    count.get()?;
    if found.is_empty() {
        count.put(0)?;
        return Err(Code::NotFound);
    }
    let answer = list(count, samples, found);
    if answer == Err(Code::InsufficientSize) {
        count.put(found.len() as c_uint + SPARE)?;
    }
    answer
}
