//! The worker that moves processes, asked by hand, on soft GPUs and real processes.

use crate::soft::{LineProcess, MIB, SoftGpus, lock, wait_until};
use crate::support::{exe, key};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::process::Command;
use sublet_core::ids::ProcKey;
use sublet_softgpu::state::{CONTEXT_BYTES, CheckpointState};

crate::tests![
    a_process_is_checkpointed_and_restored,
    the_driver_facts_are_answered,
    without_a_driver_every_answer_is_unusable,
    a_lock_without_a_timeout_is_refused,
    steps_out_of_order_are_refused_with_the_drivers_error,
    a_pid_with_another_start_is_not_touched,
    a_stopped_process_is_not_touched,
    room_is_proven_by_allocating_it,
    locked_processes_are_unlocked_when_stdin_closes,
    checkpointed_processes_stay_so_when_stdin_closes,
    a_request_after_the_daemon_ended_is_not_begun,
    a_call_under_way_ends_before_the_worker_does,
    a_stopped_process_is_unlocked_when_it_continues,
    a_worker_ignores_a_service_managers_signals,
];

fn a_process_is_checkpointed_and_restored() {
    let soft = SoftGpus::new("1x1GiB");
    let mut program = soft.program(64);
    let (mut worker, key) = (soft.worker(), program.key);
    let held = 64 * MIB + CONTEXT_BYTES;
    assert_eq!(worker.step("state", key), json!({"state": "running"}));
    assert_eq!(worker.step("weigh", key), json!({"weight": {soft.uuid(): held}}));
    assert_eq!(worker.lock(key, 2000), "done");
    assert_eq!(worker.step("state", key), json!({"state": "locked"}));
    assert_eq!(soft.used_bytes(), held);
    assert_eq!(worker.step("checkpoint", key), "done");
    assert_eq!(worker.step("state", key), json!({"state": "checkpointed"}));
    assert_eq!(soft.used_bytes(), 0);
    assert_eq!(worker.step("restore", key), "done");
    assert_eq!(worker.step("unlock", key), "done");
    assert_eq!(soft.used_bytes(), held);
    assert!(program.is_intact());
}

fn the_driver_facts_are_answered() {
    let soft = SoftGpus::new("1x1GiB");
    let facts = soft.worker().request(&json!("facts"));
    assert_eq!((&facts["facts"]["driver"], &facts["facts"]["calls"]), (&json!("580.00.00"), &json!(true)));
}

fn without_a_driver_every_answer_is_unusable() {
    let mut command = Command::new(exe());
    command.args(["worker", "driver"]).env("SUBLET_CUDA_LIB", "/nowhere/libcuda.so.1");
    let mut worker = LineProcess::start(command);
    let why = worker.request(&json!("facts"))["unusable"].as_str().unwrap().to_owned();
    assert!(why.contains("/nowhere/libcuda.so.1"), "{why}");
    assert_eq!(worker.lock(key(std::process::id()), 1000), json!({"unusable": why}));
}

fn a_lock_without_a_timeout_is_refused() {
    let soft = SoftGpus::new("1x1GiB");
    let program = soft.program(1);
    assert_eq!(soft.worker().lock(program.key, 0)["failed"]["code"], 1);
    assert_eq!(soft.at(program.key), CheckpointState::Running);
}

fn steps_out_of_order_are_refused_with_the_drivers_error() {
    let soft = SoftGpus::new("1x1GiB");
    let program = soft.program(1);
    let mut worker = soft.worker();
    let illegal = json!({"failed": {"code": 401, "name": "CUDA_ERROR_ILLEGAL_STATE"}});
    for step in ["checkpoint", "restore", "unlock"] {
        assert_eq!(worker.step(step, program.key), illegal, "{step}");
    }
    assert_eq!(soft.at(program.key), CheckpointState::Running);
}

fn a_pid_with_another_start_is_not_touched() {
    let soft = SoftGpus::new("1x1GiB");
    let mut program = soft.program(1);
    let mut worker = soft.worker();
    let other = ProcKey { start: program.key.start + 1, ..program.key };
    assert_eq!(worker.lock(other, 1000), "gone");
    for step in ["state", "checkpoint", "restore", "unlock", "weigh"] {
        assert_eq!(worker.step(step, other), "gone", "{step}");
    }
    assert_eq!(soft.at(program.key), CheckpointState::Running);
    assert!(program.is_intact());
}

fn a_stopped_process_is_not_touched() {
    let soft = SoftGpus::new("1x1GiB");
    let mut program = soft.program(1);
    let mut worker = soft.worker();
    program.stop();
    assert_eq!(worker.lock(program.key, 1000), "stopped");
    assert_eq!(worker.step("state", program.key), "stopped");
    program.signal(Signal::CONT);
    assert!(program.is_intact());
    assert_eq!(soft.at(program.key), CheckpointState::Running);
}

fn room_is_proven_by_allocating_it() {
    let soft = SoftGpus::new("1x1GiB");
    let mut worker = soft.worker();
    let mut prove =
        |mib: u64| worker.request(&json!({"prove": {"needs": [{"uuid": soft.uuid(), "bytes": mib * MIB}]}}));
    let enough = json!({"room": {"lacking": null}});
    let lacking = json!({"room": {"lacking": soft.uuid()}});
    assert_eq!(prove(900), enough);
    let program = soft.program(300);
    assert_eq!(prove(900), lacking);
    assert_eq!(prove(500), enough);
    // Nothing of it is left.
    assert_eq!(prove(500), enough);
    assert_eq!(soft.used_bytes(), 300 * MIB + CONTEXT_BYTES);
    drop(program);
    assert_eq!(prove(900), enough);
}

fn locked_processes_are_unlocked_when_stdin_closes() {
    let soft = SoftGpus::new("1x1GiB");
    let (mut one, mut two) = (soft.program(1), soft.program(1));
    let mut worker = soft.worker();
    assert_eq!(worker.lock(one.key, 1000), "done");
    assert_eq!(worker.lock(two.key, 1000), "done");
    worker.close_stdin();
    assert!(one.is_intact() && two.is_intact());
    assert!(worker.succeeds());
    assert_eq!(soft.at(one.key), CheckpointState::Running);
}

fn checkpointed_processes_stay_so_when_stdin_closes() {
    let soft = SoftGpus::new("1x1GiB");
    let mut program = soft.program(1);
    let mut worker = soft.worker();
    worker.lock(program.key, 1000);
    assert_eq!(worker.step("checkpoint", program.key), "done");
    worker.close_stdin();
    assert!(worker.succeeds());
    assert_eq!(soft.at(program.key), CheckpointState::Checkpointed);
    let mut next = soft.worker();
    assert_eq!(next.step("restore", program.key), "done");
    // It would wait for ever between the two.
    next.close_stdin();
    assert!(program.is_intact());
}

fn a_request_after_the_daemon_ended_is_not_begun() {
    let soft = SoftGpus::new("1x1GiB");
    let mut program = soft.program(1);
    let mut worker = soft.worker();
    assert_eq!(worker.lock(program.key, 1000), "done");
    let pid = Pid::from_child(&worker.child);
    kill_process(pid, Signal::STOP).unwrap();
    worker.write_line(&json!({"checkpoint": {"process": program.key}}).to_string());
    worker.close_stdin();
    kill_process(pid, Signal::CONT).unwrap();
    // Off its GPU it would wait until it is restored.
    assert!(program.is_intact());
    assert!(worker.succeeds());
}

fn a_call_under_way_ends_before_the_worker_does() {
    let soft = SoftGpus::new("1x1GiB");
    let mut program = soft.program(1);
    assert_eq!(program.line.ask("spin"), "spins");
    let mut worker = soft.worker();
    worker.request(&json!("facts"));
    worker.write_line(&lock(program.key, 20_000).to_string());
    wait_until("the lock under way", || soft.at(program.key) == CheckpointState::Locking);
    worker.close_stdin();
    assert_eq!(program.line.ask("release"), "released");
    assert!(program.is_intact());
    assert!(worker.succeeds());
    assert_eq!(soft.at(program.key), CheckpointState::Running);
}

fn a_stopped_process_is_unlocked_when_it_continues() {
    let soft = SoftGpus::new("1x1GiB");
    let mut program = soft.program(1);
    let mut worker = soft.worker();
    assert_eq!(worker.lock(program.key, 1000), "done");
    program.stop();
    worker.close_stdin();
    program.signal(Signal::CONT);
    assert!(program.is_intact());
    assert!(worker.succeeds());
}

fn a_worker_ignores_a_service_managers_signals() {
    let soft = SoftGpus::new("1x1GiB");
    let mut program = soft.program(1);
    let mut worker = soft.worker();
    assert_eq!(worker.lock(program.key, 1000), "done");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        kill_process(Pid::from_child(&worker.child), signal).unwrap();
    }
    assert_eq!(worker.step("state", program.key), json!({"state": "locked"}));
    worker.close_stdin();
    assert!(program.is_intact());
}
