//! The dotted words of an instruction, taken one by one.
//!
//! The lowering of an instruction takes the words it knows; a word that is left
//! over is an error, so nothing is silently ignored.

use crate::ast::{Instruction, Type, is_refused_type};
use crate::error::{Error, Place, What};

/// How a result is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    Nearest,
    Zero,
    Down,
    Up,
}

/// The words that are left.
pub(crate) struct Words<'t> {
    pub place: Place,
    name: &'t str,
    left: Vec<&'t str>,
    all: Vec<&'t str>,
}

impl<'t> Words<'t> {
    pub fn of(instruction: &Instruction<'t>) -> Self {
        Words {
            place: instruction.place,
            name: instruction.name,
            left: instruction.words.clone(),
            all: instruction.words.clone(),
        }
    }

    /// The instruction with all its words, for messages.
    pub fn full(&self) -> String {
        let mut full = self.name.to_owned();
        for word in &self.all {
            full.push('.');
            full.push_str(word);
        }
        full
    }

    /// Takes a word if it is there.
    pub fn flag(&mut self, word: &str) -> bool {
        let found = self.left.iter().position(|left| *left == word);
        found.map(|index| self.left.remove(index)).is_some()
    }

    /// Takes the first word that the table has.
    pub fn one_of<T: Copy>(&mut self, table: &[(&str, T)]) -> Option<T> {
        for (index, word) in self.left.iter().enumerate() {
            if let Some((_, value)) = table.iter().find(|(known, _)| known == word) {
                self.left.remove(index);
                return Some(*value);
            }
        }
        None
    }

    /// Takes one word that the table has, or says that one is missing.
    pub fn need<T: Copy>(&mut self, what: &str, table: &[(&str, T)]) -> Result<T, Error> {
        match self.one_of(table) {
            Some(value) => Ok(value),
            None => self.place.operands(format!("`{}` lacks {what}", self.full())),
        }
    }

    /// Takes the first type.
    pub fn ty(&mut self) -> Result<Type, Error> {
        for (index, word) in self.left.iter().enumerate() {
            if let Some(ty) = Type::named(word) {
                self.left.remove(index);
                return Ok(ty);
            }
            if is_refused_type(word) {
                return self.unsupported();
            }
        }
        self.place.operands(format!("`{}` lacks a type", self.full()))
    }

    /// Takes a rounding of floating-point results.
    pub fn round(&mut self) -> Option<Round> {
        self.one_of(&[("rn", Round::Nearest), ("rz", Round::Zero), ("rm", Round::Down), ("rp", Round::Up)])
    }

    /// Takes whatever only says how memory is cached, ordered or scoped.
    pub fn hints(&mut self) {
        const HINTS: [&str; 21] = [
            "ca", "cg", "cs", "lu", "cv", "wb", "wt", "volatile", "relaxed", "acquire", "release", "acq_rel", "weak",
            "cta", "gpu", "sys", "cluster", "nc", "mmio", "noftz", "sc",
        ];
        self.left.retain(|word| !HINTS.contains(word) && !word.starts_with("L1::") && !word.starts_with("L2::"));
    }

    /// Nothing may be left.
    pub fn done(&self) -> Result<(), Error> {
        match self.left.first() {
            None => Ok(()),
            Some(word) if is_refused_type(word) => self.unsupported(),
            Some(word) => self.place.unsupported(format!("{}` with `.{word}", self.full())),
        }
    }

    pub fn unsupported<T>(&self) -> Result<T, Error> {
        self.place.unsupported(self.full())
    }

    pub fn unknown<T>(&self) -> Result<T, Error> {
        Err(self.place.error(What::UnknownInstruction(self.full())))
    }
}
