//! Several open files stand for several processes: the kernel's locks treat them alike.

use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use sublet_softgpu::checkpoint::Refused;
use sublet_softgpu::state::{Checkpoint, Full, IDLE_BYTES, SOFT_UUID};
use sublet_softgpu::{CardFault, CheckpointFault, Seat, State, StateError};

const GIB: u64 = 1 << 30;

fn cards(dir: &Path, spec: &str) -> State {
    State::create(&dir.join("cards"), &spec.parse().unwrap()).unwrap()
}

fn sit(dir: &Path) -> Seat {
    Seat::take(State::open(&dir.join("cards")).unwrap()).unwrap()
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn nobody_gets_what_another_has_and_it_comes_back_with_its_owner() {
    let dir = directory();
    let state = cards(dir.path(), "2x4GiB");
    let (one, two) = (sit(dir.path()), sit(dir.path()));
    assert_eq!(one.reserve(0, 3 * GIB), Ok(()));
    assert_eq!(two.reserve(0, GIB), Err(Full), "the driver keeps a little");
    assert_eq!(two.reserve(0, GIB - IDLE_BYTES), Ok(()));
    assert_eq!(two.reserve(1, 3 * GIB), Ok(()), "another GPU is another matter");
    assert_eq!(two.reserve(2, 1), Err(Full), "there is no such GPU");
    assert_eq!((state.processes_on(0).count(), state.processes_on(1).count()), (2, 1));
    assert_eq!((state.used(0), two.state().used(0)), (4 * GIB, 4 * GIB));
    one.give_back(0, GIB);
    assert_eq!(two.reserve(0, GIB), Ok(()));
    drop(one);
    assert_eq!(state.used(0), 2 * GIB);
    assert_eq!(state.processes().count(), 1);
}

#[test]
fn threads_of_one_process_do_not_get_the_same_bytes() {
    let dir = directory();
    let state = cards(dir.path(), "1x4GiB");
    let seat = sit(dir.path());
    // Three threads, and room for two of them.
    let one = (4 * GIB - IDLE_BYTES) / 2;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    if seat.reserve(0, one).is_ok() {
                        assert!(state.used(0) <= 4 * GIB, "{}", state.used(0));
                        seat.give_back(0, one);
                    }
                }
            });
        }
    });
    assert_eq!(state.used(0), IDLE_BYTES);
}

#[test]
fn the_same_cards_are_kept_and_others_only_made_when_nobody_is_there() {
    let dir = directory();
    let path = dir.path().join("cards");
    let state = cards(dir.path(), "1x4GiB");
    let uuid = |state: &State| state.cards()[0].uuid.iter().map(|byte| byte.load(SeqCst)).collect::<Vec<_>>();
    let seat = sit(dir.path());
    seat.reserve(0, GIB).unwrap();
    assert_eq!(State::create(&path, &"1x4GiB".parse().unwrap()).unwrap().used(0), IDLE_BYTES + GIB);
    let refused = State::create(&path, &"2x8GiB".parse().unwrap());
    assert!(matches!(refused, Err(StateError::InUse { .. })), "{refused:?}");
    drop(seat);
    let other = State::create(&path, &"2x8GiB".parse().unwrap()).unwrap();
    assert_eq!((other.cards().len(), other.used(0)), (2, IDLE_BYTES));
    assert_eq!(uuid(&state), uuid(&other), "a GPU's name stays");
    let (first, second) = (other.cards()[0].uuid_text(), other.cards()[1].uuid_text());
    assert!(first != second && [&first, &second].iter().all(|uuid| uuid.starts_with(SOFT_UUID)), "{first} {second}");
    assert_eq!(first.split('-').map(str::len).collect::<Vec<_>>(), [3, 8, 4, 4, 4, 12], "{first}");
    assert_eq!(other.cards()[0].name_text(), "Sublet Soft 8GiB");
    std::fs::write(dir.path().join("text"), "not GPUs").unwrap();
    assert!(matches!(State::open(&dir.path().join("text")), Err(StateError::NotCards { .. })));
    assert!(matches!(State::open(&dir.path().join("none")), Err(StateError::File { .. })));
}

#[test]
fn a_link_or_another_users_file_is_not_taken_for_the_cards() {
    let dir = directory();
    let spec = "1x4GiB".parse().unwrap();
    let (target, path) = (dir.path().join("target"), dir.path().join("cards"));
    std::fs::write(&target, "precious").unwrap();
    std::os::unix::fs::symlink(&target, &path).unwrap();
    assert!(matches!(State::create(&path, &spec), Err(StateError::File { .. })), "a link");
    std::fs::remove_file(&path).unwrap();
    std::fs::hard_link(&target, &path).unwrap();
    assert!(matches!(State::create(&path, &spec), Err(StateError::Foreign { .. })), "a second name");
    assert_eq!(std::fs::read(&target).unwrap(), b"precious");
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "").unwrap();
    if std::os::unix::fs::chown(&path, Some(12345), None).is_err() {
        return eprintln!("the rest was skipped: only root can give a file away");
    }
    assert!(matches!(State::create(&path, &spec), Err(StateError::Foreign { uid: 12345, .. })), "another user's");
}

#[test]
fn a_process_is_taken_off_its_card_and_put_back() {
    let dir = directory();
    let state = cards(dir.path(), "1x4GiB");
    let pid = std::process::id();
    assert_eq!(state.checkpoint_state(pid), Err(Refused::NotInitialised), "it is not there");
    let seat = sit(dir.path());
    seat.reserve(0, 3 * GIB).unwrap();
    assert_eq!(state.checkpoint_state(pid), Ok(Checkpoint::Running));
    assert_eq!(state.checkpoint_save(pid), Err(Refused::IllegalState), "it is not locked");
    let inside = seat.pass();
    let soon = Some(Duration::from_millis(20));
    assert_eq!(state.checkpoint_lock(pid, soon), Err(Refused::NotReady), "a call is under way");
    assert_eq!(state.checkpoint_state(pid), Ok(Checkpoint::Running));
    drop(inside);
    assert_eq!(state.checkpoint_lock(pid, soon), Ok(()));
    assert_eq!(state.checkpoint_save(pid), Ok(()));
    assert_eq!((state.used(0), state.checkpoint_state(pid)), (IDLE_BYTES, Ok(Checkpoint::Checkpointed)));
    assert_eq!(state.checkpoint_unlock(pid), Err(Refused::IllegalState));
    assert_eq!(state.checkpoint_restore(pid), Ok(()));
    assert_eq!(state.used(0), IDLE_BYTES + 3 * GIB);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| drop(seat.pass()));
        assert_eq!(state.checkpoint_unlock(pid), Ok(()));
        waits.join().unwrap();
    });
}

#[test]
fn who_dies_while_it_locks_leaves_the_gate_open() {
    let dir = directory();
    let state = cards(dir.path(), "1x4GiB");
    let seat = sit(dir.path());
    let row = seat.row();
    row.checkpoint.store(Checkpoint::Locking as u32, SeqCst);
    drop(seat.pass());
    assert_eq!(row.checkpoint.load(SeqCst), Checkpoint::Running as u32);
    row.checkpoint.store(Checkpoint::Locking as u32, SeqCst);
    assert_eq!(state.checkpoint_lock(std::process::id(), None), Ok(()), "another takes its place");
    assert_eq!(state.checkpoint_lock(std::process::id(), None), Err(Refused::IllegalState));
    assert_eq!(state.checkpoint_unlock(std::process::id()), Ok(()));
}

#[test]
fn a_restore_without_room_loses_the_process() {
    let dir = directory();
    let state = cards(dir.path(), "1x4GiB");
    let pid = std::process::id();
    let seat = sit(dir.path());
    seat.reserve(0, 3 * GIB).unwrap();
    state.checkpoint_lock(pid, None).unwrap();
    state.checkpoint_save(pid).unwrap();
    // Another process with the same id, as far as the accounts are concerned: it has the GPU now.
    let other = sit(dir.path());
    other.row().pid.store(pid + 1, SeqCst);
    other.reserve(0, 2 * GIB).unwrap();
    assert_eq!(state.checkpoint_restore(pid), Err(Refused::OutOfMemory));
    drop(other);
    assert_eq!(state.checkpoint_restore(pid), Err(Refused::OperatingSystem), "for good");
    assert_eq!(state.checkpoint_unlock(pid), Err(Refused::IllegalState));
}

#[test]
fn faults_happen_when_they_are_ordered() {
    let dir = directory();
    let state = cards(dir.path(), "1x4GiB");
    let pid = std::process::id();
    let seat = sit(dir.path());
    seat.row().cards[0].contexts.store(1, SeqCst);
    assert!(state.fault(0, CardFault::Allocations(2)) && !state.fault(1, CardFault::Allocations(2)));
    assert_eq!((seat.reserve(0, 1), seat.reserve(0, 1), seat.reserve(0, GIB)), (Err(Full), Err(Full), Ok(())));
    state.fault(0, CardFault::Checkpoint(CheckpointFault::TimesOut));
    assert_eq!(state.checkpoint_lock(pid, Some(Duration::from_millis(5))), Err(Refused::NotReady));
    state.fault(0, CardFault::Checkpoint(CheckpointFault::FreesNothing));
    state.checkpoint_lock(pid, None).unwrap();
    assert_eq!((state.checkpoint_save(pid), state.used(0)), (Ok(()), IDLE_BYTES + GIB));
    state.fault(0, CardFault::Clear);
    seat.row().managed.store(1, SeqCst);
    seat.row().checkpoint.store(Checkpoint::Locked as u32, SeqCst);
    assert_eq!(state.checkpoint_save(pid), Err(Refused::NotSupported));
    assert_eq!(state.checkpoint_unlock(pid), Ok(()), "and it is unharmed");
}

#[test]
fn busy_time_is_the_time_in_which_kernels_ran() {
    let dir = directory();
    let state = cards(dir.path(), "1x4GiB");
    let seat = sit(dir.path());
    let busy = || state.processes().next().unwrap().busy_ns(0);
    assert_eq!(busy(), 0);
    let (one, two) = (seat.kernel(0), seat.kernel(0));
    let begun = sublet_softgpu::state::now_ns();
    while busy() < 2_000_000 {}
    drop(one);
    assert!(seat.row().cards[0].busy_since.load(SeqCst) > 0, "one still runs");
    drop(two);
    let (sum, wall) = (busy(), sublet_softgpu::state::now_ns() - begun);
    assert!(sum >= 2_000_000 && sum <= wall + 1_000_000, "{sum} of {wall}");
    assert_eq!(busy(), sum, "none runs");
}
