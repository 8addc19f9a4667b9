//! What a holder does itself when its GPUs are needed: an HTTP request, a line to a socket, or a command.
//!
//! A hook runs in the wrapper, as the wrapper's user, and never longer than its time limit. Its result is `Ok` or one
//! sentence. It does not check whether the bytes left the GPU: the daemon does.

mod command;
#[cfg(test)]
mod tests;

use crate::client::http::{self, Content, Request};
use crate::table::plain;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};
use sublet_wire::span;

pub use command::{adopt, stop_all};

/// The default time limit of a hook, in seconds.
pub const WITHIN_S: u64 = 30;
/// The most bytes that are read of an answer over a socket.
const LINE_MAX: usize = 64 << 10;
/// The most characters of an answer that are shown.
const SHOWN_MAX: usize = 120;
/// How to write a hook, for the error about one that cannot be parsed.
const HINT: &str = "write `POST http://localhost:8000/sleep`, `unix:/run/me.sock sleep`, or a command line for sh";

/// When a hook runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookMoment {
    /// The GPUs are needed.
    Park,
    /// The GPUs are available again.
    Resume,
}

impl fmt::Display for HookMoment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HookMoment::Park => "park",
            HookMoment::Resume => "resume",
        })
    }
}

/// An action that makes a program give its GPUs back, or take them again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// The text as it was typed.
    text: String,
    kind: HookAction,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum HookAction {
    Http { method: &'static str, authority: String, target: String, body: Option<String> },
    Socket { path: PathBuf, message: String },
    Command,
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Hook {
    type Err = String;
    fn from_str(text: &str) -> Result<Hook, String> {
        let kind = read(text.trim()).map_err(|what| format!("{what}\nhint: {HINT}"))?;
        Ok(Hook { text: text.to_owned(), kind })
    }
}

fn read(text: &str) -> Result<HookAction, String> {
    let (first, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let rest = rest.trim();
    let method = ["GET", "POST", "PUT"].into_iter().find(|method| *method == first);
    if let Some(method) = method {
        return read_request(method, rest);
    }
    if let Some(path) = first.strip_prefix("unix:") {
        return match (path.starts_with('/'), rest.is_empty()) {
            (false, _) => Err(format!("`{path}` is not the whole path of a socket")),
            (true, true) => Err("the hook has no message after the path of the socket".to_owned()),
            (true, false) if rest.contains(['\n', '\r']) => Err("the message to a socket must be one line".to_owned()),
            (true, false) => Ok(HookAction::Socket { path: path.into(), message: rest.to_owned() }),
        };
    }
    if first.starts_with("http://") || first.starts_with("https://") {
        return Err("a request begins with GET, POST or PUT".to_owned());
    }
    match text.is_empty() || text.contains('\0') {
        true => Err("the hook is empty".to_owned()),
        false => Ok(HookAction::Command),
    }
}

fn read_request(method: &'static str, rest: &str) -> Result<HookAction, String> {
    let (url, body) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let Some(place) = url.strip_prefix("http://") else {
        return Err(match url.starts_with("https://") {
            true => "a hook speaks no TLS: let a command such as curl do it".to_owned(),
            false => format!("`{url}` is not an address such as http://localhost:8000/sleep"),
        });
    };
    let split = place.find(['/', '?']).unwrap_or(place.len());
    let (authority, target) = place.split_at(split);
    let odd = |c: char| c.is_control() || c.is_whitespace() || !c.is_ascii();
    let port_is_wrong = |port: &str| port.parse::<u16>().map_or(true, |port| port == 0);
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (authority, None),
    };
    if host.is_empty() || host.contains('@') || place.contains(odd) || port.is_some_and(port_is_wrong) {
        return Err(format!("`{url}` is not an address such as http://localhost:8000/sleep"));
    }
    let body = body.trim();
    if let Some(error) = serde_json::from_str::<serde::de::IgnoredAny>(body).err().filter(|_| !body.is_empty()) {
        return Err(format!("`{body}` is not JSON ({error})"));
    }
    let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
    let authority = if port.is_some() { authority.to_owned() } else { format!("{authority}:80") };
    Ok(HookAction::Http { method, authority, target, body: (!body.is_empty()).then(|| body.to_owned()) })
}

impl Hook {
    /// Runs the hook for at most `within`. The variables are for a command.
    pub fn run(&self, variables: &[(&str, String)], within: Duration) -> Result<(), String> {
        let deadline = Instant::now() + within;
        if self.kind == HookAction::Command {
            return command::run(&self.text, variables, within);
        }
        // This runs on its own thread, because a name lookup, or a socket with a full backlog, cannot be bounded.
        let (kind, (sender, receiver)) = (self.kind.clone(), channel());
        let ask = move || sender.send(kind.ask(deadline));
        thread::Builder::new().name("hook".into()).spawn(ask).map_err(|error| format!("no thread for it: {error}"))?;
        match receiver.recv_timeout(within) {
            Ok(said) => said,
            Err(RecvTimeoutError::Timeout) => Err(too_slow(within)),
            Err(RecvTimeoutError::Disconnected) => Err("it broke down".to_owned()),
        }
    }
}

impl HookAction {
    fn ask(&self, deadline: Instant) -> Result<(), String> {
        match self {
            HookAction::Http { method, authority, target, body } => {
                let body = body.as_deref().map(str::as_bytes);
                let request = Request {
                    method,
                    target,
                    host: Some(authority),
                    token: None,
                    key: None,
                    body,
                    content: Content::Json,
                };
                let status = connect(authority, deadline)
                    .and_then(|stream| http::status(&mut DeadlineStream { stream, deadline }, &request))
                    .map_err(|error| format!("{method} {target} at {authority}: {}", said(&error)))?;
                match status {
                    200..300 => Ok(()),
                    status => Err(format!("{method} {target} was answered {status}")),
                }
            }
            HookAction::Socket { path, message } => {
                let answer =
                    tell(path, message, deadline).map_err(|error| format!("{}: {}", path.display(), said(&error)))?;
                let answer = answer.trim();
                match answer.is_empty() || answer.starts_with("ok") {
                    true => Ok(()),
                    false => {
                        Err(format!("it answered `{}`", plain(&answer.chars().take(SHOWN_MAX).collect::<String>())))
                    }
                }
            }
            HookAction::Command => Ok(()),
        }
    }
}

/// The message for a hook that exceeded its time limit.
fn too_slow(within: Duration) -> String {
    format!("it was not over within {}", span::show(within.as_secs_f64()))
}

fn said(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "no answer in time".to_owned(),
        _ => error.to_string(),
    }
}

fn connect(authority: &str, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "there is no such host");
    for address in authority.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(deadline)?) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Writes one line and reads one line back.
fn tell(path: &PathBuf, message: &str, deadline: Instant) -> io::Result<String> {
    let mut stream = DeadlineStream { stream: UnixStream::connect(path)?, deadline };
    stream.write_all(format!("{message}\n").as_bytes())?;
    let (mut line, mut piece) = (Vec::new(), [0; 4096]);
    while line.len() < LINE_MAX && !line.contains(&b'\n') {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => line.extend_from_slice(&piece[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let end = line.iter().position(|byte| *byte == b'\n').unwrap_or(line.len());
    Ok(String::from_utf8_lossy(&line[..end]).into_owned())
}

fn left(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

/// A stream with one deadline for all reads and writes, even if the peer sends single bytes.
struct DeadlineStream<S> {
    stream: S,
    deadline: Instant,
}

/// A stream with adjustable timeouts.
trait Bounded: Read + Write {
    /// Makes reads and writes fail after `within`.
    fn bound(&self, within: Duration) -> io::Result<()>;
}

impl Bounded for TcpStream {
    fn bound(&self, within: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(within))?;
        self.set_write_timeout(Some(within))
    }
}

impl Bounded for UnixStream {
    fn bound(&self, within: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(within))?;
        self.set_write_timeout(Some(within))
    }
}

impl<S: Bounded> Read for DeadlineStream<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.bound(left(self.deadline)?)?;
        self.stream.read(into)
    }
}

impl<S: Bounded> Write for DeadlineStream<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.bound(left(self.deadline)?)?;
        self.stream.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
