//! Rule 1: what may be promised, recomputed from the readings delivered and the
//! leases on the books.

use super::books::{CheckerBooks, GpuBook, LeaseBook, LeaseStage, SeenReading};
use super::{Verdict, must};
use std::borrow::Cow;
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::request::{Exclusivity, LeaseRequest, Vram};
use sublet_core::units::{Bytes, Time};

impl CheckerBooks {
    /// The bytes that may be promised on a GPU.
    pub fn promisable(&self, gpu: &GpuBook, now: Time) -> Bytes {
        self.promisable_but(gpu, now, None)
    }

    /// The same for a parked lease that has some bytes there already.
    pub fn promisable_but(&self, gpu: &GpuBook, now: Time, own: Option<LeaseId>) -> Bytes {
        let stale = now.since(gpu.reading_began).0 > 2 * self.policy.period.0;
        if !self.is_open(gpu) || stale || self.restores_on(gpu) {
            return Bytes::ZERO;
        }
        let total = gpu.facts.total;
        let committed = match gpu.reading {
            SeenReading::Unreadable | SeenReading::Lost => return Bytes::ZERO,
            SeenReading::Coarse(free) => {
                let parked = |lease: &&LeaseId| self.leases.get(lease).is_some_and(LeaseBook::is_parked);
                let left = gpu.residue_max().0 * gpu.claims.keys().filter(parked).count() as u64;
                let own = own.filter(|own| gpu.claims.contains_key(own)).map_or(Bytes::ZERO, |_| gpu.residue_max());
                total.less(free).max(gpu.reserved + Bytes(left)).less(own)
            }
            SeenReading::Free(free) => {
                let claimed = |(lease, seen): &(LeaseId, Bytes)| gpu.claims.get(lease).map(|held| (*seen, *held));
                let seen: Bytes = gpu.seen_bytes.iter().filter_map(claimed).map(|(seen, _)| seen).sum();
                let beyond: Bytes = gpu.seen_bytes.iter().filter_map(claimed).map(|(seen, held)| seen.less(held)).sum();
                let own =
                    gpu.seen_bytes.iter().find(|(lease, _)| Some(*lease) == own).map_or(Bytes::ZERO, |(_, own)| *own);
                (total.less(free).less(seen) + gpu.reserved + beyond).less(own)
            }
        };
        total.less(committed + self.margin(gpu))
    }

    /// Compute processes on a GPU that are not of a lease there, as far as they can be seen.
    pub fn unleased_compute_processes(&self, gpu: &GpuBook) -> usize {
        if matches!(gpu.reading, SeenReading::Unreadable | SeenReading::Lost) {
            return 0;
        }
        let ours = |process: &ProcKey| self.owners.get(process).is_some_and(|lease| gpu.claims.contains_key(lease));
        gpu.compute_processes.iter().filter(|process| !ours(process)).count()
    }

    /// True if the exclusivity of a lease there, or of the request itself, excludes a waiter.
    pub fn excluded(&self, book: &LeaseBook, gpu: &GpuBook) -> bool {
        let on_gpu = || self.leases_at_work(gpu);
        let others = || on_gpu().any(|other| other.tenant != book.tenant);
        if on_gpu().any(|other| other.request.exclusivity == Exclusivity::Device) {
            return true;
        }
        match book.request.exclusivity {
            Exclusivity::Shared => on_gpu().any(|other| other.request.exclusivity == Exclusivity::Session) && others(),
            Exclusivity::Session => others() || self.unleased_compute_processes(gpu) > 0,
            Exclusivity::Device => on_gpu().next().is_some() || self.unleased_compute_processes(gpu) > 0,
        }
    }

    /// Leases that work on a GPU: parked ones exclude no waiter.
    pub(super) fn leases_at_work<'a>(&'a self, gpu: &'a GpuBook) -> impl Iterator<Item = &'a LeaseBook> {
        gpu.claims.keys().filter_map(|lease| self.leases.get(lease)).filter(|book| !book.is_parked())
    }

    /// The bytes that a request needs on a GPU.
    pub fn needed_bytes(&self, book: &LeaseBook, gpu: &GpuBook) -> Bytes {
        match self.request_now(book).vram {
            Vram::Bytes(vram) => vram,
            Vram::Whole => Bytes(self.largest(gpu).0 / 100 * 75),
        }
    }

    /// True if a waiter could start on a GPU now.
    pub fn fits(&self, book: &LeaseBook, gpu: &GpuBook, now: Time) -> bool {
        let empty = book.request.vram != Vram::Whole || self.leases_at_work(gpu).next().is_none();
        empty
            && self.eligible(&self.request_now(book), gpu)
            && self.needed_bytes(book, gpu) <= self.promisable(gpu, now)
            && !self.excluded(book, gpu)
    }

    /// A waiter's request; that of a parked lease is for what it lacks now, whatever was left of it on its GPUs when it
    /// requested them. Part of a whole GPU is enough.
    pub fn request_now<'a>(&self, book: &'a LeaseBook) -> Cow<'a, LeaseRequest> {
        let Some(held) = book.held().filter(|_| book.is_parked() && book.request.at_least.is_none()) else {
            return Cow::Borrowed(&book.request);
        };
        let left = match &book.stage {
            LeaseStage::Park(_, park) => self.keeps_of_each(book.id, held, park),
            _ => Bytes::ZERO,
        };
        Cow::Owned(LeaseRequest { vram: Vram::Bytes(held.vram.less(left).max(Bytes(1))), ..book.request.clone() })
    }

    /// Checks that a waiter may be granted these GPUs.
    pub fn check_room(&self, now: Time, lease: LeaseId, book: &LeaseBook, cards: &[usize], vram: Bytes) -> Verdict {
        let gpus = usize::from(book.request.gpus);
        let apart = cards.windows(2).all(|pair| pair[0] < pair[1]);
        must(1, cards.len() == gpus && apart, || format!("{lease} requested {gpus} GPUs and gets {cards:?}"))?;
        let smaller = |asked: Bytes| book.request.at_least.is_some_and(|least| least <= vram && vram < asked);
        let asked = match book.request.vram {
            Vram::Bytes(asked) => asked == vram || smaller(asked),
            Vram::Whole => true,
        };
        must(1, asked, || format!("{lease} requested {:?} and gets {vram}", book.request.vram))?;
        for number in cards {
            let gpu = &self.gpus[*number];
            must(21, gpu.asides.is_empty(), || format!("{lease} gets GPU {number}, which steps aside"))?;
            must(2, !self.restores_on(gpu), || {
                format!("{lease} gets GPU {number}, to which another lease is brought back")
            })?;
            let room = self.promisable(gpu, now);
            must(1, vram <= room && vram > Bytes::ZERO, || {
                format!(
                    "{lease} gets {vram} of GPU {number}, which can promise {room} (reading of {}: {:?}, {} reserved, seen {:?})",
                    gpu.reading_began, gpu.reading, gpu.reserved, gpu.seen_bytes
                )
            })?;
            must(1, !self.excluded(book, gpu), || {
                format!(
                    "{lease} ({:?}) gets GPU {number} in spite of exclusivity: {} unleased processes, leases {:?}",
                    book.request.exclusivity,
                    self.unleased_compute_processes(gpu),
                    gpu.claims.keys().collect::<Vec<_>>()
                )
            })?;
            let whole = book.request.vram == Vram::Whole && book.request.at_least.is_none();
            let asked = book.request.vram == Vram::Bytes(vram);
            must(1, !(whole || asked) || self.fits(book, gpu, now), || {
                format!("{lease} cannot be on GPU {number}: {:?}", book.request)
            })?;
        }
        self.check_caps(lease, book, cards.len(), vram)
    }

    /// Checks that a grant stays within its tenant's caps.
    pub fn check_caps(&self, lease: LeaseId, book: &LeaseBook, gpus: usize, vram: Bytes) -> Verdict {
        let tenant = &self.tenants[book.tenant];
        let caps = self.policy.caps_for(&tenant.name, &[]);
        let leases = caps.leases.is_none_or(|cap| tenant.leases < cap);
        must(1, leases, || format!("{lease} is lease {} of {}, above its cap", tenant.leases + 1, tenant.name))?;
        let sum = tenant.vram + Bytes(vram.0 * gpus as u64);
        let within = caps.vram.is_none_or(|cap| sum <= cap);
        must(1, within, || format!("{lease} gives {} a sum of {sum}, above its cap {:?}", tenant.name, caps.vram))
    }
}
