//! Lowers floating-point arithmetic.
//!
//! Rounding to nearest is the host's own, which is IEEE; the other roundings go
//! through [`crate::soft`]. A float result that is not a number is always
//! `0x7fffffff`, as on the hardware.

use super::Lower;
use super::words::{Round, Words};
use crate::ast::{Operand, Type};
use crate::error::Error;
use crate::lanes::{binary, ternary, unary};
use crate::op::{Handler, Isa};
use crate::soft;

/// What the hardware writes for a float that is not a number.
const NAN32: u32 = 0x7FFF_FFFF;

/// Replaces any NaN by the one the hardware writes.
#[inline(always)]
pub(super) fn canonical(value: f32) -> f32 {
    if value.is_nan() { f32::from_bits(NAN32) } else { value }
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
struct Manner {
    flush: bool,
    saturate: bool,
}

/// Wraps one expression in the manner at hand: four handlers from one.
macro_rules! in_manner {
    ($isa:expr, $manner:expr, $shape:ident, |$($x:ident),*| $body:expr) => {
        match $manner {
            Manner { flush: false, saturate: false } => $shape($isa, |$($x: f32),*| canonical($body)),
            Manner { flush: true, saturate: false } => $shape($isa, |$($x: f32),*| { $(let $x = flush($x);)* flush(canonical($body)) }),
            Manner { flush: false, saturate: true } => $shape($isa, |$($x: f32),*| saturate($body)),
            Manner { flush: true, saturate: true } => $shape($isa, |$($x: f32),*| { $(let $x = flush($x);)* flush(saturate($body)) }),
        }
    };
}

/// One expression for each rounding; the first is for round-to-nearest.
macro_rules! rounded32 {
    ($isa:expr, $manner:expr, $round:expr, $shape:ident, |$($x:ident),*| $nearest:expr, $mode:ident => $soft:expr) => {
        match $round {
            Round::Nearest => in_manner!($isa, $manner, $shape, |$($x),*| $nearest),
            Round::Zero => in_manner!($isa, $manner, $shape, |$($x),*| { let $mode = Round::Zero; $soft }),
            Round::Down => in_manner!($isa, $manner, $shape, |$($x),*| { let $mode = Round::Down; $soft }),
            Round::Up => in_manner!($isa, $manner, $shape, |$($x),*| { let $mode = Round::Up; $soft }),
        }
    };
}

macro_rules! rounded64 {
    ($isa:expr, $round:expr, $shape:ident, |$($x:ident),*| $nearest:expr, $mode:ident => $soft:expr) => {
        match $round {
            Round::Nearest => $shape($isa, |$($x: f64),*| canonical64($nearest)),
            Round::Zero => $shape($isa, |$($x: f64),*| { let $mode = Round::Zero; canonical64($soft) }),
            Round::Down => $shape($isa, |$($x: f64),*| { let $mode = Round::Down; canonical64($soft) }),
            Round::Up => $shape($isa, |$($x: f64),*| { let $mode = Round::Up; canonical64($soft) }),
        }
    };
}

/// What the hardware writes for a double that is not a number.
#[inline(always)]
pub(super) fn canonical64(value: f64) -> f64 {
    if value.is_nan() { f64::from_bits(0xFFF8_0000_0000_0000) } else { value }
}

impl<'t> Lower<'_, 't> {
    pub(super) fn float(&mut self, name: &str, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Error> {
        let approximate = words.flag("approx");
        let full = words.flag("full");
        let round = words.round();
        let manner = Manner { flush: words.flag("ftz"), saturate: words.flag("sat") };
        let propagates = words.flag("NaN");
        let ty = words.ty()?;
        words.done()?;
        let isa = self.isa;
        let nearest = round.unwrap_or(Round::Nearest);
        let run = match (name, ty) {
            ("add" | "sub" | "mul" | "fma" | "mad", Type::F32) => Some(arithmetic32(isa, name, manner, nearest)),
            ("add" | "sub" | "mul" | "fma" | "mad", Type::F64) => Some(arithmetic64(isa, name, nearest)),
            ("min" | "max", Type::F32) => Some(extreme32(isa, name == "min", propagates, manner)),
            ("min", Type::F64) => Some(binary(isa, |a: f64, b: f64| canonical_number64(smaller64(a, b)))),
            ("max", Type::F64) => Some(binary(isa, |a: f64, b: f64| canonical_number64(-smaller64(-a, -b)))),
            ("abs", Type::F32) if manner.flush => Some(unary(isa, |a: f32| flush(a).abs())),
            ("abs", Type::F32) => Some(unary(isa, |a: u32| a & 0x7FFF_FFFF)),
            ("abs", Type::F64) => Some(unary(isa, |a: u64| a & !(1 << 63))),
            ("neg", Type::F32) if manner.flush => Some(unary(isa, |a: f32| -flush(a))),
            ("neg", Type::F32) => Some(unary(isa, |a: u32| a ^ 1 << 31)),
            ("neg", Type::F64) => Some(unary(isa, |a: u64| a ^ 1 << 63)),
            ("copysign", Type::F32) => Some(binary(isa, |a: u32, b: u32| (a & 1 << 31) | (b & !(1 << 31)))),
            ("copysign", Type::F64) => Some(binary(isa, |a: u64, b: u64| (a & 1 << 63) | (b & !(1 << 63)))),
            _ if approximate || full => approximation(isa, name, full, manner, ty),
            ("div" | "rcp" | "sqrt", Type::F32) if round.is_some() => Some(division32(isa, name, manner, nearest)),
            ("div" | "rcp" | "sqrt", Type::F64) if round.is_some() => Some(division64(isa, name, nearest)),
            _ => None,
        };
        let run = self.some(words, run)?;
        match name {
            "fma" | "mad" => self.ternary(operands, ty, run),
            "add" | "sub" | "mul" | "div" | "min" | "max" | "copysign" => self.binary(operands, ty, run),
            _ => self.unary(operands, ty, run),
        }
    }
}

fn arithmetic32(isa: Isa, name: &str, manner: Manner, round: Round) -> Handler {
    match name {
        "add" => rounded32!(isa, manner, round, binary, |a, b| a + b, mode => soft::add(a, b, mode)),
        "sub" => rounded32!(isa, manner, round, binary, |a, b| a - b, mode => soft::add(a, -b, mode)),
        "mul" => rounded32!(isa, manner, round, binary, |a, b| a * b, mode => soft::mul(a, b, mode)),
        _ => rounded32!(isa, manner, round, ternary, |a, b, c| a.mul_add(b, c), mode => soft::fma(a, b, c, mode)),
    }
}

fn arithmetic64(isa: Isa, name: &str, round: Round) -> Handler {
    match name {
        "add" => rounded64!(isa, round, binary, |a, b| a + b, mode => soft::add(a, b, mode)),
        "sub" => rounded64!(isa, round, binary, |a, b| a - b, mode => soft::add(a, -b, mode)),
        "mul" => rounded64!(isa, round, binary, |a, b| a * b, mode => soft::mul(a, b, mode)),
        _ => rounded64!(isa, round, ternary, |a, b, c| a.mul_add(b, c), mode => soft::fma(a, b, c, mode)),
    }
}

fn division32(isa: Isa, name: &str, manner: Manner, round: Round) -> Handler {
    match name {
        "div" => rounded32!(isa, manner, round, binary, |a, b| a / b, mode => soft::div(a, b, mode)),
        "rcp" => rounded32!(isa, manner, round, unary, |a| 1.0 / a, mode => soft::div(1.0_f32, a, mode)),
        _ => rounded32!(isa, manner, round, unary, |a| a.sqrt(), mode => soft::sqrt(a, mode)),
    }
}

fn division64(isa: Isa, name: &str, round: Round) -> Handler {
    match name {
        "div" => rounded64!(isa, round, binary, |a, b| a / b, mode => soft::div(a, b, mode)),
        "rcp" => rounded64!(isa, round, unary, |a| 1.0 / a, mode => soft::div(1.0_f64, a, mode)),
        _ => rounded64!(isa, round, unary, |a| a.sqrt(), mode => soft::sqrt(a, mode)),
    }
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

#[inline(always)]
fn canonical_number64(value: f64) -> f64 {
    if value.is_nan() { f64::from_bits(0x7FFF_FFFF_FFFF_FFFF) } else { value }
}

fn extreme32(isa: Isa, smallest: bool, propagates: bool, manner: Manner) -> Handler {
    match (smallest, propagates) {
        (true, false) => in_manner!(isa, manner, binary, |a, b| smaller(a, b)),
        (false, false) => in_manner!(isa, manner, binary, |a, b| -smaller(-a, -b)),
        (true, true) => in_manner!(isa, manner, binary, |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { smaller(a, b) }),
        (false, true) => in_manner!(isa, manner, binary, |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { -smaller(-a, -b) }),
    }
}

/// The documented approximations, which the correctly rounded value is within.
fn approximation(isa: Isa, name: &str, full: bool, manner: Manner, ty: Type) -> Option<Handler> {
    if ty == Type::F64 {
        return match name {
            "rcp" => Some(unary(isa, |a: f64| upper_half(1.0 / flush64(a)))),
            "rsqrt" => Some(unary(isa, |a: f64| upper_half(1.0 / flush64(a).sqrt()))),
            _ => None,
        };
    }
    Some(match name {
        "div" if full => in_manner!(isa, manner, binary, |a, b| a / b),
        "div" => in_manner!(isa, manner, binary, |a, b| divide_approximately(a, b)),
        "rcp" => in_manner!(isa, manner, unary, |a| 1.0 / a),
        "sqrt" => in_manner!(isa, manner, unary, |a| a.sqrt()),
        "rsqrt" => in_manner!(isa, manner, unary, |a| (1.0 / f64::from(a).sqrt()) as f32),
        "sin" => in_manner!(isa, manner, unary, |a| f64::from(a).sin() as f32),
        "cos" => in_manner!(isa, manner, unary, |a| f64::from(a).cos() as f32),
        "lg2" => in_manner!(isa, manner, unary, |a| f64::from(a).log2() as f32),
        "ex2" => in_manner!(isa, manner, unary, |a| exp2(a)),
        "tanh" => in_manner!(isa, manner, unary, |a| f64::from(a).tanh() as f32),
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
    if value.is_nan() { canonical64(value) } else { f64::from_bits(value.to_bits() & 0xFFFF_FFFF_0000_0000) }
}
