//! Whether a holder can be parked, and what is known for that.
//!
//! A holder is parked whole or not at all, and only while every one of its programs that the driver shows on a GPU has
//! a mover: Sublet's library in the program, the driver itself, or the wrapper, which has one hook for all of them.
//! Host memory is booked before anything moves.

use crate::ids::{GpuId, LeaseId, ProcKey, TenantId};
use crate::lease_readings::LeaseReadings;
use crate::method::Method;
use crate::mutant::Mutant;
use crate::reading::{Reading, Unreadable};
use crate::room::{ReadingFault, Room};
use crate::rows::{Hold, Lease, Phase};
use crate::state::State;
use crate::units::{Bytes, Time};
use std::collections::BTreeMap;
use std::fmt;

/// Somebody who can make a holder's bytes leave its cards, and speaks for one of its processes: the
/// library in it, the driver, or the wrapper for all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mover {
    /// Its bytes are off the cards, by its word: so many.
    pub parked: Option<Bytes>,
    /// Why it cannot be parked, if it cannot.
    pub cannot: Option<String>,
    /// Whether it calls the driver for nothing while it is parked; `None` if it never said that it could do so.
    pub deep: Option<bool>,
    /// Where its bytes are is not known any more, whatever was said before.
    pub unknown: bool,
}

impl Mover {
    /// It says where its bytes are: in host memory, or on its cards.
    pub(crate) fn put(&mut self, parked: Option<Bytes>) {
        (self.parked, self.unknown) = (parked, false);
    }
}

/// How a park or a resume goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoveProgress {
    /// When the last of its programs said that it was done.
    pub said: Option<Time>,
    /// How many looks in a row agree, by card.
    pub looks: BTreeMap<GpuId, u32>,
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
    /// They stay where they are: there are more of them than were booked, since the reading was out of date.
    Outgrown(String),
    /// They will never be back, and why.
    Lost(String),
    /// Nobody knows where they are: whoever moved them was lost while it did.
    Unknown,
    /// It calls the driver for nothing, so that this may have its context, too; or not any more.
    Deep(bool),
    /// It submits work and needs them.
    Wants,
    /// It is not there any more.
    Left,
    /// The same, and it ended while the library took its bytes off its cards: what is known of the cause.
    Died(String),
}

impl MoverReport {
    /// Whether it is about a program whose bytes are on its cards, or may be.
    pub(crate) fn is_of_cards(&self) -> bool {
        matches!(
            self,
            MoverReport::Here { parked: None } | MoverReport::Cannot(_) | MoverReport::Resumed | MoverReport::Unknown
        )
    }
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
    NotSure(String),
    /// A card of its cannot be read, so nobody could see its bytes go.
    Unreadable,
    /// The driver does not say how many bytes each process has, and only the library in it does.
    Coarse,
    /// For the same reason one holder moves at a time there, and one does.
    OneAtATime(GpuId),
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
            NotParkable::NotActive => f.write_str("it is not active now"),
            NotParkable::Off => f.write_str("parking is switched off here (`[parking] ram`)"),
            NotParkable::NoShim => f.write_str("none of its programs uses a GPU through Sublet's library"),
            NotParkable::Others(1) => f.write_str("one of its programs uses a GPU without Sublet's library"),
            NotParkable::Others(count) => {
                write!(f, "{count} of its programs use a GPU without Sublet's library")
            }
            NotParkable::Says(why) => f.write_str(why),
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
            NotParkable::NotSure(why) => {
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
            NotParkable::Lately(why) => write!(f, "it was tried a moment ago: {why}"),
            NotParkable::RamUnknown => f.write_str("the available host memory cannot be read"),
            NotParkable::Ram { need, room } => {
                write!(f, "it needs {need} of host memory, and the parking space has {room} free")
            }
            NotParkable::Quota { cap } => write!(f, "its tenant may have {cap} parked at once"),
        }
    }
}

/// Who could take the room on a card that a restore needs: one that lacks it loses the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreObstacle {
    /// Nobody can see who is there.
    Unreadable(GpuId),
    /// So many processes that have no lease there.
    Strangers(GpuId, usize),
    /// A lease of which a program has no library, or nobody speaks for any.
    Uncapped(GpuId, LeaseId),
}

impl fmt::Display for RestoreObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreObstacle::Unreadable(card) => write!(f, "GPU {} cannot be read", card.0),
            RestoreObstacle::Strangers(card, count) => {
                write!(f, "processes without a lease are on GPU {}: {count}", card.0)
            }
            RestoreObstacle::Uncapped(_, lease) => write!(f, "nothing limits {lease} to its size"),
        }
    }
}

impl From<RestoreObstacle> for NotParkable {
    fn from(who: RestoreObstacle) -> NotParkable {
        NotParkable::NotSure(who.to_string())
    }
}

impl NotParkable {
    /// Whether it is so for as long as the holder is as it is: not for want of a moment, or of host memory.
    pub fn lasts(&self) -> bool {
        use NotParkable::{Lately, NotActive, OneAtATime, Ram, RamUnknown, Unreadable};
        !matches!(self, NotActive | Unreadable | OneAtATime(_) | Lately(_) | RamUnknown | Ram { .. })
    }
}

/// Beside a context, a parked program may have so much on a card: modules, and what streams keep.
pub(crate) const RESIDUE: Bytes = Bytes::mib(512);
/// A context whose size was never measured: more than any was seen to take.
pub(crate) const CONTEXT: Bytes = Bytes::mib(1024);
/// Whoever says that it parked less need not show it.
pub(crate) const SMALL: Bytes = Bytes::mib(64);

/// What is remembered of who was not to be believed.
pub(crate) const LIED: &str = "its programs reported that they freed their VRAM, and they had not";

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
pub(crate) fn booked_by(state: &State, tenant: TenantId) -> Bytes {
    let own = state.rows().leases.values().filter(|row| row.tenant == tenant);
    own.filter_map(Lease::hold).map(Hold::booked).sum()
}

/// Whether a holder has its cards for longer than its lease says: it is on its way off them, or could not leave.
pub(crate) fn is_over(state: &State, hold: &Hold, now: Time) -> bool {
    state.rows().meta.due(hold.renewed, hold.until) <= now
}

/// How much host memory leaving in this way takes, if the holder can leave so now.
pub fn parkable(state: &State, lease: &Lease, rung: Method, now: Time) -> Result<Bytes, NotParkable> {
    let need = parkable_but_for_memory(state, lease, rung, now)?;
    if need > Bytes::ZERO {
        can_book(state, lease.tenant, need)?;
    }
    Ok(need)
}

/// The same if parking space were unlimited.
pub(crate) fn parkable_but_for_memory(
    state: &State,
    lease: &Lease,
    rung: Method,
    now: Time,
) -> Result<Bytes, NotParkable> {
    let Phase::Active(hold) = &lease.phase else { return Err(NotParkable::NotActive) };
    // A hook takes no memory of ours.
    if state.policy().parking.ram == Bytes::ZERO && rung != Method::Yield {
        return Err(NotParkable::Off);
    }
    could_be(state, lease, hold, rung, now)?;
    // Whose time is over tries each way once, or it would never leave.
    let is_over = is_over(state, hold, now);
    let rests = |rest: &&Backoff| rest.until > now || (is_over && rest.since >= hold.renewed);
    if let Some(rest) = state.live(lease.id).and_then(|live| live.rests.get(&rung)).filter(rests) {
        return Err(NotParkable::Lately(rest.why.clone()));
    }
    if rung == Method::Yield {
        return Ok(Bytes::ZERO);
    }
    Ok(had(state, lease.id, hold) + SMALL)
}

/// Whether so much more host memory can be booked for a tenant.
pub(crate) fn can_book(state: &State, tenant: TenantId, more: Bytes) -> Result<(), NotParkable> {
    let room = room(state).ok_or(NotParkable::RamUnknown)?;
    if more > room {
        return Err(NotParkable::Ram { need: more, room });
    }
    match state.books().caps(tenant).parked {
        Some(cap) if booked_by(state, tenant) + more > cap => Err(NotParkable::Quota { cap }),
        _ => Ok(()),
    }
}

/// What a holder was last seen to have on its cards; where nobody can see it, as much as its lease allows.
pub(crate) fn had(state: &State, lease: LeaseId, hold: &Hold) -> Bytes {
    let on = |room: &Room| if room.is_coarse() { hold.vram } else { room.seen_of(lease) };
    hold.cards.iter().map(|card| on(state.room(*card))).sum()
}

/// A card as it was when a holder began to leave it. Where nobody tells whose bytes are whose, what it lost
/// since then is the holder's, if nobody else moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuSnapshot {
    used: Bytes,
    /// Everybody else who had something there.
    leases: Vec<LeaseId>,
    processes: Vec<ProcKey>,
}

/// A holder's cards as they are before it leaves, if one of them does not tell whose bytes are whose.
pub(crate) fn before(state: &State, lease: LeaseId, hold: &Hold) -> BTreeMap<GpuId, GpuSnapshot> {
    if !hold.cards.iter().any(|card| state.room(*card).is_coarse()) {
        return BTreeMap::new();
    }
    let of = |card: &GpuId| {
        let room = state.room(*card);
        let Reading::Used(used) = &room.observed().reading else { return None };
        let processes = used.processes.iter().map(|resident| resident.process);
        let processes = processes.filter(|process| state.owner(process) != Some(lease)).collect();
        let leases = room.claims().keys().copied().filter(|other| *other != lease).collect();
        Some((*card, GpuSnapshot { used: room.total().less(used.free), leases, processes }))
    };
    hold.cards.iter().filter_map(of).collect()
}

/// Whether somebody else than this lease leaves a card or comes back to it, or has just ended there, and nobody
/// could tell whose bytes went.
fn others_move(state: &State, lease: LeaseId, card: GpuId) -> bool {
    let room = state.room(card);
    if !room.is_coarse() || state.planted(Mutant::MoveTogether) {
        return false;
    }
    let mut moving = state.moving().filter(|other| *other != lease);
    moving.any(|other| room.claims().contains_key(&other)) || state.ending_on(card).any(|other| other != lease)
}

/// A card of a holder's on which it must wait for somebody else to have left or come back.
pub(crate) fn waits_for_others(state: &State, lease: LeaseId, hold: &Hold) -> Option<GpuId> {
    hold.cards.iter().copied().find(|card| others_move(state, lease, *card))
}

/// A stopped process that would have to act for its lease to leave in this way: its wrapper for a hook, its program on a
/// card for the library. The driver is asked about each process by itself.
fn stopped(state: &State, lease: &Lease, hold: &Hold, live: &LeaseReadings, rung: Method) -> Option<ProcKey> {
    let is_stopped = |process: &ProcKey| live.restricted.get(process).is_some_and(|it| it.is_stopped);
    match rung {
        Method::Yield => lease.roots.first().copied().filter(is_stopped).filter(|_| !live.hooks.is_empty()),
        Method::Park if !live.restricted.is_empty() => {
            hold.cards.iter().flat_map(|card| residents(state, lease.id, *card)).find(is_stopped)
        }
        Method::Park | Method::Driver | Method::End => None,
    }
}

/// A process of a lease that has memory on its cards and runs as another user: the end of the lease would not free that.
pub(crate) fn other_user_on_cards(state: &State, lease: LeaseId, hold: &Hold) -> Option<NotParkable> {
    let live = state.live(lease).filter(|live| !live.restricted.is_empty())?;
    let mut on_cards = hold.cards.iter().flat_map(|card| residents(state, lease, *card));
    on_cards.find_map(|process| {
        let uid = live.restricted.get(&process)?.runs_as?;
        Some(NotParkable::OtherUser { process, uid })
    })
}

/// Whether its programs and its cards would let it leave in this way, whatever the host memory.
pub fn could_be(state: &State, lease: &Lease, hold: &Hold, rung: Method, now: Time) -> Result<(), NotParkable> {
    let nobody = match rung {
        Method::Yield | Method::End => NotParkable::NoHook,
        Method::Park => NotParkable::NoShim,
        Method::Driver => NotParkable::NotInspected,
    };
    let Some(live) = state.live(lease.id) else { return Err(nobody) };
    let voices = live.voices(rung);
    if let Some(stopped) = stopped(state, lease, hold, live, rung) {
        return Err(NotParkable::Stopped(stopped));
    }
    let mut others = 0;
    for card in &hold.cards {
        let room = state.room(*card);
        room.open(now, state.policy().period).map_err(|_| NotParkable::Unreadable)?;
        let Reading::Used(used) = &room.observed().reading else { return Err(NotParkable::Unreadable) };
        if used.coarse && rung != Method::Park {
            return Err(NotParkable::Coarse);
        }
        others += residents(state, lease.id, *card).filter(|process| !voices.contains_key(process)).count();
    }
    match voices.values().find_map(|voice| voice.cannot.as_ref()) {
        _ if voices.is_empty() => Err(nobody),
        _ if others > 0 && rung == Method::Park => Err(NotParkable::Others(others)),
        _ if others > 0 && rung == Method::Driver => Err(NotParkable::NotInspected),
        Some(why) => Err(NotParkable::Says(why.clone())),
        None if rung == Method::Park => match waits_for_others(state, lease.id, hold) {
            Some(card) => Err(NotParkable::OneAtATime(card)),
            None => Ok(()),
        },
        None if rung == Method::Driver && !lease.ask.may_lose => {
            // This looks at every process of every card, so it comes last.
            sure_of_room(state, lease, hold)?;
            keeps_to_its_cards(state, lease.id, hold, now)
        }
        None => Ok(()),
    }
}

/// Whether none of the programs that the driver shall have calls it any more. One that is gone does not.
pub fn are_still(state: &State, lease: &Lease) -> bool {
    let (Some(away), Some(live)) = (lease.away(), state.live(lease.id)) else { return false };
    let is_still = |process: &ProcKey| match live.shims.get(process) {
        Some(voice) => voice.deep == Some(true) || state.planted(Mutant::TakeLoud),
        None => is_gone(state, live, process),
    };
    away.processes.iter().all(is_still)
}

/// Whether a process that was a holder's has ended, as far as the host says. Another lease may have it by now.
fn is_gone(state: &State, live: &LeaseReadings, process: &ProcKey) -> bool {
    let is_anybodys = state.owner(process).is_some() && !state.planted(Mutant::OthersAreGone);
    live.counted && !is_anybodys && !live.members.contains(process)
}

/// Whether the driver has a process that it moves of a holder, or it is not known that it has not: of whom nothing was
/// heard, as after a start, and of whom it says that it does not know.
pub fn driver_may_have(state: &State, lease: &Lease) -> bool {
    let (Some(away), Some(live)) = (lease.away(), state.live(lease.id)) else { return false };
    let gone = |process: &ProcKey| is_gone(state, live, process);
    let doubts = !state.planted(Mutant::DoubtNothing);
    let has = |process: &ProcKey| match live.driven.get(process) {
        Some(voice) => voice.parked.is_some() || voice.unknown && doubts,
        None => !state.planted(Mutant::BelieveFirst),
    };
    let library_first = away.deep && state.planted(Mutant::LibraryFirst);
    away.needs_driver() && !library_first && away.processes.iter().any(|process| !gone(process) && has(process))
}

/// Whether a holder's programs shall be kept off its cards because the driver takes it off them, or has it: all but
/// those that it moves itself, in whose calls the library must not be. Who began since then would take the room that
/// others were given, or that the rest of its holder comes back to.
pub fn is_kept_off(state: &State, lease: &Lease) -> bool {
    let off = match &lease.phase {
        Phase::Parking(..) | Phase::Parked(..) => true,
        Phase::Resuming(..) => driver_may_have(state, lease),
        _ => false,
    };
    off && lease.away().is_some_and(|away| away.rung == Method::Driver) && !state.planted(Mutant::PassNewcomers)
}

/// Whether nobody could take the room that a restore needs: it has no more than its lease, and everybody
/// else on its cards is a holder whose every program has Sublet's library in it, which keeps it to its own.
pub(crate) fn sure_of_room(state: &State, lease: &Lease, hold: &Hold) -> Result<(), NotParkable> {
    let has_more = |card: &GpuId| state.room(*card).seen_of(lease.id) > hold.vram;
    if hold.cards.iter().any(has_more) && !state.planted(Mutant::RestoreUnsure) {
        return Err(NotParkable::NotSure("it has more there than its lease".to_owned()));
    }
    others_keep_off(state, lease, hold)?;
    // Whose restore is under way already was given its room beside all of that.
    for card in &hold.cards {
        let mut others = state.room(*card).claims().keys().filter(|other| **other != lease.id);
        if let Some(other) = others.find(|other| had_more(state, **other)) {
            return Err(RestoreObstacle::Uncapped(*card, *other).into());
        }
    }
    Ok(())
}

/// Whether a holder has nothing on cards that are not its own: the driver would take it off there too, and nobody
/// would keep its room.
pub(crate) fn keeps_to_its_cards(state: &State, lease: LeaseId, hold: &Hold, now: Time) -> Result<(), NotParkable> {
    if state.planted(Mutant::RestoreUnsure) {
        return Ok(());
    }
    for card in state.cards().filter(|card| !hold.cards.contains(card) && state.is_listed(*card)) {
        let room = state.room(card);
        match room.open(now, state.policy().period) {
            Ok(()) if residents(state, lease, card).next().is_none() => {}
            Ok(()) => return Err(NotParkable::NotSure(format!("it uses GPU {} too, which is not its own", card.0))),
            // What was on it is gone for good.
            Err(ReadingFault::Unreadable(Unreadable::Lost)) => {}
            Err(_) => {
                let why = format!("it may be on GPU {} too, which cannot be read", card.0);
                return Err(NotParkable::NotSure(why));
            }
        }
    }
    Ok(())
}

/// Whether nobody else could take the room that a restore needs.
pub(crate) fn others_keep_off(state: &State, lease: &Lease, hold: &Hold) -> Result<(), RestoreObstacle> {
    hold.cards.iter().try_for_each(|card| is_kept_free(state, *card, Some(lease.id), state.unowned_on(*card)))
}

/// Whether only other holders keep the driver from restoring a parked lease: it is safe once they have left, and they
/// can be made to leave. False where it is safe already, and where an unleased process or an unreadable GPU is in the way.
pub(crate) fn is_blocked_by_holders(state: &State, lease: &Lease, hold: &Hold) -> bool {
    let blocks = |card: &GpuId| holders_in_the_way(state, lease.id, *card).next().is_some();
    let is_open = |card: &GpuId| {
        let readable = matches!(state.room(*card).observed().reading, Reading::Used(_));
        readable && state.unowned_on(*card) == 0 && state.room(*card).seen_of(lease.id) <= hold.vram
    };
    hold.cards.iter().any(blocks) && hold.cards.iter().all(is_open)
}

/// Leases on a GPU that could take the room a restore of `lease` needs: no library limits their programs. Leases that
/// are parked are not among them.
pub(crate) fn holders_in_the_way(state: &State, lease: LeaseId, card: GpuId) -> impl Iterator<Item = LeaseId> + '_ {
    let others = state.room(card).claims().iter().filter(move |(id, claim)| **id != lease && !claim.parked);
    others.map(|(id, _)| *id).filter(move |id| !is_capped(state, *id, card) || had_more(state, *id))
}

/// Whether the driver may bring back now what it has of a holder that comes back. Of one that was given its cards anew
/// that was asked, and is with every look; who should have stayed has its room promised, and waits where somebody
/// could take it all the same.
pub fn may_restore(state: &State, lease: &Lease) -> bool {
    let Phase::Resuming(hold, away) = &lease.phase else { return false };
    let asked = away.back || lease.ask.may_lose || state.planted(Mutant::NeverRetreat);
    asked || others_keep_off(state, lease, hold).is_ok()
}

/// Who keeps the driver from bringing back what it has, or may have, of a holder that comes back.
pub fn held_back(state: &State, lease: &Lease) -> Option<RestoreObstacle> {
    let Phase::Resuming(hold, _) = &lease.phase else { return None };
    let waits = driver_may_have(state, lease) && !may_restore(state, lease);
    others_keep_off(state, lease, hold).err().filter(|_| waits)
}

/// Whether nobody else could take the room that a restore of one lease needs on a card, where so many processes
/// have none.
pub(crate) fn is_kept_free(
    state: &State,
    card: GpuId,
    lease: Option<LeaseId>,
    strangers: usize,
) -> Result<(), RestoreObstacle> {
    if state.planted(Mutant::RestoreUnsure) {
        return Ok(());
    }
    if matches!(state.room(card).observed().reading, Reading::Unreadable(_)) {
        return Err(RestoreObstacle::Unreadable(card));
    }
    // What draws on a screen takes room like anybody.
    if strangers > 0 {
        return Err(RestoreObstacle::Strangers(card, strangers));
    }
    let mut others = state.room(card).claims().iter().filter(|(id, _)| Some(**id) != lease);
    match others.find(|(id, _)| !is_capped(state, **id, card)) {
        Some((other, _)) => Err(RestoreObstacle::Uncapped(card, *other)),
        None => Ok(()),
    }
}

/// Whether every program of a lease that is on a card has Sublet's library in it. A lease without a program there could
/// take no more than an unleased process that begins now: were it in the way, a user could keep the driver from parking
/// any other by a lease that it does not use.
fn is_capped(state: &State, lease: LeaseId, card: GpuId) -> bool {
    let Some(live) = state.live(lease) else { return false };
    residents(state, lease, card).all(|process| live.shims.contains_key(&process))
}

/// Whether a holder that is on its way had more than its lease is for (it was another's that had more): it may come back
/// with all of that.
fn had_more(state: &State, lease: LeaseId) -> bool {
    match state.lease(lease).map(|row| &row.phase) {
        Some(Phase::Parking(hold, away) | Phase::Resuming(hold, away)) => {
            away.had.0 > hold.vram.0.saturating_mul(hold.cards.len() as u64)
        }
        _ => false,
    }
}

/// A lease's processes on a card, as of the last look.
pub fn residents(state: &State, lease: LeaseId, card: GpuId) -> impl Iterator<Item = ProcKey> + '_ {
    let used = match &state.room(card).observed().reading {
        Reading::Used(used) => Some(used),
        Reading::Unreadable(_) => None,
    };
    let all = used.into_iter().flat_map(|used| used.processes.iter().map(|resident| resident.process));
    all.filter(move |process| state.owner(process) == Some(lease))
}

/// Whether all who speak for a holder say that its bytes are off its cards.
pub(crate) fn all_parked(state: &State, lease: &Lease, hold: &Hold, rung: Method) -> bool {
    let Some(live) = state.live(lease.id) else { return false };
    // Whose processes all went away, with nobody left to speak, has nothing on its cards.
    let voices = live.voices(rung);
    let heard = rung == Method::Park || !voices.is_empty();
    heard && voices.values().all(|voice| voice.parked.is_some()) && are_known(state, lease, hold, live, rung)
}

/// Whether all of them say that they are on its cards. Of whom nothing was heard, as after a start,
/// nothing is known.
pub(crate) fn all_back(state: &State, lease: &Lease, hold: &Hold, rung: Method) -> bool {
    let Some(live) = state.live(lease.id) else { return false };
    let heard = !live.voices(rung).is_empty() || lease.roots.is_empty();
    heard && none_parked(live, rung) && are_known(state, lease, hold, live, rung)
}

/// Whether nobody who speaks for a holder says that its bytes are off its cards.
pub(crate) fn none_parked(live: &LeaseReadings, rung: Method) -> bool {
    live.voices(rung).values().all(|voice| voice.parked.is_none())
}

/// Whether somebody speaks for every program of a holder that is on its cards. A hook speaks for all.
fn are_known(state: &State, lease: &Lease, hold: &Hold, live: &LeaseReadings, rung: Method) -> bool {
    let voices = live.voices(rung);
    let known = |card: &GpuId| residents(state, lease.id, *card).all(|process| voices.contains_key(&process));
    rung == Method::Yield || hold.cards.iter().all(known)
}

/// Whether a look at a card shows that a holder's bytes are gone: no more than contexts are left, and
/// at least half of what its programs say they took off its cards. Who yields may keep an eighth. Where the
/// driver tells only what the whole card has, the card must have lost nearly all that they say, and nobody else.
pub(crate) fn is_seen_gone(state: &State, lease: &Lease, hold: &Hold, card: GpuId) -> bool {
    let room = state.room(card);
    let Some(away) = lease.away() else { return false };
    match &room.observed().reading {
        Reading::Used(used) if used.coarse => return has_lost(state, lease, hold),
        Reading::Used(_) => {}
        Reading::Unreadable(_) => return false,
    }
    let context = state.room(card).context();
    let programs = residents(state, lease.id, card).count() as u64;
    let after: Bytes = hold.cards.iter().map(|card| state.room(*card).seen_of(lease.id)).sum();
    let few = Bytes((context + RESIDUE).0.saturating_mul(programs));
    if away.rung == Method::Yield {
        return room.seen_of(lease.id) <= few || after.0 <= away.had.0 / 8;
    }
    if room.seen_of(lease.id) > few {
        return false;
    }
    let Some(live) = state.live(lease.id) else { return false };
    let said: Bytes = live.voices(away.rung).values().filter_map(|voice| voice.parked).sum();
    // What was booked is what was seen when it began, and a little.
    said <= SMALL || after <= hold.booked().less(Bytes(said.0 / 2))
}

/// Whether a holder's cards have lost what its programs say they took off them, all but an eighth, and nobody
/// else was there who went since it began to leave. Of what was before a start nothing is known.
fn has_lost(state: &State, lease: &Lease, hold: &Hold) -> bool {
    let Some(live) = state.live(lease.id) else { return false };
    let said: Bytes = live.shims.values().filter_map(|voice| voice.parked).sum();
    let mut lost = Bytes::ZERO;
    for card in &hold.cards {
        let room = state.room(*card);
        let (Some(before), Reading::Used(used)) = (live.before.get(card), &room.observed().reading) else {
            return false;
        };
        let there = |process: &ProcKey| used.processes.iter().any(|resident| resident.process == *process);
        let stayed = before.leases.iter().all(|other| room.claims().contains_key(other));
        if room.is_coarse() && !(stayed && before.processes.iter().all(there)) {
            return false;
        }
        lost = lost + before.used.less(room.total().less(used.free));
    }
    said <= SMALL || lost.0 >= said.0 / 8 * 7
}
