//! Which process belongs to which lease.
//!
//! A process joins by descent from a member, by being in the holder's own cgroup or in
//! a session that a member leads, or by the lease's mark in its environment; then it is a member until it ends, whoever
//! its parent becomes. A process belongs to one lease at most: the first that found
//! it, unless another names it as a root. Nothing is reported here.

use crate::activity::Meter;
mod walk;

use crate::audit::{self, Forebears};
use crate::exits::{Ear, Exits};
use crate::mark::{self, Grant, Mark};
use crate::process::{self, Cgroup, Environment, ProcessError};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Instant, SystemTime};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::member::Restrictions;
use walk::Walk;

/// Names the lease in the environment of whatever was started under it.
pub(crate) const LEASE_VARIABLE: &str = "SUBLET_LEASE";
/// And the epoch it was granted with: another service on this host, or an earlier one, had leases of the
/// same names.
const EPOCH_VARIABLE: &str = "SUBLET_EPOCH";
/// Exits of so many processes of a lease are heard at once, beside its roots and those on cards; the refresh notices the
/// others. Descriptors are few, and one lease must not take those that others need.
const EARS_PER_LEASE: usize = 256;
/// A lease with more processes than this tells of changes only with a refresh: each report names all of them.
const MANY: usize = 1024;
/// However many processes a lease has, it is refreshed after this many periods.
const PERIODS_MAX: u32 = 8;

/// The processes bound to one lease.
pub(crate) struct Holder {
    uid: u32,
    /// What its programs carry, once it was granted.
    grant: Option<Grant>,
    roots: BTreeSet<ProcKey>,
    members: BTreeSet<ProcKey>,
    /// The holder's own, so that whatever is in them is the holder's.
    cgroups: Vec<Cgroup>,
    meter: Meter,
    /// It used a card since the last sample.
    used_card: bool,
    /// When its programs last read input from a terminal, as of the last sample.
    last_input: Option<SystemTime>,
    /// Its programs say when they use a card.
    by_shim: bool,
    /// Those of them that are restricted, as of the last refresh.
    restricted: Restrictions,
    /// The members as they were last told.
    told: Option<(Vec<ProcKey>, Restrictions)>,
}

/// What the processes of a lease did between two samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    pub(crate) worked: bool,
    /// One of them read input from the terminal in whose foreground it is.
    pub(crate) got_input: bool,
}

/// What the environment of a process says of leases.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    Lease(LeaseId),
    /// It names none.
    Nothing,
    /// It cannot be read, or names one that is not here, not yet perhaps.
    Unknown,
}

impl Named {
    fn lease(self) -> Option<LeaseId> {
        match self {
            Named::Lease(lease) => Some(lease),
            Named::Nothing | Named::Unknown => None,
        }
    }
}

pub(crate) struct Roster {
    holders: BTreeMap<LeaseId, Holder>,
    owner: BTreeMap<ProcKey, LeaseId>,
    exits: Exits,
    forebears: Forebears,
    ticks_per_s: u64,
    walks: VecDeque<Walk>,
    /// Processes that a sweep found to name no lease, and the image that they ran then.
    unmarked: BTreeMap<ProcKey, [u64; 3]>,
}

impl Roster {
    pub(crate) fn new(exits: Exits) -> Roster {
        let ticks_per_s = rustix::param::clock_ticks_per_second();
        let forebears = Forebears::default();
        Roster {
            holders: BTreeMap::new(),
            owner: BTreeMap::new(),
            exits,
            forebears,
            ticks_per_s,
            walks: VecDeque::new(),
            unmarked: BTreeMap::new(),
        }
    }

    pub(crate) fn set_forebears(&mut self, forebears: Forebears) {
        self.forebears = forebears;
    }

    pub(crate) fn exits(&mut self) -> &mut Exits {
        &mut self.exits
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    pub(crate) fn leases(&self) -> BTreeSet<LeaseId> {
        self.holders.keys().copied().collect()
    }

    /// Begins to watch a holder, or gives it other roots. Returns the leases that lost a process by it.
    pub(crate) fn begin(
        &mut self,
        lease: LeaseId,
        uid: u32,
        roots: Vec<ProcKey>,
        grant: Option<Grant>,
    ) -> BTreeSet<LeaseId> {
        let cgroups =
            roots.iter().filter(|root| process::is_running(**root)).flat_map(|root| own_cgroups(*root, lease));
        let cgroups: Vec<Cgroup> = cgroups.collect();
        let roots: BTreeSet<ProcKey> = roots.into_iter().collect();
        let meter = Meter::new(Instant::now(), self.ticks_per_s);
        let holder = self.holders.entry(lease).or_insert_with(|| Holder {
            uid,
            grant: None,
            roots: BTreeSet::new(),
            members: BTreeSet::new(),
            cgroups: Vec::new(),
            meter,
            used_card: false,
            last_input: None,
            by_shim: false,
            restricted: Restrictions::new(),
            told: None,
        });
        holder.uid = uid;
        holder.grant = grant.or(holder.grant);
        holder.roots.clone_from(&roots);
        holder.told = None;
        if !cgroups.is_empty() {
            holder.cgroups = cgroups;
        }
        let losers = roots.into_iter().flat_map(|root| self.seize(root, lease)).collect();
        self.grow(lease);
        losers
    }

    /// A lease was granted: its programs carry this, and are its own whoever had them. Returns the leases
    /// whose processes are others by it.
    pub(crate) fn set_grant(&mut self, lease: LeaseId, grant: Grant) -> BTreeSet<LeaseId> {
        let Some(holder) = self.holders.get_mut(&lease) else { return BTreeSet::new() };
        let waited = holder.grant.replace(grant).is_none();
        let roots = if waited { holder.roots.clone() } else { BTreeSet::new() };
        let mut touched: BTreeSet<LeaseId> = roots.into_iter().flat_map(|root| self.seize(root, lease)).collect();
        if !touched.is_empty() {
            touched.insert(lease);
        }
        touched
    }

    /// Stops watching a holder. Returns the leases that have its processes now.
    pub(crate) fn end(&mut self, lease: LeaseId) -> BTreeSet<LeaseId> {
        let Some(holder) = self.holders.remove(&lease) else { return BTreeSet::new() };
        for member in &holder.members {
            self.owner.remove(member);
            self.exits.ignore(*member);
        }
        let heirs = |process: ProcKey| self.rooted_in(process).into_iter().map(move |heir| (heir, process));
        let heirs: Vec<(LeaseId, ProcKey)> = holder.members.iter().copied().flat_map(heirs).collect();
        heirs.iter().for_each(|(heir, root)| drop(self.seize(*root, *heir)));
        heirs.into_iter().map(|(heir, _)| heir).collect()
    }

    /// Takes out a process that ended. Returns the leases that it was there for.
    pub(crate) fn leave(&mut self, process: ProcKey) -> BTreeSet<LeaseId> {
        self.exits.ignore(process);
        let mut touched = self.rooted_in(process);
        if let Some(lease) = self.owner.remove(&process) {
            if let Some(holder) = self.holders.get_mut(&lease) {
                holder.members.remove(&process);
            }
            touched.insert(lease);
        }
        touched
    }

    /// The leases that were bound to a process: one of them has it.
    fn rooted_in(&self, process: ProcKey) -> BTreeSet<LeaseId> {
        let rooted = self.holders.iter().filter(|(_, holder)| holder.roots.contains(&process));
        rooted.map(|(lease, _)| *lease).collect()
    }

    /// The members, if they are others than were told last; remembers them as told.
    pub(crate) fn news(&mut self, lease: LeaseId) -> Option<(Vec<ProcKey>, Restrictions)> {
        let holder = self.holders.get_mut(&lease)?;
        let members: Vec<ProcKey> = holder.members.iter().copied().collect();
        // Of those that ended since the refresh nothing is told.
        let restricted = holder.restricted.iter().filter(|(process, _)| holder.members.contains(process));
        let news = (members, restricted.map(|(process, restriction)| (*process, *restriction)).collect());
        if holder.told.as_ref() == Some(&news) {
            return None;
        }
        holder.told = Some(news.clone());
        Some(news)
    }

    /// The lease that has this process, if that was not told yet.
    pub(crate) fn untold(&self, process: ProcKey) -> Option<LeaseId> {
        let lease = self.owner(process)?;
        let told = self.holders.get(&lease)?.told.as_ref();
        told.is_none_or(|(members, _)| members.binary_search(&process).is_err()).then_some(lease)
    }

    /// Its members were told, and are too many to be told again with every change.
    pub(crate) fn is_crowd(&self, lease: LeaseId) -> bool {
        self.holders.get(&lease).is_some_and(|holder| holder.told.is_some() && holder.members.len() > MANY)
    }

    /// How many periods pass between two refreshes of a lease: more for one with thousands of processes, so that
    /// looking at those is not all that is done.
    pub(crate) fn periods(&self, lease: LeaseId) -> u32 {
        let members = self.holders.get(&lease).map_or(0, |holder| holder.members.len());
        u32::try_from(members / MANY + 1).unwrap_or(PERIODS_MAX).min(PERIODS_MAX)
    }

    /// Watched, and no process of it is known; nor does another lease have the one that it was bound to.
    pub(crate) fn is_deserted(&self, lease: LeaseId) -> bool {
        let is_known = |root: &ProcKey| self.owner.contains_key(root);
        let is_deserted = |holder: &Holder| holder.members.is_empty() && !holder.roots.iter().any(is_known);
        self.holders.get(&lease).is_some_and(is_deserted)
    }

    pub(crate) fn owner(&self, process: ProcKey) -> Option<LeaseId> {
        self.owner.get(&process).copied()
    }

    /// A card's engines were used by this process.
    pub(crate) fn note_card_use(&mut self, process: ProcKey) {
        if let Some(holder) = self.owner(process).and_then(|lease| self.holders.get_mut(&lease)) {
            holder.used_card = true;
        }
    }

    /// What else its programs do counts only while nobody says when they use a card.
    pub(crate) fn judge_by_shim(&mut self, lease: LeaseId, is: bool) {
        if let Some(holder) = self.holders.get_mut(&lease) {
            holder.by_shim = is;
        }
    }

    /// Finds out whose an unknown process is, and takes it in. Returns its lease.
    pub(crate) fn attribute(&mut self, process: ProcKey) -> Option<LeaseId> {
        let by_descent = process::ancestry(process.pid).into_iter().find_map(|parent| self.owner(parent));
        // Whoever started it may have ended since, below somebody who is a member.
        let by_origin = || self.forebears.of(process.pid).iter().find_map(|ancestor| self.owner(ancestor.process));
        let by_session = || self.by_session(process.pid);
        let lease = by_descent.or_else(|| self.by_mark(process.pid)).or_else(by_session).or_else(by_origin)?;
        self.admit(process, lease, Ear::Reserved).then_some(lease)
    }

    /// Looks at every process of the host for a lease's mark, above all for those of `sought`. Returns the leases that
    /// gained one.
    pub(crate) fn sweep(&mut self, sought: &BTreeSet<LeaseId>) -> Result<BTreeSet<LeaseId>, ProcessError> {
        let mut gained = BTreeSet::new();
        let users: BTreeSet<u32> = sought.iter().filter_map(|lease| Some(self.holders.get(lease)?.uid)).collect();
        let before = std::mem::take(&mut self.unmarked);
        for pid in process::all()? {
            if self.is_anothers(pid, &users) {
                continue;
            }
            let Ok(stat) = process::stat(pid) else { continue };
            let key = stat.key(pid);
            if stat.has_ended() || self.owner.contains_key(&key) {
                continue;
            }
            // A program that was started without naming a lease never does.
            let is_unmarked = before.get(&key).is_some_and(|image| *image == stat.image);
            let named = if is_unmarked { Named::Nothing } else { self.by_environ(pid) };
            if named == Named::Nothing && stat.has_known_image() {
                self.unmarked.insert(key, stat.image);
            }
            let lease = self.by_cgroup(pid).or(named.lease());
            if let Some(lease) = lease.filter(|lease| self.admit(key, *lease, Ear::Ordinary)) {
                gained.insert(lease);
            }
        }
        gained.iter().for_each(|lease| self.grow(*lease));
        Ok(gained)
    }

    /// A member of a lease of another user has this number, or a later process of that same user: it is not looked for. One
    /// call tells, where reading who it is takes five, and a user can have ten thousand processes.
    fn is_anothers(&self, pid: u32, users: &BTreeSet<u32>) -> bool {
        let holder = self.known(pid).and_then(|(_, lease)| self.holders.get(&lease));
        let Some(uid) = holder.map(|holder| holder.uid).filter(|uid| !users.contains(uid)) else { return false };
        fs::metadata(format!("/proc/{pid}")).is_ok_and(|found| found.uid() == uid)
    }

    /// The member that has this number, and its lease. It may have ended since.
    fn known(&self, pid: u32) -> Option<(ProcKey, LeaseId)> {
        let all = ProcKey { pid, start: 0 }..=ProcKey { pid, start: u64::MAX };
        self.owner.range(all).next().map(|(process, lease)| (*process, *lease))
    }

    /// The lease whose cgroup a process is in, or that its environment names.
    fn by_mark(&self, pid: u32) -> Option<LeaseId> {
        self.by_cgroup(pid).or_else(|| self.by_environ(pid).lease())
    }

    /// The lease that the leader of its session is a member of: nobody is in a session who does not descend from that.
    fn by_session(&self, pid: u32) -> Option<LeaseId> {
        let session = process::stat(pid).ok()?.session;
        let leader = process::stat(session).ok()?;
        self.owner(leader.key(session))
    }

    fn by_cgroup(&self, pid: u32) -> Option<LeaseId> {
        if self.holders.values().all(|holder| holder.cgroups.is_empty()) {
            return None;
        }
        let its = process::cgroups(pid).ok()?;
        let inside = |holder: &Holder| holder.cgroups.iter().any(|own| its.iter().any(|cgroup| own.contains(cgroup)));
        self.holders.iter().find(|(_, holder)| inside(holder)).map(|(lease, _)| *lease)
    }

    /// The environment is the process's own word, so it counts only for its own user; or in a container, whose
    /// users are its own, if it has the mark that only the lease's owner was told: names and epochs can be guessed.
    /// It must be a container that root's engine made, or the holder's, too.
    fn by_environ(&self, pid: u32) -> Named {
        let Ok(environment) = Environment::read(pid) else { return Named::Unknown };
        match environment.get(LEASE_VARIABLE) {
            None => Named::Nothing,
            Some(name) => self.lease_named(pid, &environment, &name).map_or(Named::Unknown, Named::Lease),
        }
    }

    fn lease_named(&self, pid: u32, environment: &Environment, name: &str) -> Option<LeaseId> {
        let lease: LeaseId = name.parse().ok()?;
        let holder = self.holders.get(&lease)?;
        let grant = holder.grant?;
        let is_granted = environment.get(EPOCH_VARIABLE)?.parse() == Ok(grant.epoch.0);
        let is_users = || process::uid(pid).is_ok_and(|uid| uid == holder.uid);
        let has_mark = || environment.get(mark::VARIABLE).is_some_and(|text| text.parse::<Mark>() == Ok(grant.mark));
        let is_own = || is_users() || (has_mark() && audit::is_in_container_of(pid, holder.uid));
        (is_granted && is_own()).then_some(lease)
    }

    fn is_granted(&self, lease: LeaseId) -> bool {
        self.holders.get(&lease).is_some_and(|holder| holder.grant.is_some())
    }

    /// Whose a process is, of those that were granted cards.
    pub(crate) fn holder(&self, process: ProcKey) -> Option<LeaseId> {
        self.owner(process).filter(|lease| self.is_granted(*lease))
    }

    fn is_root(&self, process: ProcKey, lease: LeaseId) -> bool {
        self.holders.get(&lease).is_some_and(|holder| holder.roots.contains(&process))
    }

    fn hand_over(&mut self, process: ProcKey, from: LeaseId, to: LeaseId) {
        if let Some(holder) = self.holders.get_mut(&from) {
            holder.members.remove(&process);
        }
        if let Some(holder) = self.holders.get_mut(&to) {
            holder.members.insert(process);
            self.owner.insert(process, to);
        }
    }

    fn admit_pid(&mut self, pid: u32, lease: LeaseId) -> Option<ProcKey> {
        let key = process::stat(pid).ok()?.key(pid);
        self.admit(key, lease, Ear::Ordinary).then_some(key)
    }

    /// True if the process is new here and runs.
    fn admit(&mut self, process: ProcKey, lease: LeaseId, ear: Ear) -> bool {
        let Some(holder) = self.holders.get(&lease) else { return false };
        let ear = match ear {
            Ear::Ordinary if holder.roots.contains(&process) => Ear::Reserved,
            Ear::Ordinary if holder.members.len() >= EARS_PER_LEASE => Ear::None,
            ear => ear,
        };
        if self.owner.contains_key(&process) || !self.exits.listen(process, ear) {
            return false;
        }
        if let Some(holder) = self.holders.get_mut(&lease) {
            holder.members.insert(process);
            self.owner.insert(process, lease);
        }
        true
    }
}

/// The cgroups of a root that were made for its lease: `sublet-L7`, or the systemd scope
/// or service of that name.
fn own_cgroups(root: ProcKey, lease: LeaseId) -> Vec<Cgroup> {
    let wanted = format!("sublet-{lease}");
    let is_own = |cgroup: &Cgroup| {
        let name = cgroup.name();
        name.strip_suffix(".scope").or(name.strip_suffix(".service")).unwrap_or(name) == wanted
    };
    process::cgroups(root.pid).unwrap_or_default().into_iter().filter(is_own).collect()
}

/// The pids in a cgroup's directory and in those below it.
fn pids_in(dir: &Path, depth: usize) -> Vec<u32> {
    let listed = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<u32> = listed.lines().filter_map(|line| line.parse().ok()).collect();
    if depth > 0 {
        let below = fs::read_dir(dir).into_iter().flatten().flatten();
        let below = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        pids.extend(below.flat_map(|entry| pids_in(&entry.path(), depth - 1)));
    }
    pids
}
