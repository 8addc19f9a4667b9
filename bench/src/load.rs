//! The load: many connections, one thread, as little CPU of its own as is possible with epoll.
//!
//! ```text
//! every connection:   ask ──201 id──► release ──200──► ask …      (pairs)
//!                     ask ──201 id──► ask …                       (fill)
//! ```
//!
//! It shares the cores with the daemon that it measures, so it formats little per call, and `pairs` runs as a batch
//! process for the kernel. The same code loads the daemon and the program that it is compared with. Any other answer
//! than the expected one stops the run: a refused request is not a slow one.

use crate::client::{self, HttpAnswer};
use crate::proc;
use crate::samples::{Quantiles, Samples};
use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::event::{Timespec, epoll};
use serde::Serialize;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// 512 MiB a lease (more than a context takes): with 64 connections, 32 GiB at most.
const LEASE_BODY: &str = r#"{"vram_bytes":536870912,"tier":"batch"}"#;
/// The same with a fixed term of a day, for leases that are kept while another benchmark is prepared.
const DAY_LEASE_BODY: &str = r#"{"vram_bytes":536870912,"tier":"batch","time_s":86400}"#;
/// Load that is sent before the clock starts: caches, allocators, prepared statements.
const WARM_UP: Duration = Duration::from_secs(1);
/// After this long without any answer, the service counts as hung.
const ANSWER_WITHIN: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// What a run of pairs measured.
#[derive(Clone, Debug, Serialize)]
pub struct PairRates {
    /// Request + release pairs finished per second.
    pub pairs_per_s: f64,
    /// Latency of requests for a lease.
    pub ask: Quantiles,
    /// Latency of releases.
    pub release: Quantiles,
    /// Latency of all requests.
    pub all: Quantiles,
    /// How long the calls were counted: the configured time.
    pub wall_s: f64,
    /// CPU time of this generator, from the first counted answer until every connection has stopped.
    pub generator_cpu_s: f64,
}

/// A lease that `fill` was granted.
pub struct GrantedLease {
    /// `L7`.
    pub id: String,
    /// The whole answer.
    pub body: Vec<u8>,
}

/// Requests and releases leases in a closed loop on every connection, for `length` after a warm-up.
pub fn pairs(socket: &Path, connections: usize, length: Duration) -> Result<PairRates> {
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            proc::use_batch_scheduling()?;
            measure(socket, connections, length)
        });
        load.join().map_err(|_| anyhow!("the load generator panicked"))?
    })
}

fn measure(socket: &Path, connections: usize, length: Duration) -> Result<PairRates> {
    let mut clients = LoadClients::open(socket, connections, LEASE_BODY)?;
    let begin = Instant::now() + WARM_UP;
    let end = begin + length;
    // Room for 100,000 answers a second, more than were ever measured: the list does not grow meanwhile.
    let capacity = (length.as_secs_f64() * 100_000.0) as usize;
    let (mut asks, mut releases) = (Samples::with_capacity(capacity), Samples::with_capacity(capacity));
    let mut cpu_begin = None;
    while clients.busy > 0 {
        for slot in 0..clients.wait()? {
            let index = clients.ready_client(slot);
            let Some(done) = clients.read_answer(index)? else { continue };
            let counts = done.at >= begin && done.at < end;
            if counts {
                cpu_begin.get_or_insert_with(proc::cpu_of_this_thread);
            }
            match done.kind {
                CallKind::Ask => {
                    if counts {
                        asks.push(done.took);
                    }
                    clients.send_release(index)?;
                }
                CallKind::Release => {
                    if counts {
                        releases.push(done.took);
                    }
                    // Past the end a connection stops after its pair, so nothing stays leased.
                    if done.at < end { clients.send_request(index)? } else { clients.busy -= 1 }
                }
            }
        }
    }
    let cpu = cpu_begin.map_or(Duration::ZERO, |begin| proc::cpu_of_this_thread() - begin);
    let release = releases.quantiles();
    Ok(PairRates {
        pairs_per_s: release.count as f64 / length.as_secs_f64(),
        ask: asks.quantiles(),
        release,
        all: asks.merged_with(&releases).quantiles(),
        wall_s: length.as_secs_f64(),
        generator_cpu_s: cpu.as_secs_f64(),
    })
}

/// Requests `count` leases and keeps them all.
pub fn fill(socket: &Path, connections: usize, count: usize) -> Result<Vec<GrantedLease>> {
    let mut clients = LoadClients::open(socket, connections.min(count), DAY_LEASE_BODY)?;
    let mut asked = clients.busy;
    let mut granted = Vec::with_capacity(count);
    while clients.busy > 0 {
        for slot in 0..clients.wait()? {
            let index = clients.ready_client(slot);
            let Some(_) = clients.read_answer(index)? else { continue };
            let client = &clients.clients[index];
            granted
                .push(GrantedLease { id: String::from_utf8_lossy(&client.id).into_owned(), body: client.body.clone() });
            if asked < count {
                asked += 1;
                clients.send_request(index)?;
            } else {
                clients.busy -= 1;
            }
        }
    }
    Ok(granted)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CallKind {
    Ask,
    Release,
}

/// An answered request.
struct AnsweredCall {
    kind: CallKind,
    at: Instant,
    took: Duration,
}

/// One connection with at most one request under way.
struct LoadClient {
    stream: UnixStream,
    kind: CallKind,
    sent: Instant,
    buffer: Vec<u8>,
    filled: usize,
    /// The id of the lease last granted.
    id: Vec<u8>,
    /// The answer that granted it.
    body: Vec<u8>,
    request: Vec<u8>,
}

struct LoadClients {
    epoll: rustix::fd::OwnedFd,
    events: Vec<epoll::Event>,
    clients: Vec<LoadClient>,
    ask: Vec<u8>,
    /// Connections that have not stopped yet.
    busy: usize,
}

impl LoadClients {
    /// Connects all and sends the first request on each.
    fn open(socket: &Path, connections: usize, ask: &str) -> Result<LoadClients> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut clients = Vec::with_capacity(connections);
        for index in 0..connections {
            let stream =
                UnixStream::connect(socket).with_context(|| format!("cannot connect to `{}`", socket.display()))?;
            stream.set_nonblocking(true)?;
            epoll::add(&epoll, &stream, epoll::EventData::new_u64(index as u64), epoll::EventFlags::IN)?;
            clients.push(LoadClient {
                stream,
                kind: CallKind::Ask,
                sent: Instant::now(),
                buffer: vec![0; 16 << 10],
                filled: 0,
                id: Vec::with_capacity(32),
                body: Vec::new(),
                request: Vec::with_capacity(128),
            });
        }
        let events = Vec::with_capacity(connections.max(1));
        let mut clients = LoadClients { epoll, events, clients, ask: client::lease_request(ask), busy: connections };
        (0..connections).try_for_each(|index| clients.send_request(index))?;
        Ok(clients)
    }

    /// Waits until connections have something to read; returns how many.
    fn wait(&mut self) -> Result<usize> {
        self.events.clear();
        loop {
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&ANSWER_WITHIN)) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(0) => bail!("no answer for {} s", ANSWER_WITHIN.tv_sec),
                Ok(count) => return Ok(count),
            }
        }
    }

    /// The index of the connection behind this event of the last wait.
    fn ready_client(&self, slot: usize) -> usize {
        self.events[slot].data.u64() as usize
    }

    /// Reads what came on one connection; `None` until the answer is whole.
    fn read_answer(&mut self, index: usize) -> Result<Option<AnsweredCall>> {
        let client = &mut self.clients[index];
        ensure!(client.filled < client.buffer.len(), "answer longer than {} bytes", client.buffer.len());
        match client.stream.read(&mut client.buffer[client.filled..]) {
            Ok(0) => bail!("the service closed a connection"),
            Ok(read) => client.filled += read,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let Some(HttpAnswer { status, body, length }) = client::parse(&client.buffer[..client.filled])? else {
            return Ok(None);
        };
        let at = Instant::now();
        ensure!(length == client.filled, "more than one answer came for one request");
        let (what, expected) = match client.kind {
            CallKind::Ask => ("ask", 201),
            CallKind::Release => ("release", 200),
        };
        ensure!(status == expected, "{what} was answered {status}: {}", String::from_utf8_lossy(body));
        if client.kind == CallKind::Ask {
            let id = client::json_text(body, br#""id":""#).context("granted lease without an id")?;
            client.id.clear();
            client.id.extend_from_slice(id);
            client.body.clear();
            client.body.extend_from_slice(body);
        }
        client.filled = 0;
        Ok(Some(AnsweredCall { kind: client.kind, at, took: at - client.sent }))
    }

    fn send_request(&mut self, index: usize) -> Result<()> {
        let client = &mut self.clients[index];
        client.kind = CallKind::Ask;
        client.sent = Instant::now();
        send(&mut client.stream, &self.ask)
    }

    fn send_release(&mut self, index: usize) -> Result<()> {
        let client = &mut self.clients[index];
        client.request.clear();
        client.request.extend_from_slice(b"DELETE /v1/leases/");
        client.request.extend_from_slice(&client.id);
        client.request.extend_from_slice(b" HTTP/1.1\r\nHost: localhost\r\n\r\n");
        client.kind = CallKind::Release;
        client.sent = Instant::now();
        send(&mut client.stream, &client.request)
    }
}

/// A request is far smaller than an empty socket's buffer, so it goes out whole or something is wrong.
fn send(stream: &mut UnixStream, request: &[u8]) -> Result<()> {
    let written = stream.write(request)?;
    ensure!(written == request.len(), "only {written} of {} bytes went out", request.len());
    Ok(())
}
