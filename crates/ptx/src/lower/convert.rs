//! Lowers `cvt` and `mov`.

use super::FunctionLowering;
use super::float::{canonical, flush, propagate_nan1, saturate, saturate64};
use super::integer::per_type;
use super::modifiers::{Modifiers, Rounding};
use crate::ast::{Operand, Type};
use crate::error::PtxError;
use crate::exec::control as run;
use crate::lanes::{binary, predicates, unary};
use crate::op::{Handler, Isa, Op};
use crate::soft_float;

/// How a number becomes whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IntegerRounding {
    Nearest,
    Zero,
    Down,
    Up,
}

const INTEGER_ROUNDINGS: [(&str, IntegerRounding); 4] = [
    ("rni", IntegerRounding::Nearest),
    ("rzi", IntegerRounding::Zero),
    ("rmi", IntegerRounding::Down),
    ("rpi", IntegerRounding::Up),
];

impl<'t> FunctionLowering<'_, 't> {
    pub(super) fn convert(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let whole = modifiers.take_one_of(&INTEGER_ROUNDINGS);
        let round = modifiers.take_rounding();
        let (ftz, sat) = (modifiers.take_flag("ftz"), modifiers.take_flag("sat"));
        let to = modifiers.take_type()?;
        let from = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        let isa = self.isa;
        let handler = match (from.is_float(), to.is_float()) {
            (false, false) => integer_to_integer(isa, from, to, sat),
            (true, false) => float_to_integer(isa, from, to, whole, ftz),
            (false, true) => integer_to_float(isa, from, to, round, sat),
            (true, true) => float_to_float(isa, from, to, (whole, round), ftz, sat),
        };
        let handler = self.require_handler(modifiers, handler)?;
        let [d, a] = self.expect_operands::<2>(operands)?;
        let a = self.value(a, from)?;
        let (d, widen) = self.wider_target_register(d, to)?;
        // A narrow result fills its register: the handler writes 32 bits.
        self.emit1(handler, d, a);
        self.widen(widen);
        Ok(())
    }

    pub(super) fn mov(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        let [d, a] = self.expect_operands::<2>(operands)?;
        match (d, a) {
            (Operand::Vector(parts), a) => return self.unpack(parts, a, ty),
            (d, Operand::Vector(parts)) => return self.pack(d, parts, ty),
            _ => {}
        }
        if ty == Type::Pred {
            let a = self.plain_predicate(a)?;
            let d = self.predicate_target(d)?;
            let run = predicates(self.isa, |a, _| a);
            self.emit2(run, d, a, a);
            return Ok(());
        }
        if let Operand::Name(name) = a
            && let Some(which) = clock(name)
            && self.find_symbol(name)?.is_none()
        {
            let d = self.target_register(d, ty)?;
            if (ty.bytes() == 8) != matches!(which, 1 | 3) {
                return self.position.operands(format!("`{name}` has another width"));
            }
            let op = Op { d, imm: which, ..self.blank_op(run::clock) };
            self.emit(op);
            return Ok(());
        }
        let run = if ty.bytes() == 8 { unary(self.isa, |a: u64| a) } else { unary(self.isa, |a: u32| a) };
        if ty == Type::B128 {
            return modifiers.unsupported();
        }
        self.unary(operands, ty, run)
    }

    /// `mov.b64 {a, b}, c`.
    fn unpack(&mut self, parts: &[Operand<'t>], a: &Operand<'t>, ty: Type) -> Result<(), PtxError> {
        let isa = self.isa;
        let source = self.value(a, ty)?;
        let part = part_type(ty, parts.len());
        let handlers: Vec<Handler> = match (ty.bytes(), parts.len()) {
            (8, 2) => vec![unary(isa, |a: u64| a as u32), unary(isa, |a: u64| (a >> 32) as u32)],
            (8, 4) => vec![
                unary(isa, |a: u64| a as u16),
                unary(isa, |a: u64| (a >> 16) as u16),
                unary(isa, |a: u64| (a >> 32) as u16),
                unary(isa, |a: u64| (a >> 48) as u16),
            ],
            (4, 2) => vec![unary(isa, |a: u32| a as u16), unary(isa, |a: u32| (a >> 16) as u16)],
            (4, 4) => vec![
                unary(isa, |a: u32| a as u8),
                unary(isa, |a: u32| (a >> 8) as u8),
                unary(isa, |a: u32| (a >> 16) as u8),
                unary(isa, |a: u32| (a >> 24) as u8),
            ],
            (2, 2) => vec![unary(isa, |a: u16| a as u8), unary(isa, |a: u16| (a >> 8) as u8)],
            _ => return self.position.unsupported(format!("mov of {} parts", parts.len())),
        };
        // A part may be the source itself, so all are read before any is written.
        let mut moves = Vec::new();
        for (handler, target) in handlers.into_iter().zip(parts) {
            if matches!(target, Operand::Name("_")) {
                continue;
            }
            let target = self.target_register(target, part)?;
            let between = self.allocate(false)?;
            self.emit1(handler, between, source);
            moves.push((target, between));
        }
        for (target, between) in moves {
            let run = unary(isa, |a: u32| a);
            self.emit1(run, target, between);
        }
        Ok(())
    }

    /// `mov.b64 c, {a, b}`.
    fn pack(&mut self, d: &Operand<'t>, parts: &[Operand<'t>], ty: Type) -> Result<(), PtxError> {
        let isa = self.isa;
        let part = part_type(ty, parts.len());
        let rows = parts.iter().map(|operand| self.value(operand, part)).collect::<Result<Vec<_>, _>>()?;
        let d = self.target_register(d, ty)?;
        match (ty.bytes(), rows.as_slice()) {
            (8, &[a, b]) => {
                let run = binary(isa, |a: u32, b: u32| u64::from(b) << 32 | u64::from(a));
                self.emit2(run, d, a, b);
            }
            (8, &[a, b, c, e]) => {
                let run = crate::lanes::quaternary(isa, |a: u16, b: u16, c: u16, e: u16| {
                    u64::from(e) << 48 | u64::from(c) << 32 | u64::from(b) << 16 | u64::from(a)
                });
                let op = Op { d, a, b, c, e, ..self.blank_op(run) };
                self.emit(op);
            }
            (4, &[a, b]) => {
                let run = binary(isa, |a: u16, b: u16| u32::from(b) << 16 | u32::from(a));
                self.emit2(run, d, a, b);
            }
            (4, &[a, b, c, e]) => {
                let run = crate::lanes::quaternary(isa, |a: u8, b: u8, c: u8, e: u8| u32::from_le_bytes([a, b, c, e]));
                let op = Op { d, a, b, c, e, ..self.blank_op(run) };
                self.emit(op);
            }
            (2, &[a, b]) => {
                let run = binary(isa, |a: u8, b: u8| u16::from_le_bytes([a, b]));
                self.emit2(run, d, a, b);
            }
            _ => return self.position.unsupported(format!("mov of {} parts", parts.len())),
        }
        Ok(())
    }
}

/// Registers that change while a warp runs, as the clock handler numbers them.
fn clock(name: &str) -> Option<u64> {
    Some(match name {
        "%clock" => 0,
        "%clock64" => 1,
        "%clock_hi" => 2,
        "%globaltimer" => 3,
        "%globaltimer_lo" => 4,
        "%globaltimer_hi" => 5,
        _ => return None,
    })
}

fn part_type(ty: Type, parts: usize) -> Type {
    match ty.bytes() as usize / parts.max(1) {
        4 => Type::B32,
        2 => Type::B16,
        _ => Type::B8,
    }
}

/// Every pair of integer types goes through the wider of the two, so one closure
/// over 64 bits is instantiated for each source and target.
fn integer_to_integer(isa: Isa, from: Type, to: Type, sat: bool) -> Option<Handler> {
    macro_rules! to {
        ($from:ty) => {
            match (to, sat) {
                (Type::U8, false) => unary(isa, |a: $from| a as u8),
                (Type::S8, false) => unary(isa, |a: $from| i32::from(a as i8)),
                (Type::U16, false) => unary(isa, |a: $from| a as u16),
                (Type::S16, false) => unary(isa, |a: $from| i32::from(a as i16)),
                (Type::U32, false) => unary(isa, |a: $from| a as u32),
                (Type::S32, false) => unary(isa, |a: $from| a as i32),
                (Type::U64, false) => unary(isa, |a: $from| a as u64),
                (Type::S64, false) => unary(isa, |a: $from| a as i64),
                (Type::U8, true) => unary(isa, |a: $from| i128::from(a).clamp(0, 0xFF) as u8),
                (Type::S8, true) => unary(isa, |a: $from| i128::from(a).clamp(-0x80, 0x7F) as i32),
                (Type::U16, true) => unary(isa, |a: $from| i128::from(a).clamp(0, 0xFFFF) as u16),
                (Type::S16, true) => unary(isa, |a: $from| i128::from(a).clamp(-0x8000, 0x7FFF) as i32),
                (Type::U32, true) => unary(isa, |a: $from| i128::from(a).clamp(0, 0xFFFF_FFFF) as u32),
                (Type::S32, true) => unary(isa, |a: $from| i128::from(a).clamp(-0x8000_0000, 0x7FFF_FFFF) as i32),
                (Type::U64, true) => unary(isa, |a: $from| i128::from(a).clamp(0, i128::from(u64::MAX)) as u64),
                (Type::S64, true) => unary(isa, |a: $from| i128::from(a).min(i128::from(i64::MAX)) as i64),
                _ => return None,
            }
        };
    }
    Some(match from {
        Type::U8 => to!(u8),
        Type::S8 => to!(i8),
        Type::U16 => to!(u16),
        Type::S16 => to!(i16),
        Type::U32 => to!(u32),
        Type::S32 => to!(i32),
        Type::U64 => to!(u64),
        Type::S64 => to!(i64),
        _ => return None,
    })
}

/// Out of range goes to the nearest limit; what is not a number goes to 0, or to
/// the top bit alone if either side has 64 bits.
fn float_to_integer(isa: Isa, from: Type, to: Type, whole: Option<IntegerRounding>, ftz: bool) -> Option<Handler> {
    macro_rules! to {
        ($from:ty, $round:expr, $wide:expr) => {
            match to {
                Type::U8 => unary(isa, |a: $from| if $wide && a.is_nan() { 0x80 } else { $round(a) as u8 }),
                Type::S8 => unary(isa, |a: $from| if $wide && a.is_nan() { -0x80 } else { i32::from($round(a) as i8) }),
                Type::U16 => unary(isa, |a: $from| if $wide && a.is_nan() { 0x8000 } else { $round(a) as u16 }),
                Type::S16 => {
                    unary(isa, |a: $from| if $wide && a.is_nan() { -0x8000 } else { i32::from($round(a) as i16) })
                }
                Type::U32 => unary(isa, |a: $from| if $wide && a.is_nan() { 1 << 31 } else { $round(a) as u32 }),
                Type::S32 => unary(isa, |a: $from| if $wide && a.is_nan() { i32::MIN } else { $round(a) as i32 }),
                Type::U64 => unary(isa, |a: $from| if a.is_nan() { 1 << 63 } else { $round(a) as u64 }),
                Type::S64 => unary(isa, |a: $from| if a.is_nan() { i64::MIN } else { $round(a) as i64 }),
                _ => return None,
            }
        };
    }
    Some(match (from, whole?, ftz) {
        // Flushed or not, a subnormal number is 0 to the nearest and towards 0.
        (Type::F32, IntegerRounding::Nearest, _) => to!(f32, f32::round_ties_even, false),
        (Type::F32, IntegerRounding::Zero, _) => to!(f32, f32::trunc, false),
        (Type::F32, IntegerRounding::Down, false) => to!(f32, f32::floor, false),
        (Type::F32, IntegerRounding::Up, false) => to!(f32, f32::ceil, false),
        (Type::F32, IntegerRounding::Down, true) => to!(f32, |a| flush(a).floor(), false),
        (Type::F32, IntegerRounding::Up, true) => to!(f32, |a| flush(a).ceil(), false),
        (Type::F64, IntegerRounding::Nearest, _) => to!(f64, f64::round_ties_even, true),
        (Type::F64, IntegerRounding::Zero, _) => to!(f64, f64::trunc, true),
        (Type::F64, IntegerRounding::Down, _) => to!(f64, f64::floor, true),
        (Type::F64, IntegerRounding::Up, _) => to!(f64, f64::ceil, true),
        _ => return None,
    })
}

fn integer_to_float(isa: Isa, from: Type, to: Type, round: Option<Rounding>, sat: bool) -> Option<Handler> {
    if sat {
        return None;
    }
    macro_rules! round {
        ($to:ty) => {
            match round? {
                Rounding::Nearest => per_type!(isa, from, unary, [U8 => u8, S8 => i8, U16 => u16, S16 => i16, U32 => u32, S32 => i32, U64 => u64, S64 => i64], |a| a as $to),
                Rounding::Zero => per_type!(isa, from, unary, [U8 => u8, S8 => i8, U16 => u16, S16 => i16, U32 => u32, S32 => i32, U64 => u64, S64 => i64], |a| soft_float::from_integer::<$to>(i128::from(a), Rounding::Zero)),
                Rounding::Down => per_type!(isa, from, unary, [U8 => u8, S8 => i8, U16 => u16, S16 => i16, U32 => u32, S32 => i32, U64 => u64, S64 => i64], |a| soft_float::from_integer::<$to>(i128::from(a), Rounding::Down)),
                Rounding::Up => per_type!(isa, from, unary, [U8 => u8, S8 => i8, U16 => u16, S16 => i16, U32 => u32, S32 => i32, U64 => u64, S64 => i64], |a| soft_float::from_integer::<$to>(i128::from(a), Rounding::Up)),
            }
        };
    }
    match to {
        Type::F32 => round!(f32),
        Type::F64 => round!(f64),
        _ => None,
    }
}

fn float_to_float(
    isa: Isa,
    from: Type,
    to: Type,
    (whole, round): (Option<IntegerRounding>, Option<Rounding>),
    ftz: bool,
    sat: bool,
) -> Option<Handler> {
    // The four manners of one conversion to f32.
    macro_rules! finish {
        ($from:ty, $before:expr, $f:expr) => {
            match (ftz, sat) {
                (false, false) => unary(isa, |a: $from| canonical($f(a))),
                (true, false) => unary(isa, |a: $from| flush(canonical($f($before(a))))),
                (false, true) => unary(isa, |a: $from| saturate($f(a))),
                (true, true) => unary(isa, |a: $from| flush(saturate($f($before(a))))),
            }
        };
    }
    Some(match (from, to) {
        (Type::F32, Type::F32) => match whole {
            None if ftz || sat => finish!(f32, flush, |a| a),
            None => unary(isa, |a: u32| a),
            Some(IntegerRounding::Nearest) => finish!(f32, flush, f32::round_ties_even),
            Some(IntegerRounding::Zero) => finish!(f32, flush, f32::trunc),
            Some(IntegerRounding::Down) => finish!(f32, flush, f32::floor),
            Some(IntegerRounding::Up) => finish!(f32, flush, f32::ceil),
        },
        (Type::F64, Type::F64) => match (whole, sat) {
            (None, false) => unary(isa, |a: u64| a),
            (None, true) => unary(isa, saturate64),
            (Some(IntegerRounding::Nearest), false) => unary(isa, |a: f64| propagate_nan1(a, a.round_ties_even())),
            (Some(IntegerRounding::Zero), false) => unary(isa, |a: f64| propagate_nan1(a, a.trunc())),
            (Some(IntegerRounding::Down), false) => unary(isa, |a: f64| propagate_nan1(a, a.floor())),
            (Some(IntegerRounding::Up), false) => unary(isa, |a: f64| propagate_nan1(a, a.ceil())),
            (Some(_), true) => return None,
        },
        (Type::F32, Type::F64) => match (ftz, sat) {
            (false, false) => unary(isa, widen),
            (true, false) => unary(isa, |a: f32| widen(canonical(flush(a)))),
            (false, true) => unary(isa, |a: f32| saturate64(f64::from(a))),
            (true, true) => unary(isa, |a: f32| saturate64(f64::from(flush(a)))),
        },
        (Type::F64, Type::F32) => match (round?, ftz, sat) {
            (Rounding::Nearest, false, false) => unary(isa, |a: f64| narrow(a, a as f32)),
            (Rounding::Zero, false, false) => unary(isa, |a: f64| narrow(a, soft_float::narrow(a, Rounding::Zero))),
            (Rounding::Down, false, false) => unary(isa, |a: f64| narrow(a, soft_float::narrow(a, Rounding::Down))),
            (Rounding::Up, false, false) => unary(isa, |a: f64| narrow(a, soft_float::narrow(a, Rounding::Up))),
            (Rounding::Nearest, true, false) => unary(isa, |a: f64| flush(narrow(a, a as f32))),
            (Rounding::Zero, true, false) => {
                unary(isa, |a: f64| flush(narrow(a, soft_float::narrow(a, Rounding::Zero))))
            }
            (Rounding::Down, true, false) => {
                unary(isa, |a: f64| flush(narrow(a, soft_float::narrow(a, Rounding::Down))))
            }
            (Rounding::Up, true, false) => unary(isa, |a: f64| flush(narrow(a, soft_float::narrow(a, Rounding::Up)))),
            (Rounding::Nearest, _, true) => unary(isa, |a: f64| saturate(a as f32)),
            (Rounding::Zero, _, true) => unary(isa, |a: f64| saturate(soft_float::narrow(a, Rounding::Zero))),
            (Rounding::Down, _, true) => unary(isa, |a: f64| saturate(soft_float::narrow(a, Rounding::Down))),
            (Rounding::Up, _, true) => unary(isa, |a: f64| saturate(soft_float::narrow(a, Rounding::Up))),
        },
        _ => return None,
    })
}

/// A float as a double; what is not a number keeps its sign and payload.
#[inline(always)]
fn widen(a: f32) -> f64 {
    if a.is_nan() {
        let bits = u64::from(a.to_bits());
        return f64::from_bits((bits >> 31) << 63 | 0x7FF8 << 48 | (bits & 0x7F_FFFF) << 29);
    }
    f64::from(a)
}

/// `result`, unless `a` is not a number: then its sign and the top of its payload.
#[inline(always)]
fn narrow(a: f64, result: f32) -> f32 {
    if a.is_nan() {
        let bits = a.to_bits();
        return f32::from_bits((bits >> 63 << 31) as u32 | 0x7FC0_0000 | (bits >> 29) as u32 & 0x7F_FFFF);
    }
    result
}
