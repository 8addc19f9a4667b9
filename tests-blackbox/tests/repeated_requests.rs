//! Requests that come twice, late or out of order.

use serde_json::{Value, json};
use std::thread;
use sublet_blackbox::http::JSON;
use sublet_blackbox::{GIB, HttpReply, LONG, TestClient, TestProcess, TestService, ask, until};
use sublet_wire::{EndReason, Lease, LeaseState};

fn renew(client: &TestClient, id: &str, fence: Value) -> HttpReply {
    client.post(&format!("/v1/leases/{id}/renew"), &json!({ "fence": fence }))
}

#[test]
fn the_same_key_and_body_give_the_same_answer_and_one_lease_even_after_a_crash() {
    let mut service = TestService::start();
    let client = service.client();
    let body = ask(GIB, json!({"name": "once"}));
    let first = client.post_once("/v1/leases", "key-1", &body);
    assert_eq!(first.status, 201, "{}", first.text());
    let again = client.post_once("/v1/leases", "key-1", &body);
    assert_eq!((first.status, first.text()), (again.status, again.text()));
    service.kill();
    service.restart();
    let after = client.post_once("/v1/leases", "key-1", &body);
    assert_eq!((first.status, first.text()), (after.status, after.text()));
    assert_eq!(client.live_ids(), [first.read::<Lease>().id]);

    let other = client.post_once("/v1/leases", "key-2", &body);
    assert_ne!(other.read::<Lease>().id, first.read::<Lease>().id, "another key is another ask");
}

#[test]
fn a_key_with_another_body_is_refused_even_after_a_crash() {
    let mut service = TestService::start();
    let client = service.client();
    let lease: Lease = client.post_once("/v1/leases", "key", &ask(GIB, json!({}))).read();
    assert_eq!(client.post_once("/v1/leases", "key", &ask(2 * GIB, json!({}))).code(), "key_reused");
    let renew = client.post_once(&format!("/v1/leases/{}/renew", lease.id), "key", &json!({"fence": lease.fence}));
    assert_eq!(renew.code(), "key_reused", "another path is another request");
    service.kill();
    service.restart();
    assert_eq!(client.post_once("/v1/leases", "key", &ask(2 * GIB, json!({}))).code(), "key_reused");
    assert_eq!(client.live_ids(), [lease.id]);
}

#[test]
fn a_key_is_known_however_many_came_after_it() {
    // More than the daemon has at hand of one tenant.
    const LATER: usize = 2_100;
    let mut service = TestService::start();
    let client = service.client();
    let body = ask(GIB, json!({"name": "once"}));
    let first = client.post_once("/v1/leases", "first", &body);
    assert_eq!(first.status, 201, "{}", first.text());
    let lease: Lease = first.read();
    let (path, renewal) = (format!("/v1/leases/{}/renew", lease.id), json!({"fence": lease.fence}));
    let many: Vec<_> = (0..4)
        .map(|hand| {
            let (client, path, renewal) = (client.clone(), path.clone(), renewal.clone());
            thread::spawn(move || {
                for n in (hand..LATER).step_by(4) {
                    let answer = client.post_once(&path, &format!("later-{n}"), &renewal);
                    assert_eq!(answer.status, 200, "{}", answer.text());
                }
            })
        })
        .collect();
    many.into_iter().for_each(|hand| hand.join().expect("all are renewed"));
    for restarted in [false, true] {
        if restarted {
            service.kill();
            service.restart();
        }
        let again = client.post_once("/v1/leases", "first", &body);
        assert_eq!((again.status, again.text()), (first.status, first.text()), "restarted: {restarted}");
        assert_eq!(client.post_once("/v1/leases", "first", &ask(2 * GIB, json!({}))).code(), "key_reused");
        assert_eq!(client.live_ids(), [lease.id.as_str()], "and no second lease");
    }
}

#[test]
fn a_waiting_request_is_repeated_without_a_second_place() {
    let service = TestService::start();
    let client = service.client();
    client.grant(&ask(20 * GIB, json!({})));
    let body = ask(20 * GIB, json!({}));
    let ids: Vec<String> = (0..5).map(|_| client.post_once("/v1/leases", "place", &body).read::<Lease>().id).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(client.live_ids().len(), 2);
}

#[test]
fn the_same_key_from_many_at_once_makes_one_lease() {
    let service = TestService::start();
    let client = service.client();
    let askers: Vec<_> = (0..16)
        .map(|_| {
            let client = client.clone();
            thread::spawn(move || client.post_once("/v1/leases", "crowd", &ask(GIB, json!({}))))
        })
        .collect();
    let mut ids = Vec::new();
    for asker in askers {
        let answer = asker.join().expect("an asker is answered");
        match answer.status {
            201 => ids.push(answer.read::<Lease>().id),
            _ => assert_eq!(answer.code(), "key_in_use"),
        }
    }
    ids.dedup();
    assert_eq!(ids.len(), 1, "{ids:?}");
    assert_eq!(client.live_ids(), ids);
}

#[test]
fn a_repeat_right_after_the_answer_gets_the_same_answer() {
    let service = TestService::start();
    let client = service.client();
    let (client, body) = (&client, ask(GIB, json!({})).to_string());
    let body = body.as_bytes();
    thread::scope(|scope| {
        for hand in 0..4 {
            scope.spawn(move || {
                let mut connection = client.connect().expect("the service accepts");
                for n in 0..150 {
                    let key = format!("{hand}-{n}");
                    let headers = [JSON, (sublet_wire::IDEMPOTENCY_KEY, key.as_str())];
                    let mut post = || connection.send("POST", "/v1/leases", &headers, body).expect("an answer");
                    let (first, again) = (post(), post());
                    assert_eq!((first.status, first.text()), (again.status, again.text()), "key {key}");
                    assert_eq!(client.delete(&format!("/v1/leases/{}", first.read::<Lease>().id)).status, 200);
                }
            });
        }
    });
}

#[test]
fn a_refused_request_may_be_corrected_and_sent_again() {
    let service = TestService::start();
    let client = service.client();
    let refused = client.post("/v1/leases", &ask(48 * GIB, json!({})));
    assert_eq!(refused.code(), "never_fits");
    client.grant(&ask(GIB, json!({})));
}

#[test]
fn a_request_that_does_not_wait_is_refused_with_no_room() {
    let service = TestService::start();
    let client = service.client();
    client.grant(&ask(20 * GIB, json!({})));
    let refused = client.post("/v1/leases", &ask(20 * GIB, json!({"wait_s": 0})));
    assert_eq!(refused.code(), "no_room");
    assert_eq!(client.live_ids().len(), 1);
}

#[test]
fn a_request_ends_after_its_longest_wait() {
    let service = TestService::start();
    let client = service.client();
    client.grant(&ask(20 * GIB, json!({})));
    let waiter = client.queue(&ask(20 * GIB, json!({"wait_s": 2})));
    let ended = until("the wait is over", LONG, || client.lease(&waiter.id).ended.ok_or("waits"));
    assert_eq!(ended.reason, EndReason::WaitOver);
}

#[test]
fn a_renewal_after_the_release_is_refused_as_ended() {
    let service = TestService::start();
    let client = service.client();
    let lease = client.grant(&ask(GIB, json!({})));
    let fence = lease.fence.expect("a granted lease has an fence");
    let released = client.delete(&format!("/v1/leases/{}?fence={fence}", lease.id));
    assert_eq!(released.status, 200, "{}", released.text());
    let released: Lease = released.read();
    assert!(matches!(released.state, LeaseState::Ending | LeaseState::Ended), "{released:?}");
    assert_eq!(released.ended.expect("it says how").reason, EndReason::Released);

    assert_eq!(renew(&client, &lease.id, json!(fence)).code(), "lease_ended");
    let process = TestProcess::idle();
    let bind = json!({"fence": fence, "pid": process.pid()});
    assert_eq!(client.post(&format!("/v1/leases/{}/bind", lease.id), &bind).code(), "lease_ended");

    // A second release is either done already or told so; the reason stays.
    let again = client.delete(&format!("/v1/leases/{}", lease.id));
    assert!(again.status == 200 || again.code() == "lease_ended", "{}", again.text());
    assert_eq!(client.lease(&lease.id).ended.expect("it ended").reason, EndReason::Released);
}

#[test]
fn a_call_with_another_epoch_is_fenced_and_changes_nothing() {
    let service = TestService::start();
    let client = service.client();
    // The second grant has the higher fence, so that there is a lower one.
    let first = client.grant(&ask(GIB, json!({})));
    let lease = client.grant(&ask(GIB, json!({})));
    assert!(lease.fence > first.fence, "epochs only grow: {:?} then {:?}", first.fence, lease.fence);
    let stale = lease.fence.map_or(0, |fence| fence - 1);
    let process = TestProcess::idle();
    assert_eq!(renew(&client, &lease.id, json!(stale)).code(), "fenced");
    let bind = json!({"fence": stale, "pid": process.pid()});
    assert_eq!(client.post(&format!("/v1/leases/{}/bind", lease.id), &bind).code(), "fenced");
    assert_eq!(client.delete(&format!("/v1/leases/{}?fence={stale}", lease.id)).code(), "fenced");
    let after = client.lease(&lease.id);
    assert_eq!((after.state, after.fence, after.pids), (LeaseState::Active, lease.fence, vec![]));
    assert_eq!(renew(&client, &lease.id, json!(lease.fence)).status, 200);
}

#[test]
fn a_waiting_lease_cannot_be_renewed_yet() {
    let service = TestService::start();
    let client = service.client();
    client.grant(&ask(20 * GIB, json!({})));
    let waiter = client.queue(&ask(20 * GIB, json!({})));
    let refused = renew(&client, &waiter.id, json!(1));
    assert!(["lease_not_active", "fenced"].contains(&refused.code()), "{}", refused.text());
    assert_eq!(client.lease(&waiter.id).state, LeaseState::Waiting);
}

#[test]
fn a_waiter_that_is_taken_back_gives_up_its_place() {
    let service = TestService::start();
    let client = service.client();
    client.grant(&ask(20 * GIB, json!({})));
    let first = client.queue(&ask(20 * GIB, json!({})));
    let second = client.queue(&ask(20 * GIB, json!({})));
    assert_eq!(second.waiting.expect("it waits").place, 2);
    assert_eq!(client.delete(&format!("/v1/leases/{}", first.id)).status, 200);
    assert_eq!(client.lease(&first.id).ended.expect("it ended").reason, EndReason::Released);
    assert_eq!(client.lease(&second.id).waiting.expect("it waits").place, 1);
}
