//! What one commit writes: the entries of the log, and the rows as they are after them.
//!
//! A batch only collects. It does not apply actions, and it knows no file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use sublet_core::action::Action;
use sublet_core::facts::{LeaseChange, TouchedRow};
use sublet_core::ids::{GpuId, LeaseId, TenantId, TokenId};
use sublet_core::rows::{EndedLease, Gpu, Lease, LeaseEnd, Meta, Phase, Rows, Tenant};
use sublet_core::token::Token;
use sublet_core::units::Time;
use sublet_core::unleased::{Rule, RuleId, UnleasedId, UnleasedProcess};

/// One fact for the log, which is the audit trail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// What caused it: a tenant's name, or a part of the daemon.
    pub actor: Arc<str>,
    /// What happened.
    pub action: Action,
    /// When.
    pub at: Time,
    /// When, for people: µs since 1970.
    pub wall_us: u64,
}

/// The answer to a request with an Idempotency-Key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAnswer {
    /// The tenant that sent the request.
    pub tenant: TenantId,
    /// Its key.
    pub key: String,
    /// A hash of the request; the same key with another fingerprint is a mistake of the caller.
    pub fingerprint: [u8; 32],
    /// The status that was answered.
    pub status: u16,
    /// The body that was answered.
    pub body: String,
    /// When, for people: µs since 1970.
    pub wall_us: u64,
}

/// Everything one transaction writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The time when it was closed; the journal keeps the greatest.
    pub at: Time,
    /// In the order they happened.
    pub entries: Vec<LogEntry>,
    /// The counters, if they changed.
    pub meta: Option<Meta>,
    /// New and changed tenants.
    pub tenants: Vec<(TenantId, Tenant)>,
    /// New and changed GPUs.
    pub cards: Vec<(GpuId, Gpu)>,
    /// Leases that no earlier batch knows.
    pub new: Vec<Lease>,
    /// Leases of earlier batches that changed.
    pub leases: Vec<Lease>,
    /// Leases of earlier batches that ended, and changed in nothing else.
    pub ending: Vec<(LeaseId, LeaseEnd)>,
    /// Leases of earlier batches that are not live any more.
    pub gone: Vec<LeaseId>,
    /// New tokens.
    pub tokens: Vec<Token>,
    /// Tokens that were revoked.
    pub revoked: Vec<TokenId>,
    /// New and changed unleased processes.
    pub strangers: Vec<UnleasedProcess>,
    /// Unleased processes that are closed: their rows are removed.
    pub closed: Vec<UnleasedId>,
    /// New and changed rules.
    pub rules: Vec<Rule>,
    /// Rules that were removed.
    pub dropped: Vec<RuleId>,
    /// Leases that became history.
    pub past: Vec<EndedLease>,
    /// Answers to store.
    pub answers: Vec<StoredAnswer>,
}

impl Batch {
    /// True if there is nothing to write but the time.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
            && self.meta.is_none()
            && self.tenants.is_empty()
            && self.cards.is_empty()
            && self.new.is_empty()
            && self.leases.is_empty()
            && self.ending.is_empty()
            && self.gone.is_empty()
            && self.tokens.is_empty()
            && self.revoked.is_empty()
            && self.strangers.is_empty()
            && self.closed.is_empty()
            && self.rules.is_empty()
            && self.dropped.is_empty()
            && self.past.is_empty()
            && self.answers.is_empty()
    }
}

/// A batch that is being filled.
///
/// ```text
/// let ended = rows.apply(&action)?;
/// open.push(entry, ended);          // for each action
/// let batch = open.close(&rows, now);
/// ```
/// It remembers which rows the actions touched, and takes each row's image once, at the end:
/// a lease that came and went within the batch never touches the table of live ones.
#[derive(Clone, Debug, Default)]
pub struct OpenBatch {
    entries: Vec<LogEntry>,
    past: Vec<EndedLease>,
    answers: Vec<StoredAnswer>,
    meta: bool,
    tenants: BTreeSet<TenantId>,
    gpus: BTreeSet<GpuId>,
    leases: BTreeMap<LeaseId, LeaseChange>,
    tokens: BTreeSet<TokenId>,
    unleased: BTreeSet<UnleasedId>,
    rules: BTreeSet<RuleId>,
    /// Every tenant's row changed.
    all_tenants: bool,
}

impl OpenBatch {
    /// True if it has no entry and no answer.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.answers.is_empty()
    }

    /// How many entries it has.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds an entry that was just applied to the rows, and the lease that it ended, if any.
    pub fn push(&mut self, entry: LogEntry, ended: Option<EndedLease>) {
        let touched = entry.action.touched();
        self.meta |= touched.meta;
        match touched.row {
            TouchedRow::None => {}
            TouchedRow::Tenant(tenant) => drop(self.tenants.insert(tenant)),
            TouchedRow::AllTenants => self.all_tenants = true,
            TouchedRow::Gpu(gpu) => drop(self.gpus.insert(gpu)),
            TouchedRow::Token(token) => drop(self.tokens.insert(token)),
            TouchedRow::Unleased(id) => drop(self.unleased.insert(id)),
            TouchedRow::Rule(rule) => drop(self.rules.insert(rule)),
            TouchedRow::Lease(lease, change) => {
                let row = self.leases.entry(lease).or_default();
                row.is_new |= change.is_new;
                row.is_rewritten |= change.is_rewritten;
                row.is_charged |= change.is_charged;
            }
        }
        self.past.extend(ended);
        self.entries.push(entry);
    }

    /// Adds an answer to store.
    pub fn answer(&mut self, answer: StoredAnswer) {
        self.answers.push(answer);
    }

    /// Takes the images of the touched rows from `rows`, to which every entry was applied,
    /// and begins anew.
    pub fn close(&mut self, rows: &Rows, at: Time) -> Batch {
        let mut open = std::mem::take(self);
        let charged = |id: &LeaseId| open.leases.get(id).is_some_and(|touched| touched.is_charged);
        let live = open.leases.keys().filter(|id| charged(id)).filter_map(|id| rows.leases.get(id));
        let over = open.past.iter().filter(|ended| charged(&ended.id));
        open.tenants.extend(live.map(|lease| lease.tenant).chain(over.map(|ended| ended.tenant)));
        if open.all_tenants {
            open.tenants.extend((0..rows.tenants.len() as u32).map(TenantId));
        }
        let mut batch = Batch { at, entries: open.entries, past: open.past, answers: open.answers, ..Batch::default() };
        batch.meta = open.meta.then(|| rows.meta.clone());
        let tenant = |id: TenantId| Some((id, rows.tenants.find(id)?.clone()));
        batch.tenants = open.tenants.into_iter().filter_map(tenant).collect();
        let card = |id: GpuId| Some((id, rows.gpus.find(id)?.clone()));
        batch.cards = open.gpus.into_iter().filter_map(card).collect();
        for id in open.tokens {
            match rows.tokens.get(&id) {
                Some(token) => batch.tokens.push(token.clone()),
                None => batch.revoked.push(id),
            }
        }
        for id in open.unleased {
            match rows.unleased.get(&id) {
                Some(stranger) => batch.strangers.push(stranger.clone()),
                None => batch.closed.push(id),
            }
        }
        for id in open.rules {
            match rows.rules.get(&id) {
                Some(rule) => batch.rules.push(rule.clone()),
                None => batch.dropped.push(id),
            }
        }
        for (id, touched) in open.leases {
            match rows.leases.get(&id) {
                // Of one that was never parked, and had no more than its lease, nothing else has changed.
                Some(Lease { phase: Phase::Ending(hold, finish), .. })
                    if !touched.is_rewritten && hold.history.is_none() =>
                {
                    batch.ending.push((id, finish.clone()));
                }
                Some(lease) if touched.is_new => batch.new.push(lease.clone()),
                Some(lease) => batch.leases.push(lease.clone()),
                None if touched.is_new => {}
                None => batch.gone.push(id),
            }
        }
        batch
    }
}
