//! What it costs to find the processes on the GPUs of a host that runs 10,000 processes: the service with
//! ten unleased processes on a soft GPU, how soon it knows an eleventh, and one audit by itself.

use crate::client::{Client, bare};
use crate::figure::{Figure, Outcome, Target, digits};
use crate::rig::Rig;
use crate::samples::{Quantiles, Samples};
use crate::soft::Others;
use crate::{proc, service};
use anyhow::{Context, Error, Result, ensure};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use sublet_host::audit::{Devices, audit};
use sublet_host::{process, soft};
use sublet_softgpu::SoftGpuState;

/// Processes that do not use a GPU.
const CROWD: usize = 10_000;
/// Processes on the GPU.
const ON_CARD: usize = 10;
const CARD: &str = "soft:1x64GiB";
/// Audits that are timed.
const CALLS: usize = 2000;
/// Processes that start to use the GPU one after the other.
const COMERS: usize = 20;
/// If the service does not know all processes on the GPU after this time, the bench fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// Many processes that sleep; they end when this is dropped.
struct Crowd(Child);

impl Crowd {
    fn start() -> Result<Crowd> {
        let mut command = Command::new(std::env::current_exe()?);
        // A group of its own: what a terminal sends to this program is not for them.
        command.arg("crowd").arg(CROWD.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut crowd = Crowd(command.spawn()?);
        let out = crowd.0.stdout.take().context("the crowd has no output")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        ensure!(line.trim() == "ready", "this host does not let {CROWD} processes be made");
        Ok(crowd)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Makes `count` processes, and ends them all when its input ends. If it dies before, they die too.
pub fn crowd(count: usize) -> Result<()> {
    let own = rustix::process::getpid();
    let mut made = Vec::with_capacity(count);
    for _ in 0..count {
        // SAFETY: this process has one thread, and the child makes only calls of the kernel.
        match unsafe { libc::fork() } {
            0 => sleep_with(own),
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
pub fn sleep_with(parent: rustix::process::Pid) -> ! {
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
fn known(socket: &Path) -> Result<usize> {
    let mut client = Client::connect(socket)?;
    let (status, body) = client.call(&bare("GET", "/v1/strangers"))?;
    ensure!(status == 200, "{status}");
    let found: serde_json::Value = serde_json::from_slice(body)?;
    Ok(found["strangers"].as_array().map_or(0, Vec::len))
}

/// Waits until the service knows `count` of them.
fn await_known(socket: &Path, count: usize) -> Result<()> {
    let begun = Instant::now();
    while known(socket)? != count {
        ensure!(begun.elapsed() < PATIENCE, "the service knows {} strangers and not {count}", known(socket)?);
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Measures the CPU time of readings with ten unleased processes, how soon another one is known, and one audit.
pub fn run(rig: &Rig) -> Result<Outcome> {
    let folder = rig.fresh("audit")?;
    let _crowd = Crowd::start()?;
    let service = service::sublet(rig, &folder, CARD)?.ready(&folder)?;
    let path = soft::beside(&service.socket);
    let state = SoftGpuState::create(&path, &CARD.trim_start_matches("soft:").parse().map_err(Error::msg::<String>)?)?;
    let _on_card = Others::start(&path, ON_CARD, &state)?;
    await_known(&service.socket, ON_CARD)?;
    let (before, start) = (proc::cpu_of_tree(service.pid())?, Instant::now());
    std::thread::sleep(rig.idle);
    let (cpu, wall) = (proc::cpu_of_tree(service.pid())?.saturating_sub(before), start.elapsed());
    let a_look = cpu.as_secs_f64() * 1000.0 / wall.as_secs_f64();

    let mut soon = Samples::with_capacity(COMERS);
    for _ in 0..COMERS {
        let begun = Instant::now();
        let comer = Others::start(&path, 1, &state)?;
        await_known(&service.socket, ON_CARD + 1)?;
        soon.push(begun.elapsed());
        drop(comer);
        await_known(&service.socket, ON_CARD)?;
    }
    let soon = soon.quantiles();

    let devices = Devices::new([path]);
    let first = state.processes_on(0).next().context("no process is on the GPU")?.pid();
    let first = process::identify(first)?.key;
    let told = audit(first, &devices)?;
    ensure!(told.devices.len() == 1 && told.unread.is_empty(), "the audit is not whole: {told:?}");
    let one = time(CALLS, || audit(first, &devices).map(drop).map_err(Error::from))?;
    let ms = |us: f64| us / 1000.0;
    Ok(Outcome {
        figures: vec![
            Figure {
                what: "a look a second with 10 strangers on a card, among 10,000 processes: CPU of the service for each",
                target: Target::AtMost(2.0),
                measured: a_look,
                unit: "ms",
                note: format!(
                    "{} ms in {} s, the worker and the audits every 15 s in it; {} % of a core",
                    cpu.as_millis(),
                    digits(wall.as_secs_f64()),
                    digits(a_look / 10.0)
                ),
            },
            Figure {
                what: "from the start of a program that uses a card to its record, the slowest",
                target: Target::AtMost(1500.0),
                measured: ms(soon.max_us),
                unit: "ms",
                note: format!("p50 {} ms of {COMERS}, the start of the program in it", digits(ms(soon.p50_us))),
            },
            Figure {
                what: "one audit of a process on a card, p50",
                target: Target::AtMost(1.0),
                measured: ms(one.p50_us),
                unit: "ms",
                note: format!("99 % within {} ms", digits(ms(one.p99_us))),
            },
        ],
        raw: serde_json::json!({ "cpu_s": cpu.as_secs_f64(), "wall_s": wall.as_secs_f64(), "soon": soon, "one": one }),
    })
}
