//! The recipe on a private daemon with soft GPUs.

use cookbook_gpu_studio::{SessionRequest, Studio, StudioError, StudioEvent, StudioLimits};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use sublet::testing::{LocalHost, until};
use sublet::{FabricError, GpuSession, LeaseStatus};

const GIB: u64 = 1 << 30;

/// One test at a time has the four GPUs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn studio(host: &LocalHost, dir: &tempfile::TempDir, limits: StudioLimits) -> Studio {
    Studio::new(host.fabric().clone(), dir.path(), limits)
}

/// Work of a session: the state goes over the GPU and comes back one byte longer.
fn grow(session: &GpuSession, state: &mut Vec<u8>) -> Result<(), FabricError> {
    state.push(state.len() as u8);
    let buffer = session.mem_alloc(state.len() as u64)?;
    session.mem_write(&buffer, 0, state)?;
    *state = session.mem_read(&buffer, 0, state.len() as u64)?;
    Ok(())
}

#[test]
fn sessions_of_users_work_on_leases_of_their_own_and_are_metered_apart() {
    let (_alone, host, dir) =
        (alone(), LocalHost::start().expect("a daemon"), tempfile::tempdir().expect("a directory"));
    let mut studio = studio(&host, &dir, StudioLimits::default());
    studio.open("a1", &SessionRequest::interactive("ann", 2 * GIB), 1.0).expect("there is room");
    studio.open("b1", &SessionRequest::interactive("bob", 4 * GIB), 1.0).expect("there is room");
    for now in 0..3 {
        studio.work("a1", f64::from(now), grow).expect("it works");
    }
    studio.work("b1", 3.0, grow).expect("it works");
    studio.save("a1").expect("it is saved");
    let usage = studio.usage();
    assert_eq!((usage["ann"].leases, usage["ann"].checkpoint_bytes), (1, 3));
    assert_eq!((usage["bob"].leases, usage["bob"].checkpoint_bytes), (1, 0));
    studio.close("b1");
    assert!(studio.lease("b1").is_none());
    assert_eq!(studio.usage()["bob"].leases, 1, "what was used stays");
}

#[test]
fn a_user_beyond_the_cap_is_refused_before_any_gpu_is_asked_for() {
    let (_alone, host, dir) =
        (alone(), LocalHost::start().expect("a daemon"), tempfile::tempdir().expect("a directory"));
    let mut studio = studio(&host, &dir, StudioLimits { sessions_per_user: 1, ..StudioLimits::default() });
    studio.open("a1", &SessionRequest::interactive("ann", GIB), 1.0).expect("there is room");
    let refused = studio.open("a2", &SessionRequest::interactive("ann", GIB), 1.0).expect_err("one is the most");
    assert!(matches!(refused, StudioError::TooManySessions { most: 1 }), "{refused:?}");
    studio.open("b1", &SessionRequest::interactive("bob", GIB), 1.0).expect("others have room");
}

#[test]
fn a_full_studio_offers_a_smaller_lease() {
    let (_alone, host, dir) =
        (alone(), LocalHost::start().expect("a daemon"), tempfile::tempdir().expect("a directory"));
    let mut studio = studio(&host, &dir, StudioLimits { sessions_per_user: 8, ..StudioLimits::default() });
    for gpu in 0..4 {
        studio.open(&format!("a{gpu}"), &SessionRequest::interactive("ann", 14 * GIB), 1.0).expect("there is room");
    }
    let request = SessionRequest { least_bytes: Some(2 * GIB), ..SessionRequest::interactive("bob", 14 * GIB) };
    studio.open("b1", &request, 1.0).expect("a smaller one");
    let vram = studio.lease("b1").expect("a lease").vram_bytes();
    assert!((2 * GIB..14 * GIB).contains(&vram), "{vram}");
}

#[test]
fn an_idle_session_is_ended_and_opened_again_with_its_state() {
    let (_alone, host, dir) =
        (alone(), LocalHost::start().expect("a daemon"), tempfile::tempdir().expect("a directory"));
    let mut studio = studio(&host, &dir, StudioLimits { idle: Duration::ZERO, ..StudioLimits::default() });
    studio.open("a1", &SessionRequest::interactive("ann", GIB), 1.0).expect("there is room");
    studio.work("a1", 1.0, grow).expect("it works");
    studio.save("a1").expect("it is saved");
    studio.work("a1", 1.0, grow).expect("it works");
    assert_eq!(studio.tick(2.0), [StudioEvent::Idle { session: "a1".to_owned() }]);
    let refused = studio.work("a1", 3.0, grow).expect_err("it ended");
    assert!(matches!(refused, StudioError::NoSuchSession) && refused.to_string().contains("open it again"));
    studio.open_again("a1").expect("there is room");
    studio
        .work("a1", 4.0, |_, state| {
            assert_eq!(state, &[0]);
            Ok(())
        })
        .expect("it works");
}

#[test]
fn a_preempted_session_is_reported_once_and_survives_a_restart_of_the_studio() {
    let (_alone, host, dir) =
        (alone(), LocalHost::start().expect("a daemon"), tempfile::tempdir().expect("a directory"));
    let mut first = studio(&host, &dir, StudioLimits::default());
    first.open("a1", &SessionRequest::interactive("ann", GIB), 1.0).expect("there is room");
    first.work("a1", 1.0, grow).expect("it works");
    first.save("a1").expect("it is saved");
    host.revoke(first.lease("a1").expect("a lease").lease_id()).expect("it can be ended");
    let events = until("the end is noticed", || Some(first.tick(1.0)).filter(|events| !events.is_empty()));
    assert!(matches!(&events[..], [StudioEvent::Preempted { session, .. }] if session == "a1"), "{events:?}");
    assert!(first.tick(1.0).is_empty());
    drop(first);
    let mut second = studio(&host, &dir, StudioLimits::default());
    second.open_again("a1").expect("there is room");
    assert_eq!(second.lease("a1").expect("a lease").status(), LeaseStatus::Active);
    second
        .work("a1", 5.0, |_, state| {
            assert_eq!(state, &[0]);
            Ok(())
        })
        .expect("it works");
}
