//! Just enough of HTTP/1.1 for a stand-in: one request of a connection, bodies of known length.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// More than any request to it.
const REQUEST_MAX: usize = 64 << 10;
/// A connection is closed if its request is not complete after this time.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// A request.
#[derive(Debug)]
pub struct ModelRequest {
    /// `POST`.
    pub method: String,
    /// Without the query.
    pub path: String,
    /// The part after the question mark.
    pub query: String,
    /// The body without spaces and line ends, so that a word can be searched in it.
    pub body: String,
    /// True if the client asks for a WebSocket.
    pub is_upgrade: bool,
}

/// What is answered.
#[derive(Debug)]
pub struct ModelAnswer {
    /// 200, 404, …
    pub status: u16,
    /// JSON.
    pub body: String,
    /// The memory is given back only so long after the answer.
    pub free_delay: Option<Duration>,
}

impl ModelAnswer {
    /// An answer that says all.
    pub fn new(status: u16, body: impl Into<String>) -> ModelAnswer {
        ModelAnswer { status, body: body.into(), free_delay: None }
    }
}

/// Reads a request.
pub fn read_request(mut stream: TcpStream) -> io::Result<(TcpStream, ModelRequest)> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(READ_WITHIN))?;
    stream.set_write_timeout(Some(READ_WITHIN))?;
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(request) = parse_complete(&bytes) {
            return Ok((stream, request));
        }
        let n = stream.read(&mut piece)?;
        bytes.extend_from_slice(&piece[..n]);
        if n == 0 || bytes.len() > REQUEST_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

fn parse_complete(bytes: &[u8]) -> Option<ModelRequest> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    if body.len() < length.unwrap_or(0) {
        return None;
    }
    let mut words = head.lines().next()?.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let body = body.chars().filter(|c| !c.is_whitespace()).collect();
    let is_upgrade = head.lines().any(|line| line.eq_ignore_ascii_case("upgrade: websocket"));
    Some(ModelRequest { method: method.into(), path: path.into(), query: query.into(), body, is_upgrade })
}

/// Writes an answer.
pub fn write_answer(stream: &mut TcpStream, answer: &ModelAnswer) -> io::Result<()> {
    let head = format!("HTTP/1.1 {} x\r\ncontent-type: application/json\r\nconnection: close", answer.status);
    stream.write_all(format!("{head}\r\ncontent-length: {}\r\n\r\n{}", answer.body.len(), answer.body).as_bytes())
}

/// Accepts a WebSocket, as far as the head goes: no message is read or sent.
pub fn accept_websocket(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n")
}
