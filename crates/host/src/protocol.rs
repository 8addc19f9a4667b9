//! What the card thread and its worker process say to each other: one JSON line each way.
//!
//! Both ends are the same executable, so the form may change with any release.

use serde::{Deserialize, Serialize};
use sublet_core::ids::ProcKey;
use sublet_core::reading::{CardFacts, Reading, Resident, Unreadable, Used};
use sublet_core::units::Bytes;

use crate::Unlisted;

/// Asked of the worker, one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Which cards are there?
    List,
    /// What is on them? And who used their engines, if somebody wants to know: that is dear.
    Look { busy: bool },
}

/// What the worker says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// To [`Request::List`]; there are more that could not be read and were never known.
    Cards { cards: Vec<CardFacts>, unread: bool },
    /// To [`Request::Look`]: each card of the last list.
    Looks(Vec<Look>),
    /// To either: there is no list to be had.
    Unlisted(Unlisted),
}

/// One look at one card, as it travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Look {
    pub(crate) uuid: String,
    pub(crate) seen: Seen,
}

/// What was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Seen {
    /// The card answered.
    Used { free: Bytes, processes: Vec<OnCard>, coarse: bool },
    /// The driver says that it is gone.
    Lost,
    /// The driver answered with an error.
    Failed(String),
}

/// One process on a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OnCard {
    pub(crate) process: ProcKey,
    pub(crate) bytes: Option<Bytes>,
    pub(crate) graphics: bool,
    /// It used the card's engines since that was last asked.
    pub(crate) busy: bool,
}

impl Seen {
    /// The processes that used the card's engines.
    pub(crate) fn busy(&self) -> Vec<ProcKey> {
        match self {
            Seen::Used { processes, .. } => processes.iter().filter(|p| p.busy).map(|p| p.process).collect(),
            Seen::Lost | Seen::Failed(_) => Vec::new(),
        }
    }

    /// The same as everybody else reads it.
    pub(crate) fn into_reading(self) -> Reading {
        match self {
            Seen::Used { free, processes, coarse } => {
                let resident = |p: OnCard| Resident { process: p.process, bytes: p.bytes, graphics: p.graphics };
                Reading::Used(Used { free, processes: processes.into_iter().map(resident).collect(), coarse })
            }
            Seen::Lost => Reading::Unreadable(Unreadable::Lost),
            Seen::Failed(why) => Reading::Unreadable(Unreadable::Failed(why)),
        }
    }
}
