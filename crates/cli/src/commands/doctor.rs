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
use crate::table::plain;
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
    pub state: State,
    /// What the result means.
    pub sentence: String,
}

/// The result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It works.
    Ok,
    /// It does not work, and a part of Sublet is lost without it.
    Less,
    /// It does not work, and Sublet needs it.
    Bad,
}

impl Check {
    fn new(what: impl Into<String>, state: State, sentence: impl Into<String>) -> Check {
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
        output::print(&render(&findings))?;
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
                Err(failure) => checks.push(Check::new("GPUs", State::Bad, failure.to_string())),
            }
        }
        Err(failure) => {
            checks.push(Check::new("daemon", State::Bad, failure.to_string()));
            checks.extend(configuration());
        }
    }
    checks.extend(machine::checks(daemon_pid, gpus.as_ref().map(|gpus| gpus.kind.as_str())));
    if let Some(gpus) = &gpus {
        checks.extend(gpus.config_trouble.as_deref().map(refused_reload));
        checks.extend(gpus.trouble.iter().map(|trouble| Check::new("GPUs", State::Bad, trouble.clone())));
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
            Check::new("daemon", State::Ok, format!("version {} answers at {at}{process}", health.version))
        }
        Err(failure) => Check::new("daemon", State::Bad, format!("not ready: {failure}")),
    }
}

/// What keeps a daemon from starting because of its configuration, if anything.
fn configuration() -> Option<Check> {
    let file = place::config();
    let findings = daemon::check_config(file.as_deref()).err()?;
    let first = findings.first()?.located(file.as_deref());
    Some(Check::new("configuration", State::Bad, format!("{first}\nhint: `sublet config check` lists every error")))
}

fn refused_reload(trouble: &str) -> Check {
    let text = format!(
        "the last reload was refused, and the configuration before it is still in use: {trouble}\n\
         hint: mend the file, try it with `sublet config check`, and reload again"
    );
    Check::new("configuration", State::Less, text)
}

fn parking(parking: Option<&ParkingSpace>, library: Option<&Path>) -> Check {
    let Some(parking) = parking else {
        return Check::new(
            "parking",
            State::Less,
            "off: no program is parked, and a waiter waits until a lease's term ends",
        );
    };
    if library.is_none() {
        let why = "the library that parks programs is not beside `sublet`: programs run without it";
        return Check::new("parking", State::Less, why);
    }
    let (ram, booked) = (size::show(parking.size_bytes), size::show(parking.booked_bytes));
    let ready = match parking.ready_bytes {
        0 => String::new(),
        stock => format!(", {} kept ready", size::show(stock)),
    };
    let text =
        format!("{ram} of host memory, {booked} booked{ready}; no larger lease can be parked; {}", parking.pages);
    match &parking.advice {
        None => Check::new("parking", State::Ok, text),
        Some(advice) => Check::new("parking", State::Less, format!("{text}\nhint: {advice}")),
    }
}

/// Whether the driver can park programs without the library.
fn driver(parking: &ParkingSpace) -> Check {
    let text = "programs without the library are parked by the driver where a restore is sure to have room".to_owned();
    match parking.driver_limits.as_slice() {
        _ if !parking.by_driver => {
            let text = "programs without the library are not parked: `driver = \"off\"` in [preemption]";
            Check::new("driver park", State::Less, text)
        }
        [] => Check::new("driver park", State::Ok, text),
        limits => {
            let limits: Vec<String> = limits.iter().map(|limit| format!("\nbut: {limit}")).collect();
            Check::new("driver park", State::Less, text + &limits.concat())
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

fn render(findings: &Findings) -> String {
    let width = findings.checks.iter().map(|check| check.what.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for check in &findings.checks {
        let state = match check.state {
            State::Ok => "ok  ",
            State::Less => "less",
            State::Bad => "bad ",
        };
        let mut lines = check.sentence.lines();
        text.push_str(&format!("{:<width$}  {state}  {}\n", check.what, plain(lines.next().unwrap_or_default())));
        lines.for_each(|line| text.push_str(&format!("{:<width$}        {}\n", "", plain(line))));
    }
    format!("{text}\n{}\n", findings.verdict)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use expect_test::expect;

    #[test]
    fn findings_line_up_and_end_with_a_verdict() {
        let gpus = sample::gpus();
        let mut checks = vec![Check::new("daemon", State::Ok, "version 0.1.0 answers at /run/sublet/sublet.sock")];
        checks.push(Check::new("GPUs", State::Bad, "no answer\nhint: look at its log"));
        checks.push(parking(gpus.parking.as_ref(), Some(Path::new("/lib"))));
        checks.extend(gpus.parking.as_ref().map(driver));
        checks.extend(gpus.gpus.iter().flat_map(|gpu| gpu::checks(gpu, true)));
        let (can_grant, verdict) = verdict(Some(&gpus));
        expect![[r#"
            daemon         ok    version 0.1.0 answers at /run/sublet/sublet.sock
            GPUs           bad   no answer
                                 hint: look at its log
            parking        ok    32 GiB of host memory, 8 GiB booked, 4 GiB kept ready; no larger lease can be parked; huge pages of shared memory
            driver park    less  programs without the library are parked by the driver where a restore is sure to have room
                                 but: managed memory cannot leave a GPU this way
            GPU 0          ok    NVIDIA A100-SXM4-40GB, GPU-0a
            GPU 0 grant    ok    26 GiB of 40 GiB free to lease
            GPU 0 bytes    ok    the driver tells bytes per process
            GPU 0 context  ok    a CUDA context takes 420 MiB; smaller asks are refused
            GPU 0 exits    ok    the end of a holder's last process is noticed at once
            GPU 0 park     ok    programs that `sublet run` starts are parked; `sublet ps` says which cannot be
            GPU 0 enforce  ok    observe: processes without a lease are put on the record, and left alone
            GPU 1          ok    NVIDIA A100-SXM4-40GB, GPU-1b
            GPU 1 grant    bad   draining: an operator drains it
                                 hint: put it back with `sublet gpus clear 1`
            GPU 1 bytes    less  the driver does not tell bytes per process (coarse): room is what is used or promised, whichever is more, and peaks are unknown
            GPU 1 context  less  what a CUDA context takes was not measured: asks too small to start are granted
            GPU 1 exits    ok    the end of a holder's last process is noticed at once
            GPU 1 park     less  one program at a time is parked, and only with Sublet's library in it: what leaves is seen in what the whole GPU has
            GPU 1 enforce  ok    observe: processes without a lease are put on the record, and left alone
            GPU 2          ok    NVIDIA A100-SXM4-40GB, GPU-2c
            GPU 2 grant    bad   the GPU did not answer; no new leases there until it does
            GPU 2 bytes    less  unknown while the GPU does not answer
            GPU 2 context  less  what a CUDA context takes was not measured: asks too small to start are granted
            GPU 2 exits    ok    the end of a holder's last process is noticed at once
            GPU 2 park     less  unknown while the GPU does not answer
            GPU 2 enforce  ok    observe: processes without a lease are put on the record, and left alone

            leases can be granted on 1 of 3 GPUs
        "#]].assert_eq(&render(&Findings { checks, can_grant, verdict }));
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
