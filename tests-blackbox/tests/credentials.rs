//! Every route and every way to say who one is: what each is answered, in one table.
//!
//! The routes come from the service's own description, so a new one without a
//! row here fails the test. The local user needs root, which alone can be
//! somebody else; elsewhere that column is left out, and it is said.

use serde_json::{Value, json};
use sublet_blackbox::http::JSON;
use sublet_blackbox::token::{new_secret, wish};
use sublet_blackbox::user::{as_user, is_root};
use sublet_blackbox::{Answer, Client, LONG, MIB, Service, Setup, ask, until};
use sublet_wire::{Lease, Token};

/// Whose lease and token are called for.
const ANA: &str = "user:ana";
/// Nobody but ana and operators may read this.
const PLAN: &str = "secret plan";
/// A user of the host who is not ana.
const LOCAL: u32 = 12345;

/// What is answered through a token that only looks, another tenant's, and a good one; and on the
/// socket to a local user and to an operator. A status, or the code of a refusal.
type Row = (&'static str, &'static str, [&'static str; 5]);

const ROWS: &[Row] = &[
    ("GET", "/healthz", ["200", "200", "200", "200", "200"]),
    ("GET", "/readyz", ["200", "200", "200", "200", "200"]),
    ("GET", "/openapi.json", ["200", "200", "200", "200", "200"]),
    ("GET", "/v1/leases", ["200", "200", "200", "200", "200"]),
    ("POST", "/v1/leases", ["read_only", "201", "201", "201", "201"]),
    ("GET", "/v1/leases/{id}", ["200", "no_such_lease", "200", "no_such_lease", "200"]),
    ("DELETE", "/v1/leases/{id}", ["read_only", "no_such_lease", "200", "no_such_lease", "200"]),
    ("GET", "/v1/leases/{id}/explain", ["200", "no_such_lease", "200", "no_such_lease", "200"]),
    ("POST", "/v1/leases/{id}/renew", ["read_only", "no_such_lease", "200", "no_such_lease", "200"]),
    ("POST", "/v1/leases/{id}/accept", ["read_only", "no_such_lease", "lease_active", "no_such_lease", "lease_active"]),
    ("POST", "/v1/leases/{id}/hook", ["read_only", "no_such_lease", "200", "no_such_lease", "200"]),
    ("POST", "/v1/leases/{id}/park", ["read_only", "no_such_lease", "not_parkable", "no_such_lease", "not_parkable"]),
    ("POST", "/v1/leases/{id}/resume", ["read_only", "no_such_lease", "200", "no_such_lease", "200"]),
    ("POST", "/v1/leases/{id}/bind", ["read_only", "no_such_lease", "pid_not_local", "no_such_lease", "200"]),
    ("GET", "/v1/queue", ["200", "200", "200", "200", "200"]),
    ("GET", "/v1/cards", ["200", "200", "200", "200", "200"]),
    ("POST", "/v1/cards/{uuid}/drain", ["read_only", "denied", "denied", "denied", "200"]),
    ("POST", "/v1/cards/{uuid}/clear", ["read_only", "denied", "denied", "denied", "200"]),
    ("POST", "/v1/cards/{uuid}/aside", ["read_only", "denied", "denied", "denied", "200"]),
    ("DELETE", "/v1/cards/{uuid}/aside", ["read_only", "denied", "denied", "200", "200"]),
    ("POST", "/v1/cards/{uuid}/mode", ["read_only", "denied", "denied", "denied", "200"]),
    ("GET", "/v1/strangers", ["200", "200", "200", "200", "200"]),
    ("POST", "/v1/adopt", ["read_only", "pid_not_local", "pid_not_local", "not_your_process", "no_such_stranger"]),
    ("POST", "/v1/rules", ["read_only", "denied", "denied", "denied", "200"]),
    ("DELETE", "/v1/rules/{id}", ["read_only", "denied", "denied", "denied", "no_such_rule"]),
    ("GET", "/v1/tokens", ["200", "200", "200", "200", "200"]),
    ("POST", "/v1/tokens", ["read_only", "denied", "denied", "201", "201"]),
    ("DELETE", "/v1/tokens/{id}", ["read_only", "no_such_token", "no_such_token", "no_such_token", "200"]),
    ("GET", "/v1/usage", ["200", "200", "200", "200", "200"]),
    ("GET", "/v1/audit", ["200", "200", "200", "200", "200"]),
    ("GET", "/v1/events", ["200", "200", "200", "200", "200"]),
];

/// What anybody may read.
const PUBLIC: [&str; 3] = ["/healthz", "/readyz", "/openapi.json"];

struct House {
    operator: Client,
    remote: Client,
    good: Client,
    uuid: String,
}

/// What a call is made about: made anew for each, because calls change it.
struct Subject {
    lease: Lease,
    token: Token,
}

impl House {
    fn subject(&self) -> Subject {
        let lease = self.good.grant(&ask(300 * MIB, json!({ "name": PLAN })));
        let (_, token) = self.operator.make_token(json!({ "tenant": ANA, "name": PLAN }));
        Subject { lease, token }
    }

    /// Leaves nothing behind: neither leases, nor tokens, nor a card that drains.
    fn clean_up(&self, made: &Subject, answer: &Answer) {
        let id = if answer.status == 201 { answer.read::<Value>()["id"].as_str().map(str::to_owned) } else { None };
        let of = |id: &str| format!("/v1/{}/{id}", if id.starts_with('L') { "leases" } else { "tokens" });
        for id in [Some(made.lease.id.clone()), Some(made.token.id.clone()), id].into_iter().flatten() {
            let gone = self.operator.delete(&of(&id));
            assert!([200, 404, 410].contains(&gone.status), "{}", gone.text());
        }
        assert_eq!(self.operator.send("POST", &format!("/v1/cards/{}/clear", self.uuid), &[], b"").status, 200);
        assert_eq!(self.operator.delete(&format!("/v1/cards/{}/aside", self.uuid)).status, 200);
    }

    fn call(&self, client: &Client, (method, path, _): &Row, subject: &Subject) -> Answer {
        let id = match path {
            path if path.contains("tokens") => &subject.token.id,
            path if path.contains("rules") => "R9",
            _ => &subject.lease.id,
        };
        let target = path.replace("{id}", id).replace("{uuid}", &self.uuid);
        let epoch = subject.lease.epoch;
        let body = match path.rsplit('/').next() {
            Some("leases") => ask(300 * MIB, json!({})),
            Some("tokens") => wish(&new_secret(), json!({})),
            Some("renew") => json!({ "epoch": epoch }),
            Some("hook") => json!({ "epoch": epoch, "done": "yielded" }),
            Some("accept") => json!({ "vram_bytes": 1 << 30 }),
            Some("mode") => json!({ "mode": "observe" }),
            Some("aside") => json!({ "for_s": 60 }),
            Some("adopt") => json!({ "pid": std::process::id() }),
            Some("rules") => json!({ "who": "uid:4711", "treat": "allow" }),
            Some("bind") => json!({ "epoch": epoch, "pid": std::process::id() }),
            _ => Value::Null,
        };
        let body = if *method == "POST" && !body.is_null() { body.to_string() } else { String::new() };
        if *path == "/v1/events" {
            return self.head_of(client, &target);
        }
        client.send(method, &target, &[JSON], body.as_bytes())
    }

    /// A stream has no end: its head must do, unless it is a refusal.
    fn head_of(&self, client: &Client, target: &str) -> Answer {
        let mut connection = client.connect().expect("the service accepts");
        connection.raw(&client.head("GET", target)).expect("the service reads");
        let (status, headers) = connection.head().expect("the service answers");
        match status {
            200 => Answer { status, headers, body: Vec::new() },
            _ => client.get(target),
        }
    }
}

fn check(what: &str, row: &Row, answer: &Answer, expected: &str) {
    let told = if answer.status < 400 { answer.status.to_string() } else { answer.code().to_owned() };
    assert_eq!(told, expected, "{what}: {} {} answers {}", row.0, row.1, answer.text());
    let challenge = answer.header("www-authenticate");
    assert_eq!(challenge, (answer.status == 401).then_some("Bearer"), "{what}: {} {}", row.0, row.1);
}

/// Whoever fails too often is told to wait, which is another test's matter.
fn patiently(what: &str, call: impl Fn() -> Answer) -> Answer {
    until(what, LONG, || match call() {
        answer if answer.status == 429 => Err(answer),
        answer => Ok(answer),
    })
}

fn house() -> (Service, House) {
    let config = "[tcp]\nlisten = \"127.0.0.1:0\"\nrequests_per_s = 1000000\nburst = 1000000\n";
    let service = Service::start_with(Setup { config: Some(config.into()), ..Setup::default() });
    let (operator, remote) = (service.client(), service.remote());
    let good = remote.with_token(&operator.make_token(json!({ "tenant": ANA })).0);
    let uuid = operator.card().uuid;
    (service, House { operator, remote, good, uuid })
}

#[test]
fn every_route_has_a_row() {
    let (_service, house) = house();
    let document: Value = house.operator.get("/openapi.json").read();
    let paths = document["paths"].as_object().expect("there are routes");
    let mut described: Vec<(String, String)> = vec![("GET".into(), "/openapi.json".into())];
    for (path, methods) in paths {
        let methods = methods.as_object().expect("a route has methods").keys();
        described.extend(methods.map(|method| (method.to_uppercase(), path.clone())));
    }
    let mut rows: Vec<(String, String)> = ROWS.iter().map(|row| (row.0.into(), row.1.into())).collect();
    described.sort();
    rows.sort();
    assert_eq!(described, rows, "the service's routes (left) and the rows of this table (right) are the same");
}

#[test]
fn without_a_good_token_nothing_but_health_is_answered_over_tcp() {
    let (_service, house) = house();
    let (revoked, token) = house.operator.make_token(json!({ "tenant": ANA }));
    assert_eq!(house.operator.delete(&format!("/v1/tokens/{}", token.id)).status, 200);
    let (expired, _) = house.operator.make_token(json!({ "tenant": ANA, "expires_in_s": 1 }));
    let expired = house.remote.with_token(&expired);
    until("the token expires", LONG, || match expired.get("/v1/cards") {
        answer if answer.status == 401 => Ok(()),
        answer => Err(answer.status),
    });
    let refused = [
        ("none", house.remote.clone(), "unauthenticated"),
        ("garbage", house.remote.with_token("sbl_x"), "unauthenticated"),
        ("unknown", house.remote.with_token(&new_secret()), "unauthenticated"),
        ("expired", expired, "token_expired"),
        ("revoked", house.remote.with_token(&revoked), "unauthenticated"),
    ];
    let subject = house.subject();
    for row in ROWS {
        for (what, client, code) in &refused {
            let answer = patiently(what, || house.call(client, row, &subject));
            check(what, row, &answer, if PUBLIC.contains(&row.1) { "200" } else { code });
        }
    }
    let still = house.operator.lease(&subject.lease.id);
    assert_eq!((still.state, still.epoch), (sublet_wire::LeaseState::Active, subject.lease.epoch), "nothing was done");
}

#[test]
fn each_credential_gets_what_is_its_own_and_no_more() {
    let (_service, house) = house();
    let with = |fields: Value| house.remote.with_token(&house.operator.make_token(fields).0);
    let read_only = with(json!({ "tenant": ANA, "read_only": true }));
    let other = with(json!({ "tenant": "user:ben" }));
    let socket_with_token = house.operator.with_token(&new_secret());
    if !is_root() {
        eprintln!("skipped: the local user's column of each_credential_gets_what_is_its_own needs root");
    }
    for row in ROWS {
        let (_, path, expected) = row;
        let columns: [(&str, &Client, &str); 5] = [
            ("read-only token", &read_only, expected[0]),
            ("another tenant's token", &other, expected[1]),
            ("good token", &house.good, expected[2]),
            ("local user", &house.operator, expected[3]),
            ("operator", &house.operator, expected[4]),
        ];
        for (what, client, expected) in columns {
            if what == "local user" && !is_root() {
                continue;
            }
            let subject = house.subject();
            let answer = match what {
                "local user" => as_user(LOCAL, || house.call(client, row, &subject)),
                _ => house.call(client, row, &subject),
            };
            check(what, row, &answer, expected);
            let strange = matches!(what, "another tenant's token" | "local user");
            let tells = |text: &str| answer.text().contains(text);
            assert!(!strange || !tells(PLAN), "{what} reads of another's plan on {path}: {}", answer.text());
            let id = format!("\"{}\"", subject.lease.id);
            assert!(!strange || !tells(&id), "{what} reads another's lease on {path}: {}", answer.text());
            let whose = what == "another tenant's token" && path.starts_with("/v1/") && tells(ANA);
            assert!(!whose, "beyond the host nobody reads who is on a card, on {path}: {}", answer.text());
            house.clean_up(&subject, &answer);
        }
        let subject = house.subject();
        let answer = house.call(&socket_with_token, row, &subject);
        check("a token on the socket", row, &answer, if PUBLIC.contains(path) { "200" } else { "bad_request" });
        house.clean_up(&subject, &answer);
    }
}
