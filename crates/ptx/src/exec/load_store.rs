//! Loads and stores of a warp.
//!
//! Global memory may be touched by other workers at the same time, so every
//! access to it is a relaxed atomic of its element: a plain move on the host, and
//! never a data race. Shared and local memory belong to the worker alone, but go
//! the same way, since generic pointers mix them.

use super::machine::Machine;
use super::memory::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES};
use crate::fault::FaultKind;
use crate::lanes::{RegisterBits, Row, read, write};
use crate::op::{Op, OpOutcome, versions};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// One element in memory, as the register it goes to or comes from.
pub(crate) trait Element: Copy + 'static {
    type Register: RegisterBits;
    const BYTES: u32;
    /// # Safety
    /// `from` is aligned and readable.
    unsafe fn load(from: *const u8) -> Self::Register;
    /// # Safety
    /// `to` is aligned and writable.
    unsafe fn store(to: *mut u8, value: Self::Register);
}

macro_rules! elements {
    ($($ty:ty, $atomic:ty, $raw:ty, $slot:ty, $wide:ty;)*) => {$(
        impl Element for $ty {
            type Register = $slot;
            const BYTES: u32 = size_of::<$ty>() as u32;
            #[inline(always)]
            unsafe fn load(from: *const u8) -> $slot {
                // SAFETY: by contract, and all accesses of kernels are atomic.
                let value = unsafe { &*from.cast::<$atomic>() }.load(Relaxed);
                value as $ty as $wide as $slot
            }
            #[inline(always)]
            unsafe fn store(to: *mut u8, value: $slot) {
                // SAFETY: by contract, and all accesses of kernels are atomic.
                unsafe { &*to.cast::<$atomic>() }.store(value as $raw, Relaxed);
            }
        }
    )*};
}
elements! {
    u8, AtomicU8, u8, u32, u32; i8, AtomicU8, u8, u32, i32;
    u16, AtomicU16, u16, u32, u32; i16, AtomicU16, u16, u32, i32;
    u32, AtomicU32, u32, u32, u32; u64, AtomicU64, u64, u64, u64;
}

/// Which space the addresses of an instruction are in.
pub(crate) const FLAT: u8 = 0;
pub(crate) const SHARED: u8 = 1;
pub(crate) const LOCAL: u8 = 2;
pub(crate) const PARAM: u8 = 3;

/// A base register: 64 bits, or 32 for shared memory.
pub(crate) trait Base: RegisterBits {
    fn widen(self) -> u64;
}
impl Base for u32 {
    #[inline(always)]
    fn widen(self) -> u64 {
        u64::from(self)
    }
}
impl Base for u64 {
    #[inline(always)]
    fn widen(self) -> u64 {
        self
    }
}

impl Machine<'_> {
    /// The host bytes behind an address of a lane, of any space.
    pub(crate) fn host_pointer(
        &mut self,
        space: u8,
        lane: u32,
        address: u64,
        bytes: u32,
        is_write: bool,
    ) -> Result<*mut u8, FaultKind> {
        if !address.is_multiple_of(u64::from(bytes.max(1))) {
            return Err(FaultKind::Misaligned { address, bytes, write: is_write });
        }
        let mut missing = FaultKind::OutOfRange { address, bytes, write: is_write, read_only: false };
        let offset = |window: u64| address.wrapping_sub(window);
        let found = match space {
            SHARED => self.shared_pointer(address, bytes),
            LOCAL => self.local_pointer(lane, address, bytes),
            PARAM => self.param_pointer(address, bytes, is_write),
            _ if offset(SHARED_WINDOW) < WINDOW_BYTES => self.shared_pointer(offset(SHARED_WINDOW), bytes),
            _ if offset(LOCAL_WINDOW) < WINDOW_BYTES => self.local_pointer(lane, offset(LOCAL_WINDOW), bytes),
            _ if offset(PARAM_WINDOW) < WINDOW_BYTES => self.param_pointer(offset(PARAM_WINDOW), bytes, is_write),
            _ => self.global_pointer(address, bytes, is_write, &mut missing),
        };
        found.ok_or(missing)
    }

    fn shared_pointer(&mut self, offset: u64, bytes: u32) -> Option<*mut u8> {
        let end = offset.checked_add(u64::from(bytes))?;
        (end <= u64::from(self.shared_bytes))
            .then(|| self.shared.as_mut_ptr().cast::<u8>().wrapping_add(offset as usize))
    }

    fn local_pointer(&mut self, lane: u32, offset: u64, bytes: u32) -> Option<*mut u8> {
        let end = offset.checked_add(u64::from(bytes))?;
        let start = lane as usize * self.warp.local_bytes as usize + offset as usize;
        (end <= u64::from(self.warp.local_end)).then(|| self.warp.locals.as_mut_ptr().cast::<u8>().wrapping_add(start))
    }

    fn param_pointer(&mut self, offset: u64, bytes: u32, is_write: bool) -> Option<*mut u8> {
        let end = offset.checked_add(u64::from(bytes))?;
        let fits = end <= self.env.param_bytes as u64 && !is_write;
        fits.then(|| self.env.params.as_ptr().cast::<u8>().cast_mut().wrapping_add(offset as usize))
    }

    fn global_pointer(&mut self, address: u64, bytes: u32, is_write: bool, missing: &mut FaultKind) -> Option<*mut u8> {
        let known = *self.recent_region();
        if (known.writable || !is_write)
            && let Some(host) = known.host_pointer(address, bytes)
        {
            return Some(host);
        }
        let region = self.env.memory.region(address)?;
        let host = region.host_pointer(address, bytes)?;
        if is_write && !region.writable {
            *missing = FaultKind::OutOfRange { address, bytes, write: true, read_only: true };
            return None;
        }
        // An element that is aligned on the device must be aligned on the host.
        if (region.host as u64 ^ region.first) & 15 != 0 {
            return None;
        }
        self.set_recent_region(region);
        Some(host)
    }
}

/// The addresses of all lanes; a lane that is not active gets that of one that is.
///
/// # Safety
/// `op.a` is a register of the current frame with slots of type `A`.
#[inline(always)]
pub(crate) unsafe fn addresses<A: Base>(m: &Machine<'_>, op: &Op, mask: u32) -> Row<u64> {
    // SAFETY: by contract.
    let base = unsafe { read::<A>(m, op.a) };
    let mut found = [0; 32];
    for lane in 0..32 {
        found[lane] = base[lane].widen().wrapping_add(op.imm);
    }
    if mask != u32::MAX {
        let some = found[mask.trailing_zeros() as usize & 31];
        for (lane, address) in found.iter_mut().enumerate() {
            *address = if mask >> lane & 1 != 0 { *address } else { some };
        }
    }
    found
}

/// The host memory for all lanes at once, as a base to which each lane's offset is
/// added; `None` if the lanes have to be checked one by one.
///
/// Rewrites addresses into offsets when it succeeds.
#[inline(always)]
fn base_of_all_lanes<const SPACE: u8>(
    m: &mut Machine<'_>,
    addresses: &mut Row<u64>,
    bytes: u32,
    is_write: bool,
) -> Option<*mut u8> {
    let (first, length, host, allowed) = match SPACE {
        FLAT => {
            let region = m.recent_region();
            (region.first, region.bytes, region.host, region.writable || !is_write)
        }
        SHARED => (0, u64::from(m.shared_bytes), m.shared.as_mut_ptr().cast::<u8>(), true),
        LOCAL => (0, u64::from(m.warp.local_end), m.warp.locals.as_mut_ptr().cast::<u8>(), true),
        _ => (0, m.env.param_bytes as u64, m.env.params.as_ptr().cast::<u8>().cast_mut(), !is_write),
    };
    if !allowed || length < u64::from(bytes) {
        return None;
    }
    let limit = length - u64::from(bytes);
    let mut outside = 0_u64;
    let mut low_bits = 0_u64;
    for &address in addresses.iter() {
        low_bits |= address;
        outside |= u64::from(address.wrapping_sub(first) > limit);
    }
    if outside != 0 || low_bits & u64::from(bytes - 1) != 0 {
        return None;
    }
    let stride = u64::from(m.warp.local_bytes);
    for (lane, address) in addresses.iter_mut().enumerate() {
        *address = address.wrapping_sub(first);
        if SPACE == LOCAL {
            *address += lane as u64 * stride;
        }
    }
    Some(host)
}

/// The registers of a vector access, in order.
#[inline(always)]
fn vector_registers(op: &Op) -> [u32; 4] {
    [op.d, op.b, op.c, op.e]
}

#[inline(always)]
unsafe fn run_load<E: Element, A: Base, const SPACE: u8, const N: usize>(
    m: &mut Machine<'_>,
    op: &Op,
    mask: u32,
) -> OpOutcome {
    let bytes = E::BYTES * N as u32;
    // SAFETY: lowering gave the registers; addresses are checked before use.
    unsafe {
        let mut at = addresses::<A>(m, op, mask);
        let mut rows = [[E::Register::default(); 32]; N];
        if let Some(host) = base_of_all_lanes::<SPACE>(m, &mut at, bytes, false) {
            for lane in 0..32 {
                let from = host.wrapping_add(at[lane] as usize);
                for (index, row) in rows.iter_mut().enumerate() {
                    row[lane] = E::load(from.wrapping_add(index * E::BYTES as usize));
                }
            }
        } else {
            let pointers = match pointers_of_lanes(m, SPACE, &at, bytes, mask, false) {
                Ok(pointers) => pointers,
                Err(next) => return next,
            };
            for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
                for (index, row) in rows.iter_mut().enumerate() {
                    row[lane] = E::load(pointers[lane].wrapping_add(index * E::BYTES as usize));
                }
            }
        }
        for (row, to) in rows.iter().zip(vector_registers(op)) {
            if N == 1 || to != crate::op::NONE {
                write(m, to, mask, row);
            }
        }
    }
    OpOutcome::Continue
}
versions!(load = run_load<E: (Element), A: (Base); SPACE: u8, N: usize>);

#[inline(always)]
unsafe fn run_store<E: Element, A: Base, const SPACE: u8, const N: usize>(
    m: &mut Machine<'_>,
    op: &Op,
    mask: u32,
) -> OpOutcome {
    let bytes = E::BYTES * N as u32;
    // SAFETY: lowering gave the registers; addresses are checked before use.
    unsafe {
        let mut at = addresses::<A>(m, op, mask);
        let mut rows = [read::<E::Register>(m, op.d); N];
        for (row, from) in rows.iter_mut().zip(vector_registers(op)) {
            *row = read::<E::Register>(m, from);
        }
        if mask == u32::MAX
            && let Some(host) = base_of_all_lanes::<SPACE>(m, &mut at, bytes, true)
        {
            for lane in 0..32 {
                let to = host.wrapping_add(at[lane] as usize);
                for (index, row) in rows.iter().enumerate() {
                    E::store(to.wrapping_add(index * E::BYTES as usize), row[lane]);
                }
            }
            return OpOutcome::Continue;
        }
        let pointers = match pointers_of_lanes(m, SPACE, &at, bytes, mask, true) {
            Ok(pointers) => pointers,
            Err(next) => return next,
        };
        for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
            for (index, row) in rows.iter().enumerate() {
                E::store(pointers[lane].wrapping_add(index * E::BYTES as usize), row[lane]);
            }
        }
    }
    OpOutcome::Continue
}
versions!(store = run_store<E: (Element), A: (Base); SPACE: u8, N: usize>);

/// The host bytes of each active lane; nothing is touched unless all are there.
#[inline(never)]
pub(crate) fn pointers_of_lanes(
    m: &mut Machine<'_>,
    space: u8,
    at: &Row<u64>,
    bytes: u32,
    mask: u32,
    is_write: bool,
) -> Result<[*mut u8; 32], OpOutcome> {
    let mut found = [std::ptr::null_mut(); 32];
    for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
        match m.host_pointer(space, lane, at[lane as usize], bytes, is_write) {
            Ok(host) => found[lane as usize] = host,
            Err(kind) => return Err(m.fail(kind, 1 << lane)),
        }
    }
    Ok(found)
}
