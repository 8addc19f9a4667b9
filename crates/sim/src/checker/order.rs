//! Rule 9: the order of service, by sorting all waiters.

use super::books::{CheckerBooks, GpuBook, HeldBook, LeaseBook, SeenReading};
use super::{Verdict, must};
use sublet_core::ids::LeaseId;
use sublet_core::request::{Exclusivity, LeaseRequest, Vram};
use sublet_core::units::{Bytes, Time};

/// Waiters ahead of a grant that are compared; a grant rarely passes so many.
const AHEAD_MAX: usize = 256;

/// Waiters near the head that count as waiting for a GPU.
const NEAR_HEAD: usize = 64;

/// The most of these of one tenant.
const OF_TENANT: usize = 16;

/// The end of the search, however many waiters are passed over.
const RAW_MAX: usize = 5_000;

/// How caps hold a waiter back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CapState {
    /// They do not.
    Not,
    /// Until another lease of its tenant ends; those behind it are held back with it.
    Now,
    /// It depends on the GPU.
    Perhaps,
    /// For ever; those behind it are not held back.
    Always,
}

/// Whether waiters need certain GPUs.
#[derive(Clone, Copy, Debug, Default)]
pub struct WantedRoom {
    /// A waiter does.
    pub at_all: bool,
    /// A waiter does that its own caps do not hold back.
    pub freely: bool,
}

impl CheckerBooks {
    /// How its tenant's caps hold a waiter back. For a whole GPU it depends on the GPU.
    fn cap_state(&self, book: &LeaseBook) -> CapState {
        let tenant = &self.tenants[book.tenant];
        let caps = self.policy.caps_for(&tenant.name, &[]);
        if !self.within_caps(book.tenant, &book.request) {
            return CapState::Always;
        }
        if caps.leases.is_some_and(|cap| tenant.leases >= cap) {
            return CapState::Now;
        }
        match (book.needed_vram(), caps.vram) {
            (_, None) => CapState::Not,
            (Vram::Whole, Some(_)) => CapState::Perhaps,
            (Vram::Bytes(vram), Some(cap)) => {
                let sum = tenant.vram + Bytes(vram.0.saturating_mul(u64::from(book.request.gpus)));
                if sum > cap { CapState::Now } else { CapState::Not }
            }
        }
    }

    /// True if its tenant's caps surely hold a waiter back now.
    pub fn is_held_back(&self, book: &LeaseBook) -> bool {
        matches!(self.cap_state(book), CapState::Now | CapState::Always)
    }

    /// True if its tenant's caps may hold a waiter back now.
    pub fn may_be_held_back(&self, book: &LeaseBook) -> bool {
        !matches!(self.cap_state(book), CapState::Not)
    }

    /// Checks that no waiter ahead of this one could have been granted one of its GPUs, and that the first one that
    /// cannot start yet does not start later for it.
    pub fn check_order(&self, now: Time, lease: LeaseId, held: &HeldBook, granted: &LeaseBook) -> Verdict {
        // A waiter behind a capped one of the same tenant is passed over with it.
        let mut capped: u64 = 0;
        for ahead in self.in_order().take_while(|ahead| *ahead != lease).take(AHEAD_MAX) {
            let Some(book) = self.leases.get(&ahead).filter(|book| capped & (1 << book.tenant) == 0) else { continue };
            match self.cap_state(book) {
                CapState::Now => capped |= 1 << book.tenant,
                // A waiter that may be held back may claim GPUs or not.
                CapState::Perhaps => return Ok(()),
                CapState::Always => {}
                // It claims its GPUs until other leases have left them, and when that is is not known.
                CapState::Not if self.waits_for_holders(now, book) => return Ok(()),
                // It could not be resumed a moment ago, and no waiter waits for it meanwhile.
                CapState::Not if self.cannot_try(now, book) => {}
                CapState::Not => {
                    self.check_not_passed(now, lease, ahead, book, &held.gpus)?;
                    if self.could_never_fit(book) {
                        continue;
                    }
                    return self.check_delay(now, lease, held, granted, ahead, book);
                }
            }
        }
        Ok(())
    }

    /// Checks that a waiter that could start now on these GPUs is not passed by one behind it.
    fn check_not_passed(&self, now: Time, lease: LeaseId, ahead: LeaseId, book: &LeaseBook, gpus: &[usize]) -> Verdict {
        if !gpus.iter().any(|gpu| self.fits(book, &self.gpus[*gpu], now)) {
            return Ok(());
        }
        let could = self.gpus.iter().filter(|gpu| self.fits(book, gpu, now)).count() >= usize::from(book.request.gpus);
        must(9, !could, || format!("{lease} gets GPUs {gpus:?}, where {ahead} is first and would fit: {book:?}"))
    }

    /// True if it would not fit whatever ended.
    fn could_never_fit(&self, book: &LeaseBook) -> bool {
        self.gpus.iter().filter(|gpu| self.could_host(book, gpu)).count() < usize::from(book.request.gpus)
    }

    /// Checks that the claim of the first waiter that does not fit is not moved by a grant behind it.
    fn check_delay(
        &self,
        now: Time,
        lease: LeaseId,
        held: &HeldBook,
        granted: &LeaseBook,
        ahead: LeaseId,
        book: &LeaseBook,
    ) -> Verdict {
        if self.gpus.iter().any(|gpu| matches!(gpu.reading, SeenReading::Coarse(_))) {
            // There each grant changes the bytes that seem unowned.
            return Ok(());
        }
        let before = self.starts_at(now, book, None);
        let after = self.starts_at(now, book, Some((held, granted)));
        must(9, after <= before, || {
            format!(
                "{lease} gets {held:?}, and so {ahead}, the first, starts at {after:?} and not at {before:?}: {book:?}"
            )
        })
    }

    /// True if a waiter could start on a GPU if every lease there ended.
    pub fn could_host(&self, book: &LeaseBook, gpu: &GpuBook) -> bool {
        let loose = match gpu.reading {
            SeenReading::Free(free) => {
                let claimed = gpu.seen_bytes.iter().filter(|(lease, _)| gpu.claims.contains_key(lease));
                gpu.facts.total.less(free).less(claimed.map(|(_, bytes)| *bytes).sum())
            }
            SeenReading::Coarse(free) => gpu.facts.total.less(free).less(gpu.reserved),
            SeenReading::Unreadable | SeenReading::Lost => Bytes::ZERO,
        };
        let alone = book.request.exclusivity == Exclusivity::Shared || self.unleased_compute_processes(gpu) == 0;
        let allowed =
            book.request.vram != Vram::Whole || self.is_within_vram_cap(book.tenant, &book.request, self.largest(gpu));
        let parked = |lease: &LeaseId| self.leases.get(lease).is_some_and(LeaseBook::is_parked);
        let residue = gpu.seen_bytes.iter().filter(|(lease, _)| gpu.claims.contains_key(lease) && parked(lease));
        let residue: Bytes = residue.map(|(_, bytes)| *bytes).sum();
        // Where readings do not tell the bytes of single processes, those of parked leases are among the unowned ones.
        let away = gpu.claims.keys().filter(|lease| parked(lease)).count() as u64;
        let stays = if gpu.is_coarse() { loose.max(Bytes(gpu.residue_max().0 * away)) } else { loose + residue };
        let (need, most) = (self.needed_bytes(book, gpu), self.largest(gpu).less(stays));
        let roomy = need <= most || need <= most + self.removable(book.id, gpu);
        self.eligible(&self.request_now(book), gpu) && alone && allowed && roomy
    }

    /// True if a request could be granted if all known GPUs were empty and in service.
    pub fn satisfiable(&self, tenant: usize, request: &LeaseRequest) -> bool {
        let would_do = |gpu: &&GpuBook| {
            let largest = self.largest(gpu);
            let sized = match request.vram {
                Vram::Bytes(vram) => vram <= largest && self.least_useful(request, gpu) <= vram,
                Vram::Whole => self.is_within_vram_cap(tenant, request, largest),
            };
            sized && self.is_allowed_by_request(request, gpu)
        };
        self.within_caps(tenant, request) && self.gpus.iter().filter(would_do).count() >= usize::from(request.gpus)
    }

    /// True if a tenant may ever hold so much of each GPU that it requests.
    fn is_within_vram_cap(&self, tenant: usize, request: &LeaseRequest, each: Bytes) -> bool {
        let cap = self.policy.caps_for(&self.tenants[tenant].name, &[]).vram;
        cap.is_none_or(|cap| each.0.saturating_mul(u64::from(request.gpus)) <= cap.0)
    }

    fn within_caps(&self, tenant: usize, request: &LeaseRequest) -> bool {
        match request.vram {
            Vram::Bytes(vram) => self.is_within_vram_cap(tenant, request, vram),
            Vram::Whole => {
                let allowed = |gpu: &&GpuBook| {
                    self.is_allowed_by_request(request, gpu)
                        && self.is_within_vram_cap(tenant, request, self.largest(gpu))
                };
                self.gpus.iter().filter(allowed).count() >= usize::from(request.gpus)
            }
        }
    }

    /// Waiters that must be served once the world is calm, the first one first: those that wait for something that
    /// there is. A GPU or the policy may have changed while they waited, and the driver keeps some bytes of each GPU.
    pub fn must_be_served(&self) -> impl Iterator<Item = LeaseId> + '_ {
        let hope = |book: &&LeaseBook| {
            let able = self.gpus.iter().filter(|gpu| self.could_host(book, gpu)).count();
            self.satisfiable(book.tenant, &book.request) && able >= usize::from(book.request.gpus)
        };
        self.queue
            .iter()
            .filter(move |(_, lease)| self.leases.get(lease).filter(hope).is_some())
            .map(|(_, lease)| *lease)
    }

    /// Whether waiters near the head of the queue could use these GPUs of a tenant.
    pub fn wanted(&self, tenant: usize, gpus: &[usize]) -> WantedRoom {
        let mut wanted = WantedRoom::default();
        if gpus.iter().any(|gpu| self.gpus[*gpu].draining) {
            return WantedRoom { at_all: true, freely: true };
        }
        let (mut capped, mut looked): (u64, usize) = (0, 0);
        let mut of_tenant = [0; 64];
        for (lease, raw) in self.in_order().zip(0..RAW_MAX) {
            let Some(book) = self.leases.get(&lease) else { continue };
            let passed = capped & (1 << book.tenant) != 0;
            let held = self.cap_state(book);
            if matches!(held, CapState::Now | CapState::Perhaps) {
                capped |= 1 << book.tenant;
                // The end of its own tenant's lease makes room under the cap.
                wanted.at_all |= book.tenant == tenant;
            }
            if gpus.iter().any(|gpu| self.could_host(book, &self.gpus[*gpu])) {
                wanted.at_all = true;
                if held == CapState::Not && !passed && raw < NEAR_HEAD && of_tenant[book.tenant] < OF_TENANT {
                    wanted.freely = true;
                }
                if wanted.freely || raw >= NEAR_HEAD {
                    break;
                }
            }
            // A waiter that could never start does not count.
            if held == CapState::Not && !passed && !self.could_never_fit(book) {
                looked += usize::from(of_tenant[book.tenant] < OF_TENANT);
                of_tenant[book.tenant] += 1;
            }
            if looked > NEAR_HEAD {
                break;
            }
        }
        wanted
    }
}
