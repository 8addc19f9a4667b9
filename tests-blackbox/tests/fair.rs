//! Quotas, budgets, hours, groups and offers of the real daemon, as its callers meet them.

use serde_json::{Value, json};
use std::fs;
use std::process::Output;
use sublet_blackbox::http::{Connection, JSON};
use sublet_blackbox::service::serve_command;
use sublet_blackbox::user::{as_user_in, connection_left_by, is_root};
use sublet_blackbox::{GIB, HttpReply, LONG, ServiceSetup, TestClient, TestService, ask, until};
use sublet_wire::{Explanation, Lease, LeaseState, Offer};

/// A service with these rules. Its tenants are those for which an operator makes tokens.
fn serve(rules: &str) -> TestService {
    TestService::start_with(ServiceSetup { config: Some(with_tcp(rules)), ..ServiceSetup::default() })
}

fn with_tcp(rules: &str) -> String {
    format!("{rules}\n[tcp]\nlisten = \"127.0.0.1:0\"\n")
}

fn tenant(service: &TestService, name: &str) -> TestClient {
    service.remote().with_token(&service.client().make_token(json!({ "tenant": name })).0)
}

/// What the log says after a reload.
const RELOADED: &str = "the configuration was reloaded";

/// Other rules take the place of those there were.
fn reload(service: &TestService, rules: &str) {
    fs::write(service.dir().join("sublet.toml"), with_tcp(rules)).expect("the configuration can be written");
    let before = service.log().matches(RELOADED).count();
    service.reload();
    until("the rules are reloaded", LONG, || {
        if service.log().matches(RELOADED).count() > before { Ok(()) } else { Err(service.log()) }
    });
}

fn why(lease: &Lease) -> &str {
    &lease.waiting.as_ref().expect("it waits").why
}

fn offers(client: &TestClient, lease: &Lease) -> Vec<Offer> {
    client.lease(&lease.id).waiting.expect("it waits").offers
}

fn accept(client: &TestClient, lease: &Lease, vram_bytes: u64) -> HttpReply {
    client.post(&format!("/v1/leases/{}/accept", lease.id), &json!({ "vram_bytes": vram_bytes }))
}

fn output_text(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The bytes of a tenant's active leases.
fn held(service: &TestService, tenant: &str) -> u64 {
    let leases: sublet_wire::Leases = service.client().get("/v1/leases?all=true").read();
    let holds = |lease: &&Lease| lease.tenant == tenant && lease.state == LeaseState::Active;
    leases.leases.iter().filter(holds).map(|lease| lease.vram_bytes.expect("it was granted")).sum()
}

#[test]
fn a_quota_limits_its_tenant_and_no_other() {
    let service = serve("[users.\"user:ana\"]\nvram = \"4G\"");
    let (ana, ana_too, ben) =
        (tenant(&service, "user:ana"), tenant(&service, "user:ana"), tenant(&service, "user:ben"));
    let first = ana.grant(&ask(3 * GIB, json!({})));
    let second = ana_too.queue(&ask(3 * GIB, json!({})));
    assert!(why(&second).contains("you may "), "another token does not help: {}", why(&second));
    // Neither does taking less in several pieces, nor an offer, nor more GPUs.
    assert_eq!(offers(&ana, &second).iter().map(|offer| offer.vram_bytes).max(), Some(GIB));
    assert_eq!(accept(&ana, &second, 2 * GIB).code(), "over_cap");
    let never = ana.post("/v1/leases", &ask(5 * GIB, json!({})));
    assert_eq!((never.status, never.code()), (403, "over_cap"), "{}", never.text());
    assert!(never.text().contains("4 GiB"), "{}", never.text());
    assert!(never.header("retry-after").is_none(), "it will not fit later either");
    ben.grant(&ask(18 * GIB, json!({})));
    assert_eq!(held(&service, "user:ana"), 3 * GIB);
    // Its own lease's end is what it waits for.
    ana.delete(&format!("/v1/leases/{}", first.id));
    ana.await_lease("the second starts", &second.id, |lease| lease.state == LeaseState::Active);
    let third = ana.queue(&ask(2 * GIB, json!({})));
    // A larger quota counts from the reload on; a smaller one ends no lease.
    reload(&service, "[users.\"user:ana\"]\nvram = \"5G\"");
    ana.await_lease("the third starts", &third.id, |lease| lease.state == LeaseState::Active);
    reload(&service, "[users.\"user:ana\"]\nvram = \"1G\"");
    assert_eq!(held(&service, "user:ana"), 5 * GIB);
    let waits = ana.queue(&ask(GIB, json!({})));
    assert!(why(&waits).contains("you may "), "{}", why(&waits));
}

#[test]
fn a_wrong_file_changes_nothing() {
    let service = serve("[caps]\nleases = 1");
    let ana = tenant(&service, "user:ana");
    ana.grant(&ask(GIB, json!({})));
    fs::write(service.dir().join("sublet.toml"), with_tcp("[caps]\nshare = 3")).expect("it can be written");
    service.reload();
    until("the daemon complains", LONG, || {
        if service.log().contains("means nothing in `[caps]`") { Ok(()) } else { Err(service.log()) }
    });
    for senseless in ["queue_max = 0", "share = 0", "caps.waiters = 0", "ttl = \"2h\""] {
        let complaints = || service.log().matches("makes no sense").count();
        let before = complaints();
        fs::write(service.dir().join("sublet.toml"), with_tcp(senseless)).expect("it can be written");
        service.reload();
        until("the daemon complains", LONG, || if complaints() > before { Ok(()) } else { Err(service.log()) });
        let refused = serve_command(service.dir(), &service.dir().join("other"), &service.dir().join("o"))
            .arg("--config")
            .arg(service.dir().join("sublet.toml"))
            .output()
            .expect("a daemon can be started");
        assert_eq!(
            refused.status.code(),
            Some(sublet_wire::exit::CONFIG.into()),
            "{senseless}: {}",
            output_text(&refused)
        );
        assert!(output_text(&refused).contains("makes no sense"), "{senseless}: {}", output_text(&refused));
    }
    assert!(why(&ana.queue(&ask(GIB, json!({})))).contains("you may "));
}

#[test]
fn a_days_gpu_time_is_spent_and_the_refusal_says_when_it_returns() {
    let service = serve("[caps]\ngpu_day = \"60s\"");
    let ana = tenant(&service, "user:ana");
    let never = ana.post("/v1/leases", &ask(20 * GIB, json!({ "time_s": 3600 })));
    assert_eq!(never.code(), "over_cap");
    assert!(never.header("retry-after").is_none(), "no day is long enough for that: {}", never.text());
    // Five sixths of the GPU for a minute are 50 seconds of the 60.
    ana.grant(&ask(20 * GIB, json!({ "time_s": 60 })));
    let today = ana.post("/v1/leases", &ask(20 * GIB, json!({ "time_s": 60 })));
    assert_eq!((today.status, today.code()), (403, "over_cap"), "{}", today.text());
    let seconds: u64 = today.header("retry-after").and_then(|text| text.parse().ok()).expect("it says when");
    assert!((1..=86_400).contains(&seconds), "midnight is {seconds} s away");
    let problem = today.problem();
    assert!(problem.detail.contains("left today"), "{}", today.text());
    assert!(problem.hint.is_some_and(|hint| hint.contains("midnight")), "{}", today.text());
    // What is left is enough for less, and another tenant has its own.
    ana.grant(&ask(GIB, json!({ "time_s": 60 })));
    tenant(&service, "user:ben").queue(&ask(20 * GIB, json!({ "time_s": 60 })));
}

#[test]
fn at_certain_hours_other_rules_hold() {
    let now_and_then = "[caps]\nleases = 1\n[[windows]]\nfrom = \"00:00\"\nto = \"24:00\"\ncaps.leases = 2";
    let service = serve(now_and_then);
    let ana = tenant(&service, "user:ana");
    ana.grant(&ask(GIB, json!({})));
    ana.grant(&ask(GIB, json!({})));
    let third = ana.queue(&ask(GIB, json!({})));
    assert!(why(&third).contains("you may "), "{}", why(&third));
    // The last one that holds counts.
    reload(&service, &format!("{now_and_then}\n[[windows]]\nfrom = \"12:00\"\nto = \"12:00\"\ncaps.leases = 3"));
    ana.await_lease("the third starts", &third.id, |lease| lease.state == LeaseState::Active);
}

#[test]
fn members_of_a_group_share_what_the_group_has() {
    const ANA: u32 = 12_347;
    const BEN: u32 = 12_348;
    const CY: u32 = 12_349;
    if !is_root() {
        eprintln!("skipped: members_of_a_group_share_what_the_group_has needs root to be three users");
        return;
    }
    // A group that every Linux has, so that nothing must be set up.
    let rules = "[groups.daemon]\nvram = \"6G\"\neach.vram = \"4G\"";
    let service = TestService::start_with(ServiceSetup { config: Some(rules.to_owned()), ..ServiceSetup::default() });
    let client = service.client();
    let wants =
        |uid: u32, gid: u32, gib: u64| as_user_in(uid, gid, || client.post("/v1/leases", &ask(gib * GIB, json!({}))));
    assert_eq!(wants(ANA, 1, 5).code(), "over_cap", "of each member");
    let ana: Lease = wants(ANA, 1, 4).read();
    let ben: Lease = wants(BEN, 1, 3).read();
    assert_eq!((ana.state, ben.state), (LeaseState::Active, LeaseState::Waiting));
    assert!(why(&ben).contains("daemon"), "which group is said: {}", why(&ben));
    assert_eq!(
        wants(CY, CY, 8).read::<Lease>().state,
        LeaseState::Active,
        "a user outside the group has no such quota"
    );
    let end =
        |uid: u32, lease: &Lease| as_user_in(uid, 1, || client.delete(&format!("/v1/leases/{}", lease.id)).status);
    assert_eq!(end(ANA, &ana), 200);
    client.await_lease("the other member starts", &ben.id, |lease| lease.state == LeaseState::Active);
}

#[test]
fn a_groups_quota_holds_whatever_became_of_the_process_that_connected() {
    const ANA: u32 = 12_347;
    if !is_root() {
        eprintln!("skipped: a_groups_quota_holds_whatever_became_of_the_process_that_connected needs root");
        return;
    }
    let rules = "operators = \"bin\"\n[groups.daemon]\nvram = \"6G\"";
    let service = TestService::start_with(ServiceSetup { config: Some(rules.to_owned()), ..ServiceSetup::default() });
    let client = service.client();
    let left = |uid: u32, group: u32| {
        // The daemon meets the connection when the process is gone.
        let stream = service.while_stopped(|| connection_left_by(uid, group, client.socket()));
        let stream = stream.expect("a process can connect and end");
        Connection::over(stream).expect("a connection can be bounded")
    };
    let body = ask(8 * GIB, json!({})).to_string();
    let asked = left(ANA, 1).send("POST", "/v1/leases", &[JSON], body.as_bytes()).expect("it is answered");
    assert_eq!(asked.code(), "over_cap", "{}", asked.text());
    // A caller without a live process may be in another namespace, and in a container every user may have any group. So
    // its group gives it no operator's right.
    let drain = format!("/v1/gpus/{}/drain", client.card().uuid);
    let drained = |uid: u32, group: u32| left(uid, group).send("POST", &drain, &[], b"").expect("it is answered");
    assert_eq!(drained(ANA, 2).code(), "denied");
    assert_eq!(drained(ANA, 1).code(), "denied");
    assert_eq!(drained(0, 1).code(), "denied");
}

#[test]
fn a_users_groups_count_whatever_process_or_token_calls() {
    // A user that every Linux has, in a group of its own.
    const DAEMON: u32 = 1;
    if !is_root() {
        eprintln!("skipped: a_users_groups_count_whatever_process_or_token_calls needs root to be another user");
        return;
    }
    let service = serve("[groups.daemon]\nvram = \"6G\"");
    let client = service.client();
    let elsewhere = as_user_in(DAEMON, 65_534, || client.post("/v1/leases", &ask(8 * GIB, json!({}))));
    assert_eq!(elsewhere.code(), "over_cap", "its process left the group, the user did not: {}", elsewhere.text());
    let token = tenant(&service, "uid:1");
    assert_eq!(token.post("/v1/leases", &ask(8 * GIB, json!({}))).code(), "over_cap");
    token.grant(&ask(4 * GIB, json!({})));
    let second = as_user_in(DAEMON, DAEMON, || client.queue(&ask(4 * GIB, json!({}))));
    assert!(why(&second).contains("daemon"), "{}", why(&second));
}

#[test]
fn a_reload_holds_on_connections_that_were_open_before() {
    const ANA: u32 = 12_347;
    if !is_root() {
        eprintln!("skipped: a_reload_holds_on_connections_that_were_open_before needs root to be another user");
        return;
    }
    let service = serve("operators = \"daemon\"");
    let client = service.client();
    let drain = format!("/v1/gpus/{}/drain", client.card().uuid);
    let clear = drain.replace("drain", "clear");
    let mut open = as_user_in(ANA, 1, || client.connect()).expect("it is let in");
    let mut tells = |method: &str, path: &str, body: &str| {
        open.send(method, path, &[JSON], body.as_bytes()).expect("the connection stays open")
    };
    assert_eq!(tells("POST", &drain, "").status, 200);
    assert_eq!(tells("POST", &clear, "").status, 200);
    reload(&service, "[groups.daemon]\nvram = \"6G\"");
    assert_eq!(tells("POST", &drain, "").code(), "denied");
    let asked = tells("POST", "/v1/leases", &ask(8 * GIB, json!({})).to_string());
    assert_eq!(asked.code(), "over_cap", "{}", asked.text());
    reload(&service, "operators = \"daemon\"");
    assert_eq!(tells("POST", &drain, "").status, 200);
}

#[test]
fn keeping_a_lease_whatever_comes_takes_a_quota() {
    let service = serve("[users.\"user:ana\"]\nnever_preempt = \"8G\"");
    let (ana, ben) = (tenant(&service, "user:ana"), tenant(&service, "user:ben"));
    let never = |gib: u64| ask(gib * GIB, json!({ "preempt": "never" }));
    assert_eq!(ben.post("/v1/leases", &never(1)).code(), "over_cap", "no tenant has one by default");
    ana.grant(&never(8));
    assert!(why(&ana.queue(&never(1))).contains("you may "));
    // What may be taken away does not count.
    assert_eq!(ana.post("/v1/leases", &never(9)).code(), "over_cap");
}

#[test]
fn an_offer_is_taken_at_once_or_lapses() {
    let service = serve("");
    let (ana, ben) = (tenant(&service, "user:ana"), tenant(&service, "user:ben"));
    ana.grant(&ask(16 * GIB, json!({})));
    let waits = ben.queue(&ask(12 * GIB, json!({})));
    let offered = offers(&ben, &waits).first().expect("there is room for less").vram_bytes;
    assert!((7 * GIB..8 * GIB).contains(&offered), "{offered}");
    let explained: Explanation = ben.get(&format!("/v1/leases/{}/explain", waits.id)).read();
    assert_eq!(explained.lease.waiting.expect("it waits").offers[0].vram_bytes, offered, "explain says the same");
    for more in [offered + 1, 12 * GIB, 13 * GIB] {
        assert_eq!(accept(&ben, &waits, more).code(), "no_room", "{more}");
    }
    assert_eq!(accept(&ana, &waits, GIB).status, 404, "no other tenant can take it");
    // An offer is no reservation: a request made meanwhile has the room, and the refusal says what is left.
    let meanwhile = tenant(&service, "user:cy").grant(&ask(4 * GIB, json!({})));
    let late = accept(&ben, &waits, offered);
    assert_eq!((late.status, late.code()), (409, "no_room"), "{}", late.text());
    assert_eq!(ben.lease(&waits.id).state, LeaseState::Waiting, "the place is kept");
    let taken: Lease = accept(&ben, &waits, 3 * GIB).read();
    assert_eq!((taken.state, taken.vram_bytes), (LeaseState::Active, Some(3 * GIB)));
    assert_eq!(accept(&ben, &waits, GIB).code(), "lease_active", "the place was given up");
    service.client().delete(&format!("/v1/leases/{}", meanwhile.id));
    assert_eq!(ben.lease(&waits.id).vram_bytes, Some(3 * GIB), "and does not come back");
}

#[test]
fn a_request_that_accepts_less_is_granted_at_once() {
    let service = serve("");
    let (ana, ben) = (tenant(&service, "user:ana"), tenant(&service, "user:ben"));
    ana.grant(&ask(16 * GIB, json!({})));
    let some = ben.grant(&ask(12 * GIB, json!({ "accept_smaller_bytes": 6 * GIB })));
    let granted = some.vram_bytes.expect("it was granted");
    assert!((6 * GIB..12 * GIB).contains(&granted), "{granted}");
    let waits = ben.queue(&ask(12 * GIB, json!({ "accept_smaller_bytes": 6 * GIB })));
    assert_eq!(waits.state, LeaseState::Waiting, "there is less than that");
    for nonsense in [0, 12 * GIB, 13 * GIB] {
        assert_eq!(ben.post("/v1/leases", &ask(12 * GIB, json!({ "accept_smaller_bytes": nonsense }))).status, 422);
    }
    for lease in [waits, some] {
        assert_eq!(ben.delete(&format!("/v1/leases/{}", lease.id)).status, 200);
    }
    let ran = service.cli(&["run", "--vram", "20G", "--accept-smaller", "128M", "--", "true"]);
    assert!(ran.status.success(), "{}", output_text(&ran));
}

#[test]
fn the_queue_is_bounded_for_each_and_for_all() {
    let service = serve("queue_max = 5\n[caps]\nwaiters = 3");
    let (ana, ben) = (tenant(&service, "user:ana"), tenant(&service, "user:ben"));
    ana.grant(&ask(23 * GIB, json!({})));
    let wait: Value = ask(20 * GIB, json!({}));
    for _ in 0..3 {
        ben.queue(&wait);
    }
    let own = ben.post("/v1/leases", &wait);
    assert_eq!((own.status, own.code()), (429, "queue_full"), "{}", own.text());
    assert!(own.header("retry-after").is_some());
    for _ in 0..2 {
        ana.queue(&wait);
    }
    let whole = tenant(&service, "user:cy").post("/v1/leases", &wait);
    assert_eq!((whole.status, whole.code()), (429, "queue_full"), "{}", whole.text());
    assert!(whole.header("retry-after").is_some());
}

#[test]
fn a_chatty_tenant_and_one_with_many_requests_do_not_keep_out_the_rest() {
    // A second of head start instead of a quarter of an hour, and everything else in proportion.
    let service = serve("ttl = \"4s\"\nrenewal_cap = \"4s\"\n[head_start]\ninteractive = \"3s\"\nbatch = \"2s\"");
    let (many, one) = (tenant(&service, "user:many"), tenant(&service, "user:one"));
    let turn: Value = ask(20 * GIB, json!({ "time_s": 1 }));
    let urgent: Value = ask(20 * GIB, json!({ "time_s": 1, "tier": "interactive" }));
    many.grant(&turn);
    let crowd: Vec<Lease> = (0..40).map(|_| many.queue(&urgent)).collect();
    let late = one.queue(&turn);
    one.await_lease("a tenant with one request starts", &late.id, |lease| lease.granted_unix_s.is_some());
    let waiting = crowd.iter().filter(|lease| many.lease(&lease.id).state == LeaseState::Waiting).count();
    assert!(waiting > 20, "the crowd's turns come one by one among the others': {waiting} of 40 wait");
}
