//! Instructions that look across the lanes of a warp: shuffles, votes, matches.

use super::machine::Machine;
use crate::lanes::{predicate, read, set_predicate, write};
use crate::op::{NONE, Op, OpOutcome};

/// How a shuffle finds its source lane.
pub(crate) const UP: u64 = 0;
pub(crate) const DOWN: u64 = 1;
pub(crate) const BFLY: u64 = 2;
pub(crate) const IDX: u64 = 3;

/// `shfl`: `d` (and the predicate `e`) from `a`, by `b` within the bounds in `c`;
/// `imm` is the mode, with the register of the members above it, or [`NONE`].
pub(crate) unsafe fn shuffle(m: &mut Machine<'_>, op: &Op, mask: u32) -> OpOutcome {
    // SAFETY: lowering made these registers of this frame.
    unsafe {
        let (mode, members) = (op.imm & 3, (op.imm >> 32) as u32);
        let Some(mask) = gathered(m, op, mask, members) else { return OpOutcome::Continue };
        let (a, b, c) = (read::<u32>(m, op.a), read::<u32>(m, op.b), read::<u32>(m, op.c));
        let mut row = [0; 32];
        let mut inside = 0_u32;
        for lane in 0..32_u32 {
            let (from, valid) = source(lane, b[lane as usize], c[lane as usize], mode);
            row[lane as usize] = a[from as usize];
            inside |= u32::from(valid) << lane;
        }
        write(m, op.d, mask, &row);
        if op.e != NONE {
            set_predicate(m, op.e, mask, inside);
        }
    }
    OpOutcome::Continue
}

/// The lanes to run for, once the members that register `members` names are here.
///
/// # Safety
/// As for a handler; `members` is a 32-bit register of the frame or [`NONE`].
#[inline(always)]
unsafe fn gathered(m: &mut Machine<'_>, op: &Op, mask: u32, members: u32) -> Option<u32> {
    if members == NONE {
        return Some(mask);
    }
    // SAFETY: by contract.
    unsafe {
        let members = read::<u32>(m, members)[mask.trailing_zeros() as usize & 31];
        m.gather_members(op, mask, members)
    }
}

/// The lane that `lane` reads, and whether that was within its segment.
fn source(lane: u32, b: u32, c: u32, mode: u64) -> (u32, bool) {
    let (b, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
    let last = (lane & segment) | (clamp & !segment);
    let (from, valid) = match mode {
        UP => {
            let from = lane as i32 - b as i32;
            (from as u32, from >= last as i32)
        }
        DOWN => (lane + b, lane + b <= last),
        BFLY => (lane ^ b, lane ^ b <= last),
        _ => {
            let first = lane & segment;
            let from = first | (b & !segment);
            (from, from <= last)
        }
    };
    if valid { (from & 31, true) } else { (lane, false) }
}

/// What a vote asks, as it travels in `imm`.
pub(crate) const ALL: u64 = 0;
pub(crate) const ANY: u64 = 1;
pub(crate) const UNI: u64 = 2;
pub(crate) const BALLOT: u64 = 3;

/// `vote`: of the predicate `a` (negated by `b`), among the active lanes that are
/// in the mask register `c`, if there is one.
pub(crate) unsafe fn vote(m: &mut Machine<'_>, op: &Op, mask: u32) -> OpOutcome {
    // SAFETY: lowering made these registers of this frame.
    unsafe {
        let members =
            if op.c == NONE { mask } else { mask & read::<u32>(m, op.c)[mask.trailing_zeros() as usize & 31] };
        let yes = (predicate(m, op.a) ^ op.b) & members;
        if op.imm == BALLOT {
            write(m, op.d, mask, &[yes; 32]);
            return OpOutcome::Continue;
        }
        let truth = match op.imm {
            ALL => yes == members,
            ANY => yes != 0,
            _ => yes == members || yes == 0,
        };
        set_predicate(m, op.d, mask, if truth { u32::MAX } else { 0 });
    }
    OpOutcome::Continue
}

/// `activemask`.
pub(crate) unsafe fn active_mask(m: &mut Machine<'_>, op: &Op, mask: u32) -> OpOutcome {
    // SAFETY: lowering made `d` a 32-bit register of this frame.
    unsafe { write(m, op.d, mask, &[mask; 32]) };
    OpOutcome::Continue
}

/// `match.any` (`imm` 0) and `match.all` (`imm` 1, with the predicate `e`) of `a`,
/// which has 64 bits if `b` is 1; the members are in `c`.
pub(crate) unsafe fn matching(m: &mut Machine<'_>, op: &Op, mask: u32) -> OpOutcome {
    // SAFETY: lowering made these registers of this frame.
    unsafe {
        let Some(mask) = gathered(m, op, mask, op.c) else { return OpOutcome::Continue };
        let members = mask & read::<u32>(m, op.c)[mask.trailing_zeros() as usize & 31];
        let mut values = [0_u64; 32];
        for (lane, value) in values.iter_mut().enumerate() {
            *value = if op.b == 1 { read::<u64>(m, op.a)[lane] } else { u64::from(read::<u32>(m, op.a)[lane]) };
        }
        let equal = |lane: usize| {
            let same = (0..32).filter(|other| members >> other & 1 != 0 && values[*other] == values[lane]);
            same.fold(0_u32, |set, other| set | 1 << other)
        };
        let mut row = [0_u32; 32];
        if op.imm == 0 {
            for (lane, found) in row.iter_mut().enumerate() {
                *found = equal(lane);
            }
        } else {
            let all = equal(members.trailing_zeros() as usize & 31) == members;
            row = [if all { members } else { 0 }; 32];
            if op.e != NONE {
                set_predicate(m, op.e, mask, if all { u32::MAX } else { 0 });
            }
        }
        write(m, op.d, mask, &row);
    }
    OpOutcome::Continue
}

/// What `redux` computes, as it travels in `imm`.
pub(crate) const REDUX: [fn(u32, u32) -> u32; 8] = [
    u32::wrapping_add,
    |a, b| a.min(b),
    |a, b| a.max(b),
    |a, b| (a as i32).min(b as i32) as u32,
    |a, b| (a as i32).max(b as i32) as u32,
    |a, b| a & b,
    |a, b| a | b,
    |a, b| a ^ b,
];

/// `redux.sync`: of `a` over the members in `c`.
pub(crate) unsafe fn reduce(m: &mut Machine<'_>, op: &Op, mask: u32) -> OpOutcome {
    // SAFETY: lowering made these registers of this frame.
    unsafe {
        let Some(mask) = gathered(m, op, mask, op.c) else { return OpOutcome::Continue };
        let members = mask & read::<u32>(m, op.c)[mask.trailing_zeros() as usize & 31];
        let a = read::<u32>(m, op.a);
        let values = (0..32).filter(|lane| members >> lane & 1 != 0).map(|lane| a[lane]);
        let total = values.reduce(REDUX[op.imm as usize % 8]).unwrap_or(0);
        write(m, op.d, mask, &[total; 32]);
    }
    OpOutcome::Continue
}

/// `elect.sync d|e, c`: the lowest member leads.
pub(crate) unsafe fn elect(m: &mut Machine<'_>, op: &Op, mask: u32) -> OpOutcome {
    // SAFETY: lowering made these registers of this frame.
    unsafe {
        let Some(mask) = gathered(m, op, mask, op.c) else { return OpOutcome::Continue };
        let members = mask & read::<u32>(m, op.c)[mask.trailing_zeros() as usize & 31];
        let leader = members.trailing_zeros() & 31;
        if op.d != NONE {
            write(m, op.d, mask, &[leader; 32]);
        }
        set_predicate(m, op.e, mask, 1 << leader);
    }
    OpOutcome::Continue
}
