//! Facts about single processes of a lease that limit what the daemon may do to them.

use crate::model::ids::ProcKey;
use std::collections::BTreeMap;

/// Why the daemon may not treat a process of a lease like the others. Such a process still counts as the lease's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restriction {
    /// It runs as this user, at least in part, which is not the lease's user (`sudo`, `su`, a set-user-ID program): it
    /// gets no signal and is not parked by the driver.
    pub runs_as: Option<u32>,
    /// It is stopped (Ctrl-Z, SIGSTOP, a debugger): it cannot answer an order to park.
    pub is_stopped: bool,
}

/// The restricted processes of one lease.
pub type Restrictions = BTreeMap<ProcKey, Restriction>;
