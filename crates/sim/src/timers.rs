//! What is going to happen, and when: the simulation's own agenda.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use sublet_core::ids::ProcKey;
use sublet_core::method::Method;

/// Something due. A `u32` first is the life of the daemon it belongs to: timers
/// of a dead daemon do nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// The daemon's loop ticks.
    Tick(u32),
    /// A look at a card begins.
    Look(u32, u16),
    /// A look comes back; the number is its place among the looks under way.
    Seen(u32, u32),
    /// A commit comes back.
    Synced(u32),
    /// The host reports on a holder's processes.
    Says(u32, u64),
    /// The cards are listed again.
    Relist(u32),
    /// The daemon hears that a signal to a holder has left.
    Sent(u32, u64, u8),
    /// The daemon's loop goes on after a stall.
    StallOver(u32),
    /// A daemon starts.
    Restart,
    /// A job does its next thing; the second number tells old alarms from new ones.
    Wake(u32, u32),
    /// A process tree exits.
    Exit(u32),
    /// A stranger appears.
    Stranger,
    /// Something goes wrong.
    Fault,
    /// A card recovers.
    Heal(u16),
    /// Somebody calls with what is not theirs.
    Mischief,
    /// An operator does something.
    Operator,
    /// A user puts a GPU aside, or ends that.
    Aside,
    /// The disk has room again.
    DiskFreed,
    /// Callers accept that lines are missing, an operator among them.
    AcceptLoss,
    /// A program gets through to the daemon.
    Connect(u32, ProcKey, Method),
    /// The daemon hears what a program said.
    Hear(u32, ProcKey, Method),
    /// The daemon looks whether a program is where it should be.
    Mind(u32, ProcKey, Method),
    /// The daemon notices that a program of a lease's is not there any more, and whether it died while the library in it
    /// was parking it.
    Left(u32, u64, ProcKey, Method, bool),
    /// A program has done what it was told; the number tells old orders from new ones.
    Done(ProcKey, Method, u32),
    /// A wrapper hears where its lease is.
    Heed(u32, u64),
    /// A wrapper's hook is done; the number tells old runs from new ones.
    Hooked(u64, u32),
    /// A wrapper dies, and its programs stay.
    Orphan(u64),
    /// The host's memory is looked at.
    Ram(u32),
    /// Somebody wants a holder parked, or resumed.
    Hand,
    /// A process exits, for a signal it got.
    Die(ProcKey),
    /// Somebody without a lease comes to stay.
    Lodger,
    /// A process without a lease was looked into.
    Audit(u32, ProcKey),
    /// A process that was looked into is noticed to have exited.
    Gone(u32, ProcKey),
    /// It was tried whether strangers could be ended.
    SelfTest(u32),
    /// A signal to a stranger leaves; the number is its place among them.
    Blow(u32, u32),
    /// The daemon hears what became of it.
    Landed(u32, u32),
    /// An operator, or an owner, says something about strangers.
    Warden,
}

/// The agenda, the earliest first, ties in the order they were made.
#[derive(Debug, Default)]
pub struct Timers {
    heap: BinaryHeap<Reverse<(u64, u64, Timer)>>,
    made: u64,
}

impl Timers {
    /// Notes something for `at_us`.
    pub fn set(&mut self, at_us: u64, timer: Timer) {
        self.made += 1;
        self.heap.push(Reverse((at_us, self.made, timer)));
    }

    /// The next thing.
    pub fn pop(&mut self) -> Option<(u64, Timer)> {
        self.heap.pop().map(|Reverse((at, _, timer))| (at, timer))
    }
}
