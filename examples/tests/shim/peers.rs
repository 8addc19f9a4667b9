//! GPUs that reach each other's memory do so with the shim as they do without.

use crate::daemon::{Daemon, mapped, page};
use crate::parked::{MIB, SOON};
use crate::pools::python;
use crate::soft::{Soft, succeeded};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::Stdio;
use std::sync::atomic::Ordering::SeqCst;

#[test]
fn kernels_reach_another_gpu_only_with_peer_access() {
    let soft = Soft::new("2x1GiB");
    let alone = succeeded(&python(&soft, &["peers.py"]).output().expect("python3 is there"));
    let daemon = Daemon::new(&soft);
    let output = daemon.with_shim(&mut python(&soft, &["peers.py"])).output().expect("python3 is there");
    assert_eq!(succeeded(&output), alone);
    let lines: Vec<&str> = alone.lines().collect();
    assert!(lines.contains(&"enabled: 0 704") && lines.contains(&"disabled: 0 705"), "{alone}");
    assert!(lines.contains(&"seen: [11, 12, 13] [11, 12, 13] [17, 18, 19]"), "{alone}");
    assert!(lines.contains(&"direct: 1") && lines.contains(&"kernel of the other: 0 700"), "{alone}");
    assert!(soft.is_idle());
}

#[test]
fn a_program_with_peer_access_is_not_parked_until_it_gives_it_up() {
    let soft = Soft::new("2x1GiB");
    let daemon = Daemon::new(&soft);
    let file = page(&soft, 512 * MIB);
    let mut command = python(&soft, &["peers.py", "wait"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = daemon.with_shim(&mut command).spawn().expect("python3 is there");
    let mut line = daemon.accept(Some(file.as_raw_fd()));
    let mut out = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
    let mut input = child.stdin.take().expect("its input");
    assert_eq!(out.find(|line| line.starts_with("reaches")).as_deref(), Some("reaches: [3, 3, 0]"));
    assert_eq!(line.park(SOON), Some(Err("its GPUs reach each other's memory".to_owned())));
    assert_ne!(mapped(&file).processes[0].obstacles.load(SeqCst), 0);
    input.write_all(b"go\n").expect("it listens");
    assert_eq!(out.find(|line| line.starts_with("reaches")).as_deref(), Some("reaches: [0, 0, 0]"));
    assert!(line.park(SOON).is_some_and(|parked| parked.is_ok_and(|bytes| bytes >= 18 * MIB)));
    assert!(line.resume().is_some_and(|resumed| resumed.is_ok()));
    input.write_all(b"go\n").expect("it listens");
    drop(input);
    let rest: Vec<String> = out.collect();
    assert!(rest.iter().any(|line| line == "own: [11, 12, 13] [0, 0]"), "{rest:?}");
    assert!(child.wait().expect("an own child").success());
}

#[test]
fn memory_freed_while_another_gpu_is_current_is_waited_for_on_its_own() {
    let soft = Soft::new("2x1GiB");
    let daemon = Daemon::new(&soft);
    let script = "
import threading
from cuda import *
other = start(1)
# Two small ones: nothing is unmapped when one of them goes, for which a driver may wait by itself.
at, beside, flag = alloc(4096), alloc(4096), PTR()
must('cuMemHostAlloc', BY(flag), SIZE(4096), 2)
opened = UINT.from_address(flag.value)
opened.value = 0
code = module()
must('cuLaunchKernel', function(code, 'wait_for'), 1, 1, 1, 1, 1, 1, 0, None, pointers(U64(flag.value), UINT(1)), None)
must('cuLaunchKernel', function(code, 'add'), 1, 1, 1, 1, 1, 1, 0, None, pointers(at, UINT(4), UINT(1)), None)
start(0)
def open():
    opened.value = 1
threading.Timer(0.3, open).start()
freed = call('cuMemFree_v2', at)
print('freed', freed, 'after the kernel' if opened.value else 'under it')
must('cuCtxSetCurrent', other)
print('well', call('cuCtxSynchronize'))
";
    let output = daemon.with_shim(&mut python(&soft, &["-c", script])).output().expect("python3 is there");
    assert_eq!(succeeded(&output), "freed 0 after the kernel\nwell 0\n");
    assert!(soft.is_idle());
}
