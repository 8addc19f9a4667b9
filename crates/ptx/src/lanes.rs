//! Handlers that do the same for every lane: one function of one lane's values,
//! spread over a warp.
//!
//! The functions are closures without captures, so a handler is made for each and
//! the loop over lanes is compiled around it. Every such function is total: lanes
//! that are not active compute on whatever they hold, and the result is dropped.

use crate::exec::machine::Machine;
use crate::op::{Handler, Isa, Op, OpOutcome, versions};

/// What a register holds for one lane: 32 or 64 bits.
pub(crate) trait RegisterBits: Copy + Default + 'static {}
impl RegisterBits for u32 {}
impl RegisterBits for u64 {}

/// A type of values in registers. Narrow types sit in the low bits of 32; what is
/// above them means nothing.
pub(crate) trait LaneValue: Copy + 'static {
    type Register: RegisterBits;
    fn get(slot: Self::Register) -> Self;
    fn into_register(self) -> Self::Register;
}

macro_rules! integer_lanes {
    ($($ty:ty => $unsigned:ty, $slot:ty;)*) => {$(
        impl LaneValue for $ty {
            type Register = $slot;
            #[inline(always)]
            fn get(slot: $slot) -> Self {
                slot as $ty
            }
            #[inline(always)]
            fn into_register(self) -> $slot {
                self as $unsigned as $slot
            }
        }
    )*};
}
integer_lanes! {
    u8 => u8, u32; i8 => u8, u32; u16 => u16, u32; i16 => u16, u32;
    u32 => u32, u32; i32 => u32, u32; u64 => u64, u64; i64 => u64, u64;
}

impl LaneValue for f32 {
    type Register = u32;
    #[inline(always)]
    fn get(slot: u32) -> Self {
        f32::from_bits(slot)
    }
    #[inline(always)]
    fn into_register(self) -> u32 {
        self.to_bits()
    }
}

impl LaneValue for f64 {
    type Register = u64;
    #[inline(always)]
    fn get(slot: u64) -> Self {
        f64::from_bits(slot)
    }
    #[inline(always)]
    fn into_register(self) -> u64 {
        self.to_bits()
    }
}

/// Thirty-two values of one register.
pub(crate) type Row<S> = [S; 32];

/// Writes the lanes of `mask`; lanes that have ended may be written too, since
/// nothing reads them.
///
/// # Safety
/// `at` is the offset of a register of the current frame with slots of type `S`.
#[inline(always)]
pub(crate) unsafe fn write<S: RegisterBits>(m: &mut Machine<'_>, at: u32, mask: u32, row: &Row<S>) {
    // SAFETY: by contract the register lies in the frame.
    let to = unsafe { &mut *m.warp.regs.add(at as usize).cast::<Row<S>>() };
    if mask == m.warp.alive {
        *to = *row;
    } else {
        for lane in 0..32 {
            to[lane] = if mask >> lane & 1 != 0 { row[lane] } else { to[lane] };
        }
    }
}

/// The values of a register.
///
/// # Safety
/// As for [`write`].
#[inline(always)]
pub(crate) unsafe fn read<'r, S: RegisterBits>(m: &Machine<'_>, at: u32) -> &'r Row<S> {
    // SAFETY: by contract the register lies in the frame, which outlives the handler.
    unsafe { &*m.warp.regs.add(at as usize).cast::<Row<S>>() }
}

/// The lanes for which a predicate holds.
///
/// # Safety
/// `at` is the offset of a predicate of the current frame.
#[inline(always)]
pub(crate) unsafe fn predicate(m: &Machine<'_>, at: u32) -> u32 {
    // SAFETY: by contract.
    unsafe { *m.warp.regs.add(at as usize).cast::<u32>() }
}

/// Sets a predicate for the lanes of `mask`.
///
/// # Safety
/// As for [`predicate`].
#[inline(always)]
pub(crate) unsafe fn set_predicate(m: &mut Machine<'_>, at: u32, mask: u32, bits: u32) {
    // SAFETY: by contract.
    let to = unsafe { &mut *m.warp.regs.add(at as usize).cast::<u32>() };
    *to = (*to & !mask) | (bits & mask);
}

/// A value of a type without bytes.
///
/// # Safety
/// A value of `F` must have been given to the function that chose the handler.
#[inline(always)]
unsafe fn zero_sized_value<'f, F>() -> &'f F {
    const { assert!(size_of::<F>() == 0, "a lane function captures nothing") };
    // SAFETY: no bytes are read, and by contract a value exists.
    unsafe { std::ptr::NonNull::<F>::dangling().as_ref() }
}

#[inline(always)]
unsafe fn run1<A: LaneValue, R: LaneValue, F: Fn(A) -> R>(m: &mut Machine<'_>, op: &Op, mask: u32) -> OpOutcome {
    // SAFETY: `unary` was given a value of `F`; the lowering gave the offsets.
    unsafe {
        let f = zero_sized_value::<F>();
        let a = read::<A::Register>(m, op.a);
        let mut row = [R::Register::default(); 32];
        for lane in 0..32 {
            row[lane] = f(A::get(a[lane])).into_register();
        }
        write(m, op.d, mask, &row);
    }
    OpOutcome::Continue
}
versions!(choose1 = run1<A: (LaneValue), R: (LaneValue), F: (Fn(A) -> R)>);

/// `d = f(a)`.
pub(crate) fn unary<A: LaneValue, R: LaneValue, F: Fn(A) -> R + Copy>(isa: Isa, _f: F) -> Handler {
    choose1::<A, R, F>(isa)
}

#[inline(always)]
unsafe fn run2<A: LaneValue, B: LaneValue, R: LaneValue, F: Fn(A, B) -> R>(
    m: &mut Machine<'_>,
    op: &Op,
    mask: u32,
) -> OpOutcome {
    // SAFETY: as in `run1`.
    unsafe {
        let f = zero_sized_value::<F>();
        let (a, b) = (read::<A::Register>(m, op.a), read::<B::Register>(m, op.b));
        let mut row = [R::Register::default(); 32];
        for lane in 0..32 {
            row[lane] = f(A::get(a[lane]), B::get(b[lane])).into_register();
        }
        write(m, op.d, mask, &row);
    }
    OpOutcome::Continue
}
versions!(choose2 = run2<A: (LaneValue), B: (LaneValue), R: (LaneValue), F: (Fn(A, B) -> R)>);

/// `d = f(a, b)`.
pub(crate) fn binary<A: LaneValue, B: LaneValue, R: LaneValue, F: Fn(A, B) -> R + Copy>(isa: Isa, _f: F) -> Handler {
    choose2::<A, B, R, F>(isa)
}

#[inline(always)]
unsafe fn run3<A: LaneValue, B: LaneValue, C: LaneValue, R: LaneValue, F: Fn(A, B, C) -> R>(
    m: &mut Machine<'_>,
    op: &Op,
    mask: u32,
) -> OpOutcome {
    // SAFETY: as in `run1`.
    unsafe {
        let f = zero_sized_value::<F>();
        let (a, b, c) = (read::<A::Register>(m, op.a), read::<B::Register>(m, op.b), read::<C::Register>(m, op.c));
        let mut row = [R::Register::default(); 32];
        for lane in 0..32 {
            row[lane] = f(A::get(a[lane]), B::get(b[lane]), C::get(c[lane])).into_register();
        }
        write(m, op.d, mask, &row);
    }
    OpOutcome::Continue
}
versions!(choose3 = run3<A: (LaneValue), B: (LaneValue), C: (LaneValue), R: (LaneValue), F: (Fn(A, B, C) -> R)>);

/// `d = f(a, b, c)`.
pub(crate) fn ternary<A: LaneValue, B: LaneValue, C: LaneValue, R: LaneValue, F: Fn(A, B, C) -> R + Copy>(
    isa: Isa,
    _f: F,
) -> Handler {
    choose3::<A, B, C, R, F>(isa)
}

#[inline(always)]
unsafe fn run4<A: LaneValue, B: LaneValue, C: LaneValue, E: LaneValue, R: LaneValue, F: Fn(A, B, C, E) -> R>(
    m: &mut Machine<'_>,
    op: &Op,
    mask: u32,
) -> OpOutcome {
    // SAFETY: as in `run1`.
    unsafe {
        let f = zero_sized_value::<F>();
        let (a, b, c) = (read::<A::Register>(m, op.a), read::<B::Register>(m, op.b), read::<C::Register>(m, op.c));
        let e = read::<E::Register>(m, op.e);
        let mut row = [R::Register::default(); 32];
        for lane in 0..32 {
            row[lane] = f(A::get(a[lane]), B::get(b[lane]), C::get(c[lane]), E::get(e[lane])).into_register();
        }
        write(m, op.d, mask, &row);
    }
    OpOutcome::Continue
}
versions!(choose4 = run4<A: (LaneValue), B: (LaneValue), C: (LaneValue), E: (LaneValue), R: (LaneValue), F: (Fn(A, B, C, E) -> R)>);

/// `d = f(a, b, c, e)`.
pub(crate) fn quaternary<
    A: LaneValue,
    B: LaneValue,
    C: LaneValue,
    E: LaneValue,
    R: LaneValue,
    F: Fn(A, B, C, E) -> R + Copy,
>(
    isa: Isa,
    _f: F,
) -> Handler {
    choose4::<A, B, C, E, R, F>(isa)
}

/// Thirty-two truths as the bits of a word.
#[inline(always)]
pub(crate) fn bits_of_truths(conditions: &[u8; 32]) -> u32 {
    let mut bits = 0;
    for (index, eight) in conditions.as_chunks::<8>().0.iter().enumerate() {
        // Each byte is 0 or 1; the multiplication gathers them in the top byte.
        let gathered = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        bits |= (gathered as u32) << (8 * index);
    }
    bits
}

#[inline(always)]
unsafe fn run_compare<A: LaneValue, B: LaneValue, F: Fn(A, B) -> bool>(
    m: &mut Machine<'_>,
    op: &Op,
    mask: u32,
) -> OpOutcome {
    // SAFETY: as in `run1`; `d` is a predicate.
    unsafe {
        let f = zero_sized_value::<F>();
        let (a, b) = (read::<A::Register>(m, op.a), read::<B::Register>(m, op.b));
        let mut conditions = [0_u8; 32];
        for lane in 0..32 {
            conditions[lane] = u8::from(f(A::get(a[lane]), B::get(b[lane])));
        }
        set_predicate(m, op.d, mask, bits_of_truths(&conditions));
    }
    OpOutcome::Continue
}
versions!(choose_compare = run_compare<A: (LaneValue), B: (LaneValue), F: (Fn(A, B) -> bool)>);

/// `p = f(a, b)`.
pub(crate) fn compare<A: LaneValue, B: LaneValue, F: Fn(A, B) -> bool + Copy>(isa: Isa, _f: F) -> Handler {
    choose_compare::<A, B, F>(isa)
}

#[inline(always)]
unsafe fn run_with_predicate<A: LaneValue, B: LaneValue, R: LaneValue, F: Fn(A, B, bool) -> R>(
    m: &mut Machine<'_>,
    op: &Op,
    mask: u32,
) -> OpOutcome {
    // SAFETY: as in `run1`; `c` is a predicate.
    unsafe {
        let f = zero_sized_value::<F>();
        let (a, b) = (read::<A::Register>(m, op.a), read::<B::Register>(m, op.b));
        let conditions = predicate(m, op.c);
        let mut row = [R::Register::default(); 32];
        for lane in 0..32 {
            row[lane] = f(A::get(a[lane]), B::get(b[lane]), conditions >> lane & 1 != 0).into_register();
        }
        write(m, op.d, mask, &row);
    }
    OpOutcome::Continue
}
versions!(choose_with = run_with_predicate<A: (LaneValue), B: (LaneValue), R: (LaneValue), F: (Fn(A, B, bool) -> R)>);

/// `d = f(a, b, p)`, with the predicate in `c`.
pub(crate) fn with_predicate<A: LaneValue, B: LaneValue, R: LaneValue, F: Fn(A, B, bool) -> R + Copy>(
    isa: Isa,
    _f: F,
) -> Handler {
    choose_with::<A, B, R, F>(isa)
}

#[inline(always)]
unsafe fn run_words<F: Fn(u32, u32) -> u32>(m: &mut Machine<'_>, op: &Op, mask: u32) -> OpOutcome {
    // SAFETY: `predicates` was given a value of `F`; all three are predicates.
    unsafe {
        let bits = zero_sized_value::<F>()(predicate(m, op.a), predicate(m, op.b));
        set_predicate(m, op.d, mask, bits);
    }
    OpOutcome::Continue
}
versions!(choose_words = run_words<F: (Fn(u32, u32) -> u32)>);

/// `p = f(q, r)` on whole words of predicates.
pub(crate) fn predicates<F: Fn(u32, u32) -> u32 + Copy>(isa: Isa, _f: F) -> Handler {
    choose_words::<F>(isa)
}

#[inline(always)]
unsafe fn run_carry<A: LaneValue, R: LaneValue, F: Fn(A, A, bool) -> (R, bool), const IN: bool, const OUT: bool>(
    m: &mut Machine<'_>,
    op: &Op,
    mask: u32,
) -> OpOutcome {
    // SAFETY: as in `run1`; `e` is the predicate that holds the carry.
    unsafe {
        let f = zero_sized_value::<F>();
        let (a, b) = (read::<A::Register>(m, op.a), read::<A::Register>(m, op.b));
        let carried = if IN { predicate(m, op.e) } else { 0 };
        let mut row = [R::Register::default(); 32];
        let mut carries = [0_u8; 32];
        for lane in 0..32 {
            let (value, carry) = f(A::get(a[lane]), A::get(b[lane]), carried >> lane & 1 != 0);
            row[lane] = value.into_register();
            carries[lane] = u8::from(carry);
        }
        write(m, op.d, mask, &row);
        if OUT {
            set_predicate(m, op.e, mask, bits_of_truths(&carries));
        }
    }
    OpOutcome::Continue
}
versions!(choose_carry = run_carry<A: (LaneValue), R: (LaneValue), F: (Fn(A, A, bool) -> (R, bool)); IN: bool, OUT: bool>);

/// `d = f(a, b, carry)`, with the carry read, written or both.
pub(crate) fn carrying<A: LaneValue, R: LaneValue, F: Fn(A, A, bool) -> (R, bool) + Copy>(
    isa: Isa,
    (reads, writes): (bool, bool),
    _f: F,
) -> Handler {
    match (reads, writes) {
        (false, false) => choose_carry::<A, R, F, false, false>(isa),
        (false, true) => choose_carry::<A, R, F, false, true>(isa),
        (true, false) => choose_carry::<A, R, F, true, false>(isa),
        (true, true) => choose_carry::<A, R, F, true, true>(isa),
    }
}
