//! Strangers that did not heed their warning leave their cards without loss, where that can be done.
//!
//! ```text
//! Warned ──Take──► Moving ──its lease is parked──► closed: a parked lease like any other
//!    │               │ it cannot be
//!    └──NotMoved─────┴──► Unmoved ──its lease is over, and it was audited again──► SIGTERM
//! ```
//! A stranger that is moved has a lease of its size, so its bytes count once, and it is parked as any holder is:
//! host memory is booked first, and it is parked when its cards were seen without its bytes, twice. Whether it
//! could be is tried once. Nobody is signalled where it has a lease: the one it was to be moved by is ended
//! first, and its cards are seen again. Who has a lease for other cards is not moved by a second one.

use super::Decider;
use super::park::ParkCause;
use crate::model::event::{Caller, EventAnswer, Refusal};
use crate::model::facts::{UnleasedAction, Wake};
use crate::model::ids::{GpuId, LeaseId};
use crate::model::method::Method;
use crate::model::movers::NotParkable;
use crate::model::mutant::Mutant;
use crate::model::request::Tier;
use crate::model::rows::{EndReason, Hold, Lease, ParkState, Phase};
use crate::model::units::{Bytes, Span, Time};
use crate::model::unleased::{GpuPresence, UnleasedEnd, UnleasedId, UnleasedProcess, UnleasedStep};
use crate::policy::park_unleased::{check_could_park, is_exempt_now, reason_text};
use crate::policy::parking;
use crate::state::State;

/// The driver says within so long whether it can take somebody off its cards.
const MOVED_WITHIN: Span = Span::secs(30);

impl Decider<'_> {
    /// A stranger did not heed its warning: it gets a lease of its size, by which it leaves its cards.
    pub(super) fn park_unleased(&mut self, id: UnleasedId, on: &[GpuPresence]) {
        let Some(stranger) = self.state.rows().unleased.get(&id).cloned() else { return };
        let by = Caller::user(stranger.audit.tenant_name());
        let lease = match check_could_park(self.state, &stranger, on) {
            Ok(()) => self.give_lease(&by, &stranger, on, None, Tier::Batch).map_err(|refusal| refusal.to_string()),
            Err(why) => Err(reason_text(&why)),
        };
        match lease {
            Ok(lease) => {
                self.emit(UnleasedAction::Park { id, lease, at: self.now });
                self.advance_parking(id, lease, self.now);
            }
            // It gains nothing by that: the next step is due at once.
            Err(why) => {
                self.emit(UnleasedAction::RecordParkFailure { id, at: self.now, why });
                self.advance_unleased(id);
            }
        }
    }

    /// Takes the next step of a stranger that is taken off its cards.
    pub(super) fn advance_parking(&mut self, id: UnleasedId, lease: LeaseId, since: Time) {
        let Some(stranger) = self.state.rows().unleased.get(&id) else { return };
        let is_over = is_exempt_now(self.state, stranger);
        let row = self.state.lease(lease);
        match row.map(|row| &row.phase) {
            None | Some(Phase::Waiting { .. } | Phase::Ending(..)) => {
                self.not_moved(id, "its lease is over");
                self.advance_unleased(id);
            }
            // An operator thought better of it: it keeps its lease, and has its cards again.
            Some(_) if is_over => {
                self.close(id, UnleasedEnd::Adopted(lease));
                self.wake(lease, Wake::Resume);
            }
            Some(Phase::Parked(..) | Phase::Resuming(_, ParkState { was_resumed: true, .. })) => {
                self.close(id, UnleasedEnd::Parked(lease));
            }
            Some(Phase::Parking(..)) if self.state.planted(Mutant::BelieveMoving) => {
                self.close(id, UnleasedEnd::Parked(lease));
            }
            Some(Phase::Parking(..) | Phase::Resuming(..)) => {}
            Some(Phase::Active(hold)) => {
                // How much is to be moved is known once it was seen as this lease's.
                let is_parked = is_measured(self.state, lease, hold) && self.park(lease, ParkCause::Request).is_ok();
                if !is_parked && let Some(why) = self.why_not_parked(lease, since) {
                    self.not_moved(id, &why);
                    self.end(lease, EndReason::NotMoved);
                    self.advance_unleased(id);
                }
            }
        }
    }

    /// Why the driver cannot move a holder, unless that may be otherwise soon.
    fn why_not_parked(&self, lease: LeaseId, since: Time) -> Option<String> {
        let row = self.state.lease(lease)?;
        let is_measured = row.hold().is_some_and(|hold| is_measured(self.state, lease, hold));
        let can = parking::parkable(self.state, row, Method::Driver, self.now);
        let why = can.err().unwrap_or(NotParkable::NotInspected);
        let is_early = self.later_due_time(since, since + MOVED_WITHIN).is_some();
        let is_open =
            |card: &GpuId| self.state.room(*card).check_readable(self.now, self.state.policy().period).is_ok();
        let waits = match why {
            // Nothing happens to who is on a card that cannot be read.
            _ if !row.hold().is_some_and(|hold| hold.gpus.iter().all(is_open)) => true,
            // What descends from it may not be known for its own yet.
            NotParkable::NotInspected | NotParkable::RestoreUnsure(_) | NotParkable::HostMemoryUnknown => is_early,
            _ => is_early && !is_measured,
        };
        (!waits).then(|| reason_text(&why))
    }

    fn not_moved(&mut self, stranger: UnleasedId, why: &str) {
        self.emit(UnleasedAction::RecordParkFailure { id: stranger, at: self.now, why: why.to_owned() });
    }

    /// Somebody wants a lease for a process that has one, by which it is moved: that is the one it gets.
    pub(super) fn adopt_while_parking(&mut self, stranger: &UnleasedProcess) -> Option<EventAnswer> {
        let own = match stranger.step {
            UnleasedStep::Parking { lease, .. } => Some(lease),
            UnleasedStep::NotParked { .. } => None,
            UnleasedStep::Found
            | UnleasedStep::Warned { .. }
            | UnleasedStep::Signalled { .. }
            | UnleasedStep::Survived => {
                return None;
            }
        };
        if let Some(lease) = own.filter(|lease| self.state.lease(*lease).is_some_and(Lease::is_held)) {
            self.close(stranger.id, UnleasedEnd::Adopted(lease));
            self.wake(lease, Wake::Resume);
            return Some(EventAnswer::Lease(lease));
        }
        let last = self.state.holder(&stranger.audit.process).filter(|_| self.state.lease_of(stranger).is_none())?;
        Some(EventAnswer::Refused(Refusal::NotAdoptable(format!("{last}, which it has, is not over yet"))))
    }
}

/// Whether a lease was seen to have bytes on its GPUs.
fn is_measured(state: &State, lease: LeaseId, hold: &Hold) -> bool {
    hold.gpus.iter().any(|gpu| state.room(*gpu).seen_of(lease) > Bytes::ZERO)
}
