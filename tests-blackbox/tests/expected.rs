//! When a waiter is expected to start, as people and programs are told.

use serde_json::json;
use sublet_blackbox::{GIB, TestClient, TestService, ask};
use sublet_wire::{Lease, LeaseState, Waiting};

fn waiting(client: &TestClient, lease: &str) -> Waiting {
    client.lease(lease).waiting.expect("it waits")
}

fn release(client: &TestClient, lease: &str) {
    assert_eq!(client.delete(&format!("/v1/leases/{lease}")).status, 200);
}

/// A lease, as soon as the GPU was seen to be free.
fn granted(client: &TestClient) -> Lease {
    let asked: Lease = client.post("/v1/leases", &ask(20 * GIB, json!({}))).read();
    client.await_lease("granted", &asked.id, |lease| lease.state == LeaseState::Active)
}

/// A lease that was granted and given back.
fn come_and_go(client: &TestClient) {
    let lease = granted(client);
    release(client, &lease.id);
    client.await_lease("it is over", &lease.id, |lease| lease.ended.is_some());
}

#[test]
fn an_expected_start_is_shown_once_leases_have_ended_and_not_before() {
    let service = TestService::start();
    let client = service.client();
    let holder = granted(&client);
    let first = client.queue(&ask(20 * GIB, json!({})));
    let told = waiting(&client, &first.id);
    assert_eq!((told.expected_s, told.expected_p90_s), (None, None), "no lease has ended yet: {told:?}");
    let worst = told.bound.expect("a bound").at_latest_s.expect("a worst case");
    let said = service.cli(&["explain", &first.id]);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(text.contains("start: worst case ") && !text.contains("expected in"), "{text}");
    release(&client, &first.id);
    release(&client, &holder.id);
    client.await_lease("it is over", &holder.id, |lease| lease.ended.is_some());

    (0..8).for_each(|_| come_and_go(&client));
    let _holder = granted(&client);
    let second = client.queue(&ask(20 * GIB, json!({})));
    let told = waiting(&client, &second.id);
    let (expected, p90) = (told.expected_s.expect("expected"), told.expected_p90_s.expect("in nine of ten cases"));
    assert!(expected <= p90 && p90 < worst, "{told:?}, and the worst case was {worst}");
    assert!(expected < 60.0, "the others lasted for moments: {told:?}");
    let said = service.cli(&["explain", &second.id]);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(text.contains("start: expected in about ") && text.contains(" (90 %: within "), "{text}");
    assert!(text.contains("; worst case "), "{text}");
    let said = service.cli(&["queue"]);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(text.contains("EXPECTED IN"), "{text}");
}

#[test]
fn what_was_learned_survives_a_restart() {
    let mut service = TestService::start();
    (0..8).for_each(|_| come_and_go(&service.client()));
    service.restart();
    let client = service.client();
    let _holder = granted(&client);
    let waiter = client.queue(&ask(20 * GIB, json!({})));
    assert!(waiting(&client, &waiter.id).expected_s.is_some());
}
