//! A daemon that is gone: work goes on until the time of the lease is over, then it stops, and goes on with the daemon.

use std::thread;
use std::time::{Duration, Instant};
use sublet::testing::LocalHost;
use sublet::{FabricError, GpuSession, LeaseStatus};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn without_the_daemon_work_stops_when_the_time_of_the_lease_is_over_and_goes_on_with_it() {
    let host = LocalHost::start().expect("a daemon");
    let lease = host.fabric().alloc_gpu().min_vram(1 << 30).lease_secs(3).acquire().expect("there is room");
    let session = GpuSession::new(&lease);
    let buffer = session.mem_alloc(4).expect("memory");
    session.mem_write(&buffer, 0, &[1, 2, 3, 4]).expect("it is written");
    host.kill();
    let deadline = Instant::now() + LONG;
    let error = loop {
        match session.mem_read(&buffer, 0, 4_u32) {
            Ok(_) => assert!(Instant::now() < deadline, "it goes on without end"),
            Err(error) => break error,
        }
        thread::sleep(Duration::from_millis(20));
    };
    assert!(matches!(error, FabricError::Disconnected { .. }), "{error:?}");
    assert!(error.to_string().contains("does not say whether it was extended"), "{error}");
    assert!(error.is_transient() && error.remedy().contains("sublet doctor"), "{}", error.remedy());
    assert_eq!(lease.status(), LeaseStatus::Disconnected);
    host.crash_and_restart().expect("it comes back");
    // The daemon was away, so it ended nothing.
    let deadline = Instant::now() + LONG;
    while lease.status() != LeaseStatus::Active {
        assert!(Instant::now() < deadline, "it is {}", lease.status());
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(session.mem_read(&buffer, 0, 4_u32).expect("it is read"), [1, 2, 3, 4]);
}
