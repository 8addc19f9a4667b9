//! What it costs to find the processes on the GPUs of a host that runs 10,000 processes: the service with
//! ten unleased processes on a soft GPU, how soon it knows an eleventh, and one audit by itself.

use crate::client::{BenchClient, bodiless_request};
use crate::figure::{BenchOutcome, Figure, FigureTarget, digits};
use crate::rig::BenchRig;
use crate::samples::{Quantiles, Samples};
use crate::soft::OtherProcesses;
use crate::{proc, service};
use anyhow::{Context, Error, Result, ensure};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use sublet_host::audit::{GpuDeviceFiles, audit};
use sublet_host::{process, soft};
use sublet_softgpu::SoftGpuState;

/// Processes that do not use a GPU.
const SLEEPERS: usize = 10_000;
/// Processes on the GPU.
const GPU_PROCESSES: usize = 10;
const SOFT_GPU: &str = "soft:1x64GiB";
/// Audits that are timed.
const CALLS: usize = 2000;
/// Processes that start to use the GPU one after the other.
const NEW_PROCESSES: usize = 20;
/// If the service does not know all processes on the GPU after this time, the bench fails.
const KNOWN_WITHIN: Duration = Duration::from_secs(20);

/// Many processes that sleep; they end when this is dropped.
struct SleepingProcesses(Child);

impl SleepingProcesses {
    fn start() -> Result<SleepingProcesses> {
        let mut command = Command::new(std::env::current_exe()?);
        // A group of its own: what a terminal sends to this program is not for them.
        command.arg("crowd").arg(SLEEPERS.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut sleepers = SleepingProcesses(command.spawn()?);
        let out = sleepers.0.stdout.take().context("the crowd has no output")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        ensure!(line.trim() == "ready", "this host does not let {SLEEPERS} processes be made");
        Ok(sleepers)
    }
}

impl Drop for SleepingProcesses {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Makes `count` processes, and ends them all when its input ends. If it dies before, they die too.
pub fn sleepers(count: usize) -> Result<()> {
    let own = rustix::process::getpid();
    let mut made = Vec::with_capacity(count);
    for _ in 0..count {
        // SAFETY: this process has one thread, and the child makes only calls of the kernel.
        match unsafe { libc::fork() } {
            0 => sleep_until_parent_dies(own),
            -1 => break,
            pid => made.push(pid),
        }
    }
    if made.len() == count {
        println!("ready");
        std::io::stdin().read_to_end(&mut Vec::new())?;
    }
    for pid in &made {
        if let Some(pid) = rustix::process::Pid::from_raw(*pid) {
            rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
            rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())?;
        }
    }
    ensure!(made.len() == count, "only {} processes could be made", made.len());
    Ok(())
}

/// Sleeps for as long as its parent lives.
pub fn sleep_until_parent_dies(parent: rustix::process::Pid) -> ! {
    let ends = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    loop {
        // The parent may have died before the call.
        if ends.is_err() || rustix::process::getppid() != Some(parent) {
            // SAFETY: ends this process at once, without what its parent's runtime would do at an exit.
            unsafe { libc::_exit(1) }
        }
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
}

fn time(calls: usize, mut call: impl FnMut() -> Result<()>) -> Result<Quantiles> {
    let mut samples = Samples::with_capacity(calls);
    for _ in 0..calls {
        let begun = Instant::now();
        call()?;
        samples.push(begun.elapsed());
    }
    Ok(samples.quantiles())
}

/// Unleased processes that the service knows.
fn unleased_count(socket: &Path) -> Result<usize> {
    let mut client = BenchClient::connect(socket)?;
    let (status, body) = client.call(&bodiless_request("GET", "/v1/unleased"))?;
    ensure!(status == 200, "{status}");
    let found: serde_json::Value = serde_json::from_slice(body)?;
    Ok(found["processes"].as_array().map_or(0, Vec::len))
}

/// Waits until the service knows `count` of them.
fn await_unleased(socket: &Path, count: usize) -> Result<()> {
    let begun = Instant::now();
    while unleased_count(socket)? != count {
        ensure!(
            begun.elapsed() < KNOWN_WITHIN,
            "the service knows {} strangers and not {count}",
            unleased_count(socket)?
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Measures the CPU time of readings with ten unleased processes, how soon another one is known, and one audit.
pub fn run(rig: &BenchRig) -> Result<BenchOutcome> {
    let folder = rig.fresh_folder("audit")?;
    let _crowd = SleepingProcesses::start()?;
    let service = service::sublet(rig, &folder, SOFT_GPU)?.await_ready(&folder)?;
    let path = soft::state_file_for(&service.socket);
    let state =
        SoftGpuState::create(&path, &SOFT_GPU.trim_start_matches("soft:").parse().map_err(Error::msg::<String>)?)?;
    let _on_card = OtherProcesses::start(&path, GPU_PROCESSES, &state)?;
    await_unleased(&service.socket, GPU_PROCESSES)?;
    let (before, start) = (proc::cpu_of_tree(service.pid())?, Instant::now());
    std::thread::sleep(rig.idle);
    let (cpu, wall) = (proc::cpu_of_tree(service.pid())?.saturating_sub(before), start.elapsed());
    let reading_ms = cpu.as_secs_f64() * 1000.0 / wall.as_secs_f64();

    let mut soon = Samples::with_capacity(NEW_PROCESSES);
    for _ in 0..NEW_PROCESSES {
        let begun = Instant::now();
        let newcomer = OtherProcesses::start(&path, 1, &state)?;
        await_unleased(&service.socket, GPU_PROCESSES + 1)?;
        soon.push(begun.elapsed());
        drop(newcomer);
        await_unleased(&service.socket, GPU_PROCESSES)?;
    }
    let soon = soon.quantiles();

    let devices = GpuDeviceFiles::new([path]);
    let first = state.processes_on(0).next().context("no process is on the GPU")?.pid();
    let first = process::identify(first)?.key;
    let audited = audit(first, &devices)?;
    ensure!(audited.devices.len() == 1 && audited.unread.is_empty(), "the audit is not whole: {audited:?}");
    let one = time(CALLS, || audit(first, &devices).map(drop).map_err(Error::from))?;
    let ms = |us: f64| us / 1000.0;
    Ok(BenchOutcome {
        figures: vec![
            Figure {
                what: "a look a second with 10 strangers on a card, among 10,000 processes: CPU of the service for each",
                target: FigureTarget::AtMost(2.0),
                measured: reading_ms,
                unit: "ms",
                note: format!(
                    "{} ms in {} s, the worker and the audits every 15 s in it; {} % of a core",
                    cpu.as_millis(),
                    digits(wall.as_secs_f64()),
                    digits(reading_ms / 10.0)
                ),
            },
            Figure {
                what: "from the start of a program that uses a card to its record, the slowest",
                target: FigureTarget::AtMost(1500.0),
                measured: ms(soon.max_us),
                unit: "ms",
                note: format!("p50 {} ms of {NEW_PROCESSES}, the start of the program in it", digits(ms(soon.p50_us))),
            },
            Figure {
                what: "one audit of a process on a card, p50",
                target: FigureTarget::AtMost(1.0),
                measured: ms(one.p50_us),
                unit: "ms",
                note: format!("99 % within {} ms", digits(ms(one.p99_us))),
            },
        ],
        raw: serde_json::json!({ "cpu_s": cpu.as_secs_f64(), "wall_s": wall.as_secs_f64(), "soon": soon, "one": one }),
    })
}
