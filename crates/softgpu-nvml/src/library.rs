//! How often `nvmlInit` was called, which handle is which GPU, and how a fault affects a call.
//!
//! ```text
//!   nvmlInit: the file is mapped (0 → 1 users), or one more user
//!   nvmlShutdown: one user less; with the last one the mapping goes
//! ```
//! A call in progress keeps the mapping, so that a concurrent shutdown does no harm. Handles are addresses of statics
//! of this library: any other number is no handle.

use crate::abi::NvmlError;
use crate::meter::{ProcessBusyTime, SampledProcess, UtilizationMeter, UtilizationSample};
use std::ffi::{c_uint, c_void};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use sublet_softgpu::layout::{self, GPUS_MAX};
use sublet_softgpu::state::{self, now_ns};
use sublet_softgpu::{NvmlFault, SoftGpuProcess, SoftGpuState, StateError};

/// How often a call that hangs checks whether the fault is still there.
const HANG_POLL: Duration = Duration::from_millis(10);

/// The mapped file, and how busy its GPUs were.
pub struct OpenLibrary {
    state: SoftGpuState,
    meters: [Mutex<UtilizationMeter>; GPUS_MAX],
}

struct LibraryUsers {
    users: u32,
    library: Option<Arc<OpenLibrary>>,
}

static OPENED: RwLock<LibraryUsers> = RwLock::new(LibraryUsers { users: 0, library: None });

/// Opens the file that the environment names, unless it is open.
pub fn init() -> Result<(), NvmlError> {
    let mut opened = OPENED.write().unwrap_or_else(PoisonError::into_inner);
    if opened.library.is_none() {
        let path = std::env::var_os(state::ENV).ok_or(NvmlError::DriverNotLoaded)?;
        opened.library = Some(Arc::new(OpenLibrary::open(Path::new(&path))?));
    }
    opened.users = opened.users.saturating_add(1);
    Ok(())
}

/// Undoes one [`init`].
pub fn shutdown() -> Result<(), NvmlError> {
    let mut opened = OPENED.write().unwrap_or_else(PoisonError::into_inner);
    opened.users = opened.users.checked_sub(1).ok_or(NvmlError::Uninitialized)?;
    if opened.users == 0 {
        opened.library = None;
    }
    Ok(())
}

/// The library; an error if [`init`] was not called.
pub fn library() -> Result<Arc<OpenLibrary>, NvmlError> {
    let opened = OPENED.read().unwrap_or_else(PoisonError::into_inner);
    opened.library.clone().ok_or(NvmlError::Uninitialized)
}

/// The GPU of a handle, if it answers now.
pub fn gpu(handle: DeviceHandle) -> Result<NvmlGpu, NvmlError> {
    let library = library()?;
    let index = handle.index().ok_or(NvmlError::InvalidArgument)?;
    NvmlGpu::of(library, index).ok_or(NvmlError::InvalidArgument)?.after_fault()
}

impl OpenLibrary {
    fn open(path: &Path) -> Result<OpenLibrary, NvmlError> {
        let state = SoftGpuState::open(path).map_err(|error| match error {
            StateError::File { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                NvmlError::NoPermission
            }
            _ => NvmlError::DriverNotLoaded,
        })?;
        let library = OpenLibrary { state, meters: Default::default() };
        // So that a program that asks only once gets the figure since it started.
        for number in 0..library.gpus_len() {
            library.meter(number).add(library.sample(number));
        }
        Ok(library)
    }

    /// The number of GPUs.
    pub fn gpus_len(&self) -> usize {
        self.state.gpus().len()
    }

    fn meter(&self, number: usize) -> MutexGuard<'_, UtilizationMeter> {
        self.meters[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sample(&self, number: usize) -> UtilizationSample {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (wall_us, at_ns) = (wall.as_micros() as u64, now_ns());
        let busy = |process: SoftGpuProcess<'_>| {
            let (since, sum_ns) = (process.row.gpus[number].busy_since.load(SeqCst), process.busy_ns(number));
            let open_ns = if since == 0 { 0 } else { at_ns.saturating_sub(since) };
            let start = process.row.start.load(SeqCst);
            ProcessBusyTime {
                process: SampledProcess { pid: process.pid(), start, row: process.number },
                sum_ns,
                open_ns,
            }
        };
        UtilizationSample { wall_us, at_ns, busy: self.state.processes_on(number).map(busy).collect() }
    }
}

/// A GPU of the open library.
pub struct NvmlGpu {
    library: Arc<OpenLibrary>,
    /// Its number.
    pub index: usize,
}

impl NvmlGpu {
    /// The GPU with a number, whether it answers or not.
    pub fn of(library: Arc<OpenLibrary>, index: usize) -> Option<NvmlGpu> {
        (index < library.gpus_len()).then_some(NvmlGpu { library, index })
    }

    /// The first GPU for which `is` is true, whether it answers or not.
    pub fn find(is: impl Fn(&NvmlGpu) -> bool) -> Result<NvmlGpu, NvmlError> {
        let library = library()?;
        let mut gpus = (0..library.gpus_len()).filter_map(|index| NvmlGpu::of(library.clone(), index));
        gpus.find(is).ok_or(NvmlError::NotFound)
    }

    /// Applies a fault of the GPU: fails, or waits until the fault is cleared.
    pub fn after_fault(self) -> Result<NvmlGpu, NvmlError> {
        loop {
            match self.fault()? {
                NvmlFault::None | NvmlFault::NoBytes => return Ok(self),
                NvmlFault::Error => return Err(NvmlError::Unknown),
                NvmlFault::Lost => return Err(NvmlError::GpuIsLost),
                NvmlFault::Hang => std::thread::sleep(HANG_POLL),
            }
        }
    }

    /// The fault that is ordered.
    pub fn fault(&self) -> Result<NvmlFault, NvmlError> {
        Ok(NvmlFault::from_number(self.row()?.nvml_fault.load(SeqCst)))
    }

    /// Its row in the file, which may have been made anew with fewer GPUs.
    pub fn row(&self) -> Result<&layout::SoftGpu, NvmlError> {
        self.library.state.gpus().get(self.index).ok_or(NvmlError::GpuIsLost)
    }

    /// The handle by which callers name it.
    pub fn handle(&self) -> DeviceHandle {
        DeviceHandle::of(self.index)
    }

    /// All its bytes.
    pub fn total(&self) -> Result<u64, NvmlError> {
        Ok(self.row()?.total.load(SeqCst))
    }

    /// Bytes that are not free.
    pub fn used(&self) -> Result<u64, NvmlError> {
        Ok(self.library.state.used(self.index).min(self.total()?))
    }

    /// Pid and bytes of the processes on it.
    pub fn processes(&self) -> Vec<(u32, u64)> {
        let there = self.library.state.processes_on(self.index).filter(|process| process.is_on(self.index));
        there.map(|process| (process.pid(), process.used(self.index))).collect()
    }

    /// How busy it was: see [`UtilizationMeter`].
    pub fn meter(&self) -> MutexGuard<'_, UtilizationMeter> {
        let mut meter = self.library.meter(self.index);
        if meter.is_due(now_ns()) {
            meter.add(self.library.sample(self.index));
        }
        meter
    }
}

/// The handle by which a caller names a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct DeviceHandle(*const c_void);

/// Only their addresses matter.
static HANDLES: [u8; GPUS_MAX] = [0; GPUS_MAX];

impl DeviceHandle {
    /// The handle of a GPU.
    pub fn of(index: usize) -> DeviceHandle {
        DeviceHandle((&raw const HANDLES[index]).cast())
    }

    /// The GPU's number; `None` if this is no handle.
    pub fn index(self) -> Option<usize> {
        let from = (&raw const HANDLES).addr();
        self.0.addr().checked_sub(from).filter(|index| *index < GPUS_MAX)
    }

    /// A number that is no handle.
    #[cfg(test)]
    pub fn garbage(address: usize) -> DeviceHandle {
        DeviceHandle(std::ptr::without_provenance(address))
    }
}

/// The GPU with this number, as callers count them.
pub fn gpu_by_index(index: c_uint) -> Result<NvmlGpu, NvmlError> {
    NvmlGpu::of(library()?, index as usize).ok_or(NvmlError::InvalidArgument)?.after_fault()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_handles_of_the_library_have_an_index() {
        assert_eq!(DeviceHandle::of(0).index(), Some(0));
        assert_eq!(DeviceHandle::of(15).index(), Some(15));
        let end = DeviceHandle::of(15).0.addr() + 1;
        for address in [0, 1, 0xdead_beef, usize::MAX, end, DeviceHandle::of(0).0.addr() - 1] {
            assert_eq!(DeviceHandle::garbage(address).index(), None);
        }
    }
}
