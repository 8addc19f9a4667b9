//! A request for a lease, and the limits within which a request makes sense.

use crate::model::ids::GpuId;
use crate::model::reading::GpuFacts;
use crate::model::units::{Bytes, Span};
use serde::{Deserialize, Serialize};

/// What a user asks for: bytes, number of GPUs, term, tier, priority, exclusivity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRequest {
    /// How much of each GPU.
    pub vram: Vram,
    /// How many GPUs, all or none.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub gpus: u16,
    /// How long it lasts, and whether use prolongs it.
    pub term: Term,
    /// The order of service.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tier: Tier,
    /// Within a tier: -10 (last) to 10 (first).
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: i8,
    /// Which other leases may be on its GPUs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub exclusivity: Exclusivity,
    /// How it may be preempted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub preempt: Preempt,
    /// The least of each GPU that will do, if that can start at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<Bytes>,
    /// Which GPUs suit it.
    #[serde(rename = "on", default, skip_serializing_if = "Option::is_none")]
    pub gpus_allowed: Option<GpuSelector>,
    /// Its wrapper has a hook that makes it leave its GPUs.
    #[serde(rename = "yields", default, skip_serializing_if = "std::ops::Not::not")]
    pub has_hook: bool,
    /// The driver may park it also where a restore could lack room, and lose it.
    #[serde(rename = "may_lose", default, skip_serializing_if = "std::ops::Not::not")]
    pub may_lose_state: bool,
    /// Its size was measured when its program was adopted: it grows with the program while there is room.
    #[serde(rename = "measured", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_measured: bool,
    /// The signal it gets before its lease ends: when it is preempted, or when its fixed term is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<Notice>,
    /// What its owner calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

// Defaults are not written: a request is on the disk three times, in the log, with its lease, and in the history.
fn one() -> u16 {
    1
}

fn is_one(gpus: &u16) -> bool {
    *gpus == 1
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Whether people can be shown a text as it is: short, and of visible characters only.
pub(crate) fn is_plain(text: &str, max: usize) -> bool {
    text.chars().count() <= max && text.chars().all(is_visible)
}

/// Whether a character of a user's text can be shown to other people. Controls move a cursor; characters that are not
/// seen, or turn the others around, could make one text look like another.
pub fn is_visible(c: char) -> bool {
    !c.is_control() && !is_hidden(c)
}

/// Unicode's characters of format: zero width, direction, tags, and separators of lines.
fn is_hidden(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}'
        | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// How much of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Vram {
    /// These bytes, its CUDA context included.
    Bytes(Bytes),
    /// All that is left of a GPU without other leases.
    Whole,
}

/// How a lease may be preempted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preempt {
    /// The tier's default: parked, and at spot it may be ended instead.
    #[default]
    Usual,
    /// Parked and never ended, at tier spot too.
    Park,
    /// End it: it goes on later from what it saved itself.
    End,
    /// Nothing, as long as it is used. Takes a quota.
    Never,
}

/// A signal some time before the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// Its number.
    pub signal: u8,
    /// How long before.
    pub before: Span,
}

/// How long a lease lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Term {
    /// This long after the last renewal; use renews it.
    Renewed(Span),
    /// This long, and no longer.
    Fixed(Span),
}

impl Term {
    /// From a grant or renewal to the expiry.
    pub fn span(self) -> Span {
        match self {
            Term::Renewed(span) | Term::Fixed(span) => span,
        }
    }
}

/// The order of service is the order of the variants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// A user is looking at it.
    Interactive,
    /// The ordinary case.
    #[default]
    Batch,
    /// May be ended for any other request.
    Spot,
}

/// Which other leases and processes may be on the GPUs of a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exclusivity {
    /// All.
    #[default]
    Shared,
    /// The tenant's own leases only, and no compute of unleased processes.
    Session,
    /// None.
    Device,
}

/// Which GPUs suit a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuSelector {
    /// The GPU with this index.
    Index(u32),
    /// The GPU with this UUID, or with one that begins so.
    Uuid(String),
    /// Any GPU whose product name contains this, in any case.
    Model(String),
    /// Only these, where a parked lease was. No text asks for it.
    These(Vec<GpuId>),
    /// Any GPU that one of these names.
    AnyOf(Vec<GpuSelector>),
}

impl GpuSelector {
    /// How every UUID begins: a part of this names no GPU yet.
    const UUID: &str = "GPU-";

    /// Reads what people write: a number, a UUID, or a part of a model's name; several with commas between them.
    pub fn read(text: &str) -> GpuSelector {
        let one = |text: &str| match text.parse() {
            Ok(index) => GpuSelector::Index(index),
            Err(_) if text.starts_with(GpuSelector::UUID) => GpuSelector::Uuid(text.to_owned()),
            Err(_) => GpuSelector::Model(text.to_owned()),
        };
        match text.contains(',') {
            true => GpuSelector::AnyOf(text.split(',').map(str::trim).map(one).collect()),
            false => one(text),
        }
    }

    /// Whether a GPU is one of those that are meant.
    pub fn matches(&self, gpu: GpuId, facts: &GpuFacts) -> bool {
        match self {
            GpuSelector::Index(index) => facts.index == *index,
            GpuSelector::Uuid(uuid) => facts.uuid.starts_with(uuid.as_str()),
            GpuSelector::Model(part) => facts.name.to_lowercase().contains(&part.to_lowercase()),
            GpuSelector::These(gpus) => gpus.contains(&gpu),
            GpuSelector::AnyOf(several) => several.iter().any(|on| on.matches(gpu, facts)),
        }
    }

    /// Whether it is short and plain enough to be kept.
    fn is_valid(&self) -> bool {
        match self {
            GpuSelector::Index(_) | GpuSelector::These(_) => true,
            GpuSelector::Uuid(text) => text.len() > GpuSelector::UUID.len() && is_plain(text, LeaseRequest::ON_MAX),
            GpuSelector::Model(text) => !text.is_empty() && is_plain(text, LeaseRequest::ON_MAX),
            GpuSelector::AnyOf(several) => {
                several.len() <= usize::from(LeaseRequest::GPUS_MAX) && several.iter().all(GpuSelector::is_valid)
            }
        }
    }
}

/// Why a request makes no sense, whatever the GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// Zero bytes, or more than any GPU will ever have.
    Vram,
    /// No GPUs, or more than [`LeaseRequest::GPUS_MAX`].
    Gpus,
    /// A term of zero, or beyond the limits below.
    Term,
    /// Outside -10 to 10.
    Priority,
    /// Too long, or with characters that control something or are not seen.
    Name,
    /// Empty, too long, too many, or with such characters.
    On,
    /// Zero, or not less than `vram`.
    AtLeast,
    /// A signal that is not one of [`LeaseRequest::NOTICE_SIGNALS`], or too long before the end.
    Notice,
}

impl LeaseRequest {
    /// Whether its owner chose that others may end it.
    pub fn may_be_ended(&self) -> bool {
        self.preempt == Preempt::End || (self.tier == Tier::Spot && self.preempt == Preempt::Usual)
    }

    /// Nothing useful is smaller, and a GPU is not a million leases.
    pub const VRAM_MIN: Bytes = Bytes::mib(1);
    /// GPUs in one lease: more than a host has.
    pub const GPUS_MAX: u16 = 64;
    /// A renewed lease must show life once a day.
    pub const TTL_MAX: Span = Span::secs(86_400);
    /// A fixed term of a week is a maintenance plan, not a lease.
    pub const FIXED_MAX: Span = Span::secs(7 * 86_400);
    /// The longest notice: a waiter need not wait longer for a lease that opted to be ended.
    pub const NOTICE_MAX: Span = Span::secs(600);
    /// Longest name.
    pub const NAME_MAX: usize = 64;
    /// Signals that can announce the end of a lease, by number: HUP, INT, QUIT, USR1, USR2, TERM, CONT, URG, WINCH. Each
    /// can be caught, and means no fault.
    pub const NOTICE_SIGNALS: [u8; 9] = [1, 2, 3, 10, 12, 15, 18, 23, 28];
    /// The longest GPU selector; of several, each.
    pub const ON_MAX: usize = 128;

    /// A request for these bytes of one GPU, with the defaults for all else.
    pub fn plain(vram: Bytes, term: Term) -> LeaseRequest {
        LeaseRequest {
            vram: Vram::Bytes(vram),
            gpus: 1,
            term,
            tier: Tier::default(),
            priority: 0,
            exclusivity: Exclusivity::default(),
            preempt: Preempt::default(),
            at_least: None,
            gpus_allowed: None,
            has_hook: false,
            may_lose_state: false,
            is_measured: false,
            notice: None,
            name: None,
        }
    }

    /// What is wrong with the request itself, if anything is.
    pub fn check(&self) -> Result<(), RequestError> {
        let term_max = match self.term {
            Term::Renewed(_) => LeaseRequest::TTL_MAX,
            Term::Fixed(_) => LeaseRequest::FIXED_MAX,
        };
        if matches!(self.vram, Vram::Bytes(b) if b < LeaseRequest::VRAM_MIN || b > Bytes::MAX_ASK) {
            Err(RequestError::Vram)
        } else if self.gpus == 0 || self.gpus > LeaseRequest::GPUS_MAX {
            Err(RequestError::Gpus)
        } else if self.term.span() < Span::secs(1) || self.term.span() > term_max {
            Err(RequestError::Term)
        } else if !(-10..=10).contains(&self.priority) {
            Err(RequestError::Priority)
        } else if self.name.as_ref().is_some_and(|name| !is_plain(name, LeaseRequest::NAME_MAX)) {
            Err(RequestError::Name)
        } else if self.gpus_allowed.as_ref().is_some_and(|on| !on.is_valid()) {
            Err(RequestError::On)
        } else if matches!((self.at_least, self.vram), (Some(least), Vram::Bytes(full)) if least >= full)
            || self.at_least.is_some_and(|least| least < LeaseRequest::VRAM_MIN)
        {
            Err(RequestError::AtLeast)
        } else if self.notice.is_some_and(|notice| {
            !LeaseRequest::NOTICE_SIGNALS.contains(&notice.signal) || notice.before > LeaseRequest::NOTICE_MAX
        }) {
            Err(RequestError::Notice)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_on(text: &str) -> Result<(), RequestError> {
        let request = LeaseRequest::plain(Bytes::gib(1), Term::Renewed(Span::secs(60)));
        LeaseRequest { gpus_allowed: Some(GpuSelector::read(text)), ..request }.check()
    }

    #[test]
    fn a_name_is_what_people_see() {
        let check = |name: &str| {
            let request = LeaseRequest::plain(Bytes::gib(1), Term::Renewed(Span::secs(60)));
            LeaseRequest { name: Some(name.to_owned()), ..request }.check()
        };
        for name in ["train", "Größe 7, «α»", "訓練 🚀", ""] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        let hidden =
            ['\u{7}', '\u{ad}', '\u{61c}', '\u{200b}', '\u{200e}', '\u{202e}', '\u{2028}', '\u{2066}', '\u{feff}'];
        for c in hidden {
            assert_eq!(check(&format!("a{c}b")), Err(RequestError::Name), "{c:?}");
        }
    }

    #[test]
    fn cards_are_named_one_by_one_or_with_commas() {
        assert_eq!(GpuSelector::read("1"), GpuSelector::Index(1));
        assert_eq!(GpuSelector::read("GPU-5f"), GpuSelector::Uuid("GPU-5f".into()));
        assert_eq!(GpuSelector::read("H200"), GpuSelector::Model("H200".into()));
        let several =
            vec![GpuSelector::Index(1), GpuSelector::Uuid("GPU-5f".into()), GpuSelector::Model("H200".into())];
        assert_eq!(GpuSelector::read("1, GPU-5f,H200"), GpuSelector::AnyOf(several));
        let most = vec!["1"; usize::from(LeaseRequest::GPUS_MAX)].join(",");
        for text in ["1", "GPU-5", "NVIDIA H200", &most] {
            assert_eq!(check_on(text), Ok(()), "{text}");
        }
        for text in ["", ",", "1,", "1,,2", "GPU-", "0,GPU-", "a\u{7}", &format!("{most},1"), &"x".repeat(129)] {
            assert_eq!(check_on(text), Err(RequestError::On), "{text}");
        }
    }
}
