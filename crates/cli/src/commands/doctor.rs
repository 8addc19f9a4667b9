//! `sublet doctor`: what works on this machine, what does not, and why.
//!
//! Without a daemon it says what a daemon would find. No library is loaded into this process, so a broken driver
//! library cannot break it.

mod gpu;
mod machine;

use crate::args::Globals;
use crate::client::{self, Client};
use crate::daemon;
use crate::failure::Failure;
use crate::hold::shim;
use crate::output;
use crate::place;
use crate::table::{TextFormat, Tone, plain, toned, wrapped};
use clap::Args;
use serde::Serialize;
use std::path::Path;
use sublet_wire::{Gpu, GpuState, Gpus, Health, ParkingSpace, exit, size};

/// Say what works on this machine, what does not, and why
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Exit codes: 0 leases can be granted; 1 they cannot.")]
pub struct DoctorArgs {}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was checked.
    pub what: String,
    /// The result.
    pub state: CheckState,
    /// What the result means.
    pub sentence: String,
}

/// The result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    /// It works.
    Ok,
    /// It does not work, and a part of Sublet is lost without it.
    Limited,
    /// It does not work, and Sublet needs it.
    Bad,
}

impl Check {
    fn new(what: impl Into<String>, state: CheckState, sentence: impl Into<String>) -> Check {
        Check { what: what.into(), state, sentence: sentence.into() }
    }
}

/// All results.
#[derive(Clone, Debug, Serialize)]
struct Findings {
    checks: Vec<Check>,
    can_grant: bool,
    verdict: String,
}

/// Runs all checks.
pub fn run(globals: &Globals, _: &DoctorArgs) -> Result<u8, Failure> {
    globals.must_be_local(
        "the doctor looks at the host it runs on",
        "run it there; `sublet gpus` shows the GPUs from here",
    )?;
    let findings = look(globals);
    if globals.json {
        output::json(&findings)?;
    } else {
        output::print(&render(&findings, TextFormat::of_stdout()))?;
    }
    Ok(if findings.can_grant { exit::OK } else { exit::FAILURE })
}

fn look(globals: &Globals) -> Findings {
    let mut checks = Vec::new();
    let mut gpus = None;
    let mut daemon_pid = None;
    match Client::open(globals) {
        Ok(client) => {
            daemon_pid = client.socket().and_then(client::peer).map(|(pid, _)| pid).filter(|pid| *pid > 0);
            checks.push(answer(&client, daemon_pid));
            match client.get::<Gpus>("/v1/gpus") {
                Ok(found) => gpus = Some(found),
                Err(failure) => checks.push(Check::new("GPUs", CheckState::Bad, failure.to_string())),
            }
        }
        Err(failure) => {
            checks.push(Check::new("daemon", CheckState::Bad, failure.to_string()));
            checks.extend(configuration());
        }
    }
    checks.extend(machine::checks(daemon_pid, gpus.as_ref().map(|gpus| gpus.kind.as_str())));
    if let Some(gpus) = &gpus {
        checks.extend(gpus.config_trouble.as_deref().map(refused_reload));
        checks.extend(gpus.trouble.iter().map(|trouble| Check::new("GPUs", CheckState::Bad, trouble.clone())));
        checks.push(parking(gpus.parking.as_ref(), shim::library().as_deref()));
        checks.extend(gpus.parking.as_ref().filter(|_| gpus.kind != "scripted").map(driver));
        checks.extend(gpus.gpus.iter().flat_map(|gpu| gpu::checks(gpu, gpus.parking.is_some())));
    }
    let (can_grant, verdict) = verdict(gpus.as_ref());
    Findings { checks, can_grant, verdict }
}

fn answer(client: &Client, pid: Option<u32>) -> Check {
    let process = pid.map_or_else(String::new, |pid| format!(", process {pid}"));
    match client.get::<Health>("/readyz") {
        Ok(health) => {
            let at = client.place();
            Check::new("daemon", CheckState::Ok, format!("version {} answers at {at}{process}", health.version))
        }
        Err(failure) => Check::new("daemon", CheckState::Bad, format!("not ready: {failure}")),
    }
}

/// What keeps a daemon from starting because of its configuration, if anything.
fn configuration() -> Option<Check> {
    let file = place::config();
    let findings = daemon::check_config(file.as_deref()).err()?;
    let first = findings.first()?.located(file.as_deref());
    Some(Check::new(
        "configuration",
        CheckState::Bad,
        format!("{first}\nhint: `sublet config check` lists every error"),
    ))
}

fn refused_reload(trouble: &str) -> Check {
    let text = format!(
        "the last reload was refused, and the configuration before it is still in use: {trouble}\n\
         hint: mend the file, try it with `sublet config check`, and reload again"
    );
    Check::new("configuration", CheckState::Limited, text)
}

fn parking(parking: Option<&ParkingSpace>, library: Option<&Path>) -> Check {
    let Some(parking) = parking else {
        return Check::new(
            "parking",
            CheckState::Limited,
            "off: no program is parked, and a request waits until a lease ends",
        );
    };
    if library.is_none() {
        let why = "the library that parks programs is not beside `sublet`: programs run without it";
        return Check::new("parking", CheckState::Limited, why);
    }
    let (ram, booked) = (size::show(parking.size_bytes), size::show(parking.booked_bytes));
    let ready = match parking.ready_bytes {
        0 => String::new(),
        stock => format!(", {} kept ready", size::show(stock)),
    };
    let text =
        format!("{ram} of host memory, {booked} booked{ready}; no larger lease can be parked; {}", parking.pages);
    match &parking.advice {
        None => Check::new("parking", CheckState::Ok, text),
        Some(advice) => Check::new("parking", CheckState::Limited, format!("{text}\nhint: {advice}")),
    }
}

/// Whether the driver can park programs without the library.
fn driver(parking: &ParkingSpace) -> Check {
    let text = "programs without the library are parked by the driver where a restore is sure to have room".to_owned();
    match parking.driver_limits.as_slice() {
        _ if !parking.by_driver => {
            let text = "programs without the library are not parked: `driver = \"off\"` in [preemption]";
            Check::new("driver park", CheckState::Limited, text)
        }
        [] => Check::new("driver park", CheckState::Ok, text),
        limits => {
            let limits: Vec<String> = limits.iter().map(|limit| format!("\nbut: {limit}")).collect();
            Check::new("driver park", CheckState::Limited, text + &limits.concat())
        }
    }
}

fn verdict(gpus: Option<&Gpus>) -> (bool, String) {
    let Some(gpus) = gpus else { return (false, "no lease can be granted: no daemon answers".into()) };
    let works = |gpu: &&Gpu| gpu.state == GpuState::InService && gpu.unreadable.is_none();
    let (all, good) = (gpus.gpus.len(), gpus.gpus.iter().filter(works).count());
    let kind = match gpus.kind.as_str() {
        "real" => "",
        "soft" => " (soft: only programs of CUDA's driver API run there)",
        _ => " (scripted: nothing is computed)",
    };
    match (all, good) {
        (0, _) => (false, "no lease can be granted: there are no GPUs".into()),
        (_, 0) => (false, format!("no lease can be granted: none of {all} GPUs can be used now")),
        (1, 1) => (true, format!("leases can be granted on the one GPU{kind}")),
        (all, good) => (true, format!("leases can be granted on {good} of {all} GPUs{kind}")),
    }
}

/// One line for each check. A check that has the same result on several GPUs is one line for all of them.
fn render(findings: &Findings, format: TextFormat) -> String {
    let checks = findings.checks.iter().map(|check| (gpu_of(&check.what), check));
    let mut lines: Vec<(Vec<&str>, &str, &Check)> = Vec::new();
    for ((gpu, what), check) in checks {
        let same = lines.iter_mut().find(|(gpus, known, line)| {
            !gpus.is_empty() && gpu.is_some() && *known == what && same_result(line, check)
        });
        match same {
            Some((gpus, ..)) => gpus.extend(gpu),
            None => lines.push((gpu.into_iter().collect(), what, check)),
        }
    }
    let name = |gpus: &[&str], what: &str| match gpus {
        [] => what.to_owned(),
        [one] => format!("GPU {one} {what}").trim_end().to_owned(),
        several => format!("GPUs {} {what}", several.join(",")).trim_end().to_owned(),
    };
    let width = lines.iter().map(|(gpus, what, _)| name(gpus, what).chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (gpus, what, check) in &lines {
        let (state, tone) = match check.state {
            CheckState::Ok => ("ok", Tone::Plain),
            CheckState::Limited => ("limited", Tone::Notable),
            CheckState::Bad => ("bad", Tone::Wrong),
        };
        let state = format!("{state:<7}");
        let head = format!("{:<width$}  {state}  ", name(gpus, what));
        let indent = head.chars().count();
        for (n, line) in check.sentence.lines().enumerate() {
            let line = wrapped(&format!("{:indent$}{}", "", plain(line)), indent, format);
            let line = if n == 0 { line.replacen(&" ".repeat(indent), &head, 1) } else { line };
            text.push_str(&line.replacen(&state, &toned(&state, tone, format.colour), usize::from(n == 0)));
            text.push('\n');
        }
    }
    format!("{text}\n{}\n", wrapped(&findings.verdict, 2, format))
}

/// The index of the GPU that a check is about, and the rest of its name.
fn gpu_of(what: &str) -> (Option<&str>, &str) {
    match what.strip_prefix("GPU ") {
        Some(rest) => {
            let (index, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            (Some(index), rest)
        }
        None => (None, what),
    }
}

fn same_result(one: &Check, other: &Check) -> bool {
    one.state == other.state && one.sentence == other.sentence
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use expect_test::expect;

    #[test]
    fn findings_line_up_and_end_with_a_verdict() {
        let gpus = sample::gpus();
        let mut checks = vec![Check::new("daemon", CheckState::Ok, "version 0.1.0 answers at /run/sublet/sublet.sock")];
        checks.push(Check::new("GPUs", CheckState::Bad, "no answer\nhint: look at its log"));
        checks.push(parking(gpus.parking.as_ref(), Some(Path::new("/lib"))));
        checks.extend(gpus.parking.as_ref().map(driver));
        checks.extend(gpus.gpus.iter().flat_map(|gpu| gpu::checks(gpu, true)));
        let (can_grant, verdict) = verdict(Some(&gpus));
        expect![[r#"
            daemon              ok       version 0.1.0 answers at /run/sublet/sublet.sock
            GPUs                bad      no answer
                                         hint: look at its log
            parking             ok       32 GiB of host memory, 8 GiB booked, 4 GiB kept ready; no larger lease can be parked; huge pages of shared memory
            driver park         limited  programs without the library are parked by the driver where a restore is sure to have room
                                         but: managed memory cannot leave a GPU this way
            GPU 0               ok       NVIDIA A100-SXM4-40GB, GPU-0a
            GPU 0 grant         ok       26 GiB of 40 GiB free to lease
            GPU 0 bytes         ok       the driver tells the memory of each process
            GPU 0 context       ok       a CUDA context needs 420 MiB; smaller requests are refused
            GPUs 0,1,2 exits    ok       a lease ends as soon as its last process has ended
            GPU 0 park          ok       programs that `sublet run` starts are parked; `sublet ps` says which cannot be
            GPUs 0,1,2 enforce  ok       observe: unleased processes are recorded and left alone
            GPU 1               ok       NVIDIA A100-SXM4-40GB, GPU-1b
            GPU 1 grant         bad      draining: an operator drains it
                                         hint: put it back with `sublet gpus clear 1`
            GPU 1 bytes         limited  the driver does not tell the memory of each process (coarse): the larger of used and leased memory counts as taken, and peaks are unknown
            GPUs 1,2 context    limited  the size of a CUDA context was not measured: requests too small for one are granted
            GPU 1 park          limited  one program at a time is parked, and only with Sublet's library in it: a park is verified by the use of the whole GPU
            GPU 2               ok       NVIDIA A100-SXM4-40GB, GPU-2c
            GPU 2 grant         bad      the GPU did not answer; no new leases there until it does
            GPU 2 bytes         limited  unknown while the GPU does not answer
            GPU 2 park          limited  unknown while the GPU does not answer

            leases can be granted on 1 of 3 GPUs
        "#]].assert_eq(&render(&Findings { checks, can_grant, verdict }, TextFormat::default()));
    }

    #[test]
    fn without_gpus_the_verdict_is_no() {
        let none = Gpus {
            gpus: vec![],
            kind: "real".into(),
            soft_state: None,
            trouble: None,
            config_trouble: None,
            parking: None,
        };
        assert_eq!(verdict(Some(&none)), (false, "no lease can be granted: there are no GPUs".into()));
        assert_eq!(verdict(None), (false, "no lease can be granted: no daemon answers".into()));
    }
}
