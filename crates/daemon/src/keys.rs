//! Idempotency-Keys: the same request again gets the same answer, and nothing
//! happens twice.

use crate::mail::{Key, Reply};
use std::collections::{HashMap, VecDeque};
use sublet_wire::{Code, Problem};

/// Keys remembered at a time; older ones are forgotten first.
pub const KEYS_MAX: usize = 20_000;

/// Keys that were used.
#[derive(Default)]
pub struct Keys {
    known: HashMap<(String, String), Used>,
    order: VecDeque<(String, String)>,
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
        let name = (tenant, key);
        self.known.insert(name.clone(), Used { fingerprint, reply, durable });
        self.order.push_back(name);
        while self.order.len() > KEYS_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.known.remove(&oldest);
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
        self.order.retain(|name| known.contains_key(name));
    }
}
