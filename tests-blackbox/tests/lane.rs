//! Plain asks and releases are read by another piece of the service than everything else is: nobody can tell.

use serde_json::json;
use sublet_blackbox::http::head;
use sublet_blackbox::{Answer, Connection, GIB, Service, ask};
use sublet_wire::{Lease, LeaseState};

/// A header that says nothing, but makes a request one that is not plain.
const NOT_PLAIN: (&str, &str) = ("x-nothing", "1");

fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let length = body.len().to_string();
    let mut all = vec![("content-length", length.as_str())];
    all.extend(headers);
    let end: &[u8] = b"\r\n";
    [head(method, path, &all), end.to_vec(), body.as_bytes().to_vec()].concat()
}

/// What differs from one lease, and from one moment, to the next.
const OWN: [&str; 9] = [
    "id",
    "epoch",
    "asked_unix_s",
    "granted_unix_s",
    "on_cards_unix_s",
    "expires_unix_s",
    "remaining_s",
    "at_unix_s",
    "mark",
];

/// An answer without that: its status, its headers in their order, its body with its fields in theirs.
fn shape(answer: &Answer) -> String {
    let own = |name: &str| name == "date" || name == "content-length";
    let headers: Vec<_> = answer.headers.iter().filter(|(name, _)| !own(name)).collect();
    let mut body = answer.text();
    let length = answer.header("content-length").expect("there is a length").to_owned();
    assert_eq!(length, body.len().to_string());
    for field in OWN {
        let Some((before, rest)) = body.split_once(&format!(r#""{field}":"#)) else { continue };
        let end = rest.find([',', '}']).expect("a field ends");
        body = format!(r#"{before}"{field}":…{}"#, &rest[end..]);
    }
    format!("{} {headers:?}\n{body}", answer.status)
}

fn answer(connection: &mut Connection, bytes: &[u8]) -> Answer {
    connection.raw(bytes).expect("the service reads");
    connection.answer().expect("the service answers")
}

#[test]
fn the_same_request_gets_the_same_answer_whoever_reads_it() {
    let service = Service::start();
    let client = service.client();
    let good = ask(GIB, json!({"tier": "batch", "name": "one"})).to_string();
    let asks = [
        good.as_str(),
        r#"{"vram_bytes": 0}"#,
        r#"{"vram_bytes": 1073741824, "unknown": 1}"#,
        r#"{"vram_bytes": 1073741824} x"#,
        r#"{"vram_bytes": "much"}"#,
        r#"{"vram_bytes": 1073741824, "pid": 2147483647}"#,
        r#"{"vram_bytes": 109951162777600}"#,
        "",
        "[",
        "\u{fffd}",
    ];
    let releases = [("L999999", ""), ("nothing", ""), ("L18446744073709551616", ""), ("L1", "x")];
    let all = asks.iter().map(|body| ("POST", "/v1/leases".to_owned(), *body));
    let all = all.chain(releases.iter().map(|(id, body)| ("DELETE", format!("/v1/leases/{id}"), *body)));
    let mut plain = client.connect().expect("the service accepts");
    let mut other = client.connect().expect("the service accepts");
    for (method, path, body) in all {
        let here = answer(&mut plain, &request(method, &path, &[], body));
        let there = answer(&mut other, &request(method, &path, &[NOT_PLAIN], body));
        assert_eq!(shape(&here), shape(&there), "{method} {path} {body}");
        assert!(here.header("date").is_some_and(|date| date.ends_with(" GMT")), "{here:?}");
    }
    // What was granted can be given back, once, by either.
    for lease in client.live_ids() {
        let path = format!("/v1/leases/{lease}");
        let (first, second) = (request("DELETE", &path, &[], ""), request("DELETE", &path, &[NOT_PLAIN], ""));
        assert_eq!(answer(&mut plain, &first).status, 200);
        client.await_lease("its card was seen again", &lease, |lease| lease.state == LeaseState::Ended);
        let (here, there) = (answer(&mut plain, &first), answer(&mut other, &second));
        assert_eq!(shape(&here), shape(&there), "{path}");
        assert_eq!(here.code(), "lease_ended");
    }
}

#[test]
fn a_connection_goes_on_whatever_comes_on_it() {
    let service = Service::start();
    let client = service.client();
    let plain = request("POST", "/v1/leases", &[], &ask(GIB, json!({})).to_string());
    let keyed = request("POST", "/v1/leases", &[("idempotency-key", "k")], &ask(GIB, json!({})).to_string());
    let mut connection = client.connect().expect("the service accepts");
    let first: Lease = answer(&mut connection, &plain).read();
    let second: Lease = answer(&mut connection, &plain).read();
    assert_ne!(first.id, second.id);
    // From here on it is not plain any more, and nothing is lost, repeated or out of turn.
    let third: Lease = answer(&mut connection, &keyed).read();
    let again: Lease = answer(&mut connection, &keyed).read();
    assert_eq!(third.id, again.id);
    let fourth: Lease = answer(&mut connection, &plain).read();
    assert_eq!(client.live_ids(), [first.id, second.id, third.id, fourth.id.clone()]);

    // Two at once, and one in pieces.
    let release = request("DELETE", &format!("/v1/leases/{}", fourth.id), &[], "");
    let mut connection = client.connect().expect("the service accepts");
    connection.raw(&[plain.clone(), release].concat()).expect("the service reads");
    let fifth: Lease = connection.answer().expect("the first is answered").read();
    let ended: Lease = connection.answer().expect("the second is answered").read();
    assert_eq!(ended.id, fourth.id);
    assert!(fifth.epoch > fourth.epoch);
    let mut connection = client.connect().expect("the service accepts");
    for part in plain.chunks(17) {
        connection.raw(part).expect("the service reads");
    }
    let sixth: Lease = connection.answer().expect("it is answered").read();
    assert!(sixth.epoch > fifth.epoch);
}
