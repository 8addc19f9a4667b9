//! As much HTTP/1.1 as both services speak here: requests made beforehand, answers with a
//! Content-Length.
//!
//! Deliberately absent: chunked answers, redirects, anything that costs time. An answer that is not
//! understood is an error, never a guess.

use anyhow::{Context, Result, bail, ensure};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// An answer at the start of a buffer.
#[derive(Debug, PartialEq, Eq)]
pub struct HttpAnswer<'b> {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: &'b [u8],
    /// Bytes of head and body together.
    pub length: usize,
}

/// Reads an answer; `None` while it is not complete.
pub fn parse(buffer: &[u8]) -> Result<Option<HttpAnswer<'_>>> {
    let Some(head) = find(buffer, b"\r\n\r\n") else { return Ok(None) };
    let (lines, start) = (&buffer[..head], head + 4);
    // "HTTP/1.1 201 Created"
    let status = lines.get(9..12).and_then(number).context("answer without a status")?;
    let content = content_length(lines).context("answer without a content length")?;
    Ok(buffer.get(start..start + content).map(|body| HttpAnswer {
        status: status as u16,
        body,
        length: start + content,
    }))
}

fn content_length(head: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"content-length:";
    head.split(|&byte| byte == b'\n').find_map(|line| {
        let (name, value) = line.split_at_checked(NAME.len())?;
        name.eq_ignore_ascii_case(NAME).then(|| number(value.trim_ascii()))?
    })
}

fn number(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

/// The text after `"key":"` in a compact JSON body, up to the next quote.
pub fn json_text<'b>(body: &'b [u8], key: &[u8]) -> Option<&'b [u8]> {
    let rest = &body[find(body, key)? + key.len()..];
    Some(&rest[..rest.iter().position(|&byte| byte == b'"')?])
}

/// A request without a body.
pub fn bodiless_request(method: &str, path: &str) -> Vec<u8> {
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes()
}

/// `POST /v1/leases` with a body.
pub fn lease_request(body: &str) -> Vec<u8> {
    format!(
        "POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// One blocking connection.
pub struct BenchClient {
    stream: UnixStream,
    buffer: Vec<u8>,
    filled: usize,
}

impl BenchClient {
    /// Connects once; the caller decides whether to try again.
    pub fn connect(socket: &Path) -> Result<BenchClient> {
        let stream =
            UnixStream::connect(socket).with_context(|| format!("cannot connect to `{}`", socket.display()))?;
        // Nothing measured here takes seconds: a service that hangs is a finding.
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(BenchClient { stream, buffer: vec![0; 64 << 10], filled: 0 })
    }

    /// Sends a request and reads its answer.
    pub fn call(&mut self, request: &[u8]) -> Result<(u16, &[u8])> {
        self.stream.write_all(request)?;
        self.filled = 0;
        loop {
            ensure!(self.filled < self.buffer.len(), "answer longer than {} bytes", self.buffer.len());
            let read = self.stream.read(&mut self.buffer[self.filled..])?;
            ensure!(read > 0, "the service closed the connection");
            self.filled += read;
            if parse(&self.buffer[..self.filled])?.is_some() {
                break;
            }
        }
        match parse(&self.buffer[..self.filled])? {
            Some(HttpAnswer { status, body, .. }) => Ok((status, body)),
            None => bail!("answer is not complete"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_when_it_is_whole() {
        let text = b"HTTP/1.1 201 Created\r\nContent-Length: 11\r\n\r\n{\"id\":\"L7\"}rest";
        assert_eq!(parse(&text[..20]).unwrap(), None);
        assert_eq!(parse(&text[..50]).unwrap(), None);
        let answer = parse(text).unwrap().unwrap();
        assert_eq!((answer.status, answer.body, answer.length), (201, &b"{\"id\":\"L7\"}"[..], text.len() - 4));
        assert_eq!(json_text(answer.body, b"\"id\":\""), Some(&b"L7"[..]));
    }

    #[test]
    fn an_answer_of_unknown_length_is_an_error() {
        assert!(parse(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
    }
}
