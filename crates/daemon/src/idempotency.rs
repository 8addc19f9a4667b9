//! Idempotency-Keys: the same request again gets the same answer, and nothing happens twice.
//!
//! The journal keeps the answers for a day: of each tenant the latest [`ANSWERS_OF_TENANT`], and [`ANSWERS_MAX`] of
//! all, beyond which the tenant with most loses the oldest. So no tenant's keys are forgotten for those of another with
//! more. A tenant's own oldest key makes way for its newest, unless it is younger than [`KEPT_AT_LEAST`]: then the new
//! one is refused. A program that repeats a request does so within seconds, and a refusal it can see is better than a
//! second lease it cannot; a whole day of refusals would cost a busy program its leases.
//!
//! Here are the latest answers of each tenant, whole, and of the others only that there is an answer. So a key is one
//! of
//!
//! ```text
//!   under way   here, its batch not on the disk     409
//!   whole       here, its batch on the disk         answered at once
//!   stored      its answer is on the disk           the caller reads it there (`LoopClient::call`), and asks again
//!   new         none of these                       decided
//! ```
//! Why nothing happens twice though reading takes time and the loop goes on: only an answer on the disk ceases to be
//! whole, so a caller that is sent to read finds what was stored when it was sent (or the answer is over a day old, or
//! beyond those that are kept). An answer that came since is whole, or under way, when the caller asks again. Or so
//! many came that it is stored already: then its number is larger than the one that the caller was sent with, and the
//! caller is sent again.

use crate::looper::{IdempotencyKey, Reply};
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::BuildHasher;
use sublet_core::units::{Span, Time};
use sublet_wire::{Code, Problem};

/// Answers that the journal keeps for all tenants.
pub const ANSWERS_MAX: usize = 100_000;
/// Answers that the journal keeps for one tenant.
pub const ANSWERS_OF_TENANT: usize = 10_000;
/// No answer is forgotten for a newer one of the same tenant before this.
pub const KEPT_AT_LEAST: Span = Span::secs(60);
/// Stored answers that are known here; more than the journal keeps, because a key that is not known here is taken for a
/// new one.
const STORED_MAX: usize = 2 * ANSWERS_MAX;
/// Answers that are here whole; the oldest are the first to be stored only.
const WHOLE_MAX: usize = 100_000;
/// Whole answers of one tenant, so that no tenant takes the places of others.
const WHOLE_OF_TENANT: usize = 2_000;

/// Used keys.
#[derive(Default)]
pub struct IdempotencyKeys {
    known: HashMap<(String, String), TenantKey>,
    /// All of them by age, which is the order of their numbers.
    ages: BTreeMap<u64, (String, String)>,
    of_tenant: HashMap<String, TenantKeys>,
    stored: Stored,
    number: u64,
    /// Keys up to this number are on the disk. Larger ones are under way.
    durable_through: u64,
}

struct TenantKey {
    fingerprint: [u8; 32],
    reply: Reply,
    number: u64,
}

/// The keys of one tenant, the oldest first: those that are stored, then those that are whole.
#[derive(Default)]
struct TenantKeys {
    stored: VecDeque<StoredKey>,
    whole: VecDeque<WholeKey>,
}

#[derive(Clone, Copy)]
struct WholeKey {
    number: u64,
    at: Time,
}

#[derive(Clone, Copy)]
struct StoredKey {
    hash: u64,
    number: u64,
    at: Time,
}

impl TenantKeys {
    fn is_empty(&self) -> bool {
        self.stored.is_empty() && self.whole.is_empty()
    }

    /// When the key was used that the journal forgets for a new one; `None` while it forgets none.
    fn next_forgotten(&self) -> Option<Time> {
        let place = (self.stored.len() + self.whole.len()).checked_sub(ANSWERS_OF_TENANT)?;
        let stored = self.stored.get(place).map(|key| key.at);
        stored.or_else(|| self.whole.get(place - self.stored.len().min(place)).map(|key| key.at))
    }
}

/// Answers that only the disk has, each as a number. Two keys with the same hash cost one read.
#[derive(Default)]
struct Stored {
    hasher: RandomState,
    /// The number of each key, by its hash.
    numbers: HashMap<u64, u64>,
    /// How many there are, of all tenants.
    count: usize,
}

impl Stored {
    fn number(&self, name: &(String, String)) -> Option<u64> {
        // Most services never have so many: then nothing is hashed.
        if self.numbers.is_empty() { None } else { self.numbers.get(&self.hasher.hash_one(name)).copied() }
    }

    fn push(&mut self, of: &mut TenantKeys, name: &(String, String), key: WholeKey) {
        let hash = self.hasher.hash_one(name);
        self.numbers.insert(hash, key.number);
        of.stored.push_back(StoredKey { hash, number: key.number, at: key.at });
        self.count += 1;
        if of.stored.len() > ANSWERS_OF_TENANT {
            self.forget_oldest(of);
        }
    }

    fn forget_oldest(&mut self, of: &mut TenantKeys) {
        let Some(oldest) = of.stored.pop_front() else { return };
        self.count -= 1;
        // The key may have been used again since.
        if self.numbers.get(&oldest.hash) == Some(&oldest.number) {
            self.numbers.remove(&oldest.hash);
        }
    }
}

/// What is known about a key and a request.
pub enum KeyState {
    /// The key is new.
    Never,
    /// The request was answered so.
    Answered(Reply),
    /// The disk may have its answer. A caller that has read there sends this number when it asks again.
    Stored(u64),
}

/// The answer if the key was used for another request.
pub fn repeated(stored: [u8; 32], key: &IdempotencyKey, reply: impl FnOnce() -> Reply) -> Reply {
    if stored == key.fingerprint {
        return reply();
    }
    let problem = Problem::new(Code::KeyReused, "this Idempotency-Key was used for another request");
    Reply::problem(&problem.hint("use a new key for a new request"))
}

impl IdempotencyKeys {
    /// Looks a request up. `looked`: the number that its caller was sent to read with.
    pub fn look_up(&self, tenant: &str, key: &IdempotencyKey, looked: Option<u64>) -> KeyState {
        let name = (tenant.to_owned(), key.key.clone());
        let Some(used) = self.known.get(&name) else {
            return match self.stored.number(&name) {
                Some(number) if looked.is_none_or(|looked| number > looked) => KeyState::Stored(self.number),
                _ => KeyState::Never,
            };
        };
        KeyState::Answered(repeated(used.fingerprint, key, || {
            if self.is_durable(used) {
                return used.reply.clone();
            }
            let problem =
                Problem::new(Code::KeyInUse, "the first request with this Idempotency-Key is still under way");
            Reply::problem(&problem.retry_after(1))
        }))
    }

    /// Whether a tenant may use a new key now; if not, after how many seconds it may.
    pub fn check_room(&self, tenant: &str, now: Time) -> Result<(), u64> {
        let next = self.of_tenant.get(tenant).and_then(TenantKeys::next_forgotten);
        let missing = next.map_or(Span::ZERO, |at| Span(KEPT_AT_LEAST.0.saturating_sub(now.since(at).0)));
        if missing == Span::ZERO { Ok(()) } else { Err(missing.secs_ceil()) }
    }

    /// Keeps an answer. It is given again once [`IdempotencyKeys::set_durable_through`] covers it.
    pub fn add(&mut self, tenant: &str, key: &IdempotencyKey, reply: &Reply, now: Time) {
        self.insert(tenant.to_owned(), key.key.clone(), (key.fingerprint, reply.clone()), now);
    }

    /// Keeps an answer that the disk has had since `at`.
    pub fn load(&mut self, tenant: String, key: String, fingerprint: [u8; 32], reply: Reply, at: Time) {
        self.insert(tenant, key, (fingerprint, reply), at);
        self.durable_through = self.number;
    }

    /// The number of the key that was added last.
    pub fn last_number(&self) -> u64 {
        self.number
    }

    /// The keys up to this number are on the disk. Say so before their answers leave: a client may repeat its request as
    /// soon as it has its answer.
    pub fn set_durable_through(&mut self, number: u64) {
        self.durable_through = self.durable_through.max(number);
    }

    fn is_durable(&self, used: &TenantKey) -> bool {
        used.number <= self.durable_through
    }

    fn insert(&mut self, tenant: String, key: String, (fingerprint, reply): ([u8; 32], Reply), at: Time) {
        self.number += 1;
        let number = self.number;
        self.of_tenant.entry(tenant.clone()).or_default().whole.push_back(WholeKey { number, at });
        self.ages.insert(number, (tenant.clone(), key.clone()));
        self.known.insert((tenant.clone(), key), TenantKey { fingerprint, reply, number });
        while let Some(number) = self.too_old(&tenant)
            && self.shorten(number)
        {}
        while self.stored.count > STORED_MAX {
            let most = self.of_tenant.values_mut().max_by_key(|of| of.stored.len());
            most.into_iter().for_each(|of| self.stored.forget_oldest(of));
        }
    }

    /// The oldest whole key, if there are too many of this tenant or of all.
    fn too_old(&self, tenant: &str) -> Option<u64> {
        let of = self.of_tenant.get(tenant).filter(|of| of.whole.len() > WHOLE_OF_TENANT);
        let all = self.ages.keys().next().filter(|_| self.known.len() > WHOLE_MAX).copied();
        of.and_then(|of| of.whole.front()).map(|key| key.number).or(all)
    }

    /// Keeps only the number of a tenant's oldest whole key. One that is not on the disk yet stays, and those behind
    /// it: there are no more than requests under way.
    fn shorten(&mut self, number: u64) -> bool {
        let durable = |name: &(String, String)| self.known.get(name).is_none_or(|used| self.is_durable(used));
        let Some(name) = self.ages.get(&number).filter(|name| durable(name)).cloned() else { return false };
        self.ages.remove(&number);
        self.known.remove(&name);
        if let Some(of) = self.of_tenant.get_mut(&name.0)
            && let Some(key) = of.whole.pop_front()
        {
            self.stored.push(of, &name, key);
        }
        true
    }

    /// Forgets every answer that is not on the disk: a batch failed, and its decisions never happened.
    pub fn forget_undurable(&mut self) {
        let durable_through = self.durable_through;
        self.known.retain(|_, used| used.number <= durable_through);
        let known = &self.known;
        self.ages.retain(|_, name| known.contains_key(name));
        let ages = &self.ages;
        self.of_tenant.retain(|_, of| {
            of.whole.retain(|key| ages.contains_key(&key.number));
            !of.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time(1_000_000_000);

    fn key(text: &str) -> IdempotencyKey {
        IdempotencyKey { key: text.to_owned(), fingerprint: [0; 32] }
    }

    /// Adds a key, and returns its number.
    fn enter(keys: &mut IdempotencyKeys, tenant: &str, text: &str) -> u64 {
        keys.add(tenant, &key(text), &Reply::new(200, &()), NOW);
        keys.last_number()
    }

    /// Adds a key whose answer is on the disk.
    fn settled(keys: &mut IdempotencyKeys, tenant: &str, text: &str) {
        let number = enter(keys, tenant, text);
        keys.set_durable_through(number);
    }

    fn shown(seen: KeyState) -> String {
        match seen {
            KeyState::Never => "new".to_owned(),
            KeyState::Answered(reply) if reply.is_problem() => reply.body,
            KeyState::Answered(_) => "whole".to_owned(),
            KeyState::Stored(_) => "stored".to_owned(),
        }
    }

    fn look(keys: &IdempotencyKeys, tenant: &str, text: &str) -> String {
        shown(keys.look_up(tenant, &key(text), None))
    }

    #[test]
    fn a_key_under_way_is_in_use_until_its_batch_is_on_the_disk() {
        let mut keys = IdempotencyKeys::default();
        assert_eq!(look(&keys, "ana", "k"), "new");
        let number = enter(&mut keys, "ana", "k");
        assert!(look(&keys, "ana", "k").contains("key_in_use"));
        let other = IdempotencyKey { fingerprint: [1; 32], ..key("k") };
        assert!(shown(keys.look_up("ana", &other, None)).contains("key_reused"), "a wrong request is refused at once");
        // The next batch is open already while this one is written.
        enter(&mut keys, "ana", "next");
        keys.set_durable_through(number);
        assert_eq!(look(&keys, "ana", "k"), "whole");
        assert!(look(&keys, "ana", "next").contains("key_in_use"));
        assert!(shown(keys.look_up("ana", &other, None)).contains("key_reused"));
        assert_eq!(look(&keys, "ben", "k"), "new", "another tenant's key is another key");
    }

    #[test]
    fn no_key_is_forgotten_or_stored_before_the_bound_of_its_tenant() {
        let mut keys = IdempotencyKeys::default();
        for n in 0..WHOLE_OF_TENANT + 1 {
            settled(&mut keys, "ana", &format!("k{n}"));
        }
        assert_eq!([look(&keys, "ana", "k0"), look(&keys, "ana", "k1")], ["stored", "whole"]);
        for n in 0..WHOLE_MAX - WHOLE_OF_TENANT {
            settled(&mut keys, &format!("user:{n}"), "k");
        }
        assert_eq!(look(&keys, "ana", "k1"), "whole", "all that there is room for");
        settled(&mut keys, "ben", "k");
        assert_eq!(look(&keys, "ana", "k1"), "stored");
        assert_eq!([look(&keys, "ana", "k2"), look(&keys, "user:0", "k")], ["whole", "whole"]);
        assert_eq!((keys.known.len(), keys.ages.len()), (WHOLE_MAX, WHOLE_MAX));
        assert_eq!(keys.of_tenant.values().map(|of| of.whole.len()).sum::<usize>(), WHOLE_MAX);
    }

    #[test]
    fn as_many_stored_keys_of_a_tenant_are_known_as_the_journal_keeps() {
        let mut keys = IdempotencyKeys::default();
        for n in 0..WHOLE_OF_TENANT + ANSWERS_OF_TENANT + 1 {
            settled(&mut keys, "ana", &format!("k{n}"));
        }
        assert_eq!([look(&keys, "ana", "k0"), look(&keys, "ana", "k1")], ["new", "stored"]);
        assert_eq!((keys.stored.numbers.len(), keys.stored.count), (ANSWERS_OF_TENANT, ANSWERS_OF_TENANT));
    }

    #[test]
    fn keys_of_one_tenant_never_make_another_tenants_new_again() {
        let mut keys = IdempotencyKeys::default();
        settled(&mut keys, "ana", "hers");
        for n in 0..WHOLE_MAX + ANSWERS_MAX {
            settled(&mut keys, "ben", &format!("k{n}"));
        }
        assert_eq!(look(&keys, "ana", "hers"), "whole");
        // Many tenants with as many as each may have: those with most lose theirs first.
        for tenant in 0..=STORED_MAX / ANSWERS_OF_TENANT {
            for n in 0..WHOLE_OF_TENANT + ANSWERS_OF_TENANT {
                settled(&mut keys, &format!("user:{tenant}"), &format!("k{n}"));
            }
        }
        assert_ne!(look(&keys, "ana", "hers"), "new");
        assert_eq!(keys.stored.count, STORED_MAX);
    }

    #[test]
    fn a_tenant_with_only_young_keys_is_refused_a_new_one_until_the_oldest_is_a_minute_old() {
        let mut keys = IdempotencyKeys::default();
        let room = |keys: &IdempotencyKeys, tenant: &str, after_s: u64| {
            keys.check_room(tenant, Time(NOW.0 + after_s * 1_000_000))
        };
        for n in 0..ANSWERS_OF_TENANT {
            assert_eq!(room(&keys, "ana", 0), Ok(()), "key {n}");
            settled(&mut keys, "ana", &format!("k{n}"));
        }
        assert_eq!([room(&keys, "ana", 0), room(&keys, "ana", 59), room(&keys, "ana", 60)], [Err(60), Err(1), Ok(())]);
        assert_eq!(room(&keys, "ben", 0), Ok(()));
        let late = Time(NOW.0 + 60_000_000);
        keys.add("ana", &key("late"), &Reply::new(200, &()), late);
        keys.set_durable_through(keys.last_number());
        assert_eq!(room(&keys, "ana", 60), Ok(()), "the next oldest is a minute old, too");
    }

    #[test]
    fn answers_that_are_not_on_the_disk_stay_whole() {
        let mut keys = IdempotencyKeys::default();
        for n in 0..WHOLE_OF_TENANT + 5 {
            enter(&mut keys, "ana", &format!("k{n}"));
        }
        assert!(look(&keys, "ana", "k0").contains("key_in_use"));
        keys.set_durable_through(keys.last_number());
        assert_eq!(look(&keys, "ana", "k0"), "whole");
        settled(&mut keys, "ana", "one more");
        assert_eq!(["k0", "k5", "k6"].map(|text| look(&keys, "ana", text)), ["stored", "stored", "whole"]);
    }

    #[test]
    fn a_caller_that_read_in_vain_is_let_in_unless_its_key_was_stored_meanwhile() {
        let mut keys = IdempotencyKeys::default();
        for n in 0..WHOLE_OF_TENANT + 1 {
            settled(&mut keys, "ana", &format!("k{n}"));
        }
        let again = |keys: &IdempotencyKeys, looked| shown(keys.look_up("ana", &key("k0"), Some(looked)));
        let KeyState::Stored(looked) = keys.look_up("ana", &key("k0"), None) else { panic!("it is stored") };
        assert_eq!(again(&keys, looked), "new", "the disk has forgotten it");
        // Another request with the same key was quicker.
        let number = enter(&mut keys, "ana", "k0");
        assert!(again(&keys, looked).contains("key_in_use"));
        keys.set_durable_through(number);
        assert_eq!(again(&keys, looked), "whole");
        for n in 0..WHOLE_OF_TENANT {
            settled(&mut keys, "ana", &format!("later{n}"));
        }
        assert_eq!(again(&keys, looked), "stored", "it is not what was looked for");
    }

    #[test]
    fn answers_that_were_not_durable_are_forgotten() {
        let mut keys = IdempotencyKeys::default();
        settled(&mut keys, "ana", "durable");
        enter(&mut keys, "ana", "lost");
        enter(&mut keys, "ben", "lost");
        keys.forget_undurable();
        assert_eq!(look(&keys, "ana", "durable"), "whole");
        assert_eq!([look(&keys, "ana", "lost"), look(&keys, "ben", "lost")], ["new", "new"]);
        assert_eq!((keys.ages.len(), keys.of_tenant.len()), (1, 1));
    }
}
