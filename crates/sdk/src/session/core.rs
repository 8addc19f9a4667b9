//! What a session and its handles share: the lease, the context, and the order in which they end.
//!
//! ```text
//!   New ── first call ──► Open { context } ── the session is dropped ──► Closed
//! ```
//! The context is the session's own, so that its end frees everything that was made in it: memory, modules, streams. A
//! handle that is dropped later finds the session closed and does nothing. So does one that is dropped after the lease
//! ended: a call of the driver could then wait for memory that never comes back.

use super::driver::{self, DriverFunctions, DriverHandle};
use crate::error::FabricError;
use crate::lease::LeaseStatus;
use crate::lease::local::LocalLease;
use std::ffi::c_int;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLock};

/// What a session and its handles share.
pub(super) struct SessionCore {
    id: u64,
    lease: Arc<LocalLease>,
    /// Which GPU of the lease.
    gpu: usize,
    state: RwLock<SessionState>,
}

#[derive(Clone, Copy)]
enum SessionState {
    New,
    Open(OpenContext),
    Closed,
}

/// A context, and the functions to use it with.
#[derive(Clone, Copy)]
pub(super) struct OpenContext {
    pub functions: &'static DriverFunctions,
    context: DriverHandle,
}

impl SessionCore {
    /// A session on one GPU of a lease. The driver is not called yet.
    pub fn new(lease: Arc<LocalLease>, gpu: usize) -> SessionCore {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        SessionCore { id: NEXT.fetch_add(1, Relaxed), lease, gpu, state: RwLock::new(SessionState::New) }
    }

    /// The number that no other session of this process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The lease.
    pub fn lease(&self) -> &LocalLease {
        &self.lease
    }

    /// Makes calls of the driver in the session's context, if the lease allows it. A call that fails because the lease
    /// ended meanwhile returns how it ended.
    pub fn call<T>(
        &self,
        work: impl FnOnce(&'static DriverFunctions) -> Result<T, FabricError>,
    ) -> Result<T, FabricError> {
        self.lease.check()?;
        let _under_way = self.lease.begin_call()?;
        self.open()?;
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let SessionState::Open(open) = *state else {
            return Err(FabricError::LeaseNotActive(LeaseStatus::Released));
        };
        let result = open.within(work);
        drop(state);
        result.map_err(|error| {
            if matches!(error, FabricError::Driver { .. }) {
                self.lease.work.errors.fetch_add(1, Relaxed);
            }
            match self.lease.known() {
                status if status.is_over() => self.lease.ended(status),
                _ => error,
            }
        })
    }

    /// Frees what a handle names, if it still exists.
    pub fn free(&self, work: impl FnOnce(&'static DriverFunctions) -> c_int) {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        if let SessionState::Open(open) = *state
            && self.lease.known().is_held()
        {
            // What cannot be freed now is freed with the context.
            let _ = open.within(|functions| {
                work(functions);
                Ok(())
            });
        }
    }

    fn open(&self) -> Result<(), FabricError> {
        if !matches!(*self.state.read().unwrap_or_else(PoisonError::into_inner), SessionState::New) {
            return Ok(());
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been faster.
        if matches!(*state, SessionState::New) {
            let functions = driver::functions_for(&self.lease)?;
            *state = SessionState::Open(OpenContext::create(functions, &self.gpu_uuid()?)?);
        }
        Ok(())
    }

    fn gpu_uuid(&self) -> Result<String, FabricError> {
        let uuids = self.lease.latest().gpu_uuids;
        uuids.get(self.gpu).cloned().ok_or_else(|| {
            FabricError::InvalidArgument(format!(
                "the lease has {} GPUs, and none has number {}",
                uuids.len(),
                self.gpu
            ))
        })
    }

    /// Ends the session: everything that was made in it is freed.
    pub fn close(&self) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if let SessionState::Open(open) = std::mem::replace(&mut *state, SessionState::Closed) {
            // SAFETY: the context was made by this session, and no call of it is under way: each holds the lock.
            let _ = unsafe { (open.functions.cuCtxDestroy)(open.context) };
        }
    }
}

impl OpenContext {
    fn create(functions: &'static DriverFunctions, uuid: &str) -> Result<OpenContext, FabricError> {
        // SAFETY: it takes a number.
        functions.check("cuInit", unsafe { (functions.cuInit)(0) })?;
        let device = find_device(functions, uuid)?;
        let mut context = 0;
        // SAFETY: the place lives until the call returns; no parameters are given.
        let made = unsafe { (functions.cuCtxCreate)(&raw mut context, std::ptr::null_mut(), 0, 0, device) };
        functions.check("cuCtxCreate", made)?;
        let mut top = 0;
        // SAFETY: the place lives until the call returns. A new context is current; each call pushes it again.
        functions.check("cuCtxPopCurrent", unsafe { (functions.cuCtxPopCurrent)(&raw mut top) })?;
        Ok(OpenContext { functions, context })
    }

    /// Does work with the context current for this thread.
    fn within<T>(
        &self,
        work: impl FnOnce(&'static DriverFunctions) -> Result<T, FabricError>,
    ) -> Result<T, FabricError> {
        // SAFETY: the context exists: it is destroyed only by a thread that holds the lock for writing.
        self.functions.check("cuCtxPushCurrent", unsafe { (self.functions.cuCtxPushCurrent)(self.context) })?;
        let result = work(self.functions);
        let mut top = 0;
        // SAFETY: the place lives until the call returns; the context was pushed above.
        unsafe { (self.functions.cuCtxPopCurrent)(&raw mut top) };
        result
    }
}

/// The driver's number of the GPU with this UUID.
fn find_device(functions: &DriverFunctions, uuid: &str) -> Result<c_int, FabricError> {
    let mut count = 0;
    // SAFETY: the place lives until the call returns.
    functions.check("cuDeviceGetCount", unsafe { (functions.cuDeviceGetCount)(&raw mut count) })?;
    let wanted: String = uuid.split_once('-').map_or(uuid, |(_, rest)| rest).replace('-', "");
    for ordinal in 0..count {
        let (mut device, mut bytes) = (0, [0_u8; 16]);
        // SAFETY: both places live until the calls return.
        unsafe {
            functions.check("cuDeviceGet", (functions.cuDeviceGet)(&raw mut device, ordinal))?;
            functions.check("cuDeviceGetUuid", (functions.cuDeviceGetUuid)(&raw mut bytes, device))?;
        }
        let own: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        if own == wanted {
            return Ok(device);
        }
    }
    Err(FabricError::NoDriver {
        reason: format!("the driver shows {count} GPUs to this program, and {uuid} of the lease is not one of them"),
        hint: "is CUDA_VISIBLE_DEVICES set for another lease?",
    })
}
