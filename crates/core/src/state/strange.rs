//! Strangers, as the state has them beside their rows.

use super::State;
use crate::action::Action;
use crate::decide::enforce;
use crate::ids::ProcKey;
use crate::stranger::{Fate, Step};
use crate::units::Time;
use crate::watchlist::Watchlist;

impl State {
    /// What this daemon has seen of strangers.
    pub(crate) fn watchlist(&self) -> &Watchlist {
        &self.watchlist
    }

    pub(crate) fn watchlist_mut(&mut self) -> &mut Watchlist {
        &mut self.watchlist
    }

    /// Why nobody can be ended here; `None`: that was not tried yet.
    pub fn can_enforce(&self) -> Option<&Result<(), String>> {
        self.watchlist.can.as_ref()
    }

    /// How often it was tried whether anybody could be.
    pub fn tested(&self) -> u64 {
        self.watchlist.tests
    }

    pub(super) fn list_strangers(&mut self) {
        self.watchlist.by_process =
            self.rows.strangers.values().map(|stranger| (stranger.audit.process, stranger.id)).collect();
    }

    /// A stranger came or went.
    pub(super) fn note_stranger(&mut self, action: &Action) {
        match action {
            Action::Find { stranger } => {
                self.watchlist.by_process.insert(stranger.audit.process, stranger.id);
            }
            Action::Close { stranger, .. } => {
                self.watchlist.by_process.retain(|_, id| id != stranger);
                self.watchlist.seen.remove(stranger);
            }
            _ => {}
        }
    }

    /// Strangers that must be audited before their next step is taken, which is due.
    pub fn audits_due(&self, now: Time) -> Vec<ProcKey> {
        let is_due = |stranger: &&crate::stranger::Stranger| {
            let audited = self.watchlist.seen.get(&stranger.id).map(|seen| seen.at);
            match enforce::fate(self, stranger, None, now) {
                Fate::Signal(_, due) if stranger.step != Step::Found => {
                    due <= now && audited.is_none_or(|at| !enforce::is_fresh(at, due, now))
                }
                _ => false,
            }
        };
        self.rows.strangers.values().filter(is_due).map(|stranger| stranger.audit.process).collect()
    }
}
