//! Connections: each request is answered, a client that is gone keeps no seat, and no user or address can take the seats
//! of others.

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send, socket_with,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use sublet_blackbox::http::{JSON, head};
use sublet_blackbox::programs::WrappedProgram;
use sublet_blackbox::user::{as_user, is_root};
use sublet_blackbox::{Connection, GIB, LONG, MIB, ServiceSetup, TestClient, TestGpu, TestService, ask, until};
use sublet_wire::{Lease, LeaseState};

const ALICE: u32 = 12345;
const BOB: u32 = 12346;
const CAROL: u32 = 12347;

/// Descriptors that the daemon has open.
fn descriptors(service: &TestService) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", service.pid())).expect("an own child can be looked at").count()
}

/// A request of a client that then closes its sending half, as `nc -N` and `socat` do.
fn half_closed(client: &TestClient, request: &[u8]) -> Connection {
    let mut connection = client.connect().expect("the service accepts");
    connection.raw(request).expect("the service reads");
    connection.finish().expect("one half can be closed");
    connection
}

#[test]
fn a_request_is_answered_after_its_client_closed_the_sending_half() {
    let service = TestService::start();
    let client = service.client();
    let body = ask(MIB * 300, json!({ "wait_s": 60 })).to_string();
    let mut request = head("POST", "/v1/leases", &[JSON, ("content-length", &body.len().to_string())]);
    request.extend(format!("\r\n{body}").as_bytes());
    let (client, request) = (&client, &request);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                for n in 0..50 {
                    let answer = half_closed(client, request).answer();
                    let answer = answer.unwrap_or_else(|error| panic!("request {n} is not answered: {error}"));
                    let lease: Lease = answer.read();
                    assert_eq!(client.delete(&format!("/v1/leases/{}", lease.id)).status, 200);
                }
            });
        }
    });
    until("all leases are over", LONG, || match client.live_ids() {
        live if live.is_empty() => Ok(()),
        live => Err(live),
    });
}

#[test]
fn a_long_poll_is_answered_after_its_client_closed_the_sending_half() {
    let service = TestService::start();
    let client = service.client();
    let first = client.grant(&ask(20 * GIB, json!({})));
    let waiter = client.queue(&ask(20 * GIB, json!({})));
    let mut poll = half_closed(&client, &client.head("GET", &format!("/v1/leases/{}?wait=60s", waiter.id)));
    // A poll that ended with its sending half would have ended by now.
    poll.patience(Duration::from_secs(2)).expect("a timeout can be set");
    let early = poll.head();
    assert!(early.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "{early:?}");
    poll.patience(LONG).expect("a timeout can be set");
    assert_eq!(client.delete(&format!("/v1/leases/{}", first.id)).status, 200);
    let lease: Lease = poll.answer().expect("the poll is answered").read();
    assert_eq!(lease.state, LeaseState::Active);
}

/// Opens long polls and event streams, closes them, and waits until the daemon has closed its ends too.
fn gone_clients_are_noticed(service: &TestService, client: &TestClient, poll: &str, within: Duration) {
    let holder = service.client().grant(&ask(20 * GIB, json!({})));
    let waiter = client.queue(&ask(20 * GIB, json!({})));
    let before = descriptors(service);
    // Those of the calls that were just answered may still be among them.
    let (open_again, closed) = (before + 36, before + 4);
    let requests = [format!("/v1/leases/{}?wait={poll}", waiter.id), "/v1/events".to_owned()];
    let crowd: Vec<Connection> = (0..40)
        .map(|n| {
            let mut connection = client.connect().expect("the service accepts");
            connection.raw(&client.head("GET", &requests[n % 2])).expect("the service reads");
            connection
        })
        .collect();
    until("the daemon has them all", LONG, || match descriptors(service) {
        open if open >= open_again => Ok(()),
        open => Err(open),
    });
    drop(crowd);
    until("the daemon has closed its ends", within, || match descriptors(service) {
        open if open <= closed => Ok(()),
        open => Err((open, closed)),
    });
    for id in [waiter.id, holder.id] {
        assert_eq!(service.client().delete(&format!("/v1/leases/{id}")).status, 200);
    }
}

#[test]
fn a_client_of_the_socket_that_is_gone_keeps_no_seat() {
    let service = TestService::start();
    // A long poll ends by itself after 60 s.
    gone_clients_are_noticed(&service, &service.client(), "60s", Duration::from_secs(30));
}

/// A service, if this test can be several users.
fn for_users(test: &str, setup: ServiceSetup) -> Option<TestService> {
    if !is_root() {
        eprintln!("skipped: {test} needs root to be several users");
        return None;
    }
    let service = TestService::start_with(setup);
    // After the service was started, which must manage with the limit it was given.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("the limit can be raised");
    Some(service)
}

/// Connections of a user, each of which has sent these bytes.
fn crowd(client: &TestClient, uid: u32, count: usize, bytes: &[u8]) -> Vec<Connection> {
    as_user(uid, || {
        let open = |_| {
            let mut connection = client.connect().expect("the service accepts, or refuses");
            // A service at its limit may have closed it already.
            let _ = connection.raw(bytes);
            connection
        };
        (0..count).map(open).collect()
    })
}

#[test]
fn two_users_with_thousands_of_event_streams_do_not_shut_out_root_or_another_user() {
    let test = "two_users_with_thousands_of_event_streams_do_not_shut_out_root_or_another_user";
    let Some(service) = for_users(test, ServiceSetup::default()) else { return };
    let client = service.client();
    let stream = client.head("GET", "/v1/events");
    let _crowds = [ALICE, BOB].map(|uid| crowd(&client, uid, 2_100, &stream));
    for n in 0..50 {
        for uid in [0, CAROL] {
            let answer = as_user(uid, || client.try_send("GET", "/v1/gpus", &[], b""));
            let answer = answer.unwrap_or_else(|error| panic!("call {n} of user {uid}: {error}"));
            assert_eq!(answer.status, 200, "call {n} of user {uid}: {}", answer.text());
        }
    }
}

#[test]
fn a_user_without_seats_gets_the_limit_by_name_and_health_is_answered() {
    let test = "a_user_without_seats_gets_the_limit_by_name_and_health_is_answered";
    let Some(service) = for_users(test, ServiceSetup::default()) else { return };
    let client = service.client();
    let half = b"GET /v1/gpus HTTP/1.1\r\nhost: x\r\nx-lo";
    let mut held = crowd(&client, ALICE, 512, half);
    let get =
        |uid, path: &str| as_user(uid, || client.try_send("GET", path, &[], b"")).map_err(|error| error.to_string());
    let refused = until("all seats of the user are taken", LONG, || match get(ALICE, "/v1/gpus")? {
        answer if answer.status == 503 => Ok::<_, String>(answer.problem()),
        answer => {
            // This call may have had the seat of one of them.
            held.extend(crowd(&client, ALICE, 1, half));
            Err(answer.text())
        }
    });
    assert_eq!(refused.code, sublet_wire::Code::TooBusy);
    assert_eq!(refused.retry_after_s, Some(5));
    assert_eq!(refused.detail, "user 12345 has 512 open connections, and may have no more at a time");
    // More of them, which never end their requests, do not keep health checks away.
    let _more = crowd(&client, ALICE, 200, b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-lo");
    for path in ["/healthz", "/readyz"] {
        for uid in [ALICE, BOB, 0] {
            let answer = get(uid, path).unwrap_or_else(|error| panic!("{path} of user {uid}: {error}"));
            assert_eq!(answer.status, 200, "{path} of user {uid}: {}", answer.text());
        }
    }
    drop(held);
    until("there are seats again", LONG, || match get(ALICE, "/v1/gpus")? {
        answer if answer.status == 200 => Ok::<_, String>(()),
        answer => Err(answer.text()),
    });
}

#[test]
fn event_streams_and_long_polls_of_a_user_have_limits_of_their_own() {
    let test = "event_streams_and_long_polls_of_a_user_have_limits_of_their_own";
    let Some(service) = for_users(test, ServiceSetup::default()) else { return };
    let client = service.client();
    let holder = client.grant(&ask(20 * GIB, json!({})));
    let waiter = as_user(ALICE, || client.queue(&ask(20 * GIB, json!({}))));
    let poll = format!("/v1/leases/{}?wait=60s", waiter.id);
    let cases = [
        ("/v1/events", 64, "uid:12345 has 64 open event streams, and may have no more at a time"),
        (poll.as_str(), 256, "uid:12345 has 256 calls that wait for a lease, and may have no more at a time"),
    ];
    for (path, limit, sentence) in cases {
        let request = client.head("GET", path);
        let mut held = crowd(&client, ALICE, limit, &request);
        let problem = until("as many as may be are open", LONG, || {
            let mut one = crowd(&client, ALICE, 1, &request).remove(0);
            one.patience(Duration::from_millis(500)).expect("a timeout can be set");
            match one.answer() {
                Ok(answer) if answer.status == 503 => Ok(answer.problem()),
                other => {
                    held.push(one);
                    Err(format!("{other:?}"))
                }
            }
        });
        assert_eq!((problem.code, problem.detail.as_str()), (sublet_wire::Code::TooBusy, sentence));
        assert_eq!(problem.retry_after_s, Some(5));
        assert_eq!(as_user(ALICE, || client.get("/v1/gpus")).status, 200, "its other calls are answered");
        let mut others = crowd(&client, BOB, 1, &client.head("GET", "/v1/events")).remove(0);
        assert_eq!(others.head().expect("an answer").0, 200, "another user has its own limit");
        drop(held);
        until("the seats of clients that are gone are free", LONG, || {
            let mut one = crowd(&client, ALICE, 1, &client.head("GET", "/v1/events")).remove(0);
            match one.head().expect("an answer").0 {
                200 => Ok(()),
                status => Err(status),
            }
        });
    }
    assert_eq!(client.delete(&format!("/v1/leases/{}", holder.id)).status, 200);
}

#[test]
fn with_few_descriptors_the_limits_are_smaller_and_the_log_says_so() {
    let test = "with_few_descriptors_the_limits_are_smaller_and_the_log_says_so";
    let few = ["sh", "-c", "ulimit -n 600; exec \"$@\"", "sh"].map(str::to_owned);
    let Some(service) = for_users(test, ServiceSetup { through: few.into(), ..ServiceSetup::default() }) else {
        return;
    };
    let client = service.client();
    assert!(service.log().contains("this process may open 600 files"), "{}", service.log());
    let _crowds = [ALICE, BOB].map(|uid| crowd(&client, uid, 400, b"GET /v1/gpus HTTP/1.1\r\nhost: x\r\nx-lo"));
    for uid in [0, CAROL] {
        for _ in 0..20 {
            let answer = as_user(uid, || client.get("/v1/gpus"));
            assert_eq!(answer.status, 200, "user {uid}: {}", answer.text());
        }
    }
}

fn serve_tcp() -> TestService {
    let config = "[tcp]\nlisten = \"127.0.0.1:0\"\nrequests_per_s = 1000000\nburst = 1000000\n";
    TestService::start_with(ServiceSetup { config: Some(config.into()), ..ServiceSetup::default() })
}

/// A connection to the service from this address of the host.
fn connect_from(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &SocketAddr::new(from.into(), 0)).expect("an address of this host");
    connect(&socket, &to).expect("the service accepts");
    TcpStream::from(socket)
}

#[test]
fn addresses_without_a_token_do_not_shut_out_callers_that_have_one() {
    let service = serve_tcp();
    let (secret, _) = service.client().make_token(json!({ "tenant": "user:ana" }));
    let remote = service.remote().with_token(&secret);
    let flood: Vec<TcpStream> = (2..=6)
        .flat_map(|host| (0..260).map(move |_| Ipv4Addr::new(127, 0, 0, host)))
        .map(|from| connect_from(from, service.address()))
        .collect();
    for n in 0..135 {
        let answer = remote.try_send("GET", "/v1/gpus", &[], b"");
        let answer = answer.unwrap_or_else(|error| panic!("call {n}: {error}"));
        assert_eq!(answer.status, 200, "call {n}: {}", answer.text());
    }
    // From the address of a flood, too.
    let own: Vec<TcpStream> = (0..260).map(|_| connect_from(Ipv4Addr::LOCALHOST, service.address())).collect();
    assert_eq!(remote.get("/v1/gpus").status, 200);
    assert_eq!(service.remote().get("/healthz").status, 200);
    drop((flood, own));
}

#[test]
fn a_connection_that_shows_no_token_is_closed_soon_and_one_that_did_stays() {
    let service = serve_tcp();
    let (secret, _) = service.client().make_token(json!({ "tenant": "user:ana" }));
    let mut proven = service.remote().connect().expect("the service accepts");
    let bearer = format!("Bearer {secret}");
    let mut call = || proven.send("GET", "/v1/gpus", &[("authorization", &bearer)], b"");
    assert_eq!(call().expect("an answer").status, 200);
    let mut unproven = connect_from(Ipv4Addr::LOCALHOST, service.address());
    unproven.set_read_timeout(Some(LONG)).expect("a timeout can be set");
    let begun = Instant::now();
    let ended = unproven.read(&mut [0; 64]);
    assert!(
        matches!(&ended, Ok(0)) || ended.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConnectionReset),
        "{ended:?}"
    );
    // Sooner than any idle connection is closed.
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    assert_eq!(call().expect("its connection is still open").status, 200);
}

#[test]
fn a_tenant_has_no_more_connections_over_tcp_than_its_share() {
    let service = serve_tcp();
    let with = |tenant: &str| service.remote().with_token(&service.client().make_token(json!({ "tenant": tenant })).0);
    let (ana, ben) = (with("user:ana"), with("user:ben"));
    let mut held = Vec::new();
    let refused = loop {
        assert!(held.len() < 1_000, "there is a limit");
        let mut connection = ana.connect().expect("the service accepts");
        connection.raw(&ana.head("GET", "/v1/gpus")).expect("the service reads");
        let answer = connection.answer().expect("an answer");
        match answer.status {
            200 => held.push(connection),
            _ => break answer.problem(),
        }
    };
    assert_eq!(held.len(), 128);
    assert_eq!(refused.detail, "user:ana has 128 open connections over TCP, and may have no more at a time");
    assert_eq!((refused.code, refused.retry_after_s), (sublet_wire::Code::TooBusy, Some(5)));
    assert_eq!(ben.get("/v1/gpus").status, 200);
}

#[test]
fn a_client_over_tcp_that_is_gone_keeps_no_seat() {
    let service = serve_tcp();
    let (secret, _) = service.client().make_token(json!({ "tenant": "user:ana" }));
    // A close cannot be told from a closed sending half before something is written to it.
    gone_clients_are_noticed(&service, &service.remote().with_token(&secret), "10s", LONG);
}

#[test]
fn a_user_that_connects_too_often_is_refused_with_the_reason() {
    if !is_root() {
        return eprintln!("skipped: only root can be another user");
    }
    let service = TestService::start();
    let client = service.client();
    // The limit is 1,000 at once and 500 a second. Nothing is read before 100 more are there, so that even a slow
    // machine connects faster.
    let refused = as_user(ALICE, || {
        until("it connected too often", LONG, || {
            let mut connections: Vec<Connection> =
                (0..100).map(|_| client.connect().expect("the service accepts")).collect();
            let mut last = connections.pop().expect("100 of them");
            last.patience(Duration::from_millis(1)).expect("a timeout can be set");
            last.answer()
        })
    });
    assert_eq!((refused.status, refused.code()), (429, "too_many_requests"), "{}", refused.text());
    assert!(refused.text().contains("use one connection for many calls"), "{}", refused.text());
    assert_eq!(as_user(BOB, || client.get("/v1/queue").status), 200);
}

/// Connects to the socket of the library without end and says nothing, until told to stop.
fn flood_library_socket(socket: &std::path::Path, stop: &AtomicBool) -> usize {
    let address = SocketAddrUnix::new(socket).expect("a path");
    let (mut held, mut connected) = (VecDeque::new(), 0);
    while !stop.load(Ordering::Relaxed) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let line = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket");
        match connect(&line, &address) {
            Ok(()) => {
                connected += 1;
                held.push_back(line);
            }
            Err(_) => thread::yield_now(),
        }
        if held.len() > 500 {
            held.pop_front();
        }
    }
    connected
}

#[test]
fn a_user_that_connects_to_the_librarys_socket_without_end_delays_no_park_of_another() {
    if !is_root() {
        return eprintln!("skipped: only root can be another user");
    }
    let config = "[parking]\nram = \"4G\"\nkeep_free = \"256M\"\nready = \"off\"\n";
    let setup =
        ServiceSetup { gpu: TestGpu::Named("soft:1x4GiB"), config: Some(config.to_owned()), ..ServiceSetup::default() };
    let service = TestService::start_with(setup);
    let client = service.client();
    let job = WrappedProgram::start_holding(&service, "1G", "64MiB", &["--idle"]);
    let library_socket = client.socket().with_extension("shim");
    assert!(library_socket.exists(), "{}", library_socket.display());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let flood = scope.spawn(|| as_user(BOB, || flood_library_socket(&library_socket, &stop)));
        let parked = panic::catch_unwind(panic::AssertUnwindSafe(|| {
            for _ in 0..3 {
                assert!(service.cli(&["park", "L1"]).status.success());
                client.await_lease("it is parked", "L1", |lease| lease.state == LeaseState::Parked);
                assert!(service.cli(&["resume", "L1"]).status.success());
                client.await_lease("it is back", "L1", |lease| lease.state == LeaseState::Active);
            }
        }));
        assert!(descriptors(&service) < 600, "lines that say nothing are few");
        stop.store(true, Ordering::Relaxed);
        assert!(flood.join().expect("a thread") > 100, "it was a flood");
        parked.unwrap_or_else(|cause| panic::resume_unwind(cause));
    });
    job.finish("parked beside a flood");
}

#[test]
fn numbers_that_no_program_can_have_do_not_end_parking_for_others() {
    let config = "[parking]\nram = \"4G\"\nkeep_free = \"256M\"\nready = \"off\"\n";
    let setup =
        ServiceSetup { gpu: TestGpu::Named("soft:1x4GiB"), config: Some(config.to_owned()), ..ServiceSetup::default() };
    let service = TestService::start_with(setup);
    let client = service.client();
    let liar = client.grant(&ask(256 * MIB, json!({ "pid": std::process::id() })));
    let flags = SocketFlags::CLOEXEC;
    let line = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket");
    let address = SocketAddrUnix::new(client.socket().with_extension("shim")).expect("a path");
    connect(&line, &address).expect("the service accepts");
    let say = |word: Value| send(&line, word.to_string().as_bytes(), SendFlags::NOSIGNAL).expect("the service reads");
    let hear = || -> Value {
        let mut bytes = [0; 4096];
        let (length, _) = recv(&line, &mut bytes, RecvFlags::empty()).expect("the service answers");
        serde_json::from_slice(&bytes[..length]).expect("JSON")
    };
    let pid = std::process::id();
    say(json!({ "say": "hello", "version": 2, "pid": pid, "lease": liar.id, "parked": false, "bytes": u64::MAX }));
    assert_eq!(hear()["do"], "welcome");
    until("it can be parked", LONG, || match client.post(&format!("/v1/leases/{}/park", liar.id), &json!({})) {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.text()),
    });
    let order = until("it is told to park", LONG, || match hear() {
        order if order["do"] == "park" => Ok(order),
        other => Err(other),
    });
    let took = json!({ "capture_us": 1, "gate_us": 1, "drain_us": 1, "copy_us": 1, "map_us": 1, "all_us": 1 });
    say(json!({ "say": "parked", "id": order["id"], "bytes": u64::MAX, "took": took }));
    let job = WrappedProgram::start_holding(&service, "1G", "64MiB", &["--idle"]);
    assert!(service.cli(&["park", "L2"]).status.success());
    client.await_lease("it is parked", "L2", |lease| lease.state == LeaseState::Parked);
    assert!(service.cli(&["resume", "L2"]).status.success());
    client.await_lease("it is back", "L2", |lease| lease.state == LeaseState::Active);
    job.finish("parked beside a liar");
}
