//! Branches, calls, ends and barriers.

use super::machine::{BarrierWait, Machine, Reduction};
use crate::fault::FaultKind;
use crate::lanes::{predicate, read};
use crate::limits;
use crate::op::{NONE, Op, OpOutcome};
use crate::program::FUNCTION_BASE;

/// `bra target` for all lanes: `imm` is the target.
pub(crate) unsafe fn jump(m: &mut Machine<'_>, op: &Op, _mask: u32) -> OpOutcome {
    m.warp.pc = op.imm as u32;
    OpOutcome::Continue
}

/// `@p bra target`: `imm` is the target, `a` the predicate, `b` its negation and
/// `c` where the sides meet.
pub(crate) unsafe fn branch(m: &mut Machine<'_>, op: &Op, mask: u32) -> OpOutcome {
    // SAFETY: lowering made `a` a predicate of this frame.
    let taken = mask & (unsafe { predicate(m, op.a) } ^ op.b);
    if taken == 0 {
        return OpOutcome::Continue;
    }
    let target = op.imm as u32;
    if taken == mask {
        m.warp.pc = target;
        return OpOutcome::Continue;
    }
    let here = m.warp.pc;
    m.warp.split(&[(here, mask & !taken), (target, taken)], op.c)
}

/// Lanes that meet here wait for those that have not come yet.
pub(crate) unsafe fn join(m: &mut Machine<'_>, _op: &Op, _mask: u32) -> OpOutcome {
    if m.warp.meet == m.warp.pc - 1 { m.warp.pop() } else { OpOutcome::Continue }
}

/// `brx.idx a, table`: `imm` is the table, `c` where the sides meet.
pub(crate) unsafe fn branch_table(m: &mut Machine<'_>, op: &Op, mask: u32) -> OpOutcome {
    // SAFETY: lowering made `a` a 32-bit register of this frame.
    let index = unsafe { read::<u32>(m, op.a) };
    let table = &m.env.program.tables[op.imm as usize];
    let mut targets: Vec<(u32, u32)> = Vec::new();
    for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
        let Some(&target) = table.get(index[lane] as usize) else {
            let address = u64::from(index[lane]);
            return m.fail(FaultKind::OutOfRange { address, bytes: 1, write: false, read_only: false }, 1 << lane);
        };
        match targets.iter_mut().find(|(pc, _)| *pc == target) {
            Some((_, lanes)) => *lanes |= 1 << lane,
            None => targets.push((target, 1 << lane)),
        }
    }
    if let [(target, _)] = targets[..]
        && mask == m.warp.mask
    {
        m.warp.pc = target;
        return OpOutcome::Continue;
    }
    let rest = m.warp.mask & !mask;
    if rest != 0 {
        targets.push((m.warp.pc, rest));
    }
    m.warp.split(&targets, op.c)
}

/// `ret` of a device function.
pub(crate) unsafe fn ret(m: &mut Machine<'_>, _op: &Op, mask: u32) -> OpOutcome {
    if m.warp.depth == 0 { m.warp.end_lanes(mask) } else { m.warp.return_lanes(mask) }
}

/// `exit`, and `ret` of a kernel.
pub(crate) unsafe fn exit(m: &mut Machine<'_>, _op: &Op, mask: u32) -> OpOutcome {
    m.warp.end_lanes(mask)
}

pub(crate) unsafe fn trap(m: &mut Machine<'_>, _op: &Op, mask: u32) -> OpOutcome {
    m.fail(FaultKind::Trap, mask)
}

/// `membar` and `fence`: other workers see what came before, before what comes after.
pub(crate) unsafe fn fence(_m: &mut Machine<'_>, _op: &Op, _mask: u32) -> OpOutcome {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    OpOutcome::Continue
}

/// `nanosleep`: lets other warps run first.
pub(crate) unsafe fn nanosleep(m: &mut Machine<'_>, _op: &Op, _mask: u32) -> OpOutcome {
    if m.warp.mask != m.warp.alive {
        m.warp.run_longest_waiting();
    }
    OpOutcome::Continue
}

/// `bar.warp.sync`: the members are in `a`.
pub(crate) unsafe fn warp_barrier(m: &mut Machine<'_>, op: &Op, mask: u32) -> OpOutcome {
    // SAFETY: lowering made `a` a 32-bit register of this frame.
    unsafe {
        let members = read::<u32>(m, op.a)[mask.trailing_zeros() as usize & 31];
        m.gather_members(op, mask, members);
    }
    OpOutcome::Continue
}

/// Calls function `imm`.
pub(crate) unsafe fn call(m: &mut Machine<'_>, op: &Op, mask: u32) -> OpOutcome {
    enter(m, op.imm as u32, mask)
}

/// Calls an external function that the host does not have either.
pub(crate) unsafe fn unresolved(m: &mut Machine<'_>, op: &Op, mask: u32) -> OpOutcome {
    let name = m.env.program.externals[op.imm as usize].clone();
    m.fail(FaultKind::Unresolved(name), mask)
}

/// Calls through the register `a`; lanes with different targets go one after
/// another. `imm` is the size of the prototype's values, which the target's must
/// match.
pub(crate) unsafe fn call_register(m: &mut Machine<'_>, op: &Op, mask: u32) -> OpOutcome {
    // SAFETY: lowering made `a` a 64-bit register of this frame.
    let targets = unsafe { read::<u64>(m, op.a) };
    let first = targets[mask.trailing_zeros() as usize & 31];
    let same =
        (0..32).filter(|lane| mask >> lane & 1 != 0 && targets[*lane] == first).fold(0, |set, lane| set | 1 << lane);
    let index = first.wrapping_sub(FUNCTION_BASE);
    let known = m.env.program.functions.get(index as usize);
    if !known.is_some_and(|frame| frame.entry != NONE && u64::from(frame.abi_bytes) == op.imm) {
        return m.fail(FaultKind::Unresolved(format!("0x{first:x}")), same);
    }
    let rest = mask & !same;
    if rest != 0 {
        m.warp.defer_lanes(rest);
        m.warp.set_mask(same);
    }
    enter(m, index as u32, same)
}

fn enter(m: &mut Machine<'_>, function: u32, mask: u32) -> OpOutcome {
    let program = m.env.program;
    let caller = &program.functions[m.warp.function as usize];
    let callee = &program.functions[function as usize];
    let frame = m.warp.frame + caller.bytes as usize;
    let end = frame + callee.bytes as usize;
    let local = m.warp.local + caller.local_bytes;
    if m.warp.depth >= limits::CALL_DEPTH_MAX
        || end > limits::WARP_BYTES_MAX
        || u64::from(local) + u64::from(callee.local_bytes) > u64::from(m.warp.local_bytes)
    {
        return m.fail(FaultKind::CallDepth { depth: m.warp.depth }, mask);
    }
    m.warp.reserve_frame(callee, frame, local);
    m.warp.push();
    m.warp.pc = callee.entry;
    m.warp.meet = NONE;
    m.warp.depth += 1;
    m.warp.function = function;
    m.warp.local = local;
    m.warp.set_mask(mask);
    m.warp.enter_frame(frame);
    m.fill_pool(mask);
    OpOutcome::Continue
}

/// Copies `imm` bytes of each lane's local memory from `b` to `a`, both offsets
/// from the local frame.
pub(crate) unsafe fn copy_local(m: &mut Machine<'_>, op: &Op, mask: u32) -> OpOutcome {
    let bytes = op.imm as usize;
    let (to, from) = (m.warp.local as usize + op.a as usize, m.warp.local as usize + op.b as usize);
    let (size, end) = (m.warp.local_bytes as usize, m.warp.local_end as usize);
    if to + bytes > end || from + bytes > end {
        return m.fail(FaultKind::CallDepth { depth: m.warp.depth }, mask);
    }
    let locals = m.warp.locals.as_mut_ptr().cast::<u8>();
    for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
        // SAFETY: both ranges lie in this lane's part of `locals`, as checked.
        unsafe {
            let base = locals.add(lane * size);
            std::ptr::copy(base.add(from), base.add(to), bytes);
        }
    }
    OpOutcome::Continue
}

/// `bar.sync`, `bar.red`, `bar.arrive`: `a` is the number, `b` the threads or
/// [`NONE`], `c` a predicate or [`NONE`] with `e` its negation, `d` the result,
/// `imm` the kind.
pub(crate) unsafe fn barrier(m: &mut Machine<'_>, op: &Op, mask: u32) -> OpOutcome {
    let kind = BarrierKind::of(op.imm);
    // SAFETY: the same contract.
    let Some(mask) = (unsafe { m.gather_members(op, mask, u32::MAX) }) else { return OpOutcome::Continue };
    let first = mask.trailing_zeros() as usize & 31;
    // SAFETY: lowering made these registers of this frame.
    let (barrier, threads, votes) = unsafe {
        let barrier = read::<u32>(m, op.a)[first];
        let threads = if op.b == NONE { 0 } else { read::<u32>(m, op.b)[first] };
        let votes = if op.c == NONE { 0 } else { (predicate(m, op.c) ^ op.e) & mask };
        (barrier, threads, votes)
    };
    if barrier >= 16 || !threads.is_multiple_of(32) || (op.b != NONE && threads == 0) {
        return m.fail(FaultKind::BadBarrier { barrier, threads }, mask);
    }
    if mask != m.warp.alive {
        let absent = m.warp.alive & !mask;
        return m.fail(FaultKind::DivergentBarrier { barrier }, absent);
    }
    if kind == BarrierKind::Arrive {
        m.arrived[barrier as usize] += 1;
        return OpOutcome::EndOfSlice;
    }
    let reduction = match kind {
        BarrierKind::And => Reduction::And,
        BarrierKind::Or => Reduction::Or,
        BarrierKind::Popc => Reduction::Popc,
        _ => Reduction::None,
    };
    m.warp.waiting = Some(BarrierWait { barrier, warps: threads / 32, votes, lanes: mask, reduction, result: op.d });
    OpOutcome::Barrier
}

/// The kinds of barrier instruction, as they travel in `imm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BarrierKind {
    Sync,
    Arrive,
    And,
    Or,
    Popc,
}

impl BarrierKind {
    fn of(imm: u64) -> Self {
        [Self::Sync, Self::Arrive, Self::And, Self::Or, Self::Popc][imm as usize % 5]
    }
}

/// `mov d, %clock` and its kin: `imm` says which.
pub(crate) unsafe fn clock(m: &mut Machine<'_>, op: &Op, mask: u32) -> OpOutcome {
    m.clock_reads += 1;
    let ticks = m.warp_instructions.wrapping_add(m.clock_reads);
    // SAFETY: lowering made `d` a register of the width that `imm` says.
    unsafe {
        match op.imm {
            0 => crate::lanes::write(m, op.d, mask, &[ticks as u32; 32]),
            1 => crate::lanes::write(m, op.d, mask, &[ticks; 32]),
            2 => crate::lanes::write(m, op.d, mask, &[(ticks >> 32) as u32; 32]),
            3 => {
                let now = (m.env.clock)();
                crate::lanes::write(m, op.d, mask, &[now; 32]);
            }
            4 => {
                let now = (m.env.clock)();
                crate::lanes::write(m, op.d, mask, &[now as u32; 32]);
            }
            _ => {
                let now = (m.env.clock)();
                crate::lanes::write(m, op.d, mask, &[(now >> 32) as u32; 32]);
            }
        }
    }
    OpOutcome::Continue
}

/// Copies `imm` bytes from global `b` to shared `a` for each lane; `c` is how many
/// of them come from memory (the rest are zeros), or [`NONE`]; `d` and `e` are
/// offsets of the two addresses.
pub(crate) unsafe fn copy_async(m: &mut Machine<'_>, op: &Op, mask: u32) -> OpOutcome {
    let bytes = op.imm as u32;
    // SAFETY: lowering made these registers of this frame.
    let (to, from) = unsafe { (*read::<u64>(m, op.a), *read::<u64>(m, op.b)) };
    for lane in (0..32_u32).filter(|lane| mask >> lane & 1 != 0) {
        let wanted = match op.c {
            NONE => bytes,
            // SAFETY: as above.
            at => unsafe { read::<u32>(m, at)[lane as usize].min(bytes) },
        };
        let to = to[lane as usize].wrapping_add(u64::from(op.d));
        let from = from[lane as usize].wrapping_add_signed(i64::from(op.e as i32));
        if let Err(kind) = copy_one(m, lane, to, from, bytes, wanted) {
            return m.fail(kind, 1 << lane);
        }
    }
    OpOutcome::Continue
}

fn copy_one(m: &mut Machine<'_>, lane: u32, to: u64, from: u64, bytes: u32, wanted: u32) -> Result<(), FaultKind> {
    let target = m.host_pointer(super::load_store::SHARED, lane, to, bytes, true)?;
    let source =
        if wanted == 0 { None } else { Some(m.host_pointer(super::load_store::FLAT, lane, from, bytes, false)?) };
    for index in 0..bytes as usize {
        use super::load_store::Element;
        // SAFETY: both ranges were just checked for all of their bytes.
        unsafe {
            let value = match source {
                Some(source) if (index as u32) < wanted => <u8 as Element>::load(source.add(index)),
                _ => 0,
            };
            <u8 as Element>::store(target.add(index), value);
        }
    }
    Ok(())
}
