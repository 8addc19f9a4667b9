//! `atom` and `red`: one lane after another, each a real atomic on the host, since
//! other workers may be at the same address.

use super::load_store::{Base, addresses, pointers_of_lanes};
use super::machine::Machine;
use crate::lanes::{RegisterBits, Row, read, write};
use crate::op::{NONE, Op, OpOutcome};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A word that the host can change atomically.
pub(crate) trait AtomicWord: RegisterBits {
    const BYTES: u32;
    /// Replaces the word by `f` of it and returns what was there.
    ///
    /// # Safety
    /// `at` is aligned and writable.
    unsafe fn update(at: *mut u8, f: impl Fn(Self) -> Self) -> Self;
}

macro_rules! words {
    ($($ty:ty, $atomic:ty;)*) => {$(
        impl AtomicWord for $ty {
            const BYTES: u32 = size_of::<$ty>() as u32;
            #[inline(always)]
            unsafe fn update(at: *mut u8, f: impl Fn(Self) -> Self) -> Self {
                // SAFETY: by contract, and all accesses of kernels are atomic.
                let word = unsafe { &*at.cast::<$atomic>() };
                let mut old = word.load(Ordering::Relaxed);
                loop {
                    match word.compare_exchange_weak(old, f(old), Ordering::SeqCst, Ordering::Relaxed) {
                        Ok(old) => return old,
                        Err(now) => old = now,
                    }
                }
            }
        }
    )*};
}
words! { u32, AtomicU32; u64, AtomicU64; }

/// `d = old; [a + imm] = f(old, b, c)`, in the order of the lanes.
///
/// # Safety
/// As for a handler; `A`, `W` fit the registers.
#[inline(always)]
pub(crate) unsafe fn exchange<W: AtomicWord, A: Base, const SPACE: u8>(
    m: &mut Machine<'_>,
    op: &Op,
    mask: u32,
    f: impl Fn(W, W, W) -> W,
) -> OpOutcome {
    // SAFETY: lowering gave the registers; the addresses are checked before use.
    unsafe {
        let at = addresses::<A>(m, op, mask);
        let pointers = match pointers_of_lanes(m, SPACE, &at, W::BYTES, mask, true) {
            Ok(pointers) => pointers,
            Err(next) => return next,
        };
        let b: Row<W> = *read::<W>(m, op.b);
        let c: Row<W> = if op.c == NONE { b } else { *read::<W>(m, op.c) };
        let mut old = [W::default(); 32];
        for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
            old[lane] = W::update(pointers[lane], |now| f(now, b[lane], c[lane]));
        }
        if op.d != NONE {
            write(m, op.d, mask, &old);
        }
    }
    OpOutcome::Continue
}
