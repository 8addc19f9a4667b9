//! One user cannot wash away the audit trail of another, nor fill it with requests that are refused.
//!
//! Those with several users need root; elsewhere they say that they were skipped.

use serde_json::{Value, json};
use std::time::{Duration, Instant};
use sublet_blackbox::http::JSON;
use sublet_blackbox::user::{as_user, is_root};
use sublet_blackbox::wait::{LONG, until};
use sublet_blackbox::{GIB, ServiceSetup, TestClient, TestService, ask};
use sublet_wire::{AuditPage, Lease, Usage};

const ALICE: u32 = 12345;
const BOB: u32 = 12346;

fn with_config(config: &str) -> TestService {
    TestService::start_with(ServiceSetup { config: Some(config.to_owned()), ..ServiceSetup::default() })
}

/// A lease that was granted and released, and is history.
fn past_lease(client: &TestClient) -> String {
    let lease = client.grant(&ask(GIB, json!({"name": "kept"})));
    client.delete(&format!("/v1/leases/{}", lease.id));
    client.await_lease("it is history", &lease.id, |lease| lease.ended.is_some());
    lease.id
}

fn kinds_of(client: &TestClient, lease: &str) -> Vec<String> {
    let (mut after, mut kinds) = (0, Vec::new());
    loop {
        let page: AuditPage = client.get(&format!("/v1/audit?limit=1000&lease={lease}&after={after}")).read();
        kinds.extend(page.lines.into_iter().map(|line| line.kind));
        let Some(next) = page.next else { return kinds };
        after = next;
    }
}

fn last_line(client: &TestClient) -> u64 {
    let (mut after, mut last) = (0, 0);
    loop {
        let page: AuditPage = client.get(&format!("/v1/audit?limit=1000&after={after}")).read();
        last = page.lines.last().map_or(last, |line| line.seq);
        let Some(next) = page.next else { return last };
        after = next;
    }
}

#[test]
fn user_that_writes_many_lines_trims_its_own_history_and_no_others() {
    if !is_root() {
        return eprintln!("skipped: two users need root");
    }
    let mut service = with_config("history = 1000\n[socket]\nrequests_per_s = 1000000\nburst = 1000000\n");
    let client = service.client();
    let kept: Vec<String> = as_user(ALICE, || (0..5).map(|_| past_lease(&client)).collect());
    let flood = |pairs: usize| {
        as_user(BOB, || {
            // One connection: a user may not open thousands of them in a second.
            let mut connection = client.connect().expect("the service listens");
            for _ in 0..pairs {
                let body = ask(GIB, json!({})).to_string();
                // Whether it is granted or waits for the readings of those before it, it writes lines.
                let answer = connection.send("POST", "/v1/leases", &[JSON], body.as_bytes()).expect("an answer");
                let lease: Lease = answer.read();
                let path = format!("/v1/leases/{}", lease.id);
                connection.send("DELETE", &path, &[], b"").expect("an answer");
            }
        });
    };
    flood(1_500);
    let state = service.state_dir().display().to_string();
    let verified = |service: &TestService| -> Value {
        let verified = service.cli(&["journal", "verify", "--json", "--state-dir", &state]);
        serde_json::from_slice(&verified.stdout).expect("a report")
    };
    let trimmed = until("lines were trimmed", LONG, || {
        flood(300);
        let report = verified(&service);
        if report["trimmed"].as_array().is_some_and(|owners| !owners.is_empty()) { Ok(report) } else { Err(report) }
    });
    assert_eq!(trimmed["findings"], json!([]), "{trimmed}");
    assert_eq!(trimmed["trimmed"][0]["owner"], format!("uid:{BOB}"), "{trimmed}");
    assert_eq!(trimmed["trimmed"].as_array().map(Vec::len), Some(1), "{trimmed}");
    let check = |client: &TestClient| {
        for id in &kept {
            let (lease, kinds) = as_user(ALICE, || (client.lease(id), kinds_of(client, id)));
            assert_eq!(lease.name.as_deref(), Some("kept"));
            assert_eq!(kinds, ["queue", "grant", "end", "retire"], "{id}");
        }
    };
    check(&client);
    assert!(service.stop().success());
    service.restart();
    check(&service.client());
    assert_eq!(verified(&service)["findings"], json!([]));
}

#[test]
fn refused_requests_are_counted_and_leave_no_line() {
    let service = TestService::start();
    let client = service.client();
    client.grant(&ask(20 * GIB, json!({})));
    let before = last_line(&client);
    for n in 0..50 {
        let refused = client.post_once("/v1/leases", &format!("k{n}"), &ask(20 * GIB, json!({"wait_s": 0})));
        assert_eq!(refused.code(), "no_room");
        assert!(!refused.text().contains("\"id\""), "a refusal names no lease: {}", refused.text());
    }
    assert_eq!(client.post("/v1/leases", &ask(900 * GIB, json!({}))).status / 100, 4);
    assert_eq!(last_line(&client), before);
    let usage: Usage = client.get("/v1/usage").read();
    assert_eq!(usage.rows[0].refused.get("no_room"), Some(&50));
    assert_eq!(usage.rows[0].refused.values().sum::<u64>(), 51);
    let next = client.grant(&ask(GIB, json!({})));
    assert_eq!(next.id, "L2", "refused requests take no number");
}

#[test]
fn key_of_a_refused_request_is_decided_anew() {
    let service = TestService::start();
    let client = service.client();
    let holder = client.grant(&ask(20 * GIB, json!({})));
    let wish = ask(20 * GIB, json!({"wait_s": 0}));
    assert_eq!(client.post_once("/v1/leases", "again", &wish).code(), "no_room");
    client.delete(&format!("/v1/leases/{}", holder.id));
    let granted = until("there is room again", LONG, || {
        let answer = client.post_once("/v1/leases", "again", &wish);
        if answer.status == 201 { Ok(answer.text()) } else { Err(answer.text()) }
    });
    assert_eq!(client.post_once("/v1/leases", "again", &wish).text(), granted, "and then it is kept");
}

#[test]
fn local_user_that_calls_too_often_is_refused_and_others_are_not() {
    if !is_root() {
        return eprintln!("skipped: two users need root");
    }
    let service = with_config("[socket]\nrequests_per_s = 1\nburst = 20\n");
    let client = service.client();
    let lease = as_user(BOB, || client.grant(&ask(GIB, json!({}))));
    let (refused, held_back) = as_user(BOB, || {
        until("it calls too often", LONG, || {
            let called = Instant::now();
            let answer = client.get("/v1/queue");
            if answer.status == 429 { Ok((answer, called.elapsed())) } else { Err(answer.status) }
        })
    });
    assert_eq!(refused.code(), "too_many_requests");
    assert!(held_back >= Duration::from_secs(1), "a program that calls again at once is slowed down: {held_back:?}");
    assert!(refused.header("retry-after").is_some());
    let released = as_user(BOB, || client.delete(&format!("/v1/leases/{}", lease.id)));
    assert_eq!(released.status, 200, "a release has a budget of its own: {}", released.text());
    assert_eq!(as_user(ALICE, || client.get("/v1/queue").status), 200);
    assert!((0..100).all(|_| client.get("/v1/queue").status == 200), "an operator is not limited");
}
