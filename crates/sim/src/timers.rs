//! The timers of the simulation: what happens next, and when.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use sublet_core::ids::ProcKey;
use sublet_core::method::Method;

/// An event that is due. A leading `u32` is the number of the daemon that it belongs to: timers of earlier daemons do
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// The daemon's loop ticks.
    Tick(u32),
    /// A reading of a GPU begins.
    BeginReading(u32, u16),
    /// A reading is delivered; the number is its place among the pending ones.
    FinishReading(u32, u32),
    /// A commit returns.
    Synced(u32),
    /// The host reports the processes of a lease.
    ReportMembers(u32, u64),
    /// The GPUs are listed again.
    ListGpus(u32),
    /// The daemon hears that a signal to a holder was sent.
    SignalSent(u32, u64, u8),
    /// The daemon's loop runs again after a stall.
    StallOver(u32),
    /// A daemon starts.
    Restart,
    /// A job does what is next; the second number tells its timers apart.
    Job(u32, u32),
    /// A process tree exits.
    Exit(u32),
    /// An unleased process starts, for a short time.
    ShortUnleased,
    /// A fault happens.
    Fault,
    /// A fault of a GPU ends.
    MendGpu(u16),
    /// A call is made without the right to make it.
    WrongCall,
    /// An operator makes a call.
    Operator,
    /// A user puts a GPU aside, or ends that.
    Aside,
    /// The disk has room again.
    DiskFreed,
    /// A tenant and then an operator accept that journal lines are missing.
    AcceptLoss,
    /// A program connects to the daemon.
    Connect(u32, ProcKey, Method),
    /// The daemon reads a program's report.
    DeliverReport(u32, ProcKey, Method),
    /// The daemon compares a program with its target.
    CheckProgram(u32, ProcKey, Method),
    /// The daemon notices that a program of a lease exited, and whether the shim was parking it at that moment.
    ProgramExited(u32, u64, ProcKey, Method, bool),
    /// A program has done its order; the number tells orders apart.
    OrderDone(ProcKey, Method, u32),
    /// A wrapper reads the state of its lease.
    WrapperPoll(u32, u64),
    /// A wrapper's hook returns; the number tells its runs apart.
    HookDone(u64, u32),
    /// A wrapper exits, and its programs stay.
    WrapperExits(u64),
    /// The host's free memory is read.
    ReadHostMemory(u32),
    /// A user parks or resumes a lease.
    ByHand,
    /// A process exits by a signal.
    ExitBySignal(ProcKey),
    /// An unleased process starts, for a long time.
    LongUnleased,
    /// The audit of a process is delivered.
    Audit(u32, ProcKey),
    /// The exit of an audited process is reported.
    ReportExit(u32, ProcKey),
    /// The result of the self-test is reported.
    SelfTest(u32),
    /// A signal to an unleased process is sent; the number is its place in the list.
    SendSignal(u32, u32),
    /// The daemon hears the outcome of that signal.
    SignalOutcome(u32, u32),
    /// An operator or an owner changes what is done about unleased processes.
    ChangeEnforcement,
}

/// All timers, the earliest first, equal ones in the order in which they were set.
#[derive(Debug, Default)]
pub struct Timers {
    heap: BinaryHeap<Reverse<(u64, u64, Timer)>>,
    made: u64,
}

impl Timers {
    /// Sets a timer for `at_us`.
    pub fn set(&mut self, at_us: u64, timer: Timer) {
        self.made += 1;
        self.heap.push(Reverse((at_us, self.made, timer)));
    }

    /// Removes and returns the earliest timer.
    pub fn pop(&mut self) -> Option<(u64, Timer)> {
        self.heap.pop().map(|Reverse((at, _, timer))| (at, timer))
    }
}
