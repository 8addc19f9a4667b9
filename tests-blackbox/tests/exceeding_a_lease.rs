//! Holders without the library that use more of a soft GPU than their leases: told, offered more, parked, ended where
//! an operator set the GPU to `enforce`, and left alone elsewhere.
//!
//! With the library this cannot happen: the program gets an out-of-memory error (`parking.rs`).

use std::time::Duration;
use sublet_blackbox::binary::example;
use sublet_blackbox::programs::{WrappedProgram, await_lease, await_state, successful_output};
use sublet_blackbox::wait::throughout;
use sublet_blackbox::{MIB, ServiceSetup, TestGpu, TestService};
use sublet_wire::{EndReason, Lease, LeaseState, Usage};

/// Terms so long that no lease ends by itself and none counts as idle before the test is over.
const CONFIG: &str = r#"
ttl = "5m"
[preemption]
time_slice = "1s"
idle_after = "10m"
end_grace = "2s"
[parking]
ram = "4G"
keep_free = "256M"
ready = "off"
[enforcement]
overuse = "3s"
warning = "5s"
"#;

fn serve() -> TestService {
    let config = Some(CONFIG.to_owned());
    TestService::start_with(ServiceSetup { gpu: TestGpu::Named("soft:1x4GiB"), config, ..ServiceSetup::default() })
}

/// An interactive program with a lease of 1 GiB that takes `size` of the GPU.
fn start_holding(service: &TestService, size: &str, more: &[&str]) -> WrappedProgram {
    let hold = example("hold");
    let words = [&["--vram", "1G", "--tier", "interactive", "--no-shim"], more, &["--", &hold, size]].concat();
    let mut job = WrappedProgram::start(service, &words);
    assert!(job.line().starts_with("holds "), "{}", job.output_text());
    job
}

fn is_over(lease: &Lease) -> bool {
    lease.overuse.is_some()
}

#[test]
fn a_program_over_its_lease_gets_a_notice_and_can_accept_a_larger_lease_which_is_charged() {
    let service = serve();
    let client = service.client();
    let job = start_holding(&service, "1536MiB", &[]);
    let lease = client.await_lease("it is told", "L1", is_over);
    let over = lease.overuse.expect("it was awaited");
    assert!(over.seen_bytes >= 1536 * MIB, "{over:?}");
    let offer = over.offer_bytes.expect("the GPU has the room");
    assert!(offer >= over.seen_bytes && offer < over.seen_bytes + 64 * MIB, "{over:?}");
    assert_eq!(over.ends_in_s, None, "nothing is enforced: {over:?}");
    job.await_output("on a GPU, and its lease is for 1 GiB");
    job.await_output("`sublet accept L1` makes the lease");
    assert!(successful_output(&service, &["ps"]).contains("active, exceeds lease"), "ps");
    assert!(successful_output(&service, &[]).contains("active, exceeds lease"), "the status");
    let said = successful_output(&service, &["accept", "L1"]);
    assert!(said.starts_with("L1 has 1."), "{said}");
    let larger = client.lease("L1");
    assert_eq!((larger.vram_bytes, larger.overuse), (Some(offer), None));
    throughout(Duration::from_secs(3), || assert_eq!(client.lease("L1").overuse, None, "it is within its lease"));
    job.finish("with a larger lease");
    client.await_lease("it is over", "L1", |lease| lease.state == LeaseState::Ended);
    let usage: Usage = client.get("/v1/usage?by=lease").read();
    let row = usage.rows.iter().find(|row| row.lease.as_deref() == Some("L1")).expect("its use");
    let mean = row.gib_seconds / row.gpu_seconds;
    let largest = offer as f64 / (1024.0 * MIB as f64);
    assert!(mean > 1.05 && mean < largest - 0.02, "{mean} GiB on the average, of 1 and then {largest}: {row:?}");
    let trail = successful_output(&service, &["audit", "--lease", "L1"]);
    assert!(trail.contains("more than its lease; its program is told"), "{trail}");
    assert!(trail.contains("is enlarged to"), "{trail}");
    successful_output(&service, &["journal", "verify", "--state-dir", &service.state_dir().to_string_lossy()]);
}

#[test]
fn a_lease_over_its_size_is_parked_for_a_waiter_of_a_lower_tier() {
    let service = serve();
    let client = service.client();
    // The driver might not be able to restore it; its owner takes the risk.
    let job = start_holding(&service, "2560MiB", &["--may-lose"]);
    client.await_lease("it is told", "L1", is_over);
    let hold = example("hold");
    let mut guest =
        WrappedProgram::start(&service, &["--vram", "2G", "--tier", "spot", "--", &hold, "64MiB", "--seconds", "1"]);
    assert!(guest.line().starts_with("holds "), "{}", guest.output_text());
    let trail = successful_output(&service, &["audit", "--lease", "L1"]);
    assert!(trail.contains("L1 is being parked for L2 by the driver"), "{trail}");
    assert_eq!(guest.end().0, Some(0));
    await_state(&client, "L1", LeaseState::Active);
    job.finish("after it was parked for having too much");
}

#[test]
fn a_lease_over_its_size_that_cannot_be_parked_is_ended_only_in_mode_enforce() {
    let service = serve();
    let client = service.client();
    let job = start_holding(&service, "2560MiB", &[]);
    client.await_lease("it is told", "L1", is_over);
    let hold = example("hold");
    let mut guest = WrappedProgram::start(&service, &["--vram", "2G", "--", &hold, "64MiB", "--seconds", "1"]);
    await_lease(&client, "L2");
    client.await_lease("the other one waits", "L2", |lease| lease.state == LeaseState::Waiting);
    throughout(Duration::from_secs(8), || {
        let lease = client.lease("L1");
        assert_eq!(lease.state, LeaseState::Active, "the GPU is not in mode enforce: {lease:?}");
    });
    successful_output(&service, &["enforce", "mode", "0", "enforce", "--yes"]);
    assert!(guest.line().starts_with("holds "), "{}", guest.output_text());
    let ended = client.await_lease("it is over", "L1", |lease| lease.state == LeaseState::Ended);
    assert_eq!(ended.ended.map(|ended| ended.reason), Some(EndReason::Overuse));
    job.await_output("its program used more than the lease");
    let trail = successful_output(&service, &["audit", "--lease", "L1"]);
    assert!(trail.contains("is told that it ends in 0 s, for L2") && trail.contains("SIGTERM is sent to"), "{trail}");
    assert_eq!(guest.end().0, Some(0));
    let (_, rest) = job.end();
    assert!(rest.contains("bytes as written"), "it heeded SIGTERM: {rest}");
}
