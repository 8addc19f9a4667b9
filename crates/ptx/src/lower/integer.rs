//! Lowers integer arithmetic.
//!
//! Division by zero gives what the hardware gives: all ones, for the quotient and
//! for the remainder.

use super::FunctionLowering;
use super::modifiers::Modifiers;
use crate::ast::{Operand, Type};
use crate::error::PtxError;
use crate::lanes::{binary, carrying, ternary, unary};
use crate::op::{Handler, Isa, Op};

/// Makes a handler for the type at hand out of one expression.
macro_rules! per_type {
    ($isa:expr, $ty:expr, $shape:ident, [$($variant:ident $(| $more:ident)* => $t:ty),* $(,)?], |$x:ident| $body:expr) => {
        match $ty {
            $(Type::$variant $(| Type::$more)* => Some($shape($isa, |$x: $t| $body)),)*
            _ => None,
        }
    };
    ($isa:expr, $ty:expr, $shape:ident, [$($variant:ident $(| $more:ident)* => $t:ty),* $(,)?], |$x:ident, $y:ident| $body:expr) => {
        match $ty {
            $(Type::$variant $(| Type::$more)* => Some($shape($isa, |$x: $t, $y: $t| $body)),)*
            _ => None,
        }
    };
    ($isa:expr, $ty:expr, $shape:ident, [$($variant:ident $(| $more:ident)* => $t:ty),* $(,)?], |$x:ident, $y:ident, $z:ident| $body:expr) => {
        match $ty {
            $(Type::$variant $(| Type::$more)* => Some($shape($isa, |$x: $t, $y: $t, $z: $t| $body)),)*
            _ => None,
        }
    };
}
pub(super) use per_type;

/// Which half of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProductHalf {
    Low,
    High,
    Wide,
}

const PRODUCT_HALVES: [(&str, ProductHalf); 3] =
    [("lo", ProductHalf::Low), ("hi", ProductHalf::High), ("wide", ProductHalf::Wide)];

impl<'t> FunctionLowering<'_, 't> {
    pub(super) fn integer(
        &mut self,
        name: &str,
        modifiers: &mut Modifiers<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), PtxError> {
        match name {
            "add" | "sub" | "addc" | "subc" => self.add(name, modifiers, operands),
            "mul" | "mad" | "madc" => self.multiply(name, modifiers, operands),
            "mul24" | "mad24" => self.multiply24(name == "mad24", modifiers, operands),
            "div" | "rem" | "min" | "max" => {
                let ty = modifiers.take_type()?;
                modifiers.expect_none_left()?;
                let isa = self.isa;
                let run = match name {
                    "div" => divide(isa, ty),
                    "rem" => remainder(isa, ty),
                    "min" => {
                        per_type!(isa, ty, binary, [U16 => u16, S16 => i16, U32 => u32, S32 => i32, U64 => u64, S64 => i64], |a, b| a.min(b))
                    }
                    _ => {
                        per_type!(isa, ty, binary, [U16 => u16, S16 => i16, U32 => u32, S32 => i32, U64 => u64, S64 => i64], |a, b| a.max(b))
                    }
                };
                let run = self.require_handler(modifiers, run)?;
                self.binary(operands, ty, run)
            }
            "abs" | "neg" => {
                let ty = modifiers.take_type()?;
                modifiers.expect_none_left()?;
                let run = if name == "abs" {
                    per_type!(self.isa, ty, unary, [S16 => i16, S32 => i32, S64 => i64], |a| a.wrapping_abs())
                } else {
                    per_type!(self.isa, ty, unary, [S16 => i16, S32 => i32, S64 => i64], |a| a.wrapping_neg())
                };
                let run = self.require_handler(modifiers, run)?;
                self.unary(operands, ty, run)
            }
            "sad" => {
                let ty = modifiers.take_type()?;
                modifiers.expect_none_left()?;
                let isa = self.isa;
                let run = match ty {
                    Type::S16 => Some(ternary(isa, |a: i16, b: i16, c: i16| c.wrapping_add(a.abs_diff(b) as i16))),
                    Type::S32 => Some(ternary(isa, |a: i32, b: i32, c: i32| c.wrapping_add(a.abs_diff(b) as i32))),
                    Type::S64 => Some(ternary(isa, |a: i64, b: i64, c: i64| c.wrapping_add(a.abs_diff(b) as i64))),
                    _ => {
                        per_type!(isa, ty, ternary, [U16 => u16, U32 => u32, U64 => u64], |a, b, c| c.wrapping_add(a.abs_diff(b)))
                    }
                };
                let run = self.require_handler(modifiers, run)?;
                self.ternary(operands, ty, run)
            }
            _ => modifiers.unsupported(),
        }
    }

    pub(super) fn unary(&mut self, operands: &[Operand<'t>], ty: Type, run: Handler) -> Result<(), PtxError> {
        let [d, a] = self.expect_operands::<2>(operands)?;
        let a = self.value(a, ty)?;
        let d = self.target_register(d, ty)?;
        self.emit1(run, d, a);
        Ok(())
    }

    pub(super) fn binary(&mut self, operands: &[Operand<'t>], ty: Type, run: Handler) -> Result<(), PtxError> {
        let [d, a, b] = self.expect_operands::<3>(operands)?;
        let (a, b) = (self.value(a, ty)?, self.value(b, ty)?);
        let d = self.target_register(d, ty)?;
        self.emit2(run, d, a, b);
        Ok(())
    }

    pub(super) fn ternary(&mut self, operands: &[Operand<'t>], ty: Type, run: Handler) -> Result<(), PtxError> {
        let [d, a, b, c] = self.expect_operands::<4>(operands)?;
        let (a, b, c) = (self.value(a, ty)?, self.value(b, ty)?, self.value(c, ty)?);
        let d = self.target_register(d, ty)?;
        self.emit3(run, d, a, b, c);
        Ok(())
    }

    fn add(&mut self, name: &str, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let saturate = modifiers.take_flag("sat");
        let sets = modifiers.take_flag("cc");
        let reads = name.ends_with('c');
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        let is_add = name.starts_with("add");
        if reads || sets {
            return self.add_carry(is_add, (reads, sets), ty, modifiers, operands);
        }
        let isa = self.isa;
        let run = match (is_add, saturate) {
            (true, true) => per_type!(isa, ty, binary, [S32 => i32], |a, b| a.saturating_add(b)),
            (false, true) => per_type!(isa, ty, binary, [S32 => i32], |a, b| a.saturating_sub(b)),
            (true, false) => {
                per_type!(isa, ty, binary, [U16 | S16 => u16, U32 | S32 => u32, U64 | S64 => u64], |a, b| a.wrapping_add(b))
            }
            (false, false) => {
                per_type!(isa, ty, binary, [U16 | S16 => u16, U32 | S32 => u32, U64 | S64 => u64], |a, b| a.wrapping_sub(b))
            }
        };
        let run = self.require_handler(modifiers, run)?;
        self.binary(operands, ty, run)
    }

    fn add_carry(
        &mut self,
        is_add: bool,
        uses: (bool, bool),
        ty: Type,
        modifiers: &Modifiers<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), PtxError> {
        let run = carry_handler(self.isa, is_add, uses, ty);
        let run = self.require_handler(modifiers, run)?;
        let [d, a, b] = self.expect_operands::<3>(operands)?;
        let (a, b) = (self.value(a, ty)?, self.value(b, ty)?);
        let d = self.target_register(d, ty)?;
        let e = self.carry()?;
        let op = Op { d, a, b, e, ..self.blank_op(run) };
        self.emit(op);
        Ok(())
    }

    fn multiply(
        &mut self,
        name: &str,
        modifiers: &mut Modifiers<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), PtxError> {
        let half = modifiers.take_required("`.lo`, `.hi` or `.wide`", &PRODUCT_HALVES)?;
        let saturate = modifiers.take_flag("sat");
        let sets = modifiers.take_flag("cc");
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        if name == "mul" {
            let run = multiplication(self.isa, half, ty);
            let run = self.require_handler(modifiers, run)?;
            let [d, a, b] = self.expect_operands::<3>(operands)?;
            let (a, b) = (self.value(a, ty)?, self.value(b, ty)?);
            let d = self.target_register(d, product(ty, half))?;
            self.emit2(run, d, a, b);
            return Ok(());
        }
        let [d, a, b, c] = self.expect_operands::<4>(operands)?;
        let result = product(ty, half);
        let (a, b, c) = (self.value(a, ty)?, self.value(b, ty)?, self.value(c, result)?);
        let reads = name == "madc";
        if reads || sets {
            let run = multiplication(self.isa, half, ty);
            let run = self.require_handler(modifiers, run)?;
            let carry_run = carry_handler(self.isa, true, (reads, sets), ty);
            let carry_run = self.require_handler(modifiers, carry_run)?;
            let d = self.target_register(d, result)?;
            let between = self.allocate(ty.bytes() == 8)?;
            self.emit2(run, between, a, b);
            let e = self.carry()?;
            let op = Op { d, a: between, b: c, e, ..self.blank_op(carry_run) };
            self.emit(op);
            return Ok(());
        }
        let run = multiply_add(self.isa, half, saturate, ty);
        let run = self.require_handler(modifiers, run)?;
        let d = self.target_register(d, result)?;
        self.emit3(run, d, a, b, c);
        Ok(())
    }

    fn multiply24(
        &mut self,
        adds: bool,
        modifiers: &mut Modifiers<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), PtxError> {
        let half = modifiers.take_required("`.lo` or `.hi`", &PRODUCT_HALVES)?;
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        let isa = self.isa;
        let run = match (ty, half) {
            (Type::U32, ProductHalf::Low) => {
                Some(ternary(isa, |a: u32, b: u32, c: u32| (low24(a).wrapping_mul(low24(b)) as u32).wrapping_add(c)))
            }
            (Type::U32, ProductHalf::High) => Some(ternary(isa, |a: u32, b: u32, c: u32| {
                ((low24(a) * low24(b)) >> 16).wrapping_add(u64::from(c)) as u32
            })),
            (Type::S32, ProductHalf::Low) => {
                Some(ternary(isa, |a: i32, b: i32, c: i32| ((signed24(a) * signed24(b)) as i32).wrapping_add(c)))
            }
            (Type::S32, ProductHalf::High) => Some(ternary(isa, |a: i32, b: i32, c: i32| {
                (((signed24(a) * signed24(b)) >> 16) as i32).wrapping_add(c)
            })),
            _ => None,
        };
        let run = self.require_handler(modifiers, run)?;
        let (d, a, b, c) = match operands {
            [d, a, b] if !adds => (d, a, b, self.constant(0, false)?),
            [d, a, b, c] if adds => (d, a, b, self.value(c, ty)?),
            _ => return self.position.operands("the number of operands is wrong"),
        };
        let (a, b) = (self.value(a, ty)?, self.value(b, ty)?);
        let d = self.target_register(d, ty)?;
        self.emit3(run, d, a, b, c);
        Ok(())
    }
}

fn low24(value: u32) -> u64 {
    u64::from(value & 0xFF_FFFF)
}

fn signed24(value: i32) -> i64 {
    i64::from(value << 8 >> 8)
}

/// The type of a product.
fn product(ty: Type, half: ProductHalf) -> Type {
    match (half, ty) {
        (ProductHalf::Wide, Type::U16) => Type::U32,
        (ProductHalf::Wide, Type::S16) => Type::S32,
        (ProductHalf::Wide, Type::U32) => Type::U64,
        (ProductHalf::Wide, Type::S32) => Type::S64,
        _ => ty,
    }
}

fn carry_handler(isa: Isa, is_add: bool, uses: (bool, bool), ty: Type) -> Option<Handler> {
    Some(match (ty, is_add) {
        (Type::U32 | Type::S32 | Type::B32, true) => {
            carrying(isa, uses, |a: u32, b: u32, carry| a.carrying_sum(b, carry))
        }
        (Type::U32 | Type::S32 | Type::B32, false) => {
            carrying(isa, uses, |a: u32, b: u32, carry| a.borrowing_difference(b, carry))
        }
        (Type::U64 | Type::S64 | Type::B64, true) => {
            carrying(isa, uses, |a: u64, b: u64, carry| a.carrying_sum(b, carry))
        }
        (Type::U64 | Type::S64 | Type::B64, false) => {
            carrying(isa, uses, |a: u64, b: u64, carry| a.borrowing_difference(b, carry))
        }
        _ => return None,
    })
}

/// Sums and differences that say whether they went over.
trait Carry: Sized {
    fn carrying_sum(self, other: Self, carry: bool) -> (Self, bool);
    fn borrowing_difference(self, other: Self, borrow: bool) -> (Self, bool);
}

macro_rules! carry {
    ($($ty:ty),*) => {$(
        impl Carry for $ty {
            #[inline(always)]
            fn carrying_sum(self, other: Self, carry: bool) -> (Self, bool) {
                let (sum, over) = self.overflowing_add(other);
                let (sum, again) = sum.overflowing_add(Self::from(carry));
                (sum, over | again)
            }
            #[inline(always)]
            fn borrowing_difference(self, other: Self, borrow: bool) -> (Self, bool) {
                let (difference, under) = self.overflowing_sub(other);
                let (difference, again) = difference.overflowing_sub(Self::from(borrow));
                (difference, under | again)
            }
        }
    )*};
}
carry!(u32, u64);

fn multiplication(isa: Isa, half: ProductHalf, ty: Type) -> Option<Handler> {
    Some(match (half, ty) {
        (ProductHalf::Low, _) => {
            return per_type!(isa, ty, binary, [U16 | S16 => u16, U32 | S32 => u32, U64 | S64 => u64], |a, b| a.wrapping_mul(b));
        }
        (ProductHalf::High, Type::U16) => binary(isa, |a: u16, b: u16| ((u32::from(a) * u32::from(b)) >> 16) as u16),
        (ProductHalf::High, Type::S16) => binary(isa, |a: i16, b: i16| ((i32::from(a) * i32::from(b)) >> 16) as i16),
        (ProductHalf::High, Type::U32) => binary(isa, |a: u32, b: u32| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        (ProductHalf::High, Type::S32) => binary(isa, |a: i32, b: i32| ((i64::from(a) * i64::from(b)) >> 32) as i32),
        (ProductHalf::High, Type::U64) => binary(isa, |a: u64, b: u64| ((u128::from(a) * u128::from(b)) >> 64) as u64),
        (ProductHalf::High, Type::S64) => binary(isa, |a: i64, b: i64| ((i128::from(a) * i128::from(b)) >> 64) as i64),
        (ProductHalf::Wide, Type::U16) => binary(isa, |a: u16, b: u16| u32::from(a) * u32::from(b)),
        (ProductHalf::Wide, Type::S16) => binary(isa, |a: i16, b: i16| i32::from(a) * i32::from(b)),
        (ProductHalf::Wide, Type::U32) => binary(isa, |a: u32, b: u32| u64::from(a) * u64::from(b)),
        (ProductHalf::Wide, Type::S32) => binary(isa, |a: i32, b: i32| i64::from(a) * i64::from(b)),
        _ => return None,
    })
}

fn multiply_add(isa: Isa, half: ProductHalf, saturate: bool, ty: Type) -> Option<Handler> {
    if saturate {
        return match (half, ty) {
            (ProductHalf::High, Type::S32) => Some(ternary(isa, |a: i32, b: i32, c: i32| {
                (((i64::from(a) * i64::from(b)) >> 32) as i32).saturating_add(c)
            })),
            _ => None,
        };
    }
    Some(match (half, ty) {
        (ProductHalf::Low, _) => {
            return per_type!(isa, ty, ternary, [U16 | S16 => u16, U32 | S32 => u32, U64 | S64 => u64], |a, b, c| a.wrapping_mul(b).wrapping_add(c));
        }
        (ProductHalf::High, Type::U16) => {
            ternary(isa, |a: u16, b: u16, c: u16| (((u32::from(a) * u32::from(b)) >> 16) as u16).wrapping_add(c))
        }
        (ProductHalf::High, Type::S16) => {
            ternary(isa, |a: i16, b: i16, c: i16| (((i32::from(a) * i32::from(b)) >> 16) as i16).wrapping_add(c))
        }
        (ProductHalf::High, Type::U32) => {
            ternary(isa, |a: u32, b: u32, c: u32| (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c))
        }
        (ProductHalf::High, Type::S32) => {
            ternary(isa, |a: i32, b: i32, c: i32| (((i64::from(a) * i64::from(b)) >> 32) as i32).wrapping_add(c))
        }
        (ProductHalf::High, Type::U64) => {
            ternary(isa, |a: u64, b: u64, c: u64| (((u128::from(a) * u128::from(b)) >> 64) as u64).wrapping_add(c))
        }
        (ProductHalf::High, Type::S64) => {
            ternary(isa, |a: i64, b: i64, c: i64| (((i128::from(a) * i128::from(b)) >> 64) as i64).wrapping_add(c))
        }
        (ProductHalf::Wide, Type::U16) => {
            ternary(isa, |a: u16, b: u16, c: u32| (u32::from(a) * u32::from(b)).wrapping_add(c))
        }
        (ProductHalf::Wide, Type::S16) => {
            ternary(isa, |a: i16, b: i16, c: i32| (i32::from(a) * i32::from(b)).wrapping_add(c))
        }
        (ProductHalf::Wide, Type::U32) => {
            ternary(isa, |a: u32, b: u32, c: u64| (u64::from(a) * u64::from(b)).wrapping_add(c))
        }
        (ProductHalf::Wide, Type::S32) => {
            ternary(isa, |a: i32, b: i32, c: i64| (i64::from(a) * i64::from(b)).wrapping_add(c))
        }
        _ => return None,
    })
}

fn divide(isa: Isa, ty: Type) -> Option<Handler> {
    match ty {
        Type::U16 | Type::U32 | Type::U64 => {
            per_type!(isa, ty, binary, [U16 => u16, U32 => u32, U64 => u64], |a, b| a.checked_div(b).unwrap_or(!0))
        }
        _ => {
            per_type!(isa, ty, binary, [S16 => i16, S32 => i32, S64 => i64], |a, b| if b == 0 { -1 } else { a.wrapping_div(b) })
        }
    }
}

fn remainder(isa: Isa, ty: Type) -> Option<Handler> {
    match ty {
        Type::U16 | Type::U32 | Type::U64 => {
            per_type!(isa, ty, binary, [U16 => u16, U32 => u32, U64 => u64], |a, b| a.checked_rem(b).unwrap_or(!0))
        }
        _ => {
            per_type!(isa, ty, binary, [S16 => i16, S32 => i32, S64 => i64], |a, b| if b == 0 { -1 } else { a.wrapping_rem(b) })
        }
    }
}
