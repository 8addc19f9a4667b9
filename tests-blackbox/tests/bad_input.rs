//! Whatever is sent, the answer is a problem with a stable code, and nothing
//! is queued, granted or lost by it.

use serde_json::{Value, json};
use sublet_blackbox::http::{JSON, head};
use sublet_blackbox::{GIB, TestClient, TestService, ask};

/// The request could not be read.
const UNREAD: &[&str] = &["bad_request"];
/// It was read, and a value in it is invalid, or fits no GPU.
const SENSELESS: &[&str] = &["bad_value", "never_fits"];
/// Either: a number that is out of reach of its type or of its meaning.
const EITHER: &[&str] = &["bad_request", "bad_value", "never_fits"];

/// Sends each body, and wants one of its codes for it and no lease from it.
fn check(table: &[(&str, &[&str])]) {
    let service = TestService::start();
    let client = service.client();
    for (body, codes) in table {
        let answer = client.send("POST", "/v1/leases", &[JSON], body.as_bytes());
        assert_refused(body, &answer, codes);
        assert_eq!(client.live_ids(), Vec::<String>::new(), "a refused ask leaves nothing: {body}");
    }
    client.grant(&ask(GIB, json!({})));
}

fn assert_refused(what: &str, answer: &sublet_blackbox::HttpReply, codes: &[&str]) {
    assert!(answer.status >= 400, "{what} was taken: {} {}", answer.status, answer.text());
    let code = answer.code();
    assert!(codes.contains(&code), "{what}: wanted one of {codes:?}, got {}", answer.text());
}

#[test]
fn a_size_that_makes_no_sense_is_refused() {
    check(&[
        (r#"{"vram_bytes": 0}"#, SENSELESS),
        (r#"{"vram_bytes": -1}"#, UNREAD),
        (r#"{"vram_bytes": -9223372036854775808}"#, UNREAD),
        (r#"{"vram_bytes": 9223372036854775808}"#, SENSELESS),
        (r#"{"vram_bytes": 18446744073709551615}"#, SENSELESS),
        (r#"{"vram_bytes": 18446744073709551616}"#, UNREAD),
        (r#"{"vram_bytes": 1e300}"#, UNREAD),
        (r#"{"vram_bytes": 1e999}"#, UNREAD),
        (r#"{"vram_bytes": 1.5}"#, UNREAD),
        (r#"{"vram_bytes": NaN}"#, UNREAD),
        (r#"{"vram_bytes": Infinity}"#, UNREAD),
        (r#"{"vram_bytes": -Infinity}"#, UNREAD),
        (r#"{"vram_bytes": "16"}"#, UNREAD),
        (r#"{"vram_bytes": "16G"}"#, UNREAD),
        (r#"{"vram_bytes": "16GiB"}"#, UNREAD),
        (r#"{"vram_bytes": ""}"#, UNREAD),
        (r#"{"vram_bytes": "Whole"}"#, UNREAD),
        (r#"{"vram_bytes": null}"#, UNREAD),
        (r#"{"vram_bytes": true}"#, UNREAD),
        (r#"{"vram_bytes": [1073741824]}"#, UNREAD),
        (r#"{"vram_bytes": {"bytes": 1}}"#, UNREAD),
        (r#"{}"#, UNREAD),
    ]);
}

#[test]
fn a_time_that_makes_no_sense_is_refused() {
    check(&[
        (r#"{"vram_bytes": 1073741824, "ttl_s": 0}"#, SENSELESS),
        (r#"{"vram_bytes": 1073741824, "ttl_s": -5}"#, UNREAD),
        (r#"{"vram_bytes": 1073741824, "ttl_s": 86401}"#, SENSELESS),
        (r#"{"vram_bytes": 1073741824, "ttl_s": 9223372036854775808}"#, SENSELESS),
        (r#"{"vram_bytes": 1073741824, "ttl_s": 1e300}"#, UNREAD),
        (r#"{"vram_bytes": 1073741824, "ttl_s": NaN}"#, UNREAD),
        (r#"{"vram_bytes": 1073741824, "ttl_s": "5m"}"#, UNREAD),
        (r#"{"vram_bytes": 1073741824, "time_s": 0}"#, SENSELESS),
        (r#"{"vram_bytes": 1073741824, "time_s": 604801}"#, SENSELESS),
        (r#"{"vram_bytes": 1073741824, "time_s": 18446744073709551615}"#, SENSELESS),
        (r#"{"vram_bytes": 1073741824, "wait_s": 604801}"#, SENSELESS),
        (r#"{"vram_bytes": 1073741824, "wait_s": -1}"#, UNREAD),
    ]);
}

#[test]
fn a_field_out_of_its_range_or_of_a_wrong_type_is_refused() {
    let long_name = json!({"vram_bytes": GIB, "name": "n".repeat(65)}).to_string();
    let long_card = json!({"vram_bytes": GIB, "on": "n".repeat(129)}).to_string();
    check(&[
        (r#"{"vram_bytes": 1073741824, "gpus": 0}"#, SENSELESS),
        (r#"{"vram_bytes": 1073741824, "gpus": 65}"#, SENSELESS),
        (r#"{"vram_bytes": 1073741824, "gpus": 4294967295}"#, SENSELESS),
        (r#"{"vram_bytes": 1073741824, "gpus": 4294967296}"#, UNREAD),
        (r#"{"vram_bytes": 1073741824, "gpus": -1}"#, UNREAD),
        (r#"{"vram_bytes": 1073741824, "gpus": "2"}"#, UNREAD),
        (r#"{"vram_bytes": 1073741824, "gpus": 1.0}"#, UNREAD),
        (r#"{"vram_bytes": 1073741824, "priority": 99}"#, SENSELESS),
        (r#"{"vram_bytes": 1073741824, "priority": -11}"#, SENSELESS),
        (r#"{"vram_bytes": 1073741824, "priority": 99999999999}"#, UNREAD),
        (r#"{"vram_bytes": 1073741824, "tier": "gold"}"#, UNREAD),
        (r#"{"vram_bytes": 1073741824, "tier": 1}"#, UNREAD),
        (r#"{"vram_bytes": 1073741824, "exclusivity": "mine"}"#, UNREAD),
        (r#"{"vram_bytes": 1073741824, "name": "a\u0007b"}"#, SENSELESS),
        (r#"{"vram_bytes": 1073741824, "name": "a\nb"}"#, SENSELESS),
        (r#"{"vram_bytes": 1073741824, "name": "a\u001b[2Jb"}"#, SENSELESS),
        (r#"{"vram_bytes": 1073741824, "name": 7}"#, UNREAD),
        (&long_name, SENSELESS),
        (r#"{"vram_bytes": 1073741824, "on": ""}"#, EITHER),
        (&long_card, EITHER),
        (r#"{"vram_bytes": 1073741824, "pid": -1}"#, UNREAD),
        (r#"{"vram_bytes": 1073741824, "pid": 4294967296}"#, UNREAD),
        (r#"{"vram_bytes": 1073741824, "pid": 0}"#, &["bad_value", "not_your_process"]),
        (r#"{"vram_bytes": 1073741824, "pid": 4294967295}"#, &["bad_value", "not_your_process"]),
        (r#"{"vram_bytes": 1073741824, "pid": 1073741823}"#, &["not_your_process"]),
    ]);
}

#[test]
fn a_request_larger_than_every_gpu_is_refused_and_not_queued() {
    check(&[
        (r#"{"vram_bytes": 1}"#, &["bad_value"]),
        (r#"{"vram_bytes": 1048576}"#, &["below_context"]),
        (r#"{"vram_bytes": 51539607552}"#, &["never_fits"]),
        (r#"{"vram_bytes": 1073741824, "gpus": 2}"#, &["never_fits"]),
        (r#"{"vram_bytes": "whole", "gpus": 64}"#, &["never_fits"]),
    ]);
}

#[test]
fn a_body_that_is_not_a_request_for_a_lease_is_refused() {
    let deep = "[".repeat(100_000);
    let deep_field = format!(r#"{{"vram_bytes": {}"#, r#"{"a":"#.repeat(10_000));
    check(&[
        ("", UNREAD),
        ("{", UNREAD),
        ("nonsense", UNREAD),
        ("null", UNREAD),
        ("[]", UNREAD),
        ("7", UNREAD),
        (r#""16G""#, UNREAD),
        (r#"{"vram_bytes": 1073741824} trailing"#, UNREAD),
        (r#"{"vram_bytes": 1073741824,}"#, UNREAD),
        (r#"{"vram_bytes": 1073741824, "vram_bytes": 2147483648}"#, UNREAD),
        (r#"{"vram_bytes": 1073741824, "colour": "red"}"#, UNREAD),
        (r#"{"vram_bytes": 1073741824, "fence": 1}"#, UNREAD),
        (r#"{"vram": 1073741824}"#, UNREAD),
        (&deep, &["bad_request", "too_large"]),
        (&deep_field, &["bad_request", "too_large"]),
    ]);
}

#[test]
fn bad_utf8_is_refused_in_a_body_and_in_a_path() {
    let service = TestService::start();
    let client = service.client();
    for body in [&b"\xff\xfe"[..], b"{\"vram_bytes\": 1073741824, \"name\": \"\xc3\x28\"}", b"{\"\x80\": 1}"] {
        let answer = client.send("POST", "/v1/leases", &[JSON], body);
        assert_refused("bad UTF-8", &answer, UNREAD);
    }
    for path in ["/v1/leases/%FF", "/v1/leases/L%C3%28", "/v1/leases/%00", "/v1/leases/%2e%2e%2f", "/%ff"] {
        let answer = client.get(path);
        assert_refused(path, &answer, &["bad_request", "no_such_lease", "no_such_path"]);
    }
    // Raw bytes are no HTTP at all: an answer or a closed connection, and nothing worse.
    for bytes in
        [&b"GET /v1/leases/\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n"[..], b"\x00\x01\x02\x03\r\n\r\n", b"\r\n\r\n\r\n"]
    {
        let mut connection = client.connect().expect("the service accepts");
        connection.raw(bytes).and_then(|()| connection.finish()).expect("the service reads");
        if let Ok(answer) = connection.answer() {
            assert!((400..500).contains(&answer.status), "{answer:?}");
        }
    }
    assert_eq!(client.live_ids(), Vec::<String>::new());
}

#[test]
fn bytes_that_are_not_http_are_refused_and_the_connection_is_closed() {
    let service = TestService::start();
    let client = service.client();
    let others: [&[u8]; 6] = [
        b"HELO there\r\n\r\n",
        b"GET /v1/gpus HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /v1/gpus HTTP/3.0\r\n\r\n",
        b"GET /v1/c\xff HTTP/1.1\r\n\r\n",
        b"POST /v1/leases HTTP/1.1\r\ncontent-length: many\r\n\r\n",
        b"POST /v1/leases HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
    ];
    for bytes in others {
        let mut connection = client.connect().expect("the service accepts");
        connection.raw(bytes).expect("the service reads");
        let answer = connection.answer().expect("the service answers");
        assert_eq!(answer.status, 400, "{}: {answer:?}", String::from_utf8_lossy(bytes));
        assert_eq!(answer.header("connection"), Some("close"), "{answer:?}");
    }
    assert_eq!(client.live_ids(), Vec::<String>::new());
}

#[test]
fn an_id_that_is_none_answers_like_a_lease_that_is_not_there() {
    let service = TestService::start();
    let client = service.client();
    let long = "L".repeat(4000);
    for id in ["L0", "L1", "L007", "7", "l", "L-1", "L18446744073709551616", "L1e3", "nothing", "L1%20", long.as_str()]
    {
        for (method, path, body) in [
            ("GET", format!("/v1/leases/{id}"), ""),
            ("GET", format!("/v1/leases/{id}/explain"), ""),
            ("DELETE", format!("/v1/leases/{id}"), ""),
            ("POST", format!("/v1/leases/{id}/renew"), r#"{"fence": 1}"#),
        ] {
            let answer = client.send(method, &path, &[JSON], body.as_bytes());
            assert_refused(&format!("{method} {path}"), &answer, &["no_such_lease"]);
        }
    }
}

#[test]
fn an_unknown_path_is_404_and_a_wrong_method_is_405() {
    let service = TestService::start();
    let client = service.client();
    for path in ["/", "/v1", "/v1/", "/v2/leases", "/v1/lease", "/v1/leases/L1/nothing", "/v1/leases/L1/renew/x"] {
        assert_refused(path, &client.get(path), &["no_such_path"]);
    }
    for (method, path) in [
        ("PUT", "/v1/leases"),
        ("DELETE", "/v1/leases"),
        ("PATCH", "/v1/leases/L1"),
        ("GET", "/v1/leases/L1/renew"),
        ("POST", "/v1/gpus"),
        ("DELETE", "/v1/audit"),
        ("POST", "/healthz"),
        ("NONSENSE", "/v1/usage"),
    ] {
        let answer = client.send(method, path, &[], b"");
        assert_refused(&format!("{method} {path}"), &answer, &["bad_method"]);
        assert!(answer.header("allow").is_some_and(|allow| !allow.is_empty()), "405 names what is allowed: {answer:?}");
    }
}

#[test]
fn a_query_that_makes_no_sense_is_refused() {
    let service = TestService::start();
    let client = service.client();
    let lease = client.grant(&ask(GIB, json!({})));
    for query in ["wait=abc", "wait=-1s", "wait=30", "wait=99999999999999999999s", "wait=1e9s", "wait=%FF"] {
        let path = format!("/v1/leases/{}?{query}", lease.id);
        assert_refused(&path, &client.get(&path), &["bad_request", "bad_value"]);
    }
    for path in [
        "/v1/usage?by=colour",
        "/v1/usage?by=",
        "/v1/audit?after=-1",
        "/v1/audit?after=x",
        "/v1/audit?limit=-1",
        "/v1/audit?limit=99999999999999999999",
    ] {
        assert_refused(path, &client.get(path), &["bad_request", "bad_value"]);
    }
    let path = format!("/v1/leases/{}?fence=-1", lease.id);
    assert_refused(&path, &client.delete(&path), &["bad_request", "bad_value"]);
    assert_eq!(client.lease(&lease.id).state, sublet_wire::LeaseState::Active);
}

#[test]
fn a_renewal_or_a_bind_that_makes_no_sense_changes_nothing() {
    let service = TestService::start();
    let client = service.client();
    let lease = client.grant(&ask(GIB, json!({})));
    let before = client.lease(&lease.id);
    for call in ["renew", "bind"] {
        let path = format!("/v1/leases/{}/{call}", lease.id);
        for body in [
            "",
            "{}",
            "[]",
            "null",
            r#"{"fence": -1, "pid": 1}"#,
            r#"{"fence": "1", "pid": 1}"#,
            r#"{"fence": 1.5, "pid": 1}"#,
            r#"{"fence": null}"#,
            r#"{"fence": 1, "pid": -1}"#,
            r#"{"fence": 1, "pid": 1, "force": true}"#,
        ] {
            let answer = client.send("POST", &path, &[JSON], body.as_bytes());
            assert_refused(&format!("{call} {body}"), &answer, UNREAD);
        }
    }
    let after = client.lease(&lease.id);
    assert_eq!((after.state, after.fence, after.pids), (before.state, before.fence, before.pids));
}

#[test]
fn a_body_of_a_mebibyte_is_413_however_it_is_announced() {
    let service = TestService::start();
    let client = service.client();
    let body = format!(r#"{{"vram_bytes": 1073741824, "name": "{}"}}"#, "n".repeat(1 << 20));
    let answer = client.send("POST", "/v1/leases", &[JSON], body.as_bytes());
    assert_refused("a body of 1 MiB", &answer, &["too_large"]);

    let mut connection = client.connect().expect("the service accepts");
    let mut chunked = head("POST", "/v1/leases", &[JSON, ("transfer-encoding", "chunked")]);
    chunked.extend(format!("\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len()).as_bytes());
    // The service may close before it was sent all of it.
    let _ = connection.raw(&chunked);
    assert_refused("1 MiB in chunks", &connection.answer().expect("an answer"), &["too_large"]);

    let mut connection = client.connect().expect("the service accepts");
    let announced = head("POST", "/v1/leases", &[JSON, ("content-length", "9223372036854775807")]);
    connection.raw(&announced).and_then(|()| connection.raw(b"\r\n{")).expect("the service reads");
    assert_refused("2^63 bytes announced", &connection.answer().expect("an answer"), &["too_large"]);
    assert_eq!(client.live_ids(), Vec::<String>::new());
}

#[test]
fn an_absurd_idempotency_key_is_refused() {
    let service = TestService::start();
    let client = service.client();
    let long = "k".repeat(5000);
    for key in ["", long.as_str()] {
        let answer = client.post_once("/v1/leases", key, &ask(GIB, json!({})));
        assert_refused("the key", &answer, &["bad_request", "bad_value"]);
    }
    assert_eq!(client.live_ids(), Vec::<String>::new());
}

#[test]
fn more_than_one_idempotency_key_is_refused() {
    let service = TestService::start();
    let client = service.client();
    let body = ask(GIB, json!({})).to_string();
    for second in ["two", "one"] {
        let keys = [JSON, ("idempotency-key", "one"), ("Idempotency-Key", second)];
        let answer = client.send("POST", "/v1/leases", &keys, body.as_bytes());
        assert_refused("two keys", &answer, &["bad_request"]);
        let answer = client.send("DELETE", "/v1/leases/L1", &keys[1..], b"");
        assert_refused("two keys of a release", &answer, &["bad_request"]);
    }
    assert_eq!(client.live_ids(), Vec::<String>::new());
}

#[test]
fn the_command_line_refuses_what_makes_no_sense_with_exit_code_64() {
    let service = TestService::start();
    for arguments in [
        &["run", "--vram", "16", "--", "true"][..],
        &["run", "--vram", "0G", "--", "true"],
        &["run", "--vram=-1G", "--", "true"],
        &["run", "--vram", "1e9G", "--", "true"],
        &["run", "--vram", "NaNG", "--", "true"],
        &["run", "--vram", "infG", "--", "true"],
        &["run", "--vram", "99999999T", "--", "true"],
        &["run", "--vram", "sixteen", "--", "true"],
        &["run", "--vram", "48G", "--", "true"],
        &["run", "--vram", "1G", "--time", "30", "--", "true"],
        &["run", "--vram", "1G", "--time", "0s", "--", "true"],
        &["run", "--vram", "1G", "--gpus", "0", "--", "true"],
        &["run", "--vram", "1G", "--gpus", "65", "--", "true"],
        &["run", "--vram", "1G", "--priority", "99", "--", "true"],
        &["run", "--vram", "1G", "--tier", "gold", "--", "true"],
        &["run", "--vram", "1G", "--name", "a\nb", "--", "true"],
        &["run", "--vram", "1G", "--colour", "--", "true"],
        &["run", "--vram", "1G"],
        &["nonsense"],
    ] {
        let output = service.cli(arguments);
        let talk = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {talk}");
        assert!(output.stdout.is_empty(), "stdout is for data: {arguments:?}");
        assert!(!talk.trim().is_empty(), "{arguments:?} says why");
    }
    let output = service.cli(&["run", "--vram", "16", "--", "true"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("16G"), "a hint shows how to write it: {output:?}");
    assert_eq!(service.client().live_ids(), Vec::<String>::new());
}

#[test]
fn the_command_line_says_when_no_daemon_answers_with_exit_code_69() {
    let mut service = TestService::start();
    service.kill();
    for arguments in [&["run", "--vram", "1G", "--", "true"][..], &["ps"], &["gpus"]] {
        let output = service.cli(arguments);
        assert_eq!(output.status.code(), Some(69), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Strings of a schema that say neither by a pattern nor by a list what may be in them.
fn unbounded(document: &Value, at: &str, schema: &Value, found: &mut Vec<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().expect("a name");
        return unbounded(document, at, &document["components"]["schemas"][name], found);
    }
    let kind = schema["type"].to_string();
    if kind.contains("string") && schema["pattern"].is_null() && schema["enum"].is_null() {
        found.push(at.to_owned());
    }
    for several in ["oneOf", "anyOf", "allOf"] {
        for one in schema[several].as_array().into_iter().flatten() {
            unbounded(document, at, one, found);
        }
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        unbounded(document, &format!("{at} {name}"), property, found);
    }
}

#[test]
fn the_description_says_of_every_text_that_a_caller_sends_what_may_be_in_it() {
    let service = TestService::start();
    let document: Value = service.client().get("/openapi.json").read();
    let mut found = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("there are routes") {
        for (method, operation) in methods.as_object().expect("a route has methods") {
            let at = format!("{} {path}", method.to_uppercase());
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let name = parameter["name"].as_str().expect("a parameter has a name");
                unbounded(&document, &format!("{at} {name}"), &parameter["schema"], &mut found);
            }
            let body = &operation["requestBody"]["content"]["application/json"]["schema"];
            unbounded(&document, &at, body, &mut found);
        }
    }
    // A GPU's UUID is the driver's word, and a hook says in its own words why it failed. Of the name of an aside that
    // ends only whether there is such an aside matters.
    let free =
        |at: &String| at.ends_with(" uuid") || at.ends_with("/hook why") || at == "DELETE /v1/gpus/{uuid}/aside key";
    found.retain(|at| !free(at));
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn a_configuration_with_an_unknown_key_is_refused_before_anything_starts() {
    let dir = tempfile::tempdir().expect("a directory can be made");
    std::fs::write(dir.path().join("sublet.toml"), "colour = \"red\"\n").expect("a file can be written");
    let mut command =
        sublet_blackbox::service::serve_command(dir.path(), &dir.path().join("state"), &dir.path().join("s"));
    let output = command.arg("--config").arg(dir.path().join("sublet.toml")).output().expect("sublet can be started");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("colour"), "the key is named: {output:?}");
    let gone = TestClient::new(dir.path().join("s")).try_send("GET", "/readyz", &[], b"");
    assert!(gone.is_err(), "no service was left behind");
}

#[test]
fn an_offer_that_makes_no_sense_is_refused_whatever_became_of_the_lease() {
    let service = TestService::start();
    let client = service.client();
    let lease = client.grant(&ask(GIB, json!({})));
    let accept = |body: serde_json::Value| client.post(&format!("/v1/leases/{}/accept", lease.id), &body);
    let senseless = [json!({"vram_bytes": 1_048_575}), json!({"vram_bytes": GIB, "gpus": 65})];
    senseless.iter().for_each(|body| assert_eq!(accept(body.clone()).code(), "bad_value", "{body}"));
    assert_eq!(client.delete(&format!("/v1/leases/{}", lease.id)).status, 200);
    senseless.iter().for_each(|body| assert_eq!(accept(body.clone()).code(), "bad_value", "{body}, when it is over"));
    assert_eq!(accept(json!({"vram_bytes": GIB})).code(), "lease_ended");
}

#[test]
fn an_empty_object_is_as_good_as_no_body_where_none_is_needed() {
    let service = TestService::start();
    let client = service.client();
    let lease = client.grant(&ask(GIB, json!({})));
    let cards: sublet_wire::Gpus = client.get("/v1/gpus").read();
    let card = &cards.gpus[0].uuid;
    for path in [
        format!("/v1/leases/{}/park", lease.id),
        format!("/v1/leases/{}/resume", lease.id),
        format!("/v1/gpus/{card}/drain"),
        format!("/v1/gpus/{card}/clear"),
    ] {
        let send = |body: &[u8]| client.send("POST", &path, &[], body);
        let bare = send(b"");
        for body in [&b"{}"[..], b" { }\n", b"null"] {
            let with = send(body);
            assert_eq!(with.status, bare.status, "{path}: {}", with.text());
        }
        for body in [&b"{\"a\":1}"[..], b"[]", b"{", b"0", b"{}{}"] {
            assert_eq!(send(body).code(), "bad_request", "{path} took {}", String::from_utf8_lossy(body));
        }
    }
    let over = client.send("DELETE", &format!("/v1/leases/{}", lease.id), &[], b"{}");
    assert_eq!(over.status, 200, "{}", over.text());
}
