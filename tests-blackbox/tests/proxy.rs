//! Requests through the proxy to a service that is not on its GPU: they wait, or are refused with a retry time, and
//! nothing is allocated meanwhile.
//!
//! The services are stand-ins that load their model by themselves for a request, as Ollama does, with real memory of
//! soft GPUs. The proxy is the real one, between real connections.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;
use sublet_blackbox::binary::example;
use sublet_blackbox::programs::{WrappedProgram, await_bytes, await_state, post_action, successful_output, text};
use sublet_blackbox::proxy::{
    CONTEXT, MODEL, PROMPT, ProxyProcess, assert_answered, job_that_fills_the_gpu, park, prompt, proxy_refusal, serve,
    server,
};
use sublet_blackbox::service::port;
use sublet_blackbox::wait::throughout;
use sublet_blackbox::{HttpReply, LONG, MIB, TestClient, until};
use sublet_wire::{LeaseState, exit};

#[test]
fn a_request_at_the_proxy_waits_and_nothing_is_allocated_until_the_lease_is_back() {
    let service = serve();
    let client = service.client();
    let (_job, port) = server(&service);
    let proxy = ProxyProcess::open(&service, port, &["--of", "name:llm", "--wait", "5m"]);
    assert_answered(&proxy.prompt());
    park(&service, "L1");
    let other = job_that_fills_the_gpu(&service, &[]);
    let used = client.card().used_bytes;
    let answers: Vec<Receiver<HttpReply>> = (0..8).map(|_| proxy.prompt_in_background()).collect();
    client.await_lease("it asks for its GPU", "L1", |lease| lease.waiting.is_some());
    throughout(Duration::from_secs(3), || {
        let lease = client.lease("L1");
        assert_eq!(lease.state, LeaseState::Parked);
        assert!(lease.seen_bytes <= Some(CONTEXT), "{lease:?}");
        assert_eq!(client.card().used_bytes, used, "nothing was allocated");
        assert!(answers.iter().all(|answer| answer.try_recv().is_err()), "no request was answered");
    });
    other.finish("its memory was not taken");
    for answer in &answers {
        assert_answered(&answer.recv_timeout(LONG).expect("an answer"));
    }
    await_bytes(&client, "L1", MODEL);
    let audit = text(&service.cli(&["audit", "--lease", "L1"]));
    assert_eq!(audit.matches(" want ").count(), 1, "eight waited, and it was asked for once: {audit}");
    // What the proxy prevents: without it, the server takes its memory although its lease is parked.
    park(&service, "L1");
    assert_answered(&prompt(&TestClient::over_tcp(([127, 0, 0, 1], port).into(), None)));
    client.await_lease("it has taken its memory", "L1", |lease| lease.seen_bytes >= Some(MODEL * MIB));
    assert_eq!(client.lease("L1").state, LeaseState::Parked);
}

#[test]
fn a_request_that_cannot_be_served_in_time_gets_a_retry_time() {
    let service = serve();
    let client = service.client();
    let (_job, port) = server(&service);
    let at_once = ProxyProcess::open(&service, port, &["--lease", "L1", "--wait", "0"]);
    let patient = ProxyProcess::open(&service, port, &["--lease", "L1", "--wait", "2s"]);
    assert_answered(&at_once.prompt());
    park(&service, "L1");
    // Its fixed term says when the GPU is free, so there is an estimate.
    let other = job_that_fills_the_gpu(&service, &["--time", "90s"]);
    for proxy in [&at_once, &patient] {
        let (code, retry) = proxy_refusal(&proxy.prompt());
        assert_eq!(code, "lease_not_active");
        assert!(retry.is_some_and(|retry| (6..=95).contains(&retry)), "{retry:?}");
    }
    let lease = client.lease("L1");
    assert_eq!(lease.state, LeaseState::Parked);
    assert!(lease.waiting.is_some(), "it was asked for all the same: {lease:?}");
    assert!(lease.seen_bytes <= Some(CONTEXT), "{lease:?}");
    // Once there is room, the lease is resumed without a further request, and the next request is served.
    other.finish("it was not disturbed");
    await_bytes(&client, "L1", MODEL);
    assert_answered(&at_once.prompt());
    drop(_job);
    client.await_lease("it is over", "L1", |lease| lease.state == LeaseState::Ended);
    until("the proxy knows", LONG, || {
        let (code, _) = proxy_refusal(&at_once.prompt());
        if code == "lease_ended" { Ok(()) } else { Err(code) }
    });
}

#[test]
fn each_request_of_a_kept_connection_is_checked_and_brings_the_lease_back() {
    let service = serve();
    let (_job, port) = server(&service);
    let proxy = ProxyProcess::open(&service, port, &["--of", "name:llm", "--wait", "5m"]);
    let mut kept = proxy.client().connect().expect("the proxy accepts");
    let headers = [sublet_blackbox::http::JSON];
    assert_answered(&kept.send("POST", "/api/generate", &headers, PROMPT).expect("an answer"));
    park(&service, "L1");
    assert_answered(&kept.send("POST", "/api/generate", &headers, PROMPT).expect("an answer"));
    assert_eq!(service.client().lease("L1").state, LeaseState::Active);
    let audit = text(&service.cli(&["audit", "--lease", "L1"]));
    assert!(audit.contains(" resumed "), "{audit}");
    assert_answered(&kept.send("POST", "/api/generate", &headers, PROMPT).expect("an answer"));
}

#[test]
fn without_a_daemon_nothing_passes_unless_that_was_chosen() {
    let mut service = serve();
    let (_job, port) = server(&service);
    let proxy = ProxyProcess::open(&service, port, &["--of", "name:llm", "--wait", "1s"]);
    let open = ProxyProcess::open(&service, port, &["--of", "name:llm", "--wait", "1s", "--open-without-daemon"]);
    assert_answered(&proxy.prompt());
    assert_answered(&open.prompt());
    service.kill();
    let answer = until("the proxy knows", LONG, || {
        let answer = proxy.prompt();
        if answer.status == 200 { Err(answer) } else { Ok(answer) }
    });
    let (code, retry) = proxy_refusal(&answer);
    assert_eq!((code.as_str(), retry.is_some()), ("no_daemon", true), "{}", answer.text());
    assert!(answer.text().contains("start one with `sublet serve`"), "{}", answer.text());
    assert_answered(&open.prompt());
    service.restart();
    until("it passes again", LONG, || {
        let answer = proxy.prompt();
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    });
}

#[test]
fn a_service_with_a_standing_request_is_held_back_once_it_has_a_lease() {
    let service = serve();
    let client = service.client();
    successful_output(&service, &["adopt", "exe:sublet-example-serve", "--vram", "1G"]);
    let (port, size) = (port(), format!("{MODEL}MiB"));
    let proxy = ProxyProcess::open(&service, port, &["--of", "exe:sublet-example-serve", "--wait", "3m"]);
    // The service does not run and has no lease: the request is passed on, and nothing listens there.
    assert_eq!(proxy.prompt().status, 502);
    let number = port.to_string();
    let words = ["soft", "env", "--", &example("serve"), &size, "--like", "ollama", "--port", &number];
    let mut command = service.command(&words);
    let mut alone = UnleasedProgram(command.stdout(Stdio::piped()).spawn().expect("a program"));
    let mut line = String::new();
    BufReader::new(alone.0.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert!(line.starts_with("serves "), "{line}");
    assert_answered(&proxy.prompt());
    await_state(&client, "L1", LeaseState::Active);
    await_bytes(&client, "L1", MODEL);
    // The driver takes it off its GPU, and its process stands still.
    assert_eq!(park(&service, "L1").seen_bytes, Some(0));
    let other = job_that_fills_the_gpu(&service, &[]);
    let at_once = ProxyProcess::open(&service, port, &["--of", "exe:sublet-example-serve", "--wait", "0"]);
    assert_eq!(proxy_refusal(&at_once.prompt()).0, "lease_not_active");
    let answer = proxy.prompt_in_background();
    client.await_lease("it asks for its GPU", "L1", |lease| lease.waiting.is_some());
    throughout(Duration::from_secs(2), || {
        assert_eq!((client.lease("L1").seen_bytes, answer.try_recv().is_err()), (Some(0), true));
    });
    other.finish("its memory was not taken");
    assert_answered(&answer.recv_timeout(LONG).expect("an answer"));
    assert_eq!(client.lease("L1").state, LeaseState::Active);
}

/// A program that is killed when this is dropped.
struct UnleasedProgram(Child);

impl Drop for UnleasedProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn requests_wait_for_the_first_grant_of_a_service_and_sigterm_stops_the_proxy_cleanly() {
    let service = serve();
    let client = service.client();
    let hold = example("hold");
    let mut other = WrappedProgram::start(&service, &["--vram", "3G", "--", &hold, "256MiB", "--idle"]);
    assert!(other.line().starts_with("holds "), "{}", other.output_text());
    let (port, size, program) = (port(), format!("{MODEL}MiB"), example("serve"));
    let number = port.to_string();
    let words = ["--vram", "3G", "--name", "llm", "--", &program, &size, "--like", "ollama", "--port", &number];
    let _server = WrappedProgram::start(&service, &words);
    await_state(&client, "L2", LeaseState::Waiting);
    let mut proxy = ProxyProcess::open(&service, port, &["--of", "name:llm", "--wait", "3m"]);
    let answer = proxy.prompt_in_background();
    until("it waits", LONG, || {
        match proxy.output_text().contains("requests that need the GPU wait: L2 of name:llm is waiting") {
            true => Ok(()),
            false => Err(proxy.output_text()),
        }
    });
    thread::sleep(Duration::from_millis(500));
    assert!(answer.try_recv().is_err());
    // The proxy would ask for a parked lease to be resumed; this one is in the queue already.
    post_action(&client, "L1", "park");
    assert_answered(&answer.recv_timeout(LONG).expect("an answer"));
    kill_process(Pid::from_child(&proxy.child), Signal::TERM).expect("an own child");
    let status = until("the proxy closes", LONG, || proxy.child.try_wait().ok().flatten().ok_or(()));
    assert_eq!(status.code(), Some(0));
}

#[test]
fn an_invalid_proxy_command_line_is_refused_before_it_listens() {
    let service = serve();
    let free = format!("127.0.0.1:{}", port());
    let check = |words: &[&str], code: u8, said: &str| {
        let output = service.cli(&[&["proxy"], words].concat());
        assert_eq!((output.status.code(), text(&output).contains(said)), (Some(code.into()), true), "{output:?}");
    };
    let ends = ["--listen", "127.0.0.1:0", "--to", "127.0.0.1:9"];
    check(&[&ends[..], &["--lease", "L9"]].concat(), exit::FAILURE, "no such lease");
    check(&[&ends[..], &["--of", "ollama"]].concat(), exit::USAGE, "names no service");
    check(&ends, exit::USAGE, "--of <PROGRAM>");
    let listen = TcpListener::bind("127.0.0.1:0").expect("a port");
    let busy = listen.local_addr().expect("a port").to_string();
    check(&["--listen", &busy, "--to", "127.0.0.1:9", "--of", "name:x"], exit::FAILURE, "let it listen elsewhere");
    check(&["--listen", &free, "--to", &free, "--of", "name:x"], exit::USAGE, "would lead to itself");
}
