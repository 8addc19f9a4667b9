//! Threads of the shim.

/// Starts a thread that takes no signals. Returns whether it could be started.
pub fn spawn_without_signals(name: &str, work: impl FnOnce() + Send + 'static) -> bool {
    // SAFETY: sets of signals are plain numbers, filled by the calls before they are read.
    unsafe {
        let (mut all, mut old): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
        thread.is_ok()
    }
}
