//! What moves a holder's bytes off its GPUs and back, what it reports, and why it cannot.
//!
//! A mover is Sublet's library in a program, the driver, or the wrapper, which has one hook for all programs of a lease.
//! Absent: whether a lease can be parked now. [`crate::policy::parking`] answers that.

use crate::model::ids::{GpuId, LeaseId, ProcKey};
use crate::model::units::{Bytes, Time};
use std::collections::BTreeMap;
use std::fmt;

/// Somebody who can make a holder's bytes leave its cards, and speaks for one of its processes: the
/// library in it, the driver, or the wrapper for all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mover {
    /// Its bytes are off the cards, by its word: so many.
    pub parked_bytes: Option<Bytes>,
    /// Why it cannot be parked, if it cannot.
    pub refusal: Option<String>,
    /// Whether it calls the driver for nothing while it is parked; `None` if it never said that it could do so.
    pub keeps_still: Option<bool>,
    /// Where its bytes are is not known any more, whatever was said before.
    pub is_unknown: bool,
}

impl Mover {
    /// It says where its bytes are: in host memory, or on its cards.
    pub(crate) fn set_parked_bytes(&mut self, parked: Option<Bytes>) {
        (self.parked_bytes, self.is_unknown) = (parked, false);
    }
}

/// How a park or a resume goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoveProgress {
    /// When the last of its programs said that it was done.
    pub reported_at: Option<Time>,
    /// How many looks in a row agree, by card.
    pub agreeing_readings: BTreeMap<GpuId, u32>,
}

/// Something went wrong lately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// When it did.
    pub since: Time,
    /// It is not tried again before then.
    pub until: Time,
    /// What it was.
    pub why: String,
}

/// What is said of a program: by Sublet's library in it, by the driver, or by its wrapper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoverReport {
    /// It is there; its bytes are in host memory, or on its cards.
    Present {
        /// So many of them are in host memory.
        parked: Option<Bytes>,
    },
    /// It cannot be parked, and why; or it can.
    Cannot(Option<String>),
    /// Its bytes have left its cards.
    Parked(Bytes),
    /// They are back.
    Resumed,
    /// They stay where they are, and why.
    Refused(String),
    /// They stay where they are: there are more of them than were booked, since the reading was out of date.
    Outgrown(String),
    /// They will never be back, and why.
    Lost(String),
    /// Nobody knows where they are: whoever moved them was lost while it did.
    Unknown,
    /// It calls the driver for nothing, so that this may have its context, too; or not any more.
    KeepsStill(bool),
    /// It submits work and needs them.
    Used,
    /// It is not there any more.
    Gone,
    /// The same, and it ended while the library took its bytes off its cards: what is known of the cause.
    Died(String),
}

impl MoverReport {
    /// Whether it is about a program whose bytes are on its cards, or may be.
    pub(crate) fn is_about_gpus(&self) -> bool {
        matches!(
            self,
            MoverReport::Present { parked: None }
                | MoverReport::Cannot(_)
                | MoverReport::Resumed
                | MoverReport::Unknown
        )
    }
}

/// Why a holder cannot be parked now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotParkable {
    /// It does not have its cards.
    NotActive,
    /// Nobody is parked in this house.
    SwitchedOff,
    /// None of its programs has Sublet's library in it.
    NoShim,
    /// So many of its programs use a card without it.
    ProcessesWithoutShim(usize),
    /// One of its programs says why not.
    Refused(String),
    /// This process is stopped, and cannot answer.
    Stopped(ProcKey),
    /// This process on its cards runs as another user than the lease's.
    OtherUser {
        /// The process.
        process: ProcKey,
        /// The user.
        uid: u32,
    },
    /// It has no hook.
    NoHook,
    /// Nobody has asked the driver about its processes yet.
    NotInspected,
    /// A restore would not be sure to have room, and one that lacks it loses the process.
    RestoreUnsure(String),
    /// A card of its cannot be read, so nobody could see its bytes go.
    Unreadable,
    /// The driver does not say how many bytes each process has, and only the library in it does.
    Coarse,
    /// For the same reason one holder moves at a time there, and one does.
    OneAtATime(GpuId),
    /// It was tried a moment ago.
    BackingOff(String),
    /// Nobody knows how much host memory there is.
    HostMemoryUnknown,
    /// There is too little host memory.
    NoSpace {
        /// It needs so much.
        need: Bytes,
        /// There is so much.
        room: Bytes,
    },
    /// Its tenant has as much parked as it may.
    Quota {
        /// So much.
        cap: Bytes,
    },
}

impl fmt::Display for NotParkable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotParkable::NotActive => f.write_str("it is not active now"),
            NotParkable::SwitchedOff => f.write_str("parking is switched off here (`[parking] ram`)"),
            NotParkable::NoShim => f.write_str("none of its programs uses a GPU through Sublet's library"),
            NotParkable::ProcessesWithoutShim(1) => {
                f.write_str("one of its programs uses a GPU without Sublet's library")
            }
            NotParkable::ProcessesWithoutShim(count) => {
                write!(f, "{count} of its programs use a GPU without Sublet's library")
            }
            NotParkable::Refused(why) => f.write_str(why),
            NotParkable::Stopped(process) => {
                let pid = process.pid;
                write!(
                    f,
                    "process {pid} is stopped (Ctrl-Z): it cannot be parked until it continues (`fg`, or `kill -CONT {pid}`)"
                )
            }
            NotParkable::OtherUser { process, uid } => write!(
                f,
                "process {} runs as uid {uid}, not as the lease's user: Sublet neither signals nor parks it",
                process.pid
            ),
            NotParkable::NoHook => f.write_str("it has no hook (`sublet run --on-park`)"),
            NotParkable::NotInspected => f.write_str("the driver has not inspected its processes yet"),
            NotParkable::RestoreUnsure(why) => {
                write!(f, "a restore might find no room: {why} (`--may-lose` accepts the risk)")
            }
            NotParkable::Unreadable => f.write_str("one of its GPUs cannot be read now"),
            NotParkable::Coarse => {
                f.write_str("the driver reports no bytes per process, and Sublet's library is not loaded")
            }
            NotParkable::OneAtATime(card) => write!(
                f,
                "another lease is being parked or resumed on GPU {}, and the driver reports no bytes per process there",
                card.0
            ),
            NotParkable::BackingOff(why) => write!(f, "it was tried a moment ago: {why}"),
            NotParkable::HostMemoryUnknown => f.write_str("the available host memory cannot be read"),
            NotParkable::NoSpace { need, room } => {
                write!(f, "it needs {need} of host memory, and the parking space has {room} free")
            }
            NotParkable::Quota { cap } => write!(f, "its tenant may have {cap} parked at once"),
        }
    }
}

impl From<RestoreObstacle> for NotParkable {
    fn from(who: RestoreObstacle) -> NotParkable {
        NotParkable::RestoreUnsure(who.to_string())
    }
}

impl NotParkable {
    /// Whether it is so for as long as the holder is as it is: not for want of a moment, or of host memory.
    pub fn is_lasting(&self) -> bool {
        use NotParkable::{BackingOff, HostMemoryUnknown, NoSpace, NotActive, OneAtATime, Unreadable};
        !matches!(self, NotActive | Unreadable | OneAtATime(_) | BackingOff(_) | HostMemoryUnknown | NoSpace { .. })
    }
}

/// Who could take the room on a card that a restore needs: one that lacks it loses the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreObstacle {
    /// Nobody can see who is there.
    Unreadable(GpuId),
    /// So many processes that have no lease there.
    Unleased(GpuId, usize),
    /// A lease of which a program has no library, or nobody speaks for any.
    Uncapped(GpuId, LeaseId),
}

impl fmt::Display for RestoreObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreObstacle::Unreadable(card) => write!(f, "GPU {} cannot be read", card.0),
            RestoreObstacle::Unleased(card, count) => {
                write!(f, "processes without a lease are on GPU {}: {count}", card.0)
            }
            RestoreObstacle::Uncapped(_, lease) => write!(f, "nothing limits {lease} to its size"),
        }
    }
}

/// Beside a context, a parked program may have so much on a card: modules, and what streams keep.
pub(crate) const RESIDUE: Bytes = Bytes::mib(512);

/// A context whose size was never measured: more than any was seen to take.
pub(crate) const CONTEXT: Bytes = Bytes::mib(1024);

/// Whoever says that it parked less need not show it.
pub(crate) const UNVERIFIED_MAX: Bytes = Bytes::mib(64);

/// What is remembered of who was not to be believed.
pub(crate) const FALSE_REPORT: &str = "its programs reported that they freed their VRAM, and they had not";

/// A card as it was when a holder began to leave it. Where nobody tells whose bytes are whose, what it lost
/// since then is the holder's, if nobody else moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuSnapshot {
    pub(crate) used: Bytes,
    /// Everybody else who had something there.
    pub(crate) leases: Vec<LeaseId>,
    pub(crate) processes: Vec<ProcKey>,
}

/// Who speaks for a holder with a hook.
pub(crate) const HOOK: ProcKey = ProcKey { pid: 0, start: 0 };
