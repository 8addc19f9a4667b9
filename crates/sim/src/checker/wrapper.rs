//! Rule 8 for leases without their wrapper: nothing runs their hook any more, and they stay where they are.

use super::books::CheckerBooks;
use super::{Verdict, must};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::method::Method;

impl CheckerBooks {
    /// True if the wrapper of a lease with a hook is not among its processes; it then has no mover by its hook.
    pub fn is_unwrapped(&mut self, lease: LeaseId, processes: &[ProcKey]) -> bool {
        let book = self.leases.get(&lease).filter(|book| book.request.has_hook && book.held().is_some());
        let unwrapped = book.and_then(|book| book.root()).is_some_and(|root| !processes.contains(&root));
        if unwrapped {
            self.movers.remove(&(lease, Method::Hook));
        }
        unwrapped
    }

    /// Checks that a lease without its wrapper is not moving by its hook.
    pub fn check_unwrapped(&self, lease: LeaseId) -> Verdict {
        let moves = self.moving_since(lease).is_some() && self.method_of(lease) == Some(Method::Hook);
        must(8, !moves, || format!("the wrapper of {lease} exited, and it waits for its hook"))
    }
}
