//! `sublet aside`: a GPU steps aside for a game or a desktop program, and comes back.

use super::gpus::find;
use super::run::pass_on;
use crate::args::Globals;
use crate::client::{CallError, Client, RESTART};
use crate::completion;
use crate::failure::{Failure, tell_hint};
use crate::hold::ask::parse_span;
use crate::hold::child::{self, Started};
use crate::hold::events::{self, RunEvent, Signal};
use crate::output;
use crate::table::plain;
use crate::text;
use clap::Args;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use signal_hook::consts::SIGCHLD;
use std::ffi::OsString;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};
use sublet_wire::{Aside, AsideRequest, Code, Gpu, Gpus, exit};

/// An aside that is not renewed within this time is over: its command and the process that renewed it were killed.
const LEASE_S: u64 = 30;
/// The time between two renewals.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// The pause before a failed renewal is tried again.
const RENEW_AGAIN: Duration = Duration::from_secs(1);
/// How long to wait for leases to be parked. Parking may take longer, but the GPU is closed to new leases anyway.
const PARKED_WITHIN: Duration = Duration::from_secs(60);
/// The time between two checks whether all leases are parked.
const LOOK: Duration = Duration::from_millis(100);
/// The time limit for ending an aside. If the daemon does not answer, the aside expires without renewals.
const END_WITHIN: Duration = Duration::from_secs(3);

/// Free a GPU for a game or a desktop program for a while
///
/// Leases there are parked where they can be, and nothing is granted until the end
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct AsideArgs {
    /// For how long [default: until `--end`, at most 12h; with --while as long as the command runs]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_for, conflicts_with = "end")]
    span_s: Option<u64>,
    /// As long as a command runs
    #[arg(long = "while", requires = "command", conflicts_with = "end")]
    while_running: bool,
    /// Step aside no longer: parked leases are resumed
    #[arg(long)]
    end: bool,
    /// Only this GPU, by index or UUID; may be given more than once [default: all GPUs]
    #[arg(long = "gpu", value_name = "GPU", value_delimiter = ',', add = completion::gpu())]
    gpus: Vec<String>,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND", requires = "while_running", add = completion::command())]
    command: Vec<OsString>,
}

const AFTER_HELP: &str = "\
Every lease on the GPU that can be parked is parked: its memory moves to host
memory, its programs live. Nothing is granted there meanwhile. A lease that
cannot be parked stays, and is named with the reason. No program is ended, and
processes without a lease are left alone. At the end, the leases come back by
themselves.

Users with an active session at this host's seat may do this, and operators;
`[aside]` in the configuration lets others. `sublet` and `sublet gpus` show
which GPUs step aside.

With --while the GPU comes back when the command ends. If this program is
killed, too, that takes up to 30 s. The exit code is the command's.

Examples:
  sublet aside --for 3h                 all GPUs, for three hours
  sublet aside --gpu 0                  GPU 0, until `aside --end --gpu 0`
  sublet aside --while -- ./game        as long as the game runs
  sublet aside --end                    at once";

/// Parses a length of time from a second to a day.
fn parse_for(text: &str) -> Result<u64, String> {
    let longest = 24 * 3600;
    match parse_span(text)? {
        span if (1..=longest).contains(&span) => Ok(span),
        _ => {
            Err(format!("a GPU steps aside for 1s to 24h, not for {text}\nhint: run it again before the time is over"))
        }
    }
}

/// Runs `sublet aside`.
pub fn run(globals: &Globals, args: &AsideArgs) -> Result<u8, Failure> {
    globals.must_be_local("a GPU steps aside for a user at its host", "run it on that host")?;
    if let Some(command) = args.command.first() {
        child::find(command)?;
    }
    let client = Client::open(globals)?;
    let uuids = chosen(&client.get("/v1/gpus")?, &args.gpus)?;
    if args.end {
        return end(globals, &client, &uuids);
    }
    if args.while_running {
        return run_beside(&client, &uuids, args);
    }
    put(&client, &uuids, &AsideRequest { for_s: args.span_s, ..AsideRequest::default() })?;
    let gpus = when_parked(&client, &uuids)?;
    if globals.json {
        output::json(&gpus)?;
    } else {
        let zone = TimeZone::system();
        output::print(&render(&gpus, |aside| format!("until {}", clock(aside.until_unix_s, &zone))))?;
        let most = if args.span_s.is_none() { "without `--for` it lasts 12 h at most; " } else { "" };
        tell_hint(&format!("{most}`sublet aside --end` brings the leases back before that"));
    }
    Ok(exit::OK)
}

/// The UUIDs of the named GPUs.
fn chosen(gpus: &Gpus, names: &[String]) -> Result<Vec<String>, Failure> {
    if names.is_empty() {
        let all: Vec<String> = gpus.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        return if all.is_empty() { Err(Failure::new(exit::FAILURE, "there is no GPU here")) } else { Ok(all) };
    }
    names.iter().map(|name| Ok(find(gpus, name)?.uuid.clone())).collect()
}

/// Sets all of these GPUs aside, or none of them.
fn put(client: &Client, uuids: &[String], ask: &AsideRequest) -> Result<(), Failure> {
    for (done, uuid) in uuids.iter().enumerate() {
        if let Err(error) = client.put_aside(uuid, ask, RESTART) {
            for uuid in &uuids[..done] {
                let _ = client.end_aside(uuid, ask.key.as_deref(), END_WITHIN);
            }
            return Err(client.failure(error));
        }
    }
    Ok(())
}

fn end(globals: &Globals, client: &Client, uuids: &[String]) -> Result<u8, Failure> {
    let gpus: Gpus = client.get("/v1/gpus")?;
    let aside = |uuid: &&String| gpus.gpus.iter().any(|gpu| gpu.uuid == **uuid && gpu.aside.is_some());
    let aside: Vec<&String> = uuids.iter().filter(aside).collect();
    let mut ended = Vec::new();
    for uuid in &aside {
        ended.push(client.end_aside(uuid, None, RESTART).map_err(|error| client.failure(error))?);
    }
    if globals.json {
        output::json(&ended)?;
    } else if ended.is_empty() {
        output::print("no GPU steps aside\n")?;
    } else {
        let lines = ended.iter().map(|gpu| match &gpu.aside {
            None => format!("GPU {} no longer steps aside: its parked leases are being resumed\n", gpu.index),
            Some(aside) => format!("GPU {} still steps aside for {}\n", gpu.index, plain(&aside.user)),
        });
        output::print(&lines.collect::<String>())?;
    }
    Ok(exit::OK)
}

/// These GPUs once no lease is leaving them any more, or after `PARKED_WITHIN`.
fn when_parked(client: &Client, uuids: &[String]) -> Result<Vec<Gpu>, Failure> {
    let until = Instant::now() + PARKED_WITHIN;
    loop {
        let gpus: Gpus = client.get("/v1/gpus")?;
        let gpus: Vec<Gpu> = gpus.gpus.into_iter().filter(|gpu| uuids.contains(&gpu.uuid)).collect();
        let leaving = |gpu: &Gpu| gpu.aside.as_ref().is_some_and(|aside| aside.parking > 0);
        if !gpus.iter().any(leaving) || Instant::now() >= until {
            return Ok(gpus);
        }
        thread::sleep(LOOK);
    }
}

/// Runs the command while the GPUs are set aside.
fn run_beside(client: &Client, uuids: &[String], args: &AsideArgs) -> Result<u8, Failure> {
    let (_sender, receiver) = events::listen()?;
    let aside = Renewed {
        client: client.clone(),
        uuids: uuids.to_vec(),
        key: format!("while-{}-{}", std::process::id(), Timestamp::now().as_nanosecond()),
        until: args.span_s.map(|span| Instant::now() + Duration::from_secs(span)),
    };
    put(client, uuids, &aside.request(false))?;
    let (stop, stopped) = channel();
    let code = thread::scope(|scope| {
        let aside = &aside;
        scope.spawn(move || aside.renew_until(&stopped));
        let code = when_parked(client, uuids).and_then(|gpus| {
            eprint!("{}", render(&gpus, |_| "while the command runs".to_owned()));
            Started::start(&args.command, &Vec::new()).map(|started| supervise(started, &receiver))
        });
        drop(stop);
        code
    });
    for uuid in uuids {
        // If the daemon does not answer, the aside expires, because nothing renews it.
        let _ = client.end_aside(uuid, Some(&aside.key), END_WITHIN);
    }
    code
}

/// Passes signals on until the command ends.
fn supervise(started: Started, receiver: &Receiver<RunEvent>) -> u8 {
    loop {
        match receiver.recv() {
            Ok(RunEvent::Signal(Signal { number: SIGCHLD, .. })) => {
                if let Some(code) = started.reap().command {
                    return code;
                }
            }
            Ok(RunEvent::Signal(signal)) => pass_on(started, signal),
            Ok(_) => {}
            // The sender lives as long as the caller, so this does not happen.
            Err(_) => return exit::FAILURE,
        }
    }
}

/// An aside that expires soon unless it is renewed.
struct Renewed {
    client: Client,
    uuids: Vec<String>,
    key: String,
    /// When it ends in any case; `None` if it has no such limit.
    until: Option<Instant>,
}

impl Renewed {
    fn request(&self, renew: bool) -> AsideRequest {
        let left = self.until.map_or(LEASE_S, |until| until.saturating_duration_since(Instant::now()).as_secs());
        AsideRequest { for_s: Some(left.clamp(1, LEASE_S)), key: Some(self.key.clone()), renew }
    }

    /// Renews the aside until the other end of `stopped` is dropped, a user ends the aside, or its time is over.
    fn renew_until(&self, stopped: &Receiver<()>) {
        let mut kept: Vec<&String> = self.uuids.iter().collect();
        let mut pause = RENEW_EVERY;
        while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) && !kept.is_empty() {
            if self.until.is_some_and(|until| until <= Instant::now()) {
                return;
            }
            pause = RENEW_EVERY;
            kept.retain(|uuid| match self.client.put_aside(uuid, &self.request(true), RENEW_AGAIN) {
                Ok(_) => true,
                Err(CallError::Refused(problem)) if problem.code == Code::NoSuchAside => {
                    eprintln!("the aside was ended: leases come back to the GPU, and the command goes on");
                    false
                }
                Err(_) => {
                    pause = RENEW_AGAIN;
                    true
                }
            });
        }
    }
}

/// One line for each GPU that is set aside: for how long, and the leases that stay there.
fn render(gpus: &[Gpu], how_long: impl Fn(&Aside) -> String) -> String {
    let aside = gpus.iter().filter_map(|gpu| gpu.aside.as_ref().map(|aside| (gpu, aside)));
    let line = |(gpu, aside): (&Gpu, &Aside)| {
        let (how_long, parked) = (how_long(aside), parked(gpu, aside));
        format!("GPU {} steps aside {how_long}: {parked}\n{}", gpu.index, stays(gpu, aside))
    };
    aside.map(line).collect()
}

/// What happened to the leases there.
fn parked(gpu: &Gpu, aside: &Aside) -> String {
    let parked = gpu.occupants.iter().filter(|occupant| occupant.state == "parked").count() as u64;
    let leaving = match aside.parking {
        0 => String::new(),
        leaving => format!(", {} being parked", text::count(leaving.into(), "lease")),
    };
    match parked {
        0 if leaving.is_empty() => "no lease is parked there".to_owned(),
        parked => format!("{} parked{leaving}", text::count(parked, "lease")),
    }
}

fn stays(gpu: &Gpu, aside: &Aside) -> String {
    let name = |lease: &Option<String>, user: &str| match lease {
        Some(lease) => lease.clone(),
        None => format!("a lease of {}", plain(user)),
    };
    let line = |stays: &sublet_wire::AsideStay| {
        format!("  {} stays on GPU {}: {}\n", name(&stays.lease, &stays.user), gpu.index, plain(&stays.why))
    };
    aside.stays.iter().map(line).collect()
}

fn clock(unix_s: f64, zone: &TimeZone) -> String {
    match Timestamp::from_second(unix_s.ceil() as i64) {
        Ok(at) => at.to_zoned(zone.clone()).strftime("%H:%M").to_string(),
        Err(_) => "later".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use expect_test::expect;
    use sublet_wire::{AsideStay, GpuState};

    fn aside() -> Vec<Gpu> {
        let stays = vec![
            AsideStay { lease: Some("L3".into()), user: "ana".into(), why: "it has no hook".into() },
            AsideStay { lease: None, user: "bob".into(), why: "parking is off".into() },
        ];
        let aside = Aside { user: "ana".into(), since_unix_s: 0.0, until_unix_s: sample::NOW, parking: 1, stays };
        let mut gpus = sample::gpus().gpus;
        (gpus[0].state, gpus[0].aside) = (GpuState::Aside, Some(aside));
        gpus
    }

    #[test]
    fn leases_that_stay_are_named_with_the_reason() {
        let until = |aside: &Aside| format!("until {}", clock(aside.until_unix_s, &TimeZone::UTC));
        expect![[r#"
            GPU 0 steps aside until 22:13: 0 leases parked, 1 lease being parked
              L3 stays on GPU 0: it has no hook
              a lease of bob stays on GPU 0: parking is off
        "#]]
        .assert_eq(&render(&aside(), until));
    }

    #[test]
    fn times_are_from_a_second_to_a_day() {
        assert_eq!(parse_for("3h"), Ok(3 * 3600));
        assert_eq!(parse_for("24h"), Ok(24 * 3600));
        assert!(parse_for("25h").is_err_and(|why| why.contains("1s to 24h")));
        assert!(parse_for("0s").is_err());
    }

    #[test]
    fn gpus_are_chosen_by_name_and_all_of_them_without_one() {
        let gpus = sample::gpus();
        assert_eq!(chosen(&gpus, &[]).unwrap(), ["GPU-0a", "GPU-1b", "GPU-2c"]);
        assert_eq!(chosen(&gpus, &["2".into(), "GPU-0a".into()]).unwrap(), ["GPU-2c", "GPU-0a"]);
        assert_eq!(chosen(&gpus, &["7".into()]).unwrap_err().exit(), exit::USAGE);
    }
}
