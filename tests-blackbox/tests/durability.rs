//! Whatever was answered survives a kill at any moment.
//!
//! `SUBLET_KILLS=200` kills more often than a test of every day does.

use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use sublet_blackbox::change_log::{build_recorder, recorder_env};
use sublet_blackbox::disk_image::Coin;
use sublet_blackbox::http::JSON;
use sublet_blackbox::service::serve_command;
use sublet_blackbox::{GIB, LONG, MIB, ServiceSetup, TestClient, TestService, ask, until};
use sublet_wire::{Lease, LeaseState};

/// How many leases one client keeps at a time: all of them fit on the GPU.
const KEPT: usize = 8;
const CLIENTS: u64 = 4;

/// What a client knows for sure.
#[derive(Default)]
struct Known {
    /// Answered 2xx, and no release was ever sent.
    held: BTreeMap<String, Lease>,
    /// Their release was answered 2xx.
    released: Vec<String>,
    /// The highest fence that any answer carried.
    highest_epoch: u64,
}

struct Load {
    stop: AtomicBool,
    answers: AtomicU64,
    known: Mutex<Known>,
}

/// Asks and releases until it is told to stop; a service that is away is asked again.
fn client_at_work(client: &TestClient, number: u64, load: &Load) {
    let mut coin = Coin(number + 1);
    let mut mine: Vec<String> = Vec::new();
    let mut asks = 0;
    while !load.stop.load(Ordering::Relaxed) {
        if mine.len() >= KEPT || (!mine.is_empty() && coin.below(3) == 0) {
            let id = mine.swap_remove(coin.below(mine.len() as u64) as usize);
            release(client, &id, load);
        } else {
            asks += 1;
            mine.extend(ask_once(client, &format!("client-{number}-ask-{asks}"), load));
        }
    }
}

/// Sends one ask with one key until it is answered: it must not make two leases.
fn ask_once(client: &TestClient, key: &str, load: &Load) -> Option<String> {
    let body = ask(384 * MIB, json!({"ttl_s": 1800, "name": key})).to_string();
    let headers = [JSON, (sublet_wire::IDEMPOTENCY_KEY, key)];
    let answer = until("the ask is answered", LONG, || {
        match client.try_send("POST", "/v1/leases", &headers, body.as_bytes()) {
            Ok(answer) if answer.status < 300 => Ok(Some(answer)),
            Ok(answer) => {
                assert!(["stopping", "key_in_use"].contains(&answer.code()), "{}", answer.text());
                Err(answer.code().to_owned())
            }
            Err(_) if load.stop.load(Ordering::Relaxed) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    })?;
    let lease: Lease = answer.read();
    let id = lease.id.clone();
    let mut known = load.known.lock().expect("no client panicked");
    known.highest_epoch = known.highest_epoch.max(lease.fence.unwrap_or(0));
    let twin = known.held.values().find(|held| held.id != id && held.name == lease.name);
    assert!(twin.is_none(), "one key made two leases: {twin:?} and {lease:?}");
    known.held.insert(id.clone(), lease);
    load.answers.fetch_add(1, Ordering::Relaxed);
    Some(id)
}

fn release(client: &TestClient, id: &str, load: &Load) {
    // From here until the answer it is unknown whether the lease is still held.
    load.known.lock().expect("no client panicked").held.remove(id);
    let released =
        client.try_send("DELETE", &format!("/v1/leases/{id}"), &[], b"").is_ok_and(|answer| answer.status == 200);
    if released {
        load.known.lock().expect("no client panicked").released.push(id.to_owned());
        load.answers.fetch_add(1, Ordering::Relaxed);
    }
}

/// Everything that was known when the daemon died is still so.
fn assert_nothing_lost(client: &TestClient, known: &Known) {
    for lease in known.held.values() {
        let found = client.lease(&lease.id);
        assert_eq!((&found.name, &found.tenant), (&lease.name, &lease.tenant), "{found:?}");
        match lease.state {
            LeaseState::Active => {
                assert_eq!((found.state, found.fence), (LeaseState::Active, lease.fence), "{found:?}");
                assert_eq!(found.gpu_uuids, lease.gpu_uuids);
            }
            _ => assert!(matches!(found.state, LeaseState::Waiting | LeaseState::Active), "{found:?}"),
        }
    }
    for id in &known.released {
        let answer = client.get(&format!("/v1/leases/{id}"));
        // What ended long ago may have left the list of what is remembered.
        if answer.status == 200 {
            let lease: Lease = answer.read();
            assert!(matches!(lease.state, LeaseState::Ending | LeaseState::Ended), "{lease:?}");
        }
    }
}

/// A lease that is granted soon: what was just released counts until it was seen gone.
fn granted(client: &TestClient, ask: &serde_json::Value) -> Lease {
    let id = client.post("/v1/leases", ask).read::<Lease>().id;
    client.await_lease("granted", &id, |lease| lease.state == LeaseState::Active)
}

#[test]
fn every_answer_survives_kill_9_in_a_loop_under_load() {
    let kills: u64 = std::env::var("SUBLET_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(10);
    let mut service = TestService::start();
    let client = service.client();
    let mut coin = Coin(7);
    let mut known = Known::default();
    for kill in 0..kills {
        let load = Arc::new(Load { stop: false.into(), answers: 0.into(), known: Mutex::new(known) });
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (client, load) = (client.clone(), Arc::clone(&load));
                thread::spawn(move || client_at_work(&client, kill * CLIENTS + number, &load))
            })
            .collect();
        let enough = 20 + coin.below(80);
        until("the clients are answered", LONG, || {
            let answers = load.answers.load(Ordering::Relaxed);
            if answers >= enough { Ok(()) } else { Err(answers) }
        });
        service.kill();
        load.stop.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| client.join().expect("a client's assertions hold"));
        let load = Arc::into_inner(load).expect("all clients have stopped");
        known = load.known.into_inner().expect("no client panicked");

        service.restart();
        assert_nothing_lost(&client, &known);
        let fresh = granted(&client, &ask(384 * MIB, json!({})));
        assert!(fresh.fence > Some(known.highest_epoch), "epochs grow across a crash: {fresh:?}");
        known.highest_epoch = fresh.fence.unwrap_or(0);
        client.delete(&format!("/v1/leases/{}", fresh.id));
        // The next clients start with an empty GPU.
        for id in std::mem::take(&mut known.held).into_keys() {
            assert_eq!(client.delete(&format!("/v1/leases/{id}")).status, 200);
            known.released.push(id);
        }
        for id in client.live_ids() {
            client.delete(&format!("/v1/leases/{id}"));
        }
        known.released.drain(..known.released.len().saturating_sub(100));
    }
    assert!(service.stop().success(), "SIGTERM ends it in peace");
    let verify =
        service.cli(&["journal", "verify", "--state-dir", &service.state_dir().display().to_string(), "--json"]);
    assert!(verify.status.success(), "{}", String::from_utf8_lossy(&verify.stderr));
}

#[test]
fn after_a_sync_that_failed_nothing_is_answered_and_a_restart_has_all_that_was() {
    let tools = tempfile::tempdir().expect("a directory can be made");
    let (state, log, broken) = (tools.path().join("state"), tools.path().join("log"), tools.path().join("broken"));
    fs::create_dir(&state).expect("a directory can be made");
    let mut env = recorder_env(&build_recorder(tools.path()), &state, &log);
    env.push(("RECORDER_FAIL".into(), broken.display().to_string()));
    let mut service = TestService::start_with(ServiceSetup { state: Some(state), env, ..ServiceSetup::default() });
    let client = service.client();
    let before = client.grant(&ask(GIB, json!({"ttl_s": 1800})));
    fs::write(&broken, "").expect("a file can be made");
    let body = ask(GIB, json!({"ttl_s": 1800})).to_string();
    let answer = client.try_send("POST", "/v1/leases", &[JSON], body.as_bytes());
    assert!(answer.is_err(), "what the disk did not confirm is not answered: {answer:?}");
    let status = until("the daemon exits", LONG, || service.exited().ok_or("it runs"));
    assert_eq!(status.code(), Some(74), "it says why it went:\n{}", service.log());
    fs::remove_file(&broken).expect("the disk can be mended");
    service.restart();
    assert_eq!(client.lease(&before.id).fence, before.fence);
    let after = client.grant(&ask(GIB, json!({})));
    assert!(after.fence > before.fence);
}

#[test]
fn while_a_disk_hangs_nothing_is_answered_that_needs_it_and_everything_else_is() {
    let tools = tempfile::tempdir().expect("a directory can be made");
    let (state, log, hung) = (tools.path().join("state"), tools.path().join("log"), tools.path().join("hung"));
    fs::create_dir(&state).expect("a directory can be made");
    let mut env = recorder_env(&build_recorder(tools.path()), &state, &log);
    env.push(("RECORDER_STALL".into(), hung.display().to_string()));
    let service = TestService::start_with(ServiceSetup { state: Some(state), env, ..ServiceSetup::default() });
    let client = service.client();
    // Up to where the next number moves the mark that is kept of them, which waits for the disk as well.
    for _ in 0..64 {
        client.delete(&format!("/v1/leases/{}", client.grant(&ask(GIB, json!({}))).id));
    }
    fs::write(&hung, "").expect("a file can be made");
    // The first finds the service at rest, the second finds the first under way.
    let asks = [1, 2].map(|_| {
        let client = client.clone();
        let asked = thread::spawn(move || client.grant(&ask(GIB, json!({}))));
        thread::sleep(Duration::from_millis(100));
        asked
    });
    for _ in 0..20 {
        assert_eq!(client.get("/openapi.json").status, 200, "what needs no disk is answered");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(asks.iter().all(|asked| !asked.is_finished()), "what is not on the disk is not answered");
    fs::remove_file(&hung).expect("the disk can go on");
    let granted = asks.map(|asked| asked.join().expect("it is granted"));
    assert_ne!(granted[0].id, granted[1].id);
}

#[test]
fn a_backup_that_is_put_back_hands_out_no_epoch_and_no_number_of_a_lease_twice() {
    let mut service = TestService::start();
    let client = service.client();
    let number = |lease: &Lease| lease.id.trim_start_matches('L').parse::<u64>().expect("a number");
    let first = client.grant(&ask(GIB, json!({"ttl_s": 1800})));
    assert!(service.stop().success());
    service.restart();
    let kept = client.grant(&ask(GIB, json!({"ttl_s": 1800})));
    assert_eq!(number(&kept), number(&first) + 1, "a restart in peace leaves no hole");
    let (state, copy) = (service.state_dir(), service.dir().join("copy.db"));
    let backup =
        service.cli(&["journal", "backup", "--state-dir", &state.display().to_string(), &copy.display().to_string()]);
    assert!(backup.status.success(), "{}", String::from_utf8_lossy(&backup.stderr));
    let lost = client.grant(&ask(GIB, json!({"ttl_s": 1800})));
    assert!(service.stop().success());
    // As docs/backup.md says.
    for name in ["journal.db-wal", "journal.db-shm"] {
        let _ = fs::remove_file(state.join(name));
    }
    fs::rename(&copy, state.join("journal.db")).expect("a backup can be put in place");
    service.restart_without_grants();
    let refused = client.post("/v1/leases", &ask(GIB, json!({})));
    assert_eq!((refused.status, refused.code()), (503, "journal_loss"), "{}", refused.text());
    let accepted = service.cli(&["journal", "accept-loss"]);
    assert!(accepted.status.success(), "{}", String::from_utf8_lossy(&accepted.stderr));
    assert_eq!(client.lease(&kept.id).fence, kept.fence, "what the backup knows is there");
    assert_eq!(client.get(&format!("/v1/leases/{}", lost.id)).code(), "no_such_lease");
    let mut stream = client.connect().expect("the service accepts");
    stream.raw(b"GET /v1/events HTTP/1.1\r\nhost: x\r\nlast-event-id: 5000\r\n\r\n").expect("the service reads");
    stream.patience(LONG).expect("a timeout can be set");
    assert_eq!(stream.head().expect("the service answers").0, 200);
    let first = stream.chunk().expect("it comes in time").expect("the stream goes on");
    let first = String::from_utf8_lossy(&first);
    assert!(first.contains("event: gap") && first.contains("\"seen\":5000"), "a client that saw more is told: {first}");
    let next = client.grant(&ask(GIB, json!({})));
    assert!(next.fence > lost.fence, "{next:?} after {lost:?}");
    assert_eq!(number(&next), number(&lost) + 1, "{next:?} after {lost:?}");
    service.kill();
    service.restart();
    let after = client.grant(&ask(GIB, json!({})));
    assert!(number(&after) > number(&next), "{after:?} after {next:?}");
    let mark = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..20]).parse::<u64>().ok();
    let marks = fs::read(state.join("epochs")).expect("how far epochs went is beside the journal");
    assert!([mark(&marks), mark(&marks[4096..])].iter().flatten().any(|mark| Some(*mark) > after.fence));
}

#[test]
fn a_second_daemon_on_the_same_gpus_refuses_and_names_the_first() {
    let first = tempfile::tempdir().expect("a directory can be made");
    let start = |name: &str| {
        let dir = first.path().join(name);
        fs::create_dir(&dir).expect("a directory can be made");
        let mut command = sublet_blackbox::service::bare_command(sublet_blackbox::binary::sublet(), &dir);
        command.args(["serve", "--gpu", "real", "--config", "/dev/null", "--state-dir", "state", "--socket", "s"]);
        command.stdin(std::process::Stdio::null());
        command.stderr(fs::File::create(dir.join("log")).expect("a file")).spawn().expect("sublet")
    };
    let output_text = |name: &str| fs::read_to_string(first.path().join(name).join("log")).unwrap_or_default();
    let mut one = start("one");
    let serves = until("the first serves", LONG, || match one.try_wait().ok().flatten() {
        Some(_) => Ok(false),
        None if output_text("one").contains("ready on ") => Ok(true),
        None => Err(output_text("one")),
    });
    if !serves {
        assert!(output_text("one").contains("leases the GPUs of this host"), "{}", output_text("one"));
        return eprintln!("skipped: a service leases the GPUs of this host");
    }
    let mut two = start("two");
    let status = until("the second gives up", LONG, || two.try_wait().ok().flatten().ok_or_else(|| output_text("two")));
    one.kill().expect("an own child can be killed");
    one.wait().expect("an own child can be waited for");
    assert!(!status.success());
    let named = format!("another daemon (process {} of user", one.id());
    assert!(output_text("two").contains(&named), "{named}: {}", output_text("two"));
    assert!(output_text("two").contains("hint:"), "{}", output_text("two"));
}

#[test]
fn a_second_daemon_on_the_same_state_refuses_and_names_the_first() {
    let service = TestService::start();
    let lease = service.client().grant(&ask(GIB, json!({})));
    let other_socket = service.dir().join("other");
    refuses(&service, serve_command(service.dir(), &service.state_dir(), &other_socket));
    assert_eq!(service.client().lease(&lease.id).state, LeaseState::Active);
    assert!(!other_socket.exists(), "it left no socket behind");
}

#[test]
fn a_second_daemon_on_the_same_socket_refuses_and_names_the_first() {
    let service = TestService::start();
    let lease = service.client().grant(&ask(GIB, json!({})));
    let other_state = service.dir().join("other");
    refuses(&service, serve_command(service.dir(), &other_state, &service.dir().join("s")));
    assert_eq!(service.client().lease(&lease.id).state, LeaseState::Active);
    assert!(!other_state.exists(), "a refused daemon leaves nothing behind");
}

fn refuses(service: &TestService, mut second: std::process::Command) {
    let mut second =
        second.stderr(fs::File::create(service.dir().join("second")).expect("a file")).spawn().expect("sublet");
    let status = until("the second daemon gives up", LONG, || second.try_wait().ok().flatten().ok_or("it runs"));
    let talk = fs::read_to_string(service.dir().join("second")).unwrap_or_default();
    assert!(!status.success(), "{talk}");
    assert!(talk.contains(&service.pid().to_string()), "it names process {}: {talk}", service.pid());
}

#[test]
fn a_socket_left_by_a_killed_daemon_is_taken_over() {
    let mut service = TestService::start();
    service.kill();
    assert!(service.dir().join("s").exists(), "kill -9 leaves the socket behind");
    service.restart();
    assert_eq!(service.client().get("/healthz").status, 200);
}

#[test]
fn a_corrupt_journal_is_a_clear_error_and_is_left_as_it_was() {
    let mut service = TestService::start();
    service.client().grant(&ask(GIB, json!({})));
    assert!(service.stop().success());
    let journal = database(&service.state_dir());
    let mut bytes = fs::read(&journal).expect("the journal can be read");
    let first_page = 100..bytes.len().min(4096);
    bytes[first_page].fill(0xA5);
    fs::write(&journal, &bytes).expect("the journal can be written");
    // A log beside it would mend the page.
    let log = journal.with_file_name(format!("{}-wal", journal.file_name().unwrap_or_default().display()));
    if log.exists() {
        fs::remove_file(log).expect("a file can be removed");
    }

    let mut command = serve_command(service.dir(), &service.state_dir(), &service.dir().join("s"));
    let mut child =
        command.stderr(fs::File::create(service.dir().join("second")).expect("a file")).spawn().expect("sublet");
    let status = until("the daemon gives up", LONG, || child.try_wait().ok().flatten().ok_or("it runs"));
    let talk = fs::read_to_string(service.dir().join("second")).unwrap_or_default();
    assert!(!status.success(), "{talk}");
    assert!(talk.contains("hint:"), "it says what to do: {talk}");
    assert_eq!(fs::read(&journal).expect("the journal can be read"), bytes, "nothing was written to it");
    let verify =
        service.cli(&["journal", "verify", "--state-dir", &service.state_dir().display().to_string(), "--json"]);
    assert!(!verify.status.success(), "verify sees it too");
}

fn database(dir: &std::path::Path) -> std::path::PathBuf {
    let is_sqlite = |path: &std::path::Path| fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"SQLite format 3"));
    let mut files = fs::read_dir(dir).expect("the state can be listed").flatten().map(|entry| entry.path());
    files.find(|path| is_sqlite(path)).expect("the journal is a SQLite file")
}
