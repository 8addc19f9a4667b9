//! The order in which waiters are served.
//!
//! Each tenant has its own line; the heads of all lines stand in one more. So a
//! tenant held back by its own caps is passed over in one step, however many
//! asks it has. No clock: a waiter's rank never changes while it waits.

use crate::ids::{LeaseId, TenantId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Bound::{Excluded, Unbounded};

/// Where a waiter stands: its rank, then its arrival number.
pub type Place = (i64, LeaseId);

/// All waiters.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    lines: BTreeMap<TenantId, BTreeSet<Place>>,
    heads: BTreeSet<(Place, TenantId)>,
    len: usize,
}

impl Queue {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// How many of this tenant wait.
    pub fn len_of(&self, tenant: TenantId) -> usize {
        self.lines.get(&tenant).map_or(0, BTreeSet::len)
    }

    /// Adds a waiter.
    pub fn insert(&mut self, tenant: TenantId, place: Place) {
        let line = self.lines.entry(tenant).or_default();
        let old = line.first().copied();
        if line.insert(place) {
            self.len += 1;
            self.mend_head(tenant, old);
        }
    }

    /// Takes a waiter out.
    pub fn remove(&mut self, tenant: TenantId, place: Place) {
        let Some(line) = self.lines.get_mut(&tenant) else { return };
        let old = line.first().copied();
        if line.remove(&place) {
            self.len -= 1;
            self.mend_head(tenant, old);
        }
    }

    fn mend_head(&mut self, tenant: TenantId, old: Option<Place>) {
        let new = self.lines.get(&tenant).and_then(|line| line.first().copied());
        if old == new {
            return;
        }
        if let Some(old) = old {
            self.heads.remove(&(old, tenant));
        }
        match new {
            Some(new) => drop(self.heads.insert((new, tenant))),
            None => drop(self.lines.remove(&tenant)),
        }
    }

    /// The first of all.
    pub fn first(&self) -> Option<LeaseId> {
        self.heads.first().map(|((_, lease), _)| *lease)
    }

    /// Every waiter, first first.
    pub fn iter(&self) -> impl Iterator<Item = (LeaseId, TenantId)> + '_ {
        let mut cursor = Cursor::default();
        std::iter::from_fn(move || {
            let (place, tenant) = cursor.next(self)?;
            cursor.go_on(self, place, tenant);
            Some((place.1, tenant))
        })
    }
}

/// Walks the queue in order while waiters are taken out behind it.
#[derive(Debug, Default)]
pub struct Cursor {
    /// The last head visited.
    head: Option<(Place, TenantId)>,
    /// Second and later waiters of tenants whose head was kept.
    later: BinaryHeap<Reverse<(Place, TenantId)>>,
}

impl Cursor {
    /// The next waiter. Call [`Cursor::go_on`] once it was dealt with, unless its
    /// tenant is to be passed over.
    pub fn next(&mut self, queue: &Queue) -> Option<(Place, TenantId)> {
        let from = self.head.map_or(Unbounded, Excluded);
        let head = queue.heads.range((from, Unbounded)).next().copied();
        let later = self.later.peek().map(|r| r.0);
        match (head, later) {
            (Some(head), Some(later)) if later < head => self.later.pop().map(|r| r.0),
            (None, Some(_)) => self.later.pop().map(|r| r.0),
            (head, _) => {
                self.head = head.or(self.head);
                head
            }
        }
    }

    /// Whoever stands behind the waiter just given comes too, whether that one
    /// stayed or was taken out. (Behind a head that was taken out stands a new
    /// head, which comes by itself.)
    pub fn go_on(&mut self, queue: &Queue, place: Place, tenant: TenantId) {
        let Some(line) = queue.lines.get(&tenant) else { return };
        match line.range((Excluded(place), Unbounded)).next() {
            Some(next) if line.first() != Some(next) => self.later.push(Reverse((*next, tenant))),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_order_is_that_of_sorting_all_waiters(
            asks in prop::collection::vec((0u32..5, -20i64..20), 0..200),
            gone in prop::collection::vec(any::<prop::sample::Index>(), 0..50),
        ) {
            let mut queue = Queue::default();
            let mut all: Vec<(Place, TenantId)> = Vec::new();
            for (number, (tenant, rank)) in asks.iter().enumerate() {
                let entry = ((*rank, LeaseId(number as u64)), TenantId(*tenant));
                queue.insert(entry.1, entry.0);
                all.push(entry);
            }
            for index in gone {
                if !all.is_empty() {
                    let (place, tenant) = all.swap_remove(index.index(all.len()));
                    queue.remove(tenant, place);
                }
            }
            all.sort();
            let want: Vec<_> = all.iter().map(|((_, lease), tenant)| (*lease, *tenant)).collect();
            prop_assert_eq!(queue.iter().collect::<Vec<_>>(), want);
            prop_assert_eq!(queue.first(), all.first().map(|(place, _)| place.1));
            prop_assert_eq!(queue.len(), all.len());
        }

        #[test]
        fn waiters_taken_out_while_walking_hide_nobody(
            asks in prop::collection::vec((0u32..4, 0i64..9), 0..60),
            taken in prop::collection::vec(any::<bool>(), 60),
        ) {
            let mut queue = Queue::default();
            let mut all = BTreeSet::new();
            for (number, (tenant, rank)) in asks.iter().enumerate() {
                let entry = ((*rank, LeaseId(number as u64)), TenantId(*tenant));
                queue.insert(entry.1, entry.0);
                all.insert(entry);
            }
            let mut cursor = Cursor::default();
            let mut seen = Vec::new();
            while let Some((place, tenant)) = cursor.next(&queue) {
                seen.push((place, tenant));
                if taken[place.1.0 as usize] {
                    queue.remove(tenant, place);
                }
                cursor.go_on(&queue, place, tenant);
            }
            prop_assert_eq!(seen, all.into_iter().collect::<Vec<_>>());
        }
    }
}
