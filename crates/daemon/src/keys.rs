//! Idempotency-Keys: the same request again gets the same answer, and nothing
//! happens twice.
//!
//! The journal keeps the answers: for a day, and the latest [`ANSWERS_MAX`] of all tenants. Here are the latest of
//! each tenant, whole, and of the others only that there is an answer. So a key is one of
//!
//! ```text
//!   under way   here, its batch not on the disk     409
//!   whole       here, its batch on the disk         answered at once
//!   stored      its answer is on the disk           whoever asked looks there (`Post::call`), and asks again
//!   new         none of these                       decided
//! ```
//! Why nothing happens twice though looking takes time and the loop goes on: only what is on the disk ceases to be
//! whole, so whoever is sent to look finds what was stored when it was sent (or it is over a day old, or beyond
//! those that are kept). What came since is whole, or under way, when it asks again; or it was so many that it is
//! stored already: then its number is larger than the one that the asker was sent with, and it is sent again.

use crate::mail::{Key, Reply};
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::BuildHasher;
use sublet_wire::{Code, Problem};

/// Answers that the journal keeps, of all tenants; the oldest are forgotten first.
pub const ANSWERS_MAX: usize = 100_000;
/// Answers that are here whole; the oldest cease to be first.
const WHOLE_MAX: usize = 100_000;
/// Whole answers of one tenant, so that nobody takes others' place.
const WHOLE_OF_TENANT: usize = 2_000;

/// Keys that were used.
#[derive(Default)]
pub struct Keys {
    known: HashMap<(String, String), Used>,
    /// All of them by age, which their numbers are.
    ages: BTreeMap<u64, (String, String)>,
    /// Each tenant's, oldest first.
    of_tenant: HashMap<String, VecDeque<u64>>,
    stored: Stored,
    number: u64,
    open: Vec<(String, String)>,
    syncing: Vec<(String, String)>,
}

struct Used {
    fingerprint: [u8; 32],
    reply: Reply,
    durable: bool,
}

/// Answers that only the disk has: no more of each than a number. Two keys with the same one cost a look.
#[derive(Default)]
struct Stored {
    hasher: RandomState,
    /// The number of each key, to its age.
    ages: HashMap<u64, u64>,
    keys: BTreeMap<u64, u64>,
}

impl Stored {
    fn put(&mut self, name: &(String, String), age: u64) {
        let key = self.hasher.hash_one(name);
        if let Some(before) = self.ages.insert(key, age) {
            self.keys.remove(&before);
        }
        self.keys.insert(age, key);
        if self.keys.len() > ANSWERS_MAX
            && let Some((_, key)) = self.keys.pop_first()
        {
            self.ages.remove(&key);
        }
    }

    fn age(&self, name: &(String, String)) -> Option<u64> {
        // Most services never have so many: then nothing is hashed.
        if self.ages.is_empty() { None } else { self.ages.get(&self.hasher.hash_one(name)).copied() }
    }
}

/// What a key says about a request.
pub enum Seen {
    /// Nothing: it is new.
    Never,
    /// It was answered so.
    Answered(Reply),
    /// The disk may have its answer. Whoever has looked there says this number when it asks again.
    Stored(u64),
}

/// What the answer to a key's first request says to another request.
pub fn repeated(stored: [u8; 32], key: &Key, reply: impl FnOnce() -> Reply) -> Reply {
    if stored == key.fingerprint {
        return reply();
    }
    let problem = Problem::new(Code::KeyReused, "this Idempotency-Key was used for another request");
    Reply::problem(&problem.hint("use a new key for a new request"))
}

impl Keys {
    /// Whether this request was made before. `looked`: the number its caller was sent to look with.
    pub fn look_up(&self, tenant: &str, key: &Key, looked: Option<u64>) -> Seen {
        let name = (tenant.to_owned(), key.key.clone());
        let Some(used) = self.known.get(&name) else {
            return match self.stored.age(&name) {
                Some(age) if looked.is_none_or(|looked| age > looked) => Seen::Stored(self.number),
                _ => Seen::Never,
            };
        };
        Seen::Answered(repeated(used.fingerprint, key, || {
            if used.durable {
                return used.reply.clone();
            }
            let problem =
                Problem::new(Code::KeyInUse, "the first request with this Idempotency-Key is still under way");
            Reply::problem(&problem.retry_after(1))
        }))
    }

    /// Remembers an answer; it is given again once its batch is durable.
    pub fn enter(&mut self, tenant: &str, key: &Key, reply: &Reply) {
        self.insert(tenant.to_owned(), key.key.clone(), key.fingerprint, reply.clone(), false);
        self.open.push((tenant.to_owned(), key.key.clone()));
    }

    /// Remembers an answer that the disk has.
    pub fn load(&mut self, tenant: String, key: String, fingerprint: [u8; 32], reply: Reply) {
        self.insert(tenant, key, fingerprint, reply, true);
    }

    fn insert(&mut self, tenant: String, key: String, fingerprint: [u8; 32], reply: Reply, durable: bool) {
        self.number += 1;
        let line = self.of_tenant.entry(tenant.clone()).or_default();
        line.push_back(self.number);
        self.ages.insert(self.number, (tenant.clone(), key.clone()));
        self.known.insert((tenant.clone(), key), Used { fingerprint, reply, durable });
        while let Some(number) = self.too_old(&tenant)
            && self.shorten(number)
        {}
    }

    /// The oldest key, if there are too many of this tenant's or of all.
    fn too_old(&self, tenant: &str) -> Option<u64> {
        let line = self.of_tenant.get(tenant).filter(|line| line.len() > WHOLE_OF_TENANT);
        let all = self.ages.keys().next().filter(|_| self.known.len() > WHOLE_MAX);
        line.and_then(VecDeque::front).or(all).copied()
    }

    /// Keeps of the oldest key of a tenant no more than that there is an answer. One that the disk does not have yet
    /// stays, and those behind it: there are no more than requests that are under way.
    fn shorten(&mut self, number: u64) -> bool {
        let durable = |name: &(String, String)| self.known.get(name).is_none_or(|used| used.durable);
        let Some(name) = self.ages.get(&number).filter(|name| durable(name)).cloned() else { return false };
        self.ages.remove(&number);
        if let Some(line) = self.of_tenant.get_mut(&name.0) {
            line.pop_front();
            if line.is_empty() {
                self.of_tenant.remove(&name.0);
            }
        }
        self.known.remove(&name);
        self.stored.put(&name, number);
        true
    }

    /// The open batch goes to the disk.
    pub fn close(&mut self) {
        self.syncing.append(&mut self.open);
    }

    /// It arrived there.
    pub fn settle(&mut self) {
        for name in self.syncing.drain(..) {
            if let Some(used) = self.known.get_mut(&name) {
                used.durable = true;
            }
        }
    }

    /// It did not: what was not durable never happened.
    pub fn forget_undurable(&mut self) {
        self.open.clear();
        self.syncing.clear();
        self.known.retain(|_, used| used.durable);
        let known = &self.known;
        self.ages.retain(|_, name| known.contains_key(name));
        let ages = &self.ages;
        self.of_tenant.retain(|_, line| {
            line.retain(|number| ages.contains_key(number));
            !line.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key { key: text.to_owned(), fingerprint: [0; 32] }
    }

    fn enter(keys: &mut Keys, tenant: &str, text: &str) {
        keys.enter(tenant, &key(text), &Reply::new(200, &()));
    }

    /// Enters a key, and the disk has it.
    fn settled(keys: &mut Keys, tenant: &str, text: &str) {
        enter(keys, tenant, text);
        keys.close();
        keys.settle();
    }

    fn shown(seen: Seen) -> String {
        match seen {
            Seen::Never => "new".to_owned(),
            Seen::Answered(reply) if reply.is_problem() => reply.body,
            Seen::Answered(_) => "whole".to_owned(),
            Seen::Stored(_) => "stored".to_owned(),
        }
    }

    fn look(keys: &Keys, tenant: &str, text: &str) -> String {
        shown(keys.look_up(tenant, &key(text), None))
    }

    #[test]
    fn a_key_under_way_is_in_use_until_its_batch_is_on_the_disk() {
        let mut keys = Keys::default();
        assert_eq!(look(&keys, "ana", "k"), "new");
        enter(&mut keys, "ana", "k");
        assert!(look(&keys, "ana", "k").contains("key_in_use"));
        let other = Key { fingerprint: [1; 32], ..key("k") };
        assert!(shown(keys.look_up("ana", &other, None)).contains("key_reused"), "whoever is wrong is told so at once");
        keys.close();
        assert!(look(&keys, "ana", "k").contains("key_in_use"), "its batch is being written");
        // The next batch is open already, and waits for another one.
        enter(&mut keys, "ana", "next");
        keys.settle();
        assert_eq!(look(&keys, "ana", "k"), "whole");
        assert!(look(&keys, "ana", "next").contains("key_in_use"));
        assert!(shown(keys.look_up("ana", &other, None)).contains("key_reused"));
        assert_eq!(look(&keys, "ben", "k"), "new", "another tenant's key is another key");
    }

    #[test]
    fn no_key_is_new_again_and_nobodys_ceases_to_be_whole_before_its_own_bound() {
        let mut keys = Keys::default();
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
        assert_eq!(keys.of_tenant.values().map(VecDeque::len).sum::<usize>(), WHOLE_MAX);
    }

    #[test]
    fn of_the_stored_only_as_many_are_known_as_the_journal_keeps() {
        let mut keys = Keys::default();
        for n in 0..WHOLE_OF_TENANT + ANSWERS_MAX + 1 {
            settled(&mut keys, "ana", &format!("k{n}"));
        }
        assert_eq!([look(&keys, "ana", "k0"), look(&keys, "ana", "k1")], ["new", "stored"]);
        assert_eq!((keys.stored.keys.len(), keys.stored.ages.len()), (ANSWERS_MAX, ANSWERS_MAX));
    }

    #[test]
    fn what_is_not_on_the_disk_stays_whole_however_many_there_are() {
        let mut keys = Keys::default();
        for n in 0..WHOLE_OF_TENANT + 5 {
            enter(&mut keys, "ana", &format!("k{n}"));
        }
        assert!(look(&keys, "ana", "k0").contains("key_in_use"));
        keys.close();
        keys.settle();
        assert_eq!(look(&keys, "ana", "k0"), "whole");
        settled(&mut keys, "ana", "one more");
        assert_eq!(["k0", "k5", "k6"].map(|text| look(&keys, "ana", text)), ["stored", "stored", "whole"]);
    }

    #[test]
    fn whoever_looked_in_vain_is_let_in_unless_its_key_came_and_went_meanwhile() {
        let mut keys = Keys::default();
        for n in 0..WHOLE_OF_TENANT + 1 {
            settled(&mut keys, "ana", &format!("k{n}"));
        }
        let again = |keys: &Keys, looked| shown(keys.look_up("ana", &key("k0"), Some(looked)));
        let Seen::Stored(looked) = keys.look_up("ana", &key("k0"), None) else { panic!("it is stored") };
        assert_eq!(again(&keys, looked), "new", "the disk has forgotten it");
        // Somebody else with the same key was quicker.
        enter(&mut keys, "ana", "k0");
        assert!(again(&keys, looked).contains("key_in_use"));
        keys.close();
        keys.settle();
        assert_eq!(again(&keys, looked), "whole");
        for n in 0..WHOLE_OF_TENANT {
            settled(&mut keys, "ana", &format!("later{n}"));
        }
        assert_eq!(again(&keys, looked), "stored", "it is not what was looked for");
    }

    #[test]
    fn what_was_not_durable_never_was() {
        let mut keys = Keys::default();
        settled(&mut keys, "ana", "durable");
        enter(&mut keys, "ana", "lost");
        enter(&mut keys, "ben", "lost");
        keys.forget_undurable();
        assert_eq!(look(&keys, "ana", "durable"), "whole");
        assert_eq!([look(&keys, "ana", "lost"), look(&keys, "ben", "lost")], ["new", "new"]);
        assert_eq!((keys.ages.len(), keys.of_tenant.len()), (1, 1));
    }
}
