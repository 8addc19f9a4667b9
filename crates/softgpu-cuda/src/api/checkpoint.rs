//! Takes another process off its GPUs and puts it back.

use super::{exports, put};
use crate::result::{CuResult, Outcome};
use crate::runtime::Runtime;
use std::ffi::{c_int, c_void};
use std::time::Duration;
use sublet_softgpu::checkpoint::Refused;

fn told<T>(done: Result<T, Refused>) -> Outcome<T> {
    done.map_err(|refused| match refused {
        Refused::OperatingSystem => CuResult::OPERATING_SYSTEM,
        Refused::IllegalState => CuResult::ILLEGAL_STATE,
        Refused::NotReady => CuResult::NOT_READY,
        Refused::NotSupported => CuResult::NOT_SUPPORTED,
        Refused::OutOfMemory => CuResult::OUT_OF_MEMORY,
        Refused::NotInitialised => CuResult::NOT_INITIALIZED,
    })
}

fn pid(pid: c_int) -> Outcome<u32> {
    u32::try_from(pid).map_err(|_| CuResult::INVALID_VALUE)
}

exports! {
    "cuCheckpointProcessGetState" 12080 fn cuCheckpointProcessGetState(process: c_int, state: *mut c_int) {
        put(state, told(Runtime::get()?.seat.state().checkpoint_state(pid(process)?))? as c_int)
    }
    "cuCheckpointProcessGetRestoreThreadId" 12080 fn cuCheckpointProcessGetRestoreThreadId(
        process: c_int,
        thread: *mut c_int,
    ) {
        put(thread, told(Runtime::get()?.seat.state().checkpoint_thread(pid(process)?))? as c_int)
    }
    "cuCheckpointProcessLock" 12080 fn cuCheckpointProcessLock(process: c_int, arguments: *mut u32) {
        // SAFETY: the first of the arguments is a time in milliseconds; a null pointer means no time.
        let timeout_ms = if arguments.is_null() { 0 } else { unsafe { arguments.read() } };
        // As with the real driver, no time means for ever.
        let timeout = (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms.into()));
        told(Runtime::get()?.seat.state().checkpoint_lock(pid(process)?, timeout))
    }
    "cuCheckpointProcessCheckpoint" 12080 fn cuCheckpointProcessCheckpoint(process: c_int, _arguments: *mut c_void) {
        told(Runtime::get()?.seat.state().checkpoint_save(pid(process)?))
    }
    "cuCheckpointProcessRestore" 12080 fn cuCheckpointProcessRestore(process: c_int, _arguments: *mut c_void) {
        told(Runtime::get()?.seat.state().checkpoint_restore(pid(process)?))
    }
    "cuCheckpointProcessUnlock" 12080 fn cuCheckpointProcessUnlock(process: c_int, _arguments: *mut c_void) {
        told(Runtime::get()?.seat.state().checkpoint_unlock(pid(process)?))
    }
}
