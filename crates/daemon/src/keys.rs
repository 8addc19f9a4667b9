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
    order: BTreeMap<String, VecDeque<(u64, String)>>,
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
        let line = self.order.entry(tenant.clone()).or_default();
        line.push_back((self.number, key.clone()));
        if line.len() > KEYS_OF_TENANT {
            self.forget_oldest(&tenant);
        }
        self.known.insert((tenant, key), Used { fingerprint, reply, durable });
        if self.known.len() > KEYS_MAX {
            let first = |line: &VecDeque<(u64, String)>| line.front().map_or(u64::MAX, |(number, _)| *number);
            if let Some(tenant) = self.order.iter().min_by_key(|(_, line)| first(line)).map(|(t, _)| t.clone()) {
                self.forget_oldest(&tenant);
            }
        }
    }

    fn forget_oldest(&mut self, tenant: &str) {
        if let Some(line) = self.order.get_mut(tenant) {
            if let Some((_, key)) = line.pop_front() {
                self.known.remove(&(tenant.to_owned(), key));
            }
            if line.is_empty() {
                self.order.remove(tenant);
            }
        }
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
        for (tenant, line) in &mut self.order {
            line.retain(|(_, key)| known.contains_key(&(tenant.clone(), key.clone())));
        }
        self.order.retain(|_, line| !line.is_empty());
    }
}
