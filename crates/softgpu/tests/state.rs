//! Several open files stand for several processes: the kernel's locks treat them alike.

use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use sublet_softgpu::checkpoint::CheckpointError;
use sublet_softgpu::state::{CheckpointState, IDLE_BYTES, SOFT_UUID, SoftGpuFull};
use sublet_softgpu::{CheckpointFault, SoftGpuClient, SoftGpuFault, SoftGpuState, StateError};

const GIB: u64 = 1 << 30;

fn create_gpus(dir: &Path, spec: &str) -> SoftGpuState {
    SoftGpuState::create(&dir.join("cards"), &spec.parse().unwrap()).unwrap()
}

fn register_client(dir: &Path) -> SoftGpuClient {
    SoftGpuClient::register(SoftGpuState::open(&dir.join("cards")).unwrap()).unwrap()
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn reserved_bytes_are_exclusive_and_free_again_when_their_client_ends() {
    let dir = directory();
    let state = create_gpus(dir.path(), "2x4GiB");
    let (one, two) = (register_client(dir.path()), register_client(dir.path()));
    assert_eq!(one.reserve(0, 3 * GIB), Ok(()));
    assert_eq!(two.reserve(0, GIB), Err(SoftGpuFull), "the driver keeps a little");
    assert_eq!(two.reserve(0, GIB - IDLE_BYTES), Ok(()));
    assert_eq!(two.reserve(1, 3 * GIB), Ok(()), "another GPU is another matter");
    assert_eq!(two.reserve(2, 1), Err(SoftGpuFull), "there is no such GPU");
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
    let state = create_gpus(dir.path(), "1x4GiB");
    let client = register_client(dir.path());
    // Three threads, and room for two of them.
    let one = (4 * GIB - IDLE_BYTES) / 2;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    if client.reserve(0, one).is_ok() {
                        assert!(state.used(0) <= 4 * GIB, "{}", state.used(0));
                        client.give_back(0, one);
                    }
                }
            });
        }
    });
    assert_eq!(state.used(0), IDLE_BYTES);
}

#[test]
fn existing_gpus_are_kept_and_only_unused_ones_are_replaced() {
    let dir = directory();
    let path = dir.path().join("cards");
    let state = create_gpus(dir.path(), "1x4GiB");
    let uuid = |state: &SoftGpuState| state.gpus()[0].uuid.iter().map(|byte| byte.load(SeqCst)).collect::<Vec<_>>();
    let client = register_client(dir.path());
    client.reserve(0, GIB).unwrap();
    assert_eq!(SoftGpuState::create(&path, &"1x4GiB".parse().unwrap()).unwrap().used(0), IDLE_BYTES + GIB);
    let refused = SoftGpuState::create(&path, &"2x8GiB".parse().unwrap());
    assert!(matches!(refused, Err(StateError::InUse { .. })), "{refused:?}");
    drop(client);
    let other = SoftGpuState::create(&path, &"2x8GiB".parse().unwrap()).unwrap();
    assert_eq!((other.gpus().len(), other.used(0)), (2, IDLE_BYTES));
    assert_eq!(uuid(&state), uuid(&other), "a GPU's name stays");
    let (first, second) = (other.gpus()[0].uuid_text(), other.gpus()[1].uuid_text());
    assert!(first != second && [&first, &second].iter().all(|uuid| uuid.starts_with(SOFT_UUID)), "{first} {second}");
    assert_eq!(first.split('-').map(str::len).collect::<Vec<_>>(), [3, 8, 4, 4, 4, 12], "{first}");
    assert_eq!(other.gpus()[0].name_text(), "Sublet Soft 8GiB");
    std::fs::write(dir.path().join("text"), "not GPUs").unwrap();
    assert!(matches!(SoftGpuState::open(&dir.path().join("text")), Err(StateError::NotSoftGpus { .. })));
    assert!(matches!(SoftGpuState::open(&dir.path().join("none")), Err(StateError::File { .. })));
}

#[test]
fn a_link_or_another_users_file_is_refused() {
    let dir = directory();
    let spec = "1x4GiB".parse().unwrap();
    let (target, path) = (dir.path().join("target"), dir.path().join("cards"));
    std::fs::write(&target, "precious").unwrap();
    std::os::unix::fs::symlink(&target, &path).unwrap();
    assert!(matches!(SoftGpuState::create(&path, &spec), Err(StateError::File { .. })), "a link");
    std::fs::remove_file(&path).unwrap();
    std::fs::hard_link(&target, &path).unwrap();
    assert!(matches!(SoftGpuState::create(&path, &spec), Err(StateError::Foreign { .. })), "a second name");
    assert_eq!(std::fs::read(&target).unwrap(), b"precious");
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "").unwrap();
    if std::os::unix::fs::chown(&path, Some(12345), None).is_err() {
        return eprintln!("the rest was skipped: only root can give a file away");
    }
    assert!(
        matches!(SoftGpuState::create(&path, &spec), Err(StateError::Foreign { uid: 12345, .. })),
        "another user's"
    );
}

#[test]
fn a_process_is_checkpointed_and_restored() {
    let dir = directory();
    let state = create_gpus(dir.path(), "1x4GiB");
    let pid = std::process::id();
    assert_eq!(state.checkpoint_state(pid), Err(CheckpointError::NotInitialised), "it is not there");
    let client = register_client(dir.path());
    client.reserve(0, 3 * GIB).unwrap();
    assert_eq!(state.checkpoint_state(pid), Ok(CheckpointState::Running));
    assert_eq!(state.checkpoint_save(pid), Err(CheckpointError::IllegalState), "it is not locked");
    let inside = client.pass_gate();
    let soon = Some(Duration::from_millis(20));
    assert_eq!(state.checkpoint_lock(pid, soon), Err(CheckpointError::NotReady), "a call is under way");
    assert_eq!(state.checkpoint_state(pid), Ok(CheckpointState::Running));
    drop(inside);
    assert_eq!(state.checkpoint_lock(pid, soon), Ok(()));
    assert_eq!(state.checkpoint_save(pid), Ok(()));
    assert_eq!((state.used(0), state.checkpoint_state(pid)), (IDLE_BYTES, Ok(CheckpointState::Checkpointed)));
    assert_eq!(state.checkpoint_unlock(pid), Err(CheckpointError::IllegalState));
    assert_eq!(state.checkpoint_restore(pid), Ok(()));
    assert_eq!(state.used(0), IDLE_BYTES + 3 * GIB);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| drop(client.pass_gate()));
        assert_eq!(state.checkpoint_unlock(pid), Ok(()));
        waits.join().unwrap();
    });
}

#[test]
fn a_locker_that_dies_leaves_the_gate_open() {
    let dir = directory();
    let state = create_gpus(dir.path(), "1x4GiB");
    let client = register_client(dir.path());
    let row = client.row();
    row.checkpoint.store(CheckpointState::Locking as u32, SeqCst);
    drop(client.pass_gate());
    assert_eq!(row.checkpoint.load(SeqCst), CheckpointState::Running as u32);
    row.checkpoint.store(CheckpointState::Locking as u32, SeqCst);
    assert_eq!(state.checkpoint_lock(std::process::id(), None), Ok(()), "another takes its place");
    assert_eq!(state.checkpoint_lock(std::process::id(), None), Err(CheckpointError::IllegalState));
    assert_eq!(state.checkpoint_unlock(std::process::id()), Ok(()));
}

#[test]
fn a_restore_without_room_loses_the_process() {
    let dir = directory();
    let state = create_gpus(dir.path(), "1x4GiB");
    let pid = std::process::id();
    let client = register_client(dir.path());
    client.reserve(0, 3 * GIB).unwrap();
    state.checkpoint_lock(pid, None).unwrap();
    state.checkpoint_save(pid).unwrap();
    // Another process with the same id, as far as the accounts are concerned: it has the GPU now.
    let other = register_client(dir.path());
    other.row().pid.store(pid + 1, SeqCst);
    other.reserve(0, 2 * GIB).unwrap();
    assert_eq!(state.checkpoint_restore(pid), Err(CheckpointError::OutOfMemory));
    drop(other);
    assert_eq!(state.checkpoint_restore(pid), Err(CheckpointError::OperatingSystem), "for good");
    assert_eq!(state.checkpoint_unlock(pid), Err(CheckpointError::IllegalState));
}

#[test]
fn faults_happen_when_they_are_ordered() {
    let dir = directory();
    let state = create_gpus(dir.path(), "1x4GiB");
    let pid = std::process::id();
    let client = register_client(dir.path());
    client.row().gpus[0].contexts.store(1, SeqCst);
    assert!(state.set_fault(0, SoftGpuFault::Allocations(2)) && !state.set_fault(1, SoftGpuFault::Allocations(2)));
    assert_eq!(
        (client.reserve(0, 1), client.reserve(0, 1), client.reserve(0, GIB)),
        (Err(SoftGpuFull), Err(SoftGpuFull), Ok(()))
    );
    state.set_fault(0, SoftGpuFault::Checkpoint(CheckpointFault::TimesOut));
    assert_eq!(state.checkpoint_lock(pid, Some(Duration::from_millis(5))), Err(CheckpointError::NotReady));
    state.set_fault(0, SoftGpuFault::Checkpoint(CheckpointFault::FreesNothing));
    state.checkpoint_lock(pid, None).unwrap();
    assert_eq!((state.checkpoint_save(pid), state.used(0)), (Ok(()), IDLE_BYTES + GIB));
    state.set_fault(0, SoftGpuFault::Clear);
    client.row().managed.store(1, SeqCst);
    client.row().checkpoint.store(CheckpointState::Locked as u32, SeqCst);
    assert_eq!(state.checkpoint_save(pid), Err(CheckpointError::NotSupported));
    assert_eq!(state.checkpoint_unlock(pid), Ok(()), "and it is unharmed");
}

#[test]
fn busy_time_is_the_time_in_which_kernels_ran() {
    let dir = directory();
    let state = create_gpus(dir.path(), "1x4GiB");
    let client = register_client(dir.path());
    let busy = || state.processes().next().unwrap().busy_ns(0);
    assert_eq!(busy(), 0);
    let (one, two) = (client.start_kernel(0), client.start_kernel(0));
    let begun = sublet_softgpu::state::now_ns();
    while busy() < 2_000_000 {}
    drop(one);
    assert!(client.row().gpus[0].busy_since.load(SeqCst) > 0, "one still runs");
    drop(two);
    let (sum, wall) = (busy(), sublet_softgpu::state::now_ns() - begun);
    assert!(sum >= 2_000_000 && sum <= wall + 1_000_000, "{sum} of {wall}");
    assert_eq!(busy(), sum, "none runs");
}
