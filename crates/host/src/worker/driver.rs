//! Moves other processes off their GPUs and back, through the driver's own calls.
//!
//! The driver is initialised once, because that takes seconds. One request at a time; every call may hang, and the
//! daemon kills this worker at its deadline. Lines as in `driver/protocol.rs`.
//!
//! The daemon may also end: then stdin closes. A process that was locked and not taken further would wait for ever,
//! so it is unlocked before the worker ends. For the same reason the worker ignores the signals that a service
//! manager sends to all processes at once, and does not die with its parent.

use super::cuda::{Cuda, CudaError, check};
use super::{nvml, write_json_line};
use crate::driver::pinned_process::PinnedProcess;
use crate::driver::protocol::{DriverAnswer, DriverFacts, DriverFailure, DriverProcessState, DriverRequest, RoomNeed};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::io::{self, BufRead};
use std::process::ExitCode;
use std::time::Duration;
use sublet_core::ids::ProcKey;

use crate::wake::timespec;

/// Placeholders are allocated in pieces: the driver refuses a piece at once, and memory need not be contiguous.
const PIECE_BYTES: u64 = 1 << 30;
/// The granularity of GPU memory, if the driver does not report it.
const GRANULE_BYTES: u64 = 2 << 20;
/// The maximum timeout of a lock, whatever the request says.
const LOCK_MS_MAX: u32 = 60_000;
/// How often a stopped process that has to be unlocked is checked.
const STOPPED_CHECK_EVERY: Duration = Duration::from_millis(100);

/// `CUDA_ERROR_INVALID_VALUE`, for requests that must not even reach the driver.
const INVALID_VALUE: c_int = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: c_int = 2;
/// `CUDA_ERROR_NOT_INITIALIZED` and `CUDA_ERROR_INVALID_CONTEXT`: the driver needs a context first.
const CONTEXT_NEEDED: [c_int; 2] = [3, 201];

pub(super) fn run() -> ExitCode {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: ignoring a signal takes numbers only.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let mut driver = DriverWorker { calls: None, locked: BTreeMap::new() };
    let code = driver.serve();
    driver.unlock_all();
    code
}

/// The driver, and the locks taken through it.
struct DriverWorker {
    /// Opened at the first request.
    calls: Option<Result<DriverCalls, String>>,
    /// Processes that this worker locked and that were neither taken further nor unlocked.
    locked: BTreeMap<ProcKey, PinnedProcess>,
}

impl DriverWorker {
    /// Answers each request until stdin closes.
    fn serve(&mut self) -> ExitCode {
        let mut out = io::stdout().lock();
        for line in io::stdin().lock().lines() {
            let Ok(request) = line.map_err(drop).and_then(|line| serde_json::from_str(&line).map_err(drop)) else {
                return super::usage();
            };
            // Without a daemon the answer is not needed any more.
            if is_hung_up() || write_json_line(&mut out, &self.answer(request)).is_err() {
                break;
            }
        }
        ExitCode::SUCCESS
    }

    fn answer(&mut self, request: DriverRequest) -> DriverAnswer {
        let opened = self.calls.get_or_insert_with(|| DriverCalls::open().map_err(|error| with_loader_cause(&error)));
        let calls = match opened {
            Ok(calls) => calls,
            Err(why) => return DriverAnswer::Unusable(why.clone()),
        };
        let (process, step) = match request {
            DriverRequest::Facts => return calls.facts(),
            DriverRequest::Weigh { process } => return read_gpu_bytes(process),
            DriverRequest::Prove { needs } => return calls.prove_room(&needs),
            DriverRequest::State { process } => (process, CheckpointCall::State),
            // Zero waits for ever.
            DriverRequest::Lock { timeout_ms: 0, .. } => return calls.failure_answer(INVALID_VALUE),
            DriverRequest::Lock { process, timeout_ms } => (process, CheckpointCall::Lock(timeout_ms.min(LOCK_MS_MAX))),
            DriverRequest::Checkpoint { process } => (process, CheckpointCall::Checkpoint),
            DriverRequest::Restore { process } => (process, CheckpointCall::Restore),
            DriverRequest::Unlock { process } => (process, CheckpointCall::Unlock),
        };
        let Some(target) = PinnedProcess::open(process) else {
            self.locked.remove(&process);
            return DriverAnswer::Gone;
        };
        if target.is_stopped() {
            return DriverAnswer::Stopped;
        }
        let answer = calls.step(process.pid, step);
        if !target.is_alive() {
            // The driver's answer may be about another process that has the pid now.
            self.locked.remove(&process);
            return DriverAnswer::Gone;
        }
        match (step, &answer) {
            (CheckpointCall::Lock(_) | CheckpointCall::Restore, DriverAnswer::Done) => {
                drop(self.locked.insert(process, target))
            }
            (CheckpointCall::Checkpoint | CheckpointCall::Unlock, DriverAnswer::Done) => {
                drop(self.locked.remove(&process))
            }
            _ => {}
        }
        answer
    }

    /// Unlocks every process that would wait for ever. A stopped one is unlocked when it continues: before that the
    /// call would only hang.
    fn unlock_all(&mut self) {
        let Some(Ok(calls)) = &self.calls else { return };
        while !self.locked.is_empty() {
            self.locked.retain(|_, target| {
                let waits = target.is_alive() && target.is_stopped();
                if !waits && target.is_alive() {
                    calls.step(target.key().pid, CheckpointCall::Unlock);
                }
                waits
            });
            if !self.locked.is_empty() {
                std::thread::sleep(STOPPED_CHECK_EVERY);
            }
        }
    }
}

/// An error with its cause, which the loader keeps apart from its own text.
fn with_loader_cause(error: &CudaError) -> String {
    match error {
        CudaError::Library(loader) => {
            std::error::Error::source(loader).map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
        }
        CudaError::Call { .. } | CudaError::NoSuchGpu(_) => error.to_string(),
    }
}

/// True if the other end of stdin is closed.
fn is_hung_up() -> bool {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    poll(&mut fds, Some(&timespec(Duration::ZERO))).is_ok_and(|_| fds[0].revents().contains(PollFlags::HUP))
}

fn read_gpu_bytes(process: ProcKey) -> DriverAnswer {
    let Some(target) = PinnedProcess::open(process) else { return DriverAnswer::Gone };
    let bytes = nvml::bytes_by_gpu(process.pid);
    if target.is_alive() { DriverAnswer::Weight(bytes) } else { DriverAnswer::Gone }
}

/// One call about one process.
#[derive(Clone, Copy)]
enum CheckpointCall {
    State,
    Lock(u32),
    Checkpoint,
    Restore,
    Unlock,
}

/// `CUcheckpointLockArgs`.
#[repr(C)]
struct LockArguments {
    timeout_ms: c_uint,
    reserved0: c_uint,
    reserved1: [u64; 7],
}

/// `CUmemAllocationProp`, for pinned memory of a GPU.
#[repr(C)]
struct PinnedMemoryProperties {
    kind: c_int,
    handle_types: c_int,
    location_kind: c_int,
    location: c_int,
    windows: *mut c_void,
    flags: u64,
}

impl PinnedMemoryProperties {
    const fn of(device: c_int) -> PinnedMemoryProperties {
        PinnedMemoryProperties {
            kind: 1, // CU_MEM_ALLOCATION_TYPE_PINNED
            handle_types: 0,
            location_kind: 1, // CU_MEM_LOCATION_TYPE_DEVICE
            location: device,
            windows: std::ptr::null_mut(),
            flags: 0,
        }
    }
}

type GetState = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
type Lock = unsafe extern "C" fn(c_int, *mut LockArguments) -> c_int;
type Move = unsafe extern "C" fn(c_int, *mut c_void) -> c_int;
type DriverGetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
type MemCreate = unsafe extern "C" fn(*mut c_ulonglong, usize, *const PinnedMemoryProperties, c_ulonglong) -> c_int;
type MemRelease = unsafe extern "C" fn(c_ulonglong) -> c_int;
type Granularity = unsafe extern "C" fn(*mut usize, *const PinnedMemoryProperties, c_int) -> c_int;
type CtxSetCurrent = unsafe extern "C" fn(*mut c_void) -> c_int;
type PrimaryCtxRelease = unsafe extern "C" fn(c_int) -> c_int;

/// The calls that older drivers lack.
struct CheckpointCalls {
    state: GetState,
    lock: Lock,
    checkpoint: Move,
    restore: Move,
    unlock: Move,
}

struct DriverCalls {
    checkpoint: Option<CheckpointCalls>,
    driver_get_version: DriverGetVersion,
    mem_create: MemCreate,
    mem_release: MemRelease,
    granularity: Granularity,
    ctx_set_current: CtxSetCurrent,
    primary_ctx_release: PrimaryCtxRelease,
    cuda: Cuda,
}

impl DriverCalls {
    fn open() -> Result<DriverCalls, CudaError> {
        let cuda = Cuda::open()?;
        let library = cuda.library();
        // SAFETY: the types are those of cuda.h, and the library is kept as long as the pointers.
        unsafe {
            let checkpoint = || -> Result<CheckpointCalls, libloading::Error> {
                Ok(CheckpointCalls {
                    state: *library.get(b"cuCheckpointProcessGetState\0")?,
                    lock: *library.get(b"cuCheckpointProcessLock\0")?,
                    checkpoint: *library.get(b"cuCheckpointProcessCheckpoint\0")?,
                    restore: *library.get(b"cuCheckpointProcessRestore\0")?,
                    unlock: *library.get(b"cuCheckpointProcessUnlock\0")?,
                })
            };
            Ok(DriverCalls {
                checkpoint: checkpoint().ok(),
                driver_get_version: *library.get(b"cuDriverGetVersion\0")?,
                mem_create: *library.get(b"cuMemCreate\0")?,
                mem_release: *library.get(b"cuMemRelease\0")?,
                granularity: *library.get(b"cuMemGetAllocationGranularity\0")?,
                ctx_set_current: *library.get(b"cuCtxSetCurrent\0")?,
                primary_ctx_release: *library.get(b"cuDevicePrimaryCtxRelease_v2\0")?,
                cuda,
            })
        }
    }

    fn facts(&self) -> DriverAnswer {
        let mut cuda = 0;
        // SAFETY: `cuda` is written once, during the call.
        match unsafe { (self.driver_get_version)(&mut cuda) } {
            0 => {
                let driver = nvml::driver_version();
                DriverAnswer::Facts(DriverFacts { cuda, driver, calls: self.checkpoint.is_some() })
            }
            code => self.failure_answer(code),
        }
    }

    fn failure_answer(&self, code: c_int) -> DriverAnswer {
        DriverAnswer::Failed(DriverFailure { code, name: self.cuda.error_name(code) })
    }

    fn step(&self, pid: u32, step: CheckpointCall) -> DriverAnswer {
        let Some(calls) = &self.checkpoint else {
            return DriverAnswer::Unusable("the driver cannot take processes off their GPUs".to_owned());
        };
        // A pid fits: the kernel's own type for it is signed.
        let pid = pid as c_int;
        let nothing = std::ptr::null_mut();
        let mut state = -1;
        // SAFETY: the calls take a number and a pointer that is null, or to what lives until they return.
        let code = unsafe {
            match step {
                CheckpointCall::State => (calls.state)(pid, &mut state),
                CheckpointCall::Lock(timeout_ms) => {
                    let mut arguments = LockArguments { timeout_ms, reserved0: 0, reserved1: [0; 7] };
                    (calls.lock)(pid, &mut arguments)
                }
                CheckpointCall::Checkpoint => (calls.checkpoint)(pid, nothing),
                CheckpointCall::Restore => (calls.restore)(pid, nothing),
                CheckpointCall::Unlock => (calls.unlock)(pid, nothing),
            }
        };
        match (code, step, state) {
            (0, CheckpointCall::State, 0) => DriverAnswer::State(DriverProcessState::Running),
            (0, CheckpointCall::State, 1) => DriverAnswer::State(DriverProcessState::Locked),
            (0, CheckpointCall::State, 2) => DriverAnswer::State(DriverProcessState::Checkpointed),
            (0, CheckpointCall::State, _) => DriverAnswer::State(DriverProcessState::Failed),
            (0, ..) => DriverAnswer::Done,
            (code, ..) => self.failure_answer(code),
        }
    }

    /// Allocates the needed memory on all these GPUs at once, and releases it.
    fn prove_room(&self, needs: &[RoomNeed]) -> DriverAnswer {
        let mut placeholder = PlaceholderMemory { calls: self, pieces: Vec::new(), contexts: Vec::new() };
        for need in needs {
            let allocated = self.cuda.device(&need.uuid).and_then(|device| placeholder.allocate(device, need));
            match allocated {
                Ok(()) => {}
                Err(error) if error.code() == Some(OUT_OF_MEMORY) => {
                    return DriverAnswer::Room { lacking: Some(need.uuid.clone()) };
                }
                Err(error) => match error.code() {
                    Some(code) => return self.failure_answer(code),
                    None => return DriverAnswer::Unusable(error.to_string()),
                },
            }
        }
        DriverAnswer::Room { lacking: None }
    }
}

/// Memory allocated as a placeholder. Released on drop.
struct PlaceholderMemory<'a> {
    calls: &'a DriverCalls,
    pieces: Vec<c_ulonglong>,
    contexts: Vec<c_int>,
}

impl PlaceholderMemory<'_> {
    fn allocate(&mut self, device: c_int, need: &RoomNeed) -> Result<(), CudaError> {
        let result = self.allocate_bytes(device, need.bytes);
        let needs_context = |error: &CudaError| error.code().is_some_and(|code| CONTEXT_NEEDED.contains(&code));
        match result {
            Err(error) if needs_context(&error) => {}
            other => return other,
        }
        let context = self.calls.cuda.retain_context(device)?;
        self.contexts.push(device);
        // SAFETY: the context was just made, and stays until it is released below.
        check("cuCtxSetCurrent", unsafe { (self.calls.ctx_set_current)(context) })?;
        // The context itself counts as part of it.
        let own = nvml::bytes_of(&need.uuid, std::process::id()).map_or(0, |bytes| bytes.0);
        self.allocate_bytes(device, need.bytes.saturating_sub(own))
    }

    fn allocate_bytes(&mut self, device: c_int, bytes: u64) -> Result<(), CudaError> {
        let properties = PinnedMemoryProperties::of(device);
        let mut granule = 0;
        // SAFETY: `granule` is written once, during the call; 0 asks for the least there is.
        let is_reported = unsafe { (self.calls.granularity)(&mut granule, &properties, 0) } == 0 && granule > 0;
        let granule = if is_reported { granule as u64 } else { GRANULE_BYTES };
        let mut left = bytes.div_ceil(granule).saturating_mul(granule);
        while left > 0 {
            let piece = left.min(PIECE_BYTES);
            let mut handle = 0;
            // SAFETY: `handle` is written once, during the call; the properties live until it returns.
            check("cuMemCreate", unsafe { (self.calls.mem_create)(&mut handle, piece as usize, &properties, 0) })?;
            self.pieces.push(handle);
            left -= piece;
        }
        Ok(())
    }
}

impl Drop for PlaceholderMemory<'_> {
    fn drop(&mut self) {
        for handle in self.pieces.drain(..) {
            // SAFETY: it was made here, and is released once.
            unsafe { (self.calls.mem_release)(handle) };
        }
        for device in self.contexts.drain(..) {
            // SAFETY: no context is a context that may be current; the GPU's was retained once.
            unsafe {
                (self.calls.ctx_set_current)(std::ptr::null_mut());
                (self.calls.primary_ctx_release)(device);
            }
        }
    }
}
