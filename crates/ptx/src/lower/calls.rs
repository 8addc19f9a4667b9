//! Lowers calls: values travel through the start of the callee's local frame.

use super::modifiers::Modifiers;
use super::symbols::{CallLayout, Symbol};
use super::{Flow, FunctionLowering};
use crate::ast::{Operand, Type};
use crate::error::PtxError;
use crate::exec::{control as run, external_functions, load_store};
use crate::op::{NONE, Op};
use crate::program::Value;

impl<'t> FunctionLowering<'_, 't> {
    /// Parameters of a kernel have offsets; those of a function lie at the start
    /// of its local frame, and go to registers if they were declared as such.
    pub(super) fn declare_formals(&mut self) -> Result<(), PtxError> {
        let function = self.function;
        let layout = CallLayout::of(&function.signature)?;
        if function.is_kernel {
            for (formal, (offset, _)) in function.signature.inputs.iter().zip(&layout.inputs) {
                self.declare(formal.variable.name, Symbol::Param(*offset), formal.variable.position)?;
            }
            return Ok(());
        }
        self.frame.local_bytes = layout.bytes;
        let returns = function.signature.returns.iter().zip(&layout.returns).map(|pair| (pair, false));
        let inputs = function.signature.inputs.iter().zip(&layout.inputs).map(|pair| (pair, true));
        for ((formal, &(offset, bytes)), is_input) in returns.chain(inputs) {
            let variable = &formal.variable;
            if !formal.register {
                self.declare(variable.name, Symbol::Local(offset), variable.position)?;
                continue;
            }
            if variable.ty == Type::Pred {
                return variable.position.unsupported("a predicate as a parameter");
            }
            let register = self.allocate_for(variable.ty)?;
            self.declare(variable.name, Symbol::Register(register), variable.position)?;
            if is_input {
                self.move_local(register.at, offset, bytes, true)?;
            } else {
                self.register_returns.push((register.at, offset, bytes));
            }
        }
        Ok(())
    }

    /// Moves a register from or to `offset` of the current local frame.
    fn move_local(&mut self, register: u32, offset: u32, bytes: u32, is_load: bool) -> Result<(), PtxError> {
        let base = self.pooled(Value::Local(0), true)?;
        let run = super::memory::access(self.isa, is_load, (bytes, false), load_store::LOCAL, true, 1);
        let Some(run) = run else {
            return self.position.operands("a value of this size cannot be passed in a register");
        };
        let op = Op { d: register, a: base, imm: u64::from(offset), ..self.blank_op(run) };
        self.emit(op);
        Ok(())
    }

    /// Before a function returns, its register results go to the local frame.
    pub(super) fn store_returns(&mut self) -> Result<(), PtxError> {
        for (register, offset, bytes) in self.register_returns.clone() {
            self.move_local(register, offset, bytes, false)?;
        }
        Ok(())
    }

    pub(super) fn call(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        modifiers.take_flag("uni");
        modifiers.expect_none_left()?;
        let (returns, rest) = match operands {
            [Operand::List(returns), rest @ ..] => (returns.as_slice(), rest),
            rest => (&[][..], rest),
        };
        let Some((Operand::Name(callee), rest)) = rest.split_first() else {
            return self.position.operands("a function is needed here");
        };
        let (inputs, rest) = match rest {
            [Operand::List(inputs), rest @ ..] => (inputs.as_slice(), rest),
            rest => (&[][..], rest),
        };
        match self.symbol(callee)? {
            Symbol::Function(index) if self.symbols.defined[index as usize] => {
                let layout = self.symbols.call_layouts[index as usize].clone();
                self.uses.calls.push(index);
                let op = Op { imm: u64::from(index), ..self.blank_op(run::call) };
                self.call_with(&layout, returns, inputs, op, Flow::Next)
            }
            Symbol::Function(index) => {
                let layout = self.symbols.call_layouts[index as usize].clone();
                let op = self.external(callee);
                self.uses.external_bytes = self.uses.external_bytes.max(layout.bytes);
                self.call_with(&layout, returns, inputs, op, Flow::Next)
            }
            Symbol::Register(register) if register.ty.bytes() == 8 => {
                let [Operand::Name(prototype)] = rest else {
                    return self.position.operands("a call through a register needs a prototype");
                };
                let found = self.scopes.iter().rev().find_map(|scope| scope.prototypes.get(prototype).cloned());
                let Some(layout) = found else {
                    return self.position.unsupported(format!("a call through a register with `{prototype}`"));
                };
                self.uses.calls_unknown = true;
                let op = Op { a: register.at, imm: u64::from(layout.bytes), ..self.blank_op(run::call_register) };
                self.call_with(&layout, returns, inputs, op, Flow::CallRegister)
            }
            _ => self.position.operands(format!("`{callee}` is not a function")),
        }
    }

    /// The handler of the host for a function that the module only declares.
    fn external(&mut self, name: &str) -> Op {
        match name {
            "vprintf" => self.blank_op(external_functions::print),
            "__assertfail" => self.blank_op(external_functions::assert_fail),
            _ => {
                self.externals.push(name.to_owned());
                Op { imm: self.externals.len() as u64 - 1, ..self.blank_op(run::unresolved) }
            }
        }
    }

    fn call_with(
        &mut self,
        layout: &CallLayout,
        returns: &[Operand<'t>],
        inputs: &[Operand<'t>],
        op: Op,
        flow: Flow,
    ) -> Result<(), PtxError> {
        if returns.len() != layout.returns.len() || inputs.len() != layout.inputs.len() {
            let (has, needs) = (inputs.len(), layout.inputs.len());
            return self.position.operands(format!("{has} arguments given, {needs} needed, or results differ"));
        }
        self.frame.call_bytes = self.frame.call_bytes.max(layout.bytes);
        for (input, &(offset, bytes)) in inputs.iter().zip(&layout.inputs) {
            self.copy_argument(input, offset, bytes, true)?;
        }
        let guard = self.guard;
        let is_register = flow == Flow::CallRegister;
        self.emit_flow(op, flow);
        if is_register {
            self.emit_join();
        }
        self.guard = guard;
        for (target, &(offset, bytes)) in returns.iter().zip(&layout.returns) {
            self.copy_argument(target, offset, bytes, false)?;
        }
        Ok(())
    }

    /// Copies one value between this function and the frame behind it.
    fn copy_argument(
        &mut self,
        operand: &Operand<'t>,
        offset: u32,
        bytes: u32,
        is_input: bool,
    ) -> Result<(), PtxError> {
        let fixup = FrameEndFixup(self.ops.len());
        if let Operand::Name(name) = operand
            && let Some(Symbol::Local(own)) = self.find_symbol(name)?
        {
            let (a, b) = if is_input { (offset, own) } else { (own, offset) };
            let op = Op { a, b, imm: u64::from(bytes), ..self.blank_op(run::copy_local) };
            self.emit(op);
            self.frame_end_fixups.push((fixup, is_input));
            return Ok(());
        }
        let ty = match bytes {
            8 => Type::B64,
            4 => Type::B32,
            2 => Type::B16,
            _ => Type::B8,
        };
        let d = if is_input { self.value(operand, ty)? } else { self.target_register(operand, ty)? };
        let base = self.pooled(Value::Local(0), true)?;
        let Some(run) = super::memory::access(self.isa, !is_input, (bytes, false), load_store::LOCAL, true, 1) else {
            return self.position.operands("a value of this size cannot be passed in a register");
        };
        let at = FrameEndFixup(self.ops.len());
        let op = Op { d, a: base, b: NONE, imm: u64::from(offset), ..self.blank_op(run) };
        self.emit(op);
        self.frame_end_moves.push(at);
        Ok(())
    }

    /// The frame behind this one begins where this one ends, which is known only at the end.
    pub(super) fn apply_frame_end_fixups(&mut self) {
        let end = self.frame.local_bytes;
        for (FrameEndFixup(index), is_input) in std::mem::take(&mut self.frame_end_fixups) {
            let op = &mut self.ops[index];
            if is_input { op.a += end } else { op.b += end }
        }
        for FrameEndFixup(index) in std::mem::take(&mut self.frame_end_moves) {
            self.ops[index].imm += u64::from(end);
        }
    }
}

/// The index of an op with an offset from the end of the local frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameEndFixup(usize);
