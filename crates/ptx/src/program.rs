//! What lowering produces: code, frames, and what each launch still has to fill in.

use crate::op::Op;

/// The code of a module, and what its functions need.
pub(crate) struct LoweredProgram {
    pub code: Vec<Op>,
    pub functions: Vec<Frame>,
    /// The targets of each `brx.idx`.
    pub tables: Vec<Vec<u32>>,
    /// Names that calls need but the module does not define.
    pub externals: Vec<String>,
}

/// What one function needs of a warp.
#[derive(Debug, Clone, Default)]
pub(crate) struct Frame {
    /// Index of its first op; [`crate::op::NONE`] if it is only declared.
    pub entry: u32,
    /// Bytes of registers for 32 lanes.
    pub bytes: u32,
    /// Local bytes of a thread, parameters included.
    pub local_bytes: u32,
    /// The most bytes that a call of it passes: they lie behind its local memory.
    pub call_bytes: u32,
    /// Registers that hold constants.
    pub pool: Vec<PooledConstant>,
    /// Return values and inputs as bytes at the start of the local frame.
    pub abi_bytes: u32,
}

/// A register that is filled when a frame is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PooledConstant {
    pub at: u32,
    /// 64 bits, not 32.
    pub wide: bool,
    pub value: Value,
}

/// What a pooled register holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Value {
    Bits(u64),
    /// The device address of a module variable.
    Variable {
        index: u32,
        addend: i64,
    },
    /// The offset of a shared variable in the block's shared memory.
    Shared {
        index: u32,
        addend: i64,
    },
    /// An offset in the function's local frame.
    Local(u32),
    Special(Special),
    /// The number that stands for a function's address.
    Function(u32),
}

/// Special registers that do not change while a block runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NWarpId,
    SmId,
    NSmId,
    GridId,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    DynamicShared,
    TotalShared,
}

/// Function addresses start here, so that a null pointer is no function.
pub(crate) const FUNCTION_BASE: u64 = 0xFF08_0000_0000_0000;
