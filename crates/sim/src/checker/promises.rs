//! Rule 9: a waiter is served within the bound that it was told.
//!
//! A bound is about what leases and waiters do. Anything else (a GPU that is lost, drained or used by unleased
//! processes, an absence of the daemon, another policy, programs that do not answer) voids it, and so it does here.
//! Unlike the other books these use core's own estimate; what is tested is that it holds.

use super::calls::EventCause;
use super::{Verdict, must};
use std::collections::BTreeMap;
use sublet_core::action::Action;
use sublet_core::facts::{DaemonAction, GpuAction, UnleasedAction};
use sublet_core::ids::LeaseId;
use sublet_core::policy::explain::{Bound, bound};
use sublet_core::policy::quota;
use sublet_core::rows::{ParkState, Phase};
use sublet_core::state::State;
use sublet_core::units::{Bytes, Time};
use sublet_core::unleased::UnleasedEnd;

/// Bounds are read after this many events, for this many waiters at the head.
const EVERY: u64 = 16;
const WAITERS: usize = 8;

/// The bounds that waiters were told.
#[derive(Debug, Default)]
pub struct Promises {
    by: BTreeMap<LeaseId, Time>,
    events: u64,
    /// Bytes and processes on each GPU that no lease accounts for; `None` if it is missing or cannot be read.
    beyond: Vec<Option<(Bytes, usize)>>,
    /// Waiters that were served within their bound.
    pub kept: u64,
}

impl Promises {
    /// Voids all bounds: the daemon was away, or the policy changed.
    pub fn void(&mut self) {
        self.by.clear();
    }

    /// Checks the bounds after an event with these actions.
    pub fn after(&mut self, now: Time, state: &State, actions: &[Action], cause: &EventCause) -> Verdict {
        if !self.by.is_empty() {
            // Room is taken by what happens to leases, and by what is read of GPUs and processes.
            let is_seen = matches!(
                cause,
                EventCause::Observed(..)
                    | EventCause::Listed(_)
                    | EventCause::HolderExited(_)
                    | EventCause::Unwrapped(_)
                    | EventCause::Other
            );
            let is_less_room = (is_seen || !actions.is_empty()) && self.is_less_room(state);
            if actions.iter().any(voids) || is_less_room || state.is_stopped() || has_late_program(state, now) {
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
            // Other leases of its tenant may have used up the quota meanwhile.
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
            // What is taken later is compared with this.
            self.is_less_room(state);
        }
    }

    /// True if unleased processes, the driver or exceeded leases have more of a GPU than before.
    fn is_less_room(&mut self, state: &State) -> bool {
        let beyond = |gpu| {
            let room = state.room(gpu);
            let over: Bytes = room.leases().values().map(|claim| claim.seen.less(claim.reserved)).sum();
            let loose = room.unowned_bytes().filter(|_| state.is_listed(gpu));
            loose.map(|loose| (loose + over, state.unleased_compute_processes(gpu)))
        };
        let mut less = false;
        for (number, gpu) in state.gpus().enumerate() {
            let now = beyond(gpu);
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

/// True if a lease that was to stay on its GPUs has programs that do not return to them.
fn has_late_program(state: &State, now: Time) -> bool {
    let late = |away: &ParkState| !away.was_resumed && now > away.since + state.policy().parking.timeout_of(away);
    let mut moving = state.moving().filter_map(|lease| state.lease(lease));
    moving.any(|lease| matches!(&lease.phase, Phase::Resuming(_, away) if late(away)))
}

fn voids(action: &Action) -> bool {
    let host = matches!(
        action,
        Action::Daemon(DaemonAction::Start { .. } | DaemonAction::GrantGrace { .. })
            | Action::Gpu(GpuAction::SetFacts { .. } | GpuAction::SetService { .. })
    );
    let host = host || matches!(action, Action::Gpu(GpuAction::SetAside { .. } | GpuAction::EndAside { .. }));
    // An adopted process waits for no lease.
    host || matches!(action, Action::Unleased(UnleasedAction::Close { how: UnleasedEnd::Adopted(_), .. }))
}
