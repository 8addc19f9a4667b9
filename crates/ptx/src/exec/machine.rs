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
//! how a lane that spins lets the lane it waits for run. If that lane waits at a
//! meeting point for the spinning one, it goes on alone after [`PATIENCE`] time slices;
//! the next instruction that needs them both gathers them again.

use super::launch::LaunchEnv;
use super::memory::Region;
use crate::fault::FaultKind;
use crate::limits;
use crate::op::{NONE, Op, OpOutcome};
use crate::program::Frame;

/// A set of lanes that waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneSet {
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

/// The unit of register memory, aligned for vector loads.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
pub(crate) struct RegisterUnit(pub [u8; 128]);

/// What a warp at a barrier waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BarrierWait {
    pub barrier: u32,
    /// Warps, or 0 for all of the block.
    pub warps: u32,
    /// The lanes with a true predicate, for `bar.red`.
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
    pub stack: Vec<LaneSet>,
    pub registers: Vec<RegisterUnit>,
    /// Local memory, 32 threads one after another.
    pub locals: Vec<u128>,
    /// Local bytes of one thread.
    pub local_bytes: u32,
    /// Local bytes that its calls have used so far; bytes beyond cannot be accessed.
    pub local_end: u32,
    /// Bytes of registers that calls have used so far.
    registers_end: usize,
    /// Its number in the block.
    pub index: u32,
    pub waiting: Option<BarrierWait>,
    /// Lanes at an instruction that needs other lanes, which have not come yet.
    pub stalled: u32,
    /// Time slices that sets have used while others waited.
    pub starved: u32,
    /// The number of such time slices after which waiting lanes go on alone.
    pub patience: u32,
}

/// Time slices of together 262,144 instructions: few loops run that long for some lanes only.
pub(crate) const PATIENCE: u32 = 32;

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
            local_end: 0,
            registers_end: 0,
            index: 0,
            waiting: None,
            stalled: 0,
            starved: 0,
            patience: PATIENCE,
        }
    }

    pub fn set_mask(&mut self, mask: u32) {
        self.mask = mask;
        self.lanes = mask.count_ones();
    }

    fn running_set(&self) -> LaneSet {
        let Warp { pc, mask, meet, depth, function, frame, local, .. } = *self;
        LaneSet { pc, mask, meet, depth, function, frame, local }
    }

    fn resume(&mut self, set: LaneSet) {
        self.pc = set.pc;
        self.set_mask(set.mask);
        self.meet = set.meet;
        self.depth = set.depth;
        self.function = set.function;
        self.local = set.local;
        self.enter_frame(set.frame);
    }

    /// Zeroes the memory that was used, so that a read of undefined values does not depend
    /// on which block ran before.
    pub fn zero_used_memory(&mut self) {
        let units = self.registers_end.div_ceil(size_of::<RegisterUnit>()).min(self.registers.len());
        self.registers[..units].fill(RegisterUnit([0; 128]));
        self.registers_end = 0;
        let (stride, used) = (self.local_bytes as usize / 16, self.local_end.div_ceil(16) as usize);
        if used > 0 {
            self.locals.chunks_exact_mut(stride).for_each(|lane| lane[..used].fill(0));
        }
        self.local_end = 0;
    }

    /// Makes room for a function's frame at `frame`, with its local memory at `local`.
    pub fn reserve_frame(&mut self, function: &Frame, frame: usize, local: u32) {
        let registers_end = frame + function.bytes as usize;
        let local_end = local + function.local_bytes + function.call_bytes;
        let units = registers_end.div_ceil(size_of::<RegisterUnit>()) + 1;
        if self.registers.len() < units {
            self.registers.resize(units.next_power_of_two(), RegisterUnit([0; 128]));
        }
        self.registers_end = self.registers_end.max(registers_end);
        self.local_end = self.local_end.max(local_end).min(self.local_bytes);
    }

    /// Makes the frame at `frame` current; `registers` must reach that far.
    pub fn enter_frame(&mut self, frame: usize) {
        self.frame = frame;
        self.regs = self.registers[frame / size_of::<RegisterUnit>()..].as_mut_ptr().cast();
    }

    /// Puts the running set on the stack as it is.
    pub fn push(&mut self) {
        self.stack.push(self.running_set());
    }

    /// Goes on with the topmost waiting set that has lanes.
    pub fn pop(&mut self) -> OpOutcome {
        while let Some(set) = self.stack.pop() {
            if set.mask != 0 {
                self.resume(set);
                return OpOutcome::Continue;
            }
        }
        OpOutcome::Done
    }

    /// Splits the running set over targets; they meet again at `meet`.
    pub fn split(&mut self, targets: &[(u32, u32)], meet: u32) -> OpOutcome {
        if meet != NONE && meet != self.meet {
            let mut parent = self.running_set();
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
        if running { OpOutcome::Continue } else { self.pop() }
    }

    /// Lets `rest` come back to the instruction at hand later; all meet after it.
    pub fn defer_lanes(&mut self, rest: u32) {
        let after = self.pc;
        if after != self.meet {
            self.push();
            self.meet = after;
        }
        let mut later = self.running_set();
        later.pc = after - 1;
        later.mask = rest;
        self.stack.push(later);
    }

    /// Lanes of a function return: they leave every set of this call.
    pub fn return_lanes(&mut self, lanes: u32) -> OpOutcome {
        let depth = self.depth;
        for set in self.stack.iter_mut().filter(|set| set.depth == depth) {
            set.mask &= !lanes;
        }
        self.set_mask(self.mask & !lanes);
        if self.mask == 0 { self.pop() } else { OpOutcome::Continue }
    }

    /// Lanes end.
    pub fn end_lanes(&mut self, lanes: u32) -> OpOutcome {
        self.alive &= !lanes;
        for set in &mut self.stack {
            set.mask &= !lanes;
        }
        self.set_mask(self.mask & !lanes);
        if self.mask == 0 { self.pop() } else { OpOutcome::Continue }
    }

    /// Called before an instruction that needs all of `members`: returns true if it is to run now.
    ///
    /// If not, another set runs first, and this one comes back to it. If no other set
    /// can run, the instruction runs without the missing members.
    #[inline(always)]
    pub fn merge_members(&mut self, members: u32) -> bool {
        members & self.alive & !self.mask == 0 || self.merge_members_slowly(members)
    }

    #[cold]
    fn merge_members_slowly(&mut self, members: u32) -> bool {
        let here = self.pc - 1;
        while let Some(index) = self.lowest_runnable_set(|set, warp| {
            let same = (set.pc, set.depth, set.meet, set.frame) == (here, warp.depth, warp.meet, warp.frame);
            same && set.local == warp.local && set.mask & members != 0
        }) {
            let joined = self.stack.remove(index).mask;
            self.set_mask(self.mask | joined);
        }
        if members & self.alive & !self.mask == 0 {
            self.stalled &= !self.mask;
            return true;
        }
        self.stalled |= self.mask;
        let Some(index) = self.lowest_runnable_set(|set, warp| set.mask & !warp.stalled != 0) else {
            self.stalled = 0;
            return true;
        };
        let set = self.stack.remove(index);
        self.pc = here;
        self.push();
        self.resume(set);
        false
    }

    /// The lowest set that waits for no other and that `wanted` holds for.
    fn lowest_runnable_set(&self, wanted: impl Fn(&LaneSet, &Warp) -> bool) -> Option<usize> {
        let mut above = self.mask;
        let mut found = None;
        for (index, set) in self.stack.iter().enumerate().rev() {
            if set.mask != 0 && set.mask & above == 0 && wanted(set, self) {
                found = Some(index);
            }
            above |= set.mask;
        }
        found
    }

    /// Called after a time slice: lets another set run, and after `patience` of them also lanes
    /// that wait at a meeting point.
    pub fn end_time_slice(&mut self) {
        if self.stack.is_empty() {
            return;
        }
        self.starved += 1;
        if self.starved >= self.patience {
            self.starved = 0;
            self.patience = (self.patience / 8).max(1);
            if self.release_joined_lanes() {
                return;
            }
        }
        self.run_longest_waiting();
    }

    /// Lets lanes go on from where they wait for others.
    fn release_joined_lanes(&mut self) -> bool {
        let mut above = self.mask;
        for index in (0..self.stack.len()).rev() {
            let set = self.stack[index];
            let free = set.mask & !above;
            if free != 0 && free != set.mask {
                self.stack[index].mask &= above;
                self.push();
                self.resume(LaneSet { mask: free, ..set });
                return true;
            }
            above |= set.mask;
        }
        false
    }

    /// Lets the longest-waiting set run that waits for no other: a lane that
    /// spins then cannot keep the lane it waits for from running.
    pub fn run_longest_waiting(&mut self) {
        if let Some(index) = self.lowest_runnable_set(|_, _| true) {
            let set = self.stack.remove(index);
            self.push();
            self.resume(set);
        }
    }
}

/// How many regions a worker remembers, by the instruction that used them.
const RECENT_REGIONS: usize = 64;

/// A worker's processor.
pub(crate) struct Machine<'a> {
    pub warp: Warp,
    pub env: &'a LaunchEnv<'a>,
    /// The block's shared memory.
    pub shared: Vec<u128>,
    pub shared_bytes: u32,
    pub block: [u32; 3],
    /// Warps that came to a barrier without waiting, by barrier.
    pub arrived: [u32; 16],
    pub fault: Option<(FaultKind, u32)>,
    pub thread_instructions: u64,
    pub warp_instructions: u64,
    /// How often the clock was read, so that two reads never give the same value.
    pub clock_reads: u64,
    recent_regions: [Region; RECENT_REGIONS],
}

impl<'a> Machine<'a> {
    pub fn new(env: &'a LaunchEnv<'a>) -> Self {
        Machine {
            warp: Warp::new(),
            env,
            shared: vec![0; env.shared_bytes.div_ceil(16) as usize],
            shared_bytes: env.shared_bytes,
            block: [0; 3],
            arrived: [0; 16],
            fault: None,
            thread_instructions: 0,
            warp_instructions: 0,
            clock_reads: 0,
            recent_regions: [Region::EMPTY; RECENT_REGIONS],
        }
    }

    /// Records why the first lane of `lanes` cannot go on.
    #[cold]
    pub fn fail(&mut self, kind: FaultKind, lanes: u32) -> OpOutcome {
        self.fault = Some((kind, lanes.trailing_zeros() & 31));
        OpOutcome::Fault
    }

    /// The lanes to run `op` for once all of `members` are here, or `None` if another
    /// set of lanes runs first and this one comes back.
    ///
    /// # Safety
    /// `op` belongs to the current function.
    #[inline(always)]
    pub unsafe fn gather_members(&mut self, op: &Op, mask: u32, members: u32) -> Option<u32> {
        if members & self.warp.alive & !self.warp.mask == 0 {
            return Some(mask);
        }
        if !self.warp.merge_members(members) {
            return None;
        }
        // The set may have grown.
        match op.guard {
            NONE => Some(self.warp.mask),
            // SAFETY: by contract.
            guard => Some(self.warp.mask & (unsafe { crate::lanes::predicate(self, guard) } ^ op.guard_flip)),
        }
    }

    /// The region that the instruction at hand used last.
    #[inline(always)]
    pub fn recent_region(&self) -> &Region {
        &self.recent_regions[self.warp.pc as usize % RECENT_REGIONS]
    }

    pub fn set_recent_region(&mut self, region: Region) {
        self.recent_regions[self.warp.pc as usize % RECENT_REGIONS] = region;
    }

    /// Runs the current warp until it waits, ends, faults or has used up its time slice.
    pub fn run_time_slice(&mut self) -> OpOutcome {
        let code = self.env.program.code.as_ptr();
        let mut left = limits::SLICE;
        let mut threads = 0_u64;
        let next = loop {
            // SAFETY: every `pc` is an index that lowering made, and every function
            // ends in an op that does not fall through.
            let op = unsafe { &*code.add(self.warp.pc as usize) };
            self.warp.pc += 1;
            let mut mask = self.warp.mask;
            threads += u64::from(self.warp.lanes);
            left -= 1;
            if op.guard != NONE {
                // SAFETY: lowering made `guard` a predicate of this function's frame.
                mask &= unsafe { crate::lanes::predicate(self, op.guard) } ^ op.guard_flip;
            }
            if mask != 0 {
                // SAFETY: `op` belongs to the current function, and its handler was
                // chosen for this host.
                let next = unsafe { (op.run)(self, op, mask) };
                if next != OpOutcome::Continue {
                    break next;
                }
            }
            if left == 0 {
                break OpOutcome::EndOfSlice;
            }
        };
        self.thread_instructions += threads;
        self.warp_instructions += u64::from(limits::SLICE - left);
        next
    }
}
