//! The proxy with real connections on both sides and simulated leases.

use super::super::waiting::tests::{tell, waiting_for};
use super::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener as Listener, TcpStream as Stream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use sublet_wire::LeaseState;

/// Long enough for a slow machine.
const LONG: Duration = Duration::from_secs(60);

fn waiting_requests(state: LeaseState) -> Arc<WaitingRequests> {
    waiting_for("name:llm", state)
}

/// A proxy that runs until the tests are over.
fn open(waiting: &Arc<WaitingRequests>, to: SocketAddr, change: impl FnOnce(&mut ProxyRoute)) -> SocketAddr {
    let to = to.to_string().as_str().into();
    let wake = Arc::default();
    let mut way =
        ProxyRoute { requests: Arc::clone(waiting), to, wake, wait: LONG, tcp: false, connections: 8, patience: LONG };
    change(&mut way);
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            serve(listener, way, std::future::pending()).await;
        });
    });
    receiver.recv().unwrap()
}

/// A service that calls `serve` with each connection, one after the other, and a channel of what it received.
fn service(mut serve: impl FnMut(&str, &mut Stream) + Send + 'static) -> (SocketAddr, Receiver<String>) {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let (place, (sender, receiver)) = (listener.local_addr().unwrap(), channel());
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut request = head(&mut reader);
            let mut body = vec![0; length(&request)];
            reader.read_exact(&mut body).unwrap();
            request.push_str(&String::from_utf8(body).unwrap());
            let _ = sender.send(request.clone());
            serve(&request, &mut stream);
        }
    });
    (place, receiver)
}

/// A service that answers `ok`.
fn plain_service() -> (SocketAddr, Receiver<String>) {
    service(|_, stream| stream.write_all(b"HTTP/1.1 200 OK\r\nX-Odd-Case: 1\r\nContent-Length: 2\r\n\r\nok").unwrap())
}

fn head(reader: &mut impl BufRead) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "it hung up after {head:?}");
    }
    head
}

fn length(head: &str) -> usize {
    let line =
        head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned));
    line.map_or(0, |length| length.parse().unwrap())
}

struct ProxyTestClient(BufReader<Stream>);

impl ProxyTestClient {
    fn at(place: SocketAddr) -> ProxyTestClient {
        let stream = Stream::connect(place).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        ProxyTestClient(BufReader::new(stream))
    }
    fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }
    /// Reads the head and a body of known length.
    fn answer(&mut self) -> (String, String) {
        let head = head(&mut self.0);
        let mut body = vec![0; length(&head)];
        self.0.read_exact(&mut body).unwrap();
        (head, String::from_utf8(body).unwrap())
    }
    fn ask(&mut self, text: &str) -> (String, String) {
        self.send(text);
        self.answer()
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_passes_is_what_was_sent_but_for_headers_of_one_connection() {
    let (to, requests) = plain_service();
    let mut client = ProxyTestClient::at(open(&waiting_requests(LeaseState::Active), to, |_| {}));
    let (head, body) = client.ask(
        "POST /a?b=c HTTP/1.1\r\nHost: me\r\nX-MiXed: Yes\r\nKeep-Alive: 5\r\nX-Hop: 1\r\nConnection: x-hop\r\nContent-Length: 4\r\n\r\nbody",
    );
    assert_eq!(
        requests.recv().unwrap(),
        "POST /a?b=c HTTP/1.1\r\nHost: me\r\nX-MiXed: Yes\r\nContent-Length: 4\r\n\r\nbody"
    );
    assert_eq!((head.as_str(), body.as_str()), ("HTTP/1.1 200 OK\r\nX-Odd-Case: 1\r\nContent-Length: 2\r\n\r\n", "ok"));
    client.ask("GET http://elsewhere/x HTTP/1.1\r\nhost: me\r\n\r\n");
    assert_eq!(requests.recv().unwrap(), "GET /x HTTP/1.1\r\nhost: me\r\n\r\n");
}

#[test]
fn an_older_request_has_a_host_for_the_service() {
    let (to, requests) = plain_service();
    let mut client = ProxyTestClient::at(open(&waiting_requests(LeaseState::Active), to, |_| {}));
    assert!(client.ask("GET /old HTTP/1.0\r\n\r\n").0.starts_with("HTTP/1.0 200 "));
    assert_eq!(requests.recv().unwrap(), format!("GET /old HTTP/1.1\r\nhost: {to}\r\n\r\n"));
}

#[test]
fn an_answer_with_two_lengths_is_passed_on_with_the_one_that_counts() {
    let (to, _requests) = service(|_, stream| {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(format!("{head}2\r\nok\r\n0\r\n\r\n").as_bytes()).unwrap();
    });
    let mut client = ProxyTestClient::at(open(&waiting_requests(LeaseState::Active), to, |_| {}));
    client.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    let head = head(&mut client.0);
    assert!(head.contains("chunked") && length(&head) == 0, "{head}");
    let mut body = [0; 12];
    client.0.read_exact(&mut body).unwrap();
    assert_eq!(&body, b"2\r\nok\r\n0\r\n\r\n");
}

#[test]
fn another_version_is_no_other_protocol() {
    let (to, requests) = plain_service();
    let mut client = ProxyTestClient::at(open(&waiting_requests(LeaseState::Active), to, |_| {}));
    let wish = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n";
    assert!(client.ask(&format!("GET / HTTP/1.1\r\nHost: x\r\n{wish}\r\n")).0.starts_with("HTTP/1.1 200 "));
    assert_eq!(requests.recv().unwrap(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
}

#[test]
fn every_request_of_a_kept_connection_is_checked() {
    let (to, requests) = plain_service();
    let waiting = waiting_requests(LeaseState::Active);
    let mut client = ProxyTestClient::at(open(&waiting, to, |way| way.wait = Duration::ZERO));
    assert!(client.ask("POST /1 HTTP/1.1\r\nhost: x\r\n\r\n").0.starts_with("HTTP/1.1 200 "));
    tell(&waiting, LeaseState::Parked);
    let (head, body) = client.ask("POST /2 HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("retry-after: 30\r\n"), "{head}");
    assert!(head.contains("content-type: application/problem+json\r\n"), "{head}");
    assert!(body.contains("L1 of name:llm is parked"), "{body}");
    tell(&waiting, LeaseState::Active);
    assert!(client.ask("POST /3 HTTP/1.1\r\nhost: x\r\n\r\n").0.starts_with("HTTP/1.1 200 "));
    let paths = [requests.recv().unwrap(), requests.recv().unwrap()].map(|request| request[..7].to_owned());
    assert_eq!(paths, ["POST /1", "POST /3"], "the service never heard of the second");
}

#[test]
fn an_answer_is_passed_on_piece_by_piece() {
    let (go, gone) = channel::<()>();
    let (to, _requests) = service(move |_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n").unwrap();
        gone.recv().unwrap();
        stream.write_all(b"3\r\ntwo\r\n0\r\n\r\n").unwrap();
    });
    let mut client = ProxyTestClient::at(open(&waiting_requests(LeaseState::Active), to, |_| {}));
    client.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(head(&mut client.0).contains("Transfer-Encoding: chunked\r\n"));
    let mut piece = [0; 8];
    client.0.read_exact(&mut piece).unwrap();
    assert_eq!(&piece, b"3\r\none\r\n", "the second is not said yet");
    go.send(()).unwrap();
    let mut rest = [0; 13];
    client.0.read_exact(&mut rest).unwrap();
    assert_eq!(&rest, b"3\r\ntwo\r\n0\r\n\r\n");
}

#[test]
fn another_protocol_goes_both_ways_after_the_check() {
    let (to, requests) = service(|_, stream| {
        stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n").unwrap();
        let mut heard = [0; 4];
        stream.read_exact(&mut heard).unwrap();
        stream.write_all(&heard).unwrap();
    });
    let waiting = waiting_requests(LeaseState::Parked);
    let wake = WakeList::new(vec!["GET /chat".parse().unwrap()]);
    let mut client = ProxyTestClient::at(open(&waiting, to, |way| way.wake = Arc::new(wake)));
    client.send("GET /chat HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    assert!(requests.recv_timeout(Duration::from_millis(300)).is_err(), "it waits");
    tell(&waiting, LeaseState::Active);
    let head = head(&mut client.0);
    assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("Upgrade: echo\r\n"), "{head}");
    client.send("ping");
    let mut heard = [0; 4];
    client.0.read_exact(&mut heard).unwrap();
    assert_eq!((&heard, requests.recv().unwrap().contains("Connection: Upgrade\r\n")), (b"ping", true));
}

#[test]
fn a_service_that_is_not_there_is_a_bad_gateway_and_other_nonsense_is_refused() {
    let nobody = Listener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let place = open(&waiting_requests(LeaseState::Active), nobody, |_| {});
    let mut client = ProxyTestClient::at(place);
    let (head, body) = client.ask("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 502 ") && body.contains("is the service running"), "{head}{body}");
    assert!(client.ask("CONNECT other:1 HTTP/1.1\r\nhost: x\r\n\r\n").0.starts_with("HTTP/1.1 405 "));
    let long = "x".repeat(HEAD_BYTES_MAX);
    assert!(
        ProxyTestClient::at(place).ask(&format!("GET /{long} HTTP/1.1\r\nhost: x\r\n\r\n")).0.contains(" 4"),
        "too long"
    );
}

#[test]
fn a_service_that_starts_when_it_gets_its_lease_is_waited_for() {
    let place = Listener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let waiting = waiting_requests(LeaseState::Waiting);
    let mut client = ProxyTestClient::at(open(&waiting, place, |_| {}));
    client.send("POST / HTTP/1.1\r\nhost: x\r\n\r\n");
    until("it waits", || !waiting.is_asleep());
    tell(&waiting, LeaseState::Active);
    thread::sleep(Duration::from_millis(300));
    let listener = Listener::bind(place).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    head(&mut BufReader::new(stream.try_clone().unwrap()));
    stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    assert!(client.answer().0.starts_with("HTTP/1.1 204 "));
}

#[test]
fn who_goes_away_waits_no_more_and_who_is_one_too_many_is_told() {
    let (to, requests) = plain_service();
    let waiting = waiting_requests(LeaseState::Parked);
    let place = open(&waiting, to, |way| way.connections = 1);
    let mut client = ProxyTestClient::at(place);
    client.send("POST / HTTP/1.1\r\nhost: x\r\n\r\n");
    until("it waits", || !waiting.is_asleep());
    let (head, body) = ProxyTestClient::at(place).ask("POST / HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 503 ") && body.contains("too_busy"), "{head}{body}");
    // The connection is reset at once, as for a client that was killed with unread data.
    rustix::net::sockopt::set_socket_linger(client.0.get_ref(), Some(Duration::ZERO)).unwrap();
    drop(client);
    until("nobody waits", || waiting.is_asleep());
    tell(&waiting, LeaseState::Active);
    assert!(requests.recv_timeout(Duration::from_millis(300)).is_err(), "nothing of it was passed on");
    assert!(ProxyTestClient::at(place).ask("POST / HTTP/1.1\r\nhost: x\r\n\r\n").0.starts_with("HTTP/1.1 200 "));
}

#[test]
fn who_sends_nothing_more_gets_its_answer_also_if_it_had_to_wait() {
    let (to, requests) = plain_service();
    let waiting = waiting_requests(LeaseState::Active);
    let place = open(&waiting, to, |_| {});
    let check = |wait: bool| {
        tell(&waiting, if wait { LeaseState::Parked } else { LeaseState::Active });
        let mut client = ProxyTestClient::at(place);
        client.send("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nwork");
        client.0.get_mut().shutdown(Shutdown::Write).unwrap();
        if wait {
            until("it waits", || !waiting.is_asleep());
            assert!(requests.recv_timeout(Duration::from_millis(300)).is_err(), "it waits still");
            tell(&waiting, LeaseState::Active);
        }
        let mut all = String::new();
        client.0.read_to_string(&mut all).unwrap();
        assert!(all.starts_with("HTTP/1.1 200 ") && all.ends_with("\r\n\r\nok"), "{all:?}");
        assert!(requests.recv().unwrap().ends_with("work"));
        until("nothing is under way", || waiting.is_asleep());
    };
    check(false);
    check(true);
}

#[test]
fn who_stops_in_the_middle_of_a_request_is_not_waited_for() {
    let waiting = waiting_requests(LeaseState::Active);
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let place = open(&waiting, listener.local_addr().unwrap(), |way| way.patience = Duration::from_millis(200));
    let mut client = ProxyTestClient::at(place);
    client.send("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf");
    let (mut service, _) = listener.accept().unwrap();
    let mut heard = String::new();
    service.read_to_string(&mut heard).unwrap();
    assert!(heard.ends_with("\r\n\r\nhalf"), "{heard}");
    let (head, body) = client.answer();
    assert!(head.starts_with("HTTP/1.1 408 ") && body.contains("too_slow"), "{head}{body}");
    until("nothing is under way", || waiting.is_asleep());
}

#[test]
fn whole_connections_pass_once_the_lease_is_there_or_are_closed() {
    let (to, requests) = plain_service();
    let waiting = waiting_requests(LeaseState::Parked);
    let mut client = ProxyTestClient::at(open(&waiting, to, |way| way.tcp = true));
    client.send("ANY bytes\r\n\r\n");
    assert!(requests.recv_timeout(Duration::from_millis(300)).is_err(), "it waits");
    tell(&waiting, LeaseState::Active);
    assert_eq!(requests.recv().unwrap(), "ANY bytes\r\n\r\n");
    assert_eq!(client.answer().1, "ok");
    tell(&waiting, LeaseState::Parked);
    let place = open(&waiting, to, |way| (way.tcp, way.wait) = (true, Duration::ZERO));
    let mut refused = ProxyTestClient::at(place);
    // Data that was sent and not read makes it a reset.
    assert!(!matches!(refused.0.read(&mut [0; 1]), Ok(n) if n > 0));
}

#[test]
fn a_request_that_needs_no_gpu_passes_while_the_lease_is_parked_and_is_no_use_of_the_service() {
    let (to, requests) = service(|request, stream| {
        match request.starts_with("GET /ws ") {
            true => stream.write_all(b"HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n").unwrap(),
            false => stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap(),
        };
    });
    let waiting = waiting_requests(LeaseState::Parked);
    let place = open(&waiting, to, |_| {});
    let mut client = ProxyTestClient::at(place);
    for request in ["GET /x", "OPTIONS /x"] {
        assert!(client.ask(&format!("{request} HTTP/1.1\r\nhost: x\r\n\r\n")).0.starts_with("HTTP/1.1 200 "));
        assert!(requests.recv().unwrap().starts_with(request));
        assert!(waiting.is_asleep(), "{request}");
    }
    let mut socket = ProxyTestClient::at(place);
    socket.send("GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    assert!(head(&mut socket.0).starts_with("HTTP/1.1 101 "));
    assert!(waiting.is_asleep(), "an open socket");
    tell(&waiting, LeaseState::Active);
    assert!(client.ask("GET /y HTTP/1.1\r\nhost: x\r\n\r\n").0.starts_with("HTTP/1.1 200 "));
    tell(&waiting, LeaseState::Parked);
    assert!(waiting.is_asleep(), "nothing asks for the GPU that the service had when it answered");
}

#[test]
fn a_poll_of_a_parked_service_that_is_not_there_is_told_when_to_come_again() {
    let unused = Listener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let waiting = waiting_requests(LeaseState::Parked);
    let place = open(&waiting, unused, |_| {});
    let (head, body) = ProxyTestClient::at(place).ask("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("retry-after: 30\r\n"), "{head}{body}");
    assert!(waiting.is_asleep());
}
