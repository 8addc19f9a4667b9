//! A worker's processor: the warp it runs, the block's shared memory, and the loop
//! that fetches.
//!
//! Divergence is a stack of lane sets that wait:
//!
//! ```text
//!   branch splits {0..31}, meeting at R      stack (top runs last)
//!     taken {0..7}   runs now                 {0..31} waits at R
//!     others {8..31} wait                     {8..31} at the next instruction
//!   {0..7} comes to R: its set is dropped, {8..31} runs, comes to R, is dropped,
//!   {0..31} goes on at R
//! ```
//!
//! A set without waiting children may be moved to the top at any time, which is
//! how a lane that spins lets the lane it waits for run.

use super::launch::Env;
use super::memory::Region;
use crate::fault::FaultKind;
use crate::limits;
use crate::op::{NONE, Next};

/// A set of lanes that waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub pc: u32,
    pub mask: u32,
    /// Where this set is dropped because another waits there for it, or [`NONE`].
    pub meet: u32,
    pub depth: u32,
    pub function: u32,
    /// Offset of the register frame.
    pub frame: usize,
    /// Offset of the local frame.
    pub local: u32,
}

/// Registers are kept in units that vector loads like.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
pub(crate) struct Unit(pub [u8; 128]);

/// What a warp at a barrier waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiting {
    pub barrier: u32,
    /// Warps, or 0 for all of the block.
    pub warps: u32,
    /// The lanes whose predicate holds, for `bar.red`.
    pub votes: u32,
    pub lanes: u32,
    pub reduction: Reduction,
    /// Where the reduction's result goes.
    pub result: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reduction {
    None,
    And,
    Or,
    Popc,
}

/// A warp: the set that runs, and those that wait.
pub(crate) struct Warp {
    /// The current register frame.
    pub regs: *mut u8,
    pub pc: u32,
    pub mask: u32,
    /// Lanes that have not ended.
    pub alive: u32,
    pub meet: u32,
    /// How many lanes `mask` has.
    pub lanes: u32,
    pub depth: u32,
    pub function: u32,
    pub frame: usize,
    pub local: u32,
    pub stack: Vec<Entry>,
    pub registers: Vec<Unit>,
    /// Local memory, 32 threads one after another.
    pub locals: Vec<u128>,
    /// Local bytes of one thread.
    pub local_bytes: u32,
    /// Its number in the block.
    pub index: u32,
    pub waiting: Option<Waiting>,
}

impl Warp {
    pub fn new() -> Self {
        Warp {
            regs: std::ptr::null_mut(),
            pc: 0,
            mask: 0,
            alive: 0,
            meet: NONE,
            lanes: 0,
            depth: 0,
            function: 0,
            frame: 0,
            local: 0,
            stack: Vec::new(),
            registers: Vec::new(),
            locals: Vec::new(),
            local_bytes: 0,
            index: 0,
            waiting: None,
        }
    }

    pub fn set_mask(&mut self, mask: u32) {
        self.mask = mask;
        self.lanes = mask.count_ones();
    }

    fn entry(&self) -> Entry {
        let Warp { pc, mask, meet, depth, function, frame, local, .. } = *self;
        Entry { pc, mask, meet, depth, function, frame, local }
    }

    fn resume(&mut self, entry: Entry) {
        self.pc = entry.pc;
        self.set_mask(entry.mask);
        self.meet = entry.meet;
        self.depth = entry.depth;
        self.function = entry.function;
        self.local = entry.local;
        self.enter_frame(entry.frame);
    }

    /// Makes the frame at `frame` current; `registers` must reach that far.
    pub fn enter_frame(&mut self, frame: usize) {
        self.frame = frame;
        self.regs = self.registers[frame / size_of::<Unit>()..].as_mut_ptr().cast();
    }

    /// The running set waits as it is.
    pub fn push(&mut self) {
        self.stack.push(self.entry());
    }

    /// Goes on with the topmost waiting set that has lanes.
    pub fn pop(&mut self) -> Next {
        while let Some(entry) = self.stack.pop() {
            if entry.mask != 0 {
                self.resume(entry);
                return Next::Go;
            }
        }
        Next::Done
    }

    /// Splits the running set over targets; they meet again at `meet`.
    pub fn split(&mut self, targets: &[(u32, u32)], meet: u32) -> Next {
        if meet != NONE && meet != self.meet {
            let mut parent = self.entry();
            parent.pc = meet;
            self.stack.push(parent);
            self.meet = meet;
        }
        let mut running = false;
        for &(pc, mask) in targets {
            // Lanes that are already there wait with their parent.
            if pc == meet || mask == 0 {
                continue;
            }
            if running {
                self.push();
            }
            self.pc = pc;
            self.set_mask(mask);
            running = true;
        }
        if running { Next::Go } else { self.pop() }
    }

    /// Lets `rest` come back to the instruction at hand later; all meet after it.
    pub fn set_aside(&mut self, rest: u32) {
        let after = self.pc;
        if after != self.meet {
            self.push();
            self.meet = after;
        }
        let mut later = self.entry();
        later.pc = after - 1;
        later.mask = rest;
        self.stack.push(later);
    }

    /// Lanes of a function return: they leave every set of this call.
    pub fn leave(&mut self, lanes: u32) -> Next {
        let depth = self.depth;
        for entry in self.stack.iter_mut().filter(|entry| entry.depth == depth) {
            entry.mask &= !lanes;
        }
        self.set_mask(self.mask & !lanes);
        if self.mask == 0 { self.pop() } else { Next::Go }
    }

    /// Lanes end.
    pub fn end(&mut self, lanes: u32) -> Next {
        self.alive &= !lanes;
        for entry in &mut self.stack {
            entry.mask &= !lanes;
        }
        self.set_mask(self.mask & !lanes);
        if self.mask == 0 { self.pop() } else { Next::Go }
    }

    /// Lets the longest-waiting set run that waits for no other: a lane that
    /// spins then cannot keep the lane it waits for from running.
    pub fn rotate(&mut self) {
        let mut above = self.mask;
        let mut found = None;
        for (index, entry) in self.stack.iter().enumerate().rev() {
            if entry.mask != 0 && entry.mask & above == 0 {
                found = Some(index);
            }
            above |= entry.mask;
        }
        if let Some(index) = found {
            let entry = self.stack.remove(index);
            self.push();
            self.resume(entry);
        }
    }
}

/// How many regions a worker remembers, by the instruction that used them.
const REMEMBERED: usize = 64;

/// A worker's processor.
pub(crate) struct Machine<'a> {
    pub w: Warp,
    pub env: &'a Env<'a>,
    /// The block's shared memory.
    pub shared: Vec<u128>,
    pub shared_bytes: u32,
    pub block: [u32; 3],
    /// Warps that came to a barrier without waiting, by barrier.
    pub arrived: [u32; 16],
    pub fault: Option<(FaultKind, u32)>,
    pub thread_instructions: u64,
    pub warp_instructions: u64,
    regions: [Region; REMEMBERED],
}

impl<'a> Machine<'a> {
    pub fn new(env: &'a Env<'a>) -> Self {
        Machine {
            w: Warp::new(),
            env,
            shared: vec![0; env.shared_bytes.div_ceil(16) as usize],
            shared_bytes: env.shared_bytes,
            block: [0; 3],
            arrived: [0; 16],
            fault: None,
            thread_instructions: 0,
            warp_instructions: 0,
            regions: [Region::EMPTY; REMEMBERED],
        }
    }

    /// Records why the first lane of `lanes` cannot go on.
    #[cold]
    pub fn fail(&mut self, kind: FaultKind, lanes: u32) -> Next {
        self.fault = Some((kind, lanes.trailing_zeros() & 31));
        Next::Fault
    }

    /// The region that the instruction at hand used last.
    #[inline(always)]
    pub fn remembered(&self) -> &Region {
        &self.regions[self.w.pc as usize % REMEMBERED]
    }

    pub fn remember(&mut self, region: Region) {
        self.regions[self.w.pc as usize % REMEMBERED] = region;
    }

    /// Runs the current warp until it waits, ends, faults or has had its turn.
    pub fn turn(&mut self) -> Next {
        let code = self.env.program.code.as_ptr();
        let mut left = limits::SLICE;
        let mut threads = 0_u64;
        let next = loop {
            // SAFETY: every `pc` is an index that lowering made, and every function
            // ends in an op that does not fall through.
            let op = unsafe { &*code.add(self.w.pc as usize) };
            self.w.pc += 1;
            let mut mask = self.w.mask;
            threads += u64::from(self.w.lanes);
            left -= 1;
            if op.guard != NONE {
                // SAFETY: lowering made `guard` a predicate of this function's frame.
                mask &= unsafe { crate::lanes::predicate(self, op.guard) } ^ op.guard_flip;
            }
            if mask != 0 {
                // SAFETY: `op` belongs to the current function, and its handler was
                // chosen for this host.
                let next = unsafe { (op.run)(self, op, mask) };
                if next != Next::Go {
                    break next;
                }
            }
            if left == 0 {
                break Next::Yield;
            }
        };
        self.thread_instructions += threads;
        self.warp_instructions += u64::from(limits::SLICE - left);
        next
    }
}
