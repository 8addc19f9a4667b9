//! Cuts a text into tokens, each with its position.
//!
//! Nothing here knows what a word means: `.reg` and `.f32` are both [`PtxToken::Dot`].

use crate::error::{PtxError, TextPosition};

/// One token; words borrow from the text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum PtxToken<'t> {
    /// A name: `add`, `%r1`, `$L__BB0_2`, `_`.
    Word(&'t str),
    /// A word after a dot, without the dot: `global`, `L1::evict_last`.
    Dot(&'t str),
    /// An integer, as its 64 bits.
    Int(u64),
    /// `0f3F800000`.
    F32(u32),
    /// `0d3FF0000000000000`, or a decimal number with a point.
    F64(u64),
    /// A string in double quotes, without them.
    Text(&'t str),
    /// One character of punctuation.
    Mark(u8),
}

/// Cuts the whole text.
pub(crate) fn tokens(text: &str) -> Result<Vec<(PtxToken<'_>, TextPosition)>, PtxError> {
    let mut lexer = Lexer { text, bytes: text.as_bytes(), at: 0, line: 1, line_start: 0 };
    let mut found = Vec::with_capacity(text.len() / 5);
    while let Some(token) = lexer.next()? {
        found.push(token);
    }
    Ok(found)
}

struct Lexer<'t> {
    text: &'t str,
    bytes: &'t [u8],
    at: usize,
    line: u32,
    line_start: usize,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%')
}

impl<'t> Lexer<'t> {
    fn position(&self) -> TextPosition {
        TextPosition { line: self.line, column: (self.at - self.line_start + 1) as u32 }
    }

    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn next(&mut self) -> Result<Option<(PtxToken<'t>, TextPosition)>, PtxError> {
        self.skip_blank()?;
        let position = self.position();
        let token = match self.peek(0) {
            0 if self.at >= self.bytes.len() => return Ok(None),
            b'0'..=b'9' => self.number(position)?,
            b'.' if is_word(self.peek(1)) => {
                self.at += 1;
                PtxToken::Dot(self.dotted())
            }
            b'"' => self.string(position)?,
            byte if is_word(byte) => PtxToken::Word(self.word()),
            byte if byte.is_ascii_graphic() => {
                self.at += 1;
                PtxToken::Mark(byte)
            }
            byte => return position.syntax(format!("unexpected byte 0x{byte:02x}")),
        };
        Ok(Some((token, position)))
    }

    fn skip_blank(&mut self) -> Result<(), PtxError> {
        loop {
            match (self.peek(0), self.peek(1)) {
                (b'\n', _) => {
                    self.at += 1;
                    self.line += 1;
                    self.line_start = self.at;
                }
                (b' ' | b'\t' | b'\r' | 0x0b | 0x0c, _) => self.at += 1,
                (b'/', b'/') => {
                    while self.at < self.bytes.len() && self.bytes[self.at] != b'\n' {
                        self.at += 1;
                    }
                }
                (b'/', b'*') => self.skip_comment()?,
                // Some writers end the text with a zero byte.
                (0, _) if self.at + 1 == self.bytes.len() => self.at += 1,
                _ => return Ok(()),
            }
        }
    }

    fn skip_comment(&mut self) -> Result<(), PtxError> {
        let position = self.position();
        self.at += 2;
        loop {
            match self.peek(0) {
                _ if self.at >= self.bytes.len() => return position.syntax("a comment is not closed"),
                b'*' if self.peek(1) == b'/' => {
                    self.at += 2;
                    return Ok(());
                }
                b'\n' => {
                    self.at += 1;
                    self.line += 1;
                    self.line_start = self.at;
                }
                _ => self.at += 1,
            }
        }
    }

    fn word(&mut self) -> &'t str {
        let start = self.at;
        while is_word(self.peek(0)) {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    /// A word that may hold `::`, as in `L2::128B`.
    fn dotted(&mut self) -> &'t str {
        let start = self.at;
        loop {
            if is_word(self.peek(0)) {
                self.at += 1;
            } else if self.peek(0) == b':' && self.peek(1) == b':' && is_word(self.peek(2)) {
                self.at += 2;
            } else {
                return &self.text[start..self.at];
            }
        }
    }

    fn string(&mut self, position: TextPosition) -> Result<PtxToken<'t>, PtxError> {
        self.at += 1;
        let start = self.at;
        loop {
            match self.peek(0) {
                b'"' => break,
                b'\n' => return position.syntax("a string is not closed"),
                0 if self.at >= self.bytes.len() => return position.syntax("a string is not closed"),
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        let end = self.at;
        self.at += 1;
        match self.text.get(start..end) {
            Some(text) => Ok(PtxToken::Text(text)),
            None => position.syntax("a string is not closed"),
        }
    }

    fn number(&mut self, position: TextPosition) -> Result<PtxToken<'t>, PtxError> {
        let start = self.at;
        if self.peek(0) == b'0' && matches!(self.peek(1), b'f' | b'F' | b'd' | b'D') {
            let word = self.word();
            return float_bits(word).map_or_else(|| position.syntax(format!("`{word}` is not a number")), Ok);
        }
        let digits = self.word();
        let fraction = self.peek(0) == b'.' && self.peek(1).is_ascii_digit();
        let signed = digits.ends_with(['e', 'E']) && !digits.starts_with("0x") && matches!(self.peek(0), b'+' | b'-');
        if fraction || signed {
            self.at += 1;
            self.word();
            if self.text[start..self.at].ends_with(['e', 'E']) && matches!(self.peek(0), b'+' | b'-') {
                self.at += 1;
                self.word();
            }
        }
        let word = &self.text[start..self.at];
        if let Some(int) = integer(word) {
            return Ok(PtxToken::Int(int));
        }
        match word.parse::<f64>() {
            Ok(value) if !word.contains('_') => Ok(PtxToken::F64(value.to_bits())),
            _ => position.syntax(format!("`{word}` is not a number")),
        }
    }
}

fn float_bits(word: &str) -> Option<PtxToken<'static>> {
    let hex = &word[2..];
    if !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    match (word.as_bytes()[1].to_ascii_lowercase(), hex.len()) {
        (b'f', 8) => u32::from_str_radix(hex, 16).ok().map(PtxToken::F32),
        (b'd', 16) => u64::from_str_radix(hex, 16).ok().map(PtxToken::F64),
        _ => None,
    }
}

fn integer(word: &str) -> Option<u64> {
    let word = word.strip_suffix('U').unwrap_or(word);
    let (digits, radix) = match word.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&word[2..], 16),
        [b'0', b'b' | b'B', ..] => (&word[2..], 2),
        [b'0', _, ..] => (&word[1..], 8),
        _ => (word, 10),
    };
    // `from_str_radix` would take a sign.
    if !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(text: &str, expect: Expect) {
        let shown = match tokens(text) {
            Ok(tokens) => tokens.iter().map(|(token, _)| format!("{token:?}")).collect::<Vec<_>>().join(" "),
            Err(error) => error.to_string(),
        };
        expect.assert_eq(&shown);
    }

    #[test]
    fn an_instruction_is_words_dots_and_marks() {
        check(
            "@%p1 ld.global.L1::evict_last.v2.f32 {%f1,_}, [%rd1+-4];",
            expect![[
                r#"Mark(64) Word("%p1") Word("ld") Dot("global") Dot("L1::evict_last") Dot("v2") Dot("f32") Mark(123) Word("%f1") Mark(44) Word("_") Mark(125) Mark(44) Mark(91) Word("%rd1") Mark(43) Mark(45) Int(4) Mark(93) Mark(59)"#
            ]],
        );
    }

    #[test]
    fn numbers_come_in_every_radix_and_as_float_bits() {
        check(
            "10 0x1F 017 0b11 5U 0f3F800000 0d3FF0000000000000 1.5 2e3 1e-1 0",
            expect![
                "Int(10) Int(31) Int(15) Int(3) Int(5) F32(1065353216) F64(4607182418800017408) F64(4609434218613702656) F64(4656510908468559872) F64(4591870180066957722) Int(0)"
            ],
        );
    }

    #[test]
    fn a_wrong_number_is_named_with_its_place() {
        check("add\n 0f3F80", expect!["line 2, column 2: `0f3F80` is not a number"]);
    }

    #[test]
    fn an_open_comment_is_refused() {
        check("mov /* never", expect!["line 1, column 5: a comment is not closed"]);
    }
}
