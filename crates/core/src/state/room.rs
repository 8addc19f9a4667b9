//! How much of one GPU may be promised: each byte counts for the lease that has it, and bytes that belong to no lease
//! count too.
//!
//! ```text
//! loose      = max(0, total − free − Σ seen)
//! committed  = loose + Σ max(reserved, seen) + margin
//! promisable = max(0, total − committed);  0 if the GPU cannot be trusted now
//! ```
//! Where the driver tells what is free, but not how much each process has (*coarse*), a parked lease counts with the
//! most that a context and modules take:
//! ```text
//! committed  = max(total − free, Σ reserved + Σ left of parked leases) + margin
//! ```

use crate::model::ids::{LeaseId, ProcKey, TenantId};
use crate::model::movers::RESIDUE;
use crate::model::reading::{GpuReading, Reading, Resident, Unreadable};
use crate::model::request::Exclusivity;
use crate::model::units::{Bytes, Span, Time};
use std::collections::BTreeMap;

/// What one lease takes of one card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// Whose.
    pub tenant: TenantId,
    /// Promised.
    pub reserved: Bytes,
    /// Seen with its processes; unknown counts as zero here and so falls into loose.
    pub seen: Bytes,
    /// Whom it suffers beside it.
    pub exclusivity: Exclusivity,
    /// When it gives the room back at the latest, if somebody waits; zero if it is over already.
    pub ends_by: Time,
    /// Its processes live on then, and keep their context here.
    pub outlives_lease: bool,
    /// Its work is not on the card: what it still has there stays, and is in nobody's way.
    pub is_parked: bool,
}

impl Occupancy {
    /// What counts: a promise not yet used, or use beyond the promise.
    pub fn counted(&self) -> Bytes {
        self.reserved.max(self.seen)
    }

    /// What others have of it when it is over.
    fn gives_back(&self, context: Bytes) -> Bytes {
        if self.outlives_lease { self.counted().less(context) } else { self.counted() }
    }
}

/// One card as the books and the last look have it.
#[derive(Clone, Debug)]
pub struct Room {
    total: Bytes,
    margin: Bytes,
    /// What a process keeps here while it lives.
    context: Bytes,
    leases: BTreeMap<LeaseId, Occupancy>,
    counted: Bytes,
    seen: Bytes,
    reserved: Bytes,
    session_exclusive: u32,
    device_exclusive: u32,
    residue: Bytes,
    /// How many are parked.
    parked: u32,
    reading: GpuReading,
    /// Claims whose `seen` is not zero, so that a look need not visit the others.
    seen_leases: BTreeMap<LeaseId, Bytes>,
    /// What is given back when, first first. A list: it is read from the front, all in one cache line
    /// after the other.
    ends: Vec<(Time, LeaseId, Bytes)>,
    /// How many leases of each tenant.
    tenants: BTreeMap<TenantId, u32>,
}

/// Why a card can promise nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadingFault {
    /// It does not answer.
    Unreadable(Unreadable),
    /// Its last answer is too old.
    Stale,
}

impl Room {
    /// A card that nobody has looked at yet.
    pub fn new(total: Bytes, margin: Bytes, context: Bytes) -> Room {
        Room {
            total,
            margin,
            context,
            leases: BTreeMap::new(),
            counted: Bytes::ZERO,
            seen: Bytes::ZERO,
            reserved: Bytes::ZERO,
            session_exclusive: 0,
            device_exclusive: 0,
            residue: Bytes::ZERO,
            parked: 0,
            reading: GpuReading { begun: Time::ZERO, reading: Reading::Unreadable(Unreadable::NotYet) },
            seen_leases: BTreeMap::new(),
            ends: Vec::new(),
            tenants: BTreeMap::new(),
        }
    }

    /// The card, or the policy, is not what it was.
    pub fn resize(&mut self, total: Bytes, margin: Bytes, context: Bytes) {
        (self.total, self.margin, self.context) = (total, margin, context);
        for (_, lease, gives) in &mut self.ends {
            *gives = self.leases.get(lease).map_or(Bytes::ZERO, |occupancy| occupancy.gives_back(context));
        }
    }

    /// Puts a lease's promise on the books.
    pub fn occupy(&mut self, lease: LeaseId, occupancy: Occupancy) {
        self.vacate(lease);
        self.adjust_sums(&occupancy, true);
        self.adjust_lists(lease, &occupancy, true);
        self.leases.insert(lease, occupancy);
    }

    /// Takes a lease off the books.
    pub fn vacate(&mut self, lease: LeaseId) {
        if let Some(occupancy) = self.leases.remove(&lease) {
            self.adjust_sums(&occupancy, false);
            self.adjust_lists(lease, &occupancy, false);
        }
    }

    fn adjust_sums(&mut self, occupancy: &Occupancy, add: bool) {
        let by = |sum: Bytes, n: Bytes| if add { sum + n } else { sum.less(n) };
        self.counted = by(self.counted, occupancy.counted());
        self.seen = by(self.seen, occupancy.seen);
        self.reserved = by(self.reserved, occupancy.reserved);
        let step = |n: u32| if add { n + 1 } else { n - 1 };
        match occupancy.exclusivity {
            _ if occupancy.is_parked => {
                self.residue = by(self.residue, occupancy.seen);
                self.parked = step(self.parked);
            }
            Exclusivity::Shared => {}
            Exclusivity::Session => self.session_exclusive = step(self.session_exclusive),
            Exclusivity::Device => self.device_exclusive = step(self.device_exclusive),
        }
    }

    /// Keeps the list of ends and the tenants in step with a claim that came or went.
    fn adjust_lists(&mut self, lease: LeaseId, occupancy: &Occupancy, add: bool) {
        if occupancy.is_parked {
            return;
        }
        let at = self.ends.partition_point(|(ends, id, _)| (*ends, *id) < (occupancy.ends_by, lease));
        if add {
            self.ends.insert(at, (occupancy.ends_by, lease, occupancy.gives_back(self.context)));
            *self.tenants.entry(occupancy.tenant).or_default() += 1;
        } else {
            self.ends.remove(at);
            if let Some(count) = self.tenants.get_mut(&occupancy.tenant) {
                *count -= 1;
                if *count == 0 {
                    self.tenants.remove(&occupancy.tenant);
                }
            }
        }
    }

    /// A lease gives its room back at another time, or in another way.
    pub fn set_ends(&mut self, lease: LeaseId, ends: Time, lives_on: bool) {
        if let Some(occupancy) = self.leases.remove(&lease) {
            self.adjust_lists(lease, &occupancy, false);
            let occupancy = Occupancy { ends_by: ends, outlives_lease: lives_on, ..occupancy };
            self.adjust_lists(lease, &occupancy, true);
            self.leases.insert(lease, occupancy);
        }
    }

    /// A lease's promise is another from now on: it was parked, or has its card again. What was seen
    /// of it stays seen.
    pub fn reserve(&mut self, lease: LeaseId, reserved: Bytes, ends: Time, parked: bool) {
        if let Some(occupancy) = self.leases.get(&lease).cloned() {
            self.occupy(
                lease,
                Occupancy { reserved, ends_by: ends, is_parked: parked, outlives_lease: false, ..occupancy },
            );
        }
    }

    /// Whether nobody's work is on the card.
    pub fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    /// What a lease was seen to have here.
    pub fn seen_of(&self, lease: LeaseId) -> Bytes {
        self.seen_leases.get(&lease).copied().unwrap_or_default()
    }

    /// What a parked lease counts with here, so that it need not be given that again.
    pub fn left_of_lease(&self, lease: LeaseId) -> Bytes {
        match self.leases.get(&lease) {
            Some(occupancy) if occupancy.is_parked && self.is_coarse() => self.context_after_park(),
            _ => self.seen_of(lease),
        }
    }

    /// What stays here of a holder that the library parks: its context, and where nobody can see how much it
    /// is, as much as there could be beside it.
    pub fn context_after_park(&self) -> Bytes {
        if self.is_coarse() { self.context + RESIDUE } else { self.context }
    }

    fn left_of_parked(&self) -> Bytes {
        Bytes(self.context_after_park().0.saturating_mul(self.parked.into()))
    }

    /// What would be taken here if every lease ended that is not parked.
    pub fn bytes_that_stay(&self) -> Bytes {
        let loose = self.unowned_bytes().unwrap_or_default();
        if self.is_coarse() { loose.max(self.left_of_parked()) } else { loose + self.residue }
    }

    /// Whether the driver tells what is free and not whose the rest is.
    pub fn is_coarse(&self) -> bool {
        matches!(&self.reading.reading, Reading::Used(used) if used.coarse)
    }

    /// What a process keeps here while it lives; more than any was seen to, if nobody measured it.
    pub fn context(&self) -> Bytes {
        self.context
    }

    /// What is given back when at the latest, first first; zero is what is over already.
    pub fn ends(&self) -> &[(Time, LeaseId, Bytes)] {
        &self.ends
    }

    /// Takes in a look at the card; `owner` says whose a process is.
    pub fn set_reading(&mut self, observation: GpuReading, owner: impl Fn(&ProcKey) -> Option<LeaseId>) {
        if let Reading::Used(used) = &observation.reading {
            let mut seen: BTreeMap<LeaseId, Bytes> = BTreeMap::new();
            for resident in &used.processes {
                if let Some(lease) = owner(&resident.process).filter(|lease| self.leases.contains_key(lease)) {
                    let sum = seen.entry(lease).or_default();
                    *sum = *sum + resident.bytes.unwrap_or(Bytes::ZERO);
                }
            }
            let before = std::mem::replace(&mut self.seen_leases, seen.clone());
            for lease in before.keys().filter(|lease| !seen.contains_key(lease)) {
                self.set_seen(*lease, Bytes::ZERO);
            }
            for (lease, bytes) in seen {
                self.set_seen(lease, bytes);
            }
        }
        self.reading = observation;
    }

    fn set_seen(&mut self, lease: LeaseId, seen: Bytes) {
        if let Some(mut occupancy) = self.leases.remove(&lease) {
            self.adjust_sums(&occupancy, false);
            occupancy.seen = seen;
            self.adjust_sums(&occupancy, true);
            if !occupancy.is_parked {
                let at = self.ends.partition_point(|(ends, id, _)| (*ends, *id) < (occupancy.ends_by, lease));
                self.ends[at].2 = occupancy.gives_back(self.context);
            }
            self.leases.insert(lease, occupancy);
        }
    }

    /// The last look.
    pub fn reading(&self) -> &GpuReading {
        &self.reading
    }
    /// All of its memory.
    pub fn total(&self) -> Bytes {
        self.total
    }
    /// The most that a lease could ever have here.
    pub fn largest_ever(&self) -> Bytes {
        self.total.less(self.margin)
    }
    /// Leases on the books, by id.
    pub fn leases(&self) -> &BTreeMap<LeaseId, Occupancy> {
        &self.leases
    }
    /// Leases whose processes were seen here, with their bytes.
    pub fn seen_leases(&self) -> &BTreeMap<LeaseId, Bytes> {
        &self.seen_leases
    }
    /// Compute processes of the last look that belong to no lease on the books here, as far as is known now.
    pub fn unleased_compute_processes(&self, owner: impl Fn(&ProcKey) -> Option<LeaseId>) -> usize {
        self.unleased_residents(owner).filter(|resident| !resident.only_draws).count()
    }
    /// All such processes, whatever they do there.
    pub fn unleased_processes(&self, owner: impl Fn(&ProcKey) -> Option<LeaseId>) -> usize {
        self.unleased_residents(owner).count()
    }

    fn unleased_residents(&self, owner: impl Fn(&ProcKey) -> Option<LeaseId>) -> impl Iterator<Item = &Resident> {
        let all = match &self.reading.reading {
            Reading::Used(used) => used.processes.as_slice(),
            Reading::Unreadable(_) => &[],
        };
        let ours = move |process| owner(process).is_some_and(|lease| self.leases.contains_key(&lease));
        all.iter().filter(move |resident| !ours(&resident.process))
    }

    /// Whether the last look still counts.
    pub fn check_readable(&self, now: Time, period: Span) -> Result<(), ReadingFault> {
        match &self.reading.reading {
            Reading::Unreadable(why) => Err(ReadingFault::Unreadable(why.clone())),
            Reading::Used(_) if now.since(self.reading.begun) > Span(2 * period.0) => Err(ReadingFault::Stale),
            Reading::Used(_) => Ok(()),
        }
    }

    /// Bytes that nobody has a lease for; `None` if the card was not readable.
    pub fn unowned_bytes(&self) -> Option<Bytes> {
        match &self.reading.reading {
            Reading::Used(used) if used.coarse => Some(self.total.less(used.free).less(self.reserved)),
            Reading::Used(used) => Some(self.total.less(used.free).less(self.seen)),
            Reading::Unreadable(_) => None,
        }
    }

    /// Whether strangers' bytes may hide behind promises that are not used yet: the driver tells what
    /// is free, and not whose the rest is.
    pub fn hides_unowned_bytes(&self) -> bool {
        self.is_coarse() && self.reserved > Bytes::ZERO
    }

    /// Bytes counted for leases.
    pub fn counted(&self) -> Bytes {
        self.counted
    }
    /// Bytes seen with leases' processes.
    pub fn seen(&self) -> Bytes {
        self.seen
    }

    /// Bytes counted as taken; `None` if the card was not readable.
    pub fn committed(&self) -> Option<Bytes> {
        match &self.reading.reading {
            Reading::Used(used) if used.coarse => {
                Some(self.total.less(used.free).max(self.reserved + self.left_of_parked()) + self.margin)
            }
            Reading::Used(_) => self.unowned_bytes().map(|loose| loose + self.counted + self.margin),
            Reading::Unreadable(_) => None,
        }
    }

    /// Bytes that may be promised. Unknown is not zero used: it is nothing to promise.
    pub fn promisable(&self, now: Time, period: Span) -> Bytes {
        match (self.check_readable(now, period), self.committed()) {
            (Ok(()), Some(committed)) => self.total.less(committed),
            _ => Bytes::ZERO,
        }
    }

    /// Whether somebody's exclusivity keeps `tenant` off the card, or its own wish does.
    pub fn excludes(&self, tenant: TenantId, exclusivity: Exclusivity, unleased: impl Fn() -> usize) -> bool {
        let others = || self.tenants.keys().any(|other| *other != tenant);
        match exclusivity {
            _ if self.device_exclusive > 0 => true,
            Exclusivity::Device => !self.is_empty() || unleased() > 0,
            Exclusivity::Session => others() || unleased() > 0,
            Exclusivity::Shared => self.session_exclusive > 0 && others(),
        }
    }
}
