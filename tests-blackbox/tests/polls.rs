//! A client that only polls leaves a parked service parked; a request that needs the GPU brings it back.
//!
//! The ordinary run sends hundreds of polls. `SUBLET_POLL_SECONDS=600 cargo nextest run -p sublet-blackbox -E
//! 'binary(polls)'` polls for ten minutes, as an open browser tab does.

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use sublet_blackbox::binary::{example, root};
use sublet_blackbox::http::JSON;
use sublet_blackbox::programs::{WrappedProgram, await_bytes, await_state, successful_output, text};
use sublet_blackbox::proxy::{MODEL, PROMPT, ProxyProcess, assert_answered, park, proxy_refusal, serve, server};
use sublet_blackbox::service::port;
use sublet_blackbox::{Connection, HttpReply, LONG, TestService, until};
use sublet_wire::LeaseState;

/// Rounds of polls in the ordinary run, each with [`KINDS`].
const ROUNDS: usize = 60;
/// What browser tabs, dashboards and health checks send.
const KINDS: [(&str, &str); 6] = [
    ("GET", "/api/ps"),
    ("GET", "/api/ps?verbose=1"),
    ("HEAD", "/"),
    ("OPTIONS", "/api/generate"),
    ("GET", "/healthz"),
    ("GET", "/v1/models"),
];
const UPGRADE: [(&str, &str); 2] = [("connection", "Upgrade"), ("upgrade", "websocket")];

/// An open WebSocket through the proxy, as a browser tab keeps one.
fn websocket(proxy: &ProxyProcess) -> Connection {
    let mut socket = proxy.client().connect().expect("the proxy accepts");
    socket.raw(&sublet_blackbox::http::head("GET", "/ws", &UPGRADE)).expect("a head");
    socket.raw(b"\r\n").expect("its end");
    let (status, headers) = socket.head().expect("an answer");
    assert_eq!(status, 101, "{headers:?}");
    socket.raw(b"are you there?").expect("a message");
    socket
}

/// Polls in all ways; each answer is passed to `check`.
fn poll(proxy: &ProxyProcess, mut check: impl FnMut(&str, &str, &HttpReply)) {
    let seconds = std::env::var("SUBLET_POLL_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let (begun, mut rounds) = (Instant::now(), 0);
    let mut kept = proxy.client().connect().expect("the proxy accepts");
    loop {
        for (method, path) in KINDS {
            check(method, path, &proxy.client().send(method, path, &[], b""));
        }
        // The stand-in closes its connections; the proxy keeps those of its clients.
        check("GET", "/api/ps", &kept.send("GET", "/api/ps", &[], b"").expect("a kept connection"));
        rounds += 1;
        match seconds {
            Some(seconds) if begun.elapsed() < Duration::from_secs(seconds) => {
                std::thread::sleep(Duration::from_millis(500));
            }
            None if rounds < ROUNDS => {}
            _ => return,
        }
    }
}

/// Asserts that no request for the GPU was recorded for a parked lease.
fn stayed_parked(service: &TestService, id: &str) {
    assert_eq!(service.client().lease(id).state, LeaseState::Parked);
    let audit = text(&service.cli(&["audit", "--lease", id]));
    let last_park = audit.rfind(" parked ").expect("it was parked");
    let since = &audit[last_park..];
    assert!(!since.contains(" want ") && !since.contains(" resume "), "polls asked for the GPU: {audit}");
}

#[test]
fn polls_and_an_open_websocket_leave_a_service_parked_by_its_hook_parked_and_are_answered() {
    let service = serve();
    let (_job, port) = server(&service);
    let proxy = ProxyProcess::open(&service, port, &["--of", "name:llm", "--wait", "3m"]);
    let _before = websocket(&proxy);
    assert_answered(&proxy.prompt());
    park(&service, "L1");
    let _during = websocket(&proxy);
    poll(&proxy, |method, path, answer| {
        let expected = if path.starts_with("/api/ps") { 200 } else { 404 };
        assert_eq!(answer.status, expected, "{method} {path} is answered by the service: {}", answer.text());
    });
    stayed_parked(&service, "L1");
    assert_answered(&proxy.prompt());
    assert_eq!(service.client().lease("L1").state, LeaseState::Active);
    await_bytes(&service.client(), "L1", MODEL);
}

#[test]
fn polls_leave_a_service_parked_by_sublets_library_parked_and_are_answered() {
    let service = serve();
    let (port, size, program) = (port(), format!("{MODEL}MiB"), example("serve"));
    let number = port.to_string();
    let words = ["--vram", "3G", "--name", "llm", "--", &program, &size, "--like", "ollama", "--port", &number];
    let mut job = WrappedProgram::start(&service, &words);
    assert!(job.line().starts_with("serves "), "{}", job.output_text());
    await_bytes(&service.client(), "L1", MODEL);
    let proxy = ProxyProcess::open(&service, port, &["--of", "name:llm", "--wait", "3m"]);
    park(&service, "L1");
    let _socket = websocket(&proxy);
    poll(&proxy, |method, path, answer| {
        let expected = if path.starts_with("/api/ps") { 200 } else { 404 };
        assert_eq!(answer.status, expected, "{method} {path} is answered by the service: {}", answer.text());
    });
    stayed_parked(&service, "L1");
    assert_answered(&proxy.prompt());
    await_bytes(&service.client(), "L1", MODEL);
}

/// A program that is killed when this is dropped.
struct Unleased(Child);

impl Drop for Unleased {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A stand-in without Sublet's library that gets L1 by a rule; the driver parks it.
fn attached(service: &TestService) -> (Unleased, u16) {
    successful_output(service, &["adopt", "exe:sublet-example-serve", "--vram", "3G"]);
    let (port, size) = (port(), format!("{MODEL}MiB"));
    let number = port.to_string();
    let words = ["soft", "env", "--", &example("serve"), &size, "--like", "ollama", "--port", &number];
    let mut command = service.command(&words);
    let mut server = Unleased(command.stdout(Stdio::piped()).spawn().expect("a program"));
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert!(line.starts_with("serves "), "{line}");
    await_state(&service.client(), "L1", LeaseState::Active);
    await_bytes(&service.client(), "L1", MODEL);
    (server, port)
}

#[test]
fn a_poll_that_a_service_parked_by_the_driver_does_not_answer_gets_503_and_wakes_nothing() {
    let service = serve();
    let (server, port) = attached(&service);
    let wake = ["--wake", "POST /api/generate"];
    let of = ["--of", "exe:sublet-example-serve", "--wait", "3m"];
    let proxy = ProxyProcess::open(&service, port, &[&of[..], &wake].concat());
    until("the proxy knows the lease", LONG, || match proxy.prompt().status {
        200 => Ok(()),
        status => Err(status),
    });
    assert_eq!(park(&service, "L1").seen_bytes, Some(0));
    // Its threads that do not use the GPU go on.
    poll(&proxy, |method, path, answer| {
        let expected = if path.starts_with("/api/ps") { 200 } else { 404 };
        assert_eq!(answer.status, expected, "{method} {path}: {}", answer.text());
    });
    // A program answers nothing while all of its threads wait for the GPU.
    let pid = Pid::from_child(&server.0);
    kill_process(pid, Signal::STOP).expect("an own child");
    let (code, retry) = proxy_refusal(&proxy.client().get("/api/ps"));
    assert_eq!((code.as_str(), retry.is_some()), ("lease_not_active", true));
    // What may change something is never sent to a program that may do it later, after its client was refused.
    let (code, _) = proxy_refusal(&proxy.client().send("DELETE", "/api/delete", &[JSON], b"{}"));
    assert_eq!(code, "lease_not_active");
    kill_process(pid, Signal::CONT).expect("an own child");
    stayed_parked(&service, "L1");
    assert_answered(&proxy.prompt());
    assert_eq!(service.client().lease("L1").state, LeaseState::Active);
}

#[test]
fn with_wake_only_matching_requests_bring_a_service_back() {
    let service = serve();
    let (_job, port) = server(&service);
    let wake = ["--wake", "POST /api/generate", "--wake", "GET /v1/*/load"];
    let proxy = ProxyProcess::open(&service, port, &[&["--of", "name:llm", "--wait", "3m"][..], &wake].concat());
    park(&service, "L1");
    let other = |method: &str, path: &str| proxy.client().send(method, path, &[JSON], b"{}").status;
    for (method, path) in [
        ("POST", "/api/show"),
        ("POST", "/api/generate/x"),
        ("PUT", "/api/generate"),
        ("GET", "/api/generate"),
        ("GET", "/v1/load"),
    ] {
        assert_eq!(other(method, path), 404, "{method} {path} is answered by the service");
    }
    stayed_parked(&service, "L1");
    // Another spelling of the same path, and a query, change nothing.
    let answer = proxy.client().send("POST", "//api/%67enerate?now", &[JSON], PROMPT);
    assert_eq!(answer.status, 404, "the service itself does not know this spelling: {}", answer.text());
    assert_eq!(service.client().lease("L1").state, LeaseState::Active, "but it may be one that does");
    park(&service, "L1");
    assert_eq!(other("GET", "/v1/models/llama/load"), 404);
    assert_eq!(service.client().lease("L1").state, LeaseState::Active);
}

#[test]
fn a_poll_of_a_service_before_its_first_grant_gets_a_retry_time() {
    let service = serve();
    let hold = example("hold");
    let mut other =
        WrappedProgram::start(&service, &["--vram", "3G", "--time", "90s", "--", &hold, "256MiB", "--idle"]);
    assert!(other.line().starts_with("holds "), "{}", other.output_text());
    let (port, size, program) = (port(), format!("{MODEL}MiB"), example("serve"));
    let number = port.to_string();
    let words = ["--vram", "3G", "--name", "llm", "--", &program, &size, "--like", "ollama", "--port", &number];
    let _server = WrappedProgram::start(&service, &words);
    await_state(&service.client(), "L2", LeaseState::Waiting);
    let proxy = ProxyProcess::open(&service, port, &["--of", "name:llm", "--wait", "3m"]);
    let (code, retry) = proxy_refusal(&proxy.client().get("/api/ps"));
    assert_eq!(code, "lease_not_active");
    assert!(
        retry.is_some_and(|retry| (6..=95).contains(&retry)),
        "as long as the lease is expected to wait: {retry:?}"
    );
}

/// The `--wake` patterns of a recipe's page.
fn recipe(page: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(format!("docs/recipes/{page}.md"))).expect("a page");
    let wake = text.split("--wake '").skip(1).filter_map(|rest| rest.split_once('\'')).map(|(pattern, _)| pattern);
    wake.map(str::to_owned).collect()
}

#[test]
fn the_recipes_patterns_wake_for_the_work_of_each_server_and_for_nothing_that_its_page_polls() {
    let service = serve();
    let (_job, port) = server(&service);
    let cases: [(&str, &[&str], &[&str]); 4] = [
        (
            "ollama",
            &["POST /api/generate", "POST /api/chat", "POST /api/embed", "POST /v1/chat/completions"],
            &["GET /api/tags", "GET /api/ps", "POST /api/show", "HEAD /"],
        ),
        ("vllm", &["POST /v1/completions", "POST /generate"], &["GET /v1/models", "GET /health", "GET /metrics"]),
        ("comfyui", &["POST /prompt", "POST /api/prompt"], &["GET /queue", "GET /system_stats", "POST /free"]),
        (
            "llama-cpp",
            &["POST /completion", "POST /v1/chat/completions", "POST /infill", "POST /embedding"],
            &["GET /health", "GET /props", "GET /slots", "GET /models"],
        ),
    ];
    for (page, wakes, polls) in cases {
        let patterns = recipe(page);
        assert!(!patterns.is_empty(), "docs/recipes/{page}.md shows `--wake`");
        let flags: Vec<&str> = patterns.iter().flat_map(|pattern| ["--wake", pattern]).collect();
        let proxy = ProxyProcess::open(&service, port, &[&["--of", "name:llm", "--wait", "3m"][..], &flags].concat());
        let send = |request: &str| {
            let (method, path) = request.split_once(' ').expect("a method and a path");
            proxy.client().send(method, path, &[JSON], b"{}").status
        };
        park(&service, "L1");
        for request in polls {
            send(request);
            assert_eq!(service.client().lease("L1").state, LeaseState::Parked, "{page}: {request}");
        }
        stayed_parked(&service, "L1");
        for request in wakes {
            send(request);
            assert_eq!(service.client().lease("L1").state, LeaseState::Active, "{page}: {request}");
            park(&service, "L1");
        }
    }
}
