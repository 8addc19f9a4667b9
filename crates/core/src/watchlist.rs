//! What this daemon has seen of strangers, and gone with the process: never journaled.

use crate::audit::Audit;
use crate::ids::ProcKey;
use crate::stranger::StrangerId;
use crate::units::{Span, Time};
use std::collections::{BTreeMap, VecDeque};

/// What was seen of strangers.
#[derive(Clone, Debug, Default)]
pub struct Watchlist {
    /// Strangers on the record, by process.
    pub(crate) by_process: BTreeMap<ProcKey, StrangerId>,
    /// What this daemon found out about each.
    pub(crate) seen: BTreeMap<StrangerId, Seen>,
    /// Those who were ended lately, or left when they were warned, the last one last.
    pub(crate) ended: VecDeque<Former>,
    /// Why nobody can be ended here; `None`: that was not tried yet.
    pub(crate) can: Option<Result<(), String>>,
    /// How often it was tried.
    pub(crate) tests: u64,
}

/// Whoever comes so soon after somebody like it was ended, or warned, is started anew.
const ANEW: Span = Span::secs(600);
/// So many of those are remembered.
const FORMER_MAX: usize = 64;

/// A stranger that was ended, or that left when it was warned.
#[derive(Clone, Debug)]
pub(crate) struct Former {
    id: StrangerId,
    at: Time,
    audit: Audit,
    /// It had until then to leave, for good.
    until: Option<Time>,
}

impl Former {
    /// A service is started anew by its unit; anything else by whoever calls the same program for the same user.
    fn is(&self, audit: &Audit) -> bool {
        match (&self.audit.unit, &audit.unit) {
            (Some(before), Some(now)) if now.ends_with(".service") => before == now,
            _ => {
                let who = |audit: &Audit| (audit.uid, audit.exe.clone(), audit.command.clone());
                audit.exe.is_some() && who(&self.audit) == who(audit)
            }
        }
    }
}

impl Watchlist {
    /// A stranger that was signalled, or had until then to leave, is gone.
    pub(crate) fn remember(&mut self, id: StrangerId, audit: Audit, at: Time, until: Option<Time>) {
        if self.ended.len() >= FORMER_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(Former { id, at, audit, until });
    }

    /// Who was ended lately, or warned, and is here again; and what is left of its time.
    pub(crate) fn former(&self, audit: &Audit, now: Time) -> Option<(StrangerId, Option<Time>)> {
        let lately = self.ended.iter().rev().take_while(|former| now.since(former.at) <= ANEW);
        lately.into_iter().find(|former| former.is(audit)).map(|former| (former.id, former.until))
    }
}

/// What this daemon found out about a stranger.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// When it was last audited.
    pub at: Time,
    /// It, and what descends from it in the same control group.
    pub tree: Vec<ProcKey>,
    /// It was sent the last signal it was to get.
    pub struck: bool,
    /// Why a signal could not be sent to it.
    pub refused: Option<String>,
}
