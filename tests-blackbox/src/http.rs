//! A client for HTTP/1.1 over a Unix socket, or over TCP with a token, that can also misbehave.
//!
//! Written by hand because a well-behaved library cannot send half a header.
//! Every wait has an end; redirects and compression are absent.

use crate::wait::{LONG, until};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use sublet_wire::{Lease, PROBLEM_JSON, Problem};

/// Longer than the longest long-poll in these tests.
const PATIENCE: Duration = Duration::from_secs(120);

/// Sends one request at a time, each on a connection of its own.
#[derive(Clone, Debug)]
pub struct TestClient {
    address: ServiceAddress,
    /// Goes with every request.
    authorization: Option<String>,
}

/// Where a service listens.
#[derive(Clone, Debug)]
enum ServiceAddress {
    Socket(PathBuf),
    Tcp(SocketAddr, Option<Arc<ClientConfig>>),
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpReply {
    /// The status.
    pub status: u16,
    /// Names in lower case, in order.
    pub headers: Vec<(String, String)>,
    /// The body, unframed.
    pub body: Vec<u8>,
}

impl TestClient {
    /// For the service at `socket`.
    pub fn new(socket: impl Into<PathBuf>) -> TestClient {
        TestClient { address: ServiceAddress::Socket(socket.into()), authorization: None }
    }
    /// For the service at a TCP address, with TLS for `localhost` if there is something to trust.
    pub fn over_tcp(address: SocketAddr, trust: Option<Arc<ClientConfig>>) -> TestClient {
        TestClient { address: ServiceAddress::Tcp(address, trust), authorization: None }
    }
    /// The same, sending this token with every request.
    pub fn with_token(&self, token: &str) -> TestClient {
        TestClient { authorization: Some(format!("Bearer {token}")), ..self.clone() }
    }
    /// Where the service is.
    pub fn socket(&self) -> &Path {
        match &self.address {
            ServiceAddress::Socket(socket) => socket,
            ServiceAddress::Tcp(address, _) => panic!("{address} is no socket"),
        }
    }
    /// Opens a connection, or fails after a bound.
    pub fn connect(&self) -> io::Result<Connection> {
        Connection::open(match &self.address {
            ServiceAddress::Socket(socket) => Box::new(connect(socket, Instant::now() + PATIENCE)?),
            ServiceAddress::Tcp(address, None) => Box::new(TcpStream::connect_timeout(address, PATIENCE)?),
            ServiceAddress::Tcp(address, Some(trust)) => {
                let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
                let session = ClientConnection::new(Arc::clone(trust), name).map_err(io::Error::other)?;
                Box::new(StreamOwned::new(session, TcpStream::connect_timeout(address, PATIENCE)?))
            }
        })
    }
    /// Asks, and fails if the service is away.
    pub fn try_send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> io::Result<HttpReply> {
        let token = self.authorization.as_deref().map(|value| ("authorization", value));
        let headers: Vec<(&str, &str)> = headers.iter().copied().chain(token).collect();
        self.connect()?.send(method, path, &headers, body)
    }
    /// A whole request without a body, with this client's token if it has one.
    pub fn head(&self, method: &str, path: &str) -> Vec<u8> {
        let token = self.authorization.as_deref().map(|value| ("authorization", value));
        let mut bytes = head(method, path, token.as_slice());
        bytes.extend(b"\r\n");
        bytes
    }
    /// Asks; a service that is away is a failed test.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> HttpReply {
        self.try_send(method, path, headers, body).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }
    /// `GET path`.
    pub fn get(&self, path: &str) -> HttpReply {
        self.send("GET", path, &[], b"")
    }
    /// `POST path` with JSON.
    pub fn post(&self, path: &str, body: &Value) -> HttpReply {
        self.send("POST", path, &[JSON], body.to_string().as_bytes())
    }
    /// `POST path` with JSON and an Idempotency-Key.
    pub fn post_once(&self, path: &str, key: &str, body: &Value) -> HttpReply {
        self.send("POST", path, &[JSON, (sublet_wire::IDEMPOTENCY_KEY, key)], body.to_string().as_bytes())
    }
    /// `DELETE path`.
    pub fn delete(&self, path: &str) -> HttpReply {
        self.send("DELETE", path, &[], b"")
    }
    /// Requests a lease that must be granted at once.
    pub fn grant(&self, ask: &Value) -> Lease {
        let answer = self.post("/v1/leases", ask);
        assert_eq!(answer.status, 201, "{ask} was not granted: {answer:?}");
        answer.read()
    }
    /// Requests a lease that must wait.
    pub fn queue(&self, ask: &Value) -> Lease {
        let answer = self.post("/v1/leases", ask);
        assert_eq!(answer.status, 202, "{ask} does not wait: {answer:?}");
        answer.read()
    }
    /// The lease as it is now.
    pub fn lease(&self, id: &str) -> Lease {
        let answer = self.get(&format!("/v1/leases/{id}"));
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.read()
    }
    /// Waits until `is_so` holds for the lease, and returns it.
    pub fn await_lease(&self, what: &str, id: &str, is_so: impl Fn(&Lease) -> bool) -> Lease {
        *until(&format!("{id}: {what}"), LONG, || {
            let lease = Box::new(self.lease(id));
            if is_so(&lease) { Ok(lease) } else { Err(lease) }
        })
    }
    /// The ids of all leases that have not ended.
    pub fn live_ids(&self) -> Vec<String> {
        let leases: sublet_wire::Leases = self.get("/v1/leases").read();
        leases.leases.into_iter().map(|lease| lease.id).collect()
    }
    /// All GPUs.
    pub fn cards(&self) -> Vec<sublet_wire::Gpu> {
        let cards: sublet_wire::Gpus = self.get("/v1/gpus").read();
        cards.gpus
    }
    /// The first GPU.
    pub fn card(&self) -> sublet_wire::Gpu {
        self.cards().into_iter().next().expect("there is a GPU")
    }
}

/// The header of a JSON body.
pub const JSON: (&str, &str) = ("content-type", "application/json");

/// One connection, kept open between questions.
pub struct Connection {
    stream: BufReader<Box<dyn Wire>>,
}

/// What a connection is made of.
trait Wire: Read + Write + Send {
    fn bound(&self, read: Duration, write: Duration) -> io::Result<()>;
    fn close_write(&self) -> io::Result<()>;
}

macro_rules! wire {
    ($kind:ty, $($socket:tt)*) => {
        impl Wire for $kind {
            fn bound(&self, read: Duration, write: Duration) -> io::Result<()> {
                self$($socket)*.set_read_timeout(Some(read))?;
                self$($socket)*.set_write_timeout(Some(write))
            }
            fn close_write(&self) -> io::Result<()> {
                self$($socket)*.shutdown(Shutdown::Write)
            }
        }
    };
}
wire!(UnixStream,);
wire!(TcpStream,);
wire!(StreamOwned<ClientConnection, TcpStream>, .sock);

impl Connection {
    /// Over a stream that is connected already.
    pub fn over(stream: UnixStream) -> io::Result<Connection> {
        Connection::open(Box::new(stream))
    }
    fn open(stream: Box<dyn Wire>) -> io::Result<Connection> {
        stream.bound(PATIENCE, PATIENCE)?;
        Ok(Connection { stream: BufReader::new(stream) })
    }
    /// Another bound for each read.
    pub fn patience(&self, patience: Duration) -> io::Result<()> {
        self.stream.get_ref().bound(patience, PATIENCE)
    }
    /// Asks, and waits for the whole answer.
    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> io::Result<HttpReply> {
        let mut bytes = head(method, path, headers);
        if !body.is_empty() || method == "POST" {
            bytes.extend(format!("content-length: {}\r\n", body.len()).as_bytes());
        }
        bytes.extend(b"\r\n");
        bytes.extend(body);
        // A refusal may come, and the connection close, before a large body was taken.
        let sent = self.raw(&bytes);
        // An answer to HEAD says how long a body would be, and has none (RFC 9112, 6.3).
        let answer = match method {
            "HEAD" => self.head().map(|(status, headers)| HttpReply { status, headers, body: Vec::new() }),
            _ => self.answer(),
        };
        answer.map_err(|error| sent.err().unwrap_or(error))
    }
    /// Sends these bytes, whatever they mean.
    pub fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)?;
        self.stream.get_mut().flush()
    }
    /// Nothing more will be sent.
    pub fn finish(&self) -> io::Result<()> {
        self.stream.get_ref().close_write()
    }
    /// Waits for a whole answer.
    pub fn answer(&mut self) -> io::Result<HttpReply> {
        let (status, headers) = self.head()?;
        let mut answer = HttpReply { status, headers, body: Vec::new() };
        if let Some(length) = answer.header("content-length") {
            let length: usize = length.parse().map_err(io::Error::other)?;
            answer.body.resize(length, 0);
            self.stream.read_exact(&mut answer.body)?;
        } else if answer.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk()? {
                answer.body.extend(chunk);
            }
        }
        Ok(answer)
    }
    /// Waits for a status and headers.
    pub fn head(&mut self) -> io::Result<(u16, Vec<(String, String)>)> {
        let first = self.line()?;
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("not HTTP: `{first}`")))?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            match line.split_once(':') {
                Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.trim().to_owned())),
                None => return Ok((status, headers)),
            }
        }
    }
    /// The next piece of a chunked body; none at its end.
    pub fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let size = usize::from_str_radix(&self.line()?, 16).map_err(io::Error::other)?;
        let mut chunk = vec![0; size];
        self.stream.read_exact(&mut chunk)?;
        self.line()?;
        Ok((size > 0).then_some(chunk))
    }
    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the service closed the connection"));
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }
}

/// The start of a request, without the empty line that ends it.
pub fn head(method: &str, path: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: sublet\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.into_bytes()
}

/// Connecting blocks without bound where the service does not accept, so this does not block.
fn connect(socket: &Path, deadline: Instant) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let address = SocketAddrUnix::new(socket)?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    loop {
        let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match connect(&fd, &address) {
            Ok(()) => {
                let stream = UnixStream::from(fd);
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(rustix::io::Errno::AGAIN) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(error.into()),
        }
    }
}

impl HttpReply {
    /// The first header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
    /// The body as what it should be.
    pub fn read<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {} {}", self.status, self.text()))
    }
    /// The body of a refusal, which must be whole and agree with itself.
    pub fn problem(&self) -> Problem {
        assert!(self.status >= 400, "not a refusal: {} {}", self.status, self.text());
        let media = self.header("content-type").unwrap_or("none");
        assert_eq!(media, PROBLEM_JSON, "a refusal is {PROBLEM_JSON}: {} {}", self.status, self.text());
        let problem: Problem = self.read();
        let implied = Problem::new(problem.code, "");
        assert_eq!(problem.status, self.status, "{problem:?}");
        assert_eq!((problem.status, problem.remedy, &problem.kind), (implied.status, implied.remedy, &implied.kind));
        assert!(!problem.detail.trim().is_empty(), "{problem:?}");
        assert_eq!(
            self.header("retry-after").map(str::to_owned),
            problem.retry_after_s.map(|seconds| seconds.to_string()),
            "Retry-After and retry_after_s agree"
        );
        problem
    }
    /// The stable code of a refusal.
    pub fn code(&self) -> &'static str {
        self.problem().code.as_str()
    }
}
