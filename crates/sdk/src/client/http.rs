//! One HTTP/1.1 request and its response, over any byte stream.
//!
//! It has only what the daemon's API needs: one connection for each request, and bodies of known length, chunked, or up
//! to the end of the stream. There are no redirects and no compression; the stream does TLS.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use sublet_wire::{IDEMPOTENCY_KEY, PROBLEM_JSON};

/// The daemon's response heads are a few hundred bytes.
const HEAD_MAX: usize = 64 << 10;
/// 100,000 leases are about 60 MB of JSON.
const BODY_MAX: usize = 256 << 20;
/// More headers than the daemon ever sends.
const HEADERS_MAX: usize = 64;

/// A request to send.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// `GET`, `POST`, `PUT` or `DELETE`.
    pub method: &'a str,
    /// The path and query.
    pub target: &'a str,
    /// The value of the `Host` header; `None` on a Unix socket.
    pub host: Option<&'a str>,
    /// The token that identifies the caller on connections where the kernel cannot.
    pub token: Option<&'a str>,
    /// The `Idempotency-Key`, which makes it safe to send the request again.
    pub key: Option<&'a str>,
    /// The body.
    pub body: Option<&'a [u8]>,
    /// What the body is.
    pub content: Content,
}

/// What a body is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Content {
    /// JSON.
    #[default]
    Json,
    /// Any bytes.
    Bytes,
}

/// A received response.
#[derive(Debug)]
pub struct Response {
    /// 200, 404, …
    pub status: u16,
    /// Whether the body is a problem document.
    pub is_problem: bool,
    /// The whole body.
    pub body: Vec<u8>,
}

/// Sends a request and reads the whole response.
pub fn exchange(stream: &mut (impl Read + Write), request: &Request<'_>) -> io::Result<Response> {
    stream.write_all(&encode(request))?;
    let mut input = Input { stream, buffer: Vec::new() };
    loop {
        let head = input.head()?;
        // An interim response such as 100 Continue; the final one follows.
        if head.status >= 200 {
            let body = input.body(&head.length)?;
            return Ok(Response { status: head.status, is_problem: head.is_problem, body });
        }
    }
}

/// Sends a request, reads the whole response and returns its status. The body is not stored, whatever its size.
pub fn status(stream: &mut (impl Read + Write), request: &Request<'_>) -> io::Result<u16> {
    stream.write_all(&encode(request))?;
    let mut input = Input { stream, buffer: Vec::new() };
    loop {
        let head = input.head()?;
        if head.status >= 200 {
            input.skip_body(&head.length)?;
            return Ok(head.status);
        }
    }
}

fn encode(request: &Request<'_>) -> Vec<u8> {
    let host = request.host.unwrap_or("sublet");
    let mut head = format!("{} {} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n", request.method, request.target);
    if let Some(token) = request.token {
        // Writing to a string cannot fail.
        let _ = write!(head, "authorization: Bearer {token}\r\n");
    }
    if let Some(key) = request.key {
        let _ = write!(head, "{IDEMPOTENCY_KEY}: {key}\r\n");
    }
    if let Some(body) = request.body {
        let kind = match request.content {
            Content::Json => "application/json",
            Content::Bytes => "application/octet-stream",
        };
        let _ = write!(head, "content-type: {kind}\r\ncontent-length: {}\r\n", body.len());
    }
    if request.body.is_none() && matches!(request.method, "POST" | "PUT") {
        // Some servers refuse a POST or PUT of unknown length.
        head.push_str("content-length: 0\r\n");
    }
    head.push_str("\r\n");
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(request.body.unwrap_or_default());
    bytes
}

struct Head {
    status: u16,
    is_problem: bool,
    length: Length,
}

enum Length {
    Known(usize),
    Chunked,
    UntilClosed,
}

struct Input<'a, S> {
    stream: &'a mut S,
    /// Bytes that were read and not yet used.
    buffer: Vec<u8>,
}

impl<S: Read> Input<'_, S> {
    /// Reads more bytes; the end of the stream is an error here.
    fn more(&mut self) -> io::Result<()> {
        match self.fill()? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection closed in the middle of an answer")),
            _ => Ok(()),
        }
    }

    fn fill(&mut self) -> io::Result<usize> {
        let mut piece = [0; 16 << 10];
        loop {
            match self.stream.read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(n) => {
                    self.buffer.extend_from_slice(&piece[..n]);
                    return Ok(n);
                }
            }
        }
    }

    fn head(&mut self) -> io::Result<Head> {
        loop {
            if let Some((head, used)) = parse_head(&self.buffer)? {
                self.buffer.drain(..used);
                return Ok(head);
            }
            if self.buffer.len() > HEAD_MAX {
                return Err(invalid("the head of the answer is too long"));
            }
            self.more()?;
        }
    }

    fn body(mut self, length: &Length) -> io::Result<Vec<u8>> {
        match length {
            Length::Known(n) => self.exactly(*n),
            Length::Chunked => self.chunks(),
            Length::UntilClosed => {
                while self.fill()? > 0 {
                    check_body(self.buffer.len())?;
                }
                Ok(self.buffer)
            }
        }
    }

    fn exactly(&mut self, n: usize) -> io::Result<Vec<u8>> {
        check_body(n)?;
        while self.buffer.len() < n {
            self.more()?;
        }
        Ok(self.buffer.drain(..n).collect())
    }

    fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let size = self.chunk_size()?;
            check_body(body.len().saturating_add(size))?;
            if size == 0 {
                // Trailers are not used, and the connection serves one request only.
                return Ok(body);
            }
            body.append(&mut self.exactly(size)?);
            self.line_end()?;
        }
    }

    fn skip_body(&mut self, length: &Length) -> io::Result<()> {
        match length {
            Length::Known(n) => self.skip(*n),
            Length::Chunked => loop {
                match self.chunk_size()? {
                    0 => return Ok(()),
                    size => self.skip(size)?,
                }
                self.line_end()?;
            },
            Length::UntilClosed => loop {
                self.buffer.clear();
                if self.fill()? == 0 {
                    return Ok(());
                }
            },
        }
    }

    fn skip(&mut self, mut n: usize) -> io::Result<()> {
        loop {
            let here = n.min(self.buffer.len());
            self.buffer.drain(..here);
            n -= here;
            if n == 0 {
                return Ok(());
            }
            self.more()?;
        }
    }

    fn line_end(&mut self) -> io::Result<()> {
        match self.exactly(2)?.as_slice() {
            b"\r\n" => Ok(()),
            _ => Err(invalid("a chunk of the answer does not end where it should")),
        }
    }

    fn chunk_size(&mut self) -> io::Result<usize> {
        loop {
            match httparse::parse_chunk_size(&self.buffer) {
                Ok(httparse::Status::Complete((used, size))) => {
                    self.buffer.drain(..used);
                    return usize::try_from(size).map_err(|_| invalid("a chunk of the answer is too long"));
                }
                Ok(httparse::Status::Partial) => self.more()?,
                Err(_) => return Err(invalid("a chunk of the answer has no length")),
            }
        }
    }
}

fn parse_head(bytes: &[u8]) -> io::Result<Option<(Head, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let used = match response.parse(bytes) {
        Ok(httparse::Status::Complete(used)) => used,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(invalid(&format!("the answer is not HTTP ({error})"))),
    };
    let find = |name: &str| {
        let header = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(header.value).ok().map(str::trim)
    };
    let status = response.code.unwrap_or_default();
    let length = match (find("transfer-encoding"), find("content-length")) {
        _ if status < 200 || status == 204 => Length::Known(0),
        (Some(coding), _) if coding.eq_ignore_ascii_case("chunked") => Length::Chunked,
        (_, Some(n)) => Length::Known(n.parse().map_err(|_| invalid("the answer has an absurd length"))?),
        _ => Length::UntilClosed,
    };
    let is_problem = find("content-type").is_some_and(|kind| kind.starts_with(PROBLEM_JSON));
    Ok(Some((Head { status, is_problem, length }, used)))
}

fn check_body(length: usize) -> io::Result<()> {
    if length > BODY_MAX { Err(invalid("the answer is too long")) } else { Ok(()) }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    /// A stream that answers in pieces and records what was sent.
    struct Script {
        answer: Vec<u8>,
        sent: Vec<u8>,
        piece: usize,
    }
    impl Read for Script {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let n = self.piece.min(self.answer.len()).min(into.len());
            into[..n].copy_from_slice(&self.answer[..n]);
            self.answer.drain(..n);
            Ok(n)
        }
    }
    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.sent.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn check(answer: &str, expected: &Expect) {
        // The result must not depend on how the bytes are split.
        for piece in [1, 7, 4096] {
            let mut stream = Script { answer: answer.into(), sent: Vec::new(), piece };
            let request = Request {
                method: "GET",
                target: "/v1/gpus",
                host: None,
                token: None,
                key: None,
                body: None,
                content: Content::Json,
            };
            let got = match exchange(&mut stream, &request) {
                Ok(r) => format!("{} problem={} {:?}", r.status, r.is_problem, String::from_utf8_lossy(&r.body)),
                Err(error) => format!("{error}"),
            };
            expected.assert_eq(&got);
            // `status` must find the same end as `exchange`.
            let mut stream = Script { answer: answer.into(), sent: Vec::new(), piece };
            match status(&mut stream, &request) {
                Ok(status) => assert!(got.starts_with(&format!("{status} ")), "{status} is not {got}"),
                Err(error) => assert_eq!(error.to_string(), got),
            }
        }
    }

    #[test]
    fn a_request_is_written_as_http() {
        let mut stream = Script { answer: b"HTTP/1.1 204 x\r\n\r\n".into(), sent: Vec::new(), piece: 99 };
        let request = Request {
            method: "POST",
            target: "/v1/leases",
            host: None,
            token: None,
            key: Some("k1"),
            body: Some(b"{}"),
            content: Content::Json,
        };
        exchange(&mut stream, &request).unwrap();
        expect![[r#""POST /v1/leases HTTP/1.1\r\nhost: sublet\r\nconnection: close\r\nidempotency-key: k1\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}""#]]
        .assert_eq(&format!("{:?}", String::from_utf8(stream.sent).unwrap()));
    }

    #[test]
    fn beyond_the_socket_the_token_goes_with_every_request() {
        let mut stream = Script { answer: b"HTTP/1.1 204 x\r\n\r\n".into(), sent: Vec::new(), piece: 99 };
        let (host, token) = (Some("gpu1:7474"), Some("sbl_x"));
        exchange(
            &mut stream,
            &Request { method: "GET", target: "/v1/gpus", host, token, key: None, body: None, content: Content::Json },
        )
        .unwrap();
        expect![[
            r#""GET /v1/gpus HTTP/1.1\r\nhost: gpu1:7474\r\nconnection: close\r\nauthorization: Bearer sbl_x\r\n\r\n""#
        ]]
        .assert_eq(&format!("{:?}", String::from_utf8(stream.sent).unwrap()));
    }

    #[test]
    fn bodies_end_where_they_say() {
        check("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhellomore", &expect![[r#"200 problem=false "hello""#]]);
        check(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n",
            &expect![[r#"200 problem=false "hello world""#]],
        );
        check("HTTP/1.1 200 OK\r\n\r\nto the end", &expect![[r#"200 problem=false "to the end""#]]);
        check("HTTP/1.1 204 No Content\r\n\r\n", &expect![[r#"204 problem=false """#]]);
        check(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n{}",
            &expect![[r#"201 problem=false "{}""#]],
        );
    }

    #[test]
    fn a_problem_is_known_by_its_media_type() {
        check(
            "HTTP/1.1 404 x\r\ncontent-type: application/problem+json; charset=utf-8\r\ncontent-length: 2\r\n\r\n{}",
            &expect![[r#"404 problem=true "{}""#]],
        );
    }

    #[test]
    fn cut_and_senseless_answers_are_errors() {
        check("", &expect!["the connection closed in the middle of an answer"]);
        check(
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhel",
            &expect!["the connection closed in the middle of an answer"],
        );
        check("SSH-2.0-OpenSSH\r\n\r\n", &expect!["the answer is not HTTP (invalid HTTP version)"]);
        check("HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", &expect!["the answer has an absurd length"]);
        check(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            &expect!["a chunk of the answer has no length"],
        );
        check(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nabcd\r\n",
            &expect!["a chunk of the answer does not end where it should"],
        );
    }
}
