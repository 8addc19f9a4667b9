//! The leases that this process has, by their ids, and the one that is bound to it.
//!
//! `RenewalManager` is given an id and finds the lease here. A process belongs to one lease at a time: the daemon moves
//! and renews that one by what the process does. Further leases of the same process are not bound to it.

use super::local::LocalLease;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

static LEASES: Mutex<Vec<Weak<LocalLease>>> = Mutex::new(Vec::new());
static BOUND: Mutex<BoundPlace> = Mutex::new(BoundPlace::Free);

/// Which lease is bound to this process.
enum BoundPlace {
    Free,
    /// The lease of a request that waits.
    Claimed,
    Taken(Weak<LocalLease>),
}

fn bound_place() -> MutexGuard<'static, BoundPlace> {
    BOUND.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to bind the next lease to this process. It is given up if it is dropped before a lease was granted.
pub(crate) struct BindingClaim {
    is_used: bool,
}

impl BindingClaim {
    /// The claim; `None` while another lease is bound to this process, or about to be.
    pub fn take() -> Option<BindingClaim> {
        let mut place = bound_place();
        let is_free = match &*place {
            BoundPlace::Free => true,
            BoundPlace::Claimed => false,
            BoundPlace::Taken(lease) => lease.upgrade().is_none_or(|lease| lease.known().is_over()),
        };
        is_free.then(|| {
            *place = BoundPlace::Claimed;
            BindingClaim { is_used: false }
        })
    }

    /// This lease is bound now.
    pub fn use_for(mut self, lease: &Arc<LocalLease>) {
        self.is_used = true;
        *bound_place() = BoundPlace::Taken(Arc::downgrade(lease));
    }
}

impl Drop for BindingClaim {
    fn drop(&mut self) {
        if !self.is_used {
            *bound_place() = BoundPlace::Free;
        }
    }
}

fn leases() -> MutexGuard<'static, Vec<Weak<LocalLease>>> {
    LEASES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a lease.
pub(crate) fn add(lease: &Arc<LocalLease>) {
    let mut leases = leases();
    leases.retain(|known| known.strong_count() > 0);
    leases.push(Arc::downgrade(lease));
}

/// The lease with this id that was acquired last; `None` if this process has none.
pub(crate) fn find(id: &str) -> Option<Arc<LocalLease>> {
    leases().iter().rev().filter_map(Weak::upgrade).find(|lease| lease.id() == id)
}
