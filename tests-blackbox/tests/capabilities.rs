//! What the daemon needs of root: with these capabilities and no others it does all its work, and without one of them it
//! says what it cannot do.

use sublet_blackbox::programs::{UnleasedProgram, successful_output};
use sublet_blackbox::unleased::{CONFIG, PARKS, assert_in_order, await_closed, await_found, await_unleased, mode};
use sublet_blackbox::user::is_root;
use sublet_blackbox::{LONG, MIB, ServiceSetup, TestClient, TestGpu, TestService, until};
use sublet_wire::{Lease, LeaseState, ParkMethod};

/// As docs/security.md lists them.
const NEEDED: [&str; 4] = ["kill", "sys_ptrace", "net_admin", "dac_override"];
/// A user without any right.
const USER: u32 = 4711;

/// A service of root with these capabilities alone.
fn serve_with(capabilities: &[&str], config: &str) -> TestService {
    let set: String = capabilities.iter().map(|name| format!(",+{name}")).collect();
    let through = ["setpriv", "--bounding-set", &format!("-all{set}")].map(str::to_owned).to_vec();
    let config = Some(config.to_owned());
    TestService::start_with(ServiceSetup {
        gpu: TestGpu::Named("soft:1x4GiB"),
        config,
        through,
        ..ServiceSetup::default()
    })
}

fn without(capability: &str) -> Vec<&'static str> {
    NEEDED.into_iter().filter(|name| *name != capability).collect()
}

/// The lease by which the user's program is parked, once it is in this state.
fn await_lease(client: &TestClient, state: LeaseState) -> Lease {
    until(&format!("L1 is {state:?}"), LONG, || {
        let answer = client.get("/v1/leases/L1");
        let lease = (answer.status == 200).then(|| answer.read::<Lease>());
        lease.filter(|lease| lease.state == state).ok_or_else(|| answer.text())
    })
}

fn is_possible() -> bool {
    if !is_root() {
        eprintln!("skipped: only root has capabilities to drop");
    }
    is_root()
}

#[test]
fn with_the_listed_capabilities_another_users_program_is_parked_and_resumed() {
    if !is_possible() {
        return;
    }
    let service = serve_with(&NEEDED, PARKS);
    let client = service.client();
    let mut alone = UnleasedProgram::start_holding_as(&service, Some(USER), 512);
    await_found(&service, &alone);
    mode(&service, "enforce");
    let parked = await_lease(&client, LeaseState::Parked);
    assert_eq!((parked.method, parked.seen_bytes), (Some(ParkMethod::Driver), Some(0)), "{parked:?}");
    mode(&service, "observe");
    successful_output(&service, &["resume", "L1"]);
    await_lease(&client, LeaseState::Active);
    alone.assert_alive_for(1);
}

#[test]
fn with_the_listed_capabilities_another_users_program_is_ended() {
    if !is_possible() {
        return;
    }
    let service = serve_with(&NEEDED, CONFIG);
    let alone = UnleasedProgram::start_holding_as(&service, Some(USER), 512);
    let stranger = await_found(&service, &alone);
    mode(&service, "enforce");
    assert_eq!(alone.end_signal(), None);
    assert_in_order(&await_closed(&service, &stranger.id), &["SIGTERM will be sent", "SIGTERM was sent"]);
}

#[test]
fn without_cap_kill_a_signal_to_another_user_fails_and_the_trail_says_so() {
    if !is_possible() {
        return;
    }
    let service = serve_with(&without("kill"), CONFIG);
    let mut alone = UnleasedProgram::start_holding_as(&service, Some(USER), 512);
    let stranger = await_found(&service, &alone);
    mode(&service, "enforce");
    let story = until("the failure is on the record", LONG, || {
        let story = successful_output(&service, &["audit", "show", &stranger.id]);
        if story.contains("permitted") { Ok(story) } else { Err(story) }
    });
    assert_in_order(&story, &["SIGTERM will be sent", "permitted"]);
    alone.assert_alive_for(1);
}

#[test]
fn without_cap_sys_ptrace_another_users_program_is_not_parked_by_the_driver() {
    if !is_possible() {
        return;
    }
    let service = serve_with(&without("sys_ptrace"), PARKS);
    let alone = UnleasedProgram::start_holding_as(&service, Some(USER), 512);
    await_unleased(&service, alone.pid(), "it is found", |stranger| stranger.vram_bytes >= Some(512 * MIB));
    let doctor = service.cli(&["doctor"]);
    let told = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(told.contains("CAP_SYS_PTRACE"), "{told}");
}
