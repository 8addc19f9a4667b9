//! Lowers loads, stores, atomics, copies and conversions of addresses.

use super::Lower;
use super::names::Thing;
use super::words::Words;
use crate::ast::{Operand, Space, Type};
use crate::error::Error;
use crate::exec::access::{self as run, FLAT, LOCAL, PARAM, SHARED};
use crate::exec::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, control, memory::WINDOW_BYTES};
use crate::lanes::{compare, unary};
use crate::op::{Handler, Isa, NONE, Op};

/// Where an access goes: the base register, its width, the offset, the space.
struct Address {
    base: u32,
    wide: bool,
    offset: i64,
    space: u8,
}

const SPACES: [(&str, Space); 7] = [
    ("global", Space::Global),
    ("const", Space::Const),
    ("shared", Space::Shared),
    ("shared::cta", Space::Shared),
    ("local", Space::Local),
    ("param", Space::Param),
    ("param::entry", Space::Param),
];

/// The handler for one access.
pub(super) fn access(
    isa: Isa,
    is_load: bool,
    (bytes, signed): (u32, bool),
    space: u8,
    wide_base: bool,
    count: usize,
) -> Option<Handler> {
    macro_rules! counted {
        ($what:ident, $element:ty, $base:ty, $space:expr) => {
            match count {
                1 => Some(run::$what::<$element, $base, $space, 1>(isa)),
                2 => Some(run::$what::<$element, $base, $space, 2>(isa)),
                4 => Some(run::$what::<$element, $base, $space, 4>(isa)),
                _ => None,
            }
        };
    }
    macro_rules! spaced {
        ($what:ident, $element:ty) => {
            match (space, wide_base) {
                (FLAT, _) => counted!($what, $element, u64, FLAT),
                (SHARED, true) => counted!($what, $element, u64, SHARED),
                (SHARED, false) => counted!($what, $element, u32, SHARED),
                (LOCAL, _) => counted!($what, $element, u64, LOCAL),
                _ => counted!($what, $element, u64, PARAM),
            }
        };
    }
    match (is_load, bytes, signed) {
        (true, 1, true) => spaced!(load, i8),
        (true, 1, false) => spaced!(load, u8),
        (true, 2, true) => spaced!(load, i16),
        (true, 2, false) => spaced!(load, u16),
        (true, 4, _) => spaced!(load, u32),
        (true, 8, _) => spaced!(load, u64),
        (false, 1, _) => spaced!(store, u8),
        (false, 2, _) => spaced!(store, u16),
        (false, 4, _) => spaced!(store, u32),
        (false, 8, _) => spaced!(store, u64),
        _ => None,
    }
}

impl<'t> Lower<'_, 't> {
    fn address(&mut self, operand: &Operand<'t>, space: Option<Space>) -> Result<Address, Error> {
        let Operand::Address(name, offset) = operand else {
            return self.place.operands("an address in brackets is needed here");
        };
        let code = match space {
            Some(Space::Shared) => SHARED,
            Some(Space::Local) => LOCAL,
            Some(Space::Param) if self.function.is_kernel => PARAM,
            Some(Space::Param) => LOCAL,
            _ => FLAT,
        };
        let Some(name) = name else {
            let base = self.constant(0, true)?;
            return Ok(Address { base, wide: true, offset: *offset, space: code });
        };
        let thing = self.thing(name)?;
        // A kernel's parameters and the arguments it passes are both `.param`.
        let code = match (space, thing) {
            (Some(Space::Param), Thing::Local(_)) => LOCAL,
            (Some(Space::Param), Thing::Param(_)) => PARAM,
            _ => code,
        };
        let (base, wide) = match thing {
            Thing::Register(register) if register.ty == Type::Pred => {
                return self.place.operands(format!("`{name}` is a predicate, not an address"));
            }
            Thing::Register(register) if register.ty.bytes() == 8 => (register.at, true),
            Thing::Register(register) if code == SHARED => (register.at, false),
            Thing::Register(register) => {
                let wide = self.allocate(true)?;
                let run = unary(self.isa, |a: u32| u64::from(a));
                self.emit1(run, wide, register.at);
                (wide, true)
            }
            thing if code == FLAT => {
                let value = self.address_value(thing, 0);
                (self.pooled(value, true)?, true)
            }
            thing => {
                let value = self.address_value(thing, 0);
                (self.pooled(value, true)?, true)
            }
        };
        if code == FLAT && matches!(thing, Thing::Shared(_) | Thing::Local(_) | Thing::Param(_)) {
            return self.place.operands(format!("`{name}` is in another space than this access"));
        }
        Ok(Address { base, wide, offset: *offset, space: code })
    }

    fn vector(words: &mut Words<'t>) -> usize {
        words.one_of(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1)
    }

    pub(super) fn load(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Error> {
        let acquires = words.flag("acquire");
        words.hints();
        let space = words.one_of(&SPACES);
        let count = Self::vector(words);
        let ty = words.ty()?;
        words.done()?;
        let (target, address) = match operands {
            [target, address] => (target, address),
            _ => return self.place.operands(format!("{} operands given, 2 needed", operands.len())),
        };
        let address = self.address(address, space)?;
        let handler = access(self.isa, true, (ty.bytes(), ty.is_signed()), address.space, address.wide, count);
        let handler = self.some(words, handler)?;
        let targets = match target {
            Operand::Vector(parts) => parts.as_slice(),
            one => std::slice::from_ref(one),
        };
        if targets.len() != count {
            return self.place.operands(format!("{} registers given, {count} needed", targets.len()));
        }
        let mut rows = [NONE; 4];
        let mut later = Vec::new();
        for (row, target) in rows.iter_mut().zip(targets) {
            let (at, widen) = self.wide_target(target, ty)?;
            *row = at;
            later.push(widen);
        }
        let [d, b, c, e] = rows;
        let op = Op { d, a: address.base, b, c, e, imm: address.offset as u64, ..self.blank(handler) };
        self.emit(op);
        later.into_iter().for_each(|widen| self.widen(widen));
        if acquires {
            self.emit_fence();
        }
        Ok(())
    }

    pub(super) fn store(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Error> {
        if words.flag("release") {
            self.emit_fence();
        }
        words.hints();
        if words.flag("async") || words.flag("bulk") {
            return words.unsupported();
        }
        let space = words.one_of(&SPACES).or_else(|| words.flag("param::func").then_some(Space::Param));
        let count = Self::vector(words);
        let ty = words.ty()?;
        words.done()?;
        let (address, source) = match operands {
            [address, source] => (address, source),
            _ => return self.place.operands(format!("{} operands given, 2 needed", operands.len())),
        };
        if space == Some(Space::Const) {
            return words.unsupported();
        }
        let address = self.address(address, space)?;
        let handler = access(self.isa, false, (ty.bytes(), false), address.space, address.wide, count);
        let handler = self.some(words, handler)?;
        let sources = match source {
            Operand::Vector(parts) => parts.as_slice(),
            one => std::slice::from_ref(one),
        };
        if sources.len() != count {
            return self.place.operands(format!("{} values given, {count} needed", sources.len()));
        }
        let mut rows = [NONE; 4];
        for (row, source) in rows.iter_mut().zip(sources) {
            *row = self.value(source, ty)?;
        }
        let [d, b, c, e] = rows;
        let op = Op { d, a: address.base, b, c, e, imm: address.offset as u64, ..self.blank(handler) };
        self.emit(op);
        Ok(())
    }

    pub(super) fn atomic(
        &mut self,
        is_reduction: bool,
        words: &mut Words<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), Error> {
        words.hints();
        let space = words.one_of(&SPACES);
        let names = ["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"];
        let Some(name) = names.into_iter().find(|name| words.flag(name)) else { return words.unsupported() };
        let ty = words.ty()?;
        words.done()?;
        let (target, rest) = match operands {
            rest if is_reduction => (None, rest),
            [target, rest @ ..] => (Some(target), rest),
            [] => return self.place.operands("an address is needed here"),
        };
        let (address, b, c) = match rest {
            [address, b] if name != "cas" => (address, b, None),
            [address, b, c] if name == "cas" => (address, b, Some(c)),
            _ => return self.place.operands("the number of operands is wrong"),
        };
        let address = self.address(address, space)?;
        let base = self.wide_base(&address)?;
        let run = super::warp::atomic_handler(name, ty, address.space);
        let run = self.some(words, run)?;
        let b = self.value(b, ty)?;
        let c = match c {
            Some(c) => self.value(c, ty)?,
            None => NONE,
        };
        let d = match target {
            None | Some(Operand::Name("_")) => NONE,
            Some(target) => self.target(target, ty)?,
        };
        let op = Op { d, a: base, b, c, imm: address.offset as u64, ..self.blank(run) };
        self.emit(op);
        Ok(())
    }

    fn wide_base(&mut self, address: &Address) -> Result<u32, Error> {
        if address.wide {
            return Ok(address.base);
        }
        let wide = self.allocate(true)?;
        let run = unary(self.isa, |a: u32| u64::from(a));
        self.emit1(run, wide, address.base);
        Ok(wide)
    }

    /// `cp.async` copies at once, so its groups are always complete.
    pub(super) fn copy(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Error> {
        if !words.flag("async") {
            return words.unsupported();
        }
        if words.flag("commit_group") || words.flag("wait_group") || words.flag("wait_all") {
            return words.done();
        }
        words.hints();
        let known = words.flag("shared") || words.flag("shared::cta");
        if !known || !words.flag("global") {
            return words.unsupported();
        }
        words.done()?;
        let (to, from, bytes, wanted) = match operands {
            [to, from, Operand::Int(bytes @ (4 | 8 | 16))] => (to, from, *bytes, None),
            [to, from, Operand::Int(bytes @ (4 | 8 | 16)), wanted] => (to, from, *bytes, Some(wanted)),
            _ => return words.unsupported(),
        };
        let to = self.address(to, Some(Space::Shared))?;
        let a = self.wide_base(&to)?;
        let from = self.address(from, None)?;
        let c = match wanted {
            Some(wanted) => self.value(wanted, Type::U32)?,
            None => NONE,
        };
        let (Ok(d), Ok(offset)) = (u32::try_from(to.offset), i32::try_from(from.offset)) else {
            return self.place.operands("an offset of `cp.async` is too large");
        };
        let op = Op { a, b: from.base, c, d, e: offset as u32, imm: bytes, ..self.blank(control::copy_async) };
        self.emit(op);
        Ok(())
    }

    pub(super) fn spaces(&mut self, name: &str, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Error> {
        if name == "isspacep" {
            return self.is_in_space(words, operands);
        }
        let to_space = words.flag("to");
        let space = words.need("a space", &SPACES)?;
        let ty = words.ty()?;
        words.done()?;
        let [d, a] = self.exactly::<2>(operands)?;
        if ty != Type::U64 {
            return words.unsupported();
        }
        let is_local = matches!(a, Operand::Name(name) if matches!(self.find(name)?, Some(Thing::Local(_))));
        let a = self.value(a, ty)?;
        let d = self.target(d, ty)?;
        let isa = self.isa;
        let run = match (space, to_space) {
            (Space::Global | Space::Const, _) => unary(isa, |a: u64| a),
            (Space::Shared, false) => unary(isa, |a: u64| a.wrapping_add(SHARED_WINDOW)),
            (Space::Shared, true) => unary(isa, |a: u64| a.wrapping_sub(SHARED_WINDOW)),
            (Space::Param, false) if self.function.is_kernel && !is_local => {
                unary(isa, |a: u64| a.wrapping_add(PARAM_WINDOW))
            }
            (Space::Param, true) if self.function.is_kernel => unary(isa, |a: u64| a.wrapping_sub(PARAM_WINDOW)),
            (Space::Local | Space::Param, false) => unary(isa, |a: u64| a.wrapping_add(LOCAL_WINDOW)),
            (Space::Local | Space::Param, true) => unary(isa, |a: u64| a.wrapping_sub(LOCAL_WINDOW)),
        };
        self.emit1(run, d, a);
        Ok(())
    }

    fn is_in_space(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Error> {
        let space = words.need("a space", &SPACES)?;
        words.done()?;
        let [d, a] = self.exactly::<2>(operands)?;
        let a = self.value(a, Type::U64)?;
        let d = self.predicate_target(d)?;
        let isa = self.isa;
        let run = match space {
            Space::Shared => compare(isa, |a: u64, _: u64| a.wrapping_sub(SHARED_WINDOW) < WINDOW_BYTES),
            Space::Local => compare(isa, |a: u64, _: u64| a.wrapping_sub(LOCAL_WINDOW) < WINDOW_BYTES),
            Space::Param => compare(isa, |a: u64, _: u64| a.wrapping_sub(PARAM_WINDOW) < WINDOW_BYTES),
            // Only the caller knows whether memory is constant.
            Space::Const => return words.unsupported(),
            Space::Global => compare(isa, |a: u64, _: u64| a < SHARED_WINDOW),
        };
        self.emit2(run, d, a, a);
        Ok(())
    }
}
