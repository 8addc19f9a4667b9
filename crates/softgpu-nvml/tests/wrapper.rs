//! The crate `nvml-wrapper`, through which the host reads GPUs, with the library given by its path.
//!
//! One test: the environment belongs to the whole process.

mod support;

use nvml_wrapper::enum_wrappers::device::{PerformanceState, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use sublet_softgpu::state::{CONTEXT_BYTES, ENV, IDLE_BYTES};
use sublet_softgpu::{CardFault, NvmlFault};
use support::{GIB, Machine};

#[test]
fn the_host_sees_cards_processes_and_faults() {
    let machine = Machine::with("2x4GiB");
    let seat = machine.sit(0, GIB);
    // SAFETY: this is the only test here; no other thread reads or writes the environment.
    unsafe { std::env::set_var(ENV, machine.cards()) };
    let nvml = Nvml::builder().lib_path(support::library().as_os_str()).init().unwrap();
    assert_eq!(nvml.device_count().unwrap(), 2);
    let card = nvml.device_by_index(0).unwrap();
    identity(&nvml, &card);
    let free = || card.memory_info().unwrap().free;
    assert_eq!(free(), 4 * GIB - IDLE_BYTES - CONTEXT_BYTES - GIB);
    let processes = card.running_compute_processes().unwrap();
    assert_eq!((processes.len(), processes[0].pid), (1, std::process::id()));
    assert_eq!(processes[0].used_gpu_memory, UsedGpuMemory::Used(CONTEXT_BYTES + GIB));
    assert_eq!(card.running_graphics_processes().unwrap(), []);

    let kernel = seat.kernel(0);
    while card.utilization_rates().unwrap().gpu == 0 {}
    let samples = card.process_utilization_stats(0).unwrap();
    assert_eq!((samples.len(), samples[0].pid), (1, std::process::id()));
    assert!(samples[0].sm_util > 0, "{samples:?}");
    drop(kernel);

    machine.state.fault(0, CardFault::Nvml(NvmlFault::Lost));
    assert!(matches!(card.memory_info(), Err(NvmlError::GpuLost)));
    assert!(matches!(nvml.device_by_index(0), Err(NvmlError::GpuLost)));
    machine.state.fault(0, CardFault::Nvml(NvmlFault::NoBytes));
    assert_eq!(card.running_compute_processes().unwrap()[0].used_gpu_memory, UsedGpuMemory::Unavailable);
    machine.state.fault(0, CardFault::Clear);
    drop(seat);
    assert_eq!(card.running_compute_processes().unwrap(), []);
    assert_eq!(free(), 4 * GIB - IDLE_BYTES);
}

fn identity(nvml: &Nvml, card: &Device<'_>) {
    assert_eq!(card.name().unwrap(), "Sublet Soft 4GiB");
    let uuid = card.uuid().unwrap();
    assert_eq!(nvml.device_by_uuid(uuid).unwrap().index().unwrap(), 0);
    assert_eq!(card.pci_info().unwrap().bus_id, "00000000:A0:00.0");
    assert_eq!(card.mig_mode().unwrap().current, 0);
    assert_eq!(card.temperature(TemperatureSensor::Gpu).unwrap(), 30);
    assert_eq!(card.performance_state().unwrap(), PerformanceState::Eight);
    assert!(!card.is_multi_gpu_board().unwrap() && !card.is_display_active().unwrap());
    assert!(matches!(card.serial(), Err(NvmlError::NotSupported)));
}
