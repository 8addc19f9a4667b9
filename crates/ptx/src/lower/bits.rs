//! Lowers logic, shifts and the instructions that pick bits apart.

use super::FunctionLowering;
use super::integer::per_type;
use super::modifiers::Modifiers;
use crate::ast::{Operand, Type};
use crate::error::PtxError;
use crate::lanes::{binary, predicates, quaternary, ternary, unary};
use crate::op::{Handler, Isa, Op};

impl<'t> FunctionLowering<'_, 't> {
    pub(super) fn bit_instruction(
        &mut self,
        name: &str,
        modifiers: &mut Modifiers<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), PtxError> {
        match name {
            "and" | "or" | "xor" | "not" | "cnot" => self.logic(name, modifiers, operands),
            "lop3" => self.lop3(modifiers, operands),
            "shl" | "shr" => self.shift(name == "shl", modifiers, operands),
            "shf" => self.funnel(modifiers, operands),
            "prmt" => self.permute(modifiers, operands),
            "popc" | "clz" | "bfind" => self.count(name, modifiers, operands),
            "brev" => {
                let ty = modifiers.take_type()?;
                modifiers.expect_none_left()?;
                let run = per_type!(self.isa, ty, unary, [B32 => u32, B64 => u64], |a| a.reverse_bits());
                let run = self.require_handler(modifiers, run)?;
                self.unary(operands, ty, run)
            }
            "bfe" => self.extract(modifiers, operands),
            "bfi" => self.insert(modifiers, operands),
            "szext" | "bmsk" => self.masks(name == "szext", modifiers, operands),
            "dp4a" | "dp2a" => self.dot(name == "dp4a", modifiers, operands),
            _ => modifiers.unsupported(),
        }
    }

    fn logic(&mut self, name: &str, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        if ty == Type::Pred {
            return self.predicate_logic(name, modifiers, operands);
        }
        let isa = self.isa;
        let run = match name {
            "and" => per_type!(isa, ty, binary, [B16 => u16, B32 => u32, B64 => u64], |a, b| a & b),
            "or" => per_type!(isa, ty, binary, [B16 => u16, B32 => u32, B64 => u64], |a, b| a | b),
            "xor" => per_type!(isa, ty, binary, [B16 => u16, B32 => u32, B64 => u64], |a, b| a ^ b),
            "not" => per_type!(isa, ty, unary, [B16 => u16, B32 => u32, B64 => u64], |a| !a),
            "cnot" if ty == Type::B64 => Some(unary(isa, |a: u64| u64::from(a == 0))),
            _ => per_type!(isa, ty, unary, [B16 => u16, B32 => u32], |a| u32::from(a == 0)),
        };
        let run = self.require_handler(modifiers, run)?;
        if matches!(name, "not" | "cnot") { self.unary(operands, ty, run) } else { self.binary(operands, ty, run) }
    }

    fn predicate_logic(
        &mut self,
        name: &str,
        modifiers: &Modifiers<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), PtxError> {
        let (d, a, b) = match (name, operands) {
            ("not", [d, a]) => (d, a, a),
            ("and" | "or" | "xor", [d, a, b]) => (d, a, b),
            _ => return modifiers.unsupported(),
        };
        let a = self.plain_predicate(a)?;
        let b = self.plain_predicate(b)?;
        let d = self.predicate_target(d)?;
        let run = match name {
            "and" => predicates(self.isa, |a, b| a & b),
            "or" => predicates(self.isa, |a, b| a | b),
            "xor" => predicates(self.isa, |a, b| a ^ b),
            _ => predicates(self.isa, |a, _| !a),
        };
        self.emit2(run, d, a, b);
        Ok(())
    }

    /// A predicate that is not negated, if need be by an op before.
    pub(super) fn plain_predicate(&mut self, operand: &Operand<'t>) -> Result<u32, PtxError> {
        let (at, flip) = self.predicate(operand)?;
        if flip == 0 {
            return Ok(at);
        }
        let negated = self.allocate_predicate()?;
        let run = predicates(self.isa, |a, _| !a);
        self.emit2(run, negated, at, at);
        Ok(negated)
    }

    fn lop3(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        let [d, a, b, c, Operand::Int(table)] = self.expect_operands::<5>(operands)? else {
            return self.position.operands("a table of 8 bits is needed here");
        };
        if ty != Type::B32 {
            return modifiers.unsupported();
        }
        let (a, b, c) = (self.value(a, ty)?, self.value(b, ty)?, self.value(c, ty)?);
        let e = self.constant(table & 0xFF, false)?;
        let d = self.target_register(d, ty)?;
        let run = match table & 0xFF {
            0x80 => quaternary(self.isa, |a: u32, b: u32, c: u32, _: u32| a & b & c),
            0x96 => quaternary(self.isa, |a: u32, b: u32, c: u32, _: u32| a ^ b ^ c),
            0xFE => quaternary(self.isa, |a: u32, b: u32, c: u32, _: u32| a | b | c),
            0xF8 => quaternary(self.isa, |a: u32, b: u32, c: u32, _: u32| a | (b & c)),
            0xCA => quaternary(self.isa, |a: u32, b: u32, c: u32, _: u32| (a & b) | (!a & c)),
            _ => quaternary(self.isa, lop3),
        };
        let op = Op { d, a, b, c, e, ..self.blank_op(run) };
        self.emit(op);
        Ok(())
    }

    fn shift(&mut self, left: bool, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        let isa = self.isa;
        let run = match (left, ty) {
            (true, Type::B16 | Type::U16 | Type::S16) => {
                Some(binary(isa, |a: u16, b: u32| if b > 15 { 0 } else { a << b }))
            }
            (true, Type::B32 | Type::U32 | Type::S32) => {
                Some(binary(isa, |a: u32, b: u32| if b > 31 { 0 } else { a << (b & 31) }))
            }
            (true, Type::B64 | Type::U64 | Type::S64) => {
                Some(binary(isa, |a: u64, b: u32| if b > 63 { 0 } else { a << (b & 63) }))
            }
            (false, Type::B16 | Type::U16) => Some(binary(isa, |a: u16, b: u32| if b > 15 { 0 } else { a >> b })),
            (false, Type::B32 | Type::U32) => {
                Some(binary(isa, |a: u32, b: u32| if b > 31 { 0 } else { a >> (b & 31) }))
            }
            (false, Type::B64 | Type::U64) => {
                Some(binary(isa, |a: u64, b: u32| if b > 63 { 0 } else { a >> (b & 63) }))
            }
            (false, Type::S16) => Some(binary(isa, |a: i16, b: u32| a >> b.min(15))),
            (false, Type::S32) => Some(binary(isa, |a: i32, b: u32| a >> b.min(31))),
            (false, Type::S64) => Some(binary(isa, |a: i64, b: u32| a >> b.min(63))),
            _ => None,
        };
        let run = self.require_handler(modifiers, run)?;
        let [d, a, b] = self.expect_operands::<3>(operands)?;
        let (a, b) = (self.value(a, ty)?, self.value(b, Type::U32)?);
        let d = self.target_register(d, ty)?;
        self.emit2(run, d, a, b);
        Ok(())
    }

    fn funnel(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let left = modifiers.take_required("a direction", &[("l", true), ("r", false)])?;
        let wrap = modifiers.take_required("`.wrap` or `.clamp`", &[("wrap", true), ("clamp", false)])?;
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        let run = match (left, wrap) {
            (true, true) => ternary(self.isa, |a: u32, b: u32, c: u32| (joined(a, b) << (c & 31) >> 32) as u32),
            (true, false) => ternary(self.isa, |a: u32, b: u32, c: u32| (joined(a, b) << c.min(32) >> 32) as u32),
            (false, true) => ternary(self.isa, |a: u32, b: u32, c: u32| (joined(a, b) >> (c & 31)) as u32),
            (false, false) => ternary(self.isa, |a: u32, b: u32, c: u32| (joined(a, b) >> c.min(32)) as u32),
        };
        if ty != Type::B32 {
            return modifiers.unsupported();
        }
        self.ternary(operands, ty, run)
    }

    fn permute(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let ty = modifiers.take_type()?;
        let modes = [("f4e", 1), ("b4e", 2), ("rc8", 3), ("ecl", 4), ("ecr", 5), ("rc16", 6)];
        let mode = modifiers.take_one_of(&modes).unwrap_or(0);
        modifiers.expect_none_left()?;
        if ty != Type::B32 {
            return modifiers.unsupported();
        }
        let isa = self.isa;
        let run = match mode {
            0 => ternary(isa, |a: u32, b: u32, c: u32| permute(a, b, c)),
            1 => ternary(isa, |a: u32, b: u32, c: u32| (joined(a, b) >> (8 * (c & 3))) as u32),
            2 => {
                ternary(isa, |a: u32, b: u32, c: u32| permute(a, b, [0x5670, 0x6701, 0x7012, 0x0123][(c & 3) as usize]))
            }
            3 => ternary(isa, |a: u32, _: u32, c: u32| (a >> (8 * (c & 3)) & 0xFF) * 0x0101_0101),
            4 => {
                ternary(isa, |a: u32, b: u32, c: u32| permute(a, b, [0x3210, 0x3211, 0x3222, 0x3333][(c & 3) as usize]))
            }
            5 => {
                ternary(isa, |a: u32, b: u32, c: u32| permute(a, b, [0x0000, 0x1110, 0x2210, 0x3210][(c & 3) as usize]))
            }
            _ => ternary(isa, |a: u32, _: u32, c: u32| (a >> (16 * (c & 1)) & 0xFFFF) * 0x0001_0001),
        };
        self.ternary(operands, ty, run)
    }

    fn count(&mut self, name: &str, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let shift = modifiers.take_flag("shiftamt");
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        let isa = self.isa;
        let run = match (name, ty) {
            ("popc", Type::B32) => Some(unary(isa, |a: u32| a.count_ones())),
            ("popc", Type::B64) => Some(unary(isa, |a: u64| a.count_ones())),
            ("clz", Type::B32) => Some(unary(isa, |a: u32| a.leading_zeros())),
            ("clz", Type::B64) => Some(unary(isa, |a: u64| a.leading_zeros())),
            ("bfind", _) => bfind_handler(isa, ty, shift),
            _ => None,
        };
        let run = self.require_handler(modifiers, run)?;
        let [d, a] = self.expect_operands::<2>(operands)?;
        let a = self.value(a, ty)?;
        let d = self.target_register(d, Type::U32)?;
        self.emit1(run, d, a);
        Ok(())
    }

    fn extract(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        let isa = self.isa;
        let run = match ty {
            Type::U32 => Some(ternary(isa, |a: u32, b: u32, c: u32| extract(u64::from(a), b, c, 32, false) as u32)),
            Type::S32 => Some(ternary(isa, |a: u32, b: u32, c: u32| extract(u64::from(a), b, c, 32, true) as u32)),
            Type::U64 => Some(ternary(isa, |a: u64, b: u32, c: u32| extract(a, b, c, 64, false))),
            Type::S64 => Some(ternary(isa, |a: u64, b: u32, c: u32| extract(a, b, c, 64, true))),
            _ => None,
        };
        let run = self.require_handler(modifiers, run)?;
        let [d, a, b, c] = self.expect_operands::<4>(operands)?;
        let (a, b, c) = (self.value(a, ty)?, self.value(b, Type::U32)?, self.value(c, Type::U32)?);
        let d = self.target_register(d, ty)?;
        self.emit3(run, d, a, b, c);
        Ok(())
    }

    fn insert(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        let isa = self.isa;
        let run = match ty {
            Type::B32 => Some(quaternary(isa, |a: u32, b: u32, c: u32, e: u32| {
                insert(u64::from(a), u64::from(b), c, e, 32) as u32
            })),
            Type::B64 => Some(quaternary(isa, |a: u64, b: u64, c: u32, e: u32| insert(a, b, c, e, 64))),
            _ => None,
        };
        let run = self.require_handler(modifiers, run)?;
        let [d, a, b, c, e] = self.expect_operands::<5>(operands)?;
        let (a, b) = (self.value(a, ty)?, self.value(b, ty)?);
        let (c, e) = (self.value(c, Type::U32)?, self.value(e, Type::U32)?);
        let d = self.target_register(d, ty)?;
        let op = Op { d, a, b, c, e, ..self.blank_op(run) };
        self.emit(op);
        Ok(())
    }

    fn masks(
        &mut self,
        extends: bool,
        modifiers: &mut Modifiers<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), PtxError> {
        let wrap = modifiers.take_required("`.wrap` or `.clamp`", &[("wrap", true), ("clamp", false)])?;
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        let isa = self.isa;
        let run = match (extends, wrap, ty) {
            (true, true, Type::U32) => Some(binary(isa, |a: u32, b: u32| extend(a, b & 31, false))),
            (true, true, Type::S32) => Some(binary(isa, |a: u32, b: u32| extend(a, b & 31, true))),
            (true, false, Type::U32) => Some(binary(isa, |a: u32, b: u32| extend(a, b.min(32), false))),
            (true, false, Type::S32) => Some(binary(isa, |a: u32, b: u32| extend(a, b.min(32), true))),
            (false, true, Type::B32) => Some(binary(isa, |a: u32, b: u32| mask(a & 31, b & 31))),
            (false, false, Type::B32) => Some(binary(isa, |a: u32, b: u32| mask(a.min(32), b.min(32)))),
            _ => None,
        };
        let run = self.require_handler(modifiers, run)?;
        self.binary(operands, ty, run)
    }

    fn dot(&mut self, four: bool, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let high =
            if four { false } else { modifiers.take_required("`.lo` or `.hi`", &[("lo", false), ("hi", true)])? };
        let (ta, tb) = (modifiers.take_type()?, modifiers.take_type()?);
        modifiers.expect_none_left()?;
        if ![ta, tb].iter().all(|ty| matches!(ty, Type::U32 | Type::S32)) {
            return modifiers.unsupported();
        }
        let isa = self.isa;
        let run = match (four, high, ta.is_signed(), tb.is_signed()) {
            (true, _, false, false) => ternary(isa, |a: u32, b: u32, c: u32| dot4(a, b, c, false, false)),
            (true, _, false, true) => ternary(isa, |a: u32, b: u32, c: u32| dot4(a, b, c, false, true)),
            (true, _, true, false) => ternary(isa, |a: u32, b: u32, c: u32| dot4(a, b, c, true, false)),
            (true, _, true, true) => ternary(isa, |a: u32, b: u32, c: u32| dot4(a, b, c, true, true)),
            (false, false, false, false) => ternary(isa, |a: u32, b: u32, c: u32| dot2(a, b, c, false, false)),
            (false, false, false, true) => ternary(isa, |a: u32, b: u32, c: u32| dot2(a, b, c, false, true)),
            (false, false, true, false) => ternary(isa, |a: u32, b: u32, c: u32| dot2(a, b, c, true, false)),
            (false, false, true, true) => ternary(isa, |a: u32, b: u32, c: u32| dot2(a, b, c, true, true)),
            (false, true, false, false) => ternary(isa, |a: u32, b: u32, c: u32| dot2(a, b >> 16, c, false, false)),
            (false, true, false, true) => ternary(isa, |a: u32, b: u32, c: u32| dot2(a, b >> 16, c, false, true)),
            (false, true, true, false) => ternary(isa, |a: u32, b: u32, c: u32| dot2(a, b >> 16, c, true, false)),
            (false, true, true, true) => ternary(isa, |a: u32, b: u32, c: u32| dot2(a, b >> 16, c, true, true)),
        };
        self.ternary(operands, Type::U32, run)
    }
}

/// `b` above `a`.
#[inline(always)]
fn joined(a: u32, b: u32) -> u64 {
    u64::from(b) << 32 | u64::from(a)
}

#[inline(always)]
fn lop3(a: u32, b: u32, c: u32, table: u32) -> u32 {
    let mut result = 0;
    for index in 0..8 {
        let term = (if index & 4 != 0 { a } else { !a })
            & (if index & 2 != 0 { b } else { !b })
            & (if index & 1 != 0 { c } else { !c });
        result |= term & (table >> index & 1).wrapping_neg();
    }
    result
}

/// Picks four of eight bytes; the fourth bit of a selector replicates the sign.
#[inline(always)]
fn permute(a: u32, b: u32, selectors: u32) -> u32 {
    let bytes = joined(a, b);
    let mut result = 0;
    for index in 0..4 {
        let selector = selectors >> (4 * index);
        let byte = (bytes >> (8 * (selector & 7))) as u8;
        let byte = if selector & 8 != 0 { ((byte as i8) >> 7) as u8 } else { byte };
        result |= u32::from(byte) << (8 * index);
    }
    result
}

fn bfind_handler(isa: Isa, ty: Type, shift: bool) -> Option<Handler> {
    Some(match (ty, shift) {
        (Type::U32, false) => unary(isa, |a: u32| position(u64::from(a))),
        (Type::S32, false) => unary(isa, |a: i32| position(u64::from((if a < 0 { !a } else { a }) as u32))),
        (Type::U64, false) => unary(isa, position),
        (Type::S64, false) => unary(isa, |a: i64| position((if a < 0 { !a } else { a }) as u64)),
        (Type::U32, true) => unary(isa, |a: u32| from_top(position(u64::from(a)), 31)),
        (Type::S32, true) => {
            unary(isa, |a: i32| from_top(position(u64::from((if a < 0 { !a } else { a }) as u32)), 31))
        }
        (Type::U64, true) => unary(isa, |a: u64| from_top(position(a), 63)),
        (Type::S64, true) => unary(isa, |a: i64| from_top(position((if a < 0 { !a } else { a }) as u64), 63)),
        _ => return None,
    })
}

/// The place of the highest one, or all ones.
#[inline(always)]
fn position(a: u64) -> u32 {
    63_u32.wrapping_sub(a.leading_zeros())
}

#[inline(always)]
fn from_top(position: u32, top: u32) -> u32 {
    if position == u32::MAX { position } else { top - position }
}

/// Only 8 bits of a position and a length count for 32-bit fields; for 64-bit ones
/// the hardware takes all of them.
#[inline(always)]
fn bounded(position: u32, length: u32, width: u32) -> (u32, u32) {
    if width == 32 { (position & 0xFF, length & 0xFF) } else { (position.min(64), length.min(64)) }
}

#[inline(always)]
fn extract(a: u64, position: u32, length: u32, width: u32, signed: bool) -> u64 {
    let (position, length) = bounded(position, length, width);
    let sign_at = (position + length).wrapping_sub(1).min(width - 1);
    let fill = if signed && length != 0 && a >> sign_at & 1 != 0 { u64::MAX } else { 0 };
    let field = if position >= width { fill } else { a >> position };
    // Bits past the end of the register are copies of the sign.
    let usable = width.saturating_sub(position).min(length);
    let ones = if usable >= 64 { u64::MAX } else { (1_u64 << usable) - 1 };
    (field & ones) | (fill & !ones)
}

#[inline(always)]
fn insert(a: u64, b: u64, position: u32, length: u32, width: u32) -> u64 {
    let (position, length) = bounded(position, length, width);
    if position >= width {
        return b;
    }
    let length = length.min(width - position);
    let ones = if length >= 64 { u64::MAX } else { (1_u64 << length) - 1 };
    (b & !(ones << position)) | ((a & ones) << position)
}

#[inline(always)]
fn extend(a: u32, bits: u32, signed: bool) -> u32 {
    match bits {
        0 => 0,
        32.. => a,
        _ if signed => ((a << (32 - bits)) as i32 >> (32 - bits)) as u32,
        _ => a & ((1 << bits) - 1),
    }
}

#[inline(always)]
fn mask(start: u32, length: u32) -> u32 {
    let ones = (1_u64 << length) - 1;
    (ones << start) as u32
}

#[inline(always)]
fn lane8(word: u32, index: u32, signed: bool) -> i32 {
    let byte = (word >> (8 * index)) as u8;
    if signed { i32::from(byte as i8) } else { i32::from(byte) }
}

#[inline(always)]
fn dot4(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool) -> u32 {
    (0..4).fold(c, |sum, index| sum.wrapping_add((lane8(a, index, a_signed) * lane8(b, index, b_signed)) as u32))
}

#[inline(always)]
fn dot2(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool) -> u32 {
    (0..2).fold(c, |sum, index| {
        let half = (a >> (16 * index)) as u16;
        let half = if a_signed { i32::from(half as i16) } else { i32::from(half) };
        sum.wrapping_add(half.wrapping_mul(lane8(b, index, b_signed)) as u32)
    })
}
