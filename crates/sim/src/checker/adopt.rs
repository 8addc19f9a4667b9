//! Rule 1 for leases of adopted processes: each covers what its process was seen to have, and more only where there is
//! room for it. No waiter is passed by an adoption: the process has its bytes already.

use super::books::{CheckerBooks, HeldBook, LeaseBook, SeenReading};
use super::calls::EventCause;
use super::enforce::{FoundProcess, WatchedStep};
use super::{Verdict, must};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::request::{Exclusivity, LeaseRequest, Term, Tier, Vram};
use sublet_core::units::{Bytes, Span, Time};

/// After this time an unleased process has most of what it takes.
pub const SETTLES_AFTER: Span = Span::secs(5);

/// Measured sizes are rounded up to a multiple of this.
const SIZE_UNIT: u64 = 1024 * 1024;

fn rounded(bytes: Bytes) -> Bytes {
    Bytes(bytes.0.max(1).next_multiple_of(SIZE_UNIT))
}

impl CheckerBooks {
    /// The GPUs on which an unleased process could have a lease now and the bytes of each, or why it could not.
    pub(super) fn adoption_room(
        &self,
        now: Time,
        found: &FoundProcess,
        vram_wanted: Option<Bytes>,
    ) -> Result<(Vec<usize>, Bytes), &'static str> {
        if self.other_lease(found).is_some() {
            return Err("it has a lease, for other GPUs");
        }
        let on = self.gpus_of_unleased(now, found)?;
        if on.iter().any(|number| !self.gpus[*number].asides.is_empty()) {
            return Err("its GPU steps aside");
        }
        let process = found.audit.process;
        let sizes = on.iter().map(|number| self.process_bytes(*number, process)).collect::<Option<Vec<Bytes>>>();
        let Some(sizes) = sizes.filter(|sizes| !sizes.is_empty()) else { return Err("its size is not known") };
        let most = rounded(sizes.iter().copied().max().unwrap_or_default());
        let vram = vram_wanted.filter(|vram_wanted| *vram_wanted > most).unwrap_or(most);
        for (number, size) in on.iter().zip(&sizes) {
            if vram.less(rounded(*size)) > self.promisable(&self.gpus[*number], now) {
                return Err("there is no room for what it wants beyond what it has");
            }
        }
        if process.pid < 2 {
            return Err("it belongs to the system");
        }
        let name = format!("uid:{}", found.audit.uid);
        let tenant = self.tenants.iter().position(|tenant| tenant.name == name);
        if !self.may_hold(&name, tenant, on.len(), vram) {
            return Err("its owner's caps do not allow it");
        }
        if on.iter().any(|number| self.is_excluded_there(tenant, *number)) {
            return Err("another lease is exclusive on its GPU");
        }
        if self.is_stopped() { Err("the disk is full") } else { Ok((on, vram)) }
    }

    fn process_bytes(&self, number: usize, process: ProcKey) -> Option<Bytes> {
        let gpu = &self.gpus[number];
        let size = gpu.sizes.iter().find(|(of, _)| *of == process).map(|(_, bytes)| *bytes);
        size.filter(|_| matches!(gpu.reading, SeenReading::Free(_))).flatten()
    }

    fn may_hold(&self, name: &str, tenant: Option<usize>, gpus: usize, vram: Bytes) -> bool {
        let (leases, has) = tenant.map_or((0, Bytes::ZERO), |n| (self.tenants[n].leases, self.tenants[n].vram));
        let caps = self.policy.caps_for(name, &[]);
        let sum = has + Bytes(vram.0 * gpus as u64);
        caps.leases.is_none_or(|cap| leases < cap) && caps.vram.is_none_or(|cap| sum <= cap)
    }

    fn is_excluded_there(&self, tenant: Option<usize>, number: usize) -> bool {
        let there = || self.leases_at_work(&self.gpus[number]);
        let others = || there().any(|other| Some(other.tenant) != tenant);
        let any = |vram_wanted| there().any(|other| other.request.exclusivity == vram_wanted);
        any(Exclusivity::Device) || (any(Exclusivity::Session) && others())
    }

    /// True if a request adopts an unleased process, which gets its lease in the same event.
    pub fn is_adoption(
        &mut self,
        now: Time,
        cause: &EventCause,
        lease: LeaseId,
        request: &LeaseRequest,
        root: Option<ProcKey>,
    ) -> bool {
        let Some(unleased) = root.and_then(|root| self.unleased.id_of(root)) else { return false };
        let Some(found) = self.unleased.get(unleased) else { return false };
        let asked = match cause {
            EventCause::Asked { .. } => false,
            EventCause::Unleased(it) if matches!(**it, WatchedStep::Adopt(..)) => {
                matches!(**it, WatchedStep::Adopt(Some(of), true) if of == unleased)
            }
            _ => (self.is_adoption_due(now, found) || self.is_parking_due(now, found)) && request.tier == Tier::Batch,
        };
        let plain = request.exclusivity == Exclusivity::Shared && request.term == Term::Renewed(self.policy.ttl);
        let adopts = asked && plain && self.unleased.adopting.is_none();
        if adopts {
            self.unleased.adopting = Some((lease, unleased));
        }
        adopts
    }

    /// True if a tenant may be added because one of its processes is adopted.
    pub fn is_enrolled_by_adoption(&self, now: Time, cause: &EventCause, name: &str) -> bool {
        let is_due = |found: &FoundProcess| {
            name == format!("uid:{}", found.audit.uid) && self.is_parking_due_for_new_user(now, found)
        };
        if self.unleased.all().any(is_due) {
            return true;
        }
        let EventCause::Unleased(it) = cause else { return false };
        let WatchedStep::Adopt(Some(unleased), _) = **it else { return false };
        self.unleased.get(unleased).is_some_and(|found| name == format!("uid:{}", found.audit.uid))
    }

    /// Checks the lease of an adopted process: it is its owner's, and for what it has or what there is room for.
    pub fn check_adoption(&self, now: Time, lease: LeaseId, book: &LeaseBook, held: &HeldBook) -> Verdict {
        let found = self.unleased.adopting.filter(|(of, _)| *of == lease).and_then(|(_, id)| self.unleased.get(id));
        let Some(found) = found else {
            return must(1, false, || format!("{lease} is adopted, and no process is being adopted"));
        };
        let owner = &self.tenants[book.tenant].name;
        must(18, *owner == format!("uid:{}", found.audit.uid), || {
            format!("{lease} is {owner}'s, which does not own the process")
        })?;
        let vram_wanted = match book.request.vram {
            Vram::Bytes(vram_wanted) => Some(vram_wanted),
            Vram::Whole => None,
        };
        let can = self.adoption_room(now, found, vram_wanted);
        must(1, can == Ok((held.gpus.clone(), held.vram)), || {
            format!("{lease} gets {} of {:?} for what it has, and could have {can:?}: {found:?}", held.vram, held.gpus)
        })?;
        self.check_caps(lease, book, held.gpus.len(), held.vram)
    }
}
