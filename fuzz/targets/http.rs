//! HTTP as it is served: requests over the socket of the real daemon, which runs in this process on scripted GPUs.
//!
//! An input that begins with `r` is sent as it is. Any other is a request line, headers, an empty line and a body; the
//! target adds `Content-Length` and `Connection: close`, so that changed bodies are still read.
//!
//! Properties: every answer is HTTP and, where it says so, JSON; none has a status of 500 or above but 503 and 507; a
//! request is answered or its connection is closed within 40 s; `/healthz` is answered with 200 all the time.
//!
//! The daemon may signal processes that a request binds to a lease, so `cargo xtask fuzz-parsers` runs this in a pid
//! namespace of its own, and the target refuses to start elsewhere.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use sublet_daemon::{ServeOptions, TcpConfig};

/// Calls may wait for a second here; history is short, so that a long run does not fill the memory.
const CONFIG: &str = "poll_max = \"1s\"\nhistory = 2000\nqueue_max = 64\n";
/// How long a request that lacks something is waited for before the connection is half closed.
const RAW_PATIENCE: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_millis(2500);
/// The daemon gives a head 30 s and a body 10 s.
const DEADLINE: Duration = Duration::from_secs(40);
/// Inputs between two clean-ups.
const TIDY_EVERY: u64 = 512;

fuzz_target!(init: become_worker(), |data: &[u8]| {
    static INPUTS: AtomicU64 = AtomicU64::new(0);
    let socket = daemon();
    let is_answered = match data.split_first() {
        None => return,
        Some((b'r', raw)) => converse(socket, raw, RAW_PATIENCE),
        Some(_) => converse(socket, &completed(data), PATIENCE),
    };
    let inputs = INPUTS.fetch_add(1, Ordering::Relaxed);
    if !is_answered || inputs.is_multiple_of(64) {
        check_health(socket);
    }
    if inputs % TIDY_EVERY == TIDY_EVERY - 1 {
        end_all_leases(socket);
    }
});

/// The daemon starts its own executable as a worker.
fn become_worker() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|first| first == "worker") {
        let _ = sublet_daemon::worker(&args[1..]);
        std::process::exit(0);
    }
    assert_eq!(std::process::id(), 1, "start it with `cargo xtask fuzz-parsers http`, which isolates it");
}

fn daemon() -> &'static Path {
    static SOCKET: OnceLock<PathBuf> = OnceLock::new();
    SOCKET.get_or_init(|| {
        let dir = sublet_fuzz::scratch();
        let (socket, config) = (dir.join("sublet.sock"), dir.join("sublet.toml"));
        fs::write(&config, CONFIG).expect("a file in memory");
        let options = ServeOptions {
            state_dir: dir.join("state"),
            socket: socket.clone(),
            gpu: Some("scripted:2x24GiB".to_owned()),
            config: Some(config),
            tcp: TcpConfig::default(),
        };
        std::thread::spawn(|| panic!("the daemon ended: {:?}", sublet_daemon::serve(options)));
        let until = Instant::now() + Duration::from_secs(60);
        while UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < until, "the daemon does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        socket
    })
}

/// The input as a whole request, whatever its body is.
fn completed(data: &[u8]) -> Vec<u8> {
    let end = data.windows(2).position(|pair| pair == b"\n\n");
    let (head, body) = end.map_or((data, &[][..]), |end| (&data[..end], &data[end + 2..]));
    let mut lines = head.split(|byte| *byte == b'\n');
    let mut request = lines.next().unwrap_or_default().to_vec();
    request.extend_from_slice(b" HTTP/1.1\r\nhost: sublet\r\n");
    let is_ours = |line: &&[u8]| {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
        [&b"content-length"[..], b"transfer-encoding", b"connection", b"expect", b"upgrade"].contains(&name.as_slice())
    };
    for line in lines.filter(|line| !is_ours(line)) {
        request.extend_from_slice(line);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(format!("content-length: {}\r\nconnection: close\r\n\r\n", body.len()).as_bytes());
    request.extend_from_slice(body);
    request
}

fn connect(socket: &Path) -> UnixStream {
    loop {
        match UnixStream::connect(socket) {
            // The timer of libFuzzer.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            connected => return connected.expect("the daemon listens"),
        }
    }
}

/// Sends a request and reads to the end of the connection; false if there was no whole answer.
fn converse(socket: &Path, request: &[u8], patience: Duration) -> bool {
    let mut stream = connect(socket);
    // The daemon may hang up before it has read all of it.
    let _ = stream.set_write_timeout(Some(DEADLINE)).and_then(|()| stream.write_all(request));
    let begun = Instant::now();
    let mut answer = Vec::new();
    let mut is_half_closed = false;
    loop {
        let left = if is_half_closed { DEADLINE } else { patience }.saturating_sub(begun.elapsed());
        if left.is_zero() && is_half_closed {
            panic!("neither an answer nor an end within {DEADLINE:?}: {}", request.escape_ascii());
        }
        let mut piece = [0; 4096];
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1)))).expect("a timeout");
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => answer.extend_from_slice(&piece[..n]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                // Events have no end, and a connection may be kept for the next request.
                if !answer.is_empty() {
                    break;
                }
                is_half_closed = true;
                if stream.shutdown(Shutdown::Write).is_err() {
                    break;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
        if is_stream(&answer) {
            break;
        }
    }
    check_answers(&answer)
}

/// The answer is a stream of events, which ends only with the daemon.
fn is_stream(answer: &[u8]) -> bool {
    let head = answer.windows(4).position(|end| end == b"\r\n\r\n").map(|end| &answer[..end]);
    head.is_some_and(|head| head.windows(17).any(|piece| piece == b"text/event-stream"))
}

/// Checks each whole answer; false if there is none.
fn check_answers(mut bytes: &[u8]) -> bool {
    let mut is_answered = false;
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut head = httparse::Response::new(&mut headers);
        let length = match head.parse(bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return is_answered,
            Err(error) => panic!("an answer is no HTTP ({error}): {}", bytes.escape_ascii()),
        };
        let status = head.code.expect("a whole head has a status");
        assert!(status < 500 || [503, 507].contains(&status), "{status}: {}", bytes.escape_ascii());
        is_answered |= status >= 200;
        let field = |name: &str| {
            let found = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
            found.and_then(|header| std::str::from_utf8(header.value).ok())
        };
        let is_chunked = field("transfer-encoding").is_some_and(|coding| coding == "chunked");
        // To a client of HTTP/1.0 a stream of events goes on until the connection ends.
        let is_endless = !is_chunked && field("content-type").is_some_and(|kind| kind == "text/event-stream");
        let length_of_body = field("content-length").map_or(Ok(0), str::parse::<usize>);
        let is_json = field("content-type").is_some_and(|kind| kind.ends_with("json"));
        bytes = &bytes[length..];
        if is_endless {
            return is_answered;
        }
        if is_chunked {
            match after_chunks(bytes) {
                Some(rest) => bytes = rest,
                // A stream of events goes on.
                None => return is_answered,
            }
            continue;
        }
        let length = length_of_body.unwrap_or_else(|_| panic!("a length is no number: {}", bytes.escape_ascii()));
        // The answer to HEAD has a length and no body.
        if bytes.is_empty() || bytes.starts_with(b"HTTP/1.1 ") {
            continue;
        }
        let Some((body, rest)) = bytes.split_at_checked(length) else { return is_answered };
        if is_json {
            let read = serde_json::from_slice::<serde_json::Value>(body);
            assert!(read.is_ok(), "{read:?} in {}", body.escape_ascii());
        }
        bytes = rest;
    }
}

/// What follows the last chunk; `None` if that has not come.
fn after_chunks(mut bytes: &[u8]) -> Option<&[u8]> {
    loop {
        let (begins, length) = match httparse::parse_chunk_size(bytes) {
            Ok(httparse::Status::Complete(found)) => found,
            Ok(httparse::Status::Partial) => return None,
            Err(error) => panic!("a chunk has no size ({error}): {}", bytes.escape_ascii()),
        };
        // Each chunk ends with a line end; the last one has no bytes.
        bytes = bytes.get(begins + usize::try_from(length).expect("a chunk in memory") + 2..)?;
        if length == 0 {
            return Some(bytes);
        }
    }
}

/// Asks for a target as an ordinary client does, and returns the body of the answer.
fn call(socket: &Path, line: &str) -> Vec<u8> {
    let mut stream = connect(socket);
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    let request = format!("{line} HTTP/1.1\r\nhost: sublet\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("the daemon reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap_or_else(|error| panic!("`{line}` is not answered: {error}"));
    assert!(check_answers(&answer), "`{line}` is not answered: {}", answer.escape_ascii());
    let end = answer.windows(4).position(|end| end == b"\r\n\r\n").expect("a head");
    assert!(line != "GET /healthz" || answer.starts_with(b"HTTP/1.1 200 "), "{}", answer.escape_ascii());
    answer.split_off(end + 4)
}

fn check_health(socket: &Path) {
    drop(call(socket, "GET /healthz"));
}

/// Ends what inputs have begun, so that a later input finds room.
fn end_all_leases(socket: &Path) {
    for (list, field, path) in [
        ("GET /v1/leases?all=true", "leases", "/v1/leases"),
        ("GET /v1/tokens", "tokens", "/v1/tokens"),
        ("GET /v1/unleased", "rules", "/v1/rules"),
    ] {
        let Ok(found) = serde_json::from_slice::<serde_json::Value>(&call(socket, list)) else { continue };
        let items = found.get(field).unwrap_or(&found).as_array().cloned().unwrap_or_default();
        for id in items.iter().filter_map(|item| item["id"].as_str()) {
            drop(call(socket, &format!("DELETE {path}/{id}")));
        }
    }
}
