//! Registers of checkpoints over HTTP: whose they are, what is refused, what survives, and what a full disk does.

use serde_json::{Value, json};
use std::fs;
use std::process::Command;
use sublet_blackbox::user::{as_user, is_root};
use sublet_blackbox::{GIB, HttpReply, MIB, ServiceSetup, TestClient, TestService, ask};
use sublet_wire::{CheckpointRegisters, RegisterChain, RegisterChains, RegisterEntries};

const ALICE: u32 = 12345;
const BOB: u32 = 12346;
/// The largest entry.
const ENTRY_MAX: usize = 1 << 20;

fn entries(register: &str, chain: &str) -> String {
    format!("/v1/registers/{register}/chains/{}/entries", chain.replace('/', "%2F"))
}

fn put(client: &TestClient, chain: &str, number: u64, entry: &[u8]) -> HttpReply {
    client.send("PUT", &format!("{}/{number}", entries("default", chain)), &[], entry)
}

fn read(client: &TestClient, chain: &str) -> Vec<Vec<u8>> {
    let page: RegisterEntries = client.get(&entries("default", chain)).read();
    assert!(!page.more);
    page.entries.into_iter().map(|entry| entry.bytes.0).collect()
}

fn with_config(config: &str) -> TestService {
    TestService::start_with(ServiceSetup { config: Some(config.to_owned()), ..ServiceSetup::default() })
}

#[test]
fn another_users_chain_answers_exactly_like_one_that_does_not_exist() {
    if !is_root() {
        eprintln!("skipped: several users need root");
        return;
    }
    let service = TestService::start();
    let client = service.client();
    for number in 1..=3 {
        assert_eq!(as_user(ALICE, || put(&client, "c/models/job", number, b"alice's")).status, 201);
    }
    let comparable = |answer: HttpReply| {
        let headers = answer.headers.iter().filter(|(name, _)| name != "date").cloned().collect::<Vec<_>>();
        (answer.status, headers, answer.text().replace("c/models/nil", "CHAIN").replace("c/models/job", "CHAIN"))
    };
    let place = |chain: &str| entries("default", chain);
    let calls = |chain: &str| {
        [
            ("GET", place(chain)),
            ("GET", place(chain).trim_end_matches("/entries").to_owned()),
            ("PUT", format!("{}/4", place(chain))),
            ("PUT", format!("{}/2", place(chain))),
            ("DELETE", format!("{}?before=3", place(chain))),
        ]
    };
    for ((method, theirs), (_, none)) in calls("c/models/job").into_iter().zip(calls("c/models/nil")) {
        let ask = |target: &str| as_user(BOB, || comparable(client.send(method, target, &[], b"")));
        assert_eq!(ask(&theirs), ask(&none), "{method} {theirs}");
    }
    // Bob's own chain of the same name begins at its own first entry.
    assert_eq!(as_user(BOB, || put(&client, "c/models/job", 1, b"bob's")).status, 201);
    assert_eq!(as_user(ALICE, || read(&client, "c/models/job")), vec![b"alice's".to_vec(); 3]);
    assert_eq!(as_user(BOB, || read(&client, "c/models/job")), [b"bob's"]);
    let list = |user| as_user(user, || client.get("/v1/registers").read::<CheckpointRegisters>().registers.len());
    assert_eq!((list(ALICE), list(BOB), list(0)), (1, 1, 0));
}

#[test]
fn a_token_uses_the_registers_of_its_user_and_one_that_may_only_read_writes_nothing() {
    let service = with_config("[tcp]\nlisten = \"127.0.0.1:0\"\n");
    let (client, remote) = (service.client(), service.remote());
    let token = |fields: Value| remote.with_token(&client.make_token(fields).0);
    let (own, reader, other) =
        (token(json!({})), token(json!({"read_only": true})), token(json!({"tenant": "user:ana"})));
    assert_eq!(put(&client, "c/models/job", 1, b"local").status, 201);
    assert_eq!(put(&own, "c/models/job", 2, b"remote").status, 201);
    assert_eq!(read(&reader, "c/models/job"), [b"local".to_vec(), b"remote".to_vec()]);
    assert_eq!(put(&reader, "c/models/job", 3, b"no").code(), "read_only");
    let forget = format!("{}?before=2", entries("default", "c/models/job"));
    assert_eq!(reader.delete(&forget).code(), "read_only");
    assert_eq!(put(&other, "c/models/job", 3, b"no").code(), "entry_out_of_order");
    assert_eq!(read(&other, "c/models/job"), Vec::<Vec<u8>>::new());
    assert_eq!(put(&remote, "c/models/job", 3, b"no").code(), "unauthenticated");
}

#[test]
fn what_was_acknowledged_survives_kill_9() {
    let mut service = TestService::start();
    let mut last = 0;
    for _ in 0..3 {
        for _ in 0..20 {
            last += 1;
            let created = put(&service.client(), "c/models/job", last, format!("entry {last}").as_bytes());
            assert_eq!(created.status, 201, "{}", created.text());
        }
        service.kill();
        service.restart();
        let found = read(&service.client(), "c/models/job");
        let expected: Vec<Vec<u8>> = (1..=last).map(|number| format!("entry {number}").into_bytes()).collect();
        assert_eq!(found, expected);
    }
    assert_eq!(put(&service.client(), "c/models/job", last, b"again").code(), "entry_taken");
    assert_eq!(put(&service.client(), "c/models/job", last + 2, b"too far").code(), "entry_out_of_order");
}

#[test]
fn names_numbers_and_sizes_that_cannot_be_are_refused() {
    let service = TestService::start();
    let client = service.client();
    let send = |method: &str, target: &str| client.send(method, target, &[], b"");
    let long = "x".repeat(201);
    for target in [
        "/v1/registers/..%2f..%2fjournal/chains",
        "/v1/registers/%2e%2e/chains",
        "/v1/registers/.hidden/chains",
        "/v1/registers/a%00b/chains",
        "/v1/registers/%ff/chains",
        &format!("/v1/registers/{}/chains", "x".repeat(65)),
        &format!("/v1/registers/a/chains/{long}"),
        "/v1/registers/a/chains/c%20d",
        "/v1/registers/a/chains?after=",
        "/v1/registers/a/chains?after=a%20b",
        "/v1/registers/a/chains/%2Fetc",
        "/v1/registers/a/chains/c%2Fa/entries?from=0",
        "/v1/registers/a/chains/c%2Fa/entries?from=-1",
        "/v1/registers/a/chains/c%2Fa/entries?limit=0",
        "/v1/registers/a/chains/c%2Fa/entries?limit=1001",
        "/v1/registers/a/chains/c%2Fa/entries?form=1",
    ] {
        assert_eq!(send("GET", target).code(), "bad_request", "{target}");
    }
    for target in ["entries/0", "entries/-1", "entries/x", "entries/9223372036854775808", "entries/1.0"] {
        assert_eq!(send("PUT", &format!("/v1/registers/a/chains/c%2Fa/{target}")).code(), "bad_request", "{target}");
    }
    for target in ["entries", "entries?before=0", "entries?before=x"] {
        assert_eq!(send("DELETE", &format!("/v1/registers/a/chains/c%2Fa/{target}")).code(), "bad_request", "{target}");
    }
    assert_eq!(send("POST", "/v1/registers").code(), "bad_method");
    assert_eq!(put(&client, "c/a", 1, &vec![7; ENTRY_MAX + 1]).code(), "too_large");
    assert_eq!(client.get("/v1/registers").read::<CheckpointRegisters>().registers, [], "a refusal makes no register");
    assert_eq!(put(&client, "c/a", 1, b"").status, 201);
    assert_eq!(put(&client, "c/a", 2, &vec![7; ENTRY_MAX]).status, 201);
    assert_eq!(read(&client, "c/a"), [vec![], vec![7; ENTRY_MAX]]);
}

#[test]
fn chains_and_entries_come_in_pages() {
    let service = TestService::start();
    let client = service.client();
    for chain in ["c/a", "c/b", "e/a"] {
        for number in 1..=7 {
            assert_eq!(put(&client, chain, number, &[number as u8; 10]).status, 201);
        }
    }
    let page = |query: &str| -> RegisterEntries { client.get(&format!("{}{query}", entries("default", "c/b"))).read() };
    let numbers = |page: &RegisterEntries| page.entries.iter().map(|entry| entry.number).collect::<Vec<_>>();
    let first = page("?limit=4");
    assert_eq!((numbers(&first), first.more), (vec![1, 2, 3, 4], true));
    let second = page("?from=5&limit=4");
    assert_eq!((numbers(&second), second.more), (vec![5, 6, 7], false));
    let forgotten = client.delete(&format!("{}?before=6", entries("default", "c/b")));
    assert_eq!(forgotten.read::<RegisterChain>(), RegisterChain { name: "c/b".to_owned(), last: 7 });
    assert_eq!(numbers(&page("")), [6, 7]);
    let chains = |query: &str| -> RegisterChains { client.get(&format!("/v1/registers/default/chains{query}")).read() };
    let listed = chains("?limit=2");
    assert_eq!((listed.chains.len(), listed.more, listed.chains[1].last), (2, true, 7));
    let rest = chains("?after=c%2Fb&limit=2");
    assert_eq!((rest.chains.len(), rest.more, rest.chains[0].name.as_str()), (1, false, "e/a"));
}

#[test]
fn a_register_at_its_limit_refuses_entries_and_takes_them_again_after_a_forget() {
    let service = with_config("[registers]\nsize = \"4M\"\nper_user = 2\n");
    let client = service.client();
    let entry = vec![7; ENTRY_MAX];
    let refusal = (1..=8).map(|number| put(&client, "c/a", number, &entry)).find(|answer| answer.status != 201);
    let refusal = refusal.expect("it is full before 8 MiB are in it");
    let problem = refusal.problem();
    assert_eq!((problem.code.as_str(), problem.status), ("register_full", 507));
    assert!(problem.hint.is_some_and(|hint| hint.contains("`size` in `[registers]`")));
    let last = client.get(entries("default", "c/a").trim_end_matches("/entries")).read::<RegisterChain>().last;
    assert!(last >= 2, "{last}");
    // Another register has room of its own, and a third one is refused.
    let elsewhere = |register: &str| client.send("PUT", &format!("{}/1", entries(register, "c/a")), &[], b"x");
    assert_eq!(elsewhere("second").status, 201);
    assert_eq!(elsewhere("third").code(), "register_full");
    assert_eq!(client.delete(&format!("{}?before={last}", entries("default", "c/a"))).status, 200);
    assert_eq!(put(&client, "c/a", last + 1, &entry).status, 201);
}

#[test]
fn a_daemon_that_keeps_no_registers_says_so() {
    let service = with_config("[registers]\nper_user = 0\n");
    let refusal = put(&service.client(), "c/a", 1, b"x").problem();
    assert_eq!(refusal.code.as_str(), "register_full");
    assert_eq!(refusal.detail, "this daemon keeps no registers of checkpoints");
}

#[test]
fn a_register_that_cannot_be_used_takes_nothing_else_with_it() {
    let mut service = TestService::start();
    let register = |user: &str| service.state_dir().join(format!("registers/{user}/default.db"));
    let (own, uid) = (service.client(), own_uid());
    assert_eq!(put(&own, "c/a", 1, b"x").status, 201);
    let file = register(&format!("uid:{uid}"));
    assert!(file.is_file());
    service.kill();
    fs::write(&file, vec![0x5a; 8_192]).expect("a file can be written");
    for other in ["db-wal", "db-shm"] {
        let _ = fs::remove_file(file.with_extension(other));
    }
    service.restart();
    let refusal = put(&service.client(), "c/a", 2, b"x").problem();
    assert_eq!((refusal.code.as_str(), refusal.status), ("register_damaged", 503));
    let elsewhere = service.client().send("PUT", &format!("{}/1", entries("other", "c/a")), &[], b"x");
    assert_eq!(elsewhere.status, 201);
    service.client().grant(&ask(GIB, json!({})));
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[test]
fn entries_leave_the_journal_its_room_on_a_full_disk() {
    let mount = tempfile::tempdir().expect("a directory can be made");
    let state = mount.path().join("state");
    let script = format!(
        "mount -t tmpfs -o size=160m small {} && mkdir -p -m 700 {} && exec \"$@\"",
        mount.path().display(),
        state.display()
    );
    let through: Vec<String> =
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", &script, "sh"].map(str::to_owned).to_vec();
    if !Command::new(&through[0]).args(&through[1..]).arg("true").output().is_ok_and(|out| out.status.success()) {
        eprintln!("skipped: no small disk can be mounted here (it takes root)");
        return;
    }
    let service = TestService::start_with(ServiceSetup { state: Some(state), through, ..ServiceSetup::default() });
    let client = service.client();
    let entry = vec![7; ENTRY_MAX];
    let refusal = (1..=200).map(|number| put(&client, "c/a", number, &entry)).find(|answer| answer.status != 201);
    let problem = refusal.expect("the disk has no 200 MiB").problem();
    assert_eq!((problem.code.as_str(), problem.detail.as_str()), ("register_full", "the daemon's disk is full"));
    // An entry that is there is taken, and nothing is made in a new register.
    assert_eq!(put(&client, "c/a", 1, &entry).code(), "entry_taken");
    assert_eq!(client.send("PUT", &format!("{}/1", entries("other", "c/a")), &[], b"x").code(), "register_full");
    assert_eq!(client.get("/v1/registers").read::<CheckpointRegisters>().registers.len(), 1);
    // Leases are granted all the same, and what is there can be read.
    client.grant(&ask(300 * MIB, json!({})));
    let chain: RegisterChain = client.get(entries("default", "c/a").trim_end_matches("/entries")).read();
    assert!(chain.last > 8, "{chain:?}");
}
