//! Tokens over TCP: they are encrypted and bounded, they survive a crash, and their secret is stored nowhere.

use serde_json::{Value, json};
use std::fs;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use sublet_blackbox::binary::sublet;
use sublet_blackbox::service::{bare_command, serve_command};
use sublet_blackbox::token::{Certificate, new_secret, token_body};
use sublet_blackbox::{GIB, HttpReply, LONG, MIB, ServiceSetup, TestClient, TestService, ask, until};
use sublet_wire::{Lease, LeaseState, Token, Tokens, exit};

/// What a busy machine may add to a time.
const SLACK: Duration = Duration::from_secs(20);

fn unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs_f64()
}

/// A service that also listens on this host's TCP, at whatever port is free.
fn serve(more: &str) -> TestService {
    let config = format!("[tcp]\nlisten = \"127.0.0.1:0\"\n{more}");
    TestService::start_with(ServiceSetup { config: Some(config), ..ServiceSetup::default() })
}

/// One that listens on all addresses, with a certificate.
fn serve_private(dir: &Path) -> (TestService, Certificate) {
    let certificate = Certificate::create(dir);
    let config = format!("[tcp]\nlisten = \"0.0.0.0:0\"\n{}", certificate.config());
    (TestService::start_with(ServiceSetup { config: Some(config), ..ServiceSetup::default() }), certificate)
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory can be made")
}

fn output_text(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The command line, elsewhere: it knows an address and a token, and no socket.
fn elsewhere(home: &Path, secret: &str, arguments: &[&str]) -> Command {
    let mut command = bare_command(sublet(), home);
    fs::write(home.join("token"), format!("{secret}\n")).expect("a file can be written");
    command.env("SUBLET_TOKEN_FILE", home.join("token")).args(arguments).stdin(Stdio::null());
    command
}

#[test]
fn tls_is_spoken_to_a_real_client_and_nothing_else_is() {
    let home = directory();
    let (service, certificate) = serve_private(home.path());
    let (secret, _) = service.client().make_token(json!({ "tenant": "user:ana", "name": "laptop" }));
    let remote = TestClient::over_tcp(service.address(), Some(certificate.trust())).with_token(&secret);
    let lease = remote.grant(&ask(GIB, json!({})));
    assert_eq!(lease.tenant, "user:ana");
    // Without TLS every request is refused, whatever it asks for.
    let plain = service.remote().with_token(&secret).get("/v1/gpus").problem();
    assert!(plain.detail.contains("this port speaks TLS"), "{plain:?}");
    // A client that trusts another certificate sends nothing.
    let other = directory();
    let stranger = TestClient::over_tcp(service.address(), Some(Certificate::create(other.path()).trust()));
    assert!(stranger.try_send("GET", "/healthz", &[], b"").is_err());

    let url = format!("https://localhost:{}", service.address().port());
    let run = |arguments: &[&str]| {
        let mut command = elsewhere(home.path(), &secret, &["--url", &url]);
        command.args(arguments).env("SUBLET_CA", &certificate.cert).output().expect("the command line starts")
    };
    for arguments in [&[][..], &["ps"], &["queue"], &["explain", &lease.id], &["gpus"], &["usage"], &["audit"]] {
        let output = run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", output_text(&output));
    }
    assert!(output_text(&run(&["ps"])).contains(&lease.id));
    let detached = run(&["lease", "--detach", "--vram", "1G"]);
    assert!(detached.status.success(), "{}", output_text(&detached));
    let environment = String::from_utf8_lossy(&detached.stdout);
    assert!(environment.contains("export SUBLET_URL=https://localhost") && !environment.contains("SUBLET_SOCKET"));
    assert!(!output_text(&detached).contains(&secret), "the token is not shown again");
    let ended = run(&["end", &lease.id]);
    assert!(ended.status.success(), "{}", output_text(&ended));
    for arguments in [&["run", "--", "true"][..], &["lease", "--vram", "1G"], &["doctor"]] {
        let refused = run(arguments);
        assert_eq!(refused.status.code(), Some(exit::USAGE.into()), "{arguments:?}: {}", output_text(&refused));
        assert!(output_text(&refused).contains("hint:"), "{}", output_text(&refused));
    }
    let untrusted = elsewhere(home.path(), &secret, &["--url", &url, "ps"]).output().expect("the command line starts");
    assert_eq!(untrusted.status.code(), Some(exit::NO_DAEMON.into()), "{}", output_text(&untrusted));
    assert!(output_text(&untrusted).contains("SUBLET_CA"), "{}", output_text(&untrusted));
}

#[test]
fn a_new_certificate_is_read_on_reload_and_a_broken_one_is_not() {
    let home = directory();
    let (service, certificate) = serve_private(home.path());
    let old = certificate.trust();
    let speaks =
        |trust| TestClient::over_tcp(service.address(), Some(trust)).try_send("GET", "/healthz", &[], b"").is_ok();
    assert!(speaks(old.clone()));
    let new = Certificate::create(home.path()).trust();
    assert!(!speaks(new.clone()), "nothing changes before it is told");
    service.reload();
    until("the new certificate is shown", LONG, || if speaks(new.clone()) { Ok(()) } else { Err(()) });
    assert!(!speaks(old));
    fs::write(&certificate.key, "no key at all").expect("a file can be written");
    service.reload();
    let told = || service.log().contains("the certificate was not changed");
    until("it says that the key is no key", LONG, || if told() { Ok(()) } else { Err(service.log()) });
    assert!(speaks(new));
}

#[test]
fn without_a_certificate_only_this_host_is_served() {
    let home = directory();
    let certificate = Certificate::create(home.path());
    let (cert, key) = (certificate.cert.display().to_string(), certificate.key.display().to_string());
    let refused = |flags: &[&str], sentence: &str| {
        let (state, socket) = (home.path().join("state"), home.path().join("s"));
        let output =
            serve_command(home.path(), &state, &socket).args(flags).output().expect("the daemon can be started");
        assert_eq!(output.status.code(), Some(exit::CONFIG.into()), "{flags:?}: {}", output_text(&output));
        assert!(
            output_text(&output).contains(sentence) && output_text(&output).contains("hint:"),
            "{flags:?}: {}",
            output_text(&output)
        );
        assert!(!socket.exists(), "{flags:?}: it never began to serve");
    };
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7474"] {
        refused(&["--listen", address], "without a certificate");
    }
    refused(&["--listen", "127.0.0.1:0", "--tls-cert", &cert], "`tls_key` is not");
    refused(&["--listen", "127.0.0.1:0", "--tls-key", &key], "`tls_cert` is not");
    refused(&["--tls-cert", &cert, "--tls-key", &key], "`listen` is not");
    refused(&["--listen", "0.0.0.0:0", "--tls-cert", &key, "--tls-key", &key], "no certificate can be read");
    refused(&["--listen", "0.0.0.0:0", "--tls-cert", &cert, "--tls-key", &cert], "no private key can be read");
    let other = directory();
    let anothers = Certificate::create(other.path()).key.display().to_string();
    refused(&["--listen", "0.0.0.0:0", "--tls-cert", &cert, "--tls-key", &anothers], "cannot be used");
}

/// How long until the other end hangs up.
fn hung_up(stream: &mut TcpStream) -> Duration {
    let start = Instant::now();
    stream.set_read_timeout(Some(LONG)).expect("a timeout can be set");
    match stream.read(&mut [0; 64]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("not hung up: {other:?}"),
    }
    start.elapsed()
}

#[test]
fn silent_tcp_connections_are_closed_and_disturb_no_other() {
    let home = directory();
    let (service, certificate) = serve_private(home.path());
    let remote = TestClient::over_tcp(service.address(), Some(certificate.trust()));
    let connect = || TcpStream::connect(service.address()).expect("the service accepts");
    let mut silent: Vec<TcpStream> = (0..256).map(|_| connect()).collect();
    let healthy = || remote.try_send("GET", "/healthz", &[], b"").is_ok_and(|answer| answer.status == 200);
    assert!(healthy(), "the oldest silent connection makes way");
    assert_eq!(service.client().get("/healthz").status, 200, "the host's own socket has its own seats");
    let longest = silent.iter_mut().map(hung_up).max().expect("there are some");
    assert!(longest < Duration::from_secs(60), "{longest:?}");
    assert!(healthy());
}

#[test]
fn a_lease_is_kept_whatever_others_do_from_its_address_or_with_its_tenants_tokens() {
    let service = serve("requests_per_s = 2\nburst = 5\n");
    let operator = service.client();
    let client = |ask: Value| service.remote().with_token(&operator.make_token(ask).0);
    let ana = client(json!({ "tenant": "user:ana" }));
    let looker = client(json!({ "tenant": "user:ana", "read_only": true }));
    let lease = ana.grant(&ask(GIB, json!({})));
    let renewed = || ana.post(&format!("/v1/leases/{}/renew", lease.id), &json!({ "fence": lease.fence }));
    let guesser = service.remote().with_token(&new_secret());
    let guesses: Vec<HttpReply> = (0..40).map(|_| guesser.get("/v1/gpus")).collect();
    assert!(guesses.iter().any(|answer| answer.status == 429), "guessing is slowed down");
    assert_eq!(renewed().status, 200, "{}", renewed().text());
    let looks: Vec<HttpReply> = (0..40).map(|_| looker.get("/v1/leases")).collect();
    assert!(looks.iter().any(|answer| answer.status == 429), "so is looking");
    let answer = renewed();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(ana.delete(&format!("/v1/leases/{}", lease.id)).status, 200);
}

#[test]
fn calls_above_the_rate_get_a_retry_time_and_pass_later() {
    let service = serve("requests_per_s = 2\nburst = 5\n");
    let operator = service.client();
    let client = |tenant: &str| service.remote().with_token(&operator.make_token(json!({ "tenant": tenant })).0);
    let (one, two, other) = (client("user:ana"), client("user:ana"), client("user:ben"));
    let hasty: Vec<HttpReply> = (0..20).map(|n| if n % 2 == 0 { &one } else { &two }.get("/v1/gpus")).collect();
    let refused: Vec<&HttpReply> = hasty.iter().filter(|answer| answer.status != 200).collect();
    assert!(hasty[..5].iter().all(|answer| answer.status == 200), "a burst passes");
    assert!(refused.len() >= 5, "two tokens of one tenant share one bucket: {} refused", refused.len());
    for answer in &refused {
        assert_eq!((answer.status, answer.code()), (429, "too_many_requests"));
        assert!(answer.problem().retry_after_s.is_some_and(|s| s >= 1), "{}", answer.text());
    }
    assert_eq!(other.get("/v1/gpus").status, 200, "another tenant is not slowed down");
    let wait = refused[0].problem().retry_after_s.expect("it says when");
    assert!(wait <= 60, "{wait} s for one call");
    let refused_at = Instant::now();
    until("it passes again", LONG, || match one.get("/v1/gpus").status {
        200 => Ok(()),
        status => Err(status),
    });
    assert!(refused_at.elapsed() < Duration::from_secs(wait) + SLACK, "after about the time it named");
    assert!((0..50).all(|_| operator.get("/v1/gpus").status == 200), "the socket has no such limit");
}

#[test]
fn guessing_is_slowed_down_by_address() {
    let service = serve("");
    let guesses: Vec<u16> =
        (0..60).map(|_| service.remote().with_token(&new_secret()).get("/v1/gpus").status).collect();
    assert!(guesses[..20].iter().all(|status| *status == 401), "{guesses:?}");
    assert!(guesses.contains(&429), "{guesses:?}");
    let good = service.remote().with_token(&service.client().make_token(json!({ "tenant": "user:ana" })).0);
    until("a good token passes again", LONG, || match good.get("/v1/gpus") {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.status),
    });
}

/// All bytes under a directory.
fn bytes_under(dir: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory can be listed").flatten() {
        if entry.path().is_dir() {
            all.extend(bytes_under(&entry.path()));
        } else if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            all.extend(fs::read(entry.path()).expect("a file can be read"));
        }
    }
    all
}

fn has(haystack: &[u8], needle: &str) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle.as_bytes())
}

#[test]
fn the_secret_is_in_no_file_no_log_and_no_answer() {
    let config = "[tcp]\nlisten = \"127.0.0.1:0\"\n".to_owned();
    let env = vec![("SUBLET_LOG".to_owned(), "trace".to_owned())];
    let mut service = TestService::start_with(ServiceSetup { config: Some(config), env, ..ServiceSetup::default() });
    let output = service.cli(&["token", "create", "--for", "user:ana", "--name", "laptop", "--expires", "30d"]);
    assert!(output.status.success(), "{}", output_text(&output));
    let secret = String::from_utf8(output.stdout).expect("text").trim_end().to_owned();
    assert!(secret.starts_with("sbl_") && !secret.contains(char::is_whitespace), "the token alone: {secret}");
    let other = service.cli(&["token", "create", "--for", "user:ana", "--json"]);
    let other: Value = serde_json::from_slice(&other.stdout).expect("JSON");
    let other = other["secret"].as_str().expect("the secret").to_owned();
    let remote = service.remote();
    let lease = remote.with_token(&secret).grant(&ask(GIB, json!({})));
    assert_eq!(remote.with_token(&secret).get(&format!("/v1/leases?token={other}")).status, 400);
    assert_eq!(remote.get(&format!("/v1/gpus?token={secret}")).status, 401, "an address is no place for a token");
    assert_eq!(service.client().with_token(&other).get("/v1/gpus").status, 400);
    let listed = service.cli(&["token", "list"]);
    assert!(
        output_text(&listed).contains("laptop") && output_text(&listed).contains("ago"),
        "{}",
        output_text(&listed)
    );
    let audit = service.cli(&["audit", "--json"]);
    assert!(
        output_text(&audit).contains("issue_token") && output_text(&audit).contains("user:ana K1"),
        "{}",
        output_text(&audit)
    );
    let revoked = service.cli(&["token", "revoke", "K1"]);
    assert!(revoked.status.success(), "{}", output_text(&revoked));
    assert_eq!(remote.with_token(&secret).get("/v1/gpus").status, 401);
    assert_eq!(service.client().lease(&lease.id).state, LeaseState::Active, "its lease goes on");
    let answers: Vec<u8> = ["/v1/tokens", "/v1/audit", "/v1/leases?all=true", "/v1/usage"]
        .iter()
        .flat_map(|path| service.client().get(path).body)
        .collect();
    assert!(service.stop().success());
    let files = bytes_under(service.dir());
    assert!(has(&files, "serving callers with a token"), "the log was read");
    for (what, bytes) in [
        ("files", &files),
        ("answers", &answers),
        ("talk", &output_text(&listed).into_bytes()),
        ("audit", &audit.stdout),
    ] {
        for secret in [&secret, &other] {
            assert!(!has(bytes, secret) && !has(bytes, &secret["sbl_".len()..]), "a secret is in the {what}");
        }
    }
    assert!(has(&files, blake3_hex(&secret).as_str()), "its hash is what is kept");
}

fn blake3_hex(secret: &str) -> String {
    token_body(secret, json!({}))["hash"].as_str().expect("a hash").to_owned()
}

#[test]
fn tokens_survive_a_crash_and_revoked_ones_stay_revoked() {
    let mut service = serve("");
    let operator = service.client();
    let caps =
        json!({ "tenant": "user:ana", "name": "ci", "vram_bytes": 2 * GIB, "leases": 3, "expires_in_s": 86_400 });
    let (secret, token) = operator.make_token(caps);
    let (revoked, gone) = operator.make_token(json!({ "tenant": "user:ana" }));
    let lease = service.remote().with_token(&secret).grant(&ask(GIB, json!({})));
    assert_eq!(operator.delete(&format!("/v1/tokens/{}", gone.id)).status, 200);
    service.kill();
    service.restart();
    let tokens: Tokens = operator.get("/v1/tokens").read();
    let known: Vec<Token> = tokens.tokens.into_iter().map(|token| Token { last_used_unix_s: None, ..token }).collect();
    assert_eq!(known, [token]);
    let remote = service.remote();
    assert_eq!(remote.with_token(&secret).lease(&lease.id).fence, lease.fence);
    assert_eq!(remote.with_token(&revoked).get("/v1/leases").code(), "unauthenticated");
    // What the token had before counts after.
    assert_eq!(remote.with_token(&secret).post("/v1/leases", &ask(GIB + 1, json!({}))).code(), "token_cap");
    let (_, next) = operator.make_token(json!({ "tenant": "user:ana" }));
    assert_ne!(next.id, gone.id, "a number is never used twice");
    assert!(service.stop().success());
    let verify = service.cli(&["journal", "verify", "--state-dir", &service.state_dir().display().to_string()]);
    assert!(verify.status.success(), "{}", output_text(&verify));
}

#[test]
fn the_caps_of_a_token_hold_for_concurrent_requests() {
    let service = serve("requests_per_s = 100000\nburst = 100000\n");
    let operator = service.client();
    let client = |caps: Value| service.remote().with_token(&operator.make_token(caps).0);
    let few = client(json!({ "tenant": "user:ana", "leases": 3 }));
    let small = client(json!({ "tenant": "user:ana", "vram_bytes": 2 * GIB }));
    let free = client(json!({ "tenant": "user:ana" }));
    let crowd = |client: &TestClient, bytes: u64| {
        let answers = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..12 {
                scope.spawn(|| {
                    let answer = client.post("/v1/leases", &ask(bytes, json!({})));
                    answers.lock().expect("no thread panicked").push(answer);
                });
            }
        });
        let answers = answers.into_inner().expect("no thread panicked");
        let (had, refused): (Vec<HttpReply>, Vec<HttpReply>) =
            answers.into_iter().partition(|answer| answer.status < 300);
        assert!(refused.iter().all(|answer| answer.code() == "token_cap"), "{refused:?}");
        had.iter().map(|answer| answer.read::<Lease>().id).collect::<Vec<_>>()
    };
    let three = crowd(&few, 300 * MIB);
    assert_eq!(three.len(), 3);
    let four = crowd(&small, 512 * MIB);
    assert_eq!(four.len(), 4);
    for whole in [json!({ "vram_bytes": "whole" }), json!({ "vram_bytes": 3 * GIB })] {
        assert_eq!(small.post("/v1/leases", &whole).code(), "token_cap");
    }
    // An ask that waits counts too.
    assert_eq!(few.delete(&format!("/v1/leases/{}", three[0])).status, 200);
    let waiting = few.queue(&ask(23 * GIB, json!({})));
    assert_eq!(few.post("/v1/leases", &ask(300 * MIB, json!({}))).code(), "token_cap");
    assert_eq!(few.delete(&format!("/v1/leases/{}", waiting.id)).status, 200);
    // A token makes no token, and so none without its caps; a key does not pass them either.
    assert_eq!(few.post("/v1/tokens", &token_body(&new_secret(), json!({}))).code(), "denied");
    let kept = few.post_once("/v1/leases", "k", &ask(300 * MIB, json!({})));
    assert!(kept.status < 300, "{}", kept.text());
    assert_eq!(few.post_once("/v1/leases", "k", &ask(300 * MIB, json!({}))).text(), kept.text());
    assert_eq!(few.post_once("/v1/leases", "k2", &ask(300 * MIB, json!({}))).code(), "token_cap");
    assert!(free.post("/v1/leases", &ask(300 * MIB, json!({}))).status < 300, "another token has its own");
    let pid = free.post("/v1/leases", &ask(300 * MIB, json!({ "pid": 1 })));
    assert_eq!(pid.code(), "pid_not_local");
}

#[test]
fn what_is_under_way_ends_with_its_token() {
    let service = serve("");
    let operator = service.client();
    let (secret, token) = operator.make_token(json!({ "tenant": "user:ana" }));
    let client = service.remote().with_token(&secret);
    let lease = client.grant(&ask(GIB, json!({})));
    let mut stream = client.connect().expect("the service accepts");
    stream.raw(&client.head("GET", "/v1/events")).expect("the service reads");
    assert_eq!(stream.head().expect("the service answers").0, 200);
    let uses = || operator.get("/v1/tokens").read::<Tokens>().tokens[0].last_used_unix_s;
    let before = uses();
    // Uses are told to the millisecond, and this one must be told from the next.
    until(
        "a millisecond passed",
        LONG,
        || if unix_s() > before.expect("it was used") + 0.001 { Ok(()) } else { Err(()) },
    );
    thread::scope(|scope| {
        let poll = scope.spawn(|| client.get(&format!("/v1/leases/{}?wait=60s&for=end", lease.id)));
        until("the poll arrived", LONG, || if uses() > before { Ok(()) } else { Err(()) });
        assert_eq!(operator.delete(&format!("/v1/tokens/{}", token.id)).status, 200);
        let revoked = Instant::now();
        let answer = poll.join().expect("an answer");
        assert_eq!(answer.status, 401, "{}", answer.text());
        assert!(revoked.elapsed() < Duration::from_secs(40), "the poll was for 60 s, and ended with its token");
    });
    let told = until("the stream ends", LONG, || match stream.chunk() {
        Ok(Some(chunk)) => Err(String::from_utf8_lossy(&chunk).into_owned()),
        Ok(None) => Ok(String::new()),
        Err(error) => Ok(error.to_string()),
    });
    assert!(!told.contains("timed out"), "{told}");
}

#[test]
fn a_token_that_may_only_look_is_not_shown_what_proves_a_lease() {
    let service = serve("");
    let operator = service.client();
    let (reader, _) = operator.make_token(json!({ "tenant": "user:ana", "read_only": true }));
    let (writer, _) = operator.make_token(json!({ "tenant": "user:ana" }));
    let (reader, writer) = (service.remote().with_token(&reader), service.remote().with_token(&writer));
    let lease = writer.grant(&ask(GIB, json!({})));
    assert!(writer.lease(&lease.id).proof.is_some());
    assert_eq!(reader.lease(&lease.id).proof, None);
}

#[test]
fn repeated_requests_for_one_token_make_one_token() {
    let service = serve("");
    let client = service.client();
    let body = token_body(&new_secret(), json!({ "tenant": "user:ana", "leases": 2 }));
    let one: Token = client.post_once("/v1/tokens", "key", &body).read();
    assert_eq!(client.post_once("/v1/tokens", "key", &body).read::<Token>().id, one.id);
    assert_eq!(client.post("/v1/tokens", &body).read::<Token>().id, one.id, "also without a key");
    let mut other = body.clone();
    other["leases"] = json!(3);
    assert_eq!(client.post("/v1/tokens", &other).code(), "bad_value");
    assert_eq!(client.post_once("/v1/tokens", "key", &other).code(), "key_reused");
    for (field, value) in [
        ("hash", json!("")),
        ("hash", json!("G".repeat(64))),
        ("tenant", json!("ana")),
        ("tenant", json!("uid:007")),
        ("tenant", json!("user:a\u{7}")),
        ("tenant", json!(format!("user:{}", "x".repeat(70)))),
        ("name", json!("x".repeat(65))),
        ("name", json!("\u{1b}[2J")),
        ("leases", json!(0)),
        ("vram_bytes", json!(0)),
        ("expires_in_s", json!(0)),
        ("expires_in_s", json!(u64::MAX)),
    ] {
        let mut bad = token_body(&new_secret(), json!({}));
        bad[field] = value.clone();
        assert_eq!(client.post("/v1/tokens", &bad).code(), "bad_value", "{field} = {value}");
    }
    assert_eq!(client.get("/v1/tokens").read::<Tokens>().tokens.len(), 1);
}
