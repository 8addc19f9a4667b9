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

/// An answer without what differs from one lease, and from one moment, to the next.
fn shape(answer: &Answer) -> String {
    let headers = answer.headers.iter().filter(|(name, _)| name != "date");
    let text = format!("{} {:?}\n{}", answer.status, headers.collect::<Vec<_>>(), answer.text());
    let mut shape = String::new();
    for letter in text.chars() {
        let letter = if letter.is_ascii_digit() { '0' } else { letter };
        if letter != '0' || !shape.ends_with('0') {
            shape.push(letter);
        }
    }
    // A mark's digits are letters too; times have a fraction or none.
    let shape = shape.replace("0.0", "0");
    match shape.split_once(r#""mark":""#) {
        Some((before, mark)) => format!("{before}{}", mark.trim_start_matches(|c: char| c.is_ascii_hexdigit())),
        None => shape,
    }
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
        assert_eq!(shape(&here), shape(&there));
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
