//! Lowers branches, ends, barriers and what only orders memory.

use super::modifiers::Modifiers;
use super::{Flow, FunctionLowering};
use crate::ast::{Operand, Type};
use crate::error::PtxError;
use crate::exec::control::{self as run, BarrierKind};
use crate::limits;
use crate::op::{NONE, Op};

impl<'t> FunctionLowering<'_, 't> {
    pub(super) fn control(
        &mut self,
        name: &str,
        modifiers: &mut Modifiers<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), PtxError> {
        match name {
            "bra" => self.branch(modifiers, operands),
            "brx" => self.branch_table(modifiers, operands),
            "ret" => {
                modifiers.take_flag("uni");
                modifiers.expect_none_left()?;
                self.emit_return()
            }
            "exit" => {
                modifiers.expect_none_left()?;
                let op = self.blank_op(run::exit);
                let flow = if self.guard.0 == NONE { Flow::End } else { Flow::Next };
                self.emit_flow(op, flow);
                Ok(())
            }
            "trap" | "brkpt" => {
                let op = self.blank_op(run::trap);
                let flow = if self.guard.0 == NONE { Flow::End } else { Flow::Next };
                self.emit_flow(op, flow);
                Ok(())
            }
            "bar" | "barrier" => self.barrier(modifiers, operands),
            "nanosleep" => {
                let op = self.blank_op(run::nanosleep);
                self.emit(op);
                Ok(())
            }
            "setmaxnreg" => modifiers.unsupported(),
            "fence" if modifiers.take_flag("proxy") || modifiers.take_flag("mbarrier_init") => modifiers.unsupported(),
            "membar" | "fence" => {
                self.emit_fence();
                Ok(())
            }
            // Hints change no result.
            _ => Ok(()),
        }
    }

    pub(super) fn emit_fence(&mut self) {
        let op = self.blank_op(run::fence);
        self.emit(op);
    }

    pub(super) fn label(&mut self, name: &'t str) -> Result<usize, PtxError> {
        let found = self.scopes.iter().rev().find_map(|scope| self.labels.get(&(scope.id, name)));
        match found {
            Some(label) => Ok(*label),
            None => self.position.name(format!("label `{name}` does not stand in this function")),
        }
    }

    fn branch(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        modifiers.take_flag("uni");
        modifiers.expect_none_left()?;
        let [Operand::Name(name)] = self.expect_operands::<1>(operands)? else {
            return self.position.operands("a label is needed here");
        };
        let label = self.label(name)?;
        let (guard, flip) = std::mem::replace(&mut self.guard, (NONE, 0));
        if guard == NONE {
            let op = self.blank_op(run::jump);
            self.emit_flow(op, Flow::Jump(label));
        } else {
            let op = Op { a: guard, b: flip, ..self.blank_op(run::branch) };
            self.emit_flow(op, Flow::Branch(label));
            // The sides of a loop's last branch meet right after it.
            self.emit_join();
        }
        Ok(())
    }

    fn branch_table(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        modifiers.take_required("`.idx`", &[("idx", ())])?;
        modifiers.take_flag("uni");
        modifiers.expect_none_left()?;
        let [index, Operand::Name(table)] = self.expect_operands::<2>(operands)? else {
            return self.position.operands("an index and a table are needed here");
        };
        let found = self.scopes.iter().rev().find_map(|scope| scope.tables.get(table).cloned());
        let Some(targets) = found else { return self.position.name(format!("table `{table}` is not declared")) };
        self.targets += targets.len();
        if self.targets > limits::TARGETS_MAX {
            return self.position.limit("the targets of branches in a function", limits::TARGETS_MAX as u64);
        }
        let labels = targets.into_iter().map(|target| self.label(target)).collect::<Result<Vec<_>, _>>()?;
        let a = self.value(index, Type::U32)?;
        let op = Op { a, ..self.blank_op(run::branch_table) };
        self.emit_flow(op, Flow::Table(labels));
        self.emit_join();
        Ok(())
    }

    fn barrier(&mut self, modifiers: &mut Modifiers<'t>, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        modifiers.take_flag("aligned");
        modifiers.take_flag("cta");
        if modifiers.take_flag("warp") {
            modifiers.take_required("`.sync`", &[("sync", ())])?;
            modifiers.expect_none_left()?;
            let [members] = self.expect_operands::<1>(operands)?;
            let a = self.value(members, Type::U32)?;
            let op = Op { a, ..self.blank_op(run::warp_barrier) };
            self.emit(op);
            return Ok(());
        }
        if modifiers.take_flag("sync") {
            modifiers.expect_none_left()?;
            return self.simple_barrier(BarrierKind::Sync, operands);
        }
        if modifiers.take_flag("arrive") {
            modifiers.expect_none_left()?;
            self.expect_operands::<2>(operands)?;
            return self.simple_barrier(BarrierKind::Arrive, operands);
        }
        modifiers.take_required("an operation", &[("red", ())])?;
        let kind = modifiers.take_required(
            "an operation",
            &[("popc", BarrierKind::Popc), ("and", BarrierKind::And), ("or", BarrierKind::Or)],
        )?;
        let ty = modifiers.take_type()?;
        modifiers.expect_none_left()?;
        if (kind == BarrierKind::Popc) != (ty == Type::U32) {
            return modifiers.unsupported();
        }
        let (target, rest) = match operands {
            [target, rest @ ..] if rest.len() == 2 || rest.len() == 3 => (target, rest),
            _ => return self.position.operands(format!("{} operands given, 3 or 4 needed", operands.len())),
        };
        let d = match kind {
            BarrierKind::Popc => self.target_register(target, ty)?,
            _ => self.predicate_target(target)?,
        };
        let a = self.value(&rest[0], Type::U32)?;
        let b = if rest.len() == 3 { self.value(&rest[1], Type::U32)? } else { NONE };
        let (c, e) = self.predicate(&rest[rest.len() - 1])?;
        let op = Op { d, a, b, c, e, imm: kind as u64, ..self.blank_op(run::barrier) };
        self.emit(op);
        Ok(())
    }

    fn simple_barrier(&mut self, kind: BarrierKind, operands: &[Operand<'t>]) -> Result<(), PtxError> {
        let (number, threads) = match operands {
            [number] => (number, None),
            [number, threads] => (number, Some(threads)),
            _ => return self.position.operands("a barrier's number is needed here"),
        };
        let a = self.value(number, Type::U32)?;
        let b = match threads {
            Some(threads) => self.value(threads, Type::U32)?,
            None => NONE,
        };
        let op = Op { a, b, imm: kind as u64, ..self.blank_op(run::barrier) };
        self.emit(op);
        Ok(())
    }
}
