//! How far epochs went, beside the journal: a backup that is put back knows less than was handed out, and a
//! clock that was set back does not know either.
//!
//! ```text
//!   start:  floor = the larger of the wall clock (µs) and the mark;  mark = floor + AHEAD
//!   later:  the mark moves on before the epochs come near it
//! ```
//! Beside it is another mark for the numbers of leases, so that none is used again either. Those are for people, and
//! shall have no large holes: that mark is a little ahead, it moves before a number beyond it leaves, and whoever
//! stops in peace puts it back to where the numbers are.
//!
//! The marks are written in two places by turns, where they stand: a full disk has room for them, and a power cut
//! spoils one of them at most.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use sublet_core::ids::Fence;

/// The file in the state directory.
const NAME: &str = "epochs";
/// So many grants fit before the mark moves: as many as the wall clock has microseconds in nine minutes.
const AHEAD: u64 = 1 << 29;
/// Digits of the largest number there is.
const DIGITS: usize = 20;
/// Where the two places are: in sectors of their own.
const PLACES: [u64; 2] = [0, 4096];

/// A name that leads elsewhere is not followed.
const NOFOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits() as i32;

/// So far the mark of leases is ahead at least. A crash leaves a hole of that size, and a write comes once in so many.
const LEASES_LEAST: u64 = 64;
/// And at most, of a service that has handed out as many since it started.
const LEASES_MOST: u64 = 1 << 16;

/// The least numbers that were never handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatermarkFloor {
    /// Of epochs.
    pub epoch: Fence,
    /// Of leases.
    pub lease: u64,
}

/// The marks.
#[derive(Debug)]
pub struct Watermarks {
    file: File,
    mark: u64,
    /// All numbers of leases that were handed out are below this.
    leases: u64,
    /// Where those began.
    first_lease: u64,
    /// Where the next marks are written.
    next: usize,
}

impl Watermarks {
    /// The least numbers that were never handed out, and the marks from here on.
    pub fn begin(dir: &Path, wall_us: u64) -> io::Result<(Watermarks, WatermarkFloor)> {
        let path = dir.join(NAME);
        let open = |path: &Path| OpenOptions::new().read(true).write(true).custom_flags(NOFOLLOW).open(path);
        let file = match open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(dir)?;
                open(&path)?
            }
            opened => opened?,
        };
        let marks = PLACES.map(|place| read(&file, place));
        let Some((mark, _)) = marks.into_iter().flatten().max() else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("`{}` is damaged", path.display())));
        };
        let lease = marks.into_iter().flatten().map(|(_, leases)| leases).max().unwrap_or(0);
        let epoch = wall_us.max(mark);
        let next = usize::from(marks[0] == marks.into_iter().flatten().max());
        let mut epochs = Watermarks { file, mark, leases: lease, first_lease: lease, next };
        epochs.move_to(epoch.saturating_add(AHEAD), lease)?;
        Ok((epochs, WatermarkFloor { epoch: Fence(epoch), lease }))
    }

    /// Keeps the mark ahead of the next epoch.
    pub fn keep_ahead(&mut self, next: Fence) -> io::Result<()> {
        if next.0.saturating_add(AHEAD / 2) <= self.mark {
            return Ok(());
        }
        self.move_to(next.0.saturating_add(AHEAD), self.leases)
    }

    /// Keeps the mark of leases ahead of all numbers that leave: `next` is the first that does not.
    pub fn keep_leases_ahead(&mut self, next: u64) -> io::Result<()> {
        if next <= self.leases {
            return Ok(());
        }
        let ahead = next.saturating_sub(self.first_lease).clamp(LEASES_LEAST, LEASES_MOST);
        let leases = next.saturating_add(ahead);
        let moved = self.move_to(self.mark, leases);
        // Also where it failed: it is tried again when so many more were handed out.
        self.leases = leases;
        moved
    }

    /// The last word of a service that stops: there is no hole in the numbers of leases.
    pub fn close(&mut self, next_lease: u64) -> io::Result<()> {
        PLACES.iter().try_for_each(|_| self.move_to(self.mark, next_lease))
    }

    fn move_to(&mut self, mark: u64, leases: u64) -> io::Result<()> {
        self.file.write_all_at(text(mark, leases).as_bytes(), PLACES[self.next])?;
        self.file.sync_data()?;
        (self.mark, self.leases, self.next) = (mark, leases, 1 - self.next);
        Ok(())
    }
}

/// The file is there with both of its marks, or not at all.
fn make(dir: &Path) -> io::Result<()> {
    let new = dir.join("epochs.new");
    // One that was left over may be somebody else's, or lead elsewhere.
    let _ = std::fs::remove_file(&new);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(NOFOLLOW).open(&new)?;
    PLACES.into_iter().try_for_each(|place| file.write_all_at(text(0, 0).as_bytes(), place))?;
    file.sync_all()?;
    std::fs::rename(&new, dir.join(NAME))?;
    File::open(dir)?.sync_all()
}

fn text(mark: u64, leases: u64) -> String {
    format!("{mark:0DIGITS$}\n{leases:0DIGITS$}\n")
}

/// The marks in a place. Releases that knew of epochs only wrote nothing behind theirs.
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
    fn a_clock_that_was_set_back_hands_out_no_epoch_twice() {
        let dir = tempfile::tempdir().unwrap();
        let begin =
            |wall_us| Watermarks::begin(dir.path(), wall_us).map(|(epochs, floor)| (epochs, floor.epoch)).unwrap();
        let (_, first) = begin(1_000_000_000_000_000);
        assert_eq!(first, Fence(1_000_000_000_000_000));
        let (mut epochs, second) = begin(5);
        assert_eq!(second.0, first.0 + AHEAD, "above all that the first may have handed out");
        epochs.keep_ahead(Fence(second.0 + AHEAD - 1)).unwrap();
        let (_, third) = begin(5);
        assert!(third.0 >= second.0 + AHEAD - 1, "above what it was told of, too: {third:?}");
        let (_, later) = begin(2_000_000_000_000_000);
        assert_eq!(later, Fence(2_000_000_000_000_000));
    }

    #[test]
    fn numbers_of_leases_grow_over_a_crash_and_have_no_hole_after_a_stop() {
        let dir = tempfile::tempdir().unwrap();
        let begin = || Watermarks::begin(dir.path(), 5).map(|(epochs, floor)| (epochs, floor.lease)).unwrap();
        let (mut epochs, first) = begin();
        assert_eq!(first, 0);
        epochs.keep_leases_ahead(22).unwrap();
        assert_eq!(begin().1, 22 + LEASES_LEAST, "a crash: above all that may have left");
        epochs.keep_leases_ahead(22 + LEASES_LEAST).unwrap();
        assert_eq!(begin().1, 22 + LEASES_LEAST, "nothing was to be written");
        let (mut epochs, _) = begin();
        epochs.keep_leases_ahead(90).unwrap();
        epochs.keep_ahead(Fence(u64::MAX / 2)).unwrap();
        epochs.close(90).unwrap();
        let (mut epochs, next) = begin();
        assert_eq!(next, 90);
        // Whoever hands out many is ahead by as many, and writes seldom.
        epochs.keep_leases_ahead(10_090).unwrap();
        assert_eq!(begin().1, 20_090);
    }

    #[test]
    fn a_file_of_an_earlier_release_has_no_word_about_leases() {
        let dir = tempfile::tempdir().unwrap();
        let mut old = vec![0; 4096 + DIGITS + 1];
        for place in PLACES {
            old[place as usize..][..DIGITS + 1].copy_from_slice(format!("{:0DIGITS$}\n", 77).as_bytes());
        }
        std::fs::write(dir.path().join(NAME), old).unwrap();
        assert_eq!(Watermarks::begin(dir.path(), 5).unwrap().1, WatermarkFloor { epoch: Fence(77), lease: 0 });
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_not_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let precious = dir.path().join("precious");
        std::fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, dir.path().join("epochs.new")).unwrap();
        Watermarks::begin(dir.path(), 5).unwrap();
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
        assert!(dir.path().join(NAME).symlink_metadata().unwrap().is_file());
        std::fs::remove_file(dir.path().join(NAME)).unwrap();
        std::os::unix::fs::symlink(&precious, dir.path().join(NAME)).unwrap();
        Watermarks::begin(dir.path(), 5).unwrap_err();
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
    }

    #[test]
    fn a_mark_that_a_power_cut_spoiled_is_found_in_its_other_place() {
        let dir = tempfile::tempdir().unwrap();
        let begin = || Watermarks::begin(dir.path(), 5).unwrap();
        let (_, _, (newest, _)) = (begin(), begin(), begin());
        let (path, file) = (dir.path().join(NAME), newest.file.try_clone().unwrap());
        let before = std::fs::read(&path).unwrap();
        // The older one is where the next would be written; it is as high as anything that was handed out before.
        for (spoiled, mark) in [(newest.next, newest.mark), (1 - newest.next, newest.mark - AHEAD)] {
            file.write_all_at(b"00x", PLACES[spoiled]).unwrap();
            assert_eq!(begin().1.epoch, Fence(mark));
            file.write_all_at(&before, 0).unwrap();
        }
        PLACES.into_iter().for_each(|place| file.write_all_at(b"00x", place).unwrap());
        let error = Watermarks::begin(dir.path(), 5).unwrap_err();
        assert!(error.to_string().contains("damaged"), "unknown is not zero: {error}");
    }
}
