//! What the parser finds: declarations and statements, with names still as text.
//!
//! Nothing is resolved or checked against the instruction set here.

use crate::error::TextPosition;

/// A type as an instruction or a declaration names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F32,
    F64,
}

impl Type {
    /// The type a dotted word names, if it names one that is run here.
    pub fn named(word: &str) -> Option<Type> {
        Some(match word {
            "pred" => Type::Pred,
            "b8" => Type::B8,
            "b16" => Type::B16,
            "b32" => Type::B32,
            "b64" => Type::B64,
            "b128" => Type::B128,
            "u8" => Type::U8,
            "u16" => Type::U16,
            "u32" => Type::U32,
            "u64" => Type::U64,
            "s8" => Type::S8,
            "s16" => Type::S16,
            "s32" => Type::S32,
            "s64" => Type::S64,
            "f32" => Type::F32,
            "f64" => Type::F64,
            _ => return None,
        })
    }

    /// Bytes in memory; a predicate has none.
    pub fn bytes(self) -> u32 {
        match self {
            Type::Pred => 0,
            Type::B8 | Type::U8 | Type::S8 => 1,
            Type::B16 | Type::U16 | Type::S16 => 2,
            Type::B32 | Type::U32 | Type::S32 | Type::F32 => 4,
            Type::B64 | Type::U64 | Type::S64 | Type::F64 => 8,
            Type::B128 => 16,
        }
    }

    pub fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    pub fn is_float(self) -> bool {
        matches!(self, Type::F32 | Type::F64)
    }
}

/// A word that names a type which exists in PTX but is refused here.
pub(crate) fn is_refused_type(word: &str) -> bool {
    const EXACT: [&str; 5] = ["f16", "bf16", "tf32", "b4x16", "b6x16_p32"];
    let small_float = word.starts_with('e') && word[1..].starts_with(|c: char| c.is_ascii_digit());
    let packed = word.ends_with("x2") || word.ends_with("x4");
    EXACT.contains(&word) || packed || small_float
}

/// A state space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateSpace {
    Global,
    Const,
    Shared,
    Local,
    Param,
}

/// One element of an initialiser.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Initial<'t> {
    Int(u64),
    F32(u32),
    F64(u64),
    /// The address of a name, plus a number of bytes; `generic` if it was
    /// written as `generic(name)`.
    Address {
        name: &'t str,
        addend: i64,
        generic: bool,
    },
}

/// A variable of any space.
#[derive(Debug, Clone)]
pub(crate) struct ParsedVariable<'t> {
    pub position: TextPosition,
    pub name: &'t str,
    pub space: StateSpace,
    pub ty: Type,
    /// Explicit alignment, or 0.
    pub align: u32,
    /// Number of elements; `None` for `[]`.
    pub elements: Option<u64>,
    pub initial: Vec<Initial<'t>>,
    pub external: bool,
    /// The host has it at the same address.
    pub managed: bool,
}

impl ParsedVariable<'_> {
    /// The alignment it has.
    pub fn alignment(&self) -> u32 {
        if self.align != 0 { self.align } else { self.ty.bytes().max(1) }
    }

    /// Its size; an array of unknown length has none.
    pub fn bytes(&self) -> u64 {
        self.elements.unwrap_or(0).saturating_mul(u64::from(self.ty.bytes()))
    }
}

/// A formal parameter or return value: in `.param` space or in a register.
#[derive(Debug, Clone)]
pub(crate) struct Formal<'t> {
    pub variable: ParsedVariable<'t>,
    pub register: bool,
}

/// `.reg .b32 %r<10>` is one with a count; `.reg .b32 x` one without.
#[derive(Debug, Clone)]
pub(crate) struct Registers<'t> {
    pub position: TextPosition,
    pub ty: Type,
    pub name: &'t str,
    pub count: Option<u32>,
}

/// An operand as written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand<'t> {
    /// A register, variable, label or function.
    Name(&'t str),
    /// `%tid.x`.
    Part(&'t str, &'t str),
    /// `!%p1`.
    Not(&'t str),
    /// `%p1|%p2`.
    Pair(Box<Operand<'t>>, Box<Operand<'t>>),
    /// `name+8`.
    Offset(&'t str, i64),
    Int(u64),
    F32(u32),
    F64(u64),
    /// `{a, b}`.
    Vector(Vec<Operand<'t>>),
    /// `[base+offset]`; the base is a name or nothing.
    Address(Option<&'t str>, i64),
    /// `(a, b)` of a call.
    List(Vec<Operand<'t>>),
}

/// A guarded instruction.
#[derive(Debug, Clone)]
pub(crate) struct Instruction<'t> {
    pub position: TextPosition,
    /// The predicate, and whether it is negated.
    pub guard: Option<(&'t str, bool)>,
    pub name: &'t str,
    pub modifiers: Vec<&'t str>,
    pub operands: Vec<Operand<'t>>,
}

/// The shape of a function: what goes in and what comes out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Signature<'t> {
    pub returns: Vec<Formal<'t>>,
    pub inputs: Vec<Formal<'t>>,
}

/// One statement of a body.
#[derive(Debug, Clone)]
pub(crate) enum Statement<'t> {
    Label(&'t str, TextPosition),
    Open,
    Close,
    Registers(Registers<'t>),
    Variable(ParsedVariable<'t>),
    BranchTargets(&'t str, Vec<&'t str>),
    Prototype(&'t str, Signature<'t>),
    Instruction(Instruction<'t>),
}

/// `.maxntid` and its kin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tuning {
    pub max_threads: Option<[u32; 3]>,
    pub required_threads: Option<[u32; 3]>,
    pub min_blocks: Option<u32>,
    pub max_registers: Option<u32>,
}

/// A kernel or a device function.
#[derive(Debug, Clone)]
pub(crate) struct ParsedFunction<'t> {
    pub position: TextPosition,
    pub name: &'t str,
    pub is_kernel: bool,
    pub signature: Signature<'t>,
    pub tuning: Tuning,
    /// `None` for a declaration.
    pub body: Option<Vec<Statement<'t>>>,
}

/// A whole text.
#[derive(Debug, Clone, Default)]
pub(crate) struct ParsedModule<'t> {
    pub version: (u32, u32),
    pub target: &'t str,
    pub address_bits: u32,
    pub variables: Vec<ParsedVariable<'t>>,
    pub functions: Vec<ParsedFunction<'t>>,
}
