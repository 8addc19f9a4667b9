//! Unleased processes: processes on GPUs that belong to no lease there, what is known of them, and the modes and rules
//! by which they are treated.
//!
//! An [`UnleasedProcess`] is durable from the moment it is found, so that its history is on the record before anything is done
//! to it. [`mod@crate::decide`] decides what is done.

use crate::model::audit::Audit;
use crate::model::ids::{GpuId, LeaseId, ProcKey};
use crate::model::request::Tier;
use crate::model::units::{Bytes, Span, Time};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The id of an unleased process, `X7` on screens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnleasedId(pub u64);

impl fmt::Display for UnleasedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "X{}", self.0)
    }
}

/// A rule's name, `R2` on screens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RuleId(pub u32);

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "R{}", self.0)
    }
}

/// What is done about unleased processes on a GPU. Each mode does what those before it do, except for the adoption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// They are put on the record.
    #[default]
    Observe,
    /// Those of known users get a lease of their size.
    Adopt,
    /// Their owners are warned.
    Warn,
    /// A process that does not heed the warning is parked or ended.
    Enforce,
}

impl Mode {
    /// All of them.
    pub const ALL: [Mode; 4] = [Mode::Observe, Mode::Adopt, Mode::Warn, Mode::Enforce];

    /// Its name in the API and on screens.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Observe => "observe",
            Mode::Adopt => "adopt",
            Mode::Warn => "warn",
            Mode::Enforce => "enforce",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A process on a GPU that belongs to no lease which has that GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnleasedProcess {
    /// Its name.
    pub id: UnleasedId,
    /// What the audit of it found.
    pub audit: Audit,
    /// When it was found.
    pub since: Time,
    /// Where it was found.
    #[serde(rename = "cards")]
    pub gpus: Vec<GpuId>,
    /// How far it has come.
    pub step: UnleasedStep,
    /// The process that it succeeds: the same program, which was ended not long ago or left when it was warned.
    #[serde(rename = "again", default, skip_serializing_if = "Option::is_none")]
    pub successor_of: Option<UnleasedId>,
    /// When that one had to have left for good, which holds for this one too.
    #[serde(rename = "until", default, skip_serializing_if = "Option::is_none")]
    pub must_leave_by: Option<Time>,
    /// Why it could not be parked: that is tried once.
    #[serde(rename = "stays", default, skip_serializing_if = "Option::is_none")]
    pub why_not_parked: Option<String>,
    /// The lease that it was a process of when it was found: one for other GPUs.
    #[serde(rename = "of", default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseId>,
}

/// How far the steps against an unleased process are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "at", rename_all = "snake_case")]
pub enum UnleasedStep {
    /// It is on the record.
    Found,
    /// Its owner was told what happens unless it gets a lease.
    Warned {
        /// When that was.
        since: Time,
        /// When it happens.
        until: Time,
    },
    /// It has a lease, by which it is parked.
    #[serde(rename = "moving")]
    Parking {
        /// Which.
        lease: LeaseId,
        /// Since when.
        since: Time,
    },
    /// It could not be taken off them.
    #[serde(rename = "unmoved")]
    NotParked {
        /// When that was known.
        since: Time,
    },
    /// It gets, or got, a signal.
    #[serde(rename = "told")]
    Signalled {
        /// Which.
        signal: u8,
        /// When that was decided; once it has gone out, when it has.
        since: Time,
        /// It has gone out, and was not refused.
        sent: bool,
    },
    /// It survived SIGKILL.
    #[serde(rename = "stuck")]
    Survived,
}

/// Why the record of an unleased process was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnleasedEnd {
    /// It exited.
    Exited,
    /// It has left the GPUs.
    #[serde(rename = "off_cards")]
    OffGpus,
    /// It got a lease.
    Adopted(LeaseId),
    /// It was parked by one, in place of being ended.
    Parked(LeaseId),
    /// It was found to belong to one.
    Matched(LeaseId),
    /// The host was started anew.
    HostRebooted,
}

/// What an operator said about certain unleased processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Its name.
    pub id: RuleId,
    /// Which.
    #[serde(rename = "who")]
    pub subject: RuleSubject,
    /// What about them.
    #[serde(rename = "treat")]
    pub action: RuleAction,
}

/// Which unleased processes a rule is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleSubject {
    /// Those that run this file: its whole path, or its name.
    Exe(String),
    /// Those of this systemd unit.
    Unit(String),
    /// Those in this container, by the beginning of its id.
    Container(String),
    /// Those of this user.
    Uid(u32),
}

/// What a rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleAction {
    /// Nothing is done about them.
    Allow,
    /// They may be ended though they are in a container, or only draw.
    Deny,
    /// They get a lease where they are found: wherever they are seen, they get a lease.
    #[serde(rename = "attach")]
    Adopt {
        /// Bytes of each GPU, where there is room for them; `None`: what they have.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vram: Option<Bytes>,
        /// How urgent their work is.
        tier: Tier,
    },
}

impl RuleSubject {
    /// The longest word that a rule may have.
    pub const WORD_MAX: usize = 256;
    /// The shortest beginning of a container's id.
    pub const CONTAINER_MIN: usize = 12;

    /// Whether it is about this process. A whole path is of this host's files: any user may mount another file
    /// over it in a namespace.
    pub fn matches(&self, audit: &Audit) -> bool {
        let is_path = matches!(self, RuleSubject::Exe(meant) if meant.contains('/'));
        !(is_path && audit.exe_inside)
            && self.matches_process(audit.exe.as_deref(), audit.unit.as_deref(), audit.container.as_deref(), audit.uid)
    }

    /// Whether it is about a process that runs this file, in this unit, in this container, as this user.
    pub fn matches_process(&self, exe: Option<&str>, unit: Option<&str>, container: Option<&str>, uid: u32) -> bool {
        match self {
            RuleSubject::Exe(meant) => exe.is_some_and(|own| {
                let name = own.rsplit('/').next().unwrap_or_default();
                if meant.contains('/') { own == meant } else { name == meant }
            }),
            RuleSubject::Unit(meant) => {
                unit.is_some_and(|own| own == meant || own.strip_suffix(".service") == Some(meant))
            }
            RuleSubject::Container(id) => container.is_some_and(|own| own.starts_with(id.as_str())),
            RuleSubject::Uid(meant) => uid == *meant,
        }
    }

    /// Whether it makes sense.
    pub fn is_valid(&self) -> bool {
        let word =
            |word: &str| !word.is_empty() && word.len() <= RuleSubject::WORD_MAX && !word.chars().any(char::is_control);
        match self {
            RuleSubject::Exe(text) | RuleSubject::Unit(text) => word(text),
            RuleSubject::Container(id) => word(id) && id.len() >= RuleSubject::CONTAINER_MIN,
            RuleSubject::Uid(_) => true,
        }
    }
}

impl fmt::Display for RuleSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleSubject::Exe(exe) => write!(f, "exe:{exe}"),
            RuleSubject::Unit(unit) => write!(f, "unit:{unit}"),
            RuleSubject::Container(id) => write!(f, "container:{id}"),
            RuleSubject::Uid(uid) => write!(f, "uid:{uid}"),
        }
    }
}

/// The text is not a rule's subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotARuleSubject;

impl FromStr for RuleSubject {
    type Err = NotARuleSubject;
    fn from_str(text: &str) -> Result<RuleSubject, NotARuleSubject> {
        let (kind, word) = text.split_once(':').ok_or(NotARuleSubject)?;
        let who = match kind {
            "exe" => RuleSubject::Exe(word.to_owned()),
            "unit" => RuleSubject::Unit(word.to_owned()),
            "container" => RuleSubject::Container(word.to_owned()),
            "uid" => RuleSubject::Uid(word.parse().map_err(|_| NotARuleSubject)?),
            _ => return Err(NotARuleSubject),
        };
        if who.is_valid() { Ok(who) } else { Err(NotARuleSubject) }
    }
}

/// A pending signal for one process: the unleased process, or a descendant of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PendingSignal {
    /// The record that it is for.
    pub stranger: UnleasedId,
    /// Which process.
    pub process: ProcKey,
    /// Which signal.
    pub signal: u8,
    /// When that was decided.
    pub of: Time,
}

/// What a signal did to one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalOutcome {
    /// Which.
    pub process: ProcKey,
    /// Why it got none, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Because it is not what was audited, or that cannot be told: it runs another program, or is elsewhere, by now. It
    /// is audited before anything else is done about it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changed: bool,
    /// The user that it was of by then, if that was another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

/// Why nothing is done about an unleased process, whatever the mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exemption {
    /// A rule says so.
    Allowed(RuleId),
    /// It is in a container, and no rule says that it may be ended.
    Container,
    /// It only draws, and no rule says that it may be ended.
    Graphics,
    /// It draws the screen of this seat.
    Display(String),
    /// It could not be audited: that file, and more, cannot be read.
    Unread(String),
    /// No device file of a GPU is open in it: what the driver lists may be another process.
    NoDevice,
    /// The memory is that of a process which ended, and several have a GPU's file from it: which one holds it is
    /// unknown.
    Shared(u32),
    /// It is the first process, or of the kernel.
    System,
    /// The driver does not tell the bytes of each process here.
    Coarse,
    /// No process can be ended here, and why.
    CannotEnforce(String),
    /// A signal to it was refused.
    Refused(String),
    /// By this rule it is to be adopted, and it has a lease for other GPUs.
    Attached(RuleId, LeaseId),
}

impl fmt::Display for Exemption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exemption::Allowed(rule) => write!(f, "rule {rule} allows it"),
            Exemption::Container => f.write_str("it is in a container, which is only ended if a rule denies it"),
            Exemption::Graphics => f.write_str("it only draws, and is only ended if a rule denies it"),
            Exemption::Display(seat) => write!(f, "it draws the screen of {seat}"),
            Exemption::Unread(what) => write!(f, "it could not be audited: {what}"),
            Exemption::NoDevice => f.write_str("it has no device file of a GPU open"),
            Exemption::Shared(pid) => {
                write!(
                    f,
                    "other processes have GPU files of process {pid} too, and which one holds its memory is unknown"
                )
            }
            Exemption::System => f.write_str("it is a process of the system"),
            Exemption::Coarse => f.write_str("the driver reports no bytes per process here"),
            Exemption::CannotEnforce(why) => write!(f, "unleased processes cannot be told apart here: {why}"),
            Exemption::Refused(why) => write!(f, "it could not be signalled: {why}"),
            Exemption::Attached(rule, lease) => {
                write!(f, "rule {rule} gives it a lease for all of its GPUs once {lease} has ended")
            }
        }
    }
}

/// What happens to an unleased process next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Nothing: it is on the record.
    Nothing,
    /// Nothing, for this reason.
    Exempt(Exemption),
    /// It gets a lease, then.
    Adopt(Time),
    /// Its owner is warned, and no more.
    Warn,
    /// It is parked then, if it can be without loss, and gets SIGTERM otherwise.
    Park(Time),
    /// It is being parked, by this lease.
    Parking(LeaseId),
    /// It gets this signal then.
    Signal(u8, Time),
    /// Nothing more can be done.
    Survived,
}

/// The times between the steps against an unleased process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnforcementTimes {
    /// From the warning to what follows.
    pub after_warning: Span,
    /// A process that can be parked without loss is parked instead of getting SIGTERM.
    pub parks_first: bool,
    /// From SIGTERM to SIGKILL.
    pub after_sigterm: Span,
}

impl Default for EnforcementTimes {
    fn default() -> EnforcementTimes {
        EnforcementTimes { after_warning: Span::secs(300), parks_first: true, after_sigterm: Span::secs(300) }
    }
}

/// A GPU that an unleased process is on, and its bytes there, where the driver tells.
pub type GpuPresence = (GpuId, Option<Bytes>);

/// Unleased processes on the record at a time; more are counted, and not audited.
pub(crate) const STRANGERS_MAX: usize = 1_024;
