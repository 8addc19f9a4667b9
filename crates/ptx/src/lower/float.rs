//! Lowers floating-point arithmetic.
//!
//! Rounding to nearest is the host's own, which is IEEE; the other roundings go
//! through [`crate::soft_float`]. As on the hardware, a float result that is not a number
//! is always `0x7fffffff`, and a double keeps the bits of the operand it came from.

use super::FunctionLowering;
use super::modifiers::{Modifiers, Rounding};
use crate::ast::{Operand, Type};
use crate::error::PtxError;
use crate::lanes::{binary, ternary, unary};
use crate::op::{Handler, Isa, NONE};
use crate::soft_float;

/// What the hardware writes for a float that is not a number.
const NAN32: u32 = 0x7FFF_FFFF;

/// The bits of a NaN, hidden from the compiler. It treats all NaNs as equal, and would remove the code that turns one
/// into another.
#[inline(always)]
fn nan32() -> u32 {
    let mut bits = u64::from(NAN32);
    // SAFETY: the assembly is empty.
    unsafe { std::arch::asm!("/* {0} */", inout(reg) bits, options(pure, nomem, nostack, preserves_flags)) };
    bits as u32
}

/// Replaces any NaN by the one the hardware writes.
#[inline(always)]
pub(super) fn canonical(value: f32) -> f32 {
    if value.is_nan() { f32::from_bits(nan32()) } else { value }
}

/// Subnormal numbers become zeros of their sign.
#[inline(always)]
pub(super) fn flush(value: f32) -> f32 {
    let bits = value.to_bits();
    if bits & 0x7F80_0000 == 0 { f32::from_bits(bits & 0x8000_0000) } else { value }
}

/// Into 0 to 1; what is not a number becomes 0.
#[inline(always)]
pub(super) fn saturate(value: f32) -> f32 {
    if value > 0.0 { if value < 1.0 { value } else { 1.0 } } else { 0.0 }
}

#[inline(always)]
pub(super) fn saturate64(value: f64) -> f64 {
    if value > 0.0 { if value < 1.0 { value } else { 1.0 } } else { 0.0 }
}

/// How an f32 instruction treats its inputs and its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FloatMode {
    flush: bool,
    saturate: bool,
}

/// Wraps one expression in the mode at hand: four handlers from one.
macro_rules! in_float_mode {
    ($isa:expr, $float_mode:expr, $shape:ident, |$($x:ident),*| $body:expr) => {
        match $float_mode {
            FloatMode { flush: false, saturate: false } => $shape($isa, |$($x: f32),*| canonical($body)),
            FloatMode { flush: true, saturate: false } => $shape($isa, |$($x: f32),*| { $(let $x = flush($x);)* flush(canonical($body)) }),
            FloatMode { flush: false, saturate: true } => $shape($isa, |$($x: f32),*| saturate($body)),
            FloatMode { flush: true, saturate: true } => $shape($isa, |$($x: f32),*| { $(let $x = flush($x);)* flush(saturate($body)) }),
        }
    };
}

/// One expression for each rounding; the first is for round-to-nearest.
macro_rules! rounded32 {
    ($isa:expr, $float_mode:expr, $round:expr, $shape:ident, |$($x:ident),*| $nearest:expr, $mode:ident => $soft:expr) => {
        match $round {
            Rounding::Nearest => in_float_mode!($isa, $float_mode, $shape, |$($x),*| $nearest),
            Rounding::Zero => in_float_mode!($isa, $float_mode, $shape, |$($x),*| { let $mode = Rounding::Zero; $soft }),
            Rounding::Down => in_float_mode!($isa, $float_mode, $shape, |$($x),*| { let $mode = Rounding::Down; $soft }),
            Rounding::Up => in_float_mode!($isa, $float_mode, $shape, |$($x),*| { let $mode = Rounding::Up; $soft }),
        }
    };
}

macro_rules! rounded64 {
    ($isa:expr, $round:expr, $shape:ident, $settle:ident, |$($x:ident),*| $nearest:expr, $mode:ident => $soft:expr) => {
        match $round {
            Rounding::Nearest => $shape($isa, |$($x: f64),*| $settle($($x,)* $nearest)),
            Rounding::Zero => $shape($isa, |$($x: f64),*| { let $mode = Rounding::Zero; $settle($($x,)* $soft) }),
            Rounding::Down => $shape($isa, |$($x: f64),*| { let $mode = Rounding::Down; $settle($($x,)* $soft) }),
            Rounding::Up => $shape($isa, |$($x: f64),*| { let $mode = Rounding::Up; $settle($($x,)* $soft) }),
        }
    };
}

/// A double that is not a number, made quiet; else what an invalid operation gives.
#[inline(always)]
fn quiet_or_default(value: f64) -> f64 {
    let bits = if value.is_nan() { value.to_bits() | 1 << 51 } else { 0xFFF8_0000_0000_0000 };
    f64::from_bits(bits)
}

/// Doubles keep what came in: an operand that is not a number is the result.
#[inline(always)]
pub(super) fn propagate_nan1(a: f64, result: f64) -> f64 {
    if result.is_nan() { quiet_or_default(a) } else { result }
}

/// Of two, the second is preferred.
#[inline(always)]
fn propagate_nan2(a: f64, b: f64, result: f64) -> f64 {
    propagate_nan1(if b.is_nan() { b } else { a }, result)
}

/// Of three, the second is preferred, then the third.
#[inline(always)]
fn propagate_nan3(a: f64, b: f64, c: f64, result: f64) -> f64 {
    propagate_nan2(first_nan_or(a, c), b, result)
}

#[inline(always)]
fn first_nan_or(last: f64, first: f64) -> f64 {
    if first.is_nan() { first } else { last }
}

/// A division is a routine, and prefers its first operand.
#[inline(always)]
fn propagate_nan_of_quotient(a: f64, b: f64, result: f64) -> f64 {
    propagate_nan2(b, a, result)
}

impl<'t> FunctionLowering<'_, 't> {
    pub(super) fn float(
        &mut self,
        name: &str,
        modifiers: &mut Modifiers<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), PtxError> {
        let approximate = modifiers.take_flag("approx");
        let full = modifiers.take_flag("full");
        let round = modifiers.take_rounding();
        let float_mode = FloatMode { flush: modifiers.take_flag("ftz"), saturate: modifiers.take_flag("sat") };
        let propagates = modifiers.take_flag("NaN");
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        let isa = self.isa;
        let nearest = round.unwrap_or(Rounding::Nearest);
        let run = match (name, ty) {
            ("add" | "sub" | "mul" | "fma" | "mad", Type::F32) => Some(arithmetic32(isa, name, float_mode, nearest)),
            ("add" | "sub" | "mul" | "fma" | "mad", Type::F64) => Some(arithmetic64(isa, name, nearest)),
            ("min" | "max", Type::F32) => Some(extreme32(isa, name == "min", propagates, float_mode)),
            ("min", Type::F64) => Some(binary(isa, |a: f64, b: f64| propagate_nan2(a, b, smaller64(a, b)))),
            ("max", Type::F64) => Some(binary(isa, |a: f64, b: f64| propagate_nan2(a, b, -smaller64(-a, -b)))),
            ("abs", Type::F32) if float_mode.flush => Some(unary(isa, |a: f32| canonical(flush(a).abs()))),
            ("abs", Type::F32) => Some(unary(isa, |a: f32| canonical(a.abs()))),
            ("abs", Type::F64) => Some(unary(isa, |a: f64| propagate_nan1(a, a.abs()))),
            ("neg", Type::F32) if float_mode.flush => Some(unary(isa, |a: f32| canonical(-flush(a)))),
            ("neg", Type::F32) => Some(unary(isa, |a: f32| canonical(-a))),
            ("neg", Type::F64) => Some(unary(isa, |a: f64| propagate_nan1(a, -a))),
            ("copysign", Type::F32) => Some(binary(isa, |a: u32, b: u32| (a & 1 << 31) | (b & !(1 << 31)))),
            ("copysign", Type::F64) => Some(binary(isa, |a: u64, b: u64| (a & 1 << 63) | (b & !(1 << 63)))),
            _ if approximate || full => approximation(isa, name, full, float_mode, ty),
            ("div" | "rcp" | "sqrt", Type::F32) if round.is_some() => Some(division32(isa, name, float_mode, nearest)),
            ("div" | "rcp" | "sqrt", Type::F64) if round.is_some() => Some(division64(isa, name, nearest)),
            _ => None,
        };
        let run = self.require_handler(modifiers, run)?;
        match name {
            "add" | "sub" | "mul" | "fma" | "mad" | "min" | "max" if ty == Type::F64 => {
                self.order_by_last_write(name, nearest, operands, run)
            }
            "fma" | "mad" => self.ternary(operands, ty, run),
            "add" | "sub" | "mul" | "div" | "min" | "max" | "copysign" => self.binary(operands, ty, run),
            _ => self.unary(operands, ty, run),
        }
    }
}

impl<'t> FunctionLowering<'_, 't> {
    /// The compiler of the hardware sorts operands that may change places, and the
    /// hardware prefers the one written last where several are not numbers.
    fn order_by_last_write(
        &mut self,
        name: &str,
        round: Rounding,
        operands: &[Operand<'t>],
        run: Handler,
    ) -> Result<(), PtxError> {
        let (d, a, b, c) = match operands {
            [d, a, b] if !matches!(name, "fma" | "mad") => (d, a, b, None),
            [d, a, b, c] if matches!(name, "fma" | "mad") => (d, a, b, Some(c)),
            _ => return self.position.operands("the number of operands is wrong"),
        };
        let (mut a, mut b) = (self.value(a, Type::F64)?, self.value(b, Type::F64)?);
        let c = match c {
            Some(c) => self.value(c, Type::F64)?,
            None => NONE,
        };
        let mut run = run;
        if self.last_writes.get(&a) > self.last_writes.get(&b) {
            (a, b) = (b, a);
            if name == "sub" {
                run = arithmetic64(self.isa, "sub from", round);
            }
        }
        let d = self.target_register(d, Type::F64)?;
        self.emit3(run, d, a, b, c);
        Ok(())
    }
}

fn arithmetic32(isa: Isa, name: &str, float_mode: FloatMode, round: Rounding) -> Handler {
    match name {
        "add" => rounded32!(isa, float_mode, round, binary, |a, b| a + b, mode => soft_float::add(a, b, mode)),
        "sub" => rounded32!(isa, float_mode, round, binary, |a, b| a - b, mode => soft_float::add(a, -b, mode)),
        "mul" => rounded32!(isa, float_mode, round, binary, |a, b| a * b, mode => soft_float::mul(a, b, mode)),
        _ => {
            rounded32!(isa, float_mode, round, ternary, |a, b, c| a.mul_add(b, c), mode => soft_float::fma(a, b, c, mode))
        }
    }
}

fn arithmetic64(isa: Isa, name: &str, round: Rounding) -> Handler {
    match name {
        "add" => rounded64!(isa, round, binary, propagate_nan2, |a, b| a + b, mode => soft_float::add(a, b, mode)),
        "sub" => rounded64!(isa, round, binary, propagate_nan2, |a, b| a - b, mode => soft_float::add(a, -b, mode)),
        "sub from" => {
            rounded64!(isa, round, binary, propagate_nan2, |a, b| b - a, mode => soft_float::add(b, -a, mode))
        }
        "mul" => rounded64!(isa, round, binary, propagate_nan2, |a, b| a * b, mode => soft_float::mul(a, b, mode)),
        _ => {
            rounded64!(isa, round, ternary, propagate_nan3, |a, b, c| a.mul_add(b, c), mode => soft_float::fma(a, b, c, mode))
        }
    }
}

fn division32(isa: Isa, name: &str, float_mode: FloatMode, round: Rounding) -> Handler {
    match name {
        "div" => rounded32!(isa, float_mode, round, binary, |a, b| a / b, mode => soft_float::div(a, b, mode)),
        "rcp" if float_mode.flush => match round {
            Rounding::Nearest => unary(isa, |a: f32| reciprocal_flushed(a, Rounding::Nearest)),
            Rounding::Zero => unary(isa, |a: f32| reciprocal_flushed(a, Rounding::Zero)),
            Rounding::Down => unary(isa, |a: f32| reciprocal_flushed(a, Rounding::Down)),
            Rounding::Up => unary(isa, |a: f32| reciprocal_flushed(a, Rounding::Up)),
        },
        "rcp" => rounded32!(isa, float_mode, round, unary, |a| 1.0 / a, mode => soft_float::div(1.0_f32, a, mode)),
        _ => rounded32!(isa, float_mode, round, unary, |a| a.sqrt(), mode => soft_float::sqrt(a, mode)),
    }
}

fn division64(isa: Isa, name: &str, round: Rounding) -> Handler {
    match name {
        "div" => {
            rounded64!(isa, round, binary, propagate_nan_of_quotient, |a, b| a / b, mode => soft_float::div(a, b, mode))
        }
        "rcp" => rounded64!(isa, round, unary, propagate_nan1, |a| 1.0 / a, mode => soft_float::div(1.0_f64, a, mode)),
        _ => rounded64!(isa, round, unary, propagate_nan1, |a| a.sqrt(), mode => soft_float::sqrt(a, mode)),
    }
}

/// A reciprocal that is subnormal before rounding is flushed, even if rounding would
/// make it normal.
#[inline(always)]
fn reciprocal_flushed(a: f32, round: Rounding) -> f32 {
    const LARGE: f32 = f32::from_bits(0x7E80_0000);
    if a.abs() > LARGE {
        return 0.0_f32.copysign(a);
    }
    flush(canonical(soft_float::div(1.0, flush(a), round)))
}

/// The smaller of two; a number is preferred, and -0 is smaller than +0.
#[inline(always)]
fn smaller(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        return b;
    }
    let equal = a == b && a.is_sign_negative();
    if a < b || b.is_nan() || equal { a } else { b }
}

#[inline(always)]
fn smaller64(a: f64, b: f64) -> f64 {
    if a.is_nan() {
        return b;
    }
    let equal = a == b && a.is_sign_negative();
    if a < b || b.is_nan() || equal { a } else { b }
}

fn extreme32(isa: Isa, smallest: bool, propagates: bool, float_mode: FloatMode) -> Handler {
    match (smallest, propagates) {
        (true, false) => in_float_mode!(isa, float_mode, binary, |a, b| smaller(a, b)),
        (false, false) => in_float_mode!(isa, float_mode, binary, |a, b| -smaller(-a, -b)),
        (true, true) => {
            in_float_mode!(isa, float_mode, binary, |a, b| if a.is_nan() || b.is_nan() {
                f32::NAN
            } else {
                smaller(a, b)
            })
        }
        (false, true) => {
            in_float_mode!(isa, float_mode, binary, |a, b| if a.is_nan() || b.is_nan() {
                f32::NAN
            } else {
                -smaller(-a, -b)
            })
        }
    }
}

/// The documented approximations, which the correctly rounded value is within.
fn approximation(isa: Isa, name: &str, full: bool, float_mode: FloatMode, ty: Type) -> Option<Handler> {
    if ty == Type::F64 {
        return match name {
            "rcp" => Some(unary(isa, |a: f64| upper_half(1.0 / flush64(a)))),
            "rsqrt" => Some(unary(isa, |a: f64| upper_half(1.0 / flush64(a).sqrt()))),
            _ => None,
        };
    }
    Some(match name {
        "div" if full => in_float_mode!(isa, float_mode, binary, |a, b| a / b),
        "div" => in_float_mode!(isa, float_mode, binary, |a, b| divide_approximately(a, b)),
        "rcp" => in_float_mode!(isa, float_mode, unary, |a| 1.0 / a),
        "sqrt" => in_float_mode!(isa, float_mode, unary, |a| a.sqrt()),
        "rsqrt" => in_float_mode!(isa, float_mode, unary, |a| (1.0 / f64::from(a).sqrt()) as f32),
        "sin" => in_float_mode!(isa, float_mode, unary, |a| f64::from(a).sin() as f32),
        "cos" => in_float_mode!(isa, float_mode, unary, |a| f64::from(a).cos() as f32),
        "lg2" => in_float_mode!(isa, float_mode, unary, |a| f64::from(a).log2() as f32),
        "ex2" => in_float_mode!(isa, float_mode, unary, |a| exp2(a)),
        "tanh" => in_float_mode!(isa, float_mode, unary, |a| f64::from(a).tanh() as f32),
        _ => return None,
    })
}

/// `2^a` to within an ulp of f32, without a call: whole and fractional parts.
#[inline(always)]
fn exp2(a: f32) -> f32 {
    // Beyond these the result is zero or infinite either way.
    let clamped = f64::from(a).clamp(-200.0, 200.0);
    let whole = round_half(clamped);
    let x = (clamped - whole) * std::f64::consts::LN_2;
    // The series of e^x for |x| < 0.35, to 1e-12.
    let mut sum = 1.0 / 39_916_800.0;
    for term in [3_628_800.0, 362_880.0, 40_320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0] {
        sum = sum * x + 1.0 / term;
    }
    let scale = f64::from_bits(((whole as i64 + 1023) as u64) << 52);
    let result = (sum * scale) as f32;
    if a.is_nan() { a } else { result }
}

/// To the nearest whole number, for magnitudes below 2^51.
#[inline(always)]
fn round_half(value: f64) -> f64 {
    const SHIFTER: f64 = 6_755_399_441_055_744.0;
    (value + SHIFTER) - SHIFTER
}

/// Divisors of 2^126 and more are beyond the reciprocal that the hardware takes.
#[inline(always)]
fn divide_approximately(a: f32, b: f32) -> f32 {
    const LARGE: f32 = 8.507_059e37;
    if b.abs() > LARGE && b.is_finite() { a * (0.0_f32.copysign(b)) } else { a / b }
}

#[inline(always)]
fn flush64(value: f64) -> f64 {
    if value.is_subnormal() { 0.0_f64.copysign(value) } else { value }
}

/// Only the upper 32 bits of these results are defined; the rest are zero.
#[inline(always)]
fn upper_half(value: f64) -> f64 {
    let value = flush64(value);
    if value.is_nan() { quiet_or_default(value) } else { f64::from_bits(value.to_bits() & 0xFFFF_FFFF_0000_0000) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_are_within_two_units() {
        for step in -160_000..128_000 {
            let a = step as f32 / 1000.0;
            let exact = f64::from(a).exp2();
            let error = (f64::from(exp2(a)) - exact).abs();
            // Two units in the last place, of a subnormal number at the least.
            assert!(error <= exact * 2_f64.powi(-22) + 2_f64.powi(-149), "2^{a}: {error:e}");
        }
        assert_eq!([exp2(f32::NEG_INFINITY), exp2(f32::INFINITY), exp2(-0.0)], [0.0, f32::INFINITY, 1.0]);
        assert!(exp2(f32::NAN).is_nan());
    }

    #[test]
    fn a_large_divisor_gives_zero_when_approximated() {
        assert_eq!(divide_approximately(1.0, 2e38), 0.0);
        assert_eq!(divide_approximately(6.0, 2.0), 3.0);
        assert!(divide_approximately(f32::INFINITY, 2e38).is_nan());
    }
}
