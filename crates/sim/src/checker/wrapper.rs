//! Rule 8 for holders whose wrapper died: nobody runs their hook any more, and they stay where they are.

use super::books::CheckerBooks;
use super::{Verdict, must};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::method::Method;

impl CheckerBooks {
    /// The wrapper of a lease with a hook is not among its processes: nobody speaks for it on that rung.
    pub fn is_unwrapped(&mut self, lease: LeaseId, processes: &[ProcKey]) -> bool {
        let book = self.leases.get(&lease).filter(|book| book.ask.has_hook && book.held().is_some());
        let unwrapped = book.and_then(|book| book.root()).is_some_and(|root| !processes.contains(&root));
        if unwrapped {
            self.voices.remove(&(lease, Method::Hook));
        }
        unwrapped
    }

    /// Whose wrapper is gone is not on its way by a hook.
    pub fn check_unwrapped(&self, lease: LeaseId) -> Verdict {
        let moves = self.moves_since(lease).is_some() && self.rung_of(lease) == Some(Method::Hook);
        must(8, !moves, || format!("the wrapper of {lease} is gone, and it waits for its hook"))
    }
}
