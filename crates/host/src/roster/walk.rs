//! Walks over the processes of leases, a bounded number of processes at a time.
//!
//! ```text
//!   begin_watch, grow, refresh ──► first slice at once ──done──► finished
//!                                        │ more than PROCESSES_PER_SLICE processes
//!                                        ▼
//!                                  queue of walks ──run_slice: one slice, in turn──► finished
//! ```
//! A lease can have ten thousand processes, and a program that forks in a loop has new ones in every walk. Between
//! two slices the process thread handles exits and messages, so that other leases never wait for such a walk. Small
//! leases are walked at once, as if there were no slices.

use super::{Activity, Roster, pids_in};
use crate::activity::Counters;
use crate::exits::ExitWatch;
use crate::process::{self, Cgroup, Uids};
use crate::terminal;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Instant, SystemTime};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::restrictions::{Restriction, Restrictions};

/// Processes read before exits and messages are handled: some 10 ms.
const PROCESSES_PER_SLICE: usize = 256;
/// A walk ends after twice the processes it began with plus this many, or a chain of forks would keep it going.
const STEPS_BEYOND: usize = 4096;
/// Cgroups below a holder's own are followed this deep.
const CGROUP_DEPTH_MAX: usize = 16;

/// A walk in progress over the processes of one lease.
pub(super) struct LeaseWalk {
    lease: LeaseId,
    purpose: WalkPurpose,
    next: Vec<WalkStep>,
    steps_left: usize,
    /// Leases with members that this walk changed.
    touched: BTreeSet<LeaseId>,
}

enum WalkPurpose {
    /// Add descendants of the members, and processes in the lease's cgroups.
    Grow,
    /// The same, and read what each of them did.
    Refresh(RefreshSample),
    /// Take over a root and all its descendants.
    TakeOver { root: ProcKey },
}

enum WalkStep {
    Process(ProcKey),
    Child(u32),
}

/// What a refresh has read so far.
#[derive(Default)]
struct RefreshSample {
    counters: BTreeMap<ProcKey, Counters>,
    input: Option<SystemTime>,
    restricted: Restrictions,
}

/// The results of slices.
#[derive(Default)]
pub(crate) struct WalkProgress {
    /// Leases that were refreshed, with the activity of their processes since the last refresh.
    pub(crate) refreshed: Vec<(LeaseId, Activity)>,
    /// Leases with members that may have changed.
    pub(crate) touched: BTreeSet<LeaseId>,
}

impl Roster {
    /// True if a walk is not finished yet.
    pub(crate) fn is_walking(&self) -> bool {
        !self.walks.is_empty()
    }

    /// Runs the next slice of the walks in progress, in rotation.
    pub(crate) fn run_slice(&mut self) -> WalkProgress {
        let (mut progress, mut budget) = (WalkProgress::default(), PROCESSES_PER_SLICE);
        while budget > 0
            && let Some(mut walk) = self.walks.pop_front()
        {
            if self.run_steps(&mut walk, &mut budget) {
                self.finish_walk(walk, &mut progress);
            } else {
                self.walks.push_back(walk);
            }
        }
        progress
    }

    /// Removes the members of a lease that ended and adds new ones, a slice at a time.
    pub(crate) fn refresh(&mut self, lease: LeaseId) {
        let is_refresh = |walk: &LeaseWalk| walk.lease == lease && matches!(walk.purpose, WalkPurpose::Refresh(_));
        if !self.walks.iter().any(is_refresh) {
            let walk = self.new_walk(lease, WalkPurpose::Refresh(RefreshSample::default()));
            self.walks.extend(walk);
        }
    }

    /// Adds the descendants of the members and the processes in the lease's cgroups: the first slice at once, the
    /// rest queued.
    pub(crate) fn grow(&mut self, lease: LeaseId) {
        if self.walks.iter().any(|walk| walk.lease == lease) {
            return;
        }
        if let Some(walk) = self.new_walk(lease, WalkPurpose::Grow) {
            drop(self.begin_walk(walk));
        }
    }

    /// Takes over a root and its descendants, from other leases too. Roots of other leases are not taken over, and a
    /// waiting lease takes nothing from a granted one. Returns the leases that lost a process so far.
    pub(super) fn take_over_tree(&mut self, root: ProcKey, lease: LeaseId) -> BTreeSet<LeaseId> {
        let next = vec![WalkStep::Process(root)];
        let steps_left = self.steps_for(lease);
        let touched = BTreeSet::new();
        self.begin_walk(LeaseWalk { lease, purpose: WalkPurpose::TakeOver { root }, next, steps_left, touched })
    }

    fn new_walk(&self, lease: LeaseId, purpose: WalkPurpose) -> Option<LeaseWalk> {
        let holder = self.holders.get(&lease)?;
        let dirs = holder.cgroups.iter().filter_map(Cgroup::directory);
        let inside = dirs.flat_map(|dir| pids_in(&dir, CGROUP_DEPTH_MAX)).map(WalkStep::Child);
        let next = inside.chain(holder.members.iter().copied().map(WalkStep::Process)).collect();
        Some(LeaseWalk { lease, purpose, next, steps_left: self.steps_for(lease), touched: BTreeSet::new() })
    }

    fn steps_for(&self, lease: LeaseId) -> usize {
        self.holders.get(&lease).map_or(0, |holder| holder.members.len() * 2) + STEPS_BEYOND
    }

    /// Runs the first slice of a walk without a result of its own, and queues the rest.
    fn begin_walk(&mut self, mut walk: LeaseWalk) -> BTreeSet<LeaseId> {
        let finished = self.run_steps(&mut walk, &mut PROCESSES_PER_SLICE.clone());
        let touched = std::mem::take(&mut walk.touched);
        if !finished {
            self.walks.push_back(walk);
        }
        touched
    }

    /// Returns true when the walk is finished.
    fn run_steps(&mut self, walk: &mut LeaseWalk, budget: &mut usize) -> bool {
        while *budget > 0 && walk.steps_left > 0 {
            let Some(step) = walk.next.pop() else { return true };
            (*budget, walk.steps_left) = (*budget - 1, walk.steps_left - 1);
            match walk.purpose {
                WalkPurpose::TakeOver { root } => self.take_over_process(walk, root, step),
                WalkPurpose::Grow | WalkPurpose::Refresh(_) => self.visit_process(walk, step),
            }
        }
        walk.next.is_empty() || walk.steps_left == 0
    }

    fn visit_process(&mut self, walk: &mut LeaseWalk, step: WalkStep) {
        let process = match step {
            WalkStep::Process(process) => process,
            // If that member has ended since, the next walk finds the process that has the pid now.
            WalkStep::Child(pid) if self.member_with_pid(pid).is_some() => return,
            WalkStep::Child(pid) => match self.add_member_by_pid(pid, walk.lease) {
                Some(process) => process,
                None => return,
            },
        };
        // It may have ended, or have moved to another lease, since the walk began.
        if self.lease_of(process) != Some(walk.lease) {
            return;
        }
        if let WalkPurpose::Refresh(sample) = &mut walk.purpose {
            let uid = self.holders.get(&walk.lease).map(|holder| holder.uid);
            if !sample.add_process(process, uid) {
                walk.touched.extend(self.remove_process(process));
                return;
            }
        }
        walk.add_children(process);
    }

    fn take_over_process(&mut self, walk: &mut LeaseWalk, root: ProcKey, step: WalkStep) {
        let process = match step {
            WalkStep::Process(process) => process,
            WalkStep::Child(pid) => match process::stat(pid) {
                Ok(stat) => stat.key(pid),
                Err(_) => return,
            },
        };
        let (lease, waits) = (walk.lease, !self.is_granted(walk.lease));
        match self.lease_of(process) {
            Some(owner) if owner == lease => {}
            Some(owner) if process != root && self.is_root(process, owner) => return,
            Some(owner) if waits && self.is_granted(owner) => return,
            Some(owner) => {
                self.move_member(process, owner, lease);
                walk.touched.insert(owner);
            }
            None if self.add_member(process, lease, ExitWatch::Ordinary) => {}
            None => return,
        }
        if process == root {
            self.exits.watch(process, ExitWatch::Reserved);
        }
        walk.add_children(process);
    }

    fn finish_walk(&mut self, walk: LeaseWalk, progress: &mut WalkProgress) {
        progress.touched.extend(walk.touched);
        progress.touched.insert(walk.lease);
        let WalkPurpose::Refresh(sample) = walk.purpose else { return };
        let Some(holder) = self.holders.get_mut(&walk.lease) else { return };
        holder.restricted = sample.restricted;
        let used_gpu = std::mem::take(&mut holder.used_gpu);
        let worked = holder.meter.has_worked(Instant::now(), &sample.counters);
        let before = std::mem::replace(&mut holder.last_input, sample.input);
        let got_input = before.zip(sample.input).is_some_and(|(before, input)| before < input);
        let activity = Activity { worked: (worked && !holder.is_judged_by_shim) || used_gpu, got_input };
        progress.refreshed.push((walk.lease, activity));
    }
}

impl LeaseWalk {
    fn add_children(&mut self, process: ProcKey) {
        let children = process::children(process.pid).unwrap_or_default();
        self.next.extend(children.into_iter().map(WalkStep::Child));
    }
}

impl RefreshSample {
    /// Reads what a process of a lease of this user did so far, when it last read from its terminal, and its
    /// restrictions. Returns false if it has ended.
    fn add_process(&mut self, process: ProcKey, uid: Option<u32>) -> bool {
        let stat = match process::stat(process.pid) {
            Ok(stat) if stat.start != process.start || stat.has_ended() => return false,
            Ok(stat) => stat,
            Err(error) if error.is_gone() => return false,
            Err(_) => {
                self.counters.insert(process, Counters { cpu_ticks: None, io_bytes: None });
                return true;
            }
        };
        let (cpu_ticks, io_bytes) = (Some(stat.cpu_ticks), process::io_bytes(process.pid).ok());
        self.counters.insert(process, Counters { cpu_ticks, io_bytes });
        self.input = self.input.max(terminal::last_input(process.pid, &stat));
        let uids = Uids::read(process.pid).ok();
        let restriction = Restriction {
            runs_as: uids.zip(uid).and_then(|(uids, uid)| uids.other_than(uid)),
            is_stopped: matches!(stat.state, b'T' | b't'),
        };
        if restriction != Restriction::default() {
            self.restricted.insert(process, restriction);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exits::ExitWatcher;
    use crate::wake::WakeEvent;
    use rustix::process::{Pid, Signal, kill_process, kill_process_group};
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    /// A shell with a number of children, in a process group of their own.
    struct ProcessTree(Child);

    impl ProcessTree {
        fn of(children: usize) -> ProcessTree {
            let script = format!(
                "i=0; while [ $i -lt {children} ]; do sleep 600 & i=$((i+1)); done; echo ready; exec sleep 600"
            );
            let mut command = Command::new("sh");
            let command = command.args(["-c", &script]).process_group(0).stdout(Stdio::piped());
            let mut shell = command.spawn().unwrap();
            BufReader::new(shell.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
            ProcessTree(shell)
        }

        fn key(&self) -> ProcKey {
            process::identify(self.0.id()).unwrap().key
        }
    }

    impl Drop for ProcessTree {
        fn drop(&mut self) {
            let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
            let _ = self.0.wait();
        }
    }

    const MANY: LeaseId = LeaseId(1);
    const ONE: LeaseId = LeaseId(2);

    fn roster(many: &ProcessTree, one: &ProcessTree) -> Roster {
        let mut roster = Roster::new(ExitWatcher::new(&WakeEvent::new().unwrap()).unwrap());
        let uid = rustix::process::getuid().as_raw();
        roster.begin_watch(MANY, uid, vec![many.key()], None);
        roster.begin_watch(ONE, uid, vec![one.key()], None);
        roster
    }

    #[test]
    fn an_exit_is_noticed_while_a_large_tree_is_still_walked() {
        let (many, one) = (ProcessTree::of(3 * PROCESSES_PER_SLICE), ProcessTree::of(0));
        let mut roster = roster(&many, &one);
        assert!(roster.is_walking(), "the watch itself looked at the first slice only");
        let root = one.key();
        kill_process(Pid::from_child(&one.0), Signal::KILL).unwrap();
        assert_eq!(roster.exits().wait(None).unwrap(), [root]);
        assert!(roster.is_walking(), "the tree is not known whole yet");
        assert!(roster.remove_process(root).contains(&ONE));
        while roster.is_walking() {
            roster.run_slice();
        }
        assert_eq!(
            roster.changed_members(MANY).unwrap().0.len(),
            3 * PROCESSES_PER_SLICE + 1,
            "in the end all of them are"
        );
    }

    #[test]
    fn each_lease_is_refreshed_while_another_has_many_processes() {
        let (many, one) = (ProcessTree::of(3 * PROCESSES_PER_SLICE), ProcessTree::of(0));
        let mut roster = roster(&many, &one);
        while roster.is_walking() {
            roster.run_slice();
        }
        roster.refresh(MANY);
        roster.refresh(ONE);
        let first = [roster.run_slice(), roster.run_slice()].map(|progress| progress.refreshed);
        let first: Vec<LeaseId> = first.into_iter().flatten().map(|(lease, _)| lease).collect();
        assert_eq!((first, roster.is_walking()), (vec![ONE], true));
    }

    #[test]
    fn a_lease_with_many_processes_leaves_descriptors_for_others() {
        let (many, one) = (ProcessTree::of(3 * PROCESSES_PER_SLICE), ProcessTree::of(0));
        let mut roster = roster(&many, &one);
        while roster.is_walking() {
            roster.run_slice();
        }
        assert!(roster.exits().count() <= super::super::PIDFDS_PER_LEASE + 2, "{}", roster.exits().count());
        let root = many.key();
        kill_process(Pid::from_child(&many.0), Signal::KILL).unwrap();
        assert_eq!(roster.exits().wait(Some(Duration::from_secs(60))).unwrap(), [root], "roots are always heard");
    }
}
