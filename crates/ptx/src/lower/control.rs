//! Lowers branches, ends, barriers and what only orders memory.

use super::words::Words;
use super::{Flow, Lower};
use crate::ast::{Operand, Type};
use crate::error::Error;
use crate::exec::control::{self as run, BarrierKind};
use crate::limits;
use crate::op::{NONE, Op};

impl<'t> Lower<'_, 't> {
    pub(super) fn control(&mut self, name: &str, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Error> {
        match name {
            "bra" => self.branch(words, operands),
            "brx" => self.branch_table(words, operands),
            "ret" => {
                words.flag("uni");
                words.done()?;
                self.emit_return()
            }
            "exit" => {
                words.done()?;
                let op = self.blank(run::end);
                let flow = if self.guard.0 == NONE { Flow::End } else { Flow::Next };
                self.emit_flow(op, flow);
                Ok(())
            }
            "trap" | "brkpt" => {
                let op = self.blank(run::trap);
                let flow = if self.guard.0 == NONE { Flow::End } else { Flow::Next };
                self.emit_flow(op, flow);
                Ok(())
            }
            "bar" | "barrier" => self.barrier(words, operands),
            "nanosleep" => {
                let op = self.blank(run::give_way);
                self.emit(op);
                Ok(())
            }
            "setmaxnreg" => words.unsupported(),
            "fence" if words.flag("proxy") || words.flag("mbarrier_init") => words.unsupported(),
            "membar" | "fence" => {
                self.emit_fence();
                Ok(())
            }
            // Hints change no result.
            _ => Ok(()),
        }
    }

    pub(super) fn emit_fence(&mut self) {
        let op = self.blank(run::fence);
        self.emit(op);
    }

    pub(super) fn label(&mut self, name: &'t str) -> Result<usize, Error> {
        let found = self.scopes.iter().rev().find_map(|scope| self.labels.get(&(scope.id, name)));
        match found {
            Some(label) => Ok(*label),
            None => self.place.name(format!("label `{name}` does not stand in this function")),
        }
    }

    fn branch(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Error> {
        words.flag("uni");
        words.done()?;
        let [Operand::Name(name)] = self.exactly::<1>(operands)? else {
            return self.place.operands("a label is needed here");
        };
        let label = self.label(name)?;
        let (guard, flip) = std::mem::replace(&mut self.guard, (NONE, 0));
        if guard == NONE {
            let op = self.blank(run::jump);
            self.emit_flow(op, Flow::Jump(label));
        } else {
            let op = Op { a: guard, b: flip, ..self.blank(run::branch) };
            self.emit_flow(op, Flow::Branch(label));
            // The sides of a loop's last branch meet right after it.
            self.emit_join();
        }
        Ok(())
    }

    fn branch_table(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Error> {
        words.need("`.idx`", &[("idx", ())])?;
        words.flag("uni");
        words.done()?;
        let [index, Operand::Name(table)] = self.exactly::<2>(operands)? else {
            return self.place.operands("an index and a table are needed here");
        };
        let found = self.scopes.iter().rev().find_map(|scope| scope.tables.get(table).cloned());
        let Some(targets) = found else { return self.place.name(format!("table `{table}` is not declared")) };
        self.targets += targets.len();
        if self.targets > limits::TARGETS_MAX {
            return self.place.limit("the targets of branches in a function", limits::TARGETS_MAX as u64);
        }
        let labels = targets.into_iter().map(|target| self.label(target)).collect::<Result<Vec<_>, _>>()?;
        let a = self.value(index, Type::U32)?;
        let op = Op { a, ..self.blank(run::branch_table) };
        self.emit_flow(op, Flow::Table(labels));
        self.emit_join();
        Ok(())
    }

    fn barrier(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Error> {
        words.flag("aligned");
        words.flag("cta");
        if words.flag("warp") {
            words.need("`.sync`", &[("sync", ())])?;
            words.done()?;
            let [members] = self.exactly::<1>(operands)?;
            let a = self.value(members, Type::U32)?;
            let op = Op { a, ..self.blank(run::warp_barrier) };
            self.emit(op);
            return Ok(());
        }
        if words.flag("sync") {
            words.done()?;
            return self.simple_barrier(BarrierKind::Sync, operands);
        }
        if words.flag("arrive") {
            words.done()?;
            self.exactly::<2>(operands)?;
            return self.simple_barrier(BarrierKind::Arrive, operands);
        }
        words.need("an operation", &[("red", ())])?;
        let kind = words
            .need("an operation", &[("popc", BarrierKind::Popc), ("and", BarrierKind::And), ("or", BarrierKind::Or)])?;
        let ty = words.ty()?;
        words.done()?;
        if (kind == BarrierKind::Popc) != (ty == Type::U32) {
            return words.unsupported();
        }
        let (target, rest) = match operands {
            [target, rest @ ..] if rest.len() == 2 || rest.len() == 3 => (target, rest),
            _ => return self.place.operands(format!("{} operands given, 3 or 4 needed", operands.len())),
        };
        let d = match kind {
            BarrierKind::Popc => self.target(target, ty)?,
            _ => self.predicate_target(target)?,
        };
        let a = self.value(&rest[0], Type::U32)?;
        let b = if rest.len() == 3 { self.value(&rest[1], Type::U32)? } else { NONE };
        let (c, e) = self.predicate(&rest[rest.len() - 1])?;
        let op = Op { d, a, b, c, e, imm: kind as u64, ..self.blank(run::barrier) };
        self.emit(op);
        Ok(())
    }

    fn simple_barrier(&mut self, kind: BarrierKind, operands: &[Operand<'t>]) -> Result<(), Error> {
        let (number, threads) = match operands {
            [number] => (number, None),
            [number, threads] => (number, Some(threads)),
            _ => return self.place.operands("a barrier's number is needed here"),
        };
        let a = self.value(number, Type::U32)?;
        let b = match threads {
            Some(threads) => self.value(threads, Type::U32)?,
            None => NONE,
        };
        let op = Op { a, b, imm: kind as u64, ..self.blank(run::barrier) };
        self.emit(op);
        Ok(())
    }
}
