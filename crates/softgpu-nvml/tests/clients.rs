//! Real programs read soft GPUs: nvidia-ml-py, nvitop, gpustat.
//!
//! They run as separate processes, with the library in front of any other on the machine. The process on the GPUs is
//! the test itself.

mod python;
mod support;

use python::{printed, with_pynvml};
use serde_json::Value;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use sublet_softgpu::state::{CONTEXT_BYTES, IDLE_BYTES};
use sublet_softgpu::{NvmlFault, SoftGpuFault};
use support::{GIB, Machine};

fn this_pid() -> u32 {
    std::process::id()
}

#[test]
fn pynvml_lists_the_gpus_and_their_processes() {
    let machine = Machine::with("1x4GiB,1x8GiB");
    let _client = machine.register_client(1, GIB);
    let printed = machine.python(
        "nvmlInit()
for i in range(nvmlDeviceGetCount()):
    h = nvmlDeviceGetHandleByIndex(i)
    u = nvmlDeviceGetUUID(h)
    assert nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID(u)) == i
    assert nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId(nvmlDeviceGetPciInfo(h).busId)) == i
    m, m2 = nvmlDeviceGetMemoryInfo(h), nvmlDeviceGetMemoryInfo(h, nvmlMemory_v2)
    print(i, nvmlDeviceGetName(h), len(u), u[:4], nvmlDeviceGetPciInfo(h).busId, m.total, m.used, m.total - m.free)
    print(m2.total, m2.reserved, m2.used, m2.total - m2.reserved - m2.used - m2.free)
    for f in nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetComputeRunningProcesses_v3:
        print([(p.pid, p.usedGpuMemory, p.gpuInstanceId) for p in f(h)])
    print(nvmlDeviceGetGraphicsRunningProcesses(h), nvmlDeviceGetMPSComputeRunningProcesses(h))
print(nvmlSystemGetDriverVersion(), nvmlSystemGetNVMLVersion(), nvmlSystemGetCudaDriverVersion())
nvmlShutdown()",
    );
    let (pid, held) = (this_pid(), CONTEXT_BYTES + GIB);
    let (idle, used) = (IDLE_BYTES, IDLE_BYTES + held);
    let (small, large, whole) = (4 * GIB, 8 * GIB, u32::MAX);
    let expected = format!(
        "0 Sublet Soft 4GiB 40 GPU- 00000000:A0:00.0 {small} {idle} {idle}
{small} {idle} 0 0
[]
[]
[] []
1 Sublet Soft 8GiB 40 GPU- 00000000:A1:00.0 {large} {used} {used}
{large} {idle} {held} 0
[({pid}, {held}, {whole})]
[({pid}, {held}, {whole})]
[] []
580.00.00 13.580.00.00 13000
"
    );
    assert_eq!(printed, expected);
}

#[test]
fn identity_and_modes_of_a_gpu_are_reported() {
    let machine = Machine::with("2x4GiB");
    let printed = machine.python(
        "nvmlInit()
h, other = nvmlDeviceGetHandleByIndex(0), nvmlDeviceGetHandleByIndex(1)
print(nvmlDeviceGetCudaComputeCapability(h), nvmlDeviceGetArchitecture(h), nvmlDeviceGetMinorNumber(other))
print(nvmlDeviceGetEccMode(h), nvmlDeviceGetMigMode(h), nvmlDeviceGetComputeMode(h), nvmlDeviceGetPersistenceMode(h))
print(nvmlDeviceGetClockInfo(h, NVML_CLOCK_SM), nvmlDeviceGetMaxClockInfo(h, NVML_CLOCK_MEM))
print(nvmlDeviceGetPowerUsage(h), nvmlDeviceGetEnforcedPowerLimit(h), nvmlDeviceGetPowerManagementLimitConstraints(h))
print(nvmlDeviceGetTemperature(h, NVML_TEMPERATURE_GPU), nvmlDeviceGetPerformanceState(h), nvmlDeviceGetNumFans(h))
print(nvmlDeviceGetBAR1MemoryInfo(h).bar1Total, nvmlDeviceGetMaxPcieLinkWidth(h), nvmlDeviceGetPcieThroughput(h, 0))
print(nvmlDeviceGetTopologyCommonAncestor(h, other), nvmlDeviceGetDisplayActive(h), nvmlDeviceGetMultiGpuBoard(h))
print(nvmlSystemGetProcessName(1) != '', nvmlDeviceGetVbiosVersion(h))",
    );
    let expected = "(7, 5) 6 1
[0, 0] [0, 0] 0 1
300 5000
10000 70000 [70000, 70000]
30 8 0
268435456 16 0
50 0 0
True 00.00.00.00.00
";
    assert_eq!(printed, expected);
}

#[test]
fn every_function_of_pynvml_exists_and_can_be_called() {
    let machine = Machine::with("1x4GiB");
    let printed = machine.python(
        "import inspect, pynvml, re
nvmlInit()
h = nvmlDeviceGetHandleByIndex(0)
names = set(re.findall(r'_nvmlGetFunctionPointer\\(\"(\\w+)\"\\)', inspect.getsource(pynvml)))
for name in sorted(names):
    pynvml._nvmlGetFunctionPointer(name)
print(len(names) > 300)
answers = {}
for name, f in sorted(vars(pynvml).items()):
    if name.startswith('nvmlDevice') and inspect.isfunction(f) and list(inspect.signature(f).parameters) == ['handle']:
        try: f(h); answer = 'told'
        except NVMLError as e: answer = e.value
        except TypeError: answer = 'told'
        answers[answer] = answers.get(answer, 0) + 1
print(sorted(answers, key=str))
for wrong in 'nvmlDeviceSetComputeMode(h, 1)', 'nvmlDeviceGetHandleByIndex(1)', 'nvmlDeviceGetSerial(h)', \\
        'nvmlDeviceGetHandleByUUID(\"GPU-x\")', 'nvmlDeviceGetName(c_void_p(4096))', 'nvmlEventSetCreate()', \\
        'nvmlDeviceGetFanSpeed(h)', 'nvmlDeviceGetMemoryInfo(h, 0x03000028)':
    try: print(eval(wrong))
    except NVMLError as e: print(e.value, wrong)",
    );
    let expected = "True
[3, 'told']
4 nvmlDeviceSetComputeMode(h, 1)
2 nvmlDeviceGetHandleByIndex(1)
3 nvmlDeviceGetSerial(h)
6 nvmlDeviceGetHandleByUUID(\"GPU-x\")
2 nvmlDeviceGetName(c_void_p(4096))
3 nvmlEventSetCreate()
3 nvmlDeviceGetFanSpeed(h)
25 nvmlDeviceGetMemoryInfo(h, 0x03000028)
";
    assert_eq!(printed, expected);
}

#[test]
fn old_functions_answer_and_null_pointers_are_refused() {
    let machine = Machine::with("1x4GiB");
    let _client = machine.register_client(0, GIB);
    let printed = machine.python(
        "import pynvml
from ctypes import *
nvmlInit()
lib = pynvml.nvmlLib
h, text = c_void_p(), create_string_buffer(64)
assert lib.nvmlInit() == 0 and lib.nvmlInit_v2() == 0 and lib.nvmlDeviceGetHandleByIndex(0, byref(h)) == 0
class Process(Structure): _fields_ = [('pid', c_uint), ('used', c_ulonglong)]
class Pci(Structure): _fields_ = [('bus_id', c_char * 16), ('n', c_uint * 4), ('beyond', c_uint)]
count, processes, pci = c_uint(0), (Process * 2)(), Pci(beyond=7)
print(lib.nvmlDeviceGetComputeRunningProcesses(h, byref(count), None), count.value)
count.value = 2
print(lib.nvmlDeviceGetComputeRunningProcesses(h, byref(count), processes), count.value, processes[0].used)
print(lib.nvmlDeviceGetPciInfo(h, byref(pci)), pci.bus_id, pci.n[1], pci.beyond)
print(lib.nvmlDeviceGetPciInfo_v2(h, byref(pci)), pci.bus_id, pci.n[1], pci.beyond)
print(lib.nvmlDeviceGetName(h, text, 16), lib.nvmlDeviceGetName(h, text, 17), lib.nvmlDeviceGetName(h, None, 64))
print([lib[name](h, None) for name in ('nvmlDeviceGetMemoryInfo', 'nvmlDeviceGetMemoryInfo_v2', 'nvmlDeviceGetIndex',
    'nvmlDeviceGetPciInfo_v3', 'nvmlDeviceGetUtilizationRates', 'nvmlDeviceGetTemperatureV')])
print([lib[name](None, None, None) for name in ('nvmlDeviceGetMemoryInfo', 'nvmlDeviceGetHandleByUUID',
    'nvmlDeviceGetHandleByUUIDV', 'nvmlDeviceGetComputeRunningProcesses_v3', 'nvmlDeviceGetCount')])
uuid = c_nvmlUUID_t()
uuid.type, uuid.value.str = 1, nvmlDeviceGetUUID(h).encode()
print(lib.nvmlDeviceGetHandleByUUIDV(byref(uuid), byref(h)))
uuid.type, uuid.value.bytes = 2, (c_ubyte * 16)(*bytes.fromhex(nvmlDeviceGetUUID(h)[4:].replace('-', '')))
print(lib.nvmlDeviceGetHandleByUUIDV(byref(uuid), byref(h)))
uuid.version = 1
print(lib.nvmlDeviceGetHandleByUUIDV(byref(uuid), byref(h)))",
    );
    let expected = format!(
        "7 1
0 1 {}
0 b'0000:A0:00.0' 160 7
0 b'0000:A0:00.0' 160 0
7 0 2
[2, 2, 2, 2, 2, 2]
[2, 2, 2, 2, 2]
0
0
25
",
        CONTEXT_BYTES + GIB
    );
    assert_eq!(printed, expected);
}

#[test]
fn threads_may_init_query_and_shut_down_concurrently() {
    let machine = Machine::with("2x4GiB");
    let _client = machine.register_client(0, GIB);
    let script = "from concurrent.futures import ThreadPoolExecutor
def work(n):
    for _ in range(200):
        nvmlInit()
        h = nvmlDeviceGetHandleByIndex(n % 2)
        assert nvmlDeviceGetMemoryInfo(h).total == 4 << 30
        assert len(nvmlDeviceGetComputeRunningProcesses(h)) == 1 - n % 2
        nvmlDeviceGetUtilizationRates(h)
        nvmlShutdown()
    return 1
with ThreadPoolExecutor(8) as pool: print(sum(pool.map(work, range(8))))
try: nvmlDeviceGetCount()
except NVMLError as e: print(e.value)";
    assert_eq!(machine.python(script), "8\n1\n");
}

#[test]
fn init_calls_are_counted_and_fail_without_gpus() {
    let machine = Machine::with("1x4GiB");
    let script = "
def told(f, *a):
    try: f(*a); return 'well'
    except NVMLError as e: return e.value
print(told(nvmlInit), told(nvmlInit), told(nvmlShutdown), told(nvmlDeviceGetCount), told(nvmlShutdown))
print(told(nvmlDeviceGetCount), told(nvmlShutdown), told(nvmlInit), told(nvmlDeviceGetCount))";
    assert_eq!(machine.python(script), "well well well well well\n1 1 well well\n");
    std::fs::remove_file(machine.gpus_file()).unwrap();
    assert_eq!(machine.python("try: nvmlInit()\nexcept NVMLError as e: print(e.value)"), "9\n");
}

#[test]
fn nvitop_shows_the_gpu_and_the_process() {
    let machine = Machine::with("2x4GiB");
    let _client = machine.register_client(1, GIB);
    let shown = machine.output("nvitop", &["-1", "--ascii"]);
    for part in ["Sublet Soft 4GiB", " 0B / 4096MiB", "1152MiB / 4096MiB", " 30C ", "10W / 70W", "580.00.00"] {
        assert!(shown.contains(part), "`{part}` is not in\n{shown}");
    }
    let line = shown.lines().find(|line| line.contains(&format!(" {} C ", this_pid())));
    assert!(line.is_some_and(|line| line.contains("1152MiB")), "{shown}");
}

#[test]
fn gpustat_shows_the_gpu_and_the_process() {
    let machine = Machine::with("1x4GiB");
    let _client = machine.register_client(0, GIB);
    let told: Value = serde_json::from_str(&machine.output("gpustat", &["--json"])).unwrap();
    let gpu = &told["gpus"][0];
    assert_eq!((&gpu["name"], &gpu["memory.total"]), (&"Sublet Soft 4GiB".into(), &4096.into()));
    assert!(gpu["uuid"].as_str().is_some_and(|uuid| uuid.starts_with("GPU-")), "{gpu}");
    let process = &gpu["processes"][0];
    assert_eq!((&process["pid"], &process["gpu_memory_usage"]), (&this_pid().into(), &1152.into()), "{gpu}");
    assert!(machine.output("gpustat", &["--no-color"]).contains("Sublet Soft 4GiB"));
}

#[test]
fn a_checkpointed_process_is_not_listed() {
    let machine = Machine::with("1x4GiB");
    let _client = machine.register_client(0, GIB);
    machine.state.checkpoint_lock(this_pid(), None).unwrap();
    machine.state.checkpoint_save(this_pid()).unwrap();
    let script = "nvmlInit()
h = nvmlDeviceGetHandleByIndex(0)
print([p.pid for p in nvmlDeviceGetComputeRunningProcesses(h)], nvmlDeviceGetMemoryInfo(h).used)";
    assert_eq!(machine.python(script), format!("[] {IDLE_BYTES}\n"));
    machine.state.checkpoint_restore(this_pid()).unwrap();
    let used = IDLE_BYTES + CONTEXT_BYTES + GIB;
    assert_eq!(machine.python(script), format!("[{}] {used}\n", this_pid()));
}

#[test]
fn calls_report_the_fault_of_their_gpu() {
    let machine = Machine::with("3x4GiB");
    let _client = machine.register_client(2, GIB);
    machine.state.set_fault(0, SoftGpuFault::Nvml(NvmlFault::Error));
    machine.state.set_fault(1, SoftGpuFault::Nvml(NvmlFault::Lost));
    machine.state.set_fault(2, SoftGpuFault::Nvml(NvmlFault::NoBytes));
    let script = "nvmlInit()
for i in range(nvmlDeviceGetCount()):
    try: print([p.usedGpuMemory for p in nvmlDeviceGetComputeRunningProcesses(nvmlDeviceGetHandleByIndex(i))])
    except NVMLError as e: print(e.value)";
    assert_eq!(machine.python(script), "999\n15\n[None]\n");
    (0..3).for_each(|gpu| assert!(machine.state.set_fault(gpu, SoftGpuFault::Clear)));
    assert_eq!(machine.python(script), format!("[]\n[]\n[{}]\n", CONTEXT_BYTES + GIB));
}

/// A running script, and its lines as they come.
fn start(machine: &Machine, script: &str) -> (Child, mpsc::Receiver<String>) {
    use std::io::BufRead;
    let mut command = machine.command("python");
    let mut child = command.args(["-u", "-c", &with_pynvml(script)]).stdout(Stdio::piped()).spawn().unwrap();
    let out = child.stdout.take().unwrap();
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        std::io::BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    (child, lines)
}

const LONG: Duration = Duration::from_secs(30);

#[test]
fn calls_block_while_their_gpu_hangs() {
    let machine = Machine::with("2x4GiB");
    let script = "nvmlInit()
one, two = nvmlDeviceGetHandleByIndex(0), nvmlDeviceGetHandleByIndex(1)
print('ready')
while not os.path.exists(os.path.dirname(os.environ['SUBLET_SOFT_STATE']) + '/go'): time.sleep(0.005)
print(nvmlDeviceGetMemoryInfo(two).total)
print(nvmlDeviceGetMemoryInfo(one).total)";
    let (mut child, lines) = start(&machine, script);
    assert_eq!(lines.recv_timeout(LONG).unwrap(), "ready");
    machine.state.set_fault(0, SoftGpuFault::Nvml(NvmlFault::Hang));
    std::fs::write(machine.gpus_file().with_file_name("go"), "").unwrap();
    assert_eq!(lines.recv_timeout(LONG).unwrap(), (4 * GIB).to_string(), "the other GPU answers");
    let hung = lines.recv_timeout(Duration::from_millis(300));
    assert_eq!(hung, Err(mpsc::RecvTimeoutError::Timeout));
    machine.state.set_fault(0, SoftGpuFault::Clear);
    assert_eq!(lines.recv_timeout(LONG).unwrap(), (4 * GIB).to_string());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_gpu_is_busy_while_kernels_run_and_idle_afterwards() {
    let machine = Machine::with("2x4GiB");
    let client = machine.register_client(0, GIB);
    let script = "nvmlInit()
one, two = nvmlDeviceGetHandleByIndex(0), nvmlDeviceGetHandleByIndex(1)
print('idle', nvmlDeviceGetUtilizationRates(one).gpu)
while nvmlDeviceGetUtilizationRates(one).gpu < 90: time.sleep(0.01)
print('busy', nvmlDeviceGetUtilizationRates(two).gpu, nvmlDeviceGetPowerUsage(one) > nvmlDeviceGetPowerUsage(two))
print('by', [(s.pid, s.smUtil > 0) for s in nvmlDeviceGetProcessUtilization(one, 0)])
print(nvmlDeviceGetPerformanceState(one), nvmlDeviceGetClockInfo(one, 0))
while nvmlDeviceGetUtilizationRates(one).gpu: time.sleep(0.01)
now, quiet = int(time.time() * 1e6), None
while quiet is None:
    try: nvmlDeviceGetProcessUtilization(one, now)
    except NVMLError as e: quiet = e.value
print(quiet)";
    let (mut child, lines) = start(&machine, script);
    let next = || lines.recv_timeout(LONG).unwrap();
    assert_eq!(next(), "idle 0");
    let kernel = client.start_kernel(0);
    assert_eq!((next(), next()), ("busy 0 True".into(), format!("by [({}, True)]", this_pid())));
    assert_eq!(next(), "0 1500");
    drop(kernel);
    assert_eq!(next(), "6");
    assert!(child.wait().unwrap().success());
}

#[test]
fn unsupported_calls_are_logged_on_request() {
    let machine = Machine::with("1x4GiB");
    let script = with_pynvml(
        "nvmlInit()
for _ in range(2):
    try: nvmlDeviceGetSerial(nvmlDeviceGetHandleByIndex(0))
    except NVMLError: pass",
    );
    let quiet = machine.command("python").args(["-c", &script]).output().unwrap();
    assert_eq!((printed(&quiet).as_str(), quiet.stderr), ("", vec![]));
    let told = machine.command("python").args(["-c", &script]).env("SUBLET_SOFT_LOG", "1").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&told.stderr), "soft nvml: `nvmlDeviceGetSerial` is not supported\n");
}
