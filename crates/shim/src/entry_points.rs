//! How programs enter the shim: the loader's `dlsym` and `dlvsym`, and every function of the driver by name.

use crate::driver;
use crate::hook;
use crate::loader_symbols;
use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

static REAL_DLSYM: AtomicUsize = AtomicUsize::new(0);
static REAL_DLVSYM: AtomicUsize = AtomicUsize::new(0);

/// Where the loader's functions are: in glibc, in an old glibc, or in another C library. Programs of the latter have no
/// driver, but may have the shim preloaded.
const LOADER: [&str; 4] = ["libc.so.6", "libdl.so.2", "libc-", "ld-musl-"];

extern "C" fn find_dlsym() -> usize {
    find_loader_function(&REAL_DLSYM, c"dlsym")
}

extern "C" fn find_dlvsym() -> usize {
    find_loader_function(&REAL_DLVSYM, c"dlvsym")
}

fn find_loader_function(place: &AtomicUsize, name: &CStr) -> usize {
    let known = place.load(Acquire);
    if known != 0 {
        return known;
    }
    let found =
        loader_symbols::find(&LOADER, name).unwrap_or(missing_loader_function as extern "C" fn() -> usize as usize);
    place.store(found, Release);
    found
}

/// Stands for a loader function that was not found.
extern "C" fn missing_loader_function() -> usize {
    0
}

/// The loader's own `dlsym`.
pub fn real_dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    let real = find_dlsym();
    // SAFETY: it is the loader's function of that name.
    let real: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void = unsafe { std::mem::transmute(real) };
    // SAFETY: the name ends with a zero; handles are the caller's matter.
    unsafe { real(handle, name.as_ptr()) }
}

/// `dlsym` for a name with a prefix of the driver's or NVML's.
extern "C" fn our_dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: a caller of `dlsym` passes a text that ends with a zero.
    let name = unsafe { CStr::from_ptr(name) };
    hook::resolve(name, real_dlsym(handle, name))
}

/// `dlvsym` for such a name.
extern "C" fn our_dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
    // SAFETY: it is the loader's function of that name; the caller gives texts that end with a zero.
    unsafe {
        let real: unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void =
            std::mem::transmute(find_dlvsym());
        hook::resolve(CStr::from_ptr(name), real(handle, name, version))
    }
}

/// `RTLD_NEXT` for such a name: the next symbol after the caller's library. Called from here, the loader would begin
/// after the shim, and a library behind the shim would find itself. Zero: the loader has to answer.
extern "C" fn next_symbol(_: *mut c_void, name: *const c_char, caller: usize) -> *mut c_void {
    // SAFETY: a caller of `dlsym` passes a text that ends with a zero.
    let name = unsafe { CStr::from_ptr(name) };
    loader_symbols::find_after(caller, name)
        .map_or(std::ptr::null_mut(), |found| hook::resolve(name, found as *mut c_void))
}

/// Other names are left to the loader. It looks at its caller's address, so it is jumped to, not called.
macro_rules! loader {
    ($name:ident, $real:ident, $find:ident, $ours:ident) => {
        #[doc = concat!("`", stringify!($name), "`, which knows the driver's functions.")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() {
            naked_asm!(
                "endbr64",
                "test rsi, rsi",
                "jz 2f",
                "cmp byte ptr [rsi], 0x63", // c
                "jne 3f",
                "cmp byte ptr [rsi + 1], 0x75", // u
                "jne 2f",
                "movzx eax, byte ptr [rsi + 2]",
                "sub eax, 0x41", // A to Z
                "cmp eax, 25",
                "ja 2f",
                "cmp rdi, -1", // RTLD_NEXT
                "je 5f",
                "jmp {ours}",
                "3:",
                "cmp byte ptr [rsi], 0x6e", // nvml
                "jne 2f",
                "cmp byte ptr [rsi + 1], 0x76",
                "jne 2f",
                "cmp byte ptr [rsi + 2], 0x6d",
                "jne 2f",
                "cmp byte ptr [rsi + 3], 0x6c",
                "jne 2f",
                "jmp {ours}",
                "2:",
                "mov r11, qword ptr [rip + {real}]",
                "test r11, r11",
                "jnz 4f",
                "push rdi",
                "push rsi",
                "push rdx",
                "call {find}",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "mov r11, rax",
                "4:",
                "jmp r11",
                "5:",
                "push rdi",
                "push rsi",
                "push rdx",
                "mov rdx, [rsp + 24]",
                "call {next}",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "test rax, rax",
                "jz 2b",
                "ret",
                next = sym next_symbol,
                ours = sym $ours,
                real = sym $real,
                find = sym $find,
            )
        }
    };
}

loader!(dlsym, REAL_DLSYM, find_dlsym, our_dlsym);
loader!(dlvsym, REAL_DLVSYM, find_dlvsym, our_dlvsym);

/// Defines the exported functions. Each jumps to its entry of the table, which is filled at the first call.
macro_rules! names {
    ($count:literal; $($number:literal $name:ident)*) => {
        static TABLE: [AtomicUsize; $count] = [const { AtomicUsize::new(0) }; $count];

        /// The names, in the order of the table.
        static NAMES: [&CStr; $count] = [$(
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name has no zero in it"),
            }
        ),*];

        $(
            #[doc = concat!("`", stringify!($name), "` of the driver.")]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() {
                naked_asm!(
                    "endbr64",
                    "mov r11, qword ptr [rip + {table} + {offset}]",
                    "test r11, r11",
                    "jz 2f",
                    "jmp r11",
                    "2:",
                    "mov r11d, {number}",
                    "jmp {first}",
                    table = sym TABLE,
                    offset = const $number * 8,
                    number = const $number,
                    first = sym crate::trampoline::first_call,
                )
            }
        )*

        /// True if an address is one of these functions.
        pub fn is_ours(address: usize) -> bool {
            [$($name as extern "C" fn() as usize),*].contains(&address)
        }
    };
}

include!(concat!(env!("OUT_DIR"), "/names.rs"));

/// Where an exported function goes from now on.
pub extern "C" fn link_exported(number: u32) -> usize {
    let name = NAMES[number as usize];
    let real = driver::find_function(name);
    if real == 0 {
        return missing_driver_function as extern "C" fn() -> u32 as usize;
    }
    let target = hook::resolve(name, real as *mut c_void) as usize;
    TABLE[number as usize].store(target, Release);
    target
}

/// The result of a function that this driver does not have.
extern "C" fn missing_driver_function() -> u32 {
    driver::NOT_SUPPORTED
}
