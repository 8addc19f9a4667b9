//! A program of the driver API: this executable, started with the word `program`.
//!
//! It holds memory with known contents and does what stdin says, one word a line: `check` reads it all back, `spin`
//! starts a kernel that runs until `release`. It knows nothing of Sublet.

use libloading::Library;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::io::BufRead;
use std::process::ExitCode;

/// Waits until a word in host memory has a value.
const PTX: &[u8] = b".version 8.0
.target sm_75
.address_size 64
.visible .entry wait_until(.param .u64 place, .param .u32 wanted)
{
    .reg .pred %p<2>; .reg .b32 %r<3>; .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [place];
    ld.param.u32 %r1, [wanted];
LOOK:
    ld.volatile.u32 %r2, [%rd1];
    setp.ne.u32 %p1, %r2, %r1;
    @%p1 bra LOOK;
    ret;
}
\0";
const WORD: u32 = 0x5eed_1e55;

/// Calls a function of the driver, each argument after its type, and expects that it succeeds.
macro_rules! call {
    ($library:expr, $name:ident, $($kind:ty: $argument:expr),*) => {{
        let name = concat!(stringify!($name), "\0").as_bytes();
        // SAFETY: the types are those of cuda.h, and whatever is pointed to lives until the call returns.
        let code = unsafe { (*$library.get::<unsafe extern "C" fn($($kind),*) -> c_int>(name).unwrap())($($argument),*) };
        assert_eq!(code, 0, "{}", stringify!($name));
    }};
}

/// `program BYTES [managed]`.
pub fn run(args: &[String]) -> ExitCode {
    let bytes: usize = args[0].parse().unwrap();
    // SAFETY: the initialisers of the library that the test names.
    let cuda = unsafe { Library::new(std::env::var_os("SUBLET_CUDA_LIB").unwrap()) }.unwrap();
    let (mut context, mut at, mut flag, mut module, mut kernel) = (0u64, 0u64, 0u64, 0u64, 0u64);
    call!(cuda, cuInit, c_uint: 0);
    call!(cuda, cuDevicePrimaryCtxRetain, *mut u64: &mut context, c_int: 0);
    call!(cuda, cuCtxSetCurrent, u64: context);
    call!(cuda, cuMemAlloc_v2, *mut u64: &mut at, usize: bytes);
    call!(cuda, cuMemsetD32_v2, u64: at, c_uint: WORD, usize: bytes / 4);
    if args.get(1).is_some_and(|word| word == "managed") {
        let mut managed = 0u64;
        call!(cuda, cuMemAllocManaged, *mut u64: &mut managed, usize: 1 << 20, c_uint: 1);
    }
    call!(cuda, cuMemHostAlloc, *mut u64: &mut flag, usize: 4096, c_uint: 2);
    call!(cuda, cuModuleLoadData, *mut u64: &mut module, *const u8: PTX.as_ptr());
    call!(cuda, cuModuleGetFunction, *mut u64: &mut kernel, u64: module, *const c_char: c"wait_until".as_ptr());
    println!("holds");
    let word = flag as *mut u32;
    for line in std::io::stdin().lock().lines() {
        match line.unwrap().as_str() {
            "check" => {
                let mut read = vec![0u32; bytes / 4];
                call!(cuda, cuMemcpyDtoH_v2, *mut u32: read.as_mut_ptr(), u64: at, usize: bytes);
                println!("{}", if read.iter().all(|word| *word == WORD) { "intact" } else { "damaged" });
            }
            "spin" => {
                // SAFETY: four of the bytes that were allocated above; only the kernel looks at them.
                unsafe { word.write_volatile(0) };
                let (mut place, mut wanted) = (flag, 1u32);
                let mut arguments = [(&raw mut place).cast::<c_void>(), (&raw mut wanted).cast()];
                launch(&cuda, kernel, &mut arguments);
                println!("spins");
            }
            "release" => {
                // SAFETY: as above.
                unsafe { word.write_volatile(1) };
                println!("released");
            }
            other => panic!("`{other}` is no order"),
        }
    }
    ExitCode::SUCCESS
}

/// One thread of one block.
fn launch(cuda: &Library, kernel: u64, arguments: &mut [*mut c_void]) {
    let (one, list) = (1, arguments.as_mut_ptr());
    call!(
        cuda, cuLaunchKernel, u64: kernel, c_uint: one, c_uint: one, c_uint: one, c_uint: one, c_uint: one,
        c_uint: one, c_uint: 0, u64: 0, *mut *mut c_void: list, *mut *mut c_void: std::ptr::null_mut()
    );
}
