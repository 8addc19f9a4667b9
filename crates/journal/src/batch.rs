//! What one commit writes: the entries of the log, and the rows as they are after them.
//!
//! A batch only collects. It does not apply actions, and it knows no file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use sublet_core::action::Action;
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
/// let ended = rows.apply(&action);
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
    cards: BTreeSet<GpuId>,
    leases: BTreeMap<LeaseId, Touched>,
    tokens: BTreeSet<TokenId>,
    strangers: BTreeSet<UnleasedId>,
    rules: BTreeSet<RuleId>,
    /// Every tenant's row changed.
    all_tenants: bool,
}

/// What the actions did to a lease.
#[derive(Clone, Copy, Debug, Default)]
struct Touched {
    /// No earlier batch knows it.
    queued: bool,
    /// Its tenant was charged, so the tenant's row changed.
    charged: bool,
    /// More changed than its phase.
    rewritten: bool,
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
        match &entry.action {
            Action::Start { .. } | Action::Grace { .. } => self.meta = true,
            Action::Day { .. } => {
                self.meta = true;
                self.all_tenants = true;
            }
            Action::Enrol { tenant, .. } | Action::Regroup { tenant, .. } => {
                self.tenants.insert(*tenant);
            }
            Action::List { card, .. }
            | Action::Serve { card, .. }
            | Action::SetMode { card, .. }
            | Action::SetAside { card, .. }
            | Action::EndAside { card, .. } => {
                self.cards.insert(*card);
            }
            Action::Queue { lease, .. } => {
                self.meta = true;
                let touched = self.touch(*lease);
                (touched.queued, touched.rewritten) = (true, true);
            }
            Action::Grant { lease, .. } => {
                self.meta = true;
                let touched = self.touch(*lease);
                (touched.charged, touched.rewritten) = (true, true);
            }
            Action::Renew { lease, .. } | Action::Grow { lease, .. } => {
                let touched = self.touch(*lease);
                (touched.charged, touched.rewritten) = (true, true);
            }
            Action::Parked { lease, .. } | Action::Resume { lease, .. } | Action::Resumed { lease, .. } => {
                let touched = self.touch(*lease);
                (touched.charged, touched.rewritten) = (true, true);
            }
            Action::Park { lease, .. }
            | Action::Unpark { lease, .. }
            | Action::Want { lease, .. }
            | Action::Retreat { lease, .. }
            | Action::Deepen { lease, .. }
            | Action::Shallow { lease, .. }
            | Action::Died { lease, .. }
            | Action::Over { lease, .. }
            | Action::Within { lease }
            | Action::Notice { lease, .. }
            | Action::Spare { lease }
            | Action::Signal { lease, .. }
            | Action::Bind { lease, .. } => self.touch(*lease).rewritten = true,
            Action::End { lease, told, .. } => {
                // The statistics of how late waiters start are in `meta`, over all tenants.
                self.meta |= told.is_some();
                self.touch(*lease).charged = true;
            }
            // The tenant's row records how long the program took to end.
            Action::Retire { lease, ran } => self.touch(*lease).charged |= ran.is_some(),
            Action::IssueToken { token } => {
                self.meta = true;
                self.tokens.insert(token.id);
            }
            Action::RevokeToken { token, .. } => {
                self.tokens.insert(*token);
            }
            Action::SetRule { rule } => {
                self.meta = true;
                self.rules.insert(rule.id);
            }
            // It changes no row.
            Action::AcceptLoss { .. } => {}
            Action::DropRule { rule } => {
                self.rules.insert(*rule);
            }
            Action::Find { stranger } => {
                self.meta = true;
                self.strangers.insert(stranger.id);
            }
            Action::Reaudit { stranger, .. }
            | Action::Warn { stranger, .. }
            | Action::Strike { stranger, .. }
            | Action::Struck { stranger, .. }
            | Action::Take { stranger, .. }
            | Action::NotMoved { stranger, .. }
            | Action::Relent { stranger, .. }
            | Action::Survived { stranger, .. }
            | Action::Close { stranger, .. } => {
                self.strangers.insert(*stranger);
            }
        }
        self.past.extend(ended);
        self.entries.push(entry);
    }

    fn touch(&mut self, lease: LeaseId) -> &mut Touched {
        self.leases.entry(lease).or_default()
    }

    /// Adds an answer to store.
    pub fn answer(&mut self, answer: StoredAnswer) {
        self.answers.push(answer);
    }

    /// Takes the images of the touched rows from `rows`, to which every entry was applied,
    /// and begins anew.
    pub fn close(&mut self, rows: &Rows, at: Time) -> Batch {
        let mut open = std::mem::take(self);
        let charged = |id: &LeaseId| open.leases.get(id).is_some_and(|touched| touched.charged);
        let live = open.leases.keys().filter(|id| charged(id)).filter_map(|id| rows.leases.get(id));
        let over = open.past.iter().filter(|ended| charged(&ended.id));
        open.tenants.extend(live.map(|lease| lease.tenant).chain(over.map(|ended| ended.tenant)));
        if open.all_tenants {
            open.tenants.extend((0..rows.tenants.len() as u32).map(TenantId));
        }
        let mut batch = Batch { at, entries: open.entries, past: open.past, answers: open.answers, ..Batch::default() };
        batch.meta = open.meta.then(|| rows.meta.clone());
        let tenant = |id: TenantId| Some((id, rows.tenants.get(id.0 as usize)?.clone()));
        batch.tenants = open.tenants.into_iter().filter_map(tenant).collect();
        let card = |id: GpuId| Some((id, rows.gpus.get(usize::from(id.0))?.clone()));
        batch.cards = open.cards.into_iter().filter_map(card).collect();
        for id in open.tokens {
            match rows.tokens.get(&id) {
                Some(token) => batch.tokens.push(token.clone()),
                None => batch.revoked.push(id),
            }
        }
        for id in open.strangers {
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
                    if !touched.rewritten && hold.history.is_none() =>
                {
                    batch.ending.push((id, finish.clone()));
                }
                Some(lease) if touched.queued => batch.new.push(lease.clone()),
                Some(lease) => batch.leases.push(lease.clone()),
                None if touched.queued => {}
                None => batch.gone.push(id),
            }
        }
        batch
    }
}
