//! How often `nvmlInit` was called, which handle is which GPU, and how a fault affects a call.
//!
//! ```text
//!   nvmlInit: the file is mapped (0 → 1 users), or one more user
//!   nvmlShutdown: one user less; with the last one the mapping goes
//! ```
//! A call in progress keeps the mapping, so that a concurrent shutdown does no harm. Handles are addresses of statics
//! of this library: any other number is no handle.

use crate::abi::Code;
use crate::meter::{Busy, Meter, Sample, Who};
use std::ffi::{c_uint, c_void};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use sublet_softgpu::layout::{self, CARDS_MAX};
use sublet_softgpu::state::{self, now_ns};
use sublet_softgpu::{NvmlFault, Process, State, StateError};

/// How often a call that hangs checks whether the fault is still there.
const HANG_LOOK: Duration = Duration::from_millis(10);

/// The mapped file, and how busy its GPUs were.
pub struct Library {
    state: State,
    meters: [Mutex<Meter>; CARDS_MAX],
}

struct Opened {
    users: u32,
    library: Option<Arc<Library>>,
}

static OPENED: RwLock<Opened> = RwLock::new(Opened { users: 0, library: None });

/// Opens the file that the environment names, unless it is open.
pub fn init() -> Result<(), Code> {
    let mut opened = OPENED.write().unwrap_or_else(PoisonError::into_inner);
    if opened.library.is_none() {
        let path = std::env::var_os(state::ENV).ok_or(Code::DriverNotLoaded)?;
        opened.library = Some(Arc::new(Library::open(Path::new(&path))?));
    }
    opened.users = opened.users.saturating_add(1);
    Ok(())
}

/// Undoes one [`init`].
pub fn shutdown() -> Result<(), Code> {
    let mut opened = OPENED.write().unwrap_or_else(PoisonError::into_inner);
    opened.users = opened.users.checked_sub(1).ok_or(Code::Uninitialized)?;
    if opened.users == 0 {
        opened.library = None;
    }
    Ok(())
}

/// The library; an error if [`init`] was not called.
pub fn library() -> Result<Arc<Library>, Code> {
    let opened = OPENED.read().unwrap_or_else(PoisonError::into_inner);
    opened.library.clone().ok_or(Code::Uninitialized)
}

/// The GPU of a handle, if it answers now.
pub fn card(handle: Handle) -> Result<Card, Code> {
    let library = library()?;
    let index = handle.index().ok_or(Code::InvalidArgument)?;
    Card::of(library, index).ok_or(Code::InvalidArgument)?.answering()
}

impl Library {
    fn open(path: &Path) -> Result<Library, Code> {
        let state = State::open(path).map_err(|error| match error {
            StateError::File { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                Code::NoPermission
            }
            _ => Code::DriverNotLoaded,
        })?;
        let library = Library { state, meters: Default::default() };
        // So that a program that asks only once gets the figure since it started.
        for number in 0..library.cards_len() {
            library.meter(number).add(library.sample(number));
        }
        Ok(library)
    }

    /// The number of GPUs.
    pub fn cards_len(&self) -> usize {
        self.state.cards().len()
    }

    fn meter(&self, number: usize) -> MutexGuard<'_, Meter> {
        self.meters[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sample(&self, number: usize) -> Sample {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (wall_us, at_ns) = (wall.as_micros() as u64, now_ns());
        let busy = |process: Process<'_>| {
            let (since, sum_ns) = (process.row.cards[number].busy_since.load(SeqCst), process.busy_ns(number));
            let open_ns = if since == 0 { 0 } else { at_ns.saturating_sub(since) };
            let start = process.row.start.load(SeqCst);
            Busy { who: Who { pid: process.pid(), start, row: process.number }, sum_ns, open_ns }
        };
        Sample { wall_us, at_ns, busy: self.state.processes_on(number).map(busy).collect() }
    }
}

/// A GPU of the open library.
pub struct Card {
    library: Arc<Library>,
    /// Its number.
    pub index: usize,
}

impl Card {
    /// The GPU with a number, whether it answers or not.
    pub fn of(library: Arc<Library>, index: usize) -> Option<Card> {
        (index < library.cards_len()).then_some(Card { library, index })
    }

    /// The first GPU for which `is` is true, whether it answers or not.
    pub fn find(is: impl Fn(&Card) -> bool) -> Result<Card, Code> {
        let library = library()?;
        let mut cards = (0..library.cards_len()).filter_map(|index| Card::of(library.clone(), index));
        cards.find(is).ok_or(Code::NotFound)
    }

    /// Applies a fault of the GPU: fails, or waits until the fault is cleared.
    pub fn answering(self) -> Result<Card, Code> {
        loop {
            match self.fault()? {
                NvmlFault::None | NvmlFault::NoBytes => return Ok(self),
                NvmlFault::Error => return Err(Code::Unknown),
                NvmlFault::Lost => return Err(Code::GpuIsLost),
                NvmlFault::Hang => std::thread::sleep(HANG_LOOK),
            }
        }
    }

    /// The fault that is ordered.
    pub fn fault(&self) -> Result<NvmlFault, Code> {
        Ok(NvmlFault::from_number(self.row()?.nvml_fault.load(SeqCst)))
    }

    /// Its row in the file, which may have been made anew with fewer GPUs.
    pub fn row(&self) -> Result<&layout::Card, Code> {
        self.library.state.cards().get(self.index).ok_or(Code::GpuIsLost)
    }

    /// The handle by which callers name it.
    pub fn handle(&self) -> Handle {
        Handle::of(self.index)
    }

    /// All its bytes.
    pub fn total(&self) -> Result<u64, Code> {
        Ok(self.row()?.total.load(SeqCst))
    }

    /// Bytes that are not free.
    pub fn used(&self) -> Result<u64, Code> {
        Ok(self.library.state.used(self.index).min(self.total()?))
    }

    /// Pid and bytes of the processes on it.
    pub fn processes(&self) -> Vec<(u32, u64)> {
        let there = self.library.state.processes_on(self.index).filter(|process| process.is_on(self.index));
        there.map(|process| (process.pid(), process.used(self.index))).collect()
    }

    /// How busy it was: see [`Meter`].
    pub fn meter(&self) -> MutexGuard<'_, Meter> {
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
pub struct Handle(*const c_void);

/// Only their addresses matter.
static HANDLES: [u8; CARDS_MAX] = [0; CARDS_MAX];

impl Handle {
    /// The handle of a GPU.
    pub fn of(index: usize) -> Handle {
        Handle((&raw const HANDLES[index]).cast())
    }

    /// The GPU's number; `None` if this is no handle.
    pub fn index(self) -> Option<usize> {
        let from = (&raw const HANDLES).addr();
        self.0.addr().checked_sub(from).filter(|index| *index < CARDS_MAX)
    }

    /// A number that is no handle.
    #[cfg(test)]
    pub fn garbage(address: usize) -> Handle {
        Handle(std::ptr::without_provenance(address))
    }
}

/// The GPU with this number, as callers count them.
pub fn card_numbered(index: c_uint) -> Result<Card, Code> {
    Card::of(library()?, index as usize).ok_or(Code::InvalidArgument)?.answering()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_one_of_ours_or_none() {
        assert_eq!(Handle::of(0).index(), Some(0));
        assert_eq!(Handle::of(15).index(), Some(15));
        let end = Handle::of(15).0.addr() + 1;
        for address in [0, 1, 0xdead_beef, usize::MAX, end, Handle::of(0).0.addr() - 1] {
            assert_eq!(Handle::garbage(address).index(), None);
        }
    }
}
