//! What moves a lease's bytes off its GPUs and back, what it reports, and why a lease cannot be moved.
//!
//! A mover is Sublet's library in a program, the driver, or the wrapper, which has one hook for all programs of a lease.
//! Absent: whether a lease can be parked now. [`crate::policy::parking`] answers that.

use crate::model::ids::{GpuId, LeaseId, ProcKey};
use crate::model::units::{Bytes, Time};
use std::collections::BTreeMap;
use std::fmt;

/// Moves the bytes of a process of a lease: the library in the process, the driver, or the wrapper for all processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mover {
    /// How many bytes it reported to be off the GPUs; `None` if they are on the GPUs.
    pub parked_bytes: Option<Bytes>,
    /// Why it cannot be parked, if it cannot.
    pub refusal: Option<String>,
    /// Whether it calls the driver for nothing while it is parked; `None` if it never said that it could do so.
    pub keeps_still: Option<bool>,
    /// Where its bytes are is not known any more, whatever was said before.
    pub is_unknown: bool,
}

impl Mover {
    /// Notes where it reported its bytes to be: in host memory, or on its GPUs.
    pub(crate) fn set_parked_bytes(&mut self, parked: Option<Bytes>) {
        (self.parked_bytes, self.is_unknown) = (parked, false);
    }
}

/// How a park or a resume goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoveProgress {
    /// When the last of its programs said that it was done.
    pub reported_at: Option<Time>,
    /// How many readings in a row agree, by GPU.
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

/// A report about a program: from Sublet's library in it, the driver, or its wrapper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoverReport {
    /// The mover exists.
    Present {
        /// Bytes in host memory; `None` if they are on the GPUs.
        parked: Option<Bytes>,
    },
    /// It cannot be parked, and why; or it can.
    Cannot(Option<String>),
    /// Its bytes have left its GPUs.
    Parked(Bytes),
    /// They are back.
    Resumed,
    /// They stay where they are, and why.
    Refused(String),
    /// They stay where they are: there are more of them than were booked, since the reading was out of date.
    Outgrown(String),
    /// They will never be back, and why.
    Lost(String),
    /// Where they are is unknown: the mover was lost while it moved them.
    Unknown,
    /// It calls the driver for nothing, so that this may have its context, too; or not any more.
    KeepsStill(bool),
    /// It submits work and needs them.
    Used,
    /// It is not there any more.
    Gone,
    /// The same, and the program ended while the library took its bytes off its GPUs; with what is known of the cause.
    Died(String),
}

impl MoverReport {
    /// Whether it is about a program whose bytes are on its GPUs, or may be.
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

/// Why a lease cannot be parked now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotParkable {
    /// It does not have its GPUs.
    NotActive,
    /// Parking is switched off on this host.
    SwitchedOff,
    /// None of its programs has Sublet's library in it.
    NoShim,
    /// The number of its programs that use a GPU without it.
    ProcessesWithoutShim(usize),
    /// One of its programs says why not.
    Refused(String),
    /// This process is stopped, and cannot answer.
    Stopped(ProcKey),
    /// This process on its GPUs runs as another user than the lease's.
    OtherUser {
        /// The process.
        process: ProcKey,
        /// The user.
        uid: u32,
    },
    /// It has no hook.
    NoHook,
    /// The driver was not asked about its processes yet.
    NotInspected,
    /// A restore would not be sure to have room, and one that lacks it loses the process.
    RestoreUnsure(String),
    /// One of its GPUs cannot be read, so its bytes could not be seen to leave.
    Unreadable,
    /// The driver does not say how many bytes each process has; only Sublet's library in a process does.
    Coarse,
    /// For the same reason one lease moves at a time on this GPU, and one does.
    OneAtATime(GpuId),
    /// It was tried a moment ago.
    BackingOff(String),
    /// How much host memory there is cannot be read.
    HostMemoryUnknown,
    /// There is too little host memory.
    NoSpace {
        /// Bytes that it needs.
        need: Bytes,
        /// Bytes that there are.
        room: Bytes,
    },
    /// Its tenant has as much parked as it may.
    Quota {
        /// The cap.
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
            NotParkable::OneAtATime(gpu) => write!(
                f,
                "another lease is being parked or resumed on GPU {}, and the driver reports no bytes per process there",
                gpu.0
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
    fn from(obstacle: RestoreObstacle) -> NotParkable {
        NotParkable::RestoreUnsure(obstacle.to_string())
    }
}

impl NotParkable {
    /// Whether this lasts as long as the lease is as it is, and is not a matter of time or of free host memory.
    pub fn is_lasting(&self) -> bool {
        use NotParkable::{BackingOff, HostMemoryUnknown, NoSpace, NotActive, OneAtATime, Unreadable};
        !matches!(self, NotActive | Unreadable | OneAtATime(_) | BackingOff(_) | HostMemoryUnknown | NoSpace { .. })
    }
}

/// What could take the room on a GPU that a restore needs: a restore without room destroys the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreObstacle {
    /// The GPU cannot be read, so what is there is unknown.
    Unreadable(GpuId),
    /// The number of processes that have no lease there.
    Unleased(GpuId, usize),
    /// A lease with a program that no library limits to its size.
    Uncapped(GpuId, LeaseId),
}

impl fmt::Display for RestoreObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreObstacle::Unreadable(gpu) => write!(f, "GPU {} cannot be read", gpu.0),
            RestoreObstacle::Unleased(gpu, count) => {
                write!(f, "processes without a lease are on GPU {}: {count}", gpu.0)
            }
            RestoreObstacle::Uncapped(_, lease) => write!(f, "nothing limits {lease} to its size"),
        }
    }
}

/// What a parked program may have on a GPU beside its context: modules, and memory that streams keep.
pub(crate) const RESIDUE: Bytes = Bytes::mib(512);

/// The size of a context that was never measured: more than any was seen to take.
pub(crate) const CONTEXT: Bytes = Bytes::mib(1024);

/// A park of fewer bytes than this need not show in readings.
pub(crate) const UNVERIFIED_MAX: Bytes = Bytes::mib(64);

/// Why a mover is not tried again after a false report.
pub(crate) const FALSE_REPORT: &str = "its programs reported that they freed their VRAM, and they had not";

/// A GPU as it was when a lease began to leave it. Where the driver does not tell the bytes of each process, what the
/// GPU lost since then is the lease's, if nothing else moved there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuSnapshot {
    pub(crate) used: Bytes,
    /// All other leases there.
    pub(crate) leases: Vec<LeaseId>,
    pub(crate) processes: Vec<ProcKey>,
}

/// The process key of a wrapper's hook, which is the mover of all programs of its lease.
pub(crate) const HOOK: ProcKey = ProcKey { pid: 0, start: 0 };
