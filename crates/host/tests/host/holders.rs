//! Which processes belong to a lease, with real process trees.

use crate::support::{NEVER, OFTEN, Rig, Tree, fresh_lease, key, my_uid};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use sublet_core::ids::{Fence, LeaseId, ProcKey};
use sublet_core::reading::Reading;
use sublet_core::restrictions::Restriction;
use sublet_host::proof::{Grant, LeaseProof};
use sublet_host::{HostReport, process};

crate::tests![
    all_processes_of_a_tree_are_members,
    a_holder_lives_as_long_as_its_last_process,
    an_exit_is_noticed_at_once,
    a_zombie_is_gone_before_it_is_reaped,
    a_child_that_comes_later_joins,
    a_process_that_left_its_tree_is_found_by_its_environment,
    a_process_that_left_its_tree_and_its_environment_is_found_by_its_session,
    the_environment_counts_for_its_own_user_only,
    in_a_container_the_environment_counts_only_if_root_or_the_holder_made_it,
    in_a_container_the_environment_counts_only_with_the_proof,
    a_lease_name_with_another_fence_does_not_count,
    a_root_with_another_start_is_another_process,
    a_root_that_is_gone_is_gone,
    an_unknown_process_on_a_gpu_joins_before_the_reading_is_reported,
    an_unleased_process_on_a_gpu_joins_no_lease,
    readings_are_reported_only_when_the_leases_of_an_earlier_daemon_are_watched,
    a_member_that_runs_as_another_user_is_restricted,
    a_stopped_process_is_restricted_until_it_continues,
    a_lease_inside_a_lease_has_its_own_tree,
    a_waiting_lease_takes_no_process_from_a_granted_one,
    members_stay_when_the_roots_are_replaced,
    nothing_is_reported_of_a_forgotten_lease,
    processes_in_the_holders_cgroup_are_members,
];

/// A shell, its child shell, and that one's child: prints the two lower pids.
pub const THREE: &str = "sh -c 'echo $$; sleep 600 >/dev/null & echo $!; wait' & wait";

fn all_processes_of_a_tree_are_members() {
    let lease = fresh_lease();
    let rig = Rig::new(NEVER);
    let tree = Tree::shell(THREE, 2);
    rig.host.watch_holder(lease, my_uid(), vec![tree.root()], None);
    rig.members(lease, &tree.pids);
}

fn a_holder_lives_as_long_as_its_last_process() {
    let lease = fresh_lease();
    let rig = Rig::new(NEVER);
    let tree = Tree::shell(THREE, 2);
    rig.host.watch_holder(lease, my_uid(), vec![tree.root()], None);
    rig.members(lease, &tree.pids);
    tree.kill(0);
    rig.members(lease, &tree.pids[1..]);
    tree.kill(1);
    rig.members(lease, &tree.pids[2..]);
    assert!(!rig.is_gone(lease));
    tree.kill(2);
    rig.gone(lease);
}

fn an_exit_is_noticed_at_once() {
    let lease = fresh_lease();
    let rig = Rig::new(NEVER);
    let tree = Tree::sleeper();
    rig.host.watch_holder(lease, my_uid(), vec![tree.root()], None);
    rig.members(lease, &tree.pids);
    let killed = Instant::now();
    tree.kill(0);
    rig.gone(lease);
    // About a millisecond on an idle machine; this one may be loaded.
    assert!(killed.elapsed() < Duration::from_millis(500), "{:?}", killed.elapsed());
}

fn a_zombie_is_gone_before_it_is_reaped() {
    let lease = fresh_lease();
    let rig = Rig::new(NEVER);
    let tree = Tree::sleeper();
    let root = tree.root();
    tree.kill(0);
    while process::is_running(root) {
        std::thread::yield_now();
    }
    assert!(Path::new(&format!("/proc/{}", root.pid)).exists());
    rig.host.watch_holder(lease, my_uid(), vec![root], None);
    rig.gone(lease);
}

fn a_child_that_comes_later_joins() {
    let lease = fresh_lease();
    let rig = Rig::new(OFTEN);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("go");
    let script =
        format!("until [ -e '{f}' ]; do sleep 0.05; done; sleep 600 & echo $! > '{f}'; wait", f = file.display());
    let mut tree = Tree::shell(&script, 0);
    rig.host.watch_holder(lease, my_uid(), vec![tree.root()], None);
    rig.until("the first members", |report| matches!(report, HostReport::Members { .. }).then_some(()));
    std::fs::write(&file, "").unwrap();
    let late = loop {
        if let Ok(pid) = std::fs::read_to_string(&file).unwrap().trim().parse::<u32>() {
            break pid;
        }
        std::thread::yield_now();
    };
    tree.pids.push(late);
    rig.members(lease, &tree.pids);
}

fn a_process_that_left_its_tree_is_found_by_its_environment() {
    let lease = fresh_lease();
    let rig = Rig::new(NEVER);
    let mut tree = daemonised(lease);
    rig.host.watch_holder(lease, my_uid(), vec![], Some(grant(7)));
    rig.members(lease, &tree.pids[1..]);
    tree.kill(1);
    rig.gone(lease);
    tree.pids.truncate(1);
}

fn a_process_that_left_its_tree_and_its_environment_is_found_by_its_session() {
    let lease = fresh_lease();
    let rig = Rig::new(NEVER);
    // The first leads a session; the second is in that session, and its parent has ended.
    let script =
        "setsid sh -c 'echo $$; sh -c \"env -i sleep 600 >/dev/null & echo \\$!\"; sleep 600 >/dev/null' & wait";
    let tree = Tree::shell(script, 2);
    let [_, leader, left] = tree.pids[..] else { panic!("{:?}", tree.pids) };
    while process::ancestry(left).iter().any(|parent| parent.pid == leader) {
        std::thread::yield_now();
    }
    rig.host.watch_holder(lease, my_uid(), vec![key(leader)], None);
    rig.until("its members", |report| matches!(report, HostReport::Members { .. }).then_some(()));
    script_process(&rig, left);
    rig.until("it is a member", |report| match report {
        HostReport::Members { lease: of, processes, .. } if *of == lease => {
            processes.contains(&key(left)).then_some(())
        }
        _ => None,
    });
}

fn the_environment_counts_for_its_own_user_only() {
    let lease = fresh_lease();
    let rig = Rig::new(NEVER);
    let _tree = daemonised(lease);
    rig.host.watch_holder(lease, my_uid() + 1, vec![], Some(grant(7)));
    rig.gone(lease);
}

fn in_a_container_the_environment_counts_only_if_root_or_the_holder_made_it() {
    let lease = fresh_lease();
    let place = OwnCgroup::make(lease);
    let Some(place) = place.filter(|_| rustix::process::geteuid().is_root()) else {
        eprintln!("skipped: this user may not make a cgroup for others here");
        return;
    };
    // A user with a cgroup of its own names the cgroups below it freely.
    let container = OwnCgroup(place.0.join(format!("docker-{:064x}.scope", std::process::id())));
    std::fs::create_dir(&container.0).unwrap();
    let tree = daemonised_with(lease, &format!("SUBLET_PROOF={}", grant(7).proof));
    container.put(tree.pids[1]);
    let (holder, other) = (my_uid() + 1, my_uid() + 2);
    for (maker, is_its) in [(other, false), (holder, true), (0, true)] {
        std::os::unix::fs::chown(&place.0, Some(maker), None).unwrap();
        let rig = Rig::new(NEVER);
        rig.host.watch_holder(lease, holder, vec![], Some(grant(7)));
        let _ = if is_its { rig.members(lease, &tree.pids[1..]) } else { rig.gone(lease) };
        // No process is exempt as a container's for a name that its user chose.
        let told = sublet_host::audit::service_identity(tree.pids[1]).unwrap();
        assert_eq!(told.container.is_some(), maker == 0, "made by {maker}");
    }
}

fn in_a_container_the_environment_counts_only_with_the_proof() {
    let lease = fresh_lease();
    let place = OwnCgroup::make(lease);
    let Some(place) = place.filter(|_| rustix::process::geteuid().is_root()) else {
        eprintln!("skipped: this user may not make a cgroup for others here");
        return;
    };
    let container = OwnCgroup(place.0.join(format!("docker-{:064x}.scope", std::process::id())));
    std::fs::create_dir(&container.0).unwrap();
    // Its name and its fence are no secrets; the proof of the next grant is of no use for this one.
    let (right, next) = (grant(7).proof.to_string(), grant(8).proof.to_string());
    let cut = &right[1..];
    let marks =
        ["X=".to_owned(), "SUBLET_PROOF=".into(), format!("SUBLET_PROOF={cut}"), format!("SUBLET_PROOF={next}")];
    for forged in marks {
        let tree = daemonised_with(lease, &forged);
        container.put(tree.pids[1]);
        let rig = Rig::new(NEVER);
        rig.host.watch_holder(lease, my_uid() + 1, vec![], Some(grant(7)));
        rig.gone(lease);
    }
    let tree = daemonised_with(lease, &format!("SUBLET_PROOF={right}"));
    let rig = Rig::new(NEVER);
    // Outside of a container the user of a process counts.
    rig.host.watch_holder(lease, my_uid() + 1, vec![], Some(grant(7)));
    rig.gone(lease);
    container.put(tree.pids[1]);
    rig.host.watch_holder(lease, my_uid() + 1, vec![], Some(grant(7)));
    rig.members(lease, &tree.pids[1..]);
}

fn a_lease_name_with_another_fence_does_not_count() {
    let lease = fresh_lease();
    let rig = Rig::new(NEVER);
    let _tree = daemonised(lease);
    for grant in [Some(grant(8)), None] {
        rig.host.watch_holder(lease, my_uid(), vec![], grant);
        rig.gone(lease);
    }
}

/// What the programs of a lease carry.
fn grant(epoch: u8) -> Grant {
    Grant { epoch: Fence(epoch.into()), proof: LeaseProof([epoch; 16]) }
}

/// Forks twice, in a session of its own, with a lease's name and fence; its first process has ended.
fn daemonised(lease: LeaseId) -> Tree {
    daemonised_with(lease, "")
}

/// The same, with more in its environment.
fn daemonised_with(lease: LeaseId, more: &str) -> Tree {
    let script = format!("SUBLET_LEASE={lease} SUBLET_FENCE=7 {more} setsid sh -c 'sleep 600 >/dev/null & echo $!'");
    let mut tree = Tree::shell(&script, 1);
    tree.wait();
    // During its exec a process shows no environment; nothing in that state holds GPU memory.
    let (pid, lease_name) = (tree.pids[1], lease.to_string());
    while std::fs::read(format!("/proc/{pid}/cmdline")).unwrap() != b"sleep\x00600\0"
        || process::Environment::read(pid).unwrap().get("SUBLET_LEASE").as_deref() != Some(&lease_name)
    {
        std::thread::yield_now();
    }
    tree
}

fn a_root_with_another_start_is_another_process() {
    let lease = fresh_lease();
    let rig = Rig::new(NEVER);
    let tree = Tree::sleeper();
    let root = tree.root();
    rig.host.watch_holder(lease, my_uid(), vec![ProcKey { start: root.start + 1, ..root }], None);
    rig.gone(lease);
}

fn a_root_that_is_gone_is_gone() {
    let lease = fresh_lease();
    let rig = Rig::new(NEVER);
    let (mut ended, alive) = (Tree::sleeper(), Tree::sleeper());
    let roots = vec![ended.root(), alive.root()];
    ended.kill(0);
    ended.wait();
    rig.host.watch_holder(lease, my_uid(), roots, None);
    rig.members(lease, &alive.pids);
}

fn an_unknown_process_on_a_gpu_joins_before_the_reading_is_reported() {
    let lease = fresh_lease();
    let rig = Rig::new(NEVER);
    let tree = Tree::sleeper();
    rig.host.watch_holder(lease, my_uid(), vec![tree.root()], None);
    rig.host.set_grant(lease, grant(7));
    rig.members(lease, &tree.pids);
    let joined = daemonised(lease);
    script_process(&rig, joined.pids[1]);
    let (_, at) = rig.after(0, "the process on the GPU", |report| observed(report, joined.pids[1]));
    let both = [tree.pids[0], joined.pids[1]];
    assert!(rig.members(lease, &both) < at);
}

fn an_unleased_process_on_a_gpu_joins_no_lease() {
    let lease = fresh_lease();
    let rig = Rig::new(NEVER);
    let (tree, stranger, other) = (Tree::sleeper(), Tree::sleeper(), daemonised(fresh_lease()));
    rig.host.watch_holder(lease, my_uid(), vec![tree.root()], None);
    rig.members(lease, &tree.pids);
    for pid in [stranger.pids[0], other.pids[1]] {
        script_process(&rig, pid);
        rig.until("the process on the GPU", |report| observed(report, pid));
    }
    let told = rig.reports().into_iter().filter(|report| matches!(report, HostReport::Members { .. })).count();
    assert_eq!(told, 1);
}

fn script_process(rig: &Rig, pid: u32) {
    rig.script(&format!(r#"{{"cards":[{{"index":0,"processes":[{{"pid":{pid},"bytes":1048576}}]}}]}}"#));
    rig.host.request_reading();
}

fn observed(report: &HostReport, pid: u32) -> Option<()> {
    let HostReport::Observed { observation, .. } = report else { return None };
    let Reading::Used(used) = &observation.reading else { return None };
    used.processes.iter().any(|resident| resident.process == key(pid)).then_some(())
}

fn a_lease_inside_a_lease_has_its_own_tree() {
    let (outer, inner) = (fresh_lease(), fresh_lease());
    let rig = Rig::new(NEVER);
    let tree = Tree::shell(THREE, 2);
    rig.host.watch_holder(outer, my_uid(), vec![tree.root()], None);
    rig.members(outer, &tree.pids);
    rig.host.watch_holder(inner, my_uid(), vec![key(tree.pids[1])], None);
    rig.members(inner, &tree.pids[1..]);
    rig.members(outer, &tree.pids[..1]);
    // Watched again, the outer lease does not take the inner one's tree back.
    let from = rig.count();
    rig.host.watch_holder(outer, my_uid(), vec![tree.root()], None);
    let (told, _) = rig.after(from, "members", |report| match report {
        HostReport::Members { lease, processes, .. } if *lease == outer => Some(processes.clone()),
        _ => None,
    });
    assert_eq!(told, [tree.root()]);
}

fn a_waiting_lease_takes_no_process_from_a_granted_one() {
    let (granted, waits) = (fresh_lease(), fresh_lease());
    let rig = Rig::new(NEVER);
    let tree = Tree::shell(THREE, 2);
    rig.host.watch_holder(granted, my_uid(), vec![tree.root()], Some(grant(1)));
    rig.members(granted, &tree.pids);
    rig.host.watch_holder(waits, my_uid(), vec![tree.root()], None);
    rig.members(waits, &[]);
    assert!(!rig.is_gone(waits), "its root lives");
    rig.host.set_grant(waits, grant(2));
    rig.members(waits, &tree.pids);
    rig.members(granted, &[]);
    assert!(!rig.is_gone(granted), "its root lives");
    // When the other is forgotten it gets them back.
    rig.host.forget_holder(waits);
    rig.members(granted, &tree.pids);
    (0..3).for_each(|process| tree.kill(process));
    rig.gone(granted);
}

fn members_stay_when_the_roots_are_replaced() {
    let lease = fresh_lease();
    let rig = Rig::new(NEVER);
    let (old, new) = (Tree::sleeper(), Tree::sleeper());
    rig.host.watch_holder(lease, my_uid(), vec![old.root()], None);
    rig.members(lease, &old.pids);
    rig.host.watch_holder(lease, my_uid(), vec![new.root()], None);
    rig.members(lease, &[old.pids[0], new.pids[0]]);
}

fn nothing_is_reported_of_a_forgotten_lease() {
    let (unwatched, other) = (fresh_lease(), fresh_lease());
    let rig = Rig::new(NEVER);
    let (forgotten, watched) = (Tree::sleeper(), Tree::sleeper());
    rig.host.watch_holder(unwatched, my_uid(), vec![forgotten.root()], None);
    rig.host.watch_holder(other, my_uid(), vec![watched.root()], None);
    rig.members(other, &watched.pids);
    rig.host.forget_holder(unwatched);
    forgotten.kill(0);
    watched.kill(0);
    rig.gone(other);
    assert!(!rig.is_gone(unwatched));
}

fn processes_in_the_holders_cgroup_are_members() {
    let lease = fresh_lease();
    let Some(cgroup) = OwnCgroup::make(lease) else {
        eprintln!("skipped: this user may not make a cgroup here");
        return;
    };
    let rig = Rig::new(OFTEN);
    let (root, beside) = (Tree::sleeper(), Tree::sleeper());
    cgroup.put(root.pids[0]);
    rig.host.watch_holder(lease, my_uid(), vec![root.root()], None);
    rig.members(lease, &root.pids);
    cgroup.put(beside.pids[0]);
    rig.members(lease, &[root.pids[0], beside.pids[0]]);
}

/// A cgroup with the name that identifies a holder's; removed after the test.
pub struct OwnCgroup(PathBuf);

impl OwnCgroup {
    pub fn make(lease: LeaseId) -> Option<OwnCgroup> {
        OwnCgroup::named(&format!("sublet-{lease}"))
    }

    pub fn named(name: &str) -> Option<OwnCgroup> {
        let mine = process::cgroups(std::process::id()).ok()?;
        let dirs = mine.iter().filter_map(process::Cgroup::directory).map(|dir| dir.join(name));
        let usable = |dir: &PathBuf| std::fs::create_dir(dir).is_ok() && dir.join("cgroup.procs").exists();
        dirs.into_iter().find(usable).map(OwnCgroup)
    }

    pub fn put(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for OwnCgroup {
    fn drop(&mut self) {
        // It can be removed only when it is empty: its processes are moved up.
        let up = self.0.parent().unwrap().join("cgroup.procs");
        for pid in std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = std::fs::write(&up, pid);
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A daemon that starts watches the leases of the one before it after its first reading of the GPUs.
fn readings_are_reported_only_when_the_leases_of_an_earlier_daemon_are_watched() {
    let lease = fresh_lease();
    let rig = Rig::of_earlier_leases("scripted:1x24GiB", |settings, _| settings.period = OFTEN);
    let tree = Tree::shell(THREE, 2);
    let program = tree.pids[2];
    rig.script(&format!(r#"{{"cards":[{{"index":0,"processes":[{{"pid":{program},"bytes":1048576}}]}}]}}"#));
    rig.until("the GPUs", |report| matches!(report, HostReport::Gpus(_)).then_some(()));
    // Time for several readings.
    std::thread::sleep(Duration::from_millis(500));
    rig.host.watch_holder(lease, my_uid(), vec![tree.root()], Some(grant(1)));
    rig.host.start_reporting();
    rig.until("a look", |report| matches!(report, HostReport::Observed { .. }).then_some(()));
    let told = rig.reports();
    let place = |is: fn(&HostReport) -> bool| told.iter().position(is);
    let (members, look) =
        (place(|it| matches!(it, HostReport::Members { .. })), place(|it| matches!(it, HostReport::Observed { .. })));
    assert!(members.is_some() && members < look, "{told:?}");
}

fn restrictions(rig: &Rig, lease: LeaseId, pid: u32, wanted: Option<Restriction>) {
    let process = key(pid);
    rig.after(rig.count(), &format!("{wanted:?} of process {pid}"), |report| match report {
        HostReport::Members { lease: of, restricted, .. } if *of == lease => {
            (restricted.get(&process).copied() == wanted).then_some(())
        }
        _ => None,
    });
}

fn a_member_that_runs_as_another_user_is_restricted() {
    if my_uid() != 0 {
        return eprintln!("skipped: only root can start programs of other users");
    }
    let lease = fresh_lease();
    let rig = Rig::new(OFTEN);
    let tree = Tree::shell("setpriv --reuid=61234 --clear-groups sleep 600 >/dev/null & echo $!; wait", 1);
    rig.host.watch_holder(lease, my_uid(), vec![tree.root()], None);
    rig.members(lease, &tree.pids);
    let other = Restriction { runs_as: Some(61234), is_stopped: false };
    let process = key(tree.pids[1]);
    rig.until("the user of the child", |report| match report {
        HostReport::Members { lease: of, restricted, .. } if *of == lease => {
            (restricted.get(&process) == Some(&other) && restricted.len() == 1).then_some(())
        }
        _ => None,
    });
}

fn a_stopped_process_is_restricted_until_it_continues() {
    let lease = fresh_lease();
    let rig = Rig::new(OFTEN);
    let tree = Tree::shell(THREE, 2);
    rig.host.watch_holder(lease, my_uid(), vec![tree.root()], None);
    rig.members(lease, &tree.pids);
    let send = |signal| {
        let pid = rustix::process::Pid::from_raw(tree.pids[2] as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    };
    send(rustix::process::Signal::STOP);
    restrictions(&rig, lease, tree.pids[2], Some(Restriction { runs_as: None, is_stopped: true }));
    send(rustix::process::Signal::CONT);
    restrictions(&rig, lease, tree.pids[2], None);
}
