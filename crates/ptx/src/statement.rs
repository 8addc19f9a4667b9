//! From tokens to the statements of a body: the inner half of the grammar.
//!
//! Scopes stay flat (`Open`, `Close`), so depth costs nothing but a count.

use crate::ast::{Instruction, Operand, Registers, Signature, Statement, Type, is_refused_type};
use crate::error::{PtxError, TextPosition};
use crate::lex::PtxToken;
use crate::limits;
use crate::parse::{Parser, space};

/// The most values in one vector or argument list; kernels pass a few dozen.
const LIST_MAX: usize = 4096;

impl<'t> Parser<'_, 't> {
    /// A whole body with its braces.
    pub fn body(&mut self) -> Result<Vec<Statement<'t>>, PtxError> {
        self.expect(b'{')?;
        let mut depth = 1_usize;
        let mut found = Vec::new();
        loop {
            let position = self.position();
            if self.accept(b'{') {
                depth += 1;
                if depth > limits::SCOPE_DEPTH_MAX {
                    return position.limit("the nesting of scopes", limits::SCOPE_DEPTH_MAX as u64);
                }
                found.push(Statement::Open);
            } else if self.accept(b'}') {
                depth -= 1;
                if depth == 0 {
                    return Ok(found);
                }
                found.push(Statement::Close);
            } else {
                self.statement(position, &mut found)?;
            }
        }
    }

    fn statement(&mut self, position: TextPosition, found: &mut Vec<Statement<'t>>) -> Result<(), PtxError> {
        match self.peek() {
            Some(PtxToken::Mark(b';')) => self.advance(),
            Some(PtxToken::Dot(word)) => self.directive(word, position, found)?,
            Some(PtxToken::Word(name)) if self.peek_second() == Some(PtxToken::Mark(b':')) => {
                self.advance();
                self.advance();
                self.labelled(name, position, found)?;
            }
            Some(PtxToken::Word(_) | PtxToken::Mark(b'@')) => {
                found.push(Statement::Instruction(self.instruction(position)?))
            }
            _ => return self.unexpected("a statement"),
        }
        Ok(())
    }

    /// A label may name a table instead of a place in the code.
    fn labelled(
        &mut self,
        name: &'t str,
        position: TextPosition,
        found: &mut Vec<Statement<'t>>,
    ) -> Result<(), PtxError> {
        match self.peek() {
            Some(PtxToken::Dot("branchtargets")) => {
                self.advance();
                found.push(Statement::BranchTargets(name, self.names()?));
            }
            Some(PtxToken::Dot("calltargets")) => {
                self.advance();
                self.names()?;
            }
            Some(PtxToken::Dot("callprototype")) => {
                self.advance();
                let returns = if self.peek() == Some(PtxToken::Mark(b'(')) { self.formals()? } else { Vec::new() };
                self.expect_word()?;
                let inputs = if self.peek() == Some(PtxToken::Mark(b'(')) { self.formals()? } else { Vec::new() };
                while matches!(self.peek(), Some(PtxToken::Dot(_) | PtxToken::Int(_))) {
                    self.advance();
                }
                self.expect(b';')?;
                found.push(Statement::Prototype(name, Signature { returns, inputs }));
            }
            _ => found.push(Statement::Label(name, position)),
        }
        Ok(())
    }

    fn names(&mut self) -> Result<Vec<&'t str>, PtxError> {
        let mut names = vec![self.expect_word()?];
        while self.accept(b',') {
            names.push(self.expect_word()?);
        }
        self.expect(b';')?;
        Ok(names)
    }

    fn directive(
        &mut self,
        word: &'t str,
        position: TextPosition,
        found: &mut Vec<Statement<'t>>,
    ) -> Result<(), PtxError> {
        match word {
            "reg" => {
                self.advance();
                self.registers(position, found)
            }
            "loc" | "file" => {
                self.skip_directive();
                Ok(())
            }
            "pragma" => {
                while !self.accept(b';') && self.peek().is_some() {
                    self.advance();
                }
                Ok(())
            }
            _ => match space(word) {
                Some(space) => {
                    self.advance();
                    let mut variables = Vec::new();
                    self.variables(space, false, &mut variables)?;
                    found.extend(variables.into_iter().map(Statement::Variable));
                    Ok(())
                }
                None => position.unsupported(format!(".{word}")),
            },
        }
    }

    fn registers(&mut self, position: TextPosition, found: &mut Vec<Statement<'t>>) -> Result<(), PtxError> {
        let ty = match self.peek() {
            Some(PtxToken::Dot(word)) => match Type::named(word) {
                Some(ty) => ty,
                // Declared registers are harmless until an instruction uses their type.
                None if word.ends_with("x2") && is_refused_type(word) => Type::B32,
                None if is_refused_type(word) => Type::B16,
                None => return position.unsupported(format!(".reg .{word}")),
            },
            _ => return self.unexpected("a type"),
        };
        self.advance();
        loop {
            let position = self.position();
            let name = self.expect_word()?;
            let count = if self.accept(b'<') {
                let count = self.expect_int32()?;
                self.expect(b'>')?;
                Some(count)
            } else {
                None
            };
            found.push(Statement::Registers(Registers { position, ty, name, count }));
            if self.accept(b';') {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    fn instruction(&mut self, position: TextPosition) -> Result<Instruction<'t>, PtxError> {
        let guard = if self.accept(b'@') {
            let negated = self.accept(b'!');
            Some((self.expect_word()?, negated))
        } else {
            None
        };
        let name = self.expect_word()?;
        let mut modifiers = Vec::new();
        while let Some(PtxToken::Dot(word)) = self.peek() {
            modifiers.push(word);
            self.advance();
        }
        let mut operands = Vec::new();
        if !self.accept(b';') {
            loop {
                operands.push(self.operand()?);
                if operands.len() > LIST_MAX {
                    return position.limit("the operands of one instruction", LIST_MAX as u64);
                }
                if self.accept(b';') {
                    break;
                }
                self.expect(b',')?;
            }
        }
        Ok(Instruction { position, guard, name, modifiers, operands })
    }

    fn operand(&mut self) -> Result<Operand<'t>, PtxError> {
        match self.peek() {
            Some(PtxToken::Mark(b'{')) => {
                self.advance();
                Ok(Operand::Vector(self.simple_list(b'}')?))
            }
            Some(PtxToken::Mark(b'(')) => {
                self.advance();
                Ok(Operand::List(self.simple_list(b')')?))
            }
            Some(PtxToken::Mark(b'[')) => {
                self.advance();
                self.address()
            }
            _ => {
                let first = self.simple()?;
                if self.accept(b'|') {
                    let second = self.simple()?;
                    return Ok(Operand::Pair(Box::new(first), Box::new(second)));
                }
                Ok(first)
            }
        }
    }

    fn simple_list(&mut self, close: u8) -> Result<Vec<Operand<'t>>, PtxError> {
        let mut list = Vec::new();
        if self.accept(close) {
            return Ok(list);
        }
        loop {
            list.push(self.simple()?);
            if self.accept(close) {
                return Ok(list);
            }
            self.expect(b',')?;
            if list.len() > LIST_MAX {
                return self.position().limit("the values of one list", LIST_MAX as u64);
            }
        }
    }

    fn address(&mut self) -> Result<Operand<'t>, PtxError> {
        let position = self.position();
        let address = match self.peek() {
            Some(PtxToken::Word(name)) => {
                self.advance();
                Operand::Address(Some(name), self.addend()?)
            }
            _ => {
                let negative = self.accept(b'-');
                let value = self.expect_int()? as i64;
                Operand::Address(None, if negative { value.wrapping_neg() } else { value })
            }
        };
        if self.peek() == Some(PtxToken::Mark(b',')) {
            return position.unsupported("an address with coordinates");
        }
        self.expect(b']')?;
        Ok(address)
    }

    fn simple(&mut self) -> Result<Operand<'t>, PtxError> {
        let negative = self.accept(b'-');
        let token = self.peek();
        if !negative && self.accept(b'!') {
            return Ok(Operand::Not(self.expect_word()?));
        }
        if !negative && let Some(PtxToken::Word(name)) = token {
            self.advance();
            if let Some(PtxToken::Dot(part)) = self.peek() {
                self.advance();
                return Ok(Operand::Part(name, part));
            }
            return Ok(match self.addend()? {
                0 => Operand::Name(name),
                addend => Operand::Offset(name, addend),
            });
        }
        let operand = match token {
            Some(PtxToken::Int(value)) => Operand::Int(if negative { value.wrapping_neg() } else { value }),
            Some(PtxToken::F32(bits)) => Operand::F32(bits ^ (u32::from(negative) << 31)),
            Some(PtxToken::F64(bits)) => Operand::F64(bits ^ (u64::from(negative) << 63)),
            Some(PtxToken::Mark(b'(')) => return self.position().unsupported("a constant expression"),
            _ => return self.unexpected("an operand"),
        };
        self.advance();
        Ok(operand)
    }
}
