//! Idempotency-Keys: the same request again gets the same answer, and nothing
//! happens twice.

use crate::mail::{Key, Reply};
use std::collections::{BTreeMap, HashMap, VecDeque};
use sublet_wire::{Code, Problem};

/// Keys remembered at a time; older ones are forgotten first.
pub const KEYS_MAX: usize = 100_000;
/// Keys remembered of one tenant, so that nobody makes others' be forgotten.
const KEYS_OF_TENANT: usize = 2_000;

/// Keys that were used.
#[derive(Default)]
pub struct Keys {
    known: HashMap<(String, String), Used>,
    /// All of them by age, which their numbers are.
    ages: BTreeMap<u64, (String, String)>,
    /// Each tenant's, oldest first.
    of_tenant: HashMap<String, VecDeque<u64>>,
    number: u64,
    open: Vec<(String, String)>,
    syncing: Vec<(String, String)>,
}

struct Used {
    fingerprint: [u8; 32],
    reply: Reply,
    durable: bool,
}

/// What a key says about a request.
pub enum Seen {
    /// Nothing: it is new.
    Never,
    /// It was answered so.
    Answered(Reply),
}

impl Keys {
    /// Whether this request was made before.
    pub fn look_up(&self, tenant: &str, key: &Key) -> Seen {
        let Some(used) = self.known.get(&(tenant.to_owned(), key.key.clone())) else { return Seen::Never };
        Seen::Answered(if used.fingerprint != key.fingerprint {
            let problem = Problem::new(Code::KeyReused, "this Idempotency-Key was used for another request");
            Reply::problem(&problem.hint("use a new key for a new request"))
        } else if !used.durable {
            let problem =
                Problem::new(Code::KeyInUse, "the first request with this Idempotency-Key is still under way");
            Reply::problem(&problem.retry_after(1))
        } else {
            used.reply.clone()
        })
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
        let too_old = if line.len() > KEYS_OF_TENANT { line.front().copied() } else { None };
        self.ages.insert(self.number, (tenant.clone(), key.clone()));
        self.known.insert((tenant, key), Used { fingerprint, reply, durable });
        if let Some(number) = too_old {
            self.forget(number);
        }
        if self.known.len() > KEYS_MAX
            && let Some(number) = self.ages.keys().next().copied()
        {
            self.forget(number);
        }
    }

    /// Forgets a key that is the oldest of its tenant's.
    fn forget(&mut self, number: u64) {
        let Some(name) = self.ages.remove(&number) else { return };
        if let Some(line) = self.of_tenant.get_mut(&name.0) {
            line.pop_front();
            if line.is_empty() {
                self.of_tenant.remove(&name.0);
            }
        }
        self.known.remove(&name);
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

    fn key(text: String) -> Key {
        Key { key: text, fingerprint: [0; 32] }
    }

    fn enter(keys: &mut Keys, tenant: &str, text: String) {
        keys.enter(tenant, &key(text), &Reply::new(200, &()));
    }

    fn knows(keys: &Keys, tenant: &str, text: &str) -> bool {
        matches!(keys.look_up(tenant, &key(text.to_owned())), Seen::Answered(_))
    }

    #[test]
    fn the_oldest_key_of_all_is_forgotten_first_and_nobodys_before_its_own_bound() {
        let mut keys = Keys::default();
        for n in 0..KEYS_OF_TENANT + 1 {
            enter(&mut keys, "ana", format!("k{n}"));
        }
        assert!(!knows(&keys, "ana", "k0") && knows(&keys, "ana", "k1"), "of one tenant only so many");
        for n in 0..KEYS_MAX - KEYS_OF_TENANT {
            enter(&mut keys, &format!("user:{n}"), "k".to_owned());
        }
        assert!(knows(&keys, "ana", "k1"), "all that there is room for");
        enter(&mut keys, "ben", "k".to_owned());
        assert!(!knows(&keys, "ana", "k1") && knows(&keys, "ana", "k2") && knows(&keys, "user:0", "k"));
        assert_eq!((keys.known.len(), keys.ages.len()), (KEYS_MAX, KEYS_MAX));
        assert_eq!(keys.of_tenant.values().map(VecDeque::len).sum::<usize>(), KEYS_MAX);
    }

    #[test]
    fn what_was_not_durable_never_was() {
        let mut keys = Keys::default();
        enter(&mut keys, "ana", "durable".to_owned());
        keys.close();
        keys.settle();
        enter(&mut keys, "ana", "lost".to_owned());
        enter(&mut keys, "ben", "lost".to_owned());
        keys.forget_undurable();
        assert!(knows(&keys, "ana", "durable") && !knows(&keys, "ana", "lost") && !knows(&keys, "ben", "lost"));
        assert_eq!((keys.ages.len(), keys.of_tenant.len()), (1, 1));
    }
}
