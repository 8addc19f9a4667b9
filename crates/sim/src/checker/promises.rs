//! Rule 9: whoever was told when it is served at the latest is served by then.
//!
//! A bound is about what leases and waiters do. What else may happen to a host (a card that is lost,
//! drained or used by strangers, a daemon that was away, other rules of the house, programs that do not
//! answer) voids it, and so it does here. Unlike the other books these hear core's own word; what is tested is that it holds.

use super::calls::EventCause;
use super::{Verdict, must};
use std::collections::BTreeMap;
use sublet_core::action::Action;
use sublet_core::explain::{Bound, bound};
use sublet_core::facts::{DaemonAction, GpuAction, UnleasedAction};
use sublet_core::ids::LeaseId;
use sublet_core::quota;
use sublet_core::rows::{ParkState, Phase};
use sublet_core::state::State;
use sublet_core::units::{Bytes, Time};
use sublet_core::unleased::UnleasedEnd;

/// Bounds are asked for once in so many events, of so many waiters at the head.
const EVERY: u64 = 16;
const WAITERS: usize = 8;

/// What waiters were told.
#[derive(Debug, Default)]
pub struct Promises {
    by: BTreeMap<LeaseId, Time>,
    events: u64,
    /// Bytes and processes on each card that no lease accounts for; `None`: it is not there, or cannot be
    /// read.
    beyond: Vec<Option<(Bytes, usize)>>,
    /// Who was told, and was served by then.
    pub kept: u64,
}

impl Promises {
    /// Everything is void: the daemon was away, or the rules changed.
    pub fn void(&mut self) {
        self.by.clear();
    }

    /// An event was taken in, with these actions.
    pub fn after(&mut self, now: Time, state: &State, actions: &[Action], cause: &EventCause) -> Verdict {
        if !self.by.is_empty() {
            // Room is taken by what happens to leases, and by what is seen of cards and processes.
            let is_seen = matches!(
                cause,
                EventCause::Observed(..)
                    | EventCause::Listed(_)
                    | EventCause::Gone(_)
                    | EventCause::Unwrapped(_)
                    | EventCause::Other
            );
            let is_less_room = (is_seen || !actions.is_empty()) && self.is_less_room(state);
            if actions.iter().any(upsets) || is_less_room || state.is_stopped() || is_silent(state, now) {
                self.void();
            }
            self.check(now, state)?;
        }
        self.events += 1;
        if self.events.is_multiple_of(EVERY) {
            self.ask(now, state);
        }
        Ok(())
    }

    fn check(&mut self, now: Time, state: &State) -> Verdict {
        let mut late = None;
        let kept = &mut self.kept;
        self.by.retain(|id, by| {
            let Some(lease) = state.lease(*id) else { return false };
            if lease.queued_since().is_none() {
                *kept += 1;
                return false;
            }
            // Its own tenant's other leases may have used up the quota meanwhile.
            let free = now <= *by || quota::block(state, lease).is_none();
            if free && now > *by {
                late = Some((*id, *by));
            }
            free
        });
        must(9, late.is_none(), || match late {
            Some((lease, by)) => format!("{lease} was to be served by {by}, and waits at {now}"),
            None => String::new(),
        })
    }

    fn ask(&mut self, now: Time, state: &State) {
        let is_first = self.by.is_empty();
        for (id, _) in state.queue().iter().take(WAITERS) {
            if let Some(lease) = state.lease(id)
                && let Bound::By { at, settled } = bound(state, lease, now)
                && settled <= now
            {
                let by = self.by.entry(id).or_insert(at);
                *by = at.min(*by);
            }
        }
        if is_first && !self.by.is_empty() {
            // What is taken later is more than this.
            self.is_less_room(state);
        }
    }

    /// Whether strangers, the driver or leases beyond their promise have more of a card than before.
    fn is_less_room(&mut self, state: &State) -> bool {
        let beyond = |card| {
            let room = state.room(card);
            let over: Bytes = room.leases().values().map(|claim| claim.seen.less(claim.reserved)).sum();
            let loose = room.unowned_bytes().filter(|_| state.is_listed(card));
            loose.map(|loose| (loose + over, state.unleased_compute_processes(card)))
        };
        let mut less = false;
        for (number, card) in state.gpus().enumerate() {
            let now = beyond(card);
            match self.beyond.get_mut(number) {
                Some(before) => {
                    less |= match (*before, now) {
                        (Some(before), Some(now)) => now.0 > before.0 || now.1 > before.1,
                        (None, Some(_)) => false,
                        (_, None) => true,
                    };
                    *before = now;
                }
                None => self.beyond.push(now),
            }
        }
        less
    }
}

/// Whether a holder that was to stay on its cards has programs that do not come back to them.
fn is_silent(state: &State, now: Time) -> bool {
    let late = |away: &ParkState| !away.was_resumed && now > away.since + state.policy().parking.timeout_of(away);
    let mut moving = state.moving().filter_map(|lease| state.lease(lease));
    moving.any(|lease| matches!(&lease.phase, Phase::Resuming(_, away) if late(away)))
}

fn upsets(action: &Action) -> bool {
    let host = matches!(
        action,
        Action::Daemon(DaemonAction::Start { .. } | DaemonAction::GrantGrace { .. })
            | Action::Gpu(GpuAction::SetFacts { .. } | GpuAction::SetService { .. })
    );
    let host = host || matches!(action, Action::Gpu(GpuAction::SetAside { .. } | GpuAction::EndAside { .. }));
    // Who gets a lease for what it has waits for nobody.
    host || matches!(action, Action::Unleased(UnleasedAction::Close { how: UnleasedEnd::Adopted(_), .. }))
}
