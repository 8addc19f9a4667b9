//! Why a request waits: one sentence that names what blocks it, and no more than its reader may know.
//!
//! Tests with several users need root; elsewhere they say that they were skipped.

use serde_json::{Value, json};
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use sublet_blackbox::binary::example;
use sublet_blackbox::programs::{UnleasedProgram, WrappedProgram, await_state, post_action, successful_output, text};
use sublet_blackbox::proxy;
use sublet_blackbox::user::{as_user, is_root};
use sublet_blackbox::{GIB, LONG, MIB, ServiceSetup, TestClient, TestGpu, TestProcess, TestService, ask, until};
use sublet_wire::{Explanation, Lease, LeaseState, Leases};

const ALICE: u32 = 12345;
const BOB: u32 = 12346;
const CAROL: u32 = 12347;

/// A lease of this size that no other request ends for an hour.
fn start_holding(client: &TestClient, uid: u32, bytes: u64) -> Lease {
    as_user(uid, || client.grant(&ask(bytes, json!({"time_s": 3600, "name": "secret plan"}))))
}

fn queues(client: &TestClient, uid: u32, bytes: u64) -> Lease {
    as_user(uid, || client.queue(&ask(bytes, json!({}))))
}

fn why(lease: &Lease) -> String {
    lease.waiting.as_ref().map_or_else(String::new, |waiting| waiting.why.clone())
}

/// Waits until a waiter reads exactly this.
fn reads(client: &TestClient, uid: u32, id: &str, expected: &str) {
    let read = || {
        let lease = as_user(uid, || client.lease(id));
        if why(&lease) == expected { Ok(()) } else { Err(why(&lease)) }
    };
    until(&format!("{id} reads `{expected}`"), LONG, read);
}

/// What the scripted GPU shows from the next reading on.
fn shows(service: &TestService, processes: &Value, other_bytes: u64) {
    let gpu = json!({"index": 0, "processes": processes, "other_bytes": other_bytes, "fault": null});
    let (new, script) = (service.state_dir().join("scripted.json.new"), service.state_dir().join("scripted.json"));
    // A reading must never meet half a script.
    fs::write(&new, json!({"cards": [gpu]}).to_string()).expect("a script is written");
    fs::rename(&new, &script).expect("a script is put in place");
}

#[test]
fn a_waiter_reads_the_users_that_hold_the_gpu_and_the_ids_of_its_own_leases_only() {
    if !is_root() {
        return eprintln!("skipped: only root can be several users");
    }
    let service = TestService::start();
    let client = service.client();
    start_holding(&client, ALICE, 16 * GIB);
    start_holding(&client, BOB, 2 * GIB);
    let bob = queues(&client, BOB, 16 * GIB);
    let said = "GPU 0 has 5.8 GiB free, 16 GiB are needed; uid:12345 holds 16 GiB, uid:12346 holds 2 GiB (L2)";
    assert_eq!(why(&bob), said);
    reads(&client, BOB, &bob.id, said);
    let operators =
        "GPU 0 has 5.8 GiB free, 16 GiB are needed; uid:12345 holds 16 GiB (L1), uid:12346 holds 2 GiB (L2)";
    reads(&client, 0, &bob.id, operators);
    // In the queue each reads its own reason, and others' none.
    let queue: Leases = as_user(BOB, || client.get("/v1/queue").read());
    assert_eq!(queue.leases.iter().map(why).collect::<Vec<_>>(), [said]);
    let queue: Leases = as_user(CAROL, || client.get("/v1/queue").read());
    assert_eq!(queue.leases.iter().map(why).collect::<Vec<_>>(), [""]);
    let all = as_user(BOB, || client.get(&format!("/v1/leases/{}/explain", bob.id)).text());
    assert!(!all.contains("secret plan") && !all.contains("(L1)"), "{all}");
}

#[test]
fn run_lease_queue_explain_and_the_api_say_the_same_sentence() {
    let gpu = TestGpu::Named("soft:1x4GiB");
    let config = Some("[preemption]\nenabled = false\n".to_owned());
    let service = TestService::start_with(ServiceSetup { gpu, config, ..ServiceSetup::default() });
    let client = service.client();
    client.grant(&ask(3 * GIB, json!({"time_s": 3600})));
    let user = client.lease("L1").user;
    let job = WrappedProgram::start(&service, &["--vram", "2G", "--", "true"]);
    let waits = await_state(&client, "L2", LeaseState::Waiting);
    let free = sublet_wire::size::show(client.card().promisable_bytes);
    let said = format!("GPU 0 has {free} free, 2 GiB are needed; {user} holds 3 GiB (L1)");
    assert_eq!(why(&waits), said);
    job.await_output(&said);
    let printed = service.dir().join("printed");
    let mut lease = service.command(&["lease", "--vram", "2G"]);
    lease.stdout(Stdio::null()).stderr(fs::File::create(&printed).expect("a file"));
    let mut lease = lease.spawn().expect("a program");
    let behind = format!("1 request is ahead; {said}");
    until("a second request says the same", LONG, || match fs::read_to_string(&printed) {
        Ok(printed) if printed.contains(&behind) => Ok(()),
        printed => Err(printed),
    });
    lease.kill().expect("an own child");
    lease.wait().expect("an own child");
    assert!(successful_output(&service, &["queue"]).contains(&said));
    let explained = successful_output(&service, &["explain", "L2"]);
    assert_eq!(explained.matches(&said).count(), 1, "in the first line, which is not repeated for GPU 0: {explained}");
    let explanation: Explanation = client.get("/v1/leases/L2/explain").read();
    assert_eq!((explanation.summary, explanation.gpus[0].obstacle.clone()), (said.clone(), Some(said)));
}

#[test]
fn an_unleased_process_that_blocks_a_request_is_named_with_the_ways_out() {
    if !is_root() {
        return eprintln!("skipped: only root can be several users");
    }
    let service =
        TestService::start_with(ServiceSetup { gpu: TestGpu::Named("soft:1x4GiB"), ..ServiceSetup::default() });
    let client = service.client();
    let unleased = UnleasedProgram::start_holding_as(&service, Some(ALICE), 2048);
    let pid = unleased.pid();
    until("it is seen with all of its bytes", LONG, || match client.card().unowned_bytes {
        Some(loose) if loose >= 2048 * MIB => Ok(()),
        loose => Err(loose),
    });
    let bob = queues(&client, BOB, 3 * GIB);
    let free = sublet_wire::size::show(client.card().promisable_bytes);
    let process = format!("uid:12345's sublet-example-hold (pid {pid}) uses 2.1 GiB without a lease");
    let head = format!(
        "GPU 0 has {free} free, 3 GiB are needed; {process}; no end is in sight until it ends or gets a lease: "
    );
    // Alice never made a request: mode `adopt` would give her process no lease.
    reads(&client, BOB, &bob.id, &format!("{head}uid:12345 or an operator can run `sublet adopt {pid}`"));
    as_user(ALICE, || client.grant(&ask(64 * MIB + client.card().context_bytes.unwrap_or(GIB / 2), json!({}))));
    let output = service.command(&["explain", &bob.id]).uid(BOB).gid(BOB).output().expect("the command line");
    let or = "or an operator: `sublet enforce mode 0 adopt`";
    assert!(text(&output).contains(&format!("uid:12345 can run `sublet adopt {pid}`, {or}")), "{}", text(&output));
    let alice = queues(&client, ALICE, 3 * GIB);
    let own = as_user(ALICE, || why(&client.lease(&alice.id)));
    assert!(own.contains(&format!("`sublet adopt {pid}`, {or}")) && !own.contains("can run"), "{own}");
    // An end is in sight where an operator has chosen one.
    successful_output(&service, &["enforce", "mode", "0", "enforce", "--yes"]);
    until("its end is told", LONG, || {
        let told = as_user(BOB, || why(&client.lease(&bob.id)));
        let is_told = told.contains(" without a lease and is ") && !told.contains("no end is in sight");
        if is_told { Ok(()) } else { Err(told) }
    });
    successful_output(&service, &["enforce", "mode", "0", "observe", "--yes"]);
    let output = service.command(&["adopt", &pid.to_string()]).uid(ALICE).gid(ALICE).output().expect("a command");
    assert!(output.status.success(), "{}", text(&output));
    until("it has a lease", LONG, || {
        let told = as_user(BOB, || why(&client.lease(&bob.id)));
        let is_told = told.contains("uid:12345 holds ") && !told.contains("without a lease");
        if is_told { Ok(()) } else { Err(told) }
    });
}

#[test]
fn beyond_the_host_and_where_each_sees_itself_no_user_and_no_process_of_another_is_named() {
    if !is_root() {
        return eprintln!("skipped: only root can be several users");
    }
    let config = Some("[tcp]\nlisten = \"127.0.0.1:0\"\n".to_owned());
    let service = TestService::start_with(ServiceSetup { config, ..ServiceSetup::default() });
    let client = service.client();
    let unleased = TestProcess::idle_of(ALICE);
    start_holding(&client, ALICE, 12 * GIB);
    start_holding(&client, CAROL, GIB);
    shows(&service, &json!([{"pid": unleased.pid(), "bytes": 4 * GIB, "busy": true}]), 0);
    let (secret, _) = as_user(BOB, || client.make_token(json!({})));
    let remote = service.remote().with_token(&secret);
    let waiting = queues(&client, BOB, 22 * GIB);
    let hidden = "GPU 0 has 6.8 GiB free, 22 GiB are needed; other users hold 13 GiB, \
        processes without a lease use 4 GiB; no end is in sight until they end or get leases: tell an operator";
    let read = |client: &TestClient| why(&client.lease(&waiting.id));
    until("the token's caller reads no name", LONG, || match read(&remote) {
        told if told == hidden => Ok(()),
        told => Err(told),
    });
    let local = as_user(BOB, || read(&client));
    assert!(local.contains("uid:12345's sleep (pid "), "the same user on the host reads it: {local}");
    for path in ["", "/explain"] {
        let told = remote.get(&format!("/v1/leases/{}{path}", waiting.id)).text();
        let names = ["12345", "12347", "sleep", "secret plan", "\"L1\""];
        assert!(names.iter().all(|name| !told.contains(name)), "{path}: {told}");
        assert!(!told.contains(&format!("pid {}", unleased.pid())), "{path}: {told}");
    }
    let config = Some("visibility = \"own\"\n".to_owned());
    let service = TestService::start_with(ServiceSetup { config, ..ServiceSetup::default() });
    let client = service.client();
    start_holding(&client, ALICE, 12 * GIB);
    shows(&service, &json!([{"pid": unleased.pid(), "bytes": 4 * GIB, "busy": true}]), 0);
    let waiting = queues(&client, BOB, 22 * GIB);
    let hidden = "GPU 0 has 7.8 GiB free, 22 GiB are needed; another user holds 12 GiB, \
        processes without a lease use 4 GiB; no end is in sight until they end or get leases: tell an operator";
    reads(&client, BOB, &waiting.id, hidden);
    let operators = as_user(0, || why(&client.lease(&waiting.id)));
    assert!(operators.contains("uid:12345 holds 12 GiB (L1), uid:12345's sleep (pid "), "{operators}");
}

#[test]
fn the_largest_three_are_named_and_the_others_counted() {
    if !is_root() {
        return eprintln!("skipped: only root can be several users");
    }
    let service = TestService::start();
    let client = service.client();
    for (n, gib) in [3, 1, 5, 2, 4].into_iter().enumerate() {
        start_holding(&client, ALICE + n as u32, gib * GIB);
    }
    start_holding(&client, ALICE, 2 * GIB);
    let waiting = queues(&client, BOB, 20 * GIB);
    assert_eq!(
        why(&waiting),
        "GPU 0 has 6.8 GiB free, 20 GiB are needed; uid:12345 holds 5 GiB, uid:12347 holds 5 GiB, uid:12349 holds 4 GiB, and 2 more"
    );
}

#[test]
fn bytes_of_the_driver_or_a_display_are_named_only_where_they_make_the_difference() {
    let service = TestService::start();
    let client = service.client();
    let user = client.grant(&ask(20 * GIB, json!({"time_s": 3600}))).user;
    shows(&service, &json!([]), 64 * MIB);
    let waiting = client.queue(&ask(8 * GIB, json!({})));
    let said = format!("GPU 0 has 3.7 GiB free, 8 GiB are needed; {user} holds 20 GiB (L1)");
    until("the driver's bytes are counted and not named", LONG, || match why(&client.lease(&waiting.id)) {
        told if told == said => Ok(()),
        told => Err(told),
    });
    client.delete(&format!("/v1/leases/{}", waiting.id));
    client.delete("/v1/leases/L1");
    shows(&service, &json!([]), 3 * GIB);
    until("the driver's bytes are seen", LONG, || match client.card().unowned_bytes {
        Some(loose) if loose == 3 * GIB => Ok(()),
        loose => Err(loose),
    });
    let waiting = client.queue(&ask(22 * GIB, json!({})));
    assert_eq!(why(&waiting), "GPU 0 has 20.8 GiB free, 22 GiB are needed; the driver or a display uses 3 GiB");
}

#[test]
fn a_request_for_a_whole_gpu_names_what_is_on_it() {
    let service = TestService::start();
    let client = service.client();
    let user = client.grant(&ask(2 * GIB, json!({"time_s": 3600}))).user;
    let answer = client.post("/v1/leases", &json!({"vram_bytes": "whole"}));
    assert_eq!(answer.status, 202, "{}", answer.text());
    assert_eq!(why(&answer.read()), format!("the request is for all of GPU 0; {user} holds 2 GiB (L1)"));
}

#[test]
fn a_tier_is_a_reason_for_an_earlier_place_only_between_different_tiers() {
    let service = proxy::serve();
    let client = service.client();
    let _job = WrappedProgram::start_holding(&service, "3G", "256MiB", &["--idle"]);
    proxy::park(&service, "L1");
    client.grant(&ask(3 * GIB, json!({"time_s": 3600})));
    client.queue(&ask(2 * GIB, json!({})));
    let why_ahead = |id: &str| {
        let explanation: Explanation = client.get(&format!("/v1/leases/{id}/explain")).read();
        explanation.ahead.into_iter().map(|ahead| ahead.why).collect::<Vec<_>>()
    };
    // The parked lease is older than the request before it, but came back to the queue after it.
    post_action(&client, "L1", "resume");
    client.await_lease("it waits", "L1", |lease| lease.waiting.is_some());
    assert_eq!(why_ahead("L1"), ["came earlier"]);
    client.queue(&ask(2 * GIB, json!({"tier": "interactive"})));
    let why = why_ahead("L1");
    assert!(why.iter().any(|why| why.starts_with("its tier and priority count as ")), "{why:?}");
}

/// L1's 700 MiB fit into the parking space and L2's 2 GiB do not: L1 waits for parking space once it wants its GPU back.
#[test]
fn a_lease_that_waits_for_parking_space_says_so_with_the_key_that_raises_it() {
    let config = "ttl = \"5m\"\n[preemption]\nidle_after = \"1s\"\ntime_slice = \"1s\"\n[parking]\nram = \"1G\"\nkeep_free = \"256M\"\nready = \"off\"\n";
    let setup =
        ServiceSetup { gpu: TestGpu::Named("soft:1x4GiB"), config: Some(config.to_owned()), ..ServiceSetup::default() };
    let service = TestService::start_with(setup);
    let client = service.client();
    let flags = ["--vram", "3G", "--tier", "interactive", "--", &example("hold"), "700MiB", "--idle"];
    let mut notebook = WrappedProgram::start(&service, &flags);
    assert!(notebook.line().starts_with("holds "), "{}", notebook.output_text());
    let job = WrappedProgram::start_holding(&service, "3G", "2GiB", &[]);
    await_state(&client, "L1", LeaseState::Parked);
    post_action(&client, "L1", "resume");
    let missing = "2.2 GiB would have to be parked for it, and the parking space has";
    for words in [&["explain", "L1"][..], &["queue"], &["ps"]] {
        until(&format!("{words:?} says what is missing"), LONG, || {
            let said = successful_output(&service, words);
            let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
            let is_said = said.contains(missing) && said.contains("`[parking] ram`");
            if is_said { Ok(()) } else { Err(said) }
        });
    }
    notebook.await_output("`[parking] ram`");
    drop(job);
}
