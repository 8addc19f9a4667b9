//! `sublet proxy`: a small proxy before a service. Requests that need the GPU pass only while the service has its GPUs.
//!
//! It runs as the user that started it, and knows no more than any client of the daemon. [`wake`] decides which
//! requests need the GPU, and [`leases`] whether these may pass. They wait in [`waiting`]. [`watch`] follows the leases,
//! and [`forward`] passes requests on. The async runtime is started here, and for no other command.

mod forward;
mod leases;
mod waiting;
mod wake;
mod watch;

use crate::args::{Globals, LeaseName};
use crate::client::Client;
use crate::completion;
use crate::daemon::ProcessPattern;
use crate::failure::Failure;
use crate::output;
use crate::table::plain;
use clap::Args;
use forward::ProxyRoute;
use leases::ServiceLeases;
use serde::Serialize;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use sublet_wire::{Code, Lease, exit, span};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use waiting::WaitingRequests;
use wake::{Pattern, WakeList};
use watch::ProxyWatch;

/// The longest time that a request may wait.
const WAIT_MAX_S: u64 = 3_600;

/// Hold HTTP requests to a service while its lease is parked
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct ProxyArgs {
    /// Where clients come, such as 127.0.0.1:11434
    #[arg(long, value_name = "ADDRESS")]
    listen: String,
    /// Where the service itself listens, such as 127.0.0.1:11435
    #[arg(long, value_name = "ADDRESS")]
    to: String,
    /// Which leases count: name:TEXT (yours of that name), unit:NAME, container:ID or exe:PATH (or its name);
    /// all that it has, now and later
    #[arg(long, value_name = "PROGRAM", required_unless_present = "lease")]
    of: Option<ServiceName>,
    /// Only this lease counts: its id, or its name
    #[arg(long, value_name = "LEASE", conflicts_with = "of", add = completion::any_lease())]
    lease: Option<LeaseName>,
    /// A request that needs the GPU: a method and a path, in which `*` stands for any characters, such as
    /// "POST /v1/*"; may be repeated. No other request brings a parked service back [default: every request
    /// but GET, HEAD and OPTIONS]
    #[arg(long, value_name = "METHOD PATH", conflicts_with = "tcp")]
    wake: Vec<Pattern>,
    /// How long a request that needs the GPU waits for the lease; then it is answered 503. 0: it never waits
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_wait)]
    wait: u64,
    /// Pass whole connections on, whatever they say: each needs the GPU when it begins
    #[arg(long, hide_short_help = true)]
    tcp: bool,
    /// Let everything pass while no daemon answers
    #[arg(long, hide_short_help = true)]
    open_without_daemon: bool,
    /// Connections at a time; more are answered 503
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..=16384), hide_short_help = true)]
    connections: u16,
}

const AFTER_HELP: &str = "\
A request that needs the GPU (--wake) and comes while the lease is parked, or
waits for its first turn, brings it back, as `sublet resume` does. It is passed
on when the lease has its GPUs again; until then no byte of it reaches the
service, so that a service that would load its model for it loads nothing. After
--wait it is answered 503, with the expected time in Retry-After.

No other request brings a lease back: an open browser tab, a health check or a
WebSocket leaves a parked service parked. Such a request is passed on at once.
While the lease is not active, a GET, HEAD or OPTIONS that the service does not
answer within 60 s is answered 503 with Retry-After. While the driver has the
service parked, that is 2 s, and other methods (such as DELETE) are answered 503
at once: the service might carry them out later, after the client gave up.

A service without a lease is not held back: its first use of a GPU is a request
for one (`sublet adopt`). Without a daemon every request is answered 503. Hooks
(--on-resume) must speak to the service itself, not to this proxy.

Examples:
  OLLAMA_HOST=127.0.0.1:11435 sublet run --vram 12G --name llm -- ollama serve
  sublet proxy --listen 127.0.0.1:11434 --to 127.0.0.1:11435 --of name:llm
  sublet proxy --listen 127.0.0.1:11434 --to 127.0.0.1:11435 \\
              --of unit:ollama.service --wait 5m
  sublet proxy --listen 127.0.0.1:8188 --to 127.0.0.1:8189 --of name:comfy \\
              --wake 'POST /prompt' --wake 'POST /api/prompt'";

/// A service, as `--of` names it.
#[derive(Clone, Debug)]
pub enum ServiceName {
    /// The caller's own leases of this name.
    Name(String),
    /// The leases of processes that a rule with this text would match.
    Processes(ProcessPattern),
}

impl FromStr for ServiceName {
    type Err = String;
    fn from_str(text: &str) -> Result<ServiceName, String> {
        match text.strip_prefix("name:") {
            Some(name) if !name.is_empty() => Ok(ServiceName::Name(name.to_owned())),
            _ => text.parse().map(ServiceName::Processes).map_err(|_| {
                let hint = "write name:TEXT, unit:NAME, container:ID (12 digits at least) or exe:PATH";
                format!("`{}` names no service\nhint: {hint}", plain(text))
            }),
        }
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServiceName::Name(name) => write!(f, "name:{name}"),
            ServiceName::Processes(pattern) => write!(f, "{pattern}"),
        }
    }
}

/// The leases that the proxy follows.
#[derive(Clone, Debug)]
pub enum FollowedLeases {
    /// Only this one.
    Lease(LeaseName),
    /// All leases of a service.
    OfService(ServiceName),
}

impl fmt::Display for FollowedLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FollowedLeases::Lease(lease) => write!(f, "{lease}"),
            FollowedLeases::OfService(service) => write!(f, "{service}"),
        }
    }
}

/// The proxy once it listens, as it is printed.
#[derive(Serialize)]
struct Opened<'a> {
    listen: String,
    to: &'a str,
    of: String,
    /// The patterns of `--wake`; if empty, every request but GET, HEAD and OPTIONS needs the GPU.
    wake: Vec<String>,
    wait_s: u64,
}

fn parse_wait(text: &str) -> Result<u64, String> {
    if text == "0" {
        return Ok(0);
    }
    let wait = span::parse(text).map_err(|error| format!("{error}\nhint: {}", error.hint()))?;
    if wait > WAIT_MAX_S { Err("a request waits for an hour at most".to_owned()) } else { Ok(wait) }
}

/// Runs the proxy until it is told to stop.
pub fn run(globals: &Globals, args: &ProxyArgs) -> Result<u8, Failure> {
    globals.must_be_local("a proxy stands on the host of its service", "leave `--url` out and unset SUBLET_URL")?;
    let followed = match (&args.lease, &args.of) {
        (Some(lease), _) => FollowedLeases::Lease(known(globals, lease)?),
        (None, Some(of)) => FollowedLeases::OfService(of.clone()),
        (None, None) => return Err(Failure::usage("name the leases that count, with `--of` or `--lease`")),
    };
    // One thread is enough: bytes are copied, and nothing is computed.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(exit::FAILURE, format!("nothing can be served: {error}")))?;
    runtime.block_on(open(globals, args, followed))
}

/// The lease by its id. A lease that never existed is an error. If no daemon answers, an id is kept until one does; a
/// name cannot be resolved.
fn known(globals: &Globals, lease: &LeaseName) -> Result<LeaseName, Failure> {
    let client = match (Client::open(globals), lease) {
        (Ok(client), _) => client,
        (Err(_), LeaseName::Id(_)) => return Ok(lease.clone()),
        (Err(failure), LeaseName::Name(_)) => return Err(failure),
    };
    let id = client.id_of(lease)?;
    match client.get::<Lease>(&format!("/v1/leases/{id}")) {
        Err(failure) if failure.code() == Some(Code::NoSuchLease) => Err(failure),
        _ => Ok(id.parse().unwrap_or_else(|_| lease.clone())),
    }
}

async fn open(globals: &Globals, args: &ProxyArgs, followed: FollowedLeases) -> Result<u8, Failure> {
    let listener = TcpListener::bind(&args.listen).await.map_err(|error| cannot_listen(&args.listen, &error))?;
    let listen = listener.local_addr().map_err(|error| cannot_listen(&args.listen, &error))?.to_string();
    if listen == args.to {
        return Err(Failure::usage(format!("{listen} would lead to itself"))
            .hint("let the service listen elsewhere, and name that place with `--to`"));
    }
    let of = plain(&followed.to_string());
    let requests = Arc::new(WaitingRequests::new(ServiceLeases::of(&of), args.open_without_daemon));
    ProxyWatch { requests: Arc::clone(&requests), globals: globals.clone(), followed }.begin();
    if globals.json {
        let wake = args.wake.iter().map(Pattern::to_string).collect();
        output::json_line(&Opened { listen, to: &args.to, of, wake, wait_s: args.wait })?;
    } else {
        let to = plain(&args.to);
        output::print(&format!("{listen} passes requests to {to}; those that need the GPU wait for {of}\n"))?;
    }
    let way = ProxyRoute {
        requests,
        to: args.to.as_str().into(),
        wake: Arc::new(WakeList::new(args.wake.clone())),
        wait: Duration::from_secs(args.wait),
        tcp: args.tcp,
        connections: args.connections.into(),
        patience: forward::SILENT_MAX,
    };
    let stop = told_to_stop().map_err(|error| Failure::new(exit::FAILURE, format!("signals: {error}")))?;
    forward::serve(listener, way, stop).await;
    Ok(exit::OK)
}

fn told_to_stop() -> io::Result<impl Future<Output = ()>> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}

fn cannot_listen(place: &str, error: &io::Error) -> Failure {
    let failure = Failure::new(exit::FAILURE, format!("cannot listen at {}: {error}", plain(place)));
    match error.kind() {
        io::ErrorKind::AddrInUse => failure.hint("the service itself may listen there: let it listen elsewhere"),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_named_as_rules_name_it_or_by_its_leases_name() {
        for text in ["name:llm", "unit:ollama.service", "exe:/usr/bin/ollama", "uid:1000"] {
            assert_eq!(text.parse::<ServiceName>().map(|of| of.to_string()), Ok(text.to_owned()));
        }
        for text in ["ollama", "name:", "unit:", "container:short", "who:x"] {
            assert!(text.parse::<ServiceName>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_wait_has_a_unit_and_an_end() {
        assert_eq!([parse_wait("0"), parse_wait("0s"), parse_wait("5m")], [Ok(0), Ok(0), Ok(300)]);
        assert!(parse_wait("30").is_err_and(|why| why.contains("has no unit")));
        assert!(parse_wait("2h").is_err());
    }
}
