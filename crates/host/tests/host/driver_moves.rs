//! Holders that the driver moves: a host, its worker and real processes on soft GPUs, and each hazard.

use crate::soft::{MIB, Program, SoftGpus, wait_until};
use crate::support::{NEVER, Rig, Tree, fresh_lease};
use rustix::process::{Signal, kill_process};
use std::process::Command;
use std::time::{Duration, Instant};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::movers::MoverReport;
use sublet_core::units::Bytes;
use sublet_host::HostReport;
use sublet_host::driver::{DriverPlacement, DriverSettings, DriverTarget};
use sublet_softgpu::fault::{CheckpointFault, SoftGpuFault};
use sublet_softgpu::state::{CONTEXT_BYTES, CheckpointState};

crate::tests![
    a_holder_is_parked_and_resumed_with_its_memory_unchanged,
    a_program_with_a_long_kernel_is_refused_and_continues,
    a_checkpoint_that_frees_nothing_is_reported_as_parked_and_still_uses_its_gpu,
    without_room_nothing_is_restored_until_there_is,
    without_known_bytes_nothing_is_restored,
    a_failed_restore_is_reported_as_lost_and_never_tried_again,
    a_killed_worker_is_replaced_and_locked_processes_are_unlocked,
    a_hung_worker_is_killed_at_its_deadline_and_replaced,
    the_end_of_the_host_unlocks_locked_processes,
    a_stopped_process_is_refused_and_not_touched,
    a_process_stopped_while_parked_is_restored_when_it_continues,
    two_processes_are_parked_together,
    if_the_second_refuses_the_first_is_restored,
    if_the_second_dies_the_first_is_parked,
    managed_memory_is_refused_and_unharmed,
    a_reused_pid_is_not_touched,
    a_new_host_continues_from_the_drivers_state,
    a_process_that_was_left_locked_is_unlocked,
    a_withdrawn_park_restores_all_processes,
    a_process_killed_while_parked_is_reported_as_left,
    an_inspection_reports_which_processes_can_be_moved,
    without_a_driver_no_process_can_be_moved,
];

struct Stage {
    soft: SoftGpus,
    rig: Option<Rig>,
    lease: LeaseId,
    processes: Vec<ProcKey>,
    /// Reports before this index were handled.
    from: usize,
}

impl Stage {
    fn new(programs: &[&Program], soft: SoftGpus) -> Stage {
        Stage::with(programs, soft, Duration::from_millis(500))
    }

    fn with(programs: &[&Program], soft: SoftGpus, lock: Duration) -> Stage {
        let rig = Some(open(&soft, lock));
        let processes = programs.iter().map(|program| program.key).collect();
        Stage { soft, rig, lease: fresh_lease(), processes, from: 0 }
    }

    fn rig(&self) -> &Rig {
        self.rig.as_ref().unwrap()
    }

    fn drive(&self, placement: DriverPlacement) {
        let (lease, processes) = (self.lease, self.processes.clone());
        self.rig().host.set_driver_target(DriverTarget {
            lease,
            uid: rustix::process::getuid().as_raw(),
            placement,
            processes,
        });
    }

    fn park(&self) {
        self.drive(DriverPlacement::InHostMemory { within: Duration::from_secs(30), booked: 900 * MIB });
    }

    fn resume(&self, mib: u64) {
        self.drive(DriverPlacement::OnGpus { needs: vec![(self.soft.uuid(), mib * MIB)] });
    }

    /// Waits for the next report about the holder, and returns its process with it.
    fn next_report(&mut self, wanted: &str) -> (ProcKey, MoverReport) {
        let lease = self.lease;
        let of_lease = |report: &HostReport| match report {
            HostReport::DriverReported { lease: told, process, said, .. } if *told == lease => {
                Some((*process, said.clone()))
            }
            _ => None,
        };
        let (word, from) = self.rig().after(self.from, wanted, of_lease);
        self.from = from;
        word
    }

    fn expect(&mut self, process: ProcKey, said: MoverReport) {
        assert_eq!(self.next_report(&format!("{said:?}")), (process, said));
    }

    /// Waits for a refusal, and returns its reason.
    fn refusal(&mut self) -> String {
        match self.next_report("a refusal").1 {
            MoverReport::Refused(why) => why,
            other => panic!("{other:?} instead of a refusal"),
        }
    }

    fn expect_here(&mut self, parked: Option<Bytes>) {
        for process in self.processes.clone() {
            self.expect(process, MoverReport::Present { parked });
        }
    }

    /// Another host, as after a restart.
    fn reopen(&mut self) {
        drop(self.rig.take());
        (self.rig, self.from) = (Some(open(&self.soft, Duration::from_millis(500))), 0);
    }

    fn at(&self, which: usize) -> CheckpointState {
        self.soft.at(self.processes[which])
    }
}

fn open(soft: &SoftGpus, lock: Duration) -> Rig {
    Rig::with("soft:1x1GiB", |settings, _| {
        settings.soft = Some(soft.place());
        settings.period = NEVER;
        settings.driver = Some(DriverSettings { lock, patience: Duration::from_secs(3) });
    })
}

/// What a program has on its GPU: memory is allocated in pieces of 2 MiB there.
fn expected_bytes(mib: u64) -> u64 {
    mib.next_multiple_of(2) * MIB + CONTEXT_BYTES
}

fn a_holder_is_parked_and_resumed_with_its_memory_unchanged() {
    let soft = SoftGpus::new("1x1GiB");
    let mut program = soft.program(64);
    let key = program.key;
    let mut stage = Stage::new(&[&program], soft);
    stage.resume(256);
    stage.expect_here(None);
    for _ in 0..3 {
        stage.park();
        stage.expect(key, MoverReport::Parked(Bytes(expected_bytes(64))));
        assert_eq!((stage.at(0), stage.soft.used_bytes()), (CheckpointState::Checkpointed, 0));
        // It waits in the driver from here on.
        program.line.write_line("check");
        stage.resume(256);
        stage.expect(key, MoverReport::Resumed);
        assert_eq!(program.line.read_line(), "intact");
        assert_eq!((stage.at(0), stage.soft.used_bytes()), (CheckpointState::Running, expected_bytes(64)));
    }
}

fn a_program_with_a_long_kernel_is_refused_and_continues() {
    let soft = SoftGpus::new("1x1GiB");
    let mut program = soft.program(1);
    let mut stage = Stage::new(&[&program], soft);
    assert_eq!(program.line.ask("spin"), "spins");
    stage.park();
    stage.expect_here(None);
    let why = stage.refusal();
    assert!(why.contains("work under way"), "{why}");
    assert_eq!(stage.at(0), CheckpointState::Running);
    assert_eq!(program.line.ask("release"), "released");
    assert!(program.is_intact());
    // A repeated target is tried again.
    stage.park();
    stage.expect(program.key, MoverReport::Parked(Bytes(expected_bytes(1))));
}

fn a_checkpoint_that_frees_nothing_is_reported_as_parked_and_still_uses_its_gpu() {
    let soft = SoftGpus::new("1x1GiB");
    let program = soft.program(64);
    soft.state.set_fault(0, SoftGpuFault::Checkpoint(CheckpointFault::FreesNothing));
    let mut stage = Stage::new(&[&program], soft);
    stage.park();
    stage.expect_here(None);
    stage.expect(program.key, MoverReport::Parked(Bytes(expected_bytes(64))));
    assert_eq!(stage.soft.used_bytes(), expected_bytes(64));
}

fn without_room_nothing_is_restored_until_there_is() {
    let soft = SoftGpus::new("1x1GiB");
    let mut program = soft.program(400);
    let mut stage = Stage::new(&[&program], soft);
    stage.park();
    stage.expect_here(None);
    stage.expect(program.key, MoverReport::Parked(Bytes(expected_bytes(400))));
    let other = stage.soft.program(400);
    stage.resume(528);
    let why = stage.refusal();
    assert!(why.contains("no room"), "{why}");
    // A restore would have lost it.
    assert_eq!(stage.at(0), CheckpointState::Checkpointed);
    drop(other);
    while stage.next_report("its return").1 != MoverReport::Resumed {}
    assert!(program.is_intact());
}

fn without_known_bytes_nothing_is_restored() {
    let soft = SoftGpus::new("1x1GiB");
    let program = soft.program(1);
    let mut stage = Stage::new(&[&program], soft);
    stage.park();
    stage.expect_here(None);
    stage.expect(program.key, MoverReport::Parked(Bytes(expected_bytes(1))));
    stage.reopen();
    for needs in [vec![], vec![(stage.soft.uuid(), 0)]] {
        stage.drive(DriverPlacement::OnGpus { needs });
        loop {
            match stage.next_report("a refusal").1 {
                MoverReport::Present { .. } => {}
                MoverReport::Refused(why) if why.contains("is not known") => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(stage.at(0), CheckpointState::Checkpointed);
    }
}

fn a_failed_restore_is_reported_as_lost_and_never_tried_again() {
    let soft = SoftGpus::new("1x1GiB");
    let program = soft.program(400);
    let mut stage = Stage::new(&[&program], soft);
    stage.park();
    stage.expect_here(None);
    stage.expect(program.key, MoverReport::Parked(Bytes(expected_bytes(400))));
    let other = stage.soft.program(400);
    // The target states less than it needs. The bytes measured when it was parked count.
    stage.resume(1);
    let why = stage.refusal();
    assert!(why.contains("no room"), "{why}");
    assert_eq!(stage.at(0), CheckpointState::Checkpointed);
    stage.reopen();
    stage.resume(1);
    assert!(matches!(stage.next_report("where it is").1, MoverReport::Present { parked: Some(_) }));
    let said = stage.next_report("that it is lost").1;
    assert!(matches!(&said, MoverReport::Lost(why) if why.contains("OUT_OF_MEMORY (2)")), "{said:?}");
    assert_eq!(stage.at(0), CheckpointState::Failed);
    drop(other);
    let count = stage.rig().count();
    stage.resume(1);
    stage.park();
    stage.resume(1);
    // Another holder is moved meanwhile, so the targets were read.
    let witness = stage.soft.program(1);
    stage.lease = fresh_lease();
    stage.processes = vec![witness.key];
    stage.park();
    stage.expect_here(None);
    stage.expect(witness.key, MoverReport::Parked(Bytes(expected_bytes(1))));
    let about =
        |report: &&HostReport| matches!(report, HostReport::DriverReported { process, .. } if *process == program.key);
    assert_eq!(stage.rig().reports()[count..].iter().filter(about).count(), 0);
}

fn a_killed_worker_is_replaced_and_locked_processes_are_unlocked() {
    let soft = SoftGpus::new("1x1GiB");
    let (mut first, mut second) = (soft.program(1), soft.program(1));
    let (lower, upper) = if first.key < second.key { (&mut first, &mut second) } else { (&mut second, &mut first) };
    let mut stage = Stage::with(&[lower, upper], soft, Duration::from_secs(25));
    assert_eq!(upper.line.ask("spin"), "spins");
    stage.park();
    stage.expect_here(None);
    wait_until("the first lock", || stage.at(0) == CheckpointState::Locked && stage.at(1) == CheckpointState::Locking);
    let worker = stage.soft.driver_worker_pid().unwrap();
    kill_process(worker, Signal::KILL).unwrap();
    let why = stage.refusal();
    assert!(why.contains("it ended"), "{why}");
    assert_eq!(stage.at(0), CheckpointState::Running);
    assert_ne!(stage.soft.driver_worker_pid(), Some(worker));
    assert_eq!(upper.line.ask("release"), "released");
    assert!(lower.is_intact() && upper.is_intact());
}

fn a_hung_worker_is_killed_at_its_deadline_and_replaced() {
    let soft = SoftGpus::new("1x1GiB");
    let mut program = soft.program(1);
    let mut stage = Stage::new(&[&program], soft);
    stage.resume(256);
    stage.expect_here(None);
    let worker = stage.soft.driver_worker_pid().unwrap();
    kill_process(worker, Signal::STOP).unwrap();
    let began = Instant::now();
    stage.park();
    let why = stage.refusal();
    assert!(why.contains("did not answer within") && began.elapsed() >= Duration::from_secs(3), "{why}");
    assert!(program.is_intact());
    stage.park();
    stage.expect(program.key, MoverReport::Parked(Bytes(expected_bytes(1))));
}

fn the_end_of_the_host_unlocks_locked_processes() {
    let soft = SoftGpus::new("1x1GiB");
    let (mut first, mut second) = (soft.program(1), soft.program(1));
    let (lower, upper) = if first.key < second.key { (&mut first, &mut second) } else { (&mut second, &mut first) };
    let mut stage = Stage::with(&[lower, upper], soft, Duration::from_secs(25));
    assert_eq!(upper.line.ask("spin"), "spins");
    stage.park();
    stage.expect_here(None);
    wait_until("the first lock", || stage.at(0) == CheckpointState::Locked && stage.at(1) == CheckpointState::Locking);
    let began = Instant::now();
    drop(stage.rig.take());
    // It does not wait for the call that is under way, nor does it interrupt it.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(upper.line.ask("release"), "released");
    assert!(lower.is_intact() && upper.is_intact());
    assert_eq!((stage.at(0), stage.at(1)), (CheckpointState::Running, CheckpointState::Running));
}

fn a_stopped_process_is_refused_and_not_touched() {
    let soft = SoftGpus::new("1x1GiB");
    let mut program = soft.program(1);
    let mut stage = Stage::new(&[&program], soft);
    stage.resume(256);
    stage.expect_here(None);
    program.stop();
    stage.park();
    let why = stage.refusal();
    assert!(why.contains("is stopped"), "{why}");
    program.signal(Signal::CONT);
    assert!(program.is_intact());
    assert_eq!(stage.at(0), CheckpointState::Running);
}

fn a_process_stopped_while_parked_is_restored_when_it_continues() {
    let soft = SoftGpus::new("1x1GiB");
    let (mut program, other) = (soft.program(1), soft.program(2));
    let mut stage = Stage::new(&[&program], soft);
    stage.park();
    stage.expect_here(None);
    stage.expect(program.key, MoverReport::Parked(Bytes(expected_bytes(1))));
    program.stop();
    stage.resume(256);
    // The worker does not hang with it: another holder is moved meanwhile.
    let mut beside = Stage { lease: fresh_lease(), processes: vec![other.key], from: stage.from, ..stage };
    beside.park();
    beside.expect_here(None);
    beside.expect(other.key, MoverReport::Parked(Bytes(expected_bytes(2))));
    assert_eq!(beside.soft.at(program.key), CheckpointState::Checkpointed);
    program.signal(Signal::CONT);
    assert!(program.is_intact());
}

fn two_processes_are_parked_together() {
    let soft = SoftGpus::new("1x1GiB");
    let (mut first, mut second) = (soft.program(32), soft.program(64));
    let (lower, upper) = if first.key < second.key { (&mut first, &mut second) } else { (&mut second, &mut first) };
    let mut stage = Stage::new(&[lower, upper], soft);
    stage.park();
    stage.expect_here(None);
    let said = [stage.next_report("the first"), stage.next_report("the second")];
    assert_eq!(said.each_ref().map(|word| word.0), [lower.key, upper.key]);
    assert_eq!(stage.soft.used_bytes(), 0);
    stage.resume(400);
    stage.expect(lower.key, MoverReport::Resumed);
    stage.expect(upper.key, MoverReport::Resumed);
    assert!(lower.is_intact() && upper.is_intact());
    assert_eq!(stage.soft.used_bytes(), expected_bytes(32) + expected_bytes(64));
}

fn if_the_second_refuses_the_first_is_restored() {
    let soft = SoftGpus::new("1x1GiB");
    let (mut plain, mut managed) = (soft.program(32), soft.program_with(32, &["managed"]));
    // By number, which is the order in which they leave.
    let keys = if plain.key < managed.key { [&plain, &managed] } else { [&managed, &plain] };
    let mut stage = Stage::new(&keys, soft);
    let taken = stage.soft.used_bytes();
    stage.park();
    stage.expect_here(None);
    let why = stage.refusal();
    assert!(why.contains(&format!("process {} has memory", managed.key.pid)), "{why}");
    assert_eq!((stage.at(0), stage.at(1)), (CheckpointState::Running, CheckpointState::Running));
    assert_eq!(stage.soft.used_bytes(), taken);
    assert!(plain.is_intact() && managed.is_intact());
}

fn if_the_second_dies_the_first_is_parked() {
    let soft = SoftGpus::new("2x1GiB");
    let (first, second) = (soft.program(1), soft.program(1));
    let (lower, upper) = if first.key < second.key { (first, second) } else { (second, first) };
    let mut stage = Stage::new(&[&lower, &upper], soft);
    stage.resume(600);
    stage.expect_here(None);
    drop(upper);
    stage.park();
    let words = [stage.next_report("one"), stage.next_report("the other")];
    assert!(words.contains(&(stage.processes[1], MoverReport::Gone)), "{words:?}");
    assert!(words.contains(&(lower.key, MoverReport::Parked(Bytes(expected_bytes(1))))), "{words:?}");
}

fn managed_memory_is_refused_and_unharmed() {
    let soft = SoftGpus::new("1x1GiB");
    let mut program = soft.program_with(1, &["managed"]);
    let mut stage = Stage::new(&[&program], soft);
    stage.park();
    stage.expect_here(None);
    let why = stage.refusal();
    assert!(why.contains("cannot leave a GPU"), "{why}");
    assert_eq!(stage.at(0), CheckpointState::Running);
    assert!(program.is_intact());
}

fn a_reused_pid_is_not_touched() {
    let soft = SoftGpus::new("1x1GiB");
    let mut program = soft.program(1);
    let mut stage = Stage::new(&[&program], soft);
    let before = ProcKey { start: program.key.start - 1, ..program.key };
    stage.processes = vec![before];
    stage.park();
    stage.expect(before, MoverReport::Gone);
    assert_eq!(stage.soft.at(program.key), CheckpointState::Running);
    assert!(program.is_intact());
}

fn a_new_host_continues_from_the_drivers_state() {
    let soft = SoftGpus::new("1x1GiB");
    let mut program = soft.program(64);
    let mut stage = Stage::new(&[&program], soft);
    stage.park();
    stage.expect_here(None);
    stage.expect(program.key, MoverReport::Parked(Bytes(expected_bytes(64))));
    stage.reopen();
    assert_eq!(stage.at(0), CheckpointState::Checkpointed);
    stage.park();
    assert!(matches!(stage.next_report("where it is"), (_, MoverReport::Present { parked: Some(_) })));
    stage.resume(256);
    stage.expect(program.key, MoverReport::Resumed);
    assert!(program.is_intact());
}

fn a_process_that_was_left_locked_is_unlocked() {
    let soft = SoftGpus::new("1x1GiB");
    let mut program = soft.program(1);
    let mut worker = soft.worker();
    assert_eq!(worker.lock(program.key, 1000), "done");
    worker.child.kill().unwrap();
    worker.child.wait().unwrap();
    let mut stage = Stage::new(&[&program], soft);
    assert_eq!(stage.at(0), CheckpointState::Locked);
    stage.resume(256);
    stage.expect_here(None);
    assert!(program.is_intact());
}

fn a_withdrawn_park_restores_all_processes() {
    let soft = SoftGpus::new("1x1GiB");
    let mut program = soft.program(16);
    let stage = Stage::new(&[&program], soft);
    for _ in 0..20 {
        stage.park();
        stage.resume(256);
    }
    assert!(program.is_intact());
    wait_until("its return", || {
        stage.at(0) == CheckpointState::Running && stage.soft.used_bytes() == expected_bytes(16)
    });
}

fn a_process_killed_while_parked_is_reported_as_left() {
    let soft = SoftGpus::new("1x1GiB");
    let program = soft.program(1);
    let key = program.key;
    let mut stage = Stage::new(&[&program], soft);
    stage.park();
    stage.expect_here(None);
    stage.expect(key, MoverReport::Parked(Bytes(expected_bytes(1))));
    drop(program);
    stage.expect(key, MoverReport::Gone);
}

fn an_inspection_reports_which_processes_can_be_moved() {
    let soft = SoftGpus::new("1x1GiB");
    let program = soft.program(1);
    let mut stage = Stage::new(&[&program], soft);
    let client = Tree::of(Command::new("sleep").arg("600").env("CUDA_MPS_PIPE_DIRECTORY", "/tmp/pipes"), 0);
    let gone = ProcKey { start: program.key.start - 1, ..program.key };
    let all = vec![program.key, client.root(), gone];
    for _ in 0..2 {
        stage.rig().host.inspect_for_driver((stage.lease, rustix::process::getuid().as_raw()), all.clone(), MIB);
        stage.expect(program.key, MoverReport::Cannot(None));
        let (process, said) = stage.next_report("why not");
        assert_eq!(process, client.root());
        assert!(matches!(&said, MoverReport::Cannot(Some(why)) if why.contains("MPS")), "{said:?}");
        stage.expect(gone, MoverReport::Gone);
    }
    assert_eq!(stage.soft.at(program.key), CheckpointState::Running);
}

fn without_a_driver_no_process_can_be_moved() {
    let soft = SoftGpus::new("1x1GiB");
    let mut program = soft.program(1);
    let mut stage = Stage::new(&[&program], soft);
    std::fs::remove_file(stage.soft.place().libraries.join("libcuda.so.1")).unwrap();
    stage.rig().host.inspect_for_driver(
        (stage.lease, rustix::process::getuid().as_raw()),
        stage.processes.clone(),
        MIB,
    );
    let said = stage.next_report("why not").1;
    assert!(matches!(&said, MoverReport::Cannot(Some(why)) if why.contains("libcuda")), "{said:?}");
    stage.park();
    assert!(stage.refusal().contains("libcuda"));
    assert!(program.is_intact());
}
