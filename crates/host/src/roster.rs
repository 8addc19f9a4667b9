//! Which process belongs to which lease.
//!
//! A process joins by descent from a member, by being in the holder's own cgroup or in
//! a session that a member leads, or by the lease's mark in its environment; then it is a member until it ends, whoever
//! its parent becomes. A process belongs to one lease at most: the first that found
//! it, unless another names it as a root. Nothing is reported here.

use crate::activity::{Counters, Meter};
use crate::audit::{self, Forebears};
use crate::exits::Exits;
use crate::mark::{self, Grant, Mark};
use crate::process::{self, Cgroup, Environment, ProcessError};
use crate::terminal;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Instant, SystemTime};
use sublet_core::ids::{LeaseId, ProcKey};

/// Names the lease in the environment of whatever was started under it.
pub(crate) const LEASE_VARIABLE: &str = "SUBLET_LEASE";
/// And the epoch it was granted with: another service on this host, or an earlier one, had leases of the
/// same names.
const EPOCH_VARIABLE: &str = "SUBLET_EPOCH";
/// Cgroups below a holder's own are followed this deep.
const CGROUP_DEPTH_MAX: usize = 16;

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
    /// The members as they were last told.
    told: Option<Vec<ProcKey>>,
}

/// What the processes of a lease did between two samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    pub(crate) worked: bool,
    /// One of them read input from the terminal in whose foreground it is.
    pub(crate) got_input: bool,
}

pub(crate) struct Roster {
    holders: BTreeMap<LeaseId, Holder>,
    owner: BTreeMap<ProcKey, LeaseId>,
    exits: Exits,
    forebears: Forebears,
    ticks_per_s: u64,
}

impl Roster {
    pub(crate) fn new(exits: Exits) -> Roster {
        let ticks_per_s = rustix::param::clock_ticks_per_second();
        let forebears = Forebears::default();
        Roster { holders: BTreeMap::new(), owner: BTreeMap::new(), exits, forebears, ticks_per_s }
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
    pub(crate) fn news(&mut self, lease: LeaseId) -> Option<Vec<ProcKey>> {
        let holder = self.holders.get_mut(&lease)?;
        let members: Vec<ProcKey> = holder.members.iter().copied().collect();
        if holder.told.as_ref() == Some(&members) {
            return None;
        }
        holder.told = Some(members.clone());
        Some(members)
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

    /// Takes out the members that ended and adds those that came. Returns what the holder did since the last time.
    pub(crate) fn refresh(&mut self, lease: LeaseId) -> Activity {
        let Some(holder) = self.holders.get(&lease) else { return Activity::default() };
        let mut counters = BTreeMap::new();
        let mut input = None;
        for member in holder.members.clone() {
            match count(member) {
                Some((counted, read)) => {
                    counters.insert(member, counted);
                    input = input.max(read);
                }
                None => drop(self.leave(member)),
            }
        }
        self.grow(lease);
        let Some(holder) = self.holders.get_mut(&lease) else { return Activity::default() };
        let used_card = std::mem::take(&mut holder.used_card);
        let worked = holder.meter.sample(Instant::now(), &counters);
        let before = std::mem::replace(&mut holder.last_input, input);
        let got_input = before.zip(input).is_some_and(|(before, input)| before < input);
        Activity { worked: (worked && !holder.by_shim) || used_card, got_input }
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
        self.admit(process, lease).then_some(lease)
    }

    /// Looks at every process of the host for a lease's mark. Returns the leases that gained one.
    pub(crate) fn sweep(&mut self) -> Result<BTreeSet<LeaseId>, ProcessError> {
        let mut gained = BTreeSet::new();
        for pid in process::all()? {
            let Ok(stat) = process::stat(pid) else { continue };
            let key = stat.key(pid);
            if stat.has_ended() || self.owner.contains_key(&key) {
                continue;
            }
            if let Some(lease) = self.by_mark(pid).filter(|lease| self.admit(key, *lease)) {
                gained.insert(lease);
            }
        }
        gained.iter().for_each(|lease| self.grow(*lease));
        Ok(gained)
    }

    /// The lease whose cgroup a process is in, or that its environment names.
    fn by_mark(&self, pid: u32) -> Option<LeaseId> {
        self.by_cgroup(pid).or_else(|| self.by_environ(pid))
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
    fn by_environ(&self, pid: u32) -> Option<LeaseId> {
        let environment = Environment::read(pid).ok()?;
        let lease: LeaseId = environment.get(LEASE_VARIABLE)?.parse().ok()?;
        let holder = self.holders.get(&lease)?;
        let grant = holder.grant?;
        let is_granted = environment.get(EPOCH_VARIABLE)?.parse() == Ok(grant.epoch.0);
        let is_users = || process::uid(pid).is_ok_and(|uid| uid == holder.uid);
        let has_mark = || environment.get(mark::VARIABLE).is_some_and(|text| text.parse::<Mark>() == Ok(grant.mark));
        let is_own = || is_users() || (has_mark() && audit::is_in_container_of(pid, holder.uid));
        (is_granted && is_own()).then_some(lease)
    }

    /// Takes in whatever descends from the members or is in the holder's cgroups.
    pub(crate) fn grow(&mut self, lease: LeaseId) {
        let Some(holder) = self.holders.get(&lease) else { return };
        let dirs: Vec<_> = holder.cgroups.iter().filter_map(Cgroup::directory).collect();
        let mut parents: Vec<ProcKey> = holder.members.iter().copied().collect();
        for pid in dirs.iter().flat_map(|dir| pids_in(dir, CGROUP_DEPTH_MAX)) {
            parents.extend(self.admit_pid(pid, lease));
        }
        while let Some(parent) = parents.pop() {
            for child in process::children(parent.pid).unwrap_or_default() {
                parents.extend(self.admit_pid(child, lease));
            }
        }
    }

    /// Takes in a root and all below it, from other leases too; but not the roots of those, and who waits takes
    /// none from who does not.
    fn seize(&mut self, root: ProcKey, lease: LeaseId) -> BTreeSet<LeaseId> {
        let mut losers = BTreeSet::new();
        let mut next = vec![root];
        let waits = !self.is_granted(lease);
        while let Some(process) = next.pop() {
            match self.owner(process) {
                Some(owner) if owner == lease => {}
                Some(owner) if process != root && self.is_root(process, owner) => continue,
                Some(owner) if waits && self.is_granted(owner) => continue,
                Some(owner) => {
                    self.hand_over(process, owner, lease);
                    losers.insert(owner);
                }
                None if self.admit(process, lease) => {}
                None => continue,
            }
            let children = process::children(process.pid).unwrap_or_default();
            next.extend(children.into_iter().filter_map(|pid| Some(process::stat(pid).ok()?.key(pid))));
        }
        losers
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
        self.admit(key, lease).then_some(key)
    }

    /// True if the process is new here and runs.
    fn admit(&mut self, process: ProcKey, lease: LeaseId) -> bool {
        if self.owner.contains_key(&process) || !self.holders.contains_key(&lease) || !self.exits.listen(process) {
            return false;
        }
        if let Some(holder) = self.holders.get_mut(&lease) {
            holder.members.insert(process);
            self.owner.insert(process, lease);
        }
        true
    }
}

/// What a living process has done so far, and when it last read from its terminal; `None` if it has ended.
fn count(process: ProcKey) -> Option<(Counters, Option<SystemTime>)> {
    match process::stat(process.pid) {
        Ok(stat) if stat.start != process.start || stat.has_ended() => None,
        Ok(stat) => {
            let (cpu_ticks, io_bytes) = (Some(stat.cpu_ticks), process::io_bytes(process.pid).ok());
            Some((Counters { cpu_ticks, io_bytes }, terminal::last_input(process.pid, &stat)))
        }
        Err(error) if error.is_gone() => None,
        Err(_) => Some((Counters { cpu_ticks: None, io_bytes: None }, None)),
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
