//! How far epochs went, beside the journal: a backup that is put back knows less than was handed out, and a
//! clock that was set back does not know either.
//!
//! ```text
//!   start:  floor = the larger of the wall clock (µs) and the mark;  mark = floor + AHEAD
//!   later:  the mark moves on before the epochs come near it
//! ```
//! The mark is written in two places by turns, where they stand: a full disk has room for it, and a power cut
//! spoils one of them at most.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use sublet_core::ids::Epoch;

/// The file in the state directory.
const NAME: &str = "epochs";
/// So many grants fit before the mark moves: as many as the wall clock has microseconds in nine minutes.
const AHEAD: u64 = 1 << 29;
/// Digits of the largest number there is.
const DIGITS: usize = 20;
/// Where the two places are: in sectors of their own.
const PLACES: [u64; 2] = [0, 4096];

/// The mark.
#[derive(Debug)]
pub struct Epochs {
    file: File,
    mark: u64,
    /// Where the next one is written.
    next: usize,
}

impl Epochs {
    /// The least epoch that was never handed out, and the mark from here on.
    pub fn begin(dir: &Path, wall_us: u64) -> io::Result<(Epochs, Epoch)> {
        let path = dir.join(NAME);
        let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
        let file = match open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(dir)?;
                open(&path)?
            }
            opened => opened?,
        };
        let marks = PLACES.map(|place| read(&file, place));
        let Some(mark) = marks.into_iter().flatten().max() else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("`{}` is damaged", path.display())));
        };
        let floor = wall_us.max(mark);
        let mut epochs = Epochs { file, mark, next: usize::from(marks[0] == Some(mark)) };
        epochs.move_to(floor.saturating_add(AHEAD))?;
        Ok((epochs, Epoch(floor)))
    }

    /// Keeps the mark ahead of the next epoch.
    pub fn keep_ahead(&mut self, next: Epoch) -> io::Result<()> {
        if next.0.saturating_add(AHEAD / 2) <= self.mark {
            return Ok(());
        }
        self.move_to(next.0.saturating_add(AHEAD))
    }

    fn move_to(&mut self, mark: u64) -> io::Result<()> {
        self.file.write_all_at(text(mark).as_bytes(), PLACES[self.next])?;
        self.file.sync_data()?;
        (self.mark, self.next) = (mark, 1 - self.next);
        Ok(())
    }
}

/// The file is there with both of its marks, or not at all.
fn make(dir: &Path) -> io::Result<()> {
    let new = dir.join("epochs.new");
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    PLACES.into_iter().try_for_each(|place| file.write_all_at(text(0).as_bytes(), place))?;
    file.sync_all()?;
    std::fs::rename(&new, dir.join(NAME))?;
    File::open(dir)?.sync_all()
}

fn text(mark: u64) -> String {
    format!("{mark:0DIGITS$}\n")
}

fn read(file: &File, place: u64) -> Option<u64> {
    let mut bytes = [0; DIGITS + 1];
    file.read_exact_at(&mut bytes, place).ok()?;
    str::from_utf8(&bytes).ok()?.strip_suffix('\n')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_back_hands_out_no_epoch_twice() {
        let dir = tempfile::tempdir().unwrap();
        let (_, first) = Epochs::begin(dir.path(), 1_000_000_000_000_000).unwrap();
        assert_eq!(first, Epoch(1_000_000_000_000_000));
        let (mut epochs, second) = Epochs::begin(dir.path(), 5).unwrap();
        assert_eq!(second.0, first.0 + AHEAD, "above all that the first may have handed out");
        epochs.keep_ahead(Epoch(second.0 + AHEAD - 1)).unwrap();
        let (_, third) = Epochs::begin(dir.path(), 5).unwrap();
        assert!(third.0 >= second.0 + AHEAD - 1, "above what it was told of, too: {third:?}");
        let (_, later) = Epochs::begin(dir.path(), 2_000_000_000_000_000).unwrap();
        assert_eq!(later, Epoch(2_000_000_000_000_000));
    }

    #[test]
    fn a_mark_that_a_power_cut_spoiled_is_found_in_its_other_place() {
        let dir = tempfile::tempdir().unwrap();
        let begin = || Epochs::begin(dir.path(), 5).unwrap();
        let (_, _, (newest, _)) = (begin(), begin(), begin());
        let (path, file) = (dir.path().join(NAME), newest.file.try_clone().unwrap());
        let before = std::fs::read(&path).unwrap();
        // The older one is where the next would be written; it is as high as anything that was handed out before.
        for (spoiled, mark) in [(newest.next, newest.mark), (1 - newest.next, newest.mark - AHEAD)] {
            file.write_all_at(b"00x", PLACES[spoiled]).unwrap();
            assert_eq!(begin().1, Epoch(mark));
            file.write_all_at(&before, 0).unwrap();
        }
        PLACES.into_iter().for_each(|place| file.write_all_at(b"00x", place).unwrap());
        let error = Epochs::begin(dir.path(), 5).unwrap_err();
        assert!(error.to_string().contains("damaged"), "unknown is not zero: {error}");
    }
}
