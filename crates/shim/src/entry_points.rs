//! How programs enter the shim: the loader's `dlsym` and `dlvsym`, every function of the driver by name, and
//! [`sublet_shim_use_lease`].

use crate::activation;
use crate::control_thread;
use crate::driver;
use crate::gate;
use crate::hook;
use crate::loader_symbols;
use crate::nvml;
use crate::replacements::NameForm;
use std::arch::naked_asm;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Release;

/// What a program gets that looked a name up and would have got `real`.
fn resolve(name: &CStr, real: *mut c_void) -> *mut c_void {
    let Ok(text) = name.to_str() else { return real };
    if real.is_null() {
        return real;
    }
    if text.starts_with("nvml") {
        return nvml::resolve(name, real);
    }
    let mut at = real as usize;
    if is_ours(at) {
        // The program found the shim's own function. It gets the driver's only if the driver is loaded.
        if !driver::is_loaded() {
            return std::ptr::null_mut();
        }
        at = driver::find_function(name);
    }
    if gate::is_disarmed() {
        // A forked child takes no locks: the thread that held one does not exist there.
        return at as *mut c_void;
    }
    if !activation::is_active() {
        if driver::contains_address(at) {
            activation::report_tool();
        }
        return at as *mut c_void;
    }
    hook::hook_function(text, at, NameForm::Symbol) as *mut c_void
}

/// `dlsym` for a name with a prefix of the driver's or NVML's.
///
/// # Safety
/// The arguments are those of a call of `dlsym`, with a name that is not null.
unsafe extern "C" fn our_dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: a caller of `dlsym` passes a text that ends with a zero, and a handle of the loader.
    unsafe {
        let name = CStr::from_ptr(name);
        resolve(name, loader_symbols::real_dlsym(handle, name))
    }
}

/// `dlvsym` for such a name.
///
/// # Safety
/// The arguments are those of a call of `dlvsym`, with a name that is not null.
unsafe extern "C" fn our_dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
    // SAFETY: a caller of `dlvsym` passes texts that end with a zero, and a handle of the loader.
    unsafe {
        let name = CStr::from_ptr(name);
        resolve(name, loader_symbols::real_dlvsym(handle, name, version))
    }
}

/// `RTLD_NEXT` for such a name: the next symbol after the caller's library. Called from here, the loader would begin
/// after the shim, and a library behind the shim would find itself. Zero: the loader has to answer.
///
/// # Safety
/// As for [`our_dlsym`].
unsafe extern "C" fn next_symbol(_: *mut c_void, name: *const c_char, caller: usize) -> *mut c_void {
    // SAFETY: a caller of `dlsym` passes a text that ends with a zero.
    let name = unsafe { CStr::from_ptr(name) };
    loader_symbols::find_after(caller, name).map_or(std::ptr::null_mut(), |found| resolve(name, found as *mut c_void))
}

/// Other names are left to the loader. It looks at its caller's address, so it is jumped to, not called.
macro_rules! loader {
    ($name:ident, $real:path, $find:path, $ours:path) => {
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

loader!(dlsym, loader_symbols::REAL_DLSYM, loader_symbols::find_dlsym, our_dlsym);
loader!(dlvsym, loader_symbols::REAL_DLVSYM, loader_symbols::find_dlvsym, our_dlvsym);

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
                    first = sym first_call,
                )
            }
        )*

        /// True if an address is one of these functions.
        fn is_ours(address: usize) -> bool {
            [$($name as extern "C" fn() as usize),*].contains(&address)
        }
    };
}

include!(concat!(env!("OUT_DIR"), "/names.rs"));

/// Where an exported function goes from now on.
extern "C" fn link_exported(number: u32) -> usize {
    let name = NAMES[number as usize];
    let real = driver::find_function(name);
    if real == 0 {
        return missing_driver_function as extern "C" fn() -> u32 as usize;
    }
    let target = resolve(name, real as *mut c_void) as usize;
    TABLE[number as usize].store(target, Release);
    target
}

/// The result of a function that this driver does not have.
extern "C" fn missing_driver_function() -> u32 {
    driver::NOT_SUPPORTED
}

/// The first call of an exported function: finds where it goes, and goes there.
#[unsafe(naked)]
extern "C" fn first_call() {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "sub rsp, 208",
        "mov [rbp - 8], rdi",
        "mov [rbp - 16], rsi",
        "mov [rbp - 24], rdx",
        "mov [rbp - 32], rcx",
        "mov [rbp - 40], r8",
        "mov [rbp - 48], r9",
        "movups [rbp - 80], xmm0",
        "movups [rbp - 96], xmm1",
        "movups [rbp - 112], xmm2",
        "movups [rbp - 128], xmm3",
        "movups [rbp - 144], xmm4",
        "movups [rbp - 160], xmm5",
        "movups [rbp - 176], xmm6",
        "movups [rbp - 192], xmm7",
        "mov edi, r11d",
        "call {linked}",
        "mov r11, rax",
        "mov rdi, [rbp - 8]",
        "mov rsi, [rbp - 16]",
        "mov rdx, [rbp - 24]",
        "mov rcx, [rbp - 32]",
        "mov r8, [rbp - 40]",
        "mov r9, [rbp - 48]",
        "movups xmm0, [rbp - 80]",
        "movups xmm1, [rbp - 96]",
        "movups xmm2, [rbp - 112]",
        "movups xmm3, [rbp - 128]",
        "movups xmm4, [rbp - 144]",
        "movups xmm5, [rbp - 160]",
        "movups xmm6, [rbp - 176]",
        "movups xmm7, [rbp - 192]",
        "leave",
        "jmp r11",
        linked = sym link_exported,
    )
}

/// The program has the lease with this id, of the daemon that listens at this socket. Returns 0, or 1 if the texts
/// cannot be read. A program that uses the driver already waits here until the daemon knows, for a second at most.
///
/// # Safety
/// Both are texts that end with a zero, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_shim_use_lease(socket: *const c_char, lease: *const c_char) -> c_int {
    if socket.is_null() || lease.is_null() {
        return 1;
    }
    // SAFETY: neither is null, so the caller promises texts that end with a zero.
    let (socket, lease) = unsafe { (CStr::from_ptr(socket), CStr::from_ptr(lease)) };
    let Ok(lease) = lease.to_str() else { return 1 };
    control_thread::use_lease(Path::new(OsStr::from_bytes(socket.to_bytes())), lease);
    0
}
