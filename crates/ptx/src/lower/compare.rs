//! Lowers comparisons and selections.

use super::FunctionLowering;
use super::float::flush;
use super::integer::per_type;
use super::modifiers::Modifiers;
use crate::ast::{Operand, Type};
use crate::error::PtxError;
use crate::lanes::{compare, predicates, ternary, with_predicate};
use crate::op::{Handler, Isa};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Test {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// The unordered ones also hold if either side is not a number.
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    Num,
    Nan,
}

const TESTS: [(&str, Test); 18] = [
    ("eq", Test::Eq),
    ("ne", Test::Ne),
    ("lt", Test::Lt),
    ("le", Test::Le),
    ("gt", Test::Gt),
    ("ge", Test::Ge),
    ("lo", Test::Lt),
    ("ls", Test::Le),
    ("hi", Test::Gt),
    ("hs", Test::Ge),
    ("equ", Test::Equ),
    ("neu", Test::Neu),
    ("ltu", Test::Ltu),
    ("leu", Test::Leu),
    ("gtu", Test::Gtu),
    ("geu", Test::Geu),
    ("num", Test::Num),
    ("nan", Test::Nan),
];

/// What a comparison says before its operands.
#[derive(Debug, Clone, Copy)]
struct Comparison {
    ty: Type,
    test: Test,
    ftz: bool,
    combine: Option<Combine>,
}

#[derive(Debug, Clone, Copy)]
enum Combine {
    And,
    Or,
    Xor,
}

impl<'t> FunctionLowering<'_, 't> {
    pub(super) fn comparison(
        &mut self,
        name: &str,
        modifiers: &mut Modifiers<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), PtxError> {
        match name {
            "setp" => self.set_predicate(modifiers, operands),
            "set" => self.set(modifiers, operands),
            "selp" => self.select(modifiers, operands),
            "slct" => self.select_by_sign(modifiers, operands),
            _ => self.test(modifiers, operands),
        }
    }

    /// The comparison of `a` and `b`, combined with a predicate if there is one,
    /// in a fresh predicate; and the same for its negation if that is wanted.
    fn tested(
        &mut self,
        modifiers: &Modifiers<'t>,
        rest: &[Operand<'t>],
        Comparison { ty, test, ftz, combine }: Comparison,
        negation: bool,
    ) -> Result<(u32, Option<u32>), PtxError> {
        let run = self.require_handler(modifiers, comparison(self.isa, ty, test, ftz))?;
        let (a, b, c) = match (rest, combine) {
            ([a, b], None) => (a, b, None),
            ([a, b, c], Some(combine)) => (a, b, Some((self.plain_predicate(c)?, combine))),
            _ => return self.position.operands("the number of operands is wrong"),
        };
        let (a, b) = (self.value(a, ty)?, self.value(b, ty)?);
        let mut found = self.allocate_predicate()?;
        self.emit2(run, found, a, b);
        let mut other = None;
        if negation {
            let negated = self.allocate_predicate()?;
            let run = predicates(self.isa, |a, _| !a);
            self.emit2(run, negated, found, found);
            other = Some(negated);
        }
        if let Some((c, combine)) = c {
            found = self.combined(found, c, combine)?;
            other = other.map(|other| self.combined(other, c, combine)).transpose()?;
        }
        Ok((found, other))
    }

    fn combined(&mut self, a: u32, b: u32, combine: Combine) -> Result<u32, PtxError> {
        let d = self.allocate_predicate()?;
        let run = match combine {
            Combine::And => predicates(self.isa, |a, b| a & b),
            Combine::Or => predicates(self.isa, |a, b| a | b),
            Combine::Xor => predicates(self.isa, |a, b| a ^ b),
        };
        self.emit2(run, d, a, b);
        Ok(d)
    }

    fn set_predicate(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let test = modifiers.take_required("a comparison", &TESTS)?;
        let combine = modifiers.take_one_of(&[("and", Combine::And), ("or", Combine::Or), ("xor", Combine::Xor)]);
        let ftz = modifiers.take_flag("ftz");
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        let Some((target, rest)) = operands.split_first() else {
            return self.position.operands("a predicate is needed here");
        };
        if let (Operand::Name(_), None, [a, b]) = (target, combine, rest) {
            // What nearly every comparison is: one op.
            let run = self.require_handler(modifiers, comparison(self.isa, ty, test, ftz))?;
            let (a, b) = (self.value(a, ty)?, self.value(b, ty)?);
            let d = self.predicate_target(target)?;
            self.emit2(run, d, a, b);
            return Ok(());
        }
        let (first, second) = match target {
            Operand::Pair(first, second) => (&**first, Some(&**second)),
            other => (other, None),
        };
        let (p, q) = self.tested(modifiers, rest, Comparison { ty, test, ftz, combine }, second.is_some())?;
        let run = predicates(self.isa, |a, _| a);
        let d = self.predicate_target(first)?;
        self.emit2(run, d, p, p);
        if let (Some(second), Some(q)) = (second, q) {
            let d = self.predicate_target(second)?;
            self.emit2(run, d, q, q);
        }
        Ok(())
    }

    fn set(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let test = modifiers.take_required("a comparison", &TESTS)?;
        let combine = modifiers.take_one_of(&[("and", Combine::And), ("or", Combine::Or), ("xor", Combine::Xor)]);
        let ftz = modifiers.take_flag("ftz");
        let to = modifiers.take_type()?;
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        let Some((target, rest)) = operands.split_first() else {
            return self.position.operands("a register is needed here");
        };
        let (p, _) = self.tested(modifiers, rest, Comparison { ty, test, ftz, combine }, false)?;
        let truth = match to {
            Type::F32 => u64::from(1.0_f32.to_bits()),
            Type::U32 | Type::S32 => u64::from(u32::MAX),
            _ => return modifiers.unsupported(),
        };
        let (a, b) = (self.constant(truth, false)?, self.constant(0, false)?);
        let d = self.target_register(target, to)?;
        let run = with_predicate(self.isa, |a: u32, b: u32, p| if p { a } else { b });
        self.emit3(run, d, a, b, p);
        Ok(())
    }

    fn select(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        let [d, a, b, c] = self.expect_operands::<4>(operands)?;
        if matches!(ty, Type::Pred | Type::B128) {
            return modifiers.unsupported();
        }
        let (a, b) = (self.value(a, ty)?, self.value(b, ty)?);
        let c = self.plain_predicate(c)?;
        let d = self.target_register(d, ty)?;
        let run = if ty.bytes() == 8 {
            with_predicate(self.isa, |a: u64, b: u64, p| if p { a } else { b })
        } else {
            with_predicate(self.isa, |a: u32, b: u32, p| if p { a } else { b })
        };
        self.emit3(run, d, a, b, c);
        Ok(())
    }

    fn select_by_sign(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let ftz = modifiers.take_flag("ftz");
        let ty = modifiers.take_type()?;
        let by = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        let [d, a, b, c] = self.expect_operands::<4>(operands)?;
        let (a, b, c) = (self.value(a, ty)?, self.value(b, ty)?, self.value(c, by)?);
        let d = self.target_register(d, ty)?;
        let isa = self.isa;
        let run = match (ty.bytes(), by, ftz) {
            (8, Type::S32, _) => ternary(isa, |a: u64, b: u64, c: i32| if c >= 0 { a } else { b }),
            (_, Type::S32, _) => ternary(isa, |a: u32, b: u32, c: i32| if c >= 0 { a } else { b }),
            (8, Type::F32, true) => ternary(isa, |a: u64, b: u64, c: f32| if flush(c) >= 0.0 { a } else { b }),
            (_, Type::F32, true) => ternary(isa, |a: u32, b: u32, c: f32| if flush(c) >= 0.0 { a } else { b }),
            (8, Type::F32, false) => ternary(isa, |a: u64, b: u64, c: f32| if c >= 0.0 { a } else { b }),
            (_, Type::F32, false) => ternary(isa, |a: u32, b: u32, c: f32| if c >= 0.0 { a } else { b }),
            _ => return modifiers.unsupported(),
        };
        self.emit3(run, d, a, b, c);
        Ok(())
    }

    fn test(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let kinds = [("finite", 0), ("infinite", 1), ("number", 2), ("notanumber", 3), ("normal", 4), ("subnormal", 5)];
        let kind = modifiers.take_required("a property", &kinds)?;
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        let [d, a] = self.expect_operands::<2>(operands)?;
        let isa = self.isa;
        let run = match kind {
            0 => per_type!(isa, ty, compare, [F32 => f32, F64 => f64], |a, _b| a.is_finite()),
            1 => per_type!(isa, ty, compare, [F32 => f32, F64 => f64], |a, _b| a.is_infinite()),
            2 => per_type!(isa, ty, compare, [F32 => f32, F64 => f64], |a, _b| !a.is_nan()),
            3 => per_type!(isa, ty, compare, [F32 => f32, F64 => f64], |a, _b| a.is_nan()),
            // Zero counts as normal here.
            4 => per_type!(isa, ty, compare, [F32 => f32, F64 => f64], |a, _b| a.is_normal() || a == 0.0),
            _ => per_type!(isa, ty, compare, [F32 => f32, F64 => f64], |a, _b| a.is_subnormal()),
        };
        let run = self.require_handler(modifiers, run)?;
        let a = self.value(a, ty)?;
        let d = self.predicate_target(d)?;
        self.emit2(run, d, a, a);
        Ok(())
    }
}

fn comparison(isa: Isa, ty: Type, test: Test, ftz: bool) -> Option<Handler> {
    if ty == Type::F32 && ftz {
        return Some(match test {
            Test::Eq => compare(isa, |a: f32, b: f32| flush(a) == flush(b)),
            Test::Ne => compare(isa, |a: f32, b: f32| !(flush(a) == flush(b) || a.is_nan() || b.is_nan())),
            Test::Lt => compare(isa, |a: f32, b: f32| flush(a) < flush(b)),
            Test::Le => compare(isa, |a: f32, b: f32| flush(a) <= flush(b)),
            Test::Gt => compare(isa, |a: f32, b: f32| flush(a) > flush(b)),
            Test::Ge => compare(isa, |a: f32, b: f32| flush(a) >= flush(b)),
            Test::Equ => compare(isa, |a: f32, b: f32| flush(a) == flush(b) || a.is_nan() || b.is_nan()),
            Test::Neu => compare(isa, |a: f32, b: f32| flush(a) != flush(b)),
            Test::Ltu => compare(isa, |a: f32, b: f32| flush(a) < flush(b) || a.is_nan() || b.is_nan()),
            Test::Leu => compare(isa, |a: f32, b: f32| flush(a) <= flush(b) || a.is_nan() || b.is_nan()),
            Test::Gtu => compare(isa, |a: f32, b: f32| flush(a) > flush(b) || a.is_nan() || b.is_nan()),
            Test::Geu => compare(isa, |a: f32, b: f32| flush(a) >= flush(b) || a.is_nan() || b.is_nan()),
            Test::Num => compare(isa, |a: f32, b: f32| !(a.is_nan() || b.is_nan())),
            Test::Nan => compare(isa, |a: f32, b: f32| a.is_nan() || b.is_nan()),
        });
    }
    if ty.is_float() {
        return match test {
            Test::Eq => per_type!(isa, ty, compare, [F32 => f32, F64 => f64], |a, b| a == b),
            Test::Ne => {
                per_type!(isa, ty, compare, [F32 => f32, F64 => f64], |a, b| !(a == b || a.is_nan() || b.is_nan()))
            }
            Test::Lt => per_type!(isa, ty, compare, [F32 => f32, F64 => f64], |a, b| a < b),
            Test::Le => per_type!(isa, ty, compare, [F32 => f32, F64 => f64], |a, b| a <= b),
            Test::Gt => per_type!(isa, ty, compare, [F32 => f32, F64 => f64], |a, b| a > b),
            Test::Ge => per_type!(isa, ty, compare, [F32 => f32, F64 => f64], |a, b| a >= b),
            Test::Equ => {
                per_type!(isa, ty, compare, [F32 => f32, F64 => f64], |a, b| a == b || a.is_nan() || b.is_nan())
            }
            Test::Neu => per_type!(isa, ty, compare, [F32 => f32, F64 => f64], |a, b| a != b),
            Test::Ltu => {
                per_type!(isa, ty, compare, [F32 => f32, F64 => f64], |a, b| a < b || a.is_nan() || b.is_nan())
            }
            Test::Leu => {
                per_type!(isa, ty, compare, [F32 => f32, F64 => f64], |a, b| a <= b || a.is_nan() || b.is_nan())
            }
            Test::Gtu => {
                per_type!(isa, ty, compare, [F32 => f32, F64 => f64], |a, b| a > b || a.is_nan() || b.is_nan())
            }
            Test::Geu => {
                per_type!(isa, ty, compare, [F32 => f32, F64 => f64], |a, b| a >= b || a.is_nan() || b.is_nan())
            }
            Test::Num => per_type!(isa, ty, compare, [F32 => f32, F64 => f64], |a, b| !(a.is_nan() || b.is_nan())),
            Test::Nan => per_type!(isa, ty, compare, [F32 => f32, F64 => f64], |a, b| a.is_nan() || b.is_nan()),
        };
    }
    macro_rules! integers {
        (|$a:ident, $b:ident| $body:expr) => {
            per_type!(isa, ty, compare, [U16 | B16 => u16, S16 => i16, U32 | B32 => u32, S32 => i32, U64 | B64 => u64, S64 => i64], |$a, $b| $body)
        };
    }
    match test {
        Test::Eq => integers!(|a, b| a == b),
        Test::Ne => integers!(|a, b| a != b),
        Test::Lt => integers!(|a, b| a < b),
        Test::Le => integers!(|a, b| a <= b),
        Test::Gt => integers!(|a, b| a > b),
        Test::Ge => integers!(|a, b| a >= b),
        _ => None,
    }
}
