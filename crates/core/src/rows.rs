//! The durable state: what a restart finds, and what folding the log gives.
//!
//! [`Rows::apply`] cannot fail and cannot choose: an [`Action`] is a complete
//! fact. Readings, activity and everything derived live elsewhere
//! ([`crate::state`]).

use crate::action::Action;
use crate::ask::{Ask, Term};
use crate::ids::{CardId, Epoch, LeaseId, ProcKey, TenantId, TokenId};
use crate::reading::CardFacts;
use crate::token::Token;
use crate::units::{Bytes, Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything that survives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    /// Counters and the clock.
    pub meta: Meta,
    /// Who ever asked, by [`TenantId`].
    pub tenants: Vec<Tenant>,
    /// Cards ever seen, by [`CardId`].
    pub cards: Vec<Card>,
    /// Leases that have not ended.
    pub leases: BTreeMap<LeaseId, Lease>,
    /// Tokens that were not revoked.
    #[serde(default)]
    pub tokens: BTreeMap<TokenId, Token>,
}

/// Counters and the clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// The boot that times of leases were measured in.
    pub boot: String,
    /// Add this to CLOCK_MONOTONIC (µs) of that boot to get [`Time`].
    pub clock_offset_us: i64,
    /// The next lease's number.
    pub next_lease: u64,
    /// The next grant's epoch.
    pub next_epoch: Epoch,
    /// The next token's number.
    #[serde(default = "one")]
    pub next_token: u32,
    /// The daemon was away until then…
    pub grace_from: Time,
    /// …and nothing that was running then expires before this.
    pub grace_until: Time,
    /// The day that daily budgets count, as days since 1970 where the host is.
    #[serde(default)]
    pub day: u32,
}

fn one() -> u32 {
    1
}

impl Default for Meta {
    fn default() -> Meta {
        Meta {
            boot: String::new(),
            clock_offset_us: 0,
            next_lease: 1,
            next_epoch: Epoch(1),
            next_token: 1,
            grace_from: Time::ZERO,
            grace_until: Time::ZERO,
            day: 0,
        }
    }
}

impl Meta {
    /// When something that began at `since` and is due at `at` really is.
    pub fn due(&self, since: Time, at: Time) -> Time {
        if since <= self.grace_from { at.max(self.grace_until) } else { at }
    }
}

/// Who asks and is charged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// `uid:1000`.
    pub name: String,
    /// Leases that were granted and are over.
    pub leases: u64,
    /// Time charged for them, every card counted, in µs.
    pub card_us: u64,
    /// The same times bytes, in byte·µs.
    pub byte_us: u128,
    /// How far its use has carried it: beyond now, it queues as if it came later.
    #[serde(default)]
    pub mark: Time,
    /// Since when its first waiter is the first: who stood before it left then.
    #[serde(default)]
    pub turn: Time,
    /// Groups it belongs to, as far as the rules of the house name them.
    #[serde(default)]
    pub groups: Vec<String>,
    /// GPU time charged today, in µs: a whole card for an hour is an hour.
    #[serde(default)]
    pub today: u64,
}

/// A card that was seen once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// What it is.
    pub facts: CardFacts,
    /// Whether it may be leased, by an operator's or our own word.
    pub service: Service,
}

/// Whether a card may be leased.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// Yes.
    In,
    /// An operator lets it run empty.
    Draining,
    /// Not until an operator clears it.
    Out {
        /// What happened.
        why: String,
    },
}

/// A lease that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Its name and arrival number.
    pub id: LeaseId,
    /// Who asked.
    pub tenant: TenantId,
    /// What was asked.
    pub ask: Ask,
    /// When.
    pub asked: Time,
    /// Processes bound to it; their descendants belong to it.
    pub roots: Vec<ProcKey>,
    /// Where it is in its life.
    pub phase: Phase,
    /// The token it was asked through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenId>,
}

/// Where a lease is in its life.
///
/// ```text
/// Waiting ──► Active ──► Ending ──► (ended: gone from the rows, kept as `Ended`)
///    └─────────────────────────────►
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// In the queue.
    Waiting {
        /// When its owner would rather not have it any more.
        give_up: Time,
    },
    /// Granted.
    Active(Hold),
    /// Over for its holder. Its bytes count until its cards were seen again.
    Ending(Hold, Finish),
}

/// What was granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// On these cards.
    pub cards: Vec<CardId>,
    /// So much of each.
    pub vram: Bytes,
    /// Whoever calls with a lower one is refused.
    pub epoch: Epoch,
    /// When it was granted.
    pub granted: Time,
    /// When it was last renewed (or granted).
    pub renewed: Time,
    /// When it expires unless it is renewed.
    pub until: Time,
    /// It was not used in its last term.
    pub idle: bool,
    /// How far its tenant's mark was moved for the time from `renewed` to `until`.
    #[serde(default)]
    pub paid: Span,
    /// It was let past somebody who needs its cards then.
    #[serde(default)]
    pub before: Option<Time>,
    /// The day on which the time from `renewed` to `until` was charged.
    #[serde(default)]
    pub day: u32,
}

impl Hold {
    /// The time that a renewal until then charges on this day. What is left of a term that an earlier
    /// day was charged is used today, so today is charged for it: it is what an early end gives back.
    pub fn added(&self, until: Time, now: Time, day: u32) -> Span {
        if self.day == day { until.since(self.until) } else { until.since(now) }
    }
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finish {
    /// Why.
    pub reason: Reason,
    /// When.
    pub at: Time,
    /// The most bytes its processes were seen to have on one card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<Bytes>,
}

/// Why a lease ended: a closed set, without "other".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Its owner gave it back.
    Released,
    /// It was not used, and somebody waits for the room.
    Expired,
    /// It was held as long as a waiter must accept.
    HoldCap,
    /// Its fixed term was over.
    TermOver,
    /// Its tenant's GPU time of the day was used up.
    Budget,
    /// Its last process exited.
    HolderExited,
    /// An operator ended it.
    Revoked,
    /// Its card is gone.
    DeviceLost,
    /// The host was started anew.
    HostRebooted,
    /// It was not granted within the time its owner would wait.
    WaitOver,
}

/// A lease that is over, as history keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Its name.
    pub id: LeaseId,
    /// Who asked.
    pub tenant: TenantId,
    /// What was asked.
    pub ask: Ask,
    /// When.
    pub asked: Time,
    /// What was granted, if anything was.
    pub hold: Option<Hold>,
    /// How it ended.
    pub finish: Finish,
}

impl Tenant {
    /// Moves the mark, and says how far beyond the present.
    fn pay(&mut self, at: Time, mark: Option<Time>) -> Span {
        let before = self.mark.max(at);
        self.mark = mark.unwrap_or(self.mark);
        self.mark.since(before)
    }
}

impl Hold {
    /// What holding it until `now` is charged: card·µs and byte·µs.
    pub fn charge(&self, now: Time) -> (u64, u128) {
        let card_us = now.since(self.granted).0 * self.cards.len() as u64;
        (card_us, u128::from(card_us) * u128::from(self.vram.0))
    }

    /// What of its payment is for the time after `now`.
    pub fn unused(&self, now: Time) -> Span {
        let (left, term) = (self.until.since(now).0, self.until.since(self.renewed).0);
        if term == 0 {
            Span::ZERO
        } else {
            Span((u128::from(self.paid.0) * u128::from(left.min(term)) / u128::from(term)) as u64)
        }
    }
}

impl Lease {
    /// What was granted, while it counts.
    pub fn hold(&self) -> Option<&Hold> {
        match &self.phase {
            Phase::Waiting { .. } => None,
            Phase::Active(hold) | Phase::Ending(hold, _) => Some(hold),
        }
    }

    /// Whether its term is fixed.
    pub fn fixed(&self) -> bool {
        matches!(self.ask.term, Term::Fixed(_))
    }
}

/// The part of so long that so much of these cards is.
pub fn gpu_time(all: &[Card], cards: &[CardId], vram: Bytes, span: Span) -> Span {
    let of = |card: &CardId| {
        let total = all.get(card.0 as usize).map_or(1, |card| card.facts.total.0.max(1));
        u128::from(span.0) * u128::from(vram.0.min(total)) / u128::from(total)
    };
    Span(cards.iter().map(of).sum::<u128>() as u64)
}

impl Rows {
    /// Makes a fact part of the state. Returns what became history by it.
    pub fn apply(&mut self, action: &Action) -> Option<Ended> {
        match action {
            Action::Start { boot, clock_offset_us, epoch_floor } => {
                self.meta.boot.clone_from(boot);
                self.meta.clock_offset_us = *clock_offset_us;
                self.meta.next_epoch = self.meta.next_epoch.max(*epoch_floor);
            }
            Action::Grace { from, until } => {
                self.meta.grace_from = *from;
                self.meta.grace_until = self.meta.grace_until.max(*until);
            }
            Action::Enrol { tenant, name } => {
                debug_assert_eq!(tenant.0 as usize, self.tenants.len());
                self.tenants.push(Tenant { name: name.clone(), ..Tenant::default() });
            }
            Action::Day { number } => {
                self.meta.day = *number;
                self.tenants.iter_mut().for_each(|tenant| tenant.today = 0);
            }
            Action::Regroup { tenant, groups } => self.tenants[tenant.0 as usize].groups.clone_from(groups),
            Action::List { card, facts } => match self.cards.get_mut(card.0 as usize) {
                Some(row) => row.facts = facts.clone(),
                None => self.cards.push(Card { facts: facts.clone(), service: Service::In }),
            },
            Action::Serve { card, service } => self.cards[card.0 as usize].service = service.clone(),
            Action::Queue { lease, tenant, ask, at, give_up, root, token } => {
                self.meta.next_lease = self.meta.next_lease.max(lease.0 + 1);
                let phase = Phase::Waiting { give_up: *give_up };
                let roots = root.iter().copied().collect();
                let (id, tenant, ask, asked, token) = (*lease, *tenant, ask.clone(), *at, *token);
                self.leases.insert(id, Lease { id, tenant, ask, asked, roots, phase, token });
            }
            Action::Grant { lease, cards, vram, epoch, at, until, mark, before, turn } => {
                self.meta.next_epoch = self.meta.next_epoch.max(Epoch(epoch.0 + 1));
                if let Some(row) = self.leases.get_mut(lease) {
                    let tenant = &mut self.tenants[row.tenant.0 as usize];
                    tenant.today += gpu_time(&self.cards, cards, *vram, until.since(*at)).0;
                    tenant.turn = turn.unwrap_or(tenant.turn);
                    row.phase = Phase::Active(Hold {
                        cards: cards.clone(),
                        vram: *vram,
                        epoch: *epoch,
                        granted: *at,
                        renewed: *at,
                        until: *until,
                        idle: false,
                        paid: tenant.pay(*at, *mark),
                        before: *before,
                        day: self.meta.day,
                    });
                }
            }
            Action::Renew { lease, at, until, idle, mark, before } => {
                if let Some(Lease { tenant, phase: Phase::Active(hold), .. }) = self.leases.get_mut(lease) {
                    let tenant = &mut self.tenants[tenant.0 as usize];
                    tenant.today +=
                        gpu_time(&self.cards, &hold.cards, hold.vram, hold.added(*until, *at, self.meta.day)).0;
                    hold.paid = hold.unused(*at) + tenant.pay(*at, *mark);
                    (hold.renewed, hold.until, hold.idle, hold.before) = (*at, *until, *idle, *before);
                    hold.day = self.meta.day;
                }
            }
            Action::Bind { lease, process } => {
                if let Some(row) = self.leases.get_mut(lease) {
                    row.roots.push(*process);
                }
            }
            Action::End { lease, reason, at, peak, mark, turn } => {
                if let Some(row) = self.leases.get(lease) {
                    let tenant = &mut self.tenants[row.tenant.0 as usize];
                    (tenant.mark, tenant.turn) = (mark.unwrap_or(tenant.mark), turn.unwrap_or(tenant.turn));
                }
                return self.end(*lease, Finish { reason: *reason, at: *at, peak: *peak });
            }
            Action::Retire { lease } => return self.retire(*lease),
            Action::IssueToken { token } => {
                self.meta.next_token = self.meta.next_token.max(token.id.0 + 1);
                self.tokens.insert(token.id, token.clone());
            }
            Action::RevokeToken { token, .. } => {
                self.tokens.remove(token);
            }
        }
        None
    }

    /// A waiter is history at once; a holder when its cards were seen again.
    fn end(&mut self, id: LeaseId, finish: Finish) -> Option<Ended> {
        let row = self.leases.get_mut(&id)?;
        match &row.phase {
            Phase::Waiting { .. } => {
                let row = self.leases.remove(&id)?;
                Some(Ended { id, tenant: row.tenant, ask: row.ask, asked: row.asked, hold: None, finish })
            }
            Phase::Active(hold) => {
                let (card_us, byte_us) = hold.charge(finish.at);
                let tenant = &mut self.tenants[row.tenant.0 as usize];
                tenant.leases += 1;
                tenant.card_us += card_us;
                tenant.byte_us += byte_us;
                if hold.day == self.meta.day {
                    let unused = gpu_time(&self.cards, &hold.cards, hold.vram, hold.until.since(finish.at));
                    tenant.today = tenant.today.saturating_sub(unused.0);
                }
                row.phase = Phase::Ending(hold.clone(), finish);
                None
            }
            Phase::Ending(..) => None,
        }
    }

    fn retire(&mut self, id: LeaseId) -> Option<Ended> {
        let row = self.leases.remove(&id)?;
        match row.phase {
            Phase::Ending(hold, finish) => {
                Some(Ended { id, tenant: row.tenant, ask: row.ask, asked: row.asked, hold: Some(hold), finish })
            }
            Phase::Waiting { .. } | Phase::Active(_) => {
                self.leases.insert(id, row);
                None
            }
        }
    }
}
