//! Streams, events, and functions of the host: what is done after what.

use super::{Address, DriverHandle, Result, call, functions};
use std::ffi::c_void;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: i32 = 600;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
const OF_THIS_THREAD: i32 = 1;

/// Work that is done in the order it was given.
#[derive(Debug)]
pub struct CudaStream {
    handle: DriverHandle,
}

impl CudaStream {
    /// A non-blocking stream: it does not wait for the default stream.
    pub fn new() -> Result<CudaStream> {
        CudaStream::with_priority(true, 0)
    }

    /// A stream that takes turns with the default one, as the oldest ones do.
    pub fn blocking() -> Result<CudaStream> {
        let mut handle = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuStreamCreate(&raw mut handle, 0)) }?;
        Ok(CudaStream { handle })
    }

    /// A stream with a priority: less is sooner.
    pub fn with_priority(is_independent: bool, priority: i32) -> Result<CudaStream> {
        let mut handle = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuStreamCreateWithPriority(&raw mut handle, is_independent.into(), priority)) }?;
        Ok(CudaStream { handle })
    }

    /// The priorities there are: the usual one, and the best.
    pub fn priorities() -> Result<(i32, i32)> {
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both places live until the call returns.
        unsafe { call!(cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest)) }?;
        Ok((least, greatest))
    }

    /// The driver's name of it.
    pub fn handle(&self) -> DriverHandle {
        self.handle
    }

    /// Its priority.
    pub fn priority(&self) -> Result<i32> {
        let mut priority = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuStreamGetPriority(self.handle, &raw mut priority)) }?;
        Ok(priority)
    }

    /// True if the stream is non-blocking: it does not wait for the default stream.
    pub fn is_independent(&self) -> Result<bool> {
        let mut flags = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuStreamGetFlags(self.handle, &raw mut flags)) }?;
        Ok(flags & 1 != 0)
    }

    /// The context it works in.
    pub fn context(&self) -> Result<DriverHandle> {
        let mut handle = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuStreamGetCtx(self.handle, &raw mut handle)) }?;
        Ok(handle)
    }

    /// Waits until everything it was given is done.
    pub fn synchronise(&self) -> Result<()> {
        // SAFETY: the stream is there as long as `self` is.
        unsafe { call!(cuStreamSynchronize(self.handle)) }
    }

    /// Whether everything it was given is done.
    pub fn is_done(&self) -> Result<bool> {
        // SAFETY: the stream is there as long as `self` is.
        match unsafe { call!(cuStreamQuery(self.handle)) } {
            Ok(()) => Ok(true),
            Err(error) if error.code == NOT_READY => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What comes later waits for what an event stands for.
    pub fn wait_for(&self, event: &CudaEvent) -> Result<()> {
        // SAFETY: both are there as long as they are borrowed.
        unsafe { call!(cuStreamWaitEvent(self.handle, event.handle, 0)) }
    }

    /// Runs a function of the host in its turn. It must not use the driver.
    pub fn call(&self, function: impl FnOnce() + Send + 'static) -> Result<()> {
        let boxed: Box<Box<dyn FnOnce() + Send>> = Box::new(Box::new(function));
        let data = Box::into_raw(boxed);
        // SAFETY: the box goes to the function, which takes it once.
        let given = unsafe { call!(cuLaunchHostFunc(self.handle, Some(call_once), data.cast())) };
        if given.is_err() {
            // SAFETY: the driver did not take it, so it is still ours.
            drop(unsafe { Box::from_raw(data) });
        }
        given
    }

    /// Adds one to a counter in its turn; as a part of a graph, each time that runs.
    pub fn count(&self, counter: &'static AtomicU64) -> Result<()> {
        // SAFETY: the counter stays for ever.
        unsafe { call!(cuLaunchHostFunc(self.handle, Some(add_one), std::ptr::from_ref(counter).cast_mut().cast())) }
    }

    /// Writes a number to memory of a GPU in its turn.
    pub fn write_value(&self, at: Address, value: u32) -> Result<()> {
        // SAFETY: the driver refuses what is no memory of a GPU.
        unsafe { call!(cuStreamWriteValue32(self.handle, at, value, 0)) }
    }

    /// What comes later waits until memory of a GPU has just that number.
    pub fn wait_value(&self, at: Address, value: u32) -> Result<()> {
        // SAFETY: the driver refuses what is no memory of a GPU.
        unsafe { call!(cuStreamWaitValue32(self.handle, at, value, 1)) }
    }

    /// What this stream is given from now on is not done, but goes into a graph.
    pub fn begin_capture(&self) -> Result<()> {
        // SAFETY: the stream is there as long as `self` is.
        unsafe { call!(cuStreamBeginCapture(self.handle, OF_THIS_THREAD)) }
    }

    /// Whether what it is given goes into a graph.
    pub fn is_capturing(&self) -> Result<bool> {
        let mut status = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuStreamIsCapturing(self.handle, &raw mut status)) }?;
        Ok(status == 1)
    }

    /// The driver's name of the graph that was captured.
    pub(crate) fn end_capture(&self) -> Result<DriverHandle> {
        let mut graph = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuStreamEndCapture(self.handle, &raw mut graph)) }?;
        Ok(graph)
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        // SAFETY: it was made here, and is given back once; what is under way is done nevertheless.
        let _ = unsafe { call!(cuStreamDestroy(self.handle)) };
    }
}

/// Waits for the default stream: afterwards what was copied or filled there is seen by all others.
pub fn synchronise_default() -> Result<()> {
    // SAFETY: the default stream is always there.
    unsafe { call!(cuStreamSynchronize(0)) }
}

unsafe extern "C" fn call_once(data: *mut c_void) {
    // SAFETY: `CudaStream::call` gave this box to be taken once.
    let function = unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) };
    function();
}

/// A function for the driver that adds one to an `AtomicU64`.
pub(crate) unsafe extern "C" fn add_one(data: *mut c_void) {
    // SAFETY: callers pass this function with a counter that lives for ever.
    unsafe { &*data.cast::<AtomicU64>() }.fetch_add(1, SeqCst);
}

/// A place in a stream's order, to be waited for.
#[derive(Debug)]
pub struct CudaEvent {
    handle: DriverHandle,
}

impl CudaEvent {
    /// One that tells times.
    pub fn new() -> Result<CudaEvent> {
        CudaEvent::with_flags(0)
    }

    /// One that does not, and costs less.
    pub fn timeless() -> Result<CudaEvent> {
        CudaEvent::with_flags(2)
    }

    fn with_flags(flags: u32) -> Result<CudaEvent> {
        let mut handle = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuEventCreate(&raw mut handle, flags)) }?;
        Ok(CudaEvent { handle })
    }

    /// It stands for everything that a stream was given so far; none: the default stream.
    pub fn record(&self, stream: Option<&CudaStream>) -> Result<()> {
        // SAFETY: both are there as long as they are borrowed.
        unsafe { call!(cuEventRecord(self.handle, stream.map_or(0, CudaStream::handle))) }
    }

    /// Waits until all of that is done.
    pub fn synchronise(&self) -> Result<()> {
        // SAFETY: the event is there as long as `self` is.
        unsafe { call!(cuEventSynchronize(self.handle)) }
    }

    /// Whether all of that is done.
    pub fn is_done(&self) -> Result<bool> {
        // SAFETY: the event is there as long as `self` is.
        let code = unsafe { (functions().cuEventQuery)(self.handle) };
        if code == NOT_READY { Ok(false) } else { super::check("cuEventQuery", code).map(|()| true) }
    }

    /// Milliseconds from another event to this one.
    pub fn ms_since(&self, begin: &CudaEvent) -> Result<f32> {
        let mut ms = 0.0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuEventElapsedTime(&raw mut ms, begin.handle, self.handle)) }?;
        Ok(ms)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        // SAFETY: it was made here, and is given back once.
        let _ = unsafe { call!(cuEventDestroy(self.handle)) };
    }
}
