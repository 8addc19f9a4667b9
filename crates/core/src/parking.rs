//! What is known of holders that could be parked, and whether they can be.
//!
//! A holder is parked whole or not at all, and only while every one of its programs that the driver
//! shows on a card has Sublet's library in it. Host memory is booked before anything moves.

use crate::ids::{CardId, LeaseId, ProcKey};
use crate::mutant::Mutant;
use crate::reading::Reading;
use crate::rows::{Hold, Lease, Phase};
use crate::state::{Live, State};
use crate::units::{Bytes, Time};
use std::collections::BTreeMap;
use std::fmt;

/// One program of a holder that has Sublet's library in it, by its own word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shim {
    /// Its bytes are in host memory: so many.
    pub parked: Option<Bytes>,
    /// Why it cannot be parked, if it cannot.
    pub cannot: Option<String>,
}

/// How a park or a resume goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// When the last of its programs said that it was done.
    pub said: Option<Time>,
    /// How many looks in a row agree, by card.
    pub looks: BTreeMap<CardId, u32>,
}

/// Something went wrong lately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rest {
    /// It is not tried again before then.
    pub until: Time,
    /// What it was.
    pub why: String,
}

/// What a program says through Sublet's library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// It is there; its bytes are in host memory, or on its cards.
    Here {
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
    /// It submits work and needs them.
    Wants,
    /// It is not there any more.
    Left,
}

/// Why a holder cannot be parked now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotParkable {
    /// It does not have its cards.
    NotActive,
    /// Nobody is parked in this house.
    Off,
    /// None of its programs has Sublet's library in it.
    NoShim,
    /// So many of its programs use a card without it.
    Others(usize),
    /// One of its programs says why not.
    Says(String),
    /// A card of its cannot be read, so nobody could see its bytes go.
    Unreadable,
    /// The driver does not say how many bytes each process has.
    Coarse,
    /// It was tried a moment ago.
    Lately(String),
    /// Nobody knows how much host memory there is.
    RamUnknown,
    /// There is too little host memory.
    Ram {
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
            NotParkable::NotActive => f.write_str("it does not have its cards now"),
            NotParkable::Off => f.write_str("parking is off in this house"),
            NotParkable::NoShim => f.write_str("no program of its uses a card through Sublet's library"),
            NotParkable::Others(1) => f.write_str("one of its programs uses a card without Sublet's library"),
            NotParkable::Others(count) => {
                write!(f, "{count} of its programs use a card without Sublet's library")
            }
            NotParkable::Says(why) => f.write_str(why),
            NotParkable::Unreadable => f.write_str("a card of its cannot be read now"),
            NotParkable::Coarse => f.write_str("the driver does not tell how many bytes each process has"),
            NotParkable::Lately(why) => write!(f, "it was tried a moment ago: {why}"),
            NotParkable::RamUnknown => f.write_str("nobody knows how much host memory is available"),
            NotParkable::Ram { need, room } => {
                write!(f, "it takes {need} of host memory, and {room} of the parking RAM can be had")
            }
            NotParkable::Quota { cap } => write!(f, "its tenant may have {cap} parked at a time"),
        }
    }
}

/// Beside a context, a parked program may have so much on a card: modules, and what streams keep.
const RESIDUE: Bytes = Bytes::mib(512);
/// A context whose size was never measured.
const CONTEXT: Bytes = Bytes::mib(1024);
/// Whoever says that it parked less need not show it.
const SMALL: Bytes = Bytes::mib(64);

/// Host memory that can be booked now.
pub fn room(state: &State) -> Option<Bytes> {
    let parking = &state.policy().parking;
    if state.planted(Mutant::ForgetLedger) {
        return Some(Bytes(u64::MAX));
    }
    // Who is on the way there has booked what it has not all taken yet.
    let coming = state.moving().filter_map(|lease| state.lease(lease));
    let coming = coming.filter(|row| matches!(row.phase, Phase::Parking(..)));
    let coming: Bytes = coming.filter_map(Lease::hold).map(Hold::booked).sum();
    let available = state.ram()?.less(parking.leave + coming);
    Some(parking.ram.less(state.booked()).min(available))
}

/// Host memory that a tenant's parked bytes take.
fn booked_by(state: &State, lease: &Lease) -> Bytes {
    let own = state.rows().leases.values().filter(|row| row.tenant == lease.tenant);
    own.filter_map(Lease::hold).map(Hold::booked).sum()
}

/// How much host memory parking a holder takes, if it can be parked now.
pub fn parkable(state: &State, lease: &Lease, now: Time) -> Result<Bytes, NotParkable> {
    let Phase::Active(hold) = &lease.phase else { return Err(NotParkable::NotActive) };
    if state.policy().parking.ram == Bytes::ZERO {
        return Err(NotParkable::Off);
    }
    could_be(state, lease, hold, now)?;
    if let Some(rest) = state.live(lease.id).and_then(|live| live.rest.as_ref()).filter(|rest| rest.until > now) {
        return Err(NotParkable::Lately(rest.why.clone()));
    }
    let seen: Bytes = hold.cards.iter().map(|card| state.room(*card).seen_of(lease.id)).sum();
    let need = seen + SMALL;
    let room = room(state).ok_or(NotParkable::RamUnknown)?;
    if need > room {
        return Err(NotParkable::Ram { need, room });
    }
    match state.books().caps(lease.tenant).parked {
        Some(cap) if booked_by(state, lease) + need > cap => Err(NotParkable::Quota { cap }),
        _ => Ok(need),
    }
}

/// Whether its programs and its cards would let it be parked, whatever the host memory.
pub fn could_be(state: &State, lease: &Lease, hold: &Hold, now: Time) -> Result<(), NotParkable> {
    let live = state.live(lease.id).ok_or(NotParkable::NoShim)?;
    let mut others = 0;
    for card in &hold.cards {
        let room = state.room(*card);
        room.open(now, state.policy().period).map_err(|_| NotParkable::Unreadable)?;
        let Reading::Used(used) = &room.observed().reading else { return Err(NotParkable::Unreadable) };
        if used.coarse {
            return Err(NotParkable::Coarse);
        }
        others += residents(state, lease.id, *card).filter(|process| !live.shims.contains_key(process)).count();
    }
    match live.shims.values().find_map(|shim| shim.cannot.as_ref()) {
        _ if live.shims.is_empty() => Err(NotParkable::NoShim),
        _ if others > 0 => Err(NotParkable::Others(others)),
        Some(why) => Err(NotParkable::Says(why.clone())),
        None => Ok(()),
    }
}

/// A lease's processes on a card, as of the last look.
fn residents(state: &State, lease: LeaseId, card: CardId) -> impl Iterator<Item = ProcKey> + '_ {
    let used = match &state.room(card).observed().reading {
        Reading::Used(used) => Some(used),
        Reading::Unreadable(_) => None,
    };
    let all = used.into_iter().flat_map(|used| used.processes.iter().map(|resident| resident.process));
    all.filter(move |process| state.owner(process) == Some(lease))
}

/// Whether all programs of a holder say that its bytes are in host memory.
pub(crate) fn all_parked(state: &State, lease: &Lease, hold: &Hold) -> bool {
    let Some(live) = state.live(lease.id) else { return false };
    live.shims.values().all(|shim| shim.parked.is_some()) && are_known(state, lease, hold, live)
}

/// Whether all of them say that they are on its cards. Of whom nothing was heard, as after a start,
/// nothing is known.
pub(crate) fn all_back(state: &State, lease: &Lease, hold: &Hold) -> bool {
    let Some(live) = state.live(lease.id) else { return false };
    let heard = !live.shims.is_empty() || lease.roots.is_empty();
    heard && none_parked(live) && are_known(state, lease, hold, live)
}

/// Whether none of a holder's programs says that its bytes are in host memory.
pub(crate) fn none_parked(live: &Live) -> bool {
    live.shims.values().all(|shim| shim.parked.is_none())
}

/// Whether every program of a holder that is on its cards was heard of.
fn are_known(state: &State, lease: &Lease, hold: &Hold, live: &Live) -> bool {
    let known = |card: &CardId| residents(state, lease.id, *card).all(|process| live.shims.contains_key(&process));
    hold.cards.iter().all(known)
}

/// Whether a look at a card shows that a holder's bytes are gone: no more than contexts are left, and
/// at least half of what its programs say they took off its cards.
pub(crate) fn is_seen_gone(state: &State, lease: &Lease, hold: &Hold, card: CardId) -> bool {
    let room = state.room(card);
    match &room.observed().reading {
        Reading::Used(used) if !used.coarse => {}
        _ => return false,
    }
    let context = state.rows().cards[card.0 as usize].facts.context.unwrap_or(CONTEXT);
    let programs = residents(state, lease.id, card).count() as u64;
    if room.seen_of(lease.id) > Bytes((context + RESIDUE).0.saturating_mul(programs)) {
        return false;
    }
    let Some(live) = state.live(lease.id) else { return false };
    let said: Bytes = live.shims.values().filter_map(|shim| shim.parked).sum();
    let after: Bytes = hold.cards.iter().map(|card| state.room(*card).seen_of(lease.id)).sum();
    // What was booked is what was seen when it began, and a little.
    said <= SMALL || after <= hold.booked().less(Bytes(said.0 / 2))
}
