//! The lane beside the road: plain asks and releases on the host's own socket, read and answered without a server
//! between.
//!
//! ```text
//!   a connection ──plain ask or release, whole in one read──► answered here ──┐
//!        ▲  │                                                                 │
//!        │  └──anything else──► hyper, from its first byte, for good          │
//!        └────────────────────────────────────────────────────────────────────┘
//! ```
//! A busy day is asks and releases, and a good part of what they cost was the general server's way to a request: maps of
//! headers, a body that could be endless, an answer that could be. Whatever is not quite such a request (a header of
//! another kind, a part of it, more than one, an error) is not judged here: hyper gets all that was read, and
//! the rest of the connection. So there is nothing to be learned here about HTTP that could be got wrong twice.
//!
//! One difference: whoever sends a request and nothing more (it shuts its half of the connection) still gets its answer
//! here.
//!
//! Absent on purpose: TCP and tokens, Idempotency-Keys, chunks, upgrades, half requests.

use super::body::{self, Heard};
use super::progress::Progress;
use super::ways::{Short, plain};
use super::{App, Limits, Refused, leases};
use crate::access::Session;
use crate::mail::Reply;
use axum::http::StatusCode;
use std::future::poll_fn;
use std::io::{self, ErrorKind, Write};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};
use sublet_wire::PROBLEM_JSON;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Longer requests are hyper's.
const LONGEST: usize = 2 << 10;
/// So are those with more headers.
const HEADERS: usize = 8;

/// Answers plain asks and releases until something else comes: then the connection as if nothing of that had been read.
/// `None`: it is over.
pub async fn drive(
    stream: UnixStream,
    limits: Limits,
    mut stop: watch::Receiver<bool>,
    by: &impl Answers,
) -> Option<Begun> {
    let mut stream = Progress::new(stream, limits.write_time);
    let (mut heard, mut answer, mut clock) = (Vec::new(), Vec::new(), Clock::default());
    let stopping = stop.clone();
    let mut stopped = pin!(async move { drop(stop.wait_for(|stop| *stop).await) });
    let mut since = Instant::now();
    let mut idle = pin!(sleep_until(since + limits.header_time));
    loop {
        tokio::select! {
            biased;
            read = read(stream.get_ref(), &mut heard) => match read {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            },
            // The timer stays set from request to request, and is looked at when it rings.
            () = idle.as_mut() => {
                if since + limits.header_time <= Instant::now() {
                    return None;
                }
                idle.as_mut().reset(since + limits.header_time);
                continue;
            }
            () = stopped.as_mut() => return None,
        }
        let Some(request) = Plain::read(&heard) else { return Some(Begun { stream, read: heard, given: 0 }) };
        let reply = by.answer(request).await;
        heard.clear();
        answer.clear();
        let after = if *stopping.borrow() { After::Close } else { After::KeepAlive };
        write_answer(&mut answer, &reply, after, clock.date());
        stream.write_all(&answer).await.ok()?;
        if after == After::Close {
            return None;
        }
        since = Instant::now();
    }
}

/// Who answers.
pub trait Answers: Sync {
    /// The answer to a request.
    fn answer(&self, request: Plain<'_>) -> impl Future<Output = Reply> + Send;
}

/// The service, for whoever is at the other end of a connection.
pub struct Caller<'a> {
    /// The service.
    pub app: &'a App,
    /// Who it is.
    pub session: &'a Session,
}

impl Answers for Caller<'_> {
    async fn answer(&self, request: Plain<'_>) -> Reply {
        plain(request.answer(self.app, self.session).await)
    }
}

/// Reads once, when there is something. Whoever sends nothing needs no room for it.
async fn read(stream: &UnixStream, into: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        poll_fn(|context| stream.poll_read_ready(context)).await?;
        into.reserve_exact(LONGEST);
        match stream.try_read_buf(into) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

/// A request that is answered here.
#[derive(Debug, PartialEq, Eq)]
pub struct Plain<'a> {
    what: Short,
    body: &'a [u8],
}

impl Plain<'_> {
    /// A request, if these bytes are a whole one and nothing else, and there is nothing in it that could mean more.
    fn read(bytes: &[u8]) -> Option<Plain<'_>> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let httparse::Status::Complete(head) = request.parse(bytes).ok()? else { return None };
        if request.version != Some(1) {
            return None;
        }
        let mut length = None;
        for header in request.headers.iter() {
            match header.name {
                name if is(name, "content-length") => {
                    if length.replace(digits(header.value)?).is_some() {
                        return None;
                    }
                }
                // What these say changes no answer.
                name if ["host", "user-agent", "accept", "accept-encoding", "content-type"]
                    .iter()
                    .any(|n| is(name, n)) => {}
                _ => return None,
            }
        }
        let what = Short::of(&request.method?.parse().ok()?, request.path?)?;
        let body = &bytes[head..];
        (body.len() == length.unwrap_or(0)).then_some(Plain { what, body })
    }

    async fn answer(self, app: &App, session: &Session) -> Result<Reply, Refused> {
        let peer = session.peer().await?;
        match self.what {
            Short::Ask => leases::asked(app, Heard { peer, body: body::parsed(self.body)?, key: None }).await,
            Short::Release(name) => {
                body::nothing(self.body)?;
                leases::released(app, &name.0, None, Heard { peer, body: (), key: None }).await
            }
        }
    }
}

fn is(name: &str, known: &str) -> bool {
    name.eq_ignore_ascii_case(known)
}

/// A length, written as a length is; nothing that would not fit here anyway.
fn digits(value: &[u8]) -> Option<usize> {
    let plain = matches!(value.len(), 1..=4) && value.iter().all(u8::is_ascii_digit);
    plain.then(|| value.iter().fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0')))
}

/// What becomes of a connection after an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    KeepAlive,
    Close,
}

/// The bytes that hyper would send.
pub(super) fn write_answer(to: &mut Vec<u8>, reply: &Reply, after: After, date: &str) {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kind = if reply.is_problem() { PROBLEM_JSON } else { "application/json" };
    let reason = status.canonical_reason().unwrap_or("Unknown");
    let close = if after == After::Close { "connection: close\r\n" } else { "" };
    let retry = reply.retry_after_s.map(|seconds| format!("retry-after: {seconds}\r\n")).unwrap_or_default();
    let (number, length) = (status.as_u16(), reply.body.len());
    let written = write!(
        to,
        "HTTP/1.1 {number} {reason}\r\ncontent-type: {kind}\r\n{retry}{close}content-length: {length}\r\ndate: {date}\r\n\r\n"
    );
    debug_assert!(written.is_ok(), "a vector takes whatever is written to it");
    to.extend_from_slice(reply.body.as_bytes());
}

/// The date of an answer, written anew once a second.
#[derive(Default)]
struct Clock {
    second: u64,
    date: String,
}

impl Clock {
    fn date(&mut self) -> &str {
        let now = SystemTime::now();
        let second = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        if self.second != second || self.date.is_empty() {
            (self.second, self.date) = (second, httpdate::fmt_http_date(now));
        }
        &self.date
    }
}

/// A connection of which something was read, to be read again.
pub struct Begun {
    stream: Progress<UnixStream>,
    read: Vec<u8>,
    given: usize,
}

impl AsyncRead for Begun {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let rest = &this.read[this.given..];
        if rest.is_empty() {
            return Pin::new(&mut this.stream).poll_read(context, buf);
        }
        let count = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..count]);
        this.given += count;
        if this.given == this.read.len() {
            (this.read, this.given) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Begun {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::super::body::Name;
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::AsyncReadExt;
    use tokio::sync::Semaphore;

    fn release(id: &str) -> Short {
        Short::Release(Name(id.to_owned()))
    }

    #[test]
    fn plain_asks_and_releases_are_read() {
        let ask = b"POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nCONTENT-LENGTH: 2\r\n\r\n{}";
        assert_eq!(Plain::read(ask), Some(Plain { what: Short::Ask, body: b"{}" }));
        let bare = b"DELETE /v1/leases/L7 HTTP/1.1\r\nhost: x\r\nuser-agent: curl/8\r\naccept: */*\r\naccept-encoding: gzip\r\n\r\n";
        assert_eq!(Plain::read(bare), Some(Plain { what: release("L7"), body: b"" }));
    }

    #[test]
    fn whatever_could_mean_more_is_left_to_the_road() {
        let others: [&[u8]; 18] = [
            b"",
            b"POST /v1/leases HTTP/1.1\r\nContent-Length: 2\r\n",
            b"POST /v1/leases HTTP/1.1\r\nContent-Length: 3\r\n\r\n{}",
            b"POST /v1/leases HTTP/1.1\r\nContent-Length: 1\r\n\r\n{}",
            b"POST /v1/leases HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
            b"POST /v1/leases HTTP/1.1\r\nContent-Length: +2\r\n\r\n{}",
            b"POST /v1/leases HTTP/1.1\r\nContent-Length: 00002\r\n\r\n{}",
            b"POST /v1/leases HTTP/1.1\r\nContent-Length: \r\n\r\n",
            b"POST /v1/leases HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"POST /v1/leases HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n{}",
            b"POST /v1/leases HTTP/1.1\r\nContent-Length: 2\r\nIdempotency-Key: k\r\n\r\n{}",
            b"POST /v1/leases HTTP/1.1\r\nContent-Length: 2\r\nAuthorization: Bearer x\r\n\r\n{}",
            b"POST /v1/leases HTTP/1.1\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
            b"POST /v1/leases HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}",
            b"POST http://localhost/v1/leases HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
            b"DELETE /v1/leases/L7?epoch=3 HTTP/1.1\r\n\r\n",
            b"DELETE /v1/leases/L7 HTTP/1.1\r\n\r\nDELETE /v1/leases/L8 HTTP/1.1\r\n\r\n",
            b"GET /v1/leases/L7 HTTP/1.1\r\n\r\n",
        ];
        for bytes in others {
            assert_eq!(Plain::read(bytes), None, "{}", String::from_utf8_lossy(bytes));
        }
    }

    /// A connection in the lane, and the word to stop.
    fn lane(by: Arc<Counts>) -> (UnixStream, tokio::task::JoinHandle<Option<Begun>>, watch::Sender<bool>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (stop, stopped) = watch::channel(false);
        (theirs, tokio::spawn(async move { drive(ours, Limits::default(), stopped, &*by).await }), stop)
    }

    /// Answers requests with their number, each when it is let.
    struct Counts {
        count: AtomicUsize,
        let_through: Semaphore,
    }

    impl Counts {
        fn letting_through(many: usize) -> Arc<Counts> {
            Arc::new(Counts { count: AtomicUsize::new(0), let_through: Semaphore::new(many) })
        }
    }

    impl Answers for Counts {
        async fn answer(&self, _: Plain<'_>) -> Reply {
            let number = self.count.fetch_add(1, Ordering::Relaxed);
            self.let_through.acquire().await.unwrap().forget();
            Reply::new(201, &number)
        }
    }

    const RELEASE: &[u8] = b"DELETE /v1/leases/L7 HTTP/1.1\r\nhost: x\r\n\r\n";

    async fn answer(theirs: &mut UnixStream) -> String {
        let mut bytes = vec![0; 4096];
        let count = theirs.read(&mut bytes).await.unwrap();
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }

    #[tokio::test]
    async fn plain_requests_are_answered_in_the_lane_until_another_comes() {
        let (mut theirs, driven, _stop) = lane(Counts::letting_through(3));
        for number in 0..3 {
            theirs.write_all(RELEASE).await.unwrap();
            let answer = answer(&mut theirs).await;
            assert!(answer.starts_with("HTTP/1.1 201 Created\r\ncontent-type: application/json\r\n"), "{answer}");
            assert!(answer.ends_with(&format!("\r\n\r\n{number}")), "{answer}");
        }
        theirs.write_all(b"GET /v1/cards HTTP/1.1\r\n").await.unwrap();
        let begun = driven.await.unwrap().expect("it goes on elsewhere");
        assert_eq!(begun.read, b"GET /v1/cards HTTP/1.1\r\n");
    }

    #[tokio::test]
    async fn a_stop_ends_the_lane_after_the_answer_that_is_under_way() {
        let counts = Counts::letting_through(0);
        let (mut theirs, driven, stop) = lane(Arc::clone(&counts));
        theirs.write_all(RELEASE).await.unwrap();
        while counts.count.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        stop.send(true).unwrap();
        counts.let_through.add_permits(1);
        let answer = answer(&mut theirs).await;
        assert!(answer.contains("\r\nconnection: close\r\n") && answer.ends_with("\r\n\r\n0"), "{answer}");
        assert!(driven.await.unwrap().is_none());
        let (_theirs, driven, stop) = lane(Counts::letting_through(0));
        stop.send(true).unwrap();
        assert!(driven.await.unwrap().is_none(), "who asks nothing is not waited for");
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_is_hung_up_on() {
        let (theirs, driven, _stop) = lane(Counts::letting_through(0));
        let start = Instant::now();
        assert!(driven.await.unwrap().is_none());
        assert_eq!(start.elapsed().as_secs(), Limits::default().header_time.as_secs());
        drop(theirs);
    }

    #[tokio::test]
    async fn what_was_read_is_read_again_before_the_rest() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let stream = Progress::new(ours, Duration::from_secs(1));
        let mut begun = Begun { stream, read: b"GET / HT".to_vec(), given: 0 };
        theirs.write_all(b"TP/1.1").await.unwrap();
        drop(theirs);
        let mut parts = Vec::new();
        let mut part = [0; 5];
        loop {
            match begun.read(&mut part).await.unwrap() {
                0 => break,
                count => parts.push(String::from_utf8_lossy(&part[..count]).into_owned()),
            }
        }
        assert_eq!(parts, ["GET /", " HT", "TP/1.", "1"]);
    }
}
