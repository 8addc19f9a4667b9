//! The dotted words of an instruction, taken one by one.
//!
//! The lowering of an instruction takes the words it knows; a word that is left
//! over is an error, so nothing is silently ignored.

use crate::ast::{Instruction, Type, is_refused_type};
use crate::error::{PtxError, PtxErrorKind, TextPosition};

/// How a result is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounding {
    Nearest,
    Zero,
    Down,
    Up,
}

/// The words that are left.
pub(crate) struct Modifiers<'t> {
    pub position: TextPosition,
    name: &'t str,
    left: Vec<&'t str>,
    all: Vec<&'t str>,
}

impl<'t> Modifiers<'t> {
    pub fn of(instruction: &Instruction<'t>) -> Self {
        Modifiers {
            position: instruction.position,
            name: instruction.name,
            left: instruction.modifiers.clone(),
            all: instruction.modifiers.clone(),
        }
    }

    /// The instruction with all its words, for messages.
    pub fn full_name(&self) -> String {
        let mut full_name = self.name.to_owned();
        for word in &self.all {
            full_name.push('.');
            full_name.push_str(word);
        }
        full_name
    }

    /// Takes a word if it is there.
    pub fn take_flag(&mut self, word: &str) -> bool {
        let found = self.left.iter().position(|left| *left == word);
        found.map(|index| self.left.remove(index)).is_some()
    }

    /// Takes the first word that the table has.
    pub fn take_one_of<T: Copy>(&mut self, table: &[(&str, T)]) -> Option<T> {
        for (index, word) in self.left.iter().enumerate() {
            if let Some((_, value)) = table.iter().find(|(known, _)| known == word) {
                self.left.remove(index);
                return Some(*value);
            }
        }
        None
    }

    /// Takes one word that the table has, or says that one is missing.
    pub fn take_required<T: Copy>(&mut self, what: &str, table: &[(&str, T)]) -> Result<T, PtxError> {
        match self.take_one_of(table) {
            Some(value) => Ok(value),
            None => self.position.operands(format!("`{}` lacks {what}", self.full_name())),
        }
    }

    /// Takes the first type.
    pub fn take_type(&mut self) -> Result<Type, PtxError> {
        for (index, word) in self.left.iter().enumerate() {
            if let Some(ty) = Type::named(word) {
                self.left.remove(index);
                return Ok(ty);
            }
            if is_refused_type(word) {
                return self.unsupported();
            }
        }
        self.position.operands(format!("`{}` lacks a type", self.full_name()))
    }

    /// Takes a rounding of floating-point results.
    pub fn take_rounding(&mut self) -> Option<Rounding> {
        self.take_one_of(&[
            ("rn", Rounding::Nearest),
            ("rz", Rounding::Zero),
            ("rm", Rounding::Down),
            ("rp", Rounding::Up),
        ])
    }

    /// Takes whatever only says how memory is cached, ordered or scoped.
    pub fn discard_hints(&mut self) {
        const HINTS: [&str; 21] = [
            "ca", "cg", "cs", "lu", "cv", "wb", "wt", "volatile", "relaxed", "acquire", "release", "acq_rel", "weak",
            "cta", "gpu", "sys", "cluster", "nc", "mmio", "noftz", "sc",
        ];
        self.left.retain(|word| !HINTS.contains(word) && !word.starts_with("L1::") && !word.starts_with("L2::"));
    }

    /// Nothing may be left.
    pub fn expect_none_left(&self) -> Result<(), PtxError> {
        match self.left.first() {
            None => Ok(()),
            Some(word) if is_refused_type(word) => self.unsupported(),
            Some(word) => self.position.unsupported(format!("{}` with `.{word}", self.full_name())),
        }
    }

    pub fn unsupported<T>(&self) -> Result<T, PtxError> {
        self.position.unsupported(self.full_name())
    }

    pub fn unknown<T>(&self) -> Result<T, PtxError> {
        Err(self.position.error(PtxErrorKind::UnknownInstruction(self.full_name())))
    }
}
