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

/// Beside a context, a parked program may have so much on a card: modules, and what streams keep.
pub(crate) const RESIDUE: Bytes = Bytes::mib(512);
/// A context whose size was never measured: more than any was seen to take.
pub(crate) const CONTEXT: Bytes = Bytes::mib(1024);
/// Whoever says that it parked less need not show it.
pub(crate) const UNVERIFIED_MAX: Bytes = Bytes::mib(64);

/// What is remembered of who was not to be believed.
pub(crate) const FALSE_REPORT: &str = "its programs reported that they freed their VRAM, and they had not";

/// Host memory that can be booked now.
pub fn free_parking_space(state: &State) -> Option<Bytes> {
    let parking = &state.policy().parking;
    if state.planted(Mutant::ForgetLedger) {
        return Some(Bytes(u64::MAX));
    }
    // Who is on the way there has booked what it has not all taken yet.
    let coming = state.moving().filter_map(|lease| state.lease(lease));
    let coming = coming.filter(|row| matches!(row.phase, Phase::Parking(..)));
    let coming: Bytes = coming.filter_map(Lease::hold).map(Hold::booked_host_memory).sum();
    let available = state.host_memory()?.less(parking.keep_available + coming);
    Some(parking.space.less(state.booked_host_memory()).min(available))
}

/// Host memory that a tenant's parked bytes take.
pub(crate) fn booked_by_tenant(state: &State, tenant: TenantId) -> Bytes {
    let own = state.rows().leases.values().filter(|row| row.tenant == tenant);
    own.filter_map(Lease::hold).map(Hold::booked_host_memory).sum()
}

/// Whether a holder has its cards for longer than its lease says: it is on its way off them, or could not leave.
pub(crate) fn is_past_term(state: &State, hold: &Hold, now: Time) -> bool {
    state.rows().meta.due(hold.renewed, hold.until) <= now
}

/// How much host memory leaving in this way takes, if the holder can leave so now.
pub fn parkable(state: &State, lease: &Lease, rung: Method, now: Time) -> Result<Bytes, NotParkable> {
    let need = parkable_with_unlimited_space(state, lease, rung, now)?;
    if need > Bytes::ZERO {
        can_book(state, lease.tenant, need)?;
    }
    Ok(need)
}

/// The same if parking space were unlimited.
pub(crate) fn parkable_with_unlimited_space(
    state: &State,
    lease: &Lease,
    rung: Method,
    now: Time,
) -> Result<Bytes, NotParkable> {
    let Phase::Active(hold) = &lease.phase else { return Err(NotParkable::NotActive) };
    // A hook takes no memory of ours.
    if state.policy().parking.space == Bytes::ZERO && rung != Method::Hook {
        return Err(NotParkable::SwitchedOff);
    }
    check_movers(state, lease, hold, rung, now)?;
    // Whose time is over tries each way once, or it would never leave.
    let is_over = is_past_term(state, hold, now);
    let rests = |rest: &&Backoff| rest.until > now || (is_over && rest.since >= hold.renewed);
    if let Some(rest) = state.readings(lease.id).and_then(|live| live.backoffs.get(&rung)).filter(rests) {
        return Err(NotParkable::BackingOff(rest.why.clone()));
    }
    if rung == Method::Hook {
        return Ok(Bytes::ZERO);
    }
    Ok(bytes_on_gpus(state, lease.id, hold) + UNVERIFIED_MAX)
}

/// Whether so much more host memory can be booked for a tenant.
pub(crate) fn can_book(state: &State, tenant: TenantId, more: Bytes) -> Result<(), NotParkable> {
    let room = free_parking_space(state).ok_or(NotParkable::HostMemoryUnknown)?;
    if more > room {
        return Err(NotParkable::NoSpace { need: more, room });
    }
    match state.ledger().caps(tenant).parked {
        Some(cap) if booked_by_tenant(state, tenant) + more > cap => Err(NotParkable::Quota { cap }),
        _ => Ok(()),
    }
}

/// What a holder was last seen to have on its cards; where nobody can see it, as much as its lease allows.
pub(crate) fn bytes_on_gpus(state: &State, lease: LeaseId, hold: &Hold) -> Bytes {
    let on = |room: &Room| if room.is_coarse() { hold.vram } else { room.seen_of(lease) };
    hold.gpus.iter().map(|card| on(state.room(*card))).sum()
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
pub(crate) fn gpus_before(state: &State, lease: LeaseId, hold: &Hold) -> BTreeMap<GpuId, GpuSnapshot> {
    if !hold.gpus.iter().any(|card| state.room(*card).is_coarse()) {
        return BTreeMap::new();
    }
    let of = |card: &GpuId| {
        let room = state.room(*card);
        let Reading::Used(used) = &room.reading().reading else { return None };
        let processes = used.processes.iter().map(|resident| resident.process);
        let processes = processes.filter(|process| state.owner(process) != Some(lease)).collect();
        let leases = room.leases().keys().copied().filter(|other| *other != lease).collect();
        Some((*card, GpuSnapshot { used: room.total().less(used.free), leases, processes }))
    };
    hold.gpus.iter().filter_map(of).collect()
}

/// Whether somebody else than this lease leaves a card or comes back to it, or has just ended there, and nobody
/// could tell whose bytes went.
fn another_lease_moves(state: &State, lease: LeaseId, card: GpuId) -> bool {
    let room = state.room(card);
    if !room.is_coarse() || state.planted(Mutant::MoveTogether) {
        return false;
    }
    let mut moving = state.moving().filter(|other| *other != lease);
    moving.any(|other| room.leases().contains_key(&other)) || state.ending_leases_on(card).any(|other| other != lease)
}

/// A card of a holder's on which it must wait for somebody else to have left or come back.
pub(crate) fn gpu_with_other_move(state: &State, lease: LeaseId, hold: &Hold) -> Option<GpuId> {
    hold.gpus.iter().copied().find(|card| another_lease_moves(state, lease, *card))
}

/// A stopped process that would have to act for its lease to leave in this way: its wrapper for a hook, its program on a
/// card for the library. The driver is asked about each process by itself.
fn stopped_mover(state: &State, lease: &Lease, hold: &Hold, live: &LeaseReadings, rung: Method) -> Option<ProcKey> {
    let is_stopped = |process: &ProcKey| live.restricted.get(process).is_some_and(|it| it.is_stopped);
    match rung {
        Method::Hook => lease.roots.first().copied().filter(is_stopped).filter(|_| !live.hooks.is_empty()),
        Method::Shim if !live.restricted.is_empty() => {
            hold.gpus.iter().flat_map(|card| residents(state, lease.id, *card)).find(is_stopped)
        }
        Method::Shim | Method::Driver | Method::End => None,
    }
}

/// A process of a lease that has memory on its cards and runs as another user: the end of the lease would not free that.
pub(crate) fn other_user_on_gpus(state: &State, lease: LeaseId, hold: &Hold) -> Option<NotParkable> {
    let live = state.readings(lease).filter(|live| !live.restricted.is_empty())?;
    let mut on_cards = hold.gpus.iter().flat_map(|card| residents(state, lease, *card));
    on_cards.find_map(|process| {
        let uid = live.restricted.get(&process)?.runs_as?;
        Some(NotParkable::OtherUser { process, uid })
    })
}

/// Whether its programs and its cards would let it leave in this way, whatever the host memory.
pub fn check_movers(state: &State, lease: &Lease, hold: &Hold, rung: Method, now: Time) -> Result<(), NotParkable> {
    let nobody = match rung {
        Method::Hook | Method::End => NotParkable::NoHook,
        Method::Shim => NotParkable::NoShim,
        Method::Driver => NotParkable::NotInspected,
    };
    let Some(live) = state.readings(lease.id) else { return Err(nobody) };
    let voices = live.movers(rung);
    if let Some(stopped) = stopped_mover(state, lease, hold, live, rung) {
        return Err(NotParkable::Stopped(stopped));
    }
    let mut others = 0;
    for card in &hold.gpus {
        let room = state.room(*card);
        room.check_readable(now, state.policy().period).map_err(|_| NotParkable::Unreadable)?;
        let Reading::Used(used) = &room.reading().reading else { return Err(NotParkable::Unreadable) };
        if used.coarse && rung != Method::Shim {
            return Err(NotParkable::Coarse);
        }
        others += residents(state, lease.id, *card).filter(|process| !voices.contains_key(process)).count();
    }
    match voices.values().find_map(|voice| voice.refusal.as_ref()) {
        _ if voices.is_empty() => Err(nobody),
        _ if others > 0 && rung == Method::Shim => Err(NotParkable::ProcessesWithoutShim(others)),
        _ if others > 0 && rung == Method::Driver => Err(NotParkable::NotInspected),
        Some(why) => Err(NotParkable::Refused(why.clone())),
        None if rung == Method::Shim => match gpu_with_other_move(state, lease.id, hold) {
            Some(card) => Err(NotParkable::OneAtATime(card)),
            None => Ok(()),
        },
        None if rung == Method::Driver && !lease.request.may_lose_state => {
            // This looks at every process of every card, so it comes last.
            check_restore_room(state, lease, hold)?;
            check_only_own_gpus(state, lease.id, hold, now)
        }
        None => Ok(()),
    }
}

/// Whether none of the programs that the driver shall have calls it any more. One that is gone does not.
pub fn all_keep_still(state: &State, lease: &Lease) -> bool {
    let (Some(away), Some(live)) = (lease.park_state(), state.readings(lease.id)) else { return false };
    let is_still = |process: &ProcKey| match live.shims.get(process) {
        Some(voice) => voice.keeps_still == Some(true) || state.planted(Mutant::TakeLoud),
        None => is_gone(state, live, process),
    };
    away.processes.iter().all(is_still)
}

/// Whether a process that was a holder's has ended, as far as the host says. Another lease may have it by now.
fn is_gone(state: &State, live: &LeaseReadings, process: &ProcKey) -> bool {
    let is_anybodys = state.owner(process).is_some() && !state.planted(Mutant::OthersAreGone);
    live.members_known && !is_anybodys && !live.members.contains(process)
}

/// Whether the driver has a process that it moves of a holder, or it is not known that it has not: of whom nothing was
/// heard, as after a start, and of whom it says that it does not know.
pub fn driver_may_have(state: &State, lease: &Lease) -> bool {
    let (Some(away), Some(live)) = (lease.park_state(), state.readings(lease.id)) else { return false };
    let gone = |process: &ProcKey| is_gone(state, live, process);
    let doubts = !state.planted(Mutant::DoubtNothing);
    let has = |process: &ProcKey| match live.driver.get(process) {
        Some(voice) => voice.parked_bytes.is_some() || voice.is_unknown && doubts,
        None => !state.planted(Mutant::BelieveFirst),
    };
    let library_first = away.with_driver && state.planted(Mutant::LibraryFirst);
    away.needs_driver() && !library_first && away.processes.iter().any(|process| !gone(process) && has(process))
}

/// Whether a holder's programs shall be kept off its cards because the driver takes it off them, or has it: all but
/// those that it moves itself, in whose calls the library must not be. Who began since then would take the room that
/// others were given, or that the rest of its holder comes back to.
pub fn must_stay_off_gpus(state: &State, lease: &Lease) -> bool {
    let off = match &lease.phase {
        Phase::Parking(..) | Phase::Parked(..) => true,
        Phase::Resuming(..) => driver_may_have(state, lease),
        _ => false,
    };
    off && lease.park_state().is_some_and(|away| away.method == Method::Driver) && !state.planted(Mutant::PassNewcomers)
}

/// Whether nobody could take the room that a restore needs: it has no more than its lease, and everybody
/// else on its cards is a holder whose every program has Sublet's library in it, which keeps it to its own.
pub(crate) fn check_restore_room(state: &State, lease: &Lease, hold: &Hold) -> Result<(), NotParkable> {
    let has_more = |card: &GpuId| state.room(*card).seen_of(lease.id) > hold.vram;
    if hold.gpus.iter().any(has_more) && !state.planted(Mutant::RestoreUnsure) {
        return Err(NotParkable::RestoreUnsure("it has more there than its lease".to_owned()));
    }
    check_others_are_capped(state, lease, hold)?;
    // Whose restore is under way already was given its room beside all of that.
    for card in &hold.gpus {
        let mut others = state.room(*card).leases().keys().filter(|other| **other != lease.id);
        if let Some(other) = others.find(|other| exceeds_lease_when_moved(state, **other)) {
            return Err(RestoreObstacle::Uncapped(*card, *other).into());
        }
    }
    Ok(())
}

/// Whether a holder has nothing on cards that are not its own: the driver would take it off there too, and nobody
/// would keep its room.
pub(crate) fn check_only_own_gpus(state: &State, lease: LeaseId, hold: &Hold, now: Time) -> Result<(), NotParkable> {
    if state.planted(Mutant::RestoreUnsure) {
        return Ok(());
    }
    for card in state.gpus().filter(|card| !hold.gpus.contains(card) && state.is_listed(*card)) {
        let room = state.room(card);
        match room.check_readable(now, state.policy().period) {
            Ok(()) if residents(state, lease, card).next().is_none() => {}
            Ok(()) => {
                return Err(NotParkable::RestoreUnsure(format!("it uses GPU {} too, which is not its own", card.0)));
            }
            // What was on it is gone for good.
            Err(ReadingFault::Unreadable(Unreadable::Lost)) => {}
            Err(_) => {
                let why = format!("it may be on GPU {} too, which cannot be read", card.0);
                return Err(NotParkable::RestoreUnsure(why));
            }
        }
    }
    Ok(())
}

/// Whether nobody else could take the room that a restore needs.
pub(crate) fn check_others_are_capped(state: &State, lease: &Lease, hold: &Hold) -> Result<(), RestoreObstacle> {
    hold.gpus
        .iter()
        .try_for_each(|card| check_gpu_is_capped(state, *card, Some(lease.id), state.unleased_processes_on(*card)))
}

/// Whether only other holders keep the driver from restoring a parked lease: it is safe once they have left, and they
/// can be made to leave. False where it is safe already, and where an unleased process or an unreadable GPU is in the way.
pub(crate) fn is_blocked_by_leases_only(state: &State, lease: &Lease, hold: &Hold) -> bool {
    let blocks = |card: &GpuId| uncapped_holders(state, lease.id, *card).next().is_some();
    let is_open = |card: &GpuId| {
        let readable = matches!(state.room(*card).reading().reading, Reading::Used(_));
        readable && state.unleased_processes_on(*card) == 0 && state.room(*card).seen_of(lease.id) <= hold.vram
    };
    hold.gpus.iter().any(blocks) && hold.gpus.iter().all(is_open)
}

/// Leases on a GPU that could take the room a restore of `lease` needs: no library limits their programs. Leases that
/// are parked are not among them.
pub(crate) fn uncapped_holders(state: &State, lease: LeaseId, card: GpuId) -> impl Iterator<Item = LeaseId> + '_ {
    let others = state.room(card).leases().iter().filter(move |(id, claim)| **id != lease && !claim.is_parked);
    others.map(|(id, _)| *id).filter(move |id| !is_capped(state, *id, card) || exceeds_lease_when_moved(state, *id))
}

/// Whether the driver may bring back now what it has of a holder that comes back. Of one that was given its cards anew
/// that was asked, and is with every look; who should have stayed has its room promised, and waits where somebody
/// could take it all the same.
pub fn may_restore(state: &State, lease: &Lease) -> bool {
    let Phase::Resuming(hold, away) = &lease.phase else { return false };
    let asked = away.was_resumed || lease.request.may_lose_state || state.planted(Mutant::NeverRetreat);
    asked || check_others_are_capped(state, lease, hold).is_ok()
}

/// Who keeps the driver from bringing back what it has, or may have, of a holder that comes back.
pub fn restore_obstacle(state: &State, lease: &Lease) -> Option<RestoreObstacle> {
    let Phase::Resuming(hold, _) = &lease.phase else { return None };
    let waits = driver_may_have(state, lease) && !may_restore(state, lease);
    check_others_are_capped(state, lease, hold).err().filter(|_| waits)
}

/// Whether nobody else could take the room that a restore of one lease needs on a card, where so many processes
/// have none.
pub(crate) fn check_gpu_is_capped(
    state: &State,
    card: GpuId,
    lease: Option<LeaseId>,
    strangers: usize,
) -> Result<(), RestoreObstacle> {
    if state.planted(Mutant::RestoreUnsure) {
        return Ok(());
    }
    if matches!(state.room(card).reading().reading, Reading::Unreadable(_)) {
        return Err(RestoreObstacle::Unreadable(card));
    }
    // What draws on a screen takes room like anybody.
    if strangers > 0 {
        return Err(RestoreObstacle::Unleased(card, strangers));
    }
    let mut others = state.room(card).leases().iter().filter(|(id, _)| Some(**id) != lease);
    match others.find(|(id, _)| !is_capped(state, **id, card)) {
        Some((other, _)) => Err(RestoreObstacle::Uncapped(card, *other)),
        None => Ok(()),
    }
}

/// Whether every program of a lease that is on a card has Sublet's library in it. A lease without a program there could
/// take no more than an unleased process that begins now: were it in the way, a user could keep the driver from parking
/// any other by a lease that it does not use.
fn is_capped(state: &State, lease: LeaseId, card: GpuId) -> bool {
    let Some(live) = state.readings(lease) else { return false };
    residents(state, lease, card).all(|process| live.shims.contains_key(&process))
}

/// Whether a holder that is on its way had more than its lease is for (it was another's that had more): it may come back
/// with all of that.
fn exceeds_lease_when_moved(state: &State, lease: LeaseId) -> bool {
    match state.lease(lease).map(|row| &row.phase) {
        Some(Phase::Parking(hold, away) | Phase::Resuming(hold, away)) => {
            away.had_bytes.0 > hold.vram.0.saturating_mul(hold.gpus.len() as u64)
        }
        _ => false,
    }
}

/// A lease's processes on a card, as of the last look.
pub fn residents(state: &State, lease: LeaseId, card: GpuId) -> impl Iterator<Item = ProcKey> + '_ {
    let used = match &state.room(card).reading().reading {
        Reading::Used(used) => Some(used),
        Reading::Unreadable(_) => None,
    };
    let all = used.into_iter().flat_map(|used| used.processes.iter().map(|resident| resident.process));
    all.filter(move |process| state.owner(process) == Some(lease))
}

/// Whether all who speak for a holder say that its bytes are off its cards.
pub(crate) fn all_parked(state: &State, lease: &Lease, hold: &Hold, rung: Method) -> bool {
    let Some(live) = state.readings(lease.id) else { return false };
    // Whose processes all went away, with nobody left to speak, has nothing on its cards.
    let voices = live.movers(rung);
    let heard = rung == Method::Shim || !voices.is_empty();
    heard
        && voices.values().all(|voice| voice.parked_bytes.is_some())
        && all_have_movers(state, lease, hold, live, rung)
}

/// Whether all of them say that they are on its cards. Of whom nothing was heard, as after a start,
/// nothing is known.
pub(crate) fn all_resumed(state: &State, lease: &Lease, hold: &Hold, rung: Method) -> bool {
    let Some(live) = state.readings(lease.id) else { return false };
    let heard = !live.movers(rung).is_empty() || lease.roots.is_empty();
    heard && none_parked(live, rung) && all_have_movers(state, lease, hold, live, rung)
}

/// Whether nobody who speaks for a holder says that its bytes are off its cards.
pub(crate) fn none_parked(live: &LeaseReadings, rung: Method) -> bool {
    live.movers(rung).values().all(|voice| voice.parked_bytes.is_none())
}

/// Whether somebody speaks for every program of a holder that is on its cards. A hook speaks for all.
fn all_have_movers(state: &State, lease: &Lease, hold: &Hold, live: &LeaseReadings, rung: Method) -> bool {
    let voices = live.movers(rung);
    let known = |card: &GpuId| residents(state, lease.id, *card).all(|process| voices.contains_key(&process));
    rung == Method::Hook || hold.gpus.iter().all(known)
}

/// Whether a look at a card shows that a holder's bytes are gone: no more than contexts are left, and
/// at least half of what its programs say they took off its cards. Who yields may keep an eighth. Where the
/// driver tells only what the whole card has, the card must have lost nearly all that they say, and nobody else.
pub(crate) fn is_seen_gone(state: &State, lease: &Lease, hold: &Hold, card: GpuId) -> bool {
    let room = state.room(card);
    let Some(away) = lease.park_state() else { return false };
    match &room.reading().reading {
        Reading::Used(used) if used.coarse => return gpus_lost_bytes(state, lease, hold),
        Reading::Used(_) => {}
        Reading::Unreadable(_) => return false,
    }
    let context = state.room(card).context();
    let programs = residents(state, lease.id, card).count() as u64;
    let after: Bytes = hold.gpus.iter().map(|card| state.room(*card).seen_of(lease.id)).sum();
    let few = Bytes((context + RESIDUE).0.saturating_mul(programs));
    if away.method == Method::Hook {
        return room.seen_of(lease.id) <= few || after.0 <= away.had_bytes.0 / 8;
    }
    if room.seen_of(lease.id) > few {
        return false;
    }
    let Some(live) = state.readings(lease.id) else { return false };
    let said: Bytes = live.movers(away.method).values().filter_map(|voice| voice.parked_bytes).sum();
    // What was booked is what was seen when it began, and a little.
    said <= UNVERIFIED_MAX || after <= hold.booked_host_memory().less(Bytes(said.0 / 2))
}

/// Whether a holder's cards have lost what its programs say they took off them, all but an eighth, and nobody
/// else was there who went since it began to leave. Of what was before a start nothing is known.
fn gpus_lost_bytes(state: &State, lease: &Lease, hold: &Hold) -> bool {
    let Some(live) = state.readings(lease.id) else { return false };
    let said: Bytes = live.shims.values().filter_map(|voice| voice.parked_bytes).sum();
    let mut lost = Bytes::ZERO;
    for card in &hold.gpus {
        let room = state.room(*card);
        let (Some(before), Reading::Used(used)) = (live.gpus_before.get(card), &room.reading().reading) else {
            return false;
        };
        let there = |process: &ProcKey| used.processes.iter().any(|resident| resident.process == *process);
        let stayed = before.leases.iter().all(|other| room.leases().contains_key(other));
        if room.is_coarse() && !(stayed && before.processes.iter().all(there)) {
            return false;
        }
        lost = lost + before.used.less(room.total().less(used.free));
    }
    said <= UNVERIFIED_MAX || lost.0 >= said.0 / 8 * 7
}
