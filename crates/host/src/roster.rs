//! Which process belongs to which lease.
//!
//! A process joins by descent from a member, by being in the holder's own cgroup or in a session that a member leads,
//! or by the lease's proof in its environment. Then it is a member until it ends, even if its parent changes. A
//! process belongs to one lease at most: the first that found it, unless another names it as a root. Nothing is
//! reported here.

use crate::activity::ActivityMeter;
mod walk;

use crate::audit::{self, AncestorHistory};
use crate::exits::{ExitWatch, ExitWatcher};
use crate::process::{self, Cgroup, Environment, ProcessError};
use crate::proof::{self, Grant, LeaseProof};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Instant, SystemTime};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::restrictions::Restrictions;
use walk::LeaseWalk;

/// The environment variable with the lease's name, set for every program started under it.
pub(crate) const LEASE_VARIABLE: &str = "SUBLET_LEASE";
/// The environment variable with the fence of the grant: another daemon on this host, or an earlier one, had leases
/// of the same names.
const EPOCH_VARIABLE: &str = "SUBLET_FENCE";
/// At most this many processes of a lease have a descriptor that reports their exit at once, beside its roots and
/// those on GPUs; the refresh notices the others. Descriptors are few, and one lease must not take those that others
/// need.
const PIDFDS_PER_LEASE: usize = 256;
/// A lease with more processes than this reports changes only with a refresh: each report names all of them.
const MEMBERS_MANY: usize = 1024;
/// A lease is refreshed after this many periods at the latest, however many processes it has.
const PERIODS_MAX: u32 = 8;

/// The processes bound to one lease.
pub(crate) struct WatchedHolder {
    uid: u32,
    /// What its programs carry; `None` until it is granted.
    grant: Option<Grant>,
    roots: BTreeSet<ProcKey>,
    members: BTreeSet<ProcKey>,
    /// Cgroups made for this holder: every process in them is a member.
    cgroups: Vec<Cgroup>,
    meter: ActivityMeter,
    /// It used a GPU since the last sample.
    used_gpu: bool,
    /// When its programs last read input from a terminal, as of the last sample.
    last_input: Option<SystemTime>,
    /// Its programs report when they use a GPU.
    is_judged_by_shim: bool,
    /// The members that are restricted, as of the last refresh.
    restricted: Restrictions,
    /// The members as last reported.
    reported: Option<(Vec<ProcKey>, Restrictions)>,
}

/// What the processes of a lease did between two samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    pub(crate) worked: bool,
    /// One of them read input from the terminal in the foreground of which it is.
    pub(crate) got_input: bool,
}

/// What the environment of a process says about leases.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NamedLease {
    Lease(LeaseId),
    /// It names no lease.
    Nothing,
    /// It cannot be read, or names a lease that is not known here, perhaps not yet.
    Unknown,
}

impl NamedLease {
    fn lease(self) -> Option<LeaseId> {
        match self {
            NamedLease::Lease(lease) => Some(lease),
            NamedLease::Nothing | NamedLease::Unknown => None,
        }
    }
}

pub(crate) struct Roster {
    holders: BTreeMap<LeaseId, WatchedHolder>,
    owner: BTreeMap<ProcKey, LeaseId>,
    exits: ExitWatcher,
    ancestors: AncestorHistory,
    ticks_per_s: u64,
    walks: VecDeque<LeaseWalk>,
    /// Processes that named no lease in a sweep, with the image that they ran then.
    without_lease: BTreeMap<ProcKey, [u64; 3]>,
}

impl Roster {
    pub(crate) fn new(exits: ExitWatcher) -> Roster {
        let ticks_per_s = rustix::param::clock_ticks_per_second();
        let ancestors = AncestorHistory::default();
        Roster {
            holders: BTreeMap::new(),
            owner: BTreeMap::new(),
            exits,
            ancestors,
            ticks_per_s,
            walks: VecDeque::new(),
            without_lease: BTreeMap::new(),
        }
    }

    pub(crate) fn set_ancestors(&mut self, ancestors: AncestorHistory) {
        self.ancestors = ancestors;
    }

    pub(crate) fn exits(&mut self) -> &mut ExitWatcher {
        &mut self.exits
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    pub(crate) fn leases(&self) -> BTreeSet<LeaseId> {
        self.holders.keys().copied().collect()
    }

    /// Begins to watch a holder, or gives it other roots. Returns the leases that lost a process to it.
    pub(crate) fn begin_watch(
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
        let meter = ActivityMeter::new(Instant::now(), self.ticks_per_s);
        let holder = self.holders.entry(lease).or_insert_with(|| WatchedHolder {
            uid,
            grant: None,
            roots: BTreeSet::new(),
            members: BTreeSet::new(),
            cgroups: Vec::new(),
            meter,
            used_gpu: false,
            last_input: None,
            is_judged_by_shim: false,
            restricted: Restrictions::new(),
            reported: None,
        });
        holder.uid = uid;
        holder.grant = grant.or(holder.grant);
        holder.roots.clone_from(&roots);
        holder.reported = None;
        if !cgroups.is_empty() {
            holder.cgroups = cgroups;
        }
        let leases_that_lost = roots.into_iter().flat_map(|root| self.take_over_tree(root, lease)).collect();
        self.grow(lease);
        leases_that_lost
    }

    /// Records the grant of a lease. Its roots and their descendants become its members, also if another lease had
    /// them. Returns the leases with changed members.
    pub(crate) fn set_grant(&mut self, lease: LeaseId, grant: Grant) -> BTreeSet<LeaseId> {
        let Some(holder) = self.holders.get_mut(&lease) else { return BTreeSet::new() };
        let waited = holder.grant.replace(grant).is_none();
        let roots = if waited { holder.roots.clone() } else { BTreeSet::new() };
        let mut touched: BTreeSet<LeaseId> =
            roots.into_iter().flat_map(|root| self.take_over_tree(root, lease)).collect();
        if !touched.is_empty() {
            touched.insert(lease);
        }
        touched
    }

    /// Stops watching a holder. Returns the leases that have its processes now.
    pub(crate) fn end_watch(&mut self, lease: LeaseId) -> BTreeSet<LeaseId> {
        let Some(holder) = self.holders.remove(&lease) else { return BTreeSet::new() };
        for member in &holder.members {
            self.owner.remove(member);
            self.exits.unwatch(*member);
        }
        let successors =
            |process: ProcKey| self.leases_with_root(process).into_iter().map(move |successor| (successor, process));
        let successors: Vec<(LeaseId, ProcKey)> = holder.members.iter().copied().flat_map(successors).collect();
        successors.iter().for_each(|(successor, root)| drop(self.take_over_tree(*root, *successor)));
        successors.into_iter().map(|(successor, _)| successor).collect()
    }

    /// Removes a process that ended. Returns the leases that had it as a member or a root.
    pub(crate) fn remove_process(&mut self, process: ProcKey) -> BTreeSet<LeaseId> {
        self.exits.unwatch(process);
        let mut touched = self.leases_with_root(process);
        if let Some(lease) = self.owner.remove(&process) {
            if let Some(holder) = self.holders.get_mut(&lease) {
                holder.members.remove(&process);
            }
            touched.insert(lease);
        }
        touched
    }

    /// The leases that have this process as a root; it is a member of one of them.
    fn leases_with_root(&self, process: ProcKey) -> BTreeSet<LeaseId> {
        let rooted = self.holders.iter().filter(|(_, holder)| holder.roots.contains(&process));
        rooted.map(|(lease, _)| *lease).collect()
    }

    /// The members, if they changed since the last call that returned them; `None` otherwise.
    pub(crate) fn changed_members(&mut self, lease: LeaseId) -> Option<(Vec<ProcKey>, Restrictions)> {
        let holder = self.holders.get_mut(&lease)?;
        let members: Vec<ProcKey> = holder.members.iter().copied().collect();
        // Restrictions of processes that ended since the refresh are left out.
        let restricted = holder.restricted.iter().filter(|(process, _)| holder.members.contains(process));
        let members_now = (members, restricted.map(|(process, restriction)| (*process, *restriction)).collect());
        if holder.reported.as_ref() == Some(&members_now) {
            return None;
        }
        holder.reported = Some(members_now.clone());
        Some(members_now)
    }

    /// The lease of this process, if the process was not reported yet.
    pub(crate) fn unreported_lease(&self, process: ProcKey) -> Option<LeaseId> {
        let lease = self.lease_of(process)?;
        let reported = self.holders.get(&lease)?.reported.as_ref();
        reported.is_none_or(|(members, _)| members.binary_search(&process).is_err()).then_some(lease)
    }

    /// True if its members were reported, and are too many to report with every change.
    pub(crate) fn has_many_members(&self, lease: LeaseId) -> bool {
        self.holders.get(&lease).is_some_and(|holder| holder.reported.is_some() && holder.members.len() > MEMBERS_MANY)
    }

    /// How many periods pass between two refreshes of a lease: more for one with thousands of processes, so that
    /// reading them does not take all the time.
    pub(crate) fn refresh_periods(&self, lease: LeaseId) -> u32 {
        let members = self.holders.get(&lease).map_or(0, |holder| holder.members.len());
        u32::try_from(members / MEMBERS_MANY + 1).unwrap_or(PERIODS_MAX).min(PERIODS_MAX)
    }

    /// The roots of a holder that is watched.
    pub(crate) fn roots(&self, lease: LeaseId) -> BTreeSet<ProcKey> {
        self.holders.get(&lease).map(|holder| holder.roots.clone()).unwrap_or_default()
    }

    /// True if it is watched, no process of it is known, and no other lease has one of its roots.
    pub(crate) fn has_no_processes(&self, lease: LeaseId) -> bool {
        let is_known = |root: &ProcKey| self.owner.contains_key(root);
        let has_no_processes = |holder: &WatchedHolder| holder.members.is_empty() && !holder.roots.iter().any(is_known);
        self.holders.get(&lease).is_some_and(has_no_processes)
    }

    pub(crate) fn lease_of(&self, process: ProcKey) -> Option<LeaseId> {
        self.owner.get(&process).copied()
    }

    /// Notes that this process used the engines of a GPU.
    pub(crate) fn note_gpu_use(&mut self, process: ProcKey) {
        if let Some(holder) = self.lease_of(process).and_then(|lease| self.holders.get_mut(&lease)) {
            holder.used_gpu = true;
        }
    }

    /// With `is`, other activity of its programs does not count: they report themselves when they use a GPU.
    pub(crate) fn set_judged_by_shim(&mut self, lease: LeaseId, is: bool) {
        if let Some(holder) = self.holders.get_mut(&lease) {
            holder.is_judged_by_shim = is;
        }
    }

    /// Attributes an unknown process, and adds it to its lease. Returns the lease.
    pub(crate) fn attribute(&mut self, process: ProcKey) -> Option<LeaseId> {
        let by_descent = process::ancestry(process.pid).into_iter().find_map(|parent| self.lease_of(parent));
        // Its parent may have ended, and may have descended from a member.
        let by_origin = || self.ancestors.of(process.pid).iter().find_map(|ancestor| self.lease_of(ancestor.process));
        let by_session = || self.lease_by_session(process.pid);
        let lease = by_descent.or_else(|| self.lease_by_proof(process.pid)).or_else(by_session).or_else(by_origin)?;
        self.add_member(process, lease, ExitWatch::Reserved).then_some(lease)
    }

    /// Searches all processes of the host for the proof of a lease, above all of those in `sought`. Returns the
    /// leases that gained a process.
    pub(crate) fn search_all_processes(
        &mut self,
        sought: &BTreeSet<LeaseId>,
    ) -> Result<BTreeSet<LeaseId>, ProcessError> {
        let mut gained = BTreeSet::new();
        let users: BTreeSet<u32> = sought.iter().filter_map(|lease| Some(self.holders.get(lease)?.uid)).collect();
        let before = std::mem::take(&mut self.without_lease);
        for pid in process::all_pids()? {
            if self.is_other_users(pid, &users) {
                continue;
            }
            let Ok(stat) = process::stat(pid) else { continue };
            let key = stat.key(pid);
            if stat.has_ended() || self.owner.contains_key(&key) {
                continue;
            }
            // A program that was started without naming a lease never names one later.
            let is_without_lease = before.get(&key).is_some_and(|image| *image == stat.image);
            let named = if is_without_lease { NamedLease::Nothing } else { self.named_in_environment(pid) };
            if named == NamedLease::Nothing && stat.has_known_image() {
                self.without_lease.insert(key, stat.image);
            }
            let lease = self.lease_by_cgroup(pid).or(named.lease());
            if let Some(lease) = lease.filter(|lease| self.add_member(key, *lease, ExitWatch::Ordinary)) {
                gained.insert(lease);
            }
        }
        gained.iter().for_each(|lease| self.grow(*lease));
        Ok(gained)
    }

    /// True if this pid is that of a member of another user's lease, or of a later process of that user: it is not
    /// searched for. This takes one call, identifying a process takes five, and a user can have ten thousand
    /// processes.
    fn is_other_users(&self, pid: u32, users: &BTreeSet<u32>) -> bool {
        let holder = self.member_with_pid(pid).and_then(|(_, lease)| self.holders.get(&lease));
        let Some(uid) = holder.map(|holder| holder.uid).filter(|uid| !users.contains(uid)) else { return false };
        fs::metadata(format!("/proc/{pid}")).is_ok_and(|found| found.uid() == uid)
    }

    /// The member with this pid, and its lease. It may have ended since.
    fn member_with_pid(&self, pid: u32) -> Option<(ProcKey, LeaseId)> {
        let all = ProcKey { pid, start: 0 }..=ProcKey { pid, start: u64::MAX };
        self.owner.range(all).next().map(|(process, lease)| (*process, *lease))
    }

    /// The lease by the cgroup of a process, or by its environment.
    fn lease_by_proof(&self, pid: u32) -> Option<LeaseId> {
        self.lease_by_cgroup(pid).or_else(|| self.named_in_environment(pid).lease())
    }

    /// The lease of the leader of its session: every process in a session descends from its leader.
    fn lease_by_session(&self, pid: u32) -> Option<LeaseId> {
        let session = process::stat(pid).ok()?.session;
        let leader = process::stat(session).ok()?;
        self.lease_of(leader.key(session))
    }

    fn lease_by_cgroup(&self, pid: u32) -> Option<LeaseId> {
        if self.holders.values().all(|holder| holder.cgroups.is_empty()) {
            return None;
        }
        let its = process::cgroups(pid).ok()?;
        let inside =
            |holder: &WatchedHolder| holder.cgroups.iter().any(|own| its.iter().any(|cgroup| own.contains(cgroup)));
        self.holders.iter().find(|(_, holder)| inside(holder)).map(|(lease, _)| *lease)
    }

    /// A process can put anything in its environment, so it counts only for a process of the lease's user. In a
    /// container, which has users of its own, it counts with the proof that only the lease's owner got: names and
    /// fences can be guessed. The container must be made by root's engine or by the holder's user.
    fn named_in_environment(&self, pid: u32) -> NamedLease {
        let Ok(environment) = Environment::read(pid) else { return NamedLease::Unknown };
        match environment.get(LEASE_VARIABLE) {
            None => NamedLease::Nothing,
            Some(name) => self.lease_named(pid, &environment, &name).map_or(NamedLease::Unknown, NamedLease::Lease),
        }
    }

    fn lease_named(&self, pid: u32, environment: &Environment, name: &str) -> Option<LeaseId> {
        let lease: LeaseId = name.parse().ok()?;
        let holder = self.holders.get(&lease)?;
        let grant = holder.grant?;
        let is_granted = environment.get(EPOCH_VARIABLE)?.parse() == Ok(grant.epoch.0);
        let is_users = || process::uid(pid).is_ok_and(|uid| uid == holder.uid);
        let has_proof =
            || environment.get(proof::PROOF_VARIABLE).is_some_and(|text| text.parse::<LeaseProof>() == Ok(grant.proof));
        let is_own = || is_users() || (has_proof() && audit::is_in_container_of(pid, holder.uid));
        (is_granted && is_own()).then_some(lease)
    }

    fn is_granted(&self, lease: LeaseId) -> bool {
        self.holders.get(&lease).is_some_and(|holder| holder.grant.is_some())
    }

    /// The lease of a process, if that lease was granted.
    pub(crate) fn granted_lease_of(&self, process: ProcKey) -> Option<LeaseId> {
        self.lease_of(process).filter(|lease| self.is_granted(*lease))
    }

    fn is_root(&self, process: ProcKey, lease: LeaseId) -> bool {
        self.holders.get(&lease).is_some_and(|holder| holder.roots.contains(&process))
    }

    fn move_member(&mut self, process: ProcKey, from: LeaseId, to: LeaseId) {
        if let Some(holder) = self.holders.get_mut(&from) {
            holder.members.remove(&process);
        }
        if let Some(holder) = self.holders.get_mut(&to) {
            holder.members.insert(process);
            self.owner.insert(process, to);
        }
    }

    fn add_member_by_pid(&mut self, pid: u32, lease: LeaseId) -> Option<ProcKey> {
        let key = process::stat(pid).ok()?.key(pid);
        self.add_member(key, lease, ExitWatch::Ordinary).then_some(key)
    }

    /// Adds a process to a lease. Returns true if it is new here and runs.
    fn add_member(&mut self, process: ProcKey, lease: LeaseId, exit_watch: ExitWatch) -> bool {
        let Some(holder) = self.holders.get(&lease) else { return false };
        // A program may have started this daemon, as tests do; a signal to the program's lease is not for the daemon.
        if process.pid == std::process::id() && !holder.roots.contains(&process) {
            return false;
        }
        let exit_watch = match exit_watch {
            ExitWatch::Ordinary if holder.roots.contains(&process) => ExitWatch::Reserved,
            ExitWatch::Ordinary if holder.members.len() >= PIDFDS_PER_LEASE => ExitWatch::None,
            exit_watch => exit_watch,
        };
        if self.owner.contains_key(&process) || !self.exits.watch(process, exit_watch) {
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
