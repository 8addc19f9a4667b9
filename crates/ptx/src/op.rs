//! One lowered instruction, and the instruction set of the host it is lowered for.
//!
//! An [`Op`] is what the machine fetches: a function for one shape of one
//! instruction, and the byte offsets of its registers in the frame. There are no
//! names and no types left. A constant operand is a register that the frame's
//! pool fills; only `imm` lies in the instruction itself.

use crate::exec::machine::Machine;

/// Runs one instruction for the lanes of `mask`.
///
/// # Safety
/// `op` must come from the lowering of the function that has the current frame, and
/// the host must have the features of the [`Isa`] it was chosen for.
pub(crate) type Handler = unsafe fn(&mut Machine<'_>, op: &Op, mask: u32) -> OpOutcome;

/// What the machine does after an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum OpOutcome {
    /// Fetches at the warp's `pc`.
    Continue,
    /// Lets other warps of the block run.
    EndOfSlice,
    /// Waits at a barrier of the block.
    Barrier,
    /// Every lane has ended.
    Done,
    /// The machine's `fault` says why.
    Fault,
}

/// A register that is not there: no guard, no output.
pub(crate) const NONE: u32 = u32::MAX;

/// One lowered instruction.
#[derive(Clone, Copy)]
pub(crate) struct Op {
    pub run: Handler,
    /// An offset, a branch target or a number of bytes.
    pub imm: u64,
    /// Frame offsets; what each means is up to the handler.
    pub d: u32,
    pub a: u32,
    pub b: u32,
    pub c: u32,
    pub e: u32,
    /// Frame offset of the guarding predicate, or [`NONE`].
    pub guard: u32,
    /// All ones if the guard is negated.
    pub guard_flip: u32,
    /// The line of the text.
    pub line: u32,
}

/// Which instructions of the host the handlers may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isa {
    /// The instructions that every host of this architecture has.
    Plain,
    /// AVX2, FMA and the bit instructions that came with them.
    #[cfg(target_arch = "x86_64")]
    Wide,
}

impl Isa {
    /// The widest set that this host has.
    pub fn of_host() -> Isa {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("fma")
            && std::arch::is_x86_feature_detected!("bmi1")
            && std::arch::is_x86_feature_detected!("bmi2")
            && std::arch::is_x86_feature_detected!("lzcnt")
            && std::arch::is_x86_feature_detected!("popcnt")
        {
            return Isa::Wide;
        }
        Isa::Plain
    }
}

/// Defines the two versions of a handler body and the function that chooses.
///
/// `versions!(name = body<A: Lane, F: Fn(A) -> A>)` gives
/// `fn name::<A, F>(isa) -> Handler`.
macro_rules! versions {
    ($name:ident = $body:ident <$($g:ident : ($($bound:tt)*)),* $(; $($n:ident : $nt:ty),*)?>) => {
        pub(crate) fn $name<$($g: $($bound)*,)* $($(const $n: $nt,)*)?>(isa: $crate::op::Isa) -> $crate::op::Handler {
            unsafe fn plain<$($g: $($bound)*,)* $($(const $n: $nt,)*)?>(
                m: &mut $crate::exec::machine::Machine<'_>, op: &$crate::op::Op, mask: u32,
            ) -> $crate::op::OpOutcome {
                // SAFETY: the same contract.
                unsafe { $body::<$($g,)* $($($n,)*)?>(m, op, mask) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            unsafe fn wide<$($g: $($bound)*,)* $($(const $n: $nt,)*)?>(
                m: &mut $crate::exec::machine::Machine<'_>, op: &$crate::op::Op, mask: u32,
            ) -> $crate::op::OpOutcome {
                // SAFETY: the same contract.
                unsafe { $body::<$($g,)* $($($n,)*)?>(m, op, mask) }
            }
            match isa {
                $crate::op::Isa::Plain => plain::<$($g,)* $($($n,)*)?>,
                #[cfg(target_arch = "x86_64")]
                $crate::op::Isa::Wide => wide::<$($g,)* $($($n,)*)?>,
            }
        }
    };
}
pub(crate) use versions;
