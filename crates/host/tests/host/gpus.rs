//! GPUs through a real worker process.

use crate::support::{NEVER, OFTEN, Rig, Tree, exe};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use sublet_core::reading::{GpuUsage, Resident, Unreadable};
use sublet_core::units::Bytes;
use sublet_host::{GpuListError, GpuListErrorKind, HostReport, process};

crate::tests![
    scripted_gpus_are_listed_once_and_empty,
    a_process_on_a_gpu_is_read_with_its_bytes,
    a_dead_process_is_left_out,
    a_hung_worker_makes_the_gpu_unreadable_until_it_is_replaced,
    a_crashed_worker_makes_the_gpu_unreadable_until_it_is_replaced,
    a_bad_script_is_an_unreadable_gpu,
    faults_of_the_driver_are_distinguished,
    unknown_bytes_are_not_zero_bytes,
    requests_for_readings_are_merged,
    a_requested_reading_begins_after_the_request,
    a_missing_driver_is_reported_with_a_remedy,
    a_worker_that_cannot_start_is_reported,
    dropping_the_host_ends_the_worker,
    a_worker_ends_when_its_stdin_closes,
    a_worker_refuses_wrong_arguments,
];

fn scripted_gpus_are_listed_once_and_empty() {
    let rig = Rig::with("scripted:2x24GiB", |settings, _| settings.period = OFTEN);
    let gpu_list = rig.until("the GPUs", gpu_list);
    let told: Vec<_> =
        gpu_list.iter().map(|c| (c.index, c.uuid.as_str(), c.name.as_str(), c.total, c.context)).collect();
    let (total, context) = (Bytes::gib(24), Some(Bytes::mib(300)));
    assert_eq!(
        told,
        [
            (0, "GPU-5c219700-0000-4000-8000-000000000000", "Scripted 24GiB", total, context),
            (1, "GPU-5c219700-0000-4000-8000-000000000001", "Scripted 24GiB", total, context),
        ]
    );
    assert_eq!(rig.used(), GpuUsage { free: total, processes: Vec::new(), coarse: false });
    rig.read_gpu();
    assert_eq!(rig.reports().iter().filter_map(gpu_list_ref).count(), 1);
}

fn a_process_on_a_gpu_is_read_with_its_bytes() {
    let rig = Rig::new(NEVER);
    let tree = Tree::sleeper();
    let pid = tree.pids[0];
    rig.script(&format!(
        r#"{{"cards":[{{"index":0,"processes":[{{"pid":{pid},"bytes":1073741824,"graphics":true}}],"other_bytes":1048576}}]}}"#
    ));
    let resident = Resident { process: tree.root(), bytes: Some(Bytes::gib(1)), only_draws: true };
    let free = Bytes::gib(24).less(Bytes::gib(1) + Bytes::mib(1));
    assert_eq!(rig.used(), GpuUsage { free, processes: vec![resident], coarse: false });
}

fn a_dead_process_is_left_out() {
    let rig = Rig::new(NEVER);
    let tree = Tree::sleeper();
    rig.script(&script_with_process(tree.pids[0], "1073741824"));
    assert_eq!(rig.used().free, Bytes::gib(23));
    let root = tree.root();
    tree.kill(0);
    while process::is_running(root) {
        std::thread::yield_now();
    }
    assert_eq!(rig.used(), GpuUsage { free: Bytes::gib(24), processes: Vec::new(), coarse: false });
}

fn a_hung_worker_makes_the_gpu_unreadable_until_it_is_replaced() {
    breaks_and_recovers("hang");
}

fn a_crashed_worker_makes_the_gpu_unreadable_until_it_is_replaced() {
    breaks_and_recovers("crash");
}

fn breaks_and_recovers(fault: &str) {
    let rig = Rig::new(OFTEN);
    rig.used();
    rig.script(&format!(r#"{{"cards":[{{"index":0,"fault":"{fault}"}}]}}"#));
    assert_eq!(rig.unreadable(), Unreadable::NoAnswer);
    rig.script("{}");
    rig.recovery();
    assert_eq!(rig.used().free, Bytes::gib(24));
}

fn a_bad_script_is_an_unreadable_gpu() {
    let rig = Rig::new(NEVER);
    for (script, says) in [
        ("{\"cards\":[{", "EOF"),
        (r#"{"cards":[{"index":0,"surprise":1}]}"#, "surprise"),
        (r#"{"cards":[{"index":7}]}"#, "has a GPU 7"),
        (r#"{"cards":[{"index":0,"processes":[{"pid":1,"bytes":-5}]}]}"#, "-5"),
    ] {
        rig.script(script);
        assert!(matches!(rig.unreadable(), Unreadable::Failed(why) if why.contains(says)), "{script}");
    }
    rig.script("{}");
    assert_eq!(rig.used().free, Bytes::gib(24));
}

fn faults_of_the_driver_are_distinguished() {
    let rig = Rig::new(NEVER);
    rig.script(r#"{"cards":[{"index":0,"fault":"lost"}]}"#);
    assert_eq!(rig.unreadable(), Unreadable::Lost);
    rig.script(r#"{"cards":[{"index":0,"fault":"error"}]}"#);
    assert!(matches!(rig.unreadable(), Unreadable::Failed(_)));
    let pid = std::process::id();
    rig.script(&format!(
        r#"{{"cards":[{{"index":0,"processes":[{{"pid":{pid},"bytes":1073741824}}],"fault":"coarse"}}]}}"#
    ));
    let used = rig.used();
    assert_eq!((used.free, used.coarse, used.processes[0].bytes), (Bytes::gib(23), true, None));
}

fn unknown_bytes_are_not_zero_bytes() {
    let rig = Rig::new(NEVER);
    rig.script(&script_with_process(std::process::id(), "null"));
    let used = rig.used();
    assert_eq!((used.coarse, used.processes[0].bytes), (true, None));
}

fn requests_for_readings_are_merged() {
    let rig = Rig::new(NEVER);
    rig.used();
    let (begun, from) = (Instant::now(), rig.count());
    while begun.elapsed() < Duration::from_millis(100) {
        rig.host.request_reading();
    }
    rig.read_gpu();
    let looks = rig.count() - from;
    let most = begun.elapsed().as_millis() / 5 + 2;
    assert!((2..=most).contains(&(looks as u128)), "{looks} looks, at most {most} expected");
}

fn a_requested_reading_begins_after_the_request() {
    // `Rig::read_gpu` waits for a reading that began after its request; without one it fails.
    let rig = Rig::new(NEVER);
    for _ in 0..50 {
        rig.used();
    }
}

fn a_missing_driver_is_reported_with_a_remedy() {
    let rig = Rig::with("real", |settings, dir| {
        settings.worker_exe = wrapper(dir, "export SUBLET_NVML_LIB=/nonexistent/libnvidia-ml.so.1");
    });
    let why = rig.until("that there is no library", |report| unlisted(report, GpuListErrorKind::NoLibrary));
    let sentence = why.to_string();
    assert!(sentence.starts_with("NVML (`/nonexistent/libnvidia-ml.so.1`) cannot be loaded: "), "{sentence}");
    assert!(sentence.ends_with("install the NVIDIA driver, or give its library to this container"), "{sentence}");
}

fn a_worker_that_cannot_start_is_reported() {
    let rig = Rig::with("real", |settings, dir| settings.worker_exe = dir.join("missing"));
    let why = rig.until("that there is no worker", |report| unlisted(report, GpuListErrorKind::NoAnswer));
    assert!(why.what.contains("No such file"), "{why}");
}

fn dropping_the_host_ends_the_worker() {
    let pids = tempfile::tempdir().unwrap();
    let file = pids.path().join("pid");
    let rig = Rig::with("scripted:1x1GiB", |settings, dir| {
        settings.worker_exe = wrapper(dir, &format!("echo $$ > '{}'", file.display()));
    });
    rig.used();
    let pid: u32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    let worker = process::identify(pid).unwrap();
    assert!(process::is_running(worker.key));
    drop(rig);
    assert!(!process::is_running(worker.key));
}

fn a_worker_ends_when_its_stdin_closes() {
    let mut command = Command::new(exe());
    command.args(["worker", "cards", "scripted:1x1GiB", "none.json"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut worker = command.spawn().unwrap();
    let mut stdin = worker.stdin.take().unwrap();
    stdin.write_all(b"{\"look\":{\"busy\":false}}\n").unwrap();
    let mut line = String::new();
    BufReader::new(worker.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with(r#"{"looks":[{"uuid":"GPU-"#), "{line}");
    drop(stdin);
    assert!(worker.wait().unwrap().success());
}

fn a_worker_refuses_wrong_arguments() {
    for args in [&["worker"][..], &["worker", "cards", "soft"], &["worker", "cards", "scripted:1x1GiB"]] {
        let told = Command::new(exe()).args(args).stdin(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert_eq!(told.code(), Some(64), "{args:?}");
    }
}

fn gpu_list(report: &HostReport) -> Option<Vec<sublet_core::reading::GpuFacts>> {
    gpu_list_ref(report).map(<[_]>::to_vec)
}

fn gpu_list_ref(report: &HostReport) -> Option<&[sublet_core::reading::GpuFacts]> {
    if let HostReport::Gpus(gpu_list) = report { Some(gpu_list) } else { None }
}

fn unlisted(report: &HostReport, kind: GpuListErrorKind) -> Option<GpuListError> {
    if let HostReport::ListFailed(why) = report { (why.kind == kind).then(|| why.clone()) } else { None }
}

fn script_with_process(pid: u32, bytes: &str) -> String {
    format!(r#"{{"cards":[{{"index":0,"processes":[{{"pid":{pid},"bytes":{bytes}}}]}}]}}"#)
}

/// An executable that does something and then becomes the worker.
fn wrapper(dir: &Path, first: &str) -> PathBuf {
    let path = dir.join("worker.sh");
    std::fs::write(&path, format!("#!/bin/sh\n{first}\nexec '{}' \"$@\"\n", exe().display())).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}
