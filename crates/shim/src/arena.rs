//! Where parked bytes are: host memory that only the holder has, registered with the driver in pieces so that copies
//! run at the speed of the bus.
//!
//! The memory comes from the daemon in files that no other process has; if they are too small, the process adds memory
//! of its own. The arena stays after a resume, so that its pages are ready for the next park.

use crate::driver::{self, PORTABLE, as_result};
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;

/// How much is registered with the driver at a time.
const PIECE: u64 = 256 << 20;
/// Memory is mapped in multiples of a huge page.
const HUGE: u64 = 2 << 20;
/// The address range of the arena: larger than any host's memory.
const ADDRESS_BYTES: u64 = 1 << 44;
/// The largest number of threads that touch fresh memory.
const TOUCH_THREADS: u64 = 8;

/// Whether the pages of a file are there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilePages {
    /// They are.
    Present,
    /// The kernel makes each when it is first touched.
    Absent,
}

/// The arena of this process.
#[derive(Default)]
pub struct ParkArena {
    base: u64,
    /// How many bytes are mapped.
    ready: u64,
    /// How many bytes have their pages.
    touched: u64,
    /// Pieces that are registered with the driver: offset and length.
    pieces: Vec<(u64, u64)>,
    /// How many bytes are registered with the driver.
    registered: u64,
}

impl ParkArena {
    /// Adds a file of `bytes` bytes.
    pub fn add_file(&mut self, file: &File, bytes: u64, pages: FilePages) -> Result<(), String> {
        let bytes = bytes - bytes % HUGE;
        if file.metadata().map_or(0, |data| data.len()) < bytes || self.ready.saturating_add(bytes) > ADDRESS_BYTES {
            return Err("the daemon gave memory to park in that is not what it said".to_owned());
        }
        if self.base == 0 {
            self.base = reserve()?;
        }
        let from = self.base + self.ready;
        // SAFETY: the range follows the mapped part of the arena's own addresses, and fits in them.
        unsafe { map(from, bytes, Some((file.as_raw_fd(), 0)))? };
        if pages == FilePages::Present && self.touched == self.ready {
            self.touched += bytes;
        }
        self.ready += bytes;
        Ok(())
    }

    /// The address of an offset.
    pub fn at(&self, offset: u64) -> *mut c_void {
        (self.base + offset) as *mut c_void
    }

    /// Ensures that `bytes` bytes are mapped, with their pages.
    pub fn grow(&mut self, bytes: u64) -> Result<(), String> {
        self.map_up_to(bytes)?;
        self.touch_to(bytes);
        Ok(())
    }

    /// Ensures that `bytes` bytes are mapped.
    fn map_up_to(&mut self, bytes: u64) -> Result<(), String> {
        let wanted = bytes.checked_next_multiple_of(HUGE).filter(|wanted| *wanted <= ADDRESS_BYTES);
        let wanted = wanted.ok_or("no host has so much memory")?;
        if wanted <= self.ready {
            return Ok(());
        }
        if self.base == 0 {
            self.base = reserve()?;
        }
        let (from, more) = (self.base + self.ready, wanted - self.ready);
        // SAFETY: the range follows the mapped part of the arena's own addresses, and fits in them.
        unsafe { map(from, more, None)? };
        self.ready = wanted;
        Ok(())
    }

    /// Ensures that the first `bytes` bytes have their pages.
    fn touch_to(&mut self, bytes: u64) {
        let to = bytes.next_multiple_of(HUGE).min(self.ready);
        if to > self.touched {
            // SAFETY: the range is mapped, and nothing was stored in it yet.
            unsafe { touch(self.base + self.touched, to - self.touched) };
            self.touched = to;
        }
    }

    /// Prepares the next piece of the first `bytes` bytes before it is needed. Returns whether there is more to do. A
    /// context must be current.
    pub fn prepare(&mut self, bytes: u64) -> Result<bool, u32> {
        // If there is no memory, the park will report it.
        if self.registered >= bytes || self.map_up_to(bytes).is_err() {
            return Ok(false);
        }
        self.touch_to((self.registered + PIECE).min(bytes));
        self.register_next()?;
        Ok(self.registered < bytes)
    }

    /// Registers the next piece with the driver. A context must be current.
    pub fn register_next(&mut self) -> Result<(), u32> {
        let bytes = PIECE.min(self.ready - self.registered);
        if bytes == 0 {
            return Err(driver::INVALID_VALUE);
        }
        // SAFETY: these bytes of the arena are mapped, and stay so until they are unregistered.
        as_result(unsafe { driver::cuMemHostRegister_v2(self.at(self.registered), bytes as usize, PORTABLE) })?;
        self.pieces.push((self.registered, bytes));
        self.registered += bytes;
        Ok(())
    }

    /// How many bytes are registered with the driver.
    pub fn registered(&self) -> u64 {
        self.registered
    }

    /// How many bytes there are from an offset to the end of its piece.
    pub fn bytes_left_in_piece(&self, offset: u64) -> u64 {
        let piece = self.pieces.iter().find(|(first, bytes)| (*first..first + bytes).contains(&offset));
        debug_assert!(piece.is_some(), "offset {offset} is not registered yet");
        piece.map_or(0, |(first, bytes)| first + bytes - offset)
    }

    /// Frees all of the arena. A context must be current.
    pub fn trim(&mut self) {
        for (first, _) in std::mem::take(&mut self.pieces) {
            // SAFETY: registered by `register_next`, once.
            unsafe { driver::cuMemHostUnregister(self.at(first)) };
        }
        if self.base != 0 {
            // SAFETY: reserved by `reserve` with this length, and no longer used.
            unsafe { libc::munmap(self.base as *mut c_void, ADDRESS_BYTES as usize) };
        }
        *self = ParkArena::default();
    }
}

fn reserve() -> Result<u64, String> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping; the kernel chooses where.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), ADDRESS_BYTES as usize, libc::PROT_NONE, flags, -1, 0) };
    if at == libc::MAP_FAILED { Err(last_error("addresses to park at")) } else { Ok(at as u64) }
}

/// Maps a file, or fresh memory, at an address.
///
/// # Safety
/// The range is in the arena's reservation, and nothing uses what is mapped there.
unsafe fn map(at: u64, bytes: u64, file: Option<(i32, u64)>) -> Result<(), String> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let (kind, descriptor, offset) = match file {
        Some((descriptor, offset)) => (libc::MAP_SHARED, descriptor, offset),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1, 0),
    };
    // SAFETY: the caller promises a range of the arena's own.
    unsafe {
        let place = at as *mut c_void;
        let flags = kind | libc::MAP_FIXED;
        if libc::mmap(place, bytes as usize, access, flags, descriptor, offset as libc::off_t) == libc::MAP_FAILED {
            return Err(last_error("memory to park in"));
        }
        // Advice only: without it the arena is slower, or copied into forks and core dumps.
        for wish in [libc::MADV_HUGEPAGE, libc::MADV_DONTFORK, libc::MADV_DONTDUMP] {
            libc::madvise(place, bytes as usize, wish);
        }
    }
    Ok(())
}

/// Touches every page, with several threads: the kernel clears pages as fast as the threads touch them.
///
/// # Safety
/// The range is mapped and writable, and nothing else uses it.
unsafe fn touch(at: u64, bytes: u64) {
    let hands =
        TOUCH_THREADS.min(bytes / HUGE).min(std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64));
    std::thread::scope(|scope| {
        let share = (bytes / hands.max(1)).next_multiple_of(HUGE);
        for first in (0..bytes).step_by(share as usize) {
            let end = (first + share).min(bytes);
            let work = move || {
                for offset in (first..end).step_by(4096) {
                    // SAFETY: the caller promises the range, and each thread has a part of its own.
                    unsafe { ((at + offset) as *mut u8).write_volatile(0) };
                }
            };
            // If the host gives no more threads, the copy touches the page first.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
    });
}

fn last_error(what: &str) -> String {
    format!("{what} cannot be had: {}", std::io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::{HUGE, ParkArena};

    #[test]
    fn the_arena_grows_up_to_its_address_range() {
        let mut arena = ParkArena::default();
        arena.grow(1).expect("a little");
        assert_eq!(arena.ready, HUGE);
        for bytes in [u64::MAX, (1 << 44) + 1] {
            assert!(arena.grow(bytes).is_err_and(|why| why.contains("no host")));
        }
        // SAFETY: `grow` has mapped it.
        assert_eq!(unsafe { arena.at(HUGE - 1).cast::<u8>().read() }, 0);
    }

    #[test]
    fn needed_pages_are_touched_once() {
        let mut arena = ParkArena::default();
        arena.map_up_to(8 * HUGE).expect("addresses");
        assert_eq!((arena.ready, arena.touched), (8 * HUGE, 0));
        arena.touch_to(HUGE + 1);
        assert_eq!(arena.touched, 2 * HUGE);
        // SAFETY: mapped above, and no other code knows the address.
        unsafe { arena.at(0).cast::<u8>().write(7) };
        arena.grow(4 * HUGE).expect("it is there");
        assert_eq!((arena.ready, arena.touched), (8 * HUGE, 4 * HUGE));
        // SAFETY: mapped above, and no other code knows the address.
        assert_eq!(unsafe { arena.at(0).cast::<u8>().read() }, 7, "what is in it stays");
        arena.touch_to(u64::MAX / 2);
        assert_eq!(arena.touched, 8 * HUGE);
    }
}
