//! The page of a lease: numbers that the daemon and the holder's programs both see.
//!
//! The daemon makes, seals and maps the file. Everything a holder writes there is only a claim: each number may be
//! anything at any time, and is used for nothing beyond its meaning.

use crate::report::ActivityCounts;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use sublet_shim_wire::{GPUS_MAX, LeasePage, MAGIC, ParkObstacle, ProcessPage, VERSION};

/// What a lease has of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuCap {
    /// The GPU's UUID, as the driver's 16 bytes.
    pub uuid: [u8; 16],
    /// The cap in bytes, contexts included.
    pub cap: u64,
    /// Bytes of them that one context takes.
    pub context: u64,
}

/// A page, mapped.
pub(crate) struct PageFile {
    file: OwnedFd,
    at: NonNull<LeasePage>,
}

// SAFETY: the mapping is the page's own until it is dropped, and holds nothing but atomic numbers.
unsafe impl Send for PageFile {}

impl PageFile {
    pub(crate) fn new() -> io::Result<PageFile> {
        let file = memfd_create("sublet-page", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, size_of::<LeasePage>() as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: a new mapping of a file of exactly this length, which is sealed.
        let at = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap(std::ptr::null_mut(), size_of::<LeasePage>(), access, MapFlags::SHARED, &file, 0)?
        };
        let at = NonNull::new(at.cast::<LeasePage>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let page = PageFile { file, at };
        page.get().version.store(VERSION, Relaxed);
        page.get().magic.store(MAGIC, Relaxed);
        Ok(page)
    }

    fn get(&self) -> &LeasePage {
        // SAFETY: mapped for as long as this lives, aligned to a page, and numbers that may be anything.
        unsafe { self.at.as_ref() }
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Writes the caps; GPUs beyond those a page has room for are not capped.
    pub(crate) fn set_caps(&self, caps: &[GpuCap]) {
        for (place, gpu) in caps.iter().take(GPUS_MAX).enumerate() {
            let slot = &self.get().gpus[place];
            for (byte, value) in slot.uuid.iter().zip(gpu.uuid) {
                byte.store(value, Relaxed);
            }
            slot.context.store(gpu.context, Relaxed);
            slot.cap.store(gpu.cap, Relaxed);
        }
    }

    fn slot(&self, pid: u32) -> Option<&ProcessPage> {
        self.get().processes.iter().find(|slot| slot.pid.load(Relaxed) == pid)
    }

    /// The pids of processes that have a place.
    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> + '_ {
        self.get().processes.iter().map(|slot| slot.pid.load(Relaxed)).filter(|pid| *pid != 0)
    }

    /// What a process reports of itself; `None` if it has no place.
    pub(crate) fn process(&self, pid: u32) -> Option<PageReport> {
        let slot = self.slot(pid)?;
        Some(PageReport {
            reason: ParkObstacle::first(slot.obstacles.load(Relaxed)),
            active_ns: slot.active_ns.load(Relaxed),
            bytes: slot.gpus.iter().fold(0, |sum, gpu| gpu.bytes.load(Relaxed).saturating_add(sum)),
        })
    }

    /// What a process did.
    pub(crate) fn counts(&self, pid: u32) -> ActivityCounts {
        let Some(slot) = self.slot(pid) else { return ActivityCounts::none() };
        let errors = slot.errors.iter().map(|it| (it.code.load(Relaxed), u64::from(it.count.load(Relaxed))));
        let errors = errors.filter(|(code, count)| *code != 0 && *count != 0).collect();
        let copied = self.get().copy_counter_of(slot);
        let copied = (copied.is_counted.load(Relaxed) != 0).then(|| copied.bytes.load(Relaxed));
        ActivityCounts { launches: slot.launches.load(Relaxed), copies: slot.copies.load(Relaxed), copied, errors }
    }

    /// The bytes that a process counts on a GPU, by the GPU's index in the list of caps.
    pub(crate) fn bytes_on(&self, pid: u32, place: usize) -> Option<u64> {
        Some(self.slot(pid)?.gpus.get(place)?.bytes.load(Relaxed))
    }

    /// Clears the place of a process that ended.
    pub(crate) fn clear(&self, pid: u32) {
        let Some(slot) = self.slot(pid) else { return };
        self.get().clear_slot(slot);
        slot.pid.store(0, SeqCst);
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, and nothing refers to it any more.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), size_of::<LeasePage>()) };
    }
}

/// What a process reports of itself on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageReport {
    /// Why it cannot be parked, if so.
    pub(crate) reason: Option<ParkObstacle>,
    /// When it last did anything, by the monotonic clock.
    pub(crate) active_ns: u64,
    /// Bytes on GPUs, without contexts.
    pub(crate) bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_sealed_and_has_its_magic_number() {
        let page = PageFile::new().expect("a page");
        assert!(ftruncate(page.file(), 0).is_err(), "a holder could cut it short under the daemon");
        assert_eq!(page.get().magic.load(Relaxed), MAGIC);
        page.set_caps(&vec![GpuCap { uuid: [7; 16], cap: 5, context: 2 }; GPUS_MAX + 3]);
        assert_eq!(page.get().gpus[GPUS_MAX - 1].cap.load(Relaxed), 5);
        assert_eq!(page.process(1), None);
    }

    #[test]
    fn a_cleared_place_on_the_page_is_zero() {
        let page = PageFile::new().expect("a page");
        let slot = &page.get().processes[3];
        slot.pid.store(42, Relaxed);
        slot.gpus[0].bytes.store(u64::MAX, Relaxed);
        slot.gpus[1].bytes.store(u64::MAX, Relaxed);
        slot.gpus[1].peak.store(5, Relaxed);
        slot.errors[0].count.store(5, Relaxed);
        assert_eq!(page.process(42).map(|it| it.bytes), Some(u64::MAX));
        page.clear(42);
        assert_eq!(page.process(42), None);
        assert_eq!(slot.gpus[0].bytes.load(Relaxed), 0);
        assert_eq!(
            (slot.gpus[1].peak.load(Relaxed), slot.errors[0].count.load(Relaxed)),
            (0, 0),
            "the next begins anew"
        );
    }
}
