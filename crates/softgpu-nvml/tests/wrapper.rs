//! The crate `nvml-wrapper`, through which the host reads GPUs, with the library given by its path.
//!
//! One test: the environment belongs to the whole process.

mod support;

use nvml_wrapper::enum_wrappers::device::{PerformanceState, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use sublet_softgpu::state::{CONTEXT_BYTES, ENV, IDLE_BYTES};
use sublet_softgpu::{NvmlFault, SoftGpuFault};
use support::{GIB, Machine};

#[test]
fn nvml_wrapper_reads_gpus_processes_and_faults() {
    let machine = Machine::with("2x4GiB");
    let client = machine.register_client(0, GIB);
    // SAFETY: this is the only test here; no other thread reads or writes the environment.
    unsafe { std::env::set_var(ENV, machine.gpus_file()) };
    let nvml = Nvml::builder().lib_path(support::library().as_os_str()).init().unwrap();
    assert_eq!(nvml.device_count().unwrap(), 2);
    let gpu = nvml.device_by_index(0).unwrap();
    identity(&nvml, &gpu);
    let free = || gpu.memory_info().unwrap().free;
    assert_eq!(free(), 4 * GIB - IDLE_BYTES - CONTEXT_BYTES - GIB);
    let processes = gpu.running_compute_processes().unwrap();
    assert_eq!((processes.len(), processes[0].pid), (1, std::process::id()));
    assert_eq!(processes[0].used_gpu_memory, UsedGpuMemory::Used(CONTEXT_BYTES + GIB));
    assert_eq!(gpu.running_graphics_processes().unwrap(), []);

    let kernel = client.start_kernel(0);
    while gpu.utilization_rates().unwrap().gpu == 0 {}
    let samples = gpu.process_utilization_stats(0).unwrap();
    assert_eq!((samples.len(), samples[0].pid), (1, std::process::id()));
    assert!(samples[0].sm_util > 0, "{samples:?}");
    drop(kernel);

    machine.state.set_fault(0, SoftGpuFault::Nvml(NvmlFault::Lost));
    assert!(matches!(gpu.memory_info(), Err(NvmlError::GpuLost)));
    assert!(matches!(nvml.device_by_index(0), Err(NvmlError::GpuLost)));
    machine.state.set_fault(0, SoftGpuFault::Nvml(NvmlFault::NoBytes));
    assert_eq!(gpu.running_compute_processes().unwrap()[0].used_gpu_memory, UsedGpuMemory::Unavailable);
    machine.state.set_fault(0, SoftGpuFault::Clear);
    drop(client);
    assert_eq!(gpu.running_compute_processes().unwrap(), []);
    assert_eq!(free(), 4 * GIB - IDLE_BYTES);
}

fn identity(nvml: &Nvml, gpu: &Device<'_>) {
    assert_eq!(gpu.name().unwrap(), "Sublet Soft 4GiB");
    let uuid = gpu.uuid().unwrap();
    assert_eq!(nvml.device_by_uuid(uuid).unwrap().index().unwrap(), 0);
    assert_eq!(gpu.pci_info().unwrap().bus_id, "00000000:A0:00.0");
    assert_eq!(gpu.mig_mode().unwrap().current, 0);
    assert_eq!(gpu.temperature(TemperatureSensor::Gpu).unwrap(), 30);
    assert_eq!(gpu.performance_state().unwrap(), PerformanceState::Eight);
    assert!(!gpu.is_multi_gpu_board().unwrap() && !gpu.is_display_active().unwrap());
    assert!(matches!(gpu.serial(), Err(NvmlError::NotSupported)));
}
