//! How much an abusive user slows down another user: how long requests of the second user take meanwhile, compared with its
//! own requests without the first user, alternately; and whether the second user's history is complete afterwards.
//!
//! ```text
//!   for each kind of abuse:   quiet ─► abuse ─► quiet ─► abuse …      (p99 of the victim's requests in each)
//! ```
//! As a control, the first user only computes on two cores and never calls the service. The delay is then due to the
//! kernel's sharing of cores, and no service can do better beside a user that keeps as many cores busy.
//!
//! The abuser is a process of another uid that takes as much of the service as it can. Its processes are in a control
//! group of their own where one can be made, as systemd does it for each user: the cores are then shared between users,
//! not between threads. The service runs with its default configuration but for a short history, so that the abuse
//! trims it.

use crate::audit;
use crate::client::{BenchClient, bodiless_request, json_text, lease_request};
use crate::figure::{BenchOutcome, Figure, FigureTarget, digits};
use crate::rig::BenchRig;
use crate::samples::{Quantiles, Samples, median};
use crate::service::ServiceProcess;
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde::Serialize;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Two users without any privilege.
const ABUSER: u32 = 12_346;
const VICTIM: u32 = 12_347;
/// Requests of the victim in one round.
const VICTIM_REQUESTS: usize = 300;
/// The victim's pace: a program that works with leases, not a load test.
const VICTIM_PAUSE: Duration = Duration::from_millis(4);
/// Lines of history that are kept, for each round: nearly twice what the victim writes, and less than both users write
/// together.
const HISTORY_LINES: usize = 30_000;
/// Connections of a flood.
const FLOOD_CONNECTIONS: usize = 64;
/// Event streams, idle connections and children that the abuser tries to have.
const HOARD_MAX: usize = 3_000;
/// The time until an abuse is at its height.
const RAMP_UP: Duration = Duration::from_millis(1_500);

/// What an abuser does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Abuse {
    /// Event streams, as many as it gets.
    Streams,
    /// Connections that send half a header, as many as it gets.
    Connections,
    /// Requests and releases on 64 connections without a pause.
    Pairs,
    /// The same with requests that are refused.
    Refused,
    /// The same with an Idempotency-Key for each.
    Keys,
    /// A lease bound to a process with 3,000 children that forks without a pause.
    Forks,
    /// Long polls and listings on 64 connections.
    Reads,
    /// The control: two threads that compute.
    Compute,
}

/// A request so small that the GPU does not fill up: only the service is measured.
const SMALL_REQUEST: &str = r#"{"vram_bytes":536870912,"tier":"batch","wait_s":0}"#;
const OVERSIZED_REQUEST: &str = r#"{"vram_bytes":109951162777600,"tier":"batch","wait_s":0}"#;

/// Measures the victim's requests with each kind of abuse.
pub fn run(rig: &BenchRig) -> Result<BenchOutcome> {
    ensure!(rustix::process::geteuid().is_root(), "`abuse` needs root to be two users");
    let (state, place) = (rig.fresh_folder("abuse")?, rig.fresh_folder("abuse-socket")?);
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o755))?;
    let history = HISTORY_LINES * rig.rounds as usize;
    let config = place.join("sublet.toml");
    std::fs::write(&config, format!("history = {history}\n"))?;
    let socket = place.join("s");
    let mut command = Command::new(rig.sublet()?);
    command.args(["serve", "--gpu", "scripted:1x64TiB"]).arg("--config").arg(&config);
    command.arg("--state-dir").arg(&state).arg("--socket").arg(&socket);
    let service = ServiceProcess::spawn(command, &state, socket.clone())?.await_ready(&state)?;
    let cgroup = AbuserCgroup::new();
    let mut leases = Vec::new();
    let (mut worst, mut rounds, mut control) = (Vec::new(), Vec::new(), f64::NAN);
    for abuse in Abuse::value_variants() {
        let mut ratios = Vec::new();
        for _ in 0..rig.rounds {
            let quiet = time_victim(&socket, &mut leases)?;
            let abuser = Abuser::start(*abuse, &socket, cgroup.as_ref())?;
            thread::sleep(RAMP_UP);
            let abused = time_victim(&socket, &mut leases).with_context(|| format!("during {abuse:?}"))?;
            drop(abuser);
            eprintln!("  {abuse:?}: p99 {} ms, quiet {} ms", digits(abused.p99_us / 1e3), digits(quiet.p99_us / 1e3));
            ratios.push(abused.p99_us / quiet.p99_us);
            rounds.push(serde_json::json!({ "abuse": abuse, "quiet": quiet, "abused": abused }));
            await_idle_service(&socket)?;
        }
        match abuse {
            Abuse::Compute => control = median(ratios),
            _ => worst.push((median(ratios), *abuse)),
        }
    }
    worst.sort_by(|one, other| other.0.total_cmp(&one.0));
    let missing = missing_leases(&socket, &leases)?;
    drop(service);
    let each: Vec<String> = worst.iter().map(|(ratio, abuse)| format!("{abuse:?} {}", digits(*ratio))).collect();
    let (ratio, _) = worst.first().copied().context("no abuse was measured")?;
    Ok(BenchOutcome {
        figures: vec![
            Figure {
                what: "p99 of a user's requests while another user does its worst, compared with no abuse; the worst abuse",
                target: FigureTarget::AtMost(3.0),
                measured: ratio,
                unit: "×",
                note: format!(
                    "{}; two threads that only compute {}; the abuser {}",
                    each.join(", "),
                    digits(control),
                    if cgroup.is_some() {
                        "in a control group of its own"
                    } else {
                        "shares the cores thread by thread"
                    }
                ),
            },
            Figure {
                what: "leases of that user that its history does not know afterwards",
                target: FigureTarget::AtMost(0.0),
                measured: missing as f64,
                unit: "",
                note: format!("of {}, with a history of {history} lines", leases.len()),
            },
        ],
        raw: serde_json::json!({ "rounds": rounds }),
    })
}

/// How long the victim's requests take; their leases are added to `leases`.
fn time_victim(socket: &Path, leases: &mut Vec<String>) -> Result<Quantiles> {
    as_user(VICTIM, || {
        let (mut samples, request) = (Samples::with_capacity(VICTIM_REQUESTS), lease_request(SMALL_REQUEST));
        for _ in 0..VICTIM_REQUESTS {
            thread::sleep(VICTIM_PAUSE);
            // Each command is a connection of its own.
            let start = Instant::now();
            let mut client = BenchClient::connect(socket)?;
            let (status, body) = client.call(&request)?;
            samples.push(start.elapsed());
            ensure!(status == 201, "the victim was answered {status}: {}", String::from_utf8_lossy(body));
            let id = json_text(body, br#""id":""#).context("granted lease without an id")?;
            let id = String::from_utf8_lossy(id).into_owned();
            let (status, body) = client.call(&bodiless_request("DELETE", &format!("/v1/leases/{id}")))?;
            ensure!(status == 200, "a release was answered {status}: {}", String::from_utf8_lossy(body));
            leases.push(id);
        }
        Ok(samples.quantiles())
    })
}

/// The victim's leases that the service does not know any more.
fn missing_leases(socket: &Path, leases: &[String]) -> Result<usize> {
    as_user(VICTIM, || {
        let mut client = BenchClient::connect(socket)?;
        let mut missing = 0;
        for lease in leases {
            let status = loop {
                let (status, _) = client.call(&bodiless_request("GET", &format!("/v1/leases/{lease}")))?;
                // The victim itself calls too often here, and is slowed down.
                if status != 429 {
                    break status;
                }
            };
            match status {
                200 => {}
                404 => missing += 1,
                _ => bail!("the victim's look at its lease was answered {status}"),
            }
        }
        Ok(missing)
    })
}

/// Waits until a single request finds the service at rest again.
fn await_idle_service(socket: &Path) -> Result<()> {
    let limit = Instant::now() + Duration::from_secs(20);
    while Instant::now() < limit {
        thread::sleep(Duration::from_millis(500));
        let start = Instant::now();
        let answered =
            BenchClient::connect(socket).and_then(|mut client| Ok(client.call(&bodiless_request("GET", "/readyz"))?.0));
        if matches!(answered, Ok(200)) && start.elapsed() < Duration::from_millis(5) {
            return Ok(());
        }
    }
    bail!("the service is still busy 20 s after the abuse")
}

/// What `what` returns on a thread of this user.
fn as_user<T: Send>(uid: u32, what: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
            set_thread_groups(&[])?;
            set_thread_res_gid(group, group, group)?;
            set_thread_res_uid(user, user, user)?;
            what()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The control group of the abuser's processes; removed with the drop.
struct AbuserCgroup(PathBuf);

impl AbuserCgroup {
    /// `None` where the kernel's groups for CPU time cannot be made by this program.
    fn new() -> Option<AbuserCgroup> {
        let places = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup"].map(Path::new);
        let has_cpu = |place: &&Path| {
            let shared = std::fs::read_to_string(place.join("cgroup.subtree_control")).unwrap_or_default();
            place.join("cpu.shares").exists() || shared.split_whitespace().any(|name| name == "cpu")
        };
        let folder = places.into_iter().find(has_cpu)?.join(format!("sublet-bench-{}", std::process::id()));
        std::fs::create_dir(&folder).ok()?;
        Some(AbuserCgroup(folder))
    }

    fn add_process(&self, process: u32) -> Result<()> {
        Ok(std::fs::write(self.0.join("cgroup.procs"), process.to_string())?)
    }
}

impl Drop for AbuserCgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A running abuser; ended with the drop.
struct Abuser(Child);

impl Abuser {
    fn start(abuse: Abuse, socket: &Path, cgroup: Option<&AbuserCgroup>) -> Result<Abuser> {
        let name = abuse.to_possible_value().context("every abuse has a name")?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["abuser", name.get_name()]).arg(socket).uid(ABUSER).gid(ABUSER).process_group(0);
        let abuser = Abuser(command.stdin(Stdio::piped()).spawn().context("the abuser cannot be started")?);
        cgroup.map(|cgroup| cgroup.add_process(abuser.0.id())).transpose()?;
        Ok(abuser)
    }
}

impl Drop for Abuser {
    fn drop(&mut self) {
        // Its children end with it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Abuses a service until its input ends. Refusals are what it expects.
pub fn run_abuse(abuse: Abuse, socket: &Path) -> Result<()> {
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    match abuse {
        Abuse::Streams => hoard_connections(socket, b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        Abuse::Connections => hoard_connections(socket, b"GET /v1/leases HTTP/1.1\r\nHost: loc"),
        Abuse::Pairs => flood_with_requests(socket, |_, _| lease_request(SMALL_REQUEST)),
        Abuse::Refused => flood_with_requests(socket, |_, _| lease_request(OVERSIZED_REQUEST)),
        Abuse::Keys => flood_with_requests(socket, |thread, number| {
            let (own, length) = (std::process::id(), SMALL_REQUEST.len());
            format!(
                "POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: {own}-{thread}-{number}\r\n\
                 Content-Length: {length}\r\n\r\n{SMALL_REQUEST}"
            )
            .into_bytes()
        }),
        Abuse::Reads => flood_with_requests(socket, |thread, _| match thread % 2 {
            0 => bodiless_request("GET", "/v1/leases"),
            _ => bodiless_request("GET", "/v1/gpus"),
        }),
        Abuse::Forks => fork_endlessly(socket),
        Abuse::Compute => {
            thread::spawn(spin);
            spin()
        }
    }
}

/// Keeps as many connections as it gets after these bytes.
fn hoard_connections(socket: &Path, bytes: &[u8]) -> Result<()> {
    let mut held = Vec::new();
    loop {
        if held.len() < HOARD_MAX
            && let Ok(mut stream) = UnixStream::connect(socket)
        {
            // A refused connection is closed by the service, and tried again.
            if stream.write_all(bytes).is_ok() {
                stream.set_nonblocking(true)?;
                held.push(stream);
            }
        }
        if held.len() == HOARD_MAX {
            thread::sleep(Duration::from_millis(10));
            held.retain(|mut stream| !matches!(stream.read(&mut [0; 4096]), Ok(0)));
        }
    }
}

/// Calls on 64 connections without a pause.
fn flood_with_requests(socket: &Path, request: impl Fn(usize, usize) -> Vec<u8> + Sync) -> Result<()> {
    thread::scope(|scope| {
        for thread in 0..FLOOD_CONNECTIONS {
            let (request, socket): (_, PathBuf) = (&request, socket.to_owned());
            scope.spawn(move || {
                let mut number = 0;
                loop {
                    let Ok(mut client) = BenchClient::connect(&socket) else { continue };
                    loop {
                        number += 1;
                        let Ok((_, body)) = client.call(&request(thread, number)) else { break };
                        // What was granted is released, so that requests and releases are as many.
                        let id = json_text(body, br#"{"id":""#).map(|id| String::from_utf8_lossy(id).into_owned());
                        if let Some(id) = id.filter(|id| id.starts_with('L'))
                            && client.call(&bodiless_request("DELETE", &format!("/v1/leases/{id}"))).is_err()
                        {
                            break;
                        }
                    }
                }
            });
        }
    });
    Ok(())
}

/// Keeps a core busy.
fn spin() -> ! {
    loop {
        std::hint::spin_loop();
    }
}

/// Takes a lease for this process, makes many children, and forks without a pause.
fn fork_endlessly(socket: &Path) -> Result<()> {
    let body = format!(r#"{{"vram_bytes":536870912,"tier":"batch","pid":{}}}"#, std::process::id());
    let (status, _) = BenchClient::connect(socket)?.call(&lease_request(&body))?;
    ensure!(status == 201, "the abuser's lease was answered {status}");
    let own = rustix::process::getpid();
    for _ in 0..HOARD_MAX {
        // SAFETY: the child makes only calls of the kernel.
        match unsafe { libc::fork() } {
            0 => audit::sleep_until_parent_dies(own),
            -1 => break,
            _ => {}
        }
    }
    loop {
        // SAFETY: the child makes only calls of the kernel.
        match unsafe { libc::fork() } {
            // SAFETY: the child ends at once, without what its parent's runtime would do at an exit.
            0 => unsafe { libc::_exit(0) },
            -1 => thread::sleep(Duration::from_millis(1)),
            // SAFETY: waits for the child that was just made.
            pid => unsafe {
                libc::waitpid(pid, std::ptr::null_mut(), 0);
            },
        }
    }
}
