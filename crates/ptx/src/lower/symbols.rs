//! What names stand for, and operands as rows of registers.

use super::FunctionLowering;
use crate::ast::{Operand, ParsedVariable, Registers, Signature, StateSpace, Type};
use crate::error::{PtxError, TextPosition};
use crate::lanes::unary;
use crate::limits;
use crate::program::{Special, Value};
use std::collections::HashMap;

/// A register: its type, and its offset in the frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameRegister {
    pub ty: Type,
    pub at: u32,
}

/// What a name stands for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Symbol {
    Register(FrameRegister),
    /// A module variable of global or constant memory.
    Variable(u32),
    Shared(u32),
    /// An offset in the local frame; parameters of device functions are there too.
    Local(u32),
    /// An offset in the kernel's parameters.
    Param(u32),
    Function(u32),
}

/// A range `%r<10>`; a member of it gets a register when it is first named.
struct RegisterRange<'t> {
    prefix: &'t str,
    ty: Type,
    count: u32,
}

/// The names of one pair of braces.
pub(crate) struct NameScope<'t> {
    pub id: usize,
    names: HashMap<&'t str, Symbol>,
    ranges: Vec<RegisterRange<'t>>,
    pub tables: HashMap<&'t str, Vec<&'t str>>,
    pub prototypes: HashMap<&'t str, CallLayout>,
}

impl NameScope<'_> {
    pub fn new(id: usize) -> Self {
        NameScope { id, names: HashMap::new(), ranges: Vec::new(), tables: HashMap::new(), prototypes: HashMap::new() }
    }
}

/// Where the values of a call lie in the callee's local frame.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallLayout {
    /// Offset and size of each return value, then of each input.
    pub returns: Vec<(u32, u32)>,
    pub inputs: Vec<(u32, u32)>,
    pub bytes: u32,
}

impl CallLayout {
    pub fn of(signature: &Signature<'_>) -> Result<CallLayout, PtxError> {
        let mut shape = CallLayout::default();
        for (formals, is_return) in [(&signature.returns, true), (&signature.inputs, false)] {
            for formal in formals {
                let placed = place_param(&mut shape.bytes, &formal.variable)?;
                if is_return { &mut shape.returns } else { &mut shape.inputs }.push(placed);
            }
        }
        shape.bytes = shape.bytes.next_multiple_of(16);
        Ok(shape)
    }
}

/// Gives a parameter its offset behind those before it.
pub(crate) fn place_param(end: &mut u32, variable: &ParsedVariable<'_>) -> Result<(u32, u32), PtxError> {
    // A predicate has no bytes, but a slot.
    let bytes = variable.bytes().max(u64::from(variable.ty == Type::Pred));
    let offset = u64::from(*end).next_multiple_of(u64::from(variable.alignment()));
    let after = offset.saturating_add(bytes);
    if after > u64::from(limits::PARAM_BYTES_MAX) {
        return variable.position.limit("the bytes of parameters", u64::from(limits::PARAM_BYTES_MAX));
    }
    *end = after as u32;
    Ok((offset as u32, bytes as u32))
}

/// The names of the whole module.
#[derive(Default)]
pub(crate) struct ModuleSymbols<'t> {
    pub names: HashMap<&'t str, Symbol>,
    /// The call shape of each function.
    pub call_layouts: Vec<CallLayout>,
    /// Functions that have a body.
    pub defined: Vec<bool>,
    /// Shared variables of functions, after those of the module.
    pub inner_shared: HashMap<(u32, u32), u32>,
}

impl<'t> FunctionLowering<'_, 't> {
    pub(super) fn scope(&mut self) -> &mut NameScope<'t> {
        let last = self.scopes.len() - 1;
        &mut self.scopes[last]
    }

    pub(super) fn declare(&mut self, name: &'t str, symbol: Symbol, position: TextPosition) -> Result<(), PtxError> {
        if self.scope().names.insert(name, symbol).is_some() {
            return position.name(format!("`{name}` is declared twice"));
        }
        Ok(())
    }

    pub(super) fn declare_registers(&mut self, registers: &Registers<'t>) -> Result<(), PtxError> {
        self.position = registers.position;
        if registers.ty == Type::B128 {
            return registers.position.unsupported(".reg .b128");
        }
        match registers.count {
            Some(count) => {
                if self.scope().ranges.len() >= limits::RANGES_MAX {
                    return registers.position.limit("the ranges of registers in a scope", limits::RANGES_MAX as u64);
                }
                self.scope().ranges.push(RegisterRange { prefix: registers.name, ty: registers.ty, count });
                Ok(())
            }
            None => {
                let register = self.allocate_for(registers.ty)?;
                self.declare(registers.name, Symbol::Register(register), registers.position)
            }
        }
    }

    pub(super) fn declare_variable(&mut self, variable: &ParsedVariable<'t>) -> Result<(), PtxError> {
        self.position = variable.position;
        let symbol = match variable.space {
            StateSpace::Local | StateSpace::Param => Symbol::Local(self.reserve_local(variable)?),
            StateSpace::Shared | StateSpace::Global | StateSpace::Const => {
                let key = (variable.position.line, variable.position.column);
                match self.symbols.inner_shared.get(&key) {
                    Some(&index) if variable.space == StateSpace::Shared => Symbol::Shared(index),
                    Some(&index) => Symbol::Variable(index),
                    None => return variable.position.name(format!("`{}` has no memory", variable.name)),
                }
            }
        };
        self.declare(variable.name, symbol, variable.position)
    }

    fn reserve_local(&mut self, variable: &ParsedVariable<'t>) -> Result<u32, PtxError> {
        let align = u64::from(variable.alignment().min(4096));
        let offset = u64::from(self.frame.local_bytes).next_multiple_of(align);
        let end = offset.saturating_add(variable.bytes());
        if end > u64::from(limits::LOCAL_BYTES_MAX) {
            return variable.position.limit("the local bytes of a thread", u64::from(limits::LOCAL_BYTES_MAX));
        }
        self.frame.local_bytes = (end as u32).next_multiple_of(16);
        Ok(offset as u32)
    }

    /// Looks a name up from the inside out.
    pub(super) fn find_symbol(&mut self, name: &'t str) -> Result<Option<Symbol>, PtxError> {
        for index in (0..self.scopes.len()).rev() {
            if let Some(symbol) = self.scopes[index].names.get(name) {
                return Ok(Some(*symbol));
            }
            let Some(ty) = self.scopes[index].in_range(name) else { continue };
            let symbol = Symbol::Register(self.allocate_for(ty)?);
            self.uses.registers += 1;
            self.scopes[index].names.insert(name, symbol);
            return Ok(Some(symbol));
        }
        Ok(self.symbols.names.get(name).copied())
    }

    pub(super) fn symbol(&mut self, name: &'t str) -> Result<Symbol, PtxError> {
        match self.find_symbol(name)? {
            Some(symbol) => Ok(symbol),
            None => self.position.name(format!("`{name}` is not declared")),
        }
    }

    pub(super) fn register(&mut self, operand: &Operand<'t>) -> Result<FrameRegister, PtxError> {
        match operand {
            Operand::Name(name) => match self.symbol(name)? {
                Symbol::Register(register) => Ok(register),
                _ => self.position.operands(format!("`{name}` is not a register")),
            },
            _ => self.position.operands("a register is needed here"),
        }
    }

    pub(super) fn predicate_named(&mut self, name: &'t str) -> Result<u32, PtxError> {
        match self.symbol(name)? {
            Symbol::Register(FrameRegister { ty: Type::Pred, at }) => Ok(at),
            _ => self.position.operands(format!("`{name}` is not a predicate")),
        }
    }

    /// A predicate to read: its offset, and all ones if it is negated.
    pub(super) fn predicate(&mut self, operand: &Operand<'t>) -> Result<(u32, u32), PtxError> {
        match operand {
            Operand::Name(name) => Ok((self.predicate_named(name)?, 0)),
            Operand::Not(name) => Ok((self.predicate_named(name)?, u32::MAX)),
            Operand::Int(value) => {
                // The words of a constant row are all the same, so the first is a predicate.
                let at = self.constant(if *value != 0 { u64::from(u32::MAX) } else { 0 }, false)?;
                Ok((at, 0))
            }
            _ => self.position.operands("a predicate is needed here"),
        }
    }

    /// A predicate to write; for `_` a fresh one that nothing reads.
    pub(super) fn predicate_target(&mut self, operand: &Operand<'t>) -> Result<u32, PtxError> {
        match operand {
            Operand::Name("_") => self.allocate_predicate(),
            Operand::Name(name) => self.predicate_named(name),
            _ => self.position.operands("a predicate is needed here"),
        }
    }

    /// A value of type `ty` to read, as the offset of a row of that width.
    pub(super) fn value(&mut self, operand: &Operand<'t>, ty: Type) -> Result<u32, PtxError> {
        let wide = ty.bytes() == 8;
        match operand {
            Operand::Int(value) if ty.is_float() => {
                let float = *value as i64 as f64;
                let bits = if wide { float.to_bits() } else { u64::from((float as f32).to_bits()) };
                self.constant(bits, wide)
            }
            Operand::Int(value) => self.constant(*value, wide),
            Operand::F32(bits) if wide => self.constant(f64::from(f32::from_bits(*bits)).to_bits(), true),
            Operand::F32(bits) => self.constant(u64::from(*bits), false),
            Operand::F64(bits) if wide => self.constant(*bits, true),
            Operand::F64(bits) => self.constant(u64::from((f64::from_bits(*bits) as f32).to_bits()), false),
            Operand::Name(name) => self.named_value(name, 0, wide),
            Operand::Offset(name, addend) => self.named_value(name, *addend, wide),
            Operand::Part(name, part) => self.special_value(name, part, wide),
            _ => self.position.operands("a value is needed here"),
        }
    }

    fn named_value(&mut self, name: &'t str, addend: i64, wide: bool) -> Result<u32, PtxError> {
        let Some(symbol) = self.find_symbol(name)? else {
            if name == "WARP_SZ" {
                return self.constant(32_u64.wrapping_add_signed(addend), wide);
            }
            return self.special_value(name, "", wide);
        };
        match symbol {
            Symbol::Register(_) if addend != 0 => {
                self.position.operands(format!("`{name}` is a register, not an address"))
            }
            Symbol::Register(register) => self.fit_width(name, register, wide),
            symbol => {
                let value = self.address_value(symbol, addend);
                self.pooled(value, wide)
            }
        }
    }

    /// A register read with another width than its own: narrower is allowed.
    fn fit_width(&mut self, name: &str, register: FrameRegister, wide: bool) -> Result<u32, PtxError> {
        match (register.ty, register.ty.bytes() == 8, wide) {
            (Type::Pred, ..) => self.position.operands(format!("`{name}` is a predicate, not a value")),
            (_, true, true) | (_, false, false) => Ok(register.at),
            (_, true, false) => {
                let narrow = self.allocate(false)?;
                let run = unary(self.isa, |a: u64| a as u32);
                // Reading is harmless for lanes that the guard leaves out.
                self.emit1(run, narrow, register.at);
                Ok(narrow)
            }
            (_, false, true) => {
                let bits = register.ty.bytes() * 8;
                self.position.operands(format!("`{name}` has {bits} bits, and 64 are needed"))
            }
        }
    }

    /// The address of what a name stands for.
    pub(super) fn address_value(&mut self, symbol: Symbol, addend: i64) -> Value {
        match symbol {
            Symbol::Register(_) => Value::Bits(0),
            Symbol::Variable(index) => Value::Variable { index, addend },
            Symbol::Shared(index) => {
                self.uses.shared.push(index);
                Value::Shared { index, addend }
            }
            Symbol::Local(offset) => Value::Local(offset.wrapping_add(addend as u32)),
            Symbol::Param(offset) => Value::Bits(u64::from(offset).wrapping_add_signed(addend)),
            Symbol::Function(index) => {
                self.uses.addresses_taken.push(index);
                Value::Function(index)
            }
        }
    }

    fn special_value(&mut self, name: &str, part: &str, wide: bool) -> Result<u32, PtxError> {
        if let Some(special) = special(name, part) {
            return self.pooled(Value::Special(special), wide);
        }
        if name.strip_prefix("%envreg").is_some_and(|number| number.parse::<u32>().is_ok_and(|number| number < 32)) {
            return self.constant(0, wide);
        }
        let dot = if part.is_empty() { "" } else { "." };
        self.position.name(format!("`{name}{dot}{part}` is not declared"))
    }

    /// A register to write values of width `wide`; `_` is a fresh one.
    pub(super) fn target_register(&mut self, operand: &Operand<'t>, ty: Type) -> Result<u32, PtxError> {
        let wide = ty.bytes() == 8;
        if matches!(operand, Operand::Name("_")) {
            return self.allocate(wide);
        }
        let register = self.register(operand)?;
        if register.ty == Type::Pred || (register.ty.bytes() == 8) != wide {
            let (has, needs) = (register.ty.bytes() * 8, ty.bytes() * 8);
            return self.position.operands(format!("the result has {needs} bits, its register {has}"));
        }
        if wide {
            self.last_writes.insert(register.at, self.ops.len() as u32);
        }
        Ok(register.at)
    }

    /// Like [`Self::target_register`], but a wider register is allowed: then the row to
    /// write first, and what has to follow.
    pub(super) fn wider_target_register(
        &mut self,
        operand: &Operand<'t>,
        ty: Type,
    ) -> Result<(u32, Option<Widen>), PtxError> {
        if ty.bytes() < 8
            && let Operand::Name(name) = operand
            && *name != "_"
        {
            let register = self.register(operand)?;
            if register.ty.bytes() == 8 {
                let narrow = self.allocate(false)?;
                return Ok((narrow, Some(Widen { from: narrow, to: register.at, signed: ty.is_signed() })));
            }
        }
        Ok((self.target_register(operand, ty)?, None))
    }

    pub(super) fn widen(&mut self, widen: Option<Widen>) {
        let Some(Widen { from, to, signed }) = widen else { return };
        let run = if signed { unary(self.isa, |a: i32| i64::from(a)) } else { unary(self.isa, |a: u32| u64::from(a)) };
        self.emit1(run, to, from);
    }
}

/// A narrow row that still has to go to a wide register.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Widen {
    from: u32,
    to: u32,
    signed: bool,
}

impl NameScope<'_> {
    fn in_range(&self, name: &str) -> Option<Type> {
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        // `%r<3>` has `%r0` to `%r2`; a prefix may itself end in digits.
        self.ranges.iter().find_map(|range| {
            let number = name.strip_prefix(range.prefix)?;
            let plain = number == "0" || !number.starts_with('0');
            let inside = range.prefix.len() >= prefix.len()
                && plain
                && number.bytes().all(|byte| byte.is_ascii_digit())
                && number.parse::<u32>().is_ok_and(|number| number < range.count);
            inside.then_some(range.ty)
        })
    }
}

fn special(name: &str, part: &str) -> Option<Special> {
    let axis = match part {
        "x" | "" => 0,
        "y" => 1,
        "z" => 2,
        _ => return None,
    };
    Some(match (name, part.is_empty()) {
        ("%tid", false) => Special::Tid(axis),
        ("%ntid", false) => Special::Ntid(axis),
        ("%ctaid", false) => Special::Ctaid(axis),
        ("%nctaid", false) => Special::Nctaid(axis),
        ("%laneid", true) => Special::LaneId,
        ("%warpid", true) => Special::WarpId,
        ("%nwarpid", true) => Special::NWarpId,
        ("%smid", true) => Special::SmId,
        ("%nsmid", true) => Special::NSmId,
        ("%gridid", true) => Special::GridId,
        ("%lanemask_eq", true) => Special::LaneMaskEq,
        ("%lanemask_le", true) => Special::LaneMaskLe,
        ("%lanemask_lt", true) => Special::LaneMaskLt,
        ("%lanemask_ge", true) => Special::LaneMaskGe,
        ("%lanemask_gt", true) => Special::LaneMaskGt,
        ("%dynamic_smem_size", true) => Special::DynamicShared,
        ("%total_smem_size", true) => Special::TotalShared,
        _ => return None,
    })
}
