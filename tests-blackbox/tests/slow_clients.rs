//! Many, slow and stuck clients delay no other client and no expiry.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use std::io::ErrorKind;
use std::thread;
use std::time::{Duration, Instant};
use sublet_blackbox::http::{JSON, head};
use sublet_blackbox::{Connection, GIB, LONG, TestClient, TestService, ask, until};
use sublet_wire::{EndReason, LeaseState};

/// Within this time another client must be answered.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
/// No input delays an expiry by more than this.
const LATE_S: f64 = 5.0;

/// A thousand connections need a thousand files on this side too. Called after
/// the service was started, which must manage with the limit it was given.
fn allow_many_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = 4096.min(maximum.unwrap_or(4096));
    if current.is_some_and(|current| current < wanted) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).expect("the limit can be raised");
    }
}

fn half_open(client: &TestClient, count: usize, bytes: &[u8]) -> Vec<Connection> {
    let mut connections = Vec::new();
    for _ in 0..count {
        let mut connection = client.connect().expect("the service accepts, or refuses politely");
        // A service at its limit may have closed it already; that is its right.
        let _ = connection.raw(bytes);
        connections.push(connection);
    }
    connections
}

fn assert_answers(client: &TestClient) {
    let started = Instant::now();
    let answer = client.get("/v1/gpus");
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(started.elapsed() < ANSWERED_WITHIN, "an answer took {:?}", started.elapsed());
}

#[test]
fn a_thousand_half_open_connections_delay_neither_an_answer_nor_an_expiry() {
    let service = TestService::start();
    let client = service.client();
    allow_many_files();
    let crowd = half_open(&client, 1000, b"POST /v1/leases HTTP/1.1\r\nhost: x\r\ncontent-le");
    assert_answers(&client);

    let unused = client.grant(&ask(20 * GIB, json!({"ttl_s": 2})));
    let waiter = client.queue(&ask(20 * GIB, json!({})));
    let served: sublet_wire::Lease = client.get(&format!("/v1/leases/{}?wait=30s", waiter.id)).read();
    assert_eq!(served.state, LeaseState::Active);
    let unused = client.lease(&unused.id);
    let ended = unused.ended.expect("an ended lease says how");
    assert_eq!(ended.reason, EndReason::Expired);
    let held_s = ended.at_unix_s - unused.granted_unix_s.expect("it was granted");
    assert!(held_s < 2.0 + LATE_S, "a lease of 2 s was held for {held_s} s");

    // Everything that a client does still works beside them.
    for _ in 0..20 {
        assert_answers(&client);
    }
    assert_eq!(client.delete(&format!("/v1/leases/{}", served.id)).status, 200);
    drop(crowd);
    assert_answers(&client);
}

#[test]
fn one_connection_too_many_gets_a_retry_time_and_many_connections_cost_little_memory() {
    let service = TestService::start();
    let client = service.client();
    allow_many_files();
    let before = pss_kib(service.pid());
    // As many as operators may have.
    let half = b"GET /v1/gpus HTTP/1.1\r\nhost: x\r\nx-lo";
    let mut crowd = half_open(&client, 1024, half);
    until("the service has taken them all", LONG, || {
        let mut more = client.connect().map_err(|error| error.to_string())?;
        let _ = more.raw(b"GET /v1/gpus HTTP/1.1\r\nhost: x\r\n\r\n");
        let answer = more.answer().map_err(|error| error.to_string())?;
        match answer.status {
            503 => {
                assert_eq!(answer.code(), "too_busy");
                let problem = answer.problem();
                assert_eq!(problem.retry_after_s, Some(5));
                assert!(problem.detail.contains("has 1024 open connections"), "{problem:?}");
                Ok(())
            }
            status => {
                // A call from before had the seat of one of them.
                crowd.extend(half_open(&client, 1, half));
                Err(format!("it answers {status}"))
            }
        }
    });
    let told = service.cli(&["ps"]);
    let talk = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(!told.status.success() && talk.contains("1024 open connections"), "{talk}");
    let grown = pss_kib(service.pid()).saturating_sub(before);
    assert!(grown < 64 << 10, "1,024 connections that say nothing take {grown} KiB");
    drop(crowd);
    until("there are seats again", LONG, || match client.try_send("GET", "/v1/gpus", &[], b"") {
        Ok(answer) if answer.status == 200 => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

/// Memory that is this process's own, its share of what it shares included.
fn pss_kib(pid: u32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("an own child can be looked at");
    let line = rollup.lines().find(|line| line.starts_with("Pss:")).expect("it has a share");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("in KiB")
}

#[test]
fn connections_that_say_nothing_are_closed_in_time() {
    let service = TestService::start();
    let client = service.client();
    let mut silent = half_open(&client, 20, b"GET /v1/leases HTTP/1.1\r\nhos");
    for connection in &mut silent {
        connection.patience(Duration::from_secs(120)).expect("a timeout can be set");
        match connection.answer() {
            Ok(answer) => assert!((400..500).contains(&answer.status), "{answer:?}"),
            Err(error) => assert_ne!(error.kind(), ErrorKind::WouldBlock, "half a header is kept for ever"),
        }
    }
    assert_answers(&client);
}

#[test]
fn a_body_that_trickles_in_is_cut_off_and_leaves_nothing() {
    let service = TestService::start();
    let client = service.client();
    let mut connection = client.connect().expect("the service accepts");
    let mut start = head("POST", "/v1/leases", &[JSON, ("content-length", "4000")]);
    start.extend(b"\r\n{");
    connection.raw(&start).expect("the service reads");
    connection.patience(Duration::from_millis(500)).expect("a timeout can be set");
    until("a slow body is cut off", Duration::from_secs(120), || {
        // Refused once it is cut off; what was answered before that is read all the same.
        let _ = connection.raw(b" ");
        match connection.answer() {
            Ok(answer) => {
                assert_eq!(answer.code(), "too_slow");
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err("still open"),
            Err(error) => panic!("it is cut off without a word: {error}"),
        }
    });
    assert_eq!(client.live_ids(), Vec::<String>::new());
}

#[test]
fn headers_beyond_the_limit_are_refused() {
    let service = TestService::start();
    let client = service.client();
    let one_long = format!("GET /v1/gpus HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "a".repeat(1 << 20));
    let many: String = (0..5000).map(|n| format!("x-{n}: a\r\n")).collect();
    let many = format!("GET /v1/gpus HTTP/1.1\r\nhost: x\r\n{many}\r\n");
    let long_path = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(1 << 20));
    for bytes in [one_long, many, long_path] {
        let mut connection = client.connect().expect("the service accepts");
        // The service may close before it was sent all of it.
        let _ = connection.raw(bytes.as_bytes());
        if let Ok(answer) = connection.answer() {
            assert_eq!(answer.status, 431, "{answer:?}");
        }
        assert_answers(&client);
    }
}

#[test]
fn a_client_that_never_reads_its_answers_delays_no_other_and_is_disconnected() {
    let service = TestService::start();
    let client = service.client();
    let mut deaf = client.connect().expect("the service accepts");
    let question = [head("GET", "/v1/gpus", &[]), b"\r\n".to_vec()].concat().repeat(2000);
    let asking = thread::spawn(move || {
        // Writing waits where the service's buffer ends, and fails where its patience does.
        loop {
            if let Err(error) = deaf.raw(&question) {
                return error.kind();
            }
        }
    });
    for _ in 0..50 {
        assert_answers(&client);
    }
    let ended = asking.join().expect("the deaf client does not panic");
    assert!([ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&ended), "its seat is kept: {ended:?}");
    assert_answers(&client);
}

#[test]
fn long_polls_of_200_clients_are_answered_or_refused_and_delay_no_other() {
    let service = TestService::start();
    let client = service.client();
    let held = client.grant(&ask(20 * GIB, json!({})));
    let waiter = client.queue(&ask(20 * GIB, json!({})));
    let path = format!("/v1/leases/{}?wait=60s", waiter.id);
    let polls: Vec<_> = (0..200)
        .map(|_| {
            let (client, path) = (client.clone(), path.clone());
            thread::spawn(move || client.get(&path))
        })
        .collect();
    assert_answers(&client);
    assert_eq!(client.delete(&format!("/v1/leases/{}", held.id)).status, 200);
    for poll in polls {
        let answer = poll.join().expect("a poll is answered");
        match answer.status {
            200 => assert_eq!(answer.read::<sublet_wire::Lease>().state, LeaseState::Active),
            _ => assert_eq!(answer.code(), "too_busy"),
        }
    }
}

#[test]
fn a_full_queue_refuses_with_a_retry_time_and_keeps_its_waiters() {
    let service = TestService::start();
    let client = service.client();
    client.grant(&ask(20 * GIB, json!({"ttl_s": 1800})));
    let first = client.queue(&ask(20 * GIB, json!({"name": "first"})));
    let mut connection = client.connect().expect("the service accepts");
    let body = ask(20 * GIB, json!({})).to_string();
    // The loop ends at the first refusal.
    let refusal = (0..20_000).find_map(|_| {
        let answer = connection.send("POST", "/v1/leases", &[JSON], body.as_bytes()).expect("an answer");
        (answer.status != 202).then_some(answer)
    });
    let refusal = refusal.expect("the queue has an end");
    assert_eq!(refusal.code(), "queue_full");
    assert!(refusal.problem().retry_after_s.is_some(), "backpressure names a time: {refusal:?}");
    let waiting = client.lease(&first.id);
    assert_eq!(waiting.waiting.expect("it waits").place, 1);
    assert_answers(&client);
    until("an ended waiter makes a place", LONG, || {
        client.delete(&format!("/v1/leases/{}", first.id));
        let answer = client.post("/v1/leases", &ask(20 * GIB, json!({})));
        if answer.status == 202 { Ok(()) } else { Err(answer.text()) }
    });
}
