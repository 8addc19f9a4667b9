//! The thread that accepts connections on the Unix socket.
//!
//! ```text
//!   the kernel's line ─accept─► is the user within its rate? ──yes──► channel ─► a task for each connection
//!                                          └──no──► 429, closed
//! ```
//! Connections of all users wait in one line in the kernel. A user that connects without end fills it, and then another
//! user's connection waits as long as it takes to accept and close those before it. So this thread does nothing else:
//! a connection beyond its user's rate costs four system calls here, and reaches neither the runtime nor its poller.
//!
//! Absent on purpose: seats, HTTP, and any wait but for the next connection.

use super::arrivals::Arrivals;
use crate::serve::{ServeError, spawn};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SendFlags, Shutdown, SocketFlags, accept_with, send, shutdown};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};
use sublet_wire::{Code, PROBLEM_JSON, Problem};
use tokio::sync::mpsc;

/// Connections that were accepted and have no task yet. The rest waits in the kernel's line.
const ACCEPTED_MAX: usize = 64;
/// How long to wait where no connection can be accepted: out of descriptors, most likely, and others will close.
const AGAIN: Duration = Duration::from_millis(50);

/// Accepted connections. No further ones are accepted after the drop.
pub struct Acceptor {
    listener: Arc<UnixListener>,
    accepted: mpsc::Receiver<UnixStream>,
}

impl Acceptor {
    /// Starts the thread. The listener must block; the streams that come do not.
    pub fn start(listener: UnixListener) -> Result<Acceptor, ServeError> {
        let listener = Arc::new(listener);
        let (send, accepted) = mpsc::channel(ACCEPTED_MAX);
        let own = Arc::clone(&listener);
        spawn("sublet-accept", move || accept_all(&own, &send))?;
        Ok(Acceptor { listener, accepted })
    }

    /// The next connection. Pending for good once the thread has ended.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<io::Result<tokio::net::UnixStream>> {
        match self.accepted.poll_recv(context) {
            Poll::Ready(Some(stream)) => Poll::Ready(tokio::net::UnixStream::from_std(stream)),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.accepted.close();
        // Linux ends an accept that waits on a Unix socket with EINVAL then, and refuses new connections.
        let _ = shutdown(&*self.listener, Shutdown::Read);
    }
}

fn accept_all(listener: &UnixListener, accepted: &mpsc::Sender<UnixStream>) {
    let arrivals = Arrivals::new();
    let refusal = &refusal();
    loop {
        let stream = match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(stream) => stream,
            Err(Errno::INVAL) => return,
            Err(Errno::INTR | Errno::CONNABORTED) => continue,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                thread::sleep(AGAIN);
                continue;
            }
        };
        // A client that cannot be told from others is not served.
        let Ok(credentials) = socket_peercred(&stream) else { continue };
        if !arrivals.admit(credentials.uid.as_raw(), Instant::now()) {
            // A client that is gone already is not told.
            let _ = send(&stream, refusal, SendFlags::NOSIGNAL);
            // A flood keeps this thread running: on a busy core those that answer requests go first.
            thread::yield_now();
        } else if accepted.blocking_send(UnixStream::from(stream)).is_err() {
            return;
        }
    }
}

/// What a connection beyond its user's rate is answered, whatever it asks.
fn refusal() -> Vec<u8> {
    let problem = Problem::new(Code::TooManyRequests, "your programs connect more often than a user may on this host")
        .hint("use one connection for many calls, or wait between them")
        .retry_after(1);
    let (status, body) = (problem.status, serde_json::to_string(&problem).unwrap_or_default());
    let length = body.len();
    format!(
        "HTTP/1.1 {status} Too Many Requests\r\ncontent-type: {PROBLEM_JSON}\r\ncontent-length: {length}\r\n\
         retry-after: 1\r\nconnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::io::{ErrorKind, Write};
    use tokio::io::AsyncReadExt;

    #[tokio::test]
    async fn connections_come_in_order_and_none_after_the_drop() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let mut acceptor = Acceptor::start(UnixListener::bind(&path).unwrap()).unwrap();
        let mut clients: Vec<UnixStream> = (0..3).map(|_| UnixStream::connect(&path).unwrap()).collect();
        for (number, client) in (0u8..).zip(&mut clients) {
            client.write_all(&[number]).unwrap();
            let mut stream = poll_fn(|context| acceptor.poll_next(context)).await.unwrap();
            assert_eq!(stream.read_u8().await.unwrap(), number);
        }
        let listener = Arc::downgrade(&acceptor.listener);
        drop(acceptor);
        assert_eq!(UnixStream::connect(&path).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        while listener.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    }
}
