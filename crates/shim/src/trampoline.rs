//! Machine code between a program and the driver: one stub for each function, and their common parts.
//!
//! A stub loads its number and jumps to [`pass`]. That asks the [gate](crate::gate) where to go, calls the target with
//! the arguments as they came, tells the gate when the call is over, and returns the result. The types of the arguments
//! are not known, so registers are preserved, and as many words of the stack are copied as the function can have. Calls
//! and returns are paired, as processors with a shadow stack require.
//!
//! Functions that only ask, or wait for the GPU, pass without the gate. Their stubs check whether the context is away,
//! which costs two instructions, and jump to the driver's function if it is not: if it were, they would hang there.

use crate::gate;
use crate::slots::{self, STUBS};
use std::arch::naked_asm;

/// Bytes of a stub.
const STUB_BYTES: usize = 16;
/// Bytes of a stub that passes without the gate.
const THIN_STUB_BYTES: usize = 32;

/// The address of the stub with this number.
pub fn stub(number: usize) -> usize {
    stubs as extern "C" fn() as usize + number * STUB_BYTES
}

/// The address of the stub with this number that passes without the gate.
pub fn thin_stub(number: usize) -> usize {
    thin_stubs as extern "C" fn() as usize + number * THIN_STUB_BYTES
}

/// Each stub has a jump of its own, so that the processor can predict it: programs ask a dozen questions for each
/// kernel that they launch.
#[unsafe(naked)]
extern "C" fn thin_stubs() {
    naked_asm!(
        ".set sublet_thin_number, 0",
        ".rept {count}",
        ".p2align 5",
        "cmp dword ptr [rip + {away}], 0",
        "jne 2f",
        "jmp qword ptr [rip + {straight} + 8 * sublet_thin_number]",
        "2:",
        "mov r11d, sublet_thin_number",
        "jmp {pass}",
        ".set sublet_thin_number, sublet_thin_number + 1",
        ".endr",
        count = const STUBS,
        away = sym gate::CONTEXT_AWAY,
        straight = sym slots::STRAIGHT,
        pass = sym wait_and_pass,
    )
}

/// The context is away: goes on to the driver's function once it is back.
#[unsafe(naked)]
extern "C" fn wait_and_pass() {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "sub rsp, 64",
        "mov [rbp - 8], rdi",
        "mov [rbp - 16], rsi",
        "mov [rbp - 24], rdx",
        "mov [rbp - 32], rcx",
        "mov [rbp - 40], r8",
        "mov [rbp - 48], r9",
        "mov [rbp - 56], r11",
        "mov edi, r11d",
        "call {wait}",
        "mov rdi, [rbp - 8]",
        "mov rsi, [rbp - 16]",
        "mov rdx, [rbp - 24]",
        "mov rcx, [rbp - 32]",
        "mov r8, [rbp - 40]",
        "mov r9, [rbp - 48]",
        "mov r11, [rbp - 56]",
        "leave",
        // Any value but `GO_ON` is the result of the call.
        "cmp eax, {go_on}",
        "jne 3f",
        "lea r10, [rip + {straight}]",
        "jmp [r10 + 8 * r11]",
        "3:",
        "ret",
        straight = sym slots::STRAIGHT,
        wait = sym gate::wait_for_context,
        go_on = const gate::GO_ON as i32,
    )
}

#[unsafe(naked)]
extern "C" fn stubs() {
    naked_asm!(
        ".set sublet_stub_number, 0",
        ".rept {count}",
        ".p2align 4",
        "mov r11d, sublet_stub_number",
        "jmp {pass}",
        ".set sublet_stub_number, sublet_stub_number + 1",
        ".endr",
        count = const STUBS,
        pass = sym pass,
    )
}

/// Passes the gate, calls the function, and leaves.
#[unsafe(naked)]
extern "C" fn pass() {
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
        "mov [rbp - 56], r11",
        "movups [rbp - 80], xmm0",
        "movups [rbp - 96], xmm1",
        "movups [rbp - 112], xmm2",
        "movups [rbp - 128], xmm3",
        "movups [rbp - 144], xmm4",
        "movups [rbp - 160], xmm5",
        "movups [rbp - 176], xmm6",
        "movups [rbp - 192], xmm7",
        "mov edi, r11d",
        // The address of the arguments; the first of them is just below.
        "mov rsi, rbp",
        "call {enter}",
        // No target: the second number is the result.
        "test rax, rax",
        "jz 4f",
        "mov r11, rax",
        "mov r10, rdx",
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
        "sub rsp, 96",
        "test r10, r10",
        "jz 3f",
        "2:",
        "mov rax, [rbp + 8 + 8 * r10]",
        "mov [rsp - 8 + 8 * r10], rax",
        "dec r10",
        "jnz 2b",
        "3:",
        "call r11",
        "mov [rbp - 8], rax",
        "mov edi, [rbp - 56]",
        "mov esi, eax",
        "call {leave}",
        "mov rax, [rbp - 8]",
        "leave",
        "ret",
        "4:",
        "mov eax, edx",
        "leave",
        "ret",
        enter = sym gate::enter,
        leave = sym gate::leave,
    )
}
