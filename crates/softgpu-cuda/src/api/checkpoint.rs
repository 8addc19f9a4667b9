//! Takes another process off its GPUs and puts it back.

use super::pointers::CallerOut;
use super::{exports, write_out};
use crate::result::{CuResult, Outcome};
use crate::runtime::Runtime;
use std::ffi::{c_int, c_void};
use std::time::Duration;
use sublet_softgpu::checkpoint::CheckpointError;

fn outcome_of<T>(done: Result<T, CheckpointError>) -> Outcome<T> {
    done.map_err(|refused| match refused {
        CheckpointError::OperatingSystem => CuResult::OPERATING_SYSTEM,
        CheckpointError::IllegalState => CuResult::ILLEGAL_STATE,
        CheckpointError::NotReady => CuResult::NOT_READY,
        CheckpointError::NotSupported => CuResult::NOT_SUPPORTED,
        CheckpointError::OutOfMemory => CuResult::OUT_OF_MEMORY,
        CheckpointError::NotInitialised => CuResult::NOT_INITIALIZED,
    })
}

fn pid(pid: c_int) -> Outcome<u32> {
    u32::try_from(pid).map_err(|_| CuResult::INVALID_VALUE)
}

exports! {
    "cuCheckpointProcessGetState" 12080 fn cuCheckpointProcessGetState(process: c_int, state: CallerOut<c_int>) {
        write_out(state, outcome_of(Runtime::get()?.client.state().checkpoint_state(pid(process)?))? as c_int)
    }
    "cuCheckpointProcessGetRestoreThreadId" 12080 fn cuCheckpointProcessGetRestoreThreadId(
        process: c_int,
        thread: CallerOut<c_int>,
    ) {
        write_out(thread, outcome_of(Runtime::get()?.client.state().checkpoint_thread(pid(process)?))? as c_int)
    }
    "cuCheckpointProcessLock" 12080 fn cuCheckpointProcessLock(process: c_int, arguments: CallerOut<u32>) {
        // SAFETY: the first of the arguments is a time in milliseconds; a null pointer means no time.
        let timeout_ms = if arguments.is_null() { 0 } else { arguments.read()? };
        // As with the real driver, no time means for ever.
        let timeout = (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms.into()));
        outcome_of(Runtime::get()?.client.state().checkpoint_lock(pid(process)?, timeout))
    }
    "cuCheckpointProcessCheckpoint" 12080 fn cuCheckpointProcessCheckpoint(process: c_int, _arguments: *mut c_void) {
        outcome_of(Runtime::get()?.client.state().checkpoint_save(pid(process)?))
    }
    "cuCheckpointProcessRestore" 12080 fn cuCheckpointProcessRestore(process: c_int, _arguments: *mut c_void) {
        outcome_of(Runtime::get()?.client.state().checkpoint_restore(pid(process)?))
    }
    "cuCheckpointProcessUnlock" 12080 fn cuCheckpointProcessUnlock(process: c_int, _arguments: *mut c_void) {
        outcome_of(Runtime::get()?.client.state().checkpoint_unlock(pid(process)?))
    }
}
