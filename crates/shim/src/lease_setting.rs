//! Which lease the program has, and where the daemon listens: from the environment, or named by the program.
//!
//! `sublet run` sets the environment before the program starts. A program that asks for leases itself names each one
//! with `sublet_shim_use_lease`; changing its environment would not be safe while it has threads.

use crate::message::{SOCKET_ENV, shim_socket_path};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The lease, and where the daemon listens for shims.
struct LeaseSetting {
    socket: Option<Vec<u8>>,
    lease: Option<String>,
}

/// `None` until it is first needed. The program's own thread needs it first: the shim's thread must not read an
/// environment that the program may be changing.
static SETTING: Mutex<Option<LeaseSetting>> = Mutex::new(None);
/// Grows with each change.
static VERSION: AtomicU64 = AtomicU64::new(0);

fn setting() -> MutexGuard<'static, Option<LeaseSetting>> {
    let mut setting = SETTING.lock().unwrap_or_else(PoisonError::into_inner);
    setting.get_or_insert_with(|| LeaseSetting {
        socket: std::env::var_os(SOCKET_ENV).map(OsStringExt::into_vec),
        lease: std::env::var("SUBLET_LEASE").ok(),
    });
    setting
}

/// Where the daemon listens for shims; `None`: the program has no lease.
pub fn socket() -> Option<Vec<u8>> {
    setting().as_ref().and_then(|setting| setting.socket.clone())
}

/// The program's lease.
pub fn lease() -> Option<String> {
    setting().as_ref().and_then(|setting| setting.lease.clone())
}

/// A number that grows with each change.
pub fn version() -> u64 {
    VERSION.load(SeqCst)
}

/// The program has this lease of the daemon at `socket`. Returns whether that is new.
pub fn set(socket: &Path, lease: &str) -> bool {
    let new = LeaseSetting {
        socket: Some(shim_socket_path(socket).into_os_string().into_vec()),
        lease: Some(lease.to_owned()),
    };
    let mut setting = setting();
    let is_new = setting.as_ref().is_none_or(|old| old.socket != new.socket || old.lease != new.lease);
    if is_new {
        *setting = Some(new);
        VERSION.fetch_add(1, SeqCst);
    }
    is_new
}
