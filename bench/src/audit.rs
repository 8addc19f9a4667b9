//! What it costs to know who is on the cards: one audit, and a sweep over ten processes on a card of a host
//! that runs ten thousand.
//!
//! The sweep begins with the numbers that the driver lists and ends with everybody audited and in custody.
//! Beside it: asking every process of the host, which is what a sweep without custody would do.

use crate::figure::{Figure, Outcome, Target, digits};
use crate::rig::Rig;
use crate::samples::{Quantiles, Samples};
use crate::soft::Others;
use anyhow::{Context, Error, Result, ensure};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use sublet_core::ids::ProcKey;
use sublet_host::audit::{Custody, Devices, audit};
use sublet_host::process;
use sublet_softgpu::State;

/// Processes that have nothing to do with cards.
const CROWD: usize = 10_000;
/// Processes on a card.
const ON_CARD: usize = 10;
/// Audits and sweeps that are timed.
const CALLS: usize = 2000;
/// Times that every process is asked: each takes a good part of a second.
const SCANS: usize = 3;

/// Many processes that sleep; they leave with the drop.
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

/// Makes so many processes, and takes them all away when its input ends. Should it die before, they die too.
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
fn sleep_with(parent: rustix::process::Pid) -> ! {
    let ends = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    loop {
        // It may have died before it could be followed.
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

/// Who the numbers are that the driver lists.
fn identified(pids: &[u32]) -> Result<BTreeSet<ProcKey>> {
    Ok(pids.iter().map(|pid| process::identify(*pid).map(|identity| identity.key)).collect::<Result<_, _>>()?)
}

/// One audit; a sweep in which nothing changed; one in which all are new; every process asked.
pub fn run(rig: &Rig) -> Result<Outcome> {
    let path = rig.fresh("audit")?.join("cards");
    let state = State::create(&path, &"1x64GiB".parse().map_err(Error::msg::<String>)?)?;
    let _on_card = Others::start(&path, ON_CARD, &state)?;
    let pids: Vec<u32> = state.processes_on(0).map(|process| process.pid()).collect();
    let devices = Devices::new([path]);
    let _crowd = Crowd::start()?;

    let wanted = identified(&pids)?;
    let first = *wanted.first().context("nobody is on the card")?;
    let told = audit(first, &devices)?;
    ensure!(told.devices.len() == 1 && told.unread.is_empty(), "the audit is not whole: {told:?}");
    let one = time(CALLS, || audit(first, &devices).map(drop).map_err(Error::from))?;
    let mut custody = Custody::new(devices.clone());
    custody.follow(&wanted);
    let unchanged = time(CALLS, || {
        let turnover = custody.follow(&identified(&pids)?);
        ensure!(turnover.came.is_empty() && turnover.left.is_empty() && turnover.unread.is_empty(), "{turnover:?}");
        Ok(())
    })?;
    let all_new = time(CALLS / ON_CARD, || {
        let turnover = Custody::new(devices.clone()).follow(&identified(&pids)?);
        ensure!(turnover.came.len() == ON_CARD, "{turnover:?}");
        Ok(())
    })?;
    let everybody = time(SCANS, || {
        let all = process::all()?;
        ensure!(all.len() > CROWD, "only {} processes are there", all.len());
        // Whoever ended meanwhile is nobody's.
        all.iter().for_each(|pid| drop(process::identify(*pid)));
        Ok(())
    })?;
    let ms = |us: f64| us / 1000.0;
    let shown = |times: &Quantiles| digits(ms(times.p50_us));
    Ok(Outcome {
        figures: vec![
            Figure {
                what: "one audit of a process on a card, p50",
                target: Target::AtMost(1.0),
                measured: ms(one.p50_us),
                unit: "ms",
                note: format!("99 % within {} ms", digits(ms(one.p99_us))),
            },
            Figure {
                what: "a sweep over 10 processes on a card among 10,000, nothing changed, p50",
                target: Target::AtMost(2.0),
                measured: ms(unchanged.p50_us),
                unit: "ms",
                note: format!(
                    "99 % within {} ms; all ten new: {} ms; every process asked who it is: {} ms",
                    digits(ms(unchanged.p99_us)),
                    shown(&all_new),
                    shown(&everybody)
                ),
            },
        ],
        raw: serde_json::json!({ "one": one, "unchanged": unchanged, "all_new": all_new, "everybody": everybody }),
    })
}
