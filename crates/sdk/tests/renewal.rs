//! Renewal against a real daemon: leases that are used last, unused ones end, and each end is reported once.

use std::sync::mpsc;
use std::time::{Duration, Instant};
use sublet::testing::LocalHost;
use sublet::{GpuBuilder, GpuLease, RenewWhen, RenewalEvent, RenewalManager, RenewalPolicy};

const LONG: Duration = Duration::from_secs(60);

/// A lease of 24 GiB on its own GPU, so that tests do not wait for one another.
fn lease(host: &LocalHost, gpu: &str, seconds: u64) -> GpuLease {
    let builder: GpuBuilder = host.fabric().alloc_gpu();
    builder.min_vram(1 << 30).on_gpu(gpu).lease_secs(seconds).unbound().acquire().expect("there is room")
}

fn soon() -> RenewalPolicy {
    RenewalPolicy::renewing(RenewWhen::Every(Duration::from_millis(500)))
}

#[test]
fn an_unbound_lease_that_is_used_is_renewed_from_the_background() {
    let host = LocalHost::start().expect("a daemon");
    let lease = lease(&host, "0", 60);
    let mut manager = RenewalManager::new();
    manager.register(lease.lease_id(), lease.expires_at_unix_secs(), soon());
    let (events, told) = mpsc::channel();
    let renewal =
        manager.run_in_background(move |event| events.send(event).expect("it is received")).expect("a thread");
    lease.note_activity();
    let event = told.recv_timeout(LONG).expect("it is renewed");
    assert!(matches!(&event, RenewalEvent::Renewed { lease: id, .. } if id == lease.lease_id()), "{event:?}");
    // Without new activity there is no second renewal; the end is the next event.
    host.revoke(lease.lease_id()).expect("it can be ended");
    let event = told.recv_timeout(LONG).expect("its end is reported");
    assert!(matches!(&event, RenewalEvent::Preempted { lease: id, .. } if id == lease.lease_id()), "{event:?}");
    assert!(renewal.with_manager(|manager| manager.is_empty()), "it is reported once");
    drop(renewal);
    assert!(told.try_recv().is_err());
}

#[test]
fn a_renewal_moves_the_expiry_that_the_guard_shows() {
    let host = LocalHost::start().expect("a daemon");
    let lease = lease(&host, "1", 300);
    let mut manager = RenewalManager::new();
    let before = lease.expires_at_unix_secs();
    manager.register(lease.lease_id(), before, RenewalPolicy::renewing(RenewWhen::Every(Duration::ZERO)));
    lease.note_activity();
    let deadline = Instant::now() + LONG;
    while lease.expires_at_unix_secs() <= before {
        assert!(Instant::now() < deadline, "it is not renewed");
        lease.note_activity();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        for event in manager.tick(now.as_secs_f64()) {
            assert!(matches!(event, RenewalEvent::Renewed { .. }), "{event:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_dropped_lease_is_forgotten_without_an_event() {
    let host = LocalHost::start().expect("a daemon");
    let lease = lease(&host, "2", 300);
    let mut manager = RenewalManager::new();
    manager.register(lease.lease_id(), lease.expires_at_unix_secs(), RenewalPolicy::default());
    drop(lease);
    assert_eq!((manager.tick(0.0), manager.len()), (Vec::new(), 0));
}
