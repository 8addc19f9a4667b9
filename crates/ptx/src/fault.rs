//! Why a launch ended early, and where.

use std::fmt;
use thiserror::Error;

/// A launch ended early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelFault {
    /// What happened.
    pub kind: FaultKind,
    /// The name of the kernel that was launched.
    pub kernel: String,
    /// Where, unless the launch was refused before it began.
    pub site: Option<Box<FaultSite>>,
}

/// The instruction and the thread of a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultSite {
    /// The line of the module's text, from 1.
    pub line: u32,
    /// That line, without blanks around it.
    pub text: String,
    /// The block's index.
    pub block: [u32; 3],
    /// The thread's index in its block.
    pub thread: [u32; 3],
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FaultKind {
    /// The launch cannot begin.
    #[error("{0}")]
    Refused(String),
    /// There is no memory that the kernel may access in this way.
    #[error("{} of {bytes} bytes at 0x{address:x}, where {}", verb(*write), absence(*read_only))]
    OutOfRange {
        /// The address, in the space of the instruction.
        address: u64,
        /// How many bytes.
        bytes: u32,
        /// A write (or an atomic), not a read.
        write: bool,
        /// Memory is there, but may only be read.
        read_only: bool,
    },
    /// The address is not a multiple of the size.
    #[error("{} of {bytes} bytes at 0x{address:x}, which is not a multiple of {bytes}", verb(*write))]
    Misaligned {
        /// The address.
        address: u64,
        /// How many bytes, and the alignment that needs.
        bytes: u32,
        /// A write (or an atomic), not a read.
        write: bool,
    },
    /// Threads of a block wait for others that do not come.
    #[error("barrier {barrier} waits for threads that do not come to it")]
    DivergentBarrier {
        /// Its number.
        barrier: u32,
    },
    /// A barrier with an invalid number or number of threads.
    #[error("barrier {barrier} with {threads} threads is not valid")]
    BadBarrier {
        /// Its number.
        barrier: u32,
        /// How many threads it was to wait for.
        threads: u32,
    },
    /// The kernel executed `trap` or `brkpt`.
    #[error("the kernel trapped")]
    Trap,
    /// An assertion of the kernel's source failed.
    #[error("assertion `{message}` failed at {file}:{line} in `{function}`")]
    Assert {
        /// The expression.
        message: String,
        /// The source file.
        file: String,
        /// Its line.
        line: u32,
        /// The function.
        function: String,
    },
    /// The launch was told to stop.
    #[error("the launch was stopped")]
    Stopped,
    /// Calls went deeper than there is room for.
    #[error("calls nest deeper than {depth}")]
    CallDepth {
        /// How deep they were.
        depth: u32,
    },
    /// A call to something that is not a function of the module.
    #[error("call of `{0}`, which the module does not define")]
    Unresolved(String),
}

fn verb(write: bool) -> &'static str {
    if write { "write" } else { "read" }
}

fn absence(read_only: bool) -> &'static str {
    if read_only { "memory is read-only" } else { "no memory is mapped" }
}

impl fmt::Display for KernelFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel `{}`: {}", self.kernel, self.kind)?;
        let Some(site) = &self.site else { return Ok(()) };
        let FaultSite { line, text, block: [bx, by, bz], thread: [tx, ty, tz] } = &**site;
        write!(f, " (line {line}: `{text}`, block {bx},{by},{bz} thread {tx},{ty},{tz})")
    }
}

impl std::error::Error for KernelFault {}
