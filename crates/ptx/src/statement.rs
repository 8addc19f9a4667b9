//! From tokens to the statements of a body: the inner half of the grammar.
//!
//! Scopes stay flat (`Open`, `Close`), so depth costs nothing but a count.

use crate::ast::{Instruction, Operand, Registers, Signature, Statement, Type, is_refused_type};
use crate::error::{Error, Place};
use crate::lex::Token;
use crate::limits;
use crate::parse::{Parser, space};

/// The most values in one vector or argument list; kernels pass a few dozen.
const LIST_MAX: usize = 4096;

impl<'t> Parser<'_, 't> {
    /// A whole body with its braces.
    pub fn body(&mut self) -> Result<Vec<Statement<'t>>, Error> {
        self.expect(b'{')?;
        let mut depth = 1_usize;
        let mut found = Vec::new();
        loop {
            let place = self.place();
            if self.accept(b'{') {
                depth += 1;
                if depth > limits::SCOPE_DEPTH_MAX {
                    return place.limit("the nesting of scopes", limits::SCOPE_DEPTH_MAX as u64);
                }
                found.push(Statement::Open);
            } else if self.accept(b'}') {
                depth -= 1;
                if depth == 0 {
                    return Ok(found);
                }
                found.push(Statement::Close);
            } else {
                self.statement(place, &mut found)?;
            }
        }
    }

    fn statement(&mut self, place: Place, found: &mut Vec<Statement<'t>>) -> Result<(), Error> {
        match self.peek() {
            Some(Token::Mark(b';')) => self.advance(),
            Some(Token::Dot(word)) => self.directive(word, place, found)?,
            Some(Token::Word(name)) if self.peek_second() == Some(Token::Mark(b':')) => {
                self.advance();
                self.advance();
                self.labelled(name, place, found)?;
            }
            Some(Token::Word(_) | Token::Mark(b'@')) => found.push(Statement::Instruction(self.instruction(place)?)),
            _ => return self.unexpected("a statement"),
        }
        Ok(())
    }

    /// A label may name a table instead of a place in the code.
    fn labelled(&mut self, name: &'t str, place: Place, found: &mut Vec<Statement<'t>>) -> Result<(), Error> {
        match self.peek() {
            Some(Token::Dot("branchtargets")) => {
                self.advance();
                found.push(Statement::BranchTargets(name, self.names()?));
            }
            Some(Token::Dot("calltargets")) => {
                self.advance();
                self.names()?;
            }
            Some(Token::Dot("callprototype")) => {
                self.advance();
                let returns = if self.peek() == Some(Token::Mark(b'(')) { self.formals()? } else { Vec::new() };
                self.word()?;
                let inputs = if self.peek() == Some(Token::Mark(b'(')) { self.formals()? } else { Vec::new() };
                while matches!(self.peek(), Some(Token::Dot(_) | Token::Int(_))) {
                    self.advance();
                }
                self.expect(b';')?;
                found.push(Statement::Prototype(name, Signature { returns, inputs }));
            }
            _ => found.push(Statement::Label(name, place)),
        }
        Ok(())
    }

    fn names(&mut self) -> Result<Vec<&'t str>, Error> {
        let mut names = vec![self.word()?];
        while self.accept(b',') {
            names.push(self.word()?);
        }
        self.expect(b';')?;
        Ok(names)
    }

    fn directive(&mut self, word: &'t str, place: Place, found: &mut Vec<Statement<'t>>) -> Result<(), Error> {
        match word {
            "reg" => {
                self.advance();
                self.registers(place, found)
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
                None => place.unsupported(format!(".{word}")),
            },
        }
    }

    fn registers(&mut self, place: Place, found: &mut Vec<Statement<'t>>) -> Result<(), Error> {
        let ty = match self.peek() {
            Some(Token::Dot(word)) => match Type::named(word) {
                Some(ty) => ty,
                // Declared registers are harmless until an instruction uses their type.
                None if word.ends_with("x2") && is_refused_type(word) => Type::B32,
                None if is_refused_type(word) => Type::B16,
                None => return place.unsupported(format!(".reg .{word}")),
            },
            _ => return self.unexpected("a type"),
        };
        self.advance();
        loop {
            let place = self.place();
            let name = self.word()?;
            let count = if self.accept(b'<') {
                let count = self.int32()?;
                self.expect(b'>')?;
                Some(count)
            } else {
                None
            };
            found.push(Statement::Registers(Registers { place, ty, name, count }));
            if self.accept(b';') {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    fn instruction(&mut self, place: Place) -> Result<Instruction<'t>, Error> {
        let guard = if self.accept(b'@') {
            let negated = self.accept(b'!');
            Some((self.word()?, negated))
        } else {
            None
        };
        let name = self.word()?;
        let mut words = Vec::new();
        while let Some(Token::Dot(word)) = self.peek() {
            words.push(word);
            self.advance();
        }
        let mut operands = Vec::new();
        if !self.accept(b';') {
            loop {
                operands.push(self.operand()?);
                if operands.len() > LIST_MAX {
                    return place.limit("the operands of one instruction", LIST_MAX as u64);
                }
                if self.accept(b';') {
                    break;
                }
                self.expect(b',')?;
            }
        }
        Ok(Instruction { place, guard, name, words, operands })
    }

    fn operand(&mut self) -> Result<Operand<'t>, Error> {
        match self.peek() {
            Some(Token::Mark(b'{')) => {
                self.advance();
                Ok(Operand::Vector(self.simple_list(b'}')?))
            }
            Some(Token::Mark(b'(')) => {
                self.advance();
                Ok(Operand::List(self.simple_list(b')')?))
            }
            Some(Token::Mark(b'[')) => {
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

    fn simple_list(&mut self, close: u8) -> Result<Vec<Operand<'t>>, Error> {
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
                return self.place().limit("the values of one list", LIST_MAX as u64);
            }
        }
    }

    fn address(&mut self) -> Result<Operand<'t>, Error> {
        let place = self.place();
        let address = match self.peek() {
            Some(Token::Word(name)) => {
                self.advance();
                Operand::Address(Some(name), self.addend()?)
            }
            _ => {
                let negative = self.accept(b'-');
                let value = self.int()? as i64;
                Operand::Address(None, if negative { value.wrapping_neg() } else { value })
            }
        };
        if self.peek() == Some(Token::Mark(b',')) {
            return place.unsupported("an address with coordinates");
        }
        self.expect(b']')?;
        Ok(address)
    }

    fn simple(&mut self) -> Result<Operand<'t>, Error> {
        let negative = self.accept(b'-');
        let token = self.peek();
        if !negative && self.accept(b'!') {
            return Ok(Operand::Not(self.word()?));
        }
        if !negative && let Some(Token::Word(name)) = token {
            self.advance();
            if let Some(Token::Dot(part)) = self.peek() {
                self.advance();
                return Ok(Operand::Part(name, part));
            }
            return Ok(match self.addend()? {
                0 => Operand::Name(name),
                addend => Operand::Offset(name, addend),
            });
        }
        let operand = match token {
            Some(Token::Int(value)) => Operand::Int(if negative { value.wrapping_neg() } else { value }),
            Some(Token::F32(bits)) => Operand::F32(bits ^ (u32::from(negative) << 31)),
            Some(Token::F64(bits)) => Operand::F64(bits ^ (u64::from(negative) << 63)),
            Some(Token::Mark(b'(')) => return self.place().unsupported("a constant expression"),
            _ => return self.unexpected("an operand"),
        };
        self.advance();
        Ok(operand)
    }
}
