//! The load: many connections, one thread, as little CPU of its own as is possible with epoll.
//!
//! ```text
//! every connection:   ask ──201 id──► release ──200──► ask …      (pairs)
//!                     ask ──201 id──► ask …                       (fill)
//! ```
//!
//! It shares the cores with the service, so it sends requests made beforehand, reads each answer with one
//! call, takes the time once per answer, and does not preempt a busy service. The same code loads both
//! services. Any other answer than the expected one stops the run: a refused request is not a slow one.

use crate::client::{self, Answer};
use crate::proc;
use crate::samples::{Quantiles, Samples};
use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::event::{Timespec, epoll};
use serde::Serialize;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// 512 MiB a lease (more than a context takes): 64 connections hold 32 GiB at most.
const ASK: &str = r#"{"vram_bytes":536870912,"tier":"batch"}"#;
/// The same for leases that must outlive a long preparation: a day at a fixed term.
const LONG_ASK: &str = r#"{"vram_bytes":536870912,"tier":"batch","time_s":86400}"#;
/// Load that is sent before the clock starts: caches, allocators, prepared statements.
const WARM_UP: Duration = Duration::from_secs(1);
/// After this long without any answer, the service counts as hung.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// What a run of pairs measured.
#[derive(Clone, Debug, Serialize)]
pub struct Pairs {
    /// Request + release pairs finished per second.
    pub pairs_per_s: f64,
    /// Latency of requests for a lease.
    pub ask: Quantiles,
    /// Latency of releases.
    pub release: Quantiles,
    /// Latency of all requests.
    pub all: Quantiles,
    /// Wall time measured.
    pub wall_s: f64,
    /// CPU time this generator took of it.
    pub generator_cpu_s: f64,
}

/// A lease that `fill` was granted.
pub struct Granted {
    /// `L7`.
    pub id: String,
    /// The whole answer.
    pub body: Vec<u8>,
}

/// Requests and releases leases in a closed loop on every connection, for `length` after a warm-up.
pub fn pairs(socket: &Path, connections: usize, length: Duration) -> Result<Pairs> {
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            proc::interrupt_nobody()?;
            measure(socket, connections, length)
        });
        load.join().map_err(|_| anyhow!("the load generator panicked"))?
    })
}

fn measure(socket: &Path, connections: usize, length: Duration) -> Result<Pairs> {
    let mut lines = Lines::open(socket, connections, ASK)?;
    let begin = Instant::now() + WARM_UP;
    let end = begin + length;
    // More than two cores can answer, so that the list does not grow during the measurement.
    let capacity = (length.as_secs_f64() * 100_000.0) as usize;
    let (mut asks, mut releases) = (Samples::with_capacity(capacity), Samples::with_capacity(capacity));
    let mut cpu_begin = None;
    while lines.busy > 0 {
        for slot in 0..lines.wait()? {
            let index = lines.ready(slot);
            let Some(done) = lines.take(index)? else { continue };
            let counts = done.at >= begin && done.at < end;
            if counts {
                cpu_begin.get_or_insert_with(proc::cpu_of_this_thread);
            }
            match done.kind {
                Kind::Ask => {
                    if counts {
                        asks.push(done.took);
                    }
                    lines.release(index)?;
                }
                Kind::Release => {
                    if counts {
                        releases.push(done.took);
                    }
                    // Past the end a connection stops after its pair, so nothing stays leased.
                    if done.at < end { lines.ask(index)? } else { lines.busy -= 1 }
                }
            }
        }
    }
    let cpu = cpu_begin.map_or(Duration::ZERO, |begin| proc::cpu_of_this_thread() - begin);
    let release = releases.quantiles();
    Ok(Pairs {
        pairs_per_s: release.count as f64 / length.as_secs_f64(),
        ask: asks.quantiles(),
        release,
        all: asks.and(&releases).quantiles(),
        wall_s: length.as_secs_f64(),
        generator_cpu_s: cpu.as_secs_f64(),
    })
}

/// Requests `count` leases and keeps them all.
pub fn fill(socket: &Path, connections: usize, count: usize) -> Result<Vec<Granted>> {
    let mut lines = Lines::open(socket, connections.min(count), LONG_ASK)?;
    let mut asked = lines.busy;
    let mut granted = Vec::with_capacity(count);
    while lines.busy > 0 {
        for slot in 0..lines.wait()? {
            let index = lines.ready(slot);
            let Some(_) = lines.take(index)? else { continue };
            let line = &lines.lines[index];
            granted.push(Granted { id: String::from_utf8_lossy(&line.id).into_owned(), body: line.body.clone() });
            if asked < count {
                asked += 1;
                lines.ask(index)?;
            } else {
                lines.busy -= 1;
            }
        }
    }
    Ok(granted)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ask,
    Release,
}

/// An answered request.
struct Done {
    kind: Kind,
    at: Instant,
    took: Duration,
}

/// One connection with at most one request under way.
struct Line {
    stream: UnixStream,
    kind: Kind,
    sent: Instant,
    buffer: Vec<u8>,
    filled: usize,
    /// The id of the lease last granted.
    id: Vec<u8>,
    /// The answer that granted it.
    body: Vec<u8>,
    request: Vec<u8>,
}

struct Lines {
    epoll: rustix::fd::OwnedFd,
    events: Vec<epoll::Event>,
    lines: Vec<Line>,
    ask: Vec<u8>,
    /// Connections that have not stopped yet.
    busy: usize,
}

impl Lines {
    /// Connects all and sends the first request on each.
    fn open(socket: &Path, connections: usize, ask: &str) -> Result<Lines> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut lines = Vec::with_capacity(connections);
        for index in 0..connections {
            let stream =
                UnixStream::connect(socket).with_context(|| format!("cannot connect to `{}`", socket.display()))?;
            stream.set_nonblocking(true)?;
            epoll::add(&epoll, &stream, epoll::EventData::new_u64(index as u64), epoll::EventFlags::IN)?;
            lines.push(Line {
                stream,
                kind: Kind::Ask,
                sent: Instant::now(),
                buffer: vec![0; 16 << 10],
                filled: 0,
                id: Vec::with_capacity(32),
                body: Vec::new(),
                request: Vec::with_capacity(128),
            });
        }
        let events = Vec::with_capacity(connections.max(1));
        let mut lines = Lines { epoll, events, lines, ask: client::ask(ask), busy: connections };
        (0..connections).try_for_each(|index| lines.ask(index))?;
        Ok(lines)
    }

    /// Waits until connections have something to read; returns how many.
    fn wait(&mut self) -> Result<usize> {
        self.events.clear();
        loop {
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&PATIENCE)) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(0) => bail!("no answer for {} s", PATIENCE.tv_sec),
                Ok(count) => return Ok(count),
            }
        }
    }

    /// The connection in that slot of the last wait.
    fn ready(&self, slot: usize) -> usize {
        self.events[slot].data.u64() as usize
    }

    /// Reads what came on one connection; `None` until the answer is whole.
    fn take(&mut self, index: usize) -> Result<Option<Done>> {
        let line = &mut self.lines[index];
        ensure!(line.filled < line.buffer.len(), "answer longer than {} bytes", line.buffer.len());
        match line.stream.read(&mut line.buffer[line.filled..]) {
            Ok(0) => bail!("the service closed a connection"),
            Ok(read) => line.filled += read,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let Some(Answer { status, body, length }) = client::parse(&line.buffer[..line.filled])? else {
            return Ok(None);
        };
        let at = Instant::now();
        ensure!(length == line.filled, "more than one answer came for one request");
        let (what, expected) = match line.kind {
            Kind::Ask => ("ask", 201),
            Kind::Release => ("release", 200),
        };
        ensure!(status == expected, "{what} was answered {status}: {}", String::from_utf8_lossy(body));
        if line.kind == Kind::Ask {
            let id = client::text_of(body, br#""id":""#).context("granted lease without an id")?;
            line.id.clear();
            line.id.extend_from_slice(id);
            line.body.clear();
            line.body.extend_from_slice(body);
        }
        line.filled = 0;
        Ok(Some(Done { kind: line.kind, at, took: at - line.sent }))
    }

    fn ask(&mut self, index: usize) -> Result<()> {
        let line = &mut self.lines[index];
        line.kind = Kind::Ask;
        line.sent = Instant::now();
        send(&mut line.stream, &self.ask)
    }

    fn release(&mut self, index: usize) -> Result<()> {
        let line = &mut self.lines[index];
        line.request.clear();
        line.request.extend_from_slice(b"DELETE /v1/leases/");
        line.request.extend_from_slice(&line.id);
        line.request.extend_from_slice(b" HTTP/1.1\r\nHost: localhost\r\n\r\n");
        line.kind = Kind::Release;
        line.sent = Instant::now();
        send(&mut line.stream, &line.request)
    }
}

/// A request is far smaller than an empty socket's buffer, so it goes out whole or something is wrong.
fn send(stream: &mut UnixStream, request: &[u8]) -> Result<()> {
    let written = stream.write(request)?;
    ensure!(written == request.len(), "only {written} of {} bytes went out", request.len());
    Ok(())
}
