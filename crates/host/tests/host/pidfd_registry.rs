//! Signals through registry: each goes to the process that was audited, or is not sent.

use crate::audit::{copied_sleep, odd};
use crate::holders::OwnCgroup;
use crate::support::{Scratch, Tree, exe, fresh_lease, key, my_uid};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;
use sublet_core::ids::ProcKey;
use sublet_host::audit::{GpuDeviceFiles, PidfdRegistry, SignalRefusal};
use sublet_host::process;

crate::tests![
    a_signal_reaches_a_registered_process,
    a_process_that_was_not_audited_gets_no_signal,
    an_ended_process_is_gone,
    another_executable_is_refused,
    the_same_executable_started_anew_is_refused,
    a_process_that_overwrites_its_memory_addresses_is_the_same,
    a_process_that_misreports_its_executable_is_the_same,
    another_cgroup_is_refused,
    a_new_name_or_a_removed_executable_prevents_no_signal,
    a_process_that_renames_its_executable_is_the_same,
    an_executable_with_a_too_long_path_prevents_no_signal,
    a_process_that_changed_its_user_is_the_same,
    pid_1_this_process_and_its_ancestors_get_no_signal,
    kernel_threads_get_no_signal,
    a_reused_pid_gets_no_signal,
];

fn registry() -> PidfdRegistry {
    PidfdRegistry::new(GpuDeviceFiles::default())
}

/// A shell that runs a script, and accepts input.
struct Shell(Child);

impl Shell {
    fn new(script: &str) -> Shell {
        Shell(Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap())
    }

    fn key(&self) -> ProcKey {
        key(self.0.id())
    }

    fn write_line(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    fn command(&self) -> String {
        let line = std::fs::read(format!("/proc/{}/cmdline", self.0.id())).unwrap();
        String::from_utf8_lossy(&line).replace('\0', " ")
    }

    fn await_command(&self, wanted: &str) {
        while !self.command().starts_with(wanted) {
            std::thread::yield_now();
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn a_signal_reaches_a_registered_process() {
    let mut shell = Shell::new("exec sleep 600");
    shell.await_command("sleep 600");
    let mut registry = registry();
    let audit = registry.register(shell.key()).unwrap();
    assert_eq!(audit.name, "sleep");
    registry.signal(shell.key(), 15).unwrap();
    assert_eq!(shell.0.wait().unwrap().signal(), Some(15));
}

fn a_process_that_was_not_audited_gets_no_signal() {
    let mut tree = Tree::sleeper();
    let mut registry = registry();
    assert!(matches!(registry.signal(tree.root(), 9), Err(SignalRefusal::NotAudited(_))));
    registry.register(tree.root()).unwrap();
    assert!(matches!(registry.signal(tree.root(), 0), Err(SignalRefusal::NoSuchSignal(0))));
    assert!(matches!(registry.signal(tree.root(), 200), Err(SignalRefusal::NoSuchSignal(200))));
    let earlier = ProcKey { start: tree.root().start - 1, ..tree.root() };
    assert!(matches!(registry.signal(earlier, 9), Err(SignalRefusal::NotAudited(_))));
    assert!(registry.register(earlier).unwrap_err().is_gone());
    registry.forget(tree.root());
    assert!(matches!(registry.signal(tree.root(), 9), Err(SignalRefusal::NotAudited(_))));
    assert!(process::is_running(tree.root()));
    tree.kill(0);
    tree.wait();
}

fn an_ended_process_is_gone() {
    let mut tree = Tree::sleeper();
    let root = tree.root();
    let mut registry = registry();
    registry.register(root).unwrap();
    tree.kill(0);
    while process::is_running(root) {
        std::thread::yield_now();
    }
    assert!(registry.signal(root, 15).unwrap_err().is_gone(), "and not yet reaped");
    tree.wait();
    assert!(registry.signal(root, 15).unwrap_err().is_gone());
    assert!(registry.register(root).unwrap_err().is_gone());
}

fn another_executable_is_refused() {
    let mut shell = Shell::new("read x; exec sleep 600");
    let mut registry = registry();
    let process = shell.key();
    registry.register(process).unwrap();
    shell.write_line();
    shell.await_command("sleep 600");
    assert_eq!(shell.key(), process, "the kernel calls it the same process");
    let refused = registry.signal(process, 9).unwrap_err();
    assert!(matches!(refused, SignalRefusal::Changed("it runs another executable by now")), "{refused:?}");
    assert_eq!(shell.0.try_wait().unwrap(), None);
    // The process can be audited and kept again.
    registry.forget(process);
    registry.register(process).unwrap();
    registry.signal(process, 9).unwrap();
    assert_eq!(shell.0.wait().unwrap().signal(), Some(9));
}

fn the_same_executable_started_anew_is_refused() {
    let mut shell = Shell::new("read x; exec sh -c 'echo second >/dev/null; read y'");
    let mut registry = registry();
    let process = shell.key();
    registry.register(process).unwrap();
    shell.write_line();
    while shell.command().contains("exec") {
        std::thread::yield_now();
    }
    let refused = registry.signal(process, 9).unwrap_err();
    assert!(matches!(refused, SignalRefusal::Changed("it started its program anew since")), "{refused:?}");
    assert_eq!(shell.0.try_wait().unwrap(), None);
}

fn a_process_that_overwrites_its_memory_addresses_is_the_same() {
    let gpu_file = Scratch::holding("card", b"cards");
    for pause_us in ["0", "20000"] {
        let tree = odd(&["restless", gpu_file.path().to_str().unwrap(), pause_us], 1);
        let root = tree.root();
        let stack = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", root.pid)).unwrap();
            stat.rsplit_once(") ").unwrap().1.split(' ').nth(28 - 3).map(str::to_owned)
        };
        let before = stack();
        std::thread::sleep(Duration::from_millis(100));
        if stack() == before {
            return eprintln!("skipped: this kernel lets nobody write over its places in memory");
        }
        let mut registry = PidfdRegistry::new(GpuDeviceFiles::new([gpu_file.path().to_owned()]));
        registry.register(root).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        registry.signal(root, 9).unwrap();
    }
}

/// In a user namespace of its own every process may claim that, and keeps what it has on its GPUs.
fn a_process_that_misreports_its_executable_is_the_same() {
    let gpu_file = Scratch::holding("card", b"cards");
    for (pause_us, places) in [("0", "still"), ("20000", "still"), ("0", "restless")] {
        let files = tempfile::tempdir().unwrap();
        let (gpu_file, files) = (gpu_file.path(), files.path());
        let tree = odd(&["changeling", gpu_file.to_str().unwrap(), files.to_str().unwrap(), pause_us, places], 1);
        let root = tree.root();
        let exe = || std::fs::read_link(format!("/proc/{}/exe", root.pid)).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        if !exe().starts_with(files) {
            return eprintln!("skipped: this kernel lets this user not say that it runs another file");
        }
        let mut registry = PidfdRegistry::new(GpuDeviceFiles::new([gpu_file.to_owned()]));
        registry.register(root).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        registry.signal(root, 9).unwrap();
    }
}

fn another_cgroup_is_refused() {
    let Some(cgroup) = OwnCgroup::make(fresh_lease()) else {
        eprintln!("skipped: this user may not make a cgroup here");
        return;
    };
    let tree = Tree::sleeper();
    let mut registry = registry();
    registry.register(tree.root()).unwrap();
    cgroup.put(tree.pids[0]);
    let refused = registry.signal(tree.root(), 9).unwrap_err();
    assert!(matches!(refused, SignalRefusal::Changed("it is in another cgroup by now")), "{refused:?}");
    assert!(process::is_running(tree.root()));
}

fn a_new_name_or_a_removed_executable_prevents_no_signal() {
    let mut registry = registry();
    let mut shell = Shell::new("read x; printf sshd > /proc/$$/comm; read y");
    registry.register(shell.key()).unwrap();
    shell.write_line();
    while process::identify(shell.0.id()).unwrap().name != "sshd" {
        std::thread::yield_now();
    }
    registry.signal(shell.key(), 15).unwrap();
    assert_eq!(shell.0.wait().unwrap().signal(), Some(15));

    let (mut tree, path) = copied_sleep();
    registry.register(tree.root()).unwrap();
    std::fs::remove_file(path.path()).unwrap();
    registry.signal(tree.root(), 15).unwrap();
    tree.wait();
}

fn a_process_that_renames_its_executable_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    assert!(Command::new("cp").arg("/bin/sleep").arg(&one).status().unwrap().success());
    let mut tree = Tree::of(Command::new(&one).arg("600"), 0);
    let mut registry = registry();
    let before = registry.register(tree.root()).unwrap().exe.clone();
    assert_eq!(before.as_deref(), one.to_str());
    std::fs::rename(&one, &other).unwrap();
    registry.signal(tree.root(), 15).unwrap();
    tree.wait();
}

fn an_executable_with_a_too_long_path_prevents_no_signal() {
    let folder = tempfile::tempdir().unwrap();
    let mut tree = odd(&["deep", folder.path().to_str().unwrap()], 1);
    while !std::fs::read(format!("/proc/{}/cmdline", tree.pids[0])).unwrap().starts_with(b"./sleep") {
        std::thread::yield_now();
    }
    let mut registry = registry();
    let told = registry.register(tree.root()).unwrap();
    assert_eq!((told.exe.as_deref(), told.is_of_known_program()), (None, true));
    assert!(told.unread.iter().any(|unread| unread == "its executable: its path is too long"), "{:?}", told.unread);
    registry.signal(tree.root(), 15).unwrap();
    tree.wait();
}

/// As root does in a namespace of its own with many users, again and again.
fn a_process_that_changed_its_user_is_the_same() {
    if my_uid() != 0 {
        return eprintln!("skipped: only root becomes somebody else");
    }
    let mut tree = odd(&["hop"], 1);
    let uid = || process::identify(tree.pids[0]).unwrap().uid;
    let mut registry = registry();
    let before = registry.register(tree.root()).unwrap().uid;
    while uid() == before {
        std::thread::yield_now();
    }
    let mut then = None;
    let sent = registry.signal_if(tree.root(), 15, |now, send| {
        then = Some(now.uid);
        send()
    });
    assert!(sent.is_ok() && then.is_some_and(|then| (1000..2000).contains(&then)), "{sent:?}, {then:?}");
    tree.wait();
}

fn pid_1_this_process_and_its_ancestors_get_no_signal() {
    let mut registry = registry();
    let me = key(std::process::id());
    registry.register(me).unwrap();
    assert!(matches!(registry.signal(me, 15), Err(SignalRefusal::Ourselves)));
    let parents = process::ancestry(me.pid);
    for parent in &parents {
        let _ = registry.register(*parent);
        let refused = registry.signal(*parent, 15).unwrap_err();
        assert!(matches!(refused, SignalRefusal::First | SignalRefusal::Ancestor), "{parent}: {refused:?}");
    }
    assert!(!parents.is_empty());
    let first = ProcKey { pid: 1, start: parents.last().map_or(0, |parent| parent.start) };
    assert!(matches!(registry.signal(first, 15), Err(SignalRefusal::First)));
}

fn kernel_threads_get_no_signal() {
    // Those that have no command line and no memory; a container sees none of them.
    let is_kernel = |pid: &u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        text.contains("\nKthread:\t1\n") || (*pid == 2 && text.starts_with("Name:\tkthreadd\n"))
    };
    let Some(pid) = process::all_pids().unwrap().into_iter().find(is_kernel) else {
        eprintln!("skipped: the kernel's own threads are not to be seen from here");
        return;
    };
    let mut registry = registry();
    let audit = registry.register(key(pid)).unwrap();
    assert_eq!((&audit.exe, audit.command.len()), (&None, 0));
    let refused = registry.signal(key(pid), 15).unwrap_err();
    assert!(matches!(refused, SignalRefusal::Kernel), "{refused:?}");
}

/// In a namespace of its own a process can choose the next pid. Without one this test fails: a host with enforcement
/// must have run it once.
fn a_reused_pid_gets_no_signal() {
    let mut said = String::new();
    for how in ["-rpf", "-pf"] {
        let mut command = Command::new("unshare");
        command.args([how, "--mount-proc", "--kill-child"]).arg(exe()).args(["odd", "reuse"]);
        match command.output() {
            Ok(output) if output.status.success() => return,
            Ok(output) => said.push_str(&String::from_utf8_lossy(&output.stderr)),
            Err(error) => said.push_str(&error.to_string()),
        }
    }
    panic!("a process number could not be reused in a namespace of this test's own, or it did harm: {said}");
}

/// `odd reuse`, as the first process of a namespace: two sleepers with one pid, the second right after the first,
/// until both also started in the same tick.
pub fn reuse() -> ExitCode {
    let (mut later, mut same) = (0, 0);
    for attempt in 0.. {
        assert!(attempt < 500, "of {later} reused numbers none was reused within a tick");
        let mut registry = registry();
        let mut first = Command::new("sleep").arg("600").spawn().unwrap();
        let audited = key(first.id());
        registry.register(audited).unwrap();
        first.kill().unwrap();
        first.wait().unwrap();
        if later == 0 {
            std::thread::sleep(Duration::from_millis(30)); // another tick
        }
        std::fs::write("/proc/sys/kernel/ns_last_pid", (audited.pid - 1).to_string()).unwrap();
        let mut second = Command::new("sleep").arg("600").spawn().unwrap();
        assert_eq!(second.id(), audited.pid, "the number was not reused");
        if key(second.id()) == audited {
            same += 1
        } else {
            later += 1
        }
        let refused = registry.signal(audited, 9).unwrap_err();
        assert!(refused.is_gone(), "{refused:?}");
        let harmed = second.try_wait().unwrap();
        assert_eq!(harmed, None, "a process that was never audited got the signal");
        second.kill().unwrap();
        second.wait().unwrap();
        if later > 0 && same > 0 {
            break;
        }
    }
    ExitCode::SUCCESS
}
