//! Why a request waits, in one sentence: what keeps it off a GPU, and which users and processes block it.
//!
//! ```text
//! GPU 0 has 7.7 GiB free, 16 GiB are needed; ann holds 16 GiB (L1)
//! GPU 0 has 1.6 GiB free, 3 GiB are needed; ann's python3 (pid 20686) uses 2.1 GiB without a lease; no end is in sight
//!     until it ends or gets a lease: ann can run `sublet adopt 20686`, or an operator: `sublet enforce mode 0 adopt`
//! ```
//! A reader learns here what `GET /v1/gpus` shows it: users and unleased processes of others on the host, unless
//! `visibility` is `own`, and never through a token. Ids of leases are for their user and for operators.

use crate::messages;
use crate::unleased;
use crate::user_directory::tenant_of;
use crate::view::View;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use sublet_core::audit::Audit;
use sublet_core::event::{Caller, Refusal};
use sublet_core::ids::{GpuId, LeaseId, TenantId};
use sublet_core::policy::enforcement;
use sublet_core::policy::explain::{self, WaitReason};
use sublet_core::policy::quota;
use sublet_core::policy::room_plan::{self, RoomPlan};
use sublet_core::reading::{Reading, Resident};
use sublet_core::request::Exclusivity;
use sublet_core::room::ReadingFault;
use sublet_core::rows::Lease;
use sublet_core::units::{Bytes, Time};
use sublet_core::unleased::{Exemption, Mode, NextStep, UnleasedProcess};
use sublet_wire::size::show;
use sublet_wire::span;

/// So many blockers are named; the others are counted.
const NAMED_MAX: usize = 3;
/// Room is planned for the first waiters only.
const PLANNED_MAX: usize = 4;
/// So many ids of one user's leases are listed.
const IDS_MAX: usize = 3;

/// What blocks a request on one GPU.
#[derive(Debug, Default)]
struct BlockingLeases {
    /// Leases, one entry for each user that the reader may know; the others' are one entry.
    leased: Vec<BlockingLease>,
    /// Unleased processes; those that the reader may not know are one entry.
    unleased: Vec<UnleasedUse>,
    /// Bytes that parked programs keep on the GPU.
    parked: Bytes,
    /// Bytes of no process that computes: the driver's own, and those of displays.
    other: Bytes,
}

/// Leases that are told as one: of one user, or of all that the reader may not know.
#[derive(Debug, Default)]
struct BlockingUsers {
    bytes: Bytes,
    /// Those that the reader may know.
    ids: Vec<String>,
    users: BTreeSet<TenantId>,
}

/// Such leases in words.
#[derive(Debug)]
struct BlockingLease {
    bytes: Bytes,
    text: String,
}

/// An unleased process, or all of those that the reader may not know.
#[derive(Debug)]
struct UnleasedUse {
    /// `None` where the driver does not tell.
    bytes: Option<Bytes>,
    text: String,
    /// What ends its use of the GPU.
    end: ExpectedEnd,
}

/// What ends an unleased process's use of the GPU.
#[derive(Debug, PartialEq, Eq)]
enum ExpectedEnd {
    /// The daemon does, soon, or is about to find its user.
    InSight,
    /// A lease for it, by `sublet adopt PID`; `by_mode`: mode `adopt` would give it one too.
    Adopt { pid: u32, user: String, is_own: bool, by_mode: bool },
    /// Its user alone: it has a lease, for other GPUs.
    User(String),
    /// An operator; the reader may not know the process.
    Operator,
}

impl View<'_> {
    /// Why a lease waits, in one sentence for this reader.
    pub(crate) fn why_waiting(&self, by: &Caller, lease: &Lease, place: usize) -> String {
        let state = self.state;
        if let Some(held) = quota::block(state, lease) {
            return format!("{held}; {}", messages::when_quota_returns(&held));
        }
        match state.stopped() {
            Some(Refusal::LossNotAccepted(_)) => {
                return "lines of the journal are missing, so no lease is granted; tell the operator".to_owned();
            }
            Some(_) => return "the disk is full, so no lease can be granted; tell the operator".to_owned(),
            None => {}
        }
        let found = state.gpus().map(|card| (card, explain::obstacle(state, lease, card, self.now)));
        let found = found.filter(|(_, obstacle)| *obstacle != WaitReason::Claimed);
        // The obstacle that could change first is told.
        let first = found.min_by_key(|(card, obstacle)| (weight(obstacle), missing(obstacle), self.index(*card)));
        let text = first.and_then(|(card, obstacle)| self.obstacle(by, lease, card, &obstacle));
        let text = match self.lacking_space(lease, place) {
            Some(lacking) => Some(text.map_or(lacking.clone(), |text| format!("{text}; {lacking}"))),
            None => text,
        };
        let ahead = match place {
            0 | 1 => None,
            2 => Some("1 request is ahead".to_owned()),
            _ => Some(format!("{} requests are ahead", place - 1)),
        };
        match (text, ahead) {
            (Some(text), None) => text,
            (Some(text), Some(ahead)) => format!("{ahead}; {text}"),
            (None, None) => "it is next, and starts with the next reading of the GPUs".to_owned(),
            (None, Some(ahead)) => format!("{ahead}, and the GPU is kept for that"),
        }
    }

    /// That only parking space keeps other leases from leaving for this one; `None` if that is not so, or not known so
    /// far back in the queue.
    pub(crate) fn lacking_space(&self, lease: &Lease, place: usize) -> Option<String> {
        if place > PLANNED_MAX {
            return None;
        }
        match room_plan::room_plan(self.state, lease, self.now)?.0 {
            RoomPlan::Ram { need, room } => Some(messages::lacking_space(self.state, need, room)),
            _ => None,
        }
    }

    /// What keeps a waiter off a GPU; `None` if only requests ahead of it do.
    pub(crate) fn obstacle(&self, by: &Caller, lease: &Lease, gpu: GpuId, obstacle: &WaitReason) -> Option<String> {
        let index = self.index(gpu);
        let head = match obstacle {
            WaitReason::Claimed => return None,
            WaitReason::NotEligible => return Some(format!("GPU {index} is not among the GPUs of this request")),
            WaitReason::Aside { by: user, until } => return Some(self.steps_aside(by, index, user, *until)),
            WaitReason::Draining => return Some(format!("GPU {index} is draining: no new lease starts there")),
            WaitReason::Out(why) => return Some(format!("GPU {index} is out of service ({why})")),
            WaitReason::Unusable(why) => return Some(format!("GPU {index} cannot be leased ({why})")),
            WaitReason::Missing => return Some(format!("the driver does not list GPU {index} now")),
            WaitReason::Closed(ReadingFault::Stale) => {
                return Some(format!("GPU {index} has not answered for two periods"));
            }
            WaitReason::Closed(ReadingFault::Unreadable(why)) => return Some(messages::unreadable(index, why)),
            WaitReason::Exclusive => match lease.request.exclusivity {
                Exclusivity::Shared => format!("GPU {index} is leased exclusively"),
                Exclusivity::Session => format!("the request is for GPU {index} without other users"),
                Exclusivity::Device => format!("the request is for GPU {index} without other leases"),
            },
            WaitReason::NotEmpty => format!("the request is for all of GPU {index}"),
            WaitReason::TooFull { need, room } => {
                format!("GPU {index} has {} free, {} are needed", show(room.0), show(need.0))
            }
        };
        let blockers = self.blockers(by, lease, gpu);
        let suffice = |bytes: Bytes| match obstacle {
            WaitReason::TooFull { .. } => bytes >= missing(obstacle),
            // Only the lease that has the GPU to itself is in the way.
            WaitReason::Exclusive => lease.request.exclusivity == Exclusivity::Shared,
            _ => false,
        };
        let ways = blockers.ways_out(by, index, suffice);
        Some([Some(head), blockers.named(suffice), ways].into_iter().flatten().collect::<Vec<_>>().join("; "))
    }

    fn index(&self, gpu: GpuId) -> u32 {
        self.state.rows().gpus[gpu].facts.index
    }

    fn blockers(&self, by: &Caller, waiter: &Lease, gpu: GpuId) -> BlockingLeases {
        let room = self.state.room(gpu);
        let others = || room.leases().iter().filter(|(id, _)| **id != waiter.id);
        let parked = others().filter(|(_, claim)| claim.is_parked).map(|(_, claim)| claim.seen);
        let other = match &room.reading().reading {
            Reading::Used(used) => {
                let computing = used.processes.iter().filter(|resident| resident.is_of_interest());
                // Where a process's bytes are unknown, none are known to be of anything else.
                let of_processes = sum(computing.map(|resident| resident.bytes));
                of_processes.map_or(Bytes::ZERO, |bytes| room.total().less(used.free).less(bytes))
            }
            Reading::Unreadable(_) => Bytes::ZERO,
        };
        BlockingLeases {
            leased: self
                .leased(by, others().filter(|(_, claim)| !claim.is_parked).map(|(id, claim)| (*id, claim.counted()))),
            parked: parked.fold(Bytes::ZERO, |sum, bytes| sum + bytes),
            unleased: self.unleased(by, gpu),
            other,
        }
    }

    fn leased(&self, by: &Caller, claims: impl Iterator<Item = (LeaseId, Bytes)>) -> Vec<BlockingLease> {
        let mut of_user: BTreeMap<Option<TenantId>, BlockingUsers> = BTreeMap::new();
        for (id, bytes) in claims {
            let Some(lease) = self.state.lease(id) else { continue };
            let is_known = self.sees_all(by) || self.is_own(by, lease.tenant);
            let held = of_user.entry(is_known.then_some(lease.tenant)).or_default();
            held.bytes = held.bytes + bytes;
            held.ids.extend(self.id_for(by, lease));
            held.users.insert(lease.tenant);
        }
        let told = |(tenant, held): (Option<TenantId>, BlockingUsers)| {
            let user = tenant.map(|tenant| self.user(tenant));
            let holds = match (user, held.users.len()) {
                (Some(user), _) => format!("{user} holds"),
                (None, 1) => "another user holds".to_owned(),
                (None, _) => "other users hold".to_owned(),
            };
            let more = if held.ids.len() > IDS_MAX { ", …" } else { "" };
            let ids = held.ids.iter().take(IDS_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
            let ids = if ids.is_empty() { String::new() } else { format!(" ({ids}{more})") };
            BlockingLease { bytes: held.bytes, text: format!("{holds} {}{ids}", show(held.bytes.0)) }
        };
        of_user.into_iter().map(told).collect()
    }

    fn unleased(&self, by: &Caller, gpu: GpuId) -> Vec<UnleasedUse> {
        let room = self.state.room(gpu);
        let Reading::Used(used) = &room.reading().reading else { return Vec::new() };
        let is_ours = |lease: LeaseId| room.leases().contains_key(&lease);
        let is_unleased = |it: &&Resident| it.is_of_interest() && !self.state.owner(&it.process).is_some_and(is_ours);
        let (mut named, mut hidden) = (Vec::new(), Vec::new());
        for resident in used.processes.iter().filter(is_unleased) {
            let row = self.state.rows().unleased.values().find(|row| row.audit.process == resident.process);
            let may_know = self.sees_all(by) || row.is_some_and(|row| unleased::may_see(by, row));
            let process = self.unleased_process(by, resident, row, self.index(gpu));
            if may_know { named.push(process) } else { hidden.push(process) }
        }
        if !hidden.is_empty() {
            let bytes = sum(hidden.iter().map(|process| process.bytes));
            let text = format!("processes without a lease {}", uses("use", bytes));
            let is_in_sight = hidden.iter().all(|process| process.end == ExpectedEnd::InSight);
            named.push(UnleasedUse {
                bytes,
                text,
                end: if is_in_sight { ExpectedEnd::InSight } else { ExpectedEnd::Operator },
            });
        }
        named.sort_by_key(|process| largest_first(process.bytes));
        named
    }

    fn unleased_process(
        &self,
        by: &Caller,
        resident: &Resident,
        row: Option<&UnleasedProcess>,
        index: u32,
    ) -> UnleasedUse {
        let (pid, bytes) = (resident.process.pid, resident.bytes);
        let Some(row) = row else {
            let text = format!("process {pid} {} without a lease", uses("uses", bytes));
            return UnleasedUse { bytes, text, end: ExpectedEnd::InSight };
        };
        let tenant = tenant_of(row.audit.uid);
        // A name that is not known yet is known the next time.
        self.names.ask(row.audit.uid);
        let user = self.names.of(&tenant);
        let process = format!("{user}'s {} (pid {pid}) {}", program(&row.audit), uses("uses", bytes));
        if self.state.lease_of(row).is_some() {
            let text = format!("{process}, and its lease is not for GPU {index}");
            return UnleasedUse { bytes, text, end: ExpectedEnd::User(user) };
        }
        let left = |at: Time| span::show(at.since(self.now).as_secs_f64().max(1.0));
        let soon = match enforcement::next_step(self.state, row, None, self.now) {
            NextStep::Nothing | NextStep::Exempt(_) | NextStep::Warn | NextStep::Survived => None,
            NextStep::Adopt(at) => Some(format!("gets one in {}", left(at))),
            NextStep::Parking(_) => Some("is being parked".to_owned()),
            NextStep::Park(at) => Some(format!("is parked or ended in {}", left(at))),
            NextStep::Signal(_, at) => Some(format!("is ended in {}", left(at))),
        };
        let Some(soon) = soon else {
            let by_mode = self.is_adopted_by_mode(row);
            let end = ExpectedEnd::Adopt { pid, is_own: tenant == by.tenant, user, by_mode };
            return UnleasedUse { bytes, text: format!("{process} without a lease"), end };
        };
        UnleasedUse { bytes, text: format!("{process} without a lease and {soon}"), end: ExpectedEnd::InSight }
    }

    /// True if mode `adopt` would give a process a lease: those of users that made a request before, where the driver
    /// tells the bytes of single processes. Before that was tried, setting the mode tries it.
    fn is_adopted_by_mode(&self, row: &UnleasedProcess) -> bool {
        let state = self.state;
        match enforcement::next_step(state, row, Some(Mode::Adopt), self.now) {
            NextStep::Adopt(_) => true,
            NextStep::Exempt(Exemption::CannotEnforce(_)) => state.self_test().is_none(),
            _ => false,
        }
    }
}

/// A program's name, of which the kernel keeps the first 15 bytes and its file has all.
fn program(audit: &Audit) -> &str {
    let file = audit.exe.as_deref().and_then(|exe| exe.rsplit('/').next());
    file.filter(|file| file.starts_with(&audit.name)).unwrap_or(&audit.name)
}

/// All of these; unknown if one is.
fn sum(bytes: impl IntoIterator<Item = Option<Bytes>>) -> Option<Bytes> {
    bytes.into_iter().try_fold(Bytes::ZERO, |sum, bytes| Some(sum + bytes?))
}

/// Unknown is not little.
fn largest_first(bytes: Option<Bytes>) -> Reverse<Bytes> {
    Reverse(bytes.unwrap_or(Bytes(u64::MAX)))
}

fn uses(verb: &str, bytes: Option<Bytes>) -> String {
    bytes.map_or_else(|| format!("{verb} the GPU"), |bytes| format!("{verb} {}", show(bytes.0)))
}

impl BlockingLeases {
    fn leased_bytes(&self) -> Bytes {
        self.leased.iter().fold(Bytes::ZERO, |sum, blocker| sum + blocker.bytes)
    }

    /// The largest blockers, and how many there are beside them. What no user can free is named only where freeing all
    /// others does not suffice.
    fn named(&self, suffice: impl Fn(Bytes) -> bool) -> Option<String> {
        let leased = self.leased.iter().map(|blocker| (Some(blocker.bytes), &blocker.text));
        let unleased = self.unleased.iter().map(|process| (process.bytes, &process.text));
        let mut all: Vec<(Option<Bytes>, &String)> = leased.chain(unleased).collect();
        all.sort_by_key(|(bytes, _)| largest_first(*bytes));
        let known = sum(all.iter().map(|(bytes, _)| *bytes));
        let mut told: Vec<String> = all.iter().take(NAMED_MAX).map(|(_, text)| (*text).clone()).collect();
        if all.len() > NAMED_MAX {
            told.push(format!("and {} more", all.len() - NAMED_MAX));
        }
        if all.is_empty() || known.is_some_and(|known| !suffice(known) && suffice(known + self.parked + self.other)) {
            let parked = (self.parked > Bytes::ZERO).then(|| format!("parked programs keep {}", show(self.parked.0)));
            let other = || format!("the driver or a display uses {}", show(self.other.0));
            told.extend(parked.into_iter().chain((self.other > Bytes::ZERO).then(other)));
        }
        (!told.is_empty()).then(|| told.join(", "))
    }

    /// What can be done about unleased processes that show no end; `None` if the wait ends without that.
    fn ways_out(&self, by: &Caller, index: u32, suffice: impl Fn(Bytes) -> bool) -> Option<String> {
        let endless: Vec<&UnleasedUse> =
            self.unleased.iter().filter(|process| process.end != ExpectedEnd::InSight).collect();
        if endless.is_empty() || suffice(self.leased_bytes()) {
            return None;
        }
        let is_one = endless.len() == 1 && endless[0].end != ExpectedEnd::Operator;
        let may_adopt = endless.iter().any(|process| !matches!(process.end, ExpectedEnd::User(_)));
        let until = match (is_one, may_adopt) {
            (true, true) => "it ends or gets a lease",
            (true, false) => "it ends",
            (false, true) => "they end or get leases",
            (false, false) => "they end",
        };
        Some(format!("no end is in sight until {until}: {}", ways(by, index, &endless)))
    }
}

fn ways(by: &Caller, index: u32, endless: &[&UnleasedUse]) -> String {
    let (mut commands, mut users, mut helps, mut may_run) = (Vec::new(), Vec::new(), false, true);
    for process in endless.iter().take(NAMED_MAX) {
        if let ExpectedEnd::Adopt { pid, user, is_own, by_mode } = &process.end {
            commands.push(format!("`sublet adopt {pid}`"));
            helps |= by_mode;
            may_run &= *is_own || by.operator;
            if !users.contains(user) {
                users.push(user.clone());
            }
        }
    }
    if may_run {
        users.clear();
    }
    let commands = commands.join(", ");
    let mode = format!("`sublet enforce mode {index} adopt`");
    if !commands.is_empty() {
        return match (users.as_slice(), helps) {
            ([], true) if by.operator => format!("{commands}, or {mode}"),
            ([], true) => format!("{commands}, or an operator: {mode}"),
            ([], false) => commands,
            ([user], true) => format!("{user} can run {commands}, or an operator: {mode}"),
            ([user], false) => format!("{user} or an operator can run {commands}"),
            (_, true) => format!("their users can run {commands}, or an operator: {mode}"),
            (_, false) => format!("their users or an operator can run {commands}"),
        };
    }
    let user = endless.iter().find_map(|process| match &process.end {
        ExpectedEnd::User(user) => Some(user),
        _ => None,
    });
    user.map_or_else(|| "tell an operator".to_owned(), |user| format!("ask {user} to end it"))
}

/// The bytes that a waiter lacks on a GPU.
fn missing(obstacle: &WaitReason) -> Bytes {
    match obstacle {
        WaitReason::TooFull { need, room } => need.less(*room),
        _ => Bytes::ZERO,
    }
}

fn weight(obstacle: &WaitReason) -> u8 {
    match obstacle {
        WaitReason::Claimed | WaitReason::TooFull { .. } | WaitReason::NotEmpty | WaitReason::Exclusive => 0,
        WaitReason::Closed(_) => 1,
        // It ends by itself, at a known time.
        WaitReason::Aside { .. } => 1,
        WaitReason::Draining | WaitReason::Missing => 2,
        WaitReason::Out(_) | WaitReason::Unusable(_) => 3,
        WaitReason::NotEligible => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leased(gib: u64, text: &str) -> BlockingLease {
        BlockingLease { bytes: Bytes::gib(gib), text: text.to_owned() }
    }

    fn process(bytes: Option<Bytes>, pid: u32, user: &str, by_mode: bool) -> UnleasedUse {
        let end = ExpectedEnd::Adopt { pid, user: user.to_owned(), is_own: user == "me", by_mode };
        let text = format!("{user}'s python3 (pid {pid}) {} without a lease", uses("uses", bytes));
        UnleasedUse { bytes, text, end }
    }

    /// What a user reads that lacks these bytes.
    fn check(blockers: &BlockingLeases, missing_gib: u64, by: &Caller, expected: &str) {
        let suffice = |bytes: Bytes| bytes >= Bytes::gib(missing_gib);
        let told = [blockers.named(suffice), blockers.ways_out(by, 0, suffice)];
        assert_eq!(told.into_iter().flatten().collect::<Vec<_>>().join("; "), expected);
    }

    #[test]
    fn an_unleased_process_needs_a_way_out_only_where_leases_that_end_do_not_suffice() {
        let me = Caller::user("uid:1");
        let blockers = BlockingLeases {
            leased: vec![leased(4, "ann holds 4 GiB")],
            unleased: vec![process(Some(Bytes::gib(2)), 7, "ben", true)],
            ..BlockingLeases::default()
        };
        check(&blockers, 4, &me, "ann holds 4 GiB, ben's python3 (pid 7) uses 2 GiB without a lease");
        check(
            &blockers,
            5,
            &me,
            "ann holds 4 GiB, ben's python3 (pid 7) uses 2 GiB without a lease; no end is in sight until it ends or gets a lease: ben can run `sublet adopt 7`, or an operator: `sublet enforce mode 0 adopt`",
        );
        let operator = Caller { operator: true, ..me };
        check(
            &blockers,
            5,
            &operator,
            "ann holds 4 GiB, ben's python3 (pid 7) uses 2 GiB without a lease; no end is in sight until it ends or gets a lease: `sublet adopt 7`, or `sublet enforce mode 0 adopt`",
        );
    }

    #[test]
    fn a_process_of_unknown_size_is_named_first_and_its_bytes_are_not_blamed_on_others() {
        let blockers = BlockingLeases {
            leased: vec![leased(4, "ann holds 4 GiB")],
            unleased: vec![process(None, 7, "me", false), process(Some(Bytes::gib(1)), 8, "ben", false)],
            parked: Bytes::gib(1),
            other: Bytes::ZERO,
        };
        check(
            &blockers,
            6,
            &Caller::user("uid:1"),
            "me's python3 (pid 7) uses the GPU without a lease, ann holds 4 GiB, ben's python3 (pid 8) uses 1 GiB without a lease; no end is in sight until they end or get leases: their users or an operator can run `sublet adopt 7`, `sublet adopt 8`",
        );
    }

    #[test]
    fn bytes_that_no_user_can_free_are_named_if_all_others_do_not_suffice() {
        let blockers = BlockingLeases {
            leased: vec![leased(4, "ann holds 4 GiB")],
            parked: Bytes::gib(1),
            other: Bytes::gib(2),
            ..BlockingLeases::default()
        };
        let me = Caller::user("uid:1");
        check(&blockers, 4, &me, "ann holds 4 GiB");
        check(&blockers, 6, &me, "ann holds 4 GiB, parked programs keep 1 GiB, the driver or a display uses 2 GiB");
    }
}
