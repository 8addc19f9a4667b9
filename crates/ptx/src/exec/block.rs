//! One block: its warps alternate on one worker, and meet at barriers.

use super::launch::BlockWorker;
use super::machine::{BarrierWait, PATIENCE, Reduction, Warp};
use crate::fault::{FaultKind, FaultSite};
use crate::lanes;
use crate::op::{NONE, OpOutcome};

/// Why a block ended early.
type BlockFault = (FaultKind, Option<Box<FaultSite>>);

impl BlockWorker<'_, '_> {
    /// Runs the machine's current block to its end.
    pub(crate) fn run_block(&mut self) -> Result<(), BlockFault> {
        self.machine.shared.fill(0);
        self.machine.arrived = [0; 16];
        let warps = self.machine.env.warps_per_block();
        while self.warps.len() < warps as usize {
            self.warps.push(Warp::new());
        }
        for index in 0..warps {
            self.with_warp(index, |worker| worker.prepare(index));
        }
        loop {
            let mut running = 0;
            for index in 0..warps {
                if self.warps[index as usize].alive == 0 || self.warps[index as usize].waiting.is_some() {
                    continue;
                }
                if self.run_time_slice(index)? {
                    running += 1;
                }
            }
            // Warps that meet at barriers for ever never use up their time slice.
            if self.machine.env.is_over() {
                return Err((FaultKind::Stopped, Some(self.site(self.warps[0].pc, 0, 0))));
            }
            let released = self.release_barriers(warps);
            let waiting = self.warps[..warps as usize].iter().position(|warp| warp.waiting.is_some());
            match waiting {
                None if running == 0 && !released => return Ok(()),
                Some(index) if running == 0 && !released => return Err(self.barrier_fault(index)),
                _ => {}
            }
        }
    }

    fn with_warp<R>(&mut self, index: u32, act: impl FnOnce(&mut Self) -> R) -> R {
        std::mem::swap(&mut self.machine.warp, &mut self.warps[index as usize]);
        let result = act(self);
        std::mem::swap(&mut self.machine.warp, &mut self.warps[index as usize]);
        result
    }

    fn prepare(&mut self, index: u32) {
        let env = self.machine.env;
        let frame = &env.program.functions[env.entry as usize];
        let warp = &mut self.machine.warp;
        warp.zero_used_memory();
        warp.local_bytes = env.local_bytes;
        warp.locals.resize(env.local_bytes as usize * 2, 0);
        warp.reserve_frame(frame, 0, 0);
        let threads = env.threads_per_block() - index * 32;
        warp.alive = if threads >= 32 { u32::MAX } else { (1 << threads) - 1 };
        warp.set_mask(warp.alive);
        warp.index = index;
        warp.pc = frame.entry;
        warp.meet = NONE;
        warp.depth = 0;
        warp.function = env.entry;
        warp.local = 0;
        warp.stack.clear();
        warp.waiting = None;
        warp.stalled = 0;
        warp.starved = 0;
        warp.patience = PATIENCE;
        warp.enter_frame(0);
        self.machine.fill_pool(u32::MAX);
    }

    /// Runs a warp for one time slice; returns true if it can go on afterwards.
    fn run_time_slice(&mut self, index: u32) -> Result<bool, BlockFault> {
        self.with_warp(index, |worker| {
            let machine = &mut worker.machine;
            match machine.run_time_slice() {
                OpOutcome::Continue | OpOutcome::EndOfSlice => {
                    if machine.env.is_over() {
                        let site = worker.site(worker.machine.warp.pc, index, 0);
                        return Err((FaultKind::Stopped, Some(site)));
                    }
                    machine.warp.end_time_slice();
                    Ok(true)
                }
                OpOutcome::Barrier => Ok(false),
                OpOutcome::Done => {
                    machine.warp.alive = 0;
                    Ok(false)
                }
                OpOutcome::Fault => {
                    let (kind, lane) = machine.fault.take().unwrap_or((FaultKind::Trap, 0));
                    let site = worker.site(worker.machine.warp.pc, index, lane);
                    Err((kind, Some(site)))
                }
            }
        })
    }

    /// Lets warps continue after a complete barrier; returns true if there were any.
    fn release_barriers(&mut self, warps: u32) -> bool {
        let mut released = false;
        for barrier in 0..16 {
            let here = |warp: &&mut Warp| warp.waiting.is_some_and(|waiting| waiting.barrier == barrier);
            let living = self.warps[..warps as usize].iter().filter(|warp| warp.alive != 0).count() as u32;
            let group: Vec<&mut Warp> = self.warps[..warps as usize].iter_mut().filter(here).collect();
            let Some(first) = group.first().and_then(|warp| warp.waiting) else { continue };
            let needed = if first.warps == 0 { living } else { first.warps };
            if (group.len() as u32) + self.machine.arrived[barrier as usize] < needed {
                continue;
            }
            self.machine.arrived[barrier as usize] = 0;
            released = true;
            deliver_reduction(group);
        }
        released
    }

    fn barrier_fault(&self, index: usize) -> BlockFault {
        let warp = &self.warps[index];
        let barrier = warp.waiting.map_or(0, |waiting| waiting.barrier);
        let site = self.site(warp.pc, index as u32, warp.mask.trailing_zeros() & 31);
        (FaultKind::DivergentBarrier { barrier }, Some(site))
    }
}

/// Gives every warp of a complete barrier the result of its reduction.
fn deliver_reduction(group: Vec<&mut Warp>) {
    let all: Vec<BarrierWait> = group.iter().filter_map(|warp| warp.waiting).collect();
    let votes: u32 = all.iter().map(|waiting| waiting.votes.count_ones()).sum();
    let lanes: u32 = all.iter().map(|waiting| waiting.lanes.count_ones()).sum();
    for warp in group {
        let Some(waiting) = warp.waiting.take() else { continue };
        // SAFETY: lowering made `result` a predicate, or for `popc` a 32-bit
        // register, of the frame that is current for this warp.
        unsafe {
            let at = || warp.regs.add(waiting.result as usize);
            let set = |truth: bool| {
                let word = &mut *at().cast::<u32>();
                *word = (*word & !waiting.lanes) | (if truth { waiting.lanes } else { 0 });
            };
            match waiting.reduction {
                Reduction::None => {}
                Reduction::And => set(votes == lanes),
                Reduction::Or => set(votes != 0),
                Reduction::Popc => {
                    let row = &mut *at().cast::<lanes::Row<u32>>();
                    (0..32).filter(|lane| waiting.lanes >> lane & 1 != 0).for_each(|lane| row[lane] = votes);
                }
            }
        }
    }
}
