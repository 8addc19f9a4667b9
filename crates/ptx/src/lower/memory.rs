//! Lowers loads, stores, atomics, copies and conversions of addresses.

use super::FunctionLowering;
use super::modifiers::Modifiers;
use super::symbols::Symbol;
use crate::ast::{Operand, StateSpace, Type};
use crate::error::PtxError;
use crate::exec::load_store::{self as run, FLAT, LOCAL, PARAM, SHARED};
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

const SPACES: [(&str, StateSpace); 7] = [
    ("global", StateSpace::Global),
    ("const", StateSpace::Const),
    ("shared", StateSpace::Shared),
    ("shared::cta", StateSpace::Shared),
    ("local", StateSpace::Local),
    ("param", StateSpace::Param),
    ("param::entry", StateSpace::Param),
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

impl<'t> FunctionLowering<'_, 't> {
    fn address(&mut self, operand: &Operand<'t>, space: Option<StateSpace>) -> Result<Address, PtxError> {
        let Operand::Address(name, offset) = operand else {
            return self.position.operands("an address in brackets is needed here");
        };
        let code = match space {
            Some(StateSpace::Shared) => SHARED,
            Some(StateSpace::Local) => LOCAL,
            Some(StateSpace::Param) if self.function.is_kernel => PARAM,
            Some(StateSpace::Param) => LOCAL,
            _ => FLAT,
        };
        let Some(name) = name else {
            let base = self.constant(0, true)?;
            return Ok(Address { base, wide: true, offset: *offset, space: code });
        };
        let symbol = self.symbol(name)?;
        // A kernel's parameters and the arguments it passes are both `.param`.
        let code = match (space, symbol) {
            (Some(StateSpace::Param), Symbol::Local(_)) => LOCAL,
            (Some(StateSpace::Param), Symbol::Param(_)) => PARAM,
            _ => code,
        };
        let (base, wide) = match symbol {
            Symbol::Register(register) if register.ty == Type::Pred => {
                return self.position.operands(format!("`{name}` is a predicate, not an address"));
            }
            Symbol::Register(register) if register.ty.bytes() == 8 => (register.at, true),
            Symbol::Register(register) if code == SHARED => (register.at, false),
            Symbol::Register(register) => {
                let wide = self.allocate(true)?;
                let run = unary(self.isa, |a: u32| u64::from(a));
                self.emit1(run, wide, register.at);
                (wide, true)
            }
            symbol if code == FLAT => {
                let value = self.address_value(symbol, 0);
                (self.pooled(value, true)?, true)
            }
            symbol => {
                let value = self.address_value(symbol, 0);
                (self.pooled(value, true)?, true)
            }
        };
        if code == FLAT && matches!(symbol, Symbol::Shared(_) | Symbol::Local(_) | Symbol::Param(_)) {
            return self.position.operands(format!("`{name}` is in another space than this access"));
        }
        Ok(Address { base, wide, offset: *offset, space: code })
    }

    fn vector(modifiers: &mut Modifiers<'t>) -> usize {
        modifiers.take_one_of(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1)
    }

    pub(super) fn load(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let acquires = modifiers.take_flag("acquire");
        modifiers.discard_hints();
        let space = modifiers.take_one_of(&SPACES);
        let count = Self::vector(modifiers);
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        let (target, address) = match operands {
            [target, address] => (target, address),
            _ => return self.position.operands(format!("{} operands given, 2 needed", operands.len())),
        };
        let address = self.address(address, space)?;
        let handler = access(self.isa, true, (ty.bytes(), ty.is_signed()), address.space, address.wide, count);
        let handler = self.require_handler(modifiers, handler)?;
        let targets = match target {
            Operand::Vector(parts) => parts.as_slice(),
            one => std::slice::from_ref(one),
        };
        if targets.len() != count {
            return self.position.operands(format!("{} registers given, {count} needed", targets.len()));
        }
        let mut rows = [NONE; 4];
        let mut later = Vec::new();
        for (row, target) in rows.iter_mut().zip(targets) {
            let (at, widen) = self.wider_target_register(target, ty)?;
            *row = at;
            later.push(widen);
        }
        let [d, b, c, e] = rows;
        let op = Op { d, a: address.base, b, c, e, imm: address.offset as u64, ..self.blank_op(handler) };
        self.emit(op);
        later.into_iter().for_each(|widen| self.widen(widen));
        if acquires {
            self.emit_fence();
        }
        Ok(())
    }

    pub(super) fn store(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        if modifiers.take_flag("release") {
            self.emit_fence();
        }
        modifiers.discard_hints();
        if modifiers.take_flag("async") || modifiers.take_flag("bulk") {
            return modifiers.unsupported();
        }
        let space =
            modifiers.take_one_of(&SPACES).or_else(|| modifiers.take_flag("param::func").then_some(StateSpace::Param));
        let count = Self::vector(modifiers);
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        let (address, source) = match operands {
            [address, source] => (address, source),
            _ => return self.position.operands(format!("{} operands given, 2 needed", operands.len())),
        };
        if space == Some(StateSpace::Const) {
            return modifiers.unsupported();
        }
        let address = self.address(address, space)?;
        let handler = access(self.isa, false, (ty.bytes(), false), address.space, address.wide, count);
        let handler = self.require_handler(modifiers, handler)?;
        let sources = match source {
            Operand::Vector(parts) => parts.as_slice(),
            one => std::slice::from_ref(one),
        };
        if sources.len() != count {
            return self.position.operands(format!("{} values given, {count} needed", sources.len()));
        }
        let mut rows = [NONE; 4];
        for (row, source) in rows.iter_mut().zip(sources) {
            *row = self.value(source, ty)?;
        }
        let [d, b, c, e] = rows;
        let op = Op { d, a: address.base, b, c, e, imm: address.offset as u64, ..self.blank_op(handler) };
        self.emit(op);
        Ok(())
    }

    pub(super) fn atomic(
        &mut self,
        is_reduction: bool,
        modifiers: &mut Modifiers<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), PtxError> {
        modifiers.discard_hints();
        let space = modifiers.take_one_of(&SPACES);
        let names = ["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"];
        let Some(name) = names.into_iter().find(|name| modifiers.take_flag(name)) else {
            return modifiers.unsupported();
        };
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        let (target, rest) = match operands {
            rest if is_reduction => (None, rest),
            [target, rest @ ..] => (Some(target), rest),
            [] => return self.position.operands("an address is needed here"),
        };
        let (address, b, c) = match rest {
            [address, b] if name != "cas" => (address, b, None),
            [address, b, c] if name == "cas" => (address, b, Some(c)),
            _ => return self.position.operands("the number of operands is wrong"),
        };
        let address = self.address(address, space)?;
        let base = self.wide_base(&address)?;
        let run = super::warp::atomic_handler(name, ty, address.space);
        let run = self.require_handler(modifiers, run)?;
        let b = self.value(b, ty)?;
        let c = match c {
            Some(c) => self.value(c, ty)?,
            None => NONE,
        };
        let d = match target {
            None | Some(Operand::Name("_")) => NONE,
            Some(target) => self.target_register(target, ty)?,
        };
        let op = Op { d, a: base, b, c, imm: address.offset as u64, ..self.blank_op(run) };
        self.emit(op);
        Ok(())
    }

    fn wide_base(&mut self, address: &Address) -> Result<u32, PtxError> {
        if address.wide {
            return Ok(address.base);
        }
        let wide = self.allocate(true)?;
        let run = unary(self.isa, |a: u32| u64::from(a));
        self.emit1(run, wide, address.base);
        Ok(wide)
    }

    /// `cp.async` copies at once, so its groups are always complete.
    pub(super) fn copy(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        if !modifiers.take_flag("async") {
            return modifiers.unsupported();
        }
        if modifiers.take_flag("commit_group") || modifiers.take_flag("wait_group") || modifiers.take_flag("wait_all") {
            return modifiers.expect_none_left();
        }
        modifiers.discard_hints();
        let known = modifiers.take_flag("shared") || modifiers.take_flag("shared::cta");
        if !known || !modifiers.take_flag("global") {
            return modifiers.unsupported();
        }
        modifiers.expect_none_left()?;
        let (to, from, bytes, wanted) = match operands {
            [to, from, Operand::Int(bytes @ (4 | 8 | 16))] => (to, from, *bytes, None),
            [to, from, Operand::Int(bytes @ (4 | 8 | 16)), wanted] => (to, from, *bytes, Some(wanted)),
            _ => return modifiers.unsupported(),
        };
        let to = self.address(to, Some(StateSpace::Shared))?;
        let a = self.wide_base(&to)?;
        let from = self.address(from, None)?;
        let c = match wanted {
            Some(wanted) => self.value(wanted, Type::U32)?,
            None => NONE,
        };
        let (Ok(d), Ok(offset)) = (u32::try_from(to.offset), i32::try_from(from.offset)) else {
            return self.position.operands("an offset of `cp.async` is too large");
        };
        let op = Op { a, b: from.base, c, d, e: offset as u32, imm: bytes, ..self.blank_op(control::copy_async) };
        self.emit(op);
        Ok(())
    }

    pub(super) fn spaces(
        &mut self,
        name: &str,
        modifiers: &mut Modifiers<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), PtxError> {
        if name == "isspacep" {
            return self.is_in_space(modifiers, operands);
        }
        let to_space = modifiers.take_flag("to");
        let space = modifiers.take_required("a space", &SPACES)?;
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        let [d, a] = self.expect_operands::<2>(operands)?;
        if ty != Type::U64 {
            return modifiers.unsupported();
        }
        let is_local = matches!(a, Operand::Name(name) if matches!(self.find_symbol(name)?, Some(Symbol::Local(_))));
        let a = self.value(a, ty)?;
        let d = self.target_register(d, ty)?;
        let isa = self.isa;
        let run = match (space, to_space) {
            (StateSpace::Global | StateSpace::Const, _) => unary(isa, |a: u64| a),
            (StateSpace::Shared, false) => unary(isa, |a: u64| a.wrapping_add(SHARED_WINDOW)),
            (StateSpace::Shared, true) => unary(isa, |a: u64| a.wrapping_sub(SHARED_WINDOW)),
            (StateSpace::Param, false) if self.function.is_kernel && !is_local => {
                unary(isa, |a: u64| a.wrapping_add(PARAM_WINDOW))
            }
            (StateSpace::Param, true) if self.function.is_kernel => unary(isa, |a: u64| a.wrapping_sub(PARAM_WINDOW)),
            (StateSpace::Local | StateSpace::Param, false) => unary(isa, |a: u64| a.wrapping_add(LOCAL_WINDOW)),
            (StateSpace::Local | StateSpace::Param, true) => unary(isa, |a: u64| a.wrapping_sub(LOCAL_WINDOW)),
        };
        self.emit1(run, d, a);
        Ok(())
    }

    fn is_in_space(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let space = modifiers.take_required("a space", &SPACES)?;
        modifiers.expect_none_left()?;
        let [d, a] = self.expect_operands::<2>(operands)?;
        let a = self.value(a, Type::U64)?;
        let d = self.predicate_target(d)?;
        let isa = self.isa;
        let run = match space {
            StateSpace::Shared => compare(isa, |a: u64, _: u64| a.wrapping_sub(SHARED_WINDOW) < WINDOW_BYTES),
            StateSpace::Local => compare(isa, |a: u64, _: u64| a.wrapping_sub(LOCAL_WINDOW) < WINDOW_BYTES),
            StateSpace::Param => compare(isa, |a: u64, _: u64| a.wrapping_sub(PARAM_WINDOW) < WINDOW_BYTES),
            // Only the caller knows whether memory is constant.
            StateSpace::Const => return modifiers.unsupported(),
            StateSpace::Global => compare(isa, |a: u64, _: u64| a < SHARED_WINDOW),
        };
        self.emit2(run, d, a, a);
        Ok(())
    }
}
