//! The order in which waiters are served.
//!
//! Inside a tenant, by arrival less head start. Between tenants the first waiters are compared, each put back by its
//! tenant's debt:
//!
//! ```text
//! first = the later of its arrival and its tenant's turn (when the waiter before it left)
//! key   = first + clamp(mark − first, 0, debt_max) − head start           ties by arrival number
//! ```
//! A waiter behind another one of its tenant counts from when the tenant was last served, too. So a first waiter that
//! cannot start yet does not let the others of its tenant pass as if they had waited alone, and a thousand requests
//! made at once compete as one waiter at a time. Marks and turns are absolute times: the order changes with a charge
//! or when a waiter leaves, never with time alone.
//!
//! Each tenant has its own line; the heads of all lines are in one more. A tenant at its own quota is set aside with
//! its whole line, and costs nothing until it may come back.

use crate::model::ids::{LeaseId, TenantId};
use crate::model::units::{Span, Time};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::ops::Bound::{Excluded, Unbounded};

/// Where a waiter stands in its tenant's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueuePlace {
    /// Its arrival less its head start, in µs.
    pub rank: i64,
    /// Its arrival number.
    pub lease: LeaseId,
    /// When it came.
    pub arrival: Time,
}

impl QueuePlace {
    /// Where it stands among the tenants' first waiters.
    pub fn key(&self, debt_clock: Time, first_since: Time, debt_max: Span) -> i64 {
        let first = self.arrival.max(first_since);
        let debt = debt_clock.since(first).0.min(debt_max.0);
        self.rank.saturating_add_unsigned(first.0 - self.arrival.0).saturating_add_unsigned(debt)
    }
}

/// A tenant's first waiter among the others': key, arrival number, tenant.
type QueueHead = (i64, LeaseId, TenantId);

/// All waiters.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    debt_max: Span,
    /// By tenant.
    lines: Vec<TenantLine>,
    heads: BTreeSet<QueueHead>,
    skipped: BTreeSet<TenantId>,
    len: usize,
}

/// One tenant's waiters.
#[derive(Clone, Debug, Default)]
struct TenantLine {
    places: BTreeSet<QueuePlace>,
    debt_clock: Time,
    first_since: Time,
    /// When one of them was last served.
    last_served: Time,
    /// What stands for it among the heads.
    head: Option<QueueHead>,
}

impl TenantLine {
    /// Where a waiter of this line stands among the others.
    fn key(&self, place: &QueuePlace, debt_max: Span) -> i64 {
        let first = self.places.first() == Some(place);
        let first_since = if first { self.first_since } else { self.first_since.max(self.last_served) };
        place.key(self.debt_clock, first_since, debt_max)
    }
}

impl Queue {
    /// A queue in which debts count so much at most.
    pub fn new(debt_max: Span) -> Queue {
        Queue { debt_max, ..Queue::default() }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn line(&self, tenant: TenantId) -> Option<&TenantLine> {
        self.lines.get(tenant.0 as usize)
    }

    fn line_mut(&mut self, tenant: TenantId) -> &mut TenantLine {
        let number = tenant.0 as usize;
        if self.lines.len() <= number {
            self.lines.resize_with(number + 1, TenantLine::default);
        }
        &mut self.lines[number]
    }

    /// Adds a waiter.
    pub fn insert(&mut self, tenant: TenantId, place: QueuePlace) {
        self.len += usize::from(self.line_mut(tenant).places.insert(place));
        self.update_head(tenant);
    }

    /// Takes a waiter out.
    pub fn remove(&mut self, tenant: TenantId, place: QueuePlace) {
        self.len -= usize::from(self.line_mut(tenant).places.remove(&place));
        self.update_head(tenant);
    }

    /// A tenant was charged, or got something back, or its first waiter left.
    pub fn set_debt_clock(&mut self, tenant: TenantId, debt_clock: Time, first_since: Time) {
        let line = self.line_mut(tenant);
        (line.debt_clock, line.first_since) = (debt_clock, first_since);
        self.update_head(tenant);
    }

    /// One of a tenant's waiters was served.
    pub fn set_last_served(&mut self, tenant: TenantId, at: Time) {
        let line = self.line_mut(tenant);
        line.last_served = line.last_served.max(at);
        self.update_head(tenant);
    }

    /// When one of a tenant's waiters was last served.
    pub fn last_served(&self, tenant: TenantId) -> Time {
        self.line(tenant).map_or(Time::ZERO, |line| line.last_served)
    }

    /// Whether nobody of its tenant stands before it.
    pub fn is_first(&self, tenant: TenantId, place: QueuePlace) -> bool {
        self.line(tenant).and_then(|line| line.places.first()) == Some(&place)
    }

    /// Where a waiter stands among the others, and where its tenant's first one does.
    pub fn keys_of(&self, tenant: TenantId, place: QueuePlace) -> Option<[(i64, LeaseId); 2]> {
        let line = self.line(tenant)?;
        let key = |place: &QueuePlace| (line.key(place, self.debt_max), place.lease);
        Some([key(&place), key(line.places.first()?)])
    }

    /// How many of its tenant stand before it.
    pub fn before(&self, tenant: TenantId, place: QueuePlace) -> usize {
        self.line(tenant).map_or(0, |line| line.places.range(..place).count())
    }

    /// A tenant's own quota holds back its first waiter: it stands aside until [`Queue::unskip_tenant`].
    pub fn skip_tenant(&mut self, tenant: TenantId) {
        self.skipped.insert(tenant);
        self.update_head(tenant);
    }

    /// Its quota may have room again.
    pub fn unskip_tenant(&mut self, tenant: TenantId) {
        if self.skipped.remove(&tenant) {
            self.update_head(tenant);
        }
    }

    /// Who stands aside.
    pub fn skipped_tenants(&self) -> impl Iterator<Item = TenantId> + '_ {
        self.skipped.iter().copied()
    }

    fn update_head(&mut self, tenant: TenantId) {
        let (debt_max, aside) = (self.debt_max, self.skipped.contains(&tenant));
        let line = self.line_mut(tenant);
        let first = line.places.first().filter(|_| !aside);
        let head = first.map(|place| (line.key(place, debt_max), place.lease, tenant));
        let old = std::mem::replace(&mut line.head, head);
        if old != head {
            if let Some(old) = old {
                self.heads.remove(&old);
            }
            self.heads.extend(head);
        }
    }

    /// The first of all who may be served.
    pub fn first(&self) -> Option<LeaseId> {
        self.heads.first().map(|(_, lease, _)| *lease)
    }

    /// The first waiter of a tenant, also if it stands aside.
    pub fn first_of(&self, tenant: TenantId) -> Option<LeaseId> {
        self.line(tenant).and_then(|line| line.places.first()).map(|place| place.lease)
    }

    /// The first waiter of each tenant, also of those who stand aside.
    pub fn first_waiters(&self) -> impl Iterator<Item = (LeaseId, TenantId)> + '_ {
        let lines = self.lines.iter().zip(0..);
        lines.filter_map(|(line, number)| line.places.first().map(|place| (place.lease, TenantId(number))))
    }

    /// Every waiter, also who stands aside, first first.
    pub fn all_waiters(&self) -> impl Iterator<Item = (LeaseId, TenantId)> + '_ {
        let mut cursor = QueueCursor::default();
        for tenant in &self.skipped {
            let line = &self.lines[tenant.0 as usize];
            if let Some(first) = line.places.first() {
                let head = (line.key(first, self.debt_max), first.lease, *tenant);
                cursor.followed.insert(*tenant);
                cursor.later.push(Reverse((head, *first)));
            }
        }
        std::iter::from_fn(move || {
            let (place, tenant) = cursor.next(self)?;
            cursor.advance(self, place, tenant);
            Some((place.lease, tenant))
        })
    }

    /// Every waiter that does not stand aside, first first.
    pub fn iter(&self) -> impl Iterator<Item = (LeaseId, TenantId)> + '_ {
        let mut cursor = QueueCursor::default();
        std::iter::from_fn(move || {
            let (place, tenant) = cursor.next(self)?;
            cursor.advance(self, place, tenant);
            Some((place.lease, tenant))
        })
    }
}

/// Walks the queue in order, while waiters are taken out and tenants are charged on the way.
#[derive(Debug, Default)]
pub struct QueueCursor {
    /// The last head visited.
    head: Option<QueueHead>,
    /// Tenants whose head was visited: from there on their lines are followed place by place.
    followed: BTreeSet<TenantId>,
    /// The next waiters of those.
    later: BinaryHeap<Reverse<(QueueHead, QueuePlace)>>,
}

impl QueueCursor {
    /// The next waiter. Call [`QueueCursor::advance`] once it was dealt with, unless its tenant is to be
    /// passed over.
    pub fn next(&mut self, queue: &Queue) -> Option<(QueuePlace, TenantId)> {
        let from = self.head.map_or(Unbounded, Excluded);
        let mut heads = queue.heads.range((from, Unbounded));
        let head = heads.find(|(_, _, tenant)| !self.followed.contains(tenant)).copied();
        let later = self.later.peek().map(|Reverse((later, _))| *later);
        match (head, later) {
            (Some(head), later) if later.is_none_or(|later| head < later) => {
                self.head = Some(head);
                self.followed.insert(head.2);
                let place = queue.line(head.2)?.places.first()?;
                Some((*place, head.2))
            }
            _ => self.later.pop().map(|Reverse(((_, _, tenant), place))| (place, tenant)),
        }
    }

    /// Whoever stands behind the waiter just given comes too, whether that one stayed or was taken
    /// out, by what its tenant owes by now.
    pub fn advance(&mut self, queue: &Queue, place: QueuePlace, tenant: TenantId) {
        let Some(line) = queue.line(tenant) else { return };
        if let Some(next) = line.places.range((Excluded(place), Unbounded)).next() {
            self.later.push(Reverse(((line.key(next, queue.debt_max), next.lease, tenant), *next)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DEBT_MAX: Span = Span(30);

    /// One line of a story: a tenant's ask at a time with a head start.
    type Asked = (u32, u64, i64);

    /// What a tenant owes, since when its first waiter is the first, and when it was last served.
    type Debts = (u64, u64, u64);

    #[test]
    fn times_at_their_end_put_a_waiter_last() {
        let place = QueuePlace { rank: 5, lease: LeaseId(1), arrival: Time(5) };
        let end = Time(u64::MAX);
        assert_eq!(place.key(end, end, Span(u64::MAX)), i64::MAX);
        assert_eq!(place.key(Time(0), Time(0), DEBT_MAX), 5);
    }

    fn queue(asks: &[Asked], marks: &[Debts]) -> (Queue, Vec<(QueuePlace, TenantId)>) {
        let mut queue = Queue::new(DEBT_MAX);
        let mut all = Vec::new();
        for (number, (tenant, arrival, start)) in asks.iter().enumerate() {
            let place =
                QueuePlace { rank: *arrival as i64 - start, lease: LeaseId(number as u64), arrival: Time(*arrival) };
            queue.insert(TenantId(*tenant), place);
            all.push((place, TenantId(*tenant)));
        }
        for (tenant, (debt_clock, first_since, served)) in (0..).zip(marks) {
            queue.set_debt_clock(TenantId(tenant), Time(*debt_clock), Time(*first_since));
            queue.set_last_served(TenantId(tenant), Time(*served));
        }
        (queue, all)
    }

    /// The rule as it is written, without any structure: again and again, of each tenant's first
    /// waiter of those `left` the one that comes first.
    fn by_force(all: &[(QueuePlace, TenantId)], left: &[(QueuePlace, TenantId)], marks: &[Debts]) -> Vec<LeaseId> {
        let mut left = left.to_vec();
        let mut order = Vec::new();
        while !left.is_empty() {
            let firsts = left.iter().filter(|(place, tenant)| {
                left.iter()
                    .all(|(other, whose)| whose != tenant || (place.rank, place.lease) <= (other.rank, other.lease))
            });
            let key = |place: &QueuePlace, tenant: TenantId| {
                let (debt_clock, first_since, served) = marks[tenant.0 as usize];
                let behind = all
                    .iter()
                    .any(|(other, whose)| *whose == tenant && (other.rank, other.lease) < (place.rank, place.lease));
                let first_since = if behind { first_since.max(served) } else { first_since };
                let first = place.arrival.0.max(first_since) as i64;
                let head_start = place.arrival.0 as i64 - place.rank;
                first + (debt_clock as i64 - first).clamp(0, DEBT_MAX.0 as i64) - head_start
            };
            let (next, _) = *firsts.min_by_key(|(place, tenant)| (key(place, *tenant), place.lease)).unwrap();
            order.push(next.lease);
            left.retain(|(place, _)| place.lease != next.lease);
        }
        order
    }

    proptest! {
        #[test]
        fn the_order_is_that_of_the_rule_itself(
            asks in prop::collection::vec((0u32..5, 0u64..100, -20i64..20), 0..60),
            marks in prop::collection::vec((0u64..200, 0u64..150, 0u64..150), 5),
            gone in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let (mut queue, mut all) = queue(&asks, &marks);
            for index in gone {
                if !all.is_empty() {
                    let (place, tenant) = all.swap_remove(index.index(all.len()));
                    queue.remove(tenant, place);
                }
            }
            let want = by_force(&all, &all, &marks);
            prop_assert_eq!(queue.iter().map(|(lease, _)| lease).collect::<Vec<_>>(), want.clone());
            prop_assert_eq!(queue.first(), want.first().copied());
            prop_assert_eq!(queue.len(), all.len());
        }

        /// Serving changes the order of those not served yet, exactly as a new walk would see it.
        #[test]
        fn a_charge_on_the_way_moves_only_those_who_come_later(
            asks in prop::collection::vec((0u32..4, 0u64..50, -9i64..9), 0..40),
            marks in prop::collection::vec((0u64..60, 0u64..60, 0u64..60), 4),
            taken in prop::collection::vec((any::<bool>(), 0u64..40), 40),
        ) {
            let (mut queue, all) = queue(&asks, &marks);
            let mut marks = marks;
            let mut cursor = QueueCursor::default();
            let mut kept: Vec<(QueuePlace, TenantId)> = Vec::new();
            let (mut there, mut left) = (all.clone(), all);
            while let Some((place, tenant)) = cursor.next(&queue) {
                let first = by_force(&there, &left, &marks)[0];
                prop_assert_eq!(place.lease, first);
                left.retain(|(other, _)| other.lease != place.lease);
                let (take, charge) = taken[place.lease.0 as usize];
                if take {
                    let (debt_clock, first_since, served) = &mut marks[tenant.0 as usize];
                    *debt_clock += charge;
                    if queue.is_first(tenant, place) {
                        *first_since += charge / 2;
                    }
                    *served += charge / 3;
                    queue.set_debt_clock(tenant, Time(*debt_clock), Time(*first_since));
                    queue.set_last_served(tenant, Time(*served));
                    queue.remove(tenant, place);
                    there.retain(|(other, _)| other.lease != place.lease);
                } else {
                    kept.push((place, tenant));
                }
                cursor.advance(&queue, place, tenant);
            }
            prop_assert!(left.is_empty());
            prop_assert_eq!(queue.len(), kept.len());
        }

        #[test]
        fn who_stands_aside_is_passed_over_and_comes_back(
            asks in prop::collection::vec((0u32..4, 0u64..50, 0i64..9), 0..40),
            aside in 0u32..4,
        ) {
            let marks = [(0, 0, 0); 4];
            let (mut queue, all) = queue(&asks, &marks);
            queue.skip_tenant(TenantId(aside));
            let others: Vec<_> = all.iter().copied().filter(|(_, tenant)| tenant.0 != aside).collect();
            prop_assert_eq!(queue.iter().map(|(lease, _)| lease).collect::<Vec<_>>(), by_force(&all, &others, &marks));
            prop_assert_eq!(queue.all_waiters().map(|(lease, _)| lease).collect::<Vec<_>>(), by_force(&all, &all, &marks));
            queue.unskip_tenant(TenantId(aside));
            prop_assert_eq!(queue.iter().map(|(lease, _)| lease).collect::<Vec<_>>(), by_force(&all, &all, &marks));
        }
    }
}
