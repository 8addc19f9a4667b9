//! From tokens to declarations: the outer half of the grammar.
//!
//! Statements of bodies are in [`crate::statement`]. Nothing recurses: nesting
//! is counted, so no text can exhaust the stack.

use crate::ast::{
    Formal, Initial, ParsedFunction, ParsedModule, ParsedVariable, Signature, StateSpace, Tuning, Type, is_refused_type,
};
use crate::error::{PtxError, TextPosition};
use crate::lex::{PtxToken, tokens};
use crate::limits;

/// Reads a whole text.
pub(crate) fn parse(text: &str) -> Result<ParsedModule<'_>, PtxError> {
    if text.len() > limits::TEXT_BYTES_MAX {
        return TextPosition { line: 1, column: 1 }.limit("the text's bytes", limits::TEXT_BYTES_MAX as u64);
    }
    let tokens = tokens(text)?;
    let mut parser = Parser { tokens: &tokens, at: 0 };
    parser.text()
}

/// A cursor over the tokens.
pub(crate) struct Parser<'a, 't> {
    tokens: &'a [(PtxToken<'t>, TextPosition)],
    at: usize,
}

#[derive(Default)]
struct Linkage {
    external: bool,
}

impl<'t> Parser<'_, 't> {
    pub fn position(&self) -> TextPosition {
        let last = self.tokens.last().map_or(TextPosition { line: 1, column: 1 }, |(_, position)| *position);
        self.tokens.get(self.at).map_or(last, |(_, position)| *position)
    }

    pub fn peek(&self) -> Option<PtxToken<'t>> {
        self.tokens.get(self.at).map(|(token, _)| *token)
    }

    pub fn peek_second(&self) -> Option<PtxToken<'t>> {
        self.tokens.get(self.at + 1).map(|(token, _)| *token)
    }

    pub fn advance(&mut self) {
        self.at += 1;
    }

    pub fn accept(&mut self, mark: u8) -> bool {
        let found = self.peek() == Some(PtxToken::Mark(mark));
        self.at += usize::from(found);
        found
    }

    pub fn accept_dot(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(PtxToken::Dot(word));
        self.at += usize::from(found);
        found
    }

    pub fn expect(&mut self, mark: u8) -> Result<(), PtxError> {
        if self.accept(mark) { Ok(()) } else { self.unexpected(&format!("`{}`", mark as char)) }
    }

    /// An error that says what stands here instead of what was needed.
    pub fn unexpected<T>(&self, needed: &str) -> Result<T, PtxError> {
        let found = match self.peek() {
            None => "the text ends".to_owned(),
            Some(PtxToken::Word(word)) => format!("found `{word}`"),
            Some(PtxToken::Dot(word)) => format!("found `.{word}`"),
            Some(PtxToken::Mark(mark)) => format!("found `{}`", mark as char),
            Some(PtxToken::Text(_)) => "found a string".to_owned(),
            Some(_) => "found a number".to_owned(),
        };
        self.position().syntax(format!("expected {needed}, {found}"))
    }

    pub fn expect_word(&mut self) -> Result<&'t str, PtxError> {
        match self.peek() {
            Some(PtxToken::Word(word)) => {
                self.at += 1;
                Ok(word)
            }
            _ => self.unexpected("a name"),
        }
    }

    pub fn expect_int(&mut self) -> Result<u64, PtxError> {
        match self.peek() {
            Some(PtxToken::Int(value)) => {
                self.at += 1;
                Ok(value)
            }
            _ => self.unexpected("a number"),
        }
    }

    pub fn expect_int32(&mut self) -> Result<u32, PtxError> {
        let position = self.position();
        let value = self.expect_int()?;
        u32::try_from(value).or_else(|_| position.syntax(format!("{value} is too large")))
    }

    fn text(&mut self) -> Result<ParsedModule<'t>, PtxError> {
        let mut text = ParsedModule { address_bits: 64, ..ParsedModule::default() };
        while let Some(token) = self.peek() {
            let position = self.position();
            let PtxToken::Dot(word) = token else { return self.unexpected("a directive") };
            match word {
                "version" => text.version = self.version()?,
                "target" => text.target = self.target()?,
                "address_size" => {
                    self.advance();
                    text.address_bits = self.expect_int32()?;
                    if text.address_bits != 64 {
                        return position.unsupported(format!(".address_size {}", text.address_bits));
                    }
                }
                "file" | "loc" | "pragma" | "alias" => self.skip_directive(),
                "section" => self.skip_section(),
                _ => self.declaration(&mut text)?,
            }
        }
        Ok(text)
    }

    fn version(&mut self) -> Result<(u32, u32), PtxError> {
        self.advance();
        let position = self.position();
        match self.peek() {
            Some(PtxToken::F64(bits)) => {
                self.advance();
                let value = f64::from_bits(bits);
                Ok((value.trunc() as u32, (value.fract() * 10.0).round() as u32))
            }
            Some(PtxToken::Int(major)) => {
                self.advance();
                Ok((major as u32, 0))
            }
            _ => position.syntax("expected a version as in `8.5`"),
        }
    }

    fn target(&mut self) -> Result<&'t str, PtxError> {
        self.advance();
        let target = self.expect_word()?;
        while self.accept(b',') {
            self.expect_word()?;
        }
        Ok(target)
    }

    /// `.file`, `.loc`, `.pragma`: debug information and hints, to the line's end.
    pub fn skip_directive(&mut self) {
        let line = self.position().line;
        self.advance();
        while self.at < self.tokens.len() && self.position().line == line {
            self.advance();
        }
    }

    /// `.section name { ... }`: debug information.
    fn skip_section(&mut self) {
        while self.peek().is_some() && self.peek() != Some(PtxToken::Mark(b'{')) {
            self.advance();
        }
        let mut depth = 0_usize;
        while let Some(token) = self.peek() {
            self.advance();
            match token {
                PtxToken::Mark(b'{') => depth += 1,
                PtxToken::Mark(b'}') => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return;
            }
        }
    }

    fn linkage(&mut self) -> Linkage {
        let mut linkage = Linkage::default();
        while let Some(PtxToken::Dot(word @ ("visible" | "extern" | "weak" | "common"))) = self.peek() {
            linkage.external |= word == "extern";
            self.advance();
        }
        linkage
    }

    fn declaration(&mut self, text: &mut ParsedModule<'t>) -> Result<(), PtxError> {
        let linkage = self.linkage();
        let position = self.position();
        match self.peek() {
            Some(PtxToken::Dot(word @ ("entry" | "func"))) => {
                self.advance();
                let function = self.function(word == "entry", position)?;
                text.functions.push(function);
                Ok(())
            }
            Some(PtxToken::Dot(word)) => match space(word) {
                Some(space) => {
                    self.advance();
                    self.variables(space, linkage.external, &mut text.variables)
                }
                None => position.unsupported(format!(".{word}")),
            },
            _ => self.unexpected("a declaration"),
        }
    }

    fn function(&mut self, is_kernel: bool, position: TextPosition) -> Result<ParsedFunction<'t>, PtxError> {
        while self.accept_dot("attribute") {
            self.skip_parenthesis();
        }
        let returns = if self.peek() == Some(PtxToken::Mark(b'(')) { self.formals()? } else { Vec::new() };
        let name = self.expect_word()?;
        let inputs = if self.peek() == Some(PtxToken::Mark(b'(')) { self.formals()? } else { Vec::new() };
        let tuning = self.tuning()?;
        let body = if self.accept(b';') { None } else { Some(self.body()?) };
        let signature = Signature { returns, inputs };
        Ok(ParsedFunction { position, name, is_kernel, signature, tuning, body })
    }

    fn skip_parenthesis(&mut self) {
        self.skip_attributes_with("");
    }

    /// Passes over what is in parentheses. Returns whether this is among it.
    fn skip_attributes_with(&mut self, what: &str) -> bool {
        let mut is_found = false;
        while let Some(token) = self.peek() {
            self.advance();
            match token {
                PtxToken::Mark(b')') => break,
                PtxToken::Dot(word) => is_found |= word == what,
                _ => {}
            }
        }
        is_found
    }

    /// `(.param .b32 a, .reg .f32 b)`.
    pub fn formals(&mut self) -> Result<Vec<Formal<'t>>, PtxError> {
        self.expect(b'(')?;
        let mut formals = Vec::new();
        if self.accept(b')') {
            return Ok(formals);
        }
        loop {
            formals.push(self.formal()?);
            if self.accept(b')') {
                return Ok(formals);
            }
            self.expect(b',')?;
        }
    }

    fn formal(&mut self) -> Result<Formal<'t>, PtxError> {
        let position = self.position();
        let register = self.accept_dot("reg");
        if !register && !self.accept_dot("param") {
            return self.unexpected("`.param` or `.reg`");
        }
        let mut align = 0;
        let mut ty = None;
        while let Some(PtxToken::Dot(word)) = self.peek() {
            self.advance();
            match word {
                "align" => align = self.alignment()?,
                "ptr" | "global" | "shared" | "const" | "local" => {}
                _ => ty = Some(self.type_named(word)?),
            }
            // `.ptr .align 16` speaks of what is pointed to.
            if word == "ptr" {
                self.pointee()?;
            }
        }
        let Some(ty) = ty else { return self.unexpected("a type") };
        let name = self.expect_word()?;
        let elements = self.dimensions()?.unwrap_or(Some(1));
        let variable = ParsedVariable {
            position,
            name,
            space: StateSpace::Param,
            ty,
            align,
            elements,
            initial: Vec::new(),
            external: false,
            managed: false,
        };
        Ok(Formal { variable, register })
    }

    fn pointee(&mut self) -> Result<(), PtxError> {
        while let Some(PtxToken::Dot(word)) = self.peek() {
            self.advance();
            if word == "align" {
                self.alignment()?;
            }
        }
        Ok(())
    }

    fn alignment(&mut self) -> Result<u32, PtxError> {
        let position = self.position();
        let align = self.expect_int32()?;
        if align.is_power_of_two() && align <= 65536 {
            Ok(align)
        } else {
            position.syntax(format!("{align} is not an alignment"))
        }
    }

    fn type_named(&self, word: &str) -> Result<Type, PtxError> {
        let position = self.position();
        match Type::named(word) {
            Some(ty) => Ok(ty),
            // A declaration only reserves bytes, so half types have a size here.
            None if is_refused_type(word) => Ok(if word.ends_with("x2") { Type::B32 } else { Type::B16 }),
            None => position.unsupported(format!(".{word}")),
        }
    }

    /// `None` without brackets, `Some(None)` for `[]`.
    fn dimensions(&mut self) -> Result<Option<Option<u64>>, PtxError> {
        let mut total = None;
        while self.accept(b'[') {
            if self.accept(b']') {
                total = Some(None);
                continue;
            }
            let count = self.expect_int()?;
            self.expect(b']')?;
            total = Some(match total {
                None => Some(count),
                Some(Some(before)) => Some(count.saturating_mul(before)),
                Some(None) => None,
            });
        }
        Ok(total)
    }

    fn tuning(&mut self) -> Result<Tuning, PtxError> {
        let mut tuning = Tuning::default();
        while let Some(PtxToken::Dot(word)) = self.peek() {
            match word {
                "maxntid" => tuning.max_threads = Some(self.triple()?),
                "reqntid" => tuning.required_threads = Some(self.triple()?),
                "minnctapersm" | "maxnctapersm" => tuning.min_blocks = Some(self.triple()?[0]),
                "maxnreg" => tuning.max_registers = Some(self.triple()?[0]),
                "pragma" => {
                    while !self.accept(b';') && self.peek().is_some() {
                        self.advance();
                    }
                }
                "noreturn" | "explicitcluster" | "blocksareclusters" => self.advance(),
                "reqnctapercluster" | "maxclusterrank" => return self.position().unsupported(format!(".{word}")),
                "abi_preserve" | "abi_preserve_control" => {
                    self.triple()?;
                }
                _ => return self.unexpected("`{`"),
            }
        }
        Ok(tuning)
    }

    fn triple(&mut self) -> Result<[u32; 3], PtxError> {
        self.advance();
        let mut triple = [self.expect_int32()?, 1, 1];
        for later in &mut triple[1..] {
            if !self.accept(b',') {
                break;
            }
            *later = self.expect_int32()?;
        }
        Ok(triple)
    }

    /// What follows a state space: one or more variables of one type.
    pub fn variables(
        &mut self,
        space: StateSpace,
        external: bool,
        found: &mut Vec<ParsedVariable<'t>>,
    ) -> Result<(), PtxError> {
        let mut align = 0;
        let mut ty = None;
        let mut lanes = 1;
        let mut managed = false;
        while let Some(PtxToken::Dot(word)) = self.peek() {
            self.advance();
            match word {
                "align" => align = self.alignment()?,
                "attribute" => managed |= self.skip_attributes_with("managed"),
                "v2" => lanes = 2,
                "v4" => lanes = 4,
                _ => ty = Some(self.type_named(word)?),
            }
        }
        let Some(ty) = ty else { return self.unexpected("a type") };
        if align == 0 && lanes > 1 {
            align = ty.bytes() * lanes;
        }
        loop {
            let position = self.position();
            let name = self.expect_word()?;
            let dimensions = self.dimensions()?;
            let mut variable = ParsedVariable {
                position,
                name,
                space,
                ty,
                align,
                elements: Some(1),
                initial: Vec::new(),
                external,
                managed,
            };
            if self.accept(b'=') {
                variable.initial = self.initialiser()?;
            }
            variable.elements = match dimensions {
                None => Some(u64::from(lanes)),
                Some(None) if !variable.initial.is_empty() => Some(variable.initial.len() as u64),
                Some(count) => count.map(|count| count.saturating_mul(u64::from(lanes))),
            };
            check_size(&variable)?;
            found.push(variable);
            if self.accept(b';') {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    /// One value, or values in braces of any nesting: the order is what counts.
    fn initialiser(&mut self) -> Result<Vec<Initial<'t>>, PtxError> {
        let mut values = Vec::new();
        let mut depth = 0_usize;
        loop {
            if self.accept(b'{') {
                depth += 1;
            } else if self.accept(b'}') {
                depth = match depth.checked_sub(1) {
                    Some(depth) => depth,
                    None => return self.unexpected("a value"),
                };
                self.accept(b',');
            } else {
                values.push(self.initial()?);
                self.accept(b',');
            }
            if depth == 0 {
                // A comma after the last brace or value belongs to the next variable.
                if self.at > 0 && self.tokens[self.at - 1].0 == PtxToken::Mark(b',') {
                    self.at -= 1;
                }
                return Ok(values);
            }
        }
    }

    fn initial(&mut self) -> Result<Initial<'t>, PtxError> {
        let negative = self.accept(b'-');
        if !negative {
            self.accept(b'+');
        }
        match self.peek() {
            Some(PtxToken::Int(value)) => {
                self.advance();
                Ok(Initial::Int(if negative { value.wrapping_neg() } else { value }))
            }
            Some(PtxToken::F32(bits)) => {
                self.advance();
                Ok(Initial::F32(bits ^ (u32::from(negative) << 31)))
            }
            Some(PtxToken::F64(bits)) => {
                self.advance();
                Ok(Initial::F64(bits ^ (u64::from(negative) << 63)))
            }
            Some(PtxToken::Word(word)) if !negative => {
                self.advance();
                let generic = word == "generic" && self.accept(b'(');
                let name = if generic { self.expect_word()? } else { word };
                if generic {
                    self.expect(b')')?;
                }
                Ok(Initial::Address { name, addend: self.addend()?, generic })
            }
            _ => self.unexpected("a value"),
        }
    }

    /// `+4`, `-4`, `+-4` or nothing.
    pub fn addend(&mut self) -> Result<i64, PtxError> {
        let plus = self.accept(b'+');
        let negative = self.accept(b'-');
        if !plus && !negative {
            return Ok(0);
        }
        let value = self.expect_int()? as i64;
        Ok(if negative { value.wrapping_neg() } else { value })
    }
}

fn check_size(variable: &ParsedVariable<'_>) -> Result<(), PtxError> {
    if variable.bytes() > limits::VARIABLE_BYTES_MAX {
        return variable.position.limit("a variable's bytes", limits::VARIABLE_BYTES_MAX);
    }
    if variable.elements.is_some_and(|elements| (variable.initial.len() as u64) > elements) {
        return variable.position.syntax(format!("`{}` has more initial values than elements", variable.name));
    }
    Ok(())
}

/// The state space a word names.
pub(crate) fn space(word: &str) -> Option<StateSpace> {
    Some(match word {
        "global" => StateSpace::Global,
        "const" => StateSpace::Const,
        "shared" => StateSpace::Shared,
        "local" => StateSpace::Local,
        "param" => StateSpace::Param,
        _ => return None,
    })
}
