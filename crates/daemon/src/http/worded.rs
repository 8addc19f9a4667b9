//! Words for what the server refuses by itself.
//!
//! Whoever sends what cannot be read as HTTP reaches no handler: hyper answers with a status and nothing else, and
//! hangs up. This stream knows such an answer when it is written, and sends one in its place that says what is wrong.
//!
//! Absent on purpose: any look at other answers. A handler's begin with the kind of their body, and never match.

use super::lane;
use crate::mail::Reply;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::SystemTime;
use sublet_wire::{Code, Problem};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What follows the status in an answer without words.
const MUTE: &[u8] = b"\r\nconnection: close\r\ncontent-length: 0\r\n";

/// A stream that says what is wrong.
pub struct Worded<T> {
    stream: T,
    /// What is sent instead of an answer, and how much of it was sent.
    instead: Option<(Vec<u8>, usize)>,
}

impl<T: AsyncWrite + Unpin> Worded<T> {
    /// Over this stream.
    pub fn new(stream: T) -> Worded<T> {
        Worded { stream, instead: None }
    }

    /// Sends what has to be said in place of `mute`, then takes that for sent.
    fn say(&mut self, context: &mut Context<'_>, mute: &[u8]) -> Poll<io::Result<usize>> {
        let (words, sent) = self.instead.get_or_insert_with(|| (words(mute), 0));
        while *sent < words.len() {
            match ready!(Pin::new(&mut self.stream).poll_write(context, &words[*sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => *sent += count,
            }
        }
        self.instead = None;
        Poll::Ready(Ok(mute.len()))
    }
}

fn is_mute(bytes: &[u8]) -> bool {
    if !bytes.starts_with(b"HTTP/1.1 4") {
        return false;
    }
    let status = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
    bytes[status.len()..].starts_with(MUTE) && bytes.ends_with(b"\r\n\r\n")
}

fn words(mute: &[u8]) -> Vec<u8> {
    let problem = if mute.starts_with(b"HTTP/1.1 431") || mute.starts_with(b"HTTP/1.1 414") {
        Problem::new(Code::HeadTooLarge, "the request's line and headers are longer than any that this service takes")
            .hint("what is large belongs in the body")
    } else {
        Problem::new(Code::BadRequest, "this cannot be read as a request of HTTP/1.1")
            .hint("GET /openapi.json has what can be asked, and how")
    };
    let mut answer = Vec::new();
    let date = httpdate::fmt_http_date(SystemTime::now());
    lane::write_answer(&mut answer, &Reply::problem(&problem), lane::After::Close, &date);
    answer
}

impl<T: AsyncRead + Unpin> AsyncRead for Worded<T> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Worded<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match is_mute(bytes) {
            true => self.say(context, bytes),
            false => Pin::new(&mut self.stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match slices {
            [only] if is_mute(only) => self.say(context, only),
            _ => Pin::new(&mut self.stream).poll_write_vectored(context, slices),
        }
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
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test]
    async fn an_answer_without_words_gets_some_and_others_stay_as_they_are() {
        let mute = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: now\r\n\r\n";
        let other = b"HTTP/1.1 404 Not Found\r\ncontent-type: application/problem+json\r\nconnection: close\r\n\r\n";
        // So little fits at a time that it takes many writes.
        let (ours, mut theirs) = duplex(16);
        let write = tokio::spawn(async move {
            let mut worded = Worded::new(ours);
            worded.write_all(other).await.unwrap();
            worded.write_all(mute).await.unwrap();
        });
        let mut said = String::new();
        theirs.read_to_string(&mut said).await.unwrap();
        write.await.unwrap();
        let said = said.strip_prefix(std::str::from_utf8(other).unwrap()).unwrap();
        let (head, body) = said.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\n"), "{head}");
        assert!(head.contains(&format!("\r\ncontent-length: {}\r\n", body.len())), "{head}");
        assert!(head.contains("\r\nconnection: close\r\n"), "{head}");
        assert_eq!(serde_json::from_str::<Problem>(body).unwrap().code, Code::BadRequest);
    }
}
