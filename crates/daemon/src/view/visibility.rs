//! What a caller may see of other users: decided here and in core's `find`, nowhere else.

use super::View;
use crate::unleased;
use crate::user_directory::tenant_of;
use sublet_core::event::Caller;
use sublet_core::ids::{GpuId, LeaseId, TenantId};
use sublet_core::reading::Reading;
use sublet_core::rows::Lease;

/// Which users a local user sees on a GPU and in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// All.
    All,
    /// Itself.
    Own,
}

/// What is shown instead of a name where each user sees only itself.
pub const ANOTHER: &str = "another user";

impl View<'_> {
    /// True if a caller sees other users: an operator, and a local user where local users do. Nothing of one user is
    /// shown to another beyond the host.
    pub(crate) fn sees_all(&self, by: &Caller) -> bool {
        by.operator || (self.visibility == Visibility::All && by.token.is_none())
    }

    /// True if a caller may see the id and the details of this tenant's leases.
    pub(crate) fn is_own(&self, by: &Caller, tenant: TenantId) -> bool {
        by.operator || self.state.tenant_name(tenant) == by.tenant
    }

    pub(crate) fn id_for(&self, by: &Caller, lease: &Lease) -> Option<String> {
        self.is_own(by, lease.tenant).then(|| lease.id.to_string())
    }

    /// A lease by its id for a caller that may see that, or else by its user.
    pub(super) fn name_for(&self, by: &Caller, lease: LeaseId) -> String {
        let row = self.state.lease(lease);
        row.map_or_else(String::new, |row| self.id_for(by, row).unwrap_or_else(|| self.user_for(by, row)))
    }

    pub(super) fn user_for(&self, by: &Caller, lease: &Lease) -> String {
        if self.sees_all(by) || self.is_own(by, lease.tenant) { self.user(lease.tenant) } else { ANOTHER.to_owned() }
    }

    /// A process on a GPU without a lease there, with its user as far as this caller may see it.
    pub(super) fn unleased_process_on(&self, by: &Caller, gpu: GpuId) -> Option<String> {
        let room = self.state.room(gpu);
        let Reading::Used(used) = &room.reading().reading else { return None };
        let is_ours = |lease: LeaseId| room.leases().contains_key(&lease);
        let mut others = used.processes.iter().filter(|it| !self.state.owner(&it.process).is_some_and(is_ours));
        let process = others.next().filter(|_| by.token.is_none())?.process;
        let mut known = self.state.rows().unleased.values().filter(|row| row.audit.process == process);
        let user = known.find(|row| unleased::may_see(by, row)).map(|row| self.names.of(&tenant_of(row.audit.uid)));
        let of = user.map_or_else(String::new, |user| format!(" of {user}"));
        Some(format!("process {}{of}", process.pid))
    }
}
