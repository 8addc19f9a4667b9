//! GPU work on leases of soft GPUs: right results, refused calls, handles that free themselves, parks in between.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use sublet::testing::LocalHost;
use sublet::{FabricError, GpuLease, GpuSession, KernelArgs, LeaseStatus};

/// saxpy(u32 n, f32 a, f32 *x, f32 *y): y = a·x + y.
const PTX: &str = include_str!("../../softgpu/kernels/basic.ptx");
const GIB: u64 = 1 << 30;
const LONG: Duration = Duration::from_secs(60);

/// One test at a time has the lease that is bound to this process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lease(host: &LocalHost) -> GpuLease {
    host.fabric().alloc_gpu().min_vram(2 * GIB).lease_secs(300).acquire().expect("there is room")
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

fn await_status(lease: &GpuLease, status: LeaseStatus) {
    let deadline = Instant::now() + LONG;
    while lease.status() != status {
        assert!(Instant::now() < deadline, "it is {}", lease.status());
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_kernel_computes_on_buffers_and_is_metered() {
    let (_alone, host) = (alone(), LocalHost::start().expect("a daemon"));
    let lease = lease(&host);
    let session = GpuSession::new(&lease);
    let (x, y) = (session.mem_alloc(16).expect("memory"), session.mem_alloc(16).expect("memory"));
    session.mem_write(&x, 0, &bytes(&[1.0, 2.0, 3.0, 4.0])).expect("it is written");
    session.mem_write(&y, 0, &bytes(&[10.0; 4])).expect("it is written");
    let module = session.module_load(PTX).expect("it is PTX");
    let args = || KernelArgs::new().push_u32(4).push_f32(2.0).push_buffer(&x).push_buffer(&y);
    session.launch_with_args(&module, "saxpy", [1, 1, 1], [4, 1, 1], args()).expect("it is launched");
    session.sync().expect("it is done");
    assert_eq!(session.mem_read(&y, 0, 16_u32).expect("it is read"), bytes(&[12.0, 14.0, 16.0, 18.0]));
    let stream = session.stream_create().expect("a stream");
    session.launch_on_stream(&stream, &module, "saxpy", [1, 1, 1], [4, 1, 1], args()).expect("it is launched");
    session.stream_sync(&stream).expect("it is done");
    assert_eq!(session.mem_read(&y, 4, 4_u64).expect("it is read"), bytes(&[18.0]));
    let usage = lease.usage();
    assert_eq!((usage.launches, usage.bytes_written, usage.bytes_read, usage.errors), (2, 32, 20, 0));
    drop(stream);
    session.module_unload(module).expect("it is unloaded");
    session.mem_free(x).expect("it is freed");
}

#[test]
fn wrong_calls_are_refused_before_the_driver_sees_them() {
    let (_alone, host) = (alone(), LocalHost::start().expect("a daemon"));
    let lease = lease(&host);
    let (session, other) = (GpuSession::new(&lease), GpuSession::new(&lease));
    let buffer = session.mem_alloc(8).expect("memory");
    let module = session.module_load(PTX).expect("it is PTX");
    let code = |error: FabricError| error.code();
    assert_eq!(session.mem_alloc(0).map_err(code).err(), Some("invalid_argument"));
    assert_eq!(session.mem_write(&buffer, 1, &[0; 8]).map_err(code), Err("invalid_argument"));
    assert_eq!(session.mem_read(&buffer, u64::MAX, 2_u64).map_err(code), Err("invalid_argument"));
    assert_eq!(other.mem_read(&buffer, 0, 8_u64).map_err(code), Err("invalid_argument"));
    let launch = |kernel, args| session.launch_with_args(&module, kernel, [1, 1, 1], [1, 1, 1], args);
    let error = launch("saxpy", KernelArgs::new().push_u32(1)).expect_err("three arguments are missing");
    assert_eq!(
        error.to_string(),
        "kernel `saxpy` takes 4 arguments of 4, 4, 8, 8 bytes, and the call has 1 argument of 4 bytes"
    );
    let error = launch("no_such_kernel", KernelArgs::new()).expect_err("there is no such kernel");
    assert!(matches!(error, FabricError::Driver { call: "cuModuleGetFunction", .. }), "{error:?}");
    assert_eq!(lease.usage().errors, 1, "only the driver's own refusals count");
    assert_eq!(session.module_load("not PTX").map_err(code).err(), Some("driver"));
}

#[test]
fn more_memory_than_the_lease_has_is_refused_with_the_remedy() {
    let (_alone, host) = (alone(), LocalHost::start().expect("a daemon"));
    let lease = lease(&host);
    assert!(lease.is_bound());
    let session = GpuSession::new(&lease);
    let error = session.mem_alloc(3 * GIB).expect_err("the lease is for 2 GiB");
    assert!(matches!(error, FabricError::Driver { code: 2, .. }), "{error:?}");
    assert!(error.remedy().contains("larger lease"), "{}", error.remedy());
    session.mem_alloc(GIB).expect("half of the lease");
}

#[test]
fn after_a_revocation_every_call_fails_closed_and_handles_do_nothing() {
    let (_alone, host) = (alone(), LocalHost::start().expect("a daemon"));
    let lease = lease(&host);
    let session = GpuSession::new(&lease);
    let buffer = session.mem_alloc(8).expect("memory");
    let module = session.module_load(PTX).expect("it is PTX");
    host.revoke(lease.lease_id()).expect("it can be ended");
    await_status(&lease, LeaseStatus::Revoked);
    let launches = lease.usage().launches;
    let args = KernelArgs::new();
    let error = session.launch_with_args(&module, "saxpy", [1, 1, 1], [1, 1, 1], args).expect_err("it is over");
    assert_eq!(error.code(), "revoked");
    for error in [
        session.mem_alloc(8).map(drop).expect_err("it is over"),
        session.mem_write(&buffer, 0, &[1]).expect_err("it is over"),
        session.mem_read(&buffer, 0, 1_u64).map(drop).expect_err("it is over"),
        session.sync().expect_err("it is over"),
        session.module_load(PTX).map(drop).expect_err("it is over"),
        session.mem_free(buffer).expect_err("it is over"),
    ] {
        assert_eq!(error.code(), "revoked", "{error:?}");
    }
    assert_eq!(lease.usage().launches, launches);
    drop((module, session));
    // Another lease of the same process works: the driver is told which lease it is.
    let next = self::lease(&host);
    assert!(next.is_bound());
    let session = GpuSession::new(&next);
    let buffer = session.mem_alloc(8).expect("memory");
    drop(session);
    drop(buffer);
}

#[test]
fn a_session_goes_on_after_a_park_with_its_bytes_in_place() {
    let (_alone, host) = (alone(), LocalHost::start().expect("a daemon"));
    let lease = lease(&host);
    let session = GpuSession::new(&lease);
    let buffer = session.mem_alloc(1 << 20).expect("memory");
    let address = buffer.address();
    let content: Vec<u8> = (0..1 << 20).map(|n: u32| (n * 7 + n / 251) as u8).collect();
    session.mem_write(&buffer, 0, &content).expect("it is written");
    host.park(lease.lease_id()).expect("it is parked");
    await_status(&lease, LeaseStatus::Parked);
    lease.resume(LONG).expect("it comes back");
    assert_eq!(lease.status(), LeaseStatus::Active);
    assert_eq!(session.mem_read(&buffer, 0, 1_u64 << 20).expect("it is read"), content);
    // A call on a parked lease asks for its memory itself, and waits.
    host.park(lease.lease_id()).expect("it is parked");
    assert_eq!(session.mem_read(&buffer, 0, 1_u64 << 20).expect("it is read"), content);
    assert_eq!(buffer.address(), address);
    // The daemon has to see the bytes on the GPU before it says so.
    await_status(&lease, LeaseStatus::Active);
}

#[test]
fn a_dropped_session_frees_what_was_made_in_it() {
    let (_alone, host) = (alone(), LocalHost::start().expect("a daemon"));
    let lease = lease(&host);
    let first = GpuSession::new(&lease);
    let buffer = first.mem_alloc(GIB).expect("memory");
    drop(first);
    let second = GpuSession::new(&lease);
    let (one, two) = (second.mem_alloc(GIB).expect("the first GiB is free again"), buffer);
    drop(two);
    drop(one);
    second.mem_alloc(GIB).expect("and so is this one");
}
