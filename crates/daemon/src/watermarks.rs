//! The highest fences and lease numbers handed out, beside the journal: a restored backup knows less than was handed
//! out, and a clock that was set back does not know either.
//!
//! ```text
//!   start:  floor = the larger of the wall clock (µs) and the watermark;  watermark = floor + AHEAD
//!   later:  the watermark moves on before the fences come near it
//! ```
//! Beside it is a watermark for the numbers of leases, so that none is used again either. People read those, and they
//! shall have no large holes: that watermark is a little ahead, it moves before a number beyond it leaves, and a daemon
//! that stops in order puts it back to where the numbers are.
//!
//! The watermarks are written to two places in turn, without moving them: a full disk has room for them, and a power
//! cut spoils at most one.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use sublet_core::ids::Fence;

/// The file in the state directory.
const NAME: &str = "epochs";
/// Grants before the watermark moves: the microseconds in 9 minutes of the wall clock.
const AHEAD: u64 = 1 << 29;
/// Digits of the largest number.
const DIGITS: usize = 20;
/// The two places: in sectors of their own.
const PLACES: [u64; 2] = [0, 4096];

/// A symbolic link is not followed.
const NOFOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits() as i32;

/// The watermark of leases is ahead by at least this. A crash leaves a hole of that size, and it is written once in
/// this many leases.
const LEASES_LEAST: u64 = 64;
/// And by at most this, in a service that has handed out as many since its start.
const LEASES_MOST: u64 = 1 << 16;

/// The least numbers that were never handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatermarkFloor {
    /// Of fences.
    pub fence: Fence,
    /// Of leases.
    pub lease: u64,
}

/// The watermarks.
#[derive(Debug)]
pub struct Watermarks {
    file: File,
    fences: u64,
    /// All lease numbers that were handed out are below this.
    leases: u64,
    /// The first lease number of this daemon.
    first_lease: u64,
    /// The place of the next write.
    next: usize,
}

impl Watermarks {
    /// Opens the watermarks; returns the least numbers that were never handed out.
    pub fn open(dir: &Path, wall_us: u64) -> io::Result<(Watermarks, WatermarkFloor)> {
        let path = dir.join(NAME);
        let open = |path: &Path| OpenOptions::new().read(true).write(true).custom_flags(NOFOLLOW).open(path);
        let file = match open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(dir)?;
                open(&path)?
            }
            opened => opened?,
        };
        let found = PLACES.map(|place| read(&file, place));
        let Some((fences, _)) = found.into_iter().flatten().max() else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("`{}` is damaged", path.display())));
        };
        let lease = found.into_iter().flatten().map(|(_, leases)| leases).max().unwrap_or(0);
        let fence = wall_us.max(fences);
        let next = usize::from(found[0] == found.into_iter().flatten().max());
        let mut watermarks = Watermarks { file, fences, leases: lease, first_lease: lease, next };
        watermarks.move_to(fence.saturating_add(AHEAD), lease)?;
        Ok((watermarks, WatermarkFloor { fence: Fence(fence), lease }))
    }

    /// Keeps the watermark ahead of the next fence.
    pub fn keep_ahead(&mut self, next: Fence) -> io::Result<()> {
        if next.0.saturating_add(AHEAD / 2) <= self.fences {
            return Ok(());
        }
        self.move_to(next.0.saturating_add(AHEAD), self.leases)
    }

    /// Keeps the watermark of leases ahead of all numbers that leave: `next` is the first that does not.
    pub fn keep_leases_ahead(&mut self, next: u64) -> io::Result<()> {
        if next <= self.leases {
            return Ok(());
        }
        let ahead = next.saturating_sub(self.first_lease).clamp(LEASES_LEAST, LEASES_MOST);
        let leases = next.saturating_add(ahead);
        let moved = self.move_to(self.fences, leases);
        // Also after a failure: it is tried again after as many more.
        self.leases = leases;
        moved
    }

    /// The last write of a daemon that stops: it leaves no hole in the numbers of leases.
    pub fn close(&mut self, next_lease: u64) -> io::Result<()> {
        PLACES.iter().try_for_each(|_| self.move_to(self.fences, next_lease))
    }

    fn move_to(&mut self, fences: u64, leases: u64) -> io::Result<()> {
        self.file.write_all_at(text(fences, leases).as_bytes(), PLACES[self.next])?;
        self.file.sync_data()?;
        (self.fences, self.leases, self.next) = (fences, leases, 1 - self.next);
        Ok(())
    }
}

/// Makes the file with both watermarks, or not at all.
fn make(dir: &Path) -> io::Result<()> {
    let new = dir.join("epochs.new");
    // One that was left over may be another user's, or a link.
    let _ = std::fs::remove_file(&new);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(NOFOLLOW).open(&new)?;
    PLACES.into_iter().try_for_each(|place| file.write_all_at(text(0, 0).as_bytes(), place))?;
    file.sync_all()?;
    std::fs::rename(&new, dir.join(NAME))?;
    File::open(dir)?.sync_all()
}

fn text(fences: u64, leases: u64) -> String {
    format!("{fences:0DIGITS$}\n{leases:0DIGITS$}\n")
}

/// The watermarks in a place. Releases that knew only fences wrote nothing behind theirs.
fn read(file: &File, place: u64) -> Option<(u64, u64)> {
    let number = |at: u64| {
        let mut bytes = [0; DIGITS + 1];
        file.read_exact_at(&mut bytes, at).ok()?;
        if bytes == [0; DIGITS + 1] {
            return Some(None);
        }
        str::from_utf8(&bytes).ok()?.strip_suffix('\n')?.parse().ok().map(Some)
    };
    let behind = place + DIGITS as u64 + 1;
    let leases = if file.metadata().ok()?.len() <= behind { 0 } else { number(behind)?.unwrap_or(0) };
    Some((number(place)??, leases))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_fence_is_handed_out_twice_after_the_clock_was_set_back() {
        let dir = tempfile::tempdir().unwrap();
        let begin = |wall_us| {
            Watermarks::open(dir.path(), wall_us).map(|(watermarks, floor)| (watermarks, floor.fence)).unwrap()
        };
        let (_, first) = begin(1_000_000_000_000_000);
        assert_eq!(first, Fence(1_000_000_000_000_000));
        let (mut watermarks, second) = begin(5);
        assert_eq!(second.0, first.0 + AHEAD, "above all that the first may have handed out");
        watermarks.keep_ahead(Fence(second.0 + AHEAD - 1)).unwrap();
        let (_, third) = begin(5);
        assert!(third.0 >= second.0 + AHEAD - 1, "above what it was told of, too: {third:?}");
        let (_, later) = begin(2_000_000_000_000_000);
        assert_eq!(later, Fence(2_000_000_000_000_000));
    }

    #[test]
    fn lease_numbers_grow_over_a_crash_and_have_no_hole_after_a_stop() {
        let dir = tempfile::tempdir().unwrap();
        let begin = || Watermarks::open(dir.path(), 5).map(|(watermarks, floor)| (watermarks, floor.lease)).unwrap();
        let (mut watermarks, first) = begin();
        assert_eq!(first, 0);
        watermarks.keep_leases_ahead(22).unwrap();
        assert_eq!(begin().1, 22 + LEASES_LEAST, "a crash: above all that may have left");
        watermarks.keep_leases_ahead(22 + LEASES_LEAST).unwrap();
        assert_eq!(begin().1, 22 + LEASES_LEAST, "nothing was to be written");
        let (mut watermarks, _) = begin();
        watermarks.keep_leases_ahead(90).unwrap();
        watermarks.keep_ahead(Fence(u64::MAX / 2)).unwrap();
        watermarks.close(90).unwrap();
        let (mut watermarks, next) = begin();
        assert_eq!(next, 90);
        // A service that hands out many is ahead by as many, and writes seldom.
        watermarks.keep_leases_ahead(10_090).unwrap();
        assert_eq!(begin().1, 20_090);
    }

    #[test]
    fn a_file_of_an_earlier_release_has_no_lease_watermark() {
        let dir = tempfile::tempdir().unwrap();
        let mut old = vec![0; 4096 + DIGITS + 1];
        for place in PLACES {
            old[place as usize..][..DIGITS + 1].copy_from_slice(format!("{:0DIGITS$}\n", 77).as_bytes());
        }
        std::fs::write(dir.path().join(NAME), old).unwrap();
        assert_eq!(Watermarks::open(dir.path(), 5).unwrap().1, WatermarkFloor { fence: Fence(77), lease: 0 });
    }

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let precious = dir.path().join("precious");
        std::fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, dir.path().join("epochs.new")).unwrap();
        Watermarks::open(dir.path(), 5).unwrap();
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
        assert!(dir.path().join(NAME).symlink_metadata().unwrap().is_file());
        std::fs::remove_file(dir.path().join(NAME)).unwrap();
        std::os::unix::fs::symlink(&precious, dir.path().join(NAME)).unwrap();
        Watermarks::open(dir.path(), 5).unwrap_err();
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
    }

    #[test]
    fn a_spoiled_watermark_is_read_from_its_other_place() {
        let dir = tempfile::tempdir().unwrap();
        let begin = || Watermarks::open(dir.path(), 5).unwrap();
        let (_, _, (newest, _)) = (begin(), begin(), begin());
        let (path, file) = (dir.path().join(NAME), newest.file.try_clone().unwrap());
        let before = std::fs::read(&path).unwrap();
        // The older one is where the next would be written; it is as high as anything that was handed out before.
        for (spoiled, fences) in [(newest.next, newest.fences), (1 - newest.next, newest.fences - AHEAD)] {
            file.write_all_at(b"00x", PLACES[spoiled]).unwrap();
            assert_eq!(begin().1.fence, Fence(fences));
            file.write_all_at(&before, 0).unwrap();
        }
        PLACES.into_iter().for_each(|place| file.write_all_at(b"00x", place).unwrap());
        let error = Watermarks::open(dir.path(), 5).unwrap_err();
        assert!(error.to_string().contains("damaged"), "unknown is not zero: {error}");
    }
}
