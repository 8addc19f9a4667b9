//! The log as it grows, as server-sent events.
//!
//! A stream holds a number, not a queue: it reads the log from there whenever
//! the log grew. A slow reader costs nothing and misses nothing; only lines
//! folded away meanwhile are a gap, and the stream says so. A tenant with many
//! streams hears of new lines later: its streams share a rate of reads, because
//! each commit wakes all of them.

use super::body;
use super::rate::Rate;
use super::records::{AuditFilter, history};
use super::seats::{ConnectionPermit, LimitReached};
use super::shared::OnRead;
use super::{App, Refused};
use crate::loop_thread::wall_us;
use crate::peer::Peer;
use axum::extract::{Request, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, Stream, StreamExt};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use sublet_wire::{Code, Problem};
use tokio::sync::{Notify, watch};

/// How long a silent stream outlives the token with which it was opened.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Lines read at a time.
const CHUNK: usize = 256;
/// How often the streams of one tenant together read what is new. A few streams never wait; 64 are a third of a second
/// behind while there is a commit every few milliseconds.
pub const READS: Rate = Rate { per_s: 200.0, burst: 8.0 };
/// When a stream that came too soon tries again.
const READ_AGAIN: Duration = Duration::from_millis(50);

/// Streams decisions as they become durable. `id` is the number of the audit line; send it back as Last-Event-ID to
/// continue from there.
#[utoipa::path(get, operation_id = "events", path = "/v1/events", tag = "records",
    params(("Last-Event-ID" = Option<u64>, Header, description = "go on after this one", maximum = 9_223_372_036_854_775_806_u64)), responses(
    (status = 200, description = "audit lines. An event `gap` says which lines are gone (`{\"from\":1,\"to\":9}`), or, to a client that has seen more lines than there are, where the log ends (`{\"seen\":500,\"last\":20}`): a backup was put back, and the stream goes on from there", body = String, content_type = "text/event-stream"),
    OnRead,
))]
pub async fn stream(
    State(app): State<App>,
    request: Request,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refused> {
    let peer = body::peer(&request)?;
    let by = peer.caller.clone();
    let after = last_event_id(&request)?;
    let lost = Arc::new(Notify::new());
    let told = |no_seat: LimitReached| no_seat.problem(&by.tenant, "open event streams");
    let seat = app.streams.take(&by.tenant, &lost).map_err(told)?;
    let sieve = AuditFilter::of(&app, by.clone(), None).await?;
    let start = history(&app, &by, |reader| Ok((reader.first_seq()?, reader.last_seq()?))).await?;
    let (after, gap) = begin(after, start);
    let follow = Follow { synced: app.synced.clone(), app, peer, sieve, after, _seat: seat };
    let stop = {
        let mut stopping = follow.app.stopping.clone();
        async move {
            tokio::select! {
                _ = stopping.wait_for(|stop| *stop) => {}
                () = lost.notified() => {}
            }
        }
    };
    let lines = stream::unfold(follow, Follow::next).flat_map(stream::iter);
    let events = stream::iter(gap).chain(lines).map(Ok).take_until(stop);
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))))
}

fn last_event_id(request: &Request) -> Result<Option<u64>, Refused> {
    let Some(value) = request.headers().get("last-event-id") else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    match number.filter(|n| *n < i64::MAX as u64) {
        Some(number) => Ok(Some(number)),
        None => Err(Problem::new(Code::BadRequest, "`Last-Event-ID` must be a number this stream gave").into()),
    }
}

/// Where a stream is.
struct Follow {
    app: App,
    peer: Arc<Peer>,
    synced: watch::Receiver<u64>,
    sieve: AuditFilter,
    after: u64,
    _seat: ConnectionPermit<String>,
}

impl Follow {
    /// The next lines the caller may see; `None` when the log cannot be read any more, or not by this caller.
    async fn next(mut self) -> Option<(Vec<Event>, Follow)> {
        loop {
            self.synced.borrow_and_update();
            let (app, peer) = (self.app.clone(), Arc::clone(&self.peer));
            let read = history(&app, &peer.caller, move |reader| {
                let lines = reader.log(self.after, CHUNK)?;
                let mut events: Vec<Event> = Vec::new();
                for line in &lines {
                    // Lines may have been trimmed before the first one and between any two.
                    events.extend(gap(self.after, line.seq));
                    self.after = line.seq;
                    if self.sieve.may_see(line, reader)? {
                        events.push(event(&self.sieve.shown(line, reader)?));
                    }
                }
                Ok((events, lines.len(), self))
            });
            let (events, read, this) = read.await.ok()?;
            self = this;
            if !self.peer.is_valid(wall_us()) {
                return None;
            }
            if !events.is_empty() {
                return Some((events, self));
            }
            if read < CHUNK {
                // Now and then also in silence: its token may have expired.
                if let Ok(grown) = tokio::time::timeout(LOOK_AGAIN, self.synced.changed()).await {
                    grown.ok()?;
                    while self.app.stream_reads.take(&self.peer.caller.tenant, Instant::now()).is_err() {
                        tokio::time::sleep(READ_AGAIN).await;
                    }
                }
            }
        }
    }
}

/// After which line a stream begins for a caller that has seen up to `seen`, and what it is told first. The log has the
/// lines from `first` to `last`.
fn begin(seen: Option<u64>, (first, last): (u64, u64)) -> (u64, Option<Event>) {
    match seen {
        None => (last, None),
        // With its number a caller that returns goes on from there, and does not wait for lines that never come.
        Some(seen) if seen > last => {
            let data = format!("{{\"seen\":{seen},\"last\":{last}}}");
            (last, Some(Event::default().id(last.to_string()).event("gap").data(data)))
        }
        Some(seen) => (seen.max(first - 1), gap(seen, first)),
    }
}

/// A comment about the lines between one and the next that exists.
fn gap(after: u64, next: u64) -> Option<Event> {
    let (from, to) = (after + 1, next.checked_sub(1)?);
    (from <= to).then(|| Event::default().event("gap").data(format!("{{\"from\":{from},\"to\":{to}}}")))
}

fn event(line: &sublet_wire::AuditLine) -> Event {
    let data = serde_json::to_string(line).unwrap_or_default();
    Event::default().id(line.seq.to_string()).event(&line.kind).data(data)
}
