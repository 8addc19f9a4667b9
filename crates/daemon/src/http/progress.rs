//! A stream that gives up on a client that never reads.
//!
//! A client that sends a request and takes no answer would keep its place among the connections for ever. A slow reader
//! is waited for; a client that takes nothing at all for a while is disconnected.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A stream whose writes make progress, or fail.
pub struct Progress<T> {
    stream: T,
    patience: Duration,
    /// When the wait ends, since nothing is taken any more.
    end: Option<Pin<Box<Sleep>>>,
}

impl<T> Progress<T> {
    /// Waits for this long while nothing is taken.
    pub fn new(stream: T, patience: Duration) -> Progress<T> {
        Progress { stream, patience, end: None }
    }

    /// Passes on the result of a write, unless none came for too long.
    fn judge<R>(&mut self, context: &mut Context<'_>, came: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if came.is_ready() {
            self.end = None;
            return came;
        }
        let patience = self.patience;
        let end = self.end.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(end.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Progress<T> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Progress<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let came = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, came)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let came = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.judge(context, came)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let came = Pin::new(&mut self.stream).poll_flush(context);
        self.judge(context, came)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let came = Pin::new(&mut self.stream).poll_shutdown(context);
        self.judge(context, came)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::Instant;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_disconnected() {
        let (ours, theirs) = duplex(16);
        let start = Instant::now();
        let failed = Progress::new(ours, PATIENCE).write_all(&[0; 64]).await.unwrap_err();
        assert_eq!((failed.kind(), start.elapsed().as_secs()), (io::ErrorKind::TimedOut, 30));
        drop(theirs);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_is_waited_for() {
        let (ours, mut theirs) = duplex(1);
        let write = tokio::spawn(async move { Progress::new(ours, PATIENCE).write_all(&[7; 10]).await });
        for _ in 0..10 {
            tokio::time::sleep(PATIENCE - Duration::from_secs(1)).await;
            assert_eq!(theirs.read_u8().await.unwrap(), 7);
        }
        write.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_is_kept() {
        let (ours, mut theirs) = duplex(16);
        let mut ours = Progress::new(ours, PATIENCE);
        ours.write_all(&[1]).await.unwrap();
        tokio::time::sleep(100 * PATIENCE).await;
        ours.write_all(&[2]).await.unwrap();
        let mut got = [0; 2];
        theirs.read_exact(&mut got).await.unwrap();
        assert_eq!(got, [1, 2]);
    }
}
