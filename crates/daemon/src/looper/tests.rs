//! The loop by itself: inputs in, outputs and batches out, in a time that the test sets.

use super::*;
use crate::user_directory::FoundUser;
use expect_test::{Expect, expect};
use sublet_core::event::Caller;
use sublet_core::facts::LeaseEvent;
use sublet_core::ids::Fence;
use sublet_core::reading::{GpuReading, GpuUsage, Reading};
use sublet_core::request::{LeaseRequest, Term};
use sublet_core::rows::Rows;
use sublet_core::units::Bytes;
use sublet_host::HostReport;
use sublet_journal::LoadedState;

const UUID: &str = "GPU-50f7ca2d-0001-0203-0405-060708090a0b";

/// A loop with one GPU of 24 GiB, and what left it.
struct Rig {
    the_loop: Loop,
    moment: Moment,
    batch: Option<ClosedBatch>,
    rows: Rows,
    story: String,
}

fn loaded(rows: Rows) -> LoadedState {
    LoadedState { rows, ..LoadedState::default() }
}

fn caller() -> Caller {
    Caller::user("uid:1000")
}

fn request(gib: u64) -> Event {
    let request = LeaseRequest::plain(Bytes::gib(gib), Term::Renewed(Span::secs(300)));
    Event::Lease(LeaseEvent::Requested { by: caller(), request, wait: None, root: None })
}

fn key(text: &str) -> IdempotencyKey {
    IdempotencyKey { key: text.to_owned(), fingerprint: [7; 32] }
}

impl Rig {
    fn new() -> Rig {
        let moment = Moment { now: Time(1_000_000), wall_us: 1_700_000_000_000_000, ..Moment::default() };
        let start = LoopStart {
            loaded: loaded(Rows::default()),
            policy: Policy::default(),
            clock_offset_us: 0,
            names: UserDirectory::of_directory(|_| FoundUser::default()).unwrap(),
            ballast: Ballast::Kept,
            boot: "boot-1".to_owned(),
            floor: WatermarkFloor { fence: Fence(1), lease: 1 },
            proofs: LeaseProofs::with_key([7; 32]),
            unmanaged: Vec::new(),
            visibility: Visibility::All,
        };
        let mut the_loop = Loop::new(start, moment);
        the_loop.start(moment);
        let mut rig = Rig { the_loop, moment, batch: None, rows: Rows::default(), story: String::new() };
        rig.commit();
        let facts = GpuFacts { uuid: UUID.to_owned(), ..GpuFacts::plain(0, Bytes::gib(24)) };
        rig.handle(LoopInput::Report(HostReport::Gpus(vec![facts])));
        rig.read_gpu();
        rig.commit();
        rig.story.clear();
        rig
    }

    fn read_gpu(&mut self) {
        let usage = GpuUsage { free: Bytes::gib(24), processes: Vec::new(), coarse: false };
        let observation = GpuReading { begun: self.moment.now, reading: Reading::Used(usage) };
        self.handle(LoopInput::Report(HostReport::Observed { uuid: UUID.to_owned(), observation }));
    }

    fn handle(&mut self, input: LoopInput) {
        self.the_loop.handle(input, self.moment);
        self.tell_immediate();
    }

    fn call(&mut self, to: u64, event: Event, key: Option<IdempotencyKey>) {
        self.handle(LoopInput::Call(Box::new(LoopCall { by: caller(), event, key, looked: None, to: ReplyId(to) })));
    }

    fn after(&mut self, span: Span) {
        self.moment.now = self.moment.now + span;
        self.moment.wall_us += span.0;
        self.the_loop.tick(self.moment);
        self.tell_immediate();
    }

    /// Closes a batch and keeps it open at the writer.
    fn close(&mut self) {
        self.batch = self.the_loop.close_batch(self.moment);
        let lines = self.batch.as_ref().map_or(0, |batch| batch.batch.entries.len());
        self.story.push_str(&format!("batch of {lines} lines\n"));
        self.tell_immediate();
    }

    /// The writer is done: the loop hears of it, then the outputs leave.
    fn synced(&mut self) {
        let Some(ClosedBatch { outputs, .. }) = self.batch.take() else { return };
        self.rows = self.the_loop.engine.state().rows().clone();
        self.story.push_str("synced\n");
        self.handle(LoopInput::Synced(CommitResult::Done));
        outputs.into_iter().for_each(|output| self.tell(&output));
    }

    /// The writer found the disk full.
    fn full(&mut self) {
        let Some(ClosedBatch { outputs, .. }) = self.batch.take() else { return };
        self.story.push_str("full\n");
        let (why, loaded) = ("no space".to_owned(), Box::new(loaded(self.rows.clone())));
        self.handle(LoopInput::Synced(CommitResult::Failed { why, loaded, outputs }));
    }

    fn commit(&mut self) {
        self.close();
        self.synced();
    }

    fn tell_immediate(&mut self) {
        for output in self.the_loop.take_immediate() {
            self.tell(&output);
        }
    }

    fn tell(&mut self, output: &Output) {
        let line = match output {
            Output::Reply { to, reply, .. } => format!("{} to {}: {}", reply.status, to.0, code(reply)),
            Output::LookUp { to, .. } => format!("{} looks on the disk", to.0),
            Output::Lease { to, lease } => {
                format!(
                    "{} sees {}",
                    to.0,
                    lease.as_ref().map_or("no lease".to_owned(), |it| format!("{:?}", it.state))
                )
            }
            Output::Read { to } => format!("{} looks", to.0),
            Output::ReadDone { to } => format!("{} has seen", to.0),
            Output::Lost { to } => format!("{} lost", to.0),
            Output::Host(command) => match command {
                HostCommand::SetShimTarget(target) => format!("host: {} {:?}", target.lease, target.placement),
                HostCommand::ReadGpus => "host: read the GPUs".to_owned(),
                _ => return,
            },
            Output::Writer(task) => format!("writer: {task:?}"),
            Output::Token(_) | Output::Notice(_) | Output::GpuTrouble(_) => return,
        };
        self.story.push_str(&line);
        self.story.push('\n');
    }

    fn check(&self, expected: &Expect) {
        expected.assert_eq(&self.story);
    }
}

/// The code of a problem, or the state of a lease.
fn code(reply: &Reply) -> String {
    let body: serde_json::Value = serde_json::from_str(&reply.body).unwrap_or_default();
    let field = if reply.is_problem() { "code" } else { "state" };
    body[field].as_str().unwrap_or("?").to_owned()
}

#[test]
fn answers_and_orders_leave_after_their_batch_is_durable() {
    let mut rig = Rig::new();
    rig.call(1, request(8), None);
    rig.handle(LoopInput::Read { to: ReplyId(2) });
    rig.close();
    rig.story.push_str("…\n");
    rig.synced();
    rig.check(&expect![[r#"
        2 looks
        batch of 3 lines
        …
        synced
        host: L1 OnGpus
        201 to 1: active
        2 has seen
    "#]]);
}

#[test]
fn requests_that_come_while_a_batch_is_written_go_into_the_next_one() {
    let mut rig = Rig::new();
    rig.call(1, request(8), None);
    rig.close();
    rig.call(2, request(8), None);
    assert!(rig.the_loop.close_batch(rig.moment).is_none(), "one batch is written at a time");
    rig.synced();
    rig.commit();
    rig.check(&expect![[r#"
        batch of 3 lines
        synced
        host: L1 OnGpus
        201 to 1: active
        batch of 2 lines
        synced
        host: L2 OnGpus
        201 to 2: active
    "#]]);
}

#[test]
fn repeated_request_is_in_use_until_its_answer_leaves_and_answered_from_then_on() {
    let mut rig = Rig::new();
    rig.call(1, request(8), Some(key("k")));
    rig.call(2, request(8), Some(key("k")));
    rig.close();
    rig.call(3, request(8), Some(key("k")));
    rig.synced();
    // The loop has heard of the commit before the answer to 1 left.
    rig.call(4, request(8), Some(key("k")));
    rig.commit();
    rig.check(&expect![[r#"
        batch of 3 lines
        synced
        host: L1 OnGpus
        201 to 1: active
        409 to 2: key_in_use
        batch of 0 lines
        409 to 3: key_in_use
        201 to 4: active
    "#]]);
}

#[test]
fn full_disk_refuses_requests_retries_releases_once_and_loses_readers() {
    let mut rig = Rig::new();
    rig.call(1, request(8), None);
    rig.commit();
    rig.call(2, request(8), None);
    let lease = LeaseId(1);
    rig.call(3, Event::Lease(LeaseEvent::ReleaseRequested { by: caller(), lease, fence: None }), None);
    rig.handle(LoopInput::Read { to: ReplyId(4) });
    rig.close();
    rig.full();
    rig.commit();
    rig.check(&expect![[r#"
        batch of 3 lines
        synced
        host: L1 OnGpus
        201 to 1: active
        4 looks
        batch of 3 lines
        full
        507 to 2: disk_full
        4 lost
        batch of 3 lines
        synced
        host: L1 OnGpus
        host: read the GPUs
        host: read the GPUs
        200 to 3: ending
    "#]]);
}

#[test]
fn nothing_is_decided_while_not_even_the_ballast_is_enough_and_it_goes_on_once_there_is_room() {
    let mut rig = Rig::new();
    rig.call(1, request(8), None);
    rig.close();
    rig.full();
    rig.close();
    rig.full();
    rig.call(2, request(8), None);
    rig.after(Span::millis(1_100));
    rig.handle(LoopInput::RoomProbed { has_room: false });
    rig.after(Span::millis(1_100));
    rig.handle(LoopInput::RoomProbed { has_room: true });
    rig.handle(LoopInput::Read { to: ReplyId(3) });
    rig.commit();
    rig.after(Span::secs(6));
    rig.handle(LoopInput::DiskFreed);
    rig.commit();
    rig.call(4, request(8), None);
    rig.read_gpu();
    rig.commit();
    rig.check(&expect![[r#"
        batch of 3 lines
        full
        507 to 1: disk_full
        batch of 1 lines
        full
        507 to 2: disk_full
        writer: ProbeRoom
        writer: ProbeRoom
        batch of 1 lines
        synced
        3 looks
        host: read the GPUs
        writer: RestoreBallast
        batch of 0 lines
        3 has seen
        batch of 3 lines
        synced
        202 to 4: waiting
        host: L1 OnGpus
    "#]]);
}

#[test]
fn readers_of_a_disk_that_takes_nothing_are_answered_although_the_configuration_is_read() {
    let mut rig = Rig::new();
    rig.call(1, request(8), None);
    rig.close();
    rig.full();
    rig.close();
    rig.full();
    rig.story.clear();
    rig.handle(LoopInput::Read { to: ReplyId(2) });
    let (policy, visibility) = (Box::new(Policy::default()), Visibility::Own);
    rig.handle(LoopInput::Configured { policy, visibility });
    rig.check(&expect![[r#"
        2 looks
        2 has seen
    "#]]);
}

#[test]
fn client_that_waits_for_a_grant_sees_it_once_it_is_durable_and_not_after_it_hung_up() {
    let mut rig = Rig::new();
    rig.call(1, request(20), None);
    rig.call(2, request(20), None);
    rig.commit();
    rig.story.clear();
    let watch = |to| LeaseWatch { by: caller(), lease: LeaseId(2), until: WatchGoal::Granted, to: ReplyId(to) };
    rig.handle(LoopInput::Watch(watch(3)));
    rig.handle(LoopInput::Watch(watch(4)));
    rig.handle(LoopInput::EndWatch { lease: LeaseId(2), to: ReplyId(4) });
    rig.call(5, Event::Lease(LeaseEvent::ReleaseRequested { by: caller(), lease: LeaseId(1), fence: None }), None);
    rig.commit();
    rig.after(Span::secs(1));
    rig.read_gpu();
    rig.commit();
    rig.check(&expect![[r#"
        batch of 1 lines
        synced
        host: read the GPUs
        200 to 5: ending
        batch of 2 lines
        synced
        host: L2 OnGpus
        3 sees Active
    "#]]);
}

#[test]
fn loop_that_was_told_to_stop_is_finished_once_all_is_durable() {
    let mut rig = Rig::new();
    rig.call(1, request(8), None);
    rig.handle(LoopInput::Stop);
    assert!(!rig.the_loop.is_finished());
    rig.close();
    assert!(!rig.the_loop.is_finished());
    rig.synced();
    assert!(rig.the_loop.is_finished());
}

#[test]
fn day_is_told_when_it_changes_at_this_place_and_once_an_hour() {
    let mut rig = Rig::new();
    let day = |rig: &Rig| rig.the_loop.engine.state().rows().meta.day;
    let first = day(&rig);
    rig.after(Span::secs(86_400));
    assert_eq!(day(&rig), first + 1);
    rig.moment.utc_offset_s = 12 * 3600;
    rig.after(Span::secs(2));
    let local = rig.moment.day();
    assert_eq!(day(&rig), local);
}
