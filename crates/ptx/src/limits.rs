//! The limits of what a module may use, each with its reason.
//!
//! A hostile module reaches one of these before it can exhaust the host.

/// The longest PTX text, in bytes. The largest modules of common libraries are
/// under 20 MiB; columns and offsets also fit 32 bits with room to spare.
pub const TEXT_BYTES_MAX: usize = 64 << 20;

/// How deep `{` may nest in a function body. Compilers emit two levels.
pub const SCOPE_DEPTH_MAX: usize = 64;

/// Functions of one module: each kernel is followed through all it may call, so
/// the work is this number squared at worst.
pub const FUNCTIONS_MAX: usize = 16 << 10;

/// Basic blocks of one function. Finding where branches meet is quadratic at worst;
/// the largest unrolled kernels have a few thousand.
pub const BLOCKS_MAX: usize = 64 << 10;

/// Targets of all `brx.idx` of one function together.
pub const TARGETS_MAX: usize = 1 << 20;

/// Ranges `%r<n>` of one scope: they are looked through one by one. Compilers
/// declare one for each type.
pub const RANGES_MAX: usize = 256;

/// Bytes of registers and constants of one function for one warp: 32 lanes of
/// 4 bytes each, so this holds 65,536 registers of 32 bits.
pub const FRAME_BYTES_MAX: u32 = 8 << 20;

/// Bytes of all register frames of one warp's calls together: a recursion ends
/// here or at [`CALL_DEPTH_MAX`], whichever comes first.
pub const WARP_BYTES_MAX: usize = 64 << 20;

/// How deep device functions may call each other.
pub const CALL_DEPTH_MAX: u32 = 1024;

/// Local bytes of one thread, with all its calls. A real GPU allows 512 KiB;
/// a block of 1024 threads then needs as much host memory as this times 1024.
pub const LOCAL_BYTES_MAX: u32 = 512 << 10;

/// Local bytes of one thread for the calls of a kernel if their depth cannot be
/// known beforehand (recursion, calls through a register).
pub const STACK_BYTES: u32 = 32 << 10;

/// Shared bytes of one block, static and dynamic together: what an H200 grants
/// a block that opts in.
pub const SHARED_BYTES_MAX: u32 = 227 << 10;

/// Threads of one block, as on every GPU since 2010.
pub const BLOCK_THREADS_MAX: u32 = 1024;

/// Bytes of one module variable: more than any GPU's memory is refused.
pub const VARIABLE_BYTES_MAX: u64 = 256 << 30;

/// Bytes of the initialisers of one module, as written out in memory.
pub const INITIAL_BYTES_MAX: u64 = 256 << 20;

/// Bytes of the parameters of one kernel (32,764 since PTX 8.1).
pub const PARAM_BYTES_MAX: u32 = 32 << 10;

/// Warp-instructions between two checks of the stop flag. At 20 million a second
/// this is under a millisecond.
pub const SLICE: u32 = 8192;
