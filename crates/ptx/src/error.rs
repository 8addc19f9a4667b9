//! Why a text is not a module this interpreter runs.

use thiserror::Error;

/// A module was refused; `line` and `column` count from 1.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: {kind}")]
pub struct PtxError {
    /// The line of the text.
    pub line: u32,
    /// The column in that line, in bytes.
    pub column: u32,
    /// What is wrong there.
    pub kind: PtxErrorKind,
}

/// What is wrong with a module.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PtxErrorKind {
    /// The text does not follow the grammar.
    #[error("{0}")]
    Syntax(String),
    /// A name is unknown, or names another kind of thing than is needed here.
    #[error("{0}")]
    Name(String),
    /// An instruction that no table knows.
    #[error("unknown instruction `{0}`")]
    UnknownInstruction(String),
    /// An instruction or type that exists but is not run here.
    #[error("`{0}` is not supported")]
    Unsupported(String),
    /// The operands do not fit the instruction.
    #[error("{0}")]
    Operands(String),
    /// One of the bounds of [`crate::limits`].
    #[error("{what}: more than the limit of {limit}")]
    Limit {
        /// What is too large.
        what: &'static str,
        /// The bound.
        limit: u64,
    },
}

/// A position in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TextPosition {
    pub line: u32,
    pub column: u32,
}

impl TextPosition {
    /// An error at this position.
    pub fn error(self, kind: PtxErrorKind) -> PtxError {
        PtxError { line: self.line, column: self.column, kind }
    }

    pub fn syntax<T>(self, message: impl Into<String>) -> Result<T, PtxError> {
        Err(self.error(PtxErrorKind::Syntax(message.into())))
    }

    pub fn name<T>(self, message: impl Into<String>) -> Result<T, PtxError> {
        Err(self.error(PtxErrorKind::Name(message.into())))
    }

    pub fn operands<T>(self, message: impl Into<String>) -> Result<T, PtxError> {
        Err(self.error(PtxErrorKind::Operands(message.into())))
    }

    pub fn unsupported<T>(self, message: impl Into<String>) -> Result<T, PtxError> {
        Err(self.error(PtxErrorKind::Unsupported(message.into())))
    }

    pub fn limit<T>(self, what: &'static str, limit: u64) -> Result<T, PtxError> {
        Err(self.error(PtxErrorKind::Limit { what, limit }))
    }
}
