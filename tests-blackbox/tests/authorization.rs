//! Every route × every kind of caller × an object that is there or missing: what each is answered, in one table.
//!
//! The routes come from the service's own description, so a new one without a row here fails the test. The object is
//! alice's: own to her and her tokens, foreign to bob and his. What a caller may not see must answer exactly like what is
//! missing. Callers that are local users need root, which alone can be several users; elsewhere it is said that they were
//! skipped.

use serde_json::{Value, json};
use std::os::unix::process::CommandExt;
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use sublet_blackbox::binary::sublet;
use sublet_blackbox::http::JSON;
use sublet_blackbox::service::bare_command;
use sublet_blackbox::token::{new_secret, token_body};
use sublet_blackbox::user::{as_user, as_user_in, is_root};
use sublet_blackbox::{HttpReply, LONG, MIB, ServiceSetup, TestClient, TestProcess, TestService, ask, until};
use sublet_wire::{Lease, LeaseState, Rule, Token};

const ALICE: u32 = 12345;
const BOB: u32 = 12346;
/// A user that is an operator because of its group, which the configuration names.
const OPERATOR: u32 = 12347;
const OPERATORS_GROUP: (u32, &str) = (4, "adm");
/// No text but alice's, and operators', may have this in it.
const PLAN: &str = "secret plan";

/// Those that may not know of alice's objects.
const FOREIGN: [&str; 2] = ["bob", "bob's-token"];

/// What is answered to each caller: a status, or the code of a refusal. The line `missing` is about an object that is not
/// there, for the route above it.
const TABLE: &str = "
                               alice             bob               root              operator          token          read-only      bob's-token    no-token
GET /healthz                   200               200               200               200               200            200            200            200
GET /readyz                    200               200               200               200               200            200            200            200
GET /openapi.json              200               200               200               200               200            200            200            200
GET /v1/leases                 200               200               200               200               200            200            200            unauthenticated
POST /v1/leases                201               201               201               201               201            read_only      201            unauthenticated
GET /v1/leases/{id}            200               no_such_lease     200               200               200            200            no_such_lease  unauthenticated
  missing                      no_such_lease     no_such_lease     no_such_lease     no_such_lease     no_such_lease  no_such_lease  no_such_lease  unauthenticated
DELETE /v1/leases/{id}         200               no_such_lease     200               200               200            read_only      no_such_lease  unauthenticated
  missing                      no_such_lease     no_such_lease     no_such_lease     no_such_lease     no_such_lease  read_only      no_such_lease  unauthenticated
GET /v1/leases/{id}/explain    200               no_such_lease     200               200               200            200            no_such_lease  unauthenticated
  missing                      no_such_lease     no_such_lease     no_such_lease     no_such_lease     no_such_lease  no_such_lease  no_such_lease  unauthenticated
POST /v1/leases/{id}/renew     200               no_such_lease     200               200               200            read_only      no_such_lease  unauthenticated
  missing                      no_such_lease     no_such_lease     no_such_lease     no_such_lease     no_such_lease  read_only      no_such_lease  unauthenticated
POST /v1/leases/{id}/accept    lease_active      no_such_lease     lease_active      lease_active      lease_active   read_only      no_such_lease  unauthenticated
  missing                      no_such_lease     no_such_lease     no_such_lease     no_such_lease     no_such_lease  read_only      no_such_lease  unauthenticated
POST /v1/leases/{id}/hook      200               no_such_lease     200               200               200            read_only      no_such_lease  unauthenticated
  missing                      no_such_lease     no_such_lease     no_such_lease     no_such_lease     no_such_lease  read_only      no_such_lease  unauthenticated
POST /v1/leases/{id}/park      not_parkable      no_such_lease     not_parkable      not_parkable      not_parkable   read_only      no_such_lease  unauthenticated
  missing                      no_such_lease     no_such_lease     no_such_lease     no_such_lease     no_such_lease  read_only      no_such_lease  unauthenticated
POST /v1/leases/{id}/resume    200               no_such_lease     200               200               200            read_only      no_such_lease  unauthenticated
  missing                      no_such_lease     no_such_lease     no_such_lease     no_such_lease     no_such_lease  read_only      no_such_lease  unauthenticated
POST /v1/leases/{id}/bind      200               no_such_lease     not_your_process  not_your_process  pid_not_local  read_only      no_such_lease  unauthenticated
  missing                      no_such_lease     no_such_lease     no_such_lease     no_such_lease     no_such_lease  read_only      no_such_lease  unauthenticated
GET /v1/queue                  200               200               200               200               200            200            200            unauthenticated
GET /v1/gpus                  200               200               200               200               200            200            200            unauthenticated
POST /v1/gpus/{uuid}/drain    denied            denied            200               200               denied         read_only      denied         unauthenticated
  missing                      denied            denied            no_such_gpu       no_such_gpu       denied         read_only      denied         unauthenticated
POST /v1/gpus/{uuid}/clear    denied            denied            200               200               denied         read_only      denied         unauthenticated
  missing                      denied            denied            no_such_gpu       no_such_gpu       denied         read_only      denied         unauthenticated
POST /v1/gpus/{uuid}/aside    denied            denied            200               200               denied         read_only      denied         unauthenticated
  missing                      denied            denied            no_such_gpu       no_such_gpu       denied         read_only      denied         unauthenticated
DELETE /v1/gpus/{uuid}/aside  200               200               200               200               denied         read_only      denied         unauthenticated
  missing                      no_such_gpu       no_such_gpu       no_such_gpu       no_such_gpu       denied         read_only      denied         unauthenticated
POST /v1/gpus/{uuid}/mode     denied            denied            200               200               denied         read_only      denied         unauthenticated
  missing                      denied            denied            no_such_gpu       no_such_gpu       denied         read_only      denied         unauthenticated
GET /v1/unleased              200               200               200               200               200            200            200            unauthenticated
POST /v1/adopt                 no_such_unleased_process  not_your_process  no_such_unleased_process  no_such_unleased_process  pid_not_local  read_only      pid_not_local  unauthenticated
  missing                      not_your_process  not_your_process  not_your_process  not_your_process  pid_not_local  read_only      pid_not_local  unauthenticated
POST /v1/rules                 denied            denied            200               200               denied         read_only      denied         unauthenticated
DELETE /v1/rules/{id}          denied            denied            200               200               denied         read_only      denied         unauthenticated
  missing                      denied            denied            no_such_rule      no_such_rule      denied         read_only      denied         unauthenticated
GET /v1/tokens                 200               200               200               200               200            200            200            unauthenticated
POST /v1/tokens                201               201               201               201               denied         read_only      denied         unauthenticated
DELETE /v1/tokens/{id}         200               no_such_token     200               200               no_such_token  read_only      no_such_token  unauthenticated
  missing                      no_such_token     no_such_token     no_such_token     no_such_token     no_such_token  read_only      no_such_token  unauthenticated
POST /v1/journal/accept-loss   denied            denied            no_loss           no_loss           denied         read_only      denied         unauthenticated
GET /v1/registers              200               200               200               200               200            200            200            unauthenticated
GET /v1/registers/{register}/chains            200  200  200  200  200  200  200  unauthenticated
  missing                                      200  200  200  200  200  200  200  unauthenticated
GET /v1/registers/{register}/chains/{chain}    200  200  200  200  200  200  200  unauthenticated
  missing                                      200  200  200  200  200  200  200  unauthenticated
GET /v1/registers/{register}/chains/{chain}/entries            200  200  200  200  200  200  200  unauthenticated
  missing                                                      200  200  200  200  200  200  200  unauthenticated
PUT /v1/registers/{register}/chains/{chain}/entries/{number}   201  entry_out_of_order  entry_out_of_order  entry_out_of_order  201  read_only  entry_out_of_order  unauthenticated
  missing                      entry_out_of_order  entry_out_of_order  entry_out_of_order  entry_out_of_order  entry_out_of_order  read_only  entry_out_of_order  unauthenticated
DELETE /v1/registers/{register}/chains/{chain}/entries         200  200  200  200  200  read_only  200  unauthenticated
  missing                                                      200  200  200  200  200  read_only  200  unauthenticated
GET /v1/usage                  200               200               200               200               200            200            200            unauthenticated
GET /v1/audit                  200               200               200               200               200            200            200            unauthenticated
GET /v1/events                 200               200               200               200               200            200            200            unauthenticated
";

/// A route, with what is answered where the object is there, and where it is missing, for routes that are about one.
struct Row {
    method: &'static str,
    path: &'static str,
    there: Vec<&'static str>,
    missing: Option<Vec<&'static str>>,
}

/// The callers, and the rows of the table.
fn table() -> (Vec<&'static str>, Vec<Row>) {
    let mut lines = TABLE.trim_matches('\n').lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let callers = lines.next().expect("a line with the callers");
    let mut rows: Vec<Row> = Vec::new();
    for words in lines {
        match words[..] {
            ["missing", ref told @ ..] => rows.last_mut().expect("a route before it").missing = Some(told.to_vec()),
            [method, path, ref told @ ..] => rows.push(Row { method, path, there: told.to_vec(), missing: None }),
            _ => panic!("no route: {words:?}"),
        }
        assert!(words.len() > callers.len(), "each caller is answered: {words:?}");
    }
    (callers, rows)
}

/// What every caller may read.
const PUBLIC: [&str; 3] = ["/healthz", "/readyz", "/openapi.json"];

struct World {
    socket: TestClient,
    remote: TestClient,
    /// Through tokens: alice's, alice's that may only look, bob's.
    tokens: [TestClient; 3],
    uuid: String,
    process: TestProcess,
    service: TestService,
    /// Of alice's tokens: one, and one that may only look.
    secrets: [String; 2],
}

/// What a call is made about: made anew for each, because calls change it.
struct Subject {
    lease: String,
    fence: Option<u64>,
    token: String,
    rule: String,
    uuid: String,
    pid: u32,
    /// A register and a chain in it, with one entry.
    chain: (String, String),
}

impl World {
    fn begin() -> World {
        let tcp = "[tcp]\nlisten = \"127.0.0.1:0\"\nrequests_per_s = 1000000\nburst = 1000000\n";
        let config = format!("operators = \"{}\"\n{tcp}", OPERATORS_GROUP.1);
        let service = TestService::start_with(ServiceSetup { config: Some(config), ..ServiceSetup::default() });
        let (socket, remote) = (service.client(), service.remote());
        let secret = |fields: Value| socket.make_token(fields).0;
        let tenant = |uid: u32| format!("uid:{uid}");
        let secrets =
            [secret(json!({ "tenant": tenant(ALICE) })), secret(json!({ "tenant": tenant(ALICE), "read_only": true }))];
        let bobs = secret(json!({ "tenant": tenant(BOB) }));
        let tokens = [&secrets[0], &secrets[1], &bobs].map(|secret| remote.with_token(secret));
        let uuid = socket.card().uuid;
        World { socket, remote, tokens, uuid, process: TestProcess::idle_of(ALICE), service, secrets }
    }

    /// Makes alice's objects, and a rule of the operators.
    fn subject(&self) -> Subject {
        let fields = json!({ "name": PLAN });
        let (lease, token): (Lease, Token) =
            as_user(ALICE, || (self.socket.grant(&ask(300 * MIB, fields.clone())), self.socket.make_token(fields).1));
        let rule: Rule = self.socket.post("/v1/rules", &json!({ "matches": "uid:4711", "action": "allow" })).read();
        static NEXT: AtomicU32 = AtomicU32::new(100_000);
        let chain = ("plans".to_owned(), format!("c%2Fplans%2F{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let entry = format!("/v1/registers/{}/chains/{}/entries/1", chain.0, chain.1);
        let created = as_user(ALICE, || self.socket.send("PUT", &entry, &[], b"entry"));
        assert_eq!(created.status, 201, "{}", created.text());
        let (uuid, pid) = (self.uuid.clone(), self.process.pid());
        Subject { lease: lease.id, fence: lease.fence, token: token.id, rule: rule.id, uuid, pid, chain }
    }

    /// Leaves nothing behind: neither leases, nor tokens, nor rules, nor a GPU that drains.
    fn clean_up(&self, made: &Subject, answer: &HttpReply) {
        let made_now =
            if answer.status == 201 { answer.read::<Value>()["id"].as_str().map(str::to_owned) } else { None };
        let of = |id: &str| match id.as_bytes()[0] {
            b'L' => format!("/v1/leases/{id}"),
            b'K' => format!("/v1/tokens/{id}"),
            _ => format!("/v1/rules/{id}"),
        };
        let ids = [&made.lease, &made.token, &made.rule].map(Clone::clone).into_iter().chain(made_now);
        for id in ids {
            let gone = self.socket.delete(&of(&id));
            assert!([200, 404, 410].contains(&gone.status), "{}", gone.text());
        }
        assert_eq!(self.socket.send("POST", &format!("/v1/gpus/{}/clear", self.uuid), &[], b"").status, 200);
        assert_eq!(self.socket.delete(&format!("/v1/gpus/{}/aside", self.uuid)).status, 200);
    }

    fn call(&self, caller: &str, row: &Row, subject: &Subject) -> HttpReply {
        let call = |client: &TestClient| call(client, row, subject);
        match caller {
            "alice" => as_user(ALICE, || call(&self.socket)),
            "bob" => as_user(BOB, || call(&self.socket)),
            "operator" => as_user_in(OPERATOR, OPERATORS_GROUP.0, || call(&self.socket)),
            "root" => call(&self.socket),
            "token" => call(&self.tokens[0]),
            "read-only" => call(&self.tokens[1]),
            "bob's-token" => call(&self.tokens[2]),
            // A caller that fails too often is told to wait, which is another test's matter.
            _ => patiently(caller, || call(&self.remote)),
        }
    }
}

impl Subject {
    /// One that is not there.
    fn missing(&self) -> Subject {
        let like = |id: &str| format!("{}999999", &id[..1]);
        let digits = |c: char| if c.is_ascii_hexdigit() { 'f' } else { c };
        let uuid = format!("{}{}", &self.uuid[..4], self.uuid[4..].chars().map(digits).collect::<String>());
        // No system has so many processes.
        let pid = u32::try_from(i32::MAX).expect("a number");
        let chain = ("nulls".to_owned(), "c%2Fplans%2F999999".to_owned());
        Subject {
            lease: like(&self.lease),
            token: like(&self.token),
            rule: like(&self.rule),
            uuid,
            pid,
            chain,
            ..*self
        }
    }

    /// An answer about this object without its names and without what differs between any two answers.
    fn comparable(&self, answer: &HttpReply) -> (u16, Vec<(String, String)>, String) {
        let headers = answer.headers.iter().filter(|(name, _)| name != "date" && name != "content-length").cloned();
        let chain = self.chain.1.replace("%2F", "/");
        let names = [&self.lease, &self.token, &self.rule, &self.uuid, &self.pid.to_string(), &chain];
        let text = names.into_iter().fold(answer.text(), |text, name| text.replace(name.as_str(), "NAME"));
        (answer.status, headers.collect(), text)
    }
}

fn call(client: &TestClient, &Row { method, path, .. }: &Row, subject: &Subject) -> HttpReply {
    let id = match path {
        path if path.contains("tokens") => &subject.token,
        path if path.contains("rules") => &subject.rule,
        _ => &subject.lease,
    };
    let (register, chain) = &subject.chain;
    let target = path.replace("{id}", id).replace("{uuid}", &subject.uuid).replace("{number}", "2");
    let mut target = target.replace("{register}", register).replace("{chain}", chain);
    if method == "DELETE" && path.ends_with("entries") {
        target.push_str("?before=1");
    }
    let fence = subject.fence;
    let body = match path.rsplit('/').next() {
        Some("leases") => ask(300 * MIB, json!({})),
        Some("tokens") => token_body(&new_secret(), json!({})),
        Some("renew") => json!({ "fence": fence }),
        Some("hook") => json!({ "fence": fence, "result": "parked" }),
        Some("accept") => json!({ "vram_bytes": 1 << 30 }),
        Some("mode") => json!({ "mode": "observe" }),
        Some("aside") => json!({ "for_s": 60 }),
        Some("adopt") => json!({ "pid": subject.pid }),
        Some("rules") => json!({ "matches": "uid:4712", "action": "allow" }),
        Some("bind") => json!({ "fence": fence, "pid": subject.pid }),
        _ => Value::Null,
    };
    let body = if method == "POST" && !body.is_null() { body.to_string() } else { String::new() };
    if path == "/v1/events" {
        return head_of(client, &target);
    }
    client.send(method, &target, &[JSON], body.as_bytes())
}

/// A stream has no end: its head must do, unless it is a refusal.
fn head_of(client: &TestClient, target: &str) -> HttpReply {
    let mut connection = client.connect().expect("the service accepts");
    connection.raw(&client.head("GET", target)).expect("the service reads");
    let (status, headers) = connection.head().expect("the service answers");
    match status {
        200 => HttpReply { status, headers, body: Vec::new() },
        _ => client.get(target),
    }
}

fn patiently(what: &str, call: impl Fn() -> HttpReply) -> HttpReply {
    until(what, LONG, || match call() {
        answer if answer.status == 429 => Err(answer),
        answer => Ok(answer),
    })
}

/// A status, or the code of a refusal.
fn answer_summary(answer: &HttpReply) -> String {
    if answer.status < 400 { answer.status.to_string() } else { answer.code().to_owned() }
}

fn check(what: &str, row: &Row, answer: &HttpReply, expected: &str) {
    assert_eq!(answer_summary(answer), expected, "{what}: {} {} answers {}", row.method, row.path, answer.text());
    let challenge = answer.header("www-authenticate");
    assert_eq!(challenge, (answer.status == 401).then_some("Bearer"), "{what}: {} {}", row.method, row.path);
}

fn world(test: &str) -> Option<World> {
    if !is_root() {
        eprintln!("skipped: {test} needs root to be several users");
        return None;
    }
    Some(World::begin())
}

#[test]
fn every_route_has_a_row() {
    let service = TestService::start();
    let document: Value = service.client().get("/openapi.json").read();
    let paths = document["paths"].as_object().expect("there are routes");
    let mut described: Vec<(String, String)> = vec![("GET".into(), "/openapi.json".into())];
    for (path, methods) in paths {
        let methods = methods.as_object().expect("a route has methods").keys();
        described.extend(methods.map(|method| (method.to_uppercase(), path.clone())));
    }
    let (_, table) = table();
    let mut rows: Vec<(String, String)> = table.iter().map(|row| (row.method.into(), row.path.into())).collect();
    described.sort();
    rows.sort();
    assert_eq!(described, rows, "the service's routes (left) and the rows of this table (right) are the same");
    for Row { method, path, missing, .. } in table {
        let is_about_one = path.contains('{') || path == "/v1/adopt";
        assert_eq!(is_about_one, missing.is_some(), "{method} {path}");
    }
}

#[test]
fn each_caller_gets_what_is_its_own_and_no_more() {
    let Some(world) = world("each_caller_gets_what_is_its_own_and_no_more") else { return };
    let (callers, rows) = table();
    let mut wrong = Vec::new();
    for row in &rows {
        for (column, caller) in callers.iter().enumerate() {
            let is_foreign = FOREIGN.contains(caller);
            let what = format!("{caller}: {} {}", row.method, row.path);
            let mut answers = Vec::new();
            for (is_missing, expected) in [(false, Some(&row.there)), (true, row.missing.as_ref())] {
                let Some(expected) = expected else { continue };
                let made = world.subject();
                let missing = is_missing.then(|| made.missing());
                let subject = missing.as_ref().unwrap_or(&made);
                let answer = world.call(caller, row, subject);
                if answer_summary(&answer) != expected[column] {
                    wrong.push(format!("{what}, missing: {is_missing}: {} {}", answer_summary(&answer), answer.text()));
                }
                let challenge = answer.header("www-authenticate");
                assert_eq!(challenge, (answer.status == 401).then_some("Bearer"), "{what}");
                let secrets = [PLAN.to_owned(), format!("\"{}\"", made.lease), format!("\"{}\"", made.token)];
                let read = secrets.iter().find(|text| is_foreign && answer.text().contains(*text));
                assert_eq!(read, None, "alice's is read: {what}: {}", answer.text());
                let is_beyond = *caller == "bob's-token" && row.path.starts_with("/v1/");
                let names = is_beyond && answer.text().contains("uid:12345");
                assert!(!names, "beyond the host no other user is named: {what}: {}", answer.text());
                answers.push(subject.comparable(&answer));
                world.clean_up(&made, &answer);
            }
            // Every user may see the GPUs.
            if let [there, missing] = &answers[..]
                && is_foreign
                && !row.path.contains("{uuid}")
            {
                assert_eq!(there, missing, "a foreign object differs from a missing one: {what}");
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn without_a_good_token_nothing_but_health_is_answered_over_tcp() {
    let Some(world) = world("without_a_good_token_nothing_but_health_is_answered_over_tcp") else { return };
    let (revoked, token) = world.socket.make_token(json!({ "tenant": "user:ana" }));
    assert_eq!(world.socket.delete(&format!("/v1/tokens/{}", token.id)).status, 200);
    let (expired, _) = world.socket.make_token(json!({ "tenant": "user:ana", "expires_in_s": 1 }));
    let expired = world.remote.with_token(&expired);
    until("the token expires", LONG, || match expired.get("/v1/gpus") {
        answer if answer.status == 401 => Ok(()),
        answer => Err(answer.status),
    });
    let refused = [
        ("garbage", world.remote.with_token("sbl_x"), "unauthenticated"),
        ("unknown", world.remote.with_token(&new_secret()), "unauthenticated"),
        ("expired", expired, "token_expired"),
        ("revoked", world.remote.with_token(&revoked), "unauthenticated"),
    ];
    let subject = world.subject();
    for row in &table().1 {
        let is_public = PUBLIC.contains(&row.path);
        for (what, client, code) in &refused {
            let answer = patiently(what, || call(client, row, &subject));
            check(what, row, &answer, if is_public { "200" } else { code });
        }
        let answer = call(&world.socket.with_token(&new_secret()), row, &subject);
        check("a token on the socket", row, &answer, if is_public { "200" } else { "bad_request" });
    }
    let still = world.socket.lease(&subject.lease);
    assert_eq!((still.state, still.fence), (LeaseState::Active, subject.fence), "nothing was done");
}

/// What a verb of the command line says and exits with, where it makes more than one call. `L1` stands for alice's lease,
/// `L9` for one that is missing. The lines after a verb are callers, the exit code, and the first line that is said.
const VERBS: &str = "
explain L1
    alice      0  L1 (secret plan) is active
    bob        1  error: L1: you have no such lease
    root       0  L1 (secret plan) is active
    operator   0  L1 (secret plan) is active
    token      0  L1 (secret plan) is active
    read-only  0  L1 (secret plan) is active
explain L9
    alice      1  error: L9: you have no such lease
    bob        1  error: L9: you have no such lease
    root       1  error: L9: you have no such lease
    operator   1  error: L9: you have no such lease
    token      1  error: L9: you have no such lease
    read-only  1  error: L9: you have no such lease
renew L1
    alice      0  L1 has 5 min left
    bob        1  error: L1: you have no such lease
    root       0  L1 has 5 min left
    operator   0  L1 has 5 min left
    token      0  L1 has 5 min left
    read-only 77  error: L1: this token may read and change nothing
renew L9
    alice      1  error: L9: you have no such lease
    bob        1  error: L9: you have no such lease
    root       1  error: L9: you have no such lease
    operator   1  error: L9: you have no such lease
    token      1  error: L9: you have no such lease
    read-only  1  error: L9: you have no such lease
park L1
    alice      1  error: its program cannot be parked: none of its programs uses a GPU through Sublet's library
    bob        1  error: you have no such lease
    root       1  error: its program cannot be parked: none of its programs uses a GPU through Sublet's library
    operator   1  error: its program cannot be parked: none of its programs uses a GPU through Sublet's library
    token      1  error: its program cannot be parked: none of its programs uses a GPU through Sublet's library
    read-only 77  error: this token may read and change nothing
park L9
    alice      1  error: you have no such lease
    bob        1  error: you have no such lease
    root       1  error: you have no such lease
    operator   1  error: you have no such lease
    token      1  error: you have no such lease
    read-only 77  error: this token may read and change nothing
resume L1
    alice      0  L1 is back on its GPUs
    bob        1  error: you have no such lease
    root       0  L1 is back on its GPUs
    operator   0  L1 is back on its GPUs
    token      0  L1 is back on its GPUs
    read-only 77  error: this token may read and change nothing
resume L9
    alice      1  error: you have no such lease
    bob        1  error: you have no such lease
    root       1  error: you have no such lease
    operator   1  error: you have no such lease
    token      1  error: you have no such lease
    read-only 77  error: this token may read and change nothing
release L1
    alice      0  L1 released
    bob        1  error: L1: you have no such lease
    root       0  L1 released
    operator   0  L1 released
    token      0  L1 released
    read-only 77  error: L1: this token may read and change nothing
release L9
    alice      1  error: L9: you have no such lease
    bob        1  error: L9: you have no such lease
    root       1  error: L9: you have no such lease
    operator   1  error: L9: you have no such lease
    token      1  error: L9: you have no such lease
    read-only 77  error: L9: this token may read and change nothing
stop L1
    alice      0  L1 stopped
    bob        1  error: L1: you have no such lease
    root       0  L1 stopped
    operator   0  L1 stopped
    token     64  error: programs are ended where they run, not through URL
    read-only 64  error: programs are ended where they run, not through URL
stop L9
    alice      1  error: L9: you have no such lease
    bob        1  error: L9: you have no such lease
    root       1  error: L9: you have no such lease
    operator   1  error: L9: you have no such lease
    token     64  error: programs are ended where they run, not through URL
    read-only 64  error: programs are ended where they run, not through URL
accept L1 1G
    alice      1  error: L1: the lease does not wait any more
    bob        1  error: L1: you have no such lease
    root       1  error: L1: the lease does not wait any more
    operator   1  error: L1: the lease does not wait any more
    token      1  error: L1: the lease does not wait any more
    read-only 77  error: L1: this token may read and change nothing
accept L9 1G
    alice      1  error: L9: you have no such lease
    bob        1  error: L9: you have no such lease
    root       1  error: L9: you have no such lease
    operator   1  error: L9: you have no such lease
    token      1  error: L9: you have no such lease
    read-only 77  error: L9: this token may read and change nothing
cards drain 0
    alice     77  error: only an operator may do this
    bob       77  error: only an operator may do this
    root       0  GPU 0 is draining
    operator   0  GPU 0 is draining
    token     77  error: only an operator may do this
    read-only 77  error: this token may read and change nothing
cards drain 9
    alice     64  error: there is no GPU `9`
    bob       64  error: there is no GPU `9`
    root      64  error: there is no GPU `9`
    operator  64  error: there is no GPU `9`
    token     64  error: there is no GPU `9`
    read-only 64  error: there is no GPU `9`
";

/// Runs a verb for a caller.
fn verb(world: &World, caller: &str, words: &[&str]) -> Output {
    let service = &world.service;
    let as_local = |uid: u32, gid: u32| {
        let mut command = service.command(words);
        command.uid(uid).gid(gid);
        command
    };
    let mut command = match caller {
        "alice" => as_local(ALICE, ALICE),
        "bob" => as_local(BOB, BOB),
        "operator" => as_local(OPERATOR, OPERATORS_GROUP.0),
        "root" => service.command(words),
        _ => {
            let mut command = bare_command(sublet(), service.dir());
            let secret = &world.secrets[usize::from(caller == "read-only")];
            let url = format!("http://{}", service.address());
            command.args(["--url", &url]).args(words).env("SUBLET_TOKEN", secret).stdin(Stdio::null());
            command
        }
    };
    command.output().expect("the command line starts")
}

#[test]
fn each_verb_does_for_a_caller_what_its_routes_allow() {
    let Some(world) = world("each_verb_does_for_a_caller_what_its_routes_allow") else { return };
    let url = format!("http://{}", world.service.address());
    let (mut line, mut shown) = ("", String::new());
    for text in VERBS.trim_matches('\n').lines() {
        let Some(rest) = text.strip_prefix("    ") else {
            line = text;
            shown.push_str(&format!("{text}\n"));
            continue;
        };
        let caller = rest.split_whitespace().next().expect("a caller");
        let made = world.subject();
        let missing = made.missing();
        let named = |word: &'static str| match word {
            "L1" => made.lease.clone(),
            "L9" => missing.lease.clone(),
            word => word.to_owned(),
        };
        let words: Vec<String> = line.split_whitespace().map(named).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = verb(&world, caller, &words);
        let said = String::from_utf8_lossy(if output.status.success() { &output.stdout } else { &output.stderr });
        let first = said.lines().next().unwrap_or("");
        let (id, name) = if line.contains("L9") { (&missing.lease, "L9") } else { (&made.lease, "L1") };
        let first = first.replace(id.as_str(), name).replace(&url, "URL");
        let code = output.status.code().expect("it exits");
        shown.push_str(&format!("    {caller:9} {code:2}  {first}\n"));
        world.clean_up(&made, &HttpReply { status: 200, headers: Vec::new(), body: Vec::new() });
    }
    assert_eq!(shown, VERBS.trim_start_matches('\n'));
}
