//! To which tenant a line of the log belongs, and which lines are cut last.
//!
//! A line about a lease belongs to the tenant of the lease, whichever tenant's request caused it. A line about an
//! unleased process belongs to the user of the process. What remains (starts, GPUs, rules) belongs to [`DAEMON_OWNER`].

use sublet_core::action::Action;
use sublet_core::rows::Rows;

/// The owner of the lines of operators and of the daemon itself. No tenant has this name.
pub const DAEMON_OWNER: &str = "sublet";

/// The owner of a line and its rank: lines of rank 1 are cut after all others of the same owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LineOwner {
    /// The tenant's name, or [`DAEMON_OWNER`].
    pub name: String,
    /// 1 for signals, warnings and operators' acts, 0 for everything else.
    pub rank: u8,
}

impl LineOwner {
    /// The owner of an action, by the rows before it.
    pub fn of(rows: &Rows, action: &Action) -> LineOwner {
        let name = action.line_owner(rows).unwrap_or_else(|| DAEMON_OWNER.to_owned());
        LineOwner { name, rank: u8::from(action.is_cut_last()) }
    }
}
