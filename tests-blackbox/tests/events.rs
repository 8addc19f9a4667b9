//! The stream of events: everything once, in order, also across a lost connection.

use serde_json::{Value, json};
use std::io::ErrorKind;
use sublet_blackbox::{Connection, GIB, LONG, ServiceSetup, TestClient, TestService, ask, until};
use sublet_wire::{AuditLine, AuditPage, Lease};

/// One event as it came.
#[derive(Clone, Debug, PartialEq)]
struct Event {
    id: u64,
    kind: String,
    data: Value,
}

/// A stream, read as far as it was needed.
struct Stream {
    connection: Connection,
    text: String,
}

impl Stream {
    fn open(client: &TestClient, after: Option<u64>) -> Stream {
        let mut connection = client.connect().expect("the service accepts");
        let mut request = "GET /v1/events HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\n".to_owned();
        if let Some(after) = after {
            request.push_str(&format!("last-event-id: {after}\r\n"));
        }
        request.push_str("\r\n");
        connection.raw(request.as_bytes()).expect("the service reads");
        connection.patience(LONG).expect("a timeout can be set");
        let (status, headers) = connection.head().expect("the service answers");
        assert_eq!(status, 200, "{headers:?}");
        assert!(headers.iter().any(|(name, value)| name == "content-type" && value.starts_with("text/event-stream")));
        Stream { connection, text: String::new() }
    }
    /// The next event. Comments in the stream only show that the service is there.
    fn next(&mut self) -> Event {
        self.next_or_end().expect("the stream does not end")
    }
    /// The next event, or none where the service ended the stream.
    fn next_or_end(&mut self) -> Option<Event> {
        loop {
            while let Some(end) = self.text.find("\n\n") {
                let block: String = self.text.drain(..end + 2).collect();
                if let Some(event) = parse(&block) {
                    return Some(event);
                }
            }
            let chunk = match self.connection.chunk() {
                Ok(chunk) => chunk?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("no event arrived in time"),
                Err(_) => return None,
            };
            self.text.push_str(&String::from_utf8(chunk).expect("events are UTF-8").replace("\r\n", "\n"));
        }
    }
    /// All events up to the `count`-th of this kind.
    fn until(&mut self, kind: &str, count: usize) -> Vec<Event> {
        let mut events = Vec::new();
        while events.iter().filter(|event: &&Event| event.kind == kind).count() < count {
            events.push(self.next());
        }
        events
    }
}

fn parse(block: &str) -> Option<Event> {
    let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim));
    let data = field("data")?;
    Some(Event {
        // A gap is no line of the trail, and may have no number.
        id: field("id").map_or(0, |id| id.parse().expect("an id is a number")),
        kind: field("event").expect("an event has a kind").to_owned(),
        data: serde_json::from_str(data).expect("an event's data is JSON"),
    })
}

fn audit(client: &TestClient, after: u64) -> Vec<AuditLine> {
    let mut lines = Vec::new();
    let mut next = Some(after);
    while let Some(after) = next {
        let page: AuditPage = client.get(&format!("/v1/audit?after={after}&limit=7")).read();
        lines.extend(page.lines);
        next = page.next;
    }
    lines
}

fn ids(events: &[Event]) -> Vec<u64> {
    events.iter().map(|event| event.id).collect()
}

/// Requests and releases leases one after the other. Some requests may wait: what was just released counts until the
/// next reading of the GPU.
fn busy(client: &TestClient, times: usize) {
    for _ in 0..times {
        let lease: Lease = client.post("/v1/leases", &ask(GIB, json!({}))).read();
        assert_eq!(client.delete(&format!("/v1/leases/{}", lease.id)).status, 200);
    }
}

#[test]
fn a_client_ahead_of_the_log_gets_the_end_of_the_log_and_continues_there() {
    let service = TestService::start();
    let client = service.client();
    busy(&client, 2);
    let last = audit(&client, 0).last().expect("there are lines").seq;
    let mut stream = Stream::open(&client, Some(last + 500));
    let gap = stream.next();
    assert_eq!(gap.kind, "gap");
    assert_eq!(gap.data["seen"], json!(last + 500));
    let ends = gap.data["last"].as_u64().expect("it says where the log ends");
    assert!(ends >= last && gap.id == ends, "a client that comes back goes on from there: {gap:?}");
    client.grant(&ask(GIB, json!({})));
    let events = stream.until("grant", 1);
    assert_eq!(events[0].id, ends + 1, "{events:?}");
    // A client that has seen exactly all gets only new events.
    let last = audit(&client, 0).last().expect("there are lines").seq;
    let mut stream = Stream::open(&client, Some(last));
    client.grant(&ask(GIB, json!({})));
    assert_eq!(stream.next().id, last + 1);
}

#[test]
fn events_arrive_as_they_happen_and_agree_with_the_audit_trail() {
    let service = TestService::start();
    let client = service.client();
    let mut stream = Stream::open(&client, None);
    let lease = client.grant(&ask(20 * GIB, json!({})));
    let waiter = client.queue(&ask(20 * GIB, json!({})));
    client.post(&format!("/v1/leases/{}/renew", lease.id), &json!({"fence": lease.fence}));
    client.delete(&format!("/v1/leases/{}", lease.id));
    let events = stream.until("grant", 2);
    assert!(ids(&events).is_sorted_by(|a, b| a < b), "ids grow: {:?}", ids(&events));
    let kinds: Vec<&str> = events.iter().map(|event| event.kind.as_str()).collect();
    let at =
        |kind: &str| kinds.iter().position(|other| *other == kind).unwrap_or_else(|| panic!("no {kind}: {kinds:?}"));
    assert!(at("queue") < at("grant") && at("grant") < at("end"), "{kinds:?}");
    let last = events.last().expect("there are events");
    assert!(last.data.to_string().contains(&waiter.id), "the last grant is the waiter's: {last:?}");

    let lines = audit(&client, events[0].id - 1);
    let said: Vec<(u64, &str)> = events.iter().map(|event| (event.id, event.kind.as_str())).collect();
    let written: Vec<(u64, &str)> = lines.iter().map(|line| (line.seq, line.kind.as_str())).take(said.len()).collect();
    assert_eq!(said, written);
}

#[test]
fn a_stream_that_is_taken_up_again_neither_loses_nor_repeats() {
    let mut service = TestService::start();
    let client = service.client();
    let mut stream = Stream::open(&client, None);
    busy(&client, 10);
    let all = stream.until("end", 10);
    let first = all[0].id;
    drop(stream);

    for after in [0, 1, all.len() / 2, all.len() - 2] {
        let mut again = Stream::open(&client, Some(all[after].id));
        let rest: Vec<Event> = (after + 1..all.len()).map(|_| again.next()).collect();
        assert_eq!(rest, all[after + 1..], "taken up after event {after}");
    }

    // Events while no client listens, and a crash in between, change nothing.
    let last = all.last().expect("there are events").id;
    busy(&client, 3);
    service.kill();
    service.restart();
    let mut again = Stream::open(&client, Some(last));
    busy(&client, 2);
    let later = again.until("end", 5);
    let seen: Vec<u64> = ids(&all).into_iter().chain(ids(&later)).collect();
    let written: Vec<u64> = audit(&client, first - 1).iter().map(|line| line.seq).take(seen.len()).collect();
    assert_eq!(seen, written, "every line of the trail came exactly once");
}

#[test]
fn a_listener_that_does_not_read_gets_a_gap_or_is_dropped_and_delays_no_other() {
    let service = TestService::start();
    let client = service.client();
    let mut deaf = Stream::open(&client, None);
    busy(&client, 300);
    let written: Vec<u64> = audit(&client, 0).iter().map(|line| line.seq).collect();
    // Now it listens: every line of the trail, or a word that some are missing, or the end.
    let first = deaf.next();
    let start = written.iter().position(|seq| *seq == first.id).expect("an event is a line of the trail");
    for seq in &written[start + 1..] {
        match deaf.next_or_end() {
            Some(event) if event.kind != "gap" => assert_eq!(event.id, *seq, "one is missing, and no gap was told"),
            _ => return,
        }
    }
}

#[test]
fn lines_that_were_folded_away_are_reported_as_a_gap() {
    let config = Some("history = 1000\n".to_owned());
    let service = TestService::start_with(ServiceSetup { config, ..ServiceSetup::default() });
    let client = service.client();
    let mut deaf = Stream::open(&client, None);
    busy(&client, 1);
    let heard = deaf.next();
    // Not read from here on: what its socket does not hold is folded away under it.
    until("the oldest lines are folded away", LONG, || {
        busy(&client, 100);
        // The daemon's own first lines stay.
        let first = client.get(&format!("/v1/audit?limit=1&after={}", heard.id)).read::<AuditPage>().lines[0].seq;
        if first > heard.id + 2000 { Ok(()) } else { Err(first) }
    });
    let mut again = Stream::open(&client, Some(heard.id));
    let gap = again.next();
    assert_eq!(gap.kind, "gap");
    assert_eq!(gap.data["from"], heard.id + 1);
    let next = again.next();
    assert_eq!(gap.data["to"], next.id - 1, "the next there is follows: {next:?}");
    let mut last = heard.id;
    let mut told = 0;
    while last < next.id {
        let event = deaf.next();
        match event.kind.as_str() {
            "gap" => {
                assert_eq!(event.data["from"], last + 1);
                last = event.data["to"].as_u64().expect("a number");
                told += 1;
            }
            _ => {
                assert_eq!(event.id, last + 1, "one is missing, and no gap was told");
                last = event.id;
            }
        }
    }
    assert!(told <= 1, "one gap, if its socket was full before: {told}");
}

#[test]
fn a_nonsensical_last_event_id_is_refused() {
    let service = TestService::start();
    let client = service.client();
    for id in ["abc", "-1", "1.5"] {
        let answer = client.send("GET", "/v1/events", &[("last-event-id", id)], b"");
        assert!(["bad_request", "bad_value"].contains(&answer.code()), "{}", answer.text());
    }
}

#[test]
fn the_audit_trail_is_one_chain_that_verify_confirms() {
    let mut service = TestService::start();
    let client = service.client();
    busy(&client, 5);
    service.kill();
    service.restart();
    busy(&client, 5);
    let lines = audit(&client, 0);
    assert!(lines.windows(2).all(|pair| pair[0].seq < pair[1].seq), "numbers grow");
    let mut hashes: Vec<&str> = lines.iter().map(|line| line.hash.as_str()).collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), lines.len(), "every line has a hash of its own");
    assert!(service.stop().success());
    let verify =
        service.cli(&["journal", "verify", "--state-dir", &service.state_dir().display().to_string(), "--json"]);
    assert!(verify.status.success(), "{}", String::from_utf8_lossy(&verify.stderr));
}
