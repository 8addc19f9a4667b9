//! The real GPUs, through NVML, and soft ones, through an NVML of their own.
//!
//! The library is opened at the first list, and again at a list that follows a failed reading: a GPU that was reset,
//! or a driver that was reloaded, answers only to a newly opened library. If one GPU does not answer, the others are
//! still reported, and that one keeps the facts of its last reading. Every call here may hang; nothing here guards
//! against that.

use super::{GpuList, GpuSource};
use crate::gpu_protocol::{ReadingResult, ReportedProcess, WorkerReading};
use crate::process;
use crate::{GpuListError, GpuListErrorKind, clock};
use nvml_wrapper::enum_wrappers::device::ComputeMode;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::time::{Duration, Instant};
use sublet_core::ids::ProcKey;
use sublet_core::reading::GpuFacts;
use sublet_core::units::Bytes;

/// Names another NVML library, for soft GPUs and unusual installations.
pub(crate) const NVML_VARIABLE: &str = "SUBLET_NVML_LIB";
const LIBRARY: &str = "libnvidia-ml.so.1";
/// How often a list that grew while it was read is read again.
const LIST_ATTEMPTS: usize = 4;
/// Asking which processes used the engines takes 3 ms, a hundred times the rest of a reading. The driver keeps its
/// samples for longer than this.
const BUSY_EVERY: Duration = Duration::from_secs(2);
/// NVML's value for a GPU with MIG enabled.
const MIG_ON: u32 = 1;

pub(super) struct NvmlGpus {
    nvml: Option<Nvml>,
    listed: Vec<ListedGpu>,
    /// A reading failed since the library was opened.
    is_distrusted: bool,
}

/// A GPU of the last list.
struct ListedGpu {
    /// The facts as last read. The index stays the same until the library is opened again; a query by index is
    /// cheaper than by UUID.
    facts: GpuFacts,
    /// The wall clock of the newest utilisation sample that was read.
    sampled_us: u64,
    /// When utilisation may be queried next.
    busy_at: Instant,
}

impl ListedGpu {
    fn new(facts: &GpuFacts) -> ListedGpu {
        // Work from before the first list is not counted.
        ListedGpu { facts: facts.clone(), sampled_us: wall_us(), busy_at: Instant::now() }
    }
}

impl GpuSource for NvmlGpus {
    fn list(&mut self) -> Result<GpuList, GpuListError> {
        if self.is_distrusted {
            self.nvml = None;
        }
        let nvml = match self.nvml.take() {
            Some(nvml) => nvml,
            None => open()?,
        };
        let known: Vec<GpuFacts> = self.listed.iter().map(|gpu| gpu.facts.clone()).collect();
        let list = list(&nvml).and_then(|read| fill_unreadable(read, &known)).map_err(|error| GpuListError {
            kind: GpuListErrorKind::Failed,
            what: format!("NVML does not list the GPUs: {error}"),
            remedy: "look at the kernel's log (`dmesg`) for NVRM messages".to_owned(),
        })?;
        let known = std::mem::take(&mut self.listed);
        self.listed = list.gpus.iter().map(ListedGpu::new).collect();
        for gpu in &mut self.listed {
            if let Some(known) = known.iter().find(|known| known.facts.uuid == gpu.facts.uuid) {
                (gpu.sampled_us, gpu.busy_at) = (known.sampled_us, known.busy_at);
            }
        }
        self.nvml = Some(nvml);
        self.is_distrusted = list.unread;
        Ok(list)
    }

    fn read_gpus(&mut self, busy: bool) -> Result<Vec<WorkerReading>, GpuListError> {
        if self.nvml.is_none() {
            self.list()?;
        }
        let Some(nvml) = &self.nvml else { return Ok(Vec::new()) };
        let look =
            |gpu: &mut ListedGpu| WorkerReading { uuid: gpu.facts.uuid.clone(), seen: read_gpu(nvml, gpu, busy) };
        let looks: Vec<WorkerReading> = self.listed.iter_mut().map(look).collect();
        self.is_distrusted |= looks.iter().any(|look| !matches!(look.seen, ReadingResult::Used { .. }));
        Ok(looks)
    }
}

impl NvmlGpus {
    pub(super) const fn new() -> NvmlGpus {
        NvmlGpus { nvml: None, listed: Vec::new(), is_distrusted: false }
    }
}

/// The bytes that one process has on a GPU; `None` if the driver does not report them.
pub(super) fn bytes_of(uuid: &str, pid: u32) -> Option<Bytes> {
    let nvml = open().ok()?;
    let gpu = nvml.device_by_uuid(uuid).ok()?;
    let (processes, _) = processes_on(&gpu).ok()?;
    processes.get(&pid)?.0
}

/// The bytes that one process has, by GPU; GPUs without that information are left out.
pub(super) fn bytes_by_gpu(pid: u32) -> BTreeMap<String, u64> {
    let Ok(nvml) = open() else { return BTreeMap::new() };
    let gpus = 0..nvml.device_count().unwrap_or(0);
    let bytes = |index: u32| {
        let gpu = nvml.device_by_index(index).ok()?;
        let (processes, _) = processes_on(&gpu).ok()?;
        Some((gpu.uuid().ok()?, processes.get(&pid)?.0?.0))
    };
    gpus.filter_map(bytes).collect()
}

/// The driver's own version, if it is reported.
pub(super) fn driver_version() -> Option<String> {
    open().ok()?.sys_driver_version().ok()
}

/// True if there are processes, and the driver reports the bytes of none of them.
pub(super) fn has_no_byte_counts(processes: &[ReportedProcess]) -> bool {
    !processes.is_empty() && processes.iter().all(|p| p.bytes.is_none())
}

fn open() -> Result<Nvml, GpuListError> {
    let path = std::env::var_os(NVML_VARIABLE).unwrap_or_else(|| OsString::from(LIBRARY));
    Nvml::builder().lib_path(&path).init().map_err(|error| explain_start_error(&error, &path))
}

/// Explains why NVML does not start, and what helps.
fn explain_start_error(error: &NvmlError, library: &OsStr) -> GpuListError {
    let shown = library.display();
    let (kind, what, remedy) = match error {
        NvmlError::LibloadingError(cause) => (
            GpuListErrorKind::NoLibrary,
            format!("NVML (`{shown}`) cannot be loaded: {cause}"),
            "install the NVIDIA driver, or give its library to this container",
        ),
        NvmlError::DriverNotLoaded => (
            GpuListErrorKind::NoDriver,
            "the NVIDIA kernel module is not loaded".to_owned(),
            "load it (`modprobe nvidia`), or install the driver for this kernel",
        ),
        NvmlError::LibRmVersionMismatch => {
            (GpuListErrorKind::VersionMismatch, mismatch_text(library), "reboot, or load the matching module")
        }
        NvmlError::NoPermission | NvmlError::OperatingSystem => (
            GpuListErrorKind::NoPermission,
            "this user may not open the NVIDIA devices".to_owned(),
            "look at the owner and mode of `/dev/nvidia*`, and at the device cgroup",
        ),
        other => (
            GpuListErrorKind::Failed,
            format!("NVML does not start: {other}"),
            "look at the kernel's log (`dmesg`) for NVRM messages",
        ),
    };
    GpuListError { kind, what, remedy: remedy.to_owned() }
}

fn mismatch_text(library: &OsStr) -> String {
    versions_text(std::fs::read_to_string("/proc/driver/nvidia/version").ok().as_deref(), loaded_version(library))
}

/// `kernel module 580.82.07, library 580.95.05`
fn versions_text(module: Option<&str>, library: Option<String>) -> String {
    let shown = |version: Option<String>| version.unwrap_or_else(|| "of unknown version".to_owned());
    format!("kernel module {}, library {}", shown(module.and_then(module_version)), shown(library))
}

/// The first text like `580.82.07` in the module's output.
fn module_version(text: &str) -> Option<String> {
    text.split_whitespace().find(|word| is_version(word)).map(str::to_owned)
}

fn is_version(word: &str) -> bool {
    word.contains('.') && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
}

/// The version in the file name that the library resolves to.
fn loaded_version(library: &OsStr) -> Option<String> {
    // SAFETY: loading runs the initialisers of NVIDIA's library, which has just been loaded and unloaded in this very
    // process without harm.
    let _loaded = unsafe { libloading::Library::new(library) }.ok()?;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let versions = maps.lines().filter_map(|line| line.split_once("libnvidia-ml.so."));
    versions.map(|(_, version)| version.trim()).find(|version| is_version(version)).map(str::to_owned)
}

/// The result of reading each GPU, by index.
type GpuFactResults = Vec<Result<GpuFacts, NvmlError>>;

fn list(nvml: &Nvml) -> Result<GpuFactResults, NvmlError> {
    let read = |index| nvml.device_by_index(index).and_then(|gpu| facts(&gpu, index));
    Ok((0..nvml.device_count()?).map(read).collect())
}

/// An unreadable GPU is taken for the one that had its index before, unless that one has another index now. If no GPU
/// can be read, the first error is returned.
fn fill_unreadable(read: GpuFactResults, known: &[GpuFacts]) -> Result<GpuList, NvmlError> {
    let readable: Vec<GpuFacts> = read.iter().flatten().cloned().collect();
    let elsewhere = |gpu: &&GpuFacts| readable.iter().any(|other| other.uuid == gpu.uuid);
    let (mut gpus, mut first) = (Vec::new(), None);
    for (index, gpu) in (0..).zip(read) {
        let before = || known.iter().filter(|gpu| gpu.index == index).find(|gpu| !elsewhere(gpu)).cloned();
        match gpu.or_else(|error| before().ok_or(error)) {
            Ok(gpu) => gpus.push(gpu),
            Err(error) => {
                eprintln!("GPU {index} is left out: NVML does not tell what it is: {error}");
                first = first.or(Some(error));
            }
        }
    }
    match first {
        Some(error) if gpus.is_empty() => Err(error),
        first => Ok(GpuList { gpus, unread: first.is_some() }),
    }
}

fn facts(gpu: &Device<'_>, index: u32) -> Result<GpuFacts, NvmlError> {
    Ok(GpuFacts {
        uuid: gpu.uuid()?,
        index,
        name: gpu.name()?,
        total: Bytes(gpu.memory_info()?.total),
        // A GPU that does not report it has no screen: data-centre GPUs answer "not supported".
        display: gpu.is_display_active().unwrap_or(false),
        context: None,
        board: gpu.is_multi_gpu_board().unwrap_or(false).then(|| gpu.board_id().ok()).flatten(),
        node: gpu.pci_info().ok().and_then(|pci| numa_node(&pci.bus_id)),
        unusable: unusable(gpu),
    })
}

/// The NUMA node of a GPU, as the kernel reports it; a machine with one node reports -1.
fn numa_node(bus_id: &str) -> Option<u32> {
    // NVML writes the domain with eight digits, the kernel with four.
    let (domain, rest) = bus_id.split_once(':')?;
    let domain = domain.get(domain.len().checked_sub(4)?..)?;
    let path = format!("/sys/bus/pci/devices/{domain}:{rest}/numa_node").to_lowercase();
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn unusable(gpu: &Device<'_>) -> Option<String> {
    if gpu.mig_mode().is_ok_and(|mode| mode.current == MIG_ON) {
        return Some("MIG is on: only whole GPUs are leased (turn it off with `nvidia-smi -mig 0`)".to_owned());
    }
    match gpu.compute_mode() {
        Ok(ComputeMode::Prohibited) => {
            Some("compute mode is prohibited: no CUDA program may start (`nvidia-smi -c DEFAULT` allows it)".to_owned())
        }
        _ => None,
    }
}

fn read_gpu(nvml: &Nvml, gpu: &mut ListedGpu, busy: bool) -> ReadingResult {
    match try_read_gpu(nvml, gpu, busy) {
        Ok(seen) => seen,
        Err(NvmlError::GpuLost) => ReadingResult::Lost,
        Err(error) => ReadingResult::Failed(format!("NVML: {error}")),
    }
}

fn try_read_gpu(nvml: &Nvml, listed: &mut ListedGpu, busy: bool) -> Result<ReadingResult, NvmlError> {
    let gpu = nvml.device_by_index(listed.facts.index)?;
    let before = gpu.memory_info()?.free;
    let (processes, is_listed) = processes_on(&gpu)?;
    let after = gpu.memory_info()?.free;
    let busy = if busy && !processes.is_empty() { busy_pids_on(&gpu, listed) } else { Vec::new() };
    let reported = |(&pid, &(bytes, graphics)): (&u32, &(Option<Bytes>, bool))| ReportedProcess {
        process: key_of(pid),
        bytes,
        graphics,
        busy: busy.contains(&pid),
    };
    let processes: Vec<ReportedProcess> = processes.iter().map(reported).collect();
    let coarse = !is_listed || has_no_byte_counts(&processes);
    Ok(ReadingResult::Used { free: Bytes(before.min(after)), processes, coarse })
}

/// A start of 0 is no real process: it stands for one that is gone from `/proc`, or in a pid namespace that is not
/// visible here, so its bytes belong to no known process.
fn key_of(pid: u32) -> ProcKey {
    process::stat(pid).map_or(ProcKey { pid, start: 0 }, |stat| stat.key(pid))
}

/// Bytes and "only draws" by pid.
type UsageByPid = BTreeMap<u32, (Option<Bytes>, bool)>;

/// All processes on a GPU, and whether the driver lists them at all.
fn processes_on(gpu: &Device<'_>) -> Result<(UsageByPid, bool), NvmlError> {
    let compute = read_process_list(|| gpu.running_compute_processes())?;
    let graphics = read_process_list(|| gpu.running_graphics_processes())?;
    let is_listed = compute.is_some();
    Ok((merge_by_pid(&compute.unwrap_or_default(), &graphics.unwrap_or_default()), is_listed))
}

/// A list that may not be supported, and may grow while it is read.
fn read_process_list(
    read: impl Fn() -> Result<Vec<ProcessInfo>, NvmlError>,
) -> Result<Option<Vec<ProcessInfo>>, NvmlError> {
    for _ in 1..LIST_ATTEMPTS {
        match read() {
            Err(NvmlError::InsufficientSize(_)) => {}
            Err(NvmlError::NotSupported) => return Ok(None),
            other => return other.map(Some),
        }
    }
    read().map(Some)
}

/// One entry for each pid. A process in both lists is reported with the same bytes in each, so the larger value
/// counts and not the sum.
fn merge_by_pid(compute: &[ProcessInfo], graphics: &[ProcessInfo]) -> UsageByPid {
    let mut merged = UsageByPid::new();
    let entries = compute.iter().map(|p| (p, false)).chain(graphics.iter().map(|p| (p, true)));
    for (process, draws) in entries {
        let bytes = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
            UsedGpuMemory::Unavailable => None,
        };
        let entry = merged.entry(process.pid).or_insert((bytes, draws));
        entry.0 = entry.0.max(bytes);
        entry.1 &= draws;
    }
    merged
}

/// The pids that used an engine of the GPU since the last such query. Empty where the driver does not report it: then
/// CPU time decides about the holder.
fn busy_pids_on(gpu: &Device<'_>, listed: &mut ListedGpu) -> Vec<u32> {
    let now = Instant::now();
    if now < listed.busy_at {
        return Vec::new();
    }
    listed.busy_at = now + BUSY_EVERY;
    let samples = gpu.process_utilization_stats(listed.sampled_us).unwrap_or_default();
    let newer: Vec<_> = samples.into_iter().filter(|sample| sample.timestamp > listed.sampled_us).collect();
    if let Some(newest) = newer.iter().map(|sample| sample.timestamp).max() {
        listed.sampled_us = newest;
    }
    newer.iter().filter(|s| s.sm_util > 0 || s.enc_util > 0 || s.dec_util > 0).map(|s| s.pid).collect()
}

/// NVML stamps its samples with the wall clock.
fn wall_us() -> u64 {
    u64::try_from(clock::unix_us()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(pid: u32, used_gpu_memory: UsedGpuMemory) -> ProcessInfo {
        ProcessInfo { pid, used_gpu_memory, gpu_instance_id: None, compute_instance_id: None }
    }

    #[test]
    fn a_process_in_both_lists_is_one_that_computes() {
        let compute = [info(1, UsedGpuMemory::Used(10)), info(2, UsedGpuMemory::Unavailable)];
        let graphics = [info(1, UsedGpuMemory::Used(10)), info(3, UsedGpuMemory::Used(5))];
        let merged: Vec<_> = merge_by_pid(&compute, &graphics).into_iter().collect();
        assert_eq!(merged, [(1, (Some(Bytes(10)), false)), (2, (None, false)), (3, (Some(Bytes(5)), true))]);
    }

    #[test]
    fn an_unreadable_gpu_does_not_hide_the_others() {
        let gpu = |index, uuid: &str| GpuFacts { uuid: uuid.to_owned(), ..GpuFacts::plain(index, Bytes::gib(24)) };
        let listed_gpus = |read: GpuFactResults, known: &[GpuFacts]| {
            let list = fill_unreadable(read, known).map_err(|error| error.to_string())?;
            let gpus: Vec<_> = list.gpus.iter().map(|gpu| (gpu.index, gpu.uuid.clone())).collect();
            Ok((gpus, list.unread))
        };
        let named = |gpus: &[(u32, &str)]| gpus.iter().map(|(i, uuid)| (*i, (*uuid).to_owned())).collect::<Vec<_>>();
        let known = [gpu(0, "A"), gpu(1, "B")];
        let both = named(&[(0, "A"), (1, "B")]);
        assert_eq!(listed_gpus(vec![Ok(gpu(0, "A")), Err(NvmlError::GpuLost)], &known), Ok((both.clone(), false)));
        assert_eq!(listed_gpus(vec![Err(NvmlError::Unknown), Err(NvmlError::GpuLost)], &known), Ok((both, false)));
        let first = named(&[(0, "A")]);
        assert_eq!(listed_gpus(vec![Ok(gpu(0, "A")), Err(NvmlError::GpuLost)], &[]), Ok((first, true)), "never known");
        let moved = vec![Ok(gpu(0, "B")), Err(NvmlError::GpuLost)];
        assert_eq!(listed_gpus(moved, &known), Ok((named(&[(0, "B")]), true)), "its number is another's now");
        let none: Result<_, String> = listed_gpus(vec![Err(NvmlError::GpuLost)], &[]);
        assert_eq!(none, Err(NvmlError::GpuLost.to_string()), "nothing is left to go on with");
        assert_eq!(listed_gpus(Vec::new(), &known), Ok((Vec::new(), false)));
    }

    #[test]
    fn versions_are_parsed_from_the_modules_text() {
        let closed =
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.82.07  Wed Aug 27 02:38:48 UTC 2025\nGCC 12.2.0";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x@y)";
        assert_eq!(module_version(closed).as_deref(), Some("580.82.07"));
        assert_eq!(module_version(open).as_deref(), Some("580.159.04"));
        assert_eq!(module_version("nothing here."), None);
        assert_eq!(
            versions_text(Some(closed), Some("580.95.05".to_owned())),
            "kernel module 580.82.07, library 580.95.05"
        );
        assert_eq!(versions_text(None, None), "kernel module of unknown version, library of unknown version");
    }

    #[test]
    fn each_failure_to_start_has_its_kind_and_a_remedy() {
        for (error, kind) in [
            (NvmlError::DriverNotLoaded, GpuListErrorKind::NoDriver),
            (NvmlError::LibRmVersionMismatch, GpuListErrorKind::VersionMismatch),
            (NvmlError::NoPermission, GpuListErrorKind::NoPermission),
            (NvmlError::Unknown, GpuListErrorKind::Failed),
        ] {
            let explained = explain_start_error(&error, OsStr::new("libnvidia-ml.so.1"));
            assert_eq!(explained.kind, kind);
            assert!(!explained.what.is_empty() && !explained.remedy.is_empty());
        }
    }
}
