//! Audits of real processes: they are complete whatever a program does to its name, its parents or its files.

use crate::support::{Scratch, Tree, exe, key, my_uid};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use sublet_core::audit::Audit;
use sublet_core::ids::ProcKey;
use sublet_host::audit::{GpuDeviceFiles, PidfdRegistry, audit, descendants_in_cgroup, service_identity};
use sublet_host::process;

crate::tests![
    an_audit_has_the_origin_of_a_process,
    a_program_that_is_being_started_is_audited_completely,
    a_reparented_process_is_audited_with_its_new_parent,
    a_new_name_does_not_hide_the_executable,
    an_overwritten_command_line_is_audited_as_it_is_now,
    secrets_are_removed_from_the_audit,
    a_removed_executable_is_marked_as_deleted,
    an_executable_path_of_another_mount_namespace_is_marked,
    an_inherited_descriptor_counts,
    a_mapped_file_counts_without_a_descriptor,
    an_ended_first_thread_hides_nothing,
    another_name_does_not_hide_a_gpu_file,
    too_long_paths_and_many_files_do_not_hide_a_gpu_file,
    a_process_that_changes_its_cgroup_is_audited_there,
    descendants_in_other_cgroups_are_left_out,
    a_cgroup_that_cannot_be_shown_hides_no_descendants,
    unreadable_parts_are_listed,
    a_process_that_ended_is_gone,
    a_thread_has_no_audit,
    an_audit_survives_serialisation,
];

fn audited(pid: u32) -> Audit {
    audit(key(pid), &GpuDeviceFiles::default()).unwrap()
}

fn an_audit_has_the_origin_of_a_process() {
    let now_s = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let before = now_s();
    let dir = tempfile::tempdir().unwrap();
    let tree = Tree::of(Command::new("sleep").arg("600").current_dir(dir.path()), 0);
    let told = audited(tree.pids[0]);
    assert_eq!((told.process, told.uid, told.name.as_str()), (tree.root(), my_uid(), "sleep"));
    assert_eq!(told.command, ["sleep", "600"]);
    assert_eq!(told.cwd.as_deref(), Some(dir.path().canonicalize().unwrap().to_str().unwrap()));
    assert!(told.exe.as_deref().is_some_and(|exe| exe.starts_with('/')) && !told.exe_deleted);
    let found = service_identity(tree.pids[0]).unwrap();
    assert_eq!((found.uid, found.exe, found.unit, found.container), (told.uid, told.exe, told.unit, told.container));
    // A tick is ten milliseconds, and the wall clock may be moved by as little.
    assert!((before - 1..=now_s() + 1).contains(&told.started_s), "{} is not about {before}", told.started_s);
    let me = key(std::process::id());
    assert_eq!((told.ancestry[0].process, told.ancestry[0].uid), (me, Some(my_uid())));
    assert_eq!(told.ancestry[0].exe.as_deref().map(Path::new).and_then(Path::file_name), exe().file_name());
    assert_eq!(told.ancestry.last().unwrap().process.pid, 1, "{:?}", told.ancestry);
    assert_eq!((told.devices, told.unread), (vec![], Vec::<String>::new()));
    let ran = told.ran.unwrap();
    assert!(ran.io_bytes.is_some() && ran.peak_memory_bytes.is_some_and(|bytes| bytes > 0), "{ran:?}");
}

/// The start of a program is reported before the kernel has set its command line.
fn a_program_that_is_being_started_is_audited_completely() {
    for _ in 0..300 {
        let tree = Tree::of(Command::new("sleep").arg("600").current_dir("/"), 0);
        let told = audited(tree.pids[0]);
        assert_eq!((told.name.as_str(), told.command), ("sleep", vec!["sleep".to_owned(), "600".to_owned()]));
    }
}

/// A shell with a child in the background, under a shell that has ended.
fn a_reparented_process_is_audited_with_its_new_parent() {
    let mut tree = Tree::shell("setsid sleep 600 >/dev/null & echo $!", 1);
    let before = process::identify(tree.pids[1]).unwrap();
    tree.wait();
    let told = audited(tree.pids[1]);
    assert_eq!(told.process, before.key);
    assert!(told.ancestry.iter().all(|parent| parent.process.pid != tree.pids[0]), "{:?}", told.ancestry);
    assert!(!told.ancestry.is_empty());
}

fn a_new_name_does_not_hide_the_executable() {
    let script = "printf sshd > /proc/$$/comm; echo $$; read x";
    let tree = Tree::of(Command::new("sh").args(["-c", script]).stdin(Stdio::piped()), 1);
    let told = audited(tree.pids[0]);
    assert_eq!(told.name, "sshd");
    assert!(!told.exe.as_deref().unwrap().contains("sshd") && told.command[0] == "sh", "{told:?}");
}

fn an_overwritten_command_line_is_audited_as_it_is_now() {
    let tree = odd(&["disguise", "a-long-argument-that-makes-room"], 1);
    let told = audited(tree.pids[0]);
    assert_eq!(told.command, ["[kworker/0:1]"]);
    assert_eq!(told.exe.as_deref(), exe().to_str());
    assert!(told.is_same(&audited(tree.pids[0])).is_ok());
}

fn secrets_are_removed_from_the_audit() {
    let secret = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz12345678";
    let args = ["-c", "read x", "train.py", "--token", secret, "--hub=https://ann:pa55@h/m", "HF_TOKEN=abc", secret];
    let tree = Tree::of(Command::new("sh").args(args).env("HF_TOKEN", secret).stdin(Stdio::piped()), 0);
    let told = audited(tree.pids[0]);
    assert_eq!(told.command[3..], ["train.py", "--token", "***", "--hub=https://***@h/m", "HF_TOKEN=***", "***"]);
    let kept = serde_json::to_string(&told).unwrap();
    assert!(!kept.contains("hf_") && !kept.contains("pa55") && !kept.contains("abc"), "{kept}");
}

fn a_removed_executable_is_marked_as_deleted() {
    let (mut tree, path) = copied_sleep();
    let before = audited(tree.pids[0]);
    assert_eq!((before.exe.as_deref(), before.exe_deleted), (path.path().to_str(), false));
    std::fs::remove_file(path.path()).unwrap();
    let told = audited(tree.pids[0]);
    assert_eq!((told.exe.as_deref(), told.exe_deleted), (path.path().to_str(), true));
    assert_eq!(before.is_same(&told), Ok(()), "the process still runs what it ran");
    tree.kill(0);
    tree.wait();
}

/// A copy of a program that can be started at once. Another process makes it: a file that this one has open for
/// writing is for a moment also open in a child of another test.
fn copied(program: &Path) -> Scratch {
    let copy = Scratch::new("copy");
    assert!(Command::new("cp").arg(program).arg(copy.path()).status().unwrap().success());
    copy
}

/// A copy of `sleep`, running, and its file.
pub fn copied_sleep() -> (Tree, Scratch) {
    let copy = copied(Path::new("/bin/sleep"));
    (Tree::of(Command::new(copy.path()).arg("600"), 0), copy)
}

fn an_executable_path_of_another_mount_namespace_is_marked() {
    // `sleep` is mounted over `true` for this process only; its own `sleep` is the host's.
    for (program, is_inside) in [("/bin/true", true), ("/bin/sleep", false)] {
        let script = format!("mount --bind /bin/sleep /bin/true && echo 0 && exec {program} 600");
        let mut command = Command::new("unshare");
        let tree = Tree::of(command.args(["-rm", "sh", "-c", &script]), 1);
        if tree.pids.len() == 1 {
            return eprintln!("skipped: this user may have no mounts of its own here");
        }
        let tree = tree.without_printed();
        while std::fs::read(format!("/proc/{}/cmdline", tree.pids[0])).unwrap()
            != format!("{program}\0600\0").as_bytes()
        {
            std::thread::yield_now();
        }
        let told = audited(tree.pids[0]);
        assert_eq!(told.exe_inside, is_inside, "{told:?}");
    }
    assert!(!audited(std::process::id()).exe_inside);
}

fn an_inherited_descriptor_counts() {
    let gpu_file = Scratch::holding("card", b"cards");
    let devices = GpuDeviceFiles::new([gpu_file.path()]);
    // The shell opens it, its child inherits it, and neither names it.
    let script =
        format!("exec 7<>'{}'; sleep 600 >/dev/null & echo $!; exec 7>&-; echo 0; wait", gpu_file.path().display());
    let mut tree = Tree::shell(&script, 2);
    tree.pids.truncate(2);
    let told = |pid| audit(key(pid), &devices).unwrap().devices;
    assert_eq!(told(tree.pids[1]), [gpu_file.path().to_str().unwrap()]);
    assert_eq!(told(tree.pids[0]), Vec::<String>::new(), "it closed the file");
    assert_eq!(audited(tree.pids[1]).devices, Vec::<String>::new(), "only files that are GPUs count");
}

fn a_mapped_file_counts_without_a_descriptor() {
    let gpu_file = Scratch::holding("card", &[1; 4096]);
    let tree = odd(&["map", gpu_file.path().to_str().unwrap()], 1);
    let devices = GpuDeviceFiles::new([gpu_file.path()]);
    let told = audit(tree.root(), &devices).unwrap();
    assert_eq!(told.devices, [gpu_file.path().to_str().unwrap()]);
    let open = std::fs::read_dir(format!("/proc/{}/fd", tree.pids[0])).unwrap().flatten();
    assert!(open.filter_map(|fd| std::fs::read_link(fd.path()).ok()).all(|link| link != gpu_file.path()));
}

fn an_ended_first_thread_hides_nothing() {
    let gpu_file = Scratch::holding("card", b"cards");
    let devices = GpuDeviceFiles::new([gpu_file.path().to_owned()]);
    let tree = odd(&["leaderless", gpu_file.path().to_str().unwrap()], 1);
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", tree.pids[0])).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next()
    };
    while state() != Some('Z') {
        std::thread::yield_now();
    }
    let told = audit(tree.root(), &devices).unwrap();
    let path = exe();
    assert_eq!((told.exe.as_deref(), told.command[2].as_str()), (path.to_str(), "leaderless"), "{told:?}");
    assert_eq!(told.devices, [gpu_file.path().to_str().unwrap()], "{told:?}");
    let (mut registry, root) = (PidfdRegistry::new(devices), tree.root());
    registry.register(root).unwrap();
    registry.signal(root, 9).unwrap();
    while process::is_running(root) {
        std::thread::yield_now();
    }
}

fn another_name_does_not_hide_a_gpu_file() {
    let gpu_file = Scratch::holding("card", b"cards");
    let alias = Scratch::new("alias");
    std::fs::hard_link(gpu_file.path(), alias.path()).unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(alias.path()).unwrap();
    let tree = Tree::of(Command::new("sleep").arg("600").stdin(Stdio::from(file)), 0);
    // Private GPUs have no name at all: they are passed as a descriptor of another process.
    let held = std::fs::File::open(gpu_file.path()).unwrap();
    let place = format!("/proc/{}/fd/{}", std::process::id(), held.as_raw_fd());
    for given in [gpu_file.path().to_str().unwrap(), &place] {
        assert_eq!(audit(tree.root(), &GpuDeviceFiles::new([given.into()])).unwrap().devices, [given]);
    }
}

fn too_long_paths_and_many_files_do_not_hide_a_gpu_file() {
    let (folder, gpu_file) = (tempfile::tempdir().unwrap(), Scratch::holding("card", b"cards"));
    let (place, name) = (folder.path().to_str().unwrap(), gpu_file.path());
    let devices = GpuDeviceFiles::new([name.clone()]);
    let tree = odd(&["hide", place, name.to_str().unwrap(), "0"], 1);
    let told = audit(tree.root(), &devices).unwrap();
    assert_eq!((told.devices, told.crowded), (vec![name.to_str().unwrap().to_owned()], false));
    drop(tree);
    let folder = tempfile::tempdir().unwrap();
    let tree = odd(&["hide", folder.path().to_str().unwrap(), name.to_str().unwrap(), "65600"], 1);
    let told = audit(tree.root(), &devices).unwrap();
    if !told.crowded {
        return eprintln!("skipped: nobody may have so many files open here");
    }
    assert!(told.unread.contains(&"which files it has open: it has too many".to_owned()), "{:?}", told.unread);
}

fn a_process_that_changes_its_cgroup_is_audited_there() {
    let Some(cgroup) = crate::holders::OwnCgroup::make(crate::support::fresh_lease()) else {
        eprintln!("skipped: this user may not make a cgroup here; moves are tested by the parser alone");
        return;
    };
    let tree = Tree::sleeper();
    let before = audited(tree.pids[0]);
    cgroup.put(tree.pids[0]);
    let told = audited(tree.pids[0]);
    assert_ne!(before.cgroup, told.cgroup);
    assert_eq!(before.is_same(&told), Err("it is in another cgroup by now"));
}

fn descendants_in_other_cgroups_are_left_out() {
    let tree = Tree::shell(crate::holders::THREE, 2);
    let told = audited(tree.pids[0]);
    let pids = |cgroup: &str| {
        let found = descendants_in_cgroup(tree.root(), cgroup).unwrap();
        assert!(found.iter().all(|process| process::is_running(*process)));
        let mut pids: Vec<u32> = found.iter().map(|process| process.pid).collect();
        pids.sort_unstable();
        pids
    };
    let mut all = tree.pids.clone();
    all.sort_unstable();
    assert_eq!(pids(&told.cgroup), all);
    assert_eq!(pids("/no/such"), Vec::<u32>::new());
    assert!(descendants_in_cgroup(ProcKey { start: 1, ..tree.root() }, "/").unwrap_err().is_gone());
    if let Some(cgroup) = crate::holders::OwnCgroup::make(crate::support::fresh_lease()) {
        cgroup.put(tree.pids[1]);
        all.retain(|pid| *pid != tree.pids[1]);
        assert_eq!(pids(&told.cgroup), all, "who is below somebody that moved is still a descendant");
        assert_eq!(pids(&audited(tree.pids[1]).cgroup), [tree.pids[1]]);
    }
}

fn a_cgroup_that_cannot_be_shown_hides_no_descendants() {
    let Some(cgroup) = crate::holders::OwnCgroup::named(&format!("odd\u{1}{}", std::process::id())) else {
        return eprintln!("skipped: this user may not make a cgroup here");
    };
    let tree = Tree::shell(crate::holders::THREE, 2);
    tree.pids.iter().for_each(|pid| cgroup.put(*pid));
    let told = audited(tree.pids[0]);
    assert!(told.cgroup.contains("odd?"), "{}", told.cgroup);
    assert_eq!(descendants_in_cgroup(tree.root(), &told.cgroup).unwrap().len(), 3);
}

/// Root may read everything, so another user reads a process of root's; any other user reads the first process.
fn unreadable_parts_are_listed() {
    let told: Audit = if my_uid() == 0 {
        let tree = Tree::sleeper();
        let copy = copied(&exe());
        let mut command = Command::new(copy.path());
        command.args(["odd", "audit", &tree.pids[0].to_string()]).uid(65_534).gid(65_534).current_dir("/");
        serde_json::from_slice(&command.output().unwrap().stdout).unwrap()
    } else {
        audited(1)
    };
    assert_eq!((told.uid, &told.exe, &told.cwd, told.devices.len()), (0, &None, &None, 0));
    for sentence in ["its executable: not permitted", "which files it has open: not permitted"] {
        assert!(told.unread.iter().any(|unread| unread == sentence), "{:?}", told.unread);
    }
    assert!(told.unread.iter().all(|unread| !unread.contains(&told.process.pid.to_string())), "{:?}", told.unread);
    assert!(!told.name.is_empty() && !told.cgroup.is_empty());
    assert!(told.is_same(&told).is_err(), "what it runs is not known");
}

fn a_process_that_ended_is_gone() {
    let mut tree = Tree::sleeper();
    let root = tree.root();
    assert!(audit(ProcKey { start: root.start - 1, ..root }, &GpuDeviceFiles::default()).unwrap_err().is_gone());
    tree.kill(0);
    while process::is_running(root) {
        std::thread::yield_now();
    }
    assert!(audit(root, &GpuDeviceFiles::default()).unwrap_err().is_gone(), "and not yet reaped");
    assert!(service_identity(root.pid).is_err());
    tree.wait();
    assert!(audit(root, &GpuDeviceFiles::default()).unwrap_err().is_gone());
}

fn a_thread_has_no_audit() {
    let told = std::thread::spawn(|| {
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        // For a thread's id `/proc` shows the thread's own start time.
        let line = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap();
        let start = line.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
        audit(ProcKey { pid: tid, start }, &GpuDeviceFiles::default())
    });
    assert!(matches!(told.join().unwrap(), Err(process::ProcessError::Thread { .. })));
}

fn an_audit_survives_serialisation() {
    let told = audited(std::process::id());
    let text = serde_json::to_string(&told).unwrap();
    assert_eq!(serde_json::from_str::<Audit>(&text).unwrap(), told);
    let least = r#"{"process":{"pid":7,"start":9},"uid":1,"name":"a","cgroup":"/","session":7,"started_s":5}"#;
    let read: Audit = serde_json::from_str(least).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), least, "what is not there takes no room");
}

/// This executable as a program that behaves oddly, once it has reported that it is ready.
pub fn odd(args: &[&str], printed: usize) -> Tree {
    Tree::of(Command::new(exe()).arg("odd").args(args).stdin(Stdio::piped()), printed).without_printed()
}

/// The system call that ends one thread, without the cleanup of the C library.
const EXIT: std::ffi::c_long = if cfg!(target_arch = "x86_64") { 60 } else { 93 };
const SET_MM: std::ffi::c_int = 35;
const SET_MM_MAP: std::ffi::c_ulong = 14;

unsafe extern "C" {
    fn syscall(number: std::ffi::c_long, ...) -> std::ffi::c_long;
    fn prctl(option: std::ffi::c_int, ...) -> std::ffi::c_int;
    fn setresuid(real: u32, effective: u32, saved: u32) -> std::ffi::c_int;
    fn sbrk(more: isize) -> *mut std::ffi::c_void;
}

/// `odd WORD …`: does what the word says, prints a number, and waits for the end of its input.
pub fn run(args: &[String]) -> ExitCode {
    match args[0].as_str() {
        "disguise" => overwrite_command_line("[kworker/0:1]"),
        "map" => {
            let file = std::fs::OpenOptions::new().read(true).write(true).open(&args[1]).unwrap();
            let (access, flags) =
                (rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE, rustix::mm::MapFlags::SHARED);
            // SAFETY: a new mapping at an address that the kernel chooses; nothing reads it, and it stays to the end.
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, access, flags, &file, 0) }.unwrap();
        }
        "audit" => {
            let pid = args[1].parse().unwrap();
            println!("{}", serde_json::to_string(&audited(pid)).unwrap());
            return ExitCode::SUCCESS;
        }
        "leaderless" => {
            let file = std::fs::File::open(&args[1]).unwrap();
            std::thread::spawn(move || {
                println!("0");
                std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
                drop(file);
            });
            // SAFETY: it ends this thread alone; nothing that another uses is on its stack.
            unsafe { syscall(EXIT, 0) };
        }
        "restless" => {
            let gpu_file = std::fs::File::open(&args[1]).unwrap();
            let pause = Duration::from_micros(args[2].parse().unwrap());
            std::thread::spawn(move || overwrite_addresses(pause, &gpu_file));
        }
        "changeling" => {
            let gpu_file = std::fs::File::open(&args[1]).unwrap();
            let pause = Duration::from_micros(args[3].parse().unwrap());
            let file = |number: u32| std::fs::File::create_new(Path::new(&args[2]).join(number.to_string())).unwrap();
            let files: Vec<_> = (0..64).map(file).collect();
            let files: Vec<_> = files.into_iter().map(|file| reopened(&file)).collect();
            leave_own_file();
            // SAFETY: a namespace of its own, before there is a second thread. Where that is refused, nothing changes.
            unsafe { libc::unshare(libc::CLONE_NEWUSER) };
            let restless = args[4] == "restless";
            std::thread::spawn(move || misreport_executable(pause, &files, restless, &gpu_file));
        }
        "deep" => {
            std::env::set_current_dir(&args[1]).unwrap();
            (0..25).for_each(|_| go_deeper());
            assert!(std::fs::copy("/bin/sleep", "sleep").is_ok());
            println!("0");
            panic!("{}", Command::new("./sleep").arg("600").exec());
        }
        "hop" => {
            std::thread::spawn(|| {
                for step in 0.. {
                    hop(1000 + step % 1000);
                }
            });
        }
        "hide" => {
            std::env::set_current_dir(&args[1]).unwrap();
            (0..25).for_each(|_| go_deeper());
            let below = std::fs::File::create("below").unwrap();
            let many: u64 = args[3].parse().unwrap();
            let limit = rustix::process::Rlimit { current: Some(many + 100), maximum: Some(many + 100) };
            // A user that may not have this many gets fewer.
            let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
            let mut more: Vec<_> = (0..many).map_while(|_| below.try_clone().ok()).collect();
            more.pop();
            std::mem::forget((below, more, std::fs::File::open(&args[2]).unwrap()));
        }
        "reuse" => return crate::pidfd_registry::reuse(),
        other => panic!("`{other}` is nothing odd"),
    }
    println!("0");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    ExitCode::SUCCESS
}

/// Changes the real user only: with the other ids still root's, the process can change to the next one, too.
fn hop(uid: u32) {
    let same = u32::MAX;
    // SAFETY: it takes three numbers. The first thread is told as the process, so all of them hop.
    unsafe { setresuid(uid, same, same) };
}

/// Changes into a folder with a long name: twenty of them make a path longer than the kernel reports.
fn go_deeper() {
    let name = "d".repeat(200);
    std::fs::create_dir(&name).unwrap();
    std::env::set_current_dir(&name).unwrap();
}

/// The same file, for reading: the kernel does not accept a file open for writing as the executable.
fn reopened(file: &std::fs::File) -> std::fs::File {
    use std::os::fd::AsRawFd;
    std::fs::set_permissions(
        format!("/proc/self/fd/{}", file.as_raw_fd()),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    std::fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()
}

/// Replaces all mappings of its own file by copies: a process with none of them mapped may claim to run another file.
fn leave_own_file() {
    let own = std::fs::read_link("/proc/self/exe").unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    for line in maps.lines().filter(|line| line.ends_with(own.to_str().unwrap())) {
        let (range, access) = (line.split(' ').next().unwrap(), line.split(' ').nth(1).unwrap());
        let (from, to) = range.split_once('-').unwrap();
        let [from, to] = [from, to].map(|place| usize::from_str_radix(place, 16).unwrap());
        let bits = [("r", libc::PROT_READ), ("w", libc::PROT_WRITE), ("x", libc::PROT_EXEC)];
        let access = bits.iter().filter(|(letter, _)| access.contains(letter)).fold(0, |all, (_, bit)| all | bit);
        let bytes = to - from;
        // SAFETY: a copy of what is there, byte for byte, takes its place at once; code that runs in it does not
        // notice.
        unsafe {
            let (both, own) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let copy = libc::mmap(std::ptr::null_mut(), bytes, both, own, -1, 0);
            assert_ne!(copy, libc::MAP_FAILED);
            std::ptr::copy_nonoverlapping(from as *const u8, copy.cast(), bytes);
            assert_eq!(libc::mprotect(copy, bytes, access), 0);
            let put = libc::mremap(copy, bytes, bytes, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, from);
            assert_eq!(put as usize, from);
        }
    }
}

/// Claims to run one file, then the next, again and again.
fn misreport_executable(pause: Duration, files: &[std::fs::File], restless: bool, _gpu_file: &std::fs::File) {
    use std::os::fd::AsRawFd;
    let mut map = own_addresses();
    let stack = map[6];
    for (step, file) in (0..).zip(files.iter().cycle()) {
        map[6] = if restless { stack - step % 65_536 } else { stack };
        map[12] = u64::from(file.as_raw_fd() as u32) << 32;
        // SAFETY: the kernel reads as many bytes as it is told; what it keeps is only shown to others.
        unsafe { prctl(SET_MM, SET_MM_MAP, map.as_ptr(), size_of_val(&map), 0_u64) };
        std::thread::sleep(pause);
    }
}

/// Changes the address of the stack again and again, as a tool that restores programs does.
fn overwrite_addresses(pause: Duration, _gpu_file: &std::fs::File) {
    let mut map = own_addresses();
    let stack = map[6];
    for step in 0.. {
        map[6] = stack - step % 65_536;
        // SAFETY: the kernel reads as many bytes as it is told; what it keeps is only shown to others.
        unsafe { prctl(SET_MM, SET_MM_MAP, map.as_ptr(), size_of_val(&map), 0_u64) };
        std::thread::sleep(pause);
    }
}

/// The addresses of this program in memory, as in `struct prctl_mm_map`.
fn own_addresses() -> [u64; 13] {
    let fields = stat_fields();
    let field = |number: usize| fields[number - 3];
    // SAFETY: it tells where the heap ends, and moves nothing.
    let heap_end = unsafe { sbrk(0) } as u64;
    let [data, data_end, heap, args, args_end, env, env_end] = [45, 46, 47, 48, 49, 50, 51].map(field);
    // The last word is no auxiliary vector, and no other executable.
    let no_file = u64::from(u32::MAX) << 32;
    let stack = field(28);
    [field(26), field(27), data, data_end, heap, heap_end, stack, args, args_end, env, env_end, 0, no_file]
}

fn stat_fields() -> Vec<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect()
}

/// Overwrites the words that the kernel shows, as `setproctitle` does.
fn overwrite_command_line(title: &str) {
    let fields = stat_fields();
    let (begin, end) = (fields[48 - 3], fields[49 - 3]);
    let mut memory = std::fs::OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
    memory.seek(SeekFrom::Start(begin)).unwrap();
    let mut text = title.as_bytes().to_vec();
    text.resize((end - begin) as usize, 0);
    memory.write_all(&text).unwrap();
}
