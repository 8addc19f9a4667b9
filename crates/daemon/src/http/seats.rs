//! Seats: how many connections, long polls and event streams there may be, of each caller and in all.
//!
//! ```text
//!   Unix socket   an operator ──► operators   ┐ refused ──► spare: health checks and refusals only
//!                 another user ──► users      ┘
//!   TCP           any address ──► unproven ──a good token──► tokens
//! ```
//! A caller with many connections cannot take the seats of others: each has a limit of its own, and where all seats of
//! a kind are taken, the caller with most of them loses the oldest to a caller with fewer. Seats of operators, and of
//! callers with a good token, are apart from those of all others.
//!
//! Absent on purpose: sockets, time, and what a seat is for.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use sublet_wire::{Code, Problem};
use tokio::sync::Notify;

/// When to come again if there was no seat, in seconds.
const BUSY_S: u64 = 5;

/// How many seats of one kind there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// For all callers together.
    pub all: usize,
    /// For one of them.
    pub each: usize,
}

/// All kinds of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of local users, on the socket.
    pub users: Share,
    /// Of operators, on the socket. Where a user runs the daemon for itself, these are that user's.
    pub operators: Share,
    /// Beyond those two: connections that get health checks and refusals.
    pub spare: Share,
    /// Of tenants with a good token, over TCP.
    pub tokens: Share,
    /// Of addresses that have not shown a good token yet, over TCP.
    pub unproven: Share,
}

/// A user's programs have one connection each that waits for a lease; the largest crowd of them in our tests is 200.
/// One user gets at most an eighth of all seats for users, one token's tenant an eighth of those for tokens.
pub const LIMITS: Limits = Limits {
    users: Share { all: 4_096, each: 512 },
    operators: Share { all: 1_024, each: 1_024 },
    spare: Share { all: 64, each: 32 },
    tokens: Share { all: 1_024, each: 128 },
    unproven: Share { all: 128, each: 32 },
};

/// Calls that wait for a lease to change. Half of a user's connections, so that a user with as many waiting programs as
/// may be can still look at them and end them.
pub const POLLS: Share = Share { all: 4_096, each: 256 };
/// Event streams. Each reads the log whenever it grows, so they are fewer.
pub const STREAMS: Share = Share { all: 1_024, each: 64 };

/// Descriptors for all but connections: programs with the shim, processes of leases, the journal, workers.
const OTHER_FILES: u64 = sublet_host::shims::SHIM_CONNECTIONS_MAX as u64 + 1_024;

impl Limits {
    /// Descriptors that connections can take together.
    fn seats(&self) -> u64 {
        let all = [self.users, self.operators, self.spare, self.tokens, self.unproven];
        all.iter().map(|share| share.all as u64).sum()
    }

    /// Descriptors that the daemon needs at most.
    pub fn files(&self) -> u64 {
        self.seats() + OTHER_FILES
    }

    /// These limits, or smaller ones in proportion that do with so many descriptors.
    pub fn within(self, files: u64) -> Limits {
        let (seats, free) = (self.seats(), files - OTHER_FILES.min(files / 2));
        if free >= seats {
            return self;
        }
        // Not less than 1 of each: a daemon with very few descriptors still answers.
        let part = |count: usize| usize::try_from(count as u64 * free / seats).unwrap_or(count).max(1);
        let scaled = |share: Share| Share { all: part(share.all), each: part(share.each) };
        Limits {
            users: scaled(self.users),
            operators: scaled(self.operators),
            spare: scaled(self.spare),
            tokens: scaled(self.tokens),
            unproven: scaled(self.unproven),
        }
    }
}

/// What happens to a caller that has as many seats as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtLimit {
    /// It is refused.
    Refuse,
    /// Its own oldest seat goes to the new one.
    ReplaceOldest,
}

/// Seats of one kind.
#[derive(Debug)]
pub struct ConnectionLimits<K>(Arc<Mutex<SeatTable<K>>>);

#[derive(Debug)]
struct SeatTable<K> {
    share: Share,
    at_limit: AtLimit,
    taken: usize,
    /// The next seat's number: a smaller one is older.
    number: u64,
    /// The seats of each caller, with what tells their owners that they lost them.
    of: HashMap<K, BTreeMap<u64, Arc<Notify>>>,
}

/// A seat; given back when it is dropped.
#[derive(Debug)]
pub struct ConnectionPermit<K: Hash + Eq> {
    inside: Arc<Mutex<SeatTable<K>>>,
    key: K,
    number: u64,
}

/// Why there was no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitReached {
    /// The caller has this many, and may have no more.
    Own(usize),
    /// All callers together have this many, and none has many more than this caller.
    All(usize),
}

impl LimitReached {
    /// What a caller is told: `own` is a sentence's start about the caller, `what` is what there are too many of.
    pub fn problem(self, own: &str, what: &str) -> Problem {
        let detail = match self {
            LimitReached::Own(limit) => format!("{own} has {limit} {what}, and may have no more at a time"),
            LimitReached::All(limit) => format!("there are {limit} {what}, and there can be no more at a time"),
        };
        Problem::new(Code::TooBusy, detail).retry_after(BUSY_S)
    }
}

impl<K> Clone for ConnectionLimits<K> {
    fn clone(&self) -> ConnectionLimits<K> {
        ConnectionLimits(Arc::clone(&self.0))
    }
}

impl<K: Hash + Eq + Clone> ConnectionLimits<K> {
    /// So many seats, all of them free.
    pub fn new(share: Share, at_limit: AtLimit) -> ConnectionLimits<K> {
        ConnectionLimits(Arc::new(Mutex::new(SeatTable { share, at_limit, taken: 0, number: 0, of: HashMap::new() })))
    }

    /// Takes a seat. `lost` is notified if the seat goes to another caller.
    pub fn take(&self, key: &K, lost: &Arc<Notify>) -> Result<ConnectionPermit<K>, LimitReached> {
        let mut inside = lock(&self.0);
        let own = inside.of.get(key).map_or(0, BTreeMap::len);
        match inside.at_limit {
            AtLimit::Refuse if own >= inside.share.each => return Err(LimitReached::Own(own)),
            AtLimit::ReplaceOldest if own >= inside.share.each => inside.close_oldest(key),
            _ if inside.taken >= inside.share.all => inside.make_room(own)?,
            _ => {}
        }
        let number = inside.number;
        inside.number += 1;
        inside.taken += 1;
        inside.of.entry(key.clone()).or_default().insert(number, Arc::clone(lost));
        Ok(ConnectionPermit { inside: Arc::clone(&self.0), key: key.clone(), number })
    }
}

impl<K: Hash + Eq + Clone> SeatTable<K> {
    /// Takes the oldest seat of the caller with most, for a caller that has `own`.
    fn make_room(&mut self, own: usize) -> Result<(), LimitReached> {
        let most = self.of.iter().max_by_key(|(_, seats)| (seats.len(), seats.keys().next().map(|age| u64::MAX - age)));
        match most.map(|(key, seats)| (key.clone(), seats.len())) {
            // Two callers with as many do not take each other's seats in turns.
            Some((key, count)) if self.at_limit == AtLimit::ReplaceOldest || count >= own + 2 => {
                self.close_oldest(&key);
                Ok(())
            }
            _ => Err(LimitReached::All(self.taken)),
        }
    }

    fn close_oldest(&mut self, key: &K) {
        let oldest = self.of.get(key).and_then(|seats| seats.first_key_value());
        if let Some((number, lost)) = oldest.map(|(number, lost)| (*number, Arc::clone(lost))) {
            lost.notify_one();
            self.give_back(key, number);
        }
    }
}

impl<K: Hash + Eq> SeatTable<K> {
    /// A seat that was lost to another caller is not there any more.
    fn give_back(&mut self, key: &K, number: u64) {
        let Some(seats) = self.of.get_mut(key) else { return };
        if seats.remove(&number).is_some() {
            self.taken -= 1;
        }
        if seats.is_empty() {
            self.of.remove(key);
        }
    }
}

impl<K: Hash + Eq> Drop for ConnectionPermit<K> {
    fn drop(&mut self) {
        lock(&self.inside).give_back(&self.key, self.number);
    }
}

/// Nothing here panics with the lock held.
fn lock<K>(inside: &Mutex<SeatTable<K>>) -> MutexGuard<'_, SeatTable<K>> {
    inside.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::task::Poll;

    fn take(seats: &ConnectionLimits<u32>, key: u32) -> Result<(ConnectionPermit<u32>, Arc<Notify>), LimitReached> {
        let lost = Arc::new(Notify::new());
        seats.take(&key, &lost).map(|seat| (seat, lost))
    }

    fn many(seats: &ConnectionLimits<u32>, key: u32, count: usize) -> Vec<(ConnectionPermit<u32>, Arc<Notify>)> {
        (0..count).map(|_| take(seats, key).unwrap()).collect()
    }

    /// Which of these seats went to another caller.
    fn lost(held: &[(ConnectionPermit<u32>, Arc<Notify>)]) -> Vec<usize> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let is_lost = |lost: &Notify| {
            let mut notified = std::pin::pin!(lost.notified());
            runtime.block_on(poll_fn(|context| Poll::Ready(notified.as_mut().poll(context).is_ready())))
        };
        held.iter().enumerate().filter(|(_, (_, lost))| is_lost(lost)).map(|(n, _)| n).collect()
    }

    #[test]
    fn a_caller_has_no_more_seats_than_its_own_limit_and_gets_one_back_for_each_it_gives_up() {
        let seats = ConnectionLimits::new(Share { all: 10, each: 2 }, AtLimit::Refuse);
        let mut held = many(&seats, 1, 2);
        assert_eq!(take(&seats, 1).unwrap_err(), LimitReached::Own(2));
        let other = take(&seats, 2).unwrap();
        held.pop();
        assert!(take(&seats, 1).is_ok(), "a seat that is dropped at once is free again");
        drop((held, other));
        let inside = lock(&seats.0);
        assert_eq!((inside.taken, inside.of.len()), (0, 0));
    }

    #[test]
    fn when_all_seats_are_taken_the_caller_with_most_loses_its_oldest_to_one_with_fewer() {
        let seats = ConnectionLimits::new(Share { all: 6, each: 4 }, AtLimit::Refuse);
        let (few, most) = (many(&seats, 1, 2), many(&seats, 2, 4));
        let third = take(&seats, 3).unwrap();
        assert_eq!((lost(&few), lost(&most)), (vec![], vec![0]));
        let second = take(&seats, 3).unwrap();
        assert_eq!(lost(&most), [1]);
        assert_eq!(take(&seats, 3).unwrap_err(), LimitReached::All(6), "each has two now");
        drop(most);
        assert_eq!(lock(&seats.0).taken, 4, "a seat that was lost is not given back twice");
        drop((second, third, few));
    }

    #[test]
    fn an_address_at_its_limit_loses_its_own_oldest_and_no_one_elses() {
        let seats = ConnectionLimits::new(Share { all: 5, each: 3 }, AtLimit::ReplaceOldest);
        let (flood, honest) = (many(&seats, 1, 3), take(&seats, 2).unwrap());
        let more = take(&seats, 1).unwrap();
        assert_eq!(lost(&flood), [0]);
        let _fifth = take(&seats, 3).unwrap();
        let newcomer = take(&seats, 4).unwrap();
        assert_eq!(lost(&flood), [1], "the oldest of the address with most");
        assert_eq!(lost(&[honest, more, newcomer]), [0; 0]);
    }

    #[test]
    fn limits_shrink_in_proportion_to_the_descriptors_that_there_are() {
        assert_eq!(LIMITS.within(LIMITS.files()), LIMITS);
        // Half of few descriptors are for everything else.
        let half = LIMITS.within(LIMITS.seats());
        assert_eq!((half.users, half.unproven), (Share { all: 2_048, each: 256 }, Share { all: 64, each: 16 }));
        let tiny = LIMITS.within(64);
        assert!(tiny.seats() <= 32 + 5, "{tiny:?}");
        assert_eq!(tiny.spare, Share { all: 1, each: 1 });
    }
}
