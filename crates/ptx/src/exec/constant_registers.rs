//! Fills the constant registers of a frame that is entered.

use super::machine::Machine;
use crate::program::{FUNCTION_BASE, PooledConstant, Special, Value};

impl Machine<'_> {
    /// Fills the pool of the current function for the lanes of `mask`.
    pub(crate) fn fill_pool(&mut self, mask: u32) {
        let env = self.env;
        for pooled in &env.program.functions[self.warp.function as usize].pool {
            self.fill_constant(pooled, mask);
        }
    }

    fn fill_constant(&mut self, pooled: &PooledConstant, mask: u32) {
        let uniform = match pooled.value {
            Value::Bits(bits) => bits,
            Value::Variable { index, addend } => {
                self.env.variables.get(index as usize).copied().unwrap_or(0).wrapping_add_signed(addend)
            }
            Value::Shared { index, addend } => {
                let offsets = self.env.shared_offsets;
                let found = offsets.binary_search_by_key(&index, |(index, _)| *index).map_or(0, |at| offsets[at].1);
                u64::from(found).wrapping_add_signed(addend)
            }
            Value::Local(offset) => u64::from(self.warp.local) + u64::from(offset),
            Value::Function(index) => FUNCTION_BASE + u64::from(index),
            Value::Special(special) => match self.uniform_special(special) {
                Some(value) => u64::from(value),
                None => return self.fill_lanes(pooled, special, mask),
            },
        };
        self.fill_register(pooled, mask, |_| uniform);
    }

    fn fill_register(&mut self, pooled: &PooledConstant, mask: u32, value: impl Fn(u32) -> u64) {
        let lanes = (0..32).filter(|lane| mask >> lane & 1 != 0);
        // SAFETY: lowering placed the pooled register in this function's frame.
        unsafe {
            let at = self.warp.regs.add(pooled.at as usize);
            if pooled.wide {
                let row = &mut *at.cast::<[u64; 32]>();
                if mask == u32::MAX {
                    for lane in 0..32 {
                        row[lane as usize] = value(lane);
                    }
                } else {
                    lanes.for_each(|lane| row[lane as usize] = value(lane));
                }
            } else {
                let row = &mut *at.cast::<[u32; 32]>();
                if mask == u32::MAX {
                    for lane in 0..32 {
                        row[lane as usize] = value(lane) as u32;
                    }
                } else {
                    lanes.for_each(|lane| row[lane as usize] = value(lane) as u32);
                }
            }
        }
    }

    fn uniform_special(&self, special: Special) -> Option<u32> {
        let env = self.env;
        Some(match special {
            Special::Ntid(axis) => env.block_shape[axis as usize],
            Special::Ctaid(axis) => self.block[axis as usize],
            Special::Nctaid(axis) => env.grid[axis as usize],
            Special::WarpId => self.warp.index,
            Special::NWarpId => env.warps_per_block(),
            Special::SmId | Special::GridId => 0,
            Special::NSmId => 1,
            Special::DynamicShared => env.dynamic_shared,
            Special::TotalShared => env.shared_bytes,
            _ => return None,
        })
    }

    fn fill_lanes(&mut self, pooled: &PooledConstant, special: Special, mask: u32) {
        let [x, y, _] = self.env.block_shape;
        let first = self.warp.index * 32;
        let plane = x.saturating_mul(y).max(1);
        match special {
            Special::Tid(0) if x >= 32 && x % 32 == 0 => {
                let start = first % x;
                self.fill_register(pooled, mask, |lane| u64::from(start + lane));
            }
            Special::Tid(0) => self.fill_register(pooled, mask, |lane| u64::from((first + lane) % x)),
            Special::Tid(1) => self.fill_register(pooled, mask, |lane| u64::from((first + lane) / x % y)),
            Special::Tid(_) => self.fill_register(pooled, mask, |lane| u64::from((first + lane) / plane)),
            Special::LaneId => self.fill_register(pooled, mask, u64::from),
            Special::LaneMaskEq => self.fill_register(pooled, mask, |lane| 1 << lane),
            Special::LaneMaskLt => self.fill_register(pooled, mask, |lane| (1 << lane) - 1),
            Special::LaneMaskLe => self.fill_register(pooled, mask, |lane| (2 << lane) - 1),
            Special::LaneMaskGe => self.fill_register(pooled, mask, |lane| u64::from(u32::MAX << lane)),
            Special::LaneMaskGt => self.fill_register(pooled, mask, |lane| u64::from(!(((2_u64 << lane) - 1) as u32))),
            _ => {}
        }
    }
}
