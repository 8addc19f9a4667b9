//! Lowers what looks across lanes, and the choice of atomic operations.

use super::FunctionLowering;
use super::float::canonical;
use super::modifiers::Modifiers;
use crate::ast::{Operand, Type};
use crate::error::PtxError;
use crate::exec::atomic::exchange;
use crate::exec::load_store::{FLAT, SHARED};
use crate::exec::machine::Machine;
use crate::exec::warpwide as run;
use crate::op::{Handler, NONE, Op, OpOutcome};

impl<'t> FunctionLowering<'_, 't> {
    pub(super) fn warp_instruction(
        &mut self,
        name: &str,
        modifiers: &mut Modifiers<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), PtxError> {
        match name {
            "shfl" => self.shuffle(modifiers, operands),
            "vote" => self.vote(modifiers, operands),
            "match" => self.matching(modifiers, operands),
            "redux" => self.reduce(modifiers, operands),
            "elect" => self.elect(modifiers, operands),
            _ => {
                let ty = modifiers.take_type()?;
                modifiers.expect_none_left()?;
                if ty != Type::B32 {
                    return modifiers.unsupported();
                }
                let [d] = self.expect_operands::<1>(operands)?;
                let d = self.target_register(d, ty)?;
                let op = Op { d, ..self.blank_op(run::active_mask) };
                self.emit(op);
                Ok(())
            }
        }
    }

    fn pair<'o>(operand: &'o Operand<'t>) -> (&'o Operand<'t>, Option<&'o Operand<'t>>) {
        match operand {
            Operand::Pair(first, second) => (first, Some(second)),
            one => (one, None),
        }
    }

    fn shuffle(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let synced = modifiers.take_flag("sync");
        let modes = [("up", run::UP), ("down", run::DOWN), ("bfly", run::BFLY), ("idx", run::IDX)];
        let imm = modifiers.take_required("a mode", &modes)?;
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        if ty.bytes() != 4 {
            return modifiers.unsupported();
        }
        let (target, a, b, c, members) = match operands {
            [target, a, b, c, members] if synced => (target, a, b, c, self.value(members, Type::U32)?),
            [target, a, b, c] if !synced => (target, a, b, c, NONE),
            _ => return self.position.operands("the number of operands is wrong"),
        };
        let imm = imm | u64::from(members) << 32;
        let (target, inside) = Self::pair(target);
        let (a, b, c) = (self.value(a, ty)?, self.value(b, Type::U32)?, self.value(c, Type::U32)?);
        let d = self.target_register(target, ty)?;
        let e = match inside {
            Some(inside) => self.predicate_target(inside)?,
            None => NONE,
        };
        let op = Op { d, a, b, c, e, imm, ..self.blank_op(run::shuffle) };
        self.emit(op);
        Ok(())
    }

    fn vote(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let synced = modifiers.take_flag("sync");
        let modes = [("all", run::ALL), ("any", run::ANY), ("uni", run::UNI), ("ballot", run::BALLOT)];
        let imm = modifiers.take_required("a mode", &modes)?;
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        if ty != (if imm == run::BALLOT { Type::B32 } else { Type::Pred }) {
            return modifiers.unsupported();
        }
        let (d, a, members) = match operands {
            [d, a, members] if synced => (d, a, Some(members)),
            [d, a] if !synced => (d, a, None),
            _ => return self.position.operands("the number of operands is wrong"),
        };
        let (a, b) = self.predicate(a)?;
        let c = match members {
            Some(members) => self.value(members, Type::U32)?,
            None => NONE,
        };
        let d = if imm == run::BALLOT { self.target_register(d, ty)? } else { self.predicate_target(d)? };
        let op = Op { d, a, b, c, imm, ..self.blank_op(run::vote) };
        self.emit(op);
        Ok(())
    }

    fn matching(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let all = modifiers.take_required("`.any` or `.all`", &[("any", false), ("all", true)])?;
        modifiers.take_flag("sync");
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        let [target, a, members] = self.expect_operands::<3>(operands)?;
        if !matches!(ty.bytes(), 4 | 8) {
            return modifiers.unsupported();
        }
        let (target, same) = Self::pair(target);
        let (a, c) = (self.value(a, ty)?, self.value(members, Type::U32)?);
        let d = self.target_register(target, Type::B32)?;
        let e = match same {
            Some(same) => self.predicate_target(same)?,
            None => NONE,
        };
        let b = u32::from(ty.bytes() == 8);
        let op = Op { d, a, b, c, e, imm: u64::from(all), ..self.blank_op(run::matching) };
        self.emit(op);
        Ok(())
    }

    fn reduce(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        modifiers.take_flag("sync");
        let names = [("add", 0_u64), ("min", 1), ("max", 2), ("and", 5), ("or", 6), ("xor", 7)];
        let mut imm = modifiers.take_required("an operation", &names)?;
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        if !matches!(ty, Type::U32 | Type::S32 | Type::B32) {
            return modifiers.unsupported();
        }
        if ty == Type::S32 && matches!(imm, 1 | 2) {
            imm += 2;
        }
        let [d, a, members] = self.expect_operands::<3>(operands)?;
        let (a, c) = (self.value(a, ty)?, self.value(members, Type::U32)?);
        let d = self.target_register(d, ty)?;
        let op = Op { d, a, c, imm, ..self.blank_op(run::reduce) };
        self.emit(op);
        Ok(())
    }

    fn elect(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        modifiers.take_flag("sync");
        modifiers.expect_none_left()?;
        let [Operand::Pair(leader, elected), members] = self.expect_operands::<2>(operands)? else {
            return self.position.operands("a register and a predicate are needed here");
        };
        let c = self.value(members, Type::U32)?;
        let d = if **leader == Operand::Name("_") { NONE } else { self.target_register(leader, Type::B32)? };
        let e = self.predicate_target(elected)?;
        let op = Op { d, c, e, ..self.blank_op(run::elect) };
        self.emit(op);
        Ok(())
    }
}

/// Makes the handlers of one atomic operation, one for each space.
macro_rules! atomic {
    ($space:expr, $word:ty, |$old:ident, $b:ident, $c:ident| $body:expr) => {{
        unsafe fn flat(m: &mut Machine<'_>, op: &Op, mask: u32) -> OpOutcome {
            // SAFETY: the same contract.
            unsafe { exchange::<$word, u64, FLAT>(m, op, mask, |$old, $b, $c| $body) }
        }
        unsafe fn shared(m: &mut Machine<'_>, op: &Op, mask: u32) -> OpOutcome {
            // SAFETY: the same contract.
            unsafe { exchange::<$word, u64, SHARED>(m, op, mask, |$old, $b, $c| $body) }
        }
        match $space {
            FLAT => Some(flat as Handler),
            SHARED => Some(shared as Handler),
            _ => None,
        }
    }};
}

/// The handler of `atom` and `red`.
pub(super) fn atomic_handler(name: &str, ty: Type, space: u8) -> Option<Handler> {
    match (name, ty) {
        ("add", Type::U32 | Type::S32) => atomic!(space, u32, |old, b, _c| old.wrapping_add(b)),
        ("add", Type::U64 | Type::S64) => atomic!(space, u64, |old, b, _c| old.wrapping_add(b)),
        ("add", Type::F32) => {
            atomic!(space, u32, |old, b, _c| canonical(f32::from_bits(old) + f32::from_bits(b)).to_bits())
        }
        ("add", Type::F64) => {
            atomic!(space, u64, |old, b, _c| (f64::from_bits(old) + f64::from_bits(b)).to_bits())
        }
        ("min", Type::U32) => atomic!(space, u32, |old, b, _c| old.min(b)),
        ("min", Type::S32) => atomic!(space, u32, |old, b, _c| (old as i32).min(b as i32) as u32),
        ("min", Type::U64) => atomic!(space, u64, |old, b, _c| old.min(b)),
        ("min", Type::S64) => atomic!(space, u64, |old, b, _c| (old as i64).min(b as i64) as u64),
        ("max", Type::U32) => atomic!(space, u32, |old, b, _c| old.max(b)),
        ("max", Type::S32) => atomic!(space, u32, |old, b, _c| (old as i32).max(b as i32) as u32),
        ("max", Type::U64) => atomic!(space, u64, |old, b, _c| old.max(b)),
        ("max", Type::S64) => atomic!(space, u64, |old, b, _c| (old as i64).max(b as i64) as u64),
        ("and", Type::B32) => atomic!(space, u32, |old, b, _c| old & b),
        ("and", Type::B64) => atomic!(space, u64, |old, b, _c| old & b),
        ("or", Type::B32) => atomic!(space, u32, |old, b, _c| old | b),
        ("or", Type::B64) => atomic!(space, u64, |old, b, _c| old | b),
        ("xor", Type::B32) => atomic!(space, u32, |old, b, _c| old ^ b),
        ("xor", Type::B64) => atomic!(space, u64, |old, b, _c| old ^ b),
        ("exch", Type::B32 | Type::U32 | Type::S32 | Type::F32) => atomic!(space, u32, |_old, b, _c| b),
        ("exch", Type::B64 | Type::U64 | Type::S64) => atomic!(space, u64, |_old, b, _c| b),
        ("cas", Type::B32 | Type::U32 | Type::S32) => atomic!(space, u32, |old, b, c| if old == b { c } else { old }),
        ("cas", Type::B64 | Type::U64 | Type::S64) => atomic!(space, u64, |old, b, c| if old == b { c } else { old }),
        ("inc", Type::U32) => atomic!(space, u32, |old, b, _c| if old >= b { 0 } else { old + 1 }),
        ("dec", Type::U32) => atomic!(space, u32, |old, b, _c| if old == 0 || old > b { b } else { old - 1 }),
        _ => None,
    }
}
