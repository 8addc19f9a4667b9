//! What one user cannot learn of another, nor do to another.
//!
//! These need root, which alone can be several users; elsewhere they say that
//! they were skipped.

use serde_json::json;
use std::thread;
use sublet_blackbox::http::JSON;
use sublet_blackbox::user::{as_user, is_root};
use sublet_blackbox::{GIB, HttpReply, ServiceSetup, TestClient, TestProcess, TestService, ask};
use sublet_wire::{Gpus, Lease, LeaseState, Leases};

const ALICE: u32 = 12345;
const BOB: u32 = 12346;

/// Two ordinary users and a service that belongs to neither.
fn two_users(test: &str) -> Option<TestService> {
    if !is_root() {
        eprintln!("skipped: {test} needs root to be two users");
        return None;
    }
    Some(TestService::start())
}

/// An answer without what differs between any two answers.
fn comparable(answer: &HttpReply, id: &str) -> (u16, Vec<(String, String)>, String) {
    let headers = answer.headers.iter().filter(|(name, _)| name != "date").cloned().collect();
    (answer.status, headers, answer.text().replace(id, "ID"))
}

#[test]
fn anothers_lease_answers_exactly_like_one_that_does_not_exist() {
    let Some(service) = two_users("anothers_lease_answers_exactly_like_one_that_does_not_exist") else { return };
    let client = service.client();
    let lease = as_user(ALICE, || client.grant(&ask(GIB, json!({"name": "secret plan"}))));
    let ended = as_user(ALICE, || {
        let ended = client.grant(&ask(GIB, json!({})));
        client.delete(&format!("/v1/leases/{}", ended.id));
        ended
    });
    let mut sleeper = TestProcess::idle_of(BOB);
    for theirs in [&lease, &ended] {
        // As long as a real one, so that nothing but existence differs.
        let missing = format!("L{}", "9".repeat(theirs.id.len() - 1));
        let fence = theirs.fence.expect("it was granted");
        let requests = [
            ("GET", "", String::new()),
            ("GET", "?wait=1s", String::new()),
            ("GET", "/explain", String::new()),
            ("DELETE", "", String::new()),
            ("DELETE", "?fence=1", String::new()),
            ("POST", "/renew", json!({ "fence": fence }).to_string()),
            ("POST", "/renew", json!({"fence": 0}).to_string()),
            ("POST", "/bind", json!({"fence": fence, "pid": sleeper.pid()}).to_string()),
            ("POST", "/bind", json!({"fence": fence, "pid": 1}).to_string()),
            ("POST", "/renew", "nonsense".into()),
            ("POST", "/nothing", String::new()),
        ];
        for (method, rest, body) in requests {
            let ask_about = |id: &str| {
                let headers = [sublet_blackbox::http::JSON];
                as_user(BOB, || client.send(method, &format!("/v1/leases/{id}{rest}"), &headers, body.as_bytes()))
            };
            let (real, none) = (ask_about(&theirs.id), ask_about(&missing));
            assert!(real.status >= 400, "{method} {rest}: {real:?}");
            assert_eq!(comparable(&real, &theirs.id), comparable(&none, &missing), "{method} {rest} {body}");
        }
    }
    assert!(sleeper.alive());
    let after = as_user(ALICE, || client.lease(&lease.id));
    assert_eq!((after.state, after.fence, after.pids), (LeaseState::Active, lease.fence, vec![]));
}

#[test]
fn the_bytes_of_another_users_lease_are_visible_and_its_id_and_name_are_not() {
    let Some(service) = two_users("the_bytes_of_another_users_lease_are_visible_and_its_id_and_name_are_not") else {
        return;
    };
    let client = service.client();
    let lease = as_user(ALICE, || client.grant(&ask(GIB, json!({"name": "secret plan"}))));
    let seen_by = |uid: u32| {
        as_user(uid, || {
            let leases: Leases = client.get("/v1/leases").read();
            let cards: Gpus = client.get("/v1/gpus").read();
            (leases.leases.len(), cards.gpus[0].occupants[0].lease.clone(), cards.gpus[0].occupants[0].reserved_bytes)
        })
    };
    assert_eq!(seen_by(ALICE), (1, Some(lease.id.clone()), Some(GIB)));
    assert_eq!(seen_by(BOB), (0, None, Some(GIB)));
    for path in ["/v1/leases", "/v1/gpus", "/v1/usage?by=lease", "/v1/usage", "/v1/audit"] {
        let answer = as_user(BOB, || client.get(path));
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert!(!answer.text().contains("secret plan"), "{path} tells: {}", answer.text());
        assert!(!answer.text().contains(&format!("\"{}\"", lease.id)), "{path} tells: {}", answer.text());
    }
    let waiting = as_user(BOB, || client.queue(&ask(24 * GIB - 300 * sublet_blackbox::MIB, json!({}))));
    let why = as_user(BOB, || client.get(&format!("/v1/leases/{}/explain", waiting.id)));
    assert_eq!(why.status, 200);
    assert!(
        !why.text().contains("secret plan") && !why.text().contains(&format!("\"{}\"", lease.id)),
        "{}",
        why.text()
    );
}

#[test]
fn with_visibility_own_a_user_does_not_see_leases_of_other_users_on_a_gpu() {
    if two_users("with_visibility_own_a_user_does_not_see_leases_of_other_users_on_a_gpu").is_none() {
        return;
    }
    let config = Some("visibility = \"own\"\n".to_owned());
    let service = TestService::start_with(ServiceSetup { config, ..ServiceSetup::default() });
    let client = service.client();
    as_user(ALICE, || client.grant(&ask(GIB, json!({}))));
    let seen_by = |uid: u32| as_user(uid, || client.get("/v1/gpus").read::<Gpus>().gpus[0].occupants.len());
    assert_eq!(
        (seen_by(ALICE), seen_by(BOB), seen_by(0)),
        (1, 0, 1),
        "alice sees herself, bob no user, and an operator all"
    );
    let free = |uid: u32| as_user(uid, || client.get("/v1/gpus").read::<Gpus>().gpus[0].promisable_bytes);
    assert_eq!(free(ALICE), free(BOB), "how much is free is no secret");
    let text = as_user(BOB, || client.get("/v1/gpus").text());
    assert!(!text.contains(&ALICE.to_string()), "{text}");
}

#[test]
fn a_process_of_another_user_cannot_be_bound() {
    let Some(service) = two_users("a_process_of_another_user_cannot_be_bound") else { return };
    let client = service.client();
    let mut alices = TestProcess::idle_of(ALICE);
    let bobs = TestProcess::idle_of(BOB);
    let lease = as_user(ALICE, || client.grant(&ask(GIB, json!({}))));
    let bind = |pid: u32| as_user(ALICE, || bind(&client, &lease, pid));
    for pid in [bobs.pid(), std::process::id(), service.pid(), 1, 2] {
        assert_eq!(bind(pid).code(), "not_your_process", "process {pid}");
        let asked = as_user(ALICE, || client.post("/v1/leases", &ask(GIB, json!({ "pid": pid }))));
        assert_eq!(asked.code(), "not_your_process", "process {pid} in an ask");
    }
    assert_eq!(as_user(ALICE, || client.live_ids()), std::slice::from_ref(&lease.id));
    let bound = bind(alices.pid());
    assert_eq!(bound.status, 200, "one's own can be bound: {}", bound.text());
    assert!(alices.alive());
}

fn bind(client: &TestClient, lease: &Lease, pid: u32) -> HttpReply {
    client.post(&format!("/v1/leases/{}/bind", lease.id), &json!({"fence": lease.fence, "pid": pid}))
}

#[test]
fn an_idempotency_key_belongs_to_its_user() {
    let Some(service) = two_users("an_idempotency_key_belongs_to_its_user") else { return };
    let client = service.client();
    let asked_by = |uid, bytes| as_user(uid, || client.post_once("/v1/leases", "the-same-key", &ask(bytes, json!({}))));
    let alices: Lease = asked_by(ALICE, GIB).read();
    let bobs = asked_by(BOB, 2 * GIB);
    assert_eq!(bobs.status, 201, "{}", bobs.text());
    assert_ne!(bobs.read::<Lease>().id, alices.id);
    assert_eq!(asked_by(ALICE, GIB).read::<Lease>().id, alices.id);
}

#[test]
fn a_users_idempotency_key_outlives_any_number_of_another_users() {
    let Some(mut service) = two_users("a_users_idempotency_key_outlives_any_number_of_another_users") else { return };
    let client = service.client();
    let first = as_user(ALICE, || client.post_once("/v1/leases", "once", &ask(GIB, json!({}))));
    assert_eq!(first.status, 201, "{}", first.text());
    let bobs = as_user(BOB, || client.grant(&ask(GIB, json!({}))));
    let (client, bobs) = (&client, &bobs);
    let (path, renewal) = (format!("/v1/leases/{}/renew", bobs.id), json!({ "fence": bobs.fence }).to_string());
    // Until bob is refused, or has made more than the daemon keeps of all users.
    let refused: Vec<Option<HttpReply>> = thread::scope(|scope| {
        let hands: Vec<_> = (0..4)
            .map(|hand| {
                let (path, renewal) = (&path, &renewal);
                scope.spawn(move || {
                    as_user(BOB, || {
                        let mut connection = client.connect().expect("the service accepts");
                        (0..26_000).find_map(|n| {
                            let key = format!("{hand}-{n}");
                            let headers = [JSON, (sublet_wire::IDEMPOTENCY_KEY, key.as_str())];
                            let answer = connection.send("POST", path, &headers, renewal.as_bytes());
                            Some(answer.expect("an answer")).filter(|answer| answer.status != 200)
                        })
                    })
                })
            })
            .collect();
        hands.into_iter().map(|hand| hand.join().expect("bob is answered")).collect()
    });
    for answer in refused.into_iter().flatten() {
        let problem = answer.problem();
        assert_eq!(problem.code, sublet_wire::Code::TooManyRequests, "{problem:?}");
        assert!(problem.retry_after_s.is_some_and(|s| (1..=60).contains(&s)), "{problem:?}");
    }
    // What counts is what the disk has.
    service.kill();
    service.restart();
    let again = as_user(ALICE, || client.post_once("/v1/leases", "once", &ask(GIB, json!({}))));
    assert_eq!((again.status, again.text()), (first.status, first.text()));
    assert_eq!(as_user(ALICE, || client.live_ids()).len(), 1, "there is no second lease");
    let plain = as_user(BOB, || client.post(&path, &json!({ "fence": bobs.fence })));
    assert_eq!(plain.status, 200, "a call without a key has no such limit: {}", plain.text());
}

#[test]
fn only_an_operator_drains_a_gpu_or_ends_the_lease_of_another_user() {
    let Some(service) = two_users("only_an_operator_drains_a_gpu_or_ends_the_lease_of_another_user") else { return };
    let client = service.client();
    let uuid = client.card().uuid;
    for call in ["drain", "clear"] {
        let path = format!("/v1/gpus/{uuid}/{call}");
        assert_eq!(as_user(ALICE, || client.send("POST", &path, &[], b"")).code(), "denied");
    }
    let lease = as_user(ALICE, || client.grant(&ask(GIB, json!({}))));
    assert_eq!(client.lease(&lease.id).id, lease.id, "an operator sees everybody's");
    let answer = client.delete(&format!("/v1/leases/{}", lease.id));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let ended = as_user(ALICE, || client.lease(&lease.id)).ended.expect("it ended");
    assert_eq!(ended.reason, sublet_wire::EndReason::Revoked);
}
