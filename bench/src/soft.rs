//! What calls of the soft GPUs cost: allocating and freeing memory, and calls of NVML, with
//! one process on the GPU and with sixteen.

use crate::figure::{BenchOutcome, Figure, FigureTarget, digits};
use crate::rig::BenchRig;
use crate::samples::{Quantiles, Samples};
use anyhow::{Context, Error, Result, bail, ensure};
use libloading::{Library, Symbol};
use std::ffi::{c_uint, c_void};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use sublet_softgpu::state::ENV;
use sublet_softgpu::{SoftGpuClient, SoftGpuState};

/// Calls of each kind.
const CALLS: usize = 50_000;
/// Bytes of an allocation.
const BYTES: u64 = 2 << 20;

type DeviceQuery<T> = unsafe extern "C" fn(*mut c_void, *mut T) -> c_uint;
type ProcessListQuery = unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut [u64; 3]) -> c_uint;

/// A process that is on the GPU until its standard input ends.
pub fn occupy_gpu(path: &Path) -> Result<()> {
    let _seat = occupied_seat(path)?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// A seat with a context and memory, as a program has it.
fn occupied_seat(path: &Path) -> Result<SoftGpuClient> {
    let seat = SoftGpuClient::register(SoftGpuState::open(path)?)?;
    ensure!(seat.reserve(0, BYTES).is_ok(), "the card is full");
    seat.row().gpus[0].contexts.store(1, SeqCst);
    Ok(seat)
}

/// Other processes; they end when this is dropped.
pub struct OtherProcesses(Vec<Child>);

impl OtherProcesses {
    /// Starts `count` processes, and waits until all are on the GPU.
    pub fn start(path: &Path, count: usize, state: &SoftGpuState) -> Result<OtherProcesses> {
        let mut others = OtherProcesses(Vec::new());
        for _ in 0..count {
            let mut command = Command::new(std::env::current_exe()?);
            others.0.push(command.arg("sit").arg(path).stdin(Stdio::piped()).spawn()?);
        }
        let begun = Instant::now();
        while state.processes_on(0).count() < count {
            if begun.elapsed() > Duration::from_secs(20) {
                bail!("the other processes do not come to the card");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(others)
    }
}

impl Drop for OtherProcesses {
    fn drop(&mut self) {
        for child in &mut self.0 {
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }
}

fn time(mut call: impl FnMut() -> bool) -> Result<Quantiles> {
    let mut samples = Samples::with_capacity(CALLS);
    for _ in 0..CALLS {
        let begun = Instant::now();
        let worked = call();
        samples.push(begun.elapsed());
        ensure!(worked, "a call failed");
    }
    Ok(samples.quantiles())
}

/// Times the calls with this many processes on the GPU.
fn with_processes(rig: &BenchRig, processes: usize) -> Result<Vec<(&'static str, Quantiles)>> {
    let path = rig.fresh_folder(&format!("soft{processes}"))?.join("cards");
    let state = SoftGpuState::create(&path, &"1x64GiB".parse().map_err(Error::msg::<String>)?)?;
    let _others = OtherProcesses::start(&path, processes - 1, &state)?;
    let seat = occupied_seat(&path)?;
    let mut found = vec![(
        "take and give back memory",
        time(|| {
            let taken = seat.reserve(0, BYTES).is_ok();
            seat.give_back(0, BYTES);
            taken
        })?,
    )];
    // SAFETY: this process has no other threads.
    unsafe { std::env::set_var(ENV, &path) };
    let place = std::env::current_exe()?.parent().context("this program is in no folder")?.join("deps/libnvidia_ml.so");
    // SAFETY: the library does nothing when it is loaded; its functions have these arguments in
    // NVML, and every pointer is to enough room.
    unsafe {
        let library = Library::new(&place).with_context(|| format!("no library `{}`", place.display()))?;
        let init: Symbol<unsafe extern "C" fn() -> c_uint> = library.get("nvmlInit_v2")?;
        let handle: Symbol<unsafe extern "C" fn(c_uint, *mut *mut c_void) -> c_uint> =
            library.get("nvmlDeviceGetHandleByIndex_v2")?;
        let end: Symbol<unsafe extern "C" fn() -> c_uint> = library.get("nvmlShutdown")?;
        let mut card = null_mut();
        ensure!(init() == 0 && handle(0, &raw mut card) == 0, "NVML does not start");
        let memory: Symbol<DeviceQuery<[u64; 3]>> = library.get("nvmlDeviceGetMemoryInfo")?;
        found.push(("NVML, memory", time(|| memory(card, &mut [0; 3]) == 0)?));
        let list: Symbol<ProcessListQuery> = library.get("nvmlDeviceGetComputeRunningProcesses_v3")?;
        let mut room = vec![[0; 3]; 512];
        let mut count = 0;
        found.push((
            "NVML, processes",
            time(|| {
                count = 512;
                list(card, &raw mut count, room.as_mut_ptr()) == 0
            })?,
        ));
        ensure!(count as usize == processes, "NVML tells of {count} processes, not {processes}");
        let rates: Symbol<DeviceQuery<[c_uint; 2]>> = library.get("nvmlDeviceGetUtilizationRates")?;
        found.push(("NVML, utilisation", time(|| rates(card, &mut [0; 2]) == 0)?));
        ensure!(end() == 0, "NVML does not end");
    }
    Ok(found)
}

/// The slowest kind of call with one process, and with sixteen.
pub fn run(rig: &BenchRig) -> Result<BenchOutcome> {
    let (one, many) = (with_processes(rig, 1)?, with_processes(rig, 16)?);
    let figure = |what, of: &[(&str, Quantiles)], is: fn(&str) -> bool| {
        let mut told = Vec::new();
        let mut slowest = 0.0_f64;
        for (name, times) in of.iter().filter(|(name, _)| is(name)) {
            slowest = slowest.max(times.p50_us);
            told.push(format!("{name} {} (99 % within {})", digits(times.p50_us), digits(times.p99_us)));
        }
        Figure { what, target: FigureTarget::AtMost(10.0), measured: slowest, unit: "µs", note: told.join("; ") }
    };
    let is_nvml = |name: &str| name.starts_with("NVML");
    let is_memory = |name: &str| !name.starts_with("NVML");
    Ok(BenchOutcome {
        figures: vec![
            figure("memory of a soft card, taken and given back, one process, p50", &one, is_memory),
            figure("memory of a soft card, taken and given back, 16 processes, p50", &many, is_memory),
            figure("the slowest NVML call, one process, p50", &one, is_nvml),
            figure("the slowest NVML call, 16 processes, p50", &many, is_nvml),
        ],
        raw: serde_json::json!({ "1": one, "16": many }),
    })
}
