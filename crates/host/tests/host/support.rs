//! A host with a scripted GPU, its reports, and processes that end with the test.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::reading::{GpuUsage, Reading, Unreadable};
use sublet_host::clock::Clock;
use sublet_host::{Host, HostReport, HostSettings, process};

/// Longer than anything here takes, even on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// A period so long that nothing in a test can come from it.
pub const NEVER: Duration = Duration::from_secs(600);
pub const OFTEN: Duration = Duration::from_millis(50);

/// Names of tests and their bodies.
pub type Tests = &'static [(&'static str, fn())];

/// Makes a [`Tests`] table from functions.
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub const TESTS: $crate::support::Tests = &[$((concat!(module_path!(), "::", stringify!($name)), $name as fn())),*];
    };
}

#[derive(Default)]
struct ReceivedReports {
    reports: Mutex<Vec<HostReport>>,
    more: Condvar,
}

pub struct Rig {
    pub host: Host,
    received: Arc<ReceivedReports>,
    dir: tempfile::TempDir,
}

impl Rig {
    pub fn new(period: Duration) -> Rig {
        Rig::with("scripted:1x24GiB", |settings, _| settings.period = period)
    }

    pub fn with(gpu: &str, change: impl FnOnce(&mut HostSettings, &Path)) -> Rig {
        let rig = Rig::of_earlier_leases(gpu, change);
        rig.host.start_reporting();
        rig
    }

    /// A host on which `Host::start_reporting` was not called yet.
    pub fn of_earlier_leases(gpu: &str, change: impl FnOnce(&mut HostSettings, &Path)) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = HostSettings::new(gpu.parse().unwrap());
        settings.script = dir.path().join("script.json");
        settings.deadline = Duration::from_millis(500);
        change(&mut settings, dir.path());
        let received = Arc::new(ReceivedReports::default());
        let sink = Arc::clone(&received);
        let sink = move |report| {
            sink.reports.lock().unwrap().push(report);
            sink.more.notify_all();
        };
        Rig { host: Host::start(settings, Clock::default(), sink).unwrap(), received, dir }
    }

    pub fn script(&self, text: &str) {
        let new = self.dir.path().join("new.json");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.dir.path().join("script.json")).unwrap();
    }

    /// Waits for a match among the reports from `from` on; returns it with the index after it.
    pub fn after<T>(&self, from: usize, wanted: &str, find: impl Fn(&HostReport) -> Option<T>) -> (T, usize) {
        let until = Instant::now() + PATIENCE;
        let mut reports = self.received.reports.lock().unwrap();
        loop {
            let found = reports.iter().enumerate().skip(from).find_map(|(at, report)| Some((find(report)?, at + 1)));
            if let Some(found) = found {
                return found;
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "waited in vain for {wanted}; saw {:#?}", *reports);
            reports = self.received.more.wait_timeout(reports, left).unwrap().0;
        }
    }

    /// The same, from the first report on.
    pub fn until<T>(&self, wanted: &str, find: impl Fn(&HostReport) -> Option<T>) -> T {
        self.after(0, wanted, find).0
    }

    /// The number of reports so far.
    pub fn count(&self) -> usize {
        self.received.reports.lock().unwrap().len()
    }

    pub fn reports(&self) -> Vec<HostReport> {
        self.received.reports.lock().unwrap().clone()
    }

    /// Requests a reading, and returns the one of GPU 0.
    pub fn read_gpu(&self) -> Reading {
        let from = self.count();
        let now = Clock::default().now();
        self.host.request_reading();
        let fresh = |report: &HostReport| match report {
            HostReport::Observed { uuid, observation } if uuid.ends_with("000") && observation.begun >= now => {
                Some(observation.reading.clone())
            }
            _ => None,
        };
        self.after(from, "a look", fresh).0
    }

    pub fn used(&self) -> GpuUsage {
        match self.read_gpu() {
            Reading::Used(used) => used,
            Reading::Unreadable(why) => panic!("GPU is unreadable: {why:?}"),
        }
    }

    pub fn unreadable(&self) -> Unreadable {
        match self.read_gpu() {
            Reading::Used(used) => panic!("GPU is readable: {used:?}"),
            Reading::Unreadable(why) => why,
        }
    }

    /// Waits until the GPU answers again.
    pub fn recovery(&self) {
        let good = |report: &HostReport| {
            matches!(report, HostReport::Observed { observation, .. } if matches!(observation.reading, Reading::Used(_)))
                .then_some(())
        };
        self.after(self.count(), "a GPU that answers again", good);
    }

    /// Waits until the members of a lease are exactly these pids.
    pub fn members(&self, lease: LeaseId, pids: &[u32]) -> usize {
        let mut wanted = pids.to_vec();
        wanted.sort_unstable();
        let exactly = |report: &HostReport| match report {
            HostReport::Members { lease: told, processes, .. } if *told == lease => {
                (processes.iter().map(|key| key.pid).collect::<Vec<_>>() == wanted).then_some(())
            }
            _ => None,
        };
        self.after(0, &format!("members {wanted:?} of {lease}"), exactly).1
    }

    pub fn gone(&self, lease: LeaseId) -> usize {
        self.after(0, &format!("{lease} gone"), |report| is_end_of(report, lease).then_some(())).1
    }

    pub fn is_gone(&self, lease: LeaseId) -> bool {
        self.reports().iter().any(|report| is_end_of(report, lease))
    }
}

/// Processes of a test. The test started the first, which started the others.
pub struct Tree {
    child: Child,
    pub pids: Vec<u32>,
}

impl Tree {
    pub fn sleeper() -> Tree {
        Tree::of(Command::new("sleep").arg("600").stdout(Stdio::null()), 0)
    }

    /// Runs a shell script that prints the pids of `printed` further processes.
    pub fn shell(script: &str, printed: usize) -> Tree {
        Tree::of(Command::new("sh").args(["-c", script]), printed)
    }

    pub fn of(command: &mut Command, printed: usize) -> Tree {
        if printed > 0 {
            command.stdout(Stdio::piped());
        }
        let mut child = command.spawn().unwrap();
        let mut pids = vec![child.id()];
        if let Some(out) = child.stdout.take() {
            let lines = BufReader::new(out).lines().take(printed);
            pids.extend(lines.map(|line| line.unwrap().trim().parse::<u32>().unwrap()));
        }
        Tree { child, pids }
    }

    pub fn root(&self) -> ProcKey {
        key(self.pids[0])
    }

    /// What was printed were no pids.
    pub fn without_printed(mut self) -> Tree {
        self.pids.truncate(1);
        self
    }

    /// Kills one of them. The root stays a zombie until the test is over.
    pub fn kill(&self, which: usize) {
        kill(self.pids[which]);
    }

    /// Waits until the first has ended by itself, and reaps it.
    pub fn wait(&mut self) {
        self.child.wait().unwrap();
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.pids[1..].iter().for_each(|pid| kill(*pid));
    }
}

fn kill(pid: u32) {
    let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL);
}

pub fn key(pid: u32) -> ProcKey {
    process::identify(pid).unwrap().key
}

/// A lease that no other test, and no other run of the tests, has a process of.
pub fn fresh_lease() -> LeaseId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    LeaseId(u64::from(std::process::id()) << 20 | NEXT.fetch_add(1, Ordering::Relaxed))
}

pub fn my_uid() -> u32 {
    rustix::process::getuid().as_raw()
}

/// This executable, which is also the worker.
pub fn exe() -> PathBuf {
    std::env::current_exe().unwrap()
}

/// A path that every user may reach, with nothing there yet; removed on drop.
pub struct Scratch {
    dir: tempfile::TempDir,
    name: &'static str,
}

impl Scratch {
    pub fn new(name: &'static str) -> Scratch {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        Scratch { dir, name }
    }

    pub fn holding(name: &'static str, bytes: &[u8]) -> Scratch {
        let scratch = Scratch::new(name);
        std::fs::write(scratch.path(), bytes).unwrap();
        scratch
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join(self.name)
    }
}

fn is_end_of(report: &HostReport, holder: LeaseId) -> bool {
    matches!(report, HostReport::HolderEnded { lease, .. } if *lease == holder)
}
