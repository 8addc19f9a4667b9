//! A program that uses something that cannot be moved stays on its GPU, runs on as without the shim, and gets no more
//! memory than its lease.

use crate::cc;
use crate::daemon::{Daemon, Line, mapped, page};
use crate::parked::{MIB, SOON};
use crate::pools::python;
use crate::soft::{Child, Soft, wait_until};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{ChildStdin, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use sublet_softgpu::state::CONTEXT_BYTES;

/// Puts a driver of `c/more.c` before that of the soft GPUs.
fn with_driver(soft: &Soft, flags: &[&str]) {
    let driver = soft.path("libcuda.so.1");
    let mut library = std::fs::read(&driver).expect("a library");
    std::fs::remove_file(driver).expect("an own link");
    // It says what it is called: from now on it is another.
    let name = b"\0libcuda.so.1\0";
    while let Some(at) = library.windows(name.len()).position(|part| part == name) {
        library[at + name.len() - 2] = b's';
    }
    std::fs::write(soft.path("libcuda.so.s"), library).expect("it is copied");
    let link = ["-shared", "-fPIC", "-L", ".", "-Wl,--no-as-needed", "-l:libcuda.so.s", "-o", "libcuda.so.1"];
    cc::program(soft, "more.c", &[flags, &link].concat());
}

/// A script that says something, and goes on when it is told to.
struct ScriptedProgram {
    child: Child,
    out: Box<dyn Iterator<Item = String>>,
    input: Option<ChildStdin>,
    line: Line,
}

impl ScriptedProgram {
    fn new(soft: &Soft, daemon: &Daemon, page: Option<&File>, script: &str) -> ScriptedProgram {
        let script = format!(
            "from cuda import *\ndef say(*words):\n    print(*words, flush=True)\n    sys.stdin.readline()\nstart()\n{script}"
        );
        let mut command = python(soft, &["-c", &script]);
        command.env("SUBLET_SOFT_MANAGED", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = daemon.with_shim(&mut command).spawn().expect("python3 is there");
        let line = daemon.accept(page.map(AsRawFd::as_raw_fd));
        let out = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
        let input = child.stdin.take();
        ScriptedProgram { child: Child(child), out: Box::new(out), input, line }
    }

    fn expect_word(&mut self, word: &str) {
        assert_eq!(self.out.next().as_deref(), Some(word));
    }

    fn continue_script(&mut self) {
        self.input.as_mut().expect("its input").write_all(b"go\n").expect("it listens");
    }

    /// It is not parked for this reason, and goes on.
    fn assert_stays(&mut self, why: &str) {
        assert_eq!(self.line.park(SOON), Some(Err(why.to_owned())));
        self.continue_script();
    }

    /// It is parked, comes back, and goes on.
    fn assert_moves(&mut self, bytes: u64) {
        assert_eq!(self.line.park(SOON), Some(Ok(bytes)));
        assert_eq!(self.line.resume(), Some(Ok(bytes)));
        self.continue_script();
    }

    fn assert_ends(mut self, word: &str) {
        self.expect_word(word);
        drop(self.input.take());
        assert!(self.child.0.wait().expect("an own child").success());
    }
}

const ARRAYS: &str = "it uses CUDA arrays or textures";

#[test]
fn arrays_are_of_the_lease_and_keep_their_holder_where_it_is_as_long_as_there_are_any() {
    let soft = Soft::new("1x1GiB");
    with_driver(&soft, &[]);
    let daemon = Daemon::new(&soft);
    let file = page(&soft, CONTEXT_BYTES + 64 * MIB);
    let script = "
class Shape(C.Structure):
    _fields_ = [('size', SIZE * 3), ('format', UINT), ('channels', UINT), ('flags', UINT)]
class Flat(C.Structure):
    _fields_ = [('size', SIZE * 2), ('format', UINT), ('channels', UINT)]
at = alloc(2 << 20)
array, mipmap, free, total = PTR(), PTR(), SIZE(), SIZE()
must('cuArrayCreate_v2', BY(array), BY(Flat((SIZE * 2)(1024, 1024), 0x20, 4)))
must('cuMipmappedArrayCreate', BY(mipmap), BY(Shape((SIZE * 3)(1024, 1024, 0), 0x20, 1, 0)), 2)
must('cuMemGetInfo_v2', BY(free), BY(total))
say('has', free.value >> 20)
say('beyond', call('cuArrayCreate_v2', BY(PTR()), BY(Flat((SIZE * 2)(4096, 4096), 0x20, 4))),
    call('cuMipmappedArrayCreate', BY(PTR()), BY(Shape((SIZE * 3)(4096, 4096, 0), 0x20, 4, 0)), 9))
say('one less', call('cuArrayDestroy', array))
say('none', call('cuMipmappedArrayDestroy', mipmap))
print(call('cuMemsetD8_v2', at, 1, SIZE(1)))
";
    let mut told = ScriptedProgram::new(&soft, &daemon, Some(&file), script);
    // 2 MiB plain, 16 MiB of the array, 5 MiB of two levels.
    told.expect_word("has 41");
    told.assert_stays(ARRAYS);
    told.expect_word("beyond 2 2");
    told.assert_stays(ARRAYS);
    told.expect_word("one less 0");
    assert_eq!(mapped(&file).processes[0].gpus[0].bytes.load(SeqCst), 7 * MIB);
    told.assert_stays(ARRAYS);
    told.expect_word("none 0");
    told.assert_moves(2 * MIB);
    told.assert_ends("0");
}

#[test]
fn managed_memory_is_of_the_lease_and_its_holder_moves_when_it_is_freed() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let file = page(&soft, CONTEXT_BYTES + 64 * MIB);
    let script = "
at, own = alloc(2 << 20), U64()
must('cuMemAllocManaged', BY(own), SIZE(32 << 20), 1)
say('beyond', call('cuMemAllocManaged', BY(U64()), SIZE(64 << 20), 1))
say('freed', call('cuMemFree_v2', own))
print(call('cuMemAlloc_v2', BY(U64()), SIZE(48 << 20)))
";
    let mut told = ScriptedProgram::new(&soft, &daemon, Some(&file), script);
    told.expect_word("beyond 2");
    told.assert_stays("it uses managed memory");
    told.expect_word("freed 0");
    told.assert_moves(2 * MIB);
    told.assert_ends("0");
}

#[test]
fn handles_of_memory_are_the_drivers_wherever_they_are_given() {
    let soft = Soft::new("1x1GiB");
    with_driver(&soft, &[]);
    let daemon = Daemon::new(&soft);
    let script = "
about = (UINT * 8)(1, 0, 1, 0)
handle = got(U64, 'cuMemCreate', SIZE(2 << 20), about, U64(0))
maps = (U64 * 24)()
for number in range(2):
    maps[12 * number], maps[12 * number + 8] = 7, handle.value
say(call('cuMemMapArrayAsync', maps, 2, None), maps[8] == handle.value)
say(call('cuMulticastBindMem', U64(1), SIZE(2), handle, SIZE(3), SIZE(4), U64(5)))
print('ended')
";
    let mut told = ScriptedProgram::new(&soft, &daemon, None, script);
    told.expect_word("0 True");
    told.assert_stays(ARRAYS);
    told.expect_word("0");
    told.assert_stays(ARRAYS);
    told.assert_ends("ended");
}

#[test]
fn a_program_that_imports_memory_or_calls_an_unknown_function_stays() {
    let soft = Soft::new("1x1GiB");
    with_driver(&soft, &[]);
    let daemon = Daemon::new(&soft);
    let script = "
memory = PTR()
must('cuImportExternalMemory', BY(memory), None)
say('external')
must('cuDestroyExternalMemory', memory)
say('gone')
about, descriptor = (UINT * 8)(1, 1, 1, 0), INT()
handle = got(U64, 'cuMemCreate', SIZE(2 << 20), about, U64(0))
say('sum', call('cuMemSomethingNew', *map(U64, range(1, 9))))
print('ended')
";
    let mut told = ScriptedProgram::new(&soft, &daemon, None, script);
    told.expect_word("external");
    told.assert_stays("it uses memory of another API");
    told.expect_word("gone");
    told.assert_moves(0);
    told.expect_word("sum 0");
    told.assert_stays("it called a function of the driver that Sublet does not know");
    told.assert_ends("ended");
    let script = "
about, descriptor = (UINT * 8)(1, 1, 1, 0), INT()
handle = got(U64, 'cuMemCreate', SIZE(2 << 20), about, U64(0))
say('made')
if sys.stdin.readline() == 'export\\n':
    must('cuMemExportToShareableHandle', BY(descriptor), handle, 1, U64(0))
    say('exported')
print('ended')
";
    let mut told = ScriptedProgram::new(&soft, &daemon, None, script);
    told.expect_word("made");
    told.assert_moves(0);
    told.input.as_mut().expect("its input").write_all(b"export\n").expect("it listens");
    told.expect_word("exported");
    told.assert_stays("it shares memory with other processes");
    told.assert_ends("ended");
}

#[test]
fn memory_that_another_process_exported_keeps_its_importer_in_place() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    // Both sides are one program: the shim knows its own handle from the driver's by what they are.
    let script = "
about, descriptor, other = (UINT * 8)(1, 1, 1, 0), INT(), U64()
handle = got(U64, 'cuMemCreate', SIZE(2 << 20), about, U64(0))
must('cuMemExportToShareableHandle', BY(descriptor), handle, 1, U64(0))
import os
child = os.fork()
if child == 0:
    # It is a program of its own then.
    os.set_inheritable(descriptor.value, True)
    os.execv(sys.executable, [sys.executable, '-c', os.environ['TEXT'], str(descriptor.value)])
os.waitpid(child, 0)
print('ended')
";
    let taker = "
from cuda import *
start()
other = U64()
must('cuMemImportFromShareableHandle', BY(other), PTR(int(sys.argv[1])), 1)
sys.stdin.readline()
";
    let script = format!("from cuda import *\nstart()\n{script}");
    let mut command = python(&soft, &["-c", &script]);
    command.env("TEXT", taker).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Child(daemon.with_shim(&mut command).spawn().expect("python3 is there"));
    let _giver = daemon.accept(None);
    let file = page(&soft, 512 * MIB);
    let mut taker = daemon.accept(Some(file.as_raw_fd()));
    wait_until("it has it", || mapped(&file).processes[0].obstacles.load(SeqCst) != 0);
    assert_eq!(taker.park(SOON), Some(Err("it shares memory with other processes".to_owned())));
    drop(child.0.stdin.take());
    assert!(child.0.wait().expect("an own child").success());
}

#[test]
fn memory_of_graphs_is_counted_and_its_holder_moves_when_they_have_none() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let file = page(&soft, 512 * MIB);
    // `CUgraphNodeParams`: a node that allocates, with what a pool is asked for.
    let script = "
class Params(C.Structure):
    _fields_ = [('type', INT), ('reserved', INT * 3), ('kind', INT), ('handles', INT), ('location', INT * 2),
                ('pool', C.c_ubyte * 72), ('access', PTR), ('count', SIZE), ('bytes', SIZE), ('at', U64),
                ('rest', C.c_ubyte * 200)]
graph, node, ready, stream = got(PTR, 'cuGraphCreate', 0), PTR(), PTR(), got(PTR, 'cuStreamCreate', 1)
params = Params(type=10, kind=1, location=(1, 0), bytes=32 << 20)
if name == 'cuGraphAddNode_v2':
    must(name, BY(node), graph, None, None, SIZE(0), BY(params))
else:
    must(name, BY(node), graph, None, SIZE(0), BY(params))
must('cuGraphInstantiateWithFlags', BY(ready), graph, U64(0))
must('cuGraphLaunch', ready, stream)
must('cuStreamSynchronize', stream)
say('launched')
must('cuMemFreeAsync', U64(params.at), stream)
must('cuStreamSynchronize', stream)
say('freed')
print('ended')
";
    with_driver(&soft, &[]);
    for name in ["cuGraphAddNode", "cuGraphAddNode_v2"] {
        let script = format!("name = '{name}'{script}");
        let mut told = ScriptedProgram::new(&soft, &daemon, Some(&file), &script);
        told.expect_word("launched");
        let bytes = || mapped(&file).processes[0].gpus[0].bytes.load(SeqCst);
        wait_until("it is counted", || bytes() >= 32 * MIB);
        told.assert_stays("its graphs allocate memory");
        told.expect_word("freed");
        told.assert_moves(0);
        wait_until("it is not counted any more", || bytes() == 0);
        told.assert_ends("ended");
        mapped(&file).processes[0].pid.store(0, SeqCst);
    }
}

#[test]
fn a_driver_that_can_only_be_waited_for_is_not_waited_for() {
    let soft = Soft::new("1x1GiB");
    with_driver(&soft, &["-DOLDER"]);
    let daemon = Daemon::new(&soft);
    let script = "
at, flag = alloc(2 << 20), PTR()
must('cuMemHostAlloc', BY(flag), SIZE(4096), 2)
UINT.from_address(flag.value).value = 0
must('cuLaunchKernel', function(module(), 'wait_for'), 1, 1, 1, 1, 1, 1, 0, None, pointers(U64(flag.value), UINT(1)), None)
say('runs')
UINT.from_address(flag.value).value = 1
print(call('cuCtxSynchronize'))
";
    let mut told = ScriptedProgram::new(&soft, &daemon, None, script);
    told.expect_word("runs");
    let refused = told.line.park(Duration::from_millis(300)).expect("it lives");
    assert!(refused.as_ref().is_err_and(|why| why.contains("CUDA 12.5")), "{refused:?}");
    told.continue_script();
    told.assert_ends("0");
}
